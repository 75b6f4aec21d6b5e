//! Stores a shard's counters in slots of 32 bytes, packed into chunks of one size, with an index by
//! hash.
//!
//! A map that holds its entries itself moves all of them into a block of twice the size when it
//! grows. A table that fills and empties leaves blocks of every size in the allocator, some in the
//! arena of each thread that made them. Here only the index grows so, a few bytes per counter.
//! Chunks all have one size, and a free one goes to the next shard that needs one, in any thread.
//!
//! A slot has a short name, a value, and flags. The rare rest is in an extra (`extras`): a long
//! name, an expiry, own cells, a rare epoch.
//!
//! Invariants:
//! - slots `0..len` are in use, without a gap, and the index holds each of their numbers once;
//! - a cell is either in the slot or in its extra, never in both.

mod extras;
mod huge_pages;
mod index;
pub mod prefetch;
#[cfg(test)]
mod tests;

use quipu_model::{Cell, Epoch};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use self::extras::{EPOCHS_MAX, Extra, Extras, SharedEpochs};
use self::huge_pages::{ChunkBlocks, collapse_block};
use self::index::SlotIndex;
use self::prefetch::prefetch;
use crate::base::sync::{Arc, Mutex, lock};
use crate::bodies::own_cells::OwnCells;

/// Slots of a chunk: few enough that a shard with one counter is cheap, enough that the list of
/// chunks is short.
const CHUNK_SLOTS: usize = 64;

/// Bytes of free chunks that are kept for reuse, such as those of an eviction under a small memory
/// limit. The system gets back all others.
const SPARE_BYTES_MAX: usize = 32 << 20;

/// Longest name that fits a slot.
pub const SHORT_BYTES_MAX: usize = 22;

/// A name's state, in half a cache line.
#[derive(Clone, Copy)]
struct CounterSlot {
    /// The value, or the number of the extra, which then has all but the name's beginning.
    number: i64,
    /// The name, or its beginning; zero-padded.
    name: [u8; SHORT_BYTES_MAX],
    /// From the lowest: length of the name (5; all ones if an extra has it), number of the epoch
    /// (4), flags.
    bits: u16,
}

const LENGTH_MASK: u16 = 0x1f;
const LENGTH_LONG: u16 = LENGTH_MASK;
const EPOCH_SHIFT: u32 = 5;
const EPOCH_MASK: u16 = (EPOCHS_MAX as u16 - 1) << EPOCH_SHIFT;
/// The counter is known to be absent; only without an extra.
const IS_ABSENT: u16 = 1 << 9;
/// `number` is that of an extra.
const HAS_EXTRA: u16 = 1 << 10;

/// Flag of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum SlotFlag {
    /// The slot differs from the ledger.
    Changed = 1 << 11,
    /// The ledger may have a cell of this name.
    AtRest = 1 << 12,
    /// Used since the last eviction.
    Used = 1 << 13,
    /// In the batch that was last collected from this shard.
    Collected = 1 << 14,
    /// The shard has a body of this name: the counter is a sketch.
    Sketch = 1 << 15,
}

impl CounterSlot {
    const EMPTY: CounterSlot = CounterSlot { number: 0, name: [0; SHORT_BYTES_MAX], bits: IS_ABSENT };

    fn has(&self, bit: u16) -> bool {
        self.bits & bit != 0
    }

    fn epoch(&self) -> usize {
        usize::from((self.bits & EPOCH_MASK) >> EPOCH_SHIFT)
    }

    fn set_epoch(&mut self, number: usize) {
        self.bits = self.bits & !EPOCH_MASK | (number as u16) << EPOCH_SHIFT;
    }
}

/// Aligned, so that no slot crosses a cache line.
#[repr(align(64))]
struct Chunk([CounterSlot; CHUNK_SLOTS]);

/// Free chunks of all shards, and the memory blocks of all chunks.
#[derive(Default)]
pub struct SpareChunks(Mutex<SpareList>);

#[derive(Default)]
#[allow(clippy::vec_box, reason = "a chunk stays where it is when it goes from shard to shard")]
struct SpareList {
    chunks: Vec<Box<Chunk>>,
    blocks: ChunkBlocks,
}

impl SpareChunks {
    fn take(&self) -> Box<Chunk> {
        let mut spare = lock(&self.0);
        spare.chunks.pop().unwrap_or_else(|| {
            let chunk = Box::new(Chunk([CounterSlot::EMPTY; CHUNK_SLOTS]));
            spare.blocks.add_chunk(&*chunk);
            chunk
        })
    }

    fn give(&self, chunk: Box<Chunk>) {
        let mut spare = lock(&self.0);
        if (spare.chunks.len() + 1) * size_of::<Chunk>() <= SPARE_BYTES_MAX {
            spare.chunks.push(chunk);
        } else {
            spare.blocks.remove_chunk(&*chunk);
        }
    }

