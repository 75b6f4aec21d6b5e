//! Tests settling at scale, and with rows that the store does not take: step by step, on disks and
//! clocks of its own.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use quipu_engine::{Engine, Environment, Membership, SharingOptions};
use quipu_model::shared::body::StoredBody;
use quipu_model::shared::registry::REGISTRATIONS_MAX;
use quipu_model::shared::{
    BodyPut, BodyVerdict, Claim, ClaimEnd, ClaimEndVerdict, ClaimToken, ClaimVerdict, FetchedRow, Put, RegisterVerdict,
    Registration, RestoreVerdict, RowVersion, RowWithBodies, Snapshot, SwapVerdict, WriterStage,
};
use quipu_model::{
    Command, Cursor, Dialect, History, MemoryStore, Millis, Name, NodeId, NodeNames, PutResult, Refusal, Reply,
    ScanPage, Store, StoreCall, StoreError, StoreFuture, Writer, WriterList,
};
use quipu_testkit::CrashDisk;
use quipu_testkit::store_suite::block_on;

use crate::lives::{commit, run, run_background};
use crate::sketches::count_unique;
use crate::world::{World, small_options};

/// A store that does not take or give the rows of some counters, as one does whose keys are of
/// another type; or that has no room for another registration, or answers no put at all.
struct FaultyRowStore {
    inner: MemoryStore,
    damaged: Mutex<BTreeSet<Box<[u8]>>>,
    /// Puts of damaged rows.
    attempts: AtomicUsize,
    registry_is_full: AtomicBool,
    takes_no_puts: AtomicBool,
}

impl FaultyRowStore {
    fn new(world: &World) -> Arc<FaultyRowStore> {
        Arc::new(FaultyRowStore {
            inner: MemoryStore::new(world.clock.clone()),
            damaged: Mutex::default(),
            attempts: AtomicUsize::new(0),
            registry_is_full: AtomicBool::new(false),
            takes_no_puts: AtomicBool::new(false),
        })
    }

    fn damage(&self, name: &str) {
        self.damaged.lock().unwrap().insert(name.as_bytes().into());
    }

    fn mend(&self) {
        self.damaged.lock().unwrap().clear();
    }

    /// Puts of damaged rows since this was asked last.
    fn attempts(&self) -> usize {
        self.attempts.swap(0, Ordering::Relaxed)
    }

    fn check(&self, call: StoreCall, name: Name<'_>) -> Result<(), StoreError> {
        match self.damaged.lock().unwrap().contains(name.bytes()) {
            true => Err(StoreError::NotApplied { call, source: "a key of another type".into() }),
            false => Ok(()),
        }
    }
}

impl Store for FaultyRowStore {
    fn put<'a>(&'a self, puts: &'a [(Name<'a>, Put)]) -> StoreFuture<'a, Vec<PutResult>> {
        Box::pin(async move {
            if self.takes_no_puts.load(Ordering::Relaxed) {
                return Err(StoreError::NotApplied { call: StoreCall::Put, source: "down".into() });
            }
            let mut results = Vec::new();
            for one in puts {
                match self.check(StoreCall::Put, one.0) {
                    Ok(()) => results.extend(self.inner.put(std::slice::from_ref(one)).await?),
                    Err(error) => {
                        self.attempts.fetch_add(1, Ordering::Relaxed);
                        results.push(Err(error));
                    }
                }
            }
            Ok(results)
        })
    }

    fn read<'a>(&'a self, name: Name<'a>) -> StoreFuture<'a, FetchedRow> {
        Box::pin(async move {
            self.check(StoreCall::Read, name)?;
            self.inner.read(name).await
        })
    }

    fn put_body<'a>(&'a self, name: Name<'a>, put: &'a BodyPut) -> StoreFuture<'a, BodyVerdict> {
        Box::pin(async move {
            self.check(StoreCall::PutBody, name).inspect_err(|_| {
                self.attempts.fetch_add(1, Ordering::Relaxed);
            })?;
            self.inner.put_body(name, put).await
        })
    }

    fn register<'a>(&'a self, version: u64, next: &'a Registration) -> StoreFuture<'a, RegisterVerdict> {
        Box::pin(async move {
            match version == 0 && self.registry_is_full.load(Ordering::Relaxed) {
                true => Ok(RegisterVerdict::Full),
                false => self.inner.register(version, next).await,
            }
        })
    }

    fn read_bodies<'a>(&'a self, name: Name<'a>) -> StoreFuture<'a, RowWithBodies> {
        self.inner.read_bodies(name)
    }

    fn swap<'a>(
        &'a self,
        name: Name<'a>,
        version: RowVersion,
        next: Option<&'a Snapshot>,
    ) -> StoreFuture<'a, SwapVerdict> {
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

