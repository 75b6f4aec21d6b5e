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
mod demand;
mod dump;
mod fetch;
mod health;
mod lease;
mod name;
mod options;
mod restore;
mod retire;
mod settle;
mod share;
mod swap;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use quipu_model::shared::Holder;
use quipu_model::{Incarnation, KeptName, NodeId, Refusal, Rng, Store, StoreError, Writer};

pub use self::adopt::{Adopt, AdoptError, Adopted};
pub(crate) use self::bodies::Shows;
pub use self::claim::Once;
pub use self::demand::{Demand, Picking, Seeing, demand, names_of};
pub use self::dump::{MergeError, dump_bodies};
pub use self::health::StoreHealth;
pub(crate) use self::lease::Kept;
pub use self::lease::Standing;
pub use self::options::{Pick, SHARDS_MAX, Secret, SharePolicy, SharingOptions};
pub use self::share::Share;
pub use self::swap::Swap;
use crate::engine::Inner;
use crate::sync::{Arc, AtomicBool, AtomicU64, Mutex, Ordering, lock};

/// The first wait after an error of the store, and the longest. Jitter keeps nodes that failed together from coming back together.
const BACKOFF_MIN: Duration = Duration::from_millis(20);
const BACKOFF_MAX: Duration = Duration::from_secs(5);

/// What all handles share of it.
pub(crate) struct Shared {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) options: SharingOptions,
    rng: Arc<dyn Rng>,
    node: NodeId,
    holder: Holder,
    /// The present incarnation.
    present: AtomicU64,
    /// Whether it has cells.
    has_added: AtomicBool,
    lease: Mutex<lease::Lease>,
    /// Whether it says that nothing is counted any more: asked before every command.
    fenced: AtomicBool,
    /// Writers that the registry knew when it was last read.
    registered: Mutex<Arc<BTreeSet<Writer>>>,
    /// Counters read lately, to be fetched before their time is up.
    ahead: Mutex<BTreeSet<KeptName>>,
    swaps: Mutex<Vec<swap::Swapping>>,
    /// What has to be done for own cells by a swap.
    chores: Mutex<BTreeSet<KeptName>>,
    audit: Mutex<audit::Audit>,
    retiring: Mutex<Option<retire::Walk>>,
    /// When the store may be asked again after an error, by call.
    pauses: Mutex<BTreeMap<&'static str, Pause>>,
    probe: Mutex<health::Probe>,
    registry: Mutex<health::Registry>,
    name: Mutex<name::NodeName>,
    failure_log: Mutex<settle::FailureLog>,
    /// Attempts of adds with tokens that are under way.
    attempts: Mutex<BTreeSet<u64>>,
    restoration: Mutex<restore::Restoration>,
    history: Mutex<restore::KnownHistory>,
    figures: Figures,
}

/// What has happened since the start.
#[derive(Default)]
struct Figures {
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
struct Pause {
    until: Duration,
    length: Duration,
}

/// What an engine does with its store, one bounded round at a time.
#[derive(Clone, Copy)]
pub struct Sharing<'e> {
    inner: &'e Inner,
    shared: &'e Shared,
}

