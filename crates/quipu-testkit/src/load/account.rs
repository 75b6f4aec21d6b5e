//! The account of one data directory: everything asked of it in all its lives, and whether what it holds is right.
//!
//! In: the logs of a life, then what the server shows after the next start. Out: violations.

use std::io;

use quipu_model::Reply;

use super::drive::{Log, Logged};
use super::request::{CLIENTS, Class, KEYS_OWNED, KEYS_PER_CLASS, Request, owned_key, pair_keys};
use crate::judge::{
    Act, Action, Adds, Call, Entry, Expires, Found, Held, Outcome, Sequence, Sight, Step, Violation, together,
};
use crate::resp::{Client, Value};

/// Errors a healthy server may answer under load: it promises that the request was not applied.
pub(super) const REFUSALS: [&str; 3] = ["NOROOM", "TRYAGAIN", "OOM"];

/// What may be missing after a life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// Nothing that was acknowledged or shown.
    Nothing,
    /// What was not sealed: a kill in mode memory.
    Unsealed,
}

/// How many requests there were.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// With a success reply.
    pub acked: usize,
    /// Without a reply.
    pub unknown: usize,
    /// With an error that says: not applied.
    pub refused: usize,
}

/// The account.
#[derive(Debug)]
pub struct Account {
    rise: Vec<Adds>,
    drift: Vec<Adds>,
    crop: Vec<Adds>,
    pairs: Vec<[Adds; 2]>,
    owned: Vec<Sequence>, // one per client
    tally: Tally,
    violations: Vec<Violation>, // seen in replies, told with the next judgement
    pairs_apart: usize,
    offsets: Vec<i64>, // per pair, what a loss that was allowed has left between its counters
}

impl Default for Account {
    fn default() -> Account {
        Account::new()
    }
}

impl Account {
    /// Of an empty directory.
    pub fn new() -> Account {
        let all =
            |class: Class, judge: fn(String) -> Adds| (0..KEYS_PER_CLASS).map(|key| judge(class.key(key))).collect();
        Account {
            rise: all(Class::Rise, Adds::rising),
            drift: all(Class::Drift, Adds::new),
            crop: all(Class::Crop, Adds::new),
            pairs: (0..KEYS_PER_CLASS).map(|pair| pair_keys(pair).map(Adds::new)).collect(),
            owned: (0..CLIENTS).map(|client| Sequence::new(format!("client {client}"))).collect(),
            tally: Tally::default(),
            violations: Vec::new(),
            pairs_apart: 0,
            offsets: vec![0; KEYS_PER_CLASS],
        }
    }

    /// How often both counters of a pair, only ever changed in one EXEC, came back from a loss that was allowed with different values.
    pub fn pairs_apart(&self) -> usize {
        self.pairs_apart
    }

    /// How many requests were taken in, in all lives.
    pub fn tally(&self) -> Tally {
        self.tally
    }

    /// The names of all counters that were ever asked for.
    pub fn names(&self) -> Vec<String> {
        let shared = self.rise.iter().chain(&self.drift).chain(&self.crop).chain(self.pairs.iter().flatten());
        let owned = (0..CLIENTS).flat_map(|owner| (0..KEYS_OWNED).map(move |key| owned_key(owner, key)));
        shared.map(|counter| counter.key().to_owned()).chain(owned).collect()
    }

    /// Takes in what a client asked in the life that ended.
    pub fn take(&mut self, log: Log) {
        if log.is_stalled() {
            self.complain(format!("client {}", log.client), format!("no reply: {:?}", log.ended));
        }
        for logged in log.requests {
            self.take_request(log.client, logged);
        }
    }

    /// Judges the life that ended by what the server now shows.
    pub fn judge(&mut self, client: &mut Client, loss: Loss) -> io::Result<Vec<Violation>> {
        let mut violations = std::mem::take(&mut self.violations);
        let judge = match loss {
            Loss::Nothing => Adds::found,
            Loss::Unsealed => Adds::found_after_loss,
        };
        for counter in self.rise.iter_mut().chain(&mut self.drift).chain(&mut self.crop) {
            let value = read(client, counter.key())?;
            violations.extend(judge(counter, value.unwrap_or(0)));
        }
        for (pair, offset) in self.pairs.iter_mut().zip(&mut self.offsets) {
            let mut values = [0; 2];
            for (counter, value) in pair.iter_mut().zip(&mut values) {
                *value = read(client, counter.key())?.unwrap_or(0);
                violations.extend(judge(counter, *value));
            }
            let half = together(&[pair[0].key(), pair[1].key()], &values);
            match loss {
                Loss::Nothing => violations.extend(half),
                // Sealed shard by shard, so each at its own moment: told, and not held against it.
                Loss::Unsealed => {
                    self.pairs_apart += usize::from(values[1] - values[0] != *offset);
                    *offset = values[1] - values[0];
                }
            }
        }
        for (owner, sequence) in self.owned.iter_mut().enumerate() {
            let found = read_owned(client, owner)?;
            violations.extend(match loss {
                Loss::Nothing => sequence.found(found),
                Loss::Unsealed => sequence.found_after_loss(found),
            });
        }
        Ok(violations)
    }

