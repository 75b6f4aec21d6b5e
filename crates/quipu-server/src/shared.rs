//! What all connections of a server share.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use quipu_engine::Engine;
use quipu_model::{Durability, Millis};

use crate::clients::Clients;
use crate::settings::Settings;
use crate::{Limits, Password};

/// One per server, behind an `Arc`.
pub(crate) struct Shared {
    pub engine: Engine,
    /// Of counters in no other namespace; fixed when the engine was opened, so nobody has to ask it again.
    pub durability: Durability,
    pub password: Option<Password>,
    pub limits: Limits,
    pub settings: Settings,
    pub clients: Clients,
    pub tally: Tally,
    pub started: Millis,
    pub resp: SocketAddr,
    pub http: Option<SocketAddr>,
    pub workers: usize,
}

/// What has happened since the start, or since CONFIG RESETSTAT.
#[derive(Default)]
pub(crate) struct Tally {
    pub commands: AtomicU64,
    pub errors: AtomicU64,
    pub connections: AtomicU64,
    pub connections_refused: AtomicU64,
    pub bytes_in: AtomicU64,
    pub bytes_out: AtomicU64,
}

impl Tally {
    pub fn reset(&self) {
        let Tally { commands, errors, connections, connections_refused, bytes_in, bytes_out } = self;
        for count in [commands, errors, connections, connections_refused, bytes_in, bytes_out] {
            count.store(0, Ordering::Relaxed);
        }
    }
}

/// Adds to a tally. Nothing is decided by these numbers, so no order is asked for.
pub(crate) fn tally(count: &AtomicU64, by: u64) {
    count.fetch_add(by, Ordering::Relaxed);
}
