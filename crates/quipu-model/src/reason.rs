//! Codes, cause and remedy of each error, as all protocols report it: one row per error.
//!
//! In: an error. Out: the codes for programs, and cause and remedy for people.
//!
//! Invariants:
//! - every variant of [`Refusal`] has exactly one row, or this file does not compile;
//! - codes and statuses are a format: clients match on them.
//!
//! Not here: errors of one protocol alone. They have rows of the same shape beside their code.

use crate::{Incarnation, Kind, KindAndDialect, NodeId, Refusal, Writer};

/// Description of one error for all protocols.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reason {
    /// Name of its variant.
    pub name: &'static str,
    /// Code of its RESP reply; `None` if it does not occur there.
    pub resp: Option<RespCode>,
    /// Problem type of its HTTP reply; `None` if it does not occur there.
    pub http: Option<&'static ProblemType>,
    /// Cause.
    pub cause: &'static str,
    /// Remedy.
    pub remedy: &'static str,
}

/// First and last word of an error reply over RESP. Clients act on the first word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RespCode {
    /// This word.
    Word(&'static str),
    /// This word; the text ends with the name of the command.
    WordAndCommand(&'static str),
    /// `CMS:` or `TopK:`, as in the modules of Redis; `ERR` for other commands.
    Module,
    /// No word is added: the text already begins with one.
    Own,
}

/// A problem type after RFC 9457.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProblemType {
    /// Last part of its URN; also the reason in metrics.
    pub word: &'static str,
    /// HTTP status of the reply.
    pub status: u16,
    /// Seconds until a retry; 0 if waiting does not help.
    pub retry_after: u8,
    /// Title, equal for every problem of this type.
    pub title: &'static str,
}

/// Defines problem types, and a list of them.
#[macro_export]
macro_rules! problem_types {
    ($($name:ident $word:literal $status:literal $retry_after:literal $title:literal)+) => {
        $(
            #[doc = $title]
            pub const $name: &$crate::ProblemType =
                &$crate::ProblemType { word: $word, status: $status, retry_after: $retry_after, title: $title };
        )+
        /// All problem types of this list.
        pub const ALL: &[&$crate::ProblemType] = &[$($name,)+];
    };
}

/// Gives every variant of an error its row: an example, its codes, cause and remedy.
#[macro_export]
macro_rules! reasons {
    (
        $error:ident:
        $(
            $variant:ident $({ $($field:ident: $value:expr),+ $(,)? })? $(($($item:expr),+))?,
            $resp:expr, $http:expr, $cause:literal, $remedy:literal;
        )+
    ) => {
        impl $error {
            /// The rows of all variants.
            pub const REASONS: &'static [$crate::Reason] = &[$($crate::Reason {
                name: stringify!($variant), resp: $resp, http: $http, cause: $cause, remedy: $remedy,
            },)+];

            /// The row of this variant.
            pub fn reason(&self) -> &'static $crate::Reason {
                match self {
                    $($error::$variant { .. } => &$crate::Reason {
                        name: stringify!($variant), resp: $resp, http: $http, cause: $cause, remedy: $remedy,
                    },)+
                }
            }

            /// One error of each variant, in the order of the rows, for documents and tests.
            pub fn examples() -> Vec<$error> {
                vec![$($error::$variant $({ $($field: $value),+ })? $(($($item),+))?,)+]
            }
        }
    };
}

