//! The slots of a shard: an index by hash over slots that lie densely in chunks of one size.
//!
//! In a map that holds its entries itself, growing moves all of them into a block of twice the size, and a table that fills and empties leaves blocks of
//! every size behind in the allocator, some in the arena of each thread that made them. Here only the index, a few bytes a counter, grows so; chunks are all
//! alike, and one that is no longer needed goes to the next shard that needs one, whichever thread that is.
//!
//! Invariant: slots `0..len` are there, without a gap, and the index holds each of their numbers once.

use hashbrown::HashTable;
use quipu_model::{Cell, KeptName};

use crate::sharing::own::Owned;
use crate::sync::{Arc, Mutex, lock};

/// Slots of a chunk: few enough that a shard with one counter costs little, enough that a list of chunks is short.
const CHUNK_SLOTS: usize = 32;

/// Chunks kept for whoever needs one next: what an eviction under a small memory limit lets go. More are given back to the system.
const SPARE_BYTES_MAX: usize = 32 << 20;

/// What is known of a name.
pub struct Slot {
    pub hash: u64,
    pub name: KeptName,
    /// `None`: known not to exist.
    pub cell: Option<Cell>,
    /// The batch in which it was last sealed.
    pub batch: u32,
    /// The ledger does not know the present state.
    pub changed: bool,
    /// The ledger may have a cell of this name.
    pub at_rest: bool,
    /// Looked at since the last eviction came by.
    pub used: bool,
    /// With a shared store: what this node says there. The cell is then what it shows: its own cells over what it knows of others.
    pub own: Option<Box<Owned>>,
}

/// Room for [`CHUNK_SLOTS`] slots; its capacity never changes.
type Chunk = Vec<Slot>;

/// Empty chunks that belong to no shard.
#[derive(Default)]
pub struct SpareChunks(Mutex<Vec<Chunk>>);

impl SpareChunks {
    fn take(&self) -> Chunk {
        lock(&self.0).pop().unwrap_or_else(|| Vec::with_capacity(CHUNK_SLOTS))
    }

    fn give(&self, chunk: Chunk) {
        debug_assert!(chunk.is_empty() && chunk.capacity() >= CHUNK_SLOTS);
        let mut spare = lock(&self.0);
        if (spare.len() + 1) * CHUNK_SLOTS * size_of::<Slot>() <= SPARE_BYTES_MAX {
            spare.push(chunk);
        }
    }
}

/// See the module.
pub struct Slots {
    index: HashTable<u32>,
    chunks: Vec<Chunk>,
    spare: Arc<SpareChunks>,
    /// The index takes its places from the bits of a hash that did not choose the shard: within a shard those are all the same.
    shard_bits: u32,
}

impl Slots {
    pub fn new(shard_bits: u32, spare: Arc<SpareChunks>) -> Slots {
        Slots { index: HashTable::new(), chunks: Vec::new(), spare, shard_bits }
    }

    pub fn len(&self) -> usize {
        self.chunks.last().map_or(0, |last| (self.chunks.len() - 1) * CHUNK_SLOTS + last.len())
    }

    /// The number of a name's slot.
    pub fn find(&self, hash: u64, name: &[u8]) -> Option<u32> {
        let same = |at: &u32| {
            let slot = self.slot(*at);
            slot.hash == hash && *slot.name == *name
        };
        self.index.find(hash.rotate_left(self.shard_bits), same).copied()
    }

    pub fn slot(&self, at: u32) -> &Slot {
        let at = at as usize;
        &self.chunks[at / CHUNK_SLOTS][at % CHUNK_SLOTS]
    }

    pub fn slot_mut(&mut self, at: u32) -> &mut Slot {
        let at = at as usize;
        &mut self.chunks[at / CHUNK_SLOTS][at % CHUNK_SLOTS]
    }

    /// Adds a slot for a name that has none; returns its number.
    pub fn insert(&mut self, slot: Slot) -> u32 {
        let (at, bits) = (self.len() as u32, self.shard_bits);
        if self.chunks.last().is_none_or(|last| last.len() == CHUNK_SLOTS) {
            self.chunks.push(self.spare.take());
        }
        let rotated = slot.hash.rotate_left(bits);
        self.chunks.last_mut().expect("one was just made if there was none").push(slot);
        let chunks = &self.chunks;
        let hash_of = |at: &u32| chunks[*at as usize / CHUNK_SLOTS][*at as usize % CHUNK_SLOTS].hash.rotate_left(bits);
        self.index.insert_unique(rotated, at, hash_of);
        at
    }

