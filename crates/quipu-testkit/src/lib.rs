//! The proof: what tests of every crate share.
//!
//! - [`Dice`] and [`SimClock`]: chance and time that a seed decides;
//! - [`CrashDisk`]: a disk in memory that shows every state a loss of power could have left behind;
//! - [`judge`]: whether what came back after a fault is something that was promised;
//! - [`load`]: clients of a real server whose every request is accounted for; [`resp`] and [`program`]: what they talk to and
//!   what is killed under them.

pub mod crash_disk;
pub mod dice;
pub mod judge;
pub mod load;
pub mod program;
pub mod resp;
pub mod sim_clock;

pub use crash_disk::{CrashDisk, Fault, Image, OpKind};
pub use dice::Dice;
pub use sim_clock::SimClock;
