//! The counters that an import or a copy left out, each with its reason.
//!
//! Invariant: every counter left out is counted under its reason; the first of them are named.

use std::collections::BTreeMap;
use std::fmt;

use crate::json::Json;
use crate::show;

/// How many of the counters left out are named.
const SHOWN_MAX: usize = 100;

/// Why a counter is left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reason {
    /// The same for all counters that are left out for it.
    pub text: &'static str,
    /// What the counter has instead.
    pub value: Option<String>,
}

impl From<&'static str> for Reason {
    fn from(text: &'static str) -> Reason {
        Reason { text, value: None }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text)?;
        self.value.as_ref().map_or(Ok(()), |value| write!(f, ": {value}"))
    }
}

/// The counters left out.
#[derive(Default)]
pub struct Skipped {
    shown: Vec<(Box<[u8]>, Reason)>,
    counts: BTreeMap<&'static str, u64>,
}

impl Skipped {
    /// Leaves one out.
    pub fn add(&mut self, name: Box<[u8]>, reason: Reason) {
        *self.counts.entry(reason.text).or_default() += 1;
        if self.shown.len() < SHOWN_MAX {
            self.shown.push((name, reason));
        }
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.counts.values().sum()
    }

    /// Prints them on stderr: the first names, then how many there are for each reason.
    pub fn print(&self, word: &str) {
        for (name, reason) in &self.shown {
            eprintln!("{word} {}: {reason}", show::name(name));
        }
        for (reason, count) in &self.counts {
            eprintln!("{word} {count}: {reason}");
        }
    }

    /// The same for `--json`: the first, how many more there are, and how many for each reason.
    pub fn fields(&self, names: [&'static str; 3]) -> Vec<(&'static str, Json)> {
        let shown = self
            .shown
            .iter()
            .map(|(name, reason)| Json::Object(vec![("name", Json::name(name)), ("why", Json::text(reason))]));
        let reasons = self
            .counts
            .iter()
            .map(|(reason, count)| Json::Object(vec![("why", Json::text(reason)), ("count", Json::count(*count))]));
        let more = self.count() - self.shown.len() as u64;
        let [list, list_more, list_reasons] = names;
        vec![
            (list, Json::List(shown.collect())),
            (list_more, Json::count(more)),
            (list_reasons, Json::List(reasons.collect())),
        ]
    }
}
