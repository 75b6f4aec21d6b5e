//! Tests sketches on a shared store: with the threads of real engines, and step by step where the
//! order of puts matters.

use std::sync::Arc;
use std::time::Duration;

use quipu_engine::{Engine, Environment, Load, LoadOutcome, Membership, Options, Secret, SharingOptions, SystemClock};
use quipu_model::shared::NODE_INCARNATION;
use quipu_model::{
    Command, Dialect, Durability, ExpiryCondition, ExpiryTime, FrequencySize, Kind, KindAndDialect, MemoryStore,
    Namespace, Refusal, Reply, SetCondition, SetExpiry, SetString, SketchCommand, Store, TopSize,
};
use quipu_testkit::store_suite::{FaultyStore, block_on};
use quipu_testkit::{CrashDisk, SimClock};

use crate::sharing::{Nodes, eventually};
use crate::sketches::{ask, count_items, count_top, count_unique, name, observe, read_items, run};
use crate::world::{BEGIN, World, small_options};

const REDIS: Dialect = Dialect::Redis;
const NATIVE: Dialect = Dialect::Native;

fn uniques(engine: &Engine, of: &str, dialect: Dialect) -> u64 {
    match ask(engine, count_unique(&[of], dialect)) {
        Reply::Estimate(estimate) => estimate.value,
        reply => panic!("{reply:?}"),
    }
}

fn make_frequency(to: &str, width: u64, dialect: Dialect) -> SketchCommand<'_> {
    let size = FrequencySize::Dimensions { width, depth: 3 };
    SketchCommand::MakeFrequency { name: name(to), size, dialect }
}

fn frequency(engine: &Engine, of: &str, item: &str) -> i64 {
    match ask(engine, read_items(of, &[item], REDIS)) {
        Reply::Integers(counts) => counts[0],
        Reply::Refused(Refusal::NoSketch { .. }) => 0,
        reply => panic!("{reply:?}"),
    }
}

fn top(engine: &Engine, of: &str) -> Vec<(String, u64)> {
    match ask(engine, SketchCommand::ListTop { name: name(of), dialect: NATIVE }) {
        Reply::TopItems(rows) => {
            rows.iter().map(|row| (String::from_utf8_lossy(&row.item).into_owned(), row.at_most)).collect()
        }
        Reply::Refused(Refusal::NoSketch { .. }) => Vec::new(),
        reply => panic!("{reply:?}"),
    }
}

// ---- with threads
// ---------------------------------------------------------------------------------------------------------------

#[test]
fn three_nodes_count_and_each_shows_what_all_have_counted() {
    let nodes = Nodes::new();
    let engines: Vec<Engine> = (0..3).map(|node| nodes.open(node)).collect();
    assert_eq!(ask(&engines[0], make_frequency("cms:1", 600, REDIS)), Reply::Ok);
    for (node, engine) in engines.iter().enumerate() {
        eventually("the others know of it", || {
            matches!(ask(engine, count_items("cms:1", &[("all", 1)], REDIS)), Reply::Integers(_))
        });
        for item in 0..400 {
            // A third of them is everybody's.
            let item = if item % 3 == 0 { format!("all:{item}") } else { format!("{node}:{item}") };
            assert!(matches!(ask(engine, observe("hll:1", &[&item], REDIS)), Reply::Integer(_)));
            assert!(matches!(ask(engine, observe("unique:1", &[&item], NATIVE)), Reply::Integer(_)));
        }
        let own = format!("node:{node}");
        ask(engine, count_items("cms:1", &[(&own, 7 + node as u64)], REDIS));
        let size = Some(TopSize::with_k(10));
        let counted = ask(engine, count_top("top:1", &[("all", 100), (&own, 10 + node as u64)], size, NATIVE));
        assert!(matches!(counted, Reply::Items(_)), "{counted:?}");
    }
    let all = 3 * 266 + 134;
    for engine in &engines {
        eventually("the union of uniques of our form, which are few enough to be exact", || {
            uniques(engine, "unique:1", NATIVE) == all
        });
        eventually("the union of uniques of Redis's form", || uniques(engine, "hll:1", REDIS).abs_diff(all) < 30);
        eventually("the sum of frequencies", || {
            frequency(engine, "cms:1", "all") >= 3
                && (0..3).all(|node| frequency(engine, "cms:1", &format!("node:{node}")) == 7 + node)
        });
        let expected = [("all", 300), ("node:2", 12), ("node:1", 11), ("node:0", 10)];
        eventually("the merged list", || top(engine, "top:1") == expected.map(|(item, n)| (item.to_owned(), n)));
    }
    assert_eq!(
        run(&engines[1], Command::Delete { names: vec![name("hll:1"), name("cms:1"), name("top:1")] }),
        Reply::Integer(3)
    );
    for engine in &engines {
        eventually("what was deleted is gone everywhere", || {
            uniques(engine, "hll:1", REDIS) == 0
                && frequency(engine, "cms:1", "all") == 0
                && top(engine, "top:1").is_empty()
        });
    }
    engines.iter().for_each(|engine| engine.close().unwrap());
}

