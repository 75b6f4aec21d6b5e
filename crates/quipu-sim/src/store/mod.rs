//! A store behind a network that does what networks do, at the scheduler's pace.
//!
//! In: calls of the port, from each node through a [`Door`] of its own. Out: answers, when and if [`SimStore::step`] lets them through; and
//! the [`Truth`].
//!
//! A call becomes a message, and its future waits. Each step takes one message anywhere it likes, and one of these happens: it is carried out and
//! answered; or it is not, and that is said (`NotApplied`) or not known (`Unknown`); or it is carried out silently; or its caller is told `Unknown` and
//! it is carried out much later; or the answer takes its time. The store may be down or slow for a while, lose its last commits, and be
//! restored from an older copy.
//!
//! Invariants:
//! - an answer that is given is the inner store's, and what was said not to be applied never is;
//! - nothing is under way for longer than a quarter of `grace`, by the store's clock: with the quarter that a node may hold a row before it
//!   swaps, that is the half which the protocol takes for granted;
//! - a message whose sender has died or given up may still arrive.

mod door;
mod message;
mod truth;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use quipu_model::memory_store::Kept;
use quipu_model::ports::store::{PUTS_MAX, within};
use quipu_model::shared::{BodyVerdict, RegisterVerdict, Registration, Snapshot, Version};
use quipu_model::{Clock, KeptName, MemoryStore, Millis, Name, StoreError, Writer};
use quipu_testkit::{Dice, SimClock};

pub use self::door::Door;
pub use self::truth::{Met, Swapped, Truth};

use self::message::{Message, Told, name};
use crate::counters::counter_of;
use crate::log::Log;

/// What becomes of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Answered,
    AnsweredLate,
    NotApplied,
    Lost,
    Silent,
    Late,
}

/// How many calls met which fate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Fates {
    /// Carried out and answered.
    pub answered: u64,
    /// The same, but the answer took its time.
    pub answered_late: u64,
    /// Not carried out, and said so.
    pub not_applied: u64,
    /// Not carried out, and nobody knows.
    pub lost: u64,
    /// Carried out, and nobody knows.
    pub silent: u64,
    /// Carried out later, and nobody knows.
    pub late: u64,
}

impl Fates {
    /// Adds what calls of another run met.
    pub fn add(&mut self, other: &Fates) {
        self.answered += other.answered;
        self.answered_late += other.answered_late;
        self.not_applied += other.not_applied;
        self.lost += other.lost;
        self.silent += other.silent;
        self.late += other.late;
    }
}

/// The store.
pub struct SimStore {
    memory: MemoryStore,
    clock: SimClock,
    dice: Dice,
    log: Log,
    grace_millis: u64,
    state: Mutex<State>,
}

struct State {
    under_way: Vec<Carried>,
    /// Of calls that meet a fault.
    percent: usize,
    down_until: Millis,
    slow_until: Millis,
    /// Rises when the store loses data in a way that its servers tell.
    history: u64,
    truth: Truth,
    fates: Fates,
}

/// A message under way.
struct Carried {
    node: usize,
    message: Message,
    sent_at: Millis,
    not_before: Millis,
    /// The answer, if it is on its way back.
    back: Option<Result<Told, StoreError>>,
    /// The history that the sender had learnt.
    history: Option<u64>,
    /// Where the answer is waited for; none if the caller was told that nobody knows.
    slot: Option<Arc<Slot>>,
}

/// Where an answer is waited for.
#[derive(Default)]
struct Slot {
    state: Mutex<Awaited>,
}

#[derive(Default)]
struct Awaited {
    told: Option<Result<Told, StoreError>>,
    waker: Option<Waker>,
}

/// All that the store held at one moment, and its books.
#[derive(Clone)]
pub struct Copied {
    kept: Kept,
    page: truth::Page,
}

/// What stands for a driver's error.
#[derive(Debug, thiserror::Error)]
#[error("the network failed")]
struct Broken;

