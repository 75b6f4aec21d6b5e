//! Counters in a Redis server: plain strings, read by SCAN and GET.
//!
//! Invariant: nothing is written.

use std::time::Duration;

use anyhow::{Context, bail};
use redis::{Connection, ConnectionAddr, IntoConnectionInfo};

use crate::backends::source::{Found, Source, Wanted, integer};

/// Keys that one step of a walk looks at. Redis answers nobody else meanwhile: this takes it less than a millisecond.
const KEYS_PER_STEP: usize = 1_000;

/// How long a connection or a reply may take.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A walk over the strings of a server.
struct Strings {
    connection: Connection,
    pattern: Option<String>,
    cursor: Option<u64>,
}

/// Connects. The name is that of the server and its database; who asks is no part of it.
pub fn open(url: &str, wanted: &Wanted) -> anyhow::Result<(String, Box<dyn Source>)> {
    if wanted.query.is_some() {
        bail!("Redis is not asked in SQL: leave out --query, or name a postgres:// URL");
    }
    // What the driver says of a URL that it cannot read has the URL in it, and that has the password.
    let Ok(info) = url.into_connection_info() else {
        bail!("the URL of the source is not of the form redis://user:password@host:port/database");
    };
    let place = match info.addr() {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
            format!("{}:{port}", known(host))
        }
        ConnectionAddr::Unix(path) => path.display().to_string(),
        _ => bail!("a source is reached by TCP or by a socket"),
    };
    let name = format!("redis://{place}/{}", info.redis_settings().db());
    let client = redis::Client::open(info).with_context(|| format!("use {name}"))?;
    let connection = client.get_connection_with_timeout(TIMEOUT).with_context(|| format!("connect to {name}"))?;
    connection.set_read_timeout(Some(TIMEOUT))?;
    connection.set_write_timeout(Some(TIMEOUT))?;
    Ok((name, Box::new(Strings { connection, pattern: wanted.pattern.clone(), cursor: Some(0) })))
}

/// One name for this machine, which is written in several ways.
fn known(host: &str) -> &str {
    if host == "localhost" { "127.0.0.1" } else { host }
}

impl Source for Strings {
    fn size(&mut self) -> anyhow::Result<Option<u64>> {
        match self.pattern {
            None => {
                Ok(Some(redis::cmd("DBSIZE").query(&mut self.connection).context("ask the source how much it has")?))
            }
            Some(_) => Ok(None),
        }
    }

    fn page(&mut self) -> anyhow::Result<Option<Vec<Found>>> {
        let Some(cursor) = self.cursor else { return Ok(None) };
        let mut step = redis::cmd("SCAN");
        step.arg(cursor).arg("COUNT").arg(KEYS_PER_STEP);
        if let Some(pattern) = &self.pattern {
            step.arg("MATCH").arg(pattern);
        }
        // What is no string is no counter.
        step.arg("TYPE").arg("string");
        let (next, names): (u64, Vec<Vec<u8>>) =
            step.query(&mut self.connection).context("list the keys of the source")?;
        self.cursor = Some(next).filter(|&next| next != 0);
        if names.is_empty() {
            return Ok(Some(Vec::new()));
        }
        // One by one and all at once, rather than by MGET: so they may be in different slots of a Cluster's master.
        let mut asked = redis::Pipeline::with_capacity(names.len());
        for name in &names {
            asked.cmd("GET").arg(name);
        }
        let values: Vec<Option<Vec<u8>>> = asked.query(&mut self.connection).context("read values of the source")?;
        if values.len() != names.len() {
            bail!("the source answered {} values for {} keys", values.len(), names.len());
        }
        // One without a value was deleted in between.
        let found = names.into_iter().zip(values).filter_map(|(name, value)| Some(Found::new(name, integer(&value?))));
        Ok(Some(found.collect()))
    }

    fn repeats(&self) -> bool {
        true
    }
}
