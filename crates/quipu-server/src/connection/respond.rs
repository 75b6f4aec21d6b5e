//! Executes commands on the connection and the server.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use quipu_engine::{NotRun, Turn};
use quipu_model::{Command, Freshness, Name, Reply};
use quipu_protocol::command::{ClientCommand, ConfigCommand, ConnectionCommand, Hello, HotKeysCommand, describe, help};
use quipu_protocol::{RespVersion, RespWriter};

use super::error::ConnectionError;
use super::session::{ReplyFilter, Session, SessionState, TurnEnd};
use super::transaction::Transaction;
use crate::hot_keys::{self, HotKey};
use crate::{info, settings};

/// Redis version of the commands and replies; clients choose their commands by it.
pub(crate) const REDIS_VERSION: &str = "7.2.0";

/// The only user.
const USER: &[u8] = b"default";

/// Writes the reply; returns the end of the turn.
pub(super) fn respond(
    session: &mut Session,
    command: &ConnectionCommand<'_>,
    turn: &mut Turn<'_>,
    out: &mut Vec<u8>,
) -> TurnEnd {
    let mut writer = RespWriter::new(out, session.state.version);
    match command {
        ConnectionCommand::Ping(None) => writer.simple("PONG"),
        ConnectionCommand::Ping(Some(message)) | ConnectionCommand::Echo(message) => writer.bulk(message),
        ConnectionCommand::Hello(hello) => self::hello(session, hello, out),
        ConnectionCommand::Auth { user, password } => match log_in(session, *user, password) {
            Ok(()) => writer.simple("OK"),
            Err(error) => writer.error(&error.to_string()),
        },
        ConnectionCommand::Quit => {
            writer.simple("OK");
            return TurnEnd::Close;
        }
        ConnectionCommand::Reset => reset(session, out),
        ConnectionCommand::Select(0) => writer.simple("OK"),
        ConnectionCommand::Select(_) => writer.error(&ConnectionError::Database.to_string()),
        ConnectionCommand::Client(command) => client(session, command, turn, out),
        ConnectionCommand::Introspection(question) => describe(question, &mut writer),
        ConnectionCommand::Help(container) => help(container, &mut writer),
        ConnectionCommand::Info(sections) => {
            // Reading the engine's figures takes locks that the turn may hold.
            turn.end_run();
            writer.verbatim(&info::text(&session.server, sections));
        }
        ConnectionCommand::Config(command) => config(session, command, &mut writer),
        ConnectionCommand::Time => {
            let now = turn.now().0;
            writer.array(2);
            writer.bulk((now / 1000).to_string().as_bytes());
            writer.bulk((now % 1000 * 1000).to_string().as_bytes());
        }
        ConnectionCommand::Multi => match &session.state.transaction {
            Some(_) => writer.error(&ConnectionError::NestedMulti.to_string()),
            None => {
                session.state.transaction = Some(Transaction::default());
                writer.simple("OK");
            }
        },
        ConnectionCommand::Discard => match session.state.transaction.take() {
            Some(_) => {
                session.state.watches.clear();
                writer.simple("OK");
            }
            None => writer.error(&ConnectionError::DiscardWithoutMulti.to_string()),
        },
        ConnectionCommand::Exec => writer.error(&ConnectionError::ExecWithoutMulti.to_string()),
        ConnectionCommand::Watch(_) if session.state.transaction.is_some() => {
            writer.error(&ConnectionError::WatchInMulti.to_string());
        }
        ConnectionCommand::Watch(names) => {
            let watches_max = session.server.limits.watches_max;
            if session.state.watches.len() + names.len() > watches_max {
                writer.error(&ConnectionError::TooManyWatches { watches_max }.to_string());
            } else {
                return watch(session, names, turn, out);
            }
        }
        ConnectionCommand::Unwatch => {
            session.state.watches.clear();
            writer.simple("OK");
        }
        ConnectionCommand::FunctionFlush => writer.simple("OK"),
        ConnectionCommand::Backup(dir) => return back_up(session, dir, out),
        ConnectionCommand::HotKeys(command) => write_hot_keys(session, *command, turn, &mut writer),
        ConnectionCommand::Read { name, freshness } => return read(session, *name, *freshness, turn, out),
        ConnectionCommand::Dump(name) => return dump(session, *name, turn, out),
    }
    TurnEnd::Idle
}

