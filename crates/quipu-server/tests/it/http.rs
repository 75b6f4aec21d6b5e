//! HTTP: every route and every error, through real sockets.

use quipu_engine::{Engine, Options};
use quipu_model::{Millis, Name};
use quipu_server::Password;
use serde_json::{Value, json};

use crate::commit::{Gate, SILENCE_TIME, Sync};
use crate::http_client::HttpClient;
use crate::test_server::TestServer;

#[test]
fn a_counter_lives_from_its_first_add_to_its_end() {
    let server = TestServer::open();
    let mut http = HttpClient::connect_to(&server);
    let added = http.post("/v1/counters/likes:42/add", "");
    assert_eq!((added.status, added.header("content-type")), (200, Some("application/json")));
    assert_eq!(added.json(), json!({"name": "likes:42", "value": 1, "value_string": "1"}));
    assert_eq!(http.post("/v1/counters/likes:42/add", "{\"delta\": 1200}").json()["value"], 1_201);
    assert_eq!(http.post("/v1/counters/likes:42/add", "{\"delta\": \"-1\"}").json()["value"], 1_200);
    let no_reply = http.post("/v1/counters/likes:42/add?reply=none", "{}");
    assert_eq!((no_reply.status, no_reply.body.len()), (204, 0));

    let reading = http.get("/v1/counters/likes:42").json();
    for (key, value) in [
        ("name", json!("likes:42")),
        ("kind", json!("count")),
        ("value", json!(1_201)),
        ("value_string", json!("1201")),
        ("exists", json!(true)),
        ("exact", json!(true)),
        ("lag_ms", json!(0)),
        ("bound", json!({"low": 1_201, "high": 1_201})),
        ("shards", json!({"seen": 1, "total": 1})),
        ("writers", json!({"seen": 1, "total": 1})),
        ("expires_at", Value::Null),
        ("display", json!("1.2K")),
    ] {
        assert_eq!(reading[key], value, "{key}");
    }
    assert!(reading["as_of"].as_str().unwrap().ends_with('Z'));

    let reset = http.post("/v1/counters/likes:42/reset", "").json();
    assert_eq!((&reset["before"], &reset["value"]), (&json!(1_201), &json!(0)));
    server.client().ask("GET likes:42", "$1\r\n0\r\n");
    let deleted = http.ask("DELETE", "/v1/counters/likes:42", "", "").json();
    assert_eq!(deleted, json!({"name": "likes:42", "deleted": true}));
    assert_eq!(http.ask("DELETE", "/v1/counters/likes:42", "", "").json()["deleted"], false);
    let gone = http.get("/v1/counters/likes:42").json();
    assert_eq!((&gone["exists"], &gone["value"]), (&json!(false), &json!(0)));
}

#[test]
fn names_are_any_bytes_and_both_doors_mean_the_same() {
    let server = TestServer::open();
    let mut http = HttpClient::connect_to(&server);
    assert_eq!(http.post("/v1/counters/a%2Fb%20c%3F/add", "").json()["name"], "a/b c?");
    server.client().ask("GET \"a/b c?\"", "$1\r\n1\r\n");
    let odd = http.post("/v1/counters/%00%ff/add", "").json();
    assert_eq!((&odd["name"], &odd["name_encoded"]), (&json!("\u{0}\u{fffd}"), &json!("%00%FF")));
    server.client().ask("GET \"\\x00\\xff\"", "$1\r\n1\r\n");
    assert_eq!(http.post(&format!("/v1/counters/{}/add", "a".repeat(512)), "").status, 200);
    assert_eq!(http.post(&format!("/v1/counters/{}/add", "%41".repeat(512)), "").status, 200);
    http.post(&format!("/v1/counters/{}/add", "a".repeat(513)), "").is_problem(400, "bad-path");
    http.post("/v1/counters/a%2/add", "").is_problem(400, "bad-path");
    http.post("/v1/counters//add", "").is_problem(400, "bad-path");
}

#[test]
fn totals_beyond_doubles_are_strings_and_overflow_is_refused() {
    let server = TestServer::open();
    let mut http = HttpClient::connect_to(&server);
    let most = http.post("/v1/counters/a/add", "{\"delta\": 9223372036854775807}").json();
    assert_eq!((&most["value"], &most["value_string"]), (&json!("9223372036854775807"), &json!("9223372036854775807")));
    http.post("/v1/counters/a/add", "").is_problem(409, "overflow");
    assert_eq!(http.get("/v1/counters/a").json()["bound"]["high"], "9223372036854775807");
}

