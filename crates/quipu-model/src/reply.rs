//! Replies of the engine, shared by all protocols.

use crate::{Estimate, Frequencies, FrequencyInfo, Kind, KindAndDialect, TopInfo, TopItem};

/// Reply to a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// Done, without a result.
    Ok,
    /// Not done: a condition was not met.
    Nil,
    /// A number that always exists.
    Integer(i64),
    /// The value of a counter, if there is one.
    Value(Option<i64>),
    /// Values of several counters, in the order asked.
    Values(Vec<Option<i64>>),
    /// The value after a bounded add, and the amount that was added.
    Pair(i64, i64),
    /// The kind of a counter, if there is one.
    Kind(Option<KindAndDialect>),
    /// Names.
    Names(Vec<Box<[u8]>>),
    /// One step of a scan: the next cursor (0: done) and names.
    Page(u64, Vec<Box<[u8]>>),
    /// A string.
    Bytes(Box<[u8]>),
    /// Numbers, one for each item in the order asked.
    Integers(Vec<i64>),
    /// One entry per requested item, in order; `None` if there is none.
    Items(Vec<Option<Box<[u8]>>>),
    /// An estimated number.
    Estimate(Estimate),
    /// Number of occurrences of items, with error bounds.
    Frequencies(Frequencies),
    /// Size of a sketch of frequencies.
    FrequencyInfo(FrequencyInfo),
    /// The most frequent items, the most frequent first.
    TopItems(Vec<TopItem>),
    /// Size of a top list.
    TopInfo(TopInfo),
    /// The operation has not been applied and will not be.
    Refused(Refusal),
}

