//! The line to a client: the sending half of its socket, on which hyper speaks, and on which a watcher is told past hyper.
//!
//! In: bytes of replies, from hyper; events and comments, each made once for all watchers. Out: bytes on the socket.
//!
//! ```text
//! hyper: head, first event ─► the body rests ─► flushed ─► ours: an event is one write ─► the server stops ─► hyper: last chunk
//!                                                           └─► what does not fit waits, for the connection's task
//! ```
//!
//! A chunk made by hyper costs each watcher a task that is woken, a body that is asked, and buffers that are filled and sent, with the same bytes for all of them: twice what the write itself takes.
//!
//! Invariants:
//! - there is one who speaks. A watcher's line is ours only after hyper's body had no more to say and hyper then flushed, which it does with nothing left in its buffer; and until the body is
//!   asked for more, hyper has nothing to write;
//! - a piece that was begun is ended before anything else is sent, by whomever;
//! - what waits for a slow client is the rest of one piece and the newest event;
//! - a line that nobody watches costs hyper nothing.
//!
//! Not here: how long a client is waited for (`pace`), who is told what (`watch`).

use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use axum::body::Bytes;
use rustix::io::Errno;
use rustix::net::{self, SendFlags, Shutdown, sockopt};
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedWriteHalf;

/// What the system may hold for one watcher, of which it counts twice as much with what it adds itself. By default that grows to megabytes: a watcher that does not read would keep them, and
/// would read all that is old before the newest. This is several times the longest event, or a hundred usual ones.
const SEND_BYTES_MAX: usize = 32 << 10;

/// One connection's line. In this order, and beginning where a line of the cache does, because a round goes through a thousand of them: one such line is then all that it takes to see that a
/// watcher can be told.
#[repr(C, align(64))]
pub(super) struct Line {
    half: OwnedWriteHalf,
    /// Hyper may not be the only one who has something to send: for whoever would otherwise take the lock to find out.
    watched: AtomicBool,
    wire: Mutex<Wire>,
}

#[repr(C)]
struct Wire {
    /// What the watcher was told last.
    told: Option<Value>,
    speaker: Speaker,
    form: Form,
    /// What is left of a piece of ours that was begun.
    rest: Bytes,
    /// The newest event, if it came while nothing could be sent.
    next: Option<Event>,
    /// The connection's task, which goes on with what did not fit.
    task: Option<Waker>,
    /// Why nothing more can be sent.
    failed: Option<io::Error>,
}

/// Who speaks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Speaker {
    Hyper,
    /// Hyper has been given all that it is to say, and may not have sent it yet.
    HyperLast,
    /// We do, and nothing waits.
    Ours,
    /// We do, and something waits until the client takes more.
    OursLate,
}

/// How a reply without a length is sent.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Chunks,
    /// Up to the end of the connection, for HTTP/1.0.
    Plain,
}

/// What events are compared by: the value, and whether the counter exists.
pub(super) type Value = (i64, bool);

/// What the watchers of a counter are told.
#[derive(Clone)]
pub(super) struct Event {
    pub value: Value,
    pub piece: Piece,
}

/// Text as it is sent, in either form.
#[derive(Clone)]
pub(super) struct Piece {
    chunk: Bytes,
    /// Where the text is in its chunk.
    text: Range<usize>,
}

impl Piece {
    pub fn new(text: &[u8]) -> Piece {
        assert!(!text.is_empty(), "a chunk of nothing is the last one");
        let mut chunk = format!("{:X}\r\n", text.len()).into_bytes();
        let begin = chunk.len();
        chunk.extend_from_slice(text);
        chunk.extend_from_slice(b"\r\n");
        Piece { chunk: chunk.into(), text: begin..begin + text.len() }
    }

    pub fn text(&self) -> Bytes {
        self.chunk.slice(self.text.clone())
    }

    fn range(&self, form: Form) -> Range<usize> {
        match form {
            Form::Chunks => 0..self.chunk.len(),
            Form::Plain => self.text.clone(),
        }
    }
}

/// For watchers.
impl Line {
    /// Somebody begins to watch on this line. Events are kept for it from now on.
    pub fn begin(&self, form: Form) {
        let mut wire = self.lock();
        (wire.form, wire.next, wire.told) = (form, None, None);
        self.watched.store(true, Ordering::Relaxed);
    }

    /// Hyper has been given all that it is to say, this value last: the line is ours as soon as that is sent.
    pub fn hand_over(&self, told: Value) {
        let mut wire = self.lock();
        (wire.speaker, wire.told) = (Speaker::HyperLast, Some(told));
        // Where it is refused, the system's bound holds.
        let _ = sockopt::set_socket_send_buffer_size(self.socket(), SEND_BYTES_MAX);
    }

    /// Hyper speaks again, first of this if there is something that the watcher should have been told.
    pub fn take_back(&self) -> Option<Bytes> {
        let mut wire = self.lock();
        wire.speaker = Speaker::Hyper;
        let last = wire.next.take().filter(|event| wire.told != Some(event.value))?;
        wire.told = Some(last.value);
        Some(last.piece.text())
    }

    /// Nobody watches any more. What was begun is still ended.
    pub fn end(&self) {
        let mut wire = self.lock();
        (wire.speaker, wire.next, wire.task) = (Speaker::Hyper, None, None);
        self.watched.store(!wire.rest.is_empty(), Ordering::Relaxed);
    }

