//! Tests mutations under tokens and sequence numbers, by example.

use std::time::Duration;

use quipu_engine::{Engine, Error, Options};
use quipu_model::{
    AddWithin, Command, Durability, Expiry, Identity, Name, Refusal, Reply, Set, SetCondition, SetExpiry,
};
use quipu_testkit::CrashDisk;

use crate::world::{WINDOW, World, seal_without_cut, small_options};

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

fn add(text: &str, delta: i64) -> Command<'_> {
    Command::Add { name: name(text), delta, shard_key: None }
}

fn token(item: &str) -> Identity<'_> {
    Identity::token(b"p", item.as_bytes()).unwrap()
}

fn number(n: u64) -> Identity<'static> {
    Identity::sequence(b"p", n).unwrap()
}

fn once(engine: &Engine, identity: Identity<'_>, command: &Command<'_>) -> Reply {
    match engine.execute_once(&identity, command) {
        Err(Error::Refused(refusal)) => Reply::Refused(refusal),
        reply => reply.unwrap(),
    }
}

fn refused(refusal: Refusal) -> Reply {
    Reply::Refused(refusal)
}

/// Everything that was handed over, in another world.
fn after_kill(world: &World) -> World {
    World::new(world.disk.kill(world.disk.operations()).into_disk(), 2)
}

#[test]
fn a_retry_gets_the_same_reply_after_a_seal_a_cut_and_a_kill() {
    let mut world = World::new(CrashDisk::new(), 1);
    let mut engine = world.open(small_options(8192)).unwrap();
    let within = Command::AddWithin(AddWithin {
        name: name("d:w"),
        delta: 5,
        lower: 0,
        upper: 3,
        saturate: true,
        expiry: Expiry::Keep,
        expiry_if_none: false,
    });
    let set = |condition, reply_old| {
        Command::Set(Set { name: name("d:s"), value: 9, condition, expiry: SetExpiry::Remove, reply_old })
    };
    // One of every kind of reply.
    let mutations = [
        (token("1"), add("d:a", 5), Reply::Integer(5)),
        (token("2"), within, Reply::Pair(3, 3)),
        (token("3"), set(SetCondition::IfPresent, false), Reply::Nil),
        (token("4"), set(SetCondition::Always, true), Reply::Value(None)),
        (token("5"), set(SetCondition::Always, false), Reply::Ok),
        (token("6"), Command::Take { name: name("d:s") }, Reply::Value(Some(9))),
        (token("7"), Command::Delete { names: vec![name("d:nothing")] }, Reply::Integer(0)),
        (number(1), add("r:a", 1), Reply::Integer(1)),
        (token("8"), add("m:a", 7), Reply::Integer(7)),
    ];
    for (identity, command, reply) in &mutations {
        assert_eq!(once(&engine, *identity, command), *reply, "{command:?}");
    }
    assert_eq!(engine.add("d:a", 1).unwrap(), 6);
    for round in 0..3 {
        for (identity, command, reply) in &mutations {
            assert_eq!(once(&engine, *identity, command), *reply, "{command:?}, round {round}");
            assert_eq!(once(&engine, *identity, &add("d:other", 1)), refused(Refusal::TokenMismatch));
        }
        assert_eq!(engine.read("d:a").unwrap().value, 6);
        match round {
            0 => engine.steps().seal_all().unwrap(),
            _ => drop(seal_without_cut(&engine)),
        }
        // What memory mode promised is that a reply waits for nothing, so it is handed over here.
        engine.steps().write_filled();
        world = after_kill(&world);
        engine = world.open(small_options(8192)).unwrap();
    }
    assert_eq!(engine.read("m:a").unwrap().value, 7, "under a token a counter in memory is journaled");
    assert_eq!((engine.stats().tokens.tokens, engine.stats().tokens.producers), (8, 1));
    assert!(!engine.read("d:other").unwrap().exists);
}

#[test]
fn a_token_and_its_effect_are_there_both_or_neither() {
    for handed_over in [false, true] {
        let world = World::new(CrashDisk::new(), 1);
        let engine = world.open(small_options(8192)).unwrap();
        let mut turn = engine.turn();
        for name in ["d:a", "r:a", "m:a"] {
            assert_eq!(turn.run_once(&token(name), &[add(name, 1)]), Ok(Reply::Integer(1)));
        }
        turn.finish();
        if handed_over {
            engine.steps().write_filled();
        }
        let world = after_kill(&world);
        let engine = world.open(small_options(8192)).unwrap();
        for name in ["d:a", "r:a", "m:a"] {
            assert_eq!(engine.read(name).unwrap().value, i64::from(handed_over), "{name}");
            engine.add(name, 10).unwrap();
            let expected = if handed_over { 1 } else { 11 };
            assert_eq!(once(&engine, token(name), &add(name, 1)), Reply::Integer(expected), "{name}");
        }
    }
}

