//! Runs a worker without sockets, for `cargo xtask bench instructions`, in the steps of the event
//! loop.
//!
//! In: the input of each connection in one round. Out: the replies.
//!
//! Invariants:
//! - A round makes the same calls in the same order as a round of `worker/event_loop.rs` between
//!   its reads and its writes.
//! - Equal rounds on equal engines execute equal instructions: the samplers of hot keys have fixed
//!   seeds.
//!
//! Not here: sockets, commits, latency samples. So only counters in memory mode can be served.

use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::sync::Arc;

use quipu_engine::{Engine, Wait};
use quipu_protocol::Decoder;

use super::command_batch::{CommandBatch, EntryProgress};
use super::session::{Session, TurnEnd};
use crate::hot_keys::{self, HotKeyTracker};
use crate::server_state::{ServerState, add_stat};
use crate::{BindError, Options, Server, cached_clock};

/// Seed of the hot-key samplers.
const HOT_SEED: u64 = 0x9e37_79b9_7f4a_7c15;

/// A worker and its connections.
pub struct SocketlessWorker {
    server: Arc<ServerState>,
    connections: Vec<SocketlessConnection>,
    progress: Vec<EntryProgress>,
}

struct SocketlessConnection {
    session: Session,
    decoder: Decoder,
}

impl SocketlessWorker {
    /// Creates a worker with this number of connections, for a server on this engine.
    pub fn new(engine: Engine, connections: usize) -> Result<SocketlessWorker, BindError> {
        let resp = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let options = Options { resp, http: None, workers: NonZeroUsize::MIN, ..Options::default() };
        let mut server = Server::bind(engine, options)?.state;
        let own = Arc::get_mut(&mut server).expect("a server that does not run shares nothing");
        own.hot_keys = HotKeyTracker::with_seed(own.started, HOT_SEED);
        hot_keys::seed_sampler(HOT_SEED);
        let connections = (0..connections).map(|_| {
            let (resp, now, connections_max) = (server.resp, server.engine.now(), server.settings.connections_max());
            let client = server.clients.admit(resp, resp, now, connections_max).expect("a bench has few connections");
            SocketlessConnection { session: Session::new(client, Arc::clone(&server)), decoder: Decoder::default() }
        });
        Ok(SocketlessWorker { connections: connections.collect(), server, progress: Vec::new() })
    }

    /// Serves one round: the first input is the first connection's, and so on. Appends the replies.
    pub fn run_round(&mut self, inputs: &[&[u8]], replies: &mut Vec<u8>) {
        cached_clock::invalidate();
        let mut next = 0;
        while next < inputs.len() {
            next += self.run_next(next, &inputs[next..], replies);
        }
    }

    /// Serves the next connections together, up to the first that must run alone; returns their
    /// number.
    fn run_next(&mut self, first: usize, inputs: &[&[u8]], replies: &mut Vec<u8>) -> usize {
        let SocketlessWorker { server, connections, progress } = self;
        let (mut turn, mut command_batch, mut alone) = (None, CommandBatch::default(), None);
        let mut rest = inputs.iter().enumerate();
        while !command_batch.is_full()
            && let Some((index, input)) = rest.next()
        {
            let SocketlessConnection { session, decoder } = &connections[first + index];
            let is_batched = decoder.is_fresh() && session.takes_simple() && {
                let turn = turn.get_or_insert_with(|| server.engine.turn_at(cached_clock::now(&server.engine)));
                command_batch.try_add(first + index, input, session.state.version, &server.limits.frame, turn)
            };
            if !is_batched {
                alone = Some((first + index, input));
                break;
            }
        }
        if let Some(mut turn) = turn.filter(|_| !command_batch.is_empty()) {
            let counts = command_batch.run(&mut turn, &server.hot_keys, replies, progress);
            let (now, wait) = (turn.now(), turn.finish());
            assert!(wait == Wait::default(), "the counters are not in memory mode");
            add_stat(&server.stats.commands, counts.commands);
            server.stats.record_overflows(counts.errors);
            for (entry, progress) in command_batch.entries().iter().zip(progress) {
                assert!(progress.bytes == entry.input.len(), "a command is not a simple one");
                connections[entry.slot].session.record_batch(progress.command, now);
            }
        }
        if let Some((slot, input)) = alone {
            let SocketlessConnection { session, decoder } = &mut connections[slot];
            let (wait, end) = session.run_turn(server, decoder, input, replies);
            assert!(wait == Wait::default(), "the counters are not in memory mode");
            // A turn with much work yields although nothing is left: for example one that creates a
            // sketch.
            let is_whole = matches!(end, TurnEnd::Idle | TurnEnd::Yield) && session.consumed() == input.len();
            assert!(is_whole, "an input takes several turns: {end:?}, {}", replies.escape_ascii());
        }
        inputs.len() - rest.len()
    }
}
