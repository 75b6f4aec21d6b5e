//! Seals changed cells into the ledger, so that the journal can be cut and cells can leave memory.
//!
//! In: slots, tokens and pages of sketches that the ledger lacks. Out: a numbered batch of them, in
//! ingestions with a watermark each; then the cut.
//!
//! A seal goes shard by shard, each under its own lock. A shard's mark separates its records: one
//! beyond the mark is replayed over the ledger, one before it is skipped. So an ingestion may hold
//! more than the cut needs, and a crash between the two does no harm.
//!
//! Invariants:
//! - all data of an ingestion is synced in the journal first: the ledger is never ahead of the
//!   journal that survives a crash;
//! - only the last ingestion of a seal moves the position at which the journal may be cut;
//! - an abandoned seal leaves its slots marked as changed.
//!
//! Not here: the schedule of seals (`background`).

mod lanes;
pub(crate) mod load;

use quipu_model::{AuxRecord, LedgerError, Millis, SealedCell};

use crate::base::failpoint::step;
use crate::base::sync::{Ordering, lock};
use crate::core::commit::block_on;
use crate::core::watermark::{ShardMark, Watermark};
use crate::core::{Core, FlushMark};
use crate::execute::turn::LaneVisit;
use crate::journal::format::Position;
use crate::journal::{JournalError, Wait};
use crate::tokens::{TokenRecord, is_token_key};

/// A seal of all changed cells in progress.
pub struct Seal {
    batch: u32,
    /// Number of flushes at its beginning; another flush ends it.
    flushes: u64,
    /// Position at which the journal will be cut.
    mark: Position,
    next_shard: usize,
    /// Collected and not ingested yet; they belong to the shards from `ingested` on.
    cells: Vec<SealedCell>,
    /// Tokens and sketch pages of the same shards, with removals of both.
    aux_records: Vec<AuxRecord>,
    /// Bytes of the sketch pages among these.
    pages_bytes: usize,
    /// Tokens applied up to this time have expired.
    horizon: Millis,
    /// Number of namespace changes collected, once all shards are.
    namespaces: Option<u64>,
    /// Auxiliary records that outlive a flush.
    survivors: Option<FlushSurvivors>,
    ingested: usize,
    has_ingested: bool,
    watermark: Watermark,
    /// The end of the newest record that the collected cells include.
    newest: Position,
}

/// All tokens and run-time settings of namespaces, as they were after a flush.
struct FlushSurvivors {
    /// Number of flushes at the time of collection.
    flushes: u64,
    aux_records: Vec<AuxRecord>,
    /// The end of the newest record that they include.
    newest: Position,
}

/// Progress of a seal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SealStep {
    /// Continue.
    More,
    /// Continue when the journal has reached these positions.
    WaitFor(Wait),
    /// All changes are in the ledger.
    Done,
}

/// Reason why a seal was abandoned; its cells are still marked as changed.
#[derive(Debug, thiserror::Error)]
pub enum SealError {
    /// The ledger did not take the batch.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// A flush came in between: there is nothing left to seal.
    #[error("everything was deleted meanwhile")]
    Flushed,
    /// The journal cannot be cut, or has failed.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The journal has failed.
    #[error(transparent)]
    JournalFailed(#[from] crate::core::commit::JournalFailure),
}

impl Core {
    /// Seals all changed cells and cuts the journal. On a full disk it uses the reserved space.
    pub(crate) fn seal_all(&self) -> Result<(), SealError> {
        let _one = lock(&self.seal_lock);
        self.journal.check_files()?;
        match self.try_seal_all() {
            Err(SealError::Ledger(LedgerError::Full(_))) if self.journal.release_spare_space()? => self.try_seal_all(),
            sealed => sealed,
        }
    }

    fn try_seal_all(&self) -> Result<(), SealError> {
        let mut seal = Seal::begin(self);
        loop {
            match seal.step(self)? {
                SealStep::More => {}
                SealStep::WaitFor(wait) => block_on(self.commit_until(wait)).inspect_err(|_| seal.abort(self))?,
                SealStep::Done => break,
            }
            // A long seal must not starve the writer of segments.
            if self.journal.is_room_low() && !self.journal.is_full() {
                self.journal.prepare_segments().inspect_err(|_| seal.abort(self))?;
            }
        }
        Ok(seal.finish(self)?)
    }
}

impl Seal {
    /// Begins a seal: marks the journal's present end as the position to cut at.
    pub(crate) fn begin(core: &Core) -> Seal {
        // Adds in lanes are sealed with the rest.
        core.visit_all_lanes(LaneVisit::Join);
        let mark = core.journal.mark_cut();
        step!("marked");
        let batch = core.batch_next.fetch_add(1, Ordering::AcqRel) + 1;
        let watermark = lock(&core.watermark).clone();
        let flushes = core.flush().count;
        let horizon = core.tokens.raise_horizon(core.now(), core.namespaces.current().token_window_max());
        Seal {
            batch,
            flushes,
            mark,
            next_shard: 0,
            cells: Vec::new(),
            aux_records: Vec::new(),
            pages_bytes: 0,
            horizon,
            namespaces: None,
            survivors: None,
            ingested: 0,
            has_ingested: false,
            watermark,
            newest: mark,
        }
    }

