//! Executes changes other than adds: reads the row, computes, swaps, and retries to a known
//! outcome.
//!
//! In: commands that wait for a swap, and deferred repairs: own cells that only a swap can settle,
//! and rows that must move. Out: replies, as reliable as the row's list of swaps.
//!
//! Invariants:
//! - own cells are synced, then merged into the row from which a client's change is computed. So
//!   the reply of a reset includes every add that this node has acknowledged;
//! - a swap of unknown outcome is looked up in the row, and sent again only unchanged;
//! - a reply is given once the swap is known to be applied, a refusal once it is known that it
//!   never will be. Otherwise there is no reply.

use std::time::Duration;

use quipu_model::shared::put::{judge, put};
use quipu_model::shared::{
    Change, FetchedRow, NextRow, NextStep, Put, Snapshot, SwapAttempt, SwapContext, SwapError, SwapId, SwapOutcome,
    SwapPlan, SwapVerdict, Verdict, plan_swap,
};
use quipu_model::{Incarnation, NameBuf, Refusal, Reply, StoreError};

use super::fetch::RowOutcome;
use super::settle::as_name;
use super::shared_counter::Authority;
use super::{ResidencyPin, Sharing, jittered};
use crate::apply::shared_counter::SharedCounter;
use crate::base::failpoint::step;
use crate::base::sync::{Arc, Ordering, lock};
use crate::bodies::own_cells::OwnCell;
use crate::core::load::{LoadJob, LoadOutcome, Swap};
use crate::execute::turn::Turn;
use crate::journal::Wait;

/// Delay before the retry of an overtaken swap; it grows with each try.
const RETRY_MIN: Duration = Duration::from_millis(1);
const RETRY_MAX: Duration = Duration::from_millis(100);

/// Most swaps sent in one round before others get their turn.
const TRIES_MAX: usize = 8;

/// A pending swap.
pub(crate) struct PendingSwap {
    /// The waiting command; none for a deferred repair.
    job: Option<Arc<LoadJob>>,
    /// Names still to do, the last first.
    names: Vec<NameBuf>,
    change: Option<Change>,
    /// Number of existing counters that a delete has removed so far.
    deleted: i64,
    in_flight: Option<SwapInFlight>,
    /// Time of the next try, deadline, and number of tries.
    retry_at: Duration,
    deadline: Duration,
    tries: u32,
}

/// A swap that was sent and may have been carried out.
pub(crate) struct SwapInFlight {
    attempt: SwapAttempt,
    computed: SwapPlan,
    /// Time of the row's read, by the store's clock.
    row_read_at: quipu_model::Millis,
}

/// Age, by the store's clock, of the row from which a swap was computed.
enum AttemptAge {
    /// The swap may be sent again.
    Resendable,
    /// A quarter of `grace` has passed: it may not be sent again, but may be in flight for as long
    /// again.
    Undecided,
    /// No copy of it is in flight any more.
    Expired,
}

/// Progress of a swap.
enum SwapStep {
    /// Applied, or nothing to do; with its reply.
    Done(Reply),
    /// Never applied.
    Refused(Refusal),
    /// Outcome unknown.
    Unknown,
    /// Try again later.
    Retry,
}

