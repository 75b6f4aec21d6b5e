//! What a counter is, and what may be asked of it.
//!
//! Pure data and pure functions, plus the ports (`Clock`, `Rng`, `Vfs`) through which the engine meets the world, so that a
//! simulator can stand in for it. Every other crate knows this one; this one knows no other, no runtime and no protocol.

pub mod cell;
pub mod command;
pub mod count;
pub mod dump;
pub mod durability;
pub mod epoch;
pub mod form;
pub mod kept_name;
pub mod kind;
pub mod memory_store;
pub mod name;
pub mod namespace;
pub mod pattern;
pub mod ports;
pub mod quantity;
pub mod reading;
pub mod reason;
pub mod reply;
pub mod shared;
pub mod sketch_command;
pub mod time;
pub mod token;
pub mod writer;

pub use cell::Cell;
pub use command::{
    AddWithin, Brief, Command, Expiry, ExpiryCondition, ExpiryForm, ListNames, Scan, Set, SetCondition, SetExpiry, When,
};
pub use dump::{DUMP_BYTES_MAX, Dump, DumpContent, SketchDump};
pub use durability::Durability;
pub use epoch::Epoch;
pub use form::Form;
pub use kept_name::{KEPT_BYTES_MAX, KeptName};
pub use kind::Kind;
pub use memory_store::MemoryStore;
pub use name::{NAME_BYTES_MAX, Name, NameTooLong};
pub use namespace::{
    FailMode, NAMESPACE_BYTES_MAX, NAMESPACE_KEYS, NAMESPACE_SETTINGS_BYTES_MAX, NAMESPACES_MAX, Namespace,
    NamespaceKey, Overload, Pick, SAMPLE_MAX, SHARDS_MAX, Sample, Shards, check_namespace_name,
};
pub use pattern::Pattern;
pub use ports::{
    Answer, BoxError, Call, Cursor, History, NODE_NAME_BYTES_MAX, NodeNames, PUTS_MAX, Page, PutResult,
    RESTORED_CLAIMS_MAX, SCAN_NAMES_MAX, Store, StoreError, Writers,
};
pub use ports::{
    Clock, Copied, DirLock, Ledger, LedgerError, LedgerStats, LockError, Note, Rng, Sealed, Vfs, VfsFile, Visit,
    VisitNote, VisitOwn,
};
pub use reading::{Covered, Freshness, Reading, Sampled, Seen};
pub use reason::{ProblemType, Reason, RespCode};
pub use reply::{Refusal, Reply};
pub use sketch_command::{
    Dialect, Estimate, Fraction, Frequencies, Frequency, FrequencyInfo, FrequencySize, KindAndDialect, Ranked,
    Relation, SetString, SketchCommand, TOP_ITEMS_MAX, TopInfo, TopSize,
};
pub use time::Millis;
pub use token::{BadIdentity, Identity, Item, Listed, OUTCOME_BYTES_MAX, Outcome, TOKEN_AHEAD_MAX};
pub use writer::{Incarnation, NodeId, Writer};
