//! Tests that no record exceeds its reserved room. The engine itself checks that with every record,
//! so the tests only run commands.

use std::time::Duration;

use proptest::prelude::*;
use quipu_engine::{Engine, Options};
use quipu_model::{
    Command, ExpiryCondition, ExpiryTime, FrequencySize, Identity, Refusal, Reply, SetCondition, SetExpiry, SetString,
    SketchCommand, TopSize,
};
use quipu_sketch::hll::{REGISTERS, murmur};
use quipu_testkit::CrashDisk;

use super::{NATIVE, REDIS, after_kill, ask, count_top, name, observe, run, set_string, string, uniques};
use crate::world::{World, small_options};

/// An item whose register rises above what a run of Redis's sparse form can say.
const RARE: &[u8] = b"\xba\x09\x9d\xba\0\0\0\0";

fn open() -> (World, Engine) {
    let world = World::new(CrashDisk::new(), 1);
    let engine = world.open(small_options(1 << 20)).unwrap();
    (world, engine)
}

/// A string of Redis's sparse form with one run for each register.
fn long_string(value: u8) -> Vec<u8> {
    let mut string = b"HYLL\x01\0\0\0\0\0\0\0\0\0\0\x80".to_vec();
    string.extend(std::iter::repeat_n(0x80 | (value & 31) << 2, REGISTERS));
    string
}

fn numbers(many: std::ops::Range<u64>) -> Vec<[u8; 8]> {
    many.map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()).collect()
}

fn observed<'a>(to: &'a str, items: &'a [[u8; 8]], dialect: quipu_model::Dialect) -> SketchCommand<'a> {
    SketchCommand::Observe { name: name(to), items: items.iter().map(|item| &item[..]).collect(), dialect }
}

#[test]
fn the_item_that_ends_a_list_has_room() {
    for dialect in [REDIS, NATIVE] {
        for first in [1, 1_999, 2_000] {
            let (world, engine) = open();
            let items = numbers(0..2_100);
            ask(&engine, observed("d:u", &items[..first], dialect));
            for item in items[first..].chunks(1) {
                ask(&engine, observed("d:u", item, dialect));
            }
            let before = uniques(&engine, &["d:u"]);
            assert!(before.abs_diff(2_100) < 80, "{before}");
            engine.steps().write_filled();
            assert_eq!(uniques(&after_kill(&world).open(small_options(1 << 20)).unwrap(), &["d:u"]), before);
        }
    }
}

#[test]
fn an_item_of_high_rank_ends_a_sparse_sketch_at_any_length() {
    assert!((murmur(RARE) >> 14).trailing_zeros() >= 32);
    for before in [0, 1, 100] {
        let (_world, engine) = open();
        ask(&engine, observed("d:h", &numbers(0..before), REDIS));
        let rare = SketchCommand::Observe { name: name("d:h"), items: vec![RARE], dialect: REDIS };
        assert_eq!(ask(&engine, rare), Reply::Integer(1));
        assert!(string(&engine, "d:h").len() > 12_000, "it is dense");
    }
}

#[test]
fn a_long_sparse_string_becomes_dense() {
    let (_world, engine) = open();
    let long = long_string(0);
    assert_eq!(ask(&engine, set_string("d:h", &long)), Reply::Ok);
    assert_eq!(string(&engine, "d:h").len(), 12_304);
    ask(&engine, observe("d:h", &["a", "b"], REDIS));
    let merge = SketchCommand::MergeUnique { names: vec![name("d:i"), name("d:h")], dialect: REDIS };
    assert_eq!(ask(&engine, merge), Reply::Ok);
    // In memory mode it is journaled as a whole under a token.
    assert_eq!(ask(&engine, set_string("m:h", &long)), Reply::Ok);
    let token = Identity::token(b"p", b"1").unwrap();
    engine.execute_once(&token, &Command::Sketch(observe("m:h", &["x"], REDIS))).unwrap();
    assert!(uniques(&engine, &["m:h", "d:i"]) > 1_000);
}

