//! Requests of web pages of another origin: they can do nothing.
//!
//! The requests have the headers that browsers write; `crates/quipu/tests/clients/chromium.cjs`
//! drives a real browser.

use quipu_server::{HttpHosts, Password};

use crate::http_client::{HttpClient, HttpReply};
use crate::test_server::TestServer;

const ADD: &str = "/v1/counters/a/add";

/// Sends one request with exactly this head, on a connection of its own.
fn ask_raw(server: &TestServer, head: &str) -> HttpReply {
    let mut http = HttpClient::connect_to(server);
    http.0.send(format!("{head}\r\n"));
    http.read_reply(head.starts_with("HEAD "))
}

/// Sends a request under a host.
fn ask_as(server: &TestServer, method: &str, path: &str, host: &str, headers: &str) -> HttpReply {
    ask_raw(server, &format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n{headers}"))
}

#[track_caller]
fn expect_value(server: &TestServer, value: i64) {
    assert_eq!(HttpClient::connect_to(server).get("/v1/counters/a").json()["value"], value);
}

#[test]
fn a_name_that_a_page_points_here_is_not_served() {
    let server = TestServer::open();
    let port = server.http.port();
    for host in [
        format!("evil.example:{port}"),
        "evil.example".to_owned(),
        format!("localhost.evil.example:{port}"),
        String::new(),
    ] {
        // To the page the server is its own origin, and the browser says so.
        let origin = format!("Origin: http://{host}\r\nSec-Fetch-Site: same-origin\r\n");
        for (method, path) in [
            ("GET", "/v1/counters/a"),
            ("GET", "/v1/counters"),
            ("GET", "/v1/counters/a/watch"),
            ("GET", "/v1/namespaces"),
            ("GET", "/metrics"),
            ("GET", "/openapi.json"),
            ("GET", "/healthz"),
            ("GET", "/readyz"),
            ("GET", "/nothing"),
            ("POST", ADD),
            ("POST", "/v1/batch"),
            ("DELETE", "/v1/counters/a"),
            ("PUT", "/v1/namespaces/a"),
            ("OPTIONS", ADD),
        ] {
            let reply = ask_as(&server, method, path, &host, &origin);
            let problem = reply.is_problem(421, "misdirected");
            assert!(problem["detail"].as_str().unwrap().contains("http_hosts"), "{problem}");
            assert_eq!(reply.header("connection"), Some("close"), "its body is not waited for");
        }
        assert_eq!(ask_as(&server, "HEAD", "/v1/counters/a", &host, &origin).status, 421);
    }
    expect_value(&server, 0);
}

#[test]
fn localhost_addresses_and_the_names_of_the_setting_are_served() {
    let server =
        TestServer::open_with(|options| options.http_hosts = HttpHosts::parse("quipu,metrics.internal").unwrap());
    let mut value = 0;
    for host in
        ["localhost", "LocalHost:7380", "127.0.0.1", "192.0.2.7:80", "[::1]:7380", "quipu:80", "metrics.internal"]
    {
        value += 1;
        let origin = format!("Origin: http://{host}\r\nSec-Fetch-Site: same-origin\r\n");
        assert_eq!(ask_as(&server, "POST", ADD, host, &origin).json()["value"], value, "{host}");
        assert_eq!(ask_as(&server, "GET", "/metrics", host, "").status, 200);
    }
    ask_as(&server, "POST", ADD, "quipu.evil.example", "").is_problem(421, "misdirected");
    let long = "a".repeat(1_000);
    let problem = ask_as(&server, "GET", "/healthz", &long, "").is_problem(421, "misdirected");
    assert!(!problem["detail"].as_str().unwrap().contains(&long), "{problem}");
    expect_value(&server, value);
}

#[test]
fn with_a_password_a_server_is_served_under_every_name() {
    let server = TestServer::open_with(|options| options.password = Some(Password::new(b"secret").unwrap()));
    let right = "Authorization: Bearer secret\r\n";
    assert_eq!(ask_as(&server, "POST", ADD, "counters.example", right).json()["value"], 1);
    assert_eq!(ask_as(&server, "GET", "/v1/counters/a", "counters.example", right).json()["value"], 1);
    assert_eq!(ask_as(&server, "GET", "/healthz", "counters.example", "").status, 200);
    // What has no password learns nothing, and what comes from another origin changes nothing even
    // with it.
    ask_as(&server, "POST", ADD, "evil.example", "").is_problem(401, "unauthorized");
    for origin in ["Origin: http://evil.example\r\n", "Sec-Fetch-Site: cross-site\r\n", "Sec-Fetch-Site: same-site\r\n"]
    {
        let headers = format!("{right}{origin}");
        ask_as(&server, "POST", ADD, "counters.example", &headers).is_problem(403, "cross-origin");
        assert_eq!(ask_as(&server, "GET", "/v1/counters/a", "counters.example", &headers).json()["value"], 1);
    }
}

#[test]
fn a_request_names_its_host_once() {
    for password in [None, Some(Password::new(b"secret").unwrap())] {
        let server = TestServer::open_with(|options| options.password = password);
        for head in [
            format!("POST {ADD} HTTP/1.1\r\n"),
            format!("POST {ADD} HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n"),
            format!("POST {ADD} HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n"),
            format!("POST {ADD} HTTP/1.0\r\nHost: localhost\r\nhost: evil.example\r\n"),
            format!("POST http://localhost{ADD} HTTP/1.1\r\n"),
            format!("POST http://localhost{ADD} HTTP/1.1\r\nHost: evil.example\r\n"),
            format!("POST http://evil.example{ADD} HTTP/1.1\r\nHost: localhost\r\n"),
            format!("POST http://evil@localhost{ADD} HTTP/1.1\r\nHost: localhost\r\n"),
        ] {
            let reply = ask_raw(&server, &head);
            reply.is_problem(400, "bad-host");
            assert_eq!(reply.header("connection"), Some("close"), "{head}");
        }
    }
    let server = TestServer::open();
    ask_raw(&server, &format!("POST http://evil.example{ADD} HTTP/1.0\r\n")).is_problem(421, "misdirected");
    expect_value(&server, 0);
    // A proxy writes the whole address; a probe may speak HTTP/1.0, which no browser does.
    assert_eq!(ask_raw(&server, &format!("POST http://localhost{ADD} HTTP/1.1\r\nHost: LOCALHOST\r\n")).status, 200);
    assert_eq!(ask_raw(&server, &format!("POST {ADD} HTTP/1.0\r\n")).status, 200);
    expect_value(&server, 2);
}

#[test]
fn a_page_of_another_origin_changes_nothing() {
    let server = TestServer::open();
    for headers in [
        "Origin: http://evil.example\r\n",
        "Origin: null\r\n",
        "Origin: http://localhost.evil.example\r\n",
        "Origin: http://localhost:8080\r\n",
        "Origin: localhost\r\n",
        "Origin:\r\n",
        "Origin: http://localhost\r\nOrigin: http://evil.example\r\n",
        "Origin: http://evil.example\r\nOrigin: http://localhost\r\n",
        "Origin: http://\u{e9}\r\n",
        "Sec-Fetch-Site: cross-site\r\n",
        "Sec-Fetch-Site: same-site\r\n",
        "Sec-Fetch-Site: something-new\r\n",
        "Sec-Fetch-Site: same-origin\r\nSec-Fetch-Site: cross-site\r\n",
        "Origin: http://localhost\r\nSec-Fetch-Site: cross-site\r\n",
        "Origin: http://evil.example\r\nSec-Fetch-Site: same-origin\r\n",
        // A form that opens its reply in a window.
        "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: document\r\n",
        // What a page or a proxy may add says nothing.
        "Origin: http://evil.example\r\nReferer: http://localhost/\r\nX-Forwarded-Host: evil.example\r\n",
    ] {
        for (method, path) in
            [("POST", ADD), ("DELETE", "/v1/counters/a"), ("PUT", "/v1/namespaces/a"), ("OPTIONS", ADD)]
        {
            let reply = ask_as(&server, method, path, "localhost", headers);
            reply.is_problem(403, "cross-origin");
            assert_eq!(reply.header("access-control-allow-origin"), None);
        }
    }
    expect_value(&server, 0);
    let mut http = HttpClient::connect_to(&server);
    for headers in ["Origin: http://LOCALHOST\r\n", "Sec-Fetch-Site: same-origin\r\n", "Sec-Fetch-Site: none\r\n"] {
        assert_eq!(http.ask("POST", ADD, headers, "").status, 200, "{headers}");
    }
    expect_value(&server, 3);
}

#[test]
fn a_page_of_another_origin_causes_no_reads_but_may_link_to_them() {
    let server = TestServer::open();
    for headers in [
        // fetch, an image, a frame, events, a browser that does not tell where the page is.
        "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: no-cors\r\nSec-Fetch-Dest: empty\r\n",
        "Sec-Fetch-Site: same-site\r\nSec-Fetch-Mode: no-cors\r\nSec-Fetch-Dest: image\r\n",
        "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: iframe\r\n",
        "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: websocket\r\nSec-Fetch-Dest: websocket\r\n",
        "Sec-Fetch-Site: cross-site\r\n",
        "Origin: http://evil.example\r\n",
        "Origin: null\r\n",
    ] {
        for path in ["/v1/counters/a", "/v1/counters/a/watch", "/v1/counters", "/metrics", "/healthz"] {
            ask_as(&server, "GET", path, "localhost", headers).is_problem(403, "cross-origin");
            assert_eq!(ask_as(&server, "HEAD", path, "localhost", headers).status, 403);
        }
    }
    let link = "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: document\r\n";
    assert_eq!(ask_as(&server, "GET", "/v1/counters/a", "localhost", link).status, 200);
    let own = "Sec-Fetch-Site: same-origin\r\nSec-Fetch-Mode: cors\r\nSec-Fetch-Dest: empty\r\n";
    assert_eq!(ask_as(&server, "GET", "/v1/counters/a", "localhost", own).status, 200);
}
