//! Measures the largest put call on a real server and on a Cluster of six, both on this machine.

use std::sync::atomic::{AtomicU64, Ordering};

use divan::Bencher;
use divan::counter::ItemsCount;
use quipu_model::ports::store::PUTS_MAX;
use quipu_model::shared::{CellId, Put, Seq, Shard};
use quipu_model::{Epoch, Incarnation, Name, NodeId, Store, Writer};
use quipu_store_redis::{Options, RedisStore, open};
use quipu_testkit::servers::redis::{RedisCluster, RedisServer};
use quipu_testkit::store_suite::block_on;

fn main() {
    divan::main();
}

fn one() -> RedisServer {
    RedisServer::start().expect("redis-server is installed")
}

fn store(url: &str) -> RedisStore {
    open(url, Options::default()).expect("the URL is a helper's")
}

fn put(bencher: Bencher<'_, '_>, store: &RedisStore, counters: usize) {
    static SEQ: AtomicU64 = AtomicU64::new(1);
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
    bencher.counter(ItemsCount::new(PUTS_MAX)).bench_local(|| {
        block_on(store.put_all(&puts(SEQ.fetch_add(1, Ordering::Relaxed)))).expect("the server answers")
    });
}

#[divan::bench(args = [PUTS_MAX, 32], max_time = 5)]
fn one_server(bencher: Bencher<'_, '_>, counters: usize) {
    let server = one();
    put(bencher, &store(&server.url()), counters);
}

#[divan::bench(args = [PUTS_MAX, 32], max_time = 5)]
fn cluster_of_six(bencher: Bencher<'_, '_>, counters: usize) {
    let cluster = RedisCluster::start().expect("redis-server is installed");
    put(bencher, &store(&cluster.url()), counters);
}

#[divan::bench(max_time = 5)]
fn one_cell(bencher: Bencher<'_, '_>) {
    let server = one();
    let store = store(&server.url());
    let writer = Writer { node: NodeId(8), incarnation: Incarnation(7) };
    let cell = CellId { writer, shard: Shard(0) };
    let mut seq = 0;
    bencher.bench_local(|| {
        seq += 1;
        let name = Name::new(b"one").expect("it is short");
        let put = Put { cell, epoch: Epoch::FIRST, seq: Seq(seq), value: 1, total: 1 };
        block_on(store.put_all(&[(name, put)])).expect("the server answers")
    });
}
