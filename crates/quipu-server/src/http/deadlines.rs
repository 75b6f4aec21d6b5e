//! Enforces the deadlines of a connection: for a request, for its headers, and for reading a reply.
//!
//! In: reads of the socket, and the begin and end of each response. Out: the decision that the
//! client is late.
//!
//! Invariants:
//! - The first request arrives, with all headers, within the header time. A later one may wait
//!   longer, but its headers have the same time from its first byte.
//! - During a response the client must only read part of it within each write time.
//!
//! hyper's own header deadline runs from the end of the last reply. It cannot distinguish a pool's
//! idle connection from a client that sends one byte at a time.
//!
//! Not here: the time for a body (`request`).

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::tcp::OwnedReadHalf;
use tokio::time::{Instant, Sleep, sleep_until};

use super::socket_writer::SocketWriter;
use crate::Limits;

/// Traffic counts of a connection. One task updates them; they are atomic only for the type system.
#[derive(Clone, Default)]
pub(super) struct Traffic(Arc<TrafficCounts>);

#[derive(Default)]
struct TrafficCounts {
    /// Reads that returned bytes.
    reads: AtomicU64,
    /// Responses begun, and ended.
    begun: AtomicU64,
    ended: AtomicU64,
}

/// Held while a response is in flight, to the last byte of the reply.
pub(super) struct ResponseInFlight(Traffic);

impl Traffic {
    pub fn begin_response(&self) -> ResponseInFlight {
        self.0.begun.fetch_add(1, Ordering::Relaxed);
        ResponseInFlight(self.clone())
    }
}

impl Drop for ResponseInFlight {
    fn drop(&mut self) {
        self.0.0.ended.fetch_add(1, Ordering::Relaxed);
    }
}

/// Deadlines on the client's next bytes.
pub(super) struct Deadlines {
    traffic: Traffic,
    phase: Phase,
    /// Counts at the last check.
    reads: u64,
    begun: u64,
    header_time_max: Duration,
    idle_time_max: Duration,
    timer: LazyTimer,
}

/// State of the wait for the client.
#[derive(Clone, Copy)]
enum Phase {
    /// Its first request.
    First(Instant),
    /// Its next request.
    Idle(Instant),
    /// The rest of the headers.
    Headers(Instant),
    /// No wait: a response is in flight.
    Responding,
}

impl Deadlines {
    pub fn new(traffic: Traffic, limits: &Limits) -> Deadlines {
        Deadlines {
            traffic,
            phase: Phase::First(Instant::now()),
            reads: 0,
            begun: 0,
            header_time_max: limits.http_header_time_max,
            idle_time_max: limits.http_idle_time_max,
            timer: LazyTimer::default(),
        }
    }

    /// Returns true if the client is late; else the task is woken when it may be. The caller checks
    /// this whenever the connection has no other work.
    pub fn is_late(&mut self, cx: &mut Context<'_>) -> bool {
        let TrafficCounts { reads, begun, ended } = &*self.traffic.0;
        let (reads, begun) = (reads.load(Ordering::Relaxed), begun.load(Ordering::Relaxed));
        let is_responding = begun != ended.load(Ordering::Relaxed);
        self.phase = match self.phase {
            _ if is_responding => Phase::Responding,
            // A response may have begun and ended since the last check.
            _ if begun != self.begun => Phase::Idle(Instant::now()),
            Phase::Responding => Phase::Idle(Instant::now()),
            Phase::Idle(_) if reads != self.reads => Phase::Headers(Instant::now()),
            phase => phase,
        };
        (self.reads, self.begun) = (reads, begun);
        let deadline = match self.phase {
            Phase::Responding => return false,
            Phase::First(since) | Phase::Headers(since) => since + self.header_time_max,
            Phase::Idle(since) => since + self.idle_time_max,
        };
        self.timer.is_over(cx, deadline)
    }
}

/// Bound on the time in which a client reads nothing of a reply.
pub(super) struct WriteTimeout {
    write_time_max: Duration,
    timer: LazyTimer,
    /// Start of the blocked write, if there is one.
    blocked_since: Option<Instant>,
}

impl WriteTimeout {
    pub fn new(write_time_max: Duration) -> WriteTimeout {
        WriteTimeout { write_time_max, timer: LazyTimer::default(), blocked_since: None }
    }

    /// Passes on a write's result, or an error if the client has read nothing for too long.
    pub fn check_progress<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.blocked_since = None;
            return written;
        }
        let since = *self.blocked_since.get_or_insert_with(Instant::now);
        match self.timer.is_over(cx, since + self.write_time_max) {
            true => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            false => Poll::Pending,
        }
    }
}

/// The socket for hyper; writes fail if the client does not read.
pub(super) struct TimedStream {
    read_half: OwnedReadHalf,
    writer: Arc<SocketWriter>,
    traffic: Traffic,
    write_timeout: WriteTimeout,
}

impl TimedStream {
    pub fn new(
        read_half: OwnedReadHalf,
        writer: Arc<SocketWriter>,
        traffic: Traffic,
        write_time_max: Duration,
    ) -> TimedStream {
        TimedStream { read_half, writer, traffic, write_timeout: WriteTimeout::new(write_time_max) }
    }
}

impl AsyncRead for TimedStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.read_half).poll_read(cx, buffer);
        if read.is_ready() {
            self.traffic.0.reads.fetch_add(1, Ordering::Relaxed);
        }
        read
    }
}

impl AsyncWrite for TimedStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = self.writer.poll_write(cx, bytes);
        self.write_timeout.check_progress(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = self.writer.poll_write_vectored(cx, bytes);
        self.write_timeout.check_progress(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = self.writer.poll_flush(cx);
        self.write_timeout.check_progress(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = self.writer.poll_shutdown(cx);
        self.write_timeout.check_progress(cx, shut)
    }
}

/// A timer with lazy resets: moving the deadline later, as every request does, costs nothing until
/// the old one expires.
#[derive(Default)]
struct LazyTimer(Option<Pin<Box<Sleep>>>);

impl LazyTimer {
    /// Returns true if the deadline has passed; else the task is woken when it may have.
    fn is_over(&mut self, cx: &mut Context<'_>, deadline: Instant) -> bool {
        let sleep = self.0.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        if sleep.deadline() > deadline {
            sleep.as_mut().reset(deadline);
        }
        while sleep.as_mut().poll(cx).is_ready() {
            if sleep.deadline() >= deadline {
                return true;
            }
            sleep.as_mut().reset(deadline);
        }
        false
    }
}
