//! The arguments of a bench, for clap.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use clap::builder::TypedValueParser;
use quipu_model::Durability;

use crate::commands::Verb;

/// Most commands in flight per connection. Their replies fit the bytes that a server holds for one
/// connection.
const PIPELINE_MAX: u64 = 10_000;

/// Most counters. The bench builds its commands beforehand, 41 bytes each.
const KEYS_MAX: u64 = 20_000_000;

/// Most connections: the number that a server accepts by default.
const CONNECTIONS_MAX: u64 = 10_000;

/// Most repetitions of one measurement.
const REPETITIONS_MAX: u64 = 1000;

/// Shortest and longest measurement. Below, the ticks of the kernel's clocks show; above, the bench
/// seems to hang.
const SECONDS_MIN: f64 = 0.01;
const SECONDS_MAX: f64 = 3600.0;

/// Text for the end of the help.
pub const EXAMPLES: &str = "\
Starts a private server in a temporary directory, on a core of its own, and drives it from another core. Prints throughput, the time \
from sending a pipeline to its last reply, and the server's CPU time per operation. On a busy machine, figures vary by a factor of two \
between runs. Ratios to a server that is measured in turn do not, and CPU time per operation varies least.

Examples:
  quipu bench
  quipu bench --with-redis                        also redis-server, in turn, and the ratios
  quipu bench --with-redis --with-floor           also a server that does nothing: the upper bound of any gain
  quipu bench --with-redis --plot bench.svg --json > bench.json
  quipu bench --modes durable --pipelines 1 --keys 1 --seconds 5
  quipu bench --command get --keys 1000,1000000
  quipu bench --server 127.0.0.1:7379 --pid 4711  a running server; creates counters bench:…";

/// The arguments of `quipu bench`.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// Also measure a private redis-server of the matching persistence mode, in turn, and print the
    /// ratios
    #[arg(long)]
    pub with_redis: bool,
    /// Also measure a server that only receives and sends the same number of bytes: the lower bound
    /// of any server
    #[arg(long)]
    pub with_floor: bool,
    /// A module that redis-server loads, such as RedisBloom's for 'cms.incrby' and 'topk.add'
    #[arg(long, value_name = "FILE", requires = "with_redis")]
    pub redis_module: Option<PathBuf>,
    /// Durability modes; each is measured separately
    #[arg(long, value_name = "MODES", value_delimiter = ',', default_value = "memory,relaxed,durable")]
    pub modes: Vec<Durability>,
    /// Commands in flight per connection
    #[arg(long, value_name = "COUNTS", value_delimiter = ',', default_value = "1,16,64,256", value_parser = count(PIPELINE_MAX))]
    pub pipelines: Vec<usize>,
    /// Number of counters that receive the commands; the bench creates all of them first
    #[arg(long, value_name = "COUNTS", value_delimiter = ',', default_value = "1,1000000", value_parser = count(KEYS_MAX))]
    pub keys: Vec<usize>,
    /// Number of connections
    #[arg(long, value_name = "COUNT", default_value = "50", value_parser = count(CONNECTIONS_MAX))]
    pub connections: usize,
    /// Length of each measurement, after a warm-up
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    pub seconds: f64,
    /// Repetitions of each measurement; the median is printed
    #[arg(long, value_name = "COUNT", default_value = "5", value_parser = count(REPETITIONS_MAX))]
    pub repetitions: usize,
    /// The command to send
    #[arg(long, value_enum, default_value = "incr")]
    pub command: Verb,
    /// Print JSON on one line
    #[arg(long)]
    pub json: bool,
    /// SVG file for a chart of the time per operation over the commands in flight
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
    /// Directory for the temporary directory, on the disk to measure
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Address of a running server to measure as it is
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = ["with_redis", "modes", "dir"])]
    pub server: Option<String>,
    /// Process id of that server if it runs on this machine, for its CPU time
    #[arg(long, requires = "server")]
    pub pid: Option<u32>,
    /// Password of the server, if it requires one
    #[arg(long, env = "QUIPU_PASSWORD", hide_env_values = true)]
    pub password: Option<String>,
}

impl BenchArgs {
    /// Number of measurements: the steps of a progress bar.
    pub fn steps(&self) -> usize {
        let servers = match self.server {
            Some(_) => 1,
            None => self.modes.len() * (1 + usize::from(self.with_redis) + usize::from(self.with_floor)),
        };
        servers * self.keys.len() * self.pipelines.len() * self.repetitions
    }
}

/// The arguments of the server that does nothing.
#[derive(Debug, Args)]
pub struct FloorArgs {
    /// The command it answers
    pub command: Verb,
    /// The address it listens at
    pub address: SocketAddr,
}

/// A whole number of at least 1.
fn count(most: u64) -> impl TypedValueParser<Value = usize> {
    clap::value_parser!(u64).range(1..=most).map(|count| count as usize)
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().map_err(|_| "it is a number of seconds".to_owned())?;
    if !(SECONDS_MIN..=SECONDS_MAX).contains(&seconds) {
        return Err(format!("it is from {SECONDS_MIN} to {SECONDS_MAX} seconds"));
    }
    Ok(seconds)
}
