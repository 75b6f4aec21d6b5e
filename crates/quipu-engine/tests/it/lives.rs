//! Lives of nodes on one shared store, step by step: by hand, on disks and clocks of their own. What the simulation found in one seed of many thousands
//! is here, where no schedule can miss it.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use quipu_engine::{Adopt, AdoptError, Engine, Environment, SharingOptions, Standing};
use quipu_model::shared::body::Body;
use quipu_model::shared::{
    BodyPut, BodyVerdict, By, Change, Claim, ClaimEnd, ClaimVerdict, EndVerdict, NOBODY, Next, Put, RegisterVerdict,
    Registration, RestoreVerdict, Seen, SeenBodies, Snapshot, Stage, SwapId, SwapVerdict, Token, Version, compute,
};
use quipu_model::{
    Answer, Clock, Command, Cursor, ExpiryCondition, History, Incarnation, MemoryStore, Millis, Name, NodeId,
    NodeNames, Page, PutResult, Reply, Store, When, Writer, Writers,
};
use quipu_testkit::store_suite::block_on;
use quipu_testkit::{CrashDisk, Dice, SimClock};

use crate::world::{World, small};

/// Closed cells are folded after this long.
const GRACE: Duration = Duration::from_secs(90);

/// A node that puts at once, and whose audit comes by itself only after the test: what a pass would tidy up is still there.
pub fn open(world: &World, store: &Arc<dyn Store>) -> Engine {
    let mut options = small(1 << 16);
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
                let asked = engine.steps().ask(load);
                engine.steps().load();
                block_on(engine.sharing().unwrap().fetch());
                drop(asked);
            }
        }
    }
}

fn add(engine: &Engine, name: &str, delta: i64) -> Reply {
    run(engine, &Command::Add { name: Name::new(name.as_bytes()).unwrap(), delta, shard_key: None })
}

/// Has written down what was done.
pub fn commit(engine: &Engine) {
    engine.steps().hand_over();
    engine.steps().sync();
}

/// What the store has of a counter, of all writers.
fn sum(store: &Arc<dyn Store>, name: &str) -> i128 {
    block_on(store.read(Name::new(name.as_bytes()).unwrap())).unwrap().snapshot.sum()
}

/// What the background of a node does with its store, once, a little later.
pub fn tend(engine: &Engine, world: &World) {
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
    tend(&engine, &first);
    let dead = writers()[0].writer;
    assert_eq!(add(&engine, "likes:1", 5), Reply::Integer(5));
    (0..20).for_each(|_| tend(&engine, &first));

    // Killed; the next life confirms what the last one has said, and retires it.
    let second = World::new(first.disk.kill(first.disk.operations()).into_disk(), 3);
    let heir = open(&second, &store);
    let retiring = || writers().iter().any(|known| known.writer == dead && known.stage != Stage::Live);
    for _ in 0..200 {
        other.clock.advance(Duration::from_millis(500));
        tend(&heir, &second);
        if retiring() {
            break;
        }
    }
    assert!(retiring(), "{:?}", writers());
    // What is sealed with something else is written down.
    assert_eq!(add(&heir, "likes:2", 5), Reply::Integer(5));
    (0..10).for_each(|_| tend(&heir, &second));
    // Switched off until others have folded and forgotten it.
    let third = World::new(second.disk.kill(second.disk.operations()).into_disk(), 4);
    let bystander = open(&other, &store);
    for _ in 0..2_000 {
        tend(&bystander, &other);
    }
    assert!(!writers().iter().any(|known| known.writer == dead), "{:?}", writers());
    // Whatever changes the row next drops what it remembered of a writer that nobody knows.
    let name = Name::new(b"likes:1").unwrap();
    let seen = block_on(store.read(name)).unwrap();
    let by = By { id: SwapId(1), node: NodeId(9), grace: GRACE, registered: &NOBODY };
    let change = Change::Expire { when: When::In(i64::from(i32::MAX)), condition: ExpiryCondition::Always };
    let Next::Row(row) = compute(&seen, &by, &change).unwrap().next else { panic!("it expires") };
    assert_eq!(block_on(store.swap(name, seen.snapshot.version, Some(&row))).unwrap(), SwapVerdict::Swapped);
    assert_eq!((sum(&store, "likes:1"), row.spent.len()), (5, 0));

    let back = open(&third, &store);
    for _ in 0..200 {
        other.clock.advance(Duration::from_millis(500));
        tend(&back, &third);
    }
    assert_eq!(sum(&store, "likes:1"), 5, "it is in what it was folded into");
    assert_eq!(back.sharing().unwrap().standing(), Standing::Live);
    assert!(!writers().iter().any(|known| known.writer == dead), "{:?}", writers());
}

