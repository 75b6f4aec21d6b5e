//! What the clients ask, drawn by dice.

use crate::Dice;
use crate::judge::{Action, Step};

/// How many clients share the counters: more than there are workers, so that each worker has several.
pub const CLIENTS: usize = 6;

/// How many counters each class has: few, so that clients meet; more than one, so that runs cross table shards.
pub(super) const KEYS_PER_CLASS: usize = 4;

/// How many counters each client owns.
pub(super) const KEYS_OWNED: usize = 6;

/// An absolute expiry in seconds, about the year 2096: far enough that no suite sees it pass.
const FAR_SECONDS: i64 = 4_000_000_000;

/// A relative expiry in seconds: more than a day.
const LONG_SECONDS: i64 = 100_000;

/// A class of counters that everybody adds to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Adds above 0 only.
    Rise,
    /// Adds of any sign.
    Drift,
    /// Adds above 0, and a harvest now and then.
    Crop,
}

/// One request; an EXEC with all that is queued in it is one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// INCR, DECR, INCRBY or DECRBY.
    Add {
        /// Of which class.
        class: Class,
        /// Which counter of it.
        key: usize,
        /// By how much.
        delta: i64,
    },
    /// GET.
    Read {
        /// Of which class.
        class: Class,
        /// Which counter of it.
        key: usize,
    },
    /// MGET of the whole class `rise`.
    ReadRising,
    /// GETSET key 0.
    Harvest {
        /// Which counter of the class `crop`.
        key: usize,
    },
    /// An add to both of a pair in one EXEC.
    AddPair {
        /// Which pair.
        pair: usize,
        /// By how much.
        delta: i64,
    },
    /// MGET of both of a pair.
    ReadPair {
        /// Which pair.
        pair: usize,
    },
    /// A step on a counter of the client's own, or several in one EXEC.
    Own {
        /// What is done.
        steps: Vec<Step>,
    },
    /// GET of a counter that another client owns.
    Look {
        /// Who owns it.
        owner: usize,
        /// Which of the owner's counters.
        key: usize,
    },
}

impl Request {
    /// Draws what this client asks next.
    pub fn draw(client: usize, dice: &Dice) -> Request {
        let key = dice.below(KEYS_PER_CLASS);
        match dice.below(100) {
            0..22 => {
                Request::Add { class: Class::Rise, key, delta: if dice.chance(70) { 1 } else { dice.between(1..=9) } }
            }
            22..29 => Request::Read { class: Class::Rise, key },
            29..33 => Request::ReadRising,
            33..46 => Request::Add { class: Class::Drift, key, delta: *dice.pick(&[1, -1, 7, -5, 40, -33]) },
            46..48 => Request::Read { class: Class::Drift, key },
            48..56 => Request::Add { class: Class::Crop, key, delta: dice.between(1..=5) },
            56..60 if client == 0 => Request::Harvest { key },
            56..68 => Request::AddPair { pair: key, delta: dice.between(-3..=9) },
            68..72 => Request::ReadPair { pair: key },
            72..90 => Request::Own { steps: draw_steps(client, dice) },
            _ => {
                let owner = (client + 1 + dice.below(CLIENTS - 1)) % CLIENTS;
                Request::Look { owner, key: dice.below(KEYS_OWNED) }
            }
        }
    }

    /// The commands it is sent as; the last one's reply is the request's.
    pub fn commands(&self) -> Vec<Vec<String>> {
        match self {
            Request::Add { class, key, delta } => vec![add(&class.key(*key), *delta)],
            Request::Read { class, key } => vec![words(&["GET", &class.key(*key)])],
            Request::ReadRising => {
                let names = (0..KEYS_PER_CLASS).map(|key| Class::Rise.key(key));
                vec![std::iter::once("MGET".to_owned()).chain(names).collect()]
            }
            Request::Harvest { key } => vec![words(&["GETSET", &Class::Crop.key(*key), "0"])],
            Request::AddPair { pair, delta } => exec(pair_keys(*pair).iter().map(|key| add(key, *delta))),
            Request::ReadPair { pair } => {
                let [a, b] = pair_keys(*pair);
                vec![words(&["MGET", &a, &b])]
            }
            Request::Own { steps } => match steps.as_slice() {
                [step] => vec![command_of(step)],
                steps => exec(steps.iter().map(command_of)),
            },
            Request::Look { owner, key } => vec![words(&["GET", &owned_key(*owner, *key)])],
        }
    }
}

