//! Settings of a namespace: one table entry per key with its syntax, meaning and effect.
//!
//! In: the values of a `[namespace.x]` table, of a JSON object, or of the journal, as text. Out: a
//! [`Namespace`]. A key without a value falls back to the server's setting.
//!
//! Invariants:
//! - each key is in the table once; file, JSON, journal, `config check` and documentation derive
//!   from the table;
//! - a shown value stays readable in all later versions. The journal stores settings as shown text,
//!   so a bound may become wider and never narrower.
//!
//! Not here: which of several sources applies (the engine's `namespaces`), the effect of a setting
//! (`admission` and the modules it calls).

use std::time::Duration;

use quipu_sketch::window::Panes;

use crate::quantity::{read_duration_between, show_duration};
use crate::{Durability, Kind, ValueForm};

/// Longest name of a configured namespace: a quarter of the longest counter name.
pub const NAMESPACE_BYTES_MAX: usize = 128;

/// Most namespaces that a file configures, and most that are configured at run time. An
/// installation has dozens, one per purpose of counters. A list of this many is a reply of about a
/// megabyte.
pub const NAMESPACES_MAX: usize = 1_000;

/// Most bytes that [`Namespace::encode`] writes: fourteen keys of less than twenty bytes, with
/// values of about the same length.
pub const NAMESPACE_SETTINGS_BYTES_MAX: usize = 512;

/// Most shards of a counter per writer. Each shard is a cell in the row that every reader fetches.
pub const SHARDS_MAX: u16 = 64;

/// Bounds of the time between two puts of a counter. Least: a store's round trip. Most: the longest
/// time that an add may stay unknown to other nodes.
const SETTLE_EVERY: (Duration, Duration) = (Duration::from_millis(10), HOUR);

/// Bounds of the age of a reading. With zero, every reading asks the store.
const FRESHNESS: (Duration, Duration) = (Duration::ZERO, HOUR);

/// Bounds of the token window. A client that retries for longer than a year has given up.
const TOKEN_WINDOW: (Duration, Duration) = (Duration::from_millis(1), Duration::from_secs(365 * 24 * 3_600));

/// Bounds of a TTL. Below a second a count is useless; above ten years it is permanent.
const TTL: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(3_650 * 24 * 3_600));

/// Most counters of a namespace: more than a disk holds, and exact in every JSON reader.
const COUNTERS_MAX: u64 = 1_000_000_000_000;

/// Rarest sample rate. Of a thousand million events it takes a thousand, with a relative error of 3
/// %. A rarer sample would be no better than a guess.
pub const SAMPLE_MAX: u32 = 1_000_000;

const HOUR: Duration = Duration::from_secs(3_600);

/// Name of the automatic shard count and of the automatic sample rate.
const AUTO: &str = "auto";

/// Names of the shard picks.
const PICKS: [(&str, ShardPick); 4] = [
    ("writer", ShardPick::Writer),
    ("random", ShardPick::Random),
    ("hash", ShardPick::Hash),
    ("time", ShardPick::Time),
];

/// Names of the overload policies.
const OVERLOADS: [(&str, Overload); 2] = [("refuse", Overload::Refuse), ("sample", Overload::Sample)];

/// Names of the fail modes.
const FAIL_MODES: [(&str, FailMode); 4] = [
    ("local", FailMode::Local),
    ("open", FailMode::Open),
    ("last-known", FailMode::LastKnown),
    ("closed", FailMode::Closed),
];

/// Settings of a namespace; `None` leaves a setting to the server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Namespace {
    /// Only kind of its counters.
    pub kind: Option<Kind>,
    /// Durability of an ack.
    pub durability: Option<Durability>,
    /// Time to live of a counter created without an expiry of its own.
    pub ttl: Option<Duration>,
    /// Time window of approximate counters, and its number of panes.
    pub window: Option<Panes>,
    /// Half-life of the counts in a top list.
    pub decay: Option<Duration>,
    /// Shared store: greatest age of other nodes' values in a reading.
    pub freshness: Option<Duration>,
    /// Shared store: delay from a change to its put.
    pub settle_every: Option<Duration>,
    /// Shared store: number of cells per counter and writer.
    pub shards: Option<ShardCount>,
    /// Shared store: choice of the cell that an add goes to.
    pub pick: Option<ShardPick>,
    /// Time during which a mutation with a token can be retried.
    pub token_window: Option<Duration>,
    /// Greatest number of counters.
    pub max_counters: Option<u64>,
    /// Behaviour while the shared store does not respond.
    pub fail_mode: Option<FailMode>,
    /// Sample rate of counts.
    pub sample: Option<SampleRate>,
    /// Behaviour of adds while the journal cannot keep up.
    pub overload: Option<Overload>,
}

