//! The writer of an import.
//!
//! In: the name of a source, and the present values of its counters. Out: cells of one writer of
//! the store, with these values as totals.
//!
//! An import is a writer, like a node. A value in the source is the *total* of its cell: all that
//! the source ever added. Under the counter's present epoch, the running value is that total, less
//! the part taken when earlier epochs ended. So a second run puts the same value or a newer one,
//! and never adds. Counts that were reset, deleted or expired in between stay taken.
//!
//! Invariants:
//! - The writer is a hash of the source's name, with one incarnation for all imports: every run
//!   from one source is the same writer.
//! - A run takes its sequence numbers from the store's clock while it replaces the registration. So
//!   the later of two runs to register has the greater numbers, and no number stands for two puts.
//!   Puts that a killed run left in flight come too late.
//! - The writer stays registered until the import is done, under a lease without end and without a
//!   holder. So no node closes or folds cells that may be put again.
//! - A first run that has put nothing when it ends leaves no registration.
//! - Once done, a mark stays in the registry, and the same source is refused: its cells are folded
//!   and forgotten, and would count again.
//!
//! A sketch is put whole, beside the writer's cell of a body: uniques beside the node's cell,
//! others beside the incarnation's. Nothing can be taken out of a sketch again. So a sketch that
//! the store has reset since is left alone.
//!
//! Not here: reading the source (`backends`), concurrent puts (`import_pipeline`).

use std::ops::AddAssign;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use quipu_engine::sketch_fingerprint;
use quipu_model::shared::body::{BodyShape, PAGE_BYTES, StoredBody, trim_zeros};
use quipu_model::shared::registry::renew;
use quipu_model::shared::snapshot::EPOCH_MILLIS_MAX;
use quipu_model::shared::{
    BodyPut, BodyVerdict, CellId, Change, FetchedRow, Holder, NO_WRITERS, NextRow, Put, RegisterVerdict, Registration,
    RenewError, RowWithBodies, Seq, Shard, Snapshot, SpentCell, SwapContext, SwapId, SwapVerdict, Verdict, WriterStage,
    incarnation_cell, node_cell, plan_swap,
};
use quipu_model::{Epoch, ExpiryCondition, ExpiryTime, Incarnation, Millis, Name, NodeId, Store, Writer};
use quipu_sketch::SketchKind;
use xxhash_rust::xxh3::xxh3_64;

use crate::backends::source::{SketchBody, SkipReason, SourceKey};
use crate::stores::retry::{block_on, call_with_retry};
use crate::stores::rows;
use crate::terminal;

/// The incarnation of every import.
pub const IMPORT: Incarnation = Incarnation(u64::from_be_bytes(*b"\0import\0"));

/// The incarnation of the mark that a finished import leaves. It has no cells.
pub const IMPORTED: Incarnation = Incarnation(u64::from_be_bytes(*b"imported"));

/// Bits for the sequence numbers of one millisecond of a run: 2^20 numbers, far more than it can
/// put in that time.
const SEQS_PER_MILLI: u32 = 20;

/// Pause between reading the clock and registering: longer than the resolution of the clock.
const CLOCK_GAP: Duration = Duration::from_millis(2);

/// Attempts to compute a change, while others change the same row or registration.
const ROUNDS_MAX: usize = 20;

/// An import under way.
pub struct Importer<'s> {
    store: &'s dyn Store,
    writer: Writer,
    seq: AtomicU64,
    is_repeated: bool,
    /// The version of the registration.
    version: u64,
    /// True if a put may have been applied.
    has_put: AtomicBool,
    /// The common secret of the store's nodes.
    secret: &'s str,
}

/// The outcome of a number of counters.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct ImportCounts {
    /// Counts, equal to those of the source.
    pub counters: u64,
    /// Sketches, equal to those of the source.
    pub sketches: u64,
    /// Counters with a newer put of a later run.
    pub overtaken: u64,
}

