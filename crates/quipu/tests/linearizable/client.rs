//! One client: what it asks in each life of the program, and what came of it.
//!
//! Invariants:
//! - a time is taken before a request leaves and after its last reply came, from one clock that all clients share;
//! - a request that was not answered is recorded as unknown, whatever came of others on its connection.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::thread;
use std::time::{Duration, Instant};

use quipu_model::Reply;
use quipu_testkit::Dice;
use quipu_testkit::judge::{CELLS, CounterAction, CounterStep};

use crate::Figures;
use crate::doors::{Addresses, Door};
use crate::request::{Answer, BUSY_GROUP, Form, GROUPS, Request, counter_name};

/// Most requests of a pipeline.
const PIPELINE_MAX: usize = 5;

/// Adds without a reply that are sent at once. Two times as many within 50 ms split a counter into lanes.
const SILENT_ADDS: usize = 40;

/// What all clients of a life share.
pub struct Life<'l> {
    pub addresses: Addresses,
    pub clock: &'l HistoryClock,
    /// Operations that were asked in this life, and how many end it.
    pub asked: &'l AtomicUsize,
    pub asked_max: usize,
    pub end: Sender<()>,
    /// The program is being ended: another one may soon serve at its address.
    pub is_over: &'l AtomicBool,
    /// The longest a client waits between two requests.
    pub pause_max: Duration,
    /// Whether clients send adds without a reply.
    pub has_silent: bool,
}

/// The clock of a history.
#[derive(Debug)]
pub struct HistoryClock(Instant);

/// An operation that was asked.
#[derive(Debug, Clone)]
pub struct Asked {
    pub request: Request,
    pub invoked: u64,
    /// When it was answered; of unknown ones, when their life was over. `None` while neither is so.
    pub returned: Option<u64>,
    pub outcome: AskedOutcome,
    /// Which of this client's operations comes before it on its connection, on the same counters.
    pub after: Option<usize>,
    /// Which part of the history it belongs to: in `memory` a kill begins another one.
    pub part: usize,
}

/// What came of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AskedOutcome {
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
    pub asked: Vec<Asked>,
    /// Operations under tokens: to be sent again because they were not answered, and those that were.
    unanswered: Vec<usize>,
    answered: Vec<usize>,
    /// What should not have been answered.
    pub wrong: Vec<String>,
    pub figures: Figures,
    part: usize,
}

/// The client has a connection no longer: the program was killed, or the client has closed it.
struct Broken;

type Progress = Result<(), Broken>;

