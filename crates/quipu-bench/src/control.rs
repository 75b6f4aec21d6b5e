//! Connects to a server, and sends the few commands outside of a measurement, one at a time.
//!
//! Not here: the load (`crowd`).

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, bail};
use quipu_protocol::resp::{ReplyReader, Value, request};

/// Longest silence. An fsync on a bad day takes seconds.
pub const SILENCE_MAX: Duration = Duration::from_secs(30);

/// Longest reply to a greeting.
const GREETING_REPLY_MAX: usize = 64 << 10;

/// Text of a server's refusal of an unneeded password; harmless.
const PASSWORD_NOT_ASKED: &str = "without any password configured";

/// The command that sends a password.
pub fn greeting(password: &str) -> Vec<u8> {
    request(&[b"AUTH", password.as_bytes()])
}

/// Connects, and sends `greeting`, a password. Every wait has a timeout.
pub fn connect(server: SocketAddr, greeting: Option<&[u8]>) -> anyhow::Result<TcpStream> {
    let mut stream = TcpStream::connect_timeout(&server, SILENCE_MAX)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(SILENCE_MAX))?;
    stream.set_write_timeout(Some(SILENCE_MAX))?;
    if let Some(greeting) = greeting {
        stream.write_all(greeting)?;
        let mut line = Vec::new();
        while !line.ends_with(b"\n") && line.len() < GREETING_REPLY_MAX {
            let mut byte = [0];
            stream.read_exact(&mut byte)?;
            line.push(byte[0]);
        }
        let answer = String::from_utf8_lossy(&line);
        if !answer.starts_with('+') && !answer.contains(PASSWORD_NOT_ASKED) {
            bail!("the server does not accept the password: {}", answer.trim_end());
        }
    }
    Ok(stream)
}

/// A connection for single commands.
pub struct ControlConnection {
    stream: TcpStream,
    replies: ReplyReader,
}

impl ControlConnection {
    /// Connects, and sends `greeting`, a password.
    pub fn open(server: SocketAddr, greeting: Option<&[u8]>) -> anyhow::Result<ControlConnection> {
        let stream = connect(server, greeting).with_context(|| format!("connect to {server}"))?;
        Ok(ControlConnection { stream, replies: ReplyReader::default() })
    }

    /// Sends one command and returns its reply; an error reply is an error.
    pub fn call(&mut self, words: &[&[u8]]) -> anyhow::Result<Value> {
        self.stream.write_all(&request(words)).context("send a command")?;
        match self.replies.read_from(&mut self.stream).context("receive a reply")? {
            Value::Error(text) => bail!("the server refused: {text}"),
            value => Ok(value),
        }
    }
}
