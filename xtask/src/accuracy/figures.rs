//! Measures the accuracy of the sketches: every figure beside the published one.
//!
//! In: the scale of the run, and a seed. Out: rows and curves, plain data. The same seed gives the
//! same figures on every machine. Two threads share the work.
//!
//! Not here: bars and output (the parent), time, which the benches measure.

use super::{frequent, sampled, uniques};

/// Scale of a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// Some seconds: a smoke test. Its figures have much noise.
    Quick,
    /// Minutes: figures for publication.
    Full,
}

/// One figure.
#[derive(Debug, Clone, PartialEq)]
pub struct ReportRow {
    /// Measured quantity.
    pub name: String,
    /// Unit: `%`, `bytes`, `items`.
    pub unit: &'static str,
    /// Measured value.
    pub measured: f64,
    /// Value from theory or from other publications, as text.
    pub published: &'static str,
}

/// A curve of a plot.
#[derive(Debug, Clone, PartialEq)]
pub struct Curve {
    /// Plot of the curve.
    pub plot: &'static str,
    /// Name in the legend.
    pub name: String,
    /// Label of the x axis.
    pub x: &'static str,
    /// Label of the y axis.
    pub y: &'static str,
    /// Points, in ascending order of x.
    pub points: Vec<(f64, f64)>,
}

/// All figures.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AccuracyReport {
    /// Rows, by kind.
    pub rows: Vec<ReportRow>,
    /// Curves of error over items, over memory.
    pub curves: Vec<Curve>,
}

/// Callback with the present measurement and the completed part, from 0 to 1. Both threads call it.
pub type ProgressCallback<'a> = &'a (dyn Fn(&str, f64) + Sync);

/// Runs all measurements.
pub fn measure(scale: Scale, seed: u64, progress: ProgressCallback<'_>) -> AccuracyReport {
    let mut report = AccuracyReport::default();
    let part = |from: f64, to: f64| move |what: &str, done: f64| progress(what, from + (to - from) * done);
    uniques::measure(scale, seed, &part(0.0, 0.5), &mut report);
    frequent::measure(scale, seed, &part(0.5, 0.9), &mut report);
    sampled::measure(scale, seed, &part(0.9, 1.0), &mut report);
    progress("done", 1.0);
    report
}

/// Runs one half on each of two threads; the results are in order.
pub fn on_two_threads<T: Send>(half: impl Fn(u64) -> T + Sync) -> [T; 2] {
    std::thread::scope(|scope| {
        let other = scope.spawn(|| half(1));
        let one = half(0);
        [one, other.join().expect("a measurement does not panic")]
    })
}