impl Sharing<'_> {
    /// Executes one awaited swap or one deferred repair; returns the number done.
    pub async fn swap(self) -> usize {
        self.take_jobs();
        let now = self.elapsed();
        let ready = {
            let mut swaps = lock(&self.link.swaps);
            let at = swaps.iter().position(|swap| swap.retry_at <= now);
            at.map(|at| swaps.remove(at))
        };
        let Some(mut pending) = ready else { return 0 };
        // Dropped half-way, the swap must not be forgotten: a command waits for it, or its cells
        // hold adds.
        let mut guard = SwapRequeue { sharing: self, pending: None };
        let step = {
            let name = pending.names.last().cloned();
            guard.pending = Some(pending);
            let pending = guard.pending.as_mut().expect("it was just put there");
            match name {
                Some(name) => self.advance(pending, &name).await,
                None => SwapStep::Done(Reply::Ok),
            }
        };
        pending = guard.pending.take().expect("nobody has taken it");
        self.finish_step(pending, step)
    }

    /// Takes over requested swaps and deferred repairs.
    fn take_jobs(&self) {
        let now = self.elapsed();
        let mut swaps = lock(&self.link.swaps);
        for job in self.core.loads.take_swaps() {
            let Some(Swap { names, change }) = job.swap().cloned() else { continue };
            let names = names.into_iter().rev().collect();
            let deadline = now + self.link.options.swap_wait;
            swaps.push(PendingSwap {
                job: Some(job),
                names,
                change: Some(change),
                deleted: 0,
                in_flight: None,
                retry_at: now,
                deadline,
                tries: 0,
            });
        }
        for name in std::mem::take(&mut *lock(&self.link.repairs)) {
            if swaps.iter().any(|swap| swap.job.is_none() && swap.names == [name.clone()]) {
                continue;
            }
            let names = vec![name];
            swaps.push(PendingSwap {
                job: None,
                names,
                change: None,
                deleted: 0,
                in_flight: None,
                retry_at: now,
                deadline: Duration::MAX,
                tries: 0,
            });
        }
    }

    /// Ends a step; returns the number of finished swaps.
    fn finish_step(&self, mut pending: PendingSwap, step: SwapStep) -> usize {
        let now = self.elapsed();
        let loaded = match step {
            SwapStep::Done(reply) => {
                pending.names.pop();
                pending.in_flight = None;
                if let (Reply::Integer(count), true) = (&reply, matches!(pending.change, Some(Change::Delete))) {
                    pending.deleted += count;
                }
                match pending.names.is_empty() {
                    true if pending.change == Some(Change::Delete) => {
                        LoadOutcome::reply(Reply::Integer(pending.deleted))
                    }
                    true => LoadOutcome::reply(reply),
                    false => return self.retry_later(pending, now),
                }
            }
            SwapStep::Refused(refusal) => LoadOutcome::Refused(refusal),
            SwapStep::Unknown => LoadOutcome::Unknown,
            SwapStep::Retry if pending.deadline <= now && pending.in_flight.is_some() => LoadOutcome::Unknown,
            SwapStep::Retry if pending.deadline <= now && pending.deleted > 0 => LoadOutcome::Unknown,
            SwapStep::Retry if pending.deadline <= now => LoadOutcome::Refused(Refusal::StoreDown),
            SwapStep::Retry => {
                let wait = (RETRY_MIN * (1 << pending.tries.min(16))).min(RETRY_MAX);
                pending.tries += 1;
                let at = now + jittered(wait, self.link.random());
                return self.retry_later(pending, at);
            }
        };
        if let Some(job) = &pending.job {
            job.finish(loaded);
        }
        1
    }

    fn retry_later(&self, mut pending: PendingSwap, retry_at: Duration) -> usize {
        pending.retry_at = retry_at;
        lock(&self.link.swaps).push(pending);
        0
    }

    /// Reads, computes and swaps, a few times if others come between.
    async fn advance(&self, pending: &mut PendingSwap, name: &NameBuf) -> SwapStep {
        for _ in 0..TRIES_MAX {
            if !self.link.may_call("swap", self.elapsed()) {
                return SwapStep::Retry;
            }
            match self.try_swap(pending, name).await {
                Ok(Some(step)) => return step,
                Ok(None) => {}
                Err(error) => {
                    self.link.record_result("swap", self.elapsed(), &Err::<(), _>(error));
                    return SwapStep::Retry;
                }
            }
        }
        SwapStep::Retry
    }

    /// One attempt. `None`: try again at once.
    async fn try_swap(&self, pending: &mut PendingSwap, name: &NameBuf) -> Result<Option<SwapStep>, StoreError> {
        let store = &self.link.store;
        let asked_at = self.elapsed();
        let generation = match self.ensure_known(name) {
            Ok(generation) => generation,
            Err(Refusal::AtRest { .. }) => {
                // This thread loads it: no worker waits for it.
                let loading = self.core.load_counter(name);
                return Ok(loading.err().map(|error| SwapStep::Refused(Refusal::AtRest { reason: error.to_string() })));
            }
            Err(refusal) => return Ok(Some(SwapStep::Refused(refusal))),
        };
        let _pin = ResidencyPin::acquire(self.core, name);
        if pending.change.is_some() && pending.in_flight.is_none() {
            // This node's observations in a sketch reach the store before the change takes it.
            self.settle_body(name).await?;
        }
        let fetched = store.read(as_name(name)).await?;
        self.link.record_result("swap", self.elapsed(), &Ok(()));
        if !self.may_send(asked_at) {
            // The process was suspended since: values kept by the row would be dated by then, and
            // forgotten too early.
            return Ok(None);
        }
        if let Some(sent) = &pending.in_flight {
            match sent.attempt.outcome(&fetched.snapshot) {
                SwapOutcome::Swapped => {
                    let reply = sent.computed.reply.clone();
                    self.on_swapped(name, &fetched, asked_at, generation);
                    return Ok(Some(SwapStep::Done(reply)));
                }
                SwapOutcome::Pending => match self.attempt_age(sent, &fetched) {
                    AttemptAge::Resendable => {
                        let (attempt, next) = (sent.attempt, sent.computed.next.clone());
                        return self.send_swap(pending, name, attempt, &next, (&fetched, asked_at, generation)).await;
                    }
                    AttemptAge::Undecided => return Ok(Some(SwapStep::Retry)),
                    AttemptAge::Expired => pending.in_flight = None,
                },
                SwapOutcome::NotApplied => pending.in_flight = None,
                SwapOutcome::Unknown => return Ok(Some(SwapStep::Unknown)),
            }
        }
        // The row is applied to the own cells first: a cell of another epoch carries before it is
        // merged. Nothing is computed from a row that was not applied, or is not the newest.
        if self.apply_row(name, &fetched, None, asked_at, generation) != RowOutcome::Shown {
            return Ok(None);
        }
        let (puts, change) = match self.prepare_swap(pending.change, name, &fetched) {
            Ok(Some(prepared)) => prepared,
            Ok(None) => return Ok(Some(SwapStep::Done(Reply::Ok))),
            Err(_) => return Ok(Some(SwapStep::Retry)),
        };
        let end = self.core.journal.reserved();
        if self.core.commit_until(Wait { written: end, synced: end }).await.is_err() {
            return Ok(Some(SwapStep::Retry));
        }
        if !self.link.may_put(self.elapsed()) {
            // This node's acknowledged adds could not be merged.
            return Ok(Some(SwapStep::Retry));
        }
        if !self.may_send(asked_at) {
            return Ok(None);
        }
        let mut merged = fetched.clone();
        merge_own_puts(&mut merged, &puts);
        let (high, low) = (self.link.random(), self.link.random());
        let id = SwapId(u128::from(high) << 64 | u128::from(low));
        let registered = self.link.registered();
        let by = SwapContext { id, node: self.link.node, grace: self.link.options.grace, registered: &registered };
        let computed = match plan_swap(&merged, &by, &change) {
            Ok(computed) => computed,
            Err(SwapError::Sketch) => return Ok(Some(SwapStep::Refused(Refusal::WrongKind))),
            Err(SwapError::TooWide(wide)) => {
                return Ok(Some(SwapStep::Refused(Refusal::TooWide { sum: Box::new(wide.sum) })));
            }
            Err(SwapError::ExpireTime) => return Ok(Some(SwapStep::Refused(Refusal::ExpireTime))),
            Err(other) => return Ok(Some(SwapStep::Refused(Refusal::AtRest { reason: other.to_string() }))),
        };
        if computed.next == NextRow::Unchanged {
            return Ok(Some(SwapStep::Done(computed.reply)));
        }
        let attempt = SwapAttempt::new(&fetched, id);
        let next = computed.next.clone();
        pending.in_flight = Some(SwapInFlight { attempt, computed, row_read_at: fetched.at });
        step!("swapping");
        self.send_swap(pending, name, attempt, &next, (&fetched, asked_at, generation)).await
    }

    /// Sends a swap, the first time or again.
    async fn send_swap(
        &self,
        pending: &mut PendingSwap,
        name: &NameBuf,
        attempt: SwapAttempt,
        next: &NextRow,
        (fetched, asked_at, generation): (&FetchedRow, Duration, u32),
    ) -> Result<Option<SwapStep>, StoreError> {
        let again = pending.tries > 0;
        let row = if let NextRow::Row(row) = next { Some(row) } else { None };
        match self.link.store.swap(as_name(name), attempt.version, row).await {
            Ok(SwapVerdict::Swapped) => {
                step!("swapped");
                let reply = pending.in_flight.take().map_or(Reply::Ok, |sent| sent.computed.reply);
                let snapshot = row.cloned().unwrap_or_else(Snapshot::default);
                self.on_swapped(name, &FetchedRow { snapshot, at: fetched.at }, asked_at, generation);
                Ok(Some(SwapStep::Done(reply)))
            }
            // Sent once and replied to: it will never be applied. Sent before, an earlier copy may
            // have moved the row.
            Ok(SwapVerdict::Moved) | Err(StoreError::NotApplied { .. }) if !again => {
                pending.in_flight = None;
                Ok(None)
            }
            Ok(SwapVerdict::Moved) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Applies a completed swap to the own cells, and shows the row.
    fn on_swapped(&self, name: &NameBuf, fetched: &FetchedRow, asked_at: Duration, generation: u32) {
        self.link.metrics.swaps.fetch_add(1, Ordering::Relaxed);
        // A client with this swap's reply must not see an older value, even if a verdict has
        // mentioned the swap first.
        let mut outcome = self.apply_row(name, fetched, None, asked_at, generation);
        if outcome == RowOutcome::Missed {
            let mut turn = Turn::new(self.core);
            let behind = turn.with_shared_counter(as_name(name), |counter| {
                let present = counter.incarnation;
                let newer = |cell: &OwnCell| cell.incarnation == present && cell.own.epoch > fetched.snapshot.epoch;
                (counter.own_cells.cells.iter().any(newer), counter.own_cells.generation)
            });
            turn.finish();
            if let Ok((false, now)) = behind {
                outcome = self.apply_row(name, fetched, None, asked_at, now);
            }
        }
        if outcome == RowOutcome::Missed {
            // The shown value is from before.
            let mut turn = Turn::new(self.core);
            let _ = turn.with_shared_counter(as_name(name), |counter| counter.own_cells.invalidate_row());
            turn.finish();
        }
    }

    /// Prepares the own puts to merge into the row, and the change; for a deferred repair, the
    /// change that the own cells need. `None`: nothing to do. Refused if the counter cannot be
    /// changed now.
    fn prepare_swap(
        &self,
        change: Option<Change>,
        name: &NameBuf,
        fetched: &FetchedRow,
    ) -> Result<Option<(Vec<Put>, Change)>, Refusal> {
        let now = self.elapsed();
        let (node, present) = (self.link.node, self.link.incarnation());
        let mut turn = Turn::new(self.core);
        let prepared = turn.with_shared_counter(as_name(name), |counter| {
            // A reply includes every add that this node has acknowledged. A repair has no reply,
            // and may move the row to a later epoch. That would end merged cells with the earlier
            // epoch. Bodies are put separately, before.
            let merged = |cell: &&OwnCell| change.is_some() && cell.incarnation == present && !cell.is_body();
            let puts: Vec<Put> =
                counter.own_cells.cells.iter().filter(merged).filter_map(|cell| cell.pending_put(node)).collect();
            let change =
                change.or_else(|| find_repair(counter, fetched, &|incarnation| self.authority(incarnation, now)));
            change.map(|change| (puts, change))
        });
        turn.finish();
        if let Ok(Some((_, Change::Late(_)))) = prepared {
            self.link.metrics.late.fetch_add(1, Ordering::Relaxed);
        }
        prepared
    }

    fn attempt_age(&self, sent: &SwapInFlight, fetched: &FetchedRow) -> AttemptAge {
        let quarter = u64::try_from(self.link.options.grace.as_millis() / 4).unwrap_or(u64::MAX);
        match fetched.at.0.saturating_sub(sent.row_read_at.0) {
            age if age < quarter => AttemptAge::Resendable,
            age if age < quarter.saturating_mul(2) => AttemptAge::Undecided,
            _ => AttemptAge::Expired,
        }
    }
}

/// Finds the repair of a counter's own cells that only a swap can do.
fn find_repair(
    counter: &SharedCounter<'_>,
    fetched: &FetchedRow,
    authority: &dyn Fn(Incarnation) -> Authority,
) -> Option<Change> {
    let (row, at) = (&fetched.snapshot, fetched.at);
    for cell in &counter.own_cells.cells {
        let (id, present) = (cell.id(counter.node), cell.incarnation == counter.incarnation);
        if !present && authority(cell.incarnation) != Authority::Granted {
            continue;
        }
        match (cell.own.on_row(id, cell.seq, row, at), present) {
            (NextStep::Move, _) if row.is_due(at) => return Some(Change::Lapse),
            (NextStep::Move, _) if present || cell.is_body() || cell.own.pending_expiry.is_some() => {
                let epoch = cell.own.pending_expiry.map_or(cell.own.epoch, |lapsed| lapsed.epoch);
                return Some(Change::CatchUp(epoch));
            }
            // Also a cell that the row would take: a retiring incarnation puts nothing any more. A
            // confirmed cell that the row does not know any more was folded.
            (NextStep::Keep | NextStep::Move | NextStep::Continue(_) | NextStep::Retired, false)
                if !cell.is_body() && !cell.settled && row.newest(id) != Some(cell.seq) =>
            {
                if let Some(late) = cell.own.final_cell(id, cell.seq) {
                    return Some(Change::Late(late));
                }
            }
            _ => {}
        }
    }
    row.is_due(at).then_some(Change::Lapse)
}

/// Merges own cells into a row, as far as it would take them.
fn merge_own_puts(fetched: &mut FetchedRow, puts: &[Put]) {
    let version = fetched.snapshot.version;
    for own in puts {
        if judge(&fetched.snapshot, own, fetched.at) == Verdict::Newest {
            let mut row = Some(std::mem::take(&mut fetched.snapshot));
            put(&mut row, own, fetched.at);
            fetched.snapshot = row.unwrap_or_default();
        }
    }
    // The row at the store still has the version that was read.
    fetched.snapshot.version = version;
}

/// Puts a swap back if its round is dropped half-way.
struct SwapRequeue<'e> {
    sharing: Sharing<'e>,
    pending: Option<PendingSwap>,
}

impl Drop for SwapRequeue<'_> {
    fn drop(&mut self) {
        if let Some(mut pending) = self.pending.take() {
            pending.tries += 1;
            lock(&self.sharing.link.swaps).push(pending);
        }
    }
}
