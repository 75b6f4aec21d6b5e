//! Keeps the account of one data directory: all its requests in all incarnations, and the check of
//! its contents.
//!
//! In: the logs of an incarnation, then the server's values after the next start. Out: violations.

use std::io;

use quipu_model::Reply;

use super::drive::{ClientLog, LoggedRequest};
use super::request::{CLIENTS, KEYS_OWNED, KEYS_PER_CLASS, LoadClass, LoadRequest, owned_key, pair_keys};
use crate::judge::{
    AddAction, AddCall, AddJudge, CallOutcome, ExpiryTime, ForeignRead, OwnedCounter, OwnedCounters, SequenceEntry,
    SequenceJudge, SequenceStep, StepAction, Violation, check_equal_values,
};
use quipu_protocol::resp::{RespConnection, Value};

/// Errors that a healthy server may return under load; each promises that the request was not
/// applied.
pub(super) const REFUSALS: [&str; 3] = ["NOROOM", "TRYAGAIN", "OOM"];

/// Loss that is allowed after an incarnation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// No acknowledged or shown data.
    Nothing,
    /// Unsealed data: a kill in mode memory.
    Unsealed,
}

/// Number of requests, by outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LoadTally {
    /// Requests with a success reply.
    pub acked: usize,
    /// Requests without a reply.
    pub unknown: usize,
    /// Requests with an error that promises: not applied.
    pub refused: usize,
}

/// The account of one data directory.
#[derive(Debug)]
pub struct LoadAccount {
    rise: Vec<AddJudge>,
    drift: Vec<AddJudge>,
    crop: Vec<AddJudge>,
    pairs: Vec<[AddJudge; 2]>,
    owned: Vec<SequenceJudge>, // one per client
    tally: LoadTally,
    violations: Vec<Violation>, // found in replies, returned by the next judgement
    unequal_pairs: usize,
    offsets: Vec<i64>, // per pair, the difference of its counters that an allowed loss left
}

impl Default for LoadAccount {
    fn default() -> LoadAccount {
        LoadAccount::new()
    }
}

impl LoadAccount {
    /// Creates the account of an empty directory.
    pub fn new() -> LoadAccount {
        let all = |class: LoadClass, judge: fn(String) -> AddJudge| {
            (0..KEYS_PER_CLASS).map(|key| judge(class.key(key))).collect()
        };
        LoadAccount {
            rise: all(LoadClass::Rise, AddJudge::rising),
            drift: all(LoadClass::Drift, AddJudge::new),
            crop: all(LoadClass::Crop, AddJudge::new),
            pairs: (0..KEYS_PER_CLASS).map(|pair| pair_keys(pair).map(AddJudge::new)).collect(),
            owned: (0..CLIENTS).map(|client| SequenceJudge::new(format!("client {client}"))).collect(),
            tally: LoadTally::default(),
            violations: Vec::new(),
            unequal_pairs: 0,
            offsets: vec![0; KEYS_PER_CLASS],
        }
    }

    /// Number of times that an allowed loss left the counters of a pair, changed only in one EXEC,
    /// unequal.
    pub fn unequal_pairs(&self) -> usize {
        self.unequal_pairs
    }

    /// Number of requests in all incarnations.
    pub fn tally(&self) -> LoadTally {
        self.tally
    }

    /// Names of all counters that the load uses.
    pub fn names(&self) -> Vec<String> {
        let shared = self.rise.iter().chain(&self.drift).chain(&self.crop).chain(self.pairs.iter().flatten());
        let owned = (0..CLIENTS).flat_map(|owner| (0..KEYS_OWNED).map(move |key| owned_key(owner, key)));
        shared.map(|counter| counter.key().to_owned()).chain(owned).collect()
    }

    /// Adds a client's log of the ended incarnation.
    pub fn add_log(&mut self, log: ClientLog) {
        if log.is_stalled() {
            self.add_violation(format!("client {}", log.client), format!("no reply: {:?}", log.ended));
        }
        for entry in log.requests {
            self.add_request(log.client, entry);
        }
    }

