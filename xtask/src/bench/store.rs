//! `cargo xtask bench store`: measures the cost of a shared store for a node, and the load on the
//! store.
//!
//! Each figure is taken in one run, in turn with its comparison: a node alone, or a row of
//! PostgreSQL. The load on a store comes from its own statistics.

mod pages;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use comfy_table::Table;
use rustix::process::Signal;
use serde_json::Value;

use super::postgres::{HOT_ROW, Postgres};
use super::server::{BenchServer, free_port};
use super::{StopFlag, build, median, quipu_bench, table_text};
use crate::run::now;
use crate::tools::{need_programs, postgres_programs};

/// Nodes on one store.
const NODES: usize = 3;

/// Greatest ratio of the CPU time per add, and per read, of a node on a store to that of a node
/// alone.
const ADD_RATIO_MOST: f64 = 1.3;
const READ_RATIO_MOST: f64 = 1.2;

/// Required ratio of the adds of three nodes to those of a hot row.
const ROW_RATIO_MUST: f64 = 50.0;

/// Number of turns of each.
const TURNS: usize = 5;

/// Clients that read one counter at once, and the greatest age of its cached data.
const READERS: usize = 1_000;
const FRESHNESS: Duration = Duration::from_secs(5);

/// Number of imported counters.
const IMPORTED: usize = 1_000_000;

