//! Batches journal entries by group of shards and restores each batch into the table.
//!
//! In: entries that the ledger does not have, in journal order. Out: restored shards.
//!
//! Restored one by one, an entry costs one cache miss for its counter's memory. These misses would
//! take nearly all the time of a start. So entries wait until a group has about a thousand, and are
//! restored at once. The memory of later entries is prefetched while earlier ones are restored.
//! Groups are independent, so for a long journal several threads restore them while the journal is
//! read on.
//!
//! Invariants:
//! - the entries of a shard are restored in their journal order: a group has one open batch, and
//!   one thread that takes its batches;
//! - of several invalid entries, the first one is reported.

use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::{self, Scope, ScopedJoinHandle};

use quipu_model::{Cell, Epoch, Ledger, Millis};
use quipu_sketch::window::PANES_MAX;

use crate::base::options::LEDGER_DIR;
use crate::base::sync::MutexGuard;
use crate::bodies::own_cells::OwnCells;
use crate::bodies::stored_page::own_body_number;
use crate::core::watermark::Watermark;
use crate::journal::Damage;
use crate::journal::format::{Entry, PlainCell, Position, PriorExistence};
use crate::journal::reader::{Record, damage_at};
use crate::journal::segments::Segment;
use crate::table::{Residency, Shard, Table};
use crate::tokens::{AppliedToken, LastSequence};

/// Most groups of shards: enough for all threads, and few enough that the batch ends stay in the
/// reader's cache.
const GROUPS_MAX: usize = 64;

/// A batch is restored at this many entries: all batches together take 4 MB then, with names of 20
/// bytes.
const BATCH_ENTRIES_MAX: usize = 1024;

/// A batch is also restored at this many bytes: names and sketches may be long.
const BATCH_BYTES_MAX: usize = 64 << 10;

/// Number of entries between the prefetch steps of an entry.
const PREFETCH_STEPS: usize = 16;

/// Most batches that wait for a thread; beyond it the reader waits. Small, since with large
/// sketches each batch may be as large as one of them.
const WAITING_BATCHES_MAX: usize = 4;

/// Default number of restoring threads besides the reader: at most the number of cores, since the
/// reader waits for them. Beyond this bound there is no work for them.
const THREADS_MAX: usize = 4;

/// Longest journal that its reader restores itself: it would be done before a thread had started.
const INLINE_BYTES_MAX: usize = 4 << 20;

/// Target of the restore, and the sources for damage reports.
pub(super) struct ReplayTarget<'t> {
    table: &'t Table,
    ledger: &'t dyn Ledger,
    dir: &'t Path,
    segments: &'t [Segment],
    watermark: &'t Watermark,
    /// A group has 2^`group_bits` shards.
    group_bits: u32,
}

/// The batches of all groups.
pub(super) struct ReplayBatches<'scope, 'env: 'scope> {
    scope: &'scope Scope<'scope, 'env>,
    target: &'env ReplayTarget<'env>,
    batches: Vec<ReplayBatch>,
    /// Threads to start, once `inline_bytes` more bytes were batched.
    threads_wanted: usize,
    inline_bytes: usize,
    threads: Vec<ReplayThread<'scope>>,
    /// Restored batches, for reuse.
    recycled: (Sender<ReplayBatch>, Receiver<ReplayBatch>),
    /// The first invalid entry among those restored on this thread.
    first_damage: Option<EntryDamage>,
}

/// A restoring thread.
struct ReplayThread<'scope> {
    sender: SyncSender<(usize, ReplayBatch)>,
    thread: ScopedJoinHandle<'scope, Option<EntryDamage>>,
}

/// Position of an invalid entry's record, and the damage.
type EntryDamage = (Position, Damage);

/// Entries of one group, oldest first.
#[derive(Default)]
struct ReplayBatch {
    items: Vec<ReplayItem>,
    /// Their bytes, one behind the other.
    bytes: Vec<u8>,
}

/// An entry; its bytes are in the batch.
struct ReplayItem {
    hash: u64,
    /// Position and length of its record.
    record: Position,
    record_bytes: u32,
    payload: ReplayPayload,
    bytes: u32,
}

