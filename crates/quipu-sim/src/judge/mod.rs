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

mod fresh;
mod observed;
mod sums;
mod takes;

use std::collections::BTreeMap;
use std::time::Duration;

use quipu_engine::Position;
use quipu_model::{Durability, Refusal, Reply};

pub use self::fresh::Weather;

use self::fresh::Fresh;
use self::observed::Observed;
pub use self::observed::Shows;
use self::sums::reaches;
use self::takes::{Outcome, Take};
use crate::act::{Act, Items, What};
use crate::counters::{COUNTERS, Class, Counter, counter_of};
use crate::store::Truth;

/// How a node ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
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
pub struct Answer {
    /// The reply; none if there is none and will not be.
    pub reply: Option<Reply>,
    /// The end of the journal when the act had been applied.
    pub position: Position,
}

/// An act under way.
#[derive(Debug, Clone, Copy)]
pub struct Asked {
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
    weather: Weather,
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
    books: [Book; COUNTERS.len()],
    lives: Vec<u64>,
    tokens: BTreeMap<u64, Token>,
    /// Readings that were judged by how far they lag.
    pub fresh_readings: u64,
    /// How often what was certain has become less so: the store lost data, or a node went on as someone else after that.
    losses: u64,
    /// Whether the store may lose data in this run.
    may_lose: bool,
}

/// An add with a token.
#[derive(Default)]
struct Token {
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
struct Book {
    adds: Vec<Add>,
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
    fresh: Fresh,
    /// Of a sketch.
    observed: Observed,
}

#[derive(Debug, Clone, Copy)]
struct Add {
    node: usize,
    life: u64,
    delta: i64,
    stands: Stands,
    position: Position,
    acked_at: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stands {
    Acked,
    InDoubt,
    Refused,
}

impl Book {
    /// Enters an add that was asked for; where.
    fn add(&mut self, node: usize, life: u64, delta: i64) -> usize {
        self.most += i128::from(delta.max(0));
        self.least += i128::from(delta.min(0));
        let (stands, position, acked_at) = (Stands::InDoubt, Position(0), 0);
        self.adds.push(Add { node, life, delta, stands, position, acked_at });
        self.adds.len() - 1
    }
}

impl Judge {
    /// Empty books, of a run in which the store may lose data, or may not.
    pub fn new(may_lose: bool) -> Judge {
        let (books, tokens) = (Default::default(), BTreeMap::new());
        Judge { books, lives: Vec::new(), tokens, fresh_readings: 0, losses: 0, may_lose }
    }

    /// A node has begun a life.
    pub fn opened(&mut self, node: usize) {
        if self.lives.len() <= node {
            self.lives.resize(node + 1, 0);
            for book in &mut self.books {
                book.shown.resize(node + 1, i128::MIN);
                book.own.resize(node + 1, 0);
                book.gone.resize(node + 1, (0, Duration::ZERO));
            }
        }
        self.lives[node] += 1;
    }

    /// An act is asked of a node, when swaps have taken so much of its counter; what it adds to all that was asked for.
    pub fn ask(&mut self, node: usize, act: Act, taken: i128, (stamp, weather): (u64, Weather)) -> (Asked, i64) {
        let (mut floors, mut fresh, mut gone) = ([i128::MIN; READ_MAX], [None; READ_MAX], [0; READ_MAX]);
        for (floor, counter) in floors.iter_mut().zip(act.counters()) {
            let book = &self.books[counter];
            let adds = matches!(act.what, What::Add(_));
            // A store that lost data shows less, until everybody has put again.
            let shown = if adds || self.is_lossy() { i128::MIN } else { book.shown[node] };
            *floor = shown.max(book.own[node]);
        }
        for (gone, counter) in gone.iter_mut().zip(act.counters()) {
            let (taken, at) = self.books[counter].gone[node];
            *gone = if at > weather.clear_since { taken } else { 0 };
        }
        for (least, counter) in fresh.iter_mut().zip(act.counters()) {
            // What a store has lost of lives that are over may show until their heirs give it up, at any time after.
            let judged = COUNTERS[counter].class == Class::Rising && !matches!(act.what, What::Add(_));
            let judged = judged && !self.is_lossy();
            *least = if judged { self.books[counter].fresh.least(node, weather) } else { None };
        }
        let life = self.lives[node];
        let book = &mut self.books[act.counter];
        let (mut entry, mut adds) = (0, 0);
        match act.what {
            What::Observe(item, by) => entry = book.observed.ask((node, life), item, by, stamp),
            What::Estimate => entry = stamp as usize,
            What::Add(delta) => {
                entry = book.add(node, self.lives[node], delta);
                adds = delta;
            }
            What::Once { token, delta } => {
                let known = self.tokens.entry(token).or_insert_with(|| {
                    adds = delta;
                    Token { counter: act.counter, entry: book.add(NOBODY, 0, delta), ..Token::default() }
                });
                if self.may_lose && !known.nodes.is_empty() && !known.nodes.contains(&node) {
                    // The store may lose the claim, and this node may apply the token before the other one has noticed that. Once: it knows its own tokens.
                    book.add(NOBODY, 0, delta);
                    adds = delta;
                }
                known.nodes.push(node);
                entry = known.entry;
            }
            what if what.takes() => {
                entry = book.takes.len();
                if let What::Set(value) = what {
                    book.most += i128::from(value);
                }
                book.takes.push(Take { node, what, invoked: stamp, outcome: Outcome::Unknown });
            }
            _ => {}
        }
        let own = (0..).zip(&self.books).filter(|(_, book)| book.own[node] > 0).fold(0, |own, (at, _)| own | 1 << at);
        (Asked { act, node, floors, gone, taken, fresh, weather, own, losses: self.losses, entry }, adds)
    }

