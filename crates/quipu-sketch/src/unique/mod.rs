//! Distinct items in less memory and with less error than HyperLogLog. A sketch begins as a list of
//! tokens, and then becomes an UltraLogLog (Ertl, 2023).
//!
//! ```text
//! 0        1        2 .. 8  8 .. 16            16 ..
//! 1 = few  history  0       0                  tokens, u32 LE, ascending, at most 2,000
//! 2 = many history  0       estimate, f64 LE   8,192 registers, a byte each
//! ```
//!
//! The list gives the count of its tokens, corrected for the few that coincide: at 2,000 items the
//! error is 0.005 %. One token beyond the list's bound converts it: all tokens go to the registers
//! that they would have gone to from the beginning.
//!
//! A sketch has a history while it was filled here, item by item, and never merged. Then each item
//! that changes a register adds the inverse of the probability of such a change. This martingale
//! estimate begins with the list's estimate, and has an error of 0.658/√m. A merge ends the history
//! for good. Then the estimate is the most likely number of items for the registers
//! ([`likelihood`]), with an error of 0.761/√m.
//!
//! Items are hashed under a secret [`Key`]. Merging is a union: it may be repeated, in any order.

pub mod likelihood;
mod register;
mod token;

use likelihood::Evidence;
use register::{P, REGISTERS};
use token::HashToken;

use crate::edit::{put, replace};
use crate::{CorruptSketch, Edits, Interval, Key};

/// Most tokens in a list. A list larger than the registers would waste memory; 2,000 tokens take a
/// little less.
pub const TOKENS_MAX: usize = 2_000;

/// Error of an estimate from registers, times √m.
const ERROR_REGISTERS: f64 = 0.761;

/// Error of an estimate from a history, times √m.
const ERROR_HISTORY: f64 = 0.658;

/// Most tokens of a union that are merged as a list; more are counted in registers.
const UNION_TOKENS_MAX: usize = 1 << 15;

const HEADER: usize = 16;
const ESTIMATE: usize = 8;
const FEW: u8 = 1;
const MANY: u8 = 2;

/// A sketch of distinct items.
#[derive(Debug, Clone)]
pub struct Unique {
    /// Bytes as drawn above; tokens ascend, and registers are valid states.
    bytes: Vec<u8>,
    /// Number of the 2⁶⁴ hashes that would change a register. Meaningless while there are tokens.
    room: u128,
}

impl Default for Unique {
    fn default() -> Unique {
        Unique::new()
    }
}

impl Unique {
    /// Creates an empty sketch, with a history.
    pub fn new() -> Unique {
        let mut bytes = vec![0; HEADER];
        bytes[..2].copy_from_slice(&[FEW, 1]);
        Unique { bytes, room: 1 << 64 }
    }

    /// Decodes the output of [`bytes`](Unique::bytes).
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Unique, CorruptSketch> {
        let Some((header, rest)) = bytes.split_first_chunk::<HEADER>() else {
            return Err(CorruptSketch("uniques are too short"));
        };
        let (form, history) = (header[0], header[1]);
        let estimate = f64::from_le_bytes(*header.last_chunk().expect("16 bytes have 8"));
        if history > 1 || header[2..8] != [0; 6] || !(estimate >= 0.0 && estimate.is_finite()) {
            return Err(CorruptSketch("the header of uniques"));
        }
        if (form == FEW || history == 0) && estimate.to_bits() != 0 {
            return Err(CorruptSketch("uniques without a history have an estimate of it"));
        }
        let mut room = 1 << 64;
        match form {
            FEW => {
                let (tokens, []) = rest.as_chunks::<4>() else { return Err(CorruptSketch("half a token")) };
                let tokens = tokens.iter().map(|bytes| HashToken::from_le_bytes(*bytes));
                if tokens.len() > TOKENS_MAX
                    || !tokens.clone().all(token::is_token)
                    || !tokens.is_sorted_by(|a, b| a < b)
                {
                    return Err(CorruptSketch("a list of tokens"));
                }
            }
            MANY => {
                if rest.len() != REGISTERS || !rest.iter().all(|register| register::is_state(*register)) {
                    return Err(CorruptSketch("registers of uniques"));
                }
                room = room_of(rest);
            }
            _ => return Err(CorruptSketch("uniques of an unknown form")),
        }
        Ok(Unique { bytes, room })
    }

    /// Returns the whole state, as drawn above.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// As [`bytes`](Unique::bytes), but consumes the sketch.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Returns its memory use in bytes.
    pub fn memory(&self) -> usize {
        size_of::<Unique>() + self.bytes.capacity()
    }

    /// Counts an item; returns true if the sketch changed.
    #[inline]
    pub fn add(&mut self, key: &Key, item: &[u8], edits: &mut Edits) -> bool {
        self.add_hash(key.hash(item), edits)
    }

