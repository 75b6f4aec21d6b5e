//! The halves of a commit and the work of the background, one step at a time.
//!
//! The driver calls these from its threads; a simulator calls them in any order it likes, between any two steps of its workers, and
//! so runs the shipped code.

use std::path::Path;

use quipu_model::{LedgerError, Name};

use crate::backup::{Backup, BackupError};
use crate::engine::Inner;
use crate::failpoint::step;
use crate::journal::format::Position;
use crate::journal::{JournalError, Wait};
use crate::load::{Load, LoadFuture, sweep};
use crate::seal::{Seal, SealError, SealStep};
use crate::sync::Ordering;
use crate::turn::{LaneVisit, Turn};

/// So many counters are expired under one lock.
const EXPIRE_RUN: usize = 64;

/// A journal this short is not worth a seal, however little there is left of the disk: the reserve is enough for it.
const SEAL_BYTES_MIN: u64 = 4 << 20;

/// Steps of an engine.
pub struct Steps<'e> {
    inner: &'e Inner,
}

impl<'e> Steps<'e> {
    pub(crate) fn new(inner: &'e Inner) -> Steps<'e> {
        Steps { inner }
    }

    /// First half of a commit: hands all that is filled to the operating system.
    pub fn write_filled(&self) {
        self.inner.journal.write_filled();
    }

    /// Second half of a commit: makes what was handed over durable.
    pub fn sync(&self) {
        self.inner.journal.sync();
    }

    /// Whether replies that wait for this may leave.
    pub fn has_reached(&self, wait: Wait) -> bool {
        self.inner.journal.failure().is_none() && self.inner.journal.has_reached(wait)
    }

    /// Joins the lanes of all counters that are added to without a value coming back; closes those that nobody has added to since this was last called.
    pub fn join_lanes(&self) {
        self.inner.visit_all_lanes(LaneVisit::CloseIdle);
    }

    /// Prepares segments if room is running out, and keeps the reserve.
    pub fn prepare_segments(&self) -> Result<(), JournalError> {
        self.inner.journal.prepare_segments()
    }

    /// Looks whether the journal keeps up; where namespaces say so, they are sampled if it does not.
    pub fn adjust_overload_rate(&self) {
        self.inner.adjust_overload_rate();
    }

    /// Lets the control file know how far the journal is synced.
    pub fn record_synced(&self) -> Result<(), JournalError> {
        self.inner.journal.record_synced(false)
    }

    /// How many shards the table has: some steps go shard by shard.
    pub fn shard_count(&self) -> usize {
        self.inner.table.shard_count()
    }

    /// Where the next record will stand.
    pub fn reserved(&self) -> Position {
        self.inner.journal.reserved()
    }

    /// Removes counters of a shard whose time has come, a bounded number of them; returns how many. Without room none is.
    pub fn expire(&self, shard: usize) -> usize {
        let now = self.inner.now();
        let overdue: Vec<_> = self.inner.table.lock(shard).overdue(now, EXPIRE_RUN).collect();
        if overdue.is_empty() {
            return 0;
        }
        let mut turn = Turn::new(self.inner);
        for name in &overdue {
            if !turn.expire(Name::new(name).expect("names in the table have been checked")) {
                break;
            }
        }
        drop(turn);
        let left = self.inner.table.lock(shard).overdue(now, EXPIRE_RUN).filter(|name| overdue.contains(name)).count();
        overdue.len() - left
    }

    /// Whether the journal has grown enough to be sealed and cut: by itself, or beside what is left of the disk. The cells of a seal take less than the
    /// records they come from, so as long as there is as much space as journal, they fit. Not while a backup holds the journal: there would be no cut.
    pub fn needs_seal(&self) -> bool {
        let journal = &self.inner.journal;
        let bytes = journal.size().0;
        let is_long = bytes > self.inner.options.journal_bytes_max;
        (is_long || (bytes > SEAL_BYTES_MIN && journal.free_bytes() < bytes)) && !journal.is_cut_held()
    }

    /// Begins to seal what has changed.
    pub fn begin_seal(&self) -> Seal {
        Seal::begin(self.inner)
    }

    /// Seals a little more. After an error the seal is over.
    pub fn step_seal(&self, seal: &mut Seal) -> Result<SealStep, SealError> {
        seal.step(self.inner)
    }

    /// Cuts the journal.
    pub fn finish_seal(&self, seal: Seal) -> Result<(), JournalError> {
        seal.finish(self.inner)
    }

    /// Seals everything, in one go.
    pub fn seal_all(&self) -> Result<(), SealError> {
        self.inner.seal_all()
    }

    /// Begins a backup.
    pub fn begin_backup(&self, dir: &Path) -> Result<Backup<'e>, BackupError> {
        Backup::begin(self.inner, dir)
    }

    /// Asks for a load and leaves it to a later step.
    pub fn enqueue_load(&self, load: Load) -> LoadFuture {
        self.inner.loads.enqueue(load, self.inner.clock.elapsed())
    }

    /// Loads what commands are waiting for; returns how many were served, and how many wait for memory.
    pub fn run_loads(&self) -> (usize, usize) {
        self.inner.loads.run_loads(self.inner)
    }

    /// Walks over all names for those who asked; returns how many did.
    pub fn run_walks(&self) -> usize {
        self.inner.loads.run_walks(self.inner)
    }

    /// Brings back counters of a shard that have expired at rest, for `expire` to remove; whether there were any.
    pub fn sweep(&self, shard: usize) -> Result<bool, LedgerError> {
        sweep(self.inner, shard)
    }

    /// Lets counters of a shard leave memory that the ledger knows and nobody has looked at since last time.
    pub fn evict(&self, shard: usize) -> usize {
        let inner = self.inner;
        let evicted = inner.table.with_shard(shard, |shard| {
            let evicted = shard.evict(inner.batch_sealed());
            if shard.unloaded {
                // Under the lock: a flush, which holds all of them, says the opposite.
                inner.unloaded.store(true, Ordering::Release);
            }
            evicted
        });
        if evicted > 0 {
            step!("evicted");
            inner.evicted.fetch_add(evicted as u64, Ordering::Relaxed);
        }
        evicted
    }

    /// Forgets names of a shard that are known not to exist.
    pub fn purge(&self, shard: usize) {
        let inner = self.inner;
        inner.table.with_shard(shard, |shard| {
            if shard.needs_purge() {
                shard.purge(inner.batch_sealed());
            }
        });
    }

    /// One bounded piece of compaction; whether there is more to do.
    pub fn compact(&self) -> Result<bool, LedgerError> {
        let inner = self.inner;
        let began = inner.clock.elapsed();
        inner.compaction.running.store(true, Ordering::Relaxed);
        step!("compacting");
        let compacted = inner.ledger.compact();
        inner.compaction.running.store(false, Ordering::Relaxed);
        let took = inner.clock.elapsed().saturating_sub(began);
        if let Ok(true) = compacted {
            step!("compacted");
            inner.compaction.pieces.fetch_add(1, Ordering::Relaxed);
            inner.compaction.micros.fetch_add(took.as_micros() as u64, Ordering::Relaxed);
        }
        inner.update_ledger_stats();
        compacted
    }

    /// About how many bytes the resident counters take.
    pub fn resident_bytes(&self) -> u64 {
        self.inner.table.bytes()
    }
}
