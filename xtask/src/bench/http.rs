//! `cargo xtask bench http`: compares the cost of an HTTP request with nginx's cheapest reply, and
//! of watchers with bare writes of their events.
//!
//! The measure is the server's CPU time per request, from one run in which both take turns.
//! Requests per second depend more on the client.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use comfy_table::Table;
use rustix::process::Signal;

use super::server::{BenchServer, free_port};
use super::{StopFlag, build, median, table_text};
use crate::run::{now, run};
use crate::tools::need_programs;

/// Kept-alive connections, each with one request in flight.
const CONNECTIONS: &str = "50";

/// Required ratio of nginx's CPU time per request to Quipu's.
const RATIO_MUST: f64 = 0.5;

/// Number of turns of each server, and their length.
const TURNS: usize = 5;
const TURN_SECONDS: &str = "2s";

/// Watchers of one counter, and its changes in a turn.
const WATCHERS: usize = 1_000;
const CHANGES: usize = 8;

/// Interval between two changes: all events of one are out before the next.
const CHANGE_EVERY: Duration = Duration::from_millis(250);

/// nginx's reply: as long as the reply to an add.
const REPLY: &str = r#"{"name":"likes:42","value":123456,"value_string":"123456"}"#;

/// Measures and prints.
pub fn http() -> anyhow::Result<()> {
    need_programs(&["nginx"], &["nginx-light"])?;
    need_programs(&["wrk"], &["wrk"])?;
    let quipu = build()?;
    let stop = StopFlag::listen()?;
    let home = tempfile::Builder::new().prefix("quipu-bench-").tempdir().context("make a directory")?;
    adds(&quipu, home.path(), &stop)?;
    watchers(&quipu, home.path(), &stop)
}

/// Adds over HTTP, relaxed, beside a reply that nginx has in its configuration.
fn adds(quipu: &Path, home: &Path, stop: &StopFlag) -> anyhow::Result<()> {
    let (nginx_home, quipu_home) = (home.join("nginx"), home.join("adds"));
    let (nginx, nginx_port) = start_nginx(&nginx_home, stop)?;
    let (quipu, quipu_port) = start_quipu(quipu, &quipu_home, stop)?;
    let script = home.join("add.lua");
    std::fs::write(&script, "wrk.method = \"POST\"\n").context("write a script for wrk")?;
    let (mut figures, mut ratios) = ([vec![], vec![]], vec![]);
    for turn in 0..TURNS {
        let mut costs = [0.0; 2];
        for (at, (server, port)) in [(&nginx, nginx_port), (&quipu, quipu_port)].into_iter().enumerate() {
            stop.check()?;
            let (requests, cpu) = load(server, port, &script)?;
            costs[at] = cpu.as_secs_f64() * 1e6 / requests as f64;
            figures[at].push((requests, costs[at]));
        }
        ratios.push(costs[0] / costs[1]);
        println!(
            "turn {}: nginx {:.2} µs, quipu {:.2} µs of CPU a request, ratio {:.2}",
            turn + 1,
            costs[0],
            costs[1],
            ratios[turn]
        );
    }
    let mut table = Table::new();
    table.set_header(["server", "requests in a turn", "µs of CPU each", "ratio", "must"]);
    for (at, name) in ["nginx, a reply from its configuration", "quipu, an add, relaxed"].into_iter().enumerate() {
        let requests = median(&figures[at].iter().map(|(requests, _)| *requests as f64).collect::<Vec<_>>());
        let cost = median(&figures[at].iter().map(|(_, cost)| *cost).collect::<Vec<_>>());
        let (ratio, must) =
            if at == 1 { (format!("{:.2}", median(&ratios)), format!("{RATIO_MUST}")) } else { Default::default() };
        table.add_row([name.to_owned(), format!("{requests:.0}"), format!("{cost:.2}"), ratio, must]);
    }
    println!("\n{}\n", table_text(table, 1));
    Ok(())
}

/// Loads a server for a turn; returns the number of answered requests and the server's CPU time.
fn load(server: &BenchServer, port: u16, script: &Path) -> anyhow::Result<(u64, Duration)> {
    let mut command = Command::new("wrk");
    command.args(["-t1", "-c", CONNECTIONS, "-d", TURN_SECONDS, "-s"]).arg(script);
    command.arg(format!("http://127.0.0.1:{port}/v1/counters/likes:42/add"));
    let before = server.cpu()?;
    let outcome = run("wrk", &command)?.expect_success("wrk")?;
    let cpu = server.cpu()?.saturating_sub(before);
    if let Some(line) = outcome.lines.iter().find(|line| line.contains("Non-2xx")) {
        bail!("wrk: {line}");
    }
    let line = outcome.lines.iter().find(|line| line.contains(" requests in ")).context("wrk printed no count")?;
    let requests =
        line.trim().split(' ').next().and_then(|count| count.parse().ok()).context("read what wrk printed")?;
    Ok((requests, cpu))
}

