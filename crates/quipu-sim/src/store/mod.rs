//! Simulates a store behind a faulty network, at the scheduler's pace.
//!
//! In: calls of the port, from each node through its own [`StorePort`]. Out: answers, when and if
//! [`SimStore::step`] lets them through; and the [`Truth`].
//!
//! A call becomes a message, and its future waits. Each step takes any one message and draws its
//! fate:
//!
//! - applied and answered, at once or after a delay;
//! - not applied, and answered `NotApplied` or `Unknown`;
//! - applied without an answer;
//! - answered `Unknown` and applied much later.
//!
//! The store may be down or slow for a while, lose its last commits, and be restored from an older
//! copy.
//!
//! Invariants:
//! - an answer is the inner store's; a call answered `NotApplied` is never applied;
//! - no message is under way for longer than a quarter of `grace`, by the store's clock. A node may
//!   hold a row for another quarter before it swaps. Together they are the half that the protocol
//!   assumes;
//! - a message may still arrive after its sender has died or given up.

mod message;
mod port;
mod truth;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use quipu_model::memory_store::MemoryStoreBackup;
use quipu_model::ports::store::{PUTS_MAX, check_bound};
use quipu_model::shared::{BodyVerdict, RegisterVerdict, Registration, RowVersion, Snapshot};
use quipu_model::{Clock, MemoryStore, Millis, Name, NameBuf, StoreError, Writer};
use quipu_testkit::{SeededRng, SimClock};

pub use self::port::StorePort;
pub use self::truth::{StoreEvents, SwapEvent, Truth};

use self::message::{Message, StoreReply, as_name};
use crate::counters::find_counter;
use crate::log::EventLog;

/// Fate of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CallFate {
    Answered,
    AnsweredLate,
    NotApplied,
    Lost,
    Silent,
    Late,
}

/// Number of calls by fate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Fates {
    /// Applied and answered.
    pub answered: u64,
    /// Applied, and answered late.
    pub answered_late: u64,
    /// Not applied, and answered so.
    pub not_applied: u64,
    /// Not applied, outcome unknown.
    pub lost: u64,
    /// Applied, outcome unknown.
    pub silent: u64,
    /// Applied late, outcome unknown.
    pub late: u64,
}

impl Fates {
    /// Adds another run's counts.
    pub fn add(&mut self, other: &Fates) {
        self.answered += other.answered;
        self.answered_late += other.answered_late;
        self.not_applied += other.not_applied;
        self.lost += other.lost;
        self.silent += other.silent;
        self.late += other.late;
    }
}

/// The simulated store.
pub struct SimStore {
    memory: MemoryStore,
    clock: SimClock,
    rng: SeededRng,
    log: EventLog,
    grace_millis: u64,
    state: Mutex<SimStoreState>,
}

struct SimStoreState {
    under_way: Vec<InFlightMessage>,
    /// Percentage of calls that meet a fault.
    percent: usize,
    down_until: Millis,
    slow_until: Millis,
    /// Rises when the store loses data in a way that its servers report.
    history: u64,
    truth: Truth,
    fates: Fates,
}

/// A message under way.
struct InFlightMessage {
    node: usize,
    message: Message,
    sent_at: Millis,
    not_before: Millis,
    /// The answer, if it is on its way back.
    back: Option<Result<StoreReply, StoreError>>,
    /// The history that the sender last fetched.
    history: Option<u64>,
    /// Slot of the waiting caller; none if the caller was already answered `Unknown`.
    slot: Option<Arc<ReplySlot>>,
}

/// Slot of a waiting caller.
#[derive(Default)]
struct ReplySlot {
    state: Mutex<SlotState>,
}

#[derive(Default)]
struct SlotState {
    reply: Option<Result<StoreReply, StoreError>>,
    waker: Option<Waker>,
}

/// The store's contents at one time, with the truth about them.
#[derive(Clone)]
pub struct StoreCopy {
    contents: MemoryStoreBackup,
    truth: truth::TruthCheckpoint,
}

/// Stands for a driver's error.
#[derive(Debug, thiserror::Error)]
#[error("the network failed")]
struct NetworkError;

