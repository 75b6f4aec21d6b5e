//! Joins a counter's lanes: what they hold becomes one add, in the value and in the record of whoever looks.
//!
//! In: the lock of the counter's shard. Out: a value that has every add in it which has returned.
//!
//! Invariants:
//! - a command that does anything but read, or add a little, closes the lanes before it looks: else an add could return between its look and its
//!   change and be neither in what it replies nor after it;
//! - what is refused stays in the lanes, which are closed but live: whoever looks next tries again.
//!
//! Not here: how lanes meet adders (`split`).

use quipu_model::{Cell, Durability, Name, Refusal};

use super::Run;
use crate::failpoint::step;
use crate::journal::Journal;
use crate::split::{Entry, SplitList, fits};

/// What happens to lanes that were joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lanes {
    /// Open ones stay open.
    Stay,
    /// They are closed first.
    Close,
}

/// Room in the journal that a turn was promised, for a run to which lanes lend theirs.
pub struct Allowance<'r> {
    /// Whose room it is.
    pub journal: &'r Journal,
    /// What all lanes hold of it.
    pub splits: &'r SplitList,
    /// Promised to the turn, and not used.
    pub room: &'r mut usize,
    /// What the run may use of it at most.
    pub promised: &'r mut usize,
}

impl Allowance<'_> {
    /// Takes the room that lanes hold, and gets them as much again; false if there is none.
    fn take(&mut self, entry: &mut Entry) -> bool {
        let bytes = entry.take_room();
        self.splits.spend_room(bytes);
        *self.room += bytes;
        *self.promised += bytes;
        let renewed = self.splits.hold_room(self.journal, bytes);
        if renewed {
            entry.hold_room(bytes);
        }
        renewed
    }

    fn give_back(&mut self, bytes: usize) {
        self.splits.return_room(self.journal, bytes);
    }
}

impl Run<'_, '_> {
    /// Joins what lanes hold of a counter that is in memory.
    pub(crate) fn join(&mut self, hash: u64, name: Name<'_>, lanes: Lanes) -> Result<(), Refusal> {
        let index = self.table.shard_of(hash);
        let Some(entry) = self.held.shard(index).splits.live(name.bytes()) else { return Ok(()) };
        let split = entry.split().clone();
        let mut closing = lanes == Lanes::Close || !split.is_open();
        if !closing && !split.holds() {
            return Ok(());
        }
        if !self.may_expire {
            if !split.is_open() {
                return Err(Refusal::NoRoom { reason: "adds that were counted could not be written down".to_owned() });
            }
            if entry.room() == 0 && self.policies.durability(name) > Durability::Memory {
                // Opened when their namespace was in memory mode, they hold no room. Refused, they hold all else still.
                split.close();
                return Err(Refusal::NoRoom { reason: "adds that were counted could not be written down".to_owned() });
            }
            // Lanes that could not be joined a second time are closed the first time.
            closing |= !self.allowance.take(entry);
        }
        loop {
            if closing {
                split.close();
            }
            let sum = split.take();
            match self.add_joined(hash, name, sum) {
                Err(refusal) => {
                    split.give_back(sum);
                    split.close();
                    let room = self.held.shard(index).splits.live(name.bytes()).map(Entry::take_room);
                    self.allowance.give_back(room.unwrap_or(0));
                    return Err(refusal);
                }
                Ok(_) if closing => {
                    step!("closed");
                    let room = self.held.shard(index).splits.settle(&split);
                    self.allowance.give_back(room);
                    return Ok(());
                }
                Ok(Some(value)) if !fits(value) => closing = true,
                Ok(_) => return Ok(()),
            }
        }
    }

    /// The cell, for a command that does more than read it or add a little to it.
    pub(crate) fn sole_cell(&mut self, name: Name<'_>) -> Option<Cell> {
        self.close_lanes(name);
        self.cell(name)
    }

    /// Joins what lanes hold of a counter and leaves them closed.
    pub(crate) fn close_lanes(&mut self, name: Name<'_>) {
        let hash = self.table.hash(name.bytes());
        if self.held.shard(self.table.shard_of(hash)).splits.are_live() {
            // Refused, they hold it still.
            let _ = self.join(hash, name, Lanes::Close);
        }
    }

    /// Closes the lanes of a counter that may no longer have any: it is gone, expires, or has too large a value.
    pub(super) fn close_unfit(&mut self, name: Name<'_>, cell: Option<Cell>) {
        if !cell.is_some_and(|cell| cell.expires_at.is_none() && fits(cell.value)) {
            self.close_lanes(name);
        }
    }

    /// Lets go of what all lanes of the held shards hold: it is deleted with everything else.
    pub(super) fn drop_lanes(&mut self) {
        for shard in self.held.each() {
            let room = shard.splits.settle_all(|split| {
                split.take();
            });
            self.allowance.give_back(room);
        }
    }

    fn add_joined(&mut self, hash: u64, name: Name<'_>, sum: i64) -> Result<Option<i64>, Refusal> {
        if sum == 0 {
            return Ok(None);
        }
        // What was counted before a transaction is no part of it.
        let together = self.together.take();
        let before = self.cell_as_it_is(hash, name);
        let added = self.add_to(name, before, sum, None);
        self.together = together;
        step!("joined");
        added.map(Some)
    }
}
