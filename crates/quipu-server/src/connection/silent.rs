//! Adds whose replies the client does not want (`CLIENT REPLY OFF` and `SKIP`): counted without a value, in lanes if there are many.
//!
//! In: such an add. Out: nothing that anyone waits for; it is acknowledged by the next reply that leaves on the connection.
//!
//! Invariant: a reply leaves after everything that was counted before it on this connection is as durable as its namespace asks.

use quipu_engine::{Counted, Engine, Handle, Load, Turn};
use quipu_model::{Command, KeptName, Name, Reply};

/// What a connection counts to silently.
#[derive(Default)]
pub(super) struct Silent {
    /// The counter of the last add. Only one that is added to twice in a row is worth a handle.
    last: Option<KeptName>,
    handle: Option<Handle>,
    /// Something was counted through the handle since the last reply.
    unflushed: bool,
}

impl Silent {
    /// Adds; the reply is nobody's.
    pub fn add(&mut self, engine: &Engine, turn: &mut Turn<'_>, name: Name<'_>, delta: i64) -> Result<Reply, Load> {
        let same = self.handle.as_ref().filter(|handle| handle.name() == name.bytes());
        let handle = match same {
            Some(handle) => handle,
            None if self.last.as_deref() == Some(name.bytes()) => {
                self.flush(turn);
                // A handle is made under the lock of the counter's shard, which the turn may hold.
                turn.release();
                self.handle.insert(engine.handle(name.bytes()).expect("the length of a name is checked once"))
            }
            None => {
                self.last = Some(name.bytes().into());
                return turn.run(&Command::Add { name, delta, shard_key: None });
            }
        };
        Ok(match turn.count(handle, delta)? {
            Counted::Refused(refusal) => Reply::Refused(refusal),
            // Once or not at all is what no reply says, too.
            Counted::Yes | Counted::Unknown => {
                self.unflushed = true;
                Reply::Ok
            }
        })
    }

    /// Whether the next reply has something to wait for.
    pub fn is_unflushed(&self) -> bool {
        self.unflushed
    }

    /// Makes the replies of this turn wait for what was counted.
    pub fn flush(&mut self, turn: &mut Turn<'_>) {
        if let (true, Some(handle)) = (std::mem::take(&mut self.unflushed), &self.handle) {
            // What could not be written down was not acknowledged, either.
            let _ = turn.flush(handle);
        }
    }
}
