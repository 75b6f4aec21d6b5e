//! Where a thread's turns draft their records, one turn after the other.
//!
//! A turn with a single command would spend longer on asking for memory than on counting.

use std::cell::Cell;

use crate::journal::Draft;
use crate::journal::format::Position;

/// Memory beyond this is not kept between turns.
const KEPT_BYTES_MAX: usize = 64 << 10;

thread_local! {
    static KEPT: Cell<Scratch> = const { Cell::new(Scratch { draft: Draft::EMPTY, unfilled: Vec::new() }) };
}

/// Empty, but for the memory.
#[derive(Default)]
pub struct Scratch {
    pub draft: Draft,
    pub unfilled: Vec<Unfilled>,
}

/// A record's place, and which bytes of the draft it is.
pub type Unfilled = (Position, std::ops::Range<usize>);

impl Scratch {
    /// What the turn before has left, if it is over.
    pub fn take() -> Scratch {
        KEPT.take()
    }

    /// Leaves it to the next turn.
    pub fn give_back(self) {
        if self.draft.capacity() <= KEPT_BYTES_MAX {
            KEPT.set(self);
        }
    }
}