impl Life<'_> {
    fn connect(&self, over_http: bool) -> Result<Door, Broken> {
        if self.is_over.load(Ordering::SeqCst) {
            return Err(Broken);
        }
        let door = if over_http { Door::connect_http(self.addresses) } else { Door::connect_resp(self.addresses) };
        door.map_err(|_| Broken)
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
            asked: Vec::new(),
            unanswered: Vec::new(),
            answered: Vec::new(),
            wrong: Vec::new(),
            figures: Figures::default(),
            part: 0,
        }
    }

    /// Asks until the program is gone.
    pub fn live(&mut self, life: &Life<'_>, dice: &Dice) {
        while let Ok(mut door) = life.connect(self.is_over_http()) {
            while self.retry_unanswered(&mut door, life, dice).is_ok() && self.act(&mut door, life, dice).is_ok() {
                if !life.pause_max.is_zero() {
                    // Load, not waiting: what a client does between two requests.
                    thread::sleep(life.pause_max.mul_f64(dice.below(100) as f64 / 100.0));
                }
            }
        }
    }

    /// Sends again what has a token and was not answered, then reads all counters: what a client does last.
    pub fn look(&mut self, life: &Life<'_>, dice: &Dice) {
        let Ok(mut door) = life.connect(self.is_over_http()) else {
            return self.wrong.push("the last start does not accept a connection".to_owned());
        };
        let mut looked = self.retry_unanswered(&mut door, life, dice);
        if looked.is_ok() && !self.is_over_http() {
            looked =
                (0..GROUPS).try_for_each(|group| self.ask(&mut door, life, &[Request::read_all(group)]).map(|_| ()));
        }
        if looked.is_err() {
            self.wrong.push("the last start has closed a connection".to_owned());
        }
    }

    /// The life is over: what was not answered by now takes effect no more, but under a token that is sent again.
    pub fn end_life(&mut self, at: u64) {
        for asked in self.asked.iter_mut().rev().filter(|asked| asked.returned.is_none()) {
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

    fn act(&mut self, door: &mut Door, life: &Life<'_>, dice: &Dice) -> Progress {
        if dice.chance(8) && !self.answered.is_empty() {
            let index = *dice.pick(&self.answered);
            return self.retry(door, life, dice, index);
        }
        if self.is_over_http() {
            let request = Request::draw_for_http(dice, &mut self.tokens);
            return self.ask(door, life, &[request]).map(|_| ());
        }
        if self.role == Role::Reader && dice.chance(85) {
            let step = CounterStep { cell: dice.below(CELLS), action: CounterAction::Read };
            let request =
                if dice.chance(50) { Request::read_all(BUSY_GROUP) } else { Request::single(BUSY_GROUP, step) };
            return self.ask(door, life, &[request]).map(|_| ());
        }
        match dice.below(100) {
            0..74 => {
                let request = Request::draw(dice, &mut self.tokens);
                self.ask(door, life, &[request]).map(|_| ())
            }
            74..86 => {
                let count = 2 + dice.below(PIPELINE_MAX - 1);
                let requests: Vec<_> = (0..count).map(|_| Request::draw(dice, &mut self.tokens)).collect();
                self.ask(door, life, &requests).map(|_| ())
            }
            86..90 => {
                // The connection is closed before the reply has come.
                let request = Request::draw(dice, &mut self.tokens);
                self.send(door, life, &[request]);
                Err(Broken)
            }
            90..94 if life.has_silent => self.count_silently(door, life, dice),
            _ => self.exchange(door, life, dice),
        }
    }

    /// Sends requests and takes their replies.
    fn ask(&mut self, door: &mut Door, life: &Life<'_>, requests: &[Request]) -> Result<usize, Broken> {
        let first = self.send(door, life, requests).ok_or(Broken)?;
        for index in first..first + requests.len() {
            self.receive(door, life, index)?;
        }
        Ok(first)
    }

    /// Records requests and sends them; the index of the first one, or nothing if the connection is broken.
    fn send(&mut self, door: &mut Door, life: &Life<'_>, requests: &[Request]) -> Option<usize> {
        let first = self.asked.len();
        let invoked = life.clock.now();
        for request in requests {
            let index = self.asked.len();
            // Those without a reply are joined later, and take effect in an order of their own.
            let is_ordered = |request: &Request| request.form != Form::Silent;
            let follows = |earlier: &Asked| {
                earlier.request.group == request.group && is_ordered(&earlier.request) && is_ordered(request)
            };
            let after = (first..index).rev().find(|&earlier| follows(&self.asked[earlier]));
            let (outcome, part) = (AskedOutcome::Unknown, self.part);
            self.asked.push(Asked { request: request.clone(), invoked, returned: None, outcome, after, part });
            if request.token.is_some() {
                self.unanswered.push(index);
            }
        }
        self.figures.operations += requests.len();
        self.figures.over_http += if self.is_over_http() { requests.len() } else { 0 };
        let asked = life.asked.fetch_add(requests.len(), Ordering::Relaxed);
        if asked < life.asked_max && life.asked_max <= asked + requests.len() {
            let _ = life.end.send(());
        }
        let requests: Vec<&Request> = requests.iter().collect();
        door.send(self.number, &requests).ok().map(|()| first)
    }

    /// Takes the reply to a request.
    fn receive(&mut self, door: &mut Door, life: &Life<'_>, index: usize) -> Progress {
        let request = self.asked[index].request.clone();
        if request.form == Form::Silent {
            return Ok(());
        }
        let answer = match door.receive(self.number, &request) {
            Ok(answer) => answer,
            Err(error) => {
                if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) {
                    self.wrong.push(format!("no reply to {request:?}: {error}"));
                }
                return Err(Broken);
            }
        };
        let returned = life.clock.now();
        let asked = &mut self.asked[index];
        match answer {
            Answer::Replies(replies) => {
                self.figures.transactions += usize::from(matches!(request.form, Form::Transaction | Form::Exchange));
                self.figures.exchanged += usize::from(request.form == Form::Exchange);
                if request.token.is_some() {
                    self.unanswered.retain(|&waiting| waiting != index);
                    self.answered.push(index);
                }
                (asked.returned, asked.outcome) = (Some(returned), AskedOutcome::Acked(Some(replies)));
            }
            Answer::Refused | Answer::Prevented => {
                self.figures.refused += usize::from(answer == Answer::Refused);
                self.figures.prevented += usize::from(answer == Answer::Prevented);
                // Not sent again: it would be another operation.
                self.unanswered.retain(|&waiting| waiting != index);
                (asked.returned, asked.outcome) = (Some(returned), AskedOutcome::Refused);
            }
            Answer::Wrong(text) => {
                self.wrong.push(text);
                (asked.returned, asked.outcome) = (Some(returned), AskedOutcome::Refused);
            }
        }
        Ok(())
    }

    fn retry_unanswered(&mut self, door: &mut Door, life: &Life<'_>, dice: &Dice) -> Progress {
        while let Some(&index) = self.unanswered.first() {
            self.retry(door, life, dice, index)?;
        }
        Ok(())
    }

    /// Sends an operation again under its token, over this connection or one of the other protocol.
    fn retry(&mut self, door: &mut Door, life: &Life<'_>, dice: &Dice, index: usize) -> Progress {
        if self.asked[index].request.is_for_http() && dice.chance(50) {
            return self.retry_over(&mut life.connect(!self.is_over_http())?, life, index);
        }
        self.retry_over(door, life, index)
    }

    fn retry_over(&mut self, door: &mut Door, life: &Life<'_>, index: usize) -> Progress {
        let asked = &mut self.asked[index];
        let request = asked.request.clone();
        let AskedOutcome::Acked(first) = asked.outcome.clone() else {
            // It may take effect now, after others that were behind it on its first connection.
            (asked.returned, asked.after) = (None, None);
            for follower in self.asked.iter_mut().filter(|other| other.after == Some(index)) {
                follower.after = None;
            }
            self.figures.retried_unknown += 1;
            door.send(self.number, &[&request]).map_err(|_| Broken)?;
            self.receive(door, life, index)?;
            let asked = &mut self.asked[index];
            if asked.outcome == AskedOutcome::Refused {
                // The retry was; the first attempt may have been applied.
                (asked.returned, asked.outcome) = (None, AskedOutcome::Unknown);
            }
            return Ok(());
        };
        door.send(self.number, &[&request]).map_err(|_| Broken)?;
        match door.receive(self.number, &request) {
            Ok(Answer::Replies(replies)) if Some(&replies) == first.as_ref() => self.figures.retried_answered += 1,
            Ok(Answer::Refused) => self.figures.refused += 1,
            Ok(other) => self.wrong.push(format!("{request:?} was answered {first:?}, and its retry {other:?}")),
            Err(_) => return Err(Broken),
        }
        Ok(())
    }

    /// Many adds that are not replied to, and a read: its reply acknowledges them.
    fn count_silently(&mut self, door: &mut Door, life: &Life<'_>, dice: &Dice) -> Progress {
        let (group, cell) = (BUSY_GROUP, dice.below(CELLS));
        let mut requests = vec![Request::silent(group, cell); SILENT_ADDS];
        requests.push(Request::single(group, CounterStep { cell, action: CounterAction::Read }));
        let first = self.ask(door, life, &requests)?;
        let (adds, read) = (first..first + SILENT_ADDS, first + SILENT_ADDS);
        let returned = self.asked[read].returned;
        for asked in &mut self.asked[adds] {
            (asked.returned, asked.outcome) = (returned, AskedOutcome::Acked(None));
        }
        self.figures.silent += SILENT_ADDS;
        Ok(())
    }

    /// Reads a counter that it watches, and sets it if nobody has changed it.
    fn exchange(&mut self, door: &mut Door, life: &Life<'_>, dice: &Dice) -> Progress {
        let (group, cell) = (BUSY_GROUP, dice.below(CELLS));
        let Door::Resp(connection) = door else { return Ok(()) };
        let watched = connection.call(&["WATCH", &counter_name(group, cell)]).map_err(|_| Broken)?;
        if let Some(error) = watched.error() {
            self.wrong.push(format!("WATCH was answered {error}"));
        }
        let read = Request::single(group, CounterStep { cell, action: CounterAction::Read });
        let index = self.ask(door, life, &[read])?;
        let AskedOutcome::Acked(Some(replies)) = &self.asked[index].outcome else { return Ok(()) };
        let &[Reply::Value(expected)] = &replies[..] else { return Ok(()) };
        let request = Request::exchange(group, cell, expected, dice.between(-100..=100));
        self.ask(door, life, &[request]).map(|_| ())
    }
}
