//! Defines the command lines of the commands against a store, for clap.
//!
//! URLs stay text here: clap repeats an invalid value in its message, and a URL may hold a
//! password.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use crate::args::DirectoryArgs;

pub const IMPORT_EXAMPLES: &str = "\
An import is a writer of the store, named after its source; its cells hold the source's counts. A repeated run puts the newer \
counts in their place and never adds, so an import may be repeated, or killed and run again. Nodes may keep counting in the store \
meanwhile: the sum contains their adds and the imported counts.

A Redis provides strings that are integers, and HyperLogLogs, with their expiry. A Quipu server provides counts and sketches. The \
report lists every other key with its reason and their number; with --strict the exit status is then 1. An import that fails before \
its first put leaves nothing behind.

--done ends the import after the counting in the source has stopped. Its counts then become part of the counters, and the store \
refuses another import of that source.

Examples:
  quipu import redis://127.0.0.1:6379 --match 'likes:*' --store redis://10.0.0.5:6379
  quipu import postgres://app@db/shop --query \"select 'likes:' || id, likes from posts\" --store postgres://quipu@db/counts
  quipu import redis://127.0.0.1:6379 --store redis://10.0.0.5:6379 --done";

pub const COPY_EXAMPLES: &str = "\
A copy carries the cells of every counter to the other store unchanged, writer by writer; the newest cell of each writer wins. So a \
copy may be repeated, killed and run again, and copied back: nothing counts twice. The command refuses a counter if the copy \
would add to the target's own counts, or would lose some of them; it lists such counters with the reason. It copies no tokens and no \
sketches; it lists the sketches.

The command then reads every counter in both stores and compares the values. Exit status 1 if a counter was refused or differs. Stop \
the counting in the source first; otherwise counters that change meanwhile may differ.

The copied writers stay registered in the target, with leases without end, since they may continue in the source. A node that moves \
to the target with its data directory finds its cells there, and they count once. --done, after the counting in the source has \
stopped, retires the other writers.

Examples:
  quipu copy --from redis://10.0.0.5:6379 --to postgres://quipu@db/counts
  quipu copy --from redis://10.0.0.5:6379 --to redis-cluster://10.0.0.6:7000 --done
  quipu copy --from redis://10.0.0.5:6379 --to postgres://quipu@db/counts --verify-only";

pub const EXPORT_EXAMPLES: &str = "\
One line per counter: name, kind, value of a count or body of a sketch, and expiry in milliseconds since 1970. A name that is not \
UTF-8 is in name_base64 instead of name; a value beyond 2^53 is a string. A sketch has form (layout of the body), key (fingerprint of \
the items' hash secret) and body_base64. On stderr the command prints the number of counters left out, by reason.

Examples:
  quipu export --store redis://10.0.0.5:6379 > counters.ndjson
  quipu export --store postgres://quipu@db/counts --match 'likes:*' --format csv --out likes.csv
  quipu export --from 127.0.0.1:7379";

pub const SHARDS_EXAMPLES: &str = "\
Examples:
  quipu shards likes:42 --store redis://10.0.0.5:6379
  quipu shards likes:42 --store postgres://quipu@db/counts --json";

/// The URL of a store.
#[derive(Debug, Args)]
pub struct StoreArgs {
    /// The URL of the store
    #[arg(long, value_name = "URL", env = "QUIPU_STORE", hide_env_values = true)]
    pub store: String,
}

#[derive(Debug, Args)]
pub struct ImportArgs {
    /// Source URL: redis://… (integers, HyperLogLogs; of a Quipu server all counters) or
    /// postgres://… (with --query)
    #[arg(value_name = "SOURCE")]
    pub source: String,
    /// Glob of the keys to import, for Redis
    #[arg(long = "match", value_name = "GLOB")]
    pub pattern: Option<String>,
    /// Query for PostgreSQL: the first column is the name (text or bytea), the second the value (an
    /// integer)
    #[arg(long, value_name = "SQL")]
    pub query: Option<String>,
    #[command(flatten)]
    pub store: StoreArgs,
    #[command(flatten)]
    pub run: ImportRunArgs,
    #[command(flatten)]
    pub secret: StoreSecretArgs,
    /// Exit with status 1 if anything was skipped
    #[arg(long)]
    pub strict: bool,
}

