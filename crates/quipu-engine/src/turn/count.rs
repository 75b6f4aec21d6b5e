//! Adds that return no value: into a lane while the counter's lanes are open, the ordinary way while they are not.
//!
//! In: a counter's split. Out: counted, or refused; nothing that anyone would wait for.
//!
//! A counter that is added to often is split: its lanes are opened by the add that finds it so. A look in every window joins what they hold, and
//! closes them once nobody has added since the last one. How often, not whether the lock was found taken: a thread alone gains as much by not taking
//! it, and threads that meet there come often.
//!
//! Not here: the lanes (`split`), joining (`apply/join_lanes`).

use quipu_model::{Command, Durability, Name, Refusal, Reply};

use super::Turn;
use crate::admission::CommandTargets;
use crate::apply::LaneUse;
use crate::apply::table::Residency;
use crate::failpoint::step;
use crate::handle::Handle;
use crate::journal::format::{ENTRY_BYTES_MAX, RECORD_OVERHEAD_BYTES_MAX};
use crate::load::Load;
use crate::split::{LaneAdd, LaneSet, fits_lanes};

/// What became of an add that returns no value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AddOutcome {
    /// It counts.
    Added,
    /// It does not, and will not.
    Refused(Refusal),
    /// It counts once or not at all: its lane was closed in the middle of it, and what it held could not be joined.
    Unknown,
}

/// Why a split is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LaneVisit {
    /// To join what its lanes hold.
    Join,
    /// And to close them if nobody has added since this was last done.
    CloseIdle,
    /// And to close them.
    Close,
}

impl Turn<'_> {
    /// Adds and tells nobody the value. [`Turn::flush`] says when it is durable.
    pub fn count(&mut self, handle: &Handle, delta: i64) -> Result<AddOutcome, Load> {
        let lanes = handle.lanes();
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

    /// Makes the replies of this turn wait until all that was counted so far is as durable as the namespace asks. Refused if it could not be written down.
    pub fn flush(&mut self, handle: &Handle) -> Result<Result<(), Refusal>, Load> {
        let lanes = handle.lanes();
        let name = lanes.name();
        let (shard, has_room) = self.lock_for_join(name, || lanes.has_pending());
        let durability = self.policies.durability(name);
        if self.shard_of_lanes(lanes).lanes.is_live(name.bytes()) {
            self.check_resident(name, shard, false)?;
        }
        // What took the ordinary way is in the newest record of the shard, or before it.
        self.run_durability = self.run_durability.max(durability);
        Ok(self.with_run(None, has_room, |run| run.join_lanes(lanes.hash(), name, LaneUse::KeepOpen)))
    }

    /// Adds the ordinary way, and opens the lanes if it was taken often lately.
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

    /// Joins lanes of which one holds a lot. If that is refused it stays where it is; it counts.
    pub(crate) fn join_full(&mut self, lanes: &LaneSet) {
        let (_, has_room) = self.lock_for_join(lanes.name(), || true);
        let _ = self.with_run(None, has_room, |run| run.join_lanes(lanes.hash(), lanes.name(), LaneUse::KeepOpen));
    }

    /// Joins what an add has left in a lane that was closed in the middle of it; false if that is refused, or the counter is at rest: then it is
    /// tried again by whoever looks next.
    pub(crate) fn join_late(&mut self, lanes: &LaneSet) -> bool {
        let (hash, name) = (lanes.hash(), lanes.name());
        let (shard, has_room) = self.lock_for_join(name, || true);
        if !lanes.has_pending() {
            // Whoever closed it has joined it, or another one who was late.
            return true;
        }
        if self.engine.is_closed() {
            // After its last look nobody joins any more.
            return false;
        }
        self.shard_of_lanes(lanes).lanes.mark_live(lanes);
        self.check_resident(name, shard, false).is_ok()
            && self.with_run(None, has_room, |run| run.join_lanes(hash, name, LaneUse::KeepOpen)).is_ok()
    }

    /// Joins what lanes hold, closes them if they are to be closed, and lets the split go if nobody has a handle of it any more. False if the counter
    /// is at rest: there is something to join once it was brought back.
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
            self.run_commands += 1;
            let lane_use = if closing { LaneUse::Close } else { LaneUse::KeepOpen };
            // Refused, they hold it still, for the next look.
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
        let shard = self.locks.as_mut().expect("the run is open").shard(engine.table.shard_of(lanes.hash()));
        let Residency::Present(cell) = shard.find(lanes.hash(), name.bytes()) else { return };
        // Under the lock: a close that has begun looks at every split after this.
        if cell.expires_at.is_some() || !fits_lanes(cell.value) || engine.is_closed() {
            return;
        }
        let policy = self.policies.policy(name);
        // What is sampled is so add by add, and a lane would take decrements.
        if policy.sampling.is_some_and(|sampling| sampling.refuses_exactness(Some(cell.epoch))) {
            return;
        }
        // Nobody asks the store for what is laid into a lane.
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

    /// Most bytes that the record of a join takes.
    fn join_bytes_max(&self, name: Name<'_>) -> usize {
        RECORD_OVERHEAD_BYTES_MAX + ENTRY_BYTES_MAX + name.bytes().len() + self.own_bytes_max()
    }

    /// Holds the shard of a counter whose lanes are to be joined; it, and whether there is room for that.
    fn lock_for_join(&mut self, name: Name<'_>, wanted: impl Fn() -> bool) -> (usize, bool) {
        loop {
            let shard = self.continue_or_end_run(name);
            let has_room = self.has_room(name, wanted());
            if self.lock_shard(shard) {
                return (shard, has_room);
            }
        }
    }

    /// Whether there is room to write down what lanes hold, beside what they hold of it themselves; prepared for it, if it is wanted so much.
    fn has_room(&mut self, name: Name<'_>, wanted: bool) -> bool {
        let journaled = self.policies.durability(name) > Durability::Memory;
        let bytes = CommandTargets::One(name).record_bytes_max(self.own_bytes_max());
        self.admit(bytes, wanted, journaled).unwrap_or(false)
    }

    fn shard_of_lanes(&mut self, lanes: &LaneSet) -> &mut crate::apply::table::Shard {
        let index = self.engine.table.shard_of(lanes.hash());
        self.locks.as_mut().expect("the run is open").shard(index)
    }
}
