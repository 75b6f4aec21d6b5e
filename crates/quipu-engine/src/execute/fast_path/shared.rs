//! Runs key batches of shared counters.
//!
//! In: counters, each with all commands on it. Out: one add to this node's own cell for all adds of
//! a batch, and one entry.
//!
//! Invariant: a batch runs here only if the general path would do no more than add and show. All
//! others go to the general path. The conditions:
//! - the counter exists and does not expire;
//! - its row is fresh enough;
//! - the sum over all writers fits a reply;
//! - the present incarnation has a single cell, into which every sum of a batch fits.

use std::time::Duration;

use quipu_model::shared::Shard as Part;
use quipu_model::{Cell, Durability, Incarnation, SimpleCommand};

use crate::bodies::own_cells::OwnCell;
use crate::core::store_link::StoreLink;
use crate::execute::fast_path::{BatchPlan, KeyBatch};
use crate::execute::routing::RowCheck;
use crate::execute::turn::{Turn, expect_run};
use crate::journal::format::{Entry, PriorExistence};
use crate::namespaces::Policies;
use crate::table::{Residency, Shard};

/// The only shard of a writer that does not spread its counters.
const ONLY_SHARD: Part = Part(0);

/// Context of a shared counter's look-up.
struct SharedView<'s> {
    shared: &'s StoreLink,
    policies: &'s Policies,
    incarnation: Incarnation,
    times: (Duration, Option<Duration>),
}

impl BatchPlan<'_> {
    /// Marks the batches that add and those that read.
    pub(super) fn mark_adds_and_reads(&mut self, commands: &[SimpleCommand<'_>]) {
        for (command, batch) in commands.iter().zip(self.batch_of).take(self.command_count) {
            let batch = &mut self.batches[usize::from(batch)];
            *(if command.delta.is_some() { &mut batch.adds } else { &mut batch.reads }) = true;
        }
    }
}

impl Turn<'_> {
    /// Looks up counters in locked shards; returns the number of leading commands that can run.
    pub(super) fn find_shared_batches(
        &mut self,
        batches: &mut [KeyBatch<'_>],
        incarnation: Incarnation,
        command_count: usize,
    ) -> usize {
        let shared = self.engine.shared.as_ref().expect("there is a store");
        let view = SharedView { shared, policies: &self.policies, incarnation, times: (self.elapsed, self.rows_since) };
        let held = &mut expect_run(&mut self.open_run).locks;
        let unready = batches.iter_mut().filter_map(|batch| {
            (!batch.find_shared(held.nth(batch.shard_index), &view)).then_some(batch.first_command)
        });
        unready.min().map_or(command_count, |first| first.min(command_count))
    }

    /// Writes a batch's sum into this node's own cell, the table and the record.
    pub(super) fn write_shared(&mut self, batch: &KeyBatch<'_>, incarnation: Incarnation) {
        let shared = self.engine.shared.as_ref().expect("there is a store");
        let picker = shared.shard_picker_as(incarnation, self.elapsed, &self.policies);
        let shard = expect_run(&mut self.open_run).locks.nth(batch.shard_index);
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
    /// Looks up the counter; returns whether its commands can run.
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
        // Adds and reads have different freshness rules; a batch of both must satisfy both.
        let mut is_usable = |adds| {
            matches!(view.shared.check_row(Some(&mut *own_cells), self.name, adds, view.times, share), RowCheck::Usable)
        };
        (!self.adds || is_usable(true)) && (!self.reads || is_usable(false))
    }
}

/// Returns true if the cell accepts every sum of a batch and has no pending change.
fn accepts_any_sum(cell: &OwnCell) -> bool {
    let own = &cell.own;
    own.pending_expiry.is_none()
        && own.expires_at.is_none()
        && [i64::MIN, i64::MAX].iter().all(|sum| own.added(*sum).is_some())
}
