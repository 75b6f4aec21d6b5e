//! Tests a disk that fails, is full, or is slow.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use quipu_engine::{Engine, Error, NotRun, Options};
use quipu_model::{Command, Durability, Name, Refusal, Reply};
use quipu_testkit::{CrashDisk, DiskFault, OpKind};

use crate::world::{World, small_options};

fn add(engine: &Engine, name: &str) -> Result<i64, Error> {
    engine.add(name, 1)
}

#[test]
fn an_operation_whose_write_or_sync_failed_is_never_acknowledged_and_nothing_is_after_it() {
    let faults = [
        (OpKind::Write, DiskFault::Eio),
        (OpKind::Write, DiskFault::ShortWrite(7)),
        (OpKind::Write, DiskFault::ShortWrite(40)),
        (OpKind::Write, DiskFault::NoSpace),
        (OpKind::SyncData, DiskFault::Eio),
        (OpKind::SyncData, DiskFault::FsyncFails),
    ];
    for (kind, fault) in faults {
        for good in 0..4 {
            let world = World::new(CrashDisk::new(), 4);
            let engine = world.open(small_options(8192)).unwrap();
            world.disk.fail_nth(kind, good, fault);
            let acked = (0..10).take_while(|_| add(&engine, "d:a").is_ok()).count();
            let context = format!("{fault:?} after {good} of {kind:?}");
            assert_eq!(acked, good, "{context}");
            assert!(world.has_failed(), "{context}: the process is told to end");
            // The disk is well again, but nobody believes it: what the failed sync covered is in
            // doubt for ever.
            assert!(matches!(add(&engine, "d:a"), Err(Error::JournalFailed(_))), "{context}");
            assert!(
                matches!(engine.read("d:a"), Err(Error::JournalFailed(_))),
                "{context}: nor is a value shown that may be lost"
            );
            assert!(engine.close().is_err(), "{context}: there is no clean stop");
            for image in
                [world.disk.kill(world.disk.operations()), world.disk.crash(world.disk.operations(), &world.rng)]
            {
                let again = World::new(image.into_disk(), 5);
                let value = again.open(small_options(8192)).unwrap().read("d:a").unwrap().value;
                assert!((acked..=acked + 1).contains(&(value as usize)), "{context}: {value} of {acked} acknowledged");
            }
        }
    }
}

#[test]
fn a_full_disk_refuses_writes_lets_reads_go_on_and_heals() {
    let world = World::new(CrashDisk::new(), 4);
    let engine = world.open(small_options(4096)).unwrap();
    world.disk.capacity(Some(world.disk.bytes_used() + 1000));
    let mut acked = 0;
    let refusal = loop {
        engine.steps().prepare_segments().expect("a full disk is not the end");
        match add(&engine, "d:a") {
            Ok(value) => acked = value,
            Err(error) => break error,
        }
        assert!(acked < 10_000, "the disk was never full");
    };
    let Error::Refused(Refusal::NoRoom { reason }) = refusal else { panic!("{refusal:?}") };
    assert!(reason.contains("space") && reason.contains("journal-"), "it says what is wrong: {reason}");
    assert_eq!(engine.read("d:a").unwrap().value, acked, "reads go on, and the refused add is not in them");
    assert_eq!(engine.add("m:a", 1).unwrap(), 1, "what is not journaled needs no room");
    let names: Vec<String> = (0..30).map(|index| format!("d:{index}")).collect();
    let adds: Vec<_> = names
        .iter()
        .map(|n| Command::Add { name: Name::new(n.as_bytes()).unwrap(), delta: 1, shard_key: None })
        .collect();
    assert!(
        matches!(engine.turn().run_transaction(&adds, &[]), Err(NotRun::Refused(Refusal::NoRoom { .. }))),
        "all of a transaction or nothing"
    );
    assert!(!engine.read("d:1").unwrap().exists);
    assert!(!world.has_failed());
    // A crash now loses nothing.
    let again = World::new(world.disk.kill(world.disk.operations()).into_disk(), 5);
    assert_eq!(again.open(small_options(4096)).unwrap().read("d:a").unwrap().value, acked);
    // Space returns.
    world.disk.capacity(None);
    engine.steps().prepare_segments().unwrap();
    assert_eq!(add(&engine, "d:a").unwrap(), acked + 1);
}