/// Writes the hottest counters: a map with both lists.
fn write_hot_keys(session: &Session, command: HotKeysCommand, turn: &Turn<'_>, writer: &mut RespWriter<'_>) {
    let (tracker, now) = (&session.server.hot_keys, turn.now());
    match command {
        HotKeysCommand::Start => writer.simple("OK"),
        HotKeysCommand::Reset => {
            tracker.reset(now);
            writer.simple("OK");
        }
        HotKeysCommand::Get { count } => {
            let report = tracker.list(count, now);
            let note = report.note();
            writer.map(7);
            writer.bulk(b"since");
            writer.integer(report.since.0 as i64);
            writer.bulk(b"sample");
            writer.integer(hot_keys::SAMPLE.into());
            let enough = [("writes_enough", report.writes.enough), ("reads_enough", report.reads.enough)];
            for (word, list) in [("writes", report.writes), ("reads", report.reads)] {
                writer.bulk(word.as_bytes());
                write_hot_list(&list.rows, writer);
            }
            for (word, enough) in enough {
                writer.bulk(word.as_bytes());
                writer.integer(enough.into());
            }
            writer.bulk(b"note");
            match note {
                Some(note) => writer.bulk(note.as_bytes()),
                None => writer.null(),
            }
        }
    }
}

fn write_hot_list(rows: &[HotKey], writer: &mut RespWriter<'_>) {
    writer.array(rows.len());
    for HotKey { name, about, at_least, at_most } in rows {
        writer.map(4);
        writer.bulk(b"item");
        writer.bulk(name);
        for (word, number) in [("about", about), ("at_least", at_least), ("at_most", at_most)] {
            writer.bulk(word.as_bytes());
            writer.integer(i64::try_from(*number).unwrap_or(i64::MAX));
        }
    }
}

/// Writes a counter's reading.
fn read(
    session: &mut Session,
    name: Name<'_>,
    freshness: Freshness,
    turn: &mut Turn<'_>,
    out: &mut Vec<u8>,
) -> TurnEnd {
    let reading = match session.take_loaded(turn) {
        Some(Reply::Refused(refusal)) => Err(refusal),
        _ => match turn.reading(name, freshness) {
            Ok(reading) => Ok(reading),
            Err(NotRun::Refused(refusal)) => Err(refusal),
            Err(NotRun::Load(load)) => return TurnEnd::Load(load.into()),
        },
    };
    let mut writer = RespWriter::new(out, session.state.version);
    match reading {
        Ok(reading) => writer.reading(name, &reading),
        Err(refusal) => {
            session.server.stats.record_refusal(&refusal, 1);
            writer.refusal(&refusal, "quipu.read");
        }
    }
    TurnEnd::Idle
}

/// Writes a dump of a counter.
fn dump(session: &mut Session, name: Name<'_>, turn: &mut Turn<'_>, out: &mut Vec<u8>) -> TurnEnd {
    let dump = match session.take_loaded(turn) {
        Some(Reply::Refused(refusal)) => Err(refusal),
        _ => match turn.dump(name) {
            Ok(dump) => Ok(dump),
            Err(NotRun::Refused(refusal)) => Err(refusal),
            Err(NotRun::Load(load)) => return TurnEnd::Load(load.into()),
        },
    };
    let mut writer = RespWriter::new(out, session.state.version);
    match dump {
        Ok(dump) => writer.dump(dump.as_ref()),
        Err(refusal) => {
            session.server.stats.record_refusal(&refusal, 1);
            writer.refusal(&refusal, "quipu.dump");
        }
    }
    TurnEnd::Idle
}

