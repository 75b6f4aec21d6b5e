//! Keeps the connections: opened at the first use, prepared, and dropped after an error.
//!
//! In: one statement. Out: its rows, or the failure.
//!
//! Invariants:
//! - no statement is sent twice;
//! - a connection serves one call at a time, and after an error no call uses it again;
//! - once a connection has broken, idle ones are dropped too: the next call opens a new one;
//! - each connection knows its server's data identity before it carries any statement. A server
//!   that restarts, recovers from a crash or is replaced breaks its connections, and a standby gets
//!   none. So a new connection always meets a changed server.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use deadpool_postgres::{
    ClientWrapper, Hook, HookError, Manager, ManagerConfig, Object, Pool, PoolError, RecyclingMethod, Runtime,
    StatementCache, TimeoutType,
};
use quipu_model::History;
use quipu_store_kit::{CallFailure, await_reply};
use tokio_postgres::types::ToSql;
use tokio_postgres::{NoTls, Row};
#[cfg(feature = "tls")]
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::OpenError;
use crate::config::Config;
use crate::error::classify_error;
use crate::{history, schema};

/// Most connections of one node: one for each of the engine's threads that wait for a store, and a
/// few for commands of people. A server takes a hundred by default, from all clients.
const CONNECTIONS_MAX: usize = 8;

/// Connections to one server.
pub(crate) struct Link {
    pool: Pool,
    prefix: String,
    reply_timeout: Duration,
    identities: Arc<Mutex<Identities>>,
}

/// Known identities of the server's data.
#[derive(Default)]
struct Identities {
    /// Identity per connection. The cache of statements identifies a connection, since the pool
    /// keeps nothing else of ours with it.
    of_connections: Vec<(Weak<StatementCache>, Arc<str>)>,
    /// The identity that the server gave last.
    newest: Option<Arc<str>>,
    /// The identity from the caller's last history call, if any.
    expected: Option<Arc<str>>,
}

/// Reason of a failed connection attempt.
#[derive(Debug, thiserror::Error)]
enum ConnectError {
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

impl From<PoolError> for ConnectError {
    fn from(error: PoolError) -> ConnectError {
        match error {
            PoolError::Backend(error) => ConnectError::Server(error),
            PoolError::Timeout(TimeoutType::Wait) => ConnectError::Busy,
            PoolError::Timeout(TimeoutType::Create | TimeoutType::Recycle) => ConnectError::Late,
            PoolError::PostCreateHook(HookError::Backend(error)) => ConnectError::Tables(error),
            PoolError::PostCreateHook(HookError::Message(why)) => ConnectError::Schema(why.into_owned()),
            PoolError::Closed | PoolError::NoRuntimeSpecified => ConnectError::Closed,
        }
    }
}

impl Link {
    /// Creates a link; it connects at the first send.
    pub(crate) fn new(config: Config) -> Result<Link, OpenError> {
        let Config { prefix, connect_timeout, reply_timeout, tls, driver } = config;
        let manager = manager(driver, tls)?;
        let identities = Arc::<Mutex<Identities>>::default();
        let (of_all, named) = (identities.clone(), prefix.clone());
        let prepare = Hook::async_fn(move |client, _| {
            let (of_all, prefix) = (of_all.clone(), named.clone());
            Box::pin(async move {
                schema::prepare(client, &prefix, (connect_timeout, reply_timeout)).await?;
                let asked = tokio::time::timeout(connect_timeout, history::ask_identity(client, &prefix)).await;
                let identity = asked.map_err(|_| schema::SchemaError::Late(connect_timeout))?;
                lock(&of_all).record_identity(client, identity.map_err(schema::SchemaError::Server)?);
                Ok(())
            })
        });
        let pool = Pool::builder(manager)
            .max_size(CONNECTIONS_MAX)
            .runtime(Runtime::Tokio1)
            .create_timeout(Some(connect_timeout))
            .wait_timeout(Some(reply_timeout))
            .post_create(prepare)
            .build()?;
        Ok(Link { pool, prefix, reply_timeout, identities })
    }

