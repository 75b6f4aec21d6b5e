//! Remembers the mutations applied under tokens, so that a retry gets the reply and is not applied
//! again.
//!
//! In: a client's identity for a mutation, and the mutation. Out: new, or the first reply, or a
//! refusal.
//!
//! A token is kept like a counter: in the shard that its hash picks, under that shard's lock. A
//! command with a token locks that shard together with those of its counters. So the token's
//! look-up, the command and the token's insertion are one step, and one record holds both. The
//! rules of cells therefore hold for tokens, too:
//! - a retry's reply waits for the newest record of the shard;
//! - the watermark gives the position up to which the ledger has the shard's tokens;
//! - a start replays later records.
//!
//! Invariants:
//! - a token is in the record of its effect, and in no other;
//! - a remembered token is not forgotten before its time, and there are never more than
//!   `tokens_max`;
//! - a token that carries its time and may have been forgotten is refused.
//!
//! Not here: the step itself (`turn/once`), claims on a shared store (`sharing/claim`).

mod token_index;
mod token_record;

use std::time::Duration;

use quipu_model::token::{TokenAge, append_payload, forget_at, token_age};
use quipu_model::{Command, Identity, IdentityItem, Millis, Refusal};
use xxhash_rust::xxh3::{xxh3_64_with_seed, xxh3_128_with_seed};

pub use self::token_index::{AppliedToken, LastSequence, TokenIndex};
pub(crate) use self::token_record::{TokenRecord, is_token_key};
use crate::base::options::Options;
use crate::base::sync::{AtomicU64, Ordering};
pub use crate::journal::token_key::TokenKey;

/// State that the tokens of all shards share.
pub struct Tokens {
    /// Seed of the token hashes: the directory's secret, the same in every incarnation.
    seed: u64,
    tokens_max: u64,
    producers_max: u64,
    /// Number of remembered tokens; then of producers.
    tokens: AtomicU64,
    producers: AtomicU64,
    /// Every token applied later than this is remembered; earlier ones may have been forgotten.
    /// Kept at rest, since the window may change later.
    horizon: AtomicU64,
    hits: AtomicU64,
    evictions: AtomicU64,
}

/// Result of the look-up of a token or a sequence number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenLookup {
    /// Not applied yet.
    New,
    /// Applied, with this reply.
    Repeat(quipu_model::StoredReply),
}

impl Tokens {
    /// Creates the state of a directory; its shards already remember `tokens` and `producers`.
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

