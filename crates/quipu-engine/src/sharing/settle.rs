//! Settles own cells: puts them to the store until it has confirmed them.
//!
//! In: counters that are unsettled and due. Out: one put of many cells; the effects of its
//! verdicts, journaled.
//!
//! Each counter has its own due time: a round takes only the due ones. A counter that the store
//! does not take is put again after a delay that doubles; the others go on.
//!
//! Invariants:
//! - a cell is synced before its put, so that no crash takes back a value that others have seen;
//! - a counter leaves the list of the unsettled only when the store has confirmed the newest seq of
//!   its own cells.

use std::cell::Cell;
use std::error::Error;
use std::time::Duration;

use quipu_model::shared::{Put, Verdict};
use quipu_model::{Incarnation, Name, NameBuf, PUTS_MAX, PutResult};

use super::health::describe_causes;
use super::lease::Succession;
use super::shared_counter::{Authority, FollowUp};
use super::{ResidencyPin, Sharing, jittered};
use crate::base::failpoint::step;
use crate::base::sync::{Ordering, lock};
use crate::bodies::own_cells::OwnCell;
use crate::core::store_link::{BACKOFF_MAX, BACKOFF_MIN};
use crate::execute::turn::Turn;
use crate::journal::Wait;
use crate::table::unsettled::UnsettledEntry;

/// Most bodies put at once: each may have megabytes.
const BODIES_MAX: usize = 16;

/// Consecutive puts without a verdict, some 300 ms, after which a counter is logged. One lost
/// connection is not worth a log line.
const FAILURES_LOGGED: u32 = 5;

/// Most counters logged as failing in [`FAILURE_LOG_EVERY`]: a store may refuse all of 100,000.
const FAILURE_LOG_MAX: u32 = 5;
const FAILURE_LOG_EVERY: Duration = Duration::from_secs(60);

/// Rate limit of the log lines about failing counters.
#[derive(Default)]
pub(crate) struct FailureLog {
    began: Option<Duration>,
    logged: u32,
    unlogged: u64,
}

impl FailureLog {
    /// Admits one more line; returns the number of suppressed ones since the last line.
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

/// Cells to put, with their counters pinned in memory.
struct SettleBatch<'e> {
    puts: Vec<(NameBuf, Put)>,
    /// Counters with own bodies to put.
    bodies: Vec<NameBuf>,
    _pins: Vec<ResidencyPin<'e>>,
}

