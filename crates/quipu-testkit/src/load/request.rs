//! Draws the clients' requests at random.

use crate::SeededRng;
use crate::judge::{SequenceStep, StepAction};

/// Number of clients that share the counters: more than there are workers, so that each worker has
/// several.
pub const CLIENTS: usize = 6;

/// Number of counters in each class: few, so that clients share them; more than one, so that runs
/// cross table shards.
pub(super) const KEYS_PER_CLASS: usize = 4;

/// Number of counters that each client owns.
pub(super) const KEYS_OWNED: usize = 6;

/// An absolute expiry in seconds, about the year 2096: no suite sees it pass.
const FAR_SECONDS: i64 = 4_000_000_000;

/// A relative expiry in seconds: more than a day.
const LONG_SECONDS: i64 = 100_000;

/// A class of counters to which all clients add.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoadClass {
    /// Adds above 0 only.
    Rise,
    /// Adds of any sign.
    Drift,
    /// Adds above 0, with occasional harvests.
    Crop,
}

/// One request; an EXEC with its queued commands is one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LoadRequest {
    /// INCR, DECR, INCRBY or DECRBY.
    Add {
        /// Its class.
        class: LoadClass,
        /// Index of the counter in the class.
        key: usize,
        /// The increment.
        delta: i64,
    },
    /// GET.
    Read {
        /// Its class.
        class: LoadClass,
        /// Index of the counter in the class.
        key: usize,
    },
    /// MGET of the whole class `rise`.
    ReadRising,
    /// GETSET key 0.
    Harvest {
        /// Index of the counter in the class `crop`.
        key: usize,
    },
    /// An add to both counters of a pair in one EXEC.
    AddPair {
        /// Index of the pair.
        pair: usize,
        /// The increment.
        delta: i64,
    },
    /// MGET of both counters of a pair.
    ReadPair {
        /// Index of the pair.
        pair: usize,
    },
    /// A step on one of the client's own counters, or several in one EXEC.
    Own {
        /// The steps.
        steps: Vec<SequenceStep>,
    },
    /// GET of another client's counter.
    ReadForeign {
        /// Index of its owner.
        owner: usize,
        /// Index of the owner's counter.
        key: usize,
    },
}

impl LoadRequest {
    /// Draws the client's next request.
    pub fn draw(client: usize, rng: &SeededRng) -> LoadRequest {
        let key = rng.below(KEYS_PER_CLASS);
        match rng.below(100) {
            0..22 => LoadRequest::Add {
                class: LoadClass::Rise,
                key,
                delta: if rng.chance(70) { 1 } else { rng.between(1..=9) },
            },
            22..29 => LoadRequest::Read { class: LoadClass::Rise, key },
            29..33 => LoadRequest::ReadRising,
            33..46 => LoadRequest::Add { class: LoadClass::Drift, key, delta: *rng.pick(&[1, -1, 7, -5, 40, -33]) },
            46..48 => LoadRequest::Read { class: LoadClass::Drift, key },
            48..56 => LoadRequest::Add { class: LoadClass::Crop, key, delta: rng.between(1..=5) },
            56..60 if client == 0 => LoadRequest::Harvest { key },
            56..68 => LoadRequest::AddPair { pair: key, delta: rng.between(-3..=9) },
            68..72 => LoadRequest::ReadPair { pair: key },
            72..90 => LoadRequest::Own { steps: draw_steps(client, rng) },
            _ => {
                let owner = (client + 1 + rng.below(CLIENTS - 1)) % CLIENTS;
                LoadRequest::ReadForeign { owner, key: rng.below(KEYS_OWNED) }
            }
        }
    }

    /// Commands of the request; the last one's reply is the request's.
    pub fn commands(&self) -> Vec<Vec<String>> {
        match self {
            LoadRequest::Add { class, key, delta } => vec![add_command(&class.key(*key), *delta)],
            LoadRequest::Read { class, key } => vec![to_strings(&["GET", &class.key(*key)])],
            LoadRequest::ReadRising => {
                let names = (0..KEYS_PER_CLASS).map(|key| LoadClass::Rise.key(key));
                vec![std::iter::once("MGET".to_owned()).chain(names).collect()]
            }
            LoadRequest::Harvest { key } => vec![to_strings(&["GETSET", &LoadClass::Crop.key(*key), "0"])],
            LoadRequest::AddPair { pair, delta } => {
                exec_commands(pair_keys(*pair).iter().map(|key| add_command(key, *delta)))
            }
            LoadRequest::ReadPair { pair } => {
                let [a, b] = pair_keys(*pair);
                vec![to_strings(&["MGET", &a, &b])]
            }
            LoadRequest::Own { steps } => match steps.as_slice() {
                [step] => vec![command_of(step)],
                steps => exec_commands(steps.iter().map(command_of)),
            },
            LoadRequest::ReadForeign { owner, key } => vec![to_strings(&["GET", &owned_key(*owner, *key)])],
        }
    }
}

