//! Exposes the halves of a commit and the background work as single steps.
//!
//! The background threads call these. A simulator calls them in any order, between any two steps of
//! its workers, and so runs the shipped code.

use std::path::Path;

use quipu_model::{LedgerError, Name};

use crate::base::failpoint::step;
use crate::base::sync::Ordering;
use crate::core::Core;
use crate::core::load::{Load, LoadFuture};
use crate::execute::turn::{LaneVisit, Turn};
use crate::journal::format::Position;
use crate::journal::{JournalError, Wait};
use crate::offline::backup::{Backup, BackupError};
use crate::seal::load::sweep;
use crate::seal::{Seal, SealError, SealStep};

/// Counters expired under one lock.
const EXPIRE_RUN: usize = 64;

/// A journal up to this size is not worth a seal, even on a nearly full disk: the reserve is enough
/// for it.
const SEAL_BYTES_MIN: u64 = 4 << 20;

/// Steps of an engine.
pub struct Steps<'e> {
    core: &'e Core,
}

impl<'e> Steps<'e> {
    pub(crate) fn new(core: &'e Core) -> Steps<'e> {
        Steps { core }
    }

    /// First half of a commit: hands all filled records to the operating system.
    pub fn write_filled(&self) {
        self.core.journal.write_filled();
    }

    /// Second half of a commit: makes the written records durable.
    pub fn sync(&self) {
        self.core.journal.sync_written();
    }

    /// Returns true if replies that wait for this position may leave.
    pub fn has_reached(&self, wait: Wait) -> bool {
        self.core.journal.failure().is_none() && self.core.journal.has_reached(wait)
    }

    /// Joins the lanes of all counters. Closes lanes without an add since the last call.
    pub fn join_lanes(&self) {
        self.core.visit_all_lanes(LaneVisit::CloseIdle);
    }

    /// Prepares segments if few are left, and keeps the disk reserve.
    pub fn prepare_segments(&self) -> Result<(), JournalError> {
        self.core.journal.prepare_segments()
    }

    /// Measures whether the journal keeps up. If not, samples the namespaces configured for it.
    pub fn adjust_overload_rate(&self) {
        self.core.adjust_overload_rate();
    }

    /// Writes the synced position to the control file.
    pub fn record_synced(&self) -> Result<(), JournalError> {
        self.core.journal.record_synced(false)
    }

    /// Number of shards of the table; some steps take a shard.
    pub fn shard_count(&self) -> usize {
        self.core.table.shard_count()
    }

    /// Position of the next record.
    pub fn reserved(&self) -> Position {
        self.core.journal.reserved()
    }

    /// Removes overdue counters of a shard, a bounded number per call; returns how many. Without
    /// journal room it removes none.
    pub fn expire(&self, shard: usize) -> usize {
        let now = self.core.now();
        let overdue: Vec<_> = self.core.table.lock(shard).overdue(now, EXPIRE_RUN).collect();
        if overdue.is_empty() {
            return 0;
        }
        let mut turn = Turn::new(self.core);
        for name in &overdue {
            if !turn.expire(Name::new(name).expect("names in the table have been checked")) {
                break;
            }
        }
        drop(turn);
        let left = self.core.table.lock(shard).overdue(now, EXPIRE_RUN).filter(|name| overdue.contains(name)).count();
        overdue.len() - left
    }

    /// Returns true if the journal is long enough to be sealed and cut, or longer than the free
    /// disk space. The cells of a seal take less space than their records, so with as much free
    /// space as journal they fit. Not during a backup, which holds the journal: there would be no
    /// cut.
    pub fn needs_seal(&self) -> bool {
        let journal = &self.core.journal;
        let bytes = journal.size().0;
        let is_long = bytes > self.core.options.journal_bytes_max;
        (is_long || (bytes > SEAL_BYTES_MIN && journal.free_bytes() < bytes)) && !journal.is_cut_held()
    }

    /// Begins to seal the changed cells.
    pub fn begin_seal(&self) -> Seal {
        Seal::begin(self.core)
    }

    /// Seals one more piece. After an error the seal is over.
    pub fn step_seal(&self, seal: &mut Seal) -> Result<SealStep, SealError> {
        seal.step(self.core)
    }

    /// Cuts the journal.
    pub fn finish_seal(&self, seal: Seal) -> Result<(), JournalError> {
        seal.finish(self.core)
    }

    /// Seals all changed cells in one call.
    pub fn seal_all(&self) -> Result<(), SealError> {
        self.core.seal_all()
    }

    /// Begins a backup.
    pub fn begin_backup(&self, dir: &Path) -> Result<Backup<'e>, BackupError> {
        Backup::begin(self.core, dir)
    }

    /// Queues a load for a later step.
    pub fn enqueue_load(&self, load: Load) -> LoadFuture {
        self.core.loads.enqueue(load, self.core.clock.elapsed())
    }

    /// Runs the queued loads; returns the number served, and the number that wait for memory.
    pub fn run_loads(&self) -> (usize, usize) {
        self.core.run_loads()
    }

    /// Runs the queued walks over all names; returns their number.
    pub fn run_walks(&self) -> usize {
        self.core.run_walks()
    }

    /// Loads a shard's counters that have expired in the ledger, for `expire` to remove; returns
    /// whether there were any.
    pub fn sweep(&self, shard: usize) -> Result<bool, LedgerError> {
        sweep(self.core, shard)
    }

    /// Evicts counters of a shard that are sealed and were not used since the last call.
    pub fn evict(&self, shard: usize) -> usize {
        let core = self.core;
        let evicted = core.table.with_shard(shard, |shard| {
            let evicted = shard.evict(core.batch_sealed());
            if shard.unloaded {
                // Under the lock: a flush, which holds all shards, clears it.
                core.unloaded.store(true, Ordering::Release);
            }
            evicted
        });
        if evicted > 0 {
            step!("evicted");
            core.evicted.fetch_add(evicted as u64, Ordering::Relaxed);
        }
        evicted
    }

    /// Removes slots of names that are known to be absent.
    pub fn purge(&self, shard: usize) {
        let core = self.core;
        core.table.with_shard(shard, |shard| {
            if shard.needs_purge() {
                shard.purge(core.batch_sealed());
            }
        });
    }

    /// Runs one bounded piece of compaction; returns whether there is more to do.
    pub fn compact(&self) -> Result<bool, LedgerError> {
        let core = self.core;
        let began = core.clock.elapsed();
        core.compaction.running.store(true, Ordering::Relaxed);
        step!("compacting");
        let compacted = core.ledger.compact();
        core.compaction.running.store(false, Ordering::Relaxed);
        let took = core.clock.elapsed().saturating_sub(began);
        if let Ok(true) = compacted {
            step!("compacted");
            core.compaction.pieces.fetch_add(1, Ordering::Relaxed);
            core.compaction.micros.fetch_add(took.as_micros() as u64, Ordering::Relaxed);
        }
        core.update_ledger_stats();
        compacted
    }

    /// Approximate bytes of the resident counters.
    pub fn resident_bytes(&self) -> u64 {
        self.core.table.bytes()
    }
}