/// Opens a node with room for many counters, which puts each of them this long after it changed.
fn open(world: &World, store: &Arc<FaultyRowStore>, settle_every: Duration) -> Engine {
    let mut options = small_options(1 << 22);
    options.sharing = SharingOptions {
        settle_every,
        freshness: Duration::from_secs(1),
        lease: Duration::from_secs(4),
        audit_every: Duration::from_secs(86_400),
        ..SharingOptions::default()
    };
    let store: Arc<dyn Store> = store.clone();
    Engine::open_with(options, Environment { store: Some(store), ..world.environment() }).unwrap()
}

fn command(name: &str, delta: i64) -> Command<'_> {
    Command::Add { name: Name::new(name.as_bytes()).unwrap(), delta, shard_key: None }
}

fn add(engine: &Engine, name: &str, delta: i64) -> Reply {
    run(engine, &command(name, delta))
}

fn read(engine: &Engine, name: &str) -> Reply {
    run(engine, &Command::Read { name: Name::new(name.as_bytes()).unwrap() })
}

/// The same with one round of fetches at most; `None`: that did not bring what the read waits for.
fn read_once(engine: &Engine, name: &str) -> Option<Reply> {
    let command = Command::Read { name: Name::new(name.as_bytes()).unwrap() };
    let load = engine.turn().run(&command);
    load.or_else(|load| {
        let _loading = engine.steps().enqueue_load(load);
        block_on(engine.sharing().unwrap().fetch());
        engine.turn().run(&command)
    })
    .ok()
}

/// What the store has of a counter, damaged or not.
fn sum(store: &FaultyRowStore, name: &str) -> i128 {
    store.inner.with_row(Name::new(name.as_bytes()).unwrap(), |row| row.map_or(0, Snapshot::sum))
}

fn unsettled(engine: &Engine) -> u64 {
    engine.sharing().unwrap().stats().unsettled
}

/// Settles all that is due, as the thread for it does.
fn settle(engine: &Engine) {
    let sharing = engine.sharing().unwrap();
    assert!(block_on(sharing.renew()));
    assert!((0..1_000).any(|_| block_on(sharing.settle()) == 0), "there is always something due");
}

#[test]
fn an_audit_pass_ends_while_100_000_counters_go_on_changing() {
    /// Each is added to once in every eight ticks, and is put four seconds later: nearly all are
    /// unsettled all the time.
    const CHANGING: usize = 100_000;
    const TICK: Duration = Duration::from_millis(500);
    const TICKS: usize = 8;
    let settle_every = TICK * 8;
    let first = World::new(CrashDisk::new(), 1);
    let store = FaultyRowStore::new(&first);
    let empty = store.inner.backup();
    let quiet: Vec<String> = (0..500).map(|n| format!("quiet:{n}")).collect();
    {
        let engine = open(&first, &store, settle_every);
        quiet.iter().for_each(|name| drop(add(&engine, name, 7)));
        for _ in 0..20 {
            run_background(&engine, &first);
        }
        assert_eq!(unsettled(&engine), 0);
    }
    let old = block_on(store.writers()).unwrap().registrations[0].writer;
    // Killed: what it has said is for the next life to confirm.
    let world = World::new(first.disk.kill(first.disk.operations()).into_disk(), 2);
    let engine = open(&world, &store, settle_every);
    let names: Vec<String> = (0..CHANGING).map(|n| format!("m:{n}")).collect();
    let mut adds = 0;
    let mut tick = |tick: usize| {
        world.clock.advance(TICK);
        first.clock.advance(TICK);
        let sharing = engine.sharing().unwrap();
        for name in names[tick % TICKS * (CHANGING / TICKS)..].iter().take(CHANGING / TICKS) {
            // Nobody waits for its row.
            if engine.turn().run(&command(name, 1)).is_err() {
                assert_eq!(add(&engine, name, 1), Reply::Integer(1));
            }
            adds += 1;
        }
        loop {
            block_on(sharing.renew());
            let settled = block_on(sharing.settle());
            block_on(sharing.audit());
            block_on(sharing.fetch());
            if settled == 0 {
                break;
            }
        }
        if tick.is_multiple_of(TICKS) {
            engine.steps().seal_all().unwrap();
        }
    };
    (0..TICKS).for_each(&mut tick);
    assert!(unsettled(&engine) > 50_000, "so many are unsettled that a pass waits for none of them");
    // As after FLUSHALL.
    store.inner.restore_backup(&empty);
    let is_retired = || {
        let registrations = block_on(store.writers()).unwrap().registrations;
        registrations.iter().any(|known| known.writer == old && known.stage != WriterStage::Live)
    };
    let ticks = (TICKS..40 * TICKS).find(|at| {
        tick(*at);
        !engine.sharing().unwrap().is_auditing() && is_retired()
    });
    assert!(ticks.is_some(), "the passes ended, and the older life is retired");
    assert_eq!(engine.sharing().unwrap().stats().losses, 1);
    for name in &quiet {
        assert_eq!(sum(&store, name), 7, "{name} was put again");
    }
    // What goes on changing is there, too, but for what is not due yet.
    let known: i128 = names.iter().map(|name| sum(&store, name)).sum();
    assert!(known >= adds - 2 * CHANGING as i128, "{known} of {adds}");
    println!("proof: 1 audit of {CHANGING} changing counters after a loss, over after {} ticks", ticks.unwrap());
}

