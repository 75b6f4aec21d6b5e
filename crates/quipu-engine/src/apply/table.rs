//! The resident table: the counters that are in memory, shared by all workers.
//!
//! A name's hash decides its shard; a shard is behind one short lock. Callers speak of cells by hash and name and never see how
//! they are kept, so the keeping can change.
//!
//! Invariants:
//! - a shard's `version` is raised by every change in it, its `newest` is the end of its newest record;
//! - `deadlines` holds exactly the resident cells that expire;
//! - a slot that is `changed` says something the ledger does not, and stays; one that is not may leave memory once its batch is in the ledger;
//! - a counter that is gone keeps its slot, without a cell, for as long as the ledger may still have it, or this node says something of it on a shared store;
//! - a slot whose name has a body on the shelf says so; a body goes with its cell, and with the cell's epoch;
//! - `unsettled` holds the names of which this node says something that a shared store has not confirmed; some of those that left
//!   memory before that are remembered there, the others are found again by a walk.

use std::collections::BTreeSet;
use std::time::Duration;

use quipu_model::{Cell, Epoch, Incarnation, KeptName, Millis, Note, Sealed};
use quipu_sketch::Sketch;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::slots::prefetch::prefetch_two;
use super::slots::{Flag, Removed, SHORT_BYTES_MAX, Slots, SpareChunks};
use super::thin::Thinner;
use super::unsettled::{UnsettledEntry, UnsettledNames};
use crate::journal::format::{PackedEdits, Position};
use crate::sharing::own::Owned;
use crate::sketches::{Body, OwnShelves, Paged, Shelf, is_idempotent};
use crate::split::Splits;
use crate::sync::{Arc, AtomicI64, Mutex, MutexGuard, Ordering, lock, try_lock};
use crate::tokens::Book;

/// Order keys have 53 bits, so that a cursor is a whole number in every client, those that count in doubles included.
pub const ORDER_BITS: u32 = 53;

/// What an allocation takes beside the bytes asked for: a word of the allocator's, and rounding up to 16 bytes.
const ALLOCATION_BYTES: usize = 16;

/// What an entry of a deadline takes beside its name: its place in a tree that is two thirds full.
const DEADLINE_BYTES: usize = 48;

/// Names known not to exist, per shard, beyond which they are let go.
const ABSENT_MAX: usize = 256;

/// So many counters of a shard stay in memory until a shared store has confirmed them; while it is down, more than these may leave.
const UNSETTLED_KEPT: usize = 64;

/// All shards.
pub struct Table {
    shards: Vec<Place>,
    /// The top bits of a hash choose the shard, so walking shards in order walks hashes in order.
    shard_bits: u32,
    seed: u64,
    counters: AtomicI64,
    bytes: AtomicI64,
    /// Of these, what bodies of sketches take.
    bodies_bytes: AtomicI64,
    /// Events that came too late for the window of their sketch, in this life.
    late: AtomicI64,
    /// Events of counts that are sampled.
    thinned: AtomicI64,
    chunks: Arc<SpareChunks>,
}

impl Table {
    /// An empty table. The seed is secret, so that nobody can choose names that collide.
    pub fn new(shards: usize, seed: u64) -> Table {
        let shards = shards.next_power_of_two();
        let shard_bits = shards.trailing_zeros();
        let spare = Arc::new(SpareChunks::default());
        let shards =
            (0..shards).map(|_| Place(Mutex::new(Shard::new(Slots::new(seed, shard_bits, spare.clone()))))).collect();
        Table {
            shards,
            shard_bits,
            seed,
            counters: AtomicI64::new(0),
            bytes: AtomicI64::new(0),
            bodies_bytes: AtomicI64::new(0),
            late: AtomicI64::new(0),
            thinned: AtomicI64::new(0),
            chunks: spare,
        }
    }

    /// The hash of a name.
    pub fn hash(&self, name: &[u8]) -> u64 {
        xxh3_64_with_seed(name, self.seed)
    }

    /// What makes the hashes; the ledger is ordered by them, so it stays the same.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The shard of a hash.
    pub fn shard_of(&self, hash: u64) -> usize {
        // A shift by 64 is not defined, and one shard needs none.
        if self.shard_bits == 0 { 0 } else { (hash >> (64 - self.shard_bits)) as usize }
    }

    /// The first hash of a shard.
    pub fn first_hash(&self, shard: usize) -> u64 {
        if self.shard_bits == 0 { 0 } else { (shard as u64) << (64 - self.shard_bits) }
    }

    /// How many shards there are.
    pub fn shard_count(&self) -> usize {
        self.shards.len()
    }

    /// Brings what every look at a shard needs near.
    #[inline]
    pub fn prefetch(&self, shard: usize) {
        prefetch_two(&self.shards[shard]);
    }

