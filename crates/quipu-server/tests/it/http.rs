//! The HTTP door.

use std::io::Write;
use std::time::Duration;

use crate::door::{Client, Door};

fn get(door: &Door, request: &str) -> String {
    let mut client = Client::connect(door.http);
    let _ = client.0.write_all(request.as_bytes());
    String::from_utf8(client.rest()).unwrap()
}

#[test]
fn health_is_told_and_everything_else_is_a_problem() {
    let door = Door::open();
    let well = get(&door, "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(well.starts_with("HTTP/1.1 200 OK\r\n") && well.ends_with("\r\n\r\nok\n"), "{well}");
    let lost = get(&door, "GET /nothing HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(lost.starts_with("HTTP/1.1 404 Not Found\r\n"), "{lost}");
    assert!(lost.contains("content-type: application/problem+json\r\n") && lost.contains("\"status\":404"), "{lost}");
    let wrong = get(&door, "DELETE /healthz HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(wrong.starts_with("HTTP/1.1 405 ") && wrong.contains("allow: GET, HEAD\r\n"), "{wrong}");
}

#[test]
fn resp_on_the_http_port_is_refused_and_closed() {
    let door = Door::open();
    for bytes in ["*1\r\n$4\r\nPING\r\n", "*2\r\n$4\r\nINCR\r\n$1\r\na\r\n", "PING\r\n\r\n"] {
        let heard = get(&door, bytes);
        assert!(heard.is_empty() || heard.starts_with("HTTP/1.1 400 "), "{heard}");
    }
    door.client().ask("GET a", "$-1\r\n");
}

#[test]
fn headers_have_bounds_in_size_number_and_time() {
    let door = Door::open_with(|options| options.limits.http_header_time_max = Duration::from_millis(300));
    let many: String = (0..100).map(|header| format!("h{header}: a\r\n")).collect();
    let many = get(&door, &format!("GET /healthz HTTP/1.1\r\n{many}\r\n"));
    assert!(many.is_empty() || many.starts_with("HTTP/1.1 431 "), "{many}");
    let large = get(&door, &format!("GET /healthz HTTP/1.1\r\nh: {}\r\n\r\n", "a".repeat(100_000)));
    assert!(large.is_empty() || large.starts_with("HTTP/1.1 431 "), "{large}");
    let unfinished = get(&door, "GET /healthz HTTP/1.1\r\nHost: a\r\n");
    assert!(!unfinished.starts_with("HTTP/1.1 200 "), "{unfinished}");
    assert_eq!(get(&door, ""), "", "one that says nothing is closed too");
}

#[test]
fn connections_beyond_the_cap_are_closed() {
    let door = Door::open_with(|options| options.limits.http_connections_max = 2);
    let mut held: Vec<Client> = (0..2).map(|_| Client::connect(door.http)).collect();
    held[1].send("GET /healthz");
    Client::connect(door.http).expect_closed_after("");
    held[1].send(" HTTP/1.1\r\nHost: a\r\n\r\n").expect("HTTP/1.1 200 OK\r\n");
}
