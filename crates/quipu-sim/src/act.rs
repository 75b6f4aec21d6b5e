//! Defines the acts that clients send.

use std::sync::LazyLock;
use std::time::Duration;

use quipu_engine::TokenAdd;
use quipu_model::shared::ClaimToken;
use quipu_model::{
    AddWithin, Command, Dialect, Durability, Expiry, ExpiryCondition, ExpiryTime, FrequencySize, Identity, Pattern,
    Scan, Set, SetCondition, SetExpiry, SimpleCommand, SketchCommand, TopSize,
};
use quipu_testkit::SeededRng;

use crate::counters::{COUNTERS, CounterClass, CounterForm, SimCounter, counter_name};

/// One action on one counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Act {
    /// Index of the counter.
    pub counter: usize,
    /// The action.
    pub what: Action,
}

/// An action of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// INCRBY.
    Add(i64),
    /// INCRBY with a token; the same token may go to several nodes.
    Once {
        /// Number of the token.
        token: u64,
        /// The increment.
        delta: i64,
    },
    /// GET.
    Read,
    /// MGET of this and the next counters.
    ReadMany,
    /// SCAN.
    Scan,
    /// GETSET to 0.
    GetSet,
    /// Reset.
    Reset,
    /// GETDEL.
    Take,
    /// DEL.
    Delete,
    /// SET.
    Set(i64),
    /// PEXPIRE.
    Expire(i64),
    /// PERSIST.
    Persist,
    /// FLUSHALL, which needs one owner.
    Flush,
    /// SET NX, which needs one owner too.
    SetIfAbsent,
    /// INCREX with bounds, which needs one owner too.
    AddWithin,
    /// Observes one of [`ITEMS`], or adds a count to one of the [first](COUNTED_ITEMS).
    Observe(usize, u64),
    /// Observes all of these items.
    ObserveAll(Items),
    /// Estimate of a sketch: the number of different items, or the count of each.
    Estimate,
}

/// A set of items.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Items([u64; ITEMS.div_ceil(64)]);

/// Number of different items: few enough that several nodes observe most of them, repeatedly.
pub const ITEMS: usize = 200;

/// Number of items with counts, in sketches that count.
pub const COUNTED_ITEMS: usize = 20;

/// Size of counting sketches: in each row one cell per item, barring collisions that our keys do
/// not have.
const SIZE: FrequencySize = FrequencySize::Dimensions { width: 256, depth: 4 };

/// Name of an item.
pub fn item_name(number: usize) -> &'static [u8] {
    static NAMES: LazyLock<Vec<Vec<u8>>> =
        LazyLock::new(|| (0..ITEMS).map(|at| format!("item-{at}").into_bytes()).collect());
    &NAMES[number % ITEMS]
}

/// Largest add, so that few adds have equal sums by chance.
const DELTA_MAX: i64 = 1_000;

/// Increment of forbidden acts: if one were applied, it would show, since no sum of a run comes
/// near.
const FORBIDDEN: i64 = 1 << 40;

/// Longer than any run.
const TOKEN_WINDOW: Duration = Duration::from_secs(24 * 3_600);

/// Names visited by one SCAN: more than all counters.
const SCAN_COUNT: usize = 100;

impl Action {
    /// Returns true if it takes the counter's value and sets another.
    pub fn takes(self) -> bool {
        matches!(self, Action::GetSet | Action::Reset | Action::Take | Action::Delete | Action::Set(_))
    }

    /// Returns true if it must be refused.
    pub fn is_forbidden(self) -> bool {
        matches!(self, Action::Flush | Action::SetIfAbsent | Action::AddWithin)
    }
}

impl Items {
    /// Iterates over the items.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..ITEMS).filter(move |item| self.0[item / 64] >> (item % 64) & 1 == 1)
    }
}

impl FromIterator<usize> for Items {
    fn from_iter<T: IntoIterator<Item = usize>>(numbers: T) -> Items {
        let mut items = Items::default();
        numbers.into_iter().for_each(|item| items.0[item / 64] |= 1 << (item % 64));
        items
    }
}