#[test]
fn what_is_put_is_what_has_changed() {
    let nodes = Nodes::new();
    let (one, two) = (nodes.open(1), nodes.open(2));
    // 20,000 cells in each of three rows: 235 pages.
    assert_eq!(ask(&one, make_frequency("cms:1", 20_000, REDIS)), Reply::Ok);
    let everything: Vec<String> = (0..5_000).map(|item| item.to_string()).collect();
    for items in everything.chunks(500) {
        let items: Vec<(&str, u64)> = items.iter().map(|item| (item.as_str(), 1)).collect();
        assert!(matches!(ask(&one, count_items("cms:1", &items, REDIS)), Reply::Integers(_)));
    }
    eventually("the other has all of it", || {
        everything.iter().step_by(100).all(|item| frequency(&two, "cms:1", item) >= 1)
    });
    let stats = || one.sharing().unwrap().stats();
    eventually("all of it is put", || stats().unsettled == 0);
    let before = stats();
    assert!(before.pages >= 235, "{before:?}");
    for round in 1..=20 {
        assert!(matches!(ask(&one, count_items("cms:1", &[("7", 1)], REDIS)), Reply::Integers(_)));
        eventually("the other hears of it", || frequency(&two, "cms:1", "7") > round);
    }
    eventually("all of it is put", || stats().unsettled == 0);
    let (pages, bytes) = (stats().pages - before.pages, stats().pages_bytes - before.pages_bytes);
    assert!(pages > 20, "a page for each row, and the one with the total: {pages}");
    assert!(pages <= 4 * 25 && bytes <= pages * 1_024, "20 changes took {pages} pages of {bytes} bytes");
    [one, two].iter().for_each(|engine| engine.close().unwrap());
}

#[test]
fn while_the_store_is_down_sketches_count_on_and_meet_when_it_is_back() {
    let faulty = Arc::new(FaultyStore::new(MemoryStore::new(Arc::new(SystemClock::default())), 1, 100));
    let nodes = Nodes { store: faulty.clone(), dir: tempfile::tempdir().unwrap() };
    let hasty = |sharing: &mut SharingOptions| sharing.fetch_wait = Duration::from_millis(50);
    let engines = [nodes.open_with(1, hasty), nodes.open_with(2, hasty)];
    for (node, engine) in engines.iter().enumerate() {
        for item in 0..20 {
            let item = format!("{}:{item}", if item < 10 { "all".to_owned() } else { node.to_string() });
            assert!(matches!(ask(engine, observe("unique:1", &[&item], NATIVE)), Reply::Integer(_)));
        }
        assert_eq!(uniques(engine, "unique:1", NATIVE), 20, "what it has counted itself");
    }
    block_on(faulty.calm());
    for engine in &engines {
        eventually("both have both", || uniques(engine, "unique:1", NATIVE) == 30);
    }
    engines.iter().for_each(|engine| engine.close().unwrap());
}

