//! Open files: connections never take those that the journal needs.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};

use rustix::process::{Resource, Rlimit, setrlimit};

use crate::test_server::{Client, TestServer};

const CHILD: &str = "QUIPU_TEST_FEW_FILES";

/// What the server's process may open.
const FILES: u64 = 300;

/// HTTP connections that are tried: more than are let in.
const HTTP_CONNECTIONS: usize = 64;

/// What must be left for the journal when every connection is taken.
const FILES_LEFT_MIN: u64 = 100;

#[test]
fn connections_leave_files_for_the_journal() {
    if std::env::var_os(CHILD).is_some() {
        return serve_with_few_files();
    }
    // A process of its own: the limit is the process's, and the clients' sockets must not count.
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "files::connections_leave_files_for_the_journal", "--nocapture"])
        .env(CHILD, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(|line| line.unwrap());
    let ready = lines.find_map(|line| line.split_once("ready ").map(|(_, rest)| rest.to_owned())).unwrap();
    let addrs: Vec<_> = ready.split(' ').map(|addr| addr.parse().unwrap()).collect();
    let (resp, http) = (addrs[0], addrs[1]);

    let _held: Vec<Client> = (0..HTTP_CONNECTIONS).map(|_| Client::connect(http)).collect();
    let mut inside = Vec::new();
    let refused = (0..FILES).any(|_| {
        let mut client = Client::connect(resp);
        client.send("PING\r\n");
        let refused = client.line() == "-ERR max number of clients reached";
        inside.push(client);
        refused
    });
    assert!(refused, "there was room for {} connections", inside.len());
    let open = std::fs::read_dir(format!("/proc/{}/fd", child.id())).unwrap().count() as u64;
    assert!(open + FILES_LEFT_MIN <= FILES, "{open} of {FILES} files are open");
    inside[0].ask("INCR n", ":1\r\n");

    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    let mut log = String::new();
    child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
    assert!(log.contains("maxclients has been reduced from 10000 to "), "{log}");
}

fn serve_with_few_files() {
    setrlimit(Resource::Nofile, Rlimit { current: Some(FILES), maximum: Some(FILES) }).unwrap();
    let server = TestServer::open();
    println!("ready {} {}", server.resp, server.http);
    // Until the parent has seen enough.
    let _ = std::io::stdin().read(&mut [0]);
}
