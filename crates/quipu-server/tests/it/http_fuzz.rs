//! Requests that were damaged on their way: whatever arrives, the server answers properly or closes, and goes on.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::time::Duration;

use quipu_testkit::Dice;

use crate::door::Door;
use crate::http_client::Http;

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
    let door = Door::open_with(|options| {
        options.limits.http_header_time_max = Duration::from_millis(200);
        options.limits.http_body_time_max = Duration::from_millis(200);
    });
    let seed = std::env::var("QUIPU_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let dice = Dice::new(seed);
    let mut bystander = Http::of(&door);
    let mut answered = 0;
    for number in 0..REQUESTS {
        let bytes = damaged(&dice);
        let mut client = Http::of(&door).0.0;
        client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let _ = client.write_all(&bytes);
        let _ = client.shutdown(Shutdown::Write);
        let mut heard = Vec::new();
        let read = client.read_to_end(&mut heard);
        let timed_out = read.is_err_and(|error| crate::door::is_timeout(&error));
        assert!(!timed_out, "seed {seed}, {number}: it is not closed after {}", bytes.escape_ascii());
        let text = String::from_utf8_lossy(&heard);
        let proper = heard.is_empty()
            || ["HTTP/1.1 2", "HTTP/1.1 4", "HTTP/1.0 2", "HTTP/1.0 4"].iter().any(|head| text.starts_with(head));
        assert!(
            proper && !text.contains("HTTP/1.1 5"),
            "seed {seed}, {number}: {} was answered {text}",
            bytes.escape_ascii()
        );
        answered += usize::from(!heard.is_empty());
        if number % 100 == 0 {
            assert_eq!(bystander.get("/healthz").status, 200);
        }
    }
    assert!(answered > REQUESTS / 2, "only {answered} of {REQUESTS} were answered at all");
    println!("proof: damaged HTTP requests: {REQUESTS}, {answered} answered, the others closed");
}

/// A request, or two, with some of its bytes changed, left out, doubled or cut off.
fn damaged(dice: &Dice) -> Vec<u8> {
    let mut bytes = dice.pick(WHOLE).as_bytes().to_vec();
    if dice.between(0..=3) == 0 {
        bytes.extend_from_slice(dice.pick(WHOLE).as_bytes());
    }
    for _ in 0..dice.between(1..=6) {
        if bytes.is_empty() {
            break;
        }
        let at = place(dice, bytes.len() - 1);
        let end = (at + place(dice, 8)).min(bytes.len());
        match dice.between(0..=5) {
            0 => bytes[at] = dice.between(0..=255) as u8,
            1 => bytes[at] ^= 1 << dice.between(0..=7),
            2 => drop(bytes.drain(at..end)),
            3 => {
                let piece = bytes[at..end].to_vec();
                bytes.splice(at..at, piece.repeat(1 + place(dice, 3)));
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
                bytes.splice(at..at, dice.pick(odd).iter().copied());
            }
        }
    }
    bytes
}

fn place(dice: &Dice, most: usize) -> usize {
    dice.between(0..=most as i64) as usize
}
