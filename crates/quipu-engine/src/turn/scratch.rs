//! Where a thread's turns draft their records, one turn after the other.
//!
//! A turn with a single command would spend longer on asking for memory than on counting.

use std::cell::Cell;

use crate::journal::RecordBuilder;
use crate::journal::format::Position;

/// Memory beyond this is not kept between turns.
const SCRATCH_BYTES_MAX: usize = 64 << 10;

thread_local! {
    static SCRATCH: Cell<Scratch> = const { Cell::new(Scratch { builder: RecordBuilder::EMPTY, unfilled: Vec::new() }) };
}

/// Empty, but for the memory.
#[derive(Default)]
pub struct Scratch {
    pub builder: RecordBuilder,
    pub unfilled: Vec<UnfilledRecord>,
}

/// A record's place, and which bytes of the draft it is.
pub type UnfilledRecord = (Position, std::ops::Range<usize>);

impl Scratch {
    /// What the turn before has left, if it is over.
    pub fn take() -> Scratch {
        SCRATCH.take()
    }

    /// Leaves it to the next turn.
    pub fn put_back(self) {
        if self.builder.capacity() <= SCRATCH_BYTES_MAX {
            SCRATCH.set(self);
        }
    }
}