#[test]
fn what_was_made_in_two_sizes_is_refused_by_name_until_it_is_deleted() {
    let faulty = Arc::new(FaultyStore::new(MemoryStore::new(Arc::new(SystemClock::default())), 1, 100));
    let nodes = Nodes { store: faulty.clone(), dir: tempfile::tempdir().unwrap() };
    let hasty = |sharing: &mut SharingOptions| sharing.fetch_wait = Duration::from_millis(50);
    let (one, two) = (nodes.open_with(1, hasty), nodes.open_with(2, hasty));
    let size = |width| FrequencySize::Dimensions { width, depth: 3 };
    let count = |engine: &Engine, width| {
        let items = vec![(&b"a"[..], 1)];
        ask(engine, SketchCommand::CountItems { name: name("freq:1"), items, make: Some(size(width)), dialect: NATIVE })
    };
    assert_eq!(count(&one, 100), Reply::Integers(vec![1]));
    assert_eq!(count(&two, 200), Reply::Integers(vec![1]));
    block_on(faulty.calm());
    for engine in [&one, &two] {
        eventually("it is said what is wrong", || {
            matches!(ask(engine, read_items("freq:1", &["a"], NATIVE)),
                Reply::Refused(Refusal::NotOffered { reason }) if reason.contains("sizes"))
        });
        assert!(matches!(count(engine, 100), Reply::Refused(_)));
    }
    assert_eq!(run(&one, Command::Delete { names: vec![name("freq:1")] }), Reply::Integer(1));
    for (engine, counted) in [(&one, 1), (&two, 2)] {
        eventually("then it is made once", || count(engine, 100) == Reply::Integers(vec![counted]));
        eventually("and put", || engine.sharing().unwrap().stats().unsettled == 0);
    }
    [one, two].iter().for_each(|engine| engine.close().unwrap());
}

#[test]
fn nodes_with_different_secrets_say_so() {
    let nodes = Nodes::new();
    let one = nodes.open_with(1, |sharing| sharing.secret = Secret("one".to_owned()));
    let two = nodes.open_with(2, |sharing| sharing.secret = Secret("two".to_owned()));
    let makes = |engine: &Engine, name: &str| {
        let reply = ask(engine, observe(name, &["a"], NATIVE));
        assert!(matches!(reply, Reply::Integer(1) | Reply::Refused(Refusal::NotOffered { .. })), "{reply:?}");
        reply == Reply::Integer(1)
    };
    // A node refuses to make one that the other has put already.
    let names: Vec<String> = (0..1_000).map(|n| format!("unique:{n}")).collect();
    let made = names.iter().find(|name| makes(&one, name) && makes(&two, name));
    let made = made.expect("both make one before the other's is put").as_str();
    for engine in [&one, &two] {
        ask(engine, observe("hll:1", &["a"], REDIS));
    }
    for engine in [&one, &two] {
        eventually("it is said what is wrong", || {
            matches!(ask(engine, count_unique(&[made], NATIVE)),
                Reply::Refused(Refusal::NotOffered { reason }) if reason.contains("secret"))
        });
        eventually("what Redis hashes is no secret", || uniques(engine, "hll:1", REDIS) == 1);
    }
    [one, two].iter().for_each(|engine| engine.close().unwrap());
}

