//! Measures errors of sampled counts.

use quipu_sketch::sample::{Rate, SampledCount, Skip};

use super::figures::{AccuracyReport, ProgressCallback, ReportRow, Scale, on_two_threads};
use super::rng::Rng;

/// Rates, each with its error from theory.
const RATES: [(u32, &str); 2] = [(10, "√((p−1)/n) = 0.300"), (100, "√((p−1)/n) = 0.995")];

/// Events of a run.
const EVENTS: u64 = 1_000_000;

pub fn measure(scale: Scale, seed: u64, progress: ProgressCallback<'_>, report: &mut AccuracyReport) {
    let runs: u64 = if scale == Scale::Full { 2_000 } else { 100 };
    let errors = on_two_threads(|half| {
        let (p, _) = RATES[half as usize];
        let rate = Rate::one_in(p);
        let mut squares = 0.0;
        for run in 0..runs {
            let mut rng = Rng::new(seed ^ u64::from(p), run);
            let mut skip = Skip::new(&rate, rng.next());
            let mut sampled = SampledCount::default();
            for _ in 0..EVENTS {
                if skip.take(&rate, || rng.next()) {
                    sampled.add_taken(&rate, 1);
                }
            }
            squares += (sampled.estimate as f64 / EVENTS as f64 - 1.0).powi(2);
            if half == 0 {
                progress("samples", run as f64 / runs as f64);
            }
        }
        100.0 * (squares / runs as f64).sqrt()
    });
    for ((p, published), measured) in RATES.into_iter().zip(errors) {
        let name = format!("sampled count, one in {p}, 1,000,000 events: error");
        report.rows.push(ReportRow { name, unit: "%", measured, published });
    }
}
