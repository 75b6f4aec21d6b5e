//! Judges a run from outside: it compares acts and replies with the real events at the store.
//!
//! In: each act when it is sent and when it is answered, every crash, and in the end the store's
//! counted total and each node's reading. Out: the first broken promise.
//!
//! - Counted = acknowledged adds + some subset of the adds in doubt, each once. In doubt are
//!   unanswered adds, and adds that a crash may take by their namespace's durability.
//! - Every value that a swap returned is the value that it took (`takes`).
//! - A reading of a rising counter never falls on one node between its crashes. It includes the
//!   node's own acknowledged adds, and never exceeds the sum of all adds sent. The reply to an add
//!   includes at least those adds and itself.
//! - A node does not show again the values taken up to its last own take, while the store answers.
//! - In fair conditions a reading lags by no more than the options allow (`freshness`).
//! - No value is below 0 in a counter with positive adds only.
//! - A sketch contains every acknowledged observation, and none that no client sent. After a delete
//!   this holds for the observations after the last delete (`sketch_history`).
//! - A command that needs one owner is refused, and a refused command is never applied.
//! - In the end all nodes show the same value, and it is the sum of the row.
//!
//! Where the store may lose data, each node that received a token may count it once; and swapped
//! counters are judged by agreement alone. If it lost data after the registration of an incarnation
//! was removed, only adds of the nodes' present incarnations are certain.

mod freshness;
mod sketch_history;
mod sums;
mod takes;

use std::collections::BTreeMap;
use std::time::Duration;

use quipu_engine::Position;
use quipu_model::{Durability, Refusal, Reply};

pub use self::freshness::Conditions;

use self::freshness::FreshnessHistory;
use self::sketch_history::SketchHistory;
pub use self::sketch_history::SketchReading;
use self::sums::is_subset_sum;
use self::takes::{Take, TakeOutcome};
use crate::act::{Act, Action, Items};
use crate::counters::{COUNTERS, CounterClass, SimCounter, find_counter};
use crate::store::Truth;

/// End of a node's process or disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeEnd {
    /// Closed cleanly.
    Clean,
    /// The process was killed.
    Killed,
    /// The machine lost its power; the journal was synced up to here.
    PowerLoss(Position),
    /// Its directory was lost.
    DirectoryLost,
    /// Away too long: its settled state is unknown.
    Stranded,
    /// Its directory was replaced by a copy with this stamp.
    Restored(u64),
}

/// Outcome of an act.
#[derive(Debug, Clone)]
pub struct ActOutcome {
    /// The reply; none if it never comes.
    pub reply: Option<Reply>,
    /// End of the journal after the act was applied.
    pub position: Position,
}

/// An act under way.
#[derive(Debug, Clone, Copy)]
pub struct PendingAct {
    /// The act.
    pub act: Act,
    /// Its node.
    pub node: usize,
    /// Least value of its reading, per counter that it reads. An add continues from the known
    /// value, which may be the node's own adds alone.
    floors: [i128; READ_MAX],
    /// Sum certainly taken of each of them.
    gone: [i128; READ_MAX],
    /// Sum that swaps had taken of the counter.
    taken: i128,
    /// Least values by freshness, if conditions stay fair.
    fresh: [Option<i128>; READ_MAX],
    /// Conditions when it was sent.
    conditions: Conditions,
    /// Bit set of the counters to which its node has added.
    own: u32,
    /// Number of store losses at that time.
    losses: u64,
    /// Index in the counter's history; for a reading of a sketch, its stamp.
    entry: usize,
}

/// Node of an add with a token: one of its recipients, indistinguishable from outside.
const NOBODY: usize = usize::MAX;

/// Most counters that one act reads.
const READ_MAX: usize = 3;

/// The judge: histories of all counters.
pub struct Judge {
    histories: [CounterHistory; COUNTERS.len()],
    incarnations: Vec<u64>,
    tokens: BTreeMap<u64, TokenAdd>,
    /// Number of readings judged by their lag.
    pub fresh_readings: u64,
    /// Number of events that made certain adds less certain: the store lost data, or afterwards a
    /// node continued as another writer.
    losses: u64,
    /// True if the store may lose data in this run.
    may_lose: bool,
}

