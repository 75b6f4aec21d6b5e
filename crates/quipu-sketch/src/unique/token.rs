//! Tokens: hashes shortened to 4 bytes, for a sketch with few items.
//!
//! ```text
//! 26 bits              6 bits
//! first of the hash    zero bits that follow, 0 to 38
//! ```
//!
//! In a dense sketch the first 13 bits of a hash select the register, and the zeros that follow
//! give the rank. These zeros either end within the 26 bits, or fill the other 13 of them and
//! continue in the count of zeros. So a token changes a dense sketch exactly as its hash would. Two
//! items have a relevant token in common with a chance of about 2⁻²⁷ per pair; the likelihood
//! corrects for it.

use super::register::{P, RANK_MAX};

/// Number of hash bits that a token stores unchanged.
pub const BITS: u32 = 26;

/// Most zeros that can follow.
pub const ZEROS_MAX: u32 = 64 - BITS;

/// A shortened hash.
pub type HashToken = u32;

/// Shortens a hash.
#[inline]
pub fn shorten(hash: u64) -> HashToken {
    let zeros = ((hash << BITS) | 1 << (BITS - 1)).leading_zeros();
    ((hash >> (64 - BITS)) as u32) << 6 | zeros
}

/// Returns register index and rank of a token in a dense sketch.
#[inline]
pub fn split(token: HashToken) -> (usize, u32) {
    let between = token >> 6 & ((1 << (BITS - P)) - 1);
    let zeros = match between.checked_ilog2() {
        Some(highest) => BITS - P - 1 - highest,
        None => BITS - P + (token & 63),
    };
    ((token >> (32 - P)) as usize, (zeros + 1).min(RANK_MAX))
}

/// Returns true if any hash has this token.
pub fn is_token(token: HashToken) -> bool {
    token & 63 <= ZEROS_MAX
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::unique::register;

    proptest! {
        #[test]
        fn a_token_does_what_its_hash_would(hash in any::<u64>(), zeros in 0u32..64) {
            for hash in [hash, hash & (u64::MAX >> zeros), hash & !(u64::MAX >> 13) | (hash >> 13) >> zeros.min(51)] {
                prop_assert_eq!(split(shorten(hash)), register::split(hash));
                prop_assert!(is_token(shorten(hash)));
            }
        }
    }
}
