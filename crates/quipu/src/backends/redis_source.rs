//! Counters in a Redis server, or in a server of ours.
//!
//! In: keys, by SCAN. Out: strings that are integers or HyperLogLogs, with their expiry; of a server of ours, its counters and sketches by `QUIPU.DUMP`.
//!
//! Invariants:
//! - nothing is written;
//! - every key that SCAN names is found, with its value or the reason why it has none;
//! - an error of one key is that key's reason, never an end of the walk.

use std::collections::VecDeque;
use std::time::Duration;

use anyhow::{Context, bail};
use quipu_model::Millis;
use quipu_sketch::{Hll, Kind};
use redis::{Connection, ConnectionAddr, ErrorKind, IntoConnectionInfo, Pipeline, RedisResult, Value};

use crate::backends::source::{Content, Found, NO_INTEGER, Reason, SketchBody, Source, Wanted, integer};

/// Keys that one step of a walk looks at. Redis answers nobody else meanwhile: this takes it less than a millisecond.
const KEYS_PER_STEP: usize = 1_000;

/// Sketches that are read at a time: one has at most 16 MiB.
const DUMPS_PER_STEP: usize = 16;

/// Longest string that is read: a HyperLogLog of one run per register has 32 KiB.
const STRING_BYTES_MAX: i64 = 64 << 10;

/// How long a connection or a reply may take.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A walk over the keys of a server.
struct Keys {
    connection: Connection,
    pattern: Option<String>,
    cursor: Option<u64>,
    names: VecDeque<Vec<u8>>,
    /// Whether it is a server of ours.
    dumps: bool,
    /// Whether it tells when a key expires; Redis before 7.0 tells only how long it lives.
    tells_expiry: bool,
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
    let mut connection = client.get_connection_with_timeout(TIMEOUT).with_context(|| format!("connect to {name}"))?;
    connection.set_read_timeout(Some(TIMEOUT))?;
    connection.set_write_timeout(Some(TIMEOUT))?;
    // Which commands it knows: any other error than that it knows none is for the walk to meet.
    let knows = |connection: &mut Connection, command: &str| {
        let reply: RedisResult<Value> = redis::cmd(command).arg("quipu").query(connection);
        reply.map_or_else(|error| error.code() != Some("ERR"), |_| true)
    };
    let dumps = knows(&mut connection, "QUIPU.DUMP");
    let tells_expiry = knows(&mut connection, "PEXPIRETIME");
    let (pattern, cursor, names) = (wanted.pattern.clone(), Some(0), VecDeque::new());
    Ok((name, Box::new(Keys { connection, pattern, cursor, names, dumps, tells_expiry })))
}

/// One name for this machine, which is written in several ways.
fn known(host: &str) -> &str {
    if host == "localhost" { "127.0.0.1" } else { host }
}

impl Source for Keys {
    fn size(&mut self) -> anyhow::Result<Option<u64>> {
        match self.pattern {
            None => {
                Ok(Some(redis::cmd("DBSIZE").query(&mut self.connection).context("ask the source how much it has")?))
            }
            Some(_) => Ok(None),
        }
    }

    fn page(&mut self) -> anyhow::Result<Option<Vec<Found>>> {
        if self.names.is_empty() {
            let Some(cursor) = self.cursor else { return Ok(None) };
            self.scan(cursor)?;
        }
        let most = if self.dumps { DUMPS_PER_STEP } else { KEYS_PER_STEP };
        let names: Vec<Vec<u8>> = self.names.drain(..self.names.len().min(most)).collect();
        if names.is_empty() {
            return Ok(Some(Vec::new()));
        }
        let now = self.clock()?;
        let found = if self.dumps { self.dumped(names)? } else { self.typed(names, now)? };
        // A counter that expires in the source counts from its beginning once it has: this much of its past is known to be over.
        let since = |found: Found| Found { since: found.expires_at.map_or(Millis(0), |_| now), ..found };
        Ok(Some(found.into_iter().map(since).collect()))
    }

    fn repeats(&self) -> bool {
        true
    }
}

