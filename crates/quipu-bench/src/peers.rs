//! Starts private servers on free ports in a temporary directory, on one core, and ends them in
//! every case.
//!
//! Invariants:
//! - a server that is dropped has ended;
//! - nothing of the user's environment changes how Quipu is started.

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use clap::ValueEnum;
use quipu_model::Durability;

use crate::commands::Verb;
use crate::cores::Cores;
use crate::crowd::now;
use crate::floor::READY_MARK as FLOOR_READY_MARK;
use crate::stop::StopFlag;

/// Most time for a start: both servers begin with an empty directory.
const READY_TIMEOUT: Duration = Duration::from_secs(30);

/// Most time for a server that has closed its connections to end.
const END_TIME_MAX: Duration = Duration::from_millis(200);

/// Poll interval while a server starts or ends.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Most bytes of a server's log that an error repeats.
const LOG_BYTES_MAX: usize = 2000;

/// Mark before the address in Quipu's output once it serves.
const READY_MARK: &str = "resp://";

/// Redis's line in its log once it serves.
const REDIS_READY_MARK: &str = "Ready to accept connections";

/// Attempts to start a server before a taken port is an error.
const STARTS_MAX: usize = 5;

/// Redis's line in its log if the port is taken.
const PORT_TAKEN: &str = "Address already in use";

/// The program that is measured beside Quipu.
const REDIS: &str = "redis-server";

/// A program to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// This program.
    Quipu,
    /// Redis, in the persistence mode with the promise of Quipu's mode, or the next weaker one.
    Redis,
    /// Sockets alone.
    Floor,
}

/// The options of a private server.
#[derive(Debug, Clone, Copy)]
pub struct Start<'a> {
    /// The durability of its acks.
    pub mode: Durability,
    /// The command that it will receive.
    pub verb: Verb,
    /// A module, for Redis.
    pub redis_module: Option<&'a Path>,
    /// The cores of the server and the load.
    pub cores: Option<Cores>,
}

impl Peer {
    /// Its name in tables and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Peer::Quipu => "quipu",
            Peer::Redis => "redis",
            Peer::Floor => "floor",
        }
    }
}

/// A private server.
pub struct PeerServer {
    child: Child,
    log: PathBuf,
    /// Its address.
    pub address: SocketAddr,
}

impl PeerServer {
    /// Starts a server in this directory and waits until it answers.
    pub fn start(peer: Peer, how: Start<'_>, dir: &Path, stop: &StopFlag) -> anyhow::Result<PeerServer> {
        let home = dir.join(peer.name());
        std::fs::create_dir_all(&home).with_context(|| format!("make {}", home.display()))?;
        let mut attempts = 1;
        loop {
            let mut server = PeerServer::spawn(peer, how, &home)?;
            match server.wait_until_ready(peer, stop) {
                Err(_) if attempts < STARTS_MAX && server.last_words().contains(PORT_TAKEN) => attempts += 1,
                waited => return waited.map(|()| server),
            }
        }
    }

