//! Buffers records that have a range in the stream but are not written yet.
//!
//! A range is reserved under the lock of the table shard, so ranges are in the order in which
//! commands were applied. The record bytes may come later. A write ends before the first range that
//! is still empty.

use std::collections::VecDeque;

use super::format::Position;

/// The part of the stream between the written and the reserved position.
pub struct PendingRecords {
    /// Position of the first byte of `bytes`.
    base: Position,
    bytes: Vec<u8>,
    /// One per record, in order.
    ranges: VecDeque<ReservedRange>,
}

struct ReservedRange {
    position: Position,
    bytes: usize,
    is_filled: bool,
}

/// Whole records, ready to be chained and written.
#[derive(Default)]
pub struct FilledRecords {
    /// Position of the first record.
    pub base: Position,
    /// Bytes of all records, headers still empty.
    pub bytes: Vec<u8>,
    /// Length of each record.
    pub lengths: Vec<usize>,
}

impl PendingRecords {
    /// Creates an empty buffer; the next range begins at `base`.
    pub fn new(base: Position) -> PendingRecords {
        PendingRecords { base, bytes: Vec::new(), ranges: VecDeque::new() }
    }

    /// Reserves the next range, for a record of `bytes`.
    pub fn reserve(&mut self, bytes: usize) -> Position {
        let position = self.end();
        self.bytes.resize(self.bytes.len() + bytes, 0);
        self.ranges.push_back(ReservedRange { position, bytes, is_filled: false });
        position
    }

    /// Copies the bytes of a record into its reserved range.
    pub fn fill(&mut self, position: Position, record: &[u8]) {
        let at = (position.0 - self.base.0) as usize;
        self.bytes[at..at + record.len()].copy_from_slice(record);
        let index = self.ranges.partition_point(|range| range.position < position);
        let range = self.ranges.get_mut(index).filter(|range| range.position == position);
        let range = range.expect("a place is filled once, after it was reserved");
        debug_assert!(!range.is_filled && range.bytes == record.len());
        range.is_filled = true;
    }

    /// Takes the filled records, up to the first empty range. `written` is the previous result, and
    /// gives its memory.
    pub fn take_filled(&mut self, written: FilledRecords) -> FilledRecords {
        let FilledRecords { bytes: mut rest, mut lengths, .. } = written;
        rest.clear();
        lengths.clear();
        let count = self.ranges.iter().position(|range| !range.is_filled).unwrap_or(self.ranges.len());
        lengths.extend(self.ranges.drain(..count).map(|range| range.bytes));
        let total = lengths.iter().sum();
        rest.extend_from_slice(&self.bytes[total..]);
        self.bytes.truncate(total);
        let bytes = std::mem::replace(&mut self.bytes, rest);
        let base = self.base;
        self.base = base.plus(total as u64);
        FilledRecords { base, bytes, lengths }
    }

    /// Returns true if there are records to take.
    pub fn has_filled(&self) -> bool {
        self.ranges.front().is_some_and(|range| range.is_filled)
    }

    /// Position of the next range.
    pub fn end(&self) -> Position {
        self.base.plus(self.bytes.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_ends_before_the_first_empty_place() {
        let mut pending = PendingRecords::new(Position(100));
        let [a, b, c] = [3, 2, 4].map(|bytes| pending.reserve(bytes));
        assert_eq!((a, b, c), (Position(100), Position(103), Position(105)));
        pending.fill(c, b"cccc");
        pending.fill(a, b"aaa");
        let filled = pending.take_filled(FilledRecords::default());
        assert_eq!((filled.base, filled.bytes.as_slice(), filled.lengths.as_slice()), (a, &b"aaa"[..], &[3][..]));
        let filled = pending.take_filled(filled);
        assert!(filled.bytes.is_empty() && filled.lengths.is_empty());
        pending.fill(b, b"bb");
        let filled = pending.take_filled(filled);
        assert_eq!((filled.base, filled.bytes.as_slice()), (b, &b"bbcccc"[..]));
        assert_eq!(pending.end(), Position(109));
    }
}
