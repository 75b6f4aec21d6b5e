//! Lots of counters that are shared.
//!
//! In: counters, each with all that is asked of it. Out: one add to this node's own cell for all adds of a lot, and one entry that tells of it.
//!
//! Invariant: a lot runs only if the long way would have nothing to do but to add and to show: the counter exists and does not expire, what is known of its
//! row is fresh enough, the sum over all writers fits a reply, and the present life has one cell, into which every sum of a lot fits. What is not so is for the long way to see to.

use std::time::Duration;

use quipu_model::shared::Shard as Part;
use quipu_model::{Brief, Cell, Durability, Incarnation};

use super::{Lot, Together};
use crate::apply::table::{Look, Shard};
use crate::journal::format::{Before, Entry};
use crate::namespaces::Policies;
use crate::sharing::own::OwnCell;
use crate::sharing::{Seeing, Shared};
use crate::turn::Turn;

/// The one cell of a writer whose counters are not spread over several.
const ONLY: Part = Part(0);

/// What a shared counter is looked at with.
struct Sight<'s> {
    shared: &'s Shared,
    policies: &'s Policies,
    present: Incarnation,
    times: (Duration, Option<Duration>),
}

impl Together<'_> {
    /// What each counter is asked for.
    pub(super) fn tell_apart(&mut self, briefs: &[Brief<'_>]) {
        for (brief, lot) in briefs.iter().zip(self.lot_of).take(self.commands) {
            let lot = &mut self.lots[usize::from(lot)];
            *(if brief.delta.is_some() { &mut lot.adds } else { &mut lot.reads }) = true;
        }
    }
}

impl Turn<'_> {
    /// Looks at counters whose shards are held; returns how many of the first commands can run.
    pub(super) fn look_at_shared(&mut self, lots: &mut [Lot<'_>], present: Incarnation, commands: usize) -> usize {
        let shared = self.engine.shared.as_ref().expect("there is a store");
        let sight = Sight { shared, policies: &self.policies, present, times: (self.elapsed, self.rows_since) };
        let held = self.held.as_mut().expect("the run is open");
        let unready =
            lots.iter_mut().filter_map(|lot| (!lot.look_shared(held.at(lot.held), &sight)).then_some(lot.first));
        unready.min().map_or(commands, |first| first.min(commands))
    }

    /// Brings what was added to a counter into this node's cell, the table and the record.
    pub(super) fn write_shared(&mut self, lot: &Lot<'_>, present: Incarnation) {
        let shared = self.engine.shared.as_ref().expect("there is a store");
        let picking = shared.picking_as(present, self.elapsed, &self.policies);
        let shard = self.held.as_mut().expect("the run is open").at(lot.held);
        let at = lot.at.expect("only what was found is run");
        shard.set_value(at, lot.value);
        let owned = shard.own_at(at).expect("only what this node has a cell of is run");
        let added = picking.add(owned, ONLY, None, lot.sum);
        debug_assert!(added, "it was found to fit");
        let journaled = lot.durability > Durability::Memory;
        let own = if journaled { owned.encode() } else { Vec::new() };
        shard.note_unsettled(lot.name.bytes(), || picking.due(lot.name));
        if journaled {
            let (name, epoch, value, expires_at) = (lot.name.bytes(), lot.epoch, lot.value, lot.expires_at);
            let (count, sum, before) = (lot.count, lot.sum, Before::Unsure);
            self.draft.push(self.now, &Entry::Cell { name, epoch, value, expires_at, count, sum, before, own: &own });
        }
    }
}

impl Lot<'_> {
    /// Looks at the counter; whether its commands can run.
    fn look_shared(&mut self, shard: &mut Shard, sight: &Sight<'_>) -> bool {
        if shard.splits.is_live(self.name.bytes()) {
            return false;
        }
        let (Some(at), Look::Cell(Cell { epoch, value, expires_at: None })) =
            shard.look_at(self.hash, self.name.bytes())
        else {
            return false;
        };
        if shard.is_sketch_at(at) {
            return false;
        }
        let Some(owned) = shard.own_at(at).filter(|owned| owned.wide_sum.is_none()) else { return false };
        let share = &sight.policies.policy(self.name).share;
        if self.adds && (share.shards != 1 || !owned.cell(sight.present, ONLY).is_some_and(|cell| takes_adds(cell))) {
            return false;
        }
        (self.at, self.exists, self.value, self.epoch) = (Some(at), true, value, epoch);
        // What only reads may do with less than what only adds does, and the other way round: a lot of both needs what both do.
        let mut known =
            |adds| matches!(sight.shared.look(Some(&mut *owned), self.name, adds, sight.times, share), Seeing::Known);
        (!self.adds || known(true)) && (!self.reads || known(false))
    }
}

/// Whether every sum of a lot can be added to it, and nothing else is to be said of it first.
fn takes_adds(cell: &OwnCell) -> bool {
    let own = &cell.own;
    own.lapsed.is_none() && own.expires_at.is_none() && [i64::MIN, i64::MAX].iter().all(|sum| own.added(*sum).is_some())
}
