//! Tests run-time settings of namespaces: in force with their reply, and permanent.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use quipu_engine::offline::audit;
use quipu_engine::{Engine, Options, PutNamespaceError};
use quipu_model::{
    AddWithin, Command, Durability, Expiry, ExpiryForm, ExpiryTime, FailMode, Identity, Millis, NAMESPACE_BYTES_MAX,
    NAMESPACES_MAX, Name, Namespace, Overload, Refusal, Reply, Set, SetCondition, SetExpiry, ShardCount, ShardPick,
};
use quipu_testkit::{CrashDisk, SeededRng};

use crate::world::{World, ledger_opener, seal_without_cut, small_options};

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

fn durable(durability: Durability) -> Namespace {
    Namespace::with_durability(durability)
}

fn ttl(seconds: u64) -> Namespace {
    Namespace { ttl: Some(Duration::from_secs(seconds)), ..Namespace::default() }
}

fn read_settings(engine: &Engine, namespace: &str) -> Option<Namespace> {
    engine.policies().runtime_settings().get(namespace.as_bytes()).map(|put| put.settings.clone())
}

/// Everything that was handed over, in another world.
fn after_kill(world: &World) -> World {
    World::new(world.disk.kill(world.disk.operations()).into_disk(), 2)
}

fn assert_consistent(world: &World) {
    let dir = std::path::Path::new(crate::world::DATA);
    let audited = audit(&world.disk, dir, &mut || ledger_opener(&world.disk, dir)(), &mut |_, _| ()).unwrap();
    assert!(audited.as_ref().is_some_and(|audited| audited.is_clean()), "{audited:?}");
}

#[test]
fn what_was_said_is_in_force_after_seals_cuts_kills_and_a_flush() {
    let everything = Namespace {
        window: Some(quipu_sketch::window::Panes::parse("1h/60").unwrap()),
        decay: Some(Duration::from_secs(3_600)),
        kind: Some(quipu_model::Kind::Count),
        durability: Some(Durability::Memory),
        ttl: Some(Duration::from_secs(60)),
        freshness: Some(Duration::from_millis(5)),
        settle_every: Some(Duration::from_millis(70)),
        shards: Some(ShardCount::Fixed(3)),
        pick: Some(ShardPick::Time),
        token_window: Some(Duration::from_secs(5)),
        max_counters: Some(9),
        fail_mode: Some(FailMode::Closed),
        // With a window nothing is sampled; `sampling` has what is.
        sample: None,
        overload: Some(Overload::Refuse),
    };
    let mut world = World::new(CrashDisk::new(), 1);
    let mut engine = world.open(small_options(8192)).unwrap();
    engine.put_namespace("a", everything.clone()).unwrap();
    engine.put_namespace("gone", durable(Durability::Relaxed)).unwrap();
    engine.steps().seal_all().unwrap();
    engine.put_namespace("gone", Namespace::default()).unwrap();
    engine.put_namespace("b", durable(Durability::Memory)).unwrap();
    engine.put_namespace("b", durable(Durability::Relaxed)).unwrap();
    for round in 0..5 {
        assert_eq!(read_settings(&engine, "a"), Some(everything.clone()), "round {round}");
        assert_eq!(read_settings(&engine, "b"), Some(durable(Durability::Relaxed)), "round {round}");
        assert_eq!(read_settings(&engine, "gone"), None, "round {round}");
        assert_eq!(engine.policies().runtime_settings().len(), 2);
        assert_eq!(engine.policies().durability(name("a:1")), Durability::Memory);
        match round {
            0 => {}
            1 => drop(seal_without_cut(&engine)),
            2 => engine.steps().seal_all().unwrap(),
            _ => {
                engine.add("d:1", 1).unwrap();
                engine.execute(&Command::Flush).unwrap();
                if round == 4 {
                    engine.steps().seal_all().unwrap();
                    engine.steps().seal_all().unwrap();
                }
            }
        }
        world = after_kill(&world);
        engine = world.open(small_options(8192)).unwrap();
    }
    assert_eq!(read_settings(&engine, "a"), Some(everything));
    assert_eq!(engine.policies().runtime_settings().len(), 2);
}