/// A part of the bench: its name and its function.
type StorePart = (&'static str, fn(&StoreBench) -> anyhow::Result<()>);

/// All parts.
const PARTS: [StorePart; 6] = [
    ("cpu", StoreBench::cpu),
    ("hot-counter", StoreBench::hot_counter),
    ("readers", StoreBench::readers),
    ("pages", StoreBench::pages),
    ("import", StoreBench::import),
    ("hot-row", StoreBench::hot_row),
];

/// Measures and prints all parts, or the named ones.
pub fn store(named: &[&str]) -> anyhow::Result<()> {
    if let Some(unknown) = named.iter().find(|name| PARTS.iter().all(|(part, _)| part != *name)) {
        bail!("there is no part '{unknown}': {}", PARTS.map(|(part, _)| part).join(", "));
    }
    need_programs(&["redis-server"], &["redis-server"])?;
    need_programs(&["taskset"], &["util-linux"])?;
    let bench = StoreBench { quipu: build()?, stop: StopFlag::listen()?, home: home()? };
    let mut parts = PARTS.iter().filter(|(part, _)| named.is_empty() || named.contains(part));
    parts.try_for_each(|(_, part)| part(&bench))
}

fn home() -> anyhow::Result<tempfile::TempDir> {
    tempfile::Builder::new().prefix("quipu-bench-").tempdir().context("make a directory")
}

struct StoreBench {
    quipu: PathBuf,
    stop: StopFlag,
    home: tempfile::TempDir,
}

/// A server and its port.
struct LocalServer {
    server: BenchServer,
    port: u16,
}

impl LocalServer {
    fn connect(&self) -> anyhow::Result<TcpStream> {
        connect(self.port)
    }

    /// Number of calls of a command by a Redis, those of scripts included.
    fn calls(&self, command: &str) -> anyhow::Result<u64> {
        let reply = self.info("commandstats")?;
        let line = reply.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
        Ok(line.and_then(|line| line.split(',').next()?.parse().ok()).unwrap_or(0))
    }

    /// A figure of a Redis.
    fn figure(&self, section: &str, name: &str) -> anyhow::Result<u64> {
        let reply = self.info(section)?;
        let found = reply.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')?.trim().parse().ok());
        found.with_context(|| format!("Redis has no {name} in INFO"))
    }

    fn info(&self, section: &str) -> anyhow::Result<String> {
        let mut stream = self.connect()?;
        stream.write_all(format!("INFO {section}\r\n").as_bytes()).context("ask Redis")?;
        let reply = read_until(&mut stream, |reply| bulk_length(reply).is_some_and(|length| reply.len() >= length))?;
        Ok(String::from_utf8_lossy(&reply).into_owned())
    }
}

fn connect(port: u16) -> anyhow::Result<TcpStream> {
    let stream = TcpStream::connect(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).context("connect")?;
    stream.set_read_timeout(Some(Duration::from_secs(30))).context("set a time-out")?;
    stream.set_nodelay(true).context("set no delay")?;
    Ok(stream)
}

/// Length of a bulk string with its frame, if the head is complete.
fn bulk_length(reply: &[u8]) -> Option<usize> {
    let end = reply.windows(2).position(|window| window == b"\r\n")?;
    let bytes: usize = std::str::from_utf8(&reply[1..end]).ok()?.parse().ok()?;
    Some(end + 2 + bytes + 2)
}

fn read_until(stream: &mut TcpStream, done: impl Fn(&[u8]) -> bool) -> anyhow::Result<Vec<u8>> {
    let (mut reply, mut room) = (Vec::new(), [0; 1 << 16]);
    while !done(&reply) {
        let count = stream.read(&mut room).context("read")?;
        ensure!(count > 0, "the server has closed");
        reply.extend_from_slice(&room[..count]);
    }
    Ok(reply)
}

impl StoreBench {
    fn make_folder(&self, name: &str) -> anyhow::Result<PathBuf> {
        let folder = self.home.path().join(name);
        std::fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
        Ok(folder)
    }

    fn redis(&self, name: &str) -> anyhow::Result<LocalServer> {
        let (home, port) = (self.make_folder(name)?, free_port().context("find a free port")?);
        let mut command = Command::new("redis-server");
        command.args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", "", "--dir"]).arg(&home);
        let server = BenchServer::start(&mut command, &home, "Ready to accept connections", Signal::KILL, &self.stop)?;
        Ok(LocalServer { server, port })
    }

    /// A relaxed node with one worker; on a core of its own if `pinned`.
    fn node(&self, name: &str, pinned: bool, store: Option<&str>, more: &[&str]) -> anyhow::Result<LocalServer> {
        let (home, port) = (self.make_folder(name)?, free_port().context("find a free port")?);
        let mut command = Command::new(if pinned { "taskset".into() } else { self.quipu.clone() });
        if pinned {
            command.args(["-c", "0"]).arg(&self.quipu);
        }
        command.env_clear().args(["serve", "--workers", "1", "--durability", "relaxed", "--resp"]);
        command.arg(format!("127.0.0.1:{port}")).arg("--data").arg(home.join("data"));
        if let Some(url) = store {
            command.args(["--store", url]);
        }
        command.args(more);
        if !more.contains(&"--http") {
            command.args(["--http", "off"]);
        }
        let server = BenchServer::start(&mut command, &home, "resp://", Signal::KILL, &self.stop)?;
        Ok(LocalServer { server, port })
    }

    fn measure(&self, node: &LocalServer, words: &[&str]) -> anyhow::Result<Value> {
        let (address, pid) = (format!("127.0.0.1:{}", node.port), node.server.pid().to_string());
        let fixed = ["--server", &address, "--pid", &pid, "--keys", "1", "--repetitions", "1"];
        let document = quipu_bench("load", &self.quipu, &[&fixed[..], words].concat())?;
        Ok(document["measurements"][0].clone())
    }

    /// The cost of an add and a read for a node on a store, beside a node without one.
    fn cpu(&self) -> anyhow::Result<()> {
        let redis = self.redis("cpu-redis")?;
        let url = format!("redis://127.0.0.1:{}", redis.port);
        let (alone, shared) = (self.node("alone", true, None, &[])?, self.node("shared", true, Some(&url), &[])?);
        let mut table = Table::new();
        table.set_header(["one counter, relaxed, 64 in flight", "alone, ns", "on a Redis, ns", "ratio", "at most"]);
        for (command, most) in [("incr", ADD_RATIO_MOST), ("get", READ_RATIO_MOST)] {
            let (mut costs, mut ratios) = ([vec![], vec![]], vec![]);
            for turn in 1..=TURNS {
                let mut each = [0.0; 2];
                for (node, each) in [&alone, &shared].into_iter().zip(&mut each) {
                    self.stop.check()?;
                    let figures = self.measure(node, &["--pipelines", "64", "--command", command, "--seconds", "2"])?;
                    *each = figures["cpu_us_per_operation"].as_f64().context("no CPU time")? * 1e3;
                }
                println!("{command}, turn {turn}: alone {:.0} ns, on a Redis {:.0} ns", each[0], each[1]);
                costs[0].push(each[0]);
                costs[1].push(each[1]);
                ratios.push(each[1] / each[0]);
            }
            let figures = [median(&costs[0]), median(&costs[1])].map(|cost| format!("{cost:.0}"));
            let [alone, shared] = figures;
            table.add_row([command.to_owned(), alone, shared, format!("{:.2}", median(&ratios)), most.to_string()]);
        }
        println!("\n{}\n", table_text(table, 1));
        Ok(())
    }

    /// Adds per second of all nodes together.
    fn load(&self, nodes: &[LocalServer], words: &[&str]) -> anyhow::Result<f64> {
        thread::scope(|scope| {
            let loads: Vec<_> = nodes.iter().map(|node| scope.spawn(|| self.measure(node, words))).collect();
            loads.into_iter().try_fold(0.0, |sum, load| {
                let Ok(figures) = load.join() else { bail!("a load panicked") };
                Ok(sum + figures?["operations_per_second"].as_f64().context("no throughput")?)
            })
        })
    }

    fn nodes(&self, name: &str, url: &str) -> anyhow::Result<Vec<LocalServer>> {
        (0..NODES).map(|node| self.node(&format!("{name}-{node}"), false, Some(url), &[])).collect()
    }

    /// The writes to a store while three nodes add to one counter.
    fn hot_counter(&self) -> anyhow::Result<()> {
        let redis = self.redis("hot-redis")?;
        let nodes = self.nodes("hot", &format!("redis://127.0.0.1:{}", redis.port))?;
        // The nodes join the store first.
        self.load(&nodes, &["--pipelines", "64", "--seconds", "1", "--connections", "16"])?;
        let (before, began) = (redis.calls("hset")?, now());
        let rate = self.load(&nodes, &["--pipelines", "64", "--seconds", "5", "--connections", "16"])?;
        let (writes, seconds) = (redis.calls("hset")?.saturating_sub(before), began.elapsed().as_secs_f64());
        println!(
            "{NODES} nodes, one counter: {rate:.0} adds a second for {seconds:.1} s; by its own statistics Redis has run {writes} HSET meanwhile, the \
             renewals of leases among them: {:.2} a second and node, where `settle_every` is 1 s\n",
            writes as f64 / seconds / NODES as f64,
        );
        Ok(())
    }

    /// The reads of a store when a thousand clients read, at once, a counter with outdated data.
    fn readers(&self) -> anyhow::Result<()> {
        let redis = self.redis("readers-redis")?;
        let url = format!("redis://127.0.0.1:{}", redis.port);
        let freshness = format!("{}s", FRESHNESS.as_secs());
        let node = self.node("readers", false, Some(&url), &["--freshness", &freshness])?;
        let other = self.node("readers-other", false, Some(&url), &[])?;
        let send_line = |node: &LocalServer, line: &[u8]| {
            let mut stream = node.connect()?;
            stream.write_all(line).context("ask")?;
            read_until(&mut stream, |reply| reply.ends_with(b"\r\n")).map(drop)
        };
        send_line(&other, b"INCR likes\r\n")?;
        thread::sleep(Duration::from_secs(3));
        let mut readers = (0..READERS).map(|_| node.connect()).collect::<anyhow::Result<Vec<_>>>()?;
        send_line(&node, b"GET likes\r\n")?;
        thread::sleep(FRESHNESS + Duration::from_secs(1));
        let before = redis.calls("hgetall")?;
        for reader in &mut readers {
            reader.write_all(b"GET likes\r\n").context("ask")?;
        }
        for reader in &mut readers {
            let reply = read_until(reader, |reply| reply.ends_with(b"1\r\n"))?;
            ensure!(reply == b"$1\r\n1\r\n", "a reader got {:?}", String::from_utf8_lossy(&reply));
        }
        println!(
            "{READERS} clients that read a counter at once, of which what is known is too old: {} reads at the store\n",
            redis.calls("hgetall")? - before
        );
        Ok(())
    }

    /// The speed of an import from a Redis, and the result of an import that was killed.
    fn import(&self) -> anyhow::Result<()> {
        let (source, store) = (self.redis("source")?, self.redis("import-store")?);
        let mut stream = source.connect()?;
        let mut sum = 0;
        for first in (0..IMPORTED).step_by(10_000) {
            let mut lines = Vec::new();
            for number in first..first + 10_000 {
                sum += number;
                writeln!(lines, "SET likes:{number} {number}\r")?;
            }
            stream.write_all(&lines).context("fill the source")?;
            read_until(&mut stream, |reply| reply.len() == 10_000 * b"+OK\r\n".len())?;
        }
        let [from, to] = [&source, &store].map(|redis| format!("redis://127.0.0.1:{}", redis.port));
        let import = || {
            let mut command = Command::new(&self.quipu);
            command.args(["import", &from, "--match", "likes:*", "--store", &to, "--json"]).stderr(Stdio::null());
            command
        };
        let mut killed = import().stdout(Stdio::null()).spawn().context("run quipu import")?;
        thread::sleep(Duration::from_secs(3));
        let early = killed.try_wait().context("look after an import")?.is_none();
        killed.kill().context("kill an import")?;
        killed.wait().context("wait for an import")?;
        ensure!(early, "the import was done before it could be killed");
        let began = now();
        ensure!(import().output().context("run quipu import")?.status.success(), "the import failed");
        let seconds = began.elapsed().as_secs_f64();
        let audit = Command::new(&self.quipu).args(["audit", "--json", "--store", &to]).output().context("audit")?;
        let found: Value = serde_json::from_slice(&audit.stdout).context("read what quipu audit printed")?;
        let [counters, total] = ["counters", "sum"].map(|key| found[key].to_string());
        ensure!(
            (counters.as_str(), &total) == (IMPORTED.to_string().as_str(), &sum.to_string()),
            "{counters} counters with a sum of {total} have come in, of {IMPORTED} with {sum}"
        );
        println!(
            "an import of {IMPORTED} counters, killed after 3 s and run again: {:.0} a second; {counters} counters, sum {total}: exact\n",
            IMPORTED as f64 / seconds
        );
        Ok(())
    }

    /// One counter of three nodes on a PostgreSQL, beside a row of it.
    fn hot_row(&self) -> anyhow::Result<()> {
        let postgres = Postgres::start(postgres_programs()?, home()?, &self.stop)?;
        let mut table = Table::new();
        table.set_header(["turn", "hot row", "three nodes, one in flight", "ratio", "sixteen", "ratio"]);
        let mut least = f64::INFINITY;
        for turn in 1..=3 {
            self.stop.check()?;
            let row = postgres.bench("hot row", HOT_ROW, 5)?;
            let nodes = self.nodes(&format!("row-{turn}"), &postgres.url())?;
            let connections = ["--connections", "17", "--seconds", "3"];
            let one = self.load(&nodes, &[&["--pipelines", "1"], &connections[..]].concat())?;
            let sixteen = self.load(&nodes, &[&["--pipelines", "16"], &connections[..]].concat())?;
            least = least.min(one / row);
            let cells = [row, one, one / row, sixteen, sixteen / row].map(|figure| format!("{figure:.0}"));
            table.add_row([vec![turn.to_string()], cells.to_vec()].concat());
        }
        println!("\n{}", table_text(table, 1));
        let verdict = if least >= ROW_RATIO_MUST { "holds" } else { "DOES NOT HOLD" };
        println!("\nat least {ROW_RATIO_MUST:.0} times the hot row, in every turn: {verdict}");
        Ok(())
    }
}