    /// Takes the lock of a shard. Several are taken in the order of their index.
    pub fn lock(&self, shard: usize) -> MutexGuard<'_, Shard> {
        lock(&self.shards[shard].0)
    }

    /// Takes the lock of a shard if nobody has it: in any order.
    #[inline]
    pub fn try_lock(&self, shard: usize) -> Option<MutexGuard<'_, Shard>> {
        try_lock(&self.shards[shard].0)
    }

    /// Works on a shard under its lock, and notes what that did to the number of counters and the bytes they take.
    pub fn with<T>(&self, shard: usize, work: impl FnOnce(&mut Shard) -> T) -> T {
        let mut shard = self.lock(shard);
        let worked = work(&mut shard);
        self.note(&mut shard);
        worked
    }

    /// Notes what has come and gone in a shard since it was last noted.
    pub fn note(&self, shard: &mut Shard) {
        if !std::mem::take(&mut shard.resized) {
            return;
        }
        let events = std::mem::take(&mut shard.thinner.events);
        if events > 0 {
            self.thinned.fetch_add(events as i64, Ordering::Relaxed);
        }
        let (counters, bytes) = (shard.counters as i64, shard.bytes() as i64);
        if shard.noted != (counters, bytes) {
            self.counters.fetch_add(counters - shard.noted.0, Ordering::Relaxed);
            self.bytes.fetch_add(bytes - shard.noted.1, Ordering::Relaxed);
            shard.noted = (counters, bytes);
        }
        let bodies_bytes = shard.bodies_bytes() as i64;
        if shard.bodies_noted != bodies_bytes {
            self.bodies_bytes.fetch_add(bodies_bytes - shard.bodies_noted, Ordering::Relaxed);
            shard.bodies_noted = bodies_bytes;
        }
    }

    /// Notes what a shard takes by now, in the middle of a run: the next command of it may ask for memory, too. How many counters there are is noted when they have a record.
    pub fn note_bytes(&self, shard: &mut Shard) {
        let (bytes, bodies_bytes) = (shard.bytes() as i64, shard.bodies_bytes() as i64);
        self.bytes.fetch_add(bytes - shard.noted.1, Ordering::Relaxed);
        self.bodies_bytes.fetch_add(bodies_bytes - shard.bodies_noted, Ordering::Relaxed);
        (shard.noted.1, shard.bodies_noted) = (bytes, bodies_bytes);
    }

    /// No counter that is or was has a newer epoch.
    pub fn epoch_newest(&self) -> Epoch {
        let newest = (0..self.shard_count()).map(|shard| {
            let shard = self.lock(shard);
            shard.floor.max(shard.epoch_newest)
        });
        newest.max().unwrap_or(Epoch::FIRST)
    }

    /// Gives the dice of all shards a beginning, from a number that no other life has.
    pub fn seed_dice(&self, seed: u64) {
        for shard in 0..self.shard_count() {
            let seed = xxh3_64_with_seed(&(shard as u64).to_le_bytes(), self.seed ^ seed);
            self.lock(shard).thinner = Thinner::new(seed);
        }
    }

    /// Events of counts that are sampled, taken or not, in this life.
    pub fn thinned_events(&self) -> u64 {
        self.thinned.load(Ordering::Relaxed).max(0) as u64
    }

    /// Makes looks at many counters quicker, where the system has large pages.
    pub fn gather(&self) {
        self.chunks.gather();
    }

    /// How many counters there are, at rest or not, those that have expired but were not looked at since included.
    pub fn counters(&self) -> u64 {
        self.counters.load(Ordering::Relaxed).max(0) as u64
    }

    /// About how many bytes the resident counters take.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed).max(0) as u64
    }

    /// So many events were too late for the window of their sketch.
    pub fn note_late(&self, events: u64) {
        // A client may say any number; a sum of them is to stay one.
        self.late.fetch_add(events.min(1 << 40) as i64, Ordering::Relaxed);
    }

    /// How many that were in this life.
    pub fn late(&self) -> u64 {
        self.late.load(Ordering::Relaxed).max(0) as u64
    }

    /// Of these, about how many the bodies of sketches take, which do not leave memory.
    pub fn bodies_bytes(&self) -> u64 {
        self.bodies_bytes.load(Ordering::Relaxed).max(0) as u64
    }
}

/// What is known of a counter without looking at the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// It exists.
    Cell(Cell),
    /// It does not.
    Absent,
    /// The ledger knows.
    Unknown,
}

/// The hash of a resident name, the name, and its cell if it exists.
pub type Resident = (u64, KeptName, Option<Cell>);

