//! Tests the effect of each command on a counter, its epoch and its expiry; also over a restart and
//! over jumps of the clock.

use std::time::Duration;

use quipu_engine::Engine;
use quipu_engine::offline::inspect::inspect;
use quipu_model::{
    AddWithin, Command, Epoch, Expiry, ExpiryCondition, ExpiryForm, ExpiryTime, ListNames, Millis, Name, Pattern,
    Refusal, Reply, Scan, Set, SetCondition, SetExpiry,
};
use quipu_testkit::CrashDisk;

use crate::world::{BEGIN, DATA, World, ledger_opener, small_options};

const YEAR: u64 = 365 * 24 * 3_600_000;

fn world() -> (World, Engine) {
    let world = World::new(CrashDisk::new(), 1);
    let engine = world.open(small_options(4096)).unwrap();
    (world, engine)
}

/// The same directory after the machine lost power and came back.
fn restarted(world: &World) -> (World, Engine) {
    let again = World::new(world.disk.kill(world.disk.operations()).into_disk(), 2);
    let engine = again.open(small_options(4096)).unwrap();
    (again, engine)
}

/// Everything into the ledger.
fn seal(engine: &Engine) {
    engine.steps().seal_all().unwrap();
}

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

fn set(text: &str, value: i64, expiry: SetExpiry) -> Command<'_> {
    Command::Set(Set { name: name(text), value, condition: SetCondition::Always, expiry, reply_old: false })
}

fn epoch(engine: &Engine) -> Epoch {
    engine.read("d:a").unwrap().epoch
}

#[test]
fn everything_but_an_add_raises_the_epoch() {
    let (world, engine) = world();
    engine.add("d:a", 5).unwrap();
    assert_eq!(epoch(&engine), Epoch::FIRST, "a counter that was only added to is in its first epoch");
    let mut last = epoch(&engine);
    let mut risen = |engine: &Engine, what: &str| {
        let now = epoch(engine);
        assert!(now > last, "{what}: {now:?} is not after {last:?}");
        last = now;
    };
    engine.set("d:a", 7).unwrap();
    risen(&engine, "set");
    engine.set("d:a", 7).unwrap();
    risen(&engine, "set to the same value, in the same millisecond");
    assert_eq!(engine.reset("d:a").unwrap(), 7);
    risen(&engine, "reset");
    assert!(engine.delete("d:a").unwrap());
    risen(&engine, "delete");
    engine.add("d:a", 1).unwrap();
    let (_, engine) = restarted(&world);
    assert_eq!(engine.read("d:a").unwrap().value, 1);
    assert_eq!(epoch(&engine), last, "an add after a delete goes on in the raised epoch, also after a restart");
}

#[test]
fn expiry_raises_the_epoch_and_flush_raises_all() {
    let (world, engine) = world();
    engine.add("d:a", 5).unwrap();
    let first = epoch(&engine);
    engine
        .execute(&Command::Expire { name: name("d:a"), when: ExpiryTime::In(1000), condition: ExpiryCondition::Always })
        .unwrap();
    assert_eq!(epoch(&engine), first, "an expiry that has not come yet changes nothing");
    world.clock.advance(Duration::from_millis(1000));
    assert!(!engine.read("d:a").unwrap().exists);
    let expired = epoch(&engine);
    assert_eq!(expired.millis, BEGIN.0 + 1000, "it follows from the counter alone, so that all nodes arrive at it");
    assert_eq!(engine.add("d:a", 2).unwrap(), 2);
    engine.execute(&Command::Flush).unwrap();
    assert!(epoch(&engine) > expired);
    let (_, engine) = restarted(&world);
    assert!(epoch(&engine) > expired, "the flush is remembered");
}

#[test]
fn the_epoch_of_what_is_gone_survives_the_cut() {
    let (world, engine) = world();
    engine.set("d:a", 1).unwrap();
    engine.delete("d:a").unwrap();
    let gone = epoch(&engine);
    seal(&engine);
    let (_, engine) = restarted(&world);
    engine.add("d:a", 1).unwrap();
    assert!(epoch(&engine) >= gone);
}

