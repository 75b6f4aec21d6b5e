//! Creates the tables, upgrades them to this program's version, or refuses them.
//!
//! In: a new connection. Out: a connection that finds tables of its version.
//!
//! Invariants:
//! - steps are only ever added: the tables of a released version do not change;
//! - a step and its version number are one transaction, and one connection at a time runs it;
//! - tables of a newer version stay untouched: they may give another meaning to an older program's
//!   writes.
//!
//! Connections of older programs continue during an upgrade, so a step keeps everything that they
//! use. They get no new connections.

use std::time::Duration;

use deadpool_postgres::HookError;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

/// Upgrades from one version to the next; the first creates version 1 from nothing.
const STEPS: &[&str] = &[include_str!("sql/tables.sql"), include_str!("sql/bodies.sql"), include_str!("sql/lives.sql")];

/// Functions and views, replaced after every step. A step drops those that now return another type
/// first.
const CODE: &str = include_str!("sql/code.sql");

/// The table of names is no step: a step would lock older programs out. New tables include it; to
/// older ones the first node with a name adds it.
pub(crate) const NAMES: &str = include_str!("sql/names.sql");

/// Serialises upgrades before the missing steps are known.
const BEGIN: &str = "SELECT pg_advisory_xact_lock(hashtextextended('{p}_schema ' || current_schema(), 0)); \
                     CREATE TABLE IF NOT EXISTS \"{p}_schema\" (version integer NOT NULL); \
                     INSERT INTO \"{p}_schema\" SELECT 0 WHERE NOT EXISTS (SELECT FROM \"{p}_schema\");";

/// Time limit of an upgrade, for large tables: this multiple of the reply timeout, up to the
/// maximum.
const STEPS_REPLIES: u32 = 20;
const STEPS_TIMEOUT: Duration = Duration::from_secs(600);

/// Reason why a connection is not used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SchemaError {
    #[error(
        "the tables {prefix}_… are of version {found}, and this program knows versions up to {known}: use a newer one"
    )]
    Newer { prefix: String, found: i32, known: usize },
    #[error("the tables {prefix}_… have no version: the table {prefix}_schema is empty or has several rows")]
    Unversioned { prefix: String },
    #[error("preparing a connection took longer than {0:?}")]
    Late(Duration),
    #[error("the server refused to prepare a connection")]
    Server(#[from] tokio_postgres::Error),
}

impl From<SchemaError> for HookError {
    fn from(error: SchemaError) -> HookError {
        match error {
            SchemaError::Server(error) => HookError::Backend(error),
            other => HookError::message(other.to_string()),
        }
    }
}

/// Replaces `{p}` in a text by the prefix.
pub(crate) fn with_prefix(text: &str, prefix: &str) -> String {
    text.replace("{p}", prefix)
}

/// Prepares a new connection for use.
pub(crate) async fn prepare(
    client: &Client,
    prefix: &str,
    (wait_max, reply_timeout): (Duration, Duration),
) -> Result<(), SchemaError> {
    let query = async {
        client.batch_execute(&session_settings(reply_timeout)).await?;
        read_version(client, prefix).await
    };
    let found = tokio::time::timeout(wait_max, query).await.map_err(|_| SchemaError::Late(wait_max))??;
    if is_known(found, STEPS.len(), prefix)? {
        return Ok(());
    }
    upgrade_tables(client, prefix, STEPS, reply_timeout).await
}

/// Settings of every connection, regardless of the defaults of the server or the user.
fn session_settings(reply_timeout: Duration) -> String {
    // Shorter than the reply timeout, so that most calls given up are known not to be applied.
    let statement_timeout = (reply_timeout * 3 / 4).as_millis().max(1);
    format!(
        "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE;
         SET statement_timeout = {statement_timeout};
         SET idle_in_transaction_session_timeout = {statement_timeout};
         SET lock_timeout = 0;
         SET idle_session_timeout = 0;
         SET tcp_keepalives_idle = 60;
         SET client_min_messages = error;
         -- Every look-up is by a key, however few rows there were when it was planned.
         SET plan_cache_mode = force_generic_plan;
         SET enable_seqscan = off;
         SET enable_hashjoin = off;
         SET enable_mergejoin = off;
         SET jit = off;"
    )
}

/// Returns the version of the tables; none if there are none.
async fn read_version(client: &Client, prefix: &str) -> Result<Option<i32>, SchemaError> {
    match client.query(&with_prefix("SELECT version FROM \"{p}_schema\"", prefix), &[]).await {
        Ok(rows) => match &rows[..] {
            [row] => Ok(Some(row.try_get(0)?)),
            _ => Err(SchemaError::Unversioned { prefix: prefix.to_owned() }),
        },
        Err(error) if error.code() == Some(&SqlState::UNDEFINED_TABLE) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Returns true for this program's version and false for an older one; a newer one is an error.
fn is_known(found: Option<i32>, known: usize, prefix: &str) -> Result<bool, SchemaError> {
    match found.map(usize::try_from) {
        None => Ok(false),
        Some(Ok(version)) if version <= known => Ok(version == known),
        Some(_) => Err(SchemaError::Newer { prefix: prefix.to_owned(), found: found.unwrap_or_default(), known }),
    }
}

/// Runs the missing steps in one transaction, unless another connection has done so meanwhile. It
/// needs few requests, and only the one with the steps may take long. A client that vanishes
/// between requests is disconnected, so it does not stop others from creating the tables.
async fn upgrade_tables(
    client: &Client,
    prefix: &str,
    steps: &[&str],
    reply_timeout: Duration,
) -> Result<(), SchemaError> {
    let wait_max = 2 * reply_timeout;
    let late = |_| SchemaError::Late(wait_max);
    let millis = reply_timeout.as_millis().max(1);
    let limits = format!(
        "BEGIN; SET LOCAL statement_timeout = 0; SET LOCAL idle_in_transaction_session_timeout = {millis}; SET LOCAL lock_timeout = {millis};"
    );
    let begin = limits + &with_prefix(BEGIN, prefix);
    tokio::time::timeout(wait_max, client.batch_execute(&begin)).await.map_err(late)??;
    let found = tokio::time::timeout(wait_max, read_version(client, prefix)).await.map_err(late)??;
    let mut end = String::new();
    if !is_known(found, steps.len(), prefix)? {
        let done = usize::try_from(found.unwrap_or_default()).unwrap_or_default();
        for text in steps[done..].iter().chain([&CODE, &NAMES]) {
            end.push_str(&with_prefix(text, prefix));
            end.push(';');
        }
        end.push_str(&with_prefix("UPDATE \"{p}_schema\" SET version = ", prefix));
        end.push_str(&format!("{};", steps.len()));
    }
    end.push_str("COMMIT");
    let wait_max = STEPS_TIMEOUT.min(STEPS_REPLIES * reply_timeout);
    let taken = tokio::time::timeout(wait_max, client.batch_execute(&end)).await;
    Ok(taken.map_err(|_| SchemaError::Late(wait_max))??)
}

#[cfg(test)]
mod tests;
