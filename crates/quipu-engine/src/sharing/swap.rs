//! Whatever is not an add: read, compute, swap, until it is known what became of it.
//!
//! In: commands that wait for a swap, and chores: own cells that only a swap can settle, rows that have to move. Out: replies, as true as the row's
//! list of swaps makes them.
//!
//! Invariants:
//! - own cells are laid into the row that a client's change is computed from, synced first: what a reset returns includes what this node has acknowledged;
//! - a swap of unknown outcome is looked up in the row, and sent again only as the very same one;
//! - a reply is given once the swap is known to be in; a refusal once it is known that it never will be; else there is none.

use std::time::Duration;

use quipu_model::shared::put::{judge, put};
use quipu_model::shared::{
    Attempt, By, Change, Computed, Fate, Next, Put, Seen, Snapshot, SwapId, SwapRefused, SwapVerdict, Told, Verdict,
    compute,
};
use quipu_model::{Incarnation, KeptName, Refusal, Reply, StoreError};

use super::fetch::Sight;
use super::own::OwnCell;
use super::settle::named;
use super::share::{Footing, Share};
use super::{Busy, Sharing, jittered};
use crate::failpoint::step;
use crate::journal::Wait;
use crate::load::{Job, Loaded};
use crate::sync::{Arc, Ordering, lock};
use crate::turn::Turn;

/// A swap that was overtaken is tried again after this long, and a little more each time.
const AGAIN_MIN: Duration = Duration::from_millis(1);
const AGAIN_MAX: Duration = Duration::from_millis(100);

/// Swaps sent in one round, at most, before others get their turn.
const TRIES_MAX: usize = 8;

/// What a command asks of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Swap {
    /// Of which counters; several only to be deleted.
    pub names: Vec<KeptName>,
    /// What.
    pub change: Change,
}

/// A swap under way.
pub(super) struct Swapping {
    /// Who waits for it; nobody for a chore.
    job: Option<Arc<Job>>,
    /// What is left to do, the last first.
    names: Vec<KeptName>,
    change: Option<Change>,
    /// How many of a delete existed.
    deleted: i64,
    sent: Option<Sent>,
    /// When it is tried again, when it is given up, and how often it was tried.
    again_at: Duration,
    give_up_at: Duration,
    tries: u32,
}

/// A swap that was sent and may have been carried out.
struct Sent {
    attempt: Attempt,
    computed: Computed,
    /// The row was read then, by the store's clock.
    seen_at: quipu_model::Millis,
}

/// How long ago, by the store's clock, the row was read that a swap was computed from.
enum Age {
    /// It may be sent again.
    Young,
    /// It may not, for a quarter of `grace` has passed, and may be under way for as long again.
    Ripe,
    /// Nothing of it is under way any more.
    Old,
}

/// How far a swap has come.
enum Step {
    /// It is in, or there is nothing to do; with its reply.
    Done(Reply),
    /// It will never be.
    Refused(Refusal),
    /// Nobody can tell.
    Unknown,
    /// Try again later.
    Later,
}

