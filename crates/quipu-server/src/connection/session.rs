//! Holds a connection's session state, and runs its commands.
//!
//! In: bytes. Out: replies, in order, and the position they must wait for.
//!
//! Invariants:
//! - Each command has one reply, in order, unless the client requested fewer.
//! - Before authentication only commands with `Flag::NoAuth` run, and the session reads at most 16
//!   KiB.

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

/// Most bytes that a connection may send before authentication, right and wrong guesses included.
const UNAUTHENTICATED_BYTES_MAX: usize = quipu_protocol::Limits::UNAUTHENTICATED.frame_bytes_max as usize;

/// Most work of one turn, in arguments of commands: 2,048 increments, a full read, about a
/// millisecond. Later commands wait for the next turn. So a pipeline of any length delays neither
/// the worker's other connections nor the records of its turn.
const TURN_WORK_MAX: usize = 4_096;

/// End of a turn. Small, since every turn returns it: the rare variants are boxed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum TurnEnd {
    /// Every whole command ran.
    Idle,
    /// The output is full or the turn's work is done: send, let other connections run, then
    /// continue with the same input.
    Yield,
    /// The next command needs evicted counters: send, load them, then continue with the same input.
    Load(Box<Load>),
    /// The next command is a backup: send, make it, then continue with the same input.
    Backup(Box<Path>),
    /// Send, then close.
    Close,
}

/// State of one connection.
pub(super) struct Session {
    pub(super) server: Arc<ServerState>,
    pub(super) client: Arc<ClientInfo>,
    pub(super) state: SessionState,
    consumed: usize,
    unreplied_adds: UnrepliedAdds,
    /// Reply from a load for the next command, if the load produced one.
    loaded: Option<(Reply, Wait)>,
    /// Start of the first fetch that the current command waited for; its rows are at least that
    /// fresh.
    rows_since: Option<std::time::Duration>,
    /// Outcome of the backup that the next command requested.
    backup_reply: Option<BackupReply>,
    unauthenticated_bytes: usize,
    /// Bytes of input that the connection has kept since the last turn.
    kept_bytes: usize,
    published: PublishedInfo,
}

/// Details last published for CLIENT LIST.
#[derive(Default, PartialEq, Eq)]
struct PublishedInfo {
    active: u64,
    /// Address of the command's name; the table owns the names.
    command: usize,
    version: RespVersion,
    queued: Option<usize>,
    watching: usize,
}

/// Resolution of a client's last-active time, a tenth of a second; it is shown in seconds.
const ACTIVE_STEP_MILLIS: u64 = 100;

/// State that RESET clears.
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

/// Replies that the client wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum ReplyFilter {
    #[default]
    All,
    None,
    SkipNext,
    /// While the command after SKIP is served.
    SkipCurrent,
}

impl ReplyFilter {
    /// Applies CLIENT REPLY. With replies off there is nothing to skip.
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

