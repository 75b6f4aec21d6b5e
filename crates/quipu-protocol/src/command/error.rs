//! Errors of parsing a command: the texts of Redis, prefix included.

use quipu_model::RespCode::Own;
use quipu_model::{BadIdentity, NAME_BYTES_MAX, NameTooLong, Pattern};

/// A command that cannot be executed as written. The text is the whole error reply.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// Unknown operation.
    #[error("ERR unknown command '{name}', with args beginning with: {args}")]
    Unknown {
        /// Name as received, shortened.
        name: String,
        /// First arguments, each quoted and followed by a space.
        args: String,
    },
    /// Unknown subcommand.
    #[error("ERR unknown subcommand '{name}'. Try {container} HELP.")]
    UnknownSubcommand {
        /// Name as received.
        name: String,
        /// Operation, in upper case.
        container: String,
    },
    /// An operation of Redis that a counter does not have.
    #[error("ERR {name} is not offered: {instead}")]
    Absent {
        /// Name, in upper case.
        name: &'static str,
        /// Reason, and the alternative.
        instead: &'static str,
    },
    /// Too few or too many arguments.
    #[error("ERR wrong number of arguments for '{0}' command")]
    Arity(&'static str),
    /// Not a 64-bit integer in its one spelling.
    #[error("ERR value is not an integer or out of range")]
    NotInteger,
    /// An unknown or repeated option, or one excluded by another.
    #[error("ERR syntax error")]
    Syntax,
    /// An expiry of zero, negative where that is not allowed, or out of range.
    #[error("ERR invalid expire time in '{0}' command")]
    BadExpiry(&'static str),
    /// Negation of the smallest integer.
    #[error("ERR decrement would overflow")]
    DecrementOverflow,
    /// A name over the bound.
    #[error("ERR {0}")]
    NameTooLong(#[from] NameTooLong),
    /// A pattern over the bound.
    #[error("ERR pattern is too long: {0} bytes, at most {max} are allowed", max = Pattern::BYTES_MAX)]
    PatternTooLong(usize),
    /// Malformed identity of a mutation.
    #[error("ERR {0}")]
    Identity(#[from] BadIdentity),
    /// Not a cursor that SCAN returned.
    #[error("ERR invalid cursor")]
    Cursor,
    /// Any other mistake; the operation gives the whole text.
    #[error("{0}")]
    BadArgument(&'static str),
    /// Any other mistake, with client input in the text.
    #[error("{0}")]
    BadArgumentNamed(String),
}

quipu_model::reasons! { CommandError:
    Unknown { name: "INCRE".into(), args: "'likes:42' ".into() }, Some(Own), None,
        "There is no command of that name.",
        "Look for it in docs/commands.md, or ask `COMMAND LIST`.";
    UnknownSubcommand { name: "KILL".into(), container: "CLIENT".into() }, Some(Own), None,
        "The command exists, and not with this second word.",
        "Send the command with HELP: it lists its second words.";
    Absent { name: "APPEND", instead: "a counter is a whole number, not a string" }, Some(Own), None,
        "Redis has the command, and a counter cannot have it.",
        "Do what the text says instead.";
    Arity("incrby"), Some(Own), None,
        "The command has too few or too many arguments.",
        "docs/commands.md and `COMMAND DOCS name` show its syntax.";
    NotInteger, Some(Own), None,
        "The value is no whole number between -9223372036854775808 and 9223372036854775807, written in digits.",
        "Send digits without spaces, signs other than -, or leading zeros. Count fractions in a smaller unit.";
    Syntax, Some(Own), None,
        "An option is unknown, stands twice, lacks its value, or excludes another one.",
        "docs/commands.md and `COMMAND DOCS name` show its syntax.";
    BadExpiry("set"), Some(Own), None,
        "The expiry is zero or negative where it must be positive, or out of range.",
        "Give a positive time; EX takes seconds, PX milliseconds, EXAT and PXAT a Unix time.";
    DecrementOverflow, Some(Own), None,
        "DECRBY has -9223372036854775808, whose negation does not fit 64 bits.",
        "Use INCRBY, or a smaller number.";
    NameTooLong(NameTooLong { bytes: NAME_BYTES_MAX + 1 }), Some(Own), None,
        "The name of a counter is over 512 bytes.",
        "Use a shorter name, for example a hash of the long one.";
    PatternTooLong(Pattern::BYTES_MAX + 1), Some(Own), None,
        "The pattern is longer than patterns may be.",
        "Use a shorter pattern, and filter in the client.";
    Identity(BadIdentity::Empty), Some(Own), None,
        "The token after IDMP, or producer and number after SEQ, are not well-formed.",
        "Use a non-empty token within the length in the text; sequence numbers begin with 1.";
    Cursor, Some(Own), None,
        "SCAN has a cursor that no SCAN has returned.",
        "Begin with 0, and send the cursor of the last reply unchanged.";
    BadArgument("ERR LBOUND can't be greater than UBOUND"), Some(Own), None,
        "An argument has a value that this command does not take.",
        "The text names the argument and what it may be.";
    BadArgumentNamed("ERR Unsupported option AB".into()), Some(Own), None,
        "An argument has a value that this command does not take.",
        "The text names the argument and what it may be.";
}

/// Reads a pattern within the bound: the matching time per name grows with the pattern.
pub(super) fn pattern(bytes: &[u8]) -> Result<Pattern<'_>, CommandError> {
    match bytes.len() {
        0..=Pattern::BYTES_MAX => Ok(Pattern(bytes)),
        long => Err(CommandError::PatternTooLong(long)),
    }
}

/// Client input, shortened to a bound.
pub(super) fn shown(bytes: &[u8], bytes_max: usize) -> String {
    // Redis prints a C string, which ends at a zero byte.
    let visible = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(&visible[..visible.len().min(bytes_max)]).into_owned()
}
