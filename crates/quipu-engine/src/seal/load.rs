//! Loads counters from the ledger, in groups, so that no worker waits for the disk.
//!
//! In: names that a command found neither present nor absent, or a walk over all names. Out: slots
//! in the table, or the walk's reply. Then the waiting command is woken and runs again.
//!
//! Invariants:
//! - one thread at a time loads, and it reads only counters that it has seen to be non-resident. So
//!   no such counter can be loaded, changed, sealed and evicted again before the thread puts it
//!   into the table;
//! - a counter read before a flush is not put into the table after it;
//! - while memory is full nothing is loaded: a command waits until some is free, and is refused
//!   after a while.

use std::collections::BTreeSet;
use std::future::Future;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use quipu_model::{LedgerError, ListNames, NameBuf, Pattern, Refusal, Reply, Scan};

use crate::base::failpoint::step;
use crate::base::sync::{Arc, AtomicBool, AtomicU64, Mutex, Ordering, lock};
use crate::bodies::own_cells::OwnCells;
use crate::engine::Inner;
use crate::journal::Wait;
use crate::journal::format::Position;
use crate::sharing::{Swap, TokenAdd};
use crate::table::Residency;
use crate::table::walk::{ShardWalk, list_names, scan};

/// Longest wait of a command for memory before it is refused: several seals, on a disk that works.
const MEMORY_WAIT_MAX: Duration = Duration::from_secs(5);

/// Most expired counters of a shard loaded at once, to be removed.
const SWEEP_NAMES_MAX: usize = 1_024;

/// A command's requirement before it can run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Load {
    /// These counters.
    Names(Vec<NameBuf>),
    /// Memory for a new counter.
    Memory,
    /// One page of all names.
    Scan {
        /// Cursor at which to begin.
        cursor: u64,
        /// Pattern of the names.
        pattern: Option<Box<[u8]>>,
        /// Approximate number of names.
        count: usize,
    },
    /// All names that match.
    List {
        /// Pattern of the names.
        pattern: Box<[u8]>,
        /// Most bytes of names.
        bytes_max: usize,
    },
    /// Rows of these counters from the shared store.
    Rows(Vec<NameBuf>),
    /// A change that the shared store carries out.
    Swap(Box<Swap>),
    /// An add with a token, which is claimed at the shared store first.
    Once(Box<TokenAdd>),
}

/// Outcome of a load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LoadOutcome {
    /// The requirement is met: run the command again.
    Retry,
    /// Rows requested at that time or later have arrived. Run the command again, with
    /// [`Turn::rows_since`](crate::Turn::rows_since). If it waits more than once, the first time
    /// counts.
    Fetched(Duration),
    /// The walk's reply, and the positions that it must wait for.
    Reply(Reply, Wait),
    /// It cannot be done; nothing was applied.
    Refused(Refusal),
    /// Outcome unknown: there is no reply.
    Unknown,
}

impl LoadOutcome {
    /// A reply that waits for nothing.
    pub(crate) fn reply(reply: Reply) -> LoadOutcome {
        LoadOutcome::Reply(reply, Wait::default())
    }
}

/// Loads that wait for their thread. A connection or a thread waits for each, so there are no more
/// than of those.
#[derive(Default)]
pub struct LoadQueues {
    counters: Mutex<Vec<Arc<LoadJob>>>,
    walks: Mutex<Vec<Arc<LoadJob>>>,
    /// For the shared store: rows, until they have arrived; swaps and claims, until their thread
    /// takes them.
    rows: Mutex<Vec<Arc<LoadJob>>>,
    swaps: Mutex<Vec<Arc<LoadJob>>>,
    claims: Mutex<Vec<Arc<LoadJob>>>,
    lookups: AtomicU64,
    /// A load has waited for memory in vain, and there is none yet.
    starved: AtomicBool,
    /// Held by the loading thread.
    load_lock: Mutex<()>,
}

/// A load, and its waiter.
pub(crate) struct LoadJob {
    load: Load,
    asked_at: Duration,
    /// The awaited rows that have arrived.
    landed: Mutex<BTreeSet<NameBuf>>,
    state: Mutex<LoadState>,
}

#[derive(Default)]
struct LoadState {
    outcome: Option<LoadOutcome>,
    waker: Option<Waker>,
}

/// Resolves when a load is done.
pub struct LoadFuture(Arc<LoadJob>);

impl LoadQueues {
    /// Queues a load requested at `asked_at`.
    pub fn enqueue(&self, load: Load, asked_at: Duration) -> LoadFuture {
        let queue = match &load {
            Load::Names(_) | Load::Memory => &self.counters,
            Load::Scan { .. } | Load::List { .. } => &self.walks,
            Load::Rows(_) => &self.rows,
            Load::Swap(_) => &self.swaps,
            Load::Once(_) => &self.claims,
        };
        let job = Arc::new(LoadJob { load, asked_at, landed: Mutex::default(), state: Mutex::default() });
        lock(queue).push(job.clone());
        LoadFuture(job)
    }