#[test]
fn counters_are_listed_with_prefix_and_cursor() {
    let server = TestServer::open();
    let mut http = HttpClient::connect_to(&server);
    for number in 0..250 {
        server.engine.add(format!("n:{number}"), number).unwrap();
        server.engine.add(format!("m*{number}"), 1).unwrap();
    }
    let (mut names, mut path, mut pages) = (Vec::new(), "/v1/counters?prefix=n:&limit=40".to_owned(), 0);
    loop {
        let page = http.get(&path).json();
        for counter in page["counters"].as_array().unwrap() {
            let name = counter["name"].as_str().unwrap().to_owned();
            assert_eq!(format!("n:{}", counter["value_string"].as_str().unwrap()), name);
            names.push(name);
        }
        pages += 1;
        match page["cursor"].as_str() {
            Some(cursor) => path = format!("/v1/counters?prefix=n:&limit=40&cursor={cursor}"),
            None => break,
        }
    }
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), 250);
    assert!(pages > 5, "{pages} pages");
    // A star in a prefix is a star.
    let stars = http.get("/v1/counters?limit=1000&prefix=m%2A1").json();
    assert_eq!(stars["counters"].as_array().unwrap().len(), 111);
    assert_eq!(http.get("/v1/counters?prefix=nothing").json(), json!({"counters": [], "cursor": null}));
    for query in ["limit=0", "limit=1001", "limit=x", "cursor=x", "prefix=%f", "what=1", "limit=1&limit=2"] {
        http.get(&format!("/v1/counters?{query}")).is_problem(400, "bad-query");
    }
    http.get(&format!("/v1/counters?prefix={}", "a".repeat(256))).is_problem(400, "bad-query");
}

#[test]
fn what_is_not_understood_is_named_and_nothing_is_applied() {
    let server = TestServer::open();
    let mut http = HttpClient::connect_to(&server);
    for (body, word) in [
        ("{\"delta\": 1.5}", "whole number"),
        ("{\"delta\": 1e400}", "out of range"),
        // As a double, each would be another number, and a whole one.
        ("{\"delta\": 9.007199254740993e15}", "out of range"),
        ("{\"delta\": 9007199254740993.0}", "out of range"),
        ("{\"delta\": 4503599627370496.3}", "4503599627370496.3 is not a whole number"),
        ("{\"delta\": 1.0000000000000000001}", "1.0000000000000000001 is not a whole number"),
        ("{\"delta\": 18446744073709551616}", "whole number"),
        ("{\"dleta\": 1}", "unknown field `dleta`"),
        ("{\"delta\"", "EOF"),
        ("[[[[[[]]]]]]", "an object such as"),
        ("delta=1", "expected"),
    ] {
        let problem = http.post("/v1/counters/a/add", body).is_problem(400, "bad-body");
        assert!(problem["detail"].as_str().unwrap().contains(word), "{body}: {problem}");
    }
    let batch = "[{\"name\": \"a\"}, {\"name\": \"a\", \"delta\": 9.007199254740993e15}]";
    let problem = http.post("/v1/batch", batch).is_problem(400, "bad-body");
    assert!(problem["detail"].as_str().unwrap().starts_with("item 1: out of range"), "{problem}");
    let deep = format!("{{\"delta\": {}", "[".repeat(3_000));
    http.post("/v1/counters/a/add", &deep).is_problem(400, "bad-body");
    http.post("/v1/counters/a/reset", "{\"delta\": 1}").is_problem(400, "bad-body");
    http.post("/v1/counters/a/add?reply=some", "").is_problem(400, "bad-query");
    http.post("/v1/counters/a/add?delta=2", "").is_problem(400, "bad-query");
    http.get("/v1/counters/a?x").is_problem(400, "bad-query");
    assert_eq!(http.get("/v1/counters/a").json()["exists"], false);
    // Bytes that are no text, in a body that says how long it is.
    http.0.send(b"POST /v1/counters/a/add HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\n{\"\xff\"");
    http.read_reply(false).is_problem(400, "bad-body");
}