    /// Tells the watcher an event, at once or when it can be: the newest instead, if there is one by then.
    pub fn tell(&self, event: &Event) {
        let mut wire = self.lock();
        match wire.speaker {
            Speaker::Ours if wire.told == Some(event.value) => {}
            Speaker::Ours => {
                wire.told = Some(event.value);
                self.send(&mut wire, &event.piece);
            }
            _ => wire.next = Some(event.clone()),
        }
    }

    /// Looks at what it takes to tell the watcher something, and says nothing of it.
    pub fn glance(&self) -> i32 {
        self.socket().as_raw_fd() ^ i32::from(self.watched.load(Ordering::Relaxed))
    }

    /// Sends something that need not be said to whom something is being said anyway.
    pub fn mention(&self, piece: &Piece) {
        let mut wire = self.lock();
        if wire.speaker == Speaker::Ours {
            self.send(&mut wire, piece);
        }
    }

    /// Goes on with what did not fit. Pending while the client takes nothing; ready when nothing is left to be sent, which is nearly always. The task is woken when there is something again.
    pub fn poll_told(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.watched.load(Ordering::Relaxed) {
            return Poll::Ready(Ok(()));
        }
        let mut wire = self.lock();
        if !matches!(wire.speaker, Speaker::Ours | Speaker::OursLate) {
            return Poll::Ready(Ok(()));
        }
        if !wire.task.as_ref().is_some_and(|task| task.will_wake(cx.waker())) {
            wire.task = Some(cx.waker().clone());
        }
        if let Some(error) = wire.failed.take() {
            return Poll::Ready(Err(error));
        }
        loop {
            ready!(self.poll_rest(&mut wire, cx))?;
            let Some(event) = wire.next.take() else { break };
            if wire.told != Some(event.value) {
                wire.told = Some(event.value);
                wire.rest = event.piece.chunk.slice(event.piece.range(wire.form));
            }
        }
        wire.speaker = Speaker::Ours;
        Poll::Ready(Ok(()))
    }

    /// Sends what fits now of a piece and keeps the rest of it.
    fn send(&self, wire: &mut Wire, piece: &Piece) {
        let mut range = piece.range(wire.form);
        // Not through the runtime, which would look up what it knows of the socket first. That it is full, the runtime finds out when the task goes on with the rest.
        match net::send(self.socket(), &piece.chunk[range.clone()], SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(taken) if taken == range.len() => return,
            Ok(taken) => range.start += taken,
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(error) => wire.failed = Some(error.into()),
        }
        (wire.speaker, wire.rest) = (Speaker::OursLate, piece.chunk.slice(range));
        if let Some(task) = &wire.task {
            task.wake_by_ref();
        }
    }
}

/// For hyper.
impl Line {
    pub fn new(half: OwnedWriteHalf) -> Arc<Line> {
        let wire = Wire {
            told: None,
            speaker: Speaker::Hyper,
            form: Form::Chunks,
            rest: Bytes::new(),
            next: None,
            task: None,
            failed: None,
        };
        Arc::new(Line { half, watched: AtomicBool::new(false), wire: Mutex::new(wire) })
    }

    pub fn poll_write(&self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_begun(cx))?;
        self.poll_try(cx, || self.half.try_write(bytes))
    }

    pub fn poll_write_vectored(&self, cx: &mut Context<'_>, bytes: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        ready!(self.poll_begun(cx))?;
        self.poll_try(cx, || self.half.try_write_vectored(bytes))
    }

    /// Hyper asks for this only when it has written all it had.
    pub fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // A socket keeps nothing back.
        if !self.watched.load(Ordering::Relaxed) {
            return Poll::Ready(Ok(()));
        }
        let mut wire = self.lock();
        if matches!(wire.speaker, Speaker::Ours | Speaker::OursLate) {
            // What is left is `poll_told`'s.
            return Poll::Ready(Ok(()));
        }
        ready!(self.poll_rest(&mut wire, cx))?;
        if wire.speaker == Speaker::HyperLast {
            wire.speaker = if wire.next.is_some() { Speaker::OursLate } else { Speaker::Ours };
        }
        Poll::Ready(Ok(()))
    }

    pub fn poll_shutdown(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_begun(cx))?;
        match net::shutdown(self.socket(), Shutdown::Write) {
            // The client was quicker.
            Ok(()) | Err(Errno::NOTCONN) => Poll::Ready(Ok(())),
            Err(error) => Poll::Ready(Err(error.into())),
        }
    }

    /// Ends what was begun past hyper, if there is something.
    fn poll_begun(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.watched.load(Ordering::Relaxed) {
            true => self.poll_rest(&mut self.lock(), cx),
            false => Poll::Ready(Ok(())),
        }
    }

    fn poll_rest(&self, wire: &mut Wire, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !wire.rest.is_empty() {
            let taken = ready!(self.poll_try(cx, || self.half.try_write(&wire.rest)))?;
            if taken == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            wire.rest = wire.rest.slice(taken..);
        }
        Poll::Ready(Ok(()))
    }

    /// Tries until the socket is full; the task is woken when it no longer is. By a shared reference, which the runtime's own writing does not take.
    fn poll_try(&self, cx: &mut Context<'_>, write: impl Fn() -> io::Result<usize>) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.socket().poll_write_ready(cx))?;
            match write() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => return Poll::Ready(written),
            }
        }
    }

    fn socket(&self) -> &TcpStream {
        self.half.as_ref()
    }

    fn lock(&self) -> MutexGuard<'_, Wire> {
        self.wire.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
