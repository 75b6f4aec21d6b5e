//! Seals changed cells into the ledger, so that the journal can be cut and cells can leave memory.
//!
//! In: slots, tokens and pages of sketches that the ledger does not know. Out: a numbered batch of them, in ingestions each with a watermark; then the cut.
//!
//! It goes shard by shard, each under its own lock. A shard's mark says which of its records the ledger has: a record beyond the mark is
//! replayed over the ledger, one before it is not looked at. So an ingestion may hold more than the cut needs, and a crash between the two costs nothing.
//!
//! Invariants:
//! - everything that an ingestion contains is synced in the journal first: the ledger is never ahead of what a crash leaves of the journal;
//! - only the last ingestion of a seal moves the place where the journal may be cut;
//! - a seal given up leaves its slots changed, as they were.
//!
//! Not here: when to seal (`driver`).

use quipu_model::{AuxRecord, LedgerError, Millis, SealedCell};

use crate::engine::{FlushMark, Inner};
use crate::failpoint::step;
use crate::journal::format::Position;
use crate::journal::{JournalError, Wait};
use crate::sync::{Ordering, lock};
use crate::tokens::{TokenRecord, is_token_key};
use crate::turn::LaneVisit;
use crate::watermark::{ShardMark, Watermark};

/// A seal of all changed cells under way.
pub struct Seal {
    batch: u32,
    /// How many flushes there had been when it began; another one ends it.
    flushes: u64,
    /// Where the journal will be cut.
    mark: Position,
    next_shard: usize,
    /// Collected and not ingested yet; the shards they are of are those since `ingested`.
    cells: Vec<SealedCell>,
    /// Tokens and pages of sketches of the same shards, and what is over of both.
    aux_records: Vec<AuxRecord>,
    /// Bytes of pages of sketches among these.
    pages_bytes: usize,
    /// Tokens that were applied up to then are over.
    horizon: Millis,
    /// How much of what was said of namespaces is collected, once all shards are.
    namespaces: Option<u64>,
    /// What outlives a flush.
    survivors: Option<FlushSurvivors>,
    ingested: usize,
    has_ingested: bool,
    watermark: Watermark,
    /// The end of the newest record that the collected cells include.
    newest: Position,
}

/// All tokens, and what was said of namespaces, as they were after a flush.
struct FlushSurvivors {
    /// Which flush it was.
    flushes: u64,
    aux_records: Vec<AuxRecord>,
    /// The end of the newest record that they are in.
    newest: Position,
}

/// How far a step of a seal has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SealStep {
    /// Go on.
    More,
    /// Go on when the journal has come so far.
    WaitFor(Wait),
    /// Everything is in the ledger.
    Done,
}

