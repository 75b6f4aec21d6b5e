//! Commands on the approximate kinds: unique, frequency and top.
//!
//! In: names, items and numbers, borrowed like those of other commands. Out: nothing; the engine
//! executes them.
//!
//! Each command has one of two **dialects**:
//! - Redis's: it creates sketches in Redis's form, accepts only these, and replies as the commands
//!   of Redis and of its modules do;
//! - native: it creates sketches in Quipu's form, accepts both forms, and replies with error
//!   bounds.
//!
//! All sketches of one command have one form, because sketches of two forms cannot be merged.

use crate::{Expiry, Kind, Millis, Name, SetCondition, SetExpiry, token};

/// Most items of a top list: the number that a reply can list.
pub const TOP_ITEMS_MAX: u32 = 10_000;

/// Dialect of a command, and form of a sketch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Dialect {
    /// Redis's: equal to the commands of Redis and its modules, bytes included. Its hash is public.
    Redis,
    /// Quipu's: less memory, less error, bounds, and a hash with a secret.
    Native,
}

/// A finite fraction; never NaN, so that it equals itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fraction(u64); // bits of a finite f64

impl Fraction {
    /// Creates a fraction; `None` if the number is not finite.
    pub fn new(number: f64) -> Option<Fraction> {
        // Maps -0.0 to 0.0, so that both zeros are equal.
        number.is_finite().then(|| Fraction((number + 0.0).to_bits()))
    }

    /// Returns the number.
    pub fn get(self) -> f64 {
        f64::from_bits(self.0)
    }
}

