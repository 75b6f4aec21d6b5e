//! A store that goes away and comes back: where the nodes report it, and how soon they agree again.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Output};
use std::thread;
use std::time::Duration;

use quipu_model::Durability;
use quipu_protocol::resp::Value;
use quipu_testkit::program::{LaunchError, Program};
use quipu_testkit::servers::postgres::PostgresServer;
use quipu_testkit::servers::redis::RedisServer;

use crate::life::{connect, launch, now};
use crate::nodes::StoreServer;

/// How long anything here may take. The promises are 2 s to notice and 5 s to agree; a busy machine
/// gets more.
const WITHIN: Duration = Duration::from_secs(20);

/// How long the store is away: long enough for pauses between retries to have grown to their
/// longest.
const AWAY_MILLIS: u64 = 12_000;

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) -> Duration {
    let began = now();
    while !is_so() {
        assert!(began.elapsed() < WITHIN + Duration::from_millis(AWAY_MILLIS), "not within {WITHIN:?}: {what}");
        thread::sleep(Duration::from_millis(20));
    }
    began.elapsed()
}

fn info(node: &Program, key: &str) -> String {
    let Ok(Value::Bulk(text)) = connect(node).call(&["INFO", "quipu"]) else { panic!("INFO is answered with text") };
    let text = String::from_utf8(text).expect("text");
    let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    value.unwrap_or_else(|| panic!("{key} is not in {text}")).to_owned()
}

fn count(node: &Program) -> i64 {
    match connect(node).call(&["GET", "likes:1"]).expect("it answers") {
        Value::Bulk(text) => String::from_utf8(text).expect("text").parse().expect("a number"),
        _ => 0,
    }
}

/// Status line and body of a GET.
fn http_get(node: &Program, path: &str) -> String {
    let mut stream = TcpStream::connect(node.http().expect("it serves HTTP")).expect("it accepts");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").expect("it takes a request");
    let mut reply = String::new();
    stream.read_to_string(&mut reply).expect("it answers");
    reply
}

fn health(node: &Program, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quipu"));
    command.args(["health", "--server", &node.address().to_string()]).args(arguments).output().expect("it runs")
}

fn is_ready(node: &Program, path: &str) -> bool {
    http_get(node, path).starts_with("HTTP/1.1 200")
}

/// Lines of a log with these words.
fn lines(log: &str, level: &str, words: &str) -> usize {
    log.lines().filter(|line| line.contains(level) && line.contains(words)).count()
}

fn goes_away_and_comes_back(engine: &str, store: &mut impl StoreServer, url: &str) {
    let root = tempfile::TempDir::new().expect("a temporary directory can be made");
    let nodes = ["one", "other"].map(|node| {
        let mut launch = launch(&root.path().join(node), Durability::Durable);
        launch.arguments = ["--store", url, "--lease", "2s"].map(Into::into).to_vec();
        launch.start().expect("it starts")
    });
    let add = |node: &Program| drop(connect(node).call(&["INCR", "likes:1"]).expect("it counts on"));
    nodes.iter().for_each(add);
    wait_until("both are counted", || nodes.iter().all(|node| count(node) == 2));
    for node in &nodes {
        assert_eq!((info(node, "store_reachable"), info(node, "store_error")), ("1".into(), "none".into()));
        assert!(is_ready(node, "/readyz?store=required"));
        assert!(health(node, &["--store"]).status.success());
    }

    store.kill();
    let noticed = wait_until("an outage is noticed", || nodes.iter().all(|node| info(node, "store_reachable") == "0"));
    let mut total = 2;
    for node in &nodes {
        let error = info(node, "store_error");
        assert!(!["", "none"].contains(&&*error));
        assert!(is_ready(node, "/readyz"), "a node counts without its store");
        let reply = http_get(node, "/readyz?store=required");
        assert!(reply.starts_with("HTTP/1.1 503") && reply.contains(&error), "{error:?} is not in {reply}");
        assert!(http_get(node, "/readyz?store=maybe").starts_with("HTTP/1.1 400"));
        assert!(health(node, &[]).status.success());
        let checked = health(node, &["--store"]);
        let message = String::from_utf8_lossy(&checked.stderr).into_owned();
        assert!(checked.status.code() == Some(1) && message.contains("cannot be reached: "), "{message}");
        assert!(http_get(node, "/metrics").contains("\nquipu_store_reachable 0\n"));
    }
    wait_until("the store is away for long", || {
        for node in &nodes {
            add(node);
            count(node);
        }
        total += 2;
        info(&nodes[0], "store_unreachable_ms").parse::<u64>().expect("a number") >= AWAY_MILLIS
    });

    store.restart();
    let agreed = wait_until("both nodes show the sum", || nodes.iter().all(|node| count(node) == total));
    println!("proof: {engine}: outage noticed after {noticed:.1?}, nodes agree {agreed:.1?} after the store is back");
    assert!(agreed < WITHIN);
    for node in nodes {
        wait_until("it is ready again", || is_ready(&node, "/readyz?store=required"));
        assert!(health(&node, &["--store"]).status.success());
        let (status, log) = node.terminate().expect("it ends");
        assert!(status.success());
        assert_eq!(lines(&log, "WARN", "the shared store cannot be reached"), 1, "{log}");
        assert_eq!(lines(&log, "INFO", "the shared store can be reached again"), 1, "{log}");
        assert_eq!(lines(&log, "WARN", "the lease at the shared store has run out"), 1, "{log}");
    }
}

