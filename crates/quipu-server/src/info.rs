//! Answers INFO: Redis's sections and keys, and one section of our own.

use std::fmt::Write;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use quipu_engine::{Membership, StoreHealth};

use crate::connection::REDIS_VERSION;
use crate::process;
use crate::server_state::ServerState;

/// The sections, in order. Clients name them in any case; `all`, `default`, `everything` or no name
/// means all of them.
const SECTIONS: [&str; 9] =
    ["Server", "Clients", "Memory", "Persistence", "Stats", "Replication", "Cluster", "Keyspace", "Quipu"];

/// Text of the requested sections; unknown ones are empty, as in Redis.
pub(crate) fn text(server: &ServerState, sections: &[&[u8]]) -> String {
    let everything = sections.is_empty()
        || sections.iter().any(|word| ["all", "default", "everything"].iter().any(|all| names_match(word, all)));
    let mut text = String::new();
    for section in SECTIONS {
        if everything || sections.iter().any(|word| names_match(word, section)) {
            if !text.is_empty() {
                text.push_str("\r\n");
            }
            let lines = section_lines(server, section);
            write!(text, "# {section}\r\n").expect("writing to a string cannot fail");
            for (key, value) in lines {
                write!(text, "{key}:{value}\r\n").expect("writing to a string cannot fail");
            }
        }
    }
    text
}

fn section_lines(server: &ServerState, section: &str) -> Vec<(&'static str, String)> {
    let stats = server.engine.stats();
    let uptime = server.started.until(server.engine.now()) / 1000;
    let number = |value: u64| value.to_string();
    let word = |value: &str| value.to_owned();
    let resident = || number(process::resident_bytes().unwrap_or(0));
    let server_stats = &server.stats;
    match section {
        "Server" => vec![
            ("redis_version", word(REDIS_VERSION)),
            ("server_name", word("quipu")),
            ("quipu_version", word(env!("CARGO_PKG_VERSION"))),
            ("redis_mode", word("standalone")),
            ("os", word(std::env::consts::OS)),
            ("arch_bits", number(usize::BITS.into())),
            ("process_id", number(std::process::id().into())),
            ("run_id", format!("{:016x}{:016x}", stats.writer.node.0, stats.writer.incarnation.0)),
            ("tcp_port", number(server.resp.port().into())),
            ("uptime_in_seconds", number(uptime)),
            ("uptime_in_days", number(uptime / (24 * 60 * 60))),
            ("io_threads_active", number(server.workers as u64)),
        ],
        "Clients" => vec![
            ("connected_clients", number(server.clients.count() as u64)),
            ("maxclients", number(server.settings.connections_max().into())),
            ("blocked_clients", word("0")),
        ],
        "Memory" => vec![
            ("used_memory", resident()),
            ("used_memory_rss", resident()),
            ("maxmemory", number(stats.memory_bytes_max.unwrap_or(0))),
            ("maxmemory_policy", word("noeviction")),
        ],
        "Persistence" => vec![
            ("loading", word("0")),
            ("rdb_bgsave_in_progress", word("0")),
            ("rdb_last_bgsave_status", word("ok")),
            ("aof_enabled", word("1")),
            ("aof_rewrite_in_progress", word("0")),
            ("aof_last_write_status", word("ok")),
            ("aof_current_size", number(stats.journal_bytes)),
        ],
        "Stats" => vec![
            ("total_connections_received", number(server_stats.connections.load(Relaxed))),
            ("total_commands_processed", number(server_stats.commands.load(Relaxed))),
            ("total_net_input_bytes", number(server_stats.bytes_in.load(Relaxed))),
            ("total_net_output_bytes", number(server_stats.bytes_out.load(Relaxed))),
            ("rejected_connections", number(server_stats.connections_refused.load(Relaxed))),
            ("total_error_replies", number(server_stats.errors.load(Relaxed))),
            ("evicted_keys", word("0")),
        ],
        "Replication" => vec![("role", word("master")), ("connected_slaves", word("0"))],
        "Cluster" => vec![("cluster_enabled", word("0"))],
        "Keyspace" if stats.counters == 0 => Vec::new(),
        "Keyspace" => vec![("db0", format!("keys={},expires=0,avg_ttl=0", stats.counters))],
        _ => vec![
            ("writer", stats.writer.to_string()),
            ("durability", stats.durability.to_string()),
            ("counters", number(stats.counters)),
            ("counters_split", number(stats.counters_split as u64)),
            ("sampled_events_total", number(stats.sampled_events)),
            ("sampling_rate", number(stats.sampling_rate.into())),
            ("journal_bytes", number(stats.journal_bytes)),
            ("journal_segments", number(stats.segments as u64)),
            ("journal_written", number(stats.written.0)),
            ("journal_synced", number(stats.synced.0)),
            ("fsyncs_total", number(stats.syncs)),
            ("fsync_last_micros", number(stats.sync_micros_last)),
            ("fsync_slow", number(stats.sync_slow.into())),
            ("resident_bytes", number(stats.resident_bytes)),
            ("evicted_total", number(stats.evicted)),
            ("loaded_total", number(stats.loaded)),
            ("seals_total", number(stats.seals)),
            ("tokens", number(stats.tokens.tokens)),
            ("tokens_max", number(stats.tokens.tokens_max)),
            ("token_hits", number(stats.tokens.hits)),
            ("token_evictions", number(stats.tokens.evictions)),
            ("producers", number(stats.tokens.producers)),
            ("ledger_bytes", number(stats.ledger.disk_bytes)),
            ("ledger_memory_bytes", number(stats.ledger.memory_bytes)),
            ("ledger_tables", number(stats.ledger.tables)),
            ("ledger_runs", number(stats.ledger.runs)),
            ("compactions_total", number(stats.compactions)),
            ("compaction_micros_total", number(stats.compaction_micros)),
            ("compaction_running", number(stats.compaction_running.into())),
            ("ledger_damage", stats.ledger_damage.clone().unwrap_or_else(|| word("none"))),
            ("disk_bytes", number(stats.disk_bytes)),
            ("max_disk", number(stats.disk_bytes_max.unwrap_or(0))),
            ("disk_full", number(stats.disk_full.into())),
            ("clock_ahead_seconds", (stats.clock_ahead_millis / 1_000).to_string()),
            ("http_port", server.http.map_or_else(|| word("none"), |addr| addr.port().to_string())),
        ]
        .into_iter()
        .chain(store_lines(server))
        .collect(),
    }
}

