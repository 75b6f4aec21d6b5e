//! Holds this node's own cells of a shard's counters, on a shared store.

use std::time::Duration;

use quipu_model::Cell;

use crate::bodies::own_cells::OwnCells;
use crate::table::Shard;
use crate::table::unsettled::UnsettledEntry;

impl Shard {
    /// This node's own cells of a name, if it is resident.
    pub fn own_cells(&mut self, hash: u64, name: &[u8]) -> Option<&mut OwnCells> {
        let at = self.slots.find(hash, name)?;
        self.slots.own_cells_mut(at)
    }

    /// This node's own cells of the name in this slot.
    pub fn own_cells_at(&mut self, at: u32) -> Option<&mut OwnCells> {
        self.slots.own_cells_mut(at)
    }

    /// Marks a name as unsettled, due then unless it was due earlier.
    pub fn mark_unsettled(&mut self, name: &[u8], due: impl FnOnce() -> Duration) {
        if !self.unsettled.contains(name) {
            let due = due();
            self.unsettled.update(&name.into(), |_| Some(UnsettledEntry { due, ..UnsettledEntry::default() }));
        }
    }

    /// Takes out the own cells of a name with known state, for [`Shard::put_back_own_cells`]. A
    /// counter from before the shared store has only its cell.
    pub fn take_own_cells(&mut self, hash: u64, name: &[u8]) -> (Option<Box<OwnCells>>, Option<Cell>) {
        self.totals_stale = true;
        let at = self.find_or_insert(hash, name);
        let (own, cell) = (self.slots.take_own_cells(at), self.slots.cell(at));
        self.names_bytes -= own.as_ref().map_or(0, |own| own.memory_bytes());
        (own, cell)
    }

    /// Puts the own cells back.
    pub fn put_back_own_cells(&mut self, hash: u64, name: &[u8], own: Box<OwnCells>) {
        self.totals_stale = true;
        self.names_bytes += own.memory_bytes();
        let at = self.find_or_insert(hash, name);
        self.slots.set_own_cells(at, Some(own));
    }

    /// Names with own cells, or with a cell from before the shared store.
    pub fn own_names(&self) -> impl Iterator<Item = &[u8]> {
        let published = |at: &u32| match self.slots.own_cells(*at) {
            Some(own) => !own.cells.is_empty(),
            None => self.slots.cell(*at).is_some(),
        };
        self.slots.numbers().filter(published).map(|at| self.slots.name(at))
    }

    /// This node's own cells of all resident names.
    pub fn all_own_cells(&self) -> impl Iterator<Item = (u64, &[u8], &OwnCells)> {
        self.slots
            .numbers()
            .filter_map(|at| Some((self.slots.hash(at), self.slots.name(at), self.slots.own_cells(at)?)))
    }
}
