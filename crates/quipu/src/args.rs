//! The command line, as clap reads it.
//!
//! The flags of `serve` are not written here: they are made from the table of settings, so that flag, variable and key of a setting
//! cannot drift apart. Their values stay text until `config` has seen all of them, so that every mistake is told at once.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::TypedValueParser;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches, Parser, Subcommand};

use quipu_model::{Durability, ValueForm};

use crate::bench::Verb;
use crate::config::settings::{SETTINGS, Setting};
use crate::config::{DATA_DEFAULT, Origin, RawSetting, variables};
use crate::stores::args as stores;

/// The address that client commands talk to unless told otherwise: where `quipu serve` listens by default.
const SERVER_DEFAULT: &str = "127.0.0.1:7379";

/// Names that `list` collects before it stops, unless told otherwise: about 100 MB of them at their longest.
const LIST_NAMES_MAX: &str = "100000";

/// Most commands in flight per connection of a bench: their replies fit what a server holds for one connection.
const PIPELINE_MAX: u64 = 10_000;

/// Most counters of a bench: its commands are made beforehand, 41 bytes each.
const KEYS_MAX: u64 = 20_000_000;

/// Most connections of a bench: as many as a server accepts by default.
const CONNECTIONS_MAX: u64 = 10_000;

/// Most measurements of one figure.
const REPETITIONS_MAX: u64 = 1000;

/// Shortest and longest measurement: below, ticks of the kernel's clocks show; above, it hangs.
const SECONDS_MIN: f64 = 0.01;
const SECONDS_MAX: f64 = 3600.0;

const ACCURACY_EXAMPLES: &str = "\
Examples:
  quipu accuracy                           some minutes on two cores
  quipu accuracy --quick
  quipu accuracy --plot ./plots --json";

const EXAMPLES: &str = "\
Examples:
  quipu serve                              count on 127.0.0.1:7379, data in ./quipu-data
  quipu serve --durability relaxed         acks survive the process, not a loss of power
  quipu serve --config quipu.toml
  quipu config check --config quipu.toml   the effective configuration and every mistake in it
  quipu add likes:42                       1
  quipu add stock:7 -3                     -3
  quipu list likes:
  quipu inspect ./quipu-data               are journal and ledger whole?
  quipu clock                              is the server's time where the wall clock is?
  quipu audit                              do they say the same, and are their numbers right?
  quipu writers                            the lives of this node, on a shared store
  quipu import redis://old:6379 --match 'likes:*' --store redis://10.0.0.5:6379
  quipu export --from 127.0.0.1:7379       every counter, as NDJSON
  quipu backup /backup/monday              a copy of everything, while counting goes on
  quipu restore /backup/monday --data ./quipu-data
  quipu bench                              how fast is it here?
  redis-cli -p 7379 INCR likes:42          every Redis client works
  curl -X POST 127.0.0.1:7380/v1/counters/likes:42/add";

const GET_EXAMPLES: &str = "\
Of a unique the value is the estimate, of a frequency or a top how much came in all. A terminal shows a table with kinds and bounds; \
a pipe gets one value a line.

Examples:
  quipu get likes:42
  quipu get likes:42 likes:43
  quipu get visitors:today --json          with kind, bounds and whether it is exact";

const LIST_EXAMPLES: &str = "\
A terminal shows a table with bounds; a pipe gets a line for each counter: name, value, kind, with tabs between them.

Examples:
  quipu list
  quipu list likes:
  quipu list visitors: --json";

const SERVE_EXAMPLES: &str = "\
Every setting is also a key of [server] in the configuration file and a variable: --segment-bytes is segment_bytes and
QUIPU_SEGMENT_BYTES, --limits-connections is limits.connections and QUIPU_LIMITS_CONNECTIONS. A flag goes before a variable, a
variable before the file, the file before the default. Any other variable that begins with QUIPU_ is a mistake.

Examples:
  quipu serve
  quipu serve --data /var/lib/quipu --resp 127.0.0.1:7379 --http 127.0.0.1:7380
  QUIPU_PASSWORD=secret quipu serve --resp 0.0.0.0:7379
  quipu serve --config quipu.toml --workers 4

  quipu.toml:
    [server]
    data = \"/var/lib/quipu\"
    limits.connections = 20000

    [namespace.views]
    durability = \"relaxed\"";

const BACKUP_EXAMPLES: &str = "\
The backup has everything that was acknowledged before it began. A running server makes it itself, for clients on its own \
machine. Within one file system the backup shares the ledger's tables with the data directory, which costs nothing; to survive \
the disk, name a place on another one.

