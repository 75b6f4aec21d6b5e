//! Adds without returning a value: into a lane while the counter's lanes are open, else by the
//! general path.
//!
//! In: the lanes of a counter. Out: counted or refused; the caller waits for nothing.
//!
//! A counter with frequent adds is split: the add that reaches the rate opens its lanes. A visit in
//! every window joins the lanes, and closes them if no add came since the last visit. The criterion
//! is the rate of adds, not lock contention. A single thread gains as much from avoiding the lock,
//! and contending threads add often anyway.
//!
//! Not here: the lanes (`split`), joining (`apply/join`).

use quipu_model::{Command, Durability, Name, Refusal, Reply};

use crate::apply::LaneUse;
use crate::apply::targets::counter_record_bytes_max;
use crate::base::failpoint::step;
use crate::core::load::Load;
use crate::execute::turn::{NotRun, Turn, expect_run};
use crate::journal::format::{ENTRY_BYTES_MAX, RECORD_OVERHEAD_BYTES_MAX};
use crate::table::Residency;
use crate::table::lanes::{LaneAdd, LaneSet, fits_lanes};

/// Outcome of an add that returns no value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AddOutcome {
    /// It counts.
    Added,
    /// It does not count, now or later.
    Refused(Refusal),
    /// It counts once or not at all: its lane was closed during the add, and the lane's sum could
    /// not be joined.
    Unknown,
}

/// Purpose of a visit to lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LaneVisit {
    /// Joins the lanes.
    Join,
    /// Joins the lanes, and closes them if no add came since the last visit of this kind.
    CloseIdle,
    /// Joins and closes the lanes.
    Close,
}