#[test]
fn what_cannot_be_shared_is_refused_by_name() {
    let nodes = Nodes::new();
    let engine = nodes.open(1);
    // Without a lease the sketch is not put, and a command that only the store decides finds none.
    eventually("it has joined", || engine.sharing().unwrap().membership() == Membership::Live);
    ask(&engine, observe("hll:1", &["a", "b"], REDIS));
    ask(&engine, make_frequency("cms:1", 100, REDIS));
    let (condition, expiry) = (SetCondition::Always, SetExpiry::Remove);
    let Reply::Bytes(string) = run(&engine, Command::Read { name: name("hll:1") }) else { panic!("it is a string") };
    let set = SetString { name: name("hll:2"), bytes: &string, condition, expiry, reply_old: false };
    let sums = SketchCommand::MergeFrequency { names: vec![name("cms:1"); 2], weights: vec![1], dialect: REDIS };
    for command in [SketchCommand::SetString(set), sums] {
        let reply = ask(&engine, command);
        assert!(matches!(reply, Reply::Refused(Refusal::OneOwner { .. })), "{reply:?}");
    }
    for command in [Command::Take { name: name("hll:1") }, Command::Reset { name: name("hll:1") }] {
        let reply = run(&engine, command);
        assert!(matches!(reply, Reply::Refused(Refusal::WrongKind | Refusal::OtherKind { .. })), "{reply:?}");
    }
    let found = KindAndDialect { kind: Kind::Unique, dialect: REDIS };
    assert_eq!(
        run(&engine, Command::Add { name: name("hll:1"), delta: 1, shard_key: None }),
        Reply::Refused(Refusal::OtherKind { found })
    );
    let merge = SketchCommand::MergeUnique { names: vec![name("hll:3"), name("hll:1")], dialect: REDIS };
    assert_eq!((ask(&engine, merge), uniques(&engine, "hll:3", REDIS)), (Reply::Ok, 2), "what only adds may be merged");
    let other = nodes.open(2);
    eventually("the other has it", || uniques(&other, "hll:3", REDIS) == 2);
    let made = ask(&other, make_frequency("cms:1", 200, REDIS));
    assert!(matches!(made, Reply::Refused(Refusal::SketchExists { .. })), "{made:?}");
    engine.add("count:1", 1).unwrap();
    eventually("the other hears of a count", || other.read("count:1").unwrap().value == 1);
    assert_eq!(
        ask(&other, observe("count:1", &["a"], REDIS)),
        Reply::Refused(Refusal::NotHll { found: KindAndDialect::COUNT }),
        "it is one there, too"
    );
    [engine, other].iter().for_each(|engine| engine.close().unwrap());
}

// ---- step by step
// ---------------------------------------------------------------------------------------------------------------

/// A node that does something only when it is told to.
struct Node {
    world: World,
    engine: Engine,
}

impl Node {
    fn open(world: World, store: &Arc<dyn Store>, change: impl FnOnce(&mut Options)) -> Node {
        let mut options = small_options(1 << 20);
        options.sharing = SharingOptions {
            settle_every: Duration::ZERO,
            freshness: Duration::from_secs(3_600),
            lease: Duration::from_secs(600),
            audit_every: Duration::from_secs(86_400),
            ..SharingOptions::default()
        };
        change(&mut options);
        let environment = Environment { store: Some(store.clone()), ..world.environment() };
        let engine = Engine::open_with(options, environment).unwrap();
        let node = Node { world, engine };
        assert!(block_on(node.engine.sharing().unwrap().renew()));
        // Nothing is there to be confirmed.
        (0..40).for_each(|_| assert!(block_on(node.engine.sharing().unwrap().audit()) < 100));
        node
    }

    fn new(seed: u64, store: &Arc<dyn Store>) -> Node {
        Node::open(World::new(CrashDisk::new(), seed), store, |_| ())
    }

    /// Runs a command; what it waits for is brought.
    fn run(&self, command: &Command<'_>) -> Reply {
        loop {
            let reply = self.engine.turn().run(command);
            match reply {
                Ok(reply) => {
                    // A kill takes nothing that was replied.
                    self.engine.steps().write_filled();
                    self.engine.steps().sync();
                    return reply;
                }
                Err(load) => {
                    let is_swap = matches!(load, Load::Swap(_));
                    let loading = self.engine.steps().enqueue_load(load);
                    self.engine.steps().run_loads();
                    let sharing = self.engine.sharing().unwrap();
                    if is_swap {
                        while block_on(sharing.swap()) == 0 {}
                        return match block_on(loading) {
                            LoadOutcome::Reply(reply, _) => reply,
                            LoadOutcome::Refused(refusal) => Reply::Refused(refusal),
                            other => panic!("{other:?}"),
                        };
                    }
                    block_on(sharing.fetch());
                    drop(loading);
                }
            }
        }
    }

