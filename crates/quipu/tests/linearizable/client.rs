//! One client: its operations in each run of the program, and their outcomes.
//!
//! Invariants:
//! - a time is taken before a request leaves and after its last reply came, from one clock that all
//!   clients share;
//! - an unanswered request is recorded as unknown, independently of other requests on its
//!   connection.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::thread;
use std::time::{Duration, Instant};

use quipu_model::Reply;
use quipu_testkit::SeededRng;
use quipu_testkit::judge::{CELLS, CounterAction, CounterStep};

use crate::Figures;
use crate::protocols::{Addresses, ProtocolClient};
use crate::request::{Answer, BUSY_GROUP, Form, GROUPS, Request, counter_name};

/// Most requests of a pipeline.
const PIPELINE_MAX: usize = 5;

/// Adds without a reply that are sent at once. Two times as many within 50 ms split a counter into
/// lanes.
const SILENT_ADDS: usize = 40;

/// What all clients of a life share.
pub struct ProgramRun<'l> {
    pub addresses: Addresses,
    pub clock: &'l HistoryClock,
    /// Operations that were asked in this life, and how many end it.
    pub operations_sent: &'l AtomicUsize,
    pub operations_max: usize,
    pub end: Sender<()>,
    /// The program is being ended: another one may soon serve at its address.
    pub is_over: &'l AtomicBool,
    /// The longest a client waits between two requests.
    pub pause_max: Duration,
    /// Whether clients send adds without a reply.
    pub has_unreplied: bool,
}

/// The clock of a history.
#[derive(Debug)]
pub struct HistoryClock(Instant);

/// An operation that was asked.
#[derive(Debug, Clone)]
pub struct Operation {
    pub request: Request,
    pub invoked: u64,
    /// When it was answered; of unknown ones, when their life was over. `None` while neither is so.
    pub returned: Option<u64>,
    pub outcome: OperationOutcome,
    /// Which of this client's operations comes before it on its connection, on the same counters.
    pub after: Option<usize>,
    /// Which part of the history it belongs to: in `memory` a kill begins another one.
    pub part: usize,
}

/// What came of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OperationOutcome {
    Unknown,
    /// Not applied, and so not in the history.
    Refused,
    /// Applied; without replies, if it asked for none.
    Acked(Option<Vec<Reply>>),
}

/// What a client mostly does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Anything, over RESP.
    Any,
    /// Reads, over RESP.
    Reader,
    /// What HTTP has.
    OverHttp,
}

/// A client through all lives.
#[derive(Debug)]
pub struct Client {
    number: usize,
    role: Role,
    tokens: u64,
    pub operations: Vec<Operation>,
    /// Operations under tokens: to be sent again because they were not answered, and those that
    /// were.
    unanswered: Vec<usize>,
    answered: Vec<usize>,
    /// What should not have been answered.
    pub wrong: Vec<String>,
    pub figures: Figures,
    part: usize,
}

/// The client has a connection no longer: the program was killed, or the client has closed it.
struct ConnectionLost;

type Progress = Result<(), ConnectionLost>;

impl ProgramRun<'_> {
    fn connect(&self, over_http: bool) -> Result<ProtocolClient, ConnectionLost> {
        if self.is_over.load(Ordering::SeqCst) {
            return Err(ConnectionLost);
        }
        let channel = if over_http {
            ProtocolClient::connect_http(self.addresses)
        } else {
            ProtocolClient::connect_resp(self.addresses)
        };
        channel.map_err(|_| ConnectionLost)
    }
}

impl HistoryClock {
    #[allow(clippy::disallowed_methods, reason = "a real program is timed, nothing here is simulated")]
    pub fn start() -> HistoryClock {
        HistoryClock(Instant::now())
    }

    /// Nanoseconds since the history began.
    pub fn now(&self) -> u64 {
        u64::try_from(self.0.elapsed().as_nanos()).expect("a history ends within centuries")
    }
}

