//! One connection, from its first byte to its last.
//!
//! In: a socket. Out: replies on it.
//!
//! A connection **rests** while nothing is asked of it: then the worker's rounds read for it, run what has come and send the replies (`worker/rounds.rs`). Whatever takes time, a slow reader, half a command, a counter
//! at rest, a deadline, is seen to by [`Connection::serve`], apart from the others, until it rests again.
//!
//! Invariants:
//! - a command that needs counters at rest waits alone: what came before it is answered, what comes after it runs after it;
//! - replies leave only after `commit_until` returned Ok; when it fails, the connection closes without them;
//! - between turns a quiet connection holds no buffer: bytes are read into one that the worker's connections share, and only an
//!   unfinished command is kept, in at most its own length and 4 KiB;
//! - every wait on the client has a bound.

mod command_batch;
mod error;
mod execute;
mod item_commands;
mod latency_sample;
mod respond;
mod session;
mod simple_commands;
mod socketless;
mod transaction;
mod unreplied_adds;

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use quipu_engine::{LoadOutcome, SIMPLE_COMMANDS_MAX, Turn, Wait};
use quipu_model::Millis;
use rustix::net::SendFlags;
use tokio::io::{AsyncRead, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};

use quipu_protocol::Decoder;

use crate::backup;
use crate::clients::ClientInfo;
use crate::server_state::{ServerState, add_stat};
pub(crate) use command_batch::{CommandBatch, EntryProgress};
pub(crate) use error::ConnectionError;
use latency_sample::LatencySample;
pub(crate) use respond::REDIS_VERSION;
use session::Session;
pub(crate) use session::TurnEnd;
pub use socketless::SocketlessWorker;

/// What one read takes at most: room for a pipeline of 1,000 increments.
const READ_BYTES: usize = 64 << 10;

/// An unfinished command's buffer grows in steps of this, so that it stays near what was received.
const INPUT_STEP_BYTES: usize = 4 << 10;

/// An output buffer larger than this is given back after the write.
const OUTPUT_KEPT_BYTES: usize = 16 << 10;

/// When the server stops, a connection with nothing to read for so long has nothing more to be answered. Long enough for the
/// runtime to look at every socket once.
const DRAIN_PAUSE: Duration = Duration::from_millis(10);

thread_local! {
    /// Where every connection of a worker reads: used within one step, never across a wait. Room for those that are gathered, and one more.
    static READ: RefCell<Box<[u8]>> = RefCell::new(vec![0; SIMPLE_COMMANDS_MAX * command_batch::INPUT_BYTES_MAX + READ_BYTES].into_boxed_slice());
}

/// Lends where connections of this worker read.
pub(crate) fn with_read_buffer<T>(work: impl FnOnce(&mut [u8]) -> T) -> T {
    READ.with_borrow_mut(|buffer| work(buffer))
}

/// A client, and how far it has come.
pub(crate) struct Connection {
    stream: TcpStream,
    session: Session,
    /// Beside the session: its frames borrow it while the session changes.
    decoder: Decoder,
    server: Arc<ServerState>,
    /// Whether the server stops; whoever sets it looks at every connection.
    stopping: Rc<Cell<bool>>,
    /// An unfinished command, or what was held back for the next turn.
    input: Vec<u8>,
    output: Vec<u8>,
    /// When the unfinished command in `input` began to arrive.
    partial_since: Option<Instant>,
    /// The read whose commands are being answered, if it is timed.
    sample: Option<Box<LatencySample>>,
    /// Whether the last read took all that there was room for, so there may be more.
    may_have_more: bool,
    opened: Instant,
}

/// What waiting for bytes came to.
enum ReadOutcome {
    TurnDone(TurnOutcome),
    /// The client has gone, or has taken too long.
    Gone,
    /// The server stops.
    Stopping,
}

/// What a turn left to do.
pub(crate) struct TurnOutcome {
    pub wait: Wait,
    pub end: TurnEnd,
}

impl TurnOutcome {
    /// Waits for this, too.
    pub fn with_wait(self, wait: Wait) -> TurnOutcome {
        TurnOutcome { wait: self.wait.and(wait), ..self }
    }
}

