//! Tests nodes on one shared store with the threads of real engines; `lives.rs` runs them step by
//! step, the simulation does the rest.

use std::sync::Arc;
use std::time::Duration;

use quipu_engine::{Engine, Environment, Error, Membership, Options, ShardPick, SharingOptions, SystemClock};
use quipu_model::{
    Clock, Command, FailMode, Freshness, Identity, MemoryStore, Name, Namespace, Refusal, Reply, Set, SetCondition,
    SetExpiry, ShardCount, Store,
};
use quipu_testkit::store_suite::{FaultyStore, block_on};

/// What a store takes to be told of an add, and a node to hear of it, many times over.
const SOON: Duration = Duration::from_secs(20);

pub struct Nodes {
    pub store: Arc<dyn Store>,
    pub dir: tempfile::TempDir,
}

impl Nodes {
    pub fn new() -> Nodes {
        Nodes {
            store: Arc::new(MemoryStore::new(Arc::new(SystemClock::default()))),
            dir: tempfile::tempdir().expect("a temporary directory"),
        }
    }

    pub fn open(&self, node: u32) -> Engine {
        self.open_with(node, |_| ())
    }

    pub fn open_with(&self, node: u32, change: impl FnOnce(&mut SharingOptions)) -> Engine {
        let mut options = Options::new(self.dir.path().join(node.to_string()));
        options.table_shards = 8;
        options.sharing = SharingOptions {
            settle_every: Duration::from_millis(20),
            freshness: Duration::from_millis(20),
            lease: Duration::from_secs(1),
            ..SharingOptions::default()
        };
        change(&mut options.sharing);
        Engine::open_with_threads(options, Environment { store: Some(self.store.clone()), ..Environment::system() })
            .expect("it opens")
    }
}

