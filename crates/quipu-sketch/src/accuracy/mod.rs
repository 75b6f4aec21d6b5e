//! What the sketches promise, measured: every figure beside the published one.
//!
//! In: how much to run, and a seed. Out: rows and curves, plain data. The same seed gives the same figures on every machine. Two threads share the work; time is not measured here, that is what the benches are
//! for.

mod frequent;
mod rng;
mod sampled;
mod uniques;

/// How much is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// Some seconds: shows that nothing is broken. Its figures have much noise.
    Quick,
    /// Minutes: figures to publish.
    Full,
}

/// One figure.
#[derive(Debug, Clone, PartialEq)]
pub struct ReportRow {
    /// What was measured.
    pub name: String,
    /// What it is measured in: `%`, `bytes`, `items`.
    pub unit: &'static str,
    /// What came out.
    pub measured: f64,
    /// What theory says or others publish, in words.
    pub published: &'static str,
}

/// A curve to draw.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// The plot it belongs to.
    pub plot: &'static str,
    /// Its name in the legend.
    pub name: String,
    /// What `points` are over.
    pub x: &'static str,
    /// What `points` are of.
    pub y: &'static str,
    /// In ascending order of x.
    pub points: Vec<(f64, f64)>,
}

/// All figures.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Report {
    /// By kind.
    pub rows: Vec<ReportRow>,
    /// Curves of error over items, over memory.
    pub series: Vec<Series>,
}

/// Told what is being measured, and which part of all is done, from 0 to 1. Called from both threads.
pub type Progress<'a> = &'a (dyn Fn(&str, f64) + Sync);

/// Measures everything.
pub fn measure(scale: Scale, seed: u64, progress: Progress<'_>) -> Report {
    let mut report = Report::default();
    let part = |from: f64, to: f64| move |what: &str, done: f64| progress(what, from + (to - from) * done);
    uniques::measure(scale, seed, &part(0.0, 0.5), &mut report);
    frequent::measure(scale, seed, &part(0.5, 0.9), &mut report);
    sampled::measure(scale, seed, &part(0.9, 1.0), &mut report);
    progress("done", 1.0);
    report
}

/// Runs a half on each of two threads; results come in order.
fn on_two_threads<T: Send>(half: impl Fn(u64) -> T + Sync) -> [T; 2] {
    std::thread::scope(|scope| {
        let other = scope.spawn(|| half(1));
        let one = half(0);
        [one, other.join().expect("a measurement does not panic")]
    })
}
