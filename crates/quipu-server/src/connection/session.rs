//! What a connection remembers between commands, and what it does with the next one.
//!
//! In: bytes. Out: replies, in order, and what they must wait for.
//!
//! Invariants:
//! - one reply per command, in order, unless the client asked for fewer;
//! - before the password, only what `Flag::NoAuth` marks is carried out, and no more than 16 KiB are listened to.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use quipu_engine::{Load, Loaded, Turn, Wait, Watch};
use quipu_model::{Command, Millis, Reply};
use quipu_protocol::command::{Flag, OnceRequest, ReplyMode};
use quipu_protocol::{Args, DecodeError, Decoder, Request, Spec, Version, Writer, lookup};

use super::error::ConnectionError;
use super::silent::Silent;
use super::transaction::Transaction;
use super::{briefs, execute, observes};
use crate::backup::Outcome;
use crate::clients::Client;
use crate::moment;
use crate::shared::{Shared, tally};

/// All that a connection may say before it has given the password, right and wrong guesses included.
const UNAUTHENTICATED_BYTES_MAX: usize = quipu_protocol::Limits::UNAUTHENTICATED.frame_bytes_max as usize;

/// The work of one turn, in arguments of commands: 2,048 increments, which is what a full read brings and takes about a
/// millisecond. What comes after it waits for the next turn, so that a pipeline, however long, keeps neither the others of its worker
/// nor the records of its turn waiting.
const TURN_WORK_MAX: usize = 4_096;

/// How a turn ended. Small, since it is handed on at every turn: what is rare is in a box.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Every whole command was run.
    Waits,
    /// The output is full or the turn's work is done: send, let others go first, then go on with the same input.
    Held,
    /// The next command needs counters that are at rest: send, load them, then go on with the same input.
    Loads(Box<Load>),
    /// The next command is a backup: send, make it, then go on with the same input.
    BacksUp(Box<Path>),
    /// Send, then close.
    Closes,
}

/// The state of one connection.
pub(super) struct Session {
    pub(super) shared: Arc<Shared>,
    pub(super) client: Arc<Client>,
    pub(super) state: State,
    consumed: usize,
    silent: Silent,
    /// What loading came to for the command that comes next, if that is a reply already.
    loaded: Option<(Reply, Wait)>,
    /// Rows that it has waited for were asked for then, or later: the first time that it had to.
    rows_since: Option<std::time::Duration>,
    /// What became of the backup that the command which comes next has asked for.
    backed_up: Option<Outcome>,
    unauthenticated_bytes: usize,
    /// How much of the input the connection has kept since the last turn.
    kept: usize,
    told: Told,
}

/// What others were told of a client.
#[derive(Default, PartialEq, Eq)]
struct Told {
    active: u64,
    /// Where its name is: names are the table's own.
    command: usize,
    version: Version,
    queued: Option<usize>,
    watching: usize,
}

/// When a client was last active is told to the tenth of a second; it is shown in seconds.
const ACTIVE_STEP_MILLIS: u64 = 100;

/// All that RESET sets back.
#[derive(Default)]
pub(super) struct State {
    pub version: Version,
    pub authenticated: bool,
    pub name: String,
    pub lib_name: String,
    pub lib_version: String,
    pub replies: Replies,
    pub transaction: Option<Transaction>,
    pub watches: Vec<Watch>,
    pub command: &'static str,
}

/// Which replies the client wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Replies {
    #[default]
    All,
    None,
    NotTheNext,
    /// While the command is served that comes after SKIP.
    NotThis,
}

impl Replies {
    /// What CLIENT REPLY makes of it. Who hears nothing has nothing to skip.
    pub fn then(self, mode: ReplyMode) -> Replies {
        match (mode, self) {
            (ReplyMode::On, _) => Replies::All,
            (ReplyMode::Off, _) | (ReplyMode::Skip, Replies::None) => Replies::None,
            (ReplyMode::Skip, _) => Replies::NotTheNext,
        }
    }
}

impl Session {
    pub fn new(client: Arc<Client>, shared: Arc<Shared>) -> Session {
        let state = State { authenticated: shared.password.is_none(), command: "NULL", ..State::default() };
        let (loaded, backed_up) = (None, None);
        Session {
            shared,
            client,
            state,
            consumed: 0,
            silent: Silent::default(),
            loaded,
            rows_since: None,
            backed_up,
            unauthenticated_bytes: 0,
            kept: 0,
            told: Told::default(),
        }
    }

