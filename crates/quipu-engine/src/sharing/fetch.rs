//! Fetches rows from the store, with one call in flight per counter.
//!
//! In: commands that wait for a row, and recently read counters. Out: the counters' shown values;
//! then the waiting commands run again.
//!
//! Invariants:
//! - a row replaces all knowledge of other writers: cells of two rows are never mixed;
//! - a row that was overtaken by something newer is not shown; it is fetched again.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use quipu_model::shared::FetchedRow;
use quipu_model::{NameBuf, Refusal, StoreError};

use super::bodies::RowBodies;
use super::settle::as_name;
use super::{ResidencyPin, Sharing};
use crate::base::sync::{Ordering, lock};
use crate::bodies::own_cells::OwnCell;
use crate::core::load::LoadOutcome;
use crate::execute::turn::Turn;
use crate::table::Residency;

/// Rows fetched at once: enough to hide the round trip to the store, few enough not to load it.
const ROWS_MAX: usize = 64;

/// Most counters queued to be refreshed ahead of a read.
pub(crate) const REFRESH_QUEUE_MAX: usize = 4_096;

/// Outcome of a read row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RowOutcome {
    /// The row is shown and was applied to the own cells.
    Shown,
    /// A newer row is shown.
    Overtaken,
    /// The row was not applied. The own cells have changed meanwhile, or the change could not be
    /// journaled, or the registry was not read lately enough for one cell's incarnation.
    Missed,
}

