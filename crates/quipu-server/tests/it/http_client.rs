//! An HTTP client that keeps its connection and sends exactly the given bytes.

use std::io::{Read, Write};
use std::net::SocketAddr;

use serde_json::Value;

use crate::test_server::{Client, TestServer};

/// A connection.
pub struct HttpClient(pub Client);

/// A reply.
#[derive(Debug)]
pub struct HttpReply {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl HttpReply {
    pub fn header(&self, name: &str) -> Option<&str> {
        let prefix = format!("{name}: ");
        self.head.lines().find_map(|line| line.strip_prefix(&prefix))
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body.escape_ascii()))
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    /// It is a problem of this reason, properly written.
    #[track_caller]
    pub fn is_problem(&self, status: u16, word: &str) -> Value {
        assert_eq!(self.status, status, "{} {}", self.head, self.body.escape_ascii());
        assert_eq!(self.header("content-type"), Some("application/problem+json"));
        let problem = self.json();
        assert_eq!(problem["type"], format!("urn:quipu:problem:{word}"), "{problem}");
        assert_eq!(problem["status"], status);
        assert!(!problem["title"].as_str().unwrap().is_empty() && !problem["detail"].as_str().unwrap().is_empty());
        problem
    }
}

impl HttpClient {
    pub fn connect(addr: SocketAddr) -> HttpClient {
        HttpClient(Client::connect(addr))
    }

    pub fn connect_to(server: &TestServer) -> HttpClient {
        HttpClient::connect(server.http)
    }

    pub fn get(&mut self, path: &str) -> HttpReply {
        self.ask("GET", path, "", "")
    }

    pub fn post(&mut self, path: &str, body: &str) -> HttpReply {
        self.ask("POST", path, "", body)
    }

    /// Sends a request and hears its reply. Headers end with line ends.
    pub fn ask(&mut self, method: &str, path: &str, headers: &str, body: &str) -> HttpReply {
        self.send(method, path, headers, body);
        self.read_reply(method == "HEAD")
    }

    pub fn send(&mut self, method: &str, path: &str, headers: &str, body: &str) {
        let length = if body.is_empty() { String::new() } else { format!("Content-Length: {}\r\n", body.len()) };
        self.0.send(format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n{headers}{length}\r\n{body}"));
    }

    /// The head of the next reply.
    pub fn head(&mut self) -> (u16, String) {
        let (mut head, mut line) = (String::new(), self.0.line());
        let status = line.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_else(|| panic!("{line}"));
        while !line.is_empty() {
            head += &line;
            head.push('\n');
            line = self.0.line();
        }
        (status, head)
    }

    /// The next reply.
    pub fn read_reply(&mut self, headless: bool) -> HttpReply {
        let (status, head) = self.head();
        let mut reply = HttpReply { status, head, body: Vec::new() };
        let length = reply.header("content-length").map_or(0, |length| length.parse().unwrap());
        if !headless {
            reply.body = vec![0; length];
            self.0.0.read_exact(&mut reply.body).unwrap();
        }
        reply
    }

    /// Sends bytes and hears everything until the server closes.
    pub fn raw(mut self, bytes: &[u8]) -> String {
        // A server that has heard enough may close before it has all of it.
        let _ = self.0.0.write_all(bytes);
        String::from_utf8_lossy(&self.0.rest()).into_owned()
    }
}
