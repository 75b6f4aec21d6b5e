//! The tokens of one shard.
//!
//! In: what was applied under a token or a number. Out: that again; notes for the ledger.
//!
//! One map, looked into once however many hours a window has. Tokens leave it together: a seal collects those whose time is over, and lets them go when
//! the ledger has, too.
//!
//! Invariants:
//! - what the ledger does not know, or not as it is, is in `dirty` or `sealing`;
//! - a token leaves after the ledger was told that it is gone, and not if it was applied anew since.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use quipu_model::{AuxRecord, Millis, StoredReply};

use super::ClaimRecord;
use super::token_record::TokenRecord;

/// The hash of a token, or of a producer: 128 bits with a secret seed, so that nobody can choose two that collide.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct TokenKey([u64; 2]);

impl From<u128> for TokenKey {
    fn from(hash: u128) -> TokenKey {
        TokenKey([(hash >> 64) as u64, hash as u64])
    }
}

impl TokenKey {
    /// What picks its shard, as the hash of a name does.
    pub fn hash(self) -> u64 {
        self.0[0]
    }

    /// As bytes, in the order of the keys.
    pub fn bytes(self) -> [u8; 16] {
        ((u128::from(self.0[0]) << 64) | u128::from(self.0[1])).to_be_bytes()
    }

    /// From bytes.
    pub fn from_bytes(bytes: [u8; 16]) -> TokenKey {
        TokenKey::from(u128::from_be_bytes(bytes))
    }
}

impl std::hash::Hash for TokenKey {
    /// Its second half, which the shard does not have in common.
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0[1]);
    }
}

/// A hash need not be hashed again.
#[derive(Default)]
pub struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }
}

type TokenKeyMap<T> = HashMap<TokenKey, T, BuildHasherDefault<IdentityHasher>>;

/// What was applied under a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AppliedToken {
    /// When: the time of its record.
    pub at: Millis,
    /// Of what was to be done.
    pub digest: u64,
    /// What was answered.
    pub outcome: StoredReply,
    /// The claim at the shared store under which it was applied.
    pub claim: Option<Box<ClaimRecord>>,
}

impl AppliedToken {
    /// About how many bytes it takes beside itself.
    fn heap_bytes(&self) -> usize {
        self.outcome.heap_bytes() + self.claim.as_ref().map_or(0, |claim| claim.bytes())
    }
}

/// The last mutation of a producer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastSequence {
    /// Its number.
    pub number: u64,
    /// Of what was to be done.
    pub digest: u64,
    /// What was answered.
    pub outcome: StoredReply,
}

/// The tokens and producers of a shard.
#[derive(Default)]
pub struct TokenIndex {
    tokens: TokenKeyMap<AppliedToken>,
    producers: TokenKeyMap<LastSequence>,
    /// What the ledger does not know.
    dirty: Vec<DirtyKey>,
    /// What was collected for it, until that is sealed.
    sealing: Vec<DirtyKey>,
    /// Tokens that were applied up to then leave when what was collected is sealed.
    sealing_horizon: Option<Millis>,
    /// What answers take outside the maps.
    reply_bytes: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum DirtyKey {
    Token(TokenKey),
    Producer(TokenKey),
}

impl TokenIndex {
    /// What was applied under a token.
    pub fn token(&self, key: TokenKey) -> Option<&AppliedToken> {
        self.tokens.get(&key)
    }

    /// All tokens that were applied under a claim at the shared store, and when.
    pub fn claimed_tokens(&self) -> impl Iterator<Item = (Millis, TokenKey)> {
        let claimed = self.tokens.iter().filter(|(_, applied)| applied.claim.is_some());
        claimed.map(|(key, applied)| (applied.at, *key))
    }

    /// What a producer has done last.
    pub fn producer(&self, key: TokenKey) -> Option<&LastSequence> {
        self.producers.get(&key)
    }

    /// Remembers what was applied under a token.
    pub fn insert_token(&mut self, key: TokenKey, applied: AppliedToken) {
        self.load_token(key, applied);
        self.dirty.push(DirtyKey::Token(key));
    }

