//! Imports from real servers, by the built program: every key is imported or listed, with its
//! expiry. A failed import leaves nothing behind.

use std::process::{Command, Stdio};

use quipu_model::Durability;
use quipu_protocol::resp::RespConnection;
use quipu_testkit::program::Program;
use quipu_testkit::servers::redis::RedisServer;
use serde_json::Value as Json;
use tempfile::TempDir;

use crate::life::{connect, launch};
use crate::moving::{Values, eventually, number, parsed, quipu, redis, run_and_print, set, text, values};

/// In the year 2100.
const EXPIRES_AT: &str = "4102444800000";

/// A node that counts in a store.
fn node(directory: &TempDir, store: &str) -> Program {
    let mut launch = launch(&directory.path().join("data"), Durability::Durable);
    let words = ["--store", store, "--settle-every", "50ms", "--freshness", "50ms", "--store-secret", "s3cret"];
    launch.arguments = words.map(Into::into).to_vec();
    launch.start().expect("it starts")
}

fn directory() -> TempDir {
    TempDir::new().expect("a temporary directory can be made")
}

fn call(client: &mut RespConnection, command: &[&str]) -> Option<i64> {
    let reply = client.call(command).expect("it answers");
    assert_eq!(reply.error(), None, "{command:?}");
    reply.number()
}

/// How many were skipped for each reason.
fn reasons(report: &Json) -> Vec<(String, i128)> {
    let reasons = report["skipped_reasons"].as_array().expect("a list");
    reasons.iter().map(|one| (one["why"].as_str().expect("text").to_owned(), number(&one["count"]))).collect()
}

/// The writers of a store, as they are shown.
fn writers(store: &str) -> String {
    parsed(&run_and_print(&["writers", "--store", store, "--json"]))["writers"].to_string()
}

#[test]
fn every_key_of_redis_is_imported_or_listed_with_its_reason() {
    let (source, target) = (redis(), redis());
    let (from, to) = (source.url(), target.url());
    let long = "x".repeat(100_000);
    let commands: [&[&str]; 13] = [
        &["SET", "likes:1", "5"],
        &["SET", "likes:2", "7", "PXAT", EXPIRES_AT],
        &["PFADD", "seen:1", "a", "b", "c"],
        &["PFADD", "seen:2", "a"],
        &["PEXPIREAT", "seen:2", EXPIRES_AT],
        &["RPUSH", "a-list", "1"],
        &["HSET", "a-hash", "a", "1"],
        &["HSET", "another-hash", "a", "1"],
        &["SADD", "a-set", "1"],
        &["ZADD", "a-zset", "1", "a"],
        &["XADD", "a-stream", "*", "a", "1"],
        &["SET", "a-float", "1.5"],
        &["SET", "a-long", &long],
    ];
    for command in commands {
        assert_eq!(source.call(command).expect("it answers").error(), None);
    }
    let import = ["import", &from, "--store", &to, "--json"];
    let report = parsed(&run_and_print(&import));
    assert_eq!((number(&report["counters"]), number(&report["sketches"])), (2, 2), "{report}");
    let expected = [
        ("a hash, not a counter", 2),
        ("a list, not a counter", 1),
        ("a set, not a counter", 1),
        ("a sorted set, not a counter", 1),
        ("a stream, not a counter", 1),
        ("not an integer of 64 bits", 2),
    ];
    assert_eq!(reasons(&report), expected.map(|(reason, count)| (reason.to_owned(), count)));
    assert_eq!(quipu(&[&import[..], &["--strict"]].concat()).status.code(), Some(1));
    let expected: Values = [("likes:1".to_owned(), 5), ("likes:2".to_owned(), 7)].into();
    assert_eq!(values(&to), expected);
    let second = parsed(&run_and_print(&["export", "--store", &to, "--match", "likes:2"]));
    assert_eq!(second["expires_at"].to_string(), EXPIRES_AT, "{second}");

    // Uniques go on in the store, and come again without counting twice.
    let directory = directory();
    let node = node(&directory, &to);
    let mut client = connect(&node);
    assert_eq!(call(&mut client, &["PFCOUNT", "seen:1"]), Some(3));
    assert_eq!(call(&mut client, &["PEXPIRETIME", "seen:2"]), EXPIRES_AT.parse().ok());
    call(&mut client, &["PFADD", "seen:1", "c", "d"]);
    source.call(&["PFADD", "seen:1", "d", "e"]).expect("it answers");
    run_and_print(&import);
    eventually("the node sees it", || call(&mut client, &["PFCOUNT", "seen:1"]), |count| *count == Some(5));
    // What the store has deleted stays deleted, and is listed.
    call(&mut client, &["DEL", "seen:1"]);
    let report = parsed(&run_and_print(&import));
    let why = "a sketch that the store has reset or deleted since it was imported";
    assert!(reasons(&report).contains(&(why.to_owned(), 1)), "{report}");
    assert_eq!(call(&mut client, &["PFCOUNT", "seen:1"]), Some(0));
    assert!(node.terminate().expect("it ends").0.success());
    assert!(quipu(&["audit", "--store", &to]).status.success());
}

