//! Which slot is the least of some, when counts only grow.
//!
//! A heap whose entries may be out of date: an entry's count is what it was when it was last looked at, and never more than it is now. Adding to a slot then costs nothing
//! here. Whoever asks for the least brings entries up to date, from the top, until the one there is. The order is by count and then by slot, so which slot is the least does not
//! depend on the past.

/// A slot and a count it had.
pub type SlotCount = (u64, u32);

/// A heap of slots, least first.
#[derive(Debug, Clone, Default)]
pub struct Heap {
    entries: Vec<SlotCount>,
}

impl Heap {
    /// A heap of these.
    pub fn from_entries(mut entries: Vec<SlotCount>) -> Heap {
        // A sorted list is a heap.
        entries.sort_unstable();
        Heap { entries }
    }

    /// How many slots it has.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Bytes of memory it takes.
    pub fn memory(&self) -> usize {
        self.entries.capacity() * size_of::<SlotCount>()
    }

    /// No slot is less than this.
    #[inline]
    pub fn floor(&self) -> Option<SlotCount> {
        self.entries.first().copied()
    }

    /// The least slot, with its count of now.
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

    /// Puts another in the place of the first.
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

    /// One more slot.
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
