//! Tests offline inspection of a directory: its writers, and its consistency.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use quipu_engine::offline::{DirectoryAudit, DirectoryWriters, IncarnationTotals, audit, writers};
use quipu_engine::{
    Engine, Environment, Membership, OpenError, Options, SharingOptions, SystemClock, SystemDisk, SystemLedger,
    Watermark,
};
use quipu_model::{
    Cell, Clock, Command, Epoch, ExpiryCondition, ExpiryTime, Ledger, MemoryStore, Millis, Name, NameBuf, NodeId,
    SealedCell, Store,
};
use quipu_testkit::CrashDisk;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::world::{DATA, World, ledger_on, ledger_opener, seal_without_cut, small_options};

const SEGMENT_BYTES: u64 = 4096;

const SOON: Duration = Duration::from_millis(20);

fn audited(disk: &CrashDisk) -> Result<DirectoryAudit, OpenError> {
    let dir = Path::new(DATA);
    let found = audit(disk, dir, &mut || ledger_opener(disk, dir)(), &mut |_, _| ())?;
    Ok(found.expect("there is a journal"))
}

/// A node that was killed: `d:sealed` is at rest with 5 and `d:expiring` with an expiry, and the
/// journal goes on with adds to both.
fn killed() -> CrashDisk {
    let world = World::new(CrashDisk::new(), 7);
    let engine = world.open(small_options(SEGMENT_BYTES)).unwrap();
    engine.add("d:sealed", 5).unwrap();
    engine.add("d:rests", 11).unwrap();
    engine.add("d:expiring", 1).unwrap();
    let (name, condition) = (Name::new(b"d:expiring").unwrap(), ExpiryCondition::Always);
    engine.execute(&Command::Expire { name, when: ExpiryTime::In(3_600_000), condition }).unwrap();
    seal_without_cut(&engine);
    engine.add("d:sealed", 2).unwrap();
    engine.add("d:expiring", 1).unwrap();
    engine.add("d:new", 1).unwrap();
    world.disk.kill(world.disk.operations()).into_disk()
}

const NONE: Cell = Cell { epoch: Epoch::FIRST, value: 0, expires_at: None };

/// Changes what is at rest, and lets the ledger say otherwise that nothing has happened.
fn tamper(ledger: &dyn Ledger, name: &[u8], change: impl FnOnce(Option<Cell>, &mut SealedCell)) {
    let bytes = ledger.watermark().unwrap().expect("something was sealed");
    let watermark = Watermark::decode(&bytes).expect("it makes sense");
    let hash = xxh3_64_with_seed(name, watermark.seed);
    let mut sealed = SealedCell { hash, name: NameBuf::from(name), cell: None, own: None };
    let cell = ledger.get(hash, name).unwrap();
    sealed.cell = cell;
    change(cell, &mut sealed);
    ledger.ingest(&[sealed], &[], &bytes).unwrap();
}

/// What is told of a directory after one change at rest, without the shards: counter, what,
/// expected, found.
fn drifts_after(name: &str, change: impl FnOnce(Cell, &mut SealedCell)) -> Vec<[String; 4]> {
    let disk = killed();
    let ledger = ledger_on(disk.clone())(&small_options(SEGMENT_BYTES)).unwrap();
    tamper(&*ledger, name.as_bytes(), |cell, sealed| change(cell.unwrap_or(NONE), sealed));
    drop(ledger);
    let found = audited(&disk).unwrap();
    assert!(!found.is_clean());
    let text = |counter: &Option<Box<[u8]>>| {
        counter.as_ref().map_or_else(String::new, |name| String::from_utf8_lossy(name).into_owned())
    };
    found.drifts.iter().map(|d| [text(&d.counter), d.what.clone(), d.expected.clone(), d.found.clone()]).collect()
}

fn parts(drift: &[String; 4]) -> [&str; 4] {
    drift.each_ref().map(String::as_str)
}