/// Number of events per counted one; the counted one stands for all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SampleRate {
    /// A fixed number, at least 2.
    OneIn(u32),
    /// Adapts the rate to the counter's value for an error of half a percent. While events are few,
    /// all are counted.
    Auto,
}

/// Behaviour of adds while the journal cannot keep up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Overload {
    /// Adds wait, and are refused if there is no room.
    #[default]
    Refuse,
    /// Adds are sampled until the overload ends: one event is counted for several.
    Sample,
}

/// Number of cells per counter and writer in a shared store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ShardCount {
    /// As many cells as are useful, which is one. A node adds to its own table and puts running
    /// values, so adds never contend for a cell.
    #[default]
    Auto,
    /// A fixed number.
    Fixed(u16),
}

impl ShardCount {
    /// Returns the number of cells.
    pub fn get(self) -> u16 {
        match self {
            ShardCount::Auto => 1,
            ShardCount::Fixed(count) => count,
        }
    }
}

/// Choice of the shard of an add, for a counter with several.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ShardPick {
    /// One shard for all adds of a writer.
    #[default]
    Writer,
    /// A random shard, evenly distributed.
    Random,
    /// The hash of the command's shard key.
    Hash,
    /// The second in which the add is made.
    Time,
}

/// Behaviour while a shared store does not respond. The node then has only its own counts and the
/// row it fetched last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FailMode {
    /// Adds go on and are put when the store is back. Reads use the last known row; without one
    /// they are refused.
    #[default]
    Local,
    /// As `Local`, but a read without a known row shows this node's own counts.
    Open,
    /// Reads use the last known row; adds are refused.
    LastKnown,
    /// Adds and reads are refused.
    Closed,
}

impl FailMode {
    /// Returns true if adds go on.
    pub fn adds(self) -> bool {
        matches!(self, FailMode::Local | FailMode::Open)
    }

    /// Returns true if a read is served; `something` is true if a row is known.
    pub fn reads(self, something: bool) -> bool {
        match self {
            FailMode::Local | FailMode::LastKnown => something,
            FailMode::Open => true,
            FailMode::Closed => false,
        }
    }
}

/// One key of a namespace.
pub struct NamespaceKey {
    /// Name of the key.
    pub key: &'static str,
    /// Syntax of its value.
    pub form: ValueForm,
    /// Description for the documentation.
    pub help: &'static str,
    /// Default if neither the namespace nor the server sets it; empty for none.
    pub default: &'static str,
    /// Parses and stores a value, or returns an error text.
    pub take: fn(&mut Namespace, &str) -> Result<(), String>,
    /// Returns the value in its written form, if it is set.
    pub show: fn(&Namespace) -> Option<String>,
}

