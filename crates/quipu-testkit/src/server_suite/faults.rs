//! Tests a server that is killed, stopped, or restarted empty, and a failing network.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use quipu_model::shared::{RowVersion, Seq, Snapshot, SwapId, Verdict};
use quipu_model::{Millis, Store, StoreError};

use super::puts::{make_put, name, put_until_answered, read_until};
use super::{StoreAdapter, TestServer, next_prefix};
use crate::proxy::{NetworkFault, Proxy};
use crate::store_suite::{block_on, harvest};
use crate::{SeededRng, store_suite};

/// Schedules behind the proxy.
const SEEDS: u64 = 6;

/// Requests of a schedule that may meet a fault: fewer than any schedule has before it waits for
/// everyone to settle.
pub const ROUGH_REQUESTS: u64 = 80;

/// Longer than a busy machine takes for one reply: after the faults every call must succeed.
pub const REPLY_TIMEOUT: Duration = Duration::from_secs(2);

/// Nobody listens at the address, and later somebody does.
pub fn a_server_that_is_not_there_has_applied_nothing<A: StoreAdapter>() {
    let mut server = A::Server::start().expect("the server starts");
    let url = server.url();
    server.kill();
    let store = A::open_fresh(&url);
    for _ in 0..2 {
        let put = block_on(store.put_all(&[(name(b"a"), make_put(1, 1))]));
        assert!(matches!(put, Err(StoreError::NotApplied { .. })), "{put:?}");
    }
    server.restart().expect("the server starts");
    assert_eq!(
        block_on(store.put_all(&[(name(b"a"), make_put(1, 1))])).expect("the server answers"),
        [Verdict::Newest],
        "it is there now"
    );
}

/// The server is killed several times, and loses everything.
pub fn a_store_heals_after_its_server_was_killed_and_started_empty<A: StoreAdapter>() {
    let mut server = A::Server::start().expect("the server starts");
    let store = A::open_fresh(&server.url());
    assert_eq!(put_until_answered(&store, b"a", 1), (Verdict::Newest, 1));
    for seq in 2..5 {
        server.kill();
        // The connection broke: this may have been the last that the server did. After that, nobody
        // is there.
        assert!(block_on(store.clock()).is_err());
        assert!(matches!(block_on(store.clock()), Err(StoreError::NotApplied { .. })));
        server.restart_empty().expect("the server starts");
        assert_eq!(
            block_on(store.read(name(b"a"))).expect("the server answers").snapshot,
            Default::default(),
            "it lost everything"
        );
        assert_eq!(put_until_answered(&store, b"a", seq), (Verdict::Newest, 1));
        assert_eq!(block_on(store.read(name(b"a"))).expect("the server answers").snapshot.sum(), i128::from(seq));
    }
}

/// A durable server is killed, and has what it acknowledged.
pub fn what_was_acknowledged_outlives_a_kill_if_the_server_writes_it_down<A: StoreAdapter>() {
    let mut server = A::Server::start_durable().expect("the server starts");
    let store = A::open_fresh(&server.url());
    for seq in 1..20 {
        put_until_answered(&store, b"kept", seq);
    }
    server.restart().expect("the server starts");
    let seen = loop {
        // The first call may find the connection that broke.
        if let Ok(seen) = block_on(store.read(name(b"kept"))) {
            break seen;
        }
    };
    assert_eq!(seen.snapshot.sum(), 19);
    assert_eq!(put_until_answered(&store, b"kept", 19), (Verdict::Newest, 1));
    assert_eq!(
        block_on(store.read(name(b"kept"))).expect("the server answers").snapshot,
        seen.snapshot,
        "it was there already"
    );
}

/// The server stops answering, and later goes on.
pub fn a_server_that_hangs_leaves_the_outcome_open_and_heals_when_it_goes_on<A: StoreAdapter>() {
    let server = A::Server::start().expect("the server starts");
    let store = A::open_hasty(&server.url());
    put_until_answered(&store, b"a", 1);
    server.stop().expect("the server runs");
    let put = block_on(store.put_all(&[(name(b"a"), make_put(2, 2))]));
    assert!(matches!(put, Err(StoreError::Unknown { .. })), "{put:?}");
    let put = block_on(store.put_all(&[(name(b"a"), make_put(3, 3))]));
    assert!(matches!(put, Err(StoreError::NotApplied { .. })), "no connection was made: {put:?}");
    server.resume().expect("the server runs");
    put_until_answered(&store, b"b", 1);
    let held = block_on(store.read(name(b"a"))).expect("the server answers").snapshot.sum();
    assert!(held == 1 || held == 2, "now, later or never, but nothing else: {held}");
}

