//! Top list: the most frequent items, by Filtered Space-Saving (Homem and Carvalho, 2010). Its
//! bounds on both sides always hold.
//!
//! A list has two to four times as many slots as entries. A slot holds an item, a count that is at
//! least the truth, and the count's greatest error. One row of cells is the filter. A cell is at
//! least the count of any item that maps to it and has no slot. An item without a slot raises its
//! cell. When the cell passes the count of the least slot, the item takes that slot. The count of
//! the evicted item goes to that item's cell.
//!
//! A count is too high by the counts that others left in the cell before the item got its slot.
//! Frequent items get theirs early, while cells are at 1 or 2. So cells begin with 2 bits, in a
//! great number, and become fewer and wider as they grow. If two cells become one, the higher value
//! is correct for both.
//!
//! Measured in 64 KB with 10⁷ events by Zipf's law (0.7): the mean excess of items around rank 100
//! is 0.04. With cells of 32 bits from the beginning it was 1.1.
//!
//! Invariants, for every item: `at_most − error ≤ truth ≤ at_most` with a slot, `truth ≤ cell`
//! without one.
//!
//! An update with any weight costs one search and, now and then, a walk down a heap. `layout` draws
//! the bytes.
//!
//! Items are hashed under a secret [`Key`]. All reads and changes of a list must use the same key.
//! An attacker without it cannot predict the items that share a cell.

mod index;
mod layout;
mod rank;

use std::collections::{HashMap, HashSet};

use index::Index;
pub use layout::ITEM_BYTES_MAX;
use layout::{BITS_FIRST, HEADER, Layout, N, USED, number};

use crate::edit::{put, replace};
use crate::key::{bucket_of, rehash};
use crate::{BYTES_MAX, CorruptSketch, Edits, Key, SketchError};

/// Slots per entry of the list.
pub const SLOTS_PER_PLACE: u32 = 4;

/// One entry of the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopRow {
    /// The item.
    pub item: Vec<u8>,
    /// Upper bound of its count.
    pub at_most: u64,
    /// Lower bound of its count.
    pub at_least: u64,
    /// True if it is certainly among the k most frequent: no item outside the list can have a
    /// higher count.
    pub certain: bool,
}

/// Bounds of an item's count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Upper bound.
    pub at_most: u64,
    /// Lower bound.
    pub at_least: u64,
}

/// Requested and actual sizes of a list.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Info {
    /// Length of the list.
    pub k: u32,
    /// Width requested by a client of RedisBloom; it affects the size of the filter.
    pub width: u32,
    /// Depth requested by a client of RedisBloom; it affects the size of the filter.
    pub depth: u32,
    /// Decay requested by a client of RedisBloom; it has no effect.
    pub decay: f64,
    /// Number of slots, each with an item's own count.
    pub slots: u32,
    /// Memory of the filter for all other items, in cells of four bytes.
    pub cells: u32,
    /// Sum of all weights.
    pub n: u64,
}

/// A sketch of the most frequent items.
#[derive(Debug, Clone)]
pub struct Top {
    /// Bytes as drawn in `layout`.
    bytes: Vec<u8>,
    layout: Layout,
    used: u32,
    /// Built by the first change.
    index: Option<Index>,
}

impl Top {
    /// Creates a list of `k` entries with this number of slots, at least 2·`k`, and of cells.
    pub fn new(k: u32, slots: u32, cells: u32) -> Result<Top, SketchError> {
        let (room, width) = (Layout::room_for(0), cells);
        Top::with(Layout { number: 4, bits: BITS_FIRST, room, k, slots, cells, width, depth: 1, decay: 1.0 })
    }

    /// Creates a list of `k` entries in this number of bytes, for short items (8 bytes) and counts
    /// below 2³². Half of the memory is for slots, but at least 2·`k` slots.
    pub fn in_bytes(k: u32, bytes: usize) -> Result<Top, SketchError> {
        if bytes > BYTES_MAX {
            return Err(SketchError::TooLarge { bytes: bytes as u64 });
        }
        let slot = 2 * 4 + 2 + Layout::room_for(0);
        let slots = ((bytes / 2 / slot) as u32).max(k.saturating_mul(2));
        let rest = (bytes as u64).saturating_sub(HEADER as u64 + u64::from(slots) * slot as u64);
        Top::new(k, slots, (rest / 4).max(1) as u32)
    }

