//! Tests a server that is killed, stopped, or restarted empty, and a failing network.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use quipu_model::shared::{RowVersion, Seq, Snapshot, SwapId, Verdict};
use quipu_model::{Millis, Store, StoreError};
use quipu_store_postgres::{Options, open};
use quipu_testkit::proxy::{NetworkFault, Proxy};
use quipu_testkit::servers::postgres::PostgresServer;
use quipu_testkit::store_suite::{block_on, harvest};
use quipu_testkit::{SeededRng, store_suite};

use crate::suite::{make_put, name};
use crate::{fresh, hasty};

/// How often a call is tried until a store must have healed: with a pause each, several seconds.
const TRIES: u32 = 200;

/// Schedules behind the proxy.
const SEEDS: u64 = 6;

/// Requests of a schedule that may meet a fault: fewer than any schedule has before it waits for everyone to settle.
pub const ROUGH_REQUESTS: u64 = 80;

/// Longer than a busy machine takes for one reply: after the faults every call must succeed.
pub const REPLY_TIMEOUT: Duration = Duration::from_secs(2);

/// A put, until it is answered; how many tries that took.
pub fn put_until_answered(store: &impl Store, at: &[u8], seq: u64) -> (Verdict, u32) {
    for tries in 1..=TRIES {
        match block_on(store.put_all(&[(name(at), make_put(seq, i128::from(seq)))])) {
            Ok(verdicts) => return (verdicts[0], tries),
            Err(_) => thread::sleep(Duration::from_millis(50)),
        }
    }
    panic!("the store does not heal")
}

#[test]
fn a_server_that_is_not_there_has_applied_nothing() {
    let mut server = PostgresServer::start().unwrap();
    let url = server.url();
    server.kill();
    let store = fresh(&url);
    for _ in 0..2 {
        let put = block_on(store.put_all(&[(name(b"a"), make_put(1, 1))]));
        assert!(matches!(put, Err(StoreError::NotApplied { .. })), "{put:?}");
    }
    server.restart().unwrap();
    assert_eq!(block_on(store.put_all(&[(name(b"a"), make_put(1, 1))])).unwrap(), [Verdict::Newest], "it is there now");
}

#[test]
fn a_store_heals_after_its_server_was_killed_and_started_empty() {
    let mut server = PostgresServer::start().unwrap();
    let store = fresh(&server.url());
    assert_eq!(put_until_answered(&store, b"a", 1), (Verdict::Newest, 1));
    for seq in 2..5 {
        server.kill();
        // The connection broke: this may have been the last that the server did. After that, nobody is there.
        assert!(block_on(store.clock()).is_err());
        assert!(matches!(block_on(store.clock()), Err(StoreError::NotApplied { .. })));
        server.restart_empty().unwrap();
        assert_eq!(block_on(store.read(name(b"a"))).unwrap().snapshot, Default::default(), "it lost everything");
        assert_eq!(put_until_answered(&store, b"a", seq), (Verdict::Newest, 1));
        assert_eq!(block_on(store.read(name(b"a"))).unwrap().snapshot.sum(), i128::from(seq));
    }
}

#[test]
fn what_was_acknowledged_outlives_a_crash_of_the_server() {
    let mut server = PostgresServer::start().unwrap();
    let store = fresh(&server.url());
    for seq in 1..20 {
        put_until_answered(&store, b"kept", seq);
    }
    server.restart().unwrap();
    let seen = loop {
        // The first call may find the connection that broke.
        if let Ok(seen) = block_on(store.read(name(b"kept"))) {
            break seen;
        }
    };
    assert_eq!(seen.snapshot.sum(), 19);
    assert_eq!(put_until_answered(&store, b"kept", 19), (Verdict::Newest, 1));
    assert_eq!(block_on(store.read(name(b"kept"))).unwrap().snapshot, seen.snapshot, "it was there already");
}