    /// Removes a slot; the last one takes its number.
    pub fn remove(&mut self, at: u32) -> Slot {
        let bits = self.shard_bits;
        let rotated = self.slot(at).hash.rotate_left(bits);
        let entry = self.index.find_entry(rotated, |other| *other == at);
        entry.expect("the index holds the number of every slot").remove();
        let last_at = self.len() as u32 - 1;
        let last = self.chunks.last_mut().and_then(Vec::pop).expect("there is a slot to remove");
        if self.chunks.last().is_some_and(Vec::is_empty) {
            let chunk = self.chunks.pop().expect("it is the last one");
            self.spare.give(chunk);
        }
        if at == last_at {
            return last;
        }
        let moved = self.index.find_mut(last.hash.rotate_left(bits), |other| *other == last_at);
        *moved.expect("the index holds the number of every slot") = at;
        std::mem::replace(self.slot_mut(at), last)
    }

    /// Keeps the slots that it is told to; the others are handed to `gone`.
    pub fn retain(&mut self, mut stays: impl FnMut(&mut Slot) -> bool, mut gone: impl FnMut(Slot)) {
        let mut at = 0;
        while (at as usize) < self.len() {
            if stays(self.slot_mut(at)) {
                at += 1;
            } else {
                gone(self.remove(at));
            }
        }
        // The index of a shard that has lost most of its slots gives its memory back.
        if self.index.capacity() > 4 * self.index.len() + 16 {
            let (chunks, bits) = (&self.chunks, self.shard_bits);
            let hash_of =
                |at: &u32| chunks[*at as usize / CHUNK_SLOTS][*at as usize % CHUNK_SLOTS].hash.rotate_left(bits);
            self.index.shrink_to(2 * self.index.len(), hash_of);
        }
        if self.chunks.capacity() > 4 * self.chunks.len() + 16 {
            self.chunks.shrink_to(2 * self.chunks.len());
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = &Slot> {
        self.chunks.iter().flatten()
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Slot> {
        self.chunks.iter_mut().flatten()
    }

    pub fn clear(&mut self) {
        self.index = HashTable::new();
        for mut chunk in std::mem::take(&mut self.chunks) {
            chunk.clear();
            self.spare.give(chunk);
        }
    }

    /// About how many bytes they take.
    pub fn bytes(&self) -> usize {
        // The index keeps an eighth of its places free, and a byte for each.
        let index = self.index.capacity() * (size_of::<u32>() + 1) * 8 / 7;
        self.chunks.len() * CHUNK_SLOTS * size_of::<Slot>() + self.chunks.capacity() * size_of::<Chunk>() + index
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn slot(hash: u64, name: &[u8], batch: u32) -> Slot {
        Slot { hash, name: name.into(), cell: None, batch, changed: false, at_rest: false, used: false, own: None }
    }

    proptest! {
        /// Few hashes, so that different names often share one.
        #[test]
        fn slots_are_a_map(ops in proptest::collection::vec((0u8..3, 0u8..120, any::<u32>()), 0..400)) {
            let spare = Arc::new(SpareChunks::default());
            let mut slots = Slots::new(3, spare.clone());
            let mut model: BTreeMap<u8, u32> = BTreeMap::new();
            for (op, n, batch) in ops {
                let (hash, name) = (u64::from(n % 7) << 40, [n]);
                match (op, slots.find(hash, &name)) {
                    (0, _) if n < 3 => {
                        slots.retain(|slot| slot.name[0] % 5 != n, |slot| assert_eq!(model.remove(&slot.name[0]), Some(slot.batch)));
                        prop_assert!(model.keys().all(|kept| kept % 5 != n));
                    }
                    (0 | 1, None) => {
                        let at = slots.insert(slot(hash, &name, batch));
                        prop_assert_eq!(slots.slot(at).batch, batch);
                        model.insert(n, batch);
                    }
                    (0 | 1, Some(at)) => {
                        slots.slot_mut(at).batch = batch;
                        model.insert(n, batch);
                    }
                    (_, found) => {
                        let removed = found.map(|at| slots.remove(at).batch);
                        prop_assert_eq!(removed, model.remove(&n));
                    }
                }
                prop_assert_eq!(slots.len(), model.len());
            }
            let found: BTreeMap<u8, u32> = slots.iter().map(|slot| (slot.name[0], slot.batch)).collect();
            prop_assert_eq!(&found, &model);
            for (n, batch) in &model {
                let at = slots.find(u64::from(n % 7) << 40, &[*n]).expect("it is there");
                prop_assert_eq!(slots.slot(at).batch, *batch);
            }
            slots.clear();
            prop_assert_eq!((slots.len(), slots.chunks.len()), (0, 0));
        }
    }
}
