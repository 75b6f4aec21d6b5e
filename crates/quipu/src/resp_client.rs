//! A small blocking RESP2 client, for the commands that ask a running server.
//!
//! Invariants:
//! - every wait has an end, and no allocation trusts a length that the other side declares;
//! - errors say what to do next.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};

/// How long a connection or a reply may take. An fsync on a bad day takes seconds.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Longest line of a reply: an error text or a number, with room to spare.
const LINE_BYTES_MAX: u64 = 64 << 10;

/// Longest bulk string or array accepted.
const LENGTH_MAX: usize = 1 << 24;

/// Deepest nesting of arrays accepted: SCAN's is two.
const DEPTH_MAX: usize = 4;

/// The port if an address names none.
const PORT_DEFAULT: u16 = 7379;

/// How a server answers a password that it does not ask for. That does no harm.
pub const PASSWORD_NOT_ASKED: &str = "without any password configured";

/// A reply that is not an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    Simple(String),
    Integer(i64),
    Bulk(Option<Vec<u8>>),
    Array(Vec<Value>),
}

impl Value {
    /// A count; nil counts 0.
    pub fn count(&self) -> anyhow::Result<i64> {
        match self {
            Value::Integer(number) => Ok(*number),
            Value::Bulk(None) => Ok(0),
            Value::Bulk(Some(bytes)) => {
                let text = std::str::from_utf8(bytes).ok().and_then(|text| text.parse().ok());
                text.with_context(|| format!("the server sent \"{}\" for a count", bytes.escape_ascii()))
            }
            other => bail!("the server sent {other:?} for a count"),
        }
    }
}

/// A connection to a server.
pub struct Client {
    stream: BufReader<TcpStream>,
}

impl Client {
    /// Connects, and gives the password if there is one.
    pub fn connect(server: &str, password: Option<&str>) -> anyhow::Result<Client> {
        let next = "is it running? Start one with `quipu serve`, or name another with --server or QUIPU_SERVER";
        let stream = connect(server).map_err(|error| anyhow!("cannot reach a server at {server}: {error}; {next}"))?;
        let mut client = Client { stream: BufReader::new(stream) };
        if let Some(password) = password {
            match client.call(&[b"AUTH", password.as_bytes()]) {
                Err(error) if error.to_string().contains(PASSWORD_NOT_ASKED) => {}
                answer => drop(answer?),
            }
        }
        Ok(client)
    }

    /// The address that answered.
    pub fn server(&self) -> io::Result<SocketAddr> {
        self.stream.get_ref().peer_addr()
    }

    /// Lets replies take longer than usual.
    pub fn wait_for(&mut self, time: Duration) -> io::Result<()> {
        self.stream.get_ref().set_read_timeout(Some(time))
    }

    /// Sends one command and returns its reply; an error reply is an error.
    pub fn call(&mut self, arguments: &[&[u8]]) -> anyhow::Result<Value> {
        let mut request = format!("*{}\r\n", arguments.len()).into_bytes();
        for argument in arguments {
            request.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
            request.extend_from_slice(argument);
            request.extend_from_slice(b"\r\n");
        }
        let sent = self.stream.get_mut().write_all(&request);
        let reply = sent
            .map_err(|error| anyhow!("the connection broke: {error}; nothing was sent, so try again"))
            .and_then(|()| read_reply(&mut self.stream, 0).map_err(unknown))?;
        match reply {
            Reply::Value(value) => Ok(value),
            Reply::Error(text) => Err(explained(&text)),
        }
    }
}

enum Reply {
    Value(Value),
    Error(String),
}

