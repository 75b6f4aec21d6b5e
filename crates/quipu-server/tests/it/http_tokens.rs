//! Mutations with an identity over HTTP, and their retries.

use serde_json::json;

use crate::http_client::HttpClient;
use crate::test_server::TestServer;

#[test]
fn a_retry_gets_the_same_reply_and_another_request_under_its_name_is_refused() {
    let server = TestServer::open();
    let key = "Idempotency-Key: order-1\r\n";
    let first = HttpClient::connect_to(&server).ask("POST", "/v1/counters/likes:42/add", key, "{\"delta\": 5}");
    assert_eq!((first.status, first.json()["value"].as_i64()), (200, Some(5)));
    for body in ["{\"delta\": 5}", "{\"delta\": \"5\", \"token\": \"order-1\"}", " {\"delta\":5.0}"] {
        let again = HttpClient::connect_to(&server).ask("POST", "/v1/counters/likes:42/add", key, body);
        assert_eq!((again.status, &again.body), (200, &first.body), "{body}");
    }
    let mut http = HttpClient::connect_to(&server);
    http.ask("POST", "/v1/counters/likes:42/add", key, "{\"delta\": 6}").is_problem(422, "token-mismatch");
    http.ask("POST", "/v1/counters/likes:43/add", key, "{\"delta\": 5}").is_problem(422, "token-mismatch");
    http.ask("POST", "/v1/counters/likes:42/reset", key, "").is_problem(422, "token-mismatch");
    http.ask("DELETE", "/v1/counters/likes:42", key, "").is_problem(422, "token-mismatch");
    // What asks for no reply is the same mutation.
    assert_eq!(http.ask("POST", "/v1/counters/likes:42/add?reply=none", key, "{\"delta\": 5}").status, 204);
    assert_eq!(http.get("/v1/counters/likes:42").json()["value"], 5);
    server.client().ask("INCRBY likes:42 5 IDMP \"\" order-1", ":5\r\n");
}

#[test]
fn every_mutation_can_be_named() {
    let server = TestServer::open();
    let mut http = HttpClient::connect_to(&server);
    http.post("/v1/counters/a/add", "{\"delta\": 7}");
    for _ in 0..3 {
        let reset = http.ask("POST", "/v1/counters/a/reset", "Idempotency-Key: \"r\"\r\n", "").json();
        assert_eq!((&reset["before"], &reset["value"]), (&json!(7), &json!(0)));
        let deleted = http.ask("DELETE", "/v1/counters/a", "Idempotency-Key: d\r\n", "").json();
        assert_eq!(deleted["deleted"], true);
    }
    assert_eq!(http.get("/v1/counters/a").json()["exists"], false);
}

#[test]
fn a_producer_may_number_what_it_does() {
    let server = TestServer::open();
    let mut http = HttpClient::connect_to(&server);
    let add = |seq: u64| format!("{{\"producer\": \"importer\", \"seq\": {seq}}}");
    http.post("/v1/counters/a/add", &add(2)).is_problem(409, "sequence-gap");
    for (seq, value) in [(1, 1), (1, 1), (2, 2), (2, 2)] {
        assert_eq!(http.post("/v1/counters/a/add", &add(seq)).json()["value"], value);
    }
    http.post("/v1/counters/a/add", &add(1)).is_problem(409, "sequence-applied");
}

#[test]
fn a_name_that_is_none_is_refused_and_nothing_is_applied() {
    let server = TestServer::open();
    let mut http = HttpClient::connect_to(&server);
    let two = "Idempotency-Key: a\r\nIdempotency-Key: b\r\n";
    let long = format!("Idempotency-Key: {}\r\n", "k".repeat(1_000));
    for (headers, body) in [
        (two, ""),
        (&long, ""),
        ("Idempotency-Key:\r\n", ""),
        ("Idempotency-Key: a\r\n", "{\"token\": \"b\"}"),
        ("", "{\"producer\": \"p\"}"),
        ("", "{\"seq\": 1}"),
        ("", "{\"producer\": \"p\", \"seq\": 0}"),
    ] {
        http.ask("POST", "/v1/counters/a/add", headers, body).is_problem(400, "bad-token");
    }
    http.post("/v1/counters/a/add", "{\"producer\": \"p\", \"seq\": -1}").is_problem(400, "bad-body");
    http.ask("POST", "/v1/counters/a/add", "Idempotency-Key: 1000000000000-x\r\n", "").is_problem(422, "token-too-old");
    http.ask("POST", "/v1/counters/a/add", "Idempotency-Key: 9999999999999-x\r\n", "")
        .is_problem(422, "token-from-future");
    assert_eq!(http.get("/v1/counters/a").json()["exists"], false);
}

#[test]
fn a_batch_can_be_named_as_a_whole_or_item_by_item() {
    let server = TestServer::open();
    let mut http = HttpClient::connect_to(&server);
    let (key, items) = (
        "Idempotency-Key: b-1\r\n",
        "[{\"name\": \"a\"}, {\"name\": \"a\", \"delta\": 2}, {\"op\": \"read\", \"name\": \"a\"}]",
    );
    for _ in 0..3 {
        let results = http.ask("POST", "/v1/batch", key, items).json();
        assert_eq!(
            (&results[0]["value"], &results[1]["value"], &results[2]["value"]),
            (&json!(1), &json!(3), &json!(3))
        );
    }
    // Under the same name, what is the same is answered and what is another item is refused.
    let other = http.ask("POST", "/v1/batch", key, "[{\"name\": \"a\"}, {\"name\": \"a\", \"delta\": 3}]").json();
    assert_eq!((&other[0]["value"], &other[1]["status"]), (&json!(1), &json!(422)));
    for _ in 0..2 {
        let lines = "{\"name\": \"b\", \"token\": \"t\"}\n{\"name\": \"b\", \"producer\": \"p\", \"seq\": 1}\n";
        let results = http.post("/v1/batch", lines);
        assert!(results.text().contains("\"value\":1") && results.text().contains("\"value\":2"), "{}", results.text());
    }
    http.ask("POST", "/v1/batch", key, "[{\"name\": \"a\", \"token\": \"t\"}]").is_problem(400, "bad-body");
    http.post("/v1/batch", "[{\"op\": \"read\", \"name\": \"a\", \"token\": \"t\"}]").is_problem(400, "bad-body");
    let mut whole = http.get("/metrics");
    let metrics = String::from_utf8(std::mem::take(&mut whole.body)).unwrap();
    assert!(metrics.contains("quipu_token_hits_total 7\n"), "{metrics}");
    assert_eq!(http.get("/v1/counters/a").json()["value"], 3);
}
