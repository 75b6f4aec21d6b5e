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

use crate::apply::table::{Look, Shard, Table};
use crate::journal::Damage;
use crate::journal::format::{Before, Count, Entry, Position};
use crate::journal::recover::{Record, stream_damage};
use crate::journal::segments::Segment;
use crate::options::LEDGER_DIR;
use crate::sharing::own::Owned;
use crate::sketches::own_number;
use crate::sync::MutexGuard;
use crate::tokens::{Applied, Last};
use crate::watermark::Watermark;

/// Groups of shards, at most: enough for all threads, and so few that where each pile ends stays near whoever reads.
const GROUPS_MAX: usize = 64;

/// A pile is restored when it has so many entries: all piles together take 4 MB then, with names of 20 bytes.
const PILE_ENTRIES_MAX: usize = 1024;

/// Or so many bytes: names and sketches may be long.
const PILE_BYTES_MAX: usize = 64 << 10;

/// An entry asks for the next piece of memory that it needs so many entries after the last.
const AHEAD: usize = 16;

/// Piles that wait for a thread; beyond it the reading does. Few, since with large sketches each may be as large as one of them.
const WAITING_MAX: usize = 4;

/// Threads that restore, beside the one that reads, where that is not said: as many as there are cores, since who reads waits for them, and no more than it has work for.
const THREADS_MAX: usize = 4;

/// A journal up to this long is restored by who reads it: before a thread had begun, it would be over.
const ALONE_BYTES_MAX: usize = 4 << 20;

/// Where entries are restored, and what tells of those that make no sense.
pub(super) struct Restored<'t> {
    table: &'t Table,
    ledger: &'t dyn Ledger,
    dir: &'t Path,
    segments: &'t [Segment],
    watermark: &'t Watermark,
    /// Two to this are the shards of a group.
    group_bits: u32,
}

/// All piles.
pub(super) struct Piles<'scope, 'env: 'scope> {
    scope: &'scope Scope<'scope, 'env>,
    restored: &'env Restored<'env>,
    piles: Vec<Pile>,
    /// Threads to begin with, once so many bytes more were piled up.
    threads_wanted: usize,
    alone_bytes: usize,
    threads: Vec<Thread<'scope>>,
    /// Piles that were restored, to be filled again.
    emptied: (Sender<Pile>, Receiver<Pile>),
    /// The first that makes no sense, of those restored here.
    bad: Option<Bad>,
}

/// One that restores.
struct Thread<'scope> {
    hand: SyncSender<(usize, Pile)>,
    thread: ScopedJoinHandle<'scope, Option<Bad>>,
}

/// Where an entry makes no sense, and what is wrong with it.
type Bad = (Position, Damage);

/// Entries of one group, oldest first.
#[derive(Default)]
struct Pile {
    entries: Vec<Piled>,
    /// Their bytes, one behind the other.
    bytes: Vec<u8>,
}

/// An entry, of which some bytes are beside it.
struct Piled {
    hash: u64,
    /// Where its record begins, and how long that is.
    record: Position,
    record_bytes: u32,
    what: What,
    bytes: u32,
}

impl Piled {
    /// Where its record ends.
    fn end(&self) -> Position {
        self.record.plus(u64::from(self.record_bytes))
    }
}

/// What the bytes of an entry are.
#[derive(Clone, Copy)]
enum What {
    /// The name of a counter, which has this value.
    Count(i64, Before),
    /// An entry as the journal has it, of a record of this time.
    Entry(Millis),
}

/// Has entries piled up by `read`, and restores all of them. `threads`: how many are to help; `None`: as many as are worth it.
pub(super) fn pile_up<T>(
    restored: &Restored<'_>,
    threads: Option<usize>,
    read: impl FnOnce(&mut Piles<'_, '_>) -> T,
) -> (T, Result<(), Damage>) {
    thread::scope(|scope| {
        let mut piles = Piles::new(scope, restored, threads);
        let read = read(&mut piles);
        (read, piles.finish())
    })
}

