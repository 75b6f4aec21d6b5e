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

use quipu_engine::{Load, LoadOutcome, Turn, Wait, WatchedVersion};
use quipu_model::{Command, Millis, Reply};
use quipu_protocol::command::{ClientReplyMode, Flag, OnceRequest};
use quipu_protocol::{Args, DecodeError, Decoder, Request, RespVersion, RespWriter, Spec, lookup};

use super::error::ConnectionError;
use super::transaction::Transaction;
use super::unreplied_adds::UnrepliedAdds;
use super::{execute, item_commands, simple_commands};
use crate::backup::BackupReply;
use crate::cached_clock;
use crate::clients::ClientInfo;
use crate::server_state::{ServerState, add_stat};

/// All that a connection may say before it has given the password, right and wrong guesses included.
const UNAUTHENTICATED_BYTES_MAX: usize = quipu_protocol::Limits::UNAUTHENTICATED.frame_bytes_max as usize;

/// The work of one turn, in arguments of commands: 2,048 increments, which is what a full read brings and takes about a
/// millisecond. What comes after it waits for the next turn, so that a pipeline, however long, keeps neither the others of its worker
/// nor the records of its turn waiting.
const TURN_WORK_MAX: usize = 4_096;

/// How a turn ended. Small, since it is handed on at every turn: what is rare is in a box.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum TurnEnd {
    /// Every whole command was run.
    Idle,
    /// The output is full or the turn's work is done: send, let others go first, then go on with the same input.
    Yield,
    /// The next command needs counters that are at rest: send, load them, then go on with the same input.
    Load(Box<Load>),
    /// The next command is a backup: send, make it, then go on with the same input.
    Backup(Box<Path>),
    /// Send, then close.
    Close,
}

/// The state of one connection.
pub(super) struct Session {
    pub(super) server: Arc<ServerState>,
    pub(super) client: Arc<ClientInfo>,
    pub(super) state: SessionState,
    consumed: usize,
    unreplied_adds: UnrepliedAdds,
    /// What loading came to for the command that comes next, if that is a reply already.
    loaded: Option<(Reply, Wait)>,
    /// Rows that it has waited for were asked for then, or later: the first time that it had to.
    rows_since: Option<std::time::Duration>,
    /// What became of the backup that the command which comes next has asked for.
    backup_reply: Option<BackupReply>,
    unauthenticated_bytes: usize,
    /// How much of the input the connection has kept since the last turn.
    kept_bytes: usize,
    published: PublishedInfo,
}

/// What others were told of a client.
#[derive(Default, PartialEq, Eq)]
struct PublishedInfo {
    active: u64,
    /// Where its name is: names are the table's own.
    command: usize,
    version: RespVersion,
    queued: Option<usize>,
    watching: usize,
}

/// When a client was last active is told to the tenth of a second; it is shown in seconds.
const ACTIVE_STEP_MILLIS: u64 = 100;

/// All that RESET sets back.
#[derive(Default)]
pub(super) struct SessionState {
    pub version: RespVersion,
    pub authenticated: bool,
    pub name: String,
    pub lib_name: String,
    pub lib_version: String,
    pub reply_filter: ReplyFilter,
    pub transaction: Option<Transaction>,
    pub watches: Vec<WatchedVersion>,
    pub command: &'static str,
}

/// Which replies the client wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum ReplyFilter {
    #[default]
    All,
    None,
    SkipNext,
    /// While the command is served that comes after SKIP.
    SkipCurrent,
}

impl ReplyFilter {
    /// What CLIENT REPLY makes of it. Who hears nothing has nothing to skip.
    pub fn with_mode(self, mode: ClientReplyMode) -> ReplyFilter {
        match (mode, self) {
            (ClientReplyMode::On, _) => ReplyFilter::All,
            (ClientReplyMode::Off, _) | (ClientReplyMode::Skip, ReplyFilter::None) => ReplyFilter::None,
            (ClientReplyMode::Skip, _) => ReplyFilter::SkipNext,
        }
    }
}

impl Session {
    pub fn new(client: Arc<ClientInfo>, server: Arc<ServerState>) -> Session {
        let state =
            SessionState { authenticated: server.password.is_none(), command: "NULL", ..SessionState::default() };
        let (loaded, backup_reply) = (None, None);
        Session {
            server,
            client,
            state,
            consumed: 0,
            unreplied_adds: UnrepliedAdds::default(),
            loaded,
            rows_since: None,
            backup_reply,
            unauthenticated_bytes: 0,
            kept_bytes: 0,
            published: PublishedInfo::default(),
        }
    }

