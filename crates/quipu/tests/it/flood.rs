//! Thousands of connections at once, and requests that never end: capped and closed, while other
//! clients are served.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use quipu_model::Durability;
use tempfile::TempDir;

use crate::life::{connect, launch, now};

/// More than either door lets in when it is told to let in half as many.
const FLOOD: usize = 5_000;
const CAP: &str = "2500";

/// When somebody who does not finish a request must be gone.
const CLOSED_WITHIN: Duration = Duration::from_secs(10);

/// What 5,000 connections may add to the memory of a server that has nothing else to do.
const MEMORY_BYTES_MAX: u64 = 200 << 20;

#[test]
fn a_flood_of_connections_is_capped_and_those_that_say_nothing_to_the_end_are_closed_in_time() {
    let data = TempDir::new().expect("a temporary directory can be made");
    let mut launch = launch(data.path(), Durability::Relaxed);
    let limits = ["--limits-connections", CAP, "--limits-http-connections", CAP];
    launch.arguments = limits.map(Into::into).to_vec();
    let program = launch.start().expect("it starts");
    let http = program.http().expect("it serves HTTP");
    let mut bystander = connect(&program);
    let count = |client: &mut quipu_protocol::resp::RespConnection, expected: i64| {
        assert_eq!(client.call(&["INCR", "likes:1"]).expect("it answers").number(), Some(expected));
    };
    count(&mut bystander, 1);
    // Each with the beginning of a request that never ends.
    let began = now();
    let resp = flood(program.address(), b"*2\r\n$4\r\nINCR\r\n$7\r\nlik");
    count(&mut bystander, 2);
    let web = flood(http, b"POST /v1/counters/likes:1/add HTTP/1.1\r\nHost: localhost\r\n");
    count(&mut bystander, 3);
    let took = began.elapsed();
    for (protocol, streams) in [("resp", resp), ("http", web)] {
        let began = now();
        let bytes_sent: usize = streams.into_iter().map(closed).sum();
        assert!(began.elapsed() < CLOSED_WITHIN, "{protocol}: still open after {:?}", began.elapsed());
        assert!(bytes_sent < FLOOD << 10, "{protocol}: {bytes_sent} bytes for those who asked nothing");
    }
    // There is room again.
    count(&mut connect(&program), 4);
    assert!(asks_of_health(http).starts_with("HTTP/1.1 200 "));
    count(&mut bystander, 5);
    let memory = program.memory_bytes_most().expect("the system tells");
    assert!(memory < MEMORY_BYTES_MAX, "{memory} bytes");
    println!(
        "proof: flood: {FLOOD} connections on each door in {} ms, capped at {CAP}, all closed, {} MB at most",
        took.as_millis(),
        memory >> 20
    );
    assert!(program.terminate().expect("it ends").0.success());
}

fn flood(address: SocketAddr, bytes: &[u8]) -> Vec<TcpStream> {
    let begin = |_| {
        let mut stream = TcpStream::connect(address).expect("the system takes the connection");
        // One that was not let in may be closed already.
        let _ = stream.write_all(bytes);
        stream
    };
    (0..FLOOD).map(begin).collect()
}

/// Waits until the server has closed; how many bytes it has told before.
fn closed(mut stream: TcpStream) -> usize {
    stream.set_read_timeout(Some(CLOSED_WITHIN)).expect("a time-out can be set");
    let mut received = Vec::new();
    match stream.read_to_end(&mut received) {
        Err(error) if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {
            panic!("it is not closed")
        }
        // It may have been reset.
        _ => received.len(),
    }
}

fn asks_of_health(address: SocketAddr) -> String {
    let mut stream = TcpStream::connect(address).expect("it accepts");
    stream.set_read_timeout(Some(CLOSED_WITHIN)).expect("a time-out can be set");
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").expect("it reads");
    let mut received = String::new();
    stream.read_to_string(&mut received).expect("it answers");
    received
}