impl ReplayItem {
    /// Position of the end of its record.
    fn end(&self) -> Position {
        self.record.plus(u64::from(self.record_bytes))
    }
}

/// Form of an entry's bytes.
#[derive(Clone, Copy)]
enum ReplayPayload {
    /// The name of a counter with this value.
    PlainCell(i64, PriorExistence),
    /// An entry in journal encoding, from a record of this time.
    Entry(Millis),
}

/// Restores all entries that `read` pushes. `threads`: number of restoring threads; `None`: a
/// sensible number for this machine.
pub(super) fn replay_parallel<T>(
    restored: &ReplayTarget<'_>,
    threads: Option<usize>,
    read: impl FnOnce(&mut ReplayBatches<'_, '_>) -> T,
) -> (T, Result<(), Damage>) {
    thread::scope(|scope| {
        let mut batches = ReplayBatches::new(scope, restored, threads);
        let read = read(&mut batches);
        (read, batches.finish())
    })
}

impl<'scope, 'env> ReplayBatches<'scope, 'env> {
    fn new(scope: &'scope Scope<'scope, 'env>, restored: &'env ReplayTarget<'env>, threads: Option<usize>) -> Self {
        let groups = restored.table.shard_count() >> restored.group_bits;
        let batches = (0..groups).map(|_| ReplayBatch::default()).collect();
        let (inline_bytes, threads_wanted) = match threads {
            Some(threads) => (0, threads),
            None => (INLINE_BYTES_MAX, default_thread_count()),
        };
        let (threads, recycled) = (Vec::new(), channel());
        ReplayBatches {
            scope,
            target: restored,
            batches,
            inline_bytes,
            threads_wanted,
            threads,
            recycled,
            first_damage: None,
        }
    }

    /// Adds an entry of this record to the batch of its group.
    pub fn push(&mut self, hash: u64, record: &Record<'_>, entry: &[u8]) {
        let group = self.target.group_of(hash);
        self.push_payload(group, hash, record, ReplayPayload::Entry(record.body.time), entry);
    }

    /// Adds a plain cell, which needs no further data.
    #[inline]
    pub fn push_plain_cell(&mut self, hash: u64, record: &Record<'_>, count: &PlainCell<'_>) {
        let group = self.target.group_of(hash);
        self.push_payload(group, hash, record, ReplayPayload::PlainCell(count.value, count.before), count.name);
    }

    /// Adds an entry that concerns every shard to every batch.
    pub fn push_everywhere(&mut self, record: &Record<'_>, entry: &[u8]) {
        for group in 0..self.batches.len() {
            let hash = self.target.table.first_hash(self.target.shards(group).start);
            self.push_payload(group, hash, record, ReplayPayload::Entry(record.body.time), entry);
        }
    }

    #[inline]
    fn push_payload(&mut self, group: usize, hash: u64, record: &Record<'_>, payload: ReplayPayload, bytes: &[u8]) {
        let batch = &mut self.batches[group];
        batch.bytes.extend_from_slice(bytes);
        // A record has a bound far below `u32::MAX`.
        let (record_bytes, bytes) = (record.bytes as u32, bytes.len() as u32);
        batch.items.push(ReplayItem { hash, record: record.position, record_bytes, payload, bytes });
        if batch.items.len() >= BATCH_ENTRIES_MAX || batch.bytes.len() >= BATCH_BYTES_MAX {
            self.submit_batch(group);
        }
    }

    /// Restores a batch, or submits it to a thread.
    fn submit_batch(&mut self, group: usize) {
        let empty = self.recycled.1.try_recv().unwrap_or_default();
        let mut batch = std::mem::replace(&mut self.batches[group], empty);
        self.inline_bytes = self.inline_bytes.saturating_sub(batch.bytes.len());
        if self.inline_bytes == 0 && self.threads.len() < self.threads_wanted {
            // Without threads the restore takes longer, but completes.
            self.threads = (0..self.threads_wanted).map_while(|_| self.spawn_thread().ok()).collect();
            self.threads_wanted = self.threads.len();
        }
        match self.threads.len() {
            0 => {
                self.first_damage =
                    earlier_damage(self.first_damage.take(), self.target.restore_batch(group, &batch).err());
                batch.clear();
                self.batches[group] = batch;
            }
            // A send fails only if the thread has panicked, which `finish` finds out.
            threads => drop(self.threads[group % threads].sender.send((group, batch))),
        }
    }

