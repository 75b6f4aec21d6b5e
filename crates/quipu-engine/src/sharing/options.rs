//! How counters are shared.

use std::time::Duration;

use quipu_model::FailMode;
pub use quipu_model::{SHARDS_MAX, ShardPick};

/// Something that is not shown.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(pub String);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// How counters are shared. The first four may differ by namespace.
#[derive(Debug, Clone)]
pub struct SharingOptions {
    /// What has changed is put to the store this long after; a counter is put once in that time however often it is added to.
    pub settle_every: Duration,
    /// What is known of the other writers may be this old when a counter is read.
    pub freshness: Duration,
    /// How many cells a counter has in the store per writer.
    pub shards: u16,
    /// Which of them an add goes to.
    pub pick: ShardPick,
    /// A node says this often, several times over, that it is there.
    pub lease: Duration,
    /// One that has not said so for this long after is retired: its cells are closed.
    pub retire_after: Duration,
    /// Closed cells are folded after this long; what the store remembers for late messages, it remembers for this long.
    pub grace: Duration,
    /// All own cells are compared with the store this often.
    pub audit_every: Duration,
    /// A command waits so long for the store to show a counter; then it is served with what is known.
    pub fetch_wait: Duration,
    /// A set, reset, delete or change of expiry waits so long for the store; then it is refused, or its outcome is unknown.
    pub swap_wait: Duration,
    /// What all nodes have in common, and nobody else knows: sketches hash what they count by it.
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

/// How the counters of a namespace are shared.
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
    /// What is done while the store does not answer.
    pub fail_mode: FailMode,
}