#[test]
fn nodes_notice_that_redis_is_away_and_agree_when_it_is_back() {
    let mut redis = RedisServer::start_with(&["--appendonly", "yes", "--appendfsync", "always"]).expect("it starts");
    let url = redis.url();
    goes_away_and_comes_back("redis", &mut redis, &url);
}

#[test]
fn nodes_notice_that_postgres_is_away_and_agree_when_it_is_back() {
    let mut postgres = PostgresServer::start().expect("it starts");
    let url = postgres.url();
    goes_away_and_comes_back("postgres", &mut postgres, &url);
}

#[test]
fn a_store_that_hangs_is_an_outage_and_one_that_lost_data_is_logged() {
    let mut redis = RedisServer::start().expect("it starts");
    let root = tempfile::TempDir::new().expect("a temporary directory can be made");
    let mut launch = launch(root.path(), Durability::Durable);
    launch.arguments = ["--store", &redis.url(), "--lease", "2s"].map(Into::into).to_vec();
    let node = launch.start().expect("it starts");
    connect(&node).call(&["INCR", "likes:1"]).expect("it counts");
    wait_until("it is put", || {
        redis.call(&["HLEN", "quipu:c:likes:1"]).is_ok_and(|fields| fields != Value::Integer(0))
    });
    redis.stop().expect("it can be stopped");
    let noticed = wait_until("a hanging store is noticed", || info(&node, "store_reachable") == "0");
    println!("proof: a store that hangs is noticed after {noticed:.1?}");
    redis.resume().expect("it goes on");
    wait_until("it is back", || info(&node, "store_reachable") == "1");

    redis.restart_empty().expect("it starts again");
    wait_until("the loss is noticed", || http_get(&node, "/metrics").contains("\nquipu_store_losses_total 1\n"));
    let (_, log) = node.terminate().expect("it ends");
    assert_eq!(lines(&log, "WARN", "the shared store has lost data"), 1, "{log}");
}

