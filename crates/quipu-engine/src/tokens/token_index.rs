//! Indexes the tokens of one shard.
//!
//! In: mutations applied under a token or a sequence number. Out: the same on look-up; auxiliary
//! records for the ledger.
//!
//! One map takes one look-up, regardless of the window's length. Tokens leave it together: a seal
//! collects the expired ones, and removes them once the ledger has, too.
//!
//! Invariants:
//! - an entry that the ledger lacks, or has in an older state, is in `dirty` or `sealing`;
//! - a token leaves after the ledger has removed it, and only if it was not applied anew since.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use quipu_model::{AuxRecord, Millis, StoredReply};

use super::token_record::TokenRecord;
use crate::journal::claim_record::ClaimRecord;
use crate::journal::token_key::TokenKey;

/// A hasher that passes a hash through.
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

/// A mutation applied under a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AppliedToken {
    /// Time of its record.
    pub at: Millis,
    /// Digest of the mutation.
    pub digest: u64,
    /// The stored reply.
    pub outcome: StoredReply,
    /// The claim at the shared store under which it was applied.
    pub claim: Option<Box<ClaimRecord>>,
}

impl AppliedToken {
    /// Approximate bytes on the heap.
    fn heap_bytes(&self) -> usize {
        self.outcome.heap_bytes() + self.claim.as_ref().map_or(0, |claim| claim.bytes())
    }
}

/// The last mutation of a producer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastSequence {
    /// Its sequence number.
    pub number: u64,
    /// Digest of the mutation.
    pub digest: u64,
    /// The stored reply.
    pub outcome: StoredReply,
}

/// The tokens and producers of a shard.
#[derive(Default)]
pub struct TokenIndex {
    tokens: TokenKeyMap<AppliedToken>,
    producers: TokenKeyMap<LastSequence>,
    /// Keys that the ledger lacks.
    dirty: Vec<DirtyKey>,
    /// Keys collected for the ledger, until they are sealed.
    sealing: Vec<DirtyKey>,
    /// Tokens applied up to this time leave when the collected ones are sealed.
    sealing_horizon: Option<Millis>,
    /// Bytes of replies outside the maps.
    reply_bytes: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum DirtyKey {
    Token(TokenKey),
    Producer(TokenKey),
}

impl TokenIndex {
    /// Looks up a token.
    pub fn token(&self, key: TokenKey) -> Option<&AppliedToken> {
        self.tokens.get(&key)
    }

    /// All tokens applied under a claim at the shared store, with their times.
    pub fn claimed_tokens(&self) -> impl Iterator<Item = (Millis, TokenKey)> {
        let claimed = self.tokens.iter().filter(|(_, applied)| applied.claim.is_some());
        claimed.map(|(key, applied)| (applied.at, *key))
    }

    /// Looks up the last mutation of a producer.
    pub fn producer(&self, key: TokenKey) -> Option<&LastSequence> {
        self.producers.get(&key)
    }

    /// Inserts a token.
    pub fn insert_token(&mut self, key: TokenKey, applied: AppliedToken) {
        self.load_token(key, applied);
        self.dirty.push(DirtyKey::Token(key));
    }

    /// Sets the last mutation of a producer.
    pub fn advance_producer(&mut self, key: TokenKey, last: LastSequence) {
        self.load_producer(key, last);
        // Consecutive mutations of one producer are one record.
        if self.dirty.last() != Some(&DirtyKey::Producer(key)) {
            self.dirty.push(DirtyKey::Producer(key));
        }
    }

    /// Loads a token from the ledger.
    pub fn load_token(&mut self, key: TokenKey, applied: AppliedToken) {
        self.reply_bytes += applied.heap_bytes();
        let before = self.tokens.insert(key, applied);
        self.reply_bytes -= before.map_or(0, |before| before.heap_bytes());
    }

    /// Loads a producer from the ledger.
    pub fn load_producer(&mut self, key: TokenKey, last: LastSequence) {
        self.reply_bytes += last.outcome.heap_bytes();
        let before = self.producers.insert(key, last);
        self.reply_bytes -= before.map_or(0, |before| before.outcome.heap_bytes());
    }

    /// Numbers of tokens and producers.
    pub fn counts(&self) -> (u64, u64) {
        (self.tokens.len() as u64, self.producers.len() as u64)
    }

    /// Approximate bytes in memory.
    pub fn bytes(&self) -> usize {
        let dirty = self.dirty.capacity() + self.sealing.capacity();
        self.tokens.capacity() * (size_of::<(TokenKey, AppliedToken)>() + 1)
            + self.producers.capacity() * (size_of::<(TokenKey, LastSequence)>() + 1)
            + dirty * size_of::<DirtyKey>()
            + self.reply_bytes
    }

    // ---- seal ----

    /// Collects the changes that the ledger lacks, unordered, and removals of tokens applied up to
    /// `horizon`.
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

    /// Number of changes that the ledger lacks, without removals.
    pub fn unsealed_count(&self) -> usize {
        self.dirty.len() + self.sealing.len()
    }

    /// Returns the collected changes: they did not reach the ledger.
    pub fn undo_collect(&mut self) {
        self.dirty.append(&mut self.sealing);
        self.sealing_horizon = None;
    }

    /// Removes expired tokens after a seal; returns their number.
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

    /// Collects all tokens and producers, unordered: they outlive a deletion of all counters.
    pub fn collect_all(&self, out: &mut Vec<AuxRecord>) {
        out.extend(self.tokens.iter().map(|(key, applied)| TokenRecord::Token(*key, applied.clone()).to_aux_record()));
        out.extend(self.producers.iter().map(|(key, last)| TokenRecord::Producer(*key, last.clone()).to_aux_record()));
    }
}
