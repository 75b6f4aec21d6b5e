//! Measures the largest put call, and puts of several writers to one hot counter, on a local real
//! server.

use std::sync::atomic::{AtomicU64, Ordering};

use divan::Bencher;
use divan::counter::ItemsCount;
use quipu_model::ports::store::PUTS_MAX;
use quipu_model::shared::{CellId, Put, Seq, Shard};
use quipu_model::{Epoch, Incarnation, Name, NodeId, Store, Writer};
use quipu_store_postgres::{Options, PostgresStore, open};
use quipu_testkit::servers::postgres::PostgresServer;
use quipu_testkit::store_suite::block_on;

/// Whether a commit waits for the disk.
const SYNCED: [bool; 2] = [true, false];

fn main() {
    divan::main();
}

fn server(synced: bool) -> PostgresServer {
    let setting = if synced { "synchronous_commit=on" } else { "synchronous_commit=off" };
    PostgresServer::start_with(&[setting]).expect("PostgreSQL is installed")
}

fn store(server: &PostgresServer) -> PostgresStore {
    open(&server.url(), Options::default()).expect("the URL is a helper's")
}

/// Batches of different counters, with several shards each if they are few.
fn put(bencher: Bencher<'_, '_>, synced: bool, counters: usize) {
    let server = server(synced);
    let store = store(&server);
    let names: Vec<String> = (0..counters).map(|n| format!("likes:{n:012}")).collect();
    let writer = Writer { node: NodeId(7), incarnation: Incarnation(7) };
    let puts = |seq: u64| -> Vec<(Name<'_>, Put)> {
        let said = |at: usize| {
            let cell = CellId { writer, shard: Shard((at / counters) as u16) };
            let value = i128::from(seq) * 1_000;
            let name = Name::new(names[at % counters].as_bytes()).expect("it is short");
            (name, Put { cell, epoch: Epoch::FIRST, seq: Seq(seq), value, total: value })
        };
        (0..PUTS_MAX).map(said).collect()
    };
    let mut seq = 0;
    bencher.counter(ItemsCount::new(PUTS_MAX)).bench_local(|| {
        seq += 1;
        block_on(store.put_all(&puts(seq))).expect("the server answers")
    });
}

#[divan::bench(args = SYNCED, max_time = 5)]
fn many_counters(bencher: Bencher<'_, '_>, synced: bool) {
    put(bencher, synced, PUTS_MAX);
}

#[divan::bench(args = SYNCED, max_time = 5)]
fn few_counters(bencher: Bencher<'_, '_>, synced: bool) {
    put(bencher, synced, 32);
}

/// Each thread is a writer with a cell of its own.
#[divan::bench(args = SYNCED, threads = [1, 3], max_time = 5, sample_count = 1_000)]
fn one_hot_counter(bencher: Bencher<'_, '_>, synced: bool) {
    static WRITERS: AtomicU64 = AtomicU64::new(0);
    static SEQ: AtomicU64 = AtomicU64::new(0);
    thread_local! {
        static NODE: u64 = WRITERS.fetch_add(1, Ordering::Relaxed);
    }
    let server = server(synced);
    let store = store(&server);
    bencher.counter(ItemsCount::new(1_usize)).bench(|| {
        let writer = Writer { node: NodeId(NODE.with(|node| *node)), incarnation: Incarnation(7) };
        let (cell, seq) = (CellId { writer, shard: Shard(0) }, SEQ.fetch_add(1, Ordering::Relaxed));
        let put = Put { cell, epoch: Epoch::FIRST, seq: Seq(seq), value: 1, total: 1 };
        block_on(store.put_all(&[(Name::new(b"hot").expect("it is short"), put)])).expect("the server answers")
    });
}
