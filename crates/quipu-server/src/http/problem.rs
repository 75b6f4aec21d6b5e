//! Refusals, as RFC 9457 writes them: one table for every reason there is.
//!
//! In: why something was not done. Out: a status, headers, and a body that says so to programs and to people.
//!
//! Invariants:
//! - a problem means that nothing was applied;
//! - every reason has a status, a type, a title and, where trying again may help, a time after which to: in one line of the table.

use axum::body::Body;
use axum::http::header::{ALLOW, CONNECTION, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use quipu_model::Refusal;
use quipu_protocol::json;

/// What every type of a problem begins with; the reason's word follows.
pub(crate) const TYPE_PREFIX: &str = "urn:quipu:problem:";

macro_rules! reasons {
    ($($reason:ident $word:literal $status:literal $retry_after:literal $title:literal)+) => {
        /// Why something was not done.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Reason {
            $(#[doc = $title] $reason,)+
        }

        impl Reason {
            /// All of them.
            pub const ALL: &[Reason] = &[$(Reason::$reason,)+];

            /// The word in its type, and in metrics.
            pub const fn word(self) -> &'static str {
                match self { $(Reason::$reason => $word,)+ }
            }

            /// The status of the reply.
            pub const fn status(self) -> u16 {
                match self { $(Reason::$reason => $status,)+ }
            }

            /// In so many seconds it may be different; 0: not by waiting.
            pub const fn retry_after(self) -> u8 {
                match self { $(Reason::$reason => $retry_after,)+ }
            }

            /// The same for every problem of this type.
            pub const fn title(self) -> &'static str {
                match self { $(Reason::$reason => $title,)+ }
            }
        }
    };
}

reasons! {
    // Of the request.
    BadPath           "bad-path"            400 0 "The path does not name a counter or a namespace"
    BadQuery          "bad-query"           400 0 "The query is not understood"
    BadBody           "bad-body"            400 0 "The body is not understood"
    ExpireTime        "expire-time"         400 0 "The expiry is outside the range of time"
    NoShardKey        "no-shard-key"        400 0 "The namespace picks shards by a key, and the add has none"
    TooMuch           "too-much"            400 0 "It is more than a sketch takes"
    ReplyTooLarge     "reply-too-large"     400 0 "The reply would be larger than its bound"
    Unauthorized      "unauthorized"        401 0 "The password is missing or wrong"
    CrossOrigin       "cross-origin"        403 0 "Pages of other origins may not change counters"
    NoRoute           "no-route"            404 0 "There is nothing here"
    MethodNotAllowed  "method-not-allowed"  405 0 "The method is not offered here"
    BodyTimeout       "body-timeout"        408 0 "The body did not arrive in time"
    BodyTooLarge      "body-too-large"      413 0 "The body is larger than its bound"
    BadSettings       "bad-settings"        422 0 "The settings of the namespace have mistakes"
    // Of the counter.
    Overflow          "overflow"            409 0 "The sum would leave the range of 64 bits"
    WrongKind         "wrong-kind"          409 0 "The counter is of another kind"
    TooWide           "too-wide"            409 0 "The sum over all writers does not fit 64 bits"
    OneOwner          "one-owner"           409 0 "A counter on a shared store has no single owner"
    TooManyCounters   "too-many-counters"   409 0 "The namespace has as many counters as it may have"
    // Of the token.
    TokenInUse        "token-in-use"        409 1 "The token is in use"
    TokenSpent        "token-spent"         422 0 "The token was used for another request, or its time is over"
    TokenMismatch     "token-mismatch"      422 0 "The token was used for another request"
    TokenTooOld       "token-too-old"       422 0 "The token is older than the window"
    TokenFromFuture   "token-from-future"   422 0 "The token is from the future"
    BadToken          "bad-token"           400 0 "The token is not one"
    SequenceGap       "sequence-gap"        409 0 "A number before this one is missing"
    SequenceApplied   "sequence-applied"    409 0 "The number was applied, and others after it"
    TokensFull        "tokens-full"         503 5 "As many tokens are remembered as may be"
    // Of the server.
    AtRest            "at-rest"             500 0 "The counter at rest cannot be read"
    Busy              "busy"                503 1 "Too much of this is under way"
    NoRoom            "no-room"             503 5 "The journal has no room"
    Behind            "behind"              503 1 "The disk is behind"
    StoreDown         "store-down"          503 5 "The shared store does not answer"
    Fenced            "fenced"              503 30 "This node may not count"
    NotReady          "not-ready"           503 1 "The server is not ready"
    NoMemory          "no-memory"           507 5 "The memory limit is reached"
}

/// Why something was not done, in this case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Problem {
    pub reason: Reason,
    pub detail: String,
    /// The methods that are offered, if the problem is the method.
    pub allow: Option<HeaderValue>,
    /// All that is wrong, if it may be more than one thing.
    pub mistakes: Vec<Mistake>,
}

/// One of several things that are wrong with a body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mistake {
    /// With which key of it, if it is one's.
    pub key: Option<String>,
    pub text: String,
}

impl Problem {
    pub fn new(reason: Reason, detail: impl Into<String>) -> Problem {
        Problem { reason, detail: detail.into(), allow: None, mistakes: Vec::new() }
    }

