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

use super::request::Request;
use crate::Dice;
use crate::resp::{Client, Value};

/// Deepest pipeline, in requests.
const PIPELINE_MAX: usize = 16;

/// How long a reply may take. A server that is killed closes its connections at once; one that is silent this long hangs.
const REPLY_TIMEOUT: Duration = Duration::from_secs(20);

/// What the drivers of one life share.
#[derive(Debug, Clone, Default)]
pub struct Driver {
    stamps: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
}

/// All that one client asked in one life, in order.
#[derive(Debug, Default)]
pub struct Log {
    /// Which client.
    pub client: usize,
    /// What it asked.
    pub requests: Vec<Logged>,
    /// Why it ended, if not because it was told to. That the connection broke is what a kill looks like.
    pub ended: Option<io::Error>,
}

/// One request, and what came of it.
#[derive(Debug)]
pub struct Logged {
    /// What was asked.
    pub request: Request,
    /// Stamp drawn before it left.
    pub invoked: u64,
    /// Stamp drawn after its reply came, and the reply.
    pub reply: Option<(u64, Value)>,
}

impl Driver {
    /// Drivers that run until the connection breaks or `stop`.
    pub fn new() -> Driver {
        Driver::default()
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
    pub fn run(&self, address: SocketAddr, client: usize, dice: &Dice) -> Log {
        let mut log = Log { client, ..Log::default() };
        let outcome = Client::connect(address, REPLY_TIMEOUT).and_then(|mut connection| {
            while !self.is_stopped() {
                self.pipeline(&mut connection, client, dice, &mut log.requests)?;
            }
            Ok(())
        });
        log.ended = outcome.err();
        log
    }

    fn pipeline(&self, connection: &mut Client, client: usize, dice: &Dice, log: &mut Vec<Logged>) -> io::Result<()> {
        // Half of the pipelines are a single request: what most clients send.
        let depth = if dice.chance(50) { 1 } else { 1 + dice.below(PIPELINE_MAX) };
        let (first, mut commands) = (log.len(), Vec::new());
        let mut commands_each = Vec::with_capacity(depth);
        for _ in 0..depth {
            let request = Request::draw(client, dice);
            let sent_as = request.commands();
            commands_each.push(sent_as.len());
            commands.extend(sent_as);
            log.push(Logged { request, invoked: self.stamp(), reply: None });
        }
        connection.send(&commands)?;
        for (place, count) in commands_each.into_iter().enumerate() {
            for _ in 1..count {
                connection.receive()?;
            }
            let reply = connection.receive()?;
            log[first + place].reply = Some((self.stamp(), reply));
        }
        Ok(())
    }

    fn stamp(&self) -> u64 {
        self.stamps.fetch_add(1, Ordering::SeqCst)
    }
}

impl Log {
    /// Whether the server left a request without answer for so long that it must have hung.
    pub fn is_stalled(&self) -> bool {
        let kind = self.ended.as_ref().map(io::Error::kind);
        matches!(kind, Some(io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut))
    }
}