impl AddAssign for ImportCounts {
    fn add_assign(&mut self, other: ImportCounts) {
        self.counters += other.counters;
        self.sketches += other.sketches;
        self.overtaken += other.overtaken;
    }
}

/// The writer of the import of a source.
pub fn import_writer(source: &str) -> Writer {
    // Node 0 is no writer: epochs that begin by expiry have it.
    Writer { node: NodeId(xxh3_64(source.as_bytes()).max(1)), incarnation: IMPORT }
}

impl<'s> Importer<'s> {
    /// Registers the import of a source, or continues it.
    pub fn begin(store: &'s dyn Store, source: &str, secret: &'s str) -> anyhow::Result<Importer<'s>> {
        let writer = import_writer(source);
        // Without a retry: a wrong address or password should not take half a minute.
        let mut known = block_on(store.writers()).context("look into the store")?;
        for _ in 0..ROUNDS_MAX {
            let find = |writer| known.registrations.iter().find(|known| known.writer == writer);
            if find(done_marker(writer)).is_some() {
                bail!(done_message(source));
            }
            let own = find(writer);
            let next = match renew(own, (writer, Holder(0)), own.is_none(), known.at, Duration::MAX) {
                Ok(next) => Registration { lease_until: Millis(EPOCH_MILLIS_MAX), ..next.released() },
                Err(RenewError::Retired { .. } | RenewError::Forgotten { .. }) => bail!(done_message(source)),
                Err(error) => return Err(error.into()),
            };
            thread::sleep(CLOCK_GAP);
            match call_with_retry(|| store.register(own.map_or(0, |own| own.version), &next))
                .context("register the import")?
            {
                RegisterVerdict::Registered => {
                    let seq = AtomicU64::new(known.at.0 << SEQS_PER_MILLI);
                    let (is_repeated, version, has_put) = (own.is_some(), next.version, AtomicBool::new(false));
                    return Ok(Importer { store, writer, seq, is_repeated, version, has_put, secret });
                }
                // By another run, or by a lost attempt of this one.
                RegisterVerdict::Moved => known = call_with_retry(|| store.writers()).context("look into the store")?,
                RegisterVerdict::Full => bail!("the store has no room for another writer: see `quipu writers --store`"),
            }
        }
        bail!("others keep registering the same import: let one of them run")
    }

    /// The writer of this import.
    pub fn writer(&self) -> Writer {
        self.writer
    }

    /// Returns true if there was an earlier run.
    pub fn is_repeated(&self) -> bool {
        self.is_repeated
    }

    /// Puts the source's values of counters, at most as many as fit a put. Keys without a count are
    /// left alone.
    pub fn put(&self, found: &[SourceKey]) -> anyhow::Result<ImportCounts> {
        let mut counts = ImportCounts::default();
        // Most counters are in their first epoch: running value and total are equal, and no row has
        // to be read. The store refuses a put for any other counter.
        let mut remaining: Vec<(&SourceKey, i128)> = Vec::with_capacity(found.len());
        let firsts: Vec<(&SourceKey, i128)> = found.iter().filter_map(|one| Some((one, one.count()?))).collect();
        let puts =
            firsts.iter().map(|&(found, value)| Ok((counter_name(found)?, self.next_put(Epoch::FIRST, value, value))));
        let puts = puts.collect::<anyhow::Result<Vec<_>>>()?;
        for (verdict, first) in self.send(&puts)?.into_iter().zip(firsts) {
            match verdict {
                Verdict::Newest => counts.counters += 1,
                _ => remaining.push(first),
            }
        }
        for _ in 0..ROUNDS_MAX {
            if remaining.is_empty() {
                return Ok(counts);
            }
            remaining = self.put_by_rows(remaining, &mut counts)?;
        }
        bail!("{} counters change faster than they can be imported: run it again", remaining.len())
    }

    /// Puts counters on the basis of their rows. Returns the counters to retry, as their rows
    /// changed meanwhile.
    fn put_by_rows<'f>(
        &self,
        batch: Vec<(&'f SourceKey, i128)>,
        counts: &mut ImportCounts,
    ) -> anyhow::Result<Vec<(&'f SourceKey, i128)>> {
        let mut remaining = Vec::new();
        let mut puts = Vec::with_capacity(batch.len());
        let mut pending = Vec::with_capacity(batch.len());
        let read = rows::read_all(self.store, batch.iter().map(|(found, _)| found.name.clone()).collect())?;
        for ((_, read_row), (found, total)) in read.into_iter().zip(batch) {
            if read_row.snapshot.is_due(read_row.at) {
                self.swap(counter_name(found)?, &read_row, &Change::Lapse)?;
                remaining.push((found, total));
                continue;
            }
            match self.plan_put(&read_row.snapshot, found, total)? {
                PutPlan::Value(value) => {
                    puts.push((counter_name(found)?, self.next_put(read_row.snapshot.epoch, value, total)));
                    pending.push((found, total));
                }
                PutPlan::Unchanged => counts.counters += 1,
                PutPlan::Overtaken => counts.overtaken += 1,
            }
        }
        for (verdict, put) in self.send(&puts)?.into_iter().zip(pending) {
            match verdict {
                Verdict::Newest => counts.counters += 1,
                _ => remaining.push(put),
            }
        }
        Ok(remaining)
    }

    /// Plans the put of a counter under its row's epoch.
    fn plan_put(&self, row: &Snapshot, found: &SourceKey, total: i128) -> anyhow::Result<PutPlan> {
        let cell = self.cell();
        let retired = || {
            anyhow!(
                "this import was retired: `quipu writers --store` shows it; nothing more can be imported under its name"
            )
        };
        let reserved = Seq(self.seq.load(Ordering::Relaxed));
        if row.newest(cell).is_some_and(|newest| newest > reserved) {
            return Ok(PutPlan::Overtaken);
        }
        match (row.cells.get(&cell), row.spent.get(&cell)) {
            (Some(current), _) if current.closed => Err(retired()),
            (Some(current), _) => Ok(PutPlan::Value(current.value.saturating_add(total.saturating_sub(current.total)))),
            (None, Some(spent)) if spent.closed => Err(retired()),
            // It expired here and there: the source's value is all from after that.
            (None, Some(spent)) if spent.expired.is_some_and(|expired| expired <= found.since) => {
                Ok(PutPlan::Value(total))
            }
            (None, Some(spent)) if spent.total == total => Ok(PutPlan::Unchanged),
            (None, Some(spent)) => Ok(PutPlan::Value(total.saturating_sub(spent.total))),
            (None, None) => Ok(PutPlan::Value(total)),
        }
    }

    /// Puts a sketch whole; returns the reason if that is impossible.
    pub fn put_sketch(
        &self,
        found: &SourceKey,
        sketch: &SketchBody,
        counts: &mut ImportCounts,
    ) -> anyhow::Result<Option<SkipReason>> {
        if sketch.key != sketch_fingerprint(self.secret, sketch.kind) {
            let text = "a sketch that hashes its items under another secret than the store's nodes, see --store-secret";
            return Ok(Some(text.into()));
        }
        let name = counter_name(found)?;
        let cell = match sketch.kind {
            SketchKind::Hll | SketchKind::Unique => node_cell(self.writer.node),
            _ => incarnation_cell(self.writer, 0),
        };
        for _ in 0..ROUNDS_MAX {
            let RowWithBodies { row: read_row, bodies } =
                call_with_retry(|| self.store.read_bodies(name)).context("read a sketch")?;
            let row = &read_row.snapshot;
            if row.is_due(read_row.at) {
                self.swap(name, &read_row, &Change::Lapse)?;
                continue;
            }
            let is_like = |body: &StoredBody| (body.shape.kind, body.shape.key) == (sketch.kind.code(), sketch.key);
            if row.exists() && !row.is_sketch() || !bodies.values().all(is_like) {
                return Ok(Some("the store has something else under this name".into()));
            }
            let current = row.cells.get(&cell);
            if current.is_some() && bodies.get(&cell.writer).is_some_and(|body| body.bytes == sketch.bytes) {
                counts.sketches += 1;
                return Ok(None);
            }
            let is_over = |spent: &SpentCell| spent.expired.is_some_and(|expired| expired <= found.since);
            if current.is_none() && row.spent.get(&cell).is_some_and(|spent| !is_over(spent)) {
                return Ok(Some("a sketch that the store has reset or deleted since it was imported".into()));
            }
            if row.newest(cell) > Some(Seq(self.seq.load(Ordering::Relaxed))) {
                counts.overtaken += 1;
                return Ok(None);
            }
            // The number of changes: the value of a body's cell.
            let changes = current.map_or(1, |current| current.value.saturating_add(1));
            let put = Put { cell, ..self.next_put(row.epoch, changes, changes) };
            let put = BodyPut {
                put,
                from: current.map(|current| current.seq),
                whole: true,
                shape: BodyShape {
                    kind: sketch.kind.code(),
                    key: sketch.key,
                    length: u32::try_from(sketch.bytes.len())?,
                },
                pages: body_pages(&sketch.bytes),
            };
            self.has_put.store(true, Ordering::Relaxed);
            match call_with_retry(|| self.store.put_body(name, &put)).context("put a sketch")? {
                BodyVerdict::Cell(Verdict::Newest) => {
                    counts.sketches += 1;
                    return Ok(None);
                }
                BodyVerdict::Cell(Verdict::Closed { .. }) => {
                    bail!("this import was retired: nothing more can be imported under its name")
                }
                _ => {}
            }
        }
        bail!("{} changes faster than it can be imported: run it again", terminal::format_name(&found.name))
    }

    /// Sets the expiry of the source on a counter.
    pub fn expire(&self, found: &SourceKey, at: Millis) -> anyhow::Result<()> {
        let when = ExpiryTime::At(i64::try_from(at.0).unwrap_or(i64::MAX));
        let change = Change::Expire { when, condition: ExpiryCondition::Always };
        for _ in 0..ROUNDS_MAX {
            let read = rows::read_all(self.store, vec![found.name.clone()])?;
            let Some((_, read_row)) = read.into_iter().next() else { break };
            if self.swap(counter_name(found)?, &read_row, &change)? {
                return Ok(());
            }
        }
        bail!("{} changes faster than its expiry can be set: run it again", terminal::format_name(&found.name))
    }

    /// Ends the import: leaves a mark and retires its writer. Any running node completes the
    /// retirement.
    pub fn finish(&self) -> anyhow::Result<()> {
        retire(self.store, self.writer)
    }

    /// Removes the registration of a first run that has put nothing. Returns true if something was
    /// put.
    pub fn clean_up(&self) -> bool {
        let has_put = self.has_put.load(Ordering::Relaxed);
        if !has_put && !self.is_repeated {
            // If this fails too, the next run finds the registration and continues with it.
            let _ = block_on(self.store.unregister(self.writer, self.version));
        }
        has_put
    }

    /// Applies a change to a row; returns true if the row is as wanted. All changes made here may
    /// be repeated.
    fn swap(&self, name: Name<'_>, read_row: &FetchedRow, change: &Change) -> anyhow::Result<bool> {
        // The retention of rows is a setting of the nodes: nothing is forgotten here.
        let by = SwapContext {
            id: random_swap_id()?,
            node: self.writer.node,
            grace: Duration::MAX,
            registered: &NO_WRITERS,
        };
        let version = read_row.snapshot.version;
        let verdict = match plan_swap(read_row, &by, change)?.next {
            NextRow::Unchanged => return Ok(true),
            NextRow::Row(row) => call_with_retry(|| self.store.swap(name, version, Some(&row))),
            NextRow::Removed => return Ok(true),
        };
        Ok(verdict.context("change a row")? == SwapVerdict::Swapped)
    }

    fn send(&self, puts: &[(Name<'_>, Put)]) -> anyhow::Result<Vec<Verdict>> {
        if puts.is_empty() {
            return Ok(Vec::new());
        }
        self.has_put.store(true, Ordering::Relaxed);
        let next = "run it again when the store answers: it goes on as the same writer";
        call_with_retry(|| self.store.put_all(puts)).with_context(|| format!("the import is not complete; {next}"))
    }

    fn next_put(&self, epoch: Epoch, value: i128, total: i128) -> Put {
        let seq = Seq(self.seq.fetch_add(1, Ordering::Relaxed) + 1);
        Put { cell: self.cell(), epoch, seq, value, total }
    }

    fn cell(&self) -> CellId {
        CellId { writer: self.writer, shard: Shard(0) }
    }
}

/// The next put of a counter.
enum PutPlan {
    Value(i128),
    /// All of it was taken, and nothing has come since.
    Unchanged,
    Overtaken,
}

/// Retires a writer, by the registry's own step. An import leaves a mark, so that it never begins
/// anew once it is forgotten.
pub fn retire(store: &dyn Store, writer: Writer) -> anyhow::Result<()> {
    if writer.incarnation == IMPORT {
        leave_mark(store, done_marker(writer))?;
    }
    for _ in 0..ROUNDS_MAX {
        let known = call_with_retry(|| store.writers()).context("look into the store")?;
        let Some(own) = known.registrations.iter().find(|known| known.writer == writer) else { return Ok(()) };
        if own.stage != WriterStage::Live {
            return Ok(());
        }
        let next = own.retiring(known.at);
        if call_with_retry(|| store.register(own.version, &next))? == RegisterVerdict::Registered {
            return Ok(());
        }
    }
    bail!("the registration of {writer} keeps changing: try again")
}

/// Leaves the mark, before the retirement. An import interrupted in between is refused; the next
/// `--done` or `writers retire` completes it.
fn leave_mark(store: &dyn Store, writer: Writer) -> anyhow::Result<()> {
    let mark = Registration {
        writer,
        holder: None,
        lease_until: Millis(EPOCH_MILLIS_MAX),
        stage: WriterStage::Live,
        version: 1,
    };
    match call_with_retry(|| store.register(0, &mark)).context("leave a mark in the registry")? {
        RegisterVerdict::Registered | RegisterVerdict::Moved => Ok(()),
        RegisterVerdict::Full => bail!("the store has no room for another writer: see `quipu writers --store`"),
    }
}

/// The mark of a finished import.
fn done_marker(writer: Writer) -> Writer {
    Writer { incarnation: IMPORTED, ..writer }
}

fn done_message(source: &str) -> String {
    format!(
        "{source} was imported into this store and is done: its counts are part of the counters. Importing it again would count them twice; \
         to do so on purpose, give the import another name with --as"
    )
}

fn counter_name(found: &SourceKey) -> anyhow::Result<Name<'_>> {
    Name::new(&found.name).map_err(|error| anyhow!("{}: {error}", terminal::format_name(&found.name)))
}

/// Pages of a body, without pages of zeros.
fn body_pages(bytes: &[u8]) -> Vec<(u32, Box<[u8]>)> {
    let pages = (0..).zip(bytes.chunks(PAGE_BYTES).map(trim_zeros));
    pages.filter(|(_, page)| !page.is_empty()).map(|(number, page)| (number, page.into())).collect()
}

fn random_swap_id() -> anyhow::Result<SwapId> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| anyhow!("cannot draw a random number: {error}"))?;
    Ok(SwapId(u128::from_ne_bytes(bytes)))
}

#[cfg(test)]
mod tests;