#[test]
fn after_any_loss_of_power_a_namespace_says_what_was_answered_last_or_what_was_being_said() {
    let rng = SeededRng::new(7);
    let mut states = 0;
    for seed in 0..12 {
        let world = World::new(CrashDisk::new(), seed);
        let engine = world.open(small_options(4096)).unwrap();
        let begun = world.disk.operations();
        // What had been answered when the disk had seen so much, the last of it what is being said.
        let mut answers = vec![(begun, Namespace::default())];
        for step in 0..14u64 {
            if rng.chance(30) {
                engine.steps().seal_all().unwrap();
            }
            if rng.chance(15) {
                engine.execute(&Command::Flush).unwrap();
            }
            let _ = engine.add("x:1", 1).unwrap();
            let settings = match rng.below(4) {
                0 => Namespace::default(),
                1 => durable(Durability::Memory),
                2 => durable(Durability::Durable),
                _ => ttl(step + 1),
            };
            engine.put_namespace("x", settings.clone()).unwrap();
            answers.push((world.disk.operations(), settings));
        }
        let operations = world.disk.operations();
        drop(engine);
        for _ in 0..60 {
            let at = begun + rng.below(operations + 1 - begun);
            let image = if rng.chance(80) { world.disk.crash(at, &rng) } else { world.disk.kill(at) };
            let world = World::new(image.into_disk(), 3);
            let engine = world.open(small_options(4096)).unwrap_or_else(|error| panic!("seed {seed}, {at}: {error}"));
            let found = read_settings(&engine, "x").unwrap_or_default();
            let answered = answers.iter().rposition(|(done, _)| *done <= at).unwrap();
            let allowed = &answers[answered..(answered + 2).min(answers.len())];
            assert!(
                allowed.iter().any(|(_, settings)| *settings == found),
                "seed {seed}, crash after operation {at}: {found:?} is none of {allowed:?}"
            );
            states += 1;
        }
    }
    println!("proof: namespaces: {states} crashes, each with what was answered last or what was being said");
}

#[test]
fn what_was_in_memory_is_durable_when_its_namespace_is_said_to_be() {
    for options in [small_options(8192), Options { durability: Durability::Memory, ..small_options(8192) }] {
        let world = World::new(CrashDisk::new(), 1);
        let engine = world.open(options.clone()).unwrap();
        engine.add("m:a", 100).unwrap();
        engine.add("m:gone", 1).unwrap();
        engine.steps().seal_all().unwrap();
        engine.add("m:b", 5).unwrap();
        assert!(engine.delete("m:gone").unwrap());
        engine.put_namespace("m", durable(Durability::Durable)).unwrap();
        assert_eq!(engine.read("m:b").unwrap().value, 5, "what is shown from here on is not taken back");
        assert_eq!(engine.add("m:a", 1).unwrap(), 101);
        assert_eq!(engine.add("m:new", 1).unwrap(), 1);
        assert_eq!(engine.add("m:gone", 3).unwrap(), 3);
        let world = World::new(world.disk.crash(world.disk.operations(), &SeededRng::new(1)).into_disk(), 2);
        assert_consistent(&world);
        let engine = world.open(options).unwrap();
        for (name, value) in [("m:a", 101), ("m:b", 5), ("m:new", 1), ("m:gone", 3)] {
            assert_eq!(engine.read(name).unwrap().value, value, "{name}");
        }
        assert_eq!(engine.stats().counters, 4);
    }
}

#[test]
fn what_was_durable_stays_so_when_its_namespace_is_said_to_be_in_memory() {
    let mut world = World::new(CrashDisk::new(), 1);
    let mut engine = world.open(small_options(8192)).unwrap();
    engine.add("d:a", 100).unwrap();
    engine.put_namespace("d", durable(Durability::Memory)).unwrap();
    let before = engine.steps().reserved();
    engine.add("d:a", 5).unwrap();
    engine.add("d:b", 1).unwrap();
    assert_eq!(engine.steps().reserved(), before, "nothing is journaled any more");
    world = after_kill(&world);
    engine = world.open(small_options(8192)).unwrap();
    assert_eq!(engine.read("d:a").unwrap().value, 100);
    assert!(!engine.read("d:b").unwrap().exists);
    // And back, with what the file says.
    engine.add("d:b", 7).unwrap();
    engine.put_namespace("d", Namespace::default()).unwrap();
    engine.add("d:a", 1).unwrap();
    world = after_kill(&world);
    assert_consistent(&world);
    engine = world.open(small_options(8192)).unwrap();
    assert_eq!((engine.read("d:a").unwrap().value, engine.read("d:b").unwrap().value), (101, 7));
    assert_eq!(engine.stats().counters, 2);
}

