//! Describes one operation, and finds it by name.

use std::cell::Cell;

use quipu_model::Kind;

use super::absent;
use super::arguments::Argument;
use super::error::shown;
use super::identity;
use super::table::{self, TABLE};
use super::{CommandError, Request};
use crate::resp::Args;

/// Longest name of an operation; longer ones are unknown without a search.
const NAME_BYTES_MAX: usize = 24;

/// Most bytes of an unknown command that its error repeats. Redis's number.
const SHOWN_BYTES_MAX: usize = 128;

/// The option that picks a shard. Redis has none of this name.
const SHARD_KEY: &[u8] = b"SHARDKEY";

/// One operation.
pub struct Spec {
    /// Name in lower case; a subcommand is `client|setname`.
    pub name: &'static str,
    /// Number of arguments, name included; negative: a minimum. As in Redis.
    pub arity: i16,
    /// Properties, for clients that route by them.
    pub flags: &'static [Flag],
    /// Positions of counter names among the arguments.
    pub keys: Keys,
    /// Group in the documentation.
    pub group: Group,
    /// First version of Redis, or of Quipu, that had it.
    pub since: &'static str,
    /// Summary, one line.
    pub summary: &'static str,
    /// Its own arguments. [`Spec::all_arguments`] adds the common options.
    pub arguments: &'static [Argument],
    /// Reply, in one line.
    pub reply: &'static str,
    /// Time complexity.
    pub complexity: &'static str,
    /// Kinds of counters that it works on; empty for an operation without a counter.
    pub kinds: &'static [Kind],
    /// An example command line, or nothing.
    pub example: &'static str,
    /// Subcommands.
    pub parts: &'static [Spec],
    pub(super) read: ParseFn,
}

/// Reads the arguments of an operation after `lookup` checked their number.
pub(super) type ParseFn = for<'a> fn(&'static Spec, &Args<'a>) -> Result<Request<'a>, CommandError>;

/// Property of an operation. The terms are Redis's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flag {
    /// Changes counters.
    Write,
    /// Only reads counters.
    ReadOnly,
    /// Takes constant time.
    Fast,
    /// May be refused when memory is full.
    DenyOom,
    /// For operators.
    Admin,
    /// Allowed before authentication.
    NoAuth,
    /// Not allowed between MULTI and EXEC.
    NoMulti,
    /// Takes far longer than others, or time proportional to the data. After it a worker serves
    /// other connections before this connection's next command.
    Slow,
    /// Takes `SHARDKEY key` at the end, beyond its arity: the key that picks the shard of a shared
    /// counter.
    ShardKey,
    /// Walks the counter names. Within a transaction the walk would block every other client from
    /// all counters.
    Walk,
}

impl Flag {
    /// Name in COMMAND INFO, if Redis has one.
    pub fn name(self) -> Option<&'static str> {
        Some(match self {
            Flag::Write => "write",
            Flag::ReadOnly => "readonly",
            Flag::Fast => "fast",
            Flag::DenyOom => "denyoom",
            Flag::Admin => "admin",
            Flag::NoAuth => "no_auth",
            Flag::NoMulti => "no_multi",
            Flag::Slow | Flag::ShardKey | Flag::Walk => return None,
        })
    }
}

/// Positions of names: first, last (negative: from the end), and the step between them; all 0 for
/// none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keys {
    /// Index of the first.
    pub first: i8,
    /// Index of the last.
    pub last: i8,
    /// Distance between two.
    pub step: i8,
}

impl Keys {
    pub(super) const NONE: Keys = Keys { first: 0, last: 0, step: 0 };
    pub(super) const ONE: Keys = Keys { first: 1, last: 1, step: 1 };
    pub(super) const ALL: Keys = Keys { first: 1, last: -1, step: 1 };
    pub(super) const PAIRS: Keys = Keys { first: 1, last: -1, step: 2 };
}

/// Group in the documentation. The terms are Redis's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    /// Values.
    String,
    /// Names and expiry.
    Generic,
    /// The connection.
    Connection,
    /// The server.
    Server,
    /// MULTI and EXEC.
    Transactions,
    /// Functions; Quipu has none.
    Scripting,
    /// Unique items.
    HyperLogLog,
    /// Item frequencies and top lists.
    Module,
}

impl Group {
    /// Name in COMMAND DOCS.
    pub fn name(self) -> &'static str {
        match self {
            Group::String => "string",
            Group::Generic => "generic",
            Group::Connection => "connection",
            Group::Server => "server",
            Group::Transactions => "transactions",
            Group::Scripting => "scripting",
            Group::HyperLogLog => "hyperloglog",
            Group::Module => "module",
        }
    }
}

impl Spec {
    /// Reads the arguments with which [`lookup`] found this operation.
    pub fn parse<'a>(&'static self, args: &Args<'a>) -> Result<Request<'a>, CommandError> {
        let (args, identity) = identity::split(self, args);
        let request = (self.read)(self, &args)?;
        match identity {
            Some(identity) => identity.make_once(request),
            None => Ok(request),
        }
    }

    /// Returns true if it has the flag.
    pub fn has(&self, flag: Flag) -> bool {
        self.flags.contains(&flag)
    }

