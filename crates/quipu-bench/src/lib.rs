//! `quipu bench` without its output: measures the speed of this server on this machine, optionally
//! beside Redis.
//!
//! In: modes, keys and pipelines. Out: throughput, latency and CPU time per operation of each
//! setting, ratios, and a chart.
//!
//! The path of one figure: `commands` builds commands, and a `crowd` drives them through a server
//! (`peers`) on a core of its own (`cores`). `measure` takes samples, `figures` computes their
//! medians, and `plot` draws these.
//!
//! A private server is the running program, started again: as `serve`, or as `bench-floor`, which
//! calls [`floor`].
//!
//! Not here: tables and JSON (the crate `quipu`), the required ratios (`cargo xtask bench bars`).
//!
//! Invariants:
//! - two servers are measured in turn, never at once, and as close together as possible: one, the
//!   other, one, the other;
//! - the sum in the end contains every add that was answered, or the bench fails: a server that
//!   loses adds is not fast.

mod args;
mod commands;
mod control;
mod cores;
mod crowd;
mod latency;
mod replies;
mod stop;

mod measure;
mod peers;

mod figures;
mod floor;
mod plot;

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use quipu_model::Durability;
use quipu_protocol::resp::Value;
use tempfile::TempDir;

pub use crate::args::{BenchArgs, EXAMPLES, FloorArgs};
pub use crate::commands::Verb;
use crate::commands::{Commands, name};
use crate::control::{ControlConnection, greeting};
use crate::cores::Cores;
use crate::crowd::Crowd;
pub use crate::figures::{AckAccount, BenchSetting, Ratio, Series, grouped, micros, rounded};
pub use crate::floor::floor;
pub use crate::measure::Measurement;
use crate::measure::{Load, fill, measure};
pub use crate::peers::Peer;
use crate::peers::{PeerServer, Start, redis_version};
use crate::stop::StopFlag;

/// Length of the warm-up, as a fraction of the measurement; at least [`WARM_UP_MIN`].
const WARM_UP_PART: f64 = 0.25;

/// Long enough for socket buffers to grow and for a table to be in the cache.
const WARM_UP_MIN: Duration = Duration::from_millis(20);

/// Keys per request when the bench sums up the values.
const LOOK_KEYS: usize = 1000;

/// Display of a bench under way.
pub trait BenchProgress {
    /// Shows the present step.
    fn set_message(&self, message: String);
    /// Adds to the steps done.
    fn add(&self, steps: u64);
}

/// The results of a bench.
pub struct BenchReport {
    /// Every setting of every server.
    pub series: Vec<Series>,
    /// The acknowledged adds of each server, and the sums found afterwards.
    pub accounts: Vec<AckAccount>,
    /// The version of Redis, if it was measured.
    pub redis: Option<String>,
    /// True if server and load had a core each.
    pub pinned: bool,
    /// Warnings to read before the figures.
    pub notes: Vec<String>,
}

impl BenchReport {
    /// All ratios: one for each setting in which both servers were measured.
    pub fn ratios(&self) -> Vec<Ratio> {
        figures::ratios(&self.series)
    }

    /// A chart of the time per operation over the commands in flight, as SVG.
    pub fn chart(&self, flags: &BenchArgs) -> String {
        let title = format!("{}, {} connections, one server core", flags.command.name(), flags.connections);
        plot::plot(&self.series, &title)
    }
}

/// Measures private servers, or `running`: the server that `--server` names.
pub fn bench(
    flags: &BenchArgs,
    running: Option<SocketAddr>,
    progress: &dyn BenchProgress,
) -> anyhow::Result<BenchReport> {
    let stop = StopFlag::listen()?;
    let redis = flags.with_redis.then(redis_version).transpose()?;
    let greeting = flags.password.as_deref().map(greeting);
    let mut bench = BenchRun {
        flags,
        progress,
        stop,
        greeting,
        cores: None,
        series: Vec::new(),
        accounts: Vec::new(),
        notes: Vec::new(),
    };
    match running {
        Some(address) => bench.measure_running(address)?,
        None => bench.measure_private()?,
    }
    let BenchRun { cores, series, accounts, notes, .. } = bench;
    Ok(BenchReport { redis, pinned: cores.is_some(), notes, series, accounts })
}