#[test]
fn adds_go_on_while_their_namespace_goes_from_mode_to_mode_and_none_is_lost() {
    const THREADS: usize = 3;
    let dir = tempfile::tempdir().unwrap();
    let options = || Options { table_shards: 4, split_after: 2, ..Options::new(dir.path()) };
    let engine = Engine::open(options()).unwrap();
    let (stop, added) = (AtomicBool::new(false), AtomicI64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (engine, stop, added) = (&engine, &stop, &added);
            scope.spawn(move || {
                let handle = engine.handle("x:lanes").unwrap();
                while !stop.load(Ordering::Relaxed) {
                    engine.add("x:1", 1).unwrap();
                    engine.add(format!("x:{thread}"), 1).unwrap();
                    (0..20).for_each(|_| handle.count(1).unwrap());
                    added.fetch_add(22, Ordering::Relaxed);
                }
                handle.flush().unwrap();
            });
        }
        for round in 0..24 {
            let mode = Durability::ALL[(round * 2 + round / 3) % 3];
            engine.put_namespace("x", durable(mode)).unwrap();
            assert_eq!(engine.policies().durability(name("x:1")), mode);
        }
        engine.put_namespace("x", Namespace::default()).unwrap();
        stop.store(true, Ordering::Relaxed);
    });
    let total = |engine: &Engine| {
        let names = ["x:0", "x:1", "x:2", "x:lanes"];
        names.map(|name| engine.read(name).unwrap().value).iter().sum::<i64>()
    };
    assert_eq!(total(&engine), added.load(Ordering::Relaxed));
    let counters = engine.stats().counters;
    engine.close().unwrap();
    drop(engine);
    let engine = Engine::open(options()).unwrap();
    assert_eq!((total(&engine), engine.stats().counters), (added.load(Ordering::Relaxed), counters));
}

#[test]
fn a_counter_of_a_namespace_with_a_ttl_expires_that_long_after_it_was_made() {
    let world = World::new(CrashDisk::new(), 1);
    let engine = world.open(small_options(8192)).unwrap();
    engine.add("t:before", 1).unwrap();
    engine.put_namespace("t", ttl(60)).unwrap();
    let left = |engine: &Engine, text: &str| {
        engine.execute(&Command::ExpiryOf { name: name(text), form: ExpiryForm::MillisLeft }).unwrap()
    };
    let set = |text, expiry| {
        let (condition, reply_old) = (SetCondition::Always, false);
        engine.execute(&Command::Set(Set { name: name(text), value: 1, condition, expiry, reply_old })).unwrap();
    };
    let within = |text, expiry, expiry_if_none| {
        let (lower, upper, saturate) = (0, 100, false);
        let add = AddWithin { name: name(text), delta: 1, lower, upper, saturate, expiry, expiry_if_none };
        engine.execute(&Command::AddWithin(add)).unwrap();
    };
    engine.add("t:add", 1).unwrap();
    set("t:set", SetExpiry::Remove);
    set("t:keep", SetExpiry::Keep);
    set("t:own", SetExpiry::At(ExpiryTime::In(5_000)));
    within("t:within", Expiry::Keep, false);
    within("t:enx", Expiry::At(ExpiryTime::In(7_000)), true);
    within("t:never", Expiry::Remove, false);
    let handle = engine.handle("t:count").unwrap();
    (0..10).for_each(|_| handle.count(1).unwrap());
    let mut turn = engine.turn();
    let simple_command = quipu_model::SimpleCommand { name: name("t:brief"), delta: Some(1) };
    if turn.run_simple(&[simple_command], |_| ()) == 0 {
        turn.run(&Command::Add { name: simple_command.name, delta: 1, shard_key: None }).unwrap();
    }
    drop(turn);
    world.clock.advance(Duration::from_secs(1));
    engine.add("t:add", 1).unwrap();
    engine.add("t:before", 1).unwrap();
    let expected = [
        ("t:before", -1),
        ("t:add", 59_000),
        ("t:set", 59_000),
        ("t:keep", 59_000),
        ("t:own", 4_000),
        ("t:within", 59_000),
        ("t:enx", 6_000),
        ("t:never", -1),
        ("t:count", 59_000),
        ("t:brief", 59_000),
    ];
    for (text, millis) in expected {
        assert_eq!(left(&engine, text), Reply::Integer(millis), "{text}");
    }
    engine.steps().write_filled();
    let world = after_kill(&world);
    let engine = world.open(small_options(8192)).unwrap();
    world.clock.advance(Duration::from_secs(59));
    assert_eq!(engine.read("t:add").unwrap().value, 2, "a moment before its time");
    world.clock.advance(Duration::from_secs(2));
    assert!(!engine.read("t:add").unwrap().exists);
    assert_eq!(engine.add("t:add", 1).unwrap(), 1);
    assert_eq!(left(&engine, "t:add"), Reply::Integer(60_000), "made anew, it has the time anew");
    assert_eq!(engine.read("t:before").unwrap().value, 2);
}

