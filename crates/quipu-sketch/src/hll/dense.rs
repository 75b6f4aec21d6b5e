//! Packed registers of six bits, four in three bytes, lowest bits first.
//!
//! ```text
//! byte     0        1        2
//!       11000000 22221111 33333322     digits are register numbers
//! ```

use super::{RANK_MAX, REGISTERS};

/// Bytes of all packed registers.
pub const PACKED: usize = REGISTERS * 6 / 8;

/// Returns one register.
#[inline]
pub fn get(packed: &[u8], index: usize) -> u8 {
    let (at, shift) = (index * 6 / 8, index * 6 % 8);
    let pair = u16::from(packed[at]) | u16::from(packed.get(at + 1).copied().unwrap_or(0)) << 8;
    (pair >> shift) as u8 & 63
}

/// Returns the one or two bytes of a register with another value in it: offset, bytes, number of
/// bytes.
#[inline]
pub fn with(packed: &[u8], index: usize, value: u8) -> (usize, [u8; 2], usize) {
    let (at, shift) = (index * 6 / 8, index * 6 % 8);
    let pair = u16::from(packed[at]) | u16::from(packed.get(at + 1).copied().unwrap_or(0)) << 8;
    let pair = pair & !(63 << shift) | u16::from(value) << shift;
    (at, pair.to_le_bytes(), if shift > 2 { 2 } else { 1 })
}

/// All registers, a byte each.
#[derive(Clone)]
pub struct Registers(pub [u8; REGISTERS]);

impl Registers {
    /// All registers at 0.
    pub const EMPTY: Registers = Registers([0; REGISTERS]);

    /// Raises each register to the packed one, if that is higher.
    pub fn raise(&mut self, packed: &[u8; PACKED]) {
        for (index, register) in self.0.iter_mut().enumerate() {
            *register = (*register).max(get(packed, index));
        }
    }

    /// Packs all registers.
    pub fn pack(&self) -> Vec<u8> {
        let mut packed = Vec::with_capacity(PACKED);
        for four in self.0.as_chunks::<4>().0 {
            let word = four.iter().rev().fold(0, |word, register| word << 6 | u32::from(*register));
            packed.extend_from_slice(&word.to_le_bytes()[..3]);
        }
        packed
    }

    /// Tallies all registers.
    pub fn tally(&self) -> RegisterTally {
        let count = |which: fn(&u8) -> bool| self.0.iter().filter(|register| which(register)).count() as u32;
        let room = self.0.iter().map(|register| u128::from(share(*register))).sum();
        RegisterTally { zeros: count(|register| *register == 0), full: count(|register| *register >= RANK_MAX), room }
    }
}

/// Statistics of all registers, as input of the estimates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegisterTally {
    /// Registers at 0.
    pub zeros: u32,
    /// Registers at the highest rank.
    pub full: u32,
    /// Number of the 2⁶⁴ hashes that would raise a register.
    pub room: u128,
}

impl RegisterTally {
    /// Tally of a sketch without items.
    pub const EMPTY: RegisterTally = RegisterTally { zeros: REGISTERS as u32, full: 0, room: 1 << 64 };

    /// Updates the tally when one register rises.
    #[inline]
    pub fn raised(&mut self, from: u8, to: u8) {
        self.zeros -= u32::from(from == 0);
        self.full += u32::from(to == RANK_MAX);
        self.room -= u128::from(share(from) - share(to));
    }
}

/// Number of a register's 2⁵⁰ hashes that would raise it above `rank`; none at the highest rank
/// of 51.
#[inline]
fn share(rank: u8) -> u64 {
    (1u64 << 50) >> (rank & 63)
}