/// All keys, in display order. If the server has a setting of the same name, it applies if a
/// namespace leaves the key open.
pub static NAMESPACE_KEYS: &[NamespaceKey] = &[
    NamespaceKey {
        key: "kind",
        form: ValueForm::Text,
        help: "Only kind of new counters: `count`, `unique`, `frequency` or `top`; without it, any kind",
        default: "",
        take: |n, text| set_field(&mut n.kind, read_kind(text)),
        show: |n| n.kind.map(|kind| kind.name().to_owned()),
    },
    NamespaceKey {
        key: "durability",
        form: ValueForm::Text,
        help: "Meaning of an acknowledgement: `durable` (synced to disk), `relaxed` (handed to the OS), `memory` (applied in memory)",
        default: "durable",
        take: |n, text| set_field(&mut n.durability, text.parse().map_err(|e| format!("{e}"))),
        show: |n| n.durability.map(|durability| durability.to_string()),
    },
    NamespaceKey {
        key: "ttl",
        form: ValueForm::Time,
        help: "Time to live of a counter created without an expiry of its own; later adds do not move the expiry. Not offered on a shared store",
        default: "",
        take: |n, text| set_field(&mut n.ttl, read_duration_between(text, TTL)),
        show: |n| n.ttl.map(show_duration),
    },
    NamespaceKey {
        key: "window",
        form: ValueForm::Text,
        help: "Time window of new counters of approximate kinds, and its number of panes; existing counters stay as they are. `1h/60` is the last hour in 60 panes of a minute; the oldest pane leaves as a whole. Not offered on a shared store",
        default: "",
        take: |n, text| set_field(&mut n.window, Panes::parse(text)),
        show: |n| n.window.map(|window| window.to_string()),
    },
    NamespaceKey {
        key: "decay",
        form: ValueForm::Time,
        help: "Half-life of the counts in new tops, for trending items: an event of this age counts half. Such tops have no panes. Not offered on a shared store",
        default: "",
        take: |n, text| set_field(&mut n.decay, read_duration_between(text, TTL)),
        show: |n| n.decay.map(show_duration),
    },
    NamespaceKey {
        key: "freshness",
        form: ValueForm::Time,
        help: "With a shared store: greatest age of other nodes' values in a reading",
        default: "1s",
        take: |n, text| set_field(&mut n.freshness, read_freshness(text)),
        show: |n| n.freshness.map(show_duration),
    },
    NamespaceKey {
        key: "settle_every",
        form: ValueForm::Time,
        help: "With a shared store: time from a counter's change to its put",
        default: "1s",
        take: |n, text| set_field(&mut n.settle_every, read_settle_every(text)),
        show: |n| n.settle_every.map(show_duration),
    },
    NamespaceKey {
        key: "shards",
        form: ValueForm::NumberOrAuto,
        help: "With a shared store: number of cells per counter and writer, or `auto`",
        default: "auto",
        take: |n, text| set_field(&mut n.shards, read_shards(text)),
        show: |n| n.shards.map(show_shards),
    },
    NamespaceKey {
        key: "pick",
        form: ValueForm::Text,
        help: "With several cells per writer: cell of an add, by `writer` (always the same), `random`, `hash` (of the command's SHARDKEY) or `time` (current second)",
        default: "writer",
        take: |n, text| set_field(&mut n.pick, read_pick(text)),
        show: |n| n.pick.map(|pick| show_pick(pick).to_owned()),
    },
    NamespaceKey {
        key: "token_window",
        form: ValueForm::Time,
        help: "Time in which a mutation with a token can be retried",
        default: "24h",
        take: |n, text| set_field(&mut n.token_window, read_token_window(text)),
        show: |n| n.token_window.map(show_duration),
    },
    NamespaceKey {
        key: "max_counters",
        form: ValueForm::Number,
        help: "Limit of counters; beyond it, the server refuses new ones, and existing ones count on. Every start counts them. Not offered on a shared store",
        default: "",
        take: |n, text| set_field(&mut n.max_counters, read_counters(text)),
        show: |n| n.max_counters.map(|counters| counters.to_string()),
    },
    NamespaceKey {
        key: "fail_mode",
        form: ValueForm::Text,
        help: "Behaviour while a shared store does not answer. `local`: adds go on, reads show the last known value. `open`: the same, and a read without a known value shows this node's own counts. `last-known`: reads only. `closed`: neither adds nor reads",
        default: "local",
        take: |n, text| set_field(&mut n.fail_mode, read_fail_mode(text)),
        show: |n| n.fail_mode.map(|mode| show_fail_mode(mode).to_owned()),
    },
    NamespaceKey {
        key: "sample",
        form: ValueForm::NumberOrAuto,
        help: "Sample rate p of counts: each event counts with probability 1/p, and then adds p. The value is an estimate, and every reading states its error. With `auto` every event counts while events are few; later the rate keeps the error below half a percent. The server refuses decrements and adds with bounds, since they need exactness. Not offered on a shared store",
        default: "",
        take: |n, text| set_field(&mut n.sample, read_sample(text)),
        show: |n| n.sample.map(show_sample),
    },
    NamespaceKey {
        key: "overload",
        form: ValueForm::Text,
        help: "Behaviour while the journal cannot keep up. `refuse`: adds wait, and without room the server refuses them. `sample`: one event in 2, 4, 8 … counts, for all of them, until the overload ends; readings and metrics show it. With `sample`, the server refuses decrements and adds with bounds, since they need exactness. Not offered on a shared store",
        default: "refuse",
        take: |n, text| set_field(&mut n.overload, parse_name("overload", &OVERLOADS, text)),
        show: |n| n.overload.map(|overload| name_of(&OVERLOADS, overload).to_owned()),
    },
];

