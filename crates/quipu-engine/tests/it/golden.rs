//! Pins the bytes on disk: these commands write the directory under `testdata/`, and that directory
//! still opens.
//!
//! `QUIPU_BLESS=1` writes the files anew. A change to them is a change of the format and needs a
//! new version.

use std::path::{Path, PathBuf};
use std::time::Duration;

use quipu_engine::Engine;
use quipu_model::{
    AddWithin, Command, Dialect, Expiry, ExpiryTime, FrequencySize, Identity, Millis, Name, Namespace, Reply,
    SampleRate, Set, SetCondition, SetExpiry, SketchCommand, TopSize,
};
use quipu_testkit::CrashDisk;

use crate::world::{World, data_path, small_options};

const FILES: [&str; 2] = ["control", "journal-0000000000000000.seg"];

/// A directory that is pinned: where, and what was written to it.
struct PinnedDirectory {
    dir: &'static str,
    write: fn(&Engine, &World),
    check: fn(&Engine),
}

const PINNED: [PinnedDirectory; 5] = [
    PinnedDirectory { dir: "journal-v1", write, check },
    PinnedDirectory { dir: "journal-v1-tokens", write: write_once, check: check_once },
    PinnedDirectory { dir: "journal-v1-narrow-cells", write: write_sketches, check: check_sketches },
    PinnedDirectory { dir: "journal-v1-windows", write: write_windows, check: check_windows },
    PinnedDirectory { dir: "journal-v1-sampled", write: write_sampled, check: check_sampled },
];

/// Those that programs before this one have written: the same commands, other bytes.
const OLDER: [PinnedDirectory; 1] = [
    // The cells of a top list had 32 bits from the beginning.
    PinnedDirectory { dir: "journal-v1-sketches", write: write_sketches, check: check_sketches },
];

fn golden(dir: &str, file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(dir).join(file)
}

/// One of every kind of entry: cells with and without epoch and expiry, gone, flush, floor, start;
/// a record across two segments.
fn write(engine: &Engine, world: &World) {
    engine.execute(&Command::Flush).unwrap();
    engine.add("likes:42", 1).unwrap();
    engine.add("likes:42", -3).unwrap();
    engine.add([0xff, 0x00, b'\n'], i64::MAX).unwrap();
    let (name, condition) = (Name::new(b"stock:7").unwrap(), SetCondition::Always);
    let expiry = SetExpiry::At(ExpiryTime::In(60_000));
    engine.execute(&Command::Set(Set { name, value: 500, condition, expiry, reply_old: false })).unwrap();
    engine.add("gone", 1).unwrap();
    engine.delete("gone").unwrap();
    world.clock.advance(Duration::from_millis(5));
    let adds = [(b"a:1", 1), (b"b:1", 2)].map(|(name, delta)| Command::Add {
        name: Name::new(name).unwrap(),
        delta,
        shard_key: None,
    });
    let mut turn = engine.turn();
    turn.run_transaction(&adds, &[]).unwrap().unwrap();
    turn.finish();
    engine.read("a:1").unwrap();
    engine.add("likes:42", 0).unwrap();
}

fn check(engine: &Engine) {
    for (name, value) in
        [(&b"likes:42"[..], -2), (b"\xff\x00\n", i64::MAX), (b"stock:7", 500), (b"a:1", 1), (b"b:1", 2)]
    {
        assert_eq!(engine.read(name).unwrap().value, value, "{}", name.escape_ascii());
    }
    assert!(!engine.read("gone").unwrap().exists);
    assert!(engine.read("stock:7").unwrap().expires_at.is_some());
}

/// Entries that came with tokens: a token, a number, answers of one number, two, and none.
fn write_once(engine: &Engine, world: &World) {
    let (name, when) = (Name::new(b"likes:42").unwrap(), Duration::from_millis(5));
    for identity in [Identity::token(b"p", b"1780000000000-x").unwrap(), Identity::sequence(b"p", 1).unwrap()] {
        engine.execute_once(&identity, &Command::Add { name, delta: -3, shard_key: None }).unwrap();
        world.clock.advance(when);
    }
    let take = Command::Take { name };
    engine.execute_once(&Identity::token(b"", b"take").unwrap(), &take).unwrap();
    engine.execute_once(&Identity::token(b"", b"again").unwrap(), &take).unwrap();
    let (delta, lower, upper) = (9, 0, 5);
    let (saturate, expiry, expiry_if_none) = (true, Expiry::Keep, false);
    let within = AddWithin { name, delta, lower, upper, saturate, expiry, expiry_if_none };
    engine.execute_once(&Identity::token(b"", b"within").unwrap(), &Command::AddWithin(within)).unwrap();
}

