//! Holds the resident counters in shards, shared by all workers.
//!
//! A name's hash decides its shard; one short-held lock guards a shard. Callers address cells by
//! hash and name and never see their storage, so the storage can change.
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

mod census;
pub(crate) mod lanes;
pub(crate) mod locks;
pub(crate) mod sampler;
pub(crate) mod slots;
pub mod unsettled;
pub(crate) mod walk;

use std::collections::BTreeSet;
use std::time::Duration;

use quipu_model::{AuxRecord, Cell, Epoch, Incarnation, Millis, NameBuf, SealedCell};
use quipu_sketch::Sketch;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use self::lanes::ShardLanes;
use self::sampler::EventSampler;
use self::slots::prefetch::prefetch_two;
use self::slots::{RemovedSlot, SHORT_BYTES_MAX, SlotFlag, SlotTable, SpareChunks};
use self::unsettled::{UnsettledEntry, UnsettledNames};
use crate::base::sync::{Arc, AtomicI64, Mutex, MutexGuard, Ordering, lock, try_lock};
use crate::bodies::body_map::{Body, BodyMap};
use crate::bodies::own_bodies::OwnBodies;
use crate::bodies::own_cells::OwnCells;
use crate::bodies::stored_page::StoredPage;
use crate::bodies::together::is_idempotent;
use crate::journal::format::{PackedEdits, Position};
use crate::tokens::TokenIndex;

/// Order keys have 53 bits, so that a cursor is an integer in every client, including clients that
/// count in doubles.
pub const ORDER_BITS: u32 = 53;

/// Overhead of an allocation: one word of the allocator, and rounding up to 16 bytes.
const ALLOCATION_BYTES: usize = 16;

/// Overhead of a deadline's entry beside its name: its share of a tree that is two thirds full.
const DEADLINE_BYTES: usize = 48;

/// Names known to be absent, per shard, beyond which a purge removes them.
const ABSENT_MAX: usize = 256;

/// Unsettled counters of a shard that stay in memory until a shared store has confirmed them.
/// Beyond this number they may be evicted, as when the store is down.
const UNSETTLED_KEPT: usize = 64;

/// All shards of the resident table.
pub struct Table {
    shards: Vec<AlignedShard>,
    /// The top bits of a hash choose the shard, so a walk of shards in order walks hashes in order.
    shard_bits: u32,
    seed: u64,
    counters: AtomicI64,
    bytes: AtomicI64,
    /// Bytes of sketch bodies, included in `bytes`.
    bodies_bytes: AtomicI64,
    /// Events too late for the window of their sketch, since the start.
    late_events: AtomicI64,
    /// Events of sampled counts.
    sampled_events: AtomicI64,
    spare_chunks: Arc<SpareChunks>,
}

impl Table {
    /// An empty table. The seed is secret, so that no client can choose names that collide.
    pub fn new(shards: usize, seed: u64) -> Table {
        let shards = shards.next_power_of_two();
        let shard_bits = shards.trailing_zeros();
        let spare = Arc::new(SpareChunks::default());
        let shards = (0..shards)
            .map(|_| AlignedShard(Mutex::new(Shard::new(SlotTable::new(seed, shard_bits, spare.clone())))))
            .collect();
        Table {
            shards,
            shard_bits,
            seed,
            counters: AtomicI64::new(0),
            bytes: AtomicI64::new(0),
            bodies_bytes: AtomicI64::new(0),
            late_events: AtomicI64::new(0),
            sampled_events: AtomicI64::new(0),
            spare_chunks: spare,
        }
    }

    /// The hash of a name.
    pub fn hash(&self, name: &[u8]) -> u64 {
        xxh3_64_with_seed(name, self.seed)
    }

    /// Seed of the hashes. The ledger is ordered by them, so the seed never changes.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The shard of a hash.
    pub fn shard_of(&self, hash: u64) -> usize {
        // A shift by 64 is undefined, and a single shard needs none.
        if self.shard_bits == 0 { 0 } else { (hash >> (64 - self.shard_bits)) as usize }
    }

    /// The first hash of a shard.
    pub fn first_hash(&self, shard: usize) -> u64 {
        if self.shard_bits == 0 { 0 } else { (shard as u64) << (64 - self.shard_bits) }
    }