    /// Counts an item by its hash.
    #[inline]
    pub fn add_hash(&mut self, hash: u64, edits: &mut Edits) -> bool {
        if self.is_dense() {
            let (index, rank) = register::split(hash);
            let before = self.bytes[HEADER + index];
            // Most ranks are lower than the three that a register remembers.
            if rank + 2 < u32::from(before >> 2) {
                return false;
            }
            let after = register::with_rank(before, rank);
            after != before && self.change(index, after, edits)
        } else {
            self.add_token(token::shorten(hash), edits)
        }
    }

    /// Returns the estimated number of distinct items, rounded.
    pub fn count(&self) -> u64 {
        self.estimate().round() as u64
    }

    /// Returns the estimated number of distinct items.
    pub fn estimate(&self) -> f64 {
        if self.has_history() && self.is_dense() { self.history() } else { self.likely() }
    }

    /// Returns the relative standard error of the estimate.
    pub fn rse(&self) -> f64 {
        let m = REGISTERS as f64;
        match (self.is_dense(), self.has_history()) {
            (false, _) => TOKEN_RSE,
            (true, true) => ERROR_HISTORY / m.sqrt(),
            (true, false) => ERROR_REGISTERS / m.sqrt(),
        }
    }

    /// Returns true if it has a history, which gives the better estimate.
    pub fn has_history(&self) -> bool {
        self.bytes[1] == 1
    }

    /// Ends the history for good: from now on estimates use the registers alone. For a sketch that
    /// several nodes fill.
    pub fn end_history(&mut self, edits: &mut Edits) {
        if self.has_history() {
            let mut header = [0; HEADER];
            header[0] = self.bytes[0];
            put(&mut self.bytes, edits, 0, HEADER, &header);
        }
    }

    /// Returns true if it has registers instead of a list of tokens.
    pub fn is_dense(&self) -> bool {
        self.bytes[0] == MANY
    }

    /// Merges others, under the same key. The history ends, unless there are no others.
    pub fn merge(&mut self, others: &[&Unique], edits: &mut Edits) {
        if others.is_empty() {
            return;
        }
        self.end_history(edits);
        let mut bytes = self.bytes[..HEADER].to_vec();
        let all: Vec<&Unique> = others.iter().copied().chain([&*self]).collect();
        match union_of_tokens(&all, TOKENS_MAX) {
            Some(tokens) => bytes.extend(tokens.into_iter().flat_map(HashToken::to_le_bytes)),
            None => {
                bytes[0] = MANY;
                bytes.extend_from_slice(&*union_of_registers(&all));
                self.room = room_of(&bytes[HEADER..]);
            }
        }
        replace(&mut self.bytes, edits, bytes);
    }

    /// Returns the estimated number of distinct items in the union.
    pub fn union(sketches: &[&Unique]) -> Interval {
        let (estimate, rse) = union_estimate(sketches);
        Interval::around(estimate, rse * estimate, (0.0, f64::INFINITY))
    }

    /// Returns the estimated number of items in both: |a| + |b| − |a ∪ b|, each from its registers.
    /// The error is of the size of the union's. A small intersection of two large sets is thus
    /// below resolution.
    pub fn intersection(one: &Unique, two: &Unique) -> Interval {
        let (all, rse) = union_estimate(&[one, two]);
        let (a, b) = (one.likely(), two.likely());
        Interval::around(a + b - all, rse * (a * a + b * b + all * all).sqrt(), (0.0, a.min(b)))
    }

    /// Returns the estimated number of items in the first and not in the second: |a ∪ b| − |b|.
    pub fn difference(one: &Unique, two: &Unique) -> Interval {
        let (all, rse) = union_estimate(&[one, two]);
        let (a, b) = (one.likely(), two.likely());
        Interval::around(all - b, rse * (b * b + all * all).sqrt(), (0.0, a))
    }

    fn history(&self) -> f64 {
        f64::from_le_bytes(self.bytes[ESTIMATE..HEADER].try_into().expect("it is 8 bytes"))
    }

    /// Returns the estimate from tokens or registers alone.
    fn likely(&self) -> f64 {
        if self.is_dense() { register_evidence(&self.bytes[HEADER..]) } else { token_evidence(self.tokens()) }
            .estimate()
    }

    fn tokens(&self) -> impl ExactSizeIterator<Item = HashToken> + Clone {
        let tokens = if self.is_dense() { &[] } else { self.bytes[HEADER..].as_chunks::<4>().0 };
        tokens.iter().map(|bytes| HashToken::from_le_bytes(*bytes))
    }