fn check_once(engine: &Engine) {
    let name = Name::new(b"likes:42").unwrap();
    let retry = |identity, command| engine.execute_once(&identity, &command).unwrap();
    let add = Command::Add { name, delta: -3, shard_key: None };
    assert_eq!(retry(Identity::token(b"p", b"1780000000000-x").unwrap(), add.clone()), Reply::Integer(-3));
    assert_eq!(retry(Identity::sequence(b"p", 1).unwrap(), add), Reply::Integer(-6));
    assert_eq!(retry(Identity::token(b"", b"take").unwrap(), Command::Take { name }), Reply::Value(Some(-6)));
    assert_eq!(retry(Identity::token(b"", b"again").unwrap(), Command::Take { name }), Reply::Value(None));
    assert_eq!((engine.read(name.bytes()).unwrap().value, engine.stats().tokens.tokens), (5, 4));
}

/// Entries of sketches: made, changed in place and by a splice, as a whole where that is shorter or
/// nothing else is known; a list under a token.
fn write_sketches(engine: &Engine, world: &World) {
    fn ask<'a>(command: SketchCommand<'a>) -> Command<'a> {
        Command::Sketch(command)
    }
    let (hll, cms, top, quick) = (name("pages:1"), name("words"), name("top"), name("m:quick"));
    let observe =
        |name, items: &[&'static [u8]], dialect| ask(SketchCommand::Observe { name, items: items.to_vec(), dialect });
    engine.execute(&observe(hll, &[b"alice"], Dialect::Redis)).unwrap();
    engine.execute(&observe(hll, &[b"bob", b"carol"], Dialect::Redis)).unwrap();
    let size = FrequencySize::Dimensions { width: 2_000, depth: 5 };
    engine.execute(&ask(SketchCommand::MakeFrequency { name: cms, size, dialect: Dialect::Redis })).unwrap();
    world.clock.advance(Duration::from_millis(5));
    let count = SketchCommand::CountItems {
        name: cms,
        items: vec![(b"to", 2), (b"be", 1)],
        make: None,
        dialect: Dialect::Redis,
    };
    engine.execute_once(&Identity::token(b"p", b"count").unwrap(), &ask(count)).unwrap();
    let (make, dialect) = (Some(TopSize::with_k(2)), Dialect::Native);
    let listed = SketchCommand::CountTop { name: top, items: vec![(b"x", 3), (b"y", 2), (b"z", 9)], make, dialect };
    engine.execute_once(&Identity::token(b"p", b"list").unwrap(), &ask(listed)).unwrap();
    engine.execute(&observe(quick, &[b"unjournaled"], dialect)).unwrap();
    engine.execute_once(&Identity::token(b"p", b"quick").unwrap(), &observe(quick, &[b"journaled"], dialect)).unwrap();
    engine.steps().write_filled();
}

fn check_sketches(engine: &Engine) {
    for (text, dialect, count) in [("pages:1", Dialect::Redis, 3), ("m:quick", Dialect::Native, 2)] {
        let counted = engine.execute(&Command::Sketch(SketchCommand::CountUnique { names: vec![name(text)], dialect }));
        assert!(matches!(counted, Ok(Reply::Estimate(known)) if known.value == count), "{text}: {counted:?}");
    }
    let items: Vec<&[u8]> = vec![b"to", b"be", b"or"];
    let read = SketchCommand::ReadItems { name: name("words"), items, dialect: Dialect::Redis };
    assert_eq!(engine.execute(&Command::Sketch(read)).unwrap(), Reply::Integers(vec![2, 1, 0]));
    let (make, dialect) = (Some(TopSize::with_k(2)), Dialect::Native);
    let listed =
        SketchCommand::CountTop { name: name("top"), items: vec![(b"x", 3), (b"y", 2), (b"z", 9)], make, dialect };
    let again = engine.execute_once(&Identity::token(b"p", b"list").unwrap(), &Command::Sketch(listed)).unwrap();
    assert_eq!(again, Reply::Items(vec![None, None, Some(Box::from(*b"y"))]));
}