    /// Number of shards.
    pub fn shard_count(&self) -> usize {
        self.shards.len()
    }

    /// Prefetches the lines that every access to a shard needs.
    #[inline]
    pub fn prefetch(&self, shard: usize) {
        prefetch_two(&self.shards[shard]);
    }

    /// Locks a shard. A thread locks several in the order of their index.
    pub fn lock(&self, shard: usize) -> MutexGuard<'_, Shard> {
        lock(&self.shards[shard].0)
    }

    /// Locks a shard if it is free; allowed in any order.
    #[inline]
    pub fn try_lock(&self, shard: usize) -> Option<MutexGuard<'_, Shard>> {
        try_lock(&self.shards[shard].0)
    }

    /// Works on a shard under its lock, and updates the table's totals of counters and bytes.
    pub fn with_shard<T>(&self, shard: usize, work: impl FnOnce(&mut Shard) -> T) -> T {
        let mut shard = self.lock(shard);
        let result = work(&mut shard);
        self.update_totals(&mut shard);
        result
    }

    /// Adds a shard's changes since the last call to the table's totals.
    pub fn update_totals(&self, shard: &mut Shard) {
        if !std::mem::take(&mut shard.totals_stale) {
            return;
        }
        let events = std::mem::take(&mut shard.sampler.events);
        if events > 0 {
            self.sampled_events.fetch_add(events as i64, Ordering::Relaxed);
        }
        let (counters, bytes) = (shard.counters as i64, shard.bytes() as i64);
        if shard.counted_totals != (counters, bytes) {
            self.counters.fetch_add(counters - shard.counted_totals.0, Ordering::Relaxed);
            self.bytes.fetch_add(bytes - shard.counted_totals.1, Ordering::Relaxed);
            shard.counted_totals = (counters, bytes);
        }
        let bodies_bytes = shard.bodies_bytes() as i64;
        if shard.counted_bodies_bytes != bodies_bytes {
            self.bodies_bytes.fetch_add(bodies_bytes - shard.counted_bodies_bytes, Ordering::Relaxed);
            shard.counted_bodies_bytes = bodies_bytes;
        }
    }

    /// Updates the byte totals in the middle of a run: its next command may need memory, too. The
    /// number of counters is updated once they have a record.
    pub fn update_byte_totals(&self, shard: &mut Shard) {
        let (bytes, bodies_bytes) = (shard.bytes() as i64, shard.bodies_bytes() as i64);
        self.bytes.fetch_add(bytes - shard.counted_totals.1, Ordering::Relaxed);
        self.bodies_bytes.fetch_add(bodies_bytes - shard.counted_bodies_bytes, Ordering::Relaxed);
        (shard.counted_totals.1, shard.counted_bodies_bytes) = (bytes, bodies_bytes);
    }

    /// Newest epoch of all cells, present and past.
    pub fn epoch_newest(&self) -> Epoch {
        let newest = (0..self.shard_count()).map(|shard| {
            let shard = self.lock(shard);
            shard.floor.max(shard.epoch_newest)
        });
        newest.max().unwrap_or(Epoch::FIRST)
    }

    /// Seeds the samplers of all shards from a number unique to this start.
    pub fn seed_rng(&self, seed: u64) {
        for shard in 0..self.shard_count() {
            let seed = xxh3_64_with_seed(&(shard as u64).to_le_bytes(), self.seed ^ seed);
            self.lock(shard).sampler = EventSampler::new(seed);
        }
    }

    /// Events of sampled counts, taken or not, since the start.
    pub fn sampled_events(&self) -> u64 {
        self.sampled_events.load(Ordering::Relaxed).max(0) as u64
    }

    /// Moves slots into huge pages, where the system has them, to speed up random access.
    pub fn collapse_huge_pages(&self) {
        self.spare_chunks.collapse_huge_pages();
    }

    /// Number of counters, resident or not, including expired ones that were not found expired yet.
    pub fn counters(&self) -> u64 {
        self.counters.load(Ordering::Relaxed).max(0) as u64
    }

    /// Approximate bytes of the resident counters.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed).max(0) as u64
    }

    /// Counts events that were too late for the window of their sketch.
    pub fn add_late_events(&self, events: u64) {
        // A client may send any number; the cap keeps the sum from overflowing.
        self.late_events.fetch_add(events.min(1 << 40) as i64, Ordering::Relaxed);
    }

    /// Events too late for their window, since the start.
    pub fn late_events(&self) -> u64 {
        self.late_events.load(Ordering::Relaxed).max(0) as u64
    }

    /// Approximate bytes of sketch bodies, included in `bytes`; bodies are never evicted.
    pub fn bodies_bytes(&self) -> u64 {
        self.bodies_bytes.load(Ordering::Relaxed).max(0) as u64
    }
}

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
    totals_stale: bool,
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
    /// Upper bound of the slots that only record an absent name; a purge removes them when there
    /// are many.
    absent_slots: usize,
    /// Counters and bytes at the last [`Table::update_totals`].
    counted_totals: (i64, i64),
    /// Bytes of bodies at that time.
    counted_bodies_bytes: i64,
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
    sampler: EventSampler,
}