#[test]
fn what_was_acknowledged_under_load_outlives_crashes_and_nothing_else_appears() {
    let mut server = PostgresServer::start().unwrap();
    let (store, over, lost) = (fresh(&server.url()), AtomicBool::new(false), AtomicU64::new(0));
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
fn a_server_that_hangs_leaves_the_outcome_open_and_heals_when_it_goes_on() {
    let server = PostgresServer::start().unwrap();
    let store = hasty(&server.url());
    put_until_answered(&store, b"a", 1);
    server.stop().unwrap();
    let put = block_on(store.put_all(&[(name(b"a"), make_put(2, 2))]));
    assert!(matches!(put, Err(StoreError::Unknown { .. })), "{put:?}");
    let put = block_on(store.put_all(&[(name(b"a"), make_put(3, 3))]));
    assert!(matches!(put, Err(StoreError::NotApplied { .. })), "no connection was made: {put:?}");
    server.resume().unwrap();
    put_until_answered(&store, b"b", 1);
    let held = block_on(store.read(name(b"a"))).unwrap().snapshot.sum();
    assert!(held == 1 || held == 2, "now, later or never, but nothing else: {held}");
}

#[test]
fn many_threads_heal_while_the_server_comes_and_goes() {
    let mut server = PostgresServer::start().unwrap();
    let (store, over) = (fresh(&server.url()), AtomicBool::new(false));
    thread::scope(|scope| {
        for thread in 0..4_u8 {
            let (store, over) = (&store, &over);
            scope.spawn(move || {
                let at = [b't', thread];
                let mut seq = 0;
                while !over.load(Ordering::SeqCst) {
                    seq += 1;
                    put_until_answered(store, &at, seq);
                }
                put_until_answered(store, &at, seq);
                assert_eq!(block_on(store.read(name(&at))).unwrap().snapshot.sum(), i128::from(seq));
            });
        }
        for _ in 0..5 {
            thread::sleep(Duration::from_millis(100));
            server.restart_empty().unwrap();
        }
        over.store(true, Ordering::SeqCst);
    });
}

#[test]
fn a_wrong_password_applies_nothing_and_is_not_told() {
    let server = PostgresServer::start().unwrap();
    server.require_password("s3cret").unwrap();
    let address = server.address();
    for user in ["postgres:wr0ng", "postgres", "nobody:wr0ng"] {
        let clock = block_on(fresh(&format!("postgres://{user}@{address}/postgres")).clock());
        let Err(error @ StoreError::NotApplied { .. }) = clock else { panic!("{clock:?}") };
        let shown = format!("{error:?}");
        assert!(!shown.contains("wr0ng") && !shown.contains("s3cret"), "{shown}");
    }
    assert!(block_on(fresh(&format!("postgres://postgres:s3cret@{address}/postgres")).clock()).is_ok());
}

#[test]
fn a_scan_goes_on_anew_after_the_server_was_started_again() {
    let mut server = PostgresServer::start().unwrap();
    let store = fresh(&server.url());
    let names: std::collections::BTreeSet<Box<[u8]>> = (0..500).map(|n| format!("n{n}").into_bytes().into()).collect();
    for at in &names {
        put_until_answered(&store, at, 1);
    }
    let (mut met, mut from, mut pages) = (std::collections::BTreeSet::new(), None, 0);
    loop {
        let Ok(page) = block_on(store.scan(from.as_ref(), 10)) else { continue };
        assert!(page.names.len() <= 10, "a page has what it was asked for: {}", page.names.len());
        met.extend(page.names);
        pages += 1;
        if pages == 20 {
            server.restart().unwrap();
        }
        match page.next {
            Some(next) => from = Some(next),
            None => break,
        }
    }
    assert_eq!(met, names);
}

/// A store behind a network whose next request meets what is set.
fn behind(server: &PostgresServer) -> (Proxy, Arc<Mutex<NetworkFault>>, quipu_store_postgres::PostgresStore) {
    let weather = Arc::new(Mutex::new(NetworkFault::PassThrough));
    let next = weather.clone();
    let plan = move |_| std::mem::replace(&mut *next.lock().expect("nobody panics with it"), NetworkFault::PassThrough);
    let proxy = Proxy::start(server.address(), plan).expect("a port is free");
    let store = hasty(&server.url_at(proxy.address()));
    (proxy, weather, store)
}

/// Makes a connection, and has it know the statements: what comes next is a call's own request.
fn warm(store: &impl Store) {
    put_until_answered(store, b"warm", 1);
    block_on(store.swap(name(b"warm"), RowVersion::ABSENT, None)).expect("the server answers");
}

#[test]
fn a_call_whose_reply_is_lost_is_unknown_and_was_carried_out_once() {
    let server = PostgresServer::start().unwrap();
    let (_proxy, weather, store) = behind(&server);
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
        *weather.lock().unwrap() = lost;
        // One that was sent again by itself would find the row moved, and say so.
        let swap = block_on(store.swap(name(b"lost"), version, Some(&next)));
        assert!(matches!(swap, Err(StoreError::Unknown { .. })), "{lost:?}: {swap:?}");
        assert_eq!(settled(&store, b"lost", |row| row == &next), next, "{lost:?}: it was carried out");
        version = next.version;

        warm(&store);
        *weather.lock().unwrap() = lost;
        let seq = n as u64 + 1;
        let put = block_on(store.put_all(&[(name(b"put"), make_put(seq, 1))]));
        assert!(matches!(put, Err(StoreError::Unknown { .. })), "{lost:?}: {put:?}");
        let held = settled(&store, b"put", |row| row.newest(make_put(1, 1).cell) == Some(Seq(seq)));
        assert_eq!((held.sum(), held.newest(make_put(1, 1).cell)), (1, Some(Seq(seq))), "{lost:?}: it was carried out");
    }
}

