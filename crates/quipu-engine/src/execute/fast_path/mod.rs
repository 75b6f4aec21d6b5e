//! Runs adds and reads of single counters in batches: nearly all commands of a counter server.
//!
//! In: commands in the order of arrival. Out: their replies in that order, for the longest prefix
//! that this path can run. [`Turn::run`] handles the next command.
//!
//! Commands on the same counter form one **key batch**: one look-up, one change, one entry. The
//! turn holds the shards of all batches at once. So the processor fetches one batch's memory while
//! the turn requests the next one's. One record contains all batches.
//!
//! Invariants:
//! - replies, table and journal equal those of the same commands run one by one, except for the
//!   single record;
//! - a command beyond the returned count has no effect.

mod shared;

use arrayvec::ArrayVec;
use quipu_model::{Cell, Durability, Epoch, Incarnation, Millis, Name, SimpleCommand};

use crate::core::store_link::StoreLink;
use crate::execute::turn::{OpenRun, Turn};
use crate::journal::RecordBuilder;
use crate::journal::format::{ENTRY_BYTES_MAX, Entry, PriorExistence, RECORD_OVERHEAD_BYTES_MAX};
use crate::namespaces::{Policies, Policy};
use crate::table::locks::ShardLocks;
use crate::table::sampler::{SampledAdd, sample_add};
use crate::table::slots::names_equal;
use crate::table::{Residency, Shard};

/// Most commands of one call: their state is on the stack, and their shards are locked meanwhile.
pub const SIMPLE_COMMANDS_MAX: usize = 64;

/// Most counters of one call. Their shards are locked together, so more of them would serialise two
/// workers. A processor also waits for about this many cache lines at once.
const BATCHES_MAX: usize = 32;

/// Reply to a simple command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SimpleReply {
    /// The value after an add.
    Added(i64),
    /// The value read; `None`: there is no such counter.
    Read(Option<i64>),
    /// Not added: the sum would leave the range of i64.
    Overflow,
}

/// Bits of the filter that finds commands on shards already seen.
const SHARD_FILTER_BITS: usize = 1_024;

/// All commands on one counter.
#[derive(Clone, Copy)]
struct KeyBatch<'a> {
    name: Name<'a>,
    hash: u64,
    /// Index of its shard in `BatchPlan::shards`.
    shard_index: usize,
    /// Index of its first command.
    first_command: usize,
    /// Its slot, if the counter exists; before the look-up, the most likely slot.
    slot: Option<u32>,
    durability: Durability,
    /// The journal knows whether the counter existed before.
    existence_known: bool,
    /// A new counter has an expiry, a limit, a kind or sampling, so the general path must create
    /// it.
    create_needs_general_path: bool,
    /// Its namespace has a sampling policy, so its events may be sampled.
    sampled: bool,
    exists: bool,
    /// Set if some of its commands add or read; only filled in, and only used, on a shared store.
    adds: bool,
    reads: bool,
    value: i64,
    epoch: Epoch,
    expires_at: Option<Millis>,
    /// Number of adds, and their sum.
    count: u64,
    sum: i64,
}

/// Commands grouped by counter.
struct BatchPlan<'a> {
    batches: ArrayVec<KeyBatch<'a>, BATCHES_MAX>,
    /// Index of each command's batch.
    batch_of: [u8; SIMPLE_COMMANDS_MAX],
    /// The distinct shards of all batches, each with the hash of its first batch.
    shards: ArrayVec<(usize, u64), BATCHES_MAX>,
    /// Number of leading commands in this plan.
    command_count: usize,
}

impl<'e> Turn<'e> {
    /// Returns true if [`Turn::run_simple`] may run commands now.
    pub fn takes_simple(&self) -> bool {
        !self.engine.shared.as_ref().is_some_and(StoreLink::is_fenced) && !self.engine.is_closed()
    }

