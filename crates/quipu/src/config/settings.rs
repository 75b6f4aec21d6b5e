//! Defines the settings of a server, one table entry each: the key, the form of its value, the
//! option it sets.
//!
//! Key, flag and variable are one name in three spellings: `limits.bulk_bytes`,
//! `--limits-bulk-bytes`, `QUIPU_LIMITS_BULK_BYTES`.
//!
//! Not here: the precedence of the sources (`config`), defaults (the options of engine and server
//! have theirs).

use std::num::NonZeroUsize;
use std::time::Duration;

use quipu_engine::{SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN, Secret};
use quipu_model::namespace::{
    read_freshness, read_pick, read_settle_every, read_shards, read_token_window, show_pick, show_shards,
};
use quipu_model::{NODE_NAME_BYTES_MAX, ValueForm};
use quipu_server::{HttpHosts, Password};

use super::ServerConfig;
use super::quantity::{read_bytes, read_duration, read_timeout, show_bytes, show_duration, show_timeout};
use crate::backends::StoreUrl;

/// Stands for a secret wherever a configuration is shown.
const SECRET: &str = "***";

/// Most workers. More workers than cores are useless; this is more cores than any machine has, and
/// few enough to start.
const WORKERS_MAX: usize = 1024;

/// Least memory: the need of a server beside its counters.
const MEMORY_BYTES_MIN: u64 = 16_000_000;

/// Least disk: a few segments, the reserve for a seal, and a small ledger.
const DISK_BYTES_MIN: u64 = 64_000_000;

/// Shortest and longest lease, retirement and grace of nodes: a network's worst pause, and a year.
const SHARING_TIME_MIN: Duration = Duration::from_secs(1);
const SHARING_TIME_MAX: Duration = Duration::from_secs(366 * 24 * 3_600);

/// One setting.
pub struct Setting {
    /// Its key in `[server]`.
    pub key: &'static str,
    /// The form of its value.
    pub form: ValueForm,
    /// Its help text.
    pub help: &'static str,
    /// Sets a value, or returns an error for an invalid one.
    pub take: fn(&mut ServerConfig, &str) -> Result<(), String>,
    /// The effective value, in the form of the file.
    pub show: fn(&ServerConfig) -> String,
}

impl Setting {
    /// Its flag, without the dashes in front.
    pub fn flag(&self) -> String {
        self.key.replace(['.', '_'], "-")
    }

    /// Its environment variable.
    pub fn variable(&self) -> String {
        format!("QUIPU_{}", self.key.replace('.', "_").to_uppercase())
    }

    /// The default, for `--help`; `None` if that is empty.
    pub fn default_text(&self) -> Option<String> {
        Some((self.show)(&ServerConfig::default())).filter(|text| !text.is_empty())
    }
}

impl std::fmt::Debug for Setting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.key)
    }
}

