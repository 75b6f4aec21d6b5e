//! Benchmarks a settle round: `cargo bench -p quipu-engine --bench settle`.
//!
//! Nearly all of 100,000 counters are unsettled and not due; 1,000 are. The store is in memory, so
//! the bench measures the engine's own work. Without `--bench` (as `cargo test` calls it) it runs
//! once, small.

#![allow(clippy::disallowed_methods, reason = "it measures how long things take on this machine")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use quipu_engine::{Engine, Environment, Options, SystemClock};
use quipu_model::{Command, Durability, MemoryStore, Name, Namespace};
use quipu_testkit::store_suite::block_on;

fn main() {
    let is_bench = std::env::args().any(|word| word == "--bench");
    let (waiting, due, rounds) = if is_bench { (100_000, 1_000, 50) } else { (1_000, 100, 2) };
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut options = Options::new(directory.path());
    let memory = Namespace::with_durability(Durability::Memory);
    options.namespaces = vec![
        (Box::from(*b"due"), Namespace { settle_every: Some(Duration::ZERO), ..memory.clone() }),
        (Box::from(*b"waiting"), Namespace { settle_every: Some(Duration::from_secs(3_600)), ..memory }),
    ];
    let store = Arc::new(MemoryStore::new(Arc::new(SystemClock::default())));
    let environment = Environment { store: Some(store), ..Environment::system() };
    let engine = Engine::open_with(options, environment).expect("it opens");
    let sharing = engine.sharing().expect("there is a store");
    assert!(block_on(sharing.renew()), "it has joined");
    (0..waiting).for_each(|n| add(&engine, &format!("waiting:{n}")));
    let mut took: Vec<Duration> = (0..rounds)
        .map(|_| {
            (0..due).for_each(|n| add(&engine, &format!("due:{n}")));
            let began = Instant::now();
            assert_eq!(block_on(sharing.settle()), due);
            began.elapsed()
        })
        .collect();
    took.sort();
    let (middle, longest) = (took[rounds / 2], took[rounds - 1]);
    println!("{waiting} unsettled counters, {due} due: a round takes {middle:?}, {longest:?} at most");
}

/// Adds to a counter, whose row is fetched the first time.
fn add(engine: &Engine, name: &str) {
    let command = Command::Add { name: Name::new(name.as_bytes()).expect("a short name"), delta: 1, shard_key: None };
    loop {
        // By itself: a turn holds locks until it is dropped.
        let run = engine.turn().run(&command);
        let Err(load) = run else { return };
        let _asked = engine.steps().enqueue_load(load);
        block_on(engine.sharing().expect("there is a store").fetch());
    }
}
