//! Carries out requests: counter commands by the engine, the rest here.
//!
//! In: a command that was found and may run. Out: its reply.

use quipu_engine::{NotRun, Turn, Watch};
use quipu_model::{Command, Refusal, Reply};
use quipu_protocol::command::{CommandError, ConnectionCommand, CounterRequest, OnceRequest};
use quipu_protocol::resp::Shape;
use quipu_protocol::{Args, Request, Spec, Writer};

use super::error::ConnectionError;
use super::respond;
use super::session::{Ending, Session};
use super::transaction::Transaction;

/// KEYS may return names of so many bytes per byte of output bound: short names are three quarters line ends and lengths.
const NAME_SHARE: usize = 4;

/// What a page of SCAN takes at most per name it looks at: the longest name, its length and line ends.
const SCAN_NAME_BYTES_MAX: usize = quipu_model::NAME_BYTES_MAX + 8;

/// Carries out a command that is not queued.
pub(super) fn now(
    session: &mut Session,
    spec: &'static Spec,
    args: &Args<'_>,
    turn: &mut Turn<'_>,
    out: &mut Vec<u8>,
) -> Ending {
    let request = match spec.parse(args) {
        Ok(request) => request,
        Err(error) => {
            Writer::new(out, session.state.version).error(&error.to_string());
            return Ending::Waits;
        }
    };
    let output_bytes_max = session.shared.limits.output_bytes_max;
    match request {
        Request::Counter(CounterRequest { mut command, shape }) => {
            bound(&mut command, output_bytes_max);
            let loaded = session.take_loaded(turn);
            let reply = match loaded.map_or_else(|| session.run(&command, turn), Ok) {
                Ok(reply) => reply,
                Err(load) => return Ending::Loads(load.into()),
            };
            session.shared.hot.ran_one(&command, turn.now());
            let reply = within(reply, output_bytes_max);
            session.shared.tally.note_reply(&reply);
            Writer::new(out, session.state.version).reply(&reply, shape, spec.name);
            Ending::Waits
        }
        Request::Together(commands) => {
            let outcome = run_all(session, turn, &commands, &[]);
            if let Err(NotRun::Refused(refusal)) = &outcome {
                session.shared.tally.note_refusal(refusal, 1);
            }
            let mut writer = Writer::new(out, session.state.version);
            match outcome {
                Ok(replies) => together(&mut writer, &replies.unwrap_or_default(), spec),
                Err(NotRun::Refused(refusal)) => writer.refusal(&refusal, spec.name),
                Err(NotRun::Load(load)) => return Ending::Loads(load.into()),
            }
            Ending::Waits
        }
        Request::Once(OnceRequest { identity, commands, shape }) => {
            let loaded = session.take_loaded(turn);
            let reply = match loaded.map_or_else(|| turn.run_once(&identity, &commands), Ok) {
                Ok(reply) => reply,
                Err(load) => return Ending::Loads(load.into()),
            };
            Writer::new(out, session.state.version).reply(&reply, shape, spec.name);
            Ending::Waits
        }
        Request::Connection(ConnectionCommand::Exec) => exec(session, turn, out),
        Request::Connection(command) => respond::respond(session, &command, turn, out),
    }
}

