//! Keeps one server's connection: opened at the first use, dropped when it breaks.
//!
//! In: pipelines of commands. Out: their replies, or the failure.
//!
//! Invariants:
//! - no command is sent twice, unless the server answered that it lacks the script;
//! - after an error no caller uses that connection again: the next call opens a new one;
//! - callers that need a connection at the same time share one attempt;
//! - each connection knows its server's data identity before it carries any other command. A
//!   restart breaks the connections, so a new process is always asked. A failover or a promotion
//!   may leave them open. It shows in the replies, which end the connection, and in the next
//!   [`Link::fetch_identity`].

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quipu_model::History;
use quipu_store_kit::CallFailure;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Pipeline, RedisError, ServerErrorKind, Value};
use tokio::sync::OnceCell;

use crate::config::{Address, Config};
use crate::error::DataError;
use crate::info::Info;
use crate::scripts;

/// Connection slot of one server.
pub(crate) struct Link {
    address: String,
    client: Client,
    options: AsyncConnectionConfig,
    connection: Mutex<Arc<OnceCell<LinkConnection>>>,
}

/// A connection, and the identity of the server's data.
struct LinkConnection {
    stream: MultiplexedConnection,
    identity: Mutex<String>,
}

/// Reason of a failed connection attempt.
#[derive(Debug, thiserror::Error)]
enum ConnectError {
    #[error(transparent)]
    Driver(#[from] RedisError),
    #[error("the server's INFO has no identity of its process (run_id)")]
    NoIdentity,
}

impl Link {
    /// Creates a link; it connects at the first send.
    pub(crate) fn new(config: &Config, address: &Address) -> Result<Link, RedisError> {
        let options = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(config.connect_timeout))
            .set_response_timeout(Some(config.reply_timeout));
        let client = Client::open(config.connection(address))?;
        Ok(Link { address: address.to_string(), client, options, connection: Mutex::default() })
    }

    /// The server's name in a history.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Returns the replies, in order; each may be a server error. With `expected`, it sends nothing
    /// to a server of another identity.
    pub(crate) async fn send(
        &self,
        pipeline: &Pipeline,
        expected: Option<&History>,
    ) -> Result<Vec<Value>, CallFailure> {
        let cell = self.current_cell().clone();
        let connection = self.get_or_connect(&cell).await?;
        if expected.is_some_and(|expected| expected.0.get(&self.address) != Some(&*connection.identity())) {
            return Err(CallFailure::HistoryChanged);
        }
        let mut stream = connection.stream.clone();
        let mut replies = self.send_pipeline(&cell, &mut stream, pipeline).await?;
        let unknown: Vec<usize> = (0..replies.len()).filter(|&at| lacks_script(&replies[at])).collect();
        if !unknown.is_empty() {
            // Another connection, or an operator, made the server forget scripts. The other replies
            // stand.
            if self.send_pipeline(&cell, &mut stream, &scripts::load_scripts()).await.is_err() {
                return Ok(replies);
            }
            let mut retry = Pipeline::with_capacity(unknown.len());
            for (at, cmd) in pipeline.cmd_iter().enumerate() {
                if unknown.contains(&at) {
                    retry.add_command(cmd.clone());
                }
            }
            for (at, reply) in unknown.into_iter().zip(self.send_pipeline(&cell, &mut stream, &retry).await?) {
                replies[at] = reply;
            }
        }
        if replies.iter().any(shows_demotion) {
            self.drop_connection(&cell);
        }
        Ok(replies)
    }

    /// Asks the server for its data's identity, which may have changed since the connection was
    /// opened.
    pub(crate) async fn fetch_identity(&self) -> Result<String, CallFailure> {
        let cell = self.current_cell().clone();
        let connection = self.get_or_connect(&cell).await?;
        let mut stream = connection.stream.clone();
        let replies = self.send_pipeline(&cell, &mut stream, &Info::identity_query()).await?;
        let Some(identity) = parse_identity(replies).map_err(CallFailure::unsent)? else {
            return Err(CallFailure::unsent(ConnectError::NoIdentity));
        };
        connection.identity().clone_from(&identity);
        Ok(identity)
    }

    /// Returns the server's answer to `INFO`.
    pub(crate) async fn send_info(&self, sections: Pipeline) -> Result<Info, CallFailure> {
        let mut info = Info::default();
        for reply in self.send(&sections, None).await? {
            reply.extract_error().and_then(|reply| info.read(reply)).map_err(CallFailure::unsent)?;
        }
        Ok(info)
    }

    async fn get_or_connect<'c>(
        &self,
        cell: &'c Arc<OnceCell<LinkConnection>>,
    ) -> Result<&'c LinkConnection, CallFailure> {
        cell.get_or_try_init(|| self.connect()).await.map_err(CallFailure::unsent)
    }

    async fn connect(&self) -> Result<LinkConnection, ConnectError> {
        let mut stream = self.client.get_multiplexed_async_connection_with_config(&self.options).await?;
        // One round trip for all.
        let (load, info) = (scripts::load_scripts(), Info::identity_query());
        let mut begin = Pipeline::with_capacity(load.len() + info.len());
        for cmd in info.cmd_iter().chain(load.cmd_iter()) {
            begin.add_command(cmd.clone());
        }
        let mut replies = stream.send_packed_commands(&begin, 0, begin.len()).await?;
        let loaded = replies.split_off(info.len().min(replies.len()));
        for reply in loaded {
            reply.extract_error()?;
        }
        let identity = parse_identity(replies)?.ok_or(ConnectError::NoIdentity)?;
        Ok(LinkConnection { stream, identity: Mutex::new(identity) })
    }

    async fn send_pipeline(
        &self,
        cell: &Arc<OnceCell<LinkConnection>>,
        stream: &mut MultiplexedConnection,
        pipeline: &Pipeline,
    ) -> Result<Vec<Value>, CallFailure> {
        match stream.send_packed_commands(pipeline, 0, pipeline.len()).await {
            Ok(replies) if replies.len() == pipeline.len() => Ok(replies),
            other => {
                self.drop_connection(cell);
                Err(other.map_or_else(CallFailure::lost, |_| CallFailure::lost(DataError::Reply)))
            }
        }
    }

    /// Drops a connection: after a missed reply it may give the next caller the wrong one.
    fn drop_connection(&self, cell: &Arc<OnceCell<LinkConnection>>) {
        let mut current = self.current_cell();
        if Arc::ptr_eq(&current, cell) {
            *current = Arc::default();
        }
    }

    fn current_cell(&self) -> MutexGuard<'_, Arc<OnceCell<LinkConnection>>> {
        // Replaced as a whole, so never half-written.
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LinkConnection {
    fn identity(&self) -> MutexGuard<'_, String> {
        // Replaced as a whole, so never half-written.
        self.identity.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Parses the replies to [`Info::identity_query`]; none if the server gives no identity.
fn parse_identity(replies: Vec<Value>) -> Result<Option<String>, RedisError> {
    let mut info = Info::default();
    for reply in replies {
        info.read(reply.extract_error()?)?;
    }
    Ok(info.identity())
}

fn lacks_script(reply: &Value) -> bool {
    matches!(reply, Value::ServerError(error) if error.kind() == Some(ServerErrorKind::NoScript))
}

/// Returns true if a reply shows that the server is no master, or not this key's: another history
/// may begin on the same connection.
fn shows_demotion(reply: &Value) -> bool {
    use ServerErrorKind::{MasterDown, Moved, ReadOnly};
    matches!(reply, Value::ServerError(error) if matches!(error.kind(), Some(MasterDown | Moved | ReadOnly)))
}
