//! Runs adds and reads of single counters, many at a time: nearly all that a server of counters does.
//!
//! In: commands in the order in which they came. Out: their replies, in that order, for as many of the first as can be run this way; the next one is for [`Turn::run`], which says what it lacks.
//!
//! Commands on the same counter are brought together into one **lot**: it is looked up, changed and journaled once. The shards of all lots are held at once, so while one lot's memory is on its
//! way the next one's is asked for; and one record tells of all of them.
//!
//! Invariants:
//! - replies, table and journal are those of the same commands run one by one, but that they are in one record;
//! - nothing is applied for a command that is not counted as run.

mod shared;

use arrayvec::ArrayVec;
use quipu_model::{Brief, Cell, Durability, Epoch, Incarnation, Millis, Name};

use crate::apply::table::{Look, Shard};
use crate::apply::{Held, is_same, thin};
use crate::journal::Draft;
use crate::journal::format::{Before, ENTRY_BYTES_MAX, Entry, RECORD_OVERHEAD_BYTES_MAX};
use crate::namespaces::{Policies, Policy};
use crate::sharing::Shared;
use crate::turn::Turn;

/// Most commands run at once: what is known of each is on the stack, and the shards are held meanwhile.
pub const BRIEFS_MAX: usize = 64;

/// Most counters of one run. Their shards are held at the same time, so more would keep two workers from working at the same time; and a processor waits for about so many lines of
/// memory at once.
const LOTS_MAX: usize = 32;

/// What a brief command is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BriefReply {
    /// The value after an add.
    Added(i64),
    /// The value that was read; `None`: there is no such counter.
    Read(Option<i64>),
    /// Not added: the sum would leave the range of i64.
    Overflow,
}

/// Bits in which commands are told apart by the shard of their counter.
const SHARD_BITS: usize = 1_024;

/// All that happens to one counter.
#[derive(Clone, Copy)]
struct Lot<'a> {
    name: Name<'a>,
    hash: u64,
    /// Where its shard is among those that are held.
    held: usize,
    /// The first command of it.
    first: usize,
    /// Its slot, if it has one and exists; before it was looked at, the one that it most likely has.
    at: Option<u32>,
    durability: Durability,
    /// Whether the journal knows if the counter existed before.
    sure: bool,
    /// Whether there is something about a counter that is made, an expiry, a limit or a kind, which is for the long way to see to.
    special: bool,
    /// Whether its events are thinned, or may be.
    sampled: bool,
    exists: bool,
    /// Whether some of its commands add, and whether some read; only told, and only asked for, on a shared store.
    adds: bool,
    reads: bool,
    value: i64,
    epoch: Epoch,
    expires_at: Option<Millis>,
    /// Adds, and what they come to.
    count: u64,
    sum: i64,
}

/// Commands by counter.
struct Together<'a> {
    lots: ArrayVec<Lot<'a>, LOTS_MAX>,
    /// The lot of each command.
    lot_of: [u8; BRIEFS_MAX],
    /// The shards of all lots, each once, and the hash of the first lot in it.
    shards: ArrayVec<(usize, u64), LOTS_MAX>,
    /// How many of the first commands these are.
    commands: usize,
}

impl<'e> Turn<'e> {
    /// Whether [`Turn::run_briefs`] can run any at the moment.
    pub fn takes_briefs(&self) -> bool {
        !self.engine.shared.as_ref().is_some_and(Shared::is_fenced) && !self.engine.is_closed()
    }

