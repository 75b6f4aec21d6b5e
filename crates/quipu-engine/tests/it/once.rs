//! Models tokens and sequences a second time, as plainly as possible, for comparison with the
//! engine.

use std::collections::BTreeMap;
use std::time::Duration;

use quipu_engine::{Engine, Error, Position};
use quipu_model::token::{TokenAge, append_payload, forget_at, token_age};
use quipu_model::{Command, Durability, Identity, Millis, Refusal, Reply};
use quipu_testkit::SeededRng;

use crate::model::{self, State};
use crate::sim::{durability, names};

/// How long tokens are remembered in the small world: its clock jumps by half an hour now and then.
pub const WINDOW: Duration = Duration::from_secs(600);

/// Few, so that they are used again.
const ITEMS: usize = 6;
const PRODUCERS: usize = 2;

/// What a mutation is called.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum MutationName {
    Token(String),
    Number(String, u64),
}

impl MutationName {
    pub fn identity(&self) -> Identity<'_> {
        match self {
            MutationName::Token(item) => Identity::token(b"p", item.as_bytes()).unwrap(),
            MutationName::Number(producer, n) => Identity::sequence(producer.as_bytes(), *n).unwrap(),
        }
    }
}

/// What was applied under a name.
#[derive(Debug, Clone)]
pub struct AppliedMutation {
    pub command: Command<'static>,
    pub reply: Reply,
    pub at: Millis,
    /// Where its record ends.
    pub position: Position,
}

/// What is remembered.
#[derive(Debug, Clone, Default)]
pub struct TokenModel {
    /// In every name, so that lives which do not know of each other do not meet.
    salt: u64,
    tokens: BTreeMap<String, AppliedMutation>,
    producers: BTreeMap<String, (u64, AppliedMutation)>,
}

/// What the engine must say to a mutation.
pub enum Expected {
    /// What it says without a name; then it is remembered.
    New,
    /// This, and nothing is applied; and what it shows.
    Repeat(Reply, Position),
}

impl TokenModel {
    pub fn new(salt: u64) -> TokenModel {
        TokenModel { salt, ..TokenModel::default() }
    }

    /// What must be said at a time.
    pub fn expected(&self, named: &MutationName, command: &Command<'_>, now: Millis) -> Expected {
        let repeat = |done: &AppliedMutation| match done.command == *command {
            true => Expected::Repeat(done.reply.clone(), done.position),
            false => Expected::Repeat(Reply::Refused(Refusal::TokenMismatch), done.position),
        };
        let refused = |refusal, position| Expected::Repeat(Reply::Refused(refusal), position);
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
                        None => Expected::New,
                    },
                }
            }
            MutationName::Number(producer, n) => match self.producers.get(producer) {
                None if *n == 1 => Expected::New,
                None => refused(Refusal::SequenceGap { expected: 1 }, nothing),
                Some((last, done)) if n == last => repeat(done),
                Some((last, done)) if n < last => refused(Refusal::SequenceApplied { last: *last }, done.position),
                Some((last, _)) if *n == last + 1 => Expected::New,
                Some((last, _)) => refused(Refusal::SequenceGap { expected: last + 1 }, nothing),
            },
        }
    }

    /// Remembers what was applied.
    pub fn remember(&mut self, named: &MutationName, done: AppliedMutation) {
        match named {
            MutationName::Token(item) => drop(self.tokens.insert(item.clone(), done)),
            MutationName::Number(producer, n) => drop(self.producers.insert(producer.clone(), (*n, done))),
        }
    }

    /// A mutation with a name: often one that was there before.
    pub fn draw(
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
                // One that carries its time, which is now, a while ago, or to come.
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

    /// Every name there is, with what was applied under it.
    fn all(&self) -> impl Iterator<Item = (MutationName, &AppliedMutation)> {
        let tokens = self.tokens.iter().map(|(item, done)| (MutationName::Token(item.clone()), done));
        tokens.chain(self.producers.iter().map(|(name, (n, done))| (MutationName::Number(name.clone(), *n), done)))
    }
}

/// Retries everything that was ever applied in a life on an engine that has recovered to a state and what was remembered there: what survived is answered as before and not
/// applied again, what did not is applied now. Returns how many of both.
pub fn retry_all(
    engine: &Engine,
    state: &State,
    token_model: &TokenModel,
    ever: &TokenModel,
    context: &str,
) -> (usize, usize) {
    let (mut state, mut token_model, mut counts) = (state.clone(), token_model.clone(), (0, 0));
    for (named, done) in ever.all() {
        for _ in 0..2 {
            let is_memory = names(&done.command).iter().any(|name| durability(name.bytes()) == Durability::Memory);
            let now = engine.now();
            let expected = match token_model.expected(&named, &done.command, now) {
                Expected::Repeat(reply, _) => {
                    counts.0 += 1;
                    reply
                }
                // What a crash leaves of a counter in memory is not known here; that it is applied once is known from the others.
                Expected::New if is_memory => break,
                Expected::New => {
                    counts.1 += 1;
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
    counts
}
