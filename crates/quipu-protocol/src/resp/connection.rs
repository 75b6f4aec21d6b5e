//! A client's blocking connection: it sends requests in pipelines and reads replies one by one.
//!
//! Invariant: every wait has a timeout. A missing reply is an error of kind `WouldBlock` or
//! `TimedOut`, and bytes that are no reply are one of kind `InvalidData`.
//!
//! Not here: names of hosts, passwords, retries, the meaning of a reply.

use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::{ReplyReader, Value, write_request};

/// Timeout of connecting.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection to a server that speaks RESP2.
#[derive(Debug)]
pub struct RespConnection {
    stream: TcpStream,
    replies: ReplyReader,
}

impl RespConnection {
    /// Connects; `timeout` bounds each wait for a reply and each write.
    pub fn connect(address: SocketAddr, timeout: Duration) -> io::Result<RespConnection> {
        let stream = TcpStream::connect_timeout(&address, CONNECT_TIMEOUT)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        Ok(RespConnection { stream, replies: ReplyReader::default() })
    }

    /// Sets another timeout for replies.
    pub fn set_reply_timeout(&self, timeout: Duration) -> io::Result<()> {
        self.stream.set_read_timeout(Some(timeout))
    }

    /// The server's address.
    pub fn peer_address(&self) -> io::Result<SocketAddr> {
        self.stream.peer_addr()
    }

    /// Sends requests, all in one write.
    pub fn send<A: AsRef<[u8]>>(&mut self, requests: &[Vec<A>]) -> io::Result<()> {
        let mut bytes = Vec::new();
        for request in requests {
            write_request(request, &mut bytes);
        }
        self.send_encoded(&bytes)
    }

    /// Sends encoded requests, in one write.
    pub fn send_encoded(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Reads the next reply.
    pub fn receive(&mut self) -> io::Result<Value> {
        self.replies.read_from(&mut self.stream)
    }

    /// Sends one request and reads its reply. An error reply is a reply.
    pub fn call<A: AsRef<[u8]>>(&mut self, request: &[A]) -> io::Result<Value> {
        let mut bytes = Vec::new();
        write_request(request, &mut bytes);
        self.send_encoded(&bytes)?;
        self.receive()
    }
}