/// A bench under way.
struct BenchRun<'a> {
    flags: &'a BenchArgs,
    progress: &'a dyn BenchProgress,
    stop: StopFlag,
    /// The command that sends the password to a running server.
    greeting: Option<Vec<u8>>,
    cores: Option<Cores>,
    series: Vec<Series>,
    accounts: Vec<AckAccount>,
    notes: Vec<String>,
}

/// A server under measurement.
struct Subject {
    peer: Peer,
    /// Declared before the server: connections close first.
    crowd: Crowd,
    server: Option<PeerServer>,
    address: SocketAddr,
    pid: Option<u32>,
    acknowledged: u64,
}

impl BenchRun<'_> {
    /// Measures private servers, mode by mode.
    fn measure_private(&mut self) -> anyhow::Result<()> {
        let mut peers = vec![Peer::Quipu];
        if self.flags.with_floor {
            peers.insert(0, Peer::Floor);
        }
        if self.flags.with_redis {
            peers.insert(0, Peer::Redis);
        }
        self.cores = Cores::find();
        match self.cores {
            Some(cores) => cores.take_load_core().context("move to a core")?,
            None => self.notes.push("one core: server and load share it, nothing is pinned".to_owned()),
        }
        let dir = self.directory()?;
        if is_memory(dir.path()) && self.flags.modes.iter().any(|&mode| mode != Durability::Memory) {
            let note = "is in memory: figures of durable and relaxed are not those of a disk; name one with --dir";
            self.notes.push(format!("{} {note}", dir.path().parent().unwrap_or(dir.path()).display()));
        }
        for &mode in &self.flags.modes {
            for &keys in &self.flags.keys {
                // A directory per round, so that its files are gone before the next round.
                let home = tempfile::tempdir_in(dir.path()).context("make a directory for a server")?;
                let mut subjects = Vec::with_capacity(peers.len());
                for &peer in &peers {
                    self.progress.set_message(format!("{} starts, {mode}", peer.name()));
                    let redis_module = self.flags.redis_module.as_deref();
                    let how = Start { mode, verb: self.flags.command, redis_module, cores: self.cores };
                    let server = PeerServer::start(peer, how, home.path(), &self.stop)?;
                    let crowd = Crowd::connect(server.address, self.flags.connections, None)?;
                    let (address, pid) = (server.address, Some(server.pid()));
                    subjects.push(Subject { peer, crowd, server: Some(server), address, pid, acknowledged: 0 });
                }
                self.round(Some(mode), keys, &mut subjects)?;
            }
        }
        Ok(())
    }

    /// Measures a server that runs already.
    fn measure_running(&mut self, address: SocketAddr) -> anyhow::Result<()> {
        for &keys in &self.flags.keys {
            let crowd = Crowd::connect(address, self.flags.connections, self.greeting.as_deref())?;
            let subject =
                Subject { peer: Peer::Quipu, crowd, server: None, address, pid: self.flags.pid, acknowledged: 0 };
            self.round(None, keys, &mut [subject])?;
        }
        Ok(())
    }

    /// Measures all pipelines and repetitions on one number of keys.
    fn round(&mut self, mode: Option<Durability>, keys: usize, subjects: &mut [Subject]) -> anyhow::Result<()> {
        let BenchRun { flags, progress, .. } = *self;
        let pipeline_max = flags.pipelines.iter().copied().max().unwrap_or(1);
        let adds = Commands::new(Verb::Incr, keys, pipeline_max);
        let shown = mode.map_or_else(String::new, |mode| format!(", {mode}"));
        for subject in subjects.iter_mut().filter(|subject| subject.peer != Peer::Floor) {
            progress.set_message(format!("{} makes its keys: {keys}{shown}", subject.peer.name()));
            let filled = fill(&mut subject.crowd, &adds, &self.stop);
            subject.acknowledged += subject.explain_error(filled)?;
            if let Some(words) = flags.command.begin() {
                let begun = begin(subject.address, words, self.greeting.as_deref());
                subject.explain_error(begun)?;
            }
        }
        let commands = match flags.command {
            Verb::Incr => adds,
            verb => Commands::new(verb, keys, pipeline_max),
        };
        let settings = flags.pipelines.iter().map(|&pipeline| BenchSetting { mode, keys, pipeline });
        let mut round: Vec<Series> = settings
            .flat_map(|setting| subjects.iter().map(move |subject| (setting, subject.peer)))
            .map(|(setting, peer)| Series { setting, peer, samples: Vec::new() })
            .collect();
        let length = Duration::from_secs_f64(flags.seconds);
        for _ in 0..flags.repetitions {
            for series in &mut round {
                let Series { setting, peer, samples } = series;
                progress.set_message(format!("{}, keys: {keys}, in flight: {}{shown}", peer.name(), setting.pipeline));
                let subject =
                    subjects.iter_mut().find(|subject| subject.peer == *peer).expect("a series has a subject");
                let load = Load {
                    commands: &commands,
                    pipeline: setting.pipeline,
                    warm_up: length.mul_f64(WARM_UP_PART).max(WARM_UP_MIN),
                    length,
                };
                let sample = measure(&mut subject.crowd, &load, subject.pid, &self.stop);
                let sample: Measurement = subject.explain_error(sample)?;
                if flags.command == Verb::Incr {
                    subject.acknowledged += sample.acknowledged;
                }
                samples.push(sample);
                progress.add(1);
            }
        }
        self.series.append(&mut round);
        for subject in subjects.iter_mut().filter(|subject| subject.peer != Peer::Floor) {
            progress.set_message(format!("{} is checked, keys: {keys}{shown}", subject.peer.name()));
            self.accounts.push(subject.account(mode, keys, &self.stop)?);
        }
        Ok(())
    }

    fn directory(&self) -> anyhow::Result<TempDir> {
        let parent = self.flags.dir.clone().unwrap_or_else(std::env::temp_dir);
        let made = tempfile::Builder::new().prefix("quipu-bench-").tempdir_in(&parent);
        made.with_context(|| format!("make a directory in {}", parent.display()))
    }
}

