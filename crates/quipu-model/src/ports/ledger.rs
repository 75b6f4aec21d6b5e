//! Cells at rest on this node.
//!
//! What a ledger promises: an ingestion, watermark included, is there whole or not at all, whenever the machine stops; once it has returned it is
//! durable. A failed one leaves everything as it was.

use std::ops::ControlFlow;
use std::path::Path;

use crate::{Cell, NameBuf};

/// A counter as it is sealed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SealedCell {
    /// Hash of the name, which orders the ledger.
    pub hash: u64,
    /// The name.
    pub name: NameBuf,
    /// The cell; `None`: the counter is gone.
    pub cell: Option<Cell>,
    /// With a shared store, what this node says of the counter there: bytes of the engine. Empty: nothing any more. `None`: nothing new.
    pub own: Option<Box<[u8]>>,
}

/// Something that the engine keeps beside the cells: key and value are bytes of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuxRecord {
    /// Which; not empty.
    pub key: Box<[u8]>,
    /// What; `None`: it is gone.
    pub value: Option<Box<[u8]>>,
}

/// Where cells rest.
pub trait Ledger: Send + Sync {
    /// What came with the newest ingestion.
    fn watermark(&self) -> Result<Option<Vec<u8>>, LedgerError>;

    /// Takes cells, in the order of (hash, name), each name once, notes, in the order of their keys, each key once, and a watermark, as one.
    fn ingest(&self, cells: &[SealedCell], records: &[AuxRecord], watermark: &[u8]) -> Result<(), LedgerError>;

    /// Forgets all cells and notes and takes these notes, in order, and a watermark, as one.
    fn clear(&self, records: &[AuxRecord], watermark: &[u8]) -> Result<(), LedgerError>;

    /// The cell of a counter.
    fn get(&self, hash: u64, name: &[u8]) -> Result<Option<Cell>, LedgerError>;

    /// Visits cells in order, from a hash on, until it is told to stop.
    fn range(&self, from: u64, visit: &mut CellVisitor<'_>) -> Result<(), LedgerError>;

    /// What this node says of a counter on a shared store.
    fn own_cells(&self, hash: u64, name: &[u8]) -> Result<Option<Box<[u8]>>, LedgerError>;

    /// Visits all of that in order, from a hash on, until it is told to stop.
    fn range_own_cells(&self, from: u64, visit: &mut OwnCellsVisitor<'_>) -> Result<(), LedgerError>;

    /// Visits all notes, in the order of their keys, until it is told to stop.
    fn aux_records(&self, visit: &mut AuxRecordVisitor<'_>) -> Result<(), LedgerError>;

    /// One bounded piece of compaction; whether there is more to do.
    fn compact(&self) -> Result<bool, LedgerError>;

    /// Writes a consistent copy into another data directory, which has none yet, while the ledger is in use. It is durable when this returns; what an
    /// error leaves behind is the caller's to remove.
    fn copy_to(&self, data: &Path, progress: &mut CopyProgress<'_>) -> Result<(), LedgerError>;

    /// What it takes.
    fn stats(&self) -> LedgerStats;
}

/// What a ledger takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LedgerStats {
    /// Bytes on disk.
    pub disk_bytes: u64,
    /// Bytes held in memory.
    pub memory_bytes: u64,
    /// Tables on disk.
    pub tables: u64,
    /// Ingestions that compaction has not merged yet.
    pub runs: u64,
}

/// What is called for each cell of a range.
pub type CellVisitor<'v> = dyn FnMut(u64, &[u8], Cell) -> ControlFlow<()> + 'v;

/// What is called for each counter of which this node says something on a shared store.
pub type OwnCellsVisitor<'v> = dyn FnMut(u64, &[u8], &[u8]) -> ControlFlow<()> + 'v;

/// What is called for each note: key and value.
pub type AuxRecordVisitor<'v> = dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'v;

/// What is called for each piece of a copy, with its bytes; a break ends the copying with an error.
pub type CopyProgress<'c> = dyn FnMut(u64) -> ControlFlow<()> + 'c;

/// Why a ledger could not do it; nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LedgerError {
    /// No space is left; try again when there is.
    #[error("no space for the ledger: {0}")]
    Full(String),
    /// The bytes at rest are not what was written.
    #[error("the ledger is damaged: {0}")]
    Damaged(String),
    /// The file system said no.
    #[error("the ledger cannot be used: {0}")]
    Io(String),
}
