//! `quipu bench`: measures the speed of this server on this machine, optionally beside Redis.
//!
//! In: modes, keys and pipelines. Out: throughput, latency and CPU time per operation of each
//! setting, and ratios.
//!
//! The path of one figure: `commands` builds commands, and a `crowd` drives them through a server
//! (`peers`) on a core of its own (`cores`). `measure` takes samples, `figures` computes their
//! medians, and `report` prints these.
//!
//! Not here: the required ratios (`cargo xtask bench bars`).
//!
//! Invariants:
//! - two servers are measured in turn, never at once, and as close together as possible: one, the
//!   other, one, the other;
//! - the sum in the end contains every add that was answered, or the bench fails: a server that
//!   loses adds is not fast.

mod commands;
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
mod report;

use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use quipu_model::Durability;
use tempfile::TempDir;

pub use self::commands::Verb;
use self::commands::{Commands, name};
use self::cores::Cores;
use self::crowd::Crowd;
use self::figures::{AckAccount, BenchSetting, Series};
pub use self::floor::floor;
use self::measure::{Load, Measurement, fill, measure};
use self::peers::{Peer, PeerServer, Start, redis_version};
use self::plot::plot;
use self::report::BenchReport;
use self::stop::StopFlag;
use crate::args;
use crate::progress::Progress;
use crate::resp_client::{RespClient, Value, reply_count};

/// Length of the warm-up, as a fraction of the measurement; at least [`WARM_UP_MIN`].
const WARM_UP_PART: f64 = 0.25;

/// Long enough for socket buffers to grow and for a table to be in the cache.
const WARM_UP_MIN: Duration = Duration::from_millis(20);

/// Keys per request when the bench sums up the values.
const LOOK_KEYS: usize = 1000;

/// Measures, and prints the report.
pub fn bench(flags: &args::BenchArgs, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let stop = StopFlag::listen()?;
    let redis = flags.with_redis.then(redis_version).transpose()?;
    let mut bench = BenchRun { flags, stop, cores: None, series: Vec::new(), accounts: Vec::new(), notes: Vec::new() };
    match &flags.server {
        Some(server) => bench.given(server)?,
        None => bench.private()?,
    }
    let BenchRun { cores, series, accounts, notes, .. } = bench;
    if let Some(file) = &flags.plot {
        let title = format!("{}, {} connections, one server core", flags.command.name(), flags.connections);
        std::fs::write(file, plot(&series, &title)).with_context(|| format!("write {}", file.display()))?;
    }
    let report = BenchReport { redis, pinned: cores.is_some(), notes, series, accounts };
    if flags.json {
        writeln!(out, "{}", report.json(flags))?;
    } else {
        report.print(flags, out)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A bench under way.
struct BenchRun<'a> {
    flags: &'a args::BenchArgs,
    stop: StopFlag,
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
    fn private(&mut self) -> anyhow::Result<()> {
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
        let progress = self.progress(self.flags.modes.len() * peers.len());
        for &mode in &self.flags.modes {
            for &keys in &self.flags.keys {
                // A directory per round, so that its files are gone before the next round.
                let home = tempfile::tempdir_in(dir.path()).context("make a directory for a server")?;
                let mut subjects = Vec::with_capacity(peers.len());
                for &peer in &peers {
                    progress.set_message(format!("{} starts, {mode}", peer.name()));
                    let redis_module = self.flags.redis_module.as_deref();
                    let how = Start { mode, verb: self.flags.command, redis_module, cores: self.cores };
                    let server = PeerServer::start(peer, how, home.path(), &self.stop)?;
                    let crowd = Crowd::connect(server.address, self.flags.connections, None)?;
                    let (address, pid) = (server.address, Some(server.pid()));
                    subjects.push(Subject { peer, crowd, server: Some(server), address, pid, acknowledged: 0 });
                }
                self.round(Some(mode), keys, &mut subjects, &progress)?;
            }
        }
        Ok(())
    }

    /// Measures a server that runs already.
    fn given(&mut self, server: &str) -> anyhow::Result<()> {
        // Reports an unreachable server or a wrong password in plain words.
        let address = RespClient::connect(server, self.flags.password.as_deref())?.server()?;
        let greeting = self
            .flags
            .password
            .as_ref()
            .map(|password| format!("*2\r\n$4\r\nAUTH\r\n${}\r\n{password}\r\n", password.len()).into_bytes());
        let progress = self.progress(1);
        for &keys in &self.flags.keys {
            let crowd = Crowd::connect(address, self.flags.connections, greeting.as_deref())?;
            let subject =
                Subject { peer: Peer::Quipu, crowd, server: None, address, pid: self.flags.pid, acknowledged: 0 };
            self.round(None, keys, &mut [subject], &progress)?;
        }
        Ok(())
    }

    /// Measures all pipelines and repetitions on one number of keys.
    fn round(
        &mut self,
        mode: Option<Durability>,
        keys: usize,
        subjects: &mut [Subject],
        progress: &Progress,
    ) -> anyhow::Result<()> {
        let flags = self.flags;
        let pipeline_max = flags.pipelines.iter().copied().max().unwrap_or(1);
        let adds = Commands::new(Verb::Incr, keys, pipeline_max);
        let shown = mode.map_or_else(String::new, |mode| format!(", {mode}"));
        for subject in subjects.iter_mut().filter(|subject| subject.peer != Peer::Floor) {
            progress.set_message(format!("{} makes its keys: {keys}{shown}", subject.peer.name()));
            let filled = fill(&mut subject.crowd, &adds, &self.stop);
            subject.acknowledged += subject.explain_error(filled)?;
            if let Some(words) = flags.command.begin() {
                let begun = begin(subject.address, words, flags.password.as_deref());
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

    fn progress(&self, servers: usize) -> Progress {
        let flags = self.flags;
        let steps = servers * flags.keys.len() * flags.pipelines.len() * flags.repetitions;
        Progress::for_steps("starting", steps as u64)
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
fn begin(address: SocketAddr, words: &[&str], password: Option<&str>) -> anyhow::Result<()> {
    let mut client = RespClient::connect(&address.to_string(), password)?;
    let bytes: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
    let begun = client.call(&bytes).map(drop);
    begun.with_context(|| {
        format!("run {}, for which redis-server needs a module: name it with --redis-module", words[0])
    })
}

/// The sum of all keys.
fn sum(address: SocketAddr, keys: usize, stop: &StopFlag) -> anyhow::Result<u64> {
    let mut client = RespClient::connect(&address.to_string(), None)?;
    let mut sum = 0;
    for first in (0..keys).step_by(LOOK_KEYS) {
        stop.check()?;
        let names: Vec<String> = (first..keys.min(first + LOOK_KEYS)).map(name).collect();
        let words: Vec<&[u8]> = std::iter::once(&b"MGET"[..]).chain(names.iter().map(String::as_bytes)).collect();
        let Value::Array(values) = client.call(&words)? else { bail!("MGET was not answered with a list") };
        for value in values {
            sum += u64::try_from(reply_count(&value)?).context("a key counts less than nothing")?;
        }
    }
    Ok(sum)
}
