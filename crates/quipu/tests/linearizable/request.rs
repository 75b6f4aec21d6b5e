//! The requests of clients, and their replies.

use quipu_model::Reply;
use quipu_protocol::resp::Value;
use quipu_testkit::SeededRng;
use quipu_testkit::judge::{CELLS, CounterAction, CounterStep};

/// Groups of counters. Transactions stay within one, so that each is judged alone.
pub const GROUPS: usize = 4;

/// The group that has most of the load, so that its clients meet.
pub const BUSY_GROUP: usize = 0;

const MILLISECOND: u64 = 1_000_000;

/// Errors that a healthy server may answer: the operation was not applied.
const REFUSALS: [&str; 3] = ["NOROOM", "TRYAGAIN", "OOM"];

/// How a request is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// One command on one counter.
    Single,
    /// MULTI, a command for each step, EXEC.
    Transaction,
    /// MGET of all counters of the group.
    ReadAll,
    /// MSET of all counters of the group.
    SetAll,
    /// CLIENT REPLY SKIP, then the command: it is acknowledged by the next reply on its connection.
    Silent,
    /// MULTI, SET, EXEC on a counter that was watched and read before: the first step is what was
    /// read.
    Exchange,
}

/// A request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    pub group: usize,
    pub form: Form,
    pub steps: Vec<CounterStep>,
    /// The client's number for it, under which it is applied once however often it is sent.
    pub token: Option<u64>,
}

/// What a reply says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// One reply for each step.
    Replies(Vec<Reply>),
    /// Not applied.
    Refused,
    /// Another client changed what was watched: not applied.
    Prevented,
    /// What no server should answer.
    Wrong(String),
}

impl Request {
    /// Draws one. `tokens` is the client's count of tokens.
    pub fn draw(rng: &SeededRng, tokens: &mut u64) -> Request {
        let group = draw_group(rng);
        let mut request = match rng.below(100) {
            0..78 => Request { group, form: Form::Single, steps: vec![draw_step(rng)], token: None },
            78..90 => {
                let count = 2 + rng.below(2);
                let steps = (0..count).map(|_| draw_step(rng)).collect();
                Request { group, form: Form::Transaction, steps, token: None }
            }
            90..96 => Request::read_all(group),
            _ => {
                let step = |cell| CounterStep { cell, action: CounterAction::Set(rng.between(-100..=100)) };
                Request { group, form: Form::SetAll, steps: (0..CELLS).map(step).collect(), token: None }
            }
        };
        if request.takes_token() && rng.chance(25) {
            *tokens += 1;
            request.token = Some(*tokens);
        }
        request
    }

    /// Draws one that HTTP has, too.
    pub fn draw_for_http(rng: &SeededRng, tokens: &mut u64) -> Request {
        let action = match rng.below(100) {
            0..45 => CounterAction::Add(draw_delta(rng)),
            45..85 => CounterAction::Read,
            85..92 => CounterAction::Reset,
            _ => CounterAction::Delete,
        };
        let token = (action != CounterAction::Read && rng.chance(25)).then(|| {
            *tokens += 1;
            *tokens
        });
        Request { token, ..Request::single(draw_group(rng), CounterStep { cell: rng.below(CELLS), action }) }
    }

    /// One command on one counter.
    pub fn single(group: usize, step: CounterStep) -> Request {
        Request { group, form: Form::Single, steps: vec![step], token: None }
    }

    /// A read of the whole group.
    pub fn read_all(group: usize) -> Request {
        let steps = (0..CELLS).map(|cell| CounterStep { cell, action: CounterAction::Read }).collect();
        Request { group, form: Form::ReadAll, steps, token: None }
    }

    /// An add that is not replied to.
    pub fn silent(group: usize, cell: usize) -> Request {
        let step = CounterStep { cell, action: CounterAction::Add(1) };
        Request { form: Form::Silent, ..Request::single(group, step) }
    }

