//! Writes the bytes of a turn's records into the journal.
//!
//! In: closed records, and their positions. Out: filled ranges, which a commit can pass.
//!
//! Entries that belong to no counter get their records here, too.

use quipu_model::Refusal;

use crate::base::failpoint::step;
use crate::execute::turn::Turn;
use crate::journal::format::{ENTRY_BYTES_MAX, Entry, NAMESPACE_ENTRY_BYTES_MAX, Position, RECORD_OVERHEAD_BYTES_MAX};

impl Turn<'_> {
    /// Journals an entry that belongs to no counter.
    pub(crate) fn journal_entry(&mut self, entry: &Entry<'_>) -> Result<(), Refusal> {
        self.journal_entry_locked(entry, || ()).map(|_| ())
    }

    /// The same; takes a lock before the record's range is reserved. Returns the record's end and
    /// the lock.
    pub(crate) fn journal_entry_locked<L>(
        &mut self,
        entry: &Entry<'_>,
        lock: impl FnOnce() -> L,
    ) -> Result<(Position, L), Refusal> {
        self.end_run();
        let entry_bytes_max = if let Entry::Namespace { .. } | Entry::Sampling { .. } = entry {
            NAMESPACE_ENTRY_BYTES_MAX
        } else {
            ENTRY_BYTES_MAX
        };
        self.reserve_room(RECORD_OVERHEAD_BYTES_MAX + entry_bytes_max)?;
        self.builder.push(self.now, entry);
        let record = self.builder.close_record().expect("an entry was pushed");
        let (bytes, locked) = (record.len(), lock());
        let position = self.engine.journal.reserve(bytes);
        self.consume_room(bytes);
        self.run_room_max = 0;
        self.unfilled.push((position, record));
        Ok((position.plus(bytes as u64), locked))
    }

    /// Journals the current time alone: counters shown as expired stay expired, even if the clock
    /// goes back. Without room nothing is journaled, and the walk goes on.
    pub(crate) fn journal_time(&mut self) -> Position {
        if !self.try_reserve_room(RECORD_OVERHEAD_BYTES_MAX) {
            return Position(0);
        }
        self.builder.ensure_record(self.now);
        let record = self.builder.close_record().expect("it was opened");
        let bytes = record.len();
        let position = self.engine.journal.reserve(bytes);
        self.consume_room(bytes);
        self.run_room_max = 0;
        self.unfilled.push((position, record));
        position.plus(bytes as u64)
    }

    /// Writes the bytes of all records of this turn into the journal.
    #[inline]
    pub fn fill(&mut self) {
        self.end_run();
        step!("reserved");
        // A turn without journaled commands has no bytes to write.
        if self.room > 0 || self.overcommitted || self.builder.capacity() > 0 {
            self.write_record_bytes();
        }
    }

    fn write_record_bytes(&mut self) {
        if std::mem::take(&mut self.overcommitted) {
            // With no lock held, and before a commit can reach the ranges of this turn.
            self.engine.journal.replenish_room();
        }
        if !self.unfilled.is_empty() {
            let bytes = self.builder.bytes();
            self.engine.journal.fill(self.unfilled.drain(..).map(|(position, range)| (position, &bytes[range])));
            step!("filled");
        }
        self.builder.clear();
        if self.room > 0 {
            self.engine.journal.return_room(std::mem::take(&mut self.room));
        }
    }
}
