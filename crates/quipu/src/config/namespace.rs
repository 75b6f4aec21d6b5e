//! What a namespace may say of itself, one line a key: what it takes, what it changes.
//!
//! In: the values of a `[namespace.x]` table, as text. Out: a [`Namespace`]; what it leaves open is as the server says.
//!
//! Not here: reading the file (`file`), which of the two counts (`config`).

use std::time::Duration;

use quipu_engine::{Pick, SharePolicy};
use quipu_model::{Durability, Kind};

use super::Configuration;
use super::quantity::{read_duration_between, show_duration};
use super::settings::Form;

/// Least time between two puts of a counter: what a store's round trip takes. Most: so long another node may not hear of an add.
const SETTLE_EVERY: (Duration, Duration) = (Duration::from_millis(10), HOUR);

/// How old a reading may be; none at all asks the store for every reading.
const FRESHNESS: (Duration, Duration) = (Duration::ZERO, HOUR);

const HOUR: Duration = Duration::from_secs(3_600);

/// The word for as many shards as are of use.
const AUTO: &str = "auto";

/// What a shard is picked by, and its word.
const PICKS: [(&str, Pick); 4] =
    [("writer", Pick::Writer), ("random", Pick::Random), ("hash", Pick::Hash), ("time", Pick::Time)];

/// A namespace, as far as it says something.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Namespace {
    pub kind: Option<Kind>,
    pub durability: Option<Durability>,
    pub settle_every: Option<Duration>,
    pub freshness: Option<Duration>,
    pub shards: Option<Shards>,
    pub pick: Option<Pick>,
}

/// How many cells a counter has in a shared store for each writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Shards {
    /// As many as are of use. A node adds to its own table and puts running values, so nobody waits for a cell, and that is one.
    #[default]
    Auto,
    Fixed(u16),
}

impl Shards {
    /// How many that is.
    pub fn count(self) -> u16 {
        match self {
            Shards::Auto => 1,
            Shards::Fixed(count) => count,
        }
    }
}

/// One key of a namespace.
pub struct NamespaceKey {
    pub key: &'static str,
    /// How its value is written.
    pub form: Form,
    /// Puts a value in force, or says what is wrong with it.
    pub take: fn(&mut Namespace, &str) -> Result<(), String>,
    /// What the namespace says, as it would be written, if it says anything.
    pub show: fn(&Namespace) -> Option<String>,
}

/// All of them, in the order in which `config check` shows them. One that is also a setting of the server has the server's value where a namespace
/// leaves it open.
pub static NAMESPACE_KEYS: &[NamespaceKey] = &[
    NamespaceKey {
        key: "kind",
        form: Form::Text,
        take: |n, text| put(&mut n.kind, read_kind(text)),
        show: |n| n.kind.map(|kind| kind.word().to_owned()),
    },
    NamespaceKey {
        key: "durability",
        form: Form::Text,
        take: |n, text| put(&mut n.durability, text.parse().map_err(|e| format!("{e}"))),
        show: |n| n.durability.map(|durability| durability.to_string()),
    },
    NamespaceKey {
        key: "settle_every",
        form: Form::Time,
        take: |n, text| put(&mut n.settle_every, read_settle_every(text)),
        show: |n| n.settle_every.map(show_duration),
    },
    NamespaceKey {
        key: "freshness",
        form: Form::Time,
        take: |n, text| put(&mut n.freshness, read_freshness(text)),
        show: |n| n.freshness.map(show_duration),
    },
    NamespaceKey {
        key: "shards",
        form: Form::NumberOrAuto,
        take: |n, text| put(&mut n.shards, read_shards(text)),
        show: |n| n.shards.map(show_shards),
    },
    NamespaceKey {
        key: "pick",
        form: Form::Text,
        take: |n, text| put(&mut n.pick, read_pick(text)),
        show: |n| n.pick.map(|pick| show_pick(pick).to_owned()),
    },
];

impl Namespace {
    /// How its counters are shared, if it says anything of that.
    pub fn share_policy(&self, server: &Configuration) -> Option<SharePolicy> {
        let Namespace { settle_every, freshness, shards, pick, .. } = *self;
        if (settle_every, freshness, shards, pick) == (None, None, None, None) {
            return None;
        }
        let sharing = &server.engine.sharing;
        Some(SharePolicy {
            settle_every: settle_every.unwrap_or(sharing.settle_every),
            freshness: freshness.unwrap_or(sharing.freshness),
            shards: shards.unwrap_or(server.shards).count(),
            pick: pick.unwrap_or(sharing.pick),
        })
    }
}

pub fn read_settle_every(text: &str) -> Result<Duration, String> {
    read_duration_between(text, SETTLE_EVERY)
}

pub fn read_freshness(text: &str) -> Result<Duration, String> {
    read_duration_between(text, FRESHNESS)
}

pub fn read_shards(text: &str) -> Result<Shards, String> {
    let most = quipu_engine::SHARDS_MAX;
    match text.parse() {
        _ if text == AUTO => Ok(Shards::Auto),
        Ok(count) if (1..=most).contains(&count) => Ok(Shards::Fixed(count)),
        _ => Err(format!("'{text}' is not a number from 1 to {most}, or {AUTO}")),
    }
}

pub fn show_shards(shards: Shards) -> String {
    match shards {
        Shards::Auto => AUTO.to_owned(),
        Shards::Fixed(count) => count.to_string(),
    }
}

pub fn read_pick(text: &str) -> Result<Pick, String> {
    let known = PICKS.iter().find(|(word, _)| *word == text).map(|(_, pick)| *pick);
    known.ok_or_else(|| {
        let [first, second, third, last] = PICKS.map(|(word, _)| word);
        format!("unknown pick '{text}': it is {first}, {second}, {third} or {last}")
    })
}

pub fn show_pick(pick: Pick) -> &'static str {
    PICKS.iter().find(|(_, known)| *known == pick).map_or("", |(word, _)| word)
}

fn read_kind(text: &str) -> Result<Kind, String> {
    match text {
        text if text == Kind::Count.word() => Ok(Kind::Count),
        text => Err(format!("unknown kind '{text}': it is {}", Kind::Count.word())),
    }
}

fn put<T>(place: &mut Option<T>, value: Result<T, String>) -> Result<(), String> {
    *place = Some(value?);
    Ok(())
}
