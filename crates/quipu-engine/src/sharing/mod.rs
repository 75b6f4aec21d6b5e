//! Shares counters among nodes: puts own cells to the store, reads rows back, and swaps other
//! changes.
//!
//! In: the node's own cells, as journaled, and commands that need the store. Out: puts, swaps and
//! registrations; the shown value of a counter.
//!
//! ```text
//! bodies   own bodies of sketches that changed ─► put of their pages; others' ─► shown sketch
//! settle   own cells that changed ─► put ─► verdicts ─► carry, or settle late
//! fetch    commands that wait for a row, recently read counters ─► read ─► shown value
//! swap     SET GETSET DEL EXPIRE … ─► read ─► compute ─► swap ─► reply
//! lease    the node's registration and its renewal
//! health   reachability of the store
//! name     the node's display name
//! audit    all own cells, again
//! restore  claims of tokens, again
//! retire   writers that are gone
//! adopt    incarnations of this node that the store has forgotten, by an operator's decision
//! ```
//!
//! Each is a future of one bounded round and may be dropped at any await point. The next round
//! learns the outcome by reading the store again. The background threads run these futures on a
//! machine; a simulator polls them one reply at a time.
//!
//! Invariants:
//! - no data leaves the node before it is synced in its journal, except of memory namespaces;
//! - nothing is put without a lease; no work for an older incarnation without holding its
//!   registration;
//! - no lock is held during a call to the store.
//!
//! Not here: the meaning of verdicts and rows (`quipu_model::shared`), applying adds (`apply`).

mod adopt;
mod audit;
mod bodies;
mod claim;
mod dump;
mod fetch;
mod health;
mod lease;
mod name;
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
pub use self::routing::{RowCheck, ShardPicker, StoreNeed, store_need, target_names};
pub use self::shared_counter::SharedCounter;
pub use self::swap::Swap;
use crate::base::sharing_options::SharingOptions;
use crate::base::sync::{Arc, AtomicBool, AtomicU64, Mutex, Ordering, lock};
use crate::engine::Inner;

/// The first pause after an error of the store, and the longest. Jitter keeps nodes that failed
/// together from returning together.
const BACKOFF_MIN: Duration = Duration::from_millis(20);
const BACKOFF_MAX: Duration = Duration::from_secs(5);

/// Shared state of a node's connection to its store.
pub(crate) struct StoreLink {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) options: SharingOptions,
    rng: Arc<dyn Rng>,
    node: NodeId,
    holder: Holder,
    /// The present incarnation.
    incarnation: AtomicU64,
    /// True if the present incarnation has cells.
    has_added: AtomicBool,
    lease: Mutex<lease::Lease>,
    /// True if the node is fenced; checked before every command.
    fenced: AtomicBool,
    /// Writers in the registry when it was last read.
    registered: Mutex<Arc<BTreeSet<Writer>>>,
    /// Recently read counters, to be fetched before they go stale.
    refresh_queue: Mutex<BTreeSet<NameBuf>>,
    swaps: Mutex<Vec<swap::PendingSwap>>,
    /// Counters with own cells that only a swap can repair.
    repairs: Mutex<BTreeSet<NameBuf>>,
    audit: Mutex<audit::StoreAudit>,
    retirement_walk: Mutex<Option<retire::RetirementWalk>>,
    /// Pause after an error of the store, by call.
    pauses: Mutex<BTreeMap<&'static str, CallPause>>,
    probe: Mutex<health::Probe>,
    registry: Mutex<health::RegistryRoom>,
    name: Mutex<name::NodeName>,
    failure_log: Mutex<settle::FailureLog>,
    /// Attempts of adds with tokens in progress.
    attempts: Mutex<BTreeSet<u64>>,
    restoration: Mutex<restore::ClaimRestoration>,
    history: Mutex<restore::KnownHistory>,
    metrics: SharingMetrics,
}

/// Counts since the start.
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

/// Statistics of sharing since the start, for INFO and metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SharingStats {
    /// Cells put.
    pub puts: u64,
    /// Puts of a counter without a verdict although the store replied.
    pub failed_puts: u64,
    /// Bodies of sketches put.
    pub bodies: u64,
    /// Pages of these bodies.
    pub pages: u64,
    /// Bytes of these pages.
    pub pages_bytes: u64,
    /// Rows read.
    pub rows: u64,
    /// Swaps carried out.
    pub swaps: u64,
    /// Cells carried into another epoch.
    pub carries: u64,
    /// Cells of older incarnations settled late.
    pub late: u64,
    /// Cells of retired writers closed.
    pub closed: u64,
    /// Cells of retired writers folded.
    pub folded: u64,
    /// Failed calls.
    pub errors: u64,
    /// Detected losses of data in the store.
    pub losses: u64,
    /// Lost claims of tokens put back into the store.
    pub claims_restored: u64,
    /// Claims of tokens that differ at the store: a token that may have been applied twice.
    pub claim_conflicts: u64,
    /// Counters with changes that the store has not confirmed.
    pub unsettled: u64,
    /// Those of them with a last put that the store did not take.
    pub failing: u64,
    /// True if the store is reachable.
    pub reachable: bool,
    /// True if the node is not registered yet, and puts nothing.
    pub joining: bool,
}

