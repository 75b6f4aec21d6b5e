//! One server: a connection that is made when it is needed, and given up when it breaks.
//!
//! In: pipelines of commands. Out: their replies, or why there are none.
//!
//! Invariants:
//! - nothing is sent twice, except what the server said it has not run, for want of the script;
//! - after an error nobody uses that connection again: the next call makes a new one;
//! - callers that need a connection at the same time wait for one and the same;
//! - each connection knows the identity of its server's data before anything else is sent on it. A server that restarts breaks its
//!   connections, so a new process is always asked. What changes a server without breaking its connections (a failover, a promotion) shows
//!   in its replies, which end the connection, and in the next [`Link::ask_identity`].

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quipu_model::History;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Pipeline, RedisError, ServerErrorKind, Value};
use tokio::sync::OnceCell;

use crate::config::{Address, Config};
use crate::error::{Damaged, Failure};
use crate::info::Info;
use crate::scripts;

/// One server.
pub(crate) struct Link {
    address: String,
    client: Client,
    options: AsyncConnectionConfig,
    connection: Mutex<Arc<OnceCell<Connection>>>,
}

/// A connection, and the server at its other end.
struct Connection {
    stream: MultiplexedConnection,
    identity: Mutex<String>,
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
enum Unconnected {
    #[error(transparent)]
    Driver(#[from] RedisError),
    #[error("the server does not tell the identity of its process (run_id in INFO)")]
    NoIdentity,
}

impl Link {
    /// Connects when something is sent.
    pub(crate) fn new(config: &Config, address: &Address) -> Result<Link, RedisError> {
        let options = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(config.connect_timeout))
            .set_response_timeout(Some(config.reply_timeout));
        let client = Client::open(config.connection(address))?;
        Ok(Link { address: address.to_string(), client, options, connection: Mutex::default() })
    }

    /// Its name in a history.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// The replies, in order; each may be an error of the server's. With a known history, nothing is sent to a server that has another
    /// identity than it has there.
    pub(crate) async fn send(&self, pipeline: &Pipeline, known: Option<&History>) -> Result<Vec<Value>, Failure> {
        let cell = self.present().clone();
        let connection = self.connected(&cell).await?;
        if known.is_some_and(|known| known.0.get(&self.address) != Some(&*connection.identity())) {
            return Err(Failure::HistoryChanged);
        }
        let mut stream = connection.stream.clone();
        let mut replies = self.ask(&cell, &mut stream, pipeline).await?;
        let unknown: Vec<usize> = (0..replies.len()).filter(|&at| lacks_script(&replies[at])).collect();
        if !unknown.is_empty() {
            // What another connection, or an operator, made the server forget. What it did run stays as it was answered.
            if self.ask(&cell, &mut stream, &scripts::load()).await.is_err() {
                return Ok(replies);
            }
            let mut again = Pipeline::with_capacity(unknown.len());
            for (at, cmd) in pipeline.cmd_iter().enumerate() {
                if unknown.contains(&at) {
                    again.add_command(cmd.clone());
                }
            }
            for (at, reply) in unknown.into_iter().zip(self.ask(&cell, &mut stream, &again).await?) {
                replies[at] = reply;
            }
        }
        if replies.iter().any(shows_demotion) {
            self.give_up(&cell);
        }
        Ok(replies)
    }

    /// Asks the server for the identity of its data, which may have changed since the connection was made.
    pub(crate) async fn ask_identity(&self) -> Result<String, Failure> {
        let cell = self.present().clone();
        let connection = self.connected(&cell).await?;
        let mut stream = connection.stream.clone();
        let replies = self.ask(&cell, &mut stream, &Info::of_identity()).await?;
        let Some(identity) = identity(replies).map_err(Failure::unsent)? else {
            return Err(Failure::unsent(Unconnected::NoIdentity));
        };
        connection.identity().clone_from(&identity);
        Ok(identity)
    }

    /// What the server says of itself.
    pub(crate) async fn send_info(&self, sections: Pipeline) -> Result<Info, Failure> {
        let mut info = Info::default();
        for reply in self.send(&sections, None).await? {
            reply.extract_error().and_then(|reply| info.read(reply)).map_err(Failure::unsent)?;
        }
        Ok(info)
    }

    async fn connected<'c>(&self, cell: &'c Arc<OnceCell<Connection>>) -> Result<&'c Connection, Failure> {
        cell.get_or_try_init(|| self.connect()).await.map_err(Failure::unsent)
    }

    async fn connect(&self) -> Result<Connection, Unconnected> {
        let mut stream = self.client.get_multiplexed_async_connection_with_config(&self.options).await?;
        // One round trip for all.
        let (load, info) = (scripts::load(), Info::of_identity());
        let mut begin = Pipeline::with_capacity(load.len() + info.len());
        for cmd in info.cmd_iter().chain(load.cmd_iter()) {
            begin.add_command(cmd.clone());
        }
        let mut replies = stream.send_packed_commands(&begin, 0, begin.len()).await?;
        let loaded = replies.split_off(info.len().min(replies.len()));
        for reply in loaded {
            reply.extract_error()?;
        }
        let identity = identity(replies)?.ok_or(Unconnected::NoIdentity)?;
        Ok(Connection { stream, identity: Mutex::new(identity) })
    }

    async fn ask(
        &self,
        cell: &Arc<OnceCell<Connection>>,
        stream: &mut MultiplexedConnection,
        pipeline: &Pipeline,
    ) -> Result<Vec<Value>, Failure> {
        match stream.send_packed_commands(pipeline, 0, pipeline.len()).await {
            Ok(replies) if replies.len() == pipeline.len() => Ok(replies),
            other => {
                self.give_up(cell);
                Err(other.map_or_else(Failure::lost, |_| Failure::lost(Damaged::Reply)))
            }
        }
    }

    /// A connection that missed one reply may give the next caller that one.
    fn give_up(&self, cell: &Arc<OnceCell<Connection>>) {
        let mut present = self.present();
        if Arc::ptr_eq(&present, cell) {
            *present = Arc::default();
        }
    }

    fn present(&self) -> MutexGuard<'_, Arc<OnceCell<Connection>>> {
        // It is replaced whole.
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Connection {
    fn identity(&self) -> MutexGuard<'_, String> {
        // It is replaced whole.
        self.identity.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The identity in the replies to [`Info::of_identity`]; none if the server does not tell one.
fn identity(replies: Vec<Value>) -> Result<Option<String>, RedisError> {
    let mut info = Info::default();
    for reply in replies {
        info.read(reply.extract_error()?)?;
    }
    Ok(info.identity())
}

fn lacks_script(reply: &Value) -> bool {
    matches!(reply, Value::ServerError(error) if error.kind() == Some(ServerErrorKind::NoScript))
}

/// Whether a reply shows that the server is no master, or not of this key: another history may begin on the same connection.
fn shows_demotion(reply: &Value) -> bool {
    use ServerErrorKind::{MasterDown, Moved, ReadOnly};
    matches!(reply, Value::ServerError(error) if matches!(error.kind(), Some(MasterDown | Moved | ReadOnly)))
}