impl<'scope, 'env> Piles<'scope, 'env> {
    fn new(scope: &'scope Scope<'scope, 'env>, restored: &'env Restored<'env>, threads: Option<usize>) -> Self {
        let groups = restored.table.shard_count() >> restored.group_bits;
        let piles = (0..groups).map(|_| Pile::default()).collect();
        let (alone_bytes, threads_wanted) = match threads {
            Some(threads) => (0, threads),
            None => (ALONE_BYTES_MAX, worth_it()),
        };
        let (threads, emptied) = (Vec::new(), channel());
        Piles { scope, restored, piles, alone_bytes, threads_wanted, threads, emptied, bad: None }
    }

    /// Puts an entry of this record on the pile of its group.
    pub fn push(&mut self, hash: u64, record: &Record<'_>, entry: &[u8]) {
        let group = self.restored.group_of(hash);
        self.push_what(group, hash, record, What::Entry(record.body.time), entry);
    }

    /// The same, of an entry that nothing else needs to be known of.
    #[inline]
    pub fn push_count(&mut self, hash: u64, record: &Record<'_>, count: &Count<'_>) {
        let group = self.restored.group_of(hash);
        self.push_what(group, hash, record, What::Count(count.value, count.before), count.name);
    }

    /// Puts an entry that is about every shard on every pile.
    pub fn push_everywhere(&mut self, record: &Record<'_>, entry: &[u8]) {
        for group in 0..self.piles.len() {
            let hash = self.restored.table.first_hash(self.restored.shards(group).start);
            self.push_what(group, hash, record, What::Entry(record.body.time), entry);
        }
    }

    #[inline]
    fn push_what(&mut self, group: usize, hash: u64, record: &Record<'_>, what: What, bytes: &[u8]) {
        let pile = &mut self.piles[group];
        pile.bytes.extend_from_slice(bytes);
        // A record has a bound far below.
        let (record_bytes, bytes) = (record.bytes as u32, bytes.len() as u32);
        pile.entries.push(Piled { hash, record: record.position, record_bytes, what, bytes });
        if pile.entries.len() >= PILE_ENTRIES_MAX || pile.bytes.len() >= PILE_BYTES_MAX {
            self.take(group);
        }
    }

    /// Has a pile restored.
    fn take(&mut self, group: usize) {
        let empty = self.emptied.1.try_recv().unwrap_or_default();
        let mut pile = std::mem::replace(&mut self.piles[group], empty);
        self.alone_bytes = self.alone_bytes.saturating_sub(pile.bytes.len());
        if self.alone_bytes == 0 && self.threads.len() < self.threads_wanted {
            // Without them it takes longer, and is done as well.
            self.threads = (0..self.threads_wanted).map_while(|_| self.begin().ok()).collect();
            self.threads_wanted = self.threads.len();
        }
        match self.threads.len() {
            0 => {
                self.bad = first(self.bad.take(), self.restored.restore(group, &pile).err());
                pile.clear();
                self.piles[group] = pile;
            }
            // Who does not take it any more has panicked, which is found out at the end.
            threads => drop(self.threads[group % threads].hand.send((group, pile))),
        }
    }

    fn begin(&self) -> io::Result<Thread<'scope>> {
        let (hand, handed) = sync_channel::<(usize, Pile)>(WAITING_MAX);
        let (restored, emptied) = (self.restored, self.emptied.0.clone());
        let thread = thread::Builder::new().name("quipu-restore".to_owned()).spawn_scoped(self.scope, move || {
            let mut bad = None;
            for (group, mut pile) in handed {
                bad = first(bad, restored.restore(group, &pile).err());
                pile.clear();
                // Nobody wants it at the end.
                let _ = emptied.send(pile);
            }
            bad
        })?;
        Ok(Thread { hand, thread })
    }

    /// Has all that are left restored; an error if an entry made no sense.
    fn finish(mut self) -> Result<(), Damage> {
        for group in 0..self.piles.len() {
            if !self.piles[group].entries.is_empty() {
                self.take(group);
            }
        }
        for Thread { hand, thread } in self.threads {
            drop(hand);
            let bad = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            self.bad = first(self.bad, bad);
        }
        self.bad.map_or(Ok(()), |(_, damage)| Err(damage))
    }
}

/// So many threads are worth it here: on one core none.
fn worth_it() -> usize {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    if cores == 1 { 0 } else { cores.min(THREADS_MAX) }
}

