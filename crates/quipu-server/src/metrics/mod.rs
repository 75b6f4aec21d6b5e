//! What is told to Prometheus: every metric once, in one table.
//!
//! In: what the engine, the doors and their tallies know. Out: text in Prometheus's format, and the page of documentation.
//!
//! Invariants:
//! - a metric's name, type, labels, meaning and value are in one line of [`METRICS`];
//! - labels have bounded values: doors, reasons and operations are lists in code, and namespaces have a cap (`latency`);
//! - counting costs what a tally does, on every path that commands take; the rest is asked for when it is scraped.

mod commands;
mod histogram;
mod latency;
mod text;

use std::sync::atomic::Ordering::Relaxed;

use quipu_engine::{SYNC_SECONDS, SharingStats, Stats};

pub(crate) use self::commands::CommandLatencies;
pub(crate) use self::histogram::Histogram;
pub(crate) use self::latency::{HttpLatencies, HttpOperation, LatencyTimer};
pub use self::text::markdown;
pub(crate) use self::text::{SampleWriter, text};
use crate::http::reason;
use crate::process;
use crate::server_state::{RefusalCounts, ServerState};

/// One metric.
pub(crate) struct Metric {
    pub name: &'static str,
    pub kind: MetricKind,
    pub labels: &'static [&'static str],
    pub help: &'static str,
    pub read: fn(&MetricSources<'_>, &mut SampleWriter<'_>),
}

/// What Prometheus calls its type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MetricKind {
    Counter,
    Gauge,
    Histogram,
}

impl MetricKind {
    pub fn name(self) -> &'static str {
        match self {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram",
        }
    }
}

/// Everything that metrics are read from, at one moment.
pub(crate) struct MetricSources<'s> {
    pub server: &'s ServerState,
    pub stats: Stats,
    pub sharing: Option<SharingStats>,
    pub watchers: u64,
}

