//! How the value of a setting is written, in a file, a flag or a body.

/// How a value is written; decides which types of TOML and JSON are right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// A path, an address, a word.
    Text,
    /// A whole number.
    Number,
    /// A number of bytes, or a text with a unit.
    Size,
    /// A text with a unit.
    Time,
    /// A whole number, or a word for leaving it to the program.
    NumberOrAuto,
    /// True or false.
    Switch,
}

impl Form {
    /// What `--help` calls the value.
    pub fn word(self) -> &'static str {
        match self {
            Form::Text => "TEXT",
            Form::Number => "NUMBER",
            Form::Size => "SIZE",
            Form::Time => "TIME",
            Form::NumberOrAuto => "NUMBER",
            Form::Switch => "BOOL",
        }
    }

    /// What a file or a body must have.
    pub fn expected(self) -> &'static str {
        match self {
            Form::Text => "a string",
            Form::Number => "a whole number",
            Form::Size => "a whole number of bytes or a string such as \"16MiB\"",
            Form::Time => "a string such as \"50ms\" or \"10s\"",
            Form::NumberOrAuto => "a whole number or \"auto\"",
            Form::Switch => "true or false",
        }
    }

    /// Whether a string is right.
    pub fn takes_text(self) -> bool {
        matches!(self, Form::Text | Form::Size | Form::Time | Form::NumberOrAuto)
    }

    /// Whether a whole number is right.
    pub fn takes_number(self) -> bool {
        matches!(self, Form::Number | Form::Size | Form::NumberOrAuto)
    }
}
