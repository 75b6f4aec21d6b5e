//! Answers CONFIG GET and SET: the settings, and those that may change at run time.
//!
//! Names and error texts are Redis's, because tools use these names. Only settings with a meaning
//! here are listed.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use quipu_model::{Durability, Pattern};

use crate::Limits;
use crate::server_state::ServerState;

/// Largest `maxclients`, as in Redis.
const CONNECTIONS_SETTABLE_MAX: u64 = u32::MAX as u64;

/// Largest `timeout` in seconds, as in Redis.
const IDLE_SECONDS_SETTABLE_MAX: u64 = i32::MAX as u64;

/// Settings that may change at run time.
pub(crate) struct Settings {
    connections_max: AtomicU32,
    /// Connections that the process's open files allow.
    connections_possible: u32,
    /// 0: never.
    idle_seconds_max: AtomicU64,
}

impl Settings {
    pub fn new(limits: &Limits, connections_possible: u32) -> Settings {
        Settings {
            connections_possible,
            connections_max: AtomicU32::new(limits.connections_max),
            idle_seconds_max: AtomicU64::new(limits.idle_time_max.map_or(0, |time| time.as_secs())),
        }
    }

    pub fn connections_max(&self) -> u32 {
        self.connections_max.load(Ordering::Relaxed)
    }

    pub fn idle_time_max(&self) -> Option<Duration> {
        match self.idle_seconds_max.load(Ordering::Relaxed) {
            0 => None,
            seconds => Some(Duration::from_secs(seconds)),
        }
    }
}

/// All settings with a name that matches one of the patterns, in any case.
pub(crate) fn get(server: &ServerState, patterns: &[&[u8]]) -> Vec<(&'static str, String)> {
    let lower: Vec<Vec<u8>> = patterns.iter().map(|pattern| pattern.to_ascii_lowercase()).collect();
    let mut all = all(server);
    all.retain(|(name, _)| lower.iter().any(|pattern| Pattern(pattern).matches(name.as_bytes())));
    all
}

/// Changes settings: all of them, or none and an error text.
pub(crate) fn set(server: &ServerState, pairs: &[(&[u8], &[u8])]) -> Result<(), String> {
    let possible = u64::from(server.settings.connections_possible);
    let mut changes: Vec<(&str, u64)> = Vec::with_capacity(pairs.len());
    for (name, value) in pairs {
        let Some((known, _)) = all(server).into_iter().find(|(known, _)| names_match(name, known)) else {
            let name = String::from_utf8_lossy(name);
            return Err(format!("ERR Unknown option or number of arguments for CONFIG SET - '{name}'"));
        };
        let failed = |why: &str| Err(format!("ERR CONFIG SET failed (possibly related to argument '{known}') - {why}"));
        let (least, most) = match known {
            "maxclients" => (1, CONNECTIONS_SETTABLE_MAX),
            "timeout" => (0, IDLE_SECONDS_SETTABLE_MAX),
            _ => return failed("can't set immutable config"),
        };
        if changes.iter().any(|(before, _)| *before == known) {
            return failed("duplicate parameter");
        }
        let Some(number) = quipu_protocol::number::integer(value) else {
            return failed("argument couldn't be parsed into an integer");
        };
        match u64::try_from(number) {
            Ok(number) if known == "maxclients" && (possible + 1..=most).contains(&number) => {
                return failed(&format!(
                    "The operating system is not able to handle the specified number of clients, try with {possible}"
                ));
            }
            Ok(number) if (least..=most).contains(&number) => changes.push((known, number)),
            _ => return failed(&format!("argument must be between {least} and {most} inclusive")),
        }
    }
    for (name, number) in changes {
        match name {
            // Checked against the bound above.
            "maxclients" => server.settings.connections_max.store(number as u32, Ordering::Relaxed),
            _ => server.settings.idle_seconds_max.store(number, Ordering::Relaxed),
        }
    }
    Ok(())
}

fn all(server: &ServerState) -> Vec<(&'static str, String)> {
    let (limits, durability) = (&server.limits, server.durability);
    let fsync = match durability {
        Durability::Durable => "always",
        Durability::Relaxed => "everysec",
        Durability::Memory => "no",
    };
    vec![
        ("appendfsync", fsync.to_owned()),
        ("appendonly", if durability == Durability::Memory { "no" } else { "yes" }.to_owned()),
        ("bind", server.resp.ip().to_string()),
        ("cluster-enabled", "no".to_owned()),
        ("databases", "1".to_owned()),
        ("io-threads", server.workers.to_string()),
        ("maxclients", server.settings.connections_max().to_string()),
        ("maxmemory", "0".to_owned()),
        ("maxmemory-policy", "noeviction".to_owned()),
        ("port", server.resp.port().to_string()),
        ("proto-max-bulk-len", limits.frame.bulk_bytes_max.to_string()),
        ("save", String::new()),
        ("timeout", server.settings.idle_seconds_max.load(Ordering::Relaxed).to_string()),
    ]
}

fn names_match(given: &[u8], known: &str) -> bool {
    given.eq_ignore_ascii_case(known.as_bytes())
}
