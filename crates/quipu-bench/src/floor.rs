//! A server that does nothing: the lower bound of any server's cost.
//!
//! It receives the same bytes as a counter server and sends as many as that would send. It
//! understands neither.
//!
//! Its cost is the system's cost of the same bytes. No server on the same sockets costs less. So
//! its figure shows how much there was to gain, and how much of that is left.
//!
//! In: an address to listen at, and the usual reply to each command. Out: nothing; it runs until it
//! is killed.

use std::io::{self, Read, Write};

use anyhow::{Context, bail};
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};

use crate::args::FloorArgs;

/// Mark before the address on stdout.
pub const READY_MARK: &str = "floor://";

/// Token of the listener; connections are numbered after it.
const LISTENER: Token = Token(0);

/// Bytes per read and per write: more than pipelines of a thousand commands.
const BUFFER_BYTES: usize = 64 << 10;

struct FloorConnection {
    stream: TcpStream,
    /// Bytes of an incomplete command.
    begun: usize,
}

/// Serves until it is killed.
pub fn floor(flags: &FloorArgs, out: &mut impl Write) -> anyhow::Result<()> {
    let &FloorArgs { command: verb, address } = flags;
    let (mut poll, mut events) = (Poll::new().context("wait for sockets")?, Events::with_capacity(1_024));
    let mut listener = TcpListener::bind(address).with_context(|| format!("listen at {address}"))?;
    poll.registry().register(&mut listener, LISTENER, Interest::READABLE).context("wait for connections")?;
    writeln!(out, "{READY_MARK}{}", listener.local_addr()?)?;
    out.flush()?;
    let (command_bytes, reply) = (verb.command_bytes(), verb.usual_reply());
    let replies = reply.repeat(BUFFER_BYTES / command_bytes + 1);
    let (mut connections, mut buffer) = (Vec::<Option<FloorConnection>>::new(), vec![0; BUFFER_BYTES]);
    loop {
        match poll.poll(&mut events, None) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            waited => waited.context("wait for sockets")?,
        }
        for event in events.iter() {
            if event.token() == LISTENER {
                while let Ok((mut stream, _)) = listener.accept() {
                    stream.set_nodelay(true)?;
                    let token = Token(connections.len() + 1);
                    poll.registry().register(&mut stream, token, Interest::READABLE)?;
                    connections.push(Some(FloorConnection { stream, begun: 0 }));
                }
                continue;
            }
            let place = &mut connections[event.token().0 - 1];
            let Some(FloorConnection { stream, begun }) = place else { continue };
            // One read: a closed loop sends no more before it is answered.
            match stream.read(&mut buffer) {
                Ok(0) => *place = None,
                Ok(received) => {
                    let commands = (*begun + received) / command_bytes;
                    *begun = (*begun + received) % command_bytes;
                    let bytes = &replies.as_bytes()[..commands * reply.len()];
                    if stream.write(bytes).context("send")? < bytes.len() {
                        bail!("the socket does not take all replies");
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => *place = None,
            }
        }
    }
}
