//! Tests incarnations of nodes on one shared store, step by step, on disks and clocks of their own.
//!
//! Faults that the simulation found in one seed of many thousands are reproduced here,
//! independently of any schedule.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use quipu_engine::{AdoptError, Engine, Environment, Membership, SharingOptions, UnconfirmedAdds};
use quipu_model::shared::body::StoredBody;
use quipu_model::shared::{
    BodyPut, BodyVerdict, Change, Claim, ClaimEnd, ClaimEndVerdict, ClaimToken, ClaimVerdict, FetchedRow, NO_WRITERS,
    NextRow, Put, RegisterVerdict, Registration, RestoreVerdict, RowVersion, RowWithBodies, Snapshot, SwapContext,
    SwapId, SwapVerdict, WriterStage, plan_swap,
};
use quipu_model::{
    Clock, Command, Cursor, ExpiryCondition, ExpiryTime, History, Incarnation, MemoryStore, Millis, Name, NodeId,
    NodeNames, PutResult, Reply, ScanPage, Store, StoreFuture, Writer, WriterList,
};
use quipu_testkit::store_suite::block_on;
use quipu_testkit::{CrashDisk, SeededRng, SimClock};

use crate::world::{World, small_options};

/// Closed cells are folded after this long.
const GRACE: Duration = Duration::from_secs(90);

/// A node that puts at once, and whose audit comes by itself only after the test: what a pass would
/// tidy up is still there.
pub fn open(world: &World, store: &Arc<dyn Store>) -> Engine {
    let mut options = small_options(1 << 16);
    options.sharing = SharingOptions {
        settle_every: Duration::ZERO,
        lease: Duration::from_secs(4),
        retire_after: Duration::from_secs(6),
        grace: GRACE,
        audit_every: Duration::from_secs(86_400),
        ..SharingOptions::default()
    };
    Engine::open_with(options, Environment { store: Some(store.clone()), ..world.environment() }).unwrap()
}

/// Runs a command; first what rests on the disk is brought, then the row.
pub fn run(engine: &Engine, command: &Command<'_>) -> Reply {
    loop {
        // By itself: a turn holds locks until it is dropped.
        let reply = engine.turn().run(command);
        match reply {
            Ok(reply) => return reply,
            Err(load) => {
                let loading = engine.steps().enqueue_load(load);
                engine.steps().run_loads();
                block_on(engine.sharing().unwrap().fetch());
                drop(loading);
            }
        }
    }
}

fn add(engine: &Engine, name: &str, delta: i64) -> Reply {
    run(engine, &Command::Add { name: Name::new(name.as_bytes()).unwrap(), delta, shard_key: None })
}

/// Has written down what was done.
pub fn commit(engine: &Engine) {
    engine.steps().write_filled();
    engine.steps().sync();
}

/// What the store has of a counter, of all writers.
fn sum(store: &Arc<dyn Store>, name: &str) -> i128 {
    block_on(store.read(Name::new(name.as_bytes()).unwrap())).unwrap().snapshot.sum()
}

/// What the background of a node does with its store, once, a little later.
pub fn run_background(engine: &Engine, world: &World) {
    world.clock.advance(Duration::from_millis(500));
    let (steps, sharing) = (engine.steps(), engine.sharing().unwrap());
    block_on(sharing.renew());
    block_on(sharing.settle());
    block_on(sharing.fetch());
    block_on(sharing.swap());
    block_on(sharing.audit());
    block_on(sharing.retire());
    steps.seal_all().unwrap();
}