/// What EXEC makes of one queued command.
enum Slot<'a> {
    /// The next reply of the engine.
    One(&'static Spec, Shape),
    /// The next so many replies of the engine, told as one.
    Together(&'static Spec, usize),
    Connection(ConnectionCommand<'a>),
    Wrong(CommandError),
}

/// Runs commands as one, unless loading what they need has failed.
fn run_all(
    session: &mut Session,
    turn: &mut Turn<'_>,
    commands: &[Command<'_>],
    watches: &[Watch],
) -> Result<Option<Vec<Reply>>, NotRun> {
    match session.take_loaded(turn) {
        Some(Reply::Refused(refusal)) => Err(NotRun::Refused(refusal)),
        _ => turn.run_all(commands, watches),
    }
}

/// Runs a transaction as one step.
fn exec(session: &mut Session, turn: &mut Turn<'_>, out: &mut Vec<u8>) -> Ending {
    let watches = std::mem::take(&mut session.state.watches);
    let Some(transaction) = session.state.transaction.take() else {
        Writer::new(out, session.state.version).error(&ConnectionError::ExecWithoutMulti.to_string());
        return Ending::Waits;
    };
    if transaction.spoiled {
        Writer::new(out, session.state.version).error(&ConnectionError::ExecAbort.to_string());
        return Ending::Waits;
    }
    let (slots, commands) = unpack(&transaction, session.shared.limits.output_bytes_max);
    let mut replies = match run_all(session, turn, &commands, &watches) {
        Ok(Some(replies)) => replies.into_iter(),
        Ok(None) => {
            Writer::new(out, session.state.version).null_array();
            return Ending::Waits;
        }
        Err(NotRun::Refused(refusal)) => {
            session.shared.tally.note_refusal(&refusal, 1);
            Writer::new(out, session.state.version).refusal(&refusal, "exec");
            return Ending::Waits;
        }
        Err(NotRun::Load(load)) => {
            // As if it had not been asked for yet.
            drop((slots, commands));
            session.state.transaction = Some(transaction);
            session.state.watches = watches;
            return Ending::Loads(load.into());
        }
    };
    Writer::new(out, session.state.version).array(slots.len());
    for slot in slots {
        let mut writer = Writer::new(out, session.state.version);
        match slot {
            Slot::One(spec, shape) => {
                let reply = replies.next().expect("the engine answers every command it was given");
                session.shared.tally.note_reply(&reply);
                writer.reply(&reply, shape, spec.name);
            }
            Slot::Together(spec, count) => {
                let replies: Vec<Reply> = replies.by_ref().take(count).collect();
                together(&mut writer, &replies, spec);
            }
            Slot::Wrong(error) => writer.error(&error.to_string()),
            Slot::Connection(command) => {
                respond::respond(session, &command, turn, out);
            }
        }
    }
    Ending::Waits
}

fn unpack(transaction: &Transaction, output_bytes_max: usize) -> (Vec<Slot<'_>>, Vec<Command<'_>>) {
    let share = output_bytes_max / transaction.len().max(1);
    let (mut slots, mut commands) = (Vec::with_capacity(transaction.len()), Vec::with_capacity(transaction.len()));
    for (spec, args) in transaction.commands() {
        slots.push(match spec.parse(&args) {
            Ok(Request::Counter(CounterRequest { mut command, shape })) => {
                bound(&mut command, share);
                commands.push(command);
                Slot::One(spec, shape)
            }
            Ok(Request::Together(several)) => {
                let count = several.len();
                commands.extend(several);
                Slot::Together(spec, count)
            }
            // Refused before it was queued.
            Ok(Request::Once(_)) => Slot::Wrong(CommandError::Syntax),
            Ok(Request::Connection(command)) => Slot::Connection(command),
            Err(error) => Slot::Wrong(error),
        });
    }
    (slots, commands)
}

/// Several commands told as one: OK, or the first refusal.
fn together(writer: &mut Writer<'_>, replies: &[Reply], spec: &'static Spec) {
    match replies.iter().find(|reply| matches!(reply, Reply::Refused(_))) {
        Some(refused) => writer.reply(refused, Shape::Plain, spec.name),
        None => writer.simple("OK"),
    }
}

/// A list of items that is longer than a reply may be is not sent; it was only read.
fn within(reply: Reply, bytes_max: usize) -> Reply {
    match &reply {
        Reply::Ranked(rows) if rows.iter().map(|row| row.item.len()).sum::<usize>() > bytes_max => {
            Reply::Refused(Refusal::ReplyTooLarge { bytes_max })
        }
        _ => reply,
    }
}

/// Keeps the reply of a command over all names within its share of the output.
fn bound(command: &mut Command<'_>, output_bytes_max: usize) {
    match command {
        Command::ListNames(list) => list.bytes_max = output_bytes_max / NAME_SHARE,
        Command::Scan(scan) => scan.count = scan.count.min(output_bytes_max / SCAN_NAME_BYTES_MAX).max(1),
        _ => {}
    }
}
