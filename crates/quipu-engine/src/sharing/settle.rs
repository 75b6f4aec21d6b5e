//! Own cells go to the store, until it has confirmed them.
//!
//! In: counters of which something is unsettled and due. Out: one put of many cells; what its verdicts mean is written down.
//!
//! Invariants:
//! - what is put is synced first, so that no crash takes back what others have seen;
//! - a counter leaves the list of the unsettled only when the store has confirmed the newest that this node says of it.

use std::time::Duration;

use quipu_model::shared::{Put, Verdict};
use quipu_model::{Incarnation, KeptName, Name, PUTS_MAX};

use super::lease::Heir;
use super::share::{Footing, Left};
use super::{Busy, Sharing};
use crate::failpoint::step;
use crate::journal::Wait;
use crate::sync::Ordering;
use crate::turn::Turn;

/// Bodies that are put at once: each may have megabytes.
const BODIES_MAX: usize = 16;

/// Cells to be put, and the counters they are of, kept in memory meanwhile.
struct Batch<'e> {
    puts: Vec<(KeptName, Put)>,
    /// Counters whose own bodies are to be put.
    bodies: Vec<KeptName>,
    _busy: Vec<Busy<'e>>,
}

impl<'e> Sharing<'e> {
    /// Puts what is due; how many cells.
    pub async fn settle(self) -> usize {
        let now = self.elapsed();
        if !self.shared.may_put(now) || !self.shared.may_call("put", now) {
            return 0;
        }
        let mut batch = self.collect(now);
        let bodies = self.settle_bodies(std::mem::take(&mut batch.bodies)).await;
        if batch.puts.is_empty() {
            return bodies;
        }
        let end = self.inner.journal.reserved();
        if self.inner.committed(Wait { written: end, synced: end }).await.is_err() {
            return 0;
        }
        // The disk may have taken longer than the lease; and after a long sleep the node may have another one, for another life.
        if !self.shared.may_put(self.elapsed()) || !self.may_send(now) {
            return 0;
        }
        step!("settling");
        let puts: Vec<(Name<'_>, Put)> = batch.puts.iter().map(|(name, put)| (named(name), *put)).collect();
        let result = self.shared.store.put(&puts).await;
        self.shared.called("put", self.elapsed(), &result);
        let Ok(results) = result else { return 0 };
        step!("put");
        self.shared.figures.puts.fetch_add(puts.len() as u64, Ordering::Relaxed);
        for ((name, put), result) in batch.puts.iter().zip(&results) {
            match result {
                Ok(verdict) => self.told(name, put, verdict),
                Err(_) => self.requeue(name),
            }
        }
        step!("settled");
        puts.len() + bodies
    }

    /// Puts own bodies, several at once; how many.
    async fn settle_bodies(&self, names: Vec<KeptName>) -> usize {
        let flights = names.iter().map(|name| {
            let flight = async move {
                let result = self.settle_body(name).await;
                self.shared.called("put", self.elapsed(), &result);
                self.requeue(name);
            };
            Box::pin(flight) as super::fetch::Flight<'_>
        });
        super::fetch::join(flights.collect()).await;
        names.len()
    }

    /// What is due, shard by shard.
    fn collect(&self, now: Duration) -> Batch<'e> {
        let table = &self.inner.table;
        let mut batch = Batch { puts: Vec::new(), bodies: Vec::new(), _busy: Vec::new() };
        // Not always the same ones first, should they be more than one put takes.
        let first = self.shared.random() as usize % table.shard_count();
        for index in (first..table.shard_count()).chain(0..first) {
            let due: Vec<KeptName> = {
                let shard = table.lock(index);
                shard
                    .unsettled
                    .iter()
                    .filter(|(_, due)| **due <= now)
                    .map(|(name, _)| name.clone())
                    .take(PUTS_MAX)
                    .collect()
            };
            for name in due {
                if batch.puts.len() >= PUTS_MAX {
                    return batch;
                }
                self.collect_one(name, now, &mut batch);
            }
        }
        batch
    }

    fn collect_one(&self, name: KeptName, now: Duration, batch: &mut Batch<'e>) {
        let (node, present) = (self.shared.node, self.shared.present());
        let mut turn = Turn::new(self.inner);
        let shared = turn.share(named(&name), |share| {
            let (mut lapsed, mut late, mut body) = (false, false, false);
            let mut puts = Vec::new();
            for cell in share.owned.cells.iter().filter(|cell| !cell.settled) {
                if cell.is_body() {
                    body |= cell.incarnation == present || self.shared.heir(cell.incarnation).acts(now);
                    continue;
                }
                lapsed |= cell.own.lapsed.is_some();
                let heir = (cell.incarnation != present).then(|| self.shared.heir(cell.incarnation));
                // Of a life on its way out only a swap can settle anything.
                late |= matches!(heir, Some(Heir::Late { .. }));
                let acts = heir.is_none_or(|heir| !matches!(heir, Heir::Late { .. }) && heir.acts(now));
                puts.extend(cell.put(node).filter(|_| acts));
            }
            (puts, lapsed, late, body)
        });
        turn.finish();
        // Without room in the journal it stays as it is, and is tried again.
        let Ok((puts, lapsed, late, body)) = shared else { return };
        if body && batch.bodies.len() < BODIES_MAX {
            batch.bodies.push(name.clone());
        }
        if late {
            self.shared.chore(&name);
        }
        if lapsed {
            // Only the row can say whether it was so.
            self.shared.fetch_ahead(&name);
        }
        let fits = batch.puts.len() + puts.len() <= PUTS_MAX;
        match Busy::hold(self.inner, &name).filter(|_| fits && !puts.is_empty()) {
            Some(busy) => {
                batch._busy.push(busy);
                batch.puts.extend(puts.into_iter().map(|put| (name.clone(), put)));
            }
            // A body has its turn when it was put.
            None if body => {}
            None => self.requeue(&name),
        }
    }

