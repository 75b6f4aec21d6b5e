//! Counts durations in the buckets of a histogram.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use super::SampleWriter;

/// Upper bounds of the buckets, in seconds: from the duration of an add in memory to a client's
/// usual time-out.
const SECONDS: [f64; 14] =
    [0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0];

/// Histogram of durations.
#[derive(Default)]
pub(crate) struct Histogram {
    /// One more than there are bounds: the last bucket has none.
    counts: [AtomicU64; SECONDS.len() + 1],
    micros: AtomicU64,
}

impl Histogram {
    pub fn record(&self, took: Duration) {
        let seconds = took.as_secs_f64();
        let bucket = SECONDS.partition_point(|end| *end < seconds);
        self.counts[bucket].fetch_add(1, Relaxed);
        self.micros.fetch_add(took.as_micros() as u64, Relaxed);
    }

    pub fn write_to(&self, labels: &[(&str, &str)], out: &mut SampleWriter<'_>) {
        let counts: [u64; SECONDS.len() + 1] = std::array::from_fn(|bucket| self.counts[bucket].load(Relaxed));
        // An empty histogram has no lines.
        if counts.iter().any(|count| *count > 0) {
            out.histogram(labels, &SECONDS, &counts, self.micros.load(Relaxed) as f64 / 1e6);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_belongs_to_its_bucket() {
        let histogram = Histogram::default();
        for micros in [0, 50, 51, 6_000_000] {
            histogram.record(Duration::from_micros(micros));
        }
        let counts: Vec<u64> = histogram.counts.iter().map(|count| count.load(Relaxed)).collect();
        assert_eq!((counts[0], counts[1], counts[14], counts.iter().sum::<u64>()), (2, 1, 1, 4));
    }
}