#[test]
fn what_was_settled_retired_and_forgotten_is_not_said_again_by_whoever_starts_after_that() {
    let (first, other) = (World::new(CrashDisk::new(), 1), World::new(CrashDisk::new(), 2));
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(other.clock.clone()));
    let writers = || block_on(store.writers()).unwrap().registrations;
    let engine = open(&first, &store);
    run_background(&engine, &first);
    let dead = writers()[0].writer;
    assert_eq!(add(&engine, "likes:1", 5), Reply::Integer(5));
    (0..20).for_each(|_| run_background(&engine, &first));

    // Killed; the next life confirms what the last one has said, and retires it.
    let second = World::new(first.disk.kill(first.disk.operations()).into_disk(), 3);
    let successor = open(&second, &store);
    let retiring = || writers().iter().any(|known| known.writer == dead && known.stage != WriterStage::Live);
    for _ in 0..200 {
        other.clock.advance(Duration::from_millis(500));
        run_background(&successor, &second);
        if retiring() {
            break;
        }
    }
    assert!(retiring(), "{:?}", writers());
    // What is sealed with something else is written down.
    assert_eq!(add(&successor, "likes:2", 5), Reply::Integer(5));
    (0..10).for_each(|_| run_background(&successor, &second));
    // Switched off until others have folded and forgotten it.
    let third = World::new(second.disk.kill(second.disk.operations()).into_disk(), 4);
    let bystander = open(&other, &store);
    for _ in 0..2_000 {
        run_background(&bystander, &other);
    }
    assert!(!writers().iter().any(|known| known.writer == dead), "{:?}", writers());
    // Whatever changes the row next drops what it remembered of a writer that nobody knows.
    let name = Name::new(b"likes:1").unwrap();
    let fetched = block_on(store.read(name)).unwrap();
    let by = SwapContext { id: SwapId(1), node: NodeId(9), grace: GRACE, registered: &NO_WRITERS };
    let change = Change::Expire { when: ExpiryTime::In(i64::from(i32::MAX)), condition: ExpiryCondition::Always };
    let NextRow::Row(row) = plan_swap(&fetched, &by, &change).unwrap().next else { panic!("it expires") };
    assert_eq!(block_on(store.swap(name, fetched.snapshot.version, Some(&row))).unwrap(), SwapVerdict::Swapped);
    assert_eq!((sum(&store, "likes:1"), row.spent.len()), (5, 0));

    let back = open(&third, &store);
    for _ in 0..200 {
        other.clock.advance(Duration::from_millis(500));
        run_background(&back, &third);
    }
    assert_eq!(sum(&store, "likes:1"), 5, "it is in what it was folded into");
    assert_eq!(back.sharing().unwrap().membership(), Membership::Live);
    assert!(!writers().iter().any(|known| known.writer == dead), "{:?}", writers());
}

#[test]
fn what_a_forgotten_life_had_not_settled_is_counted_or_dropped_by_an_operators_word_and_once() {
    for how in [UnconfirmedAdds::Count, UnconfirmedAdds::Drop] {
        let (first, other) = (World::new(CrashDisk::new(), 1), World::new(CrashDisk::new(), 2));
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new(other.clock.clone()));
        let engine = open(&first, &store);
        run_background(&engine, &first);
        let dead = block_on(store.writers()).unwrap().registrations[0].writer;
        assert_eq!(add(&engine, "likes:1", 5), Reply::Integer(5));
        assert_eq!(add(&engine, "likes:2", 7), Reply::Integer(7));
        (0..20).for_each(|_| run_background(&engine, &first));
        assert_eq!(sum(&store, "likes:1"), 5);
        assert_eq!(add(&engine, "likes:1", 3), Reply::Integer(8));
        commit(&engine);

        // Switched off, until others have folded and forgotten it.
        let second = World::new(first.disk.kill(first.disk.operations()).into_disk(), 3);
        let bystander = open(&other, &store);
        (0..2_000).for_each(|_| run_background(&bystander, &other));
        assert!(!block_on(store.writers()).unwrap().registrations.iter().any(|known| known.writer == dead));

        let back = open(&second, &store);
        for _ in 0..200 {
            other.clock.advance(Duration::from_millis(500));
            run_background(&back, &second);
        }
        let Membership::Fenced { reason } = back.sharing().unwrap().membership() else { panic!("nobody can tell") };
        assert!(reason.contains(&format!("quipu writers adopt {dead}")), "{reason}");
        assert_eq!(sum(&store, "likes:1"), 5);

        // Ended half-way, and done again.
        let third = World::new(second.disk.kill(second.disk.operations()).into_disk(), 4);
        let stopped = open(&third, &store);
        let sharing = stopped.sharing().unwrap();
        let never = sharing.adopt(Incarnation(77), how);
        assert!(matches!(never, Err(AdoptError::NeverRegistered)), "{never:?}");
        let adopted = sharing.adopt(dead.incarnation, how).unwrap();
        assert_eq!((adopted.unconfirmed, adopted.sum), (1, 3), "what was settled is folded");
        commit(&stopped);
        let fourth = World::new(third.disk.kill(third.disk.operations()).into_disk(), 5);
        let again = open(&fourth, &store);
        let adopted = again.sharing().unwrap().adopt(dead.incarnation, how).unwrap();
        assert_eq!((adopted.counters, adopted.sum), (0, 0), "it is done");
        again.close().unwrap();

        let fifth = World::new(fourth.disk.kill(fourth.disk.operations()).into_disk(), 6);
        let back = open(&fifth, &store);
        for _ in 0..200 {
            other.clock.advance(Duration::from_millis(500));
            run_background(&back, &fifth);
        }
        assert_eq!(back.sharing().unwrap().membership(), Membership::Live);
        let counted = if how == UnconfirmedAdds::Count { 8 } else { 5 };
        assert_eq!((sum(&store, "likes:1"), sum(&store, "likes:2")), (counted, 7), "{how:?}");
        assert_eq!(add(&back, "likes:1", 1), Reply::Integer(i64::try_from(counted).unwrap() + 1));
    }
}

