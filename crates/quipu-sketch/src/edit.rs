//! Records changes of a sketch's bytes for the journal.
//!
//! In: changes of a mutation, from every kind. Out: edits in order, each a range of bytes with its
//! replacement.
//!
//! Invariants:
//! - all edits applied in order turn the old bytes into the new ones. If the edits are *whole*,
//!   none is stored, and the journal takes all new bytes instead;
//! - a mutation without a change leaves no edit;
//! - edits take at most twice the memory of the sketch.
//!
//! Not here: the meaning of the bytes. A replay needs no knowledge of any kind.

use crate::CorruptSketch;

/// One change of a sketch's bytes: `bytes` replaces `removed` bytes at `at`. With equal lengths it
/// is in place, otherwise a splice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Edit<'a> {
    /// Start of the change.
    pub at: u32,
    /// Number of removed bytes.
    pub removed: u32,
    /// Replacement.
    pub bytes: &'a [u8],
}

/// Edits in order of occurrence. One arena holds their bytes, so an edit needs no allocation of its
/// own.
#[derive(Debug, Clone, Default)]
pub struct Edits {
    spans: Vec<Span>,
    arena: Vec<u8>,
    /// The latest in-place span of the header, if no later edit touches or moves it. Nearly every
    /// edit changes the martingale estimate. Many adds thus leave one edit of it.
    head: Option<usize>,
    /// The edits exceeded the size of the sketch.
    whole: bool,
}

#[derive(Debug, Clone, Copy)]
struct Span {
    at: u32,
    removed: u32,
    start: u32,
    len: u32,
}

/// Spans up to this offset can be heads. It covers every kind's header but the last 8 bytes of a
/// ring's.
const HEAD_BYTES: u32 = 48;

/// Memory of an edit beside its bytes, and the most that its encoding takes.
const SPAN_BYTES: usize = size_of::<Span>();

impl Edits {
    /// Creates an empty list.
    pub fn new() -> Edits {
        Edits::default()
    }

    /// Removes all edits, but keeps the memory.
    pub fn clear(&mut self) {
        self.spans.clear();
        self.arena.clear();
        self.head = None;
        self.whole = false;
    }

    /// Returns true if nothing changed.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty() && !self.whole
    }

    /// Returns true if the changes exceed the sketch's size; the list then has no edits.
    pub fn is_whole(&self) -> bool {
        self.whole
    }

    /// Returns its memory use in bytes.
    pub fn memory(&self) -> usize {
        SPAN_BYTES * self.spans.capacity() + self.arena.capacity()
    }

    /// Returns the number of edits.
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Returns the total length of the replacements.
    pub fn bytes_len(&self) -> usize {
        self.spans.iter().map(|span| span.len as usize).sum()
    }

    /// Returns the edits, oldest first.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Edit<'_>> {
        self.spans.iter().map(|span| Edit {
            at: span.at,
            removed: span.removed,
            bytes: &self.arena[span.start as usize..(span.start + span.len) as usize],
        })
    }

    /// Records that `with` replaced `removed` bytes at `at`, in a sketch with a new length of
    /// `length`.
    pub(crate) fn push(&mut self, at: u32, removed: u32, with: &[u8], length: usize) {
        if self.whole {
            return;
        }
        let len = with.len() as u32;
        let in_place = removed == len;
        if in_place {
            if len == 0 || self.merge_into_span(self.spans.len().wrapping_sub(1), at, with) {
                return;
            }
            if let Some(head) = self.head
                && self.merge_into_span(head, at, with)
            {
                return;
            }
        }
        if let Some(head) = self.head
            && at < self.spans[head].at + self.spans[head].len
        {
            self.head = None;
        }
        if SPAN_BYTES * self.spans.len() + self.arena.len() + with.len() > length {
            self.clear();
            self.whole = true;
            return;
        }
        let start = self.arena.len() as u32;
        self.arena.extend_from_slice(with);
        if in_place && at + len <= HEAD_BYTES {
            self.head = Some(self.spans.len());
        }
        self.spans.push(Span { at, removed, start, len });
    }

    /// Overwrites an earlier in-place span that covers the same bytes; extends it if it is the last
    /// one.
    fn merge_into_span(&mut self, index: usize, at: u32, with: &[u8]) -> bool {
        let last = index.wrapping_add(1) == self.spans.len();
        let Some(span) = self.spans.get_mut(index) else { return false };
        let len = with.len() as u32;
        if span.removed != span.len || at < span.at {
            return false;
        }
        let from = (span.start + (at - span.at)) as usize;
        if at + len <= span.at + span.len {
            self.arena[from..from + with.len()].copy_from_slice(with);
            true
        } else if last && at <= span.at + span.len && (span.start + span.len) as usize == self.arena.len() {
            self.arena.truncate(from);
            self.arena.extend_from_slice(with);
            span.len = at + len - span.at;
            span.removed = span.len;
            true
        } else {
            false
        }
    }
}

