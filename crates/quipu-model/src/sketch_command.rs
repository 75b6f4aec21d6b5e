//! What may be asked of the approximate kinds: unique, frequency and top.
//!
//! In: names, items and numbers, borrowed like those of other commands. Out: nothing; the engine carries them out.
//!
//! A sketch is asked in one of two **dialects**. In Redis's it is made in Redis's form, only such sketches are taken, and answers are what Redis's own commands and those
//! of its modules reply. In our own it is made in our form, both forms are taken, and answers say how good they are. Sketches of one command are all of one form: those of two cannot be merged.

use crate::{Expiry, Kind, Millis, Name, SetCondition, SetExpiry, token};

/// Most items that a top may be asked to keep: as many as a reply of its list may name.
pub const TOP_ITEMS_MAX: u32 = 10_000;

/// In whose terms something is asked, and in whose form a sketch is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Dialect {
    /// Redis's: what its commands and modules do, bytes included. Its hash is known to everybody.
    Redis,
    /// Our own: less memory, less error, bounds, and a hash with a secret.
    Native,
}

/// A number that is no integer; never NaN, so that it equals itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fraction(u64); // bits of a finite f64

impl Fraction {
    /// `None` if it is not finite.
    pub fn new(number: f64) -> Option<Fraction> {
        // Both zeros are one number.
        number.is_finite().then(|| Fraction((number + 0.0).to_bits()))
    }

    /// The number.
    pub fn get(self) -> f64 {
        f64::from_bits(self.0)
    }
}