#[test]
fn unknown_paths_and_methods_are_problems_and_the_connection_goes_on() {
    let server = TestServer::open();
    let mut http = HttpClient::connect_to(&server);
    assert_eq!(http.get("/healthz").text(), "ok\n");
    assert_eq!(http.get("/readyz").text(), "ready\n");
    for path in ["/", "/nothing", "/v1", "/v1/counters/", "/v1/counters/a/b", "/v1/counters/a/add/"] {
        http.get(path).is_problem(404, "no-route");
    }
    for (method, path, allow) in [
        ("DELETE", "/healthz", "GET, HEAD"),
        ("GET", "/v1/counters/a/add", "POST"),
        ("PUT", "/v1/counters/a", "GET, HEAD, DELETE"),
        ("OPTIONS", "/v1/counters/a/add", "POST"),
        ("GET", "/v1/batch", "POST"),
    ] {
        let reply = http.ask(method, path, "", "");
        reply.is_problem(405, "method-not-allowed");
        assert_eq!(reply.header("allow"), Some(allow));
        assert_eq!(reply.header("access-control-allow-origin"), None);
    }
    let head = http.ask("HEAD", "/v1/counters/a", "", "");
    assert_eq!((head.status, head.body.len()), (200, 0));
    assert_eq!(http.post("/v1/counters/a/add", "").json()["value"], 1);
}

#[test]
fn with_a_password_only_health_is_told_without_it() {
    let server = TestServer::open_with(|options| options.password = Some(Password::new(b"secret").unwrap()));
    for path in ["/v1/counters/a", "/v1/counters", "/metrics", "/openapi.json", "/nothing", "/v1/counters/a/watch"] {
        for headers in
            ["", "Authorization: Bearer wrong\r\n", "Authorization: Basic c2VjcmV0\r\n", "Authorization: secret\r\n"]
        {
            let mut http = HttpClient::connect_to(&server);
            let reply = http.ask("GET", path, headers, "");
            reply.is_problem(401, "unauthorized");
            assert_eq!(reply.header("www-authenticate"), Some("Bearer realm=\"quipu\""));
            http.0.expect_closed_after("");
        }
    }
    let mut unauthenticated = HttpClient::connect_to(&server);
    unauthenticated.ask("POST", "/v1/counters/a/add", "", "{\"delta\": 1}").is_problem(401, "unauthorized");
    let mut http = HttpClient::connect_to(&server);
    assert_eq!((http.get("/healthz").status, http.get("/readyz").status), (200, 200));
    let right = "Authorization: Bearer secret\r\n";
    assert_eq!(http.ask("GET", "/v1/counters/a", right, "").json()["exists"], false);
    assert_eq!(http.ask("POST", "/v1/counters/a/add", right, "").json()["value"], 1);
    // Each request for itself: that one was let in says nothing of the next.
    http.get("/v1/counters/a").is_problem(401, "unauthorized");
}

#[test]
fn a_batch_has_a_result_for_each_item_in_order() {
    let server = TestServer::open();
    let mut http = HttpClient::connect_to(&server);
    let batch = json!([
        {"name": "a", "delta": 5},
        {"name": "a", "delta": "9223372036854775807"},
        {"op": "read", "name": "a"},
        {"op": "reset", "name": "a"},
        {"op": "delete", "name": "a"},
        {"op": "delete", "name_encoded": "%ff"},
        {"name": "b"},
    ]);
    let results = http.post("/v1/batch", &batch.to_string()).json();
    let results = results.as_array().unwrap();
    assert_eq!(results[0], json!({"status": 200, "name": "a", "value": 5, "value_string": "5"}));
    assert_eq!((&results[1]["status"], &results[1]["type"]), (&json!(409), &json!("urn:quipu:problem:overflow")));
    assert_eq!(
        (&results[2]["status"], &results[2]["value"], &results[2]["exact"]),
        (&json!(200), &json!(5), &json!(true))
    );
    assert_eq!(results[3]["before"], 5);
    assert_eq!(results[4], json!({"status": 200, "name": "a", "deleted": true}));
    assert_eq!(results[5]["deleted"], false);
    assert_eq!(results[6]["value"], 1);
    assert_eq!(results.len(), 7);
    assert_eq!(http.post("/v1/batch", "[]").json(), json!([]));

    let lines = http.post("/v1/batch", "{\"name\": \"b\"}\r\n\n{\"name\": \"b\", \"delta\": 2}\n");
    assert_eq!(lines.header("content-type"), Some("application/x-ndjson"));
    let values: Vec<Value> = lines.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((values.len(), &values[0]["value"], &values[1]["value"]), (2, &json!(2), &json!(4)));
    http.post("/v1/batch", "").is_problem(400, "bad-body");

    // A mistake anywhere refuses all of it, before anything is applied.
    http.post("/v1/batch", "[{\"name\": \"b\"}, {\"name\": \"b\", \"op\": \"set\"}]").is_problem(400, "bad-body");
    assert_eq!(http.get("/v1/counters/b").json()["value"], 4);
    let many = "{\"name\": \"c\"}\n".repeat(2_048);
    let reply = http.post("/v1/batch", &many);
    assert_eq!((reply.status, reply.text().lines().count()), (200, 2_048));
    http.post("/v1/batch", &format!("{many}{{\"name\": \"c\"}}")).is_problem(413, "body-too-large");
    assert_eq!(HttpClient::connect_to(&server).get("/v1/counters/c").json()["value"], 2_048);
}

