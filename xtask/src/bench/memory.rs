//! `cargo xtask bench memory`: measures the memory cost of a counter, beside Redis.
//!
//! The measure is the resident memory of the whole process. So it includes the waste of an
//! allocator, the empty part of a table and the buffers of a journal.

use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::Context;
use comfy_table::Table;
use rustix::process::Signal;

use super::server::{BenchServer, free_port};
use super::{StopFlag, build, quipu_bench, table_text};
use crate::tools::need_programs;

/// Default numbers of counters.
const COUNTERS: [usize; 2] = [1_000_000, 5_000_000];

/// Bytes per counter with 20-byte names: the required and the desired figure.
const BYTES_MUST: f64 = 60.0;
const BYTES_GOAL: f64 = 45.0;

/// Interval of memory readings, their greatest number, and the bound of steadiness: a change below
/// one part in `STEADY_PART`.
const POLL_EVERY: Duration = Duration::from_millis(500);
const POLLS_MAX: usize = 40;
const STEADY_PART: u64 = 500;

/// A server to measure.
#[derive(Clone, Copy)]
enum MemorySubject {
    Redis,
    Quipu(&'static str),
}

impl MemorySubject {
    const ALL: [MemorySubject; 3] =
        [MemorySubject::Redis, MemorySubject::Quipu("memory"), MemorySubject::Quipu("relaxed")];

    fn name(self) -> String {
        match self {
            MemorySubject::Redis => "redis, no persistence".to_owned(),
            MemorySubject::Quipu(mode) => format!("quipu, {mode}"),
        }
    }

    /// The command that starts it, and the line in its log once it serves.
    fn command(self, quipu: &Path, home: &Path, port: u16) -> (Command, &'static str) {
        let port = port.to_string();
        match self {
            MemorySubject::Redis => {
                let mut command = Command::new("redis-server");
                command.args(["--bind", "127.0.0.1", "--port", &port, "--save", "", "--dir"]).arg(home);
                (command, "Ready to accept connections")
            }
            MemorySubject::Quipu(mode) => {
                let mut command = Command::new(quipu);
                command.env_clear().args(["serve", "--http", "off", "--workers", "1", "--durability", mode, "--resp"]);
                command.arg(format!("127.0.0.1:{port}")).arg("--data").arg(home.join("data"));
                (command, "resp://")
            }
        }
    }
}

/// Measures and prints.
pub fn memory(counters: &[usize]) -> anyhow::Result<()> {
    need_programs(&["redis-server"], &["redis-server"])?;
    let quipu = build()?;
    let stop = StopFlag::listen()?;
    let mut table = Table::new();
    table.set_header(["counters", "server", "empty MB", "full MB", "bytes each", "less the empty one", "must", "goal"]);
    for &counters in if counters.is_empty() { &COUNTERS[..] } else { counters } {
        for subject in MemorySubject::ALL {
            stop.check()?;
            let (empty, full) = measure(subject, counters, &quipu, &stop)?;
            let (each, more) = (full as f64 / counters as f64, full.saturating_sub(empty) as f64 / counters as f64);
            println!("{counters} counters, {}: {each:.1} bytes each", subject.name());
            let bars = match subject {
                MemorySubject::Redis => [String::new(), String::new()],
                MemorySubject::Quipu(_) => [format!("{BYTES_MUST:.0}"), format!("{BYTES_GOAL:.0}")],
            };
            let [must, goal] = bars;
            let megabytes = |bytes: u64| format!("{:.1}", bytes as f64 / 1e6);
            let (each, more) = (format!("{each:.1}"), format!("{more:.1}"));
            let row = [counters.to_string(), subject.name(), megabytes(empty), megabytes(full), each, more, must, goal];
            table.add_row(row);
        }
    }
    println!("\n{}", table_text(table, 2));
    Ok(())
}

/// Resident bytes of a server, empty and with `counters` counters of 20-byte names.
fn measure(subject: MemorySubject, counters: usize, quipu: &Path, stop: &StopFlag) -> anyhow::Result<(u64, u64)> {
    let home = tempfile::Builder::new().prefix("quipu-bench-").tempdir().context("make a directory")?;
    let port = free_port().context("find a free port")?;
    let (mut command, ready) = subject.command(quipu, home.path(), port);
    // Its counts are thrown away: no need for a clean stop.
    let server = BenchServer::start(&mut command, home.path(), ready, Signal::KILL, stop)?;
    let empty = settled(&server, stop)?;
    let (address, keys) = (format!("127.0.0.1:{port}"), counters.to_string());
    // Every key is made before anything is measured; the measurement after that is as short as
    // possible.
    let how = ["--pipelines", "256", "--repetitions", "1", "--seconds", "0.01"];
    quipu_bench(&subject.name(), quipu, &[&["--server", &address, "--keys", &keys][..], &how].concat())?;
    Ok((empty, settled(&server, stop)?))
}

/// The resident bytes once they are steady.
fn settled(server: &BenchServer, stop: &StopFlag) -> anyhow::Result<u64> {
    let mut before = server.resident_bytes()?;
    for _ in 0..POLLS_MAX {
        stop.check()?;
        thread::sleep(POLL_EVERY);
        let bytes = server.resident_bytes()?;
        if bytes.abs_diff(before) <= before / STEADY_PART {
            return Ok(bytes);
        }
        before = bytes;
    }
    Ok(before)
}
