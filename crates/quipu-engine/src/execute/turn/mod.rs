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

mod count;
mod dump;
mod observe;
mod once;
mod reading;
mod scratch;

use std::time::Duration;

use quipu_model::{Cell, Command, Durability, Freshness, ListNames, Millis, Name, Refusal, Reply, Scan, SketchCommand};

pub use self::count::AddOutcome;
pub(crate) use self::count::LaneVisit;
pub use self::observe::OBSERVES_MAX;
use self::scratch::{Scratch, UnfilledRecord};
use crate::apply::bodies::{
    concerns_bodies, own_body_bytes_max, record_bytes_guess, record_bytes_max, strings_bytes_max,
};
use crate::apply::counter_reservation::CounterReservation;
use crate::apply::shared_counter::SharedCounter;
use crate::apply::targets::{CommandTargets, command_targets, creates_counter, is_write};
use crate::apply::{RoomBudget, Run};
use crate::base::failpoint::step;
use crate::bodies::own_cells::own_bytes_max;
use crate::core::Core;
use crate::core::load::Load;
use crate::execute::routing::{RowCheck, StoreNeed, store_need, target_names};
use crate::journal::format::{
    ENTRY_BYTES_MAX, Entry, NAMESPACE_ENTRY_BYTES_MAX, Position, RECORD_BYTES_MAX, RECORD_OVERHEAD_BYTES_MAX,
};
use crate::journal::{RecordBuilder, Wait};
use crate::namespaces::PolicyRef;
use crate::table::Residency;
use crate::table::locks::ShardLocks;
use crate::table::walk::{ShardWalk, list_names, scan};

/// Most commands of a run, so that a long pipeline on one counter does not lock out other workers.
const RUN_COMMANDS_MAX: usize = 64;

/// Journal room is reserved in pieces of this size, so most commands of a turn need no reservation.
const ROOM_PIECE_BYTES: usize = 4 << 10;

/// Most bytes of sketch strings in one transaction's replies. A string has twelve kilobytes, and
/// all are in memory until the reply is written.
const STRINGS_BYTES_MAX: usize = 1 << 20;

/// Most counters of one prefetch: about the number of short commands in one full read.
const LOAD_NAMES_MAX: usize = 2_048;

/// The steps of one turn of one worker.
pub struct Turn<'e> {
    pub(crate) engine: &'e Core,
    pub(crate) now: Millis,
    /// The policies in force when this turn last looked.
    pub(crate) policies: PolicyRef<'e>,
    pub(crate) locks: Option<ShardLocks<'e>>,
    /// Commands in the present run.
    run_commands: usize,
    /// Strictest durability among the present run's replies.
    pub(crate) run_durability: Durability,
    pub(crate) builder: RecordBuilder,
    /// Reserved ranges in the journal without their bytes yet, and the ranges in the draft.
    unfilled: Vec<UnfilledRecord>,
    /// Journal room reserved and not used yet.
    room: usize,
    /// Most bytes that the present run's record may need.
    run_room_max: usize,
    /// A record took more room than this turn had reserved.
    overcommitted: bool,
    wait: Wait,
    /// The present run contains a flush.
    flushed: bool,
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

/// The state of a counter that WATCH compares: its shard's version, and its expiry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WatchedVersion {
    shard: usize,
    version: u64,
    expires_at: Option<Millis>,
}

impl WatchedVersion {
    /// A counter that has expired since counts as changed, even if the expiry was not noticed yet.
    fn has_changed(&self, locks: &mut ShardLocks<'_>, now: Millis) -> bool {
        locks.shard(self.shard).version != self.version || self.expires_at.is_some_and(|at| at <= now)
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
            locks: None,
            run_commands: 0,
            run_durability: Durability::Memory,
            builder: RecordBuilder::EMPTY,
            unfilled: Vec::new(),
            room: 0,
            run_room_max: 0,
            overcommitted: false,
            wait: Wait::default(),
            flushed: false,
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
        if self.engine.shared.is_some() {
            match store_need(command) {
                StoreNeed::Add | StoreNeed::Read => {}
                StoreNeed::Swap(swap) => return Err(Load::Swap(swap.into())),
                StoreNeed::OneOwner(what) => return Ok(Reply::Refused(Refusal::OneOwner { what })),
            }
        }
        match command_targets(command) {
            CommandTargets::One(name) => self.run_one(command, name),
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
            if let Some(replies) = self.try_transaction(commands, watches, &mut bodies_bytes)? {
                return Ok(replies);
            }
        }
    }

