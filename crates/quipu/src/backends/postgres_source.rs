//! Reads counters from a PostgreSQL database: the rows of a query, by a cursor.
//!
//! Invariants:
//! - nothing is written: the transaction is read-only;
//! - all rows are of one snapshot.

use anyhow::{Context, anyhow, bail};
use tokio::runtime::{Builder, Runtime};
use tokio_postgres::config::Host;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Config, NoTls};

use crate::backends::source::{Source, SourceFilter, SourceKey, integer};

/// Rows per fetch.
const ROWS_PER_FETCH: usize = 4_096;

/// Name of our connection in the server's statistics, unless the URL gives another.
const APPLICATION: &str = "quipu import";

const PORT_DEFAULT: u16 = 5432;

/// A cursor over the rows of a query.
struct PostgresSource {
    location: String,
    runtime: Runtime,
    client: Client,
    names_are_bytes: bool,
    is_exhausted: bool,
}

/// Connects and opens the cursor. The name consists of the server and the database, without the
/// user and the query.
pub fn open(url: &str, filter: &SourceFilter) -> anyhow::Result<Box<dyn Source>> {
    let Some(query) = &filter.query else {
        bail!("say which counters with --query \"select name, value from …\"");
    };
    if filter.pattern.is_some() {
        bail!("--match is for Redis: say it in the query, with `where name like 'likes:%'`");
    }
    // The driver's message about an unreadable URL may contain the password.
    let Ok(mut config) = url.parse::<Config>() else {
        bail!("the URL of the source is not of the form postgres://user:password@host:port/database");
    };
    if config.get_application_name().is_none() {
        config.application_name(APPLICATION);
    }
    let name = source_name(&config)?;
    let runtime = Builder::new_current_thread().enable_all().build().context("start the driver")?;
    let (client, names_are_bytes) =
        runtime.block_on(open_cursor(&config, query)).with_context(|| format!("ask {name}"))?;
    Ok(Box::new(PostgresSource { location: name, runtime, client, names_are_bytes, is_exhausted: false }))
}

fn source_name(config: &Config) -> anyhow::Result<String> {
    let host = match config.get_hosts().first().context("the URL of the source names no host")? {
        Host::Tcp(host) if host == "localhost" => "127.0.0.1".to_owned(),
        Host::Tcp(host) => host.clone(),
        Host::Unix(path) => path.display().to_string(),
    };
    let port = config.get_ports().first().copied().unwrap_or(PORT_DEFAULT);
    let database = config.get_dbname().or(config.get_user()).unwrap_or_default();
    Ok(format!("postgres://{host}:{port}/{database}"))
}

async fn open_cursor(config: &Config, query: &str) -> anyhow::Result<(Client, bool)> {
    let (client, connection) = config.connect(NoTls).await.map_err(server_error)?;
    #[allow(clippy::disallowed_methods, reason = "the driver's connection, on a runtime of its own")]
    tokio::spawn(connection);
    client.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await.map_err(server_error)?;
    // On lines of their own, so that a comment at the end of the query ends there.
    let from = format!("FROM (\n{}\n) AS source (name, value)", query.trim().trim_end_matches(';'));
    let statement = client.prepare(&format!("SELECT name, value {from}")).await.map_err(server_error)?;
    let is_bytes = statement.columns().first().is_some_and(|column| *column.type_() == Type::BYTEA);
    let name = if is_bytes { "name" } else { "name::text" };
    let cursor = format!("DECLARE counters NO SCROLL CURSOR FOR SELECT {name}, value::text {from}");
    client.batch_execute(&cursor).await.map_err(server_error)?;
    Ok((client, is_bytes))
}

impl Source for PostgresSource {
    fn location(&self) -> &str {
        &self.location
    }

    fn approximate_size(&mut self) -> anyhow::Result<Option<u64>> {
        Ok(None)
    }

    fn next_page(&mut self) -> anyhow::Result<Option<Vec<SourceKey>>> {
        if self.is_exhausted {
            return Ok(None);
        }
        let fetch = format!("FETCH {ROWS_PER_FETCH} FROM counters");
        let rows =
            self.runtime.block_on(self.client.query(&fetch, &[])).map_err(server_error).context("read the source")?;
        self.is_exhausted = rows.len() < ROWS_PER_FETCH;
        let mut keys = Vec::with_capacity(rows.len());
        for row in rows {
            let name = match self.names_are_bytes {
                true => row.try_get::<_, Option<Vec<u8>>>(0).map_err(server_error)?,
                false => row.try_get::<_, Option<String>>(0).map_err(server_error)?.map(String::into_bytes),
            };
            let value = row.try_get::<_, Option<String>>(1).map_err(server_error)?;
            let value = match (&name, value) {
                (None, _) => Err("it has no name: it is null".into()),
                (_, None) => Err("its value is null".into()),
                (_, Some(value)) => integer(value.as_bytes()),
            };
            keys.push(SourceKey::new(name.unwrap_or_default(), value));
        }
        Ok(Some(keys))
    }

    fn may_repeat_keys(&self) -> bool {
        false
    }
}

/// The server's message, which the driver's `Display` leaves out.
fn server_error(error: tokio_postgres::Error) -> anyhow::Error {
    match error.as_db_error() {
        Some(answer) => anyhow!("{}", answer.message()),
        None => anyhow!(error),
    }
}
