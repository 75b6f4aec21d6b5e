//! Holds back replies until the journal has reached the durability that they need.

use std::task::Waker;

use quipu_model::Durability;

use super::format::Position;
use crate::base::sync::{Mutex, lock};

/// Journal positions that must be reached before a reply may leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Wait {
    /// Position that must be written to the file.
    pub written: Position,
    /// Position that must be synced.
    pub synced: Position,
}

impl Wait {
    /// The wait of a reply that includes everything before `position`.
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

/// Wakers to call when the journal advances. A waiter registers again only after a wake-up, or with
/// more to wait for. So there are about as many as connections and library threads.
#[derive(Default)]
pub struct Waiters(Mutex<Vec<Waker>>);

impl Waiters {
    /// Registers a waker for the next step of a commit.
    pub fn add(&self, waker: &Waker) {
        lock(&self.0).push(waker.clone());
    }

    /// Wakes all waiters. A waiter not yet served commits for itself: none may depend on one that
    /// has gone away.
    pub fn wake(&self) {
        let waiting = std::mem::take(&mut *lock(&self.0));
        for waker in waiting {
            waker.wake();
        }
    }
}