#[test]
fn a_retry_waits_for_the_record_of_the_first_time() {
    let world = World::new(CrashDisk::new(), 1);
    let engine = world.open(small_options(8192)).unwrap();
    let run = |command: &Command<'_>| {
        let mut turn = engine.turn();
        let reply = turn.run_once(&token("1"), std::slice::from_ref(command)).unwrap();
        (reply, turn.finish())
    };
    // Of two connections that retry at once the first has applied and not committed.
    let (first, _) = run(&add("d:a", 1));
    let (again, wait) = run(&add("d:a", 1));
    assert_eq!((&again, &first), (&Reply::Integer(1), &Reply::Integer(1)));
    assert!(!engine.steps().has_reached(wait), "a crash may still take it back");
    let (other, mismatch) = run(&add("d:a", 2));
    assert_eq!(other, refused(Refusal::TokenMismatch));
    assert!(!engine.steps().has_reached(mismatch), "it says that the token was used");
    engine.steps().write_filled();
    assert!(!engine.steps().has_reached(wait));
    engine.steps().sync();
    assert!(engine.steps().has_reached(wait) && engine.steps().has_reached(mismatch));
    assert_eq!(engine.stats().tokens.hits, 1);
}

#[test]
fn what_was_refused_is_not_remembered() {
    let world = World::new(CrashDisk::new(), 1);
    let options = Options { tokens_max: 1, ..small_options(8192) };
    let engine = world.open(options).unwrap();
    engine.set("d:a", i64::MAX).unwrap();
    for _ in 0..3 {
        assert_eq!(once(&engine, token("1"), &add("d:a", 1)), refused(Refusal::Overflow));
        assert_eq!(once(&engine, number(1), &add("d:a", 1)), refused(Refusal::Overflow));
    }
    assert_eq!(engine.stats().tokens.tokens, 0);
    engine.set("d:a", 0).unwrap();
    assert_eq!(once(&engine, token("1"), &add("d:a", 1)), Reply::Integer(1));
    assert_eq!(once(&engine, number(1), &add("d:a", 1)), Reply::Integer(2));
}

#[test]
fn tokens_outlive_a_flush_and_what_a_flush_replied() {
    let mut world = World::new(CrashDisk::new(), 1);
    let mut engine = world.open(small_options(8192)).unwrap();
    assert_eq!(once(&engine, token("1"), &add("d:a", 1)), Reply::Integer(1));
    engine.steps().seal_all().unwrap();
    assert_eq!(once(&engine, token("2"), &add("d:a", 1)), Reply::Integer(2));
    assert_eq!(once(&engine, number(1), &add("d:a", 1)), Reply::Integer(3));
    assert_eq!(once(&engine, token("f"), &Command::Flush), Reply::Ok);
    assert_eq!(once(&engine, token("3"), &add("d:b", 1)), Reply::Integer(1));
    for round in 0..3 {
        for (identity, command, reply) in [
            (token("1"), add("d:a", 1), Reply::Integer(1)),
            (token("2"), add("d:a", 1), Reply::Integer(2)),
            (number(1), add("d:a", 1), Reply::Integer(3)),
            (token("f"), Command::Flush, Reply::Ok),
            (token("3"), add("d:b", 1), Reply::Integer(1)),
        ] {
            assert_eq!(once(&engine, identity, &command), reply, "round {round}");
        }
        assert!(!engine.read("d:a").unwrap().exists);
        assert_eq!(engine.read("d:b").unwrap().value, 1, "the flush was not carried out again");
        // The first seal after a flush clears the ledger.
        engine.steps().seal_all().unwrap();
        world = after_kill(&world);
        engine = world.open(small_options(8192)).unwrap();
    }
}

