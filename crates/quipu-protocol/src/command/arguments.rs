//! The arguments of an operation, as data: for syntax lines, `COMMAND DOCS` and docs/commands.md.
//!
//! Not here: reading them (`counter`, `sketch`, `connection`).

use std::fmt;

/// One argument, or a group of them. The words are those of Redis's COMMAND DOCS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Argument {
    /// What it is called in a syntax line.
    pub name: &'static str,
    /// What may stand there.
    pub kind: ArgumentKind,
    /// The word before it.
    pub token: Option<&'static str>,
    /// Whether it may be left out.
    pub optional: bool,
    /// Whether it may stand several times.
    pub multiple: bool,
}

/// What may stand in the place of an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArgumentKind {
    /// The name of a counter.
    Key,
    /// Any bytes.
    String,
    /// A whole number of 64 bits.
    Integer,
    /// A decimal number.
    Double,
    /// A glob.
    Pattern,
    /// A Unix time.
    UnixTime,
    /// Only its word.
    PureToken,
    /// One of these.
    OneOf(&'static [Argument]),
    /// These, one after the other.
    Block(&'static [Argument]),
}

impl ArgumentKind {
    /// The word in COMMAND DOCS.
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

    /// The arguments that a group has.
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

    /// The same, behind a word.
    pub(super) const fn after(self, token: &'static str) -> Argument {
        Argument { token: Some(token), ..self }
    }

    /// The same, which may be left out.
    pub(super) const fn opt(self) -> Argument {
        Argument { optional: true, ..self }
    }

    /// The same, several times.
    pub(super) const fn many(self) -> Argument {
        Argument { multiple: true, ..self }
    }

    /// Words that it takes at least.
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

    /// Whether it always takes as many words.
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

/// As a syntax line has it: `[EX seconds | PX milliseconds]`.
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