#[test]
fn a_token_is_remembered_as_long_as_the_namespace_of_its_counter_says() {
    let world = World::new(CrashDisk::new(), 1);
    let engine = world.open(small_options(8192)).unwrap();
    let window = |seconds| Namespace { token_window: Some(Duration::from_secs(seconds)), ..Namespace::default() };
    engine.put_namespace("short", window(10)).unwrap();
    engine.put_namespace("long", window(100_000)).unwrap();
    let once = |item: &str, text: &str| {
        let identity = Identity::token(b"p", item.as_bytes()).unwrap();
        engine.execute_once(&identity, &Command::Add { name: name(text), delta: 1, shard_key: None })
    };
    let carried = |before: u64| format!("{}-x", world.clock_wall() - before);
    for text in ["short:1", "long:1"] {
        assert_eq!(once(text, text).unwrap(), Reply::Integer(1));
    }
    let early = carried(0);
    assert_eq!(once(&early, "long:2").unwrap(), Reply::Integer(1));
    // Long past what the options say, and past a seal that forgets what is over.
    world.clock.advance(Duration::from_secs(90_000));
    engine.steps().seal_all().unwrap();
    assert_eq!(once("short:1", "short:1").unwrap(), Reply::Integer(2), "it was forgotten");
    assert_eq!(once("long:1", "long:1").unwrap(), Reply::Integer(1), "it was not");
    assert_eq!(once(&early, "long:2").unwrap(), Reply::Integer(1));
    let refused = once(&carried(11_000 + 60_000), "short:2").unwrap_err().to_string();
    assert!(refused.contains("older than the window of 10000 ms"), "{refused}");
    assert_eq!(once(&carried(11_000 + 60_000), "long:3").unwrap(), Reply::Integer(1));
}