pub fn eventually(what: &str, mut check: impl FnMut() -> bool) {
    let clock = SystemClock::default();
    let began = clock.elapsed();
    while !check() {
        assert!(clock.elapsed() - began < SOON, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn three_nodes_add_and_each_shows_the_sum() {
    let nodes = Nodes::new();
    let engines: Vec<Engine> = (0..3).map(|node| nodes.open(node)).collect();
    for (engine, delta) in engines.iter().zip([1, 10, 100]) {
        for _ in 0..5 {
            engine.add("likes:1", delta).unwrap();
        }
    }
    for engine in &engines {
        eventually("all nodes show the sum", || engine.read("likes:1").unwrap().value == 555);
    }
    engines.iter().for_each(|engine| engine.close().unwrap());
}

#[test]
fn what_a_reset_returns_and_what_is_left_is_what_was_added() {
    let nodes = Nodes::new();
    let engines: Vec<Engine> = (0..3).map(|node| nodes.open(node)).collect();
    let mut returned = 0;
    std::thread::scope(|scope| {
        for engine in &engines {
            scope.spawn(|| (0..500).for_each(|_| assert!(engine.add("likes:1", 1).is_ok())));
        }
        for round in 0..20 {
            returned += engines[round % 3].reset("likes:1").unwrap();
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    for engine in &engines {
        eventually("all nodes show the rest", || engine.read("likes:1").unwrap().value == 1_500 - returned);
    }
    engines.iter().for_each(|engine| engine.close().unwrap());
}

#[test]
fn what_is_counted_in_lanes_on_several_nodes_is_counted_once_among_resets() {
    /// Adds of each thread, in some ten windows.
    const ADDS: i64 = 20_000;
    let nodes = Nodes::new();
    let engines: Vec<Engine> = (0..3).map(|node| nodes.open(node)).collect();
    let mut returned = 0;
    std::thread::scope(|scope| {
        for engine in engines.iter().chain(&engines) {
            let handle = engine.handle("likes:1").unwrap();
            scope.spawn(move || {
                for add in 0..ADDS {
                    handle.count(1).unwrap();
                    if add % 1_000 == 0 {
                        std::thread::sleep(Duration::from_millis(20));
                    }
                }
                handle.flush().unwrap();
            });
        }
        for round in 0..20 {
            returned += engines[round % 3].reset("likes:1").unwrap();
            std::thread::sleep(Duration::from_millis(15));
        }
    });
    assert!(returned > 0, "resets came too early to prove anything");
    for engine in &engines {
        let rest = 6 * ADDS - returned;
        eventually("all nodes show the rest", || engine.read("likes:1").unwrap().value == rest);
    }
    engines.iter().for_each(|engine| engine.close().unwrap());
}

#[test]
fn a_counter_of_which_each_add_names_a_key_is_not_counted_without_one() {
    let nodes = Nodes::new();
    let engine = nodes.open_with(1, |sharing| (sharing.shards, sharing.pick) = (4, ShardPick::Hash));
    let handle = engine.handle("likes:1").unwrap();
    for _ in 0..100 {
        assert_eq!(handle.count(1), Err(Error::Refused(Refusal::NoShardKey)));
    }
    assert!(!handle.is_split());
    let spread = nodes.open_with(2, |sharing| (sharing.shards, sharing.pick) = (4, ShardPick::Random));
    let handle = spread.handle("likes:2").unwrap();
    (0..1_000).for_each(|_| handle.count(1).unwrap());
    assert!(handle.is_split());
    assert_eq!(handle.add(1).unwrap(), 1_001);
}

#[test]
fn a_reset_takes_what_its_own_node_has_added_and_not_put_yet() {
    let nodes = Nodes::new();
    // Longer than the test: nothing is put by itself.
    let engine = nodes.open_with(1, |sharing| sharing.settle_every = Duration::from_secs(3_600));
    for round in 1..=3 {
        engine.add("likes:1", 5 * round).unwrap();
        assert_eq!(engine.reset("likes:1").unwrap(), 5 * round);
        assert_eq!(engine.read("likes:1").unwrap().value, 0);
    }
}

#[test]
fn a_node_that_comes_back_goes_on_and_one_that_crashed_settles_what_it_owed() {
    let nodes = Nodes::new();
    let (first, second) = (nodes.open(1), nodes.open(2));
    first.add("likes:1", 5).unwrap();
    eventually("the other hears of it", || second.read("likes:1").unwrap().value == 5);
    first.close().unwrap();
    drop(first);
    let first = nodes.open(1);
    assert_eq!(first.add("likes:1", 1).unwrap(), 6);
    eventually("the other hears of it", || second.read("likes:1").unwrap().value == 6);
    assert_eq!(second.reset("likes:1").unwrap(), 6);
    assert_eq!(second.add("likes:1", 2).unwrap(), 2);
    eventually("the first hears of the reset", || first.read("likes:1").unwrap().value == 2);
}

#[test]
fn what_needs_one_owner_is_refused_by_name() {
    let nodes = Nodes::new();
    let engine = nodes.open(1);
    let name = Name::new(b"stock:1").unwrap();
    let set = Set { name, value: 1, condition: SetCondition::IfAbsent, expiry: SetExpiry::Remove, reply_old: false };
    for command in [Command::Set(set), Command::Flush] {
        assert!(matches!(engine.execute(&command), Err(Error::Refused(Refusal::OneOwner { .. }))), "{command:?}");
    }
    assert_eq!(engine.execute(&Command::Add { name, delta: 3, shard_key: None }).unwrap(), Reply::Integer(3));
    assert!(engine.delete("stock:1").unwrap());
    assert!(!engine.read("stock:1").unwrap().exists);
}

#[test]
fn a_shard_key_picks_the_same_shard_on_every_node_and_where_it_must_be_named_it_must() {
    let nodes = Nodes::new();
    let engines = [1, 2].map(|node| nodes.open(node));
    for engine in &engines {
        let votes =
            Namespace { shards: Some(ShardCount::Fixed(8)), pick: Some(ShardPick::Hash), ..Namespace::default() };
        engine.put_namespace("votes", votes).unwrap();
    }
    for engine in &engines {
        let sharing = || engine.sharing().expect("there is a store");
        eventually("it has joined", || sharing().membership() == Membership::Live);
    }
    fn add(delta: i64, shard_key: Option<&[u8]>) -> Command<'_> {
        Command::Add { name: Name::new(b"votes:1").unwrap(), delta, shard_key }
    }
    let refused = engines[0].execute(&add(7, None));
    assert!(matches!(&refused, Err(Error::Refused(Refusal::NoShardKey))), "{refused:?}");
    assert!(refused.err().unwrap().to_string().contains("SHARDKEY"));
    assert!(!engines[0].read("votes:1").unwrap().exists, "nothing was applied");
    for engine in &engines {
        for key in 0..32 {
            engine.execute(&add(1, Some(format!("user:{key}").as_bytes()))).unwrap();
            engine.execute(&add(100, Some(b"user:7"))).unwrap();
        }
        // Elsewhere it is taken, and picks nothing.
        let elsewhere = Command::Add { name: Name::new(b"likes:1").unwrap(), delta: 1, shard_key: Some(b"user:7") };
        engine.execute(&elsewhere).unwrap();
    }
    eventually("all of it is in the store", || {
        row_of(&nodes, b"votes:1").iter().map(|cell| cell.1).sum::<i128>() == 6_464
    });
    let mut by_shard = row_of(&nodes, b"votes:1");
    by_shard.sort();
    let (pairs, rest) = by_shard.as_chunks::<2>();
    assert!(rest.is_empty() && pairs.len() > 1, "{by_shard:?}");
    assert!(pairs.iter().all(|[first, second]| first == second), "both nodes picked alike: {by_shard:?}");
    assert_eq!(pairs.iter().filter(|[cell, _]| cell.1 >= 3_200).count(), 1, "one key, one shard: {by_shard:?}");
    eventually("the other namespace is there", || row_of(&nodes, b"likes:1").len() == 2);
    assert!(row_of(&nodes, b"likes:1").iter().all(|cell| *cell == (0, 1)));
}

/// Shard and value of each cell in a counter's row.
fn row_of(nodes: &Nodes, name: &[u8]) -> Vec<(u16, i128)> {
    let row = block_on(nodes.store.read(Name::new(name).unwrap())).unwrap();
    row.snapshot.cells.iter().map(|(id, row_cell)| (id.shard.0, row_cell.value)).collect()
}

#[test]
fn counters_from_before_the_store_are_brought_along() {
    let nodes = Nodes::new();
    let alone = Engine::open(Options { table_shards: 8, ..Options::new(nodes.dir.path().join("1")) }).unwrap();
    (0..100).for_each(|n| assert!(alone.add(format!("old:{n}"), n).is_ok()));
    alone.reset("old:7").unwrap();
    alone.close().unwrap();
    drop(alone);
    let (first, second) = (nodes.open(1), nodes.open(2));
    for n in [0, 3, 7, 99] {
        let expected = if n == 7 { 0 } else { n };
        eventually("the other has them", || second.read(format!("old:{n}")).unwrap().value == expected);
    }
    assert_eq!(first.add("old:3", 1).unwrap(), 4);
}

#[test]
fn an_add_with_a_token_is_claimed_at_the_store_and_other_mutations_cannot_be() {
    let nodes = Nodes::new();
    let [one, two] = [0, 1].map(|node| nodes.open(node));
    let (name, token) = (Name::new(b"likes:1").unwrap(), Identity::token(b"p", b"order-1").unwrap());
    let add = |delta| Command::Add { name, delta, shard_key: None };
    for engine in [&one, &two, &one] {
        assert_eq!(engine.execute_once(&token, &add(5)), Ok(Reply::Integer(5)), "retried on another node");
    }
    assert_eq!(two.execute_once(&token, &add(6)), Err(Error::Refused(Refusal::TokenMismatch)));
    let refused = |what| Err(Error::Refused(Refusal::OneOwner { what }));
    let reset = one.execute_once(&Identity::token(b"p", b"order-2").unwrap(), &Command::Reset { name });
    assert_eq!(reset, refused("a token on anything but a plain add"));
    let number = one.execute_once(&Identity::sequence(b"p", 1).unwrap(), &add(1));
    assert_eq!(number, refused("a sequence number"));
    let old = one.execute_once(&Identity::token(b"p", b"1000000000000-x").unwrap(), &add(1));
    assert!(matches!(old, Err(Error::Refused(Refusal::TokenTooOld { .. }))), "{old:?}");
    [one, two].iter().for_each(|engine| engine.close().unwrap());
}

#[test]
fn a_reading_says_how_old_it_is_and_may_be_asked_to_be_fresh() {
    let nodes = Nodes::new();
    // What is known is good for an hour, unless a read says otherwise.
    let lazy = |sharing: &mut SharingOptions| sharing.freshness = Duration::from_secs(3_600);
    let (first, second) = (nodes.open_with(0, lazy), nodes.open_with(1, lazy));
    first.add("likes:1", 1).unwrap();
    second.add("likes:1", 10).unwrap();
    eventually("what the other says is fetched", || {
        first.read_within("likes:1", Freshness::Fresh).unwrap().value == 11
    });
    let known = first.read("likes:1").unwrap();
    assert!(!known.exact && known.lag.is_some());
    assert_eq!(known.writers.seen, known.writers.total, "a row is all writers at one moment");
    second.add("likes:1", 100).unwrap();
    assert_eq!(first.read_within("likes:1", Freshness::Cached).unwrap().value, 11);
    eventually("a fresh read sees what was put", || {
        first.read_within("likes:1", Freshness::Within(Duration::from_millis(1))).unwrap().value == 111
    });
    [first, second].iter().for_each(|engine| engine.close().unwrap());
}

#[test]
fn while_the_store_does_not_answer_a_namespace_does_as_its_fail_mode_says() {
    let faulty = Arc::new(FaultyStore::new(MemoryStore::new(Arc::new(SystemClock::default())), 1, 100));
    let nodes = Nodes { store: faulty.clone(), dir: tempfile::tempdir().expect("a temporary directory") };
    let engine = nodes.open_with(1, |sharing| sharing.fetch_wait = Duration::from_millis(50));
    let fail = |namespace: &str, fail_mode| {
        engine.put_namespace(namespace, Namespace { fail_mode: Some(fail_mode), ..Namespace::default() }).unwrap();
    };
    fail("open", FailMode::Open);
    fail("known", FailMode::LastKnown);
    fail("closed", FailMode::Closed);
    let down = Err(Error::Refused(Refusal::StoreDown));
    let read = |name: &str| engine.read(name).map(|reading| reading.value);
    // Adds; reads of what was added to; reads of what nobody knows.
    assert_eq!((engine.add("local:1", 1), read("local:1"), read("local:0")), (Ok(1), Ok(1), down.clone()));
    assert_eq!((engine.add("open:1", 1), read("open:1"), read("open:0")), (Ok(1), Ok(1), Ok(0)));
    assert_eq!((engine.add("known:1", 1), read("known:1")), (down.clone(), down.clone()));
    assert_eq!((engine.add("closed:1", 1), read("closed:1")), (down.clone(), down.clone()));
    fail("local", FailMode::LastKnown);
    assert_eq!((engine.add("local:1", 1), read("local:1")), (down.clone(), Ok(1)));
    fail("local", FailMode::Closed);
    assert_eq!((engine.add("local:1", 1), read("local:1")), (down.clone(), down.clone()));
    // Adds that return nothing take no way around it.
    let handle = engine.handle("local:1").unwrap();
    assert!((0..200).all(|_| handle.count(1).is_err()));
    block_on(faulty.calm());
    eventually("the store answers again", || read("closed:1").is_ok() && read("local:1").is_ok());
    for (name, value) in [("closed:1", 0), ("known:1", 0), ("open:1", 1), ("local:1", 1)] {
        eventually(name, || read(name) == Ok(value));
    }
    eventually("adds go on", || engine.add("closed:1", 1).is_ok());
    let ttl = Namespace { ttl: Some(Duration::from_secs(60)), ..Namespace::default() };
    let message = engine.put_namespace("closed", ttl).unwrap_err().to_string();
    assert!(message.starts_with("ttl: on a shared store"), "{message}");
    engine.close().unwrap();
}
