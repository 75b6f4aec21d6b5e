//! The halves of a commit and the work of the background, one step at a time.
//!
//! The driver calls these from its threads; a simulator calls them in any order it likes, between any two steps of its workers, and
//! so runs the shipped code.

use quipu_model::{Name, Refusal};

use crate::engine::Inner;
use crate::journal::format::Position;
use crate::journal::{JournalError, Wait};
use crate::seal::{Seal, seal_unsealed};
use crate::turn::Turn;

/// So many counters are expired under one lock.
const EXPIRE_RUN: usize = 64;

/// Steps of an engine.
pub struct Steps<'e> {
    inner: &'e Inner,
}

impl<'e> Steps<'e> {
    pub(crate) fn new(inner: &'e Inner) -> Steps<'e> {
        Steps { inner }
    }

    /// First half of a commit: hands all that is filled to the operating system.
    pub fn hand_over(&self) {
        self.inner.journal.hand_over();
    }

    /// Second half of a commit: makes what was handed over durable.
    pub fn sync(&self) {
        self.inner.journal.sync();
    }

    /// Whether replies that wait for this may leave.
    pub fn reached(&self, wait: Wait) -> bool {
        self.inner.journal.failure().is_none() && self.inner.journal.reached(wait)
    }

    /// Prepares segments if room is running out.
    pub fn prepare(&self) -> Result<(), JournalError> {
        if self.inner.journal.room_is_low() { self.inner.journal.prepare() } else { Ok(()) }
    }

    /// Lets the control file know how far the journal is synced.
    pub fn note_synced(&self) -> Result<(), JournalError> {
        self.inner.journal.note_synced(false)
    }

    /// How many shards the table has: some steps go shard by shard.
    pub fn shards(&self) -> usize {
        self.inner.table.shard_count()
    }

    /// Where the next record will stand.
    pub fn reserved(&self) -> Position {
        self.inner.journal.reserved()
    }

    /// Removes counters of a shard whose time has come, a bounded number of them; returns how many. Without room none is.
    pub fn expire(&self, shard: usize) -> usize {
        let now = self.inner.now();
        let overdue: Vec<_> = self.inner.table.lock(shard).overdue(now, EXPIRE_RUN).collect();
        let mut turn = Turn::new(self.inner);
        for name in &overdue {
            if !turn.expire(Name::new(name).expect("names in the table have been checked")) {
                break;
            }
        }
        drop(turn);
        let left = self.inner.table.lock(shard).overdue(now, EXPIRE_RUN).filter(|name| overdue.contains(name)).count();
        overdue.len() - left
    }

    /// Whether the journal has grown enough to seal all cells and cut it. Twice what the last seal left, so that sealing costs no more than
    /// writing did.
    pub fn wants_seal(&self) -> bool {
        self.inner.journal.size().0 > self.inner.options.journal_bytes_max.max(2 * self.inner.journal.sealed_bytes())
    }

    /// Begins to seal all cells.
    pub fn seal_begin(&self) -> Result<Seal, Refusal> {
        Seal::begin(self.inner)
    }

    /// Seals one more shard; true once all are.
    pub fn seal_step(&self, seal: &mut Seal) -> Result<bool, Refusal> {
        seal.step(self.inner)
    }

    /// Makes the seal durable and cuts the journal.
    pub fn seal_finish(&self, seal: Seal) -> Result<(), JournalError> {
        seal.finish(self.inner)
    }

    /// Seals some changed counters of memory namespaces in a shard; whether there are more.
    pub fn seal_unsealed(&self, shard: usize) -> Result<bool, Refusal> {
        seal_unsealed(self.inner, shard)
    }
}
