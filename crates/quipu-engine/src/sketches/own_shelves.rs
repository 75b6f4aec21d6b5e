//! What this node says of a shard's sketches on a shared store: several bodies of one counter, by number.
//!
//! In: bodies by name and number. Out: the same, and notes of the pages that the ledger does not know.
//!
//! A sketch that may be taken in twice has one, the node's, with the first number. Of the others each life of the node has one of its own, until what an older life has said is settled.
//!
//! Invariant: a body goes with the own cell that has its number, and with that cell's epoch.

use quipu_model::{Epoch, KeptName, Note};

use super::note::{Paged, own_number};
use super::shelf::{Body, Shelf};
use crate::journal::format::PackedEdits;

/// A shelf for each number, as far as there is any body with it.
#[derive(Debug, Default)]
pub struct OwnShelves(Vec<Shelf>);

impl OwnShelves {
    /// The body of a name with this number.
    pub fn get(&self, name: &[u8], number: u16) -> Option<&Body> {
        self.0.get(usize::from(number))?.get(name)
    }

    /// The same, to be changed.
    pub fn get_mut(&mut self, name: &[u8], number: u16) -> Option<&mut Body> {
        self.0.get_mut(usize::from(number))?.get_mut(name)
    }

    /// All bodies of a name.
    pub fn of(&self, name: &[u8]) -> impl Iterator<Item = (u16, &Body)> {
        (0..).zip(&self.0).filter_map(move |(number, shelf)| Some((number, shelf.get(name)?)))
    }

    /// Whether there is a body of a name.
    pub fn has(&self, name: &[u8]) -> bool {
        self.of(name).next().is_some()
    }

    /// Takes a body out, to be given back.
    pub fn take(&mut self, name: &[u8], number: u16) -> Option<Box<Body>> {
        self.0.get_mut(usize::from(number))?.take(name)
    }

    /// Takes all bodies of a name out.
    pub fn take_all(&mut self, name: &[u8]) -> impl Iterator<Item = (u16, Box<Body>)> {
        (0..).zip(&mut self.0).filter_map(move |(number, shelf)| Some((number, shelf.take(name)?)))
    }

    /// Gives a body back that was taken out, or a new one.
    pub fn give(&mut self, name: &[u8], number: u16, body: Box<Body>) {
        self.shelf(number).give(name, body);
    }

    /// A body that was taken out does not come back; the ledger is to forget it.
    pub fn drop_taken(&mut self, name: &[u8], number: u16, body: Box<Body>) {
        self.shelf(number).drop_taken(name, body);
    }

    /// Takes away those bodies of a name that are none of what is said any more: its cells say that of a number and an epoch.
    pub fn follow(&mut self, name: &[u8], is_said: impl Fn(u16, Epoch) -> bool) {
        for (number, shelf) in (0..).zip(&mut self.0) {
            if shelf.get(name).is_some_and(|body| !is_said(number, body.epoch)) {
                shelf.remove(name);
            }
        }
    }

    /// All bodies.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], u16, &Body)> {
        (0..).zip(&self.0).flat_map(|(number, shelf)| shelf.iter().map(move |(name, body)| (name, number, body)))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.iter().map(Shelf::len).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(Shelf::is_empty)
    }

    /// About how many bytes all of them take.
    pub fn bytes(&self) -> usize {
        self.0.iter().map(Shelf::bytes).sum()
    }

    /// Takes everything away; the ledger forgets all of it without being told.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Takes a page that the ledger has, if it is of one of these; says what is wrong with it.
    pub fn load(&mut self, paged: &Paged<'_>) -> Option<Result<(), &'static str>> {
        let number = own_number(paged.pane)?;
        Some(self.shelf(number).load(paged))
    }

    /// Takes what a record says of a body whose cell has this epoch; says what is wrong with it.
    pub fn replay(
        &mut self,
        (name, number): (&[u8], u16),
        epoch: Epoch,
        change: (u8, u64, bool),
        edits: &PackedEdits<'_>,
    ) -> Result<(), &'static str> {
        self.shelf(number).replay((name, 0), epoch, change, edits)
    }

    /// Looks at all bodies as sketches; says which is none, and why.
    pub fn wake(&mut self) -> Result<(), (KeptName, String)> {
        self.0.iter_mut().try_for_each(Shelf::wake)
    }

    /// See [`Shelf::collect`].
    pub fn collect(&mut self, hash: impl Fn(&[u8]) -> u64, out: &mut Vec<Note>) {
        self.0.iter_mut().for_each(|shelf| shelf.collect(&hash, out));
    }

    /// See [`Shelf::unsealed_bytes`].
    pub fn unsealed_bytes(&self) -> u64 {
        self.0.iter().map(Shelf::unsealed_bytes).sum()
    }

    /// See [`Shelf::uncollect`].
    pub fn uncollect(&mut self) {
        self.0.iter_mut().for_each(Shelf::uncollect);
    }

    /// See [`Shelf::sealed`].
    pub fn sealed(&mut self) {
        self.0.iter_mut().for_each(Shelf::sealed);
    }

    fn shelf(&mut self, number: u16) -> &mut Shelf {
        while self.0.len() <= usize::from(number) {
            self.0.push(Shelf::own(self.0.len() as u16));
        }
        &mut self.0[usize::from(number)]
    }
}
