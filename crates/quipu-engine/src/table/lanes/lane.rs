//! One lane, on a cache line of its own.

use crate::base::sync::{AtomicI64, Ordering};

/// A lane, see the module. Two lines of 64 bytes: processors fetch them in pairs.
#[derive(Default)]
#[repr(align(128))]
pub struct Lane {
    /// Sum of all adds to this lane; it wraps.
    added: AtomicI64,
    /// The joined part of `added`. Changed under the lock of the counter's shard; adders read it as
    /// a hint.
    joined: AtomicI64,
}

impl Lane {
    /// An add by the thread that owns the lane; returns the sum not yet joined.
    #[inline]
    pub fn add_exclusive(&self, delta: i64) -> i64 {
        let added = self.added.load(Ordering::Relaxed).wrapping_add(delta);
        self.added.store(added, Ordering::Release);
        added.wrapping_sub(self.joined.load(Ordering::Relaxed))
    }

    /// An add by one of several threads; returns the sum not yet joined.
    #[inline]
    pub fn add_shared(&self, delta: i64) -> i64 {
        let added = self.added.fetch_add(delta, Ordering::SeqCst).wrapping_add(delta);
        added.wrapping_sub(self.joined.load(Ordering::Relaxed))
    }

    pub fn total(&self) -> i64 {
        self.added.load(Ordering::SeqCst)
    }

    /// The sum not yet joined.
    pub fn pending(&self) -> i64 {
        self.total().wrapping_sub(self.joined.load(Ordering::Relaxed))
    }

    /// Returns the sum not yet joined and marks it as joined.
    pub fn take(&self) -> i64 {
        let added = self.total();
        let taken = added.wrapping_sub(self.joined.load(Ordering::Relaxed));
        self.joined.store(added, Ordering::Relaxed);
        taken
    }

    pub fn restore(&self, sum: i64) {
        self.joined.store(self.joined.load(Ordering::Relaxed).wrapping_sub(sum), Ordering::Relaxed);
    }
}