/// A shard on cache lines of its own.
#[repr(align(128))]
struct AlignedShard(Mutex<Shard>);

impl Shard {
    fn new(slots: SlotTable) -> Shard {
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

    /// A limited namespace's number of counters in this shard, if they were counted.
    pub fn census_count(&mut self, census: u64) -> Option<&mut u64> {
        self.census_counts.iter_mut().find(|(id, _)| *id == census).map(|(_, count)| count)
    }

    /// Names of resident counters that exist.
    pub fn existing_names(&self) -> impl Iterator<Item = &[u8]> {
        self.slots.numbers().filter(|at| self.slots.cell(*at).is_some()).map(|at| self.slots.name(at))
    }

    /// Returns true if a name's state is known without the ledger, be it only its absence.
    pub fn has_slot(&self, hash: u64, name: &[u8]) -> bool {
        self.slots.find(hash, name).is_some()
    }

    /// Returns true if the counter exists; its state must be known.
    pub fn exists(&self, hash: u64, name: &[u8]) -> bool {
        self.slots.find(hash, name).is_some_and(|at| self.slots.cell(at).is_some())
    }

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

    /// The tokens of this shard.
    pub fn tokens(&self) -> &TokenIndex {
        &self.tokens
    }

    /// The tokens of this shard, mutable.
    pub fn tokens_mut(&mut self) -> &mut TokenIndex {
        self.totals_stale = true;
        &mut self.tokens
    }

    // ---- sketches ------------------------------------------------------------------------------

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

    /// Approximate ledger bytes of the unsealed pages.
    pub fn unsealed_pages_bytes(&self) -> u64 {
        self.bodies.unsealed_bytes() + self.own_bodies.unsealed_bytes()
    }

    /// Parses all bodies as sketches, once all pages are loaded.
    pub fn parse_bodies(&mut self) -> Result<(), (NameBuf, String)> {
        self.totals_stale = true;
        self.own_bodies.parse_bodies()?;
        self.bodies.parse_bodies()
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

    /// After a change of a slot's cell, drops a body of another epoch.
    fn drop_stale_body(&mut self, at: u32, name: &[u8], cell: Option<Cell>) {
        if !self.slots.has(at, SlotFlag::Sketch) {
            return;
        }
        let epoch = cell.map(|cell| cell.epoch);
        if self.bodies.get(name).is_none_or(|body| Some(body.epoch) != epoch) {
            self.bodies.remove(name);
            self.slots.unset(at, SlotFlag::Sketch);
        }
    }

    // ---- with a shared store -------------------------------------------------------------------

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

    /// Names with own cells, or with a cell from before the shared store.
    pub fn own_names(&self) -> impl Iterator<Item = &[u8]> {
        let published = |at: &u32| match self.slots.own_cells(*at) {
            Some(own) => !own.cells.is_empty(),
            None => self.slots.cell(*at).is_some(),
        };
        self.slots.numbers().filter(published).map(|at| self.slots.name(at))
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

    // ---- seal and evict ------------------------------------------------------------------------

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
                absent += usize::from(!exists);
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

    /// Approximate bytes of the shard.
    pub fn bytes(&self) -> usize {
        self.slots.bytes() + self.names_bytes + self.tokens.bytes() + self.bodies_bytes()
    }

    // ---- walks ---------------------------------------------------------------------------------

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

    /// This node's own cells of all resident names.
    pub fn all_own_cells(&self) -> impl Iterator<Item = (u64, &[u8], &OwnCells)> {
        self.slots
            .numbers()
            .filter_map(|at| Some((self.slots.hash(at), self.slots.name(at), self.slots.own_cells(at)?)))
    }

    /// Names of expired cells, earliest expiry first, at most `count`.
    pub fn overdue(&self, now: Millis, count: usize) -> impl Iterator<Item = NameBuf> {
        self.deadlines.iter().take_while(move |(at, _)| *at <= now).take(count).map(|(_, name)| name.clone())
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

/// Position of a name in a walk over all names.
pub fn order_key(hash: u64) -> u64 {
    hash >> (64 - ORDER_BITS)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn cell(value: i64, expires: Option<u64>) -> Cell {
        Cell { epoch: Epoch::FIRST, value, expires_at: expires.map(Millis) }
    }

    #[derive(Debug, Clone)]
    enum ShardOp {
        Put(u8, i64, Option<u64>),
        Remove(u8),
        Seal(bool),
        Evict,
    }

    fn ops() -> impl Strategy<Value = Vec<ShardOp>> {
        let put = (0u8..24, any::<i64>(), proptest::option::of(0u64..50)).prop_map(|(n, v, e)| ShardOp::Put(n, v, e));
        let seal = any::<bool>().prop_map(ShardOp::Seal);
        let op = prop_oneof![6 => put, 2 => (0u8..24).prop_map(ShardOp::Remove), 1 => seal, 1 => Just(ShardOp::Evict)];
        proptest::collection::vec(op, 0..150)
    }

    proptest! {
        /// A shard and a ledger together act as a map, under any order of seals, failed seals and
        /// evictions.
        #[test]
        fn a_shard_over_a_ledger_is_a_map(ops in ops(), now in 0u64..60) {
            let table = Table::new(1, 7);
            let mut shard = table.lock(0);
            let mut model: BTreeMap<u8, Cell> = BTreeMap::new();
            let mut ledger: BTreeMap<u8, Cell> = BTreeMap::new();
            let (mut batch, mut done) = (0, 0);
            let known = |shard: &mut Shard, ledger: &BTreeMap<u8, Cell>, n: u8| {
                let hash = table.hash(&[n]);
                if shard.find(hash, &[n]) == Residency::NotResident {
                    shard.load(hash, &[n], ledger.get(&n).copied(), None);
                }
                shard.find(hash, &[n])
            };
            for op in ops {
                match op {
                    ShardOp::Put(n, value, expires) => {
                        let cell = cell(value, expires);
                        known(&mut shard, &ledger, n);
                        shard.put(table.hash(&[n]), &[n], cell);
                        model.insert(n, cell);
                    }
                    ShardOp::Remove(n) => {
                        known(&mut shard, &ledger, n);
                        shard.remove(table.hash(&[n]), &[n]);
                        model.remove(&n);
                    }
                    ShardOp::Seal(works) => {
                        batch += 1;
                        let mut sealed = Vec::new();
                        shard.collect(batch, done, &mut sealed);
                        if works {
                            for SealedCell { name, cell, .. } in sealed {
                                match cell {
                                    Some(cell) => ledger.insert(name[0], cell),
                                    None => ledger.remove(&name[0]),
                                };
                            }
                            done = batch;
                            shard.purge(done);
                        } else {
                            shard.undo_collect(batch);
                        }
                    }
                    ShardOp::Evict => { shard.evict(done); }
                }
                prop_assert_eq!(shard.counters as usize, model.len());
            }
            for n in 0..24 {
                let expected = model.get(&n).map_or(Residency::Absent, |cell| Residency::Present(*cell));
                prop_assert_eq!(known(&mut shard, &ledger, n), expected);
            }
            let first = model.iter().filter_map(|(n, c)| Some((c.expires_at?, *n))).min();
            let overdue = first.filter(|(at, _)| at.0 <= now).map(|(_, n)| NameBuf::from(&[n][..]));
            prop_assert_eq!(shard.overdue(Millis(now), 1).next(), overdue);
            prop_assert_eq!(shard.deadlines.len(), model.values().filter(|c| c.expires_at.is_some()).count());
            let deadlines = shard.deadlines.len();
            prop_assert_eq!(shard.names_bytes, (shard.slots.len() + deadlines) * name_bytes(b"n") + deadlines * DEADLINE_BYTES);
        }
    }
}