    /// Creates a list as `TOPK.RESERVE` requests it. RedisBloom would take `width`·`depth` cells of
    /// 8 bytes. The filter gets the same number of bytes, but at least one cell for each slot.
    pub fn reserve(k: u32, width: u32, depth: u32, decay: f64) -> Result<Top, SketchError> {
        if !(0.0..=1.0).contains(&decay) {
            return Err(SketchError::Parameter("invalid decay value. must be '<= 1' & '> 0'"));
        }
        if width == 0 {
            return Err(SketchError::Parameter("invalid width"));
        }
        if depth == 0 {
            return Err(SketchError::Parameter("invalid depth"));
        }
        let slots = k.saturating_mul(SLOTS_PER_PLACE);
        let cells = (u64::from(width) * u64::from(depth)).saturating_mul(2).max(u64::from(slots));
        let cells = u32::try_from(cells).map_err(|_| SketchError::TooLarge { bytes: cells.saturating_mul(4) })?;
        let room = Layout::room_for(0);
        Top::with(Layout { number: 4, bits: BITS_FIRST, room, k, slots, cells, width, depth, decay })
    }

    fn with(layout: Layout) -> Result<Top, SketchError> {
        if layout.k == 0 || layout.k > u32::MAX / SLOTS_PER_PLACE {
            return Err(SketchError::Parameter("invalid k"));
        }
        if layout.slots / 2 < layout.k || layout.cells == 0 {
            return Err(SketchError::Parameter("a top list needs two slots for each place, and a cell"));
        }
        layout.check_len()?;
        Ok(Top { bytes: layout.empty(), layout, used: 0, index: None })
    }

    /// Decodes the output of [`bytes`](Top::bytes).
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Top, CorruptSketch> {
        let layout = Layout::read(&bytes)?;
        let used = number(&bytes, USED, 4) as u32;
        let top = Top { bytes, layout, used, index: None };
        let mut items = HashSet::with_capacity(used as usize);
        let mut certain = 0u128;
        for slot in 0..used {
            let at = layout.slot(slot) + 2 * layout.number;
            let len = u16::from_le_bytes([top.bytes[at], top.bytes[at + 1]]) as usize;
            let room = &top.bytes[at + 2..at + 2 + layout.room];
            if len > layout.room || room[len..].iter().any(|byte| *byte != 0) || !items.insert(&room[..len]) {
                return Err(CorruptSketch("an item of a top list"));
            }
            let (count, error) = (top.count_of(slot), top.error_of(slot));
            if count == 0 || error >= count {
                return Err(CorruptSketch("a count of a top list"));
            }
            certain += u128::from(count - error);
        }
        let behind = if used < layout.slots { &top.bytes[layout.slot(used)..] } else { &[] };
        if behind.iter().any(|byte| *byte != 0) {
            return Err(CorruptSketch("a top list counts elsewhere while it has slots"));
        }
        if certain > u128::from(top.n()) {
            return Err(CorruptSketch("the counts of a top list do not add up"));
        }
        drop(items);
        Ok(top)
    }

    /// Returns the whole state.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// As [`bytes`](Top::bytes), but consumes the list.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Returns its memory use in bytes, including the index, built or not.
    pub fn memory(&self) -> usize {
        let Layout { slots, k, .. } = self.layout;
        let index = self.index.as_ref().map_or(0, Index::memory).max(Index::memory_of(slots, k));
        size_of::<Top>() + self.bytes.capacity() + index
    }

    /// Builds the index now, so no read has to walk all slots. Otherwise the first change builds
    /// it.
    pub fn index(&mut self, key: &Key) {
        if self.index.is_none() {
            self.index = Some(self.make_index(key));
        }
    }

    /// Returns its sizes.
    pub fn info(&self) -> Info {
        let Layout { k, width, depth, decay, slots, cells, .. } = self.layout;
        Info { k, width, depth, decay, slots, cells, n: self.n() }
    }

    /// Returns the sum of all weights, N.
    pub fn n(&self) -> u64 {
        number(&self.bytes, N, 8)
    }

    /// Returns the greatest error of a slot, N / slots: the counts of all slots sum up to at most
    /// N.
    pub fn error(&self) -> f64 {
        self.n() as f64 / f64::from(self.layout.slots)
    }

