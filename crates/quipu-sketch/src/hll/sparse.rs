//! Runs of registers: Redis's sparse format while few registers are set.
//!
//! ```text
//! 00llllll            ZERO   l+1 registers are 0 (1 to 64)
//! 01llllll llllllll   XZERO  l+1 registers are 0 (1 to 16384)
//! 1vvvvvll            VAL    l+1 registers (1 to 4) are v+1 (1 to 32)
//! ```
//!
//! Several strings encode the same registers. This module produces the same one as Redis after the
//! same adds, so a client cannot distinguish the two servers. It splits a run into at most three.
//! Then it walks at most five runs, from the preceding one on, and joins neighbours of equal value.

use super::{REGISTERS, dense::Registers};
use crate::{CorruptSketch, Edits, edit::put};

/// Highest value of a run; a higher register makes the string dense.
pub const VALUE_MAX: u8 = 32;

/// Runs of an empty sketch.
pub const EMPTY: [u8; 2] = [0x7f, 0xff];

const ZERO_RUN_MAX: usize = 64;
const VALUE_RUN_MAX: usize = 4;

/// Number of runs that are examined after a change.
const JOIN_RUNS: usize = 5;

/// Neighbouring registers of one value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegisterRun {
    /// Value of the registers.
    pub value: u8,
    /// Number of registers.
    pub len: usize,
    /// Encoded length in bytes.
    pub bytes: usize,
}

impl RegisterRun {
    /// Decodes the first run. `None` at the end, or for half a run.
    #[inline]
    fn read(runs: &[u8]) -> Option<RegisterRun> {
        let first = *runs.first()?;
        Some(if first & 0x80 != 0 {
            RegisterRun { value: (first >> 2 & 31) + 1, len: (first & 3) as usize + 1, bytes: 1 }
        } else if first & 0x40 == 0 {
            RegisterRun { value: 0, len: first as usize + 1, bytes: 1 }
        } else {
            RegisterRun { value: 0, len: ((first as usize & 63) << 8 | *runs.get(1)? as usize) + 1, bytes: 2 }
        })
    }

    fn write(value: u8, len: usize, into: &mut RunBuffer) {
        let less = len.wrapping_sub(1);
        match (value, len) {
            (_, 0) => {}
            (0, 1..=ZERO_RUN_MAX) => into.push(less as u8),
            (0, _) => {
                into.push(0x40 | (less >> 8) as u8);
                into.push(less as u8);
            }
            _ => into.push(0x80 | (value - 1) << 2 | less as u8),
        }
    }
}

/// Buffer of at most three runs.
#[derive(Default)]
struct RunBuffer {
    bytes: [u8; 6],
    len: usize,
}

impl RunBuffer {
    fn push(&mut self, byte: u8) {
        self.bytes[self.len] = byte;
        self.len += 1;
    }
}

/// Checks that the runs are whole and cover exactly all registers.
pub fn check(runs: &[u8]) -> Result<(), CorruptSketch> {
    let (mut at, mut covered) = (0, 0);
    while at < runs.len() {
        let run =
            RegisterRun::read(&runs[at..]).ok_or(CorruptSketch("half a run at the end of a sparse HyperLogLog"))?;
        at += run.bytes;
        covered += run.len;
        if covered > REGISTERS {
            return Err(CorruptSketch("a sparse HyperLogLog has too many registers"));
        }
    }
    if covered == REGISTERS { Ok(()) } else { Err(CorruptSketch("a sparse HyperLogLog has too few registers")) }
}

/// Raises each register to the value of its run, if that is higher.
pub fn raise(registers: &mut Registers, runs: &[u8]) {
    let (mut at, mut first) = (0, 0);
    while let Some(run) = RegisterRun::read(&runs[at..]) {
        if run.value > 0 {
            for register in &mut registers.0[first..first + run.len] {
                *register = (*register).max(run.value);
            }
        }
        at += run.bytes;
        first += run.len;
    }
}

/// Result of raising a register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RaiseOutcome {
    /// It was as high already.
    Same,
    /// It rose from this value.
    Raised(u8),
    /// It has this value, and cannot rise in the sparse form.
    NoRoom(u8),
}

/// Raises register `index` to `rank`. The runs begin at `start` of `bytes`. A change that would
/// make them longer than `len_max` is refused.
pub fn set(
    bytes: &mut Vec<u8>,
    start: usize,
    len_max: usize,
    index: usize,
    rank: u8,
    edits: &mut Edits,
) -> RaiseOutcome {
    let (mut at, mut first) = (start, 0);
    let mut before = start;
    let run = loop {
        let run = RegisterRun::read(&bytes[at..]).expect("the runs cover all registers");
        if index < first + run.len {
            break run;
        }
        before = at;
        at += run.bytes;
        first += run.len;
    };
    if run.value >= rank {
        return RaiseOutcome::Same;
    }
    if rank > VALUE_MAX {
        return RaiseOutcome::NoRoom(run.value);
    }
    let mut parts = RunBuffer::default();
    RegisterRun::write(run.value, index - first, &mut parts);
    RegisterRun::write(rank, 1, &mut parts);
    RegisterRun::write(run.value, first + run.len - index - 1, &mut parts);
    if parts.len > run.bytes && bytes.len() - start + parts.len - run.bytes > len_max {
        return RaiseOutcome::NoRoom(run.value);
    }
    put(bytes, edits, at, run.bytes, &parts.bytes[..parts.len]);
    join(bytes, before, edits);
    RaiseOutcome::Raised(run.value)
}

/// Joins neighbours of one value, starting with the run at `at`.
fn join(bytes: &mut Vec<u8>, mut at: usize, edits: &mut Edits) {
    for _ in 0..JOIN_RUNS {
        let Some(run) = RegisterRun::read(&bytes[at..]) else { return };
        if run.value > 0
            && let Some(next) = RegisterRun::read(&bytes[at + run.bytes..])
            && next.value == run.value
            && run.len + next.len <= VALUE_RUN_MAX
        {
            let mut joined = RunBuffer::default();
            RegisterRun::write(run.value, run.len + next.len, &mut joined);
            put(bytes, edits, at, run.bytes + next.bytes, &joined.bytes[..joined.len]);
        } else {
            at += run.bytes;
        }
    }
}