Examples:
  quipu backup /backup/monday
  quipu backup /backup/monday --server 127.0.0.1:7400
  quipu backup /backup/monday --data ./quipu-data    the server is stopped
  quipu inspect /backup/monday                       is it whole?";

const RESTORE_EXAMPLES: &str = "\
The restored directory goes on as a new writer, so the one it was copied from may live on.

Examples:
  quipu restore /backup/monday --data ./quipu-data
  quipu serve --data ./quipu-data";

const WRITERS_EXAMPLES: &str = "\
A writer is a node in one of its lives: a start goes on with the last one after a clean stop and begins a new one after a crash. \
What a life that is over has not settled, the next one settles for it.

Examples:
  quipu writers
  quipu writers --data /var/lib/quipu --json
  quipu writers --store redis://10.0.0.5:6379      everybody who writes to the store
  quipu writers retire WRITER --store redis://10.0.0.5:6379
  quipu writers adopt WRITER --data /var/lib/quipu --store redis://10.0.0.5:6379      its node refuses to count until this is said

A node that was away for longer than `retire_after` and twice `grace` may have adds of which nobody can tell any more whether the store has them. \
`adopt` counts those that its directory does not know to be confirmed: all that was added since the last settle it has heard of. With --drop they are not.";

const CLOCK_EXAMPLES: &str = "\
A server's time never goes back: after a stop it goes on from the newest time in its directory. If the machine's clock was wrong when \
the server started, that time may lie in the future, and every token that carries its true time is refused as too old. `lower` puts \
it back to the wall clock. Counts do not change. What it costs:

  - Tokens that the server had forgotten by the wrong time: those that carry a time are refused, those that carry none may be applied
    again. Stop clients that retry with such tokens first.
  - Expiry that was set by the wrong time stays: such a counter expires later, by as much as the time was ahead.
  - Windows and decays whose newest pane lies in the future count events as late until then: delete those counters.

Examples:
  quipu clock --data ./quipu-data                  how far is it ahead? Exit status 1 if by more than a minute
  quipu clock lower --data ./quipu-data            the server is stopped, and the machine's clock is right again
  quipu clock lower --data ./quipu-data --store redis://10.0.0.5:6379";

const AUDIT_EXAMPLES: &str = "\
Compares what ledger and journal say with each other and with the numbers kept in them: counters, values, epochs, expiry, hashes, \
own cells. Of a running node, what is found is a moment of it.

Examples:
  quipu audit
  quipu audit --data /var/lib/quipu --json
  quipu audit --store redis://10.0.0.5:6379        every row of a store: can we have written it, has every cell a writer?";

const BENCH_EXAMPLES: &str = "\
Starts a private server in a temporary directory, on a core of its own, drives it from another core and prints throughput, the time \
from sending a pipeline to its last reply, and the server's CPU time per operation. Figures of a busy machine move by a factor of two \
between runs; ratios to a server that was measured in turn with it do not, and CPU time per operation moves least.

Examples:
  quipu bench
  quipu bench --with-redis                        redis-server too, in turn, and the ratios
  quipu bench --with-redis --with-floor           and a server that does nothing: the most that can be gained
  quipu bench --with-redis --plot bench.svg --json > bench.json
  quipu bench --modes durable --pipelines 1 --keys 1 --seconds 5
  quipu bench --command get --keys 1000,1000000
  quipu bench --server 127.0.0.1:7379 --pid 4711  one that runs; makes counters bench:…";

/// Counters that lose nothing and count nothing twice.
#[derive(Debug, Parser)]
#[command(name = "quipu", version, after_help = EXAMPLES)]
pub struct Cli {
    #[command(subcommand)]
    pub task: Task,
}