/// Reason why an operation was not applied. One variant for each distinct reaction of a caller.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The sum would leave the range of i64.
    #[error("increment or decrement would overflow")]
    Overflow,
    /// An expiry outside the range of time.
    #[error("invalid expire time")]
    ExpireTime,
    /// Sketches of different kinds meet, or the store alone knows the counter's kind.
    #[error("Operation against a key holding the wrong kind of value; TYPE tells its kind")]
    WrongKind,
    /// Another kind of counter has this name.
    #[error("Operation against a key holding the wrong kind of value: it is {found}")]
    OtherKind {
        /// Kind of that counter.
        found: KindAndDialect,
    },
    /// The namespace allows counters of one kind only.
    #[error("Operation against a key holding the wrong kind of value: its namespace has kind = \"{}\"", .allowed.name())]
    KindNotAllowed {
        /// The allowed kind.
        allowed: Kind,
    },
    /// The counter is sampled, and the command needs an exact one.
    #[error("{what} needs an exact counter, and this one is sampled; nothing was applied")]
    Sampled {
        /// The command.
        what: &'static str,
    },
    /// The client sampled at a rarer rate than the namespace of the counter allows.
    #[error("what was sampled before it is sent needs a namespace with sample = {p} or more; nothing was applied")]
    NotSampled {
        /// Number of events per sampled one.
        p: u32,
    },
    /// No journal space is available: the disk is full, or segment preparation is behind.
    #[error("no room in the journal: {reason}; nothing was applied, reads go on")]
    NoRoom {
        /// Cause.
        reason: String,
    },
    /// The disk is too slow for the load; try again later.
    #[error("the journal is {behind_bytes} bytes behind the disk; nothing was applied, try again later")]
    Behind {
        /// Bytes that wait to be written.
        behind_bytes: u64,
    },
    /// New counters are refused: the memory limit is reached and no counter can leave memory.
    #[error("the memory limit of {bytes_max} bytes is reached; existing counters go on counting")]
    NoMemory {
        /// The limit.
        bytes_max: u64,
    },
    /// The namespace has its maximum number of counters.
    #[error("the namespace has {counters_max} counters, which is its limit; existing counters go on counting")]
    TooManyCounters {
        /// The limit.
        counters_max: u64,
    },
    /// The counter at rest could not be read.
    #[error("the counter could not be read: {reason}")]
    AtRest {
        /// Cause.
        reason: String,
    },
    /// SCAN or KEYS inside a transaction, while some counters are at rest.
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
    /// The command needs one owner that decides alone. A counter on a shared store does not have
    /// one.
    #[error("{what} needs a single owner, which a counter on a shared store does not have")]
    OneOwner {
        /// The command.
        what: &'static str,
    },
    /// The namespace picks the shard by a key, and the command has none.
    #[error("this namespace says pick = \"hash\": an add names its shard with SHARDKEY; nothing was applied")]
    NoShardKey,
    /// The store does not respond, and the command needs it.
    #[error(
        "the shared store does not answer, and this command needs it; nothing was applied, try again later (plain adds go on where fail_mode is local or open)"
    )]
    StoreDown,
    /// This node may not count: another node has its identity, or it was away for too long.
    #[error("{reason}")]
    Fenced {
        /// Cause and remedy.
        reason: String,
    },
    /// Another node is applying the command with this token; its reply will be there soon.
    #[error("the token is in use by writer {owner}; nothing was applied, try again")]
    TokenInUse {
        /// Writer that holds the token.
        owner: crate::Writer,
    },
    /// The shared store lost data, and the nodes restore their records of tokens.
    #[error(
        "the shared store has lost data, and what was applied under tokens is being put back; nothing was applied, try again"
    )]
    TokensRestoring,
    /// The token was used for another command, or its window is over.
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
    /// The token carries a time in the future.
    #[error("the token is from the future; nothing was applied")]
    TokenFromFuture,
    /// The number of remembered tokens is at its limit. No token is forgotten before its time.
    #[error("{tokens_max} tokens are remembered, which is the limit; nothing was applied, try again later")]
    TokensFull {
        /// The limit.
        tokens_max: u64,
    },
    /// The producer skipped a number: the one before was not applied.
    #[error("the next sequence number of this producer is {expected}; nothing was applied")]
    SequenceGap {
        /// The expected number.
        expected: u64,
    },
    /// The number was applied, and later ones too, so its reply is no longer known.
    #[error("this sequence number was already applied, the last one is {last}; it was not applied again")]
    SequenceApplied {
        /// Last applied number.
        last: u64,
    },
    /// The number of remembered producers is at its limit.
    #[error("{producers_max} producers are remembered, which is the limit; nothing was applied")]
    ProducersFull {
        /// The limit.
        producers_max: u64,
    },
    /// A token on a command that is no mutation, or on several mutations other than sets.
    #[error("only a single mutation can have a token; nothing was applied")]
    NotOnce,
    /// A command of Redis's dialect needs a sketch of uniques in Redis's form; the counter is not
    /// one.
    #[error("Key is not a valid HyperLogLog string value. It is {found}")]
    NotHll {
        /// Kind of that counter.
        found: KindAndDialect,
    },
    /// A string that begins like a HyperLogLog of Redis but is not valid.
    #[error("Corrupted HLL object detected")]
    CorruptHll,
    /// No sketch has that name, and the command does not create one.
    #[error("key does not exist")]
    NoSketch {
        /// Requested kind.
        kind: Kind,
    },
    /// A counter of that name exists.
    #[error("key already exists")]
    SketchExists {
        /// Kind of the sketch that was to be created.
        kind: Kind,
    },
    /// Sketches of different sizes cannot be merged.
    #[error("width/depth is not equal")]
    SizesDiffer,
    /// A sketch of that size cannot be made.
    #[error("{reason}")]
    BadSize {
        /// Cause.
        reason: String,
    },
    /// A counter within the sketch would leave its range; nothing was counted.
    #[error("a counter of the sketch would overflow; nothing was counted")]
    SketchOverflow,
    /// An item of a top list is too long to be stored.
    #[error("an item is too long: at most {bytes_max} bytes are kept")]
    ItemTooLong {
        /// The bound.
        bytes_max: usize,
    },
    /// Sketches of this form do not support the command.
    #[error("{reason}")]
    NotOffered {
        /// The command and the reason.
        reason: &'static str,
    },
    /// The reply could be too long to be remembered under a token.
    #[error("a reply of more than {bytes_max} bytes cannot be remembered under a token; nothing was applied")]
    TokenReply {
        /// The bound.
        bytes_max: usize,
    },
    /// The reply would exceed its bound.
    #[error("the reply would exceed {bytes_max} bytes; use SCAN")]
    ReplyTooLarge {
        /// The bound.
        bytes_max: usize,
    },
}