impl SimStore {
    /// An empty store that goes by this clock and meets faults in so many calls of a hundred.
    pub fn new(clock: SimClock, dice: Dice, log: Log, grace: Duration, percent: usize) -> Arc<SimStore> {
        let state = State {
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
        Arc::new(SimStore { memory, clock, dice, log, grace_millis, state: Mutex::new(state) })
    }

    /// What a node reaches the store through.
    pub fn door(self: &Arc<SimStore>, node: usize) -> Door {
        Door::new(self.clone(), node)
    }

    /// Lets something happen to one message; false if there is none that could move.
    pub fn step(&self) -> bool {
        let now = self.clock.wall();
        let mut state = self.state();
        let count = state.under_way.len();
        let from = self.dice.below(count);
        let ready = (0..count).map(|at| (from + at) % count).find(|&at| state.under_way[at].not_before <= now);
        let Some(at) = ready else { return false };
        let carried = state.under_way.swap_remove(at);
        self.deliver(&mut state, carried, now);
        true
    }

    /// How many messages are under way.
    #[cfg(test)]
    fn under_way(&self) -> usize {
        self.state().under_way.len()
    }

    /// Time has passed: what was under way for too long never arrives, and whoever waits for it is told that nobody knows.
    pub fn age(&self) {
        let before = Millis(self.clock.wall().0.saturating_sub(self.patience()));
        let old: Vec<Carried> = self.state().under_way.extract_if(.., |carried| carried.sent_at <= before).collect();
        for Carried { message, slot, node, .. } in old {
            self.log.note(|| format!("store: {message} of node {node} is lost for good"));
            finish(slot, Err(unknown(&message)));
        }
    }

    /// Nobody reaches it for so long.
    pub fn go_down(&self, by: Duration) {
        self.state().down_until = self.later(by);
    }

    /// Every call takes several seconds for so long.
    pub fn go_slow(&self, by: Duration) {
        self.state().slow_until = self.later(by);
    }

    /// Whether it answers, and within a moment.
    pub fn answers(&self) -> bool {
        let (now, state) = (self.clock.wall(), self.state());
        now >= state.down_until && now >= state.slow_until
    }

    /// No more faults.
    pub fn calm(&self) {
        let mut state = self.state();
        (state.percent, state.down_until, state.slow_until) = (0, Millis(0), Millis(0));
        let now = self.clock.wall();
        state.under_way.iter_mut().for_each(|carried| carried.not_before = carried.not_before.min(now));
    }

    /// All that it holds now.
    pub fn copy(&self) -> Copied {
        Copied { kept: self.memory.keep(), page: self.state().truth.page() }
    }

    /// Goes back to that; `tells`: its servers have another identity then.
    pub fn go_back(&self, copied: &Copied, tells: bool) {
        self.memory.go_back(&copied.kept);
        let mut state = self.state();
        state.history += u64::from(tells);
        state.truth.go_back(&copied.page);
    }

    /// Looks at a row as it is.
    pub fn look<T>(&self, name: Name<'_>, look: impl FnOnce(Option<&Snapshot>) -> T) -> T {
        self.memory.look(name, look)
    }

    /// Looks at the books.
    pub fn truth<T>(&self, look: impl FnOnce(&mut Truth) -> T) -> T {
        look(&mut self.state().truth)
    }

    /// What the calls so far have met.
    pub fn fates(&self) -> Fates {
        self.state().fates
    }

    /// Its clock.
    pub fn now(&self) -> Millis {
        self.clock.wall()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Longest time that a message stays under way.
    fn patience(&self) -> u64 {
        self.grace_millis / 4
    }

    fn later(&self, by: Duration) -> Millis {
        Millis(self.clock.wall().0.saturating_add(u64::try_from(by.as_millis()).unwrap_or(u64::MAX)))
    }

    fn send(&self, node: usize, message: Message, history: Option<u64>, slot: &Arc<Slot>) {
        let sent_at = self.clock.wall();
        let mut state = self.state();
        // As slow as a store gets before everybody gives up on it.
        let not_before =
            if sent_at < state.slow_until { Millis(sent_at.0 + self.dice.below(10_000) as u64) } else { sent_at };
        let slot = Some(slot.clone());
        state.under_way.push(Carried { node, message, sent_at, not_before, back: None, history, slot });
    }

    fn deliver(&self, state: &mut State, mut carried: Carried, now: Millis) {
        if let Some(told) = carried.back.take() {
            return finish(carried.slot, told);
        }
        let node = carried.node;
        // Whoever sent it has gone away or given up.
        let waits = carried.slot.as_ref().is_some_and(|slot| Arc::strong_count(slot) > 1);
        if now < state.down_until {
            if waits && self.dice.chance(50) {
                let told = if self.dice.chance(50) { not_applied(&carried.message) } else { unknown(&carried.message) };
                self.log.note(|| format!("store: down for {} of node {node}", carried.message));
                return finish(carried.slot, Err(told));
            }
            carried.not_before = Millis(now.0 + 1 + self.dice.below(1_000) as u64);
            return state.under_way.push(carried);
        }
        if !waits {
            if carried.message.changes() && self.dice.chance(60) {
                self.log.note(|| format!("store: {} of node {node} arrives late", carried.message));
                let _ = self.apply(state, node, &carried.message, true);
            }
            return;
        }
        if carried.message.is_guarded() && carried.history.is_some_and(|history| history != state.history) {
            self.log.note(|| format!("store: {} of node {node} meets another history", carried.message));
            return finish(carried.slot, Err(StoreError::HistoryChanged { call: carried.message.call() }));
        }
        let fate = self.fate(state, &carried.message);
        self.log.note(|| format!("store: {} of node {node}: {fate:?}", carried.message));
        match fate {
            Fate::Answered => {
                let told = self.apply(state, node, &carried.message, false);
                self.log.note(|| match &told {
                    Ok(told) => format!("store: answers {}", told.in_short()),
                    Err(error) => format!("store: answers {error}"),
                });
                finish(carried.slot, told);
            }
            Fate::AnsweredLate => {
                carried.back = Some(self.apply(state, node, &carried.message, false));
                carried.not_before = self.some_time_after(now);
                state.under_way.push(carried);
            }
            Fate::NotApplied => finish(carried.slot, Err(not_applied(&carried.message))),
            Fate::Lost => finish(carried.slot, Err(unknown(&carried.message))),
            Fate::Silent => {
                let _ = self.apply(state, node, &carried.message, true);
                finish(carried.slot, Err(unknown(&carried.message)));
            }
            Fate::Late => {
                finish(carried.slot.take(), Err(unknown(&carried.message)));
                carried.not_before = self.some_time_after(now);
                state.under_way.push(carried);
            }
        }
    }

    fn fate(&self, state: &mut State, message: &Message) -> Fate {
        let fate = match self.dice.below(5) {
            _ if !self.dice.chance(state.percent) => Fate::Answered,
            0 => Fate::NotApplied,
            1 => Fate::Lost,
            2 if message.changes() => Fate::Silent,
            3 if message.changes() => Fate::Late,
            _ => Fate::AnsweredLate,
        };
        let Fates { answered, answered_late, not_applied, lost, silent, late } = &mut state.fates;
        *match fate {
            Fate::Answered => answered,
            Fate::AnsweredLate => answered_late,
            Fate::NotApplied => not_applied,
            Fate::Lost => lost,
            Fate::Silent => silent,
            Fate::Late => late,
        } += 1;
        fate
    }

    /// Soon, or after a few seconds, or at the end of what a message may take.
    fn some_time_after(&self, now: Millis) -> Millis {
        let most = *self.dice.pick(&[50, 1_000, 10_000, u64::MAX]);
        let most = usize::try_from(most.min(self.patience())).unwrap_or(usize::MAX);
        Millis(now.0 + self.dice.below(most) as u64)
    }

    /// Carries a message out and notes what it did. Of a put that nobody hears of, any part may be put.
    fn apply(&self, state: &mut State, node: usize, message: &Message, unheard: bool) -> Result<Told, StoreError> {
        match message {
            Message::Put(puts) => {
                within(message.call(), puts.len(), PUTS_MAX)?;
                let mut verdicts = Vec::with_capacity(puts.len());
                for (kept, put) in puts {
                    if unheard && puts.len() > 1 && self.dice.chance(30) {
                        continue;
                    }
                    let (name, one) = (name(kept), Message::Put(vec![(kept.clone(), *put)]));
                    let held = |row: &Snapshot| row.cells.get(&put.cell).map(|held| held.seq);
                    let before = self.memory.look(name, |row| row.and_then(held));
                    // One row may fail alone.
                    if !unheard && self.dice.chance(state.percent.div_ceil(8)) {
                        verdicts.push(Err(not_applied(message)));
                        continue;
                    }
                    let Told::Verdicts(results) = one.apply(&self.memory)? else { unreachable!("it is a put") };
                    for result in results {
                        let verdict = result?;
                        self.memory.look(name, |row| {
                            state.truth.put(counter_of(name.bytes()), put, before, &verdict, row);
                        });
                        verdicts.push(Ok(verdict));
                    }
                }
                Ok(Told::Verdicts(verdicts))
            }
            Message::PutBody(kept, body) => {
                let (name, held) = (name(kept), |row: &Snapshot| row.cells.get(&body.put.cell).map(|held| held.seq));
                let before = self.memory.look(name, |row| row.and_then(held));
                let told = message.apply(&self.memory)?;
                if let Told::Body(BodyVerdict::Told(verdict)) = &told {
                    self.memory.look(name, |row| {
                        state.truth.put(counter_of(name.bytes()), &body.put, before, verdict, row);
                    });
                }
                Ok(told)
            }
            Message::Swap(kept, version, next) => self.swap(state, node, message, (kept, version, next.as_deref())),
            Message::SwapBodies(kept, version, next, _) => self.swap(state, node, message, (kept, version, Some(next))),
            Message::Register(_, next) => {
                let before = self.registered(next.writer);
                let told = message.apply(&self.memory)?;
                if matches!(told, Told::Registered(RegisterVerdict::Registered)) {
                    state.truth.registered(node, before, next);
                }
                Ok(told)
            }
            Message::Unregister(..) => {
                let told = message.apply(&self.memory)?;
                if matches!(told, Told::Registered(RegisterVerdict::Registered)) {
                    state.truth.unregistered();
                }
                Ok(told)
            }
            Message::History => Ok(Told::History(state.history)),
            other => other.apply(&self.memory),
        }
    }

    /// Carries a swap out and notes what it did.
    fn swap(
        &self,
        state: &mut State,
        node: usize,
        message: &Message,
        (kept, version, next): (&KeptName, &Version, Option<&Snapshot>),
    ) -> Result<Told, StoreError> {
        let name = name(kept);
        let before = self.memory.look(name, |row| row.cloned().unwrap_or_default());
        let told = message.apply(&self.memory)?;
        if before.version == *version {
            let (by, at) = ((self.log.stamp(), node), (self.clock.wall(), self.grace_millis / 2));
            state.truth.swap(by, counter_of(name.bytes()), &before, next, at);
        }
        Ok(told)
    }

    fn registered(&self, writer: Writer) -> Option<Registration> {
        let Ok(Told::Writers(known)) = Message::Writers.apply(&self.memory) else { return None };
        known.registrations.into_iter().find(|known| known.writer == writer)
    }
}

fn finish(slot: Option<Arc<Slot>>, told: Result<Told, StoreError>) {
    let Some(slot) = slot else { return };
    let mut state = slot.state.lock().unwrap_or_else(PoisonError::into_inner);
    state.told = Some(told);
    if let Some(waker) = state.waker.take() {
        drop(state);
        waker.wake();
    }
}

fn not_applied(message: &Message) -> StoreError {
    StoreError::NotApplied { call: message.call(), source: Box::new(Broken) }
}

fn unknown(message: &Message) -> StoreError {
    StoreError::Unknown { call: message.call(), source: Box::new(Broken) }
}

#[cfg(test)]
mod tests;