impl Class {
    /// The name of one of its counters.
    pub(super) fn key(self, key: usize) -> String {
        let namespace = match self {
            Class::Rise => "rise",
            Class::Drift => "drift",
            Class::Crop => "crop",
        };
        format!("{namespace}:{key}")
    }
}

/// The names of both counters of a pair.
pub(super) fn pair_keys(pair: usize) -> [String; 2] {
    [format!("pair:{pair}:a"), format!("pair:{pair}:b")]
}

/// The name of a counter that a client owns.
pub(super) fn owned_key(owner: usize, key: usize) -> String {
    format!("own:{owner}:{key}")
}

fn draw_steps(client: usize, dice: &Dice) -> Vec<Step> {
    let mut keys: Vec<usize> = (0..KEYS_OWNED).collect();
    dice.shuffle(&mut keys);
    let step = |place: usize, action: Action| Step { key: owned_key(client, keys[place]), action };
    if dice.chance(20) {
        let value = dice.between(-1000..=1000);
        let mut steps = vec![step(0, Action::Set(value)), step(1, Action::Add(1)), step(2, Action::Delete)];
        dice.shuffle(&mut steps);
        return steps;
    }
    vec![step(0, draw_action(dice))]
}

fn draw_action(dice: &Dice) -> Action {
    let value = dice.between(-1000..=1000);
    match dice.below(20) {
        0..6 => Action::Add(dice.between(-50..=50)),
        6..9 => Action::Set(value),
        9 => Action::SetUntil(value, FAR_SECONDS + dice.between(0..=999)),
        10 => Action::SetFor(value, LONG_SECONDS),
        11..13 => Action::Swap(value),
        13 => Action::Take,
        14 => Action::Delete,
        15 => Action::ExpireAt(FAR_SECONDS + dice.between(0..=999)),
        16 => Action::ExpireIn(LONG_SECONDS),
        17 => Action::Persist,
        _ => Action::Read,
    }
}

fn command_of(step: &Step) -> Vec<String> {
    let key = &step.key;
    match step.action {
        Action::Add(delta) => add(key, delta),
        Action::Set(value) => words(&["SET", key, &value.to_string()]),
        Action::SetUntil(value, at) => words(&["SET", key, &value.to_string(), "EXAT", &at.to_string()]),
        Action::SetFor(value, seconds) => words(&["SET", key, &value.to_string(), "EX", &seconds.to_string()]),
        Action::Swap(value) => words(&["GETSET", key, &value.to_string()]),
        Action::Take => words(&["GETDEL", key]),
        Action::Delete => words(&["DEL", key]),
        Action::ExpireAt(at) => words(&["EXPIREAT", key, &at.to_string()]),
        Action::ExpireIn(seconds) => words(&["EXPIRE", key, &seconds.to_string()]),
        Action::Persist => words(&["PERSIST", key]),
        Action::Read => words(&["GET", key]),
    }
}

/// An add in the shortest words Redis has for it, so that all of them are used.
fn add(key: &str, delta: i64) -> Vec<String> {
    match delta {
        1 => words(&["INCR", key]),
        -1 => words(&["DECR", key]),
        ..-1 => words(&["DECRBY", key, &delta.unsigned_abs().to_string()]),
        _ => words(&["INCRBY", key, &delta.to_string()]),
    }
}

fn exec(commands: impl Iterator<Item = Vec<String>>) -> Vec<Vec<String>> {
    std::iter::once(words(&["MULTI"])).chain(commands).chain(std::iter::once(words(&["EXEC"]))).collect()
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}
