//! Tests frequencies and top-K lists on a shared store through incarnations and copied directories.
//!
//! The tests run step by step. Each incarnation has a body of its own; its newest state counts,
//! once.

use std::sync::Arc;
use std::time::Duration;

use quipu_engine::{Engine, Membership, UnconfirmedAdds};
use quipu_model::shared::RowWithBodies;
use quipu_model::shared::body::FOLDED_BODY_WRITER;
use quipu_model::{Command, Dialect, FrequencySize, MemoryStore, Refusal, Reply, SketchCommand, Store, TopSize};
use quipu_testkit::CrashDisk;
use quipu_testkit::store_suite::block_on;

use crate::lives::{commit, open, run, run_background};
use crate::sketches::{count_items, count_top, name, read_items};
use crate::world::World;

const REDIS: Dialect = Dialect::Redis;
const NATIVE: Dialect = Dialect::Native;

/// Rounds after which everybody has found their way back: leases of lives before have run out, and
/// what they said is settled.
const ROUNDS: usize = 60;

/// A node on a machine of its own.
struct Node {
    world: World,
    engine: Engine,
}

impl Node {
    fn begin(disk: CrashDisk, seed: u64, store: &Arc<dyn Store>) -> Node {
        let world = World::new(disk, seed);
        let engine = open(&world, store);
        Node { world, engine }
    }

    /// Counts in a sketch of frequencies, and in a list.
    fn count(&self, item: &str, by: u64) {
        let counted = self.ask(count_items("cms:1", &[(item, by)], REDIS));
        assert!(matches!(counted, Reply::Integers(_)), "{counted:?}");
        let listed = self.ask(count_top("top:1", &[(item, by)], Some(TopSize::with_k(4)), NATIVE));
        assert!(matches!(listed, Reply::Items(_)), "{listed:?}");
        commit(&self.engine);
    }

    fn make(&self) {
        let size = FrequencySize::Dimensions { width: 500, depth: 3 };
        assert_eq!(self.ask(SketchCommand::MakeFrequency { name: name("cms:1"), size, dialect: REDIS }), Reply::Ok);
        commit(&self.engine);
    }

    fn ask(&self, command: SketchCommand<'_>) -> Reply {
        run(&self.engine, &Command::Sketch(command))
    }

    /// How often an item came, by both.
    fn shows(&self, item: &str) -> (i64, (u64, u64)) {
        let frequency = match self.ask(read_items("cms:1", &[item], REDIS)) {
            Reply::Integers(counts) => counts[0],
            reply => panic!("{reply:?}"),
        };
        let Reply::TopItems(rows) = self.ask(SketchCommand::ListTop { name: name("top:1"), dialect: NATIVE }) else {
            panic!("it is a list")
        };
        let row = rows.iter().find(|row| *row.item == *item.as_bytes());
        (frequency, row.map_or((0, 0), |row| (row.at_least, row.at_most)))
    }

    /// Deletes both.
    fn delete(&self) {
        for of in ["cms:1", "top:1"] {
            let load = self.engine.turn().run(&Command::Delete { names: vec![name(of)] }).unwrap_err();
            let loading = self.engine.steps().enqueue_load(load);
            while block_on(self.engine.sharing().unwrap().swap()) == 0 {}
            drop(loading);
        }
    }

    fn image(&self) -> CrashDisk {
        self.world.disk.kill(self.world.disk.operations()).into_disk()
    }
}

/// So often, no more and no less.
fn exactly(count: u64) -> (i64, (u64, u64)) {
    (count as i64, (count, count))
}

/// A store, and a clock of its own to drive it by.
fn store() -> (Arc<dyn Store>, World) {
    let clock = World::new(CrashDisk::new(), 99);
    (Arc::new(MemoryStore::new(clock.clock.clone())), clock)
}

/// Everybody does what there is to do, for a while.
fn meet(clock: &World, nodes: &[&Node]) {
    for _ in 0..ROUNDS {
        clock.clock.advance(Duration::from_millis(500));
        nodes.iter().for_each(|node| run_background(&node.engine, &node.world));
    }
}

fn bodies(store: &Arc<dyn Store>) -> RowWithBodies {
    block_on(store.read_bodies(name("cms:1"))).unwrap()
}