/// The server is killed under four threads that put.
pub fn many_threads_heal_while_the_server_comes_and_goes<A: StoreAdapter>() {
    let mut server = A::Server::start().expect("the server starts");
    let store = A::open_fresh(&server.url());
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        for thread in 0..4_u8 {
            let store = &store;
            let over = &over;
            scope.spawn(move || {
                let at = [b't', thread];
                let mut seq = 0;
                while !over.load(Ordering::SeqCst) {
                    seq += 1;
                    put_until_answered(store, &at, seq);
                }
                put_until_answered(store, &at, seq);
                assert_eq!(
                    block_on(store.read(name(&at))).expect("the server answers").snapshot.sum(),
                    i128::from(seq)
                );
            });
        }
        for _ in 0..5 {
            thread::sleep(Duration::from_millis(100));
            server.restart_empty().expect("the server starts");
        }
        over.store(true, Ordering::SeqCst);
    });
}

/// The errors name neither the given password nor the server's.
pub fn a_wrong_password_applies_nothing_and_is_not_shown<A: StoreAdapter>() {
    let server = A::Server::start().expect("the server starts");
    server.require_password("s3cret").expect("the server answers");
    let user = A::Server::USER;
    for user in [&format!("{user}:wr0ng"), user, "nobody:wr0ng"] {
        let clock = block_on(A::open_fresh(&server.url_of(server.address(), user)).clock());
        let Err(error @ StoreError::NotApplied { .. }) = clock else { panic!("{clock:?}") };
        let shown = format!("{error:?}");
        assert!(!shown.contains("wr0ng") && !shown.contains("s3cret"), "{shown}");
    }
    let url = server.url_of(server.address(), &format!("{user}:s3cret"));
    assert!(block_on(A::open_fresh(&url).clock()).is_ok());
}

/// A scan names every row although the server is restarted in between.
pub fn a_scan_goes_on_anew_after_the_server_was_started_again<A: StoreAdapter>() {
    let mut server = A::Server::start_durable().expect("the server starts");
    let store = A::open_fresh(&server.url());
    let names: BTreeSet<Box<[u8]>> = (0..500).map(|n| format!("n{n}").into_bytes().into()).collect();
    for at in &names {
        put_until_answered(&store, at, 1);
    }
    let mut met = BTreeSet::new();
    let mut from = None;
    let mut pages = 0;
    loop {
        let Ok(page) = block_on(store.scan(from.as_ref(), 10)) else { continue };
        assert!(page.names.len() <= 10, "a page has what it was asked for: {}", page.names.len());
        met.extend(page.names);
        pages += 1;
        if pages == 20 {
            server.restart().expect("the server starts");
        }
        match page.next {
            Some(next) => from = Some(next),
            None => break,
        }
    }
    assert_eq!(met, names);
}

/// A store behind a network whose next request meets what is set.
pub fn open_behind_proxy<A: StoreAdapter>(server: &A::Server) -> (Proxy, Arc<Mutex<NetworkFault>>, A::Store) {
    let weather = Arc::new(Mutex::new(NetworkFault::PassThrough));
    let next = weather.clone();
    let plan = move |_| std::mem::replace(&mut *next.lock().expect("nobody panics with it"), NetworkFault::PassThrough);
    let proxy = Proxy::start(server.address(), plan).expect("a port is free");
    let store = A::open_hasty(&server.url_at(proxy.address()));
    (proxy, weather, store)
}

/// Makes a connection, and has it know the statements: what comes next is a call's own request.
pub fn warm(store: &impl Store) {
    put_until_answered(store, b"warm", 1);
    block_on(store.swap(name(b"warm"), RowVersion::ABSENT, None)).expect("the server answers");
}

