//! Queues the requirements of commands that cannot run yet: counters at rest, memory, walks over
//! all names, rows of the shared store, swaps and claims.
//!
//! In: a requirement. Out: its outcome, to the waiting command, which then runs again.
//!
//! Not here: meeting them (`seal::load`, `sharing`).

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use quipu_model::shared::{Change, ClaimToken};
use quipu_model::{NameBuf, Refusal, Reply};

use crate::base::sync::{Arc, AtomicBool, AtomicU64, Mutex, Ordering, lock};
use crate::journal::Wait;

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

/// A change that needs the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Swap {
    /// Names of the counters; several only for a delete.
    pub names: Vec<NameBuf>,
    /// The change.
    pub change: Change,
}

/// An add with a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenAdd {
    /// Its token: the key of an [`Identity`](quipu_model::Identity).
    pub token: ClaimToken,
    /// Name of the counter.
    pub name: NameBuf,
    /// The amount to add.
    pub delta: i64,
    /// Time for which the token is remembered.
    pub window: Duration,
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
    pub(crate) counters: Mutex<Vec<Arc<LoadJob>>>,
    pub(crate) walks: Mutex<Vec<Arc<LoadJob>>>,
    /// For the shared store: rows, until they have arrived; swaps and claims, until their thread
    /// takes them.
    rows: Mutex<Vec<Arc<LoadJob>>>,
    swaps: Mutex<Vec<Arc<LoadJob>>>,
    claims: Mutex<Vec<Arc<LoadJob>>>,
    pub(crate) lookups: AtomicU64,
    /// A load has waited for memory in vain, and there is none yet.
    pub(crate) starved: AtomicBool,
    /// Held by the loading thread.
    pub(crate) load_lock: Mutex<()>,
}

/// A load, and its waiter.
pub(crate) struct LoadJob {
    pub(crate) load: Load,
    pub(crate) asked_at: Duration,
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

    /// Number of look-ups in the ledger.
    pub fn lookups(&self) -> u64 {
        self.lookups.load(Ordering::Relaxed)
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