/// An add with a token.
#[derive(Default)]
struct TokenAdd {
    /// Index of the counter, and of the add in its history.
    counter: usize,
    entry: usize,
    /// Recipients: one of them may have applied it.
    nodes: Vec<usize>,
    /// Its replied value.
    value: Option<i64>,
    /// The node that applied it may have lost it.
    in_doubt: bool,
}

#[derive(Default)]
struct CounterHistory {
    adds: Vec<AddEntry>,
    takes: Vec<Take>,
    /// Sum of all positive adds and sets sent.
    most: i128,
    /// Sum of all negative adds sent.
    least: i128,
    /// Largest value that each node has shown since its last crash.
    shown: Vec<i128>,
    /// Sum of each node's own acknowledged and certain adds.
    own: Vec<i128>,
    /// Sum taken by all nodes when each node's last take was carried out, and the time it was sent.
    /// That node must not show any of it again.
    gone: Vec<(i128, Duration)>,
    freshness: FreshnessHistory,
    /// Observations, of a sketch.
    sketch: SketchHistory,
}

#[derive(Debug, Clone, Copy)]
struct AddEntry {
    node: usize,
    incarnation: u64,
    delta: i64,
    ack_state: AckState,
    position: Position,
    acked_at: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AckState {
    Acked,
    InDoubt,
    Refused,
}

impl CounterHistory {
    /// Records a sent add; returns its index.
    fn push_add(&mut self, node: usize, incarnation: u64, delta: i64) -> usize {
        self.most += i128::from(delta.max(0));
        self.least += i128::from(delta.min(0));
        let (ack_state, position, acked_at) = (AckState::InDoubt, Position(0), 0);
        self.adds.push(AddEntry { node, incarnation, delta, ack_state, position, acked_at });
        self.adds.len() - 1
    }
}

impl Judge {
    /// Creates a judge for a run in which the store may lose data, or may not.
    pub fn new(may_lose: bool) -> Judge {
        let (histories, tokens) = (Default::default(), BTreeMap::new());
        Judge { histories, incarnations: Vec::new(), tokens, fresh_readings: 0, losses: 0, may_lose }
    }

    /// Records that a node has begun an incarnation.
    pub fn begin_incarnation(&mut self, node: usize) {
        if self.incarnations.len() <= node {
            self.incarnations.resize(node + 1, 0);
            for history in &mut self.histories {
                history.shown.resize(node + 1, i128::MIN);
                history.own.resize(node + 1, 0);
                history.gone.resize(node + 1, (0, Duration::ZERO));
            }
        }
        self.incarnations[node] += 1;
    }