#[test]
fn every_mistake_is_told_and_nothing_is_changed() {
    let world = World::new(CrashDisk::new(), 1);
    let engine = world.open(small_options(8192)).unwrap();
    for number in 0..NAMESPACES_MAX {
        engine.put_namespace(format!("n{number}"), ttl(60)).unwrap();
    }
    let before = engine.steps().reserved();
    let long = "x".repeat(NAMESPACE_BYTES_MAX) + ":";
    let Err(PutNamespaceError::Mistakes(mistakes)) = engine.put_namespace(&long, ttl(60)) else {
        panic!("it was taken")
    };
    assert_eq!(mistakes.len(), 2, "{mistakes:?}");
    assert!(
        mistakes[0].contains("ends before the first ':'") && mistakes[1].contains("1000 namespaces"),
        "{mistakes:?}"
    );
    assert!(matches!(engine.put_namespace("more", ttl(60)), Err(PutNamespaceError::Mistakes(_))));
    assert_eq!(engine.steps().reserved(), before);
    // Those that are there can be changed, and one that says nothing any more makes room for
    // another.
    engine.put_namespace("n0", ttl(61)).unwrap();
    engine.put_namespace("more", Namespace::default()).unwrap();
    engine.put_namespace("n0", Namespace::default()).unwrap();
    engine.put_namespace("x".repeat(NAMESPACE_BYTES_MAX), ttl(60)).unwrap();
    let world = after_kill(&world);
    let engine = world.open(small_options(8192)).unwrap();
    assert_eq!(engine.policies().runtime_settings().len(), NAMESPACES_MAX);
    engine.close().unwrap();
    let closed = engine.put_namespace("n1", Namespace::default());
    assert!(matches!(closed, Err(PutNamespaceError::Refused(Refusal::NoRoom { .. }))), "{closed:?}");
}

#[test]
fn without_room_nothing_that_is_said_is_in_force() {
    let world = World::new(CrashDisk::new(), 1);
    let engine = world.open(small_options(8192)).unwrap();
    engine.add("m:a", 1).unwrap();
    world.disk.capacity(Some(world.disk.bytes_used()));
    let mut refused = None;
    for number in 0..10_000u64 {
        if let Err(error) =
            engine.put_namespace("m", Namespace { ttl: ttl(number + 1).ttl, ..durable(Durability::Durable) })
        {
            refused = Some((number, error));
            break;
        }
        engine.put_namespace("m", Namespace { ttl: ttl(number + 1).ttl, ..durable(Durability::Memory) }).unwrap_or(());
    }
    let (number, error) = refused.expect("the disk is full at some time");
    assert!(matches!(error, PutNamespaceError::Refused(_)), "{error}");
    assert_ne!(read_settings(&engine, "m").and_then(|known| known.ttl), ttl(number + 1).ttl);
    let mode = read_settings(&engine, "m").map_or(Durability::Memory, |known| known.durability.unwrap());
    assert_eq!(engine.policies().durability(name("m:a")), mode);
    world.disk.capacity(None);
    engine.steps().prepare_segments().unwrap();
    engine.put_namespace("m", durable(Durability::Durable)).unwrap();
    assert_eq!(engine.policies().durability(name("m:a")), Durability::Durable);
    assert_ne!(engine.now(), Millis(0));
}

fn at_most(counters: u64) -> Namespace {
    Namespace { max_counters: Some(counters), ..Namespace::default() }
}

/// How many counters a namespace with a limit has.
fn counted(engine: &Engine, namespace: &str) -> u64 {
    let policies = engine.policies();
    policies.of_namespace(namespace.as_bytes()).limit.as_ref().expect("it has a limit").census.counters()
}

