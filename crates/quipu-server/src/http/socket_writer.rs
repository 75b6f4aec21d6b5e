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
//! Not here: how long a client is waited for (`deadlines`), who is told what (`watch`).

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
pub(super) struct SocketWriter {
    write_half: OwnedWriteHalf,
    /// Hyper may not be the only one who has something to send: for whoever would otherwise take the lock to find out.
    has_watcher: AtomicBool,
    state: Mutex<WriterState>,
}

#[repr(C)]
struct WriterState {
    /// What the watcher was told last.
    last_sent: Option<WatchedValue>,
    user: SocketUser,
    framing: BodyFraming,
    /// What is left of a piece of ours that was begun.
    unsent: Bytes,
    /// The newest event, if it came while nothing could be sent.
    next_event: Option<WatchEvent>,
    /// The connection's task, which goes on with what did not fit.
    waker: Option<Waker>,
    /// Why nothing more can be sent.
    error: Option<io::Error>,
}

/// Who speaks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SocketUser {
    Hyper,
    /// Hyper has been given all that it is to say, and may not have sent it yet.
    HyperFinishing,
    /// We do, and nothing waits.
    Events,
    /// We do, and something waits until the client takes more.
    EventsBlocked,
}

/// How a reply without a length is sent.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum BodyFraming {
    Chunked,
    /// Up to the end of the connection, for HTTP/1.0.
    UntilClose,
}

/// What events are compared by: the value, and whether the counter exists.
pub(super) type WatchedValue = (i64, bool);

/// What the watchers of a counter are told.
#[derive(Clone)]
pub(super) struct WatchEvent {
    pub value: WatchedValue,
    pub sse_text: SseText,
}

/// Text as it is sent, in either form.
#[derive(Clone)]
pub(super) struct SseText {
    chunk: Bytes,
    /// Where the text is in its chunk.
    text_range: Range<usize>,
}

impl SseText {
    pub fn new(text: &[u8]) -> SseText {
        assert!(!text.is_empty(), "a chunk of nothing is the last one");
        let mut chunk = format!("{:X}\r\n", text.len()).into_bytes();
        let begin = chunk.len();
        chunk.extend_from_slice(text);
        chunk.extend_from_slice(b"\r\n");
        SseText { chunk: chunk.into(), text_range: begin..begin + text.len() }
    }

    pub fn plain_bytes(&self) -> Bytes {
        self.chunk.slice(self.text_range.clone())
    }

    fn framed_range(&self, framing: BodyFraming) -> Range<usize> {
        match framing {
            BodyFraming::Chunked => 0..self.chunk.len(),
            BodyFraming::UntilClose => self.text_range.clone(),
        }
    }
}

/// For watchers.
impl SocketWriter {
    /// Somebody begins to watch on this line. Events are kept for it from now on.
    pub fn start_watching(&self, framing: BodyFraming) {
        let mut state = self.lock();
        (state.framing, state.next_event, state.last_sent) = (framing, None, None);
        self.has_watcher.store(true, Ordering::Relaxed);
    }

    /// Hyper has been given all that it is to say, this value last: the line is ours as soon as that is sent.
    pub fn switch_to_events(&self, last_sent: WatchedValue) {
        let mut state = self.lock();
        (state.user, state.last_sent) = (SocketUser::HyperFinishing, Some(last_sent));
        // Where it is refused, the system's bound holds.
        let _ = sockopt::set_socket_send_buffer_size(self.socket(), SEND_BYTES_MAX);
    }

    /// Hyper speaks again, first of this if there is something that the watcher should have been told.
    pub fn switch_to_hyper(&self) -> Option<Bytes> {
        let mut state = self.lock();
        state.user = SocketUser::Hyper;
        let last = state.next_event.take().filter(|event| state.last_sent != Some(event.value))?;
        state.last_sent = Some(last.value);
        Some(last.sse_text.plain_bytes())
    }

    /// Nobody watches any more. What was begun is still ended.
    pub fn stop_watching(&self) {
        let mut state = self.lock();
        (state.user, state.next_event, state.waker) = (SocketUser::Hyper, None, None);
        self.has_watcher.store(!state.unsent.is_empty(), Ordering::Relaxed);
    }

    /// Tells the watcher an event, at once or when it can be: the newest instead, if there is one by then.
    pub fn send_event(&self, event: &WatchEvent) {
        let mut state = self.lock();
        match state.user {
            SocketUser::Events if state.last_sent == Some(event.value) => {}
            SocketUser::Events => {
                state.last_sent = Some(event.value);
                self.write_text(&mut state, &event.sse_text);
            }
            _ => state.next_event = Some(event.clone()),
        }
    }