impl<'e> Sharing<'e> {
    /// Puts due cells; returns their number.
    pub async fn settle(self) -> usize {
        let now = self.elapsed();
        if !self.link.may_put(now) || !self.link.may_call("put", now) {
            return 0;
        }
        let mut batch = self.collect_due(now);
        let names = std::mem::take(&mut batch.bodies);
        // Bodies have a pause of their own: sketches that the store does not take hold up no
        // counts.
        let bodies = if self.link.may_call("put body", now) { self.settle_bodies(names).await } else { 0 };
        if batch.puts.is_empty() {
            return bodies;
        }
        let end = self.core.journal.reserved();
        if self.core.commit_until(Wait { written: end, synced: end }).await.is_err() {
            return 0;
        }
        // The disk may have taken longer than the lease. After a long suspension the node may have
        // another lease, for another incarnation.
        if !self.link.may_put(self.elapsed()) || !self.may_send(now) {
            return 0;
        }
        step!("settling");
        let puts: Vec<(Name<'_>, Put)> = batch.puts.iter().map(|(name, put)| (as_name(name), *put)).collect();
        let result = self.link.store.put(&puts).await;
        self.link.record_result("put", self.elapsed(), &result);
        let Ok(results) = result else { return 0 };
        step!("put");
        self.link.metrics.puts.fetch_add(puts.len() as u64, Ordering::Relaxed);
        self.apply_results(&batch, &results);
        step!("settled");
        puts.len() + bodies
    }

    /// Applies the results of a call. A counter with a verdict for every put gets its next turn;
    /// another one waits.
    fn apply_results(&self, batch: &SettleBatch<'_>, results: &[PutResult]) {
        let mut remaining = &batch.puts[..];
        let mut results = results.iter();
        // The puts of a counter are adjacent.
        while let Some((name, _)) = remaining.first() {
            let count = remaining.iter().take_while(|(other, _)| other == name).count();
            let (puts, others) = remaining.split_at(count);
            let mut failure = None;
            for ((_, put), result) in puts.iter().zip(results.by_ref()) {
                match result {
                    Ok(verdict) => self.on_verdict(name, put, verdict),
                    Err(error) => {
                        self.link.record_history_change(error);
                        failure = Some(error);
                    }
                }
            }
            match failure {
                Some(error) => self.postpone(name, error),
                None => self.confirm_put(name),
            }
            remaining = others;
        }
    }

    /// Puts own bodies, several at once; returns the number of counters.
    async fn settle_bodies(&self, names: Vec<NameBuf>) -> usize {
        let failures = Cell::new(0);
        let flights = names.iter().map(|name| {
            let failures = &failures;
            let flight = async move {
                match self.settle_body(name).await {
                    Ok(_) => self.confirm_put(name),
                    Err(error) => {
                        self.link.record_history_change(&error);
                        failures.set(failures.get() + 1);
                        self.postpone(name, &error);
                    }
                }
            };
            Box::pin(flight) as super::fetch::BoxFuture<'_>
        });
        super::fetch::join_all(flights.collect()).await;
        self.link.record_results("put body", self.elapsed(), names.len(), failures.get());
        names.len()
    }

    /// Collects the due cells, shard by shard.
    fn collect_due(&self, now: Duration) -> SettleBatch<'e> {
        let table = &self.core.table;
        let mut batch = SettleBatch { puts: Vec::new(), bodies: Vec::new(), _pins: Vec::new() };
        // A random first shard, in case there are more due cells than one put takes.
        let first = self.link.random() as usize % table.shard_count();
        for index in (first..table.shard_count()).chain(0..first) {
            let room = PUTS_MAX.saturating_sub(batch.puts.len());
            let due: Vec<(NameBuf, UnsettledEntry)> = {
                let shard = table.lock(index);
                shard.unsettled.due(now).take(room).map(|(name, entry)| (name.clone(), entry)).collect()
            };
            for (name, entry) in due {
                if batch.puts.len() >= PUTS_MAX {
                    return batch;
                }
                if self.ensure_ready(&name, entry) {
                    self.collect_one(name, now, &mut batch);
                }
            }
        }
        batch
    }

    /// Makes sure that a due counter is in memory, and that its cells are doubted if an audit pass
    /// waits for it.
    fn ensure_ready(&self, name: &NameBuf, entry: UnsettledEntry) -> bool {
        let (table, hash) = (&self.core.table, self.core.table.hash(name));
        if !table.lock(table.shard_of(hash)).has_slot(hash, name) {
            if self.core.memory_is_full() {
                // It must not block others that are in memory.
                self.requeue(name);
                return false;
            }
            if let Err(error) = self.core.load_counter(name) {
                self.postpone(name, &error);
                return false;
            }
        }
        // Without room in the journal it stays as it is, and is tried again.
        if entry.was_unconfirmed && !self.mark_unconfirmed(name) {
            return false;
        }
        if entry.was_unconfirmed {
            self.update_unsettled(name, |entry| UnsettledEntry { was_unconfirmed: false, ..entry.unwrap_or_default() });
        }
        true
    }