/// Writes the outcome of a backup, or requests the backup if the client may.
///
/// A backup writes files anywhere on the server's machine that the server can. That choice belongs
/// to clients on that machine, which could copy the files themselves. From elsewhere a password is
/// not enough: a stolen one must not fill or litter another machine's disks.
fn back_up(session: &mut Session, dir: &[u8], out: &mut Vec<u8>) -> TurnEnd {
    if let Some(outcome) = session.take_backup_reply() {
        let mut writer = RespWriter::new(out, session.state.version);
        match outcome {
            Ok(text) => writer.simple(&text),
            Err(text) => writer.error(&format!("ERR {text}")),
        }
        return TurnEnd::Idle;
    }
    let dir = PathBuf::from(OsStr::from_bytes(dir));
    let mut writer = RespWriter::new(out, session.state.version);
    if !session.client.is_local() {
        writer.error(&ConnectionError::BackupFromElsewhere.to_string());
    } else if !dir.is_absolute() {
        writer.error(&ConnectionError::BackupRelative.to_string());
    } else {
        return TurnEnd::Backup(dir.into());
    }
    TurnEnd::Idle
}

fn watch(session: &mut Session, names: &[Name<'_>], turn: &mut Turn<'_>, out: &mut Vec<u8>) -> TurnEnd {
    if let Some(Reply::Refused(refusal)) = session.take_loaded(turn) {
        RespWriter::new(out, session.state.version).refusal(&refusal, "watch");
        return TurnEnd::Idle;
    }
    match names.iter().map(|name| turn.watch(*name)).collect::<Result<Vec<_>, _>>() {
        Ok(watches) => {
            session.state.watches.extend(watches);
            RespWriter::new(out, session.state.version).simple("OK");
            TurnEnd::Idle
        }
        Err(mut load) => {
            // All names at once: each rerun checks every name.
            turn.prefetch(&Command::Exists { names: names.to_vec() }, &mut load);
            TurnEnd::Load(load.into())
        }
    }
}

fn hello(session: &mut Session, hello: &Hello<'_>, out: &mut Vec<u8>) {
    let mut writer = RespWriter::new(out, session.state.version);
    if let Some((user, password)) = hello.auth
        && let Err(error) = log_in(session, Some(user), password)
    {
        return writer.error(&error.to_string());
    }
    if !session.state.authenticated {
        return writer.error(&ConnectionError::NoAuthHello.to_string());
    }
    if let Some(name) = hello.name {
        set_name(session, name);
    }
    session.state.version = hello.version.unwrap_or(session.state.version);
    let mut writer = RespWriter::new(out, session.state.version);
    writer.map(7);
    for (key, value) in [("server", "quipu"), ("version", REDIS_VERSION)] {
        writer.bulk(key.as_bytes());
        writer.bulk(value.as_bytes());
    }
    writer.bulk(b"proto");
    writer.integer(session.state.version.number());
    writer.bulk(b"id");
    writer.integer(session.client.id as i64);
    for (key, value) in [("mode", "standalone"), ("role", "master")] {
        writer.bulk(key.as_bytes());
        writer.bulk(value.as_bytes());
    }
    writer.bulk(b"modules");
    writer.array(0);
}

fn log_in(session: &mut Session, user: Option<&[u8]>, password: &[u8]) -> Result<(), ConnectionError> {
    let known = user.is_none_or(|user| user == USER);
    let right = match &session.server.password {
        Some(expected) => expected.matches(password),
        None if user.is_none() => return Err(ConnectionError::NoPassword),
        None => true,
    };
    if !(known && right) {
        return Err(ConnectionError::WrongPassword);
    }
    session.state.authenticated = true;
    Ok(())
}

fn reset(session: &mut Session, out: &mut Vec<u8>) {
    let authenticated = session.server.password.is_none();
    // The client library stays the same; all settings of the client return to their initial values.
    let SessionState { lib_name, lib_version, command, reply_filter, .. } = std::mem::take(&mut session.state);
    // A reply to be skipped is skipped, even this one.
    let reply_filter = if reply_filter == ReplyFilter::SkipCurrent { reply_filter } else { ReplyFilter::All };
    session.state =
        SessionState { authenticated, lib_name, lib_version, command, reply_filter, ..SessionState::default() };
    session.client.details().name.clear();
    RespWriter::new(out, RespVersion::Resp2).simple("RESET");
}

fn client(session: &mut Session, command: &ClientCommand<'_>, turn: &mut Turn<'_>, out: &mut Vec<u8>) {
    let mut writer = RespWriter::new(out, session.state.version);
    match command {
        ClientCommand::Id => writer.integer(session.client.id as i64),
        ClientCommand::GetName if session.state.name.is_empty() => writer.null(),
        ClientCommand::GetName => writer.bulk(session.state.name.as_bytes()),
        ClientCommand::SetName(name) => {
            set_name(session, name);
            writer.simple("OK");
        }
        ClientCommand::SetLibName(name) => {
            session.state.lib_name = plain(name);
            session.client.details().lib_name.clone_from(&session.state.lib_name);
            writer.simple("OK");
        }
        ClientCommand::SetLibVersion(version) => {
            session.state.lib_version = plain(version);
            session.client.details().lib_version.clone_from(&session.state.lib_version);
            writer.simple("OK");
        }
        ClientCommand::Info => {
            refresh_details(session, "client|info");
            writer.verbatim(&session.client.line(turn.now()));
        }
        ClientCommand::List { ids, normal } => {
            refresh_details(session, "client|list");
            let bytes_max = session.server.limits.output_bytes_max;
            let asked = |id: u64| *normal && ids.as_ref().is_none_or(|ids| ids.binary_search(&id).is_ok());
            let mut text = String::new();
            for client in session.server.clients.all().iter().filter(|client| asked(client.id)) {
                text.push_str(&client.line(turn.now()));
                if text.len() > bytes_max {
                    return writer.error(&ConnectionError::ClientListTooLarge { bytes_max }.to_string());
                }
            }
            writer.verbatim(&text);
        }
        ClientCommand::NoEvict | ClientCommand::NoTouch => writer.simple("OK"),
        ClientCommand::Reply(mode) => {
            session.state.reply_filter = session.state.reply_filter.with_mode(*mode);
            if session.state.reply_filter == ReplyFilter::All {
                // Also directly after SKIP, as in Redis: the last requested mode applies.
                writer.simple("OK");
            }
        }
    }
}

fn config(session: &Session, command: &ConfigCommand<'_>, writer: &mut RespWriter<'_>) {
    let server = &session.server;
    match command {
        ConfigCommand::Get(patterns) => {
            let found = settings::get(server, patterns);
            writer.map(found.len());
            for (name, value) in found {
                writer.bulk(name.as_bytes());
                writer.bulk(value.as_bytes());
            }
        }
        ConfigCommand::Set(pairs) => match settings::set(server, pairs) {
            Ok(()) => writer.simple("OK"),
            Err(text) => writer.error(&text),
        },
        ConfigCommand::ResetStat => {
            server.stats.reset();
            writer.simple("OK");
        }
    }
}

fn set_name(session: &mut Session, name: &[u8]) {
    session.state.name = plain(name);
    session.client.details().name.clone_from(&session.state.name);
}

/// Updates the details first: CLIENT INFO shows the current state, not that at the end of the last
/// turn.
fn refresh_details(session: &Session, command: &'static str) {
    let mut details = session.client.details();
    details.command = command;
    details.version = session.state.version;
}

/// Words that passed the command table are visible ASCII; the bound is that of a counter's name.
fn plain(word: &[u8]) -> String {
    String::from_utf8_lossy(&word[..word.len().min(quipu_model::NAME_BYTES_MAX)]).into_owned()
}
