//! Measures errors of both kinds of uniques over the number of items, filled alone and merged from
//! halves.

use quipu_sketch::{Edits, Hll, Unique};

use super::figures::{AccuracyReport, Curve, ProgressCallback, ReportRow, Scale, on_two_threads};
use super::rng::Rng;

/// Numbers of items at which the error is measured: dense around the switches from sparse runs and
/// from tokens to registers.
const CHECKPOINTS: [u64; 29] = [
    10, 30, 100, 300, 1_000, 1_400, 1_500, 1_600, 1_650, 1_700, 1_750, 1_800, 1_900, 1_990, 2_000, 2_001, 2_010, 2_100,
    2_300, 2_600, 3_000, 4_000, 5_000, 10_000, 30_000, 100_000, 200_000, 300_000, 1_000_000,
];

/// With many more items than registers the error no longer grows with their number. The worst of
/// these is the figure.
const LARGE: [u64; 3] = [100_000, 300_000, 1_000_000];

/// Estimator measured at each checkpoint.
#[derive(Clone, Copy)]
enum Estimator {
    HllAlone,
    HllMerged,
    UniqueAlone,
    UniqueMerged,
}

const ALL: [(Estimator, &str); 4] = [
    (Estimator::HllAlone, "PF*, filled alone"),
    (Estimator::HllMerged, "PF*, merged"),
    (Estimator::UniqueAlone, "unique, filled alone"),
    (Estimator::UniqueMerged, "unique, merged"),
];

/// Sums of relative errors and of their squares, by checkpoint and estimator.
struct Sums {
    sums: [[(f64, f64); 4]; CHECKPOINTS.len()],
    /// Largest size in bytes, of each sketch at each checkpoint.
    bytes: [[usize; 2]; CHECKPOINTS.len()],
}

pub fn measure(scale: Scale, seed: u64, progress: ProgressCallback<'_>, report: &mut AccuracyReport) {
    let runs: u64 = if scale == Scale::Full { 4_000 } else { 24 };
    let halves = on_two_threads(|half| {
        let mut sums = Sums { sums: [[(0.0, 0.0); 4]; CHECKPOINTS.len()], bytes: [[0; 2]; CHECKPOINTS.len()] };
        for run in (half..runs).step_by(2) {
            one_run(&mut Rng::new(seed, run), &mut sums);
            progress("uniques", run as f64 / runs as f64);
        }
        sums
    });
    let sum = |checkpoint: usize, estimator: Estimator| {
        let add = |(a, b): (f64, f64), (c, d): (f64, f64)| (a + c, b + d);
        halves.iter().map(|half| half.sums[checkpoint][estimator as usize]).fold((0.0, 0.0), add)
    };
    let checkpoint = |n: u64| CHECKPOINTS.iter().position(|checkpoint| *checkpoint == n).expect("it is a look");
    let rmse = |checkpoint: usize, estimator: Estimator| 100.0 * (sum(checkpoint, estimator).1 / runs as f64).sqrt();
    let large = |estimator: Estimator| LARGE.iter().map(|n| rmse(checkpoint(*n), estimator)).fold(0.0, f64::max);
    let bytes =
        |n: u64, which: usize| halves.iter().map(|half| half.bytes[checkpoint(n)][which]).max().unwrap_or(0) as f64;

    let mut row = |name: &str, unit, measured, published| {
        report.rows.push(ReportRow { name: name.into(), unit, measured, published });
    };
    row("PF* error, filled alone", "%", large(Estimator::HllAlone), "Redis 0.81; HIP 0.833/√m = 0.65");
    row("PF* error, merged", "%", large(Estimator::HllMerged), "Redis 0.81; 1.039/√m = 0.81");
    row("PF* size", "bytes", bytes(1_000_000, 0), "Redis 12,304");
    row("unique error, filled alone", "%", large(Estimator::UniqueAlone), "HIP 0.658/√m = 0.727");
    row("unique error, merged", "%", large(Estimator::UniqueMerged), "ML 0.761/√m = 0.841");
    row("unique size", "bytes", bytes(1_000_000, 1), "Redis 12,304");
    row("unique error at 100 items", "%", rmse(checkpoint(100), Estimator::UniqueAlone), "Redis ~0.55");
    row("unique error at 1,000 items", "%", rmse(checkpoint(1_000), Estimator::UniqueAlone), "Redis ~0.55");
    row("unique size at 100 items", "bytes", bytes(100, 1), "Redis 267");
    row("unique size at 1,000 items", "bytes", bytes(1_000, 1), "Redis 1,882");
    let switches = |estimator: Estimator| {
        CHECKPOINTS
            .iter()
            .enumerate()
            .filter(|(_, n)| (1_400..=5_000).contains(*n))
            .map(|(at, _)| rmse(at, estimator))
            .fold(0.0, f64::max)
    };
    row(
        "PF* error around sparse → dense, worst",
        "%",
        switches(Estimator::HllAlone).max(switches(Estimator::HllMerged)),
        "HLL++ 35",
    );
    row(
        "unique error around tokens → registers, worst",
        "%",
        switches(Estimator::UniqueAlone).max(switches(Estimator::UniqueMerged)),
        "HLL++ 35",
    );
    for (estimator, name) in ALL {
        let bias =
            LARGE.iter().map(|n| sum(checkpoint(*n), estimator).0).sum::<f64>() / (LARGE.len() as u64 * runs) as f64;
        row(&format!("{name}: bias"), "%", 100.0 * bias.abs(), "0");
    }
    for (estimator, name) in ALL {
        let points = CHECKPOINTS.iter().enumerate().map(|(at, n)| (*n as f64, rmse(at, estimator))).collect();
        report.curves.push(Curve { plot: "uniques", name: name.into(), x: "distinct items", y: "error, %", points });
    }
}

fn one_run(rng: &mut Rng, sums: &mut Sums) {
    let mut edits = Edits::new();
    let mut hlls = [Hll::new(), Hll::new(), Hll::new()];
    let mut uniques = [Unique::new(), Unique::new(), Unique::new()];
    let mut n = 0;
    for (at, checkpoint) in CHECKPOINTS.into_iter().enumerate() {
        while n < checkpoint {
            let hash = rng.next();
            n += 1;
            let half = 1 + (n % 2) as usize;
            for which in [0, half] {
                hlls[which].add_hash(hash, &mut edits);
                uniques[which].add_hash(hash, &mut edits);
                edits.clear();
            }
        }
        let estimates = [
            hlls[0].estimate(),
            Hll::union_estimate(&[&hlls[1], &hlls[2]]),
            uniques[0].estimate(),
            Unique::union(&[&uniques[1], &uniques[2]]).estimate,
        ];
        for (sum, estimate) in sums.sums[at].iter_mut().zip(estimates) {
            let off = estimate / checkpoint as f64 - 1.0;
            *sum = (sum.0 + off, sum.1 + off * off);
        }
        for (largest, now) in sums.bytes[at].iter_mut().zip([hlls[0].bytes().len(), uniques[0].bytes().len()]) {
            *largest = now.max(*largest);
        }
    }
}