#[test]
fn a_token_is_forgotten_after_its_window_in_memory_and_at_rest() {
    let world = World::new(CrashDisk::new(), 1);
    let engine = world.open(small_options(8192)).unwrap();
    for item in ["1", "2"] {
        once(&engine, token(item), &add("d:a", 1));
    }
    assert_eq!(once(&engine, number(1), &add("d:a", 1)), Reply::Integer(3));
    engine.steps().seal_all().unwrap();
    world.clock.advance(WINDOW);
    assert_eq!(once(&engine, token("1"), &add("d:a", 1)), Reply::Integer(1), "remembered a little longer");
    world.clock.advance(quipu_model::TOKEN_AHEAD_MAX);
    engine.steps().seal_all().unwrap();
    assert_eq!((engine.stats().tokens.tokens, engine.stats().tokens.evictions), (0, 2));
    assert_eq!(once(&engine, token("1"), &add("d:a", 1)), Reply::Integer(4), "it is a new one");
    assert_eq!(once(&engine, number(1), &add("d:a", 1)), Reply::Integer(3), "a number has no window");
    let world = after_kill(&world);
    let engine = world.open(small_options(8192)).unwrap();
    assert_eq!(engine.stats().tokens.tokens, 1, "only the one that was applied anew");
}

#[test]
fn a_token_that_carries_its_time_is_refused_outside_the_window_and_never_applied() {
    let world = World::new(CrashDisk::new(), 1);
    let engine = world.open(small_options(8192)).unwrap();
    let now = engine.now().0;
    let window = WINDOW.as_millis() as u64;
    let ahead = quipu_model::TOKEN_AHEAD_MAX.as_millis() as u64;
    let carrying = |at: u64| format!("{at}-nonce");
    let too_old = || refused(Refusal::TokenTooOld { window_millis: window });
    assert_eq!(once(&engine, token(&carrying(now - window)), &add("d:a", 1)), too_old());
    let future = once(&engine, token(&carrying(now + ahead + 1)), &add("d:a", 1));
    assert_eq!(future, refused(Refusal::TokenFromFuture));
    assert!(!engine.read("d:a").unwrap().exists);
    let first = carrying(now + ahead);
    assert_eq!(once(&engine, token(&first), &add("d:a", 1)), Reply::Integer(1));
    // For as long as it is not too old it is remembered, whatever is sealed meanwhile.
    world.clock.advance(Duration::from_millis(ahead + window - 1));
    engine.steps().seal_all().unwrap();
    assert_eq!(once(&engine, token(&first), &add("d:a", 1)), Reply::Integer(1));
    world.clock.advance(Duration::from_millis(1));
    engine.steps().seal_all().unwrap();
    assert_eq!(once(&engine, token(&first), &add("d:a", 1)), too_old());
    assert_eq!(engine.read("d:a").unwrap().value, 1);
    // A longer window in the next life does not bring back what was forgotten.
    engine.close().unwrap();
    drop(engine);
    let again = World::new(world.disk.clone(), 3);
    let engine = again.open(Options { token_window: 10 * WINDOW, ..small_options(8192) }).unwrap();
    let refused_still = refused(Refusal::TokenTooOld { window_millis: 10 * window });
    assert_eq!(once(&engine, token(&first), &add("d:a", 1)), refused_still);
    assert_eq!(engine.read("d:a").unwrap().value, 1);
}

#[test]
fn beyond_the_bound_new_tokens_are_refused_and_live_ones_answered() {
    let world = World::new(CrashDisk::new(), 1);
    let options = || Options { tokens_max: 3, producers_max: 1, ..small_options(8192) };
    let engine = world.open(options()).unwrap();
    for item in ["1", "2", "3"] {
        once(&engine, token(item), &add("d:a", 1));
    }
    once(&engine, number(1), &add("d:a", 1));
    let check = |engine: &Engine| {
        assert_eq!(once(engine, token("4"), &add("d:a", 1)), refused(Refusal::TokensFull { tokens_max: 3 }));
        let other = Identity::sequence(b"q", 1).unwrap();
        assert_eq!(once(engine, other, &add("d:a", 1)), refused(Refusal::ProducersFull { producers_max: 1 }));
        assert_eq!(once(engine, token("1"), &add("d:a", 1)), Reply::Integer(1));
        assert_eq!(engine.read("d:a").unwrap().value, 4);
    };
    check(&engine);
    engine.steps().seal_all().unwrap();
    drop(engine);
    let again = after_kill(&world);
    let engine = again.open(options()).unwrap();
    check(&engine);
    assert_eq!(once(&engine, number(2), &add("d:a", 1)), Reply::Integer(5), "a known producer goes on");
    again.clock.advance(2 * WINDOW);
    engine.steps().seal_all().unwrap();
    assert_eq!(once(&engine, token("4"), &add("d:a", 1)), Reply::Integer(6), "there is room again");
}

#[test]
fn a_memory_limit_bounds_tokens_too() {
    let world = World::new(CrashDisk::new(), 1);
    let options = Options { memory_bytes_max: Some(8_000), ..small_options(8192) };
    let engine = world.open(options).unwrap();
    assert_eq!(engine.stats().tokens.tokens_max, 10, "an eighth, at a hundred bytes each");
}

