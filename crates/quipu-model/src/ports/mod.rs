//! The ports to time, chance, disk and cells at rest.
//!
//! The engine asks the world for nothing but through these, so that a simulator can stop the clock, choose the dice, tear
//! a write and lose a directory entry, and the shipped code runs all the same.

mod clock;
mod ledger;
mod rng;
mod vfs;

pub use clock::Clock;
pub use ledger::{Copied, Ledger, LedgerError, LedgerStats, Sealed, Visit};
pub use rng::Rng;
pub use vfs::{DirLock, LockError, Vfs, VfsFile};
