//! Malformed bytes, floods and misbehaving clients: the server closes them and serves the others.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::num::NonZeroUsize;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketType};

use crate::test_server::{Client, TestServer, is_timeout};

#[test]
fn malformed_bytes_close_their_connection_and_no_other() {
    let server = TestServer::open();
    let mut bystander = server.client();
    let million = [b"*1000000\r\n".to_vec(), b"$1\r\na\r\n".repeat(1_000)].concat();
    let endless = [b"*".to_vec(), b"1".repeat(100)].concat();
    for (count, (bytes, text)) in [
        (&b"*-1\r\n"[..], "invalid multibulk length"),
        (b"*99999999999999999999\r\n", "invalid multibulk length"),
        (&million, "invalid multibulk length: a command has at most 32768 arguments"),
        (b"*1\r\n$-1\r\n", "invalid bulk length"),
        (b"*1\r\n$536870913\r\n", "invalid bulk length: an argument has at most 1048576 bytes, see limits.bulk_bytes"),
        (b"*1\r\n*1\r\n$4\r\nPING\r\n", "expected '$', got '*'"),
        (b"*1\r\n$4\r\nPINGxx", "expected end of line after bulk"),
        (&endless, "too big mbulk count string"),
        (b"\"open\r\n", "unbalanced quotes in request"),
    ]
    .into_iter()
    .enumerate()
    {
        let mut client = server.client();
        let _ = client.0.write_all(bytes);
        let received = client.rest();
        // A close that leaves bytes of ours unread may overtake the words; when they arrive, they
        // are these.
        let expected = format!("-ERR Protocol error: {text}\r\n");
        assert!(
            received == expected.as_bytes() || (bytes.len() > 1_000 && received.is_empty()),
            "{}",
            received.escape_ascii()
        );
        bystander.ask("INCR n", format!(":{}\r\n", count + 1));
    }
    // What came before the garbage was asked properly, and is answered.
    server
        .client()
        .send("*2\r\n$4\r\nINCR\r\n$1\r\nm\r\n*x\r\nINCR m\r\n")
        .expect_closed_after(":1\r\n-ERR Protocol error: invalid multibulk length\r\n");
    bystander.ask("GET m", "$1\r\n1\r\n");
}