impl LoadClass {
    /// Name of one of its counters.
    pub(super) fn key(self, key: usize) -> String {
        let namespace = match self {
            LoadClass::Rise => "rise",
            LoadClass::Drift => "drift",
            LoadClass::Crop => "crop",
        };
        format!("{namespace}:{key}")
    }
}

/// Names of both counters of a pair.
pub(super) fn pair_keys(pair: usize) -> [String; 2] {
    [format!("pair:{pair}:a"), format!("pair:{pair}:b")]
}

/// Name of a counter that a client owns.
pub(super) fn owned_key(owner: usize, key: usize) -> String {
    format!("own:{owner}:{key}")
}

fn draw_steps(client: usize, rng: &SeededRng) -> Vec<SequenceStep> {
    let mut keys: Vec<usize> = (0..KEYS_OWNED).collect();
    rng.shuffle(&mut keys);
    let step = |index: usize, action: StepAction| SequenceStep { key: owned_key(client, keys[index]), action };
    if rng.chance(20) {
        let value = rng.between(-1000..=1000);
        let mut steps = vec![step(0, StepAction::Set(value)), step(1, StepAction::Add(1)), step(2, StepAction::Delete)];
        rng.shuffle(&mut steps);
        return steps;
    }
    vec![step(0, draw_action(rng))]
}

fn draw_action(rng: &SeededRng) -> StepAction {
    let value = rng.between(-1000..=1000);
    match rng.below(20) {
        0..6 => StepAction::Add(rng.between(-50..=50)),
        6..9 => StepAction::Set(value),
        9 => StepAction::SetUntil(value, FAR_SECONDS + rng.between(0..=999)),
        10 => StepAction::SetFor(value, LONG_SECONDS),
        11..13 => StepAction::Swap(value),
        13 => StepAction::Take,
        14 => StepAction::Delete,
        15 => StepAction::ExpireAt(FAR_SECONDS + rng.between(0..=999)),
        16 => StepAction::ExpireIn(LONG_SECONDS),
        17 => StepAction::Persist,
        _ => StepAction::Read,
    }
}

fn command_of(step: &SequenceStep) -> Vec<String> {
    let key = &step.key;
    match step.action {
        StepAction::Add(delta) => add_command(key, delta),
        StepAction::Set(value) => to_strings(&["SET", key, &value.to_string()]),
        StepAction::SetUntil(value, at) => to_strings(&["SET", key, &value.to_string(), "EXAT", &at.to_string()]),
        StepAction::SetFor(value, seconds) => to_strings(&["SET", key, &value.to_string(), "EX", &seconds.to_string()]),
        StepAction::Swap(value) => to_strings(&["GETSET", key, &value.to_string()]),
        StepAction::Take => to_strings(&["GETDEL", key]),
        StepAction::Delete => to_strings(&["DEL", key]),
        StepAction::ExpireAt(at) => to_strings(&["EXPIREAT", key, &at.to_string()]),
        StepAction::ExpireIn(seconds) => to_strings(&["EXPIRE", key, &seconds.to_string()]),
        StepAction::Persist => to_strings(&["PERSIST", key]),
        StepAction::Read => to_strings(&["GET", key]),
    }
}

/// An add as the shortest Redis command, so that all of them are used.
fn add_command(key: &str, delta: i64) -> Vec<String> {
    match delta {
        1 => to_strings(&["INCR", key]),
        -1 => to_strings(&["DECR", key]),
        ..-1 => to_strings(&["DECRBY", key, &delta.unsigned_abs().to_string()]),
        _ => to_strings(&["INCRBY", key, &delta.to_string()]),
    }
}

fn exec_commands(commands: impl Iterator<Item = Vec<String>>) -> Vec<Vec<String>> {
    std::iter::once(to_strings(&["MULTI"])).chain(commands).chain(std::iter::once(to_strings(&["EXEC"]))).collect()
}

fn to_strings(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}