impl Shared {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        options: SharingOptions,
        rng: Arc<dyn Rng>,
        writer: Writer,
        kept: Option<Kept>,
    ) -> Shared {
        let holder = Holder(rng.next());
        Shared {
            store,
            options,
            rng,
            node: writer.node,
            holder,
            present: AtomicU64::new(writer.incarnation.0),
            has_added: AtomicBool::new(false),
            lease: Mutex::new(lease::Lease::new(kept)),
            fenced: AtomicBool::new(false),
            registered: Mutex::default(),
            ahead: Mutex::default(),
            swaps: Mutex::default(),
            chores: Mutex::default(),
            audit: Mutex::default(),
            retiring: Mutex::default(),
            pauses: Mutex::default(),
            probe: Mutex::default(),
            registry: Mutex::default(),
            name: Mutex::default(),
            failure_log: Mutex::default(),
            attempts: Mutex::default(),
            restoration: Mutex::default(),
            history: Mutex::default(),
            figures: Figures::default(),
        }
    }

    /// The node's present life.
    pub(crate) fn present(&self) -> Incarnation {
        Incarnation(self.present.load(Ordering::Acquire))
    }

    /// Writers that the registry knew when it was last read: what rows kept of them is not forgotten.
    fn registered(&self) -> Arc<BTreeSet<Writer>> {
        lock(&self.registered).clone()
    }

    /// How many writers there are, as far as is known: this one, at least.
    pub(crate) fn writers_known(&self) -> u64 {
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
        match &lock(&self.lease).standing {
            Standing::Fenced { reason } => Some(Refusal::Fenced { reason: reason.clone() }),
            Standing::Joining | Standing::Live => None,
        }
    }

    /// Wants a counter's row, though nobody waits for it.
    pub(crate) fn fetch_ahead(&self, name: &[u8]) {
        let mut ahead = lock(&self.ahead);
        if ahead.len() < fetch::AHEAD_MAX {
            ahead.insert(name.into());
        }
    }

    /// Something has to be done for own cells of this counter that only a swap can do.
    fn chore(&self, name: &[u8]) {
        lock(&self.chores).insert(name.into());
    }

    /// Whether a kind of call may be made again.
    fn may_call(&self, call: &'static str, now: Duration) -> bool {
        lock(&self.pauses).get(call).is_none_or(|pause| pause.until <= now)
    }

    /// A call went well, or did not: then the next one waits, each time twice as long, by chance a little more or less.
    fn called<T>(&self, call: &'static str, now: Duration, result: &Result<T, StoreError>) {
        if let Err(error) = result {
            self.note_history(error);
        }
        self.note_call(call, now, result.is_ok());
    }

    fn note_call(&self, call: &'static str, now: Duration, went_well: bool) {
        let mut pauses = lock(&self.pauses);
        match went_well {
            true => drop(pauses.remove(call)),
            false => {
                self.figures.errors.fetch_add(1, Ordering::Relaxed);
                let length = pauses.get(call).map_or(BACKOFF_MIN, |pause| (pause.length * 2).min(BACKOFF_MAX));
                pauses.insert(call, Pause { until: now + jittered(length, self.rng.next()), length });
            }
        }
    }

    /// Calls about one counter each went well, or `failed` of them did not. That none of several went well is the store's failure,
    /// and the next ones wait. That some did is theirs: each of those counters waits by itself.
    fn called_each(&self, call: &'static str, now: Duration, calls: usize, failed: usize) {
        match failed {
            0 if calls == 0 => {}
            _ if failed < calls => self.note_call(call, now, true),
            1 => {}
            _ => self.note_call(call, now, false),
        }
        let counted = usize::from(failed > 1 && failed == calls);
        self.figures.errors.fetch_add((failed - counted) as u64, Ordering::Relaxed);
    }
}

/// Between a half and one and a half of it.
fn jittered(length: Duration, random: u64) -> Duration {
    length / 2 + length.mul_f64((random >> 11) as f64 / (1u64 << 53) as f64)
}

impl<'e> Sharing<'e> {
    pub(crate) fn new(inner: &'e Inner, shared: &'e Shared) -> Sharing<'e> {
        Sharing { inner, shared }
    }

    /// Which node this is.
    pub fn node(self) -> NodeId {
        self.shared.node()
    }

    fn elapsed(&self) -> Duration {
        self.inner.clock.elapsed()
    }

    /// Whether what was asked for, or collected, at that time may still be sent on. For half of `grace` at most anything is under way, in a process that
    /// sleeps or on a network: each has a half of that.
    fn may_send(&self, since: Duration) -> bool {
        self.elapsed().saturating_sub(since) < self.shared.options.grace / 4
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
        let figures = &self.shared.figures;
        let get = |figure: &AtomicU64| figure.load(Ordering::Relaxed);
        SharingStats {
            puts: get(&figures.puts),
            failed_puts: get(&figures.failed_puts),
            bodies: get(&figures.bodies),
            pages: get(&figures.pages),
            pages_bytes: get(&figures.pages_bytes),
            rows: get(&figures.rows),
            swaps: get(&figures.swaps),
            carries: get(&figures.carries),
            late: get(&figures.late),
            closed: get(&figures.closed),
            folded: get(&figures.folded),
            errors: get(&figures.errors),
            losses: get(&figures.losses),
            claims_restored: get(&figures.claims_restored),
            claim_conflicts: get(&figures.claim_conflicts),
            unsettled: self.unsettled() as u64,
            failing: self.failing() as u64,
            reachable: self.health() == StoreHealth::Reachable,
            joining: self.standing() == Standing::Joining,
        }
    }
}

/// Keeps a counter in memory while the store is asked about it.
struct Busy<'e> {
    inner: &'e Inner,
    name: KeptName,
}

impl<'e> Busy<'e> {
    /// `None` if the counter is not in memory.
    fn hold(inner: &'e Inner, name: &KeptName) -> Option<Busy<'e>> {
        let hash = inner.table.hash(name);
        let mut shard = inner.table.lock(inner.table.shard_of(hash));
        shard.own(hash, name)?.busy += 1;
        Some(Busy { inner, name: name.clone() })
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        // What panicked may have held this very lock.
        if std::thread::panicking() {
            return;
        }
        let hash = self.inner.table.hash(&self.name);
        let mut shard = self.inner.table.lock(self.inner.table.shard_of(hash));
        if let Some(owned) = shard.own(hash, &self.name) {
            owned.busy = owned.busy.saturating_sub(1);
        }
    }
}
