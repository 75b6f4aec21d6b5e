//! Builds the journal record of a run while the run is applied.

use quipu_model::{Epoch, Millis};

use super::format::{Entry, PackedEdit, PriorExistence, RECORD_HEADER_BYTES, put_edits, put_sketch, put_time};

/// The records of a turn, one after another; the last one may still grow.
#[derive(Default)]
pub struct RecordBuilder {
    bytes: Vec<u8>,
    /// Offset of the open record.
    start: usize,
    is_open: bool,
    last_add: Option<LastAdd>,
}

/// The newest entry, if it was an add. Another add to the same counter in the same run replaces it.
struct LastAdd {
    /// Offset of the entry, with its name.
    at: usize,
    hash: u64,
    epoch: Epoch,
    count: u64,
    sum: i64,
    before: PriorExistence,
}

/// Initial buffer capacity. A record with one name of common length fits. Most turns of a
/// connection with one command in flight write no more.
const FIRST_BYTES: usize = 240;

impl RecordBuilder {
    /// No records.
    pub const EMPTY: RecordBuilder = RecordBuilder { bytes: Vec::new(), start: 0, is_open: false, last_add: None };

    /// Capacity of the buffer in bytes.
    pub fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// Discards all records after they were filled, and keeps the buffer.
    pub fn clear(&mut self) {
        self.bytes.clear();
        (self.start, self.is_open, self.last_add) = (0, false, None);
    }

    /// Adds an entry, opening a record if none is open.
    pub fn push(&mut self, time: Millis, entry: &Entry<'_>) {
        self.open_record(time);
        self.last_add = None;
        entry.encode(&mut self.bytes);
    }

    /// Adds the result of an add. Consecutive adds to one counter become one entry: the newest
    /// value, their count and sum.
    pub fn push_add(&mut self, time: Millis, hash: u64, (name, epoch): (&[u8], Epoch), result: AddResult<'_>) {
        self.open_record(time);
        let AddResult { value, expires_at, delta, mut before, own } = result;
        let (mut count, mut sum) = (1, delta);
        if let Some(last) = &self.last_add {
            // Equal hashes of different names would merge two counters. The hash is keyed and 64
            // bits wide, but the names decide.
            let same = last.hash == hash && last.epoch == epoch && self.has_name_at(last.at, name);
            if let (true, Some(total)) = (same, last.sum.checked_add(delta)) {
                (count, sum, before) = (last.count + 1, total, last.before);
                self.bytes.truncate(last.at);
            }
        }
        self.last_add = Some(LastAdd { at: self.bytes.len(), hash, epoch, count, sum, before });
        Entry::Cell { name, epoch, value, expires_at, count, sum, before, own }.encode(&mut self.bytes);
    }

    /// Adds the changes to one body of a sketch, that of `pane`.
    pub fn push_sketch<'e>(
        &mut self,
        time: Millis,
        (name, pane): (&[u8], u32),
        (kind, version, whole): (u8, u64, bool),
        edits: impl ExactSizeIterator<Item = PackedEdit<'e>>,
    ) {
        self.open_record(time);
        self.last_add = None;
        put_sketch(&mut self.bytes, name, (kind, pane.into()), version, whole);
        put_edits(&mut self.bytes, edits);
    }

    /// Opens a record with only its time, if none is open.
    pub fn ensure_record(&mut self, time: Millis) {
        self.open_record(time);
    }

    /// Closes the open record. Returns its range in [`RecordBuilder::bytes`], or `None` if there is
    /// no record.
    pub fn close_record(&mut self) -> Option<std::ops::Range<usize>> {
        self.last_add = None;
        if !std::mem::take(&mut self.is_open) {
            return None;
        }
        Some(self.start..self.bytes.len())
    }

    /// All records built so far, headers empty.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn open_record(&mut self, time: Millis) {
        if !self.is_open {
            self.is_open = true;
            self.start = self.bytes.len();
            // Growing byte by byte cost more than all other work on a record.
            self.bytes.reserve(FIRST_BYTES);
            self.bytes.resize(self.start + RECORD_HEADER_BYTES, 0);
            put_time(&mut self.bytes, time);
        }
    }

    fn has_name_at(&self, at: usize, name: &[u8]) -> bool {
        // Behind the tag: the length of the name in one or two bytes, then the name.
        let skip = if name.len() < 0x80 { 2 } else { 3 };
        self.bytes.get(at + skip..at + skip + name.len()) == Some(name)
    }
}

/// The result of an add.
#[derive(Debug, Clone, Copy)]
pub struct AddResult<'o> {
    /// Value after the add.
    pub value: i64,
    /// Expiry after the add.
    pub expires_at: Option<Millis>,
    /// The added amount.
    pub delta: i64,
    /// Existence before the add.
    pub before: PriorExistence,
    /// This node's own cells of the counter on the shared store; empty without one.
    pub own: &'o [u8],
}

#[cfg(test)]
mod tests {
    use super::super::format::RecordBody;
    use super::*;

    fn add(builder: &mut RecordBuilder, name: &[u8], value: i64, delta: i64) {
        let hash = name.len() as u64;
        builder.push_add(
            Millis(1),
            hash,
            (name, Epoch::FIRST),
            AddResult { value, expires_at: None, delta, before: PriorExistence::Present, own: &[] },
        );
    }

    #[test]
    fn adds_in_a_row_become_one_entry_with_their_count_and_sum() {
        let mut builder = RecordBuilder::default();
        add(&mut builder, b"a", 1, 1);
        add(&mut builder, b"a", 4, 3);
        // The same hash, but another name.
        add(&mut builder, b"b", 5, 5);
        add(&mut builder, b"b", i64::MAX, i64::MAX - 5);
        add(&mut builder, b"b", i64::MAX - 1, -1);
        let range = builder.close_record().unwrap();
        let body = RecordBody::decode(&builder.bytes()[range][RECORD_HEADER_BYTES..]).unwrap();
        let entries: Vec<_> = body
            .entries()
            .map(|entry| match entry.unwrap() {
                Entry::Cell { name, value, count, sum, .. } => (name[0], value, count, sum),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(entries, [(b'a', 4, 2, 4), (b'b', i64::MAX - 1, 3, i64::MAX - 1)]);
        assert_eq!(builder.close_record(), None);
    }

    #[test]
    fn a_sum_that_leaves_the_range_begins_a_new_entry() {
        let mut builder = RecordBuilder::default();
        add(&mut builder, b"a", i64::MAX, i64::MAX);
        add(&mut builder, b"a", i64::MAX, i64::MAX);
        let range = builder.close_record().unwrap();
        let body = RecordBody::decode(&builder.bytes()[range][RECORD_HEADER_BYTES..]).unwrap();
        assert_eq!(body.entries().count(), 2);
    }
}
