//! Brings counters back from the ledger, in groups, so that no worker waits for the disk.
//!
//! In: names that a command found neither present nor absent, or a walk over all names. Out: slots in the table, or the walk's reply; then whoever
//! waits is woken and runs its command again.
//!
//! Invariants:
//! - one thread at a time loads, and it reads only what it has seen to be unknown: so what it read cannot have been loaded, changed, sealed and dropped again
//!   before it is put into the table;
//! - what was read before a flush is not put into the table after it;
//! - while memory is full nothing is loaded: whoever asks waits until some was given back, and is refused after a while.

use std::collections::BTreeSet;
use std::future::Future;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use quipu_model::{KeptName, LedgerError, ListNames, Pattern, Refusal, Reply, Scan};

use crate::apply::table::Look;
use crate::apply::{Passing, list_names, scan};
use crate::engine::Inner;
use crate::failpoint::step;
use crate::journal::Wait;
use crate::journal::format::Position;
use crate::sharing::own::Owned;
use crate::sharing::{Once, Swap};
use crate::sync::{Arc, AtomicBool, AtomicU64, Mutex, Ordering, lock};

/// So long a command waits for memory before it is refused: several seals, on a disk that works.
const MEMORY_WAIT_MAX: Duration = Duration::from_secs(5);

/// So many expired counters of a shard are brought back at once, to be removed.
const SWEEP_NAMES_MAX: usize = 1_024;

/// What a command needs before it can run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Load {
    /// These counters.
    Names(Vec<KeptName>),
    /// Memory for a new counter.
    Memory,
    /// All names, a page of them.
    Scan {
        /// Where to begin.
        cursor: u64,
        /// Which.
        pattern: Option<Box<[u8]>>,
        /// About how many.
        count: usize,
    },
    /// All names that match.
    List {
        /// Which.
        pattern: Box<[u8]>,
        /// How many bytes of them at most.
        bytes_max: usize,
    },
    /// What the shared store has of these counters.
    Rows(Vec<KeptName>),
    /// A change that the shared store carries out.
    Swap(Box<Swap>),
    /// An add with a token, which is claimed at the shared store first.
    Once(Box<Once>),
}

/// What loading came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Loaded {
    /// What was missing is here: run the command again.
    Again,
    /// Rows are here that were asked for then, or later: run the command again, with [`Turn::rows_since`](crate::Turn::rows_since). If it has to wait
    /// more than once, the first time counts.
    Fetched(Duration),
    /// The walk's reply, and what it must wait for.
    Reply(Reply, Wait),
    /// It cannot be done; nothing was applied.
    Refused(Refusal),
    /// Nobody can tell whether it was done: there is no reply.
    Unknown,
}

impl Loaded {
    /// A reply that waits for nothing.
    pub(crate) fn reply(reply: Reply) -> Loaded {
        Loaded::Reply(reply, Wait::default())
    }
}

/// Loads that wait for their thread. Each is asked for by a connection or a thread that waits for it, so there are no more than of those.
#[derive(Default)]
pub struct Loads {
    counters: Mutex<Vec<Arc<Job>>>,
    walks: Mutex<Vec<Arc<Job>>>,
    /// For the shared store: rows, until they have landed; swaps and claims, until someone takes them.
    rows: Mutex<Vec<Arc<Job>>>,
    swaps: Mutex<Vec<Arc<Job>>>,
    onces: Mutex<Vec<Arc<Job>>>,
    loaded: AtomicU64,
    /// Somebody has waited for memory in vain, and there is none yet.
    starved: AtomicBool,
    /// Held by whoever loads.
    loading: Mutex<()>,
}

/// A load, and who waits for it.
pub(crate) struct Job {
    load: Load,
    asked_at: Duration,
    /// Of the rows that are waited for, those that have landed.
    landed: Mutex<BTreeSet<KeptName>>,
    state: Mutex<JobState>,
}

#[derive(Default)]
struct JobState {
    loaded: Option<Loaded>,
    waker: Option<Waker>,
}

/// Resolves when a load is done.
pub struct Loading(Arc<Job>);

impl Loads {
    /// Asks for a load, at a time.
    pub fn ask(&self, load: Load, asked_at: Duration) -> Loading {
        let queue = match &load {
            Load::Names(_) | Load::Memory => &self.counters,
            Load::Scan { .. } | Load::List { .. } => &self.walks,
            Load::Rows(_) => &self.rows,
            Load::Swap(_) => &self.swaps,
            Load::Once(_) => &self.onces,
        };
        let job = Arc::new(Job { load, asked_at, landed: Mutex::default(), state: Mutex::default() });
        lock(queue).push(job.clone());
        Loading(job)
    }

