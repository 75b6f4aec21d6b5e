//! Reads counters from a Redis server or a Quipu server.
//!
//! In: keys, by SCAN. Out of Redis: strings that are integers or HyperLogLogs, with their expiry.
//! Out of Quipu: counters and sketches, by `QUIPU.DUMP`.
//!
//! Invariants:
//! - nothing is written;
//! - every key that SCAN names is found, with its value or the reason why it has none;
//! - an error of one key is that key's reason, and never ends the walk.

use std::collections::VecDeque;
use std::time::Duration;

use anyhow::{Context, bail};
use quipu_model::Millis;
use quipu_sketch::{Hll, SketchKind};
use redis::{Connection, ConnectionAddr, ErrorKind, IntoConnectionInfo, Pipeline, RedisResult, Value};

use crate::backends::source::{
    NOT_AN_INTEGER, SketchBody, SkipReason, Source, SourceContent, SourceFilter, SourceKey, integer,
};

/// Keys per step of a walk. Redis answers no other client meanwhile: a step takes it less than a
/// millisecond.
const KEYS_PER_STEP: usize = 1_000;

/// Sketches per step: one has at most 16 MiB.
const DUMPS_PER_STEP: usize = 16;

/// Longest string that is read: a HyperLogLog of one run per register has 32 KiB.
const STRING_BYTES_MAX: i64 = 64 << 10;

/// Timeout of a connection attempt and of a reply.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A walk over the keys of a server.
struct RedisSource {
    location: String,
    connection: Connection,
    pattern: Option<String>,
    cursor: Option<u64>,
    names: VecDeque<Vec<u8>>,
    /// True for a Quipu server.
    has_dump: bool,
    /// True if the server knows PEXPIRETIME. Redis before 7.0 has only PTTL.
    has_expiretime: bool,
}

/// Connects. The location consists of the server and its database, without the user.
pub fn open(url: &str, wanted: &SourceFilter) -> anyhow::Result<Box<dyn Source>> {
    if wanted.query.is_some() {
        bail!("Redis is not asked in SQL: leave out --query, or name a postgres:// URL");
    }
    // The driver's message about an unreadable URL contains the URL, and so the password.
    let Ok(info) = url.into_connection_info() else {
        bail!("the URL of the source is not of the form redis://user:password@host:port/database");
    };
    let location = match info.addr() {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
            format!("{}:{port}", canonical_host(host))
        }
        ConnectionAddr::Unix(path) => path.display().to_string(),
        _ => bail!("a source is reached by TCP or by a socket"),
    };
    let name = format!("redis://{location}/{}", info.redis_settings().db());
    let client = redis::Client::open(info).with_context(|| format!("use {name}"))?;
    let mut connection = client.get_connection_with_timeout(TIMEOUT).with_context(|| format!("connect to {name}"))?;
    connection.set_read_timeout(Some(TIMEOUT))?;
    connection.set_write_timeout(Some(TIMEOUT))?;
    // Probes for a command. Any error other than "unknown command" is left to the walk.
    let supports = |connection: &mut Connection, command: &str| {
        let reply: RedisResult<Value> = redis::cmd(command).arg("quipu").query(connection);
        reply.map_or_else(|error| error.code() != Some("ERR"), |_| true)
    };
    let has_dump = supports(&mut connection, "QUIPU.DUMP");
    let has_expiretime = supports(&mut connection, "PEXPIRETIME");
    Ok(Box::new(RedisSource {
        location: name,
        connection,
        pattern: wanted.pattern.clone(),
        cursor: Some(0),
        names: VecDeque::new(),
        has_dump,
        has_expiretime,
    }))
}

/// One name for this machine.
fn canonical_host(host: &str) -> &str {
    if host == "localhost" { "127.0.0.1" } else { host }
}

impl Source for RedisSource {
    fn location(&self) -> &str {
        &self.location
    }

    fn approximate_size(&mut self) -> anyhow::Result<Option<u64>> {
        match self.pattern {
            None => {
                Ok(Some(redis::cmd("DBSIZE").query(&mut self.connection).context("ask the source how much it has")?))
            }
            Some(_) => Ok(None),
        }
    }

    fn next_page(&mut self) -> anyhow::Result<Option<Vec<SourceKey>>> {
        if self.names.is_empty() {
            let Some(cursor) = self.cursor else { return Ok(None) };
            self.scan(cursor)?;
        }
        let most = if self.has_dump { DUMPS_PER_STEP } else { KEYS_PER_STEP };
        let names: Vec<Vec<u8>> = self.names.drain(..self.names.len().min(most)).collect();
        if names.is_empty() {
            return Ok(Some(Vec::new()));
        }
        let now = self.clock()?;
        let found = if self.has_dump { self.read_dumps(names)? } else { self.read_values(names, now)? };
        // A counter that expires in the source restarts from 0 afterwards. So nothing that expired
        // before `now` is part of its value.
        let since = |found: SourceKey| SourceKey { since: found.expires_at.map_or(Millis(0), |_| now), ..found };
        Ok(Some(found.into_iter().map(since).collect()))
    }

    fn may_repeat_keys(&self) -> bool {
        true
    }
}

impl RedisSource {
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

    /// Returns one reply for each command, in order. They are sent one by one, so keys may be in
    /// different slots of a Cluster's master.
    fn run_pipeline(&mut self, pipeline: &mut Pipeline) -> anyhow::Result<Vec<RedisResult<Value>>> {
        if pipeline.is_empty() {
            return Ok(Vec::new());
        }
        let replies: Vec<RedisResult<Value>> =
            pipeline.ignore_errors().query(&mut self.connection).context("read values of the source")?;
        if replies.len() != pipeline.len() {
            bail!("the source answered {} times to {} commands", replies.len(), pipeline.len());
        }
        Ok(replies)
    }

