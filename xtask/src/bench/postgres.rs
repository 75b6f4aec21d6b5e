//! `cargo xtask bench postgres`: compares one hot, durable counter in Quipu with a row of
//! PostgreSQL.
//!
//! PostgreSQL has all cores, prepared statements and its defaults (commits are synced). Quipu has
//! one core for its server and one command in flight per connection. Both have the same disk and as
//! many clients, and are measured in turn.

use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use comfy_table::Table;
use rustix::process::Signal;
use tempfile::TempDir;

use super::server::{BenchServer, free_port};
use super::{StopFlag, build, median, quipu_bench, table_text};
use crate::run::{CommandOutcome, run};
use crate::tools::postgres_programs;

/// Clients of each server.
const CLIENTS: &str = "50";

/// Threads of pgbench.
const THREADS: &str = "2";

/// Required ratio of a durable counter's speed to a hot row's.
const RATIO_MUST: f64 = 20.0;

/// The user that runs PostgreSQL if we are root, as it refuses root.
const USER: &str = "postgres";

/// The stock is too large to run out during a measurement.
const TABLES: &str = "create table counters (id int primary key, v bigint not null); insert into counters values (1, 0); \
                      create table stock (id int primary key, v bigint not null); insert into stock values (1, 1000000000000);";

pub const HOT_ROW: &str = "update counters set v = v + 1 where id = 1;\n";
const DECREMENT: &str = "update stock set v = v - 1 where id = 1 and v > 0;\n";

/// The options of a measurement.
pub struct Options {
    /// Length of each measurement.
    pub seconds: usize,
    /// Number of measurements of each.
    pub repetitions: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options { seconds: 5, repetitions: 3 }
    }
}

/// Measures and prints.
pub fn postgres(options: &Options) -> anyhow::Result<()> {
    let programs = postgres_programs()?;
    let quipu = build()?;
    let stop = StopFlag::listen()?;
    let home = tempfile::Builder::new().prefix("quipu-bench-").tempdir().context("make a directory")?;
    let postgres = Postgres::start(programs, home, &stop)?;
    let (mut hot, mut decrement, mut ours) = (Vec::new(), Vec::new(), Vec::new());
    for repetition in 1..=options.repetitions {
        for (label, script, figures) in [("hot row", HOT_ROW, &mut hot), ("stock", DECREMENT, &mut decrement)] {
            stop.check()?;
            figures.push(postgres.bench(label, script, options.seconds)?);
        }
        stop.check()?;
        ours.push(durable_counter(&quipu, postgres.home.path(), options.seconds)?);
        let last = |figures: &[f64]| figures.last().copied().unwrap_or_default();
        let (hot, decrement, ours) = (last(&hot), last(&decrement), last(&ours));
        println!("repetition {repetition}: hot row {hot:.0}/s, stock {decrement:.0}/s, quipu {ours:.0}/s");
    }
    let version = postgres.version()?;
    drop(postgres);
    print(&version, &hot, &decrement, &ours);
    Ok(())
}

fn print(version: &str, hot: &[f64], decrement: &[f64], ours: &[f64]) {
    let ratio =
        |theirs: &[f64]| median(&ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect::<Vec<_>>());
    let mut table = Table::new();
    table.set_header(["one counter, durable, 50 clients", "per second", "quipu is faster by", "must"]);
    let row = |what: &str, figures: &[f64], bar: Option<f64>| {
        let bar = bar.map_or_else(String::new, |bar| format!("{bar:.0}"));
        [what.to_owned(), format!("{:.0}", median(figures)), format!("{:.1}", ratio(figures)), bar]
    };
    table.add_row(row(&format!("{version}: add to a row"), hot, Some(RATIO_MUST)));
    table.add_row(row(&format!("{version}: take from a stock"), decrement, None));
    table.add_row([
        "quipu: INCR, one in flight".to_owned(),
        format!("{:.0}", median(ours)),
        String::new(),
        String::new(),
    ]);
    println!("\n{}", table_text(table, 1));
    let verdict = if ratio(hot) >= RATIO_MUST { "holds" } else { "DOES NOT HOLD" };
    println!("\nat least {RATIO_MUST:.0} times the hot row: {verdict}");
}

/// Operations per second of one durable counter.
fn durable_counter(quipu: &Path, dir: &Path, seconds: usize) -> anyhow::Result<f64> {
    let (seconds, dir) = (seconds.to_string(), dir.to_str().context("the directory's name is no text")?);
    let what = ["--modes", "durable", "--keys", "1", "--pipelines", "1", "--repetitions", "1"];
    let how = ["--connections", CLIENTS, "--seconds", &seconds, "--dir", dir];
    let document = quipu_bench("quipu", quipu, &[&what[..], &how].concat())?;
    document["measurements"][0]["operations_per_second"].as_f64().context("quipu bench measured nothing")
}

