//! Reads the arguments of commands on the connection and the server.

use quipu_model::{Freshness, Name, Pattern};

use super::error::{pattern, shown};
use super::{CommandError, Request, Spec};
use crate::number;
use crate::resp::{Args, RespVersion};

/// Most bytes of a wrong word that its error repeats.
const SHOWN_BYTES_MAX: usize = 128;

/// Most names or patterns in one CONFIG GET or COMMAND: several times the number that exist.
/// Replies to the 32,766 that a frame can hold would take about 40 MB.
const ASKED_MAX: usize = 256;

/// Default number of hot keys per list.
const HOT_COUNT_DEFAULT: usize = 10;

/// Command on hot keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HotKeysCommand {
    /// Replies the hot keys.
    Get {
        /// Most entries per list.
        count: usize,
    },
    /// Tracking is always on: replies OK.
    Start,
    /// Clears the samples.
    Reset,
}

/// One command that is not about counters.
#[derive(Debug, Clone, PartialEq)]
pub enum ConnectionCommand<'a> {
    /// Replies PONG, or the message.
    Ping(Option<&'a [u8]>),
    /// Replies the message.
    Echo(&'a [u8]),
    /// Chooses the RESP version; may authenticate and name the connection as well.
    Hello(Hello<'a>),
    /// Authenticates.
    Auth {
        /// User; none means the default user.
        user: Option<&'a [u8]>,
        /// Password.
        password: &'a [u8],
    },
    /// Replies OK and closes.
    Quit,
    /// Resets the connection to its initial, unauthenticated state.
    Reset,
    /// Chooses a database; there is only one.
    Select(i64),
    /// Command on this connection and the others.
    Client(ClientCommand<'a>),
    /// Command on the commands themselves.
    Introspection(Introspection<'a>),
    /// Server information by section; without sections: the default ones.
    Info(Vec<&'a [u8]>),
    /// Command on the settings.
    Config(ConfigCommand<'a>),
    /// Time of day.
    Time,
    /// Begins a transaction.
    Multi,
    /// Runs the transaction.
    Exec,
    /// Drops the transaction.
    Discard,
    /// Makes the next transaction fail if one of these counters changes.
    Watch(Vec<Name<'a>>),
    /// Undoes every WATCH.
    Unwatch,
    /// Removes all functions; Quipu has none.
    FunctionFlush,
    /// Backs up all data to a directory on the server's machine.
    Backup(&'a [u8]),
    /// Replies a reading.
    Read {
        /// Counter name.
        name: Name<'a>,
        /// Required freshness.
        freshness: Freshness,
    },
    /// Replies a dump of a counter.
    Dump(Name<'a>),
    /// Command on hot keys.
    HotKeys(HotKeysCommand),
    /// Lists the subcommands of an operation.
    Help(&'static Spec),
}

/// HELLO and its options.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello<'a> {
    /// Requested RESP version; none keeps the current one.
    pub version: Option<RespVersion>,
    /// User and password.
    pub auth: Option<(&'a [u8], &'a [u8])>,
    /// Name for the connection.
    pub name: Option<&'a [u8]>,
}

/// CLIENT and its subcommands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientCommand<'a> {
    /// Replies the id of this connection.
    Id,
    /// Replies its name.
    GetName,
    /// Sets its name; an empty name removes it.
    SetName(&'a [u8]),
    /// Sets the client library's name.
    SetLibName(&'a [u8]),
    /// Sets the client library's version.
    SetLibVersion(&'a [u8]),
    /// Replies a line on this connection.
    Info,
    /// Replies a line on each connection, or on those with the given ids.
    List {
        /// Requested ids; none means all.
        ids: Option<Vec<u64>>,
        /// False if the client asked only for connection types that Quipu does not have.
        normal: bool,
    },
    /// Accepted without effect: the server evicts no clients.
    NoEvict,
    /// Accepted without effect: a read records no access time.
    NoTouch,
    /// Sets the reply mode.
    Reply(ClientReplyMode),
}

/// Reply mode of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientReplyMode {
    /// All replies.
    On,
    /// No replies.
    Off,
    /// All but the next reply.
    Skip,
}

/// COMMAND and its subcommands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Introspection<'a> {
    /// Number of operations.
    Count,
    /// Names of operations, filtered by a pattern.
    List(Option<Pattern<'a>>),
    /// Arity, flags and keys of these, or of all.
    Info(Vec<&'a [u8]>),
    /// Documentation of these, or of all.
    Docs(Vec<&'a [u8]>),
}

/// CONFIG and its subcommands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConfigCommand<'a> {
    /// Settings with a name that matches one of the patterns.
    Get(Vec<&'a [u8]>),
    /// Pairs of name and value, one or more.
    Set(Vec<(&'a [u8], &'a [u8])>),
    /// Resets the statistics.
    ResetStat,
}

type ConnectionParse<'a> = Result<Request<'a>, CommandError>;

pub(super) fn ping<'a>(spec: &'static Spec, args: &Args<'a>) -> ConnectionParse<'a> {
    if args.len() > 2 {
        return Err(CommandError::Arity(spec.name));
    }
    connection(ConnectionCommand::Ping(args.get(1)))
}

pub(super) fn echo<'a>(_: &'static Spec, args: &Args<'a>) -> ConnectionParse<'a> {
    connection(ConnectionCommand::Echo(arg(args, 1)))
}

pub(super) fn backup<'a>(_: &'static Spec, args: &Args<'a>) -> ConnectionParse<'a> {
    connection(ConnectionCommand::Backup(arg(args, 1)))
}

pub(super) fn read<'a>(_: &'static Spec, args: &Args<'a>) -> ConnectionParse<'a> {
    let freshness = match (args.get(2), args.get(3), args.len()) {
        (None, ..) => Freshness::Usual,
        (Some(word), Some(text), 4) if word.eq_ignore_ascii_case(b"FRESHNESS") => {
            let text = Freshness::parse(text);
            text.ok_or(CommandError::BadArgument(
                "ERR freshness is 'cached', 'fresh', or a time up to an hour such as '500ms'",
            ))?
        }
        _ => return Err(CommandError::Syntax),
    };
    connection(ConnectionCommand::Read { name: Name::new(arg(args, 1))?, freshness })
}

pub(super) fn dump<'a>(_: &'static Spec, args: &Args<'a>) -> ConnectionParse<'a> {
    connection(ConnectionCommand::Dump(Name::new(arg(args, 1))?))
}

pub(super) fn hotkeys<'a>(_: &'static Spec, args: &Args<'a>) -> ConnectionParse<'a> {
    let word = |word: &str| arg(args, 1).eq_ignore_ascii_case(word.as_bytes());
    connection(ConnectionCommand::HotKeys(if word("GET") {
        let count = match (args.get(2), args.get(3), args.len()) {
            (None, ..) => HOT_COUNT_DEFAULT,
            (Some(word), Some(count), 4) if word.eq_ignore_ascii_case(b"COUNT") => {
                let count = number::natural(count).and_then(|count| usize::try_from(count).ok());
                count.filter(|count| *count > 0).ok_or(CommandError::NotInteger)?
            }
            _ => return Err(CommandError::Syntax),
        };
        HotKeysCommand::Get { count }
    } else if word("START") || word("STOP") {
        // Redis tracks on request, with the client's choice of metrics and sampling; Quipu always
        // tracks.
        HotKeysCommand::Start
    } else if word("RESET") && args.len() == 2 {
        HotKeysCommand::Reset
    } else {
        return Err(CommandError::Syntax);
    }))
}

pub(super) fn hello<'a>(_: &'static Spec, args: &Args<'a>) -> ConnectionParse<'a> {
    let mut hello = Hello { version: None, auth: None, name: None };
    if let Some(version) = args.get(1) {
        hello.version = Some(match number::integer(version) {
            Some(2) => RespVersion::Resp2,
            Some(3) => RespVersion::Resp3,
            Some(_) => return Err(CommandError::BadArgument("NOPROTO unsupported protocol version")),
            None => return Err(CommandError::BadArgument("ERR Protocol version is not an integer or out of range")),
        });
    }
    let mut options = args.from(2);
    while let Some(option) = options.next() {
        let left = options.len();
        if is_word(option, "AUTH") && left >= 2 {
            hello.auth = options.next().zip(options.next());
        } else if is_word(option, "SETNAME") && left >= 1 {
            hello.name = options.next();
            hello.name.map_or(Ok(()), plain_name)?;
        } else {
            let text = format!("ERR Syntax error in HELLO option '{}'", shown(option, SHOWN_BYTES_MAX));
            return Err(CommandError::BadArgumentNamed(text));
        }
    }
    connection(ConnectionCommand::Hello(hello))
}

pub(super) fn auth<'a>(_: &'static Spec, args: &Args<'a>) -> ConnectionParse<'a> {
    connection(match args.len() {
        2 => ConnectionCommand::Auth { user: None, password: arg(args, 1) },
        3 => ConnectionCommand::Auth { user: args.get(1), password: arg(args, 2) },
        _ => return Err(CommandError::Syntax),
    })
}

pub(super) fn quit<'a>(_: &'static Spec, _: &Args<'a>) -> ConnectionParse<'a> {
    connection(ConnectionCommand::Quit)
}

pub(super) fn reset<'a>(_: &'static Spec, _: &Args<'a>) -> ConnectionParse<'a> {
    connection(ConnectionCommand::Reset)
}

pub(super) fn select<'a>(_: &'static Spec, args: &Args<'a>) -> ConnectionParse<'a> {
    let index = number::integer(arg(args, 1)).ok_or(CommandError::NotInteger)?;
    connection(ConnectionCommand::Select(index))
}

pub(super) fn client_id<'a>(_: &'static Spec, _: &Args<'a>) -> ConnectionParse<'a> {
    client(ClientCommand::Id)
}

pub(super) fn client_getname<'a>(_: &'static Spec, _: &Args<'a>) -> ConnectionParse<'a> {
    client(ClientCommand::GetName)
}

pub(super) fn client_setname<'a>(_: &'static Spec, args: &Args<'a>) -> ConnectionParse<'a> {
    plain_name(arg(args, 2))?;
    client(ClientCommand::SetName(arg(args, 2)))
}

pub(super) fn client_setinfo<'a>(_: &'static Spec, args: &Args<'a>) -> ConnectionParse<'a> {
    let (option, value) = (arg(args, 2), arg(args, 3));
    let (word, command) = if is_word(option, "LIB-NAME") {
        ("lib-name", ClientCommand::SetLibName(value))
    } else if is_word(option, "LIB-VER") {
        ("lib-ver", ClientCommand::SetLibVersion(value))
    } else {
        let text = format!("ERR Unrecognized option '{}'", shown(option, SHOWN_BYTES_MAX));
        return Err(CommandError::BadArgumentNamed(text));
    };
    if !is_plain(value) {
        let text = format!("ERR {word} cannot contain spaces, newlines or special characters.");
        return Err(CommandError::BadArgumentNamed(text));
    }
    client(command)
}

pub(super) fn client_info<'a>(_: &'static Spec, _: &Args<'a>) -> ConnectionParse<'a> {
    client(ClientCommand::Info)
}

pub(super) fn client_list<'a>(_: &'static Spec, args: &Args<'a>) -> ConnectionParse<'a> {
    let (mut ids, mut normal) = (None, true);
    match args.get(2) {
        None => {}
        Some(option) if is_word(option, "TYPE") && args.len() == 4 => {
            let kind = arg(args, 3);
            normal = is_word(kind, "NORMAL");
            if !normal && !["MASTER", "SLAVE", "REPLICA", "PUBSUB"].iter().any(|word| is_word(kind, word)) {
                let text = format!("ERR Unknown client type '{}'", shown(kind, SHOWN_BYTES_MAX));
                return Err(CommandError::BadArgumentNamed(text));
            }
        }
        Some(option) if is_word(option, "ID") && args.len() > 3 => {
            let id = |arg| number::natural(arg).filter(|&id| id > 0);
            let all: Option<Vec<u64>> = args.from(3).map(id).collect();
            let mut all = all.ok_or(CommandError::BadArgument("ERR Invalid client ID"))?;
            all.sort_unstable();
            ids = Some(all);
        }
        Some(_) => return Err(CommandError::Syntax),
    }
    client(ClientCommand::List { ids, normal })
}

pub(super) fn client_no_evict<'a>(_: &'static Spec, args: &Args<'a>) -> ConnectionParse<'a> {
    on_or_off(arg(args, 2))?;
    client(ClientCommand::NoEvict)
}

pub(super) fn client_no_touch<'a>(_: &'static Spec, args: &Args<'a>) -> ConnectionParse<'a> {
    on_or_off(arg(args, 2))?;
    client(ClientCommand::NoTouch)
}

pub(super) fn client_reply<'a>(_: &'static Spec, args: &Args<'a>) -> ConnectionParse<'a> {
    let mode = arg(args, 2);
    client(ClientCommand::Reply(if is_word(mode, "ON") {
        ClientReplyMode::On
    } else if is_word(mode, "OFF") {
        ClientReplyMode::Off
    } else if is_word(mode, "SKIP") {
        ClientReplyMode::Skip
    } else {
        return Err(CommandError::Syntax);
    }))
}

pub(super) fn command<'a>(_: &'static Spec, _: &Args<'a>) -> ConnectionParse<'a> {
    introspection(Introspection::Info(Vec::new()))
}

pub(super) fn command_count<'a>(_: &'static Spec, _: &Args<'a>) -> ConnectionParse<'a> {
    introspection(Introspection::Count)
}

pub(super) fn command_docs<'a>(_: &'static Spec, args: &Args<'a>) -> ConnectionParse<'a> {
    introspection(Introspection::Docs(subcommand_arguments(args)?))
}

pub(super) fn command_info<'a>(_: &'static Spec, args: &Args<'a>) -> ConnectionParse<'a> {
    introspection(Introspection::Info(subcommand_arguments(args)?))
}

pub(super) fn command_list<'a>(_: &'static Spec, args: &Args<'a>) -> ConnectionParse<'a> {
    let pattern = match args.len() {
        2 => None,
        5 if is_word(arg(args, 2), "FILTERBY") && is_word(arg(args, 3), "PATTERN") => Some(pattern(arg(args, 4))?),
        _ => return Err(CommandError::Syntax),
    };
    introspection(Introspection::List(pattern))
}

pub(super) fn info<'a>(_: &'static Spec, args: &Args<'a>) -> ConnectionParse<'a> {
    connection(ConnectionCommand::Info(args.from(1).collect()))
}

pub(super) fn config_get<'a>(_: &'static Spec, args: &Args<'a>) -> ConnectionParse<'a> {
    let patterns = subcommand_arguments(args)?;
    patterns.iter().try_for_each(|bytes| pattern(bytes).map(drop))?;
    connection(ConnectionCommand::Config(ConfigCommand::Get(patterns)))
}

pub(super) fn config_set<'a>(_: &'static Spec, args: &Args<'a>) -> ConnectionParse<'a> {
    if !args.len().is_multiple_of(2) {
        return Err(CommandError::Syntax);
    }
    let mut rest = args.from(2);
    let mut pairs = Vec::with_capacity(args.len() / 2);
    while let (Some(name), Some(value)) = (rest.next(), rest.next()) {
        pairs.push((name, value));
    }
    connection(ConnectionCommand::Config(ConfigCommand::Set(pairs)))
}

pub(super) fn config_resetstat<'a>(_: &'static Spec, _: &Args<'a>) -> ConnectionParse<'a> {
    connection(ConnectionCommand::Config(ConfigCommand::ResetStat))
}

pub(super) fn time<'a>(_: &'static Spec, _: &Args<'a>) -> ConnectionParse<'a> {
    connection(ConnectionCommand::Time)
}

pub(super) fn multi<'a>(_: &'static Spec, _: &Args<'a>) -> ConnectionParse<'a> {
    connection(ConnectionCommand::Multi)
}

pub(super) fn exec<'a>(_: &'static Spec, _: &Args<'a>) -> ConnectionParse<'a> {
    connection(ConnectionCommand::Exec)
}

pub(super) fn discard<'a>(_: &'static Spec, _: &Args<'a>) -> ConnectionParse<'a> {
    connection(ConnectionCommand::Discard)
}

pub(super) fn watch<'a>(_: &'static Spec, args: &Args<'a>) -> ConnectionParse<'a> {
    let names: Result<Vec<Name<'a>>, CommandError> = args.from(1).map(|arg| Ok(Name::new(arg)?)).collect();
    connection(ConnectionCommand::Watch(names?))
}

pub(super) fn unwatch<'a>(_: &'static Spec, _: &Args<'a>) -> ConnectionParse<'a> {
    connection(ConnectionCommand::Unwatch)
}

pub(super) fn function_flush<'a>(_: &'static Spec, args: &Args<'a>) -> ConnectionParse<'a> {
    match args.get(2) {
        None => {}
        Some(how) if args.len() == 3 && (is_word(how, "ASYNC") || is_word(how, "SYNC")) => {}
        Some(_) => return Err(CommandError::BadArgument("ERR FUNCTION FLUSH only supports SYNC|ASYNC option")),
    }
    connection(ConnectionCommand::FunctionFlush)
}

pub(super) fn help<'a>(spec: &'static Spec, _: &Args<'a>) -> ConnectionParse<'a> {
    let container = spec.name.split('|').next().and_then(|name| Spec::by_name(name.as_bytes()));
    connection(ConnectionCommand::Help(container.unwrap_or(spec)))
}

fn connection(command: ConnectionCommand<'_>) -> ConnectionParse<'_> {
    Ok(Request::Connection(command))
}

fn client(command: ClientCommand<'_>) -> ConnectionParse<'_> {
    connection(ConnectionCommand::Client(command))
}

fn introspection(command: Introspection<'_>) -> ConnectionParse<'_> {
    connection(ConnectionCommand::Introspection(command))
}

/// Arguments after the subcommand, within the bound: each may cause a long reply or a long search.
fn subcommand_arguments<'a>(args: &Args<'a>) -> Result<Vec<&'a [u8]>, CommandError> {
    match args.len().saturating_sub(2) {
        0..=ASKED_MAX => Ok(args.from(2).collect()),
        many => {
            Err(CommandError::BadArgumentNamed(format!("ERR too many names: {many}, at most {ASKED_MAX} are allowed")))
        }
    }
}

fn on_or_off(word: &[u8]) -> Result<(), CommandError> {
    if is_word(word, "ON") || is_word(word, "OFF") { Ok(()) } else { Err(CommandError::Syntax) }
}

/// Checks a connection name: it stands in a line of CLIENT LIST and must not break it.
fn plain_name(name: &[u8]) -> Result<(), CommandError> {
    match is_plain(name) {
        true => Ok(()),
        false => {
            Err(CommandError::BadArgument("ERR Client names cannot contain spaces, newlines or special characters."))
        }
    }
}

fn is_plain(word: &[u8]) -> bool {
    word.iter().all(u8::is_ascii_graphic)
}

/// An argument that the arity guarantees.
fn arg<'a>(args: &Args<'a>, index: usize) -> &'a [u8] {
    args.get(index).unwrap_or_default()
}

fn is_word(bytes: &[u8], word: &str) -> bool {
    bytes.eq_ignore_ascii_case(word.as_bytes())
}