impl Turn<'_> {
    /// Adds without returning the value. [`Turn::flush_lanes`] waits for its durability.
    pub(crate) fn add_to_lanes(&mut self, lanes: &LaneSet, delta: i64) -> Result<AddOutcome, Load> {
        match lanes.add(delta) {
            LaneAdd::Added => Ok(AddOutcome::Added),
            LaneAdd::NotAdded => self.count_without_lanes(lanes, delta),
            LaneAdd::Full => {
                self.join_full(lanes);
                Ok(AddOutcome::Added)
            }
            LaneAdd::Late => Ok(if self.join_late(lanes) { AddOutcome::Added } else { AddOutcome::Unknown }),
        }
    }

    /// Makes the replies of this turn wait until all earlier counts are as durable as the namespace
    /// asks. Refused if they could not be journaled.
    pub(crate) fn flush_lanes(&mut self, lanes: &LaneSet) -> Result<(), NotRun> {
        let name = lanes.name();
        let (shard, has_room) = self.lock_for_join(name, || lanes.has_pending());
        let durability = self.policies.durability(name);
        if self.shard_of_lanes(lanes).lanes.is_live(name.bytes()) {
            self.check_resident(name, shard, false)?;
        }
        // Adds by the general path are in the shard's newest record or an earlier one.
        expect_run(&mut self.open_run).raise_durability(durability);
        Ok(self.with_run(None, has_room, |run| run.join_lanes(lanes.hash(), name, LaneUse::KeepOpen))?)
    }

    /// Adds by the general path, and opens the lanes if that path was taken often lately.
    pub(crate) fn count_without_lanes(&mut self, lanes: &LaneSet, delta: i64) -> Result<AddOutcome, Load> {
        match self.run(&Command::Add { name: lanes.name(), delta, shard_key: None })? {
            Reply::Refused(refusal) => Ok(AddOutcome::Refused(refusal)),
            _ => {
                if lanes.count_general_add() >= self.engine.options.split_after {
                    self.open_lanes(lanes);
                }
                Ok(AddOutcome::Added)
            }
        }
    }

    /// Joins lanes after one has become full. If refused, the sum stays in the lanes and counts.
    pub(crate) fn join_full(&mut self, lanes: &LaneSet) {
        let (_, has_room) = self.lock_for_join(lanes.name(), || true);
        let _ = self.with_run(None, has_room, |run| run.join_lanes(lanes.hash(), lanes.name(), LaneUse::KeepOpen));
    }

    /// Joins the sum of an add during which its lane was closed. False if the join is refused or
    /// the counter is not resident: then the next visit tries again.
    pub(crate) fn join_late(&mut self, lanes: &LaneSet) -> bool {
        let (hash, name) = (lanes.hash(), lanes.name());
        let (shard, has_room) = self.lock_for_join(name, || true);
        if !lanes.has_pending() {
            // The closing thread has joined it, or another late add has.
            return true;
        }
        if self.engine.is_closed() {
            // After the close's last visit no thread joins any more.
            return false;
        }
        self.shard_of_lanes(lanes).lanes.mark_live(lanes);
        self.check_resident(name, shard, false).is_ok()
            && self.with_run(None, has_room, |run| run.join_lanes(hash, name, LaneUse::KeepOpen)).is_ok()
    }

    /// Joins the lanes, closes them if due, and removes them if no handle is left. False if the
    /// counter is not resident: the caller loads it and visits again.
    pub(crate) fn visit_lanes(&mut self, lanes: &LaneSet, visit: LaneVisit) -> bool {
        let (hash, name) = (lanes.hash(), lanes.name());
        let (shard, has_room) = self.lock_for_join(name, || false);
        let fenced = self.engine.shared.as_ref().is_some_and(|shared| shared.refusal().is_some());
        if let Some(entry) = self.shard_of_lanes(lanes).lanes.find_live(name.bytes()) {
            let cooled = visit == LaneVisit::CloseIdle && entry.check_unused();
            let closing = visit == LaneVisit::Close || cooled || fenced || lanes.has_no_handles();
            if self.check_resident(name, shard, false).is_err() {
                return false;
            }
            expect_run(&mut self.open_run).count_command();
            let lane_use = if closing { LaneUse::Close } else { LaneUse::KeepOpen };
            // If refused, the lanes keep their sum for the next visit.
            let _ = self.with_run(None, has_room, |run| run.join_lanes(hash, name, lane_use));
        }
        if lanes.has_no_handles() && !lanes.is_live() {
            self.shard_of_lanes(lanes).lanes.remove(lanes);
            self.engine.lanes.remove(lanes);
        }
        true
    }

    /// Opens the lanes of a counter that was just added to, if it may have any.
    fn open_lanes(&mut self, lanes: &LaneSet) {
        let (engine, name) = (self.engine, lanes.name());
        lanes.reset_recent_adds();
        let Residency::Present(cell) = self.shard_of_lanes(lanes).find(lanes.hash(), name.bytes()) else { return };
        // Under the lock: a close that has begun visits all lanes after this.
        if cell.expires_at.is_some() || !fits_lanes(cell.value) || engine.is_closed() {
            return;
        }
        let policy = self.policies.policy(name);
        // Sampling decides add by add, and a lane would accept decrements.
        if policy.sampling.is_some_and(|sampling| sampling.refuses_exactness(Some(cell.epoch))) {
            return;
        }
        // An add to a lane cannot check the store's availability.
        if engine.shared.is_some() && !policy.share.fail_mode.adds() {
            return;
        }
        let bytes = if policy.durability > Durability::Memory { self.join_bytes_max(name) } else { 0 };
        if !engine.lanes.reserve_room(&engine.journal, bytes) {
            return;
        }
        if !self.shard_of_lanes(lanes).lanes.open(lanes, bytes) {
            engine.lanes.return_room(&engine.journal, bytes);
        }
        step!("split");
    }

    /// Most bytes of a join's record.
    fn join_bytes_max(&self, name: Name<'_>) -> usize {
        RECORD_OVERHEAD_BYTES_MAX + ENTRY_BYTES_MAX + name.bytes().len() + self.own_bytes_max()
    }

    /// Locks the shard of a counter for a join; returns the shard, and whether there is room.
    fn lock_for_join(&mut self, name: Name<'_>, wanted: impl Fn() -> bool) -> (usize, bool) {
        loop {
            let shard = self.continue_or_end_run(name);
            let has_room = self.has_room(name, wanted());
            if self.lock_shard(shard) {
                return (shard, has_room);
            }
        }
    }

    /// Returns true if there is room to journal the lanes' sum, beyond the room that the lanes
    /// hold. If `wanted`, the journal may extend the disk for it.
    fn has_room(&mut self, name: Name<'_>, wanted: bool) -> bool {
        let journaled = self.policies.durability(name) > Durability::Memory;
        let bytes = counter_record_bytes_max(name, self.own_bytes_max());
        self.admit(bytes, wanted, journaled).unwrap_or(false)
    }

    fn shard_of_lanes(&mut self, lanes: &LaneSet) -> &mut crate::table::Shard {
        let index = self.engine.table.shard_of(lanes.hash());
        self.held_shard(index)
    }
}
