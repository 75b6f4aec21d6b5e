//! Index derived from the bytes of a top list: slots by item, the least slot, and the listed slots.

use super::rank::{Heap, SlotCount};

/// Built from the slots at its first use.
#[derive(Debug, Clone)]
pub struct Index {
    /// Hash of the item in each used slot.
    hashes: Vec<u64>,
    /// Slots by hash, open addressing: a slot's number plus one, or 0. It has at least twice as
    /// many buckets as slots.
    table: Vec<u32>,
    /// All used slots.
    pub least: Heap,
    /// The k slots of the list.
    listed: Heap,
    is_listed: Vec<bool>,
}

impl Index {
    /// Builds the index from the used slots: hash of the item, and count.
    pub fn from_slots(slots: u32, k: u32, used: impl Iterator<Item = (u64, u64)>) -> Index {
        let buckets = (2 * slots as usize).next_power_of_two();
        let mut index = Index {
            hashes: Vec::with_capacity(slots as usize),
            table: vec![0; buckets],
            least: Heap::default(),
            listed: Heap::default(),
            is_listed: vec![false; slots as usize],
        };
        let mut entries: Vec<SlotCount> = Vec::with_capacity(slots as usize);
        for (slot, (hash, count)) in used.enumerate() {
            index.insert(slot as u32, hash);
            entries.push((count, slot as u32));
        }
        index.least = Heap::from_entries(entries.clone());
        entries.sort_unstable();
        let listed = entries.split_off(entries.len().saturating_sub(k as usize));
        for (_, slot) in &listed {
            index.is_listed[*slot as usize] = true;
        }
        index.listed = Heap::from_entries(listed);
        index
    }

    /// Returns its approximate memory use in bytes with all slots in use.
    pub fn memory_of(slots: u32, k: u32) -> usize {
        let (slots, k) = (slots as usize, k as usize);
        slots * (8 + 1 + size_of::<SlotCount>()) + 4 * (2 * slots).next_power_of_two() + k * size_of::<SlotCount>()
    }

    /// Returns the slot with this hash for which `is_it` holds.
    #[inline]
    pub fn find(&self, hash: u64, is_it: impl Fn(u32) -> bool) -> Option<u32> {
        let mut at = self.home(hash);
        loop {
            let slot = self.table[at].checked_sub(1)?;
            if self.hashes[slot as usize] == hash && is_it(slot) {
                return Some(slot);
            }
            at = (at + 1) & (self.table.len() - 1);
        }
    }

    /// Returns the hash of a slot's item.
    pub fn hash(&self, slot: u32) -> u64 {
        self.hashes[slot as usize]
    }

    /// Inserts the item of a slot. The slot is the next unused one, or had another item, now
    /// removed.
    pub fn insert(&mut self, slot: u32, hash: u64) {
        if slot as usize == self.hashes.len() {
            self.hashes.push(hash);
        } else {
            self.hashes[slot as usize] = hash;
        }
        let mut at = self.home(hash);
        while self.table[at] != 0 {
            at = (at + 1) & (self.table.len() - 1);
        }
        self.table[at] = slot + 1;
    }

    /// Removes a slot's item. Entries behind it in the table move up, so no search ends too early.
    pub fn remove(&mut self, slot: u32) {
        let mask = self.table.len() - 1;
        let mut gap = self.home(self.hashes[slot as usize]);
        while self.table[gap] != slot + 1 {
            gap = (gap + 1) & mask;
        }
        let mut at = gap;
        loop {
            at = (at + 1) & mask;
            let Some(other) = self.table[at].checked_sub(1) else { break };
            let home = self.home(self.hashes[other as usize]);
            // It may move to the gap unless its home lies behind the gap.
            if (at.wrapping_sub(home) & mask) >= (at.wrapping_sub(gap) & mask) {
                self.table[gap] = self.table[at];
                gap = at;
            }
        }
        self.table[gap] = 0;
    }

    /// Updates the list after a slot's count grew; returns the slot that this displaced, if any.
    #[inline]
    pub fn grown(&mut self, k: u32, entry: SlotCount, count: impl Fn(u32) -> u64) -> Option<u32> {
        let slot = entry.1 as usize;
        if self.is_listed[slot] {
            return None;
        }
        if self.listed.len() < k as usize {
            self.is_listed[slot] = true;
            self.listed.push(entry);
            return None;
        }
        if self.listed.floor()? > entry {
            return None;
        }
        let last = self.listed.least(count)?;
        if last > entry {
            return None;
        }
        self.is_listed[last.1 as usize] = false;
        self.is_listed[slot] = true;
        self.listed.replace_first(entry);
        Some(last.1)
    }

    /// Returns true if a slot is on the list.
    pub fn is_listed(&self, slot: u32) -> bool {
        self.is_listed[slot as usize]
    }

    /// Returns its memory use in bytes.
    pub fn memory(&self) -> usize {
        8 * self.hashes.capacity()
            + 4 * self.table.capacity()
            + self.is_listed.capacity()
            + self.least.memory()
            + self.listed.memory()
    }

    #[inline]
    fn home(&self, hash: u64) -> usize {
        hash as usize & (self.table.len() - 1)
    }
}