    /// Runs a prefix of these commands and passes on their replies; returns its length. 0:
    /// [`Turn::run`] must run the first command.
    pub fn run_simple(&mut self, commands: &[SimpleCommand<'_>], on_reply: impl FnMut(SimpleReply)) -> usize {
        self.end_run();
        if !self.takes_simple() {
            return 0;
        }
        if let [command] = commands {
            return usize::from(self.run_single(command, on_reply));
        }
        // Filled in place: it is too large to be moved.
        let mut plan = BatchPlan {
            batches: ArrayVec::new(),
            batch_of: [0; SIMPLE_COMMANDS_MAX],
            shards: ArrayVec::new(),
            command_count: 0,
        };
        self.group_by_key(commands, &mut plan);
        if !self.reserve_for_batches(&plan.batches) {
            return 0;
        }
        let incarnation = self.engine.shared.as_ref().map(StoreLink::incarnation);
        if incarnation.is_some() {
            plan.mark_adds_and_reads(commands);
        }
        let ready = self.lock_and_find(&mut plan, incarnation);
        let run_count = match &mut self.open_run {
            Some(run) => run_batches(&commands[..ready], &mut plan, (&self.policies, &mut run.locks), on_reply),
            // Without locks no batch is ready.
            None => 0,
        };
        let first_unrun = plan.batches.iter().position(|batch| batch.first_command >= run_count);
        self.write_batches(&plan.batches[..first_unrun.unwrap_or(plan.batches.len())], incarnation);
        self.end_run();
        run_count
    }

    /// Runs a single command, without grouping; returns whether it could.
    fn run_single(&mut self, command: &SimpleCommand<'_>, on_reply: impl FnOnce(SimpleReply)) -> bool {
        let engine = self.engine;
        let hash = engine.table.hash(command.name.bytes());
        let index = engine.table.shard_of(hash);
        // The shard's lines arrive during the next steps.
        engine.table.prefetch(index);
        let mut batch = KeyBatch::new(command.name, hash, self.policies.policy(command.name));
        if !self.reserve_for_batches(std::slice::from_ref(&batch)) {
            return false;
        }
        let held = ShardLocks::lock_one(&engine.table, index);
        if !self.policies_unchanged() {
            return false;
        }
        let shard = self.open_run.insert(OpenRun::new(held, Durability::Memory)).locks.nth(0);
        let incarnation = engine.shared.as_ref().map(StoreLink::incarnation);
        // Under the lock: a write admitted before the close must not follow its mark.
        let ready = !engine.is_closed()
            && match incarnation {
                None => {
                    batch.slot = shard.likely_slot(hash);
                    batch.find_fast(shard, self.now, engine.memory_is_full())
                }
                Some(incarnation) => {
                    (batch.adds, batch.reads) = (command.delta.is_some(), command.delta.is_none());
                    self.find_shared_batches(std::slice::from_mut(&mut batch), incarnation, 1) == 1
                }
            };
        let reply = match &mut self.open_run {
            Some(run) if ready => batch.run_any(command.delta, &self.policies, &mut run.locks),
            _ => None,
        };
        if reply.is_some() {
            self.write_batches(std::slice::from_ref(&batch), incarnation);
        }
        self.end_run();
        reply.map(on_reply).is_some()
    }

    /// Groups the leading commands by counter.
    fn group_by_key<'a>(&self, commands: &[SimpleCommand<'a>], plan: &mut BatchPlan<'a>) {
        let table = &self.engine.table;
        let BatchPlan { batches, batch_of, shards, command_count } = plan;
        // One bit per shard: nearly all counters without a batch are recognised by it.
        let mut shard_filter = [0u64; SHARD_FILTER_BITS / 64];
        let mut last = 0;
        for (SimpleCommand { name, .. }, batch_of) in commands.iter().zip(batch_of) {
            if !batches.get(last).is_some_and(|batch| names_equal(batch.name.bytes(), name.bytes())) {
                let hash = table.hash(name.bytes());
                let shard = table.shard_of(hash);
                let (filter_word, bit) = (&mut shard_filter[shard % SHARD_FILTER_BITS / 64], 1 << (shard % 64));
                let (mut known_batch, mut held) = (None, None);
                if *filter_word & bit != 0 {
                    known_batch = batches
                        .iter()
                        .position(|batch| batch.hash == hash && names_equal(batch.name.bytes(), name.bytes()));
                    held = shards.iter().position(|(held, _)| *held == shard);
                }
                *filter_word |= bit;
                last = match known_batch {
                    Some(batch) => batch,
                    None if batches.is_full() => break,
                    None => {
                        let held = held.unwrap_or_else(|| {
                            table.prefetch(shard);
                            shards.push((shard, hash));
                            shards.len() - 1
                        });
                        let policy = self.policies.policy(*name);
                        batches.push(KeyBatch {
                            shard_index: held,
                            first_command: *command_count,
                            ..KeyBatch::new(*name, hash, policy)
                        });
                        batches.len() - 1
                    }
                };
            }
            *batch_of = last as u8;
            *command_count += 1;
        }
    }

    /// Reserves journal room for these batches; false if there is none.
    fn reserve_for_batches(&mut self, batches: &[KeyBatch<'_>]) -> bool {
        let journaled = batches.iter().filter(|batch| batch.durability > Durability::Memory);
        let own = self.own_bytes_max();
        let bytes: usize = journaled.map(|batch| ENTRY_BYTES_MAX + batch.name.bytes().len() + own).sum();
        bytes == 0 || self.try_reserve_room(RECORD_OVERHEAD_BYTES_MAX + bytes)
    }

    /// Locks the shards of these batches and looks up each counter; returns the number of leading
    /// commands that can run.
    fn lock_and_find(&mut self, plan: &mut BatchPlan<'_>, incarnation: Option<Incarnation>) -> usize {
        let engine = self.engine;
        let BatchPlan { batches, shards, command_count, .. } = plan;
        let held = match shards[..] {
            [(shard, _)] => ShardLocks::lock_one(&engine.table, shard),
            _ => ShardLocks::lock_in_request_order(&engine.table, shards.iter().map(|(shard, _)| *shard)),
        };
        if !self.policies_unchanged() {
            return 0;
        }
        let held = &mut self.open_run.insert(OpenRun::new(held, Durability::Memory)).locks;
        if engine.is_closed() {
            // Under the locks: a write admitted before the close must not follow its mark.
            return 0;
        }
        if let Some(incarnation) = incarnation {
            return self.find_shared_batches(batches, incarnation, *command_count);
        }
        let (full, now, mut ready) = (engine.memory_is_full(), self.now, *command_count);
        let mut lookup = |batch: &mut KeyBatch<'_>, shard: &mut Shard| {
            if !batch.find_fast(shard, now, full) {
                ready = ready.min(batch.first_command);
            }
        };
        match held {
            ShardLocks::InRequestOrder(held) => {
                // In rounds: index bucket, chunk, slot. Each batch's next line arrives while the
                // lines of the others are requested.
                for (shard, (_, hash)) in held.iter().zip(&*shards) {
                    shard.prefetch_bucket(*hash);
                }
                for batch in batches.iter_mut() {
                    batch.slot = held[batch.shard_index].likely_slot(batch.hash);
                }
                for (guess, shard_index) in batches.iter().filter_map(|batch| Some((batch.slot?, batch.shard_index))) {
                    held[shard_index].prefetch_slot(guess);
                }
                for batch in batches.iter_mut() {
                    lookup(batch, &mut held[batch.shard_index]);
                }
            }
            held => {
                for batch in batches.iter_mut() {
                    let shard = held.nth(batch.shard_index);
                    batch.slot = shard.likely_slot(batch.hash);
                    lookup(batch, shard);
                }
            }
        }
        ready
    }

    /// Writes the results into the table and the record.
    #[inline]
    fn write_batches(&mut self, batches: &[KeyBatch<'_>], incarnation: Option<Incarnation>) {
        for batch in batches {
            // Without a run there is no batch.
            let Some(run) = &mut self.open_run else { return };
            run.raise_durability(batch.durability);
            match incarnation {
                // The batch only read.
                _ if batch.count == 0 => {}
                Some(incarnation) => self.write_shared(batch, incarnation),
                None => batch.write(run.locks.nth(batch.shard_index), self.now, &mut self.builder),
            }
        }
    }
}

