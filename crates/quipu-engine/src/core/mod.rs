//! State of an open engine that commands and background work share.
//!
//! Not here: what commands and background work do with it (`execute`, `sharing`, `seal`,
//! `background`).

pub(crate) mod commit;
pub(crate) mod counter_limits;
pub(crate) mod load;
pub(crate) mod signals;
pub(crate) mod store_link;
pub(crate) mod watermark;

use std::collections::BTreeMap;

use quipu_model::{Clock, DirLock, Incarnation, Ledger, LedgerError, LedgerStats, Millis, Name, Refusal, Writer};

use self::commit::CommitFuture;
use self::load::LoadQueues;
use self::signals::Signals;
use self::store_link::StoreLink;
use self::watermark::Watermark;
use crate::apply::bodies::bodies_bytes_max;
use crate::base::options::Options;
use crate::base::sync::{Arc, AtomicBool, AtomicU32, AtomicU64, Mutex, OnceLock, Ordering, lock};
use crate::base::time::EngineTime;
use crate::journal::format::Position;
use crate::journal::pressure::Pressure;
use crate::journal::reader::Tail;
use crate::journal::{Journal, Wait};
use crate::namespaces::Namespaces;
use crate::table::Table;
use crate::table::lanes::{LaneRegistry, LaneSet};
use crate::tokens::Tokens;

/// State shared by all clones of an [`Engine`].
pub(crate) struct Core {
    pub(crate) options: Options,
    /// The policy in force in each namespace.
    pub(crate) namespaces: Namespaces,
    pub(crate) table: Table,
    pub(crate) journal: Journal,
    pub(crate) writer: Writer,
    pub(crate) clock: Arc<dyn Clock>,
    /// Never earlier than the newest time returned or found in the journal, restarts included.
    pub(crate) time: EngineTime,
    pub(crate) recovery: Recovery,
    /// Durable storage of the cells.
    pub(crate) ledger: Arc<dyn Ledger>,
    /// The ledger's size after its last change, cached because a query reads the disk.
    pub(crate) ledger_stats: Mutex<LedgerStats>,
    /// The watermark of the newest ingestion.
    pub(crate) watermark: Mutex<Watermark>,
    /// The part of the applied tokens' state that all shards share.
    pub(crate) tokens: Tokens,
    /// Hash key of native sketches: one per directory, equal in all its incarnations and copies.
    pub(crate) sketch_key: quipu_sketch::Key,
    /// Lanes of the counters that have a [`Handle`].
    pub(crate) lanes: LaneRegistry,
    /// Commands that wait for counters that are not resident.
    pub(crate) loads: LoadQueues,
    /// Set if some counters are in the ledger only.
    pub(crate) unloaded: AtomicBool,
    /// Numbers of the last batch with a begun seal, and of the last with a finished one.
    pub(crate) batch_next: AtomicU32,
    pub(crate) batch_sealed: AtomicU32,
    /// Counters evicted since the start.
    pub(crate) evicted: AtomicU64,
    /// The newest flush; written while all shards are locked.
    pub(crate) flush: Mutex<FlushMark>,
    /// Held during a seal: one at a time, since a seal marks the journal.
    pub(crate) seal_lock: Mutex<()>,
    /// Held during a backup: one at a time, and a close waits for it.
    pub(crate) backup_lock: Mutex<()>,
    /// Progress of compaction.
    pub(crate) compaction: CompactionState,
    /// Incarnations registered with a shared store that have not ended, and their registration
    /// times. An incarnation is here before its record is in the journal.
    pub(crate) joined: Mutex<BTreeMap<Incarnation, Millis>>,
    /// The link to the shared store, if the node has one.
    pub(crate) shared: Option<StoreLink>,
    /// Recent load of the journal; sampled only if a namespace uses it.
    pub(crate) pressure: Mutex<Pressure>,
    /// Wakes the background threads.
    pub(crate) signals: std::sync::OnceLock<Arc<Signals>>,
    pub(crate) closed: AtomicBool,
    /// Set once a close has succeeded.
    pub(crate) close_done: Mutex<bool>,
    pub(crate) _lock: Box<dyn DirLock>,
}

/// Findings of a start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recovery {
    /// Number of records read.
    pub records: u64,
    /// End of the records, with the torn record behind them, if there is one.
    pub tail: Tail,
    /// True if the last incarnation ended with a clean stop.
    pub clean: bool,
    /// True if the directory is a copy of another: restored, or copied by hand. Then the node
    /// begins a new incarnation, even after a clean stop.
    pub copied: bool,
}

