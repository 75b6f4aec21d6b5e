//! Applies adds without a reply (`CLIENT REPLY OFF` and `SKIP`): counted without reading the value,
//! in lanes under contention.
//!
//! In: such an add. Out: no reply; the next reply that leaves on the connection acknowledges it.
//!
//! Lanes need a handle of the counter. A connection holds a handle of a counter that it adds to
//! repeatedly. It also holds one of each counter with a large share of the server's writes
//! (`hot_keys`), from any connection and in any order: those are the contended ones.
//!
//! Invariant: a reply leaves only when every earlier add on this connection is as durable as its
//! namespace requires.

use std::sync::Arc;

use quipu_engine::{AddOutcome, Handle, Load, Turn};
use quipu_model::{Command, Name, NameBuf, Reply};

use crate::hot_keys::HOTTEST_MAX;
use crate::server_state::ServerState;

/// Most handles of a connection: of the hottest counters, and of one that it adds to repeatedly.
const HANDLES_MAX: usize = HOTTEST_MAX + 1;

/// Counters that a connection adds to without replies.
#[derive(Default)]
pub(super) struct UnrepliedAdds {
    /// Counter of the last add. Two adds in a row make it worth a handle.
    last_name: Option<NameBuf>,
    /// Oldest first.
    handles: Vec<CachedHandle>,
    /// The hottest counters as last read, and the version of that list.
    hottest: Arc<[NameBuf]>,
    hottest_version: u64,
    /// True if an add went through a handle since the last reply.
    unflushed: bool,
}

struct CachedHandle {
    handle: Handle,
    unflushed: bool,
}

impl UnrepliedAdds {
    /// Applies an add; the caller drops the reply.
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
        Ok(match turn.add_by_handle(&cached.handle, delta)? {
            AddOutcome::Refused(refusal) => Reply::Refused(refusal),
            // Without a reply the client knows no more than: applied once or not at all.
            AddOutcome::Added | AddOutcome::Unknown => {
                (cached.unflushed, self.unflushed) = (true, true);
                Reply::Ok
            }
        })
    }

    /// Returns true for a counter with a large share of all writes.
    fn is_hot(&mut self, server: &ServerState, name: Name<'_>) -> bool {
        let version = server.hot_keys.hottest_version();
        if version != self.hottest_version {
            (self.hottest, self.hottest_version) = (server.hot_keys.hottest(), version);
        }
        self.hottest.iter().any(|hot| **hot == *name.bytes())
    }

    /// Opens one more handle, in place of the oldest at the bound; returns its index.
    fn open_handle(&mut self, server: &ServerState, turn: &mut Turn<'_>, name: Name<'_>) -> usize {
        if self.handles.len() == HANDLES_MAX {
            let mut oldest = self.handles.remove(0);
            oldest.flush(turn);
        }
        // Opening a handle locks the counter's shard, which the turn may hold.
        turn.end_run();
        let handle = server.engine.handle(name.bytes()).expect("the length of a name is checked once");
        self.handles.push(CachedHandle { handle, unflushed: false });
        self.handles.len() - 1
    }

    /// Returns true if the next reply must wait for adds.
    pub fn is_unflushed(&self) -> bool {
        self.unflushed
    }

    /// Makes the replies of this turn wait for the adds.
    pub fn flush(&mut self, turn: &mut Turn<'_>) {
        if std::mem::take(&mut self.unflushed) {
            self.handles.iter_mut().for_each(|cached| cached.flush(turn));
        }
    }
}

impl CachedHandle {
    fn flush(&mut self, turn: &mut Turn<'_>) {
        if std::mem::take(&mut self.unflushed) {
            // A failed write was not acknowledged, either.
            let _ = turn.flush(&self.handle);
        }
    }
}
