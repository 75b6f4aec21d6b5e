//! Opens the shipped engine on a simulated machine, for both modes.

use std::sync::Arc;

use quipu_engine::{Engine, Environment, OpenError, Options};
use quipu_model::{Durability, Namespace, Store};
use quipu_testkit::machine::{DATA, open_ledger};
use quipu_testkit::{SeededRng, SimMachine};

/// Opens an engine on a machine, alone or on a store.
pub fn open_engine(machine: &SimMachine, store: Option<Arc<dyn Store>>, options: Options) -> Result<Engine, OpenError> {
    let disk = machine.disk.clone();
    let environment = Environment {
        clock: machine.clock.clone(),
        rng: machine.rng.clone(),
        vfs: Arc::new(machine.disk.clone()),
        open_ledger: Arc::new(move |options| open_ledger(&disk, &options.data)),
        store,
        on_failure: machine.failure_callback(),
    };
    Engine::open_with(options, environment)
}

/// Small limits, so that a short run rotates, cuts and evicts. Namespace `r` is relaxed, `m` in
/// memory, and all others are durable.
pub fn small_options(segment_bytes: u64) -> Options {
    Options {
        namespaces: vec![
            (Box::from(*b"r"), Namespace::with_durability(Durability::Relaxed)),
            (Box::from(*b"m"), Namespace::with_durability(Durability::Memory)),
        ],
        segment_bytes,
        ahead_bytes: Some(2 * segment_bytes),
        journal_bytes_max: 6 * segment_bytes,
        table_shards: 4,
        reserve_bytes: 0,
        ..Options::new(DATA)
    }
}

/// Runs one of the two steps of a commit, by chance. It serves every worker of the engine.
pub fn step_commit(engine: &Engine, rng: &SeededRng) {
    if rng.chance(50) {
        engine.steps().write_filled();
    } else {
        engine.steps().sync();
    }
}
