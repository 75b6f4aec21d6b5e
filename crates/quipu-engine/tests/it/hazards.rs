//! Tests ways in which the engine on a ledger could break, each as small as possible.

use std::future::Future;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::time::{Duration, Instant};

use quipu_engine::{Engine, Environment, Load, Options, SealStep};
use quipu_model::{
    AuxRecord, AuxRecordVisitor, Cell, CellVisitor, Command, CopyProgress, Ledger, LedgerError, LedgerStats, ListNames,
    Name, OwnCellsVisitor, Pattern, Reply, SealedCell,
};
use quipu_testkit::{CrashDisk, FileLedger};

use crate::world::{World, small_options};

type Hook = Box<dyn Fn() + Send + Sync>;

/// A ledger that does something before its cells are handed out.
struct HookedLedger {
    ledger: FileLedger,
    on_cell: Mutex<Option<Arc<Hook>>>,
    on_ingest: Mutex<Option<Arc<Hook>>>,
    damaged: Mutex<Option<Vec<u8>>>,
    panics: AtomicBool,
}

impl HookedLedger {
    fn open(world: &World) -> Arc<HookedLedger> {
        let ledger = FileLedger::open(Arc::new(world.disk.clone()), "/data".as_ref()).unwrap();
        let (on_cell, on_ingest, damaged) = Default::default();
        Arc::new(HookedLedger { ledger, on_cell, on_ingest, damaged, panics: AtomicBool::new(false) })
    }

    fn environment(self: &Arc<Self>, world: &World) -> Environment {
        let (mut environment, ledger) = (world.environment(), self.clone());
        environment.open_ledger = Arc::new(move |_: &Options| Ok(ledger.clone()));
        environment
    }
}

impl Ledger for HookedLedger {
    fn watermark(&self) -> Result<Option<Vec<u8>>, LedgerError> {
        self.ledger.watermark()
    }

    fn ingest(&self, cells: &[SealedCell], notes: &[AuxRecord], watermark: &[u8]) -> Result<(), LedgerError> {
        let hook = self.on_ingest.lock().unwrap().clone();
        if let Some(hook) = hook {
            hook();
        }
        self.ledger.ingest(cells, notes, watermark)
    }

    fn clear(&self, notes: &[AuxRecord], watermark: &[u8]) -> Result<(), LedgerError> {
        self.ledger.clear(notes, watermark)
    }

    fn aux_records(&self, visit: &mut AuxRecordVisitor<'_>) -> Result<(), LedgerError> {
        self.ledger.aux_records(visit)
    }

    fn get(&self, hash: u64, name: &[u8]) -> Result<Option<Cell>, LedgerError> {
        assert!(!self.panics.load(Ordering::SeqCst), "something in the ledger is not as its author thought");
        if self.damaged.lock().unwrap().as_deref() == Some(name) {
            return Err(LedgerError::Damaged("a block".to_owned()));
        }
        self.ledger.get(hash, name)
    }

    fn range(&self, from: u64, visit: &mut CellVisitor<'_>) -> Result<(), LedgerError> {
        self.ledger.range(from, &mut |hash, name, cell| {
            let hook = self.on_cell.lock().unwrap().clone();
            if let Some(hook) = hook {
                hook();
            }
            visit(hash, name, cell)
        })
    }

    fn own_cells(&self, hash: u64, name: &[u8]) -> Result<Option<Box<[u8]>>, LedgerError> {
        self.ledger.own_cells(hash, name)
    }

    fn range_own_cells(&self, from: u64, visit: &mut OwnCellsVisitor<'_>) -> Result<(), LedgerError> {
        self.ledger.range_own_cells(from, visit)
    }

    fn compact(&self) -> Result<bool, LedgerError> {
        Ok(false)
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

fn all_names() -> Command<'static> {
    Command::ListNames(ListNames { pattern: Pattern(b"*"), bytes_max: 1 << 30 })
}

#[allow(clippy::disallowed_methods, reason = "real threads are waited for")]
fn now() -> Instant {
    Instant::now()
}

fn within<T: Send + 'static>(limit: Duration, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let _ = sender.send(work());
    });
    receiver.recv_timeout(limit).ok()
}