impl Namespace {
    /// Creates a namespace that only sets its durability.
    pub fn with_durability(durability: Durability) -> Namespace {
        Namespace { durability: Some(durability), ..Namespace::default() }
    }

    /// Returns true if no key is set.
    pub fn is_empty(&self) -> bool {
        *self == Namespace::default()
    }

    /// Returns these settings, with `other` for the keys left open.
    #[must_use]
    pub fn with_defaults(&self, other: &Namespace) -> Namespace {
        let mut both = other.clone();
        for key in NAMESPACE_KEYS {
            if let Some(text) = (key.show)(self) {
                (key.take)(&mut both, &text).expect("what is shown can be taken");
            }
        }
        both
    }

    /// Lists settings that exclude each other, or a shared store. Each error text begins with the
    /// key.
    pub fn conflicts(&self, shared: bool) -> Vec<String> {
        let mut mistakes = if shared { self.store_conflicts() } else { Vec::new() };
        let sampling = [("sample", self.sample.is_some()), ("overload", self.overload == Some(Overload::Sample))];
        for (key, _) in sampling.into_iter().filter(|(_, is_set)| *is_set) {
            if let Some(kind) = self.kind.filter(|kind| *kind != Kind::Count) {
                mistakes.push(format!("{key}: only counts are sampled, and kind is {}; leave one out", kind.name()));
            }
            for (other, _) in
                [("window", self.window.is_some()), ("decay", self.decay.is_some())].iter().filter(|o| o.1)
            {
                mistakes.push(format!(
                    "{key}: only counts are sampled, and {other} is of approximate kinds; leave one out"
                ));
            }
        }
        mistakes
    }

    /// Lists settings that a shared store excludes.
    fn store_conflicts(&self) -> Vec<String> {
        let over_time = "there are no sketches over time";
        let sampled = "other nodes would not know that what they read was sampled";
        let expiry = "a counter's expiry is a change of its own, which an add cannot make";
        let given = [
            ("ttl", self.ttl.is_some(), expiry),
            ("max_counters", self.max_counters.is_some(), "other nodes make counters, too"),
            ("window", self.window.is_some(), over_time),
            ("decay", self.decay.is_some(), over_time),
            ("sample", self.sample.is_some(), sampled),
            ("overload", self.overload == Some(Overload::Sample), sampled),
        ];
        let conflict = |(key, _, reason)| format!("{key}: on a shared store {reason}; leave it out");
        given.into_iter().filter(|(_, is_given, _)| *is_given).map(conflict).collect()
    }

    /// Appends the settings: for each set key its name and its value, each behind a byte with its
    /// length.
    pub fn encode(&self, out: &mut Vec<u8>) {
        for key in NAMESPACE_KEYS {
            let Some(text) = (key.show)(self) else { continue };
            for part in [key.key, &text] {
                out.push(u8::try_from(part.len()).expect("keys and values are short"));
                out.extend_from_slice(part.as_bytes());
            }
        }
    }

    /// Decodes settings; `None` if the bytes are not valid.
    pub fn decode(mut bytes: &[u8]) -> Option<Namespace> {
        let mut namespace = Namespace::default();
        while !bytes.is_empty() {
            let (word, text) = (take_text(&mut bytes)?, take_text(&mut bytes)?);
            let key = NAMESPACE_KEYS.iter().find(|key| key.key == word)?;
            if (key.show)(&namespace).is_some() {
                return None;
            }
            (key.take)(&mut namespace, text).ok()?;
        }
        Some(namespace)
    }
}

/// Takes a text behind a byte with its length; `None` if the bytes are not valid.
fn take_text<'b>(bytes: &mut &'b [u8]) -> Option<&'b str> {
    let (&length, rest) = bytes.split_first()?;
    let (text, rest) = rest.split_at_checked(usize::from(length))?;
    *bytes = rest;
    std::str::from_utf8(text).ok()
}

/// Checks the name of a namespace; returns an error text if it is not valid.
pub fn check_namespace_name(name: &[u8]) -> Result<(), String> {
    let shown = name.escape_ascii();
    if name.contains(&b':') {
        return Err(format!("'{shown}' is no namespace: a namespace ends before the first ':' of a name"));
    }
    if name.len() > NAMESPACE_BYTES_MAX {
        let bytes = name.len();
        return Err(format!("the name of a namespace has at most {NAMESPACE_BYTES_MAX} bytes, this one has {bytes}"));
    }
    Ok(())
}

