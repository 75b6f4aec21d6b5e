//! MurmurHash64A by Austin Appleby, as Redis calls it for HyperLogLogs: words are little-endian on
//! every machine.

/// Redis's seed: it is part of the format of its strings.
const SEED: u64 = 0xadc8_3b19;

const M: u64 = 0xc6a4_a793_5bd1_e995;
const R: u32 = 47;

/// Returns the hash under which Redis counts an item.
#[inline]
pub fn murmur(item: &[u8]) -> u64 {
    let mut hash = SEED ^ (item.len() as u64).wrapping_mul(M);
    let (words, rest) = item.as_chunks::<8>();
    for word in words {
        let mut k = u64::from_le_bytes(*word).wrapping_mul(M);
        k ^= k >> R;
        hash = (hash ^ k.wrapping_mul(M)).wrapping_mul(M);
    }
    if !rest.is_empty() {
        let mut word = [0; 8];
        word[..rest.len()].copy_from_slice(rest);
        hash = (hash ^ u64::from_le_bytes(word)).wrapping_mul(M);
    }
    hash ^= hash >> R;
    hash = hash.wrapping_mul(M);
    hash ^ (hash >> R)
}
