//! Sends jobs over one connection, in a pipeline, and again over the next one.
//!
//! In: jobs, from the calls. Out: their outcomes.
//!
//! Invariants:
//! - replies come in the order of requests, so `in_flight` has that order, and a job without a
//!   waiting caller keeps its place in it;
//! - every request may be sent again: a mutation has a token, a read changes nothing;
//! - a job holds one of the permits ([`Options::in_flight_max`](crate::Options)), so nothing here
//!   grows beyond their number;
//! - without a waiting caller the driver is idle: it makes no connection and runs no timer.
//!
//! Not here: the meaning of a reply (the caller), the decision to retry (`job`).

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use quipu_protocol::resp::{ReplyReader, Value};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, sleep};

use crate::Trouble;
use crate::backoff;
use crate::dial::{Target, dial};
use crate::job::Job;

/// Interval at which the driver checks deadlines: an error may come this late. A timer for each
/// call would cost more than the call.
const DEADLINE_TICK: Duration = Duration::from_millis(10);

/// Bytes per read: the replies to a few thousand adds.
const READ_BYTES: usize = 16 << 10;

/// Bound of the unwritten bytes; the driver appends requests only below it. When a connection is
/// lost, the other requests are then known to be unsent.
const OUT_BYTES: usize = 64 << 10;

/// Sends jobs.
#[derive(Debug)]
pub(crate) struct ConnectionDriver {
    target: Arc<Target>,
    jobs: mpsc::Receiver<Job>,
    /// True if more jobs may come.
    is_open: bool,
    /// To be sent, in this order.
    queued: VecDeque<Job>,
    /// To be sent again, each not before its time.
    later: Vec<(Instant, Job)>,
    /// Sent, to be answered in this order.
    in_flight: VecDeque<Job>,
    /// Consecutive failures: connections that could not be made, or were lost before their first
    /// reply.
    failures: u32,
}

impl ConnectionDriver {
    pub fn new(target: Arc<Target>, jobs: mpsc::Receiver<Job>) -> ConnectionDriver {
        let (queued, in_flight) = (VecDeque::new(), VecDeque::new());
        ConnectionDriver { target, jobs, is_open: true, queued, later: Vec::new(), in_flight, failures: 0 }
    }

    /// Runs until all clients are gone and all jobs have ended.
    pub async fn run(mut self, first: TcpStream) {
        let mut stream = first;
        while self.use_connection(stream).await.is_err() {
            match self.connect().await {
                Some(next) => stream = next,
                None => return,
            }
        }
    }

    /// Uses a connection until it is lost; `Ok` if it is no longer needed.
    async fn use_connection(&mut self, mut stream: TcpStream) -> Result<(), Trouble> {
        let (mut out, mut written) = (WriteBuffer::default(), 0);
        let ended = self.exchange(&mut stream, &mut out, &mut written).await;
        if let Err(trouble) = &ended {
            while let Some(mut job) = self.in_flight.pop_back() {
                job.lost(written, trouble);
                self.queued.push_front(job);
            }
        }
        ended
    }

    async fn exchange(
        &mut self,
        stream: &mut TcpStream,
        out: &mut WriteBuffer,
        written: &mut u64,
    ) -> Result<(), Trouble> {
        let (mut read, mut write) = stream.split();
        let (mut reader, mut input) = (ReplyReader::default(), vec![0; READ_BYTES]);
        let mut tick = ticks();
        // The last time at which a reply came or no reply was awaited.
        let (mut last_reply, mut has_reply) = (Instant::now(), false);
        loop {
            if self.in_flight.is_empty() {
                last_reply = Instant::now();
            }
            self.write_queued(out);
            if !self.is_open && self.is_idle() {
                return Ok(());
            }
            let busy = !self.is_idle();
            tokio::select! {
                job = self.jobs.recv(), if self.is_open => self.accept_job(job),
                count = write.write(out.unwritten()), if !out.unwritten().is_empty() => {
                    let count = count?;
                    if count == 0 {
                        return Err(io::Error::from(io::ErrorKind::WriteZero).into());
                    }
                    out.advance(count);
                    *written += count as u64;
                }
                count = read.read(&mut input) => {
                    match count? {
                        0 => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                        count => reader.feed(&input[..count]),
                    }
                    while let Some(reply) = reader.take().map_err(|error| Trouble::Nonsense(error.to_string()))? {
                        self.on_reply(reply)?;
                        has_reply = true;
                    }
                    last_reply = Instant::now();
                    if has_reply {
                        self.failures = 0;
                    }
                }
                _ = tick.tick(), if busy => {
                    let now = Instant::now();
                    self.sweep(now);
                    if !self.in_flight.is_empty() && now.duration_since(last_reply) > self.target.options.reply_timeout {
                        return Err(io::Error::from(io::ErrorKind::TimedOut).into());
                    }
                }
            }
        }
    }

