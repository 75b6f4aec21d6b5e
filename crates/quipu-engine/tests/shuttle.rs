//! Tests interleavings of threads in the table and in the commit, on shuttle's scheduler.
//!
//! They run the shipped types through thousands of schedules. No background thread is there to
//! help: a lost wake-up leaves a thread waiting for ever, which shuttle reports. Run them with
//! `cargo test -p quipu-engine --features shuttle --test shuttle`; `QUIPU_SCHEDULES` sets their
//! number. The schedule's number is its seed: the same number gives the same schedule, for the same
//! code. `QUIPU_SCHEDULE_FROM` is the first number, 0 by default. `QUIPU_SEEDS_ONLY=1` runs that
//! one alone, to try it again.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::path::Path;
use std::sync::Arc;

use quipu_engine::{Engine, Environment, Error, Options};
use quipu_model::{Command, Durability, Identity, Millis, Name, Namespace, Refusal, Reply};
use quipu_testkit::{CrashDisk, FileLedger, SeededRng, SimClock};
use shuttle::thread;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().and_then(|text| text.parse().ok())
}

fn schedules(default: usize) -> usize {
    number("QUIPU_SCHEDULES").map_or(default, |count| count as usize)
}

/// Stack of each of the scheduler's threads. Its default, of 32 KB, is less than opening an engine
/// takes in some builds.
const STACK_BYTES: usize = 256 << 10;

/// Tries schedules one by one, each drawn from its number.
fn check_random(test: impl Fn() + Send + Sync + 'static, schedules: usize) {
    let test = Arc::new(test);
    let from = number("QUIPU_SCHEDULE_FROM").unwrap_or(0);
    let schedules = if number("QUIPU_SEEDS_ONLY").is_some() { 1 } else { schedules as u64 };
    for schedule in from..from + schedules {
        let mut config = shuttle::Config::new();
        config.stack_size = STACK_BYTES;
        let scheduler = shuttle::scheduler::RandomScheduler::new_from_seed(schedule, 1);
        let test = Arc::clone(&test);
        let _named = FailingSchedule(schedule);
        shuttle::Runner::new(scheduler, config).run(move || test());
    }
}

/// Prints the number of the schedule that a panic ended.
struct FailingSchedule(u64);

impl Drop for FailingSchedule {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("again: QUIPU_SCHEDULE_FROM={}", self.0);
        }
    }
}

fn open(disk: &CrashDisk, seed: u64) -> Engine {
    let options = Options {
        namespaces: vec![(Box::from(*b"r"), Namespace::with_durability(Durability::Relaxed))],
        segment_bytes: 4096,
        ahead_bytes: Some(8192),
        table_shards: 2,
        // Of three threads that count, two have a lane of their own and one shares.
        lanes: 2,
        split_after: 1,
        ..Options::new(Path::new("/data"))
    };
    let environment = Environment {
        clock: Arc::new(SimClock::new(Millis(1_780_000_000_000))),
        rng: Arc::new(SeededRng::new(seed)),
        vfs: Arc::new(disk.clone()),
        open_ledger: {
            let disk = disk.clone();
            Arc::new(move |options| Ok(Arc::new(FileLedger::open(Arc::new(disk.clone()), &options.data)?)))
        },
        store: None,
        on_failure: Arc::new(|reason| panic!("{reason}")),
    };
    Engine::open_with(options, environment).unwrap()
}

/// What a loss of power right now leaves of a counter.
fn after_power_loss(disk: &CrashDisk, rng: &SeededRng, name: &str) -> i64 {
    let image = disk.crash(disk.operations(), rng);
    open(&image.into_disk(), 9).read(name).unwrap().value
}

#[test]
fn no_two_adds_reply_the_same_and_every_reply_is_durable_when_it_leaves() {
    let schedules = schedules(1500);
    check_random(
        || {
            let (disk, rng) = (CrashDisk::new(), Arc::new(SeededRng::new(7)));
            let engine = open(&disk, 1);
            let threads: Vec<_> = (0..3)
                .map(|_| {
                    let (engine, disk, rng) = (engine.clone(), disk.clone(), rng.clone());
                    thread::spawn(move || {
                        let mut replies = Vec::new();
                        for _ in 0..2 {
                            let value = engine.add("d:a", 1).unwrap();
                            assert!(after_power_loss(&disk, &rng, "d:a") >= value, "{value} was told and then lost");
                            replies.push(value);
                        }
                        replies
                    })
                })
                .collect();
            let mut replies: Vec<i64> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
            replies.sort_unstable();
            assert_eq!(replies, (1..=6).collect::<Vec<_>>());
        },
        schedules,
    );
    println!("proof: shuttle: {schedules} schedules of 3 threads adding to one counter");
}

