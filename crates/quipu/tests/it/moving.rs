//! Counters moved in and out of real stores: imported, killed in the middle, imported again,
//! copied, exported.
//!
//! The judge of an import: every counter has its source's value, plus the adds of other writers,
//! less the amounts taken.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use quipu_model::Durability;
use quipu_protocol::resp::RespConnection;
use quipu_testkit::program::Program;
use quipu_testkit::servers::postgres::PostgresServer;
use quipu_testkit::servers::redis::{RedisCluster, RedisServer};
use serde_json::Value as Json;
use tempfile::TempDir;

use crate::life::{connect, launch, now};

/// Counters of the large imports: many batches, so that one can be killed between them.
const COUNTERS: i64 = 20_000;

/// How long something may take that takes a moment.
const PATIENCE: Duration = Duration::from_secs(60);

pub type Values = BTreeMap<String, i128>;

/// Runs a command without the variables of whoever runs the test.
pub fn quipu(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_quipu")).env_clear().args(arguments).output().expect("the program runs")
}

/// What a command prints when it succeeds.
pub fn run_and_print(arguments: &[&str]) -> String {
    let output = quipu(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub fn parsed(text: &str) -> Json {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// The counts of a store, by its export; sketches have no value there.
pub fn values(store: &str) -> Values {
    let lines = run_and_print(&["export", "--store", store]);
    let counters =
        lines.lines().map(parsed).filter(|line| !line["value"].is_null()).map(|line| {
            (line["name"].as_str().expect("names of these tests are text").to_owned(), number(&line["value"]))
        });
    counters.collect()
}

pub fn number(value: &Json) -> i128 {
    // Beyond 2^53 it is a string.
    value.as_str().map_or_else(|| value.to_string(), str::to_owned).parse().expect("a number")
}

/// A Redis that is the application's own.
pub fn redis() -> RedisServer {
    RedisServer::start().expect("redis-server starts")
}

pub fn postgres() -> PostgresServer {
    PostgresServer::start().expect("PostgreSQL starts")
}

/// Sets counters as an application would.
pub fn set(server: &RedisServer, values: &Values) {
    let mut client = server.connect().expect("it accepts");
    let requests: Vec<Vec<String>> =
        values.iter().map(|(name, value)| vec!["SET".to_owned(), name.clone(), value.to_string()]).collect();
    for some in requests.chunks(1_000) {
        client.send(some).expect("it is sent");
        for _ in some {
            assert_eq!(client.receive().expect("it answers").error(), None);
        }
    }
}

fn many() -> Values {
    (0..COUNTERS).map(|n| (format!("likes:{n}"), i128::from(n * 7 - 1_000))).collect()
}

/// A node that counts in a store.
fn node(store: &str) -> (TempDir, Program) {
    let data = TempDir::new().expect("a temporary directory can be made");
    let mut launch = launch(&data.path().join("data"), Durability::Durable);
    let words = ["--store", store, "--settle-every", "50ms", "--freshness", "50ms", "--lease", "2s"];
    launch.arguments = words.map(Into::into).to_vec();
    let program = launch.start().expect("it starts");
    (data, program)
}

/// Waits until something is so.
pub fn eventually<T: std::fmt::Debug>(what: &str, probe: impl FnMut() -> T, good: impl Fn(&T) -> bool) -> T {
    let (began, mut probe) = (now(), probe);
    loop {
        let latest = probe();
        if good(&latest) {
            return latest;
        }
        assert!(began.elapsed() < PATIENCE, "{what}: {latest:?}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Imports, is killed in the middle, and imports again; then the source changes, followed by
/// another import.
///
/// `rows` counts the counters of the target. `stop` suspends the target, and resumes it.
fn import_killed_and_repeated(source: &RedisServer, target: &str, rows: impl Fn() -> i64, stop: impl Fn(bool)) {
    let mut expected = many();
    set(source, &expected);
    set(source, &[("views:1".to_owned(), 5)].into());
    let from = source.url();
    let import = ["import", &from, "--match", "likes:*", "--store", target];

    let mut running = Command::new(env!("CARGO_BIN_EXE_quipu"));
    running.env_clear().args(import).stdout(Stdio::null()).stderr(Stdio::null());
    let mut running = running.spawn().expect("the program runs");
    eventually("nothing was put", &rows, |&rows| rows > 0);
    stop(true);
    running.kill().expect("it is killed");
    let ended = running.wait().expect("it ends");
    stop(false);
    assert!(!ended.success(), "it was through before it could be killed");
    let left = eventually("it is not known how far it came", &rows, |&rows| rows > 0);
    assert!(left < COUNTERS, "it was killed in the middle, and {left} counters are in");

    run_and_print(&import);
    assert_eq!(values(target), expected, "once it is through, it is exact");

    for (n, value) in expected.values_mut().enumerate() {
        match n % 3 {
            0 => *value += 11,
            1 => *value -= 5,
            _ => {}
        }
    }
    expected.insert("likes:new".to_owned(), 1);
    set(source, &expected);
    let report = parsed(&run_and_print(&[&import[..], &["--json"]].concat()));
    assert_eq!(report["again"], true);
    assert_eq!(number(&report["counters"]), expected.len() as i128);
    assert_eq!(values(target), expected, "repeated, it is what the source has now");
    run_and_print(&import);
    assert_eq!(values(target), expected, "and again");
    println!(
        "proof: import of {COUNTERS} counters into {}, killed with {left} in, run again and repeated: exact",
        scheme(target)
    );
}

fn scheme(url: &str) -> &str {
    url.split(':').next().unwrap_or_default()
}

#[test]
fn an_import_into_redis_that_is_killed_and_repeated_is_exact() {
    let (source, target) = (redis(), redis());
    let rows = || target.call(&["DBSIZE"]).ok().and_then(|size| size.number()).unwrap_or(0) - 1;
    let stop = |stop| if stop { target.stop().expect("it stops") } else { target.resume().expect("it goes on") };
    import_killed_and_repeated(&source, &target.url(), rows, stop);
}

#[test]
fn an_import_into_postgres_that_is_killed_and_repeated_is_exact() {
    let (source, target) = (redis(), postgres());
    let rows =
        || target.query("SELECT count(*) FROM quipu_counters").ok().and_then(|rows| rows.parse().ok()).unwrap_or(0);
    let stop = |stop| if stop { target.stop().expect("it stops") } else { target.resume().expect("it goes on") };
    import_killed_and_repeated(&source, &target.url(), rows, stop);
}

#[test]
fn what_nodes_count_and_take_beside_an_import_is_counted_once() {
    let (source, target) = (redis(), redis());
    let (from, to) = (source.url(), target.url());
    set(&source, &[("likes:1".to_owned(), 100), ("likes:2".to_owned(), 200), ("likes:3".to_owned(), 300)].into());
    run_and_print(&["import", &from, "--store", &to]);
    let (_data, node) = node(&to);
    let mut client = connect(&node);
    let shown = |client: &mut RespConnection, name: &str| client.call(&["GET", name]).expect("it answers").number();
    assert_eq!(shown(&mut client, "likes:1"), Some(100), "a node shows what was imported");
    client.call(&["INCRBY", "likes:1", "7"]).expect("it answers");
    // Taken: what the import says of it from now on is what came after.
    assert_eq!(client.call(&["GETSET", "likes:2", "0"]).expect("it answers").number(), Some(200));
    assert_eq!(client.call(&["DEL", "likes:3"]).expect("it answers").number(), Some(1));
    eventually("the node settles", || values(&to), |values| values.get("likes:1") == Some(&107));

    set(&source, &[("likes:1".to_owned(), 110), ("likes:2".to_owned(), 230)].into());
    run_and_print(&["import", &from, "--store", &to]);
    let expected: Values = [("likes:1".to_owned(), 117), ("likes:2".to_owned(), 30)].into();
    assert_eq!(values(&to), expected, "of what was taken, nothing comes back");
    assert_eq!(client.call(&["GETSET", "likes:2", "1000"]).expect("it answers").number(), Some(30));
    set(&source, &[("likes:2".to_owned(), 231), ("likes:3".to_owned(), 301)].into());
    run_and_print(&["import", &from, "--store", &to]);
    let expected: Values =
        [("likes:1".to_owned(), 117), ("likes:2".to_owned(), 1_001), ("likes:3".to_owned(), 1)].into();
    assert_eq!(values(&to), expected, "through any number of epochs");
    eventually("the node sees it", || shown(&mut client, "likes:2"), |value| *value == Some(1_001));
    assert!(node.terminate().expect("it ends").0.success());
}

#[test]
fn an_import_that_is_done_is_closed_by_a_node_and_never_begun_anew() {
    let (source, target) = (redis(), redis());
    let (from, to) = (source.url(), target.url());
    set(&source, &[("likes:1".to_owned(), 100)].into());
    run_and_print(&["import", &from, "--store", &to, "--done"]);
    let (_data, node) = node(&to);
    let stages = || {
        let writers = parsed(&run_and_print(&["writers", "--store", &to, "--json"]));
        let stage = |who: &str| {
            let found = writers["writers"].as_array().expect("a list").iter().find(|writer| writer["who"] == who);
            found.map_or_else(String::new, |found| found["stage"].as_str().unwrap_or_default().to_owned())
        };
        (stage("an import"), stage("the mark of an import that is done"))
    };
    eventually("a node closes it", stages, |(import, mark)| import == "closed" && mark == "live");
    let cell = &parsed(&run_and_print(&["shards", "likes:1", "--store", &to, "--json"]))["cells"][0];
    assert_eq!(cell["state"], "closed");
    set(&source, &[("likes:1".to_owned(), 150)].into());
    let again = quipu(&["import", &from, "--store", &to]);
    assert!(!again.status.success());
    assert!(text(&again.stderr).contains("is done"), "{}", text(&again.stderr));
    assert_eq!(values(&to), [("likes:1".to_owned(), 100)].into());
    assert!(node.terminate().expect("it ends").0.success());
}

#[test]
fn an_import_from_postgres_takes_names_and_values_of_any_type_and_lists_what_counts_nothing() {
    let (source, target) = (postgres(), redis());
    source
        .query(
            "CREATE TABLE posts (id int, likes bigint, score numeric, raw bytea);
             INSERT INTO posts SELECT n, n * 3, n * 2, convert_to('raw:' || n, 'UTF8') FROM generate_series(1, 10000) n;
             INSERT INTO posts VALUES (10001, NULL, 1.5, NULL), (10001, 7, 7, 'raw:1')",
        )
        .expect("it is made");
    let (from, to) = (source.url(), target.url());
    let import = |query: &str, more: &[&str]| {
        quipu(&[&["import", &from, "--query", query, "--store", &to, "--json"], more].concat())
    };

    let output = import("select 'likes:' || id, likes from posts where id <= 10000; ", &[]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(number(&parsed(&text(&output.stdout))["counters"]), 10_000);
    let output = import("select raw, score from posts -- all of them", &["--strict"]);
    assert!(!output.status.success(), "something was skipped");
    let report = parsed(&text(&output.stdout));
    assert_eq!((number(&report["counters"]), report["skipped"].as_array().map(Vec::len)), (10_000, Some(2)));
    let message = text(&output.stderr);
    assert!(message.contains("raw:1: it is named twice") && message.contains("no name"), "{message}");
    let expected: Values = (1..=10_000)
        .flat_map(|n| [(format!("likes:{n}"), i128::from(n * 3)), (format!("raw:{n}"), i128::from(n * 2))])
        .collect();
    assert_eq!(values(&to), expected);

    for (query, why) in [("select 1", "columns"), ("delete from posts returning id, id", "syntax"), ("select x", "x")] {
        let output = import(query, &[]);
        assert!(!output.status.success() && text(&output.stderr).contains(why), "{}", text(&output.stderr));
    }
}

#[test]
fn what_is_no_integer_in_redis_is_listed_and_skipped() {
    let (source, target) = (redis(), redis());
    set(&source, &[("likes:1".to_owned(), 5)].into());
    for (name, value) in [("likes:x", "many"), ("likes:y", "1.5"), ("likes:z", "9223372036854775808")] {
        source.call(&["SET", name, value]).expect("it is set");
    }
    source.call(&["HSET", "likes:hash", "a", "1"]).expect("it is set");
    let (from, to) = (source.url(), target.url());
    let output = quipu(&["import", &from, "--store", &to]);
    assert!(output.status.success());
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(out.contains("skipped   4") && err.contains("likes:x: not an integer of 64 bits: \"many\""), "{out}{err}");
    assert!(err.contains("skipped 3: not an integer of 64 bits") && err.contains("likes:hash: a hash"), "{err}");
    assert!(!quipu(&["import", &from, "--store", &to, "--strict"]).status.success());
    assert_eq!(values(&to), [("likes:1".to_owned(), 5)].into());
}

#[test]
fn masters_of_a_cluster_and_a_server_of_ours_are_sources_too() {
    let (cluster, target) = (RedisCluster::start().expect("redis-server starts"), redis());
    let store = target.url();
    let mut expected = Values::new();
    for (at, master) in cluster.servers[..3].iter().enumerate() {
        for n in 0..300 {
            let name = format!("likes:{at}:{n}");
            // Only what is in its slots is taken.
            if master.call(&["SET", &name, "9"]).is_ok() {
                expected.insert(name, 9);
            }
        }
    }
    for master in &cluster.servers[..3] {
        run_and_print(&["import", &master.url(), "--store", &store, "--as", "cluster"]);
    }
    assert_eq!(values(&store), expected);

    let data = TempDir::new().expect("a temporary directory can be made");
    let server = launch(&data.path().join("data"), Durability::Durable).start().expect("it starts");
    connect(&server).call(&["INCRBY", "views:1", "42"]).expect("it answers");
    expected.insert("views:1".to_owned(), 42);
    for _ in 0..2 {
        run_and_print(&["import", &format!("redis://{}", server.address()), "--store", &store]);
        assert_eq!(values(&store), expected);
    }
    assert!(server.terminate().expect("it ends").0.success());
}

#[test]
fn a_copy_is_compared_counter_by_counter_and_differences_are_found() {
    let (source, from, to) = (redis(), redis(), postgres());
    let (store, other) = (from.url(), to.url());
    let expected = many();
    set(&source, &expected);
    run_and_print(&["import", &source.url(), "--store", &store]);
    let (_data, node) = node(&store);
    let mut client = connect(&node);
    for request in [["INCRBY", "likes:1", "5"], ["SET", "likes:2", "77"], ["PEXPIREAT", "likes:3", "4102444800000"]] {
        assert_eq!(client.call(&request).expect("it answers").error(), None);
    }
    assert_eq!(client.call(&["DEL", "likes:4"]).expect("it answers").number(), Some(1));
    eventually("the node settles", || values(&store), |values| values["likes:1"] == -988);
    assert!(node.terminate().expect("it ends").0.success());

    let copy = ["copy", "--from", &store, "--to", &other];
    let report = parsed(&run_and_print(&[&copy[..], &["--json"]].concat()));
    assert_eq!(number(&report["compared"]), i128::from(COUNTERS - 1));
    assert_eq!(report["differences"], Json::Array(Vec::new()));
    let copied = values(&other);
    assert_eq!(copied, values(&store));
    assert_eq!((copied["likes:1"], copied["likes:2"], copied.get("likes:4")), (-988, 77, None));
    let third = parsed(&run_and_print(&["export", "--store", &other, "--match", "likes:3"]));
    assert_eq!(number(&third["expires_at"]), 4_102_444_800_000, "{third}");

    let plant = |name: &str| {
        let cell = format!("(SELECT id FROM quipu_counters WHERE name = '{name}')");
        to.query(&format!("UPDATE quipu_cells SET value = value + 1, seq = seq - 1 WHERE counter = {cell}"))
            .expect("it is planted");
    };
    plant("likes:9");
    to.query("DELETE FROM quipu_cells WHERE counter = (SELECT id FROM quipu_counters WHERE name = 'likes:8')")
        .expect("it is gone");
    // And one that only the copy has.
    to.query("UPDATE quipu_counters SET name = 'likes:other' WHERE name = 'likes:10'").expect("it is planted");
    let found = quipu(&[&copy[..], &["--verify-only"]].concat());
    let out = text(&found.stdout);
    assert!(!found.status.success() && out.contains("4 differ"), "{out}");
    assert!(out.lines().any(|line| line.split_whitespace().eq(["likes:9", "-937", "-936"])), "{out}");
    assert!(out.lines().any(|line| line.split_whitespace().eq(["likes:8", "-944", "-"])), "{out}");
    assert!(out.lines().any(|line| line.split_whitespace().eq(["likes:10", "-930", "-"])), "{out}");
    assert!(out.lines().any(|line| line.split_whitespace().eq(["likes:other", "-", "-930"])), "{out}");
    to.query("DELETE FROM quipu_cells WHERE counter = (SELECT id FROM quipu_counters WHERE name = 'likes:other')")
        .expect("it is gone");
    let again = run_and_print(&copy);
    assert!(again.contains("same value in both"), "copied again, it is put right: {again}");
    assert!(quipu(&["audit", "--store", &other]).status.success());

    let same = quipu(&["copy", "--from", &store, "--to", &store.replace("redis://", "redis://me:secret@")]);
    let err = text(&same.stderr);
    assert!(!same.status.success() && err.contains("same store") && !err.contains("secret"), "{err}");
}

#[test]
fn a_server_is_exported_with_names_of_any_bytes() {
    let data = TempDir::new().expect("a temporary directory can be made");
    let server = launch(&data.path().join("data"), Durability::Durable).start().expect("it starts");
    let mut client = connect(&server);
    for n in 0..2_500 {
        client.call(&["INCRBY", &format!("views:{n}"), &n.to_string()]).expect("it answers");
    }
    client.call(&["INCRBY", "a \"b\",\nc", "-3"]).expect("it answers");
    client.call(&["PEXPIREAT", "views:7", "4102444800000"]).expect("it answers");
    let mut raw = TcpStream::connect(server.address()).expect("it accepts");
    raw.write_all(b"*2\r\n$4\r\nINCR\r\n$2\r\n\xff\x01\r\n").expect("it is sent");
    assert_eq!(raw.read(&mut [0; 64]).expect("it answers"), 4);

    let address = server.address().to_string();
    let lines: Vec<Json> = run_and_print(&["export", "--from", &address]).lines().map(parsed).collect();
    assert_eq!(lines.len(), 2_502);
    let value = |key: &str, name: &str| lines.iter().find(|line| line[key] == name).map(|line| number(&line["value"]));
    assert_eq!(
        (value("name", "views:2499"), value("name", "a \"b\",\nc"), value("name_base64", "/wE=")),
        (Some(2_499), Some(-3), Some(1))
    );

    let file = data.path().join("views.csv");
    let path = file.to_str().expect("it is text");
    let out = run_and_print(&["export", "--from", &address, "--match", "views:7", "--format", "csv", "--out", path]);
    assert_eq!(out, "1 counters\n");
    let written = std::fs::read_to_string(&file).expect("it is there");
    assert_eq!(
        written,
        "name,name_base64,value,expires_at,kind,form,key,body_base64\nviews:7,,7,4102444800000,count,,,\n"
    );
    assert!(!quipu(&["export"]).status.success(), "of what?");
    assert!(server.terminate().expect("it ends").0.success());
}
