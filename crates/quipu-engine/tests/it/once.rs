//! What tokens and sequences mean, written a second time and as plainly as possible, to compare the engine with.

use std::collections::BTreeMap;
use std::time::Duration;

use quipu_engine::{Engine, Error, Position};
use quipu_model::token::{Age, age, forget_at, payload};
use quipu_model::{Command, Durability, Identity, Millis, Refusal, Reply};
use quipu_testkit::Dice;

use crate::model::{self, State};
use crate::sim::{durability, names};

/// How long tokens are remembered in the small world: its clock jumps by half an hour now and then.
pub const WINDOW: Duration = Duration::from_secs(600);

/// Few, so that they are used again.
const ITEMS: usize = 6;
const PRODUCERS: usize = 2;

/// What a mutation is called.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Named {
    Token(String),
    Number(String, u64),
}

impl Named {
    pub fn identity(&self) -> Identity<'_> {
        match self {
            Named::Token(item) => Identity::token(b"p", item.as_bytes()).unwrap(),
            Named::Number(producer, n) => Identity::sequence(producer.as_bytes(), *n).unwrap(),
        }
    }
}

/// What was applied under a name.
#[derive(Debug, Clone)]
pub struct Done {
    pub command: Command<'static>,
    pub reply: Reply,
    pub at: Millis,
    /// Where its record ends.
    pub position: Position,
}

/// What is remembered.
#[derive(Debug, Clone, Default)]
pub struct Book {
    /// In every name, so that lives which do not know of each other do not meet.
    salt: u64,
    tokens: BTreeMap<String, Done>,
    producers: BTreeMap<String, (u64, Done)>,
}

/// What the engine must say to a mutation.
pub enum Expected {
    /// What it says without a name; then it is remembered.
    New,
    /// This, and nothing is applied; and what it shows.
    Told(Reply, Position),
}

impl Book {
    pub fn new(salt: u64) -> Book {
        Book { salt, ..Book::default() }
    }

    /// What must be said at a time.
    pub fn expected(&self, named: &Named, command: &Command<'_>, now: Millis) -> Expected {
        let told = |done: &Done| match done.command == *command {
            true => Expected::Told(done.reply.clone(), done.position),
            false => Expected::Told(Reply::Refused(Refusal::TokenMismatch), done.position),
        };
        let refused = |refusal, position| Expected::Told(Reply::Refused(refusal), position);
        let nothing = Position(0);
        match named {
            Named::Token(item) => {
                let carried = named.identity().time();
                match carried.map_or(Age::Fresh, |carried| age(carried, now, WINDOW)) {
                    Age::TooOld => refused(Refusal::TokenTooOld { window_millis: WINDOW.as_millis() as u64 }, nothing),
                    Age::FromFuture => refused(Refusal::TokenFromFuture, nothing),
                    Age::Fresh => match self.tokens.get(item).filter(|done| forget_at(done.at, WINDOW) > now) {
                        Some(done) => told(done),
                        None => Expected::New,
                    },
                }
            }
            Named::Number(producer, n) => match self.producers.get(producer) {
                None if *n == 1 => Expected::New,
                None => refused(Refusal::SequenceGap { expected: 1 }, nothing),
                Some((last, done)) if n == last => told(done),
                Some((last, done)) if n < last => refused(Refusal::SequenceApplied { last: *last }, done.position),
                Some((last, _)) if *n == last + 1 => Expected::New,
                Some((last, _)) => refused(Refusal::SequenceGap { expected: last + 1 }, nothing),
            },
        }
    }

    /// Remembers what was applied.
    pub fn remember(&mut self, named: &Named, done: Done) {
        match named {
            Named::Token(item) => drop(self.tokens.insert(item.clone(), done)),
            Named::Number(producer, n) => drop(self.producers.insert(producer.clone(), (*n, done))),
        }
    }

    /// A mutation with a name: often one that was there before.
    pub fn draw(&self, dice: &Dice, now: Millis, draw: impl Fn() -> Command<'static>) -> (Named, Command<'static>) {
        let named = match dice.below(10) {
            0..3 => {
                let producer = format!("{}-{}", self.salt, dice.below(PRODUCERS));
                let last = self.producers.get(&producer).map_or(0, |(n, _)| *n);
                let n = (last + *dice.pick(&[0, 0, 1, 1, 1, 2])).saturating_sub(u64::from(dice.chance(10))).max(1);
                Named::Number(producer, n)
            }
            3..5 => {
                // One that carries its time, which is now, a while ago, or to come.
                let ago = dice.between(-90_000..=700_000);
                Named::Token(format!("{:013}-{}", now.0 as i64 - ago, self.salt))
            }
            5..7 if !self.tokens.is_empty() => {
                let items: Vec<&String> = self.tokens.keys().collect();
                Named::Token((*dice.pick(&items)).clone())
            }
            _ => Named::Token(format!("{}-{}", self.salt, dice.below(ITEMS))),
        };
        let before = match &named {
            Named::Token(item) => self.tokens.get(item),
            Named::Number(producer, n) => {
                self.producers.get(producer).filter(|(last, _)| last == n).map(|(_, done)| done)
            }
        };
        let command = match before {
            Some(done) if dice.chance(85) => done.command.clone(),
            _ => loop {
                let command = draw();
                if payload(&command, &mut Vec::new()) {
                    break command;
                }
            },
        };
        (named, command)
    }

    /// Every name there is, with what was applied under it.
    fn all(&self) -> impl Iterator<Item = (Named, &Done)> {
        let tokens = self.tokens.iter().map(|(item, done)| (Named::Token(item.clone()), done));
        tokens.chain(self.producers.iter().map(|(name, (n, done))| (Named::Number(name.clone(), *n), done)))
    }
}

/// Retries everything that was ever applied in a life on an engine that has recovered to a state and what was remembered there: what survived is answered as before and not
/// applied again, what did not is applied now. Returns how many of both.
pub fn retry_all(engine: &Engine, state: &State, book: &Book, ever: &Book, context: &str) -> (usize, usize) {
    let (mut state, mut book, mut counts) = (state.clone(), book.clone(), (0, 0));
    for (named, done) in ever.all() {
        for _ in 0..2 {
            let is_memory = names(&done.command).iter().any(|name| durability(name.bytes()) == Durability::Memory);
            let now = engine.now();
            let expected = match book.expected(&named, &done.command, now) {
                Expected::Told(reply, _) => {
                    counts.0 += 1;
                    reply
                }
                // What a crash leaves of a counter in memory is not known here; that it is applied once is known from the others.
                Expected::New if is_memory => break,
                Expected::New => {
                    counts.1 += 1;
                    let reply = model::apply(&mut state, &done.command, now);
                    if !matches!(reply, Reply::Refused(_)) {
                        book.remember(&named, Done { reply: reply.clone(), at: now, ..done.clone() });
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