    /// Returns true if this weight can be counted without a new layout, for items that fit the
    /// slots. Then few bytes change.
    pub fn stays_as_wide(&self, weight: u64) -> bool {
        let (total, cell_max) = (self.n().saturating_add(weight), self.layout.cell_max());
        // A value that goes to a cell is at most the least count. With unused slots, that is at
        // most an equal share of the total. Otherwise it is at most any present count plus the
        // weight.
        let least = match self.index.as_ref().and_then(|index| index.least.floor()) {
            _ if self.used < self.layout.slots => total / u64::from(self.layout.slots),
            Some((_, slot)) => self.count_of(slot).saturating_add(weight),
            None => self.count_of(0).saturating_add(weight),
        };
        total <= u64::from(u32::MAX) && least <= cell_max
    }

    /// Returns the greatest size in bytes after counting this weight, with items of at most this
    /// length.
    pub fn bytes_after(&self, weight: u64, longest: usize) -> u64 {
        let total = self.n().saturating_add(weight);
        let mut layout = self.layout.wider(total, longest);
        if total > u64::from(u32::MAX) {
            layout.bits = 64;
        }
        layout.len()
    }

    /// Counts an item; returns the item that it displaced from the list, if any: the reply of
    /// `TOPK.ADD` and `TOPK.INCRBY`. The time does not depend on the weight.
    pub fn add(
        &mut self,
        key: &Key,
        item: &[u8],
        weight: u64,
        edits: &mut Edits,
    ) -> Result<Option<Vec<u8>>, SketchError> {
        self.add_among(key, item, weight, item.len(), edits)
    }

    /// As [`add`](Top::add), for one of several items, the longest with this length. A new layout
    /// for one of them then fits all.
    pub fn add_among(
        &mut self,
        key: &Key,
        item: &[u8],
        weight: u64,
        longest: usize,
        edits: &mut Edits,
    ) -> Result<Option<Vec<u8>>, SketchError> {
        if item.len() > ITEM_BYTES_MAX {
            return Err(SketchError::ItemTooLong { bytes: item.len() });
        }
        if weight == 0 {
            return Ok(None);
        }
        let hash = key.hash(item);
        let n = self.n().checked_add(weight).ok_or(SketchError::Overflow)?;
        let mut index = self.index.take().unwrap_or_else(|| self.make_index(key));
        let done = self.count(&mut index, hash, (item, longest), weight, edits);
        self.index = Some(index);
        let expelled = done?;
        put(&mut self.bytes, edits, N, 8, &n.to_le_bytes());
        Ok(expelled)
    }

    /// Returns the list, most frequent first.
    pub fn list(&self) -> Vec<TopRow> {
        let mut slots: Vec<(u64, u32)> = (0..self.used).map(|slot| (self.count_of(slot), slot)).collect();
        slots.sort_unstable_by(|a, b| b.cmp(a));
        let k = self.layout.k as usize;
        let next = slots.get(k).map_or(0, |(count, _)| *count);
        // After a merge a cell can be higher than a slot.
        let cells = (0..self.layout.cell_count() as usize).map(|cell| self.cell(cell)).max().unwrap_or(0);
        let row = |(at_most, slot): &(u64, u32)| {
            let at_least = at_most - self.error_of(*slot);
            TopRow {
                item: self.item(*slot).to_vec(),
                at_most: *at_most,
                at_least,
                certain: at_least >= next.max(cells),
            }
        };
        slots.iter().take(k).map(row).collect()
    }

    /// Returns true if an item is on the list: the reply of `TOPK.QUERY`.
    pub fn contains(&self, key: &Key, item: &[u8]) -> bool {
        let Some(slot) = self.find(key.hash(item), item) else { return false };
        match &self.index {
            Some(index) => index.is_listed(slot),
            None => {
                let mine = (self.count_of(slot), slot);
                let before = (0..self.used).filter(|other| (self.count_of(*other), *other) > mine).count();
                before < self.layout.k as usize
            }
        }
    }

    /// Returns the bounds of an item's count, on the list or not.
    pub fn bounds(&self, key: &Key, item: &[u8]) -> Bounds {
        let hash = key.hash(item);
        match self.find(hash, item) {
            Some(slot) => {
                let at_most = self.count_of(slot);
                Bounds { at_most, at_least: at_most - self.error_of(slot) }
            }
            None => Bounds { at_most: self.cell(self.cell_of(hash)), at_least: 0 },
        }
    }

