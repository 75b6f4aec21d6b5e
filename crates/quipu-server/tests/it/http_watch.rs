//! Watching counters over HTTP.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketType};
use serde_json::Value;

use crate::http_client::HttpClient;
use crate::test_server::{TEST_TIME_MAX, TestServer, is_timeout};

/// A name that takes three kilobytes in an event, and how it is written in a path: a few of them
/// fill a socket.
fn long_name() -> (String, String) {
    ("\u{1}".repeat(500), "%01".repeat(500))
}

#[allow(clippy::disallowed_methods, reason = "a real server is waited for")]
fn now() -> Instant {
    Instant::now()
}

/// A stream of events.
struct Events(BufReader<TcpStream>);

impl Events {
    fn watch(server: &TestServer, name: &str) -> Events {
        let mut http = HttpClient::connect_to(server);
        http.send("GET", &format!("/v1/counters/{name}/watch"), "", "");
        let (status, head) = http.head();
        assert_eq!(status, 200, "{head}");
        assert!(head.contains("content-type: text/event-stream\n"), "{head}");
        Events(BufReader::new(http.0.0))
    }

    /// Of a client that takes little at a time.
    fn narrow(server: &TestServer, path: &str) -> Events {
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        rustix::net::sockopt::set_socket_recv_buffer_size(&socket, 4_096).unwrap();
        rustix::net::connect(&socket, &server.http).unwrap();
        let mut stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(TEST_TIME_MAX)).unwrap();
        stream
            .write_all(format!("GET /v1/counters/{path}/watch HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes())
            .unwrap();
        let mut events = Events(BufReader::new(stream));
        let mut line = String::new();
        while line != "\r\n" {
            line.clear();
            events.0.read_line(&mut line).unwrap();
        }
        events
    }

    /// The next chunk, every byte of which is where it belongs; none: the last one, with nothing
    /// behind it.
    fn chunk(&mut self) -> Option<String> {
        let mut size = String::new();
        self.0.read_line(&mut size).unwrap();
        let size = size.strip_suffix("\r\n").unwrap_or_else(|| panic!("{size:?}"));
        assert!(!size.is_empty() && size.bytes().all(|digit| digit.is_ascii_hexdigit()), "{size:?}");
        let size = usize::from_str_radix(size, 16).unwrap();
        let mut chunk = vec![0; size + 2];
        self.0.read_exact(&mut chunk).unwrap();
        assert!(chunk.ends_with(b"\r\n"), "{}", chunk.escape_ascii());
        chunk.truncate(size);
        if size == 0 {
            assert_eq!(self.0.read(&mut [0]).unwrap(), 0);
            return None;
        }
        Some(String::from_utf8(chunk).unwrap())
    }

    /// The value in the next chunk, which is one event.
    fn chunk_value(&mut self) -> Option<i64> {
        let chunk = self.chunk()?;
        let data = chunk.strip_prefix("event: reading\ndata: ").and_then(|rest| rest.strip_suffix("\n\n"));
        let data: Value = serde_json::from_str(data.unwrap_or_else(|| panic!("{chunk:?}"))).unwrap();
        data["value"].as_i64()
    }

    /// The next event, or none if the server has ended the stream.
    fn next(&mut self) -> Option<Value> {
        let mut line = String::new();
        loop {
            line.clear();
            if self.0.read_line(&mut line).unwrap() == 0 || line == "0\r\n" {
                return None;
            }
            if let Some(data) = line.strip_prefix("data: ") {
                return Some(serde_json::from_str(data).unwrap());
            }
        }
    }

    fn value(&mut self) -> i64 {
        self.next().expect("there is an event")["value"].as_i64().unwrap()
    }
}

#[test]
fn a_watcher_is_told_the_value_at_once_and_then_its_changes() {
    let server = TestServer::open();
    server.engine.add("a", 5).unwrap();
    let (mut first, mut second) = (Events::watch(&server, "a"), Events::watch(&server, "a"));
    assert_eq!((first.value(), second.value()), (5, 5));
    for value in 6..10 {
        let began = now();
        server.engine.add("a", 1).unwrap();
        assert_eq!((first.value(), second.value()), (value, value));
        assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    }
    // Another counter of the same shard may change; only this one's changes are told.
    for other in 0..2_000 {
        server.engine.handle(format!("b:{other}")).unwrap().count(1).unwrap();
    }
    server.engine.reset("a").unwrap();
    assert_eq!(first.value(), 0);
    server.engine.delete("a").unwrap();
    let gone = first.next().unwrap();
    assert_eq!((&gone["exists"], &gone["value"]), (&Value::Bool(false), &Value::from(0)));
    server.client().ask("SET a 7 PX 200", "+OK\r\n");
    assert_eq!(first.value(), 7);
    assert_eq!(first.next().unwrap()["exists"], false, "it has expired");
}

#[test]
fn adds_that_return_nothing_are_seen() {
    let server = TestServer::open();
    let handle = server.engine.handle("a").unwrap();
    let mut events = Events::watch(&server, "a");
    assert_eq!(events.value(), 0);
    for _ in 0..10_000 {
        handle.count(1).unwrap();
    }
    while events.value() < 10_000 {}
}

#[test]
fn a_stop_ends_the_stream() {
    let mut server = TestServer::open();
    let mut events = Events::watch(&server, "a");
    assert_eq!(events.value(), 0);
    let began = now();
    server.join();
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    assert!(events.next().is_none());
}

#[test]
fn watchers_take_half_of_the_connections_at_most() {
    let server = TestServer::open_with(|options| options.limits.http_connections_max = 6);
    let mut watching: Vec<Events> = (0..3).map(|number| Events::watch(&server, &format!("a{number}"))).collect();
    for events in &mut watching {
        assert_eq!(events.value(), 0);
    }
    let mut http = HttpClient::connect_to(&server);
    http.get("/v1/counters/b/watch").is_problem(503, "busy");
    assert!(http.get("/metrics").text().contains("quipu_watchers 3\n"));
    drop(watching.pop());
    // A watcher that has gone is noticed when its connection is.
    let came_in = (0..1_000).any(|_| {
        let mut http = HttpClient::connect_to(&server);
        http.send("GET", "/v1/counters/b/watch", "", "");
        http.head().0 == 200
    });
    assert!(came_in);
}

#[test]
fn a_counter_at_rest_can_be_watched() {
    let directory = tempfile::tempdir().unwrap();
    let engine = quipu_engine::Engine::open(quipu_engine::Options::new(directory.path())).unwrap();
    engine.add("a", 3).unwrap();
    engine.close().unwrap();
    drop(engine);
    let engine = quipu_engine::Engine::open(quipu_engine::Options::new(directory.path())).unwrap();
    let server = TestServer::serve(engine, directory, |_| {});
    let mut events = Events::watch(&server, "a");
    assert_eq!(events.value(), 3);
    server.engine.add("a", 1).unwrap();
    assert_eq!(events.value(), 4);
}

#[test]
fn chunks_are_well_formed_over_many_events() {
    let mut server = TestServer::open();
    let mut watching: Vec<Events> = (0..3).map(|_| Events::watch(&server, "a")).collect();
    assert!(watching.iter_mut().all(|events| events.chunk_value() == Some(0)));
    for value in 1..=100 {
        server.engine.add("a", 1).unwrap();
        for events in &mut watching {
            assert_eq!(events.chunk_value(), Some(value));
        }
    }
    server.engine.add("a", 1).unwrap();
    server.join();
    for events in &mut watching {
        let last = events.chunk_value();
        assert!(last.is_none() || (last == Some(101) && events.chunk().is_none()), "{last:?}");
    }
}

#[test]
fn a_watcher_that_speaks_http_1_0_hears_no_chunks() {
    let mut server = TestServer::open();
    let mut http = HttpClient::connect_to(&server);
    http.0.send("GET /v1/counters/a/watch HTTP/1.0\r\n\r\n");
    let (status, head) = http.head();
    assert!(status == 200 && !head.contains("transfer-encoding"), "{head}");
    for value in 0..5 {
        assert_eq!(http.0.line_of_text(), "event: reading\n");
        let data = http.0.line_of_text();
        let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(data["value"], value);
        assert_eq!(http.0.line_of_text(), "\n");
        if value < 4 {
            server.engine.add("a", 1).unwrap();
        }
    }
    server.ask_to_stop();
    http.0.expect_closed_after("");
}

#[test]
fn the_head_of_a_stream_can_be_asked_for() {
    let server = TestServer::open();
    let mut http = HttpClient::connect_to(&server);
    for _ in 0..3 {
        let reply = http.ask("HEAD", "/v1/counters/a/watch", "", "");
        assert_eq!((reply.status, reply.header("content-type")), (200, Some("text/event-stream")));
    }
    assert!(http.get("/metrics").text().contains("quipu_watchers 0\n"));
    http.send("GET", "/v1/counters/a/watch", "", "");
    assert_eq!(http.head().0, 200);
    let mut events = Events(BufReader::new(http.0.0));
    assert_eq!(events.chunk_value(), Some(0));
    server.engine.add("a", 1).unwrap();
    assert_eq!(events.chunk_value(), Some(1));
}

#[test]
fn a_watcher_that_does_not_read_holds_up_nobody_and_is_closed() {
    let server = TestServer::open_with(|options| options.limits.write_time_max = Duration::from_secs(1));
    let (name, path) = long_name();
    let mut watching: Vec<Events> = (0..100).map(|_| Events::watch(&server, &path)).collect();
    let mut deaf = Events::narrow(&server, &path);
    assert!(watching.iter_mut().all(|events| events.chunk_value() == Some(0)));
    let mut http = HttpClient::connect_to(&server);
    let closed = (1..1_000).find(|value| {
        let began = now();
        server.engine.add(&name, 1).unwrap();
        assert!(watching.iter_mut().all(|events| events.chunk_value() == Some(*value)));
        assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
        http.get("/metrics").text().contains("quipu_watchers 100\n")
    });
    let closed = closed.expect("it is closed");
    assert!(closed > 3, "{closed}");
    // What it could have heard is what the system held for it: less than was said.
    let mut received = Vec::new();
    let ended = deaf.0.read_to_end(&mut received);
    assert!(!ended.is_err_and(|error| is_timeout(&error)));
    assert!(received.len() < closed as usize * 3_000, "{} bytes after {closed} events", received.len());
}

#[test]
fn a_watcher_that_reads_again_is_soon_told_the_newest() {
    let server = TestServer::open();
    let (name, path) = long_name();
    let (mut slow, mut quick) = (Events::narrow(&server, &path), Events::watch(&server, &path));
    assert_eq!((slow.chunk_value(), quick.chunk_value()), (Some(0), Some(0)));
    for value in 1..=100 {
        server.engine.add(&name, 1).unwrap();
        assert_eq!(quick.chunk_value(), Some(value));
    }
    let mut values = vec![0];
    while values.last() != Some(&100) {
        values.push(slow.chunk_value().unwrap());
    }
    assert!(values.is_sorted() && values.len() < 90, "{values:?}");
    server.engine.add(&name, 1).unwrap();
    assert_eq!((slow.chunk_value(), quick.chunk_value()), (Some(101), Some(101)));
}

#[test]
fn watchers_that_go_away_are_freed() {
    let server = TestServer::open();
    let mut watching: Vec<Events> = (0..20).map(|_| Events::watch(&server, "a")).collect();
    assert!(watching.iter_mut().all(|events| events.chunk_value() == Some(0)));
    // Bytes behind the request keep the server from looking whether there is an end: these are
    // missed when they are told something.
    for events in &mut watching[10..] {
        events.0.get_mut().write_all(b"GET ").unwrap();
    }
    let mut http = HttpClient::connect_to(&server);
    assert!(http.get("/metrics").text().contains("quipu_watchers 20\n"));
    drop(watching);
    let freed = (0..10_000).any(|_| {
        server.engine.add("a", 1).unwrap();
        http.get("/metrics").text().contains("quipu_watchers 0\n")
    });
    assert!(freed);
    assert!(http.get("/metrics").text().contains("quipu_connections{door=\"http\"} 1\n"));
}

#[test]
fn a_stop_ends_every_stream_with_its_last_chunk() {
    let mut server = TestServer::open();
    let (name, path) = long_name();
    let mut watching: Vec<Events> = (0..50).map(|_| Events::watch(&server, &path)).collect();
    assert!(watching.iter_mut().all(|events| events.chunk_value() == Some(0)));
    let mut slow = Events::narrow(&server, &path);
    for value in 1..=60 {
        server.engine.add(&name, 1).unwrap();
        assert!(watching.iter_mut().all(|events| events.chunk_value() == Some(value)));
    }
    server.ask_to_stop();
    assert!(watching.iter_mut().all(|events| events.chunk().is_none()));
    // One that is in the middle of a chunk hears its end, the newest, and the last one.
    let values: Vec<i64> = std::iter::from_fn(|| slow.chunk_value()).collect();
    assert!(values.is_sorted() && values.last() == Some(&60), "{values:?}");
    server.join();
}