#[test]
fn a_row_that_the_store_does_not_take_holds_up_no_other_and_settles_once_it_is_mended() {
    let world = World::new(CrashDisk::new(), 1);
    let store = FaultyRowStore::new(&world);
    let engine = open(&world, &store, Duration::ZERO);
    run_background(&engine, &world);
    let names: Vec<String> = (0..100).map(|n| format!("likes:{n}")).collect();
    add(&engine, "damaged", 5);
    names.iter().for_each(|name| drop(add(&engine, name, 1)));
    store.damage("damaged");
    let figures = || engine.sharing().unwrap().stats();
    for round in 1..=500 {
        world.clock.advance(Duration::from_millis(10));
        settle(&engine);
        let confirmed = names.iter().filter(|name| sum(&store, name) == round).count();
        assert_eq!((confirmed, unsettled(&engine)), (100, 1), "in round {round} all others are confirmed");
        // Also of one that goes on changing: not more often for that.
        names.iter().for_each(|name| drop(add(&engine, name, 1)));
        add(&engine, "damaged", 1);
    }
    let attempts = store.attempts();
    assert!((5..=15).contains(&attempts), "{attempts} puts in 5 s: each waits twice as long as the one before");
    assert_eq!((figures().failing, figures().failed_puts), (1, attempts as u64));
    // The longest wait: some five seconds.
    for _ in 0..30 {
        world.clock.advance(Duration::from_secs(1));
        settle(&engine);
    }
    let attempts = store.attempts();
    assert!((4..=12).contains(&attempts), "{attempts} puts in 30 s");
    store.mend();
    for _ in 0..8 {
        world.clock.advance(Duration::from_secs(1));
        settle(&engine);
    }
    assert_eq!((sum(&store, "damaged"), figures().failing, figures().unsettled), (505, 0, 0));
}

#[test]
fn a_sketch_that_the_store_does_not_take_holds_up_no_counter_and_no_other_sketch() {
    let world = World::new(CrashDisk::new(), 1);
    let store = FaultyRowStore::new(&world);
    let engine = open(&world, &store, Duration::ZERO);
    run_background(&engine, &world);
    let observe = |name: &str, item: String| {
        let reply = run(&engine, &Command::Sketch(crate::sketches::observe(name, &[&item], Dialect::Redis)));
        assert!(!matches!(reply, Reply::Refused(_)), "{reply:?}");
    };
    store.damage("seen:damaged");
    for round in 1..=200 {
        world.clock.advance(Duration::from_millis(10));
        add(&engine, "likes:1", 1);
        observe("seen:1", format!("user:{round}"));
        observe("seen:damaged", format!("user:{round}"));
        settle(&engine);
        assert_eq!(
            (sum(&store, "likes:1"), unsettled(&engine)),
            (round, 1),
            "in round {round} all others are confirmed"
        );
    }
    let attempts = store.attempts();
    assert!((4..=14).contains(&attempts), "{attempts} puts in 2 s");
    store.mend();
    for _ in 0..8 {
        world.clock.advance(Duration::from_secs(1));
        settle(&engine);
    }
    assert_eq!(unsettled(&engine), 0);
    let known = run(&engine, &Command::Sketch(count_unique(&["seen:damaged"], Dialect::Redis)));
    assert!(matches!(known, Reply::Estimate(estimate) if (195..=205).contains(&estimate.value)), "{known:?}");
}