#[test]
fn a_walk_meets_names_that_leave_memory_for_the_first_time_meanwhile() {
    for round in 0..200 {
        let world = World::new(CrashDisk::new(), 1);
        let engine = world.open(Options { table_shards: 64, ..small_options(1 << 20) }).unwrap();
        for index in 0..1_000 {
            engine.add(format!("m:{index}"), 1).unwrap();
        }
        engine.steps().seal_all().unwrap();
        let (barrier, evicting) = (Arc::new(Barrier::new(2)), engine.clone());
        let meeting = barrier.clone();
        let thread = std::thread::spawn(move || {
            meeting.wait();
            let steps = evicting.steps();
            for _ in 0..2 {
                for shard in (0..steps.shard_count()).rev() {
                    steps.evict(shard);
                }
            }
        });
        barrier.wait();
        let listed = engine.execute(&all_names()).unwrap();
        thread.join().unwrap();
        let Reply::Names(names) = listed else { panic!("{listed:?}") };
        assert_eq!(names.len(), 1_000, "round {round}: names were there all along");
    }
}

#[test]
fn space_kept_for_a_full_disk_is_there_for_the_next_life_too() {
    let (capacity, reserve_bytes) = (200_000, 40_000);
    let world = World::new(CrashDisk::new(), 1);
    world.disk.capacity(Some(capacity));
    let engine = world.open(Options { reserve_bytes, ..small_options(16_384) }).unwrap();
    let mut index = 0;
    while engine.add(format!("d:{}", index % 100), 1).is_ok() {
        index += 1;
    }
    // The process is killed and started again; nobody else has touched the disk.
    let disk = world.disk.kill(world.disk.operations()).into_disk();
    disk.capacity(Some(capacity));
    let world = World::new(disk, 5);
    let engine = world.open(Options { reserve_bytes, ..small_options(16_384) }).unwrap();
    let sealed = engine.steps().seal_all();
    assert!(sealed.is_ok(), "{sealed:?}, with {reserve_bytes} bytes kept for just this");
    engine.steps().prepare_segments().unwrap();
    engine.add("d:0", 1).unwrap();
}

#[test]
fn a_node_starts_again_and_again_on_a_disk_that_is_full_to_the_last_byte() {
    // Records of every length, so that some fill the journal to its end.
    for length in (1..100).step_by(7) {
        let world = World::new(CrashDisk::new(), 1);
        let engine = world.open(Options { reserve_bytes: 0, ..small_options(8192) }).unwrap();
        world.disk.capacity(Some(world.disk.bytes_used()));
        let name = format!("d:{}", "n".repeat(length));
        let acked = (0..10_000).take_while(|_| engine.add(&name, 1).is_ok()).count();
        let mut disk = world.disk.kill(world.disk.operations()).into_disk();
        for start in 0..10 {
            disk.capacity(Some(disk.bytes_used()));
            let world = World::new(disk, 5);
            let engine = match world.open(Options { reserve_bytes: 0, ..small_options(8192) }) {
                Ok(engine) => engine,
                Err(error) => panic!("start {start} after names of {length} bytes: {error}"),
            };
            assert_eq!(engine.read(&name).unwrap().value, acked as i64);
            disk = world.disk.kill(world.disk.operations()).into_disk();
        }
    }
}

#[test]
fn a_journal_within_the_quota_is_sealed_though_there_is_no_space_left_for_both() {
    let world = World::new(CrashDisk::new(), 1);
    let options = Options { disk_bytes_max: Some(400_000), reserve_bytes: 16_384, ..small_options(16_384) };
    let engine = world.open(options).unwrap();
    // About 100 kB of cells; the reserve has 16 kB.
    let mut index = 0;
    while engine.add(format!("d:{}", index % 2_000), 1).is_ok() {
        index += 1;
    }
    // What the background does, and more than once: the disk itself has all the space in the world.
    let mut sealed = engine.steps().seal_all();
    for _ in 0..10 {
        engine.steps().prepare_segments().unwrap();
        sealed = engine.steps().seal_all();
    }
    let stats = engine.stats();
    assert!(sealed.is_ok(), "{sealed:?}: {index} adds, {} bytes of journal", stats.journal_bytes);
    engine.steps().prepare_segments().unwrap();
    engine.add("d:0", 1).unwrap();
}