#[test]
fn a_producer_counts_on_over_crashes() {
    let mut world = World::new(CrashDisk::new(), 1);
    let mut engine = world.open(small_options(8192)).unwrap();
    for n in 1..=20 {
        assert_eq!(once(&engine, number(n + 1), &add("d:a", 1)), refused(Refusal::SequenceGap { expected: n }));
        for _ in 0..2 {
            assert_eq!(once(&engine, number(n), &add("d:a", 1)), Reply::Integer(n as i64));
        }
        assert_eq!(once(&engine, number(n), &add("d:a", 2)), refused(Refusal::TokenMismatch));
        if n > 1 {
            assert_eq!(once(&engine, number(n - 1), &add("d:a", 1)), refused(Refusal::SequenceApplied { last: n }));
        }
        if n % 3 == 0 {
            engine.steps().seal_all().unwrap();
        }
        if n % 4 == 0 {
            world = after_kill(&world);
            engine = world.open(small_options(8192)).unwrap();
        }
    }
}

#[test]
fn several_sets_are_one_mutation_and_reads_are_none() {
    let world = World::new(CrashDisk::new(), 1);
    let engine = world.open(small_options(8192)).unwrap();
    let set = |text: &'static str, value| {
        let (condition, expiry) = (SetCondition::Always, SetExpiry::Remove);
        Command::Set(Set { name: name(text), value, condition, expiry, reply_old: false })
    };
    for _ in 0..2 {
        let mut turn = engine.turn();
        assert_eq!(turn.run_once(&token("1"), &[set("d:a", 1), set("r:b", 2)]), Ok(Reply::Ok));
        turn.finish();
    }
    let mut turn = engine.turn();
    let both = [add("d:a", 1), add("d:b", 1)];
    assert_eq!(turn.run_once(&token("2"), &both), Ok(refused(Refusal::NotOnce)), "one might be refused");
    let read = Command::Read { name: name("d:a") };
    assert_eq!(turn.run_once(&token("2"), &[read]), Ok(refused(Refusal::NotOnce)));
    assert_eq!(turn.run_once(&token("2"), &[]), Ok(refused(Refusal::NotOnce)));
    turn.finish();
    assert_eq!(engine.read("r:b").unwrap().value, 2);
}

#[test]
fn a_retry_is_answered_where_nothing_can_be_written() {
    let world = World::new(CrashDisk::new(), 1);
    let engine = world.open(small_options(8192)).unwrap();
    once(&engine, token("1"), &add("d:a", 1));
    engine.close().unwrap();
    assert_eq!(once(&engine, token("1"), &add("d:a", 1)), Reply::Integer(1));
    assert!(matches!(once(&engine, token("2"), &add("d:a", 1)), Reply::Refused(Refusal::NoRoom { .. })));
}

#[test]
fn a_mutation_of_a_counter_at_rest_is_applied_once_it_is_loaded() {
    let world = World::new(CrashDisk::new(), 1);
    let engine = world.open(small_options(8192)).unwrap();
    engine.set("d:a", 41).unwrap();
    engine.close().unwrap();
    drop(engine);
    let again = World::new(world.disk.clone(), 2);
    let engine = again.open(small_options(8192)).unwrap();
    for _ in 0..2 {
        assert_eq!(once(&engine, token("1"), &add("d:a", 1)), Reply::Integer(42));
    }
    assert_eq!(engine.read("d:a").unwrap().value, 42);
}

#[test]
fn the_durability_of_a_retry_is_that_of_its_namespace() {
    let world = World::new(CrashDisk::new(), 1);
    let engine = world.open(small_options(8192)).unwrap();
    for (name, durability) in [("m:a", Durability::Memory), ("r:a", Durability::Relaxed), ("d:a", Durability::Durable)]
    {
        let mut turn = engine.turn();
        turn.run_once(&token(name), &[add(name, 1)]).unwrap();
        let first = turn.finish();
        let mut turn = engine.turn();
        turn.run_once(&token(name), &[add(name, 1)]).unwrap();
        let again = turn.finish();
        for wait in [first, again] {
            assert_eq!(engine.steps().has_reached(wait), durability == Durability::Memory, "{name}");
        }
        engine.steps().write_filled();
        assert_eq!(engine.steps().has_reached(again), durability < Durability::Durable, "{name}");
        engine.steps().sync();
        assert!(engine.steps().has_reached(again), "{name}");
    }
}