#[test]
fn a_counter_that_was_seen_to_expire_stays_gone_when_the_clock_goes_back() {
    let (world, engine) = world();
    engine.execute(&set("d:a", 9, SetExpiry::At(ExpiryTime::In(1000)))).unwrap();
    world.clock.advance(Duration::from_millis(YEAR));
    assert_eq!(engine.execute(&Command::Read { name: name("d:a") }).unwrap(), Reply::Value(None));
    world.clock.set_wall(Millis(BEGIN.0 - YEAR));
    assert!(!engine.read("d:a").unwrap().exists);
    let (again, engine) = restarted(&world);
    again.clock.set_wall(Millis(BEGIN.0 - YEAR));
    assert!(!engine.read("d:a").unwrap().exists, "nobody is shown it again");
}

#[test]
fn a_clock_that_jumps_moves_expiry_and_no_total() {
    let (world, engine) = world();
    let mut expected = 0;
    for jump in [0, YEAR as i64, -(YEAR as i64), 2 * YEAR as i64, -5] {
        world.clock.set_wall(Millis(BEGIN.0.wrapping_add_signed(jump)));
        expected += 3;
        assert_eq!(engine.add("d:a", 3).unwrap(), expected);
    }
    assert_eq!(engine.now(), BEGIN, "no time has passed");
    world.clock.advance(Duration::from_millis(2 * YEAR));
    engine.set("d:b", 1).unwrap();
    let newest = engine.now();
    let (again, engine) = restarted(&world);
    again.clock.set_wall(Millis(BEGIN.0 - YEAR));
    assert_eq!(engine.read("d:a").unwrap().value, expected);
    assert!(engine.now() >= newest, "time is at least the newest in the journal");
    again.clock.advance(Duration::from_millis(5_000));
    assert!(engine.now() >= Millis(newest.0 + 5_000), "and goes on from there");
    let before = engine.read("d:b").unwrap().epoch;
    engine.set("d:b", 2).unwrap();
    assert!(engine.read("d:b").unwrap().epoch > before, "an epoch rises though the clock went back");
}

#[test]
fn the_driver_removes_what_has_expired_without_being_asked() {
    let (world, engine) = world();
    engine.execute(&set("d:a", 9, SetExpiry::At(ExpiryTime::In(10)))).unwrap();
    world.clock.advance(Duration::from_millis(11));
    assert_eq!(engine.execute(&Command::CountNames).unwrap(), Reply::Integer(1));
    let steps = engine.steps();
    assert_eq!((0..steps.shard_count()).map(|shard| steps.expire(shard)).sum::<usize>(), 1);
    assert_eq!(engine.execute(&Command::CountNames).unwrap(), Reply::Integer(0));
}

#[test]
fn overflow_is_refused_and_changes_nothing() {
    let (world, engine) = world();
    for (start, delta) in [(i64::MAX, 1), (i64::MAX, i64::MAX), (i64::MIN, -1), (i64::MIN, i64::MIN)] {
        engine.set("d:a", start).unwrap();
        let before = engine.read("d:a").unwrap();
        for _ in 0..2 {
            assert_eq!(engine.add("d:a", delta), Err(Refusal::Overflow.into()));
        }
        assert_eq!(engine.read("d:a").unwrap(), before);
    }
    let (_, engine) = restarted(&world);
    assert_eq!(engine.read("d:a").unwrap().value, i64::MIN);
}

#[test]
fn a_bounded_add_that_moves_a_counter_by_more_than_64_bits_is_refused_and_changes_nothing() {
    const FAR: i64 = 5_000_000_000_000_000_000;
    let (world, engine) = world();
    let add = |delta, lower, upper| {
        let (name, saturate, expiry) = (name("d:a"), true, Expiry::At(ExpiryTime::In(5000)));
        Command::AddWithin(AddWithin { name, delta, lower, upper, saturate, expiry, expiry_if_none: false })
    };
    for (start, delta, lower, upper) in [
        (FAR, -1, i64::MIN, -FAR),
        (-FAR, 1, FAR, i64::MAX),
        (i64::MAX, -1, i64::MIN, i64::MIN),
        (i64::MIN, 0, 0, i64::MAX),
    ] {
        engine.set("d:a", start).unwrap();
        let before = engine.read("d:a").unwrap();
        assert_eq!(engine.execute(&add(delta, lower, upper)), Err(Refusal::Overflow.into()), "{start}");
        assert_eq!(engine.read("d:a").unwrap(), before);
    }
    let (_, engine) = restarted(&world);
    assert_eq!(engine.read("d:a").unwrap().value, i64::MIN);
    assert_eq!(engine.execute(&add(1, -1, i64::MAX)).unwrap(), Reply::Pair(-1, i64::MAX), "the longest way that fits");
}

