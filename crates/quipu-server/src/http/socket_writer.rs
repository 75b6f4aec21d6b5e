//! Writes to one connection's socket: the replies of hyper, and a watcher's events past hyper.
//!
//! In: bytes of replies, from hyper; events and comments, each formatted once for all watchers.
//! Out: bytes on the socket.
//!
//! ```text
//! hyper: head, first event ─► body pending ─► flush ─► events: one write each ─► shutdown ─► hyper: last chunk
//!                                                       └─► unsent bytes wait for the connection's task
//! ```
//!
//! A chunk from hyper costs each watcher a task wake-up, a body poll, and buffers to fill and send,
//! with the same bytes for all. That is twice the cost of the write itself.
//!
//! Invariants:
//! - The socket has one user at a time. Events use it only after hyper's body became pending and
//!   hyper then flushed. hyper flushes with an empty buffer, and has nothing to write until the
//!   body yields more.
//! - A started event or comment is completed before anything else is sent, by either user.
//! - A slow client holds at most the rest of one event and the newest event.
//! - A connection without a watcher costs hyper nothing.
//!
//! Not here: deadlines of a client (`deadlines`), choice of events (`watch`).

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

/// Send buffer of a watcher's socket; the system doubles the value for its own overhead. By default
/// the buffer grows to megabytes. A watcher that does not read would keep these, and would read all
/// old events before the newest. The value is several times the longest event, or a hundred usual
/// ones.
const SEND_BYTES_MAX: usize = 32 << 10;

/// One connection's socket. Field order and alignment are chosen for rounds over a thousand
/// watchers: one cache line holds all that a check for a pending send reads.
#[repr(C, align(64))]
pub(super) struct SocketWriter {
    write_half: OwnedWriteHalf,
    /// True if hyper may not be the only user; checked before taking the lock.
    has_watcher: AtomicBool,
    state: Mutex<WriterState>,
}

#[repr(C)]
struct WriterState {
    /// Value last sent to the watcher.
    last_sent: Option<WatchedValue>,
    user: SocketUser,
    framing: BodyFraming,
    /// Rest of a started event or comment.
    unsent: Bytes,
    /// Newest event that arrived while the socket was blocked.
    next_event: Option<WatchEvent>,
    /// Waker of the connection's task, which continues blocked writes.
    waker: Option<Waker>,
    /// Error that prevents further writes.
    error: Option<io::Error>,
}

/// Current user of the socket.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SocketUser {
    Hyper,
    /// hyper has received its last bytes, and may not have sent them yet.
    HyperFinishing,
    /// Events; none is waiting.
    Events,
    /// Events; one waits until the client reads.
    EventsBlocked,
}

/// Framing of a reply without a length.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum BodyFraming {
    Chunked,
    /// Up to the end of the connection, for HTTP/1.0.
    UntilClose,
}

/// Content for comparing events: the value, and true if the counter exists.
pub(super) type WatchedValue = (i64, bool);

/// An event for the watchers of a counter.
#[derive(Clone)]
pub(super) struct WatchEvent {
    pub value: WatchedValue,
    pub sse_text: SseText,
}

/// Text in both framings.
#[derive(Clone)]
pub(super) struct SseText {
    chunk: Bytes,
    /// Position of the text within its chunk.
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

/// Methods for watchers.
impl SocketWriter {
    /// Begins to keep events for a watcher.
    pub fn start_watching(&self, framing: BodyFraming) {
        let mut state = self.lock();
        (state.framing, state.next_event, state.last_sent) = (framing, None, None);
        self.has_watcher.store(true, Ordering::Relaxed);
    }

    /// Hands the socket to events as soon as hyper has sent its last bytes, which end with this
    /// value.
    pub fn switch_to_events(&self, last_sent: WatchedValue) {
        let mut state = self.lock();
        (state.user, state.last_sent) = (SocketUser::HyperFinishing, Some(last_sent));
        // If the call fails, the system's bound applies.
        let _ = sockopt::set_socket_send_buffer_size(self.socket(), SEND_BYTES_MAX);
    }

    /// Hands the socket back to hyper. Returns the newest event if the watcher has not received its
    /// value.
    pub fn switch_to_hyper(&self) -> Option<Bytes> {
        let mut state = self.lock();
        state.user = SocketUser::Hyper;
        let last = state.next_event.take().filter(|event| state.last_sent != Some(event.value))?;
        state.last_sent = Some(last.value);
        Some(last.sse_text.plain_bytes())
    }

    /// Ends the watching. A started event is still completed.
    pub fn stop_watching(&self) {
        let mut state = self.lock();
        (state.user, state.next_event, state.waker) = (SocketUser::Hyper, None, None);
        self.has_watcher.store(!state.unsent.is_empty(), Ordering::Relaxed);
    }

    /// Sends an event now, or when the socket allows it; a newer event replaces a waiting one.
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

    /// Reads the memory that a send needs, to bring it into the cache.
    pub fn touch(&self) -> i32 {
        self.socket().as_raw_fd() ^ i32::from(self.has_watcher.load(Ordering::Relaxed))
    }

    /// Sends an optional text, unless another write is in progress.
    pub fn send_if_idle(&self, sse_text: &SseText) {
        let mut state = self.lock();
        if state.user == SocketUser::Events {
            self.write_text(&mut state, sse_text);
        }
    }

    /// Continues blocked writes. Pending while the client reads nothing; ready if nothing is left
    /// to send, which is nearly always so. The task is woken for the next blocked write.
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

    /// Sends a text as far as the socket takes it, and keeps the rest.
    fn write_text(&self, state: &mut WriterState, sse_text: &SseText) {
        let mut range = sse_text.framed_range(state.framing);
        // Bypasses the runtime, which would first check its own readiness state of the socket. The
        // runtime learns that the socket is full when the task continues with the rest.
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

/// Methods for hyper.
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

    /// hyper calls this only after it has written all its bytes.
    pub fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // A socket has no write buffer to flush.
        if !self.has_watcher.load(Ordering::Relaxed) {
            return Poll::Ready(Ok(()));
        }
        let mut state = self.lock();
        if matches!(state.user, SocketUser::Events | SocketUser::EventsBlocked) {
            // `poll_events` sends the rest.
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
            // The client has already closed.
            Ok(()) | Err(Errno::NOTCONN) => Poll::Ready(Ok(())),
            Err(error) => Poll::Ready(Err(error.into())),
        }
    }

    /// Completes a started event, if there is one.
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

    /// Writes until the socket is full; the task is woken when it has room. Takes a shared
    /// reference, unlike the runtime's own write.
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