#[test]
fn what_a_forgotten_life_had_not_settled_is_counted_or_dropped_by_an_operators_word_and_once() {
    for how in [Adopt::Count, Adopt::Drop] {
        let (first, other) = (World::new(CrashDisk::new(), 1), World::new(CrashDisk::new(), 2));
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new(other.clock.clone()));
        let engine = open(&first, &store);
        tend(&engine, &first);
        let dead = block_on(store.writers()).unwrap().registrations[0].writer;
        assert_eq!(add(&engine, "likes:1", 5), Reply::Integer(5));
        assert_eq!(add(&engine, "likes:2", 7), Reply::Integer(7));
        (0..20).for_each(|_| tend(&engine, &first));
        assert_eq!(sum(&store, "likes:1"), 5);
        assert_eq!(add(&engine, "likes:1", 3), Reply::Integer(8));
        commit(&engine);

        // Switched off, until others have folded and forgotten it.
        let second = World::new(first.disk.kill(first.disk.operations()).into_disk(), 3);
        let bystander = open(&other, &store);
        (0..2_000).for_each(|_| tend(&bystander, &other));
        assert!(!block_on(store.writers()).unwrap().registrations.iter().any(|known| known.writer == dead));

        let back = open(&second, &store);
        for _ in 0..200 {
            other.clock.advance(Duration::from_millis(500));
            tend(&back, &second);
        }
        let Standing::Fenced { reason } = back.sharing().unwrap().standing() else { panic!("nobody can tell") };
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
            tend(&back, &fifth);
        }
        assert_eq!(back.sharing().unwrap().standing(), Standing::Live);
        let counted = if how == Adopt::Count { 8 } else { 5 };
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
        let image = world.disk.crash(world.disk.operations(), &Dice::new(seed));
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
    let tend_long = |engine: &Engine, world: &World| {
        for _ in 0..20 {
            first.clock.advance(Duration::from_millis(500));
            tend(engine, world);
        }
    };
    let engine = open(&first, &store);
    tend_long(&engine, &first);
    assert_eq!(add(&engine, "likes:1", 5), Reply::Integer(5));
    tend_long(&engine, &first);
    stop(engine);
    let copied = first.disk.kill(first.disk.operations());

    let original = World::new(copied.clone().into_disk(), 2);
    let engine = open(&original, &store);
    tend_long(&engine, &original);
    assert_eq!(block_on(store.writers()).unwrap().registrations.len(), 1, "it goes on as the life that was stopped");
    assert_eq!(add(&engine, "likes:1", 30), Reply::Integer(35));
    tend_long(&engine, &original);
    stop(engine);
    assert_eq!(sum(&store, "likes:1"), 35);

    let copy = World::new(copied.into_disk(), 3);
    let engine = open(&copy, &store);
    tend_long(&engine, &copy);
    assert_eq!(add(&engine, "likes:1", 200), Reply::Integer(235));
    tend_long(&engine, &copy);
    assert_eq!(sum(&store, "likes:1"), 235, "what the original has added since is not said over");
    assert_eq!(engine.sharing().unwrap().standing(), Standing::Live);
}

/// A store whose answer to a read finds its reader asleep, and which remembers how old the last row was, by its reader's clock, when a swap came.
struct Sleep {
    inner: MemoryStore,
    reader: Arc<SimClock>,
    asleep: AtomicBool,
    read_at: Mutex<Duration>,
    swapped_after: Mutex<Vec<Duration>>,
}

impl Store for Sleep {
    fn read<'a>(&'a self, name: Name<'a>) -> Answer<'a, Seen> {
        Box::pin(async move {
            *self.read_at.lock().unwrap() = self.reader.elapsed();
            let seen = self.inner.read(name).await;
            poll_fn(|_| if self.asleep.load(Ordering::Relaxed) { Poll::Pending } else { Poll::Ready(()) }).await;
            seen
        })
    }

