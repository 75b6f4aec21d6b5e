//! A worker without sockets, for `cargo xtask bench instructions`: it runs input as the event loop does.
//!
//! In: what each connection has sent in one round. Out: the replies.
//!
//! Invariants:
//! - a round calls what a round of `worker/rounds.rs` calls between its reads and its writes, in the same order;
//! - equal rounds on equal engines execute equal instructions: the samplers of hot keys have fixed seeds.
//!
//! Not here: sockets, commits, latency samples. So only counters in memory mode can be served.

use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::sync::Arc;

use quipu_engine::{Engine, Wait};
use quipu_protocol::Decoder;

use super::gathered::{Answered, Gathered};
use super::session::{Ending, Session};
use crate::hot::{self, Hot};
use crate::shared::{Shared, tally};
use crate::{BindError, Options, Server, moment};

/// The seed of the samplers of hot keys.
const HOT_SEED: u64 = 0x9e37_79b9_7f4a_7c15;

/// A worker and its connections.
pub struct SocketlessWorker {
    shared: Arc<Shared>,
    connections: Vec<SocketlessConnection>,
    answered: Vec<Answered>,
}

struct SocketlessConnection {
    session: Session,
    decoder: Decoder,
}

impl SocketlessWorker {
    /// A worker of a server on this engine, with so many connections.
    pub fn new(engine: Engine, connections: usize) -> Result<SocketlessWorker, BindError> {
        let resp = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let options = Options { resp, http: None, workers: NonZeroUsize::MIN, ..Options::default() };
        let mut shared = Server::bind(engine, options)?.shared;
        let own = Arc::get_mut(&mut shared).expect("a server that does not run shares nothing");
        own.hot = Hot::seeded(own.started, HOT_SEED);
        hot::seed_sampler(HOT_SEED);
        let connections = (0..connections).map(|_| {
            let (resp, now, connections_max) = (shared.resp, shared.engine.now(), shared.settings.connections_max());
            let client = shared.clients.admit(resp, resp, now, connections_max).expect("a bench has few connections");
            SocketlessConnection { session: Session::new(client, Arc::clone(&shared)), decoder: Decoder::default() }
        });
        Ok(SocketlessWorker { connections: connections.collect(), shared, answered: Vec::new() })
    }

    /// Serves one round: the first connection has sent the first input, and so on. Appends the replies.
    pub fn run_round(&mut self, inputs: &[&[u8]], replies: &mut Vec<u8>) {
        moment::pass();
        let mut next = 0;
        while next < inputs.len() {
            next += self.run_next(next, &inputs[next..], replies);
        }
    }

    /// Serves the next connections together, up to the first that has to be served alone; returns how many they were.
    fn run_next(&mut self, first: usize, inputs: &[&[u8]], replies: &mut Vec<u8>) -> usize {
        let SocketlessWorker { shared, connections, answered } = self;
        let (mut turn, mut gathered, mut alone) = (None, Gathered::default(), None);
        let mut rest = inputs.iter().enumerate();
        while !gathered.is_full()
            && let Some((index, input)) = rest.next()
        {
            let SocketlessConnection { session, decoder } = &connections[first + index];
            let joins = decoder.is_fresh() && session.takes_briefs() && {
                let turn = turn.get_or_insert_with(|| shared.engine.turn_at(moment::now(&shared.engine)));
                gathered.take(first + index, input, session.state.version, &shared.limits.frame, turn)
            };
            if !joins {
                alone = Some((first + index, input));
                break;
            }
        }
        if let Some(mut turn) = turn.filter(|_| !gathered.is_empty()) {
            let ran = gathered.run(&mut turn, &shared.hot, replies, answered);
            let (now, wait) = (turn.now(), turn.finish());
            assert!(wait == Wait::default(), "the counters are not in memory mode");
            tally(&shared.tally.commands, ran.commands);
            shared.tally.note_overflows(ran.errors);
            for (member, answered) in gathered.members().iter().zip(answered) {
                assert!(answered.bytes == member.input.len(), "a command is not a simple one");
                connections[member.place].session.note_ran(answered.command, now);
            }
        }
        if let Some((place, input)) = alone {
            let SocketlessConnection { session, decoder } = &mut connections[place];
            let (wait, ending) = session.turn(shared, decoder, input, replies);
            assert!(wait == Wait::default(), "the counters are not in memory mode");
            // A turn that has done much is held although nothing is left: that of a sketch that is made.
            let is_whole = matches!(ending, Ending::Waits | Ending::Held) && session.consumed() == input.len();
            assert!(is_whole, "an input takes several turns: {ending:?}, {}", replies.escape_ascii());
        }
        inputs.len() - rest.len()
    }
}
