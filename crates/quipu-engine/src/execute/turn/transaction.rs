//! Applies several commands as one.
//!
//! In: commands, and the watched counters. Out: all replies, or none if a watched counter has
//! changed.
//!
//! A transaction holds the shards of all its counters, in one run with one record.

use quipu_model::{Command, CommandFacts, Durability, Name, Refusal, Reply, StoreNeed};

use crate::apply::counter_reservation::CounterReservation;
use crate::apply::targets::{collect_target_shards, strictest_durability, target_record_bytes_max};
use crate::execute::turn::open_run::{OpenRun, expect_run};
use crate::execute::turn::watch::WatchedVersion;
use crate::execute::turn::{NotRun, Turn, too_long};
use crate::journal::format::RECORD_BYTES_MAX;
use crate::table::locks::ShardLocks;

/// Most bytes of sketch strings in one transaction's replies. A string has twelve kilobytes, and
/// all are in memory until the reply is written.
const STRINGS_BYTES_MAX: usize = 1 << 20;

/// Outcome of one attempt at a transaction.
enum TransactionAttempt {
    /// All commands were applied.
    Applied(Vec<Reply>),
    /// A watched counter has changed: nothing was applied.
    WatchChanged,
    /// The policies changed meanwhile, or sketch bodies need more room: nothing was applied.
    NotAdmitted,
}

impl Turn<'_> {
    /// Applies several commands atomically: no reader sees a part of them, and a crash keeps all or
    /// none. Refusals are per command, as in Redis. `None` if a watched counter has changed; `Err`
    /// if there is no room for all commands, or counters are not resident.
    pub fn run_transaction(
        &mut self,
        commands: &[Command<'_>],
        watches: &[WatchedVersion],
    ) -> Result<Option<Vec<Reply>>, NotRun> {
        self.end_run();
        self.check_shared(commands, watches)?;
        let mut bodies_bytes = 0;
        loop {
            match self.try_transaction(commands, watches, &mut bodies_bytes)? {
                TransactionAttempt::Applied(replies) => return Ok(Some(replies)),
                TransactionAttempt::WatchChanged => return Ok(None),
                TransactionAttempt::NotAdmitted => {}
            }
        }
    }

    fn try_transaction(
        &mut self,
        commands: &[Command<'_>],
        watches: &[WatchedVersion],
        bodies_bytes: &mut usize,
    ) -> Result<TransactionAttempt, NotRun> {
        let (mut shards, mut bytes, mut joint_durability) = (Vec::new(), *bodies_bytes, Durability::Memory);
        let (mut writing, mut flushing) = (false, false);
        for command in commands {
            let CommandFacts { targets, writes, .. } = command.facts();
            collect_target_shards(&targets, &self.engine.table, &mut shards);
            bytes += target_record_bytes_max(&targets, self.own_bytes_max());
            joint_durability = joint_durability.max(strictest_durability(&targets, &self.policies));
            writing |= writes;
            flushing |= matches!(command, Command::Flush);
        }
        shards.extend(watches.iter().map(|watch| watch.shard));
        if bytes > RECORD_BYTES_MAX {
            return Err(too_long(bytes).into());
        }
        // A flush is journaled in memory namespaces, too.
        let has_room = self.admit(bytes, writing, joint_durability > Durability::Memory || flushing)?;
        let mut locks = ShardLocks::lock_sorted(&self.engine.table, shards);
        if !self.policies_unchanged()
            || joint_durability > Durability::Memory && self.needs_more_room(&locks, commands, bodies_bytes)
        {
            self.run_room_max = 0;
            return Ok(TransactionAttempt::NotAdmitted);
        }
        if writing {
            // Under the locks: a write admitted before the close must not follow its mark.
            self.engine.check_open()?;
        }
        let changed = self.has_changed(&mut locks, watches);
        if !changed && let Some(load) = self.find_missing(&mut locks, commands) {
            return Err(NotRun::Load(load));
        }
        self.check_rows(&mut locks, commands)?;
        self.open_run = Some(OpenRun::new(locks, joint_durability));
        let reservation = if changed { Ok(None) } else { self.reserve_counter_slots(commands).map(Some) };
        let _reservation = reservation.inspect_err(|_| self.open_run = None)?;
        let mut string_bytes = 0;
        let mut run = |command: &Command<'_>| {
            if string_bytes >= STRINGS_BYTES_MAX && command.facts().replies_string {
                return Reply::Refused(Refusal::ReplyTooLarge { bytes_max: STRINGS_BYTES_MAX });
            }
            let reply = self.apply(command, Some(joint_durability), has_room);
            string_bytes += if let Reply::Bytes(string) = &reply { string.len() } else { 0 };
            reply
        };
        let attempt = match changed {
            false => TransactionAttempt::Applied(commands.iter().map(&mut run).collect()),
            true => TransactionAttempt::WatchChanged,
        };
        self.end_run();
        Ok(attempt)
    }

    /// Refuses transactions on shared counters that need a single owner.
    fn check_shared(&self, commands: &[Command<'_>], watches: &[WatchedVersion]) -> Result<(), Refusal> {
        let Some(shared) = &self.engine.shared else { return Ok(()) };
        if let Some(refusal) = shared.refusal() {
            return Err(refusal);
        }
        if !watches.is_empty() {
            return Err(Refusal::OneOwner { what: "WATCH" });
        }
        for command in commands {
            match command.facts().store {
                StoreNeed::Add | StoreNeed::Read => {}
                StoreNeed::OneOwner(what) => return Err(Refusal::OneOwner { what }),
                StoreNeed::Swap => {
                    return Err(Refusal::OneOwner { what: "a change that is not an add, in a transaction," });
                }
            }
        }
        Ok(())
    }

    /// Reserves slots for the counters that these commands may create, in namespaces with a limit.
    /// The shards are held.
    pub(crate) fn reserve_counter_slots(&mut self, commands: &[Command<'_>]) -> Result<CounterReservation, Refusal> {
        let locks = &mut expect_run(&mut self.open_run).locks;
        let limit_of = |name: Name<'_>| self.policies.policy(name).limit.clone();
        CounterReservation::reserve(&self.engine.table, locks, limit_of, commands)
    }
}
