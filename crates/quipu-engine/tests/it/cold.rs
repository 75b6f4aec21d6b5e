//! Tests counters at rest: loaded on demand, never loaded by mistake, never lost on the way.

use std::future::Future;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use quipu_engine::{Engine, Error, Load, LoadOutcome, Options};
use quipu_model::{
    AuxRecord, AuxRecordVisitor, Cell, CellVisitor, Command, CopyProgress, Durability, ExpiryTime, Ledger, LedgerError,
    LedgerStats, ListNames, Name, OwnCellsVisitor, Pattern, Refusal, Reply, Scan, SealedCell, Set, SetCondition,
    SetExpiry,
};
use quipu_testkit::{CrashDisk, FileLedger};

use crate::world::{World, small_options};

/// A ledger that does something when it is read, in the moment between the reading and what is done
/// with it.
struct WatchedLedger {
    ledger: FileLedger,
    gets: AtomicUsize,
    on_get: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Ledger for WatchedLedger {
    fn watermark(&self) -> Result<Option<Vec<u8>>, LedgerError> {
        self.ledger.watermark()
    }

    fn ingest(&self, cells: &[SealedCell], notes: &[AuxRecord], watermark: &[u8]) -> Result<(), LedgerError> {
        self.ledger.ingest(cells, notes, watermark)
    }

    fn clear(&self, notes: &[AuxRecord], watermark: &[u8]) -> Result<(), LedgerError> {
        self.ledger.clear(notes, watermark)
    }

    fn aux_records(&self, visit: &mut AuxRecordVisitor<'_>) -> Result<(), LedgerError> {
        self.ledger.aux_records(visit)
    }

    fn get(&self, hash: u64, name: &[u8]) -> Result<Option<Cell>, LedgerError> {
        self.gets.fetch_add(1, Ordering::SeqCst);
        let found = self.ledger.get(hash, name);
        let work = self.on_get.lock().unwrap().take();
        if let Some(work) = work {
            work();
        }
        found
    }

    fn range(&self, from: u64, visit: &mut CellVisitor<'_>) -> Result<(), LedgerError> {
        self.ledger.range(from, visit)
    }

    fn own_cells(&self, hash: u64, name: &[u8]) -> Result<Option<Box<[u8]>>, LedgerError> {
        self.ledger.own_cells(hash, name)
    }

    fn range_own_cells(&self, from: u64, visit: &mut OwnCellsVisitor<'_>) -> Result<(), LedgerError> {
        self.ledger.range_own_cells(from, visit)
    }

    fn compact(&self) -> Result<bool, LedgerError> {
        self.ledger.compact()
    }

    fn copy_to(&self, data: &Path, copied: &mut CopyProgress<'_>) -> Result<(), LedgerError> {
        self.ledger.copy_to(data, copied)
    }

    fn stats(&self) -> LedgerStats {
        self.ledger.stats()
    }
}

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

fn set(text: &str, value: i64, expiry: SetExpiry) -> Command<'_> {
    Command::Set(Set { name: name(text), value, condition: SetCondition::Always, expiry, reply_old: false })
}

/// An engine that has been closed with these counters and opened again: all of them are at rest.
fn at_rest(counters: &[(&str, i64)]) -> (World, Engine, Arc<WatchedLedger>) {
    let world = World::new(CrashDisk::new(), 1);
    let engine = world.open(small_options(8192)).unwrap();
    for (text, value) in counters {
        engine.set(text, *value).unwrap();
    }
    engine.close().unwrap();
    drop(engine);
    let ledger = FileLedger::open(Arc::new(world.disk.clone()), "/data".as_ref()).unwrap();
    let watched = Arc::new(WatchedLedger { ledger, gets: AtomicUsize::new(0), on_get: Mutex::new(None) });
    let mut environment = world.environment();
    let opened = watched.clone();
    environment.open_ledger = Arc::new(move |_: &Options| Ok(opened.clone()));
    let engine = Engine::open_with(small_options(8192), environment).unwrap();
    (world, engine, watched)
}

fn evict_all(engine: &Engine) -> usize {
    let steps = engine.steps();
    (0..2 * steps.shard_count()).map(|index| steps.evict(index % steps.shard_count())).sum()
}