impl Act {
    /// Draws an act. `expiry_millis_max` is the longest time to live.
    pub fn draw(rng: &SeededRng, expiry_millis_max: i64) -> Act {
        let counter = rng.below(COUNTERS.len());
        let class = COUNTERS[counter].class;
        let what = match rng.below(100) {
            0..55 if COUNTERS[counter].is_sketch() => Act::observe(rng, counter),
            55..73 if COUNTERS[counter].is_sketch() => Action::Estimate,
            0..50 => Action::Add(match class {
                CounterClass::Both => rng.between(-DELTA_MAX..=DELTA_MAX),
                _ => rng.between(1..=DELTA_MAX),
            }),
            50..70 => Action::Read,
            70..73 => Action::ReadMany,
            73..75 => Action::Scan,
            75 => Action::Flush,
            76 => Action::SetIfAbsent,
            77 => Action::AddWithin,
            _ => return Act::swap(rng, counter, expiry_millis_max),
        };
        Act { counter, what }
    }

    /// Draws an observation of a sketch.
    pub fn observe(rng: &SeededRng, counter: usize) -> Action {
        match COUNTERS[counter].form {
            CounterForm::Frequency | CounterForm::Top => {
                Action::Observe(rng.below(COUNTED_ITEMS), 1 + rng.below(9) as u64)
            }
            CounterForm::Number | CounterForm::Unique | CounterForm::Hll => Action::Observe(rng.below(ITEMS), 1),
        }
    }

    /// Draws an add with a token. Its counter is durable: the judge cannot see which node applied
    /// it, so no crash may take it.
    pub fn draw_once(rng: &SeededRng, token: u64) -> Act {
        let durable = |counter: &usize| {
            let SimCounter { class, durability, form, .. } = COUNTERS[*counter];
            durability == Durability::Durable && class != CounterClass::Mixed && form == CounterForm::Number
        };
        let counters: Vec<usize> = (0..COUNTERS.len()).filter(durable).collect();
        Act { counter: *rng.pick(&counters), what: Action::Once { token, delta: rng.between(1..=DELTA_MAX) } }
    }

    /// Returns the add with a token that must be claimed first, if it is one.
    pub fn once(&self) -> Option<TokenAdd> {
        let Action::Once { token, delta } = self.what else { return None };
        let item = format!("token-{token}");
        let identity = Identity::token(b"", item.as_bytes()).expect("it is short");
        let token = ClaimToken::new(&identity.key()).expect("it is short");
        Some(TokenAdd { token, name: counter_name(self.counter).bytes().into(), delta, window: TOKEN_WINDOW })
    }

    /// Draws a swap if the counter's class has swaps, else a read.
    fn swap(rng: &SeededRng, counter: usize, expiry_millis_max: i64) -> Act {
        let what = match (COUNTERS[counter].class, rng.below(10)) {
            (CounterClass::Rising | CounterClass::Both, _) => Action::Read,
            (CounterClass::Observed, _) | (CounterClass::Discarded, 0..8) | (CounterClass::Passing, 0..5) => {
                Action::Estimate
            }
            (CounterClass::Discarded, _) | (CounterClass::Passing, 5) => Action::Delete,
            (CounterClass::Passing, 6..9) => Action::Expire(rng.between(-10..=expiry_millis_max)),
            (CounterClass::Passing, _) => Action::Persist,
            (CounterClass::Harvested, 0..4) => Action::GetSet,
            (CounterClass::Harvested, 4..7) => Action::Reset,
            (CounterClass::Harvested, _) => Action::Take,
            (CounterClass::Mixed, 0) => Action::GetSet,
            (CounterClass::Mixed, 1) => Action::Take,
            (CounterClass::Mixed, 2) => Action::Delete,
            (CounterClass::Mixed, 3) => Action::Set(rng.between(0..=DELTA_MAX)),
            (CounterClass::Mixed, 4) => Action::Reset,
            (CounterClass::Mixed, 5..8) => Action::Expire(rng.between(-10..=expiry_millis_max)),
            (CounterClass::Mixed, _) => Action::Persist,
        };
        Act { counter, what }
    }