/// The secret under which the nodes of a store hash items.
#[derive(Debug, Args)]
pub struct StoreSecretArgs {
    /// The `store_secret` of the store's nodes. An import needs it for sketches, an export for top
    /// lists of several nodes; HyperLogLogs of Redis need none
    #[arg(
        long,
        value_name = "TEXT",
        env = "QUIPU_STORE_SECRET",
        hide_env_values = true,
        default_value = "",
        hide_default_value = true
    )]
    pub store_secret: String,
}

/// The options of an import's run.
#[derive(Debug, Args)]
pub struct ImportRunArgs {
    /// Name of the import, instead of its source's name: runs under one name are one writer
    #[arg(long = "as", value_name = "NAME")]
    pub name: Option<String>,
    /// Mark this as the last run: its writer is retired, and the same source is refused from then
    /// on
    #[arg(long)]
    pub done: bool,
    /// Print JSON on one line
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct CopyArgs {
    /// The store to copy
    #[arg(long, value_name = "URL")]
    pub from: String,
    /// The store to copy it to
    #[arg(long, value_name = "URL")]
    pub to: String,
    /// Glob of the names to copy
    #[arg(long = "match", value_name = "GLOB")]
    pub pattern: Option<String>,
    /// Copy nothing, only compare
    #[arg(long, conflicts_with_all = ["done", "strict"])]
    pub verify_only: bool,
    /// Mark this as the last run: the source's nodes are retired in the target
    #[arg(long)]
    pub done: bool,
    /// Exit with status 1 if anything was skipped
    #[arg(long)]
    pub strict: bool,
    /// Print JSON on one line
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct ExportArgs {
    /// The URL of the store
    #[arg(long, value_name = "URL", required_unless_present = "from", conflicts_with = "from")]
    pub store: Option<String>,
    /// Address of a running server, instead of a store
    #[arg(long, value_name = "ADDRESS")]
    pub from: Option<String>,
    /// Password of the server, if it requires one
    #[arg(long, env = "QUIPU_PASSWORD", hide_env_values = true)]
    pub password: Option<String>,
    /// Glob of the names to export
    #[arg(long = "match", value_name = "GLOB")]
    pub pattern: Option<String>,
    /// Output format
    #[arg(long, value_enum, default_value = "ndjson")]
    pub format: ExportFormat,
    /// Output file, instead of stdout; it appears once it is complete
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    #[command(flatten)]
    pub secret: StoreSecretArgs,
    /// Exit with status 1 if anything was left out
    #[arg(long)]
    pub strict: bool,
}

/// The output format of an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ExportFormat {
    /// One JSON object per line
    Ndjson,
    /// CSV with a header: name, name_base64, value, expires_at, kind, form, key, body_base64
    Csv,
}

#[derive(Debug, Args)]
pub struct ShardsArgs {
    /// The counter
    pub name: std::ffi::OsString,
    #[command(flatten)]
    pub store: StoreArgs,
    /// Print JSON on one line
    #[arg(long)]
    pub json: bool,
}

/// A data directory, or a store instead.
#[derive(Debug, Args)]
pub struct DirectoryOrStoreArgs {
    #[command(flatten)]
    pub directory: DirectoryArgs,
    /// Read this shared store instead of a data directory
    #[arg(long, value_name = "URL")]
    pub store: Option<String>,
}

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct WritersArgs {
    #[command(flatten)]
    pub place: DirectoryOrStoreArgs,
    #[command(subcommand)]
    pub task: Option<WritersTask>,
}

#[derive(Debug, Subcommand)]
pub enum WritersTask {
    /// Retire a writer that will not come back: a running node closes its cells, and folds them
    /// after `grace`
    Retire(RetireArgs),
    /// Count or drop the unconfirmed adds of an incarnation that its store has forgotten; the
    /// stopped node can then start again
    Adopt(AdoptArgs),
}

#[derive(Debug, Args)]
pub struct RetireArgs {
    /// The writer, as in the output of `quipu writers --store`
    #[arg(value_name = "WRITER")]
    pub writer: String,
    #[command(flatten)]
    pub store: StoreArgs,
    /// Retire it even if its lease is current; its node, if running, goes on as a new writer
    #[arg(long)]
    pub force: bool,
}

#[derive(Debug, Args)]
pub struct AdoptArgs {
    /// The writer, as in the node's message
    #[arg(value_name = "WRITER")]
    pub writer: String,
    #[command(flatten)]
    pub store: StoreArgs,
    #[command(flatten)]
    pub directory: DirectoryArgs,
    /// Drop the unconfirmed adds instead of counting them
    #[arg(long)]
    pub drop: bool,
}
