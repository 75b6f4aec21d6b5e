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
//! - a line that is not watched costs hyper one lock that nobody else wants.
//!
//! Not here: how long a client is waited for (`pace`), who is told what (`watch`).

use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use axum::body::Bytes;
use rustix::net::sockopt;
use tokio::io::AsyncWrite;
use tokio::net::tcp::OwnedWriteHalf;

/// What the system may hold for one watcher, of which it counts twice as much with what it adds itself. By default that grows to megabytes: a watcher that does not read would keep them, and
/// would read all that is old before the newest. This is several times the longest event, or a hundred usual ones.
const SEND_BYTES_MAX: usize = 32 << 10;

/// One connection's line.
pub(super) struct Line {
    wire: Mutex<Wire>,
    /// Somebody watches, so it may be ours: for whoever would otherwise take the lock to find out.
    watched: AtomicBool,
}

struct Wire {
    half: OwnedWriteHalf,
    speaker: Speaker,
    /// What is left of a piece of ours that was begun.
    rest: Bytes,
    /// The newest event, if it came while nothing could be sent.
    next: Option<Event>,
    /// What the watcher was told last.
    told: Option<Value>,
    form: Form,
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
    Ours,
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
        let _ = sockopt::set_socket_send_buffer_size(wire.half.as_ref(), SEND_BYTES_MAX);
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
        self.watched.store(false, Ordering::Relaxed);
    }

    /// Tells the watcher an event, at once or when it can be: the newest instead, if there is one by then.
    pub fn tell(&self, event: &Event) {
        let mut wire = self.lock();
        if !wire.is_free() {
            wire.next = Some(event.clone());
            return;
        }
        wire.next = None;
        if wire.told != Some(event.value) {
            wire.told = Some(event.value);
            wire.send(&event.piece);
        }
    }

    /// Sends something that need not be said to whom something is being said anyway.
    pub fn mention(&self, piece: &Piece) {
        let mut wire = self.lock();
        if wire.is_free() {
            wire.send(piece);
        }
    }

    /// Goes on with what did not fit. Pending while the client takes nothing; ready when nothing is left to be sent, which is nearly always. The task is woken when there is something again.
    pub fn poll_told(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.watched.load(Ordering::Relaxed) {
            return Poll::Ready(Ok(()));
        }
        let mut wire = self.lock();
        if wire.speaker != Speaker::Ours {
            return Poll::Ready(Ok(()));
        }
        if !wire.task.as_ref().is_some_and(|task| task.will_wake(cx.waker())) {
            wire.task = Some(cx.waker().clone());
        }
        if let Some(error) = wire.failed.take() {
            return Poll::Ready(Err(error));
        }
        loop {
            ready!(wire.poll_rest(cx))?;
            let Some(event) = wire.next.take() else { return Poll::Ready(Ok(())) };
            if wire.told != Some(event.value) {
                wire.told = Some(event.value);
                wire.rest = event.piece.chunk.slice(event.piece.range(wire.form));
            }
        }
    }
}

/// For hyper.
impl Line {
    pub fn new(half: OwnedWriteHalf) -> Arc<Line> {
        let wire = Wire {
            half,
            speaker: Speaker::Hyper,
            rest: Bytes::new(),
            next: None,
            told: None,
            form: Form::Chunks,
            task: None,
            failed: None,
        };
        Arc::new(Line { wire: Mutex::new(wire), watched: AtomicBool::new(false) })
    }

    pub fn poll_write(&self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut wire = self.lock();
        ready!(wire.poll_rest(cx))?;
        Pin::new(&mut wire.half).poll_write(cx, bytes)
    }

    pub fn poll_write_vectored(&self, cx: &mut Context<'_>, bytes: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let mut wire = self.lock();
        ready!(wire.poll_rest(cx))?;
        Pin::new(&mut wire.half).poll_write_vectored(cx, bytes)
    }

    /// Hyper asks for this only when it has written all it had.
    pub fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.watched.load(Ordering::Relaxed) {
            // A socket keeps nothing back.
            return Poll::Ready(Ok(()));
        }
        let mut wire = self.lock();
        match wire.speaker {
            Speaker::Hyper => wire.poll_rest(cx),
            Speaker::HyperLast => {
                ready!(wire.poll_rest(cx))?;
                wire.speaker = Speaker::Ours;
                Poll::Ready(Ok(()))
            }
            // What is left is `poll_told`'s.
            Speaker::Ours => Poll::Ready(Ok(())),
        }
    }

    pub fn poll_shutdown(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut wire = self.lock();
        ready!(wire.poll_rest(cx))?;
        Pin::new(&mut wire.half).poll_shutdown(cx)
    }

    fn lock(&self) -> MutexGuard<'_, Wire> {
        self.wire.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wire {
    /// Whether a piece can be sent now.
    fn is_free(&self) -> bool {
        self.speaker == Speaker::Ours && self.rest.is_empty()
    }

    /// Sends what fits now of a piece and keeps the rest of it.
    fn send(&mut self, piece: &Piece) {
        let mut range = piece.range(self.form);
        match self.half.try_write(&piece.chunk[range.clone()]) {
            Ok(taken) if taken == range.len() => return,
            Ok(taken) => range.start += taken,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(error) => self.failed = Some(error),
        }
        self.rest = piece.chunk.slice(range);
        if let Some(task) = &self.task {
            task.wake_by_ref();
        }
    }

    fn poll_rest(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.rest.is_empty() {
            let taken = ready!(Pin::new(&mut self.half).poll_write(cx, &self.rest))?;
            if taken == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.rest = self.rest.slice(taken..);
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests;