fn start_nginx(home: &Path, stop: &StopFlag) -> anyhow::Result<(BenchServer, u16)> {
    std::fs::create_dir_all(home).with_context(|| format!("make {}", home.display()))?;
    let port = free_port().context("find a free port")?;
    let at = home.display();
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("{kind}_temp_path {at}/{kind};\n"))
        .concat();
    let configuration = format!(
        "worker_processes 1;\ndaemon off;\nmaster_process off;\npid {at}/pid;\nerror_log stderr notice;\nevents {{ worker_connections 1024; }}\n\
         http {{\naccess_log off;\nkeepalive_requests 1000000000;\n{temporary}server {{ listen 127.0.0.1:{port}; location / {{ default_type application/json; return 200 '{REPLY}\\n'; }} }}\n}}\n"
    );
    let file = home.join("nginx.conf");
    std::fs::write(&file, configuration).with_context(|| format!("write {}", file.display()))?;
    let mut command = Command::new("nginx");
    command.arg("-e").arg("stderr").arg("-c").arg(&file);
    let server = BenchServer::start(&mut command, home, "nginx/", Signal::TERM, stop)?;
    // It prints its version before it listens.
    while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
        stop.check()?;
        thread::sleep(Duration::from_millis(20));
    }
    Ok((server, port))
}

fn start_quipu(quipu: &Path, home: &Path, stop: &StopFlag) -> anyhow::Result<(BenchServer, u16)> {
    std::fs::create_dir_all(home).with_context(|| format!("make {}", home.display()))?;
    let port = free_port().context("find a free port")?;
    let mut command = Command::new(quipu);
    command.env_clear().args(["serve", "--resp", "127.0.0.1:0", "--workers", "1", "--durability", "relaxed", "--http"]);
    command.arg(format!("127.0.0.1:{port}")).arg("--data").arg(home.join("data"));
    Ok((BenchServer::start(&mut command, home, "http://", Signal::KILL, stop)?, port))
}

// ---- watchers ---------------------------------------------------------------------------

/// A thousand watchers of one counter, in turns with bare writes of their events.
fn watchers(quipu: &Path, home: &Path, stop: &StopFlag) -> anyhow::Result<()> {
    let (server, port) = start_quipu(quipu, &home.join("watchers"), stop)?;
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let request = b"GET /v1/counters/watched/watch HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let mut watching = (0..WATCHERS).map(|_| connect_and_send(address, request)).collect::<anyhow::Result<Vec<_>>>()?;
    for watcher in &mut watching {
        read_until(watcher, b"\n\n")?;
    }
    let mut bare = BareWriter::start(&home.join("bare"), stop)?;
    let cpu_cost = |changing: &mut dyn FnMut() -> anyhow::Result<()>| {
        let (before, began) = (server.cpu()?, now());
        changing()?;
        Ok::<_, anyhow::Error>((server.cpu()?.saturating_sub(before).as_secs_f64(), began.elapsed().as_secs_f64()))
    };
    let (idle_cpu, seconds) = cpu_cost(&mut || {
        thread::sleep(CHANGE_EVERY * CHANGES as u32);
        Ok(())
    })?;
    let at_rest = idle_cpu / seconds;
    // Not earlier: the server closes a connection without requests after some seconds.
    let mut adder = connect_and_send(address, b"")?;
    let (mut costs, mut ratios, mut delays, mut event) = ([vec![], vec![]], vec![], vec![], vec![]);
    for turn in 0..TURNS {
        // The cost of the same adds without watchers is not the watchers' cost.
        let (unwatched, _) = cpu_cost(&mut || {
            run_paced(stop, || add(&mut adder, "unwatched"))?;
            Ok(())
        })?;
        let (watched, _) = cpu_cost(&mut || {
            run_paced(stop, || {
                let began = now();
                add(&mut adder, "watched")?;
                for watcher in &mut watching {
                    event = read_until(watcher, b"\n\n").context("watch")?;
                }
                delays.push(began.elapsed().as_secs_f64() * 1e3);
                Ok(())
            })
        })?;
        let each = (watched - unwatched) * 1e6 / (CHANGES * WATCHERS) as f64;
        let bare = bare.write(&event, stop)?;
        println!(
            "turn {}: bare writes {bare:.2} µs, quipu {each:.2} µs of CPU an event, ratio {:.2}",
            turn + 1,
            bare / each
        );
        costs[0].push(bare);
        costs[1].push(each);
        ratios.push(bare / each);
    }
    let mut table = Table::new();
    table.set_header(["", "µs of CPU an event", "ratio"]);
    table.add_row(["bare writes of the same bytes".to_owned(), format!("{:.2}", median(&costs[0])), String::new()]);
    let (each, ratio) = (format!("{:.2}", median(&costs[1])), format!("{:.2}", median(&ratios)));
    table.add_row([format!("quipu, {WATCHERS} watchers"), each, ratio]);
    println!("\n{}\n", table_text(table, 1));
    delays.sort_by(f64::total_cmp);
    println!(
        "{} changes, events of {} bytes; all {WATCHERS} had heard after {:.0} ms (median), {:.0} ms (most); at rest {:.2} % of a core",
        delays.len(),
        event.len(),
        median(&delays),
        delays.last().copied().unwrap_or_default(),
        100.0 * at_rest,
    );
    Ok(())
}

