//! Loads counters from the ledger, in groups, so that no worker waits for the disk.
//!
//! In: queued loads (`core::load`). Out: slots in the table, or a walk's reply; the load's waiter
//! is woken.
//!
//! Invariants:
//! - one thread at a time loads, and it reads only counters that it has seen to be non-resident. So
//!   no such counter can be loaded, changed, sealed and evicted again before the thread puts it
//!   into the table;
//! - a counter read before a flush is not put into the table after it;
//! - while memory is full nothing is loaded: a command waits until some is free, and is refused
//!   after a while.

use std::ops::ControlFlow;
use std::time::Duration;

use quipu_model::{LedgerError, ListNames, NameBuf, Pattern, Refusal, Scan};

use crate::base::failpoint::step;
use crate::base::sync::{Arc, Ordering, lock};
use crate::bodies::own_cells::OwnCells;
use crate::core::Core;
use crate::core::load::{Load, LoadOutcome};
use crate::execute::turn::Turn;
use crate::journal::Wait;
use crate::journal::format::Position;
use crate::table::Residency;
use crate::table::walk::{ShardWalk, list_names, scan};

/// Longest wait of a command for memory before it is refused: several seals, on a disk that works.
const MEMORY_WAIT_MAX: Duration = Duration::from_secs(5);

/// Most expired counters of a shard loaded at once, to be removed.
const SWEEP_NAMES_MAX: usize = 1_024;

impl Core {
    /// Loads the requested counters. Returns the numbers of finished loads and of loads that wait
    /// for memory.
    pub(crate) fn run_loads(&self) -> (usize, usize) {
        let _load_guard = lock(&self.loads.load_lock);
        let jobs = std::mem::take(&mut *lock(&self.loads.counters));
        let (mut done, mut waiting) = (0, Vec::new());
        // Without the background threads no memory is ever freed.
        let has_threads = self.signals.get().is_some_and(|signals| !signals.is_stopped());
        // Once one load has waited in vain, the others need not find out one by one.
        let starved = self.memory_is_full() && self.loads.starved.load(Ordering::Relaxed);
        let may_wait = has_threads && !starved;
        self.loads.starved.store(starved, Ordering::Relaxed);
        for job in jobs {
            let outcome = match &job.load {
                Load::Names(names) if !self.memory_is_overfull() => load_names(self, names),
                Load::Memory if !self.memory_is_full() => LoadOutcome::Retry,
                _ if may_wait && self.clock.elapsed().saturating_sub(job.asked_at) < MEMORY_WAIT_MAX => {
                    waiting.push(job);
                    continue;
                }
                _ => {
                    self.loads.starved.store(true, Ordering::Relaxed);
                    LoadOutcome::Refused(Refusal::NoMemory { bytes_max: self.options.memory_bytes_max.unwrap_or(0) })
                }
            };
            job.finish(outcome);
            done += 1;
        }
        let left = waiting.len();
        lock(&self.loads.counters).extend(waiting);
        (done, left)
    }

    /// Loads a counter, if it is at rest.
    pub(crate) fn load_counter(&self, name: &[u8]) -> Result<(), LedgerError> {
        let _load_guard = lock(&self.loads.load_lock);
        load_name(self, self.table.hash(name), name)
    }

    /// Runs the requested walks; returns their number. They only read, so they need not wait for
    /// one another.
    pub(crate) fn run_walks(&self) -> usize {
        let jobs = std::mem::take(&mut *lock(&self.loads.walks));
        // The caller may have gone away since, and a walk over everything takes long.
        for job in jobs.iter().filter(|job| Arc::strong_count(job) > 1) {
            job.finish(run_walk(self, &job.load));
        }
        jobs.len()
    }
}