    /// Turns the blocks that are full of chunks into huge pages.
    pub fn collapse_huge_pages(&self) {
        let full = lock(&self.0).blocks.take_full();
        for block in full {
            // Without the lock: it takes long.
            if !collapse_block(block.0) {
                lock(&self.0).blocks.retry_later(block);
            }
        }
    }
}

/// The slots of a shard, see the module. The field order puts the fields of every access first.
#[repr(C)]
#[allow(clippy::vec_box, reason = "chunks stay where they are when the list of them grows")]
pub struct SlotTable {
    index: SlotIndex,
    chunks: Vec<Box<Chunk>>,
    len: u32,
    epochs: SharedEpochs,
    extras: Extras,
    spare: Arc<SpareChunks>,
    /// Seed of the hashes; slots do not store their hash.
    seed: u64,
    /// Number of upper hash bits that chose the shard.
    shard_bits: u32,
}

/// The contents of a removed slot.
pub struct RemovedSlot {
    pub name: Box<[u8]>,
    pub cell: Option<Cell>,
    pub own: Option<Box<OwnCells>>,
}

impl SlotTable {
    pub fn new(seed: u64, shard_bits: u32, spare: Arc<SpareChunks>) -> SlotTable {
        let (index, extras, epochs) = (SlotIndex::new(shard_bits), Extras::default(), SharedEpochs::default());
        SlotTable { index, chunks: Vec::new(), len: 0, extras, epochs, spare, seed, shard_bits }
    }

    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// The numbers of all slots.
    pub fn numbers(&self) -> std::ops::Range<u32> {
        0..self.len
    }

    /// The number of a name's slot.
    #[inline]
    pub fn find(&self, hash: u64, name: &[u8]) -> Option<u32> {
        self.index.find(hash, |at| names_equal(self.name(at), name))
    }

    /// About `count` slots with the smallest hashes from this one on, in no order, and the hash
    /// below which there are no others; `None`: these are all.
    pub fn range_from(&self, hash: u64, count: usize) -> (Vec<(u64, u32)>, Option<u64>) {
        self.index.range_from(hash, count, |at| self.hash(at))
    }

    /// Prefetches a hash's bucket, before [`SlotTable::likely_slot`].
    #[inline]
    pub fn prefetch_bucket(&self, hash: u64) {
        self.index.prefetch(hash);
    }

    /// The most likely slot of this hash; `None`: there is none. Prefetches the chunk's address,
    /// before [`SlotTable::prefetch`].
    #[inline]
    pub fn likely_slot(&self, hash: u64) -> Option<u32> {
        let at = self.index.likely_number(hash)?;
        prefetch(&self.chunks[at as usize / CHUNK_SLOTS]);
        Some(at)
    }

    /// Prefetches a slot.
    #[inline]
    pub fn prefetch(&self, at: u32) {
        prefetch(self.slot(at));
    }

    /// Adds a slot for a new name, as absent and used; returns its number.
    pub fn insert(&mut self, hash: u64, name: &[u8]) -> u32 {
        let at = self.len;
        if at as usize == self.chunks.len() * CHUNK_SLOTS {
            self.chunks.push(self.spare.take());
        }
        self.len += 1;
        let mut slot = CounterSlot::EMPTY;
        let short = name.len().min(SHORT_BYTES_MAX);
        slot.name[..short].copy_from_slice(&name[..short]);
        slot.bits |= SlotFlag::Used as u16;
        if name.len() > SHORT_BYTES_MAX {
            slot.number = self.extras.put(Extra { name: Some(name.into()), ..Extra::default() });
            slot.bits |= LENGTH_LONG | HAS_EXTRA;
        } else {
            slot.bits |= short as u16;
        }
        *self.slot_mut(at) = slot;
        let (chunks, extras, seed) = (&self.chunks, &self.extras, self.seed);
        self.index.insert(hash, at, |at| xxh3_64_with_seed(name_in(chunks, extras, at), seed));
        at
    }

    /// Removes a slot; the last slot takes its number.
    pub fn remove(&mut self, at: u32) -> RemovedSlot {
        let removed = RemovedSlot { name: self.name(at).into(), cell: self.cell(at), own: self.take_own_cells(at) };
        let (hash, last) = (self.hash(at), self.len - 1);
        let (chunks, extras, seed) = (&self.chunks, &self.extras, self.seed);
        self.index.remove(hash, at, |at| xxh3_64_with_seed(name_in(chunks, extras, at), seed));
        let slot = *self.slot(at);
        if slot.has(HAS_EXTRA) {
            self.extras.take(slot.number);
        } else {
            self.epochs.release(slot.epoch());
        }
        if at != last {
            let hash = self.hash(last);
            self.index.renumber(hash, last, at);
            *self.slot_mut(at) = *self.slot(last);
        }
        self.len = last;
        if (last as usize).is_multiple_of(CHUNK_SLOTS) {
            let chunk = self.chunks.pop().expect("the last slot was in it");
            self.spare.give(chunk);
        }
        removed
    }

