//! Many nodes: own cells go to the store, rows come back, and what is not an add is swapped there.
//!
//! In: the node's own cells, as the journal has them, and commands that cannot be carried out without the store. Out: puts, swaps and registrations; what a
//! counter is shown as.
//!
//! ```text
//! bodies   own bodies of sketches that changed ─► put of their pages; those of others ─► shown sketch
//! settle   own cells that changed ─► put ─► verdicts ─► carry, or settle late
//! fetch    commands that wait for a row, counters read lately ─► read ─► shown value
//! swap     SET GETSET DEL EXPIRE … ─► read ─► compute ─► swap ─► reply
//! lease    who this node is, and that it is still there
//! health   whether the store can be reached
//! name     what people call this node
//! audit    all own cells, again
//! restore  claims of tokens, again
//! retire   writers that are gone
//! adopt    lives of this node that the store has forgotten, by an operator's word
//! ```
//!
//! Each is a future of one bounded round and may be dropped wherever it waits: what the store did meanwhile is found out by asking it again. The
//! driver's threads run them on a machine, a simulator polls them one answer at a time.
//!
//! Invariants:
//! - nothing leaves the node that is not synced in its journal, except of memory namespaces;
//! - nothing is put without a lease; nothing is done for an older life without holding its registration;
//! - no lock is held while the store is waited for.
//!
//! Not here: what verdicts and rows mean (`quipu_model::shared`), applying adds (`apply`).

pub mod own;

mod adopt;
mod audit;
mod bodies;
mod claim;
mod dump;
mod fetch;
mod health;
mod lease;
mod name;
mod options;
mod restore;
mod retire;
mod routing;
mod settle;
mod shared_counter;
mod swap;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use quipu_model::shared::Holder;
use quipu_model::{Incarnation, NameBuf, NodeId, Refusal, Rng, Store, StoreError, Writer};

pub use self::adopt::{AdoptError, AdoptionReport, UnconfirmedAdds};
pub(crate) use self::bodies::ShownBody;
pub use self::claim::TokenAdd;
pub use self::dump::{MergeError, dump_bodies};
pub use self::health::StoreHealth;
pub(crate) use self::lease::CleanStop;
pub use self::lease::Membership;
pub use self::options::{SHARDS_MAX, Secret, ShardPick, SharePolicy, SharingOptions};
pub use self::routing::{RowCheck, ShardPicker, StoreNeed, store_need, target_names};
pub use self::shared_counter::SharedCounter;
pub use self::swap::Swap;
use crate::engine::Inner;
use crate::sync::{Arc, AtomicBool, AtomicU64, Mutex, Ordering, lock};

/// The first wait after an error of the store, and the longest. Jitter keeps nodes that failed together from coming back together.
const BACKOFF_MIN: Duration = Duration::from_millis(20);
const BACKOFF_MAX: Duration = Duration::from_secs(5);

/// What all handles share of it.
pub(crate) struct StoreLink {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) options: SharingOptions,
    rng: Arc<dyn Rng>,
    node: NodeId,
    holder: Holder,
    /// The present incarnation.
    incarnation: AtomicU64,
    /// Whether it has cells.
    has_added: AtomicBool,
    lease: Mutex<lease::Lease>,
    /// Whether it says that nothing is counted any more: asked before every command.
    fenced: AtomicBool,
    /// Writers that the registry knew when it was last read.
    registered: Mutex<Arc<BTreeSet<Writer>>>,
    /// Counters read lately, to be fetched before their time is up.
    refresh_queue: Mutex<BTreeSet<NameBuf>>,
    swaps: Mutex<Vec<swap::PendingSwap>>,
    /// What has to be done for own cells by a swap.
    repairs: Mutex<BTreeSet<NameBuf>>,
    audit: Mutex<audit::StoreAudit>,
    retirement_walk: Mutex<Option<retire::RetirementWalk>>,
    /// When the store may be asked again after an error, by call.
    pauses: Mutex<BTreeMap<&'static str, CallPause>>,
    probe: Mutex<health::Probe>,
    registry: Mutex<health::RegistryRoom>,
    name: Mutex<name::NodeName>,
    failure_log: Mutex<settle::FailureLog>,
    /// Attempts of adds with tokens that are under way.
    attempts: Mutex<BTreeSet<u64>>,
    restoration: Mutex<restore::ClaimRestoration>,
    history: Mutex<restore::KnownHistory>,
    metrics: SharingMetrics,
}

/// What has happened since the start.
#[derive(Default)]
struct SharingMetrics {
    puts: AtomicU64,
    failed_puts: AtomicU64,
    bodies: AtomicU64,
    pages: AtomicU64,
    pages_bytes: AtomicU64,
    rows: AtomicU64,
    swaps: AtomicU64,
    carries: AtomicU64,
    late: AtomicU64,
    closed: AtomicU64,
    folded: AtomicU64,
    errors: AtomicU64,
    losses: AtomicU64,
    claims_restored: AtomicU64,
    claim_conflicts: AtomicU64,
}