    /// Remembers what a producer has done last.
    pub fn advance_producer(&mut self, key: TokenKey, last: LastSequence) {
        self.load_producer(key, last);
        // A producer that goes on and on is one note all the same.
        if self.dirty.last() != Some(&DirtyKey::Producer(key)) {
            self.dirty.push(DirtyKey::Producer(key));
        }
    }

    /// Takes what the ledger knows of a token.
    pub fn load_token(&mut self, key: TokenKey, applied: AppliedToken) {
        self.reply_bytes += applied.heap_bytes();
        let before = self.tokens.insert(key, applied);
        self.reply_bytes -= before.map_or(0, |before| before.heap_bytes());
    }

    /// Takes what the ledger knows of a producer.
    pub fn load_producer(&mut self, key: TokenKey, last: LastSequence) {
        self.reply_bytes += last.outcome.heap_bytes();
        let before = self.producers.insert(key, last);
        self.reply_bytes -= before.map_or(0, |before| before.outcome.heap_bytes());
    }

    /// How many tokens and producers there are.
    pub fn counts(&self) -> (u64, u64) {
        (self.tokens.len() as u64, self.producers.len() as u64)
    }

    /// About how many bytes they take.
    pub fn bytes(&self) -> usize {
        let dirty = self.dirty.capacity() + self.sealing.capacity();
        self.tokens.capacity() * (size_of::<(TokenKey, AppliedToken)>() + 1)
            + self.producers.capacity() * (size_of::<(TokenKey, LastSequence)>() + 1)
            + dirty * size_of::<DirtyKey>()
            + self.reply_bytes
    }

    // ---- seal -------------------------------------------------------------------------------------------------------------------

    /// What the ledger does not know, in no order; and of tokens that were applied up to `horizon`, that they are gone.
    pub fn collect(&mut self, horizon: Millis, out: &mut Vec<AuxRecord>) {
        self.sealing.append(&mut self.dirty);
        self.sealing.sort_unstable();
        self.sealing.dedup();
        for dirty in &self.sealing {
            match dirty {
                DirtyKey::Token(key) => {
                    let applied = self.tokens.get(key).filter(|applied| applied.at > horizon);
                    out.extend(applied.map(|applied| TokenRecord::Token(*key, applied.clone()).to_aux_record()));
                }
                DirtyKey::Producer(key) => {
                    let last = self.producers.get(key);
                    out.extend(last.map(|last| TokenRecord::Producer(*key, last.clone()).to_aux_record()));
                }
            }
        }
        let gone = self.tokens.iter().filter(|(_, applied)| applied.at <= horizon);
        let before = out.len();
        out.extend(gone.map(|(key, _)| TokenRecord::removal(*key)));
        self.sealing_horizon = (out.len() > before).then_some(horizon);
    }

    /// How many of them the ledger does not know, those it is to forget left out.
    pub fn unsealed_count(&self) -> usize {
        self.dirty.len() + self.sealing.len()
    }

    /// What was collected did not reach the ledger.
    pub fn undo_collect(&mut self) {
        self.dirty.append(&mut self.sealing);
        self.sealing_horizon = None;
    }

    /// What was collected is sealed: tokens whose time is over leave. Returns how many.
    pub fn finish_seal(&mut self) -> u64 {
        self.sealing = Vec::new();
        let Some(horizon) = self.sealing_horizon.take() else { return 0 };
        let before = self.tokens.len();
        let reply_bytes = &mut self.reply_bytes;
        self.tokens.retain(|_, applied| {
            let is_kept = applied.at > horizon;
            *reply_bytes -= if is_kept { 0 } else { applied.heap_bytes() };
            is_kept
        });
        if self.tokens.len() < self.tokens.capacity() / 4 {
            self.tokens.shrink_to(2 * self.tokens.len());
        }
        (before - self.tokens.len()) as u64
    }

    /// Everything that is remembered, in no order: what outlives a deletion of all counters.
    pub fn collect_all(&self, out: &mut Vec<AuxRecord>) {
        out.extend(self.tokens.iter().map(|(key, applied)| TokenRecord::Token(*key, applied.clone()).to_aux_record()));
        out.extend(self.producers.iter().map(|(key, last)| TokenRecord::Producer(*key, last.clone()).to_aux_record()));
    }
}