#[test]
fn what_comes_in_while_a_seal_is_under_way_does_not_take_it_over_the_quota() {
    let quota = 1_000_000;
    for adds in [1, 30, 100, 300, 500] {
        let world = World::new(CrashDisk::new(), 1);
        let options = Options { disk_bytes_max: Some(quota), reserve_bytes: 16_384, ..small_options(16_384) };
        let engine = world.open(options).unwrap();
        let (mut index, mut refused) = (0, 0);
        let mut add = || {
            let added = engine.add(format!("d:{index}:{}", "long".repeat(100)), 1);
            index += usize::from(added.is_ok());
            added.is_ok()
        };
        // A seal collects a few adds, and as many as the journal takes come in before the ledger
        // has them.
        while refused < 10 {
            let mut add = || add() || engine.steps().prepare_segments().is_ok() && add();
            let few = (0..adds).take_while(|_| add()).count();
            let mut seal = engine.steps().begin_seal();
            for _ in 0..engine.steps().shard_count() {
                engine.steps().step_seal(&mut seal).expect("it is only collected");
            }
            while add() {}
            loop {
                match engine.steps().step_seal(&mut seal) {
                    Ok(SealStep::More) => {}
                    Ok(SealStep::WaitFor(_)) => engine.steps().sync(),
                    Ok(SealStep::Done) => break engine.steps().finish_seal(seal).unwrap(),
                    // There is no room for all of it.
                    Err(_) => break,
                }
            }
            engine.steps().prepare_segments().unwrap();
            let used = engine.stats().disk_bytes;
            assert!(used <= quota, "{used} bytes are more than the quota; a seal after {adds} adds");
            refused += u32::from(few == 0);
        }
        assert!(index > 100, "{index}");
    }
}

#[test]
fn a_quota_that_was_lowered_does_not_keep_the_journal_from_being_cut() {
    let world = World::new(CrashDisk::new(), 1);
    let engine = world.open(small_options(16_384)).unwrap();
    for index in 0..10_000 {
        engine.add(format!("d:{}", index % 10), 1).unwrap();
    }
    let disk = world.disk.kill(world.disk.operations()).into_disk();
    let used = disk.bytes_used();
    let world = World::new(disk, 5);
    // Ten counters, a few hundred bytes; the journal has what is over the quota.
    let engine = world.open(Options { disk_bytes_max: Some(used / 2), ..small_options(16_384) }).unwrap();
    let sealed = engine.steps().seal_all();
    assert!(
        sealed.is_ok(),
        "{sealed:?}: {} of {} bytes, nearly all of them journal",
        engine.stats().disk_bytes,
        used / 2
    );
}

#[test]
fn a_counter_that_cannot_be_read_does_not_take_others_with_it() {
    let world = World::new(CrashDisk::new(), 1);
    let engine = world.open(small_options(8192)).unwrap();
    engine.set("d:good", 5).unwrap();
    engine.set("d:bad", 6).unwrap();
    engine.close().unwrap();
    drop(engine);
    let ledger = HookedLedger::open(&world);
    *ledger.damaged.lock().unwrap() = Some(b"d:bad".to_vec());
    let engine = Engine::open_with(small_options(8192), ledger.environment(&world)).unwrap();
    // As a connection does with a pipeline: the second command is foreseen while the first waits.
    for (first, second) in [("d:good", "d:bad"), ("d:bad", "d:good")] {
        let mut turn = engine.turn();
        let mut load = turn.run(&Command::Read { name: name(first) }).unwrap_err();
        turn.prefetch(&Command::Read { name: name(second) }, &mut load);
        turn.finish();
        let loading = engine.load(load);
        let loaded = within(Duration::from_secs(5), move || {
            let mut loading = Box::pin(loading);
            let mut context = std::task::Context::from_waker(std::task::Waker::noop());
            loading.as_mut().poll(&mut context)
        });
        let refused = matches!(loaded, Some(std::task::Poll::Ready(quipu_engine::LoadOutcome::Refused(_))));
        assert_eq!(refused, first == "d:bad", "{first} before {second}: {loaded:?}");
        if first == "d:good" {
            assert_eq!(engine.read("d:good").unwrap().value, 5);
        }
    }
}

