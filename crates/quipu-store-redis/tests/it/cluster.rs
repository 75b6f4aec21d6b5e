//! Runs the suite on a Cluster of six, with moving slots and a lost master.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use quipu_model::Store;
use quipu_model::shared::Verdict;
use quipu_store_redis::{Options, open};
use quipu_testkit::proxy::{NetworkFault, Proxy};
use quipu_testkit::server_suite::faults::{REPLY_TIMEOUT, ROUGH_REQUESTS, draw_rough_fault};
use quipu_testkit::server_suite::puts::{make_put, name, put_until_answered, puts_of};
use quipu_testkit::server_suite::{StoreAdapter, next_prefix};
use quipu_testkit::servers::redis::RedisCluster;
use quipu_testkit::store_suite::{block_on, harvest};
use quipu_testkit::{SeededRng, store_suite};

use crate::Redis;

#[test]
fn a_cluster_keeps_every_promise_of_the_port() {
    let cluster = RedisCluster::start().unwrap();
    block_on(store_suite(async || Redis::open_fresh(&cluster.url())));
}

#[test]
fn one_call_puts_on_every_master_and_a_scan_finds_all() {
    let cluster = RedisCluster::start().unwrap();
    let store = Redis::open_fresh(&cluster.url());
    let names: Vec<String> = (0..1_024).map(|n| format!("n{n}")).collect();
    let puts: Vec<_> = names.iter().map(|at| (name(at.as_bytes()), make_put(1, 1))).collect();
    assert_eq!(block_on(store.put_all(&puts)).unwrap(), vec![Verdict::Newest; names.len()]);
    for master in cluster.masters() {
        let keys = cluster.servers[master].call(&["DBSIZE"]).unwrap().number().unwrap();
        assert!(keys > 200, "counters spread over the masters: {keys} on {master}");
    }
    assert_eq!(scan(&store).len(), names.len());
}

#[test]
fn a_counter_is_found_while_its_slot_moves_and_after() {
    let cluster = RedisCluster::start().unwrap();
    let store = quipu_store_redis::open(&cluster.url(), Default::default()).unwrap();
    let key = "quipu:c:moves";
    let slot = cluster.servers[0].call(&["CLUSTER", "KEYSLOT", key]).unwrap().number().unwrap();
    put_until_answered(&store, b"moves", 1);
    let owner = slot as usize * 3 / 16_384;
    let (from, to) = (&cluster.servers[owner], &cluster.servers[(owner + 1) % 3]);
    assert_eq!(from.call(&["EXISTS", key]).unwrap().number(), Some(1), "the helper's masters are in order");
    let (slot, from_id, to_id) = (slot.to_string(), id(from), id(to));
    to.call(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from_id]).unwrap();
    from.call(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to_id]).unwrap();
    assert_eq!(put_until_answered(&store, b"moves", 2), (Verdict::Newest, 1), "it is still where it was");
    let port = to.address().port().to_string();
    from.call(&["MIGRATE", "127.0.0.1", &port, key, "0", "5000"]).unwrap();
    assert_eq!(put_until_answered(&store, b"moves", 3), (Verdict::Newest, 1), "asked for on its way");
    assert_eq!(block_on(store.read(name(b"moves"))).unwrap().snapshot.sum(), 3);
    for server in [to, from] {
        server.call(&["CLUSTER", "SETSLOT", &slot, "NODE", &to_id]).unwrap();
    }
    assert_eq!(put_until_answered(&store, b"moves", 4), (Verdict::Newest, 1), "and where it is now");
    assert_eq!(to.call(&["HGET", key, "puts"]).unwrap().number(), Some(puts_of(1..=4) as i64), "each was put once");
}

#[test]
fn a_store_heals_after_a_master_was_lost() {
    let mut cluster = RedisCluster::start_with_fast_failover().unwrap();
    let store = Redis::open_hasty(&cluster.url());
    let names: Vec<String> = (0..60).map(|n| format!("n{n}")).collect();
    for at in &names {
        put_until_answered(&store, at.as_bytes(), 1);
    }
    for server in &cluster.servers[..3] {
        server.call(&["WAIT", "1", "5000"]).unwrap();
    }
    let first = block_on(store.scan(None, 5)).unwrap();
    let lost = cluster.masters()[0];
    cluster.servers[lost].kill();
    // Counters of the other masters go on at once; those of the lost one are refused until its
    // replica takes over.
    let served = names.iter().filter(|at| block_on(store.read(name(at.as_bytes()))).is_ok()).count();
    assert!(served > 0, "a Cluster that lost one master serves the others' counters");
    for at in &names {
        let (verdict, _) = put_until_answered(&store, at.as_bytes(), 2);
        assert_eq!(verdict, Verdict::Newest);
        assert_eq!(block_on(store.read(name(at.as_bytes()))).unwrap().snapshot.sum(), 2);
    }
    let mut met: BTreeSet<Box<[u8]>> = first.names.into_iter().collect();
    let mut from = first.next;
    while let Some(cursor) = from {
        let page = block_on(store.scan(Some(&cursor), 5)).unwrap();
        met.extend(page.names);
        from = page.next;
    }
    assert_eq!(met.len(), names.len(), "a scan begun before names every row");
    cluster.servers[lost].restart().unwrap();
    assert_eq!(scan(&store).len(), names.len(), "and the one that came back names none twice over");
}