    fn ask(&self, command: SketchCommand<'_>) -> Reply {
        self.run(&Command::Sketch(command))
    }

    fn observe(&self, items: &[&str]) {
        let reply = self.ask(observe("unique:1", items, NATIVE));
        assert!(matches!(reply, Reply::Integer(_)), "{reply:?}");
    }

    fn uniques(&self) -> u64 {
        match self.ask(count_unique(&["unique:1"], NATIVE)) {
            Reply::Estimate(estimate) => estimate.value,
            reply => panic!("{reply:?}"),
        }
    }

    fn frequency(&self, item: &str) -> i64 {
        match self.ask(read_items("cms:1", &[item], REDIS)) {
            Reply::Integers(counts) => counts[0],
            Reply::Refused(Refusal::NoSketch { .. }) => 0,
            reply => panic!("{reply:?}"),
        }
    }

    fn settle(&self) {
        let sharing = self.engine.sharing().unwrap();
        block_on(sharing.settle());
        block_on(sharing.fetch());
        while block_on(sharing.swap()) > 0 {}
        block_on(sharing.settle());
        block_on(sharing.fetch());
    }

    /// Looks at the row anew.
    fn fetch_row(&self) {
        let sharing = self.engine.sharing().unwrap();
        for of in ["unique:1", "cms:1", "top:1"] {
            let waits = self.engine.steps().enqueue_load(Load::Rows(vec![of.as_bytes().into()]));
            block_on(sharing.fetch());
            drop(waits);
        }
    }

    fn delete(&self, of: &str) {
        assert_eq!(self.run(&Command::Delete { names: vec![name(of)] }), Reply::Integer(1));
    }

    fn kill(self, seed: u64) -> World {
        World::new(self.world.disk.kill(self.world.disk.operations()).into_disk(), seed)
    }
}

fn store() -> (Arc<dyn Store>, Arc<SimClock>) {
    let clock = Arc::new(SimClock::new(BEGIN));
    (Arc::new(MemoryStore::new(clock.clone())), clock)
}

#[test]
fn what_was_counted_before_a_reset_stays_gone_and_what_was_counted_after_it_is_not_lost() {
    let (store, _) = store();
    let (one, two) = (Node::new(1, &store), Node::new(2, &store));
    one.observe(&["a", "b", "c"]);
    assert_eq!(one.ask(make_frequency("cms:1", 500, REDIS)), Reply::Ok);
    one.ask(count_items("cms:1", &[("a", 5)], REDIS));
    one.settle();
    two.observe(&["x"]);
    two.settle();
    two.fetch_row();
    assert_eq!((two.uniques(), two.frequency("a")), (4, 5));
    two.delete("unique:1");
    two.delete("cms:1");
    assert_eq!((two.uniques(), two.frequency("a")), (0, 0));
    // The first has not heard of it: one item is counted again, which changes nothing in its body,
    // and one is new.
    one.observe(&["a", "d"]);
    one.ask(count_items("cms:1", &[("a", 2)], REDIS));
    assert_eq!((one.uniques(), one.frequency("a")), (4, 7));
    one.settle();
    assert_eq!((one.uniques(), one.frequency("a")), (2, 2), "what was counted after the reset, and nothing else");
    two.fetch_row();
    assert_eq!((two.uniques(), two.frequency("a")), (2, 2));
    assert_eq!(one.engine.sharing().unwrap().stats().carries, 2);
}

#[test]
fn a_delete_takes_what_its_own_node_has_counted_and_not_put_yet() {
    let (store, _) = store();
    let one = Node::new(1, &store);
    for round in 1..=3 {
        one.observe(&["a", "b"]);
        assert_eq!(one.uniques(), 2, "round {round}");
        one.delete("unique:1");
        assert_eq!(one.uniques(), 0, "round {round}");
        one.settle();
        one.fetch_row();
        assert_eq!(one.uniques(), 0, "round {round}");
    }
}