/// One operation on sketches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SketchCommand<'a> {
    /// Observes or counts items with their own time. A sketch over time counts them in the pane of
    /// that time, or as late. Replies as the inner command does.
    At {
        /// Time of the items.
        at: Millis,
        /// `Observe`, `CountItems` or `CountTop`.
        command: Box<SketchCommand<'a>>,
    },
    /// Records items as seen; replies `Integer`: 1 if that changed or created the sketch, else 0.
    Observe {
        /// Sketch name; created if it does not exist.
        name: Name<'a>,
        /// Seen items; may be empty.
        items: Vec<&'a [u8]>,
        /// Dialect.
        dialect: Dialect,
    },
    /// Replies `Estimate`, the number of different items in any of the sketches. A missing sketch
    /// has none.
    CountUnique {
        /// Sketch names; not empty.
        names: Vec<Name<'a>>,
        /// Dialect.
        dialect: Dialect,
    },
    /// Merges all sketches into the first, which is created if it does not exist; replies `Ok`.
    MergeUnique {
        /// The changed sketch, then the merged ones; not empty.
        names: Vec<Name<'a>>,
        /// Dialect.
        dialect: Dialect,
    },
    /// Replies `Estimate`, the number of items that two sketches of Quipu's form have in common, or
    /// that only the first has.
    RelateUnique {
        /// Names of both sketches.
        names: [Name<'a>; 2],
        /// Relation to estimate.
        relation: Relation,
    },
    /// Replies `Bytes`, a part of the string that Redis would store, digits of a count included.
    /// Empty without a counter.
    ReadRange {
        /// Counter name.
        name: Name<'a>,
        /// First byte; negative values count from the end.
        from: i64,
        /// Last byte.
        to: i64,
    },
    /// Replies `Integer`, the length of that string; 0 without a counter.
    StringLength {
        /// Counter name.
        name: Name<'a>,
    },
    /// Replaces the counter by a string of Redis's HyperLogLog; replies `Ok` (set) or `Nil`
    /// (condition not met).
    SetString(SetString<'a>),
    /// Creates a sketch of item frequencies; replies `Ok`. Refused if a counter has that name.
    MakeFrequency {
        /// Sketch name.
        name: Name<'a>,
        /// Size.
        size: FrequencySize,
        /// Dialect.
        dialect: Dialect,
    },
    /// Counts items; replies `Integers`, the upper bound of each item's count. All are counted or
    /// none is.
    CountItems {
        /// Sketch name.
        name: Name<'a>,
        /// Items, each with its number of occurrences.
        items: Vec<(&'a [u8], u64)>,
        /// Size of a new sketch; `None` refuses if the sketch does not exist.
        make: Option<FrequencySize>,
        /// Dialect.
        dialect: Dialect,
    },
    /// Reads item frequencies; replies `Integers` in Redis's dialect, `Frequencies` in Quipu's.
    ReadItems {
        /// Sketch name.
        name: Name<'a>,
        /// Items.
        items: Vec<&'a [u8]>,
        /// Dialect.
        dialect: Dialect,
    },
    /// Sets the first sketch to the weighted sum of the others, which must have its size and form.
    /// Its previous content counts only if it is listed again. Quipu's form takes no negative
    /// weights. Replies `Ok`.
    MergeFrequency {
        /// The changed sketch, then the summands; at least two names.
        names: Vec<Name<'a>>,
        /// A weight for each summand.
        weights: Vec<i64>,
        /// Dialect.
        dialect: Dialect,
    },
    /// Replies `FrequencyInfo`.
    FrequencyInfo {
        /// Sketch name.
        name: Name<'a>,
        /// Dialect.
        dialect: Dialect,
    },
    /// Creates a top list; replies `Ok`. Refused if a counter has that name.
    MakeTop {
        /// Sketch name.
        name: Name<'a>,
        /// Size.
        size: TopSize,
        /// Dialect.
        dialect: Dialect,
    },
    /// Counts items; replies `Items`, for each the item that it displaced from the list, if any.
    /// All are counted or none is.
    CountTop {
        /// Sketch name.
        name: Name<'a>,
        /// Items, each with its number of occurrences.
        items: Vec<(&'a [u8], u64)>,
        /// Size of a new sketch; `None` refuses if the sketch does not exist.
        make: Option<TopSize>,
        /// Dialect.
        dialect: Dialect,
    },
    /// Replies `Integers`: 1 for each item in the list, else 0.
    IsTop {
        /// Sketch name.
        name: Name<'a>,
        /// Items.
        items: Vec<&'a [u8]>,
        /// Dialect.
        dialect: Dialect,
    },
    /// Replies `Integers`, the upper bound of each item's count.
    ReadTop {
        /// Sketch name.
        name: Name<'a>,
        /// Items.
        items: Vec<&'a [u8]>,
        /// Dialect.
        dialect: Dialect,
    },
    /// Replies `TopItems`, the most frequent first.
    ListTop {
        /// Sketch name.
        name: Name<'a>,
        /// Dialect.
        dialect: Dialect,
    },
    /// Replies `TopInfo`.
    TopInfo {
        /// Sketch name.
        name: Name<'a>,
        /// Dialect.
        dialect: Dialect,
    },
}

/// Relation of two sets of items.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Relation {
    /// Items of both sets.
    Intersection,
    /// Items of the first set that the second does not have.
    Difference,
}

/// Size of a sketch of frequencies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrequencySize {
    /// Given by its table.
    Dimensions {
        /// Counters per row.
        width: u64,
        /// Number of rows.
        depth: u64,
    },
    /// Given by its accuracy: with a chance of 1 - `probability`, a count exceeds the true one by
    /// at most `error` times the total.
    Accuracy {
        /// Between 0 and 1.
        error: Fraction,
        /// Between 0 and 1.
        probability: Fraction,
    },
}

/// Size of a top list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TopSize {
    /// Number of items in its list.
    pub k: u32,
    /// Counters per row of Redis's table; Quipu's form ignores it.
    pub width: u32,
    /// Rows of Redis's table; Quipu's form ignores it.
    pub depth: u32,
    /// Chance in Redis's form that a count decrements another item's counter; 0 to 1. Quipu's form
    /// is deterministic.
    pub decay: Fraction,
}

impl FrequencySize {
    /// Returns the size of a sketch created by its first count. `at_most` is too high by at most a
    /// ten-thousandth of the total, except for one item in a thousand.
    pub fn default_size() -> FrequencySize {
        FrequencySize::Accuracy { error: Fraction(0.0001f64.to_bits()), probability: Fraction(0.001f64.to_bits()) }
    }
}

impl TopSize {
    /// Returns the size of a list created by its first count.
    pub fn default_size() -> TopSize {
        TopSize::with_k(100)
    }

