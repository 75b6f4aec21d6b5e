//! Tests former faults, each as the behaviour that was missing.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use quipu_engine::{Engine, Error, Options};
use quipu_model::{
    Command, Durability, ExpiryTime, ListNames, Name, Pattern, Refusal, Reply, Scan, Set, SetCondition, SetExpiry,
};
use quipu_testkit::{CrashDisk, DiskFault, OpKind};

use crate::world::{World, seal_without_cut, small_options};

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

fn set(text: &str, value: i64, expiry: SetExpiry) -> Command<'_> {
    Command::Set(Set { name: name(text), value, condition: SetCondition::Always, expiry, reply_old: false })
}

fn open(segment_bytes: u64) -> (World, Engine) {
    let world = World::new(CrashDisk::new(), 1);
    let engine = world.open(small_options(segment_bytes)).unwrap();
    (world, engine)
}

fn after_a_kill(world: &World) -> Engine {
    World::new(world.disk.kill(world.disk.operations()).into_disk(), 5).open(small_options(8192)).unwrap()
}

#[test]
fn memory_counters_survive_a_clean_stop_however_little_room_is_prepared() {
    let (world, engine) = open(8192);
    for index in 0..800 {
        engine.add(format!("m:{index:0200}"), 1).unwrap();
    }
    engine.close().unwrap();
    assert_eq!(after_a_kill(&world).stats().counters, 800);
}

#[test]
fn a_memory_counter_that_comes_and_goes_leaves_nothing_behind() {
    let (world, engine) = open(8192);
    for _ in 0..5_000 {
        engine.add("m:a", 1).unwrap();
        engine.delete("m:a").unwrap();
    }
    engine.add("m:b", 7).unwrap();
    let before = engine.steps().reserved();
    engine.steps().seal_all().unwrap();
    assert_eq!(engine.steps().reserved(), before, "a seal writes nothing to the journal");
    let again = after_a_kill(&world);
    assert_eq!((again.read("m:a").unwrap().exists, again.read("m:b").unwrap().value), (false, 7));
}

#[test]
fn a_deleted_memory_counter_stays_deleted_when_the_journal_is_not_cut() {
    let (world, engine) = open(8192);
    engine.add("m:a", 5).unwrap();
    engine.steps().seal_all().unwrap();
    assert!(engine.delete("m:a").unwrap());
    seal_without_cut(&engine);
    assert!(!after_a_kill(&world).read("m:a").unwrap().exists);
}

#[test]
fn a_finished_seal_cuts_although_a_turn_is_under_way() {
    let (_, engine) = open(8192);
    for index in 0..200 {
        engine.add(format!("d:{}", index % 7), 1).unwrap();
    }
    let before = engine.stats().journal_bytes;
    let seal = seal_without_cut(&engine);
    let mut turn = engine.turn();
    turn.run(&Command::Add { name: name("d:0"), delta: 1, shard_key: None }).unwrap();
    turn.end_run();
    engine.steps().finish_seal(seal).unwrap();
    assert!(engine.stats().journal_bytes < before / 2);
}

#[test]
fn a_transaction_fails_when_what_it_watched_has_expired_though_nobody_noticed() {
    let (world, engine) = open(8192);
    engine.execute(&set("d:a", 5, SetExpiry::At(ExpiryTime::In(10)))).unwrap();
    let watch = engine.turn().watch(name("d:a")).unwrap();
    world.clock.advance(Duration::from_millis(20));
    let add = [Command::Add { name: name("d:a"), delta: 10, shard_key: None }];
    assert_eq!(engine.turn().run_transaction(&add, &[watch]).unwrap(), None);
    let gone = engine.turn().watch(name("d:a")).unwrap();
    assert_eq!(
        engine.turn().run_transaction(&add, &[gone]).unwrap(),
        Some(vec![Reply::Integer(10)]),
        "it was gone before"
    );
}