    /// Runs the whole commands of the input in one turn of the engine, as many as a turn may.
    pub fn turn(&mut self, shared: &Shared, decoder: &mut Decoder, input: &[u8], out: &mut Vec<u8>) -> (Wait, Ending) {
        let mut turn = shared.engine.turn_at(moment::now(&shared.engine));
        let (mut commands, mut work) = (0, 0);
        // So many commands have been found to need the long way, or come behind one that does.
        let mut briefs_in = 0;
        self.consumed = 0;
        let ending = loop {
            if out.len() >= shared.limits.output_bytes_max || work >= TURN_WORK_MAX {
                break Ending::Held;
            }
            if !self.state.authenticated && out.len() > UNAUTHENTICATED_BYTES_MAX {
                // It is not told more than it may say, either.
                break Ending::Closes;
            }
            let limits = match self.state.authenticated {
                true => shared.limits.frame,
                false => quipu_protocol::Limits::UNAUTHENTICATED,
            };
            if self.consumed == input.len() {
                // Whatever the decoder has seen of the next command, it waits for more of it.
                break Ending::Waits;
            }
            if briefs_in == 0 && decoder.is_fresh() && self.takes_briefs() && turn.takes_briefs() {
                let (rest, version) = (&input[self.consumed..], self.state.version);
                let mut run = briefs::run(rest, &limits, &mut turn, out, version, &shared.hot);
                if run.found == 0 {
                    run = observes::run(rest, &limits, &mut turn, out, version, &shared.hot);
                }
                self.consumed += run.bytes;
                commands += run.commands as u64;
                work += run.work;
                self.state.command = run.command.unwrap_or(self.state.command);
                shared.tally.note_overflows(run.errors);
                // What was found behind one that needs the long way is not looked for again.
                briefs_in = run.found - run.commands;
                if briefs_in == 0 && run.found > 0 {
                    continue;
                }
            }
            briefs_in = briefs_in.saturating_sub(1);
            match decoder.decode(&input[self.consumed..], &limits) {
                Ok(None) => break Ending::Waits,
                Ok(Some(frame)) => {
                    self.consumed += frame.bytes;
                    if frame.args.is_empty() {
                        // Nothing but an empty line, and yet a client can send many.
                        work += 1;
                        continue;
                    }
                    let bytes = frame.bytes;
                    let (ending, worked) = self.serve(&frame.args, &mut turn, out);
                    match ending {
                        Ending::Loads(mut load) => {
                            self.consumed -= bytes;
                            self.foresee(&input[self.consumed + bytes..], &limits, &mut turn, &mut load);
                            break Ending::Loads(load);
                        }
                        Ending::BacksUp(dir) => {
                            self.consumed -= bytes;
                            break Ending::BacksUp(dir);
                        }
                        Ending::Closes => {
                            commands += 1;
                            break Ending::Closes;
                        }
                        Ending::Waits | Ending::Held => commands += 1,
                    }
                    work += worked;
                }
                Err(error) => {
                    self.refuse_bytes(error, out);
                    break Ending::Closes;
                }
            }
        };
        if self.state.authenticated {
            self.unauthenticated_bytes = 0;
        }
        let now = turn.now();
        let wait = turn.finish();
        decoder.let_go();
        tally(&shared.tally.commands, commands);
        self.tell_others(now);
        if ending == Ending::Waits && self.has_said_too_much() {
            Writer::new(out, self.state.version).error(&ConnectionError::NoAuth.to_string());
            return (wait, Ending::Closes);
        }
        (wait, ending)
    }

    /// Tells whoever lists clients what this one does.
    fn tell_others(&mut self, now: Millis) {
        let State { command, version, transaction, watches, .. } = &self.state;
        let (queued, watching) = (transaction.as_ref().map(Transaction::len), watches.len());
        let (active, place) = (now.0 / ACTIVE_STEP_MILLIS, command.as_ptr().addr());
        let told = Told { active, command: place, version: *version, queued, watching };
        // Nearly always the same as the last time.
        if self.told != told {
            let mut details = self.client.details();
            (details.active, details.command, details.version) = (now, command, *version);
            (details.queued, details.watching) = (queued, watching);
            self.told = told;
        }
    }

    /// Whether commands may be run many at a time: nothing is different about the next one, or about its reply.
    pub fn takes_briefs(&self) -> bool {
        let State { authenticated, replies, transaction, .. } = &self.state;
        *authenticated
            && *replies == Replies::All
            && transaction.is_none()
            && self.loaded.is_none()
            && self.rows_since.is_none()
            && !self.silent.is_unflushed()
    }

