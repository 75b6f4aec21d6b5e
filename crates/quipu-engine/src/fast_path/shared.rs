//! Lots of counters that are shared.
//!
//! In: counters, each with all that is asked of it. Out: one add to this node's own cell for all adds of a lot, and one entry that tells of it.
//!
//! Invariant: a lot runs only if the long way would have nothing to do but to add and to show: the counter exists and does not expire, what is known of its
//! row is fresh enough, the sum over all writers fits a reply, and the present life has one cell, into which every sum of a lot fits. What is not so is for the long way to see to.

use std::time::Duration;

use quipu_model::shared::Shard as Part;
use quipu_model::{Cell, Durability, Incarnation, SimpleCommand};

use super::{BatchPlan, KeyBatch};
use crate::apply::table::{Residency, Shard};
use crate::journal::format::{Entry, PriorExistence};
use crate::namespaces::Policies;
use crate::sharing::own::OwnCell;
use crate::sharing::{RowCheck, StoreLink};
use crate::turn::Turn;

/// The one cell of a writer whose counters are not spread over several.
const ONLY_SHARD: Part = Part(0);

/// What a shared counter is looked at with.
struct SharedView<'s> {
    shared: &'s StoreLink,
    policies: &'s Policies,
    incarnation: Incarnation,
    times: (Duration, Option<Duration>),
}

impl BatchPlan<'_> {
    /// What each counter is asked for.
    pub(super) fn mark_adds_and_reads(&mut self, commands: &[SimpleCommand<'_>]) {
        for (command, batch) in commands.iter().zip(self.batch_of).take(self.command_count) {
            let batch = &mut self.batches[usize::from(batch)];
            *(if command.delta.is_some() { &mut batch.adds } else { &mut batch.reads }) = true;
        }
    }
}

impl Turn<'_> {
    /// Looks at counters whose shards are held; returns how many of the first commands can run.
    pub(super) fn find_shared_batches(
        &mut self,
        batches: &mut [KeyBatch<'_>],
        incarnation: Incarnation,
        command_count: usize,
    ) -> usize {
        let shared = self.engine.shared.as_ref().expect("there is a store");
        let view = SharedView { shared, policies: &self.policies, incarnation, times: (self.elapsed, self.rows_since) };
        let held = self.locks.as_mut().expect("the run is open");
        let unready = batches.iter_mut().filter_map(|batch| {
            (!batch.find_shared(held.nth(batch.shard_index), &view)).then_some(batch.first_command)
        });
        unready.min().map_or(command_count, |first| first.min(command_count))
    }

    /// Brings what was added to a counter into this node's cell, the table and the record.
    pub(super) fn write_shared(&mut self, batch: &KeyBatch<'_>, incarnation: Incarnation) {
        let shared = self.engine.shared.as_ref().expect("there is a store");
        let picker = shared.shard_picker_as(incarnation, self.elapsed, &self.policies);
        let shard = self.locks.as_mut().expect("the run is open").nth(batch.shard_index);
        let at = batch.slot.expect("only what was found is run");
        shard.set_value(at, batch.value);
        let own_cells = shard.own_cells_at(at).expect("only what this node has a cell of is run");
        let added = picker.add(own_cells, ONLY_SHARD, None, batch.sum);
        debug_assert!(added, "it was found to fit");
        let journaled = batch.durability > Durability::Memory;
        let own = if journaled { own_cells.encode() } else { Vec::new() };
        shard.mark_unsettled(batch.name.bytes(), || picker.due_at(batch.name));
        if journaled {
            let (name, epoch, value, expires_at) = (batch.name.bytes(), batch.epoch, batch.value, batch.expires_at);
            let (count, sum, before) = (batch.count, batch.sum, PriorExistence::Unknown);
            self.builder.push(self.now, &Entry::Cell { name, epoch, value, expires_at, count, sum, before, own: &own });
        }
    }
}

impl KeyBatch<'_> {
    /// Looks at the counter; whether its commands can run.
    fn find_shared(&mut self, shard: &mut Shard, view: &SharedView<'_>) -> bool {
        if shard.lanes.is_live(self.name.bytes()) {
            return false;
        }
        let (Some(at), Residency::Present(Cell { epoch, value, expires_at: None })) =
            shard.find_slot(self.hash, self.name.bytes())
        else {
            return false;
        };
        if shard.is_sketch_at(at) {
            return false;
        }
        let Some(own_cells) = shard.own_cells_at(at).filter(|own_cells| own_cells.wide_sum.is_none()) else {
            return false;
        };
        let share = &view.policies.policy(self.name).share;
        if self.adds
            && (share.shards != 1
                || !own_cells.cell_mut(view.incarnation, ONLY_SHARD).is_some_and(|cell| accepts_any_sum(cell)))
        {
            return false;
        }
        (self.slot, self.exists, self.value, self.epoch) = (Some(at), true, value, epoch);
        // What only reads may do with less than what only adds does, and the other way round: a lot of both needs what both do.
        let mut is_usable = |adds| {
            matches!(view.shared.check_row(Some(&mut *own_cells), self.name, adds, view.times, share), RowCheck::Usable)
        };
        (!self.adds || is_usable(true)) && (!self.reads || is_usable(false))
    }
}

/// Whether every sum of a lot can be added to it, and nothing else is to be said of it first.
fn accepts_any_sum(cell: &OwnCell) -> bool {
    let own = &cell.own;
    own.pending_expiry.is_none()
        && own.expires_at.is_none()
        && [i64::MIN, i64::MAX].iter().all(|sum| own.added(*sum).is_some())
}