    /// Returns the size of `TOPK.RESERVE` with `k` alone.
    pub fn with_k(k: u32) -> TopSize {
        TopSize { k, width: 8, depth: 7, decay: Fraction(0.9f64.to_bits()) }
    }
}

/// A set of a string with the options of Redis's SET.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetString<'a> {
    /// Counter name.
    pub name: Name<'a>,
    /// The string: a HyperLogLog in Redis's encoding.
    pub bytes: &'a [u8],
    /// Condition for the set.
    pub condition: SetCondition,
    /// Effect on the expiry.
    pub expiry: SetExpiry,
    /// Replies with the previous content, `Value` of a count and `Bytes` of a string, instead of
    /// `Ok` or `Nil`.
    pub reply_old: bool,
}

impl<'a> SketchCommand<'a> {
    /// Returns the inner command, and its time if it has one.
    pub fn command_and_time(&self) -> (&SketchCommand<'a>, Option<Millis>) {
        match self {
            SketchCommand::At { at, command } => (command.command_and_time().0, Some(*at)),
            command => (command, None),
        }
    }

    /// Returns the kind of its counter. For string commands it is that of the only settable string.
    pub fn kind(&self) -> Kind {
        match self {
            SketchCommand::At { command, .. } => command.kind(),
            SketchCommand::Observe { .. }
            | SketchCommand::CountUnique { .. }
            | SketchCommand::MergeUnique { .. }
            | SketchCommand::RelateUnique { .. }
            | SketchCommand::ReadRange { .. }
            | SketchCommand::StringLength { .. }
            | SketchCommand::SetString(_) => Kind::Unique,
            SketchCommand::MakeFrequency { .. }
            | SketchCommand::CountItems { .. }
            | SketchCommand::ReadItems { .. }
            | SketchCommand::MergeFrequency { .. }
            | SketchCommand::FrequencyInfo { .. } => Kind::Frequency,
            SketchCommand::MakeTop { .. }
            | SketchCommand::CountTop { .. }
            | SketchCommand::IsTop { .. }
            | SketchCommand::ReadTop { .. }
            | SketchCommand::ListTop { .. }
            | SketchCommand::TopInfo { .. } => Kind::Top,
        }
    }

    /// Appends a distinct encoding of the change; returns false if the command changes nothing.
    pub(crate) fn append_payload(&self, out: &mut Vec<u8>) -> bool {
        let number = |out: &mut Vec<u8>, number: u64| out.extend_from_slice(&number.to_le_bytes());
        let put_items = |out: &mut Vec<u8>, items: &[(&[u8], u64)]| {
            number(out, items.len() as u64);
            for (item, by) in items {
                token::put_bytes(out, item);
                number(out, *by);
            }
        };
        let put_names = |out: &mut Vec<u8>, names: &[Name<'_>]| {
            number(out, names.len() as u64);
            names.iter().for_each(|name| token::put_bytes(out, name.bytes()));
        };
        match self {
            SketchCommand::At { at, command } => {
                out.push(9);
                number(out, at.0);
                return command.append_payload(out);
            }
            SketchCommand::Observe { name, items, dialect } => {
                out.extend_from_slice(&[1, *dialect as u8]);
                put_names(out, &[*name]);
                number(out, items.len() as u64);
                items.iter().for_each(|item| token::put_bytes(out, item));
            }
            SketchCommand::MergeUnique { names, dialect } => {
                out.extend_from_slice(&[2, *dialect as u8]);
                put_names(out, names);
            }
            SketchCommand::SetString(SetString { name, bytes, condition, expiry, reply_old }) => {
                out.push(3);
                put_names(out, &[*name]);
                token::put_bytes(out, bytes);
                token::put_set(out, *condition, *expiry, *reply_old);
            }
            SketchCommand::MakeFrequency { name, size, dialect } => {
                out.extend_from_slice(&[4, *dialect as u8]);
                put_names(out, &[*name]);
                put_frequency_size(out, Some(*size));
            }
            SketchCommand::CountItems { name, items, make, dialect } => {
                out.extend_from_slice(&[5, *dialect as u8]);
                put_names(out, &[*name]);
                put_items(out, items);
                put_frequency_size(out, *make);
            }
            SketchCommand::MergeFrequency { names, weights, dialect } => {
                out.extend_from_slice(&[6, *dialect as u8]);
                put_names(out, names);
                number(out, weights.len() as u64);
                weights.iter().for_each(|weight| number(out, *weight as u64));
            }
            SketchCommand::MakeTop { name, size, dialect } => {
                out.extend_from_slice(&[7, *dialect as u8]);
                put_names(out, &[*name]);
                put_top_size(out, Some(*size));
            }
            SketchCommand::CountTop { name, items, make, dialect } => {
                out.extend_from_slice(&[8, *dialect as u8]);
                put_names(out, &[*name]);
                put_items(out, items);
                put_top_size(out, *make);
            }
            _ => return false,
        }
        true
    }
}

