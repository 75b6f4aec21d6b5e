//! Tests sketches over time: the content of a window, pane by pane, before and after loss of power.
//!
//! The judge has every event with its time: at any moment a sketch holds those of the panes in the
//! window.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use quipu_engine::offline::audit;
use quipu_engine::offline::inspect;
use quipu_engine::{Engine, NotRun, Options, Position};
use quipu_model::{
    AuxRecord, Command, Dialect, Durability, FrequencySize, Identity, Ledger, Millis, Namespace, Refusal, Reply,
    SketchCommand, TopSize,
};
use quipu_sketch::window::Panes;
use quipu_testkit::{CrashDisk, FileLedger, SeededRng};

use super::{
    NATIVE, REDIS, ask, count_items, count_top, count_unique, name, observe, read_items, refused, run, uniques,
};
use crate::world::{DATA, World, ledger_opener as look_at_ledger, small_options};

/// One of each kind and form.
const NAMES: [&str; 7] = ["w:h", "w:u", "w:c", "w:f", "w:t", "w:p", "q:u"];

/// One that decays, whose total is what is checked of it; and some in memory, of which a crash
/// leaves what it leaves, but which share records with others.
const DECAYING: &str = "t:p";
const IN_MEMORY: [&str; 3] = ["n:u", "n:f", "n:p"];

const SIZE: FrequencySize = FrequencySize::Dimensions { width: 300, depth: 3 };

fn panes() -> Panes {
    Panes::parse("4s/4").unwrap()
}

fn windowed(durability: Durability) -> Namespace {
    Namespace { window: Some(panes()), ..Namespace::with_durability(durability) }
}

/// `w` and `q` have windows, relaxed the second; `n` is in memory; tops of `t` decay.
fn options(segment_bytes: u64) -> Options {
    let mut options = small_options(segment_bytes);
    for (name, namespace) in [
        (*b"w", windowed(Durability::Durable)),
        (*b"q", windowed(Durability::Relaxed)),
        (*b"n", windowed(Durability::Memory)),
        (*b"t", Namespace { decay: Some(Duration::from_secs(2)), ..Namespace::default() }),
    ] {
        options.namespaces.push((Box::from(name), namespace));
    }
    options
}

fn dialect(text: &str) -> Dialect {
    if text.ends_with(['h', 'c', 't']) { REDIS } else { NATIVE }
}