    /// Records a sent act, with the sum that swaps have taken of its counter; returns the sum of
    /// its adds.
    pub fn begin_act(
        &mut self,
        node: usize,
        act: Act,
        taken: i128,
        (stamp, conditions): (u64, Conditions),
    ) -> (PendingAct, i64) {
        let (mut floors, mut fresh, mut gone) = ([i128::MIN; READ_MAX], [None; READ_MAX], [0; READ_MAX]);
        for (floor, counter) in floors.iter_mut().zip(act.counters()) {
            let history = &self.histories[counter];
            let adds = matches!(act.what, Action::Add(_));
            // A store that lost data shows less until all nodes have put again.
            let shown = if adds || self.is_lossy() { i128::MIN } else { history.shown[node] };
            *floor = shown.max(history.own[node]);
        }
        for (gone, counter) in gone.iter_mut().zip(act.counters()) {
            let (taken, at) = self.histories[counter].gone[node];
            *gone = if at > conditions.clear_since { taken } else { 0 };
        }
        for (least, counter) in fresh.iter_mut().zip(act.counters()) {
            // Lost data of ended incarnations may show until their successors drop it, at any later
            // time.
            let judged = COUNTERS[counter].class == CounterClass::Rising && !matches!(act.what, Action::Add(_));
            let judged = judged && !self.is_lossy();
            *least = if judged { self.histories[counter].freshness.least_reading(node, conditions) } else { None };
        }
        let incarnation = self.incarnations[node];
        let history = &mut self.histories[act.counter];
        let (mut entry, mut adds) = (0, 0);
        match act.what {
            Action::Observe(item, by) => entry = history.sketch.push((node, incarnation), item, by, stamp),
            Action::Estimate => entry = stamp as usize,
            Action::Add(delta) => {
                entry = history.push_add(node, self.incarnations[node], delta);
                adds = delta;
            }
            Action::Once { token, delta } => {
                let known = self.tokens.entry(token).or_insert_with(|| {
                    adds = delta;
                    TokenAdd { counter: act.counter, entry: history.push_add(NOBODY, 0, delta), ..TokenAdd::default() }
                });
                if self.may_lose && !known.nodes.is_empty() && !known.nodes.contains(&node) {
                    // The store may lose the claim, and this node may apply the token before the
                    // other node notices. Only once: a node knows its own tokens.
                    history.push_add(NOBODY, 0, delta);
                    adds = delta;
                }
                known.nodes.push(node);
                entry = known.entry;
            }
            what if what.takes() => {
                entry = history.takes.len();
                if let Action::Set(value) = what {
                    history.most += i128::from(value);
                }
                history.takes.push(Take { node, what, invoked: stamp, outcome: TakeOutcome::Unknown });
            }
            _ => {}
        }
        let own = (0..)
            .zip(&self.histories)
            .filter(|(_, history)| history.own[node] > 0)
            .fold(0, |own, (at, _)| own | 1 << at);
        (PendingAct { act, node, floors, gone, taken, fresh, conditions, own, losses: self.losses, entry }, adds)
    }

