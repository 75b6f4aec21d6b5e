//! Tests adds without a reply value: a frequently added counter is split into lanes, visible only
//! in its speed.

use std::time::Duration;

use quipu_engine::{Engine, Error, Handle, Options};
use quipu_model::{
    AddWithin, Command, Expiry, ExpiryCondition, ExpiryForm, ExpiryTime, Name, Refusal, Reply, Set, SetCondition,
    SetExpiry,
};
use quipu_testkit::CrashDisk;

use crate::world::{World, small_options};

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

fn open(segment_bytes: u64) -> (World, Engine) {
    let world = World::new(CrashDisk::new(), 1);
    let engine = world.open(small_options(segment_bytes)).unwrap();
    (world, engine)
}

fn after_a_kill(world: &World) -> Engine {
    World::new(world.disk.kill(world.disk.operations()).into_disk(), 5).open(small_options(8192)).unwrap()
}

/// A handle of a counter that is split and has this value, ten of it in lanes.
fn split(engine: &Engine, counter: &str, value: i64) -> Handle {
    let handle = engine.handle(counter).unwrap();
    engine.set(counter, value - 12).unwrap();
    // A window begins.
    engine.steps().join_lanes();
    for _ in 0..2 {
        assert!(!handle.is_split());
        handle.count(1).unwrap();
    }
    assert!(handle.is_split());
    handle.count(3).unwrap();
    handle.count(7).unwrap();
    handle
}

fn run(engine: &Engine, command: &Command<'_>) -> Reply {
    engine.execute(command).unwrap()
}

#[test]
fn a_counter_that_is_counted_often_is_split_and_every_way_to_look_at_it_sees_all() {
    let (_, engine) = open(8192);
    for counter in ["d:a", "r:a", "m:a"] {
        let handle = split(&engine, counter, 100);
        assert_eq!((engine.read(counter).unwrap().value, handle.is_split()), (100, true), "a read leaves lanes open");
        handle.count(1).unwrap();
        assert_eq!((handle.add(1).unwrap(), handle.is_split()), (102, true), "so does an add");
        handle.count(1).unwrap();
        assert_eq!(engine.add(counter, 1).unwrap(), 104);
        handle.count(1).unwrap();
        let names = vec![name(counter), name("none")];
        assert_eq!(run(&engine, &Command::ReadMany { names }), Reply::Values(vec![Some(105), None]));
        handle.count(1).unwrap();
        let commands =
            [Command::Read { name: name(counter) }, Command::Add { name: name(counter), delta: 1, shard_key: None }];
        let ran = engine.turn().run_transaction(&commands, &[]).unwrap().unwrap();
        assert_eq!(ran, [Reply::Value(Some(106)), Reply::Integer(107)]);
        assert!(handle.is_split());
        assert_eq!(engine.stats().counters_split, 1);
        engine.steps().join_lanes();
        engine.steps().join_lanes();
        assert!(!handle.is_split(), "nobody has counted since the last look");
    }
}

#[test]
fn what_changes_more_than_the_sum_has_all_of_it_and_closes_the_lanes() {
    let (_, engine) = open(8192);
    let set = |reply_old| {
        let (condition, expiry) = (SetCondition::Always, SetExpiry::Remove);
        Command::Set(Set { name: name("d:a"), value: 5, condition, expiry, reply_old })
    };
    let within = |upper| {
        let (lower, saturate, expiry, expiry_if_none) = (0, false, Expiry::Keep, false);
        Command::AddWithin(AddWithin { name: name("d:a"), delta: 1, lower, upper, saturate, expiry, expiry_if_none })
    };
    let cases = [
        (set(false), Reply::Ok, 5),
        (set(true), Reply::Value(Some(100)), 5),
        (Command::Take { name: name("d:a") }, Reply::Value(Some(100)), 0),
        (Command::Reset { name: name("d:a") }, Reply::Integer(100), 0),
        (Command::Delete { names: vec![name("d:a")] }, Reply::Integer(1), 0),
        (within(101), Reply::Pair(101, 1), 101),
        (within(100), Reply::Pair(100, 0), 100),
        (
            Command::Add { name: name("d:a"), delta: 1 << 33, shard_key: None },
            Reply::Integer(100 + (1 << 33)),
            100 + (1 << 33),
        ),
        (
            Command::Expire { name: name("d:a"), when: ExpiryTime::In(60_000), condition: ExpiryCondition::Always },
            Reply::Integer(1),
            100,
        ),
        (
            Command::ReadAndExpire { name: name("d:a"), expiry: Expiry::At(ExpiryTime::In(60_000)) },
            Reply::Value(Some(100)),
            100,
        ),
    ];
    for (command, reply, after) in cases {
        let handle = split(&engine, "d:a", 100);
        assert_eq!(run(&engine, &command), reply, "{command:?}");
        assert!(!handle.is_split(), "{command:?}");
        handle.count(1).unwrap();
        assert_eq!(engine.read("d:a").unwrap().value, after + 1, "{command:?}");
    }
    let handle = split(&engine, "d:a", 100);
    assert_eq!(
        run(&engine, &Command::ExpiryOf { name: name("d:a"), form: ExpiryForm::MillisLeft }),
        Reply::Integer(-1)
    );
    assert!(handle.is_split());
}