#[derive(Clone, Copy)]
struct CallPause {
    until: Duration,
    length: Duration,
}

/// An engine's work with its store, one bounded round at a time.
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

    /// The node's present incarnation.
    pub(crate) fn incarnation(&self) -> Incarnation {
        Incarnation(self.incarnation.load(Ordering::Acquire))
    }

    /// Writers in the registry when it was last read: a row still remembers its kept values of
    /// them.
    fn registered(&self) -> Arc<BTreeSet<Writer>> {
        lock(&self.registered).clone()
    }

    /// Number of known writers, at least this one.
    pub(crate) fn known_writer_count(&self) -> u64 {
        (lock(&self.registered).len() as u64).max(1)
    }

    pub(crate) fn node(&self) -> NodeId {
        self.node
    }

    pub(crate) fn random(&self) -> u64 {
        self.rng.next()
    }

    /// Returns true if the node executes no command any more.
    pub(crate) fn is_fenced(&self) -> bool {
        self.fenced.load(Ordering::Acquire)
    }

    /// The refusal of every command, if the node is fenced.
    pub(crate) fn refusal(&self) -> Option<Refusal> {
        if !self.is_fenced() {
            return None;
        }
        match &lock(&self.lease).membership {
            Membership::Fenced { reason } => Some(Refusal::Fenced { reason: reason.clone() }),
            Membership::Joining | Membership::Live => None,
        }
    }

    /// Queues a counter's row for a refresh without a waiting command.
    pub(crate) fn queue_refresh(&self, name: &[u8]) {
        let mut queue = lock(&self.refresh_queue);
        if queue.len() < fetch::REFRESH_QUEUE_MAX {
            queue.insert(name.into());
        }
    }

    /// Queues a swap that repairs own cells of this counter.
    fn queue_repair(&self, name: &[u8]) {
        lock(&self.repairs).insert(name.into());
    }

    /// Returns true if a kind of call may be made again.
    fn may_call(&self, call: &'static str, now: Duration) -> bool {
        lock(&self.pauses).get(call).is_none_or(|pause| pause.until <= now)
    }

    /// Records the result of a call. After a failure the next one waits, each time twice as long,
    /// with jitter.
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

    /// Records the results of calls about one counter each. If all of several calls failed, the
    /// store is at fault and the next calls wait. If only some failed, each of those counters waits
    /// by itself.
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

/// A random duration between half and one and a half of `length`.
fn jittered(length: Duration, random: u64) -> Duration {
    length / 2 + length.mul_f64((random >> 11) as f64 / (1u64 << 53) as f64)
}

impl<'e> Sharing<'e> {
    pub(crate) fn new(inner: &'e Inner, link: &'e StoreLink) -> Sharing<'e> {
        Sharing { inner, link }
    }

    /// The node's id.
    pub fn node(self) -> NodeId {
        self.link.node()
    }

    fn elapsed(&self) -> Duration {
        self.inner.clock.elapsed()
    }

    /// Returns true if a value read or collected at `since` may still be sent. A message is in
    /// flight for half of `grace` at most, in a suspended process or on a network: each gets half
    /// of that.
    fn may_send(&self, since: Duration) -> bool {
        self.elapsed().saturating_sub(since) < self.link.options.grace / 4
    }

    /// Number of counters with unconfirmed changes, as far as they are remembered.
    pub fn unsettled(self) -> usize {
        let table = &self.inner.table;
        (0..table.shard_count()).map(|shard| table.lock(shard).unsettled.count()).sum()
    }

    /// Number of those with a last put that the store did not take.
    pub fn failing(self) -> usize {
        let table = &self.inner.table;
        (0..table.shard_count()).map(|shard| table.lock(shard).unsettled.failing()).sum()
    }

    /// Returns the statistics since the start.
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

/// Keeps a counter in memory during a call to the store about it.
struct ResidencyPin<'e> {
    inner: &'e Inner,
    name: NameBuf,
}

impl<'e> ResidencyPin<'e> {
    /// Pins a counter; `None` if it is not in memory.
    fn acquire(inner: &'e Inner, name: &NameBuf) -> Option<ResidencyPin<'e>> {
        let hash = inner.table.hash(name);
        let mut shard = inner.table.lock(inner.table.shard_of(hash));
        shard.own_cells(hash, name)?.pins += 1;
        Some(ResidencyPin { inner, name: name.clone() })
    }
}

impl Drop for ResidencyPin<'_> {
    fn drop(&mut self) {
        // The panicking code may have held this very lock.
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
