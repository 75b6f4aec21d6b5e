//! Creates, changes and removes the counters of a shard.
//!
//! In: cells, from commands, journal records, the ledger or a row of the shared store. Out: slots,
//! deadlines and totals that agree with them.

use std::collections::BTreeSet;

use quipu_model::{Cell, Epoch};

use super::name_bytes;
use crate::bodies::own_cells::OwnCells;
use crate::table::Shard;
use crate::table::slots::SlotFlag;
use crate::table::unsettled::UnsettledNames;

impl Shard {
    /// Creates or replaces the cell of a name with known state; returns whether it existed.
    pub fn put(&mut self, hash: u64, name: &[u8], cell: Cell) -> bool {
        self.totals_stale = true;
        self.version += 1;
        self.epoch_newest = self.epoch_newest.max(cell.epoch);
        let at = self.find_or_insert(hash, name);
        self.slots.set(at, SlotFlag::Changed);
        self.slots.set(at, SlotFlag::Used);
        let before = self.slots.set_cell(at, Some(cell));
        self.drop_stale_body(at, name, Some(cell));
        self.move_deadline(before.and_then(|cell| cell.expires_at), cell.expires_at, name);
        self.counters += u64::from(before.is_none());
        before.is_some()
    }

    /// Removes the cell of an existing name.
    pub fn remove(&mut self, hash: u64, name: &[u8]) {
        self.totals_stale = true;
        let Some(at) = self.slots.find(hash, name) else { return };
        let before = self.slots.set_cell(at, None);
        self.drop_stale_body(at, name, None);
        self.slots.set(at, SlotFlag::Changed);
        if !self.slots.has(at, SlotFlag::AtRest) && self.slots.own_cells(at).is_none() {
            // The ledger does not have it.
            self.slots.remove(at);
            self.names_bytes -= name_bytes(name);
        }
        self.version += 1;
        self.move_deadline(before.and_then(|cell| cell.expires_at), None, name);
        self.counters -= u64::from(before.is_some());
    }

    /// Sets the number of counters from the ledger.
    pub fn set_counters(&mut self, counters: u64) {
        self.totals_stale = true;
        self.counters = counters;
    }

    /// Restores a counter from a journal record; `existed`: it existed before the record. The
    /// ledger may have the name, so the slot is marked as if it does.
    pub fn restore(&mut self, hash: u64, name: &[u8], cell: Option<Cell>, existed: bool, own: Option<Box<OwnCells>>) {
        self.totals_stale = true;
        self.names_bytes += own.as_ref().map_or(0, |own| own.memory_bytes());
        let at = self.find_or_insert(hash, name);
        let before = self.slots.set_cell(at, cell);
        self.drop_stale_body(at, name, cell);
        self.own_bodies.retain_current(name, |number, epoch| {
            let published = own.as_ref().and_then(|own| own.body_cell(number)).filter(|cell| cell.own.value > 0);
            published.is_some_and(|cell| cell.own.epoch == epoch)
        });
        let own_before = self.slots.set_own_cells(at, own);
        self.slots.set(at, SlotFlag::Changed);
        self.slots.set(at, SlotFlag::AtRest);
        self.names_bytes -= own_before.map_or(0, |own| own.memory_bytes());
        self.epoch_newest = self.epoch_newest.max(cell.map_or(Epoch::FIRST, |cell| cell.epoch));
        self.move_deadline(before.and_then(|c| c.expires_at), cell.and_then(|c| c.expires_at), name);
        self.counters = (self.counters + u64::from(cell.is_some())).saturating_sub(u64::from(existed));
    }

    /// Takes the ledger's state of a name that has no slot.
    pub fn load(&mut self, hash: u64, name: &[u8], cell: Option<Cell>, own: Option<Box<OwnCells>>) {
        if self.slots.find(hash, name).is_some() {
            return;
        }
        self.totals_stale = true;
        self.names_bytes += own.as_ref().map_or(0, |own| own.memory_bytes());
        self.absent_slots += usize::from(cell.is_none());
        self.move_deadline(None, cell.and_then(|cell| cell.expires_at), name);
        self.epoch_newest = self.epoch_newest.max(cell.map_or(Epoch::FIRST, |cell| cell.epoch));
        let at = self.find_or_insert(hash, name);
        if cell.is_some() || own.is_some() {
            self.slots.set(at, SlotFlag::AtRest);
        }
        self.slots.set_cell(at, cell);
        self.slots.set_own_cells(at, own);
        self.unsettled.mark_loaded(name);
    }

    /// Shows another cell: other nodes' cells have changed, which is not journaled.
    pub fn set_shown_cell(&mut self, hash: u64, name: &[u8], cell: Option<Cell>) {
        self.totals_stale = true;
        self.version += 1;
        self.epoch_newest = self.epoch_newest.max(cell.map_or(Epoch::FIRST, |cell| cell.epoch));
        let at = self.find_or_insert(hash, name);
        let before = self.slots.set_cell(at, cell);
        self.drop_stale_body(at, name, cell);
        if before != cell {
            // A counter loaded from the ledger must not show less than was read before.
            self.slots.set(at, SlotFlag::Changed);
        }
        self.absent_slots += usize::from(cell.is_none());
        self.move_deadline(before.and_then(|c| c.expires_at), cell.and_then(|c| c.expires_at), name);
        self.counters += u64::from(cell.is_some());
        self.counters -= u64::from(before.is_some());
    }

    /// Marks a slot for the next seal without a journal record.
    pub fn mark_changed(&mut self, hash: u64, name: &[u8]) {
        if let Some(at) = self.slots.find(hash, name) {
            self.slots.set(at, SlotFlag::Changed);
        }
    }

    /// Removes all counters; the ledger's cells no longer count.
    pub fn clear(&mut self) {
        self.totals_stale = true;
        self.version += 1;
        self.deadlines = BTreeSet::new();
        self.unsettled = UnsettledNames::default();
        self.slots.clear();
        self.bodies.clear();
        self.own_bodies.clear();
        (self.names_bytes, self.absent_slots, self.counters) = (0, 0, 0);
        (self.unloaded, self.ledger_deadline) = (false, None);
    }
}
