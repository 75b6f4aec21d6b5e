//! Records that have a place in the stream but are not handed over yet.
//!
//! A place is reserved while the lock of the table shard is held, so places are in the order in which commands were applied. The
//! bytes may come later; what is handed over ends before the first place that is still empty.

use std::collections::VecDeque;

use super::format::Position;

/// The stretch of the stream between what was handed over and what was reserved.
pub struct Pending {
    /// Position of the first byte of `bytes`.
    base: Position,
    bytes: Vec<u8>,
    /// One per record, in order.
    places: VecDeque<Place>,
}

struct Place {
    position: Position,
    bytes: usize,
    filled: bool,
}

/// Whole records, ready to be chained and written.
#[derive(Default)]
pub struct Filled {
    /// Where the first one goes.
    pub base: Position,
    /// All of them, headers still empty.
    pub bytes: Vec<u8>,
    /// The length of each.
    pub lengths: Vec<usize>,
}

impl Pending {
    /// Nothing is pending; the next place is at `base`.
    pub fn new(base: Position) -> Pending {
        Pending { base, bytes: Vec::new(), places: VecDeque::new() }
    }

    /// Takes the next place, for a record of this length.
    pub fn reserve(&mut self, bytes: usize) -> Position {
        let position = self.end();
        self.bytes.resize(self.bytes.len() + bytes, 0);
        self.places.push_back(Place { position, bytes, filled: false });
        position
    }

    /// Brings the bytes of a reserved place.
    pub fn fill(&mut self, position: Position, record: &[u8]) {
        let at = (position.0 - self.base.0) as usize;
        self.bytes[at..at + record.len()].copy_from_slice(record);
        let index = self.places.partition_point(|place| place.position < position);
        let place = self.places.get_mut(index).filter(|place| place.position == position);
        let place = place.expect("a place is filled once, after it was reserved");
        debug_assert!(!place.filled && place.bytes == record.len());
        place.filled = true;
    }

    /// Takes what is filled, up to the first place that is not. What was taken before and is written leaves its memory.
    pub fn take_filled(&mut self, written: Filled) -> Filled {
        let Filled { bytes: mut rest, mut lengths, .. } = written;
        rest.clear();
        lengths.clear();
        let count = self.places.iter().position(|place| !place.filled).unwrap_or(self.places.len());
        lengths.extend(self.places.drain(..count).map(|place| place.bytes));
        let total = lengths.iter().sum();
        rest.extend_from_slice(&self.bytes[total..]);
        self.bytes.truncate(total);
        let bytes = std::mem::replace(&mut self.bytes, rest);
        let base = self.base;
        self.base = base.plus(total as u64);
        Filled { base, bytes, lengths }
    }

    /// Whether there is something to take.
    pub fn has_filled(&self) -> bool {
        self.places.front().is_some_and(|place| place.filled)
    }

    /// Where the next place will be.
    pub fn end(&self) -> Position {
        self.base.plus(self.bytes.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_ends_before_the_first_empty_place() {
        let mut pending = Pending::new(Position(100));
        let [a, b, c] = [3, 2, 4].map(|bytes| pending.reserve(bytes));
        assert_eq!((a, b, c), (Position(100), Position(103), Position(105)));
        pending.fill(c, b"cccc");
        pending.fill(a, b"aaa");
        let filled = pending.take_filled(Filled::default());
        assert_eq!((filled.base, filled.bytes.as_slice(), filled.lengths.as_slice()), (a, &b"aaa"[..], &[3][..]));
        let filled = pending.take_filled(filled);
        assert!(filled.bytes.is_empty() && filled.lengths.is_empty());
        pending.fill(b, b"bb");
        let filled = pending.take_filled(filled);
        assert_eq!((filled.base, filled.bytes.as_slice()), (b, &b"bbcccc"[..]));
        assert_eq!(pending.end(), Position(109));
    }
}
