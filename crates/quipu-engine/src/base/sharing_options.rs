//! Settings of shared counters.

use std::time::Duration;

use quipu_model::FailMode;
pub use quipu_model::{SHARDS_MAX, ShardPick};

/// A secret that `Debug` does not print.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(pub String);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// Settings of shared counters. The first four may differ by namespace.
#[derive(Debug, Clone)]
pub struct SharingOptions {
    /// Time from a change to its put. A counter is put at most once in that time, regardless of its
    /// number of adds.
    pub settle_every: Duration,
    /// Oldest value of other writers that a read may return.
    pub freshness: Duration,
    /// Number of cells that a counter has in the store per writer.
    pub shards: u16,
    /// Choice of the cell for an add.
    pub pick: ShardPick,
    /// Length of a node's lease; the node renews it several times within that length.
    pub lease: Duration,
    /// Time after the end of a lease until the node is retired: its cells are closed.
    pub retire_after: Duration,
    /// Time from closing cells to folding them. The store also remembers values for late messages
    /// for this long.
    pub grace: Duration,
    /// Interval between two audits of all own cells against the store.
    pub audit_every: Duration,
    /// Longest time that a command waits for the store to show a counter; then it gets the known
    /// value.
    pub fetch_wait: Duration,
    /// Longest time that a set, reset, delete or change of expiry waits for the store. Then it is
    /// refused, or its outcome is unknown.
    pub swap_wait: Duration,
    /// Secret shared by all nodes: sketches hash their items with it.
    pub secret: Secret,
}

impl Default for SharingOptions {
    fn default() -> SharingOptions {
        let day = Duration::from_secs(24 * 3_600);
        SharingOptions {
            settle_every: Duration::from_secs(1),
            freshness: Duration::from_secs(1),
            shards: 1,
            pick: ShardPick::Writer,
            lease: Duration::from_secs(30),
            retire_after: day,
            grace: 7 * day,
            audit_every: Duration::from_secs(3_600),
            fetch_wait: Duration::from_secs(1),
            swap_wait: Duration::from_secs(5),
            secret: Secret::default(),
        }
    }
}

/// Sharing policy of a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharePolicy {
    /// See [`SharingOptions::settle_every`].
    pub settle_every: Duration,
    /// See [`SharingOptions::freshness`].
    pub freshness: Duration,
    /// See [`SharingOptions::shards`].
    pub shards: u16,
    /// See [`SharingOptions::pick`].
    pub pick: ShardPick,
    /// Behaviour while the store does not respond.
    pub fail_mode: FailMode,
}