    fn spawn_thread(&self) -> io::Result<ReplayThread<'scope>> {
        let (sender, receiver) = sync_channel::<(usize, ReplayBatch)>(WAITING_BATCHES_MAX);
        let (restored, recycled) = (self.target, self.recycled.0.clone());
        let thread = thread::Builder::new().name("quipu-restore".to_owned()).spawn_scoped(self.scope, move || {
            let mut bad = None;
            for (group, mut batch) in receiver {
                bad = earlier_damage(bad, restored.restore_batch(group, &batch).err());
                batch.clear();
                // At the end nothing receives it.
                let _ = recycled.send(batch);
            }
            bad
        })?;
        Ok(ReplayThread { sender, thread })
    }

    /// Restores all remaining batches; an error if an entry was invalid.
    fn finish(mut self) -> Result<(), Damage> {
        for group in 0..self.batches.len() {
            if !self.batches[group].items.is_empty() {
                self.submit_batch(group);
            }
        }
        for ReplayThread { sender, thread } in self.threads {
            drop(sender);
            let bad = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            self.first_damage = earlier_damage(self.first_damage, bad);
        }
        self.first_damage.map_or(Ok(()), |(_, damage)| Err(damage))
    }
}

/// Default number of restoring threads: none on one core.
fn default_thread_count() -> usize {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    if cores == 1 { 0 } else { cores.min(THREADS_MAX) }
}

/// Returns the earlier of two damages.
fn earlier_damage(one: Option<EntryDamage>, other: Option<EntryDamage>) -> Option<EntryDamage> {
    one.into_iter().chain(other).min_by_key(|(record, _)| *record)
}

impl ReplayBatch {
    fn clear(&mut self) {
        self.items.clear();
        self.bytes.clear();
        self.bytes.shrink_to(BATCH_BYTES_MAX);
    }
}