impl Client {
    pub fn new(number: usize, role: Role) -> Client {
        Client {
            number,
            role,
            tokens: 0,
            operations: Vec::new(),
            unanswered: Vec::new(),
            answered: Vec::new(),
            wrong: Vec::new(),
            figures: Figures::default(),
            part: 0,
        }
    }

    /// Asks until the program is gone.
    pub fn live(&mut self, program_run: &ProgramRun<'_>, rng: &SeededRng) {
        while let Ok(mut channel) = program_run.connect(self.is_over_http()) {
            while self.retry_unanswered(&mut channel, program_run, rng).is_ok()
                && self.act(&mut channel, program_run, rng).is_ok()
            {
                if !program_run.pause_max.is_zero() {
                    // Load, not waiting: what a client does between two requests.
                    thread::sleep(program_run.pause_max.mul_f64(rng.below(100) as f64 / 100.0));
                }
            }
        }
    }

    /// Sends again what has a token and was not answered, then reads all counters: what a client
    /// does last.
    pub fn read_all_groups(&mut self, program_run: &ProgramRun<'_>, rng: &SeededRng) {
        let Ok(mut channel) = program_run.connect(self.is_over_http()) else {
            return self.wrong.push("the last start does not accept a connection".to_owned());
        };
        let mut read_result = self.retry_unanswered(&mut channel, program_run, rng);
        if read_result.is_ok() && !self.is_over_http() {
            read_result = (0..GROUPS).try_for_each(|group| {
                self.send_and_receive(&mut channel, program_run, &[Request::read_all(group)]).map(|_| ())
            });
        }
        if read_result.is_err() {
            self.wrong.push("the last start has closed a connection".to_owned());
        }
    }

    /// The life is over: what was not answered by now takes effect no more, but under a token that
    /// is sent again.
    pub fn end_life(&mut self, at: u64) {
        for asked in self.operations.iter_mut().rev().filter(|asked| asked.returned.is_none()) {
            asked.returned = Some(at);
        }
    }

    /// What the server remembered of tokens may be lost, and what they did.
    pub fn begin_part(&mut self, part: usize) {
        self.part = part;
        self.unanswered.clear();
        self.answered.clear();
    }

    fn is_over_http(&self) -> bool {
        self.role == Role::OverHttp
    }

    fn act(&mut self, channel: &mut ProtocolClient, program_run: &ProgramRun<'_>, rng: &SeededRng) -> Progress {
        if rng.chance(8) && !self.answered.is_empty() {
            let index = *rng.pick(&self.answered);
            return self.retry(channel, program_run, rng, index);
        }
        if self.is_over_http() {
            let request = Request::draw_for_http(rng, &mut self.tokens);
            return self.send_and_receive(channel, program_run, &[request]).map(|_| ());
        }
        if self.role == Role::Reader && rng.chance(85) {
            let step = CounterStep { cell: rng.below(CELLS), action: CounterAction::Read };
            let request =
                if rng.chance(50) { Request::read_all(BUSY_GROUP) } else { Request::single(BUSY_GROUP, step) };
            return self.send_and_receive(channel, program_run, &[request]).map(|_| ());
        }
        match rng.below(100) {
            0..74 => {
                let request = Request::draw(rng, &mut self.tokens);
                self.send_and_receive(channel, program_run, &[request]).map(|_| ())
            }
            74..86 => {
                let count = 2 + rng.below(PIPELINE_MAX - 1);
                let requests: Vec<_> = (0..count).map(|_| Request::draw(rng, &mut self.tokens)).collect();
                self.send_and_receive(channel, program_run, &requests).map(|_| ())
            }
            86..90 => {
                // The connection is closed before the reply has come.
                let request = Request::draw(rng, &mut self.tokens);
                self.send(channel, program_run, &[request]);
                Err(ConnectionLost)
            }
            90..94 if program_run.has_unreplied => self.add_without_replies(channel, program_run, rng),
            _ => self.exchange(channel, program_run, rng),
        }
    }

