//! What clients ask for.

use std::sync::LazyLock;
use std::time::Duration;

use quipu_engine::Once;
use quipu_model::shared::Token;
use quipu_model::{
    AddWithin, Brief, Command, Dialect, Durability, Expiry, ExpiryCondition, FrequencySize, Identity, Pattern, Scan,
    Set, SetCondition, SetExpiry, SketchCommand, TopSize, When,
};
use quipu_testkit::Dice;

use crate::counters::{COUNTERS, Class, Counter, Form, name_of};

/// One thing asked of one counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Act {
    /// Which counter.
    pub counter: usize,
    /// What.
    pub what: What,
}

/// What is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// INCRBY.
    Add(i64),
    /// INCRBY with a token: the same one may be sent to several nodes.
    Once {
        /// Which token.
        token: u64,
        /// By how much.
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
    /// SET NX, which does too.
    SetIfAbsent,
    /// INCREX with bounds, which does too.
    AddWithin,
    /// One of [`ITEMS`] is observed, or counted so often where it is one of the [first](COUNTED_ITEMS).
    Observe(usize, u64),
    /// All of these are observed.
    ObserveAll(Items),
    /// What a sketch says: how many different items, or how often each came.
    Estimate,
}

/// Some of the items.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Items([u64; ITEMS.div_ceil(64)]);

/// Different items that are observed: few enough that most are observed by several nodes, and again.
pub const ITEMS: usize = 200;

/// So many of them are counted, where that is done.
pub const COUNTED_ITEMS: usize = 20;

/// How large sketches are that count: a cell of each row for each item, but for a chance that no key of ours meets.
const SIZE: FrequencySize = FrequencySize::Dimensions { width: 256, depth: 4 };

/// An item.
pub fn item(number: usize) -> &'static [u8] {
    static NAMES: LazyLock<Vec<Vec<u8>>> =
        LazyLock::new(|| (0..ITEMS).map(|at| format!("item-{at}").into_bytes()).collect());
    &NAMES[number % ITEMS]
}

/// Adds are at most this large, so that few of them come to the same sum by chance.
const DELTA_MAX: i64 = 1_000;

/// What is refused would be seen if it were carried out: no sum of a run comes near.
const FORBIDDEN: i64 = 1 << 40;

/// Longer than any run.
const TOKEN_WINDOW: Duration = Duration::from_secs(24 * 3_600);

/// Names looked at in one SCAN: all there are.
const SCAN_COUNT: usize = 100;

impl What {
    /// Whether it takes the counter's value and sets another.
    pub fn takes(self) -> bool {
        matches!(self, What::GetSet | What::Reset | What::Take | What::Delete | What::Set(_))
    }

    /// Whether it must be refused.
    pub fn is_forbidden(self) -> bool {
        matches!(self, What::Flush | What::SetIfAbsent | What::AddWithin)
    }
}

impl Items {
    /// Which they are.
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
    /// Draws one. `expiry_millis_max` is the longest time to live.
    pub fn draw(dice: &Dice, expiry_millis_max: i64) -> Act {
        let counter = dice.below(COUNTERS.len());
        let class = COUNTERS[counter].class;
        let what = match dice.below(100) {
            0..55 if COUNTERS[counter].is_sketch() => Act::observe(dice, counter),
            55..73 if COUNTERS[counter].is_sketch() => What::Estimate,
            0..50 => What::Add(match class {
                Class::Both => dice.between(-DELTA_MAX..=DELTA_MAX),
                _ => dice.between(1..=DELTA_MAX),
            }),
            50..70 => What::Read,
            70..73 => What::ReadMany,
            73..75 => What::Scan,
            75 => What::Flush,
            76 => What::SetIfAbsent,
            77 => What::AddWithin,
            _ => return Act::swap(dice, counter, expiry_millis_max),
        };
        Act { counter, what }
    }

    /// Draws an observation of a sketch.
    pub fn observe(dice: &Dice, counter: usize) -> What {
        match COUNTERS[counter].form {
            Form::Frequency | Form::Top => What::Observe(dice.below(COUNTED_ITEMS), 1 + dice.below(9) as u64),
            Form::Number | Form::Unique | Form::Hll => What::Observe(dice.below(ITEMS), 1),
        }
    }

    /// Draws an add with a token. Its counter is durable: who has applied it cannot be seen from outside, so no crash may take it.
    pub fn draw_once(dice: &Dice, token: u64) -> Act {
        let durable = |counter: &usize| {
            let Counter { class, durability, form, .. } = COUNTERS[*counter];
            durability == Durability::Durable && class != Class::Mixed && form == Form::Number
        };
        let counters: Vec<usize> = (0..COUNTERS.len()).filter(durable).collect();
        Act { counter: *dice.pick(&counters), what: What::Once { token, delta: dice.between(1..=DELTA_MAX) } }
    }