    fn collect_one(&self, name: NameBuf, now: Duration, batch: &mut SettleBatch<'e>) {
        let (node, present) = (self.link.node, self.link.incarnation());
        let mut turn = Turn::new(self.core);
        let due_cells = turn.with_shared_counter(as_name(&name), |counter| {
            let (mut lapsed, mut late, mut body) = (false, false, false);
            let mut puts = Vec::new();
            for cell in counter.own_cells.cells.iter().filter(|cell| !cell.settled) {
                if cell.is_body() {
                    body |= cell.incarnation == present || self.link.succession(cell.incarnation).may_act(now);
                    continue;
                }
                lapsed |= cell.own.pending_expiry.is_some();
                let succession = (cell.incarnation != present).then(|| self.link.succession(cell.incarnation));
                // A retiring incarnation's cells can be settled only by a swap.
                late |= matches!(succession, Some(Succession::Late { .. }));
                let acts = succession
                    .is_none_or(|succession| !matches!(succession, Succession::Late { .. }) && succession.may_act(now));
                puts.extend(cell.pending_put(node).filter(|_| acts));
            }
            (puts, lapsed, late, body)
        });
        turn.finish();
        // Without room in the journal it stays as it is, and is tried again.
        let Ok((puts, lapsed, late, body)) = due_cells else { return };
        if body && batch.bodies.len() < BODIES_MAX {
            batch.bodies.push(name.clone());
        }
        if late {
            self.link.queue_repair(&name);
        }
        if lapsed {
            // Only the row can confirm the expiry.
            self.link.queue_refresh(&name);
        }
        let fits = batch.puts.len() + puts.len() <= PUTS_MAX;
        match ResidencyPin::acquire(self.core, &name).filter(|_| fits && !puts.is_empty()) {
            Some(pin) => {
                batch._pins.push(pin);
                batch.puts.extend(puts.into_iter().map(|put| (name.clone(), put)));
            }
            // A body gets its next turn after its put.
            None if body => {}
            None => self.requeue(&name),
        }
    }

    /// This node's authority over one of its older incarnations.
    pub(super) fn authority(&self, incarnation: Incarnation, now: Duration) -> Authority {
        Authority::from_succession(self.link.succession(incarnation), now)
    }

    fn on_verdict(&self, name: &NameBuf, put: &Put, verdict: &Verdict) {
        let now = self.elapsed();
        if matches!(verdict, Verdict::Behind { epoch, .. } if *epoch < put.epoch) {
            self.log_drift(name);
        }
        let mut turn = Turn::new(self.core);
        let follow_up = turn.with_shared_counter(as_name(name), |counter| {
            counter.on_verdict(put, verdict, &|incarnation| self.authority(incarnation, now))
        });
        turn.finish();
        if let Ok(follow_up) = follow_up {
            self.follow_up(name, follow_up);
        }
    }

    /// Performs the follow-up of a row or a verdict.
    pub(super) fn follow_up(&self, name: &[u8], follow_up: FollowUp) {
        if follow_up.swap {
            self.link.queue_repair(name);
        }
        if follow_up.fetch {
            self.link.queue_refresh(name);
        }
        if follow_up.is_retired {
            self.link.mark_retired();
        }
        if follow_up.has_duplicate {
            self.link.fence(format!(
                "the store knows newer values of {}.{} than this node does: a copy of its data directory is running; stop one of them, and start it on a restored directory",
                self.link.node,
                self.link.incarnation()
            ));
        }
        if follow_up.missing_in_row.is_some() {
            self.handle_loss();
        }
        if let Some(incarnation) = follow_up.forgotten {
            let node = self.link.node;
            self.link.fence(format!(
                "writer {node}.{incarnation} was away for so long that the store has forgotten what it knew of it, and it has adds that may not have been counted; stop this node, and have them counted or dropped: `quipu writers adopt {node}.{incarnation}`"
            ));
        }
        self.link.metrics.carries.fetch_add(follow_up.carried, Ordering::Relaxed);
    }

    /// Removes a counter from the list of the unsettled, or sets its next turn.
    pub(super) fn requeue(&self, name: &NameBuf) {
        let due = self.next_turn(name);
        self.update_unsettled(name, |entry| UnsettledEntry { due, ..entry.unwrap_or_default() });
    }

    /// Like `requeue`, but keeps an existing turn: a counter that is read all the time is settled,
    /// too.
    pub(super) fn enqueue(&self, name: &NameBuf) {
        let due = self.next_turn(name);
        self.update_unsettled(name, |entry| entry.unwrap_or(UnsettledEntry { due, ..UnsettledEntry::default() }));
    }