#[test]
fn a_request_on_a_counter_at_rest_waits_and_the_others_go_on() {
    let directory = tempfile::tempdir().unwrap();
    let engine = Engine::open(Options::new(directory.path())).unwrap();
    for number in 0..300 {
        engine.add(format!("n:{number}"), number).unwrap();
    }
    engine.close().unwrap();
    drop(engine);
    let engine = Engine::open(Options::new(directory.path())).unwrap();
    let server = TestServer::serve(engine, directory, |_| {});
    let mut http = HttpClient::connect_to(&server);
    assert_eq!(http.get("/v1/counters/n:7").json()["value"], 7);
    assert_eq!(http.post("/v1/counters/n:8/add", "").json()["value"], 9);
    assert_eq!(http.post("/v1/counters/n:9/reset", "").json()["before"], 9);
    assert_eq!(http.ask("DELETE", "/v1/counters/n:10", "", "").json()["deleted"], true);
    let batch: String = (100..200).map(|number| format!("{{\"name\": \"n:{number}\"}}\n")).collect();
    let reply = http.post("/v1/batch", &batch);
    for (line, number) in reply.text().lines().zip(101..) {
        assert_eq!(serde_json::from_str::<Value>(line).unwrap()["value"], number);
    }
    let listed = http.get("/v1/counters?limit=1000&prefix=n:").json();
    assert_eq!((listed["counters"].as_array().unwrap().len(), &listed["cursor"]), (299, &Value::Null));
}

#[test]
fn no_reply_leaves_before_what_it_includes_is_on_disk() {
    let gate = Gate::open();
    let server = TestServer::open_on(gate.environment());
    let (mut writer, mut reader) = (HttpClient::connect_to(&server), HttpClient::connect_to(&server));
    writer.post("/v1/counters/n/add", "");
    gate.set(Sync::Waits);
    writer.send("POST", "/v1/counters/n/add?reply=none", "", "");
    writer.0.expect_silence(SILENCE_TIME);
    reader.send("GET", "/v1/counters/n", "", "");
    reader.0.expect_silence(SILENCE_TIME);
    gate.set(Sync::Passes);
    assert_eq!(writer.read_reply(false).status, 204);
    assert_eq!(reader.read_reply(false).json()["value"], 2);
}

#[test]
fn when_the_disk_fails_there_is_no_reply() {
    let gate = Gate::open();
    let server = TestServer::open_on(gate.environment());
    let mut http = HttpClient::connect_to(&server);
    http.post("/v1/counters/n/add", "");
    gate.set(Sync::Fails);
    http.send("POST", "/v1/counters/n/add", "", "");
    http.0.expect_closed_after("");
    gate.set(Sync::Passes);
}

#[test]
fn expiry_is_part_of_a_reading() {
    let server = TestServer::open();
    let mut http = HttpClient::connect_to(&server);
    server.client().ask("SET a 1 EX 1000", "+OK\r\n");
    let at = server.engine.read("a").unwrap().expires_at.unwrap();
    let text = quipu_protocol::json::rfc3339(Millis(at.0));
    assert_eq!(http.get("/v1/counters/a").json()["expires_at"], text);
    assert_eq!(Name::new(b"a").unwrap().namespace(), b"default");
}