#[test]
fn a_node_that_was_killed_goes_on_with_its_body() {
    let (store, _) = store();
    let (one, two) = (Node::new(1, &store), Node::new(2, &store));
    one.observe(&["a", "b"]);
    one.settle();
    one.engine.steps().seal_all().unwrap();
    // What changes nothing in a body is a version of it all the same.
    one.observe(&["a"]);
    one.engine.steps().seal_all().unwrap();
    one.observe(&["c"]);
    two.observe(&["x"]);
    two.settle();
    let one = Node::open(one.kill(3), &store, |_| ());
    one.observe(&["d"]);
    one.settle();
    two.fetch_row();
    one.fetch_row();
    assert_eq!((one.uniques(), two.uniques()), (5, 5));
    let row = block_on(store.read_bodies(name("unique:1"))).unwrap();
    assert_eq!((row.bodies.len(), row.row.snapshot.cells.len()), (2, 2), "it is one node's, in all its lives");
    assert!(row.row.snapshot.cells.keys().all(|id| id.writer.incarnation == NODE_INCARNATION));
    let one = Node::open(one.kill(4), &store, |_| ());
    one.settle();
    two.delete("unique:1");
    one.fetch_row();
    one.settle();
    assert_eq!((one.uniques(), two.uniques()), (0, 0), "all of it was there, so nothing is gone on with");
}

#[test]
fn a_node_that_does_not_know_what_was_counted_since_loses_none_of_it() {
    let (store, _) = store();
    let (one, two) = (Node::new(1, &store), Node::new(2, &store));
    one.observe(&["a"]);
    one.settle();
    one.observe(&["b"]);
    two.fetch_row();
    two.delete("unique:1");
    let one = Node::open(one.kill(3), &store, |_| ());
    one.fetch_row();
    one.settle();
    assert_eq!(one.uniques(), 2, "the one that was not put, and, since nobody knows which that is, the other");
}

#[test]
fn a_node_that_lost_its_body_goes_on_with_what_the_store_has_of_it() {
    let (store, _) = store();
    let memory = |options: &mut Options| {
        options.namespaces.push((Box::from(*b"unique"), Namespace::with_durability(Durability::Memory)));
    };
    let one = Node::open(World::new(CrashDisk::new(), 1), &store, memory);
    one.observe(&["a", "b", "c"]);
    one.settle();
    let one = Node::open(one.kill(2), &store, memory);
    one.observe(&["d"]);
    assert_eq!(one.uniques(), 4, "its row was fetched first");
    one.settle();
    one.fetch_row();
    let two = Node::new(3, &store);
    assert_eq!((one.uniques(), two.uniques()), (4, 4));
    let bodies = block_on(store.read_bodies(name("unique:1"))).unwrap().bodies;
    assert_eq!(bodies.len(), 1);
}

#[test]
fn a_store_that_lost_everything_is_told_again() {
    let clock = Arc::new(SimClock::new(BEGIN));
    let memory = Arc::new(MemoryStore::new(clock));
    let (store, empty): (Arc<dyn Store>, _) = (memory.clone(), memory.backup());
    let (one, two) = (Node::new(1, &store), Node::new(2, &store));
    one.observe(&["a", "b"]);
    one.settle();
    let contents = memory.backup();
    one.observe(&["c"]);
    one.settle();
    two.fetch_row();
    assert_eq!(two.uniques(), 3);
    for past in [&contents, &empty] {
        memory.restore_backup(past);
        one.engine.sharing().unwrap().begin_audit();
        assert!(block_on(one.engine.sharing().unwrap().renew()));
        (0..40).for_each(|_| assert!(block_on(one.engine.sharing().unwrap().audit()) < 100));
        one.settle();
        two.fetch_row();
        assert_eq!((one.uniques(), two.uniques()), (3, 3));
    }
}

