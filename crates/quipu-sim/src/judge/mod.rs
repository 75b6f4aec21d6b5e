//! The judge: from the outside, by what clients asked and were told and by what really happened at the store.
//!
//! In: each act when it is asked and when it is answered, every crash, and in the end what the store has counted and what each node shows.
//! Out: the first promise that was broken.
//!
//! - what was counted = adds that were acknowledged + some subset of those in doubt, each once. In doubt is what was never answered, and what the durability of
//!   its namespace lets a crash take;
//! - every value that a swap returned is what that swap took (`takes`);
//! - a reading of a counter that only rises never goes back on one node between its crashes, has the node's own acknowledged adds, and never more than was asked for;
//!   the reply to an add has at least those adds and itself;
//! - what a node has taken, and what was taken before that, is not shown there again, as long as the store answers;
//! - in fair weather it lags by no more than the options say (`fresh`);
//! - nothing is below 0 where only positive adds happen;
//! - of a sketch: what was acknowledged is in it, and no more than was asked for; of one that is deleted, what was observed after the last delete (`observed`);
//! - what needs one owner is refused, and refused means never applied;
//! - in the end all nodes show the same, and it is the sum of the row.
//!
//! Where the store may lose data, a token may be counted once by each node that it was sent to; and counters that are swapped are judged by agreement alone.
//! Where it has lost data after the registration of a life was removed, only adds of the nodes' present lives are certain.

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

/// How a node ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeEnd {
    /// It was closed.
    Clean,
    /// The process was killed.
    Killed,
    /// The machine lost its power; the journal was synced up to here.
    PowerLoss(Position),
    /// Its directory was lost.
    DirectoryLost,
    /// It was away for so long that nobody can tell what it has settled.
    Stranded,
    /// Its directory was replaced by a copy made when so many acts had been asked.
    Restored(u64),
}

/// What became of an act.
#[derive(Debug, Clone)]
pub struct ActOutcome {
    /// The reply; none if there is none and will not be.
    pub reply: Option<Reply>,
    /// The end of the journal when the act had been applied.
    pub position: Position,
}

/// An act under way.
#[derive(Debug, Clone, Copy)]
pub struct PendingAct {
    /// What.
    pub act: Act,
    /// Of which node.
    pub node: usize,
    /// Least value that its reading may show, per counter that it reads. An add goes on with what is known, which may be the node's own adds alone.
    floors: [i128; READ_MAX],
    /// What is gone of each of them for certain.
    gone: [i128; READ_MAX],
    /// What swaps had taken of the counter.
    taken: i128,
    /// Least values again, if the weather stays fair.
    fresh: [Option<i128>; READ_MAX],
    /// When it was asked.
    conditions: Conditions,
    /// Counters that its node has added to: a bit each.
    own: u32,
    /// How much the store had lost by then.
    losses: u64,
    /// Where it is in the counter's book; of a reading of a sketch, when it was asked.
    entry: usize,
}

/// Who has applied an add with a token: one of those it was sent to, and nobody outside can tell which.
const NOBODY: usize = usize::MAX;

/// Most counters that one act reads.
const READ_MAX: usize = 3;

/// The books of all counters.
pub struct Judge {
    histories: [CounterHistory; COUNTERS.len()],
    incarnations: Vec<u64>,
    tokens: BTreeMap<u64, TokenAdd>,
    /// Readings that were judged by how far they lag.
    pub fresh_readings: u64,
    /// How often what was certain has become less so: the store lost data, or a node went on as someone else after that.
    losses: u64,
    /// Whether the store may lose data in this run.
    may_lose: bool,
}

/// An add with a token.
#[derive(Default)]
struct TokenAdd {
    /// Which counter, and where it is in its book.
    counter: usize,
    entry: usize,
    /// Nodes it was sent to: one of them may have applied it.
    nodes: Vec<usize>,
    /// What its reply was.
    value: Option<i64>,
    /// The node that applied it may have lost it.
    in_doubt: bool,
}

#[derive(Default)]
struct CounterHistory {
    adds: Vec<AddEntry>,
    takes: Vec<Take>,
    /// Most that adds and sets asked for come to.
    most: i128,
    /// Least.
    least: i128,
    /// Most that each node has shown since its last crash.
    shown: Vec<i128>,
    /// What each node's own acknowledged and certain adds come to.
    own: Vec<i128>,
    /// What had been taken, by anybody, when each node's last take was carried out, and when it was asked: none of it may be shown there again.
    gone: Vec<(i128, Duration)>,
    freshness: FreshnessHistory,
    /// Of a sketch.
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
    /// Enters an add that was asked for; where.
    fn push_add(&mut self, node: usize, incarnation: u64, delta: i64) -> usize {
        self.most += i128::from(delta.max(0));
        self.least += i128::from(delta.min(0));
        let (ack_state, position, acked_at) = (AckState::InDoubt, Position(0), 0);
        self.adds.push(AddEntry { node, incarnation, delta, ack_state, position, acked_at });
        self.adds.len() - 1
    }
}