#[test]
fn after_a_store_has_lost_everything_a_token_is_answered_and_not_applied_again() {
    let mut redis = RedisServer::start().expect("it starts");
    let root = tempfile::TempDir::new().expect("a temporary directory can be made");
    let mut nodes: Vec<Program> = Vec::new();
    for node in ["a", "b"] {
        let mut launch = launch(&root.path().join(node), Durability::Durable);
        launch.arguments =
            ["--store", &redis.url(), "--lease", "2s", "--settle-every", "100ms"].map(Into::into).to_vec();
        nodes.push(launch.start().expect("it starts"));
    }
    let add = |node: &Program, token: &str| {
        connect(node).call(&["INCRBY", "likes:1", "5", "IDMP", "p", token]).expect("it answers")
    };
    let is_again = |reply: &Value| matches!(reply, Value::Error(text) if text.starts_with("TRYAGAIN"));
    wait_until("both have joined", || nodes.iter().all(|node| info(node, "store_standing") == "live"));

    assert_eq!(add(&nodes[0], "order-1"), Value::Integer(5));
    wait_until("it is put", || count(&nodes[1]) == 5);
    redis.call(&["FLUSHALL"]).expect("it deletes everything");
    assert_eq!(add(&nodes[0], "order-1"), Value::Integer(5), "its node knows it, before it has noticed anything");
    let noticed = |node: &Program, losses: u32| {
        http_get(node, "/metrics").contains(&format!("\nquipu_store_losses_total {losses}\n"))
    };
    wait_until("both notice the loss", || nodes.iter().all(|node| noticed(node, 1)));
    wait_until("the other node has the reply", || match add(&nodes[1], "order-1") {
        reply if is_again(&reply) => false,
        reply => reply == Value::Integer(5),
    });

    // A server that comes back empty has another identity: no call reaches it before that was
    // noticed.
    redis.restart_empty().expect("it starts again");
    wait_until("the other node has the reply again", || match add(&nodes[1], "order-1") {
        Value::Error(text) => {
            assert!(text.starts_with("TRYAGAIN") || text.starts_with("STOREDOWN"), "{text}");
            false
        }
        reply => reply == Value::Integer(5),
    });
    wait_until("both count it once", || nodes.iter().all(|node| count(node) == 5));
    assert_eq!(add(&nodes[0], "order-1"), Value::Integer(5));
    nodes.into_iter().for_each(|node| drop(node.terminate().expect("it ends")));
}

#[test]
fn a_redis_that_evicts_is_refused_at_the_start_and_is_a_problem_when_it_is_found_later() {
    let redis = RedisServer::start().expect("it starts");
    let configure = |limit: &str, policy: &str| {
        redis.call(&["CONFIG", "SET", "maxmemory", limit]).expect("it may be changed");
        redis.call(&["CONFIG", "SET", "maxmemory-policy", policy]).expect("it may be changed");
    };
    configure("100mb", "volatile-lru");
    let root = tempfile::TempDir::new().expect("a temporary directory can be made");
    let mut launch = launch(root.path(), Durability::Durable);
    launch.arguments = ["--store", &redis.url()].map(Into::into).to_vec();
    match launch.start() {
        Err(LaunchError::Ended { status, stderr }) => {
            assert_eq!(status.code(), Some(1), "{stderr}");
            let parts = ["cannot use the shared store", &redis.address().to_string(), "volatile-lru"];
            for part in parts.into_iter().chain(["set maxmemory-policy noeviction"]) {
                assert!(stderr.contains(part), "{part:?} is not in {stderr}");
            }
        }
        other => panic!("a store that evicts tokens is used: {other:?}"),
    }

    configure("0", "volatile-lru");
    let node = launch.start().expect("without a limit nothing is evicted");
    assert_eq!(info(&node, "store_problems"), "none");
    assert!(is_ready(&node, "/readyz?store=required"));
    configure("100mb", "volatile-lru");
    let noticed =
        wait_until("a store that evicts is noticed", || info(&node, "store_problems").contains("volatile-lru"));
    println!("proof: a store that evicts is noticed after {noticed:.1?}");
    assert!(is_ready(&node, "/readyz"), "counting goes on");
    let reply = http_get(&node, "/readyz?store=required");
    assert!(reply.starts_with("HTTP/1.1 503") && reply.contains("maxmemory-policy noeviction"), "{reply}");
    assert_eq!(health(&node, &["--store"]).status.code(), Some(1));
    configure("100mb", "noeviction");
    wait_until("it is over", || is_ready(&node, "/readyz?store=required"));
    let (_, log) = node.terminate().expect("it ends");
    assert_eq!(lines(&log, "ERROR", "the shared store does not keep what it confirms"), 1, "{log}");
    assert_eq!(lines(&log, "INFO", "a problem of the shared store is over"), 1, "{log}");
}