/// All settings, in the order of `--help` and `config check`.
pub static SETTINGS: &[Setting] = &[
    Setting {
        key: "data",
        form: ValueForm::Text,
        help: "Data directory; created if missing",
        take: |c, text| {
            if text.is_empty() {
                return Err("the data directory has no name".to_owned());
            }
            assign(&mut c.engine.data, Ok(text.into()))
        },
        show: |c| c.engine.data.display().to_string(),
    },
    Setting {
        key: "resp",
        form: ValueForm::Text,
        help: "Listen address for Redis clients (RESP), as IP:port",
        take: |c, text| assign(&mut c.server.resp, read_address(text)),
        show: |c| c.server.resp.to_string(),
    },
    Setting {
        key: "http",
        form: ValueForm::Text,
        help: "Listen address for HTTP, as IP:port, or off",
        take: |c, text| {
            let http = if text == "off" { Ok(None) } else { read_address(text).map(Some) };
            assign(&mut c.server.http, http)
        },
        show: |c| c.server.http.map_or_else(|| "off".to_owned(), |address| address.to_string()),
    },
    Setting {
        key: "http_hosts",
        form: ValueForm::Text,
        help: "Host names accepted over HTTP without a password, separated by commas; `localhost` and IP addresses need no entry",
        take: |c, text| assign(&mut c.server.http_hosts, HttpHosts::parse(text).map_err(|error| error.to_string())),
        show: |c| c.server.http_hosts.to_string(),
    },
    Setting {
        key: "durability",
        form: ValueForm::Text,
        help: "Meaning of an acknowledgement: durable (synced to disk), relaxed (handed to the OS), memory (applied in memory)",
        take: |c, text| assign(&mut c.engine.durability, text.parse().map_err(|e| format!("{e}"))),
        show: |c| c.engine.durability.to_string(),
    },
    Setting {
        key: "workers",
        form: ValueForm::Number,
        help: "Number of threads that serve connections",
        take: |c, text| {
            let workers = read_count(text)?;
            if workers > WORKERS_MAX {
                return Err(format!("'{text}' is more than {WORKERS_MAX} threads"));
            }
            assign(&mut c.server.workers, Ok(NonZeroUsize::new(workers).unwrap_or(NonZeroUsize::MIN)))
        },
        show: |c| c.server.workers.to_string(),
    },
    Setting {
        key: "password",
        form: ValueForm::Text,
        help: "Password that clients send (RESP: AUTH; HTTP: bearer token). A variable or the file hides it from other users",
        take: |c, text| {
            let password = Password::new(text.as_bytes()).map_err(|e| e.to_string());
            assign(&mut c.server.password, password.map(Some))
        },
        show: |c| c.server.password.as_ref().map_or_else(String::new, |_| SECRET.to_owned()),
    },
    Setting {
        key: "log",
        form: ValueForm::Text,
        help: "Log format on stderr: text, or json (one object per line, including the messages that text mode writes to stdout)",
        take: |c, text| assign(&mut c.log, text.parse()),
        show: |c| c.log.name().to_owned(),
    },
    Setting {
        key: "insecure",
        form: ValueForm::Switch,
        help: "Permission for a listen address that other machines can reach without a password",
        take: |c, text| assign(&mut c.server.insecure, read_switch(text)),
        show: |c| c.server.insecure.to_string(),
    },
    Setting {
        key: "segment_bytes",
        form: ValueForm::Size,
        help: "Size of a journal segment",
        take: |c, text| {
            let bytes = read_bytes(text)?;
            if !(SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&bytes) {
                let (least, most) = (show_bytes(SEGMENT_BYTES_MIN), show_bytes(SEGMENT_BYTES_MAX));
                return Err(format!("{text} is not a length of a segment: from {least} to {most}"));
            }
            assign(&mut c.engine.segment_bytes, Ok(bytes))
        },
        show: |c| show_bytes(c.engine.segment_bytes),
    },
    Setting {
        key: "relaxed_window",
        form: ValueForm::Time,
        help: "Longest time between syncs of relaxed namespaces",
        take: |c, text| assign(&mut c.engine.relaxed_window, read_nonzero(text)),
        show: |c| show_duration(c.engine.relaxed_window),
    },
    Setting {
        key: "journal_bytes_max",
        form: ValueForm::Size,
        help: "Growth of the journal that triggers a seal and a cut",
        take: |c, text| assign(&mut c.engine.journal_bytes_max, read_size(text)),
        show: |c| show_bytes(c.engine.journal_bytes_max),
    },
    Setting {
        key: "seal_every",
        form: ValueForm::Time,
        help: "Longest time from a change to its seal, and greatest age of a memory namespace after a crash",
        take: |c, text| assign(&mut c.engine.seal_every, read_nonzero(text)),
        show: |c| show_duration(c.engine.seal_every),
    },
    Setting {
        key: "token_window",
        form: ValueForm::Time,
        help: "Time in which a mutation with a token can be retried",
        take: |c, text| assign(&mut c.engine.token_window, read_token_window(text)),
        show: |c| show_duration(c.engine.token_window),
    },
    Setting {
        key: "tokens_max",
        form: ValueForm::Number,
        help: "Limit of remembered tokens: about 100 bytes each, at most an eighth of max_memory in all. Beyond it, the server refuses new ones",
        take: |c, text| assign(&mut c.engine.tokens_max, read_count(text)),
        show: |c| c.engine.tokens_max.to_string(),
    },
    Setting {
        key: "producers_max",
        form: ValueForm::Number,
        help: "Limit of producers of sequences (SEQ), which are never forgotten; beyond it, the server refuses new ones",
        take: |c, text| assign(&mut c.engine.producers_max, read_count(text)),
        show: |c| c.engine.producers_max.to_string(),
    },
    Setting {
        key: "max_memory",
        form: ValueForm::Size,
        help: "Memory limit for counters, or off; counters without recent use stay on disk only",
        take: |c, text| {
            let bytes = read_bytes_or_off(text)?;
            if bytes.is_some_and(|bytes| bytes < MEMORY_BYTES_MIN) {
                return Err(format!("{text} is too little to work with: at least {}", show_bytes(MEMORY_BYTES_MIN)));
            }
            assign(&mut c.engine.memory_bytes_max, Ok(bytes))
        },
        show: |c| show_bytes_or_off(c.engine.memory_bytes_max),
    },
    Setting {
        key: "max_disk",
        form: ValueForm::Size,
        help: "Disk limit for journal and ledger, or off; a running seal or merge may exceed it. Beyond it, the server refuses writes",
        take: |c, text| {
            let bytes = read_bytes_or_off(text)?;
            if bytes.is_some_and(|bytes| bytes < DISK_BYTES_MIN) {
                return Err(format!("{text} is too little to work with: at least {}", show_bytes(DISK_BYTES_MIN)));
            }
            assign(&mut c.engine.disk_bytes_max, Ok(bytes))
        },
        show: |c| show_bytes_or_off(c.engine.disk_bytes_max),
    },
    Setting {
        key: "store",
        form: ValueForm::Text,
        help: "URL of the shared store, or off: redis://host:port, redis-cluster://host:port,host:port, postgres://user@host/database",
        take: |c, text| {
            let store = if text == "off" { Ok(None) } else { StoreUrl::new(text).map(Some) };
            assign(&mut c.store, store.map_err(|error| format!("{error:#}")))
        },
        show: |c| c.store.as_ref().map_or_else(|| "off".to_owned(), StoreUrl::to_string),
    },
    Setting {
        key: "node_name",
        form: ValueForm::Text,
        help: "Name of this node in lists of writers, up to 64 printable bytes; without it, host name and RESP port",
        take: |c, text| assign(&mut c.node_name, read_node_name(text).map(Some)),
        show: |c| c.node_name.clone().unwrap_or_default(),
    },
    Setting {
        key: "settle_every",
        form: ValueForm::Time,
        help: "With a shared store: time from a counter's change to its put",
        take: |c, text| assign(&mut c.engine.sharing.settle_every, read_settle_every(text)),
        show: |c| show_duration(c.engine.sharing.settle_every),
    },
    Setting {
        key: "freshness",
        form: ValueForm::Time,
        help: "With a shared store: greatest age of other nodes' values in a reading",
        take: |c, text| assign(&mut c.engine.sharing.freshness, read_freshness(text)),
        show: |c| show_duration(c.engine.sharing.freshness),
    },
    Setting {
        key: "store_secret",
        form: ValueForm::Text,
        help: "With a shared store: secret that uniques of Quipu's form, frequencies and top lists hash items with. Must be equal on all nodes. It keeps clients from choosing items that spoil a sketch. A variable or the file hides it from other users",
        take: |c, text| assign(&mut c.engine.sharing.secret, Ok(Secret(text.to_owned()))),
        show: |c| if c.engine.sharing.secret.0.is_empty() { String::new() } else { SECRET.to_owned() },
    },
    Setting {
        key: "shards",
        form: ValueForm::NumberOrAuto,
        help: "With a shared store: number of cells per counter and writer, or auto",
        take: |c, text| assign(&mut c.shards, read_shards(text)),
        show: |c| show_shards(c.shards),
    },
    Setting {
        key: "pick",
        form: ValueForm::Text,
        help: "With several cells per writer: cell of an add, by writer (always the same), random, hash (of the command's SHARDKEY) or time (current second)",
        take: |c, text| assign(&mut c.engine.sharing.pick, read_pick(text)),
        show: |c| show_pick(c.engine.sharing.pick).to_owned(),
    },
    Setting {
        key: "lease",
        form: ValueForm::Time,
        help: "With a shared store: length of a node's lease; the node renews it several times within that length. Must be equal on all nodes",
        take: |c, text| assign(&mut c.engine.sharing.lease, read_sharing_time(text)),
        show: |c| show_duration(c.engine.sharing.lease),
    },
    Setting {
        key: "retire_after",
        form: ValueForm::Time,
        help: "With a shared store: time from the end of a node's lease until other nodes retire it. Must be equal on all nodes",
        take: |c, text| assign(&mut c.engine.sharing.retire_after, read_sharing_time(text)),
        show: |c| show_duration(c.engine.sharing.retire_after),
    },
    Setting {
        key: "grace",
        form: ValueForm::Time,
        help: "With a shared store: time for which a retired node's late writes, in flight or after its return, are still recognised. Must be equal on all nodes",
        take: |c, text| assign(&mut c.engine.sharing.grace, read_sharing_time(text)),
        show: |c| show_duration(c.engine.sharing.grace),
    },
    Setting {
        key: "audit_every",
        form: ValueForm::Time,
        help: "With a shared store: interval between audits of this node's cells against the store",
        take: |c, text| assign(&mut c.engine.sharing.audit_every, read_sharing_time(text)),
        show: |c| show_duration(c.engine.sharing.audit_every),
    },
    Setting {
        key: "limits.connections",
        form: ValueForm::Number,
        help: "Limit of simultaneous RESP connections",
        take: |c, text| assign(&mut c.server.limits.connections_max, read_count(text)),
        show: |c| c.server.limits.connections_max.to_string(),
    },
    Setting {
        key: "limits.bulk_bytes",
        form: ValueForm::Size,
        help: "Longest argument of a command",
        take: |c, text| assign(&mut c.server.limits.frame.bulk_bytes_max, read_size(text)),
        show: |c| show_bytes(c.server.limits.frame.bulk_bytes_max as u64),
    },
    Setting {
        key: "limits.frame_bytes",
        form: ValueForm::Size,
        help: "Longest command, all arguments included",
        take: |c, text| assign(&mut c.server.limits.frame.frame_bytes_max, read_size(text)),
        show: |c| show_bytes(u64::from(c.server.limits.frame.frame_bytes_max)),
    },
    Setting {
        key: "limits.idle_timeout",
        form: ValueForm::Time,
        help: "Time without a command after which the server closes a connection, or off",
        take: |c, text| {
            let timeout = read_timeout(text)?;
            if timeout.is_some_and(|timeout| timeout.subsec_nanos() != 0) {
                return Err(format!("'{text}' is not a whole number of seconds"));
            }
            assign(&mut c.server.limits.idle_time_max, Ok(timeout))
        },
        show: |c| show_timeout(c.server.limits.idle_time_max),
    },
    Setting {
        key: "limits.write_timeout",
        form: ValueForm::Time,
        help: "Time without a read by the client after which the server closes its connection",
        take: |c, text| assign(&mut c.server.limits.write_time_max, read_nonzero(text)),
        show: |c| show_duration(c.server.limits.write_time_max),
    },
    Setting {
        key: "limits.http_connections",
        form: ValueForm::Number,
        help: "Limit of simultaneous HTTP connections",
        take: |c, text| {
            // As many as a number of RESP connections can be, which no machine reaches.
            let count = read_count::<u32>(text)?;
            assign(&mut c.server.limits.http_connections_max, Ok(count as usize))
        },
        show: |c| c.server.limits.http_connections_max.to_string(),
    },
    Setting {
        key: "limits.http_body_bytes",
        form: ValueForm::Size,
        help: "Largest body of a batch over HTTP",
        take: |c, text| {
            let bytes = read_size::<u32>(text)?;
            assign(&mut c.server.limits.http_body_bytes_max, Ok(bytes as usize))
        },
        show: |c| show_bytes(c.server.limits.http_body_bytes_max as u64),
    },
];

