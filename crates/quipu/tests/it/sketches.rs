//! The approximate kinds through the program's protocols: HyperLogLogs that go to Redis and come
//! from it, and kills under load.
//!
//! The judge of kinds that count each item once: acknowledged items ⊆ items in the sketch ⊆
//! requested items. The judge of kinds that add up: every acknowledged increment is in, and some of
//! the others.

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use quipu_model::Durability;
use quipu_protocol::resp::{RespConnection, Value};
use quipu_sketch::{Edits, Hll};
use quipu_testkit::SeededRng;
use quipu_testkit::program::Program;
use quipu_testkit::servers::redis::RedisServer;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::life::{connect, launch};

/// How often the program is killed in each mode.
const KILLS: usize = 10;

/// Clients that load it.
const CLIENTS: usize = 3;

fn call(client: &mut RespConnection, request: &[&[u8]]) -> Value {
    client.send_encoded(&quipu_protocol::resp::request(request)).expect("it takes a request");
    client.receive().expect("it answers")
}

fn number(value: &Value) -> i64 {
    value.number().unwrap_or_else(|| panic!("a number, not {value:?}"))
}

fn bytes(value: Value) -> Vec<u8> {
    match value {
        Value::Bulk(bytes) => bytes.to_vec(),
        other => panic!("a string, not {other:?}"),
    }
}

/// Adds items `from..to` to a key, a hundred at a time.
fn observe(client: &mut RespConnection, key: &str, from: usize, to: usize) {
    let items: Vec<String> = (from..to).map(|item| format!("item-{item}")).collect();
    for some in items.chunks(100) {
        let mut request = vec![&b"PFADD"[..], key.as_bytes()];
        request.extend(some.iter().map(|item| item.as_bytes()));
        number(&call(client, &request));
    }
}

#[test]
fn hyperloglogs_go_to_a_real_redis_and_come_from_it() {
    let data = TempDir::new().expect("a temporary directory can be made");
    let program = launch(data.path(), Durability::Relaxed).start().expect("it starts");
    let redis = RedisServer::start().expect("redis-server was installed and starts");
    let (mut ours, mut theirs) = (connect(&program), redis.connect().expect("it accepts"));
    let sizes = [0, 1, 10, 300, 1_000, 1_500, 1_800, 2_500, 20_000];
    for (index, size) in sizes.into_iter().enumerate() {
        let (here, there) = (format!("here:{index}"), format!("there:{index}"));
        for client in [&mut ours, &mut theirs] {
            assert_eq!(number(&call(client, &[b"PFADD", here.as_bytes()])), 1, "made");
            observe(client, &here, 0, size);
        }
        // The same bytes, sparse and dense, and at the change from one to the other.
        let mine = bytes(call(&mut ours, &[b"GET", here.as_bytes()]));
        assert_eq!(mine, bytes(call(&mut theirs, &[b"GET", here.as_bytes()])), "of {size} items");
        assert_eq!(number(&call(&mut ours, &[b"STRLEN", here.as_bytes()])), mine.len() as i64);
        assert_eq!(bytes(call(&mut ours, &[b"GETRANGE", here.as_bytes(), b"0", b"3"])), b"HYLL");
        // Ours there, theirs here, and both go on.
        assert_eq!(call(&mut theirs, &[b"SET", there.as_bytes(), &mine]), Value::Simple("OK".into()));
        let copied = bytes(call(&mut theirs, &[b"GET", there.as_bytes()]));
        assert_eq!(call(&mut ours, &[b"SET", there.as_bytes(), &copied]), Value::Simple("OK".into()));
        let counts = [&mut ours, &mut theirs].map(|client| number(&call(client, &[b"PFCOUNT", there.as_bytes()])));
        assert_eq!(counts[0], counts[1], "of {size} items");
        for client in [&mut ours, &mut theirs] {
            observe(client, &there, size, size + 50);
            assert_eq!(
                call(client, &[b"PFMERGE", b"all", there.as_bytes(), here.as_bytes()]),
                Value::Simple("OK".into())
            );
        }
        let counts = [&mut ours, &mut theirs].map(|client| number(&call(client, &[b"PFCOUNT", b"all", b"nothing"])));
        assert_eq!(counts[0], counts[1], "merged, {size} items");
    }
    // A string that only begins like one is refused, and nothing is there of it.
    let refused = call(&mut ours, &[b"SET", b"bad", b"HYLLxxxxxxxxxxxxxxxxxxx"]);
    assert!(matches!(&refused, Value::Error(text) if text.starts_with("INVALIDOBJ")), "{refused:?}");
    assert_eq!(number(&call(&mut ours, &[b"EXISTS", b"bad"])), 0);
    println!(
        "proof: HyperLogLogs copied between Redis and this: {} sizes both ways, bytes and estimates alike",
        sizes.len()
    );
}