    /// Digest of a mutation; `None` if a command is no mutation.
    pub fn digest(&self, commands: &[Command<'_>]) -> Option<u64> {
        let mut bytes = Vec::with_capacity(64);
        let mutations = !commands.is_empty() && commands.iter().all(|command| append_payload(command, &mut bytes));
        mutations.then(|| xxh3_64_with_seed(&bytes, self.seed))
    }

    /// Refuses a token with a time outside the window around now.
    pub fn check_time(&self, identity: &Identity<'_>, now: Millis, window: Duration) -> Result<(), Refusal> {
        let Some(carried) = identity.time() else { return Ok(()) };
        let too_old = || Refusal::TokenTooOld { window_millis: millis(window) };
        match token_age(carried, now, window) {
            TokenAge::FromFuture => Err(Refusal::TokenFromFuture),
            TokenAge::TooOld => Err(too_old()),
            // A token applied slightly ahead of its time may be forgotten already, if the window
            // was shorter before.
            TokenAge::Fresh if carried.0 <= self.horizon.load(Ordering::Acquire).saturating_add(ahead_max_millis()) => {
                Err(too_old())
            }
            TokenAge::Fresh => Ok(()),
        }
    }

    /// Refuses a token with a time outside the window, by the clock of the shared store. `now` is
    /// this node's time at that moment.
    pub fn check_store_time(
        &self,
        identity: &Identity<'_>,
        (at, now): (Millis, Millis),
        window: Duration,
    ) -> Result<(), Refusal> {
        let Some(carried) = identity.time() else { return Ok(()) };
        match token_age(carried, at, window) {
            TokenAge::FromFuture => Err(Refusal::TokenFromFuture),
            TokenAge::TooOld => Err(Refusal::TokenTooOld { window_millis: millis(window) }),
            // This node may have forgotten it, if the window was shorter. The horizon is a time of
            // this node's own clock.
            TokenAge::Fresh => {
                let horizon = self.horizon.load(Ordering::Acquire).saturating_add(ahead_max_millis());
                let carried_here = i128::from(carried.0) + i128::from(now.0) - i128::from(at.0);
                match carried_here <= i128::from(horizon) {
                    true => Err(Refusal::TokenTooOld { window_millis: millis(window) }),
                    false => Ok(()),
                }
            }
        }
    }

    /// Checks a token's time, then looks up the token or sequence number in its shard's index.
    /// `window`: time for which tokens are remembered.
    pub fn check_and_find(
        &self,
        index: &TokenIndex,
        identity: &Identity<'_>,
        (key, digest): (TokenKey, u64),
        now: Millis,
        window: Duration,
    ) -> Result<TokenLookup, Refusal> {
        self.check_time(identity, now, window)?;
        self.find(index, identity, (key, digest), now, window)
    }

    /// Like `check_and_find`, without the check of the token's time.
    pub fn find(
        &self,
        index: &TokenIndex,
        identity: &Identity<'_>,
        (key, digest): (TokenKey, u64),
        now: Millis,
        window: Duration,
    ) -> Result<TokenLookup, Refusal> {
        let repeat = |known: u64, outcome: &quipu_model::StoredReply| match known == digest {
            true => Ok(TokenLookup::Repeat(outcome.clone())),
            false => Err(Refusal::TokenMismatch),
        };
        match identity.item() {
            IdentityItem::Token(_) => match index.token(key).filter(|applied| forget_at(applied.at, window) > now) {
                Some(applied) => repeat(applied.digest, &applied.outcome),
                None => Ok(TokenLookup::New),
            },
            IdentityItem::Sequence(n) => {
                let last = index.producer(key);
                let expected = last.map_or(1, |last| last.number.saturating_add(1));
                match last {
                    Some(last) if last.number == n => repeat(last.digest, &last.outcome),
                    Some(last) if n < last.number => Err(Refusal::SequenceApplied { last: last.number }),
                    _ if n == expected => Ok(TokenLookup::New),
                    _ => Err(Refusal::SequenceGap { expected }),
                }
            }
        }
    }

    /// Reserves a slot for one more identity, unless the index has it already.
    /// [`Tokens::unreserve`] returns an unused slot.
    pub fn reserve(&self, index: &TokenIndex, identity: &Identity<'_>, key: TokenKey) -> Result<bool, Refusal> {
        let (known, count, most) = match identity.item() {
            IdentityItem::Token(_) => (index.token(key).is_some(), &self.tokens, self.tokens_max),
            IdentityItem::Sequence(_) => (index.producer(key).is_some(), &self.producers, self.producers_max),
        };
        if known {
            return Ok(false);
        }
        if count.fetch_add(1, Ordering::AcqRel) < most {
            return Ok(true);
        }
        count.fetch_sub(1, Ordering::AcqRel);
        Err(match identity.item() {
            IdentityItem::Token(_) => Refusal::TokensFull { tokens_max: most },
            IdentityItem::Sequence(_) => Refusal::ProducersFull { producers_max: most },
        })
    }

    /// Returns an unused slot.
    pub fn unreserve(&self, identity: &Identity<'_>) {
        let count = if let IdentityItem::Token(_) = identity.item() { &self.tokens } else { &self.producers };
        count.fetch_sub(1, Ordering::AcqRel);
    }

    /// Counts a retry that got its reply.
    pub fn record_hit(&self) {
        self.hits.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts tokens that left an index after their window.
    pub fn record_evictions(&self, count: u64) {
        self.tokens.fetch_sub(count, Ordering::AcqRel);
        self.evictions.fetch_add(count, Ordering::Relaxed);
    }

    /// Raises the horizon: tokens applied up to it may be forgotten. `window_max` is the longest
    /// window in force.
    pub fn raise_horizon(&self, now: Millis, window_max: Duration) -> Millis {
        let cutoff = Millis(now.0.saturating_sub(millis(window_max)).saturating_sub(ahead_max_millis()));
        Millis(self.horizon.fetch_max(cutoff.0, Ordering::AcqRel).max(cutoff.0))
    }

    /// Lowers the horizon after the engine's time was put back to `now`. Tokens may have been
    /// forgotten by the earlier time, except those with a time after `now`. Returns the horizon.
    pub fn lower_horizon(&self, now: Millis) -> Millis {
        Millis(self.horizon.fetch_min(now.0, Ordering::AcqRel).min(now.0))
    }

    /// Returns the statistics of tokens.
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

/// Statistics of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TokenStats {
    /// Remembered tokens.
    pub tokens: u64,
    /// Most tokens remembered.
    pub tokens_max: u64,
    /// Remembered producers of sequences.
    pub producers: u64,
    /// Retries that got the first reply and were not applied, since the start.
    pub hits: u64,
    /// Tokens forgotten after their window, since the start.
    pub evictions: u64,
}

fn ahead_max_millis() -> u64 {
    millis(quipu_model::TOKEN_AHEAD_MAX)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod golden;
#[cfg(test)]
mod tests;