#[derive(Debug, Subcommand)]
pub enum Task {
    /// Serve counters: RESP for every Redis client, JSON over HTTP for everybody else
    #[command(after_help = SERVE_EXAMPLES)]
    Serve(ServeArgs),
    /// Add to a counter and print its value
    #[command(allow_negative_numbers = true, after_help = "Examples:\n  quipu add likes:42\n  quipu add stock:7 -3")]
    Add(ServerCall<AddArgs>),
    /// Print the values of counters, of any kind; - for one that is not there
    #[command(after_help = GET_EXAMPLES)]
    Get(ServerCall<GetArgs>),
    /// Delete counters and print how many there were
    #[command(after_help = "Example:\n  quipu del likes:42")]
    Del(ServerCall<DelArgs>),
    /// Set a counter to 0 and print what it had; every add is in that value or comes after it
    #[command(after_help = "Example:\n  quipu reset likes:42")]
    Reset(ServerCall<ResetArgs>),
    /// List counters with their values and kinds
    #[command(after_help = LIST_EXAMPLES)]
    List(ServerCall<ListArgs>),
    /// Ask a server whether it answers; exit status 1 if it does not. For health checks where there is no shell
    #[command(after_help = "Examples:\n  quipu health --server 127.0.0.1:7379\n  quipu health --store")]
    Health(ServerCall<HealthArgs>),
    /// Look into the data directory of a stopped or crashed server; changes nothing
    #[command(after_help = "Examples:\n  quipu inspect ./quipu-data\n  quipu inspect ./quipu-data --dump | less")]
    Inspect(InspectArgs),
    /// Print the lives of a node and what each still says on a shared store, or all writers of a store; changes nothing
    #[command(after_help = WRITERS_EXAMPLES)]
    Writers(stores::WritersArgs),
    /// Compare the newest time in a data directory with the wall clock; `lower` puts it back
    #[command(after_help = CLOCK_EXAMPLES)]
    Clock(ClockArgs),
    /// Count everything in a data directory again, or check every row of a store; changes nothing, exit status 1 if something has drifted
    #[command(after_help = AUDIT_EXAMPLES)]
    Audit(stores::DirectoryOrStoreArgs),
    /// Print what each writer says of a counter in a store; changes nothing
    #[command(after_help = stores::SHARDS_EXAMPLES)]
    Shards(stores::ShardsArgs),
    /// Import counters from a Redis or a PostgreSQL into a store; may be repeated, and killed and run again
    #[command(after_help = stores::IMPORT_EXAMPLES)]
    Import(stores::ImportArgs),
    /// Copy all counters from one store to another, and compare
    #[command(after_help = stores::COPY_EXAMPLES)]
    Copy(stores::CopyArgs),
    /// Write the counters of a store, or of a server that runs, as NDJSON or CSV
    #[command(after_help = stores::EXPORT_EXAMPLES)]
    Export(stores::ExportArgs),
    /// Copy everything to another directory, while the server goes on counting
    #[command(after_help = BACKUP_EXAMPLES)]
    Backup(BackupArgs),
    /// Make a data directory from a backup, after verifying all of it
    #[command(after_help = RESTORE_EXAMPLES)]
    Restore(RestoreArgs),
    /// Measure how fast this server is on this machine, beside Redis if asked for
    #[command(after_help = BENCH_EXAMPLES)]
    Bench(BenchArgs),
    /// A server that does nothing, for `bench --with-floor`
    #[command(hide = true)]
    BenchFloor {
        /// What it is asked for
        command: Verb,
        /// Where it listens
        address: std::net::SocketAddr,
    },
    /// Measure the errors of all approximate kinds, beside what is published
    #[command(after_help = ACCURACY_EXAMPLES)]
    Accuracy(AccuracyArgs),
    /// Look at the configuration
    #[command(subcommand)]
    Config(ConfigTask),
    /// Print documentation that is made from the code
    #[command(hide = true)]
    Docs {
        /// Which page
        page: DocsPage,
    },
}

/// A page of documentation.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub enum DocsPage {
    /// Every metric: docs/metrics.md
    Metrics,
    /// Every command: docs/commands.md
    Commands,
    /// Every error: docs/errors.md
    Errors,
    /// What `/openapi.json` says
    Openapi,
    /// Every setting, of the server and of namespaces: docs/configuration.md
    Configuration,
}

#[derive(Debug, Args)]
pub struct AccuracyArgs {
    /// Run for seconds instead of minutes; the figures have more noise then
    #[arg(long)]
    pub quick: bool,
    /// Where chance begins; the same number gives the same figures
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub seed: u64,
    /// Draw errors over items and over memory into this directory, as SVG
    #[arg(long, value_name = "DIRECTORY")]
    pub plot: Option<PathBuf>,
    /// Print one JSON value
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Subcommand)]
pub enum ConfigTask {
    /// Print the effective configuration and every mistake with its line; exit status 1 if there is any
    #[command(after_help = "Example:\n  quipu config check --config quipu.toml")]
    Check(ServeArgs),
}

/// A question to a running server.
#[derive(Debug, Args)]
pub struct ServerCall<T: Args> {
    #[command(flatten)]
    pub question: T,
    #[command(flatten)]
    pub target: ServerArgs,
}

