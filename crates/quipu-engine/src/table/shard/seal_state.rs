//! Compares a shard with the ledger: collects the changes for a batch, and evicts what is sealed.
//!
//! In: the numbers of batches. Out: cells and pages for the ledger; free memory.
//!
//! Invariant: a slot that the ledger does not hold stays resident.

use quipu_model::{AuxRecord, Millis, SealedCell};

use super::name_bytes;
use crate::bodies::own_cells::OwnCells;
use crate::table::Shard;
use crate::table::slots::{RemovedSlot, SlotFlag};

/// Names known to be absent, per shard, beyond which a purge removes them.
const ABSENT_MAX: usize = 256;

/// Unsettled counters of a shard that stay in memory until a shared store has confirmed them.
/// Beyond this number they may be evicted, as when the store is down.
const UNSETTLED_KEPT: usize = 64;

impl Shard {
    /// Collects the slots that differ from the ledger, in no order, for this batch. `sealed`: the
    /// newest batch in the ledger.
    pub fn collect(&mut self, batch: u32, sealed: u32, out: &mut Vec<SealedCell>) {
        self.collections += 1;
        // Cells collected by an unfinished seal must be sealed again.
        let unfinished = std::mem::replace(&mut self.batch, batch) > sealed;
        let from = out.len();
        for at in self.slots.numbers() {
            let collected = self.slots.take(at, SlotFlag::Collected);
            let changed = self.slots.take(at, SlotFlag::Changed);
            if !(changed || collected && unfinished) {
                continue;
            }
            self.slots.set(at, SlotFlag::Collected);
            let cell = self.slots.cell(at);
            // The ledger need not have a removed counter without own cells.
            let is_unused = |own: &OwnCells| own.cells.is_empty() && cell.is_none();
            let own: Option<Box<[u8]>> =
                self.slots.own_cells(at).map(|own| if is_unused(own) { Box::default() } else { own.encode().into() });
            if cell.is_some() || self.slots.has(at, SlotFlag::AtRest) || own.as_ref().is_some_and(|own| !own.is_empty())
            {
                self.slots.set(at, SlotFlag::AtRest);
                out.push(SealedCell { hash: self.slots.hash(at), name: self.slots.name(at).into(), cell, own });
            }
        }
        let deadlines = out[from..].iter().filter_map(|sealed| sealed.cell?.expires_at);
        self.ledger_deadline = deadlines.chain(self.ledger_deadline).min();
    }

    /// Names of slots that differ from the ledger as of this batch.
    pub fn unsealed_names(&self, batch: u32) -> impl Iterator<Item = &[u8]> {
        let unsealed = move |at: &u32| !self.is_sealed(*at, batch);
        self.slots.numbers().filter(unsealed).map(|at| self.slots.name(at))
    }

    /// No ledger cell of this shard expires before this, loaded cells included.
    pub fn deadline(&self) -> Option<Millis> {
        self.deadlines.first().map(|(at, _)| *at).into_iter().chain(self.ledger_deadline).min()
    }

    /// The batch did not reach the ledger: its slots count as changed again.
    pub fn undo_collect(&mut self, batch: u32) {
        if self.batch == batch {
            for at in self.slots.numbers() {
                if self.slots.has(at, SlotFlag::Collected) {
                    self.slots.set(at, SlotFlag::Changed);
                }
            }
        }
    }

    /// Returns true if the ledger, as of this batch, has the slot's whole state.
    fn is_sealed(&self, at: u32, batch: u32) -> bool {
        !(self.slots.has(at, SlotFlag::Changed) || self.slots.has(at, SlotFlag::Collected) && self.batch > batch)
    }

    /// Approximate ledger bytes of the unsealed pages.
    pub fn unsealed_pages_bytes(&self) -> u64 {
        self.bodies.unsealed_bytes() + self.own_bodies.unsealed_bytes()
    }

    /// Collects the pages that are not sealed.
    pub fn collect_pages(&mut self, hash: impl Fn(&[u8]) -> u64, out: &mut Vec<AuxRecord>) {
        self.bodies.collect_pages(&hash, out);
        self.own_bodies.collect_pages(&hash, out);
    }

    /// The collected pages did not reach the ledger.
    pub fn undo_collect_pages(&mut self) {
        self.bodies.undo_collect();
        self.own_bodies.undo_collect();
    }

    /// The collected pages are in the ledger.
    pub fn mark_pages_sealed(&mut self) {
        self.totals_stale = true;
        self.bodies.mark_sealed();
        self.own_bodies.mark_sealed();
    }

    /// Evicts slots that are sealed and were not used since the last call. `batch`: the newest
    /// batch in the ledger.
    pub fn evict(&mut self, batch: u32) -> usize {
        self.totals_stale = true;
        let few = self.unsettled.resident() <= UNSETTLED_KEPT;
        for lanes in self.lanes.all_live() {
            // A counter with live lanes must stay resident.
            if let Some(at) = self.slots.find(lanes.hash(), lanes.name().bytes()) {
                self.slots.set(at, SlotFlag::Used);
            }
        }
        let (mut at, mut gone) = (0, 0);
        while (at as usize) < self.slots.len() {
            let busy = self.slots.own_cells(at).is_some_and(|own| own.pins > 0 || few && own.is_unsettled());
            if !self.is_sealed(at, batch) || self.slots.take(at, SlotFlag::Used) || busy {
                at += 1;
                continue;
            }
            let RemovedSlot { name, cell, own } = self.slots.remove(at);
            gone += 1;
            if let Some(own) = own {
                self.names_bytes -= own.memory_bytes();
                self.unloaded |= !own.cells.is_empty();
                // A store that is down must not fill the memory: some names are remembered, and a
                // walk over the ledger finds the others.
                self.evicted_unsettled |= !self.unsettled.mark_evicted(&name);
            }
            // The eviction of an absent name hides no counter.
            self.unloaded |= cell.is_some();
            // A counter loaded for its expiry and not removed yet must be found again.
            self.ledger_deadline = cell.and_then(|cell| cell.expires_at).into_iter().chain(self.ledger_deadline).min();
            self.names_bytes -= name_bytes(&name);
            self.move_deadline(cell.and_then(|cell| cell.expires_at), None, &name);
        }
        self.slots.shrink();
        self.absent_slots = self.absent_slots.min(self.slots.len());
        gone
    }

    /// Removes slots of absent names that the ledger does not have either and that were not used
    /// since the last call.
    pub fn purge(&mut self, batch: u32) {
        self.totals_stale = true;
        let (mut at, mut absent) = (0, 0);
        while (at as usize) < self.slots.len() {
            let exists = self.slots.cell(at).is_some();
            let has_own_state = self.slots.own_cells(at).is_some_and(|own| own.pins > 0 || !own.cells.is_empty());
            if exists || has_own_state || !self.is_sealed(at, batch) || self.slots.take(at, SlotFlag::Used) {
                // A slot with own state stays for a shared store: no later purge would remove it.
                absent += usize::from(!exists && !has_own_state);
                at += 1;
            } else {
                let RemovedSlot { name, own, .. } = self.slots.remove(at);
                self.names_bytes -= name_bytes(&name) + own.map_or(0, |own| own.memory_bytes());
            }
        }
        self.slots.shrink();
        self.absent_slots = absent;
    }

    /// Returns true if there are enough absent names for a [`Shard::purge`].
    pub fn needs_purge(&self) -> bool {
        self.absent_slots > ABSENT_MAX
    }
}
