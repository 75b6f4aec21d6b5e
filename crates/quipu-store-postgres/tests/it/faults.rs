//! Tests a server that is killed, stopped, or restarted empty, and a failing network.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use quipu_model::shared::Verdict;
use quipu_model::{Store, StoreError};
use quipu_testkit::proxy::{NetworkFault, Proxy};
use quipu_testkit::server_suite::StoreAdapter;
use quipu_testkit::server_suite::faults::{open_behind_proxy, warm};
use quipu_testkit::server_suite::puts::{make_put, name};
use quipu_testkit::servers::postgres::PostgresServer;
use quipu_testkit::store_suite::block_on;

use crate::Postgres;

quipu_testkit::server_tests!(Postgres, faults);

#[test]
fn what_was_acknowledged_under_load_outlives_crashes_and_nothing_else_appears() {
    let mut server = PostgresServer::start().unwrap();
    let (store, over, lost) = (Postgres::open_fresh(&server.url()), AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        for thread in 0..3_u8 {
            let (store, over, lost) = (&store, &over, &lost);
            scope.spawn(move || {
                let (at, mut seq, mut acked) = ([b't', thread], 0, 0);
                while !over.load(Ordering::SeqCst) {
                    seq += 1;
                    match block_on(store.put_all(&[(name(&at), make_put(seq, i128::from(seq)))])) {
                        Ok(verdicts) => {
                            assert_eq!(verdicts, [Verdict::Newest]);
                            acked = seq;
                        }
                        Err(StoreError::NotApplied { .. }) => {
                            seq -= 1;
                            thread::sleep(Duration::from_millis(5));
                        }
                        // Never put again: it is there or not.
                        Err(_) => drop(lost.fetch_add(1, Ordering::SeqCst)),
                    }
                    if let Ok(seen) = block_on(store.read(name(&at))) {
                        let held = seen.snapshot.sum();
                        assert!(i128::from(acked) <= held && held <= i128::from(seq), "{acked} ≤ {held} ≤ {seq}");
                    }
                }
                assert!(acked > 0, "nothing was acknowledged");
            });
        }
        for _ in 0..4 {
            thread::sleep(Duration::from_millis(150));
            server.restart().unwrap();
        }
        over.store(true, Ordering::SeqCst);
    });
    assert!(lost.into_inner() > 0, "it was killed while it worked");
}

#[test]
fn a_connection_that_breaks_while_it_is_prepared_has_applied_nothing() {
    let server = PostgresServer::start().unwrap();
    for lost in [NetworkFault::CutBefore, NetworkFault::CutAfter, NetworkFault::Reset] {
        // Breaks each step: the start of a connection, its settings, the tables (each created or
        // not), the statement.
        for step in 0..8 {
            let proxy =
                Proxy::start(server.address(), move |n| if n == step { lost } else { NetworkFault::PassThrough })
                    .unwrap();
            let store = Postgres::open_hasty(&server.url_at(proxy.address()));
            let clock = block_on(store.clock());
            assert!(matches!(clock, Err(StoreError::NotApplied { .. })), "{lost:?} at {step}: {clock:?}");
            assert!(block_on(store.clock()).is_ok(), "{lost:?} at {step}: and the next is fine");
        }
    }
}

#[test]
fn a_put_that_breaks_half_way_is_unknown_and_was_not_carried_out() {
    let server = PostgresServer::start().unwrap();
    let (proxy, weather, store) = open_behind_proxy::<Postgres>(&server);
    warm(&store);
    let names: Vec<String> = (0..1_024).map(|n| format!("half:{n}")).collect();
    let puts: Vec<_> = names.iter().map(|at| (name(at.as_bytes()), make_put(1, 1))).collect();
    let before = proxy.requests();
    *weather.lock().unwrap() = NetworkFault::CutAfter;
    let put = block_on(store.put_all(&puts));
    assert!(matches!(put, Err(StoreError::Unknown { .. })), "{put:?}");
    assert_eq!(proxy.requests(), before + 1, "the rest was not let through");
    assert!(
        !block_on(store.read(name(b"half:0"))).unwrap().snapshot.exists(),
        "one statement is put whole, or not at all"
    );
    assert_eq!(block_on(store.put_all(&puts)).unwrap(), vec![Verdict::Newest; puts.len()]);
}
