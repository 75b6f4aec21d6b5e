//! Sends jobs over one connection, in a pipeline, and again over the next one.
//!
//! In: jobs, from whoever calls. Out: their ends.
//!
//! Invariants:
//! - replies come in the order of requests, so `sent` is in that order, and a job that nobody waits for any more keeps its place in it;
//! - whatever is sent may be sent again: a mutation has a token, a read changes nothing;
//! - jobs are as many as there are places ([`Options::in_flight_max`](crate::Options)), so nothing here grows beyond that;
//! - while nobody waits for anything, nothing is done: no connection is made again, no timer runs.
//!
//! Not here: what a reply means (the caller), whether a job is sent again (`job`).

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
use crate::dial::{Target, dial};
use crate::job::Job;
use crate::pause;

/// How often deadlines are looked at. An error may come so much late; a timer for each call would cost more than the call.
const TICK: Duration = Duration::from_millis(10);

/// Bytes asked for in one read: the replies to a few thousand adds.
const READ_BYTES: usize = 16 << 10;

/// Requests are added to what waits to be written only while that is less than this, so that the rest is known not to have been sent when a connection is lost.
const OUT_BYTES: usize = 64 << 10;

/// Sends jobs.
#[derive(Debug)]
pub(crate) struct Driver {
    target: Arc<Target>,
    jobs: mpsc::Receiver<Job>,
    /// Whether more jobs may come.
    open: bool,
    /// To be sent, in this order.
    waiting: VecDeque<Job>,
    /// To be sent again, not before a time.
    later: Vec<(Instant, Job)>,
    /// Sent, to be answered in this order.
    sent: VecDeque<Job>,
    /// Connections that could not be made, or were lost before they had answered anything, in a row.
    failures: u32,
}

impl Driver {
    pub fn new(target: Arc<Target>, jobs: mpsc::Receiver<Job>) -> Driver {
        let (waiting, sent) = (VecDeque::new(), VecDeque::new());
        Driver { target, jobs, open: true, waiting, later: Vec::new(), sent, failures: 0 }
    }

    /// Goes on until all clients are gone and all jobs are over.
    pub async fn run(mut self, first: TcpStream) {
        let mut stream = first;
        while self.talk(stream).await.is_err() {
            match self.connect().await {
                Some(next) => stream = next,
                None => return,
            }
        }
    }

    /// Uses a connection until it is lost; `Ok` if it is no longer needed.
    async fn talk(&mut self, mut stream: TcpStream) -> Result<(), Trouble> {
        let (mut out, mut written) = (Out::default(), 0);
        let ended = self.exchange(&mut stream, &mut out, &mut written).await;
        if let Err(trouble) = &ended {
            while let Some(mut job) = self.sent.pop_back() {
                job.lost(written, trouble);
                self.waiting.push_front(job);
            }
        }
        ended
    }

    async fn exchange(&mut self, stream: &mut TcpStream, out: &mut Out, written: &mut u64) -> Result<(), Trouble> {
        let (mut read, mut write) = stream.split();
        let (mut reader, mut input) = (ReplyReader::default(), vec![0; READ_BYTES]);
        let mut tick = ticks();
        // When a reply last came, or had to be waited for.
        let (mut heard, mut answered) = (Instant::now(), false);
        loop {
            if self.sent.is_empty() {
                heard = Instant::now();
            }
            self.send(out);
            if !self.open && self.is_idle() {
                return Ok(());
            }
            let busy = !self.is_idle();
            tokio::select! {
                job = self.jobs.recv(), if self.open => self.take(job),
                count = write.write(out.rest()), if !out.rest().is_empty() => {
                    let count = count?;
                    if count == 0 {
                        return Err(io::Error::from(io::ErrorKind::WriteZero).into());
                    }
                    out.written(count);
                    *written += count as u64;
                }
                count = read.read(&mut input) => {
                    match count? {
                        0 => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                        count => reader.feed(&input[..count]),
                    }
                    while let Some(reply) = reader.take().map_err(|error| Trouble::Nonsense(error.to_string()))? {
                        self.answer(reply)?;
                        answered = true;
                    }
                    heard = Instant::now();
                    if answered {
                        self.failures = 0;
                    }
                }
                _ = tick.tick(), if busy => {
                    let now = Instant::now();
                    self.sweep(now);
                    if !self.sent.is_empty() && now.duration_since(heard) > self.target.options.reply_timeout {
                        return Err(io::Error::from(io::ErrorKind::TimedOut).into());
                    }
                }
            }
        }
    }

