//! Compares watched counters.
//!
//! In: a counter's version at the watch. Out: whether the counter has changed before the
//! transaction.

use quipu_model::{Millis, Name};

use crate::core::load::Load;
use crate::execute::turn::Turn;
use crate::table::Residency;
use crate::table::locks::ShardLocks;

/// The state of a counter that WATCH compares: its shard's version, and its expiry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WatchedVersion {
    pub(super) shard: usize,
    version: u64,
    expires_at: Option<Millis>,
}

impl WatchedVersion {
    /// A counter that has expired since counts as changed, even if the expiry was not noticed yet.
    fn has_changed(&self, locks: &mut ShardLocks<'_>, now: Millis) -> bool {
        locks.shard(self.shard).version != self.version || self.expires_at.is_some_and(|at| at <= now)
    }
}

impl Turn<'_> {
    /// Returns the state of a counter, for [`Turn::run_transaction`] to compare.
    pub fn watch(&mut self, name: Name<'_>) -> Result<WatchedVersion, Load> {
        // On a shared store the transaction refuses the watch.
        self.end_run();
        let table = &self.engine.table;
        let hash = table.hash(name.bytes());
        let index = table.shard_of(hash);
        let mut shard = table.lock(index);
        if shard.lanes.has_live() {
            // Adds in lanes so far are no change.
            drop(shard);
            self.cell(name)?;
            self.end_run();
            shard = table.lock(index);
        }
        let expires_at = match shard.find(hash, name.bytes()) {
            Residency::Present(cell) => cell.expires_at.filter(|at| *at > self.now),
            Residency::Absent => None,
            Residency::NotResident => return Err(Load::Names(vec![name.bytes().into()])),
        };
        Ok(WatchedVersion { shard: index, version: shard.version, expires_at })
    }

    /// Returns true if a watched counter has changed. Closes the lanes of its shard, so no later
    /// add goes to them.
    pub(super) fn has_changed(&self, locks: &mut ShardLocks<'_>, watches: &[WatchedVersion]) -> bool {
        let mut changed = false;
        for watch in watches {
            changed |= locks.shard(watch.shard).lanes.close_all() | watch.has_changed(locks, self.now);
        }
        if !changed {
            for watch in watches {
                let room = locks.shard(watch.shard).lanes.drain_all(|_| ());
                self.engine.lanes.return_room(&self.engine.journal, room);
            }
        }
        changed
    }
}
