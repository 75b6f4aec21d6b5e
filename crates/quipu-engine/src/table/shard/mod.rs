//! Holds the counters of one shard, and the state beside them.
//!
//! Invariants:
//! - every change of a shard raises its `version`; its `newest` is the end of its newest record;
//! - `deadlines` holds exactly the resident cells that expire;
//! - a slot marked `Changed` differs from the ledger, and stays; any other may be evicted once its
//!   batch is in the ledger;
//! - a removed counter keeps its slot, without a cell, while the ledger may still have it; also
//!   while this node has own cells of it on a shared store;
//! - a slot is marked `Sketch` if its name has a body in the body map; a body goes with its cell,
//!   and with the cell's epoch;
//! - `unsettled` holds the names with own cells that a shared store has not confirmed; it remembers
//!   some of those evicted before that, and a walk finds the others.

mod bodies;
mod counters;
mod own;
mod seal_state;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use quipu_model::{Cell, Epoch, Millis, NameBuf};

use crate::bodies::body_map::BodyMap;
use crate::bodies::own_bodies::OwnBodies;
use crate::journal::format::Position;
use crate::table::lanes::ShardLanes;
use crate::table::sampler::EventSampler;
use crate::table::slots::{SHORT_BYTES_MAX, SlotFlag, SlotTable};
use crate::table::unsettled::UnsettledNames;
use crate::tokens::TokenIndex;

/// Overhead of an allocation: one word of the allocator, and rounding up to 16 bytes.
const ALLOCATION_BYTES: usize = 16;

/// Overhead of a deadline's entry beside its name: its share of a tree that is two thirds full.
const DEADLINE_BYTES: usize = 48;

/// A counter's state, as far as it is known without the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Residency {
    /// It exists.
    Present(Cell),
    /// It does not exist.
    Absent,
    /// Only the ledger knows.
    NotResident,
}

/// Hash, name, and the cell if the counter exists.
pub type ResidentName = (u64, NameBuf, Option<Cell>);

/// One shard, as its lock returns it. The fields' order puts the state of every add and read into
/// two cache lines.
#[repr(C)]
pub struct Shard {
    /// Raised by every change; WATCH compares it.
    pub version: u64,
    /// End of the newest record about this shard.
    pub newest: Position,
    /// Some counters of this shard are in the ledger only, so an unknown name may exist.
    pub unloaded: bool,
    /// Counters, bytes or sampled events may have changed since the last [`Table::update_totals`].
    pub(super) totals_stale: bool,
    /// Lanes of this shard's counters that have a handle.
    pub lanes: ShardLanes,
    slots: SlotTable,
    /// Epoch of a new counter: above the epochs of all removed ones.
    pub floor: Epoch,
    /// Newest epoch of all cells of this shard, present and past.
    pub epoch_newest: Epoch,
    deadlines: BTreeSet<(Millis, NameBuf)>,
    /// Own cells that a shared store has not confirmed, and their due times.
    pub unsettled: UnsettledNames,
    /// More unsettled counters were evicted than `unsettled` remembers: an audit pass finds them.
    pub evicted_unsettled: bool,
    /// Bytes of names and own cells outside the slots.
    names_bytes: usize,
    /// About the number of slots that only record an absent name; a purge removes them when there
    /// are many.
    absent_slots: usize,
    /// Counters and bytes at the last [`Table::update_totals`].
    pub(super) counted_totals: (i64, i64),
    /// Bytes of bodies at that time.
    pub(super) counted_bodies_bytes: i64,
    /// Number of this shard's counters, resident or not.
    pub counters: u64,
    /// Number of collections of slots for the ledger.
    pub collections: u64,
    /// The last collected batch; slots remember whether they were in it.
    batch: u32,
    /// No cell of this shard in the ledger expires before this.
    pub ledger_deadline: Option<Millis>,
    /// Tokens with a hash in this shard. They outlive the counters.
    tokens: TokenIndex,
    /// Bodies of this shard's sketches.
    bodies: BodyMap,
    /// This node's own bodies of shared sketches: each goes with an own cell, and with that cell's
    /// epoch.
    own_bodies: OwnBodies,
    /// Censuses of limited namespaces that have counted this shard, and their counts.
    pub census_counts: Vec<(u64, u64)>,
    /// Random sampling for counts of this shard.
    pub(super) sampler: EventSampler,
}

impl Shard {
    pub(super) fn new(slots: SlotTable) -> Shard {
        Shard {
            slots,
            totals_stale: false,
            deadlines: BTreeSet::new(),
            unsettled: UnsettledNames::default(),
            evicted_unsettled: false,
            lanes: ShardLanes::default(),
            names_bytes: 0,
            absent_slots: 0,
            counted_totals: (0, 0),
            counted_bodies_bytes: 0,
            counters: 0,
            unloaded: false,
            collections: 0,
            batch: 0,
            ledger_deadline: None,
            tokens: TokenIndex::default(),
            bodies: BodyMap::for_shown(),
            own_bodies: OwnBodies::default(),
            census_counts: Vec::new(),
            sampler: EventSampler::new(0),
            floor: Epoch::FIRST,
            epoch_newest: Epoch::FIRST,
            version: 0,
            newest: Position(0),
        }
    }

    /// The sampler of this shard; [`Table::update_totals`] collects the events that it has counted.
    pub fn sampler(&mut self) -> &mut EventSampler {
        self.totals_stale = true;
        &mut self.sampler
    }