#[test]
fn a_close_does_not_wait_for_walks_that_nobody_waits_for() {
    let world = World::new(CrashDisk::new(), 1);
    let engine = world.open(small_options(1 << 20)).unwrap();
    for index in 0..500 {
        engine.add(format!("m:{index}"), 1).unwrap();
    }
    engine.close().unwrap();
    drop(engine);
    let ledger = HookedLedger::open(&world);
    // A disk of a thousand cells a second: a walk takes half a second.
    *ledger.on_cell.lock().unwrap() = Some(Arc::new(Box::new(|| std::thread::sleep(Duration::from_millis(1)))));
    let engine = Engine::open_with_threads(small_options(1 << 20), ledger.environment(&world)).unwrap();
    for _ in 0..10 {
        // Ten clients that have gone away since.
        drop(engine.load(Load::List { pattern: Box::from(*b"*"), bytes_max: 1 << 20 }));
    }
    let began = now();
    engine.close().unwrap();
    let took = began.elapsed();
    assert!(took < Duration::from_millis(1500), "a close took {took:?} and would take as long again for ten more");
}

#[test]
fn a_walk_ends_though_counters_leave_memory_all_the_time() {
    let world = World::new(CrashDisk::new(), 1);
    let engine = world.open(Options { table_shards: 1, ..small_options(1 << 20) }).unwrap();
    for index in 0..50 {
        engine.add(format!("m:{index}"), 1).unwrap();
    }
    engine.close().unwrap();
    drop(engine);
    let ledger = HookedLedger::open(&world);
    let engine = Engine::open_with(small_options(1 << 20), ledger.environment(&world)).unwrap();
    let (busy, made) = (engine.clone(), AtomicU64::new(0));
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    // While a shard is read, something in it is read and leaves memory again: what memory pressure
    // does.
    *ledger.on_cell.lock().unwrap() = Some(Arc::new(Box::new(move || {
        if stopped.load(Ordering::SeqCst) {
            return;
        }
        let index = made.fetch_add(1, Ordering::SeqCst) % 50;
        busy.read(format!("m:{index}")).unwrap();
        busy.steps().evict(0);
        busy.steps().evict(0);
    })));
    let walking = engine.clone();
    let walked = within(Duration::from_secs(5), move || walking.execute(&all_names()).is_ok());
    stop.store(true, Ordering::SeqCst);
    assert_eq!(walked, Some(true), "a walk looks again and again");
}

#[test]
fn two_closes_at_once_are_one_after_the_other() {
    let world = World::new(CrashDisk::new(), 1);
    let ledger = HookedLedger::open(&world);
    let (inside, most) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (now, peak) = (inside.clone(), most.clone());
    *ledger.on_ingest.lock().unwrap() = Some(Arc::new(Box::new(move || {
        peak.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(300));
        now.fetch_sub(1, Ordering::SeqCst);
    })));
    let options = Options { seal_every: Duration::ZERO, ..small_options(1 << 20) };
    let engine = Engine::open_with_threads(options, ledger.environment(&world)).unwrap();
    engine.add("d:a", 1).unwrap();
    // The background is in the middle of a seal.
    while inside.load(Ordering::SeqCst) == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    engine.add("d:b", 1).unwrap();
    let closers: Vec<_> = (0..2)
        .map(|_| {
            let engine = engine.clone();
            std::thread::spawn(move || engine.close().map_err(|error| error.to_string()))
        })
        .collect();
    for closer in closers {
        assert_eq!(closer.join().unwrap(), Ok(()));
    }
    assert_eq!(most.load(Ordering::SeqCst), 1, "two seals were under way at once");
}

