//! Syntax of a setting's value in a file, a flag or a body.

/// Syntax of a value; decides the valid types of TOML and JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueForm {
    /// A path, an address, a name.
    Text,
    /// A whole number.
    Number,
    /// A number of bytes, or a text with a unit.
    Size,
    /// A text with a unit.
    Time,
    /// A whole number, or `auto`.
    NumberOrAuto,
    /// True or false.
    Switch,
}

impl ValueForm {
    /// Returns the name of the value in `--help`.
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

    /// Returns a description of valid values in a file or a body.
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

    /// Returns true if a string is valid.
    pub fn takes_text(self) -> bool {
        matches!(self, ValueForm::Text | ValueForm::Size | ValueForm::Time | ValueForm::NumberOrAuto)
    }

    /// Returns true if a whole number is valid.
    pub fn takes_number(self) -> bool {
        matches!(self, ValueForm::Number | ValueForm::Size | ValueForm::NumberOrAuto)
    }
}
