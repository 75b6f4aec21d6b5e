//! One server: a connection that is made when it is needed, and given up when it breaks.
//!
//! In: pipelines of commands. Out: their replies, or why there are none.
//!
//! Invariants:
//! - nothing is sent twice, except what the server said it has not run, for want of the script;
//! - after an error nobody uses that connection again: the next call makes a new one;
//! - callers that need a connection at the same time wait for one and the same.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Pipeline, RedisError, ServerErrorKind, Value};
use tokio::sync::OnceCell;

use crate::config::{Address, Config};
use crate::error::{Damaged, Failure};
use crate::scripts;

/// One server.
pub(crate) struct Link {
    client: Client,
    options: AsyncConnectionConfig,
    connection: Mutex<Arc<OnceCell<MultiplexedConnection>>>,
}

impl Link {
    /// Connects when something is sent.
    pub(crate) fn new(config: &Config, address: &Address) -> Result<Link, RedisError> {
        let options = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(config.connect_timeout))
            .set_response_timeout(Some(config.reply_timeout));
        Ok(Link { client: Client::open(config.connection(address))?, options, connection: Mutex::default() })
    }

    /// The replies, in order; each may be an error of the server's.
    pub(crate) async fn send(&self, pipeline: &Pipeline) -> Result<Vec<Value>, Failure> {
        let cell = self.present().clone();
        let connection = cell.get_or_try_init(|| self.connect()).await;
        let mut connection = connection.map_err(Failure::unsent)?.clone();
        let mut replies = self.ask(&cell, &mut connection, pipeline).await?;
        let unknown: Vec<usize> = (0..replies.len()).filter(|&at| lacks_script(&replies[at])).collect();
        if !unknown.is_empty() {
            // What another connection, or an operator, made the server forget. What it did run stays as it was answered.
            if self.ask(&cell, &mut connection, &scripts::load()).await.is_err() {
                return Ok(replies);
            }
            let mut again = Pipeline::with_capacity(unknown.len());
            for (at, cmd) in pipeline.cmd_iter().enumerate() {
                if unknown.contains(&at) {
                    again.add_command(cmd.clone());
                }
            }
            for (at, reply) in unknown.into_iter().zip(self.ask(&cell, &mut connection, &again).await?) {
                replies[at] = reply;
            }
        }
        Ok(replies)
    }

    async fn connect(&self) -> Result<MultiplexedConnection, RedisError> {
        let mut connection = self.client.get_multiplexed_async_connection_with_config(&self.options).await?;
        let load = scripts::load();
        let loaded = connection.send_packed_commands(&load, 0, load.len()).await?;
        for reply in loaded {
            reply.extract_error()?;
        }
        Ok(connection)
    }

    async fn ask(
        &self,
        cell: &Arc<OnceCell<MultiplexedConnection>>,
        connection: &mut MultiplexedConnection,
        pipeline: &Pipeline,
    ) -> Result<Vec<Value>, Failure> {
        match connection.send_packed_commands(pipeline, 0, pipeline.len()).await {
            Ok(replies) if replies.len() == pipeline.len() => Ok(replies),
            other => {
                self.give_up(cell);
                Err(other.map_or_else(Failure::lost, |_| Damaged::Reply.into()))
            }
        }
    }

    /// A connection that missed one reply may give the next caller that one.
    fn give_up(&self, cell: &Arc<OnceCell<MultiplexedConnection>>) {
        let mut present = self.present();
        if Arc::ptr_eq(&present, cell) {
            *present = Arc::default();
        }
    }

    fn present(&self) -> MutexGuard<'_, Arc<OnceCell<MultiplexedConnection>>> {
        // It is replaced whole.
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn lacks_script(reply: &Value) -> bool {
    matches!(reply, Value::ServerError(error) if error.kind() == Some(ServerErrorKind::NoScript))
}
