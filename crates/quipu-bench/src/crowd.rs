//! Drives connections in a closed loop: each sends its next pipeline once all replies to the last
//! one have come.
//!
//! In: commands as bytes, and a course that gives each connection its next range. Out: the events
//! reported to the course.
//!
//! One thread waits for all sockets. It does the least that a client can, so that the server is
//! measured: one read and one write per pipeline. It allocates nothing and only counts replies.
//!
//! Invariants:
//! - when a drive ends without an error, nothing is in flight;
//! - an error reply, a closed connection or a silence ends the drive with an error.
//!
//! Not here: the measurement (`measure`).

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};

use crate::commands::{Commands, Verb};
use crate::control::{SILENCE_MAX, connect};
use crate::replies::ReplyCounter;
use crate::stop::StopFlag;

/// Bytes per read: more than the replies to a pipeline of a thousand commands.
const READ_BYTES: usize = 64 << 10;

/// Interval at which a wait for sockets ends to check the stop flag.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The plan of the connections, and the receiver of their reports.
pub trait Course {
    /// The next range of a connection that has nothing in flight; `None` if it is done.
    fn next(&mut self, connection: usize, now: Instant) -> Option<CommandRange>;
    /// Reports a pipeline as answered, `took` after it was sent.
    fn answered(&mut self, commands: usize, took: Duration);
}

/// A pipeline: a range of consecutive commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommandRange {
    /// The first command.
    pub from: usize,
    /// Number of commands.
    pub commands: usize,
}

/// The connections.
pub struct Crowd {
    poll: Poll,
    events: Events,
    connections: Vec<LoadConnection>,
    buffer: Box<[u8]>,
}

struct LoadConnection {
    stream: TcpStream,
    range: CommandRange,
    /// The part of its pipeline that the socket has not taken yet; empty nearly always.
    unsent: Range<usize>,
    awaited: usize, // replies; 0 when nothing is in flight
    sent_at: Instant,
    replies: ReplyCounter,
}

impl Crowd {
    /// Connects, and sends `greeting`, a password, on each connection.
    pub fn connect(server: SocketAddr, connections: usize, greeting: Option<&[u8]>) -> anyhow::Result<Crowd> {
        let poll = Poll::new().context("wait for sockets")?;
        let mut crowd = Crowd {
            poll,
            events: Events::with_capacity(connections),
            connections: Vec::with_capacity(connections),
            buffer: vec![0; READ_BYTES].into_boxed_slice(),
        };
        for index in 0..connections {
            let stream = connect(server, greeting).with_context(|| format!("connect to {server}"))?;
            stream.set_nonblocking(true)?;
            let mut stream = TcpStream::from_std(stream);
            let registry = crowd.poll.registry();
            registry.register(&mut stream, Token(index), Interest::READABLE).context("wait for sockets")?;
            crowd.connections.push(LoadConnection {
                stream,
                range: CommandRange { from: 0, commands: 0 },
                unsent: 0..0,
                awaited: 0,
                sent_at: now(),
                replies: ReplyCounter::to(Verb::Incr),
            });
        }
        Ok(crowd)
    }

    /// Number of connections.
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// Drives all connections along their course, until each is done.
    pub fn drive(&mut self, commands: &Commands, course: &mut impl Course, stop: &StopFlag) -> anyhow::Result<()> {
        let Crowd { poll, events, connections, buffer } = self;
        let mut busy = 0;
        for (index, connection) in connections.iter_mut().enumerate() {
            connection.replies = ReplyCounter::to(commands.verb);
            busy += usize::from(connection.begin(index, now(), commands, course, poll)?);
        }
        let mut heard_at = now();
        while busy > 0 {
            stop.check()?;
            match poll.poll(events, Some(LOOK_EVERY)) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                waited => waited.context("wait for sockets")?,
            }
            for event in events.iter() {
                let (Token(index), connection) = (event.token(), &mut connections[event.token().0]);
                if event.is_writable() {
                    connection.send(commands, poll, index)?;
                }
                if connection.awaited == 0 || !connection.receive(buffer)? {
                    continue;
                }
                // The end of one round trip is the beginning of the next: one clock reading for
                // both.
                let came_at = now();
                course.answered(connection.range.commands, came_at - connection.sent_at);
                busy -= usize::from(!connection.begin(index, came_at, commands, course, poll)?);
            }
            if events.is_empty() {
                if heard_at.elapsed() > SILENCE_MAX {
                    bail!("{busy} connections got no reply within {} s", SILENCE_MAX.as_secs());
                }
            } else {
                heard_at = now();
            }
        }
        Ok(())
    }
}

impl LoadConnection {
    /// Sends the next pipeline; false if there is none.
    fn begin(
        &mut self,
        index: usize,
        at: Instant,
        commands: &Commands,
        course: &mut impl Course,
        poll: &Poll,
    ) -> anyhow::Result<bool> {
        let Some(range) = course.next(index, at) else { return Ok(false) };
        self.range = range;
        self.unsent = 0..commands.pipeline(range.from, range.commands).len();
        self.awaited = range.commands;
        self.sent_at = at;
        self.replies.clear();
        self.send(commands, poll, index)?;
        Ok(true)
    }

    /// Sends as much as the socket takes, and waits for writability if some is left.
    fn send(&mut self, commands: &Commands, poll: &Poll, index: usize) -> anyhow::Result<()> {
        let bytes = commands.pipeline(self.range.from, self.range.commands);
        while !self.unsent.is_empty() {
            match self.stream.write(&bytes[self.unsent.clone()]) {
                Ok(sent) => self.unsent.start += sent,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let both = Interest::READABLE | Interest::WRITABLE;
                    return poll
                        .registry()
                        .reregister(&mut self.stream, Token(index), both)
                        .context("wait for sockets");
                }
                Err(error) => return Err(error).context("send commands"),
            }
        }
        Ok(())
    }

    /// Reads the replies that have come; true if all are there.
    fn receive(&mut self, buffer: &mut [u8]) -> anyhow::Result<bool> {
        loop {
            match self.stream.read(buffer) {
                Ok(0) => bail!("the server closed a connection"),
                Ok(read) => {
                    let whole = self.replies.take(&buffer[..read])?;
                    if whole > self.awaited {
                        bail!("the server sent {whole} replies to {} commands", self.awaited);
                    }
                    if whole == self.awaited {
                        self.awaited = 0;
                        return Ok(true);
                    }
                    // Less than the buffer: the socket is empty, and the poll reports later bytes.
                    if read < buffer.len() {
                        return Ok(false);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error).context("receive replies"),
            }
        }
    }
}

/// The clock of measured times.
#[allow(clippy::disallowed_methods, reason = "a real server is measured, nothing here is simulated")]
pub fn now() -> Instant {
    Instant::now()
}
