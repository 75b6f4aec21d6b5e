//! Replies that wait until what they include is as durable as it must be.

use std::task::Waker;

use quipu_model::Durability;

use super::format::Position;
use crate::sync::{Mutex, lock};

/// How far the journal must have come before a reply may leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Wait {
    /// Handed to the operating system up to here.
    pub written: Position,
    /// Synced up to here.
    pub synced: Position,
}

impl Wait {
    /// What a reply that includes everything before this position waits for.
    #[must_use]
    pub fn for_durability(durability: Durability, position: Position) -> Wait {
        match durability {
            Durability::Memory => Wait::default(),
            Durability::Relaxed => Wait { written: position, synced: Position(0) },
            Durability::Durable => Wait { written: position, synced: position },
        }
    }

    /// Waits for both.
    #[must_use]
    pub fn and(self, other: Wait) -> Wait {
        Wait { written: self.written.max(other.written), synced: self.synced.max(other.synced) }
    }
}

/// Who wants to be woken when the journal has come further. Each asks again only after it was woken, or when it has more to wait for,
/// so there are about as many as connections and library threads.
#[derive(Default)]
pub struct Waiters(Mutex<Vec<Waker>>);

impl Waiters {
    /// Asks to be woken after the next step of a commit.
    pub fn add(&self, waker: &Waker) {
        lock(&self.0).push(waker.clone());
    }

    /// Wakes everyone. Those that are not served yet commit for themselves: none may depend on one that has gone away.
    pub fn wake(&self) {
        let waiting = std::mem::take(&mut *lock(&self.0));
        for waker in waiting {
            waker.wake();
        }
    }
}
