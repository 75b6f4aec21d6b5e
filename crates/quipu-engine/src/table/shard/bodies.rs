//! Holds the bodies of a shard's sketches: the shown ones, and this node's own.
//!
//! Invariant: a body goes with its cell, and with the cell's epoch.

use quipu_model::{Cell, Incarnation, Millis, NameBuf};
use quipu_sketch::Sketch;

use crate::bodies::body_map::{Body, BodyMap};
use crate::bodies::own_bodies::OwnBodies;
use crate::bodies::stored_page::StoredPage;
use crate::bodies::together::is_idempotent;
use crate::journal::format::PackedEdits;
use crate::table::Shard;
use crate::table::slots::SlotFlag;

impl Shard {
    /// The bodies of this shard's sketches.
    pub fn bodies(&self) -> &BodyMap {
        &self.bodies
    }

    /// The body of a name.
    pub fn body(&self, name: &[u8]) -> Option<&Body> {
        if self.bodies.is_empty() { None } else { self.bodies.get(name) }
    }

    /// The same, unless the counter has expired: then commands find no body.
    pub fn unexpired_body(&self, hash: u64, name: &[u8], now: Millis) -> Option<&Body> {
        let body = self.body(name)?;
        let cell = self.slots.find(hash, name).and_then(|at| self.slots.cell(at));
        let expired = cell.is_some_and(|cell| cell.expires_at.is_some_and(|at| at <= now));
        if expired { None } else { Some(body) }
    }

    /// The body of a name, mutable. After a change the caller must call
    /// [`Shard::update_body_size`].
    pub fn body_mut(&mut self, name: &[u8]) -> Option<&mut Body> {
        self.bodies.get_mut(name)
    }

    /// Updates the sizes after a change of a body.
    pub fn update_body_size(&mut self, name: &[u8]) {
        self.totals_stale = true;
        self.bodies.update_size(name);
    }

    /// Sets the body of an existing counter.
    pub fn put_body(&mut self, hash: u64, name: &[u8], body: Body) {
        self.totals_stale = true;
        self.bodies.insert(name, body);
        if let Some(at) = self.slots.find(hash, name) {
            self.slots.set(at, SlotFlag::Sketch);
        }
    }

    /// Returns true if the counter at this slot is a sketch.
    pub fn is_sketch_at(&self, at: u32) -> bool {
        self.slots.has(at, SlotFlag::Sketch)
    }

    /// Loads a body's page from the ledger.
    pub fn load_page(&mut self, page: &StoredPage<'_>) -> Result<(), &'static str> {
        self.totals_stale = true;
        self.own_bodies.load_page(page).unwrap_or_else(|| self.bodies.load_page(page))
    }

    /// Replays a journal record of a body: kind, version, and whether it is the whole body. Its
    /// cell was restored before.
    pub fn restore_body(
        &mut self,
        hash: u64,
        (name, pane): (&[u8], u32),
        change: (u8, u64, bool),
        edits: &PackedEdits<'_>,
    ) -> Result<(), &'static str> {
        self.totals_stale = true;
        let at = self.slots.find(hash, name);
        let cell = at.and_then(|at| Some((at, self.slots.cell(at)?)));
        // A pane has its own versions.
        let Some((at, cell)) = cell.filter(|(_, cell)| pane != 0 || cell.value as u64 == change.1) else {
            return Err("a change of a sketch without its cell");
        };
        self.bodies.replay_edits((name, pane), cell.epoch, change, edits)?;
        self.slots.set(at, SlotFlag::Sketch);
        Ok(())
    }

    /// The same for this node's own body on a shared store; its own cell was restored before.
    pub fn restore_own_body(
        &mut self,
        hash: u64,
        (name, number): (&[u8], u16),
        change: (u8, u64, bool),
        edits: &PackedEdits<'_>,
    ) -> Result<(), &'static str> {
        self.totals_stale = true;
        let own =
            self.slots.find(hash, name).and_then(|at| self.slots.own_cells(at)).and_then(|own| own.body_cell(number));
        let Some(cell) = own.filter(|cell| cell.own.value == i128::from(change.1)) else {
            return Err("a change of a sketch without this node's cell");
        };
        let epoch = cell.own.epoch;
        self.own_bodies.replay_edits((name, number), epoch, change, edits)
    }

    /// This node's own bodies of shared sketches.
    pub fn own_bodies(&self) -> &OwnBodies {
        &self.own_bodies
    }

    /// The same, mutable.
    pub fn own_bodies_mut(&mut self) -> &mut OwnBodies {
        self.totals_stale = true;
        &mut self.own_bodies
    }

    /// This node's own body that an observation changes, in the present incarnation, if it is of
    /// the same form as `like`.
    pub fn observed_body(&self, hash: u64, name: &[u8], like: &Sketch, present: Incarnation) -> Option<&Body> {
        if self.own_bodies.is_empty() {
            return None;
        }
        let is_idempotent = is_idempotent(like);
        let own = self.slots.find(hash, name).and_then(|at| self.slots.own_cells(at))?;
        let (incarnation, shard) = own.observed_cell(is_idempotent, present)?;
        let cell = own.body_cells().find(|cell| cell.incarnation == incarnation && cell.shard == shard)?;
        self.own_bodies.get(name, cell.body_number())
    }

    /// Drops the shown body of a shared sketch, with its cell or before a replacement.
    pub fn drop_body(&mut self, hash: u64, name: &[u8]) {
        self.totals_stale = true;
        self.bodies.remove(name);
        if let Some(at) = self.slots.find(hash, name) {
            self.slots.unset(at, SlotFlag::Sketch);
        }
    }

    /// Approximate bytes of bodies, shown and own.
    pub fn bodies_bytes(&self) -> usize {
        self.bodies.bytes() + self.own_bodies.bytes()
    }

    /// Parses all bodies as sketches, once all pages are loaded.
    pub fn parse_bodies(&mut self) -> Result<(), (NameBuf, String)> {
        self.totals_stale = true;
        self.own_bodies.parse_bodies()?;
        self.bodies.parse_bodies()
    }

    /// After a change of a slot's cell, drops a body of another epoch.
    pub(super) fn drop_stale_body(&mut self, at: u32, name: &[u8], cell: Option<Cell>) {
        if !self.slots.has(at, SlotFlag::Sketch) {
            return;
        }
        let epoch = cell.map(|cell| cell.epoch);
        if self.bodies.get(name).is_none_or(|body| Some(body.epoch) != epoch) {
            self.bodies.remove(name);
            self.slots.unset(at, SlotFlag::Sketch);
        }
    }
}
