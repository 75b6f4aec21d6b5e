//! What a read returns: a value, and how far to trust it.

use std::time::Duration;

use crate::{Epoch, Kind, Millis};

/// How many of how many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Coverage {
    /// Those that were seen.
    pub seen: u64,
    /// All that there are, as far as is known.
    pub total: u64,
}

impl Coverage {
    /// The only one there is.
    pub const ONE: Coverage = Coverage { seen: 1, total: 1 };
}

/// What a sketch over time covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowCoverage {
    /// What came from then on is in it.
    pub from: Millis,
    /// What came before that is in it.
    pub to: Millis,
    /// In so many panes something came.
    pub panes: u32,
    /// So many events, ever, came too late to be counted.
    pub late: u64,
}

/// How a count was sampled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SamplingInfo {
    /// Events to one that was counted, for all of them, at most.
    pub rate: u32,
    /// The standard deviation of the value, at most.
    pub deviation: u64,
}

/// A value and how good it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    /// What kind of counter was read.
    pub kind: Kind,
    /// The value; 0 for a counter that does not exist.
    pub value: i64,
    /// Whether the counter exists.
    pub exists: bool,
    /// Whether the value is exact: it includes every operation acknowledged before the read began. Never of an approximate kind, nor of a count that is sampled.
    pub exact: bool,
    /// The least and the most that the value may be, where that is known: of uniques in 95 of 100 cases, of counts that are sampled in 99, of all others certainly.
    pub bound: Option<(i64, i64)>,
    /// Of frequencies and tops, whose value is how much came in all: what is said of one item is too high by so much at most.
    pub error: Option<u64>,
    /// Of a count that is sampled: how rarely, and how far off its value is.
    pub sampled: Option<SamplingInfo>,
    /// Of a sketch over time: which time it is of.
    pub window: Option<WindowCoverage>,
    /// When it was read.
    pub as_of: Millis,
    /// How old what it knows of other nodes is; zero where there are none, `None` if nothing is known of them.
    pub lag: Option<Duration>,
    /// Of the counter's shards, those that are in the value.
    pub shards: Coverage,
    /// Of the writers that may have added to it, those that are in the value.
    pub writers: Coverage,
    /// The counter's epoch: raised by set, reset, delete and expiry.
    pub epoch: Epoch,
    /// When the counter will expire, if ever.
    pub expires_at: Option<Millis>,
}

/// How old what is known of other nodes may be, for one read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Freshness {
    /// As old as the namespace says.
    #[default]
    Usual,
    /// However old it is.
    Cached,
    /// Not older than the read.
    Fresh,
    /// So old at most.
    Within(Duration),
}

impl Freshness {
    /// The longest time that may be asked for; beyond it, `cached` is meant.
    pub const WITHIN_MAX: Duration = Duration::from_secs(3_600);

    /// `cached`, `fresh`, or a time such as `500ms` or `2s`.
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

    /// How old it may be, where the namespace says this.
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