/// A deletion of all counters.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct FlushMark {
    /// Number of flushes since the start.
    pub(crate) count: u64,
    /// Start and end of its journal record, until the ledger includes the flush.
    pub(crate) start: Position,
    pub(crate) end: Position,
}

/// Progress of compaction since the start.
#[derive(Default)]
pub(crate) struct CompactionState {
    pub(crate) pieces: AtomicU64,
    pub(crate) micros: AtomicU64,
    pub(crate) running: AtomicBool,
    /// Why compaction has ended until the next start: the ledger is damaged at the next piece.
    pub(crate) damage: OnceLock<String>,
}

impl Core {
    pub(crate) fn now(&self) -> Millis {
        self.time.now(&*self.clock)
    }

    pub(crate) fn commit_until(&self, wait: Wait) -> CommitFuture<'_> {
        CommitFuture { core: self, wait }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    pub(crate) fn check_open(&self) -> Result<(), Refusal> {
        if self.is_closed() {
            return Err(Refusal::NoRoom { reason: "the engine is closed".to_owned() });
        }
        Ok(())
    }

    /// Requests segments if few are left.
    pub(crate) fn request_segments_if_low(&self) {
        // The background thread retries a full disk at intervals by itself. A request after every
        // turn would keep it busy.
        if self.journal.is_room_low() && !self.journal.is_full_hint() {
            self.request_maintenance();
        }
    }

    pub(crate) fn request_maintenance(&self) {
        if let Some(signals) = self.signals.get() {
            signals.request_maintenance();
        }
    }

    /// The lanes of a counter, with one more handle.
    pub(crate) fn acquire_lanes(&self, name: Name<'_>) -> Arc<LaneSet> {
        let hash = self.table.hash(name.bytes());
        let mut shard = self.table.lock(self.table.shard_of(hash));
        if let Some(lanes) = shard.lanes.find(name.bytes()) {
            lanes.add_handle();
            return lanes.clone();
        }
        let lanes = Arc::new(LaneSet::new(name.bytes(), hash, self.options.lanes));
        // Lanes beyond the registry's bound are never opened.
        if self.lanes.try_add(&lanes) {
            shard.lanes.insert(lanes.clone());
        }
        lanes
    }

    /// Returns an error if the ledger may not grow by `bytes` once the journal is cut at `cut`.
    pub(crate) fn check_quota(&self, cut: Position, bytes: u64) -> Result<(), LedgerError> {
        self.journal.reserve_ledger_growth(cut, bytes).map_err(|error| LedgerError::Full(error.to_string()))
    }

    /// Refreshes the cached size of the ledger.
    pub(crate) fn update_ledger_stats(&self) {
        // Queried under the lock: if a seal and a merge end together, the later figure stays.
        let mut stats = lock(&self.ledger_stats);
        *stats = self.ledger.stats();
        self.journal.set_ledger_bytes(stats.disk_bytes);
    }

    pub(crate) fn batch_sealed(&self) -> u32 {
        self.batch_sealed.load(Ordering::Acquire)
    }

    pub(crate) fn flush(&self) -> FlushMark {
        *lock(&self.flush)
    }

    /// Records a flush by its record's position. The caller holds all shards.
    pub(crate) fn record_flush(&self, start: Position, end: Position) {
        let mut flush = lock(&self.flush);
        *flush = FlushMark { count: flush.count + 1, start, end };
        self.unloaded.store(false, Ordering::Release);
    }

    pub(crate) fn has_unloaded(&self) -> bool {
        self.unloaded.load(Ordering::Acquire)
    }

    /// Memory used by all state except sketch bodies, and its limit. Bodies are never evicted, so
    /// at most their fixed share is subtracted from the limit, however much they use.
    pub(crate) fn cells_memory(&self) -> Option<(u64, u64)> {
        let bytes_max = self.options.table_bytes_max()?;
        let bodies = self.table.bodies_bytes();
        Some((self.table.bytes().saturating_sub(bodies), bytes_max - bodies.min(bodies_bytes_max(bytes_max))))
    }

    /// Returns true if new counters must wait for memory.
    pub(crate) fn memory_is_full(&self) -> bool {
        self.cells_memory().is_some_and(|(bytes, bytes_max)| bytes > bytes_max)
    }

    /// Returns true if existing counters must wait for memory, too.
    pub(crate) fn memory_is_overfull(&self) -> bool {
        self.cells_memory().is_some_and(|(bytes, bytes_max)| bytes > bytes_max + bytes_max / 16)
    }
}