    /// Reads keys of Redis.
    fn read_values(&mut self, names: Vec<Vec<u8>>, now: Millis) -> anyhow::Result<Vec<SourceKey>> {
        let mut pipeline = Pipeline::with_capacity(3 * names.len());
        for name in &names {
            let expiry = if self.has_expiretime { "PEXPIRETIME" } else { "PTTL" };
            pipeline.cmd("TYPE").arg(name).cmd(expiry).arg(name).cmd("STRLEN").arg(name);
        }
        let replies = self.run_pipeline(&mut pipeline)?;
        let (replies, _) = replies.as_chunks::<3>();
        let mut reads = Pipeline::new();
        let mut found = Vec::with_capacity(names.len());
        for (name, [kind, expiry, length]) in names.into_iter().zip(replies) {
            let time = reply_integer(expiry).and_then(|time| u64::try_from(time).ok());
            let expires_at =
                time.map(|time| Millis(if self.has_expiretime { time } else { now.0.saturating_add(time) }));
            // Imported without its expiry, it would count for ever.
            let hidden = expiry.as_ref().err().map(refusal_reason);
            let value = match (non_string_reason(kind).or(hidden), reply_integer(length)) {
                (Some(reason), _) => Err(reason),
                (None, Some(length)) if length > STRING_BYTES_MAX => Err(NOT_AN_INTEGER.into()),
                (None, _) => {
                    reads.cmd("GET").arg(&name);
                    Ok(SourceContent::Count(0))
                }
            };
            found.push(SourceKey { name: name.into(), value, since: Millis(0), expires_at });
        }
        let mut values = self.run_pipeline(&mut reads)?.into_iter();
        // A key without a value was deleted in between.
        found.retain_mut(|found| {
            if found.value.is_err() {
                return !is_gone(&found.value);
            }
            found.value = match values.next() {
                Some(Ok(Value::Nil)) | None => return false,
                Some(Ok(value)) => parse_string(&value),
                Some(Err(error)) => Err(refusal_reason(&error)),
            };
            true
        });
        Ok(found)
    }

    /// Reads counters of a Quipu server.
    fn read_dumps(&mut self, names: Vec<Vec<u8>>) -> anyhow::Result<Vec<SourceKey>> {
        let mut pipeline = Pipeline::with_capacity(names.len());
        for name in &names {
            pipeline.cmd("QUIPU.DUMP").arg(name);
        }
        let replies = self.run_pipeline(&mut pipeline)?;
        let found = names.into_iter().zip(replies).filter_map(|(name, reply)| {
            let (value, expires_at) = match reply {
                Ok(Value::Nil) => return None,
                Ok(reply) => parse_dump(reply).unwrap_or((Err("an answer that makes no sense".into()), None)),
                Err(error) => (Err(refusal_reason(&error)), None),
            };
            Some(SourceKey { name: name.into(), value, since: Millis(0), expires_at })
        });
        Ok(found.collect())
    }
}

/// Reason of a key that was deleted before it was read; it is not reported.
const GONE: &str = "it is gone";

fn is_gone(value: &Result<SourceContent, SkipReason>) -> bool {
    matches!(value, Err(reason) if reason.text == GONE)
}

/// Reason why a key of this type is no string. If the server refuses TYPE, the string itself is
/// read.
fn non_string_reason(reply: &RedisResult<Value>) -> Option<SkipReason> {
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
        other => SkipReason::with("of a type that is no counter", other.as_bytes()),
    })
}

fn reply_integer(reply: &RedisResult<Value>) -> Option<i64> {
    match reply {
        Ok(Value::Int(number)) => Some(*number),
        _ => None,
    }
}

/// A string of Redis: an integer, or a HyperLogLog.
fn parse_string(value: &Value) -> Result<SourceContent, SkipReason> {
    let Value::BulkString(bytes) = value else { return Err("an answer that makes no sense".into()) };
    if !bytes.starts_with(b"HYLL") {
        return integer(bytes).map(SourceContent::Count);
    }
    let hll =
        Hll::from_redis_string(bytes).map_err(|_| SkipReason::from("a HyperLogLog with bytes that make no sense"))?;
    SketchBody::new(SketchKind::Hll, 0, hll.into_bytes()).map(SourceContent::Sketch)
}

fn refusal_reason(error: &redis::RedisError) -> SkipReason {
    let text = match error.kind() {
        ErrorKind::Server(_) | ErrorKind::Extension => "the source refuses to show it",
        _ => "the source does not show it",
    };
    SkipReason::with(text, error.to_string().as_bytes())
}

/// Parses the reply of `QUIPU.DUMP`: a map, or a flat list of its keys and values.
fn parse_dump(reply: Value) -> Option<(Result<SourceContent, SkipReason>, Option<Millis>)> {
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
        return Some((Ok(SourceContent::Count(i128::from(*value))), expires_at));
    }
    let Some(Value::BulkString(body)) = field("body") else { return None };
    let kind = match text("form")?.as_str() {
        "hll" => SketchKind::Hll,
        "unique" => SketchKind::Unique,
        "cms" => SketchKind::Cms,
        "frequency" => SketchKind::Frequency,
        "topk" => SketchKind::TopK,
        "top" => SketchKind::Top,
        "ring" => return Some((Err("a sketch over a window: an import cannot put panes".into()), expires_at)),
        other => return Some((Err(SkipReason::with("a sketch of an unknown form", other.as_bytes())), expires_at)),
    };
    let key = u64::from_str_radix(&text("key")?, 16).ok()?;
    Some((SketchBody::new(kind, key, body.clone()).map(SourceContent::Sketch), expires_at))
}