fn assign<T>(field: &mut T, value: Result<T, String>) -> Result<(), String> {
    *field = value?;
    Ok(())
}

fn read_address(text: &str) -> Result<std::net::SocketAddr, String> {
    text.parse().map_err(|_| format!("'{text}' is not an address: write an IP and a port, such as 127.0.0.1:7379"))
}

/// Parses a number of at least 1 that fits.
fn read_count<T: TryFrom<u64>>(text: &str) -> Result<T, String> {
    let count = text.parse::<u64>().ok().filter(|&count| count > 0).and_then(|count| T::try_from(count).ok());
    count.ok_or_else(|| format!("'{text}' is not a number from 1 to {}", max_of::<T>()))
}

/// Parses a size of at least 1 byte that fits.
fn read_size<T: TryFrom<u64>>(text: &str) -> Result<T, String> {
    let bytes = read_bytes(text)?;
    let size = if bytes > 0 { T::try_from(bytes).ok() } else { None };
    size.ok_or_else(|| format!("'{text}' is not a size from 1 byte to {} bytes", max_of::<T>()))
}

/// The greatest number of a type of this width, for messages.
fn max_of<T>() -> u64 {
    u64::MAX >> (64 - 8 * size_of::<T>())
}

fn read_nonzero(text: &str) -> Result<Duration, String> {
    match read_duration(text)? {
        Duration::ZERO => Err(format!("'{text}' is no time at all: at least 1ms")),
        duration => Ok(duration),
    }
}

