//! Tests backups and copies: under any concurrent work, a backup is a state that existed, or none.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::Path;

use quipu_engine::offline::inspect::{Inspection, inspect};
use quipu_engine::{BackupError, BackupStep, Engine, Options, StagingError, restore};
use quipu_model::{Durability, Vfs};
use quipu_testkit::{CrashDisk, DiskFault, Image, OpKind, SeededRng};

use crate::crash_states::read_all;
use crate::model::{State, view};
use crate::once::retry_all;
use crate::sim::{BackupTrace, Trace, run_with_backups};
use crate::world::{DATA, World, ledger_opener, refusal, seal_without_cut, small_options};

const SEGMENT_BYTES: u64 = 4096;

/// Seeds that once failed stay here, in front of the others.
const KEPT_SEEDS: [u64; 0] = [];

fn options(dir: &Path) -> Options {
    Options { data: dir.to_owned(), ..small_options(SEGMENT_BYTES) }
}

fn files_in(image: &Image, dir: &Path) -> Vec<String> {
    image.files().filter(|file| file.starts_with(dir)).map(|file| file.display().to_string()).collect()
}

#[derive(Default)]
struct Tally {
    distinct: BTreeSet<u64>,
    done: usize,
    moved_on: usize,
    absent: usize,
    refused: usize,
    whole: usize,
    seals: usize,
}

