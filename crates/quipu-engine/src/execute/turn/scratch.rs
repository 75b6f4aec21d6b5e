//! Keeps the memory in which a thread's turns draft their records.
//!
//! For a turn with a single command, an allocation would take longer than the add.

use std::cell::Cell;

use crate::journal::RecordBuilder;
use crate::journal::format::Position;

/// Memory beyond this is not kept between turns.
const SCRATCH_BYTES_MAX: usize = 64 << 10;

thread_local! {
    static SCRATCH: Cell<Scratch> = const { Cell::new(Scratch { builder: RecordBuilder::EMPTY, unfilled: Vec::new() }) };
}

/// Empty, apart from its allocated memory.
#[derive(Default)]
pub struct Scratch {
    pub builder: RecordBuilder,
    pub unfilled: Vec<UnfilledRecord>,
}

/// A record's position in the journal, and its range in the draft.
pub type UnfilledRecord = (Position, std::ops::Range<usize>);

impl Scratch {
    /// Takes the previous turn's memory, if that turn is over.
    pub fn take() -> Scratch {
        SCRATCH.take()
    }

    /// Leaves the memory to the next turn.
    pub fn put_back(self) {
        if self.builder.capacity() <= SCRATCH_BYTES_MAX {
            SCRATCH.set(self);
        }
    }
}
