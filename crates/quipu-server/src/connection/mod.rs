//! Serves one connection, from its first byte to its last.
//!
//! In: a socket. Out: replies on it.
//!
//! A connection is **idle** while it waits for a request. The worker's event loop then reads for
//! it, runs the commands and sends the replies (`worker/event_loop.rs`). Slow work detaches the
//! connection: a slow reader, half a command, an evicted counter, a deadline. [`Connection::serve`]
//! then serves it separately until it is idle again.
//!
//! Invariants:
//! - A command that needs evicted counters waits alone. The replies to earlier commands are sent
//!   first; later commands run after it.
//! - Replies leave only after `commit_until` returned Ok. When it fails, the connection closes
//!   without them.
//! - Between turns a quiet connection holds no buffer. All connections of a worker read into one
//!   shared buffer. Only an unfinished command is kept, in at most its own length and 4 KiB.
//! - Every wait for the client has a bound.

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

/// Most bytes of one read: room for a pipeline of 1,000 increments.
const READ_BYTES: usize = 64 << 10;

/// Growth step of an unfinished command's buffer, so that it stays near the received length.
const INPUT_STEP_BYTES: usize = 4 << 10;

/// A larger output buffer is released after the write.
const OUTPUT_KEPT_BYTES: usize = 16 << 10;

/// Time without input after which a stopping server closes a connection. Long enough for the
/// runtime to poll every socket once.
const DRAIN_PAUSE: Duration = Duration::from_millis(10);

thread_local! {
    /// Read buffer of all connections of a worker: used within one step, never across an await.
    /// Room for a full batch, and one more read.
    static READ: RefCell<Box<[u8]>> = RefCell::new(vec![0; SIMPLE_COMMANDS_MAX * command_batch::INPUT_BYTES_MAX + READ_BYTES].into_boxed_slice());
}

/// Lends the worker's read buffer.
pub(crate) fn with_read_buffer<T>(work: impl FnOnce(&mut [u8]) -> T) -> T {
    READ.with_borrow_mut(|buffer| work(buffer))
}

/// A client and the state of its connection.
pub(crate) struct Connection {
    stream: TcpStream,
    session: Session,
    /// Outside the session: its frames borrow the decoder while the session changes.
    decoder: Decoder,
    server: Arc<ServerState>,
    /// True when the server stops; setting it wakes every connection.
    stopping: Rc<Cell<bool>>,
    /// An unfinished command, or input left for the next turn.
    input: Vec<u8>,
    output: Vec<u8>,
    /// Arrival of the unfinished command's first byte in `input`.
    partial_since: Option<Instant>,
    /// The timed read that is being served, if any.
    sample: Option<Box<LatencySample>>,
    /// True if the last read filled its buffer, so there may be more.
    may_have_more: bool,
    opened: Instant,
}

/// Outcome of waiting for bytes.
enum ReadOutcome {
    TurnDone(TurnOutcome),
    /// The client has gone, or is late.
    Gone,
    /// The server stops.
    Stopping,
}

/// Remaining steps after a turn.
pub(crate) struct TurnOutcome {
    pub wait: Wait,
    pub end: TurnEnd,
}

impl TurnOutcome {
    /// Adds a wait.
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

    /// Returns true if the connection only waits for bytes, without a deadline.
    pub fn is_idle(&self) -> bool {
        !self.stopping.get() && self.deadline().is_none()
    }

    /// Finishes a turn and serves the connection until it is idle. `None`: it is closed, because
    /// the client left or misbehaved, or because the server stops.
    pub async fn serve(mut self: Box<Self>, outcome: Option<TurnOutcome>) -> Option<Box<Connection>> {
        // An error here means that the client has gone; no report is possible.
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
                        // A client that sends faster than the worker reads would otherwise occupy
                        // the worker.
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

    /// Registers for a wake-up on input; ready if there may be input already.
    pub fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.stream.poll_read_ready(cx).map(|_| ())
    }

    /// Reads once; returns the number of bytes. 0: the client closed.
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

    /// Returns true if the connection may run its next input in a batch.
    pub fn may_batch(&self) -> bool {
        self.input.is_empty() && self.sample.is_none() && self.decoder.is_fresh() && self.session.takes_simple()
    }

