//! Copies rows from one store into another, writer by writer.
//!
//! In: rows of the source. Out: the same cells in the target, with their writers in its registry;
//! and the refused counters.
//!
//! Invariants:
//! - a writer is registered in the target before its cells are there, under a lease without end: it
//!   may live on in the source;
//! - a writer that is retired in the source, or that `--done` names, is retired in the target once
//!   all rows are in;
//! - a writer that runs on the target itself is left alone;
//! - a copy that fails before it has changed a row leaves no registration behind.
//!
//! Not here: the next row (`quipu_model::shared::mirror`), the comparison afterwards (`copy`).

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, anyhow, bail};
use futures_util::future::join_all;
use quipu_model::shared::snapshot::EPOCH_MILLIS_MAX;
use quipu_model::shared::{
    FetchedRow, MirrorError, NextRow, RegisterVerdict, Registration, RowVersion, Snapshot, StoredRow, SwapVerdict,
    WriterStage, mirror,
};
use quipu_model::{Millis, Name, Store, Writer, WriterList};
use xxhash_rust::xxh3::xxh3_64;

use crate::stores::importer::{self, IMPORT, IMPORTED};
use crate::stores::retry::{block_on, call_with_retry};
use crate::stores::rows;
use crate::stores::skip_list::SkipList;
use crate::terminal;

/// Attempts to compute a row that others change at the same time.
const ROUNDS_MAX: usize = 20;

/// A store, and its number in rows of other stores.
#[derive(Clone, Copy)]
pub struct Site<'s> {
    store: &'s dyn Store,
    location: &'s str,
    number: u64,
}

impl<'s> Site<'s> {
    /// The store at this address, from [`StoreUrl::location`](crate::backends::StoreUrl::location).
    pub fn new(store: &'s dyn Store, location: &'s str) -> Site<'s> {
        Site { store, location, number: xxh3_64(location.as_bytes()) }
    }
}

/// A copy under way.
pub struct Mirror<'s> {
    source: Site<'s>,
    target: Site<'s>,
    /// The known part of the target's registry.
    stages: BTreeMap<Writer, WriterStage>,
    /// The writers of the source's cells.
    writers: BTreeSet<Writer>,
    /// Registrations that this copy has made.
    registered: Vec<Registration>,
    has_read_marks: bool,
    /// True if a row of the target may have changed.
    has_swapped: bool,
    /// Rows of counters that exist in the source.
    pub counters: u64,
    /// Rows of the target that changed.
    pub changed: u64,
    /// Counters that cannot be copied without a double count or a loss.
    pub refused: SkipList,
    /// Sketches.
    pub skipped: SkipList,
}