/// Problem types of refusals. Those of HTTP alone are in the server.
pub mod problem_types {
    problem_types! {
        // Request.
        EXPIRE_TIME       "expire-time"       400 0 "The expiry is outside the range of time"
        NO_SHARD_KEY      "no-shard-key"      400 0 "The namespace picks shards by a key, and the add has none"
        TOO_MUCH          "too-much"          400 0 "It is more than a sketch takes"
        REPLY_TOO_LARGE   "reply-too-large"   400 0 "The reply would be larger than its bound"
        // Counter.
        OVERFLOW          "overflow"          409 0 "The sum would leave the range of 64 bits"
        WRONG_KIND        "wrong-kind"        409 0 "The counter is of another kind"
        TOO_WIDE          "too-wide"          409 0 "The sum over all writers does not fit 64 bits"
        ONE_OWNER         "one-owner"         409 0 "A counter on a shared store has no single owner"
        TOO_MANY_COUNTERS "too-many-counters" 409 0 "The namespace has as many counters as it may have"
        // Token.
        TOKEN_IN_USE      "token-in-use"      409 1 "The token is in use"
        TOKENS_RESTORING  "tokens-restoring"  409 1 "What was applied under tokens is being put back"
        TOKEN_SPENT       "token-spent"       422 0 "The token was used for another request, or its time is over"
        TOKEN_MISMATCH    "token-mismatch"    422 0 "The token was used for another request"
        TOKEN_TOO_OLD     "token-too-old"     422 0 "The token is older than the window"
        TOKEN_FROM_FUTURE "token-from-future" 422 0 "The token is from the future"
        BAD_TOKEN         "bad-token"         400 0 "The token is not one"
        SEQUENCE_GAP      "sequence-gap"      409 0 "A number before this one is missing"
        SEQUENCE_APPLIED  "sequence-applied"  409 0 "The number was applied, and others after it"
        TOKENS_FULL       "tokens-full"       503 5 "As many tokens are remembered as may be"
        // Server.
        AT_REST           "at-rest"           500 0 "The counter at rest cannot be read"
        BUSY              "busy"              503 1 "Too much of this is under way"
        NO_ROOM           "no-room"           503 5 "The journal has no room"
        BEHIND            "behind"            503 1 "The disk is behind"
        STORE_DOWN        "store-down"        503 5 "The shared store does not answer"
        FENCED            "fenced"            503 30 "This node may not count"
        NO_MEMORY         "no-memory"         507 5 "The memory limit is reached"
    }
}

use RespCode::{Module, Word, WordAndCommand};
use problem_types as http;

