//! The ports to time, chance and disk.
//!
//! The engine asks the world for nothing but through these, so that a simulator can stop the clock, choose the dice, tear
//! a write and lose a directory entry, and the shipped code runs all the same.

mod clock;
mod rng;
mod vfs;

pub use clock::Clock;
pub use rng::Rng;
pub use vfs::{DirLock, LockError, Vfs, VfsFile};
