//! What went wrong, and whether the call may have been carried out.
//!
//! | what the driver or the server says | meaning |
//! |---|---|
//! | no connection: refused, unreachable, no such host, time-out, wrong password, TLS, scripts not loaded | `NotApplied`: nothing was sent |
//! | the connection broke, or no reply came in time, after the request was handed to the driver | `Unknown` |
//! | `NOSCRIPT`, after the scripts were loaded again | `NotApplied`: it was not run |
//! | `MOVED`, `ASK` to the last of several redirections; `CLUSTERDOWN`, `TRYAGAIN`, `CROSSSLOT` | `NotApplied`: refused before it ran |
//! | `LOADING`, `MASTERDOWN`, `BUSY`, `NOAUTH` | `NotApplied`: refused before it ran |
//! | `READONLY`, `OOM`, `MISCONF`, `NOREPLICAS` | `NotApplied`: a script is refused at its first write, and not after it |
//! | `WRONGTYPE` | `NotApplied`: the first command of each script reads the key |
//! | a put of several counters, some of them answered | `Unknown`, unless all were refused |
//! | every other error (`ERR`, `NOPERM` …) | `Unknown` |
//! | a row or a reply that cannot be decoded | `Unknown` |
//! | a call past its bound | `NotApplied` |
//!
//! `NOPERM` may come from the second write of a script, and is not in the list for that reason.

use std::error::Error;
use std::sync::Arc;

use quipu_model::{BoxError, Call, StoreError};
use redis::ServerError;

/// Codes with which a server refuses a script before it has changed anything.
const REFUSALS: [&str; 14] = [
    "ASK",
    "BUSY",
    "CLUSTERDOWN",
    "CROSSSLOT",
    "LOADING",
    "MASTERDOWN",
    "MISCONF",
    "MOVED",
    "NOAUTH",
    "NOREPLICAS",
    "NOSCRIPT",
    "OOM",
    "READONLY",
    "TRYAGAIN",
];

/// The same, for a key that holds something else.
const WRONG_TYPE: &str = "WRONGTYPE";

/// A cause, for as many calls as it has stopped.
pub(crate) type Cause = Arc<dyn Error + Send + Sync>;

/// Why there is no answer.
#[derive(Debug, Clone)]
pub(crate) enum Failure {
    /// Certainly not applied.
    Refused(Cause),
    /// May have been applied.
    Open(Cause),
}

impl Failure {
    /// Nothing was sent.
    pub(crate) fn unsent(source: impl Into<BoxError>) -> Failure {
        Failure::Refused(source.into().into())
    }

    /// Sent, and not answered.
    pub(crate) fn lost(source: impl Into<BoxError>) -> Failure {
        Failure::Open(source.into().into())
    }

    /// What the server answered instead.
    pub(crate) fn answered(error: ServerError) -> Failure {
        let code = error.code();
        if code == WRONG_TYPE || REFUSALS.contains(&code) { Failure::unsent(error) } else { Failure::lost(error) }
    }

    /// Of a call that was not sent because another one failed.
    pub(crate) fn before(self) -> Failure {
        let (Failure::Refused(cause) | Failure::Open(cause)) = self;
        Failure::Refused(cause)
    }

    pub(crate) fn of(self, call: Call) -> StoreError {
        match self {
            Failure::Refused(cause) => StoreError::NotApplied { call, source: Box::new(cause) },
            Failure::Open(cause) => StoreError::Unknown { call, source: Box::new(cause) },
        }
    }
}

/// What no script or row of ours looks like.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Damaged {
    /// Of a row, a claim or a registration.
    #[error("{what} cannot be read: {text:?}")]
    Text {
        /// Which part.
        what: &'static str,
        /// What stands there, or its beginning.
        text: String,
    },
    /// A row that lacks a field that every row has.
    #[error("the row has no field {0:?}")]
    Lacks(&'static str),
    /// A reply of another shape.
    #[error("the server's reply to a script has another shape")]
    Reply,
    /// A body that is longer than any, or has pages beyond its end.
    #[error(transparent)]
    Body(#[from] quipu_model::shared::body::BodyError),
    /// The script and the model do not agree.
    #[error("a put was not carried out that had to be")]
    Verdict,
}

impl From<Damaged> for Failure {
    fn from(damaged: Damaged) -> Failure {
        Failure::lost(damaged)
    }
}

impl From<quipu_model::shared::SnapshotError> for Failure {
    fn from(error: quipu_model::shared::SnapshotError) -> Failure {
        Failure::lost(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(line: &str) -> ServerError {
        match redis::parse_redis_value(line.as_bytes()) {
            Ok(redis::Value::ServerError(error)) => error,
            other => panic!("{line:?} is no error: {other:?}"),
        }
    }

    #[test]
    fn what_is_not_known_to_mean_not_applied_is_unknown() {
        for line in ["-ERR Error running script\r\n", "-NOPERM no\r\n", "-WHAT is this\r\n", "-EXECABORT x\r\n"] {
            assert!(matches!(Failure::answered(server(line)), Failure::Open(_)), "{line}");
        }
    }

    #[test]
    fn what_a_server_refuses_before_the_first_write_is_not_applied() {
        for code in REFUSALS.into_iter().chain([WRONG_TYPE]) {
            let failure = Failure::answered(server(&format!("-{code} 1 2\r\n")));
            assert!(matches!(failure, Failure::Refused(_)), "{code}");
        }
    }
}