    /// Returns a name's residency.
    pub fn find(&mut self, hash: u64, name: &[u8]) -> Residency {
        self.find_slot(hash, name).1
    }

    /// The same, and its slot, if it has one.
    #[inline]
    pub fn find_slot(&mut self, hash: u64, name: &[u8]) -> (Option<u32>, Residency) {
        match self.slots.find(hash, name) {
            Some(at) => {
                self.slots.set(at, SlotFlag::Used);
                (Some(at), self.slots.cell(at).map_or(Residency::Absent, Residency::Present))
            }
            None if self.unloaded => (None, Residency::NotResident),
            None => (None, Residency::Absent),
        }
    }

    /// Value and epoch of an existing count without expiry, if `guess` is its slot. The guess comes
    /// from [`Shard::likely_slot`] since the shard's last change, and is nearly always right.
    #[inline]
    pub fn find_plain(&mut self, guess: u32, name: &[u8]) -> Option<(i64, Epoch)> {
        self.slots.find_plain(guess, name)
    }

    /// Prefetches the bucket that [`Shard::likely_slot`] reads.
    #[inline]
    pub fn prefetch_bucket(&self, hash: u64) {
        self.slots.prefetch_bucket(hash);
    }

    /// The most likely slot of this hash, for [`Shard::prefetch_slot`].
    #[inline]
    pub fn likely_slot(&self, hash: u64) -> Option<u32> {
        self.slots.likely_slot(hash)
    }

    /// Prefetches a guessed slot.
    #[inline]
    pub fn prefetch_slot(&self, guess: u32) {
        self.slots.prefetch(guess);
    }

    /// Sets the value of an existing counter, by its slot.
    #[inline]
    pub fn set_value(&mut self, at: u32, value: i64) {
        self.version += 1;
        self.slots.set_value(at, value);
    }

    /// Returns true if a name's state is known without the ledger, be it only its absence.
    pub fn has_slot(&self, hash: u64, name: &[u8]) -> bool {
        self.slots.find(hash, name).is_some()
    }

    /// Returns true if the counter exists; its state must be known.
    pub fn exists(&self, hash: u64, name: &[u8]) -> bool {
        self.slots.find(hash, name).is_some_and(|at| self.slots.cell(at).is_some())
    }

    /// Names of resident counters that exist.
    pub fn existing_names(&self) -> impl Iterator<Item = &[u8]> {
        self.slots.numbers().filter(|at| self.slots.cell(*at).is_some()).map(|at| self.slots.name(at))
    }

    /// About `count` resident names with the smallest hashes from `from` on, removed ones included,
    /// in no order. Also the hash below which there are no others, `None` if these are all.
    pub fn names_from(&self, from: u64, count: usize) -> (Vec<ResidentName>, Option<u64>) {
        let (found, end) = self.slots.range_from(from, count);
        let names = found.into_iter().map(|(hash, at)| (hash, self.slots.name(at).into(), self.slots.cell(at)));
        (names.collect(), end)
    }

    /// The cells of all resident names, `None` for removed ones; true: it is a count.
    pub fn cells(&self) -> impl Iterator<Item = (Option<Cell>, bool)> {
        self.slots.numbers().map(|at| (self.slots.cell(at), !self.slots.has(at, SlotFlag::Sketch)))
    }

    /// Names of expired cells, earliest expiry first, at most `count`.
    pub fn overdue(&self, now: Millis, count: usize) -> impl Iterator<Item = NameBuf> {
        self.deadlines.iter().take_while(move |(at, _)| *at <= now).take(count).map(|(_, name)| name.clone())
    }

    /// A limited namespace's number of counters in this shard, if they were counted.
    pub fn census_count(&mut self, census: u64) -> Option<&mut u64> {
        self.census_counts.iter_mut().find(|(id, _)| *id == census).map(|(_, count)| count)
    }

    /// The tokens of this shard.
    pub fn tokens(&self) -> &TokenIndex {
        &self.tokens
    }

    /// The tokens of this shard, mutable.
    pub fn tokens_mut(&mut self) -> &mut TokenIndex {
        self.totals_stale = true;
        &mut self.tokens
    }

    /// Approximate bytes of the shard.
    pub fn bytes(&self) -> usize {
        self.slots.bytes() + self.names_bytes + self.tokens.bytes() + self.bodies_bytes()
    }

    fn find_or_insert(&mut self, hash: u64, name: &[u8]) -> u32 {
        self.slots.find(hash, name).unwrap_or_else(|| {
            self.names_bytes += name_bytes(name);
            let at = self.slots.insert(hash, name);
            if !self.bodies.is_empty() && self.bodies.get(name).is_some() {
                self.slots.set(at, SlotFlag::Sketch);
            }
            at
        })
    }

    fn move_deadline(&mut self, from: Option<Millis>, to: Option<Millis>, name: &[u8]) {
        if from != to {
            if let Some(at) = from {
                self.deadlines.remove(&(at, name.into()));
                self.names_bytes -= name_bytes(name) + DEADLINE_BYTES;
            }
            if let Some(at) = to {
                self.deadlines.insert((at, name.into()));
                self.names_bytes += name_bytes(name) + DEADLINE_BYTES;
            }
        }
    }
}

/// Bytes of a name outside its slot.
fn name_bytes(name: &[u8]) -> usize {
    if name.len() > SHORT_BYTES_MAX { name.len() + ALLOCATION_BYTES } else { 0 }
}