#[test]
fn what_the_store_has_of_a_node_is_on_its_disk() {
    let world = World::new(CrashDisk::new(), 1);
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(world.clock.clone()));
    let engine = open(&world, &store);
    let sharing = engine.sharing().unwrap();
    assert!(block_on(sharing.renew()));
    // Of a relaxed namespace, so that nobody else waits for the disk.
    assert_eq!(add(&engine, "r:likes", 5), Reply::Integer(5));
    assert_eq!(block_on(sharing.settle()), 1);
    for seed in 0..20 {
        let image = world.disk.crash(world.disk.operations(), &SeededRng::new(seed));
        let after = open(&World::new(image.into_disk(), seed), &store);
        assert_eq!(after.turn().run(&Command::CountNames), Ok(Reply::Integer(1)), "with seed {seed}");
    }
}

/// Ends a process in good order.
fn stop(engine: Engine) {
    block_on(engine.sharing().unwrap().release());
    engine.close().unwrap();
}

#[test]
fn a_copy_of_a_stopped_machine_does_not_go_on_with_what_its_original_has_gone_on_with() {
    let first = World::new(CrashDisk::new(), 1);
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(first.clock.clone()));
    let run_background_long = |engine: &Engine, world: &World| {
        for _ in 0..20 {
            first.clock.advance(Duration::from_millis(500));
            run_background(engine, world);
        }
    };
    let engine = open(&first, &store);
    run_background_long(&engine, &first);
    assert_eq!(add(&engine, "likes:1", 5), Reply::Integer(5));
    run_background_long(&engine, &first);
    stop(engine);
    let copied = first.disk.kill(first.disk.operations());

    let original = World::new(copied.clone().into_disk(), 2);
    let engine = open(&original, &store);
    run_background_long(&engine, &original);
    assert_eq!(block_on(store.writers()).unwrap().registrations.len(), 1, "it goes on as the life that was stopped");
    assert_eq!(add(&engine, "likes:1", 30), Reply::Integer(35));
    run_background_long(&engine, &original);
    stop(engine);
    assert_eq!(sum(&store, "likes:1"), 35);

    let copy = World::new(copied.into_disk(), 3);
    let engine = open(&copy, &store);
    run_background_long(&engine, &copy);
    assert_eq!(add(&engine, "likes:1", 200), Reply::Integer(235));
    run_background_long(&engine, &copy);
    assert_eq!(sum(&store, "likes:1"), 235, "what the original has added since is not said over");
    assert_eq!(engine.sharing().unwrap().membership(), Membership::Live);
}

/// A store whose answer to a read finds its reader asleep, and which remembers how old the last row
/// was, by its reader's clock, when a swap came.
struct SleepingReaderStore {
    inner: MemoryStore,
    reader: Arc<SimClock>,
    asleep: AtomicBool,
    read_at: Mutex<Duration>,
    swapped_after: Mutex<Vec<Duration>>,
}

impl Store for SleepingReaderStore {
    fn read<'a>(&'a self, name: Name<'a>) -> StoreFuture<'a, FetchedRow> {
        Box::pin(async move {
            *self.read_at.lock().unwrap() = self.reader.elapsed();
            let fetched = self.inner.read(name).await;
            poll_fn(|_| if self.asleep.load(Ordering::Relaxed) { Poll::Pending } else { Poll::Ready(()) }).await;
            fetched
        })
    }

