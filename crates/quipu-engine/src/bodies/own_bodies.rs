//! Holds this node's own bodies of a shard's shared sketches: several per counter, by number.
//!
//! In: bodies by name and number. Out: the same, and records of their unsealed pages.
//!
//! A sketch with an idempotent merge has one body for the whole node, number 0. Other sketches have
//! one body per incarnation of the node, until the store has settled that incarnation's body.
//!
//! Invariant: a body belongs to the own cell of its number, and has that cell's epoch.

use quipu_model::{AuxRecord, Epoch, NameBuf};

use crate::bodies::body_map::{Body, BodyMap};
use crate::bodies::stored_page::{StoredPage, own_body_number};
use crate::journal::format::PackedEdits;

/// One [`BodyMap`] per number, up to the highest one used.
#[derive(Debug, Default)]
pub struct OwnBodies(Vec<BodyMap>);

impl OwnBodies {
    /// The body of a name with this number.
    pub fn get(&self, name: &[u8], number: u16) -> Option<&Body> {
        self.0.get(usize::from(number))?.get(name)
    }

    /// The same, mutable.
    pub fn get_mut(&mut self, name: &[u8], number: u16) -> Option<&mut Body> {
        self.0.get_mut(usize::from(number))?.get_mut(name)
    }

    /// All bodies of a name.
    pub fn bodies_of(&self, name: &[u8]) -> impl Iterator<Item = (u16, &Body)> {
        (0..).zip(&self.0).filter_map(move |(number, map)| Some((number, map.get(name)?)))
    }

    /// Returns true if the name has a body.
    pub fn contains(&self, name: &[u8]) -> bool {
        self.bodies_of(name).next().is_some()
    }

    /// Takes out a body; the caller puts it back.
    pub fn take(&mut self, name: &[u8], number: u16) -> Option<Box<Body>> {
        self.0.get_mut(usize::from(number))?.take(name)
    }

    /// Takes out all bodies of a name.
    pub fn take_all(&mut self, name: &[u8]) -> impl Iterator<Item = (u16, Box<Body>)> {
        (0..).zip(&mut self.0).filter_map(move |(number, map)| Some((number, map.take(name)?)))
    }

    /// Puts a body back, or a new one in.
    pub fn put_back(&mut self, name: &[u8], number: u16, body: Box<Body>) {
        self.body_map(number).put_back(name, body);
    }

    /// Drops a body that was taken out; the next seal deletes it from the ledger.
    pub fn drop_taken(&mut self, name: &[u8], number: u16, body: Box<Body>) {
        self.body_map(number).drop_taken(name, body);
    }

    /// Removes the bodies of a name without a current own cell of their number and epoch.
    pub fn retain_current(&mut self, name: &[u8], is_current: impl Fn(u16, Epoch) -> bool) {
        for (number, map) in (0..).zip(&mut self.0) {
            if map.get(name).is_some_and(|body| !is_current(number, body.epoch)) {
                map.remove(name);
            }
        }
    }

    /// All bodies.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], u16, &Body)> {
        (0..).zip(&self.0).flat_map(|(number, map)| map.iter().map(move |(name, body)| (name, number, body)))
    }

    /// Number of bodies.
    pub fn len(&self) -> usize {
        self.0.iter().map(BodyMap::len).sum()
    }

    /// Returns true if there are no bodies.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(BodyMap::is_empty)
    }

    /// Approximate bytes of all bodies.
    pub fn bytes(&self) -> usize {
        self.0.iter().map(BodyMap::bytes).sum()
    }

    /// Removes all bodies; the ledger is cleared separately.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Loads a page from the ledger if it is of an own body; an error describes its damage.
    pub fn load_page(&mut self, page: &StoredPage<'_>) -> Option<Result<(), &'static str>> {
        let number = own_body_number(page.pane)?;
        Some(self.body_map(number).load_page(page))
    }

    /// Replays a record of a body under its cell's epoch; an error describes its damage.
    pub fn replay_edits(
        &mut self,
        (name, number): (&[u8], u16),
        epoch: Epoch,
        change: (u8, u64, bool),
        edits: &PackedEdits<'_>,
    ) -> Result<(), &'static str> {
        self.body_map(number).replay_edits((name, 0), epoch, change, edits)
    }

    /// Parses all bodies as sketches; an error names the damaged body.
    pub fn parse_bodies(&mut self) -> Result<(), (NameBuf, String)> {
        self.0.iter_mut().try_for_each(BodyMap::parse_bodies)
    }

    /// See [`BodyMap::collect_pages`].
    pub fn collect_pages(&mut self, hash: impl Fn(&[u8]) -> u64, out: &mut Vec<AuxRecord>) {
        self.0.iter_mut().for_each(|map| map.collect_pages(&hash, out));
    }

    /// See [`BodyMap::unsealed_bytes`].
    pub fn unsealed_bytes(&self) -> u64 {
        self.0.iter().map(BodyMap::unsealed_bytes).sum()
    }

    /// See [`BodyMap::undo_collect`].
    pub fn undo_collect(&mut self) {
        self.0.iter_mut().for_each(BodyMap::undo_collect);
    }

    /// See [`BodyMap::mark_sealed`].
    pub fn mark_sealed(&mut self) {
        self.0.iter_mut().for_each(BodyMap::mark_sealed);
    }

    fn body_map(&mut self, number: u16) -> &mut BodyMap {
        while self.0.len() <= usize::from(number) {
            self.0.push(BodyMap::for_own(self.0.len() as u16));
        }
        &mut self.0[usize::from(number)]
    }
}