#[test]
fn what_a_read_has_shown_is_durable_in_both_modes_and_over_shards() {
    let schedules = schedules(1500);
    check_random(
        || {
            let (disk, rng) = (CrashDisk::new(), Arc::new(SeededRng::new(8)));
            let engine = open(&disk, 1);
            let writers: Vec<_> = [("d:a", 1), ("r:a", 1), ("d:b", 5)]
                .into_iter()
                .map(|(name, delta)| {
                    let engine = engine.clone();
                    thread::spawn(move || engine.add(name, delta).unwrap())
                })
                .collect();
            let reader = {
                let (engine, disk, rng) = (engine.clone(), disk.clone(), rng.clone());
                thread::spawn(move || {
                    for name in ["d:a", "d:b"] {
                        let shown = engine.read(name).unwrap().value;
                        assert!(
                            after_power_loss(&disk, &rng, name) >= shown,
                            "{name}: {shown} was shown and then lost"
                        );
                    }
                    let shown = engine.read("r:a").unwrap().value;
                    let killed = open(&disk.kill(disk.operations()).into_disk(), 9);
                    assert!(killed.read("r:a").unwrap().value >= shown, "relaxed: {shown} was shown and then lost");
                })
            };
            reader.join().unwrap();
            writers.into_iter().for_each(|writer| assert!(writer.join().unwrap() > 0));
        },
        schedules,
    );
    println!("proof: shuttle: {schedules} schedules of 3 writers and a reader over two shards and two modes");
}

#[test]
fn transactions_do_not_block_each_other_for_ever_and_are_whole() {
    let schedules = schedules(1500);
    check_random(
        || {
            let disk = CrashDisk::new();
            let engine = open(&disk, 1);
            let pair = |first: &'static [u8], second: &'static [u8]| {
                let engine = engine.clone();
                thread::spawn(move || {
                    let adds = [first, second].map(|name| Command::Add {
                        name: Name::new(name).unwrap(),
                        delta: 1,
                        shard_key: None,
                    });
                    let mut turn = engine.turn();
                    turn.run_transaction(&adds, &[]).unwrap().unwrap();
                    shuttle::future::block_on(engine.commit_until(turn.finish())).unwrap();
                })
            };
            let threads = [pair(b"d:a", b"d:b"), pair(b"d:b", b"d:a")];
            let mut turn = engine.turn();
            let names = vec![Name::new(b"d:a").unwrap(), Name::new(b"d:b").unwrap()];
            let Ok(Reply::Values(values)) = turn.run(&Command::ReadMany { names }) else { panic!("not values") };
            assert_eq!(values[0], values[1], "half a transaction was seen");
            shuttle::future::block_on(engine.commit_until(turn.finish())).unwrap();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        },
        schedules,
    );
    println!("proof: shuttle: {schedules} schedules of crossing transactions");
}

#[test]
fn a_seal_and_a_cut_meet_adds_and_lose_nothing() {
    let schedules = schedules(1000);
    check_random(
        || {
            let (disk, rng) = (CrashDisk::new(), SeededRng::new(9));
            let engine = open(&disk, 1);
            engine.add("d:a", 10).unwrap();
            let sealing = {
                let engine = engine.clone();
                thread::spawn(move || {
                    engine.steps().seal_all().unwrap();
                })
            };
            let adding = {
                let engine = engine.clone();
                thread::spawn(move || (0..2).map(|_| engine.add("d:a", 1).unwrap()).collect::<Vec<_>>())
            };
            sealing.join().unwrap();
            assert_eq!(adding.join().unwrap(), [11, 12]);
            assert_eq!(after_power_loss(&disk, &rng, "d:a"), 12);
        },
        schedules,
    );
    println!("proof: shuttle: {schedules} schedules of a seal among adds");
}

