//! Drives one client: pipelines of drawn requests, each recorded with its outcome.
//!
//! Invariants:
//! - the client draws a stamp before a request leaves and after its last reply came, from one
//!   counter that all clients share;
//! - a request without its last reply is recorded without a reply, even if its first reply came.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::request::LoadRequest;
use crate::SeededRng;
use quipu_protocol::resp::{RespConnection, Value};

/// Deepest pipeline, in requests.
const PIPELINE_MAX: usize = 16;

/// Timeout of a reply. A killed server closes its connections at once; one without a reply for this
/// time hangs.
const REPLY_TIMEOUT: Duration = Duration::from_secs(20);

/// State that the drivers of one incarnation share.
#[derive(Debug, Clone, Default)]
pub struct LoadDriver {
    stamps: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
}

/// All requests of one client in one incarnation, in order.
#[derive(Debug, Default)]
pub struct ClientLog {
    /// Index of the client.
    pub client: usize,
    /// Its requests.
    pub requests: Vec<LoggedRequest>,
    /// Error that ended it, unless it was stopped. A kill shows as a broken connection.
    pub ended: Option<io::Error>,
}

/// One request with its outcome.
#[derive(Debug)]
pub struct LoggedRequest {
    /// The request.
    pub request: LoadRequest,
    /// Stamp drawn before it left.
    pub invoked: u64,
    /// Stamp drawn after its reply came, and the reply.
    pub reply: Option<(u64, Value)>,
}

impl LoadDriver {
    /// Creates drivers that run until the connection breaks or `stop` is called.
    pub fn new() -> LoadDriver {
        LoadDriver::default()
    }

    /// Lets every client finish its pipeline and end.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
    }

    /// Returns true after `stop`.
    pub(super) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    /// Sends requests in the calling thread until the connection breaks or the driver is stopped.
    pub fn run(&self, address: SocketAddr, client: usize, rng: &SeededRng) -> ClientLog {
        let mut log = ClientLog { client, ..ClientLog::default() };
        let outcome = RespConnection::connect(address, REPLY_TIMEOUT).and_then(|mut connection| {
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
        connection: &mut RespConnection,
        client: usize,
        rng: &SeededRng,
        log: &mut Vec<LoggedRequest>,
    ) -> io::Result<()> {
        // Half of the pipelines are a single request, as most clients send.
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
    /// Returns true if the server left a request without a reply for the whole timeout.
    pub fn is_stalled(&self) -> bool {
        let kind = self.ended.as_ref().map(io::Error::kind);
        matches!(kind, Some(io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut))
    }
}
