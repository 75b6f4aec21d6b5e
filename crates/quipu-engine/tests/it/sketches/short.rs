//! Observations by the short way, many at a time, come to what the same come to one by one: in replies, in bodies, and after a crash.

use quipu_engine::{Engine, OBSERVES_MAX};
use quipu_model::{Command, Dialect, ExpiryCondition, Reply, SketchCommand, When};
use quipu_testkit::{CrashDisk, Dice};

use super::{ask, name, run};
use crate::world::{World, small};

/// Namespaces of every durability; the last name is a count in between.
const NAMES: [&str; 5] = ["d:a", "r:a", "m:a", "d:b", "d:count"];

/// What one item comes to by itself.
fn alone(engine: &Engine, to: &str, item: &[u8], dialect: Dialect) -> Reply {
    ask(engine, SketchCommand::Observe { name: name(to), items: vec![item], dialect })
}

/// All that is known of a name.
fn shown(engine: &Engine, of: &str) -> Vec<Reply> {
    let count = |dialect| ask(engine, SketchCommand::CountUnique { names: vec![name(of)], dialect });
    vec![run(engine, Command::Read { name: name(of) }), count(Dialect::Redis), count(Dialect::Native)]
}

#[test]
fn what_is_observed_the_short_way_is_what_is_observed_one_by_one() {
    let (mut short, mut long) = (0, 0);
    for seed in 0..12 {
        let (worlds, dice) = ([0, 1].map(|_| World::new(CrashDisk::new(), seed)), Dice::new(seed));
        let [many, single] = worlds.each_ref().map(|world| world.open(small(1 << 20)).unwrap());
        let below = |bound| dice.below(bound);
        for step in 0..400 {
            let to = NAMES[below(NAMES.len())];
            let dialect = if below(2) == 0 { Dialect::Redis } else { Dialect::Native };
            let items: Vec<Vec<u8>> = (0..1 + below(OBSERVES_MAX + 2))
                .map(|_| format!("item {}", below(1 + 40 * step)).into_bytes())
                .collect();
            let items: Vec<&[u8]> = items.iter().map(Vec::as_slice).collect();
            let mut replies = Vec::new();
            let ran = many.turn().run_observes(name(to), &items, dialect, |changed| {
                replies.push(Reply::Integer(changed.into()));
            });
            match ran {
                true => short += 1,
                false => {
                    assert_eq!(replies, [], "nothing is told of what was not run");
                    long += 1;
                    replies.extend(items.iter().map(|item| alone(&many, to, item, dialect)));
                }
            }
            let wanted: Vec<Reply> = items.iter().map(|item| alone(&single, to, item, dialect)).collect();
            assert_eq!(replies, wanted, "seed {seed}, step {step}, {to}");
            let other = match below(40) {
                0 => Command::Delete { names: vec![name(to)] },
                1 => Command::Expire { name: name(to), when: When::In(1_000), condition: ExpiryCondition::Always },
                2 => Command::Add { name: name("d:count"), delta: 1, shard_key: None },
                3 | 4 => {
                    // What comes after it is found in the pages of the next, or in the journal.
                    many.steps().seal_all().unwrap();
                    continue;
                }
                _ => continue,
            };
            assert_eq!(run(&many, other.clone()), run(&single, other), "seed {seed}, step {step}, {to}");
            worlds.iter().for_each(|world| world.clock.advance(std::time::Duration::from_millis(300)));
        }
        for of in NAMES {
            assert_eq!(shown(&many, of), shown(&single, of), "seed {seed}, {of}");
        }
        // What is durable is there after a crash, as it was told.
        many.steps().hand_over();
        many.steps().sync();
        let [before, _] = &worlds;
        let after = World::new(before.disk.kill(before.disk.operations()).into_disk(), seed);
        let again = after.open(small(1 << 20)).unwrap();
        for of in NAMES.into_iter().filter(|of| !of.starts_with("m:")) {
            assert_eq!(shown(&again, of), shown(&many, of), "seed {seed}, {of}");
        }
    }
    assert!(short > 1_000 && long > 100, "{short} short, {long} long");
}