/// Of two, the one that came first.
fn first(one: Option<Bad>, other: Option<Bad>) -> Option<Bad> {
    one.into_iter().chain(other).min_by_key(|(record, _)| *record)
}

impl Pile {
    fn clear(&mut self) {
        self.entries.clear();
        self.bytes.clear();
        self.bytes.shrink_to(PILE_BYTES_MAX);
    }
}

impl<'t> Restored<'t> {
    /// Into this table, over what the ledger has as of this watermark.
    pub fn new(
        table: &'t Table,
        ledger: &'t dyn Ledger,
        dir: &'t Path,
        segments: &'t [Segment],
        watermark: &'t Watermark,
    ) -> Restored<'t> {
        // Of both, shards and groups, there are a power of two.
        let group_bits = (table.shard_count() / GROUPS_MAX).max(1).trailing_zeros();
        Restored { table, ledger, dir, segments, watermark, group_bits }
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
    fn restore(&self, group: usize, pile: &Pile) -> Result<(), Bad> {
        let first = self.shards(group).start;
        let mut shards: Vec<_> = self.shards(group).map(|shard| self.table.lock(shard)).collect();
        let at = |piled: &Piled| self.table.shard_of(piled.hash) - first;
        let (entries, mut bytes) = (&pile.entries[..], &pile.bytes[..]);
        let mut guesses = [None; 2 * AHEAD];
        let entry_before =
            |step: usize, steps: usize| step.checked_sub(steps).and_then(|at| Some((at, entries.get(at)?)));
        // What an entry needs is asked for while those before it are restored: which slot it is, where that lies, and the slot, each after the other has come.
        for step in 0..entries.len() + 3 * AHEAD {
            if let Some((_, piled)) = entry_before(step, 0) {
                shards[at(piled)].prefetch_place(piled.hash);
            }
            if let Some((restoring, piled)) = entry_before(step, 3 * AHEAD) {
                let (said, rest) = bytes.split_at(piled.bytes as usize);
                bytes = rest;
                let shard = &mut *shards[at(piled)];
                let restored = match piled.what {
                    What::Count(value, before) => {
                        shard.newest = piled.end();
                        self.restore_count(shard, piled.hash, guesses[restoring % (2 * AHEAD)], (said, value), before)
                    }
                    What::Entry(time) => match Entry::decode(said).expect("it was read before it was piled up") {
                        Entry::Flush { epoch } => {
                            // Nothing else removes what was guessed.
                            guesses = [None; 2 * AHEAD];
                            self.flush(first, &mut shards, piled.end(), epoch);
                            Ok(())
                        }
                        entry => {
                            shard.newest = piled.end();
                            self.restore_entry(shard, piled, entry, time)
                        }
                    },
                };
                restored.map_err(|damage| (piled.record, damage))?;
            }
            if let Some((guessed, piled)) = entry_before(step, 2 * AHEAD)
                && let Some(guess) = guesses[guessed % (2 * AHEAD)]
            {
                shards[at(piled)].prefetch(guess);
            }
            if let Some((guessing, piled)) = entry_before(step, AHEAD) {
                guesses[guessing % (2 * AHEAD)] = shards[at(piled)].guess(piled.hash);
            }
        }
        shards.iter_mut().for_each(|shard| self.table.note(shard));
        Ok(())
    }

    /// Restores a counter of which nothing but its value is said.
    #[inline]
    fn restore_count(
        &self,
        shard: &mut Shard,
        hash: u64,
        guess: Option<u32>,
        (name, value): (&[u8], i64),
        before: Before,
    ) -> Result<(), Damage> {
        // Most often it was restored before, and nothing but its value is another one.
        if let Some(guess) = guess
            && shard.look_plain(guess, name).is_some_and(|(_, epoch)| epoch == Epoch::FIRST)
        {
            shard.set_value(guess, value);
            return Ok(());
        }
        let existed = self.existed(shard, hash, name, before)?;
        shard.restore(hash, name, Some(Cell { epoch: Epoch::FIRST, value, expires_at: None }), existed, None);
        Ok(())
    }

