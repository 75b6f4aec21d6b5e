//! Measures fsync durations, for metrics.

use std::time::Duration;

use crate::base::sync::{AtomicU64, Ordering};

/// Upper ends of the buckets, in seconds. They range from a disk with a power-safe cache to a disk
/// about to fail.
pub const SYNC_SECONDS: [f64; 12] =
    [0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.05, 0.1, 0.5, 2.5];

/// Number of syncs by duration; the last bucket has those beyond the last end.
pub type SyncCounts = [u64; SYNC_SECONDS.len() + 1];

/// Histogram of fsync durations.
pub(crate) struct SyncTimes {
    counts: [AtomicU64; SYNC_SECONDS.len() + 1],
    micros_total: AtomicU64,
    micros_last: AtomicU64,
}

impl SyncTimes {
    pub(crate) fn new() -> SyncTimes {
        let zero = || AtomicU64::new(0);
        SyncTimes { counts: std::array::from_fn(|_| zero()), micros_total: zero(), micros_last: zero() }
    }

    pub(crate) fn record(&self, took: Duration) {
        let (seconds, micros) = (took.as_secs_f64(), took.as_micros() as u64);
        let bucket = SYNC_SECONDS.partition_point(|end| *end < seconds);
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        self.micros_total.fetch_add(micros, Ordering::Relaxed);
        self.micros_last.store(micros, Ordering::Relaxed);
    }

    pub(crate) fn counts(&self) -> SyncCounts {
        std::array::from_fn(|bucket| self.counts[bucket].load(Ordering::Relaxed))
    }

    /// Number of syncs longer than `time`, which must be an end of a bucket.
    pub(crate) fn count_longer_than(&self, time: Duration) -> u64 {
        let first = SYNC_SECONDS.partition_point(|end| *end <= time.as_secs_f64());
        self.counts[first..].iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    pub(crate) fn micros_total(&self) -> u64 {
        self.micros_total.load(Ordering::Relaxed)
    }

    pub(crate) fn micros_last(&self) -> u64 {
        self.micros_last.load(Ordering::Relaxed)
    }
}