    /// Runs the whole commands of the input in one turn of the engine, as many as a turn may.
    pub fn run_turn(
        &mut self,
        server: &ServerState,
        decoder: &mut Decoder,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> (Wait, TurnEnd) {
        let mut turn = server.engine.turn_at(cached_clock::now(&server.engine));
        let (mut commands, mut work) = (0, 0);
        // So many commands have been found to need the long way, or come behind one that does.
        let mut general_path_left = 0;
        self.consumed = 0;
        let end = loop {
            if out.len() >= server.limits.output_bytes_max || work >= TURN_WORK_MAX {
                break TurnEnd::Yield;
            }
            if !self.state.authenticated && out.len() > UNAUTHENTICATED_BYTES_MAX {
                // It is not told more than it may say, either.
                break TurnEnd::Close;
            }
            let limits = match self.state.authenticated {
                true => server.limits.frame,
                false => quipu_protocol::Limits::UNAUTHENTICATED,
            };
            if self.consumed == input.len() {
                // Whatever the decoder has seen of the next command, it waits for more of it.
                break TurnEnd::Idle;
            }
            if general_path_left == 0 && decoder.is_fresh() && self.takes_simple() && turn.takes_simple() {
                let (rest, version) = (&input[self.consumed..], self.state.version);
                let mut counts = simple_commands::run_simple(rest, &limits, &mut turn, out, version, &server.hot_keys);
                if counts.found == 0 {
                    counts = item_commands::run_items(rest, &limits, &mut turn, out, version, &server.hot_keys);
                }
                self.consumed += counts.bytes;
                commands += counts.commands as u64;
                work += counts.work;
                self.state.command = counts.command.unwrap_or(self.state.command);
                server.stats.record_overflows(counts.errors);
                // What was found behind one that needs the long way is not looked for again.
                general_path_left = counts.found - counts.commands;
                if general_path_left == 0 && counts.found > 0 {
                    continue;
                }
            }
            general_path_left = general_path_left.saturating_sub(1);
            match decoder.decode(&input[self.consumed..], &limits) {
                Ok(None) => break TurnEnd::Idle,
                Ok(Some(frame)) => {
                    self.consumed += frame.bytes;
                    if frame.args.is_empty() {
                        // Nothing but an empty line, and yet a client can send many.
                        work += 1;
                        continue;
                    }
                    let bytes = frame.bytes;
                    let (end, command_work) = self.serve_command(&frame.args, &mut turn, out);
                    match end {
                        TurnEnd::Load(mut load) => {
                            self.consumed -= bytes;
                            self.prefetch_rest(&input[self.consumed + bytes..], &limits, &mut turn, &mut load);
                            break TurnEnd::Load(load);
                        }
                        TurnEnd::Backup(dir) => {
                            self.consumed -= bytes;
                            break TurnEnd::Backup(dir);
                        }
                        TurnEnd::Close => {
                            commands += 1;
                            break TurnEnd::Close;
                        }
                        TurnEnd::Idle | TurnEnd::Yield => commands += 1,
                    }
                    work += command_work;
                }
                Err(error) => {
                    self.refuse_malformed(error, out);
                    break TurnEnd::Close;
                }
            }
        };
        if self.state.authenticated {
            self.unauthenticated_bytes = 0;
        }
        let now = turn.now();
        let wait = turn.finish();
        decoder.release_buffer();
        add_stat(&server.stats.commands, commands);
        self.publish_info(now);
        if end == TurnEnd::Idle && self.exceeds_input_limit() {
            RespWriter::new(out, self.state.version).error(&ConnectionError::NoAuth.to_string());
            return (wait, TurnEnd::Close);
        }
        (wait, end)
    }

    /// Tells whoever lists clients what this one does.
    fn publish_info(&mut self, now: Millis) {
        let SessionState { command, version, transaction, watches, .. } = &self.state;
        let (queued, watching) = (transaction.as_ref().map(Transaction::len), watches.len());
        let (active, location) = (now.0 / ACTIVE_STEP_MILLIS, command.as_ptr().addr());
        let published = PublishedInfo { active, command: location, version: *version, queued, watching };
        // Nearly always the same as the last time.
        if self.published != published {
            let mut details = self.client.details();
            (details.last_active, details.command, details.version) = (now, command, *version);
            (details.queued, details.watching) = (queued, watching);
            self.published = published;
        }
    }

    /// Whether commands may be run many at a time: nothing is different about the next one, or about its reply.
    pub fn takes_simple(&self) -> bool {
        let SessionState { authenticated, reply_filter, transaction, .. } = &self.state;
        *authenticated
            && *reply_filter == ReplyFilter::All
            && transaction.is_none()
            && self.loaded.is_none()
            && self.rows_since.is_none()
            && !self.unreplied_adds.is_unflushed()
    }

    /// Commands of this client were run together with those of others.
    pub fn record_batch(&mut self, command: Option<&'static str>, now: Millis) {
        self.state.command = command.unwrap_or(self.state.command);
        self.publish_info(now);
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

    pub fn record_received(&mut self, bytes: usize) {
        if !self.state.authenticated {
            self.unauthenticated_bytes = self.unauthenticated_bytes.saturating_add(bytes);
        }
    }

    pub fn record_kept(&mut self, bytes: usize) {
        // Nearly always nothing, as the last time.
        if std::mem::replace(&mut self.kept_bytes, bytes) != bytes {
            self.client.details().input_bytes = bytes;
        }
    }

    /// Carries out one command and answers it; returns how much work that was.
    fn serve_command(&mut self, args: &Args<'_>, turn: &mut Turn<'_>, out: &mut Vec<u8>) -> (TurnEnd, usize) {
        let (before, reply_filter) = (out.len(), self.state.reply_filter);
        if reply_filter == ReplyFilter::SkipNext {
            self.state.reply_filter = ReplyFilter::SkipCurrent;
        }
        let spec = lookup(args);
        let work = args.len() + spec.as_ref().map_or(0, |spec| self.extra_work(spec));
        let end = match spec {
            Ok(spec) => self.run_or_queue(spec, args, turn, out),
            Err(_) if !self.state.authenticated => self.refuse_unauthenticated(out),
            Err(error) => self.refuse(&error, out),
        };
        if let TurnEnd::Load(_) | TurnEnd::Backup(_) = end {
            // It was not run: nothing has changed, and nothing is said.
            out.truncate(before);
            self.state.reply_filter = reply_filter;
            return (end, work);
        }
        self.rows_since = None;
        if out.get(before) == Some(&b'-') {
            add_stat(&self.server.stats.errors, 1);
        }
        match self.state.reply_filter {
            ReplyFilter::All | ReplyFilter::SkipNext => {}
            ReplyFilter::None => out.truncate(before),
            ReplyFilter::SkipCurrent => {
                out.truncate(before);
                self.state.reply_filter = ReplyFilter::All;
            }
        }
        if out.len() > before {
            self.unreplied_adds.flush(turn);
        }
        (end, work)
    }

    /// Adds to a load what the commands behind the one that needs it will need: so that a pipeline waits once, not once a command.
    fn prefetch_rest(&self, rest: &[u8], limits: &quipu_protocol::Limits, turn: &mut Turn<'_>, load: &mut Load) {
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
                Ok(Request::Counter(request)) => turn.prefetch(&request.command, load),
                Ok(Request::SetMany(commands) | Request::Once(OnceRequest { commands, .. })) => {
                    commands.iter().for_each(|command| turn.prefetch(command, load));
                }
                _ => {}
            }
        }
    }