    /// Sets a counter to a new value where it has the expected one.
    pub fn exchange(group: usize, cell: usize, expected: Option<i64>, new: i64) -> Request {
        let step = |action| CounterStep { cell, action };
        let steps = vec![step(CounterAction::Expect(expected)), step(CounterAction::Set(new))];
        Request { group, form: Form::Exchange, steps, token: None }
    }

    /// Whether it changes nothing.
    pub fn is_read(&self) -> bool {
        self.steps.iter().all(|step| step.action == CounterAction::Read)
    }

    /// Whether HTTP has this request.
    pub fn is_for_http(&self) -> bool {
        use CounterAction::{Add, Delete, Read, Reset};
        self.form == Form::Single && matches!(self.steps[0].action, Add(_) | Read | Reset | Delete)
    }

    /// The name of one of its counters.
    pub fn name(&self, cell: usize) -> String {
        counter_name(self.group, cell)
    }

    /// The commands it is sent as, and how many replies come before its own.
    pub fn commands(&self, client: usize) -> (Vec<Vec<String>>, usize) {
        let (mut commands, before): (Vec<Vec<String>>, usize) = match self.form {
            Form::Single => (vec![self.command(&self.steps[0])], 0),
            Form::Silent => (vec![words(&["CLIENT", "REPLY", "SKIP"]), self.command(&self.steps[0])], 0),
            Form::ReadAll => {
                let names = self.steps.iter().map(|step| self.name(step.cell));
                (vec![std::iter::once("MGET".to_owned()).chain(names).collect()], 0)
            }
            Form::SetAll => {
                let pairs = self.steps.iter().flat_map(|step| {
                    let CounterAction::Set(value) = step.action else { unreachable!("MSET sets") };
                    [self.name(step.cell), value.to_string()]
                });
                (vec![std::iter::once("MSET".to_owned()).chain(pairs).collect()], 0)
            }
            Form::Transaction | Form::Exchange => {
                let queued: Vec<_> = self.commanded().map(|step| self.command(step)).collect();
                let before = queued.len() + 1;
                let all = std::iter::once(words(&["MULTI"])).chain(queued).chain(std::iter::once(words(&["EXEC"])));
                (all.collect(), before)
            }
        };
        if let Some(token) = self.token {
            let last = commands.last_mut().expect("a request is at least one command");
            last.extend(["IDMP".to_owned(), producer(client), token.to_string()]);
        }
        (commands, before)
    }

    /// What a reply over RESP says.
    pub fn answer(&self, value: &Value) -> Answer {
        if let Value::Error(text) = value {
            return match REFUSALS.iter().any(|refusal| text.starts_with(refusal)) {
                true => Answer::Refused,
                false => self.wrong(value),
            };
        }
        let replies = match self.form {
            Form::Single => read_reply(&self.steps[0], value).map(|reply| vec![reply]),
            Form::Silent => return self.wrong(value),
            Form::SetAll => (value.bytes() == Some(b"OK")).then(|| vec![Reply::Ok; self.steps.len()]),
            Form::Exchange | Form::Transaction if value.is_nil() => return Answer::Prevented,
            Form::ReadAll | Form::Transaction | Form::Exchange => {
                let steps: Vec<&CounterStep> = self.commanded().collect();
                let elements = value.elements();
                let replies = steps.iter().zip(elements).map(|(step, value)| read_reply(step, value));
                replies.collect::<Option<Vec<Reply>>>().filter(|replies| replies.len() == steps.len()).map(
                    |mut replies| {
                        // What was expected is not answered.
                        if self.form == Form::Exchange {
                            replies.insert(0, Reply::Ok);
                        }
                        replies
                    },
                )
            }
        };
        replies.map_or_else(|| self.wrong(value), Answer::Replies)
    }

    /// The steps that are commands.
    fn commanded(&self) -> impl Iterator<Item = &CounterStep> {
        self.steps.iter().filter(|step| !matches!(step.action, CounterAction::Expect(_)))
    }

