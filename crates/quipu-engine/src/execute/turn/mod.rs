//! Runs one worker's turn in steps: apply, fill, then commit and reply.
//!
//! In: commands, one after another. Out: replies, and the journal position that they wait for.
//!
//! Consecutive commands on the same shard are a **run**: one lock, one record. The turn reserves
//! the record's range in the journal before it releases the lock. So the journal's order is the
//! order of applying; the turn writes the bytes later. A turn holds a lock between commands, so it
//! lives within one step of a worker and never across a wait.
//!
//! Not here: committing (`journal`), arithmetic (`apply`).

mod cell;
mod count;
mod dump;
mod loads;
mod observe;
mod once;
mod open_run;
mod reading;
mod records;
mod room;
mod scratch;
mod shared_counter;
mod transaction;
mod walk;
mod watch;

use std::time::Duration;

use quipu_model::{Command, CommandFacts, CommandTargets, Durability, Millis, Name, Refusal, Reply, StoreNeed};

pub use self::count::AddOutcome;
pub(crate) use self::count::LaneVisit;
pub use self::observe::OBSERVES_MAX;
pub(crate) use self::open_run::{OpenRun, expect_run};
use self::scratch::{Scratch, UnfilledRecord};
pub use self::watch::WatchedVersion;
use crate::apply::bodies::record_bytes_guess;
use crate::apply::targets::target_record_bytes_max;
use crate::core::Core;
use crate::core::load::Load;
use crate::execute::routing::{RowCheck, store_swap};
use crate::journal::format::{Position, RECORD_BYTES_MAX};
use crate::journal::{RecordBuilder, Wait};
use crate::namespaces::PolicyRef;

/// The steps of one turn of one worker.
pub struct Turn<'e> {
    pub(crate) engine: &'e Core,
    pub(crate) now: Millis,
    /// The policies in force when this turn last looked.
    pub(crate) policies: PolicyRef<'e>,
    pub(crate) open_run: Option<OpenRun<'e>>,
    pub(crate) builder: RecordBuilder,
    /// Reserved ranges in the journal without their bytes yet, and the ranges in the draft.
    unfilled: Vec<UnfilledRecord>,
    /// Journal room reserved and not used yet.
    room: usize,
    /// Most bytes that the record of the present run may need, or of the next one if none is open.
    run_room_max: usize,
    /// A record took more room than this turn had reserved.
    overcommitted: bool,
    wait: Wait,
    /// Monotonic time; ages of the shared store's rows are measured by it.
    pub(crate) elapsed: Duration,
    /// Rows requested since then count as fresh under any freshness setting.
    pub(crate) rows_since: Option<Duration>,
}

/// Reason why nothing was applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotRun {
    /// Refused.
    Refused(Refusal),
    /// Possible once this load is done.
    Load(Load),
}

impl From<Refusal> for NotRun {
    fn from(refusal: Refusal) -> NotRun {
        NotRun::Refused(refusal)
    }
}

impl From<Load> for NotRun {
    fn from(load: Load) -> NotRun {
        NotRun::Load(load)
    }
}

