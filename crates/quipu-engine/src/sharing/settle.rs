//! Own cells go to the store, until it has confirmed them.
//!
//! In: counters of which something is unsettled and due. Out: one put of many cells; what its verdicts mean is written down.
//!
//! Each counter has a due time of its own: a round takes what is due and looks at nothing else. A counter that the store does not take is put again
//! after a while that doubles; the others go on.
//!
//! Invariants:
//! - what is put is synced first, so that no crash takes back what others have seen;
//! - a counter leaves the list of the unsettled only when the store has confirmed the newest that this node says of it.

use std::cell::Cell;
use std::error::Error;
use std::time::Duration;

use quipu_model::shared::{Put, Verdict};
use quipu_model::{Incarnation, KeptName, Name, PUTS_MAX, PutResult};

use super::health::describe_causes;
use super::lease::Heir;
use super::own::OwnCell;
use super::share::{Footing, Left};
use super::{BACKOFF_MAX, BACKOFF_MIN, Busy, Sharing, jittered};
use crate::apply::unsettled::UnsettledEntry;
use crate::failpoint::step;
use crate::journal::Wait;
use crate::sync::{Ordering, lock};
use crate::turn::Turn;

/// Bodies that are put at once: each may have megabytes.
const BODIES_MAX: usize = 16;

/// After so many puts in a row without a verdict, some 300 ms, a counter is logged: what one lost connection costs is not worth a line.
const FAILURES_LOGGED: u32 = 5;

/// Most counters that are logged as failing in [`FAILURE_LOG_EVERY`]: a store may refuse all of 100,000.
const FAILURE_LOG_MAX: u32 = 5;
const FAILURE_LOG_EVERY: Duration = Duration::from_secs(60);

/// How many failing counters were logged lately.
#[derive(Default)]
pub(super) struct FailureLog {
    began: Option<Duration>,
    logged: u32,
    unlogged: u64,
}

