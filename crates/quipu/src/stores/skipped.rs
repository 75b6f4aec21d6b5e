//! The counters that an import or a copy left out, each with its reason.
//!
//! Invariant: every counter left out is counted under its reason; the first of them are named.

use std::collections::BTreeMap;

use crate::backends::source::Reason;
use crate::json::Json;
use crate::show;

/// How many of the counters left out are named.
const SHOWN_MAX: usize = 100;

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

    /// Leaves out what another list has, too.
    pub fn extend(&mut self, other: Skipped) {
        for (reason, count) in other.counts {
            *self.counts.entry(reason).or_default() += count;
        }
        let room = SHOWN_MAX - self.shown.len();
        self.shown.extend(other.shown.into_iter().take(room));
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