    /// Looks at what it takes to tell the watcher something, and says nothing of it.
    pub fn touch(&self) -> i32 {
        self.socket().as_raw_fd() ^ i32::from(self.has_watcher.load(Ordering::Relaxed))
    }

    /// Sends something that need not be said to whom something is being said anyway.
    pub fn send_if_idle(&self, sse_text: &SseText) {
        let mut state = self.lock();
        if state.user == SocketUser::Events {
            self.write_text(&mut state, sse_text);
        }
    }

    /// Goes on with what did not fit. Pending while the client takes nothing; ready when nothing is left to be sent, which is nearly always. The task is woken when there is something again.
    pub fn poll_events(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.has_watcher.load(Ordering::Relaxed) {
            return Poll::Ready(Ok(()));
        }
        let mut state = self.lock();
        if !matches!(state.user, SocketUser::Events | SocketUser::EventsBlocked) {
            return Poll::Ready(Ok(()));
        }
        if !state.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            state.waker = Some(cx.waker().clone());
        }
        if let Some(error) = state.error.take() {
            return Poll::Ready(Err(error));
        }
        loop {
            ready!(self.poll_unsent(&mut state, cx))?;
            let Some(event) = state.next_event.take() else { break };
            if state.last_sent != Some(event.value) {
                state.last_sent = Some(event.value);
                state.unsent = event.sse_text.chunk.slice(event.sse_text.framed_range(state.framing));
            }
        }
        state.user = SocketUser::Events;
        Poll::Ready(Ok(()))
    }

    /// Sends what fits now of a piece and keeps the rest of it.
    fn write_text(&self, state: &mut WriterState, sse_text: &SseText) {
        let mut range = sse_text.framed_range(state.framing);
        // Not through the runtime, which would look up what it knows of the socket first. That it is full, the runtime finds out when the task goes on with the rest.
        match net::send(self.socket(), &sse_text.chunk[range.clone()], SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(taken) if taken == range.len() => return,
            Ok(taken) => range.start += taken,
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(error) => state.error = Some(error.into()),
        }
        (state.user, state.unsent) = (SocketUser::EventsBlocked, sse_text.chunk.slice(range));
        if let Some(waker) = &state.waker {
            waker.wake_by_ref();
        }
    }
}

/// For hyper.
impl SocketWriter {
    pub fn new(write_half: OwnedWriteHalf) -> Arc<SocketWriter> {
        let state = WriterState {
            last_sent: None,
            user: SocketUser::Hyper,
            framing: BodyFraming::Chunked,
            unsent: Bytes::new(),
            next_event: None,
            waker: None,
            error: None,
        };
        Arc::new(SocketWriter { write_half, has_watcher: AtomicBool::new(false), state: Mutex::new(state) })
    }

    pub fn poll_write(&self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_begun_event(cx))?;
        self.poll_try(cx, || self.write_half.try_write(bytes))
    }

    pub fn poll_write_vectored(&self, cx: &mut Context<'_>, bytes: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        ready!(self.poll_begun_event(cx))?;
        self.poll_try(cx, || self.write_half.try_write_vectored(bytes))
    }

    /// Hyper asks for this only when it has written all it had.
    pub fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // A socket keeps nothing back.
        if !self.has_watcher.load(Ordering::Relaxed) {
            return Poll::Ready(Ok(()));
        }
        let mut state = self.lock();
        if matches!(state.user, SocketUser::Events | SocketUser::EventsBlocked) {
            // What is left is `poll_events`'s.
            return Poll::Ready(Ok(()));
        }
        ready!(self.poll_unsent(&mut state, cx))?;
        if state.user == SocketUser::HyperFinishing {
            state.user = if state.next_event.is_some() { SocketUser::EventsBlocked } else { SocketUser::Events };
        }
        Poll::Ready(Ok(()))
    }

    pub fn poll_shutdown(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_begun_event(cx))?;
        match net::shutdown(self.socket(), Shutdown::Write) {
            // The client was quicker.
            Ok(()) | Err(Errno::NOTCONN) => Poll::Ready(Ok(())),
            Err(error) => Poll::Ready(Err(error.into())),
        }
    }

    /// Ends what was begun past hyper, if there is something.
    fn poll_begun_event(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.has_watcher.load(Ordering::Relaxed) {
            true => self.poll_unsent(&mut self.lock(), cx),
            false => Poll::Ready(Ok(())),
        }
    }

    fn poll_unsent(&self, state: &mut WriterState, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !state.unsent.is_empty() {
            let taken = ready!(self.poll_try(cx, || self.write_half.try_write(&state.unsent)))?;
            if taken == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            state.unsent = state.unsent.slice(taken..);
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
        self.write_half.as_ref()
    }

    fn lock(&self) -> MutexGuard<'_, WriterState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
