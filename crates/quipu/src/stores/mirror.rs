//! Copies rows from one store into another, writer by writer.
//!
//! In: rows of the source. Out: the same cells in the target, whose registry knows their writers; and the counters that were refused.
//!
//! Invariants:
//! - a writer is registered in the target before a cell of it is there, under a lease without end: it may live on in the source;
//! - a writer that is over in the source, or that `--done` names, is retired in the target once all rows are in;
//! - a writer that runs on the target itself is left alone;
//! - a copy that fails before it has changed a row leaves no registration behind.
//!
//! Not here: the next row (`quipu_model::shared::mirror`), comparing afterwards (`copy`).

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, anyhow, bail};
use futures_util::future::join_all;
use quipu_model::shared::snapshot::EPOCH_MILLIS_MAX;
use quipu_model::shared::{
    MirrorRefused, Next, RegisterVerdict, Registration, Seen, Snapshot, Stage, StoredRow, SwapVerdict, Version, mirror,
};
use quipu_model::{Millis, Name, Store, Writer, Writers};
use xxhash_rust::xxh3::xxh3_64;

use crate::show;
use crate::stores::ask::{patiently, wait};
use crate::stores::mover::{self, IMPORT, IMPORTED};
use crate::stores::rows;
use crate::stores::skipped::Skipped;

/// How often a row that others change at the same time is computed again.
const ROUNDS_MAX: usize = 20;

/// A store, and the number by which rows in other stores name it.
#[derive(Clone, Copy)]
pub struct Site<'s> {
    store: &'s dyn Store,
    place: &'s str,
    number: u64,
}

impl<'s> Site<'s> {
    /// The store at this address, as [`StoreUrl::place`](crate::backends::StoreUrl::place) gives it.
    pub fn new(store: &'s dyn Store, place: &'s str) -> Site<'s> {
        Site { store, place, number: xxh3_64(place.as_bytes()) }
    }
}

/// A copy under way.
pub struct Mirror<'s> {
    source: Site<'s>,
    target: Site<'s>,
    /// The target's registry, as far as it is known.
    stages: BTreeMap<Writer, Stage>,
    /// The writers of the source's cells.
    writers: BTreeSet<Writer>,
    /// Registrations that this copy has made.
    made: Vec<Registration>,
    marked: bool,
    /// Whether a row of the target may have changed.
    has_swapped: bool,
    /// Rows of counters that exist in the source.
    pub counters: u64,
    /// Rows of the target that changed.
    pub changed: u64,
    /// Counters that cannot be copied without counting twice or losing counts.
    pub refused: Skipped,
    /// Sketches.
    pub skipped: Skipped,
}

impl<'s> Mirror<'s> {
    /// Reads the registries.
    pub fn begin(source: Site<'s>, target: Site<'s>) -> anyhow::Result<Mirror<'s>> {
        // The first calls are not repeated: a wrong address or password should not take half a minute.
        let here = wait(source.store.writers()).context("read the registry of the source")?;
        let known = wait(target.store.writers()).context("read the registry of the target")?;
        for (known, of) in [(&known, source.place), (&here, target.place)] {
            // Earlier versions copied sums, under a writer that was named after the source.
            if known.registrations.iter().any(|known| known.writer.node == mover::writer(of).node) {
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
            made: Vec::new(),
            marked: false,
            has_swapped: false,
            counters: 0,
            changed: 0,
            refused: Skipped::default(),
            skipped: Skipped::default(),
        };
        mirror.learn(&known);
        Ok(mirror)
    }

    /// Copies some rows.
    pub fn copy(&mut self, rows: Vec<(Box<[u8]>, Seen)>) -> anyhow::Result<()> {
        let mut left = rows;
        for (_, seen) in &left {
            self.counters += u64::from(seen.snapshot.as_of(seen.at).exists());
        }
        for _ in 0..ROUNDS_MAX {
            if left.is_empty() {
                return Ok(());
            }
            left = self.round(left)?;
        }
        bail!("{} counters change in the target faster than they can be copied: run it again", left.len())
    }