impl<'s> MetricSources<'s> {
    pub fn new(server: &'s ServerState, watchers: u64) -> MetricSources<'s> {
        let sharing = server.engine.sharing().map(|sharing| sharing.stats());
        MetricSources { server, stats: server.engine.stats(), sharing, watchers }
    }
}

const RESP: (&str, &str) = ("door", "resp");
const HTTP: (&str, &str) = ("door", "http");

const fn counter(
    name: &'static str,
    help: &'static str,
    read: fn(&MetricSources<'_>, &mut SampleWriter<'_>),
) -> Metric {
    Metric { name, kind: MetricKind::Counter, labels: &[], help, read }
}

const fn gauge(name: &'static str, help: &'static str, read: fn(&MetricSources<'_>, &mut SampleWriter<'_>)) -> Metric {
    Metric { name, kind: MetricKind::Gauge, labels: &[], help, read }
}

/// A metric of a shared store, which a node without one does not have.
fn write_sharing_stat(sources: &MetricSources<'_>, out: &mut SampleWriter<'_>, read: fn(&SharingStats) -> u64) {
    if let Some(sharing) = &sources.sharing {
        out.one(read(sharing));
    }
}

fn write_refusals(out: &mut SampleWriter<'_>, protocol: (&'static str, &'static str), counts: &RefusalCounts) {
    for reason in reason::all() {
        let count = counts.get(reason);
        // Those that never happened are left out: most never do.
        if count > 0 {
            out.with(&[protocol, ("reason", reason.word)], count);
        }
    }
}

/// All of them, in the order in which they are told.
#[rustfmt::skip]
pub(crate) const METRICS: &[Metric] = &[
    Metric { name: "quipu_info", kind: MetricKind::Gauge, labels: &["version", "writer", "durability"],
        help: "Always 1; its labels say which program this is, which writer, and the default durability.",
        read: |s, out| out.with(&[("version", env!("CARGO_PKG_VERSION")), ("writer", &s.stats.writer.to_string()), ("durability", &s.stats.durability.to_string())], 1) },
    gauge("quipu_uptime_seconds", "Since the server was started.", |s, out| out.one(s.server.started.until(s.server.engine.now()) / 1_000)),

    Metric { name: "quipu_operations_total", kind: MetricKind::Counter, labels: &["door"],
        help: "Commands (RESP) and requests (HTTP) that were answered.",
        read: |s, out| {
            out.with(&[RESP], s.server.stats.commands.load(Relaxed));
            out.with(&[HTTP], s.server.stats.http_requests.load(Relaxed));
        } },
    Metric { name: "quipu_refusals_total", kind: MetricKind::Counter, labels: &["door", "reason"],
        help: "What was refused, by reason; nothing of it was applied. Mistakes of grammar over RESP are in quipu_error_replies_total only.",
        read: |s, out| {
            write_refusals(out, RESP, &s.server.stats.refusals_resp);
            write_refusals(out, HTTP, &s.server.stats.refusals_http);
        } },
    counter("quipu_error_replies_total", "Error replies over RESP, of whatever reason.", |s, out| out.one(s.server.stats.errors.load(Relaxed))),
    Metric { name: "quipu_resp_seconds", kind: MetricKind::Histogram, labels: &["command", "namespace"],
        help: "From bytes that arrived over RESP to their replies, commit included, by the first command of a pipeline; one read in 256 is timed. Namespaces beyond the first 64 are counted as '…'.",
        read: |s, out| s.server.command_latencies.write_to(out) },
    Metric { name: "quipu_http_seconds", kind: MetricKind::Histogram, labels: &["operation", "namespace"],
        help: "From the head of an HTTP request to its reply, commit included. Namespaces beyond the first 64 are counted as '…'; operations on no single counter have ''.",
        read: |s, out| s.server.http_latencies.write_to(out) },

    Metric { name: "quipu_connections", kind: MetricKind::Gauge, labels: &["door"], help: "Clients that are connected.",
        read: |s, out| {
            out.with(&[RESP], s.server.clients.count() as u64);
            out.with(&[HTTP], s.server.http_open.load(Relaxed));
        } },
    Metric { name: "quipu_connections_total", kind: MetricKind::Counter, labels: &["door"], help: "Clients that have come, those that were not let in included.",
        read: |s, out| {
            out.with(&[RESP], s.server.stats.connections.load(Relaxed));
            out.with(&[HTTP], s.server.stats.http_connections.load(Relaxed));
        } },
    Metric { name: "quipu_connections_refused_total", kind: MetricKind::Counter, labels: &["door"], help: "Clients that were not let in, because all places were taken.",
        read: |s, out| {
            out.with(&[RESP], s.server.stats.connections_refused.load(Relaxed));
            out.with(&[HTTP], s.server.stats.http_connections_refused.load(Relaxed));
        } },
    gauge("quipu_watchers", "Clients that watch a counter.", |s, out| out.one(s.watchers)),
    counter("quipu_received_bytes_total", "Bytes received over RESP.", |s, out| out.one(s.server.stats.bytes_in.load(Relaxed))),
    counter("quipu_sent_bytes_total", "Bytes sent over RESP.", |s, out| out.one(s.server.stats.bytes_out.load(Relaxed))),

    gauge("quipu_counters", "How many counters there are, wherever they rest.", |s, out| out.one(s.stats.counters)),
    gauge("quipu_counters_split", "Counters that are added to in lanes at the moment.", |s, out| out.one(s.stats.counters_split as u64)),
    gauge("quipu_resident_bytes", "What the counters in memory take.", |s, out| out.one(s.stats.resident_bytes)),
    gauge("quipu_memory_limit_bytes", "The limit of memory; absent without one.", |s, out| s.stats.memory_bytes_max.into_iter().for_each(|max| out.one(max))),
    gauge("quipu_process_resident_bytes", "What the process takes; absent where the system does not tell.", |_, out| process::resident_bytes().into_iter().for_each(|bytes| out.one(bytes))),
    counter("quipu_evictions_total", "Counters that have left memory.", |s, out| out.one(s.stats.evicted)),
    counter("quipu_loads_total", "Counters that were brought back, those that turned out not to exist included.", |s, out| out.one(s.stats.loaded)),

    counter("quipu_late_events_total", "Events that came too late for the window of their counter, and were not counted.", |s, out| out.one(s.stats.late_events)),
    counter("quipu_sampled_events_total", "Events of counts that are sampled, counted for others or not.", |s, out| out.one(s.stats.sampled_events)),
    gauge("quipu_sampling_rate", "Events to one that is counted in namespaces with overload = \"sample\"; 1: the journal keeps up, and all are.", |s, out| out.one(s.stats.sampling_rate.into())),
    counter("quipu_token_hits_total", "Retries that were answered by what their token had done before, and not applied again.", |s, out| out.one(s.stats.tokens.hits)),
    counter("quipu_token_window_evictions_total", "Tokens that were forgotten because their window was over.", |s, out| out.one(s.stats.tokens.evictions)),
    gauge("quipu_tokens", "Tokens that are remembered.", |s, out| out.one(s.stats.tokens.tokens)),
    gauge("quipu_tokens_limit", "How many may be; beyond that new ones are refused.", |s, out| out.one(s.stats.tokens.tokens_max)),
    gauge("quipu_token_producers", "Producers of sequence numbers that are remembered.", |s, out| out.one(s.stats.tokens.producers)),

    gauge("quipu_journal_bytes", "Bytes of the journal, from its start.", |s, out| out.one(s.stats.journal_bytes)),
    gauge("quipu_journal_segments", "Files of the journal, prepared ones included.", |s, out| out.one(s.stats.segments as u64)),
    counter("quipu_journal_written_bytes_total", "Bytes handed to the operating system in the life of the data directory.", |s, out| out.one(s.stats.written.0)),
    gauge("quipu_journal_unsynced_bytes", "Of these, bytes that are not synced yet.", |s, out| out.one(s.stats.written.0.saturating_sub(s.stats.synced.0))),
    Metric { name: "quipu_fsync_seconds", kind: MetricKind::Histogram, labels: &[], help: "How long syncs of the journal took.",
        read: |s, out| out.histogram(&[], &SYNC_SECONDS, &s.stats.sync_counts, s.stats.sync_micros_total as f64 / 1e6) },
    gauge("quipu_fsync_slow", "1 while commits are with a thread of their own because the disk is slow.", |s, out| out.one(s.stats.sync_slow.into())),

    counter("quipu_seals_total", "Seals: changed cells that went into the ledger, after which the journal was cut.", |s, out| out.one(s.stats.seals)),
    gauge("quipu_ledger_bytes", "Bytes of the ledger on disk.", |s, out| out.one(s.stats.ledger.disk_bytes)),
    gauge("quipu_ledger_memory_bytes", "What the ledger takes in memory.", |s, out| out.one(s.stats.ledger.memory_bytes)),
    gauge("quipu_ledger_tables", "Files of the ledger.", |s, out| out.one(s.stats.ledger.tables)),
    gauge("quipu_ledger_runs", "Sorted runs of the ledger: what a look-up may have to ask.", |s, out| out.one(s.stats.ledger.runs)),
    counter("quipu_compactions_total", "Pieces of compaction.", |s, out| out.one(s.stats.compactions)),
    counter("quipu_compaction_seconds_total", "How long they took.", |s, out| out.real(s.stats.compaction_micros as f64 / 1e6)),
    gauge("quipu_compaction_running", "1 while one is under way.", |s, out| out.one(s.stats.compaction_running.into())),
    gauge("quipu_ledger_damaged", "1 if compaction has ended because the ledger is damaged.", |s, out| out.one(s.stats.ledger_damage.is_some().into())),
    gauge("quipu_disk_bytes", "What journal and ledger take on disk.", |s, out| out.one(s.stats.disk_bytes)),
    gauge("quipu_disk_limit_bytes", "The limit for it; absent without one.", |s, out| s.stats.disk_bytes_max.into_iter().for_each(|max| out.one(max))),
    gauge("quipu_clock_ahead_seconds", "How far the wall clock is ahead of the engine's time; less than 0: behind. Beyond 60 either way it has jumped and is not believed.", |s, out| out.real(s.stats.clock_ahead_millis as f64 / 1e3)),
    gauge("quipu_disk_full", "1 while the disk, or the limit, is found full and writes are refused.", |s, out| out.one(s.stats.disk_full.into())),

    gauge("quipu_unsettled_counters", "Counters of which the shared store has not confirmed everything.", |s, out| write_sharing_stat(s, out, |s| s.unsettled)),
    gauge("quipu_failing_counters", "Of these, counters that the shared store did not take when they were put last.", |s, out| write_sharing_stat(s, out, |s| s.failing)),
    gauge("quipu_store_reachable", "1 while the shared store answers; absent without one.", |s, out| write_sharing_stat(s, out, |s| s.reachable.into())),
    gauge("quipu_store_joining", "1 while the node is not registered with the shared store, and puts nothing there.", |s, out| write_sharing_stat(s, out, |s| s.joining.into())),
    counter("quipu_store_puts_total", "Cells put to the shared store.", |s, out| write_sharing_stat(s, out, |s| s.puts)),
    counter("quipu_store_failed_puts_total", "Times a counter was put and the store, which answered, did not take it.", |s, out| write_sharing_stat(s, out, |s| s.failed_puts)),
    counter("quipu_store_bodies_total", "Bodies of sketches put to it.", |s, out| write_sharing_stat(s, out, |s| s.bodies)),
    counter("quipu_store_pages_total", "Pages of bodies that changed, and were put.", |s, out| write_sharing_stat(s, out, |s| s.pages)),
    counter("quipu_store_page_bytes_total", "Bytes of these pages.", |s, out| write_sharing_stat(s, out, |s| s.pages_bytes)),
    counter("quipu_store_rows_total", "Rows read from it.", |s, out| write_sharing_stat(s, out, |s| s.rows)),
    counter("quipu_store_swaps_total", "Swaps carried out there.", |s, out| write_sharing_stat(s, out, |s| s.swaps)),
    counter("quipu_store_errors_total", "Calls to it that failed, and are made again.", |s, out| write_sharing_stat(s, out, |s| s.errors)),
    counter("quipu_store_losses_total", "Times it was found to have lost something: drift.", |s, out| write_sharing_stat(s, out, |s| s.losses)),
    counter("quipu_store_claims_restored_total", "Claims of tokens that the shared store did not have, put back.", |s, out| write_sharing_stat(s, out, |s| s.claims_restored)),
    counter("quipu_store_claim_conflicts_total", "Tokens that this node has applied and that the shared store has otherwise: applied twice, perhaps.", |s, out| write_sharing_stat(s, out, |s| s.claim_conflicts)),
    counter("quipu_carries_total", "Cells that went on under another epoch.", |s, out| write_sharing_stat(s, out, |s| s.carries)),
    counter("quipu_late_cells_total", "Cells of older lives that were settled late.", |s, out| write_sharing_stat(s, out, |s| s.late)),
    counter("quipu_closed_cells_total", "Cells of retired writers that were closed.", |s, out| write_sharing_stat(s, out, |s| s.closed)),
    counter("quipu_folded_cells_total", "Cells of retired writers that were folded.", |s, out| write_sharing_stat(s, out, |s| s.folded)),
];
