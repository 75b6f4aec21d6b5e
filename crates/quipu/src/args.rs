//! Defines the command line for clap.
//!
//! The flags of `serve` are not written here: they come from the table of settings. So the flag,
//! variable and key of a setting cannot drift apart. `config` parses the values of these flags, so
//! that it reports every mistake at once.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches, Parser, Subcommand};

use quipu_model::ValueForm;

use crate::config::settings::{SETTINGS, Setting};
use crate::config::{DATA_DEFAULT, Origin, RawSetting, variables};
use crate::stores::args as stores;

/// Default address of the client commands: where `quipu serve` listens by default.
const SERVER_DEFAULT: &str = "127.0.0.1:7379";

/// Default number of names that `list` collects: about 100 MB of names at their longest.
const LIST_NAMES_MAX: &str = "100000";

const EXAMPLES: &str = "\
Examples:
  quipu serve                              serve on 127.0.0.1:7379, data in ./quipu-data
  quipu serve --durability relaxed         acks survive the process, not a loss of power
  quipu serve --config quipu.toml
  quipu config check --config quipu.toml   the effective configuration and every mistake in it
  quipu add likes:42                       1
  quipu add stock:7 -3                     -3
  quipu list likes:
  quipu inspect ./quipu-data               check that journal and ledger are whole
  quipu clock                              compare the server's time with the wall clock
  quipu audit                              compare journal and ledger, and recompute their numbers
  quipu writers                            the incarnations of this node, on a shared store
  quipu import redis://old:6379 --match 'likes:*' --store redis://10.0.0.5:6379
  quipu export --from 127.0.0.1:7379       every counter, as NDJSON
  quipu backup /backup/monday              a full copy, while counting goes on
  quipu restore /backup/monday --data ./quipu-data
  quipu bench                              measure the speed on this machine
  redis-cli -p 7379 INCR likes:42          every Redis client works
  curl -X POST 127.0.0.1:7380/v1/counters/likes:42/add";

const GET_EXAMPLES: &str = "\
The value of a unique is its estimate; the value of a frequency or a top is the total of its counts. A terminal shows a table with \
kinds and bounds; a pipe gets one value per line.

Examples:
  quipu get likes:42
  quipu get likes:42 likes:43
  quipu get visitors:today --json          with kind, bounds and exactness";

const LIST_EXAMPLES: &str = "\
A terminal shows a table with bounds. A pipe gets one line per counter: name, value and kind, separated by tabs.

Examples:
  quipu list
  quipu list likes:
  quipu list visitors: --json";

const SERVE_EXAMPLES: &str = "\
Every setting is also a key of [server] in the configuration file and a variable: --max-memory is max_memory and
QUIPU_MAX_MEMORY, --limits-connections is limits.connections and QUIPU_LIMITS_CONNECTIONS. A flag overrides a variable,
a variable the file, the file the default. Any other variable that begins with QUIPU_ is a mistake.

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
The backup contains everything acknowledged before it began. A running server writes it itself, for clients on its own \
machine only. Within one file system the backup shares the ledger's tables with the data directory, at no cost. To survive the \
loss of the disk, choose a directory on another one.

Examples:
  quipu backup /backup/monday
  quipu backup /backup/monday --server 127.0.0.1:7400
  quipu backup /backup/monday --data ./quipu-data    with the server stopped
  quipu inspect /backup/monday                       check that it is whole";

const RESTORE_EXAMPLES: &str = "\
The restored directory continues as a new writer, so the original directory may stay in use.

Examples:
  quipu restore /backup/monday --data ./quipu-data
  quipu serve --data ./quipu-data";

const WRITERS_EXAMPLES: &str = "\
A writer is one incarnation of a node. After a clean stop the next start continues the incarnation; after a crash it begins a \
new one. The new incarnation settles the unsettled changes of the earlier ones.

Examples:
  quipu writers
  quipu writers --data /var/lib/quipu --json
  quipu writers --store redis://10.0.0.5:6379      all writers of the store
  quipu writers retire WRITER --store redis://10.0.0.5:6379
  quipu writers adopt WRITER --data /var/lib/quipu --store redis://10.0.0.5:6379      the node refuses to count until then

After an absence longer than `retire_after` and twice `grace`, a node may have adds with an unknown outcome: the store has them or \
has not. `adopt` counts the adds that its directory does not know to be confirmed: all adds since the last settle with a recorded \
reply. With --drop it drops them.";