    /// Judges an answer; returns the sum of refused adds.
    pub fn judge_outcome(
        &mut self,
        pending: PendingAct,
        outcome: &ActOutcome,
        (stamp, conditions): (u64, Conditions),
    ) -> Result<i64, String> {
        let PendingAct { act, node, mut floors, mut gone, fresh, mut own, losses, entry, .. } = pending;
        if losses != self.losses {
            (floors, gone, own) = ([i128::MIN; READ_MAX], [0; READ_MAX], 0);
        }
        if pending.conditions.clear_since != conditions.clear_since {
            // A node shows its earlier state while the store does not answer it.
            gone = [0; READ_MAX];
        }
        if pending.conditions.fair_since == conditions.fair_since {
            for (floor, fresh) in floors.iter_mut().zip(fresh) {
                self.fresh_readings += u64::from(fresh.is_some());
                *floor = (*floor).max(fresh.unwrap_or(i128::MIN));
            }
        }
        let Some(reply) = &outcome.reply else { return Ok(0) };
        let wrong = || Err(format!("node {node}: {act:?} was answered {reply:?}"));
        let lossy = self.is_lossy();
        let SimCounter { class, form, .. } = COUNTERS[act.counter];
        if act.what == Action::Estimate {
            let reading = match reply {
                Reply::Refused(Refusal::NoSketch { .. }) => SketchReading::nothing(form),
                Reply::Refused(_) => return Ok(0),
                reply => match SketchReading::from_reply(reply) {
                    Some(reading) => reading,
                    None => return wrong(),
                },
            };
            // Only observations acknowledged before this reading was sent are certain.
            let before = if class == CounterClass::Observed && !lossy { pending.entry as u64 } else { 0 };
            let verdict = self.histories[act.counter].sketch.judge_reading((node, before), form, &reading);
            return verdict.map(|()| 0).map_err(|what| format!("{}: node {node} {what}", COUNTERS[act.counter].name));
        }
        if let Reply::Refused(_) = reply {
            return Ok(self.refuse(pending));
        }
        let history = &mut self.histories[act.counter];
        let value = match (act.what, reply) {
            (what, _) if what.is_forbidden() => {
                return Err(format!("node {node}: {what:?} needs one owner, and was answered {reply:?}"));
            }
            (Action::Add(delta), Reply::Integer(value)) => {
                let add = &mut history.adds[entry];
                (add.ack_state, add.position, add.acked_at) = (AckState::Acked, outcome.position, stamp);
                history.own[node] += i128::from(delta);
                history.freshness.add_acked(pending.conditions.now, conditions, delta);
                return self
                    .judge_value(pending, act.counter, (floors[0], gone[0]), i128::from(delta), *value)
                    .map(|()| 0);
            }
            (Action::Once { token, .. }, Reply::Integer(value)) => {
                let known = self.tokens.entry(token).or_default();
                if !lossy && known.value.is_some_and(|known| known != *value) {
                    return Err(format!("node {node}: {act:?} is answered {value}, and before {:?}", known.value));
                }
                known.value = Some(*value);
                if !known.in_doubt {
                    history.adds[entry].ack_state = AckState::Acked;
                }
                return Ok(0);
            }
            (Action::Read, Reply::Value(value)) => {
                let value = value.unwrap_or(0);
                history.freshness.add_reading(node, conditions, i128::from(value));
                return self.judge_value(pending, act.counter, (floors[0], gone[0]), 0, value).map(|()| 0);
            }
            (Action::ReadMany, Reply::Values(values)) if values.len() == READ_MAX => {
                for ((counter, value), bounds) in act.counters().zip(values).zip(floors.into_iter().zip(gone)) {
                    if COUNTERS[counter].is_sketch() {
                        continue;
                    }
                    self.judge_value(pending, counter, bounds, 0, value.unwrap_or(0))?;
                }
                return Ok(0);
            }
            (Action::Observe(..), Reply::Integer(0 | 1) | Reply::Integers(_) | Reply::Items(_)) => {
                history.sketch.acknowledge(entry, outcome.position, stamp);
                return Ok(0);
            }
            (Action::ObserveAll(_), Reply::Integer(0 | 1)) => return Ok(0),
            (Action::Scan, Reply::Page(0, names)) => return judge_scan(node, own, names).map(|()| 0),
            (Action::GetSet | Action::Take, Reply::Value(value)) => Some(value.unwrap_or(0)),
            (Action::Reset, Reply::Integer(value)) => Some(*value),
            (Action::Set(_), Reply::Ok) => None,
            (Action::Delete, Reply::Integer(0)) => Some(0),
            (Action::Delete, Reply::Integer(1)) => None,
            (Action::Expire(_) | Action::Persist, Reply::Integer(0 | 1)) => return Ok(0),
            _ => return wrong(),
        };
        history.takes[entry].outcome = TakeOutcome::Acked { at: stamp, value };
        let taken = pending.taken + i128::from(value.unwrap_or(0));
        if taken >= history.gone[node].0 {
            history.gone[node] = (taken, pending.conditions.now);
        }
        if value.is_some_and(|value| value < 0) {
            return wrong();
        }
        Ok(0)
    }

    /// Records the end of a node. Its acts under way stay unanswered.
    pub fn end_node(&mut self, node: usize, end: NodeEnd) {
        let lossy = self.is_lossy();
        let lost = matches!(end, NodeEnd::DirectoryLost | NodeEnd::Stranded | NodeEnd::Restored(_));
        for token in self.tokens.values_mut().filter(|token| lost && token.nodes.contains(&node)) {
            token.in_doubt = true;
            self.histories[token.counter].adds[token.entry].ack_state = AckState::InDoubt;
        }
        for (history, counter) in self.histories.iter_mut().zip(&COUNTERS) {
            let memory = counter.durability == Durability::Memory;
            let mut own = 0;
            for add in history.adds.iter_mut().filter(|add| add.node == node && add.ack_state == AckState::Acked) {
                let lost = match end {
                    NodeEnd::Clean => false,
                    NodeEnd::Killed => memory,
                    NodeEnd::PowerLoss(synced) => {
                        memory || (counter.durability == Durability::Relaxed && add.position > synced)
                    }
                    NodeEnd::DirectoryLost | NodeEnd::Stranded => true,
                    NodeEnd::Restored(since) => memory || add.acked_at >= since,
                };
                if lost {
                    add.ack_state = AckState::InDoubt;
                } else if !lossy {
                    own += i128::from(add.delta);
                }
            }
            history.sketch.end_node(node, end, counter.durability);
            history.own[node] = own;
            (history.shown[node], history.gone[node]) = (i128::MIN, (0, Duration::ZERO));
        }
    }

