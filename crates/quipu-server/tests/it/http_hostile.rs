//! Misbehaving HTTP clients: the server refuses and closes them, and serves the others.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketType};

use crate::http_client::HttpClient;
use crate::test_server::{Client, TestServer, is_timeout};

#[test]
fn resp_on_the_http_port_is_refused_and_closed() {
    let server = TestServer::open();
    for bytes in ["*1\r\n$4\r\nPING\r\n", "*2\r\n$4\r\nINCR\r\n$1\r\na\r\n", "PING\r\n\r\n"] {
        let received = HttpClient::connect_to(&server).raw(bytes.as_bytes());
        assert!(received.is_empty() || received.starts_with("HTTP/1.1 400 "), "{received}");
    }
    server.client().ask("GET a", "$-1\r\n");
}

#[test]
fn malformed_requests_are_refused_and_closed() {
    let server = TestServer::open();
    let mut bystander = HttpClient::connect_to(&server);
    let add = "POST /v1/counters/a/add HTTP/1.1\r\nHost: localhost\r\n";
    let smuggled = "GET /v1/counters/b HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let headers: String = (0..100_000).map(|header| format!("h{header}: a\r\n")).collect();
    for bytes in [
        // Two lengths, or a length and chunks: whoever is in between may have understood it
        // differently.
        format!("{add}Content-Length: 2\r\nContent-Length: 3\r\n\r\n{{}}"),
        format!("{add}Content-Length: -1\r\n\r\n"),
        format!("{add}Content-Length: 99999999999999999999\r\n\r\n"),
        format!("{add}Transfer-Encoding: chunked\r\n\r\nzz\r\n"),
        format!("{add}Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n"),
        format!("{add}{headers}\r\n"),
        format!("{add}h: {}\r\n\r\n", "a".repeat(100_000)),
        format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(100_000)),
        "GET / HTTP/9.9\r\n\r\n".to_owned(),
        "\u{0}\u{1}\u{2}\r\n\r\n".to_owned(),
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(),
    ] {
        let received = HttpClient::connect_to(&server).raw(format!("{bytes}{smuggled}").as_bytes());
        let ok = received.is_empty() || received.starts_with("HTTP/1.1 4");
        assert!(ok && !received.contains("HTTP/1.1 200"), "{bytes:.60}: {received}");
        assert_eq!(bystander.get("/healthz").status, 200);
    }
    // A length beside chunks is no error to hyper, but it closes after it: there is nothing to
    // smuggle.
    let both = format!("{add}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{smuggled}");
    let received = HttpClient::connect_to(&server).raw(both.as_bytes());
    assert_eq!(received.matches("HTTP/1.1 ").count(), 1, "{received}");
}

#[test]
fn bodies_have_a_bound_in_size() {
    let server = TestServer::open_with(|options| options.limits.http_body_bytes_max = 10_000);
    let mut http = HttpClient::connect_to(&server);
    let fitting = format!("{{\"delta\": 1{}}}", " ".repeat(4_096 - 12));
    assert_eq!(http.post("/v1/counters/a/add", &fitting).status, 200);
    let reply = http.post("/v1/counters/a/add", &format!("{fitting} "));
    reply.is_problem(413, "body-too-large");
    assert_eq!(reply.header("connection"), Some("close"));
    // Announced, and not even sent.
    let mut announced = HttpClient::connect_to(&server);
    announced.0.send("POST /v1/batch HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10001\r\n\r\n");
    announced.read_reply(false).is_problem(413, "body-too-large");
    // In pieces, with no length at all.
    let mut endless = HttpClient::connect_to(&server);
    endless.0.send("POST /v1/batch HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n");
    let piece = format!("1000\r\n{}\r\n", " ".repeat(0x1000));
    for _ in 0..3 {
        endless.0.send(&piece);
    }
    endless.read_reply(false).is_problem(413, "body-too-large");
    assert_eq!(HttpClient::connect_to(&server).get("/v1/counters/a").json()["value"], 1);
}

