//! Result of a read: a value with its accuracy, age and coverage.

use std::time::Duration;

use crate::{Epoch, Kind, Millis};

/// Number of included parts, of all known ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Coverage {
    /// Included parts.
    pub seen: u64,
    /// All known parts.
    pub total: u64,
}

impl Coverage {
    /// Coverage of a single part that is included.
    pub const ONE: Coverage = Coverage { seen: 1, total: 1 };
}

/// Time covered by a sketch over time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowCoverage {
    /// Begin of the covered time, inclusive.
    pub from: Millis,
    /// End of the covered time, exclusive.
    pub to: Millis,
    /// Number of panes that hold events.
    pub panes: u32,
    /// Number of events ever that came too late to be counted.
    pub late: u64,
}

/// Sampling of a count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SamplingInfo {
    /// Largest number of events per counted one.
    pub rate: u32,
    /// Upper bound of the value's standard deviation.
    pub deviation: u64,
}

/// A value with its quality.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    /// Kind of the counter.
    pub kind: Kind,
    /// The value; 0 for a counter that does not exist.
    pub value: i64,
    /// True if the counter exists.
    pub exists: bool,
    /// True if the value includes every operation acknowledged before the read began. Always false
    /// for an approximate kind and for a sampled count.
    pub exact: bool,
    /// Least and greatest possible value, if known. Uniques: in 95 of 100 cases. Sampled counts: in
    /// 99 of
    /// 100. All others: certainly.
    pub bound: Option<(i64, i64)>,
    /// Frequencies and tops: greatest overestimate of one item. The value is the total of all
    /// events.
    pub error: Option<u64>,
    /// Sampled counts: the rate and the deviation.
    pub sampled: Option<SamplingInfo>,
    /// Sketches over time: the covered time.
    pub window: Option<WindowCoverage>,
    /// Time of the read.
    pub as_of: Millis,
    /// Age of the data about other nodes; zero if there are none, `None` if nothing is known of
    /// them.
    pub lag: Option<Duration>,
    /// Shards of the counter that the value includes.
    pub shards: Coverage,
    /// Writers of the counter that the value includes.
    pub writers: Coverage,
    /// Epoch of the counter: raised by set, reset, delete and expiry.
    pub epoch: Epoch,
    /// Expiry time, if any.
    pub expires_at: Option<Millis>,
}

/// Greatest age of the data about other nodes, for one read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Freshness {
    /// The namespace's setting.
    #[default]
    Usual,
    /// Any age.
    Cached,
    /// Not older than the read.
    Fresh,
    /// At most this age.
    Within(Duration),
}

impl Freshness {
    /// Longest age that a client may name. For more, it names `cached`.
    pub const WITHIN_MAX: Duration = Duration::from_secs(3_600);

    /// Parses `cached`, `fresh`, or a duration such as `500ms` or `2s`.
    pub fn parse(text: &[u8]) -> Option<Freshness> {
        let text = std::str::from_utf8(text).ok()?;
        if text.eq_ignore_ascii_case("cached") {
            return Some(Freshness::Cached);
        }
        if text.eq_ignore_ascii_case("fresh") {
            return Some(Freshness::Fresh);
        }
        let (digits, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit())?);
        let number = digits.parse().ok()?;
        let time = match unit {
            "ms" => Duration::from_millis(number),
            "s" => Duration::from_secs(number),
            _ => return None,
        };
        (time <= Freshness::WITHIN_MAX).then_some(Freshness::Within(time))
    }

    /// Returns the greatest age; `usual` is the namespace's setting.
    pub fn limit(self, usual: Duration) -> Duration {
        match self {
            Freshness::Usual => usual,
            Freshness::Cached => Duration::MAX,
            Freshness::Fresh => Duration::ZERO,
            Freshness::Within(time) => time,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freshness_is_a_word_or_a_time() {
        let millis = |number| Some(Freshness::Within(Duration::from_millis(number)));
        for (text, freshness) in [
            ("cached", Some(Freshness::Cached)),
            ("FRESH", Some(Freshness::Fresh)),
            ("500ms", millis(500)),
            ("2s", millis(2_000)),
            ("3600s", millis(3_600_000)),
            ("3601s", None),
            ("", None),
            ("ms", None),
            ("5", None),
            ("-5s", None),
            ("5 s", None),
            ("99999999999999999999s", None),
        ] {
            assert_eq!(Freshness::parse(text.as_bytes()), freshness, "{text}");
        }
        assert_eq!(Freshness::parse(b"\xff"), None);
    }
}
