//! Reserves a turn's journal room, and tells how much commands may need.
//!
//! In: the most bytes that a command's record may take. Out: room in the journal, or a refusal
//! before anything is applied.
//!
//! Not here: the room of all turns (`journal`), the needs of sketches (`apply/bodies/room`).

use quipu_model::{Command, Durability, Name, Refusal};

use crate::apply::bodies::{concerns_bodies, record_bytes_max, strings_bytes_max};
use crate::apply::targets::counter_record_bytes_max;
use crate::bodies::own_cells::own_bytes_max;
use crate::execute::turn::Turn;
use crate::execute::turn::scratch::Scratch;
use crate::journal::format::RECORD_BYTES_MAX;
use crate::table::locks::ShardLocks;

/// Journal room is reserved in pieces of this size, so most commands of a turn need no reservation.
const ROOM_PIECE_BYTES: usize = 4 << 10;

impl Turn<'_> {
    /// Reserves room for a command that needs at most `bytes`. Returns whether a counter found
    /// expired can be journaled. Only a journaled write is refused without room, and only it
    /// extends the disk.
    pub(super) fn admit(&mut self, bytes: usize, writing: bool, journaled: bool) -> Result<bool, Refusal> {
        match (writing, journaled) {
            (true, true) => self.reserve_room(bytes).map(|()| true),
            (true, false) => self.engine.check_open().map(|()| true),
            (false, true) => Ok(self.try_reserve_room(bytes)),
            (false, false) => Ok(!self.engine.is_closed()),
        }
    }

    /// Returns true if a counter found expired can be removed.
    pub(super) fn may_expire(&mut self, name: Name<'_>) -> bool {
        let journaled = self.policies.durability(name) > Durability::Memory;
        let bytes = counter_record_bytes_max(name, self.own_bytes_max());
        self.admit(bytes, false, journaled).unwrap_or(false)
    }

    /// Reserves `bytes` more for the present run.
    pub(super) fn reserve_room(&mut self, bytes: usize) -> Result<(), Refusal> {
        self.engine.check_open()?;
        if !self.try_reserve_room(bytes) {
            // Writes have overtaken the preparation of segments. Instead of refusing, prepare some
            // here: with no lock held, and with no unfilled range for which other threads would
            // wait.
            self.fill();
            loop {
                match self.take_journal_room(bytes) {
                    Ok(()) => break,
                    Err(refusal @ Refusal::Behind { .. }) => return Err(refusal),
                    Err(_) => self.engine.journal.prepare_room_now(bytes)?,
                }
            }
            self.run_room_max = bytes;
        }
        Ok(())
    }

    /// The same, without extending the disk, and not beyond the longest record.
    pub(crate) fn try_reserve_room(&mut self, bytes: usize) -> bool {
        let needed = self.run_room_max + bytes;
        // A start takes a longer record for damage.
        let there = needed <= RECORD_BYTES_MAX
            && !self.engine.is_closed()
            && (needed <= self.room || self.take_journal_room(needed - self.room).is_ok());
        if there {
            self.run_room_max = needed;
        }
        there
    }

    fn take_journal_room(&mut self, bytes: usize) -> Result<(), Refusal> {
        if self.builder.capacity() == 0 {
            // A record will be written, so the turn needs its scratch memory; not all turns do.
            let Scratch { builder, unfilled } = Scratch::take();
            (self.builder, self.unfilled) = (builder, unfilled);
        }
        let journal = &self.engine.journal;
        let taken = match journal.reserve_room(bytes.max(ROOM_PIECE_BYTES)) {
            Ok(()) => bytes.max(ROOM_PIECE_BYTES),
            Err(_) => journal.reserve_room(bytes).map(|()| bytes)?,
        };
        self.room += taken;
        Ok(())
    }

    /// Takes room for a record out of this turn's reservation. No record should exceed its
    /// reservation. If one does, the journal books the missing bytes as overcommitted, and nothing
    /// wraps.
    pub(super) fn consume_room(&mut self, bytes: usize) {
        let missing = bytes.saturating_sub(self.room);
        self.room -= bytes - missing;
        if missing > 0 {
            self.engine.journal.overcommit_room(missing);
            self.overcommitted = true;
        }
    }

    /// Returns true if records of sketches and token replies may need more than `bodies_bytes`;
    /// then raises it to the need. The held shards decide.
    pub(crate) fn needs_more_room(
        &self,
        locks: &ShardLocks<'_>,
        commands: &[Command<'_>],
        bodies_bytes: &mut usize,
    ) -> bool {
        let table = &self.engine.table;
        let lookup = |name: Name<'_>| {
            let hash = table.hash(name.bytes());
            let shard = locks.peek(table.shard_of(hash));
            let shown = shard.unexpired_body(hash, name.bytes(), self.now);
            // On a shared store the record contains this node's own body. Without one, the future
            // own body is like the shown one.
            let Some(shared) = &self.engine.shared else { return shown };
            match shown {
                Some(shown) => {
                    shard.observed_body(hash, name.bytes(), shown.sketch(), shared.incarnation()).or(Some(shown))
                }
                None => {
                    shard.own_bodies().bodies_of(name.bytes()).map(|(_, own)| own).max_by_key(|own| own.bytes().len())
                }
            }
        };
        let needed = record_bytes_max(commands, lookup) + strings_bytes_max(commands, lookup);
        let more = needed > *bodies_bytes;
        *bodies_bytes = needed.max(*bodies_bytes);
        more
    }

    /// The same for one command; its shard is held.
    pub(super) fn run_needs_more_room(&self, command: &Command<'_>, bodies_bytes: &mut usize) -> bool {
        let run = self.open_run.as_ref().expect("a run is open");
        concerns_bodies(command) && self.needs_more_room(&run.locks, std::slice::from_ref(command), bodies_bytes)
    }

    pub(crate) fn own_bytes_max(&self) -> usize {
        if self.engine.shared.is_some() { own_bytes_max(self.policies.shards_max()) } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::RECORD_BYTES_MAX;
    use crate::{Engine, Options};

    #[test]
    fn a_run_ends_before_its_record_is_too_long_to_be_read() {
        let dir = tempfile::tempdir().unwrap();
        let engine = Engine::open(Options::new(dir.path())).unwrap();
        let mut turn = engine.turn();
        turn.room = 2 * RECORD_BYTES_MAX;
        turn.run_room_max = RECORD_BYTES_MAX - 10;
        assert!(turn.try_reserve_room(10));
        assert!(!turn.try_reserve_room(1), "though there is room");
        (turn.room, turn.run_room_max) = (0, 0);
        turn.finish();
    }

    #[test]
    fn a_record_beyond_all_room_is_a_debt_that_is_made_up() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options { segment_bytes: 1 << 16, ahead_bytes: Some(1 << 17), ..Options::new(dir.path()) };
        let engine = Engine::open(options).unwrap();
        let core = engine.core();
        let mut turn = engine.turn();
        turn.reserve_room(100).unwrap();
        turn.consume_room(1 << 20);
        assert_eq!((turn.room, turn.overcommitted), (0, true));
        turn.run_room_max = 0;
        turn.finish();
        core.journal.reserve_room(1).unwrap();
        core.journal.return_room(1);
        assert_eq!(core.journal.failure(), None);
        assert_eq!(engine.add("d:a", 1).unwrap(), 1);
    }
}
