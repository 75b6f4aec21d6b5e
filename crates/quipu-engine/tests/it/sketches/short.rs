//! Tests the fast path for observations: many at a time have the same effect as one by one, in
//! replies, in bodies, and after a crash.

use quipu_engine::{Engine, OBSERVES_MAX};
use quipu_model::{
    Command, Dialect, ExpiryCondition, ExpiryTime, FrequencySize, Name, Namespace, Reply, SketchCommand, TopSize,
};
use quipu_sketch::window::Panes;
use quipu_testkit::{CrashDisk, SeededRng};

use super::{ask, name, run};
use crate::world::{World, small_options};

/// Namespaces of every durability; the last name is a count in between.
const NAMES: [&str; 5] = ["d:a", "r:a", "m:a", "d:b", "d:count"];

/// What one item comes to by itself.
fn alone(engine: &Engine, to: &str, item: &[u8], dialect: Dialect) -> Reply {
    ask(engine, SketchCommand::Observe { name: name(to), items: vec![item], dialect })
}

/// All that is known of a name.
fn shown(engine: &Engine, of: &str) -> Vec<Reply> {
    let count = |dialect| ask(engine, SketchCommand::CountUnique { names: vec![name(of)], dialect });
    vec![run(engine, Command::Read { name: name(of) }), count(Dialect::Redis), count(Dialect::Native)]
}

#[test]
fn what_is_observed_the_short_way_is_what_is_observed_one_by_one() {
    let (mut short, mut long) = (0, 0);
    for seed in 0..12 {
        let (worlds, rng) = ([0, 1].map(|_| World::new(CrashDisk::new(), seed)), SeededRng::new(seed));
        let [many, single] = worlds.each_ref().map(|world| world.open(small_options(1 << 20)).unwrap());
        let below = |bound| rng.below(bound);
        for step in 0..400 {
            let to = NAMES[below(NAMES.len())];
            let dialect = if below(2) == 0 { Dialect::Redis } else { Dialect::Native };
            let items: Vec<Vec<u8>> = (0..1 + below(OBSERVES_MAX + 2))
                .map(|_| format!("item {}", below(1 + 40 * step)).into_bytes())
                .collect();
            let items: Vec<&[u8]> = items.iter().map(Vec::as_slice).collect();
            let mut replies = Vec::new();
            let ran = many.turn().run_observes(name(to), &items, dialect, |changed| {
                replies.push(Reply::Integer(changed.into()));
            });
            match ran {
                true => short += 1,
                false => {
                    assert_eq!(replies, [], "nothing is told of what was not run");
                    long += 1;
                    replies.extend(items.iter().map(|item| alone(&many, to, item, dialect)));
                }
            }
            let wanted: Vec<Reply> = items.iter().map(|item| alone(&single, to, item, dialect)).collect();
            assert_eq!(replies, wanted, "seed {seed}, step {step}, {to}");
            let other = match below(40) {
                0 => Command::Delete { names: vec![name(to)] },
                1 => {
                    Command::Expire { name: name(to), when: ExpiryTime::In(1_000), condition: ExpiryCondition::Always }
                }
                2 => Command::Add { name: name("d:count"), delta: 1, shard_key: None },
                3 | 4 => {
                    // What comes after it is found in the pages of the next, or in the journal.
                    many.steps().seal_all().unwrap();
                    continue;
                }
                _ => continue,
            };
            assert_eq!(run(&many, other.clone()), run(&single, other), "seed {seed}, step {step}, {to}");
            worlds.iter().for_each(|world| world.clock.advance(std::time::Duration::from_millis(300)));
        }
        for of in NAMES {
            assert_eq!(shown(&many, of), shown(&single, of), "seed {seed}, {of}");
        }
        // What is durable is there after a crash, as it was told.
        many.steps().write_filled();
        many.steps().sync();
        let [before, _] = &worlds;
        let after = World::new(before.disk.kill(before.disk.operations()).into_disk(), seed);
        let again = after.open(small_options(1 << 20)).unwrap();
        for of in NAMES.into_iter().filter(|of| !of.starts_with("m:")) {
            assert_eq!(shown(&again, of), shown(&many, of), "seed {seed}, {of}");
        }
    }
    assert!(short > 1_000 && long > 100, "{short} short, {long} long");
}

/// Frequencies and tops, of both forms.
const COUNTED: [&str; 5] = ["d:c", "r:f", "m:t", "d:p", "d:count"];