    fn swap<'a>(&'a self, name: Name<'a>, version: Version, next: Option<&'a Snapshot>) -> Answer<'a, SwapVerdict> {
        let after = self.reader.elapsed() - *self.read_at.lock().unwrap();
        self.swapped_after.lock().unwrap().push(after);
        self.inner.swap(name, version, next)
    }

    fn swap_bodies<'a>(
        &'a self,
        name: Name<'a>,
        version: Version,
        next: &'a Snapshot,
        bodies: &'a [(Writer, Option<Body>)],
    ) -> Answer<'a, SwapVerdict> {
        self.inner.swap_bodies(name, version, next, bodies)
    }

    fn put_body<'a>(&'a self, name: Name<'a>, put: &'a BodyPut) -> Answer<'a, BodyVerdict> {
        self.inner.put_body(name, put)
    }

    fn read_bodies<'a>(&'a self, name: Name<'a>) -> Answer<'a, SeenBodies> {
        self.inner.read_bodies(name)
    }

    fn put<'a>(&'a self, puts: &'a [(Name<'a>, Put)]) -> Answer<'a, Vec<PutResult>> {
        self.inner.put(puts)
    }

    fn scan<'a>(&'a self, from: Option<&'a Cursor>, names_max: usize) -> Answer<'a, Page> {
        self.inner.scan(from, names_max)
    }

    fn claim<'a>(&'a self, claim: &'a Claim) -> Answer<'a, ClaimVerdict> {
        self.inner.claim(claim)
    }

    fn end_claim<'a>(
        &'a self,
        token: &'a Token,
        owner: Writer,
        attempt: u64,
        end: &'a ClaimEnd,
    ) -> Answer<'a, EndVerdict> {
        self.inner.end_claim(token, owner, attempt, end)
    }

    fn restore_claims<'a>(&'a self, claims: &'a [Claim]) -> Answer<'a, Vec<RestoreVerdict>> {
        self.inner.restore_claims(claims)
    }

    fn history(&self) -> Answer<'_, History> {
        self.inner.history()
    }

    fn writers(&self) -> Answer<'_, Writers> {
        self.inner.writers()
    }

    fn register<'a>(&'a self, version: u64, next: &'a Registration) -> Answer<'a, RegisterVerdict> {
        self.inner.register(version, next)
    }

    fn unregister(&self, writer: Writer, version: u64) -> Answer<'_, RegisterVerdict> {
        self.inner.unregister(writer, version)
    }

    fn name_node<'a>(&'a self, node: NodeId, name: Option<&'a str>) -> Answer<'a, ()> {
        self.inner.name_node(node, name)
    }

    fn node_names(&self) -> Answer<'_, NodeNames> {
        self.inner.node_names()
    }

    fn clock(&self) -> Answer<'_, Millis> {
        self.inner.clock()
    }
}

#[test]
fn a_process_that_slept_does_not_swap_on_a_row_of_before() {
    let world = World::new(CrashDisk::new(), 1);
    let sleep = Arc::new(Sleep {
        inner: MemoryStore::new(world.clock.clone()),
        reader: world.clock.clone(),
        asleep: AtomicBool::new(false),
        read_at: Mutex::default(),
        swapped_after: Mutex::default(),
    });
    let store: Arc<dyn Store> = sleep.clone();
    let engine = open(&world, &store);
    tend(&engine, &world);
    assert_eq!(add(&engine, "likes:1", 5), Reply::Integer(5));
    tend(&engine, &world);
    let reset = Command::Reset { name: Name::new(b"likes:1").unwrap() };
    let waits = engine.turn().run(&reset).unwrap_err();
    let asked = engine.steps().ask(waits);
    sleep.asleep.store(true, Ordering::Relaxed);
    let mut swap = pin!(engine.sharing().unwrap().swap());
    let mut poll = || swap.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(poll().is_pending(), "the row is read, and it falls asleep");
    world.clock.advance(GRACE);
    // Whatever renews the lease is first on its feet.
    sleep.asleep.store(false, Ordering::Relaxed);
    assert!(block_on(engine.sharing().unwrap().renew()));
    assert_eq!(poll(), Poll::Ready(1), "it reads anew, and swaps on that");
    drop(asked);
    assert_eq!(sum(&store, "likes:1"), 0);
    let swapped_after = sleep.swapped_after.lock().unwrap();
    assert_eq!(swapped_after.len(), 1);
    assert!(swapped_after.iter().all(|after| *after < GRACE / 4), "{swapped_after:?}");
}
