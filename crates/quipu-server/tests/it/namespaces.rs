//! Namespaces over HTTP: the settings in force, their origins, and their changes.

use quipu_engine::Engine;
use quipu_model::{Durability, NAMESPACE_BYTES_MAX, Namespace};
use quipu_server::Password;
use serde_json::{Value, json};

use crate::http_client::{HttpClient, HttpReply};
use crate::test_server::TestServer;

fn put(http: &mut HttpClient, name: &str, body: &str) -> HttpReply {
    http.ask("PUT", &format!("/v1/namespaces/{name}"), "", body)
}

/// A setting, and where it came from.
fn setting(shown: &Value, key: &str) -> (Value, String) {
    let setting = &shown["settings"][key];
    (setting["value"].clone(), setting["from"].as_str().unwrap().to_owned())
}

#[test]
fn what_is_put_is_in_force_and_says_where_it_came_from() {
    let directory = tempfile::tempdir().unwrap();
    let mut options = quipu_engine::Options::new(directory.path());
    options.namespaces = vec![(b"views"[..].into(), Namespace::with_durability(Durability::Relaxed))];
    let engine = Engine::open(options).unwrap();
    let server = TestServer::serve(engine, directory, |options| {
        options.origins.namespaces.insert((b"views"[..].into(), "durability"), "quipu.toml:7".to_owned());
        options.origins.server.insert("token_window", ("24h".to_owned(), "--token-window".to_owned()));
    });
    let mut http = HttpClient::connect_to(&server);
    let views = http.get("/v1/namespaces/views").json();
    assert_eq!(setting(&views, "durability"), (json!("relaxed"), "quipu.toml:7".to_owned()));
    assert_eq!(setting(&views, "token_window"), (json!("24h"), "--token-window".to_owned()));
    assert_eq!(setting(&views, "kind"), (Value::Null, "default".to_owned()));
    assert_eq!(setting(&views, "ttl"), (Value::Null, "default".to_owned()));
    assert_eq!((&views["put"], &views["put_at"]), (&json!({}), &Value::Null));

    let reply = put(&mut http, "views", r#"{"durability": "memory", "ttl": "1h", "shards": 4, "pick": null}"#);
    assert_eq!((reply.status, reply.header("content-type")), (200, Some("application/json")));
    let views = reply.json();
    let (value, from) = setting(&views, "durability");
    assert_eq!(value, "memory");
    assert_eq!(from, format!("run time at {}", views["put_at"].as_str().unwrap()));
    assert_eq!(setting(&views, "shards").0, 4);
    assert_eq!(setting(&views, "token_window").1, "--token-window");
    assert_eq!(views["put"], json!({"durability": "memory", "ttl": "1h", "shards": 4}));
    assert_eq!(http.get("/v1/namespaces/views").json(), views);
    assert_eq!(server.engine.policies().of_namespace(b"views").durability, Durability::Memory);
    http.post("/v1/counters/views:1/add", "");
    assert!(!http.get("/v1/counters/views:1").json()["expires_at"].is_null());
    server.client().ask("INCR views:2\nTTL views:2", ":1\r\n:3600\r\n");

    put(&mut http, "few", r#"{"max_counters": 2}"#);
    let too_many = "-QUOTA the namespace has 2 counters, which is its limit; existing counters go on counting\r\n";
    server.client().ask("MSET few:1 1 few:2 2 few:3 3", too_many).ask("EXISTS few:1 few:2 few:3", ":0\r\n");
    server.client().ask("MSET few:1 1 few:2 2\nINCR few:3\nINCR few:1", format!("+OK\r\n{too_many}:2\r\n"));
    http.post("/v1/counters/few:3/add", "").is_problem(409, "too-many-counters");
    put(&mut http, "few", "{}");
    // What is put next replaces it; what is left out is as the file says.
    let views = put(&mut http, "views", r#"{"token_window": "10s"}"#).json();
    assert_eq!(setting(&views, "durability"), (json!("relaxed"), "quipu.toml:7".to_owned()));
    assert_eq!(setting(&views, "token_window").0, "10s");
    put(&mut http, "likes%ff", r#"{"fail_mode": "closed"}"#);
    let list = http.get("/v1/namespaces").json();
    let names: Vec<&Value> = list["namespaces"].as_array().unwrap().iter().map(|shown| &shown["name"]).collect();
    assert_eq!(names, [&json!("likes\u{fffd}"), &json!("views")]);
    assert_eq!(list["namespaces"][0]["name_encoded"], "likes%FF");
    assert_eq!(list["namespaces"][1], http.get("/v1/namespaces/views").json());
    for name in ["views", "likes%ff"] {
        let taken_back = put(&mut http, name, "{}").json();
        assert_eq!((&taken_back["put"], &taken_back["put_at"]), (&json!({}), &Value::Null));
    }
    assert_eq!(http.get("/v1/namespaces").json()["namespaces"].as_array().unwrap().len(), 1);
}

#[test]
fn every_mistake_is_named_and_nothing_is_changed() {
    let server = TestServer::open();
    let mut http = HttpClient::connect_to(&server);
    let before = put(&mut http, "likes", r#"{"ttl": "1h"}"#).json();
    let body = r#"{"kind": "tops", "durability": "sometimes", "ttl": 5, "shards": 0, "a/b": 1, "freshness": "2h"}"#;
    let problem = put(&mut http, "likes", body).is_problem(422, "bad-settings");
    let errors = problem["errors"].as_array().unwrap();
    let pointers: Vec<&str> = errors.iter().map(|error| error["pointer"].as_str().unwrap()).collect();
    assert_eq!(pointers, ["#/kind", "#/durability", "#/ttl", "#/shards", "#/a~1b", "#/freshness"]);
    assert_eq!(errors[0]["detail"], "kind: unknown kind 'tops': it is count, unique, frequency, top");
    assert!(problem["detail"].as_str().unwrap().starts_with("6 mistakes"), "{problem}");
    assert_eq!(http.get("/v1/namespaces/likes").json(), before);

    let long = "x".repeat(NAMESPACE_BYTES_MAX);
    assert_eq!(put(&mut http, &long, r#"{"ttl": "1h"}"#).status, 200);
    let problem = put(&mut http, &format!("{long}%3A"), r#"{"ttl": "1x"}"#).is_problem(422, "bad-settings");
    assert_eq!(problem["errors"].as_array().unwrap().len(), 2, "the name and the time: {problem}");
    put(&mut http, &format!("{long}x"), r#"{"ttl": "1h"}"#).is_problem(422, "bad-settings");
    http.get(&format!("/v1/namespaces/{long}x")).is_problem(400, "bad-path");
    http.get("/v1/namespaces/%zz").is_problem(400, "bad-path");
    http.get("/v1/namespaces/likes?x=1").is_problem(400, "bad-query");
    for body in ["", "[]", "{", "7"] {
        put(&mut http, "likes", body).is_problem(400, "bad-body");
    }
    let allowed = http.ask("DELETE", "/v1/namespaces/likes", "", "");
    allowed.is_problem(405, "method-not-allowed");
    assert_eq!(allowed.header("allow"), Some("GET, HEAD, PUT"));
    put(&mut http, "likes", &format!("{{\"ttl\": \"{}\"}}", "1".repeat(5_000))).is_problem(413, "body-too-large");
}

#[test]
fn a_change_needs_the_password_and_no_page_of_another_origin_makes_one() {
    let server = TestServer::open_with(|options| options.password = Some(Password::new(b"secret").unwrap()));
    HttpClient::connect_to(&server).ask("PUT", "/v1/namespaces/likes", "", "{}").is_problem(401, "unauthorized");
    HttpClient::connect_to(&server).get("/v1/namespaces").is_problem(401, "unauthorized");
    let mut http = HttpClient::connect_to(&server);
    let bearer = "Authorization: Bearer secret\r\n";
    assert_eq!(http.ask("PUT", "/v1/namespaces/likes", bearer, r#"{"ttl": "1h"}"#).status, 200);
    let origin = format!("{bearer}Origin: http://elsewhere\r\n");
    http.ask("PUT", "/v1/namespaces/likes", &origin, "{}").is_problem(403, "cross-origin");
    assert_eq!(server.engine.policies().runtime_settings().len(), 1);
}

#[test]
fn changes_that_come_at_once_are_all_answered_and_the_last_is_in_force() {
    let server = TestServer::open();
    std::thread::scope(|scope| {
        for client in 0..8u64 {
            let server = &server;
            scope.spawn(move || {
                let mut http = HttpClient::connect_to(server);
                for round in 0..6u64 {
                    let mode = ["memory", "durable", "relaxed"][((client + round) % 3) as usize];
                    let body = format!("{{\"durability\": \"{mode}\", \"ttl\": \"{}s\"}}", client * 10 + round + 1);
                    assert_eq!(put(&mut http, "likes", &body).status, 200);
                    assert_eq!(http.post(&format!("/v1/counters/likes:{client}/add"), "").status, 200);
                }
            });
        }
    });
    let shown = HttpClient::connect_to(&server).get("/v1/namespaces/likes").json();
    let settings = server.engine.policies().runtime_settings()[&b"likes"[..]].settings.clone();
    assert_eq!(shown["put"]["ttl"], format!("{}s", settings.ttl.unwrap().as_secs()));
}