    /// Loads the requested counters. Returns the numbers of finished loads and of loads that wait
    /// for memory.
    pub fn run_loads(&self, inner: &Inner) -> (usize, usize) {
        let _load_guard = lock(&self.load_lock);
        let jobs = std::mem::take(&mut *lock(&self.counters));
        let (mut done, mut waiting) = (0, Vec::new());
        // Without the background threads no memory is ever freed.
        let has_threads = inner.signals.get().is_some_and(|signals| !signals.is_stopped());
        // Once one load has waited in vain, the others need not find out one by one.
        let starved = inner.memory_is_full() && self.starved.load(Ordering::Relaxed);
        let may_wait = has_threads && !starved;
        self.starved.store(starved, Ordering::Relaxed);
        for job in jobs {
            let outcome = match &job.load {
                Load::Names(names) if !inner.memory_is_overfull() => load_names(inner, names),
                Load::Memory if !inner.memory_is_full() => LoadOutcome::Retry,
                _ if may_wait && inner.clock.elapsed().saturating_sub(job.asked_at) < MEMORY_WAIT_MAX => {
                    waiting.push(job);
                    continue;
                }
                _ => {
                    self.starved.store(true, Ordering::Relaxed);
                    LoadOutcome::Refused(Refusal::NoMemory { bytes_max: inner.options.memory_bytes_max.unwrap_or(0) })
                }
            };
            job.finish(outcome);
            done += 1;
        }
        let left = waiting.len();
        lock(&self.counters).extend(waiting);
        (done, left)
    }

    // ---- for the shared store ----

    /// Counters with awaited rows.
    pub(crate) fn awaited_rows(&self) -> BTreeSet<NameBuf> {
        let mut rows = lock(&self.rows);
        // The caller may have gone away since.
        rows.retain(|job| Arc::strong_count(job) > 1);
        rows.iter().flat_map(|job| job.awaited_rows()).collect()
    }

    /// Marks a row requested at `asked_at` as arrived, and takes the loads that wait for nothing
    /// else. A later load waits for the next row.
    pub(crate) fn take_landed_rows(&self, name: &NameBuf, asked_at: Duration) -> Vec<Arc<LoadJob>> {
        let mut rows = lock(&self.rows);
        rows.extract_if(.., |job| job.asked_at <= asked_at && job.record_landed(name)).collect()
    }

    /// Takes the loads that wait for this row, among others.
    pub(crate) fn take_rows(&self, name: &NameBuf) -> Vec<Arc<LoadJob>> {
        lock(&self.rows).extract_if(.., |job| job.rows().contains(name)).collect()
    }

    /// Takes the loads that have waited for rows for at least `wait`.
    pub(crate) fn take_late_rows(&self, now: Duration, wait: Duration) -> Vec<Arc<LoadJob>> {
        let mut rows = lock(&self.rows);
        rows.extract_if(.., |job| now.saturating_sub(job.asked_at) >= wait).collect()
    }

    /// Takes the awaited swaps.
    pub(crate) fn take_swaps(&self) -> Vec<Arc<LoadJob>> {
        std::mem::take(&mut *lock(&self.swaps))
    }

    /// Takes an add with a token.
    pub(crate) fn take_claim(&self) -> Option<Arc<LoadJob>> {
        let mut claims = lock(&self.claims);
        if claims.is_empty() { None } else { Some(claims.remove(0)) }
    }

    /// Loads a counter, if it is at rest.
    pub(crate) fn load_counter(&self, inner: &Inner, name: &[u8]) -> Result<(), LedgerError> {
        let _load_guard = lock(&self.load_lock);
        load_name(inner, inner.table.hash(name), name)
    }

    /// Number of look-ups in the ledger.
    pub fn lookups(&self) -> u64 {
        self.lookups.load(Ordering::Relaxed)
    }

    /// Runs the requested walks; returns their number. They only read, so they need not wait for
    /// one another.
    pub fn run_walks(&self, inner: &Inner) -> usize {
        let jobs = std::mem::take(&mut *lock(&self.walks));
        // The caller may have gone away since, and a walk over everything takes long.
        for job in jobs.iter().filter(|job| Arc::strong_count(job) > 1) {
            job.finish(run_walk(inner, &job.load));
        }
        jobs.len()
    }
}

impl LoadJob {
    /// The awaited rows.
    pub(crate) fn rows(&self) -> &[NameBuf] {
        if let Load::Rows(names) = &self.load { names } else { &[] }
    }

