//! `quipu serve`: opens the engine, serves until a signal, closes.
//!
//! Invariants:
//! - nothing is opened while the configuration has a mistake;
//! - the line with `resp://` is written once, when clients are answered and a signal would stop
//!   cleanly; with `--log json` it is an event;
//! - exit status 0 means that everything acknowledged is durable, in every mode.

use std::io::Write;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use quipu_engine::{Engine, Environment, StoreHealth};
use quipu_model::NODE_NAME_BYTES_MAX;
use quipu_server::Addresses;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::{error, info, warn};

use crate::args::ServeArgs;
use crate::backends::StoreUrl;
use crate::config::check::print_mistakes;
use crate::config::{EffectiveConfig, ServerConfig};
use crate::log::LogFormat;
use crate::terminal;

/// Most time that a start waits for its store's first answer, for the banner.
const PROBE_WAIT_MAX: Duration = Duration::from_secs(1);

/// Serves until SIGTERM, SIGINT or SIGHUP.
pub fn serve(flags: &ServeArgs, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let effective = EffectiveConfig::resolve(flags);
    if !effective.mistakes.is_empty() {
        print_mistakes(&effective);
        return Ok(ExitCode::FAILURE);
    }
    let configuration = effective.configuration;
    let log = configuration.log;
    log.install();
    match (log, run(configuration, out)) {
        (_, Ok(())) => Ok(ExitCode::SUCCESS),
        (LogFormat::Text, Err(error)) => Err(error),
        (LogFormat::Json, Err(error)) => {
            error!(reason = crate::chain::one_line(&error), "the server has ended");
            Ok(ExitCode::FAILURE)
        }
    }
}

fn run(configuration: ServerConfig, out: &mut impl Write) -> anyhow::Result<()> {
    let ServerConfig { engine: options, mut server, log, store, node_name, .. } = configuration;
    server.store = store.as_ref().map(ToString::to_string);
    let location = DataLocation { data: options.data.display().to_string(), store, node_name };
    // Before the directory: a start that fails here leaves none behind.
    let addresses = Addresses::reserve(server)?;
    let store = location.store.as_ref().map(StoreUrl::open).transpose()?;
    let environment = Environment { store, ..Environment::system() };
    // The error is complete, and `inspect` shares its words.
    let opened = Engine::open_with_threads(options, environment);
    let engine = opened.map_err(|error| anyhow!("cannot open {}: {error}", location.data))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("start a runtime")?;
    let served = runtime.block_on(serve_clients(&engine, addresses, &location, log, out));
    // Also if it never served: a directory that was opened is closed cleanly.
    engine.close().context("close the journal")?;
    served?;
    let stopped = "stopped; everything acknowledged is durable";
    match log {
        LogFormat::Text => print_line(out, stopped),
        LogFormat::Json => info!("{stopped}"),
    }
    Ok(())
}

async fn serve_clients(
    engine: &Engine,
    addresses: Addresses,
    location: &DataLocation,
    log: LogFormat,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let server = addresses.listen(engine.clone())?;
    if let Some(sharing) = engine.sharing() {
        let port = server.resp_addr().port();
        sharing.set_node_name(&location.node_name.clone().unwrap_or_else(|| default_node_name(port)));
    }
    let mut stop = StopSignals::new().context("listen for signals")?;
    wait_for_probe(engine).await;
    if let Some(problem) = engine.sharing().and_then(|sharing| sharing.store_problems().into_iter().next()) {
        bail!("cannot use the shared store: {problem}");
    }
    match log {
        LogFormat::Text => print_line(out, &banner(engine, location, server.resp_addr(), server.http_addr())),
        LogFormat::Json => log_start(engine, location, server.resp_addr(), server.http_addr()),
    }
    server.run(stop.wait()).await?;
    Ok(())
}