    /// Merges others, under the same key and with the same size of the filter. The bounds stay
    /// valid, and widen by those of the others.
    pub fn merge(&mut self, key: &Key, others: &[&Top], edits: &mut Edits) -> Result<(), SketchError> {
        if others.is_empty() {
            return Ok(());
        }
        if others.iter().any(|other| other.layout.cells != self.layout.cells) {
            return Err(SketchError::Mismatch);
        }
        let all: Vec<&Top> = others.iter().copied().chain([&*self]).collect();
        let bits = all.iter().map(|top| top.layout.bits).max().unwrap_or(BITS_FIRST);
        let mut layout = Layout { bits, ..self.layout };
        let cell_count = layout.cell_count();
        let mut rows: HashMap<&[u8], MergedItem> = HashMap::new();
        let (mut n, mut cells) = (0u64, vec![0u64; cell_count as usize]);
        for top in &all {
            n = n.checked_add(top.n()).ok_or(SketchError::Overflow)?;
            let own = top.cells_folded_to(cell_count);
            for (sum, more) in cells.iter_mut().zip(&own) {
                *sum = sum.checked_add(*more).ok_or(SketchError::Overflow)?;
            }
            for slot in 0..top.used {
                let item = top.item(slot);
                let row = rows.entry(item).or_insert_with(|| MergedItem {
                    cell: cell_index(key.hash(item), cell_count),
                    ..MergedItem::default()
                });
                row.count = row.count.checked_add(top.count_of(slot)).ok_or(SketchError::Overflow)?;
                row.error += top.error_of(slot);
                row.known += own[row.cell];
            }
        }
        let mut counted = Vec::with_capacity(rows.len());
        for (item, MergedItem { cell, count, error, known }) in rows {
            // Without a slot its count is anything from 0 to the value of its cell.
            let elsewhere = cells[cell] - known;
            counted.push((item, count.checked_add(elsewhere).ok_or(SketchError::Overflow)?, error + elsewhere, cell));
        }
        let mut rows = counted;
        rows.sort_unstable_by(|(a, x, ..), (b, y, ..)| y.cmp(x).then(a.cmp(b)));
        for (_, count, _, cell) in rows.iter().skip(self.layout.slots as usize) {
            cells[*cell] = cells[*cell].max(*count);
        }
        rows.truncate(self.layout.slots as usize);

        let highest = cells.iter().copied().max().unwrap_or(0);
        while highest > layout.cell_max() {
            layout = layout.with_wider_cells();
            cells = folded(cells, layout.cell_count());
        }
        let largest = rows.iter().map(|(_, count, ..)| *count).max().unwrap_or(0);
        let longest = rows.iter().map(|(item, ..)| item.len()).max().unwrap_or(0);
        let layout = layout.wider(largest, longest);
        layout.check_len()?;
        let mut bytes = layout.empty();
        for (slot, (item, count, error, _)) in rows.iter().enumerate() {
            write_slot(&mut bytes, &layout, slot as u32, *count, *error, item);
        }
        write_cells(&mut bytes, &layout, &cells);
        let used = rows.len() as u32;
        bytes[USED..USED + 4].copy_from_slice(&used.to_le_bytes());
        bytes[N..N + 8].copy_from_slice(&n.to_le_bytes());
        (self.layout, self.used, self.index) = (layout, used, None);
        replace(&mut self.bytes, edits, bytes);
        Ok(())
    }

    /// Halves all counts this number of times, as a decay does. The bounds stay valid for the
    /// halved weights, except for rounding: an item with a slot has a count of at least 1.
    pub fn halve(&mut self, halves: u32, edits: &mut Edits) {
        let down = |value: u64| value.checked_shr(halves).unwrap_or(0);
        let up = |value: u64| down(value) + u64::from(down(value).checked_shl(halves).unwrap_or(0) != value);
        let mut bytes = self.bytes.clone();
        let mut certain = 0u64;
        for slot in 0..self.used {
            let (count, error) = (self.count_of(slot), self.error_of(slot));
            let least = down(count - error).max(1);
            let count = up(count).max(least);
            certain = certain.saturating_add(least);
            write_slot(&mut bytes, &self.layout, slot, count, count - least, self.item(slot));
        }
        bytes[self.layout.all_cells()].fill(0);
        let cells: Vec<u64> = (0..self.layout.cell_count() as usize).map(|cell| up(self.cell(cell))).collect();
        write_cells(&mut bytes, &self.layout, &cells);
        bytes[N..N + 8].copy_from_slice(&up(self.n()).max(certain).to_le_bytes());
        self.index = None;
        replace(&mut self.bytes, edits, bytes);
    }

