//! What the engine answers, once, for all doors.

use crate::{Estimate, Frequencies, FrequencyInfo, Kind, KindAndDialect, TopInfo, TopItem};

/// The answer to a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// Done, nothing to tell.
    Ok,
    /// Not done: a condition was not met.
    Nil,
    /// A number that always exists.
    Integer(i64),
    /// The value of a counter, if there is one.
    Value(Option<i64>),
    /// Values of several counters, in the order asked.
    Values(Vec<Option<i64>>),
    /// Value after a bounded add, and what was really added.
    Pair(i64, i64),
    /// The kind of a counter, if there is one.
    Kind(Option<KindAndDialect>),
    /// Names.
    Names(Vec<Box<[u8]>>),
    /// One step of a walk: the next cursor (0: done) and names.
    Page(u64, Vec<Box<[u8]>>),
    /// A string.
    Bytes(Box<[u8]>),
    /// Numbers, one for each item in the order asked.
    Integers(Vec<i64>),
    /// Items, one for each in the order asked; `None`: there is none.
    Items(Vec<Option<Box<[u8]>>>),
    /// A number that is not known exactly.
    Estimate(Estimate),
    /// How often items came, and how good that is.
    Frequencies(Frequencies),
    /// How large a sketch of frequencies is.
    FrequencyInfo(FrequencyInfo),
    /// The most frequent items, the most frequent first.
    TopItems(Vec<TopItem>),
    /// How large a sketch of the most frequent is.
    TopInfo(TopInfo),
    /// The operation has not been applied and will not be.
    Refused(Refusal),
}