impl Keys {
    fn scan(&mut self, cursor: u64) -> anyhow::Result<()> {
        let mut step = redis::cmd("SCAN");
        step.arg(cursor).arg("COUNT").arg(KEYS_PER_STEP);
        if let Some(pattern) = &self.pattern {
            step.arg("MATCH").arg(pattern);
        }
        let (next, names): (u64, Vec<Vec<u8>>) =
            step.query(&mut self.connection).context("list the keys of the source")?;
        self.cursor = Some(next).filter(|&next| next != 0);
        self.names.extend(names);
        Ok(())
    }

    fn clock(&mut self) -> anyhow::Result<Millis> {
        let (seconds, micros): (u64, u64) =
            redis::cmd("TIME").query(&mut self.connection).context("ask the source for its time")?;
        Ok(Millis(seconds.saturating_mul(1_000).saturating_add(micros / 1_000)))
    }

    /// One reply for each command, in order. They are sent one by one, so keys may be in different slots of a Cluster's master.
    fn ask(&mut self, asked: &mut Pipeline) -> anyhow::Result<Vec<RedisResult<Value>>> {
        if asked.is_empty() {
            return Ok(Vec::new());
        }
        let replies: Vec<RedisResult<Value>> =
            asked.ignore_errors().query(&mut self.connection).context("read values of the source")?;
        if replies.len() != asked.len() {
            bail!("the source answered {} times to {} commands", replies.len(), asked.len());
        }
        Ok(replies)
    }

    /// Keys of Redis.
    fn typed(&mut self, names: Vec<Vec<u8>>, now: Millis) -> anyhow::Result<Vec<Found>> {
        let mut asked = Pipeline::with_capacity(3 * names.len());
        for name in &names {
            let expiry = if self.tells_expiry { "PEXPIRETIME" } else { "PTTL" };
            asked.cmd("TYPE").arg(name).cmd(expiry).arg(name).cmd("STRLEN").arg(name);
        }
        let replies = self.ask(&mut asked)?;
        let (replies, _) = replies.as_chunks::<3>();
        let mut reads = Pipeline::new();
        let mut found = Vec::with_capacity(names.len());
        for (name, [kind, expiry, length]) in names.into_iter().zip(replies) {
            let time = integer_of(expiry).and_then(|time| u64::try_from(time).ok());
            let expires_at = time.map(|time| Millis(if self.tells_expiry { time } else { now.0.saturating_add(time) }));
            // Imported without its expiry, it would count for ever.
            let hidden = expiry.as_ref().err().map(refused);
            let value = match (no_string(kind).or(hidden), integer_of(length)) {
                (Some(reason), _) => Err(reason),
                (None, Some(length)) if length > STRING_BYTES_MAX => Err(NO_INTEGER.into()),
                (None, _) => {
                    reads.cmd("GET").arg(&name);
                    Ok(Content::Count(0))
                }
            };
            found.push(Found { name: name.into(), value, since: Millis(0), expires_at });
        }
        let mut values = self.ask(&mut reads)?.into_iter();
        // One without a value was deleted in between.
        found.retain_mut(|found| {
            if found.value.is_err() {
                return !is_gone(&found.value);
            }
            found.value = match values.next() {
                Some(Ok(Value::Nil)) | None => return false,
                Some(Ok(value)) => string(&value),
                Some(Err(error)) => Err(refused(&error)),
            };
            true
        });
        Ok(found)
    }

    /// Counters of a server of ours.
    fn dumped(&mut self, names: Vec<Vec<u8>>) -> anyhow::Result<Vec<Found>> {
        let mut asked = Pipeline::with_capacity(names.len());
        for name in &names {
            asked.cmd("QUIPU.DUMP").arg(name);
        }
        let replies = self.ask(&mut asked)?;
        let found = names.into_iter().zip(replies).filter_map(|(name, reply)| {
            let (value, expires_at) = match reply {
                Ok(Value::Nil) => return None,
                Ok(reply) => dump(reply).unwrap_or((Err("an answer that makes no sense".into()), None)),
                Err(error) => (Err(refused(&error)), None),
            };
            Some(Found { name: name.into(), value, since: Millis(0), expires_at })
        });
        Ok(found.collect())
    }
}