    /// Counters that it reads or changes.
    pub fn counters(&self) -> impl Iterator<Item = usize> + use<> {
        let many = if self.what == Action::ReadMany { 3 } else { 1 };
        let first = self.counter;
        (0..many).map(move |at| (first + at) % COUNTERS.len())
    }

    /// Returns the simple command, if the act can run in a batch of them.
    pub fn simple_command(&self) -> Option<SimpleCommand<'static>> {
        let name = counter_name(self.counter);
        match self.what {
            Action::Add(delta) => Some(SimpleCommand { name, delta: Some(delta) }),
            Action::Read => Some(SimpleCommand { name, delta: None }),
            _ => None,
        }
    }

    /// Returns the engine's command.
    pub fn command(&self) -> Command<'static> {
        let (name, form) = (counter_name(self.counter), COUNTERS[self.counter].form);
        let dialect = if form == CounterForm::Hll { Dialect::Redis } else { Dialect::Native };
        let set = |value, condition, reply_old| Set { name, value, condition, expiry: SetExpiry::Keep, reply_old };
        match self.what {
            Action::Add(delta) | Action::Once { delta, .. } => Command::Add { name, delta, shard_key: None },
            Action::Read => Command::Read { name },
            Action::ReadMany => Command::ReadMany { names: self.counters().map(counter_name).collect() },
            Action::Scan => Command::Scan(Scan { cursor: 0, pattern: Some(Pattern(b"*")), count: SCAN_COUNT }),
            Action::GetSet => Command::Set(set(0, SetCondition::Always, true)),
            Action::Reset => Command::Reset { name },
            Action::Take => Command::Take { name },
            Action::Delete => Command::Delete { names: vec![name] },
            Action::Set(value) => Command::Set(set(value, SetCondition::Always, false)),
            Action::Expire(millis) => {
                Command::Expire { name, when: ExpiryTime::In(millis), condition: ExpiryCondition::Always }
            }
            Action::Persist => Command::Persist { name },
            Action::Observe(number, by) => Command::Sketch(match form {
                CounterForm::Frequency => {
                    SketchCommand::CountItems { name, items: vec![(item_name(number), by)], make: Some(SIZE), dialect }
                }
                CounterForm::Top => {
                    let make = Some(TopSize::with_k(COUNTED_ITEMS as u32));
                    SketchCommand::CountTop { name, items: vec![(item_name(number), by)], make, dialect }
                }
                CounterForm::Number | CounterForm::Unique | CounterForm::Hll => {
                    SketchCommand::Observe { name, items: vec![item_name(number)], dialect }
                }
            }),
            Action::ObserveAll(items) => {
                Command::Sketch(SketchCommand::Observe { name, items: items.iter().map(item_name).collect(), dialect })
            }
            Action::Estimate => Command::Sketch(match form {
                CounterForm::Frequency => {
                    SketchCommand::ReadItems { name, items: (0..COUNTED_ITEMS).map(item_name).collect(), dialect }
                }
                CounterForm::Top => SketchCommand::ListTop { name, dialect },
                CounterForm::Number | CounterForm::Unique | CounterForm::Hll => {
                    SketchCommand::CountUnique { names: vec![name], dialect }
                }
            }),
            Action::Flush => Command::Flush,
            Action::SetIfAbsent => Command::Set(set(FORBIDDEN, SetCondition::IfAbsent, false)),
            Action::AddWithin => Command::AddWithin(AddWithin {
                name,
                delta: FORBIDDEN,
                lower: i64::MIN,
                upper: 2 * FORBIDDEN,
                saturate: false,
                expiry: Expiry::Keep,
                expiry_if_none: false,
            }),
        }
    }
}