impl Sharing<'_> {
    /// Fetches awaited rows, then recently read ones; returns the number of rows.
    pub async fn fetch(self) -> usize {
        if !self.link.may_call("read", self.elapsed()) {
            return 0;
        }
        let mut names: BTreeSet<NameBuf> = self.core.loads.awaited_rows();
        {
            let mut queue = lock(&self.link.refresh_queue);
            while let Some(name) = (names.len() < ROWS_MAX).then(|| queue.pop_first()).flatten() {
                names.insert(name);
            }
        }
        let names: Vec<NameBuf> = names.into_iter().take(ROWS_MAX).collect();
        let (asked, failed) = (Cell::new(0), Cell::new(0));
        let flights = names.iter().map(|name| {
            let (asked, failed) = (&asked, &failed);
            let flight = async move {
                let Some(is_read) = self.fetch_one(name).await else { return };
                asked.set(asked.get() + 1);
                failed.set(failed.get() + usize::from(!is_read));
            };
            Box::pin(flight) as BoxFuture<'_>
        });
        join_all(flights.collect()).await;
        self.link.record_results("read", self.elapsed(), asked.get(), failed.get());
        names.len()
    }

    /// Fetches a row. Returns true if it was read; `None`: it was not requested.
    pub(super) async fn fetch_one(&self, name: &NameBuf) -> Option<bool> {
        let asked_at = self.elapsed();
        // The table must know the counter, so that it stays in memory while the row is in flight.
        let generation = match self.ensure_known(name) {
            Ok(generation) => generation,
            // It has left memory: the waiting command loads it first.
            Err(Refusal::AtRest { .. }) => {
                self.reject_waiters(name, &LoadOutcome::Retry);
                return None;
            }
            Err(refusal) => {
                self.reject_waiters(name, &LoadOutcome::Refused(refusal));
                return None;
            }
        };
        let _pin = ResidencyPin::acquire(self.core, name);
        let fetched = self.read_with_bodies(name).await;
        let is_read = fetched.is_ok();
        match fetched {
            Ok((fetched, row_bodies)) => {
                self.link.metrics.rows.fetch_add(1, Ordering::Relaxed);
                self.apply_row(name, &fetched, Some(&row_bodies), asked_at, generation);
            }
            // Waiting commands get the known value. The store is not asked for this row again
            // before that serve time has run out.
            Err(_) => self.serve_one_stale(name, self.elapsed() + self.link.options.fetch_wait),
        }
        for job in self.core.loads.take_landed_rows(name, asked_at) {
            job.finish_fetched();
        }
        Some(is_read)
    }

    /// Reads the row of a counter, with its bodies if it is a sketch.
    async fn read_with_bodies(&self, name: &NameBuf) -> Result<(FetchedRow, RowBodies), StoreError> {
        let is_sketch = {
            let (table, hash) = (&self.core.table, self.core.table.hash(name));
            let shard = table.lock(table.shard_of(hash));
            shard.body(name).is_some() || shard.own_bodies().contains(name)
        };
        if !is_sketch {
            let fetched = self.link.store.read(as_name(name)).await?;
            if !fetched.snapshot.is_sketch() {
                return Ok((fetched, RowBodies::NONE));
            }
        }
        let fetched = self.link.store.read_bodies(as_name(name)).await?;
        let row_bodies = RowBodies::from_store(&fetched, self.link.node, &self.core.sketch_key);
        Ok((fetched.row, row_bodies))
    }

    /// Makes sure that the table knows a counter; returns the generation of its state.
    pub(super) fn ensure_known(&self, name: &NameBuf) -> Result<u32, Refusal> {
        let (table, hash) = (&self.core.table, self.core.table.hash(name));
        {
            let mut shard = table.lock(table.shard_of(hash));
            if shard.find(hash, name) == Residency::Absent && shard.own_cells(hash, name).is_none() {
                shard.put_back_own_cells(hash, name, Box::default());
            }
            if let Some(own_cells) = shard.own_cells(hash, name) {
                return Ok(own_cells.generation);
            }
        }
        // A counter from before the shared store: its ownership is journaled first.
        let mut turn = Turn::new(self.core);
        let known = turn.with_shared_counter(as_name(name), |counter| counter.own_cells.generation);
        turn.finish();
        known
    }

    /// Applies and shows a row with its bodies, if they were read, unless something newer came
    /// first.
    pub(super) fn apply_row(
        &self,
        name: &NameBuf,
        fetched: &FetchedRow,
        row_bodies: Option<&RowBodies>,
        asked_at: Duration,
        known: u32,
    ) -> RowOutcome {
        let now = self.elapsed();
        let mut turn = Turn::new(self.core);
        let authority = |incarnation| self.authority(incarnation, now);
        let (body_bytes, at) = (row_bodies.map_or(0, RowBodies::own_bytes_max), fetched.at);
        let fetched = turn.with_shared_counter_body(as_name(name), body_bytes, |counter| {
            let unsure = |cell: &OwnCell| self.may_be_forgotten(cell.incarnation, fetched.at, now);
            let known = counter.own_cells.generation == known && !counter.own_cells.cells.iter().any(unsure);
            known.then(|| counter.apply_row(fetched, row_bodies, (asked_at, now), &authority))
        });
        turn.finish();
        let outcome = match fetched {
            Ok(Some(Some(mut follow_up))) => {
                // A cell that the store may have forgotten in good order is not lost.
                follow_up.missing_in_row =
                    follow_up.missing_in_row.filter(|incarnation| !self.may_have_removed(*incarnation, at));
                self.follow_up(name, follow_up);
                RowOutcome::Shown
            }
            Ok(Some(None)) => RowOutcome::Overtaken,
            Ok(None) | Err(_) => RowOutcome::Missed,
        };
        self.enqueue(name);
        outcome
    }

    /// Ends all waits for this row: there is none.
    fn reject_waiters(&self, name: &NameBuf, loaded: &LoadOutcome) {
        for job in self.core.loads.take_rows(name) {
            job.finish(loaded.clone());
        }
    }
}

pub(super) type BoxFuture<'f> = Pin<Box<dyn Future<Output = ()> + 'f>>;

/// Waits for all flights concurrently.
pub(super) async fn join_all(mut flights: Vec<BoxFuture<'_>>) {
    std::future::poll_fn(|context| {
        flights.retain_mut(|flight| flight.as_mut().poll(context).is_pending());
        if flights.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}
