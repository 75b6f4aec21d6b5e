//! How the value of a setting is written, in a file, a flag or a body.

/// How a value is written; decides which types of TOML and JSON are right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueForm {
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

impl ValueForm {
    /// What `--help` calls the value.
    pub fn value_name(self) -> &'static str {
        match self {
            ValueForm::Text => "TEXT",
            ValueForm::Number => "NUMBER",
            ValueForm::Size => "SIZE",
            ValueForm::Time => "TIME",
            ValueForm::NumberOrAuto => "NUMBER",
            ValueForm::Switch => "BOOL",
        }
    }

    /// What a file or a body must have.
    pub fn expected(self) -> &'static str {
        match self {
            ValueForm::Text => "a string",
            ValueForm::Number => "a whole number",
            ValueForm::Size => "a whole number of bytes or a string such as \"16MiB\"",
            ValueForm::Time => "a string such as \"50ms\" or \"10s\"",
            ValueForm::NumberOrAuto => "a whole number or \"auto\"",
            ValueForm::Switch => "true or false",
        }
    }

    /// Whether a string is right.
    pub fn takes_text(self) -> bool {
        matches!(self, ValueForm::Text | ValueForm::Size | ValueForm::Time | ValueForm::NumberOrAuto)
    }

    /// Whether a whole number is right.
    pub fn takes_number(self) -> bool {
        matches!(self, ValueForm::Number | ValueForm::Size | ValueForm::NumberOrAuto)
    }
}