/// Parses [`Namespace::settle_every`].
pub fn read_settle_every(text: &str) -> Result<Duration, String> {
    read_duration_between(text, SETTLE_EVERY)
}

/// Parses [`Namespace::freshness`].
pub fn read_freshness(text: &str) -> Result<Duration, String> {
    read_duration_between(text, FRESHNESS)
}

/// Parses [`Namespace::token_window`].
pub fn read_token_window(text: &str) -> Result<Duration, String> {
    read_duration_between(text, TOKEN_WINDOW)
}

/// Parses [`Namespace::shards`].
pub fn read_shards(text: &str) -> Result<ShardCount, String> {
    match text.parse() {
        _ if text == AUTO => Ok(ShardCount::Auto),
        Ok(count) if (1..=SHARDS_MAX).contains(&count) => Ok(ShardCount::Fixed(count)),
        _ => Err(format!("'{text}' is not a number from 1 to {SHARDS_MAX}, or {AUTO}")),
    }
}

/// Returns the written form of a shard count.
pub fn show_shards(shards: ShardCount) -> String {
    match shards {
        ShardCount::Auto => AUTO.to_owned(),
        ShardCount::Fixed(count) => count.to_string(),
    }
}

/// Parses [`Namespace::pick`].
pub fn read_pick(text: &str) -> Result<ShardPick, String> {
    parse_name("pick", &PICKS, text)
}

/// Returns the written form of a shard pick.
pub fn show_pick(pick: ShardPick) -> &'static str {
    name_of(&PICKS, pick)
}

fn read_fail_mode(text: &str) -> Result<FailMode, String> {
    parse_name("fail mode", &FAIL_MODES, text)
}

fn show_fail_mode(mode: FailMode) -> &'static str {
    name_of(&FAIL_MODES, mode)
}

fn read_sample(text: &str) -> Result<SampleRate, String> {
    match text.parse() {
        _ if text == AUTO => Ok(SampleRate::Auto),
        Ok(p) if (2..=SAMPLE_MAX).contains(&p) => Ok(SampleRate::OneIn(p)),
        _ => Err(format!("'{text}' is not a number from 2 to {SAMPLE_MAX}, or {AUTO}")),
    }
}

fn show_sample(sample: SampleRate) -> String {
    match sample {
        SampleRate::OneIn(p) => p.to_string(),
        SampleRate::Auto => AUTO.to_owned(),
    }
}

fn read_counters(text: &str) -> Result<u64, String> {
    let counters = text.parse().ok().filter(|counters| (1..=COUNTERS_MAX).contains(counters));
    counters.ok_or_else(|| format!("'{text}' is not a number from 1 to {COUNTERS_MAX}"))
}

fn read_kind(text: &str) -> Result<Kind, String> {
    let known = Kind::ALL.into_iter().find(|kind| kind.name() == text);
    known.ok_or_else(|| format!("unknown kind '{text}': it is {}", Kind::ALL.map(Kind::name).join(", ")))
}

fn parse_name<T: Copy>(what: &str, words: &[(&str, T)], text: &str) -> Result<T, String> {
    let known = words.iter().find(|(word, _)| *word == text).map(|(_, known)| *known);
    known.ok_or_else(|| {
        let all: Vec<_> = words.iter().map(|(word, _)| *word).collect();
        let (last, first) = all.split_last().expect("there are words");
        format!("unknown {what} '{text}': it is {} or {last}", first.join(", "))
    })
}

