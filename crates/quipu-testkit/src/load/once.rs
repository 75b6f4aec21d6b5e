//! Sends adds with tokens and sequence numbers, with retries, and checks their results.
//!
//! Several connections add to a few counters, each add under a name. Many adds are sent twice, also
//! over other connections. After a kill, all unanswered adds and some answered ones are sent again.
//! So a counter must hold each answered add once, and every retry must have the reply of the first
//! time.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::rng::SeededRng;
use quipu_protocol::resp::{RespConnection, Value, write_request};

/// Few counters, so that connections share them.
const COUNTERS: [&str; 3] = ["once:1", "once:2", "once:3"];

/// Connections that add, each with its own producer.
const ADDERS: usize = 3;

/// Most adds in one pipeline.
const PIPELINE_MAX: usize = 40;

/// Percentage of answered adds that are retried after each kill; all are remembered.
const RETRIED_PERCENT: usize = 30;

/// Timeout of a reply.
const TIMEOUT: Duration = Duration::from_secs(20);

/// A named add.
#[derive(Debug, Clone, Copy)]
struct NamedAdd {
    counter: usize,
    delta: i64,
    /// Value in the first reply.
    reply: Option<i64>,
}

/// All adds that one connection sent, in all incarnations.
#[derive(Debug, Default)]
struct AdderHistory {
    /// By the number of the token, or of the sequence.
    tokens: BTreeMap<u64, NamedAdd>,
    sequence: BTreeMap<u64, NamedAdd>,
}

/// The account of the counters.
#[derive(Debug)]
pub struct OnceAccount {
    histories: Vec<AdderHistory>,
    violations: Vec<String>,
    /// Number of compared replies to retries.
    pub retried: usize,
}

impl Default for OnceAccount {
    fn default() -> OnceAccount {
        OnceAccount {
            histories: (0..ADDERS).map(|_| AdderHistory::default()).collect(),
            violations: Vec::new(),
            retried: 0,
        }
    }
}

impl OnceAccount {
    /// Sends adds until the loaded program is gone, or `end` has returned.
    pub fn load<T>(&mut self, address: SocketAddr, rng: &SeededRng, end: impl FnOnce() -> T) -> T {
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let adders: Vec<_> = self
                .histories
                .iter_mut()
                .enumerate()
                .map(|(adder, history)| {
                    let (rng, stop) = (rng.fork(), &stop);
                    scope.spawn(move || history.send_adds(adder, address, &rng, stop))
                })
                .collect();
            let ended = end();
            stop.store(true, Ordering::Relaxed);
            for adder in adders {
                let (retried, violations) = adder.join().expect("a client does not panic");
                self.retried += retried;
                self.violations.extend(violations);
            }
            ended
        })
    }

    /// Sends all unanswered adds again, and some answered ones; then reads every counter. Returns
    /// the violations.
    pub fn judge(&mut self, client: &mut RespConnection, rng: &SeededRng) -> Vec<String> {
        for adder in 0..self.histories.len() {
            let mut again = Vec::new();
            let AdderHistory { tokens, sequence } = &self.histories[adder];
            for (n, add) in tokens {
                if add.reply.is_none() || rng.chance(RETRIED_PERCENT) {
                    again.push((AddName::Token(*n), *add));
                }
            }
            // In order, and no further back than the last answered one: replies of earlier ones are
            // no longer known.
            let last = sequence.iter().filter(|(_, add)| add.reply.is_some()).map(|(n, _)| *n).max().unwrap_or(0);
            again.extend(sequence.range(last..).map(|(n, add)| (AddName::Number(*n), *add)));
            for (name, add) in again {
                let reply = client.call(&name.words(adder, &add).iter().map(String::as_str).collect::<Vec<_>>());
                let reply = reply.expect("a program that serves answers");
                let (retried, wrong) = self.histories[adder].record_reply(name, &reply);
                self.retried += usize::from(retried);
                self.violations.extend(wrong);
            }
        }
        let mut violations = std::mem::take(&mut self.violations);
        for (counter, word) in COUNTERS.iter().enumerate() {
            let value = client.call(&["GET", word]).expect("a program that serves answers").number().unwrap_or(0);
            let all =
                self.histories.iter().flat_map(|history| history.tokens.values().chain(history.sequence.values()));
            let sum: i64 = all.filter(|add| add.counter == counter).map(|add| add.delta).sum();
            if value != sum {
                violations.push(format!("{word} is {value}, and everything that was added, each once, is {sum}"));
            }
        }
        violations
    }

    /// Number of all adds.
    pub fn adds(&self) -> usize {
        self.histories.iter().map(|history| history.tokens.len() + history.sequence.len()).sum()
    }
}