#[test]
fn what_a_walk_has_shown_as_expired_stays_so_when_the_clock_goes_back() {
    let walks = [
        Command::ListNames(ListNames { pattern: Pattern(b"*"), bytes_max: 1000 }),
        Command::Scan(Scan { cursor: 0, pattern: None, count: 100 }),
    ];
    for walk in walks {
        for at_rest in [false, true] {
            let (mut world, mut engine) = open(8192);
            engine.execute(&set("d:a", 5, SetExpiry::At(ExpiryTime::In(1000)))).unwrap();
            if at_rest {
                engine.close().unwrap();
                world = World::new(world.disk.kill(world.disk.operations()).into_disk(), 3);
                engine = world.open(small_options(8192)).unwrap();
            }
            world.clock.advance(Duration::from_secs(2));
            let reply = engine.execute(&walk).unwrap();
            assert!(matches!(&reply, Reply::Names(names) | Reply::Page(0, names) if names.is_empty()), "{reply:?}");
            assert!(!after_a_kill(&world).read("d:a").unwrap().exists, "{walk:?}, at rest {at_rest}");
        }
    }
}

#[test]
fn the_room_promised_is_enough_for_every_command() {
    let (world, engine) = open(65536);
    let names: Vec<String> = (0..20).map(|index| format!("{index:0512}")).collect();
    for name in &names {
        engine.execute(&set(name, 1, SetExpiry::At(ExpiryTime::In(10)))).unwrap();
    }
    world.clock.advance(Duration::from_millis(20));
    // Seen to have expired, written again, and gone at once: three entries each.
    let commands: Vec<_> = names.iter().map(|name| set(name, 2, SetExpiry::At(ExpiryTime::At(1)))).collect();
    let mut turn = engine.turn();
    let replies = turn.run_transaction(&commands, &[]).unwrap().unwrap();
    assert!(replies.iter().all(|reply| *reply == Reply::Ok));
    turn.finish();
    assert_eq!(engine.stats().counters, 0);
}

#[test]
fn a_walk_does_not_hold_up_the_commits_of_others() {
    let (_, engine) = open(8192);
    let mut walker = engine.turn();
    walker.run(&Command::Add { name: name("d:a"), delta: 1, shard_key: None }).unwrap();
    walker.run(&Command::ListNames(ListNames { pattern: Pattern(b"*"), bytes_max: 1000 })).unwrap();
    let mut other = engine.turn();
    other.run(&Command::Add { name: name("d:b"), delta: 1, shard_key: None }).unwrap();
    let wait = other.finish();
    let steps = engine.steps();
    steps.write_filled();
    steps.sync();
    assert!(steps.has_reached(wait), "the walker's turn goes on, its record does not wait for that");
}

#[test]
fn who_waits_behind_a_turn_that_is_dropped_is_woken() {
    struct Count(AtomicUsize);
    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let (_, engine) = open(8192);
    let mut first = engine.turn();
    first.run(&Command::Add { name: name("d:a"), delta: 1, shard_key: None }).unwrap();
    first.end_run();
    let mut second = engine.turn();
    second.run(&Command::Add { name: name("d:b"), delta: 1, shard_key: None }).unwrap();
    let woken = Arc::new(Count(AtomicUsize::new(0)));
    let waker = Waker::from(woken.clone());
    let mut committed = pin!(engine.commit_until(second.finish()));
    assert!(committed.as_mut().poll(&mut Context::from_waker(&waker)).is_pending(), "the first one's place is empty");
    drop(first);
    assert_eq!(woken.0.load(Ordering::SeqCst), 1, "nobody else is going to come by");
    assert!(committed.as_mut().poll(&mut Context::from_waker(&waker)).is_ready());
}

#[test]
fn an_engine_that_was_closed_stays_clean_and_can_be_dropped() {
    let world = World::new(CrashDisk::new(), 1);
    let options = Options { durability: Durability::Memory, ..small_options(65536) };
    let engine = Engine::open_with_threads(options.clone(), world.environment()).unwrap();
    engine.execute(&set("x", 1, SetExpiry::At(ExpiryTime::In(150)))).unwrap();
    engine.close().unwrap();
    // It expires after the close, when nothing may be written any more: nobody keeps trying.
    world.clock.advance(Duration::from_secs(5));
    let (dropped, wait) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        drop(engine);
        dropped.send(()).unwrap();
    });
    wait.recv_timeout(Duration::from_secs(20)).expect("dropping it hangs");
    assert!(world.open(options).unwrap().recovery().clean);
}

