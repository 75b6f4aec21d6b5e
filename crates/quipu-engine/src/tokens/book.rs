//! The tokens of one shard.
//!
//! In: what was applied under a token or a number. Out: that again; notes for the ledger.
//!
//! One map, looked into once however many hours a window has. Tokens leave it together: a seal collects those whose time is over, and lets them go when
//! the ledger has, too.
//!
//! Invariants:
//! - what the ledger does not know, or not as it is, is in `fresh` or `sealing`;
//! - a token leaves after the ledger was told that it is gone, and not if it was applied anew since.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use quipu_model::{Millis, Note, Outcome};

use super::ClaimRecord;
use super::note::Noted;

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
pub struct AsItIs(u64);

impl Hasher for AsItIs {
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

type ByKey<T> = HashMap<TokenKey, T, BuildHasherDefault<AsItIs>>;

/// What was applied under a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied {
    /// When: the time of its record.
    pub at: Millis,
    /// Of what was to be done.
    pub digest: u64,
    /// What was answered.
    pub outcome: Outcome,
    /// The claim at the shared store under which it was applied.
    pub claim: Option<Box<ClaimRecord>>,
}

impl Applied {
    /// About how many bytes it takes beside itself.
    fn bytes_beside(&self) -> usize {
        self.outcome.bytes_beside() + self.claim.as_ref().map_or(0, |claim| claim.bytes())
    }
}

/// The last mutation of a producer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Last {
    /// Its number.
    pub n: u64,
    /// Of what was to be done.
    pub digest: u64,
    /// What was answered.
    pub outcome: Outcome,
}

/// The tokens and producers of a shard.
#[derive(Default)]
pub struct Book {
    tokens: ByKey<Applied>,
    producers: ByKey<Last>,
    /// What the ledger does not know.
    fresh: Vec<Written>,
    /// What was collected for it, until that is sealed.
    sealing: Vec<Written>,
    /// Tokens that were applied up to then leave when what was collected is sealed.
    leaving: Option<Millis>,
    /// What answers take outside the maps.
    answers_bytes: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Written {
    Token(TokenKey),
    Producer(TokenKey),
}

impl Book {
    /// What was applied under a token.
    pub fn token(&self, key: TokenKey) -> Option<&Applied> {
        self.tokens.get(&key)
    }

    /// All tokens that were applied under a claim at the shared store, and when.
    pub fn claimed(&self) -> impl Iterator<Item = (Millis, TokenKey)> {
        let claimed = self.tokens.iter().filter(|(_, applied)| applied.claim.is_some());
        claimed.map(|(key, applied)| (applied.at, *key))
    }

    /// What a producer has done last.
    pub fn producer(&self, key: TokenKey) -> Option<&Last> {
        self.producers.get(&key)
    }

    /// Remembers what was applied under a token.
    pub fn apply(&mut self, key: TokenKey, applied: Applied) {
        self.load_token(key, applied);
        self.fresh.push(Written::Token(key));
    }

    /// Remembers what a producer has done last.
    pub fn follow(&mut self, key: TokenKey, last: Last) {
        self.load_producer(key, last);
        // A producer that goes on and on is one note all the same.
        if self.fresh.last() != Some(&Written::Producer(key)) {
            self.fresh.push(Written::Producer(key));
        }
    }

    /// Takes what the ledger knows of a token.
    pub fn load_token(&mut self, key: TokenKey, applied: Applied) {
        self.answers_bytes += applied.bytes_beside();
        let before = self.tokens.insert(key, applied);
        self.answers_bytes -= before.map_or(0, |before| before.bytes_beside());
    }

    /// Takes what the ledger knows of a producer.
    pub fn load_producer(&mut self, key: TokenKey, last: Last) {
        self.answers_bytes += last.outcome.bytes_beside();
        let before = self.producers.insert(key, last);
        self.answers_bytes -= before.map_or(0, |before| before.outcome.bytes_beside());
    }

    /// How many tokens and producers there are.
    pub fn len(&self) -> (u64, u64) {
        (self.tokens.len() as u64, self.producers.len() as u64)
    }

    /// About how many bytes they take.
    pub fn bytes(&self) -> usize {
        let written = self.fresh.capacity() + self.sealing.capacity();
        self.tokens.capacity() * (size_of::<(TokenKey, Applied)>() + 1)
            + self.producers.capacity() * (size_of::<(TokenKey, Last)>() + 1)
            + written * size_of::<Written>()
            + self.answers_bytes
    }

    // ---- seal -------------------------------------------------------------------------------------------------------------------

    /// What the ledger does not know, in no order; and of tokens that were applied up to `over`, that they are gone.
    pub fn collect(&mut self, over: Millis, out: &mut Vec<Note>) {
        self.sealing.append(&mut self.fresh);
        self.sealing.sort_unstable();
        self.sealing.dedup();
        for written in &self.sealing {
            match written {
                Written::Token(key) => {
                    let applied = self.tokens.get(key).filter(|applied| applied.at > over);
                    out.extend(applied.map(|applied| Noted::Token(*key, applied.clone()).note()));
                }
                Written::Producer(key) => {
                    let last = self.producers.get(key);
                    out.extend(last.map(|last| Noted::Producer(*key, last.clone()).note()));
                }
            }
        }
        let gone = self.tokens.iter().filter(|(_, applied)| applied.at <= over);
        let before = out.len();
        out.extend(gone.map(|(key, _)| Noted::forget(*key)));
        self.leaving = (out.len() > before).then_some(over);
    }

    /// How many of them the ledger does not know, those it is to forget left out.
    pub fn unsealed(&self) -> usize {
        self.fresh.len() + self.sealing.len()
    }

    /// What was collected did not reach the ledger.
    pub fn uncollect(&mut self) {
        self.fresh.append(&mut self.sealing);
        self.leaving = None;
    }

    /// What was collected is sealed: tokens whose time is over leave. Returns how many.
    pub fn sealed(&mut self) -> u64 {
        self.sealing = Vec::new();
        let Some(over) = self.leaving.take() else { return 0 };
        let before = self.tokens.len();
        let answers_bytes = &mut self.answers_bytes;
        self.tokens.retain(|_, applied| {
            let stays = applied.at > over;
            *answers_bytes -= if stays { 0 } else { applied.bytes_beside() };
            stays
        });
        if self.tokens.len() < self.tokens.capacity() / 4 {
            self.tokens.shrink_to(2 * self.tokens.len());
        }
        (before - self.tokens.len()) as u64
    }

    /// Everything that is remembered, in no order: what outlives a deletion of all counters.
    pub fn all(&self, out: &mut Vec<Note>) {
        out.extend(self.tokens.iter().map(|(key, applied)| Noted::Token(*key, applied.clone()).note()));
        out.extend(self.producers.iter().map(|(key, last)| Noted::Producer(*key, last.clone()).note()));
    }
}
