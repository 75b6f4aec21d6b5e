//! How counters are shared.

use std::time::Duration;

use quipu_model::Name;

/// Most shards of a counter that one writer may have: each is a cell in the row that every reader fetches.
pub const SHARDS_MAX: u16 = 64;

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
    pub pick: Pick,
    /// Namespaces that differ.
    pub namespaces: Vec<(Box<[u8]>, SharePolicy)>,
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
}

impl Default for SharingOptions {
    fn default() -> SharingOptions {
        let day = Duration::from_secs(24 * 3_600);
        SharingOptions {
            settle_every: Duration::from_secs(1),
            freshness: Duration::from_secs(1),
            shards: 1,
            pick: Pick::Writer,
            namespaces: Vec::new(),
            lease: Duration::from_secs(30),
            retire_after: day,
            grace: 7 * day,
            audit_every: Duration::from_secs(3_600),
            fetch_wait: Duration::from_secs(1),
            swap_wait: Duration::from_secs(5),
        }
    }
}

/// What a namespace may say of sharing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharePolicy {
    /// See [`SharingOptions::settle_every`].
    pub settle_every: Duration,
    /// See [`SharingOptions::freshness`].
    pub freshness: Duration,
    /// See [`SharingOptions::shards`].
    pub shards: u16,
    /// See [`SharingOptions::pick`].
    pub pick: Pick,
}

/// Which shard an add goes to, where a counter has several.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pick {
    /// The same one for all adds of a writer.
    #[default]
    Writer,
    /// Any, evenly.
    Random,
    /// By the key that the command names.
    Hash,
    /// By the second in which it is added.
    Time,
}

impl SharingOptions {
    /// What is in force for a counter.
    pub fn policy(&self, name: Name<'_>) -> SharePolicy {
        let SharingOptions { settle_every, freshness, shards, pick, .. } = *self;
        let differing = || self.namespaces.iter().find(|(namespace, _)| **namespace == *name.namespace());
        match self.namespaces.is_empty() {
            true => None,
            false => differing().map(|(_, policy)| *policy),
        }
        .unwrap_or(SharePolicy { settle_every, freshness, shards, pick })
    }

    /// The shortest time in which anything is put.
    pub(crate) fn settle_every_min(&self) -> Duration {
        self.namespaces.iter().map(|(_, policy)| policy.settle_every).fold(self.settle_every, Duration::min)
    }

    /// Most shards that any counter has.
    pub fn shards_max(&self) -> u16 {
        self.namespaces.iter().map(|(_, policy)| policy.shards).fold(self.shards, u16::max).clamp(1, SHARDS_MAX)
    }
}