    /// An act is answered; what was refused of adds.
    pub fn answer(&mut self, asked: Asked, answer: &Answer, (stamp, weather): (u64, Weather)) -> Result<i64, String> {
        let Asked { act, node, mut floors, mut gone, fresh, mut own, losses, entry, .. } = asked;
        if losses != self.losses {
            (floors, gone, own) = ([i128::MIN; READ_MAX], [0; READ_MAX], 0);
        }
        if asked.weather.clear_since != weather.clear_since {
            // A node that the store does not answer shows what it knew before.
            gone = [0; READ_MAX];
        }
        if asked.weather.fair_since == weather.fair_since {
            for (floor, fresh) in floors.iter_mut().zip(fresh) {
                self.fresh_readings += u64::from(fresh.is_some());
                *floor = (*floor).max(fresh.unwrap_or(i128::MIN));
            }
        }
        let Some(reply) = &answer.reply else { return Ok(0) };
        let wrong = || Err(format!("node {node}: {act:?} was answered {reply:?}"));
        let lossy = self.is_lossy();
        let Counter { class, form, .. } = COUNTERS[act.counter];
        if act.what == What::Estimate {
            let shows = match reply {
                Reply::Refused(Refusal::NoSketch { .. }) => Shows::nothing(form),
                Reply::Refused(_) => return Ok(0),
                reply => match Shows::of(reply) {
                    Some(shows) => shows,
                    None => return wrong(),
                },
            };
            // What was acknowledged before it was asked.
            let before = if class == Class::Observed && !lossy { asked.entry as u64 } else { 0 };
            let said = self.books[act.counter].observed.reading((node, before), form, &shows);
            return said.map(|()| 0).map_err(|what| format!("{}: node {node} {what}", COUNTERS[act.counter].name));
        }
        if let Reply::Refused(_) = reply {
            return Ok(self.refuse(asked));
        }
        let book = &mut self.books[act.counter];
        let value = match (act.what, reply) {
            (what, _) if what.is_forbidden() => {
                return Err(format!("node {node}: {what:?} needs one owner, and was answered {reply:?}"));
            }
            (What::Add(delta), Reply::Integer(value)) => {
                let add = &mut book.adds[entry];
                (add.stands, add.position, add.acked_at) = (Stands::Acked, answer.position, stamp);
                book.own[node] += i128::from(delta);
                book.fresh.acked(asked.weather.now, weather, delta);
                return self.reading(asked, act.counter, (floors[0], gone[0]), i128::from(delta), *value).map(|()| 0);
            }
            (What::Once { token, .. }, Reply::Integer(value)) => {
                let known = self.tokens.entry(token).or_default();
                if !lossy && known.value.is_some_and(|known| known != *value) {
                    return Err(format!("node {node}: {act:?} is answered {value}, and before {:?}", known.value));
                }
                known.value = Some(*value);
                if !known.in_doubt {
                    book.adds[entry].stands = Stands::Acked;
                }
                return Ok(0);
            }
            (What::Read, Reply::Value(value)) => {
                let value = value.unwrap_or(0);
                book.fresh.showed(node, weather, i128::from(value));
                return self.reading(asked, act.counter, (floors[0], gone[0]), 0, value).map(|()| 0);
            }
            (What::ReadMany, Reply::Values(values)) if values.len() == READ_MAX => {
                for ((counter, value), bounds) in act.counters().zip(values).zip(floors.into_iter().zip(gone)) {
                    if COUNTERS[counter].is_sketch() {
                        continue;
                    }
                    self.reading(asked, counter, bounds, 0, value.unwrap_or(0))?;
                }
                return Ok(0);
            }
            (What::Observe(..), Reply::Integer(0 | 1) | Reply::Integers(_) | Reply::Items(_)) => {
                book.observed.answer(entry, answer.position, stamp);
                return Ok(0);
            }
            (What::ObserveAll(_), Reply::Integer(0 | 1)) => return Ok(0),
            (What::Scan, Reply::Page(0, names)) => return scanned(node, own, names).map(|()| 0),
            (What::GetSet | What::Take, Reply::Value(value)) => Some(value.unwrap_or(0)),
            (What::Reset, Reply::Integer(value)) => Some(*value),
            (What::Set(_), Reply::Ok) => None,
            (What::Delete, Reply::Integer(0)) => Some(0),
            (What::Delete, Reply::Integer(1)) => None,
            (What::Expire(_) | What::Persist, Reply::Integer(0 | 1)) => return Ok(0),
            _ => return wrong(),
        };
        book.takes[entry].outcome = Outcome::Acked { at: stamp, value };
        let taken = asked.taken + i128::from(value.unwrap_or(0));
        if taken >= book.gone[node].0 {
            book.gone[node] = (taken, asked.weather.now);
        }
        if value.is_some_and(|value| value < 0) {
            return wrong();
        }
        Ok(0)
    }