    /// Its arguments, with the options that all adds and all mutations have at their end.
    pub fn all_arguments(&self) -> impl Iterator<Item = &'static Argument> {
        let shard_key = self.has(Flag::ShardKey).then_some(&table::SHARD_KEY);
        let identity = self.has(Flag::Write).then_some(&table::IDENTITY);
        self.arguments.iter().chain(shard_key).chain(identity)
    }

    /// Syntax line: `INCRBY key increment …`.
    pub fn syntax(&self) -> String {
        let name = self.name.replace('|', " ").to_ascii_uppercase();
        self.all_arguments().fold(name, |line, argument| format!("{line} {argument}"))
    }

    /// Name of a subcommand without its operation, in lower case.
    pub fn part_name(&self) -> &'static str {
        self.name.rsplit_once('|').map_or(self.name, |(_, part)| part)
    }

    /// Finds an operation or subcommand (`client|setname`) by name, in any case.
    pub fn by_name(name: &[u8]) -> Option<&'static Spec> {
        match name.iter().position(|&byte| byte == b'|') {
            None => find(name),
            Some(at) => find(&name[..at])?.part(&name[at + 1..]),
        }
    }

    fn part(&self, name: &[u8]) -> Option<&'static Spec> {
        self.parts.iter().find(|part| part.part_name().as_bytes().eq_ignore_ascii_case(name))
    }

    /// Arity reported to clients: options make it open-ended.
    pub(super) fn public_arity(&self) -> i16 {
        if self.has(Flag::ShardKey) || self.has(Flag::Write) { -self.arity.abs() } else { self.arity }
    }

    /// Returns true if the arguments end with an identity.
    pub fn has_identity(&self, args: &Args<'_>) -> bool {
        identity::split(self, args).1.is_some()
    }

    fn accepts(&self, args: &Args<'_>) -> bool {
        self.accepts_plain(args) || self.has_identity(args)
    }

    /// Returns true if the number of arguments is right without an identity.
    pub(super) fn accepts_plain(&self, args: &Args<'_>) -> bool {
        // The limits bound the number of arguments far below an i64.
        let count = args.len() as i64;
        let arity = i64::from(self.arity);
        match arity {
            ..0 => count >= -arity,
            _ => count == arity || self.shard_key(args).is_some(),
        }
    }

    /// The value of SHARDKEY after the other arguments, if the operation has that option and the
    /// client used it.
    pub(super) fn shard_key<'a>(&self, args: &Args<'a>) -> Option<&'a [u8]> {
        let at = usize::try_from(self.arity).ok().filter(|at| self.has(Flag::ShardKey) && args.len() == at + 2)?;
        args.get(at).filter(|word| word.eq_ignore_ascii_case(SHARD_KEY)).and_then(|_| args.get(at + 1))
    }
}

impl std::fmt::Debug for Spec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Spec").field(&self.name).finish()
    }
}

impl PartialEq for Spec {
    fn eq(&self, other: &Spec) -> bool {
        self.name == other.name
    }
}

/// Finds the operation that a frame names, and checks the number of its arguments.
pub fn lookup(args: &Args<'_>) -> Result<&'static Spec, CommandError> {
    let name = args.get(0).unwrap_or_default();
    let Some(spec) = find(name) else {
        return Err(absent::find(name).unwrap_or_else(|| unknown(name, args)));
    };
    if !spec.accepts(args) {
        return Err(CommandError::Arity(spec.name));
    }
    let Some(given) = args.get(1).filter(|_| !spec.parts.is_empty()) else { return Ok(spec) };
    let Some(part) = spec.part(given) else {
        return Err(CommandError::UnknownSubcommand {
            name: shown(given, SHOWN_BYTES_MAX),
            container: spec.name.to_ascii_uppercase(),
        });
    };
    if !part.accepts(args) {
        return Err(CommandError::Arity(part.name));
    }
    Ok(part)
}

thread_local! {
    /// Index of the last operation found: nearly always the next one is the same.
    static LAST: Cell<usize> = const { Cell::new(0) };
}

/// Finds the operation of that name, in any case.
fn find(name: &[u8]) -> Option<&'static Spec> {
    let last = &TABLE[LAST.get()];
    if last.name.as_bytes().eq_ignore_ascii_case(name) {
        return Some(last);
    }
    let mut lower = [0u8; NAME_BYTES_MAX];
    let lower = lower.get_mut(..name.len())?;
    lower.copy_from_slice(name);
    lower.make_ascii_lowercase();
    // The table is sorted by name.
    let at = TABLE.binary_search_by(|spec| spec.name.as_bytes().cmp(lower)).ok()?;
    LAST.set(at);
    Some(&TABLE[at])
}

fn unknown(name: &[u8], args: &Args<'_>) -> CommandError {
    let mut beginning = String::new();
    for arg in args.from(1) {
        if beginning.len() >= SHOWN_BYTES_MAX {
            break;
        }
        beginning.push_str(&format!("'{}' ", shown(arg, SHOWN_BYTES_MAX - beginning.len())));
    }
    CommandError::Unknown { name: shown(name, SHOWN_BYTES_MAX), args: beginning }
}
