//! The ports to time, chance, disk, cells at rest, and the store where nodes meet.
//!
//! The engine asks the world for nothing but through these, so that a simulator can stop the clock, choose the dice, tear
//! a write and lose a directory entry, and the shipped code runs all the same.

mod clock;
mod ledger;
mod rng;
pub mod store;
mod vfs;

pub use clock::Clock;
pub use ledger::{
    AuxRecord, AuxRecordVisitor, CellVisitor, CopyProgress, Ledger, LedgerError, LedgerStats, OwnCellsVisitor,
    SealedCell,
};
pub use rng::Rng;
pub use store::{
    BoxError, Cursor, History, NODE_NAME_BYTES_MAX, NodeNames, PUTS_MAX, PutResult, RESTORED_CLAIMS_MAX,
    SCAN_NAMES_MAX, ScanPage, Store, StoreCall, StoreError, StoreFuture, WriterList,
};
pub use vfs::{DirLock, LockError, Vfs, VfsFile};
