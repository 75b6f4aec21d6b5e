//! Joins a counter's lanes: their sum becomes one add, in the value and in the record of the
//! present run.
//!
//! In: the lock of the counter's shard. Out: a value that includes every returned add.
//!
//! Invariants:
//! - a command other than a read or a small add closes the lanes before it reads the value:
//!   otherwise an add could return between its read and its change, and be neither in the reply nor
//!   after it;
//! - if a join is refused, its sum stays in the lanes, which are closed but live: the next access
//!   tries again.
//!
//! Not here: the protocol between lanes and adders (`split`).

use quipu_model::{Cell, Durability, Name, Refusal};

use super::Run;
use crate::base::failpoint::step;
use crate::journal::Journal;
use crate::table::lanes::{LaneEntry, LaneRegistry, fits_lanes};

/// State of the lanes after a join.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LaneUse {
    /// Open lanes stay open.
    KeepOpen,
    /// The lanes are closed before the join.
    Close,
}

/// Journal room of a turn, extended by the room that lanes hold.
pub struct RoomBudget<'r> {
    /// The journal that grants the room.
    pub journal: &'r Journal,
    /// Accounts for the lanes' share of the room.
    pub lanes: &'r LaneRegistry,
    /// Room reserved by the turn and not used.
    pub room: &'r mut usize,
    /// Most of it that the run may use.
    pub run_room_max: &'r mut usize,
}

impl RoomBudget<'_> {
    /// Takes the lanes' room and reserves the same amount again for them; false if there is none.
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
    /// Joins the lanes of a resident counter.
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
                // Opened while their namespace was in memory mode, these lanes hold no room. They
                // keep their sum.
                lanes.close();
                return Err(Refusal::NoRoom { reason: "adds that were counted could not be written down".to_owned() });
            }
            // Lanes without room for another join are closed by this one.
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

    /// The cell, for a command other than a read or a small add.
    pub(crate) fn cell_without_lanes(&mut self, name: Name<'_>) -> Option<Cell> {
        self.close_lanes(name);
        self.cell(name)
    }

    /// Joins a counter's lanes and leaves them closed.
    pub(crate) fn close_lanes(&mut self, name: Name<'_>) {
        let hash = self.table.hash(name.bytes());
        if self.locks.shard(self.table.shard_of(hash)).lanes.has_live() {
            // If refused, the lanes keep their sum.
            let _ = self.join_lanes(hash, name, LaneUse::Close);
        }
    }

    /// Closes the lanes of a counter that may no longer have any: it is removed, expires, or is too
    /// large.
    pub(super) fn close_lanes_if_unfit(&mut self, name: Name<'_>, cell: Option<Cell>) {
        if !cell.is_some_and(|cell| cell.expires_at.is_none() && fits_lanes(cell.value)) {
            self.close_lanes(name);
        }
    }

    /// Discards the lanes' sums in the held shards: a flush deletes them, too.
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
        // Adds before a transaction are not part of it.
        let joint_durability = self.joint_durability.take();
        let before = self.cell_without_join(hash, name);
        let added = self.add_to(name, before, sum, None);
        self.joint_durability = joint_durability;
        step!("joined");
        added.map(Some)
    }
}
