//! Defines every metric for Prometheus once, in one table.
//!
//! In: figures of the engine, the listeners and their statistics. Out: text in Prometheus's format,
//! and docs/metrics.md.
//!
//! Invariants:
//! - One line of [`METRICS`] holds a metric's name, type, labels, meaning and value.
//! - Labels have bounded values. Protocols, reasons and operations are lists in code; namespaces
//!   have a cap (`latency`).
//! - On the path of commands a metric costs only updates of statistics. All other figures are read
//!   at the scrape.

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

/// Metric type of Prometheus.
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

/// Sources of all metrics, read at one time.
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

/// Writes a metric of the shared store; a node without one leaves it out.
fn write_sharing_stat(sources: &MetricSources<'_>, out: &mut SampleWriter<'_>, read: fn(&SharingStats) -> u64) {
    if let Some(sharing) = &sources.sharing {
        out.one(read(sharing));
    }
}

fn write_refusals(out: &mut SampleWriter<'_>, protocol: (&'static str, &'static str), counts: &RefusalCounts) {
    for reason in reason::all() {
        let count = counts.get(reason);
        // Reasons with a count of zero are left out: most have one.
        if count > 0 {
            out.with(&[protocol, ("reason", reason.word)], count);
        }
    }
}

/// All metrics, in the order of output.
#[rustfmt::skip]
pub(crate) const METRICS: &[Metric] = &[
    Metric { name: "quipu_info", kind: MetricKind::Gauge, labels: &["version", "writer", "durability"],
        help: "Always 1; its labels are the version of the program, the writer and the default durability.",
        read: |s, out| out.with(&[("version", env!("CARGO_PKG_VERSION")), ("writer", &s.stats.writer.to_string()), ("durability", &s.stats.durability.to_string())], 1) },
    gauge("quipu_uptime_seconds", "Seconds since the start of the server.", |s, out| out.one(s.server.started.until(s.server.engine.now()) / 1_000)),

    Metric { name: "quipu_operations_total", kind: MetricKind::Counter, labels: &["door"],
        help: "Answered commands (RESP) and requests (HTTP).",
        read: |s, out| {
            out.with(&[RESP], s.server.stats.commands.load(Relaxed));
            out.with(&[HTTP], s.server.stats.http_requests.load(Relaxed));
        } },
    Metric { name: "quipu_refusals_total", kind: MetricKind::Counter, labels: &["door", "reason"],
        help: "Refusals, by reason; a refusal applies nothing. Syntax errors over RESP count in quipu_error_replies_total only.",
        read: |s, out| {
            write_refusals(out, RESP, &s.server.stats.refusals_resp);
            write_refusals(out, HTTP, &s.server.stats.refusals_http);
        } },
    counter("quipu_error_replies_total", "Error replies over RESP, for any reason.", |s, out| out.one(s.server.stats.errors.load(Relaxed))),
    Metric { name: "quipu_resp_seconds", kind: MetricKind::Histogram, labels: &["command", "namespace"],
        help: "Time from the arrival of bytes over RESP to their replies, commit included, by the first command of a pipeline. The server times one read in 256. Namespaces beyond the first 64 share the label '…'.",
        read: |s, out| s.server.command_latencies.write_to(out) },
    Metric { name: "quipu_http_seconds", kind: MetricKind::Histogram, labels: &["operation", "namespace"],
        help: "Time from the head of an HTTP request to its reply, commit included. Namespaces beyond the first 64 share the label '…'; operations on no single counter have ''.",
        read: |s, out| s.server.http_latencies.write_to(out) },

    Metric { name: "quipu_connections", kind: MetricKind::Gauge, labels: &["door"], help: "Connected clients.",
        read: |s, out| {
            out.with(&[RESP], s.server.clients.count() as u64);
            out.with(&[HTTP], s.server.http_open.load(Relaxed));
        } },
    Metric { name: "quipu_connections_total", kind: MetricKind::Counter, labels: &["door"], help: "Connections of clients, refused ones included.",
        read: |s, out| {
            out.with(&[RESP], s.server.stats.connections.load(Relaxed));
            out.with(&[HTTP], s.server.stats.http_connections.load(Relaxed));
        } },
    Metric { name: "quipu_connections_refused_total", kind: MetricKind::Counter, labels: &["door"], help: "Connections refused at the connection limit.",
        read: |s, out| {
            out.with(&[RESP], s.server.stats.connections_refused.load(Relaxed));
            out.with(&[HTTP], s.server.stats.http_connections_refused.load(Relaxed));
        } },
    gauge("quipu_watchers", "Clients that watch a counter.", |s, out| out.one(s.watchers)),
    counter("quipu_received_bytes_total", "Bytes received over RESP.", |s, out| out.one(s.server.stats.bytes_in.load(Relaxed))),
    counter("quipu_sent_bytes_total", "Bytes sent over RESP.", |s, out| out.one(s.server.stats.bytes_out.load(Relaxed))),

    gauge("quipu_counters", "Number of counters, in memory and on disk.", |s, out| out.one(s.stats.counters)),
    gauge("quipu_counters_split", "Number of counters split into lanes at present.", |s, out| out.one(s.stats.counters_split as u64)),
    gauge("quipu_resident_bytes", "Bytes of memory that resident counters take.", |s, out| out.one(s.stats.resident_bytes)),
    gauge("quipu_memory_limit_bytes", "Memory limit in bytes; absent without one.", |s, out| s.stats.memory_bytes_max.into_iter().for_each(|max| out.one(max))),
    gauge("quipu_process_resident_bytes", "Bytes of memory that the process takes; absent where the system does not report it.", |_, out| process::resident_bytes().into_iter().for_each(|bytes| out.one(bytes))),
    counter("quipu_evictions_total", "Counters evicted from memory.", |s, out| out.one(s.stats.evicted)),
    counter("quipu_loads_total", "Counters loaded back into memory, lookups of absent counters included.", |s, out| out.one(s.stats.loaded)),

    counter("quipu_late_events_total", "Events too late for the window of their counter, and hence not counted.", |s, out| out.one(s.stats.late_events)),
    counter("quipu_sampled_events_total", "Events of sampled counts, both in the sample and outside it.", |s, out| out.one(s.stats.sampled_events)),
    gauge("quipu_sampling_rate", "Events per counted event in namespaces with overload = \"sample\". At 1 the journal keeps up, and every event is counted.", |s, out| out.one(s.stats.sampling_rate.into())),
    counter("quipu_token_hits_total", "Retries answered with the first reply of their token, and not applied again.", |s, out| out.one(s.stats.tokens.hits)),
    counter("quipu_token_window_evictions_total", "Tokens forgotten at the end of their window.", |s, out| out.one(s.stats.tokens.evictions)),
    gauge("quipu_tokens", "Remembered tokens.", |s, out| out.one(s.stats.tokens.tokens)),
    gauge("quipu_tokens_limit", "Limit of remembered tokens; beyond it, the server refuses new ones.", |s, out| out.one(s.stats.tokens.tokens_max)),
    gauge("quipu_token_producers", "Remembered producers of sequence numbers.", |s, out| out.one(s.stats.tokens.producers)),

    gauge("quipu_journal_bytes", "Bytes of the journal, from its start.", |s, out| out.one(s.stats.journal_bytes)),
    gauge("quipu_journal_segments", "Files of the journal, prepared ones included.", |s, out| out.one(s.stats.segments as u64)),
    counter("quipu_journal_written_bytes_total", "Bytes of the journal handed to the operating system since the creation of the data directory.", |s, out| out.one(s.stats.written.0)),
    gauge("quipu_journal_unsynced_bytes", "Bytes of the journal handed to the operating system and not synced yet.", |s, out| out.one(s.stats.written.0.saturating_sub(s.stats.synced.0))),
    Metric { name: "quipu_fsync_seconds", kind: MetricKind::Histogram, labels: &[], help: "Durations of journal syncs, in seconds.",
        read: |s, out| out.histogram(&[], &SYNC_SECONDS, &s.stats.sync_counts, s.stats.sync_micros_total as f64 / 1e6) },
    gauge("quipu_fsync_slow", "1 while a separate thread commits because the disk is slow.", |s, out| out.one(s.stats.sync_slow.into())),

    counter("quipu_seals_total", "Seals: each moves changed cells to the ledger and then cuts the journal.", |s, out| out.one(s.stats.seals)),
    gauge("quipu_ledger_bytes", "Bytes of the ledger on disk.", |s, out| out.one(s.stats.ledger.disk_bytes)),
    gauge("quipu_ledger_memory_bytes", "Bytes of memory that the ledger takes.", |s, out| out.one(s.stats.ledger.memory_bytes)),
    gauge("quipu_ledger_tables", "Files of the ledger.", |s, out| out.one(s.stats.ledger.tables)),
    gauge("quipu_ledger_runs", "Sorted runs of the ledger; a lookup may search all of them.", |s, out| out.one(s.stats.ledger.runs)),
    counter("quipu_compactions_total", "Completed pieces of compaction.", |s, out| out.one(s.stats.compactions)),
    counter("quipu_compaction_seconds_total", "Total duration of compaction, in seconds.", |s, out| out.real(s.stats.compaction_micros as f64 / 1e6)),
    gauge("quipu_compaction_running", "1 while compaction runs.", |s, out| out.one(s.stats.compaction_running.into())),
    gauge("quipu_ledger_damaged", "1 if compaction has stopped because the ledger is damaged.", |s, out| out.one(s.stats.ledger_damage.is_some().into())),
    gauge("quipu_disk_bytes", "Bytes of disk that journal and ledger take.", |s, out| out.one(s.stats.disk_bytes)),
    gauge("quipu_disk_limit_bytes", "Disk limit for journal and ledger, in bytes; absent without one.", |s, out| s.stats.disk_bytes_max.into_iter().for_each(|max| out.one(max))),
    gauge("quipu_clock_ahead_seconds", "Lead of the wall clock over the engine's time, in seconds; negative if behind. Beyond 60 either way the clock has jumped, and the engine ignores it.", |s, out| out.real(s.stats.clock_ahead_millis as f64 / 1e3)),
    gauge("quipu_disk_full", "1 while the disk or its limit is full and the server refuses writes.", |s, out| out.one(s.stats.disk_full.into())),

    gauge("quipu_unsettled_counters", "Counters with changes that the shared store has not confirmed.", |s, out| write_sharing_stat(s, out, |s| s.unsettled)),
    gauge("quipu_failing_counters", "Unsettled counters with a last put that the shared store did not take.", |s, out| write_sharing_stat(s, out, |s| s.failing)),
    gauge("quipu_store_reachable", "1 while the shared store answers; absent without one.", |s, out| write_sharing_stat(s, out, |s| s.reachable.into())),
    gauge("quipu_store_joining", "1 while the node is not registered with the shared store and puts nothing there.", |s, out| write_sharing_stat(s, out, |s| s.joining.into())),
    counter("quipu_store_puts_total", "Cells put to the shared store.", |s, out| write_sharing_stat(s, out, |s| s.puts)),
    counter("quipu_store_failed_puts_total", "Puts of a counter that the shared store answered but did not take.", |s, out| write_sharing_stat(s, out, |s| s.failed_puts)),
    counter("quipu_store_bodies_total", "Bodies of sketches put to the shared store.", |s, out| write_sharing_stat(s, out, |s| s.bodies)),
    counter("quipu_store_pages_total", "Changed pages of bodies put to the shared store.", |s, out| write_sharing_stat(s, out, |s| s.pages)),
    counter("quipu_store_page_bytes_total", "Bytes of the pages put to the shared store.", |s, out| write_sharing_stat(s, out, |s| s.pages_bytes)),
    counter("quipu_store_rows_total", "Rows read from the shared store.", |s, out| write_sharing_stat(s, out, |s| s.rows)),
    counter("quipu_store_swaps_total", "Swaps carried out at the shared store.", |s, out| write_sharing_stat(s, out, |s| s.swaps)),
    counter("quipu_store_errors_total", "Failed calls to the shared store; the node repeats them.", |s, out| write_sharing_stat(s, out, |s| s.errors)),
    counter("quipu_store_losses_total", "Detected losses of data in the shared store (drift).", |s, out| write_sharing_stat(s, out, |s| s.losses)),
    counter("quipu_store_claims_restored_total", "Claims of tokens that were missing at the shared store, and that this node put back.", |s, out| write_sharing_stat(s, out, |s| s.claims_restored)),
    counter("quipu_store_claim_conflicts_total", "Tokens that this node applied and that have another claim at the shared store: possibly applied twice.", |s, out| write_sharing_stat(s, out, |s| s.claim_conflicts)),
    counter("quipu_carries_total", "Cells carried into another epoch.", |s, out| write_sharing_stat(s, out, |s| s.carries)),
    counter("quipu_late_cells_total", "Cells of earlier incarnations, settled late.", |s, out| write_sharing_stat(s, out, |s| s.late)),
    counter("quipu_closed_cells_total", "Closed cells of retired writers.", |s, out| write_sharing_stat(s, out, |s| s.closed)),
    counter("quipu_folded_cells_total", "Folded cells of retired writers.", |s, out| write_sharing_stat(s, out, |s| s.folded)),
];
