//! Tests servers of changed identity: the store changes nothing on them before the caller asks for
//! the history. Also tests servers that evict.

use std::thread;
use std::time::Duration;

use quipu_model::shared::Verdict;
use quipu_model::{Store, StoreError};
use quipu_protocol::resp::Value;
use quipu_store_redis::{Options, open};
use quipu_testkit::server_suite::StoreAdapter;
use quipu_testkit::server_suite::history::{ask_history, expect_changes_refused, put};
use quipu_testkit::servers::redis::{RedisCluster, RedisServer};
use quipu_testkit::store_suite::block_on;

use crate::Redis;

fn text(value: Value) -> String {
    match value {
        Value::Bulk(bytes) => String::from_utf8(bytes).expect("it is text"),
        other => panic!("{other:?}"),
    }
}

fn until(is_so: impl Fn() -> bool, what: &str) {
    for _ in 0..1_000 {
        if is_so() {
            return;
        }
        thread::sleep(Duration::from_millis(20));
    }
    panic!("{what}: that took too long");
}

quipu_testkit::server_tests!(Redis, history);

#[test]
fn a_replica_that_was_promoted_has_another_history() {
    let (master, replica) = (RedisServer::start().unwrap(), RedisServer::start().unwrap());
    let port = master.address().port().to_string();
    replica.call(&["REPLICAOF", "127.0.0.1", &port]).unwrap();
    let follows = || text(replica.call(&["INFO", "replication"]).unwrap()).contains("master_link_status:up");
    until(follows, "a replica follows its master");
    let store = Redis::open_fresh(&replica.url());
    let first = ask_history(&store);
    replica.call(&["REPLICAOF", "NO", "ONE"]).unwrap();
    let second = block_on(store.history()).unwrap();
    assert_ne!(first, second, "asked on the connection that there was");
    assert_eq!(put(&store, b"a", 1).unwrap(), [Verdict::Newest]);
    // A write that a replica refuses ends the connection: the next one learns what the server has
    // become.
    replica.call(&["REPLICAOF", "127.0.0.1", &port]).unwrap();
    let refused = put(&store, b"a", 2);
    assert!(matches!(refused, Err(StoreError::NotApplied { .. })), "{refused:?}");
    replica.call(&["REPLICAOF", "NO", "ONE"]).unwrap();
    expect_changes_refused(&store, b"a", 2);
    block_on(store.history()).unwrap();
    assert_eq!(put(&store, b"a", 2).unwrap(), [Verdict::Newest]);
}

#[test]
fn a_master_that_was_replaced_changes_the_history_of_a_cluster_and_the_others_go_on() {
    let mut cluster = RedisCluster::start_with_fast_failover().unwrap();
    let store = Redis::open_fresh(&cluster.url());
    let first = block_on(store.history()).unwrap();
    assert_eq!(first.0.len(), 3, "every master that has slots: {first:?}");
    let names: Vec<String> = (0..30).map(|n| format!("n{n}")).collect();
    for at in &names {
        put(&store, at.as_bytes(), 1).unwrap();
    }
    cluster.fail_over(cluster.masters()[0]).unwrap();
    // The first calls may find the connection that broke, and slots that are not where they were.
    let outcomes = |seq| {
        let of = |at: &String| match put(&store, at.as_bytes(), seq) {
            Ok(_) => 'o',
            Err(StoreError::HistoryChanged { .. }) => 'c',
            Err(_) => '?',
        };
        names.iter().map(of).collect::<String>()
    };
    let settled = (2..200).map(outcomes).find(|outcomes| !outcomes.contains('?'));
    let settled = settled.expect("the Cluster serves all slots again");
    assert!(settled.contains('o') && settled.contains('c'), "{settled}");
    let second = ask_history(&store);
    assert_eq!((first.0.len(), second.0.len()), (3, 3));
    assert_eq!(second.0.iter().filter(|(server, identity)| first.0.get(*server) == Some(identity)).count(), 2);
    assert_eq!(outcomes(1_000), "o".repeat(names.len()));
}