/// The network loses the reply.
pub fn a_call_with_a_lost_reply_is_unknown_and_ran_once<A: StoreAdapter>() {
    let server = A::Server::start().expect("the server starts");
    let (_proxy, weather, store) = open_behind_proxy::<A>(&server);
    let row = |swaps, base| Snapshot {
        version: RowVersion { born_at: Millis(1), swaps, puts: 0 },
        base: Some(base),
        swaps: vec![SwapId(swaps.into())],
        ..Snapshot::default()
    };
    let mut version = RowVersion::ABSENT;
    for (n, lost) in [NetworkFault::CutAfter, NetworkFault::LoseReplies, NetworkFault::CutAfter].into_iter().enumerate()
    {
        let next = row(n as u64 + 1, n as i128);
        warm(&store);
        *weather.lock().expect("nobody panics with it") = lost;
        // One that was sent again by itself would find the row moved, and say so.
        let swap = block_on(store.swap(name(b"lost"), version, Some(&next)));
        assert!(matches!(swap, Err(StoreError::Unknown { .. })), "{lost:?}: {swap:?}");
        assert_eq!(read_until(&store, b"lost", |row| row == &next), next, "{lost:?}: it was carried out");
        version = next.version;

        warm(&store);
        *weather.lock().expect("nobody panics with it") = lost;
        let seq = n as u64 + 1;
        let put = block_on(store.put_all(&[(name(b"put"), make_put(seq, 1))]));
        assert!(matches!(put, Err(StoreError::Unknown { .. })), "{lost:?}: {put:?}");
        let held = read_until(&store, b"put", |row| row.newest(make_put(1, 1).cell) == Some(Seq(seq)));
        assert_eq!((held.sum(), held.newest(make_put(1, 1).cell)), (1, Some(Seq(seq))), "{lost:?}: it was carried out");
    }
}

/// The network loses the request.
pub fn a_call_that_never_arrives_is_unknown_and_was_not_carried_out<A: StoreAdapter>() {
    let server = A::Server::start().expect("the server starts");
    let (_proxy, weather, store) = open_behind_proxy::<A>(&server);
    for lost in [NetworkFault::CutBefore, NetworkFault::Reset, NetworkFault::HalfOpen] {
        warm(&store);
        *weather.lock().expect("nobody panics with it") = lost;
        let put = block_on(store.put_all(&[(name(b"never"), make_put(1, 1))]));
        assert!(matches!(put, Err(StoreError::Unknown { .. })), "{lost:?}: {put:?}");
        assert!(!block_on(store.read(name(b"never"))).expect("the server answers").snapshot.exists(), "{lost:?}");
    }
}

/// Each sixteenth request takes longer.
pub fn the_suite_passes_behind_a_slow_network<A: StoreAdapter>() {
    let server = A::Server::start().expect("the server starts");
    let proxy = Proxy::start(server.address(), |n| match n % 16 {
        0 => NetworkFault::Delay(Duration::from_millis(2)),
        _ => NetworkFault::PassThrough,
    })
    .expect("a port is free");
    block_on(store_suite(async || A::open_fresh(&server.url_at(proxy.address()))));
}

/// Schedules of nodes behind a network that loses requests and replies.
pub fn each_add_is_counted_once_behind_a_network_that_fails<A: StoreAdapter>() {
    let server = A::Server::start().expect("the server starts");
    thread::scope(|scope| {
        for seed in 0..SEEDS {
            let server = &server;
            scope.spawn(move || {
                let rng = SeededRng::new(seed);
                let proxy = Proxy::start(server.address(), move |n| draw_rough_fault(&rng, n)).expect("a port is free");
                let store = A::open(&server.url_at(proxy.address()), next_prefix::<A>(), Some(REPLY_TIMEOUT));
                block_on(harvest(store, seed));
                assert!(proxy.requests() > ROUGH_REQUESTS, "the schedule outlived the faults");
            });
        }
    });
}

/// Draws what a request meets while the network fails. Faults that cost a time-out are rare, so
/// that a schedule takes seconds.
pub fn draw_rough_fault(rng: &SeededRng, request: u64) -> NetworkFault {
    if request >= ROUGH_REQUESTS || !rng.chance(25) {
        return NetworkFault::PassThrough;
    }
    match rng.below(40) {
        0 => NetworkFault::Delay(REPLY_TIMEOUT + Duration::from_millis(200)),
        1 => NetworkFault::LoseReplies,
        2 => NetworkFault::HalfOpen,
        3..=16 => NetworkFault::CutAfter,
        17..=24 => NetworkFault::CutBefore,
        25..=32 => NetworkFault::Reset,
        _ => NetworkFault::Delay(Duration::from_millis(5)),
    }
}