/// A private PostgreSQL.
pub struct Postgres {
    /// Before the directory: the server ends first.
    _server: BenchServer,
    home: TempDir,
    programs: PathBuf,
    port: String,
}

impl Postgres {
    pub fn start(programs: PathBuf, home: TempDir, stop: &StopFlag) -> anyhow::Result<Postgres> {
        let owner = postgres_user(home.path())?;
        let data = home.path().join("data");
        let mut make = Command::new(programs.join("initdb"));
        make.args(["-A", "trust", "-U", USER, "--encoding=UTF8", "--locale=C", "--no-sync", "-D"]).arg(&data);
        run_as(&mut make, owner).output().context("run initdb").and_then(|output| match output.status.success() {
            true => Ok(()),
            false => bail!("initdb failed:\n{}", String::from_utf8_lossy(&output.stderr)),
        })?;
        let port = free_port().context("find a free port")?.to_string();
        let mut serve = Command::new(programs.join("postgres"));
        serve.args(["-h", "127.0.0.1", "-p", &port, "-k"]).arg(home.path()).arg("-D").arg(&data);
        // SIGINT is its fast stop: it disconnects its clients.
        let ready = "database system is ready to accept connections";
        let server = BenchServer::start(run_as(&mut serve, owner), home.path(), ready, Signal::INT, stop)?;
        let postgres = Postgres { _server: server, home, programs, port };
        postgres.ask("tables", TABLES)?;
        Ok(postgres)
    }

    /// Transactions per second of a script.
    pub fn bench(&self, label: &str, script: &str, seconds: usize) -> anyhow::Result<f64> {
        let file = self.home.path().join("script.sql");
        std::fs::write(&file, script).with_context(|| format!("write {}", file.display()))?;
        let mut command = self.client("pgbench");
        command.args(["-n", "-M", "prepared", "-c", CLIENTS, "-j", THREADS, "-T", &seconds.to_string(), "-f"]);
        command.arg(&file).arg(USER);
        let outcome = run(label, &command)?.expect_success("pgbench")?;
        tps(&outcome.lines).with_context(|| format!("pgbench printed no figure:\n{}", outcome.lines.join("\n")))
    }

    /// Its URL, for a node.
    pub fn url(&self) -> String {
        format!("postgres://{USER}@127.0.0.1:{}/{USER}", self.port)
    }

    fn version(&self) -> anyhow::Result<String> {
        let outcome = self.ask("version", "show server_version;")?;
        let version = outcome.lines.first().and_then(|line| line.split_whitespace().next()).unwrap_or("?");
        Ok(format!("PostgreSQL {version}"))
    }

    fn ask(&self, label: &str, statement: &str) -> anyhow::Result<CommandOutcome> {
        let mut command = self.client("psql");
        command.args(["-X", "-q", "-t", "-A", "-v", "ON_ERROR_STOP=1", "-c", statement, USER]);
        run(label, &command)?.expect_success("psql")
    }

    fn client(&self, program: &str) -> Command {
        let mut command = Command::new(self.programs.join(program));
        command.args(["-h", "127.0.0.1", "-U", USER, "-p", &self.port]);
        command
    }
}

/// The figure in "tps = 1353.123456 (without initial connection time)".
fn tps(lines: &[String]) -> Option<f64> {
    lines.iter().find_map(|line| line.strip_prefix("tps = ")?.split_whitespace().next()?.parse().ok())
}

/// The user for PostgreSQL: its own if we are root, and then it gets the directory; otherwise
/// `None`, the present user.
fn postgres_user(home: &Path) -> anyhow::Result<Option<(u32, u32)>> {
    let us = std::fs::metadata(home).with_context(|| format!("look at {}", home.display()))?.uid();
    if us != 0 {
        return Ok(None);
    }
    let id = |flag: &str| -> anyhow::Result<u32> {
        let output = Command::new("id").args([flag, USER]).output().context("run id")?;
        let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        text.parse().with_context(|| format!("there is no user {USER}, and PostgreSQL refuses to run as root"))
    };
    let (user, group) = (id("-u")?, id("-g")?);
    chown(home, Some(user), Some(group)).with_context(|| format!("give {} to {USER}", home.display()))?;
    Ok(Some((user, group)))
}

fn run_as(command: &mut Command, owner: Option<(u32, u32)>) -> &mut Command {
    match owner {
        // A directory that this user may enter.
        Some((user, group)) => command.uid(user).gid(group).current_dir("/"),
        None => command,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figure_of_pgbench_is_found() {
        let bench_output = "number of failed transactions: 0 (0.000%)\nlatency average = 36.9 ms\n\
                    initial connection time = 61.2 ms\ntps = 1353.123456 (without initial connection time)";
        let lines: Vec<String> = bench_output.lines().map(str::to_owned).collect();
        assert_eq!(tps(&lines), Some(1353.123456));
        assert_eq!(tps(&lines[..3]), None);
    }
}