#[test]
fn deleting_everything_deletes_what_lanes_hold_and_nothing_that_is_counted_after() {
    let (_, engine) = open(8192);
    let handles = [split(&engine, "d:a", 100), split(&engine, "m:a", 50)];
    let before = engine.stats();
    run(&engine, &Command::Flush);
    assert_eq!((engine.stats().counters, engine.stats().counters_split, before.counters_split), (0, 0, 2));
    for handle in &handles {
        assert!(!engine.read(handle.name()).unwrap().exists);
        handle.count(4).unwrap();
        assert_eq!(engine.read(handle.name()).unwrap().value, 4);
    }
}

#[test]
fn a_counter_that_expires_is_not_split() {
    let (world, engine) = open(8192);
    let handle = engine.handle("d:a").unwrap();
    handle.count(1).unwrap();
    let condition = ExpiryCondition::Always;
    run(&engine, &Command::Expire { name: name("d:a"), when: ExpiryTime::In(1_000), condition });
    (0..10).for_each(|_| handle.count(1).unwrap());
    assert!(!handle.is_split());
    world.clock.advance(Duration::from_millis(1_001));
    handle.count(1).unwrap();
    assert_eq!(engine.read("d:a").unwrap().value, 1, "what was counted before the expiry has expired");
}

#[test]
fn a_value_near_the_bound_is_added_to_the_ordinary_way_and_an_overflow_is_refused() {
    let (_, engine) = open(8192);
    for sign in [1, -1] {
        let handle = engine.handle("d:a").unwrap();
        engine.set("d:a", sign * ((1 << 62) - 1)).unwrap();
        engine.steps().join_lanes();
        (0..3).for_each(|_| handle.count(sign).unwrap());
        assert!(!handle.is_split(), "past 2^62");
        assert_eq!(engine.read("d:a").unwrap().value, sign * ((1 << 62) + 2));
        engine.set("d:a", sign * ((1 << 62) - 10)).unwrap();
        engine.steps().join_lanes();
        (0..2).for_each(|_| handle.count(sign).unwrap());
        assert!(handle.is_split());
        // In lanes it passes the bound; the next to look closes them.
        (0..5).for_each(|_| handle.count(sign * (1 << 32)).unwrap());
        assert_eq!(engine.read("d:a").unwrap().value, sign * ((1 << 62) - 8 + (5 << 32)));
        assert!(!handle.is_split());
        let most = if sign > 0 { i64::MAX } else { i64::MIN };
        engine.set("d:a", most).unwrap();
        assert_eq!(handle.count(sign), Err(Error::Refused(Refusal::Overflow)));
        assert_eq!(engine.read("d:a").unwrap().value, most);
        engine.delete("d:a").unwrap();
    }
}

#[test]
fn a_lane_that_holds_a_lot_is_joined_by_whoever_filled_it() {
    let (_, engine) = open(8192);
    let handle = engine.handle("d:a").unwrap();
    (0..2).for_each(|_| handle.count(1 << 32).unwrap());
    let before = engine.steps().reserved();
    for _ in 0..256 {
        handle.count(1 << 32).unwrap();
    }
    assert!(handle.is_split() && engine.steps().reserved() == before);
    handle.count(1).unwrap();
    assert!(engine.steps().reserved() > before, "it was written down without anybody's asking");
    assert_eq!(engine.read("d:a").unwrap().value, (258 << 32) + 1);
}