/// Why an operation was not applied. One variant per thing a caller would do about it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The sum would leave the range of i64.
    #[error("increment or decrement would overflow")]
    Overflow,
    /// An expiry outside the range of time.
    #[error("invalid expire time")]
    ExpireTime,
    /// Sketches of different kinds meet, or the counter's kind is known to the store alone.
    #[error("Operation against a key holding the wrong kind of value; TYPE tells its kind")]
    WrongKind,
    /// Another kind of counter has this name.
    #[error("Operation against a key holding the wrong kind of value: it is {found}")]
    OtherKind {
        /// What it is.
        found: KindAndDialect,
    },
    /// The namespace is for counters of one kind.
    #[error("Operation against a key holding the wrong kind of value: its namespace has kind = \"{}\"", .allowed.name())]
    KindNotAllowed {
        /// The kind it is for.
        allowed: Kind,
    },
    /// The counter is sampled, and what is asked needs an exact one.
    #[error("{what} needs an exact counter, and this one is sampled; nothing was applied")]
    Sampled {
        /// What was asked for.
        what: &'static str,
    },
    /// What was sampled before it came was so at a rarer rate than the counter's namespace says.
    #[error("what was sampled before it is sent needs a namespace with sample = {p} or more; nothing was applied")]
    NotSampled {
        /// Events to one that was taken.
        p: u32,
    },
    /// No journal space could be had: the disk is full or the preparing of segments is behind.
    #[error("no room in the journal: {reason}; nothing was applied, reads go on")]
    NoRoom {
        /// What stands in the way.
        reason: String,
    },
    /// The disk is too slow for what is asked of it; try again later.
    #[error("the journal is {behind_bytes} bytes behind the disk; nothing was applied, try again later")]
    Behind {
        /// How much waits to be written.
        behind_bytes: u64,
    },
    /// New counters are not taken: the memory limit is reached and nothing can leave memory.
    #[error("the memory limit of {bytes_max} bytes is reached; existing counters go on counting")]
    NoMemory {
        /// The limit.
        bytes_max: u64,
    },
    /// The counter's namespace has as many as it may have.
    #[error("the namespace has {counters_max} counters, which is its limit; existing counters go on counting")]
    TooManyCounters {
        /// The limit.
        counters_max: u64,
    },
    /// The counter at rest could not be read.
    #[error("the counter could not be read: {reason}")]
    AtRest {
        /// What stands in the way.
        reason: String,
    },
    /// A walk over all names inside a transaction, while some of them are at rest.
    #[error("SCAN and KEYS are not possible inside a transaction while counters are at rest")]
    WalkTogether,
    /// The sum over all writers does not fit a reply, or an add would move it further out.
    #[error(
        "the sum over all writers is {sum}, which does not fit 64 bits; bring it back with {}, or SET it",
        if **.sum < 0 { "INCRBY" } else { "DECRBY" }
    )]
    TooWide {
        /// The sum.
        sum: Box<i128>,
    },
    /// The command needs an owner that decides alone, which a counter on a shared store does not have.
    #[error("{what} needs a single owner, which a counter on a shared store does not have")]
    OneOwner {
        /// What was asked for.
        what: &'static str,
    },
    /// The counter's namespace picks the shard by a key, and the command names none.
    #[error("this namespace says pick = \"hash\": an add names its shard with SHARDKEY; nothing was applied")]
    NoShardKey,
    /// The store does not answer, and without it the command cannot be carried out.
    #[error(
        "the shared store does not answer, and this command needs it; nothing was applied, try again later (plain adds go on where fail_mode is local or open)"
    )]
    StoreDown,
    /// This node may not count: another one has its identity, or it was away for too long.
    #[error("{reason}")]
    Fenced {
        /// Why, and what to do about it.
        reason: String,
    },
    /// Another node is carrying out the command with this token; its reply will be there soon.
    #[error("the token is in use by writer {owner}; nothing was applied, try again")]
    TokenInUse {
        /// Who has it.
        owner: crate::Writer,
    },
    /// The shared store has lost data, and the nodes put back what they know of tokens.
    #[error(
        "the shared store has lost data, and what was applied under tokens is being put back; nothing was applied, try again"
    )]
    TokensRestoring,
    /// The token was used for something else, or its time is over.
    #[error("the token was used for another command, or its time is over; nothing was applied")]
    TokenSpent,
    /// The token was used for another command, within its window.
    #[error("the token was used for another command; nothing was applied")]
    TokenMismatch,
    /// The token carries a time before the window: it may have been applied and forgotten.
    #[error("the token is older than the window of {window_millis} ms; nothing was applied")]
    TokenTooOld {
        /// The window.
        window_millis: u64,
    },
    /// The token carries a time that has not come yet.
    #[error("the token is from the future; nothing was applied")]
    TokenFromFuture,
    /// As many tokens are remembered as may be, and none of them is forgotten before its time.
    #[error("{tokens_max} tokens are remembered, which is the limit; nothing was applied, try again later")]
    TokensFull {
        /// The limit.
        tokens_max: u64,
    },
    /// The producer's number comes after one that was not applied.
    #[error("the next sequence number of this producer is {expected}; nothing was applied")]
    SequenceGap {
        /// The number that comes next.
        expected: u64,
    },
    /// The producer's number was applied, and later ones were, so its reply is no longer known.
    #[error("this sequence number was already applied, the last one is {last}; it was not applied again")]
    SequenceApplied {
        /// The last number that was applied.
        last: u64,
    },
    /// As many producers of sequences are remembered as may be.
    #[error("{producers_max} producers are remembered, which is the limit; nothing was applied")]
    ProducersFull {
        /// The limit.
        producers_max: u64,
    },
    /// A token on something that is no mutation, or on several that are not sets.
    #[error("only a single mutation can have a token; nothing was applied")]
    NotOnce,
    /// The counter is no sketch of uniques in Redis's form, which a command of Redis's dialect asks for.
    #[error("Key is not a valid HyperLogLog string value. It is {found}")]
    NotHll {
        /// What it is.
        found: KindAndDialect,
    },
    /// A string that begins like a sketch of Redis's and is none.
    #[error("Corrupted HLL object detected")]
    CorruptHll,
    /// There is no sketch of that name, and the command does not make one.
    #[error("key does not exist")]
    NoSketch {
        /// Which kind was asked for.
        kind: Kind,
    },
    /// There is a counter of that name.
    #[error("key already exists")]
    SketchExists {
        /// Which kind was to be made.
        kind: Kind,
    },
    /// Sketches of different sizes cannot be merged.
    #[error("width/depth is not equal")]
    SizesDiffer,
    /// A sketch of that size cannot be made.
    #[error("{reason}")]
    BadSize {
        /// Why.
        reason: String,
    },
    /// A counter within the sketch would leave its range; nothing was counted.
    #[error("a counter of the sketch would overflow; nothing was counted")]
    SketchOverflow,
    /// An item that a list would have to keep is too long.
    #[error("an item is too long: at most {bytes_max} bytes are kept")]
    ItemTooLong {
        /// The bound.
        bytes_max: usize,
    },
    /// What is asked cannot be done to sketches of this form.
    #[error("{reason}")]
    NotOffered {
        /// What, and why.
        reason: &'static str,
    },
    /// The reply could be too long to be remembered.
    #[error("a reply of more than {bytes_max} bytes cannot be remembered under a token; nothing was applied")]
    TokenReply {
        /// The bound.
        bytes_max: usize,
    },
    /// The answer would be larger than its bound.
    #[error("the reply would exceed {bytes_max} bytes; use SCAN")]
    ReplyTooLarge {
        /// The bound.
        bytes_max: usize,
    },
}
