//! Registers of six bits, four in three bytes, lowest bits first.
//!
//! ```text
//! byte     0        1        2
//!       11000000 22221111 33333322     digits are register numbers
//! ```

use super::{RANK_MAX, REGISTERS};

/// Bytes that all registers take.
pub const PACKED: usize = REGISTERS * 6 / 8;

/// All registers, a byte each.
pub type Registers = [u8; REGISTERS];

/// One register.
#[inline]
pub fn get(packed: &[u8], index: usize) -> u8 {
    let (at, shift) = (index * 6 / 8, index * 6 % 8);
    let pair = u16::from(packed[at]) | u16::from(packed.get(at + 1).copied().unwrap_or(0)) << 8;
    (pair >> shift) as u8 & 63
}

/// The bytes that hold a register, with another value in it: where, and one or two of them.
#[inline]
pub fn with(packed: &[u8], index: usize, value: u8) -> (usize, [u8; 2], usize) {
    let (at, shift) = (index * 6 / 8, index * 6 % 8);
    let pair = u16::from(packed[at]) | u16::from(packed.get(at + 1).copied().unwrap_or(0)) << 8;
    let pair = pair & !(63 << shift) | u16::from(value) << shift;
    (at, pair.to_le_bytes(), if shift > 2 { 2 } else { 1 })
}

/// Raises each register to the packed one, where that is higher. Eight registers are a word of 48 bits, whose halves are moved apart
/// three times: plain arithmetic that compilers turn into vectors.
#[inline(always)]
pub fn raise(registers: &mut Registers, packed: &[u8; PACKED]) {
    let spread = |word: u64| {
        let word = (word & 0x00_ffff_ff) | ((word & 0xffff_ff00_0000) << 8);
        let word = (word & 0x0000_0fff_0000_0fff) | ((word & 0x00ff_f000_00ff_f000) << 4);
        ((word & 0x003f_003f_003f_003f) | ((word & 0x0fc0_0fc0_0fc0_0fc0) << 2)).to_le_bytes()
    };
    // The last word would be read beyond the end: it is taken apart below.
    let (body, last) = registers.split_at_mut(REGISTERS - 8);
    for (index, eight) in body.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let word = u64::from_le_bytes(packed[6 * index..6 * index + 8].try_into().expect("it is 8 bytes"));
        for (register, other) in eight.iter_mut().zip(spread(word)) {
            *register = (*register).max(other);
        }
    }
    let mut word = [0; 8];
    word[..6].copy_from_slice(&packed[PACKED - 6..]);
    for (register, other) in last.iter_mut().zip(spread(u64::from_le_bytes(word))) {
        *register = (*register).max(other);
    }
}

/// Packs registers.
pub fn pack(registers: &Registers) -> Vec<u8> {
    let mut packed = Vec::with_capacity(PACKED);
    for four in registers.as_chunks::<4>().0 {
        let word = four.iter().rev().fold(0u32, |word, register| word << 6 | u32::from(*register));
        packed.extend_from_slice(&word.to_le_bytes()[..3]);
    }
    packed
}

/// What estimates need to know of all registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tally {
    /// Registers that nothing reached.
    pub zeros: u32,
    /// Registers that nothing can raise.
    pub full: u32,
    /// Of 2⁶⁴ hashes, how many would raise a register.
    pub room: u128,
}

impl Tally {
    /// The tally of no items at all.
    pub const EMPTY: Tally = Tally { zeros: REGISTERS as u32, full: 0, room: 1 << 64 };

    /// Looks at all registers.
    #[inline(always)]
    pub fn of(registers: &Registers) -> Tally {
        let (mut zeros, mut full) = (0, 0);
        let mut sums = [0u64; 8];
        for row in registers.as_chunks::<128>().0 {
            let (mut zero, mut at_max) = (0u8, 0u8);
            for register in row {
                zero += u8::from(*register == 0);
                at_max += u8::from(*register >= RANK_MAX);
            }
            zeros += u32::from(zero);
            full += u32::from(at_max);
            for eight in row.as_chunks::<8>().0 {
                for (sum, register) in sums.iter_mut().zip(eight) {
                    *sum = sum.wrapping_add(share(*register));
                }
            }
        }
        // Only when all registers are empty the sum is 2⁶⁴, and wraps.
        let room = sums.iter().fold(0u64, |all, sum| all.wrapping_add(*sum));
        Tally { zeros, full, room: if zeros == REGISTERS as u32 { 1 << 64 } else { u128::from(room) } }
    }

    /// One register rises.
    #[inline]
    pub fn raised(&mut self, from: u8, to: u8) {
        self.zeros -= u32::from(from == 0);
        self.full += u32::from(to == RANK_MAX);
        self.room -= u128::from(share(from) - share(to));
    }
}

/// Of the 2⁵⁰ hashes of a register, how many would raise it above `rank`: none, at the highest rank of 51.
#[inline(always)]
fn share(rank: u8) -> u64 {
    (1u64 << 50) >> (rank & 63)
}