    /// Runs the whole commands of the input in one turn of the engine, up to the turn's bound.
    pub fn run_turn(
        &mut self,
        server: &ServerState,
        decoder: &mut Decoder,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> (Wait, TurnEnd) {
        let mut turn = server.engine.turn_at(cached_clock::now(&server.engine));
        let (mut commands, mut work) = (0, 0);
        // Commands known to need the general path, or to stand behind one that does.
        let mut general_path_left = 0;
        self.consumed = 0;
        let end = loop {
            if out.len() >= server.limits.output_bytes_max || work >= TURN_WORK_MAX {
                break TurnEnd::Yield;
            }
            if !self.state.authenticated && out.len() > UNAUTHENTICATED_BYTES_MAX {
                // Before authentication the output has the same bound as the input.
                break TurnEnd::Close;
            }
            let limits = match self.state.authenticated {
                true => server.limits.frame,
                false => quipu_protocol::Limits::UNAUTHENTICATED,
            };
            if self.consumed == input.len() {
                // The decoder may hold part of the next command, and waits for more of it.
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
                // Commands found behind one that needs the general path are not scanned again.
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
                        // An empty line counts as work, since a client can send many.
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

    /// Publishes the client's details for CLIENT LIST.
    fn publish_info(&mut self, now: Millis) {
        let SessionState { command, version, transaction, watches, .. } = &self.state;
        let (queued, watching) = (transaction.as_ref().map(Transaction::len), watches.len());
        let (active, location) = (now.0 / ACTIVE_STEP_MILLIS, command.as_ptr().addr());
        let published = PublishedInfo { active, command: location, version: *version, queued, watching };
        // Nearly always unchanged.
        if self.published != published {
            let mut details = self.client.details();
            (details.last_active, details.command, details.version) = (now, command, *version);
            (details.queued, details.watching) = (queued, watching);
            self.published = published;
        }
    }

    /// Returns true if commands may run many at a time: no state affects the next command or its
    /// reply.
    pub fn takes_simple(&self) -> bool {
        let SessionState { authenticated, reply_filter, transaction, .. } = &self.state;
        *authenticated
            && *reply_filter == ReplyFilter::All
            && transaction.is_none()
            && self.loaded.is_none()
            && self.rows_since.is_none()
            && !self.unreplied_adds.is_unflushed()
    }

    /// Records that commands of this client ran in a batch.
    pub fn record_batch(&mut self, command: Option<&'static str>, now: Millis) {
        self.state.command = command.unwrap_or(self.state.command);
        self.publish_info(now);
    }

    /// Bytes of the input that the last turn consumed.
    pub fn consumed(&self) -> usize {
        self.consumed
    }

    /// Most bytes of the next read. Before authentication: the rest of the bound, plus the byte
    /// that exceeds it.
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
        // Nearly always 0, and unchanged.
        if std::mem::replace(&mut self.kept_bytes, bytes) != bytes {
            self.client.details().input_bytes = bytes;
        }
    }

    /// Runs one command and writes its reply; returns its work.
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
            // The command did not run: no state has changed, and there is no reply.
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

    /// Adds the needs of later commands to a load, so that a pipeline waits once, not once per
    /// command.
    fn prefetch_rest(&self, rest: &[u8], limits: &quipu_protocol::Limits, turn: &mut Turn<'_>, load: &mut Load) {
        // A load for a walk or for memory loads no counters.
        if self.state.transaction.is_some() || !matches!(load, Load::Names(_) | Load::Rows(_)) {
            return;
        }
        // A separate decoder: the session's holds the state of an incomplete command.
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

    /// Stores the outcome of a load: a reply for the command's rerun, or none, and then the command
    /// can run.
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

    /// Stores the outcome of the backup for its command's rerun.
    pub fn set_backup_reply(&mut self, outcome: BackupReply) {
        self.backup_reply = Some(outcome);
    }

    /// Takes the outcome of the next command's backup; `None` before the backup.
    pub fn take_backup_reply(&mut self) -> Option<BackupReply> {
        self.backup_reply.take()
    }

    /// Takes the reply that the load produced for the next command.
    pub fn take_loaded(&mut self, turn: &mut Turn<'_>) -> Option<Reply> {
        if let Some(since) = self.rows_since {
            turn.set_rows_since(since);
        }
        let (reply, wait) = self.loaded.take()?;
        turn.add_wait(wait);
        Some(reply)
    }

    /// Runs a command. An add without a reply goes to [`UnrepliedAdds`].
    pub fn run_command(&mut self, command: &Command<'_>, turn: &mut Turn<'_>) -> Result<Reply, Load> {
        match (command, self.state.reply_filter) {
            (Command::Add { name, delta, shard_key: None }, ReplyFilter::None | ReplyFilter::SkipCurrent) => {
                self.unreplied_adds.add(&self.server, turn, *name, *delta)
            }
            _ => turn.run(command),
        }
    }

    /// Work of a command beyond its arguments.
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
                // A slow command takes the whole turn of its EXEC, too.
                let work = if spec.has(Flag::Slow) { TURN_WORK_MAX } else { args.len() };
                match transaction.push(spec, args, work, &self.server.limits) {
                    Ok(()) => RespWriter::new(out, self.state.version).simple("QUEUED"),
                    Err(full) => RespWriter::new(out, self.state.version).error(&full.to_string()),
                }
                TurnEnd::Idle
            }
        }
    }

    /// Refuses an unauthenticated client and closes: a client with the password sends HELLO or AUTH
    /// first.
    fn refuse_unauthenticated(&mut self, out: &mut Vec<u8>) -> TurnEnd {
        self.refuse(&ConnectionError::NoAuth, out);
        TurnEnd::Close
    }

    /// Returns true after authentication.
    pub fn is_authenticated(&self) -> bool {
        self.state.authenticated
    }

    /// Refuses a command before execution; this aborts a transaction.
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
            // A page that made its browser send this cannot read the reply: it is of another
            // origin.
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

/// Reply to a client that speaks HTTP to the RESP port.
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
