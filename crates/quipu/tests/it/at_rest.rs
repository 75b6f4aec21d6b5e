//! Commands on counters at rest, through the real protocols: a restart leaves nothing in memory,
//! and no reply shows it.

use std::collections::HashSet;
use std::time::Duration;

use quipu_model::Durability;
use quipu_protocol::resp::{RespConnection, Value};
use quipu_testkit::load::{BackgroundStats, scan_names};
use quipu_testkit::program::{Launch, Program};
use tempfile::TempDir;

use crate::life::{connect, launch};

/// How many counters are at rest: more than a page of SCAN, and several in every shard of the
/// table.
const COUNTERS: usize = 6_000;

/// How often something that happens by itself is looked for, and how many times.
const LOOK_EVERY: Duration = Duration::from_millis(50);
const LOOKS_MAX: usize = 400;

/// A directory whose counters are all at rest, and the program started on it.
struct ServerAtRest {
    launch: Launch,
    program: Program,
    client: RespConnection,
    _data: TempDir,
}

/// `c:N` has the value N, for every N; `more` adds what the test needs beside them, before the
/// stop.
fn start_at_rest(more: impl FnOnce(&mut RespConnection)) -> ServerAtRest {
    let data = TempDir::new().expect("a temporary directory can be made");
    let launch = launch(data.path(), Durability::Durable);
    let program = launch.start().expect("it starts");
    let mut client = connect(&program);
    let adds: Vec<Vec<String>> =
        (0..COUNTERS).map(|number| words(&["SET", &name(number), &number.to_string()])).collect();
    for adds in adds.chunks(500) {
        client.send(adds).expect("it reads");
        for _ in adds {
            assert_eq!(client.receive().expect("it answers"), Value::Simple("OK".to_owned()));
        }
    }
    more(&mut client);
    let (status, log) = program.terminate().expect("it can be signalled");
    assert!(status.success(), "{log}");
    let program = launch.start().expect("it starts again");
    let client = connect(&program);
    ServerAtRest { launch, program, client, _data: data }
}

impl ServerAtRest {
    fn call(&mut self, request: &[&str]) -> Value {
        self.client.call(request).expect("it answers")
    }

    fn number(&mut self, request: &[&str]) -> i64 {
        let reply = self.call(request);
        reply.number().unwrap_or_else(|| panic!("{request:?} was answered {reply:?}"))
    }

    fn loads(&mut self) -> u64 {
        BackgroundStats::fetch(&mut self.client).expect("it tells of itself").loads
    }

    /// Kills it and starts it again.
    fn crash(self) -> ServerAtRest {
        let ServerAtRest { launch, program, _data, .. } = self;
        program.kill9();
        let program = launch.start().expect("it starts again");
        let client = connect(&program);
        ServerAtRest { launch, program, client, _data }
    }
}

fn name(number: usize) -> String {
    format!("c:{number}")
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}

fn expected(numbers: impl Iterator<Item = usize>) -> HashSet<Vec<u8>> {
    numbers.map(|number| name(number).into_bytes()).collect()
}

#[test]
fn names_at_rest_are_listed_completely_and_once() {
    let mut rested = start_at_rest(|_| {});
    assert_eq!(rested.number(&["DBSIZE"]), COUNTERS as i64);
    assert_eq!(scan_names(&mut rested.client, None).expect("a whole pass"), expected(0..COUNTERS));
    let sevens = scan_names(&mut rested.client, Some("c:7*")).expect("a whole pass");
    assert_eq!(sevens, expected((0..COUNTERS).filter(|number| number.to_string().starts_with('7'))));
    let keys: HashSet<Vec<u8>> = rested.call(&["KEYS", "c:1?"]).elements().iter().filter_map(bulk).collect();
    assert_eq!(keys, expected(10..20));
    // A page has about as many names as were asked for.
    let page = rested.call(&["SCAN", "0", "COUNT", "10"]);
    let [_, names] = page.elements() else { panic!("{page:?}") };
    assert!((1..=200).contains(&names.elements().len()), "{} names", names.elements().len());
    // Some at rest, some changed, some new, some gone.
    for number in 0..100 {
        rested.call(&["INCR", &name(number)]);
        rested.call(&["DEL", &name(number + 100)]);
        rested.call(&["INCR", &name(COUNTERS + number)]);
    }
    let mixed = expected((0..100).chain(200..COUNTERS + 100));
    assert_eq!(scan_names(&mut rested.client, None).expect("a whole pass"), mixed);
    assert_eq!(rested.number(&["DBSIZE"]), mixed.len() as i64);
    rested = rested.crash();
    assert_eq!(scan_names(&mut rested.client, None).expect("a whole pass"), mixed);
    assert_eq!(rested.number(&["DBSIZE"]), mixed.len() as i64);
}