    /// The rows that have not arrived yet.
    fn awaited_rows(&self) -> Vec<NameBuf> {
        let landed = lock(&self.landed);
        self.rows().iter().filter(|name| !landed.contains(*name)).cloned().collect()
    }

    /// Marks a row as arrived; returns true if it was the last awaited one.
    fn record_landed(&self, name: &NameBuf) -> bool {
        if !self.rows().contains(name) {
            return false;
        }
        lock(&self.landed).insert(name.clone());
        self.awaited_rows().is_empty()
    }

    /// Finishes the load: its rows have arrived.
    pub(crate) fn finish_fetched(&self) {
        self.finish(LoadOutcome::Fetched(self.asked_at));
    }

    /// The awaited swap.
    pub(crate) fn swap(&self) -> Option<&Swap> {
        if let Load::Swap(swap) = &self.load { Some(swap) } else { None }
    }

    /// The awaited add with a token.
    pub(crate) fn once(&self) -> Option<&TokenAdd> {
        if let Load::Once(once) = &self.load { Some(once) } else { None }
    }

    pub(crate) fn finish(&self, outcome: LoadOutcome) {
        let mut state = lock(&self.state);
        state.outcome = Some(outcome);
        if let Some(waker) = state.waker.take() {
            drop(state);
            waker.wake();
        }
    }
}

fn run_walk(inner: &Inner, load: &Load) -> LoadOutcome {
    let ledger = Some(&*inner.ledger);
    let mut shard_walk =
        ShardWalk { table: &inner.table, ledger, now: inner.now(), newest: Position(0), has_hidden_expired: false };
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
        let mut turn = crate::execute::turn::Turn::new(inner);
        shard_walk.newest = shard_walk.newest.max(turn.journal_time());
        turn.finish();
    }
    match walked {
        Ok(reply) => {
            LoadOutcome::Reply(reply, Wait::for_durability(inner.namespaces.current().strictest(), shard_walk.newest))
        }
        Err(refusal) => LoadOutcome::Refused(refusal),
    }
}

fn load_names(inner: &Inner, names: &[NameBuf]) -> LoadOutcome {
    let mut hashed: Vec<(u64, &[u8])> = names.iter().map(|name| (inner.table.hash(name), &**name)).collect();
    // In the ledger's order, so that neighbours are read from one block.
    hashed.sort_unstable();
    let mut outcome = LoadOutcome::Retry;
    for (hash, name) in hashed {
        // The command needs the first counter; later commands may need the others, and request them
        // then.
        if let Err(error) = load_name(inner, hash, name)
            && names.first().is_some_and(|first| **first == *name)
        {
            outcome = LoadOutcome::Refused(Refusal::AtRest { reason: error.to_string() });
        }
    }
    outcome
}

fn load_name(inner: &Inner, hash: u64, name: &[u8]) -> Result<(), LedgerError> {
    let (table, index) = (&inner.table, inner.table.shard_of(hash));
    let flushes = {
        let mut shard = table.lock(index);
        if shard.find(hash, name) != Residency::NotResident {
            return Ok(());
        }
        // A flush counts up while it holds every shard.
        inner.flush().count
    };
    step!("loading");
    let cell = inner.ledger.get(hash, name)?;
    let own = match inner.shared {
        Some(_) => inner.ledger.own_cells(hash, name)?,
        None => None,
    };
    let own = own.map(|bytes| OwnCells::decode(&bytes).ok_or_else(own_cells_damage)).transpose()?.map(Box::new);
    inner.loads.lookups.fetch_add(1, Ordering::Relaxed);
    table.with_shard(index, |shard| {
        if inner.flush().count == flushes {
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
pub fn sweep(inner: &Inner, index: usize) -> Result<bool, LedgerError> {
    let _load_guard = lock(&inner.loads.load_lock);
    let (table, now) = (&inner.table, inner.now());
    let collections = {
        let shard = table.lock(index);
        if !shard.unloaded || shard.ledger_deadline.is_none_or(|at| at > now) || inner.memory_is_full() {
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
            Some(at) if at <= now && expired.len() < SWEEP_NAMES_MAX => expired.push((hash, NameBuf::from(name))),
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
    // A cell sealed meanwhile may expire earlier than the ones seen.
    if shard.collections == collections {
        shard.ledger_deadline = deadline;
    }
    Ok(!expired.is_empty())
}

impl Future for LoadFuture {
    type Output = LoadOutcome;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<LoadOutcome> {
        let mut state = lock(&self.0.state);
        match state.outcome.take() {
            Some(outcome) => Poll::Ready(outcome),
            None => {
                state.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}
