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
use crate::journal::format::{ENTRY_BYTES_MAX, Entry, RECORD_OVERHEAD_BYTES_MAX};
use crate::journal::{Draft, JournalError};

/// A seal of all cells under way, one shard at a time.
pub struct Seal {
    next_shard: usize,
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
        Ok(Seal { next_shard: 0 })
    }

    /// Writes the next shard; true once all are written.
    pub(crate) fn step(&mut self, inner: &Inner) -> Result<bool, Refusal> {
        if self.next_shard < inner.table.shard_count() {
            seal_shard(inner, self.next_shard, Shard::cells_bytes_max, |shard, draft, now| {
                if shard.floor != Epoch::FIRST {
                    draft.push(now, &Entry::Floor { epoch: shard.floor });
                }
                for (name, cell) in shard.cells() {
                    draft.push(now, &written_again(name, cell));
                }
                shard.take_unsealed();
            })?;
            self.next_shard += 1;
        }
        Ok(self.next_shard == inner.table.shard_count())
    }

    /// Makes the seal durable and cuts the journal at its mark.
    pub(crate) fn finish(self, inner: &Inner) -> Result<(), JournalError> {
        debug_assert_eq!(self.next_shard, inner.table.shard_count());
        let end = inner.journal.reserved();
        // A turn may hold a place before ours that it has not filled yet; then there is nothing to cut this time.
        inner.journal.hand_over();
        inner.journal.sync();
        step!("sealed");
        match inner.journal.marked() {
            Some((position, previous)) if end <= inner.journal.synced() => inner.journal.cut(position, previous),
            _ => Ok(()),
        }
    }
}

/// Writes the counters of memory namespaces in a shard that changed since they were last sealed.
pub(crate) fn seal_unsealed(inner: &Inner, shard: usize) -> Result<(), Refusal> {
    seal_shard(inner, shard, Shard::unsealed_bytes_max, |shard, draft, now| {
        for (hash, name) in shard.take_unsealed() {
            let entry = match shard.get(hash, &name) {
                Some(cell) => written_again(&name, cell),
                None => Entry::Gone { name: &name, epoch: shard.floor },
            };
            draft.push(now, &entry);
        }
    })
}

/// Drafts a record under the lock of a shard and gives it its place. Room first: without it the shard is left as it was.
fn seal_shard(
    inner: &Inner,
    index: usize,
    bytes_max: impl FnOnce(&Shard) -> usize,
    draft_shard: impl FnOnce(&mut Shard, &mut Draft, Millis),
) -> Result<(), Refusal> {
    let now = inner.now();
    let mut draft = Draft::default();
    let mut shard = inner.table.lock(index);
    let bytes_max = match bytes_max(&shard) {
        0 => return Ok(()),
        entries => RECORD_OVERHEAD_BYTES_MAX + entries,
    };
    inner.journal.reserve_room(bytes_max)?;
    draft_shard(&mut shard, &mut draft, now);
    let record = draft.close();
    let used = record.as_ref().map_or(0, |record| record.len());
    let place = record.map(|record| {
        let position = inner.journal.reserve(record.len());
        shard.newest = position.plus(record.len() as u64);
        (position, record)
    });
    drop(shard);
    inner.journal.return_room(bytes_max - used);
    if let Some((position, record)) = place {
        inner.journal.fill([(position, &draft.bytes()[record])]);
    }
    Ok(())
}

impl Shard {
    /// The most bytes that all cells of the shard, and its floor, can take.
    fn cells_bytes_max(&self) -> usize {
        let floor = if self.floor == Epoch::FIRST { 0 } else { ENTRY_BYTES_MAX };
        floor + self.cells().map(|(name, _)| ENTRY_BYTES_MAX + name.len()).sum::<usize>()
    }

    /// The most bytes that its unsealed counters can take.
    fn unsealed_bytes_max(&self) -> usize {
        self.unsealed().iter().map(|(_, name)| ENTRY_BYTES_MAX + name.len()).sum()
    }
}

fn written_again(name: &[u8], cell: Cell) -> Entry<'_> {
    let Cell { epoch, value, expires_at } = cell;
    Entry::Cell { name, epoch, value, expires_at, count: 0, sum: 0 }
}
