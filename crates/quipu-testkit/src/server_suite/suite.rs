//! Runs the suite of every store on one server; a row at its widest, a registry at its fullest.

use std::time::Duration;

use quipu_model::shared::registry::REGISTRATIONS_MAX;
use quipu_model::shared::{
    CellId, Change, NO_WRITERS, NextRow, Put, RegisterVerdict, Shard, Snapshot, SwapContext, SwapId, SwapVerdict,
    Verdict, plan_swap,
};
use quipu_model::{NodeId, Store};

use super::puts::{make_put, name, registration, writer};
use super::{StoreAdapter, TestServer, next_prefix};
use crate::store_suite::block_on;
use crate::{FaultyStore, store_suite};

/// The store keeps the promises of its port.
pub fn one_server_keeps_every_promise_of_the_port<A: StoreAdapter>() {
    let server = A::Server::start().expect("the server starts");
    block_on(store_suite(async || A::open_fresh(&server.url())));
}

/// Without faults the faulty store is the store itself.
pub fn one_server_keeps_them_behind_a_calm_faulty_store<A: StoreAdapter>() {
    let server = A::Server::start().expect("the server starts");
    block_on(store_suite(async || {
        let store = FaultyStore::new(A::open_fresh(&server.url()), 1, 100);
        store.calm().await;
        store
    }));
}

/// A row of 4,096 cells.
pub fn a_wide_row_is_swapped_and_read_whole<A: StoreAdapter>() {
    let server = A::Server::start().expect("the server starts");
    let store = A::open_fresh(&server.url());
    let at = name(b"wide");
    let puts: Vec<_> = (0..1_024_u16)
        .map(|shard| (at, Put { cell: CellId { writer: writer(1), shard: Shard(shard) }, ..make_put(1, 1) }))
        .collect();
    for part in 0..4 {
        let mut part_puts = puts.clone();
        part_puts.iter_mut().for_each(|(_, put)| put.cell.writer = writer(part));
        assert_eq!(block_on(store.put_all(&part_puts)).expect("the server answers"), vec![Verdict::Newest; puts.len()]);
    }
    let seen = block_on(store.read(at)).expect("the server answers");
    assert_eq!(seen.snapshot.sum(), 4_096);
    let by = SwapContext { id: SwapId(1), node: NodeId(1), grace: Duration::from_secs(3_600), registered: &NO_WRITERS };
    let NextRow::Row(next) = plan_swap(&seen, &by, &Change::Reset).expect("the server answers").next else {
        panic!("a reset swaps")
    };
    let verdict = block_on(store.swap(at, seen.snapshot.version, Some(&next))).expect("the server answers");
    assert_eq!(verdict, SwapVerdict::Swapped);
    let back = block_on(store.read(at)).expect("the server answers").snapshot;
    let version = if A::COUNTS_PUTS { back.version } else { next.version };
    assert_eq!(Snapshot { version, ..back }, next);
}

/// One registration more than there may be.
pub fn the_registry_is_full_at_its_bound_and_those_in_it_go_on<A: StoreAdapter>() {
    let server = A::Server::start_fast().expect("the server starts");
    let prefix = next_prefix::<A>();
    let store = A::open(&server.url(), prefix.clone(), None);
    let register = |known, one| block_on(store.register(known, &one)).expect("the server answers");
    assert_eq!(register(0, registration(0, 1)), RegisterVerdict::Registered);
    A::fill_registry(&server, &prefix, &store, 1..REGISTRATIONS_MAX as u64);
    let more = registration(u64::MAX, 1);
    assert_eq!(register(0, more), RegisterVerdict::Full);
    assert_eq!(register(1, registration(7, 2)), RegisterVerdict::Registered);
    let registrations = block_on(store.writers()).expect("the server answers").registrations;
    assert_eq!(registrations.len(), REGISTRATIONS_MAX);
    assert_eq!(block_on(store.unregister(writer(7), 2)).expect("the server answers"), RegisterVerdict::Registered);
    assert_eq!(register(0, more), RegisterVerdict::Registered);
}
