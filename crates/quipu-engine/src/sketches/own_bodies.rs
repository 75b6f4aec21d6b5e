//! What this node says of a shard's sketches on a shared store: several bodies of one counter, by number.
//!
//! In: bodies by name and number. Out: the same, and notes of the pages that the ledger does not know.
//!
//! A sketch that may be taken in twice has one, the node's, with the first number. Of the others each life of the node has one of its own, until what an older life has said is settled.
//!
//! Invariant: a body goes with the own cell that has its number, and with that cell's epoch.

use quipu_model::{AuxRecord, Epoch, NameBuf};

use super::body_map::{Body, BodyMap};
use super::stored_page::{StoredPage, own_body_number};
use crate::journal::format::PackedEdits;

/// A shelf for each number, as far as there is any body with it.
#[derive(Debug, Default)]
pub struct OwnBodies(Vec<BodyMap>);

impl OwnBodies {
    /// The body of a name with this number.
    pub fn get(&self, name: &[u8], number: u16) -> Option<&Body> {
        self.0.get(usize::from(number))?.get(name)
    }

    /// The same, to be changed.
    pub fn get_mut(&mut self, name: &[u8], number: u16) -> Option<&mut Body> {
        self.0.get_mut(usize::from(number))?.get_mut(name)
    }

    /// All bodies of a name.
    pub fn bodies_of(&self, name: &[u8]) -> impl Iterator<Item = (u16, &Body)> {
        (0..).zip(&self.0).filter_map(move |(number, map)| Some((number, map.get(name)?)))
    }

    /// Whether there is a body of a name.
    pub fn contains(&self, name: &[u8]) -> bool {
        self.bodies_of(name).next().is_some()
    }

    /// Takes a body out, to be given back.
    pub fn take(&mut self, name: &[u8], number: u16) -> Option<Box<Body>> {
        self.0.get_mut(usize::from(number))?.take(name)
    }

    /// Takes all bodies of a name out.
    pub fn take_all(&mut self, name: &[u8]) -> impl Iterator<Item = (u16, Box<Body>)> {
        (0..).zip(&mut self.0).filter_map(move |(number, map)| Some((number, map.take(name)?)))
    }

    /// Gives a body back that was taken out, or a new one.
    pub fn put_back(&mut self, name: &[u8], number: u16, body: Box<Body>) {
        self.body_map(number).put_back(name, body);
    }

    /// A body that was taken out does not come back; the ledger is to forget it.
    pub fn drop_taken(&mut self, name: &[u8], number: u16, body: Box<Body>) {
        self.body_map(number).drop_taken(name, body);
    }

    /// Takes away those bodies of a name that are none of what is said any more: its cells say that of a number and an epoch.
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

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.iter().map(BodyMap::len).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(BodyMap::is_empty)
    }

    /// About how many bytes all of them take.
    pub fn bytes(&self) -> usize {
        self.0.iter().map(BodyMap::bytes).sum()
    }

    /// Takes everything away; the ledger forgets all of it without being told.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Takes a page that the ledger has, if it is of one of these; says what is wrong with it.
    pub fn load_page(&mut self, page: &StoredPage<'_>) -> Option<Result<(), &'static str>> {
        let number = own_body_number(page.pane)?;
        Some(self.body_map(number).load_page(page))
    }

    /// Takes what a record says of a body whose cell has this epoch; says what is wrong with it.
    pub fn replay_edits(
        &mut self,
        (name, number): (&[u8], u16),
        epoch: Epoch,
        change: (u8, u64, bool),
        edits: &PackedEdits<'_>,
    ) -> Result<(), &'static str> {
        self.body_map(number).replay_edits((name, 0), epoch, change, edits)
    }

    /// Looks at all bodies as sketches; says which is none, and why.
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