fn put_frequency_size(out: &mut Vec<u8>, size: Option<FrequencySize>) {
    let (tag, numbers) = match size {
        None => (0, [0, 0]),
        Some(FrequencySize::Dimensions { width, depth }) => (1, [width, depth]),
        Some(FrequencySize::Accuracy { error, probability }) => (2, [error.0, probability.0]),
    };
    out.push(tag);
    numbers.iter().for_each(|number| out.extend_from_slice(&number.to_le_bytes()));
}

fn put_top_size(out: &mut Vec<u8>, size: Option<TopSize>) {
    out.push(u8::from(size.is_some()));
    if let Some(TopSize { k, width, depth, decay }) = size {
        [k, width, depth].iter().for_each(|number| out.extend_from_slice(&number.to_le_bytes()));
        out.extend_from_slice(&decay.0.to_le_bytes());
    }
}

/// An estimate with its interval of two standard deviations to either side, which nearly always
/// holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Estimate {
    /// Most likely value.
    pub value: u64,
    /// Lower end of the interval.
    pub low: u64,
    /// Upper end of the interval.
    pub high: u64,
}

impl Estimate {
    /// Returns an exact estimate.
    pub fn exact(value: u64) -> Estimate {
        Estimate { value, low: value, high: value }
    }

    /// Returns true if it cannot be distinguished from 0.
    pub fn is_below_resolution(self) -> bool {
        self.low == 0
    }
}

/// Number of occurrences of items, with the total.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frequencies {
    /// One row for each requested item, in order.
    pub rows: Vec<Frequency>,
    /// Total of all occurrences, N.
    pub total: u64,
    /// Error bound ε·N: nearly always, the true count is at least `at_most` minus this.
    pub error: u64,
}

/// Number of occurrences of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frequency {
    /// Upper bound.
    pub at_most: u64,
    /// Most likely value.
    pub typical: u64,
}

/// Size and total of a sketch of frequencies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrequencyInfo {
    /// Counters per row.
    pub width: u64,
    /// Number of rows.
    pub depth: u64,
    /// Total of all occurrences.
    pub total: u64,
    /// Form of the sketch.
    pub dialect: Dialect,
}

/// An item of a top list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopItem {
    /// The item.
    pub item: Box<[u8]>,
    /// Upper bound of its count.
    pub at_most: u64,
    /// Lower bound of its count.
    pub at_least: u64,
    /// True if it is certainly among the most frequent.
    pub certain: bool,
}

/// Size and total of a top list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TopInfo {
    /// Requested size. Quipu's form ignores width, depth and decay.
    pub size: TopSize,
    /// Total of all occurrences.
    pub total: u64,
    /// Form of the sketch.
    pub dialect: Dialect,
}

/// Kind of a counter, and form of its sketch. A count has one form, which is Redis's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KindAndDialect {
    /// Kind of the counter.
    pub kind: Kind,
    /// Form of the sketch.
    pub dialect: Dialect,
}

impl KindAndDialect {
    /// Kind and form of a count.
    pub const COUNT: KindAndDialect = KindAndDialect { kind: Kind::Count, dialect: Dialect::Redis };