    /// Counts an item in everything but N.
    fn count(
        &mut self,
        index: &mut Index,
        hash: u64,
        (item, longest): (&[u8], usize),
        weight: u64,
        edits: &mut Edits,
    ) -> Result<Option<Vec<u8>>, SketchError> {
        let (slot, count) = if let Some(slot) = index.find(hash, |slot| self.item(slot) == item) {
            let count = self.count_of(slot).checked_add(weight).ok_or(SketchError::Overflow)?;
            self.widen(count, (0, longest), edits)?;
            let at = self.layout.slot(slot);
            put(&mut self.bytes, edits, at, self.layout.number, &count.to_le_bytes()[..self.layout.number]);
            (slot, count)
        } else if self.used < self.layout.slots {
            self.widen(weight, (item.len(), longest), edits)?;
            let slot = self.used;
            self.used += 1;
            put(&mut self.bytes, edits, USED, 4, &self.used.to_le_bytes());
            self.put_slot(slot, weight, 0, item, edits);
            index.insert(slot, hash);
            index.least.push((weight, slot));
            (slot, weight)
        } else {
            let error = self.cell(self.cell_of(hash));
            let count = error.checked_add(weight).ok_or(SketchError::Overflow)?;
            let is_less = |least: Option<(u64, u32)>| least.is_some_and(|(least, _)| count <= least);
            if is_less(index.least.floor()) || is_less(index.least.least(|slot| self.count_of(slot))) {
                self.widen_cells(count, edits)?;
                self.put_cell(self.cell_of(hash), count, edits);
                return Ok(None);
            }
            self.widen(count, (item.len(), longest), edits)?;
            let (evicted, slot) = index.least.floor().expect("all slots are in use");
            self.widen_cells(evicted, edits)?;
            let filter = self.cell_of(index.hash(slot));
            if self.cell(filter) < evicted {
                self.put_cell(filter, evicted, edits);
            }
            index.remove(slot);
            // The evicted item is not on the list: with twice as many slots as entries, enough
            // others have a count at least as high.
            self.put_slot(slot, count, error, item, edits);
            index.insert(slot, hash);
            index.least.replace_first((count, slot));
            (slot, count)
        };
        let expelled = index.grown(self.layout.k, (count, slot), |slot| self.count_of(slot));
        Ok(expelled.map(|slot| self.item(slot).to_vec()))
    }

    fn make_index(&self, key: &Key) -> Index {
        let used = (0..self.used).map(|slot| (key.hash(self.item(slot)), self.count_of(slot)));
        Index::from_slots(self.layout.slots, self.layout.k, used)
    }

    fn find(&self, hash: u64, item: &[u8]) -> Option<u32> {
        match &self.index {
            Some(index) => index.find(hash, |slot| self.item(slot) == item),
            None => (0..self.used).find(|slot| self.item(*slot) == item),
        }
    }

    /// Creates a new layout if the value or item does not fit. It then has room for the longest
    /// item to come.
    fn widen(&mut self, value: u64, (item_len, longest): (usize, usize), edits: &mut Edits) -> Result<(), SketchError> {
        let mut layout = self.layout.wider(value, item_len);
        if layout == self.layout {
            return Ok(());
        }
        if layout.room > self.layout.room {
            layout.room = layout.room.max(Layout::room_for(longest));
        }
        layout.check_len()?;
        let mut bytes = layout.empty();
        bytes[USED..USED + 4].copy_from_slice(&self.bytes[USED..USED + 4]);
        bytes[N..N + 8].copy_from_slice(&self.bytes[N..N + 8]);
        for slot in 0..self.used {
            write_slot(&mut bytes, &layout, slot, self.count_of(slot), self.error_of(slot), self.item(slot));
        }
        bytes[layout.all_cells()].copy_from_slice(&self.bytes[self.layout.all_cells()]);
        self.layout = layout;
        replace(&mut self.bytes, edits, bytes);
        Ok(())
    }

    /// Widens the cells until this value fits.
    fn widen_cells(&mut self, value: u64, edits: &mut Edits) -> Result<(), SketchError> {
        if value <= self.layout.cell_max() {
            return Ok(());
        }
        let mut layout = self.layout;
        while value > layout.cell_max() {
            layout = layout.with_wider_cells();
        }
        layout.check_len()?;
        let cells = self.cells_folded_to(layout.cell_count());
        let mut bytes = layout.empty();
        let slots = HEADER..layout.all_cells().start;
        bytes[slots.clone()].copy_from_slice(&self.bytes[slots]);
        bytes[USED..USED + 4].copy_from_slice(&self.bytes[USED..USED + 4]);
        bytes[N..N + 8].copy_from_slice(&self.bytes[N..N + 8]);
        write_cells(&mut bytes, &layout, &cells);
        self.layout = layout;
        replace(&mut self.bytes, edits, bytes);
        Ok(())
    }