fn bulk(value: &Value) -> Option<Vec<u8>> {
    match value {
        Value::Bulk(bytes) => Some(bytes.clone()),
        _ => None,
    }
}

#[test]
fn each_command_finds_a_counter_at_rest() {
    let mut rested = start_at_rest(|_| {});
    let before = rested.loads();
    assert_eq!(rested.number(&["GET", "c:1"]), 1);
    assert_eq!(rested.number(&["EXISTS", "c:2", "c:2", "c:nothing", "c:3"]), 3);
    assert_eq!(rested.call(&["TYPE", "c:4"]), Value::Simple("string".to_owned()));
    assert_eq!(rested.call(&["TYPE", "c:nothing"]), Value::Simple("none".to_owned()));
    assert_eq!(rested.number(&["INCR", "c:5"]), 6);
    assert_eq!(rested.number(&["DECRBY", "c:6", "10"]), -4);
    assert_eq!(rested.number(&["GETSET", "c:7", "0"]), 7);
    assert_eq!(rested.number(&["GETDEL", "c:8"]), 8);
    assert!(rested.call(&["GET", "c:8"]).is_nil());
    assert_eq!(rested.number(&["SETNX", "c:9", "1"]), 0);
    assert_eq!(rested.number(&["DEL", "c:10", "c:nothing", "c:11"]), 2);
    let read = rested.call(&["MGET", "c:12", "c:10", "c:nothing", "c:5", "c:13"]);
    let numbers: Vec<Option<i64>> = read.elements().iter().map(Value::number).collect();
    assert_eq!(numbers, [Some(12), None, None, Some(6), Some(13)]);
    assert!(rested.loads() > before, "they were at rest");
    assert_eq!(rested.number(&["DBSIZE"]), COUNTERS as i64 - 3);
    rested = rested.crash();
    assert_eq!(rested.number(&["DBSIZE"]), COUNTERS as i64 - 3);
    for (name, value) in
        [("c:5", Some(6)), ("c:6", Some(-4)), ("c:7", Some(0)), ("c:8", None), ("c:10", None), ("c:12", Some(12))]
    {
        assert_eq!(rested.call(&["GET", name]).number(), value, "{name}");
    }
}

#[test]
fn expiry_is_kept_at_rest_and_counters_that_nobody_looks_at_go_by_themselves() {
    let mut rested = start_at_rest(|client| {
        client.call(&["EXPIRE", "c:1", "1000"]).expect("it answers");
        for number in 1_000..2_000 {
            // Long enough that they are at rest by then.
            client.call(&["PEXPIRE", &name(number), "3000"]).expect("it answers");
        }
    });
    assert!((1..=1_000).contains(&rested.number(&["TTL", "c:1"])));
    assert_eq!(rested.number(&["TTL", "c:2"]), -1);
    assert_eq!(rested.number(&["TTL", "c:nothing"]), -2);
    assert_eq!(rested.number(&["EXPIRE", "c:2", "500"]), 1);
    assert!((1..=500).contains(&rested.number(&["TTL", "c:2"])));
    assert_eq!(rested.number(&["PERSIST", "c:1"]), 1);
    let mut looks = 0;
    while rested.number(&["DBSIZE"]) != COUNTERS as i64 - 1_000 {
        looks += 1;
        assert!(looks < LOOKS_MAX, "{} are left", rested.number(&["DBSIZE"]));
        std::thread::sleep(LOOK_EVERY);
    }
    assert!(rested.call(&["GET", "c:1500"]).is_nil());
    let left = expected((0..1_000).chain(2_000..COUNTERS));
    assert_eq!(scan_names(&mut rested.client, None).expect("a whole pass"), left);
    rested = rested.crash();
    assert_eq!(rested.number(&["TTL", "c:1"]), -1);
    assert!((1..=500).contains(&rested.number(&["TTL", "c:2"])));
    assert_eq!(rested.number(&["DBSIZE"]), left.len() as i64);
}