#[test]
fn a_bounded_add_sets_its_expiry_in_the_same_step() {
    let (world, engine) = world();
    let add = |delta, saturate, expiry, expiry_if_none| {
        let (name, lower, upper) = (name("d:a"), 0, 10);
        Command::AddWithin(AddWithin { name, delta, lower, upper, saturate, expiry, expiry_if_none })
    };
    let left = |engine: &Engine| {
        engine.execute(&Command::ExpiryOf { name: name("d:a"), form: ExpiryForm::MillisLeft }).unwrap()
    };
    let at = Expiry::At(ExpiryTime::In(5000));
    assert_eq!(engine.execute(&add(11, false, at, false)).unwrap(), Reply::Pair(0, 0));
    assert!(!engine.read("d:a").unwrap().exists, "an add that was not done makes no counter");
    assert_eq!(engine.execute(&add(4, false, at, false)).unwrap(), Reply::Pair(4, 4));
    assert_eq!(left(&engine), Reply::Integer(5000));
    world.clock.advance(Duration::from_millis(1000));
    assert_eq!(engine.execute(&add(1, false, at, true)).unwrap(), Reply::Pair(5, 1));
    assert_eq!(left(&engine), Reply::Integer(4000), "only a counter without an expiry gets one");
    assert_eq!(engine.execute(&add(9, true, Expiry::Remove, false)).unwrap(), Reply::Pair(10, 5));
    assert_eq!(left(&engine), Reply::Integer(-1));
    assert_eq!(epoch(&engine), Epoch::FIRST, "it is an add");
}

#[test]
fn an_expiry_out_of_range_is_refused() {
    let (_, engine) = world();
    engine.add("d:a", 1).unwrap();
    let expire = |when| Command::Expire { name: name("d:a"), when, condition: ExpiryCondition::Always };
    assert_eq!(engine.execute(&expire(ExpiryTime::In(i64::MAX))), Err(Refusal::ExpireTime.into()));
    assert_eq!(
        engine.execute(&expire(ExpiryTime::In(i64::MIN))).unwrap(),
        Reply::Integer(1),
        "as past as can be: deleted"
    );
    assert!(!engine.read("d:a").unwrap().exists);
}

#[test]
fn watched_counters_that_change_stop_a_transaction() {
    let (_, engine) = world();
    engine.add("d:a", 1).unwrap();
    let add = |text| Command::Add { name: name(text), delta: 1, shard_key: None };
    let watch = || {
        let mut turn = engine.turn();
        let watch = turn.watch(name("d:a")).unwrap();
        turn.finish();
        watch
    };
    let exec = |watch| engine.turn().run_transaction(&[add("d:b"), add("d:c")], &[watch]).unwrap();
    let watched = watch();
    assert_eq!(exec(watched), Some(vec![Reply::Integer(1), Reply::Integer(1)]));
    for change in
        [add("d:a"), set("d:a", 2, SetExpiry::Remove), Command::Delete { names: vec![name("d:a")] }, Command::Flush]
    {
        engine.add("d:a", 0).unwrap();
        let watched = watch();
        engine.execute(&change).unwrap();
        assert_eq!(exec(watched), None, "{change:?}");
    }
}

#[test]
fn a_transaction_is_one_record_and_refuses_per_command() {
    let (world, engine) = world();
    engine.set("d:a", i64::MAX).unwrap();
    let records = || {
        inspect(&world.disk, DATA.as_ref(), ledger_opener(&world.disk, DATA.as_ref()), |_, _| Ok(())).unwrap().records
    };
    let before = records();
    let commands = [
        Command::Add { name: name("d:a"), delta: 1, shard_key: None },
        Command::Add { name: name("d:b"), delta: 1, shard_key: None },
        set("r:c", 4, SetExpiry::Remove),
        Command::Add { name: name("m:d"), delta: 5, shard_key: None },
    ];
    let mut turn = engine.turn();
    let replies = turn.run_transaction(&commands, &[]).unwrap().unwrap();
    turn.finish();
    engine.steps().write_filled();
    assert_eq!(records(), before + 1);
    assert_eq!(replies[0], Reply::Refused(Refusal::Overflow));
    assert_eq!(replies[1..], [Reply::Integer(1), Reply::Ok, Reply::Integer(5)]);
    let (_, engine) = restarted(&world);
    assert_eq!(engine.read("m:d").unwrap().value, 5, "in a transaction the strictest durability holds for all");
}

