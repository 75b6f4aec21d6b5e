//! Tests sampled counts: unbiased, with true error bounds, and with the same bounds after every
//! crash.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use quipu_engine::{Engine, Options, PutNamespaceError, SimpleReply};
use quipu_model::{
    AddWithin, Command, Dialect, Durability, Expiry, Identity, Kind, Name, Namespace, Overload, Refusal, Reply,
    SampleRate, SamplingInfo, Set, SetCondition, SetExpiry, SimpleCommand, SketchCommand,
};
use quipu_testkit::{CrashDisk, SeededRng};

use crate::world::{World, refusal, seal_without_cut, small_options};

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

fn sampled(sample: SampleRate) -> Namespace {
    Namespace { sample: Some(sample), ..Namespace::default() }
}

fn overloaded() -> Namespace {
    Namespace { overload: Some(Overload::Sample), ..Namespace::default() }
}

/// A small world in which these are said in the file, beside `d`, of which nothing is.
fn with(namespaces: &[(&str, Namespace)]) -> Options {
    let settings = namespaces.iter().map(|(name, settings)| (name.as_bytes().into(), settings.clone()));
    Options { namespaces: settings.collect(), ..small_options(8192) }
}

fn add(name: Name<'_>, delta: i64) -> Command<'_> {
    Command::Add { name, delta, shard_key: None }
}

fn within(name: Name<'_>) -> Command<'_> {
    let (lower, upper, expiry) = (0, 100, Expiry::Keep);
    Command::AddWithin(AddWithin { name, delta: 1, lower, upper, saturate: true, expiry, expiry_if_none: false })
}

fn set(name: Name<'_>, value: i64) -> Command<'_> {
    let (condition, expiry) = (SetCondition::Always, SetExpiry::Remove);
    Command::Set(Set { name, value, condition, expiry, reply_old: false })
}

/// Everything that was handed over, in another world.
fn after_kill(world: &World) -> World {
    World::new(world.disk.kill(world.disk.operations()).into_disk(), 2)
}

#[test]
fn a_sampled_count_is_unbiased_and_off_by_as_much_as_it_says() {
    const RUNS: u64 = 250;
    // What it begins with, and how it is sampled then: of many events, `auto` counts one in 64.
    for (sample, first, p) in
        [(SampleRate::OneIn(10), 0, 10.0), (SampleRate::OneIn(100), 0, 100.0), (SampleRate::Auto, 4_000_000, 64.0f64)]
    {
        let memory = Namespace { durability: Some(Durability::Memory), ..sampled(sample) };
        let options = with(&[("v", memory)]);
        let (mut off, mut covered, mut truth) = (0.0, 0, 0);
        for seed in 0..RUNS {
            let engine = World::new(CrashDisk::new(), seed).open(options.clone()).unwrap();
            engine.set("v:a", first).unwrap();
            let rng = SeededRng::new(!seed);
            let mut turn = engine.turn();
            truth = first;
            for event in 0..3_000 {
                // Ones, and now and then more at once.
                let delta = if event % 10 == 0 { rng.between(0..=30) } else { 1 };
                truth += delta;
                turn.run(&add(name("v:a"), delta)).unwrap();
                // Another counter that the dice are shared with.
                turn.run(&add(name("v:b"), 1)).unwrap();
            }
            turn.finish();
            let reading = engine.read("v:a").unwrap();
            let (low, high) = reading.bound.unwrap();
            assert!(!reading.exact && reading.kind == Kind::Count);
            assert_eq!(reading.sampled.unwrap().rate, p as u32);
            covered += u32::from((low..=high).contains(&truth));
            off += (reading.value - truth) as f64;
        }
        // With 3,000 events and some; those that came many at once make less noise than this.
        let deviation = ((p - 1.0) * (truth - first) as f64).sqrt();
        let bias = off / RUNS as f64;
        assert!(
            bias.abs() < 4.0 * deviation / (RUNS as f64).sqrt(),
            "{sample:?}: off by {bias} on average, deviation {deviation}"
        );
        assert!(f64::from(covered) >= 0.98 * RUNS as f64, "{sample:?}: {covered} of {RUNS} within their bounds");
        println!(
            "proof: sampling: {sample:?}: {RUNS} runs, off by {bias:.1} on average (deviation {deviation:.1}), {covered} within their bounds"
        );
    }
}

#[test]
fn few_events_are_exact_under_auto_and_many_are_off_by_half_a_percent() {
    let engine = World::new(CrashDisk::new(), 7).open(with(&[("v", sampled(SampleRate::Auto))])).unwrap();
    engine.add("v:a", 39_999).unwrap();
    let reading = engine.read("v:a").unwrap();
    assert_eq!((reading.value, reading.exact, reading.sampled), (39_999, true, None));
    engine.add("v:a", 1).unwrap();
    let reading = engine.read("v:a").unwrap();
    assert_eq!(
        (reading.value, reading.exact, reading.sampled),
        (40_000, false, Some(SamplingInfo { rate: 2, deviation: 200 }))
    );
    let (low, high) = reading.bound.unwrap();
    assert!((39_300..39_420).contains(&low) && (40_580..40_700).contains(&high), "{low} to {high}");
}

#[test]
fn an_add_that_is_not_taken_writes_nothing_but_that_the_counter_exists() {
    let engine = World::new(CrashDisk::new(), 3).open(with(&[("v", sampled(SampleRate::OneIn(100)))])).unwrap();
    while engine.add("v:a", 1).unwrap() > 0 {
        engine.delete("v:a").unwrap();
    }
    assert!(engine.read("v:a").unwrap().exists, "its first add has made it, and was not taken");
    let events = engine.stats().sampled_events;
    let (mut before, mut at, mut taken) = (0, engine.steps().reserved(), 0);
    for _ in 0..2_000 {
        let value = engine.add("v:a", 1).unwrap();
        let now = engine.steps().reserved();
        assert_eq!((value - before, now != at), if value == before { (0, false) } else { (100, true) });
        taken += u32::from(value != before);
        (before, at) = (value, now);
    }
    assert!((5..50).contains(&taken), "{taken}");
    let stats = engine.stats();
    assert_eq!((stats.sampled_events, stats.sampling_rate), (events + 2_000, 1));
    // Of a name that nobody has seen here nobody can say that nothing came to a client that
    // samples.
    let reading = engine.read("v:none").unwrap();
    assert_eq!((reading.exists, reading.exact, reading.value), (false, false, 0));
    assert!(reading.bound.is_some_and(|(low, high)| low == 0 && (500..800).contains(&high)), "{:?}", reading.bound);
    assert_eq!(engine.add("v:zero", 0).unwrap(), 0);
    assert!(engine.read("v:zero").unwrap().exists, "nothing is added exactly");
}

#[test]
fn what_was_never_taken_does_not_begin_as_an_exact_counter_when_sampling_is_over() {
    let mut world = World::new(CrashDisk::new(), 3);
    let ttl = Some(Duration::from_secs(600));
    let mut engine = world.open(with(&[("v", Namespace { ttl, ..sampled(SampleRate::OneIn(1_000)) })])).unwrap();
    let names: Vec<String> = (0..50).map(|n| format!("v:{n}")).collect();
    for text in &names {
        engine.add(text, 1).unwrap();
        assert!(engine.read(text).unwrap().expires_at.is_some(), "its time has begun");
    }
    for round in 0..3 {
        for text in &names {
            let reading = engine.read(text).unwrap();
            let (low, high) = reading.bound.unwrap();
            assert!(
                reading.exists && !reading.exact && (low..=high).contains(&(1 + round)),
                "round {round}: {reading:?}"
            );
            engine.add(text, 1).unwrap();
        }
        drop(engine);
        world = after_kill(&world);
        engine = world.open(with(&[])).unwrap();
    }
    assert!(engine.read("v:never").unwrap().exact);
}

#[test]
fn what_needs_exactness_is_refused_and_says_why() {
    let namespaces = [("v", sampled(SampleRate::OneIn(10))), ("o", overloaded()), ("auto", sampled(SampleRate::Auto))];
    let engine = World::new(CrashDisk::new(), 1).open(with(&namespaces)).unwrap();
    for ns in ["v", "o", "auto"] {
        let text = format!("{ns}:a");
        engine.set(&text, 50).unwrap();
        let before = engine.steps().reserved();
        let what = |what| Ok(Reply::Refused(Refusal::Sampled { what }));
        let mut turn = engine.turn();
        assert_eq!(turn.run(&add(name(&text), -1)), what("a decrement"));
        assert_eq!(turn.run(&within(name(&text))), what("an add with bounds"));
        assert_eq!(turn.run(&set(name(&text), -1)), what("a count below 0"));
        assert_eq!(turn.run_simple(&[SimpleCommand { name: name(&text), delta: Some(-1) }], |_| ()), 0);
        drop(turn);
        assert_eq!((engine.read(&text).unwrap().value, engine.steps().reserved()), (50, before), "nothing was applied");
        let decrement = engine.add(&text, -1).unwrap_err().to_string();
        assert_eq!(decrement, "a decrement needs an exact counter, and this one is sampled; nothing was applied");
    }
    // Other namespaces are what they were.
    assert_eq!(engine.add("d:a", -3).unwrap(), -3);
    assert_eq!(engine.read("d:a").unwrap().sampled, None);
}

#[test]
fn what_was_thinned_before_it_came_is_added_as_it_is_where_that_is_declared() {
    let namespaces = [("v", sampled(SampleRate::OneIn(100))), ("auto", sampled(SampleRate::Auto))];
    let engine = World::new(CrashDisk::new(), 1).open(with(&namespaces)).unwrap();
    let add_sampled =
        |text: &'static str, amount, p| engine.execute(&Command::AddSampled { name: name(text), amount, p });
    let refused = |p| Err(Refusal::NotSampled { p }.into());
    assert_eq!(add_sampled("v:a", 300, 100), Ok(Reply::Integer(300)));
    assert_eq!(add_sampled("v:a", 7, 1), Ok(Reply::Integer(307)), "and not thinned again");
    assert_eq!(add_sampled("v:a", 1_010, 101), refused(101));
    assert_eq!(add_sampled("d:a", 200, 2), refused(2));
    assert_eq!(add_sampled("auto:a", 200, 2), refused(2), "its error would not be what the value says");
    assert_eq!(add_sampled("d:a", 200, 1), Ok(Reply::Integer(200)));
    assert_eq!(add_sampled("v:a", -5, 100), Err(Refusal::Sampled { what: "a decrement" }.into()));
    let reading = engine.read("v:a").unwrap();
    assert_eq!((reading.value, reading.sampled.map(|sampled| sampled.rate)), (307, Some(100)));
    assert!(engine.read("d:a").unwrap().exact);
}

#[test]
fn a_retry_under_its_token_is_told_the_same_and_throws_no_dice() {
    let mut world = World::new(CrashDisk::new(), 5);
    let options = with(&[("v", sampled(SampleRate::OneIn(3)))]);
    let mut engine = world.open(options.clone()).unwrap();
    let mut replies = Vec::new();
    let once = |engine: &Engine, round: usize| {
        let item = format!("t{round}");
        let identity = Identity::token(b"p", item.as_bytes()).unwrap();
        let reply = engine.execute_once(&identity, &add(name("v:a"), 1)).unwrap();
        assert!(matches!(reply, Reply::Integer(_)), "{reply:?}");
        reply
    };
    for round in 0..60 {
        replies.push(once(&engine, round));
        let (value, events) = (engine.read("v:a").unwrap().value, engine.stats().sampled_events);
        assert_eq!(once(&engine, round), replies[round]);
        assert_eq!((engine.read("v:a").unwrap().value, engine.stats().sampled_events), (value, events));
    }
    let skipped = replies.windows(2).filter(|pair| pair[0] == pair[1]).count();
    assert!((20..59).contains(&skipped), "{skipped} of 59 were not taken");
    world = after_kill(&world);
    engine = world.open(options).unwrap();
    for (round, reply) in replies.iter().enumerate() {
        assert_eq!(once(&engine, round), *reply, "after a crash, too");
    }
}

/// Runs commands one way or the other, and tells their replies.
fn run(engine: &Engine, simple_commands: &[SimpleCommand<'_>], short: bool) -> Vec<Reply> {
    let (mut replies, mut turn) = (Vec::new(), engine.turn());
    let mut rest = simple_commands;
    while let Some(first) = rest.first() {
        let mut ran = 0;
        if short {
            ran = turn.run_simple(rest, |reply| {
                replies.push(match reply {
                    SimpleReply::Added(value) => Reply::Integer(value),
                    SimpleReply::Read(value) => Reply::Value(value),
                    SimpleReply::Overflow => Reply::Refused(Refusal::Overflow),
                });
            });
        }
        if ran == 0 {
            replies.push(turn.run(&Command::from(*first)).unwrap());
            ran = 1;
        }
        rest = &rest[ran..];
    }
    turn.finish();
    replies
}

#[test]
fn the_short_way_throws_the_same_dice_as_the_long_one() {
    let names: Vec<String> =
        ["v", "auto", "o", "d"].iter().flat_map(|ns| (0..3).map(move |n| format!("{ns}:{n}"))).collect();
    let namespaces = [("v", sampled(SampleRate::OneIn(7))), ("auto", sampled(SampleRate::Auto)), ("o", overloaded())];
    let mut compared = 0;
    for seed in 0..60 {
        let rng = SeededRng::new(seed);
        let worlds = [seed, seed].map(|seed| World::new(CrashDisk::new(), seed));
        let engines = worlds.each_ref().map(|world| world.open(with(&namespaces)).unwrap());
        for _ in 0..20 {
            let simple_commands: Vec<SimpleCommand<'_>> = (0..1 + rng.below(70))
                .map(|_| {
                    let delta = match rng.below(20) {
                        0 => None,
                        1 => Some(-rng.between(1..=5)),
                        2 => Some(i64::MAX - rng.between(0..=20)),
                        3 => Some(rng.between(0..=200_000)),
                        _ => Some(1),
                    };
                    SimpleCommand { name: name(rng.pick::<String>(&names)), delta }
                })
                .collect();
            let [short, long] =
                [(&engines[0], true), (&engines[1], false)].map(|(engine, short)| run(engine, &simple_commands, short));
            assert_eq!(short, long, "seed {seed}: {simple_commands:?}");
            compared += short.len();
            if rng.chance(20) {
                let text = rng.pick(&names);
                engines.iter().for_each(|engine| engine.set(text, 1_000).unwrap());
            }
            if rng.chance(10) {
                // Slow syncs: the third namespace is sampled, too.
                for (world, engine) in worlds.iter().zip(&engines) {
                    slow_sync(world, engine);
                    engine.steps().adjust_overload_rate();
                }
            }
        }
        for text in &names {
            let [short, long] = engines.each_ref().map(|engine| engine.read(text).unwrap());
            assert_eq!(
                (short.value, short.exists, short.exact),
                (long.value, long.exists, long.exact),
                "seed {seed}: {text}"
            );
        }
        let events = engines.each_ref().map(|engine| engine.stats().sampled_events);
        assert_eq!(events[0], events[1]);
        // What was written down says the same.
        let again = worlds.each_ref().map(|world| after_kill(world).open(with(&namespaces)).unwrap());
        for text in &names {
            let values = again.each_ref().map(|engine| engine.read(text).unwrap().value);
            assert_eq!(values[0], values[1], "seed {seed}: {text}");
            assert_eq!(values[0], engines[0].read(text).unwrap().value, "seed {seed}: {text}");
        }
    }
    println!("proof: sampling: {compared} commands, short way and long way alike");
}

#[test]
fn what_was_sampled_says_so_for_ever_and_what_begins_later_is_exact() {
    let mut world = World::new(CrashDisk::new(), 1);
    let plain = with(&[]);
    // Said in the file, then not any more; said at run time, then not any more.
    for at_run_time in [false, true] {
        let ns = if at_run_time { "r" } else { "f" };
        let [old, gone, new] = ["old", "gone", "new"].map(|text| format!("{ns}:{text}"));
        let settings = sampled(SampleRate::OneIn(10));
        let mut engine = if at_run_time {
            let engine = world.open(plain.clone()).unwrap();
            engine.put_namespace(ns, settings.clone()).unwrap();
            engine
        } else {
            world.open(with(&[(ns, settings.clone())])).unwrap()
        };
        for _ in 0..20 {
            engine.add(&old, 5).unwrap();
            engine.add(&gone, 100).unwrap();
        }
        let value = engine.read(&old).unwrap().value;
        assert_eq!(value % 10, 0);
        if at_run_time {
            engine.put_namespace(ns, Namespace::default()).unwrap();
        } else {
            drop(engine);
            world = after_kill(&world);
            engine = world.open(plain.clone()).unwrap();
        }
        engine.delete(&gone).unwrap();
        for round in 0..5 {
            let reading = engine.read(&old).unwrap();
            assert_eq!((reading.value, reading.exact), (value, false), "{ns}, round {round}");
            assert_eq!(reading.sampled.unwrap().rate, 10);
            assert_eq!(
                engine.add(&old, -1).unwrap_err().to_string(),
                Refusal::Sampled { what: "a decrement" }.to_string()
            );
            for exact in [&gone, &new] {
                assert_eq!(engine.add(exact, 1).unwrap(), round + 1);
                let reading = engine.read(exact).unwrap();
                assert!(
                    reading.exact && reading.sampled.is_none() && reading.bound == Some((round + 1, round + 1)),
                    "{ns}: {reading:?}"
                );
                assert_eq!((engine.add(exact, -7).unwrap(), engine.add(exact, 7).unwrap()), (round - 6, round + 1));
            }
            match round {
                0 => {}
                1 => drop(seal_without_cut(&engine)),
                _ => engine.steps().seal_all().unwrap(),
            }
            drop(engine);
            world = after_kill(&world);
            engine = world.open(plain.clone()).unwrap();
        }
        // Exact adds of now on top of what was sampled do not make it exact; beginning anew does.
        assert_eq!(engine.add(&old, 3).unwrap(), value + 3);
        assert!(!engine.read(&old).unwrap().exact);
        engine.set(&old, 7).unwrap();
        assert!(engine.read(&old).unwrap().exact);
        assert_eq!(engine.add(&old, -8).unwrap(), -1);
        drop(engine);
        world = after_kill(&world);
        assert!(world.open(plain.clone()).unwrap().read(&old).unwrap().exact);
        world = after_kill(&world);
    }
    // Whoever deletes everything has no counter left that was sampled; and begins with ones that
    // are exact.
    let engine = world.open(with(&[("f", sampled(SampleRate::OneIn(4)))])).unwrap();
    engine.add("f:x", 400).unwrap();
    engine.execute(&Command::Flush).unwrap();
    engine.steps().seal_all().unwrap();
    drop(engine);
    world = after_kill(&world);
    let engine = world.open(plain).unwrap();
    engine.add("f:x", 1).unwrap();
    assert!(engine.read("f:x").unwrap().exact);
}

#[test]
fn many_sets_in_one_millisecond_do_not_pass_for_later_than_the_sampling() {
    let world = World::new(CrashDisk::new(), 1);
    let engine = world.open(with(&[])).unwrap();
    engine.put_namespace("v", sampled(SampleRate::OneIn(2))).unwrap();
    // The clock stands still: epochs run ahead of it.
    for round in 0..50 {
        engine.set("v:a", round).unwrap();
    }
    engine.add("v:a", 1_001).unwrap();
    engine.put_namespace("v", Namespace::default()).unwrap();
    assert!(!engine.read("v:a").unwrap().exact, "it was sampled in its last epoch");
    engine.set("v:b", 1).unwrap();
    engine.set("v:a", 1).unwrap();
    engine.add("v:c", 1).unwrap();
    for text in ["v:a", "v:b", "v:c"] {
        assert!(engine.read(text).unwrap().exact, "{text}");
    }
}

/// How sampling begins and ends in a world that loses power.
#[derive(Debug, Clone, Copy, PartialEq)]
enum SamplingTrigger {
    /// It is said at run time.
    Word,
    /// The journal cannot keep up, and then it can.
    Overload,
}

#[test]
fn after_any_loss_of_power_nothing_that_was_sampled_passes_for_exact() {
    /// Adds before sampling begins, until it ends, and in all.
    const STEPS: [i64; 3] = [10, 30, 40];
    let rng = SeededRng::new(7);
    let (mut states, mut inexact) = (0, 0);
    for (seed, trigger, durability) in (0..10).flat_map(|seed| {
        let modes = [
            (SamplingTrigger::Word, Durability::Durable),
            (SamplingTrigger::Overload, Durability::Durable),
            (SamplingTrigger::Word, Durability::Memory),
        ];
        modes.map(|(trigger, durability)| (seed, trigger, durability))
    }) {
        let world = World::new(CrashDisk::new(), seed);
        let overload = if trigger == SamplingTrigger::Overload { Some(Overload::Sample) } else { None };
        let settings = Namespace { overload, ..Namespace::with_durability(durability) };
        let engine = world.open(with(&[("v", settings.clone())])).unwrap();
        let begun = world.disk.operations();
        // When the disk had seen so much: what was told, and the truth.
        let (mut history, mut truth) = (vec![(begun, 0, 0)], 0);
        for step in 0..STEPS[2] {
            if rng.chance(15) {
                engine.steps().seal_all().unwrap();
            }
            match (trigger, step) {
                (SamplingTrigger::Word, step) if step == STEPS[0] => {
                    engine.put_namespace("v", sampled(SampleRate::OneIn(5))).unwrap();
                }
                (SamplingTrigger::Word, step) if step == STEPS[1] => {
                    engine.put_namespace("v", Namespace::default()).unwrap()
                }
                (SamplingTrigger::Overload, step) if step == STEPS[0] => {
                    for _ in 0..2 {
                        slow_sync(&world, &engine);
                        engine.steps().adjust_overload_rate();
                    }
                    assert_eq!(engine.stats().sampling_rate, 4);
                }
                (SamplingTrigger::Overload, step) if step == STEPS[1] => {
                    for _ in 0..2 {
                        world.clock.advance(Duration::from_secs(1));
                        engine.steps().adjust_overload_rate();
                    }
                    assert_eq!(engine.stats().sampling_rate, 1);
                }
                _ => {}
            }
            let value = engine.add("v:a", 1).unwrap();
            truth += 1;
            history.push((world.disk.operations(), value, truth));
        }
        engine.steps().seal_all().unwrap();
        let operations = world.disk.operations();
        drop(engine);
        for _ in 0..40 {
            let at = begun + rng.below(operations + 1 - begun);
            let image = if rng.chance(80) { world.disk.crash(at, &rng) } else { world.disk.kill(at) };
            let world = World::new(image.into_disk(), 3);
            // By a file that says nothing of sampling: it is the directory that remembers.
            let context = format!("seed {seed}, {trigger:?}, {durability}, crash after {at}");
            let engine = world.open(with(&[])).unwrap_or_else(|error| panic!("{context}: {error}"));
            let reading = engine.read("v:a").unwrap();
            let last = history.iter().rposition(|(done, ..)| *done <= at).unwrap();
            let ((_, shown, truth), next) = (history[last], history.get(last + 1));
            let value = reading.value;
            if durability == Durability::Durable {
                assert!(
                    value >= shown && value <= next.map_or(shown, |next| next.1),
                    "{context}: {value} after {shown}"
                );
            }
            if reading.exact {
                assert!(value <= STEPS[0], "{context}: {value} may have been sampled");
                assert!(
                    durability == Durability::Memory || (truth..=truth + 1).contains(&value),
                    "{context}: {value} of {truth}"
                );
            } else {
                let (low, high) = reading.bound.unwrap();
                assert!(low <= value && value <= high && reading.sampled.is_some(), "{context}: {reading:?}");
                inexact += 1;
            }
            states += 1;
        }
    }
    assert!(inexact > states / 4, "{inexact} of {states}");
    println!(
        "proof: sampling: {states} crashes, {inexact} of them with a count that may be off, none of which passed for exact"
    );
}

#[test]
fn adds_go_on_while_sampling_comes_and_goes_and_the_truth_is_within_the_bounds() {
    const THREADS: usize = 3;
    let dir = tempfile::tempdir().unwrap();
    let options =
        || Options { table_shards: 4, split_after: 2, durability: Durability::Relaxed, ..Options::new(dir.path()) };
    let engine = Engine::open(options()).unwrap();
    let (stop, added) = (AtomicBool::new(false), AtomicI64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (engine, stop, added) = (&engine, &stop, &added);
            scope.spawn(move || {
                let handle = engine.handle("x:a").unwrap();
                let mut last = 0;
                while !stop.load(Ordering::Relaxed) {
                    let delta = if thread == 0 {
                        handle.count(1).unwrap();
                        1
                    } else {
                        let value = engine.add("x:a", 3).unwrap();
                        assert!(value >= last, "{value} after {last}");
                        last = value;
                        3
                    };
                    added.fetch_add(delta, Ordering::Relaxed);
                }
                handle.flush().unwrap();
            });
        }
        for sample in [SampleRate::OneIn(10), SampleRate::Auto, SampleRate::OneIn(3)].into_iter().cycle().take(12) {
            engine.put_namespace("x", sampled(sample)).unwrap();
            engine.put_namespace("x", Namespace::default()).unwrap();
        }
        engine.put_namespace("x", sampled(SampleRate::OneIn(10))).unwrap();
        let target = added.load(Ordering::Relaxed) + 3_000;
        while added.load(Ordering::Relaxed) < target {
            std::thread::yield_now();
        }
        stop.store(true, Ordering::Relaxed);
    });
    for round in 0..2 {
        let (reading, truth) = (engine.read("x:a").unwrap(), added.load(Ordering::Relaxed));
        // Twice as far as the bounds, which are three deviations: the dice are others in every run.
        let (_, high) = reading.bound.unwrap();
        let off = (truth - reading.value).abs();
        assert!(!reading.exact && off <= 2 * (high - reading.value), "round {round}: {truth}, {reading:?}");
        if round == 0 {
            engine.put_namespace("x", Namespace::default()).unwrap();
        }
    }
}

#[test]
fn what_cannot_be_together_is_refused_by_name() {
    let world = World::new(CrashDisk::new(), 1);
    let top = Namespace { kind: Some(Kind::Top), ..Namespace::default() };
    let engine = world.open(with(&[("t", top.clone())])).unwrap();
    let mistakes = |name: &str, settings| match engine.put_namespace(name, settings) {
        Err(PutNamespaceError::Mistakes(mistakes)) => mistakes.join("; "),
        other => panic!("{other:?}"),
    };
    let expected = "sample: only counts are sampled, and kind is top; leave one out";
    assert_eq!(mistakes("t", sampled(SampleRate::Auto)), expected, "with what the file says");
    assert_eq!(mistakes("x", Namespace { sample: Some(SampleRate::Auto), ..top.clone() }), expected);
    let window = Some(quipu_sketch::window::Panes::parse("1h/60").unwrap());
    let expected = "overload: only counts are sampled, and window is of approximate kinds; leave one out";
    assert_eq!(mistakes("x", Namespace { window, ..overloaded() }), expected);
    let file = with(&[("t", Namespace { sample: Some(SampleRate::OneIn(2)), ..top })]);
    let refused = refusal(World::new(CrashDisk::new(), 1).open(file));
    assert_eq!(refused, "namespace t: sample: only counts are sampled, and kind is top; leave one out");
}

#[test]
fn adds_that_return_no_value_are_sampled_add_by_add_and_have_no_lanes() {
    let world = World::new(CrashDisk::new(), 6);
    let engine = world.open(with(&[("v", sampled(SampleRate::OneIn(10)))])).unwrap();
    let [before, handle] = ["x:a", "v:a"].map(|text| engine.handle(text).unwrap());
    engine.add("v:a", 100).unwrap();
    for _ in 0..2_000 {
        handle.count(1).unwrap();
        before.count(1).unwrap();
    }
    assert!(!handle.is_split() && before.is_split());
    assert!(handle.count(-1).is_err());
    handle.flush().unwrap();
    let value = engine.read("v:a").unwrap().value;
    assert!(value % 10 == 0 && (1_200..3_000).contains(&value), "{value}");
    // What was counted in lanes before counts, and there are none from then on.
    engine.put_namespace("x", sampled(SampleRate::OneIn(10))).unwrap();
    assert!(!before.is_split());
    assert_eq!(engine.read("x:a").unwrap().value, 2_000);
    (0..100).for_each(|_| before.count(1).unwrap());
    assert!(!before.is_split() && before.count(-1).is_err());
    // Nor has what was sampled any when it is over; but what begins then has.
    engine.put_namespace("x", Namespace::default()).unwrap();
    (0..100).for_each(|_| before.count(1).unwrap());
    assert!(!before.is_split() && before.count(-1).is_err());
    engine.set("x:a", 5).unwrap();
    (0..100).for_each(|_| before.count(1).unwrap());
    assert!(before.is_split());
    before.count(-1).unwrap();
    assert_eq!(engine.read("x:a").unwrap().value, 104);
}

#[test]
fn transactions_sketches_and_copies_go_along() {
    let world = World::new(CrashDisk::new(), 6);
    let engine = world.open(with(&[("v", sampled(SampleRate::OneIn(4)))])).unwrap();
    let adds = [add(name("v:a"), 40), add(name("d:a"), 3), add(name("v:a"), 4), add(name("v:a"), -1)];
    let mut turn = engine.turn();
    let replies = turn.run_transaction(&adds, &[]).unwrap().unwrap();
    turn.finish();
    let refused = Reply::Refused(Refusal::Sampled { what: "a decrement" });
    assert_eq!(replies, [Reply::Integer(40), Reply::Integer(3), Reply::Integer(44), refused]);
    // Sketches are what they are, while their namespace is sampled and after it.
    let observe = |text: &'static str, items: Vec<&'static [u8]>| {
        Command::Sketch(SketchCommand::Observe { name: name(text), items, dialect: Dialect::Native })
    };
    engine.execute(&observe("v:u", vec![b"x", b"y"])).unwrap();
    engine.put_namespace("v", Namespace { sample: Some(SampleRate::OneIn(5)), ..Namespace::default() }).unwrap();
    engine.backup("/copy").unwrap();
    drop(engine);
    let world = after_kill(&world);
    let plain = Options { data: "/copy".into(), ..with(&[]) };
    let engine = world.open(plain).unwrap();
    engine.put_namespace("v", Namespace::default()).unwrap();
    engine.execute(&observe("v:u", vec![b"y", b"z"])).unwrap();
    engine.execute(&observe("v:later", vec![b"y"])).unwrap();
    let [count, unique, later] = ["v:a", "v:u", "v:later"].map(|text| engine.read(text).unwrap());
    assert_eq!((count.value, count.exact, count.sampled.map(|sampled| sampled.rate)), (44, false, Some(5)));
    assert_eq!((unique.kind, unique.value, unique.sampled), (Kind::Unique, 3, None));
    assert_eq!((later.value, later.sampled), (1, None));
    drop(engine);
    let world = after_kill(&world);
    let engine = world.open(Options { data: "/copy".into(), ..with(&[]) }).unwrap();
    assert_eq!((engine.read("v:u").unwrap().value, engine.read("v:later").unwrap().value), (3, 1));
}

// ---- overload
// -------------------------------------------------------------------------------------------------------------------

/// A sync that takes long by the clock.
fn slow_sync(world: &World, engine: &Engine) {
    let clock = world.clock.clone();
    world.disk.on_sync(Some(Arc::new(move || clock.advance(Duration::from_millis(120)))));
    engine.add("d:beside", 1).unwrap();
    world.disk.on_sync(None);
}

#[test]
fn while_syncs_are_slow_adds_are_sampled_and_it_is_told() {
    let mut world = World::new(CrashDisk::new(), 4);
    let options = with(&[("o", overloaded())]);
    let mut engine = world.open(options.clone()).unwrap();
    let rate = |engine: &Engine| engine.stats().sampling_rate;
    engine.steps().adjust_overload_rate();
    for text in ["o:a", "d:a"] {
        engine.add(text, 1_000).unwrap();
    }
    assert!(engine.read("o:a").unwrap().exact, "nothing has happened yet");
    for expected in [2, 4, 8] {
        slow_sync(&world, &engine);
        engine.steps().adjust_overload_rate();
        assert_eq!(rate(&engine), expected);
    }
    let before = engine.steps().reserved();
    let mut written = 0;
    for _ in 0..800 {
        let at = engine.steps().reserved();
        engine.add("o:a", 1).unwrap();
        written += u32::from(engine.steps().reserved() != at);
    }
    assert!((60..160).contains(&written) && engine.steps().reserved() > before, "{written} of 800 were written down");
    let reading = engine.read("o:a").unwrap();
    assert_eq!((reading.exact, reading.sampled.unwrap().rate, reading.value % 8), (false, 8, 0));
    let (low, high) = reading.bound.unwrap();
    assert!((low..=high).contains(&1_800), "{reading:?}");
    assert!(engine.read("d:a").unwrap().exact && engine.stats().sampled_events == 800);
    // A second without a sign, and another, and another.
    for expected in [4, 2, 1, 1] {
        world.clock.advance(Duration::from_secs(1));
        engine.steps().adjust_overload_rate();
        assert_eq!(rate(&engine), expected);
    }
    let value = engine.read("o:a").unwrap().value;
    assert_eq!((engine.add("o:a", 1).unwrap(), engine.add("o:later", 1).unwrap()), (value + 1, 1));
    for round in 0..2 {
        let [old, new] = ["o:a", "o:later"].map(|text| engine.read(text).unwrap());
        assert_eq!((old.exact, old.sampled.unwrap().rate), (false, 8), "it was off, and still is; round {round}");
        assert!(new.exact, "it has begun after that; round {round}");
        engine.steps().seal_all().unwrap();
        drop(engine);
        world = after_kill(&world);
        engine = world.open(options.clone()).unwrap();
    }
    // In the middle of another: who is killed then does not forget, and counts all when it is back.
    slow_sync(&world, &engine);
    engine.steps().adjust_overload_rate();
    assert_eq!(rate(&engine), 2);
    while engine.add("o:third", 1).unwrap() == 0 {}
    drop(engine);
    world = after_kill(&world);
    engine = world.open(options).unwrap();
    assert_eq!(rate(&engine), 1);
    assert!(!engine.read("o:third").unwrap().exact && !engine.read("o:later").unwrap().exact);
    assert_eq!(engine.add("o:fourth", 1).unwrap(), 1);
    assert!(engine.read("o:fourth").unwrap().exact);
}

#[test]
fn a_full_disk_is_sampled_for_as_long_as_there_is_room_and_then_refuses_whatever_the_dice_say() {
    let world = World::new(CrashDisk::new(), 4);
    let engine = world.open(with(&[("o", overloaded())])).unwrap();
    engine.add("o:a", 1).unwrap();
    engine.steps().adjust_overload_rate();
    world.disk.capacity(Some(world.disk.bytes_used()));
    // The writing runs into it.
    while engine.steps().prepare_segments().is_ok() && !engine.stats().disk_full {
        engine.add("d:a", 1).unwrap();
    }
    for _ in 0..12 {
        world.clock.advance(Duration::from_millis(100));
        engine.steps().adjust_overload_rate();
    }
    assert_eq!(engine.stats().sampling_rate, 1 << 10);
    let mut acked = 0u64;
    let refused = loop {
        match engine.add("o:a", 1) {
            Ok(_) => acked += 1,
            Err(error) => break error,
        }
        // What was given back for adds that were not taken is taken by ones that are.
        if acked > 3_000 && engine.add("d:a", 1).is_err() {
            break engine.add("d:b", 1).unwrap_err();
        }
    };
    assert!(refused.to_string().contains("no room"), "{refused}");
    assert!(acked > 3_000, "{acked}: adds that are not taken take no room");
    let value = engine.read("o:a").unwrap().value;
    let outcomes: Vec<bool> = (0..200).map(|_| engine.add("o:a", 1).is_ok()).collect();
    assert!(outcomes.iter().all(|ok| !*ok), "those that would not be taken are refused as well");
    assert_eq!(engine.read("o:a").unwrap().value, value);
    world.disk.capacity(None);
    engine.steps().prepare_segments().unwrap();
    engine.add("o:a", 1).unwrap();
}

#[test]
fn a_node_whose_disk_is_full_to_the_last_byte_starts_and_says_later_that_sampling_is_over() {
    let world = World::new(CrashDisk::new(), 4);
    let options = with(&[("o", overloaded()), ("p", overloaded())]);
    let engine = world.open(options.clone()).unwrap();
    slow_sync(&world, &engine);
    engine.steps().adjust_overload_rate();
    engine.add("o:a", 100).unwrap();
    world.disk.capacity(Some(world.disk.bytes_used()));
    while engine.add("d:a", 1).is_ok() {}
    drop(engine);
    let mut world = after_kill(&world);
    for _ in 0..3 {
        world.disk.capacity(Some(world.disk.bytes_used()));
        let engine = world.open(options.clone()).unwrap();
        assert!(engine.add("o:a", 1).is_err(), "there is no room");
        assert!(!engine.read("o:a").unwrap().exact && !engine.read("o:new").unwrap().exact);
        drop(engine);
        world = after_kill(&world);
    }
    world.disk.capacity(None);
    let engine = world.open(options).unwrap();
    engine.steps().prepare_segments().unwrap();
    engine.steps().adjust_overload_rate();
    engine.add("o:new", 1).unwrap();
    assert!(!engine.read("o:a").unwrap().exact && engine.read("o:new").unwrap().exact);
}

#[test]
fn a_real_engine_on_a_slow_disk_samples_by_itself_and_stops_by_itself() {
    let world = World::new(CrashDisk::new(), 4);
    let clock = world.clock.clone();
    let engine = Engine::open_with_threads(with(&[("o", overloaded())]), world.environment()).unwrap();
    engine.add("o:a", 1).unwrap();
    world.disk.on_sync(Some(Arc::new(move || clock.advance(Duration::from_millis(200)))));
    // The tend thread looks ten times a second.
    let mut added = 1;
    while engine.stats().sampling_rate < 8 {
        engine.add("o:a", 1).unwrap();
        engine.add("d:a", 1).unwrap();
        added += 1;
    }
    assert!(engine.stats().sampled_events > 0 && !engine.read("o:a").unwrap().exact);
    world.disk.on_sync(None);
    while engine.stats().sampling_rate > 1 {
        world.clock.advance(Duration::from_secs(1));
        std::thread::yield_now();
    }
    let reading = engine.read("o:a").unwrap();
    // Twice as far as the bounds: how many adds there were is the threads' to say.
    let (_, high) = reading.bound.unwrap();
    assert!(!reading.exact && (added - reading.value).abs() <= 2 * (high - reading.value), "{added}: {reading:?}");
    engine.close().unwrap();
}