reasons! { Refusal:
    Overflow, Some(Word("ERR")), Some(http::OVERFLOW),
        "The sum would leave the range of a signed 64-bit number, -9223372036854775808 to 9223372036854775807.",
        "Count in a larger unit, or reset the counter with SET or QUIPU.RESET.";
    ExpireTime, Some(WordAndCommand("ERR")), Some(http::EXPIRE_TIME),
        "The expiry, added to the present time, leaves the range of time.",
        "Give a shorter expiry. EX and EXAT take seconds, PX and PXAT milliseconds.";
    WrongKind, Some(Word("WRONGTYPE")), Some(http::WRONG_KIND),
        "The counter is of another kind than the command reads or changes, or sketches of different kinds meet.",
        "Use the commands of its kind, or another name. TYPE says the kind.";
    OtherKind { found: KindAndDialect::COUNT }, Some(Word("WRONGTYPE")), Some(http::WRONG_KIND),
        "The counter exists and is of another kind than the command reads or changes.",
        "Use the command that the text names, or another name for the new counter.";
    KindNotAllowed { allowed: Kind::Count }, Some(Word("WRONGTYPE")), Some(http::WRONG_KIND),
        "The namespace's setting `kind` allows another kind only, and the command would make a counter.",
        "Use a namespace without `kind`, or change it with `PUT /v1/namespaces/NAME`.";
    Sampled { what: "a decrement" }, Some(Word("WRONGTYPE")), Some(http::WRONG_KIND),
        "The namespace samples its counts (`sample`, or `overload = \"sample\"`), and the command needs an exact one.",
        "Use a namespace without sampling for decrements, bounds and values below 0.";
    NotSampled { p: 100 }, Some(Word("WRONGTYPE")), Some(http::WRONG_KIND),
        "The client sampled at a rarer rate than the counter's namespace allows.",
        "Set `sample` of the namespace to that rate or more, or sample less in the client.";
    NoRoom { reason: "the disk is full".into() }, Some(Word("NOROOM")), Some(http::NO_ROOM),
        "No journal space could be had: the disk or `max_disk` is full, or segments are prepared too slowly.",
        "Free disk space or raise `max_disk`. Writes go on by themselves; try again after some seconds.";
    Behind { behind_bytes: 67_108_864 }, Some(Word("TRYAGAIN")), Some(http::BEHIND),
        "64 MiB wait for the disk, the most that may.",
        "Try again after a second, with a longer delay each time. If it lasts, use a faster disk or a looser `durability`.";
    NoMemory { bytes_max: 2_147_483_648 }, Some(Word("OOM")), Some(http::NO_MEMORY),
        "The counters take as much memory as `max_memory` allows, and none can leave memory now.",
        "Raise `max_memory`, or delete counters. A new sketch is also refused if sketches take more than half of it.";
    TooManyCounters { counters_max: 1_000 }, Some(Word("QUOTA")), Some(http::TOO_MANY_COUNTERS),
        "The namespace has as many counters as its `max_counters` allows.",
        "Delete counters, give them an expiry, or raise `max_counters` of the namespace.";
    AtRest { reason: "input/output error".into() }, Some(Word("ERR")), Some(http::AT_REST),
        "The counter rests on disk and could not be read from there.",
        "Look for the disk's error in the server's log. `quipu audit` checks the data directory; restore a backup if it is damaged.";
    WalkTogether, Some(Word("ERR")), Some(http::BUSY),
        "A transaction has SCAN or KEYS, and some counters rest on disk.",
        "Run SCAN or KEYS outside MULTI.";
    TooWide { sum: Box::new(i128::from(i64::MAX) + 1) }, Some(Word("ERR")), Some(http::TOO_WIDE),
        "Nodes added at the same time, and the sum of their parts does not fit 64 bits. A read is refused, and so is an add that would move the sum further out.",
        "Add towards the range (`DECRBY`, or `INCRBY` of a negative sum): that is always taken. Or set the counter to a smaller value. Count in a larger unit from then on.";
    OneOwner { what: "WATCH" }, Some(Word("ERR")), Some(http::ONE_OWNER),
        "The command needs one node that decides alone. On a shared store every node adds to the same counter.",
        "Use a server without a shared store for this counter, or a plain add.";
    NoShardKey, Some(Word("ERR")), Some(http::NO_SHARD_KEY),
        "The namespace has `pick = \"hash\"`, and the add names no key to hash.",
        "Add `SHARDKEY key` to the command (HTTP: `shard_key`), or change `pick` of the namespace.";
    StoreDown, Some(Word("STOREDOWN")), Some(http::STORE_DOWN),
        "The shared store does not answer, and the command needs it.",
        "Check the store and the network to it. Plain adds go on if the namespace's `fail_mode` allows them.";
    Fenced { reason: "another node has the identity of this one".into() }, Some(Word("FENCED")), Some(http::FENCED),
        "The shared store knows another node under this identity, or has retired this one.",
        "Stop the copy, or start this node with a new data directory. The text says which of them.";
    TokenInUse { owner: Writer { node: NodeId(0x11), incarnation: Incarnation(0x22) } }, Some(Word("TRYAGAIN")), Some(http::TOKEN_IN_USE),
        "Another node is carrying out the command with this token.",
        "Send the same command with the same token again after a second: it returns the first reply.";
    TokensRestoring, Some(Word("TRYAGAIN")), Some(http::TOKENS_RESTORING),
        "The shared store has lost data. This node puts back which tokens were applied, and other nodes do the same.",
        "Send the same command with the same token again after a second. Tokens that carry a later time are not refused.";
    TokenSpent, Some(Word("TOKENSPENT")), Some(http::TOKEN_SPENT),
        "The token was used for another command, or its window is over.",
        "Take a new token for a new command. Do not repeat this one: it may have been applied.";
    TokenMismatch, Some(Word("TOKENSPENT")), Some(http::TOKEN_MISMATCH),
        "The token was used for another command within its window.",
        "Take a new token for every command; a retry repeats command and token unchanged.";
    TokenTooOld { window_millis: 86_400_000 }, Some(Word("TOKENTIME")), Some(http::TOKEN_TOO_OLD),
        "The token carries a time before the window. It may have been applied and forgotten.",
        "Read the counter before deciding. To retry for longer, raise `token_window`.";
    TokenFromFuture, Some(Word("TOKENTIME")), Some(http::TOKEN_FROM_FUTURE),
        "The token carries a time that has not come yet.",
        "Set the clocks of client and server. Then take a new token.";
    TokensFull { tokens_max: 1_048_576 }, Some(Word("TOKENSFULL")), Some(http::TOKENS_FULL),
        "The server remembers as many tokens as `tokens_max` or its memory allows.",
        "Try again later, raise `tokens_max` and `max_memory`, or shorten `token_window`.";
    SequenceGap { expected: 8 }, Some(Word("SEQGAP")), Some(http::SEQUENCE_GAP),
        "The producer skipped a number: the one before was not applied.",
        "Send the missing commands first, beginning with the number in the text.";
    SequenceApplied { last: 7 }, Some(Word("SEQAPPLIED")), Some(http::SEQUENCE_APPLIED),
        "The command of this number was applied, and later ones after it, so its reply is forgotten.",
        "Treat it as done, and go on after the last number in the text.";
    ProducersFull { producers_max: 65_536 }, Some(Word("TOKENSFULL")), Some(http::TOKENS_FULL),
        "The server remembers as many producers as `producers_max` allows; they are never forgotten.",
        "Use fewer producer names, or raise `producers_max`.";
    NotOnce, Some(Word("ERR")), Some(http::BAD_TOKEN),
        "IDMP or SEQ stands on a command that changes nothing, or on several changes.",
        "Put the token on a single change. Reads need none.";
    NotHll { found: KindAndDialect::COUNT }, Some(Word("WRONGTYPE")), Some(http::WRONG_KIND),
        "A PF command names a counter that is no HyperLogLog of Redis's form.",
        "Use QUIPU.OBSERVE, QUIPU.UNIQUES and QUIPU.MERGE for uniques of Quipu's form; TYPE says the kind.";
    CorruptHll, Some(Word("INVALIDOBJ")), Some(http::WRONG_KIND),
        "The string begins as a HyperLogLog of Redis does, and is none.",
        "Read the string from Redis again with GET and write it with SET, unchanged.";
    NoSketch { kind: Kind::Top }, Some(Module), Some(http::WRONG_KIND),
        "There is no sketch of that name, and the command does not make one.",
        "Make it first: CMS.INITBYDIM, CMS.INITBYPROB or TOPK.RESERVE.";
    SketchExists { kind: Kind::Top }, Some(Module), Some(http::WRONG_KIND),
        "A counter of that name exists already.",
        "Use it as it is, delete it with DEL, or choose another name.";
    SizesDiffer, Some(Module), Some(http::WRONG_KIND),
        "The sketches to be merged differ in width or depth.",
        "Make all of them with the same width and depth; CMS.INFO shows them.";
    BadSize { reason: "a list has at most 100000 items".into() }, Some(Module), Some(http::TOO_MUCH),
        "A sketch of that size cannot be made, or the command asks for too many at once.",
        "Stay within the bound in the text: a smaller size, or fewer items or names per command.";
    SketchOverflow, Some(Module), Some(http::OVERFLOW),
        "A counter inside the sketch would leave its range.",
        "Count smaller amounts, or start a new sketch.";
    ItemTooLong { bytes_max: 1_024 }, Some(Word("ERR")), Some(http::TOO_MUCH),
        "A top list keeps its items, and this one is longer than it keeps.",
        "Count a shorter item, for example a hash or an identifier.";
    NotOffered { reason: "only uniques of our own form are compared" }, Some(Word("ERR")), Some(http::WRONG_KIND),
        "Sketches of this form do not support the command.",
        "The text says which form does. QUIPU.* commands make sketches of Quipu's form.";
    TokenReply { bytes_max: 65_536 }, Some(Word("ERR")), Some(http::BAD_TOKEN),
        "A command under a token could have a reply too long to be remembered.",
        "Name fewer items or counters in one command, or send it without a token.";
    ReplyTooLarge { bytes_max: 1_048_576 }, Some(Word("ERR")), Some(http::REPLY_TOO_LARGE),
        "The reply would be longer than one reply may be.",
        "Walk with SCAN instead of KEYS, or ask for fewer names at once.";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_has_a_row_with_cause_and_remedy() {
        let examples = Refusal::examples();
        assert_eq!(examples.len(), Refusal::REASONS.len());
        for (example, row) in examples.iter().zip(Refusal::REASONS) {
            assert_eq!(example.reason(), row);
            assert!(format!("{example:?}").starts_with(row.name), "{example:?} has the row of {}", row.name);
            assert!(row.resp.is_some() && row.http.is_some(), "{}: both protocols refuse", row.name);
            for text in [row.cause, row.remedy] {
                assert!(text.len() > 20 && text.ends_with('.'), "{}: {text:?}", row.name);
            }
        }
    }

    #[test]
    fn a_reply_has_no_larger_refusal_in_it_than_a_string_and_its_tag() {
        // Every command moves a reply, refused or not, so its size counts.
        assert_eq!(size_of::<Refusal>(), 32);
    }

    #[test]
    fn a_word_is_used_once() {
        let mut words: Vec<&str> = http::ALL.iter().map(|problem| problem.word).collect();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), http::ALL.len());
    }
}