#[test]
fn a_counter_that_expires_in_the_source_expires_in_the_store_and_begins_anew_with_it() {
    // Redis before 7.0 has no PEXPIRETIME.
    let older = RedisServer::start_with(&["--rename-command", "PEXPIRETIME", ""]).expect("redis-server starts");
    for source in [redis(), older] {
        let target = redis();
        let (from, to) = (source.url(), target.url());
        let import = ["import", &from, "--store", &to];
        // Again, if a slow machine was too late.
        let first = || {
            source.call(&["SET", "rate:1", "100", "PX", "2000"]).expect("it is set");
            run_and_print(&import);
            values(&to)
        };
        eventually("it is there before it expires", first, |values| values.get("rate:1") == Some(&100));
        eventually("it expires", || values(&to), Values::is_empty);
        for value in [8, 9] {
            source.call(&["SET", "rate:1", &value.to_string(), "PX", "600000"]).expect("it is set");
            run_and_print(&import);
            assert_eq!(values(&to), [("rate:1".to_owned(), value)].into());
        }
    }
}

#[test]
fn a_key_that_the_source_does_not_show_is_listed_and_ends_nothing() {
    let (source, target) = (redis(), redis());
    set(&source, &[("likes:1".to_owned(), 5), ("secret:1".to_owned(), 6)].into());
    source.call(&["ACL", "SETUSER", "some", "on", ">pass", "~likes:*", "+@all"]).expect("it is made");
    let (from, to) = (source.url().replace("redis://", "redis://some:pass@"), target.url());
    let report = parsed(&run_and_print(&["import", &from, "--store", &to, "--json"]));
    assert_eq!(reasons(&report), [("the source refuses to show it".to_owned(), 1)], "{report}");
    assert_eq!(values(&to), [("likes:1".to_owned(), 5)].into());
}

#[test]
fn a_key_whose_expiry_the_source_does_not_show_is_listed() {
    let (source, target) = (redis(), redis());
    set(&source, &[("likes:1".to_owned(), 5)].into());
    source.call(&["ACL", "SETUSER", "some", "on", ">pass", "~*", "+@all", "-pexpiretime"]).expect("it is made");
    let from = source.url().replace("redis://", "redis://some:pass@");
    let report = parsed(&run_and_print(&["import", &from, "--store", &target.url(), "--json"]));
    assert_eq!(reasons(&report), [("the source refuses to show it".to_owned(), 1)], "{report}");
    assert!(values(&target.url()).is_empty());
}