#[test]
fn a_row_that_the_store_does_not_give_keeps_no_other_from_being_read() {
    let world = World::new(CrashDisk::new(), 1);
    let store = FaultyRowStore::new(&world);
    let (engine, other) = (open(&world, &store, Duration::ZERO), World::new(CrashDisk::new(), 2));
    run_background(&engine, &world);
    let second = open(&other, &store, Duration::ZERO);
    run_background(&second, &other);
    store.damage("damaged");
    let mut known = 0;
    for round in 0..20 {
        for clock in [&world.clock, &other.clock] {
            clock.advance(Duration::from_secs(2));
        }
        // Alone in its round, as what is asked for by one client is.
        let damaged = read_once(&engine, "damaged");
        assert!(damaged.is_none_or(|reply| matches!(reply, Reply::Refused(Refusal::StoreDown))));
        add(&second, "likes:1", 1);
        settle(&second);
        known += i64::from(read_once(&engine, "likes:1") == Some(Reply::Value(Some(round + 1))));
    }
    assert_eq!(known, 20, "each read was of a fresh row");
}

#[test]
fn what_leaves_memory_unsettled_is_brought_back_by_name_and_beyond_the_bound_by_a_pass() {
    /// The names that are remembered in the four shards of this engine.
    const REMEMBERED: usize = 4 * 64;
    const COUNTERS: usize = 2 * REMEMBERED;
    let world = World::new(CrashDisk::new(), 1);
    let store = FaultyRowStore::new(&world);
    let engine = open(&world, &store, Duration::ZERO);
    (0..20).for_each(|_| run_background(&engine, &world));
    assert!(!engine.sharing().unwrap().is_auditing());
    let names: Vec<String> = (0..COUNTERS).map(|n| format!("likes:{n}")).collect();
    store.takes_no_puts.store(true, Ordering::Relaxed);
    names.iter().for_each(|name| drop(add(&engine, name, 3)));
    commit(&engine);
    engine.steps().seal_all().unwrap();
    let evicted: usize = (0..2).flat_map(|_| 0..engine.steps().shard_count()).map(|at| engine.steps().evict(at)).sum();
    assert_eq!(evicted, COUNTERS, "nothing is in memory");
    assert_eq!(unsettled(&engine), REMEMBERED as u64);
    store.takes_no_puts.store(false, Ordering::Relaxed);
    world.clock.advance(Duration::from_secs(10));
    let confirmed = || names.iter().filter(|name| sum(&store, name) == 3).count();
    // Without a pass over everything at rest.
    for _ in 0..4 {
        settle(&engine);
        world.clock.advance(Duration::from_millis(100));
    }
    assert_eq!((confirmed(), unsettled(&engine)), (REMEMBERED, 0));
    for _ in 0..20 {
        run_background(&engine, &world);
    }
    assert_eq!((confirmed(), unsettled(&engine)), (COUNTERS, 0), "a pass finds the others");
}

#[test]
fn what_an_audit_doubts_is_doubted_again_when_it_comes_back_to_memory() {
    let world = World::new(CrashDisk::new(), 1);
    let store = FaultyRowStore::new(&world);
    let engine = open(&world, &store, Duration::ZERO);
    let empty = store.inner.backup();
    let names: Vec<String> = (0..400).map(|n| format!("likes:{n}")).collect();
    names.iter().for_each(|name| drop(add(&engine, name, 3)));
    for _ in 0..20 {
        run_background(&engine, &world);
    }
    assert_eq!((unsettled(&engine), engine.sharing().unwrap().is_auditing()), (0, false));
    // Everything is lost, a pass has listed it, and it leaves memory before it is put: at rest it
    // says that it was confirmed.
    store.inner.restore_backup(&empty);
    store.takes_no_puts.store(true, Ordering::Relaxed);
    for _ in 0..10 {
        world.clock.advance(Duration::from_secs(1));
        block_on(engine.sharing().unwrap().renew());
        block_on(engine.sharing().unwrap().audit());
    }
    assert_eq!(unsettled(&engine), 400);
    // The pass has looked at all of them. What changes stays in memory: fewer leave it than are
    // remembered by name.
    let evict = || (0..engine.steps().shard_count()).map(|at| engine.steps().evict(at)).sum::<usize>();
    assert_eq!(evict(), 0);
    names[..260].iter().for_each(|name| drop(add(&engine, name, 0)));
    assert_eq!((evict(), unsettled(&engine)), (140, 400));
    store.takes_no_puts.store(false, Ordering::Relaxed);
    for _ in 0..20 {
        run_background(&engine, &world);
    }
    assert!(names.iter().all(|name| sum(&store, name) == 3));
    assert!(!engine.sharing().unwrap().is_auditing());
}

