//! A record being drafted while its run is applied.

use quipu_model::{Epoch, Millis};

use super::format::{Entry, PackedEdit, PriorExistence, RECORD_HEADER_BYTES, put_edits, put_sketch, put_time};

/// The records of a turn, one after another; the last one may still grow.
#[derive(Default)]
pub struct RecordBuilder {
    bytes: Vec<u8>,
    /// Where the open record begins.
    start: usize,
    is_open: bool,
    last_add: Option<LastAdd>,
}

/// The newest entry, if it was an add: another add to the same counter in the same run takes its place.
struct LastAdd {
    /// Where the entry begins, and its name in it.
    at: usize,
    hash: u64,
    epoch: Epoch,
    count: u64,
    sum: i64,
    before: PriorExistence,
}

/// Room for the first record: one of a counter with a name of common length takes no more, and most turns of a connection with one command in flight write no more.
const FIRST_BYTES: usize = 240;

impl RecordBuilder {
    /// No records.
    pub const EMPTY: RecordBuilder = RecordBuilder { bytes: Vec::new(), start: 0, is_open: false, last_add: None };

    /// How many bytes it has memory for.
    pub fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// Forgets all records, which were filled, and keeps their memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        (self.start, self.is_open, self.last_add) = (0, false, None);
    }

    /// Adds an entry, opening a record if none is.
    pub fn push(&mut self, time: Millis, entry: &Entry<'_>) {
        self.open_record(time);
        self.last_add = None;
        entry.encode(&mut self.bytes);
    }

    /// Adds the result of an add. Adds to one counter in a row become one entry: the newest value, their count and sum.
    pub fn push_add(&mut self, time: Millis, hash: u64, (name, epoch): (&[u8], Epoch), result: AddResult<'_>) {
        self.open_record(time);
        let AddResult { value, expires_at, delta, mut before, own } = result;
        let (mut count, mut sum) = (1, delta);
        if let Some(last) = &self.last_add {
            // Equal hashes of different names would merge two counters: the hash is keyed and 64 bits wide, but names decide.
            let same = last.hash == hash && last.epoch == epoch && self.has_name_at(last.at, name);
            if let (true, Some(total)) = (same, last.sum.checked_add(delta)) {
                (count, sum, before) = (last.count + 1, total, last.before);
                self.bytes.truncate(last.at);
            }
        }
        self.last_add = Some(LastAdd { at: self.bytes.len(), hash, epoch, count, sum, before });
        Entry::Cell { name, epoch, value, expires_at, count, sum, before, own }.encode(&mut self.bytes);
    }

    /// Adds what changed in a sketch: of the bodies of its name that of this pane.
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

    /// Opens a record that says nothing but the time, if none is open.
    pub fn ensure_record(&mut self, time: Millis) {
        self.open_record(time);
    }

    /// Closes the open record; returns where it is in [`RecordBuilder::bytes`], or `None` if nothing was written.
    pub fn close_record(&mut self) -> Option<std::ops::Range<usize>> {
        self.last_add = None;
        if !std::mem::take(&mut self.is_open) {
            return None;
        }
        Some(self.start..self.bytes.len())
    }

    /// All records drafted so far, headers empty.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn open_record(&mut self, time: Millis) {
        if !self.is_open {
            self.is_open = true;
            self.start = self.bytes.len();
            // Growing to it byte by byte cost more than everything else that is done for a record.
            self.bytes.reserve(FIRST_BYTES);
            self.bytes.resize(self.start + RECORD_HEADER_BYTES, 0);
            put_time(&mut self.bytes, time);
        }
    }

    fn has_name_at(&self, at: usize, name: &[u8]) -> bool {
        // Behind the tag stands the length of the name, in one byte or two, then the name.
        let skip = if name.len() < 0x80 { 2 } else { 3 };
        self.bytes.get(at + skip..at + skip + name.len()) == Some(name)
    }
}

/// What an add did.
#[derive(Debug, Clone, Copy)]
pub struct AddResult<'o> {
    /// The value after it.
    pub value: i64,
    /// The counter's expiry after it.
    pub expires_at: Option<Millis>,
    /// What was added.
    pub delta: i64,
    /// Whether the counter existed before it.
    pub before: PriorExistence,
    /// What this node says of it on a shared store; empty without one.
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
