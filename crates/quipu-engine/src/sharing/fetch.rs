//! Rows come from the store, one flight per counter.
//!
//! In: commands that wait for a row, and counters that were read lately. Out: what the counters show; then whoever waits runs again.
//!
//! Invariants:
//! - a row replaces all that was known of other writers: cells of two rows are never mixed;
//! - a row that was overtaken by something newer on its way is not shown; it is asked for again.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use quipu_model::shared::Seen;
use quipu_model::{KeptName, Refusal, StoreError};

use super::bodies::Foreign;
use super::own::OwnCell;
use super::settle::named;
use super::{Busy, Sharing};
use crate::apply::table::Look;
use crate::load::Loaded;
use crate::sync::{Ordering, lock};
use crate::turn::Turn;

/// Rows asked for at once: enough to hide the way to the store and back, few enough to leave it air.
const ROWS_MAX: usize = 64;

/// Counters kept in mind for being fetched ahead.
pub(super) const AHEAD_MAX: usize = 4_096;

/// What became of a row that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sight {
    /// It is shown, and own cells have heard of it.
    Shown,
    /// A newer one is.
    Overtaken,
    /// Own cells have moved on meanwhile, or nobody has asked for too long what became of the life that one of them is of, or it could not be written
    /// down: it was not looked at.
    Missed,
}

impl Sharing<'_> {
    /// Fetches what is waited for, then what was read lately; how many rows.
    pub async fn fetch(self) -> usize {
        if !self.shared.may_call("read", self.elapsed()) {
            return 0;
        }
        let mut names: BTreeSet<KeptName> = self.inner.loads.wanted_rows();
        {
            let mut ahead = lock(&self.shared.ahead);
            while let Some(name) = (names.len() < ROWS_MAX).then(|| ahead.pop_first()).flatten() {
                names.insert(name);
            }
        }
        let names: Vec<KeptName> = names.into_iter().take(ROWS_MAX).collect();
        let (asked, failed) = (Cell::new(0), Cell::new(0));
        let flights = names.iter().map(|name| {
            let (asked, failed) = (&asked, &failed);
            let flight = async move {
                let Some(is_read) = self.fetch_one(name).await else { return };
                asked.set(asked.get() + 1);
                failed.set(failed.get() + usize::from(!is_read));
            };
            Box::pin(flight) as Flight<'_>
        });
        join(flights.collect()).await;
        self.shared.called_each("read", self.elapsed(), asked.get(), failed.get());
        names.len()
    }

    /// Fetches a row; whether it could be read. `None`: it was not asked for.
    pub(super) async fn fetch_one(&self, name: &KeptName) -> Option<bool> {
        let asked_at = self.elapsed();
        // Known to the table, so that it can be shown and stays while the row is on its way.
        let turn = match self.enter(name) {
            Ok(turn) => turn,
            // It has left memory: whoever waits brings it back first.
            Err(Refusal::AtRest { .. }) => {
                self.turned_away(name, &Loaded::Again);
                return None;
            }
            Err(refusal) => {
                self.turned_away(name, &Loaded::Refused(refusal));
                return None;
            }
        };
        let _busy = Busy::hold(self.inner, name);
        let seen = self.read_all(name).await;
        let is_read = seen.is_ok();
        match seen {
            Ok((seen, foreign)) => {
                self.shared.figures.rows.fetch_add(1, Ordering::Relaxed);
                self.see(name, &seen, Some(&foreign), asked_at, turn);
            }
            // Who waits is served with what is known; the store is not asked for this row again before that has run out.
            Err(_) => self.excuse_one(name, self.elapsed() + self.shared.options.fetch_wait),
        }
        for job in self.inner.loads.landed_rows(name, asked_at) {
            job.fetched();
        }
        Some(is_read)
    }

    /// The row of a counter, and if it is a sketch the bodies beside it.
    async fn read_all(&self, name: &KeptName) -> Result<(Seen, Foreign), StoreError> {
        let is_sketch = {
            let (table, hash) = (&self.inner.table, self.inner.table.hash(name));
            let shard = table.lock(table.shard_of(hash));
            shard.body(name).is_some() || shard.own_shelves().has(name)
        };
        if !is_sketch {
            let seen = self.shared.store.read(named(name)).await?;
            if !seen.snapshot.is_sketch() {
                return Ok((seen, Foreign::NONE));
            }
        }
        let seen = self.shared.store.read_bodies(named(name)).await?;
        let foreign = Foreign::of(&seen, self.shared.node, &self.inner.sketch_key);
        Ok((seen.seen, foreign))
    }

    /// Makes sure that a counter is known to the table; the turn of what is known of it.
    pub(super) fn enter(&self, name: &KeptName) -> Result<u32, Refusal> {
        let (table, hash) = (&self.inner.table, self.inner.table.hash(name));
        {
            let mut shard = table.lock(table.shard_of(hash));
            if shard.look(hash, name) == Look::Absent && shard.own(hash, name).is_none() {
                shard.give_own(hash, name, Box::default());
            }
            if let Some(owned) = shard.own(hash, name) {
                return Ok(owned.turn);
            }
        }
        // From before the store: that it is this node's is written down first.
        let mut turn = Turn::new(self.inner);
        let known = turn.share(named(name), |share| share.owned.turn);
        turn.finish();
        known
    }

    /// Shows a row, and the bodies beside it if they were read, unless something newer has come in between.
    pub(super) fn see(
        &self,
        name: &KeptName,
        seen: &Seen,
        foreign: Option<&Foreign>,
        asked_at: Duration,
        known: u32,
    ) -> Sight {
        let now = self.elapsed();
        let mut turn = Turn::new(self.inner);
        let heir = |incarnation| self.footing(incarnation, now);
        let (body_bytes, at) = (foreign.map_or(0, Foreign::bytes_max), seen.at);
        let seen = turn.share_with(named(name), body_bytes, |share| {
            let unsure = |cell: &OwnCell| self.may_be_forgotten(cell.incarnation, seen.at, now);
            let known = share.owned.turn == known && !share.owned.cells.iter().any(unsure);
            known.then(|| share.see(seen, foreign, (asked_at, now), &heir))
        });
        turn.finish();
        let sight = match seen {
            Ok(Some(Some(mut left))) => {
                // What the store may have forgotten in good order it has not lost.
                left.row_lost = left.row_lost.filter(|incarnation| !self.is_removed(*incarnation, at));
                self.heed(name, left);
                Sight::Shown
            }
            Ok(Some(None)) => Sight::Overtaken,
            Ok(None) | Err(_) => Sight::Missed,
        };
        self.enqueue(name);
        sight
    }

    /// Whoever waits for this row hears that there is none.
    fn turned_away(&self, name: &KeptName, loaded: &Loaded) {
        for job in self.inner.loads.take_rows(name) {
            job.finish(loaded.clone());
        }
    }
}

pub(super) type Flight<'f> = Pin<Box<dyn Future<Output = ()> + 'f>>;

/// Waits for all of them at once.
pub(super) async fn join(mut flights: Vec<Flight<'_>>) {
    std::future::poll_fn(|context| {
        flights.retain_mut(|flight| flight.as_mut().poll(context).is_pending());
        if flights.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}
