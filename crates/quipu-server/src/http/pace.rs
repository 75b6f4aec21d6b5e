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

use super::line::Line;
use crate::Limits;

/// What has happened on a connection. All of it happens in one task; the atomics are for the type system.
#[derive(Clone, Default)]
pub(super) struct Traffic(Arc<Counts>);

#[derive(Default)]
struct Counts {
    /// Reads that brought something.
    heard: AtomicU64,
    /// Requests whose answering has begun, and has ended.
    begun: AtomicU64,
    ended: AtomicU64,
}

/// Held while a request is being answered, to the last byte of the reply.
pub(super) struct Answer(Traffic);

impl Traffic {
    pub fn begin_answer(&self) -> Answer {
        self.0.begun.fetch_add(1, Ordering::Relaxed);
        Answer(self.clone())
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.0.0.ended.fetch_add(1, Ordering::Relaxed);
    }
}

/// How long the client is waited for.
pub(super) struct Pace {
    traffic: Traffic,
    phase: Phase,
    /// What had happened when this was last looked at.
    heard: u64,
    begun: u64,
    header_time_max: Duration,
    idle_time_max: Duration,
    timer: Timer,
}

/// What the client is waited for.
#[derive(Clone, Copy)]
enum Phase {
    /// Its first request.
    First(Instant),
    /// Its next request.
    Quiet(Instant),
    /// The rest of the headers.
    Headers(Instant),
    /// Nothing: a request is being answered.
    Answered,
}

impl Pace {
    pub fn new(traffic: Traffic, limits: &Limits) -> Pace {
        Pace {
            traffic,
            phase: Phase::First(Instant::now()),
            heard: 0,
            begun: 0,
            header_time_max: limits.http_header_time_max,
            idle_time_max: limits.http_idle_time_max,
            timer: Timer::default(),
        }
    }

    /// Whether the client has taken too long; if not, the task is woken when it may have. To be asked whenever the connection has nothing more to do.
    pub fn is_late(&mut self, cx: &mut Context<'_>) -> bool {
        let Counts { heard, begun, ended } = &*self.traffic.0;
        let (heard, begun) = (heard.load(Ordering::Relaxed), begun.load(Ordering::Relaxed));
        let answered = begun != ended.load(Ordering::Relaxed);
        self.phase = match self.phase {
            _ if answered => Phase::Answered,
            // An answer may have begun and ended since.
            _ if begun != self.begun => Phase::Quiet(Instant::now()),
            Phase::Answered => Phase::Quiet(Instant::now()),
            Phase::Quiet(_) if heard != self.heard => Phase::Headers(Instant::now()),
            phase => phase,
        };
        (self.heard, self.begun) = (heard, begun);
        let deadline = match self.phase {
            Phase::Answered => return false,
            Phase::First(since) | Phase::Headers(since) => since + self.header_time_max,
            Phase::Quiet(since) => since + self.idle_time_max,
        };
        self.timer.is_over(cx, deadline)
    }
}

/// How long a client may take nothing of what there is to take.
pub(super) struct Patience {
    write_time_max: Duration,
    timer: Timer,
    /// Since when it has taken nothing, if there is something to take.
    stuck: Option<Instant>,
}

impl Patience {
    pub fn new(write_time_max: Duration) -> Patience {
        Patience { write_time_max, timer: Timer::default(), stuck: None }
    }

    /// What was written, or an error if the client has taken nothing for too long.
    pub fn paced<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stuck = None;
            return written;
        }
        let since = *self.stuck.get_or_insert_with(Instant::now);
        match self.timer.is_over(cx, since + self.write_time_max) {
            true => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            false => Poll::Pending,
        }
    }
}

/// The socket as hyper sees it, which fails when its client does not read.
pub(super) struct Paced {
    half: OwnedReadHalf,
    line: Arc<Line>,
    traffic: Traffic,
    patience: Patience,
}

impl Paced {
    pub fn new(half: OwnedReadHalf, line: Arc<Line>, traffic: Traffic, write_time_max: Duration) -> Paced {
        Paced { half, line, traffic, patience: Patience::new(write_time_max) }
    }
}

impl AsyncRead for Paced {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.half).poll_read(cx, buffer);
        if read.is_ready() {
            self.traffic.0.heard.fetch_add(1, Ordering::Relaxed);
        }
        read
    }
}

impl AsyncWrite for Paced {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = self.line.poll_write(cx, bytes);
        self.patience.paced(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = self.line.poll_write_vectored(cx, bytes);
        self.patience.paced(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = self.line.poll_flush(cx);
        self.patience.paced(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = self.line.poll_shutdown(cx);
        self.patience.paced(cx, shut)
    }
}

/// A timer that is set back lazily: a deadline that moves later, as it does with every request, costs nothing until the old one has come.
#[derive(Default)]
struct Timer(Option<Pin<Box<Sleep>>>);

impl Timer {
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