    /// Sends requests and takes their replies.
    fn send_and_receive(
        &mut self,
        channel: &mut ProtocolClient,
        program_run: &ProgramRun<'_>,
        requests: &[Request],
    ) -> Result<usize, ConnectionLost> {
        let first = self.send(channel, program_run, requests).ok_or(ConnectionLost)?;
        for index in first..first + requests.len() {
            self.receive(channel, program_run, index)?;
        }
        Ok(first)
    }

    /// Records requests and sends them; the index of the first one, or nothing if the connection is
    /// broken.
    fn send(
        &mut self,
        channel: &mut ProtocolClient,
        program_run: &ProgramRun<'_>,
        requests: &[Request],
    ) -> Option<usize> {
        let first = self.operations.len();
        let invoked = program_run.clock.now();
        for request in requests {
            let index = self.operations.len();
            // Those without a reply are joined later, and take effect in an order of their own.
            let is_ordered = |request: &Request| request.form != Form::Silent;
            let follows = |earlier: &Operation| {
                earlier.request.group == request.group && is_ordered(&earlier.request) && is_ordered(request)
            };
            let after = (first..index).rev().find(|&earlier| follows(&self.operations[earlier]));
            let (outcome, part) = (OperationOutcome::Unknown, self.part);
            self.operations.push(Operation { request: request.clone(), invoked, returned: None, outcome, after, part });
            if request.token.is_some() {
                self.unanswered.push(index);
            }
        }
        self.figures.operations += requests.len();
        self.figures.over_http += if self.is_over_http() { requests.len() } else { 0 };
        let asked = program_run.operations_sent.fetch_add(requests.len(), Ordering::Relaxed);
        if asked < program_run.operations_max && program_run.operations_max <= asked + requests.len() {
            let _ = program_run.end.send(());
        }
        let requests: Vec<&Request> = requests.iter().collect();
        channel.send(self.number, &requests).ok().map(|()| first)
    }

