//! Makes a connection that is ready for requests: authenticated and answering.
//!
//! It waits for the first reply before it sends anything else. A server with too many clients sends
//! an unrequested error and closes; that would pass for the reply to a request.

use std::io;

use quipu_protocol::Address;
use quipu_protocol::resp::{ReplyReader, Value, request};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::{Options, Trouble};

/// The only user. Named, because a server without a password accepts any password for it, and
/// refuses one without a name.
const USER: &[u8] = b"default";

/// Bytes per read: the longest reply to a greeting.
const READ_BYTES: usize = 512;

/// The address to connect to, and the options.
#[derive(Debug)]
pub(crate) struct Target {
    pub address: Address,
    pub options: Options,
}

/// Connects within `connect_timeout`.
pub(crate) async fn dial(target: &Target) -> Result<TcpStream, Trouble> {
    let within = target.options.connect_timeout;
    timeout(within, connect(target)).await.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into()))
}

async fn connect(target: &Target) -> Result<TcpStream, Trouble> {
    let Target { address, options } = target;
    let mut stream = TcpStream::connect((address.host.as_str(), address.port)).await?;
    stream.set_nodelay(true)?;
    let (mut greeting, mut replies) = (Vec::new(), 1);
    let password = address.password.as_deref().or(options.password.as_ref().map(|password| password.bytes()));
    if let Some(password) = password {
        greeting = request(&[b"AUTH", USER, password]);
        replies += 1;
    }
    greeting.extend(request(&[b"PING"]));
    stream.write_all(&greeting).await?;
    let (mut reader, mut bytes) = (ReplyReader::default(), [0; READ_BYTES]);
    while replies > 0 {
        match reader.take().map_err(|error| Trouble::Nonsense(format!("no RESP: {error}")))? {
            Some(Value::Error(text)) => return Err(Trouble::Refused(text)),
            // An echo service, or one with constant replies, is no server.
            Some(Value::Simple(word)) if word == if replies == 1 { "PONG" } else { "OK" } => replies -= 1,
            Some(other) => return Err(Trouble::Nonsense(format!("{other:?} for a greeting"))),
            None => match stream.read(&mut bytes).await? {
                0 => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                count => reader.feed(&bytes[..count]),
            },
        }
    }
    Ok(stream)
}