#[test]
fn a_copy_that_was_killed_before_it_put_anything_loses_nothing_while_the_other_puts() {
    let (store, clock) = store();
    let first = Node::begin(CrashDisk::new(), 1, &store);
    first.make();
    first.count("a", 5);
    meet(&clock, &[&first]);
    let (one, two) = (Node::begin(first.image(), 2, &store), Node::begin(first.image(), 3, &store));
    drop(first);
    meet(&clock, &[&one, &two]);
    one.count("a", 2);
    let image = one.image();
    drop(one);
    two.count("a", 1);
    meet(&clock, &[&two]);
    let one = Node::begin(image, 4, &store);
    one.count("a", 10);
    meet(&clock, &[&one, &two]);
    assert_eq!((one.shows("a"), two.shows("a")), (exactly(18), exactly(18)));
}

#[test]
fn what_was_put_and_not_heard_of_counts_once_whoever_puts_it_again() {
    let (store, clock) = store();
    let first = Node::begin(CrashDisk::new(), 1, &store);
    first.make();
    first.count("a", 5);
    let images = [first.image(), first.image()];
    meet(&clock, &[&first]);
    drop(first);
    // On two machines at once, from before it heard that all of it was put.
    let mut seed = 1;
    let [one, two] = images.map(|image| {
        seed += 1;
        Node::begin(image, seed, &store)
    });
    one.count("a", 2);
    two.count("a", 1);
    meet(&clock, &[&one, &two]);
    assert_eq!((one.shows("a"), two.shows("a")), (exactly(8), exactly(8)));
}

#[test]
fn of_heirs_of_one_life_the_one_that_knows_most_counts_in_whatever_order_they_come() {
    for order in [[0, 1], [1, 0]] {
        let (store, clock) = store();
        let first = Node::begin(CrashDisk::new(), 1, &store);
        first.make();
        first.count("a", 3);
        let early = first.image();
        first.count("a", 2);
        let late = first.image();
        drop(first);
        let mut images = [Some(early), Some(late)];
        let mut successors: Vec<Node> = Vec::new();
        for which in order {
            successors.push(Node::begin(images[which].take().unwrap(), 2 + which as u64, &store));
            meet(&clock, &successors.iter().collect::<Vec<_>>());
        }
        meet(&clock, &successors.iter().collect::<Vec<_>>());
        for successor in &successors {
            assert_eq!(successor.shows("a"), exactly(5), "{order:?}");
        }
    }
}

#[test]
fn lives_that_ended_before_they_were_settled_are_all_counted() {
    let (store, clock) = store();
    let mut node = Node::begin(CrashDisk::new(), 1, &store);
    node.make();
    for incarnation in 2..6 {
        node.count("a", 1);
        if incarnation % 2 == 0 {
            node.engine.steps().seal_all().unwrap();
            node.count("a", 1);
        }
        // Nothing was put of any of them.
        node = Node::begin(node.image(), incarnation, &store);
    }
    let shown = node.ask(read_items("cms:1", &["a"], REDIS));
    assert_eq!(shown, Reply::Integers(vec![6]), "it shows what it has of all of them");
    meet(&clock, &[&node]);
    let other = Node::begin(CrashDisk::new(), 50, &store);
    assert_eq!((node.shows("a"), other.shows("a")), (exactly(6), exactly(6)));
    node.count("a", 4);
    let node = Node::begin(node.image(), 60, &store);
    meet(&clock, &[&node, &other]);
    assert_eq!((node.shows("a"), other.shows("a")), (exactly(10), exactly(10)));
}

#[test]
fn more_lives_than_there_are_places_for_wait_for_the_store() {
    let (store, clock) = store();
    let mut node = Node::begin(CrashDisk::new(), 1, &store);
    node.make();
    for incarnation in 2..18 {
        node.count("a", 1);
        node = Node::begin(node.image(), incarnation, &store);
    }
    let refused = node.ask(count_items("cms:1", &[("a", 1)], REDIS));
    assert_eq!(refused, Reply::Refused(Refusal::StoreDown), "sixteen of them are not settled");
    meet(&clock, &[&node]);
    assert_eq!(node.shows("a"), exactly(16), "what was refused is not there");
    (0..4).for_each(|_| meet(&clock, &[&node]));
    node.count("a", 1);
    assert_eq!(node.shows("a"), exactly(17), "there are places again");
}