#[test]
fn expiry_without_room_gives_up_instead_of_spinning() {
    let (world, engine) = open(4096);
    engine.execute(&set("d:a", 1, SetExpiry::At(ExpiryTime::In(10)))).unwrap();
    world.disk.capacity(Some(world.disk.bytes_used()));
    while engine.add("d:b", 1).is_ok() {}
    world.clock.advance(Duration::from_millis(20));
    let steps = engine.steps();
    assert_eq!((0..steps.shard_count()).map(|shard| steps.expire(shard)).sum::<usize>(), 0, "nothing could be removed");
    assert!(!engine.read("d:a").unwrap().exists);
}

#[test]
fn running_out_of_descriptors_is_a_refusal_that_heals() {
    let (world, engine) = open(4096);
    world.disk.fail_nth(OpKind::Create, 0, DiskFault::NoDescriptors);
    let refusal = loop {
        if let Err(error) = engine.add("d:a", 1) {
            break error;
        }
    };
    assert!(
        matches!(&refusal, Error::Refused(Refusal::NoRoom { reason }) if reason.contains("open files")),
        "{refusal}"
    );
    assert!(!world.has_failed());
    let before = engine.read("d:a").unwrap().value;
    engine.steps().prepare_segments().unwrap();
    assert_eq!(engine.add("d:a", 1).unwrap(), before + 1);
}

/// An engine on a full disk, with some counters that are about to expire.
fn on_a_full_disk() -> (World, Engine) {
    let (world, engine) = open(65536);
    engine.add("m:a", 1).unwrap();
    for index in 0..20 {
        engine.execute(&set(&format!("d:x{index}"), 1, SetExpiry::At(ExpiryTime::In(10)))).unwrap();
    }
    world.disk.capacity(Some(world.disk.bytes_used() + 30_000));
    while engine.add("d:0", 1).is_ok() {}
    (world, engine)
}

#[test]
fn a_full_disk_is_not_asked_again_by_every_command() {
    let (world, engine) = on_a_full_disk();
    let before = world.disk.operations();
    assert!(engine.read("d:0").unwrap().exists);
    assert_eq!(engine.add("m:a", 1).unwrap(), 2);
    assert!(engine.add("d:0", 1).is_err());
    world.clock.advance(Duration::from_millis(50));
    let steps = engine.steps();
    assert_eq!((0..steps.shard_count()).map(|shard| steps.expire(shard)).sum::<usize>(), 0);
    assert_eq!(world.disk.operations(), before, "none of these touches the disk");
}

#[test]
fn what_is_not_journaled_goes_on_on_a_full_disk_several_at_a_time_too() {
    let (_, engine) = on_a_full_disk();
    assert_eq!(engine.delete("m:a"), Ok(true));
    let adds = ["m:a", "m:b"].map(|text| Command::Add { name: name(text), delta: 1, shard_key: None });
    assert_eq!(engine.turn().run_transaction(&adds, &[]), Ok(Some(vec![Reply::Integer(1); 2])));
    let mut flushed = engine.turn();
    // A flush is journaled whatever it deletes, and there may be a little room left for it.
    if flushed.run_transaction(&[Command::Flush], &[]).is_ok() {
        assert_eq!(engine.stats().counters, 0);
    }
}