#[test]
fn a_directory_that_says_the_same_everywhere_is_clean_and_counted() {
    let found = audited(&killed()).unwrap();
    assert!(found.is_clean(), "{found:?}");
    assert_eq!((found.counters, found.sum, found.own), (4, 7 + 11 + 2 + 1, 0));
}

#[test]
fn a_value_that_is_not_what_the_journal_went_on_from_is_told() {
    let drifts = drifts_after("d:sealed", |cell, sealed| sealed.cell = Some(Cell { value: 4, ..cell }));
    let [drift] = &drifts[..] else { panic!("{drifts:?}") };
    let [counter, what, expected, found] = parts(drift);
    assert_eq!((counter, expected, found), ("d:sealed", "5", "4"));
    assert!(what.starts_with("value before position "), "{what}");
}

#[test]
fn a_counter_that_is_missing_is_told_by_name_and_by_number() {
    let drifts = drifts_after("d:sealed", |_, sealed| sealed.cell = None);
    assert_eq!(drifts.len(), 2, "{drifts:?}");
    let [counter, what, expected, found] = parts(&drifts[0]);
    assert_eq!((counter, expected, found), ("d:sealed", "a counter", "none"));
    assert!(what.starts_with("before position "), "{what}");
    assert!(drifts[1][1].starts_with("counters at rest in shard "), "{drifts:?}");

    let drifts = drifts_after("d:rests", |_, sealed| sealed.cell = None);
    let kept_too_high = |drift: &[String; 4]| {
        drift[0].is_empty() && drift[2].parse::<u64>().unwrap() + 1 == drift[3].parse::<u64>().unwrap()
    };
    assert!(drifts.len() == 2 && drifts.iter().all(kept_too_high), "{drifts:?}");
}

#[test]
fn a_counter_that_should_not_be_there_is_told() {
    let drifts = drifts_after("d:new", |_, sealed| sealed.cell = Some(Cell { value: 9, ..NONE }));
    assert_eq!(parts(&drifts[0])[2..], ["no counter", "9"], "{drifts:?}");
    assert!(drifts[1][1].starts_with("counters at rest in shard "), "{drifts:?}");
}

#[test]
fn an_epoch_or_expiry_beyond_what_the_ledger_keeps_for_the_shard_is_told() {
    let epoch = Epoch { millis: u64::MAX, node: NodeId(1) };
    let drifts = drifts_after("d:rests", |cell, sealed| sealed.cell = Some(Cell { epoch, ..cell }));
    let [drift] = &drifts[..] else { panic!("{drifts:?}") };
    assert_eq!(parts(drift)[..2], ["d:rests", "epoch"]);
    assert!(drift[2].ends_with(" or older"), "{drift:?}");

    let at = Some(Millis(1));
    let drifts = drifts_after("d:expiring", |cell, sealed| sealed.cell = Some(Cell { expires_at: at, ..cell }));
    let [drift] = &drifts[..] else { panic!("{drifts:?}") };
    assert_eq!(parts(drift)[..2], ["d:expiring", "expiry"]);
    assert!(drift[2].ends_with(" or later") && drift[3] == "1", "{drift:?}");
}

#[test]
fn own_cells_that_make_no_sense_and_names_in_the_wrong_place_are_told() {
    let drifts = drifts_after("d:rests", |_, sealed| sealed.own = Some([0xff; 3].into()));
    let [drift] = &drifts[..] else { panic!("{drifts:?}") };
    assert_eq!(parts(drift)[..2], ["d:rests", "own cells"]);
    // At the very end of the last shard, where only its hash is wrong.
    let drifts = drifts_after("d:lost", |_, sealed| (sealed.hash, sealed.cell) = (u64::MAX, Some(NONE)));
    assert_eq!((drifts[0][1].as_str(), drifts[0][3].as_str()), ("hash", "ffffffffffffffff"), "{drifts:?}");
}