impl SimStore {
    /// Creates an empty store on this clock; `percent` of the calls meet faults.
    pub fn new(clock: SimClock, rng: SeededRng, log: EventLog, grace: Duration, percent: usize) -> Arc<SimStore> {
        let state = SimStoreState {
            under_way: Vec::new(),
            percent,
            down_until: Millis(0),
            slow_until: Millis(0),
            history: 0,
            truth: Truth::new(log.clone()),
            fates: Fates::default(),
        };
        let grace_millis = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        let memory = MemoryStore::new(Arc::new(clock.clone()));
        Arc::new(SimStore { memory, clock, rng, log, grace_millis, state: Mutex::new(state) })
    }

    /// Creates a node's port to the store.
    pub fn port(self: &Arc<SimStore>, node: usize) -> StorePort {
        StorePort::new(self.clone(), node)
    }

    /// Delivers one message or draws its fate; false if no message could move.
    pub fn step(&self) -> bool {
        let now = self.clock.wall();
        let mut state = self.state();
        let count = state.under_way.len();
        let from = self.rng.below(count);
        let ready = (0..count).map(|at| (from + at) % count).find(|&at| state.under_way[at].not_before <= now);
        let Some(at) = ready else { return false };
        let in_flight = state.under_way.swap_remove(at);
        self.deliver(&mut state, in_flight, now);
        true
    }

    /// Number of messages under way.
    #[cfg(test)]
    fn under_way(&self) -> usize {
        self.state().under_way.len()
    }

    /// Drops messages that were under way for too long; their callers get `Unknown`.
    pub fn age(&self) {
        let before = Millis(self.clock.wall().0.saturating_sub(self.in_flight_millis_max()));
        let old: Vec<InFlightMessage> =
            self.state().under_way.extract_if(.., |in_flight| in_flight.sent_at <= before).collect();
        for InFlightMessage { message, slot, node, .. } in old {
            self.log.write_line(|| format!("store: {message} of node {node} is lost for good"));
            complete_slot(slot, Err(unknown(&message)));
        }
    }

    /// Makes the store unreachable for this time.
    pub fn go_down(&self, by: Duration) {
        self.state().down_until = self.later(by);
    }

    /// Makes every call take several seconds, for this time.
    pub fn go_slow(&self, by: Duration) {
        self.state().slow_until = self.later(by);
    }

    /// Returns true if it answers, and without delay.
    pub fn is_responsive(&self) -> bool {
        let (now, state) = (self.clock.wall(), self.state());
        now >= state.down_until && now >= state.slow_until
    }

    /// Stops all faults.
    pub fn stop_faults(&self) {
        let mut state = self.state();
        (state.percent, state.down_until, state.slow_until) = (0, Millis(0), Millis(0));
        let now = self.clock.wall();
        state.under_way.iter_mut().for_each(|in_flight| in_flight.not_before = in_flight.not_before.min(now));
    }

    /// Copies the current contents.
    pub fn copy(&self) -> StoreCopy {
        StoreCopy { contents: self.memory.backup(), truth: self.state().truth.checkpoint() }
    }

    /// Restores a copy; with `changes_identity`, its servers get another identity.
    pub fn restore_copy(&self, copy: &StoreCopy, changes_identity: bool) {
        self.memory.restore_backup(&copy.contents);
        let mut state = self.state();
        state.history += u64::from(changes_identity);
        state.truth.restore_checkpoint(&copy.truth);
    }

    /// Visits a row.
    pub fn with_row<T>(&self, name: Name<'_>, visit: impl FnOnce(Option<&Snapshot>) -> T) -> T {
        self.memory.with_row(name, visit)
    }

    /// Visits the truth.
    pub fn with_truth<T>(&self, visit: impl FnOnce(&mut Truth) -> T) -> T {
        visit(&mut self.state().truth)
    }

    /// Fates of the calls so far.
    pub fn fates(&self) -> Fates {
        self.state().fates
    }

    /// Time by the store's clock.
    pub fn now(&self) -> Millis {
        self.clock.wall()
    }

    fn state(&self) -> MutexGuard<'_, SimStoreState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Longest time that a message stays under way.
    fn in_flight_millis_max(&self) -> u64 {
        self.grace_millis / 4
    }

    fn later(&self, by: Duration) -> Millis {
        Millis(self.clock.wall().0.saturating_add(u64::try_from(by.as_millis()).unwrap_or(u64::MAX)))
    }

    fn send(&self, node: usize, message: Message, history: Option<u64>, slot: &Arc<ReplySlot>) {
        let sent_at = self.clock.wall();
        let mut state = self.state();
        // Slowest answer before all callers give up.
        let not_before =
            if sent_at < state.slow_until { Millis(sent_at.0 + self.rng.below(10_000) as u64) } else { sent_at };
        let slot = Some(slot.clone());
        state.under_way.push(InFlightMessage { node, message, sent_at, not_before, back: None, history, slot });
    }