#[test]
fn a_scan_meets_every_name_that_stays_and_a_list_is_bounded() {
    let (_, engine) = world();
    for index in 0..300 {
        engine.add(format!("m:{index}"), 1).unwrap();
    }
    for index in 0..20 {
        engine.execute(&set(&format!("m:x{index}"), 1, SetExpiry::At(ExpiryTime::At(5)))).unwrap();
    }
    let (mut cursor, mut met, mut steps) = (0, Vec::new(), 0);
    loop {
        let pattern = Some(Pattern(b"m:*1*"));
        let Reply::Page(next, names) = engine.execute(&Command::Scan(Scan { cursor, pattern, count: 10 })).unwrap()
        else {
            panic!("not a page");
        };
        // Names that come and go meanwhile do not disturb the others.
        engine.add(format!("m:y{steps}"), 1).unwrap();
        if steps % 2 == 0 {
            engine.delete(format!("m:{}", 200 + steps)).unwrap();
        }
        met.extend(names.into_iter().map(|name| String::from_utf8(name.into_vec()).unwrap()));
        steps += 1;
        cursor = next;
        if cursor == 0 {
            break;
        }
        assert!(cursor < 1 << 53, "a cursor is a whole number in every client");
    }
    assert!(steps > 10, "a step is about as long as asked for");
    for index in (0..200).filter(|index| index.to_string().contains('1')) {
        assert_eq!(met.iter().filter(|name| **name == format!("m:{index}")).count(), 1, "m:{index}");
    }
    assert!(met.iter().all(|name| name.contains('1')));
    let list = |bytes_max| engine.execute(&Command::ListNames(ListNames { pattern: Pattern(b"m:1??"), bytes_max }));
    let Reply::Names(names) = list(1 << 20).unwrap() else { panic!("not names") };
    assert_eq!(names.len(), 100);
    assert_eq!(list(500), Err(Refusal::ReplyTooLarge { bytes_max: 500 }.into()));
}

#[test]
fn memory_counters_come_back_as_last_sealed_and_whole_after_a_clean_stop() {
    let (world, engine) = world();
    engine.add("m:a", 5).unwrap();
    engine.add("m:b", 5).unwrap();
    seal(&engine);
    engine.add("m:a", 5).unwrap();
    engine.delete("m:b").unwrap();
    let (_, crashed) = restarted(&world);
    assert_eq!(crashed.read("m:a").unwrap().value, 5);
    assert_eq!(crashed.read("m:b").unwrap().value, 5);
    engine.close().unwrap();
    let (_, clean) = restarted(&world);
    assert_eq!(clean.read("m:a").unwrap().value, 10);
    assert!(!clean.read("m:b").unwrap().exists);
}

#[test]
fn a_life_keeps_its_incarnation_only_over_a_clean_stop() {
    let (world, engine) = world();
    let first = engine.stats().writer;
    engine.close().unwrap();
    let (world, engine) = restarted(&world);
    assert_eq!(engine.stats().writer, first, "a clean stop");
    assert!(engine.recovery().clean);
    let (_, engine) = restarted(&world);
    let second = engine.stats().writer;
    assert_eq!(second.node, first.node);
    assert_ne!(second.incarnation, first.incarnation, "a crash");
}

#[test]
fn a_closed_engine_refuses_writes_and_goes_on_reading() {
    let (_, engine) = world();
    engine.add("d:a", 1).unwrap();
    engine.close().unwrap();
    for name in ["d:a", "r:a", "m:a"] {
        assert!(matches!(engine.add(name, 1), Err(quipu_engine::Error::Refused(Refusal::NoRoom { .. }))), "{name}");
    }
    assert_eq!(engine.read("d:a").unwrap().value, 1);
    engine.close().unwrap();
}
