//! Counts a namespace's counters, if their number is limited.
//!
//! In: counters created and removed, under the locks of their shards. Out: permission to create one
//! more.
//!
//! Namespaces without a limit are not counted. When one gets a limit, and at every start, its
//! counters are counted shard by shard, each under its lock, resident or not. From then on every
//! change in that shard updates the count.
//!
//! Invariants:
//! - the number includes all existing counters of the counted shards, even expired ones not removed
//!   yet, as in `DBSIZE`;
//! - it also includes the reservations for counters about to be created;
//! - a command reserves all its new counters before it creates the first, and releases the
//!   reservations after the last: so only adds counted before the limit was known can exceed it.

use crate::base::sync::{AtomicU64, Ordering};

/// The number of a namespace's counters.
#[derive(Debug)]
pub struct Census {
    /// Unique in this process.
    id: u64,
    pub(crate) counters: AtomicU64,
}

impl Census {
    /// The census of a namespace before the count.
    pub(super) fn new(id: u64) -> Census {
        Census { id, counters: AtomicU64::new(0) }
    }

    /// Identifies the census in shards that were counted.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Number of counters.
    pub fn counters(&self) -> u64 {
        self.counters.load(Ordering::Acquire)
    }

    /// Counts further counters.
    pub(crate) fn add(&self, count: u64) {
        self.counters.fetch_add(count, Ordering::AcqRel);
    }

    /// Counts removed counters.
    pub(crate) fn remove(&self, count: u64) {
        self.counters.fetch_sub(count, Ordering::AcqRel);
    }
}
