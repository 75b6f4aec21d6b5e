//! Tests sketches by example. Loss of power is in `crash`, room in the journal in `room`, many
//! items at once in `short`, sketches over time in `windows`.

mod crash;
mod room;
mod short;
mod windows;

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use quipu_engine::offline::audit;
use quipu_engine::offline::inspect;
use quipu_engine::{Engine, Environment, Error, Options};
use quipu_model::{
    AddWithin, AuxRecord, AuxRecordVisitor, Cell, CellVisitor, Command, CopyProgress, Dialect, Durability, Expiry,
    ExpiryCondition, ExpiryForm, ExpiryTime, Fraction, FrequencySize, Identity, Kind, KindAndDialect, Ledger,
    LedgerError, LedgerStats, ListNames, Name, Namespace, OwnCellsVisitor, Pattern, Refusal, Relation, Reply,
    SealedCell, Set, SetCondition, SetExpiry, SetString, SimpleCommand, SketchCommand, TopSize,
};
use quipu_testkit::{CrashDisk, FileLedger};

use crate::world::{DATA, World, ledger_opener, seal_without_cut, small_options};

pub fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

pub fn run(engine: &Engine, command: Command<'_>) -> Reply {
    match engine.execute(&command) {
        Err(Error::Refused(refusal)) => Reply::Refused(refusal),
        reply => reply.unwrap(),
    }
}

pub fn ask(engine: &Engine, command: SketchCommand<'_>) -> Reply {
    run(engine, Command::Sketch(command))
}

const REDIS: Dialect = Dialect::Redis;
const NATIVE: Dialect = Dialect::Native;

pub fn observe<'a>(to: &'a str, items: &[&'a str], dialect: Dialect) -> SketchCommand<'a> {
    SketchCommand::Observe { name: name(to), items: items.iter().map(|item| item.as_bytes()).collect(), dialect }
}

pub fn count_unique<'a>(names: &[&'a str], dialect: Dialect) -> SketchCommand<'a> {
    SketchCommand::CountUnique { names: names.iter().map(|text| name(text)).collect(), dialect }
}

fn uniques(engine: &Engine, names: &[&str]) -> u64 {
    match ask(engine, count_unique(names, NATIVE)) {
        Reply::Estimate(estimate) => estimate.value,
        reply => panic!("{reply:?}"),
    }
}

fn merge<'a>(names: &[&'a str], dialect: Dialect) -> SketchCommand<'a> {
    SketchCommand::MergeUnique { names: names.iter().map(|text| name(text)).collect(), dialect }
}

const SIZE: FrequencySize = FrequencySize::Dimensions { width: 600, depth: 3 };

fn make_frequency(to: &str, dialect: Dialect) -> SketchCommand<'_> {
    SketchCommand::MakeFrequency { name: name(to), size: SIZE, dialect }
}

