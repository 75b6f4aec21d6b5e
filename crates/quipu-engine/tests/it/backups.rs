//! Tests backups, copies and restores: on a failing disk, inside the data, after a cut, by a crash.
//!
//! Not here: backups beside concurrent work (`quipu-sim`, `tests/backup_states.rs`).

use std::ops::ControlFlow;
use std::path::Path;

use quipu_engine::offline::inspect::{Inspection, inspect};
use quipu_engine::{BackupError, BackupStep, Engine, Options, StagingError, restore};
use quipu_model::Vfs;
use quipu_testkit::{CrashDisk, DiskFault, Image, OpKind, SeededRng};

use crate::world::{DATA, World, ledger_opener, refusal, seal_without_cut, small_options};

const SEGMENT_BYTES: u64 = 4096;

fn options(dir: &Path) -> Options {
    Options { data: dir.to_owned(), ..small_options(SEGMENT_BYTES) }
}

fn files_in(image: &Image, dir: &Path) -> Vec<String> {
    image.files().filter(|file| file.starts_with(dir)).map(|file| file.display().to_string()).collect()
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