#[test]
fn what_would_keep_a_node_from_starting_keeps_it_from_being_audited_in_the_same_words() {
    let disk = killed();
    let ledger = ledger_on(disk.clone())(&small_options(SEGMENT_BYTES)).unwrap();
    ledger.ingest(&[], &[], b"nonsense").unwrap();
    let error = audited(&disk).unwrap_err().to_string();
    assert!(error.ends_with("its watermark makes no sense"), "{error}");
    assert_eq!(crate::world::refusal(World::new(disk, 1).open(small_options(SEGMENT_BYTES))), error);
}

/// What is looked at on the machine's disk, and not changed.
fn on_disk<T>(
    data: &Path,
    read: impl FnOnce(&mut dyn FnMut() -> Result<Arc<dyn Ledger>, quipu_model::LedgerError>) -> T,
) -> T {
    read(&mut || SystemLedger::open_read_only(data))
}

fn writers_of(data: &Path) -> DirectoryWriters {
    on_disk(data, |ledger| writers(&SystemDisk, data, ledger)).unwrap().expect("there is a journal")
}

fn audit_of(data: &Path) -> DirectoryAudit {
    on_disk(data, |ledger| audit(&SystemDisk, data, ledger, &mut |_, _| ())).unwrap().expect("there is a journal")
}

fn shared(data: &Path, store: &Arc<dyn Store>, settle_every: Duration) -> Engine {
    let sharing =
        SharingOptions { settle_every, freshness: SOON, lease: Duration::from_secs(1), ..SharingOptions::default() };
    let options = Options { table_shards: 8, sharing, ..Options::new(data) };
    let environment = Environment { store: Some(store.clone()), ..Environment::system() };
    let engine = Engine::open_with_threads(options, environment).unwrap();
    // What is added before has a cell of its own.
    eventually(|| engine.sharing().unwrap().membership() == Membership::Live);
    engine
}

fn eventually(mut check: impl FnMut() -> bool) {
    let clock = SystemClock::default();
    while !check() {
        assert!(clock.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn the_lives_of_a_node_are_told_with_what_each_says_and_what_is_not_settled() {
    let root = tempfile::tempdir().unwrap();
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(Arc::new(SystemClock::default())));
    let (data, other) = (root.path().join("1"), root.path().join("2"));
    let (engine, second) = (shared(&data, &store, SOON), shared(&other, &store, SOON));
    for number in 0..20 {
        engine.add(format!("likes:{number}"), 3).unwrap();
        second.add("likes:0", 1).unwrap();
    }
    eventually(|| engine.sharing().unwrap().unsettled() == 0 && second.read("likes:7").unwrap().value == 3);
    engine.close().unwrap();
    drop(engine);
    let found = writers_of(&data);
    assert!(found.clean && found.incarnations.len() == 1, "{found:?}");
    let incarnation = IncarnationTotals { counters: 20, cells: 20, unsettled: 0, sum: 60, unconfirmed: 0 };
    assert_eq!(found.incarnations.get(&found.incarnation), Some(&incarnation));
    let first = found.incarnation;
    assert_eq!(audit_of(&data).drifts, []);

    // What a node has shown of others' counters is not its own.
    eventually(|| second.sharing().unwrap().unsettled() == 0);
    second.close().unwrap();
    let found = writers_of(&other);
    assert_eq!(
        found.incarnations.values().collect::<Vec<_>>(),
        [&IncarnationTotals { counters: 1, cells: 1, unsettled: 0, sum: 20, unconfirmed: 0 }]
    );
    let audited = audit_of(&other);
    assert_eq!((audited.drifts, audited.own), (vec![], 1));

    // While it runs, too.
    let engine = shared(&data, &store, Duration::from_secs(3_600));
    engine.add("likes:new", -1).unwrap();
    let found = writers_of(&data);
    assert!(!found.clean && found.incarnation == first, "{found:?}");
    assert_eq!(
        found.incarnations.get(&first),
        Some(&IncarnationTotals { counters: 21, cells: 21, unsettled: 1, sum: 59, unconfirmed: -1 })
    );
    assert_eq!(audit_of(&data).drifts, []);
}
