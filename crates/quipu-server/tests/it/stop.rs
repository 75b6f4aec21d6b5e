//! Stopping.

use std::io::Write;
use std::time::Duration;

use crate::test_server::{Client, TestServer};

#[test]
fn a_stop_answers_what_was_received_and_closes() {
    let mut server = TestServer::open();
    let (addr, mut idle, mut busy) = (server.resp, server.client(), server.client());
    idle.ask("PING", "+PONG\r\n");
    busy.ask("INCR n", ":1\r\n");
    busy.send("INCR n\r\nINCR n\r\nINCR");
    server.ask_to_stop();
    busy.expect_closed_after(":2\r\n:3\r\n");
    idle.expect_closed_after("");
    server.join();
    assert!(std::net::TcpStream::connect(addr).is_err(), "nobody listens any more");
    assert_eq!(server.engine.read("n").unwrap().value, 3);
}

#[test]
fn a_stop_does_not_wait_for_those_who_do_not_read() {
    let mut server = TestServer::open_with(|options| options.limits.drain_time_max = Duration::from_millis(200));
    let mut deaf = server.client();
    deaf.0.set_nonblocking(true).unwrap();
    let command = format!("ECHO {}\r\n", "m".repeat(60_000));
    // Until the server's replies fill both sockets and it stops reading.
    while deaf.0.write(command.as_bytes()).is_ok_and(|written| written > 0) {}
    server.join();
}

#[test]
fn a_stop_without_clients_returns() {
    let mut server = TestServer::open();
    let addr = server.resp;
    Client::connect(addr).ask("INCR n", ":1\r\n");
    server.join();
    assert_eq!(server.engine.read("n").unwrap().value, 1);
}