    /// How this node stands to one of its older lives.
    pub(super) fn footing(&self, incarnation: Incarnation, now: Duration) -> Footing {
        Footing::of(self.shared.heir(incarnation), now)
    }

    fn told(&self, name: &KeptName, put: &Put, verdict: &Verdict) {
        let now = self.elapsed();
        if matches!(verdict, Verdict::Behind { epoch, .. } if *epoch < put.epoch) {
            self.note_drift(name);
        }
        let mut turn = Turn::new(self.inner);
        let left =
            turn.share(named(name), |share| share.told(put, verdict, &|incarnation| self.footing(incarnation, now)));
        turn.finish();
        if let Ok(left) = left {
            self.heed(name, left);
        }
        self.requeue(name);
    }

    /// Does what a row or a verdict left to do.
    pub(super) fn heed(&self, name: &[u8], left: Left) {
        if left.swap {
            self.shared.chore(name);
        }
        if left.fetch {
            self.shared.fetch_ahead(name);
        }
        if left.over {
            self.shared.note_over();
        }
        if left.twin {
            self.shared.fence(format!(
                "the store knows newer values of {}.{} than this node does: a copy of its data directory is running; stop one of them, and start it on a restored directory",
                self.shared.node,
                self.shared.present()
            ));
        }
        if let Some(incarnation) = left.lost {
            let node = self.shared.node;
            self.shared.fence(format!(
                "writer {node}.{incarnation} was away for so long that the store has forgotten what it knew of it, and it has adds that may not have been counted; stop this node, and have them counted or dropped: `quipu writers adopt {node}.{incarnation}`"
            ));
        }
        self.shared.figures.carries.fetch_add(left.carried, Ordering::Relaxed);
    }

    /// Takes a counter off the list of the unsettled, or gives it its next turn.
    pub(super) fn requeue(&self, name: &KeptName) {
        let due = self.elapsed() + self.inner.namespaces.now().policy(named(name)).share.settle_every;
        self.with_unsettled(name, |listed| *listed.insert(due));
    }

    /// The same, but what has a turn keeps it: a counter that is read all the time is settled, too.
    pub(super) fn enqueue(&self, name: &KeptName) {
        let due = self.elapsed() + self.inner.namespaces.now().policy(named(name)).share.settle_every;
        self.with_unsettled(name, |listed| *listed.get_or_insert(due));
    }

    fn with_unsettled(&self, name: &KeptName, list: impl FnOnce(&mut Option<Duration>) -> Duration) {
        let (table, hash) = (&self.inner.table, self.inner.table.hash(name));
        let mut shard = table.lock(table.shard_of(hash));
        // What waits for an older life to be this node's to act for is listed by the audit that follows then.
        let present = self.shared.present();
        let acts = |incarnation| incarnation == present || self.shared.heir(incarnation).is_ours();
        let unsettled = shard
            .own(hash, name)
            .is_some_and(|owned| owned.cells.iter().any(|cell| !cell.settled && acts(cell.incarnation)));
        let mut listed = shard.unsettled.remove(name);
        if unsettled {
            let due = list(&mut listed);
            shard.unsettled.insert(name.clone(), due);
        }
    }

    /// Lets commands go on that have waited for the store long enough: what is known is shown.
    pub fn excuse(self) -> usize {
        let now = self.elapsed();
        let late = self.inner.loads.late_rows(now, self.shared.options.fetch_wait);
        for job in &late {
            for name in job.rows() {
                self.excuse_one(name, now + self.shared.options.fetch_wait);
            }
            job.finish(crate::load::Loaded::Again);
        }
        late.len()
    }

    pub(super) fn excuse_one(&self, name: &KeptName, until: Duration) {
        let (table, hash) = (&self.inner.table, self.inner.table.hash(name));
        if let Some(owned) = table.lock(table.shard_of(hash)).own(hash, name) {
            owned.excused_until = Some(until);
        }
    }
}

/// A name from the table.
pub(super) fn named(name: &[u8]) -> Name<'_> {
    Name::new(name).expect("names in the table have been checked")
}