/// One operation on sketches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SketchCommand<'a> {
    /// Observes or counts items that came at this time, which matters to a sketch over time: they are in the pane of that, or too late. Replies what the command does.
    At {
        /// When they came.
        at: Millis,
        /// `Observe`, `CountItems` or `CountTop`.
        command: Box<SketchCommand<'a>>,
    },
    // ---- unique -----------------------------------------------------------------------------------------------------------------
    /// Notes items as seen; replies `Integer`: 1 if that changed or made the sketch, else 0.
    Observe {
        /// Which sketch; it is made if it does not exist.
        name: Name<'a>,
        /// What was seen; may be empty.
        items: Vec<&'a [u8]>,
        /// In which dialect.
        dialect: Dialect,
    },
    /// Replies `Estimate`: how many different items are in any of them. One that does not exist has none.
    CountUnique {
        /// Which sketches; not empty.
        names: Vec<Name<'a>>,
        /// In which dialect.
        dialect: Dialect,
    },
    /// Makes the first hold what any of them does; replies `Ok`. It is made if it does not exist.
    MergeUnique {
        /// The sketch that is changed, then those it takes in; not empty.
        names: Vec<Name<'a>>,
        /// In which dialect.
        dialect: Dialect,
    },
    /// Replies `Estimate`, of items that two sketches of our own form have in common, or that are in the first alone.
    RelateUnique {
        /// Both of them.
        names: [Name<'a>; 2],
        /// How they are related.
        relation: Relation,
    },
    // ---- strings, which sketches of uniques are to Redis's commands ------------------------------------------------------------------
    /// Replies `Bytes`: a part of the string that Redis would keep, digits of a count included; empty without a counter.
    ReadRange {
        /// Which counter.
        name: Name<'a>,
        /// The first byte; negative ones are counted from the end.
        from: i64,
        /// The last byte.
        to: i64,
    },
    /// Replies `Integer`: the length of that string; 0 without a counter.
    StringLength {
        /// Which counter.
        name: Name<'a>,
    },
    /// Takes a string of Redis's HyperLogLog in place of whatever is there; replies `Ok` (set) or `Nil` (condition not met).
    SetString(SetString<'a>),
    // ---- frequency --------------------------------------------------------------------------------------------------------------
    /// Makes a sketch of how often items come; replies `Ok`. Refused if there is a counter of that name.
    MakeFrequency {
        /// Its name.
        name: Name<'a>,
        /// How large it is.
        size: FrequencySize,
        /// In which dialect.
        dialect: Dialect,
    },
    /// Counts items; replies `Integers`: the most that each may have come to. All are counted or none is.
    CountItems {
        /// Which sketch.
        name: Name<'a>,
        /// Items, and how often each came.
        items: Vec<(&'a [u8], u64)>,
        /// Make it so if it does not exist; else it is refused.
        make: Option<FrequencySize>,
        /// In which dialect.
        dialect: Dialect,
    },
    /// How often items came; replies `Integers` in Redis's dialect, `Frequencies` in ours.
    ReadItems {
        /// Which sketch.
        name: Name<'a>,
        /// Which items.
        items: Vec<&'a [u8]>,
        /// In which dialect.
        dialect: Dialect,
    },
    /// Makes the first the weighted sum of the others, which have its size and form; replies `Ok`. What it had before stays in it only if it is among them. Our own form takes no negative weights.
    MergeFrequency {
        /// The sketch that is changed, then those that are added up; at least two.
        names: Vec<Name<'a>>,
        /// A weight for each that is added up.
        weights: Vec<i64>,
        /// In which dialect.
        dialect: Dialect,
    },
    /// Replies `FrequencyInfo`.
    FrequencyInfo {
        /// Which sketch.
        name: Name<'a>,
        /// In which dialect.
        dialect: Dialect,
    },
    // ---- top --------------------------------------------------------------------------------------------------------------------
    /// Makes a sketch of what comes most often; replies `Ok`. Refused if there is a counter of that name.
    MakeTop {
        /// Its name.
        name: Name<'a>,
        /// How large it is.
        size: TopSize,
        /// In which dialect.
        dialect: Dialect,
    },
    /// Counts items; replies `Items`: for each the one that has left the list for it, if one has. All are counted or none is.
    CountTop {
        /// Which sketch.
        name: Name<'a>,
        /// Items, and how often each came.
        items: Vec<(&'a [u8], u64)>,
        /// Make it so if it does not exist; else it is refused.
        make: Option<TopSize>,
        /// In which dialect.
        dialect: Dialect,
    },
    /// Replies `Integers`: 1 for each item in the list, else 0.
    IsTop {
        /// Which sketch.
        name: Name<'a>,
        /// Which items.
        items: Vec<&'a [u8]>,
        /// In which dialect.
        dialect: Dialect,
    },
    /// Replies `Integers`: the most that each may have come to.
    ReadTop {
        /// Which sketch.
        name: Name<'a>,
        /// Which items.
        items: Vec<&'a [u8]>,
        /// In which dialect.
        dialect: Dialect,
    },
    /// Replies `TopItem`, the most frequent first.
    ListTop {
        /// Which sketch.
        name: Name<'a>,
        /// In which dialect.
        dialect: Dialect,
    },
    /// Replies `TopInfo`.
    TopInfo {
        /// Which sketch.
        name: Name<'a>,
        /// In which dialect.
        dialect: Dialect,
    },
}

/// How two sets of items are related.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Relation {
    /// What both have.
    Intersection,
    /// What the first has and the second has not.
    Difference,
}

/// How large a sketch of frequencies is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrequencySize {
    /// By its table.
    Dimensions {
        /// Counters of a row.
        width: u64,
        /// Rows.
        depth: u64,
    },
    /// By how good it is: in all but `probability` of the cases a count is not more than `error` of all that came too high.
    Accuracy {
        /// Between 0 and 1.
        error: Fraction,
        /// Between 0 and 1.
        probability: Fraction,
    },
}

/// How large a sketch of the most frequent is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TopSize {
    /// How many items its list has.
    pub k: u32,
    /// Redis's table: counters of a row. Ours is not sized by it.
    pub width: u32,
    /// Redis's table: rows. Ours is not sized by it.
    pub depth: u32,
    /// Redis's chance that a counter of another item is taken down; 0 to 1. Ours does not roll dice.
    pub decay: Fraction,
}