    /// `None` if the policies changed meanwhile, or sketch bodies need more room: then nothing was
    /// applied.
    fn try_transaction(
        &mut self,
        commands: &[Command<'_>],
        watches: &[WatchedVersion],
        bodies_bytes: &mut usize,
    ) -> Result<Option<Option<Vec<Reply>>>, NotRun> {
        let (mut shards, mut bytes, mut joint_durability) = (Vec::new(), *bodies_bytes, Durability::Memory);
        let (mut writing, mut flushing) = (false, false);
        for command in commands {
            let targets = command_targets(command);
            targets.collect_shards(&self.engine.table, &mut shards);
            bytes += targets.record_bytes_max(self.own_bytes_max());
            joint_durability = joint_durability.max(targets.durability(&self.policies));
            writing |= is_write(command);
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
            return Ok(None);
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
        self.locks = Some(locks);
        let reservation = if changed { Ok(None) } else { self.reserve_counter_slots(commands).map(Some) };
        let _reservation = reservation.inspect_err(|_| self.locks = None)?;
        self.run_durability = joint_durability;
        let mut string_bytes = 0;
        let mut run = |command: &Command<'_>| {
            if string_bytes >= STRINGS_BYTES_MAX && may_reply_string(command) {
                return Reply::Refused(Refusal::ReplyTooLarge { bytes_max: STRINGS_BYTES_MAX });
            }
            let reply = self.apply(command, Some(joint_durability), has_room);
            string_bytes += if let Reply::Bytes(string) = &reply { string.len() } else { 0 };
            reply
        };
        let replies = (!changed).then(|| commands.iter().map(&mut run).collect());
        self.end_run();
        Ok(Some(replies))
    }

    /// On a shared store, checks that the rows of these commands' counters are fresh enough. The
    /// caller holds their shards.
    fn check_rows(&self, locks: &mut ShardLocks<'_>, commands: &[Command<'_>]) -> Result<(), NotRun> {
        let Some(shared) = &self.engine.shared else { return Ok(()) };
        let mut rows = Vec::new();
        for command in commands {
            let adds = matches!(store_need(command), StoreNeed::Add);
            for name in target_names(command) {
                let hash = self.engine.table.hash(name.bytes());
                let shard = locks.shard(self.engine.table.shard_of(hash));
                let (policy, times) = (&self.policies.policy(*name).share, (self.elapsed, self.rows_since));
                match shared.check_row(shard.own_cells(hash, name.bytes()), *name, adds, times, policy) {
                    RowCheck::Usable => {}
                    RowCheck::Fetch => rows.push(name.bytes().into()),
                    RowCheck::Refuse(refusal) => return Err(refusal.into()),
                }
            }
        }
        if rows.is_empty() { Ok(()) } else { Err(NotRun::Load(Load::Rows(rows))) }
    }

    /// Returns true if a watched counter has changed. Closes the lanes of its shard, so no later
    /// add goes to them.
    fn has_changed(&self, locks: &mut ShardLocks<'_>, watches: &[WatchedVersion]) -> bool {
        let mut changed = false;
        for watch in watches {
            changed |= locks.shard(watch.shard).lanes.close_all() | watch.has_changed(locks, self.now);
        }
        if !changed {
            for watch in watches {
                let room = locks.shard(watch.shard).lanes.drain_all(|_| ());
                self.engine.lanes.return_room(&self.engine.journal, room);
            }
        }
        changed
    }