    /// Commands of this client were run together with those of others.
    pub fn note_ran(&mut self, command: Option<&'static str>, now: Millis) {
        self.state.command = command.unwrap_or(self.state.command);
        self.tell_others(now);
    }

    /// How many bytes of the input the last turn used.
    pub fn consumed(&self) -> usize {
        self.consumed
    }

    /// How much may be read at once: before the password, what is left of the bound and the byte that breaks it.
    pub fn read_bytes_max(&self) -> usize {
        match self.state.authenticated {
            true => usize::MAX,
            false => UNAUTHENTICATED_BYTES_MAX.saturating_sub(self.unauthenticated_bytes) + 1,
        }
    }

    pub fn note_received(&mut self, bytes: usize) {
        if !self.state.authenticated {
            self.unauthenticated_bytes = self.unauthenticated_bytes.saturating_add(bytes);
        }
    }

    pub fn note_kept(&mut self, bytes: usize) {
        // Nearly always nothing, as the last time.
        if std::mem::replace(&mut self.kept, bytes) != bytes {
            self.client.details().input_bytes = bytes;
        }
    }

    /// Carries out one command and answers it; returns how much work that was.
    fn serve(&mut self, args: &Args<'_>, turn: &mut Turn<'_>, out: &mut Vec<u8>) -> (Ending, usize) {
        let (before, replies) = (out.len(), self.state.replies);
        if replies == Replies::NotTheNext {
            self.state.replies = Replies::NotThis;
        }
        let spec = lookup(args);
        let work = args.len() + spec.as_ref().map_or(0, |spec| self.work(spec));
        let ending = match spec {
            Ok(spec) => self.answer(spec, args, turn, out),
            Err(_) if !self.state.authenticated => self.refuse_stranger(out),
            Err(error) => self.refuse(&error, out),
        };
        if let Ending::Loads(_) | Ending::BacksUp(_) = ending {
            // It was not run: nothing has changed, and nothing is said.
            out.truncate(before);
            self.state.replies = replies;
            return (ending, work);
        }
        self.rows_since = None;
        if out.get(before) == Some(&b'-') {
            tally(&self.shared.tally.errors, 1);
        }
        match self.state.replies {
            Replies::All | Replies::NotTheNext => {}
            Replies::None => out.truncate(before),
            Replies::NotThis => {
                out.truncate(before);
                self.state.replies = Replies::All;
            }
        }
        if out.len() > before {
            self.silent.flush(turn);
        }
        (ending, work)
    }

    /// Adds to a load what the commands behind the one that needs it will need: so that a pipeline waits once, not once a command.
    fn foresee(&self, rest: &[u8], limits: &quipu_protocol::Limits, turn: &mut Turn<'_>, load: &mut Load) {
        // What waits for a walk or for memory brings nothing back.
        if self.state.transaction.is_some() || !matches!(load, Load::Names(_) | Load::Rows(_)) {
            return;
        }
        // A decoder of its own: the session's remembers how far it has come in a command that is not whole.
        let (mut decoder, mut at) = (Decoder::default(), 0);
        for _ in 0..TURN_WORK_MAX {
            let Ok(Some(frame)) = decoder.decode(&rest[at..], limits) else { return };
            at += frame.bytes;
            match lookup(&frame.args).and_then(|spec| spec.parse(&frame.args)) {
                Ok(Request::Counter(request)) => turn.foresee(&request.command, load),
                Ok(Request::Together(commands) | Request::Once(OnceRequest { commands, .. })) => {
                    commands.iter().for_each(|command| turn.foresee(command, load));
                }
                _ => {}
            }
        }
    }

    /// Takes what loading came to: a reply that the command gets when it is run again, or nothing, and then it can run.
    pub fn note_loaded(&mut self, loaded: Loaded) {
        self.loaded = match loaded {
            Loaded::Again | Loaded::Unknown => None,
            Loaded::Fetched(since) => {
                self.rows_since.get_or_insert(since);
                None
            }
            Loaded::Reply(reply, wait) => Some((reply, wait)),
            Loaded::Refused(refusal) => Some((Reply::Refused(refusal), Wait::default())),
        };
    }

    /// Takes what became of the backup, for when its command is run again.
    pub fn note_backed_up(&mut self, outcome: Outcome) {
        self.backed_up = Some(outcome);
    }

    /// What became of the backup that the command about to run has asked for; `None`: it has not been made yet.
    pub fn take_backed_up(&mut self) -> Option<Outcome> {
        self.backed_up.take()
    }