#[test]
fn commands_of_one_kind_are_refused_by_counters_of_another() {
    let data = TempDir::new().expect("a temporary directory can be made");
    let program = launch(data.path(), Durability::Relaxed).start().expect("it starts");
    let mut client = connect(&program);
    let ok = Value::Simple("OK".into());
    call(&mut client, &[b"INCR", b"count"]);
    call(&mut client, &[b"PFADD", b"hll", b"a"]);
    call(&mut client, &[b"QUIPU.OBSERVE", b"unique", b"a"]);
    assert_eq!(call(&mut client, &[b"CMS.INITBYDIM", b"cms", b"100", b"4"]), ok);
    assert_eq!(call(&mut client, &[b"TOPK.RESERVE", b"top", b"3"]), ok);
    let commands: [(&[&[u8]], &str); 6] = [
        (&[b"INCR", b"?"], "count"),
        (&[b"PFADD", b"?", b"b"], "hll"),
        (&[b"QUIPU.OBSERVE", b"?", b"b"], "unique"),
        (&[b"CMS.INCRBY", b"?", b"b", b"1"], "cms"),
        (&[b"TOPK.ADD", b"?", b"b"], "top"),
        (&[b"CMS.QUERY", b"?", b"b"], "cms"),
    ];
    for (command, own) in commands {
        for name in ["count", "hll", "unique", "cms", "top"] {
            let request: Vec<&[u8]> =
                command.iter().map(|word| if *word == b"?" { name.as_bytes() } else { word }).collect();
            let reply = call(&mut client, &request);
            let refused = matches!(&reply, Value::Error(text) if text.starts_with("WRONGTYPE"));
            // Our own dialect takes both forms of a sketch.
            let takes = name == own || (own == "unique" && name == "hll");
            assert_eq!(refused, !takes, "{} of {name}: {reply:?}", String::from_utf8_lossy(command[0]));
        }
    }
    assert_eq!(number(&call(&mut client, &[b"GET", b"count"])), 2, "nothing else was applied");
    // Many strings in one reply would be a reply of any length: some are told, then no more.
    observe(&mut client, "hll", 0, 5_000);
    call(&mut client, &[b"MULTI"]);
    (0..200).for_each(|_| drop(call(&mut client, &[b"GET", b"hll"])));
    let replies = call(&mut client, &[b"EXEC"]);
    let report = replies.elements().iter().filter(|reply| matches!(reply, Value::Bulk(_))).count();
    assert!((80..100).contains(&report) && replies.elements().len() == 200, "{report}");
    assert_eq!(number(&call(&mut client, &[b"DBSIZE"])), 5);
}

