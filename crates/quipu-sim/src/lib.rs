//! Many nodes on one shared store, on one thread, by a seed: the shipped engine under every fault at once.
//!
//! In: a seed. Out: how much was met; or what was broken, with the events before it.
//!
//! ```text
//! plan      what the seed means: options, weather, faults
//! world     nodes, a store, time; a scheduler that lets any of them take the next step
//!   node    a disk, a clock, the engine with its clients (client) and its background
//!   store   the contract behind a network; it notes what really happened (truth)
//! judge     what clients were told, against what really happened
//! run       seeds on all cores; what a violation needs
//! ```
//!
//! The test `seeds` runs them; `examples/survey` says which seeds of many break what, `examples/seed` prints everything that happens in one.
//!
//! Not here: the protocol by itself (`quipu-model`, `tests/shared_store`), one node's crash states (`quipu-engine`, `tests/it`), real
//! stores (`quipu-testkit`, `store_suite`).

mod act;
mod client;
mod counters;
mod judge;
mod log;
mod node;
mod plan;
mod run;
mod store;
mod task;
mod world;

pub use log::EventLog;
pub use plan::{ACTS, FAULTS_MIN, Fault, Plan};
pub use run::{Violation, run, run_seed, run_seeds};
pub use store::{Fates, StoreEvents};
pub use world::RunTally;