#[test]
fn a_flush_makes_what_was_counted_survive_and_without_one_a_kill_takes_no_more_than_what_came_after() {
    for counter in ["d:a", "r:a"] {
        let (world, engine) = open(8192);
        let handle = split(&engine, counter, 100);
        handle.flush().unwrap();
        assert!(handle.is_split());
        handle.count(1).unwrap();
        assert_eq!(after_a_kill(&world).read(counter).unwrap().value, 100);
        engine.steps().join_lanes();
        engine.steps().write_filled();
        assert_eq!(after_a_kill(&world).read(counter).unwrap().value, 101, "a window later it is there by itself");
        handle.count(1).unwrap();
        handle.clone().flush().unwrap();
        let crashed = world.disk.crash(world.disk.operations(), &world.rng);
        let value = World::new(crashed.into_disk(), 5).open(small_options(8192)).unwrap().read(counter).unwrap().value;
        assert!(value == 102 || counter == "r:a", "{counter}: {value}");
    }
}

#[test]
fn a_flush_waits_for_what_took_the_ordinary_way_too() {
    let (world, engine) = open(8192);
    let handle = engine.handle("d:a").unwrap();
    handle.count(1).unwrap();
    assert_eq!(after_a_kill(&world).read("d:a").unwrap().value, 0);
    handle.flush().unwrap();
    assert_eq!(after_a_kill(&world).read("d:a").unwrap().value, 1);
}

#[test]
fn a_clean_stop_has_all_that_was_counted_in_every_mode() {
    let (world, engine) = open(8192);
    let handles = ["d:a", "r:a", "m:a"].map(|counter| split(&engine, counter, 100));
    engine.close().unwrap();
    for handle in &handles {
        assert!(!handle.is_split());
        assert!(matches!(handle.count(1), Err(Error::Refused(Refusal::NoRoom { .. }))));
        assert_eq!(engine.read(handle.name()).unwrap().value, 100);
        assert_eq!(after_a_kill(&world).read(handle.name()).unwrap().value, 100);
    }
}

#[test]
fn a_seal_has_what_lanes_held_when_it_began() {
    let (world, engine) = open(8192);
    let handle = split(&engine, "m:a", 100);
    engine.steps().seal_all().unwrap();
    handle.count(1).unwrap();
    assert_eq!(after_a_kill(&world).read("m:a").unwrap().value, 100);
}

#[test]
fn a_counter_that_is_split_stays_in_memory_and_one_that_has_cooled_may_leave() {
    let (_, engine) = open(8192);
    let handle = split(&engine, "d:a", 100);
    let evict = || {
        engine.steps().seal_all().unwrap();
        (0..2 * engine.steps().shard_count())
            .map(|shard| engine.steps().evict(shard % engine.steps().shard_count()))
            .sum::<usize>()
    };
    assert_eq!(evict(), 0);
    handle.count(1).unwrap();
    engine.steps().join_lanes();
    engine.steps().join_lanes();
    assert!(!handle.is_split());
    assert_eq!(evict(), 1);
    handle.count(1).unwrap();
    assert_eq!(engine.read("d:a").unwrap().value, 102);
}

#[test]
fn watching_sees_what_is_counted_in_lanes_and_nothing_that_was_counted_before() {
    let (_, engine) = open(8192);
    let handle = split(&engine, "d:a", 100);
    let read = [Command::Read { name: name("d:a") }];
    let watch = engine.turn().watch(name("d:a")).unwrap();
    let ran = engine.turn().run_transaction(&read, &[watch]).unwrap();
    assert_eq!(ran, Some(vec![Reply::Value(Some(100))]), "nothing has changed");
    let handle = {
        drop(handle);
        split(&engine, "d:a", 100)
    };
    let watch = engine.turn().watch(name("d:a")).unwrap();
    assert!(handle.is_split());
    handle.count(1).unwrap();
    assert_eq!(engine.turn().run_transaction(&read, &[watch]).unwrap(), None);
    assert_eq!(engine.read("d:a").unwrap().value, 101);
}

#[test]
fn on_a_full_disk_lanes_are_joined_with_the_room_they_hold_and_then_counting_is_refused() {
    let (world, engine) = open(4096);
    let handle = split(&engine, "d:a", 100);
    world.disk.capacity(Some(world.disk.bytes_used()));
    let mut index = 0;
    while !matches!(engine.add(format!("d:fill:{index}"), 1), Err(Error::Refused(Refusal::NoRoom { .. }))) {
        index += 1;
        assert!(index < 10_000, "the disk was never full");
    }
    // What is too little for an ordinary add is enough for lanes, a few times.
    let mut value = 100;
    while handle.is_split() {
        handle.count(1).unwrap();
        value += 1;
        assert_eq!(engine.read("d:a").unwrap().value, value, "what was counted is shown");
        assert!(value < 200, "lanes are closed when they could not be joined again");
    }
    assert!(matches!(handle.count(1), Err(Error::Refused(Refusal::NoRoom { .. }))));
    assert_eq!(engine.read("d:a").unwrap().value, value);
    assert_eq!(after_a_kill_of(&world, 4096).read("d:a").unwrap().value, value, "and what was shown is not taken back");
    world.disk.capacity(None);
    engine.steps().prepare_segments().unwrap();
    (0..5).for_each(|_| handle.count(1).unwrap());
    assert!(handle.is_split());
    assert_eq!(engine.read("d:a").unwrap().value, value + 5);
}