    /// Takes the reply to a request.
    fn receive(&mut self, channel: &mut ProtocolClient, program_run: &ProgramRun<'_>, index: usize) -> Progress {
        let request = self.operations[index].request.clone();
        if request.form == Form::Silent {
            return Ok(());
        }
        let answer = match channel.receive(self.number, &request) {
            Ok(answer) => answer,
            Err(error) => {
                if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) {
                    self.wrong.push(format!("no reply to {request:?}: {error}"));
                }
                return Err(ConnectionLost);
            }
        };
        let returned = program_run.clock.now();
        let asked = &mut self.operations[index];
        match answer {
            Answer::Replies(replies) => {
                self.figures.transactions += usize::from(matches!(request.form, Form::Transaction | Form::Exchange));
                self.figures.exchanged += usize::from(request.form == Form::Exchange);
                if request.token.is_some() {
                    self.unanswered.retain(|&waiting| waiting != index);
                    self.answered.push(index);
                }
                (asked.returned, asked.outcome) = (Some(returned), OperationOutcome::Acked(Some(replies)));
            }
            Answer::Refused | Answer::Prevented => {
                self.figures.refused += usize::from(answer == Answer::Refused);
                self.figures.prevented += usize::from(answer == Answer::Prevented);
                // Not sent again: it would be another operation.
                self.unanswered.retain(|&waiting| waiting != index);
                (asked.returned, asked.outcome) = (Some(returned), OperationOutcome::Refused);
            }
            Answer::Wrong(text) => {
                self.wrong.push(text);
                (asked.returned, asked.outcome) = (Some(returned), OperationOutcome::Refused);
            }
        }
        Ok(())
    }

    fn retry_unanswered(
        &mut self,
        channel: &mut ProtocolClient,
        program_run: &ProgramRun<'_>,
        rng: &SeededRng,
    ) -> Progress {
        while let Some(&index) = self.unanswered.first() {
            self.retry(channel, program_run, rng, index)?;
        }
        Ok(())
    }

    /// Sends an operation again under its token, over this connection or one of the other protocol.
    fn retry(
        &mut self,
        channel: &mut ProtocolClient,
        program_run: &ProgramRun<'_>,
        rng: &SeededRng,
        index: usize,
    ) -> Progress {
        if self.operations[index].request.is_for_http() && rng.chance(50) {
            return self.retry_over(&mut program_run.connect(!self.is_over_http())?, program_run, index);
        }
        self.retry_over(channel, program_run, index)
    }

    fn retry_over(&mut self, channel: &mut ProtocolClient, program_run: &ProgramRun<'_>, index: usize) -> Progress {
        let asked = &mut self.operations[index];
        let request = asked.request.clone();
        let OperationOutcome::Acked(first) = asked.outcome.clone() else {
            // It may take effect now, after others that were behind it on its first connection.
            (asked.returned, asked.after) = (None, None);
            for follower in self.operations.iter_mut().filter(|other| other.after == Some(index)) {
                follower.after = None;
            }
            self.figures.retried_unknown += 1;
            channel.send(self.number, &[&request]).map_err(|_| ConnectionLost)?;
            self.receive(channel, program_run, index)?;
            let asked = &mut self.operations[index];
            if asked.outcome == OperationOutcome::Refused {
                // The retry was; the first attempt may have been applied.
                (asked.returned, asked.outcome) = (None, OperationOutcome::Unknown);
            }
            return Ok(());
        };
        channel.send(self.number, &[&request]).map_err(|_| ConnectionLost)?;
        match channel.receive(self.number, &request) {
            Ok(Answer::Replies(replies)) if Some(&replies) == first.as_ref() => self.figures.retried_answered += 1,
            Ok(Answer::Refused) => self.figures.refused += 1,
            Ok(other) => self.wrong.push(format!("{request:?} was answered {first:?}, and its retry {other:?}")),
            Err(_) => return Err(ConnectionLost),
        }
        Ok(())
    }

    /// Many adds that are not replied to, and a read: its reply acknowledges them.
    fn add_without_replies(
        &mut self,
        channel: &mut ProtocolClient,
        program_run: &ProgramRun<'_>,
        rng: &SeededRng,
    ) -> Progress {
        let (group, cell) = (BUSY_GROUP, rng.below(CELLS));
        let mut requests = vec![Request::silent(group, cell); SILENT_ADDS];
        requests.push(Request::single(group, CounterStep { cell, action: CounterAction::Read }));
        let first = self.send_and_receive(channel, program_run, &requests)?;
        let (adds, read) = (first..first + SILENT_ADDS, first + SILENT_ADDS);
        let returned = self.operations[read].returned;
        for asked in &mut self.operations[adds] {
            (asked.returned, asked.outcome) = (returned, OperationOutcome::Acked(None));
        }
        self.figures.silent += SILENT_ADDS;
        Ok(())
    }

    /// Reads a counter that it watches, and sets it if nobody has changed it.
    fn exchange(&mut self, channel: &mut ProtocolClient, program_run: &ProgramRun<'_>, rng: &SeededRng) -> Progress {
        let (group, cell) = (BUSY_GROUP, rng.below(CELLS));
        let ProtocolClient::Resp(connection) = channel else { return Ok(()) };
        let watched = connection.call(&["WATCH", &counter_name(group, cell)]).map_err(|_| ConnectionLost)?;
        if let Some(error) = watched.error() {
            self.wrong.push(format!("WATCH was answered {error}"));
        }
        let read = Request::single(group, CounterStep { cell, action: CounterAction::Read });
        let index = self.send_and_receive(channel, program_run, &[read])?;
        let OperationOutcome::Acked(Some(replies)) = &self.operations[index].outcome else { return Ok(()) };
        let &[Reply::Value(expected)] = &replies[..] else { return Ok(()) };
        let request = Request::exchange(group, cell, expected, rng.between(-100..=100));
        self.send_and_receive(channel, program_run, &[request]).map(|_| ())
    }
}