#[test]
fn what_a_life_counted_after_a_delete_elsewhere_is_there_and_what_was_deleted_is_not() {
    let (store, clock) = store();
    let (one, two) = (Node::begin(CrashDisk::new(), 1, &store), Node::begin(CrashDisk::new(), 2, &store));
    one.make();
    one.count("a", 5);
    meet(&clock, &[&one, &two]);
    one.count("b", 3);
    two.delete();
    meet(&clock, &[&one, &two]);
    for node in [&one, &two] {
        assert_eq!((node.shows("a"), node.shows("b")), (exactly(0), exactly(3)));
    }
}

#[test]
fn an_heir_that_knows_less_may_bring_a_life_under_a_later_epoch_and_the_one_that_knows_more_comes_after_it() {
    let (store, clock) = store();
    let (first, other) = (Node::begin(CrashDisk::new(), 1, &store), Node::begin(CrashDisk::new(), 2, &store));
    first.make();
    meet(&clock, &[&first, &other]);
    other.count("x", 1);
    meet(&clock, &[&other]);
    first.count("a", 5);
    let early = first.image();
    first.count("b", 3);
    let late = first.image();
    drop(first);
    other.delete();
    let early = Node::begin(early, 3, &store);
    meet(&clock, &[&early, &other]);
    assert_eq!((early.shows("a"), other.shows("a"), other.shows("x")), (exactly(5), exactly(5), exactly(0)));
    let late = Node::begin(late, 4, &store);
    meet(&clock, &[&late, &early, &other]);
    for node in [&late, &early, &other] {
        assert_eq!((node.shows("a"), node.shows("b"), node.shows("x")), (exactly(5), exactly(3), exactly(0)));
    }
}

#[test]
fn what_a_life_that_is_gone_has_counted_is_folded_and_its_heirs_do_not_say_it_again() {
    let (store, clock) = store();
    let (gone, other) = (Node::begin(CrashDisk::new(), 1, &store), Node::begin(CrashDisk::new(), 2, &store));
    gone.make();
    gone.count("a", 5);
    meet(&clock, &[&gone, &other]);
    let image = gone.image();
    drop(gone);
    other.count("a", 2);
    for _ in 0..2_000 {
        clock.clock.advance(Duration::from_millis(500));
        run_background(&other.engine, &other.world);
        if bodies(&store).bodies.contains_key(&FOLDED_BODY_WRITER) {
            break;
        }
    }
    let row = bodies(&store);
    assert_eq!(row.bodies.len(), 2, "the other's, and what is nobody's: {:?}", row.row.snapshot);
    assert!(row.bodies.contains_key(&FOLDED_BODY_WRITER), "{:?}", row.row.snapshot);
    meet(&clock, &[&other]);
    assert_eq!(other.shows("a"), exactly(7), "it counts on");
    // A second one is laid to the first.
    let back = Node::begin(image, 3, &store);
    back.count("a", 1);
    meet(&clock, &[&back, &other]);
    assert_eq!((back.shows("a"), other.shows("a")), (exactly(8), exactly(8)), "and is not said again");
    let image = back.image();
    drop(back);
    for _ in 0..2_000 {
        clock.clock.advance(Duration::from_millis(500));
        run_background(&other.engine, &other.world);
    }
    assert_eq!(bodies(&store).bodies.len(), 2, "{:?}", bodies(&store).row.snapshot);
    assert_eq!(other.shows("a"), exactly(8));
    let back = Node::begin(image, 4, &store);
    meet(&clock, &[&back, &other]);
    assert_eq!((back.shows("a"), other.shows("a")), (exactly(8), exactly(8)));
    assert_eq!(back.engine.sharing().unwrap().membership(), Membership::Live);
}

