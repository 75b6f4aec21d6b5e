//! Data model of counters, and the commands on them.
//!
//! Pure data and pure functions, plus the ports (`Clock`, `Rng`, `Vfs`) to time, chance and disk. A
//! simulator can replace these ports. All crates of the workspace but `quipu-sketch` depend on this
//! one. It depends on `quipu-sketch` alone, and on no runtime or protocol.

pub mod cell;
pub mod command;
pub mod count;
pub mod dump;
pub mod durability;
pub mod epoch;
pub mod facts;
pub mod kind;
pub mod memory_store;
pub mod name;
pub mod name_buf;
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
pub mod value_form;
pub mod varint;
pub mod writer;

pub use cell::Cell;
pub use command::{
    AddWithin, Command, Expiry, ExpiryCondition, ExpiryForm, ExpiryTime, ListNames, Scan, Set, SetCondition, SetExpiry,
    SimpleCommand,
};
pub use dump::{DUMP_BYTES_MAX, Dump, DumpContent, SketchDump};
pub use durability::Durability;
pub use epoch::Epoch;
pub use facts::{CommandFacts, CommandTargets, StoreNeed};
pub use kind::Kind;
pub use memory_store::MemoryStore;
pub use name::{NAME_BYTES_MAX, Name, NameTooLong};
pub use name_buf::{NAME_INLINE_BYTES_MAX, NameBuf};
pub use namespace::{
    FailMode, NAMESPACE_BYTES_MAX, NAMESPACE_KEYS, NAMESPACE_SETTINGS_BYTES_MAX, NAMESPACES_MAX, Namespace,
    NamespaceKey, Overload, SAMPLE_MAX, SHARDS_MAX, SampleRate, ShardCount, ShardPick, check_namespace_name,
};
pub use pattern::Pattern;
pub use ports::{
    AuxRecord, AuxRecordVisitor, CellVisitor, Clock, CopyProgress, DirLock, Ledger, LedgerError, LedgerStats,
    LockError, OwnCellsVisitor, Rng, SealedCell, Vfs, VfsFile,
};
pub use ports::{
    BoxError, Cursor, History, NODE_NAME_BYTES_MAX, NodeNames, PUTS_MAX, PutResult, RESTORED_CLAIMS_MAX,
    SCAN_NAMES_MAX, ScanPage, Store, StoreCall, StoreError, StoreFuture, WriterList,
};
pub use reading::{Coverage, Freshness, Reading, SamplingInfo, WindowCoverage};
pub use reason::{ProblemType, Reason, RespCode};
pub use reply::{Refusal, Reply};
pub use sketch_command::{
    Dialect, Estimate, Fraction, Frequencies, Frequency, FrequencyInfo, FrequencySize, KindAndDialect, Relation,
    SetString, SketchCommand, TOP_ITEMS_MAX, TopInfo, TopItem, TopSize,
};
pub use time::Millis;
pub use token::{
    BadIdentity, Identity, IdentityItem, STORED_REPLY_BYTES_MAX, StoredList, StoredReply, TOKEN_AHEAD_MAX,
};
pub use value_form::ValueForm;
pub use writer::{Incarnation, NodeId, Writer};