    /// Copies rows; those whose rows in the target changed meanwhile are left.
    fn round(&mut self, rows: Vec<(Box<[u8]>, Seen)>) -> anyhow::Result<Vec<(Box<[u8]>, Seen)>> {
        let there = rows::read_all(self.target.store, rows.iter().map(|(name, _)| name.clone()).collect())?;
        let mut swaps: Vec<(Version, Snapshot)> = Vec::new();
        let mut swapping = Vec::new();
        for ((name, seen), (_, there)) in rows.into_iter().zip(there) {
            let source = StoredRow { seen: &seen, store: self.source.number };
            let target = StoredRow { seen: &there, store: self.target.number };
            match mirror(source, target, &self.stages) {
                Ok(Next::Row(next)) => {
                    self.writers.extend(next.cells.keys().map(|id| id.writer));
                    swaps.push((there.snapshot.version, next));
                    swapping.push((name, seen));
                }
                Ok(Next::Same | Next::Gone) => {}
                Err(MirrorRefused::Sketch) => self.skipped.add(name, MirrorRefused::Sketch.text().into()),
                Err(refused) => self.refused.add(name, refused.text().into()),
            }
        }
        if swaps.is_empty() {
            return Ok(Vec::new());
        }
        self.register()?;
        let store = self.target.store;
        let names = swapping.iter().map(|(name, _)| named(name)).collect::<anyhow::Result<Vec<_>>>()?;
        let asked = names.iter().zip(&swaps).map(|(name, (version, next))| store.swap(*name, *version, Some(next)));
        self.has_swapped = true;
        let answers = wait(join_all(asked));
        let mut moved = Vec::with_capacity(answers.len());
        for ((answer, (version, next)), name) in answers.into_iter().zip(&swaps).zip(names) {
            // One whose answer was lost and that is asked again finds the row moved, and the next round finds nothing to do.
            let again = |_| patiently(|| store.swap(name, *version, Some(next)));
            let verdict = answer.or_else(again).context("change a row of the target")?;
            moved.push(verdict == SwapVerdict::Moved);
        }
        self.changed += moved.iter().filter(|moved| !**moved).count() as u64;
        let left = swapping.into_iter().zip(moved).filter(|(_, moved)| *moved);
        Ok(left.map(|(row, _)| row).collect())
    }

    /// Registers the writers of the cells that are about to be there, and first the marks of imports that are done in the source.
    fn register(&mut self) -> anyhow::Result<()> {
        if !self.marked {
            let known = patiently(|| self.source.store.writers()).context("read the registry of the source")?;
            let marks = known.registrations.iter().map(|known| known.writer);
            self.writers.extend(marks.filter(|writer| writer.incarnation == IMPORTED));
            self.marked = true;
        }
        if self.writers.iter().all(|writer| self.stages.contains_key(writer)) {
            return Ok(());
        }
        let known = patiently(|| self.target.store.writers()).context("read the registry of the target")?;
        self.learn(&known);
        for &writer in self.writers.iter().filter(|writer| !self.stages.contains_key(writer)) {
            let next = Registration {
                writer,
                holder: None,
                lease_until: Millis(EPOCH_MILLIS_MAX),
                stage: Stage::Live,
                version: 1,
            };
            match patiently(|| self.target.store.register(0, &next)).context("register a writer in the target")? {
                RegisterVerdict::Registered => self.made.push(next),
                // By itself, a moment ago, or by this copy, if it had to ask twice.
                RegisterVerdict::Moved => {}
                RegisterVerdict::Full => {
                    bail!("the target has no room for another writer: see `quipu writers --store`")
                }
            }
        }
        self.stages.extend(self.writers.iter().map(|writer| (*writer, Stage::Live)).collect::<Vec<_>>());
        self.learn(&patiently(|| self.target.store.writers()).context("read the registry of the target")?);
        Ok(())
    }

    /// Retires in the target the copied writers that are over in the source, or, of a copy that is done, all nodes of the source.
    pub fn finish(&self, done: bool) -> anyhow::Result<()> {
        let here = patiently(|| self.source.store.writers()).context("read the registry of the source")?;
        let stages: BTreeMap<Writer, Stage> =
            here.registrations.iter().map(|known| (known.writer, known.stage)).collect();
        let there = patiently(|| self.target.store.writers()).context("read the registry of the target")?;
        for known in there.registrations.iter().filter(|known| known.stage == Stage::Live && is_copied(known)) {
            let is_over = stages.get(&known.writer).is_some_and(|stage| *stage != Stage::Live);
            let is_source = stages.contains_key(&known.writer) || self.writers.contains(&known.writer);
            // An import goes on into the target, if it is not done.
            if is_over || done && is_source && known.writer.incarnation != IMPORT {
                mover::retire(self.target.store, known.writer)?;
            }
        }
        Ok(())
    }

    /// After an error: removes the registrations that this copy made, if it changed no row; tells what is left.
    pub fn abandon(&self, error: anyhow::Error) -> anyhow::Error {
        if self.has_swapped {
            return error.context("the copy is not complete; the counters that are copied stay: run it again");
        }
        for made in &self.made {
            // If that fails, too, the next run finds it and goes on with it.
            let _ = wait(self.target.store.unregister(made.writer, made.version));
        }
        error.context("nothing was copied")
    }

    fn learn(&mut self, known: &Writers) {
        self.stages.extend(known.registrations.iter().map(|known| (known.writer, known.stage)));
    }
}

/// Whether a registration stands for a writer of another store.
pub fn is_copied(known: &Registration) -> bool {
    known.holder.is_none() && known.lease_until == Millis(EPOCH_MILLIS_MAX) && known.writer.incarnation != IMPORTED
}

fn named(bytes: &[u8]) -> anyhow::Result<Name<'_>> {
    Name::new(bytes).map_err(|error| anyhow!("{}: {error}", show::name(bytes)))
}