    /// Brings back the counters that were asked for; returns how many loads are done, and how many wait for memory.
    pub fn run(&self, inner: &Inner) -> (usize, usize) {
        let _loading = lock(&self.loading);
        let jobs = std::mem::take(&mut *lock(&self.counters));
        let (mut done, mut waiting) = (0, Vec::new());
        // Without the threads of a driver nobody is going to give memory back.
        let driven = inner.kick.get().is_some_and(|kick| !kick.is_stopped());
        // Once one has waited in vain, the others need not find out one by one.
        let starved = inner.memory_is_full() && self.starved.load(Ordering::Relaxed);
        let patient = driven && !starved;
        self.starved.store(starved, Ordering::Relaxed);
        for job in jobs {
            let loaded = match &job.load {
                Load::Names(names) if !inner.memory_is_overfull() => load_names(inner, names),
                Load::Memory if !inner.memory_is_full() => Loaded::Again,
                _ if patient && inner.clock.elapsed().saturating_sub(job.asked_at) < MEMORY_WAIT_MAX => {
                    waiting.push(job);
                    continue;
                }
                _ => {
                    self.starved.store(true, Ordering::Relaxed);
                    Loaded::Refused(Refusal::NoMemory { bytes_max: inner.options.memory_bytes_max.unwrap_or(0) })
                }
            };
            job.finish(loaded);
            done += 1;
        }
        let left = waiting.len();
        lock(&self.counters).extend(waiting);
        (done, left)
    }

    // ---- for the shared store ---------------------------------------------------------------------------------------------------

    /// Counters whose rows are waited for.
    pub(crate) fn wanted_rows(&self) -> BTreeSet<KeptName> {
        let mut rows = lock(&self.rows);
        // Whoever asked may have gone away since.
        rows.retain(|job| Arc::strong_count(job) > 1);
        rows.iter().flat_map(|job| job.awaited()).collect()
    }

    /// A row has landed that was asked for then; takes those who wait for nothing else. Whoever asked later waits for the next one.
    pub(crate) fn landed_rows(&self, name: &KeptName, asked_at: Duration) -> Vec<Arc<Job>> {
        let mut rows = lock(&self.rows);
        rows.extract_if(.., |job| job.asked_at <= asked_at && job.land(name)).collect()
    }

    /// Takes those who wait for this row, among others.
    pub(crate) fn take_rows(&self, name: &KeptName) -> Vec<Arc<Job>> {
        lock(&self.rows).extract_if(.., |job| job.rows().contains(name)).collect()
    }

    /// Takes those who have waited for rows for that long.
    pub(crate) fn late_rows(&self, now: Duration, wait: Duration) -> Vec<Arc<Job>> {
        let mut rows = lock(&self.rows);
        rows.extract_if(.., |job| now.saturating_sub(job.asked_at) >= wait).collect()
    }

    /// Takes the swaps that are waited for.
    pub(crate) fn take_swaps(&self) -> Vec<Arc<Job>> {
        std::mem::take(&mut *lock(&self.swaps))
    }

    /// Takes an add with a token.
    pub(crate) fn take_once(&self) -> Option<Arc<Job>> {
        let mut onces = lock(&self.onces);
        if onces.is_empty() { None } else { Some(onces.remove(0)) }
    }

    /// Brings a counter back, if it is at rest.
    pub(crate) fn bring_back(&self, inner: &Inner, name: &[u8]) -> Result<(), LedgerError> {
        let _loading = lock(&self.loading);
        load_name(inner, inner.table.hash(name), name)
    }

    /// How many counters were looked for in the ledger.
    pub fn loaded(&self) -> u64 {
        self.loaded.load(Ordering::Relaxed)
    }

    /// Walks, for those who asked; returns how many did. They read only, so they need not wait for one another.
    pub fn walk(&self, inner: &Inner) -> usize {
        let jobs = std::mem::take(&mut *lock(&self.walks));
        // Whoever asked may have gone away since, and a walk over everything takes long.
        for job in jobs.iter().filter(|job| Arc::strong_count(job) > 1) {
            job.finish(walk(inner, &job.load));
        }
        jobs.len()
    }
}

impl Job {
    /// The rows that are waited for.
    pub(crate) fn rows(&self) -> &[KeptName] {
        if let Load::Rows(names) = &self.load { names } else { &[] }
    }

    /// The rows that have not landed yet.
    fn awaited(&self) -> Vec<KeptName> {
        let landed = lock(&self.landed);
        self.rows().iter().filter(|name| !landed.contains(*name)).cloned().collect()
    }

    /// A row has landed; whether that was the last one that is waited for.
    fn land(&self, name: &KeptName) -> bool {
        if !self.rows().contains(name) {
            return false;
        }
        lock(&self.landed).insert(name.clone());
        self.awaited().is_empty()
    }

    /// Its rows are here.
    pub(crate) fn fetched(&self) {
        self.finish(Loaded::Fetched(self.asked_at));
    }

    /// The swap that is waited for.
    pub(crate) fn swap(&self) -> Option<&Swap> {
        if let Load::Swap(swap) = &self.load { Some(swap) } else { None }
    }

    /// The add with a token that is waited for.
    pub(crate) fn once(&self) -> Option<&Once> {
        if let Load::Once(once) = &self.load { Some(once) } else { None }
    }