    /// The next connection, when it is needed; `None` if it never is.
    async fn connect(&mut self) -> Option<TcpStream> {
        let target = self.target.clone();
        let mut tick = ticks();
        loop {
            self.sweep(Instant::now());
            if self.is_idle() {
                if !self.open {
                    return None;
                }
                let job = self.jobs.recv().await;
                self.take(job);
                continue;
            }
            let pause = match self.failures {
                0 => Duration::ZERO,
                failures => pause::before(failures, &target.options, pause::chance()),
            };
            // Counted as failed until it has answered something.
            self.failures = self.failures.saturating_add(1);
            let dialled = async {
                sleep(pause).await;
                dial(&target).await
            };
            tokio::pin!(dialled);
            let outcome = loop {
                tokio::select! {
                    outcome = &mut dialled => break outcome,
                    job = self.jobs.recv(), if self.open => self.take(job),
                    _ = tick.tick() => self.sweep(Instant::now()),
                }
            };
            match outcome {
                Ok(stream) => return Some(stream),
                Err(trouble) => {
                    let later = self.later.iter_mut().map(|(_, job)| job);
                    self.waiting.iter_mut().chain(later).for_each(|job| job.note(&trouble));
                }
            }
        }
    }

    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.later.is_empty() && self.sent.is_empty()
    }

    fn take(&mut self, job: Option<Job>) {
        match job {
            Some(job) => {
                self.waiting.push_back(job);
                // What others have asked meanwhile goes with it, in one write.
                while let Ok(job) = self.jobs.try_recv() {
                    self.waiting.push_back(job);
                }
            }
            None => self.open = false,
        }
    }

    fn send(&mut self, out: &mut Out) {
        while out.rest().len() < OUT_BYTES
            && let Some(mut job) = self.waiting.pop_front()
        {
            if job.is_over() {
                continue;
            }
            job.attempts += 1;
            job.began = out.end();
            out.append(&job.request);
            self.sent.push_back(job);
        }
    }

    fn answer(&mut self, reply: Value) -> Result<(), Trouble> {
        if matches!(reply, Value::Push(_)) {
            return Ok(());
        }
        let job = self.sent.pop_front().ok_or_else(|| Trouble::Nonsense("a reply that nobody asked for".to_owned()))?;
        if let Some(job) = job.answered(reply) {
            let pause = pause::before(job.attempts, &self.target.options, pause::chance());
            self.later.push((Instant::now() + pause, job));
        }
        Ok(())
    }

    /// Ends what is over, and lets go on what has paused for long enough.
    fn sweep(&mut self, now: Instant) {
        let is_late = |job: &Job| job.deadline <= now;
        for job in self.sent.iter_mut().filter(|job| is_late(job)) {
            job.abandon();
        }
        for job in take_late(&mut self.waiting, now) {
            job.expired();
        }
        for (_, job) in self.later.extract_if(.., |(_, job)| is_late(job) || job.is_over()) {
            job.expired();
        }
        self.waiting.extend(self.later.extract_if(.., |(due, _)| *due <= now).map(|(_, job)| job));
    }
}

/// Takes out the jobs whose time is over, or for which nobody waits; the rest keeps its order.
fn take_late(jobs: &mut VecDeque<Job>, now: Instant) -> Vec<Job> {
    let is_late = |job: &Job| job.deadline <= now || job.is_over();
    // Nearly always there are none.
    if !jobs.iter().any(is_late) {
        return Vec::new();
    }
    let (late, rest) = jobs.drain(..).partition(is_late);
    *jobs = rest;
    late.into()
}

/// What is to be written to a connection.
#[derive(Debug, Default)]
struct Out {
    bytes: Vec<u8>,
    at: usize,
    /// Bytes before the first of `bytes`, since the connection was made.
    before: u64,
}

impl Out {
    fn rest(&self) -> &[u8] {
        &self.bytes[self.at..]
    }

    /// How many bytes there are and were, written or not.
    fn end(&self) -> u64 {
        self.before + self.bytes.len() as u64
    }

    fn append(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    fn written(&mut self, count: usize) {
        self.at += count;
        if self.at == self.bytes.len() {
            self.before = self.end();
            self.bytes.clear();
            self.at = 0;
        }
    }
}

fn ticks() -> Interval {
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}