fn counting<'a>(to: &'a str, items: Vec<(&'a [u8], u64)>) -> SketchCommand<'a> {
    let name: Name<'a> = name(to);
    let size = FrequencySize::Dimensions { width: 40, depth: 3 };
    match to.as_bytes()[2] {
        b'c' => SketchCommand::CountItems { name, items, make: Some(size), dialect: Dialect::Redis },
        b'f' => SketchCommand::CountItems { name, items, make: Some(size), dialect: Dialect::Native },
        b't' => SketchCommand::CountTop { name, items, make: Some(TopSize::with_k(5)), dialect: Dialect::Redis },
        _ => SketchCommand::CountTop { name, items, make: Some(TopSize::with_k(5)), dialect: Dialect::Native },
    }
}

/// What each of many commands of one item would have been told.
fn each(reply: Reply) -> Vec<Reply> {
    match reply {
        Reply::Integers(numbers) => numbers.into_iter().map(|number| Reply::Integers(vec![number])).collect(),
        Reply::Items(items) => items.into_iter().map(|item| Reply::Items(vec![item])).collect(),
        other => panic!("that is no list: {other:?}"),
    }
}

#[test]
fn what_is_counted_the_short_way_is_what_is_counted_one_by_one() {
    let (mut short, mut long) = (0, 0);
    for seed in 0..12 {
        let (worlds, rng) = ([0, 1].map(|_| World::new(CrashDisk::new(), seed)), SeededRng::new(seed));
        let [many, single] = worlds.each_ref().map(|world| world.open(small_options(1 << 20)).unwrap());
        let below = |bound| rng.below(bound);
        for step in 0..300 {
            let to = COUNTED[below(COUNTED.len())];
            let items: Vec<(Vec<u8>, u64)> = (0..1 + below(OBSERVES_MAX))
                .map(|_| {
                    // Now and then more than a cell or a sum can hold, or longer than an item may
                    // be.
                    let by = if below(400) == 0 { [1 << 31, u64::MAX / 2][below(2)] } else { below(3) as u64 };
                    let long = if below(2_000) == 0 { "x".repeat(70_000) } else { String::new() };
                    (format!("item {}{long}", below(1 + step)).into_bytes(), by)
                })
                .collect();
            let items: Vec<(&[u8], u64)> = items.iter().map(|(item, by)| (&item[..], *by)).collect();
            let alone = |engine: &Engine| -> Vec<Reply> {
                items.iter().map(|item| ask(engine, counting(to, vec![*item]))).collect()
            };
            let ran = many.turn().run_counts(counting(to, items.clone()));
            let replies = match ran {
                Some(reply) => {
                    short += 1;
                    each(reply)
                }
                None => {
                    long += 1;
                    alone(&many)
                }
            };
            assert_eq!(replies, alone(&single), "seed {seed}, step {step}, {to}");
            let other = match below(30) {
                0 => Command::Delete { names: vec![name(to)] },
                1 => Command::Add { name: name("d:count"), delta: 1, shard_key: None },
                2 => {
                    many.steps().seal_all().unwrap();
                    continue;
                }
                _ => continue,
            };
            assert_eq!(run(&many, other.clone()), run(&single, other), "seed {seed}, step {step}, {to}");
        }
        many.steps().write_filled();
        many.steps().sync();
        let [before, _] = &worlds;
        let after = World::new(before.disk.kill(before.disk.operations()).into_disk(), seed);
        let again = after.open(small_options(1 << 20)).unwrap();
        // All that is asked again is told what it is told where nothing has crashed.
        for of in COUNTED.into_iter().filter(|of| !of.starts_with("m:")) {
            let told = |engine: &Engine| ask(engine, counting(of, vec![(b"item 1", 1), (b"item 2", 1), (b"new", 1)]));
            assert_eq!(told(&again), told(&single), "seed {seed}, {of}");
        }
    }
    assert!(short > 1_000 && long > 100, "{short} short, {long} long");
}

#[test]
fn what_is_told_of_a_window_is_told_after_each_item() {
    let world = World::new(CrashDisk::new(), 1);
    let mut options = small_options(1 << 20);
    let window = Namespace { window: Panes::parse("1h/4").ok(), ..Namespace::default() };
    options.namespaces.push((Box::from(*b"w"), window));
    let engine = world.open(options).unwrap();
    let items = vec![(&b"a"[..], 1); 3];
    assert_eq!(engine.turn().run_counts(counting("w:f", items.clone())), None);
    ask(&engine, counting("w:f", items.clone()));
    drop(engine);
    // The namespace has no window any more, and the sketch goes on with the one that it was made
    // with.
    let engine = world.open(small_options(1 << 20)).unwrap();
    assert_eq!(engine.turn().run_counts(counting("w:f", items)), None);
    assert_eq!(ask(&engine, counting("w:f", vec![(b"a", 1)])), Reply::Integers(vec![4]));
}