#[test]
fn what_a_replica_had_is_there_after_a_failover() {
    let mut cluster = RedisCluster::start_with_fast_failover().unwrap();
    let store = Redis::open_fresh(&cluster.url());
    let names: Vec<String> = (0..30).map(|n| format!("n{n}")).collect();
    for at in &names {
        put_until_answered(&store, at.as_bytes(), 1);
    }
    for server in &cluster.servers[..3] {
        server.call(&["WAIT", "1", "5000"]).unwrap();
    }
    let lost = cluster.masters()[2];
    cluster.fail_over(lost).unwrap();
    assert!(!cluster.masters().contains(&lost));
    for at in &names {
        assert_eq!(put_until_answered(&store, at.as_bytes(), 1).0, Verdict::Newest);
        let version = block_on(store.read(name(at.as_bytes()))).unwrap().snapshot.version;
        assert_eq!(version.puts, puts_of(1..=1), "it was there already");
    }
}

#[test]
fn a_store_heals_after_a_master_hung_and_was_replaced() {
    let mut cluster = RedisCluster::start_with_fast_failover().unwrap();
    let store = Redis::open_hasty(&cluster.url());
    let names: Vec<String> = (0..30).map(|n| format!("n{n}")).collect();
    for at in &names {
        put_until_answered(&store, at.as_bytes(), 1);
    }
    let hung = cluster.masters()[1];
    cluster.servers[hung].stop().unwrap();
    for at in &names {
        put_until_answered(&store, at.as_bytes(), 2);
    }
    cluster.servers[hung].resume().unwrap();
    for at in &names {
        assert_eq!(put_until_answered(&store, at.as_bytes(), 3).0, Verdict::Newest);
        assert_eq!(block_on(store.read(name(at.as_bytes()))).unwrap().snapshot.sum(), 3);
    }
    cluster.servers[hung].kill();
}

#[test]
fn the_suite_passes_on_a_cluster_behind_a_slow_network() {
    let cluster = RedisCluster::start().unwrap();
    let (proxies, url) = behind(&cluster, |n| match n % 16 {
        0 => NetworkFault::Delay(Duration::from_millis(2)),
        _ => NetworkFault::PassThrough,
    });
    block_on(store_suite(async || Redis::open_fresh(&url)));
    let busy = proxies.iter().filter(|proxy| proxy.requests() > 20).count();
    assert!(busy >= 3, "every master was reached through its proxy: {busy}");
}

#[test]
fn each_add_is_counted_once_on_a_cluster_behind_a_network_that_fails() {
    let cluster = RedisCluster::start().unwrap();
    let (rng, calm) = (SeededRng::new(7), Arc::new(AtomicU64::new(0)));
    // Requests of the present schedule, whichever server they are for.
    let requests = calm.clone();
    let (_proxies, url) = behind(&cluster, move |_| draw_rough_fault(&rng, requests.fetch_add(1, Ordering::SeqCst)));
    for seed in 0..3 {
        calm.store(0, Ordering::SeqCst);
        let options =
            Options { prefix: next_prefix::<Redis>(), connect_timeout: REPLY_TIMEOUT, reply_timeout: REPLY_TIMEOUT };
        block_on(harvest(open(&url, options).unwrap(), seed));
        assert!(calm.load(Ordering::SeqCst) > ROUGH_REQUESTS, "the schedule outlived the faults");
    }
}

/// A proxy before each server, whose address is the one that the Cluster tells its clients.
fn behind(cluster: &RedisCluster, plan: impl Fn(u64) -> NetworkFault + Send + Sync + 'static) -> (Vec<Proxy>, String) {
    let plan = Arc::new(plan);
    let mut proxies = Vec::new();
    for server in &cluster.servers {
        let plan = plan.clone();
        let proxy = Proxy::start(server.address(), move |n| plan(n)).expect("a port is free");
        let port = proxy.address().port().to_string();
        server.call(&["CONFIG", "SET", "cluster-announce-port", &port]).expect("it may be changed");
        proxies.push(proxy);
    }
    let ports: BTreeSet<i64> = proxies.iter().map(|proxy| proxy.address().port().into()).collect();
    for server in &cluster.servers {
        let has_spread = (0..500).any(|_| {
            let slots = server.call(&["CLUSTER", "SLOTS"]).expect("it is up");
            let servers = slots.elements().iter().flat_map(|range| &range.elements()[2..]);
            let known = servers.filter_map(|server| server.elements()[1].number()).all(|port| ports.contains(&port));
            if !known {
                std::thread::sleep(Duration::from_millis(20));
            }
            known
        });
        assert!(has_spread, "the servers tell each other their new addresses");
    }
    let url = format!("redis-cluster://{},{}", proxies[0].address(), proxies[1].address());
    (proxies, url)
}

fn scan(store: &impl Store) -> BTreeSet<Box<[u8]>> {
    let (mut met, mut from) = (BTreeSet::new(), None);
    loop {
        let page = block_on(store.scan(from.as_ref(), 50)).expect("a store scans");
        met.extend(page.names);
        match page.next {
            Some(next) => from = Some(next),
            None => return met,
        }
    }
}

fn id(server: &quipu_testkit::servers::redis::RedisServer) -> String {
    match server.call(&["CLUSTER", "MYID"]).expect("it is up") {
        quipu_protocol::resp::Value::Bulk(id) => String::from_utf8(id).expect("ids are hex"),
        other => panic!("{other:?}"),
    }
}
