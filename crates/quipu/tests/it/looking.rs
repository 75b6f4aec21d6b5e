//! Inspection of real stores: the writers, the cells of a counter, and the audit of all rows.

use std::path::Path;
use std::thread;
use std::time::Duration;

use quipu_model::Durability;
use quipu_protocol::resp::Value;
use quipu_testkit::program::{Launch, Program};
use quipu_testkit::servers::postgres::PostgresServer;
use quipu_testkit::servers::redis::RedisServer;

use crate::life::{connect, launch, now};
use crate::moving::{number, parsed, postgres, quipu, redis, run_and_print, set, text};

/// A store into which two imports have counted the same counter.
fn counted(url: &str) -> [String; 2] {
    let writers = [("first", 5), ("second", 8)].map(|(name, value)| {
        let source = redis();
        set(&source, &[("likes:1".to_owned(), value), (format!("only:{name}"), 1)].into());
        let report = run_and_print(&["import", &source.url(), "--store", url, "--as", name, "--json"]);
        parsed(&report)["writer"].as_str().expect("a writer").to_owned()
    });
    assert_ne!(writers[0], writers[1]);
    writers
}

fn looks_as_it_should(url: &str) -> [String; 2] {
    let writers = counted(url);
    let row = parsed(&run_and_print(&["shards", "likes:1", "--store", url, "--json"]));
    assert_eq!((number(&row["sum"]), row["base"].is_null(), row["epoch"].as_str()), (13, true, Some("first")));
    for (writer, value) in writers.iter().zip([5, 8]) {
        let cells = row["cells"].as_array().expect("a list");
        let cell = cells.iter().find(|cell| cell["writer"] == writer.as_str()).expect("its cell is there");
        assert_eq!((number(&cell["value"]), cell["state"].as_str(), number(&cell["shard"])), (value, Some("open"), 0));
    }
    let table = run_and_print(&["shards", "likes:1", "--store", url]);
    assert!(table.contains("sum      13") && writers.iter().all(|writer| table.contains(writer.as_str())), "{table}");
    let none = quipu(&["shards", "likes:none", "--store", url]);
    assert!(!none.status.success() && text(&none.stdout).contains("no such counter"));

    let table = run_and_print(&["writers", "--store", url]);
    for writer in &writers {
        let line = table.lines().find(|line| line.contains(writer.as_str())).unwrap_or_default();
        assert!(line.contains("an import") && line.contains("live") && line.contains("without end"), "{table}");
    }
    let clean = parsed(&run_and_print(&["audit", "--store", url, "--json"]));
    assert_eq!((clean["clean"].as_bool(), number(&clean["counters"]), number(&clean["sum"])), (Some(true), 3, 15));
    assert!(run_and_print(&["audit", "--store", url]).contains("clean"));

    let refused = quipu(&["writers", "retire", &writers[0], "--store", url]);
    assert!(!refused.status.success() && text(&refused.stderr).contains("--force"), "{}", text(&refused.stderr));
    assert!(run_and_print(&["writers", "retire", &writers[0], "--store", url, "--force"]).contains("is retiring"));
    assert!(run_and_print(&["writers", "retire", &writers[0], "--store", url]).contains("already retiring"));
    let table = run_and_print(&["writers", "--store", url]);
    assert!(table.lines().any(|line| line.contains(&writers[0]) && line.contains("retiring")), "{table}");
    assert!(table.contains("the mark of an import"), "{table}");
    let unknown = quipu(&["writers", "retire", "0000000000000001.0000000000000001", "--store", url]);
    assert!(!unknown.status.success() && text(&unknown.stderr).contains("has no writer"));
    writers
}

fn drifts(url: &str) -> String {
    let found = quipu(&["audit", "--store", url]);
    assert!(!found.status.success(), "it is found");
    text(&found.stdout)
}

#[test]
fn writers_shards_and_drift_of_a_redis_store_are_shown() {
    let store: RedisServer = redis();
    let url = store.url();
    let [_, second] = looks_as_it_should(&url);
    store.call(&["HDEL", "quipu:writers", &second]).expect("it is planted");
    store.call(&["HSET", "quipu:c:only:first", "epoch", "nonsense"]).expect("it is planted");
    let out = drifts(&url);
    assert!(out.contains("which is not registered") && out.contains(&second), "{out}");
    assert!(out.lines().any(|line| line.starts_with("only:first") && line.contains("cannot be read")), "{out}");
    assert!(out.contains("3 drifts"), "{out}");
}

