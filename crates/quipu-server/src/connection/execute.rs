//! Executes requests: counter commands on the engine, all others here.
//!
//! In: a command that was looked up and may run. Out: its reply.

use quipu_engine::{NotRun, Turn, WatchedVersion};
use quipu_model::{Command, Refusal, Reply};
use quipu_protocol::command::{CommandError, ConnectionCommand, CounterRequest, OnceRequest};
use quipu_protocol::resp::ReplyShape;
use quipu_protocol::{Args, Request, RespWriter, Spec};

use super::error::ConnectionError;
use super::respond;
use super::session::{Session, TurnEnd};
use super::transaction::Transaction;

/// Share of the output bound for the names of KEYS: of a short name's reply three quarters are line
/// ends and lengths.
const NAME_SHARE: usize = 4;

/// Most bytes per examined name on a page of SCAN: the longest name, its length and line ends.
const SCAN_NAME_BYTES_MAX: usize = quipu_model::NAME_BYTES_MAX + 8;

/// Executes a command that is not queued.
pub(super) fn execute_now(
    session: &mut Session,
    spec: &'static Spec,
    args: &Args<'_>,
    turn: &mut Turn<'_>,
    out: &mut Vec<u8>,
) -> TurnEnd {
    let request = match spec.parse(args) {
        Ok(request) => request,
        Err(error) => {
            RespWriter::new(out, session.state.version).error(&error.to_string());
            return TurnEnd::Idle;
        }
    };
    let output_bytes_max = session.server.limits.output_bytes_max;
    match request {
        Request::Counter(CounterRequest { mut command, shape }) => {
            limit_walk(&mut command, output_bytes_max);
            let loaded = session.take_loaded(turn);
            let reply = match loaded.map_or_else(|| session.run_command(&command, turn), Ok) {
                Ok(reply) => reply,
                Err(load) => return TurnEnd::Load(load.into()),
            };
            session.server.hot_keys.record_command(&command, turn.now());
            let reply = limit_reply_size(reply, output_bytes_max);
            session.server.stats.record_reply(&reply);
            RespWriter::new(out, session.state.version).reply(&reply, shape, spec.name);
            TurnEnd::Idle
        }
        Request::SetMany(commands) => {
            let outcome = run_all(session, turn, &commands, &[]);
            if let Err(NotRun::Refused(refusal)) = &outcome {
                session.server.stats.record_refusal(refusal, 1);
            }
            let mut writer = RespWriter::new(out, session.state.version);
            match outcome {
                Ok(replies) => write_set_many(&mut writer, &replies.unwrap_or_default(), spec),
                Err(NotRun::Refused(refusal)) => writer.refusal(&refusal, spec.name),
                Err(NotRun::Load(load)) => return TurnEnd::Load(load.into()),
            }
            TurnEnd::Idle
        }
        Request::Once(OnceRequest { identity, commands, shape }) => {
            let loaded = session.take_loaded(turn);
            let reply = match loaded.map_or_else(|| turn.run_once(&identity, &commands), Ok) {
                Ok(reply) => reply,
                Err(load) => return TurnEnd::Load(load.into()),
            };
            RespWriter::new(out, session.state.version).reply(&reply, shape, spec.name);
            TurnEnd::Idle
        }
        Request::Connection(ConnectionCommand::Exec) => exec(session, turn, out),
        Request::Connection(command) => respond::respond(session, &command, turn, out),
    }
}

