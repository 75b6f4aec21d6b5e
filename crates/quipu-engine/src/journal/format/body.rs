//! Reads the entries of a record's body in sequence, as drawn in `format`.

use quipu_model::Millis;
use quipu_model::varint::put_varint;

use super::entry::{
    CELL, Entry, IS_UNKNOWN, PriorExistence, UnknownEntry, WAS_ABSENT, take_entry, take_named, take_varint, take_zigzag,
};

/// Body of a record: its time and its entries.
#[derive(Debug, Clone, Copy)]
pub struct RecordBody<'a> {
    /// Engine time of the record.
    pub time: Millis,
    entries: &'a [u8],
}

impl<'a> RecordBody<'a> {
    /// Decodes the time; [`RecordBody::entries`] decodes the entries.
    pub fn decode(bytes: &'a [u8]) -> Result<RecordBody<'a>, UnknownEntry> {
        let mut rest = bytes;
        let time = Millis(take_varint(&mut rest)?);
        Ok(RecordBody { time, entries: rest })
    }

    /// The entries, in order, up to the first unreadable one.
    pub fn entries(&self) -> impl Iterator<Item = Result<Entry<'a>, UnknownEntry>> + use<'a> {
        self.entries_with_bytes().map(|entry| entry.map(|(entry, _)| entry))
    }

    /// The entries, each with its bytes.
    pub fn entries_with_bytes(&self) -> EntryIter<'a> {
        EntryIter { rest: self.entries }
    }
}

/// Iterator over the entries of a record.
pub struct EntryIter<'a> {
    pub(super) rest: &'a [u8],
}

impl<'a> Iterator for EntryIter<'a> {
    type Item = Result<(Entry<'a>, &'a [u8]), UnknownEntry>;

    /// Decodes the next entry. An unreadable entry ends the iteration.
    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let from = std::mem::take(&mut self.rest);
        let mut behind = from;
        Some(take_entry(&mut behind).map(|entry| {
            self.rest = behind;
            (entry, &from[..from.len() - behind.len()])
        }))
    }
}

impl<'a> EntryIter<'a> {
    /// Decodes the next entry if it is a plain cell, the most frequent form, without building an
    /// [`Entry`]. Leaves any other entry for [`EntryIter::next`].
    #[inline]
    pub fn next_plain_cell(&mut self) -> Option<PlainCell<'a>> {
        let (&tag, mut rest) = self.rest.split_first()?;
        if tag & !(WAS_ABSENT | IS_UNKNOWN) != CELL {
            return None;
        }
        let (name, _) = take_named(&mut rest, tag).ok()?;
        let value = take_zigzag(&mut rest).ok()?;
        // A restore does not need the count and the sum of the adds.
        take_varint(&mut rest).ok()?;
        take_varint(&mut rest).ok()?;
        let before = PriorExistence::from_tag(tag).ok()?;
        self.rest = rest;
        Some(PlainCell { name, value, before })
    }
}

/// A cell of the first epoch, without an expiry and without own cells on a shared store.
pub struct PlainCell<'a> {
    /// Name of the counter.
    pub name: &'a [u8],
    /// Running value.
    pub value: i64,
    /// Existence before the entry.
    pub before: PriorExistence,
}

/// Appends the time that begins a body.
pub fn put_time(out: &mut Vec<u8>, time: Millis) {
    put_varint(out, time.0);
}