#[test]
fn a_namespace_may_be_for_one_kind_only() {
    let data = TempDir::new().expect("a temporary directory can be made");
    let program = launch(data.path(), Durability::Relaxed).start().expect("it starts");
    let mut client = connect(&program);
    call(&mut client, &[b"INCR", b"visitors:old"]);
    let http = program.http().expect("it serves HTTP");
    let put = std::process::Command::new("curl")
        .args(["--silent", "--show-error", "--fail", "-X", "PUT", "-d", r#"{"kind": "unique"}"#])
        .arg(format!("http://{http}/v1/namespaces/visitors"))
        .output()
        .expect("curl was installed");
    assert!(put.status.success(), "{put:?}");
    let refused = |reply: Value| matches!(&reply, Value::Error(text) if text.starts_with("WRONGTYPE"));
    assert!(refused(call(&mut client, &[b"INCR", b"visitors:new"])));
    assert!(refused(call(&mut client, &[b"SET", b"visitors:new", b"1"])));
    assert!(refused(call(&mut client, &[b"QUIPU.TOP.ADD", b"visitors:new", b"a", b"1"])));
    assert_eq!(number(&call(&mut client, &[b"EXISTS", b"visitors:new"])), 0);
    assert_eq!(number(&call(&mut client, &[b"QUIPU.OBSERVE", b"visitors:new", b"ann"])), 1);
    assert_eq!(number(&call(&mut client, &[b"INCR", b"visitors:old"])), 2, "what was there goes on");
    assert_eq!(number(&call(&mut client, &[b"INCR", b"views:1"])), 1);
}

#[test]
fn what_is_merged_into_a_sketch_comes_to_what_it_has() {
    let data = TempDir::new().expect("a temporary directory can be made");
    let program = launch(data.path(), Durability::Relaxed).start().expect("it starts");
    let mut client = connect(&program);
    for (name, item, by) in [("a", "x", "5"), ("b", "y", "2"), ("b", "x", "1")] {
        let words = ["QUIPU.FREQ.ADD", name, item, by].map(str::as_bytes);
        call(&mut client, &words);
    }
    assert_eq!(call(&mut client, &[b"QUIPU.FREQ.MERGE", b"a", b"b"]), Value::Simple("OK".into()));
    let read = call(&mut client, &[b"QUIPU.FREQ.READ", b"a", b"x", b"y"]);
    let pairs = read.pairs();
    let items = pairs.iter().find(|(key, _)| key.bytes() == Some(b"items")).expect("there are items").1.elements();
    let at_most: Vec<i64> = items.iter().map(|item| number(item.pairs()[0].1)).collect();
    assert_eq!(at_most, [6, 2]);
    for (name, items) in [("mon", ["ann", "bob"]), ("tue", ["bob", "cid"])] {
        call(&mut client, &[b"QUIPU.OBSERVE", name.as_bytes(), items[0].as_bytes(), items[1].as_bytes()]);
    }
    let value = |reply: &Value| number(reply.pairs()[0].1);
    assert_eq!(value(&call(&mut client, &[b"QUIPU.UNIQUES", b"mon", b"tue", b"nobody"])), 3);
    assert_eq!(value(&call(&mut client, &[b"QUIPU.INTERSECT", b"mon", b"tue"])), 1);
    assert_eq!(value(&call(&mut client, &[b"QUIPU.DIFFERENCE", b"mon", b"tue"])), 1);
    assert_eq!(call(&mut client, &[b"QUIPU.MERGE", b"mon", b"tue"]), Value::Simple("OK".into()));
    assert_eq!(value(&call(&mut client, &[b"QUIPU.UNIQUES", b"mon"])), 3);
}

#[test]
fn hot_keys_are_told_by_both_doors_without_being_asked_to_be_watched() {
    let data = TempDir::new().expect("a temporary directory can be made");
    let program = launch(data.path(), Durability::Relaxed).start().expect("it starts");
    let mut client = connect(&program);
    for round in 0..400 {
        let (cold, batch) = (format!("cold:{round}"), 100);
        let one: Vec<u8> = [&[&b"INCR"[..], b"hot:w"], &[&b"GET"[..], b"hot:r"], &[&b"INCR"[..], cold.as_bytes()]]
            .iter()
            .flat_map(|request| quipu_protocol::resp::request(*request))
            .collect();
        client.send_encoded(&one.repeat(batch)).expect("it takes requests");
        (0..3 * batch).for_each(|_| drop(client.receive().expect("it answers")));
    }
    let report = call(&mut client, &[b"HOTKEYS", b"GET", b"COUNT", b"3"]);
    let pairs = report.pairs();
    let first = |word: &[u8]| {
        let list = pairs.iter().find(|(key, _)| key.bytes() == Some(word)).expect("it is told").1.elements();
        assert!((1..=3).contains(&list.len()), "{list:?}");
        let row = list[0].pairs();
        let (about, least, most) = (number(row[1].1), number(row[2].1), number(row[3].1));
        assert!(least < about && about < most, "{row:?}");
        (row[0].1.bytes().expect("a name").to_vec(), about)
    };
    let (writes, reads) = (first(b"writes"), first(b"reads"));
    assert_eq!((&writes.0[..], &reads.0[..]), (&b"hot:w"[..], &b"hot:r"[..]));
    // 40,000 each, of which one in 64 is sampled: five standard deviations.
    assert!((32_000..48_000).contains(&writes.1) && (32_000..48_000).contains(&reads.1), "{writes:?} {reads:?}");
    let http = program.http().expect("it serves HTTP");
    let output = std::process::Command::new("curl")
        .args(["--silent", "--show-error", &format!("http://{http}/v1/hot?count=1")])
        .output()
        .expect("curl was installed");
    let body: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((&body["writes"][0]["name"], &body["reads"][0]["name"]), (&"hot:w".into(), &"hot:r".into()), "{body}");
    assert_eq!((&body["writes_enough"], &body["note"]), (&true.into(), &serde_json::Value::Null), "{body}");

    // One sample is no certainty.
    assert_eq!(call(&mut client, &[b"HOTKEYS", b"RESET"]), Value::Simple("OK".into()));
    let report = loop {
        call(&mut client, &[b"INCR", b"rare"]);
        let report = call(&mut client, &[b"HOTKEYS", b"GET"]);
        if !entry(&report, b"writes").elements().is_empty() {
            break report;
        }
    };
    let rows = entry(&report, b"writes");
    let words: Vec<&[u8]> = rows.elements()[0].pairs().iter().filter_map(|(key, _)| key.bytes()).collect();
    assert_eq!(words, [&b"item"[..], b"about", b"at_least", b"at_most"]);
    let row = rows.elements()[0].pairs();
    assert_eq!((number(row[1].1), number(row[2].1), number(row[3].1)), (64, 3, 416), "{row:?}");
    assert_eq!(number(&entry(&report, b"writes_enough")), 0);
    let note = entry(&report, b"note");
    assert_eq!(
        note.bytes(),
        Some(&b"too little traffic to find hot writes and reads: fewer than 100 were sampled"[..])
    );
}

/// An entry of a map.
fn entry(map: &Value, word: &[u8]) -> Value {
    let pairs = map.pairs();
    let (_, value) = pairs.iter().find(|(key, _)| key.bytes() == Some(word)).expect("it is told");
    (*value).clone()
}

/// What one client did in one life: whether each was answered.
#[derive(Default)]
struct SketchLoadLog {
    observed: Vec<(String, bool)>,
    counted: Vec<(String, u64, bool)>,
}

/// Observes and counts until the program is gone.
fn load(program: &Program, rng: &SeededRng) -> SketchLoadLog {
    let (mut client, mut load_log) = (connect(program), SketchLoadLog::default());
    loop {
        let item = format!("item-{}", rng.below(60_000));
        let (hot, by) = (format!("hot-{}", rng.below(40)), 1 + rng.below(9) as u64);
        let amount = by.to_string();
        let requests: [&[&[u8]]; 4] = [
            &[b"PFADD", b"hll", item.as_bytes()],
            &[b"QUIPU.OBSERVE", b"unique", item.as_bytes()],
            &[b"CMS.INCRBY", b"cms", hot.as_bytes(), amount.as_bytes()],
            &[b"TOPK.INCRBY", b"top", hot.as_bytes(), amount.as_bytes()],
        ];
        let sent: Vec<u8> = requests.iter().flat_map(|request| quipu_protocol::resp::request(request)).collect();
        load_log.observed.push((item.clone(), false));
        load_log.counted.push((hot.clone(), by, false));
        if client.send_encoded(&sent).is_err() {
            return load_log;
        }
        for index in 0..requests.len() {
            match client.receive() {
                Ok(Value::Error(text)) => panic!("refused: {text}"),
                // The last of each pair: then both were answered.
                Ok(_) if index == 1 => load_log.observed.last_mut().expect("it was pushed").1 = true,
                Ok(_) if index == 3 => load_log.counted.last_mut().expect("it was pushed").2 = true,
                Ok(_) => {}
                Err(_) => return load_log,
            }
        }
    }
}

#[test]
fn what_was_acknowledged_is_there_after_kills_and_nothing_that_was_not_asked_for() {
    for mode in [Durability::Durable, Durability::Relaxed] {
        let data = TempDir::new().expect("a temporary directory can be made");
        let seed = getrandom::u64().expect("the system has randomness");
        let rng = SeededRng::new(seed);
        let mut launch = launch(data.path(), mode);
        launch.arguments = ["--seal-every", "100ms", "--journal-bytes-max", "1MB"].map(Into::into).to_vec();
        let mut program = launch.start().expect("it starts");
        let mut client = connect(&program);
        call(&mut client, &[b"CMS.INITBYDIM", b"cms", b"2000", b"5"]);
        call(&mut client, &[b"TOPK.RESERVE", b"top", b"10"]);
        let (mut acked, mut asked) = (Hll::new(), Hll::new());
        let mut sums: BTreeMap<String, (u64, u64)> = BTreeMap::new();
        let (mut edits, mut seen, mut observed) = (Edits::default(), 0, 0);
        for _ in 0..KILLS {
            let length = Duration::from_millis(50 + rng.below(250) as u64);
            let load_log: Vec<SketchLoadLog> = thread::scope(|scope| {
                let forks: Vec<SeededRng> = (0..CLIENTS).map(|_| rng.fork()).collect();
                let program = &program;
                let loads: Vec<_> = forks.into_iter().map(|rng| scope.spawn(move || load(program, &rng))).collect();
                thread::sleep(length);
                let pid = i32::try_from(program.pid()).ok().and_then(Pid::from_raw).expect("it runs");
                kill_process(pid, Signal::KILL).expect("it is ours");
                loads.into_iter().map(|load| load.join().expect("a client ends with its connection")).collect()
            });
            drop(program.kill9());
            for SketchLoadLog { observed, counted } in load_log {
                for (item, was_acked) in observed {
                    asked.add(item.as_bytes(), &mut edits);
                    if was_acked {
                        seen += 1;
                        acked.add(item.as_bytes(), &mut edits);
                    }
                }
                for (item, by, was_acked) in counted {
                    let (low, high) = sums.entry(item).or_default();
                    *low += if was_acked { by } else { 0 };
                    *high += by;
                }
                edits.clear();
            }
            program = launch.start().expect("it starts again");
            let mut client = connect(&program);
            observed += 1;
            let there = bytes(call(&mut client, &[b"GET", b"hll"]));
            let there = Hll::from_redis_string(&there).expect("it is whole");
            // A register that the smaller one has higher would change what the larger one comes to.
            let within =
                |small: &Hll, large: &Hll| Hll::union_estimate(&[small, large]) == Hll::union_estimate(&[large]);
            assert!(within(&acked, &there), "seed {seed}: something acknowledged is gone");
            assert!(within(&there, &asked), "seed {seed}: something is there that nobody asked for");
            let native = number(&call(&mut client, &[b"PFCOUNT", b"hll"]));
            assert!(native > 0);
            let (mut low_sum, mut high_sum) = (0, 0);
            for (item, (low, high)) in &sums {
                (low_sum, high_sum) = (low_sum + low, high_sum + high);
                let Value::Array(at_most) = call(&mut client, &[b"CMS.QUERY", b"cms", item.as_bytes()]) else {
                    panic!()
                };
                assert!(number(&at_most[0]) as u64 >= *low, "seed {seed}: an increment of {item} is gone");
            }
            let Value::Array(info) = call(&mut client, &[b"CMS.INFO", b"cms"]) else { panic!("CMS.INFO") };
            let total = number(&info[5]) as u64;
            assert!((low_sum..=high_sum).contains(&total), "seed {seed}: {low_sum} ≤ {total} ≤ {high_sum}");
            let Value::Array(rows) = call(&mut client, &[b"TOPK.LIST", b"top", b"WITHCOUNT"]) else {
                panic!("TOPK.LIST")
            };
            for row in rows.chunks(2) {
                let item = String::from_utf8(bytes(row[0].clone())).expect("it is one of ours");
                assert!(number(&row[1]) as u64 >= sums[&item].0, "seed {seed}: {item} came more often");
            }
        }
        println!(
            "proof: kinds killed {mode:?}: kills {observed}, acknowledged observations {seen}, increments {} of {} items, violations 0",
            sums.values().map(|(low, _)| low).sum::<u64>(),
            sums.len()
        );
        drop(program.kill9());
    }
}

/// Milliseconds since 1970, by the program's clock.
fn wall(client: &mut RespConnection) -> u64 {
    let time = call(client, &[b"TIME"]);
    let part = |index: usize| {
        let text = bytes(time.elements()[index].clone());
        String::from_utf8(text).expect("digits").parse::<u64>().expect("a number")
    };
    part(0) * 1_000 + part(1) / 1_000
}

fn field(reply: &Value, key: &str) -> i64 {
    let pairs = reply.pairs();
    let found = pairs.iter().find(|(known, _)| known.bytes() == Some(key.as_bytes()));
    number(found.unwrap_or_else(|| panic!("no {key} in {reply:?}")).1)
}

/// A load on windows: events of the last half hour, each in the pane of its time. Returns the
/// amount of each step, and whether it was acknowledged.
fn load_windows(program: &Program, rng: &SeededRng) -> Vec<(u64, bool)> {
    let (mut client, mut load_log) = (connect(program), Vec::new());
    let began = wall(&mut client);
    loop {
        let (item, by) = (format!("item-{}", rng.below(300)), 1 + rng.below(9) as u64);
        let (at, amount) = ((began - rng.below(30 * 60_000) as u64).to_string(), by.to_string());
        let requests: [&[&[u8]]; 3] = [
            &[b"QUIPU.OBSERVE.AT", b"recent:u", at.as_bytes(), item.as_bytes()],
            &[b"QUIPU.FREQ.ADD.AT", b"recent:f", at.as_bytes(), item.as_bytes(), amount.as_bytes()],
            &[b"QUIPU.TOP.ADD.AT", b"recent:t", at.as_bytes(), item.as_bytes(), amount.as_bytes()],
        ];
        let sent: Vec<u8> = requests.iter().flat_map(|request| quipu_protocol::resp::request(request)).collect();
        load_log.push((by, false));
        if client.send_encoded(&sent).is_err() {
            return load_log;
        }
        for index in 0..requests.len() {
            match client.receive() {
                Ok(Value::Error(text)) => panic!("refused: {text}"),
                Ok(_) if index == 2 => load_log.last_mut().expect("it was pushed").1 = true,
                Ok(_) => {}
                Err(_) => return load_log,
            }
        }
    }
}

#[test]
fn windows_are_said_in_the_file_and_outlive_kills_pane_by_pane() {
    let data = TempDir::new().expect("a temporary directory can be made");
    let file = data.path().join("quipu.toml");
    let text = "[namespace.recent]\nwindow = \"1h/60\"\n[namespace.trend]\nkind = \"top\"\ndecay = \"1h\"\n";
    std::fs::write(&file, text).expect("the file can be written");
    let rng = SeededRng::new(getrandom::u64().expect("the system has randomness"));
    let mut launch = launch(&data.path().join("data"), Durability::Relaxed);
    launch.arguments = ["--seal-every", "100ms", "--journal-bytes-max", "4MB", "--config"].map(Into::into).to_vec();
    launch.arguments.push(file.into());
    let mut program = launch.start().expect("it starts");
    let mut client = connect(&program);
    // By the time of the event: in its pane, or too late.
    let now = wall(&mut client);
    let ago = |minutes: u64| (now - minutes * 60_000).to_string();
    for (minutes, item) in [(0, "ann"), (20, "bob"), (20, "ann"), (58, "cid"), (61, "dan"), (600, "eve")] {
        call(&mut client, &[b"QUIPU.OBSERVE.AT", b"recent:v", ago(minutes).as_bytes(), item.as_bytes()]);
    }
    let reading = call(&mut client, &[b"QUIPU.READ", b"recent:v"]);
    assert_eq!((field(&reading, "value"), field(&reading, "exact"), field(&reading, "window_late")), (3, 0, 2));
    assert_eq!(field(&reading, "window_panes"), 3);
    let length = field(&reading, "window_to") - field(&reading, "window_from");
    assert!((59 * 60_000..=60 * 60_000).contains(&length), "{length}");
    assert_eq!(number(&call(&mut client, &[b"PFADD", b"recent:h", b"x"])), 1);
    assert_eq!(number(&call(&mut client, &[b"PFCOUNT", b"recent:h"])), 1);
    // Half as much for every hour.
    call(&mut client, &[b"QUIPU.TOP.ADD.AT", b"trend:t", ago(120).as_bytes(), b"old", b"1000"]);
    call(&mut client, &[b"QUIPU.TOP.ADD", b"trend:t", b"new", b"300"]);
    let Value::Array(rows) = call(&mut client, &[b"QUIPU.TOP.LIST", b"trend:t"]) else { panic!("a list") };
    let first = rows[0].pairs();
    assert_eq!(first[0].1.bytes(), Some(&b"new"[..]), "{rows:?}");
    let old = field(&rows[1], "at_most");
    assert!((248..=251).contains(&old), "{old}");
    let wrong = call(&mut client, &[b"QUIPU.OBSERVE.AT", b"recent:v", b"soon", b"x"]);
    assert!(matches!(wrong, Value::Error(_)));

    let (mut low, mut high) = (0u64, 0u64);
    for _ in 0..5 {
        let length = Duration::from_millis(50 + rng.below(250) as u64);
        let load_log: Vec<Vec<(u64, bool)>> = thread::scope(|scope| {
            let forks: Vec<SeededRng> = (0..CLIENTS).map(|_| rng.fork()).collect();
            let program = &program;
            let loads: Vec<_> = forks.into_iter().map(|rng| scope.spawn(move || load_windows(program, &rng))).collect();
            thread::sleep(length);
            let pid = i32::try_from(program.pid()).ok().and_then(Pid::from_raw).expect("it runs");
            kill_process(pid, Signal::KILL).expect("it is ours");
            loads.into_iter().map(|load| load.join().expect("a client ends with its connection")).collect()
        });
        drop(program.kill9());
        for (by, was_acked) in load_log.into_iter().flatten() {
            low += if was_acked { by } else { 0 };
            high += by;
        }
        program = launch.start().expect("it starts again");
        let mut client = connect(&program);
        for name in ["recent:f", "recent:t"] {
            let reading = call(&mut client, &[b"QUIPU.READ", name.as_bytes()]);
            let total = field(&reading, "value") as u64;
            assert!((low..=high).contains(&total), "{name}: {low} ≤ {total} ≤ {high}");
            assert_eq!(field(&reading, "window_late"), 0);
        }
        let uniques = field(&call(&mut client, &[b"QUIPU.READ", b"recent:u"]), "value");
        assert!((0..=310).contains(&uniques), "{uniques}");
        assert_eq!(field(&call(&mut client, &[b"QUIPU.READ", b"recent:v"]), "window_late"), 2);
    }
    println!("proof: windows killed: kills 5, acknowledged {low}, asked for {high}, violations 0");
    drop(program.kill9());
}

/// Damages a string a little.
fn damaged(string: &[u8], rng: &SeededRng) -> Vec<u8> {
    let mut bytes = string.to_vec();
    for _ in 0..1 + rng.below(3) {
        let at = rng.below(bytes.len().max(1));
        let at = if rng.chance(50) { at % 24 } else { at };
        match rng.below(6) {
            0 | 1 if at < bytes.len() => bytes[at] ^= 1 << rng.below(8),
            2 if at < bytes.len() => bytes[at] = rng.below(256) as u8,
            3 => bytes.truncate(at),
            4 => bytes.extend((0..1 + rng.below(30)).map(|_| rng.below(256) as u8)),
            _ => {
                let end = bytes.len().min(at + rng.below(60));
                bytes[at.min(end)..end].fill(*rng.pick(&[0, 0xff]));
            }
        }
    }
    bytes
}

#[test]
fn damaged_hyperloglogs_are_refused_in_the_words_of_redis_and_what_is_taken_redis_takes_too() {
    const INPUTS: usize = 4_000;
    let data = TempDir::new().expect("a temporary directory can be made");
    let program = launch(data.path(), Durability::Memory).start().expect("it starts");
    let redis = RedisServer::start().expect("redis-server was installed and starts");
    let (mut ours, mut theirs) = (connect(&program), redis.connect().expect("it accepts"));
    let strings: Vec<Vec<u8>> = [0, 1, 40, 700, 1_500, 2_500, 30_000]
        .into_iter()
        .map(|size| {
            call(&mut ours, &[b"DEL", b"real"]);
            call(&mut ours, &[b"PFADD", b"real"]);
            observe(&mut ours, "real", 0, size);
            // Half of them know their count.
            (size % 100 == 0).then(|| call(&mut ours, &[b"PFCOUNT", b"real"]));
            bytes(call(&mut ours, &[b"GET", b"real"]))
        })
        .collect();
    let rng = SeededRng::new(20_261_117);
    let (mut taken, mut refused) = (0, 0);
    for input in 0..INPUTS {
        let string = damaged(&strings[rng.below(strings.len())], &rng);
        let context = || format!("input {input}: {}", string[..string.len().min(100)].escape_ascii());
        match call(&mut ours, &[b"SET", b"damaged", &string]) {
            Value::Simple(_) => {
                taken += 1;
                call(&mut theirs, &[b"SET", b"damaged", &string]);
                for client in [&mut ours, &mut theirs] {
                    let counted = call(client, &[b"PFCOUNT", b"damaged"]);
                    assert!(matches!(counted, Value::Integer(_)), "{}: {counted:?}", context());
                    let merged = call(client, &[b"PFMERGE", b"into", b"damaged", b"real"]);
                    assert_eq!(merged, Value::Simple("OK".into()), "{}", context());
                    call(client, &[b"PFADD", b"damaged", b"one more"]);
                    call(client, &[b"DEL", b"into"]);
                }
            }
            Value::Error(text) => {
                refused += 1;
                let known = ["INVALIDOBJ Corrupted HLL object detected", "ERR value is not an integer or out of range"];
                assert!(known.contains(&text.as_str()), "{}: {text}", context());
                // What was there is as it was.
                let there = call(&mut ours, &[b"PFCOUNT", b"damaged"]);
                assert!(matches!(there, Value::Integer(_)), "{}: {there:?}", context());
            }
            other => panic!("{}: {other:?}", context()),
        }
    }
    assert!(taken > INPUTS / 20 && refused > INPUTS / 20, "{taken} taken, {refused} refused");
    println!("proof: damaged hyperloglogs: {INPUTS} strings, {taken} taken by us and by Redis, {refused} refused");
    drop(program.kill9());
}