impl<'a> KeyBatch<'a> {
    /// A batch before its look-up and its first command.
    #[inline]
    fn new(name: Name<'a>, hash: u64, policy: &Policy) -> KeyBatch<'a> {
        let (durability, existence_known) = (policy.durability, !policy.existence_unknown);
        let sampled = policy.sampling.is_some();
        let create_needs_general_path =
            sampled || policy.ttl.is_some() || policy.limit.is_some() || policy.kind.is_some();
        let (held, first, at, exists, adds, reads, value) = (0, 0, None, false, false, false, 0);
        let (epoch, expires_at, count, sum) = (Epoch::FIRST, None, 0, 0);
        KeyBatch {
            name,
            hash,
            shard_index: held,
            first_command: first,
            slot: at,
            durability,
            existence_known,
            create_needs_general_path,
            sampled,
            exists,
            adds,
            reads,
            value,
            epoch,
            expires_at,
            count,
            sum,
        }
    }

    /// Runs one command on the batch. `None`: the sum exceeds an entry's field, so the command
    /// begins another run.
    #[inline]
    fn run(&mut self, delta: Option<i64>) -> Option<SimpleReply> {
        let Some(delta) = delta else { return Some(SimpleReply::Read(self.exists.then_some(self.value))) };
        let Some(value) = self.value.checked_add(delta) else { return Some(SimpleReply::Overflow) };
        let sum = self.sum.checked_add(delta)?;
        (self.value, self.exists, self.count, self.sum) = (value, true, self.count + 1, sum);
        Some(SimpleReply::Added(value))
    }

    /// The same, with sampled adds.
    #[inline]
    fn run_any(&mut self, delta: Option<i64>, policies: &Policies, held: &mut ShardLocks<'_>) -> Option<SimpleReply> {
        match delta {
            Some(delta) if self.sampled => self.run_sampled(delta, policies, held),
            delta => self.run(delta),
        }
    }

    /// An add to a count that is sampled, or may be. `None`: the general path must run it, and no
    /// random number was drawn.
    #[inline(never)]
    fn run_sampled(&mut self, delta: i64, policies: &Policies, held: &mut ShardLocks<'_>) -> Option<SimpleReply> {
        let sampling = policies.policy(self.name).sampling.filter(|_| delta >= 0)?;
        let p = sampling.p_at(self.value);
        if p > 1 {
            self.sum.checked_add(delta)?.checked_add(i64::from(p))?;
            match sample_add(held.nth(self.shard_index).sampler(), p, self.value, delta) {
                SampledAdd::Delta(delta) => self.run(Some(delta)),
                SampledAdd::NoEvent => Some(SimpleReply::Added(self.value)),
                SampledAdd::Overflow => None,
            }
        } else {
            self.run(Some(delta))
        }
    }

    /// Writes the batch's result into the table and the record.
    #[inline]
    fn write(&self, shard: &mut Shard, now: Millis, builder: &mut RecordBuilder) {
        let before = match self.slot {
            Some(at) => {
                shard.set_value(at, self.value);
                PriorExistence::Present
            }
            None => {
                let KeyBatch { epoch, value, expires_at, .. } = *self;
                shard.put(self.hash, self.name.bytes(), Cell { epoch, value, expires_at });
                PriorExistence::Absent
            }
        };
        if self.durability > Durability::Memory {
            let KeyBatch { name, epoch, value, expires_at, count, sum, .. } = *self;
            let before = if self.existence_known { before } else { PriorExistence::Unknown };
            let (name, own) = (name.bytes(), &[][..]);
            builder.push(now, &Entry::Cell { name, epoch, value, expires_at, count, sum, before, own });
        }
    }

    /// Looks up the counter; returns whether its commands can run.
    #[inline(always)]
    fn find_fast(&mut self, shard: &mut Shard, now: Millis, full: bool) -> bool {
        if shard.lanes.is_live(self.name.bytes()) {
            // Its lanes must be joined first.
            return false;
        }
        let plain = self.slot.and_then(|guess| shard.find_plain(guess, self.name.bytes()));
        let Some((value, epoch)) = plain else { return self.find_slow(shard, now, full) };
        (self.value, self.epoch, self.exists) = (value, epoch, true);
        true
    }

    /// The same for all states of a counter.
    #[inline(never)]
    fn find_slow(&mut self, shard: &mut Shard, now: Millis, full: bool) -> bool {
        let (at, lookup) = shard.find_slot(self.hash, self.name.bytes());
        match lookup {
            Residency::Present(Cell { epoch, value, expires_at }) => {
                (self.slot, self.exists) = (at, true);
                (self.epoch, self.value, self.expires_at) = (epoch, value, expires_at);
                // The general path refuses commands on sketches.
                expires_at.is_none_or(|at| at > now) && !at.is_some_and(|at| shard.is_sketch_at(at))
            }
            Residency::Absent => {
                (self.slot, self.epoch) = (None, shard.floor);
                !full && !self.create_needs_general_path
            }
            Residency::NotResident => false,
        }
    }
}

/// Runs commands on batches that were looked up; returns their number.
fn run_batches(
    commands: &[SimpleCommand<'_>],
    plan: &mut BatchPlan<'_>,
    (policies, held): (&Policies, &mut ShardLocks<'_>),
    mut on_reply: impl FnMut(SimpleReply),
) -> usize {
    let BatchPlan { batches, batch_of, .. } = plan;
    for (index, (command, batch)) in commands.iter().zip(batch_of).enumerate() {
        let Some(reply) = batches[usize::from(*batch)].run_any(command.delta, policies, held) else { return index };
        on_reply(reply);
    }
    commands.len()
}
