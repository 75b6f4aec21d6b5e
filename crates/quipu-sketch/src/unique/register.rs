//! One register of an UltraLogLog.
//!
//! A hash selects a register with its first p bits and raises it by its rank k: one more than the
//! zero bits that follow. Rank k has probability 2⁻ᵏ, except the highest, which has the rest. A
//! register remembers its highest rank, and for each of the two ranks below if it occurred:
//!
//! ```text
//! 0           no item
//! kkkkkkba    k is the highest rank; b: rank k−1 occurred too; a: rank k−2 occurred too
//! ```
//!
//! A bit of a rank that does not exist is 0, so each state has exactly one byte.

/// Number of hash bits that select the register.
pub const P: u32 = 13;

/// Number of registers of a sketch.
pub const REGISTERS: usize = 1 << P;

/// Highest rank: all other bits of the hash are zero.
pub const RANK_MAX: u32 = 65 - P;

/// Number of hashes per register, the unit of its chances: a chance of 1 is 2⁵¹ hashes.
pub const WHOLE: u64 = 1 << (64 - P);

/// Returns register index and rank of a hash.
#[inline]
pub fn split(hash: u64) -> (usize, u32) {
    ((hash >> (64 - P)) as usize, ((hash << P) | 1 << (P - 1)).leading_zeros() + 1)
}

/// Returns the ranks in a register, as bits: bit k for rank k.
#[inline]
fn known_ranks(register: u8) -> u64 {
    if register == 0 {
        return 0;
    }
    // Ranks −1 and 0 fall off at the low end, and their bits are 0 anyway.
    let rank = u32::from(register >> 2);
    (u64::from(register & 3 | 4) << rank) >> 2
}

/// Returns the register with these ranks.
#[inline]
fn from_ranks(came: u64) -> u8 {
    let Some(rank) = came.checked_ilog2() else { return 0 };
    (rank << 2) as u8 | ((came << 2) >> rank & 3) as u8
}

/// Returns the register after one more rank.
#[inline]
pub fn with_rank(register: u8, rank: u32) -> u8 {
    from_ranks(known_ranks(register) | 1 << rank)
}

/// Merges two registers: the higher one, plus the ranks of the lower one that lie at most two
/// below. Without branches, for a loop over many.
#[inline]
pub fn join(one: u8, two: u8) -> u8 {
    let (high, low) = (one.max(two), one.min(two));
    let distance = (high >> 2) - (low >> 2);
    let same = if distance == 0 { low & 3 } else { 0 };
    let next = if distance == 1 { 2 | (low >> 1 & 1) } else { 0 };
    let second = u8::from(distance == 2);
    high | if low == 0 { 0 } else { same | next | second }
}

/// Returns true if the byte is a valid state.
pub fn is_state(register: u8) -> bool {
    let rank = u32::from(register >> 2);
    match register {
        0 => true,
        _ => (1..=RANK_MAX).contains(&rank) && (rank > 1 || register & 2 == 0) && (rank > 2 || register & 1 == 0),
    }
}

/// Returns the number of [`WHOLE`] hashes that would change it: all above its rank, and those of
/// the missing ranks among the two below.
pub const fn room(register: u8) -> u64 {
    let rank = (register >> 2) as u32;
    if register == 0 {
        return WHOLE;
    }
    let above = if rank >= RANK_MAX { 0 } else { WHOLE >> rank };
    let above = if rank == RANK_MAX - 1 { 1 } else { above };
    let mut missing = 0;
    if rank > 1 && register & 2 == 0 {
        missing += WHOLE >> (rank - 1);
    }
    if rank > 2 && register & 1 == 0 {
        missing += WHOLE >> (rank - 2);
    }
    above + missing
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Chance of a rank, in units of 1/[`WHOLE`].
    fn chance(rank: u32) -> u64 {
        match rank {
            0 => 0,
            RANK_MAX.. => 1,
            _ => WHOLE >> rank,
        }
    }

    #[test]
    fn chances_are_one_together() {
        assert_eq!((1..=RANK_MAX).map(chance).sum::<u64>(), WHOLE);
    }

    #[test]
    fn a_register_remembers_the_highest_rank_and_two_below() {
        let mut register = 0;
        for rank in [3, 1, 7, 5, 6, 2, 8] {
            register = with_rank(register, rank);
        }
        assert_eq!(register, 8 << 2 | 0b11);
        assert_eq!(with_rank(with_rank(0, 1), 2), 2 << 2 | 0b10);
        assert_eq!(with_rank(with_rank(0, 1), 3), 3 << 2 | 0b01);
        assert_eq!(with_rank(with_rank(0, 1), 4), 4 << 2);
        assert_eq!(with_rank(0, RANK_MAX), 52 << 2);
    }

    #[test]
    fn room_is_the_chance_of_a_change() {
        for register in (0..=255).filter(|register| is_state(*register)) {
            let changing =
                (1..=RANK_MAX).filter(|rank| with_rank(register, *rank) != register).map(chance).sum::<u64>();
            assert_eq!(room(register), changing, "{register:#010b}");
            for rank in 1..=RANK_MAX {
                assert!(is_state(with_rank(register, rank)));
            }
        }
    }

    #[test]
    fn joining_is_seeing_both() {
        for one in (0..=255).filter(|register| is_state(*register)) {
            assert_eq!(join(one, one), one);
            for two in (0..=255).filter(|register| is_state(*register)) {
                assert_eq!(join(one, two), from_ranks(known_ranks(one) | known_ranks(two)));
            }
            for rank in 1..=RANK_MAX {
                assert_eq!(join(one, with_rank(0, rank)), with_rank(one, rank));
            }
        }
    }

    #[test]
    fn a_hash_is_split_at_the_register() {
        assert_eq!(split(0), (0, RANK_MAX));
        assert_eq!(split(u64::MAX), (REGISTERS - 1, 1));
        assert_eq!(split(1), (0, RANK_MAX - 1));
        assert_eq!(split(5 << 51 | 1 << 50), (5, 1));
    }
}