/// The row, once it is so: a statement whose client has gone may take a moment longer.
fn settled(store: &impl Store, at: &[u8], is_so: impl Fn(&Snapshot) -> bool) -> Snapshot {
    let mut row = Snapshot::default();
    for _ in 0..TRIES {
        row = block_on(store.read(name(at))).expect("the server answers").snapshot;
        if is_so(&row) {
            break;
        }
        thread::sleep(Duration::from_millis(5));
    }
    row
}

#[test]
fn a_call_that_never_arrives_is_unknown_and_was_not_carried_out() {
    let server = PostgresServer::start().unwrap();
    let (_proxy, weather, store) = behind(&server);
    for lost in [NetworkFault::CutBefore, NetworkFault::Reset, NetworkFault::HalfOpen] {
        warm(&store);
        *weather.lock().unwrap() = lost;
        let put = block_on(store.put_all(&[(name(b"never"), make_put(1, 1))]));
        assert!(matches!(put, Err(StoreError::Unknown { .. })), "{lost:?}: {put:?}");
        assert!(!block_on(store.read(name(b"never"))).unwrap().snapshot.exists(), "{lost:?}");
    }
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
            let store = hasty(&server.url_at(proxy.address()));
            let clock = block_on(store.clock());
            assert!(matches!(clock, Err(StoreError::NotApplied { .. })), "{lost:?} at {step}: {clock:?}");
            assert!(block_on(store.clock()).is_ok(), "{lost:?} at {step}: and the next is fine");
        }
    }
}

#[test]
fn a_put_that_breaks_half_way_is_unknown_and_was_not_carried_out() {
    let server = PostgresServer::start().unwrap();
    let (proxy, weather, store) = behind(&server);
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

#[test]
fn the_suite_passes_behind_a_slow_network() {
    let server = PostgresServer::start().unwrap();
    let proxy = Proxy::start(server.address(), |n| match n % 16 {
        0 => NetworkFault::Delay(Duration::from_millis(2)),
        _ => NetworkFault::PassThrough,
    })
    .unwrap();
    block_on(store_suite(async || fresh(&server.url_at(proxy.address()))));
}

#[test]
fn each_add_is_counted_once_behind_a_network_that_fails() {
    let server = PostgresServer::start().unwrap();
    thread::scope(|scope| {
        for seed in 0..SEEDS {
            let server = &server;
            scope.spawn(move || {
                let rng = SeededRng::new(seed);
                let proxy = Proxy::start(server.address(), move |n| rough(&rng, n)).unwrap();
                let options =
                    Options { prefix: crate::prefix(), reply_timeout: REPLY_TIMEOUT, connect_timeout: REPLY_TIMEOUT };
                let store = open(&server.url_at(proxy.address()), options).unwrap();
                block_on(harvest(store, seed));
                assert!(proxy.requests() > ROUGH_REQUESTS, "the schedule outlived the faults");
            });
        }
    });
}

/// What a request meets while it is rough. Faults that cost a time-out are rare, so that a schedule takes seconds.
pub fn rough(rng: &SeededRng, request: u64) -> NetworkFault {
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