/// What sharing has come to since the start, for INFO and metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SharingStats {
    /// Cells put.
    pub puts: u64,
    /// Times a counter was put and the store gave no verdict, though it answered.
    pub failed_puts: u64,
    /// Bodies of sketches put.
    pub bodies: u64,
    /// Pages of them.
    pub pages: u64,
    /// Bytes of these pages.
    pub pages_bytes: u64,
    /// Rows read.
    pub rows: u64,
    /// Swaps carried out.
    pub swaps: u64,
    /// Cells that went on under another epoch.
    pub carries: u64,
    /// Cells of older lives settled late.
    pub late: u64,
    /// Cells of retired writers closed.
    pub closed: u64,
    /// Cells of retired writers folded.
    pub folded: u64,
    /// Calls that failed.
    pub errors: u64,
    /// Times the store was found to have lost something.
    pub losses: u64,
    /// Claims of tokens that the store did not have, put back.
    pub claims_restored: u64,
    /// Claims of tokens that the store has otherwise: a token that may have been applied twice.
    pub claim_conflicts: u64,
    /// Counters of which the store has not confirmed everything.
    pub unsettled: u64,
    /// Of these, counters that the store did not take when they were put last.
    pub failing: u64,
    /// Whether the store answers.
    pub reachable: bool,
    /// Whether the node is not registered yet, and puts nothing.
    pub joining: bool,
}

#[derive(Clone, Copy)]
struct CallPause {
    until: Duration,
    length: Duration,
}

/// What an engine does with its store, one bounded round at a time.
#[derive(Clone, Copy)]
pub struct Sharing<'e> {
    inner: &'e Inner,
    link: &'e StoreLink,
}

impl StoreLink {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        options: SharingOptions,
        rng: Arc<dyn Rng>,
        writer: Writer,
        clean_stop: Option<CleanStop>,
    ) -> StoreLink {
        let holder = Holder(rng.next());
        StoreLink {
            store,
            options,
            rng,
            node: writer.node,
            holder,
            incarnation: AtomicU64::new(writer.incarnation.0),
            has_added: AtomicBool::new(false),
            lease: Mutex::new(lease::Lease::new(clean_stop)),
            fenced: AtomicBool::new(false),
            registered: Mutex::default(),
            refresh_queue: Mutex::default(),
            swaps: Mutex::default(),
            repairs: Mutex::default(),
            audit: Mutex::default(),
            retirement_walk: Mutex::default(),
            pauses: Mutex::default(),
            probe: Mutex::default(),
            registry: Mutex::default(),
            name: Mutex::default(),
            failure_log: Mutex::default(),
            attempts: Mutex::default(),
            restoration: Mutex::default(),
            history: Mutex::default(),
            metrics: SharingMetrics::default(),
        }
    }

    /// The node's present life.
    pub(crate) fn incarnation(&self) -> Incarnation {
        Incarnation(self.incarnation.load(Ordering::Acquire))
    }

    /// Writers that the registry knew when it was last read: what rows kept of them is not forgotten.
    fn registered(&self) -> Arc<BTreeSet<Writer>> {
        lock(&self.registered).clone()
    }

    /// How many writers there are, as far as is known: this one, at least.
    pub(crate) fn known_writer_count(&self) -> u64 {
        (lock(&self.registered).len() as u64).max(1)
    }

    pub(crate) fn node(&self) -> NodeId {
        self.node
    }

    pub(crate) fn random(&self) -> u64 {
        self.rng.next()
    }

    /// Whether no command is carried out any more.
    pub(crate) fn is_fenced(&self) -> bool {
        self.fenced.load(Ordering::Acquire)
    }

    /// Why no command is carried out, if none is.
    pub(crate) fn refusal(&self) -> Option<Refusal> {
        if !self.is_fenced() {
            return None;
        }
        match &lock(&self.lease).membership {
            Membership::Fenced { reason } => Some(Refusal::Fenced { reason: reason.clone() }),
            Membership::Joining | Membership::Live => None,
        }
    }

    /// Wants a counter's row, though nobody waits for it.
    pub(crate) fn queue_refresh(&self, name: &[u8]) {
        let mut queue = lock(&self.refresh_queue);
        if queue.len() < fetch::REFRESH_QUEUE_MAX {
            queue.insert(name.into());
        }
    }

    /// Something has to be done for own cells of this counter that only a swap can do.
    fn queue_repair(&self, name: &[u8]) {
        lock(&self.repairs).insert(name.into());
    }

    /// Whether a kind of call may be made again.
    fn may_call(&self, call: &'static str, now: Duration) -> bool {
        lock(&self.pauses).get(call).is_none_or(|pause| pause.until <= now)
    }

    /// A call went well, or did not: then the next one waits, each time twice as long, by chance a little more or less.
    fn record_result<T>(&self, call: &'static str, now: Duration, result: &Result<T, StoreError>) {
        if let Err(error) = result {
            self.record_history_change(error);
        }
        self.update_pause(call, now, result.is_ok());
    }

    fn update_pause(&self, call: &'static str, now: Duration, succeeded: bool) {
        let mut pauses = lock(&self.pauses);
        match succeeded {
            true => drop(pauses.remove(call)),
            false => {
                self.metrics.errors.fetch_add(1, Ordering::Relaxed);
                let length = pauses.get(call).map_or(BACKOFF_MIN, |pause| (pause.length * 2).min(BACKOFF_MAX));
                pauses.insert(call, CallPause { until: now + jittered(length, self.rng.next()), length });
            }
        }
    }

    /// Calls about one counter each went well, or `failed` of them did not. That none of several went well is the store's failure,
    /// and the next ones wait. That some did is theirs: each of those counters waits by itself.
    fn record_results(&self, call: &'static str, now: Duration, calls: usize, failed: usize) {
        match failed {
            0 if calls == 0 => {}
            _ if failed < calls => self.update_pause(call, now, true),
            1 => {}
            _ => self.update_pause(call, now, false),
        }
        let counted = usize::from(failed > 1 && failed == calls);
        self.metrics.errors.fetch_add((failed - counted) as u64, Ordering::Relaxed);
    }
}

