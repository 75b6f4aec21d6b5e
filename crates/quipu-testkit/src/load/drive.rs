//! Drives one client: pipelines of drawn requests, each noted with what came of it.
//!
//! Invariants:
//! - a stamp is drawn before a request leaves and after its last reply came, from one counter that all clients share;
//! - a request without its last reply is noted without one, whatever came of its first.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::request::LoadRequest;
use crate::SeededRng;
use crate::resp::{TestRespClient, Value};

/// Deepest pipeline, in requests.
const PIPELINE_MAX: usize = 16;

/// How long a reply may take. A server that is killed closes its connections at once; one that is silent this long hangs.
const REPLY_TIMEOUT: Duration = Duration::from_secs(20);

/// What the drivers of one life share.
#[derive(Debug, Clone, Default)]
pub struct LoadDriver {
    stamps: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
}

/// All that one client asked in one life, in order.
#[derive(Debug, Default)]
pub struct ClientLog {
    /// Which client.
    pub client: usize,
    /// What it asked.
    pub requests: Vec<LoggedRequest>,
    /// Why it ended, if not because it was told to. That the connection broke is what a kill looks like.
    pub ended: Option<io::Error>,
}

/// One request, and what came of it.
#[derive(Debug)]
pub struct LoggedRequest {
    /// What was asked.
    pub request: LoadRequest,
    /// Stamp drawn before it left.
    pub invoked: u64,
    /// Stamp drawn after its reply came, and the reply.
    pub reply: Option<(u64, Value)>,
}

impl LoadDriver {
    /// Drivers that run until the connection breaks or `stop`.
    pub fn new() -> LoadDriver {
        LoadDriver::default()
    }

    /// Lets every client finish its pipeline and end.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
    }

    /// Whether it was told to end.
    pub(super) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    /// Asks, in the calling thread, until the connection breaks or the driver is stopped.
    pub fn run(&self, address: SocketAddr, client: usize, rng: &SeededRng) -> ClientLog {
        let mut log = ClientLog { client, ..ClientLog::default() };
        let outcome = TestRespClient::connect(address, REPLY_TIMEOUT).and_then(|mut connection| {
            while !self.is_stopped() {
                self.send_pipeline(&mut connection, client, rng, &mut log.requests)?;
            }
            Ok(())
        });
        log.ended = outcome.err();
        log
    }

    fn send_pipeline(
        &self,
        connection: &mut TestRespClient,
        client: usize,
        rng: &SeededRng,
        log: &mut Vec<LoggedRequest>,
    ) -> io::Result<()> {
        // Half of the pipelines are a single request: what most clients send.
        let depth = if rng.chance(50) { 1 } else { 1 + rng.below(PIPELINE_MAX) };
        let (first, mut commands) = (log.len(), Vec::new());
        let mut commands_each = Vec::with_capacity(depth);
        for _ in 0..depth {
            let request = LoadRequest::draw(client, rng);
            let sent_as = request.commands();
            commands_each.push(sent_as.len());
            commands.extend(sent_as);
            log.push(LoggedRequest { request, invoked: self.next_stamp(), reply: None });
        }
        connection.send(&commands)?;
        for (index, count) in commands_each.into_iter().enumerate() {
            for _ in 1..count {
                connection.receive()?;
            }
            let reply = connection.receive()?;
            log[first + index].reply = Some((self.next_stamp(), reply));
        }
        Ok(())
    }

    fn next_stamp(&self) -> u64 {
        self.stamps.fetch_add(1, Ordering::SeqCst)
    }
}

impl ClientLog {
    /// Whether the server left a request without answer for so long that it must have hung.
    pub fn is_stalled(&self) -> bool {
        let kind = self.ended.as_ref().map(io::Error::kind);
        matches!(kind, Some(io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut))
    }
}
