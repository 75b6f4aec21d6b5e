//! Tests the replay at a start: it restores the state before, for any order of entries.
//!
//! Entries are restored many at a time, shard by shard and by several threads. The result must
//! equal a restore one by one.

use quipu_engine::{Engine, Options};
use quipu_model::{Command, Epoch, ExpiryCondition, ExpiryTime, Millis, Name, Set, SetCondition, SetExpiry};
use quipu_testkit::{CrashDisk, SeededRng};

use crate::world::{World, seal_without_cut, small_options};

/// More of each shard than are restored at once, and few enough that most of them come again and
/// again.
const NAMES: u64 = 180;

/// Changes of a run.
const STEPS: u64 = 4_000;

fn options() -> Options {
    // Longer than all of the journal: nothing is cut unless a run says so. Few shards: each has
    // entries for more than one pile.
    Options { journal_bytes_max: 64 << 20, table_shards: 2, ..small_options(64 << 10) }
}

/// A name, sometimes too long to lie in its slot.
fn name_of(number: u64) -> String {
    if number.is_multiple_of(7) { format!("d:{number:060}") } else { format!("d:{number}") }
}

/// Does something to a counter.
fn change(engine: &Engine, rng: &SeededRng, step: u64) {
    let text = name_of(rng.next_u64() % NAMES);
    let name = Name::new(text.as_bytes()).unwrap();
    match rng.next_u64() % 40 {
        0 => drop(engine.delete(&text).unwrap()),
        1 | 2 => {
            let expiry =
                if step.is_multiple_of(2) { SetExpiry::Remove } else { SetExpiry::At(ExpiryTime::In(3_600_000)) };
            let (value, condition) = (step as i64, SetCondition::Always);
            drop(engine.execute(&Command::Set(Set { name, value, condition, expiry, reply_old: false })).unwrap());
        }
        3 => {
            let (when, condition) = (ExpiryTime::In(7_200_000), ExpiryCondition::Always);
            drop(engine.execute(&Command::Expire { name, when, condition }).unwrap());
        }
        4 if step.is_multiple_of(50) => drop(engine.execute(&Command::Flush).unwrap()),
        _ => drop(engine.add(&text, (rng.next_u64() % 9) as i64 - 2).unwrap()),
    }
}

/// What is to be seen of a counter: its value, its epoch, when it expires.
type CounterView = Option<(i64, Epoch, Option<Millis>)>;

/// What is to be seen of all counters, and how many exist.
fn view_counters(engine: &Engine) -> (Vec<CounterView>, u64) {
    let view = |number| {
        let reading = engine.read(name_of(number)).unwrap();
        reading.exists.then_some((reading.value, reading.epoch, reading.expires_at))
    };
    ((0..NAMES).map(view).collect(), engine.stats().counters)
}

#[test]
fn a_start_finds_every_counter_as_it_was_in_whatever_order_things_were_done() {
    for seed in 0..36 {
        let (world, rng) = (World::new(CrashDisk::new(), seed), SeededRng::new(seed));
        let engine = world.open(options()).unwrap();
        for step in 1..=STEPS {
            change(&engine, &rng, step);
            // In some runs the ledger has a part of it, which the journal tells again, and in some
            // the journal was cut as well.
            if step == STEPS / 4 && seed % 3 == 1 {
                drop(seal_without_cut(&engine));
            } else if step == STEPS / 4 && seed % 3 == 2 {
                engine.steps().seal_all().unwrap();
            }
        }
        let before = view_counters(&engine);
        let again = World::new(world.disk.kill(world.disk.operations()).into_disk(), 1_000 + seed);
        // By whoever reads, by one beside it, and by more than there are shards.
        let restore_threads = [None, Some(0), Some(1), Some(3)][(seed / 3 % 4) as usize];
        let after = view_counters(&again.open(Options { restore_threads, ..options() }).unwrap());
        for (number, (after, before)) in after.0.iter().zip(&before.0).enumerate() {
            assert_eq!(after, before, "{} in seed {seed}", name_of(number as u64));
        }
        assert_eq!(after.1, before.1, "seed {seed}");
    }
}

#[test]
fn adds_before_a_flush_do_not_come_back_behind_it() {
    let world = World::new(CrashDisk::new(), 1);
    let engine = world.open(options()).unwrap();
    engine.add("d:1", 5).unwrap();
    engine.execute(&Command::Flush).unwrap();
    engine.add("d:2", 1).unwrap();
    let again = World::new(world.disk.kill(world.disk.operations()).into_disk(), 2);
    let engine = again.open(options()).unwrap();
    assert_eq!((engine.read("d:1").unwrap().exists, engine.stats().counters), (false, 1));
}
