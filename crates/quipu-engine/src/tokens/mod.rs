//! Tokens: what was applied under which token, so that a retry is answered and not applied again.
//!
//! In: what a client calls its mutation, and the mutation. Out: new, or the answer of the first time, or why neither.
//!
//! A token is kept where counters are, in the shard that its hash picks, and under that shard's lock: a command with a token holds that shard beside those of its
//! counters, so looking the token up, applying the command and remembering it are one step, and one record tells of both. All that holds for cells holds
//! for tokens with it: a retry's answer waits for the newest record of the shard; the watermark says up to where the ledger knows the shard's tokens; a start
//! replays what came after.
//!
//! Invariants:
//! - a token is in the record of what it did, and in no other;
//! - one that is remembered is not forgotten before its time, and there are never more than `tokens_max`;
//! - a token that carries its time and may have been forgotten is refused.
//!
//! Not here: the step itself (`turn/once`), claims on a shared store (`sharing/claim`).

mod book;
mod claim_record;
mod note;

use std::time::Duration;

use quipu_model::token::{Age, age, forget_at, payload};
use quipu_model::{Command, Identity, Item, Millis, Refusal};
use xxhash_rust::xxh3::{xxh3_64_with_seed, xxh3_128_with_seed};

pub use self::book::{Applied, Book, Last, TokenKey};
pub use self::claim_record::{CLAIM_RECORD_BYTES_MAX, ClaimRecord};
pub(crate) use self::note::{Noted, is_of_token, put_outcome, take_outcome};
use crate::options::Options;
use crate::sync::{AtomicU64, Ordering};

/// What all shards' tokens have in common.
pub struct Tokens {
    /// Of the hashes of tokens; the directory's secret, the same in every life.
    seed: u64,
    tokens_max: u64,
    producers_max: u64,
    /// How many are remembered.
    tokens: AtomicU64,
    producers: AtomicU64,
    /// Every token that was applied later is remembered; of those before it, some may have been forgotten. Noted at rest, since the window may be
    /// another later.
    horizon: AtomicU64,
    hits: AtomicU64,
    evictions: AtomicU64,
}

/// What is known of a token or a number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    /// It was not applied.
    New,
    /// It was, with this answer.
    Again(quipu_model::Outcome),
}

impl Tokens {
    /// Of a directory, whose shards remember so many already.
    pub fn new(options: &Options, seed: u64, horizon: Millis, (tokens, producers): (u64, u64)) -> Tokens {
        Tokens {
            seed,
            tokens_max: options.tokens_max(),
            producers_max: options.producers_max,
            tokens: AtomicU64::new(tokens),
            producers: AtomicU64::new(producers),
            horizon: AtomicU64::new(horizon.0),
            hits: AtomicU64::new(0),
            evictions: AtomicU64::new(0),
        }
    }

    /// The hash under which a token, or a producer, is kept.
    pub fn key(&self, identity: &Identity<'_>) -> TokenKey {
        TokenKey::from(xxh3_128_with_seed(&identity.key(), self.seed))
    }

