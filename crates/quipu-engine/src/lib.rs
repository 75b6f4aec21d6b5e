//! The engine of Quipu: admits, applies, journals and reads commands. It loses no acknowledged add
//! and counts no add twice.
//!
//! ```
//! use quipu_engine::{Engine, Options};
//!
//! # let directory = tempfile::tempdir()?;
//! let engine = Engine::open(Options::new(directory.path()))?;
//! assert_eq!(engine.add("likes:42", 1)?, 1);
//!
//! let likes = engine.handle("likes:42")?; // resolved once, added to often
//! likes.add(1)?; // returns the value, once it is durable
//! likes.count(1)?; // returns nothing and waits for nothing, for a few nanoseconds
//! likes.flush()?; // durable from here on
//!
//! let reading = engine.read("likes:42")?;
//! assert_eq!((reading.value, reading.exact), (3, true));
//! assert_eq!(engine.reset("likes:42")?, 3); // every add is in this value or comes after it
//! engine.close()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The path of a command, one module per step: [`execute::routing`] → [`apply`] → [`journal`] → reply.
//! [`execute::turn`] runs the steps of one worker. A reply waits for its namespace's durability, see
//! [`quipu_model::Durability`].

mod base;
mod core;
pub mod journal;

pub mod bodies;
pub mod namespaces;
mod tokens;

pub mod table;

pub mod apply;

pub mod execute;

pub mod sharing;

pub mod offline;
mod recovery;
mod seal;

mod background;
mod engine;

pub use apply::bodies::sketch_fingerprint;
pub use background::steps::Steps;
pub use base::file_names::LOCK_FILE;
pub use base::options::{
    EXIT_JOURNAL_FAILED, Environment, LEDGER_DIR, OpenLedger, Options, SEGMENT_BYTES_DEFAULT, SEGMENT_BYTES_MAX,
    SEGMENT_BYTES_MIN,
};
pub use base::sharing_options::{SHARDS_MAX, Secret, ShardPick, SharePolicy, SharingOptions};
pub use base::system::{SystemClock, SystemDisk, SystemLedger, SystemRng, is_in_use};
pub use base::time::{STEP_MAX, STEP_STAYS};
pub use core::Recovery;
pub use core::commit::{CommitFuture, JournalFailure};
pub use core::load::{Load, LoadFuture, LoadOutcome, Swap, TokenAdd};
pub use core::watermark::{ShardMark, Watermark};
pub use engine::Engine;
pub use engine::close::CloseError;
pub use engine::error::Error;
pub use engine::handle::Handle;
pub use engine::namespace_change::PutNamespaceError;
pub use engine::stats::Stats;
pub use engine::time_correction::TimeCorrection;
pub use execute::fast_path::{SIMPLE_COMMANDS_MAX, SimpleReply};
pub use execute::turn::{AddOutcome, NotRun, OBSERVES_MAX, Turn, WatchedVersion};
pub use journal::format::Position;
pub use journal::{Damage, JournalError, SYNC_SECONDS, SyncCounts, Wait};
pub use namespaces::{Policies, Policy, RuntimeSettings, RuntimeSettingsMap};
pub use offline::backup::{Backup, BackupError, BackupStep, BackupSummary};
pub use offline::restore::{RestoreError, restore, restore_bytes};
pub use offline::staging::StagingError;
pub use recovery::open::OpenError;
pub use seal::{Seal, SealError, SealStep};
pub use sharing::{
    AdoptError, AdoptionReport, Membership, MergeError, Sharing, SharingStats, StoreHealth, UnconfirmedAdds,
    dump_bodies,
};
pub use tokens::{TokenKey, TokenStats};