impl<'t> ReplayTarget<'t> {
    /// Restores into this table, over the ledger as of this watermark.
    pub fn new(
        table: &'t Table,
        ledger: &'t dyn Ledger,
        dir: &'t Path,
        segments: &'t [Segment],
        watermark: &'t Watermark,
    ) -> ReplayTarget<'t> {
        // Shards and groups are powers of two in number.
        let group_bits = (table.shard_count() / GROUPS_MAX).max(1).trailing_zeros();
        ReplayTarget { table, ledger, dir, segments, watermark, group_bits }
    }

    /// The group of a hash: its shards are neighbours.
    #[inline]
    fn group_of(&self, hash: u64) -> usize {
        self.table.shard_of(hash) >> self.group_bits
    }

    /// The shards of a group.
    fn shards(&self, group: usize) -> Range<usize> {
        group << self.group_bits..(group + 1) << self.group_bits
    }

    /// Restores the entries of a group.
    fn restore_batch(&self, group: usize, batch: &ReplayBatch) -> Result<(), EntryDamage> {
        let first = self.shards(group).start;
        let mut shards: Vec<_> = self.shards(group).map(|shard| self.table.lock(shard)).collect();
        let at = |item: &ReplayItem| self.table.shard_of(item.hash) - first;
        let (entries, mut bytes) = (&batch.items[..], &batch.bytes[..]);
        let mut guesses = [None; 2 * PREFETCH_STEPS];
        let entry_before =
            |step: usize, steps: usize| step.checked_sub(steps).and_then(|at| Some((at, entries.get(at)?)));
        // The loop prefetches the memory of later entries while it restores earlier ones. An entry
        // needs its bucket, then its slot's address, then the slot; each step waits for the one
        // before.
        for step in 0..entries.len() + 3 * PREFETCH_STEPS {
            if let Some((_, item)) = entry_before(step, 0) {
                shards[at(item)].prefetch_bucket(item.hash);
            }
            if let Some((restoring, item)) = entry_before(step, 3 * PREFETCH_STEPS) {
                let (entry_bytes, rest) = bytes.split_at(item.bytes as usize);
                bytes = rest;
                let shard = &mut *shards[at(item)];
                let restored = match item.payload {
                    ReplayPayload::PlainCell(value, before) => {
                        shard.newest = item.end();
                        self.restore_plain_cell(
                            shard,
                            item.hash,
                            guesses[restoring % (2 * PREFETCH_STEPS)],
                            (entry_bytes, value),
                            before,
                        )
                    }
                    ReplayPayload::Entry(time) => {
                        match Entry::decode(entry_bytes).expect("it was read before it was piled up") {
                            Entry::Flush { epoch } => {
                                // Nothing else removes a guessed slot.
                                guesses = [None; 2 * PREFETCH_STEPS];
                                self.restore_flush(first, &mut shards, item.end(), epoch);
                                Ok(())
                            }
                            entry => {
                                shard.newest = item.end();
                                self.restore_entry(shard, item, entry, time)
                            }
                        }
                    }
                };
                restored.map_err(|damage| (item.record, damage))?;
            }
            if let Some((guessed, item)) = entry_before(step, 2 * PREFETCH_STEPS)
                && let Some(guess) = guesses[guessed % (2 * PREFETCH_STEPS)]
            {
                shards[at(item)].prefetch_slot(guess);
            }
            if let Some((guessing, item)) = entry_before(step, PREFETCH_STEPS) {
                guesses[guessing % (2 * PREFETCH_STEPS)] = shards[at(item)].likely_slot(item.hash);
            }
        }
        shards.iter_mut().for_each(|shard| self.table.update_totals(shard));
        Ok(())
    }

    /// Restores a plain cell: only the value of its counter is set.
    #[inline]
    fn restore_plain_cell(
        &self,
        shard: &mut Shard,
        hash: u64,
        guess: Option<u32>,
        (name, value): (&[u8], i64),
        before: PriorExistence,
    ) -> Result<(), Damage> {
        // Usually the counter was restored before, and only its value differs.
        if let Some(guess) = guess
            && shard.find_plain(guess, name).is_some_and(|(_, epoch)| epoch == Epoch::FIRST)
        {
            shard.set_value(guess, value);
            return Ok(());
        }
        let existed = self.existed_before(shard, hash, name, before)?;
        shard.restore(hash, name, Some(Cell { epoch: Epoch::FIRST, value, expires_at: None }), existed, None);
        Ok(())
    }

    /// Clears the shards for which the ledger lacks this flush.
    fn restore_flush(&self, first: usize, shards: &mut [MutexGuard<'_, Shard>], end: Position, epoch: Epoch) {
        for (shard, mark) in shards.iter_mut().zip(&self.watermark.shards[first..]) {
            if mark.newest < end {
                shard.clear();
                shard.floor = shard.floor.max(epoch);
                shard.newest = end;
            }
        }
    }

    fn restore_entry(
        &self,
        shard: &mut Shard,
        item: &ReplayItem,
        entry: Entry<'_>,
        time: Millis,
    ) -> Result<(), Damage> {
        let damaged = |reason: &str| damage_at(self.segments, item.record, reason.to_owned());
        let hash = item.hash;
        match entry {
            Entry::Cell { name, epoch, value, expires_at, before, own, .. } => {
                let own = decode_own_cells(own).map_err(damaged)?;
                let existed = self.existed_before(shard, hash, name, before)?;
                shard.restore(hash, name, Some(Cell { epoch, value, expires_at }), existed, own);
            }
            Entry::Gone { name, epoch, before, own } => {
                let own = decode_own_cells(own).map_err(damaged)?;
                let existed = self.existed_before(shard, hash, name, before)?;
                shard.restore(hash, name, None, existed, own);
                shard.floor = shard.floor.max(epoch);
            }
            Entry::Sketch { name, kind, version, whole, edits, pane } => {
                let (change, pane) = ((kind, version, whole), u32::try_from(pane).unwrap_or(u32::MAX));
                let restored = match own_body_number(pane) {
                    Some(number) => shard.restore_own_body(hash, (name, number), change, &edits),
                    None if pane <= PANES_MAX => shard.restore_body(hash, (name, pane), change, &edits),
                    None => Err("a pane of a sketch beyond all slots"),
                };
                restored.map_err(damaged)?;
            }
            Entry::Token { key, digest, number, outcome, claim } => match number {
                None => shard.tokens_mut().insert_token(key, AppliedToken { at: time, digest, outcome, claim }),
                Some(n) => shard.tokens_mut().advance_producer(key, LastSequence { number: n, digest, outcome }),
            },
            Entry::Flush { .. }
            | Entry::Joined { .. }
            | Entry::Start { .. }
            | Entry::Namespace { .. }
            | Entry::Sampling { .. } => unreachable!("it is of no shard"),
        }
        Ok(())
    }

    /// Returns true if a counter existed before this entry.
    fn existed_before(
        &self,
        shard: &mut Shard,
        hash: u64,
        name: &[u8],
        before: PriorExistence,
    ) -> Result<bool, Damage> {
        match (shard.find(hash, name), before) {
            (Residency::Present(_), _) => Ok(true),
            (Residency::Absent, _) => Ok(false),
            (Residency::NotResident, PriorExistence::Present) => Ok(true),
            (Residency::NotResident, PriorExistence::Absent) => Ok(false),
            (Residency::NotResident, PriorExistence::Unknown) => {
                let found = self.ledger.get(hash, name);
                found.map(|cell| cell.is_some()).map_err(|error| Damage {
                    file: self.dir.join(LEDGER_DIR),
                    offset: 0,
                    position: None,
                    reason: error.to_string(),
                })
            }
        }
    }
}