    /// Collects a shard, or ingests the collected ones. After an error the seal is over.
    pub(crate) fn step(&mut self, core: &Core) -> Result<SealStep, SealError> {
        self.try_step(core).inspect_err(|_| self.abort(core))
    }

    fn try_step(&mut self, core: &Core) -> Result<SealStep, SealError> {
        let flush = core.flush();
        if flush.end > self.watermark.cleared {
            return self.clear(core, flush);
        }
        let collected = self.cells.len() + self.aux_records.len() + self.pages_bytes / COLLECTED_BYTES;
        if self.next_shard < core.table.shard_count() && collected < core.options.ingest_cells() {
            self.collect(core)?;
            return Ok(SealStep::More);
        }
        if self.next_shard == core.table.shard_count() && self.namespaces.is_none() {
            let (newest, changes) = core.namespaces.collect_aux_records(&mut self.aux_records);
            (self.newest, self.namespaces) = (self.newest.max(newest), Some(changes));
            return Ok(SealStep::More);
        }
        let wait = Wait { written: self.newest, synced: self.newest };
        if !core.journal.has_reached(wait) {
            return Ok(SealStep::WaitFor(wait));
        }
        self.ingest(core)
    }

    /// Collects the next shard.
    fn collect(&mut self, core: &Core) -> Result<(), SealError> {
        let from = self.cells.len();
        let mut shard = core.table.lock(self.next_shard);
        if core.flush().count != self.flushes {
            return Err(SealError::Flushed);
        }
        shard.collect(self.batch, core.batch_sealed(), &mut self.cells);
        shard.tokens_mut().collect(self.horizon, &mut self.aux_records);
        let pages_from = self.aux_records.len();
        shard.collect_pages(|name| core.table.hash(name), &mut self.aux_records);
        let page_bytes =
            |aux_record: &AuxRecord| aux_record.key.len() + aux_record.value.as_ref().map_or(0, |value| value.len());
        self.pages_bytes += self.aux_records[pages_from..].iter().map(page_bytes).sum::<usize>();
        self.watermark.shards[self.next_shard] = ShardMark {
            newest: shard.newest,
            counters: shard.counters,
            floor: shard.floor,
            epoch_newest: shard.epoch_newest,
            deadline: shard.deadline(),
        };
        self.newest = self.newest.max(shard.newest);
        drop(shard);
        self.next_shard += 1;
        // Shards are in the ledger's order; names within one are sorted after the lock is released.
        self.cells[from..].sort_unstable_by(|a, b| (a.hash, &a.name).cmp(&(b.hash, &b.name)));
        Ok(())
    }

    /// Ingests the collected changes into the ledger.
    fn ingest(&mut self, core: &Core) -> Result<SealStep, SealError> {
        let last = self.next_shard == core.table.shard_count();
        if last {
            let marked = core.journal.cut_mark().filter(|(position, _)| *position == self.mark);
            let (position, previous) = marked.expect("the journal is synced beyond the mark, and nobody else marks it");
            (self.watermark.position, self.watermark.previous) = (position, previous);
        }
        if last
            && self.cells.is_empty()
            && self.aux_records.is_empty()
            && !self.has_ingested
            && self.watermark.position == lock(&core.watermark).position
        {
            // Nothing has changed since the last seal.
            self.ingested = self.next_shard;
            return Ok(SealStep::Done);
        }
        self.watermark.time = core.now();
        self.watermark.joined = lock(&core.joined).clone();
        step!("collected");
        self.check_quota(core)?;
        if self.aux_records.iter().any(|aux_record| aux_record.value.is_none() && is_token_key(&aux_record.key)) {
            self.aux_records.push(TokenRecord::Horizon(self.horizon).to_aux_record());
        }
        self.aux_records.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        core.ledger.ingest(&self.cells, &self.aux_records, &self.watermark.encode())?;
        step!("ingested");
        self.cells.clear();
        self.aux_records.clear();
        self.pages_bytes = 0;
        (self.ingested, self.has_ingested) = (self.next_shard, true);
        *lock(&core.watermark) = self.watermark.clone();
        core.update_ledger_stats();
        Ok(if last { SealStep::Done } else { SealStep::More })
    }

    /// Checks the quota for a whole seal before the first ingestion. The journal is cut only when
    /// all of the seal is in the ledger: half a seal would take space and give none back.
    fn check_quota(&self, core: &Core) -> Result<(), LedgerError> {
        if core.options.disk_bytes_max.is_none() || self.has_ingested {
            return Ok(());
        }
        let aux_records_bytes = |count: usize| count as u64 * AUX_RECORD_BYTES;
        let mut bytes = INGESTION_BYTES + aux_records_bytes(self.aux_records.len()) + self.pages_bytes as u64;
        bytes += self.cells.iter().map(|sealed| sealed_bytes(&sealed.name)).sum::<u64>();
        for index in self.next_shard..core.table.shard_count() {
            let shard = core.table.lock(index);
            bytes += shard.unsealed_names(core.batch_sealed()).map(sealed_bytes).sum::<u64>();
            bytes += aux_records_bytes(shard.tokens().unsealed_count()) + shard.unsealed_pages_bytes();
        }
        core.check_quota(self.mark, bytes)
    }