    /// Runs one statement and returns its rows once it is committed. The statement reads, or stays
    /// true regardless of data that the server lost.
    pub(crate) async fn send(
        &self,
        statement: &str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, CallFailure> {
        self.send_on(self.connection().await?, statement, parameters).await
    }

    /// As `send`, for a statement that relies on data that the server confirmed before. It sends
    /// nothing to a server of another history than the caller knows.
    pub(crate) async fn change(
        &self,
        statement: &str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, CallFailure> {
        let client = self.connection().await?;
        let (is_known, is_newest) = lock(&self.identities).check_connection(&client);
        if !is_known {
            if !is_newest {
                drop(Object::take(client));
            }
            return Err(CallFailure::HistoryChanged);
        }
        self.send_on(client, statement, parameters).await
    }

    /// Asks the server for its data's identity.
    pub(crate) async fn fetch_history(&self) -> Result<History, CallFailure> {
        let client = self.connection().await?;
        match self.with_timeout(history::ask_identity(&client, &self.prefix)).await {
            Ok(identity) => {
                lock(&self.identities).record_identity(&client, identity.clone());
                let identities = self.identities.clone();
                drop(self.pool.retain(|client, _| lock(&identities).check_connection(client).1));
                Ok(History([(history::SERVER.to_owned(), identity)].into()))
            }
            Err(failure) => {
                self.drop_connection(client, &failure);
                Err(failure)
            }
        }
    }

    /// From now on, only a server of this history receives statements that change data.
    pub(crate) fn set_history(&self, history: &History) {
        lock(&self.identities).expected = history.0.get(history::SERVER).map(|identity| identity.as_str().into());
    }

    async fn connection(&self) -> Result<Object, CallFailure> {
        self.pool.get().await.map_err(|error| CallFailure::unsent(ConnectError::from(error)))
    }

    async fn send_on(
        &self,
        client: Object,
        statement: &str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, CallFailure> {
        let prepared = match self.with_timeout(client.prepare_cached(statement)).await {
            Ok(prepared) => prepared,
            Err(failure) => {
                self.drop_connection(client, &failure);
                return Err(failure.into_unsent());
            }
        };
        let answer = self.with_timeout(client.query(&prepared, parameters)).await;
        match &answer {
            // Rolled back; the connection stays usable.
            Err(failure) if failure.is_of_data() => {}
            Err(failure) => self.drop_connection(client, failure),
            Ok(_) => {}
        }
        answer
    }

    async fn with_timeout<T>(
        &self,
        work: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, CallFailure> {
        await_reply(self.reply_timeout, work, classify_error).await
    }

    /// Drops a connection: its statement may still run, or its tables have changed since it was
    /// prepared.
    fn drop_connection(&self, client: Object, failure: &CallFailure) {
        drop(Object::take(client));
        if matches!(failure, CallFailure::Open(_)) {
            drop(self.pool.retain(|_, _| false));
        }
    }
}

impl Identities {
    fn record_identity(&mut self, client: &ClientWrapper, identity: String) {
        let cache = Arc::downgrade(&client.statement_cache);
        let identity: Arc<str> = identity.into();
        self.of_connections.retain(|(other, _)| other.strong_count() > 0 && !other.ptr_eq(&cache));
        self.of_connections.push((cache, Arc::clone(&identity)));
        self.newest = Some(identity);
    }

    /// Returns two flags: the connection has the expected identity; the connection has the newest
    /// identity.
    fn check_connection(&self, client: &ClientWrapper) -> (bool, bool) {
        let cache = Arc::downgrade(&client.statement_cache);
        let mut connections = self.of_connections.iter();
        let identity = connections.find(|(other, _)| other.ptr_eq(&cache)).map(|(_, identity)| identity);
        (self.expected.is_none() || self.expected.as_ref() == identity, self.newest.as_ref() == identity)
    }
}

fn lock(identities: &Mutex<Identities>) -> MutexGuard<'_, Identities> {
    // Each change is one assignment, or is idempotent.
    identities.lock().unwrap_or_else(PoisonError::into_inner)
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
