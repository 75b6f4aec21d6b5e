//! Distinct items, as Redis counts them: HyperLogLog with 2¹⁴ registers, byte for byte.
//!
//! ```text
//! 0       1        2 .. 8   8 .. 16            16 ..
//! 1       history  0        estimate, f64 LE   Redis's string
//!
//! Redis's string
//! 0 .. 4  4                      5 .. 8  8 .. 16                        16 ..
//! "HYLL"  0 = dense, 1 = sparse  unused  count as last replied, LE;     registers: `dense` or `sparse`
//!                                        top bit set: it is out of date
//! ```
//!
//! The first 16 bytes are Quipu's. A sketch has a history (`history` is 1) while it was filled
//! here, item by item, and never merged. Then each item that changes a register adds the inverse of
//! the probability of such a change. This martingale estimate of Cohen and Ting is unbiased, with
//! an error of 0.833/√m instead of 1.039/√m. A merge or an import ends the history for good: the
//! registers do not record the number of their raises.
//!
//! The hash is public, so a client can choose items that make the count absurd.
//! [`Unique`](crate::Unique) has a secret key instead.

mod murmur;
mod sparse;

pub(crate) mod dense;
mod estimate;

use dense::{PACKED, RegisterTally, Registers};
pub use murmur::murmur;
use sparse::RaiseOutcome;

use crate::edit::{put, replace};
use crate::{CorruptSketch, Edits, simd};

/// Number of registers of a sketch.
pub const REGISTERS: usize = 1 << 14;

/// Longest sparse string, with its header: Redis's default of `hll-sparse-max-bytes`.
pub const SPARSE_BYTES_MAX: usize = 3000;

/// Highest rank: one more than the number of hash bits behind the register index.
pub(crate) const RANK_MAX: u8 = 51;

/// Length of Quipu's header in front of Redis's string.
const OURS: usize = 16;
const ESTIMATE: usize = 8;
const HEADER: usize = 16;
const REGISTERS_AT: usize = OURS + HEADER;
const ENCODING: usize = OURS + 4;
const STALE: usize = OURS + 15;
const DENSE: u8 = 0;
const SPARSE: u8 = 1;
const STALE_BIT: u8 = 0x80;

/// A HyperLogLog in Redis's format.
#[derive(Debug, Clone)]
pub struct Hll {
    /// Bytes as drawn above; the registers are valid in either form.
    bytes: Vec<u8>,
    /// Incremental result of [`Registers::tally`].
    tally: RegisterTally,
}

impl Default for Hll {
    fn default() -> Hll {
        Hll::new()
    }
}

impl Hll {
    /// Creates an empty sketch, with a history.
    pub fn new() -> Hll {
        let mut bytes = vec![0; REGISTERS_AT];
        bytes[..2].copy_from_slice(&[1, 1]);
        bytes[OURS..OURS + 4].copy_from_slice(b"HYLL");
        bytes[ENCODING] = SPARSE;
        // `PFADD` without items creates a sketch too, which counts as a change.
        bytes[STALE] = STALE_BIT;
        bytes.extend_from_slice(&sparse::EMPTY);
        Hll { bytes, tally: RegisterTally::EMPTY }
    }

    /// Decodes the output of [`bytes`](Hll::bytes).
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Hll, CorruptSketch> {
        let Some((ours, string)) = bytes.split_first_chunk::<OURS>() else {
            return Err(CorruptSketch("a HyperLogLog is too short"));
        };
        let (history, estimate) = (ours[1] == 1, f64::from_le_bytes(*ours.last_chunk().expect("16 bytes have 8")));
        if ours[0] != 1 || ours[1] > 1 || ours[2..8] != [0; 6] || !(estimate >= 0.0 && estimate.is_finite()) {
            return Err(CorruptSketch("the header of a HyperLogLog"));
        }
        if !history && estimate.to_bits() != 0 {
            return Err(CorruptSketch("a HyperLogLog without a history has an estimate of it"));
        }
        let tally = check(string)?;
        Ok(Hll { bytes, tally })
    }