/// One shard, as its lock gives it out. In this order, so that what every add and read needs lies in two lines of memory.
#[repr(C)]
pub struct Shard {
    /// Raised by every change; what WATCH compares.
    pub version: u64,
    /// The end of the newest record that speaks of this shard.
    pub newest: Position,
    /// Some counters of this shard are in the ledger only, so a name that is not here may exist.
    pub unloaded: bool,
    /// Counters, bytes or events that were thinned may have changed since [`Table::note`] came by.
    resized: bool,
    /// Counters of this shard that somebody has a handle of, and their lanes.
    pub splits: Splits,
    slots: Slots,
    /// A counter made from here on begins with this epoch: past that of all that are gone.
    pub floor: Epoch,
    /// No cell that was ever here has a newer epoch.
    pub epoch_newest: Epoch,
    deadlines: BTreeSet<(Millis, KeptName)>,
    /// What a shared store has not confirmed, and when it is to be put.
    pub unsettled: UnsettledNames,
    /// Counters that were not confirmed have left memory, more than `unsettled` remembers: an audit pass finds them.
    pub left_unsettled: bool,
    /// Bytes that names, and what this node says of them on a shared store, take outside the slots.
    names_bytes: usize,
    /// Slots that only say that a name does not exist, at most; they are let go when there are many.
    absent: usize,
    /// What [`Table::note`] knows: counters and bytes.
    noted: (i64, i64),
    /// And bytes of bodies.
    bodies_noted: i64,
    /// How many counters of this shard exist, at rest or not.
    pub counters: u64,
    /// How often slots were collected for the ledger.
    pub collections: u64,
    /// The batch that was collected last; slots remember whether they were in it.
    batch: u32,
    /// None of this shard's cells in the ledger expires before this.
    pub rest_deadline: Option<Millis>,
    /// Tokens whose hash is of this shard. They outlive the counters.
    book: Book,
    /// What makes counters of this shard sketches.
    shelf: Shelf,
    /// Of counters that are shared, what this node says: it goes with the node's own cells, and with the epoch of each.
    own_shelves: OwnShelves,
    /// Namespaces with a limit whose counters in this shard were counted, and how many there are.
    pub counted: Vec<(u64, u64)>,
    /// Dice for counts that are sampled.
    thinner: Thinner,
}

/// Where a shard lies: on lines of its own.
#[repr(align(128))]
struct Place(Mutex<Shard>);

impl Shard {
    fn new(slots: Slots) -> Shard {
        Shard {
            slots,
            resized: false,
            deadlines: BTreeSet::new(),
            unsettled: UnsettledNames::default(),
            left_unsettled: false,
            splits: Splits::default(),
            names_bytes: 0,
            absent: 0,
            noted: (0, 0),
            bodies_noted: 0,
            counters: 0,
            unloaded: false,
            collections: 0,
            batch: 0,
            rest_deadline: None,
            book: Book::default(),
            shelf: Shelf::sole(),
            own_shelves: OwnShelves::default(),
            counted: Vec::new(),
            thinner: Thinner::new(0),
            floor: Epoch::FIRST,
            epoch_newest: Epoch::FIRST,
            version: 0,
            newest: Position(0),
        }
    }

    /// Dice for counts that are sampled; [`Table::note`] comes by for what they were thrown for.
    pub fn thinner(&mut self) -> &mut Thinner {
        self.resized = true;
        &mut self.thinner
    }

    /// What is known of a name.
    pub fn look(&mut self, hash: u64, name: &[u8]) -> Look {
        self.look_at(hash, name).1
    }

    /// The same, and its slot, if it has one.
    #[inline]
    pub fn look_at(&mut self, hash: u64, name: &[u8]) -> (Option<u32>, Look) {
        match self.slots.find(hash, name) {
            Some(at) => {
                self.slots.set(at, Flag::Used);
                (Some(at), self.slots.cell(at).map_or(Look::Absent, Look::Cell))
            }
            None if self.unloaded => (None, Look::Unknown),
            None => (None, Look::Absent),
        }
    }

    /// Value and epoch of a count that exists and does not expire, if this slot, which [`Shard::guess`] named since the shard was last changed, is the one; nearly always it is.
    #[inline]
    pub fn look_plain(&mut self, guess: u32, name: &[u8]) -> Option<(i64, Epoch)> {
        self.slots.look_plain(guess, name)
    }

    /// Brings what [`Shard::guess`] needs near.
    #[inline]
    pub fn prefetch_place(&self, hash: u64) {
        self.slots.prefetch_place(hash);
    }

    /// The slot that most likely has this hash, to be brought near by [`Shard::prefetch`].
    #[inline]
    pub fn guess(&self, hash: u64) -> Option<u32> {
        self.slots.guess(hash)
    }

    /// Brings the slot of a guess near.
    #[inline]
    pub fn prefetch(&self, guess: u32) {
        self.slots.prefetch(guess);
    }

    /// Another value for a counter that exists, at its slot.
    #[inline]
    pub fn set_value(&mut self, at: u32, value: i64) {
        self.version += 1;
        self.slots.set_value(at, value);
    }

    /// How many counters of a namespace with a limit are in this shard, if they were counted.
    pub fn counted(&mut self, census: u64) -> Option<&mut u64> {
        self.counted.iter_mut().find(|(id, _)| *id == census).map(|(_, count)| count)
    }

    /// Names of resident counters that exist.
    pub fn names_of_all(&self) -> impl Iterator<Item = &[u8]> {
        self.slots.numbers().filter(|at| self.slots.cell(*at).is_some()).map(|at| self.slots.name(at))
    }

    /// Whether something is known of a name without the ledger, if only that it does not exist.
    pub fn has_slot(&self, hash: u64, name: &[u8]) -> bool {
        self.slots.find(hash, name).is_some()
    }

    /// Whether a counter whose state is known exists.
    pub fn exists(&self, hash: u64, name: &[u8]) -> bool {
        self.slots.find(hash, name).is_some_and(|at| self.slots.cell(at).is_some())
    }

