//! Simulates many nodes on one shared store, on one thread, from a seed: the shipped engine under
//! every fault at once.
//!
//! In: a seed. Out: a tally of events; or the broken promise, with the events before it.
//!
//! ```text
//! plan      options, network quality and faults, drawn from the seed
//! world     nodes, a store, time; a scheduler that lets any of them take the next step
//!   node    a disk, a clock, the engine with its clients (client) and its background tasks
//!   store   the store's contract behind a network; it records the real events (truth)
//! judge     compares replies to clients with the real events
//! run       seeds on all cores; shrinking a violation
//! ```
//!
//! The test `seeds` runs them. `examples/survey` lists the violations of many seeds;
//! `examples/seed` prints every event of one.
//!
//! Not here: the protocol by itself (`quipu-model`, `tests/shared_store`), one node's crash states
//! (`quipu-engine`, `tests/it`), real stores (`quipu-testkit`, `store_suite`).

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