    /// Returns the state of a counter, for [`Turn::run_transaction`] to compare.
    pub fn watch(&mut self, name: Name<'_>) -> Result<WatchedVersion, Load> {
        // On a shared store the transaction refuses the watch.
        self.end_run();
        let table = &self.engine.table;
        let hash = table.hash(name.bytes());
        let index = table.shard_of(hash);
        let mut shard = table.lock(index);
        if shard.lanes.has_live() {
            // Adds in lanes so far are no change.
            drop(shard);
            self.cell(name)?;
            self.end_run();
            shard = table.lock(index);
        }
        let expires_at = match shard.find(hash, name.bytes()) {
            Residency::Present(cell) => cell.expires_at.filter(|at| *at > self.now),
            Residency::Absent => None,
            Residency::NotResident => return Err(Load::Names(vec![name.bytes().into()])),
        };
        Ok(WatchedVersion { shard: index, version: shard.version, expires_at })
    }

    /// Works on a shared counter. Refused if it is not resident, or there is no room for its
    /// record.
    pub(crate) fn with_shared_counter<T>(
        &mut self,
        name: Name<'_>,
        work: impl FnOnce(&mut SharedCounter<'_>) -> T,
    ) -> Result<T, Refusal> {
        self.with_shared_counter_body(name, 0, work)
    }

    /// The same for a sketch. The own body may be replaced by one of at most `body_bytes`, or be
    /// written in full.
    pub(crate) fn with_shared_counter_body<T>(
        &mut self,
        name: Name<'_>,
        body_bytes: usize,
        work: impl FnOnce(&mut SharedCounter<'_>) -> T,
    ) -> Result<T, Refusal> {
        let merged_bytes = if body_bytes > 0 { body_bytes + own_body_bytes_max(name) } else { 0 };
        let mut body_bytes = merged_bytes;
        let (shard, durability) = loop {
            let shard = self.continue_or_end_run(name);
            let durability = self.policies.durability(name);
            let bytes = CommandTargets::One(name).record_bytes_max(self.own_bytes_max()) + body_bytes;
            self.admit(bytes, true, durability > Durability::Memory)?;
            if self.lock_shard(shard) {
                let own =
                    self.locks.as_mut().expect("the run is open").shard(shard).own_bodies().bodies_of(name.bytes());
                // Carried or received state may be merged into each existing body.
                let own = own.map(|(_, own)| own.bytes_after_a_carry() + own_body_bytes_max(name));
                let needed = merged_bytes + own.sum::<usize>();
                if needed <= body_bytes {
                    break (shard, durability);
                }
                // Reserved without a lock held: there may be no room until the disk is extended.
                body_bytes = needed;
                self.end_run();
            }
        };
        self.engine.check_open()?;
        self.check_resident(name, shard, false)
            .map_err(|_| Refusal::AtRest { reason: "it has left memory".to_owned() })?;
        self.run_commands += 1;
        self.run_durability = self.run_durability.max(durability);
        Ok(self.with_run(None, true, |run| run.with_shared_counter(name, work)))
    }

    /// Journals an entry that belongs to no counter.
    pub(crate) fn journal_entry(&mut self, entry: &Entry<'_>) -> Result<(), Refusal> {
        self.journal_entry_locked(entry, || ()).map(|_| ())
    }

    /// The same; takes a lock before the record's range is reserved. Returns the record's end and
    /// the lock.
    pub(crate) fn journal_entry_locked<L>(
        &mut self,
        entry: &Entry<'_>,
        lock: impl FnOnce() -> L,
    ) -> Result<(Position, L), Refusal> {
        self.end_run();
        let entry_bytes_max = if let Entry::Namespace { .. } | Entry::Sampling { .. } = entry {
            NAMESPACE_ENTRY_BYTES_MAX
        } else {
            ENTRY_BYTES_MAX
        };
        self.reserve_room(RECORD_OVERHEAD_BYTES_MAX + entry_bytes_max)?;
        self.builder.push(self.now, entry);
        let record = self.builder.close_record().expect("an entry was pushed");
        let (bytes, locked) = (record.len(), lock());
        let position = self.engine.journal.reserve(bytes);
        self.consume_room(bytes);
        self.run_room_max = 0;
        self.unfilled.push((position, record));
        Ok((position.plus(bytes as u64), locked))
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
            match store_need(command) {
                StoreNeed::Add | StoreNeed::Read => {}
                StoreNeed::OneOwner(what) => return Err(Refusal::OneOwner { what }),
                StoreNeed::Swap(_) => {
                    return Err(Refusal::OneOwner { what: "a change that is not an add, in a transaction," });
                }
            }
        }
        Ok(())
    }

    pub(crate) fn own_bytes_max(&self) -> usize {
        if self.engine.shared.is_some() { own_bytes_max(self.policies.shards_max()) } else { 0 }
    }

    /// Ends the present run, if there is one: reserves its record's range in the journal, then
    /// releases its locks.
    #[inline]
    pub fn end_run(&mut self) {
        if let Some(locks) = self.locks.take() {
            self.reserve_record_and_unlock(locks);
        }
    }

    fn reserve_record_and_unlock(&mut self, mut locks: ShardLocks<'_>) {
        step!("applied");
        let mut newest = Position(0);
        match self.builder.close_record() {
            Some(record) => {
                let bytes = record.len();
                debug_assert!(bytes <= self.run_room_max, "{bytes} bytes were written, {} promised", self.run_room_max);
                let position = self.engine.journal.reserve(bytes);
                newest = position.plus(bytes as u64);
                if std::mem::take(&mut self.flushed) {
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
        self.wait_for(self.run_durability, newest);
        (self.run_commands, self.run_durability, self.run_room_max) = (0, Durability::Memory, 0);
    }

    /// Takes room for a record out of this turn's reservation. No record should exceed its
    /// reservation. If one does, the journal books the missing bytes as overcommitted, and nothing
    /// wraps.
    fn consume_room(&mut self, bytes: usize) {
        let missing = bytes.saturating_sub(self.room);
        self.room -= bytes - missing;
        if missing > 0 {
            self.engine.journal.overcommit_room(missing);
            self.overcommitted = true;
        }
    }

    /// Writes the bytes of all records of this turn into the journal.
    #[inline]
    pub fn fill(&mut self) {
        self.end_run();
        step!("reserved");
        // A turn without journaled commands has no bytes to write.
        if self.room > 0 || self.overcommitted || self.builder.capacity() > 0 {
            self.write_record_bytes();
        }
    }

    fn write_record_bytes(&mut self) {
        if std::mem::take(&mut self.overcommitted) {
            // With no lock held, and before a commit can reach the ranges of this turn.
            self.engine.journal.replenish_room();
        }
        if !self.unfilled.is_empty() {
            let bytes = self.builder.bytes();
            self.engine.journal.fill(self.unfilled.drain(..).map(|(position, range)| (position, &bytes[range])));
            step!("filled");
        }
        self.builder.clear();
        if self.room > 0 {
            self.engine.journal.return_room(std::mem::take(&mut self.room));
        }
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

    /// Removes a counter if it has expired; false if there was no room for the record.
    pub(crate) fn expire(&mut self, name: Name<'_>) -> bool {
        let has_room = self.may_expire(name);
        if has_room {
            // An evicted counter is removed by the command that loads it.
            let _ = self.cell(name);
        }
        has_room
    }

    /// Reads a counter's full cell, and the epoch of a new one. On a shared store the row is as
    /// fresh as requested, or the read is refused.
    pub(crate) fn read(
        &mut self,
        name: Name<'_>,
        freshness: Freshness,
    ) -> Result<(Option<Cell>, quipu_model::Epoch), NotRun> {
        if let Some(shared) = &self.engine.shared {
            if let Some(refusal) = shared.refusal() {
                return Err(refusal.into());
            }
            let shard = self.lock_for_read(name);
            self.check_resident(name, shard, false)?;
            let hash = self.engine.table.hash(name.bytes());
            let own_cells = self.locks.as_mut().expect("the run is open").shard(shard).own_cells(hash, name.bytes());
            let mut policy = self.policies.policy(name).share;
            policy.freshness = freshness.limit(policy.freshness);
            match shared.check_row(own_cells, name, false, (self.elapsed, self.rows_since), &policy) {
                RowCheck::Usable => {}
                RowCheck::Fetch => return Err(Load::Rows(vec![name.bytes().into()]).into()),
                RowCheck::Refuse(refusal) => return Err(refusal.into()),
            }
        }
        Ok(self.cell(name)?)
    }

    /// Reads a counter's full cell, and the epoch of a new one.
    pub(crate) fn cell(&mut self, name: Name<'_>) -> Result<(Option<Cell>, quipu_model::Epoch), Load> {
        let (shard, has_room) = loop {
            let shard = self.continue_or_end_run(name);
            let has_room = self.may_expire(name);
            if self.lock_shard(shard) {
                break (shard, has_room);
            }
        };
        self.run_durability = self.run_durability.max(self.policies.durability(name));
        self.check_resident(name, shard, false)?;
        let cell = self.with_run(None, has_room, |run| run.cell(name));
        let floor = self.locks.as_mut().expect("the run is open").shard(shard).floor;
        Ok((cell, floor))
    }

    fn run_one(&mut self, command: &Command<'_>, name: Name<'_>) -> Result<Reply, Load> {
        let writing = is_write(command);
        let mut bodies_bytes = record_bytes_guess(command);
        let (shard, durability, limited, has_room) = loop {
            let shard = self.continue_or_end_run(name);
            let policy = self.policies.policy(name);
            let (durability, limited) = (policy.durability, policy.limit.is_some());
            let bytes = CommandTargets::One(name).record_bytes_max(self.own_bytes_max()) + bodies_bytes;
            if bytes > RECORD_BYTES_MAX {
                return Ok(Reply::Refused(too_long(bytes)));
            }
            let has_room = match self.admit(bytes, writing, durability > Durability::Memory) {
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
        if writing && self.engine.is_closed() {
            // Under the lock: a write admitted before the close must not follow its mark.
            return Ok(self.engine.check_open().map_or_else(Reply::Refused, |()| unreachable!("it is closed")));
        }
        self.check_resident(name, shard, creates_counter(command, name))?;
        if let Some(shared) = &self.engine.shared {
            let hash = self.engine.table.hash(name.bytes());
            let own_cells = self.locks.as_mut().expect("the run is open").shard(shard).own_cells(hash, name.bytes());
            let (adds, times) = (matches!(store_need(command), StoreNeed::Add), (self.elapsed, self.rows_since));
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
        self.run_commands += 1;
        self.run_durability = self.run_durability.max(durability);
        Ok(self.apply(command, None, has_room))
    }

    /// Returns true if records of sketches and token replies may need more than `bodies_bytes`;
    /// then raises it to the need. The held shards decide.
    pub(crate) fn needs_more_room(
        &self,
        locks: &ShardLocks<'_>,
        commands: &[Command<'_>],
        bodies_bytes: &mut usize,
    ) -> bool {
        let table = &self.engine.table;
        let lookup = |name: Name<'_>| {
            let hash = table.hash(name.bytes());
            let shard = locks.peek(table.shard_of(hash));
            let shown = shard.unexpired_body(hash, name.bytes(), self.now);
            // On a shared store the record contains this node's own body. Without one, the future
            // own body is like the shown one.
            let Some(shared) = &self.engine.shared else { return shown };
            match shown {
                Some(shown) => {
                    shard.observed_body(hash, name.bytes(), shown.sketch(), shared.incarnation()).or(Some(shown))
                }
                None => {
                    shard.own_bodies().bodies_of(name.bytes()).map(|(_, own)| own).max_by_key(|own| own.bytes().len())
                }
            }
        };
        let needed = record_bytes_max(commands, lookup) + strings_bytes_max(commands, lookup);
        let more = needed > *bodies_bytes;
        *bodies_bytes = needed.max(*bodies_bytes);
        more
    }

    /// The same for one command; its shard is held.
    fn run_needs_more_room(&self, command: &Command<'_>, bodies_bytes: &mut usize) -> bool {
        let locks = self.locks.as_ref().expect("the run is open");
        concerns_bodies(command) && self.needs_more_room(locks, std::slice::from_ref(command), bodies_bytes)
    }

    /// Reserves slots for the counters that these commands may create, in namespaces with a limit.
    /// The shards are held.
    pub(crate) fn reserve_counter_slots(&mut self, commands: &[Command<'_>]) -> Result<CounterReservation, Refusal> {
        let locks = self.locks.as_mut().expect("the run is open");
        let limit_of = |name: Name<'_>| self.policies.policy(name).limit.clone();
        CounterReservation::reserve(&self.engine.table, locks, limit_of, commands)
    }

    /// Checks that the counter is resident or known to be absent, and that there is memory to
    /// create it.
    fn check_resident(&mut self, name: Name<'_>, shard: usize, creates: bool) -> Result<(), Load> {
        let full = creates && self.engine.memory_is_full();
        let shard = self.locks.as_mut().expect("the run is open").shard(shard);
        if !shard.unloaded && !full {
            return Ok(());
        }
        match shard.find(self.engine.table.hash(name.bytes()), name.bytes()) {
            Residency::NotResident => Err(Load::Names(vec![name.bytes().into()])),
            Residency::Absent if full => Err(Load::Memory),
            _ => Ok(()),
        }
    }

    /// Returns the load that these commands need first, as far as the held shards know.
    fn find_missing(&self, locks: &mut ShardLocks<'_>, commands: &[Command<'_>]) -> Option<Load> {
        let full = self.engine.memory_is_full();
        if !full && !locks.shards_mut().any(|shard| shard.unloaded) {
            return None;
        }
        let (table, mut unknown, mut lacks_memory) = (&self.engine.table, Vec::new(), false);
        for command in commands {
            let mut check_name = |name: &Name<'_>| {
                let hash = table.hash(name.bytes());
                match locks.shard(table.shard_of(hash)).find(hash, name.bytes()) {
                    Residency::NotResident => unknown.push(name.bytes().into()),
                    Residency::Absent => lacks_memory |= full && creates_counter(command, *name),
                    Residency::Present(_) => {}
                }
            };
            match command_targets(command) {
                CommandTargets::One(name) => check_name(&name),
                CommandTargets::Many(names) => names.iter().for_each(check_name),
                CommandTargets::All | CommandTargets::Walk => {}
            }
        }
        match unknown.is_empty() {
            false => Some(Load::Names(unknown)),
            true => lacks_memory.then_some(Load::Memory),
        }
    }

    /// Adds the counters of a later command to a load, unless they are known. So a pipeline waits
    /// once, not once per command. A hint: the command itself checks again.
    pub fn prefetch(&mut self, command: &Command<'_>, load: &mut Load) {
        self.end_run();
        let (unknown, rows) = match load {
            Load::Names(unknown) => (unknown, None),
            Load::Rows(unknown) => (unknown, self.engine.shared.as_ref()),
            _ => return,
        };
        let (table, times, policies) = (&self.engine.table, (self.elapsed, self.rows_since), &self.policies);
        let adds = matches!(command, Command::Add { .. });
        let mut check_name = |name: &Name<'_>| {
            let hash = table.hash(name.bytes());
            let mut shard = table.lock(table.shard_of(hash));
            let lookup = shard.find(hash, name.bytes());
            let wanted = match rows {
                None => lookup == Residency::NotResident,
                Some(shared) => {
                    let own_cells = shard.own_cells(hash, name.bytes());
                    let policy = &policies.policy(*name).share;
                    lookup != Residency::NotResident
                        && matches!(shared.check_row(own_cells, *name, adds, times, policy), RowCheck::Fetch)
                }
            };
            if unknown.len() < LOAD_NAMES_MAX && wanted {
                unknown.push(name.bytes().into());
            }
        };
        match command_targets(command) {
            CommandTargets::One(name) => check_name(&name),
            CommandTargets::Many(names) => names.iter().for_each(check_name),
            CommandTargets::All | CommandTargets::Walk => {}
        }
    }

    /// Ends the present run unless it can continue with a command on this name; returns the name's
    /// shard.
    fn continue_or_end_run(&mut self, name: Name<'_>) -> usize {
        let shard = self.engine.table.shard_of(self.engine.table.hash(name.bytes()));
        let continues =
            self.run_commands < RUN_COMMANDS_MAX && self.locks.as_ref().is_some_and(|locks| locks.holds_only(shard));
        if !continues {
            self.end_run();
        }
        shard
    }

    /// Locks a shard for an admitted command. False: the policies changed, so the caller must admit
    /// again, and nothing is locked.
    #[inline]
    fn lock_shard(&mut self, shard: usize) -> bool {
        if self.locks.is_some() {
            // The lock was held since the admission, so no other thread has changed the shard.
            return true;
        }
        let locks = ShardLocks::lock_one(&self.engine.table, shard);
        let admitted = self.policies_unchanged();
        if admitted {
            self.locks = Some(locks);
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
    fn lock_for_read(&mut self, name: Name<'_>) -> usize {
        loop {
            let shard = self.continue_or_end_run(name);
            if self.lock_shard(shard) {
                return shard;
            }
        }
    }

    fn apply(&mut self, command: &Command<'_>, joint_durability: Option<Durability>, may_expire: bool) -> Reply {
        self.with_run(joint_durability, may_expire, |run| run.apply(command))
    }

    pub(crate) fn with_run<T>(
        &mut self,
        joint_durability: Option<Durability>,
        may_expire: bool,
        work: impl FnOnce(&mut Run<'_, 'e>) -> T,
    ) -> T {
        let mut run = Run {
            table: &self.engine.table,
            locks: self.locks.as_mut().expect("the run was opened"),
            builder: &mut self.builder,
            policies: &self.policies,
            joint_durability,
            may_expire,
            now: self.now,
            node: self.engine.writer.node,
            flushed: &mut self.flushed,
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

    fn walk(&mut self, command: &Command<'_>) -> Result<Reply, Load> {
        // A walk takes long, and no commit passes an unfilled range.
        self.fill();
        let table = &self.engine.table;
        let mut walk = ShardWalk { table, ledger: None, now: self.now, newest: Position(0), has_hidden_expired: false };
        // Before and after: a counter may be evicted for the first time during the walk, which
        // would miss it.
        let at_rest = || self.engine.has_unloaded();
        let reply = match command {
            Command::Scan(command @ Scan { cursor, pattern, count }) => {
                let walked = (!at_rest()).then(|| scan(&mut walk, command)).filter(|_| !at_rest());
                let pattern = || pattern.map(|pattern| pattern.0.into());
                walked.ok_or_else(|| Load::Scan { cursor: *cursor, pattern: pattern(), count: *count })?
            }
            Command::ListNames(command @ ListNames { pattern, bytes_max }) => {
                let walked = (!at_rest()).then(|| list_names(&mut walk, command)).filter(|_| !at_rest());
                walked.ok_or_else(|| Load::List { pattern: pattern.0.into(), bytes_max: *bytes_max })?
            }
            _ => {
                // The number of counters includes all applied commands.
                let counters = table.counters();
                walk.newest = self.engine.journal.reserved();
                Ok(Reply::Integer(counters as i64))
            }
        };
        if walk.has_hidden_expired {
            walk.newest = walk.newest.max(self.journal_time());
        }
        let strictest = self.engine.namespaces.current().strictest();
        self.wait_for(strictest, walk.newest);
        Ok(reply.unwrap_or_else(Reply::Refused))
    }

    /// Journals the current time alone: counters shown as expired stay expired, even if the clock
    /// goes back. Without room nothing is journaled, and the walk goes on.
    pub(crate) fn journal_time(&mut self) -> Position {
        if !self.try_reserve_room(RECORD_OVERHEAD_BYTES_MAX) {
            return Position(0);
        }
        self.builder.ensure_record(self.now);
        let record = self.builder.close_record().expect("it was opened");
        let bytes = record.len();
        let position = self.engine.journal.reserve(bytes);
        self.consume_room(bytes);
        self.run_room_max = 0;
        self.unfilled.push((position, record));
        position.plus(bytes as u64)
    }

    /// Reserves room for a command that needs at most `bytes`. Returns whether a counter found
    /// expired can be journaled. Only a journaled write is refused without room, and only it
    /// extends the disk.
    fn admit(&mut self, bytes: usize, writing: bool, journaled: bool) -> Result<bool, Refusal> {
        match (writing, journaled) {
            (true, true) => self.reserve_room(bytes).map(|()| true),
            (true, false) => self.engine.check_open().map(|()| true),
            (false, true) => Ok(self.try_reserve_room(bytes)),
            (false, false) => Ok(!self.engine.is_closed()),
        }
    }

    /// Returns true if a counter found expired can be removed.
    fn may_expire(&mut self, name: Name<'_>) -> bool {
        let journaled = self.policies.durability(name) > Durability::Memory;
        let bytes = CommandTargets::One(name).record_bytes_max(self.own_bytes_max());
        self.admit(bytes, false, journaled).unwrap_or(false)
    }

    /// Reserves `bytes` more for the present run.
    fn reserve_room(&mut self, bytes: usize) -> Result<(), Refusal> {
        self.engine.check_open()?;
        if !self.try_reserve_room(bytes) {
            // Writes have overtaken the preparation of segments. Instead of refusing, prepare some
            // here: with no lock held, and with no unfilled range for which other threads would
            // wait.
            self.fill();
            loop {
                match self.take_journal_room(bytes) {
                    Ok(()) => break,
                    Err(refusal @ Refusal::Behind { .. }) => return Err(refusal),
                    Err(_) => self.engine.journal.prepare_room_now(bytes)?,
                }
            }
            self.run_room_max = bytes;
        }
        Ok(())
    }

    /// The same, without extending the disk.
    pub(crate) fn try_reserve_room(&mut self, bytes: usize) -> bool {
        let needed = self.run_room_max + bytes;
        let there =
            !self.engine.is_closed() && (needed <= self.room || self.take_journal_room(needed - self.room).is_ok());
        if there {
            self.run_room_max = needed;
        }
        there
    }

    fn take_journal_room(&mut self, bytes: usize) -> Result<(), Refusal> {
        if self.builder.capacity() == 0 {
            // A record will be written, so the turn needs its scratch memory; not all turns do.
            let Scratch { builder, unfilled } = Scratch::take();
            (self.builder, self.unfilled) = (builder, unfilled);
        }
        let journal = &self.engine.journal;
        let taken = match journal.reserve_room(bytes.max(ROOM_PIECE_BYTES)) {
            Ok(()) => bytes.max(ROOM_PIECE_BYTES),
            Err(_) => journal.reserve_room(bytes).map(|()| bytes)?,
        };
        self.room += taken;
        Ok(())
    }

    fn wait_for(&mut self, durability: Durability, position: Position) {
        self.wait = self.wait.and(Wait::for_durability(durability, position));
    }
}

fn too_long(bytes: usize) -> Refusal {
    Refusal::NoRoom { reason: format!("what may take {bytes} bytes is longer than a record may be") }
}

/// Returns true if the reply may be the string of a sketch.
fn may_reply_string(command: &Command<'_>) -> bool {
    match command {
        Command::Read { .. }
        | Command::Take { .. }
        | Command::ReadAndExpire { .. }
        | Command::Sketch(SketchCommand::ReadRange { .. }) => true,
        Command::Set(set) => set.reply_old,
        Command::Sketch(SketchCommand::SetString(set)) => set.reply_old,
        _ => false,
    }
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

#[cfg(test)]
mod tests {
    use crate::{Engine, Options};

    #[test]
    fn a_record_beyond_all_room_is_a_debt_that_is_made_up() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options { segment_bytes: 1 << 16, ahead_bytes: Some(1 << 17), ..Options::new(dir.path()) };
        let engine = Engine::open(options).unwrap();
        let core = engine.core();
        let mut turn = engine.turn();
        turn.reserve_room(100).unwrap();
        turn.consume_room(1 << 20);
        assert_eq!((turn.room, turn.overcommitted), (0, true));
        turn.run_room_max = 0;
        turn.finish();
        core.journal.reserve_room(1).unwrap();
        core.journal.return_room(1);
        assert_eq!(core.journal.failure(), None);
        assert_eq!(engine.add("d:a", 1).unwrap(), 1);
    }
}
