//! Entries of the journal on their way into the table, in piles: one for each group of shards.
//!
//! In: entries that the ledger does not have, in the order of the journal. Out: shards as these entries say.
//!
//! Restored one by one, an entry takes as long as the memory of its counter takes to come, and nearly all of the time of a start is that. So entries wait until there are a thousand of a group, and are restored in one go: what
//! one needs is asked for while those before it are restored. Groups have nothing to do with one another, so if the journal is long, threads restore them while it is read on.
//!
//! Invariants:
//! - the entries of a shard are restored in the order in which they came: a group has one pile, and one thread that takes it;
//! - of several entries that make no sense, the one that came first is told of.

use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::{self, Scope, ScopedJoinHandle};

use quipu_model::{Cell, Epoch, Ledger, Millis};
use quipu_sketch::window::PANES_MAX;

use crate::apply::table::{Residency, Shard, Table};
use crate::journal::Damage;
use crate::journal::format::{Entry, PlainCell, Position, PriorExistence};
use crate::journal::reader::{Record, damage_at};
use crate::journal::segments::Segment;
use crate::options::LEDGER_DIR;
use crate::sharing::own::OwnCells;
use crate::sketches::own_body_number;
use crate::sync::MutexGuard;
use crate::tokens::{AppliedToken, LastSequence};
use crate::watermark::Watermark;

/// Groups of shards, at most: enough for all threads, and so few that where each pile ends stays near whoever reads.
const GROUPS_MAX: usize = 64;

/// A pile is restored when it has so many entries: all piles together take 4 MB then, with names of 20 bytes.
const BATCH_ENTRIES_MAX: usize = 1024;

/// Or so many bytes: names and sketches may be long.
const BATCH_BYTES_MAX: usize = 64 << 10;

/// An entry asks for the next piece of memory that it needs so many entries after the last.
const PREFETCH_STEPS: usize = 16;

/// Piles that wait for a thread; beyond it the reading does. Few, since with large sketches each may be as large as one of them.
const WAITING_BATCHES_MAX: usize = 4;

/// Threads that restore, beside the one that reads, where that is not said: as many as there are cores, since who reads waits for them, and no more than it has work for.
const THREADS_MAX: usize = 4;

/// A journal up to this long is restored by who reads it: before a thread had begun, it would be over.
const INLINE_BYTES_MAX: usize = 4 << 20;

/// Where entries are restored, and what tells of those that make no sense.
pub(super) struct ReplayTarget<'t> {
    table: &'t Table,
    ledger: &'t dyn Ledger,
    dir: &'t Path,
    segments: &'t [Segment],
    watermark: &'t Watermark,
    /// Two to this are the shards of a group.
    group_bits: u32,
}

/// All piles.
pub(super) struct ReplayBatches<'scope, 'env: 'scope> {
    scope: &'scope Scope<'scope, 'env>,
    target: &'env ReplayTarget<'env>,
    batches: Vec<ReplayBatch>,
    /// Threads to begin with, once so many bytes more were piled up.
    threads_wanted: usize,
    inline_bytes: usize,
    threads: Vec<ReplayThread<'scope>>,
    /// Piles that were restored, to be filled again.
    recycled: (Sender<ReplayBatch>, Receiver<ReplayBatch>),
    /// The first that makes no sense, of those restored here.
    first_damage: Option<EntryDamage>,
}

/// One that restores.
struct ReplayThread<'scope> {
    sender: SyncSender<(usize, ReplayBatch)>,
    thread: ScopedJoinHandle<'scope, Option<EntryDamage>>,
}

/// Where an entry makes no sense, and what is wrong with it.
type EntryDamage = (Position, Damage);

/// Entries of one group, oldest first.
#[derive(Default)]
struct ReplayBatch {
    items: Vec<ReplayItem>,
    /// Their bytes, one behind the other.
    bytes: Vec<u8>,
}

/// An entry, of which some bytes are beside it.
struct ReplayItem {
    hash: u64,
    /// Where its record begins, and how long that is.
    record: Position,
    record_bytes: u32,
    payload: ReplayPayload,
    bytes: u32,
}

impl ReplayItem {
    /// Where its record ends.
    fn end(&self) -> Position {
        self.record.plus(u64::from(self.record_bytes))
    }
}