fn connect(server: &str) -> io::Result<TcpStream> {
    let with_port = if server.parse::<std::net::IpAddr>().is_ok() || !server.contains(':') {
        (server, PORT_DEFAULT).to_socket_addrs()
    } else {
        server.to_socket_addrs()
    };
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in with_port? {
        match TcpStream::connect_timeout(&address, TIMEOUT) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(TIMEOUT))?;
                stream.set_write_timeout(Some(TIMEOUT))?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// A request was sent and no reply came.
fn unknown(error: io::Error) -> anyhow::Error {
    match error.kind() {
        io::ErrorKind::InvalidData => anyhow!("this is no RESP server: {error}; is the port right?"),
        _ => anyhow!("no reply came: {error}; a change may or may not have been applied, look before trying again"),
    }
}

fn explained(text: &str) -> anyhow::Error {
    if text.starts_with("NOAUTH") {
        return anyhow!("the server asks for a password: give it with --password or QUIPU_PASSWORD");
    }
    if text.starts_with("WRONGPASS") {
        return anyhow!("the server does not accept this password");
    }
    anyhow!("the server refused: {text}")
}

fn read_reply(stream: &mut impl BufRead, depth: usize) -> io::Result<Reply> {
    let line = read_line(stream)?;
    let (kind, rest) = line.split_at_checked(1).ok_or_else(|| malformed(&line))?;
    let value = match kind {
        "-" => return Ok(Reply::Error(rest.to_owned())),
        "+" => Value::Simple(rest.to_owned()),
        ":" => Value::Integer(rest.parse().map_err(|_| malformed(&line))?),
        "$" => Value::Bulk(read_length(rest, &line)?.map(|length| read_bulk(stream, length)).transpose()?),
        "*" if depth < DEPTH_MAX => {
            let mut values = Vec::new();
            for _ in 0..read_length(rest, &line)?.unwrap_or(0) {
                match read_reply(stream, depth + 1)? {
                    Reply::Value(value) => values.push(value),
                    error => return Ok(error),
                }
            }
            Value::Array(values)
        }
        _ => return Err(malformed(&line)),
    };
    Ok(Reply::Value(value))
}

fn read_line(stream: &mut impl BufRead) -> io::Result<String> {
    let mut line = Vec::new();
    stream.take(LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
    if !line.ends_with(b"\r\n") {
        let cut = (line.len() as u64) < LINE_BYTES_MAX && !line.ends_with(b"\n");
        let text = String::from_utf8_lossy(&line).into_owned();
        return Err(if cut { io::ErrorKind::UnexpectedEof.into() } else { malformed(&text) });
    }
    line.truncate(line.len() - 2);
    String::from_utf8(line).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

fn read_length(digits: &str, line: &str) -> io::Result<Option<usize>> {
    match digits.parse::<i64>() {
        Ok(-1) => Ok(None),
        Ok(length) => {
            usize::try_from(length).ok().filter(|&length| length <= LENGTH_MAX).map(Some).ok_or_else(|| malformed(line))
        }
        Err(_) => Err(malformed(line)),
    }
}

fn read_bulk(stream: &mut impl BufRead, length: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    stream.take(length as u64 + 2).read_to_end(&mut bytes)?;
    if bytes.len() < length + 2 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    bytes.truncate(length);
    Ok(bytes)
}

fn malformed(line: &str) -> io::Error {
    let shown: String = line.chars().take(60).collect();
    io::Error::new(io::ErrorKind::InvalidData, format!("it sent {shown:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(mut bytes: &[u8]) -> io::Result<Reply> {
        read_reply(&mut bytes, 0)
    }

    #[test]
    fn replies_are_read_and_errors_are_errors() {
        let Ok(Reply::Value(value)) = read(b"*2\r\n$1\r\n0\r\n*2\r\n$-1\r\n:-5\r\n") else { panic!() };
        let inner = Value::Array(vec![Value::Bulk(None), Value::Integer(-5)]);
        assert_eq!(value, Value::Array(vec![Value::Bulk(Some(b"0".to_vec())), inner]));
        assert!(matches!(read(b"-ERR no\r\n"), Ok(Reply::Error(text)) if text == "ERR no"));
    }

    #[test]
    fn a_reply_cut_anywhere_is_no_reply() {
        let bytes = b"*2\r\n:12\r\n$3\r\nabc\r\n";
        assert!(read(bytes).is_ok());
        for end in 0..bytes.len() {
            let Err(error) = read(&bytes[..end]) else { panic!("cut at {end}") };
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "cut at {end}");
        }
    }

    #[test]
    fn another_protocol_is_recognised() {
        for bytes in [&b"HTTP/1.1 400 Bad Request\r\n"[..], b"$-2\r\n", b"$99999999999\r\n", b"\xff\xff\r\n"] {
            let Err(error) = read(bytes) else { panic!("{}", bytes.escape_ascii()) };
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        }
        let Err(error) = read("*1\r\n".repeat(50).as_bytes()) else { panic!("nested for ever") };
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }
}