#[test]
fn a_large_transaction_that_found_the_disk_full_is_tried_again_when_there_is_space() {
    let world = World::new(CrashDisk::new(), 1);
    let engine = world.open(small_options(16_384)).unwrap();
    engine.add("d:a", 1).unwrap();
    world.disk.capacity(Some(world.disk.bytes_used()));
    let names: Vec<String> = (0..1_000).map(|index| format!("d:{index}")).collect();
    let adds: Vec<_> = names.iter().map(|text| Command::Add { name: name(text), delta: 1, shard_key: None }).collect();
    assert!(engine.turn().run_transaction(&adds, &[]).is_err(), "it needs more room than there is");
    world.disk.capacity(None);
    for _ in 0..3 {
        engine.steps().prepare_segments().unwrap();
        engine.steps().seal_all().unwrap();
    }
    assert!(!engine.stats().disk_full, "there is all the space in the world");
    let ran = engine.turn().run_transaction(&adds, &[]);
    assert!(ran.is_ok(), "{ran:?}");
}

#[test]
fn a_backup_is_not_made_inside_the_data_directory_through_a_link() {
    let place = tempfile::tempdir().unwrap();
    let (data, link) = (place.path().join("data"), place.path().join("link"));
    let engine = Engine::open_with(Options::new(&data), Environment::system()).unwrap();
    engine.add("a", 1).unwrap();
    std::os::unix::fs::symlink(data.join("ledger"), &link).unwrap();
    let backed_up = engine.backup(link.join("copy"));
    assert!(backed_up.is_err(), "{backed_up:?}, inside the ledger of which it is a copy");
    engine.add("a", 1).unwrap();
    engine.steps().seal_all().unwrap();
}

/// Flips a byte in the middle of the largest table of a data directory's ledger.
fn damage_a_table(data: &Path) {
    let tables = std::fs::read_dir(data.join("ledger")).unwrap().map(|entry| entry.unwrap().path().join("tables"));
    let tables = tables.filter(|path| path.is_dir()).flat_map(|dir| std::fs::read_dir(dir).unwrap());
    let largest = tables.map(|entry| entry.unwrap().path()).max_by_key(|path| path.metadata().unwrap().len()).unwrap();
    let mut bytes = std::fs::read(&largest).unwrap();
    let at = bytes.len() / 4;
    bytes[at] ^= 0xff;
    std::fs::write(&largest, bytes).unwrap();
}

#[test]
fn damage_in_the_ledger_does_not_end_sealing_and_with_it_the_server() {
    let place = tempfile::tempdir().unwrap();
    let options = || Options { segment_bytes: 64 << 10, reserve_bytes: 0, ..Options::new(place.path()) };
    let engine = Engine::open_with(options(), Environment::system()).unwrap();
    let mut turn = engine.turn();
    for index in 0..20_000 {
        let text = format!("a:{index}");
        turn.run(&Command::Add { name: name(&text), delta: 1, shard_key: None }).unwrap();
    }
    turn.finish();
    engine.close().unwrap();
    drop(engine);
    damage_a_table(place.path());
    let engine = Engine::open_with(options(), Environment::system()).unwrap();
    for round in 0..80 {
        engine
            .execute(&Command::Set(quipu_model::Set {
                name: name("fresh"),
                value: round,
                condition: quipu_model::SetCondition::Always,
                expiry: quipu_model::SetExpiry::Remove,
                reply_old: false,
            }))
            .unwrap();
        // What the compact thread does, until it meets damage and ends for this life.
        let compacted = engine.steps().compact();
        let sealed = engine.steps().seal_all();
        assert!(sealed.is_ok(), "seal {round}: {sealed:?}, after {compacted:?}; the driver ends the process for this");
    }
}

