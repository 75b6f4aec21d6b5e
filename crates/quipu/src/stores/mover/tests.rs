use std::sync::Arc;

use quipu_model::shared::{Held, SwapVerdict};
use quipu_model::{Clock, MemoryStore, SetExpiry};
use quipu_testkit::{Dice, SimClock};

use super::*;

const NAME: &[u8] = b"likes:1";
const NODE: Writer = Writer { node: NodeId(7), incarnation: Incarnation(1) };

/// More time than two runs need to be told apart.
const MOMENT: Duration = Duration::from_millis(3);

/// One counter in a store.
struct World {
    clock: SimClock,
    store: MemoryStore,
    /// What swaps have taken of it, less what they have set.
    taken: i128,
}

impl World {
    fn new() -> World {
        let clock = SimClock::new(Millis(1_790_000_000_000));
        World { store: MemoryStore::new(Arc::new(clock.clone())), clock, taken: 0 }
    }

    fn begin(&self) -> Mover<'_> {
        self.clock.advance(MOMENT);
        Mover::begin(&self.store, "redis://source/0", "").unwrap()
    }

    fn seen(&self) -> Seen {
        wait(self.store.read(name())).unwrap()
    }

    fn sum(&self) -> i128 {
        let seen = self.seen();
        seen.snapshot.as_of(seen.at).sum()
    }

    /// As a node would: what is taken is what the row has at that moment.
    fn swap(&mut self, change: &Change) {
        self.clock.advance(MOMENT);
        let seen = self.seen();
        let by = By { id: draw().unwrap(), node: NODE.node, grace: Duration::MAX, registered: &NOBODY };
        let before = seen.snapshot.as_of(seen.at).sum();
        if let Next::Row(row) = compute(&seen, &by, change).unwrap().next {
            self.taken += before - row.sum();
            let swapped = wait(self.store.swap(name(), seen.snapshot.version, Some(&row))).unwrap();
            assert_eq!(swapped, SwapVerdict::Swapped);
        }
    }
}

fn name() -> Name<'static> {
    Name::new(NAME).unwrap()
}

fn found(value: i128) -> [Found; 1] {
    [Found::new(NAME, Ok(value))]
}

#[test]
fn of_any_runs_resets_and_expiries_what_was_taken_and_what_is_left_is_what_the_source_has() {
    for seed in 0..200 {
        let (mut world, dice) = (World::new(), Dice::new(seed));
        let mut source: i128 = 0;
        let mut imported: i128 = 0;
        for _ in 0..30 {
            match dice.below(10) {
                0..4 => source += i128::from(dice.between(-3..=20)),
                4..7 => {
                    assert_eq!(world.begin().put(&found(source)).unwrap(), Moved { counters: 1, ..Moved::default() });
                    imported = source;
                }
                7 => world.swap(&Change::Reset),
                8 => world.swap(&Change::Set { value: 5, expiry: SetExpiry::Remove, reply_old: false }),
                _ => world.swap(dice.pick(&[Change::Delete, Change::Take])),
            }
            assert_eq!(world.sum() + world.taken, imported, "seed {seed}");
        }
    }
}

#[test]
fn what_expired_in_the_store_stays_gone_and_what_came_since_counts() {
    let mut world = World::new();
    world.begin().put(&found(100)).unwrap();
    let soon = i64::try_from(world.clock.wall().0).unwrap() + 1_000;
    world.swap(&Change::Expire { when: When::At(soon), condition: ExpiryCondition::Always });
    world.clock.advance(Duration::from_secs(5));
    assert_eq!(world.begin().put(&found(100)).unwrap().counters, 1);
    assert!(!world.seen().snapshot.exists(), "nothing has come since, so there is no counter");
    world.begin().put(&found(130)).unwrap();
    assert_eq!(world.sum(), 30);
    world.begin().put(&found(131)).unwrap();
    assert_eq!(world.sum(), 31);
}

#[test]
fn a_counter_that_expired_on_both_sides_counts_from_its_beginning() {
    let world = World::new();
    let expiry = Millis(world.clock.wall().0 + 1_000);
    let first = [Found { expires_at: Some(expiry), ..found(100)[0].clone() }];
    let mover = world.begin();
    mover.put(&first).unwrap();
    mover.expire(&first[0], expiry).unwrap();
    assert_eq!(world.seen().snapshot.expires_at, Some(expiry));
    world.clock.advance(Duration::from_secs(5));
    for value in [8, 9] {
        world.begin().put(&[Found { since: expiry, ..found(value)[0].clone() }]).unwrap();
        assert_eq!(world.sum(), value);
    }
}

#[test]
fn of_two_runs_the_later_one_is_right_whichever_puts_last() {
    let mut world = World::new();
    let (earlier, later) = (world.begin(), world.begin());
    assert!(!earlier.again() && later.again());
    later.put(&found(120)).unwrap();
    assert_eq!(earlier.put(&found(100)).unwrap(), Moved { overtaken: 1, ..Moved::default() });
    assert_eq!(world.sum(), 120);
    // Under a later epoch, too.
    world.swap(&Change::Reset);
    let (earlier, later) = (world.begin(), world.begin());
    later.put(&found(150)).unwrap();
    assert_eq!(earlier.put(&found(140)).unwrap().overtaken, 1);
    assert_eq!(world.sum(), 30);
}

#[test]
fn an_import_stands_beside_what_a_node_counts() {
    let world = World::new();
    let put =
        Put { cell: CellId { writer: NODE, shard: Shard(0) }, epoch: Epoch::FIRST, seq: Seq(1), value: 7, total: 7 };
    wait(world.store.put_all(&[(name(), put)])).unwrap();
    for value in [100, 100, 90] {
        world.begin().put(&found(value)).unwrap();
        assert_eq!(world.sum(), value + 7);
    }
    let writer = writer("redis://source/0");
    let held: Held = world.seen().snapshot.cells[&CellId { writer, shard: Shard(0) }];
    assert_eq!((held.value, held.total, held.closed), (90, 90, false));
}

#[test]
fn one_that_is_done_is_refused_for_good_however_far_its_end_has_come() {
    let world = World::new();
    let mover = world.begin();
    mover.put(&found(100)).unwrap();
    mover.done().unwrap();
    mover.done().unwrap();
    let refused = || Mover::begin(&world.store, "redis://source/0", "").map(|_| ()).unwrap_err().to_string();
    assert!(refused().contains("is done"), "{}", refused());
    let known = wait(world.store.writers()).unwrap();
    let own = known.registrations.iter().find(|known| known.writer == mover.writer()).unwrap();
    assert!(matches!(own.stage, Stage::Retiring { .. }));
    // Folded and forgotten: nothing but the mark is left.
    wait(world.store.unregister(own.writer, own.version)).unwrap();
    assert!(refused().contains("is done"));
    assert!(Mover::begin(&world.store, "another", "").is_ok());
}

#[test]
fn nobody_retires_an_import_that_may_be_repeated() {
    let world = World::new();
    world.begin();
    let known = wait(world.store.writers()).unwrap();
    let later = Millis(known.at.0 + Duration::from_secs(100 * 365 * 86_400).as_millis() as u64);
    let step = known.registrations[0].step(later, Duration::from_secs(1), Duration::from_secs(1));
    assert_eq!(step, quipu_model::shared::Step::Wait);
}