fn after_a_kill_of(world: &World, segment_bytes: u64) -> Engine {
    World::new(world.disk.kill(world.disk.operations()).into_disk(), 5).open(small_options(segment_bytes)).unwrap()
}

#[test]
fn the_room_that_lanes_hold_comes_back_when_they_are_closed() {
    let world = World::new(CrashDisk::new(), 1);
    let engine = world.open(small_options(4096)).unwrap();
    // So little that a leak of what one counter's lanes hold each time would end it soon.
    world.disk.capacity(Some(world.disk.bytes_used() + 64 * 1024));
    for round in 0..2_000 {
        let handle = split(&engine, "d:a", 100);
        match round % 5 {
            0 => drop(engine.read("d:a").unwrap()),
            1 => engine.set("d:a", 1).unwrap(),
            2 => drop(run(&engine, &Command::Flush)),
            3 => {
                let watch = engine.turn().watch(name("d:a")).unwrap();
                engine.turn().run_transaction(&[], &[watch]).unwrap();
            }
            _ => drop(engine.turn().watch(name("d:a")).unwrap()),
        }
        drop(handle);
        engine.steps().join_lanes();
        engine.steps().prepare_segments().unwrap();
        if round % 50 == 0 {
            engine.steps().seal_all().unwrap();
        }
    }
    assert_eq!(engine.stats().counters_split, 0);
}

#[test]
fn lanes_go_with_their_last_handle_and_what_they_held_is_counted() {
    let (_, engine) = open(8192);
    let handle = split(&engine, "d:a", 100);
    let second = engine.handle("d:a").unwrap();
    drop(handle);
    engine.steps().join_lanes();
    assert!(second.is_split(), "another handle is there");
    second.count(1).unwrap();
    drop(second);
    engine.steps().join_lanes();
    assert_eq!(engine.stats().counters_split, 0);
    assert_eq!(engine.read("d:a").unwrap().value, 101);
}

#[test]
fn handles_beyond_the_bound_count_the_ordinary_way() {
    let (_, engine) = open(65536);
    let handles: Vec<Handle> = (0..5_000).map(|index| engine.handle(format!("m:{index}")).unwrap()).collect();
    let counted = |handle: &Handle| (0..3).for_each(|_| handle.count(1).unwrap());
    handles.iter().for_each(counted);
    assert_eq!(engine.stats().counters_split, 4_096);
    assert!(!handles[4_999].is_split());
    for index in [0, 4_095, 4_096, 4_999] {
        assert_eq!(engine.read(format!("m:{index}")).unwrap().value, 3);
    }
    drop(handles);
    engine.steps().join_lanes();
    let handle = engine.handle("m:4999").unwrap();
    counted(&handle);
    assert!(handle.is_split(), "there is room for it now");
}

#[test]
fn threads_count_at_once_and_the_sum_is_theirs_while_others_read_and_reset() {
    let directory = tempfile::tempdir().unwrap();
    let options = Options { relaxed_window: Duration::from_millis(5), ..Options::new(directory.path()) };
    let engine = Engine::open(Options { namespaces: small_options(8192).namespaces, ..options }).unwrap();
    for counter in ["d:a", "r:a", "m:a"] {
        let taken = std::thread::scope(|scope| {
            let counting: Vec<_> = (0..4)
                .map(|_| {
                    let handle = engine.handle(counter).unwrap();
                    scope.spawn(move || {
                        for add in 0..50_000 {
                            handle.count(1).unwrap();
                            if add % 10_000 == 0 {
                                std::thread::sleep(Duration::from_millis(12));
                            }
                        }
                    })
                })
                .collect();
            let mut taken = 0;
            while !counting.iter().all(|thread| thread.is_finished()) {
                let first = engine.read(counter).unwrap().value;
                assert!(engine.read(counter).unwrap().value >= first);
                taken += engine.reset(counter).unwrap();
            }
            taken
        });
        assert_eq!(taken + engine.read(counter).unwrap().value, 200_000, "{counter}");
    }
    engine.close().unwrap();
}