    /// All puts of a counter had a verdict: it waits for nothing but its next turn.
    fn confirm_put(&self, name: &NameBuf) {
        let due = self.next_turn(name);
        self.update_unsettled(name, |entry| UnsettledEntry { due, failures: 0, ..entry.unwrap_or_default() });
    }

    /// A put of a counter had no verdict: the counter waits, each time twice as long, and no other
    /// one with it.
    fn postpone(&self, name: &NameBuf, error: &dyn Error) {
        let (now, random) = (self.elapsed(), self.link.random());
        let mut failures = 0;
        self.update_unsettled(name, |entry| {
            let entry = entry.unwrap_or_default();
            failures = entry.failures.saturating_add(1);
            let wait = (BACKOFF_MIN * (1 << (failures - 1).min(16))).min(BACKOFF_MAX);
            UnsettledEntry { due: now + jittered(wait, random), failures, ..entry }
        });
        self.link.metrics.failed_puts.fetch_add(1, Ordering::Relaxed);
        if failures == FAILURES_LOGGED {
            self.log_failing(name, error);
        }
    }

    /// Logs that the store takes no put of a counter, for a few counters at a time.
    fn log_failing(&self, name: &NameBuf, error: &dyn Error) {
        let Some(unlogged) = lock(&self.link.failure_log).admit(self.elapsed()) else { return };
        let counter = String::from_utf8_lossy(name);
        tracing::warn!(
            %counter,
            error = describe_causes(error),
            unlogged,
            "the shared store takes no put of this counter: it is tried again every few seconds, the others go on"
        );
    }

    fn next_turn(&self, name: &NameBuf) -> Duration {
        self.elapsed() + self.core.namespaces.current().policy(as_name(name)).share.settle_every
    }

    /// Updates a counter's entry in the list of the unsettled; a settled one is removed.
    fn update_unsettled(&self, name: &NameBuf, update: impl FnOnce(Option<UnsettledEntry>) -> UnsettledEntry) {
        let (table, hash) = (&self.core.table, self.core.table.hash(name));
        let mut shard = table.lock(table.shard_of(hash));
        // A cell that waits for authority over its incarnation is listed by the audit that follows.
        let present = self.link.incarnation();
        let acts = |cell: &&OwnCell| cell.incarnation == present || self.link.succession(cell.incarnation).is_ours();
        let is_resident = shard.has_slot(hash, name);
        let own_cells = shard.own_cells(hash, name);
        let unsettled =
            || own_cells.iter().flat_map(|own_cells| &own_cells.cells).filter(|cell| !cell.settled).filter(acts);
        let (is_unsettled, is_doubted) = (unsettled().next().is_some(), unsettled().any(|cell| cell.doubted));
        if !is_resident && !shard.unsettled.contains(name) {
            // It has just left memory, unlisted: an audit pass looks for it.
            shard.evicted_unsettled |= shard.unloaded;
            return;
        }
        shard.unsettled.update(name, |before| {
            let after = update(before);
            match is_resident {
                true if !is_unsettled && !after.was_unconfirmed => None,
                true => {
                    Some(UnsettledEntry { at_rest: false, unconfirmed: is_doubted || after.was_unconfirmed, ..after })
                }
                // Only the ledger has its state, so it is loaded when it is due.
                false => Some(after),
            }
        });
    }

    /// Ends waits that have lasted long enough: these commands get the known value.
    pub fn serve_stale(self) -> usize {
        let now = self.elapsed();
        let late = self.core.loads.take_late_rows(now, self.link.options.fetch_wait);
        for job in &late {
            for name in job.rows() {
                self.serve_one_stale(name, now + self.link.options.fetch_wait);
            }
            job.finish(crate::core::load::LoadOutcome::Retry);
        }
        late.len()
    }

    pub(super) fn serve_one_stale(&self, name: &NameBuf, until: Duration) {
        let (table, hash) = (&self.core.table, self.core.table.hash(name));
        if let Some(own_cells) = table.lock(table.shard_of(hash)).own_cells(hash, name) {
            own_cells.serve_stale_until = Some(until);
        }
    }
}

/// Converts a name from the table.
pub(super) fn as_name(name: &[u8]) -> Name<'_> {
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