    pub(crate) fn finish(&self, loaded: Loaded) {
        let mut state = lock(&self.state);
        state.loaded = Some(loaded);
        if let Some(waker) = state.waker.take() {
            drop(state);
            waker.wake();
        }
    }
}

fn walk(inner: &Inner, load: &Load) -> Loaded {
    let ledger = Some(&*inner.ledger);
    let mut passing = Passing { table: &inner.table, ledger, now: inner.now(), newest: Position(0), hidden: false };
    let walked = match load {
        Load::Scan { cursor, pattern, count } => {
            let pattern = pattern.as_deref().map(Pattern);
            scan(&mut passing, &Scan { cursor: *cursor, pattern, count: *count })
        }
        Load::List { pattern, bytes_max } => {
            list_names(&mut passing, &ListNames { pattern: Pattern(pattern), bytes_max: *bytes_max })
        }
        Load::Names(_) | Load::Memory | Load::Rows(_) | Load::Swap(_) | Load::Once(_) => return Loaded::Again,
    };
    if passing.hidden {
        // What was shown as expired stays so.
        let mut turn = crate::turn::Turn::new(inner);
        passing.newest = passing.newest.max(turn.note_time());
        turn.finish();
    }
    match walked {
        Ok(reply) => Loaded::Reply(reply, Wait::for_durability(inner.namespaces.now().strictest(), passing.newest)),
        Err(refusal) => Loaded::Refused(refusal),
    }
}

fn load_names(inner: &Inner, names: &[KeptName]) -> Loaded {
    let mut hashed: Vec<(u64, &[u8])> = names.iter().map(|name| (inner.table.hash(name), &**name)).collect();
    // In the ledger's order, so that neighbours are read from one block.
    hashed.sort_unstable();
    let mut loaded = Loaded::Again;
    for (hash, name) in hashed {
        // The first is needed by the command that asks; the others perhaps by later ones, which will ask for themselves.
        if let Err(error) = load_name(inner, hash, name)
            && names.first().is_some_and(|first| **first == *name)
        {
            loaded = Loaded::Refused(Refusal::AtRest { reason: error.to_string() });
        }
    }
    loaded
}

fn load_name(inner: &Inner, hash: u64, name: &[u8]) -> Result<(), LedgerError> {
    let (table, index) = (&inner.table, inner.table.shard_of(hash));
    let flushes = {
        let mut shard = table.lock(index);
        if shard.look(hash, name) != Look::Unknown {
            return Ok(());
        }
        // A flush counts up while it holds every shard.
        inner.flush().count
    };
    step!("loading");
    let cell = inner.ledger.get(hash, name)?;
    let own = match inner.shared {
        Some(_) => inner.ledger.own(hash, name)?,
        None => None,
    };
    let own = own.map(|bytes| Owned::decode(&bytes).ok_or_else(own_damage)).transpose()?.map(Box::new);
    inner.loads.loaded.fetch_add(1, Ordering::Relaxed);
    table.with(index, |shard| {
        if inner.flush().count == flushes {
            shard.load(hash, name, cell, own);
        }
    });
    step!("loaded");
    Ok(())
}

/// What is at rest of own cells makes no sense.
pub(crate) fn own_damage() -> LedgerError {
    LedgerError::Damaged("what this node says of a counter on a shared store makes no sense".to_owned())
}

/// Brings back counters of a shard that have expired at rest, so that they are removed; whether there were any.
pub fn sweep(inner: &Inner, index: usize) -> Result<bool, LedgerError> {
    let _loading = lock(&inner.loads.loading);
    let (table, now) = (&inner.table, inner.now());
    let collections = {
        let shard = table.lock(index);
        if !shard.unloaded || shard.rest_deadline.is_none_or(|at| at > now) || inner.memory_is_full() {
            return Ok(false);
        }
        shard.collections
    };
    let (mut expired, mut deadline) = (Vec::new(), None);
    inner.ledger.range(table.first_hash(index), &mut |hash, name, cell| {
        if table.shard_of(hash) != index {
            return ControlFlow::Break(());
        }
        match cell.expires_at {
            Some(at) if at <= now && expired.len() < SWEEP_NAMES_MAX => expired.push((hash, KeptName::from(name))),
            Some(at) => deadline = Some(deadline.map_or(at, |earliest: quipu_model::Millis| earliest.min(at))),
            None => {}
        }
        ControlFlow::Continue(())
    })?;
    for (hash, name) in &expired {
        load_name(inner, *hash, name)?;
    }
    if !expired.is_empty() {
        step!("swept");
    }
    let mut shard = table.lock(index);
    // What was sealed meanwhile may expire earlier than what was seen.
    if shard.collections == collections {
        shard.rest_deadline = deadline;
    }
    Ok(!expired.is_empty())
}

impl Future for Loading {
    type Output = Loaded;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Loaded> {
        let mut state = lock(&self.0.state);
        match state.loaded.take() {
            Some(loaded) => Poll::Ready(loaded),
            None => {
                state.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}