/// Result of one queued command in EXEC.
enum ExecSlot<'a> {
    /// The next reply of the engine.
    Single(&'static Spec, ReplyShape),
    /// The next several replies of the engine, combined into one.
    Combined(&'static Spec, usize),
    Connection(ConnectionCommand<'a>),
    Invalid(CommandError),
}

/// Runs commands as one step, unless the load that they need has failed.
fn run_all(
    session: &mut Session,
    turn: &mut Turn<'_>,
    commands: &[Command<'_>],
    watches: &[WatchedVersion],
) -> Result<Option<Vec<Reply>>, NotRun> {
    match session.take_loaded(turn) {
        Some(Reply::Refused(refusal)) => Err(NotRun::Refused(refusal)),
        _ => turn.run_transaction(commands, watches),
    }
}

/// Runs a transaction as one step.
fn exec(session: &mut Session, turn: &mut Turn<'_>, out: &mut Vec<u8>) -> TurnEnd {
    let watches = std::mem::take(&mut session.state.watches);
    let Some(transaction) = session.state.transaction.take() else {
        RespWriter::new(out, session.state.version).error(&ConnectionError::ExecWithoutMulti.to_string());
        return TurnEnd::Idle;
    };
    if transaction.spoiled {
        RespWriter::new(out, session.state.version).error(&ConnectionError::ExecAbort.to_string());
        return TurnEnd::Idle;
    }
    let (slots, commands) = unpack(&transaction, session.server.limits.output_bytes_max);
    let mut replies = match run_all(session, turn, &commands, &watches) {
        Ok(Some(replies)) => replies.into_iter(),
        Ok(None) => {
            RespWriter::new(out, session.state.version).null_array();
            return TurnEnd::Idle;
        }
        Err(NotRun::Refused(refusal)) => {
            session.server.stats.record_refusal(&refusal, 1);
            RespWriter::new(out, session.state.version).refusal(&refusal, "exec");
            return TurnEnd::Idle;
        }
        Err(NotRun::Load(load)) => {
            // Restores the transaction, as before EXEC.
            drop((slots, commands));
            session.state.transaction = Some(transaction);
            session.state.watches = watches;
            return TurnEnd::Load(load.into());
        }
    };
    RespWriter::new(out, session.state.version).array(slots.len());
    for slot in slots {
        let mut writer = RespWriter::new(out, session.state.version);
        match slot {
            ExecSlot::Single(spec, shape) => {
                let reply = replies.next().expect("the engine answers every command it was given");
                session.server.stats.record_reply(&reply);
                writer.reply(&reply, shape, spec.name);
            }
            ExecSlot::Combined(spec, count) => {
                let replies: Vec<Reply> = replies.by_ref().take(count).collect();
                write_set_many(&mut writer, &replies, spec);
            }
            ExecSlot::Invalid(error) => writer.error(&error.to_string()),
            ExecSlot::Connection(command) => {
                respond::respond(session, &command, turn, out);
            }
        }
    }
    TurnEnd::Idle
}

fn unpack(transaction: &Transaction, output_bytes_max: usize) -> (Vec<ExecSlot<'_>>, Vec<Command<'_>>) {
    let share = output_bytes_max / transaction.len().max(1);
    let (mut slots, mut commands) = (Vec::with_capacity(transaction.len()), Vec::with_capacity(transaction.len()));
    for (spec, args) in transaction.commands() {
        slots.push(match spec.parse(&args) {
            Ok(Request::Counter(CounterRequest { mut command, shape })) => {
                limit_walk(&mut command, share);
                commands.push(command);
                ExecSlot::Single(spec, shape)
            }
            Ok(Request::SetMany(several)) => {
                let count = several.len();
                commands.extend(several);
                ExecSlot::Combined(spec, count)
            }
            // Refused before it was queued.
            Ok(Request::Once(_)) => ExecSlot::Invalid(CommandError::Syntax),
            Ok(Request::Connection(command)) => ExecSlot::Connection(command),
            Err(error) => ExecSlot::Invalid(error),
        });
    }
    (slots, commands)
}

/// Writes the combined reply of several commands: OK, or the first refusal.
fn write_set_many(writer: &mut RespWriter<'_>, replies: &[Reply], spec: &'static Spec) {
    match replies.iter().find(|reply| matches!(reply, Reply::Refused(_))) {
        Some(refused) => writer.reply(refused, ReplyShape::Plain, spec.name),
        None => writer.simple("OK"),
    }
}

/// Refuses a list of items longer than a reply may be; the command only read.
fn limit_reply_size(reply: Reply, bytes_max: usize) -> Reply {
    match &reply {
        Reply::TopItems(rows) if rows.iter().map(|row| row.item.len()).sum::<usize>() > bytes_max => {
            Reply::Refused(Refusal::ReplyTooLarge { bytes_max })
        }
        _ => reply,
    }
}

/// Bounds the reply of a command over all names to its share of the output.
fn limit_walk(command: &mut Command<'_>, output_bytes_max: usize) {
    match command {
        Command::ListNames(list) => list.bytes_max = output_bytes_max / NAME_SHARE,
        Command::Scan(scan) => scan.count = scan.count.min(output_bytes_max / SCAN_NAME_BYTES_MAX).max(1),
        _ => {}
    }
}