/// The reason of a key that is gone by the time it is looked at: it is not told.
const GONE: &str = "it is gone";

fn is_gone(value: &Result<Content, Reason>) -> bool {
    matches!(value, Err(reason) if reason.text == GONE)
}

/// Why a key of this type is no string; a server that does not tell is asked for the string.
fn no_string(reply: &RedisResult<Value>) -> Option<Reason> {
    let name = match reply {
        Ok(Value::SimpleString(name)) => name.as_str(),
        _ => return None,
    };
    Some(match name {
        "string" => return None,
        "none" => GONE.into(),
        "list" => "a list, not a counter".into(),
        "hash" => "a hash, not a counter".into(),
        "set" => "a set, not a counter".into(),
        "zset" => "a sorted set, not a counter".into(),
        "stream" => "a stream, not a counter".into(),
        other => Reason::with("of a type that is no counter", other.as_bytes()),
    })
}

fn integer_of(reply: &RedisResult<Value>) -> Option<i64> {
    match reply {
        Ok(Value::Int(number)) => Some(*number),
        _ => None,
    }
}

/// A string of Redis: an integer, or a HyperLogLog.
fn string(value: &Value) -> Result<Content, Reason> {
    let Value::BulkString(bytes) = value else { return Err("an answer that makes no sense".into()) };
    if !bytes.starts_with(b"HYLL") {
        return integer(bytes).map(Content::Count);
    }
    let hll = Hll::from_redis_string(bytes).map_err(|_| Reason::from("a HyperLogLog whose bytes make no sense"))?;
    SketchBody::new(Kind::Hll, 0, hll.into_bytes()).map(Content::Sketch)
}

fn refused(error: &redis::RedisError) -> Reason {
    let text = match error.kind() {
        ErrorKind::Server(_) | ErrorKind::Extension => "the source refuses to show it",
        _ => "the source does not show it",
    };
    Reason::with(text, error.to_string().as_bytes())
}

/// What `QUIPU.DUMP` replies: a map, or its keys and values in a row.
fn dump(reply: Value) -> Option<(Result<Content, Reason>, Option<Millis>)> {
    let fields: Vec<(Value, Value)> = match reply {
        Value::Map(fields) => fields,
        Value::Array(flat) => {
            let mut flat = flat.into_iter();
            std::iter::from_fn(|| flat.next().zip(flat.next())).collect()
        }
        _ => return None,
    };
    let field = |wanted: &str| {
        let is_it = |key: &Value| match key {
            Value::BulkString(key) => key == wanted.as_bytes(),
            Value::SimpleString(key) => key == wanted,
            _ => false,
        };
        fields.iter().find(|(key, _)| is_it(key)).map(|(_, value)| value)
    };
    let text = |name: &str| match field(name) {
        Some(Value::BulkString(bytes)) => Some(String::from_utf8_lossy(bytes).into_owned()),
        Some(Value::SimpleString(text)) => Some(text.clone()),
        _ => None,
    };
    let expires_at = match field("expires_at") {
        Some(Value::Int(at)) => u64::try_from(*at).ok().map(Millis),
        _ => None,
    };
    if let Some(Value::Int(value)) = field("value") {
        return Some((Ok(Content::Count(i128::from(*value))), expires_at));
    }
    let Some(Value::BulkString(body)) = field("body") else { return None };
    let kind = match text("form")?.as_str() {
        "hll" => Kind::Hll,
        "unique" => Kind::Unique,
        "cms" => Kind::Cms,
        "frequency" => Kind::Frequency,
        "topk" => Kind::TopK,
        "top" => Kind::Top,
        "ring" => return Some((Err("a sketch over a window, whose panes an import cannot put".into()), expires_at)),
        other => return Some((Err(Reason::with("a sketch of an unknown form", other.as_bytes())), expires_at)),
    };
    let key = u64::from_str_radix(&text("key")?, 16).ok()?;
    Some((SketchBody::new(kind, key, body.clone()).map(Content::Sketch), expires_at))
}