#[test]
fn one_counter_too_many_is_refused_and_the_others_go_on() {
    let world = World::new(CrashDisk::new(), 1);
    let engine = world.open(small_options(8192)).unwrap();
    let too_many = |counters_max| Err(quipu_engine::Error::Refused(Refusal::TooManyCounters { counters_max }));
    engine.add("q:1", 1).unwrap();
    engine.add("other:1", 1).unwrap();
    engine.put_namespace("q", at_most(3)).unwrap();
    assert_eq!(counted(&engine, "q"), 1);
    engine.add("q:2", 1).unwrap();
    engine.set("q:3", 1).unwrap();
    assert_eq!(engine.add("q:4", 1), too_many(3));
    assert_eq!(engine.set("q:4", 1).map(|()| 0), too_many(3));
    let handle = engine.handle("q:4").unwrap();
    assert!(handle.count(1).is_err());
    let mut turn = engine.turn();
    let simple_commands = ["q:1", "q:4"].map(|text| quipu_model::SimpleCommand { name: name(text), delta: Some(1) });
    assert_eq!(turn.run_simple(&simple_commands, |_| ()), 1, "the second is for the long way");
    drop(turn);
    let once = Identity::token(b"p", b"1").unwrap();
    let add = Command::Add { name: name("q:4"), delta: 1, shard_key: None };
    assert_eq!(engine.execute_once(&once, &add).map(|_| 0), too_many(3));
    for text in ["q:1", "q:2", "q:3", "other:2"] {
        engine.add(text, 1).unwrap();
        engine.set(text, 7).unwrap();
    }
    let set = |text, condition| {
        let (value, expiry, reply_old) = (1, SetExpiry::Remove, false);
        Command::Set(Set { name: name(text), value, condition, expiry, reply_old })
    };
    assert_eq!(engine.execute(&set("q:4", SetCondition::IfPresent)).unwrap(), Reply::Nil, "it would not make one");
    assert!(engine.delete("q:2").unwrap());
    // Several at once: all fit, or none is made.
    let several = ["q:2", "q:5", "other:3"].map(|text| set(text, SetCondition::Always));
    let mut turn = engine.turn();
    assert!(turn.run_transaction(&several, &[]).is_err());
    assert_eq!(turn.run_once(&once, &several).unwrap(), Reply::Refused(Refusal::TooManyCounters { counters_max: 3 }));
    drop(turn);
    assert!(!engine.read("q:2").unwrap().exists && !engine.read("other:3").unwrap().exists);
    assert_eq!(
        engine.execute_once(&once, &add).unwrap(),
        Reply::Integer(1),
        "the token was not spent, and there is room"
    );
    assert_eq!(engine.add("q:5", 1), too_many(3));
    engine.put_namespace("q", at_most(4)).unwrap();
    engine.add("q:5", 1).unwrap();
    assert_eq!(engine.add("q:6", 1), too_many(4));
    engine.put_namespace("q", at_most(1)).unwrap();
    assert_eq!((counted(&engine, "q"), engine.add("q:6", 1)), (4, too_many(1)));
    engine.execute(&Command::Flush).unwrap();
    assert_eq!(counted(&engine, "q"), 0);
    engine.add("q:6", 1).unwrap();
    assert_eq!(engine.add("q:7", 1), too_many(1));
    engine.put_namespace("q", Namespace::default()).unwrap();
    engine.add("q:7", 1).unwrap();
}

#[test]
fn the_number_of_counters_is_right_after_everything_that_can_happen_to_them() {
    let rng = SeededRng::new(3);
    for seed in 0..6 {
        let mut world = World::new(CrashDisk::new(), seed);
        let options = Options {
            namespaces: [
                small_options(8192).namespaces,
                vec![(b"m"[..].into(), Namespace { max_counters: Some(6), ..durable(Durability::Memory) })],
            ]
            .concat(),
            ..small_options(8192)
        };
        let mut engine = world.open(options.clone()).unwrap();
        let number = |engine: &Engine, prefix: &str| {
            let names = (0..10).filter(|n| engine.read(format!("{prefix}:{n}")).unwrap().exists);
            names.count() as u64
        };
        for step in 0..250 {
            let (prefix, counter) = (*rng.pick(&["q", "m"]), rng.below(10));
            let text = format!("{prefix}:{counter}");
            match rng.below(16) {
                0 => drop(engine.delete(&text).unwrap()),
                1 => {
                    let when = ExpiryTime::In(rng.below(3_000) as i64);
                    let condition = quipu_model::ExpiryCondition::Always;
                    engine.execute(&Command::Expire { name: name(&text), when, condition }).unwrap();
                }
                2 => world.clock.advance(Duration::from_millis(500)),
                3 => engine.steps().seal_all().unwrap(),
                4 => drop((0..4).map(|shard| engine.steps().evict(shard)).sum::<usize>()),
                5 => engine.put_namespace("q", at_most(2 + rng.below(7) as u64)).unwrap(),
                6 if step % 7 == 0 => engine.put_namespace("q", Namespace::default()).unwrap(),
                7 if step % 9 == 0 => drop(engine.execute(&Command::Flush).unwrap()),
                8 if step % 5 == 0 => {
                    engine.steps().write_filled();
                    drop(engine);
                    world = after_kill(&world);
                    engine = world.open(options.clone()).unwrap();
                }
                9 => {
                    let other = format!("{prefix}:{}", (counter + 1) % 10);
                    let adds = [&text, &other].map(|text| Command::Add { name: name(text), delta: 1, shard_key: None });
                    loop {
                        let mut turn = engine.turn();
                        let ran = turn.run_transaction(&adds, &[]);
                        drop(turn);
                        match ran {
                            Err(quipu_engine::NotRun::Load(_)) => {
                                let _ = (engine.read(&text).unwrap(), engine.read(&other).unwrap());
                            }
                            _ => break,
                        }
                    }
                }
                _ => drop(engine.add(&text, 1)),
            }
            for prefix in ["q", "m"] {
                let limit = engine.policies().of_namespace(prefix.as_bytes()).limit.clone();
                // Reading each removes what has expired.
                let there = number(&engine, prefix);
                if let Some(limit) = limit {
                    assert_eq!(limit.census.counters(), there, "seed {seed}, step {step}, {prefix}");
                }
            }
        }
    }
}