pub fn count_items<'a>(to: &'a str, items: &[(&'a str, u64)], dialect: Dialect) -> SketchCommand<'a> {
    let items = items.iter().map(|(item, by)| (item.as_bytes(), *by)).collect();
    SketchCommand::CountItems { name: name(to), items, make: None, dialect }
}

pub fn read_items<'a>(of: &'a str, items: &[&'a str], dialect: Dialect) -> SketchCommand<'a> {
    SketchCommand::ReadItems { name: name(of), items: items.iter().map(|item| item.as_bytes()).collect(), dialect }
}

pub fn count_top<'a>(
    to: &'a str,
    items: &[(&'a str, u64)],
    make: Option<TopSize>,
    dialect: Dialect,
) -> SketchCommand<'a> {
    let items = items.iter().map(|(item, by)| (item.as_bytes(), *by)).collect();
    SketchCommand::CountTop { name: name(to), items, make, dialect }
}

fn string(engine: &Engine, of: &str) -> Box<[u8]> {
    match run(engine, Command::Read { name: name(of) }) {
        Reply::Bytes(bytes) => bytes,
        reply => panic!("{reply:?}"),
    }
}

fn set_string<'a>(to: &'a str, bytes: &'a [u8]) -> SketchCommand<'a> {
    let (condition, expiry) = (SetCondition::Always, SetExpiry::Remove);
    SketchCommand::SetString(SetString { name: name(to), bytes, condition, expiry, reply_old: false })
}

fn refused(refusal: Refusal) -> Reply {
    Reply::Refused(refusal)
}

fn after_kill(world: &World) -> World {
    World::new(world.disk.kill(world.disk.operations()).into_disk(), 2)
}

fn open() -> (World, Engine) {
    let world = World::new(CrashDisk::new(), 1);
    let engine = world.open(small_options(8192)).unwrap();
    (world, engine)
}

/// One sketch of every kind and form.
fn fill(engine: &Engine) {
    assert_eq!(ask(engine, observe("d:hll", &["a", "b"], REDIS)), Reply::Integer(1));
    assert_eq!(ask(engine, observe("d:unique", &["a", "b", "c"], NATIVE)), Reply::Integer(1));
    for (text, dialect) in [("d:cms", REDIS), ("d:frequency", NATIVE)] {
        assert_eq!(ask(engine, make_frequency(text, dialect)), Reply::Ok);
        assert_eq!(ask(engine, count_items(text, &[("a", 5), ("b", 1)], dialect)), Reply::Integers(vec![5, 1]));
    }
    for (text, dialect) in [("d:topk", REDIS), ("d:top", NATIVE)] {
        let make = SketchCommand::MakeTop { name: name(text), size: TopSize::with_k(2), dialect };
        assert_eq!(ask(engine, make), Reply::Ok);
        let counted = ask(engine, count_top(text, &[("a", 9), ("b", 5), ("c", 7)], None, dialect));
        assert_eq!(counted, Reply::Items(vec![None, None, Some(Box::from(*b"b"))]));
    }
}

fn check(engine: &Engine) {
    assert_eq!((uniques(engine, &["d:hll"]), uniques(engine, &["d:unique"])), (2, 3));
    for text in ["d:cms", "d:frequency"] {
        let Reply::Frequencies(known) = ask(engine, read_items(text, &["a", "b", "c"], NATIVE)) else { panic!() };
        let rows: Vec<_> = known.rows.iter().map(|row| (row.at_most, row.typical)).collect();
        assert_eq!((rows, known.total), (vec![(5, 5), (1, 1), (0, 0)], 6), "{text}");
    }
    assert_eq!(ask(engine, read_items("d:cms", &["a", "b"], REDIS)), Reply::Integers(vec![5, 1]));
    for text in ["d:topk", "d:top"] {
        let Reply::TopItems(rows) = ask(engine, SketchCommand::ListTop { name: name(text), dialect: NATIVE }) else {
            panic!()
        };
        let rows: Vec<_> = rows.iter().map(|row| (&*row.item, row.at_most, row.at_least, row.certain)).collect();
        assert_eq!(rows, [(&b"a"[..], 9, 9, true), (b"c", 7, 7, true)], "{text}");
    }
    assert_eq!(engine.stats().counters, 6);
}

#[test]
fn every_kind_counts_and_comes_back_after_a_kill_a_seal_and_a_clean_stop() {
    let (mut world, mut engine) = open();
    fill(&engine);
    for round in 0..4 {
        check(&engine);
        match round {
            0 => {}
            1 => drop(seal_without_cut(&engine)),
            2 => engine.steps().seal_all().unwrap(),
            _ => engine.close().unwrap(),
        }
        drop(engine);
        world = after_kill(&world);
        engine = world.open(small_options(8192)).unwrap();
    }
    check(&engine);
    assert_eq!(ask(&engine, observe("d:hll", &["a", "b"], REDIS)), Reply::Integer(0));
    assert_eq!(ask(&engine, observe("d:unique", &["c", "d"], NATIVE)), Reply::Integer(1));
    assert_eq!(uniques(&engine, &["d:unique"]), 4);
}

#[test]
fn sketches_come_back_from_the_ledger_of_this_machine() {
    let dir = tempfile::tempdir().unwrap();
    let open = || Engine::open(Options { table_shards: 4, ..Options::new(dir.path()) }).unwrap();
    let engine = open();
    fill(&engine);
    let items: Vec<String> = (0..20_000).map(|n| n.to_string()).collect();
    let many = || items.iter().map(|item| item.as_bytes()).collect();
    for (text, dialect) in [("d:many", REDIS), ("d:more", NATIVE)] {
        ask(&engine, SketchCommand::Observe { name: name(text), items: many(), dialect });
    }
    engine.steps().seal_all().unwrap();
    assert!(engine.delete("d:many").unwrap());
    ask(&engine, observe("d:more", &["another"], NATIVE));
    let more = uniques(&engine, &["d:more"]);
    for _ in 0..2 {
        engine.steps().seal_all().unwrap();
    }
    engine.close().unwrap();
    drop(engine);
    let engine = open();
    assert_eq!((uniques(&engine, &["d:more"]), uniques(&engine, &["d:many"])), (more, 0));
    assert!(more.abs_diff(20_001) < 600, "{more}");
    assert!(engine.delete("d:more").unwrap());
    check(&engine);
}

#[test]
fn uniques_are_counted_merged_and_compared() {
    let (_world, engine) = open();
    let redis = |names: &[&str]| match ask(&engine, count_unique(names, REDIS)) {
        Reply::Estimate(estimate) => estimate.value,
        reply => panic!("{reply:?}"),
    };
    assert_eq!(ask(&engine, observe("d:a", &["x", "y"], REDIS)), Reply::Integer(1));
    assert_eq!(ask(&engine, observe("d:b", &["y", "z"], REDIS)), Reply::Integer(1));
    assert_eq!(ask(&engine, observe("d:empty", &[], REDIS)), Reply::Integer(1), "it was made");
    assert_eq!(ask(&engine, observe("d:empty", &[], REDIS)), Reply::Integer(0));
    assert_eq!((redis(&["d:a", "d:b", "d:none", "d:empty"]), redis(&["d:none"])), (3, 0));
    assert_eq!(ask(&engine, merge(&["d:a", "d:a", "d:b", "d:none"], REDIS)), Reply::Ok);
    assert_eq!((redis(&["d:a"]), redis(&["d:b"])), (3, 2));
    assert_eq!(ask(&engine, merge(&["d:new", "d:none"], REDIS)), Reply::Ok);
    assert_eq!(redis(&["d:new"]), 0);
    assert!(engine.delete("d:new").unwrap());
    ask(&engine, observe("d:n", &["x", "y", "z"], NATIVE));
    ask(&engine, observe("d:m", &["z", "w"], NATIVE));
    assert_eq!(ask(&engine, merge(&["d:both", "d:n", "d:m"], NATIVE)), Reply::Ok);
    assert_eq!((uniques(&engine, &["d:both"]), uniques(&engine, &["d:n", "d:m"])), (4, 4));
    let related = |relation| {
        let names = [name("d:n"), name("d:m")];
        let Reply::Estimate(known) = ask(&engine, SketchCommand::RelateUnique { names, relation }) else { panic!() };
        assert!(known.low <= known.value && known.value <= known.high);
        known.value
    };
    assert_eq!((related(Relation::Intersection), related(Relation::Difference)), (1, 2));
    assert_eq!(ask(&engine, observe("d:n", &["q"], REDIS)), refused(Refusal::NotHll { found: found("d:unique") }));
    assert!(matches!(ask(&engine, merge(&["d:n", "d:a"], NATIVE)), Reply::Refused(Refusal::NotOffered { .. })));
    assert_eq!(uniques(&engine, &["d:n"]), 3, "nothing was merged");
}

#[test]
fn a_sketch_of_redis_is_a_string() {
    let (_world, engine) = open();
    ask(&engine, observe("d:a", &["x", "y"], REDIS));
    let string = string(&engine, "d:a");
    assert!(string.starts_with(b"HYLL"));
    let length = ask(&engine, SketchCommand::StringLength { name: name("d:a") });
    assert_eq!(length, Reply::Integer(string.len() as i64));
    let range = ask(&engine, SketchCommand::ReadRange { name: name("d:a"), from: 0, to: 3 });
    assert_eq!(range, Reply::Bytes(Box::from(*b"HYLL")));
    assert_eq!(ask(&engine, set_string("d:b", &string)), Reply::Ok);
    assert_eq!(uniques(&engine, &["d:b"]), 2);
    engine.set("d:count", 123).unwrap();
    assert_eq!(ask(&engine, set_string("d:count", &string)), Reply::Ok, "whatever is there");
    assert_eq!(uniques(&engine, &["d:count"]), 2);
    let bad = [&string[..string.len() - 1], b"HYLL", b"HYLLnonsense of some length here"];
    for bad in bad {
        assert_eq!(ask(&engine, set_string("d:b", bad)), refused(Refusal::CorruptHll));
    }
    assert_eq!(run(&engine, Command::Take { name: name("d:b") }), Reply::Bytes(string.clone()));
    assert_eq!(run(&engine, Command::Take { name: name("d:b") }), Reply::Value(None));
    let (condition, expiry) = (SetCondition::Always, SetExpiry::Remove);
    let set = Set { name: name("d:a"), value: 7, condition, expiry, reply_old: true };
    assert_eq!(run(&engine, Command::Set(set)), Reply::Bytes(string));
    assert_eq!(engine.add("d:a", 1).unwrap(), 8, "it is a count now");
    let range = ask(&engine, SketchCommand::ReadRange { name: name("d:a"), from: -1, to: -1 });
    assert_eq!(range, Reply::Bytes(Box::from(*b"8")));
    let none = ask(&engine, SketchCommand::ReadRange { name: name("d:none"), from: 0, to: -1 });
    assert_eq!(
        (none, ask(&engine, SketchCommand::StringLength { name: name("d:none") })),
        (Reply::Bytes(Box::default()), Reply::Integer(0))
    );
}

#[test]
fn frequencies_are_made_counted_and_added_up() {
    let (_world, engine) = open();
    let missing = || refused(Refusal::NoSketch { kind: Kind::Frequency });
    assert_eq!(ask(&engine, count_items("d:c", &[("a", 1)], REDIS)), missing());
    assert_eq!(ask(&engine, read_items("d:c", &["a"], REDIS)), missing());
    for (text, dialect) in [("d:c", REDIS), ("d:e", REDIS), ("d:f", NATIVE)] {
        assert_eq!(ask(&engine, make_frequency(text, dialect)), Reply::Ok);
        let exists = refused(Refusal::SketchExists { kind: Kind::Frequency });
        assert_eq!(ask(&engine, make_frequency(text, dialect)), exists);
    }
    ask(&engine, count_items("d:c", &[("a", 5), ("b", 2), ("a", 1)], REDIS));
    ask(&engine, count_items("d:e", &[("a", 2), ("b", 1)], REDIS));
    let sum = |names: &[&'static str], weights: &[i64], dialect| {
        let names = names.iter().map(|text| name(text)).collect();
        ask(&engine, SketchCommand::MergeFrequency { names, weights: weights.to_vec(), dialect })
    };
    assert_eq!(sum(&["d:e", "d:c", "d:e"], &[2, -1], REDIS), Reply::Ok);
    assert_eq!(ask(&engine, read_items("d:e", &["a", "b"], REDIS)), Reply::Integers(vec![10, 3]));
    assert_eq!(sum(&["d:e", "d:c", "d:e"], &[-2, 1], REDIS), refused(Refusal::SketchOverflow));
    assert_eq!(sum(&["d:e", "d:none"], &[1], REDIS), missing());
    assert_eq!(sum(&["d:none", "d:e"], &[1], REDIS), missing());
    assert_eq!(sum(&["d:f", "d:c"], &[1], NATIVE), refused(Refusal::SizesDiffer), "they are of two forms");
    assert_eq!(ask(&engine, read_items("d:e", &["a", "b"], REDIS)), Reply::Integers(vec![10, 3]));
    let most = u64::from(u32::MAX);
    assert_eq!(
        ask(&engine, count_items("d:e", &[("b", 1), ("c", 1), ("a", most)], REDIS)),
        refused(Refusal::SketchOverflow)
    );
    assert_eq!(
        ask(&engine, read_items("d:e", &["a", "b", "c"], REDIS)),
        Reply::Integers(vec![10, 3, 0]),
        "all or none"
    );
    let info = |text, dialect| match ask(&engine, SketchCommand::FrequencyInfo { name: name(text), dialect }) {
        Reply::FrequencyInfo(info) => (info.width, info.depth, info.total, info.dialect),
        reply => panic!("{reply:?}"),
    };
    assert_eq!((info("d:e", REDIS), info("d:f", NATIVE)), ((600, 3, 13, REDIS), (600, 3, 0, NATIVE)));
    let by = |error, probability| FrequencySize::Accuracy {
        error: Fraction::new(error).unwrap(),
        probability: Fraction::new(probability).unwrap(),
    };
    let make = |text: &'static str, size| SketchCommand::MakeFrequency { name: name(text), size, dialect: REDIS };
    assert_eq!(ask(&engine, make("d:p", by(0.01, 0.01))), Reply::Ok);
    assert_eq!(info("d:p", REDIS), (200, 7, 0, REDIS));
    assert!(matches!(ask(&engine, make("d:q", by(2.0, 0.01))), Reply::Refused(Refusal::BadSize { .. })));
    let huge = FrequencySize::Dimensions { width: 1 << 40, depth: 1 << 20 };
    assert!(matches!(ask(&engine, make("d:q", huge)), Reply::Refused(Refusal::BadSize { .. })));
    assert!(!engine.delete("d:q").unwrap());
    let counted =
        SketchCommand::CountItems { name: name("d:q"), items: vec![(b"x", 3)], make: Some(SIZE), dialect: NATIVE };
    assert_eq!(ask(&engine, counted), Reply::Integers(vec![3]));
}

#[test]
fn the_most_frequent_are_listed() {
    let (_world, engine) = open();
    assert_eq!(
        ask(&engine, count_top("d:t", &[("a", 1)], None, REDIS)),
        refused(Refusal::NoSketch { kind: Kind::Top })
    );
    assert_eq!(
        ask(&engine, count_top("d:t", &[("a", 3), ("b", 2)], Some(TopSize::with_k(2)), REDIS)),
        Reply::Items(vec![None, None])
    );
    let long = "x".repeat(1025);
    let refusal = refused(Refusal::ItemTooLong { bytes_max: 1024 });
    assert_eq!(ask(&engine, count_top("d:t", &[("a", 1), (&long, 1)], None, REDIS)), refusal);
    assert_eq!(
        ask(&engine, count_top("d:t", &[(&long[..1024], 100_000)], None, REDIS)),
        Reply::Items(vec![Some(Box::from(*b"b"))])
    );
    let items = |items: &[&'static str]| items.iter().map(|item| item.as_bytes()).collect::<Vec<_>>();
    let is_top = SketchCommand::IsTop { name: name("d:t"), items: items(&["a", "b", "c"]), dialect: REDIS };
    assert_eq!(ask(&engine, is_top), Reply::Integers(vec![1, 0, 0]));
    let read = SketchCommand::ReadTop { name: name("d:t"), items: items(&["a", "b", "c"]), dialect: REDIS };
    assert_eq!(ask(&engine, read), Reply::Integers(vec![3, 2, 0]));
    let Reply::TopInfo(info) = ask(&engine, SketchCommand::TopInfo { name: name("d:t"), dialect: REDIS }) else {
        panic!()
    };
    assert_eq!((info.size, info.total, info.dialect), (TopSize::with_k(2), 100_005, REDIS));
    let make = |k| SketchCommand::MakeTop { name: name("d:u"), size: TopSize::with_k(k), dialect: NATIVE };
    for k in [0, quipu_model::TOP_ITEMS_MAX + 1, u32::MAX] {
        assert!(matches!(ask(&engine, make(k)), Reply::Refused(Refusal::BadSize { .. })), "{k}");
    }
    assert_eq!(ask(&engine, make(quipu_model::TOP_ITEMS_MAX)), Reply::Ok);
    assert_eq!(ask(&engine, make(1)), refused(Refusal::SketchExists { kind: Kind::Top }));
    let exists = SketchCommand::MakeTop { name: name("d:t"), size: TopSize::with_k(1), dialect: NATIVE };
    assert_eq!(ask(&engine, exists), refused(Refusal::SketchExists { kind: Kind::Top }));
}

#[test]
fn a_reading_of_a_sketch_says_how_good_it_is() {
    let (_world, engine) = open();
    let items: Vec<String> = (0..20_000).map(|item| format!("item-{item}")).collect();
    for some in items.chunks(500) {
        let some: Vec<&str> = some.iter().map(String::as_str).collect();
        for (text, dialect) in [("d:hll", REDIS), ("d:unique", NATIVE)] {
            ask(&engine, observe(text, &some, dialect));
        }
        let counted: Vec<(&str, u64)> = some.iter().map(|item| (*item, 2)).collect();
        let make = Some(FrequencySize::default_size());
        let by: Vec<(&[u8], u64)> = counted.iter().map(|(item, by)| (item.as_bytes(), *by)).collect();
        let count = SketchCommand::CountItems { name: name("d:frequency"), items: by.clone(), make, dialect: NATIVE };
        ask(&engine, count);
        let make = Some(TopSize::default_size());
        ask(&engine, SketchCommand::CountTop { name: name("d:top"), items: by, make, dialect: NATIVE });
    }
    for text in ["d:hll", "d:unique"] {
        let reading = engine.read(text).unwrap();
        assert_eq!((reading.kind, reading.exact, reading.error), (Kind::Unique, false, None));
        let (low, high) = reading.bound.unwrap();
        assert!(low < reading.value && reading.value < high, "{reading:?}");
        assert!((high - low) < 20_000 * 4 / 100 && (19_000..21_000).contains(&reading.value), "{reading:?}");
    }
    let frequency = engine.read("d:frequency").unwrap();
    assert_eq!((frequency.kind, frequency.value, frequency.exact), (Kind::Frequency, 40_000, false));
    assert_eq!((frequency.bound, frequency.error), (Some((40_000, 40_000)), Some(4)), "a ten-thousandth of all");
    let top = engine.read("d:top").unwrap();
    assert_eq!((top.kind, top.value, top.error), (Kind::Top, 40_000, Some(100)), "400 slots for 100 places");
}

#[test]
fn a_count_is_no_sketch_and_a_sketch_is_no_count() {
    let (_world, engine) = open();
    fill(&engine);
    engine.set("d:count", 5).unwrap();
    let wrong = |text| refused(Refusal::OtherKind { found: found(text) });
    for text in ["d:hll", "d:unique", "d:cms", "d:frequency", "d:topk", "d:top"] {
        let name = name(text);
        assert_eq!(run(&engine, Command::Add { name, delta: 1, shard_key: None }), wrong(text));
        assert_eq!(run(&engine, Command::Reset { name }), wrong(text));
        let (expiry, expiry_if_none) = (Expiry::Keep, false);
        let within = AddWithin { name, delta: 1, lower: 0, upper: 9, saturate: true, expiry, expiry_if_none };
        assert_eq!(run(&engine, Command::AddWithin(within)), wrong(text));
        let many = run(&engine, Command::ReadMany { names: vec![name, self::name("d:count")] });
        assert_eq!(many, Reply::Values(vec![None, Some(5)]));
        let handle = engine.handle(text).unwrap();
        for _ in 0..5 {
            assert!(matches!(handle.count(1), Err(Error::Refused(Refusal::OtherKind { .. }))));
        }
        let mut turn = engine.turn();
        let simple_commands =
            [SimpleCommand { name: self::name("d:count"), delta: None }, SimpleCommand { name, delta: Some(1) }];
        assert_eq!(turn.run_simple(&simple_commands, |_| ()), 1, "the other one is for the long way");
        assert_eq!(turn.run_simple(&simple_commands[1..], |_| ()), 0);
        turn.finish();
        let (condition, expiry) = (SetCondition::Always, SetExpiry::Remove);
        let old = Set { name, value: 1, condition, expiry, reply_old: true };
        if text != "d:hll" {
            for command in [Command::Read { name }, Command::Take { name }, Command::Set(old)] {
                assert_eq!(run(&engine, command), wrong(text), "{text}");
            }
        }
        assert_eq!(run(&engine, Command::Exists { names: vec![name] }), Reply::Integer(1));
    }
    check_kinds(&engine);
    assert!(engine.delete("d:count").unwrap());
    check(&engine);
    engine.set("d:count", 5).unwrap();
    let (count, other) = (found("d:count"), |text| Refusal::OtherKind { found: found(text) });
    for (command, refusal) in [
        (observe("d:count", &["a"], REDIS), Refusal::NotHll { found: count }),
        (count_unique(&["d:count"], REDIS), Refusal::NotHll { found: count }),
        (merge(&["d:hll", "d:count"], REDIS), Refusal::NotHll { found: count }),
        (merge(&["d:count", "d:hll"], REDIS), Refusal::NotHll { found: count }),
        (observe("d:cms", &["a"], REDIS), Refusal::NotHll { found: found("d:cms") }),
        (observe("d:count", &["a"], NATIVE), other("d:count")),
        (count_items("d:count", &[("a", 1)], REDIS), other("d:count")),
        (count_items("d:frequency", &[("a", 1)], REDIS), other("d:frequency")),
        (read_items("d:hll", &["a"], NATIVE), other("d:hll")),
        (count_top("d:count", &[("a", 1)], None, NATIVE), other("d:count")),
        (count_top("d:cms", &[("a", 1)], None, REDIS), other("d:cms")),
        (make_frequency("d:count", REDIS), Refusal::SketchExists { kind: Kind::Frequency }),
        (SketchCommand::StringLength { name: name("d:top") }, other("d:top")),
    ] {
        assert_eq!(ask(&engine, command.clone()), refused(refusal), "{command:?}");
    }
    assert_eq!(engine.read("d:count").unwrap().value, 5);
}

/// What the counter of that name is, in these tests.
fn found(text: &str) -> KindAndDialect {
    let (kind, dialect) = match text {
        "d:hll" => (Kind::Unique, REDIS),
        "d:unique" => (Kind::Unique, NATIVE),
        "d:cms" => (Kind::Frequency, REDIS),
        "d:frequency" => (Kind::Frequency, NATIVE),
        "d:topk" => (Kind::Top, REDIS),
        "d:top" => (Kind::Top, NATIVE),
        _ => return KindAndDialect::COUNT,
    };
    KindAndDialect { kind, dialect }
}

fn check_kinds(engine: &Engine) {
    for (text, kind, dialect) in [
        ("d:hll", Kind::Unique, REDIS),
        ("d:unique", Kind::Unique, NATIVE),
        ("d:cms", Kind::Frequency, REDIS),
        ("d:frequency", Kind::Frequency, NATIVE),
        ("d:topk", Kind::Top, REDIS),
        ("d:top", Kind::Top, NATIVE),
        ("d:count", Kind::Count, REDIS),
    ] {
        let known = run(engine, Command::KindOf { name: name(text) });
        assert_eq!(known, Reply::Kind(Some(KindAndDialect { kind, dialect })), "{text}");
    }
}

#[test]
fn a_sketch_expires_is_deleted_and_replaced_like_any_counter() {
    let (mut world, mut engine) = open();
    fill(&engine);
    let expire =
        |text| Command::Expire { name: name(text), when: ExpiryTime::In(1_000), condition: ExpiryCondition::Always };
    assert_eq!(run(&engine, expire("d:hll")), Reply::Integer(1));
    assert_eq!(run(&engine, expire("d:cms")), Reply::Integer(1));
    ask(&engine, observe("d:hll", &["c"], REDIS));
    let left = run(&engine, Command::ExpiryOf { name: name("d:hll"), form: ExpiryForm::MillisLeft });
    assert_eq!(left, Reply::Integer(1_000), "a change keeps it");
    assert_eq!(uniques(&engine, &["d:hll"]), 3);
    engine.steps().seal_all().unwrap();
    world.clock.advance(Duration::from_secs(2));
    assert_eq!(uniques(&engine, &["d:hll"]), 0);
    assert!(engine.delete("d:unique").unwrap());
    engine.set("d:frequency", 4).unwrap();
    assert_eq!(ask(&engine, observe("d:unique", &["z"], NATIVE)), Reply::Integer(1));
    let check = |engine: &Engine, round: usize| {
        assert_eq!((uniques(engine, &["d:hll"]), uniques(engine, &["d:unique"])), (0, 1), "{round}");
        assert_eq!(engine.read("d:frequency").unwrap().value, 4);
        let missing = refused(Refusal::NoSketch { kind: Kind::Frequency });
        assert_eq!(ask(engine, read_items("d:cms", &["a"], REDIS)), missing);
        let names = run(engine, Command::ListNames(ListNames { pattern: Pattern(b"*"), bytes_max: 1 << 20 }));
        let Reply::Names(mut names) = names else { panic!("{names:?}") };
        names.sort_unstable();
        assert_eq!(
            names.iter().map(|name| &**name).collect::<Vec<_>>(),
            [&b"d:frequency"[..], b"d:top", b"d:topk", b"d:unique"]
        );
    };
    for round in 0..3 {
        check(&engine, round);
        match round {
            0 => {}
            1 => drop(seal_without_cut(&engine)),
            _ => engine.steps().seal_all().unwrap(),
        }
        drop(engine);
        let now = world.clock_wall();
        world = after_kill(&world);
        world.clock.set_wall(quipu_model::Millis(now));
        engine = world.open(small_options(8192)).unwrap();
    }
    check(&engine, 3);
}

#[test]
fn a_namespace_that_becomes_durable_takes_its_sketches_along() {
    let (mut world, mut engine) = open();
    ask(&engine, observe("m:u", &["a"], NATIVE));
    engine.steps().seal_all().unwrap();
    ask(&engine, observe("m:u", &["b"], NATIVE));
    ask(&engine, observe("m:v", &["b"], REDIS));
    engine.put_namespace("m", Namespace::with_durability(Durability::Durable)).unwrap();
    ask(&engine, observe("m:u", &["c"], NATIVE));
    let expire =
        Command::Expire { name: name("m:v"), when: ExpiryTime::In(60_000), condition: ExpiryCondition::Always };
    assert_eq!(run(&engine, expire), Reply::Integer(1));
    for n in 0..3 {
        assert_eq!((uniques(&engine, &["m:u"]), uniques(&engine, &["m:v"])), (3 + n, 1));
        world = after_kill(&world);
        engine = world.open(small_options(8192)).unwrap();
        ask(&engine, observe("m:u", &[&format!("more {n}")], NATIVE));
    }
}

#[test]
fn lanes_of_a_count_are_closed_before_it_becomes_a_sketch() {
    let (_world, engine) = open();
    ask(&engine, observe("d:hll", &["x"], REDIS));
    let string = string(&engine, "d:hll");
    let handle = engine.handle("d:a").unwrap();
    for _ in 0..10 {
        handle.count(1).unwrap();
    }
    assert!(handle.is_split());
    assert_eq!(ask(&engine, observe("d:a", &["x"], REDIS)), refused(Refusal::NotHll { found: found("d:count") }));
    assert_eq!(engine.read("d:a").unwrap().value, 10);
    for _ in 0..10 {
        handle.count(1).unwrap();
    }
    assert_eq!(ask(&engine, set_string("d:a", &string)), Reply::Ok);
    assert!(!handle.is_split());
    assert!(matches!(handle.count(1), Err(Error::Refused(Refusal::OtherKind { .. }))));
    assert_eq!(uniques(&engine, &["d:a"]), 1);
    assert!(engine.delete("d:a").unwrap());
    handle.count(1).unwrap();
    handle.flush().unwrap();
    assert_eq!(engine.read("d:a").unwrap().value, 1);
}

#[test]
fn a_flush_takes_bodies_with_it() {
    for sealed in [false, true] {
        let (mut world, mut engine) = open();
        fill(&engine);
        if sealed {
            engine.steps().seal_all().unwrap();
        }
        run(&engine, Command::Flush);
        assert_eq!(ask(&engine, observe("d:hll", &["x"], REDIS)), Reply::Integer(1));
        for round in 0..3 {
            assert_eq!(
                (engine.stats().counters, uniques(&engine, &["d:hll"]), uniques(&engine, &["d:unique"])),
                (1, 1, 0),
                "{round}"
            );
            if round == 1 {
                engine.steps().seal_all().unwrap();
            }
            world = after_kill(&world);
            engine = world.open(small_options(8192)).unwrap();
        }
    }
}

#[test]
fn a_transaction_with_a_flush_in_the_middle_is_replayed_after_the_flush_was_carried_out() {
    let (world, engine) = open();
    fill(&engine);
    let commands = [
        Command::Sketch(observe("d:hll", &["c"], REDIS)),
        Command::Flush,
        Command::Sketch(observe("d:hll", &["x", "y"], REDIS)),
        Command::Sketch(observe("d:unique", &["z"], NATIVE)),
    ];
    let mut turn = engine.turn();
    turn.run_transaction(&commands, &[]).unwrap().unwrap();
    turn.finish();
    engine.steps().write_filled();
    engine.steps().sync();
    // The ledger forgets everything first; the power is lost at every moment after that.
    let before = world.disk.operations();
    engine.steps().seal_all().unwrap();
    for at in before..=world.disk.operations() {
        let again = World::new(world.disk.kill(at).into_disk(), 2);
        let engine = again.open(small_options(8192)).unwrap_or_else(|e| panic!("at {at}: {e}"));
        assert_eq!(
            (engine.stats().counters, uniques(&engine, &["d:hll"]), uniques(&engine, &["d:unique"])),
            (2, 2, 1),
            "at {at}"
        );
    }
}

#[test]
fn a_cell_that_left_memory_finds_its_body() {
    let (_world, engine) = open();
    fill(&engine);
    engine.set("d:count", 5).unwrap();
    engine.steps().seal_all().unwrap();
    let mut evicted = 0;
    for _ in 0..2 {
        evicted += (0..engine.steps().shard_count()).map(|shard| engine.steps().evict(shard)).sum::<usize>();
    }
    assert_eq!(evicted, 7);
    check_kinds(&engine);
    assert!(engine.delete("d:count").unwrap());
    check(&engine);
    let mut turn = engine.turn();
    assert_eq!(turn.run_simple(&[SimpleCommand { name: name("d:hll"), delta: Some(1) }], |_| ()), 0);
}

#[test]
fn several_commands_are_one_and_a_token_counts_once() {
    let (mut world, mut engine) = open();
    let commands = [
        Command::Sketch(make_frequency("d:c", REDIS)),
        Command::Sketch(count_items("d:c", &[("a", 2)], REDIS)),
        Command::Sketch(observe("m:u", &["a", "b"], NATIVE)),
        Command::Sketch(count_items("d:c", &[("a", 2), ("b", 1)], REDIS)),
        Command::Sketch(count_top("d:t", &[("a", 2)], Some(TopSize::with_k(3)), NATIVE)),
        Command::Add { name: name("d:c"), delta: 1, shard_key: None },
        Command::Add { name: name("d:n"), delta: 1, shard_key: None },
    ];
    let mut turn = engine.turn();
    let replies = turn.run_transaction(&commands, &[]).unwrap().unwrap();
    let wait = turn.finish();
    engine.steps().write_filled();
    engine.steps().sync();
    assert!(engine.steps().has_reached(wait));
    let expected = [
        Reply::Ok,
        Reply::Integers(vec![2]),
        Reply::Integer(1),
        Reply::Integers(vec![4, 1]),
        Reply::Items(vec![None]),
        refused(Refusal::OtherKind { found: found("d:cms") }),
        Reply::Integer(1),
    ];
    assert_eq!(replies, expected);
    // Not journaled by itself, so that the next one has to be journaled as a whole.
    ask(&engine, observe("m:u", &["c"], NATIVE));
    let mutations = [
        (
            Identity::token(b"p", b"1").unwrap(),
            count_items("d:c", &[("a", 1), ("b", 1)], REDIS),
            Reply::Integers(vec![5, 2]),
        ),
        (Identity::token(b"p", b"2").unwrap(), count_top("d:t", &[("b", 9)], None, NATIVE), Reply::Items(vec![None])),
        (Identity::sequence(b"p", 1).unwrap(), observe("m:u", &["d"], NATIVE), Reply::Integer(1)),
        (Identity::token(b"p", b"3").unwrap(), observe("d:h", &["d"], REDIS), Reply::Integer(1)),
    ];
    for round in 0..4 {
        for (identity, command, reply) in &mutations {
            let once =
                |command: &SketchCommand<'_>| match engine.execute_once(identity, &Command::Sketch(command.clone())) {
                    Err(Error::Refused(refusal)) => refused(refusal),
                    reply => reply.unwrap(),
                };
            assert_eq!(once(command), *reply, "round {round}");
            assert_eq!(once(&observe("d:other", &["x"], REDIS)), refused(Refusal::TokenMismatch));
        }
        assert_eq!(ask(&engine, read_items("d:c", &["a", "b"], REDIS)), Reply::Integers(vec![5, 2]));
        assert_eq!(uniques(&engine, &["m:u"]), 4, "all of it is in the record");
        match round {
            0 => {}
            1 => drop(seal_without_cut(&engine)),
            _ => engine.steps().seal_all().unwrap(),
        }
        engine.steps().write_filled();
        world = after_kill(&world);
        engine = world.open(small_options(8192)).unwrap();
    }
    let string = string(&engine, "d:h");
    let take = Command::Take { name: name("d:h") };
    for _ in 0..2 {
        let token = Identity::token(b"p", b"take").unwrap();
        assert_eq!(engine.execute_once(&token, &take).unwrap(), Reply::Bytes(string.clone()));
    }
    let items: Vec<(&[u8], u64)> = vec![(b"a", 1); 100];
    let many = SketchCommand::CountTop { name: name("d:t"), items, make: None, dialect: NATIVE };
    let result = engine.execute_once(&Identity::token(b"p", b"4").unwrap(), &Command::Sketch(many));
    assert!(matches!(result, Err(Error::Refused(Refusal::TokenReply { .. }))));
}

/// A ledger that remembers which notes it was given.
struct NoteCountingLedger(FileLedger, Arc<Mutex<Vec<AuxRecord>>>);

impl Ledger for NoteCountingLedger {
    fn watermark(&self) -> Result<Option<Vec<u8>>, LedgerError> {
        self.0.watermark()
    }
    fn ingest(&self, cells: &[SealedCell], notes: &[AuxRecord], watermark: &[u8]) -> Result<(), LedgerError> {
        self.1.lock().unwrap().extend_from_slice(notes);
        self.0.ingest(cells, notes, watermark)
    }
    fn clear(&self, notes: &[AuxRecord], watermark: &[u8]) -> Result<(), LedgerError> {
        self.0.clear(notes, watermark)
    }
    fn get(&self, hash: u64, name: &[u8]) -> Result<Option<Cell>, LedgerError> {
        self.0.get(hash, name)
    }
    fn range(&self, from: u64, visit: &mut CellVisitor<'_>) -> Result<(), LedgerError> {
        self.0.range(from, visit)
    }
    fn own_cells(&self, hash: u64, name: &[u8]) -> Result<Option<Box<[u8]>>, LedgerError> {
        self.0.own_cells(hash, name)
    }
    fn range_own_cells(&self, from: u64, visit: &mut OwnCellsVisitor<'_>) -> Result<(), LedgerError> {
        self.0.range_own_cells(from, visit)
    }
    fn aux_records(&self, visit: &mut AuxRecordVisitor<'_>) -> Result<(), LedgerError> {
        self.0.aux_records(visit)
    }
    fn compact(&self) -> Result<bool, LedgerError> {
        self.0.compact()
    }
    fn copy_to(&self, data: &Path, copied: &mut CopyProgress<'_>) -> Result<(), LedgerError> {
        self.0.copy_to(data, copied)
    }
    fn stats(&self) -> LedgerStats {
        self.0.stats()
    }
}

#[test]
fn only_pages_that_changed_are_sealed() {
    let world = World::new(CrashDisk::new(), 1);
    let (disk, notes) = (world.disk.clone(), Arc::new(Mutex::new(Vec::new())));
    let taken = notes.clone();
    let open_ledger: quipu_engine::OpenLedger = Arc::new(move |options: &Options| {
        Ok(Arc::new(NoteCountingLedger(FileLedger::open(Arc::new(disk.clone()), &options.data)?, taken.clone()))
            as Arc<dyn Ledger>)
    });
    let engine = Engine::open_with(small_options(65536), Environment { open_ledger, ..world.environment() }).unwrap();
    let sealed = || {
        engine.steps().seal_all().unwrap();
        let notes = std::mem::take(&mut *notes.lock().unwrap());
        let (present, gone): (Vec<_>, Vec<_>) = notes.into_iter().partition(|note| note.value.is_some());
        (present.len(), gone.len(), present.iter().map(|note| note.value.as_ref().unwrap().len()).sum::<usize>())
    };
    // 64 pages of zeros are one note of a few bytes.
    let size = FrequencySize::Dimensions { width: 4 * 1024 - 1, depth: 4 };
    ask(&engine, SketchCommand::MakeFrequency { name: name("d:c"), size, dialect: REDIS });
    let (pages, gone, bytes) = sealed();
    assert_eq!((pages, gone), (1, 0));
    assert!(bytes < 64, "{bytes}");
    ask(&engine, count_items("d:c", &[("a", 5)], REDIS));
    let (pages, gone, _) = sealed();
    assert!((4..=5).contains(&pages), "a cell of each row, and the first page: {pages}");
    assert_eq!((gone, sealed().0), (0, 0), "nothing has changed");
    ask(&engine, count_items("d:c", &[("a", 5)], REDIS));
    assert_eq!(sealed().0, pages);
    assert_eq!(ask(&engine, read_items("d:c", &["a"], REDIS)), Reply::Integers(vec![10]));
    // A dense one of twelve pages: an item more is one of them, and the first, which says the
    // version.
    let items: Vec<String> = (0..5_000).map(|n| n.to_string()).collect();
    let observed = items.iter().map(|item| item.as_bytes()).collect();
    ask(&engine, SketchCommand::Observe { name: name("d:h"), items: observed, dialect: REDIS });
    assert_eq!(sealed().0, 13);
    let mut n = 0;
    while ask(&engine, observe("d:h", &[&format!("more {n}")], REDIS)) == Reply::Integer(0) {
        n += 1;
    }
    let (pages, gone, _) = sealed();
    assert!(pages <= 2 && gone == 0, "{pages}");
    assert!(engine.delete("d:h").unwrap());
    assert_eq!(sealed(), (0, 13, 0), "what is gone is forgotten, page by page");
    assert_eq!(sealed(), (0, 0, 0));
}

#[test]
fn what_changes_nothing_writes_nothing() {
    let (_world, engine) = open();
    fill(&engine);
    let before = engine.steps().reserved();
    assert_eq!(ask(&engine, observe("d:hll", &["a", "b"], REDIS)), Reply::Integer(0));
    assert_eq!(ask(&engine, observe("d:unique", &["c"], NATIVE)), Reply::Integer(0));
    ask(&engine, count_items("d:cms", &[("a", 0)], REDIS));
    assert_eq!(ask(&engine, merge(&["d:hll"], REDIS)), Reply::Ok);
    assert_eq!(engine.steps().reserved(), before);
    ask(&engine, observe("d:hll", &["c"], REDIS));
    let bytes = engine.steps().reserved().0 - before.0;
    assert!(bytes < 140, "a change is a small record, not one of {bytes} bytes");
    let before = engine.steps().reserved();
    let size = FrequencySize::Dimensions { width: 1 << 18, depth: 8 };
    ask(&engine, SketchCommand::MakeFrequency { name: name("d:large"), size, dialect: REDIS });
    let made =
        SketchCommand::CountItems { name: name("d:larger"), items: vec![(b"a", 1)], make: Some(size), dialect: NATIVE };
    ask(&engine, made);
    let bytes = engine.steps().reserved().0 - before.0;
    assert!(bytes < 512, "8 MiB of zeros are {bytes} bytes");
}

#[test]
fn memory_that_is_full_takes_no_new_sketch_and_goes_on_with_others() {
    let world = World::new(CrashDisk::new(), 1);
    let engine = world.open(Options { memory_bytes_max: Some(2_000_000), ..small_options(65536) }).unwrap();
    assert_eq!(ask(&engine, make_frequency("d:c", REDIS)), Reply::Ok);
    let size = FrequencySize::Dimensions { width: 1 << 20, depth: 1 };
    let large = SketchCommand::MakeFrequency { name: name("d:large"), size, dialect: REDIS };
    assert!(matches!(ask(&engine, large), Reply::Refused(Refusal::NoMemory { .. })));
    assert!(!engine.delete("d:large").unwrap());
    let mut made = 0;
    let refusal = loop {
        match ask(&engine, make_frequency(&format!("d:{made}"), REDIS)) {
            Reply::Ok => made += 1,
            reply => break reply,
        }
    };
    assert!(matches!(refusal, Reply::Refused(Refusal::NoMemory { .. })), "{refusal:?}");
    assert!((10..300).contains(&made), "{made} of 7 KB each");
    assert_eq!(ask(&engine, count_items("d:c", &[("a", 1)], REDIS)), Reply::Integers(vec![1]));
    assert!(engine.delete("d:0").unwrap());
    assert_eq!(ask(&engine, make_frequency("d:0", REDIS)), Reply::Ok, "there is memory again");
}

#[test]
fn a_transaction_makes_no_more_sketches_than_there_is_memory_for() {
    let world = World::new(CrashDisk::new(), 1);
    let engine = world.open(Options { memory_bytes_max: Some(2_000_000), ..small_options(65536) }).unwrap();
    let names: Vec<String> = (0..24).map(|n| format!("d:{n}")).collect();
    let size = FrequencySize::Dimensions { width: 7_000, depth: 1 };
    let make = |to| Command::Sketch(SketchCommand::MakeFrequency { name: name(to), size, dialect: REDIS });
    let commands: Vec<_> = names.iter().map(|to| make(to)).collect();
    let mut turn = engine.turn();
    let replies = turn.run_transaction(&commands, &[]).unwrap().unwrap();
    turn.finish();
    let made = replies.iter().filter(|reply| **reply == Reply::Ok).count();
    let refused = replies.iter().filter(|reply| matches!(reply, Reply::Refused(Refusal::NoMemory { .. }))).count();
    assert!((1..10).contains(&made) && made + refused == 24, "{made} of 28 KB each in half of 250 KB");
    assert_eq!(engine.stats().counters, made as u64);
    assert!(engine.stats().bodies_bytes < 125_000);
}

#[test]
fn a_sketch_that_would_grow_beyond_memory_is_refused_and_all_others_go_on() {
    let world = World::new(CrashDisk::new(), 1);
    let engine = world.open(Options { memory_bytes_max: Some(2_000_000), ..small_options(65536) }).unwrap();
    let long = "x".repeat(1_024);
    let no_memory = |reply: Reply| assert!(matches!(reply, Reply::Refused(Refusal::NoMemory { .. })), "{reply:?}");
    // A list that has room for it when it is made does not become 400 KB by one item.
    let make = SketchCommand::MakeTop { name: name("d:t"), size: TopSize::with_k(100), dialect: REDIS };
    assert_eq!(ask(&engine, make), Reply::Ok);
    no_memory(ask(&engine, count_top("d:t", &[(&long, 1)], None, REDIS)));
    no_memory(ask(&engine, count_top("d:u", &[(&long, 1)], Some(TopSize::with_k(100)), REDIS)));
    assert!(!engine.delete("d:u").unwrap());
    let before = engine.stats().bodies_bytes;
    assert_eq!(ask(&engine, count_top("d:t", &[("short", 1)], None, REDIS)), Reply::Items(vec![None]));
    assert!(engine.stats().bodies_bytes < before + 4_096, "the index was reckoned with");
    engine.set("d:count", 5).unwrap();
    // Lists of uniques are made until half is taken, and grow until three quarters are.
    let items: Vec<String> = (0..30_000).map(|n| n.to_string()).collect();
    let (mut made, mut refused) = (0, 0);
    while let Reply::Integer(1) = ask(&engine, observe(&format!("d:h{made}"), &["x"], REDIS)) {
        made += 1;
    }
    for n in 0..made {
        let to = format!("d:h{n}");
        let items = items.iter().map(|item| item.as_bytes()).collect();
        match ask(&engine, SketchCommand::Observe { name: name(&to), items, dialect: REDIS }) {
            Reply::Integer(1) => {}
            reply => {
                no_memory(reply);
                refused += 1;
            }
        }
    }
    assert!(made > 20 && refused > 0 && refused < made, "{refused} of {made}");
    assert!(engine.stats().bodies_bytes < 200_000, "{}", engine.stats().bodies_bytes);
    // What has all its registers goes on, and so do cells that were at rest.
    assert_eq!(ask(&engine, observe("d:h0", &["x"], REDIS)), Reply::Integer(0));
    engine.steps().seal_all().unwrap();
    for shard in (0..2 * engine.steps().shard_count()).map(|shard| shard % engine.steps().shard_count()) {
        engine.steps().evict(shard);
    }
    assert_eq!(engine.add("d:count", 1).unwrap(), 6);
    assert!(matches!(ask(&engine, observe("d:h0", &["another"], REDIS)), Reply::Integer(_)));
}

#[test]
fn a_smaller_limit_leaves_cells_their_part() {
    let mut world = World::new(CrashDisk::new(), 1);
    let engine = world.open(small_options(65536)).unwrap();
    let size = FrequencySize::Dimensions { width: 200_000, depth: 1 };
    assert_eq!(ask(&engine, SketchCommand::MakeFrequency { name: name("d:c"), size, dialect: REDIS }), Reply::Ok);
    engine.set("d:count", 5).unwrap();
    engine.close().unwrap();
    drop(engine);
    world = after_kill(&world);
    let engine = world.open(Options { memory_bytes_max: Some(2_000_000), ..small_options(65536) }).unwrap();
    assert!(engine.stats().bodies_bytes > 800_000, "more than all counters may take");
    assert_eq!(engine.add("d:count", 1).unwrap(), 6);
    assert_eq!(ask(&engine, count_items("d:c", &[("a", 1)], REDIS)), Reply::Integers(vec![1]));
}

#[test]
fn unions_and_merges_of_too_much_are_refused() {
    let (_world, engine) = open();
    let names: Vec<String> = (0..257).map(|n| format!("d:{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let too_much = |reply: Reply| assert!(matches!(reply, Reply::Refused(Refusal::BadSize { .. })), "{reply:?}");
    too_much(ask(&engine, count_unique(&names, REDIS)));
    too_much(ask(&engine, merge(&names, NATIVE)));
    assert_eq!(uniques(&engine, &names[1..]), 0);
    assert_eq!(ask(&engine, merge(&names[1..], NATIVE)), Reply::Ok);
    let size = FrequencySize::Dimensions { width: 1 << 20, depth: 1 };
    for text in ["d:a", "d:b", "d:c", "d:d"] {
        ask(&engine, SketchCommand::MakeFrequency { name: name(text), size, dialect: REDIS });
    }
    let sum = |names: &[&'static str]| {
        let weights = vec![1; names.len() - 1];
        let names = names.iter().map(|text| name(text)).collect();
        ask(&engine, SketchCommand::MergeFrequency { names, weights, dialect: REDIS })
    };
    too_much(sum(&["d:a", "d:b", "d:c", "d:d"]));
    assert_eq!(sum(&["d:a", "d:b", "d:c"]), Reply::Ok);
}

#[test]
fn a_full_disk_refuses_whole_commands() {
    let world = World::new(CrashDisk::new(), 1);
    let engine = world
        .open(Options { disk_bytes_max: Some(64 << 10), journal_bytes_max: 1 << 30, ..small_options(4096) })
        .unwrap();
    ask(&engine, make_frequency("d:c", REDIS));
    let (mut total, mut refusals) = (0, 0);
    for n in 0..4_000u64 {
        let item = n.to_string();
        let commands = [Command::Sketch(count_items("d:c", &[(&item, 1), ("same", 1)], REDIS))];
        match run(&engine, commands[0].clone()) {
            Reply::Integers(_) => total += 2,
            Reply::Refused(Refusal::NoRoom { .. }) => refusals += 1,
            reply => panic!("{reply:?}"),
        }
        let hll = ask(&engine, observe("d:h", &[&item], REDIS));
        if refusals > 3 {
            assert!(matches!(hll, Reply::Refused(Refusal::NoRoom { .. })), "{hll:?}");
            break;
        }
    }
    assert!(refusals > 3, "it never was full");
    let check = |engine: &Engine| {
        let Reply::Frequencies(known) = ask(engine, read_items("d:c", &["same"], NATIVE)) else { panic!() };
        assert_eq!((known.total, known.rows[0].at_most >= total / 2), (total, true));
    };
    check(&engine);
    engine.steps().write_filled();
    let world = after_kill(&world);
    check(&world.open(small_options(4096)).unwrap());
}

#[test]
fn damage_to_a_body_refuses_to_start() {
    let (world, engine) = open();
    fill(&engine);
    engine.steps().seal_all().unwrap();
    engine.close().unwrap();
    drop(engine);
    let ledger = FileLedger::open(Arc::new(world.disk.clone()), Path::new(DATA)).unwrap();
    let mut notes = Vec::new();
    ledger
        .aux_records(&mut |key, value| {
            notes.push((key.to_vec(), value.to_vec()));
            ControlFlow::Continue(())
        })
        .unwrap();
    let pages: Vec<_> = notes.iter().filter(|(key, _)| key[0] == 5).collect();
    assert!(pages.len() > 6);
    let watermark = ledger.watermark().unwrap().unwrap();
    for (key, value) in pages {
        let first = key[key.len() - 4..] == [0; 4];
        // A version that is not the cell's, a kind there is none of, a body that is cut short: for
        // every first page; other pages are cut off from theirs.
        let mut wrongs: Vec<(Vec<u8>, Option<Vec<u8>>)> = Vec::new();
        if first {
            for at in [0, 17, 25] {
                let mut wrong = value.clone();
                wrong[at] ^= 0x40;
                wrongs.push((key.clone(), Some(wrong)));
            }
            wrongs.push((key.clone(), Some(value[..10].to_vec())));
        }
        let mut elsewhere = key.clone();
        elsewhere[3] ^= 1;
        wrongs.push((elsewhere, Some(value.clone())));
        for (key, wrong) in wrongs {
            let disk = world.disk.kill(world.disk.operations()).into_disk();
            let broken = FileLedger::open(Arc::new(disk.clone()), Path::new(DATA)).unwrap();
            let note = AuxRecord { key: key.into(), value: wrong.map(Into::into) };
            broken.ingest(&[], &[note], &watermark).unwrap();
            drop(broken);
            let again = World::new(disk, 3);
            let result = crate::world::refusal(again.open(small_options(8192)));
            assert!(result.contains("ledger") && result.contains("sketch"), "{result}");
        }
    }
}

#[test]
fn a_backup_an_inspection_and_an_audit_know_sketches() {
    let (world, engine) = open();
    fill(&engine);
    engine.steps().seal_all().unwrap();
    ask(&engine, observe("d:unique", &["later"], NATIVE));
    engine.add("d:count", 4).unwrap();
    let dir = Path::new("/backup");
    engine.backup(dir).unwrap();
    drop(engine);
    let audited =
        audit(&world.disk, Path::new(DATA), &mut || ledger_opener(&world.disk, Path::new(DATA))(), &mut |_, _| ());
    let audited = audited.unwrap().unwrap();
    assert!(audited.is_clean(), "{audited:?}");
    assert_eq!((audited.counters, audited.sketches, audited.sum), (7, 6, 4));
    let found = inspect::inspect(&world.disk, dir, ledger_opener(&world.disk, dir), |_, _| Ok(())).unwrap();
    assert!(found.verdict.is_ok());
    assert_eq!(found.counters, 7);
    let restored = Path::new("/restored");
    quipu_engine::restore(&world.disk, &found, &world.disk, restored, &mut |_| ControlFlow::Continue(())).unwrap();
    let engine = world.open(Options { data: restored.to_owned(), ..small_options(8192) }).unwrap();
    assert_eq!(ask(&engine, observe("d:unique", &["a", "later"], NATIVE)), Reply::Integer(0), "it hashes as before");
    assert_eq!(uniques(&engine, &["d:unique"]), 4);
    assert_eq!(ask(&engine, read_items("d:cms", &["a", "b"], REDIS)), Reply::Integers(vec![5, 1]));
}