/// Decodes this node's own cells of a counter on the shared store, from an entry.
fn decode_own_cells(bytes: &[u8]) -> Result<Option<Box<OwnCells>>, &'static str> {
    match bytes {
        [] => Ok(None),
        bytes => OwnCells::decode(bytes).map(|owned| Some(Box::new(owned))).ok_or("own cells that make no sense"),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use quipu_testkit::{CrashDisk, FileLedger};

    use super::*;
    use crate::journal::format::{RecordBody, RecordHeader, put_sketch, put_time};

    /// Body of a record with a sketch change that has no cell.
    fn lone_change(name: &[u8]) -> Vec<u8> {
        let mut body = Vec::new();
        put_time(&mut body, Millis(1));
        put_sketch(&mut body, name, (1, 0), 1, true);
        // No edits.
        body.push(0);
        body
    }

    #[test]
    fn of_several_damaged_entries_the_first_is_reported_by_any_thread() {
        let ledger = FileLedger::open(Arc::new(CrashDisk::new()), Path::new("data")).unwrap();
        let (table, watermark) = (Table::new(8, 5), Watermark::new(1, 8, 5));
        let restored = ReplayTarget::new(&table, &ledger, Path::new("data"), &[], &watermark);
        let mut names: Vec<String> = (0..20).map(|number| format!("name {number}")).collect();
        // Groups are processed in order: the last comes first.
        names.sort_by_key(|name| std::cmp::Reverse(table.hash(name.as_bytes())));
        for threads in [None, Some(0), Some(1), Some(3)] {
            let ((), found) = replay_parallel(&restored, threads, |batches| {
                for (number, name) in names.iter().enumerate() {
                    let bytes = lone_change(name.as_bytes());
                    let (position, body) = (Position(1_000 + 100 * number as u64), RecordBody::decode(&bytes).unwrap());
                    let header = RecordHeader { check: 0, body_bytes: bytes.len(), previous: 0, synced: Position(0) };
                    let record = Record { position, bytes: 100, header, body };
                    let (_, entry) = body.entries_with_bytes().next().unwrap().unwrap();
                    batches.push(table.hash(name.as_bytes()), &record, entry);
                }
            });
            let damage = found.unwrap_err();
            assert_eq!(damage.position, Some(Position(1_000)), "{threads:?}: {}", damage.reason);
        }
    }
}
