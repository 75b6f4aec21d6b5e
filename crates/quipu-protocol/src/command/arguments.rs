//! Describes the arguments of an operation: for syntax lines, `COMMAND DOCS` and docs/commands.md.
//!
//! Not here: reading the arguments (`counter`, `sketch`, `connection`).

use std::fmt;

/// One argument, or a group of them. The terms are those of Redis's COMMAND DOCS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Argument {
    /// Name in a syntax line.
    pub name: &'static str,
    /// Type of the value.
    pub kind: ArgumentKind,
    /// Keyword before the value.
    pub token: Option<&'static str>,
    /// True if it may be absent.
    pub optional: bool,
    /// True if it may occur several times.
    pub multiple: bool,
}

/// Type of an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArgumentKind {
    /// Name of a counter.
    Key,
    /// Any bytes.
    String,
    /// A 64-bit integer.
    Integer,
    /// A decimal number.
    Double,
    /// A glob.
    Pattern,
    /// A Unix time.
    UnixTime,
    /// A keyword without a value.
    PureToken,
    /// One of these.
    OneOf(&'static [Argument]),
    /// These, one after the other.
    Block(&'static [Argument]),
}

impl ArgumentKind {
    /// Name in COMMAND DOCS.
    pub fn name(self) -> &'static str {
        match self {
            ArgumentKind::Key => "key",
            ArgumentKind::String => "string",
            ArgumentKind::Integer => "integer",
            ArgumentKind::Double => "double",
            ArgumentKind::Pattern => "pattern",
            ArgumentKind::UnixTime => "unix-time",
            ArgumentKind::PureToken => "pure-token",
            ArgumentKind::OneOf(_) => "oneof",
            ArgumentKind::Block(_) => "block",
        }
    }

    /// Arguments of a group.
    pub fn group(self) -> &'static [Argument] {
        match self {
            ArgumentKind::OneOf(group) | ArgumentKind::Block(group) => group,
            _ => &[],
        }
    }
}

impl Argument {
    const fn new(name: &'static str, kind: ArgumentKind) -> Argument {
        Argument { name, kind, token: None, optional: false, multiple: false }
    }

    /// The argument behind a keyword.
    pub(super) const fn after(self, token: &'static str) -> Argument {
        Argument { token: Some(token), ..self }
    }

    /// The argument as an optional one.
    pub(super) const fn opt(self) -> Argument {
        Argument { optional: true, ..self }
    }

    /// The argument as a repeatable one.
    pub(super) const fn many(self) -> Argument {
        Argument { multiple: true, ..self }
    }

    /// Fewest words that it takes.
    pub fn words_min(&self) -> usize {
        if self.optional {
            return 0;
        }
        let own = match self.kind {
            ArgumentKind::PureToken => 0,
            ArgumentKind::OneOf(group) => group.iter().map(Argument::words_min).min().unwrap_or(0),
            ArgumentKind::Block(group) => group.iter().map(Argument::words_min).sum(),
            _ => 1,
        };
        own + usize::from(self.token.is_some())
    }

    /// Returns true if it always takes the same number of words.
    pub fn is_fixed(&self) -> bool {
        !self.optional && !self.multiple && self.kind.group().iter().all(Argument::is_fixed)
    }
}

pub(super) const fn key(name: &'static str) -> Argument {
    Argument::new(name, ArgumentKind::Key)
}

pub(super) const fn string(name: &'static str) -> Argument {
    Argument::new(name, ArgumentKind::String)
}

pub(super) const fn integer(name: &'static str) -> Argument {
    Argument::new(name, ArgumentKind::Integer)
}

pub(super) const fn double(name: &'static str) -> Argument {
    Argument::new(name, ArgumentKind::Double)
}

pub(super) const fn pattern(name: &'static str) -> Argument {
    Argument::new(name, ArgumentKind::Pattern)
}

pub(super) const fn unix_time(name: &'static str) -> Argument {
    Argument::new(name, ArgumentKind::UnixTime)
}

pub(super) const fn token(word: &'static str) -> Argument {
    Argument::new(word, ArgumentKind::PureToken).after(word)
}

pub(super) const fn one_of(name: &'static str, group: &'static [Argument]) -> Argument {
    Argument::new(name, ArgumentKind::OneOf(group))
}

pub(super) const fn block(name: &'static str, group: &'static [Argument]) -> Argument {
    Argument::new(name, ArgumentKind::Block(group))
}

/// Formats it as in a syntax line: `[EX seconds | PX milliseconds]`.
impl fmt::Display for Argument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let join =
            |group: &[Argument], between: &str| group.iter().map(Argument::to_string).collect::<Vec<_>>().join(between);
        let mut text = match self.kind {
            ArgumentKind::PureToken => String::new(),
            ArgumentKind::OneOf(group) if self.optional => join(group, " | "),
            ArgumentKind::OneOf(group) => format!("<{}>", join(group, " | ")),
            ArgumentKind::Block(group) => join(group, " "),
            _ => self.name.to_owned(),
        };
        if self.multiple {
            text = format!("{text} [{text} ...]");
        }
        if let Some(token) = self.token {
            text = if text.is_empty() { token.to_owned() } else { format!("{token} {text}") };
        }
        if self.optional { write!(f, "[{text}]") } else { f.write_str(&text) }
    }
}