    /// Runs the first of these commands and tells their replies; returns how many. 0: the first one has to be [run](Turn::run) by itself.
    pub fn run_briefs(&mut self, briefs: &[Brief<'_>], tell: impl FnMut(BriefReply)) -> usize {
        self.release();
        if !self.takes_briefs() {
            return 0;
        }
        if let [brief] = briefs {
            return usize::from(self.run_alone(brief, tell));
        }
        // Filled in place: it is too large to be handed around.
        let mut together =
            Together { lots: ArrayVec::new(), lot_of: [0; BRIEFS_MAX], shards: ArrayVec::new(), commands: 0 };
        self.bring_together(briefs, &mut together);
        if !self.admit_lots(&together.lots) {
            return 0;
        }
        let present = self.engine.shared.as_ref().map(Shared::present);
        if present.is_some() {
            together.tell_apart(briefs);
        }
        let ready = self.look_at_lots(&mut together, present);
        let ran = match &mut self.held {
            Some(held) => run_lots(&briefs[..ready], &mut together, (&self.policies, held), tell),
            // Nothing is held where nothing is ready.
            None => 0,
        };
        let behind = together.lots.iter().position(|lot| lot.first >= ran);
        self.write_lots(&together.lots[..behind.unwrap_or(together.lots.len())], present);
        self.release();
        ran
    }

    /// Runs a command that came alone, of which there is nothing to bring together; whether it could.
    fn run_alone(&mut self, brief: &Brief<'_>, tell: impl FnOnce(BriefReply)) -> bool {
        let engine = self.engine;
        let hash = engine.table.hash(brief.name.bytes());
        let index = engine.table.shard_of(hash);
        // It comes while the rest is seen to.
        engine.table.prefetch(index);
        let mut lot = Lot::new(brief.name, hash, self.policies.policy(brief.name));
        if !self.admit_lots(std::slice::from_ref(&lot)) {
            return false;
        }
        let held = Held::one(&engine.table, index);
        if !self.is_admitted() {
            return false;
        }
        let shard = self.held.insert(held).at(0);
        let present = engine.shared.as_ref().map(Shared::present);
        // Under the lock: what was admitted before the close must not come after its mark.
        let ready = !engine.is_closed()
            && match present {
                None => {
                    lot.at = shard.guess(hash);
                    lot.look(shard, self.now, engine.memory_is_full())
                }
                Some(present) => {
                    (lot.adds, lot.reads) = (brief.delta.is_some(), brief.delta.is_none());
                    self.look_at_shared(std::slice::from_mut(&mut lot), present, 1) == 1
                }
            };
        let reply = match &mut self.held {
            Some(held) if ready => lot.run_any(brief.delta, &self.policies, held),
            _ => None,
        };
        if reply.is_some() {
            self.write_lots(std::slice::from_ref(&lot), present);
        }
        self.release();
        reply.map(tell).is_some()
    }

    /// The counters of the first commands.
    fn bring_together<'a>(&self, briefs: &[Brief<'a>], together: &mut Together<'a>) {
        let table = &self.engine.table;
        let Together { lots, lot_of, shards, commands } = together;
        // A bit of each shard: nearly all counters that are not among the lots are known by it not to be.
        let mut seen = [0u64; SHARD_BITS / 64];
        let mut last = 0;
        for (Brief { name, .. }, lot_of) in briefs.iter().zip(lot_of) {
            if !lots.get(last).is_some_and(|lot| is_same(lot.name.bytes(), name.bytes())) {
                let hash = table.hash(name.bytes());
                let shard = table.shard_of(hash);
                let (word, bit) = (&mut seen[shard % SHARD_BITS / 64], 1 << (shard % 64));
                let (mut known, mut held) = (None, None);
                if *word & bit != 0 {
                    known = lots.iter().position(|lot| lot.hash == hash && is_same(lot.name.bytes(), name.bytes()));
                    held = shards.iter().position(|(held, _)| *held == shard);
                }
                *word |= bit;
                last = match known {
                    Some(lot) => lot,
                    None if lots.is_full() => break,
                    None => {
                        let held = held.unwrap_or_else(|| {
                            table.prefetch(shard);
                            shards.push((shard, hash));
                            shards.len() - 1
                        });
                        let policy = self.policies.policy(*name);
                        lots.push(Lot { held, first: *commands, ..Lot::new(*name, hash, policy) });
                        lots.len() - 1
                    }
                };
            }
            *lot_of = last as u8;
            *commands += 1;
        }
    }

    /// Whether there is room to write down what happens to these counters.
    fn admit_lots(&mut self, lots: &[Lot<'_>]) -> bool {
        let journaled = lots.iter().filter(|lot| lot.durability > Durability::Memory);
        let own = self.own_bytes_max();
        let bytes: usize = journaled.map(|lot| ENTRY_BYTES_MAX + lot.name.bytes().len() + own).sum();
        bytes == 0 || self.promise_what_is_there(RECORD_OVERHEAD_BYTES_MAX + bytes)
    }

    /// Holds the shards of these counters and looks at each; returns how many of the first commands can run.
    fn look_at_lots(&mut self, together: &mut Together<'_>, present: Option<Incarnation>) -> usize {
        let engine = self.engine;
        let Together { lots, shards, commands, .. } = together;
        let held = match shards[..] {
            [(shard, _)] => Held::one(&engine.table, shard),
            _ => Held::asked(&engine.table, shards.iter().map(|(shard, _)| *shard)),
        };
        if !self.is_admitted() {
            return 0;
        }
        let held = self.held.insert(held);
        if engine.is_closed() {
            // Under the locks: what was admitted before the close must not come after its mark.
            return 0;
        }
        if let Some(present) = present {
            return self.look_at_shared(lots, present, *commands);
        }
        let (full, now, mut ready) = (engine.memory_is_full(), self.now, *commands);
        let mut look = |lot: &mut Lot<'_>, shard: &mut Shard| {
            if !lot.look(shard, now, full) {
                ready = ready.min(lot.first);
            }
        };
        match held {
            Held::Asked(held) => {
                // In rounds, so that what a lot needs next has come while the others were asked for theirs: the place in the index, the chunk, the slot.
                for (shard, (_, hash)) in held.iter().zip(&*shards) {
                    shard.prefetch_place(*hash);
                }
                for lot in lots.iter_mut() {
                    lot.at = held[lot.held].guess(lot.hash);
                }
                for (guess, held_at) in lots.iter().filter_map(|lot| Some((lot.at?, lot.held))) {
                    held[held_at].prefetch(guess);
                }
                for lot in lots.iter_mut() {
                    look(lot, &mut held[lot.held]);
                }
            }
            held => {
                for lot in lots.iter_mut() {
                    let shard = held.at(lot.held);
                    lot.at = shard.guess(lot.hash);
                    look(lot, shard);
                }
            }
        }
        ready
    }

    /// Brings what happened to counters into the table and the record.
    #[inline]
    fn write_lots(&mut self, lots: &[Lot<'_>], present: Option<Incarnation>) {
        for lot in lots {
            self.run_durability = self.run_durability.max(lot.durability);
            match (present, &mut self.held) {
                (Some(present), _) if lot.count > 0 => self.write_shared(lot, present),
                (None, Some(held)) if lot.count > 0 => lot.write(held.at(lot.held), self.now, &mut self.draft),
                // It was only read.
                _ => {}
            }
        }
    }
}