impl FrequencySize {
    /// What a sketch is made like when it is first counted in: `at_most` is at most a ten-thousandth of all too high, but for one item in a thousand.
    pub fn default_size() -> FrequencySize {
        FrequencySize::Accuracy { error: Fraction(0.0001f64.to_bits()), probability: Fraction(0.001f64.to_bits()) }
    }
}

impl TopSize {
    /// What a list is made like when it is first counted in.
    pub fn default_size() -> TopSize {
        TopSize::with_k(100)
    }

    /// What `TOPK.RESERVE` takes where it is told no more than `k`.
    pub fn with_k(k: u32) -> TopSize {
        TopSize { k, width: 8, depth: 7, decay: Fraction(0.9f64.to_bits()) }
    }
}

/// A set of a string, with what Redis's SET can ask for beside it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetString<'a> {
    /// Which counter.
    pub name: Name<'a>,
    /// The string: what Redis keeps of a HyperLogLog.
    pub bytes: &'a [u8],
    /// Under which condition.
    pub condition: SetCondition,
    /// What happens to the expiry.
    pub expiry: SetExpiry,
    /// Reply what was there before, `Value` of a count and `Bytes` of a string, instead of `Ok` or `Nil`.
    pub reply_old: bool,
}

impl<'a> SketchCommand<'a> {
    /// What it asks for, and of which time, if that was said.
    pub fn command_and_time(&self) -> (&SketchCommand<'a>, Option<Millis>) {
        match self {
            SketchCommand::At { at, command } => (command.command_and_time().0, Some(*at)),
            command => (command, None),
        }
    }

    /// The counters it touches, the one it may change first.
    pub fn names(&self) -> &[Name<'a>] {
        match self {
            SketchCommand::At { command, .. } => command.names(),
            SketchCommand::CountUnique { names, .. }
            | SketchCommand::MergeUnique { names, .. }
            | SketchCommand::MergeFrequency { names, .. } => names,
            SketchCommand::RelateUnique { names, .. } => names,
            SketchCommand::SetString(set) => std::slice::from_ref(&set.name),
            SketchCommand::Observe { name, .. }
            | SketchCommand::ReadRange { name, .. }
            | SketchCommand::StringLength { name }
            | SketchCommand::MakeFrequency { name, .. }
            | SketchCommand::CountItems { name, .. }
            | SketchCommand::ReadItems { name, .. }
            | SketchCommand::FrequencyInfo { name, .. }
            | SketchCommand::MakeTop { name, .. }
            | SketchCommand::CountTop { name, .. }
            | SketchCommand::IsTop { name, .. }
            | SketchCommand::ReadTop { name, .. }
            | SketchCommand::ListTop { name, .. }
            | SketchCommand::TopInfo { name, .. } => std::slice::from_ref(name),
        }
    }

    /// Whether it may change a counter.
    pub fn writes(&self) -> bool {
        match self {
            SketchCommand::At { command, .. } => command.writes(),
            SketchCommand::Observe { .. }
            | SketchCommand::MergeUnique { .. }
            | SketchCommand::SetString(_)
            | SketchCommand::MakeFrequency { .. }
            | SketchCommand::CountItems { .. }
            | SketchCommand::MergeFrequency { .. }
            | SketchCommand::MakeTop { .. }
            | SketchCommand::CountTop { .. } => true,
            SketchCommand::CountUnique { .. }
            | SketchCommand::RelateUnique { .. }
            | SketchCommand::ReadRange { .. }
            | SketchCommand::StringLength { .. }
            | SketchCommand::ReadItems { .. }
            | SketchCommand::FrequencyInfo { .. }
            | SketchCommand::IsTop { .. }
            | SketchCommand::ReadTop { .. }
            | SketchCommand::ListTop { .. }
            | SketchCommand::TopInfo { .. } => false,
        }
    }

    /// The kind that it is about; of strings, which a count is one of, that of the one string that can be set.
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