/// Which server.
#[derive(Debug, Args)]
pub struct ServerArgs {
    /// Where the server listens: host:port, or a URL such as redis://:password@host:port
    #[arg(long, alias = "addr", value_name = "ADDRESS", env = "QUIPU_SERVER", default_value = SERVER_DEFAULT)]
    pub server: String,
    /// Its password, if it asks for one
    #[arg(long, env = "QUIPU_PASSWORD", hide_env_values = true)]
    pub password: Option<String>,
}

#[derive(Debug, Args)]
pub struct AddArgs {
    /// The counter
    pub name: OsString,
    /// What to add
    #[arg(default_value_t = 1)]
    pub delta: i64,
}

#[derive(Debug, Args)]
pub struct GetArgs {
    /// The counters
    #[arg(required = true, value_name = "NAME")]
    pub names: Vec<OsString>,
    /// Print JSON, an object a line
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct DelArgs {
    /// The counters
    #[arg(required = true, value_name = "NAME")]
    pub names: Vec<OsString>,
}

#[derive(Debug, Args)]
pub struct ResetArgs {
    /// The counter
    pub name: OsString,
}

#[derive(Debug, Args)]
pub struct HealthArgs {
    /// Ask for its shared store, too: exit status 1 if that cannot be reached or forgets, or if there is none
    #[arg(long)]
    pub store: bool,
}

#[derive(Debug, Args)]
pub struct ListArgs {
    /// Only counters whose names begin with this
    #[arg(default_value = "")]
    pub prefix: OsString,
    /// Stop after this many
    #[arg(long, value_name = "COUNT", default_value = LIST_NAMES_MAX)]
    pub limit: usize,
    /// Print JSON, an object a line
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct InspectArgs {
    /// The data directory
    #[arg(value_name = "DIR")]
    pub data: PathBuf,
    /// Print every record
    #[arg(long)]
    pub dump: bool,
}

/// A data directory to be looked at; its server may run.
#[derive(Debug, Args)]
pub struct DirectoryArgs {
    /// The data directory
    #[arg(long, value_name = "DIR", env = "QUIPU_DATA", default_value = DATA_DEFAULT)]
    pub data: PathBuf,
    /// Print JSON, on one line
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct ClockArgs {
    #[command(flatten)]
    pub directory: DirectoryArgs,
    #[command(subcommand)]
    pub task: Option<ClockTask>,
}

#[derive(Debug, Subcommand)]
pub enum ClockTask {
    /// Put the newest time in the directory of a stopped server back to the wall clock; see `quipu clock --help` for what it costs
    Lower(ClockLowerArgs),
}

#[derive(Debug, Args)]
pub struct ClockLowerArgs {
    #[command(flatten)]
    pub directory: DirectoryArgs,
    /// The shared store that the directory has joined, if any
    #[arg(long, value_name = "URL", env = "QUIPU_STORE", hide_env_values = true)]
    pub store: Option<String>,
}

#[derive(Debug, Args)]
pub struct BackupArgs {
    /// Where to: a directory that is empty or does not exist yet, on the server's machine
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// Back up this data directory of a stopped server instead of asking a running one
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    #[command(flatten)]
    pub target: ServerArgs,
}

#[derive(Debug, Args)]
pub struct RestoreArgs {
    /// The backup
    #[arg(value_name = "BACKUP")]
    pub backup: PathBuf,
    /// The data directory to make: empty, or not there yet
    #[arg(long, value_name = "DIR")]
    pub data: PathBuf,
}

#[derive(Debug, Args)]
pub struct BenchArgs {
    /// Also measure a private redis-server of the matching persistence mode, in turn, and print the ratios
    #[arg(long)]
    pub with_redis: bool,
    /// Also measure a server that does nothing but receive and send as many bytes: what no server can go below
    #[arg(long)]
    pub with_floor: bool,
    /// A module that redis-server loads, such as RedisBloom's for 'cms.incrby' and 'topk.add'
    #[arg(long, value_name = "FILE", requires = "with_redis")]
    pub redis_module: Option<PathBuf>,
    /// What an ack means: each is measured by itself
    #[arg(long, value_name = "MODES", value_delimiter = ',', default_value = "memory,relaxed,durable")]
    pub modes: Vec<Durability>,
    /// Commands in flight per connection
    #[arg(long, value_name = "COUNTS", value_delimiter = ',', default_value = "1,16,64,256", value_parser = count(PIPELINE_MAX))]
    pub pipelines: Vec<usize>,
    /// Counters that the commands are spread over; all are made first
    #[arg(long, value_name = "COUNTS", value_delimiter = ',', default_value = "1,1000000", value_parser = count(KEYS_MAX))]
    pub keys: Vec<usize>,
    /// Connections
    #[arg(long, value_name = "COUNT", default_value = "50", value_parser = count(CONNECTIONS_MAX))]
    pub connections: usize,
    /// How long each measurement takes, after a warm-up
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    pub seconds: f64,
    /// Measurements of each, of which the median is printed
    #[arg(long, value_name = "COUNT", default_value = "5", value_parser = count(REPETITIONS_MAX))]
    pub repetitions: usize,
    /// What is asked for
    #[arg(long, value_enum, default_value = "incr")]
    pub command: Verb,
    /// Print JSON, on one line
    #[arg(long)]
    pub json: bool,
    /// Draw time per operation against commands in flight, as SVG
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
    /// Where the temporary directory is made: on the disk to be measured
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Measure a server that runs already, as it is
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = ["with_redis", "modes", "dir"])]
    pub server: Option<String>,
    /// Its process, if it runs on this machine: for its CPU time
    #[arg(long, requires = "server")]
    pub pid: Option<u32>,
    /// Its password, if it asks for one
    #[arg(long, env = "QUIPU_PASSWORD", hide_env_values = true)]
    pub password: Option<String>,
}

/// A whole number from 1 on.
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

/// The settings given as flags or variables, and the file that has the others.
#[derive(Debug, Default)]
pub struct ServeArgs {
    /// The configuration file.
    pub config: Option<PathBuf>,
    /// In the order of the table of settings; not yet checked.
    pub raw_settings: Vec<RawSetting>,
    /// Variables that begin with `QUIPU_` and that nothing reads.
    pub unknown_variables: Vec<String>,
}

impl Args for ServeArgs {
    fn augment_args(command: Command) -> Command {
        let config = Arg::new("config")
            .long("config")
            .env("QUIPU_CONFIG")
            .value_name("FILE")
            .value_parser(clap::value_parser!(PathBuf))
            .help("The configuration file (TOML)");
        SETTINGS.iter().fold(command.arg(config), |command, setting| command.arg(setting_arg(setting)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        ServeArgs::augment_args(command)
    }
}

impl FromArgMatches for ServeArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<ServeArgs, clap::Error> {
        let raw = SETTINGS.iter().filter_map(|setting| {
            let text = matches.get_one::<String>(setting.key)?.clone();
            let origin = match matches.value_source(setting.key)? {
                ValueSource::EnvVariable => Origin::Variable(setting.variable()),
                _ => Origin::Flag(setting.flag()),
            };
            Some(RawSetting { setting, text, origin })
        });
        let names = std::env::vars_os().map(|(name, _)| name.to_string_lossy().into_owned());
        Ok(ServeArgs {
            config: matches.get_one::<PathBuf>("config").cloned(),
            raw_settings: raw.collect(),
            unknown_variables: variables::unknown(names),
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = ServeArgs::from_arg_matches(matches)?;
        Ok(())
    }
}

fn setting_arg(setting: &'static Setting) -> Arg {
    let help = match setting.default_text() {
        Some(default) => format!("{} [default: {default}]", setting.help),
        None => setting.help.to_owned(),
    };
    let arg = Arg::new(setting.key)
        .long(setting.flag())
        .env(setting.variable())
        .hide_env(true)
        .value_name(setting.form.value_name())
        .help(help);
    match setting.form {
        // `--insecure` alone, or `--insecure=false` against a variable or a file that says otherwise.
        ValueForm::Switch => arg.num_args(0..=1).require_equals(true).default_missing_value("true"),
        _ => arg.allow_hyphen_values(true),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_negative_delta_is_a_number_and_not_a_flag() {
        let cli = Cli::try_parse_from(["quipu", "add", "stock:7", "-3"]).unwrap();
        let Task::Add(call) = cli.task else { panic!("{cli:?}") };
        assert_eq!((call.question.name.to_str(), call.question.delta), (Some("stock:7"), -3));
        assert!(Cli::try_parse_from(["quipu", "add", "stock:7", "-x"]).is_err());
    }

    #[test]
    fn flags_are_kept_as_text_with_where_they_came_from() {
        let line = ["quipu", "serve", "--workers", "many", "--limits-connections=5", "--insecure"];
        let Task::Serve(flags) = Cli::try_parse_from(line).unwrap().task else { panic!() };
        let raw = |key| flags.raw_settings.iter().find(|raw| raw.setting.key == key).map(|raw| raw.text.as_str());
        assert_eq!(raw("workers"), Some("many"));
        assert_eq!(raw("limits.connections"), Some("5"));
        assert_eq!(raw("insecure"), Some("true"));
        assert_eq!(raw("data"), None);
    }
}
