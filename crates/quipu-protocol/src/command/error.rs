//! Why a command was not understood, in the words of Redis, prefix included.

use quipu_model::{BadIdentity, NameTooLong, Pattern};

/// A command that cannot be carried out as it was written. The text is the whole error reply.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// No such operation. Holds what was typed, shortened.
    #[error("ERR unknown command '{name}', with args beginning with: {args}")]
    Unknown {
        /// The name as typed.
        name: String,
        /// The first arguments, each quoted and followed by a space.
        args: String,
    },
    /// No such part of an operation.
    #[error("ERR unknown subcommand '{name}'. Try {container} HELP.")]
    UnknownSubcommand {
        /// The name as typed.
        name: String,
        /// The operation, in capitals.
        container: String,
    },
    /// An operation of Redis that a counter does not have.
    #[error("ERR {name} is not offered: {instead}")]
    Absent {
        /// Its name, in capitals.
        name: &'static str,
        /// Why, and what to do.
        instead: &'static str,
    },
    /// Too few or too many arguments.
    #[error("ERR wrong number of arguments for '{0}' command")]
    Arity(&'static str),
    /// Not a 64-bit integer in its one spelling.
    #[error("ERR value is not an integer or out of range")]
    NotInteger,
    /// An option that does not exist, twice, or with another that excludes it.
    #[error("ERR syntax error")]
    Syntax,
    /// An expiry of zero, negative where it may not be, or out of range.
    #[error("ERR invalid expire time in '{0}' command")]
    BadExpiry(&'static str),
    /// The negation of the smallest integer.
    #[error("ERR decrement would overflow")]
    DecrementOverflow,
    /// A name over the bound.
    #[error("ERR {0}")]
    NameTooLong(#[from] NameTooLong),
    /// A pattern over the bound.
    #[error("ERR pattern is too long: {0} bytes, at most {max} are allowed", max = Pattern::BYTES_MAX)]
    PatternTooLong(usize),
    /// What cannot name a mutation.
    #[error("ERR {0}")]
    Identity(#[from] BadIdentity),
    /// Not a cursor that SCAN returned.
    #[error("ERR invalid cursor")]
    Cursor,
    /// Any other mistake, worded in full by the operation it belongs to.
    #[error("{0}")]
    Worded(&'static str),
    /// The same, with words of the client in it.
    #[error("{0}")]
    WordedWith(String),
}

/// Takes a pattern within the bound: a longer one would be matched in time that grows with it, name by name.
pub(super) fn pattern(bytes: &[u8]) -> Result<Pattern<'_>, CommandError> {
    match bytes.len() {
        0..=Pattern::BYTES_MAX => Ok(Pattern(bytes)),
        long => Err(CommandError::PatternTooLong(long)),
    }
}

/// What was typed, as far as it can be shown.
pub(super) fn shown(bytes: &[u8], bytes_max: usize) -> String {
    // Redis prints a C string: what follows a zero byte is not seen.
    let visible = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(&visible[..visible.len().min(bytes_max)]).into_owned()
}