    /// The digest of what is to be done; `None` if it is no mutation.
    pub fn digest(&self, commands: &[Command<'_>]) -> Option<u64> {
        let mut bytes = Vec::with_capacity(64);
        let mutations = !commands.is_empty() && commands.iter().all(|command| payload(command, &mut bytes));
        mutations.then(|| xxh3_64_with_seed(&bytes, self.seed))
    }

    /// Refuses a token whose time is not now.
    pub fn check_time(&self, identity: &Identity<'_>, now: Millis, window: Duration) -> Result<(), Refusal> {
        let Some(carried) = identity.time() else { return Ok(()) };
        let too_old = || Refusal::TokenTooOld { window_millis: millis(window) };
        match age(carried, now, window) {
            Age::FromFuture => Err(Refusal::TokenFromFuture),
            Age::TooOld => Err(too_old()),
            // Applied a little ahead of its time, it would have been forgotten; only with a longer window than there was before.
            Age::Fresh if carried.0 <= self.horizon.load(Ordering::Acquire).saturating_add(ahead()) => Err(too_old()),
            Age::Fresh => Ok(()),
        }
    }

    /// Refuses a token whose time is not now, by the clock of the shared store. `now` is this node's time at that moment.
    pub fn check_store_time(
        &self,
        identity: &Identity<'_>,
        (at, now): (Millis, Millis),
        window: Duration,
    ) -> Result<(), Refusal> {
        let Some(carried) = identity.time() else { return Ok(()) };
        match age(carried, at, window) {
            Age::FromFuture => Err(Refusal::TokenFromFuture),
            Age::TooOld => Err(Refusal::TokenTooOld { window_millis: millis(window) }),
            // This node may have forgotten it, where the window was shorter. Its horizon is a time of its own clock.
            Age::Fresh => {
                let horizon = self.horizon.load(Ordering::Acquire).saturating_add(ahead());
                let carried_here = i128::from(carried.0) + i128::from(now.0) - i128::from(at.0);
                match carried_here <= i128::from(horizon) {
                    true => Err(Refusal::TokenTooOld { window_millis: millis(window) }),
                    false => Ok(()),
                }
            }
        }
    }

    /// What is known of a token or a number, in its shard's book, where tokens are remembered for so long.
    pub fn look(
        &self,
        book: &Book,
        identity: &Identity<'_>,
        (key, digest): (TokenKey, u64),
        now: Millis,
        window: Duration,
    ) -> Result<Seen, Refusal> {
        self.check_time(identity, now, window)?;
        self.find(book, identity, (key, digest), now, window)
    }

    /// The same, without a look at the time that a token carries.
    pub fn find(
        &self,
        book: &Book,
        identity: &Identity<'_>,
        (key, digest): (TokenKey, u64),
        now: Millis,
        window: Duration,
    ) -> Result<Seen, Refusal> {
        let again = |known: u64, outcome: &quipu_model::Outcome| match known == digest {
            true => Ok(Seen::Again(outcome.clone())),
            false => Err(Refusal::TokenMismatch),
        };
        match identity.item() {
            Item::Token(_) => match book.token(key).filter(|applied| forget_at(applied.at, window) > now) {
                Some(applied) => again(applied.digest, &applied.outcome),
                None => Ok(Seen::New),
            },
            Item::Sequence(n) => {
                let last = book.producer(key);
                let expected = last.map_or(1, |last| last.n.saturating_add(1));
                match last {
                    Some(last) if last.n == n => again(last.digest, &last.outcome),
                    Some(last) if n < last.n => Err(Refusal::SequenceApplied { last: last.n }),
                    _ if n == expected => Ok(Seen::New),
                    _ => Err(Refusal::SequenceGap { expected }),
                }
            }
        }
    }

    /// Takes a place for one more, where the book has none for it; it is given back by [`Tokens::give_back`] if it is not used.
    pub fn take_place(&self, book: &Book, identity: &Identity<'_>, key: TokenKey) -> Result<bool, Refusal> {
        let (known, count, most) = match identity.item() {
            Item::Token(_) => (book.token(key).is_some(), &self.tokens, self.tokens_max),
            Item::Sequence(_) => (book.producer(key).is_some(), &self.producers, self.producers_max),
        };
        if known {
            return Ok(false);
        }
        if count.fetch_add(1, Ordering::AcqRel) < most {
            return Ok(true);
        }
        count.fetch_sub(1, Ordering::AcqRel);
        Err(match identity.item() {
            Item::Token(_) => Refusal::TokensFull { tokens_max: most },
            Item::Sequence(_) => Refusal::ProducersFull { producers_max: most },
        })
    }

    /// A place was not used.
    pub fn give_back(&self, identity: &Identity<'_>) {
        let count = if let Item::Token(_) = identity.item() { &self.tokens } else { &self.producers };
        count.fetch_sub(1, Ordering::AcqRel);
    }

    /// A retry was answered.
    pub fn note_hit(&self) {
        self.hits.fetch_add(1, Ordering::Relaxed);
    }

    /// Tokens have left a book because their time was over.
    pub fn note_evicted(&self, count: u64) {
        self.tokens.fetch_sub(count, Ordering::AcqRel);
        self.evictions.fetch_add(count, Ordering::Relaxed);
    }

    /// Tokens that were applied up to then may leave from here on, where the longest window is this one.
    pub fn begin_forgetting(&self, now: Millis, window_max: Duration) -> Millis {
        let over = Millis(now.0.saturating_sub(millis(window_max)).saturating_sub(ahead()));
        Millis(self.horizon.fetch_max(over.0, Ordering::AcqRel).max(over.0))
    }

    /// The engine's time was put back to `now`. Tokens may have been forgotten by the time before; those that carry a time after
    /// `now` were not. Returns the horizon.
    pub fn lower_horizon(&self, now: Millis) -> Millis {
        Millis(self.horizon.fetch_min(now.0, Ordering::AcqRel).min(now.0))
    }

    /// How many tokens and producers are remembered, how many tokens may be, and how many retries were answered and tokens forgotten since the start.
    pub fn stats(&self) -> TokenStats {
        TokenStats {
            tokens: self.tokens.load(Ordering::Relaxed),
            tokens_max: self.tokens_max,
            producers: self.producers.load(Ordering::Relaxed),
            hits: self.hits.load(Ordering::Relaxed),
            evictions: self.evictions.load(Ordering::Relaxed),
        }
    }
}

/// Figures of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TokenStats {
    /// Tokens that are remembered.
    pub tokens: u64,
    /// How many may be.
    pub tokens_max: u64,
    /// Producers of sequences that are remembered.
    pub producers: u64,
    /// Retries that were answered and not applied, since the start.
    pub hits: u64,
    /// Tokens that were forgotten after their window, since the start.
    pub evictions: u64,
}

fn ahead() -> u64 {
    millis(quipu_model::TOKEN_AHEAD_MAX)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod golden;
#[cfg(test)]
mod tests;