#[test]
fn a_backup_is_a_state_that_existed_with_all_that_was_shown_before_it_and_an_unfinished_one_is_refused() {
    let seeds: u64 = std::env::var("QUIPU_BACKUP_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(80);
    let mut tally = Tally::default();
    for seed in KEPT_SEEDS.into_iter().chain(0..seeds) {
        run_seed(seed, &mut tally);
    }
    let Tally { distinct, done, moved_on, absent, refused, whole, seals } = &tally;
    println!(
        "proof: backups: {done} from {seeds} seeds, {seals} seals meanwhile, {moved_on} with records behind what they began with; crash states: \
         {} distinct, {absent} without one, {refused} refused as unfinished, {whole} whole",
        distinct.len()
    );
    if seeds >= 50 {
        assert!(*done > 100 && *moved_on > 20 && *refused > 100 && *whole > 100 && *seals > 100);
    }
}

fn run_seed(seed: u64, tally: &mut Tally) {
    let rng = SeededRng::new(seed ^ 0xbac0);
    let (mut disk, mut state) = (CrashDisk::new(), State::new());
    for incarnation in 0..2 {
        let context = format!("seed {seed}, life {incarnation}");
        let world = World::new(disk, rng.next_u64());
        let engine = world.open(small_options(SEGMENT_BYTES)).unwrap();
        let trace = run_with_backups(&world, &engine, &state, 2 + rng.below(2), 300 + rng.below(300));
        assert!(!world.has_failed(), "{context}: the engine failed");
        tally.seals += trace.counts.seals;
        let operations = world.disk.operations();
        let end = world.disk.kill(operations);
        for backup_trace in &trace.backups {
            if let Some((_, position)) = backup_trace.done {
                tally.done += 1;
                tally.moved_on += usize::from(position > backup_trace.least);
                judge(&end, backup_trace, &trace, &engine, operations, &mut Tally::default(), &context);
            } else {
                assert_eq!(
                    files_in(&end, &backup_trace.dir),
                    Vec::<String>::new(),
                    "{context}: a backup given up leaves nothing"
                );
            }
        }
        for _ in 0..40 {
            let at = rng.below(operations + 1);
            let image = if rng.chance(85) { world.disk.crash(at, &rng) } else { world.disk.kill(at) };
            if tally.distinct.insert(image.digest()) {
                for backup_trace in &trace.backups {
                    let context = format!("{context}, crash after operation {at} of {operations}");
                    judge(&image, backup_trace, &trace, &engine, at, tally, &context);
                }
            }
        }
        // The next life goes on from what was recovered, beside the backups of this one.
        drop(engine);
        let mut image = world.disk.kill(operations);
        for file in
            trace.backups.iter().flat_map(|backup_trace| files_in(&image, &backup_trace.dir)).collect::<Vec<_>>()
        {
            image.remove(file);
        }
        disk = image.into_disk();
        let again = World::new(disk.clone(), 1);
        let engine = again.open(small_options(SEGMENT_BYTES)).unwrap();
        state = read_all(&engine, Durability::Durable);
        state.extend(read_all(&engine, Durability::Memory));
        drop(engine);
    }
}

/// Opens a backup as a crash left it.
fn judge(
    image: &Image,
    backup_trace: &BackupTrace,
    trace: &Trace,
    source: &Engine,
    at: usize,
    tally: &mut Tally,
    context: &str,
) {
    let context = format!("{context}, {}", backup_trace.dir.display());
    let promised = backup_trace.done.filter(|(done, _)| *done <= at);
    if files_in(image, &backup_trace.dir).is_empty() {
        assert!(promised.is_none(), "{context}: a backup that was done is gone");
        tally.absent += 1;
        return;
    }
    let world = World::new(image.clone().into_disk(), 7);
    let engine = match world.open(options(&backup_trace.dir)) {
        Ok(engine) => engine,
        Err(error) => {
            assert!(promised.is_none(), "{context}: a backup that was done is refused: {error}");
            assert!(error.to_string().contains("did not finish"), "{context}: {error}");
            tally.refused += 1;
            return;
        }
    };
    tally.whole += 1;
    let (_, position) =
        backup_trace.done.unwrap_or_else(|| panic!("{context}: a backup that was never finished opens"));
    assert_eq!(engine.recovery().tail.position, position, "{context}");
    assert!(engine.recovery().tail.torn.is_none() && engine.recovery().copied, "{context}: {:?}", engine.recovery());
    assert!(position >= backup_trace.least, "{context}: less than there was when it began");
    let shown = trace.shown.iter().filter(|shown| shown.operations <= backup_trace.begun).map(|shown| shown.position);
    assert!(shown.max().is_none_or(|shown| shown <= position), "{context}: something shown before is not in it");
    let expected = trace.states.get(&position).unwrap_or_else(|| panic!("{context}: no record ended at {position}"));
    let found = read_all(&engine, Durability::Durable);
    assert_eq!(found, view(expected, engine.now()), "{context}: not the state at {position}");
    let memory = read_all(&engine, Durability::Memory);
    for (name, (value, _)) in &memory {
        assert!(trace.memory.get(name).is_some_and(|had| had.contains(value)), "{context}: {name:?} never was {value}");
    }
    assert_eq!(engine.stats().counters as usize, found.len() + memory.len(), "{context}: the number of counters");
    let (writer, original) = (engine.stats().writer, source.stats().writer);
    // In a world of its own: what came after the backup is applied there.
    let retrying = World::new(image.clone().into_disk(), 8);
    let (ever, context_of) = (trace.token_models.last_key_value().expect("a life notes its end").1, &context);
    retry_all(
        &retrying.open(options(&backup_trace.dir)).unwrap(),
        expected,
        &trace.token_models[&position],
        ever,
        context_of,
    );
    assert_eq!(writer.node, original.node, "{context}");
    assert_ne!(writer.incarnation, original.incarnation, "{context}");
    // It lives on its own.
    let before = engine.read("plain").unwrap().value;
    if before < i64::MAX - 100 {
        assert_eq!(engine.add("plain", 1), Ok(before + 1), "{context}");
    }
    engine.steps().seal_all().unwrap();
    engine.close().unwrap();
}

fn counted(world: &World) -> Engine {
    let engine = world.open(small_options(SEGMENT_BYTES)).unwrap();
    for index in 0..300 {
        engine.add(format!("d:{}", index % 40), 1).unwrap();
    }
    engine.steps().seal_all().unwrap();
    for index in 0..100 {
        engine.add(format!("d:{}", index % 60), 1).unwrap();
    }
    engine
}

fn back_up(engine: &Engine, dir: &str) -> Result<(), BackupError> {
    engine.backup(dir).map(|_| ())
}

#[test]
fn a_backup_on_a_disk_that_gets_full_or_fails_leaves_nothing_and_the_engine_goes_on() {
    let left = |world: &World, dir: &str| files_in(&world.disk.kill(world.disk.operations()), Path::new(dir));
    let world = World::new(CrashDisk::new(), 5);
    let engine = counted(&world);
    let without = world.disk.bytes_used();
    back_up(&engine, "/whole").unwrap();
    let needed = world.disk.bytes_used() - without;
    let mut failed = 0;
    for room in (0..needed).step_by(509) {
        let dir = format!("/full-{room}");
        world.disk.capacity(Some(world.disk.bytes_used() + room));
        back_up(&engine, &dir).unwrap_err();
        failed += 1;
        assert_eq!(left(&world, &dir), Vec::<String>::new(), "room for {room} bytes");
        world.disk.capacity(None);
        engine.add("d:0", 1).unwrap();
    }
    for kind in [OpKind::CreateDir, OpKind::Create, OpKind::Write, OpKind::SyncData, OpKind::SyncDir, OpKind::Rename] {
        let fault = if kind == OpKind::SyncData { DiskFault::FsyncFails } else { DiskFault::Eio };
        for after in 0.. {
            let world = World::new(CrashDisk::new(), 5);
            let engine = counted(&world);
            world.disk.fail_nth(kind, after, fault);
            let Err(error) = back_up(&engine, "/fails") else {
                // There are no more of this kind in a backup.
                assert!(after > 0, "{kind:?}");
                break;
            };
            failed += 1;
            assert_eq!(left(&world, "/fails"), Vec::<String>::new(), "{kind:?} {after}: {error}");
            engine.add("d:0", 1).unwrap();
            assert!(!world.has_failed(), "{kind:?} {after}: an error of a backup is none of the engine");
        }
    }
    assert!(failed > 10, "{failed}");
    println!("proof: failing backups: {failed}, nothing left behind");
}

#[test]
fn a_place_that_is_not_empty_is_refused_and_not_touched_and_so_is_one_inside_the_data() {
    let world = World::new(CrashDisk::new(), 5);
    let engine = counted(&world);
    world.disk.create_dir(Path::new("/taken")).unwrap();
    world.disk.create(Path::new("/taken/theirs")).unwrap();
    let before = world.disk.operations();
    let error = back_up(&engine, "/taken").unwrap_err();
    assert!(matches!(error, BackupError::Staging(StagingError::NotEmpty { .. })), "{error}");
    for inside in [DATA, "/data/backup", "/data/ledger/g000009"] {
        assert!(
            matches!(back_up(&engine, inside).unwrap_err(), BackupError::Staging(StagingError::Inside { .. })),
            "{inside}"
        );
    }
    assert_eq!(world.disk.operations(), before, "nothing was done");
    assert_eq!(world.disk.list(Path::new("/taken")).unwrap(), ["theirs"]);
}

#[test]
fn one_backup_at_a_time_and_the_journal_is_cut_again_after_it() {
    let world = World::new(CrashDisk::new(), 5);
    let engine = counted(&world);
    let steps = engine.steps();
    let mut first = steps.begin_backup(Path::new("/first")).unwrap();
    assert!(matches!(back_up(&engine, "/second").unwrap_err(), BackupError::Busy));
    // Sealed and not cut: what the backup is about to copy must stay.
    let long = engine.stats().journal_bytes;
    steps.finish_seal(seal_without_cut(&engine)).unwrap();
    assert!(engine.stats().journal_bytes >= long);
    while first.step().unwrap() == BackupStep::More {}
    drop(first);
    steps.seal_all().unwrap();
    assert!(engine.stats().journal_bytes < long);
    back_up(&engine, "/second").unwrap();
}

#[test]
fn an_engine_that_is_closed_ends_its_backup_and_nothing_is_left_of_it() {
    let world = World::new(CrashDisk::new(), 5);
    let engine = counted(&world);
    let mut backup = engine.steps().begin_backup(Path::new("/backup")).unwrap();
    backup.step().unwrap();
    std::thread::scope(|scope| {
        let closing = scope.spawn(|| engine.close());
        while engine.add("d:0", 1).is_ok() {
            std::thread::yield_now();
        }
        // It waits for the backup, which sees that it is over.
        assert!(matches!(backup.step().unwrap_err(), BackupError::Closed));
        drop(backup);
        closing.join().unwrap().unwrap();
    });
    assert!(matches!(back_up(&engine, "/backup").unwrap_err(), BackupError::Closed));
    assert_eq!(files_in(&world.disk.kill(world.disk.operations()), Path::new("/backup")), Vec::<String>::new());
}

#[test]
fn a_backup_of_a_journal_that_was_just_cut_opens() {
    let world = World::new(CrashDisk::new(), 5);
    let engine = counted(&world);
    for round in 0..30 {
        engine.steps().seal_all().unwrap();
        let dir = format!("/backup-{round}");
        back_up(&engine, &dir).unwrap();
        let copy = World::new(world.disk.kill(world.disk.operations()).into_disk(), 6);
        let copy = copy.open(options(Path::new(&dir))).unwrap();
        assert_eq!(copy.read("d:0").unwrap().value, engine.read("d:0").unwrap().value);
        assert_eq!(copy.stats().counters, engine.stats().counters);
        // Up to where a segment ends, and over it.
        for _ in 0..7 {
            engine.add("d:0", 1).unwrap();
        }
    }
}

#[test]
fn a_copied_directory_is_a_new_incarnation_also_after_a_clean_stop() {
    let world = World::new(CrashDisk::new(), 5);
    let engine = counted(&world);
    let writer = engine.stats().writer;
    engine.close().unwrap();
    drop(engine);
    let image = world.disk.kill(world.disk.operations());
    let moved = World::new(image.clone().into_disk(), 6);
    let same = moved.open(small_options(SEGMENT_BYTES)).unwrap();
    assert_eq!(same.stats().writer, writer);
    assert!(same.recovery().clean && !same.recovery().copied);
    let copied = World::new(image.into_copied_disk(), 6);
    let copy = copied.open(small_options(SEGMENT_BYTES)).unwrap();
    let other = copy.stats().writer;
    assert!(copy.recovery().clean && copy.recovery().copied);
    assert_eq!(other.node, writer.node);
    assert_ne!(other.incarnation, writer.incarnation);
    assert_eq!(copy.read("d:0").unwrap(), quipu_model::Reading { as_of: copy.now(), ..same.read("d:0").unwrap() });
    // It is told once: from now on the copy is a directory like any other.
    copy.close().unwrap();
    drop(copy);
    let again = copied.open(small_options(SEGMENT_BYTES)).unwrap();
    assert_eq!((again.stats().writer, again.recovery().copied), (other, false));
}

fn inspected(disk: &CrashDisk, dir: &str) -> Inspection {
    inspect(disk, dir.as_ref(), ledger_opener(disk, dir.as_ref()), |_, _| Ok(())).unwrap()
}

#[test]
fn a_restore_that_a_crash_ends_is_refused_and_one_that_ends_is_the_backup() {
    let world = World::new(CrashDisk::new(), 5);
    let engine = counted(&world);
    back_up(&engine, "/backup").unwrap();
    let (value, counters) = (engine.read("d:0").unwrap().value, engine.stats().counters);
    let inspection = inspected(&world.disk, "/backup");
    assert_eq!(inspection.counters, counters);
    let before = world.disk.operations();
    let mut heard = 0;
    let mut listen = |bytes| {
        heard += bytes;
        ControlFlow::Continue(())
    };
    restore(&world.disk, &inspection, &world.disk, Path::new("/restored"), &mut listen).unwrap();
    assert_eq!(heard, quipu_engine::restore_bytes(&inspection));
    let (rng, operations) = (SeededRng::new(3), world.disk.operations());
    let (mut refused, mut whole) = (0, 0);
    for at in before..=operations {
        for round in 0..12 {
            let image = if round == 0 { world.disk.kill(at) } else { world.disk.crash(at, &rng) };
            if files_in(&image, Path::new("/restored")).is_empty() {
                assert!(at < operations);
                continue;
            }
            let world = World::new(image.into_disk(), 8);
            match world.open(options(Path::new("/restored"))) {
                Ok(engine) => {
                    whole += 1;
                    assert_eq!((engine.read("d:0").unwrap().value, engine.stats().counters), (value, counters));
                }
                Err(error) => {
                    refused += 1;
                    assert!(at < operations && error.to_string().contains("did not finish"), "{at}: {error}");
                    let verdict = inspected(&world.disk, "/restored").verdict;
                    assert_eq!(verdict.unwrap_err().to_string(), error.to_string(), "inspect says the same");
                }
            }
        }
    }
    assert!(refused > 50 && whole > 10, "{refused} {whole}");
    println!("proof: crash states of a restore: {refused} refused, {whole} whole");
    // A second one has no place there.
    let again =
        restore(&world.disk, &inspection, &world.disk, Path::new("/restored"), &mut |_| ControlFlow::Continue(()));
    assert!(again.unwrap_err().to_string().contains("is not empty"));
    let ended = restore(&world.disk, &inspection, &world.disk, Path::new("/ended"), &mut |_| ControlFlow::Break(()));
    assert!(ended.is_err());
    assert_eq!(files_in(&world.disk.kill(world.disk.operations()), Path::new("/ended")), Vec::<String>::new());
}

#[test]
fn inspect_says_of_a_ledger_that_does_not_fit_what_the_server_says() {
    let world = World::new(CrashDisk::new(), 5);
    let engine = counted(&world);
    let early = world.disk.kill(world.disk.operations());
    for index in 0..400 {
        engine.add(format!("d:{}", index % 60), 1).unwrap();
    }
    engine.steps().seal_all().unwrap();
    let late = world.disk.kill(world.disk.operations());
    let other = {
        let world = World::new(CrashDisk::new(), 77);
        drop(counted(&world));
        world.disk.kill(world.disk.operations())
    };
    let ledger = format!("{DATA}/ledger.state");
    let mix = |image: &Image, ledger_of: &Image| {
        let mut image = image.clone();
        image.insert(&ledger, &ledger_of.bytes_of(&ledger).unwrap());
        image
    };
    let mut empty = late.clone();
    empty.remove(&ledger);
    for (what, image, words) in [
        ("a ledger older than the journal", mix(&late, &early), "but the journal begins at position"),
        ("a journal older than the ledger", mix(&early, &late), "though the ledger has what it said up to position"),
        ("another directory's ledger", mix(&late, &other), "it belongs to another data directory"),
        ("no ledger", empty, "it is empty, but the journal begins"),
    ] {
        let world = World::new(image.into_disk(), 9);
        let verdict = inspected(&world.disk, DATA).verdict.unwrap_err().to_string();
        assert!(verdict.contains(words), "{what}: {verdict}");
        assert_eq!(refusal(world.open(small_options(SEGMENT_BYTES))), verdict, "{what}");
    }
}