/// Applies one edit to plain bytes. Bounds are checked: a damaged edit is an error and changes
/// nothing.
pub fn apply(bytes: &mut Vec<u8>, at: u32, removed: u32, with: &[u8]) -> Result<(), CorruptSketch> {
    let at = at as usize;
    let end = at.checked_add(removed as usize).ok_or(CorruptSketch("an edit ends beyond all bytes"))?;
    if end > bytes.len() {
        return Err(CorruptSketch("an edit lies outside the sketch"));
    }
    if bytes.len() - removed as usize + with.len() > crate::BYTES_MAX {
        return Err(CorruptSketch("an edit makes the sketch too large"));
    }
    if with.len() == removed as usize {
        bytes[at..end].copy_from_slice(with);
    } else {
        bytes.splice(at..end, with.iter().copied());
    }
    Ok(())
}

/// Changes bytes and records the edit. The caller guarantees that the range lies inside.
pub(crate) fn put(bytes: &mut Vec<u8>, edits: &mut Edits, at: usize, removed: usize, with: &[u8]) {
    edits.push(at as u32, removed as u32, with, bytes.len() - removed + with.len());
    if with.len() == removed {
        bytes[at..at + removed].copy_from_slice(with);
    } else {
        bytes.splice(at..at + removed, with.iter().copied());
    }
}

/// Replaces all bytes, recorded as one edit from the first to the last difference.
pub(crate) fn replace(bytes: &mut Vec<u8>, edits: &mut Edits, with: Vec<u8>) {
    let shorter = bytes.len().min(with.len());
    let same = bytes.iter().zip(&with).take_while(|(old, new)| old == new).count();
    if same == bytes.len() && same == with.len() {
        return;
    }
    let behind = bytes.iter().rev().zip(with.iter().rev()).take(shorter - same).take_while(|(old, new)| old == new);
    let behind = behind.count();
    edits.push(same as u32, (bytes.len() - behind - same) as u32, &with[same..with.len() - behind], with.len());
    *bytes = with;
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn adjacent_and_repeated_changes_are_one_edit() {
        let mut edits = Edits::new();
        edits.push(8, 2, &[1, 2], 80);
        edits.push(10, 1, &[3], 80);
        edits.push(9, 1, &[9], 80);
        assert_eq!(edits.iter().collect::<Vec<_>>(), [Edit { at: 8, removed: 3, bytes: &[1, 9, 3] }]);
    }

    #[test]
    fn a_header_changed_between_others_is_one_edit() {
        let mut edits = Edits::new();
        for n in 0..10u8 {
            edits.push(100 + 5 * u32::from(n), 1, &[n], 400);
            edits.push(8, 8, &[n; 8], 400);
        }
        assert_eq!(edits.len(), 11);
    }

    #[test]
    fn edits_that_come_to_more_than_the_sketch_are_none() {
        let (mut bytes, mut edits) = (vec![0; 1000], Edits::new());
        for at in (0..1000).step_by(2) {
            put(&mut bytes, &mut edits, at, 1, &[1]);
        }
        assert!(edits.is_whole() && !edits.is_empty());
        assert_eq!((edits.len(), edits.iter().len(), edits.bytes_len()), (0, 0, 0));
        assert!(edits.memory() < 4_000, "{}", edits.memory());
        edits.clear();
        put(&mut bytes, &mut edits, 0, 1, &[2]);
        assert!(!edits.is_whole() && edits.len() == 1);
    }

    #[test]
    fn an_edit_outside_is_damage() {
        let mut bytes = vec![1, 2, 3];
        assert!(apply(&mut bytes, 2, 2, &[0, 0]).is_err());
        assert!(apply(&mut bytes, u32::MAX, u32::MAX, &[]).is_err());
        assert!(apply(&mut bytes, 4, 0, &[1]).is_err());
        assert_eq!(bytes, [1, 2, 3]);
    }

    proptest! {
        #[test]
        fn edits_lead_from_old_to_new(steps in prop::collection::vec((any::<u16>(), 0u8..6, prop::collection::vec(any::<u8>(), 0..6)), 0..40)) {
            let old: Vec<u8> = (0..240).collect();
            let (mut new, mut edits) = (old.clone(), Edits::new());
            for (at, removed, with) in steps {
                let at = at as usize % (new.len() + 1);
                let removed = (removed as usize).min(new.len() - at);
                put(&mut new, &mut edits, at, removed, &with);
            }
            let mut replayed = old;
            for edit in edits.iter() {
                apply(&mut replayed, edit.at, edit.removed, edit.bytes).unwrap();
            }
            prop_assert!(edits.memory() <= 4 * (new.len() + SPAN_BYTES), "vectors double");
            prop_assert!(edits.is_whole() || replayed == new);
        }

        #[test]
        fn a_replacement_is_one_edit(old in prop::collection::vec(0u8..3, 0..20), new in prop::collection::vec(0u8..3, 0..20)) {
            let (mut bytes, mut edits) = (old.clone(), Edits::new());
            replace(&mut bytes, &mut edits, new.clone());
            let mut replayed = old.clone();
            for edit in edits.iter() {
                apply(&mut replayed, edit.at, edit.removed, edit.bytes).unwrap();
            }
            prop_assert!(!edits.is_whole());
            prop_assert_eq!(&replayed, &new);
            prop_assert_eq!(edits.is_empty(), old == new);
        }
    }
}