    /// Judges the ended incarnation by the server's present values.
    pub fn judge(&mut self, client: &mut RespConnection, loss: Loss) -> io::Result<Vec<Violation>> {
        let mut violations = std::mem::take(&mut self.violations);
        let judge = match loss {
            Loss::Nothing => AddJudge::judge_found,
            Loss::Unsealed => AddJudge::judge_found_after_loss,
        };
        for counter in self.rise.iter_mut().chain(&mut self.drift).chain(&mut self.crop) {
            let value = read_value(client, counter.key())?;
            violations.extend(judge(counter, value.unwrap_or(0)));
        }
        for (pair, offset) in self.pairs.iter_mut().zip(&mut self.offsets) {
            let mut values = [0; 2];
            for (counter, value) in pair.iter_mut().zip(&mut values) {
                *value = read_value(client, counter.key())?.unwrap_or(0);
                violations.extend(judge(counter, *value));
            }
            let half = check_equal_values(&[pair[0].key(), pair[1].key()], &values);
            match loss {
                Loss::Nothing => violations.extend(half),
                // The server seals shard by shard, each at its own time: counted, but no violation.
                Loss::Unsealed => {
                    self.unequal_pairs += usize::from(values[1] - values[0] != *offset);
                    *offset = values[1] - values[0];
                }
            }
        }
        for (owner, sequence) in self.owned.iter_mut().enumerate() {
            let found = read_owned(client, owner)?;
            violations.extend(match loss {
                Loss::Nothing => sequence.judge_found(found),
                Loss::Unsealed => sequence.judge_found_after_loss(found),
            });
        }
        Ok(violations)
    }

    fn add_request(&mut self, client: usize, entry: LoggedRequest) {
        let LoggedRequest { request, invoked, reply } = entry;
        match &reply {
            None => self.tally.unknown += 1,
            Some((_, Value::Error(text))) => {
                self.tally.refused += 1;
                if !REFUSALS.iter().any(|refusal| text.starts_with(refusal)) {
                    self.add_violation(format!("client {client}"), format!("{request:?} was answered {text:?}"));
                }
                // Refused: never applied, so it is not in the account.
                return;
            }
            Some(_) => self.tally.acked += 1,
        }
        let shown = match &reply {
            None => ShownValues::NoReply,
            Some((at, value)) => match numbers(value) {
                Ok(values) => ShownValues::Values { at: *at, values },
                Err(NotNumeric) => ShownValues::NotNumeric,
            },
        };
        let call = |act: AddAction, index: usize| {
            let outcome = match &shown {
                ShownValues::Values { at, values } => {
                    CallOutcome::Acked { at: *at, value: values.get(index).copied().flatten().unwrap_or(0) }
                }
                _ => CallOutcome::Unknown,
            };
            AddCall { client, action: act, invoked, outcome }
        };
        match &request {
            LoadRequest::Own { steps } => return self.add_owned_request(client, steps, invoked, reply),
            LoadRequest::ReadForeign { owner, key } => {
                if let ShownValues::Values { at, values } = &shown {
                    let value = values.first().copied().flatten();
                    let foreign_read = ForeignRead { key: owned_key(*owner, *key), invoked, acked: *at, value };
                    self.owned[*owner].push_foreign_read(foreign_read);
                }
            }
            LoadRequest::Add { class, key, delta } => {
                self.judges_of(*class)[*key].push(call(AddAction::Add(*delta), 0))
            }
            LoadRequest::Read { class, key } => self.judges_of(*class)[*key].push(call(AddAction::Read, 0)),
            LoadRequest::Harvest { key } => self.crop[*key].push(call(AddAction::Harvest, 0)),
            LoadRequest::ReadRising => {
                for (index, counter) in self.rise.iter_mut().enumerate() {
                    counter.push(call(AddAction::Read, index));
                }
            }
            LoadRequest::AddPair { pair, .. } | LoadRequest::ReadPair { pair } => {
                let act = if let LoadRequest::AddPair { delta, .. } = request {
                    AddAction::Add(delta)
                } else {
                    AddAction::Read
                };
                for (index, counter) in self.pairs[*pair].iter_mut().enumerate() {
                    counter.push(call(act, index));
                }
                if let ShownValues::Values { values, .. } = &shown {
                    let mut values: Vec<i64> = values.iter().map(|value| value.unwrap_or(0)).collect();
                    values.iter_mut().skip(1).for_each(|value| *value -= self.offsets[*pair]);
                    let [a, b] = pair_keys(*pair);
                    self.violations.extend(check_equal_values(&[&a, &b], &values));
                }
            }
        }
        let is_expected = match shown {
            ShownValues::NoReply => true,
            ShownValues::Values { values, .. } => values.len() == expected_values(&request),
            ShownValues::NotNumeric => false,
        };
        if !is_expected {
            self.add_violation(format!("client {client}"), format!("{request:?} was answered {reply:?}"));
        }
    }

