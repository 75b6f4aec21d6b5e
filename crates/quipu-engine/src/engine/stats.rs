//! Figures of an engine, for INFO and metrics.

use quipu_model::{Durability, LedgerStats, Writer};

use crate::base::sync::{Ordering, lock};
use crate::engine::Engine;
use crate::journal::SyncCounts;
use crate::journal::format::Position;
use crate::tokens::TokenStats;

/// Figures for INFO and metrics.
#[derive(Debug, Clone)]
pub struct Stats {
    /// This node's writer identity.
    pub writer: Writer,
    /// The server's default durability.
    pub durability: Durability,
    /// Number of counters.
    pub counters: u64,
    /// Number of counters with open lanes.
    pub counters_split: usize,
    /// Bytes of the journal from its start.
    pub journal_bytes: u64,
    /// Segment files, prepared ones included.
    pub segments: usize,
    /// End of the records handed to the operating system.
    pub written: Position,
    /// End of the synced records.
    pub synced: Position,
    /// Fsyncs since the start.
    pub syncs: u64,
    /// Fsyncs by duration, see [`SYNC_SECONDS`](crate::SYNC_SECONDS).
    pub sync_counts: SyncCounts,
    /// Total duration of fsyncs.
    pub sync_micros_total: u64,
    /// Duration of the last fsync.
    pub sync_micros_last: u64,
    /// True if the background thread commits because the disk is slow.
    pub sync_slow: bool,
    /// Size of the ledger.
    pub ledger: LedgerStats,
    /// Bytes of journal and ledger.
    pub disk_bytes: u64,
    /// True if the disk, or the quota, was found full.
    pub disk_full: bool,
    /// Approximate bytes of the resident counters.
    pub resident_bytes: u64,
    /// Bytes of sketch bodies, included in `resident_bytes`.
    pub bodies_bytes: u64,
    /// Events too late for the window of their sketch, since the start.
    pub late_events: u64,
    /// Events of sampled counts, taken or not, since the start.
    pub sampled_events: u64,
    /// The sampling rate, one in N, of namespaces that sample under overload; 1: the journal keeps
    /// up.
    pub sampling_rate: u32,
    /// Memory limit in force.
    pub memory_bytes_max: Option<u64>,
    /// Disk limit in force.
    pub disk_bytes_max: Option<u64>,
    /// Seals since the start.
    pub seals: u64,
    /// Counters evicted since the start.
    pub evicted: u64,
    /// Figures of the token index.
    pub tokens: TokenStats,
    /// Counters loaded from the ledger since the start, lookups of absent counters included.
    pub loaded: u64,
    /// Pieces of compaction since the start.
    pub compactions: u64,
    /// Total duration of compaction.
    pub compaction_micros: u64,
    /// True while compaction runs.
    pub compaction_running: bool,
    /// Why compaction has ended until the next start, if it has.
    pub ledger_damage: Option<String>,
    /// Lead of the wall clock over the engine's time, in milliseconds; negative: behind.
    pub clock_ahead_millis: i64,
}

impl Engine {
    /// Figures for INFO.
    pub fn stats(&self) -> Stats {
        let core = &self.core;
        let (journal_bytes, segments) = core.journal.size();
        Stats {
            writer: core.writer,
            durability: core.namespaces.current().default_durability(),
            counters: core.table.counters(),
            counters_split: core.lanes.all().iter().filter(|lanes| lanes.is_open()).count(),
            journal_bytes,
            segments,
            written: core.journal.written(),
            synced: core.journal.synced(),
            syncs: core.journal.sync_times.counts().iter().sum(),
            sync_counts: core.journal.sync_times.counts(),
            sync_micros_total: core.journal.sync_times.micros_total(),
            sync_micros_last: core.journal.sync_times.micros_last(),
            sync_slow: core.journal.is_slow(),
            ledger: *lock(&core.ledger_stats),
            disk_bytes: core.journal.disk_bytes(),
            disk_full: core.journal.is_full_hint(),
            resident_bytes: core.table.bytes(),
            bodies_bytes: core.table.bodies_bytes(),
            late_events: core.table.late_events(),
            sampled_events: core.table.sampled_events(),
            sampling_rate: core.namespaces.current().overload_p(),
            memory_bytes_max: core.options.memory_bytes_max,
            disk_bytes_max: core.options.disk_bytes_max,
            seals: u64::from(core.batch_sealed()),
            evicted: core.evicted.load(Ordering::Relaxed),
            tokens: core.tokens.stats(),
            loaded: core.loads.lookups(),
            compactions: core.compaction.pieces.load(Ordering::Relaxed),
            compaction_micros: core.compaction.micros.load(Ordering::Relaxed),
            compaction_running: core.compaction.running.load(Ordering::Relaxed),
            ledger_damage: core.compaction.damage.get().cloned(),
            clock_ahead_millis: core.time.observe(&*core.clock).ahead_millis,
        }
    }
}