#[test]
fn the_number_of_counters_waits_for_every_record_that_it_includes() {
    let world = World::new(CrashDisk::new(), 1);
    let engine =
        world.open(Options { table_shards: 64, pending_bytes_max: 1 << 30, ..small_options(1 << 20) }).unwrap();
    let begin = engine.steps().reserved();
    engine.turn().run(&Command::Add { name: name("d:00000000"), delta: 1, shard_key: None }).unwrap();
    // Every record is as long as this one: a new counter each, all names of one length, the clock
    // stands still.
    let record_bytes = engine.steps().reserved().0 - begin.0;
    for count in 2..=3 {
        let text = format!("d:x000000{count}");
        engine.turn().run(&Command::Add { name: name(&text), delta: 1, shard_key: None }).unwrap();
        assert_eq!(engine.steps().reserved().0 - begin.0, count * record_bytes);
    }
    let (adding, stop) = (engine.clone(), Arc::new(AtomicBool::new(false)));
    let stopped = stop.clone();
    let thread = std::thread::spawn(move || {
        for index in 1..300_000 {
            if stopped.load(Ordering::SeqCst) {
                break;
            }
            let text = format!("d:{index:08}");
            adding.turn().run(&Command::Add { name: name(&text), delta: 1, shard_key: None }).unwrap();
        }
    });
    let mut worst = None;
    while !thread.is_finished() && worst.is_none() {
        let mut turn = engine.turn();
        let counted = turn.run(&Command::CountNames).unwrap();
        let wait = turn.finish();
        let Reply::Integer(shown) = counted else { panic!("{counted:?}") };
        let recorded = (wait.synced.0 - begin.0) / record_bytes;
        worst = (shown as u64 > recorded).then_some((shown, recorded));
    }
    stop.store(true, Ordering::SeqCst);
    thread.join().unwrap();
    assert_eq!(worst, None, "shown, and recorded in what the reply waits for");
}

/// Processor time of a thread of this process, in ticks of 10 ms.
fn ticks_of(thread: &str) -> u64 {
    let mut ticks = 0;
    for task in std::fs::read_dir("/proc/self/task").unwrap().flatten() {
        let Ok(stat) = std::fs::read_to_string(task.path().join("stat")) else { continue };
        let (head, rest) = stat.rsplit_once(')').unwrap();
        if head.ends_with(thread) {
            let fields: Vec<&str> = rest.split_whitespace().collect();
            ticks += fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
        }
    }
    ticks
}

#[test]
fn a_full_disk_does_not_keep_the_background_busy_while_counters_are_read() {
    let place = tempfile::tempdir().unwrap();
    let options = Options {
        disk_bytes_max: Some(2 << 20),
        segment_bytes: 1 << 20,
        durability: quipu_model::Durability::Relaxed,
        reserve_bytes: 0,
        ..Options::new(place.path())
    };
    let engine = Engine::open(options).unwrap();
    let mut index = 0;
    while engine.add(format!("a:{}", index % 20_000), 1).is_ok() {
        index += 1;
    }
    // As a busy server reads: without end. It is full, so there is nothing to do for the thread
    // that tends but to try once a second.
    let before = ticks_of("quipu-tend");
    let began = now();
    while began.elapsed() < Duration::from_secs(2) {
        engine.turn().run(&Command::Read { name: name("a:1") }).unwrap();
        engine.turn().finish();
    }
    let spent = ticks_of("quipu-tend") - before;
    assert!(engine.stats().disk_full);
    assert!(spent < 60, "{spent} ticks of 200 went into tending");
}

#[test]
fn a_thread_of_the_engine_that_panics_leaves_nobody_waiting() {
    let world = World::new(CrashDisk::new(), 1);
    let engine = world.open(small_options(8192)).unwrap();
    engine.set("d:a", 5).unwrap();
    engine.close().unwrap();
    drop(engine);
    let ledger = HookedLedger::open(&world);
    ledger.panics.store(true, Ordering::SeqCst);
    let engine = Engine::open_with_threads(small_options(8192), ledger.environment(&world)).unwrap();
    let (reading, failed) = (engine.clone(), || world.has_failed());
    let read = within(Duration::from_secs(3), move || reading.read("d:a").is_ok());
    // The process would have ended, or the client been told.
    assert!(read.is_some() || failed(), "the reader waits for a thread that is gone, and nobody says so");
}

