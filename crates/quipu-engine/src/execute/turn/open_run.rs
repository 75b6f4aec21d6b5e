//! Holds the locks of the present run, and ends it.
//!
//! A run may span several calls on a turn: its locks stay until a command needs another shard, or
//! the turn ends.
//!
//! Invariant: a run's record gets its position in the journal before the locks are released.

use quipu_model::{Command, Durability, Name, Reply};

use crate::apply::{RoomBudget, Run};
use crate::base::failpoint::step;
use crate::execute::turn::Turn;
use crate::journal::format::Position;
use crate::table::Shard;
use crate::table::locks::ShardLocks;

/// Most commands of a run, so that a long pipeline on one counter does not lock out other workers.
const RUN_COMMANDS_MAX: u32 = 64;

/// The present run of a turn.
pub(crate) struct OpenRun<'e> {
    pub(crate) locks: ShardLocks<'e>,
    /// Number of its commands; simple commands and transactions do not count.
    commands: u32,
    /// Strictest durability among its replies.
    durability: Durability,
    /// It contains a flush.
    flushed: bool,
}

impl<'e> OpenRun<'e> {
    /// A run without commands yet.
    #[inline]
    pub(crate) fn new(locks: ShardLocks<'e>, durability: Durability) -> OpenRun<'e> {
        OpenRun { locks, commands: 0, durability, flushed: false }
    }

    /// Counts a command.
    pub(crate) fn count_command(&mut self) {
        self.commands += 1;
    }

    /// Includes a reply of this durability.
    #[inline]
    pub(crate) fn raise_durability(&mut self, durability: Durability) {
        self.durability = self.durability.max(durability);
    }
}

/// The run that a turn has opened.
#[inline]
pub(crate) fn expect_run<'r, 'e>(open_run: &'r mut Option<OpenRun<'e>>) -> &'r mut OpenRun<'e> {
    open_run.as_mut().expect("a run is open")
}

impl<'e> Turn<'e> {
    /// A shard that the present run holds.
    pub(crate) fn held_shard(&mut self, index: usize) -> &mut Shard {
        expect_run(&mut self.open_run).locks.shard(index)
    }

    /// Ends the present run, if there is one: reserves its record's range in the journal, then
    /// releases its locks.
    #[inline]
    pub fn end_run(&mut self) {
        if let Some(run) = self.open_run.take() {
            self.reserve_record_and_unlock(run);
        }
    }

    fn reserve_record_and_unlock(&mut self, run: OpenRun<'_>) {
        let OpenRun { mut locks, durability, flushed, .. } = run;
        step!("applied");
        let mut newest = Position(0);
        match self.builder.close_record() {
            Some(record) => {
                let bytes = record.len();
                debug_assert!(bytes <= self.run_room_max, "{bytes} bytes were written, {} promised", self.run_room_max);
                let position = self.engine.journal.reserve(bytes);
                newest = position.plus(bytes as u64);
                if flushed {
                    self.engine.record_flush(position, newest);
                }
                self.consume_room(bytes);
                self.unfilled.push((position, record));
                // Only now: a reader of the totals waits for the positions reserved by then.
                locks.for_each(|shard| {
                    shard.newest = newest;
                    self.engine.table.update_totals(shard);
                });
            }
            // A read waits for the newest record of the shards it read.
            None => locks.for_each(|shard| {
                newest = newest.max(shard.newest);
                self.engine.table.update_totals(shard);
            }),
        }
        drop(locks);
        self.wait_for(durability, newest);
        self.run_room_max = 0;
    }

    /// Ends the present run unless it can continue with a command on this name; returns the name's
    /// shard.
    pub(super) fn continue_or_end_run(&mut self, name: Name<'_>) -> usize {
        let shard = self.engine.table.shard_of(self.engine.table.hash(name.bytes()));
        let continues = |run: &OpenRun<'_>| run.commands < RUN_COMMANDS_MAX && run.locks.holds_only(shard);
        if !self.open_run.as_ref().is_some_and(continues) {
            self.end_run();
        }
        shard
    }

    /// Locks a shard for an admitted command. False: the policies changed, so the caller must admit
    /// again, and nothing is locked.
    #[inline]
    pub(super) fn lock_shard(&mut self, shard: usize) -> bool {
        if self.open_run.is_some() {
            // The lock was held since the admission, so no other thread has changed the shard.
            return true;
        }
        let locks = ShardLocks::lock_one(&self.engine.table, shard);
        let admitted = self.policies_unchanged();
        if admitted {
            self.open_run = Some(OpenRun::new(locks, Durability::Memory));
        }
        admitted
    }

    /// Returns true if the policies of the admission are still in force; called under the locks.
    /// Otherwise takes over the current ones.
    #[inline]
    pub(crate) fn policies_unchanged(&mut self) -> bool {
        let admitted = self.engine.namespaces.is_current(&self.policies);
        if !admitted {
            self.policies = self.engine.namespaces.current();
        }
        admitted
    }

    /// Locks the shard of a name for a read.
    pub(super) fn lock_for_read(&mut self, name: Name<'_>) -> usize {
        loop {
            let shard = self.continue_or_end_run(name);
            if self.lock_shard(shard) {
                return shard;
            }
        }
    }

    pub(super) fn apply(
        &mut self,
        command: &Command<'_>,
        joint_durability: Option<Durability>,
        may_expire: bool,
    ) -> Reply {
        self.with_run(joint_durability, may_expire, |run| run.apply(command))
    }

    pub(crate) fn with_run<T>(
        &mut self,
        joint_durability: Option<Durability>,
        may_expire: bool,
        work: impl FnOnce(&mut Run<'_, 'e>) -> T,
    ) -> T {
        let OpenRun { locks, flushed, .. } = expect_run(&mut self.open_run);
        let mut run = Run {
            table: &self.engine.table,
            locks,
            builder: &mut self.builder,
            policies: &self.policies,
            joint_durability,
            may_expire,
            now: self.now,
            node: self.engine.writer.node,
            flushed,
            picker: self.engine.shared.as_ref().map(|shared| shared.shard_picker(self.elapsed, &self.policies)),
            room_budget: RoomBudget {
                journal: &self.engine.journal,
                lanes: &self.engine.lanes,
                room: &mut self.room,
                run_room_max: &mut self.run_room_max,
            },
            key: &self.engine.sketch_key,
            memory: self.engine.options.table_bytes_max().zip(self.engine.options.memory_bytes_max),
        };
        work(&mut run)
    }
}
