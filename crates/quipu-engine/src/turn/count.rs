//! Adds that return no value: into a lane while the counter's lanes are open, the ordinary way while they are not.
//!
//! In: a counter's split. Out: counted, or refused; nothing that anyone would wait for.
//!
//! A counter that is added to often is split: its lanes are opened by the add that finds it so. A look in every window joins what they hold, and
//! closes them once nobody has added since the last one. How often, not whether the lock was found taken: a thread alone gains as much by not taking
//! it, and threads that meet there come often.
//!
//! Not here: the lanes (`split`), joining (`apply/join`).

use quipu_model::{Command, Durability, Name, Refusal, Reply};

use super::Turn;
use crate::admit::Reach;
use crate::apply::Lanes;
use crate::apply::table::Look;
use crate::failpoint::step;
use crate::handle::Handle;
use crate::journal::format::{ENTRY_BYTES_MAX, RECORD_OVERHEAD_BYTES_MAX};
use crate::load::Load;
use crate::split::{Adding, Split, fits};

/// What became of an add that returns no value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Counted {
    /// It counts.
    Yes,
    /// It does not, and will not.
    Refused(Refusal),
    /// It counts once or not at all: its lane was closed in the middle of it, and what it held could not be joined.
    Unknown,
}

/// Why a split is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Visit {
    /// To join what its lanes hold.
    Join,
    /// And to close them if nobody has added since this was last done.
    Look,
    /// And to close them.
    Close,
}