#[test]
fn metrics_are_told_in_the_format_of_prometheus() {
    let server = TestServer::open();
    let mut http = HttpClient::connect_to(&server);
    for _ in 0..3 {
        http.post("/v1/counters/likes:1/add", "");
    }
    http.get("/v1/counters/likes:1");
    http.post("/v1/counters/likes:1/add", "{\"delta\": 9223372036854775807}").is_problem(409, "overflow");
    server.client().ask("INCR a\nINCRBY a 9223372036854775807", ":1\r\n-ERR increment or decrement would overflow\r\n");
    let reply = http.get("/metrics");
    assert_eq!(reply.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    let text = reply.text();
    for line in [
        "quipu_counters 2",
        "quipu_operations_total{door=\"http\"} 5",
        "quipu_operations_total{door=\"resp\"} 2",
        "quipu_refusals_total{door=\"http\",reason=\"overflow\"} 1",
        "quipu_refusals_total{door=\"resp\",reason=\"overflow\"} 1",
        "quipu_http_seconds_count{operation=\"add\",namespace=\"likes\"} 4",
        "quipu_http_seconds_bucket{operation=\"read\",namespace=\"likes\",le=\"+Inf\"} 1",
        "quipu_connections{door=\"http\"} 1",
        "# TYPE quipu_fsync_seconds histogram",
        "quipu_disk_full 0",
    ] {
        assert!(text.lines().any(|reply| reply == line), "{line} is not in\n{text}");
    }
    assert!(!text.contains("quipu_store_puts_total"), "there is no store");
    // Every line is a comment or a name, labels and a number; every sample has been announced.
    let mut announced = Vec::new();
    for line in text.lines() {
        if let Some(comment) = line.strip_prefix("# ") {
            let mut words = comment.split(' ');
            if words.next() == Some("TYPE") {
                announced.push(words.next().unwrap().to_owned());
            }
            continue;
        }
        let (name, value) = line.rsplit_once(' ').unwrap();
        assert!(value.parse::<f64>().is_ok(), "{line}");
        let name = name.split('{').next().unwrap();
        let base = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| name.strip_suffix(suffix));
        assert!(announced.iter().any(|known| known == name || base == Some(known)), "{line}");
    }
}