impl Judge {
    /// Empty books, of a run in which the store may lose data, or may not.
    pub fn new(may_lose: bool) -> Judge {
        let (histories, tokens) = (Default::default(), BTreeMap::new());
        Judge { histories, incarnations: Vec::new(), tokens, fresh_readings: 0, losses: 0, may_lose }
    }

    /// A node has begun a life.
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

    /// An act is asked of a node, when swaps have taken so much of its counter; what it adds to all that was asked for.
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
            // A store that lost data shows less, until everybody has put again.
            let shown = if adds || self.is_lossy() { i128::MIN } else { history.shown[node] };
            *floor = shown.max(history.own[node]);
        }
        for (gone, counter) in gone.iter_mut().zip(act.counters()) {
            let (taken, at) = self.histories[counter].gone[node];
            *gone = if at > conditions.clear_since { taken } else { 0 };
        }
        for (least, counter) in fresh.iter_mut().zip(act.counters()) {
            // What a store has lost of lives that are over may show until their heirs give it up, at any time after.
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
                    // The store may lose the claim, and this node may apply the token before the other one has noticed that. Once: it knows its own tokens.
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

    /// An act is answered; what was refused of adds.
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
            // A node that the store does not answer shows what it knew before.
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
            // What was acknowledged before it was asked.
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

    /// A node has ended. What is under way stays unanswered.
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

    /// The store has lost data.
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

    /// A node has begun to write as someone else, without a crash: what the store loses of its old self is lost.
    pub fn replace_incarnation(&mut self, node: usize) {
        self.incarnations[node] += 1;
        if self.is_lossy() {
            self.losses += 1;
            self.histories.iter_mut().for_each(|history| history.own[node] = 0);
        }
    }

    /// In the end, when everybody has settled: `shown` is what each node shows, `sum` what the row comes to, `counted` what the store has counted.
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
        // What a node added in the knowledge of an expiry is gone with it, and nobody outside can tell how much that was; that it is not
        // counted twice was seen to at every step.
        if truth.is_expiring(counter) {
            Ok(())
        } else {
            self.judge_sum(counter, counted, truth.has_removed_registration())
        }
    }

    /// The same of a sketch.
    pub fn judge_sketch(&self, truth: &Truth, counter: usize, shown: &[(usize, SketchReading)]) -> Result<(), String> {
        let SimCounter { name, form, .. } = COUNTERS[counter];
        let (since, certain) = self.certain_since(truth, counter);
        let sketch = &self.histories[counter].sketch;
        let verdict = sketch.same(form, shown).and(sketch.judge_end(form, since, certain, shown));
        verdict.map_err(|what| format!("{name}: {what}"))
    }

    /// Of a sketch of uniques: items that must be there, and all that may.
    pub fn items(&self, truth: &Truth, counter: usize) -> (Items, Items) {
        let (since, certain) = self.certain_since(truth, counter);
        let sketch = &self.histories[counter].sketch;
        (sketch.certain_items(since, certain), sketch.requested_items())
    }

    /// Since when what was observed in a sketch is certain to be there, if it is of these nodes and lives.
    fn certain_since(&self, truth: &Truth, counter: usize) -> (u64, impl Fn(usize, u64) -> bool) {
        let mut deletes = self.histories[counter].takes.iter().filter_map(|take| match take.outcome {
            TakeOutcome::Acked { at, .. } => Some(at),
            TakeOutcome::Refused => None,
            TakeOutcome::Unknown => Some(u64::MAX),
        });
        // Where the store has lost a delete, who knows what was deleted; and what a node observed in the knowledge of an expiry is gone with it.
        let unclear = self.is_lossy() && deletes.clone().next().is_some() || truth.is_expiring(counter);
        let since = if unclear { u64::MAX } else { deletes.by_ref().max().unwrap_or(0) };
        (since, |node: usize, incarnation: u64| !self.is_lossy() || incarnation == self.incarnations[node])
    }

    fn is_lossy(&self) -> bool {
        self.losses > 0
    }

    /// `removed`: registrations were removed, so that what the store has lost of these lives nobody has any more.
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
        // What is added is in the reply, beside what was shown before; and nothing else is below 0.
        let least = match COUNTERS[counter].class {
            CounterClass::Rising => floor.max(0) + added,
            CounterClass::Both => history.least,
            _ => added,
        };
        // Of a counter that is swapped, what a lost swap had made writers carry may be in the row from before, too, until they have looked at it.
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

/// All names in one page: each is known, and those that this node has added to are there.
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
