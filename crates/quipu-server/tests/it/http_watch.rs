//! Watching counters over HTTP.

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::door::Door;
use crate::http_client::Http;

#[allow(clippy::disallowed_methods, reason = "a real server is waited for")]
fn now() -> Instant {
    Instant::now()
}

/// A stream of events.
struct Events(BufReader<TcpStream>);

impl Events {
    fn of(door: &Door, name: &str) -> Events {
        let mut http = Http::of(door);
        http.send("GET", &format!("/v1/counters/{name}/watch"), "", "");
        let (status, head) = http.head();
        assert_eq!(status, 200, "{head}");
        assert!(head.contains("content-type: text/event-stream\n"), "{head}");
        Events(BufReader::new(http.0.0))
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
    let door = Door::open();
    door.engine.add("a", 5).unwrap();
    let (mut first, mut second) = (Events::of(&door, "a"), Events::of(&door, "a"));
    assert_eq!((first.value(), second.value()), (5, 5));
    for value in 6..10 {
        let began = now();
        door.engine.add("a", 1).unwrap();
        assert_eq!((first.value(), second.value()), (value, value));
        assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    }
    // Another counter of the same shard may change; only this one's changes are told.
    for other in 0..2_000 {
        door.engine.handle(format!("b:{other}")).unwrap().count(1).unwrap();
    }
    door.engine.reset("a").unwrap();
    assert_eq!(first.value(), 0);
    door.engine.delete("a").unwrap();
    let gone = first.next().unwrap();
    assert_eq!((&gone["exists"], &gone["value"]), (&Value::Bool(false), &Value::from(0)));
    door.client().ask("SET a 7 PX 200", "+OK\r\n");
    assert_eq!(first.value(), 7);
    assert_eq!(first.next().unwrap()["exists"], false, "it has expired");
}

#[test]
fn adds_that_return_nothing_are_seen() {
    let door = Door::open();
    let handle = door.engine.handle("a").unwrap();
    let mut events = Events::of(&door, "a");
    assert_eq!(events.value(), 0);
    for _ in 0..10_000 {
        handle.count(1).unwrap();
    }
    while events.value() < 10_000 {}
}

#[test]
fn a_stop_ends_the_stream() {
    let mut door = Door::open();
    let mut events = Events::of(&door, "a");
    assert_eq!(events.value(), 0);
    let began = now();
    door.join();
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    assert!(events.next().is_none());
}

#[test]
fn watchers_take_half_of_the_connections_at_most() {
    let door = Door::open_with(|options| options.limits.http_connections_max = 6);
    let mut watching: Vec<Events> = (0..3).map(|number| Events::of(&door, &format!("a{number}"))).collect();
    for events in &mut watching {
        assert_eq!(events.value(), 0);
    }
    let mut http = Http::of(&door);
    http.get("/v1/counters/b/watch").is_problem(503, "busy");
    assert!(http.get("/metrics").text().contains("quipu_watchers 3\n"));
    drop(watching.pop());
    // A watcher that has gone is noticed when its connection is.
    let came_in = (0..1_000).any(|_| {
        let mut http = Http::of(&door);
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
    let door = Door::serve(engine, directory, |_| {});
    let mut events = Events::of(&door, "a");
    assert_eq!(events.value(), 3);
    door.engine.add("a", 1).unwrap();
    assert_eq!(events.value(), 4);
}