#[test]
fn seals_evictions_and_loads_meet_adds_and_lose_nothing() {
    let schedules = schedules(1000);
    check_random(
        || {
            let (disk, rng) = (CrashDisk::new(), SeededRng::new(11));
            let engine = open(&disk, 1);
            engine.add("d:a", 10).unwrap();
            engine.steps().seal_all().unwrap();
            let resting = {
                let engine = engine.clone();
                thread::spawn(move || {
                    for _ in 0..2 {
                        evict_all(&engine);
                        engine.steps().seal_all().unwrap();
                    }
                    evict_all(&engine);
                })
            };
            let adding = {
                let engine = engine.clone();
                thread::spawn(move || (0..3).map(|_| engine.add("d:a", 1).unwrap()).collect::<Vec<_>>())
            };
            let seen: Vec<i64> = (0..2).map(|_| engine.read("d:a").unwrap().value).collect();
            assert!(10 <= seen[0] && seen[0] <= seen[1] && seen[1] <= 13, "{seen:?}");
            resting.join().unwrap();
            assert_eq!(adding.join().unwrap(), [11, 12, 13]);
            assert_eq!((engine.read("d:a").unwrap().value, engine.stats().counters), (13, 1));
            assert_eq!(after_power_loss(&disk, &rng, "d:a"), 13);
        },
        schedules,
    );
    println!("proof: shuttle: {schedules} schedules of seals, evictions and loads among adds");
}

#[test]
fn a_flush_among_seals_and_loads_deletes_everything_before_it_and_nothing_after() {
    let schedules = schedules(1000);
    check_random(
        || {
            let (disk, rng) = (CrashDisk::new(), SeededRng::new(12));
            let engine = open(&disk, 1);
            engine.add("d:a", 10).unwrap();
            engine.steps().seal_all().unwrap();
            evict_all(&engine);
            let flushing = {
                let engine = engine.clone();
                thread::spawn(move || engine.execute(&Command::Flush).unwrap())
            };
            let sealing = {
                let engine = engine.clone();
                // A flush in between ends a seal; the next one does what it left.
                thread::spawn(move || while engine.steps().seal_all().is_err() {})
            };
            let added = engine.add("d:a", 1).unwrap();
            flushing.join().unwrap();
            sealing.join().unwrap();
            let expected = if added == 11 { 0 } else { 1 };
            assert!(added == 11 || added == 1, "{added}");
            assert_eq!(engine.read("d:a").unwrap().value, expected);
            assert_eq!(after_power_loss(&disk, &rng, "d:a"), expected);
        },
        schedules,
    );
    println!("proof: shuttle: {schedules} schedules of a flush among seals and loads");
}

#[test]
fn adds_in_lanes_count_once_whoever_reads_joins_or_closes_them() {
    let schedules = schedules(1500);
    check_random(
        || {
            let disk = CrashDisk::new();
            let engine = open(&disk, 1);
            let counting: Vec<_> = (0..2)
                .map(|_| {
                    let engine = engine.clone();
                    thread::spawn(move || {
                        let handle = engine.handle("d:a").unwrap();
                        for own in 1..=3 {
                            handle.count(1).unwrap();
                            let seen = engine.read("d:a").unwrap().value;
                            assert!(seen >= own, "{own} were counted, {seen} were seen");
                        }
                    })
                })
                .collect();
            let looking = {
                let engine = engine.clone();
                // Every other look finds that nobody has counted since, and closes the lanes.
                thread::spawn(move || (0..4).for_each(|_| engine.steps().join_lanes()))
            };
            let seen: Vec<i64> = (0..2).map(|_| engine.read("d:a").unwrap().value).collect();
            assert!(seen[0] <= seen[1], "{seen:?}");
            counting.into_iter().for_each(|thread| thread.join().unwrap());
            assert_eq!(engine.read("d:a").unwrap().value, 6);
            looking.join().unwrap();
            assert_eq!(engine.read("d:a").unwrap().value, 6);
        },
        schedules,
    );
    println!("proof: shuttle: {schedules} schedules of adds in lanes among reads, looks and closings");
}