    /// Frees memory after many removals.
    pub fn shrink(&mut self) {
        let (chunks, extras, seed) = (&self.chunks, &self.extras, self.seed);
        self.index.shrink(|at| xxh3_64_with_seed(name_in(chunks, extras, at), seed));
        if self.chunks.capacity() > 4 * self.chunks.len() + 16 {
            self.chunks.shrink_to(2 * self.chunks.len());
        }
    }

    pub fn clear(&mut self) {
        for chunk in std::mem::take(&mut self.chunks) {
            self.spare.give(chunk);
        }
        *self = SlotTable::new(self.seed, self.shard_bits, self.spare.clone());
    }

    /// Approximate bytes, without the memory of long names and own cells.
    pub fn bytes(&self) -> usize {
        let chunks = self.chunks.len() * size_of::<Chunk>() + self.chunks.capacity() * size_of::<Box<Chunk>>();
        chunks + self.index.bytes() + self.extras.bytes() + self.epochs.bytes()
    }

    // ---- one slot ------------------------------------------------------------------------------

    #[inline]
    pub fn name(&self, at: u32) -> &[u8] {
        name_in(&self.chunks, &self.extras, at)
    }

    pub fn hash(&self, at: u32) -> u64 {
        xxh3_64_with_seed(self.name(at), self.seed)
    }

    #[inline]
    pub fn has(&self, at: u32, flag: SlotFlag) -> bool {
        self.slot(at).has(flag as u16)
    }

    #[inline]
    pub fn set(&mut self, at: u32, flag: SlotFlag) {
        self.slot_mut(at).bits |= flag as u16;
    }

    pub fn unset(&mut self, at: u32, flag: SlotFlag) {
        self.slot_mut(at).bits &= !(flag as u16);
    }

    /// Clears a flag; returns whether it was set.
    pub fn take(&mut self, at: u32, flag: SlotFlag) -> bool {
        let was = self.has(at, flag);
        self.unset(at, flag);
        was
    }

    /// `None`: known to be absent.
    #[inline]
    pub fn cell(&self, at: u32) -> Option<Cell> {
        let slot = self.slot(at);
        match slot.bits & (HAS_EXTRA | IS_ABSENT) {
            0 => Some(Cell { epoch: self.epochs.get(slot.epoch()), value: slot.number, expires_at: None }),
            IS_ABSENT => None,
            _ => self.extras.get(slot.number).cell,
        }
    }

    /// Value and epoch, if the slot has that name and is an existing count without an extra; then
    /// it is marked as used.
    #[inline(always)]
    pub fn find_plain(&mut self, at: u32, name: &[u8]) -> Option<(i64, Epoch)> {
        let slot = slot_mut_in(&mut self.chunks, at);
        // A slot with an extra, an absent counter or a sketch has none of these lengths.
        let bytes = usize::from(slot.bits & (LENGTH_MASK | HAS_EXTRA | IS_ABSENT | SlotFlag::Sketch as u16));
        if !names_equal(slot.name.get(..bytes)?, name) {
            return None;
        }
        slot.bits |= SlotFlag::Used as u16;
        Some((slot.number, self.epochs.get(slot.epoch())))
    }

    /// Sets the value of an existing counter and marks it as changed.
    #[inline]
    pub fn set_value(&mut self, at: u32, value: i64) {
        let slot = self.slot_mut(at);
        debug_assert!(!slot.has(IS_ABSENT) || slot.has(HAS_EXTRA));
        slot.bits |= SlotFlag::Changed as u16;
        if slot.has(HAS_EXTRA) {
            let number = slot.number;
            let cell = self.extras.get_mut(number).cell.as_mut();
            cell.expect("the counter exists").value = value;
        } else {
            slot.number = value;
        }
    }

    /// Sets the cell; returns the one before.
    pub fn set_cell(&mut self, at: u32, cell: Option<Cell>) -> Option<Cell> {
        let before = self.cell(at);
        let slot = *self.slot(at);
        if slot.has(HAS_EXTRA) {
            self.extras.get_mut(slot.number).cell = cell;
            self.drop_unneeded_extra(at);
            return before;
        }
        self.epochs.release(slot.epoch());
        if !self.try_set_inline(at, cell) {
            let number = self.extras.put(Extra { name: None, cell, own: None });
            self.attach_extra(at, number);
        }
        before
    }

    pub fn own_cells(&self, at: u32) -> Option<&OwnCells> {
        let slot = self.slot(at);
        if slot.has(HAS_EXTRA) { self.extras.get(slot.number).own.as_deref() } else { None }
    }

