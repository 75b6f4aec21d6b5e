//! Cells at rest on this node.
//!
//! In: sealed batches of cells, sorted, each with a watermark: the engine's own word for "all that the journal says up to here is in the
//! ledger". Out: a cell by name, cells in key order, the watermark.
//!
//! The ledger is an LSM tree (`lsm-tree`, the engine of fjall) that is only ever written by bulk ingestion: no log, no memtable. The journal is
//! its log. A batch and its watermark are one ingestion, so that after a crash both are there or neither.
//!
//! ```text
//! DIR/FORMAT              which layout this is; a directory without it holds nothing yet
//! DIR/g000001/            one generation: a tree. FLUSHALL makes the next one beside it and renames it into place
//! DIR/g000001/current     which version of the tree is in force, and its checksum
//! DIR/g000001/v12         a version: the tables of each level, with the checksum of each
//! DIR/g000001/tables/34   a table: sorted cells in checksummed blocks; never changes
//! DIR/g000002.new/        a generation in the making; removed when the ledger is opened
//! ```
//!
//! Invariants:
//! - the ledger is the newest generation, in the version its `current` names; everything else in the directory is a leftover;
//! - a byte that is not as it was written is an error that names its file, never a wrong cell.
//!
//! Not here: when to seal, compact or clear (the engine schedules), and keeping a second process out (the engine locks the data directory).

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
