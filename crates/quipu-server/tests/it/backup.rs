//! QUIPU.BACKUP: runs beside the workers, one at a time; only the requesting client waits.

use quipu_engine::Engine;
use quipu_server::Password;

use crate::commit::{Gate, SILENCE_TIME, Sync};
use crate::test_server::TestServer;

fn opened(dir: &std::path::Path) -> Engine {
    Engine::open(quipu_engine::Options::new(dir)).unwrap()
}

#[test]
fn a_backup_has_what_came_before_it_and_replies_keep_their_order() {
    let (server, directory) = (TestServer::open(), tempfile::tempdir().unwrap());
    let dir = directory.path().join("new").join("backup");
    let mut client = server.client();
    client.send(format!("INCR a\r\nQUIPU.BACKUP {}\r\nINCR a\r\n", dir.display())).expect(":1\r\n");
    let line = client.line();
    assert!(line.starts_with(&format!("+OK {} holds", dir.display())), "{line}");
    client.expect(":2\r\n");
    let copy = opened(&dir);
    assert_eq!(copy.read("a").unwrap().value, 1);
    assert!(copy.recovery().copied);
    assert_eq!(copy.stats().writer.node, server.engine.stats().writer.node);
    assert_ne!(copy.stats().writer.incarnation, server.engine.stats().writer.incarnation);
}

#[test]
fn a_client_that_wants_no_reply_gets_none_and_its_backup() {
    let (server, directory) = (TestServer::open(), tempfile::tempdir().unwrap());
    let dir = directory.path().join("backup");
    server.client().ask(&format!("INCR a\nCLIENT REPLY SKIP\nQUIPU.BACKUP {}\nPING", dir.display()), ":1\r\n+PONG\r\n");
    assert_eq!(opened(&dir).read("a").unwrap().value, 1);
}

#[test]
fn what_makes_no_sense_is_refused_and_touches_nothing() {
    let (server, directory) = (TestServer::open(), tempfile::tempdir().unwrap());
    std::fs::write(directory.path().join("theirs"), b"").unwrap();
    let (taken, new) = (directory.path().display(), directory.path().join("backup").display().to_string());
    let mut client = server.client();
    client
        .ask("QUIPU.BACKUP", "-ERR wrong number of arguments for 'quipu.backup' command\r\n")
        .ask(
            "QUIPU.BACKUP backup",
            "-ERR a backup needs an absolute path, since the server is not where its client is\r\n",
        )
        .ask(
            &format!("QUIPU.BACKUP {taken}"),
            format!("-ERR {taken} is not empty: name a directory that is empty or does not exist yet\r\n"),
        )
        .ask(
            &format!("MULTI\nQUIPU.BACKUP {new}\nEXEC"),
            "+OK\r\n-ERR Command not allowed inside a transaction\r\n\
             -EXECABORT Transaction discarded because of previous errors.\r\n",
        );
    // A file stands where a directory should be.
    client.send(format!("QUIPU.BACKUP {taken}/theirs/backup\r\n"));
    let line = client.line();
    assert!(line.starts_with("-ERR cannot "), "{line}");
    client.ask("PING", "+PONG\r\n");
    let left: Vec<_> = std::fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["theirs"]);
}

#[test]
fn who_has_not_given_the_password_makes_no_backup() {
    let directory = tempfile::tempdir().unwrap();
    let server = TestServer::open_with(|options| options.password = Some(Password::new(b"secret").unwrap()));
    let dir = directory.path().join("backup");
    server
        .client()
        .send(format!("QUIPU.BACKUP {}\r\n", dir.display()))
        .expect_closed_after("-NOAUTH Authentication required.\r\n");
    assert!(!dir.exists());
    let mut client = server.client();
    client.send(format!("AUTH secret\r\nQUIPU.BACKUP {}\r\n", dir.display())).expect("+OK\r\n");
    assert!(client.line().starts_with("+OK "));
}

#[test]
fn others_go_on_during_a_backup_and_a_second_one_is_told() {
    let (gate, directory) = (Gate::open(), tempfile::tempdir().unwrap());
    let server = TestServer::open_on(gate.environment());
    let (first, second) = (directory.path().join("first"), directory.path().join("second"));
    // Two on each worker.
    let (mut asking, mut other, mut beside, mut behind) =
        (server.client(), server.client(), server.client(), server.client());
    other.ask("INCR n", ":1\r\n");
    gate.set(Sync::Waits);
    asking.send(format!("QUIPU.BACKUP {}\r\nPING\r\n", first.display())).expect_silence(SILENCE_TIME);
    for client in [&mut other, &mut beside] {
        client.ask("PING", "+PONG\r\n").ask("GET n", "$1\r\n1\r\n");
    }
    behind.ask(&format!("QUIPU.BACKUP {}", second.display()), "-ERR another backup is under way\r\n");
    gate.set(Sync::Passes);
    assert!(asking.line().starts_with("+OK "));
    asking.expect("+PONG\r\n");
    assert!(!second.exists());
    behind.send(format!("QUIPU.BACKUP {}\r\n", second.display()));
    assert!(behind.line().starts_with("+OK "));
}

#[test]
fn a_backup_whose_disk_fails_is_told_and_leaves_nothing() {
    let (gate, directory) = (Gate::open(), tempfile::tempdir().unwrap());
    let server = TestServer::open_on(gate.environment());
    let dir = directory.path().join("backup");
    let mut client = server.client();
    client.ask("INCR n", ":1\r\n");
    gate.set(Sync::Fails);
    client.send(format!("QUIPU.BACKUP {}\r\n", dir.display()));
    let line = client.line();
    assert!(line.starts_with("-ERR cannot sync") && line.ends_with("the disk failed"), "{line}");
    assert!(!dir.exists());
    gate.set(Sync::Passes);
    client.ask("INCR n", ":2\r\n");
}