#[test]
fn every_add_in_a_lane_is_in_what_a_reset_takes_or_comes_after_it() {
    let schedules = schedules(1500);
    check_random(
        || {
            let disk = CrashDisk::new();
            let engine = open(&disk, 1);
            let counting: Vec<_> = (0..2)
                .map(|_| {
                    let handle = engine.handle("r:a").unwrap();
                    thread::spawn(move || (0..4).for_each(|_| handle.count(1).unwrap()))
                })
                .collect();
            let resetting = {
                let engine = engine.clone();
                thread::spawn(move || (0..2).map(|_| engine.reset("r:a").unwrap()).sum::<i64>())
            };
            let Reply::Value(taken) = engine.execute(&Command::Take { name: Name::new(b"r:a").unwrap() }).unwrap()
            else {
                panic!("not a value");
            };
            counting.into_iter().for_each(|thread| thread.join().unwrap());
            let taken = taken.unwrap_or(0) + resetting.join().unwrap();
            assert_eq!(taken + engine.read("r:a").unwrap().value, 8);
        },
        schedules,
    );
    println!("proof: shuttle: {schedules} schedules of adds in lanes among resets");
}

#[test]
fn what_was_counted_before_a_flush_returned_is_durable() {
    let schedules = schedules(1000);
    check_random(
        || {
            let (disk, rng) = (CrashDisk::new(), Arc::new(SeededRng::new(13)));
            let engine = open(&disk, 1);
            let threads: Vec<_> = (0..2)
                .map(|_| {
                    let (engine, disk, rng) = (engine.clone(), disk.clone(), rng.clone());
                    thread::spawn(move || {
                        let handle = engine.handle("d:a").unwrap();
                        for own in 1..=2 {
                            handle.count(1).unwrap();
                            handle.flush().unwrap();
                            assert!(after_power_loss(&disk, &rng, "d:a") >= own, "{own} were flushed and then lost");
                        }
                    })
                })
                .collect();
            engine.steps().join_lanes();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            assert_eq!(after_power_loss(&disk, &rng, "d:a"), 4);
        },
        schedules,
    );
    println!("proof: shuttle: {schedules} schedules of adds in lanes that are flushed");
}

#[test]
fn adds_in_lanes_meet_a_close_and_each_counts_or_is_told_that_it_may_not() {
    // Few of them have an adder between its look and its add when the lanes are closed.
    let schedules = schedules(6000);
    check_random(
        || {
            let disk = CrashDisk::new();
            let engine = open(&disk, 1);
            let counting: Vec<_> = (0..3)
                .map(|_| {
                    let handle = engine.handle("d:a").unwrap();
                    thread::spawn(move || {
                        let (mut counted, mut unknown) = (0, 0);
                        for _ in 0..3 {
                            match handle.count(1) {
                                Ok(()) => counted += 1,
                                Err(Error::OutcomeUnknown) => unknown += 1,
                                Err(Error::Refused(_)) => {}
                                Err(other) => panic!("{other}"),
                            }
                        }
                        (counted, unknown)
                    })
                })
                .collect();
            engine.close().unwrap();
            let counts: Vec<(i64, i64)> = counting.into_iter().map(|thread| thread.join().unwrap()).collect();
            let (counted, unknown): (i64, i64) = (counts.iter().map(|t| t.0).sum(), counts.iter().map(|t| t.1).sum());
            let shown = engine.read("d:a").unwrap().value;
            let value = open(&disk.kill(disk.operations()).into_disk(), 9).read("d:a").unwrap().value;
            assert!(
                counted <= value && value <= counted + unknown && shown == value,
                "{counts:?}: {shown}, then {value}"
            );
        },
        schedules,
    );
    println!("proof: shuttle: {schedules} schedules of adds in lanes that meet a close");
}

