//! The counters that an import or a copy skipped, each with its reason.
//!
//! Invariant: every skipped counter is counted under its reason; the first of them are listed by
//! name.

use std::collections::BTreeMap;

use crate::backends::source::SkipReason;
use crate::json::Json;
use crate::terminal;

/// Most skipped counters that are listed.
const LISTED_MAX: usize = 100;

/// The skipped counters.
#[derive(Default)]
pub struct SkipList {
    listed: Vec<(Box<[u8]>, SkipReason)>,
    counts: BTreeMap<&'static str, u64>,
}

impl SkipList {
    /// Adds a skipped counter.
    pub fn add(&mut self, name: Box<[u8]>, reason: SkipReason) {
        *self.counts.entry(reason.text).or_default() += 1;
        if self.listed.len() < LISTED_MAX {
            self.listed.push((name, reason));
        }
    }

    /// Adds the counters of another list.
    pub fn extend(&mut self, other: SkipList) {
        for (reason, count) in other.counts {
            *self.counts.entry(reason).or_default() += count;
        }
        let room = LISTED_MAX - self.listed.len();
        self.listed.extend(other.listed.into_iter().take(room));
    }

    /// Number of skipped counters.
    pub fn count(&self) -> u64 {
        self.counts.values().sum()
    }

    /// Prints them on stderr: the first names, then the number for each reason.
    pub fn print(&self, label: &str) {
        for (name, reason) in &self.listed {
            eprintln!("{label} {}: {reason}", terminal::format_name(name));
        }
        for (reason, count) in &self.counts {
            eprintln!("{label} {count}: {reason}");
        }
    }

    /// The fields for `--json`: the first names, the number of the others, and the number for each
    /// reason.
    pub fn fields(&self, names: [&'static str; 3]) -> Vec<(&'static str, Json)> {
        let listed = self
            .listed
            .iter()
            .map(|(name, reason)| Json::Object(vec![("name", Json::name(name)), ("why", Json::text(reason))]));
        let reasons = self
            .counts
            .iter()
            .map(|(reason, count)| Json::Object(vec![("why", Json::text(reason)), ("count", Json::count(*count))]));
        let more = self.count() - self.listed.len() as u64;
        let [list, list_more, list_reasons] = names;
        vec![
            (list, Json::List(listed.collect())),
            (list_more, Json::count(more)),
            (list_reasons, Json::List(reasons.collect())),
        ]
    }
}
