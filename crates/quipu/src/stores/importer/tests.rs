use std::sync::Arc;

use quipu_model::shared::{RowCell, SwapVerdict};
use quipu_model::{Clock, MemoryStore, SetExpiry};
use quipu_testkit::{SeededRng, SimClock};

use super::*;

const NAME: &[u8] = b"likes:1";
const NODE: Writer = Writer { node: NodeId(7), incarnation: Incarnation(1) };

/// More time than the clock needs to tell two runs apart.
const RUN_GAP: Duration = Duration::from_millis(3);

/// One counter in a store.
struct ImportWorld {
    clock: SimClock,
    store: MemoryStore,
    /// Sum of the amounts that swaps have taken from it, less those that they have set.
    taken: i128,
}

impl ImportWorld {
    fn new() -> ImportWorld {
        let clock = SimClock::new(Millis(1_790_000_000_000));
        ImportWorld { store: MemoryStore::new(Arc::new(clock.clone())), clock, taken: 0 }
    }

    fn begin(&self) -> Importer<'_> {
        self.clock.advance(RUN_GAP);
        Importer::begin(&self.store, "redis://source/0", "").unwrap()
    }

    fn read_row(&self) -> FetchedRow {
        block_on(self.store.read(name())).unwrap()
    }

    fn sum(&self) -> i128 {
        let read_row = self.read_row();
        read_row.snapshot.as_of(read_row.at).sum()
    }

    /// As a node would: it takes the row's value at that time.
    fn swap(&mut self, change: &Change) {
        self.clock.advance(RUN_GAP);
        let read_row = self.read_row();
        let by = SwapContext {
            id: random_swap_id().unwrap(),
            node: NODE.node,
            grace: Duration::MAX,
            registered: &NO_WRITERS,
        };
        let before = read_row.snapshot.as_of(read_row.at).sum();
        if let NextRow::Row(row) = plan_swap(&read_row, &by, change).unwrap().next {
            self.taken += before - row.sum();
            let swapped = block_on(self.store.swap(name(), read_row.snapshot.version, Some(&row))).unwrap();
            assert_eq!(swapped, SwapVerdict::Swapped);
        }
    }
}

fn name() -> Name<'static> {
    Name::new(NAME).unwrap()
}

fn found(value: i128) -> [SourceKey; 1] {
    [SourceKey::new(NAME, Ok(value))]
}

#[test]
fn of_any_runs_resets_and_expiries_what_was_taken_and_what_is_left_is_what_the_source_has() {
    for seed in 0..200 {
        let (mut world, rng) = (ImportWorld::new(), SeededRng::new(seed));
        let mut source: i128 = 0;
        let mut imported: i128 = 0;
        for _ in 0..30 {
            match rng.below(10) {
                0..4 => source += i128::from(rng.between(-3..=20)),
                4..7 => {
                    assert_eq!(
                        world.begin().put(&found(source)).unwrap(),
                        ImportCounts { counters: 1, ..ImportCounts::default() }
                    );
                    imported = source;
                }
                7 => world.swap(&Change::Reset),
                8 => world.swap(&Change::Set { value: 5, expiry: SetExpiry::Remove, reply_old: false }),
                _ => world.swap(rng.pick(&[Change::Delete, Change::Take])),
            }
            assert_eq!(world.sum() + world.taken, imported, "seed {seed}");
        }
    }
}

#[test]
fn what_expired_in_the_store_stays_gone_and_what_came_since_counts() {
    let mut world = ImportWorld::new();
    world.begin().put(&found(100)).unwrap();
    let soon = i64::try_from(world.clock.wall().0).unwrap() + 1_000;
    world.swap(&Change::Expire { when: ExpiryTime::At(soon), condition: ExpiryCondition::Always });
    world.clock.advance(Duration::from_secs(5));
    assert_eq!(world.begin().put(&found(100)).unwrap().counters, 1);
    assert!(!world.read_row().snapshot.exists(), "nothing has come since, so there is no counter");
    world.begin().put(&found(130)).unwrap();
    assert_eq!(world.sum(), 30);
    world.begin().put(&found(131)).unwrap();
    assert_eq!(world.sum(), 31);
}

#[test]
fn a_counter_that_expired_on_both_sides_counts_from_its_beginning() {
    let world = ImportWorld::new();
    let expiry = Millis(world.clock.wall().0 + 1_000);
    let first = [SourceKey { expires_at: Some(expiry), ..found(100)[0].clone() }];
    let importer = world.begin();
    importer.put(&first).unwrap();
    importer.expire(&first[0], expiry).unwrap();
    assert_eq!(world.read_row().snapshot.expires_at, Some(expiry));
    world.clock.advance(Duration::from_secs(5));
    for value in [8, 9] {
        world.begin().put(&[SourceKey { since: expiry, ..found(value)[0].clone() }]).unwrap();
        assert_eq!(world.sum(), value);
    }
}

#[test]
fn of_two_runs_the_later_one_is_right_whichever_puts_last() {
    let mut world = ImportWorld::new();
    let (earlier, later) = (world.begin(), world.begin());
    assert!(!earlier.is_repeated() && later.is_repeated());
    later.put(&found(120)).unwrap();
    assert_eq!(earlier.put(&found(100)).unwrap(), ImportCounts { overtaken: 1, ..ImportCounts::default() });
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
    let world = ImportWorld::new();
    let put =
        Put { cell: CellId { writer: NODE, shard: Shard(0) }, epoch: Epoch::FIRST, seq: Seq(1), value: 7, total: 7 };
    block_on(world.store.put_all(&[(name(), put)])).unwrap();
    for value in [100, 100, 90] {
        world.begin().put(&found(value)).unwrap();
        assert_eq!(world.sum(), value + 7);
    }
    let writer = import_writer("redis://source/0");
    let current: RowCell = world.read_row().snapshot.cells[&CellId { writer, shard: Shard(0) }];
    assert_eq!((current.value, current.total, current.closed), (90, 90, false));
}

#[test]
fn one_that_is_done_is_refused_for_good_however_far_its_end_has_come() {
    let world = ImportWorld::new();
    let importer = world.begin();
    importer.put(&found(100)).unwrap();
    importer.finish().unwrap();
    importer.finish().unwrap();
    let refused = || Importer::begin(&world.store, "redis://source/0", "").map(|_| ()).unwrap_err().to_string();
    assert!(refused().contains("is done"), "{}", refused());
    let registry = block_on(world.store.writers()).unwrap();
    let own = registry.registrations.iter().find(|registry| registry.writer == importer.writer()).unwrap();
    assert!(matches!(own.stage, WriterStage::Retiring { .. }));
    // Folded and forgotten: only the mark is left.
    block_on(world.store.unregister(own.writer, own.version)).unwrap();
    assert!(refused().contains("is done"));
    assert!(Importer::begin(&world.store, "another", "").is_ok());
}

#[test]
fn nobody_retires_an_import_that_may_be_repeated() {
    let world = ImportWorld::new();
    world.begin();
    let registry = block_on(world.store.writers()).unwrap();
    let later = Millis(registry.at.0 + Duration::from_secs(100 * 365 * 86_400).as_millis() as u64);
    let step = registry.registrations[0].retire_step(later, Duration::from_secs(1), Duration::from_secs(1));
    assert_eq!(step, quipu_model::shared::RetireStep::Wait);
}