impl Connection {
    pub fn new(
        stream: TcpStream,
        client: Arc<ClientInfo>,
        server: Arc<ServerState>,
        stopping: Rc<Cell<bool>>,
    ) -> Box<Connection> {
        let session = Session::new(client, Arc::clone(&server));
        let (input, output, opened) = (Vec::new(), Vec::new(), Instant::now());
        let (decoder, partial, sample, is_more) = (Decoder::default(), None, None, false);
        Box::new(Connection {
            stream,
            session,
            decoder,
            server,
            stopping,
            input,
            output,
            partial_since: partial,
            sample,
            may_have_more: is_more,
            opened,
        })
    }

    /// Whether there is nothing to do but to wait for bytes, for however long it takes.
    pub fn is_idle(&self) -> bool {
        !self.stopping.get() && self.deadline().is_none()
    }

    /// Finishes a turn and goes on until there is nothing to do but to wait. `None`: the client leaves, misbehaves, or the server stops.
    pub async fn serve(mut self: Box<Self>, outcome: Option<TurnOutcome>) -> Option<Box<Connection>> {
        // An error in here is the client's going away; there is nobody left to tell.
        if let Some(outcome) = outcome
            && !self.finish_turns(outcome).await.ok()?
        {
            return None;
        }
        while !self.is_idle() {
            match self.receive().await.ok()? {
                ReadOutcome::TurnDone(outcome) => {
                    if !self.finish_turns(outcome).await.ok()? {
                        return None;
                    }
                    if self.may_have_more {
                        // Whoever sends faster than it is read from would keep the worker for itself.
                        tokio::task::yield_now().await;
                    }
                }
                ReadOutcome::Stopping => {
                    let _ = self.drain().await;
                    return None;
                }
                ReadOutcome::Gone => return None,
            }
        }
        Some(self)
    }