    /// Returns the values of all cells, folded to this number of cells, at most the present one.
    fn cells_folded_to(&self, cell_count: u32) -> Vec<u64> {
        let cells = (0..self.layout.cell_count() as usize).map(|cell| self.cell(cell)).collect();
        folded(cells, cell_count)
    }

    fn put_slot(&mut self, slot: u32, count: u64, error: u64, item: &[u8], edits: &mut Edits) {
        let Layout { number, .. } = self.layout;
        let at = self.layout.slot(slot);
        // Zeros overwrite the rest of a longer item.
        let len = 2 * number + 2 + self.item(slot).len().max(item.len());
        let mut bytes = [0; 2 * 8 + 2 + ITEM_BYTES_MAX];
        bytes[..number].copy_from_slice(&count.to_le_bytes()[..number]);
        bytes[number..2 * number].copy_from_slice(&error.to_le_bytes()[..number]);
        bytes[2 * number..2 * number + 2].copy_from_slice(&(item.len() as u16).to_le_bytes());
        bytes[2 * number + 2..2 * number + 2 + item.len()].copy_from_slice(item);
        put(&mut self.bytes, edits, at, len, &bytes[..len]);
    }

    fn put_cell(&mut self, cell: usize, value: u64, edits: &mut Edits) {
        let (at, bytes, len) = self.layout.written_cell(&self.bytes, cell, value);
        put(&mut self.bytes, edits, at, len, &bytes[..len]);
    }

    #[inline]
    fn count_of(&self, slot: u32) -> u64 {
        number(&self.bytes, self.layout.slot(slot), self.layout.number)
    }

    fn error_of(&self, slot: u32) -> u64 {
        number(&self.bytes, self.layout.slot(slot) + self.layout.number, self.layout.number)
    }

    #[inline]
    fn item(&self, slot: u32) -> &[u8] {
        let at = self.layout.slot(slot) + 2 * self.layout.number;
        let len = u16::from_le_bytes([self.bytes[at], self.bytes[at + 1]]) as usize;
        &self.bytes[at + 2..at + 2 + len]
    }

    fn cell_of(&self, hash: u64) -> usize {
        cell_index(hash, self.layout.cell_count())
    }

    fn cell(&self, cell: usize) -> u64 {
        self.layout.read_cell(&self.bytes, cell)
    }
}

/// An item during the merge of several lists.
#[derive(Default)]
struct MergedItem {
    /// Cell that it maps to.
    cell: usize,
    count: u64,
    error: u64,
    /// Sum of its cell's values in the lists in which it has a slot.
    known: u64,
}

/// Returns the cell of an item, among this number of cells. For half as many it is the cell with
/// half the index.
fn cell_index(hash: u64, cell_count: u32) -> usize {
    bucket_of(rehash(hash, 0), cell_count)
}

/// Folds neighbouring cells into one, with the higher value, down to this number of cells.
fn folded(mut cells: Vec<u64>, cell_count: u32) -> Vec<u64> {
    while cells.len() > cell_count as usize {
        cells = cells.chunks(2).map(|pair| pair.iter().copied().max().unwrap_or(0)).collect();
    }
    cells
}

fn write_cells(bytes: &mut [u8], layout: &Layout, cells: &[u64]) {
    for (cell, value) in cells.iter().enumerate().filter(|(_, value)| **value > 0) {
        let (at, written, len) = layout.written_cell(bytes, cell, *value);
        bytes[at..at + len].copy_from_slice(&written[..len]);
    }
}

fn write_slot(bytes: &mut [u8], layout: &Layout, slot: u32, count: u64, error: u64, item: &[u8]) {
    let at = layout.slot(slot);
    let number = layout.number;
    bytes[at..at + number].copy_from_slice(&count.to_le_bytes()[..number]);
    bytes[at + number..at + 2 * number].copy_from_slice(&error.to_le_bytes()[..number]);
    bytes[at + 2 * number..at + 2 * number + 2].copy_from_slice(&(item.len() as u16).to_le_bytes());
    bytes[at + 2 * number + 2..at + 2 * number + 2 + item.len()].copy_from_slice(item);
}

#[cfg(test)]
mod tests;
