//! Authentication.

use quipu_engine::Engine;
use quipu_server::{BindError, Options, Password, Server};

use crate::test_server::TestServer;

const NOAUTH: &str = "-NOAUTH Authentication required.\r\n";
const WRONGPASS: &str = "-WRONGPASS invalid username-password pair or user is disabled.\r\n";

fn locked() -> TestServer {
    TestServer::open_with(|options| options.password = Some(Password::new(b"secret").unwrap()))
}

#[test]
fn without_the_password_nothing_is_done() {
    let server = locked();
    for command in ["PING", "GET a", "INCR a", "SET a 1", "DEL a", "FLUSHALL", "INFO", "CONFIG GET *", "CLIENT LIST"] {
        server.client().send(format!("{command}\r\nAUTH secret\r\n")).expect_closed_after(NOAUTH);
    }
    for command in ["KEYS *", "MULTI", "EXEC", "WATCH a", "COMMAND", "CLIENT SETINFO lib-name a", "SELECT 0", "TIME"] {
        server.client().send(format!("{command}\r\nAUTH secret\r\n")).expect_closed_after(NOAUTH);
    }
    let mut client = server.client();
    client.send("HELLO 3\r\n").expect("-NOAUTH HELLO must be called with the client already authenticated");
    let _ = client.line();
    client.ask("RESET", "+RESET\r\n").ask("AUTH secret\nGET a", "+OK\r\n$-1\r\n");
    server.client().send("QUIT\r\n").expect_closed_after("+OK\r\n");
}

#[test]
fn the_password_opens_in_every_form_and_no_other_does() {
    let server = locked();
    for wrong in ["AUTH wrong", "AUTH nobody secret", "AUTH default wrong", "AUTH \"\"", "AUTH secre", "AUTH secrets"] {
        server.client().ask(wrong, WRONGPASS).ask("PING", NOAUTH);
    }
    server.client().ask("HELLO 3 AUTH default wrong", WRONGPASS).ask("PING", NOAUTH);
    for right in ["AUTH secret", "AUTH default secret"] {
        server.client().ask(right, "+OK\r\n").ask("INCR n\nDEL n", ":1\r\n:1\r\n");
    }
    server.client().ask("HELLO 3 AUTH default secret SETNAME me", "%7\r\n");
    server.client().ask("AUTH secret\nRESET\nPING", format!("+OK\r\n+RESET\r\n{NOAUTH}"));
    server.client().ask("AUTH secret\nAUTH wrong\nPING", format!("+OK\r\n{WRONGPASS}+PONG\r\n"));
}

#[test]
fn a_server_without_a_password_says_so() {
    let server = TestServer::open();
    let text = "-ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?\r\n";
    server.client().ask("AUTH a", text).ask("AUTH default a", "+OK\r\n").ask("AUTH a b", WRONGPASS);
}

#[test]
fn little_is_listened_to_before_the_password() {
    let server = locked();
    let mut inside = server.client();
    inside.ask("AUTH secret", "+OK\r\n");
    server
        .client()
        .send("*11\r\n")
        .expect_closed_after("-ERR Protocol error: unauthenticated multibulk length: send AUTH first\r\n");
    server
        .client()
        .send("*1\r\n$16385\r\n")
        .expect_closed_after("-ERR Protocol error: unauthenticated bulk length: send AUTH first\r\n");
    let mut talker = server.client();
    let guesses = "AUTH wrong\r\n".repeat(2_000);
    let _ = std::io::Write::write_all(&mut talker.0, guesses.as_bytes());
    let received = talker.rest();
    assert!(received.len() < 2_000 * WRONGPASS.len(), "closed before all were tried");
    inside.ask("ECHO still", "$5\r\nstill\r\n");
    inside.send(format!("ECHO {}\r\n", "m".repeat(20_000))).expect("$20000\r\n");
}

#[test]
fn who_says_nothing_or_nonsense_before_the_password_gives_its_place_back() {
    let server = TestServer::open_with(|options| {
        options.password = Some(Password::new(b"secret").unwrap());
        options.limits.partial_time_max = std::time::Duration::from_millis(200);
    });
    let mut inside = server.client();
    inside.ask("AUTH secret", "+OK\r\n");
    server.client().expect_closed_after("");
    server.client().send("FOO bar\r\nFOO bar\r\n").expect_closed_after(NOAUTH);
    let mut shouting = server.client();
    shouting.send("HELLO\r\n".repeat(2_000));
    assert!(shouting.rest().len() < 20_000, "it is told no more than it may say");
    inside.ask("PING", "+PONG\r\n");
}

#[test]
fn an_address_that_others_reach_needs_a_password() {
    let directory = tempfile::tempdir().unwrap();
    let engine = Engine::open(quipu_engine::Options::new(directory.path())).unwrap();
    let open = Options { resp: "0.0.0.0:0".parse().unwrap(), http: None, ..Options::default() };
    match Server::bind(engine.clone(), open.clone()) {
        Err(error @ BindError::Open { .. }) => assert!(error.to_string().contains("set one"), "{error}"),
        other => panic!("{:?}", other.err()),
    }
    let http = Options {
        resp: "127.0.0.1:0".parse().unwrap(),
        http: Some("0.0.0.0:0".parse().unwrap()),
        ..Options::default()
    };
    assert!(matches!(Server::bind(engine.clone(), http), Err(BindError::Open { .. })));
    let password = Some(Password::new(b"secret").unwrap());
    assert!(Server::bind(engine.clone(), Options { password, ..open.clone() }).is_ok());
    assert!(Server::bind(engine.clone(), Options { insecure: true, ..open }).is_ok());
    engine.close().unwrap();
}