    /// Makes or replaces the cell of a name whose state is known; whether it existed.
    pub fn put(&mut self, hash: u64, name: &[u8], cell: Cell) -> bool {
        self.resized = true;
        self.version += 1;
        self.epoch_newest = self.epoch_newest.max(cell.epoch);
        let at = self.find_or_insert(hash, name);
        self.slots.set(at, Flag::Changed);
        self.slots.set(at, Flag::Used);
        let before = self.slots.set_cell(at, Some(cell));
        self.follow(at, name, Some(cell));
        self.move_deadline(before.and_then(|cell| cell.expires_at), cell.expires_at, name);
        self.counters += u64::from(before.is_none());
        before.is_some()
    }

    /// Removes the cell of a name that exists.
    pub fn remove(&mut self, hash: u64, name: &[u8]) {
        self.resized = true;
        let Some(at) = self.slots.find(hash, name) else { return };
        let before = self.slots.set_cell(at, None);
        self.follow(at, name, None);
        self.slots.set(at, Flag::Changed);
        if !self.slots.has(at, Flag::AtRest) && self.slots.own(at).is_none() {
            // The ledger has nothing to forget.
            self.slots.remove(at);
            self.names_bytes -= name_bytes(name);
        }
        self.version += 1;
        self.move_deadline(before.and_then(|cell| cell.expires_at), None, name);
        self.counters -= u64::from(before.is_some());
    }

    /// Takes what the ledger says of how many there are.
    pub fn set_counters(&mut self, counters: u64) {
        self.resized = true;
        self.counters = counters;
    }

    /// Takes what a record of the journal says of a counter that existed before it or not. Whether the ledger has it is not known then, so it is
    /// taken to.
    pub fn restore(&mut self, hash: u64, name: &[u8], cell: Option<Cell>, existed: bool, own: Option<Box<Owned>>) {
        self.resized = true;
        self.names_bytes += own.as_ref().map_or(0, |own| own.bytes());
        let at = self.find_or_insert(hash, name);
        let before = self.slots.set_cell(at, cell);
        self.follow(at, name, cell);
        self.own_shelves.follow(name, |number, epoch| {
            let said = own.as_ref().and_then(|own| own.of_body(number)).filter(|cell| cell.own.value > 0);
            said.is_some_and(|cell| cell.own.epoch == epoch)
        });
        let own_before = self.slots.set_own(at, own);
        self.slots.set(at, Flag::Changed);
        self.slots.set(at, Flag::AtRest);
        self.names_bytes -= own_before.map_or(0, |own| own.bytes());
        self.epoch_newest = self.epoch_newest.max(cell.map_or(Epoch::FIRST, |cell| cell.epoch));
        self.move_deadline(before.and_then(|c| c.expires_at), cell.and_then(|c| c.expires_at), name);
        self.counters = (self.counters + u64::from(cell.is_some())).saturating_sub(u64::from(existed));
    }

    /// Takes what the ledger says of a name that is not here.
    pub fn load(&mut self, hash: u64, name: &[u8], cell: Option<Cell>, own: Option<Box<Owned>>) {
        if self.slots.find(hash, name).is_some() {
            return;
        }
        self.resized = true;
        self.names_bytes += own.as_ref().map_or(0, |own| own.bytes());
        self.absent += usize::from(cell.is_none());
        self.move_deadline(None, cell.and_then(|cell| cell.expires_at), name);
        self.epoch_newest = self.epoch_newest.max(cell.map_or(Epoch::FIRST, |cell| cell.epoch));
        let at = self.find_or_insert(hash, name);
        if cell.is_some() || own.is_some() {
            self.slots.set(at, Flag::AtRest);
        }
        self.slots.set_cell(at, cell);
        self.slots.set_own(at, own);
        self.unsettled.come_back(name);
    }

    /// The tokens of this shard.
    pub fn book(&self) -> &Book {
        &self.book
    }

    /// The tokens of this shard, to be changed.
    pub fn book_mut(&mut self) -> &mut Book {
        self.resized = true;
        &mut self.book
    }

    // ---- sketches ---------------------------------------------------------------------------------------------------------------

    /// The bodies of this shard's sketches.
    pub fn shelf(&self) -> &Shelf {
        &self.shelf
    }

    /// The body of a name.
    pub fn body(&self, name: &[u8]) -> Option<&Body> {
        if self.shelf.is_empty() { None } else { self.shelf.get(name) }
    }

    /// The same, unless the counter has expired by now: then whatever is asked of it finds none.
    pub fn body_now(&self, hash: u64, name: &[u8], now: Millis) -> Option<&Body> {
        let body = self.body(name)?;
        let cell = self.slots.find(hash, name).and_then(|at| self.slots.cell(at));
        let expired = cell.is_some_and(|cell| cell.expires_at.is_some_and(|at| at <= now));
        if expired { None } else { Some(body) }
    }

    /// The body of a name, to be looked at closely; if it is changed by that, [`Shard::note_body`] is to be told.
    pub fn body_mut(&mut self, name: &[u8]) -> Option<&mut Body> {
        self.shelf.get_mut(name)
    }