impl Subject {
    /// Passes `result` on; adds the last lines of the server's log to an error.
    fn explain_error<T>(&mut self, result: anyhow::Result<T>) -> anyhow::Result<T> {
        result.map_err(|error| match &mut self.server {
            Some(server) => server.explain(error).context(format!("measure {}", self.peer.name())),
            None => error,
        })
    }

    /// Compares the acknowledged adds with the values. A server that is not ours may have had keys
    /// before, and other clients.
    fn account(&mut self, mode: Option<Durability>, keys: usize, stop: &StopFlag) -> anyhow::Result<AckAccount> {
        let (peer, acknowledged) = (self.peer, self.acknowledged);
        let mut account = AckAccount { peer, mode, keys, acknowledged, found: None };
        if self.server.is_some() {
            let summed = sum(self.address, keys, stop);
            let found = self.explain_error(summed)?;
            account.found = Some(found);
            if found != acknowledged {
                bail!("{} answered {acknowledged} adds and has counted {found}", peer.name());
            }
        }
        Ok(account)
    }
}

/// Returns true if a directory is on a file system without a disk, where a sync does nothing.
#[cfg(target_os = "linux")]
fn is_memory(dir: &Path) -> bool {
    // The kernel's number of tmpfs. The type of the field differs between machines.
    rustix::fs::statfs(dir).is_ok_and(|stat| stat.f_type == 0x0102_1994)
}

/// Other systems have no such check.
#[cfg(not(target_os = "linux"))]
fn is_memory(_dir: &Path) -> bool {
    false
}

/// Creates the sketch of the commands.
fn begin(address: SocketAddr, words: &[&str], greeting: Option<&[u8]>) -> anyhow::Result<()> {
    let mut client = ControlConnection::open(address, greeting)?;
    let bytes: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
    let begun = client.call(&bytes).map(drop);
    begun.with_context(|| {
        format!("run {}, for which redis-server needs a module: name it with --redis-module", words[0])
    })
}

/// The sum of all keys.
fn sum(address: SocketAddr, keys: usize, stop: &StopFlag) -> anyhow::Result<u64> {
    let mut client = ControlConnection::open(address, None)?;
    let mut sum = 0;
    for first in (0..keys).step_by(LOOK_KEYS) {
        stop.check()?;
        let names: Vec<String> = (first..keys.min(first + LOOK_KEYS)).map(name).collect();
        let words: Vec<&[u8]> = std::iter::once(&b"MGET"[..]).chain(names.iter().map(String::as_bytes)).collect();
        let Value::Array(values) = client.call(&words)? else { bail!("MGET was not answered with a list") };
        for value in values {
            // A key that does not exist counts nothing.
            let count = if value == Value::Null { Some(0) } else { value.number() };
            let count = count.with_context(|| format!("the server sent {value:?} for a count"))?;
            sum += u64::try_from(count).context("a key counts less than nothing")?;
        }
    }
    Ok(sum)
}
