//! Tests jumps of the wall clock: the engine's time goes on, and an operator can put it back after
//! a wrong jump.

use std::time::Duration;

use quipu_engine::{Engine, Error, STEP_STAYS, TimeCorrection};
use quipu_model::{Command, ExpiryCondition, ExpiryTime, Identity, Millis, Name, Refusal, Reply};
use quipu_testkit::CrashDisk;

use crate::world::{BEGIN, WINDOW, World, small_options};

const DAY: u64 = 24 * 60 * 60 * 1000;

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

/// Adds 5 under a token that carries a time.
fn add_once(engine: &Engine, at: Millis, nonce: &str) -> Reply {
    let token = format!("{at}-{nonce}");
    let identity = Identity::token(b"p", token.as_bytes()).unwrap();
    match engine.execute_once(&identity, &Command::Add { name: name("d:a"), delta: 5, shard_key: None }) {
        Err(Error::Refused(refusal)) => Reply::Refused(refusal),
        reply => reply.unwrap(),
    }
}

fn too_old() -> Reply {
    Reply::Refused(Refusal::TokenTooOld { window_millis: WINDOW.as_millis() as u64 })
}

/// The disk of a world as a kill leaves it, in a world whose clock shows this.
fn killed(world: &World, wall: Millis) -> World {
    let again = World::new(world.disk.kill(world.disk.operations()).into_disk(), 2);
    again.clock.set_wall(wall);
    again
}

#[test]
fn tokens_and_expiry_go_on_while_the_wall_clock_is_elsewhere() {
    for jump in [30 * DAY as i64, -365 * DAY as i64] {
        let world = World::new(CrashDisk::new(), 1);
        let engine = world.open(small_options(8192)).unwrap();
        let mut true_time = BEGIN;
        let mut pass = |millis| {
            world.clock.advance(Duration::from_millis(millis));
            true_time = Millis(true_time.0 + millis);
            true_time
        };
        for (round, wall) in [jump, 0, jump, -jump].into_iter().enumerate() {
            let begun = pass(1_000);
            world.clock.set_wall(Millis(begun.0.saturating_add_signed(wall)));
            assert_eq!(engine.now(), begun, "{jump}: round {round}");
            assert_eq!(add_once(&engine, begun, "a"), Reply::Integer(5 * (round as i64 + 1)), "{jump}: round {round}");
            engine.add("d:ttl", 1).unwrap();
            let expire = Command::Expire {
                name: name("d:ttl"),
                when: ExpiryTime::In(10_000),
                condition: ExpiryCondition::Always,
            };
            assert_eq!(engine.execute(&expire).unwrap(), Reply::Integer(1));
            pass(9_999);
            assert!(engine.read("d:ttl").unwrap().exists, "{jump}: round {round}");
            pass(1);
            assert!(!engine.read("d:ttl").unwrap().exists, "{jump}: round {round}");
        }
    }
}

#[test]
fn a_wall_clock_that_stays_is_believed() {
    let world = World::new(CrashDisk::new(), 1);
    let engine = world.open(small_options(8192)).unwrap();
    world.clock.set_wall(Millis(BEGIN.0 + 30 * DAY));
    assert_eq!(engine.now(), BEGIN);
    world.clock.advance(STEP_STAYS - Duration::from_millis(1));
    assert_eq!(engine.now().0, BEGIN.0 + STEP_STAYS.as_millis() as u64 - 1);
    world.clock.advance(Duration::from_millis(1));
    assert_eq!(engine.now().0, BEGIN.0 + 30 * DAY + STEP_STAYS.as_millis() as u64);
}

#[test]
fn a_time_that_was_wrong_at_a_start_is_put_back_and_nothing_is_counted_twice() {
    let world = World::new(CrashDisk::new(), 1);
    let engine = world.open(small_options(8192)).unwrap();
    assert_eq!(add_once(&engine, BEGIN, "early"), Reply::Integer(5));
    drop(engine);
    let world = killed(&world, Millis(BEGIN.0 + 30 * DAY));
    let engine = world.open(small_options(8192)).unwrap();
    assert_eq!(engine.add("d:a", 1).unwrap(), 6, "a start believes the wall clock");
    engine.close().unwrap();
    drop(engine);
    let now = Millis(BEGIN.0 + 60_000);
    let world = killed(&world, now);
    let engine = world.open(small_options(8192)).unwrap();
    assert_eq!(add_once(&engine, now, "late"), too_old());
    let from = engine.now();
    assert!(from.0 >= BEGIN.0 + 30 * DAY);
    assert_eq!(engine.lower_time().unwrap(), Some(TimeCorrection { from, to: now }));
    assert_eq!((engine.now(), engine.lower_time().unwrap()), (now, None));
    drop(engine);
    // Durable when it returns, without a clean stop.
    let world = killed(&world, now);
    let engine = world.open(small_options(8192)).unwrap();
    assert_eq!(engine.now(), now);
    assert_eq!(add_once(&engine, BEGIN, "early"), too_old(), "it was forgotten, and is not applied again");
    world.clock.advance(Duration::from_millis(60_001));
    let later = engine.now();
    assert_eq!(add_once(&engine, later, "later"), Reply::Integer(11), "tokens go on");
    assert_eq!(engine.read("d:a").unwrap().value, 11);
    engine.close().unwrap();
}
