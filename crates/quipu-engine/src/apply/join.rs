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
use crate::split::{LaneEntry, LaneRegistry, fits_lanes};

/// What happens to lanes that were joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LaneUse {
    /// Open ones stay open.
    KeepOpen,
    /// They are closed first.
    Close,
}

/// Room in the journal that a turn was promised, for a run to which lanes lend theirs.
pub struct RoomBudget<'r> {
    /// Whose room it is.
    pub journal: &'r Journal,
    /// What all lanes hold of it.
    pub lanes: &'r LaneRegistry,
    /// Promised to the turn, and not used.
    pub room: &'r mut usize,
    /// What the run may use of it at most.
    pub run_room_max: &'r mut usize,
}

impl RoomBudget<'_> {
    /// Takes the room that lanes hold, and gets them as much again; false if there is none.
    fn borrow_lane_room(&mut self, entry: &mut LaneEntry) -> bool {
        let bytes = entry.take_room();
        self.lanes.consume_room(bytes);
        *self.room += bytes;
        *self.run_room_max += bytes;
        let renewed = self.lanes.reserve_room(self.journal, bytes);
        if renewed {
            entry.set_room(bytes);
        }
        renewed
    }

    fn return_lane_room(&mut self, bytes: usize) {
        self.lanes.return_room(self.journal, bytes);
    }
}

impl Run<'_, '_> {
    /// Joins what lanes hold of a counter that is in memory.
    pub(crate) fn join_lanes(&mut self, hash: u64, name: Name<'_>, lane_use: LaneUse) -> Result<(), Refusal> {
        let index = self.table.shard_of(hash);
        let Some(entry) = self.locks.shard(index).lanes.find_live(name.bytes()) else { return Ok(()) };
        let lanes = entry.lanes().clone();
        let mut closing = lane_use == LaneUse::Close || !lanes.is_open();
        if !closing && !lanes.has_pending() {
            return Ok(());
        }
        if !self.may_expire {
            if !lanes.is_open() {
                return Err(Refusal::NoRoom { reason: "adds that were counted could not be written down".to_owned() });
            }
            if entry.room() == 0 && self.policies.durability(name) > Durability::Memory {
                // Opened when their namespace was in memory mode, they hold no room. Refused, they hold all else still.
                lanes.close();
                return Err(Refusal::NoRoom { reason: "adds that were counted could not be written down".to_owned() });
            }
            // Lanes that could not be joined a second time are closed the first time.
            closing |= !self.room_budget.borrow_lane_room(entry);
        }
        loop {
            if closing {
                lanes.close();
            }
            let sum = lanes.take();
            match self.add_lane_sum(hash, name, sum) {
                Err(refusal) => {
                    lanes.restore(sum);
                    lanes.close();
                    let room = self.locks.shard(index).lanes.find_live(name.bytes()).map(LaneEntry::take_room);
                    self.room_budget.return_lane_room(room.unwrap_or(0));
                    return Err(refusal);
                }
                Ok(_) if closing => {
                    step!("closed");
                    let room = self.locks.shard(index).lanes.mark_drained(&lanes);
                    self.room_budget.return_lane_room(room);
                    return Ok(());
                }
                Ok(Some(value)) if !fits_lanes(value) => closing = true,
                Ok(_) => return Ok(()),
            }
        }
    }

    /// The cell, for a command that does more than read it or add a little to it.
    pub(crate) fn cell_without_lanes(&mut self, name: Name<'_>) -> Option<Cell> {
        self.close_lanes(name);
        self.cell(name)
    }

    /// Joins what lanes hold of a counter and leaves them closed.
    pub(crate) fn close_lanes(&mut self, name: Name<'_>) {
        let hash = self.table.hash(name.bytes());
        if self.locks.shard(self.table.shard_of(hash)).lanes.has_live() {
            // Refused, they hold it still.
            let _ = self.join_lanes(hash, name, LaneUse::Close);
        }
    }

    /// Closes the lanes of a counter that may no longer have any: it is gone, expires, or has too large a value.
    pub(super) fn close_lanes_if_unfit(&mut self, name: Name<'_>, cell: Option<Cell>) {
        if !cell.is_some_and(|cell| cell.expires_at.is_none() && fits_lanes(cell.value)) {
            self.close_lanes(name);
        }
    }

    /// Lets go of what all lanes of the held shards hold: it is deleted with everything else.
    pub(super) fn discard_lanes(&mut self) {
        for shard in self.locks.shards_mut() {
            let room = shard.lanes.drain_all(|lanes| {
                lanes.take();
            });
            self.room_budget.return_lane_room(room);
        }
    }

    fn add_lane_sum(&mut self, hash: u64, name: Name<'_>, sum: i64) -> Result<Option<i64>, Refusal> {
        if sum == 0 {
            return Ok(None);
        }
        // What was counted before a transaction is no part of it.
        let joint_durability = self.joint_durability.take();
        let before = self.cell_without_join(hash, name);
        let added = self.add_to(name, before, sum, None);
        self.joint_durability = joint_durability;
        step!("joined");
        added.map(Some)
    }
}
