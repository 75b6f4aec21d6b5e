//! The command lines of the commands against a store, as clap reads them.
//!
//! URLs stay text here: what clap says of a value that it cannot read has the value in it, and that has a password.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use crate::args::DirectoryArgs;

pub const IMPORT_EXAMPLES: &str = "\
An import is a writer of the store, named after its source: what the source has is what that writer has counted. Run again, it says \
so again, with what is newer, and never adds: it may be repeated, and killed and run again. Counters go on being counted in the store \
meanwhile; what they are added to here and there adds up.

Of Redis, strings that are integers and HyperLogLogs are imported, with their expiry; of a server of ours, counts and sketches. Every other key is \
listed with its reason, and counted; --strict: exit status 1. An import that fails before it has put anything leaves nothing behind.

--done ends it once the source is no longer counted in: its counts become part of the counters, and the source is not imported again.

Examples:
  quipu import redis://127.0.0.1:6379 --match 'likes:*' --store redis://10.0.0.5:6379
  quipu import postgres://app@db/shop --query \"select 'likes:' || id, likes from posts\" --store postgres://quipu@db/counts
  quipu import redis://127.0.0.1:6379 --store redis://10.0.0.5:6379 --done";

pub const COPY_EXAMPLES: &str = "\
Every counter's cells go to the other store as they are, writer by writer; the newest of each writer stays. So a copy may be repeated, \
killed and run again, and copied back: nothing counts twice. A counter that could only be added to what the target has by itself, or that \
would lose counts of the target, is refused and listed with the reason. Sketches and tokens are not copied; sketches are listed.

Then every counter is read in both and compared. Exit status 1 if any was refused or differs. Stop counting in the source first, or expect \
those that went on to differ.

The copied writers stay registered in the target, with leases without end: they may live on in the source. A node that moves to the target with \
its data directory finds its cells there, and they count once. --done, once nothing counts in the source any more, has the others retired.

Examples:
  quipu copy --from redis://10.0.0.5:6379 --to postgres://quipu@db/counts
  quipu copy --from redis://10.0.0.5:6379 --to redis-cluster://10.0.0.6:7000 --done
  quipu copy --from redis://10.0.0.5:6379 --to postgres://quipu@db/counts --verify-only";

pub const EXPORT_EXAMPLES: &str = "\
One counter a line: name, kind, value of a count or body of a sketch, and when it expires (milliseconds since 1970). A name that is \
no UTF-8 is in name_base64 instead of name; a value beyond 2^53 is a string. A sketch has form (layout of the body), key (fingerprint of \
the secret that items are hashed under) and body_base64. What cannot be carried is counted by reason on stderr.

Examples:
  quipu export --store redis://10.0.0.5:6379 > counters.ndjson
  quipu export --store postgres://quipu@db/counts --match 'likes:*' --format csv --out likes.csv
  quipu export --from 127.0.0.1:7379";

pub const SHARDS_EXAMPLES: &str = "\
Examples:
  quipu shards likes:42 --store redis://10.0.0.5:6379
  quipu shards likes:42 --store postgres://quipu@db/counts --json";

/// Which store.
#[derive(Debug, Args)]
pub struct StoreArgs {
    /// The URL of the store
    #[arg(long, value_name = "URL", env = "QUIPU_STORE", hide_env_values = true)]
    pub store: String,
}

#[derive(Debug, Args)]
pub struct ImportArgs {
    /// Where from: redis://… (integers, HyperLogLogs; of a server of ours all counters) or postgres://… (with --query)
    #[arg(value_name = "SOURCE")]
    pub source: String,
    /// Only keys that match this glob, of Redis
    #[arg(long = "match", value_name = "GLOB")]
    pub pattern: Option<String>,
    /// What to ask PostgreSQL for: the first column is the name (text or bytea), the second the value (an integer)
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

/// The secret that the nodes of a store hash items with.
#[derive(Debug, Args)]
pub struct StoreSecretArgs {
    /// The `store_secret` of the store's nodes: an import needs it for sketches, an export for top lists of several nodes.
    /// HyperLogLogs of Redis need none
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

/// How an import goes.
#[derive(Debug, Args)]
pub struct ImportRunArgs {
    /// The name of the import, instead of that of its source: runs under one name are one writer
    #[arg(long = "as", value_name = "NAME")]
    pub name: Option<String>,
    /// It was the last run: have its writer retired. The same source is refused from then on
    #[arg(long)]
    pub done: bool,
    /// Print JSON, on one line
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
    /// Only counters whose names match this glob
    #[arg(long = "match", value_name = "GLOB")]
    pub pattern: Option<String>,
    /// Copy nothing, only compare
    #[arg(long, conflicts_with_all = ["done", "strict"])]
    pub verify_only: bool,
    /// It was the last run: have the source's nodes retired in the target
    #[arg(long)]
    pub done: bool,
    /// Exit with status 1 if anything was skipped
    #[arg(long)]
    pub strict: bool,
    /// Print JSON, on one line
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct ExportArgs {
    /// The URL of the store
    #[arg(long, value_name = "URL", required_unless_present = "from", conflicts_with = "from")]
    pub store: Option<String>,
    /// Or the address of a server that runs
    #[arg(long, value_name = "ADDRESS")]
    pub from: Option<String>,
    /// Its password, if it asks for one
    #[arg(long, env = "QUIPU_PASSWORD", hide_env_values = true)]
    pub password: Option<String>,
    /// Only counters whose names match this glob
    #[arg(long = "match", value_name = "GLOB")]
    pub pattern: Option<String>,
    /// How to write them
    #[arg(long, value_enum, default_value = "ndjson")]
    pub format: ExportFormat,
    /// Where to, instead of stdout; there once it is whole
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    #[command(flatten)]
    pub secret: StoreSecretArgs,
    /// Exit with status 1 if anything was left out
    #[arg(long)]
    pub strict: bool,
}

/// How counters are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ExportFormat {
    /// A JSON object a line
    Ndjson,
    /// With a header: name, name_base64, value, expires_at, kind, form, key, body_base64
    Csv,
}

#[derive(Debug, Args)]
pub struct ShardsArgs {
    /// The counter
    pub name: std::ffi::OsString,
    #[command(flatten)]
    pub store: StoreArgs,
    /// Print JSON, on one line
    #[arg(long)]
    pub json: bool,
}

/// A data directory, or a store instead.
#[derive(Debug, Args)]
pub struct DirectoryOrStoreArgs {
    #[command(flatten)]
    pub directory: DirectoryArgs,
    /// Look into this shared store instead
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
    /// Have a writer of a store retired that will not come back: any node that runs closes its cells, and folds them after `grace`
    Retire(RetireArgs),
    /// Decide what becomes of the adds of a life of a stopped node that its store has forgotten: then the node can start again
    Adopt(AdoptArgs),
}

#[derive(Debug, Args)]
pub struct RetireArgs {
    /// The writer, as `quipu writers --store` shows it
    #[arg(value_name = "WRITER")]
    pub writer: String,
    #[command(flatten)]
    pub store: StoreArgs,
    /// Even if its lease is current. A node that runs then goes on as a new writer
    #[arg(long)]
    pub force: bool,
}

#[derive(Debug, Args)]
pub struct AdoptArgs {
    /// The writer, as the node named it
    #[arg(value_name = "WRITER")]
    pub writer: String,
    #[command(flatten)]
    pub store: StoreArgs,
    #[command(flatten)]
    pub directory: DirectoryArgs,
    /// Drop the adds that the store is not known to have, instead of counting them
    #[arg(long)]
    pub drop: bool,
}
