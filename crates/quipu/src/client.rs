//! `quipu add`, `get`, `del`, `reset`, `list`, `health`: sends a command to a running server and
//! prints the reply.
//!
//! In: a command. Out: its reply, as a table for people or as plain lines for programs.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use anyhow::bail;

use crate::args::{AddArgs, DelArgs, GetArgs, HealthArgs, ListArgs, ResetArgs, ServerArgs};
use crate::readings::{self, CounterReading, read_counters};
use crate::resp_client::{RespClient, Value, reply_count};
use crate::terminal;

/// Names in one step of a walk or one DEL: few enough for a prompt reply, many enough for speed.
const NAMES_PER_CALL: usize = 1_000;

/// Most time for a healthy server to answer a greeting. Slow commits do not delay this reply.
const HEALTH_TIME_MAX: Duration = Duration::from_secs(5);

/// A command for a server.
pub trait ServerCommand: clap::Args {
    /// Sends the command and prints the reply.
    fn execute(&self, client: &mut RespClient, out: &mut dyn Write) -> anyhow::Result<()>;
}

/// Connects and executes a command.
pub fn call_server(target: &ServerArgs, command: &impl ServerCommand, out: &mut impl Write) -> anyhow::Result<()> {
    let mut client = RespClient::connect(&target.server, target.password.as_deref())?;
    command.execute(&mut client, out)
}

impl ServerCommand for AddArgs {
    fn execute(&self, client: &mut RespClient, out: &mut dyn Write) -> anyhow::Result<()> {
        let delta = self.delta.to_string();
        let value = reply_count(&client.call(&[b"INCRBY", self.name.as_bytes(), delta.as_bytes()])?)?;
        Ok(writeln!(out, "{value}")?)
    }
}

impl ServerCommand for GetArgs {
    fn execute(&self, client: &mut RespClient, out: &mut dyn Write) -> anyhow::Result<()> {
        let names: Vec<&[u8]> = self.names.iter().map(|name| name.as_bytes()).collect();
        let readings = read_counters(client, &names)?;
        print(out, &readings, self.json, |reading| reading.value())
    }
}

impl ServerCommand for DelArgs {
    fn execute(&self, client: &mut RespClient, out: &mut dyn Write) -> anyhow::Result<()> {
        let mut deleted = 0;
        for names in self.names.chunks(NAMES_PER_CALL) {
            let names = names.iter().map(|name: &OsString| name.as_bytes());
            let arguments: Vec<&[u8]> = std::iter::once(&b"DEL"[..]).chain(names).collect();
            deleted += reply_count(&client.call(&arguments)?)?;
        }
        Ok(writeln!(out, "{deleted}")?)
    }
}

impl ServerCommand for ResetArgs {
    fn execute(&self, client: &mut RespClient, out: &mut dyn Write) -> anyhow::Result<()> {
        let before = reply_count(&client.call(&[b"QUIPU.RESET", self.name.as_bytes()])?)?;
        Ok(writeln!(out, "{before}")?)
    }
}

impl ServerCommand for HealthArgs {
    fn execute(&self, client: &mut RespClient, out: &mut dyn Write) -> anyhow::Result<()> {
        // A stuck server is unhealthy, and the caller of a health check repeats it soon.
        client.wait_for(HEALTH_TIME_MAX)?;
        client.call(&[b"PING"])?;
        if self.store {
            check_store(&client.call(&[b"INFO", b"quipu"])?)?;
        }
        Ok(writeln!(out, "ok")?)
    }
}

