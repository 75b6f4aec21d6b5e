//! Sampled counts through the program's protocols: commands, readings, and kill -9.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::thread;
use std::time::Duration;

use quipu_model::Durability;
use quipu_protocol::resp::{RespConnection, Value};
use quipu_testkit::program::{Launch, LaunchError, Program};
use tempfile::TempDir;

use crate::life::{connect, launch, now};

const FILE: &str = "
[namespace.v]
sample = 100
[namespace.auto]
sample = \"auto\"
durability = \"relaxed\"
";

/// An overload lasts at least so long: that is how long a rate stays before it is halved.
const OVERLOAD_TIME_MIN: Duration = Duration::from_secs(1);

/// How often is looked for a second without one.
const LOOKS_MAX: usize = 60;

fn with_file(data: &Path, text: &str) -> Launch {
    let file = data.join("quipu.toml");
    std::fs::write(&file, text).expect("it can be written");
    let mut launch = launch(&data.join("data"), Durability::Durable);
    launch.arguments = vec!["--config".into(), file.into()];
    launch
}

fn start(launch: &Launch) -> Program {
    launch.start().unwrap_or_else(|error| panic!("{error}"))
}

fn call(client: &mut RespConnection, request: &[&str]) -> Value {
    client.call(request).expect("it answers")
}

fn number(value: &Value) -> i64 {
    value.number().unwrap_or_else(|| panic!("a number, not {value:?}"))
}

/// A field of a reading, if it has it.
fn field(client: &mut RespConnection, name: &str, field: &str) -> Option<i64> {
    let reading = call(client, &["QUIPU.READ", name]);
    reading.pairs().iter().find(|(key, _)| key.bytes() == Some(field.as_bytes())).map(|(_, value)| number(value))
}