    fn spawn(peer: Peer, how: Start<'_>, home: &Path) -> anyhow::Result<PeerServer> {
        let address = free_address().context("find a free port")?;
        let mut command = match peer {
            Peer::Quipu => quipu(how.mode, home)?,
            Peer::Redis => redis(how.mode, home, address),
            Peer::Floor => floor(how.verb, address)?,
        };
        if let (Peer::Redis, Some(module)) = (peer, how.redis_module) {
            command.arg("--loadmodule").arg(module);
        }
        let log = home.join("log");
        let written = File::create(&log).with_context(|| format!("make {}", log.display()))?;
        // In a process group of its own: Ctrl-C on a terminal ends this program, which then ends
        // the server.
        command.process_group(0).stdin(Stdio::null()).stderr(written.try_clone()?).stdout(written);
        let spawned = match how.cores {
            Some(cores) => cores.on_server_core(|| command.spawn()).context("move to a core")?,
            None => command.spawn(),
        };
        let child = spawned.map_err(|error| not_started(peer, &error))?;
        Ok(PeerServer { child, log, address })
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Adds the end of the log to an error if the server has ended, since that may be the cause.
    pub fn explain(&mut self, error: anyhow::Error) -> anyhow::Error {
        let began = now();
        // A process closes its connections shortly before it has ended.
        while began.elapsed() < END_TIME_MAX {
            if let Ok(Some(status)) = self.child.try_wait() {
                return anyhow!("{error:#}; the server has ended ({status}):\n{}", self.last_words());
            }
            thread::sleep(LOOK_EVERY);
        }
        error
    }

    fn wait_until_ready(&mut self, peer: Peer, stop: &StopFlag) -> anyhow::Result<()> {
        let began = now();
        loop {
            stop.check()?;
            let log = std::fs::read_to_string(&self.log).unwrap_or_default();
            let serves_at = match peer {
                Peer::Quipu => address_in(&log, READY_MARK),
                Peer::Floor => address_in(&log, FLOOR_READY_MARK),
                // Not by a request: another server could answer at this port.
                Peer::Redis => log.contains(REDIS_READY_MARK).then_some(self.address),
            };
            if let Some(address) = serves_at {
                self.address = address;
                return Ok(());
            }
            if let Some(status) = self.child.try_wait().context("look after a server")? {
                bail!("{} ended ({status}) before it served:\n{}", peer.name(), self.last_words());
            }
            if began.elapsed() > READY_TIMEOUT {
                bail!("{} did not serve within {} s:\n{}", peer.name(), READY_TIMEOUT.as_secs(), self.last_words());
            }
            thread::sleep(LOOK_EVERY);
        }
    }

    fn last_words(&self) -> String {
        let log = std::fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(&log[log.len().saturating_sub(LOG_BYTES_MAX)..]).trim_end().to_owned()
    }
}

impl Drop for PeerServer {
    /// At once: its counts are thrown away anyhow.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The version of the installed Redis, or an error that says how to install it.
pub fn redis_version() -> anyhow::Result<String> {
    let output = Command::new(REDIS).arg("--version").output().map_err(|error| not_started(Peer::Redis, &error))?;
    // Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64 build=…
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let version = text.split_whitespace().find_map(|word| word.strip_prefix("v="));
    version.map(str::to_owned).with_context(|| format!("{REDIS} --version says {text:?}"))
}

fn quipu(mode: Durability, home: &Path) -> anyhow::Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("find this program")?);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("QUIPU_") {
            command.env_remove(name);
        }
    }
    command.args(["serve", "--http", "off", "--workers", "1", "--durability", mode.name()]);
    command.args(["--resp", "127.0.0.1:0", "--data"]).arg(home.join("data"));
    Ok(command)
}

fn floor(verb: Verb, address: SocketAddr) -> anyhow::Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("find this program")?);
    let verb = verb.to_possible_value().context("a command has a name")?;
    command.args(["bench-floor", verb.get_name(), &address.to_string()]);
    Ok(command)
}

fn redis(mode: Durability, home: &Path, address: SocketAddr) -> Command {
    let (append, sync) = match mode {
        Durability::Memory => ("no", "no"),
        Durability::Relaxed => ("yes", "everysec"),
        Durability::Durable => ("yes", "always"),
    };
    let mut command = Command::new(REDIS);
    command.args(["--bind", &address.ip().to_string(), "--port", &address.port().to_string(), "--save", ""]);
    command.args(["--appendonly", append, "--appendfsync", sync, "--auto-aof-rewrite-percentage", "0", "--dir"]);
    command.arg(home);
    command
}

fn not_started(peer: Peer, error: &io::Error) -> anyhow::Error {
    match (peer, error.kind()) {
        (Peer::Redis, io::ErrorKind::NotFound) => anyhow!(
            "--with-redis needs {REDIS} on the PATH, and there is none: install it (Debian: apt-get install redis-server; \
             Fedora: dnf install redis; macOS: brew install redis) or leave the flag out"
        ),
        _ => anyhow!("cannot start {}: {error}", peer.name()),
    }
}

/// The address behind a mark, once the line is whole.
fn address_in(log: &str, mark: &str) -> Option<SocketAddr> {
    let (_, behind) = log.split_once(mark)?;
    let (line, _) = behind.split_once('\n')?;
    line.split_whitespace().next()?.parse().ok()
}

/// A port that was free just now.
fn free_address() -> io::Result<SocketAddr> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_known_once_its_line_is_whole() {
        let log = "quipu 0.1.0\n  found  nothing\n  ready  resp://127.0.0.1:4711 http://127.0.0.1:4712\n";
        assert_eq!(address_in(log, READY_MARK), Some(SocketAddr::from(([127, 0, 0, 1], 4711))));
        assert_eq!(address_in("  ready  resp://127.0.0.1:47", READY_MARK), None);
        assert_eq!(address_in("quipu 0.1.0\n", READY_MARK), None);
    }
}