impl<'e> Turn<'e> {
    pub(crate) fn new(engine: &'e Core) -> Turn<'e> {
        Turn::at(engine, engine.now())
    }

    pub(crate) fn at(engine: &'e Core, now: Millis) -> Turn<'e> {
        Turn {
            engine,
            now,
            policies: engine.namespaces.current(),
            open_run: None,
            builder: RecordBuilder::EMPTY,
            unfilled: Vec::new(),
            room: 0,
            run_room_max: 0,
            overcommitted: false,
            wait: Wait::default(),
            elapsed: if engine.shared.is_some() { engine.clock.elapsed() } else { Duration::ZERO },
            rows_since: None,
        }
    }

    /// Admits and applies one command. `Err`: it needs counters that are not resident; nothing was
    /// applied, and it can run again once they are loaded.
    pub fn run(&mut self, command: &Command<'_>) -> Result<Reply, Load> {
        if let Some(shared) = &self.engine.shared
            && let Some(refusal) = shared.refusal()
        {
            return Ok(Reply::Refused(refusal));
        }
        let facts = command.facts();
        if self.engine.shared.is_some() {
            match facts.store {
                StoreNeed::Add | StoreNeed::Read => {}
                StoreNeed::Swap => return Err(Load::Swap(store_swap(command).into())),
                StoreNeed::OneOwner(what) => return Ok(Reply::Refused(Refusal::OneOwner { what })),
            }
        }
        match facts.targets {
            CommandTargets::One(name) => self.run_one(command, &facts, name),
            CommandTargets::Many(_) | CommandTargets::All => match self
                .run_transaction(std::slice::from_ref(command), &[])
            {
                Ok(replies) => Ok(replies.and_then(|mut replies| replies.pop()).expect("one command, nothing watched")),
                Err(NotRun::Refused(refusal)) => Ok(Reply::Refused(refusal)),
                Err(NotRun::Load(load)) => Err(load),
            },
            CommandTargets::Walk => self.walk(command),
        }
    }

    fn run_one(&mut self, command: &Command<'_>, facts: &CommandFacts<'_, '_>, name: Name<'_>) -> Result<Reply, Load> {
        let CommandFacts { targets, writes, allocates, store, .. } = *facts;
        let mut bodies_bytes = record_bytes_guess(command);
        let (shard, durability, limited, has_room) = loop {
            let shard = self.continue_or_end_run(name);
            let policy = self.policies.policy(name);
            let (durability, limited) = (policy.durability, policy.limit.is_some());
            let bytes = target_record_bytes_max(&targets, self.own_bytes_max()) + bodies_bytes;
            if bytes > RECORD_BYTES_MAX {
                return Ok(Reply::Refused(too_long(bytes)));
            }
            let has_room = match self.admit(bytes, writes, durability > Durability::Memory) {
                Ok(has_room) => has_room,
                Err(refusal) => return Ok(Reply::Refused(refusal)),
            };
            if self.lock_shard(shard) {
                if durability == Durability::Memory || !self.run_needs_more_room(command, &mut bodies_bytes) {
                    break (shard, durability, limited, has_room);
                }
                // Reserved without a lock held: there may be no room until the disk is extended.
                self.end_run();
            }
        };
        if writes && self.engine.is_closed() {
            // Under the lock: a write admitted before the close must not follow its mark.
            return Ok(self.engine.check_open().map_or_else(Reply::Refused, |()| unreachable!("it is closed")));
        }
        self.check_resident(name, shard, allocates == Some(name))?;
        if let Some(shared) = &self.engine.shared {
            let hash = self.engine.table.hash(name.bytes());
            let own_cells = expect_run(&mut self.open_run).locks.shard(shard).own_cells(hash, name.bytes());
            let (adds, times) = (store == StoreNeed::Add, (self.elapsed, self.rows_since));
            match shared.check_row(own_cells, name, adds, times, &self.policies.policy(name).share) {
                RowCheck::Usable => {}
                RowCheck::Fetch => return Err(Load::Rows(vec![name.bytes().into()])),
                RowCheck::Refuse(refusal) => return Ok(Reply::Refused(refusal)),
            }
        }
        let _reservation = match limited.then(|| self.reserve_counter_slots(std::slice::from_ref(command))).transpose()
        {
            Ok(reservation) => reservation,
            Err(refusal) => return Ok(Reply::Refused(refusal)),
        };
        let run = expect_run(&mut self.open_run);
        run.count_command();
        run.raise_durability(durability);
        Ok(self.apply(command, None, has_room))
    }

    /// Ends the turn. Its replies may leave when the journal has reached the returned position.
    #[inline]
    pub fn finish(mut self) -> Wait {
        self.fill();
        self.engine.request_segments_if_low();
        self.wait
    }

    /// Treats rows requested since this time as fresh, see
    /// [`LoadOutcome::Fetched`](crate::LoadOutcome::Fetched).
    pub fn set_rows_since(&mut self, since: Duration) {
        self.rows_since = Some(since);
    }

    /// Makes the replies of this turn wait for this position, too.
    pub fn add_wait(&mut self, wait: Wait) {
        self.wait = self.wait.and(wait);
    }

    /// Durability of an acknowledged operation on this counter, by this turn's policies.
    #[inline]
    pub fn durability(&self, name: Name<'_>) -> Durability {
        self.policies.durability(name)
    }

    /// The engine's time in this turn.
    pub fn now(&self) -> Millis {
        self.now
    }

    fn wait_for(&mut self, durability: Durability, position: Position) {
        self.wait = self.wait.and(Wait::for_durability(durability, position));
    }
}

fn too_long(bytes: usize) -> Refusal {
    Refusal::NoRoom { reason: format!("what may take {bytes} bytes is longer than a record may be") }
}

impl Drop for Turn<'_> {
    /// An unfilled range would block every commit, so a turn that is dropped early still writes its
    /// bytes.
    #[inline]
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        self.fill();
        if self.builder.capacity() > 0 {
            let (builder, unfilled) = (std::mem::take(&mut self.builder), std::mem::take(&mut self.unfilled));
            Scratch { builder, unfilled }.put_back();
        }
    }
}

#[cfg(all(test, target_pointer_width = "64", not(feature = "shuttle")))]
mod tests {
    use super::Turn;

    /// Workers move their turns. Of a larger one, the compiler makes calls of the moves: 70
    /// instructions more a turn.
    #[test]
    fn a_turn_is_small_enough_to_be_moved_without_a_call() {
        assert!(size_of::<Turn<'_>>() <= 264, "{} bytes", size_of::<Turn<'_>>());
    }
}