    /// A body has changed.
    pub fn note_body(&mut self, name: &[u8]) {
        self.resized = true;
        self.shelf.reckon(name);
    }

    /// Gives a counter that exists a body.
    pub fn put_body(&mut self, hash: u64, name: &[u8], body: Body) {
        self.resized = true;
        self.shelf.put(name, body);
        if let Some(at) = self.slots.find(hash, name) {
            self.slots.set(at, Flag::Sketch);
        }
    }

    /// Whether the counter at this slot is a sketch.
    pub fn is_sketch_at(&self, at: u32) -> bool {
        self.slots.has(at, Flag::Sketch)
    }

    /// Takes a page that the ledger has of a body.
    pub fn load_page(&mut self, paged: &Paged<'_>) -> Result<(), &'static str> {
        self.resized = true;
        self.own_shelves.load(paged).unwrap_or_else(|| self.shelf.load(paged))
    }

    /// Takes what a record of the journal says of a body: kind, version, and whether it is all of it. Its cell was restored before.
    pub fn restore_body(
        &mut self,
        hash: u64,
        (name, pane): (&[u8], u32),
        change: (u8, u64, bool),
        edits: &PackedEdits<'_>,
    ) -> Result<(), &'static str> {
        self.resized = true;
        let at = self.slots.find(hash, name);
        let cell = at.and_then(|at| Some((at, self.slots.cell(at)?)));
        // A pane has versions of its own.
        let Some((at, cell)) = cell.filter(|(_, cell)| pane != 0 || cell.value as u64 == change.1) else {
            return Err("a change of a sketch without its cell");
        };
        self.shelf.replay((name, pane), cell.epoch, change, edits)?;
        self.slots.set(at, Flag::Sketch);
        Ok(())
    }