fn poll<F: Future + Unpin>(mut future: F) -> Poll<F::Output> {
    std::pin::Pin::new(&mut future).poll(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn a_counter_at_rest_is_loaded_once_and_counts_on() {
    let (_, engine, ledger) = at_rest(&[("d:a", 5), ("m:a", 7)]);
    assert_eq!((engine.stats().counters, ledger.gets.load(Ordering::SeqCst)), (2, 0));
    assert_eq!((engine.add("d:a", 1).unwrap(), engine.add("m:a", 1).unwrap()), (6, 8));
    assert_eq!((engine.add("d:a", 1).unwrap(), engine.read("d:b").unwrap().exists), (7, false));
    assert_eq!(ledger.gets.load(Ordering::SeqCst), 3, "each name once");
}

#[test]
fn nothing_is_looked_up_while_nothing_was_left_at_rest() {
    let world = World::new(CrashDisk::new(), 1);
    let engine = world.open(small_options(8192)).unwrap();
    engine.add("d:a", 1).unwrap();
    engine.steps().seal_all().unwrap();
    let mut turn = engine.turn();
    assert_eq!(turn.run(&Command::Read { name: name("d:new") }), Ok(Reply::Value(None)));
}

#[test]
fn a_flush_between_the_reading_and_the_loading_is_not_undone() {
    let (_, engine, ledger) = at_rest(&[("d:a", 5), ("d:b", 6)]);
    let flushing = engine.clone();
    *ledger.on_get.lock().unwrap() = Some(Box::new(move || {
        flushing.execute(&Command::Flush).unwrap();
    }));
    assert!(!engine.read("d:a").unwrap().exists);
    assert_eq!(engine.stats().counters, 0);
    assert_eq!(engine.add("d:b", 1).unwrap(), 1);
}

#[test]
fn what_a_second_load_would_bring_back_is_not_read_at_all() {
    let (_, engine, ledger) = at_rest(&[("d:a", 5)]);
    let steps = engine.steps();
    let ask = || steps.enqueue_load(Load::Names(vec![name("d:a").bytes().into()]));
    let (first, second) = (ask(), ask());
    assert_eq!(steps.run_loads(), (2, 0));
    assert_eq!((poll(first), poll(second)), (Poll::Ready(LoadOutcome::Retry), Poll::Ready(LoadOutcome::Retry)));
    assert_eq!(ledger.gets.load(Ordering::SeqCst), 1, "the second found it there");
}

#[test]
fn what_has_changed_or_is_being_sealed_does_not_leave_memory() {
    let (_, engine, _) = at_rest(&[]);
    engine.add("d:a", 1).unwrap();
    assert_eq!(evict_all(&engine), 0, "only the journal has it");
    let seal = crate::world::seal_without_cut(&engine);
    assert_eq!(evict_all(&engine), 0, "the seal is not finished");
    engine.steps().finish_seal(seal).unwrap();
    engine.add("d:b", 1).unwrap();
    assert_eq!(evict_all(&engine), 1);
    assert_eq!((engine.add("d:a", 1).unwrap(), engine.add("d:b", 1).unwrap()), (2, 2));
}

#[test]
fn a_counter_deleted_at_rest_stays_deleted() {
    let (world, engine, _) = at_rest(&[("d:a", 5), ("d:b", 5)]);
    assert!(engine.delete("d:a").unwrap());
    assert!(!engine.read("d:a").unwrap().exists);
    engine.steps().seal_all().unwrap();
    evict_all(&engine);
    assert!(!engine.read("d:a").unwrap().exists);
    assert_eq!(engine.stats().counters, 1);
    let again = World::new(world.disk.kill(world.disk.operations()).into_disk(), 5).open(small_options(8192)).unwrap();
    assert!(!again.read("d:a").unwrap().exists);
    assert_eq!(again.read("d:b").unwrap().value, 5);
}

#[test]
fn a_seal_of_nothing_writes_nothing() {
    let (world, engine, _) = at_rest(&[("d:a", 5)]);
    engine.steps().seal_all().unwrap();
    let before = world.disk.operations();
    engine.steps().seal_all().unwrap();
    assert_eq!(world.disk.operations(), before);
}

#[test]
fn counters_that_expire_at_rest_are_found_without_being_asked_for() {
    let world = World::new(CrashDisk::new(), 1);
    let engine = world.open(small_options(8192)).unwrap();
    for index in 0..50 {
        engine.execute(&set(&format!("d:{index}"), 1, SetExpiry::At(ExpiryTime::In(1000 + index)))).unwrap();
    }
    engine.add("d:stays", 1).unwrap();
    engine.steps().seal_all().unwrap();
    assert_eq!(evict_all(&engine), 51);
    let steps = engine.steps();
    let sweep = || {
        for shard in 0..steps.shard_count() {
            while steps.sweep(shard).unwrap() {}
            while steps.expire(shard) > 0 {}
        }
    };
    sweep();
    assert_eq!(engine.stats().counters, 51, "none has expired yet");
    world.clock.advance(Duration::from_millis(1025));
    sweep();
    assert_eq!(engine.stats().counters, 25);
    // Over a restart, too.
    engine.close().unwrap();
    let again = World::new(world.disk.kill(world.disk.operations()).into_disk(), 5);
    let engine = again.open(small_options(8192)).unwrap();
    again.clock.set_wall(quipu_model::Millis(world.clock_wall() + 5_000));
    let steps = engine.steps();
    for shard in 0..steps.shard_count() {
        while steps.sweep(shard).unwrap() {}
        while steps.expire(shard) > 0 {}
    }
    assert_eq!(engine.stats().counters, 1);
}

#[test]
fn walks_meet_names_in_memory_and_at_rest_once_each() {
    let (_, engine, _) = at_rest(&[("d:a", 1), ("d:b", 1), ("d:c", 1), ("m:d", 1)]);
    engine.add("d:new", 1).unwrap();
    engine.add("d:a", 1).unwrap();
    engine.delete("d:b").unwrap();
    let expected = ["d:a", "d:c", "d:new", "m:d"];
    let listed = engine.execute(&Command::ListNames(ListNames { pattern: Pattern(b"*"), bytes_max: 1000 })).unwrap();
    let Reply::Names(mut listed) = listed else { panic!("{listed:?}") };
    listed.sort();
    assert!(listed.iter().map(|name| &**name).eq(expected.iter().map(|name| name.as_bytes())), "{listed:?}");
    for count in 1..6 {
        let (mut cursor, mut met) = (0, Vec::new());
        loop {
            let page = engine.execute(&Command::Scan(Scan { cursor, pattern: None, count })).unwrap();
            let Reply::Page(next, names) = page else { panic!("{page:?}") };
            met.extend(names);
            cursor = next;
            if cursor == 0 {
                break;
            }
        }
        met.sort();
        assert_eq!(met, listed, "{count} at a time");
    }
}

#[test]
fn new_counters_are_refused_when_memory_is_full_and_the_others_count_on() {
    let world = World::new(CrashDisk::new(), 1);
    let options = Options { memory_bytes_max: Some(1 << 20), ..small_options(1 << 20) };
    let engine = world.open(options).unwrap();
    let refusal = loop {
        let made = engine.stats().counters;
        if let Err(refusal) = engine.add(format!("d:{made}"), 1) {
            break refusal;
        }
        assert!(made < 100_000, "it never is full");
    };
    assert!(matches!(refusal, Error::Refused(Refusal::NoMemory { bytes_max }) if bytes_max == 1 << 20), "{refusal}");
    let made = engine.stats().counters;
    assert_eq!(engine.add("d:0", 1).unwrap(), 2);
    assert_eq!(engine.read("d:none").unwrap().value, 0);
    let together = [
        Command::Add { name: name("d:1"), delta: 1, shard_key: None },
        Command::Add { name: name("d:none"), delta: 1, shard_key: None },
    ];
    assert!(engine.turn().run_transaction(&together, &[]).is_err(), "all or none");
    assert_eq!(engine.read("d:1").unwrap().value, 1);
    // Sealed, they can leave, and there is memory again.
    engine.steps().seal_all().unwrap();
    assert!(evict_all(&engine) > 0);
    assert_eq!(engine.add("d:none", 1).unwrap(), 1);
    assert_eq!(engine.stats().counters, made + 1);
    assert_eq!(engine.add("d:1", 1).unwrap(), 2);
}

#[test]
fn a_driven_engine_counts_exactly_far_more_counters_than_fit() {
    let world = World::new(CrashDisk::new(), 1);
    let options = Options {
        memory_bytes_max: Some(1 << 20),
        durability: Durability::Relaxed,
        reserve_bytes: 4096,
        ..small_options(1 << 20)
    };
    let engine = Engine::open_with_threads(options, world.environment()).unwrap();
    let counters = 6_000;
    for round in 1..=2 {
        for index in 0..counters {
            assert_eq!(engine.add(format!("x:{index:030}"), 1).unwrap(), round, "{index}");
        }
    }
    let stats = engine.stats();
    assert_eq!(stats.counters, counters);
    assert!(stats.evicted > counters, "{stats:?}");
    engine.close().unwrap();
}

/// An engine with many counters in the journal, on a disk that it has filled.
fn full_by_itself(reserve_bytes: u64) -> (World, Engine) {
    let world = World::new(CrashDisk::new(), 1);
    world.disk.capacity(Some(200_000));
    let engine = world.open(Options { reserve_bytes, ..small_options(16_384) }).unwrap();
    let mut index = 0;
    while engine.add(format!("d:{}", index % 100), 1).is_ok() {
        index += 1;
    }
    (world, engine)
}

#[test]
fn a_journal_that_has_filled_the_disk_is_sealed_with_the_space_kept_for_it() {
    let (_, engine) = full_by_itself(40_000);
    let before = engine.read("d:0").unwrap().value;
    engine.steps().seal_all().unwrap();
    engine.steps().prepare_segments().unwrap();
    assert_eq!(engine.add("d:0", 1).unwrap(), before + 1, "the cut has given segments back");
    // And again, for as long as one likes.
    for round in 0..20_000 {
        if engine.add("d:0", 1).is_err() {
            engine.steps().seal_all().unwrap();
            engine.steps().prepare_segments().unwrap();
            engine.add("d:0", 1).unwrap_or_else(|error| panic!("round {round}: {error}"));
        }
    }
}

#[test]
fn a_seal_that_finds_the_disk_full_changes_nothing() {
    let (world, engine) = full_by_itself(0);
    world.disk.capacity(Some(world.disk.bytes_used()));
    let (before, counters) = (engine.read("d:7").unwrap().value, engine.stats().counters);
    assert!(engine.steps().seal_all().is_err());
    assert_eq!(evict_all(&engine), 0);
    assert_eq!((engine.read("d:7").unwrap().value, engine.stats().counters), (before, counters));
    world.disk.capacity(None);
    engine.steps().seal_all().unwrap();
    assert_eq!(evict_all(&engine), counters as usize);
    assert_eq!(engine.read("d:7").unwrap().value, before);
    let again =
        World::new(world.disk.kill(world.disk.operations()).into_disk(), 5).open(small_options(16_384)).unwrap();
    assert_eq!((again.read("d:7").unwrap().value, again.stats().counters), (before, counters));
}

#[test]
fn the_quota_refuses_like_a_full_disk_and_says_so() {
    let world = World::new(CrashDisk::new(), 1);
    let options = Options { disk_bytes_max: Some(120_000), ..small_options(16_384) };
    let engine = world.open(options).unwrap();
    let refusal = (0..100_000).find_map(|index| engine.add(format!("d:{index}"), 1).err()).expect("there is a quota");
    assert!(
        matches!(&refusal, Error::Refused(Refusal::NoRoom { reason }) if reason.contains("--max-disk")),
        "{refusal}"
    );
    assert!(engine.stats().disk_bytes <= 120_000);
    assert!(!world.has_failed());
    assert_eq!(engine.read("d:0").unwrap().value, 1);
    let again =
        World::new(world.disk.kill(world.disk.operations()).into_disk(), 5).open(small_options(16_384)).unwrap();
    assert_eq!(again.add("d:0", 1).unwrap(), 2, "without a quota it goes on");
}