    /// Asks to be told when there is something to read; ready if there may be already.
    pub fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.stream.poll_read_ready(cx).map(|_| ())
    }

    /// Reads once; how many bytes. 0: the client closed.
    pub fn poll_receive(&mut self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        let most = self.session.read_bytes_max().min(READ_BYTES).min(buffer.len());
        let mut read = ReadBuf::new(&mut buffer[..most]);
        ready!(Pin::new(&mut self.stream).poll_read(cx, &mut read))?;
        let received = read.filled();
        self.may_have_more = received.len() == most;
        if received.is_empty() {
            return Poll::Ready(Ok(0));
        }
        add_stat(&self.server.stats.bytes_in, received.len() as u64);
        self.session.record_received(received.len());
        if self.input.is_empty() {
            self.sample = LatencySample::begin(received, &self.server.limits.frame);
        }
        Poll::Ready(Ok(received.len()))
    }

    /// Whether nothing else is asked of this connection than to answer what it has just sent.
    pub fn may_batch(&self) -> bool {
        self.input.is_empty() && self.sample.is_none() && self.decoder.is_fresh() && self.session.takes_simple()
    }

    /// Takes part in what is run together, if that is possible with its input; only who [may](Connection::may_batch) is asked.
    pub fn add_to_batch<'a>(
        &self,
        command_batch: &mut CommandBatch<'a>,
        slot: usize,
        input: &'a [u8],
        turn: &Turn<'_>,
    ) -> bool {
        command_batch.try_add(slot, input, self.session.state.version, &self.server.limits.frame, turn)
    }

    /// Commands of its input were run together with others.
    pub fn record_batch(&mut self, command: Option<&'static str>, now: Millis) {
        self.session.record_batch(command, now);
    }

    /// Runs the commands that these bytes complete, behind replies to those that were run already.
    pub fn run(&mut self, received: &[u8], replies: &[u8]) -> TurnOutcome {
        self.output.extend_from_slice(replies);
        if self.input.is_empty() {
            let outcome = self.run_turn(received);
            let rest = &received[self.session.consumed()..];
            append(&mut self.input, rest);
            self.update_partial(&outcome.end, self.session.consumed() > 0);
            outcome
        } else {
            append(&mut self.input, received);
            let input = std::mem::take(&mut self.input);
            let outcome = self.run_turn(&input);
            self.keep_unconsumed(input, &outcome.end);
            outcome
        }
    }

    /// Keeps replies that cannot be sent yet.
    pub fn buffer_replies(&mut self, replies: &[u8]) {
        self.output.extend_from_slice(replies);
    }

    /// Sends these replies, or if there are none the connection's own, as far as the socket takes them without being waited for; whether it took all.
    pub fn try_send(&mut self, replies: &[u8]) -> io::Result<bool> {
        if !replies.is_empty() {
            debug_assert!(self.output.is_empty(), "a connection with replies of its own is answered with those");
            let sent = self.send_now(replies).or_else(would_block_as_zero)?;
            add_stat(&self.server.stats.bytes_out, sent as u64);
            self.output.extend_from_slice(&replies[sent..]);
        } else if !self.output.is_empty() {
            let sent = self.send_some()?;
            self.record_sent(sent);
            if self.output.is_empty()
                && let Some(sample) = self.sample.take()
            {
                sample.end(&self.server);
            }
        }
        Ok(self.output.is_empty())
    }

    /// Answers what has already arrived, as far as one read takes it, then closes: what a client sends on after that is not answered.
    async fn drain(&mut self) -> io::Result<()> {
        let arrived = timeout(DRAIN_PAUSE, poll_fn(|cx| self.poll_turn(cx))).await;
        if let Some(outcome) = arrived.unwrap_or(Ok(None))? {
            self.finish_turns(outcome).await?;
        }
        Ok(())
    }

    /// Waits for bytes, within the bounds, and runs the commands they complete.
    async fn receive(&mut self) -> io::Result<ReadOutcome> {
        let deadline = self.deadline();
        let received = poll_fn(|cx| {
            // First: a client that never pauses must not keep the server from stopping.
            if self.stopping.get() {
                return Poll::Ready(Ok(ReadOutcome::Stopping));
            }
            self.poll_turn(cx).map_ok(|outcome| outcome.map_or(ReadOutcome::Gone, ReadOutcome::TurnDone))
        });
        match deadline {
            None => received.await,
            Some(deadline) => timeout_at(deadline, received).await.unwrap_or(Ok(ReadOutcome::Gone)),
        }
    }

    /// When the client must have said more; `None`: it may take its time.
    fn deadline(&self) -> Option<Instant> {
        let partial_time_max = self.server.limits.partial_time_max;
        match self.partial_since {
            // Whoever does not give the password in time gives its place to another.
            _ if !self.session.is_authenticated() => Some(self.opened + partial_time_max),
            Some(since) => Some(since + partial_time_max),
            None => self.server.settings.idle_time_max().map(|time| Instant::now() + time),
        }
    }

    /// Commits and answers a turn, and the turns with what it held back. False: the connection is over.
    async fn finish_turns(&mut self, mut outcome: TurnOutcome) -> io::Result<bool> {
        loop {
            if outcome.wait != Wait::default() {
                // Whoever else is ready on this worker applies first, so that one commit serves all.
                tokio::task::yield_now().await;
                if self.server.engine.commit_until(outcome.wait).await.is_err() {
                    return Ok(false);
                }
            }
            let has_output = !self.output.is_empty();
            self.send().await?;
            if has_output && let Some(sample) = self.sample.take() {
                sample.end(&self.server);
            }
            match outcome.end {
                TurnEnd::Idle => return Ok(true),
                TurnEnd::Close => return Ok(false),
                // A worker is everybody's: whoever is ready goes before the rest of a long pipeline.
                TurnEnd::Yield => tokio::task::yield_now().await,
                TurnEnd::Load(load) => {
                    let loaded = self.server.engine.load(*load).await;
                    if loaded == LoadOutcome::Unknown {
                        // A reply would say that it was applied, or that it was not.
                        return Ok(false);
                    }
                    self.session.set_loaded(loaded);
                }
                TurnEnd::Backup(dir) => {
                    let backup_reply = backup::back_up(&self.server.engine, dir.into()).await;
                    self.session.set_backup_reply(backup_reply);
                }
            }
            let input = std::mem::take(&mut self.input);
            outcome = self.run_turn(&input);
            self.keep_unconsumed(input, &outcome.end);
        }
    }

    /// Sends the output. A client may take it as slowly as it likes, as long as it takes some of it within each bound of time.
    async fn send(&mut self) -> io::Result<()> {
        // Nearly always the socket takes it all at once, and then there is no time to be kept.
        let mut sent = self.send_some()?;
        while sent < self.output.len() {
            let rest = &self.output[sent..];
            sent += match timeout(self.server.limits.write_time_max, self.stream.write(rest)).await {
                Ok(written) => written?,
                // The system calls a socket writable only when a third of its buffer is free, which a slow reader of a large one may
                // not reach in time. Room for a little shows as well that it reads.
                Err(_) => self.send_now(rest)?,
            };
        }
        self.record_sent(sent);
        Ok(())
    }

    /// Sends so much of the output as the socket takes without being waited for; how much that was.
    fn send_some(&self) -> io::Result<usize> {
        if self.output.is_empty() { Ok(0) } else { self.send_now(&self.output).or_else(would_block_as_zero) }
    }

    /// The system is asked without the runtime, which would look first whether it knows of room: nearly always there is.
    fn send_now(&self, bytes: &[u8]) -> io::Result<usize> {
        Ok(rustix::net::send(&self.stream, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?)
    }

    /// So much of the output was sent.
    fn record_sent(&mut self, sent: usize) {
        add_stat(&self.server.stats.bytes_out, sent as u64);
        if sent < self.output.len() {
            self.output.drain(..sent);
        } else if self.output.capacity() > OUTPUT_KEPT_BYTES {
            self.output = Vec::new();
        } else {
            self.output.clear();
        }
    }

    /// Reads once and runs one turn. `None`: the client closed.
    fn poll_turn(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<TurnOutcome>>> {
        with_read_buffer(|buffer| {
            let received = ready!(self.poll_receive(cx, buffer))?;
            Poll::Ready(Ok((received > 0).then(|| self.run(&buffer[..received], &[]))))
        })
    }

    /// Runs whole commands of the input, within one turn of the engine.
    fn run_turn(&mut self, input: &[u8]) -> TurnOutcome {
        let (wait, end) = self.session.run_turn(&self.server, &mut self.decoder, input, &mut self.output);
        TurnOutcome { wait, end }
    }

    /// Keeps what the turn did not consume.
    fn keep_unconsumed(&mut self, mut input: Vec<u8>, end: &TurnEnd) {
        let consumed = self.session.consumed();
        if consumed == input.len() {
            // A quiet connection holds no buffer.
            input = Vec::new();
        } else {
            input.drain(..consumed);
            // Nor does it keep what its largest command took.
            input.shrink_to(input.len() + INPUT_STEP_BYTES);
        }
        self.input = input;
        self.update_partial(end, consumed > 0);
    }

    /// The clock of an unfinished command starts with its first byte, and no later byte sets it back.
    fn update_partial(&mut self, end: &TurnEnd, progressed: bool) {
        let unfinished = *end == TurnEnd::Idle && !self.input.is_empty();
        self.partial_since = match self.partial_since {
            Some(since) if unfinished && !progressed => Some(since),
            _ => unfinished.then(Instant::now),
        };
        self.session.record_kept(self.input.len());
    }
}

/// A socket that takes nothing at the moment has taken nothing yet.
fn would_block_as_zero(error: io::Error) -> io::Result<usize> {
    if error.kind() == io::ErrorKind::WouldBlock { Ok(0) } else { Err(error) }
}

/// Appends, growing by little: a client that announces much and sends little costs little.
fn append(input: &mut Vec<u8>, bytes: &[u8]) {
    if input.capacity() - input.len() < bytes.len() {
        input.reserve_exact(bytes.len().max(INPUT_STEP_BYTES));
    }
    input.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unfinished_command_is_kept_in_its_length_and_a_step() {
        let mut input = Vec::new();
        for received in 1..100_000 {
            append(&mut input, b"a");
            assert!(input.len() == received && input.capacity() <= received + INPUT_STEP_BYTES);
        }
        append(&mut input, &[b'a'; READ_BYTES]);
        assert!(input.capacity() <= input.len() + INPUT_STEP_BYTES);
    }
}
