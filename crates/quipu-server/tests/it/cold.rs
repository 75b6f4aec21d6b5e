//! Interactions of connections with evicted counters that could break either.

use std::time::{Duration, Instant};

use quipu_engine::{Engine, Options};

use crate::test_server::TestServer;

#[allow(clippy::disallowed_methods, reason = "a real server is waited for")]
fn now() -> Instant {
    Instant::now()
}

/// A server all of whose counters are at rest: `n:0` to `n:count`, each with its number.
fn at_rest(count: usize) -> TestServer {
    let directory = tempfile::tempdir().unwrap();
    let engine = Engine::open(Options::new(directory.path())).unwrap();
    let mut turn = engine.turn();
    for index in 0..count {
        let text = format!("n:{index}");
        let name = quipu_model::Name::new(text.as_bytes()).unwrap();
        turn.run(&quipu_model::Command::Add { name, delta: index as i64, shard_key: None }).unwrap();
    }
    turn.finish();
    engine.close().unwrap();
    drop(engine);
    let engine = Engine::open(Options::new(directory.path())).unwrap();
    TestServer::serve(engine, directory, |_| {})
}

#[test]
fn replies_keep_their_order_whatever_has_to_be_loaded() {
    let server = at_rest(2_000);
    let (mut sent, mut expected) = (String::new(), String::new());
    for index in 0..1_000 {
        let (a, b) = (index, (index * 7) % 2_000);
        sent += &format!(
            "PING p{index}\r\nGET n:{a}\r\nMULTI\r\nGET n:{b}\r\nGET none:{index}\r\nEXEC\r\nSCAN 0 COUNT 1 MATCH x\r\n"
        );
        sent += &format!("CLIENT REPLY SKIP\r\nGET n:{}\r\nMGET n:{b} n:{a}\r\n", 1_999 - index);
        let bulk = |text: String| format!("${}\r\n{text}\r\n", text.len());
        expected += &bulk(format!("p{index}"));
        expected += &bulk(a.to_string());
        expected += &format!("+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n{}$-1\r\n", bulk(b.to_string()));
        expected += "SCAN";
        expected += &format!("*2\r\n{}{}", bulk(b.to_string()), bulk(a.to_string()));
    }
    let mut client = server.client();
    let writer = client.0.try_clone().unwrap();
    let thread = std::thread::spawn(move || std::io::Write::write_all(&mut &writer, sent.as_bytes()).unwrap());
    // The cursor of a scan is whatever it is; everything around it is known.
    let mut parts = expected.split("SCAN").peekable();
    while let Some(part) = parts.next() {
        client.expect(part);
        if parts.peek().is_some() {
            assert_eq!(client.line(), "*2");
            let length: usize = client.line().trim_start_matches('$').parse().unwrap();
            assert_eq!(client.line().len(), length);
            assert_eq!(client.line(), "*0");
        }
    }
    thread.join().unwrap();
}

#[test]
fn a_watch_of_many_counters_at_rest_is_one_wait_not_one_each() {
    let server = at_rest(4_000);
    let names: Vec<String> = (0..4_000).map(|index| format!("n:{index}")).collect();
    let (before, began) = (server.engine.stats().loaded, now());
    server
        .client()
        .ask(&format!("WATCH {}\nMULTI\nGET n:1\nEXEC", names.join(" ")), "+OK\r\n+OK\r\n+QUEUED\r\n*1\r\n$1\r\n1\r\n");
    let (loaded, took) = (server.engine.stats().loaded - before, began.elapsed());
    assert!(took < Duration::from_secs(1), "{loaded} counters took {took:?}");
}