    /// Imports a string that Redis wrote. It has no history here. A sparse string longer than
    /// Redis's default allows becomes dense: one run per register would take 32 KiB.
    pub fn from_redis_string(string: &[u8]) -> Result<Hll, CorruptSketch> {
        let tally = check(string)?;
        let mut bytes = Vec::with_capacity(OURS + string.len());
        bytes.extend_from_slice(&[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        bytes.extend_from_slice(string);
        let mut hll = Hll { bytes, tally };
        if !hll.is_dense() && string.len() > SPARSE_BYTES_MAX {
            hll.become_dense(&mut hll.registers(), &mut Edits::new());
        }
        Ok(hll)
    }

    /// Returns the string that `GET` returns on Redis.
    pub fn redis_string(&self) -> &[u8] {
        &self.bytes[OURS..]
    }

    /// Returns the whole state, as drawn above.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// As [`bytes`](Hll::bytes), but consumes the sketch.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Returns its memory use in bytes.
    pub fn memory(&self) -> usize {
        size_of::<Hll>() + self.bytes.capacity()
    }

    /// Counts an item; returns true if the sketch changed, which is the reply of `PFADD`.
    #[inline]
    pub fn add(&mut self, item: &[u8], edits: &mut Edits) -> bool {
        self.add_hash(murmur(item), edits)
    }

    /// Counts an item by its hash.
    #[inline]
    pub fn add_hash(&mut self, hash: u64, edits: &mut Edits) -> bool {
        let index = hash as usize % REGISTERS;
        let rank = ((hash >> 14) | 1 << 50).trailing_zeros() as u8 + 1;
        if self.is_dense() && dense::get(&self.bytes[REGISTERS_AT..], index) >= rank {
            return false;
        }
        self.raise(index, rank, edits)
    }

    /// Returns the estimated number of distinct items, rounded: the reply of `PFCOUNT`.
    pub fn count(&self) -> u64 {
        self.estimate().round() as u64
    }

    /// Returns the estimated number of distinct items.
    pub fn estimate(&self) -> f64 {
        if self.has_history() { self.history() } else { estimate::estimate(&self.tally) }
    }

    /// Returns the relative standard error of the estimate, once many registers are set.
    pub fn rse(&self) -> f64 {
        let m = REGISTERS as f64;
        let ln2 = std::f64::consts::LN_2;
        if self.has_history() { (ln2 / m).sqrt() } else { ((3.0 * ln2 - 1.0) / m).sqrt() }
    }

    /// Returns true if it has a history, which gives the better estimate.
    pub fn has_history(&self) -> bool {
        self.bytes[1] == 1
    }

    /// Ends the history for good: from now on estimates use the registers alone. For a sketch that
    /// several nodes fill.
    pub fn end_history(&mut self, edits: &mut Edits) {
        if self.has_history() {
            let mut ours = [0; OURS];
            ours[0] = 1;
            put(&mut self.bytes, edits, 0, OURS, &ours);
        }
    }

    /// Returns true if all registers are stored densely.
    pub fn is_dense(&self) -> bool {
        self.bytes[ENCODING] == DENSE
    }

    /// Merges others, as `PFMERGE` does. The history ends, unless there are no others.
    pub fn merge(&mut self, others: &[&Hll], edits: &mut Edits) {
        if others.is_empty() {
            return;
        }
        self.end_history(edits);
        let mut registers = self.registers();
        for other in others {
            other.raise_into(&mut registers);
        }
        if self.is_dense() || others.iter().any(|other| other.is_dense()) {
            let tally = simd::union(&mut registers, &[]);
            if tally != self.tally || !self.is_dense() {
                self.become_dense(&mut registers, edits);
            }
            return;
        }
        // Merges register by register, as Redis does: the order decides how runs are split. The
        // result is recorded as one change.
        let mut merged = self.clone();
        let mut unread = Edits::new();
        for (index, rank) in registers.0.into_iter().enumerate().filter(|(_, rank)| *rank > 0) {
            merged.raise(index, rank, &mut unread);
        }
        self.tally = merged.tally;
        replace(&mut self.bytes, edits, merged.bytes);
    }

    /// Returns the estimated number of distinct items in the union: the reply of `PFCOUNT` of
    /// several keys.
    pub fn union_count(sketches: &[&Hll]) -> u64 {
        if let [one] = sketches { one.count() } else { Hll::union_estimate(sketches).round() as u64 }
    }

    /// As [`union_count`](Hll::union_count), unrounded, and always from the registers.
    pub fn union_estimate(sketches: &[&Hll]) -> f64 {
        /// Dense sketches merged in one walk.
        const TOGETHER: usize = 16;
        let mut registers = Registers::EMPTY;
        for sketch in sketches.iter().filter(|sketch| !sketch.is_dense()) {
            sketch.raise_into(&mut registers);
        }
        let mut tally = None;
        let mut some: [&[u8; PACKED]; TOGETHER] = [&[0; PACKED]; TOGETHER];
        let mut packed = sketches.iter().filter_map(|sketch| sketch.packed()).peekable();
        while packed.peek().is_some() {
            let taken = packed.by_ref().take(TOGETHER).zip(&mut some).map(|(one, place)| *place = one).count();
            tally = Some(simd::union(&mut registers, &some[..taken]));
        }
        estimate::estimate(&tally.unwrap_or_else(|| simd::union(&mut registers, &[])))
    }

    fn history(&self) -> f64 {
        f64::from_le_bytes(self.bytes[ESTIMATE..OURS].try_into().expect("it is 8 bytes"))
    }

    fn packed(&self) -> Option<&[u8; PACKED]> {
        if self.is_dense() { self.bytes[REGISTERS_AT..].try_into().ok() } else { None }
    }

    fn raise_into(&self, registers: &mut Registers) {
        match self.packed() {
            Some(packed) => {
                simd::union(registers, &[packed]);
            }
            None => sparse::raise(registers, &self.bytes[REGISTERS_AT..]),
        }
    }

    fn registers(&self) -> Registers {
        let mut registers = Registers::EMPTY;
        self.raise_into(&mut registers);
        registers
    }

    /// Raises a register, if it is lower.
    fn raise(&mut self, index: usize, rank: u8, edits: &mut Edits) -> bool {
        let before = if self.is_dense() {
            let packed = &self.bytes[REGISTERS_AT..];
            let before = dense::get(packed, index);
            if before >= rank {
                return false;
            }
            let (at, pair, len) = dense::with(packed, index, rank);
            put(&mut self.bytes, edits, REGISTERS_AT + at, len, &pair[..len]);
            before
        } else {
            match sparse::set(&mut self.bytes, REGISTERS_AT, SPARSE_BYTES_MAX - HEADER, index, rank, edits) {
                RaiseOutcome::Same => return false,
                RaiseOutcome::Raised(before) => before,
                RaiseOutcome::NoRoom(before) => {
                    let mut registers = self.registers();
                    registers.0[index] = rank;
                    self.remember(before, rank, edits);
                    self.become_dense(&mut registers, edits);
                    return true;
                }
            }
        };
        self.remember(before, rank, edits);
        self.out_of_date(edits);
        true
    }

    /// Updates tally and history of a rising register.
    fn remember(&mut self, from: u8, to: u8, edits: &mut Edits) {
        if self.has_history() {
            // A register could rise, so `room` is not 0.
            let estimate = self.history() + (1u128 << 64) as f64 / self.tally.room as f64;
            put(&mut self.bytes, edits, ESTIMATE, 8, &estimate.to_le_bytes());
        }
        self.tally.raised(from, to);
    }

    /// Marks Redis's cached count as out of date.
    fn out_of_date(&mut self, edits: &mut Edits) {
        if self.bytes[STALE] & STALE_BIT == 0 {
            let stale = self.bytes[STALE] | STALE_BIT;
            put(&mut self.bytes, edits, STALE, 1, &[stale]);
        }
    }

    fn become_dense(&mut self, registers: &mut Registers, edits: &mut Edits) {
        let mut bytes = Vec::with_capacity(REGISTERS_AT + PACKED);
        bytes.extend_from_slice(&self.bytes[..REGISTERS_AT]);
        bytes[ENCODING] = DENSE;
        bytes[STALE] |= STALE_BIT;
        bytes.append(&mut registers.pack());
        self.tally = simd::union(registers, &[]);
        replace(&mut self.bytes, edits, bytes);
    }
}

/// Validates a HyperLogLog string of Redis; returns its tally.
fn check(string: &[u8]) -> Result<RegisterTally, CorruptSketch> {
    if string.len() < HEADER || &string[..4] != b"HYLL" {
        return Err(CorruptSketch("it is not a HyperLogLog"));
    }
    let mut registers = Registers::EMPTY;
    match string[4] {
        DENSE => {
            let packed: &[u8; PACKED] =
                string[HEADER..].try_into().map_err(|_| CorruptSketch("the length of a dense HyperLogLog"))?;
            simd::union(&mut registers, &[packed]);
            if registers.0.iter().any(|register| *register > RANK_MAX) {
                return Err(CorruptSketch("a register is higher than any hash"));
            }
        }
        SPARSE => {
            sparse::check(&string[HEADER..])?;
            sparse::raise(&mut registers, &string[HEADER..]);
        }
        _ => return Err(CorruptSketch("a HyperLogLog of an unknown form")),
    }
    Ok(simd::union(&mut registers, &[]))
}

#[cfg(test)]
mod tests;