fn read_node_name(text: &str) -> Result<String, String> {
    match text {
        "" => Err("a node name has at least one character".to_owned()),
        _ if text.len() > NODE_NAME_BYTES_MAX => {
            Err(format!("{} bytes are too many for a node name: up to {NODE_NAME_BYTES_MAX}", text.len()))
        }
        _ if text.chars().any(char::is_control) => Err("a node name has printable characters only".to_owned()),
        _ => Ok(text.to_owned()),
    }
}

fn read_sharing_time(text: &str) -> Result<Duration, String> {
    let time = read_duration(text)?;
    if !(SHARING_TIME_MIN..=SHARING_TIME_MAX).contains(&time) {
        let (least, most) = (show_duration(SHARING_TIME_MIN), show_duration(SHARING_TIME_MAX));
        return Err(format!("{text} is not a time that nodes can go by: from {least} to {most}"));
    }
    Ok(time)
}

fn read_bytes_or_off(text: &str) -> Result<Option<u64>, String> {
    if text == "off" { Ok(None) } else { read_bytes(text).map(Some) }
}

fn show_bytes_or_off(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "off".to_owned(), show_bytes)
}

fn read_switch(text: &str) -> Result<bool, String> {
    match text {
        "true" | "1" | "yes" | "on" => Ok(true),
        "false" | "0" | "no" | "off" => Ok(false),
        _ => Err(format!("'{text}' is not true or false")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_name_has_three_spellings() {
        let setting = SETTINGS.iter().find(|setting| setting.key == "limits.bulk_bytes").unwrap();
        assert_eq!(setting.flag(), "limits-bulk-bytes");
        assert_eq!(setting.variable(), "QUIPU_LIMITS_BULK_BYTES");
    }

    #[test]
    fn every_default_is_accepted_when_it_is_written_down() {
        for setting in SETTINGS {
            let Some(text) = setting.default_text() else { continue };
            let mut configuration = ServerConfig::default();
            assert_eq!((setting.take)(&mut configuration, &text), Ok(()), "{}", setting.key);
            assert_eq!((setting.show)(&configuration), text, "{}", setting.key);
        }
    }

    #[test]
    fn bounds_are_kept() {
        for (key, text) in [
            ("data", ""),
            ("resp", "localhost"),
            ("http", "7380"),
            ("http_hosts", "quipu:7380"),
            ("http_hosts", "*"),
            ("durability", "Durable"),
            ("workers", "0"),
            ("workers", "two"),
            ("workers", "1025"),
            ("password", ""),
            ("insecure", "maybe"),
            ("log", "JSON"),
            ("segment_bytes", "4095"),
            ("segment_bytes", "2GiB"),
            ("limits.http_connections", "18446744073709551615"),
            ("max_memory", "1MB"),
            ("max_disk", "1MB"),
            ("max_disk", "much"),
            ("relaxed_window", "0ms"),
            ("settle_every", "9ms"),
            ("settle_every", "61m"),
            ("freshness", "3601s"),
            ("shards", "0"),
            ("shards", "65"),
            ("shards", "Auto"),
            ("pick", "any"),
            ("store", "memory://"),
            ("store", "redis"),
            ("lease", "1ms"),
            ("grace", "400d"),
            ("limits.connections", "4294967296"),
            ("limits.frame_bytes", "4GiB"),
            ("limits.idle_timeout", "1500ms"),
        ] {
            let setting = SETTINGS.iter().find(|setting| setting.key == key).unwrap();
            let mut configuration = ServerConfig::default();
            assert!((setting.take)(&mut configuration, text).is_err(), "{key} = {text}");
            assert_eq!((setting.show)(&configuration), (setting.show)(&ServerConfig::default()), "{key} = {text}");
        }
    }

    #[test]
    fn a_secret_is_never_shown() {
        for key in ["password", "store_secret"] {
            let setting = SETTINGS.iter().find(|setting| setting.key == key).unwrap();
            let mut configuration = ServerConfig::default();
            (setting.take)(&mut configuration, "hunter2").unwrap();
            assert_eq!((setting.show)(&configuration), SECRET);
            assert!(!format!("{configuration:?}").contains("hunter2"), "{key}");
        }
    }
}