#[test]
fn what_has_expired_is_no_body_to_reckon_with() {
    let (world, engine) = open();
    let items: Vec<String> = (0..9).map(|n| format!("{n}").repeat(1_000)).collect();
    let items: Vec<(&str, u64)> = items.iter().map(|item| (item.as_str(), 1)).collect();
    ask(&engine, observe("d:k", &["a"], REDIS));
    let expire = Command::Expire { name: name("d:k"), when: ExpiryTime::In(1), condition: ExpiryCondition::Always };
    assert_eq!(run(&engine, expire), Reply::Integer(1));
    world.clock.advance(Duration::from_millis(2));
    let counted = ask(&engine, count_top("d:k", &items, Some(TopSize::with_k(10)), NATIVE));
    assert_eq!(counted, Reply::Items(vec![None; 9]));
}

#[test]
fn a_transaction_is_promised_what_each_name_needs() {
    let world = World::new(CrashDisk::new(), 1);
    let engine = world.open(Options { disk_bytes_max: Some(1 << 20), ..small_options(1 << 17) }).unwrap();
    let names: Vec<String> = (0..50).map(|n| format!("d:{n}")).collect();
    let size = FrequencySize::Dimensions { width: 200_000, depth: 1 };
    let mut commands: Vec<Command<'_>> = names
        .iter()
        .map(|to| Command::Sketch(SketchCommand::MakeFrequency { name: name(to), size, dialect: REDIS }))
        .collect();
    commands.extend(names.iter().map(|to| Command::Sketch(super::count_items(to, &[("a", 1)], REDIS))));
    let mut turn = engine.turn();
    let replies = turn.run_transaction(&commands, &[]).unwrap().unwrap();
    turn.finish();
    assert!(replies[..50].iter().all(|reply| *reply == Reply::Ok), "{replies:?}");
    assert!(replies[50..].iter().all(|reply| *reply == Reply::Integers(vec![1])), "{replies:?}");
    assert!(engine.steps().reserved().0 < 20_000, "{:?}", engine.steps().reserved());
}

#[test]
fn a_command_of_too_much_work_is_refused() {
    let (_world, engine) = open();
    let size = |depth| FrequencySize::Dimensions { width: 100, depth };
    let make = |to, depth| SketchCommand::MakeFrequency { name: name(to), size: size(depth), dialect: REDIS };
    for depth in [65, 65_535, u64::MAX] {
        assert!(matches!(ask(&engine, make("d:c", depth)), Reply::Refused(Refusal::BadSize { .. })), "{depth}");
    }
    assert_eq!(ask(&engine, make("d:c", 64)), Reply::Ok);
    let items = numbers(0..2_049);
    let count = |many: usize| SketchCommand::CountItems {
        name: name("d:c"),
        items: items[..many].iter().map(|item| (&item[..], 1)).collect(),
        make: None,
        dialect: REDIS,
    };
    let read = |many: usize| SketchCommand::ReadItems {
        name: name("d:c"),
        items: items[..many].iter().map(|item| &item[..]).collect(),
        dialect: REDIS,
    };
    let before = engine.steps().reserved().0;
    assert!(matches!(ask(&engine, count(2_049)), Reply::Refused(Refusal::BadSize { .. })));
    assert!(matches!(ask(&engine, read(2_049)), Reply::Refused(Refusal::BadSize { .. })));
    assert_eq!(engine.steps().reserved().0, before, "nothing was counted");
    assert!(matches!(ask(&engine, count(2_048)), Reply::Integers(_)));
    assert!(matches!(ask(&engine, read(2_048)), Reply::Integers(_)));
    let written = engine.steps().reserved().0 - before;
    assert!(written < 4 * 64 * 100 + 512, "all of the sketch, not {written} bytes of edits");
}

#[derive(Debug, Clone)]
enum Op {
    Observe { from: u64, many: u64, rare: bool, native: bool },
    Set { value: u8, long: bool },
    Merge { from: usize, native: bool },
    Count { width: u64, depth: u64, make: bool, items: Vec<(u8, u64)>, native: bool },
    MakeFrequency { width: u64, depth: u64, native: bool },
    Sum { from: usize, weight: i64, native: bool },
    List { k: u32, make: bool, items: Vec<(u16, u16, u64)>, native: bool },
    MakeTop { k: u32, native: bool },
    Expire { millis: i64 },
    Persist,
    Take,
    Delete,
    Number,
    Flush,
}

