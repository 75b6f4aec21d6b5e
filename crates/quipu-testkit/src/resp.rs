//! Implements a small blocking RESP2 client: it sends pipelines, reads replies one by one, and
//! distinguishes a missing reply from one that came.
//!
//! Not here: the meaning of a reply's bytes (`quipu-protocol`). It neither reconnects nor retries:
//! a test wants to see the connection break.

use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use quipu_protocol::resp::ReplyReader;
pub use quipu_protocol::resp::Value;

/// Timeout of connecting.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection.
#[derive(Debug)]
pub struct TestRespClient {
    stream: TcpStream,
    replies: ReplyReader,
}

impl TestRespClient {
    /// Connects; a reply that takes longer than `timeout` is an error of kind `WouldBlock` or
    /// `TimedOut`.
    pub fn connect(address: SocketAddr, timeout: Duration) -> io::Result<TestRespClient> {
        let stream = TcpStream::connect_timeout(&address, CONNECT_TIMEOUT)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        Ok(TestRespClient { stream, replies: ReplyReader::default() })
    }

    /// Sends requests, all in one write.
    pub fn send(&mut self, requests: &[Vec<String>]) -> io::Result<()> {
        let mut bytes = Vec::new();
        for request in requests {
            encode(request, &mut bytes);
        }
        self.stream.write_all(&bytes)
    }

    /// Sends encoded requests, in one write.
    pub fn send_encoded(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Reads the next reply.
    pub fn receive(&mut self) -> io::Result<Value> {
        self.replies.read_from(&mut self.stream)
    }

    /// Sends one request and reads its reply.
    pub fn call(&mut self, request: &[&str]) -> io::Result<Value> {
        self.send(&[request.iter().map(|&argument| argument.to_owned()).collect()])?;
        self.receive()
    }
}

/// Writes a request as an array of bulk strings.
pub fn encode(request: &[String], out: &mut Vec<u8>) {
    out.extend_from_slice(format!("*{}\r\n", request.len()).as_bytes());
    for argument in request {
        out.extend_from_slice(format!("${}\r\n{argument}\r\n", argument.len()).as_bytes());
    }
}
