//! Changes of a sketch's bytes, as the journal keeps them.
//!
//! In: what a mutation changed, from every kind. Out: edits in order, each some bytes that give way to others.
//!
//! Invariants:
//! - the old bytes with all edits applied in order are the new bytes, unless edits are *whole*: then the new bytes are, and no edit is kept;
//! - a mutation that changed nothing leaves no edit;
//! - edits take no more memory than twice the sketch.
//!
//! Not here: what the bytes mean. Whoever replays edits needs no knowledge of any kind.

use crate::CorruptSketch;

/// One change of a sketch's bytes: `removed` bytes at `at` give way to `bytes`. In place when the lengths are equal, a splice
/// otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Edit<'a> {
    /// Where the change begins.
    pub at: u32,
    /// How many bytes go.
    pub removed: u32,
    /// What comes instead.
    pub bytes: &'a [u8],
}

/// Edits in the order in which they happened. All their bytes lie in one arena, so that an edit costs no allocation of its own.
#[derive(Debug, Clone, Default)]
pub struct Edits {
    spans: Vec<Span>,
    arena: Vec<u8>,
    /// The latest in-place span, of those at the beginning, that nothing after it touches or moves. Martingale estimates are changed by
    /// nearly every edit: many adds leave one edit of them.
    head: Option<usize>,
    /// They came to more than all bytes of the sketch.
    whole: bool,
}

#[derive(Debug, Clone, Copy)]
struct Span {
    at: u32,
    removed: u32,
    start: u32,
    len: u32,
}

/// Spans that begin below this are heads: every kind's header is shorter.
const HEAD_BYTES: u32 = 48;

/// What an edit takes beside its bytes, here and, at most, where it is written down.
const SPAN_BYTES: usize = size_of::<Span>();

impl Edits {
    /// No edits.
    pub fn new() -> Edits {
        Edits::default()
    }

    /// Forgets all edits and keeps their room.
    pub fn clear(&mut self) {
        self.spans.clear();
        self.arena.clear();
        self.head = None;
        self.whole = false;
    }

    /// Whether nothing changed.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty() && !self.whole
    }

    /// Whether so much changed that all bytes of the sketch are shorter than what changed: then there are no edits to be had.
    pub fn is_whole(&self) -> bool {
        self.whole
    }

    /// Bytes of memory they take.
    pub fn memory(&self) -> usize {
        SPAN_BYTES * self.spans.capacity() + self.arena.capacity()
    }

    /// How many edits there are.
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// How many bytes the edits put in place.
    pub fn bytes_len(&self) -> usize {
        self.spans.iter().map(|span| span.len as usize).sum()
    }

    /// The edits, oldest first.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Edit<'_>> {
        self.spans.iter().map(|span| Edit {
            at: span.at,
            removed: span.removed,
            bytes: &self.arena[span.start as usize..(span.start + span.len) as usize],
        })
    }

    /// Notes that `removed` bytes at `at` gave way to `with`, of a sketch that has so many bytes then.
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

    /// Writes over an earlier in-place span that covers the same bytes; or, if it is the last one, goes on where it ends.
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

/// Applies one edit to plain bytes. Bounds are checked: a damaged edit is an error and changes nothing.
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

/// Changes bytes and notes it. The caller knows that the range lies inside.
pub(crate) fn put(bytes: &mut Vec<u8>, edits: &mut Edits, at: usize, removed: usize, with: &[u8]) {
    edits.push(at as u32, removed as u32, with, bytes.len() - removed + with.len());
    if with.len() == removed {
        bytes[at..at + removed].copy_from_slice(with);
    } else {
        bytes.splice(at..at + removed, with.iter().copied());
    }
}

/// Replaces all bytes and notes it, as one edit of what lies between the first and the last difference.
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