fn run_walk(core: &Core, load: &Load) -> LoadOutcome {
    let ledger = Some(&*core.ledger);
    let mut shard_walk =
        ShardWalk { table: &core.table, ledger, now: core.now(), newest: Position(0), has_hidden_expired: false };
    let walked = match load {
        Load::Scan { cursor, pattern, count } => {
            let pattern = pattern.as_deref().map(Pattern);
            scan(&mut shard_walk, &Scan { cursor: *cursor, pattern, count: *count })
        }
        Load::List { pattern, bytes_max } => {
            list_names(&mut shard_walk, &ListNames { pattern: Pattern(pattern), bytes_max: *bytes_max })
        }
        Load::Names(_) | Load::Memory | Load::Rows(_) | Load::Swap(_) | Load::Once(_) => return LoadOutcome::Retry,
    };
    if shard_walk.has_hidden_expired {
        // A counter shown as expired stays expired.
        let mut turn = Turn::new(core);
        shard_walk.newest = shard_walk.newest.max(turn.journal_time());
        turn.finish();
    }
    match walked {
        Ok(reply) => {
            LoadOutcome::Reply(reply, Wait::for_durability(core.namespaces.current().strictest(), shard_walk.newest))
        }
        Err(refusal) => LoadOutcome::Refused(refusal),
    }
}

fn load_names(core: &Core, names: &[NameBuf]) -> LoadOutcome {
    let mut hashed: Vec<(u64, &[u8])> = names.iter().map(|name| (core.table.hash(name), &**name)).collect();
    // In the ledger's order, so that neighbours are read from one block.
    hashed.sort_unstable();
    let mut outcome = LoadOutcome::Retry;
    for (hash, name) in hashed {
        // The command needs the first counter; later commands may need the others, and request them
        // then.
        if let Err(error) = load_name(core, hash, name)
            && names.first().is_some_and(|first| **first == *name)
        {
            outcome = LoadOutcome::Refused(Refusal::AtRest { reason: error.to_string() });
        }
    }
    outcome
}

fn load_name(core: &Core, hash: u64, name: &[u8]) -> Result<(), LedgerError> {
    let (table, index) = (&core.table, core.table.shard_of(hash));
    let flushes = {
        let mut shard = table.lock(index);
        if shard.find(hash, name) != Residency::NotResident {
            return Ok(());
        }
        // A flush counts up while it holds every shard.
        core.flush().count
    };
    step!("loading");
    let cell = core.ledger.get(hash, name)?;
    let own = match core.shared {
        Some(_) => core.ledger.own_cells(hash, name)?,
        None => None,
    };
    let own = own.map(|bytes| OwnCells::decode(&bytes).ok_or_else(own_cells_damage)).transpose()?.map(Box::new);
    core.loads.lookups.fetch_add(1, Ordering::Relaxed);
    table.with_shard(index, |shard| {
        if core.flush().count == flushes {
            shard.load(hash, name, cell, own);
        }
    });
    step!("loaded");
    Ok(())
}

/// The error for own cells at rest that cannot be decoded.
pub(crate) fn own_cells_damage() -> LedgerError {
    LedgerError::Damaged("what this node says of a counter on a shared store makes no sense".to_owned())
}

/// Loads counters of a shard that have expired at rest, so that they are removed. Returns true if
/// there were any.
pub fn sweep(core: &Core, index: usize) -> Result<bool, LedgerError> {
    let _load_guard = lock(&core.loads.load_lock);
    let (table, now) = (&core.table, core.now());
    let collections = {
        let shard = table.lock(index);
        if !shard.unloaded || shard.ledger_deadline.is_none_or(|at| at > now) || core.memory_is_full() {
            return Ok(false);
        }
        shard.collections
    };
    let (mut expired, mut deadline) = (Vec::new(), None);
    core.ledger.range(table.first_hash(index), &mut |hash, name, cell| {
        if table.shard_of(hash) != index {
            return ControlFlow::Break(());
        }
        match cell.expires_at {
            Some(at) if at <= now && expired.len() < SWEEP_NAMES_MAX => expired.push((hash, NameBuf::from(name))),
            Some(at) => deadline = Some(deadline.map_or(at, |earliest: quipu_model::Millis| earliest.min(at))),
            None => {}
        }
        ControlFlow::Continue(())
    })?;
    for (hash, name) in &expired {
        load_name(core, *hash, name)?;
    }
    if !expired.is_empty() {
        step!("swept");
    }
    let mut shard = table.lock(index);
    // A cell sealed meanwhile may expire earlier than the ones seen.
    if shard.collections == collections {
        shard.ledger_deadline = deadline;
    }
    Ok(!expired.is_empty())
}
