//! The port of import sources: pages of counters with their names.

use quipu_model::Millis;
use quipu_sketch::{Sketch, SketchKind};

/// The counters wanted from a source.
#[derive(Debug, Clone, Default)]
pub struct SourceFilter {
    /// Glob of the names.
    pub pattern: Option<String>,
    /// Query, for a source that is read by SQL.
    pub query: Option<String>,
}

/// A source of counters.
pub trait Source: Send {
    /// The server and its database, without the user's secrets.
    fn location(&self) -> &str;

    /// Approximate number of counters, if that is cheap to know.
    fn approximate_size(&mut self) -> anyhow::Result<Option<u64>>;

    /// The next page; `None` after the last. A page may be empty without being the last, and a name
    /// may come again.
    fn next_page(&mut self) -> anyhow::Result<Option<Vec<SourceKey>>>;

    /// Returns true if a repeated name is the same counter, met twice. Otherwise it is a second
    /// counter of that name, which is a mistake.
    fn may_repeat_keys(&self) -> bool;
}

/// A key of a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceKey {
    /// Its name.
    pub name: Box<[u8]>,
    /// Its content, or the reason why that cannot be imported.
    pub value: Result<SourceContent, SkipReason>,
    /// Start of its count, if the source knows it: its content before that time is over.
    pub since: Millis,
    /// Expiry to carry over, if any.
    pub expires_at: Option<Millis>,
}

/// Content of a counter of a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SourceContent {
    /// A count.
    Count(i128),
    /// A sketch.
    Sketch(SketchBody),
}

/// A sketch as its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SketchBody {
    /// Its form.
    pub kind: SketchKind,
    /// Fingerprint of the secret that items are hashed under; 0 for none.
    pub key: u64,
    /// Its body, valid for that form.
    pub bytes: Vec<u8>,
}

/// Reason why a key is not imported, or a counter not copied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SkipReason {
    /// The same text for all keys with this reason.
    pub text: &'static str,
    /// The offending value of this key.
    pub value: Option<String>,
}

impl From<&'static str> for SkipReason {
    fn from(text: &'static str) -> SkipReason {
        SkipReason { text, value: None }
    }
}

impl std::fmt::Display for SkipReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.text)?;
        self.value.as_ref().map_or(Ok(()), |value| write!(f, ": {value}"))
    }
}

impl SkipReason {
    /// A reason with the offending bytes, cut to `VALUE_SHOWN_MAX` characters.
    pub fn with(text: &'static str, value: &[u8]) -> SkipReason {
        let shown: String = value.escape_ascii().to_string().chars().take(VALUE_SHOWN_MAX).collect();
        SkipReason { text, value: Some(format!("\"{shown}\"")) }
    }
}

impl SourceKey {
    /// A key of a source that knows only names and values.
    pub fn new(name: impl Into<Box<[u8]>>, value: Result<i128, SkipReason>) -> SourceKey {
        SourceKey { name: name.into(), value: value.map(SourceContent::Count), since: Millis(0), expires_at: None }
    }

    /// Its count, unless it is a sketch.
    pub fn count(&self) -> Option<i128> {
        match self.value {
            Ok(SourceContent::Count(count)) => Some(count),
            _ => None,
        }
    }
}

impl SketchBody {
    /// Checks the bytes.
    pub fn new(kind: SketchKind, key: u64, bytes: Vec<u8>) -> Result<SketchBody, SkipReason> {
        let sketch =
            Sketch::from_bytes(kind, bytes).map_err(|_| SkipReason::from("a sketch with bytes that make no sense"))?;
        Ok(SketchBody { kind, key, bytes: sketch.into_bytes() })
    }
}

/// Parses a whole number of 64 bits. It accepts `.000` behind the number, as decimals of PostgreSQL
/// have it.
pub fn integer(text: &[u8]) -> Result<i128, SkipReason> {
    let number = std::str::from_utf8(text).ok().and_then(|text| {
        let whole = text.split_once('.').map_or(Some(text), |(whole, rest)| {
            (!rest.is_empty() && rest.bytes().all(|digit| digit == b'0')).then_some(whole)
        })?;
        // No counter has a plus sign or a space.
        whole
            .trim_start_matches('-')
            .starts_with(|digit: char| digit.is_ascii_digit())
            .then_some(whole)?
            .parse::<i64>()
            .ok()
    });
    number.map(i128::from).ok_or_else(|| SkipReason::with(NOT_AN_INTEGER, text))
}

/// Reason why a string is no count.
pub const NOT_AN_INTEGER: &str = "not an integer of 64 bits";

/// Most characters of an invalid value that are shown.
const VALUE_SHOWN_MAX: usize = 40;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_counts_is_a_whole_number_of_64_bits() {
        for (text, value) in [("0", 0), ("-7", -7), ("12.000", 12), ("9223372036854775807", i128::from(i64::MAX))] {
            assert_eq!(integer(text.as_bytes()), Ok(value));
        }
        for text in ["", "-", "--1", "+1", " 1", "1.5", "1.", ".0", "9223372036854775808", "many", "1e3"] {
            assert!(integer(text.as_bytes()).is_err(), "{text}");
        }
        assert!(integer(b"\xff").unwrap_err().to_string().contains("\\xff"));
    }
}
