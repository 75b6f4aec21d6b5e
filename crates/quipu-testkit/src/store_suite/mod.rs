//! The suite that every store must pass: what the port promises, plain and behind faults.
//!
//! In: a way to connect to an empty store. Out: nothing, or a panic that names what was broken.
//!
//! - [`store_suite`]: each promise of the port by itself, compared with what the model says, and then a few harvests;
//! - [`harvest`]: a schedule of nodes that add, settle and reset through a [`FaultyStore`], after which each add must have been
//!   counted once.
//!
//! A store with a runtime of its own awaits these inside it; one without is driven by [`block_on`].
//!
//! Not here: what rows and verdicts mean (`quipu-model`, `shared`); killing a real server.

mod block_on;
mod bodies;
mod cells;
mod faulty;
mod harvest;
mod other_calls;
mod rows;

use std::future::Future;

use quipu_model::Store;

pub use self::block_on::block_on;
pub use self::faulty::{FaultyStore, StoreTally};
pub use self::harvest::{Harvest, harvest};

/// Schedules behind faults in one run of the suite: a few seconds on a store that answers within a millisecond.
const HARVEST_SEEDS: u64 = 10;

/// Proves a store by each promise of the port, and by schedules behind faults. `connect` gives a store that holds nothing, anew for every part.
pub async fn store_suite<S: Store, F: Future<Output = S>>(connect: impl Fn() -> F) {
    cells::prove(&connect().await).await;
    rows::prove(&connect().await).await;
    other_calls::prove(&connect().await).await;
    bodies::prove(&connect().await).await;
    for seed in 0..HARVEST_SEEDS {
        harvest(connect().await, seed).await;
    }
}

#[cfg(test)]
mod tests;