#[test]
fn writing_that_overtakes_the_preparing_of_segments_prepares_them_itself() {
    let world = World::new(CrashDisk::new(), 4);
    let engine = world.open(small_options(4096)).unwrap();
    // Nobody tends here, and each of these is longer than a segment.
    let names: Vec<String> = (0..200).map(|index| format!("d:{index}")).collect();
    let adds: Vec<_> = names
        .iter()
        .map(|n| Command::Add { name: Name::new(n.as_bytes()).unwrap(), delta: 1, shard_key: None })
        .collect();
    for round in 1..=5 {
        let mut turn = engine.turn();
        let replies = turn.run_transaction(&adds, &[]).unwrap().unwrap();
        assert!(replies.iter().all(|reply| *reply == Reply::Integer(round)));
        turn.finish();
    }
    assert_eq!(engine.add("d:0", 1).unwrap(), 6);
    let again = World::new(world.disk.kill(world.disk.operations()).into_disk(), 5);
    assert_eq!(again.open(small_options(4096)).unwrap().read("d:199").unwrap().value, 5);
}

#[test]
fn a_disk_that_does_not_keep_up_is_a_bounded_queue_and_then_refusals() {
    let world = World::new(CrashDisk::new(), 4);
    let options =
        Options { pending_bytes_max: 20_000, segment_bytes: 65536, ahead_bytes: Some(1 << 20), ..small_options(65536) };
    let engine = world.open(options).unwrap();
    let command = Command::Add { name: Name::new(b"d:a").unwrap(), delta: 1, shard_key: None };
    let (mut applied, mut waits) = (0, Vec::new());
    // Turn after turn is applied and filled while the disk takes nothing.
    let refused = loop {
        let mut turn = engine.turn();
        let reply = turn.run(&command).unwrap();
        waits.push(turn.finish());
        match reply {
            Reply::Integer(value) => applied = value,
            other => break other,
        }
        assert!(applied < 5_000, "the queue has no bound");
    };
    assert!(
        matches!(refused, Reply::Refused(Refusal::Behind { behind_bytes }) if behind_bytes <= 20_000),
        "{refused:?}"
    );
    assert!(applied > 100, "the queue has room for a burst: {applied}");
    let steps = engine.steps();
    assert!(!steps.has_reached(waits[0]), "nothing has been acknowledged meanwhile");
    assert_eq!(engine.turn().run(&Command::CountNames), Ok(Reply::Integer(1)), "what needs no disk goes on");
    steps.write_filled();
    steps.sync();
    assert!(waits.iter().all(|wait| steps.has_reached(*wait)), "then the queue drains");
    assert_eq!(engine.add("d:a", 1).unwrap(), applied + 1);
}

#[test]
fn while_the_disk_is_slow_workers_do_not_wait_for_it() {
    let world = World::new(CrashDisk::new(), 4);
    let (clock, syncs) = (world.clock.clone(), Arc::new(AtomicUsize::new(0)));
    let counted = syncs.clone();
    let engine = Engine::open_with_threads(small_options(65536), world.environment()).unwrap();
    assert_eq!(add(&engine, "d:a").unwrap(), 1);
    assert!(!engine.stats().sync_slow);
    world.disk.on_sync(Some(Arc::new(move || {
        counted.fetch_add(1, Ordering::SeqCst);
        clock.advance(Duration::from_secs(2));
    })));
    assert_eq!(add(&engine, "d:a").unwrap(), 2);
    assert!(engine.stats().sync_slow, "a sync took two seconds by the clock");
    // From now on the sync thread commits; a worker's future parks instead of syncing.
    let before = syncs.load(Ordering::SeqCst);
    assert_eq!(add(&engine, "d:a").unwrap(), 3);
    assert!(syncs.load(Ordering::SeqCst) > before);
    world.disk.on_sync(None);
    for expected in 4..40 {
        assert_eq!(add(&engine, "d:a").unwrap(), expected);
    }
    assert!(!engine.stats().sync_slow, "fast again: workers commit for themselves");
    engine.close().unwrap();
}

#[test]
fn threads_that_count_together_count_exactly() {
    for durability in Durability::ALL {
        let directory = tempfile::tempdir().unwrap();
        let options =
            Options { durability, segment_bytes: 65536, journal_bytes_max: 200_000, ..Options::new(directory.path()) };
        let engine = Engine::open(options.clone()).unwrap();
        let (threads, each) = (4, 400);
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let engine = engine.clone();
                scope.spawn(move || {
                    let shared = engine.handle("shared").unwrap();
                    for index in 0..each {
                        shared.add(1).unwrap();
                        engine.add(format!("own:{thread}"), 1).unwrap();
                        if index % 50 == 0 {
                            engine.read("shared").unwrap();
                        }
                    }
                });
            }
        });
        drop(engine);
        let engine = Engine::open(options).unwrap();
        assert_eq!(engine.read("shared").unwrap().value, threads * each, "{durability}");
        assert_eq!(engine.read("own:3").unwrap().value, each, "{durability}");
        assert!(engine.recovery().clean, "dropping the last handle is a clean stop");
    }
}