/// What the bytes of an entry are.
#[derive(Clone, Copy)]
enum ReplayPayload {
    /// The name of a counter, which has this value.
    PlainCell(i64, PriorExistence),
    /// An entry as the journal has it, of a record of this time.
    Entry(Millis),
}

/// Has entries piled up by `read`, and restores all of them. `threads`: how many are to help; `None`: as many as are worth it.
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

    /// Puts an entry of this record on the pile of its group.
    pub fn push(&mut self, hash: u64, record: &Record<'_>, entry: &[u8]) {
        let group = self.target.group_of(hash);
        self.push_payload(group, hash, record, ReplayPayload::Entry(record.body.time), entry);
    }

    /// The same, of an entry that nothing else needs to be known of.
    #[inline]
    pub fn push_plain_cell(&mut self, hash: u64, record: &Record<'_>, count: &PlainCell<'_>) {
        let group = self.target.group_of(hash);
        self.push_payload(group, hash, record, ReplayPayload::PlainCell(count.value, count.before), count.name);
    }

    /// Puts an entry that is about every shard on every pile.
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
        // A record has a bound far below.
        let (record_bytes, bytes) = (record.bytes as u32, bytes.len() as u32);
        batch.items.push(ReplayItem { hash, record: record.position, record_bytes, payload, bytes });
        if batch.items.len() >= BATCH_ENTRIES_MAX || batch.bytes.len() >= BATCH_BYTES_MAX {
            self.submit_batch(group);
        }
    }

    /// Has a pile restored.
    fn submit_batch(&mut self, group: usize) {
        let empty = self.recycled.1.try_recv().unwrap_or_default();
        let mut batch = std::mem::replace(&mut self.batches[group], empty);
        self.inline_bytes = self.inline_bytes.saturating_sub(batch.bytes.len());
        if self.inline_bytes == 0 && self.threads.len() < self.threads_wanted {
            // Without them it takes longer, and is done as well.
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
            // Who does not take it any more has panicked, which is found out at the end.
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
                // Nobody wants it at the end.
                let _ = recycled.send(batch);
            }
            bad
        })?;
        Ok(ReplayThread { sender, thread })
    }

    /// Has all that are left restored; an error if an entry made no sense.
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

/// So many threads are worth it here: on one core none.
fn default_thread_count() -> usize {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    if cores == 1 { 0 } else { cores.min(THREADS_MAX) }
}

/// Of two, the one that came first.
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
    /// Into this table, over what the ledger has as of this watermark.
    pub fn new(
        table: &'t Table,
        ledger: &'t dyn Ledger,
        dir: &'t Path,
        segments: &'t [Segment],
        watermark: &'t Watermark,
    ) -> ReplayTarget<'t> {
        // Of both, shards and groups, there are a power of two.
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
        // What an entry needs is asked for while those before it are restored: which slot it is, where that lies, and the slot, each after the other has come.
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
                                // Nothing else removes what was guessed.
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

    /// Restores a counter of which nothing but its value is said.
    #[inline]
    fn restore_plain_cell(
        &self,
        shard: &mut Shard,
        hash: u64,
        guess: Option<u32>,
        (name, value): (&[u8], i64),
        before: PriorExistence,
    ) -> Result<(), Damage> {
        // Most often it was restored before, and nothing but its value is another one.
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

    /// Removes everything from shards of which the ledger does not know that it was.
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

    /// Whether a counter existed before an entry of it.
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

/// What this node says of a counter on a shared store, from an entry.
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

    /// The body of a record with a change of a sketch that has no cell.
    fn lone_change(name: &[u8]) -> Vec<u8> {
        let mut body = Vec::new();
        put_time(&mut body, Millis(1));
        put_sketch(&mut body, name, (1, 0), 1, true);
        // Without an edit.
        body.push(0);
        body
    }

    #[test]
    fn of_several_entries_that_make_no_sense_the_first_is_told_of_whoever_restores_them() {
        let ledger = FileLedger::open(Arc::new(CrashDisk::new()), Path::new("data")).unwrap();
        let (table, watermark) = (Table::new(8, 5), Watermark::new(1, 8, 5));
        let restored = ReplayTarget::new(&table, &ledger, Path::new("data"), &[], &watermark);
        let mut names: Vec<String> = (0..20).map(|number| format!("name {number}")).collect();
        // Groups are gone through in their order: the last comes first.
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
