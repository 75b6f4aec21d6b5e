//! Port to the ledger: the node's cells at rest on disk.
//!
//! Promises of a ledger:
//! - **An ingestion, watermark included, is stored whole or not at all, after any crash.**
//! - A returned ingestion is durable.
//! - A failed ingestion leaves everything unchanged.

use std::ops::ControlFlow;
use std::path::Path;

use crate::{Cell, NameBuf};

/// A sealed counter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SealedCell {
    /// Hash of the name, which orders the ledger.
    pub hash: u64,
    /// The name.
    pub name: NameBuf,
    /// The cell; `None` if the counter is gone.
    pub cell: Option<Cell>,
    /// With a shared store, this node's own cell there, in the engine's encoding. Empty: removed.
    /// `None`: unchanged.
    pub own: Option<Box<[u8]>>,
}

/// An auxiliary record that the engine stores beside the cells; key and value are opaque bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuxRecord {
    /// Key; not empty.
    pub key: Box<[u8]>,
    /// Value; `None` if the record is gone.
    pub value: Option<Box<[u8]>>,
}

/// Storage of cells at rest.
pub trait Ledger: Send + Sync {
    /// Returns the watermark of the newest ingestion.
    fn watermark(&self) -> Result<Option<Vec<u8>>, LedgerError>;

    /// Stores cells, records and a watermark as one atomic step. Cells are in the order of (hash,
    /// name), each name once. Records are in the order of their keys, each key once.
    fn ingest(&self, cells: &[SealedCell], records: &[AuxRecord], watermark: &[u8]) -> Result<(), LedgerError>;

    /// Removes all cells and records, and stores these records, in key order, and a watermark, as
    /// one atomic step.
    fn clear(&self, records: &[AuxRecord], watermark: &[u8]) -> Result<(), LedgerError>;

    /// Returns the cell of a counter.
    fn get(&self, hash: u64, name: &[u8]) -> Result<Option<Cell>, LedgerError>;

    /// Visits cells in order, starting at a hash, until the visitor breaks.
    fn range(&self, from: u64, visit: &mut CellVisitor<'_>) -> Result<(), LedgerError>;

    /// Returns this node's own cell of a counter on a shared store.
    fn own_cells(&self, hash: u64, name: &[u8]) -> Result<Option<Box<[u8]>>, LedgerError>;

    /// Visits all own cells in order, starting at a hash, until the visitor breaks.
    fn range_own_cells(&self, from: u64, visit: &mut OwnCellsVisitor<'_>) -> Result<(), LedgerError>;

    /// Visits all records in key order until the visitor breaks.
    fn aux_records(&self, visit: &mut AuxRecordVisitor<'_>) -> Result<(), LedgerError>;

    /// Runs one bounded piece of compaction; returns true if there is more to do.
    fn compact(&self) -> Result<bool, LedgerError>;

    /// Writes a consistent copy into another data directory, which has no ledger yet. The ledger
    /// stays in use meanwhile. The copy is durable on return. After an error the caller removes the
    /// remains.
    fn copy_to(&self, data: &Path, progress: &mut CopyProgress<'_>) -> Result<(), LedgerError>;

    /// Returns the ledger's resource use.
    fn stats(&self) -> LedgerStats;
}

/// Resource use of a ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LedgerStats {
    /// Bytes on disk.
    pub disk_bytes: u64,
    /// Bytes held in memory.
    pub memory_bytes: u64,
    /// Tables on disk.
    pub tables: u64,
    /// Ingestions that compaction has not yet merged.
    pub runs: u64,
}

/// Callback for each cell of a range.
pub type CellVisitor<'v> = dyn FnMut(u64, &[u8], Cell) -> ControlFlow<()> + 'v;

/// Callback for each counter with an own cell of this node on a shared store.
pub type OwnCellsVisitor<'v> = dyn FnMut(u64, &[u8], &[u8]) -> ControlFlow<()> + 'v;

/// Callback for each record: key and value.
pub type AuxRecordVisitor<'v> = dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'v;

/// Callback for each piece of a copy, with its bytes; a break ends the copy with an error.
pub type CopyProgress<'c> = dyn FnMut(u64) -> ControlFlow<()> + 'c;

/// Error of a ledger; nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LedgerError {
    /// No space is left; try again when there is.
    #[error("no space for the ledger: {0}")]
    Full(String),
    /// The stored bytes are corrupt.
    #[error("the ledger is damaged: {0}")]
    Damaged(String),
    /// The file system returned an error.
    #[error("the ledger cannot be used: {0}")]
    Io(String),
}