    /// The reply that loading has brought for the command that is about to run.
    pub fn take_loaded(&mut self, turn: &mut Turn<'_>) -> Option<Reply> {
        if let Some(since) = self.rows_since {
            turn.rows_since(since);
        }
        let (reply, wait) = self.loaded.take()?;
        turn.wait_also(wait);
        Some(reply)
    }

    /// Runs a command; one that only adds, for a client that does not want to know, is counted.
    pub fn run(&mut self, command: &Command<'_>, turn: &mut Turn<'_>) -> Result<Reply, Load> {
        match (command, self.state.replies) {
            (Command::Add { name, delta, shard_key: None }, Replies::None | Replies::NotThis) => {
                self.silent.add(&self.shared, turn, *name, *delta)
            }
            _ => turn.run(command),
        }
    }

    /// What a command takes beyond its arguments.
    fn work(&self, spec: &Spec) -> usize {
        match &self.state.transaction {
            Some(transaction) if spec.name == "exec" => transaction.work,
            None if spec.is(Flag::Slow) => TURN_WORK_MAX,
            _ => 0,
        }
    }

    fn answer(&mut self, spec: &'static Spec, args: &Args<'_>, turn: &mut Turn<'_>, out: &mut Vec<u8>) -> Ending {
        self.state.command = spec.name;
        if !self.state.authenticated && !spec.is(Flag::NoAuth) {
            return self.refuse_stranger(out);
        }
        let Some(transaction) = &mut self.state.transaction else {
            return execute::now(self, spec, args, turn, out);
        };
        match spec.name {
            "exec" | "discard" | "multi" | "watch" | "quit" | "reset" => execute::now(self, spec, args, turn, out),
            _ if spec.is(Flag::Walk) => {
                let name = spec.name.to_ascii_uppercase();
                self.refuse(&ConnectionError::WalkInMulti { name }, out)
            }
            _ if spec.is_named(args) => self.refuse(&ConnectionError::TokenInMulti, out),
            _ if spec.is(Flag::NoMulti) => self.refuse(&ConnectionError::NotInMulti, out),
            _ => {
                // What takes long takes the whole turn of its EXEC, too.
                let work = if spec.is(Flag::Slow) { TURN_WORK_MAX } else { args.len() };
                match transaction.push(spec, args, work, &self.shared.limits) {
                    Ok(()) => Writer::new(out, self.state.version).simple("QUEUED"),
                    Err(full) => Writer::new(out, self.state.version).error(&full.to_string()),
                }
                Ending::Waits
            }
        }
    }

    /// Refuses whoever has not given the password, and closes: HELLO or AUTH come first from those who have it.
    fn refuse_stranger(&mut self, out: &mut Vec<u8>) -> Ending {
        self.refuse(&ConnectionError::NoAuth, out);
        Ending::Closes
    }

    /// Whether the connection may do everything.
    pub fn is_authenticated(&self) -> bool {
        self.state.authenticated
    }

    /// Refuses a command before it is one; a transaction does not survive that.
    fn refuse(&mut self, error: &dyn std::error::Error, out: &mut Vec<u8>) -> Ending {
        if let Some(transaction) = &mut self.state.transaction {
            transaction.spoil();
        }
        Writer::new(out, self.state.version).error(&error.to_string());
        Ending::Waits
    }

    fn refuse_bytes(&mut self, error: DecodeError, out: &mut Vec<u8>) {
        tally(&self.shared.tally.errors, 1);
        if error == DecodeError::CrossProtocol {
            // A page that made its browser talk to us cannot read this: it is of another origin.
            out.clear();
            out.extend_from_slice(http_reply(self.shared.http).as_bytes());
        } else if self.state.replies == Replies::All {
            Writer::new(out, self.state.version).error(&format!("ERR {error}"));
        }
    }

    fn has_said_too_much(&self) -> bool {
        !self.state.authenticated && self.unauthenticated_bytes > UNAUTHENTICATED_BYTES_MAX
    }
}

/// What a client hears that speaks HTTP to the RESP port.
fn http_reply(http: Option<SocketAddr>) -> String {
    let place = match http {
        Some(address) => format!("HTTP is served on {address}."),
        None => "HTTP is off; `quipu serve --http ADDRESS` turns it on.".to_owned(),
    };
    let body = format!("This is the RESP port of Quipu, for Redis clients. {place} Nothing was executed.\n");
    format!(
        "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\n\
         X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}
