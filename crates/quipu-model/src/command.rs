//! Everything that may be asked of the engine, once, for all doors.
//!
//! A command borrows its names from the bytes it was decoded from: deciding and applying it copies nothing.

use crate::{Name, Pattern, SketchCommand};

/// One operation on counters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command<'a> {
    /// Adds; replies `Integer`, the value after it. Creates the counter at 0 first.
    Add {
        /// Which counter.
        name: Name<'a>,
        /// By how much; may be negative.
        delta: i64,
        /// What picks the shard, where a shared counter's namespace says that the command does.
        shard_key: Option<&'a [u8]>,
    },
    /// Adds what was sampled before it came: of so many events one was taken, and counts for all of them. Only where the namespace is sampled as rarely; replies `Integer`, the value after it.
    AddSampled {
        /// Which counter.
        name: Name<'a>,
        /// What the events that were taken count for; not negative.
        amount: i64,
        /// Events to one that was taken, at most; at least 1.
        p: u32,
    },
    /// Adds if the result stays within bounds; replies `Pair(value, applied delta)`.
    AddWithin(AddWithin<'a>),
    /// Replies `Value`; of a sketch that is a string to Redis, `Bytes`.
    Read {
        /// Which counter.
        name: Name<'a>,
    },
    /// Replies `Values`, one per name, in order; a sketch has none.
    ReadMany {
        /// Which counters.
        names: Vec<Name<'a>>,
    },
    /// Sets the value and raises the epoch; replies as [`Set::reply_old`] says.
    Set(Set<'a>),
    /// Reads and deletes at once; replies as `Read` does.
    Take {
        /// Which counter.
        name: Name<'a>,
    },
    /// Reads and changes the expiry at once; replies as `Read` does.
    ReadAndExpire {
        /// Which counter.
        name: Name<'a>,
        /// What happens to the expiry.
        expiry: Expiry,
    },
    /// Sets to 0 and raises the epoch, keeping the expiry; replies `Integer`, the value before (0 if there was none).
    Reset {
        /// Which counter.
        name: Name<'a>,
    },
    /// Replies `Integer`: how many existed.
    Delete {
        /// Which counters.
        names: Vec<Name<'a>>,
    },
    /// Replies `Integer`: how many exist, names given twice counted twice.
    Exists {
        /// Which counters.
        names: Vec<Name<'a>>,
    },
    /// Replies `Kind`.
    KindOf {
        /// Which counter.
        name: Name<'a>,
    },
    /// Replies `Integer`: 1 if the expiry was set (or, being in the past, the counter deleted), else 0.
    Expire {
        /// Which counter.
        name: Name<'a>,
        /// When.
        when: ExpiryTime,
        /// Under which condition.
        condition: ExpiryCondition,
    },
    /// Replies `Integer`: 1 if there was an expiry to remove, else 0.
    Persist {
        /// Which counter.
        name: Name<'a>,
    },
    /// Replies `Integer`: the expiry in the form asked for; -1 without one, -2 without the counter.
    ExpiryOf {
        /// Which counter.
        name: Name<'a>,
        /// In which form.
        form: ExpiryForm,
    },
    /// Replies `Page`.
    Scan(Scan<'a>),
    /// Replies `Names`: all that match.
    ListNames(ListNames<'a>),
    /// Replies `Integer`: how many counters there are.
    CountNames,
    /// Deletes every counter; replies `Ok`.
    Flush,
    /// Something of the approximate kinds; replies as it says.
    Sketch(SketchCommand<'a>),
}

/// An add to one counter or a read of it: what nearly all commands are, small enough that many are looked at at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SimpleCommand<'a> {
    /// Which counter.
    pub name: Name<'a>,
    /// By how much; `None`: it is read.
    pub delta: Option<i64>,
}

impl<'a> From<SimpleCommand<'a>> for Command<'a> {
    fn from(SimpleCommand { name, delta }: SimpleCommand<'a>) -> Command<'a> {
        match delta {
            Some(delta) => Command::Add { name, delta, shard_key: None },
            None => Command::Read { name },
        }
    }
}

/// An add with bounds and, in the same step, an expiry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddWithin<'a> {
    /// Which counter.
    pub name: Name<'a>,
    /// By how much; may be negative.
    pub delta: i64,
    /// Lower bound, inclusive.
    pub lower: i64,
    /// Upper bound, inclusive; not below `lower`.
    pub upper: i64,
    /// Cap at the bound instead of doing nothing.
    pub saturate: bool,
    /// What happens to the expiry when the add is applied.
    pub expiry: Expiry,
    /// Set the expiry only if the counter has none.
    pub expiry_if_none: bool,
}

/// A set, with all that Redis's SET can ask for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Set<'a> {
    /// Which counter.
    pub name: Name<'a>,
    /// The new value.
    pub value: i64,
    /// Under which condition.
    pub condition: SetCondition,
    /// What happens to the expiry.
    pub expiry: SetExpiry,
    /// Reply as `Read` does, with what was there before, instead of `Ok` (set) or `Nil` (condition not met).
    pub reply_old: bool,
}

/// When a set is carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetCondition {
    /// Always.
    Always,
    /// Only if the counter does not exist.
    IfAbsent,
    /// Only if it does.
    IfPresent,
}

/// What a set does to the expiry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetExpiry {
    /// Removes it, as a plain SET does.
    Remove,
    /// Keeps what there was.
    Keep,
    /// Sets it.
    At(ExpiryTime),
}

/// What a command that is not a set does to the expiry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expiry {
    /// Leaves it as it is.
    Keep,
    /// Removes it.
    Remove,
    /// Sets it.
    At(ExpiryTime),
}

/// A point in time as a client states it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpiryTime {
    /// Milliseconds from now; may be negative where the door allows it.
    In(i64),
    /// Milliseconds since the Unix epoch.
    At(i64),
}

/// Condition of `Expire`, in the words of Redis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpiryCondition {
    /// Always.
    Always,
    /// NX: only without an expiry.
    IfNone,
    /// XX: only with one.
    IfSome,
    /// GT: only if later than the present one; no expiry counts as never.
    IfLater,
    /// LT: only if earlier; no expiry counts as never.
    IfEarlier,
    /// XX LT: only with one, and if earlier.
    IfSomeEarlier,
}

/// In which form an expiry is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpiryForm {
    /// Whole seconds left, rounded.
    SecondsLeft,
    /// Milliseconds left.
    MillisLeft,
    /// Unix time in seconds.
    AtSeconds,
    /// Unix time in milliseconds.
    AtMillis,
}

/// One step of walking all names. A name that exists from the first step to the last is returned at least once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scan<'a> {
    /// 0 to begin; then what the last step returned.
    pub cursor: u64,
    /// Only names that match.
    pub pattern: Option<Pattern<'a>>,
    /// About how many names to look at.
    pub count: usize,
}

/// All names that match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListNames<'a> {
    /// Which.
    pub pattern: Pattern<'a>,
    /// Refuse when the names add up to more bytes than this.
    pub bytes_max: usize,
}
