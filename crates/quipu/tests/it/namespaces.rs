//! Settings of a namespace at run time, and kill -9.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A server, and where it speaks HTTP.
struct HttpServer {
    child: Child,
    http: String,
}

impl HttpServer {
    fn start(data: &Path) -> HttpServer {
        let mut child = Command::new(env!("CARGO_BIN_EXE_quipu"))
            .env_clear()
            .args(["serve", "--resp", "127.0.0.1:0", "--http", "127.0.0.1:0", "--seal-every", "50ms"])
            .args(["--segment-bytes", "65536", "--journal-bytes-max", "64KiB", "--workers", "1", "--data"])
            .arg(data)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let mut lines = BufReader::new(child.stdout.take().expect("it is piped")).lines().map_while(Result::ok);
        let http = lines.find_map(|line| Some(line.split_once("http://")?.1.trim().to_owned()));
        // The rest is read, so that it never waits for a full pipe.
        std::thread::spawn(move || lines.for_each(drop));
        HttpServer { child, http: http.expect("it says where") }
    }

    /// Status and body.
    fn ask(&self, method: &str, path: &str, body: &str) -> (u16, serde_json::Value) {
        let mut stream = TcpStream::connect(&self.http).expect("it listens");
        let length = body.len();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
        )
        .expect("it reads");
        let mut reply = String::new();
        stream.read_to_string(&mut reply).expect("it answers");
        let (head, body) = reply.split_once("\r\n\r\n").expect("a head and a body");
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        (status, serde_json::from_str(body).expect("JSON"))
    }

    fn kill(mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it ends");
    }
}

#[test]
fn what_was_answered_is_in_force_after_a_kill_and_what_it_made_durable_is_there() {
    let data = tempfile::tempdir().expect("a temporary directory");
    for round in 1..=12u64 {
        let served = HttpServer::start(data.path());
        if round > 1 {
            let (_, shown) = served.ask("GET", "/v1/namespaces/x", "");
            assert_eq!(shown["put"]["ttl"], format!("{}h", round + 100), "{shown}");
            let (_, reading) = served.ask("GET", "/v1/counters/x:1", "");
            assert_eq!(reading["value"], 10 * (round - 1), "what was in memory became durable");
        }
        let ttl = format!("\"ttl\": \"{}h\"", round + 101);
        let (status, _) = served.ask("PUT", "/v1/namespaces/x", &format!("{{\"durability\": \"memory\", {ttl}}}"));
        assert_eq!(status, 200);
        for _ in 0..10 {
            served.ask("POST", "/v1/counters/x:1/add", "{}");
        }
        let (status, shown) = served.ask("PUT", "/v1/namespaces/x", &format!("{{\"durability\": \"durable\", {ttl}}}"));
        assert_eq!(status, 200);
        assert_eq!(shown["settings"]["durability"]["value"], "durable");
        let mut check = Command::new(env!("CARGO_BIN_EXE_quipu"));
        let checked = check.env_clear().args(["config", "check", "--data"]).arg(data.path()).output();
        let checked = String::from_utf8(checked.expect("it runs").stdout).expect("text");
        let line = checked.lines().find(|line| line.contains("namespace.x.ttl")).expect("it is shown");
        let from = shown["settings"]["ttl"]["from"].as_str().expect("where it came from");
        assert!(from.starts_with("run time at 20") && line.contains(from), "{from}: {line}");
        if round % 3 == 0 {
            // A seal, and a cut.
            std::thread::sleep(std::time::Duration::from_millis(150));
        }
        served.kill();
    }
}