#[test]
fn what_expires_is_gone_and_what_was_counted_after_it_is_not() {
    let (store, clock) = store();
    let (one, two) = (Node::new(1, &store), Node::new(2, &store));
    let advance = |by: Duration| {
        clock.advance(by);
        one.world.clock.advance(by);
        two.world.clock.advance(by);
    };
    one.observe(&["a", "b"]);
    let expire =
        Command::Expire { name: name("unique:1"), when: ExpiryTime::In(10_000), condition: ExpiryCondition::Always };
    assert_eq!(one.run(&expire), Reply::Integer(1), "also of what was not put yet");
    two.fetch_row();
    assert_eq!(two.uniques(), 2);
    one.observe(&["c"]);
    advance(Duration::from_millis(10_500));
    two.observe(&["x"]);
    assert_eq!(two.uniques(), 1);
    one.observe(&["d", "e"]);
    assert_eq!(one.uniques(), 2, "the one that was not put has expired with the others");
    for _ in 0..3 {
        one.settle();
        two.settle();
        one.fetch_row();
        two.fetch_row();
    }
    assert_eq!((one.uniques(), two.uniques()), (3, 3));
}

#[test]
fn what_was_counted_before_and_changes_nothing_is_there_after_a_delete_elsewhere() {
    let (store, _) = store();
    let (one, two) = (Node::new(1, &store), Node::new(2, &store));
    one.observe(&["a"]);
    one.settle();
    two.fetch_row();
    two.delete("unique:1");
    // The first has not heard of it: its body has the item.
    one.observe(&["a"]);
    one.settle();
    two.fetch_row();
    assert_eq!((one.uniques(), two.uniques()), (1, 1), "it was counted after the delete");
}

// ---- two copies of one directory, at once
// ----------------------------------------------------------------------------------------

/// By chance the one copy's seqs are greater or the other's: both.
const CHANCES: std::ops::Range<u64> = 100..108;

impl Node {
    /// Another on a copy of its directory, as it is now.
    fn copy(&self, seed: u64, store: &Arc<dyn Store>) -> Node {
        let disk = self.world.disk.kill(self.world.disk.operations()).into_disk();
        Node::open(World::new(disk, seed), store, |_| ())
    }

    fn count(&self, item: &str, by: u64) {
        let reply = self.ask(count_items("cms:1", &[(item, by)], REDIS));
        assert!(matches!(reply, Reply::Integers(_)), "{reply:?}");
    }
}

/// Two copies of a directory that has counted `a` in each of two sketches, five times in one of
/// them, and put that; and another node.
fn copies(chance: u64) -> (Arc<dyn Store>, [Node; 3]) {
    copies_on(&store().0, chance)
}

fn copies_on(store: &Arc<dyn Store>, chance: u64) -> (Arc<dyn Store>, [Node; 3]) {
    let first = Node::new(1, store);
    assert_eq!(first.ask(make_frequency("cms:1", 500, REDIS)), Reply::Ok);
    first.observe(&["a"]);
    first.count("a", 5);
    first.settle();
    let copies = [first.copy(chance, store), first.copy(chance + 1_000, store), Node::new(3, store)];
    copies[2].fetch_row();
    (store.clone(), copies)
}

/// Everybody puts what they have, takes in what the others have put, and puts that.
fn exchange_rows(nodes: &[&Node]) {
    for _ in 0..3 {
        nodes.iter().for_each(|node| node.settle());
        nodes.iter().for_each(|node| node.fetch_row());
    }
}

#[test]
fn copies_of_a_directory_count_in_one_sketch_and_lose_nothing() {
    for chance in CHANCES {
        let (_store, [one, two, other]) = copies(chance);
        for (node, item) in [(&one, "b"), (&two, "c"), (&one, "d"), (&two, "e")] {
            node.observe(&[item]);
            node.count("a", 2);
            node.settle();
        }
        exchange_rows(&[&one, &two, &other]);
        for node in [&one, &two, &other] {
            assert_eq!((node.uniques(), node.frequency("a")), (5, 13), "{chance}");
        }
    }
}