    fn take_request(&mut self, client: usize, logged: Logged) {
        let Logged { request, invoked, reply } = logged;
        match &reply {
            None => self.tally.unknown += 1,
            Some((_, Value::Error(text))) => {
                self.tally.refused += 1;
                if !REFUSALS.iter().any(|refusal| text.starts_with(refusal)) {
                    self.complain(format!("client {client}"), format!("{request:?} was answered {text:?}"));
                }
                // Refused: never applied, so there is nothing to account for.
                return;
            }
            Some(_) => self.tally.acked += 1,
        }
        // The values it showed, one per counter, in order.
        let shown: Option<Option<(u64, Vec<Option<i64>>)>> = match &reply {
            None => Some(None),
            Some((at, value)) => numbers(value).map(|numbers| Some((*at, numbers))),
        };
        let call = |act: Act, place: usize| {
            let outcome = match &shown {
                Some(Some((at, values))) => {
                    Outcome::Acked { at: *at, value: values.get(place).copied().flatten().unwrap_or(0) }
                }
                _ => Outcome::Unknown,
            };
            Call { client, act, invoked, outcome }
        };
        match &request {
            Request::Own { steps } => return self.take_own(client, steps, invoked, reply),
            Request::Look { owner, key } => {
                if let Some(Some((at, values))) = &shown {
                    let value = values.first().copied().flatten();
                    let sight = Sight { key: owned_key(*owner, *key), invoked, acked: *at, value };
                    self.owned[*owner].push_sight(sight);
                }
            }
            Request::Add { class, key, delta } => self.class(*class)[*key].push(call(Act::Add(*delta), 0)),
            Request::Read { class, key } => self.class(*class)[*key].push(call(Act::Read, 0)),
            Request::Harvest { key } => self.crop[*key].push(call(Act::Harvest, 0)),
            Request::ReadRising => {
                for (place, counter) in self.rise.iter_mut().enumerate() {
                    counter.push(call(Act::Read, place));
                }
            }
            Request::AddPair { pair, .. } | Request::ReadPair { pair } => {
                let act = if let Request::AddPair { delta, .. } = request { Act::Add(delta) } else { Act::Read };
                for (place, counter) in self.pairs[*pair].iter_mut().enumerate() {
                    counter.push(call(act, place));
                }
                if let Some(Some((_, values))) = &shown {
                    let mut values: Vec<i64> = values.iter().map(|value| value.unwrap_or(0)).collect();
                    values.iter_mut().skip(1).for_each(|value| *value -= self.offsets[*pair]);
                    let [a, b] = pair_keys(*pair);
                    self.violations.extend(together(&[&a, &b], &values));
                }
            }
        }
        if shown.is_none_or(|shown| shown.is_some_and(|(_, values)| values.len() != expected_values(&request))) {
            self.complain(format!("client {client}"), format!("{request:?} was answered {reply:?}"));
        }
    }

    fn take_own(&mut self, client: usize, steps: &[Step], invoked: u64, reply: Option<(u64, Value)>) {
        let acked = match &reply {
            None => None,
            Some((at, value)) => {
                let each = if steps.len() == 1 { std::slice::from_ref(value) } else { value.elements() };
                let replies: Vec<Reply> =
                    each.iter().zip(steps).filter_map(|(value, step)| reply_to(step, value)).collect();
                if replies.len() != steps.len() {
                    self.complain(format!("client {client}"), format!("{steps:?} was answered {value:?}"));
                }
                Some((*at, replies))
            }
        };
        self.owned[client].push(Entry { steps: steps.to_vec(), invoked, acked });
    }

    fn class(&mut self, class: Class) -> &mut [Adds] {
        match class {
            Class::Rise => &mut self.rise,
            Class::Drift => &mut self.drift,
            Class::Crop => &mut self.crop,
        }
    }

    fn complain(&mut self, key: String, what: String) {
        self.violations.push(Violation { key, what, tail: Vec::new() });
    }
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, other: Tally) {
        self.acked += other.acked;
        self.unknown += other.unknown;
        self.refused += other.refused;
    }
}

/// How many values a success reply shows.
fn expected_values(request: &Request) -> usize {
    match request {
        Request::ReadRising => KEYS_PER_CLASS,
        Request::AddPair { .. } | Request::ReadPair { .. } => 2,
        _ => 1,
    }
}

/// The values a reply shows, nil for a counter that does not exist; `None` if it is no such reply.
fn numbers(value: &Value) -> Option<Vec<Option<i64>>> {
    match value {
        Value::Array(elements) => elements.iter().map(number).collect(),
        single => number(single).map(|number| vec![number]),
    }
}

fn number(value: &Value) -> Option<Option<i64>> {
    if value.is_nil() { Some(None) } else { value.number().map(Some) }
}

/// A reply in the model's words; `None` if it is none that this step can have.
fn reply_to(step: &Step, value: &Value) -> Option<Reply> {
    match step.action {
        Action::Set(_) | Action::SetUntil(..) | Action::SetFor(..) => {
            (*value == Value::Simple("OK".to_owned())).then_some(Reply::Ok)
        }
        Action::Swap(_) | Action::Take | Action::Read => number(value).map(Reply::Value),
        Action::Add(_) | Action::Delete | Action::ExpireAt(_) | Action::ExpireIn(_) | Action::Persist => match value {
            Value::Integer(integer) => Some(Reply::Integer(*integer)),
            _ => None,
        },
    }
}

fn read(client: &mut Client, key: &str) -> io::Result<Option<i64>> {
    let reply = client.call(&["GET", key])?;
    number(&reply).ok_or_else(|| unexpected(key, &reply))
}

/// Every counter of a client that exists, with its expiry.
fn read_owned(client: &mut Client, owner: usize) -> io::Result<Found> {
    let mut found = Found::new();
    for key in (0..KEYS_OWNED).map(|key| owned_key(owner, key)) {
        let Some(value) = read(client, &key)? else { continue };
        let reply = client.call(&["PEXPIRETIME", &key])?;
        let expires = match reply.number() {
            Some(-1) => Expires::Never,
            Some(at) if at >= 0 => Expires::At(at),
            _ => return Err(unexpected(&key, &reply)),
        };
        found.insert(key, Held { value, expires });
    }
    Ok(found)
}

fn unexpected(key: &str, reply: &Value) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{key} was answered {reply:?}"))
}
