//! Commands of the engine, shared by all protocols.
//!
//! A command borrows its names from the decoded bytes, so deciding and applying it copies nothing.

use crate::{Name, Pattern, SketchCommand};

/// One operation on counters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command<'a> {
    /// Adds; replies `Integer`, the value after it. Creates the counter at 0 first.
    Add {
        /// Counter name.
        name: Name<'a>,
        /// Amount to add; may be negative.
        delta: i64,
        /// Key that picks the shard of a shared counter; used if the namespace has `pick = "hash"`.
        shard_key: Option<&'a [u8]>,
    },
    /// Adds an amount that the client sampled: it took one event in `p` and counts it for all of
    /// them. The namespace must allow a sample rate of `p` or more. Replies `Integer`, the value
    /// after it.
    AddSampled {
        /// Counter name.
        name: Name<'a>,
        /// Number of events that the sampled ones stand for; not negative.
        amount: i64,
        /// Largest number of events per sampled one; at least 1.
        p: u32,
    },
    /// Adds if the result stays within bounds; replies `Pair(value, applied delta)`.
    AddWithin(AddWithin<'a>),
    /// Replies `Value`. For a sketch that Redis sees as a string: `Bytes`.
    Read {
        /// Counter name.
        name: Name<'a>,
    },
    /// Replies `Values`, one per name, in order. A sketch has no value.
    ReadMany {
        /// Counter names.
        names: Vec<Name<'a>>,
    },
    /// Sets the value and raises the epoch; [`Set::reply_old`] selects the reply.
    Set(Set<'a>),
    /// Reads and deletes in one step; replies as `Read` does.
    Take {
        /// Counter name.
        name: Name<'a>,
    },
    /// Reads and changes the expiry in one step; replies as `Read` does.
    ReadAndExpire {
        /// Counter name.
        name: Name<'a>,
        /// Change of the expiry.
        expiry: Expiry,
    },
    /// Sets to 0 and raises the epoch, keeping the expiry. Replies `Integer`, the value before (0
    /// if there was none).
    Reset {
        /// Counter name.
        name: Name<'a>,
    },
    /// Replies `Integer`, the number of counters that existed.
    Delete {
        /// Counter names.
        names: Vec<Name<'a>>,
    },
    /// Replies `Integer`, the number of names that exist. A name given twice counts twice.
    Exists {
        /// Counter names.
        names: Vec<Name<'a>>,
    },
    /// Replies `Kind`.
    KindOf {
        /// Counter name.
        name: Name<'a>,
    },
    /// Replies `Integer`: 1 if it set the expiry, else 0. An expiry in the past deletes the counter
    /// and replies 1.
    Expire {
        /// Counter name.
        name: Name<'a>,
        /// New expiry.
        when: ExpiryTime,
        /// Condition for the change.
        condition: ExpiryCondition,
    },
    /// Replies `Integer`: 1 if it removed an expiry, else 0.
    Persist {
        /// Counter name.
        name: Name<'a>,
    },
    /// Replies `Integer`, the expiry in the requested form; -1 without an expiry, -2 without a
    /// counter.
    ExpiryOf {
        /// Counter name.
        name: Name<'a>,
        /// Form of the reply.
        form: ExpiryForm,
    },
    /// Replies `Page`.
    Scan(Scan<'a>),
    /// Replies `Names`: all names that match.
    ListNames(ListNames<'a>),
    /// Replies `Integer`, the number of counters.
    CountNames,
    /// Deletes every counter; replies `Ok`.
    Flush,
    /// A command on an approximate kind; the sketch command defines the reply.
    Sketch(SketchCommand<'a>),
}

/// An add to one counter or a read of it. Nearly all commands are of this form. It is small, so
/// that the engine can process many at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SimpleCommand<'a> {
    /// Counter name.
    pub name: Name<'a>,
    /// Amount to add; `None` for a read.
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
    /// Counter name.
    pub name: Name<'a>,
    /// Amount to add; may be negative.
    pub delta: i64,
    /// Lower bound, inclusive.
    pub lower: i64,
    /// Upper bound, inclusive; not below `lower`.
    pub upper: i64,
    /// Cap at the bound instead of doing nothing.
    pub saturate: bool,
    /// Change of the expiry if the add is applied.
    pub expiry: Expiry,
    /// Set the expiry only if the counter has none.
    pub expiry_if_none: bool,
}

/// A set with all options of Redis's SET.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Set<'a> {
    /// Counter name.
    pub name: Name<'a>,
    /// The new value.
    pub value: i64,
    /// Condition for the set.
    pub condition: SetCondition,
    /// Change of the expiry.
    pub expiry: SetExpiry,
    /// Replies with the value before, as `Read` does, instead of `Ok` (set) or `Nil` (condition not
    /// met).
    pub reply_old: bool,
}

/// Condition of a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetCondition {
    /// Always.
    Always,
    /// Only if the counter does not exist.
    IfAbsent,
    /// Only if the counter exists.
    IfPresent,
}

/// Effect of a set on the expiry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetExpiry {
    /// Removes it, as a plain SET does.
    Remove,
    /// Keeps the present expiry.
    Keep,
    /// Sets it.
    At(ExpiryTime),
}

/// Effect on the expiry of a command other than a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expiry {
    /// Leaves the expiry unchanged.
    Keep,
    /// Removes it.
    Remove,
    /// Sets it.
    At(ExpiryTime),
}

/// A point in time in the form that the client sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpiryTime {
    /// Milliseconds from now; may be negative if the protocol allows it.
    In(i64),
    /// Milliseconds since the Unix epoch.
    At(i64),
}

/// Condition of `Expire`, after the options of Redis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpiryCondition {
    /// Always.
    Always,
    /// NX: only without an expiry.
    IfNone,
    /// XX: only with one.
    IfSome,
    /// GT: only if later than the present expiry. No expiry counts as never.
    IfLater,
    /// LT: only if earlier. No expiry counts as never.
    IfEarlier,
    /// XX LT: only with an expiry, and if earlier.
    IfSomeEarlier,
}

/// Form in which an expiry is reported.
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

/// One step of a scan over all names. A name that exists from the first step to the last is
/// returned at least once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scan<'a> {
    /// 0 to begin, then the cursor that the last step returned.
    pub cursor: u64,
    /// Only names that match.
    pub pattern: Option<Pattern<'a>>,
    /// Approximate number of names to examine.
    pub count: usize,
}

/// A request for all names that match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListNames<'a> {
    /// Pattern of the names.
    pub pattern: Pattern<'a>,
    /// Refuses if the names exceed this number of bytes in total.
    pub bytes_max: usize,
}
