//! Stores cells at rest on this node.
//!
//! In: sealed batches of sorted cells, each with a watermark: an opaque value of the engine for
//! "the ledger holds everything up to this journal position". Out: a cell by name, cells in key
//! order, the watermark.
//!
//! The ledger is an LSM tree (`lsm-tree`, the engine of fjall) that is only ever written by bulk
//! ingestion: no log, no memtable. The journal is its log. A batch and its watermark are one
//! ingestion, so after a crash both are there or neither is.
//!
//! ```text
//! DIR/FORMAT              version of this layout; a directory without it holds nothing yet
//! DIR/g000001/            one generation: a tree. FLUSHALL makes the next one beside it and renames it into place
//! DIR/g000001/current     number of the tree's current version, and its checksum
//! DIR/g000001/v12         a version: the tables of each level, with the checksum of each
//! DIR/g000001/tables/34   a table: sorted cells in checksummed blocks; never changes
//! DIR/g000002.new/        an unfinished generation; removed when the ledger is opened
//! ```
//!
//! Invariants:
//! - the ledger is the newest generation, in the version that its `current` names; everything else
//!   in the directory is a leftover;
//! - a changed byte is an error that names its file, never a wrong cell.
//!
//! Not here: when to seal, compact or clear (the engine schedules), and keeping a second process
//! out (the engine locks the data directory).

mod archive;
mod compact;
mod copy;
mod error;
mod generation;
mod ledger;
mod manifest;
mod merge;
mod read_only;
mod record;
mod verify;

pub use compact::CompactionProgress;
pub use error::LedgerError;
pub use generation::IngestStats;
pub use ledger::{Cells, Ledger, LedgerOptions, LedgerStats};
pub use read_only::ReadOnlyLedger;
pub use verify::VerifyStats;