#[test]
fn adds_in_lanes_meet_a_flush_of_everything_and_counters_that_leave_memory() {
    let schedules = schedules(1000);
    check_random(
        || {
            let (disk, rng) = (CrashDisk::new(), SeededRng::new(14));
            let engine = open(&disk, 1);
            let handle = engine.handle("d:a").unwrap();
            (0..2).for_each(|_| handle.count(10).unwrap());
            let flushing = {
                let engine = engine.clone();
                thread::spawn(move || engine.execute(&Command::Flush).unwrap())
            };
            let resting = {
                let engine = engine.clone();
                thread::spawn(move || {
                    for _ in 0..2 {
                        engine.steps().join_lanes();
                        let _ = engine.steps().seal_all();
                        evict_all(&engine);
                    }
                })
            };
            (0..3).for_each(|_| handle.count(1).unwrap());
            flushing.join().unwrap();
            resting.join().unwrap();
            handle.flush().unwrap();
            let value = engine.read("d:a").unwrap().value;
            assert!((0..=3).contains(&value), "{value}");
            assert_eq!(after_power_loss(&disk, &rng, "d:a"), value);
            assert_eq!(engine.stats().counters, u64::from(engine.read("d:a").unwrap().exists));
        },
        schedules,
    );
    println!("proof: shuttle: {schedules} schedules of adds in lanes among a flush, seals and evictions");
}

fn evict_all(engine: &Engine) {
    let steps = engine.steps();
    (0..2 * steps.shard_count()).for_each(|index| {
        steps.evict(index % steps.shard_count());
    });
}

#[test]
fn of_two_that_retry_at_once_one_applies_and_both_have_its_durable_reply() {
    let schedules = schedules(1500);
    check_random(
        || {
            let (disk, rng) = (CrashDisk::new(), Arc::new(SeededRng::new(11)));
            let engine = open(&disk, 1);
            let threads: Vec<_> = (0..3)
                .map(|_| {
                    let (engine, disk, rng) = (engine.clone(), disk.clone(), rng.clone());
                    thread::spawn(move || {
                        let add = Command::Add { name: Name::new(b"d:a").unwrap(), delta: 1, shard_key: None };
                        let reply = engine.execute_once(&Identity::token(b"p", b"1").unwrap(), &add);
                        if reply.is_ok() {
                            assert!(after_power_loss(&disk, &rng, "d:a") >= 1, "it was told and then lost");
                        }
                        reply
                    })
                })
                .collect();
            // The same token on another counter, which is mostly in another shard: either of them
            // comes first.
            let add = Command::Add { name: Name::new(b"d:b").unwrap(), delta: 1, shard_key: None };
            let other = engine.execute_once(&Identity::token(b"p", b"1").unwrap(), &add);
            let replies: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
            let mismatch = Err(Error::Refused(Refusal::TokenMismatch));
            let (first, second) = if other.is_ok() { (0, 1) } else { (1, 0) };
            let expected = if first == 1 { Ok(Reply::Integer(1)) } else { mismatch.clone() };
            assert!(replies.iter().all(|reply| *reply == expected), "{replies:?}");
            assert_eq!(other, if second == 1 { Ok(Reply::Integer(1)) } else { mismatch });
            assert_eq!([engine.read("d:a").unwrap().value, engine.read("d:b").unwrap().value], [first, second]);
        },
        schedules,
    );
    println!("proof: shuttle: {schedules} schedules of 4 threads with one token");
}

#[test]
fn a_namespace_becomes_durable_among_adds_and_what_it_shows_from_then_on_is() {
    let schedules = schedules(300);
    check_random(
        || {
            let (disk, rng) = (CrashDisk::new(), Arc::new(SeededRng::new(11)));
            let engine = open(&disk, 1);
            engine.put_namespace("x", Namespace::with_durability(Durability::Memory)).unwrap();
            let writers: Vec<_> = (0..2)
                .map(|_| {
                    let engine = engine.clone();
                    thread::spawn(move || (0..2).for_each(|_| assert!(engine.add("x:a", 1).is_ok())))
                })
                .collect();
            engine.put_namespace("x", Namespace::with_durability(Durability::Durable)).unwrap();
            for _ in 0..2 {
                let shown = engine.read("x:a").unwrap().value;
                assert!(after_power_loss(&disk, &rng, "x:a") >= shown, "{shown} was shown and then lost");
            }
            writers.into_iter().for_each(|writer| writer.join().unwrap());
            assert_eq!(engine.add("x:a", 1).unwrap(), 5);
            assert_eq!(after_power_loss(&disk, &rng, "x:a"), 5);
        },
        schedules,
    );
    println!("proof: shuttle: {schedules} schedules of a namespace that becomes durable among adds");
}