/// Returns true if a refusal says that a number was applied.
fn is_applied(text: &str) -> bool {
    text.starts_with("SEQAPPLIED")
}

/// Name of an add.
#[derive(Debug, Clone, Copy)]
enum AddName {
    Token(u64),
    Number(u64),
}

impl AddName {
    fn words(self, adder: usize, add: &NamedAdd) -> Vec<String> {
        let (word, item) = match self {
            AddName::Token(n) => ("IDMP", format!("item-{n}")),
            AddName::Number(n) => ("SEQ", n.to_string()),
        };
        let words = ["INCRBY", COUNTERS[add.counter], &add.delta.to_string(), word, &format!("adder-{adder}"), &item];
        words.map(str::to_owned).to_vec()
    }
}

impl AdderHistory {
    fn add_mut(&mut self, name: AddName) -> &mut NamedAdd {
        let (map, n) = match name {
            AddName::Token(n) => (&mut self.tokens, n),
            AddName::Number(n) => (&mut self.sequence, n),
        };
        map.get_mut(&n).expect("it was sent")
    }

    /// Records a reply; returns true if it is one to a retry, and its violation.
    fn record_reply(&mut self, name: AddName, reply: &Value) -> (bool, Option<String>) {
        let add = self.add_mut(name);
        match (reply.number(), add.reply) {
            (Some(value), None) => {
                add.reply = Some(value);
                (false, None)
            }
            (Some(value), Some(first)) if value == first => (true, None),
            // Later ones were applied before the connection broke, so of this one only that fact is
            // known.
            (None, _) if matches!(name, AddName::Number(_)) && reply.error().is_some_and(is_applied) => (true, None),
            _ => (true, Some(format!("{name:?}: {add:?} was answered {reply:?}"))),
        }
    }

    /// Sends adds until the program is gone; returns the number of compared retries, and the
    /// violations.
    fn send_adds(
        &mut self,
        adder: usize,
        address: SocketAddr,
        rng: &SeededRng,
        stop: &AtomicBool,
    ) -> (usize, Vec<String>) {
        let (mut retried, mut violations) = (0, Vec::new());
        let Ok(mut client) = RespConnection::connect(address, TIMEOUT) else { return (retried, violations) };
        while !stop.load(Ordering::Relaxed) {
            let (mut bytes, mut names) = (Vec::new(), Vec::new());
            for _ in 0..1 + rng.below(PIPELINE_MAX) {
                let add = NamedAdd { counter: rng.below(COUNTERS.len()), delta: rng.between(1..=9), reply: None };
                let name = if rng.chance(50) {
                    let n = self.tokens.len() as u64 + 1;
                    self.tokens.insert(n, add);
                    AddName::Token(n)
                } else {
                    let n = self.sequence.len() as u64 + 1;
                    self.sequence.insert(n, add);
                    AddName::Number(n)
                };
                for _ in 0..1 + rng.below(2) {
                    write_request(&name.words(adder, &add), &mut bytes);
                    names.push(name);
                }
            }
            if client.send_encoded(&bytes).is_err() {
                break;
            }
            for name in names {
                let Ok(reply) = client.receive() else { return (retried, violations) };
                let (again, wrong) = self.record_reply(name, &reply);
                retried += usize::from(again);
                violations.extend(wrong);
            }
        }
        (retried, violations)
    }
}