/// Entries of sketches over time: rings and panes that begin, change and are left behind, what is
/// late, and weights that are halved.
fn write_windows(engine: &Engine, world: &World) {
    let window = Some(quipu_sketch::window::Panes::parse("3s/3").unwrap());
    engine.put_namespace("w", Namespace { window, ..Namespace::default() }).unwrap();
    let decay = Some(Duration::from_secs(1));
    engine.put_namespace("t", Namespace { decay, ..Namespace::default() }).unwrap();
    let observe =
        |item: &'static [u8]| SketchCommand::Observe { name: name("w:u"), items: vec![item], dialect: Dialect::Native };
    let listed = |by| SketchCommand::CountTop {
        name: name("t:t"),
        items: vec![(b"x", by)],
        make: Some(TopSize::with_k(2)),
        dialect: Dialect::Native,
    };
    for item in [b"a", b"b", b"c", b"d", b"e"] {
        engine.execute(&Command::Sketch(observe(item))).unwrap();
        engine.execute(&Command::Sketch(listed(4))).unwrap();
        world.clock.advance(Duration::from_secs(1));
    }
    let late = SketchCommand::At { at: Millis(engine.now().0 - 9_000), command: Box::new(observe(b"late")) };
    engine.execute(&Command::Sketch(late)).unwrap();
    engine.execute(&Command::Sketch(observe(b"e"))).unwrap();
    world.clock.advance(Duration::from_secs(5));
    engine.execute(&Command::Sketch(listed(1_000))).unwrap();
    world.clock.advance(Duration::from_millis(5));
    engine.execute(&Command::Sketch(observe(b"f"))).unwrap();
    engine.steps().write_filled();
}

fn check_windows(engine: &Engine) {
    let reading = engine.read("w:u").unwrap();
    let covered = reading.window.unwrap();
    assert_eq!((reading.value, covered.panes, covered.late), (1, 1, 1));
    assert_eq!(engine.read("t:t").unwrap().value, 997);
}

/// Entries of namespaces that are sampled: at a rate, by the value, at a rarer rate, not any more.
fn write_sampled(engine: &Engine, world: &World) {
    for sample in [Some(SampleRate::OneIn(2)), Some(SampleRate::Auto), Some(SampleRate::OneIn(50)), None] {
        engine.put_namespace("s", Namespace { sample, ..Namespace::default() }).unwrap();
        // Whole rates, so that the dice have no say.
        engine.add("s:a", 100).unwrap();
        engine.set("s:b", 7).unwrap();
        world.clock.advance(Duration::from_millis(5));
    }
    engine.put_namespace("t", Namespace { sample: Some(SampleRate::Auto), ..Namespace::default() }).unwrap();
    engine.execute(&Command::AddSampled { name: name("t:a"), amount: 50_000, p: 1 }).unwrap();
    engine.add("s:c", 1).unwrap();
}

fn check_sampled(engine: &Engine) {
    let rates = |text| {
        let reading = engine.read(text).unwrap();
        (reading.value, reading.exact, reading.sampled.map(|sampled| sampled.rate))
    };
    assert_eq!((rates("s:a"), rates("s:b")), ((400, false, Some(50)), (7, true, None)));
    assert_eq!((rates("s:c"), rates("t:a")), ((1, true, None), (50_000, false, Some(2))));
}

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

#[test]
fn the_bytes_on_disk_are_those_of_the_golden_files() {
    for PinnedDirectory { dir, write, check } in PINNED {
        let world = World::new(CrashDisk::new(), 2026);
        let engine = world.open(small_options(4096)).unwrap();
        write(&engine, &world);
        check(&engine);
        let image = world.disk.kill(world.disk.operations());
        for file in FILES {
            let (bytes, golden) = (image.bytes_of(data_path(file)).unwrap(), golden(dir, file));
            if std::env::var_os("QUIPU_BLESS").is_some() {
                std::fs::create_dir_all(golden.parent().unwrap()).unwrap();
                std::fs::write(&golden, &bytes).unwrap();
            }
            let pinned = std::fs::read(golden).unwrap();
            let differ = bytes.iter().zip(&pinned).position(|(a, b)| a != b);
            assert!(
                bytes.len() == pinned.len() && differ.is_none(),
                "{dir}/{file} differs from the golden one at byte {differ:?}"
            );
        }
    }
}

#[test]
fn a_directory_of_this_version_still_opens() {
    for PinnedDirectory { dir, write, check } in PINNED.into_iter().chain(OLDER) {
        let world = World::new(CrashDisk::new(), 2026);
        write(&world.open(small_options(4096)).unwrap(), &world);
        let mut image = world.disk.kill(world.disk.operations());
        for file in FILES {
            image.insert(data_path(file), &std::fs::read(golden(dir, file)).unwrap());
        }
        let world = World::new(image.into_disk(), 1);
        check(&world.open(small_options(4096)).unwrap());
    }
}
