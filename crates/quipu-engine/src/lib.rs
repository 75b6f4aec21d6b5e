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
//! The path of a command, one module per step: [`admission`] → [`apply`] → [`journal`] → reply.
//! [`turn`] runs the steps of one worker. A reply waits for its namespace's durability, see
//! [`quipu_model::Durability`].

mod failpoint;
mod sync;

mod logging;
mod options;
mod system;
mod time;

pub mod admission;
pub mod apply;
pub mod journal;
pub mod namespaces;
mod sketches;
mod split;
mod tokens;
pub mod turn;

mod fast_path;

pub mod sharing;

mod load;
mod open;
mod overload;
mod recovery;
mod seal;
mod watermark;

mod backup;
mod engine;
mod handle;
pub mod inspect;
pub mod offline;
mod restore;
mod staging;
mod steps;

mod background;

pub use backup::{Backup, BackupError, BackupStep, BackupSummary};
pub use engine::{CloseError, CommitFuture, Engine, Error, JournalFailure, Stats, TimeCorrection};
pub use fast_path::{SIMPLE_COMMANDS_MAX, SimpleReply};
pub use handle::Handle;
pub use journal::format::Position;
pub use journal::{Damage, JournalError, SYNC_SECONDS, SyncCounts, Wait};
pub use load::{Load, LoadFuture, LoadOutcome};
pub use namespaces::{Policies, Policy, PutNamespaceError, RuntimeSettings, RuntimeSettingsMap};
pub use open::{LOCK_FILE, OpenError, Recovery};
pub use options::{
    EXIT_JOURNAL_FAILED, Environment, LEDGER_DIR, OpenLedger, Options, SEGMENT_BYTES_DEFAULT, SEGMENT_BYTES_MAX,
    SEGMENT_BYTES_MIN,
};
pub use restore::{RestoreError, restore, restore_bytes};
pub use seal::{Seal, SealError, SealStep};
pub use sharing::{
    AdoptError, AdoptionReport, Membership, MergeError, SHARDS_MAX, Secret, ShardPick, SharePolicy, Sharing,
    SharingOptions, SharingStats, StoreHealth, Swap, TokenAdd, UnconfirmedAdds, dump_bodies,
};
pub use sketches::{OBSERVES_MAX, sketch_fingerprint};
pub use staging::StagingError;
pub use steps::Steps;
pub use system::{SystemClock, SystemDisk, SystemLedger, SystemRng, is_in_use};
pub use time::{STEP_MAX, STEP_STAYS};
pub use tokens::{TokenKey, TokenStats};
pub use turn::{AddOutcome, NotRun, Turn, WatchedVersion};
pub use watermark::{ShardMark, Watermark};