    /// Returns the name of the command that reads such a counter.
    pub fn read_command(self) -> &'static str {
        match (self.kind, self.dialect) {
            (Kind::Count, _) => "GET",
            (Kind::Unique, Dialect::Redis) => "PFCOUNT",
            (Kind::Unique, Dialect::Native) => "QUIPU.UNIQUES",
            (Kind::Frequency, Dialect::Redis) => "CMS.QUERY",
            (Kind::Frequency, Dialect::Native) => "QUIPU.FREQ.READ",
            (Kind::Top, Dialect::Redis) => "TOPK.LIST",
            (Kind::Top, Dialect::Native) => "QUIPU.TOP.LIST",
        }
    }
}

/// Text for errors: the kind, and the command that reads it.
impl std::fmt::Display for KindAndDialect {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "of kind {}, which {} reads", self.kind.name(), self.read_command())
    }
}

impl From<SetExpiry> for Expiry {
    fn from(expiry: SetExpiry) -> Expiry {
        match expiry {
            SetExpiry::Keep => Expiry::Keep,
            SetExpiry::Remove => Expiry::Remove,
            SetExpiry::At(when) => Expiry::At(when),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name<'_> {
        Name::new(text.as_bytes()).expect("it is short")
    }

    #[test]
    fn payloads_differ_where_commands_do() {
        let items = |count: usize| vec![(&b"a"[..], 1); count];
        let (redis, native) = (Dialect::Redis, Dialect::Native);
        let sizes = [Some(TopSize::with_k(1)), Some(TopSize::with_k(2)), None];
        let width = |width| FrequencySize::Dimensions { width, depth: 2 };
        let mut commands = vec![
            SketchCommand::Observe { name: name("a"), items: vec![b"x"], dialect: redis },
            SketchCommand::Observe { name: name("a"), items: vec![b"x"], dialect: native },
            SketchCommand::Observe { name: name("a"), items: vec![b"x", b""], dialect: redis },
            SketchCommand::Observe { name: name("ax"), items: vec![b""], dialect: redis },
            SketchCommand::MergeUnique { names: vec![name("a"), name("b")], dialect: redis },
            SketchCommand::MergeUnique { names: vec![name("b"), name("a")], dialect: redis },
            SketchCommand::MakeFrequency { name: name("a"), size: width(1), dialect: redis },
            SketchCommand::MakeFrequency { name: name("a"), size: width(2), dialect: redis },
            SketchCommand::MakeTop { name: name("a"), size: TopSize::with_k(1), dialect: redis },
            SketchCommand::CountItems { name: name("a"), items: items(2), make: None, dialect: redis },
            SketchCommand::CountItems { name: name("a"), items: items(2), make: Some(width(1)), dialect: redis },
            SketchCommand::MergeFrequency { names: vec![name("a")], weights: vec![1, 2], dialect: redis },
            SketchCommand::MergeFrequency { names: vec![name("a")], weights: vec![2, 1], dialect: redis },
        ];
        let top = |make, count| SketchCommand::CountTop { name: name("a"), items: items(count), make, dialect: redis };
        for at in [1, 2].map(Millis) {
            commands.push(SketchCommand::At { at, command: Box::new(commands[0].clone()) });
        }
        commands.extend(sizes.into_iter().flat_map(|make| [top(make, 1), top(make, 2)]));
        let payloads: Vec<Vec<u8>> = commands
            .iter()
            .map(|command| {
                let mut out = Vec::new();
                assert!(command.append_payload(&mut out) && command.facts().writes);
                out
            })
            .collect();
        for (index, payload) in payloads.iter().enumerate() {
            assert!(!payloads[..index].contains(payload), "{:?}", commands[index]);
        }
        let read = SketchCommand::ListTop { name: name("a"), dialect: redis };
        assert!(!read.append_payload(&mut Vec::new()) && !read.facts().writes && read.facts().creates.is_none());
    }

    #[test]
    fn a_fraction_equals_itself() {
        assert_eq!(Fraction::new(f64::NAN), None);
        assert_eq!(Fraction::new(f64::INFINITY), None);
        assert_eq!(Fraction::new(-0.0), Fraction::new(0.0));
        assert_eq!(Fraction::new(0.9), Some(TopSize::with_k(1).decay));
    }
}