    fn swap<'a>(
        &'a self,
        name: Name<'a>,
        version: RowVersion,
        next: Option<&'a Snapshot>,
    ) -> StoreFuture<'a, SwapVerdict> {
        let after = self.reader.elapsed() - *self.read_at.lock().unwrap();
        self.swapped_after.lock().unwrap().push(after);
        self.inner.swap(name, version, next)
    }

    fn swap_bodies<'a>(
        &'a self,
        name: Name<'a>,
        version: RowVersion,
        next: &'a Snapshot,
        bodies: &'a [(Writer, Option<StoredBody>)],
    ) -> StoreFuture<'a, SwapVerdict> {
        self.inner.swap_bodies(name, version, next, bodies)
    }

    fn put_body<'a>(&'a self, name: Name<'a>, put: &'a BodyPut) -> StoreFuture<'a, BodyVerdict> {
        self.inner.put_body(name, put)
    }

    fn read_bodies<'a>(&'a self, name: Name<'a>) -> StoreFuture<'a, RowWithBodies> {
        self.inner.read_bodies(name)
    }

    fn put<'a>(&'a self, puts: &'a [(Name<'a>, Put)]) -> StoreFuture<'a, Vec<PutResult>> {
        self.inner.put(puts)
    }

    fn scan<'a>(&'a self, from: Option<&'a Cursor>, names_max: usize) -> StoreFuture<'a, ScanPage> {
        self.inner.scan(from, names_max)
    }

    fn claim<'a>(&'a self, claim: &'a Claim) -> StoreFuture<'a, ClaimVerdict> {
        self.inner.claim(claim)
    }

    fn end_claim<'a>(
        &'a self,
        token: &'a ClaimToken,
        owner: Writer,
        attempt: u64,
        end: &'a ClaimEnd,
    ) -> StoreFuture<'a, ClaimEndVerdict> {
        self.inner.end_claim(token, owner, attempt, end)
    }

    fn restore_claims<'a>(&'a self, claims: &'a [Claim]) -> StoreFuture<'a, Vec<RestoreVerdict>> {
        self.inner.restore_claims(claims)
    }

    fn history(&self) -> StoreFuture<'_, History> {
        self.inner.history()
    }

    fn writers(&self) -> StoreFuture<'_, WriterList> {
        self.inner.writers()
    }

    fn register<'a>(&'a self, version: u64, next: &'a Registration) -> StoreFuture<'a, RegisterVerdict> {
        self.inner.register(version, next)
    }

    fn unregister(&self, writer: Writer, version: u64) -> StoreFuture<'_, RegisterVerdict> {
        self.inner.unregister(writer, version)
    }

    fn name_node<'a>(&'a self, node: NodeId, name: Option<&'a str>) -> StoreFuture<'a, ()> {
        self.inner.name_node(node, name)
    }

    fn node_names(&self) -> StoreFuture<'_, NodeNames> {
        self.inner.node_names()
    }

    fn clock(&self) -> StoreFuture<'_, Millis> {
        self.inner.clock()
    }
}

#[test]
fn a_process_that_slept_does_not_swap_on_a_row_of_before() {
    let world = World::new(CrashDisk::new(), 1);
    let sleep = Arc::new(SleepingReaderStore {
        inner: MemoryStore::new(world.clock.clone()),
        reader: world.clock.clone(),
        asleep: AtomicBool::new(false),
        read_at: Mutex::default(),
        swapped_after: Mutex::default(),
    });
    let store: Arc<dyn Store> = sleep.clone();
    let engine = open(&world, &store);
    run_background(&engine, &world);
    assert_eq!(add(&engine, "likes:1", 5), Reply::Integer(5));
    run_background(&engine, &world);
    let reset = Command::Reset { name: Name::new(b"likes:1").unwrap() };
    let waits = engine.turn().run(&reset).unwrap_err();
    let loading = engine.steps().enqueue_load(waits);
    sleep.asleep.store(true, Ordering::Relaxed);
    let mut swap = pin!(engine.sharing().unwrap().swap());
    let mut poll = || swap.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(poll().is_pending(), "the row is read, and it falls asleep");
    world.clock.advance(GRACE);
    // Whatever renews the lease is first on its feet.
    sleep.asleep.store(false, Ordering::Relaxed);
    assert!(block_on(engine.sharing().unwrap().renew()));
    assert_eq!(poll(), Poll::Ready(1), "it reads anew, and swaps on that");
    drop(loading);
    assert_eq!(sum(&store, "likes:1"), 0);
    let swapped_after = sleep.swapped_after.lock().unwrap();
    assert_eq!(swapped_after.len(), 1);
    assert!(swapped_after.iter().all(|after| *after < GRACE / 4), "{swapped_after:?}");
}