    /// The same of what this node says on a shared store: its own cell was restored before.
    pub fn restore_own_body(
        &mut self,
        hash: u64,
        (name, number): (&[u8], u16),
        change: (u8, u64, bool),
        edits: &PackedEdits<'_>,
    ) -> Result<(), &'static str> {
        self.resized = true;
        let own = self.slots.find(hash, name).and_then(|at| self.slots.own(at)).and_then(|own| own.of_body(number));
        let Some(cell) = own.filter(|cell| cell.own.value == i128::from(change.1)) else {
            return Err("a change of a sketch without this node's cell");
        };
        let epoch = cell.own.epoch;
        self.own_shelves.replay((name, number), epoch, change, edits)
    }

    /// What this node says of sketches on a shared store.
    pub fn own_shelves(&self) -> &OwnShelves {
        &self.own_shelves
    }

    /// The same, to be changed.
    pub fn own_shelves_mut(&mut self) -> &mut OwnShelves {
        self.resized = true;
        &mut self.own_shelves
    }

    /// The body of this node that an observation goes to, in this life, of a sketch that is like this one.
    pub fn observing(&self, hash: u64, name: &[u8], like: &Sketch, present: Incarnation) -> Option<&Body> {
        if self.own_shelves.is_empty() {
            return None;
        }
        let is_idempotent = is_idempotent(like);
        let own = self.slots.find(hash, name).and_then(|at| self.slots.own(at))?;
        let (incarnation, shard) = own.observing(is_idempotent, present)?;
        let cell = own.bodies().find(|cell| cell.incarnation == incarnation && cell.shard == shard)?;
        self.own_shelves.get(name, cell.number())
    }

    /// What is shown of a shared sketch goes away with its cell, or is replaced.
    pub fn drop_body(&mut self, hash: u64, name: &[u8]) {
        self.resized = true;
        self.shelf.remove(name);
        if let Some(at) = self.slots.find(hash, name) {
            self.slots.unset(at, Flag::Sketch);
        }
    }

    /// About how many bytes bodies take, shown or this node's own.
    pub fn bodies_bytes(&self) -> usize {
        self.shelf.bytes() + self.own_shelves.bytes()
    }

    /// About how many bytes the ledger takes for pages that it does not know.
    pub fn unsealed_pages_bytes(&self) -> u64 {
        self.shelf.unsealed_bytes() + self.own_shelves.unsealed_bytes()
    }

    /// All bodies are here: looks at them as sketches.
    pub fn wake_bodies(&mut self) -> Result<(), (KeptName, String)> {
        self.resized = true;
        self.own_shelves.wake()?;
        self.shelf.wake()
    }

    /// Pages of bodies that the ledger does not know.
    pub fn collect_pages(&mut self, hash: impl Fn(&[u8]) -> u64, out: &mut Vec<Note>) {
        self.shelf.collect(&hash, out);
        self.own_shelves.collect(&hash, out);
    }

    /// What was collected of bodies did not reach the ledger.
    pub fn uncollect_pages(&mut self) {
        self.shelf.uncollect();
        self.own_shelves.uncollect();
    }

    /// What was collected of bodies is sealed.
    pub fn sealed_pages(&mut self) {
        self.resized = true;
        self.shelf.sealed();
        self.own_shelves.sealed();
    }

    /// A slot has another cell: a body of another epoch is no longer its own.
    fn follow(&mut self, at: u32, name: &[u8], cell: Option<Cell>) {
        if !self.slots.has(at, Flag::Sketch) {
            return;
        }
        let epoch = cell.map(|cell| cell.epoch);
        if self.shelf.get(name).is_none_or(|body| Some(body.epoch) != epoch) {
            self.shelf.remove(name);
            self.slots.unset(at, Flag::Sketch);
        }
    }

    // ---- with a shared store ----------------------------------------------------------------------------------------------------

    /// What this node says of a name on a shared store, if it is here.
    pub fn own(&mut self, hash: u64, name: &[u8]) -> Option<&mut Owned> {
        let at = self.slots.find(hash, name)?;
        self.slots.own_mut(at)
    }

    /// What this node says of the name that has this slot.
    pub fn own_at(&mut self, at: u32) -> Option<&mut Owned> {
        self.slots.own_mut(at)
    }

    /// The store is to hear of this name, by then unless it was before.
    pub fn note_unsettled(&mut self, name: &[u8], due: impl FnOnce() -> Duration) {
        if !self.unsettled.contains(name) {
            let due = due();
            self.unsettled.update(&name.into(), |_| Some(UnsettledEntry { due, ..UnsettledEntry::default() }));
        }
    }

    /// Takes out what this node says of a name whose state is known, for [`Shard::give_own`] to put back. Of a counter of the days before the
    /// store nothing is said yet; then there is only its cell.
    pub fn take_own(&mut self, hash: u64, name: &[u8]) -> (Option<Box<Owned>>, Option<Cell>) {
        self.resized = true;
        let at = self.find_or_insert(hash, name);
        let (own, cell) = (self.slots.take_own(at), self.slots.cell(at));
        self.names_bytes -= own.as_ref().map_or(0, |own| own.bytes());
        (own, cell)
    }

    /// Puts back what this node says.
    pub fn give_own(&mut self, hash: u64, name: &[u8], own: Box<Owned>) {
        self.resized = true;
        self.names_bytes += own.bytes();
        let at = self.find_or_insert(hash, name);
        self.slots.set_own(at, Some(own));
    }

    /// Shows something else: foreign cells have changed, which is nothing to write down.
    pub fn show(&mut self, hash: u64, name: &[u8], cell: Option<Cell>) {
        self.resized = true;
        self.version += 1;
        self.epoch_newest = self.epoch_newest.max(cell.map_or(Epoch::FIRST, |cell| cell.epoch));
        let at = self.find_or_insert(hash, name);
        let before = self.slots.set_cell(at, cell);
        self.follow(at, name, cell);
        if before != cell {
            // Whoever was told must not be told less when the counter comes back from the ledger.
            self.slots.set(at, Flag::Changed);
        }
        self.absent += usize::from(cell.is_none());
        self.move_deadline(before.and_then(|c| c.expires_at), cell.and_then(|c| c.expires_at), name);
        self.counters += u64::from(cell.is_some());
        self.counters -= u64::from(before.is_some());
    }

    /// Something is worth sealing that is not worth a record.
    pub fn touch(&mut self, hash: u64, name: &[u8]) {
        if let Some(at) = self.slots.find(hash, name) {
            self.slots.set(at, Flag::Changed);
        }
    }

    /// Names of which this node says something, or did before there was a store.
    pub fn own_names(&self) -> impl Iterator<Item = &[u8]> {
        let said = |at: &u32| match self.slots.own(*at) {
            Some(own) => !own.cells.is_empty(),
            None => self.slots.cell(*at).is_some(),
        };
        self.slots.numbers().filter(said).map(|at| self.slots.name(at))
    }

    /// Removes everything, at rest too: the ledger is not asked any more.
    pub fn clear(&mut self) {
        self.resized = true;
        self.version += 1;
        self.deadlines = BTreeSet::new();
        self.unsettled = UnsettledNames::default();
        self.slots.clear();
        self.shelf.clear();
        self.own_shelves.clear();
        (self.names_bytes, self.absent, self.counters) = (0, 0, 0);
        (self.unloaded, self.rest_deadline) = (false, None);
    }

    // ---- seal and evict -------------------------------------------------------------------------------------------------------

    /// What the ledger does not know yet, in no order. The slots belong to this batch from here on; `sealed` is the newest that is in the ledger.
    pub fn collect(&mut self, batch: u32, sealed: u32, out: &mut Vec<Sealed>) {
        self.collections += 1;
        // What a seal that was never finished has collected is still to be sealed.
        let unfinished = std::mem::replace(&mut self.batch, batch) > sealed;
        let from = out.len();
        for at in self.slots.numbers() {
            let collected = self.slots.take(at, Flag::Collected);
            let changed = self.slots.take(at, Flag::Changed);
            if !(changed || collected && unfinished) {
                continue;
            }
            self.slots.set(at, Flag::Collected);
            let cell = self.slots.cell(at);
            // Of a counter that is gone and of which nothing is said any more the ledger need not know.
            let silent = |own: &Owned| own.cells.is_empty() && cell.is_none();
            let own: Option<Box<[u8]>> =
                self.slots.own(at).map(|own| if silent(own) { Box::default() } else { own.encode().into() });
            if cell.is_some() || self.slots.has(at, Flag::AtRest) || own.as_ref().is_some_and(|own| !own.is_empty()) {
                self.slots.set(at, Flag::AtRest);
                out.push(Sealed { hash: self.slots.hash(at), name: self.slots.name(at).into(), cell, own });
            }
        }
        let deadlines = out[from..].iter().filter_map(|sealed| sealed.cell?.expires_at);
        self.rest_deadline = deadlines.chain(self.rest_deadline).min();
    }

    /// Names of slots that the ledger, as of this batch, does not know all of.
    pub fn unsealed_names(&self, batch: u32) -> impl Iterator<Item = &[u8]> {
        let unsealed = move |at: &u32| !self.is_sealed(*at, batch);
        self.slots.numbers().filter(unsealed).map(|at| self.slots.name(at))
    }

    /// No cell that the ledger has of this shard expires before this, those that were brought back from it included.
    pub fn deadline(&self) -> Option<Millis> {
        self.deadlines.first().map(|(at, _)| *at).into_iter().chain(self.rest_deadline).min()
    }

    /// The batch did not reach the ledger: its slots are changed as before.
    pub fn uncollect(&mut self, batch: u32) {
        if self.batch == batch {
            for at in self.slots.numbers() {
                if self.slots.has(at, Flag::Collected) {
                    self.slots.set(at, Flag::Changed);
                }
            }
        }
    }

    /// Whether the ledger, as of this batch, knows all that a slot says.
    fn is_sealed(&self, at: u32, batch: u32) -> bool {
        !(self.slots.has(at, Flag::Changed) || self.slots.has(at, Flag::Collected) && self.batch > batch)
    }

    /// Lets slots go that the ledger knows, all that were not looked at since last time. `batch`: the newest that is in the ledger.
    pub fn evict(&mut self, batch: u32) -> usize {
        self.resized = true;
        let few = self.unsettled.resident() <= UNSETTLED_KEPT;
        for split in self.splits.all_live() {
            // A counter whose lanes may hold something stays where they are joined.
            if let Some(at) = self.slots.find(split.hash(), split.name().bytes()) {
                self.slots.set(at, Flag::Used);
            }
        }
        let (mut at, mut gone) = (0, 0);
        while (at as usize) < self.slots.len() {
            let busy = self.slots.own(at).is_some_and(|own| own.busy > 0 || few && own.is_unsettled());
            if !self.is_sealed(at, batch) || self.slots.take(at, Flag::Used) || busy {
                at += 1;
                continue;
            }
            let Removed { name, cell, own } = self.slots.remove(at);
            gone += 1;
            if let Some(own) = own {
                self.names_bytes -= own.bytes();
                self.unloaded |= !own.cells.is_empty();
                // A store that is down must not fill the memory: of some a name is kept, a walk over everything at rest finds the others.
                self.left_unsettled |= !self.unsettled.leave_memory(&name);
            }
            // What is known not to exist need not be asked for anew, as far as this slot is concerned.
            self.unloaded |= cell.is_some();
            // One that was brought back to be removed, and was not yet, is looked for again.
            self.rest_deadline = cell.and_then(|cell| cell.expires_at).into_iter().chain(self.rest_deadline).min();
            self.names_bytes -= name_bytes(&name);
            self.move_deadline(cell.and_then(|cell| cell.expires_at), None, &name);
        }
        self.slots.shrink();
        self.absent = self.absent.min(self.slots.len());
        gone
    }

    /// Forgets names that do not exist, once the ledger does not have them either and nobody has asked for them since last time.
    pub fn purge(&mut self, batch: u32) {
        self.resized = true;
        let (mut at, mut absent) = (0, 0);
        while (at as usize) < self.slots.len() {
            let exists = self.slots.cell(at).is_some();
            let says = self.slots.own(at).is_some_and(|own| own.busy > 0 || !own.cells.is_empty());
            if exists || says || !self.is_sealed(at, batch) || self.slots.take(at, Flag::Used) {
                absent += usize::from(!exists);
                at += 1;
            } else {
                let Removed { name, own, .. } = self.slots.remove(at);
                self.names_bytes -= name_bytes(&name) + own.map_or(0, |own| own.bytes());
            }
        }
        self.slots.shrink();
        self.absent = absent;
    }

    /// Whether there are enough names that do not exist to be worth a [`Shard::purge`].
    pub fn wants_purge(&self) -> bool {
        self.absent > ABSENT_MAX
    }

    /// About how many bytes the shard takes.
    pub fn bytes(&self) -> usize {
        self.slots.bytes() + self.names_bytes + self.book.bytes() + self.bodies_bytes()
    }

    // ---- walks ------------------------------------------------------------------------------------------------------------------

    /// About `count` resident names with the least hashes from this one on, those that are gone included, in no order; and a hash before which there are no others,
    /// `None` if these are all.
    pub fn names(&self, from: u64, count: usize) -> (Vec<Resident>, Option<u64>) {
        let (found, end) = self.slots.from(from, count);
        let names = found.into_iter().map(|(hash, at)| (hash, self.slots.name(at).into(), self.slots.cell(at)));
        (names.collect(), end)
    }

    /// The cell of every resident name, `None` for those that are gone; and whether it is that of a count.
    pub fn cells(&self) -> impl Iterator<Item = (Option<Cell>, bool)> {
        self.slots.numbers().map(|at| (self.slots.cell(at), !self.slots.has(at, Flag::Sketch)))
    }

    /// What this node says of resident names on a shared store.
    pub fn owned(&self) -> impl Iterator<Item = (u64, &[u8], &Owned)> {
        self.slots.numbers().filter_map(|at| Some((self.slots.hash(at), self.slots.name(at), self.slots.own(at)?)))
    }

    /// Names of cells that have expired, the longest expired first, at most `count` of them.
    pub fn overdue(&self, now: Millis, count: usize) -> impl Iterator<Item = KeptName> {
        self.deadlines.iter().take_while(move |(at, _)| *at <= now).take(count).map(|(_, name)| name.clone())
    }

    fn find_or_insert(&mut self, hash: u64, name: &[u8]) -> u32 {
        self.slots.find(hash, name).unwrap_or_else(|| {
            self.names_bytes += name_bytes(name);
            let at = self.slots.insert(hash, name);
            if !self.shelf.is_empty() && self.shelf.get(name).is_some() {
                self.slots.set(at, Flag::Sketch);
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

/// What a kept name takes outside its slot.
fn name_bytes(name: &[u8]) -> usize {
    if name.len() > SHORT_BYTES_MAX { name.len() + ALLOCATION_BYTES } else { 0 }
}

/// The place of a name in a walk over all names.
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
    enum Op {
        Put(u8, i64, Option<u64>),
        Remove(u8),
        Seal(bool),
        Evict,
    }

    fn ops() -> impl Strategy<Value = Vec<Op>> {
        let put = (0u8..24, any::<i64>(), proptest::option::of(0u64..50)).prop_map(|(n, v, e)| Op::Put(n, v, e));
        let seal = any::<bool>().prop_map(Op::Seal);
        let op = prop_oneof![6 => put, 2 => (0u8..24).prop_map(Op::Remove), 1 => seal, 1 => Just(Op::Evict)];
        proptest::collection::vec(op, 0..150)
    }

    proptest! {
        /// A shard and a ledger together are a map, whatever is sealed, fails to be, and leaves memory.
        #[test]
        fn a_shard_over_a_ledger_is_a_map(ops in ops(), now in 0u64..60) {
            let table = Table::new(1, 7);
            let mut shard = table.lock(0);
            let mut model: BTreeMap<u8, Cell> = BTreeMap::new();
            let mut ledger: BTreeMap<u8, Cell> = BTreeMap::new();
            let (mut batch, mut done) = (0, 0);
            let known = |shard: &mut Shard, ledger: &BTreeMap<u8, Cell>, n: u8| {
                let hash = table.hash(&[n]);
                if shard.look(hash, &[n]) == Look::Unknown {
                    shard.load(hash, &[n], ledger.get(&n).copied(), None);
                }
                shard.look(hash, &[n])
            };
            for op in ops {
                match op {
                    Op::Put(n, value, expires) => {
                        let cell = cell(value, expires);
                        known(&mut shard, &ledger, n);
                        shard.put(table.hash(&[n]), &[n], cell);
                        model.insert(n, cell);
                    }
                    Op::Remove(n) => {
                        known(&mut shard, &ledger, n);
                        shard.remove(table.hash(&[n]), &[n]);
                        model.remove(&n);
                    }
                    Op::Seal(works) => {
                        batch += 1;
                        let mut sealed = Vec::new();
                        shard.collect(batch, done, &mut sealed);
                        if works {
                            for Sealed { name, cell, .. } in sealed {
                                match cell {
                                    Some(cell) => ledger.insert(name[0], cell),
                                    None => ledger.remove(&name[0]),
                                };
                            }
                            done = batch;
                            shard.purge(done);
                        } else {
                            shard.uncollect(batch);
                        }
                    }
                    Op::Evict => { shard.evict(done); }
                }
                prop_assert_eq!(shard.counters as usize, model.len());
            }
            for n in 0..24 {
                let expected = model.get(&n).map_or(Look::Absent, |cell| Look::Cell(*cell));
                prop_assert_eq!(known(&mut shard, &ledger, n), expected);
            }
            let first = model.iter().filter_map(|(n, c)| Some((c.expires_at?, *n))).min();
            let overdue = first.filter(|(at, _)| at.0 <= now).map(|(_, n)| KeptName::from(&[n][..]));
            prop_assert_eq!(shard.overdue(Millis(now), 1).next(), overdue);
            prop_assert_eq!(shard.deadlines.len(), model.values().filter(|c| c.expires_at.is_some()).count());
            let deadlines = shard.deadlines.len();
            prop_assert_eq!(shard.names_bytes, (shard.slots.len() + deadlines) * name_bytes(b"n") + deadlines * DEADLINE_BYTES);
        }
    }
}