impl FailureLog {
    /// Whether one more is logged; then how many were not since the last one.
    fn admit(&mut self, now: Duration) -> Option<u64> {
        if self.began.is_none_or(|began| now.saturating_sub(began) >= FAILURE_LOG_EVERY) {
            (self.began, self.logged) = (Some(now), 0);
        }
        if self.logged >= FAILURE_LOG_MAX {
            self.unlogged += 1;
            return None;
        }
        self.logged += 1;
        Some(std::mem::take(&mut self.unlogged))
    }
}

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
        let names = std::mem::take(&mut batch.bodies);
        // They have a pause of their own: sketches that the store does not take hold up no counts.
        let bodies = if self.shared.may_call("put body", now) { self.settle_bodies(names).await } else { 0 };
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
        self.take_results(&batch, &results);
        step!("settled");
        puts.len() + bodies
    }

    /// Takes the results of a call: a counter of which every put has a verdict has its next turn, another one waits.
    fn take_results(&self, batch: &Batch<'_>, results: &[PutResult]) {
        let mut rest = &batch.puts[..];
        let mut results = results.iter();
        // The puts of a counter are next to each other.
        while let Some((name, _)) = rest.first() {
            let count = rest.iter().take_while(|(other, _)| other == name).count();
            let (puts, others) = rest.split_at(count);
            let mut failure = None;
            for ((_, put), result) in puts.iter().zip(results.by_ref()) {
                match result {
                    Ok(verdict) => self.told(name, put, verdict),
                    Err(error) => {
                        self.shared.note_history(error);
                        failure = Some(error);
                    }
                }
            }
            match failure {
                Some(error) => self.postpone(name, error),
                None => self.confirm_put(name),
            }
            rest = others;
        }
    }

    /// Puts own bodies, several at once; how many.
    async fn settle_bodies(&self, names: Vec<KeptName>) -> usize {
        let failures = Cell::new(0);
        let flights = names.iter().map(|name| {
            let failures = &failures;
            let flight = async move {
                match self.settle_body(name).await {
                    Ok(_) => self.confirm_put(name),
                    Err(error) => {
                        self.shared.note_history(&error);
                        failures.set(failures.get() + 1);
                        self.postpone(name, &error);
                    }
                }
            };
            Box::pin(flight) as super::fetch::Flight<'_>
        });
        super::fetch::join(flights.collect()).await;
        self.shared.called_each("put body", self.elapsed(), names.len(), failures.get());
        names.len()
    }

    /// What is due, shard by shard.
    fn collect(&self, now: Duration) -> Batch<'e> {
        let table = &self.inner.table;
        let mut batch = Batch { puts: Vec::new(), bodies: Vec::new(), _busy: Vec::new() };
        // Not always the same ones first, should they be more than one put takes.
        let first = self.shared.random() as usize % table.shard_count();
        for index in (first..table.shard_count()).chain(0..first) {
            let room = PUTS_MAX.saturating_sub(batch.puts.len());
            let due: Vec<(KeptName, UnsettledEntry)> = {
                let shard = table.lock(index);
                shard.unsettled.due(now).take(room).map(|(name, entry)| (name.clone(), entry)).collect()
            };
            for (name, entry) in due {
                if batch.puts.len() >= PUTS_MAX {
                    return batch;
                }
                if self.is_ready(&name, entry) {
                    self.collect_one(name, now, &mut batch);
                }
            }
        }
        batch
    }

    /// Makes sure that a counter that is due is in memory, and that its cells are doubted if an audit pass waits for it.
    fn is_ready(&self, name: &KeptName, entry: UnsettledEntry) -> bool {
        let (table, hash) = (&self.inner.table, self.inner.table.hash(name));
        if !table.lock(table.shard_of(hash)).has_slot(hash, name) {
            if self.inner.memory_is_full() {
                // It must not stand before others that are in memory.
                self.requeue(name);
                return false;
            }
            if let Err(error) = self.inner.loads.bring_back(self.inner, name) {
                self.postpone(name, &error);
                return false;
            }
        }
        // Without room in the journal it stays as it is, and is tried again.
        if entry.doubt_again && !self.doubt(name) {
            return false;
        }
        if entry.doubt_again {
            self.update_unsettled(name, |entry| UnsettledEntry { doubt_again: false, ..entry.unwrap_or_default() });
        }
        true
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
        if left.row_lost.is_some() {
            self.note_loss();
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
        let due = self.next_turn(name);
        self.update_unsettled(name, |entry| UnsettledEntry { due, ..entry.unwrap_or_default() });
    }

    /// The same, but what has a turn keeps it: a counter that is read all the time is settled, too.
    pub(super) fn enqueue(&self, name: &KeptName) {
        let due = self.next_turn(name);
        self.update_unsettled(name, |entry| entry.unwrap_or(UnsettledEntry { due, ..UnsettledEntry::default() }));
    }

    /// All puts of a counter had a verdict: it waits for nothing but its next turn.
    fn confirm_put(&self, name: &KeptName) {
        let due = self.next_turn(name);
        self.update_unsettled(name, |entry| UnsettledEntry { due, failures: 0, ..entry.unwrap_or_default() });
    }

    /// A put of a counter had no verdict: it waits, each time twice as long, and no other counter with it.
    fn postpone(&self, name: &KeptName, error: &dyn Error) {
        let (now, random) = (self.elapsed(), self.shared.random());
        let mut failures = 0;
        self.update_unsettled(name, |entry| {
            let entry = entry.unwrap_or_default();
            failures = entry.failures.saturating_add(1);
            let wait = (BACKOFF_MIN * (1 << (failures - 1).min(16))).min(BACKOFF_MAX);
            UnsettledEntry { due: now + jittered(wait, random), failures, ..entry }
        });
        self.shared.figures.failed_puts.fetch_add(1, Ordering::Relaxed);
        if failures == FAILURES_LOGGED {
            self.log_failing(name, error);
        }
    }

    /// Logs that the store takes no put of a counter, of a few counters at a time.
    fn log_failing(&self, name: &KeptName, error: &dyn Error) {
        let Some(unlogged) = lock(&self.shared.failure_log).admit(self.elapsed()) else { return };
        let counter = String::from_utf8_lossy(name);
        tracing::warn!(
            %counter,
            error = describe_causes(error),
            unlogged,
            "the shared store takes no put of this counter: it is tried again every few seconds, the others go on"
        );
    }

    fn next_turn(&self, name: &KeptName) -> Duration {
        self.elapsed() + self.inner.namespaces.now().policy(named(name)).share.settle_every
    }

    /// Replaces what the list of the unsettled says of a counter; one that is settled is taken off.
    fn update_unsettled(&self, name: &KeptName, update: impl FnOnce(Option<UnsettledEntry>) -> UnsettledEntry) {
        let (table, hash) = (&self.inner.table, self.inner.table.hash(name));
        let mut shard = table.lock(table.shard_of(hash));
        // What waits for an older life to be this node's to act for is listed by the audit that follows then.
        let present = self.shared.present();
        let acts = |cell: &&OwnCell| cell.incarnation == present || self.shared.heir(cell.incarnation).is_ours();
        let is_resident = shard.has_slot(hash, name);
        let owned = shard.own(hash, name);
        let unsettled = || owned.iter().flat_map(|owned| &owned.cells).filter(|cell| !cell.settled).filter(acts);
        let (is_unsettled, is_doubted) = (unsettled().next().is_some(), unsettled().any(|cell| cell.doubted));
        if !is_resident && !shard.unsettled.contains(name) {
            // It has just left memory, unlisted: an audit pass looks for it.
            shard.left_unsettled |= shard.unloaded;
            return;
        }
        shard.unsettled.update(name, |before| {
            let after = update(before);
            match is_resident {
                true if !is_unsettled && !after.doubt_again => None,
                true => Some(UnsettledEntry { at_rest: false, doubted: is_doubted || after.doubt_again, ..after }),
                // Only the ledger can tell, so it is brought back when it is due.
                false => Some(after),
            }
        });
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_failing_counters_are_logged_at_a_time_and_the_next_line_counts_the_others() {
        let at = Duration::from_secs;
        let mut log = FailureLog::default();
        let logged: Vec<_> = (0..100_000).filter_map(|_| log.admit(at(1))).collect();
        assert_eq!(logged, [0; FAILURE_LOG_MAX as usize]);
        assert_eq!(log.admit(at(60)), None);
        assert_eq!((log.admit(at(61)), log.admit(at(61))), (Some(100_001 - u64::from(FAILURE_LOG_MAX)), Some(0)));
    }
}
