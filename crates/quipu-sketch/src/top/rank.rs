//! Heap of slots by count, for counts that only grow.
//!
//! The heap's entries may be out of date: an entry has the count at its last examination, which is
//! at most the present one. So an add to a slot costs nothing here. A search for the least slot
//! updates entries from the top until the first one is current. The order is by count and then by
//! slot, so the least slot does not depend on history.

/// A count, possibly outdated, and its slot.
pub type SlotCount = (u64, u32);

/// A heap of slots, least first.
#[derive(Debug, Clone, Default)]
pub struct Heap {
    entries: Vec<SlotCount>,
}

impl Heap {
    /// Builds a heap of these entries.
    pub fn from_entries(mut entries: Vec<SlotCount>) -> Heap {
        // A sorted list is a heap.
        entries.sort_unstable();
        Heap { entries }
    }

    /// Returns the number of slots.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns its memory use in bytes.
    pub fn memory(&self) -> usize {
        self.entries.capacity() * size_of::<SlotCount>()
    }

    /// Returns a lower bound of all slots.
    #[inline]
    pub fn floor(&self) -> Option<SlotCount> {
        self.entries.first().copied()
    }

    /// Returns the least slot, with its present count.
    pub fn least(&mut self, count: impl Fn(u32) -> u64) -> Option<SlotCount> {
        loop {
            let (known, slot) = self.floor()?;
            let now = count(slot);
            if now == known {
                return Some((known, slot));
            }
            self.replace_first((now, slot));
        }
    }

    /// Replaces the first entry.
    pub fn replace_first(&mut self, entry: SlotCount) {
        let mut at = 0;
        loop {
            let children = 2 * at + 1..(2 * at + 3).min(self.entries.len());
            match children.min_by_key(|child| self.entries[*child]) {
                Some(child) if self.entries[child] < entry => {
                    self.entries[at] = self.entries[child];
                    at = child;
                }
                _ => break,
            }
        }
        self.entries[at] = entry;
    }

    /// Adds a slot.
    pub fn push(&mut self, entry: SlotCount) {
        let mut at = self.entries.len();
        self.entries.push(entry);
        while at > 0 && self.entries[(at - 1) / 2] > entry {
            self.entries[at] = self.entries[(at - 1) / 2];
            at = (at - 1) / 2;
        }
        self.entries[at] = entry;
    }
}