    /// A node has ended. What is under way stays unanswered.
    pub fn ended(&mut self, node: usize, end: End) {
        let lossy = self.is_lossy();
        let lost = matches!(end, End::DirectoryLost | End::Stranded | End::Restored(_));
        for token in self.tokens.values_mut().filter(|token| lost && token.nodes.contains(&node)) {
            token.in_doubt = true;
            self.books[token.counter].adds[token.entry].stands = Stands::InDoubt;
        }
        for (book, counter) in self.books.iter_mut().zip(&COUNTERS) {
            let memory = counter.durability == Durability::Memory;
            let mut own = 0;
            for add in book.adds.iter_mut().filter(|add| add.node == node && add.stands == Stands::Acked) {
                let lost = match end {
                    End::Clean => false,
                    End::Killed => memory,
                    End::PowerLoss(synced) => {
                        memory || (counter.durability == Durability::Relaxed && add.position > synced)
                    }
                    End::DirectoryLost | End::Stranded => true,
                    End::Restored(since) => memory || add.acked_at >= since,
                };
                if lost {
                    add.stands = Stands::InDoubt;
                } else if !lossy {
                    own += i128::from(add.delta);
                }
            }
            book.observed.ended(node, end, counter.durability);
            book.own[node] = own;
            (book.shown[node], book.gone[node]) = (i128::MIN, (0, Duration::ZERO));
        }
    }

    /// The store has lost data.
    pub fn store_lost(&mut self) {
        self.losses += 1;
        for book in &mut self.books {
            for (node, own) in book.own.iter_mut().enumerate() {
                let adds = book.adds.iter().filter(|add| add.node == node && add.life == self.lives[node]);
                *own = adds.filter(|add| add.stands == Stands::Acked).map(|add| i128::from(add.delta)).sum();
            }
            book.shown.fill(i128::MIN);
            book.gone.fill((0, Duration::ZERO));
        }
    }

    /// A node has begun to write as someone else, without a crash: what the store loses of its old self is lost.
    pub fn retired(&mut self, node: usize) {
        self.lives[node] += 1;
        if self.is_lossy() {
            self.losses += 1;
            self.books.iter_mut().for_each(|book| book.own[node] = 0);
        }
    }

    /// In the end, when everybody has settled: `shown` is what each node shows, `sum` what the row comes to, `counted` what the store has counted.
    pub fn close(
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
            takes::judge(&self.books[counter].takes, &swaps).map_err(|what| format!("{name}: {what}"))?;
        }
        // What a node added in the knowledge of an expiry is gone with it, and nobody outside can tell how much that was; that it is not
        // counted twice was seen to at every step.
        if truth.is_expiring(counter) { Ok(()) } else { self.judge_sum(counter, counted, truth.has_removed()) }
    }

    /// The same of a sketch.
    pub fn close_sketch(&self, truth: &Truth, counter: usize, shown: &[(usize, Shows)]) -> Result<(), String> {
        let Counter { name, form, .. } = COUNTERS[counter];
        let (since, certain) = self.certain(truth, counter);
        let observed = &self.books[counter].observed;
        let said = observed.same(form, shown).and(observed.close(form, since, certain, shown));
        said.map_err(|what| format!("{name}: {what}"))
    }

