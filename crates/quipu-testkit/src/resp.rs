//! A small blocking RESP2 client: sends pipelines, reads replies one by one, and tells a reply that did not come from one that
//! did.
//!
//! Not here: RESP3, reconnecting, retrying: a test wants to see the connection break.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Longest bulk string and array accepted; far more than any reply of the suites, and no allocation trusts it.
const LENGTH_MAX: usize = 1 << 24;

/// Deepest nesting of arrays accepted: COMMAND's is three.
const DEPTH_MAX: usize = 8;

/// How long a connection may take to be accepted.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// `+`.
    Simple(String),
    /// `-`.
    Error(String),
    /// `:`.
    Integer(i64),
    /// `$`, or nil.
    Bulk(Option<Vec<u8>>),
    /// `*`, or nil.
    Array(Option<Vec<Value>>),
}

impl Value {
    /// The number in an integer or bulk reply.
    pub fn number(&self) -> Option<i64> {
        match self {
            Value::Integer(number) => Some(*number),
            Value::Bulk(Some(bytes)) => std::str::from_utf8(bytes).ok()?.parse().ok(),
            _ => None,
        }
    }

    /// The elements of an array reply; none of any other.
    pub fn elements(&self) -> &[Value] {
        match self {
            Value::Array(Some(elements)) => elements,
            _ => &[],
        }
    }

    /// The text of an error reply.
    pub fn error(&self) -> Option<&str> {
        match self {
            Value::Error(text) => Some(text),
            _ => None,
        }
    }

    /// Whether it is nil.
    pub fn is_nil(&self) -> bool {
        matches!(self, Value::Bulk(None) | Value::Array(None))
    }
}

/// A connection.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<TcpStream>,
}

impl Client {
    /// Connects; a reply that takes longer than `timeout` is an error of kind `WouldBlock` or `TimedOut`.
    pub fn connect(address: SocketAddr, timeout: Duration) -> io::Result<Client> {
        let stream = TcpStream::connect_timeout(&address, CONNECT_TIMEOUT)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        Ok(Client { stream: BufReader::new(stream) })
    }

    /// Sends requests, all in one write.
    pub fn send(&mut self, requests: &[Vec<String>]) -> io::Result<()> {
        let mut bytes = Vec::new();
        for request in requests {
            encode(request, &mut bytes);
        }
        self.stream.get_mut().write_all(&bytes)
    }

    /// Sends requests that were encoded before, in one write.
    pub fn send_encoded(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.get_mut().write_all(bytes)
    }

    /// Reads the next reply.
    pub fn receive(&mut self) -> io::Result<Value> {
        read_value(&mut self.stream, 0)
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

pub(crate) fn read_value(stream: &mut impl BufRead, depth: usize) -> io::Result<Value> {
    let line = read_line(stream)?;
    let (kind, rest) = line.split_at_checked(1).ok_or_else(|| malformed(&line))?;
    match kind {
        "+" => Ok(Value::Simple(rest.to_owned())),
        "-" => Ok(Value::Error(rest.to_owned())),
        ":" => rest.parse().map(Value::Integer).map_err(|_| malformed(&line)),
        "$" => match read_length(rest, &line)? {
            None => Ok(Value::Bulk(None)),
            Some(len) => {
                let mut bytes = Vec::new();
                stream.take(len as u64 + 2).read_to_end(&mut bytes)?;
                if bytes.len() < len + 2 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                bytes.truncate(len);
                Ok(Value::Bulk(Some(bytes)))
            }
        },
        "*" if depth < DEPTH_MAX => match read_length(rest, &line)? {
            None => Ok(Value::Array(None)),
            Some(len) => (0..len)
                .map(|_| read_value(stream, depth + 1))
                .collect::<io::Result<_>>()
                .map(|e| Value::Array(Some(e))),
        },
        _ => Err(malformed(&line)),
    }
}

fn read_line(stream: &mut impl BufRead) -> io::Result<String> {
    let mut line = Vec::new();
    stream.take(LENGTH_MAX as u64).read_until(b'\n', &mut line)?;
    if !line.ends_with(b"\r\n") {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    line.truncate(line.len() - 2);
    String::from_utf8(line).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// A length, or `None` for nil.
fn read_length(digits: &str, line: &str) -> io::Result<Option<usize>> {
    match digits.parse::<i64>() {
        Ok(-1) => Ok(None),
        Ok(length) => {
            usize::try_from(length).ok().filter(|&length| length <= LENGTH_MAX).map(Some).ok_or_else(|| malformed(line))
        }
        Err(_) => Err(malformed(line)),
    }
}

fn malformed(line: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not a RESP2 reply: {line:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(mut bytes: &[u8]) -> io::Result<Value> {
        read_value(&mut bytes, 0)
    }

    #[test]
    fn each_kind_of_reply_is_read() {
        let bytes = b"*6\r\n+OK\r\n-ERR no\r\n:-5\r\n$2\r\n\r\n\r\n$-1\r\n*-1\r\n";
        let expected = vec![
            Value::Simple("OK".to_owned()),
            Value::Error("ERR no".to_owned()),
            Value::Integer(-5),
            Value::Bulk(Some(b"\r\n".to_vec())),
            Value::Bulk(None),
            Value::Array(None),
        ];
        assert_eq!(read(bytes).unwrap(), Value::Array(Some(expected)));
        assert_eq!(Value::Bulk(Some(b"-12".to_vec())).number(), Some(-12));
    }

    #[test]
    fn a_reply_cut_anywhere_is_no_reply() {
        let bytes = b"*2\r\n:12\r\n$3\r\nabc\r\n";
        assert!(read(bytes).is_ok());
        for end in 0..bytes.len() {
            assert_eq!(read(&bytes[..end]).unwrap_err().kind(), io::ErrorKind::UnexpectedEof, "cut at {end}");
        }
    }

    #[test]
    fn nonsense_is_an_error() {
        for bytes in ["?\r\n", "\r\n", "$-2\r\n", "$99999999999\r\n", ":x\r\n", &"*1\r\n".repeat(100)] {
            assert_eq!(read(bytes.as_bytes()).unwrap_err().kind(), io::ErrorKind::InvalidData, "{bytes:?}");
        }
    }
}
