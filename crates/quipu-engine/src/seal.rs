//! Seals cells: writes them again at the head of the journal, so that what lies behind can be cut.
//!
//! In: the resident table. Out: records that make everything before a marked place superfluous, and then the cut.
//!
//! It goes shard by shard, each under its own lock: a cell that changes before its shard's turn is written with the change, one that changes
//! after has a newer record behind. Counters of memory namespaces, which no turn journals, reach the disk only through here.
//!
//! Not here: when to seal (`driver`).

use quipu_model::{Cell, Epoch, Millis, Refusal};

use crate::apply::table::Shard;
use crate::engine::Inner;
use crate::failpoint::step;
use crate::journal::format::{ENTRY_BYTES_MAX, Entry, Position, RECORD_BYTES_MAX, RECORD_OVERHEAD_BYTES_MAX};
use crate::journal::{Draft, JournalError};

/// A seal of all cells under way, one shard at a time.
pub struct Seal {
    next_shard: usize,
    /// The end of the newest record it wrote.
    end: Position,
}

impl Seal {
    /// Marks where the journal will be cut. What stands there is the record of who writes, which must survive the cut.
    pub(crate) fn begin(inner: &Inner) -> Result<Seal, Refusal> {
        let mut draft = Draft::default();
        draft.push(inner.now(), &Entry::Start { writer: inner.writer });
        let record = draft.close().expect("an entry was pushed");
        inner.journal.reserve_room(record.len())?;
        let position = inner.journal.reserve_marked(record.len());
        inner.journal.fill([(position, &draft.bytes()[record])]);
        step!("marked");
        Ok(Seal { next_shard: 0, end: position })
    }

    /// Writes the next shard; true once all are written.
    pub(crate) fn step(&mut self, inner: &Inner) -> Result<bool, Refusal> {
        if self.next_shard < inner.table.shard_count() {
            let end = seal_shard(inner, self.next_shard, Shard::cells_bytes_max, |shard, draft, now| {
                if shard.floor != Epoch::FIRST {
                    draft.push(now, &Entry::Floor { epoch: shard.floor });
                }
                // What is gone must be told too, or it would be back if there is no cut after all.
                for (hash, name) in shard.take_unsealed(usize::MAX) {
                    if shard.get(hash, &name).is_none() {
                        draft.push(now, &Entry::Gone { name: &name, epoch: shard.floor });
                    }
                }
                for (name, cell) in shard.cells() {
                    draft.push(now, &written_again(name, cell));
                }
            })?;
            self.end = self.end.max(end);
            self.next_shard += 1;
        }
        Ok(self.next_shard == inner.table.shard_count())
    }

    /// The end of the newest record it wrote: what must be synced before the cut.
    pub(crate) fn end(&self) -> Position {
        self.end
    }

    /// Cuts the journal at the mark, if everything that was written again is synced.
    pub(crate) fn finish(self, inner: &Inner) -> Result<(), JournalError> {
        debug_assert_eq!(self.next_shard, inner.table.shard_count());
        inner.journal.hand_over();
        inner.journal.sync();
        step!("sealed");
        match inner.journal.marked() {
            Some((position, previous)) if self.end <= inner.journal.synced() => inner.journal.cut(position, previous),
            _ => Ok(()),
        }
    }
}

/// Writes counters of memory namespaces in a shard that changed since they were last sealed, a bounded number of them; whether there
/// are more.
pub(crate) fn seal_unsealed(inner: &Inner, shard: usize) -> Result<bool, Refusal> {
    let mut more = false;
    seal_shard(inner, shard, Shard::unsealed_bytes_max, |shard, draft, now| {
        for (hash, name) in shard.take_unsealed(PIECE_NAMES) {
            let entry = match shard.get(hash, &name) {
                Some(cell) => written_again(&name, cell),
                None => Entry::Gone { name: &name, epoch: shard.floor },
            };
            draft.push(now, &entry);
        }
        more = shard.has_unsealed();
    })?;
    Ok(more)
}

/// Drafts a record under the lock of a shard and gives it its place; returns where it ends. Room first: without it the shard is left
/// as it was.
fn seal_shard(
    inner: &Inner,
    index: usize,
    bytes_max: impl Fn(&Shard) -> usize,
    draft_shard: impl FnOnce(&mut Shard, &mut Draft, Millis),
) -> Result<Position, Refusal> {
    let now = inner.now();
    let mut draft = Draft::default();
    let (mut shard, bytes_max) = loop {
        let shard = inner.table.lock(index);
        let bytes_max = match bytes_max(&shard) {
            0 => return Ok(Position(0)),
            entries => RECORD_OVERHEAD_BYTES_MAX + entries,
        };
        if bytes_max > RECORD_BYTES_MAX {
            let reason = format!("{bytes_max} bytes of counters in one shard: open it with more table shards");
            return Err(Refusal::NoRoom { reason });
        }
        match inner.journal.reserve_room(bytes_max) {
            Ok(()) => break (shard, bytes_max),
            Err(Refusal::Behind { .. }) => {
                drop(shard);
                inner.journal.drain()?;
            }
            Err(_) => {
                drop(shard);
                inner.journal.prepare_now(bytes_max)?;
            }
        }
    };
    draft_shard(&mut shard, &mut draft, now);
    let record = draft.close();
    let used = record.as_ref().map_or(0, |record| record.len());
    let place = record.map(|record| {
        let position = inner.journal.reserve(record.len());
        shard.newest = position.plus(record.len() as u64);
        (position, record)
    });
    let end = shard.newest;
    drop(shard);
    inner.journal.return_room(bytes_max - used);
    if let Some((position, record)) = place {
        inner.journal.fill([(position, &draft.bytes()[record])]);
    }
    Ok(end)
}

/// So many counters are sealed by one record at most, under one hold of their shard's lock.
const PIECE_NAMES: usize = 512;

impl Shard {
    /// The most bytes that all cells of the shard, what is gone, and its floor can take.
    fn cells_bytes_max(&self) -> usize {
        let floor = if self.floor == Epoch::FIRST { 0 } else { ENTRY_BYTES_MAX };
        let gone: usize = self.unsealed().map(|name| ENTRY_BYTES_MAX + name.len()).sum();
        floor + gone + self.cells().map(|(name, _)| ENTRY_BYTES_MAX + name.len()).sum::<usize>()
    }

    /// The most bytes that a piece of its unsealed counters can take.
    fn unsealed_bytes_max(&self) -> usize {
        self.unsealed().take(PIECE_NAMES).map(|name| ENTRY_BYTES_MAX + name.len()).sum()
    }
}

fn written_again(name: &[u8], cell: Cell) -> Entry<'_> {
    let Cell { epoch, value, expires_at } = cell;
    Entry::Cell { name, epoch, value, expires_at, count: 0, sum: 0 }
}