    /// Writes the body, or an item of a batch.
    pub fn write(&self, out: &mut Vec<u8>) {
        let Problem { reason, detail, mistakes, .. } = self;
        let (word, status) = (reason.word(), reason.status());
        let head = format!("{{\"type\":\"{TYPE_PREFIX}{word}\",\"title\":\"{}\",\"status\":{status},", reason.title());
        out.extend_from_slice(head.as_bytes());
        out.extend_from_slice(b"\"detail\":");
        json::string(out, detail);
        for (index, Mistake { key, text }) in mistakes.iter().enumerate() {
            out.extend_from_slice(if index == 0 { b",\"errors\":[{\"detail\":" } else { b",{\"detail\":" });
            json::string(out, text);
            if let Some(key) = key {
                out.extend_from_slice(b",\"pointer\":");
                // As RFC 6901 writes a key.
                json::string(out, &format!("#/{}", key.replace('~', "~0").replace('/', "~1")));
            }
            out.push(b'}');
        }
        out.extend_from_slice(if mistakes.is_empty() { b"}" } else { b"]}" });
    }
}

impl Reason {
    /// The reason of a refusal by the engine.
    pub fn of(refusal: &Refusal) -> Reason {
        match refusal {
            Refusal::Overflow | Refusal::SketchOverflow => Reason::Overflow,
            Refusal::BadSize { .. } | Refusal::ItemTooLong { .. } => Reason::TooMuch,
            Refusal::NoSketch { .. }
            | Refusal::SketchExists { .. }
            | Refusal::SizesDiffer
            | Refusal::NotOffered { .. } => Reason::WrongKind,
            Refusal::ExpireTime => Reason::ExpireTime,
            Refusal::WrongKind
            | Refusal::NotHll
            | Refusal::CorruptHll
            | Refusal::Sampled { .. }
            | Refusal::NotSampled { .. } => Reason::WrongKind,
            Refusal::NoRoom { .. } => Reason::NoRoom,
            Refusal::Behind { .. } => Reason::Behind,
            Refusal::NoMemory { .. } => Reason::NoMemory,
            Refusal::AtRest { .. } => Reason::AtRest,
            Refusal::TooManyCounters { .. } => Reason::TooManyCounters,
            Refusal::WalkTogether => Reason::Busy,
            Refusal::TooWide => Reason::TooWide,
            Refusal::OneOwner { .. } => Reason::OneOwner,
            Refusal::NoShardKey => Reason::NoShardKey,
            Refusal::StoreDown => Reason::StoreDown,
            Refusal::Fenced { .. } => Reason::Fenced,
            Refusal::TokenInUse { .. } => Reason::TokenInUse,
            Refusal::TokenSpent => Reason::TokenSpent,
            Refusal::TokenMismatch => Reason::TokenMismatch,
            Refusal::TokenTooOld { .. } => Reason::TokenTooOld,
            Refusal::TokenFromFuture => Reason::TokenFromFuture,
            Refusal::NotOnce | Refusal::TokenReply { .. } => Reason::BadToken,
            Refusal::SequenceGap { .. } => Reason::SequenceGap,
            Refusal::SequenceApplied { .. } => Reason::SequenceApplied,
            Refusal::TokensFull { .. } | Refusal::ProducersFull { .. } => Reason::TokensFull,
            Refusal::ReplyTooLarge { .. } => Reason::ReplyTooLarge,
        }
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Problem {
        Problem::new(Reason::of(&refusal), refusal.to_string())
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut body = Vec::with_capacity(256);
        self.write(&mut body);
        body.push(b'\n');
        let mut response = Response::new(Body::from(body));
        *response.status_mut() =
            StatusCode::from_u16(self.reason.status()).expect("the table has statuses between 400 and 599");
        // Whoever counts the problems finds the reason here.
        response.extensions_mut().insert(self.reason);
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if self.reason.retry_after() > 0 {
            headers.insert(RETRY_AFTER, HeaderValue::from(u16::from(self.reason.retry_after())));
        }
        if let Some(allow) = self.allow {
            headers.insert(ALLOW, allow);
        }
        match self.reason {
            Reason::Unauthorized => {
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"quipu\""));
                headers.insert(CONNECTION, HeaderValue::from_static("close"));
            }
            // What is left of the body is not worth waiting for.
            Reason::BodyTooLarge | Reason::BodyTimeout | Reason::CrossOrigin => {
                headers.insert(CONNECTION, HeaderValue::from_static("close"));
            }
            _ => {}
        }
        response
    }
}

/// Why there is no proper reply.
#[derive(Debug)]
pub(super) enum Failure {
    /// Nothing was applied.
    Problem(Problem),
    /// The same, by the engine.
    Refused(Refusal),
    /// Nobody can say whether it was applied: any reply would say that it was, or that it was not. The connection is closed without one.
    Silence,
}

