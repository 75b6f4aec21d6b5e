//! Simulates one incarnation of a single node, step by step, and judges the disk after a crash at
//! any moment.
//!
//! In: a machine, its engine, the state that the engine recovered. Out: a [`Trace`], and from it
//! the verdict on every image of the disk.
//!
//! ```text
//! commands     names and commands, drawn at random
//! incarnation  workers: commands → apply → fill → write, sync → replies; loads
//! lanes        adds without a reply, and their joins
//! background   seals, sweeps, evictions, backups, jumps of the clock
//! model, tokens   every command a second time, as plainly as possible
//! trace        states at each record's end, replies with their times
//! crash        opens an image of the disk and compares it with the trace
//! ```
//!
//! From the trace follows the required state after any crash:
//! - the recovered state is exactly one that existed, at the end of a record;
//! - it includes everything that a reply, of a write or a read, had shown when it left, as its
//!   namespace promises.
//!
//! A difference is a panic with the caller's context, which names the seed.

mod background;
mod commands;
mod crash;
mod incarnation;
mod lanes;
mod model;
mod tokens;
mod trace;

use std::time::Duration;

use quipu_engine::{Engine, OpenError, Options};
use quipu_testkit::SimMachine;

pub use self::crash::{CrashCase, CrashTally, RecoveredDisk, judge_crash, judge_state, read_all};
pub use self::incarnation::{IncarnationPlan, run_incarnation};
pub use self::model::{ModelState, live_part};
pub use self::tokens::{RetryTally, TokenModel, retry_all};
pub use self::trace::{BackupTrace, SentReply, Trace, TraceTally};

use crate::machine;

/// Window of the tokens. The clock jumps by half an hour now and then.
pub const WINDOW: Duration = Duration::from_secs(600);

/// Options of the node: small limits, and lanes from the second add on.
pub fn node_options(segment_bytes: u64) -> Options {
    Options { lanes: 2, split_after: 2, token_window: WINDOW, ..machine::small_options(segment_bytes) }
}

/// Opens an engine without a store.
pub fn open_alone(machine: &SimMachine, options: Options) -> Result<Engine, OpenError> {
    machine::open_engine(machine, None, options)
}