#[derive(Debug, Clone)]
enum Step {
    One(usize, Op),
    All(Vec<(usize, Op)>),
    Once(usize, Op),
    Wait(u64),
    Seal,
    Again,
}

const NAMES: [&str; 5] = ["d:a", "d:b", "r:c", "m:d", "m:e"];

fn op() -> impl Strategy<Value = Op> {
    let many = prop_oneof![4 => 0..4u64, 2 => 0..400u64, 2 => 1_990..2_010u64];
    let by = prop_oneof![6 => 0..9u64, 1 => Just(u64::from(u32::MAX)), 1 => any::<u64>()];
    let length = prop_oneof![4 => 0..20u16, 1 => 0..1_025u16];
    let size = || (prop_oneof![1..9u64, 100..3_000u64], prop_oneof![6 => 1..9u64, 1 => 1..66u64]);
    prop_oneof![
        8 => (0..3_000u64, many, prop::bool::weighted(0.1), any::<bool>())
            .prop_map(|(from, many, rare, native)| Op::Observe { from, many, rare, native }),
        2 => (0..32u8, any::<bool>()).prop_map(|(value, long)| Op::Set { value, long }),
        2 => (0..NAMES.len(), any::<bool>()).prop_map(|(from, native)| Op::Merge { from, native }),
        5 => (size(), any::<bool>(), prop::collection::vec((any::<u8>(), by.clone()), 0..40), any::<bool>())
            .prop_map(|((width, depth), make, items, native)| Op::Count { width, depth, make, items, native }),
        1 => (size(), any::<bool>())
            .prop_map(|((width, depth), native)| Op::MakeFrequency { width, depth, native }),
        1 => (0..NAMES.len(), -2..9i64, any::<bool>()).prop_map(|(from, weight, native)| Op::Sum { from, weight, native }),
        6 => (1..30u32, any::<bool>(), prop::collection::vec((0..300u16, length, by), 0..40), any::<bool>())
            .prop_map(|(k, make, items, native)| Op::List { k, make, items, native }),
        1 => (1..30u32, any::<bool>()).prop_map(|(k, native)| Op::MakeTop { k, native }),
        2 => (-5..20i64).prop_map(|millis| Op::Expire { millis }),
        1 => Just(Op::Persist),
        1 => Just(Op::Take),
        2 => Just(Op::Delete),
        1 => Just(Op::Number),
        1 => Just(Op::Flush),
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let place = || (0..NAMES.len(), op());
    let step = prop_oneof![
        12 => place().prop_map(|(name, op)| Step::One(name, op)),
        6 => prop::collection::vec(place(), 0..8).prop_map(Step::All),
        3 => place().prop_map(|(name, op)| Step::Once(name, op)),
        3 => (1..10u64).prop_map(Step::Wait),
        1 => Just(Step::Seal),
        1 => Just(Step::Again),
    ];
    prop::collection::vec(step, 1..30)
}

/// Bytes that commands borrow.
struct Ground {
    numbers: Vec<[u8; 8]>,
    letters: Vec<u8>,
    strings: Vec<Vec<u8>>,
}

impl Ground {
    fn new() -> Ground {
        let short = |value: u8| {
            let mut string = b"HYLL\x01\0\0\0\0\0\0\0\0\0\0\x80".to_vec();
            string.extend([0x80 | (value & 31) << 2, 0x7f, 0xfe]);
            string
        };
        let strings = (0..32).map(long_string).chain((0..32).map(short)).collect();
        Ground { numbers: numbers(0..6_000), letters: vec![b'x'; 2_048], strings }
    }

    fn command<'g>(&'g self, to: usize, op: &Op) -> Command<'g> {
        let name = |at: usize| name(NAMES[at]);
        let to = name(to);
        let dialect = |native: bool| if native { NATIVE } else { REDIS };
        Command::Sketch(match *op {
            Op::Observe { from, many, rare, native } => {
                let mut items: Vec<&[u8]> =
                    self.numbers[from as usize..(from + many) as usize].iter().map(|item| &item[..]).collect();
                items.extend(rare.then_some(RARE));
                SketchCommand::Observe { name: to, items, dialect: dialect(native) }
            }
            Op::Set { value, long } => {
                let bytes = &self.strings[value as usize + if long { 0 } else { 32 }];
                let (condition, expiry) = (SetCondition::Always, SetExpiry::Remove);
                SketchCommand::SetString(SetString { name: to, bytes, condition, expiry, reply_old: false })
            }
            Op::Merge { from, native } => {
                SketchCommand::MergeUnique { names: vec![to, name(from)], dialect: dialect(native) }
            }
            Op::Count { width, depth, make, ref items, native } => {
                let items = items.iter().map(|(item, by)| (&self.numbers[usize::from(*item)][..], *by)).collect();
                let make = make.then_some(FrequencySize::Dimensions { width, depth });
                SketchCommand::CountItems { name: to, items, make, dialect: dialect(native) }
            }
            Op::MakeFrequency { width, depth, native } => SketchCommand::MakeFrequency {
                name: to,
                size: FrequencySize::Dimensions { width, depth },
                dialect: dialect(native),
            },
            Op::Sum { from, weight, native } => SketchCommand::MergeFrequency {
                names: vec![to, name(from)],
                weights: vec![weight],
                dialect: dialect(native),
            },
            Op::List { k, make, ref items, native } => {
                let items = items.iter().map(|(item, length, by)| {
                    let length = usize::from(*length);
                    // Of few letters there are few items, so the rest is told apart by its number.
                    let item = if length > 8 { &self.letters[..length] } else { &self.numbers[usize::from(*item)][..] };
                    (item, *by)
                });
                let make = make.then(|| TopSize::with_k(k));
                SketchCommand::CountTop { name: to, items: items.collect(), make, dialect: dialect(native) }
            }
            Op::MakeTop { k, native } => {
                SketchCommand::MakeTop { name: to, size: TopSize::with_k(k), dialect: dialect(native) }
            }
            Op::Expire { millis } => {
                return Command::Expire { name: to, when: ExpiryTime::In(millis), condition: ExpiryCondition::Always };
            }
            Op::Persist => return Command::Persist { name: to },
            Op::Take => return Command::Take { name: to },
            Op::Delete => return Command::Delete { names: vec![to] },
            Op::Number => return Command::Add { name: to, delta: 1, shard_key: None },
            Op::Flush => return Command::Flush,
        })
    }
}

