//! Connections: made when they are needed, prepared, and given up when something goes wrong on them.
//!
//! In: one statement. Out: its rows, or why there are none.
//!
//! Invariants:
//! - nothing is sent twice;
//! - a connection serves one call at a time, and after an error nobody uses it again;
//! - once one of them has broken, those that lie idle are not trusted either: the next call makes a new one.

use std::time::Duration;

use deadpool_postgres::{
    Hook, HookError, Manager, ManagerConfig, Object, Pool, PoolError, RecyclingMethod, Runtime, TimeoutType,
};
use tokio_postgres::types::ToSql;
use tokio_postgres::{NoTls, Row};
#[cfg(feature = "tls")]
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::OpenError;
use crate::config::Config;
use crate::error::{Failure, Late};
use crate::schema;

/// Connections of one node: as many as the engine has threads that wait for a store, and a few for commands of people. A server takes a
/// hundred by default, from everybody.
const CONNECTIONS_MAX: usize = 8;

/// Connections to one server.
pub(crate) struct Link {
    pool: Pool,
    reply_timeout: Duration,
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
enum Unconnected {
    #[error("cannot connect to the server")]
    Server(#[source] tokio_postgres::Error),
    #[error("cannot connect to the server in time")]
    Late,
    #[error("all {CONNECTIONS_MAX} connections to the server are busy")]
    Busy,
    #[error("the store's tables cannot be used")]
    Tables(#[source] tokio_postgres::Error),
    #[error("{0}")]
    Schema(String),
    #[error("the store is closed")]
    Closed,
}

impl From<PoolError> for Unconnected {
    fn from(error: PoolError) -> Unconnected {
        match error {
            PoolError::Backend(error) => Unconnected::Server(error),
            PoolError::Timeout(TimeoutType::Wait) => Unconnected::Busy,
            PoolError::Timeout(TimeoutType::Create | TimeoutType::Recycle) => Unconnected::Late,
            PoolError::PostCreateHook(HookError::Backend(error)) => Unconnected::Tables(error),
            PoolError::PostCreateHook(HookError::Message(why)) => Unconnected::Schema(why.into_owned()),
            PoolError::Closed | PoolError::NoRuntimeSpecified => Unconnected::Closed,
        }
    }
}

impl Link {
    /// Connects when something is sent.
    pub(crate) fn new(config: Config) -> Result<Link, OpenError> {
        let Config { prefix, connect_timeout, reply_timeout, tls, driver } = config;
        let manager = manager(driver, tls)?;
        let prepare = Hook::async_fn(move |client, _| {
            let prefix = prefix.clone();
            Box::pin(async move { Ok(schema::prepare(client, &prefix, (connect_timeout, reply_timeout)).await?) })
        });
        let pool = Pool::builder(manager)
            .max_size(CONNECTIONS_MAX)
            .runtime(Runtime::Tokio1)
            .create_timeout(Some(connect_timeout))
            .wait_timeout(Some(reply_timeout))
            .post_create(prepare)
            .build()?;
        Ok(Link { pool, reply_timeout })
    }

    /// The rows that one statement answers, once it is committed.
    pub(crate) async fn send(&self, statement: &str, parameters: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, Failure> {
        let client = self.pool.get().await.map_err(|error| Failure::unsent(Unconnected::from(error)))?;
        let prepared = match self.in_time(client.prepare_cached(statement)).await {
            Ok(prepared) => prepared,
            Err(failure) => {
                self.give_up(client, &failure);
                let (Failure::Refused(cause) | Failure::Open(cause)) = failure;
                return Err(Failure::Refused(cause));
            }
        };
        let answer = self.in_time(client.query(&prepared, parameters)).await;
        if let Err(failure) = &answer {
            self.give_up(client, failure);
        }
        answer
    }

    async fn in_time<T>(&self, work: impl Future<Output = Result<T, tokio_postgres::Error>>) -> Result<T, Failure> {
        match tokio::time::timeout(self.reply_timeout, work).await {
            Ok(answer) => answer.map_err(Failure::answered),
            Err(_) => Err(Failure::lost(Late(self.reply_timeout))),
        }
    }

    /// A statement may still be running there, or its tables are not what they were when it was prepared.
    fn give_up(&self, client: Object, failure: &Failure) {
        drop(Object::take(client));
        if matches!(failure, Failure::Open(_)) {
            drop(self.pool.retain(|_, _| false));
        }
    }
}

fn manager(driver: tokio_postgres::Config, tls: bool) -> Result<Manager, OpenError> {
    let how = ManagerConfig { recycling_method: RecyclingMethod::Fast };
    #[cfg(feature = "tls")]
    if tls {
        let (connector, _) = MakeRustlsConnect::with_native_certs().map_err(|_| OpenError::Roots)?;
        return Ok(Manager::from_config(driver, connector, how));
    }
    debug_assert!(!tls, "a build without TLS has refused the URL");
    Ok(Manager::from_config(driver, NoTls, how))
}