#[test]
fn an_import_that_fails_leaves_no_writer_without_cells() {
    let (mut source, target) = (redis(), redis());
    let to = target.url();
    set(&source, &[("likes:1".to_owned(), 5)].into());
    let before = writers(&to);
    // It may list keys, and no more.
    source.call(&["ACL", "SETUSER", "some", "on", ">pass", "~*", "+scan", "+dbsize", "+hello"]).expect("it is made");
    let failed = quipu(&["import", &source.url().replace("redis://", "redis://some:pass@"), "--store", &to]);
    let err = text(&failed.stderr);
    assert!(!failed.status.success() && err.contains("nothing was imported") && !err.contains("pass"), "{err}");
    assert_eq!(writers(&to), before);
    // One of nothing is no writer, either.
    run_and_print(&["import", &source.url(), "--match", "none:*", "--store", &to]);
    assert_eq!(writers(&to), before);

    // One that fails in the middle has cells, which stay, and so does its writer.
    let many: Values = (0..40_000).map(|n| (format!("views:{n}"), n)).collect();
    set(&source, &many);
    let mut running = Command::new(env!("CARGO_BIN_EXE_quipu"));
    running.env_clear().args(["import", &source.url(), "--store", &to]).stdout(Stdio::null()).stderr(Stdio::piped());
    let running = running.spawn().expect("the program runs");
    let rows = || target.call(&["DBSIZE"]).ok().and_then(|size| size.number()).unwrap_or(0);
    eventually("nothing was put", rows, |rows| *rows > 1);
    target.stop().expect("it stops");
    source.kill();
    target.resume().expect("it goes on");
    let ended = running.wait_with_output().expect("it ends");
    let err = text(&ended.stderr);
    assert!(!ended.status.success() && err.contains("run it again"), "{err}");
    assert!(writers(&to).contains("an import"), "{}", writers(&to));
    assert!(quipu(&["audit", "--store", &to]).status.success());
}

#[test]
fn sketches_of_a_server_of_ours_are_imported_if_they_hash_by_the_same_secret() {
    let (stores, target) = (redis(), redis());
    let (to, alone) = (target.url(), directory());
    let directories = [directory(), directory()];
    let fill = |program: &Program| {
        let mut client = connect(program);
        let commands: [&[&str]; 10] = [
            &["INCRBY", "likes:1", "42"],
            &["PFADD", "hll", "a", "b", "c"],
            &["QUIPU.OBSERVE", "unique", "a", "b"],
            &["CMS.INITBYDIM", "cms", "200", "4"],
            &["CMS.INCRBY", "cms", "a", "3"],
            &["QUIPU.FREQ.ADD", "freq", "a", "5"],
            &["TOPK.RESERVE", "topk", "3"],
            &["TOPK.ADD", "topk", "a", "b", "a"],
            &["QUIPU.TOP.ADD", "top", "a", "7"],
            &["PEXPIREAT", "cms", EXPIRES_AT],
        ];
        for command in commands {
            assert_eq!(client.call(command).expect("it answers").error(), None, "{command:?}");
        }
    };
    let from = |program: &Program| format!("redis://{}", program.address());
    // One by itself hashes under a secret of its own.
    let single = launch(&alone.path().join("data"), Durability::Durable).start().expect("it starts");
    fill(&single);
    let report = parsed(&run_and_print(&[
        "import",
        &from(&single),
        "--store",
        &to,
        "--as",
        "single",
        "--json",
        "--match",
        "[hclu]*",
    ]));
    assert_eq!((number(&report["counters"]), number(&report["sketches"])), (1, 1), "{report}");
    let why = "a sketch that hashes its items under another secret than the store's nodes, see --store-secret";
    assert_eq!(reasons(&report), [(why.to_owned(), 2)], "{report}");
    assert!(single.terminate().expect("it ends").0.success());

    let (source, elsewhere) = (node(&directories[0], &stores.url()), redis());
    fill(&source);
    let import =
        ["import", &from(&source), "--store", &elsewhere.url(), "--store-secret", "s3cret", "--strict", "--json"];
    for _ in 0..2 {
        let report = parsed(&run_and_print(&import));
        assert_eq!((number(&report["counters"]), number(&report["sketches"])), (1, 6), "{report}");
    }
    let shown = node(&directories[1], &elsewhere.url());
    let (mut here, mut there) = (connect(&source), connect(&shown));
    for name in ["likes:1", "hll", "unique", "cms", "freq", "topk", "top"] {
        let dump =
            |client: &mut RespConnection| format!("{:?}", client.call(&["QUIPU.DUMP", name]).expect("it answers"));
        let expected = dump(&mut here);
        eventually(name, || dump(&mut there), |dump| *dump == expected);
    }
    assert_eq!(call(&mut there, &["PFADD", "hll", "d"]), Some(1));
    assert_eq!(call(&mut there, &["PFCOUNT", "hll"]), Some(4), "they go on");
    for program in [source, shown] {
        assert!(program.terminate().expect("it ends").0.success());
    }
    assert!(quipu(&["audit", "--store", &elsewhere.url()]).status.success());
}