#[test]
fn a_worker_that_prepares_segments_does_not_hold_up_the_others() {
    let (world, engine) = open(4096);
    let mut turn = engine.turn();
    turn.run(&Command::Add { name: name("d:a"), delta: 1, shard_key: None }).unwrap();
    turn.end_run();
    let mut other = engine.turn();
    other.run(&Command::Add { name: name("r:a"), delta: 1, shard_key: None }).unwrap();
    let wait = other.finish();
    // While it syncs a new segment, another hands over: the places before the other's record must
    // not be empty.
    let reached = Arc::new(AtomicUsize::new(0));
    let (peak, watching) = (reached.clone(), engine.clone());
    world.disk.on_sync(Some(Arc::new(move || {
        watching.steps().write_filled();
        peak.fetch_max(1 + usize::from(watching.steps().has_reached(wait)), Ordering::SeqCst);
    })));
    for index in 0..500 {
        turn.run(&Command::Add { name: name(&format!("d:{index}")), delta: 1, shard_key: None }).unwrap();
        if reached.load(Ordering::SeqCst) > 0 {
            break;
        }
    }
    turn.finish();
    world.disk.on_sync(None);
    assert_eq!(reached.load(Ordering::SeqCst), 2, "the other's record was handed over meanwhile");
}

#[test]
fn room_that_others_take_first_is_made_again_and_not_refused() {
    let (_, engine) = open(4096);
    std::thread::scope(|scope| {
        for thread in 0..6 {
            let engine = engine.clone();
            scope.spawn(move || {
                for index in 0..300 {
                    engine.add(format!("r:{thread}:{}{:0400}", index % 5, 0), 1).expect("the disk has space");
                }
            });
        }
    });
    assert_eq!(engine.stats().counters, 30);
}

#[test]
fn a_second_close_waits_for_the_first() {
    let (world, engine) = open(65536);
    engine.add("r:a", 1).unwrap();
    let (second, returned) = (engine.clone(), Arc::new(AtomicUsize::new(0)));
    let (during, once) = (returned.clone(), AtomicUsize::new(0));
    world.disk.on_sync(Some(Arc::new(move || {
        if once.fetch_add(1, Ordering::SeqCst) == 0 {
            let (second, returned) = (second.clone(), returned.clone());
            let (began, begin) = std::sync::mpsc::channel();
            std::thread::spawn(move || {
                began.send(()).unwrap();
                second.close().unwrap();
                returned.fetch_add(1, Ordering::SeqCst);
            });
            begin.recv().unwrap();
            std::thread::sleep(Duration::from_millis(100));
            assert_eq!(during.load(Ordering::SeqCst), 0, "the first close is still syncing");
        }
    })));
    engine.close().unwrap();
    world.disk.on_sync(None);
}

/// A counter that has expired at rest and was brought back to be removed, but was not removed yet.
fn swept_and_not_expired() -> (World, Engine) {
    let (world, engine) = open(8192);
    engine.execute(&set("d:a", 1, SetExpiry::At(ExpiryTime::In(1_000)))).unwrap();
    engine.steps().seal_all().unwrap();
    evict_all(&engine);
    world.clock.advance(Duration::from_secs(2));
    sweep_all(&engine);
    (world, engine)
}

fn evict_all(engine: &Engine) {
    // The first time lets what was looked at stay.
    for shard in (0..engine.steps().shard_count()).chain(0..engine.steps().shard_count()) {
        engine.steps().evict(shard);
    }
}

fn sweep_all(engine: &Engine) {
    for shard in 0..engine.steps().shard_count() {
        engine.steps().sweep(shard).unwrap();
    }
}

/// How many counters are left once everything that has expired was looked for and removed.
fn left(engine: &Engine) -> u64 {
    sweep_all(engine);
    for shard in 0..engine.steps().shard_count() {
        engine.steps().expire(shard);
    }
    engine.stats().counters
}

#[test]
fn a_counter_that_was_swept_and_left_memory_again_is_swept_again() {
    let (_world, engine) = swept_and_not_expired();
    evict_all(&engine);
    assert_eq!(left(&engine), 0);
}

#[test]
fn a_counter_that_was_swept_before_a_seal_and_a_crash_is_swept_again() {
    let (world, engine) = swept_and_not_expired();
    // Something that the seal has to say.
    engine.add("d:b", 1).unwrap();
    engine.steps().seal_all().unwrap();
    assert_eq!(left(&after_a_kill(&world)), 1);
}
