//! The connection of the commands to a running server: address, password, and errors for people.
//!
//! Invariants:
//! - every wait has a timeout;
//! - every error says what to do next.
//!
//! Not here: requests and replies on the wire (`quipu-protocol`).

use std::io;
#[cfg(feature = "bench")]
use std::net::SocketAddr;
use std::net::ToSocketAddrs;
use std::time::Duration;

use anyhow::{Context, anyhow};
use quipu_protocol::Address;
pub use quipu_protocol::resp::Value;
use quipu_protocol::resp::{RespConnection, write_request};

/// Timeout of a reply. An fsync on a bad day takes seconds.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Text of a server's refusal of an unneeded password; harmless.
const PASSWORD_NOT_ASKED: &str = "without any password configured";

/// A count; nil is 0.
pub fn reply_count(value: &Value) -> anyhow::Result<i64> {
    match value {
        Value::Null => Ok(0),
        value => value.number().with_context(|| format!("the server sent {value:?} for a count")),
    }
}

/// A connection to a server.
pub struct RespClient {
    connection: RespConnection,
}

impl RespClient {
    /// Connects to `host:port` or `redis://…`, and sends the password if there is one. A password
    /// in the address has precedence.
    pub fn connect(server: &str, password: Option<&str>) -> anyhow::Result<RespClient> {
        let next = "is it running? Start one with `quipu serve`, or name another with --server or QUIPU_SERVER";
        let server = Address::parse(server)?;
        let connection =
            connect(&server).map_err(|error| anyhow!("cannot reach a server at {server}: {error}; {next}"))?;
        let password = server.password.as_deref().or(password.map(str::as_bytes));
        let mut client = RespClient { connection };
        if let Some(password) = password {
            match client.call(&[b"AUTH", password]) {
                Err(error) if error.to_string().contains(PASSWORD_NOT_ASKED) => {}
                answer => drop(answer?),
            }
        }
        Ok(client)
    }

    /// The address that answered.
    #[cfg(feature = "bench")]
    pub fn server(&self) -> io::Result<SocketAddr> {
        self.connection.peer_address()
    }

    /// Sets another timeout for replies.
    pub fn wait_for(&mut self, time: Duration) -> io::Result<()> {
        self.connection.set_reply_timeout(time)
    }

    /// Sends one command and returns its reply; an error reply is an error.
    pub fn call(&mut self, arguments: &[&[u8]]) -> anyhow::Result<Value> {
        self.send(&[arguments])?;
        expect_success(self.receive()?)
    }

    /// Sends several reading commands, and passes each reply with its command's number to `take`.
    /// An error reply is a reply.
    ///
    /// A server must be able to take all commands before its replies are read: some hundred at
    /// most.
    pub fn pipeline(
        &mut self,
        commands: &[Vec<&[u8]>],
        mut take: impl FnMut(usize, Value) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        self.send(commands)?;
        (0..commands.len()).try_for_each(|at| take(at, self.receive()?))
    }

    fn send<'a>(&mut self, commands: &[impl AsRef<[&'a [u8]]>]) -> anyhow::Result<()> {
        let mut bytes = Vec::new();
        for command in commands {
            write_request(command.as_ref(), &mut bytes);
        }
        let sent = self.connection.send_encoded(&bytes);
        sent.map_err(|error| anyhow!("the connection broke: {error}; nothing was sent, so try again"))
    }

    fn receive(&mut self) -> anyhow::Result<Value> {
        self.connection.receive().map_err(unknown_outcome)
    }
}

/// Turns an error reply into an error.
pub fn expect_success(reply: Value) -> anyhow::Result<Value> {
    match reply {
        Value::Error(text) => Err(explain_refusal(&text)),
        value => Ok(value),
    }
}

fn connect(server: &Address) -> io::Result<RespConnection> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in (server.host.as_str(), server.port).to_socket_addrs()? {
        match RespConnection::connect(address, TIMEOUT) {
            Ok(connection) => return Ok(connection),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// The error for a request that was sent and not answered.
fn unknown_outcome(error: io::Error) -> anyhow::Error {
    match error.kind() {
        io::ErrorKind::InvalidData => anyhow!("this is no RESP server: {error}; is the port right?"),
        _ => anyhow!("no reply came: {error}; a change may or may not have been applied, look before trying again"),
    }
}

fn explain_refusal(text: &str) -> anyhow::Error {
    if text.starts_with("NOAUTH") {
        return anyhow!("the server asks for a password: give it with --password or QUIPU_PASSWORD");
    }
    if text.starts_with("WRONGPASS") {
        return anyhow!("the server does not accept this password");
    }
    anyhow!("the server refused: {text}")
}

#[cfg(test)]
mod tests {
    use quipu_protocol::resp::ReplyReader;

    use super::*;

    #[test]
    fn what_counts_is_a_number_or_nothing() {
        for (value, expected) in [(Value::Null, 0), (Value::Integer(-5), -5), (Value::Bulk(b"7".to_vec()), 7)] {
            assert_eq!(reply_count(&value).unwrap(), expected);
        }
        let error = reply_count(&Value::Bulk(b"many".to_vec())).unwrap_err();
        assert!(error.to_string().contains("for a count"), "{error}");
    }

    #[test]
    fn another_protocol_differs_from_a_lost_connection() {
        let error_text =
            |mut bytes: &[u8]| unknown_outcome(ReplyReader::default().read_from(&mut bytes).unwrap_err()).to_string();
        assert!(error_text(b"HTTP/1.1 400 Bad Request\r\n").contains("no RESP server"));
        assert!(error_text(b"$5\r\nabc").contains("may or may not have been applied"));
    }
}