    /// Takes what loading came to: a reply that the command gets when it is run again, or nothing, and then it can run.
    pub fn set_loaded(&mut self, loaded: LoadOutcome) {
        self.loaded = match loaded {
            LoadOutcome::Retry | LoadOutcome::Unknown => None,
            LoadOutcome::Fetched(since) => {
                self.rows_since.get_or_insert(since);
                None
            }
            LoadOutcome::Reply(reply, wait) => Some((reply, wait)),
            LoadOutcome::Refused(refusal) => Some((Reply::Refused(refusal), Wait::default())),
        };
    }

    /// Takes what became of the backup, for when its command is run again.
    pub fn set_backup_reply(&mut self, outcome: BackupReply) {
        self.backup_reply = Some(outcome);
    }

    /// What became of the backup that the command about to run has asked for; `None`: it has not been made yet.
    pub fn take_backup_reply(&mut self) -> Option<BackupReply> {
        self.backup_reply.take()
    }

    /// The reply that loading has brought for the command that is about to run.
    pub fn take_loaded(&mut self, turn: &mut Turn<'_>) -> Option<Reply> {
        if let Some(since) = self.rows_since {
            turn.set_rows_since(since);
        }
        let (reply, wait) = self.loaded.take()?;
        turn.add_wait(wait);
        Some(reply)
    }