    /// Cuts the journal, and purges cells that are gone for good.
    pub(crate) fn finish(self, core: &Core) -> Result<(), JournalError> {
        debug_assert_eq!(self.ingested, core.table.shard_count());
        core.batch_sealed.store(self.batch, Ordering::Release);
        for index in 0..core.table.shard_count() {
            let forgotten = core.table.with_shard(index, |shard| {
                shard.purge(self.batch);
                shard.mark_pages_sealed();
                shard.tokens_mut().finish_seal()
            });
            core.tokens.record_evictions(forgotten);
        }
        core.namespaces.finish_seal(self.namespaces.unwrap_or(0));
        core.journal.release_ledger_growth();
        step!("sealed");
        core.journal.cut(self.watermark.position, self.watermark.previous)
    }

    /// Clears the ledger after a flush: it forgets everything and records that, before it takes
    /// anything new.
    fn clear(&mut self, core: &Core, flush: FlushMark) -> Result<SealStep, SealError> {
        let horizon = self.horizon;
        if self.survivors.as_ref().is_none_or(|survivors| survivors.flushes != flush.count) {
            self.survivors = Some(FlushSurvivors::collect(core, flush, horizon));
        }
        let Some(survivors) = &self.survivors else { return Ok(SealStep::More) };
        let wait = Wait { written: survivors.newest, synced: survivors.newest };
        if !core.journal.has_reached(wait) {
            return Ok(SealStep::WaitFor(wait));
        }
        let mut watermark = self.watermark.clone();
        watermark.cleared = flush.end;
        watermark.joined = lock(&core.joined).clone();
        for (index, mark) in watermark.shards.iter_mut().enumerate() {
            // The record of the flush is replayed again, for its other entries. The floor is past
            // the flush.
            let (newest, floor) = (flush.start, core.table.lock(index).floor);
            *mark = ShardMark { newest, floor, ..ShardMark::default() };
        }
        core.ledger.clear(&survivors.aux_records, &watermark.encode())?;
        step!("cleared");
        *lock(&core.watermark) = watermark.clone();
        core.update_ledger_stats();
        self.watermark = watermark;
        // Cells collected before the flush are useless now.
        if flush.count == self.flushes && self.next_shard == 0 { Ok(SealStep::More) } else { Err(SealError::Flushed) }
    }

    /// Marks collected cells that did not reach the ledger as changed again.
    pub(crate) fn abort(&self, core: &Core) {
        for index in self.ingested..self.next_shard {
            core.table.with_shard(index, |shard| {
                shard.undo_collect(self.batch);
                shard.undo_collect_pages();
                shard.tokens_mut().undo_collect();
            });
        }
        core.journal.release_ledger_growth();
    }
}

impl FlushSurvivors {
    /// Collects after the flush: earlier mutations are included, later ones are replayed.
    fn collect(core: &Core, flush: FlushMark, horizon: Millis) -> FlushSurvivors {
        let (mut aux_records, mut newest) = (vec![TokenRecord::Horizon(horizon).to_aux_record()], flush.end);
        for index in 0..core.table.shard_count() {
            let shard = core.table.lock(index);
            shard.tokens().collect_all(&mut aux_records);
            newest = newest.max(shard.newest);
        }
        newest = newest.max(core.namespaces.collect_all_aux_records(&mut aux_records));
        aux_records.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        FlushSurvivors { flushes: flush.count, aux_records, newest }
    }
}

/// Approximate bytes of a token at rest, rather more than less; also of a sketch page, besides its
/// data.
const AUX_RECORD_BYTES: u64 = 80;

/// Approximate bytes of a collected cell; this many bytes of pages count as one cell.
const COLLECTED_BYTES: usize = 100;

/// Approximate bytes of an ingestion besides its cells: the watermark and a table's bookkeeping.
const INGESTION_BYTES: u64 = 128 << 10;

/// Approximate bytes of a cell at rest, rather more than less.
fn sealed_bytes(name: &[u8]) -> u64 {
    /// A hash, a value, an epoch, and its share of filter and checksums.
    const CELL_BYTES: u64 = 64;
    /// Block size of the ledger; the index has one name of each block, and long names cost nearly
    /// twice.
    const BLOCK_BYTES: u64 = 4096;
    let (name_bytes, cell_bytes) = (name.len() as u64, CELL_BYTES + name.len() as u64);
    cell_bytes + name_bytes * cell_bytes.min(BLOCK_BYTES) / BLOCK_BYTES
}
