//! The hash by which tokens and producers are known in the journal, in the ledger and in memory.

use std::hash::Hasher;

/// Hash of a token, or of a producer: 128 bits with a secret seed, so that clients cannot choose
/// two that collide.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct TokenKey([u64; 2]);

impl From<u128> for TokenKey {
    fn from(hash: u128) -> TokenKey {
        TokenKey([(hash >> 64) as u64, hash as u64])
    }
}

impl TokenKey {
    /// The part that picks the shard, as the hash of a name does.
    pub fn hash(self) -> u64 {
        self.0[0]
    }

    /// Encodes the key, in key order.
    pub fn bytes(self) -> [u8; 16] {
        ((u128::from(self.0[0]) << 64) | u128::from(self.0[1])).to_be_bytes()
    }

    /// Decodes a key.
    pub fn from_bytes(bytes: [u8; 16]) -> TokenKey {
        TokenKey::from(u128::from_be_bytes(bytes))
    }
}

impl std::hash::Hash for TokenKey {
    /// Hashes the second half: the first one is partly common to the shard.
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0[1]);
    }
}