#[test]
fn counters_made_on_all_threads_at_once_stay_within_their_number() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::open(Options { durability: Durability::Relaxed, ..Options::new(dir.path()) }).unwrap();
    let make = |phase: u32, meanwhile: &dyn Fn()| {
        let made = AtomicI64::new(0);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (engine, made) = (&engine, &made);
                scope.spawn(move || {
                    for counter in 0..400 {
                        let added = engine.add(format!("q:{phase}.{thread}.{counter}"), 1);
                        made.fetch_add(i64::from(added.is_ok()), Ordering::Relaxed);
                    }
                });
            }
            meanwhile();
        });
        made.into_inner() as u64
    };
    // While counters are made it is said how many there may be: each is counted once.
    assert_eq!(make(1, &|| engine.put_namespace("q", at_most(100_000)).unwrap()), 1_600);
    assert_eq!(counted(&engine, "q"), 1_600);
    engine.put_namespace("q", at_most(2_100)).unwrap();
    assert_eq!(make(2, &|| ()), 500);
    assert_eq!((counted(&engine, "q"), engine.stats().counters), (2_100, 2_100));
}

#[test]
fn what_was_begun_before_a_change_is_admitted_anew() {
    let world = World::new(CrashDisk::new(), 1);
    let engine = world.open(small_options(8192)).unwrap();
    let add = |text| Command::Add { name: name(text), delta: 1, shard_key: None };
    let handle = engine.handle("m:count").unwrap();
    type Begun<'b> = Box<dyn Fn(&mut quipu_engine::Turn<'_>) + 'b>;
    let begun: [Begun<'_>; 6] = [
        Box::new(|turn| assert_eq!(turn.run(&add("m:run")), Ok(Reply::Integer(1)))),
        Box::new(|turn| assert!(turn.run_transaction(&[add("m:all"), add("m:run")], &[]).is_ok())),
        Box::new(|turn| {
            let simple_command = quipu_model::SimpleCommand { name: name("m:run"), delta: Some(1) };
            // As a connection does it: what cannot be run this way is run the long way.
            if turn.run_simple(&[simple_command], |_| ()) == 0 {
                turn.run(&add("m:run")).unwrap();
            }
        }),
        Box::new(|turn| {
            let simple_commands =
                ["m:run", "m:all"].map(|text| quipu_model::SimpleCommand { name: name(text), delta: Some(1) });
            if turn.run_simple(&simple_commands, |_| ()) == 0 {
                turn.run(&add("m:run")).unwrap();
            }
        }),
        Box::new(|turn| drop(turn.run_once(&Identity::token(b"p", b"1").unwrap(), &[add("m:once")]).unwrap())),
        Box::new(|turn| assert_eq!(turn.add_by_handle(&handle, 1), Ok(quipu_engine::AddOutcome::Added))),
    ];
    for (index, begun) in begun.iter().enumerate() {
        engine.put_namespace("m", durable(Durability::Memory)).unwrap();
        let mut turn = engine.turn();
        engine.put_namespace("m", durable(Durability::Durable)).unwrap();
        let before = engine.steps().reserved();
        begun(&mut turn);
        turn.finish();
        assert!(engine.steps().reserved() > before, "{index}: it is journaled");
    }
}
