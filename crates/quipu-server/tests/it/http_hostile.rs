//! HTTP clients that do not play by the rules: they are refused and closed, the others go on.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketType};

use crate::door::{Client, Door, is_timeout};
use crate::http_client::Http;

#[test]
fn resp_on_the_http_port_is_refused_and_closed() {
    let door = Door::open();
    for bytes in ["*1\r\n$4\r\nPING\r\n", "*2\r\n$4\r\nINCR\r\n$1\r\na\r\n", "PING\r\n\r\n"] {
        let heard = Http::of(&door).raw(bytes.as_bytes());
        assert!(heard.is_empty() || heard.starts_with("HTTP/1.1 400 "), "{heard}");
    }
    door.client().ask("GET a", "$-1\r\n");
}

#[test]
fn malformed_requests_are_refused_and_closed() {
    let door = Door::open();
    let mut bystander = Http::of(&door);
    let add = "POST /v1/counters/a/add HTTP/1.1\r\nHost: localhost\r\n";
    let smuggled = "GET /v1/counters/b HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let headers: String = (0..100_000).map(|header| format!("h{header}: a\r\n")).collect();
    for bytes in [
        // Two lengths, or a length and chunks: whoever is in between may have understood it differently.
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
        let heard = Http::of(&door).raw(format!("{bytes}{smuggled}").as_bytes());
        let ok = heard.is_empty() || heard.starts_with("HTTP/1.1 4");
        assert!(ok && !heard.contains("HTTP/1.1 200"), "{bytes:.60}: {heard}");
        assert_eq!(bystander.get("/healthz").status, 200);
    }
    // A length beside chunks is no error to hyper, but it closes after it: there is nothing to smuggle.
    let both = format!("{add}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{smuggled}");
    let heard = Http::of(&door).raw(both.as_bytes());
    assert_eq!(heard.matches("HTTP/1.1 ").count(), 1, "{heard}");
}

#[test]
fn bodies_have_a_bound_in_size() {
    let door = Door::open_with(|options| options.limits.http_body_bytes_max = 10_000);
    let mut http = Http::of(&door);
    let fitting = format!("{{\"delta\": 1{}}}", " ".repeat(4_096 - 12));
    assert_eq!(http.post("/v1/counters/a/add", &fitting).status, 200);
    let told = http.post("/v1/counters/a/add", &format!("{fitting} "));
    told.is_problem(413, "body-too-large");
    assert_eq!(told.header("connection"), Some("close"));
    // Announced, and not even sent.
    let mut announced = Http::of(&door);
    announced.0.send("POST /v1/batch HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10001\r\n\r\n");
    announced.hear(false).is_problem(413, "body-too-large");
    // In pieces, with no length at all.
    let mut endless = Http::of(&door);
    endless.0.send("POST /v1/batch HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n");
    let piece = format!("1000\r\n{}\r\n", " ".repeat(0x1000));
    for _ in 0..3 {
        endless.0.send(&piece);
    }
    endless.hear(false).is_problem(413, "body-too-large");
    assert_eq!(Http::of(&door).get("/v1/counters/a").json()["value"], 1);
}

#[test]
fn headers_and_bodies_have_a_bound_in_time() {
    let door = Door::open_with(|options| {
        options.limits.http_header_time_max = Duration::from_millis(300);
        options.limits.http_body_time_max = Duration::from_millis(300);
    });
    let mut quiet = Http::of(&door);
    assert_eq!(quiet.get("/healthz").status, 200);
    assert_eq!(Http::of(&door).raw(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"), "");
    assert_eq!(Http::of(&door).raw(b""), "", "one that says nothing is closed too");
    // One more byte now and then does not help, not on a connection that has been good before, either.
    let (fresh, mut known) = (Http::of(&door), Http::of(&door));
    assert_eq!(known.get("/healthz").status, 200);
    for mut dribbler in [fresh, known] {
        let closed = (0..1_000).any(|_| {
            let _ = dribbler.0.0.write_all(b"G");
            dribbler.0.is_closed_within(Duration::from_millis(20))
        });
        assert!(closed);
    }
    let mut slow = Http::of(&door);
    slow.0.send("POST /v1/counters/a/add HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n{");
    slow.hear(false).is_problem(408, "body-timeout");
    slow.0.expect_closed_after("");
    // A connection that has been used may rest for longer.
    assert_eq!(quiet.get("/healthz").status, 200);
}

#[test]
fn a_connection_that_rests_too_long_is_closed() {
    let door = Door::open_with(|options| options.limits.http_idle_time_max = Duration::from_millis(300));
    let mut http = Http::of(&door);
    assert_eq!(http.get("/healthz").status, 200);
    http.0.expect_closed_after("");
}

#[test]
fn connections_beyond_the_cap_are_closed() {
    let door = Door::open_with(|options| options.limits.http_connections_max = 2);
    let mut held: Vec<Http> = (0..2).map(|_| Http::of(&door)).collect();
    held[1].0.send("GET /healthz");
    Client::connect(door.http).expect_closed_after("");
    held[1].0.send(" HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_eq!(held[1].hear(false).status, 200);
}

#[test]
fn a_client_that_never_reads_is_closed() {
    let door = Door::open_with(|options| options.limits.write_time_max = Duration::from_millis(500));
    for number in 0..1_000 {
        door.engine.handle(format!("a-name-of-some-length:{number:0>100}")).unwrap().count(1).unwrap();
    }
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    rustix::net::sockopt::set_socket_recv_buffer_size(&socket, 4_096).unwrap();
    rustix::net::connect(&socket, &door.http).unwrap();
    let mut deaf = TcpStream::from(socket);
    deaf.set_write_timeout(Some(Duration::from_millis(50))).unwrap();
    let mut bystander = Http::of(&door);
    let closed = (0..2_000).any(|_| {
        // The server is given its time, which is what this is about.
        std::thread::sleep(Duration::from_millis(5));
        let written = deaf.write(b"GET /v1/counters?limit=1000 HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert_eq!(bystander.get("/healthz").status, 200);
        written.is_err_and(|error| !is_timeout(&error))
    });
    assert!(closed, "the server went on holding replies for a client that does not read");
    let mut heard = Vec::new();
    let _ = deaf.set_read_timeout(Some(Duration::from_secs(5)));
    let _ = deaf.read_to_end(&mut heard);
}

#[test]
fn requests_may_be_sent_before_the_last_was_answered() {
    let door = Door::open();
    let mut http = Http::of(&door);
    for _ in 0..100 {
        http.send("POST", "/v1/counters/a/add", "", "{\"delta\": 1}");
    }
    for value in 1..=100 {
        assert_eq!(http.hear(false).json()["value"], value);
    }
}