/// Checks that a server has a shared store, reaches it, and that the store keeps confirmed writes.
/// The error is the reason.
fn check_store(info: &Value) -> anyhow::Result<()> {
    let Value::Bulk(text) = info else { bail!("the server sent {info:?} for INFO") };
    let text = String::from_utf8_lossy(text);
    let field = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    match (field("store"), field("store_reachable")) {
        (None, _) => bail!("the server's INFO has no store: the server is older than this program"),
        (Some("none"), _) => bail!("the server has no shared store: start it with --store URL"),
        (Some(store), Some("1")) => match field("store_problems") {
            None | Some("none") => Ok(()),
            Some(problems) => bail!("the shared store {store} has problems: {problems}"),
        },
        (Some(store), _) => {
            let error = field("store_error").unwrap_or("no reason given");
            bail!("the shared store {store} cannot be reached: {error}")
        }
    }
}

impl ServerCommand for ListArgs {
    fn execute(&self, client: &mut RespClient, out: &mut dyn Write) -> anyhow::Result<()> {
        let (names, more) = self.matching_names(client)?;
        let names: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
        let mut readings = read_counters(client, &names)?;
        // A counter deleted since the walk is no longer listed.
        readings.retain(CounterReading::exists);
        let line =
            |reading: &CounterReading<'_>| format!("{}\t{}\t{}", reading.name(), reading.value(), reading.kind());
        print(out, &readings, self.json, line)?;
        if more {
            out.flush()?;
            eprintln!("quipu: there are more than {} counters; raise --limit to see them", self.limit);
        }
        Ok(())
    }
}

impl ListArgs {
    /// Names in order, and whether there are more. A walk may give a name twice; a set does not.
    fn matching_names(&self, client: &mut RespClient) -> anyhow::Result<(BTreeSet<Vec<u8>>, bool)> {
        let pattern = prefix_pattern(self.prefix.as_bytes());
        let per_call = NAMES_PER_CALL.to_string();
        let (mut names, mut cursor) = (BTreeSet::new(), b"0".to_vec());
        loop {
            let reply = client.call(&[b"SCAN", &cursor, b"MATCH", &pattern, b"COUNT", per_call.as_bytes()])?;
            let Value::Array(parts) = reply else { bail!("the server sent {reply:?} for a step of a walk") };
            let Ok([Value::Bulk(next), Value::Array(page)]) = <[Value; 2]>::try_from(parts) else {
                bail!("the server sent something else for a step of a walk");
            };
            for name in page {
                let Value::Bulk(name) = name else { bail!("the server sent {name:?} for a name") };
                // The pattern has only a part of a long prefix.
                if name.starts_with(self.prefix.as_bytes()) {
                    names.insert(name);
                }
            }
            let more = names.len() > self.limit;
            if more || next == b"0" {
                while names.len() > self.limit {
                    names.pop_last();
                }
                return Ok((names, more));
            }
            cursor = next;
        }
    }
}

/// The glob that matches exactly a prefix; of a long prefix, as much as a server accepts.
fn prefix_pattern(prefix: &[u8]) -> Vec<u8> {
    let mut pattern = Vec::with_capacity(prefix.len() + 1);
    for &byte in prefix {
        if pattern.len() + 3 > quipu_model::Pattern::BYTES_MAX {
            break;
        }
        if b"*?[]\\^".contains(&byte) {
            pattern.push(b'\\');
        }
        pattern.push(byte);
    }
    pattern.push(b'*');
    pattern
}

/// Prints readings: as JSON if requested, else as a table on a terminal, else one line each.
fn print(
    out: &mut dyn Write,
    readings: &[CounterReading<'_>],
    json: bool,
    line: impl Fn(&CounterReading<'_>) -> String,
) -> anyhow::Result<()> {
    if !json && terminal::is_terminal() {
        return Ok(writeln!(out, "{}", readings::table(readings))?);
    }
    for reading in readings {
        match json {
            true => writeln!(out, "{}", reading.json())?,
            false => writeln!(out, "{}", line(reading))?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_matches_itself_whatever_its_letters() {
        assert_eq!(prefix_pattern(b"likes:"), b"likes:*");
        assert_eq!(prefix_pattern(b"a*[x]?\\"), b"a\\*\\[x\\]\\?\\\\*");
        assert_eq!(prefix_pattern(b""), b"*");
    }
}
