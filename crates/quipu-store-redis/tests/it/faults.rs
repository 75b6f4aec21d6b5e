//! Tests a server that is killed, stopped, or restarted empty, and a failing network.

use std::sync::atomic::Ordering;

use quipu_model::shared::Verdict;
use quipu_model::{Store, StoreError};
use quipu_testkit::proxy::{NetworkFault, Proxy};
use quipu_testkit::server_suite::StoreAdapter;
use quipu_testkit::server_suite::puts::{make_put, name};
use quipu_testkit::servers::redis::RedisServer;
use quipu_testkit::store_suite::block_on;

use crate::Redis;

quipu_testkit::server_tests!(Redis, faults);

#[test]
fn a_put_that_breaks_half_way_is_unknown_and_may_be_put_again() {
    let server = RedisServer::start().unwrap();
    let chunks = std::sync::atomic::AtomicU64::new(0);
    // The connection's own set-up, then the first parts of a long pipeline.
    let plan = move |_| match chunks.fetch_add(1, Ordering::SeqCst) {
        6 => NetworkFault::CutAfter,
        _ => NetworkFault::PassThrough,
    };
    let proxy = Proxy::start(server.address(), plan).unwrap();
    let store = Redis::open_fresh(&format!("redis://{}", proxy.address()));
    let names: Vec<String> = (0..1_024).map(|n| format!("half:{n}")).collect();
    let puts: Vec<_> = names.iter().map(|at| (name(at.as_bytes()), make_put(1, 1))).collect();
    let put = block_on(store.put_all(&puts));
    assert!(matches!(put, Err(StoreError::Unknown { .. })), "{put:?}");
    let there = server.call(&["DBSIZE"]).unwrap().number().unwrap();
    assert!(0 < there && there < 1_024, "some of them were put: {there}");
    assert_eq!(block_on(store.put_all(&puts)).unwrap(), vec![Verdict::Newest; puts.len()]);
}