fn name_of<T: Copy + PartialEq>(words: &[(&'static str, T)], value: T) -> &'static str {
    words.iter().find(|(_, known)| *known == value).map_or("", |(word, _)| word)
}

fn set_field<T>(field: &mut Option<T>, value: Result<T, String>) -> Result<(), String> {
    *field = Some(value?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Every key with its longest valid value.
    fn full() -> Namespace {
        let mut namespace = Namespace::default();
        let longest = [
            "count",
            "durable",
            "315359999999ms",
            "99999999360ms/1440",
            "315359999999ms",
            "3599999ms",
            "3599999ms",
            "64",
            "writer",
        ];
        for (key, text) in NAMESPACE_KEYS.iter().zip(longest.into_iter().chain([
            "31535999999ms",
            "1000000000000",
            "last-known",
            "1000000",
            "refuse",
        ])) {
            assert_eq!((key.take)(&mut namespace, text), Ok(()), "{}", key.key);
        }
        namespace
    }

    #[test]
    fn what_is_shown_is_taken_and_comes_back_from_bytes() {
        let full = full();
        let mut bytes = Vec::new();
        full.encode(&mut bytes);
        assert!(bytes.len() <= NAMESPACE_SETTINGS_BYTES_MAX, "{}", bytes.len());
        assert_eq!(Namespace::decode(&bytes), Some(full.clone()));
        assert!(NAMESPACE_KEYS.iter().all(|key| (key.show)(&full).is_some()), "a key is taken and not kept");
        assert_eq!(Namespace::decode(&[]), Some(Namespace::default()));
        for cut in 1..bytes.len() {
            let part = Namespace::decode(&bytes[..cut]);
            assert!(part.is_none_or(|part| part != full), "cut at {cut}");
        }
    }

    #[test]
    fn every_default_can_be_written_down() {
        for key in NAMESPACE_KEYS.iter().filter(|key| !key.default.is_empty()) {
            let mut namespace = Namespace::default();
            assert_eq!((key.take)(&mut namespace, key.default), Ok(()), "{}", key.key);
            assert_eq!((key.show)(&namespace).as_deref(), Some(key.default), "{}", key.key);
        }
    }

    #[test]
    fn what_is_left_open_is_as_the_other_says() {
        let top = Namespace { pick: Some(ShardPick::Hash), ..Namespace::with_durability(Durability::Memory) };
        let both = top.with_defaults(&full());
        assert_eq!((both.pick, both.durability), (Some(ShardPick::Hash), Some(Durability::Memory)));
        assert_eq!(Namespace { pick: full().pick, durability: full().durability, ..both }, full());
        assert_eq!(Namespace::default().with_defaults(&top), top);
    }

    #[test]
    fn a_rate_is_from_two_up_to_its_bound_or_auto() {
        for (text, sample) in [
            ("2", Some(SampleRate::OneIn(2))),
            ("1000000", Some(SampleRate::OneIn(SAMPLE_MAX))),
            ("auto", Some(SampleRate::Auto)),
            ("1", None),
            ("0", None),
            ("-2", None),
            ("1000001", None),
            ("AUTO", None),
            ("", None),
            ("2.5", None),
        ] {
            assert_eq!(read_sample(text).ok(), sample, "{text}");
        }
        assert_eq!(read_sample("1").unwrap_err(), "'1' is not a number from 2 to 1000000, or auto");
        let error = parse_name("overload", &OVERLOADS, "drop").unwrap_err();
        assert_eq!(error, "unknown overload 'drop': it is refuse or sample");
    }

    #[test]
    fn what_is_not_of_counts_is_not_sampled() {
        let sampled = Namespace { sample: Some(SampleRate::Auto), ..Namespace::default() };
        assert_eq!(sampled.conflicts(false), Vec::<String>::new());
        assert_eq!(Namespace { kind: Some(Kind::Count), ..sampled.clone() }.conflicts(false), Vec::<String>::new());
        let conflicts = Namespace { kind: Some(Kind::Unique), ..sampled.clone() }.conflicts(false);
        assert_eq!(conflicts, ["sample: only counts are sampled, and kind is unique; leave one out"]);
        let overload = Namespace { overload: Some(Overload::Sample), sample: None, ..sampled };
        let decay = Some(HOUR);
        let conflicts = Namespace { decay, ..overload.clone() }.conflicts(false);
        assert_eq!(conflicts, ["overload: only counts are sampled, and decay is of approximate kinds; leave one out"]);
        let refused = Namespace { overload: Some(Overload::Refuse), decay, ..overload };
        assert_eq!(refused.conflicts(false), Vec::<String>::new());
    }

    #[test]
    fn a_name_is_refused_one_byte_past_the_bound_and_with_a_colon() {
        let name = [b'a'; NAMESPACE_BYTES_MAX + 1];
        assert_eq!(check_namespace_name(&name[1..]), Ok(()));
        assert!(check_namespace_name(&name).unwrap_err().contains("at most 128 bytes"));
        assert!(check_namespace_name(b"a:b").is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_settings_or_none(bytes: Vec<u8>) {
            if let Some(namespace) = Namespace::decode(&bytes) {
                let mut again = Vec::new();
                namespace.encode(&mut again);
                prop_assert_eq!(Namespace::decode(&again), Some(namespace));
            }
        }
    }
}