impl<'a> Lot<'a> {
    /// Nothing has happened to the counter, and nobody has looked at it.
    #[inline]
    fn new(name: Name<'a>, hash: u64, policy: &Policy) -> Lot<'a> {
        let (durability, sure) = (policy.durability, !policy.unsure);
        let sampled = policy.thinning.is_some();
        let special = sampled || policy.ttl.is_some() || policy.limit.is_some() || policy.kind.is_some();
        let (held, first, at, exists, adds, reads, value) = (0, 0, None, false, false, false, 0);
        let (epoch, expires_at, count, sum) = (Epoch::FIRST, None, 0, 0);
        Lot {
            name,
            hash,
            held,
            first,
            at,
            durability,
            sure,
            special,
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

    /// Runs one command on it; `None`: what it adds is more than an entry can say, so it begins another run.
    #[inline]
    fn run(&mut self, delta: Option<i64>) -> Option<BriefReply> {
        let Some(delta) = delta else { return Some(BriefReply::Read(self.exists.then_some(self.value))) };
        let Some(value) = self.value.checked_add(delta) else { return Some(BriefReply::Overflow) };
        let sum = self.sum.checked_add(delta)?;
        (self.value, self.exists, self.count, self.sum) = (value, true, self.count + 1, sum);
        Some(BriefReply::Added(value))
    }

    /// The same, whether its events are thinned or not.
    #[inline]
    fn run_any(&mut self, delta: Option<i64>, policies: &Policies, held: &mut Held<'_>) -> Option<BriefReply> {
        match delta {
            Some(delta) if self.sampled => self.run_thinned(delta, policies, held),
            delta => self.run(delta),
        }
    }

    /// An add to a count that is sampled, or may be; `None`: it is for the long way, and no dice were thrown.
    #[inline(never)]
    fn run_thinned(&mut self, delta: i64, policies: &Policies, held: &mut Held<'_>) -> Option<BriefReply> {
        let thinning = policies.policy(self.name).thinning.filter(|_| delta >= 0)?;
        let p = thinning.p_at(self.value);
        if p > 1 {
            self.sum.checked_add(delta)?.checked_add(i64::from(p))?;
            match thin(held.at(self.held).thinner(), p, self.value, delta)? {
                Some(delta) => self.run(Some(delta)),
                None => Some(BriefReply::Added(self.value)),
            }
        } else {
            self.run(Some(delta))
        }
    }

    /// Brings what happened to it into the table and the record.
    #[inline]
    fn write(&self, shard: &mut Shard, now: Millis, draft: &mut Draft) {
        let before = match self.at {
            Some(at) => {
                shard.set_value(at, self.value);
                Before::Present
            }
            None => {
                let Lot { epoch, value, expires_at, .. } = *self;
                shard.put(self.hash, self.name.bytes(), Cell { epoch, value, expires_at });
                Before::Absent
            }
        };
        if self.durability > Durability::Memory {
            let Lot { name, epoch, value, expires_at, count, sum, .. } = *self;
            let before = if self.sure { before } else { Before::Unsure };
            let (name, own) = (name.bytes(), &[][..]);
            draft.push(now, &Entry::Cell { name, epoch, value, expires_at, count, sum, before, own });
        }
    }

    /// Looks at the counter; whether its commands can run.
    #[inline(always)]
    fn look(&mut self, shard: &mut Shard, now: Millis, full: bool) -> bool {
        if shard.splits.is_live(self.name.bytes()) {
            // Its lanes are to be joined first.
            return false;
        }
        let plain = self.at.and_then(|guess| shard.look_plain(guess, self.name.bytes()));
        let Some((value, epoch)) = plain else { return self.look_closely(shard, now, full) };
        (self.value, self.epoch, self.exists) = (value, epoch, true);
        true
    }

    /// The same, whatever there is to be seen.
    #[inline(never)]
    fn look_closely(&mut self, shard: &mut Shard, now: Millis, full: bool) -> bool {
        let (at, look) = shard.look_at(self.hash, self.name.bytes());
        match look {
            Look::Cell(Cell { epoch, value, expires_at }) => {
                (self.at, self.exists) = (at, true);
                (self.epoch, self.value, self.expires_at) = (epoch, value, expires_at);
                // What is no count is for the long way to refuse.
                expires_at.is_none_or(|at| at > now) && !at.is_some_and(|at| shard.is_sketch_at(at))
            }
            Look::Absent => {
                (self.at, self.epoch) = (None, shard.floor);
                !full && !self.special
            }
            Look::Unknown => false,
        }
    }
}

/// Runs commands on counters that were looked at; returns how many.
fn run_lots(
    briefs: &[Brief<'_>],
    together: &mut Together<'_>,
    (policies, held): (&Policies, &mut Held<'_>),
    mut tell: impl FnMut(BriefReply),
) -> usize {
    let Together { lots, lot_of, .. } = together;
    for (index, (brief, lot)) in briefs.iter().zip(lot_of).enumerate() {
        let Some(reply) = lots[usize::from(*lot)].run_any(brief.delta, policies, held) else { return index };
        tell(reply);
    }
    briefs.len()
}