const CLOCK_EXAMPLES: &str = "\
A server's time never goes back: after a stop it continues from the newest time in its directory. If the machine's clock was wrong at \
a start, that time may lie in the future. The server then refuses every token that carries its true time, as too old. `lower` sets the \
server's time back to the wall clock. Counts do not change. The costs:

  - Tokens that the server forgot by the wrong time: it refuses those that carry a time, and may apply those without one again.
    Stop clients that retry with such tokens first.
  - An expiry that was set by the wrong time stays: the counter expires later, by the lead of that time.
  - Windows and decays with their newest pane in the future count events as late until then. Delete those counters.

Examples:
  quipu clock --data ./quipu-data                  print its lead; exit status 1 if more than a minute
  quipu clock lower --data ./quipu-data            with the server stopped and the machine's clock right again
  quipu clock lower --data ./quipu-data --store redis://10.0.0.5:6379";

const AUDIT_EXAMPLES: &str = "\
Compares ledger and journal with each other and with the numbers kept in them: counters, values, epochs, expiry, hashes, own \
cells. The result for a running node is a snapshot at one time.

Examples:
  quipu audit
  quipu audit --data /var/lib/quipu --json
  quipu audit --store redis://10.0.0.5:6379        every row of a store: valid contents, and a writer for every cell";

/// Counters that lose nothing and count nothing twice
#[derive(Debug, Parser)]
#[command(name = "quipu", version, after_help = examples())]
pub struct Cli {
    #[command(subcommand)]
    pub task: Task,
}

#[derive(Debug, Subcommand)]
pub enum Task {
    /// Serve counters over RESP, for every Redis client, and as JSON over HTTP
    #[command(after_help = SERVE_EXAMPLES)]
    Serve(ServeArgs),
    /// Add to a counter and print its value
    #[command(allow_negative_numbers = true, after_help = "Examples:\n  quipu add likes:42\n  quipu add stock:7 -3")]
    Add(ServerCall<AddArgs>),
    /// Print the values of counters, of any kind; - for a counter that does not exist
    #[command(after_help = GET_EXAMPLES)]
    Get(ServerCall<GetArgs>),
    /// Delete counters and print the number of counters deleted
    #[command(after_help = "Example:\n  quipu del likes:42")]
    Del(ServerCall<DelArgs>),
    /// Set a counter to 0 and print its old value; every add is in that value or comes after it
    #[command(after_help = "Example:\n  quipu reset likes:42")]
    Reset(ServerCall<ResetArgs>),
    /// List counters with their values and kinds
    #[command(after_help = LIST_EXAMPLES)]
    List(ServerCall<ListArgs>),
    /// Check that a server answers; exit status 1 if it does not. For health checks without a shell
    #[command(after_help = "Examples:\n  quipu health --server 127.0.0.1:7379\n  quipu health --store")]
    Health(ServerCall<HealthArgs>),
    /// Inspect the data directory of a stopped or crashed server; changes nothing
    #[command(after_help = "Examples:\n  quipu inspect ./quipu-data\n  quipu inspect ./quipu-data --dump | less")]
    Inspect(InspectArgs),
    /// Print the incarnations of a node and their cells on a shared store, or all writers of a
    /// store; changes nothing
    #[command(after_help = WRITERS_EXAMPLES)]
    Writers(stores::WritersArgs),
    /// Compare the newest time in a data directory with the wall clock; `lower` sets it back
    #[command(after_help = CLOCK_EXAMPLES)]
    Clock(ClockArgs),
    /// Recompute everything in a data directory, or check every row of a store; changes nothing,
    /// exit status 1 on drift
    #[command(after_help = AUDIT_EXAMPLES)]
    Audit(stores::DirectoryOrStoreArgs),
    /// Print the cell of each writer of a counter in a store; changes nothing
    #[command(after_help = stores::SHARDS_EXAMPLES)]
    Shards(stores::ShardsArgs),
    /// Import counters from a Redis or a PostgreSQL into a store; may be repeated, or killed and
    /// run again
    #[command(after_help = stores::IMPORT_EXAMPLES)]
    Import(stores::ImportArgs),
    /// Copy all counters from one store to another, and compare both
    #[command(after_help = stores::COPY_EXAMPLES)]
    Copy(stores::CopyArgs),
    /// Write the counters of a store, or of a running server, as NDJSON or CSV
    #[command(after_help = stores::EXPORT_EXAMPLES)]
    Export(stores::ExportArgs),
    /// Copy everything to another directory while the server goes on counting
    #[command(after_help = BACKUP_EXAMPLES)]
    Backup(BackupArgs),
    /// Make a data directory from a backup, after verifying all of it
    #[command(after_help = RESTORE_EXAMPLES)]
    Restore(RestoreArgs),
    /// Measure the speed of this server on this machine, optionally beside Redis
    #[cfg(feature = "bench")]
    #[command(after_help = quipu_bench::EXAMPLES)]
    Bench(quipu_bench::BenchArgs),
    /// A server that does nothing, for `bench --with-floor`
    #[cfg(feature = "bench")]
    #[command(hide = true)]
    BenchFloor(quipu_bench::FloorArgs),
    /// Check the configuration
    #[command(subcommand)]
    Config(ConfigTask),
    /// Print documentation that is generated from the code
    #[command(hide = true)]
    Docs {
        /// The page
        page: DocsPage,
    },
}

