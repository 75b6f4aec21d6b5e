//! Tests many concurrent sessions: a swap takes exactly the puts before it, and no session
//! deadlocks.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use quipu_model::shared::body::{BodyShape, FOLDED_BODY_WRITER, NODE_INCARNATION, StoredBody};
use quipu_model::shared::{
    BodyPut, BodyVerdict, CellId, Change, Claim, ClaimToken, ClaimVerdict, FetchedRow, NO_WRITERS, NextRow, Put,
    RegisterVerdict, Registration, RowCell, RowVersion, RowWithBodies, Seq, Shard, Snapshot, SwapContext, SwapId,
    SwapVerdict, Verdict, WriterStage, incarnation_cell, plan_swap,
};
use quipu_model::{Epoch, Incarnation, Millis, Name, NodeId, Reply, Store, StoreError, Writer};
use quipu_testkit::SeededRng;
use quipu_testkit::server_suite::StoreAdapter;
use quipu_testkit::server_suite::puts::{make_put, name, writer};
use quipu_testkit::servers::postgres::PostgresServer;
use quipu_testkit::store_suite::block_on;

use crate::Postgres;

const WRITERS: u64 = 4;
const RESETTERS: u64 = 2;

/// What each writer adds at least, one by one.
const ADDS: u64 = 400;

/// So often those who put have to meet those who swap before either is done.
const MEETINGS_MIN: u64 = 10;

/// How often they have.
#[derive(Default)]
struct MeetingCount(AtomicU64);