    /// Records that the store has lost data.
    pub fn record_store_loss(&mut self) {
        self.losses += 1;
        for history in &mut self.histories {
            for (node, own) in history.own.iter_mut().enumerate() {
                let adds =
                    history.adds.iter().filter(|add| add.node == node && add.incarnation == self.incarnations[node]);
                *own = adds.filter(|add| add.ack_state == AckState::Acked).map(|add| i128::from(add.delta)).sum();
            }
            history.shown.fill(i128::MIN);
            history.gone.fill((0, Duration::ZERO));
        }
    }

    /// Records that a node continues as another writer without a crash: data of its old incarnation
    /// that the store loses is lost.
    pub fn replace_incarnation(&mut self, node: usize) {
        self.incarnations[node] += 1;
        if self.is_lossy() {
            self.losses += 1;
            self.histories.iter_mut().for_each(|history| history.own[node] = 0);
        }
    }

    /// Judges a counter in the end, after all nodes have settled. `shown` is each node's reading,
    /// `sum` the row's sum, `counted` the store's counted total.
    pub fn judge_counter(
        &self,
        truth: &Truth,
        counter: usize,
        counted: i128,
        sum: i128,
        shown: &[(usize, i64)],
    ) -> Result<(), String> {
        let name = COUNTERS[counter].name;
        for (node, value) in shown {
            if i128::from(*value) != sum {
                return Err(format!("{name}: in the end the row comes to {sum}, and node {node} shows {value}"));
            }
        }
        let class = COUNTERS[counter].class;
        if self.is_lossy() && class.is_swapped() {
            return Ok(());
        }
        if class.is_swapped() {
            let swaps: Vec<_> = truth.swaps().iter().filter(|swap| swap.counter == counter).copied().collect();
            takes::judge_takes(&self.histories[counter].takes, &swaps).map_err(|what| format!("{name}: {what}"))?;
        }
        // Adds that a node made knowing of an expiry vanish with it, and their sum is invisible
        // from outside. A check at every step excludes double counting.
        if truth.is_expiring(counter) {
            Ok(())
        } else {
            self.judge_sum(counter, counted, truth.has_removed_registration())
        }
    }

    /// Judges a sketch in the end.
    pub fn judge_sketch(&self, truth: &Truth, counter: usize, shown: &[(usize, SketchReading)]) -> Result<(), String> {
        let SimCounter { name, form, .. } = COUNTERS[counter];
        let (since, certain) = self.certain_since(truth, counter);
        let sketch = &self.histories[counter].sketch;
        let verdict = sketch.same(form, shown).and(sketch.judge_end(form, since, certain, shown));
        verdict.map_err(|what| format!("{name}: {what}"))
    }

    /// Certain and requested items of a sketch of uniques.
    pub fn items(&self, truth: &Truth, counter: usize) -> (Items, Items) {
        let (since, certain) = self.certain_since(truth, counter);
        let sketch = &self.histories[counter].sketch;
        (sketch.certain_items(since, certain), sketch.requested_items())
    }