#[test]
fn transactions_and_watches_reach_counters_at_rest() {
    let mut rested = start_at_rest(|_| {});
    let queue = [
        words(&["MULTI"]),
        words(&["INCR", "c:20"]),
        words(&["GET", "c:21"]),
        words(&["DEL", "c:22"]),
        words(&["INCR", "c:new"]),
        words(&["EXEC"]),
    ];
    rested.client.send(&queue).expect("it reads");
    let replies: Vec<Value> = queue.iter().map(|_| rested.client.receive().expect("it answers")).collect();
    let numbers: Vec<Option<i64>> = replies[5].elements().iter().map(Value::number).collect();
    assert_eq!(numbers, [Some(21), Some(21), Some(1), Some(1)]);

    // Watched at rest and left alone: it goes through. Changed by another: it does not.
    for (changed, expected) in [(false, Some(32)), (true, None)] {
        rested.call(&["WATCH", "c:30"]);
        if changed {
            connect(&rested.program).call(&["INCR", "c:30"]).expect("it answers");
        }
        rested.call(&["MULTI"]);
        rested.call(&["INCRBY", "c:31", "1"]);
        let reply = rested.call(&["EXEC"]);
        assert_eq!(reply.elements().first().and_then(Value::number), expected, "{reply:?}");
    }
    rested = rested.crash();
    for (name, value) in
        [("c:20", Some(21)), ("c:22", None), ("c:new", Some(1)), ("c:30", Some(31)), ("c:31", Some(32))]
    {
        assert_eq!(rested.call(&["GET", name]).number(), value, "{name}");
    }
}

#[test]
fn a_flush_takes_what_is_at_rest_and_what_comes_after_begins_anew() {
    let mut rested = start_at_rest(|_| {});
    rested.call(&["INCR", "c:1"]);
    assert_eq!(rested.call(&["FLUSHALL"]), Value::Simple("OK".to_owned()));
    assert_eq!(rested.number(&["DBSIZE"]), 0);
    assert!(rested.call(&["GET", "c:2"]).is_nil());
    assert_eq!(scan_names(&mut rested.client, None).expect("a whole pass"), HashSet::new());
    for number in 0..50 {
        assert_eq!(rested.number(&["INCR", &name(number)]), 1);
    }
    // Before the ledger has heard of it, and after.
    for _ in 0..2 {
        assert_eq!(scan_names(&mut rested.client, None).expect("a whole pass"), expected(0..50));
        assert_eq!(rested.number(&["DBSIZE"]), 50);
        assert_eq!((rested.number(&["GET", "c:3"]), rested.call(&["GET", "c:3000"]).is_nil()), (1, true));
        rested = rested.crash();
    }
    let (status, log) = rested.program.terminate().expect("it can be signalled");
    assert!(status.success(), "{log}");
    let program = rested.launch.start().expect("it starts");
    let mut client = connect(&program);
    assert_eq!(scan_names(&mut client, None).expect("a whole pass"), expected(0..50));
    assert_eq!(client.call(&["DBSIZE"]).expect("it answers"), Value::Integer(50));
}

#[test]
fn replies_of_a_pipeline_come_in_order_whatever_is_at_rest() {
    let mut rested = start_at_rest(|_| {});
    let mut wanted = Vec::new();
    let mut pipeline = Vec::new();
    for round in 0..40 {
        // At rest, in memory since the first round, never there, new.
        let (cold, absent, new) = (name(100 + round), format!("absent:{round}"), format!("new:{round}"));
        pipeline.extend([
            words(&["GET", &cold]),
            words(&["INCR", "c:0"]),
            words(&["GET", &absent]),
            words(&["INCRBY", &new, "5"]),
            words(&["INCR", &cold]),
            words(&["PING"]),
            words(&["MGET", &new, &cold, &absent]),
        ]);
        let (value, nil) = (100 + round as i64, Value::Null);
        let text = |number: i64| Value::Bulk(number.to_string().into_bytes());
        wanted.extend([
            text(value),
            Value::Integer(round as i64 + 1),
            nil.clone(),
            Value::Integer(5),
            Value::Integer(value + 1),
            Value::Simple("PONG".to_owned()),
            Value::Array(vec![text(5), text(value + 1), nil]),
        ]);
    }
    rested.client.send(&pipeline).expect("it reads");
    for (index, wanted) in wanted.iter().enumerate() {
        let reply = rested.client.receive().expect("it answers");
        assert_eq!(&reply, wanted, "reply {index} to {:?}", pipeline[index]);
    }
}