#[test]
fn what_another_copy_had_put_when_the_sketch_was_deleted_is_not_taken_for_what_this_one_has_counted() {
    for chance in CHANCES {
        let (_store, [one, two, other]) = copies(chance);
        one.observe(&["b"]);
        one.count("a", 2);
        // More often than the first: a version of its body that the first does not have.
        for item in ["x", "y", "z"] {
            two.observe(&[item]);
            two.count("a", 1);
        }
        two.settle();
        other.fetch_row();
        assert_eq!((other.uniques(), other.frequency("a")), (4, 8), "{chance}");
        other.delete("unique:1");
        other.delete("cms:1");
        exchange_rows(&[&one, &two, &other]);
        for node in [&one, &two, &other] {
            assert_eq!((node.uniques(), node.frequency("a")), (1, 2), "what was not put when it was deleted: {chance}");
        }
    }
}

#[test]
fn a_copy_that_was_killed_before_it_put_anything_takes_in_what_the_other_has_put() {
    for chance in CHANCES {
        let (store, [one, two, other]) = copies(chance);
        one.observe(&["b"]);
        two.observe(&["c"]);
        two.count("a", 1);
        two.settle();
        drop(two);
        let one = Node::open(one.kill(4), &store, |_| ());
        exchange_rows(&[&one, &other]);
        assert_eq!((one.uniques(), other.uniques(), other.frequency("a")), (3, 3, 6), "{chance}");
    }
}

#[test]
fn a_copy_that_was_killed_goes_on_with_what_it_had_counted_where_the_other_was_before_it() {
    for chance in CHANCES {
        let (store, [one, two, other]) = copies(chance);
        one.observe(&["b"]);
        let one = one.kill(4);
        other.delete("unique:1");
        two.observe(&["c"]);
        two.settle();
        two.fetch_row();
        assert_eq!(two.uniques(), 1);
        let one = Node::open(one, &store, |_| ());
        exchange_rows(&[&one, &two, &other]);
        for node in [&one, &two, &other] {
            assert_eq!(node.uniques(), 3, "the one that was not put, and, since nobody knows which that is, the other");
        }
    }
}

#[test]
fn a_copy_that_had_nothing_left_to_say_takes_in_what_the_other_has_put_since() {
    for chance in CHANCES {
        let (_store, [one, two, other]) = copies(chance);
        other.delete("unique:1");
        one.fetch_row();
        two.fetch_row();
        two.observe(&["b"]);
        two.settle();
        drop(two);
        // Without a look at the row.
        one.observe(&["c"]);
        exchange_rows(&[&one, &other]);
        assert_eq!((one.uniques(), other.uniques()), (2, 2), "{chance}");
    }
}

#[test]
fn a_copy_that_says_nothing_shows_nothing_of_what_the_other_has_put_once_that_has_expired() {
    for chance in CHANCES {
        let (store, clock) = store();
        let (_, [one, two, other]) = copies_on(&store, chance);
        other.delete("unique:1");
        one.fetch_row();
        two.observe(&["b"]);
        exchange_rows(&[&two, &other]);
        let expire = Command::Expire {
            name: name("unique:1"),
            when: ExpiryTime::In(10_000),
            condition: ExpiryCondition::Always,
        };
        assert_eq!(other.run(&expire), Reply::Integer(1));
        clock.advance(Duration::from_millis(10_500));
        // Nobody has moved the row.
        one.fetch_row();
        assert_eq!(one.uniques(), 0, "{chance}");
    }
}

#[test]
fn a_store_that_went_back_and_went_on_with_one_copy_is_told_what_the_other_has() {
    for chance in CHANCES {
        let memory = Arc::new(MemoryStore::new(Arc::new(SimClock::new(BEGIN))));
        let store: Arc<dyn Store> = memory.clone();
        let (_, [one, two, other]) = copies_on(&store, chance);
        let contents = memory.backup();
        one.observe(&["b"]);
        one.settle();
        memory.restore_backup(&contents);
        two.observe(&["c"]);
        two.settle();
        drop(two);
        one.observe(&["d"]);
        one.settle();
        one.fetch_row();
        one.settle();
        other.fetch_row();
        assert_eq!((one.uniques(), other.uniques()), (4, 4), "{chance}");
    }
}