#[test]
fn writers_shards_and_drift_of_a_postgres_store_are_shown() {
    let store: PostgresServer = postgres();
    let url = store.url();
    let [_, second] = looks_as_it_should(&url);
    let bits = second.replace('.', "");
    store.query(&format!("DELETE FROM quipu_writers WHERE writer = '{bits}'::uuid")).expect("it is planted");
    store.query("UPDATE quipu_cells SET value = 1e30 WHERE value = 8").expect("it is planted");
    let out = drifts(&url);
    assert!(out.contains("which is not registered") && out.contains(&second), "{out}");
    assert!(out.contains("fits no reply"), "{out}");
    assert!(out.contains("3 drifts"), "{out}");
}

#[test]
fn a_store_that_is_not_there_is_told_without_its_password() {
    for url in ["redis://me:s3cret@127.0.0.1:1", "postgres://me:s3cret@127.0.0.1:1/x"] {
        for command in [&["audit"][..], &["writers"], &["shards", "x"], &["export"]] {
            let output = quipu(&[command, &["--store", url]].concat());
            let err = text(&output.stderr);
            assert!(!output.status.success() && !err.contains("s3cret") && !err.is_empty(), "{err}");
            if command != ["export"] {
                assert!(err.contains("***@127.0.0.1:1"), "{err}");
            }
        }
    }
}

fn names_are_shown(url: &str) {
    let root = tempfile::TempDir::new().expect("a temporary directory can be made");
    let nodes = [&["--node-name", "web 1"][..], &[]].map(|named| {
        let mut launch = launch(&root.path().join(named.len().to_string()), Durability::Durable);
        launch.arguments = [&["--store", url][..], named].concat().into_iter().map(Into::into).collect();
        launch.start().expect("it starts")
    });
    let hosted = format!(":{}", nodes[1].address().port());
    for node in &nodes {
        connect(node).call(&["INCR", "likes:named"]).expect("it answers");
        connect(node).call(&["PFADD", "visitors:1", "a", "b", "c"]).expect("it answers");
    }
    let is_named = |writers: &serde_json::Value| {
        let names: Vec<&str> = writers.as_array().expect("a list").iter().filter_map(|w| w["name"].as_str()).collect();
        names.contains(&"web 1") && names.iter().any(|name| name.ends_with(&hosted))
    };
    wait_for(url, &["writers"], |shown| is_named(&shown["writers"]));
    wait_for(url, &["shards", "likes:named"], |shown| is_named(&shown["cells"]) && number(&shown["sum"]) == 2);
    let sketch = wait_for(url, &["shards", "visitors:1"], |shown| is_named(&shown["cells"]));
    assert_eq!((sketch["kind"].as_str(), sketch["sum"].is_null()), (Some("unique (PFADD)"), true), "{sketch}");
    for cell in sketch["cells"].as_array().expect("a list") {
        assert!(number(&cell["version"]) > 0 && number(&cell["bytes"]) > 0 && cell["value"].is_null(), "{cell}");
    }
    for command in [&["writers"][..], &["shards", "likes:named"], &["shards", "visitors:1"]] {
        let table = run_and_print(&[command, &["--store", url]].concat());
        assert!(table.contains("web 1") && table.contains(&hosted), "{table}");
    }
    assert!(!run_and_print(&["shards", "visitors:1", "--store", url]).contains("sum"), "a sketch has no sum");
}

