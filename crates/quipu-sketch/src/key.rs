//! Secret key for hashing the items of native kinds.
//!
//! With a fixed public hash, a client can shrink or inflate a sketch at will by its choice of
//! items. Some thousand items, chosen offline, make a HyperLogLog report a billion. With a secret
//! key, drawn once per deployment, an item's effect on a sketch is unpredictable.
//!
//! This needs a keyed pseudo-random function, so the hash is SipHash-1-3, as in Rust's own maps.
//! Fast seeded hashes are made for speed and have published inputs that collide under every seed.
//!
//! All sketches that are ever merged, or moved between nodes, must use one key.

use crate::splitmix::{STEP, mix};

/// Secret key of a deployment. It is not part of a sketch's bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Key(pub [u8; 16]);

impl std::fmt::Debug for Key {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Key(…)")
    }
}

impl Key {
    /// Returns the item's hash under this key: SipHash-1-3.
    #[inline]
    pub fn hash(&self, item: &[u8]) -> u64 {
        let half = |at: usize| u64::from_le_bytes(self.0[at..at + 8].try_into().expect("it is 8 bytes"));
        let (k0, k1) = (half(0), half(8));
        let mut state = [
            k0 ^ 0x736f_6d65_7073_6575,
            k1 ^ 0x646f_7261_6e64_6f6d,
            k0 ^ 0x6c79_6765_6e65_7261,
            k1 ^ 0x7465_6462_7974_6573,
        ];
        let (words, rest) = item.as_chunks::<8>();
        for word in words {
            absorb(&mut state, u64::from_le_bytes(*word));
        }
        let mut last = (item.len() as u64) << 56;
        for (index, byte) in rest.iter().enumerate() {
            last |= u64::from(*byte) << (8 * index);
        }
        absorb(&mut state, last);
        state[2] ^= 0xff;
        for _ in 0..3 {
            round(&mut state);
        }
        state[0] ^ state[1] ^ state[2] ^ state[3]
    }
}

#[inline]
fn absorb(state: &mut [u64; 4], word: u64) {
    state[3] ^= word;
    round(state);
    state[0] ^= word;
}

#[inline]
fn round(state: &mut [u64; 4]) {
    let [a, b, c, d] = state;
    *a = a.wrapping_add(*b);
    *b = b.rotate_left(13) ^ *a;
    *a = a.rotate_left(32);
    *c = c.wrapping_add(*d);
    *d = d.rotate_left(16) ^ *c;
    *a = a.wrapping_add(*d);
    *d = d.rotate_left(21) ^ *a;
    *c = c.wrapping_add(*b);
    *b = b.rotate_left(17) ^ *c;
    *c = c.rotate_left(32);
}

/// Derives another hash from a hash, for row `row` of a sketch. Every bit of both inputs affects
/// every bit of the result.
#[inline]
pub(crate) fn rehash(hash: u64, row: u64) -> u64 {
    mix(hash ^ row.wrapping_add(1).wrapping_mul(STEP))
}

/// Returns the bucket of a hash, among `buckets`.
#[inline]
pub(crate) fn bucket_of(hash: u64, buckets: u32) -> usize {
    (((hash >> 32) * u64::from(buckets)) >> 32) as usize
}

#[cfg(test)]
mod tests {
    use std::hash::{DefaultHasher, Hasher};

    use super::*;

    #[test]
    fn it_is_the_function_that_maps_of_the_standard_library_use() {
        let item: Vec<u8> = (0..100).map(|n: u8| n.wrapping_mul(7)).collect();
        for len in 0..item.len() {
            let mut theirs = DefaultHasher::new();
            theirs.write(&item[..len]);
            assert_eq!(Key([0; 16]).hash(&item[..len]), theirs.finish(), "{len} bytes");
        }
    }

    #[test]
    fn another_key_is_another_function() {
        assert_ne!(Key([1; 16]).hash(b"item"), Key([2; 16]).hash(b"item"));
        let mut high = [0; 16];
        high[15] = 1;
        assert_ne!(Key([0; 16]).hash(b"item"), Key(high).hash(b"item"));
    }
}