    /// Adds its input to the batch, if it qualifies; only after
    /// [`may_batch`](Connection::may_batch) returned true.
    pub fn add_to_batch<'a>(
        &self,
        command_batch: &mut CommandBatch<'a>,
        slot: usize,
        input: &'a [u8],
        turn: &Turn<'_>,
    ) -> bool {
        command_batch.try_add(slot, input, self.session.state.version, &self.server.limits.frame, turn)
    }

    /// Records that commands of its input ran in a batch.
    pub fn record_batch(&mut self, command: Option<&'static str>, now: Millis) {
        self.session.record_batch(command, now);
    }

    /// Runs the commands that these bytes complete; `replies` are those of commands that already
    /// ran.
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

    /// Sends these replies, or the connection's own if there are none, as far as the socket takes
    /// them without waiting. Returns true if it took all.
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

    /// Serves the input that has already arrived, up to one read, then closes: later input gets no
    /// reply.
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

    /// Time by which the client must send more; `None`: no deadline.
    fn deadline(&self) -> Option<Instant> {
        let partial_time_max = self.server.limits.partial_time_max;
        match self.partial_since {
            // A client that does not authenticate in time loses its connection.
            _ if !self.session.is_authenticated() => Some(self.opened + partial_time_max),
            Some(since) => Some(since + partial_time_max),
            None => self.server.settings.idle_time_max().map(|time| Instant::now() + time),
        }
    }

    /// Commits and sends the replies of a turn, and runs further turns on the input left over.
    /// False: close the connection.
    async fn finish_turns(&mut self, mut outcome: TurnOutcome) -> io::Result<bool> {
        loop {
            if outcome.wait != Wait::default() {
                // Other ready connections of this worker apply first, so that one commit serves
                // all.
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
                // All connections share the worker: ready ones run before the rest of a long
                // pipeline.
                TurnEnd::Yield => tokio::task::yield_now().await,
                TurnEnd::Load(load) => {
                    let loaded = self.server.engine.load(*load).await;
                    if loaded == LoadOutcome::Unknown {
                        // Any reply would claim that it was applied, or that it was not.
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

    /// Sends the output. A client may read slowly, as long as it reads some of it within each write
    /// time.
    async fn send(&mut self) -> io::Result<()> {
        // Nearly always the socket takes it all at once, and no timer is needed.
        let mut sent = self.send_some()?;
        while sent < self.output.len() {
            let rest = &self.output[sent..];
            sent += match timeout(self.server.limits.write_time_max, self.stream.write(rest)).await {
                Ok(written) => written?,
                // The system reports a socket writable only when a third of its buffer is free. A
                // slow reader of a large buffer may not get there in time. Room for even a little
                // shows that it reads.
                Err(_) => self.send_now(rest)?,
            };
        }
        self.record_sent(sent);
        Ok(())
    }

    /// Sends as much of the output as the socket takes without waiting; returns the number of
    /// bytes.
    fn send_some(&self) -> io::Result<usize> {
        if self.output.is_empty() { Ok(0) } else { self.send_now(&self.output).or_else(would_block_as_zero) }
    }

    /// Calls the system directly; the runtime would first check its readiness state, and nearly
    /// always there is room.
    fn send_now(&self, bytes: &[u8]) -> io::Result<usize> {
        Ok(rustix::net::send(&self.stream, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?)
    }

    /// Removes the sent bytes from the output.
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

    /// Keeps the input that the turn did not consume.
    fn keep_unconsumed(&mut self, mut input: Vec<u8>, end: &TurnEnd) {
        let consumed = self.session.consumed();
        if consumed == input.len() {
            // A quiet connection holds no buffer.
            input = Vec::new();
        } else {
            input.drain(..consumed);
            // Releases the memory of its largest command as well.
            input.shrink_to(input.len() + INPUT_STEP_BYTES);
        }
        self.input = input;
        self.update_partial(end, consumed > 0);
    }

    /// The timer of an unfinished command starts with its first byte; later bytes do not reset it.
    fn update_partial(&mut self, end: &TurnEnd, progressed: bool) {
        let unfinished = *end == TurnEnd::Idle && !self.input.is_empty();
        self.partial_since = match self.partial_since {
            Some(since) if unfinished && !progressed => Some(since),
            _ => unfinished.then(Instant::now),
        };
        self.session.record_kept(self.input.len());
    }
}

/// A socket that would block has taken 0 bytes.
fn would_block_as_zero(error: io::Error) -> io::Result<usize> {
    if error.kind() == io::ErrorKind::WouldBlock { Ok(0) } else { Err(error) }
}

/// Appends with small growth steps: a client that announces much and sends little costs little.
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