    fn deliver(&self, state: &mut SimStoreState, mut in_flight: InFlightMessage, now: Millis) {
        if let Some(reply) = in_flight.back.take() {
            return complete_slot(in_flight.slot, reply);
        }
        let node = in_flight.node;
        // False if the sender has died or given up.
        let waits = in_flight.slot.as_ref().is_some_and(|slot| Arc::strong_count(slot) > 1);
        if now < state.down_until {
            if waits && self.rng.chance(50) {
                let reply =
                    if self.rng.chance(50) { not_applied(&in_flight.message) } else { unknown(&in_flight.message) };
                self.log.write_line(|| format!("store: down for {} of node {node}", in_flight.message));
                return complete_slot(in_flight.slot, Err(reply));
            }
            in_flight.not_before = Millis(now.0 + 1 + self.rng.below(1_000) as u64);
            return state.under_way.push(in_flight);
        }
        if !waits {
            if in_flight.message.is_change() && self.rng.chance(60) {
                self.log.write_line(|| format!("store: {} of node {node} arrives late", in_flight.message));
                let _ = self.apply(state, node, &in_flight.message, true);
            }
            return;
        }
        if in_flight.message.is_guarded() && in_flight.history.is_some_and(|history| history != state.history) {
            self.log.write_line(|| format!("store: {} of node {node} meets another history", in_flight.message));
            return complete_slot(in_flight.slot, Err(StoreError::HistoryChanged { call: in_flight.message.call() }));
        }
        let fate = self.draw_fate(state, &in_flight.message);
        self.log.write_line(|| format!("store: {} of node {node}: {fate:?}", in_flight.message));
        match fate {
            CallFate::Answered => {
                let reply = self.apply(state, node, &in_flight.message, false);
                self.log.write_line(|| match &reply {
                    Ok(reply) => format!("store: answers {}", reply.to_log_text()),
                    Err(error) => format!("store: answers {error}"),
                });
                complete_slot(in_flight.slot, reply);
            }
            CallFate::AnsweredLate => {
                in_flight.back = Some(self.apply(state, node, &in_flight.message, false));
                in_flight.not_before = self.draw_arrival(now);
                state.under_way.push(in_flight);
            }
            CallFate::NotApplied => complete_slot(in_flight.slot, Err(not_applied(&in_flight.message))),
            CallFate::Lost => complete_slot(in_flight.slot, Err(unknown(&in_flight.message))),
            CallFate::Silent => {
                let _ = self.apply(state, node, &in_flight.message, true);
                complete_slot(in_flight.slot, Err(unknown(&in_flight.message)));
            }
            CallFate::Late => {
                complete_slot(in_flight.slot.take(), Err(unknown(&in_flight.message)));
                in_flight.not_before = self.draw_arrival(now);
                state.under_way.push(in_flight);
            }
        }
    }

    fn draw_fate(&self, state: &mut SimStoreState, message: &Message) -> CallFate {
        let fate = match self.rng.below(5) {
            _ if !self.rng.chance(state.percent) => CallFate::Answered,
            0 => CallFate::NotApplied,
            1 => CallFate::Lost,
            2 if message.is_change() => CallFate::Silent,
            3 if message.is_change() => CallFate::Late,
            _ => CallFate::AnsweredLate,
        };
        let Fates { answered, answered_late, not_applied, lost, silent, late } = &mut state.fates;
        *match fate {
            CallFate::Answered => answered,
            CallFate::AnsweredLate => answered_late,
            CallFate::NotApplied => not_applied,
            CallFate::Lost => lost,
            CallFate::Silent => silent,
            CallFate::Late => late,
        } += 1;
        fate
    }

    /// Draws an arrival time: soon, after a few seconds, or at the end of a message's longest time.
    fn draw_arrival(&self, now: Millis) -> Millis {
        let most = *self.rng.pick(&[50, 1_000, 10_000, u64::MAX]);
        let most = usize::try_from(most.min(self.in_flight_millis_max())).unwrap_or(usize::MAX);
        Millis(now.0 + self.rng.below(most) as u64)
    }

