//! Records round-trip times in a histogram with buckets that grow with their times.
//!
//! Invariant: a quantile is never below the truth, and above it by less than one part in [`STEPS`].

use std::time::Duration;

/// Buckets per doubling. 32 makes the error 3 %, far below the difference between two runs.
const STEPS: u64 = 32;

/// Doublings of [`STEPS`] nanoseconds: the last bucket begins after half an hour.
const DOUBLINGS: usize = 36;

/// Counts of times by bucket. The first [`STEPS`] buckets hold one nanosecond each; then every
/// doubling has as many again.
pub struct Histogram {
    buckets: Vec<u64>,
    count: u64,
}

impl Histogram {
    /// An empty histogram.
    pub fn new() -> Histogram {
        Histogram { buckets: vec![0; (DOUBLINGS + 1) * STEPS as usize], count: 0 }
    }

    /// Records one time.
    pub fn record(&mut self, time: Duration) {
        let bucket = bucket(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        let last = self.buckets.len() - 1;
        self.buckets[bucket.min(last)] += 1;
        self.count += 1;
    }

    /// The time within which `part` of all round trips ended; `None` without any.
    pub fn quantile(&self, part: f64) -> Option<Duration> {
        let rank = ((self.count as f64 * part).ceil() as u64).max(1);
        let mut seen = 0;
        let found = self.buckets.iter().position(|&count| {
            seen += count;
            seen >= rank
        });
        found.filter(|_| self.count > 0).map(|bucket| Duration::from_nanos(last_of(bucket)))
    }
}

fn bucket(nanos: u64) -> usize {
    if nanos < STEPS {
        return nanos as usize;
    }
    let doubling = u64::from(nanos.ilog2() - STEPS.ilog2());
    // The bits behind the first one give the step.
    ((doubling + 1) * STEPS + ((nanos >> doubling) - STEPS)) as usize
}

/// The longest time of a bucket.
fn last_of(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < STEPS {
        return bucket;
    }
    let (doubling, step) = (bucket / STEPS - 1, bucket % STEPS);
    ((STEPS + step + 1) << doubling) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_lies_in_a_bucket_that_ends_at_most_a_step_above_it() {
        for nanos in (0..100_000).chain((1..60).map(|power| (1u64 << power.min(40)) + 12_345)) {
            let last = last_of(bucket(nanos));
            assert!(last >= nanos && last - nanos <= nanos / STEPS, "{nanos} ns went to a bucket that ends at {last}");
        }
    }

    #[test]
    fn quantiles_are_those_of_what_was_recorded() {
        let mut histogram = Histogram::new();
        assert_eq!(histogram.quantile(0.5), None);
        for micros in 1..=1000 {
            histogram.record(Duration::from_micros(micros));
        }
        for (part, micros) in [(0.0, 1), (0.5, 500), (0.99, 990), (0.999, 999), (1.0, 1000)] {
            let (found, truth) = (histogram.quantile(part).unwrap(), Duration::from_micros(micros));
            assert!(found >= truth && found < truth.mul_f64(1.04), "{part}: {found:?} for {truth:?}");
        }
        histogram.record(Duration::MAX);
        assert!(histogram.quantile(1.0).unwrap() > Duration::from_secs(1000));
    }
}
