//! Models tokens and sequences a second time, as plainly as possible, for comparison with the
//! engine.

use std::collections::BTreeMap;

use quipu_engine::{Engine, Error, Position};
use quipu_model::token::{TokenAge, append_payload, forget_at, token_age};
use quipu_model::{Command, Durability, Identity, Millis, Refusal, Reply};
use quipu_testkit::SeededRng;

use super::WINDOW;
use super::commands::{durability_of, names_of};
use super::model::{self, ModelState};

/// Number of tokens and of producers: few, so that they are used again.
const ITEMS: usize = 6;
const PRODUCERS: usize = 2;

/// Name of a mutation.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum MutationName {
    /// A token.
    Token(String),
    /// A producer and its sequence number.
    Number(String, u64),
}

impl MutationName {
    pub(super) fn identity(&self) -> Identity<'_> {
        match self {
            MutationName::Token(item) => Identity::token(b"p", item.as_bytes()).expect("tokens here are short"),
            MutationName::Number(producer, n) => {
                Identity::sequence(producer.as_bytes(), *n).expect("producers here are short")
            }
        }
    }
}

/// A mutation that was applied under a name.
#[derive(Debug, Clone)]
pub(super) struct AppliedMutation {
    pub(super) command: Command<'static>,
    pub(super) reply: Reply,
    pub(super) at: Millis,
    /// End of its record.
    pub(super) position: Position,
}

/// Model of the remembered tokens and sequence numbers.
#[derive(Debug, Clone, Default)]
pub struct TokenModel {
    /// Part of every name, so that incarnations without a common history share no name.
    salt: u64,
    tokens: BTreeMap<String, AppliedMutation>,
    producers: BTreeMap<String, (u64, AppliedMutation)>,
}

/// The reply that a mutation must have.
pub(super) enum ExpectedReply {
    /// The same as without a name; then it is remembered.
    New,
    /// This one, and nothing is applied. It shows the records up to here.
    Repeat(Reply, Position),
}

impl TokenModel {
    /// Creates a model that remembers nothing.
    pub fn new(salt: u64) -> TokenModel {
        TokenModel { salt, ..TokenModel::default() }
    }

    /// The reply to a mutation at a time.
    pub(super) fn expected_reply(&self, named: &MutationName, command: &Command<'_>, now: Millis) -> ExpectedReply {
        let repeat = |done: &AppliedMutation| match done.command == *command {
            true => ExpectedReply::Repeat(done.reply.clone(), done.position),
            false => ExpectedReply::Repeat(Reply::Refused(Refusal::TokenMismatch), done.position),
        };
        let refused = |refusal, position| ExpectedReply::Repeat(Reply::Refused(refusal), position);
        let nothing = Position(0);
        match named {
            MutationName::Token(item) => {
                let carried = named.identity().time();
                match carried.map_or(TokenAge::Fresh, |carried| token_age(carried, now, WINDOW)) {
                    TokenAge::TooOld => {
                        refused(Refusal::TokenTooOld { window_millis: WINDOW.as_millis() as u64 }, nothing)
                    }
                    TokenAge::FromFuture => refused(Refusal::TokenFromFuture, nothing),
                    TokenAge::Fresh => match self.tokens.get(item).filter(|done| forget_at(done.at, WINDOW) > now) {
                        Some(done) => repeat(done),
                        None => ExpectedReply::New,
                    },
                }
            }
            MutationName::Number(producer, n) => match self.producers.get(producer) {
                None if *n == 1 => ExpectedReply::New,
                None => refused(Refusal::SequenceGap { expected: 1 }, nothing),
                Some((last, done)) if n == last => repeat(done),
                Some((last, done)) if n < last => refused(Refusal::SequenceApplied { last: *last }, done.position),
                Some((last, _)) if *n == last + 1 => ExpectedReply::New,
                Some((last, _)) => refused(Refusal::SequenceGap { expected: last + 1 }, nothing),
            },
        }
    }

