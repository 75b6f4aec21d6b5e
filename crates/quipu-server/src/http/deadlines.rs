//! The deadlines of a connection: for a request, for its headers, and for a client to read.
//!
//! In: what its socket hears, and word from its service of when a request is being answered. Out: whether the client has taken too long.
//!
//! Invariants:
//! - the first request comes, whole, within the time for headers; a later one may be waited for longer, but once it has begun its headers have that time, too;
//! - while a request is answered nothing is asked of the client but that it takes some of the reply within each bound of time.
//!
//! hyper has a bound of its own for headers, but it runs from the end of the last reply: it could not tell a pool's idle connection from a client that sends one byte now and then.
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

/// What has happened on a connection. All of it happens in one task; the atomics are for the type system.
#[derive(Clone, Default)]
pub(super) struct Traffic(Arc<TrafficCounts>);

#[derive(Default)]
struct TrafficCounts {
    /// Reads that brought something.
    reads: AtomicU64,
    /// Requests whose answering has begun, and has ended.
    begun: AtomicU64,
    ended: AtomicU64,
}

/// Held while a request is being answered, to the last byte of the reply.
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

/// How long the client is waited for.
pub(super) struct Deadlines {
    traffic: Traffic,
    phase: Phase,
    /// What had happened when this was last looked at.
    reads: u64,
    begun: u64,
    header_time_max: Duration,
    idle_time_max: Duration,
    timer: LazyTimer,
}

/// What the client is waited for.
#[derive(Clone, Copy)]
enum Phase {
    /// Its first request.
    First(Instant),
    /// Its next request.
    Idle(Instant),
    /// The rest of the headers.
    Headers(Instant),
    /// Nothing: a request is being answered.
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

    /// Whether the client has taken too long; if not, the task is woken when it may have. To be asked whenever the connection has nothing more to do.
    pub fn is_late(&mut self, cx: &mut Context<'_>) -> bool {
        let TrafficCounts { reads, begun, ended } = &*self.traffic.0;
        let (reads, begun) = (reads.load(Ordering::Relaxed), begun.load(Ordering::Relaxed));
        let is_responding = begun != ended.load(Ordering::Relaxed);
        self.phase = match self.phase {
            _ if is_responding => Phase::Responding,
            // An answer may have begun and ended since.
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

/// How long a client may take nothing of what there is to take.
pub(super) struct WriteTimeout {
    write_time_max: Duration,
    timer: LazyTimer,
    /// Since when it has taken nothing, if there is something to take.
    blocked_since: Option<Instant>,
}

impl WriteTimeout {
    pub fn new(write_time_max: Duration) -> WriteTimeout {
        WriteTimeout { write_time_max, timer: LazyTimer::default(), blocked_since: None }
    }

    /// What was written, or an error if the client has taken nothing for too long.
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

/// The socket as hyper sees it, which fails when its client does not read.
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

/// A timer that is set back lazily: a deadline that moves later, as it does with every request, costs nothing until the old one has come.
#[derive(Default)]
struct LazyTimer(Option<Pin<Box<Sleep>>>);

impl LazyTimer {
    /// Whether the deadline is over; if not, the task is woken when it may be.
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