    /// Applies a message and records its effects. With `unheard`, any part of a put may be applied.
    fn apply(
        &self,
        state: &mut SimStoreState,
        node: usize,
        message: &Message,
        unheard: bool,
    ) -> Result<StoreReply, StoreError> {
        match message {
            Message::Put(puts) => {
                check_bound(message.call(), puts.len(), PUTS_MAX)?;
                let mut verdicts = Vec::with_capacity(puts.len());
                for (name_buf, put) in puts {
                    if unheard && puts.len() > 1 && self.rng.chance(30) {
                        continue;
                    }
                    let (name, one) = (as_name(name_buf), Message::Put(vec![(name_buf.clone(), *put)]));
                    let row_cell = |row: &Snapshot| row.cells.get(&put.cell).map(|row_cell| row_cell.seq);
                    let before = self.memory.with_row(name, |row| row.and_then(row_cell));
                    // One row may fail alone.
                    if !unheard && self.rng.chance(state.percent.div_ceil(8)) {
                        verdicts.push(Err(not_applied(message)));
                        continue;
                    }
                    let StoreReply::Verdicts(results) = one.apply(&self.memory)? else { unreachable!("it is a put") };
                    for result in results {
                        let verdict = result?;
                        self.memory.with_row(name, |row| {
                            state.truth.put(find_counter(name.bytes()), put, before, &verdict, row);
                        });
                        verdicts.push(Ok(verdict));
                    }
                }
                Ok(StoreReply::Verdicts(verdicts))
            }
            Message::PutBody(name_buf, body) => {
                let (name, row_cell) =
                    (as_name(name_buf), |row: &Snapshot| row.cells.get(&body.put.cell).map(|row_cell| row_cell.seq));
                let before = self.memory.with_row(name, |row| row.and_then(row_cell));
                let reply = message.apply(&self.memory)?;
                if let StoreReply::Body(BodyVerdict::Cell(verdict)) = &reply {
                    self.memory.with_row(name, |row| {
                        state.truth.put(find_counter(name.bytes()), &body.put, before, verdict, row);
                    });
                }
                Ok(reply)
            }
            Message::Swap(name_buf, version, next) => {
                self.swap(state, node, message, (name_buf, version, next.as_deref()))
            }
            Message::SwapBodies(name_buf, version, next, _) => {
                self.swap(state, node, message, (name_buf, version, Some(next)))
            }
            Message::Register(_, next) => {
                let before = self.find_registration(next.writer);
                let reply = message.apply(&self.memory)?;
                if matches!(reply, StoreReply::Registered(RegisterVerdict::Registered)) {
                    state.truth.record_registration(node, before, next);
                }
                Ok(reply)
            }
            Message::Unregister(..) => {
                let reply = message.apply(&self.memory)?;
                if matches!(reply, StoreReply::Registered(RegisterVerdict::Registered)) {
                    state.truth.record_unregistration();
                }
                Ok(reply)
            }
            Message::History => Ok(StoreReply::History(state.history)),
            other => other.apply(&self.memory),
        }
    }

    /// Applies a swap and records its effects.
    fn swap(
        &self,
        state: &mut SimStoreState,
        node: usize,
        message: &Message,
        (name_buf, version, next): (&NameBuf, &RowVersion, Option<&Snapshot>),
    ) -> Result<StoreReply, StoreError> {
        let name = as_name(name_buf);
        let before = self.memory.with_row(name, |row| row.cloned().unwrap_or_default());
        let reply = message.apply(&self.memory)?;
        if before.version == *version {
            let (by, at) = ((self.log.stamp(), node), (self.clock.wall(), self.grace_millis / 2));
            state.truth.swap(by, find_counter(name.bytes()), &before, next, at);
        }
        Ok(reply)
    }

    fn find_registration(&self, writer: Writer) -> Option<Registration> {
        let Ok(StoreReply::Writers(known)) = Message::Writers.apply(&self.memory) else { return None };
        known.registrations.into_iter().find(|known| known.writer == writer)
    }
}

fn complete_slot(slot: Option<Arc<ReplySlot>>, reply: Result<StoreReply, StoreError>) {
    let Some(slot) = slot else { return };
    let mut state = slot.state.lock().unwrap_or_else(PoisonError::into_inner);
    state.reply = Some(reply);
    if let Some(waker) = state.waker.take() {
        drop(state);
        waker.wake();
    }
}

fn not_applied(message: &Message) -> StoreError {
    StoreError::NotApplied { call: message.call(), source: Box::new(NetworkError) }
}

fn unknown(message: &Message) -> StoreError {
    StoreError::Unknown { call: message.call(), source: Box::new(NetworkError) }
}

#[cfg(test)]
mod tests;