impl Sharing<'_> {
    /// Does one swap that is waited for, or one chore; how many were done.
    pub async fn swap(self) -> usize {
        self.take_jobs();
        let now = self.elapsed();
        let ready = {
            let mut swaps = lock(&self.shared.swaps);
            let at = swaps.iter().position(|swap| swap.again_at <= now);
            at.map(|at| swaps.remove(at))
        };
        let Some(mut swapping) = ready else { return 0 };
        // Dropped half-way, it must not be forgotten: someone waits for it, or has adds in it.
        let mut kept = Kept { sharing: self, swapping: None };
        let step = {
            let name = swapping.names.last().cloned();
            kept.swapping = Some(swapping);
            let swapping = kept.swapping.as_mut().expect("it was just put there");
            match name {
                Some(name) => self.advance(swapping, &name).await,
                None => Step::Done(Reply::Ok),
            }
        };
        swapping = kept.swapping.take().expect("nobody has taken it");
        self.went(swapping, step)
    }

    /// Takes over what commands ask for, and chores.
    fn take_jobs(&self) {
        let now = self.elapsed();
        let mut swaps = lock(&self.shared.swaps);
        for job in self.inner.loads.take_swaps() {
            let Some(Swap { names, change }) = job.swap().cloned() else { continue };
            let names = names.into_iter().rev().collect();
            let give_up_at = now + self.shared.options.swap_wait;
            swaps.push(Swapping {
                job: Some(job),
                names,
                change: Some(change),
                deleted: 0,
                sent: None,
                again_at: now,
                give_up_at,
                tries: 0,
            });
        }
        for name in std::mem::take(&mut *lock(&self.shared.chores)) {
            if swaps.iter().any(|swap| swap.job.is_none() && swap.names == [name.clone()]) {
                continue;
            }
            let names = vec![name];
            swaps.push(Swapping {
                job: None,
                names,
                change: None,
                deleted: 0,
                sent: None,
                again_at: now,
                give_up_at: Duration::MAX,
                tries: 0,
            });
        }
    }

    /// A step has been taken; how many swaps are done with it.
    fn went(&self, mut swapping: Swapping, step: Step) -> usize {
        let now = self.elapsed();
        let loaded = match step {
            Step::Done(reply) => {
                swapping.names.pop();
                swapping.sent = None;
                if let (Reply::Integer(count), true) = (&reply, matches!(swapping.change, Some(Change::Delete))) {
                    swapping.deleted += count;
                }
                match swapping.names.is_empty() {
                    true if swapping.change == Some(Change::Delete) => Loaded::reply(Reply::Integer(swapping.deleted)),
                    true => Loaded::reply(reply),
                    false => return self.later(swapping, now),
                }
            }
            Step::Refused(refusal) => Loaded::Refused(refusal),
            Step::Unknown => Loaded::Unknown,
            Step::Later if swapping.give_up_at <= now && swapping.sent.is_some() => Loaded::Unknown,
            Step::Later if swapping.give_up_at <= now && swapping.deleted > 0 => Loaded::Unknown,
            Step::Later if swapping.give_up_at <= now => Loaded::Refused(Refusal::StoreDown),
            Step::Later => {
                let wait = (AGAIN_MIN * (1 << swapping.tries.min(16))).min(AGAIN_MAX);
                swapping.tries += 1;
                let at = now + jittered(wait, self.shared.random());
                return self.later(swapping, at);
            }
        };
        if let Some(job) = &swapping.job {
            job.finish(loaded);
        }
        1
    }

    fn later(&self, mut swapping: Swapping, again_at: Duration) -> usize {
        swapping.again_at = again_at;
        lock(&self.shared.swaps).push(swapping);
        0
    }

    /// Reads, computes and swaps, a few times if others come between.
    async fn advance(&self, swapping: &mut Swapping, name: &KeptName) -> Step {
        for _ in 0..TRIES_MAX {
            if !self.shared.may_call("swap", self.elapsed()) {
                return Step::Later;
            }
            match self.attempt(swapping, name).await {
                Ok(Some(step)) => return step,
                Ok(None) => {}
                Err(error) => {
                    self.shared.called("swap", self.elapsed(), &Err::<(), _>(error));
                    return Step::Later;
                }
            }
        }
        Step::Later
    }

    /// One attempt. `None`: try again at once.
    async fn attempt(&self, swapping: &mut Swapping, name: &KeptName) -> Result<Option<Step>, StoreError> {
        let store = &self.shared.store;
        let asked_at = self.elapsed();
        let known = match self.enter(name) {
            Ok(known) => known,
            Err(Refusal::AtRest { .. }) => {
                // Brought back by whoever swaps: no worker waits for it.
                let brought = self.inner.loads.bring_back(self.inner, name);
                return Ok(brought.err().map(|error| Step::Refused(Refusal::AtRest { reason: error.to_string() })));
            }
            Err(refusal) => return Ok(Some(Step::Refused(refusal))),
        };
        let _busy = Busy::hold(self.inner, name);
        if swapping.change.is_some() && swapping.sent.is_none() {
            // What this node has counted in a sketch is there before it is taken.
            self.settle_body(name).await?;
        }
        let seen = store.read(named(name)).await?;
        self.shared.called("swap", self.elapsed(), &Ok(()));
        if !self.may_send(asked_at) {
            // It has slept since: what a row keeps would be dated by then, and forgotten too early.
            return Ok(None);
        }
        if let Some(sent) = &swapping.sent {
            match sent.attempt.fate(&seen.snapshot) {
                Fate::Swapped => {
                    let reply = sent.computed.reply.clone();
                    self.swapped(name, &seen, asked_at, known);
                    return Ok(Some(Step::Done(reply)));
                }
                Fate::Open => match self.age(sent, &seen) {
                    Age::Young => {
                        let (attempt, next) = (sent.attempt, sent.computed.next.clone());
                        return self.send(swapping, name, attempt, &next, (&seen, asked_at, known)).await;
                    }
                    Age::Ripe => return Ok(Some(Step::Later)),
                    Age::Old => swapping.sent = None,
                },
                Fate::Never => swapping.sent = None,
                Fate::Forgotten => return Ok(Some(Step::Unknown)),
            }
        }
        // Own cells hear first what the row means for them: one that is of another epoch carries before it is laid in.
        // From one that they have not heard of, or that is not the newest, nothing is computed.
        if self.see(name, &seen, None, asked_at, known) != Sight::Shown {
            return Ok(None);
        }
        let (puts, change) = match self.prepare(swapping.change, name, &seen) {
            Ok(Some(prepared)) => prepared,
            Ok(None) => return Ok(Some(Step::Done(Reply::Ok))),
            Err(_) => return Ok(Some(Step::Later)),
        };
        let end = self.inner.journal.reserved();
        if self.inner.committed(Wait { written: end, synced: end }).await.is_err() {
            return Ok(Some(Step::Later));
        }
        if !self.shared.may_put(self.elapsed()) {
            // What this node has acknowledged could not be laid in.
            return Ok(Some(Step::Later));
        }
        if !self.may_send(asked_at) {
            return Ok(None);
        }
        let mut laid = seen.clone();
        lay(&mut laid, &puts);
        let (high, low) = (self.shared.random(), self.shared.random());
        let id = SwapId(u128::from(high) << 64 | u128::from(low));
        let registered = self.shared.registered();
        let by = By { id, node: self.shared.node, grace: self.shared.options.grace, registered: &registered };
        let computed = match compute(&laid, &by, &change) {
            Ok(computed) => computed,
            Err(SwapRefused::Sketch) => return Ok(Some(Step::Refused(Refusal::WrongKind))),
            Err(SwapRefused::TooWide(wide)) => {
                return Ok(Some(Step::Refused(Refusal::TooWide { sum: Box::new(wide.sum) })));
            }
            Err(SwapRefused::ExpireTime) => return Ok(Some(Step::Refused(Refusal::ExpireTime))),
            Err(other) => return Ok(Some(Step::Refused(Refusal::AtRest { reason: other.to_string() }))),
        };
        if computed.next == Next::Same {
            return Ok(Some(Step::Done(computed.reply)));
        }
        let attempt = Attempt::on(&seen, id);
        let next = computed.next.clone();
        swapping.sent = Some(Sent { attempt, computed, seen_at: seen.at });
        step!("swapping");
        self.send(swapping, name, attempt, &next, (&seen, asked_at, known)).await
    }

    /// Sends a swap, the first time or again.
    async fn send(
        &self,
        swapping: &mut Swapping,
        name: &KeptName,
        attempt: Attempt,
        next: &Next,
        (seen, asked_at, known): (&Seen, Duration, u32),
    ) -> Result<Option<Step>, StoreError> {
        let again = swapping.tries > 0;
        let row = if let Next::Row(row) = next { Some(row) } else { None };
        match self.shared.store.swap(named(name), attempt.version, row).await {
            Ok(SwapVerdict::Swapped) => {
                step!("swapped");
                let reply = swapping.sent.take().map_or(Reply::Ok, |sent| sent.computed.reply);
                let snapshot = row.cloned().unwrap_or_else(Snapshot::default);
                self.swapped(name, &Seen { snapshot, at: seen.at }, asked_at, known);
                Ok(Some(Step::Done(reply)))
            }
            // Sent once and answered: it will never be. Sent before, an earlier copy may be what moved the row.
            Ok(SwapVerdict::Moved) | Err(StoreError::NotApplied { .. }) if !again => {
                swapping.sent = None;
                Ok(None)
            }
            Ok(SwapVerdict::Moved) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// It is in: the own cells hear of it, and the counter shows it.
    fn swapped(&self, name: &KeptName, seen: &Seen, asked_at: Duration, known: u32) {
        self.shared.figures.swaps.fetch_add(1, Ordering::Relaxed);
        // Whoever was told of this swap must not be shown what was before it, also if a verdict has told of it first.
        let mut sight = self.see(name, seen, None, asked_at, known);
        if sight == Sight::Missed {
            let mut turn = Turn::new(self.inner);
            let behind = turn.share(named(name), |share| {
                let present = share.present;
                let newer = |cell: &OwnCell| cell.incarnation == present && cell.own.epoch > seen.snapshot.epoch;
                (share.owned.cells.iter().any(newer), share.owned.turn)
            });
            turn.finish();
            if let Ok((false, now)) = behind {
                sight = self.see(name, seen, None, asked_at, now);
            }
        }
        if sight == Sight::Missed {
            // What is shown is from before.
            let mut turn = Turn::new(self.inner);
            let _ = turn.share(named(name), |share| share.owned.outdate());
            turn.finish();
        }
    }

    /// What own cells are to be laid into the row, and the change; for a chore, what the own cells need. `None`: nothing. Refused if the counter cannot
    /// be worked on now.
    fn prepare(
        &self,
        change: Option<Change>,
        name: &KeptName,
        seen: &Seen,
    ) -> Result<Option<(Vec<Put>, Change)>, Refusal> {
        let now = self.elapsed();
        let (node, present) = (self.shared.node, self.shared.present());
        let mut turn = Turn::new(self.inner);
        let prepared = turn.share(named(name), |share| {
            // What somebody is told of includes what this node has acknowledged. A chore tells nobody: it may bring the row to a later epoch than what would be laid into it, which would be
            // gone with the one before. Bodies are put by themselves, before.
            let laid = |cell: &&OwnCell| change.is_some() && cell.incarnation == present && !cell.is_body();
            let puts: Vec<Put> = share.owned.cells.iter().filter(laid).filter_map(|cell| cell.put(node)).collect();
            let change = change.or_else(|| chore(share, seen, &|incarnation| self.footing(incarnation, now)));
            change.map(|change| (puts, change))
        });
        turn.finish();
        if let Ok(Some((_, Change::Late(_)))) = prepared {
            self.shared.figures.late.fetch_add(1, Ordering::Relaxed);
        }
        prepared
    }

    fn age(&self, sent: &Sent, seen: &Seen) -> Age {
        let quarter = u64::try_from(self.shared.options.grace.as_millis() / 4).unwrap_or(u64::MAX);
        match seen.at.0.saturating_sub(sent.seen_at.0) {
            age if age < quarter => Age::Young,
            age if age < quarter.saturating_mul(2) => Age::Ripe,
            _ => Age::Old,
        }
    }
}

/// What the own cells of a counter need that only a swap can do.
fn chore(share: &Share<'_>, seen: &Seen, footing: &dyn Fn(Incarnation) -> Footing) -> Option<Change> {
    let (row, at) = (&seen.snapshot, seen.at);
    for cell in &share.owned.cells {
        let (id, present) = (cell.id(share.node), cell.incarnation == share.present);
        if !present && footing(cell.incarnation) != Footing::Acts {
            continue;
        }
        match (cell.own.shown(id, cell.seq, row, at), present) {
            (Told::Move, _) if row.due(at) => return Some(Change::Lapse),
            (Told::Move, _) if present || cell.is_body() || cell.own.lapsed.is_some() => {
                let epoch = cell.own.lapsed.map_or(cell.own.epoch, |lapsed| lapsed.epoch);
                return Some(Change::CatchUp(epoch));
            }
            // Also what the row would take: of a life on its way out nothing is put any more.
            // What the store has confirmed, and the row does not know any more, was folded.
            (Told::Stay | Told::Move | Told::Open(_) | Told::Over, false)
                if !cell.is_body() && !cell.settled && row.newest(id) != Some(cell.seq) =>
            {
                if let Some(late) = cell.own.late(id, cell.seq) {
                    return Some(Change::Late(late));
                }
            }
            _ => {}
        }
    }
    row.due(at).then_some(Change::Lapse)
}

/// Lays own cells into a row, where they would be taken.
fn lay(seen: &mut Seen, puts: &[Put]) {
    let version = seen.snapshot.version;
    for own in puts {
        if judge(&seen.snapshot, own, seen.at) == Verdict::Newest {
            let mut row = Some(std::mem::take(&mut seen.snapshot));
            put(&mut row, own, seen.at);
            seen.snapshot = row.unwrap_or_default();
        }
    }
    // The row at the store is still as it was seen.
    seen.snapshot.version = version;
}

/// Puts a swap back if its round is dropped half-way.
struct Kept<'e> {
    sharing: Sharing<'e>,
    swapping: Option<Swapping>,
}

impl Drop for Kept<'_> {
    fn drop(&mut self) {
        if let Some(mut swapping) = self.swapping.take() {
            swapping.tries += 1;
            lock(&self.sharing.shared.swaps).push(swapping);
        }
    }
}