    fn add_token(&mut self, token: HashToken, edits: &mut Edits) -> bool {
        let tokens = self.bytes[HEADER..].as_chunks::<4>().0;
        let Err(at) = tokens.binary_search_by_key(&token, |bytes| HashToken::from_le_bytes(*bytes)) else {
            return false;
        };
        if tokens.len() < TOKENS_MAX {
            put(&mut self.bytes, edits, HEADER + 4 * at, 0, &token.to_le_bytes());
            return true;
        }
        let mut bytes = self.bytes[..HEADER].to_vec();
        bytes[0] = MANY;
        if self.has_history() {
            let all = self.tokens().chain([token]);
            bytes[ESTIMATE..].copy_from_slice(&token_evidence(all).estimate().to_le_bytes());
        }
        bytes.resize(HEADER + REGISTERS, 0);
        for token in self.tokens().chain([token]) {
            let (index, rank) = token::split(token);
            bytes[HEADER + index] = register::with_rank(bytes[HEADER + index], rank);
        }
        self.room = room_of(&bytes[HEADER..]);
        replace(&mut self.bytes, edits, bytes);
        true
    }

    /// Changes a register; the caller has checked that it can change.
    fn change(&mut self, index: usize, after: u8, edits: &mut Edits) -> bool {
        let before = self.bytes[HEADER + index];
        put(&mut self.bytes, edits, HEADER + index, 1, &[after]);
        if self.has_history() {
            let estimate = self.history() + (1u128 << 64) as f64 / self.room as f64;
            put(&mut self.bytes, edits, ESTIMATE, 8, &estimate.to_le_bytes());
        }
        self.room -= u128::from(register::room(before) - register::room(after));
        true
    }
}

/// Relative standard error of a list of tokens.
///
/// The count loses items if tokens coincide: n²/2 · Σ c² pairs of n items do, with Σ c² = 2⁻²⁶/3
/// over all tokens. The deviation of that number is its root, n/√(6·2²⁶).
const TOKEN_RSE: f64 = 4.984e-5;

fn room_of(registers: &[u8]) -> u128 {
    registers.iter().map(|register| u128::from(ROOM[usize::from(*register)])).sum()
}

/// [`register::room`] of every byte that is a state.
static ROOM: [u64; 256] = {
    let mut rooms = [0; 256];
    let mut register = 0;
    while register < 4 * register::RANK_MAX as usize + 4 {
        rooms[register] = register::room(register as u8);
        register += 1;
    }
    rooms
};

fn register_evidence(registers: &[u8]) -> Evidence {
    let mut states = [0u32; 256];
    for register in registers {
        states[usize::from(*register)] += 1;
    }
    let mut evidence = Evidence { happened: [0; 65], absent: 0 };
    for (state, count) in states.into_iter().enumerate().skip(1).filter(|(_, count)| *count > 0) {
        let rank = state as u32 >> 2;
        for (came, rank) in
            [(true, rank), (state & 2 != 0, rank.wrapping_sub(1)), (state & 1 != 0, rank.wrapping_sub(2))]
        {
            if came {
                evidence.happened[(P + rank).min(64) as usize] += count;
            }
        }
    }
    evidence.absent = room_of(registers);
    evidence
}

fn token_evidence(tokens: impl Iterator<Item = HashToken>) -> Evidence {
    let mut evidence = Evidence { happened: [0; 65], absent: 1 << 64 };
    for token in tokens {
        let chance = (token::BITS + 1 + (token & 63)).min(64);
        evidence.happened[chance as usize] += 1;
        evidence.absent -= 1 << (64 - chance);
    }
    evidence
}

/// Returns all tokens of sketches without registers, unless they exceed `most`.
fn union_of_tokens(sketches: &[&Unique], most: usize) -> Option<Vec<HashToken>> {
    let total: usize = sketches.iter().map(|sketch| sketch.tokens().len()).sum();
    if sketches.iter().any(|sketch| sketch.is_dense()) || total > UNION_TOKENS_MAX {
        return None;
    }
    let mut tokens: Vec<HashToken> = sketches.iter().flat_map(|sketch| sketch.tokens()).collect();
    tokens.sort_unstable();
    tokens.dedup();
    (tokens.len() <= most).then_some(tokens)
}

fn union_of_registers(sketches: &[&Unique]) -> Box<[u8; REGISTERS]> {
    let mut registers = Box::new([0; REGISTERS]);
    for sketch in sketches {
        if sketch.is_dense() {
            for (register, other) in registers.iter_mut().zip(&sketch.bytes[HEADER..]) {
                *register = register::join(*register, *other);
            }
        }
        for token in sketch.tokens() {
            let (index, rank) = token::split(token);
            registers[index] = register::with_rank(registers[index], rank);
        }
    }
    registers
}

/// Returns the estimate for the union, and its relative standard error.
fn union_estimate(sketches: &[&Unique]) -> (f64, f64) {
    match union_of_tokens(sketches, UNION_TOKENS_MAX) {
        Some(tokens) => (token_evidence(tokens.into_iter()).estimate(), TOKEN_RSE),
        None => {
            let registers = union_of_registers(sketches);
            (register_evidence(&*registers).estimate(), ERROR_REGISTERS / (REGISTERS as f64).sqrt())
        }
    }
}

#[cfg(test)]
mod tests;