/// Between a half and one and a half of it.
fn jittered(length: Duration, random: u64) -> Duration {
    length / 2 + length.mul_f64((random >> 11) as f64 / (1u64 << 53) as f64)
}

impl<'e> Sharing<'e> {
    pub(crate) fn new(inner: &'e Inner, link: &'e StoreLink) -> Sharing<'e> {
        Sharing { inner, link }
    }

    /// Which node this is.
    pub fn node(self) -> NodeId {
        self.link.node()
    }

    fn elapsed(&self) -> Duration {
        self.inner.clock.elapsed()
    }

    /// Whether what was asked for, or collected, at that time may still be sent on. For half of `grace` at most anything is under way, in a process that
    /// sleeps or on a network: each has a half of that.
    fn may_send(&self, since: Duration) -> bool {
        self.elapsed().saturating_sub(since) < self.link.options.grace / 4
    }

    /// How many counters there are of which the store has not confirmed everything, as far as they are remembered.
    pub fn unsettled(self) -> usize {
        let table = &self.inner.table;
        (0..table.shard_count()).map(|shard| table.lock(shard).unsettled.count()).sum()
    }

    /// How many of them the store did not take when they were put last.
    pub fn failing(self) -> usize {
        let table = &self.inner.table;
        (0..table.shard_count()).map(|shard| table.lock(shard).unsettled.failing()).sum()
    }

    /// What has happened so far.
    pub fn stats(self) -> SharingStats {
        let metrics = &self.link.metrics;
        let get = |metric: &AtomicU64| metric.load(Ordering::Relaxed);
        SharingStats {
            puts: get(&metrics.puts),
            failed_puts: get(&metrics.failed_puts),
            bodies: get(&metrics.bodies),
            pages: get(&metrics.pages),
            pages_bytes: get(&metrics.pages_bytes),
            rows: get(&metrics.rows),
            swaps: get(&metrics.swaps),
            carries: get(&metrics.carries),
            late: get(&metrics.late),
            closed: get(&metrics.closed),
            folded: get(&metrics.folded),
            errors: get(&metrics.errors),
            losses: get(&metrics.losses),
            claims_restored: get(&metrics.claims_restored),
            claim_conflicts: get(&metrics.claim_conflicts),
            unsettled: self.unsettled() as u64,
            failing: self.failing() as u64,
            reachable: self.health() == StoreHealth::Reachable,
            joining: self.membership() == Membership::Joining,
        }
    }
}

/// Keeps a counter in memory while the store is asked about it.
struct ResidencyPin<'e> {
    inner: &'e Inner,
    name: NameBuf,
}

impl<'e> ResidencyPin<'e> {
    /// `None` if the counter is not in memory.
    fn acquire(inner: &'e Inner, name: &NameBuf) -> Option<ResidencyPin<'e>> {
        let hash = inner.table.hash(name);
        let mut shard = inner.table.lock(inner.table.shard_of(hash));
        shard.own_cells(hash, name)?.pins += 1;
        Some(ResidencyPin { inner, name: name.clone() })
    }
}

impl Drop for ResidencyPin<'_> {
    fn drop(&mut self) {
        // What panicked may have held this very lock.
        if std::thread::panicking() {
            return;
        }
        let hash = self.inner.table.hash(&self.name);
        let mut shard = self.inner.table.lock(self.inner.table.shard_of(hash));
        if let Some(own_cells) = shard.own_cells(hash, &self.name) {
            own_cells.pins = own_cells.pins.saturating_sub(1);
        }
    }
}
