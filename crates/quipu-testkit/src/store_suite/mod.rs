//! Tests that a store keeps the port's promises, plain and behind faults.
//!
//! In: a way to connect to an empty store. Out: nothing, or a panic that names the broken promise.
//!
//! - [`store_suite`]: each promise of the port by itself, compared with the model, and then a few
//!   harvests;
//! - [`harvest`]: a schedule of nodes that add, settle and reset through a [`FaultyStore`]. In the
//!   end each add must have been counted once.
//!
//! A store with its own runtime awaits these inside it; [`block_on`] drives one without.
//!
//! Not here: the meaning of rows and verdicts (`quipu-model`, `shared`); killing a real server.

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

/// Schedules behind faults in one run of the suite: a few seconds on a store that answers within a
/// millisecond.
const HARVEST_SEEDS: u64 = 10;

/// Tests each promise of the port, then schedules behind faults. `connect` returns an empty store
/// for every part.
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
