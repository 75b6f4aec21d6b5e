//! Holds the state that all connections of a server share.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use quipu_engine::Engine;
use quipu_model::{Durability, Millis, ProblemType, Refusal, Reply};

use crate::clients::Clients;
use crate::hot_keys::HotKeyTracker;
use crate::http::reason;
use crate::metrics::{CommandLatencies, HttpLatencies};
use crate::settings::Settings;
use crate::{HttpHosts, Limits, Origins, Password};

/// One per server, behind an `Arc`.
pub(crate) struct ServerState {
    pub engine: Engine,
    /// Durability of counters in no other namespace. Fixed when the engine was opened, so the
    /// server keeps a copy.
    pub durability: Durability,
    pub password: Option<Password>,
    /// Names under which HTTP is served without a password.
    pub http_hosts: HttpHosts,
    pub limits: Limits,
    pub origins: Origins,
    /// Shared store in displayable form, if there is one.
    pub store: Option<String>,
    pub settings: Settings,
    pub clients: Clients,
    pub stats: ServerStats,
    pub http_latencies: HttpLatencies,
    pub command_latencies: CommandLatencies,
    pub hot_keys: HotKeyTracker,
    /// Number of open HTTP connections.
    pub http_open: AtomicU64,
    pub started: Millis,
    pub resp: SocketAddr,
    pub http: Option<SocketAddr>,
    pub workers: usize,
}

/// Statistics since the start, or since CONFIG RESETSTAT.
#[derive(Default)]
pub(crate) struct ServerStats {
    pub commands: AtomicU64,
    pub errors: AtomicU64,
    pub connections: AtomicU64,
    pub connections_refused: AtomicU64,
    pub bytes_in: AtomicU64,
    pub bytes_out: AtomicU64,
    pub refusals_resp: RefusalCounts,
    pub refusals_http: RefusalCounts,
    pub http_requests: AtomicU64,
    pub http_connections: AtomicU64,
    pub http_connections_refused: AtomicU64,
}

impl ServerStats {
    pub fn reset(&self) {
        let ServerStats { commands, errors, connections, connections_refused, bytes_in, bytes_out, .. } = self;
        let ServerStats {
            http_requests, http_connections, http_connections_refused, refusals_resp, refusals_http, ..
        } = self;
        let resp = [commands, errors, connections, connections_refused, bytes_in, bytes_out];
        let http = [http_requests, http_connections, http_connections_refused];
        for count in resp.into_iter().chain(http).chain(&refusals_resp.0).chain(&refusals_http.0) {
            count.store(0, Ordering::Relaxed);
        }
    }

    /// Counts a reply over RESP if it is a refusal.
    pub fn record_reply(&self, reply: &Reply) {
        if let Reply::Refused(refusal) = reply {
            self.record_refusal(refusal, 1);
        }
    }

    /// Counts adds that the engine refused because the sum would overflow.
    pub fn record_overflows(&self, times: u64) {
        if times > 0 {
            add_stat(&self.errors, times);
            self.record_refusal(&Refusal::Overflow, times);
        }
    }

    /// Counts refusals over RESP.
    pub fn record_refusal(&self, refusal: &Refusal, times: u64) {
        if let Some(problem) = refusal.reason().http {
            self.refusals_resp.add(problem, times);
        }
    }
}

/// Number of refusals by reason.
pub(crate) struct RefusalCounts([AtomicU64; reason::COUNT]);

impl Default for RefusalCounts {
    fn default() -> RefusalCounts {
        RefusalCounts(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl RefusalCounts {
    pub fn add(&self, problem: &ProblemType, times: u64) {
        add_stat(self.count(problem), times);
    }

    pub fn get(&self, problem: &ProblemType) -> u64 {
        self.count(problem).load(Ordering::Relaxed)
    }

    fn count(&self, problem: &ProblemType) -> &AtomicU64 {
        let index = reason::all().position(|other| other.word == problem.word);
        &self.0[index.expect("the list has all problem types")]
    }
}

/// Adds to a statistic. No decision depends on these numbers, so they need no memory ordering.
pub(crate) fn add_stat(count: &AtomicU64, by: u64) {
    count.fetch_add(by, Ordering::Relaxed);
}