#[test]
fn headers_and_bodies_have_a_bound_in_time() {
    let server = TestServer::open_with(|options| {
        options.limits.http_header_time_max = Duration::from_millis(300);
        options.limits.http_body_time_max = Duration::from_millis(300);
    });
    let mut quiet = HttpClient::connect_to(&server);
    assert_eq!(quiet.get("/healthz").status, 200);
    assert_eq!(HttpClient::connect_to(&server).raw(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"), "");
    assert_eq!(HttpClient::connect_to(&server).raw(b""), "", "one that says nothing is closed too");
    // One more byte now and then does not help, not on a connection that has been good before,
    // either.
    let (fresh, mut known) = (HttpClient::connect_to(&server), HttpClient::connect_to(&server));
    assert_eq!(known.get("/healthz").status, 200);
    for mut dribbler in [fresh, known] {
        let closed = (0..1_000).any(|_| {
            let _ = dribbler.0.0.write_all(b"G");
            dribbler.0.is_closed_within(Duration::from_millis(20))
        });
        assert!(closed);
    }
    let mut slow = HttpClient::connect_to(&server);
    slow.0.send("POST /v1/counters/a/add HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n{");
    slow.read_reply(false).is_problem(408, "body-timeout");
    slow.0.expect_closed_after("");
    // A connection that has been used may rest for longer.
    assert_eq!(quiet.get("/healthz").status, 200);
}

#[test]
fn a_connection_that_rests_too_long_is_closed() {
    let server = TestServer::open_with(|options| options.limits.http_idle_time_max = Duration::from_millis(300));
    let mut http = HttpClient::connect_to(&server);
    assert_eq!(http.get("/healthz").status, 200);
    http.0.expect_closed_after("");
}

#[test]
fn connections_beyond_the_cap_are_closed() {
    let server = TestServer::open_with(|options| options.limits.http_connections_max = 2);
    let mut held: Vec<HttpClient> = (0..2).map(|_| HttpClient::connect_to(&server)).collect();
    held[1].0.send("GET /healthz");
    Client::connect(server.http).expect_closed_after("");
    held[1].0.send(" HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_eq!(held[1].read_reply(false).status, 200);
}

#[test]
fn a_client_that_never_reads_is_closed() {
    let server = TestServer::open_with(|options| options.limits.write_time_max = Duration::from_millis(500));
    for number in 0..1_000 {
        server.engine.handle(format!("a-name-of-some-length:{number:0>100}")).unwrap().count(1).unwrap();
    }
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    rustix::net::sockopt::set_socket_recv_buffer_size(&socket, 4_096).unwrap();
    rustix::net::connect(&socket, &server.http).unwrap();
    let mut deaf = TcpStream::from(socket);
    deaf.set_write_timeout(Some(Duration::from_millis(50))).unwrap();
    let mut bystander = HttpClient::connect_to(&server);
    let closed = (0..2_000).any(|_| {
        // The server is given its time, which is what this is about.
        std::thread::sleep(Duration::from_millis(5));
        let written = deaf.write(b"GET /v1/counters?limit=1000 HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert_eq!(bystander.get("/healthz").status, 200);
        written.is_err_and(|error| !is_timeout(&error))
    });
    assert!(closed, "the server went on holding replies for a client that does not read");
    let mut received = Vec::new();
    let _ = deaf.set_read_timeout(Some(Duration::from_secs(5)));
    let _ = deaf.read_to_end(&mut received);
}

#[test]
fn requests_may_be_sent_before_the_last_was_answered() {
    let server = TestServer::open();
    let mut http = HttpClient::connect_to(&server);
    for _ in 0..100 {
        http.send("POST", "/v1/counters/a/add", "", "{\"delta\": 1}");
    }
    for value in 1..=100 {
        assert_eq!(http.read_reply(false).json()["value"], value);
    }
}
