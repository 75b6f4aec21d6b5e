//! State of a node's connection to its shared store.
//!
//! Commands read it (`execute::routing`), the rounds of `sharing` change it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use quipu_model::shared::Holder;
use quipu_model::{Incarnation, NameBuf, NodeId, Refusal, Rng, Store, StoreError, Writer};

use crate::base::sharing_options::SharingOptions;
use crate::base::sync::{Arc, AtomicBool, AtomicU64, Mutex, Ordering, lock};
// Each round of `sharing` keeps its own state here: the one use of a higher rank.
use crate::sharing::lease::{CleanStop, Membership};
use crate::sharing::{audit, fetch, health, lease, name, restore, retire, settle, swap};

/// The first pause after an error of the store, and the longest. Jitter keeps nodes that failed
/// together from returning together.
pub(crate) const BACKOFF_MIN: Duration = Duration::from_millis(20);
pub(crate) const BACKOFF_MAX: Duration = Duration::from_secs(5);

/// Shared state of a node's connection to its store.
pub(crate) struct StoreLink {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) options: SharingOptions,
    pub(crate) rng: Arc<dyn Rng>,
    pub(crate) node: NodeId,
    pub(crate) holder: Holder,
    /// The present incarnation.
    pub(crate) incarnation: AtomicU64,
    /// True if the present incarnation has cells.
    pub(crate) has_added: AtomicBool,
    pub(crate) lease: Mutex<lease::Lease>,
    /// True if the node is fenced; checked before every command.
    pub(crate) fenced: AtomicBool,
    /// Writers in the registry when it was last read.
    pub(crate) registered: Mutex<Arc<BTreeSet<Writer>>>,
    /// Recently read counters, to be fetched before they go stale.
    pub(crate) refresh_queue: Mutex<BTreeSet<NameBuf>>,
    pub(crate) swaps: Mutex<Vec<swap::PendingSwap>>,
    /// Counters with own cells that only a swap can repair.
    pub(crate) repairs: Mutex<BTreeSet<NameBuf>>,
    pub(crate) audit: Mutex<audit::StoreAudit>,
    pub(crate) retirement_walk: Mutex<Option<retire::RetirementWalk>>,
    /// Pause after an error of the store, by call.
    pub(crate) pauses: Mutex<BTreeMap<&'static str, CallPause>>,
    pub(crate) probe: Mutex<health::Probe>,
    pub(crate) registry: Mutex<health::RegistryRoom>,
    pub(crate) name: Mutex<name::NodeName>,
    pub(crate) failure_log: Mutex<settle::FailureLog>,
    /// Attempts of adds with tokens in progress.
    pub(crate) attempts: Mutex<BTreeSet<u64>>,
    pub(crate) restoration: Mutex<restore::ClaimRestoration>,
    pub(crate) history: Mutex<restore::KnownHistory>,
    pub(crate) metrics: SharingMetrics,
}

/// Counts since the start.
#[derive(Default)]
pub(crate) struct SharingMetrics {
    pub(crate) puts: AtomicU64,
    pub(crate) failed_puts: AtomicU64,
    pub(crate) bodies: AtomicU64,
    pub(crate) pages: AtomicU64,
    pub(crate) pages_bytes: AtomicU64,
    pub(crate) rows: AtomicU64,
    pub(crate) swaps: AtomicU64,
    pub(crate) carries: AtomicU64,
    pub(crate) late: AtomicU64,
    pub(crate) closed: AtomicU64,
    pub(crate) folded: AtomicU64,
    pub(crate) errors: AtomicU64,
    pub(crate) losses: AtomicU64,
    pub(crate) claims_restored: AtomicU64,
    pub(crate) claim_conflicts: AtomicU64,
}

#[derive(Clone, Copy)]
pub(crate) struct CallPause {
    until: Duration,
    length: Duration,
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
    pub(crate) fn registered(&self) -> Arc<BTreeSet<Writer>> {
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
    pub(crate) fn queue_repair(&self, name: &[u8]) {
        lock(&self.repairs).insert(name.into());
    }

    /// Returns true if a kind of call may be made again.
    pub(crate) fn may_call(&self, call: &'static str, now: Duration) -> bool {
        lock(&self.pauses).get(call).is_none_or(|pause| pause.until <= now)
    }

    /// Records the result of a call. After a failure the next one waits, each time twice as long,
    /// with jitter.
    pub(crate) fn record_result<T>(&self, call: &'static str, now: Duration, result: &Result<T, StoreError>) {
        if let Err(error) = result {
            self.record_history_change(error);
        }
        self.update_pause(call, now, result.is_ok());
    }

    pub(crate) fn update_pause(&self, call: &'static str, now: Duration, succeeded: bool) {
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
    pub(crate) fn record_results(&self, call: &'static str, now: Duration, calls: usize, failed: usize) {
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
pub(crate) fn jittered(length: Duration, random: u64) -> Duration {
    length / 2 + length.mul_f64((random >> 11) as f64 / (1u64 << 53) as f64)
}