impl Turn<'_> {
    /// Adds and tells nobody the value. [`Turn::flush`] says when it is durable.
    pub fn count(&mut self, handle: &Handle, delta: i64) -> Result<Counted, Load> {
        let split = handle.split();
        match split.add(delta) {
            Adding::Laid => Ok(Counted::Yes),
            Adding::Not => self.count_alone(split, delta),
            Adding::Full => {
                self.join_full(split);
                Ok(Counted::Yes)
            }
            Adding::Late => Ok(if self.join_late(split) { Counted::Yes } else { Counted::Unknown }),
        }
    }

    /// Makes the replies of this turn wait until all that was counted so far is as durable as the namespace asks. Refused if it could not be written down.
    pub fn flush(&mut self, handle: &Handle) -> Result<Result<(), Refusal>, Load> {
        let split = handle.split();
        let name = split.name();
        let (shard, has_room) = self.hold_to_join(name, || split.holds());
        let durability = self.policies.durability(name);
        if self.shard_of(split).splits.is_live(name.bytes()) {
            self.known(name, shard, false)?;
        }
        // What took the ordinary way is in the newest record of the shard, or before it.
        self.run_durability = self.run_durability.max(durability);
        Ok(self.with_run(None, has_room, |run| run.join(split.hash(), name, Lanes::Stay)))
    }

    /// Adds the ordinary way, and opens the lanes if it was taken often lately.
    pub(crate) fn count_alone(&mut self, split: &Split, delta: i64) -> Result<Counted, Load> {
        match self.run(&Command::Add { name: split.name(), delta, shard_key: None })? {
            Reply::Refused(refusal) => Ok(Counted::Refused(refusal)),
            _ => {
                if split.came() >= self.engine.options.split_after {
                    self.open(split);
                }
                Ok(Counted::Yes)
            }
        }
    }

    /// Joins lanes of which one holds a lot. If that is refused it stays where it is; it counts.
    pub(crate) fn join_full(&mut self, split: &Split) {
        let (_, has_room) = self.hold_to_join(split.name(), || true);
        let _ = self.with_run(None, has_room, |run| run.join(split.hash(), split.name(), Lanes::Stay));
    }

    /// Joins what an add has left in a lane that was closed in the middle of it; false if that is refused, or the counter is at rest: then it is
    /// tried again by whoever looks next.
    pub(crate) fn join_late(&mut self, split: &Split) -> bool {
        let (hash, name) = (split.hash(), split.name());
        let (shard, has_room) = self.hold_to_join(name, || true);
        if !split.holds() {
            // Whoever closed it has joined it, or another one who was late.
            return true;
        }
        if self.engine.is_closed() {
            // After its last look nobody joins any more.
            return false;
        }
        self.shard_of(split).splits.mark_live(split);
        self.known(name, shard, false).is_ok()
            && self.with_run(None, has_room, |run| run.join(hash, name, Lanes::Stay)).is_ok()
    }

    /// Joins what lanes hold, closes them if they are to be closed, and lets the split go if nobody has a handle of it any more. False if the counter
    /// is at rest: there is something to join once it was brought back.
    pub(crate) fn visit(&mut self, split: &Split, visit: Visit) -> bool {
        let (hash, name) = (split.hash(), split.name());
        let (shard, has_room) = self.hold_to_join(name, || false);
        let fenced = self.engine.shared.as_ref().is_some_and(|shared| shared.refusal().is_some());
        if let Some(entry) = self.shard_of(split).splits.live(name.bytes()) {
            let cooled = visit == Visit::Look && entry.has_cooled();
            let closing = visit == Visit::Close || cooled || fenced || split.is_idle();
            if self.known(name, shard, false).is_err() {
                return false;
            }
            self.run_commands += 1;
            let lanes = if closing { Lanes::Close } else { Lanes::Stay };
            // Refused, they hold it still, for the next look.
            let _ = self.with_run(None, has_room, |run| run.join(hash, name, lanes));
        }
        if split.is_idle() && !split.is_live() {
            self.shard_of(split).splits.remove(split);
            self.engine.splits.remove(split);
        }
        true
    }

    /// Opens the lanes of a counter that was just added to, if it may have any.
    fn open(&mut self, split: &Split) {
        let (engine, name) = (self.engine, split.name());
        split.forget();
        let shard = self.held.as_mut().expect("the run is open").shard(engine.table.shard_of(split.hash()));
        let Look::Cell(cell) = shard.look(split.hash(), name.bytes()) else { return };
        // Under the lock: a close that has begun looks at every split after this.
        if cell.expires_at.is_some() || !fits(cell.value) || engine.is_closed() {
            return;
        }
        let policy = self.policies.policy(name);
        // What is sampled is so add by add, and a lane would take decrements.
        if policy.thinning.is_some_and(|thinning| thinning.refuses_exactness(Some(cell.epoch))) {
            return;
        }
        // Nobody asks the store for what is laid into a lane.
        if engine.shared.is_some() && !policy.share.fail_mode.adds() {
            return;
        }
        let bytes = if policy.durability > Durability::Memory { self.join_bytes(name) } else { 0 };
        if !engine.splits.hold_room(&engine.journal, bytes) {
            return;
        }
        if !self.shard_of(split).splits.open(split, bytes) {
            engine.splits.return_room(&engine.journal, bytes);
        }
        step!("split");
    }

    /// Most bytes that the record of a join takes.
    fn join_bytes(&self, name: Name<'_>) -> usize {
        RECORD_OVERHEAD_BYTES_MAX + ENTRY_BYTES_MAX + name.bytes().len() + self.own_bytes_max()
    }

    /// Holds the shard of a counter whose lanes are to be joined; it, and whether there is room for that.
    fn hold_to_join(&mut self, name: Name<'_>, wanted: impl Fn() -> bool) -> (usize, bool) {
        loop {
            let shard = self.make_way(name);
            let has_room = self.has_room(name, wanted());
            if self.hold(shard) {
                return (shard, has_room);
            }
        }
    }

    /// Whether there is room to write down what lanes hold, beside what they hold of it themselves; prepared for it, if it is wanted so much.
    fn has_room(&mut self, name: Name<'_>, wanted: bool) -> bool {
        let journaled = self.policies.durability(name) > Durability::Memory;
        let bytes = Reach::One(name).record_bytes_max(self.own_bytes_max());
        self.admit(bytes, wanted, journaled).unwrap_or(false)
    }

    fn shard_of(&mut self, split: &Split) -> &mut crate::apply::table::Shard {
        let index = self.engine.table.shard_of(split.hash());
        self.held.as_mut().expect("the run is open").shard(index)
    }
}