    pub fn own_cells_mut(&mut self, at: u32) -> Option<&mut OwnCells> {
        let slot = *self.slot(at);
        if slot.has(HAS_EXTRA) { self.extras.get_mut(slot.number).own.as_deref_mut() } else { None }
    }

    pub fn take_own_cells(&mut self, at: u32) -> Option<Box<OwnCells>> {
        let slot = *self.slot(at);
        let own = if slot.has(HAS_EXTRA) { self.extras.get_mut(slot.number).own.take() } else { None };
        if own.is_some() {
            self.drop_unneeded_extra(at);
        }
        own
    }

    /// Returns the own cells before.
    pub fn set_own_cells(&mut self, at: u32, own: Option<Box<OwnCells>>) -> Option<Box<OwnCells>> {
        let (slot, cell) = (*self.slot(at), self.cell(at));
        if slot.has(HAS_EXTRA) {
            let before = std::mem::replace(&mut self.extras.get_mut(slot.number).own, own);
            self.drop_unneeded_extra(at);
            return before;
        }
        if own.is_some() {
            self.epochs.release(slot.epoch());
            let number = self.extras.put(Extra { name: None, cell, own });
            self.attach_extra(at, number);
        }
        None
    }

    /// Stores a cell in the slot itself, if it fits. The caller has released the slot's epoch.
    fn try_set_inline(&mut self, at: u32, cell: Option<Cell>) -> bool {
        let plain = match cell {
            None => Some((0, 0, IS_ABSENT)),
            Some(Cell { epoch, value, expires_at: None }) => self.epochs.acquire(epoch).map(|epoch| (value, epoch, 0)),
            Some(_) => None,
        };
        let slot = self.slot_mut(at);
        slot.bits &= !(HAS_EXTRA | IS_ABSENT);
        let (number, epoch, absent) = plain.unwrap_or_default();
        slot.number = number;
        slot.set_epoch(epoch);
        slot.bits |= absent;
        plain.is_some()
    }

    fn attach_extra(&mut self, at: u32, number: i64) {
        let slot = self.slot_mut(at);
        slot.set_epoch(0);
        slot.bits = slot.bits & !IS_ABSENT | HAS_EXTRA;
        slot.number = number;
    }

    /// Drops an extra that the slot no longer needs.
    fn drop_unneeded_extra(&mut self, at: u32) {
        let number = self.slot(at).number;
        let Extra { name, cell, own } = self.extras.get(number);
        if name.is_some() || own.is_some() || cell.is_some_and(|cell| cell.expires_at.is_some()) {
            return;
        }
        let cell = *cell;
        if self.try_set_inline(at, cell) {
            self.extras.take(number);
        } else {
            self.attach_extra(at, number);
        }
    }

    #[inline]
    fn slot(&self, at: u32) -> &CounterSlot {
        slot_in(&self.chunks, at)
    }

    #[inline]
    fn slot_mut(&mut self, at: u32) -> &mut CounterSlot {
        slot_mut_in(&mut self.chunks, at)
    }
}

/// Returns true if two names are equal. Most have 8 to 24 bytes, for which three words suffice.
#[inline]
pub fn names_equal(a: &[u8], b: &[u8]) -> bool {
    if a.len() != b.len() {
        return false;
    }
    match (a.first_chunk::<8>(), a.last_chunk::<8>(), b.first_chunk::<8>(), b.last_chunk::<8>()) {
        (Some(a_first), Some(a_last), Some(b_first), Some(b_last)) if a.len() <= 16 => {
            a_first == b_first && a_last == b_last
        }
        (Some(a_first), Some(a_last), Some(b_first), Some(b_last)) if a.len() <= 24 => {
            a_first == b_first && a_last == b_last && a[8..16] == b[8..16]
        }
        _ => a == b,
    }
}

#[inline]
fn slot_in(chunks: &[Box<Chunk>], at: u32) -> &CounterSlot {
    let at = at as usize;
    &chunks[at / CHUNK_SLOTS].0[at % CHUNK_SLOTS]
}

#[inline]
fn slot_mut_in(chunks: &mut [Box<Chunk>], at: u32) -> &mut CounterSlot {
    let at = at as usize;
    &mut chunks[at / CHUNK_SLOTS].0[at % CHUNK_SLOTS]
}

#[inline]
fn name_in<'s>(chunks: &'s [Box<Chunk>], extras: &'s Extras, at: u32) -> &'s [u8] {
    let slot = slot_in(chunks, at);
    match slot.bits & LENGTH_MASK {
        LENGTH_LONG => extras.get(slot.number).name.as_deref().unwrap_or_default(),
        bytes => &slot.name[..usize::from(bytes)],
    }
}