#[test]
fn http_on_the_resp_port_is_told_where_http_is_and_closed() {
    let server = TestServer::open();
    let requests = [
        "POST / HTTP/1.1\r\n",
        "Host: localhost\r\n",
        "GET /v1/counters/a HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\n\r\nFLUSHALL\r\nSET a 1\r\n",
        "SET a 1\r\nGET / HTTP/1.1\r\nSET a 2\r\n",
    ];
    for request in requests {
        let mut page = server.client();
        let _ = page.0.write_all(request.as_bytes());
        let received = String::from_utf8(page.rest()).expect("text");
        let (head, body) = received.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{request}: {received}"));
        assert!(head.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{head}");
        assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{head}");
        assert!(body.contains("RESP port") && body.contains("HTTP is "), "{body}");
    }
    // Of the last one, what came before the request was a command like any other.
    server.client().ask("GET a", "$1\r\n1\r\n");
}

#[test]
fn connections_beyond_the_cap_are_told_and_closed() {
    const CAP: usize = 4_500;
    const COMERS: usize = 5_000;
    let server = TestServer::open_with(|options| options.limits.connections_max = CAP as u32);
    let mut inside: Vec<Client> = (0..CAP).map(|_| server.client()).collect();
    // Accepting is in order: once the last of these is answered, all places are taken.
    for client in &mut inside {
        client.ask("PING", "+PONG\r\n");
    }
    for _ in CAP..COMERS {
        Client::connect(server.resp).expect_closed_after("-ERR max number of clients reached\r\n");
    }
    inside[0].ask("INCR n", ":1\r\n");
    inside[CAP - 1].ask("INCR n", ":2\r\n");
    let info = inside[0].send("INFO stats\r\n").bulk();
    assert!(info.contains(&format!("rejected_connections:{}\r\n", COMERS - CAP)), "{info}");
    inside[1].ask("CLIENT LIST", "-ERR the reply would exceed 1048576 bytes; use CLIENT LIST ID\r\n");
    // A place that becomes free is given to the next.
    inside[7].send("QUIT\r\n").expect_closed_after("+OK\r\n");
    let came_in = (0..1_000).any(|_| {
        let mut client = server.client();
        client.send("PING\r\n");
        client.line() == "+PONG"
    });
    assert!(came_in);
}

#[test]
fn a_command_that_does_not_end_is_not_waited_for() {
    let server = TestServer::open_with(|options| options.limits.partial_time_max = Duration::from_millis(300));
    let mut quiet = server.client();
    server.client().send("*2\r\n$4\r\nINCR\r\n$1").expect_closed_after("");
    server.client().send("INCR").expect_closed_after("");
    // One more byte now and then does not help.
    let mut dribbler = server.client();
    dribbler.ask("PING", "+PONG\r\n").send("*2\r\n$4\r\nECHO\r\n$1000\r\n");
    let closed = (0..1_000).any(|_| {
        let _ = dribbler.0.write_all(b"m");
        dribbler.is_closed_within(Duration::from_millis(20))
    });
    assert!(closed);
    // Silence between commands is no crime.
    quiet.ask("PING", "+PONG\r\n");
}

#[test]
fn an_idle_connection_is_closed_only_if_so_configured() {
    let server = TestServer::open_with(|options| options.limits.idle_time_max = Some(Duration::from_secs(1)));
    let mut idle = server.client();
    idle.ask("PING", "+PONG\r\n").expect_closed_after("");
    server.client().ask("CONFIG SET timeout 0\nPING", "+OK\r\n+PONG\r\n");
}

#[test]
fn a_long_pipeline_of_searches_keeps_nobody_waiting() {
    const SEARCHES: usize = 300;
    let server = TestServer::open_with(|options| options.workers = NonZeroUsize::MIN);
    let mut bystander = server.client();
    for thousand in 0..20 {
        let pairs: String = (0..1_000).map(|name| format!(" n:{thousand}:{name} 1")).collect();
        bystander.ask(&format!("MSET{pairs}"), "+OK\r\n");
    }
    let mut searcher = server.client();
    searcher.send(format!("INCR a\r\n{}", "KEYS zzz\r\n".repeat(SEARCHES)));
    let mut reading = searcher.0.try_clone().unwrap();
    let reader = std::thread::spawn(move || {
        let (mut received, mut chunk) = (0, [0; 4096]);
        while received < ":1\r\n".len() + SEARCHES * "*0\r\n".len() {
            received += reading.read(&mut chunk).unwrap();
        }
    });
    // On the same and only worker, with writes that have to pass the searcher's own. All of it in
    // one turn would be one answer.
    let mut answered = 0;
    while !reader.is_finished() {
        answered += 1;
        bystander.ask("PING\nINCR b", format!("+PONG\r\n:{answered}\r\n"));
    }
    reader.join().unwrap();
    assert!(answered > SEARCHES / 10, "{answered} answers while {SEARCHES} searches ran");
}

#[test]
fn a_client_that_reads_slowly_is_waited_for() {
    const WRITE_TIME_MAX: Duration = Duration::from_millis(400);
    const READ_PAUSE: Duration = Duration::from_millis(3);
    let server = TestServer::open_with(|options| options.limits.write_time_max = WRITE_TIME_MAX);
    // A small window: what is not read stays with the server, and does not vanish in buffers.
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    rustix::net::sockopt::set_socket_recv_buffer_size(&socket, 4_096).unwrap();
    rustix::net::connect(&socket, &server.resp).unwrap();
    let mut slow = Client(TcpStream::from(socket));
    slow.0.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    const BYTES: usize = 1_000_000;
    let mut sending = slow.0.try_clone().unwrap();
    let sender = std::thread::spawn(move || {
        let message = "m".repeat(BYTES);
        for _ in 0..4 {
            sending.write_all(format!("*2\r\n$4\r\nECHO\r\n${BYTES}\r\n{message}\r\n").as_bytes()).unwrap();
        }
    });
    let expected = 4 * (format!("${BYTES}\r\n").len() + BYTES + 2);
    let (mut received, mut chunk) = (0, vec![0; 16 << 10]);
    let mut reads = 0;
    while received < expected {
        let read = slow.0.read(&mut chunk).unwrap();
        assert!(read > 0, "closed after {received} bytes");
        (received, reads) = (received + read, reads + 1);
        // The client's pace, which is what this is about: 4 MB take some seconds, and are more than
        // the sockets buffer.
        std::thread::sleep(READ_PAUSE);
    }
    assert!(READ_PAUSE * reads > 3 * WRITE_TIME_MAX, "{reads} reads were too few to tell");
    sender.join().unwrap();
    slow.ask("PING", "+PONG\r\n");
}

#[test]
fn a_client_that_never_reads_is_closed_and_held_to_its_output() {
    let server = TestServer::open_with(|options| options.limits.write_time_max = Duration::from_millis(500));
    let mut bystander = server.client();
    let mut deaf = TcpStream::connect(server.resp).unwrap();
    deaf.set_write_timeout(Some(Duration::from_millis(50))).unwrap();
    let command = format!("*2\r\n$4\r\nECHO\r\n$60000\r\n{}\r\n", "m".repeat(60_000)).into_bytes();
    let mut at = 0;
    let mut closed = false;
    for round in 1..2_000 {
        match deaf.write(&command[at..]) {
            Ok(written) => at = (at + written) % command.len(),
            Err(error) if is_timeout(&error) => {}
            Err(_) => {
                closed = true;
                break;
            }
        }
        bystander.ask("INCR n", format!(":{round}\r\n"));
    }
    assert!(closed, "the server went on holding replies for a client that does not read");
    // What the server had not sent is gone, not kept: only what the sockets buffered can still be
    // read.
    let mut received = Vec::new();
    let _ = deaf.set_read_timeout(Some(Duration::from_secs(5)));
    let _ = deaf.read_to_end(&mut received);
    // The socket is closed a moment before the client is struck off; on a busy machine that is a
    // moment longer.
    let mut info = String::new();
    for _ in 0..500 {
        info = bystander.send("INFO clients\r\n").bulk();
        if info.contains("connected_clients:1\r\n") {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("it is still held: {info}");
}

#[test]
fn who_never_stops_sending_keeps_the_worker_from_nobody() {
    let mut server = TestServer::open_with(|options| {
        options.workers = NonZeroUsize::MIN;
        // So that no connection rests: it is served apart from the others.
        options.limits.idle_time_max = Some(Duration::from_secs(600));
    });
    let (sender, mut bystander) = (server.client().0, server.client());
    let mut reader = sender.try_clone().unwrap();
    let reading = std::thread::spawn(move || while reader.read(&mut [0; 1 << 16]).is_ok_and(|read| read > 0) {});
    let sending = std::thread::spawn(move || {
        let echo = format!("*2\r\n$4\r\nECHO\r\n$100\r\n{}\r\n", "a".repeat(100)).repeat(10_000);
        while (&sender).write_all(echo.as_bytes()).is_ok() {}
    });
    for _ in 0..100 {
        bystander.ask("PING", "+PONG\r\n");
    }
    server.join();
    sending.join().unwrap();
    reading.join().unwrap();
}
