//! Provides the test tools that the tests of all crates share.
//!
//! - [`SeededRng`] and [`SimClock`]: chance and time under a seed's control;
//! - [`CrashDisk`]: a disk in memory that shows every state a power loss may leave;
//! - [`SimMachine`]: disk, clock and chance of one machine; [`FileLedger`]: a ledger on its disk;
//! - [`mod@store_suite`]: the suite for every shared store, plain and behind a [`FaultyStore`];
//! - [`mod@server_suite`]: the tests of every store on its real server;
//! - [`servers`]: real servers, started, stopped and killed by tests; [`proxy`]: a faulty network
//!   before them;
//! - [`judge`]: checks that the state after a fault matches the promises;
//! - [`load`]: clients of a real server with an account of every request; [`program`]: the program
//!   that tests kill; [`small_disk`]: a disk to fill.

pub mod crash_disk;
pub mod file_ledger;
pub mod judge;
pub mod load;
pub mod machine;
pub mod program;
pub mod proxy;
pub mod rng;
pub mod server_suite;
pub mod servers;
pub mod sim_clock;
pub mod small_disk;
pub mod store_suite;

pub use crash_disk::{CrashDisk, DiskFault, Image, OpKind};
pub use file_ledger::FileLedger;
pub use machine::SimMachine;
pub use rng::SeededRng;
pub use sim_clock::SimClock;
pub use store_suite::{FaultyStore, store_suite};
