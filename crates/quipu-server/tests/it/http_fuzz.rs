//! Corrupted requests: the server replies properly or closes, and continues.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::time::Duration;

use quipu_testkit::SeededRng;

use crate::http_client::HttpClient;
use crate::test_server::TestServer;

/// Damaged requests in one run.
const REQUESTS: usize = 4_000;

const WHOLE: &[&str] = &[
    "POST /v1/counters/likes:1/add HTTP/1.1\r\nHost: localhost\r\nContent-Length: 12\r\nIdempotency-Key: k\r\n\r\n{\"delta\": 3}",
    "POST /v1/counters/likes:1/add?reply=none HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n6\r\n{\"delt\r\n6\r\na\": 3}\r\n0\r\n\r\n",
    "GET /v1/counters/likes:1?freshness=500ms HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n",
    "GET /v1/counters?prefix=likes%3A&limit=10&cursor=0 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "POST /v1/counters/likes:1/reset HTTP/1.1\r\nHost: localhost\r\nContent-Length: 14\r\n\r\n{\"token\": \"t\"}",
    "DELETE /v1/counters/%00%ff HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "POST /v1/batch HTTP/1.1\r\nHost: localhost\r\nContent-Length: 46\r\n\r\n[{\"name\": \"a\"}, {\"op\": \"read\", \"name\": \"b\"}]  ",
    "POST /v1/batch HTTP/1.1\r\nHost: localhost\r\nContent-Length: 28\r\n\r\n{\"name\": \"a\"}\n{\"name\": \"b\"}\n",
    "GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\nGET /metrics HTTP/1.0\r\n\r\n",
];

#[test]
fn damaged_requests_are_answered_properly_or_closed() {
    let server = TestServer::open_with(|options| {
        options.limits.http_header_time_max = Duration::from_millis(200);
        options.limits.http_body_time_max = Duration::from_millis(200);
    });
    let seed = std::env::var("QUIPU_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let rng = SeededRng::new(seed);
    let mut bystander = HttpClient::connect_to(&server);
    let mut answered = 0;
    for number in 0..REQUESTS {
        let bytes = damaged(&rng);
        let mut client = HttpClient::connect_to(&server).0.0;
        client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let _ = client.write_all(&bytes);
        let _ = client.shutdown(Shutdown::Write);
        let mut received = Vec::new();
        let read = client.read_to_end(&mut received);
        let timed_out = read.is_err_and(|error| crate::test_server::is_timeout(&error));
        assert!(!timed_out, "seed {seed}, {number}: it is not closed after {}", bytes.escape_ascii());
        let text = String::from_utf8_lossy(&received);
        let proper = received.is_empty()
            || ["HTTP/1.1 2", "HTTP/1.1 4", "HTTP/1.0 2", "HTTP/1.0 4"].iter().any(|head| text.starts_with(head));
        assert!(
            proper && !text.contains("HTTP/1.1 5"),
            "seed {seed}, {number}: {} was answered {text}",
            bytes.escape_ascii()
        );
        answered += usize::from(!received.is_empty());
        if number % 100 == 0 {
            assert_eq!(bystander.get("/healthz").status, 200);
        }
    }
    assert!(answered > REQUESTS / 2, "only {answered} of {REQUESTS} were answered at all");
    println!("proof: damaged HTTP requests: {REQUESTS}, {answered} answered, the others closed");
}

/// A request, or two, with some of its bytes changed, left out, doubled or cut off.
fn damaged(rng: &SeededRng) -> Vec<u8> {
    let mut bytes = rng.pick(WHOLE).as_bytes().to_vec();
    if rng.between(0..=3) == 0 {
        bytes.extend_from_slice(rng.pick(WHOLE).as_bytes());
    }
    for _ in 0..rng.between(1..=6) {
        if bytes.is_empty() {
            break;
        }
        let at = offset(rng, bytes.len() - 1);
        let end = (at + offset(rng, 8)).min(bytes.len());
        match rng.between(0..=5) {
            0 => bytes[at] = rng.between(0..=255) as u8,
            1 => bytes[at] ^= 1 << rng.between(0..=7),
            2 => drop(bytes.drain(at..end)),
            3 => {
                let piece = bytes[at..end].to_vec();
                bytes.splice(at..at, piece.repeat(1 + offset(rng, 3)));
            }
            4 => bytes.truncate(at),
            _ => {
                let odd: &[&[u8]] = &[
                    b"\r\n",
                    b"\0",
                    b"\xff\xfe",
                    b"99999999999999999999",
                    b"-1",
                    b"[[[[",
                    b"1e400",
                    b": ",
                    b"%",
                    b"\r\n\r\n",
                ];
                bytes.splice(at..at, rng.pick(odd).iter().copied());
            }
        }
    }
    bytes
}

fn offset(rng: &SeededRng, most: usize) -> usize {
    rng.between(0..=most as i64) as usize
}