    /// What has to be claimed before it is applied.
    pub fn once(&self) -> Option<Once> {
        let What::Once { token, delta } = self.what else { return None };
        let item = format!("token-{token}");
        let identity = Identity::token(b"", item.as_bytes()).expect("it is short");
        let token = Token::new(&identity.key()).expect("it is short");
        Some(Once { token, name: name_of(self.counter).bytes().into(), delta, window: TOKEN_WINDOW })
    }

    /// Draws a swap, if the counter is one that is swapped, else a read.
    fn swap(dice: &Dice, counter: usize, expiry_millis_max: i64) -> Act {
        let what = match (COUNTERS[counter].class, dice.below(10)) {
            (Class::Rising | Class::Both, _) => What::Read,
            (Class::Observed, _) | (Class::Discarded, 0..8) | (Class::Passing, 0..5) => What::Estimate,
            (Class::Discarded, _) | (Class::Passing, 5) => What::Delete,
            (Class::Passing, 6..9) => What::Expire(dice.between(-10..=expiry_millis_max)),
            (Class::Passing, _) => What::Persist,
            (Class::Harvested, 0..4) => What::GetSet,
            (Class::Harvested, 4..7) => What::Reset,
            (Class::Harvested, _) => What::Take,
            (Class::Mixed, 0) => What::GetSet,
            (Class::Mixed, 1) => What::Take,
            (Class::Mixed, 2) => What::Delete,
            (Class::Mixed, 3) => What::Set(dice.between(0..=DELTA_MAX)),
            (Class::Mixed, 4) => What::Reset,
            (Class::Mixed, 5..8) => What::Expire(dice.between(-10..=expiry_millis_max)),
            (Class::Mixed, _) => What::Persist,
        };
        Act { counter, what }
    }

    /// The names it looks at or changes.
    pub fn counters(&self) -> impl Iterator<Item = usize> + use<> {
        let many = if self.what == What::ReadMany { 3 } else { 1 };
        let first = self.counter;
        (0..many).map(move |at| (first + at) % COUNTERS.len())
    }

    /// The same, if it is one of those that run many at a time.
    pub fn brief(&self) -> Option<Brief<'static>> {
        let name = name_of(self.counter);
        match self.what {
            What::Add(delta) => Some(Brief { name, delta: Some(delta) }),
            What::Read => Some(Brief { name, delta: None }),
            _ => None,
        }
    }

    /// As the engine takes it.
    pub fn command(&self) -> Command<'static> {
        let (name, form) = (name_of(self.counter), COUNTERS[self.counter].form);
        let dialect = if form == Form::Hll { Dialect::Redis } else { Dialect::Native };
        let set = |value, condition, reply_old| Set { name, value, condition, expiry: SetExpiry::Keep, reply_old };
        match self.what {
            What::Add(delta) | What::Once { delta, .. } => Command::Add { name, delta, shard_key: None },
            What::Read => Command::Read { name },
            What::ReadMany => Command::ReadMany { names: self.counters().map(name_of).collect() },
            What::Scan => Command::Scan(Scan { cursor: 0, pattern: Some(Pattern(b"*")), count: SCAN_COUNT }),
            What::GetSet => Command::Set(set(0, SetCondition::Always, true)),
            What::Reset => Command::Reset { name },
            What::Take => Command::Take { name },
            What::Delete => Command::Delete { names: vec![name] },
            What::Set(value) => Command::Set(set(value, SetCondition::Always, false)),
            What::Expire(millis) => {
                Command::Expire { name, when: When::In(millis), condition: ExpiryCondition::Always }
            }
            What::Persist => Command::Persist { name },
            What::Observe(number, by) => Command::Sketch(match form {
                Form::Frequency => {
                    SketchCommand::CountItems { name, items: vec![(item(number), by)], make: Some(SIZE), dialect }
                }
                Form::Top => {
                    let make = Some(TopSize::of(COUNTED_ITEMS as u32));
                    SketchCommand::CountTop { name, items: vec![(item(number), by)], make, dialect }
                }
                Form::Number | Form::Unique | Form::Hll => {
                    SketchCommand::Observe { name, items: vec![item(number)], dialect }
                }
            }),
            What::ObserveAll(items) => {
                Command::Sketch(SketchCommand::Observe { name, items: items.iter().map(item).collect(), dialect })
            }
            What::Estimate => Command::Sketch(match form {
                Form::Frequency => {
                    SketchCommand::ReadItems { name, items: (0..COUNTED_ITEMS).map(item).collect(), dialect }
                }
                Form::Top => SketchCommand::ListTop { name, dialect },
                Form::Number | Form::Unique | Form::Hll => SketchCommand::CountUnique { names: vec![name], dialect },
            }),
            What::Flush => Command::Flush,
            What::SetIfAbsent => Command::Set(set(FORBIDDEN, SetCondition::IfAbsent, false)),
            What::AddWithin => Command::AddWithin(AddWithin {
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
