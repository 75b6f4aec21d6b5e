//! The proof: what tests of every crate share.
//!
//! - [`SeededRng`] and [`SimClock`]: chance and time that a seed decides;
//! - [`CrashDisk`]: a disk in memory that shows every state a loss of power could have left behind;
//! - [`mod@store_suite`]: what every shared store must pass, plain and behind a [`FaultyStore`];
//! - [`servers`]: real servers, started, stopped and killed by tests; [`proxy`]: a network between them and us that fails;
//! - [`judge`]: whether what came back after a fault is something that was promised;
//! - [`load`]: clients of a real server whose every request is accounted for; [`resp`] and [`program`]: what they talk to and
//!   what is killed under them; [`small_disk`]: a disk to be filled.

pub mod crash_disk;
pub mod file_ledger;
pub mod judge;
pub mod load;
pub mod program;
pub mod proxy;
pub mod resp;
pub mod rng;
pub mod servers;
pub mod sim_clock;
pub mod small_disk;
pub mod store_suite;

pub use crash_disk::{CrashDisk, DiskFault, Image, OpKind};
pub use file_ledger::FileLedger;
pub use rng::SeededRng;
pub use sim_clock::SimClock;
pub use store_suite::{FaultyStore, store_suite};
