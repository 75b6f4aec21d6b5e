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
pub(crate) mod audit;
mod bodies;
mod claim;
mod dump;
pub(crate) mod fetch;
pub(crate) mod health;
pub(crate) mod lease;
pub(crate) mod name;
pub(crate) mod restore;
pub(crate) mod retire;
pub(crate) mod settle;
mod shared_counter;
pub(crate) mod swap;

use std::time::Duration;

use quipu_model::{NameBuf, NodeId};

pub use self::adopt::{AdoptError, AdoptionReport, UnconfirmedAdds};
pub use self::dump::{MergeError, dump_bodies};
pub use self::health::StoreHealth;
pub(crate) use self::lease::CleanStop;
pub use self::lease::Membership;
use crate::base::sync::{AtomicU64, Ordering};
use crate::core::Core;
pub(crate) use crate::core::store_link::{StoreLink, jittered};

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

/// An engine's work with its store, one bounded round at a time.
#[derive(Clone, Copy)]
pub struct Sharing<'e> {
    core: &'e Core,
    link: &'e StoreLink,
}

impl Core {
    pub(crate) fn sharing(&self) -> Option<Sharing<'_>> {
        self.shared.as_ref().map(|shared| Sharing::new(self, shared))
    }
}

impl<'e> Sharing<'e> {
    pub(crate) fn new(core: &'e Core, link: &'e StoreLink) -> Sharing<'e> {
        Sharing { core, link }
    }

    /// The node's id.
    pub fn node(self) -> NodeId {
        self.link.node()
    }

    fn elapsed(&self) -> Duration {
        self.core.clock.elapsed()
    }

    /// Returns true if a value read or collected at `since` may still be sent. A message is in
    /// flight for half of `grace` at most, in a suspended process or on a network: each gets half
    /// of that.
    fn may_send(&self, since: Duration) -> bool {
        self.elapsed().saturating_sub(since) < self.link.options.grace / 4
    }

    /// Number of counters with unconfirmed changes, as far as they are remembered.
    pub fn unsettled(self) -> usize {
        let table = &self.core.table;
        (0..table.shard_count()).map(|shard| table.lock(shard).unsettled.count()).sum()
    }

    /// Number of those with a last put that the store did not take.
    pub fn failing(self) -> usize {
        let table = &self.core.table;
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
    core: &'e Core,
    name: NameBuf,
}

impl<'e> ResidencyPin<'e> {
    /// Pins a counter; `None` if it is not in memory.
    fn acquire(core: &'e Core, name: &NameBuf) -> Option<ResidencyPin<'e>> {
        let hash = core.table.hash(name);
        let mut shard = core.table.lock(core.table.shard_of(hash));
        shard.own_cells(hash, name)?.pins += 1;
        Some(ResidencyPin { core, name: name.clone() })
    }
}

impl Drop for ResidencyPin<'_> {
    fn drop(&mut self) {
        // The panicking code may have held this very lock.
        if std::thread::panicking() {
            return;
        }
        let hash = self.core.table.hash(&self.name);
        let mut shard = self.core.table.lock(self.core.table.shard_of(hash));
        if let Some(own_cells) = shard.own_cells(hash, &self.name) {
            own_cells.pins = own_cells.pins.saturating_sub(1);
        }
    }
}