    /// Runs a command; one that only adds, for a client that does not want to know, is counted.
    pub fn run_command(&mut self, command: &Command<'_>, turn: &mut Turn<'_>) -> Result<Reply, Load> {
        match (command, self.state.reply_filter) {
            (Command::Add { name, delta, shard_key: None }, ReplyFilter::None | ReplyFilter::SkipCurrent) => {
                self.unreplied_adds.add(&self.server, turn, *name, *delta)
            }
            _ => turn.run(command),
        }
    }

    /// What a command takes beyond its arguments.
    fn extra_work(&self, spec: &Spec) -> usize {
        match &self.state.transaction {
            Some(transaction) if spec.name == "exec" => transaction.work,
            None if spec.has(Flag::Slow) => TURN_WORK_MAX,
            _ => 0,
        }
    }

    fn run_or_queue(
        &mut self,
        spec: &'static Spec,
        args: &Args<'_>,
        turn: &mut Turn<'_>,
        out: &mut Vec<u8>,
    ) -> TurnEnd {
        self.state.command = spec.name;
        if !self.state.authenticated && !spec.has(Flag::NoAuth) {
            return self.refuse_unauthenticated(out);
        }
        let Some(transaction) = &mut self.state.transaction else {
            return execute::execute_now(self, spec, args, turn, out);
        };
        match spec.name {
            "exec" | "discard" | "multi" | "watch" | "quit" | "reset" => {
                execute::execute_now(self, spec, args, turn, out)
            }
            _ if spec.has(Flag::Walk) => {
                let name = spec.name.to_ascii_uppercase();
                self.refuse(&ConnectionError::WalkInMulti { name }, out)
            }
            _ if spec.has_identity(args) => self.refuse(&ConnectionError::TokenInMulti, out),
            _ if spec.has(Flag::NoMulti) => self.refuse(&ConnectionError::NotInMulti, out),
            _ => {
                // What takes long takes the whole turn of its EXEC, too.
                let work = if spec.has(Flag::Slow) { TURN_WORK_MAX } else { args.len() };
                match transaction.push(spec, args, work, &self.server.limits) {
                    Ok(()) => RespWriter::new(out, self.state.version).simple("QUEUED"),
                    Err(full) => RespWriter::new(out, self.state.version).error(&full.to_string()),
                }
                TurnEnd::Idle
            }
        }
    }

    /// Refuses whoever has not given the password, and closes: HELLO or AUTH come first from those who have it.
    fn refuse_unauthenticated(&mut self, out: &mut Vec<u8>) -> TurnEnd {
        self.refuse(&ConnectionError::NoAuth, out);
        TurnEnd::Close
    }

    /// Whether the connection may do everything.
    pub fn is_authenticated(&self) -> bool {
        self.state.authenticated
    }

    /// Refuses a command before it is one; a transaction does not survive that.
    fn refuse(&mut self, error: &dyn std::error::Error, out: &mut Vec<u8>) -> TurnEnd {
        if let Some(transaction) = &mut self.state.transaction {
            transaction.spoil();
        }
        RespWriter::new(out, self.state.version).error(&error.to_string());
        TurnEnd::Idle
    }

    fn refuse_malformed(&mut self, error: DecodeError, out: &mut Vec<u8>) {
        add_stat(&self.server.stats.errors, 1);
        if error == DecodeError::CrossProtocol {
            // A page that made its browser talk to us cannot read this: it is of another origin.
            out.clear();
            out.extend_from_slice(http_reply(self.server.http).as_bytes());
        } else if self.state.reply_filter == ReplyFilter::All {
            RespWriter::new(out, self.state.version).error(&format!("ERR {error}"));
        }
    }

    fn exceeds_input_limit(&self) -> bool {
        !self.state.authenticated && self.unauthenticated_bytes > UNAUTHENTICATED_BYTES_MAX
    }
}

/// What a client hears that speaks HTTP to the RESP port.
fn http_reply(http: Option<SocketAddr>) -> String {
    let location = match http {
        Some(address) => format!("HTTP is served on {address}."),
        None => "HTTP is off; `quipu serve --http ADDRESS` turns it on.".to_owned(),
    };
    let body = format!("This is the RESP port of Quipu, for Redis clients. {location} Nothing was executed.\n");
    format!(
        "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\n\
         X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}