/// What a command prints as JSON, once it is as it should be.
fn wait_for(url: &str, command: &[&str], wanted: impl Fn(&serde_json::Value) -> bool) -> serde_json::Value {
    let began = now();
    loop {
        let output = quipu(&[command, &["--store", url, "--json"]].concat());
        let shown = parsed(&text(&output.stdout));
        if wanted(&shown) {
            return shown;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "{command:?} still prints {shown}");
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn nodes_of_a_redis_store_are_shown_by_their_names() {
    names_are_shown(&redis().url());
}

#[test]
fn nodes_of_a_postgres_store_are_shown_by_their_names() {
    names_are_shown(&postgres().url());
}

/// A node that is retired, folded and forgotten within seconds of its end.
fn short_lived(data: &Path, url: &str) -> Launch {
    let mut launch = launch(data, Durability::Durable);
    let times = "--settle-every 100ms --freshness 100ms --lease 1s --retire-after 1s --audit-every 1s --grace 6s";
    launch.arguments = ["--store", url].into_iter().chain(times.split(' ')).map(Into::into).collect();
    launch
}

/// Asks a node until it answers like this.
fn answers(program: &Program, request: &[&str], wanted: impl Fn(&Value) -> bool) -> Value {
    let (mut client, began) = (connect(program), now());
    loop {
        let answer = client.call(request).expect("it answers");
        if wanted(&answer) {
            return answer;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "{request:?} is still answered with {answer:?}");
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_node_that_its_store_has_forgotten_goes_on_once_it_was_said_what_becomes_of_its_adds() {
    let (store, root) = (redis(), tempfile::TempDir::new().expect("a temporary directory can be made"));
    let url = store.url();
    let [away, other] = ["away", "other"].map(|node| short_lived(&root.path().join(node), &url));
    let data = root.path().join("away");
    let data = data.to_str().expect("it is text");
    let other = other.start().expect("it starts");

    let program = away.start().expect("it starts");
    assert_eq!(connect(&program).call(&["INCRBY", "likes:1", "5"]).expect("it answers"), Value::Integer(5));
    answers(&other, &["GET", "likes:1"], |answer| *answer == Value::Bulk(b"5".to_vec()));
    // What is added while the store does not answer is not settled.
    store.stop().expect("it can be stopped");
    assert_eq!(connect(&program).call(&["INCRBY", "likes:1", "3"]).expect("it answers"), Value::Integer(8));
    program.kill9();
    store.resume().expect("it goes on");
    let incarnations = parsed(&run_and_print(&["writers", "--data", data, "--json"]));
    let incarnation = &incarnations["writers"][0];
    assert_eq!((number(&incarnation["sum"]), number(&incarnation["unconfirmed"])), (8, 3), "{incarnations}");
    let text_of = |value: &serde_json::Value| value.as_str().expect("it is text").to_owned();
    let writer = format!("{}.{}", text_of(&incarnations["node"]), text_of(&incarnation["incarnation"]));

    let adopt = ["writers", "adopt", &writer, "--data", data, "--store", &url];
    let early = quipu(&adopt);
    assert!(!early.status.success() && text(&early.stderr).contains("start the node"), "{}", text(&early.stderr));
    let began = now();
    while run_and_print(&["writers", "--store", &url]).contains(&writer) {
        assert!(began.elapsed() < Duration::from_secs(60), "it is never forgotten");
        thread::sleep(Duration::from_millis(200));
    }
    let (node, _) = writer.split_once('.').expect("a node and a life");
    while store.call(&["HEXISTS", "quipu:names", node]).expect("it answers") != Value::Integer(0) {
        assert!(began.elapsed() < Duration::from_secs(60), "its name stays behind");
        thread::sleep(Duration::from_millis(50));
    }

    let program = away.start().expect("it starts");
    let is_fenced = |answer: &Value| matches!(answer, Value::Error(text) if text.starts_with("FENCED"));
    let answer = answers(&program, &["INCRBY", "likes:1", "0"], is_fenced);
    assert!(
        matches!(&answer, Value::Error(text) if text.contains(&format!("quipu writers adopt {writer}"))),
        "{answer:?}"
    );
    let running = quipu(&adopt);
    assert!(!running.status.success() && text(&running.stderr).contains("in use"), "{}", text(&running.stderr));
    let (_, log) = program.terminate().expect("it ends");
    assert_eq!(log.matches("this node is fenced").count(), 1, "{log}");

    let unknown_writer =
        quipu(&["writers", "adopt", "0000000000000001.0000000000000001", "--data", data, "--store", &url]);
    assert!(text(&unknown_writer.stderr).contains("is no life of"), "{}", text(&unknown_writer.stderr));
    assert!(run_and_print(&adopt).contains("in sum 3: counted"));
    let program = away.start().expect("it starts");
    for node in [&program, &other] {
        answers(node, &["GET", "likes:1"], |answer| *answer == Value::Bulk(b"8".to_vec()));
    }
    assert_eq!(connect(&program).call(&["INCR", "likes:1"]).expect("it answers"), Value::Integer(9));
    let (_, log) = other.terminate().expect("it ends");
    assert!(
        log.lines()
            .any(|line| line.contains(" INFO ") && line.contains("a writer is retired") && line.contains(&writer)),
        "{log}"
    );
}