#[test]
fn counters_of_every_approximate_kind_are_observed_and_read() {
    let server = TestServer::open();
    let mut http = HttpClient::connect_to(&server);
    // Different items, unless somebody says otherwise.
    let observed = http.post("/v1/counters/v:1/observe", r#"{"items": ["a", "b", {"item": "a"}]}"#).json();
    assert_eq!(observed, json!({"name": "v:1", "kind": "unique", "changed": true}));
    assert_eq!(http.post("/v1/counters/v:1/observe", r#"{"items": ["a"]}"#).json()["changed"], false);
    let reading = http.get("/v1/counters/v:1").json();
    assert_eq!((&reading["kind"], &reading["value"], &reading["exact"]), (&json!("unique"), &json!(2), &json!(false)));
    assert!(reading["bound"]["low"].as_i64() <= Some(2) && reading["bound"]["high"].as_i64() >= Some(2), "{reading}");
    assert_eq!(reading["display"], "2");
    // How often items came.
    let body = r#"{"kind": "frequency", "items": ["x", {"item": "y", "count": 41}, "x"]}"#;
    let counted = http.post("/v1/counters/f:1/observe", body).json();
    assert_eq!((&counted["kind"], &counted["items"][1]["at_most"]), (&json!("frequency"), &json!(41)));
    // What it is need not be said again.
    assert_eq!(http.post("/v1/counters/f:1/observe", r#"{"items": ["x"]}"#).json()["items"][0]["at_most_string"], "3");
    let read = http.get("/v1/counters/f:1/frequency?item=x&item=y&item=%ff").json();
    assert_eq!((&read["total"], read["items"].as_array().unwrap().len()), (&json!(44), 3));
    assert_eq!((&read["items"][0]["at_most"], &read["items"][1]["typical"]), (&json!(3), &json!(41)));
    assert_eq!((&read["items"][2]["item_encoded"], &read["items"][2]["at_most"]), (&json!("%FF"), &json!(0)));
    let reading = http.get("/v1/counters/f:1").json();
    assert_eq!((&reading["value"], &reading["bound"]), (&json!(44), &json!({"low": 44, "high": 44})));
    assert_eq!((&reading["exact"], &reading["error"]), (&json!(false), &json!(1)));
    // Which came most often: in a namespace for it, nobody has to say so.
    let put = http.ask("PUT", "/v1/namespaces/t", "", r#"{"kind": "top"}"#);
    assert_eq!(put.status, 200);
    let items: Vec<Value> = (1..=30).map(|n| json!({"item": format!("i{n}"), "count": n})).collect();
    let listed = http.post("/v1/counters/t:1/observe", &json!({"items": items}).to_string()).json();
    assert_eq!((&listed["kind"], &listed["expelled"]), (&json!("top"), &json!([])));
    let top = http.get("/v1/counters/t:1/top?k=2").json();
    let row = |key: &str, n: u64| json!({"key": key, "at_most": n, "at_most_string": n.to_string(), "at_least": n, "at_least_string": n.to_string(), "certain": true});
    assert_eq!(top["rows"], json!([row("i30", 30), row("i29", 29)]));
    assert_eq!(http.get("/v1/counters/t:1/top").json()["rows"].as_array().unwrap().len(), 10);
    // All of them are listed, and told over RESP, too.
    let all = http.get("/v1/counters?limit=1000").json();
    let mut kinds: Vec<&str> =
        all["counters"].as_array().unwrap().iter().map(|it| it["kind"].as_str().unwrap()).collect();
    kinds.sort_unstable();
    assert_eq!(kinds, ["frequency", "top", "unique"]);
    // What does not exist has seen nothing.
    let nothing = http.get("/v1/counters/f:2/frequency?item=x").json();
    assert_eq!((&nothing["total"], &nothing["items"][0]["at_most"]), (&json!(0), &json!(0)));
    assert_eq!(http.get("/v1/counters/t:2/top").json()["rows"], json!([]));
    // What fits no kind is refused.
    for (path, body, status, word) in [
        ("v:1", r#"{"items": [{"item": "a", "count": 2}]}"#, 400, "bad-body"),
        ("v:1", r#"{"items": [1]}"#, 400, "bad-body"),
        ("v:1", r#"{"items": [{"item": "a", "cuont": 2}]}"#, 400, "bad-body"),
        ("v:1", r#"{"items": ["a"], "kind": "count"}"#, 400, "bad-body"),
        ("v:1", r#"{"items": ["a"], "kind": "top"}"#, 409, "wrong-kind"),
        ("t:3", r#"{"items": ["a"], "kind": "unique"}"#, 409, "wrong-kind"),
    ] {
        http.post(&format!("/v1/counters/{path}/observe"), body).is_problem(status, word);
    }
    let long = json!({"items": ["x".repeat(1_025)]}).to_string();
    http.post("/v1/counters/t:1/observe", &long).is_problem(400, "too-much");
    let many = json!({"items": vec!["x"; 1_001]}).to_string();
    http.post("/v1/counters/f:1/observe", &many).is_problem(400, "bad-body");
    for path in ["v:1/frequency?item=a", "f:1/top", "t:1/frequency?item=a", "t:1/uniques"] {
        http.get(&format!("/v1/counters/{path}")).is_problem(409, "wrong-kind");
    }
    let items = "item=a&".repeat(65);
    assert_eq!(http.get("/v1/counters/f:1/frequency").json()["items"], json!([]));
    for path in [&*format!("f:1/frequency?{items}"), "t:1/top?k=0", "t:1/top?k=10001", "t:1/top?x=1"] {
        http.get(&format!("/v1/counters/{path}")).is_problem(400, "bad-query");
    }
}

#[test]
fn a_window_is_put_and_its_readings_name_it() {
    let server = TestServer::open();
    let mut http = HttpClient::connect_to(&server);
    for (body, word) in [
        (r#"{"window": "1h"}"#, "1h/60"),
        (r#"{"window": "1h/7000"}"#, "1h/60"),
        (r#"{"window": "1h/7"}"#, "1h/60"),
        (r#"{"decay": "0s"}"#, "decay"),
    ] {
        let reply = http.ask("PUT", "/v1/namespaces/w", "", body).is_problem(422, "bad-settings");
        assert!(reply.to_string().contains(word), "{reply}");
    }
    let put = http.ask("PUT", "/v1/namespaces/w", "", r#"{"window": "1h/60", "decay": "30m"}"#).json();
    assert_eq!(put["settings"]["window"]["value"], "1h/60");
    let now = server.engine.now().0;
    for (ago, items) in [(0, r#"["a", "b"]"#), (1_800_000, r#"["b", "c"]"#), (4_000_000, r#"["d"]"#)] {
        for kind in ["unique", "frequency"] {
            let body = format!(r#"{{"kind": "{kind}", "at": {}, "items": {items}}}"#, now - ago);
            assert_eq!(http.post(&format!("/v1/counters/w:{kind}/observe"), &body).status, 200);
        }
    }
    let reading = http.get("/v1/counters/w:unique").json();
    assert_eq!(
        (&reading["value"], &reading["window"]["panes"], &reading["window"]["late"]),
        (&json!(3), &json!(2), &json!(1))
    );
    assert!(reading["window"]["from"].as_str() < reading["window"]["to"].as_str());
    assert_eq!(http.get("/v1/counters/w:unique/uniques").json()["value"], 3);
    let read = http.get("/v1/counters/w:frequency/frequency?item=b&item=d").json();
    assert_eq!(
        (&read["total"], &read["items"][0]["at_most"], &read["items"][1]["at_most"]),
        (&json!(4), &json!(2), &json!(0))
    );
    let body = format!(r#"{{"kind": "top", "at": {}, "items": [{{"item": "old", "count": 100}}]}}"#, now - 3_600_000);
    http.post("/v1/counters/w:top/observe", &body);
    http.post("/v1/counters/w:top/observe", r#"{"items": [{"item": "new", "count": 50}]}"#);
    let top = http.get("/v1/counters/w:top/top").json();
    assert_eq!((&top["rows"][0]["key"], &top["rows"][0]["at_most"]), (&json!("new"), &json!(50)));
    assert!((24..=26).contains(&top["rows"][1]["at_most"].as_i64().unwrap()), "two half-lives: {top}");
    let metrics = http.get("/metrics");
    assert!(metrics.text().contains("\nquipu_late_events_total 2\n"), "one of each kind");
    // The door that has no times says the same.
    server.client().ask("QUIPU.OBSERVE w:unique e", ":1\r\n");
    assert_eq!(http.get("/v1/counters/w:unique").json()["value"], 4);
}

#[test]
fn every_route_answers_as_its_description_says() {
    let server = TestServer::open();
    let mut http = HttpClient::connect_to(&server);
    let document = http.get("/openapi.json").json();
    assert_eq!(document["openapi"], "3.1.0");
    let mut operations = 0;
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            operations += 1;
            let path = path.replace("{name}", operation["parameters"][0]["example"].as_str().unwrap_or_default());
            let bodies = operation["requestBody"]["content"].as_object();
            let bodies: Vec<String> = match bodies {
                None => vec![String::new()],
                Some(bodies) => bodies
                    .values()
                    .map(|body| match &body["example"] {
                        Value::String(text) => text.clone(),
                        example => example.to_string(),
                    })
                    .collect(),
            };
            for body in bodies {
                let mut http = HttpClient::connect_to(&server);
                http.send(&method.to_uppercase(), &path, "", &body);
                let (status, head) = http.head();
                let response = &operation["responses"][status.to_string()];
                assert!((200..300).contains(&status) && response.is_object(), "{method} {path}: {status}");
                let media = head.lines().find_map(|line| line.strip_prefix("content-type: ")).unwrap();
                let media = media.split(';').next().unwrap();
                assert!(response["content"].get(media).is_some(), "{method} {path}: {media}");
            }
            // What does not fit is a problem that is described, too.
            let reply = http.ask(&method.to_uppercase(), &format!("{path}?nonsense=1"), "", "");
            let public = ["/healthz", "/readyz", "/metrics", "/openapi.json"].contains(&path.as_str());
            assert!(public || operation["responses"][reply.status.to_string()].is_object(), "{path}: {}", reply.status);
        }
    }
    assert_eq!(operations, 19);
}