/// A generated page of documentation.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub enum DocsPage {
    /// Every metric: docs/metrics.md
    Metrics,
    /// Every command: docs/commands.md
    Commands,
    /// Every error: docs/errors.md
    Errors,
    /// The document of `/openapi.json`
    Openapi,
    /// Every setting, of the server and of namespaces: docs/configuration.md
    Configuration,
}

#[derive(Debug, Subcommand)]
pub enum ConfigTask {
    /// Print the effective configuration and every mistake with its line; exit status 1 on any
    /// mistake
    #[command(after_help = "Example:\n  quipu config check --config quipu.toml")]
    Check(ServeArgs),
}

/// The examples of the commands that this build has.
fn examples() -> String {
    let has = |line: &&str| cfg!(feature = "bench") || !line.starts_with("  quipu bench ");
    EXAMPLES.split_inclusive('\n').filter(has).collect()
}

/// A command to a running server, and that server.
#[derive(Debug, Args)]
pub struct ServerCall<T: Args> {
    #[command(flatten)]
    pub question: T,
    #[command(flatten)]
    pub target: ServerArgs,
}

/// The address and the password of a server.
#[derive(Debug, Args)]
pub struct ServerArgs {
    /// Address of the server: host:port, or a URL such as redis://:password@host:port
    #[arg(long, alias = "addr", value_name = "ADDRESS", env = "QUIPU_SERVER", default_value = SERVER_DEFAULT)]
    pub server: String,
    /// Password of the server, if it requires one
    #[arg(long, env = "QUIPU_PASSWORD", hide_env_values = true)]
    pub password: Option<String>,
}

#[derive(Debug, Args)]
pub struct AddArgs {
    /// The counter
    pub name: OsString,
    /// The amount to add
    #[arg(default_value_t = 1)]
    pub delta: i64,
}

#[derive(Debug, Args)]
pub struct GetArgs {
    /// The counters
    #[arg(required = true, value_name = "NAME")]
    pub names: Vec<OsString>,
    /// Print JSON, one object per line
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
    /// Also check the shared store: exit status 1 if there is none, or if it is unreachable or may
    /// forget writes
    #[arg(long)]
    pub store: bool,
}

#[derive(Debug, Args)]
pub struct ListArgs {
    /// Prefix of the names to list
    #[arg(default_value = "")]
    pub prefix: OsString,
    /// Most names to list
    #[arg(long, value_name = "COUNT", default_value = LIST_NAMES_MAX)]
    pub limit: usize,
    /// Print JSON, one object per line
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

/// A data directory to read; its server may be running.
#[derive(Debug, Args)]
pub struct DirectoryArgs {
    /// The data directory
    #[arg(long, value_name = "DIR", env = "QUIPU_DATA", default_value = DATA_DEFAULT)]
    pub data: PathBuf,
    /// Print JSON on one line
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
    /// Set the newest time in the directory of a stopped server back to the wall clock; see
    /// `quipu clock --help` for the costs
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
    /// Target: a directory on the server's machine, empty or not yet existing
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// Data directory of a stopped server to back up, instead of a running server
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
    /// The data directory to make: empty, or not yet existing
    #[arg(long, value_name = "DIR")]
    pub data: PathBuf,
}

/// The settings from flags and variables, and the file with the other settings.
#[derive(Debug, Default)]
pub struct ServeArgs {
    /// The configuration file.
    pub config: Option<PathBuf>,
    /// In the order of the table of settings; not yet checked.
    pub raw_settings: Vec<RawSetting>,
    /// Variables that begin with `QUIPU_` and have no meaning.
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
        // `--insecure` alone, or `--insecure=false` against another value in a variable or a file.
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
