//! Chooses the own cell that an add to a shared counter changes.
//!
//! In: a counter's policy, perhaps a shard key. Out: the cell of the present incarnation and of one
//! shard; a refusal if the counter has no room for another cell.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use quipu_model::shared::Shard;
use quipu_model::{Cell, Incarnation, Millis, Name, NodeId, Refusal, Rng};
use quipu_sketch::Key;
use xxhash_rust::xxh3::xxh3_64;

use super::shared_counter::{SharedCounter, ShownBody, own_from_unshared};
use crate::base::sharing_options::{SHARDS_MAX, ShardPick};
use crate::base::sync::{AtomicBool, Ordering};
use crate::bodies::own_cells::{OwnCell, OwnCells, cells_max};
use crate::namespaces::Policies;

/// Chooses the cell of an add: incarnation and shard.
pub struct ShardPicker<'s> {
    pub(crate) node: NodeId,
    pub(crate) rng: &'s dyn Rng,
    /// Set by an add of the present incarnation.
    pub(crate) has_added: &'s AtomicBool,
    pub(crate) policies: &'s Policies,
    /// The present incarnation.
    pub(crate) incarnation: Incarnation,
    /// Monotonic time.
    pub(crate) now: Duration,
}

impl ShardPicker<'_> {
    /// The node's present incarnation.
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// A random number.
    pub fn random(&self) -> u64 {
        self.rng.next()
    }

    /// Own cells of a counter from before the shared store.
    pub fn own_from_unshared(&self, cell: Option<Cell>) -> OwnCells {
        own_from_unshared(cell, self.incarnation)
    }

    /// A counter under its lock.
    pub fn shared_counter<'o>(
        &self,
        own_cells: &'o mut OwnCells,
        shown: Option<Cell>,
        key: &'o Key,
    ) -> SharedCounter<'o> {
        SharedCounter {
            own_cells,
            shown,
            changed: false,
            confirmed: false,
            node: self.node,
            incarnation: self.incarnation,
            bodies: BTreeMap::new(),
            body: None,
            body_number: 0,
            dropped_bodies: Vec::new(),
            inherited: Vec::new(),
            rewritten_bodies: BTreeSet::new(),
            known_expiry: shown.and_then(|cell| cell.expires_at),
            shows_sketch: false,
            shown_body: ShownBody::Unchanged,
            random: self.rng.next(),
            key,
        }
    }

    /// Due time for the put of an add.
    pub fn due_at(&self, name: Name<'_>) -> Duration {
        self.now + self.policies.policy(name).share.settle_every
    }

    /// Adds to the cell of a shard; false if the cell cannot hold the sum.
    pub fn add(&self, own_cells: &mut OwnCells, shard: Shard, expires_at: Option<Millis>, delta: i64) -> bool {
        if own_cells.cell_mut(self.incarnation, shard).is_none() && !self.has_room(own_cells) {
            return false;
        }
        self.mark_added();
        let cell = own_cells.open_cell(self.incarnation, shard, expires_at);
        match cell.own.added(delta) {
            Some(own) => {
                cell.update(own);
                true
            }
            None => false,
        }
    }

    /// Opens the body cell for an observation. `None`: too many cells of older incarnations are
    /// unsettled.
    pub fn open_observed_cell<'o>(&self, own_cells: &'o mut OwnCells, is_idempotent: bool) -> Option<&'o mut OwnCell> {
        let (incarnation, shard) = own_cells.observed_cell(is_idempotent, self.incarnation)?;
        if !is_idempotent {
            if own_cells.cell_mut(incarnation, shard).is_none() && !self.has_room(own_cells) {
                return None;
            }
            self.mark_added();
        }
        Some(own_cells.open_cell(incarnation, shard, None))
    }

    /// Returns true if there is room for one more cell. It may drop a confirmed cell that was kept
    /// only against a loss in the store.
    fn has_room(&self, own_cells: &mut OwnCells) -> bool {
        own_cells.cells.len() < cells_max(self.policies.shards_max())
            || own_cells.drop_oldest_confirmed(self.incarnation)
    }

    /// Picks the shard of an add. Refused if the policy needs a shard key and the command has none.
    pub fn pick(&self, name: Name<'_>, shard_key: Option<&[u8]>) -> Result<Shard, Refusal> {
        let policy = &self.policies.policy(name).share;
        let shards = u64::from(policy.shards.clamp(1, SHARDS_MAX));
        if shards == 1 {
            return Ok(Shard(0));
        }
        let number = match policy.pick {
            ShardPick::Writer => self.node.0,
            ShardPick::Random => self.rng.next(),
            // Without a seed, so that every node picks the same shard for the same key.
            ShardPick::Hash => xxh3_64(shard_key.ok_or(Refusal::NoShardKey)?),
            ShardPick::Time => self.now.as_secs(),
        };
        Ok(Shard((number % shards) as u16))
    }

    /// Records that the present incarnation has a cell.
    fn mark_added(&self) {
        // Read first: the flag is true almost always, and a cache line without writes stays in
        // every core's cache.
        if !self.has_added.load(Ordering::Acquire) {
            self.has_added.store(true, Ordering::Release);
        }
    }
}