/// Runs `each` for every change of a turn, at the interval of the changes.
fn run_paced(stop: &StopFlag, mut each: impl FnMut() -> anyhow::Result<()>) -> anyhow::Result<()> {
    for _ in 0..CHANGES {
        stop.check()?;
        let began = now();
        each()?;
        thread::sleep(CHANGE_EVERY.saturating_sub(began.elapsed()));
    }
    Ok(())
}

fn add(adder: &mut TcpStream, name: &str) -> anyhow::Result<()> {
    adder
        .write_all(format!("POST /v1/counters/{name}/add HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes())
        .context("add")?;
    read_until(adder, b"}\n").context("add").map(drop)
}

/// Another process that writes to the same number of connections and does nothing else.
///
/// It is no thread of this one. The system switches between threads that share their memory at less
/// cost than between a server and its clients.
struct BareWriter {
    process: BenchServer,
    control: TcpStream,
    readers: Vec<TcpStream>,
}

impl BareWriter {
    fn start(home: &Path, stop: &StopFlag) -> anyhow::Result<BareWriter> {
        std::fs::create_dir_all(home).with_context(|| format!("make {}", home.display()))?;
        let port = free_port().context("find a free port")?;
        let mut command = Command::new(std::env::current_exe().context("find this program")?);
        command.args(["bench", "bare-writes", &port.to_string()]);
        let process = BenchServer::start(&mut command, home, "listening", Signal::KILL, stop)?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let control = connect_and_send(address, b"")?;
        let readers = (0..WATCHERS).map(|_| connect_and_send(address, b"")).collect::<anyhow::Result<Vec<_>>>()?;
        Ok(BareWriter { process, control, readers })
    }

    /// Writes an event to each of them; returns the CPU time per write in µs.
    fn write(&mut self, event: &[u8], stop: &StopFlag) -> anyhow::Result<f64> {
        let before = self.process.cpu()?;
        run_paced(stop, || {
            self.control.write_all(&u32::try_from(event.len())?.to_be_bytes()).context("send the event")?;
            self.control.write_all(event).context("send the event")?;
            for reader in &mut self.readers {
                read_until(reader, b"\n\n")?;
            }
            Ok(())
        })?;
        let cpu_cost = self.process.cpu()?.saturating_sub(before);
        Ok(cpu_cost.as_secs_f64() * 1e6 / (CHANGES * WATCHERS) as f64)
    }
}

/// `cargo xtask bench bare-writes`: the process of `BareWriter`. It writes all bytes of its first
/// connection to all others.
pub fn bare_writes(port: &str) -> anyhow::Result<()> {
    let listener =
        TcpListener::bind((Ipv4Addr::LOCALHOST, port.parse().context("read the port")?)).context("listen")?;
    println!("listening");
    let mut watched = listener.accept().context("accept")?.0;
    let mut writers = Vec::new();
    for _ in 0..WATCHERS {
        let writer = listener.accept().context("accept")?.0;
        // As the server's connections are.
        writer.set_nodelay(true).context("set no delay")?;
        writers.push(writer);
    }
    let mut length = [0; 4];
    while watched.read_exact(&mut length).is_ok() {
        let mut event = vec![0; u32::from_be_bytes(length) as usize];
        watched.read_exact(&mut event).context("read")?;
        for writer in &mut writers {
            writer.write_all(&event).context("write")?;
        }
    }
    Ok(())
}

fn connect_and_send(address: SocketAddr, request: &[u8]) -> anyhow::Result<TcpStream> {
    let mut stream = TcpStream::connect(address).context("connect")?;
    stream.set_read_timeout(Some(Duration::from_secs(10))).context("set a time-out")?;
    stream.write_all(request).context("ask")?;
    Ok(stream)
}

/// Reads until the body read so far contains `end`.
fn read_until(stream: &mut TcpStream, end: &[u8]) -> anyhow::Result<Vec<u8>> {
    let (mut received, mut room) = (Vec::new(), [0; 4096]);
    loop {
        let body = if received.starts_with(b"HTTP/") {
            received.windows(4).position(|w| w == b"\r\n\r\n").map(|at| at + 4)
        } else {
            Some(0)
        };
        // The chunks of events have line ends of their own.
        if body.is_some_and(|at| received[at..].windows(end.len()).any(|window| window == end)) {
            return Ok(received);
        }
        match stream.read(&mut room) {
            Ok(0) => bail!("the server has closed"),
            Ok(count) => received.extend_from_slice(&room[..count]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error).context("read"),
        }
        ensure!(received.len() < 1 << 20, "what was waited for did not come");
    }
}