    /// Of a sketch of uniques: items that must be there, and all that may.
    pub fn items(&self, truth: &Truth, counter: usize) -> (Items, Items) {
        let (since, certain) = self.certain(truth, counter);
        let observed = &self.books[counter].observed;
        (observed.certain_items(since, certain), observed.asked_items())
    }

    /// Since when what was observed in a sketch is certain to be there, if it is of these nodes and lives.
    fn certain(&self, truth: &Truth, counter: usize) -> (u64, impl Fn(usize, u64) -> bool) {
        let mut deletes = self.books[counter].takes.iter().filter_map(|take| match take.outcome {
            Outcome::Acked { at, .. } => Some(at),
            Outcome::Refused => None,
            Outcome::Unknown => Some(u64::MAX),
        });
        // Where the store has lost a delete, who knows what was deleted; and what a node observed in the knowledge of an expiry is gone with it.
        let unclear = self.is_lossy() && deletes.clone().next().is_some() || truth.is_expiring(counter);
        let since = if unclear { u64::MAX } else { deletes.by_ref().max().unwrap_or(0) };
        (since, |node: usize, life: u64| !self.is_lossy() || life == self.lives[node])
    }

    fn is_lossy(&self) -> bool {
        self.losses > 0
    }

    /// `removed`: registrations were removed, so that what the store has lost of these lives nobody has any more.
    fn judge_sum(&self, counter: usize, counted: i128, removed: bool) -> Result<(), String> {
        let is_certain =
            |add: &Add| !self.is_lossy() || !removed || add.node != NOBODY && add.life == self.lives[add.node];
        let (mut certain, mut in_doubt) = (0, Vec::new());
        for add in &self.books[counter].adds {
            match add.stands {
                Stands::Acked if is_certain(add) => certain += i128::from(add.delta),
                Stands::Acked | Stands::InDoubt => in_doubt.push(add.delta),
                Stands::Refused => {}
            }
        }
        let missing = counted - certain;
        if reaches(missing, in_doubt.iter().copied()) {
            return Ok(());
        }
        Err(format!(
            "{}: {counted} was counted; acknowledged adds come to {certain}, and no subset of those in doubt, {in_doubt:?}, to the difference of {missing}",
            COUNTERS[counter].name
        ))
    }

    fn refuse(&mut self, asked: Asked) -> i64 {
        let book = &mut self.books[asked.act.counter];
        match asked.act.what {
            What::Add(delta) => {
                book.adds[asked.entry].stands = Stands::Refused;
                book.most -= i128::from(delta.max(0));
                book.least -= i128::from(delta.min(0));
                delta
            }
            What::Observe(..) => {
                book.observed.refuse(asked.entry);
                0
            }
            what if what.takes() => {
                book.takes[asked.entry].outcome = Outcome::Refused;
                0
            }
            _ => 0,
        }
    }

    fn reading(
        &mut self,
        asked: Asked,
        counter: usize,
        (floor, gone): (i128, i128),
        added: i128,
        value: i64,
    ) -> Result<(), String> {
        let lossy = self.is_lossy();
        let book = &mut self.books[counter];
        let value = i128::from(value);
        // What is added is in the reply, beside what was shown before; and nothing else is below 0.
        let least = match COUNTERS[counter].class {
            Class::Rising => floor.max(0) + added,
            Class::Both => book.least,
            _ => added,
        };
        // Of a counter that is swapped, what a lost swap had made writers carry may be in the row from before, too, until they have looked at it.
        let most = match lossy {
            true if COUNTERS[counter].class.is_swapped() => i128::MAX,
            true => book.most,
            false => book.most - gone,
        };
        if (least..=most).contains(&value) {
            book.shown[asked.node] = book.shown[asked.node].max(value);
            return Ok(());
        }
        Err(format!(
            "{}: node {} answered {:?} with {value}; it should be from {least} to {most}",
            COUNTERS[counter].name, asked.node, asked.act.what
        ))
    }
}

/// All names in one page: each is known, and those that this node has added to are there.
fn scanned(node: usize, own: u32, names: &[Box<[u8]>]) -> Result<(), String> {
    if let Some(unknown) = names.iter().find(|name| counter_of(name).is_none()) {
        return Err(format!("node {node}: SCAN names {}", unknown.escape_ascii()));
    }
    for (at, counter) in COUNTERS.iter().enumerate() {
        let added = counter.class == Class::Rising && own >> at & 1 == 1;
        if added && !names.iter().any(|name| **name == *counter.name.as_bytes()) {
            return Err(format!("node {node}: SCAN does not name {}, to which it has added", counter.name));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
