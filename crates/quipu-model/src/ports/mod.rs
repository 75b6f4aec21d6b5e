//! Ports to time, chance, disk, the ledger, and the shared store.
//!
//! The engine reaches the outside world only through these ports. A simulator can stop the clock,
//! seed the random numbers, tear a write and lose a directory entry, and the shipped code runs
//! unchanged.

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
