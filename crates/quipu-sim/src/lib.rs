//! Simulates the shipped engine on one thread, from a seed. Many nodes on one shared store meet
//! every fault at once; one node without a store meets every state that a crash may leave on its
//! disk.
//!
//! In: a seed. Out: a tally of events; or the broken promise, with the events before it.
//!
//! ```text
//! machine   the engine on a simulated machine, for both modes
//!
//! plan      options, network quality and faults, drawn from the seed
//! world     nodes, a store, time; a scheduler that lets any of them take the next step
//!   node    a machine, the engine with its clients (client) and its background tasks
//!   store   the store's contract behind a network; it records the real events (truth)
//! judge     compares replies to clients with the real events
//! run       seeds on all cores; shrinking a violation
//!
//! one_node  workers and background of one engine; every reply and every image of the disk is
//!           compared with a model of the engine
//! ```
//!
//! The test `seeds` runs many nodes. `examples/survey` lists the violations of many seeds;
//! `examples/seed` prints every event of one. The tests `crash_states`, `interleaving` and
//! `backup_states` run one node.
//!
//! Not here: the protocol by itself (`quipu-model`, `tests/shared_store`), real stores
//! (`quipu-testkit`, `store_suite`).

mod act;
mod client;
mod counters;
mod judge;
mod log;
mod machine;
mod node;
pub mod one_node;
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