/// Waits until the engine knows whether its store is reachable, and if not, why; [`PROBE_WAIT_MAX`]
/// at most.
async fn wait_for_probe(engine: &Engine) {
    let probed = async {
        while engine.sharing().is_some_and(|sharing| sharing.health() == StoreHealth::Unknown) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let _ = tokio::time::timeout(PROBE_WAIT_MAX, probed).await;
}

fn reaches_store(engine: &Engine) -> Option<bool> {
    engine.sharing().map(|sharing| sharing.health() == StoreHealth::Reachable)
}

/// The locations of the counters.
struct DataLocation {
    data: String,
    store: Option<StoreUrl>,
    node_name: Option<String>,
}

/// The machine's name, cut to fit, and the port.
fn default_node_name(port: u16) -> String {
    let system = rustix::system::uname();
    let mut name: String = system.nodename().to_string_lossy().chars().filter(|letter| !letter.is_control()).collect();
    while name.len() + ":65535".len() > NODE_NAME_BYTES_MAX {
        name.pop();
    }
    format!("{name}:{port}")
}

/// The signals that request a stop.
struct StopSignals {
    term: Signal,
    int: Signal,
    /// `None` if the program was started to ignore it, as by `nohup`.
    hup: Option<Signal>,
}

impl StopSignals {
    fn new() -> std::io::Result<StopSignals> {
        let (term, int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let hup = if is_hangup_ignored() { None } else { Some(signal(SignalKind::hangup())?) };
        Ok(StopSignals { term, int, hup })
    }

    async fn wait(&mut self) {
        let hang_up = async {
            match &mut self.hup {
                Some(hup) => hup.recv().await,
                None => std::future::pending().await,
            }
        };
        let name = tokio::select! {
            _ = self.term.recv() => "SIGTERM",
            _ = self.int.recv() => "SIGINT",
            _ = hang_up => "SIGHUP",
        };
        info!(signal = name, "stopping");
    }
}

/// Returns true if this process ignores SIGHUP, by Linux's status file; elsewhere false.
fn is_hangup_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default();
    // Bit 0 is signal 1, which is SIGHUP.
    mask & 1 == 1
}

fn banner(engine: &Engine, location: &DataLocation, resp: SocketAddr, http: Option<SocketAddr>) -> String {
    let stats = engine.stats();
    let http = http.map(|address| format!(" http://{address}")).unwrap_or_default();
    let yet = if reaches_store(engine) == Some(false) { " not reachable yet: counting goes on" } else { "" };
    let shared = location.store.as_ref().map(|store| ("store", format!("{store}{yet}")));
    let lines = [("data", format!("{} ({})", location.data, stats.durability))];
    let lines = lines.into_iter().chain(shared).chain([
        ("found", recovery_summary(engine)),
        ("ready", format!("resp://{resp}{http}")),
        ("try", format!("redis-cli -p {} INCR likes:42", resp.port())),
    ]);
    let mut text = terminal::bold(&format!("quipu {}", env!("CARGO_PKG_VERSION")));
    for (label, value) in lines {
        text.push_str(&format!("\n  {label:<6} {value}"));
    }
    text
}

/// Logs the start, for programs.
fn log_start(engine: &Engine, location: &DataLocation, resp: SocketAddr, http: Option<SocketAddr>) {
    let (stats, recovery) = (engine.stats(), engine.recovery());
    if let Some(torn) = &recovery.tail.torn {
        let (file, offset, reason) = (torn.file.display(), torn.offset, torn.reason);
        warn!(%file, offset, %reason, "a torn tail was cut from the journal");
    }
    let DataLocation { data, store, .. } = location;
    info!(
        data,
        store = store.as_ref().map(tracing::field::display),
        counters = stats.counters,
        records = recovery.records,
        clean = recovery.clean,
        copied = recovery.copied,
        "found {}",
        recovery_summary(engine)
    );
    let http = http.map(|address| format!("http://{address}"));
    info!(
        version = env!("CARGO_PKG_VERSION"),
        durability = %stats.durability,
        resp = format!("resp://{resp}"),
        http,
        store_reachable = reaches_store(engine),
        "ready"
    );
}

/// The recovery of the directory in words.
fn recovery_summary(engine: &Engine) -> String {
    let recovery = engine.recovery();
    if recovery.records == 0 && recovery.tail.torn.is_none() && recovery.tail.position.0 == 0 {
        return "nothing, a new directory".to_owned();
    }
    let end = match (recovery.clean, recovery.copied) {
        (true, _) => "a clean stop",
        (false, true) => "no clean stop, as in a backup",
        (false, false) => "a crash",
    };
    let mut text = format!("{} counters in {} records after {end}", engine.stats().counters, recovery.records);
    if recovery.copied {
        text = format!("a copy of another directory, which goes on as a new writer: {text}");
    }
    if let Some(torn) = &recovery.tail.torn {
        let (file, offset, reason) = (torn.file.display(), torn.offset, torn.reason);
        text.push_str(&format!("; torn tail cut in {file} at byte {offset}: {reason}"));
    }
    text
}

/// Prints a line on stdout. An error is ignored: a server without its terminal goes on counting.
fn print_line(out: &mut impl Write, text: &str) {
    let _ = writeln!(out, "{text}").and_then(|()| out.flush());
}