fn count<'a>(text: &'a str, items: &[(&'a str, u64)]) -> SketchCommand<'a> {
    let dialect = dialect(text);
    match &text[2..] {
        "h" | "u" => observe(text, &items.iter().map(|(item, _)| *item).collect::<Vec<_>>(), dialect),
        "c" | "f" => {
            let SketchCommand::CountItems { name, items, dialect, .. } = count_items(text, items, dialect) else {
                unreachable!()
            };
            SketchCommand::CountItems { name, items, dialect, make: Some(SIZE) }
        }
        _ => count_top(text, items, Some(TopSize::with_k(5)), dialect),
    }
}

fn at(at: u64, command: SketchCommand<'_>) -> SketchCommand<'_> {
    SketchCommand::At { at: Millis(at), command: Box::new(command) }
}

/// What came to a counter: by pane and item how often, and how many were late.
#[derive(Debug, Clone, Default, PartialEq)]
struct Arrivals {
    items: BTreeMap<(u64, String), u64>,
    late: u64,
    /// Of what decays: when how much came.
    amounts: Vec<(u64, u64)>,
}

impl Arrivals {
    fn record(&mut self, time: u64, now: u64, items: &[(&str, u64)], is_unique: bool) {
        self.amounts.push((time.min(now), items.iter().map(|(_, by)| by).sum()));
        let pane = panes().pane_of(time.min(now));
        for (item, by) in items {
            match panes().covered(now).contains(&pane) {
                true => *self.items.entry((pane, (*item).to_owned())).or_default() += by,
                false => self.late += if is_unique { 1 } else { *by },
            }
        }
    }

    /// What is in the window.
    fn within_window(&self, now: u64) -> BTreeMap<&str, u64> {
        let mut within_window = BTreeMap::new();
        for ((pane, item), by) in &self.items {
            if panes().covered(now).contains(pane) {
                *within_window.entry(item.as_str()).or_default() += by;
            }
        }
        within_window
    }
}

type Truth = BTreeMap<&'static str, Arrivals>;

/// Whether a counter says what came in its window, and no more than it may.
fn check(engine: &Engine, text: &str, arrivals: &Arrivals, context: &str) {
    let now = engine.now().0;
    if text == DECAYING {
        let worth = |(time, by): &(u64, u64)| *by as f64 * (-((now - time) as f64) / 2_000.0).exp2();
        let (total, known) = (arrivals.amounts.iter().map(worth).sum::<f64>(), engine.read(text).unwrap().value as f64);
        assert!((known - total).abs() <= 1.0 + total / 100.0, "{context}: {text} at {now} says {known} of {total}");
        return;
    }
    let within_window = arrivals.within_window(now);
    let total: u64 = within_window.values().sum();
    let reading = engine.read(text).unwrap();
    let covered = reading.window.unwrap_or_else(|| panic!("{context}: {text} is over time"));
    assert_eq!(covered.late, arrivals.late, "{context}: {text} at {now}");
    assert_eq!(covered.from.0, panes().times_of(*panes().covered(now).start()).start, "{context}");
    let filled: BTreeSet<u64> =
        arrivals.items.keys().map(|(pane, _)| *pane).filter(|pane| panes().covered(now).contains(pane)).collect();
    assert_eq!(covered.panes as usize, filled.len(), "{context}: {text} at {now}");
    match &text[2..] {
        "h" | "u" => {
            let (known, count) = (uniques(engine, &[text]), within_window.len() as u64);
            let most = if count < 50 { 0 } else { 1 + count / 25 };
            assert!(known.abs_diff(count) <= most, "{context}: {text} at {now} says {known} of {count}");
            assert_eq!(reading.value, known as i64, "{context}: {text}");
        }
        "c" | "f" => {
            let items: Vec<&str> = arrivals.items.keys().map(|(_, item)| item.as_str()).collect();
            let Reply::Frequencies(known) = ask(engine, read_items(text, &items, NATIVE)) else { panic!() };
            assert_eq!((known.total, reading.value), (total, total as i64), "{context}: {text} at {now}");
            for (row, item) in known.rows.iter().zip(items) {
                let count = within_window.get(item).copied().unwrap_or(0);
                assert!(row.at_most >= count && row.at_most <= total, "{context}: {text} {item} {row:?} of {count}");
            }
        }
        _ => {
            assert_eq!(reading.value, total as i64, "{context}: {text} at {now}");
            let Reply::TopItems(rows) = ask(engine, SketchCommand::ListTop { name: name(text), dialect: NATIVE })
            else {
                panic!()
            };
            assert_eq!(rows.len(), within_window.len().min(5), "{context}: {text} at {now}");
            for row in rows {
                let count = within_window.get(std::str::from_utf8(&row.item).unwrap()).copied().unwrap_or(0);
                assert!(row.at_least <= count && count <= row.at_most, "{context}: {text} {row:?} of {count}");
            }
        }
    }
}

#[test]
fn a_window_knows_what_came_in_it_and_forgets_a_pane_at_a_time() {
    let mut world = World::new(CrashDisk::new(), 1);
    let mut engine = world.open(options(65_536)).unwrap();
    let mut truth = Truth::new();
    for step in 0..60u64 {
        let now = engine.now().0;
        for text in NAMES {
            let items = [(["a", "b", "c", "d", "e"][step as usize % 5], 1 + step % 3), ("always", 1)];
            // Some come late, and some too late; one is ahead.
            let time = now.saturating_sub([0, 0, 1_500, 0, 5_000][step as usize % 5]) + 10_000 * u64::from(step == 7);
            assert!(!matches!(ask(&engine, at(time, count(text, &items))), Reply::Refused(_)), "{text}");
            truth.entry(text).or_default().record(time, now, &items, text.ends_with(['h', 'u']));
        }
        world.clock.advance(Duration::from_millis(370 + 1_900 * u64::from(step % 13 == 12)));
        let now = engine.now().0;
        truth.iter().for_each(|(text, arrivals)| check(&engine, text, arrivals, &format!("step {step} at {now}")));
        match step % 20 {
            6 => engine.steps().seal_all().unwrap(),
            11 | 17 => {
                drop(engine);
                let after = World::new(world.disk.kill(world.disk.operations()).into_disk(), 2);
                after.clock.advance(Duration::from_millis(now.saturating_sub(after.clock_wall())));
                world = after;
                engine = world.open(options(65_536)).unwrap();
            }
            _ => {}
        }
    }
    // Nothing comes any more: all of it is forgotten, and the counters are still there.
    world.clock.advance(Duration::from_secs(4));
    for (text, arrivals) in &truth {
        check(&engine, text, arrivals, "at the end");
        assert!(arrivals.within_window(engine.now().0).is_empty() && engine.read(*text).unwrap().exists);
        assert!(arrivals.late > 0);
    }
    assert_eq!(ask(&engine, count_unique(&["w:u", "q:u"], NATIVE)), Reply::Estimate(quipu_model::Estimate::exact(0)));
}

#[test]
fn panes_that_have_left_are_gone_from_memory_and_from_the_ledger() {
    let world = World::new(CrashDisk::new(), 1);
    let engine = world.open(options(65_536)).unwrap();
    let fill = |engine: &Engine| {
        for round in 0..4 {
            let items: Vec<String> = (0..3_000).map(|n| format!("{round} {n}")).collect();
            for some in items.chunks(500) {
                let some: Vec<(&str, u64)> = some.iter().map(|item| (item.as_str(), 1)).collect();
                NAMES.iter().for_each(|text| drop(ask(engine, count(text, &some))));
            }
            world.clock.advance(Duration::from_secs(1));
        }
    };
    let pages = || {
        let (ledger, mut pages) = (look_at_ledger(&world.disk, std::path::Path::new(crate::world::DATA))().unwrap(), 0);
        ledger
            .aux_records(&mut |key, _| {
                pages += usize::from(key.first() == Some(&5));
                std::ops::ControlFlow::Continue(())
            })
            .unwrap();
        pages
    };
    fill(&engine);
    engine.steps().seal_all().unwrap();
    let full = (engine.stats().bodies_bytes, pages());
    // Twice as long is not twice as much.
    fill(&engine);
    engine.steps().seal_all().unwrap();
    assert!(engine.stats().bodies_bytes <= full.0 + full.0 / 10 && pages() <= full.1 + full.1 / 10);
    // What begins next drops all that has left.
    world.clock.advance(Duration::from_secs(10));
    NAMES.iter().for_each(|text| drop(ask(&engine, count(text, &[("a", 1)]))));
    engine.steps().seal_all().unwrap();
    let (bytes, left) = (engine.stats().bodies_bytes, pages());
    assert!(bytes < full.0 / 2 && left < full.1 / 2, "{bytes} of {}, {left} of {}", full.0, full.1);
    run(&engine, Command::Delete { names: NAMES.iter().map(|text| name(text)).collect() });
    engine.steps().seal_all().unwrap();
    assert_eq!((engine.stats().bodies_bytes, pages()), (0, 0));
    drop(engine);
    world.open(options(65_536)).unwrap();
}

#[test]
fn backups_inspections_and_audits_know_windows() {
    let world = World::new(CrashDisk::new(), 1);
    let engine = world.open(options(65_536)).unwrap();
    let mut truth = Truth::new();
    for step in 0..6 {
        let now = engine.now().0;
        for text in NAMES {
            let items = [(["a", "b", "c"][step % 3], 2)];
            ask(&engine, count(text, &items));
            truth.entry(text).or_default().record(now, now, &items, text.ends_with(['h', 'u']));
        }
        if step == 2 {
            engine.steps().seal_all().unwrap();
        }
        world.clock.advance(Duration::from_millis(800));
    }
    let dir = Path::new("/backup");
    engine.backup(dir).unwrap();
    drop(engine);
    let look = |dir: &Path| look_at_ledger(&world.disk, dir)();
    let audited = audit(&world.disk, Path::new(DATA), &mut || look(Path::new(DATA)), &mut |_, _| ()).unwrap().unwrap();
    assert!(audited.is_clean(), "{audited:?}");
    assert_eq!((audited.counters, audited.sketches), (7, 7));
    let found = inspect::inspect(&world.disk, dir, || look(dir), |_, _| Ok(())).unwrap();
    assert!(found.verdict.is_ok() && found.counters == 7);
    let restored = Path::new("/restored");
    quipu_engine::restore(&world.disk, &found, &world.disk, restored, &mut |_| ControlFlow::Continue(())).unwrap();
    let engine = world.open(Options { data: restored.to_owned(), ..options(65_536) }).unwrap();
    truth.iter().for_each(|(text, arrivals)| check(&engine, text, arrivals, "restored"));
}

#[test]
fn what_a_namespace_says_is_for_counters_that_are_made_then() {
    let world = World::new(CrashDisk::new(), 1);
    let engine = world.open(options(65_536)).unwrap();
    ask(&engine, count("d:u", &[("before", 1)]));
    engine.put_namespace("d", windowed(Durability::Durable)).unwrap();
    engine.put_namespace("w", Namespace::with_durability(Durability::Durable)).unwrap();
    for text in ["d:u", "d:f", "w:u"] {
        ask(&engine, count(text, &[("a", 1)]));
    }
    world.clock.advance(Duration::from_secs(5));
    assert_eq!(uniques(&engine, &["d:u"]), 2, "made before there was a window");
    assert_eq!(engine.read("d:u").unwrap().window, None);
    assert_eq!(
        (engine.read("d:f").unwrap().value, engine.read("w:u").unwrap().value),
        (0, 0),
        "the file's is in force again"
    );
    engine.put_namespace("d", Namespace::default()).unwrap();
    ask(&engine, count("d:v", &[("a", 1)]));
    assert_eq!(engine.read("d:v").unwrap().window, None);
    assert!(engine.read("d:f").unwrap().window.is_some(), "and what was made goes on as it is");
}

#[test]
fn what_has_no_times_does_not_come_into_a_window() {
    let (world, hll) = (World::new(CrashDisk::new(), 1), quipu_sketch::Hll::new());
    let engine = world.open(options(65_536)).unwrap();
    NAMES.iter().for_each(|text| drop(ask(&engine, count(text, &[("a", 1), ("b", 2)]))));
    ask(&engine, count("d:u", &[("b", 1), ("c", 1)]));
    let reason = "what has no times cannot come into a sketch over time";
    let not = || refused(Refusal::NotOffered { reason });
    let merge = |names: &[&'static str]| SketchCommand::MergeUnique {
        names: names.iter().map(|text| name(text)).collect(),
        dialect: NATIVE,
    };
    assert_eq!(ask(&engine, merge(&["w:u", "d:u"])), not());
    assert_eq!(ask(&engine, merge(&["w:new", "d:u"])), not());
    assert_eq!(ask(&engine, super::set_string("w:h", hll.redis_string())), not());
    let names = vec![name("w:c"), name("w:c")];
    assert_eq!(ask(&engine, SketchCommand::MergeFrequency { names, weights: vec![1], dialect: REDIS }), not());
    let read = run(&engine, Command::Read { name: name("w:h") });
    assert!(matches!(read, Reply::Refused(Refusal::OtherKind { .. })), "it is no string: {read:?}");
    // The other way round it does: what is in the window now.
    assert_eq!(ask(&engine, merge(&["d:u", "w:u"])), Reply::Ok);
    assert_eq!(uniques(&engine, &["d:u"]), 3);
    ask(&engine, super::make_frequency("d:c", REDIS));
    let names = vec![name("d:c"), name("w:c")];
    let merged = ask(&engine, SketchCommand::MergeFrequency { names, weights: vec![3], dialect: REDIS });
    assert_eq!(merged, refused(Refusal::SizesDiffer));
    let both = SketchCommand::RelateUnique {
        names: [name("w:u"), name("d:u")],
        relation: quipu_model::Relation::Intersection,
    };
    assert!(matches!(ask(&engine, both), Reply::Estimate(known) if known.value == 2));
    // Too many slots to bring together when it is read.
    let mut large = options(65_536);
    large
        .namespaces
        .push((Box::from(*b"l"), Namespace { window: Some(Panes::parse("1d/1440").unwrap()), ..Namespace::default() }));
    let world = World::new(CrashDisk::new(), 1);
    let engine = world.open(large).unwrap();
    let make = |k| SketchCommand::MakeTop { name: name("l:t"), size: TopSize::with_k(k), dialect: NATIVE };
    assert!(matches!(ask(&engine, make(100)), Reply::Refused(Refusal::BadSize { .. })));
    assert_eq!(ask(&engine, make(20)), Reply::Ok);
}

#[test]
fn a_window_in_memory_is_journaled_whole_under_a_token() {
    let world = World::new(CrashDisk::new(), 1);
    let engine = world.open(options(65_536)).unwrap();
    ask(&engine, count("n:u", &[("a", 1)]));
    ask(&engine, count("n:f", &[("a", 2)]));
    world.clock.advance(Duration::from_secs(1));
    ask(&engine, count("n:u", &[("b", 1)]));
    world.clock.advance(Duration::from_secs(1));
    for (text, token) in [("n:u", &b"1"[..]), ("n:f", b"2")] {
        let identity = Identity::token(b"p", token).unwrap();
        for _ in 0..2 {
            engine.execute_once(&identity, &Command::Sketch(count(text, &[("c", 1)]))).unwrap();
        }
    }
    let now = engine.now().0;
    engine.steps().write_filled();
    drop(engine);
    let world = World::new(world.disk.kill(world.disk.operations()).into_disk(), 2);
    world.clock.advance(Duration::from_millis(now.saturating_sub(world.clock_wall())));
    let engine = world.open(options(65_536)).unwrap();
    assert_eq!((uniques(&engine, &["n:u"]), engine.read("n:f").unwrap().value), (3, 3));
    world.clock.advance(Duration::from_secs(2));
    assert_eq!((uniques(&engine, &["n:u"]), engine.read("n:f").unwrap().value), (2, 1));
}

#[test]
fn what_is_trending_halves_with_every_half_life() {
    let mut world = World::new(CrashDisk::new(), 1);
    let mut engine = world.open(options(65_536)).unwrap();
    let worth = |engine: &Engine, item: &str| {
        let Reply::TopItems(rows) = ask(engine, SketchCommand::ListTop { name: name("t:p"), dialect: NATIVE }) else {
            panic!()
        };
        let row = rows.into_iter().find(|row| &*row.item == item.as_bytes());
        row.map_or((0, 0), |row| (row.at_least, row.at_most))
    };
    ask(&engine, count("t:p", &[("old", 1_000), ("older", 64)]));
    assert_eq!((worth(&engine, "old"), engine.read("t:p").unwrap().value), ((1_000, 1_000), 1_064));
    world.clock.advance(Duration::from_secs(2));
    ask(&engine, count("t:p", &[("new", 600)]));
    assert_eq!(
        (worth(&engine, "old"), worth(&engine, "new"), worth(&engine, "older")),
        ((500, 500), (600, 600), (32, 32))
    );
    let Reply::TopItems(rows) = ask(&engine, SketchCommand::ListTop { name: name("t:p"), dialect: NATIVE }) else {
        panic!()
    };
    assert_eq!(&*rows[0].item, b"new", "though it came less often");
    // Event times count as what they are worth now; what is too old is late.
    let now = engine.now().0;
    ask(&engine, at(now - 2_000, count("t:p", &[("late", 10)])));
    assert_eq!(worth(&engine, "late"), (5, 5));
    ask(&engine, at(now - 100_000, count("t:p", &[("late", 10)])));
    assert_eq!((worth(&engine, "late"), engine.read("t:p").unwrap().window.unwrap().late), ((5, 5), 10));
    // Far beyond where the landmark has to move, with a seal and a kill in between.
    for round in 1..=5 {
        world.clock.advance(Duration::from_secs(2));
        if round == 2 {
            engine.steps().seal_all().unwrap();
        }
        ask(&engine, count("t:p", &[("steady", 100)]));
        let now = engine.now().0;
        drop(engine);
        let after = World::new(world.disk.kill(world.disk.operations()).into_disk(), 2);
        after.clock.advance(Duration::from_millis(now.saturating_sub(after.clock_wall())));
        world = after;
        engine = world.open(options(65_536)).unwrap();
    }
    for _ in 0..20 {
        world.clock.advance(Duration::from_secs(2));
        ask(&engine, count("t:p", &[("steady", 100)]));
    }
    let (low, high) = worth(&engine, "steady");
    assert!((198..=200).contains(&low) && (200..=202).contains(&high), "{low} {high}");
    assert!(worth(&engine, "old").1 <= 1);
    let total = engine.read("t:p").unwrap().value;
    assert!((198..=204).contains(&total), "{total}");
}

#[test]
fn damage_at_rest_is_refused_or_leaves_a_sketch_that_can_be_asked() {
    let world = World::new(CrashDisk::new(), 1);
    let engine = world.open(options(65_536)).unwrap();
    let items: Vec<String> = (0..400).map(|n| format!("item {n}")).collect();
    for some in items.chunks(100) {
        let some: Vec<(&str, u64)> = some.iter().map(|item| (item.as_str(), 3)).collect();
        for text in NAMES.into_iter().chain([DECAYING, "d:h", "d:u", "d:f", "d:p"]) {
            assert!(!matches!(ask(&engine, count(text, &some)), Reply::Refused(_)));
        }
        world.clock.advance(Duration::from_millis(900));
    }
    engine.steps().seal_all().unwrap();
    engine.close().unwrap();
    drop(engine);
    let ledger = FileLedger::open(Arc::new(world.disk.clone()), Path::new(DATA)).unwrap();
    let (mut pages, watermark) = (Vec::new(), ledger.watermark().unwrap().unwrap());
    ledger
        .aux_records(&mut |key, value| {
            if key.first() == Some(&5) {
                pages.push((key.to_vec(), value.to_vec()));
            }
            ControlFlow::Continue(())
        })
        .unwrap();
    assert!(pages.len() > 40, "{}", pages.len());
    let (rng, mut refusals, mut opened) = (SeededRng::new(7), 0, 0);
    for input in 0..3_000 {
        let (mut key, mut value) = pages[rng.below(pages.len())].clone();
        let end = key.len();
        match rng.below(8) {
            // Another pane, another page, the value of another.
            0 => key[end - 5] ^= 1 << rng.below(3),
            1 => key[end - 1] ^= 1 << rng.below(3),
            2 => value = pages[rng.below(pages.len())].1.clone(),
            3 => value.truncate(rng.below(value.len())),
            _ => {
                let head = if rng.chance(60) { value.len().min(96) } else { value.len() };
                (0..1 + rng.below(3)).for_each(|_| value[rng.below(head)] ^= 1 << rng.below(8));
            }
        }
        let gone = rng.chance(8);
        let disk = world.disk.kill(world.disk.operations()).into_disk();
        let broken = FileLedger::open(Arc::new(disk.clone()), Path::new(DATA)).unwrap();
        let note = AuxRecord { key: key.into(), value: (!gone && !value.is_empty()).then(|| value.into()) };
        broken.ingest(&[], &[note], &watermark).unwrap();
        drop(broken);
        let again = World::new(disk, 3);
        match again.open(options(65_536)) {
            Err(error) => {
                refusals += 1;
                assert!(error.to_string().contains("sketch"), "input {input}: {error}");
            }
            // Damage that no check can tell from what may be: it can be asked, and goes on.
            Ok(engine) => {
                opened += 1;
                for text in NAMES.into_iter().chain([DECAYING, "d:h", "d:u", "d:f", "d:p"]) {
                    engine.read(text).unwrap();
                    ask(&engine, SketchCommand::ListTop { name: name(text), dialect: NATIVE });
                    ask(&engine, read_items(text, &["item 1"], NATIVE));
                    ask(&engine, count(text, &[("one more", 1)]));
                }
                engine.steps().seal_all().unwrap();
            }
        }
    }
    println!("proof: damaged pages: 3000 directories, {refusals} refused, {opened} opened, no panic");
    assert!(refusals > 800 && opened > 100, "{refusals} {opened}");
}

// ---- loss of power
// --------------------------------------------------------------------------------------------------------------------

#[derive(Default)]
struct Tally {
    crashes: BTreeSet<u64>,
    operations: usize,
    seals: usize,
    once: usize,
    begun: usize,
}

struct Trace {
    /// What there was at the end of each record.
    states: BTreeMap<Position, Truth>,
    /// So many operations of the disk had returned when the record that ends there was
    /// acknowledged, as durable or not.
    acked: Vec<(usize, Position, bool)>,
    now: Truth,
}

#[test]
fn every_crash_leaves_windows_as_they_were_and_keeps_what_was_acknowledged() {
    let seeds: u64 = std::env::var("QUIPU_CRASH_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(60);
    let mut tally = Tally::default();
    (0..seeds).for_each(|seed| run_seed(seed, &mut tally));
    println!(
        "proof: windows: {} distinct crash states from {seeds} seeds, {} operations, {} under tokens, {} seals, {} panes begun",
        tally.crashes.len(),
        tally.operations,
        tally.once,
        tally.seals,
        tally.begun
    );
    if seeds >= 50 {
        assert!(tally.crashes.len() > 1_000 && tally.seals > 100 && tally.once > 100 && tally.begun > 1_000);
    }
}

fn run_seed(seed: u64, tally: &mut Tally) {
    let rng = SeededRng::new(seed ^ 0x3a4e);
    let segment_bytes = *rng.pick(&[4096, 16_384, 65_536]);
    let (mut disk, mut truth, mut wall) = (CrashDisk::new(), Truth::new(), 0);
    for incarnation in 0..3 {
        let world = World::new(disk, rng.next_u64());
        world.clock.advance(Duration::from_millis(u64::max(wall, world.clock_wall()) - world.clock_wall()));
        let engine =
            world.open(options(segment_bytes)).unwrap_or_else(|e| panic!("seed {seed}, life {incarnation}: {e}"));
        let operations_at_start = world.disk.operations();
        let mut trace = Trace { states: BTreeMap::new(), acked: Vec::new(), now: truth };
        trace.states.insert(engine.steps().reserved(), trace.now.clone());
        let mut seal = None;
        for step in 0..50 + rng.below(50) {
            match rng.below(100) {
                0..70 => act(&world, &engine, &rng, &mut trace, tally, step),
                70..88 => {
                    for _ in 0..1 + rng.below(4) {
                        let open = seal.is_some();
                        seal = advance(&engine, seal);
                        tally.seals += usize::from(open && seal.is_none());
                    }
                }
                _ => world.clock.advance(Duration::from_millis(rng.below(1_500) as u64)),
            }
        }
        let operations = world.disk.operations();
        wall = engine.now().0;
        for _ in 0..15 {
            let at = operations_at_start + rng.below(operations - operations_at_start + 1);
            let context = format!("seed {seed}, life {incarnation}, crash at {at}");
            judge(&world, &trace, (at, segment_bytes, wall), &rng, tally, &context);
        }
        let context = format!("seed {seed}, life {incarnation}, crash at its end");
        (disk, truth) = judge(&world, &trace, (operations, segment_bytes, wall), &rng, tally, &context);
    }
}

fn advance(engine: &Engine, seal: Option<quipu_engine::Seal>) -> Option<quipu_engine::Seal> {
    let steps = engine.steps();
    let mut seal = seal.unwrap_or_else(|| steps.begin_seal());
    match steps.step_seal(&mut seal) {
        Ok(quipu_engine::SealStep::More) => Some(seal),
        Ok(quipu_engine::SealStep::WaitFor(_)) => {
            steps.write_filled();
            steps.sync();
            Some(seal)
        }
        Ok(quipu_engine::SealStep::Done) => {
            steps.finish_seal(seal).unwrap();
            None
        }
        Err(quipu_engine::SealError::Flushed) => None,
        Err(error) => panic!("{error}"),
    }
}

const ITEMS: [&str; 6] = ["a", "b", "c", "d", "an item of some length, for a list", ""];

fn act(world: &World, engine: &Engine, rng: &SeededRng, trace: &mut Trace, tally: &mut Tally, step: usize) {
    let all = [&NAMES[..], &IN_MEMORY, &[DECAYING]].concat();
    let text = *rng.pick(&all);
    let now = engine.now().0;
    let (before, truth) = (trace.now.clone(), &mut trace.now);
    let mut commands = Vec::new();
    let mut items: Vec<(String, u64)> =
        (0..1 + rng.below(3)).map(|_| ((*rng.pick(&ITEMS)).to_owned(), 1 + rng.below(4) as u64)).collect();
    if rng.chance(4) {
        // A pane that has become a table.
        let from = rng.below(1 << 20);
        items.extend((from..from + 300 + rng.below(400)).map(|n| (format!("item {n}"), 1)));
    }
    let items: Vec<(&str, u64)> = items.iter().map(|(item, by)| (item.as_str(), *by)).collect();
    match rng.below(100) {
        0..4 => {
            truth.remove(text);
            commands.push(Command::Delete { names: vec![name(text)] });
        }
        4 => {
            truth.clear();
            commands.push(Command::Flush);
        }
        _ => {
            for _ in 0..if rng.chance(15) { 2 } else { 1 } {
                let time = if rng.chance(60) { now } else { now.saturating_sub(rng.below(5_500) as u64) };
                let before: BTreeSet<u64> = truth
                    .get(text)
                    .into_iter()
                    .flat_map(|arrivals| arrivals.items.keys())
                    .map(|(pane, _)| *pane)
                    .collect();
                truth.entry(text).or_default().record(time, now, &items, text.ends_with(['h', 'u']));
                tally.begun += usize::from(truth[text].items.keys().any(|(pane, _)| !before.contains(pane)));
                let counted = count(text, &items);
                commands.push(Command::Sketch(if time == now { counted } else { at(time, counted) }));
            }
            if rng.chance(10) {
                // What is in memory alone comes with it, whole.
                let text = *rng.pick(&IN_MEMORY);
                commands.push(Command::Sketch(count(text, &items[..1])));
            }
            if rng.chance(5) {
                let when = quipu_model::ExpiryTime::In(1_000_000);
                let condition = quipu_model::ExpiryCondition::Always;
                commands.push(Command::Expire { name: name(IN_MEMORY[rng.below(3)]), when, condition });
            }
        }
    }
    tally.operations += 1;
    let (wait, was_refused) = if let ([command], true) = (&commands[..], rng.chance(15)) {
        tally.once += 1;
        let token = format!("{step} {}", rng.next_u64());
        let identity = Identity::token(b"p", token.as_bytes()).unwrap();
        loop {
            let mut turn = engine.turn();
            let ran = turn.run_once(&identity, std::slice::from_ref(command));
            let wait = turn.finish();
            match ran {
                Ok(reply) => break (wait, matches!(reply, Reply::Refused(_))),
                Err(load) => drop(engine.load(load)),
            }
        }
    } else {
        loop {
            let mut turn = engine.turn();
            let ran = turn.run_transaction(&commands, &[]);
            let wait = turn.finish();
            match ran {
                Ok(replies) => break (wait, replies.unwrap().iter().any(|reply| matches!(reply, Reply::Refused(_)))),
                Err(NotRun::Load(load)) => drop(engine.load(load)),
                Err(NotRun::Refused(refusal)) => panic!("{refusal}"),
            }
        }
    };
    if was_refused {
        // Too long an answer for a token; nothing was applied.
        assert_eq!(commands.len(), 1);
        trace.now = before;
    }
    let position = engine.steps().reserved();
    if rng.chance(70) {
        engine.steps().write_filled();
        if text.starts_with('w') || rng.chance(30) {
            engine.steps().sync();
        }
        if engine.steps().has_reached(wait) {
            trace.acked.push((world.disk.operations(), position, text.starts_with('w')));
        }
    }
    trace.states.insert(position, trace.now.clone());
}

fn judge(
    world: &World,
    trace: &Trace,
    (at, segment_bytes, wall): (usize, u64, u64),
    rng: &SeededRng,
    tally: &mut Tally,
    context: &str,
) -> (CrashDisk, Truth) {
    let power = rng.chance(80);
    let image = if power { world.disk.crash(at, rng) } else { world.disk.kill(at) };
    tally.crashes.insert(image.digest());
    let again = World::new(image.into_disk(), rng.next_u64());
    // Now, or as long before as the journal does not know better.
    if rng.chance(50) {
        again.clock.advance(Duration::from_millis(wall.saturating_sub(again.clock_wall())));
    }
    let engine = again.open(options(segment_bytes)).unwrap_or_else(|e| panic!("{context}: refused: {e}"));
    let tail = engine.recovery().tail.position;
    let first = *trace.states.keys().next().unwrap();
    let truth = trace.states.get(&tail.max(first)).unwrap_or_else(|| panic!("{context}: no record ended at {tail}"));
    let shown = trace.acked.iter().filter(|(operations, _, durable)| *operations <= at && (*durable || !power));
    if let Some((_, position, _)) = shown.max_by_key(|(_, position, _)| *position) {
        assert!(*position <= tail, "{context}: taken back: {position} was acknowledged, {tail} is left");
    }
    for text in NAMES.into_iter().chain([DECAYING]) {
        match truth.get(text) {
            Some(arrivals) => check(&engine, text, arrivals, context),
            None => assert!(!engine.read(text).unwrap().exists, "{context}: {text}"),
        }
    }
    // What is in memory is any of what it was; it can be read and goes on.
    for text in IN_MEMORY {
        assert!(!matches!(ask(&engine, count(text, &[("x", 1)])), Reply::Refused(_)), "{context}: {text}");
        engine.read(text).unwrap();
    }
    drop(engine);
    let mut truth = truth.clone();
    IN_MEMORY.iter().for_each(|text| drop(truth.remove(text)));
    (again.disk.kill(again.disk.operations()).into_disk(), truth)
}