    fn wrong(&self, value: &Value) -> Answer {
        Answer::Wrong(format!("{self:?} was answered {value:?}"))
    }

    fn takes_token(&self) -> bool {
        match self.form {
            Form::Single => self.steps[0].action != CounterAction::Read,
            Form::SetAll => true,
            Form::Transaction | Form::ReadAll | Form::Silent | Form::Exchange => false,
        }
    }

    fn command(&self, step: &CounterStep) -> Vec<String> {
        let name = &self.name(step.cell);
        let millis = |nanos: u64| (nanos / MILLISECOND).to_string();
        match step.action {
            CounterAction::Add(1) => words(&["INCR", name]),
            CounterAction::Add(delta) => words(&["INCRBY", name, &delta.to_string()]),
            CounterAction::Read => words(&["GET", name]),
            CounterAction::Set(value) => words(&["SET", name, &value.to_string()]),
            CounterAction::SetFor(value, nanos) => words(&["SET", name, &value.to_string(), "PX", &millis(nanos)]),
            CounterAction::Swap(value) => words(&["GETSET", name, &value.to_string()]),
            CounterAction::Reset => words(&["QUIPU.RESET", name]),
            CounterAction::Take => words(&["GETDEL", name]),
            CounterAction::Delete => words(&["DEL", name]),
            CounterAction::ExpireIn(nanos) => words(&["PEXPIRE", name, &millis(nanos)]),
            CounterAction::Persist => words(&["PERSIST", name]),
            CounterAction::Expect(_) => unreachable!("an expectation is no command"),
        }
    }
}

/// The name of a counter.
pub fn counter_name(group: usize, cell: usize) -> String {
    format!("group{group}:{cell}")
}

/// What a client calls itself in its tokens.
pub fn producer(client: usize) -> String {
    format!("client-{client}")
}

fn read_reply(step: &CounterStep, value: &Value) -> Option<Reply> {
    use CounterAction::{Add, Delete, Expect, ExpireIn, Persist, Read, Reset, Set, SetFor, Swap, Take};
    match step.action {
        Add(_) | Reset | Delete | ExpireIn(_) | Persist => match value {
            Value::Integer(number) => Some(Reply::Integer(*number)),
            _ => None,
        },
        Read | Swap(_) | Take => match value {
            Value::Null => Some(Reply::Value(None)),
            other => other.number().map(|number| Reply::Value(Some(number))),
        },
        Set(_) | SetFor(..) => (value.bytes() == Some(b"OK")).then_some(Reply::Ok),
        Expect(_) => None,
    }
}

/// The other groups have transactions and expiry without a crowd.
fn draw_group(rng: &SeededRng) -> usize {
    if rng.chance(40) { BUSY_GROUP } else { rng.below(GROUPS) }
}

fn draw_step(rng: &SeededRng) -> CounterStep {
    CounterStep { cell: rng.below(CELLS), action: draw_action(rng) }
}

fn draw_action(rng: &SeededRng) -> CounterAction {
    let value = rng.between(-100..=100);
    match rng.below(100) {
        0..40 => CounterAction::Add(draw_delta(rng)),
        40..66 => CounterAction::Read,
        66..71 => CounterAction::Set(value),
        71..75 => CounterAction::SetFor(value, draw_lifetime(rng)),
        75..80 => CounterAction::Swap(value),
        80..83 => CounterAction::Reset,
        83..86 => CounterAction::Take,
        86..91 => CounterAction::Delete,
        91..97 => CounterAction::ExpireIn(draw_lifetime(rng)),
        _ => CounterAction::Persist,
    }
}

fn draw_delta(rng: &SeededRng) -> i64 {
    *rng.pick(&[1, 1, 1, 5, -3, 100])
}

/// Over within the life, within the history, or never.
fn draw_lifetime(rng: &SeededRng) -> u64 {
    let millis = match rng.below(3) {
        0 => rng.between(1..=30),
        1 => rng.between(100..=600),
        _ => 100_000,
    };
    millis.unsigned_abs() * MILLISECOND
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}