#[test]
fn a_slot_that_moves_to_a_server_without_slots_is_put_into_after_its_history_was_asked() {
    let cluster = RedisCluster::start().unwrap();
    let store = open(&cluster.url(), Options::default()).unwrap();
    let bus_port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let arguments = ["--cluster-enabled", "yes", "--cluster-port", &bus_port, "--save", "", "--appendonly", "no"];
    let added = RedisServer::start_with(&arguments).unwrap();
    let first = block_on(store.history()).unwrap();
    put(&store, b"moves", 1).unwrap();
    let (key, id) = ("quipu:c:moves", |server: &RedisServer| text(server.call(&["CLUSTER", "MYID"]).unwrap()));
    let slot = added.call(&["CLUSTER", "KEYSLOT", key]).unwrap().number().unwrap();
    let owner = &cluster.servers[slot as usize * 3 / 16_384];
    let (slot, port) = (slot.to_string(), added.address().port().to_string());
    owner.call(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus_port]).unwrap();
    let knows = |one: &RedisServer, other| text(one.call(&["CLUSTER", "NODES"]).unwrap()).contains(&id(other));
    until(|| knows(owner, &added) && knows(&added, owner), "two servers meet");
    let serves = || text(added.call(&["CLUSTER", "INFO"]).unwrap()).contains("cluster_state:ok");
    until(serves, "a newcomer learns who has all other slots");
    added.call(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &id(owner)]).unwrap();
    owner.call(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &id(&added)]).unwrap();
    owner.call(&["MIGRATE", "127.0.0.1", &port, key, "0", "5000"]).unwrap();
    let refused = put(&store, b"moves", 2);
    assert!(matches!(refused, Err(StoreError::HistoryChanged { .. })), "{refused:?}");
    let second = block_on(store.history()).unwrap();
    assert_eq!(second.0.len(), first.0.len() + 1, "{second:?}");
    assert_eq!(put(&store, b"moves", 2).unwrap(), [Verdict::Newest]);
}

#[test]
fn a_server_that_evicts_is_a_problem_and_one_without_a_limit_is_not() {
    let server = RedisServer::start().unwrap();
    let store = Redis::open_fresh(&server.url());
    let problems = || block_on(store.problems()).unwrap();
    let configure = |limit: &str, policy: &str| {
        server.call(&["CONFIG", "SET", "maxmemory", limit]).unwrap();
        server.call(&["CONFIG", "SET", "maxmemory-policy", policy]).unwrap();
    };
    assert_eq!(problems(), Vec::<String>::new());
    for policy in ["volatile-lru", "volatile-ttl", "allkeys-lfu", "allkeys-random"] {
        configure("100mb", policy);
        let [problem] = &problems()[..] else { panic!("{policy}: {:?}", problems()) };
        for part in [policy, "maxmemory-policy noeviction", &server.address().to_string()] {
            assert!(problem.contains(part), "{problem}");
        }
        configure("0", policy);
        assert_eq!(problems(), Vec::<String>::new(), "without a limit it evicts nothing");
    }
    configure("100mb", "noeviction");
    assert_eq!(problems(), Vec::<String>::new());
}

#[test]
fn one_master_of_a_cluster_that_evicts_is_a_problem() {
    let cluster = RedisCluster::start().unwrap();
    let store = Redis::open_fresh(&cluster.url());
    cluster.servers[1].call(&["CONFIG", "SET", "maxmemory", "100mb"]).unwrap();
    cluster.servers[1].call(&["CONFIG", "SET", "maxmemory-policy", "volatile-lru"]).unwrap();
    let problems = block_on(store.problems()).unwrap();
    let [problem] = &problems[..] else { panic!("{problems:?}") };
    assert!(problem.contains(&cluster.servers[1].address().to_string()), "{problem}");
}