    /// The next connection, made when a job needs it; `None` once all clients and jobs are gone.
    async fn connect(&mut self) -> Option<TcpStream> {
        let target = self.target.clone();
        let mut tick = ticks();
        loop {
            self.sweep(Instant::now());
            if self.is_idle() {
                if !self.is_open {
                    return None;
                }
                let job = self.jobs.recv().await;
                self.accept_job(job);
                continue;
            }
            let pause = match self.failures {
                0 => Duration::ZERO,
                failures => backoff::delay(failures, &target.options, backoff::jitter()),
            };
            // A failure until its first reply.
            self.failures = self.failures.saturating_add(1);
            let dialled = async {
                sleep(pause).await;
                dial(&target).await
            };
            tokio::pin!(dialled);
            let outcome = loop {
                tokio::select! {
                    outcome = &mut dialled => break outcome,
                    job = self.jobs.recv(), if self.is_open => self.accept_job(job),
                    _ = tick.tick() => self.sweep(Instant::now()),
                }
            };
            match outcome {
                Ok(stream) => return Some(stream),
                Err(trouble) => {
                    let later = self.later.iter_mut().map(|(_, job)| job);
                    self.queued.iter_mut().chain(later).for_each(|job| job.record_failure(&trouble));
                }
            }
        }
    }

    fn is_idle(&self) -> bool {
        self.queued.is_empty() && self.later.is_empty() && self.in_flight.is_empty()
    }

    fn accept_job(&mut self, job: Option<Job>) {
        match job {
            Some(job) => {
                self.queued.push_back(job);
                // The jobs that are queued already go with it, in one write.
                while let Ok(job) = self.jobs.try_recv() {
                    self.queued.push_back(job);
                }
            }
            None => self.is_open = false,
        }
    }

    fn write_queued(&mut self, out: &mut WriteBuffer) {
        while out.unwritten().len() < OUT_BYTES
            && let Some(mut job) = self.queued.pop_front()
        {
            if job.is_cancelled() {
                continue;
            }
            job.attempts += 1;
            job.start_offset = out.end_offset();
            out.append(&job.request);
            self.in_flight.push_back(job);
        }
    }

    fn on_reply(&mut self, reply: Value) -> Result<(), Trouble> {
        if matches!(reply, Value::Push(_)) {
            return Ok(());
        }
        let job =
            self.in_flight.pop_front().ok_or_else(|| Trouble::Nonsense("a reply that nobody asked for".to_owned()))?;
        if let Some(job) = job.on_reply(reply) {
            let pause = backoff::delay(job.attempts, &self.target.options, backoff::jitter());
            self.later.push((Instant::now() + pause, job));
        }
        Ok(())
    }

    /// Ends expired jobs, and queues the jobs with an elapsed pause.
    fn sweep(&mut self, now: Instant) {
        let is_late = |job: &Job| job.deadline <= now;
        for job in self.in_flight.iter_mut().filter(|job| is_late(job)) {
            job.abandon();
        }
        for job in take_expired(&mut self.queued, now) {
            job.expired();
        }
        for (_, job) in self.later.extract_if(.., |(_, job)| is_late(job) || job.is_cancelled()) {
            job.expired();
        }
        self.queued.extend(self.later.extract_if(.., |(due, _)| *due <= now).map(|(_, job)| job));
    }
}

/// Removes the jobs that are past their deadline or cancelled; the others keep their order.
fn take_expired(jobs: &mut VecDeque<Job>, now: Instant) -> Vec<Job> {
    let is_late = |job: &Job| job.deadline <= now || job.is_cancelled();
    // Nearly always there are none.
    if !jobs.iter().any(is_late) {
        return Vec::new();
    }
    let (late, rest) = jobs.drain(..).partition(is_late);
    *jobs = rest;
    late.into()
}

/// Bytes to write to a connection.
#[derive(Debug, Default)]
struct WriteBuffer {
    bytes: Vec<u8>,
    written_bytes: usize,
    /// Bytes before the first of `bytes`, since the connection was made.
    base: u64,
}

impl WriteBuffer {
    fn unwritten(&self) -> &[u8] {
        &self.bytes[self.written_bytes..]
    }

    /// Offset of the end of all bytes, written or not.
    fn end_offset(&self) -> u64 {
        self.base + self.bytes.len() as u64
    }

    fn append(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    fn advance(&mut self, count: usize) {
        self.written_bytes += count;
        if self.written_bytes == self.bytes.len() {
            self.base = self.end_offset();
            self.bytes.clear();
            self.written_bytes = 0;
        }
    }
}

fn ticks() -> Interval {
    let mut ticks = interval(DEADLINE_TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}