#[test]
fn a_node_that_slept_until_its_life_was_folded_goes_on_with_what_it_counted_since() {
    for counted_before in [true, false] {
        let (store, clock) = store();
        let (one, other) = (Node::begin(CrashDisk::new(), 1, &store), Node::begin(CrashDisk::new(), 2, &store));
        one.make();
        one.count("a", 5);
        meet(&clock, &[&one, &other]);
        if counted_before {
            one.count("a", 3);
        }
        for _ in 0..600 {
            clock.clock.advance(Duration::from_millis(500));
            one.world.clock.advance(Duration::from_millis(500));
            run_background(&other.engine, &other.world);
            if bodies(&store).bodies.contains_key(&FOLDED_BODY_WRITER) {
                break;
            }
        }
        assert!(bodies(&store).bodies.contains_key(&FOLDED_BODY_WRITER), "{:?}", bodies(&store).row.snapshot);
        if !counted_before {
            one.count("a", 3);
        }
        meet(&clock, &[&one, &other]);
        assert_eq!((one.shows("a"), other.shows("a")), (exactly(8), exactly(8)), "what was folded, and what was not");
        one.count("a", 1);
        meet(&clock, &[&one, &other]);
        assert_eq!((one.shows("a"), other.shows("a")), (exactly(9), exactly(9)));
        assert_eq!(one.engine.sharing().unwrap().membership(), Membership::Live);
    }
}

#[test]
fn a_node_that_slept_while_an_heir_settled_a_part_of_what_it_had_not_put_waits_for_an_operator() {
    let (store, clock) = store();
    let (one, other) = (Node::begin(CrashDisk::new(), 1, &store), Node::begin(CrashDisk::new(), 2, &store));
    one.make();
    meet(&clock, &[&one, &other]);
    one.count("a", 2);
    let successor = one.image();
    one.count("a", 3);
    let successor = Node::begin(successor, 3, &store);
    for _ in 0..600 {
        clock.clock.advance(Duration::from_millis(500));
        one.world.clock.advance(Duration::from_millis(500));
        run_background(&other.engine, &other.world);
        run_background(&successor.engine, &successor.world);
        if bodies(&store).bodies.contains_key(&FOLDED_BODY_WRITER) {
            break;
        }
    }
    assert_eq!((successor.shows("a"), other.shows("a")), (exactly(2), exactly(2)), "the heir knows of no more");
    meet(&clock, &[&one, &other, &successor]);
    assert!(matches!(one.engine.sharing().unwrap().membership(), Membership::Fenced { .. }), "nobody can tell");
    assert_eq!((successor.shows("a"), other.shows("a")), (exactly(2), exactly(2)));
}

#[test]
fn a_life_with_more_than_what_was_folded_of_it_waits_for_an_operator() {
    for how in [UnconfirmedAdds::Count, UnconfirmedAdds::Drop] {
        let (store, clock) = store();
        let (gone, other) = (Node::begin(CrashDisk::new(), 1, &store), Node::begin(CrashDisk::new(), 2, &store));
        gone.make();
        gone.count("a", 5);
        meet(&clock, &[&gone, &other]);
        gone.count("a", 3);
        let cells = bodies(&store).row.snapshot.cells;
        let (image, incarnation) = (gone.image(), cells.keys().next().unwrap().writer.incarnation);
        assert_eq!(cells.len(), 1, "nobody else has counted");
        drop(gone);
        for _ in 0..2_000 {
            clock.clock.advance(Duration::from_millis(500));
            run_background(&other.engine, &other.world);
        }
        assert_eq!(other.shows("a"), exactly(5));
        let back = Node::begin(image, 3, &store);
        meet(&clock, &[&back, &other]);
        assert!(matches!(back.engine.sharing().unwrap().membership(), Membership::Fenced { .. }), "nobody can tell");
        let back = Node::begin(back.image(), 4, &store);
        let adopted = back.engine.sharing().unwrap().adopt(incarnation, how).unwrap();
        assert_eq!((adopted.counters, adopted.sketches, adopted.sum), (2, 2, 0));
        commit(&back.engine);
        meet(&clock, &[&back, &other]);
        let expected = exactly(if how == UnconfirmedAdds::Count { 13 } else { 5 });
        assert_eq!((back.shows("a"), other.shows("a")), (expected, expected), "all of it, or nothing");
    }
}
