//! Adds whose replies the client does not want (`CLIENT REPLY OFF` and `SKIP`): counted without a value, in lanes if there are many.
//!
//! In: such an add. Out: nothing that anyone waits for; it is acknowledged by the next reply that leaves on the connection.
//!
//! Lanes need a handle of the counter. A connection has one of the counter that it adds to again and again, and of each to which a large part of all the server's writes goes (`hot_keys`), whoever makes them and whatever comes in
//! between: those are the ones that many wait for.
//!
//! Invariant: a reply leaves after everything that was counted before it on this connection is as durable as its namespace asks.

use std::sync::Arc;

use quipu_engine::{AddOutcome, Handle, Load, Turn};
use quipu_model::{Command, Name, NameBuf, Reply};

use crate::hot_keys::HOTTEST_MAX;
use crate::server_state::ServerState;

/// Most handles of a connection: of the hottest counters, and of one that it adds to again and again.
const HANDLES_MAX: usize = HOTTEST_MAX + 1;

/// What a connection counts to silently.
#[derive(Default)]
pub(super) struct UnrepliedAdds {
    /// The counter of the last add. One that is added to twice in a row is worth a handle.
    last_name: Option<NameBuf>,
    /// The oldest is the first.
    handles: Vec<CachedHandle>,
    /// What was told to be hottest, and which telling that was.
    hottest: Arc<[NameBuf]>,
    hottest_version: u64,
    /// Something was counted through a handle since the last reply.
    unflushed: bool,
}

struct CachedHandle {
    handle: Handle,
    unflushed: bool,
}

impl UnrepliedAdds {
    /// Adds; the reply is nobody's.
    pub fn add(
        &mut self,
        server: &ServerState,
        turn: &mut Turn<'_>,
        name: Name<'_>,
        delta: i64,
    ) -> Result<Reply, Load> {
        let found = self.handles.iter().rposition(|cached| cached.handle.name() == name.bytes());
        let at = match found {
            Some(at) => at,
            None if self.last_name.as_deref() == Some(name.bytes()) || self.is_hot(server, name) => {
                self.open_handle(server, turn, name)
            }
            None => {
                self.last_name = Some(name.bytes().into());
                return turn.run(&Command::Add { name, delta, shard_key: None });
            }
        };
        let cached = &mut self.handles[at];
        Ok(match turn.count(&cached.handle, delta)? {
            AddOutcome::Refused(refusal) => Reply::Refused(refusal),
            // Once or not at all is what no reply says, too.
            AddOutcome::Added | AddOutcome::Unknown => {
                (cached.unflushed, self.unflushed) = (true, true);
                Reply::Ok
            }
        })
    }

    /// Whether it is one of the counters to which most of all writes go.
    fn is_hot(&mut self, server: &ServerState, name: Name<'_>) -> bool {
        let version = server.hot_keys.hottest_version();
        if version != self.hottest_version {
            (self.hottest, self.hottest_version) = (server.hot_keys.hottest(), version);
        }
        self.hottest.iter().any(|hot| **hot == *name.bytes())
    }

    /// A handle more, in place of the oldest if there are too many; where it is.
    fn open_handle(&mut self, server: &ServerState, turn: &mut Turn<'_>, name: Name<'_>) -> usize {
        if self.handles.len() == HANDLES_MAX {
            let mut oldest = self.handles.remove(0);
            oldest.flush(turn);
        }
        // A handle is made under the lock of the counter's shard, which the turn may hold.
        turn.end_run();
        let handle = server.engine.handle(name.bytes()).expect("the length of a name is checked once");
        self.handles.push(CachedHandle { handle, unflushed: false });
        self.handles.len() - 1
    }

    /// Whether the next reply has something to wait for.
    pub fn is_unflushed(&self) -> bool {
        self.unflushed
    }

    /// Makes the replies of this turn wait for what was counted.
    pub fn flush(&mut self, turn: &mut Turn<'_>) {
        if std::mem::take(&mut self.unflushed) {
            self.handles.iter_mut().for_each(|cached| cached.flush(turn));
        }
    }
}

impl CachedHandle {
    fn flush(&mut self, turn: &mut Turn<'_>) {
        if std::mem::take(&mut self.unflushed) {
            // What could not be written down was not acknowledged, either.
            let _ = turn.flush(&self.handle);
        }
    }
}
