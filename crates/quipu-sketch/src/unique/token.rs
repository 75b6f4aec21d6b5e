//! Hashes, shortened to 4 bytes: what a sketch keeps while it has few items.
//!
//! ```text
//! 26 bits              6 bits
//! first of the hash    zero bits that follow, 0 to 38
//! ```
//!
//! The register of a dense sketch is named by the first 13 bits, its rank is told by the zeros that follow. Those are among the 26 bits, or they are all 13 of
//! the rest of them and go on in the count of zeros: a token does to a dense sketch exactly what its hash would have done. Two items have one token in a
//! way that matters with a chance of about 2⁻²⁷ a pair, and the likelihood knows of it.

use super::register::{P, RANK_MAX};

/// Bits of the hash that a token keeps as they are.
pub const BITS: u32 = 26;

/// The most zeros that can follow.
pub const ZEROS_MAX: u32 = 64 - BITS;

/// A shortened hash.
pub type HashToken = u32;

/// Shortens a hash.
#[inline]
pub fn shorten(hash: u64) -> HashToken {
    let zeros = ((hash << BITS) | 1 << (BITS - 1)).leading_zeros();
    ((hash >> (64 - BITS)) as u32) << 6 | zeros
}

/// Where a token goes in a dense sketch, and its rank.
#[inline]
pub fn split(token: HashToken) -> (usize, u32) {
    let between = token >> 6 & ((1 << (BITS - P)) - 1);
    let zeros = match between.checked_ilog2() {
        Some(highest) => BITS - P - 1 - highest,
        None => BITS - P + (token & 63),
    };
    ((token >> (32 - P)) as usize, (zeros + 1).min(RANK_MAX))
}

/// Whether any hash has this token.
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