/// Threads with counters of their own, on the real ledger, with far too little memory.
#[test]
fn threads_that_count_delete_and_walk_agree_with_what_they_know() {
    let place = tempfile::tempdir().unwrap();
    let options = || Options {
        memory_bytes_max: Some(2 << 20),
        durability: quipu_model::Durability::Relaxed,
        namespaces: vec![(Box::from(*b"m"), quipu_model::Namespace::with_durability(quipu_model::Durability::Memory))],
        segment_bytes: 256 << 10,
        journal_bytes_max: 1 << 20,
        seal_every: Duration::from_millis(150),
        table_shards: 16,
        ..Options::new(place.path())
    };
    let seconds = std::env::var("QUIPU_REVIEW_SECONDS").ok().and_then(|n| n.parse().ok()).unwrap_or(3);
    let mut known: Vec<std::collections::BTreeMap<String, i64>> = vec![Default::default(); 4];
    for incarnation in 0..2 {
        let engine = Engine::open(options()).unwrap();
        let counters: usize = known.iter().map(|known| known.len()).sum();
        assert_eq!(engine.stats().counters as usize, counters, "life {incarnation}");
        let until = now() + Duration::from_secs(seconds);
        let threads: Vec<_> = known
            .drain(..)
            .enumerate()
            .map(|(thread, known)| {
                let engine = engine.clone();
                std::thread::spawn(move || count(&engine, thread, known, until))
            })
            .collect();
        known = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        let counters: usize = known.iter().map(|known| known.len()).sum();
        assert_eq!(engine.stats().counters as usize, counters, "life {incarnation}");
        let listed = engine.execute(&all_names()).unwrap();
        let Reply::Names(names) = listed else { panic!("{listed:?}") };
        assert_eq!(names.len(), counters);
        for (text, value) in known.iter().flatten() {
            assert_eq!(engine.read(text).unwrap().value, *value, "{text}");
        }
        let stats = engine.stats();
        println!(
            "life {incarnation}: {counters} counters, {} evicted, {} loaded, {} seals",
            stats.evicted, stats.loaded, stats.seals
        );
        engine.close().unwrap();
    }
}

type KnownCounts = std::collections::BTreeMap<String, i64>;

fn count(engine: &Engine, thread: usize, mut known: KnownCounts, until: Instant) -> KnownCounts {
    let rng = quipu_testkit::SeededRng::new(thread as u64 + 1);
    let pick = |below: u64| quipu_model::Rng::next(&rng) % below;
    let text_of = |n: u64| format!("{}:{thread}:{n:020}", if n.is_multiple_of(3) { "m" } else { "d" });
    while now() < until {
        let text = text_of(pick(8_000));
        match pick(100) {
            0..70 => {
                let expected = known.entry(text.clone()).or_insert(0);
                *expected += 1;
                assert_eq!(engine.add(&text, 1).unwrap(), *expected, "{text}");
            }
            70..85 => assert_eq!(engine.delete(&text).unwrap(), known.remove(&text).is_some(), "{text}"),
            85..92 => assert_eq!(engine.read(&text).unwrap().exists, known.contains_key(&text), "{text}"),
            92..99 => {
                let names = [text_of(pick(8_000)), text_of(pick(8_000)), text_of(pick(8_000))];
                let command = Command::ReadMany { names: names.iter().map(|text| name(text)).collect() };
                let expected = names.iter().map(|text| known.get(text).copied()).collect();
                assert_eq!(engine.execute(&command).unwrap(), Reply::Values(expected), "{names:?}");
            }
            _ => {
                let pattern = format!("?:{thread}:*");
                let list = ListNames { pattern: Pattern(pattern.as_bytes()), bytes_max: 1 << 30 };
                let listed = engine.execute(&Command::ListNames(list)).unwrap();
                let Reply::Names(names) = listed else { panic!("{listed:?}") };
                let mut names: Vec<String> =
                    names.into_iter().map(|name| String::from_utf8(name.into()).unwrap()).collect();
                names.sort();
                assert!(names.iter().eq(known.keys()), "{} listed, {} known", names.len(), known.len());
            }
        }
    }
    known
}