    /// Stamp after which the observations of these nodes and incarnations are certain.
    fn certain_since(&self, truth: &Truth, counter: usize) -> (u64, impl Fn(usize, u64) -> bool) {
        let mut deletes = self.histories[counter].takes.iter().filter_map(|take| match take.outcome {
            TakeOutcome::Acked { at, .. } => Some(at),
            TakeOutcome::Refused => None,
            TakeOutcome::Unknown => Some(u64::MAX),
        });
        // After a lost delete, the deleted items are unknown; and observations made knowing of an
        // expiry vanish with it.
        let unclear = self.is_lossy() && deletes.clone().next().is_some() || truth.is_expiring(counter);
        let since = if unclear { u64::MAX } else { deletes.by_ref().max().unwrap_or(0) };
        (since, |node: usize, incarnation: u64| !self.is_lossy() || incarnation == self.incarnations[node])
    }

    fn is_lossy(&self) -> bool {
        self.losses > 0
    }

    /// `removed`: registrations were removed, so no node has the lost data of these incarnations
    /// any more.
    fn judge_sum(&self, counter: usize, counted: i128, removed: bool) -> Result<(), String> {
        let is_certain = |add: &AddEntry| {
            !self.is_lossy() || !removed || add.node != NOBODY && add.incarnation == self.incarnations[add.node]
        };
        let (mut certain, mut in_doubt) = (0, Vec::new());
        for add in &self.histories[counter].adds {
            match add.ack_state {
                AckState::Acked if is_certain(add) => certain += i128::from(add.delta),
                AckState::Acked | AckState::InDoubt => in_doubt.push(add.delta),
                AckState::Refused => {}
            }
        }
        let missing = counted - certain;
        if is_subset_sum(missing, in_doubt.iter().copied()) {
            return Ok(());
        }
        Err(format!(
            "{}: {counted} was counted; acknowledged adds come to {certain}, and no subset of those in doubt, {in_doubt:?}, to the difference of {missing}",
            COUNTERS[counter].name
        ))
    }

    fn refuse(&mut self, pending: PendingAct) -> i64 {
        let history = &mut self.histories[pending.act.counter];
        match pending.act.what {
            Action::Add(delta) => {
                history.adds[pending.entry].ack_state = AckState::Refused;
                history.most -= i128::from(delta.max(0));
                history.least -= i128::from(delta.min(0));
                delta
            }
            Action::Observe(..) => {
                history.sketch.refuse(pending.entry);
                0
            }
            what if what.takes() => {
                history.takes[pending.entry].outcome = TakeOutcome::Refused;
                0
            }
            _ => 0,
        }
    }

    fn judge_value(
        &mut self,
        pending: PendingAct,
        counter: usize,
        (floor, gone): (i128, i128),
        added: i128,
        value: i64,
    ) -> Result<(), String> {
        let lossy = self.is_lossy();
        let history = &mut self.histories[counter];
        let value = i128::from(value);
        // The reply includes the add and the value shown before; every other value is at least 0.
        let least = match COUNTERS[counter].class {
            CounterClass::Rising => floor.max(0) + added,
            CounterClass::Both => history.least,
            _ => added,
        };
        // After a lost swap, the row may also hold earlier carried deltas until their writers read
        // it again.
        let most = match lossy {
            true if COUNTERS[counter].class.is_swapped() => i128::MAX,
            true => history.most,
            false => history.most - gone,
        };
        if (least..=most).contains(&value) {
            history.shown[pending.node] = history.shown[pending.node].max(value);
            return Ok(());
        }
        Err(format!(
            "{}: node {} answered {:?} with {value}; it should be from {least} to {most}",
            COUNTERS[counter].name, pending.node, pending.act.what
        ))
    }
}

/// Judges a SCAN page: all names are known, and every counter to which this node has added is
/// there.
fn judge_scan(node: usize, own: u32, names: &[Box<[u8]>]) -> Result<(), String> {
    if let Some(unknown) = names.iter().find(|name| find_counter(name).is_none()) {
        return Err(format!("node {node}: SCAN names {}", unknown.escape_ascii()));
    }
    for (at, counter) in COUNTERS.iter().enumerate() {
        let added = counter.class == CounterClass::Rising && own >> at & 1 == 1;
        if added && !names.iter().any(|name| **name == *counter.name.as_bytes()) {
            return Err(format!("node {node}: SCAN does not name {}, to which it has added", counter.name));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