/// Marks a response that must not be sent.
#[derive(Debug, Clone, Copy)]
pub(super) struct Silence;

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Failure {
        Failure::Problem(problem)
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Failure {
        Failure::Refused(refusal)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        match self {
            Failure::Problem(problem) => problem.into_response(),
            Failure::Refused(refusal) => Problem::from(refusal).into_response(),
            Failure::Silence => {
                let mut response = Response::new(Body::empty());
                response.extensions_mut().insert(Silence);
                response
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use quipu_model::{Incarnation, Kind, NodeId};
    use quipu_protocol::{Version, Writer};

    use super::*;

    #[test]
    fn every_reason_is_a_proper_problem() {
        let mut words: Vec<&str> = Reason::ALL.iter().map(|reason| reason.word()).collect();
        for reason in Reason::ALL {
            let response = Problem::new(*reason, "a \"word\"\n").into_response();
            assert!((400..600).contains(&response.status().as_u16()));
            let mut body = Vec::new();
            Problem::new(*reason, "a \"word\"\n").write(&mut body);
            let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
            assert_eq!(body["type"], format!("urn:quipu:problem:{}", reason.word()));
            assert_eq!(
                (body["status"].as_u64(), &body["detail"]),
                (Some(reason.status().into()), &"a \"word\"\n".into())
            );
            let later = matches!(reason.status(), 503 | 507);
            assert!(!later || response.headers().contains_key(RETRY_AFTER), "{reason:?} says when to try again");
        }
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), Reason::ALL.len(), "a word is used once");
    }

    /// One refusal of every variant.
    fn examples() -> Vec<Refusal> {
        let owner = quipu_model::Writer { node: NodeId(0x11), incarnation: Incarnation(0x22) };
        vec![
            Refusal::Overflow,
            Refusal::ExpireTime,
            Refusal::WrongKind,
            Refusal::Sampled { what: "a decrement" },
            Refusal::NotSampled { p: 100 },
            Refusal::NoRoom { reason: "the disk is full".into() },
            Refusal::Behind { behind_bytes: 67_108_864 },
            Refusal::NoMemory { bytes_max: 2_147_483_648 },
            Refusal::TooManyCounters { counters_max: 1_000 },
            Refusal::AtRest { reason: "input/output error".into() },
            Refusal::WalkTogether,
            Refusal::TooWide,
            Refusal::OneOwner { what: "WATCH" },
            Refusal::NoShardKey,
            Refusal::StoreDown,
            Refusal::Fenced { reason: "another node has the identity of this one".into() },
            Refusal::TokenInUse { owner },
            Refusal::TokenSpent,
            Refusal::TokenMismatch,
            Refusal::TokenTooOld { window_millis: 86_400_000 },
            Refusal::TokenFromFuture,
            Refusal::TokensFull { tokens_max: 1_048_576 },
            Refusal::SequenceGap { expected: 8 },
            Refusal::SequenceApplied { last: 7 },
            Refusal::ProducersFull { producers_max: 65_536 },
            Refusal::NotOnce,
            Refusal::NotHll,
            Refusal::CorruptHll,
            Refusal::NoSketch { kind: Kind::Top },
            Refusal::SketchExists { kind: Kind::Top },
            Refusal::SizesDiffer,
            Refusal::BadSize { reason: "a list has at most 100000 items".into() },
            Refusal::SketchOverflow,
            Refusal::ItemTooLong { bytes_max: 1_024 },
            Refusal::NotOffered { reason: "only uniques of our own form are compared" },
            Refusal::TokenReply { bytes_max: 65_536 },
            Refusal::ReplyTooLarge { bytes_max: 1_048_576 },
        ]
    }

    /// The name of a refusal's variant.
    fn variant(refusal: &Refusal) -> String {
        let text = format!("{refusal:?}");
        text.split([' ', '{']).next().unwrap_or_default().to_owned()
    }

    /// What both protocols say of a refusal; RESP, where it differs by command, once for each.
    fn golden(refusal: Refusal) -> String {
        let mut text = variant(&refusal);
        let mut lines: Vec<Vec<u8>> = Vec::new();
        for command in ["set", "cms.query", "topk.add"] {
            let mut line = Vec::new();
            Writer::new(&mut line, Version::Resp2).refusal(&refusal, command);
            if !lines.contains(&line) {
                text.push_str(&format!("\n  resp   {}", line.escape_ascii()));
                lines.push(line);
            }
        }
        let problem = Problem::from(refusal);
        let mut body = Vec::new();
        problem.write(&mut body);
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
        let response = problem.into_response();
        let retry = response.headers().get(RETRY_AFTER).map_or("-", |value| value.to_str().unwrap());
        text.push_str(&format!("\n  http   {} {}", response.status().as_u16(), body["type"].as_str().unwrap()));
        text.push_str(&format!("\n  title  {}", body["title"].as_str().unwrap()));
        text.push_str(&format!("\n  detail {}\n  retry  {retry}\n", body["detail"].as_str().unwrap()));
        text
    }

    #[test]
    fn every_refusal_says_over_both_protocols_what_the_golden_file_has() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/refusals.txt");
        let said: String = examples().into_iter().map(golden).collect();
        let golden = std::fs::read_to_string(path).unwrap();
        assert!(said == golden, "a client may match on these; testdata/refusals.txt is to be:\n{said}");
    }
}