    /// Remembers an applied mutation.
    pub(super) fn remember(&mut self, named: &MutationName, done: AppliedMutation) {
        match named {
            MutationName::Token(item) => drop(self.tokens.insert(item.clone(), done)),
            MutationName::Number(producer, n) => drop(self.producers.insert(producer.clone(), (*n, done))),
        }
    }

    /// Draws a mutation with a name, often a repeated one.
    pub(super) fn draw(
        &self,
        rng: &SeededRng,
        now: Millis,
        draw: impl Fn() -> Command<'static>,
    ) -> (MutationName, Command<'static>) {
        let named = match rng.below(10) {
            0..3 => {
                let producer = format!("{}-{}", self.salt, rng.below(PRODUCERS));
                let last = self.producers.get(&producer).map_or(0, |(n, _)| *n);
                let n = (last + *rng.pick(&[0, 0, 1, 1, 1, 2])).saturating_sub(u64::from(rng.chance(10))).max(1);
                MutationName::Number(producer, n)
            }
            3..5 => {
                // A token that carries its time: now, a while ago, or ahead.
                let ago = rng.between(-90_000..=700_000);
                MutationName::Token(format!("{:013}-{}", now.0 as i64 - ago, self.salt))
            }
            5..7 if !self.tokens.is_empty() => {
                let items: Vec<&String> = self.tokens.keys().collect();
                MutationName::Token((*rng.pick(&items)).clone())
            }
            _ => MutationName::Token(format!("{}-{}", self.salt, rng.below(ITEMS))),
        };
        let before = match &named {
            MutationName::Token(item) => self.tokens.get(item),
            MutationName::Number(producer, n) => {
                self.producers.get(producer).filter(|(last, _)| last == n).map(|(_, done)| done)
            }
        };
        let command = match before {
            Some(done) if rng.chance(85) => done.command.clone(),
            _ => loop {
                let command = draw();
                if append_payload(&command, &mut Vec::new()) {
                    break command;
                }
            },
        };
        (named, command)
    }

    /// Every name, with the mutation under it.
    fn all(&self) -> impl Iterator<Item = (MutationName, &AppliedMutation)> {
        let tokens = self.tokens.iter().map(|(item, done)| (MutationName::Token(item.clone()), done));
        tokens.chain(self.producers.iter().map(|(name, (n, done))| (MutationName::Number(name.clone(), *n), done)))
    }
}

/// Number of retried mutations.
#[derive(Default, Debug, Clone, Copy)]
pub struct RetryTally {
    /// They had survived: answered as before, and not applied again.
    pub survived: usize,
    /// They had not: applied now.
    pub lost: usize,
}

/// Retries every mutation of an incarnation on an engine that has recovered to this state, with
/// these tokens.
pub fn retry_all(
    engine: &Engine,
    state: &ModelState,
    token_model: &TokenModel,
    ever: &TokenModel,
    context: &str,
) -> RetryTally {
    let mut state = state.clone();
    let mut token_model = token_model.clone();
    let mut tally = RetryTally::default();
    for (named, done) in ever.all() {
        for _ in 0..2 {
            let is_memory =
                names_of(&done.command).iter().any(|name| durability_of(name.bytes()) == Durability::Memory);
            let now = engine.now();
            let expected = match token_model.expected_reply(&named, &done.command, now) {
                ExpectedReply::Repeat(reply, _) => {
                    tally.survived += 1;
                    reply
                }
                // A crash leaves an unknown value of a counter in memory. The others show that a
                // retry is applied once.
                ExpectedReply::New if is_memory => break,
                ExpectedReply::New => {
                    tally.lost += 1;
                    let reply = model::apply(&mut state, &done.command, now);
                    if !matches!(reply, Reply::Refused(_)) {
                        token_model.remember(&named, AppliedMutation { reply: reply.clone(), at: now, ..done.clone() });
                    }
                    reply
                }
            };
            let reply = match engine.execute_once(&named.identity(), &done.command) {
                Err(Error::Refused(refusal)) => Reply::Refused(refusal),
                reply => reply.unwrap_or_else(|error| panic!("{context}: {error}")),
            };
            assert_eq!(reply, expected, "{context}: {named:?} again, with {:?}", done.command);
        }
    }
    tally
}