impl MeetingCount {
    fn record(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    /// Returns true if a writer with this many adds continues, slowly: on some machines swaps
    /// rarely come in between.
    fn needs_more(&self, added: u64) -> bool {
        if added >= ADDS && self.0.load(Ordering::SeqCst) < MEETINGS_MIN {
            thread::sleep(Duration::from_millis(2));
            return true;
        }
        added < ADDS
    }
}

fn change(store: &impl Store, at: Name<'_>, id: u128, change: Change) -> Option<(FetchedRow, Reply)> {
    let seen = block_on(store.read(at)).expect("the server answers");
    let by =
        SwapContext { id: SwapId(id), node: NodeId(9), grace: Duration::from_secs(3_600), registered: &NO_WRITERS };
    let computed = plan_swap(&seen, &by, &change).expect("values of this test fit");
    let next = match &computed.next {
        NextRow::Row(next) => Some(next),
        NextRow::Removed => None,
        NextRow::Unchanged => return Some((seen, computed.reply)),
    };
    let verdict = block_on(store.swap(at, seen.snapshot.version, next)).expect("the server answers");
    (verdict == SwapVerdict::Swapped).then_some((seen, computed.reply))
}

/// Adds one by one, and carries what a reset did not take, as the engine does. How much it has
/// added.
fn add_all(store: &impl Store, at: Name<'_>, node: u64, meetings: &MeetingCount) -> u64 {
    let cell = CellId { writer: writer(node), shard: Shard(0) };
    let (mut put, mut added) = (Put { cell, epoch: Epoch::FIRST, seq: Seq(0), value: 0, total: 0 }, 0);
    while meetings.needs_more(added) {
        added += 1;
        (put.value, put.total) = (put.value + 1, put.total + 1);
        loop {
            put.seq.0 += 1;
            match block_on(store.put_all(&[(at, put)])).expect("the server answers")[0] {
                Verdict::Newest => break,
                Verdict::Stale { epoch, kept, expired: None } => {
                    meetings.record();
                    (put.epoch, put.value) = (epoch, put.value - kept);
                }
                verdict => panic!("{verdict:?} on {put:?}"),
            }
        }
    }
    added
}

#[test]
fn resets_take_exactly_what_was_put_however_many_add_meanwhile() {
    let server = PostgresServer::start_with(&["synchronous_commit=off"]).unwrap();
    let (store, at) = (Postgres::open_fresh(&server.url()), name(b"hot"));
    let (over, meetings) = (AtomicBool::new(false), MeetingCount::default());
    let (taken, added) = thread::scope(|scope| {
        let (store, over, meetings) = (&store, &over, &meetings);
        let resetters: Vec<_> = (0..RESETTERS)
            .map(|number| {
                scope.spawn(move || {
                    let (mut taken, mut id) = (0, u128::from(number) << 64);
                    while !over.load(Ordering::SeqCst) {
                        id += 1;
                        if let Some((_, Reply::Integer(value))) = change(store, at, id, Change::Reset) {
                            taken += value;
                        }
                    }
                    taken
                })
            })
            .collect();
        let writers: Vec<_> =
            (1..=WRITERS).map(|node| scope.spawn(move || add_all(store, at, node, meetings))).collect();
        // Whatever became of the writers, the resetters end.
        let added: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        over.store(true, Ordering::SeqCst);
        let added: u64 = added.into_iter().map(|added| added.unwrap()).sum();
        (resetters.into_iter().map(|resetter| resetter.join().unwrap()).sum::<i64>(), added)
    });
    let left = block_on(store.read(at)).unwrap().snapshot.sum();
    assert_eq!(i128::from(taken) + left, i128::from(added), "each add once: {taken} taken, {left} left");
}

/// What a body of these tests counts: its bytes are a number.
fn count_of(body: &StoredBody) -> i128 {
    u64::from_le_bytes(body.bytes[..].try_into().expect("bodies of this test are of eight bytes")).into()
}

const EIGHT_BYTES: BodyShape = BodyShape { kind: 1, key: 0, length: 8 };

/// Adds one by one to the body of a life, and goes on in another life when that was folded. How
/// much it has added.
fn add_to_bodies(store: &impl Store, at: Name<'_>, node: u64, meetings: &MeetingCount) -> u64 {
    let (mut incarnation, mut from, mut value, mut added) = (1, None, 0_i128, 0);
    while meetings.needs_more(added) {
        (value, added) = (value + 1, added + 1);
        loop {
            let writer = Writer { node: NodeId(node), incarnation: Incarnation(incarnation) };
            let seq = Seq(from.map_or(1, |Seq(from)| from + 1));
            let put = Put { cell: incarnation_cell(writer, 0), epoch: Epoch::FIRST, seq, value, total: value };
            let bytes = u64::try_from(value).expect("it is what was added").to_le_bytes();
            let asked = BodyPut { put, from, whole: true, shape: EIGHT_BYTES, pages: vec![(0, bytes.into())] };
            match block_on(store.put_body(at, &asked)).expect("the server answers") {
                BodyVerdict::Cell(Verdict::Newest) => {
                    from = Some(seq);
                    break;
                }
                BodyVerdict::Cell(Verdict::Closed { value: kept, .. }) => {
                    meetings.record();
                    (incarnation, from, value) = (incarnation + 1, None, value - kept);
                }
                verdict => panic!("{verdict:?} on {asked:?}"),
            }
        }
    }
    added
}

/// The row, whose cells say what the bodies beside them do.
fn read_whole(store: &impl Store, at: Name<'_>) -> RowWithBodies {
    let seen = block_on(store.read_bodies(at)).expect("the server answers");
    let cell_values: BTreeMap<_, _> =
        seen.row.snapshot.cells.iter().map(|(cell, held)| (cell.writer, held.value)).collect();
    let counted = seen.bodies.iter().map(|(writer, body)| (*writer, count_of(body))).collect();
    assert_eq!(cell_values, counted, "the row and its bodies are of one moment");
    seen
}

/// Folds the body of some life.
fn fold_one(store: &impl Store, at: Name<'_>, id: u128) {
    let RowWithBodies { row: seen, bodies } = read_whole(store, at);
    let Some((incarnation, body)) = bodies.iter().find(|(writer, _)| writer.incarnation != NODE_INCARNATION) else {
        return;
    };
    let by =
        SwapContext { id: SwapId(id), node: NodeId(9), grace: Duration::from_secs(3_600), registered: &NO_WRITERS };
    let computed = plan_swap(&seen, &by, &Change::FoldBody(*incarnation)).expect("a body may be folded");
    let NextRow::Row(next) = computed.next else { panic!("{computed:?}") };
    let sum = count_of(body) + bodies.get(&FOLDED_BODY_WRITER).map_or(0, count_of);
    let bytes = u64::try_from(sum).expect("it is what was added").to_le_bytes().to_vec();
    let swapped = [(*incarnation, None), (FOLDED_BODY_WRITER, Some(StoredBody { shape: EIGHT_BYTES, bytes }))];
    block_on(store.swap_bodies(at, seen.snapshot.version, &next, &swapped)).expect("the server answers");
}

#[test]
fn folds_take_exactly_what_bodies_counted_however_many_put_meanwhile() {
    let server = PostgresServer::start_with(&["synchronous_commit=off"]).unwrap();
    let (store, at) = (Postgres::open_fresh(&server.url()), name(b"hot"));
    let (over, meetings) = (AtomicBool::new(false), MeetingCount::default());
    let added = thread::scope(|scope| {
        let (store, over, meetings) = (&store, &over, &meetings);
        for number in 0..2_u128 {
            scope.spawn(move || {
                let mut id = number << 64;
                while !over.load(Ordering::SeqCst) {
                    id += 1;
                    fold_one(store, at, id);
                }
            });
        }
        let writers: Vec<_> =
            (1..=WRITERS).map(|node| scope.spawn(move || add_to_bodies(store, at, node, meetings))).collect();
        let added: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        over.store(true, Ordering::SeqCst);
        added.into_iter().map(|added| added.unwrap()).sum::<u64>()
    });
    let counted: i128 = read_whole(&store, at).bodies.values().map(count_of).sum();
    assert_eq!(counted, i128::from(added), "each add once");
}

#[test]
fn batches_that_overlap_in_any_order_never_wait_in_a_circle() {
    let server = PostgresServer::start_with(&["synchronous_commit=off"]).unwrap();
    let store = Postgres::open_fresh(&server.url());
    // Fewer names than concurrent puts, so that puts meet at every step: creating rows, putting
    // cells, forgetting rows.
    let names: Vec<Vec<u8>> = (0..60_u8).map(|n| vec![n.wrapping_mul(37), n]).collect();
    let again = AtomicU64::new(0);
    thread::scope(|scope| {
        let (store, names, again) = (&store, &names, &again);
        for thread in 0..6_u64 {
            scope.spawn(move || {
                let rng = SeededRng::new(thread);
                for seq in 1..=60_u64 {
                    let mut order: Vec<usize> = (0..names.len()).collect();
                    rng.shuffle(&mut order);
                    // Half of the threads say the same: a batch whose answer was lost is put again
                    // beside itself.
                    let (node, seq) = if thread < 3 { (7, seq / 2) } else { (thread, seq) };
                    let cell = |shard| CellId { writer: writer(node), shard: Shard(shard) };
                    let puts: Vec<_> = order
                        .iter()
                        .flat_map(|&n| (0..2).map(move |shard| (n, shard)))
                        .map(|(n, shard)| {
                            (name(&names[n]), Put { cell: cell(shard), ..make_put(seq, i128::from(seq)) })
                        })
                        .collect();
                    match block_on(store.put_all(&puts)) {
                        Ok(verdicts) => assert_eq!(verdicts.len(), puts.len()),
                        // Only a row that was forgotten under it is a reason.
                        Err(StoreError::NotApplied { .. }) => drop(again.fetch_add(1, Ordering::SeqCst)),
                        Err(error) => panic!("{error:?}"),
                    }
                }
            });
        }
        scope.spawn(move || {
            let rng = SeededRng::new(99);
            for _ in 0..400 {
                let at = name(&names[rng.below(names.len())]);
                let seen = block_on(store.read(at)).unwrap();
                block_on(store.swap(at, seen.snapshot.version, None)).unwrap();
            }
        });
    });
    let deadlocks = server.query("SELECT sum(deadlocks) FROM pg_stat_database").unwrap();
    assert_eq!(deadlocks, "0", "and {} batches met a row that was forgotten", again.load(Ordering::SeqCst));
    assert!(again.load(Ordering::SeqCst) < 36, "which is rare");
}

#[test]
fn what_is_put_is_seen_by_whoever_asks_after_the_answer() {
    let server = PostgresServer::start_with(&["synchronous_commit=off"]).unwrap();
    let store = Postgres::open_fresh(&server.url());
    let newest = AtomicU64::new(0);
    thread::scope(|scope| {
        let (store, newest) = (&store, &newest);
        scope.spawn(move || {
            for seq in 1..=500 {
                block_on(store.put_all(&[(name(b"a"), make_put(seq, i128::from(seq)))])).unwrap();
                newest.store(seq, Ordering::SeqCst);
            }
        });
        for _ in 0..3 {
            scope.spawn(move || {
                let mut last = RowVersion::ABSENT;
                loop {
                    let least = newest.load(Ordering::SeqCst);
                    let row = block_on(store.read(name(b"a"))).unwrap().snapshot;
                    assert!(row.sum() >= i128::from(least), "{row:?}");
                    assert!(!row.version.is_before(&last), "{row:?}");
                    last = row.version;
                    if least == 500 {
                        break;
                    }
                }
            });
        }
    });
}

#[test]
fn after_a_row_was_seen_to_be_due_nothing_more_is_put_into_it() {
    let server = PostgresServer::start_with(&["synchronous_commit=off"]).unwrap();
    let store = Postgres::open_fresh(&server.url());
    for round in 0..20_u64 {
        let at = format!("due:{round}");
        let at = name(at.as_bytes());
        let Millis(now) = block_on(store.clock()).unwrap();
        let soon = Snapshot {
            version: RowVersion { born_at: Millis(1), swaps: 1, puts: 0 },
            expires_at: Some(Millis(now + 30)),
            cells: [(make_put(0, 0).cell, RowCell { seq: Seq(0), value: 0, total: 0, closed: false })].into(),
            swaps: vec![SwapId(1)],
            ..Snapshot::default()
        };
        block_on(store.swap(at, RowVersion::ABSENT, Some(&soon))).unwrap();
        thread::scope(|scope| {
            for node in 1..=3 {
                let store = &store;
                scope.spawn(move || {
                    let cell = CellId { writer: writer(node), shard: Shard(0) };
                    for seq in 1.. {
                        let put = Put { cell, ..make_put(seq, i128::from(seq)) };
                        match block_on(store.put_all(&[(at, put)])).unwrap()[0] {
                            Verdict::Newest => {}
                            Verdict::Behind { .. } => break,
                            verdict => panic!("{verdict:?}"),
                        }
                    }
                });
            }
            let first = loop {
                let seen = block_on(store.read(at)).unwrap();
                if seen.snapshot.is_due(seen.at) {
                    break seen.snapshot;
                }
            };
            for _ in 0..10 {
                assert_eq!(block_on(store.read(at)).unwrap().snapshot, first);
            }
        });
    }
}

#[test]
fn one_of_many_claims_a_token_and_one_of_many_registers() {
    let server = PostgresServer::start_with(&["synchronous_commit=off"]).unwrap();
    let store = Postgres::open_fresh(&server.url());
    for round in 0..30_u64 {
        let token = ClaimToken::new(&round.to_be_bytes()).unwrap();
        let (claimed, registered) = (AtomicU64::new(0), AtomicU64::new(0));
        thread::scope(|scope| {
            for node in 1..=4 {
                let (store, token, claimed, registered) = (&store, &token, &claimed, &registered);
                scope.spawn(move || {
                    let claim = Claim {
                        token: token.clone(),
                        owner: writer(node),
                        attempt: node,
                        payload: 1,
                        forget_at: Millis(u64::MAX),
                        reply: None,
                    };
                    if block_on(store.claim(&claim)).unwrap() == ClaimVerdict::Claimed {
                        claimed.fetch_add(1, Ordering::SeqCst);
                    }
                    let next = Registration {
                        writer: writer(1_000 + round),
                        holder: None,
                        lease_until: Millis(node),
                        stage: WriterStage::Live,
                        version: 1,
                    };
                    if block_on(store.register(0, &next)).unwrap() == RegisterVerdict::Registered {
                        registered.fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
        });
        assert_eq!((claimed.into_inner(), registered.into_inner()), (1, 1));
    }
}