/// State of the shared store: reachable, or the error.
fn store_lines(server: &ServerState) -> Vec<(&'static str, String)> {
    let Some(sharing) = server.engine.sharing() else { return vec![("store", "none".to_owned())] };
    let (reachable, error, for_time) = match sharing.health() {
        StoreHealth::Reachable => (1, "none".to_owned(), Duration::ZERO),
        StoreHealth::Unknown => (0, "not answered yet".to_owned(), Duration::ZERO),
        StoreHealth::Unreachable { for_time, error } => (0, error, for_time),
    };
    let mut problems = sharing.store_problems();
    problems.extend(sharing.registry_problem());
    let problems = problems.join("; ");
    vec![
        ("store", server.store.clone().unwrap_or_else(|| "embedded".to_owned())),
        ("store_reachable", reachable.to_string()),
        ("store_error", error),
        ("store_unreachable_ms", for_time.as_millis().to_string()),
        ("store_problems", if problems.is_empty() { "none".to_owned() } else { problems }),
        ("node_name", sharing.node_name().unwrap_or_default()),
        ("unsettled_counters", sharing.unsettled().to_string()),
        ("failing_counters", sharing.failing().to_string()),
        ("store_standing", membership_name(&sharing.membership()).to_owned()),
    ]
}

/// Name of the node's membership state.
fn membership_name(membership: &Membership) -> &'static str {
    match membership {
        Membership::Joining => "joining",
        Membership::Live => "live",
        Membership::Fenced { .. } => "fenced",
    }
}

fn names_match(given: &[u8], known: &str) -> bool {
    given.eq_ignore_ascii_case(known.as_bytes())
}