    /// Removes everything from shards of which the ledger does not know that it was.
    fn flush(&self, first: usize, shards: &mut [MutexGuard<'_, Shard>], end: Position, epoch: Epoch) {
        for (shard, mark) in shards.iter_mut().zip(&self.watermark.shards[first..]) {
            if mark.newest < end {
                shard.clear();
                shard.floor = shard.floor.max(epoch);
                shard.newest = end;
            }
        }
    }

    fn restore_entry(&self, shard: &mut Shard, piled: &Piled, entry: Entry<'_>, time: Millis) -> Result<(), Damage> {
        let damaged = |reason: &str| stream_damage(self.segments, piled.record, reason.to_owned());
        let hash = piled.hash;
        match entry {
            Entry::Cell { name, epoch, value, expires_at, before, own, .. } => {
                let own = owned(own).map_err(damaged)?;
                let existed = self.existed(shard, hash, name, before)?;
                shard.restore(hash, name, Some(Cell { epoch, value, expires_at }), existed, own);
            }
            Entry::Gone { name, epoch, before, own } => {
                let own = owned(own).map_err(damaged)?;
                let existed = self.existed(shard, hash, name, before)?;
                shard.restore(hash, name, None, existed, own);
                shard.floor = shard.floor.max(epoch);
            }
            Entry::Sketch { name, kind, version, whole, edits, pane } => {
                let (change, pane) = ((kind, version, whole), u32::try_from(pane).unwrap_or(u32::MAX));
                let restored = match own_number(pane) {
                    Some(number) => shard.restore_own_body(hash, (name, number), change, &edits),
                    None if pane <= PANES_MAX => shard.restore_body(hash, (name, pane), change, &edits),
                    None => Err("a pane of a sketch beyond all slots"),
                };
                restored.map_err(damaged)?;
            }
            Entry::Token { key, digest, number, outcome, claim } => match number {
                None => shard.book_mut().apply(key, Applied { at: time, digest, outcome, claim }),
                Some(n) => shard.book_mut().follow(key, Last { n, digest, outcome }),
            },
            Entry::Flush { .. }
            | Entry::Joined { .. }
            | Entry::Start { .. }
            | Entry::Namespace { .. }
            | Entry::Thinned { .. } => unreachable!("it is of no shard"),
        }
        Ok(())
    }

    /// Whether a counter existed before an entry of it.
    fn existed(&self, shard: &mut Shard, hash: u64, name: &[u8], before: Before) -> Result<bool, Damage> {
        match (shard.look(hash, name), before) {
            (Look::Cell(_), _) => Ok(true),
            (Look::Absent, _) => Ok(false),
            (Look::Unknown, Before::Present) => Ok(true),
            (Look::Unknown, Before::Absent) => Ok(false),
            (Look::Unknown, Before::Unsure) => {
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
fn owned(bytes: &[u8]) -> Result<Option<Box<Owned>>, &'static str> {
    match bytes {
        [] => Ok(None),
        bytes => Owned::decode(bytes).map(|owned| Some(Box::new(owned))).ok_or("own cells that make no sense"),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use quipu_testkit::{CrashDisk, FileLedger};

    use super::*;
    use crate::journal::format::{Body, RecordHeader, put_sketch, put_time};

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
        let restored = Restored::new(&table, &ledger, Path::new("data"), &[], &watermark);
        let mut names: Vec<String> = (0..20).map(|number| format!("name {number}")).collect();
        // Groups are gone through in their order: the last comes first.
        names.sort_by_key(|name| std::cmp::Reverse(table.hash(name.as_bytes())));
        for threads in [None, Some(0), Some(1), Some(3)] {
            let ((), found) = pile_up(&restored, threads, |piles| {
                for (number, name) in names.iter().enumerate() {
                    let bytes = lone_change(name.as_bytes());
                    let (position, body) = (Position(1_000 + 100 * number as u64), Body::decode(&bytes).unwrap());
                    let header = RecordHeader { check: 0, body_bytes: bytes.len(), previous: 0, synced: Position(0) };
                    let record = Record { position, bytes: 100, header, body };
                    let (_, entry) = body.take_entries().next().unwrap().unwrap();
                    piles.push(table.hash(name.as_bytes()), &record, entry);
                }
            });
            let damage = found.unwrap_err();
            assert_eq!(damage.position, Some(Position(1_000)), "{threads:?}: {}", damage.reason);
        }
    }
}