/// Why a seal was given up; its cells are changed as before.
#[derive(Debug, thiserror::Error)]
pub enum SealError {
    /// The ledger did not take it.
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
    JournalFailed(#[from] crate::engine::JournalFailure),
}

impl Seal {
    /// Marks where the journal will be cut: at its present end.
    pub(crate) fn begin(inner: &Inner) -> Seal {
        // What is counted in lanes is sealed with the rest.
        inner.visit_all_lanes(LaneVisit::Join);
        let mark = inner.journal.mark_cut();
        step!("marked");
        let batch = inner.batch_next.fetch_add(1, Ordering::AcqRel) + 1;
        let watermark = lock(&inner.watermark).clone();
        let flushes = inner.flush().count;
        let horizon = inner.tokens.raise_horizon(inner.now(), inner.namespaces.current().token_window_max());
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

    /// Collects a shard, or ingests what was collected. After an error the seal is over.
    pub(crate) fn step(&mut self, inner: &Inner) -> Result<SealStep, SealError> {
        self.try_step(inner).inspect_err(|_| self.abort(inner))
    }

    fn try_step(&mut self, inner: &Inner) -> Result<SealStep, SealError> {
        let flush = inner.flush();
        if flush.end > self.watermark.cleared {
            return self.clear(inner, flush);
        }
        let collected = self.cells.len() + self.aux_records.len() + self.pages_bytes / COLLECTED_BYTES;
        if self.next_shard < inner.table.shard_count() && collected < inner.options.ingest_cells() {
            self.collect(inner)?;
            return Ok(SealStep::More);
        }
        if self.next_shard == inner.table.shard_count() && self.namespaces.is_none() {
            let (newest, changes) = inner.namespaces.collect_aux_records(&mut self.aux_records);
            (self.newest, self.namespaces) = (self.newest.max(newest), Some(changes));
            return Ok(SealStep::More);
        }
        let wait = Wait { written: self.newest, synced: self.newest };
        if !inner.journal.has_reached(wait) {
            return Ok(SealStep::WaitFor(wait));
        }
        self.ingest(inner)
    }

    /// Collects the next shard.
    fn collect(&mut self, inner: &Inner) -> Result<(), SealError> {
        let from = self.cells.len();
        let mut shard = inner.table.lock(self.next_shard);
        if inner.flush().count != self.flushes {
            return Err(SealError::Flushed);
        }
        shard.collect(self.batch, inner.batch_sealed(), &mut self.cells);
        shard.tokens_mut().collect(self.horizon, &mut self.aux_records);
        let pages_from = self.aux_records.len();
        shard.collect_pages(|name| inner.table.hash(name), &mut self.aux_records);
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
        // Shards are in the ledger's order; within one, names are put in order once nobody has to wait for that.
        self.cells[from..].sort_unstable_by(|a, b| (a.hash, &a.name).cmp(&(b.hash, &b.name)));
        Ok(())
    }

    /// Hands the ledger what was collected.
    fn ingest(&mut self, inner: &Inner) -> Result<SealStep, SealError> {
        let last = self.next_shard == inner.table.shard_count();
        if last {
            let marked = inner.journal.cut_mark().filter(|(position, _)| *position == self.mark);
            let (position, previous) = marked.expect("the journal is synced beyond the mark, and nobody else marks it");
            (self.watermark.position, self.watermark.previous) = (position, previous);
        }
        if last
            && self.cells.is_empty()
            && self.aux_records.is_empty()
            && !self.has_ingested
            && self.watermark.position == lock(&inner.watermark).position
        {
            // Nothing has happened since the last seal.
            self.ingested = self.next_shard;
            return Ok(SealStep::Done);
        }
        self.watermark.time = inner.now();
        self.watermark.joined = lock(&inner.joined).clone();
        step!("collected");
        self.check_quota(inner)?;
        if self.aux_records.iter().any(|aux_record| aux_record.value.is_none() && is_token_key(&aux_record.key)) {
            self.aux_records.push(TokenRecord::Horizon(self.horizon).to_aux_record());
        }
        self.aux_records.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        inner.ledger.ingest(&self.cells, &self.aux_records, &self.watermark.encode())?;
        step!("ingested");
        self.cells.clear();
        self.aux_records.clear();
        self.pages_bytes = 0;
        (self.ingested, self.has_ingested) = (self.next_shard, true);
        *lock(&inner.watermark) = self.watermark.clone();
        inner.update_ledger_stats();
        Ok(if last { SealStep::Done } else { SealStep::More })
    }

    /// The journal is cut only when all of a seal is in the ledger, so there must be room for all of it before the first ingestion: half a seal would take
    /// space and give none back.
    fn check_quota(&self, inner: &Inner) -> Result<(), LedgerError> {
        if inner.options.disk_bytes_max.is_none() || self.has_ingested {
            return Ok(());
        }
        let aux_records_bytes = |count: usize| count as u64 * AUX_RECORD_BYTES;
        let mut bytes = INGESTION_BYTES + aux_records_bytes(self.aux_records.len()) + self.pages_bytes as u64;
        bytes += self.cells.iter().map(|sealed| sealed_bytes(&sealed.name)).sum::<u64>();
        for index in self.next_shard..inner.table.shard_count() {
            let shard = inner.table.lock(index);
            bytes += shard.unsealed_names(inner.batch_sealed()).map(sealed_bytes).sum::<u64>();
            bytes += aux_records_bytes(shard.tokens().unsealed_count()) + shard.unsealed_pages_bytes();
        }
        inner.check_quota(self.mark, bytes)
    }

    /// Cuts the journal, and lets go of what is gone for good.
    pub(crate) fn finish(self, inner: &Inner) -> Result<(), JournalError> {
        debug_assert_eq!(self.ingested, inner.table.shard_count());
        inner.batch_sealed.store(self.batch, Ordering::Release);
        for index in 0..inner.table.shard_count() {
            let forgotten = inner.table.with_shard(index, |shard| {
                shard.purge(self.batch);
                shard.mark_pages_sealed();
                shard.tokens_mut().finish_seal()
            });
            inner.tokens.record_evictions(forgotten);
        }
        inner.namespaces.finish_seal(self.namespaces.unwrap_or(0));
        inner.journal.release_ledger_growth();
        step!("sealed");
        inner.journal.cut(self.watermark.position, self.watermark.previous)
    }

    /// A flush since the last seal: the ledger forgets everything first, and says so, before anything new comes in.
    fn clear(&mut self, inner: &Inner, flush: FlushMark) -> Result<SealStep, SealError> {
        let horizon = self.horizon;
        if self.survivors.as_ref().is_none_or(|survivors| survivors.flushes != flush.count) {
            self.survivors = Some(FlushSurvivors::collect(inner, flush, horizon));
        }
        let Some(survivors) = &self.survivors else { return Ok(SealStep::More) };
        let wait = Wait { written: survivors.newest, synced: survivors.newest };
        if !inner.journal.has_reached(wait) {
            return Ok(SealStep::WaitFor(wait));
        }
        let mut watermark = self.watermark.clone();
        watermark.cleared = flush.end;
        watermark.joined = lock(&inner.joined).clone();
        for (index, mark) in watermark.shards.iter_mut().enumerate() {
            // The record of the flush is replayed again, for what else it says. The floor is past the flush.
            let (newest, floor) = (flush.start, inner.table.lock(index).floor);
            *mark = ShardMark { newest, floor, ..ShardMark::default() };
        }
        inner.ledger.clear(&survivors.aux_records, &watermark.encode())?;
        step!("cleared");
        *lock(&inner.watermark) = watermark.clone();
        inner.update_ledger_stats();
        self.watermark = watermark;
        // What was collected before the flush is of no use any more.
        if flush.count == self.flushes && self.next_shard == 0 { Ok(SealStep::More) } else { Err(SealError::Flushed) }
    }

    /// What was collected and did not reach the ledger is changed as before.
    pub(crate) fn abort(&self, inner: &Inner) {
        for index in self.ingested..self.next_shard {
            inner.table.with_shard(index, |shard| {
                shard.undo_collect(self.batch);
                shard.undo_collect_pages();
                shard.tokens_mut().undo_collect();
            });
        }
        inner.journal.release_ledger_growth();
    }
}

impl FlushSurvivors {
    /// Collects after the flush: whatever was applied before it is in, and what comes after it is replayed.
    fn collect(inner: &Inner, flush: FlushMark, horizon: Millis) -> FlushSurvivors {
        let (mut aux_records, mut newest) = (vec![TokenRecord::Horizon(horizon).to_aux_record()], flush.end);
        for index in 0..inner.table.shard_count() {
            let shard = inner.table.lock(index);
            shard.tokens().collect_all(&mut aux_records);
            newest = newest.max(shard.newest);
        }
        newest = newest.max(inner.namespaces.collect_all_aux_records(&mut aux_records));
        aux_records.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        FlushSurvivors { flushes: flush.count, aux_records, newest }
    }
}

/// About what a token takes at rest, rather more than less; and what a page of a sketch takes beside its bytes.
const AUX_RECORD_BYTES: u64 = 80;

/// About what a cell takes while it is collected; so many bytes of pages count as one.
const COLLECTED_BYTES: usize = 100;

/// About what an ingestion takes beside its cells: the watermark and a table's own bookkeeping.
const INGESTION_BYTES: u64 = 128 << 10;

/// About what a cell takes at rest, rather more than less.
fn sealed_bytes(name: &[u8]) -> u64 {
    /// A hash, a value, an epoch, and its share of filter and checksums.
    const CELL_BYTES: u64 = 64;
    /// Of the ledger; the index has a name of each, so long names cost nearly twice.
    const BLOCK_BYTES: u64 = 4096;
    let (name_bytes, cell_bytes) = (name.len() as u64, CELL_BYTES + name.len() as u64);
    cell_bytes + name_bytes * cell_bytes.min(BLOCK_BYTES) / BLOCK_BYTES
}