    /// The counter it may make.
    pub fn creates(&self) -> Option<Name<'a>> {
        match self {
            SketchCommand::At { command, .. } => command.creates(),
            SketchCommand::Observe { name, .. }
            | SketchCommand::MakeFrequency { name, .. }
            | SketchCommand::CountItems { name, make: Some(_), .. }
            | SketchCommand::MakeTop { name, .. }
            | SketchCommand::CountTop { name, make: Some(_), .. } => Some(*name),
            SketchCommand::MergeUnique { names, .. } => names.first().copied(),
            SketchCommand::SetString(set) if set.condition != SetCondition::IfPresent => Some(set.name),
            _ => None,
        }
    }

    /// Appends what it would do, such that others have other bytes; false if it changes nothing.
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

/// A number that is not known exactly, and what it lies between, nearly always: two standard deviations to either side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Estimate {
    /// What it most likely is.
    pub value: u64,
    /// It is hardly less.
    pub low: u64,
    /// It is hardly more.
    pub high: u64,
}

impl Estimate {
    /// What is known exactly.
    pub fn exact(value: u64) -> Estimate {
        Estimate { value, low: value, high: value }
    }

    /// Whether it may as well be nothing: it is below what can be told.
    pub fn is_below_resolution(self) -> bool {
        self.low == 0
    }
}

/// How often items came, of all that did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frequencies {
    /// One for each item that was asked for, in order.
    pub rows: Vec<Frequency>,
    /// How much came in all: N.
    pub total: u64,
    /// An item came at least `at_most` − this, nearly always: ε·N.
    pub error: u64,
}

/// How often an item came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frequency {
    /// Not more often.
    pub at_most: u64,
    /// Most likely so often.
    pub typical: u64,
}

/// How large a sketch of frequencies is, and how much it has counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrequencyInfo {
    /// Counters of a row.
    pub width: u64,
    /// Rows.
    pub depth: u64,
    /// How much came in all.
    pub total: u64,
    /// In whose form it is kept.
    pub dialect: Dialect,
}

/// An item of a list of the most frequent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopItem {
    /// The item.
    pub item: Box<[u8]>,
    /// It did not come more often.
    pub at_most: u64,
    /// It came so often at least.
    pub at_least: u64,
    /// Whether it is surely among the most frequent.
    pub certain: bool,
}

/// How large a sketch of the most frequent is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TopInfo {
    /// As it was asked for; of our own form width, depth and decay mean nothing.
    pub size: TopSize,
    /// How much came in all.
    pub total: u64,
    /// In whose form it is kept.
    pub dialect: Dialect,
}

/// What a counter is: its kind, and in whose form it is kept. A count has one form, which is Redis's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KindAndDialect {
    /// What it counts.
    pub kind: Kind,
    /// In whose form.
    pub dialect: Dialect,
}

impl KindAndDialect {
    /// Of a count.
    pub const COUNT: KindAndDialect = KindAndDialect { kind: Kind::Count, dialect: Dialect::Redis };

    /// The command that reads such a counter.
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

/// For error texts: the kind, and which command reads it.
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
                assert!(command.append_payload(&mut out) && command.writes());
                out
            })
            .collect();
        for (index, payload) in payloads.iter().enumerate() {
            assert!(!payloads[..index].contains(payload), "{:?}", commands[index]);
        }
        let read = SketchCommand::ListTop { name: name("a"), dialect: redis };
        assert!(!read.append_payload(&mut Vec::new()) && !read.writes() && read.creates().is_none());
    }

    #[test]
    fn a_fraction_equals_itself() {
        assert_eq!(Fraction::new(f64::NAN), None);
        assert_eq!(Fraction::new(f64::INFINITY), None);
        assert_eq!(Fraction::new(-0.0), Fraction::new(0.0));
        assert_eq!(Fraction::new(0.9), Some(TopSize::with_k(1).decay));
    }
}