    fn add_owned_request(&mut self, client: usize, steps: &[SequenceStep], invoked: u64, reply: Option<(u64, Value)>) {
        let acked = match &reply {
            None => None,
            Some((at, value)) => {
                let each = if steps.len() == 1 { std::slice::from_ref(value) } else { value.elements() };
                let replies: Vec<Reply> =
                    each.iter().zip(steps).filter_map(|(value, step)| reply_to(step, value)).collect();
                if replies.len() != steps.len() {
                    self.add_violation(format!("client {client}"), format!("{steps:?} was answered {value:?}"));
                }
                Some((*at, replies))
            }
        };
        self.owned[client].push(SequenceEntry { steps: steps.to_vec(), invoked, acked });
    }

    fn judges_of(&mut self, class: LoadClass) -> &mut [AddJudge] {
        match class {
            LoadClass::Rise => &mut self.rise,
            LoadClass::Drift => &mut self.drift,
            LoadClass::Crop => &mut self.crop,
        }
    }

    fn add_violation(&mut self, key: String, what: String) {
        self.violations.push(Violation { key, what, tail: Vec::new() });
    }
}

impl std::ops::AddAssign for LoadTally {
    fn add_assign(&mut self, other: LoadTally) {
        self.acked += other.acked;
        self.unknown += other.unknown;
        self.refused += other.refused;
    }
}

/// Number of values in a success reply.
fn expected_values(request: &LoadRequest) -> usize {
    match request {
        LoadRequest::ReadRising => KEYS_PER_CLASS,
        LoadRequest::AddPair { .. } | LoadRequest::ReadPair { .. } => 2,
        _ => 1,
    }
}

/// Values of counters in a reply.
enum ShownValues {
    /// No reply came.
    NoReply,
    /// One value per counter, in order; `None` for an absent counter.
    Values { at: u64, values: Vec<Option<i64>> },
    /// The reply has another form.
    NotNumeric,
}

/// A reply that has another form than the values of counters.
struct NotNumeric;

/// Values in a reply, `None` for an absent counter.
fn numbers(value: &Value) -> Result<Vec<Option<i64>>, NotNumeric> {
    match value {
        Value::Array(elements) => elements.iter().map(number).collect(),
        single => number(single).map(|number| vec![number]),
    }
}

fn number(value: &Value) -> Result<Option<i64>, NotNumeric> {
    if value.is_nil() { Ok(None) } else { value.number().map(Some).ok_or(NotNumeric) }
}

/// The reply as the model's type; `None` if this step cannot have it.
fn reply_to(step: &SequenceStep, value: &Value) -> Option<Reply> {
    match step.action {
        StepAction::Set(_) | StepAction::SetUntil(..) | StepAction::SetFor(..) => {
            (*value == Value::Simple("OK".to_owned())).then_some(Reply::Ok)
        }
        StepAction::Swap(_) | StepAction::Take | StepAction::Read => number(value).ok().map(Reply::Value),
        StepAction::Add(_)
        | StepAction::Delete
        | StepAction::ExpireAt(_)
        | StepAction::ExpireIn(_)
        | StepAction::Persist => match value {
            Value::Integer(integer) => Some(Reply::Integer(*integer)),
            _ => None,
        },
    }
}

fn read_value(client: &mut RespConnection, key: &str) -> io::Result<Option<i64>> {
    let reply = client.call(&["GET", key])?;
    number(&reply).map_err(|NotNumeric| unexpected_reply(key, &reply))
}

/// Every existing counter of a client, with its expiry.
fn read_owned(client: &mut RespConnection, owner: usize) -> io::Result<OwnedCounters> {
    let mut found = OwnedCounters::new();
    for key in (0..KEYS_OWNED).map(|key| owned_key(owner, key)) {
        let Some(value) = read_value(client, &key)? else { continue };
        let reply = client.call(&["PEXPIRETIME", &key])?;
        let expires = match reply.number() {
            Some(-1) => ExpiryTime::Never,
            Some(at) if at >= 0 => ExpiryTime::At(at),
            _ => return Err(unexpected_reply(&key, &reply)),
        };
        found.insert(key, OwnedCounter { value, expires });
    }
    Ok(found)
}

fn unexpected_reply(key: &str, reply: &Value) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{key} was answered {reply:?}"))
}