#[test]
fn a_sum_beyond_64_bits_is_an_error_to_read_and_adds_towards_the_range_bring_it_back() {
    for sign in [1, -1] {
        let worlds = [1, 2].map(|seed| World::new(CrashDisk::new(), seed));
        let store = FaultyRowStore::new(&worlds[0]);
        let engines = [0, 1].map(|at| open(&worlds[at], &store, Duration::ZERO));
        let run_all_backgrounds = || {
            (0..4).for_each(|_| engines.iter().zip(&worlds).for_each(|(engine, world)| run_background(engine, world)))
        };
        run_all_backgrounds();
        // Neither knows of the other.
        let edge = if sign > 0 { i64::MAX } else { i64::MIN };
        assert_eq!(engines.each_ref().map(|engine| add(engine, "likes:1", edge)), [edge, edge].map(Reply::Integer));
        let wide = |sum: i128| Reply::Refused(Refusal::TooWide { sum: Box::new(sum) });
        let mut total = 2 * i128::from(edge);
        run_all_backgrounds();
        assert_eq!(sum(&store, "likes:1"), total);
        for engine in &engines {
            assert_eq!(read(engine, "likes:1"), wide(total), "the error has the sum");
            assert_eq!(add(engine, "likes:1", sign), wide(total), "further out");
        }
        // Towards the range, however far it is; the reply is the number that is nearest.
        assert_eq!(add(&engines[0], "likes:1", -1000 * sign), Reply::Integer(edge));
        total -= 1000 * i128::from(sign);
        assert_eq!(read(&engines[0], "likes:1"), wide(total), "what was added is in it at once");
        run_all_backgrounds();
        assert_eq!((sum(&store, "likes:1"), read(&engines[1], "likes:1")), (total, wide(total)));
        // In one step past the edge, from the other node.
        let back = if sign > 0 { -i64::MAX } else { i64::MAX };
        total += i128::from(back);
        let shown = i64::try_from(total).unwrap();
        assert_eq!(add(&engines[1], "likes:1", back), Reply::Integer(shown));
        run_all_backgrounds();
        for engine in &engines {
            assert_eq!(read(engine, "likes:1"), Reply::Value(Some(shown)));
        }
        assert_eq!(add(&engines[0], "likes:1", 5 * sign), Reply::Integer(shown + 5 * sign));
    }
}

#[test]
fn a_node_that_finds_the_registry_full_says_so_and_joins_when_there_is_room() {
    let world = World::new(CrashDisk::new(), 1);
    let store = FaultyRowStore::new(&world);
    store.registry_is_full.store(true, Ordering::Relaxed);
    let engine = open(&world, &store, Duration::ZERO);
    let sharing = || engine.sharing().unwrap();
    assert_eq!(sharing().registry_problem(), None, "nobody has asked");
    for _ in 0..20 {
        run_background(&engine, &world);
    }
    assert_eq!((sharing().membership(), sharing().stats().joining), (Membership::Joining, true));
    let problem = sharing().registry_problem().unwrap();
    assert!(problem.contains(&format!("is full, with {REGISTRATIONS_MAX} registrations, for 9 s")), "{problem}");
    assert!(problem.contains("quipu writers retire"), "{problem}");
    assert_eq!(add(&engine, "likes:1", 2), Reply::Integer(2), "it counts by itself");
    store.registry_is_full.store(false, Ordering::Relaxed);
    for _ in 0..20 {
        run_background(&engine, &world);
    }
    assert_eq!((sharing().membership(), sharing().registry_problem()), (Membership::Live, None));
    assert_eq!(sum(&store, "likes:1"), 2);
}