impl<'s> Mirror<'s> {
    /// Reads the registries.
    pub fn begin(source: Site<'s>, target: Site<'s>) -> anyhow::Result<Mirror<'s>> {
        // Without a retry: a wrong address or password should not take half a minute.
        let here = block_on(source.store.writers()).context("read the registry of the source")?;
        let known = block_on(target.store.writers()).context("read the registry of the target")?;
        for (known, of) in [(&known, source.location), (&here, target.location)] {
            // Earlier versions copied sums, under a writer that was named after the source.
            if known.registrations.iter().any(|known| known.writer.node == importer::import_writer(of).node) {
                bail!(
                    "one of the stores has a writer that holds the sums of {of}, from a copy by an earlier version. \
                     A copy by writer would count them twice: copy into an empty store"
                );
            }
        }
        let mut mirror = Mirror {
            source,
            target,
            stages: BTreeMap::new(),
            writers: BTreeSet::new(),
            registered: Vec::new(),
            has_read_marks: false,
            has_swapped: false,
            counters: 0,
            changed: 0,
            refused: SkipList::default(),
            skipped: SkipList::default(),
        };
        mirror.record_stages(&known);
        Ok(mirror)
    }

    /// Copies some rows.
    pub fn copy(&mut self, rows: Vec<(Box<[u8]>, FetchedRow)>) -> anyhow::Result<()> {
        let mut remaining = rows;
        for (_, read_row) in &remaining {
            self.counters += u64::from(read_row.snapshot.as_of(read_row.at).exists());
        }
        for _ in 0..ROUNDS_MAX {
            if remaining.is_empty() {
                return Ok(());
            }
            remaining = self.copy_round(remaining)?;
        }
        bail!("{} counters change in the target faster than they can be copied: run it again", remaining.len())
    }

    /// Copies rows once. Returns the rows to retry, as their rows in the target changed meanwhile.
    fn copy_round(&mut self, rows: Vec<(Box<[u8]>, FetchedRow)>) -> anyhow::Result<Vec<(Box<[u8]>, FetchedRow)>> {
        let there = rows::read_all(self.target.store, rows.iter().map(|(name, _)| name.clone()).collect())?;
        let mut swaps: Vec<(RowVersion, Snapshot)> = Vec::new();
        let mut swapping = Vec::new();
        for ((name, read_row), (_, there)) in rows.into_iter().zip(there) {
            let source = StoredRow { fetched: &read_row, store: self.source.number };
            let target = StoredRow { fetched: &there, store: self.target.number };
            match mirror(source, target, &self.stages) {
                Ok(NextRow::Row(next)) => {
                    self.writers.extend(next.cells.keys().map(|id| id.writer));
                    swaps.push((there.snapshot.version, next));
                    swapping.push((name, read_row));
                }
                Ok(NextRow::Unchanged | NextRow::Removed) => {}
                Err(MirrorError::Sketch) => self.skipped.add(name, MirrorError::Sketch.text().into()),
                Err(refused) => self.refused.add(name, refused.text().into()),
            }
        }
        if swaps.is_empty() {
            return Ok(Vec::new());
        }
        self.register()?;
        let store = self.target.store;
        let names = swapping.iter().map(|(name, _)| parse_name(name)).collect::<anyhow::Result<Vec<_>>>()?;
        let swap_calls =
            names.iter().zip(&swaps).map(|(name, (version, next))| store.swap(*name, *version, Some(next)));
        self.has_swapped = true;
        let answers = block_on(join_all(swap_calls));
        let mut is_moved = Vec::with_capacity(answers.len());
        for ((answer, (version, next)), name) in answers.into_iter().zip(&swaps).zip(names) {
            // A repeated swap after a lost answer finds the row moved, and the next round finds
            // nothing to do.
            let retry = |_| call_with_retry(|| store.swap(name, *version, Some(next)));
            let verdict = answer.or_else(retry).context("change a row of the target")?;
            is_moved.push(verdict == SwapVerdict::Moved);
        }
        self.changed += is_moved.iter().filter(|is_moved| !**is_moved).count() as u64;
        let remaining = swapping.into_iter().zip(is_moved).filter(|(_, is_moved)| *is_moved);
        Ok(remaining.map(|(row, _)| row).collect())
    }

    /// Registers the marks of imports that are done in the source, then the writers of the new
    /// cells.
    fn register(&mut self) -> anyhow::Result<()> {
        if !self.has_read_marks {
            let known = call_with_retry(|| self.source.store.writers()).context("read the registry of the source")?;
            let marks = known.registrations.iter().map(|known| known.writer);
            self.writers.extend(marks.filter(|writer| writer.incarnation == IMPORTED));
            self.has_read_marks = true;
        }
        if self.writers.iter().all(|writer| self.stages.contains_key(writer)) {
            return Ok(());
        }
        let known = call_with_retry(|| self.target.store.writers()).context("read the registry of the target")?;
        self.record_stages(&known);
        for &writer in self.writers.iter().filter(|writer| !self.stages.contains_key(writer)) {
            let next = Registration {
                writer,
                holder: None,
                lease_until: Millis(EPOCH_MILLIS_MAX),
                stage: WriterStage::Live,
                version: 1,
            };
            match call_with_retry(|| self.target.store.register(0, &next)).context("register a writer in the target")? {
                RegisterVerdict::Registered => self.registered.push(next),
                // Registered by itself just now, or by a lost attempt of this copy.
                RegisterVerdict::Moved => {}
                RegisterVerdict::Full => {
                    bail!("the target has no room for another writer: see `quipu writers --store`")
                }
            }
        }
        self.stages.extend(self.writers.iter().map(|writer| (*writer, WriterStage::Live)).collect::<Vec<_>>());
        self.record_stages(
            &call_with_retry(|| self.target.store.writers()).context("read the registry of the target")?,
        );
        Ok(())
    }

    /// Retires, in the target, the copied writers that are retired in the source. With `done`,
    /// retires all nodes of the source.
    pub fn finish(&self, done: bool) -> anyhow::Result<()> {
        let here = call_with_retry(|| self.source.store.writers()).context("read the registry of the source")?;
        let stages: BTreeMap<Writer, WriterStage> =
            here.registrations.iter().map(|known| (known.writer, known.stage)).collect();
        let there = call_with_retry(|| self.target.store.writers()).context("read the registry of the target")?;
        for known in there.registrations.iter().filter(|known| known.stage == WriterStage::Live && is_copied(known)) {
            let is_over = stages.get(&known.writer).is_some_and(|stage| *stage != WriterStage::Live);
            let is_source = stages.contains_key(&known.writer) || self.writers.contains(&known.writer);
            // An import continues into the target, if it is not done.
            if is_over || done && is_source && known.writer.incarnation != IMPORT {
                importer::retire(self.target.store, known.writer)?;
            }
        }
        Ok(())
    }

    /// After an error: removes the registrations of this copy if it changed no row. Adds the
    /// remaining state to the error.
    pub fn abandon(&self, error: anyhow::Error) -> anyhow::Error {
        if self.has_swapped {
            return error.context("the copy is not complete; the counters that are copied stay: run it again");
        }
        for registration in &self.registered {
            // If this fails too, the next run finds the registration and continues with it.
            let _ = block_on(self.target.store.unregister(registration.writer, registration.version));
        }
        error.context("nothing was copied")
    }

    fn record_stages(&mut self, known: &WriterList) {
        self.stages.extend(known.registrations.iter().map(|known| (known.writer, known.stage)));
    }
}

/// Returns true if a registration stands for a writer of another store.
pub fn is_copied(known: &Registration) -> bool {
    known.holder.is_none() && known.lease_until == Millis(EPOCH_MILLIS_MAX) && known.writer.incarnation != IMPORTED
}

fn parse_name(bytes: &[u8]) -> anyhow::Result<Name<'_>> {
    Name::new(bytes).map_err(|error| anyhow!("{}: {error}", terminal::format_name(bytes)))
}
