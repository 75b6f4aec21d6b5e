//! The engine of Quipu: commands are admitted, applied, journaled and read; nothing acknowledged is lost, nothing is counted twice.
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
//! The path of a command, one module a verb: [`admit`] → [`apply`] → [`journal`] → reply, with [`turn`] holding the steps together. Durability
//! is what a reply waits for, see [`quipu_model::Durability`].

mod failpoint;
mod sync;

mod options;
mod say;
mod system;
mod time;

pub mod admit;
pub mod apply;
pub mod journal;
pub mod namespaces;
mod sketches;
mod split;
mod tokens;
pub mod turn;

mod briefs;

pub mod sharing;

mod load;
mod open;
mod overlay;
mod overload;
mod seal;
mod watermark;

mod backup;
mod engine;
mod handle;
pub mod inspect;
mod making;
mod restore;
mod steps;
pub mod survey;

mod driver;

pub use backup::{BackedUp, Backing, Backup, BackupError};
pub use briefs::{BRIEFS_MAX, BriefReply};
pub use engine::{CloseError, Committed, Dead, Engine, Error, Stats, TimeLowered};
pub use handle::Handle;
pub use journal::format::Position;
pub use journal::{Damage, JournalError, SYNC_SECONDS, SyncCounts, Wait};
pub use load::{Load, Loaded, Loading};
pub use making::MakingError;
pub use namespaces::{Policies, Policy, Put, PutError, Puts};
pub use open::{LOCK_FILE, OpenError, Recovery};
pub use options::{
    EXIT_JOURNAL_FAILED, Environment, LEDGER_DIR, OpenLedger, Options, SEGMENT_BYTES_DEFAULT, SEGMENT_BYTES_MAX,
    SEGMENT_BYTES_MIN,
};
pub use restore::{RestoreError, restore, restore_bytes};
pub use seal::{Seal, SealError, Sealing};
pub use sharing::{
    Adopt, AdoptError, Adopted, MergeError, Once, Pick, SHARDS_MAX, Secret, SharePolicy, Sharing, SharingOptions,
    SharingStats, Standing, StoreHealth, Swap, dump_bodies,
};
pub use sketches::{OBSERVES_MAX, sketch_fingerprint};
pub use steps::Steps;
pub use system::{SystemClock, SystemDisk, SystemLedger, SystemRng, is_in_use};
pub use time::{STEP_MAX, STEP_STAYS};
pub use tokens::{TokenKey, TokenStats};
pub use turn::{Counted, NotRun, Turn, Watch};
pub use watermark::{ShardMark, Watermark};