proptest! {
    #[test]
    fn no_record_is_longer_than_was_promised(steps in steps()) {
        let ground = Ground::new();
        let options = || Options { journal_bytes_max: 64 << 20, ..small_options(1 << 18) };
        let mut world = World::new(CrashDisk::new(), 1);
        let mut engine = world.open(options()).unwrap();
        for (number, step) in steps.iter().enumerate() {
            match step {
                Step::One(to, op) => drop(run(&engine, ground.command(*to, op))),
                Step::All(ops) => {
                    let commands: Vec<_> = ops.iter().map(|(to, op)| ground.command(*to, op)).collect();
                    // So that none is at rest. One that has expired is gone with the first look,
                    // and known to be with the second.
                    for _ in 0..2 {
                        run(&engine, Command::Exists { names: NAMES.map(name).to_vec() });
                    }
                    let mut turn = engine.turn();
                    let result = turn.run_transaction(&commands, &[]);
                    prop_assert!(result.is_ok(), "{result:?}");
                    turn.finish();
                }
                Step::Once(to, op) => {
                    let token = number.to_string();
                    let identity = Identity::token(b"p", token.as_bytes()).unwrap();
                    match engine.execute_once(&identity, &ground.command(*to, op)) {
                        Err(quipu_engine::Error::Refused(Refusal::NoRoom { reason })) => panic!("{reason}"),
                        result => drop(result),
                    }
                }
                Step::Wait(millis) => world.clock.advance(Duration::from_millis(*millis)),
                Step::Seal => engine.steps().seal_all().unwrap(),
                Step::Again => {
                    engine.steps().write_filled();
                    engine.steps().sync();
                    drop(engine);
                    let now = world.clock_wall();
                    world = after_kill(&world);
                    world.clock.set_wall(quipu_model::Millis(now));
                    engine = world.open(options()).unwrap();
                }
            }
        }
    }
}