/// Status and body of a request over HTTP.
fn ask(program: &Program, method: &str, path: &str, body: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(program.http().expect("it speaks HTTP")).expect("it listens");
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all((head + body).as_bytes()).expect("it reads");
    let mut reply = String::new();
    stream.read_to_string(&mut reply).expect("it answers");
    let (head, body) = reply.split_once("\r\n\r\n").expect("a head and a body");
    (head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status"), body.to_owned())
}

fn json(program: &Program, method: &str, path: &str, body: &str) -> (u16, serde_json::Value) {
    let (status, body) = ask(program, method, path, body);
    (status, serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}")))
}

/// So many INCRs in one pipeline; the values they were told.
fn incr(client: &mut RespConnection, name: &str, times: usize) -> Vec<i64> {
    let request = vec!["INCR".to_owned(), name.to_owned()];
    client.send(&vec![request; times]).expect("it takes requests");
    (0..times).map(|_| number(&client.receive().expect("it answers"))).collect()
}

#[test]
fn what_is_sampled_is_told_with_its_bounds_on_both_doors_and_after_a_kill() {
    let data = TempDir::new().expect("a directory");
    let launch_sampled = with_file(data.path(), FILE);
    let mut program = start(&launch_sampled);
    let mut client = connect(&program);
    let observed = incr(&mut client, "v:a", 40_000);
    assert!(observed.windows(2).all(|pair| pair[1] == pair[0] || pair[1] == pair[0] + 100), "p for each that is taken");
    let value = *observed.last().expect("there are some");
    // Seven deviations of √(99 · 40,000): the dice are others in every run.
    assert!((26_000..54_000).contains(&value), "{value}");
    assert_eq!(field(&mut client, "v:a", "value"), Some(value));
    assert_eq!((field(&mut client, "v:a", "exact"), field(&mut client, "v:a", "sampled_rate")), (Some(0), Some(100)));
    let deviation = field(&mut client, "v:a", "sampled_deviation").expect("it is told");
    assert!((deviation - ((99 * value) as f64).sqrt() as i64).abs() <= 1, "{deviation}");
    let (low, high) = (field(&mut client, "v:a", "bound_low"), field(&mut client, "v:a", "bound_high"));
    assert!(low < Some(value) && high > Some(value), "{low:?} to {high:?}");
    let (status, reading) = json(&program, "GET", "/v1/counters/v:a", "");
    assert_eq!((status, &reading["exact"], &reading["value"]), (200, &false.into(), &value.into()));
    assert_eq!((&reading["sampled"]["rate"], &reading["sampled"]["deviation"]), (&100.into(), &deviation.into()));
    assert_eq!(reading["bound"]["low"].as_i64(), low);

    // What needs exactness is refused by name, on both doors; and so is what is sampled more
    // rarely.
    for (request, text) in [
        (
            &["DECR", "v:a"][..],
            "WRONGTYPE a decrement needs an exact counter, and this one is sampled; nothing was applied",
        ),
        (
            &["INCRBY", "auto:a", "-5"],
            "WRONGTYPE a decrement needs an exact counter, and this one is sampled; nothing was applied",
        ),
        (
            &["SET", "v:a", "-1"],
            "WRONGTYPE a count below 0 needs an exact counter, and this one is sampled; nothing was applied",
        ),
        (
            &["QUIPU.THINNED", "v:a", "1010", "101"],
            "WRONGTYPE what was sampled before it is sent needs a namespace with sample = 101 or more; nothing was applied",
        ),
        (
            &["QUIPU.THINNED", "plain:a", "20", "2"],
            "WRONGTYPE what was sampled before it is sent needs a namespace with sample = 2 or more; nothing was applied",
        ),
    ] {
        assert_eq!(call(&mut client, request), Value::Error(text.into()), "{request:?}");
    }
    let (status, problem) = json(&program, "POST", "/v1/counters/v:a/add", "{\"delta\": -1}");
    assert_eq!(status, 409, "{problem}");
    assert_eq!(number(&call(&mut client, &["QUIPU.THINNED", "v:a", "500", "100"])), value + 500);

    // Few events are exact under auto.
    assert_eq!(incr(&mut client, "auto:a", 500).last(), Some(&500));
    assert_eq!((field(&mut client, "auto:a", "exact"), field(&mut client, "auto:a", "sampled_rate")), (Some(1), None));
    let (_, metrics) = ask(&program, "GET", "/metrics", "");
    assert!(metrics.contains("\nquipu_sampled_events_total 40000\n"), "{metrics}");
    assert!(metrics.contains("\nquipu_sampling_rate 1\n"));

    // Also asked for in the middle of a pipeline that adds.
    let requests = [&["INCR", "v:a"][..], &["INFO", "quipu"], &["INCRBY", "v:a", "200"], &["INFO", "quipu"]];
    let words = |request: &[&str]| request.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    client.send(&requests.map(words)).expect("it takes requests");
    let replies: Vec<Value> = (0..4).map(|_| client.receive().expect("it answers")).collect();
    let observed =
        [&replies[1], &replies[3]].map(|reply| String::from_utf8_lossy(reply.bytes().expect("text")).into_owned());
    assert!(observed.iter().all(|observed| observed.contains("sampling_rate:1\r\n")), "{observed:?}");
    let value = number(&replies[2]);

    // Killed, and started by a file that says nothing of it: what was sampled says so, what begins
    // is exact.
    program.kill9();
    program = start(&with_file(data.path(), ""));
    client = connect(&program);
    assert_eq!((field(&mut client, "v:a", "value"), field(&mut client, "v:a", "exact")), (Some(value), Some(0)));
    assert_eq!(number(&call(&mut client, &["INCR", "v:a"])), value + 1);
    assert_eq!(field(&mut client, "v:a", "sampled_rate"), Some(100));
    assert_eq!(incr(&mut client, "v:b", 3), [1, 2, 3]);
    assert_eq!(field(&mut client, "v:b", "exact"), Some(1));
    assert_eq!(number(&call(&mut client, &["DECR", "v:b"])), 2);
    assert_eq!(call(&mut client, &["SET", "v:a", "5"]), Value::Simple("OK".into()));
    assert_eq!((field(&mut client, "v:a", "exact"), number(&call(&mut client, &["DECR", "v:a"]))), (Some(1), 4));
    program.terminate().expect("it ends");
}

/// Looks while the journal keeps up: whether it does is for the disk of this machine to say, which
/// others use as well.
#[test]
fn what_is_sampled_in_an_overload_is_exact_while_there_is_none() {
    let data = TempDir::new().expect("a directory");
    let program = start(&with_file(data.path(), "[namespace.o]\noverload = \"sample\"\n"));
    let mut client = connect(&program);
    let bounded = call(&mut client, &["INCREX", "o:a", "BYINT", "1", "UBOUND", "5"]);
    let text = "WRONGTYPE an add with bounds needs an exact counter, and this one is sampled; nothing was applied";
    assert_eq!(bounded, Value::Error(text.into()), "also where nothing has happened yet");
    let keeps_up = || ask(&program, "GET", "/metrics", "").1.contains("\nquipu_sampling_rate 1\n");
    let exact_reading = (0..LOOKS_MAX).find_map(|attempt| {
        let (began, name) = (now(), format!("o:{attempt}"));
        if !keeps_up() {
            // Until it is over: a rate is halved once in a second.
            thread::sleep(OVERLOAD_TIME_MIN);
            return None;
        }
        let observed = incr(&mut client, &name, 500).last().copied();
        let reading = ["exact", "sampled_rate"].map(|key| field(&mut client, &name, key));
        // Whatever began since has not ended.
        (keeps_up() && began.elapsed() < OVERLOAD_TIME_MIN).then_some((observed, reading))
    });
    assert_eq!(exact_reading.expect("the journal keeps up at some time"), (Some(500), [Some(1), None]));
    program.terminate().expect("it ends");
}

#[test]
fn sampling_is_said_and_taken_back_at_run_time_and_mistakes_are_named() {
    let data = TempDir::new().expect("a directory");
    let launch = with_file(data.path(), "[namespace.t]\nkind = \"top\"\n");
    let mut program = start(&launch);
    for (path, body, text) in [
        ("/v1/namespaces/x", "{\"sample\": 1}", "'1' is not a number from 2 to 1000000, or auto"),
        ("/v1/namespaces/x", "{\"sample\": \"often\"}", "'often' is not a number from 2 to 1000000, or auto"),
        ("/v1/namespaces/x", "{\"overload\": \"drop\"}", "unknown overload 'drop': it is refuse or sample"),
        (
            "/v1/namespaces/t",
            "{\"sample\": \"auto\"}",
            "sample: only counts are sampled, and kind is top; leave one out",
        ),
        ("/v1/namespaces/x", "{\"sample\": 2, \"window\": \"1h/60\"}", "window is of approximate kinds"),
    ] {
        let (status, problem) = ask(&program, "PUT", path, body);
        assert!(status == 422 || status == 400, "{status}: {problem}");
        assert!(problem.contains(text), "{problem}");
    }
    let (status, shown) = json(&program, "PUT", "/v1/namespaces/x", "{\"sample\": 10}");
    assert_eq!((status, &shown["settings"]["sample"]["value"]), (200, &10.into()), "{shown}");
    let mut client = connect(&program);
    incr(&mut client, "x:a", 1_000);
    assert_eq!(field(&mut client, "x:a", "sampled_rate"), Some(10));
    let (status, _) = json(&program, "PUT", "/v1/namespaces/x", "{}");
    assert_eq!(status, 200);
    for round in 0..2 {
        let value = field(&mut client, "x:a", "value").expect("it has one");
        assert_eq!(number(&call(&mut client, &["INCR", "x:a"])), value + 1, "round {round}");
        assert_eq!(
            (field(&mut client, "x:a", "exact"), field(&mut client, "x:a", "sampled_rate")),
            (Some(0), Some(10))
        );
        program.kill9();
        program = start(&launch);
        client = connect(&program);
    }
    program.terminate().expect("it ends");
}

#[test]
fn a_file_that_cannot_be_is_refused_with_its_line() {
    let data = TempDir::new().expect("a directory");
    let mut text = String::new();
    writeln!(text, "[namespace.a]\nsample = 1\n[namespace.b]\nkind = \"unique\"\nsample = \"auto\"").expect("memory");
    let refused = with_file(data.path(), &text).start();
    let Err(LaunchError::Ended { stderr, .. }) = refused else { panic!("{refused:?}") };
    for line in [
        "quipu.toml:2: in [namespace.a]: sample: '1' is not a number from 2 to 1000000, or auto",
        "quipu.toml:5: in [namespace.b]: sample: only counts are sampled, and kind is unique; leave one out",
        "quipu: 2 mistakes in the configuration",
    ] {
        assert!(stderr.contains(line), "{stderr}");
    }
}
