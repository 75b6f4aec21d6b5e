//! Tests the simulated store: without faults it passes every store's suite, and each fault has its
//! effect.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll};

use quipu_model::shared::{CellId, Put, Seq, Shard, Verdict};
use quipu_model::{Epoch, Incarnation, NodeId, Store};
use quipu_testkit::store_suite;

use super::*;
use crate::counters::counter_name;

const GRACE: Duration = Duration::from_secs(40);

fn store(seed: u64, percent: usize) -> (Arc<SimStore>, SimClock) {
    let clock = SimClock::new(Millis(1_000_000));
    (SimStore::new(clock.clone(), SeededRng::new(seed), EventLog::disabled(), GRACE, percent), clock)
}

/// Runs a future, and delivers one message whenever it waits.
fn run<T>(future: impl Future<Output = T>, step: impl Fn() -> bool) -> T {
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return output;
        }
        assert!(step(), "it waits for nothing");
    }
}

fn new_put(seq: u64, value: i128) -> Put {
    let writer = Writer { node: NodeId(1), incarnation: Incarnation(1) };
    Put { cell: CellId { writer, shard: Shard(0) }, epoch: Epoch::FIRST, seq: Seq(seq), value, total: value }
}

#[test]
fn without_faults_it_passes_the_suite_of_every_store() {
    let made = Mutex::new(Vec::new());
    let connect = || {
        let (store, _) = store(1, 0);
        made.lock().unwrap().push(store.clone());
        async move { store.port(0) }
    };
    run(store_suite(connect), || made.lock().unwrap().last().is_some_and(|store| store.step()));
}

#[test]
fn through_every_fate_the_newest_that_was_said_again_is_what_it_holds() {
    for seed in 0..40 {
        let (store, clock) = store(seed, 60);
        let port = store.port(0);
        store.with_truth(|truth| truth.add_invoked(0, 120));
        let put = |seq: u64| {
            run(async { port.put_all(&[(counter_name(0), new_put(seq, seq.into()))]).await }, || {
                // Its message may arrive much later.
                clock.advance(Duration::from_millis(10));
                store.age();
                store.step();
                true
            })
        };
        (1..=100).for_each(|seq| drop(put(seq)));
        let Fates { answered_late, not_applied, lost, silent, late, answered } = store.fates();
        assert!([answered_late, not_applied, lost, silent, late, answered].iter().all(|count| *count > 0));
        store.stop_faults();
        while store.step() {}
        assert_eq!(put(120).unwrap(), [Verdict::Newest]);
        assert_eq!(store.with_row(counter_name(0), |row| row.map(Snapshot::sum)), Some(120));
        assert_eq!(store.with_truth(|truth| truth.broken().map(str::to_owned)), None, "seed {seed}");
    }
}

#[test]
fn a_call_does_nothing_before_it_is_polled_and_one_that_was_dropped_may_arrive() {
    let (store, _) = store(3, 0);
    let port = store.port(0);
    let puts = [(counter_name(0), new_put(1, 5))];
    drop(port.put(&puts));
    assert_eq!(store.under_way(), 0);
    let mut arrived = 0;
    for seq in 1..=100 {
        let puts = [(counter_name(0), new_put(seq, 5))];
        let mut put = port.put(&puts);
        assert!(put.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        drop(put);
        assert!(store.step() && !store.step());
        arrived += usize::from(store.with_row(counter_name(0), |row| {
            row.is_some_and(|row| row.cells.values().any(|row_cell| row_cell.seq == Seq(seq)))
        }));
    }
    assert!((1..100).contains(&arrived), "{arrived}");
}

#[test]
fn a_message_under_way_for_too_long_never_arrives_and_its_caller_is_answered() {
    let (store, clock) = store(4, 0);
    let port = store.port(0);
    let puts = [(counter_name(0), new_put(1, 5))];
    let mut put = port.put(&puts);
    assert!(put.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    clock.advance(GRACE / 4);
    store.age();
    let result = run(put, || false);
    assert!(matches!(result, Err(StoreError::Unknown { .. })), "{result:?}");
    assert!(!store.step());
    assert_eq!(store.with_row(counter_name(0), |row| row.cloned()), None);
}

#[test]
fn a_store_that_is_down_applies_nothing_and_one_that_lost_commits_has_what_it_had() {
    let (store, clock) = store(5, 0);
    let port = store.port(0);
    let put = |seq, value| {
        run(async { port.put(&[(counter_name(0), new_put(seq, value))]).await }, || {
            clock.advance(Duration::from_millis(1));
            store.step();
            true
        })
    };
    store.with_truth(|truth| truth.add_invoked(0, 9));
    put(1, 5).unwrap();
    let copy = store.copy();
    put(2, 9).unwrap();
    store.go_down(Duration::from_secs(10));
    assert!((0..20).map(|_| put(3, 7)).any(|result| result.is_err()));
    assert_eq!(store.with_row(counter_name(0), |row| row.map(Snapshot::sum)), Some(9));
    store.restore_copy(&copy, false);
    assert_eq!(store.with_row(counter_name(0), |row| row.map(Snapshot::sum)), Some(5));
    assert_eq!(store.with_truth(|truth| truth.broken().map(str::to_owned)), None);
}

#[test]
fn the_books_notice_what_is_counted_twice_and_what_is_taken_back() {
    let (store, _) = store(6, 0);
    let port = store.port(0);
    let put = |seq, value| run(async { port.put(&[(counter_name(0), new_put(seq, value))]).await }, || store.step());
    store.with_truth(|truth| truth.add_invoked(0, 9));
    put(1, 9).unwrap();
    assert_eq!(store.with_truth(|truth| truth.broken().map(str::to_owned)), None);
    put(2, 10).unwrap();
    assert!(store.with_truth(|truth| truth.broken().is_some_and(|what| what.contains("asked for"))));
}
