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
//! | `WRONGTYPE` | `NotApplied`, for this key alone: the first command of each script reads the key |
//! | `ERR` | `Unknown`, for this key alone: a script failed on what the key holds |
//! | every other error (`NOPERM` …) | `Unknown` |
//! | a row or a reply that cannot be decoded | `Unknown`, for this key alone; the error names the key and the field |
//! | a server with another identity than in the last history | `HistoryChanged`: nothing was sent |
//! | a call past its bound | `NotApplied` |
//!
//! `NOPERM` may come from the second write of a script, and is not in the list for that reason.
//!
//! A put of several counters has a result per put. The whole call fails only if every script failed for one and the same reason that is
//! not the data of a key.

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

/// The code for a key that holds something else.
const WRONG_TYPE: &str = "WRONGTYPE";

/// The code of a script that failed on what its key holds.
const SCRIPT_FAILED: &str = "ERR";

/// A cause, for as many calls as it has stopped.
pub(crate) type Cause = Arc<dyn Error + Send + Sync>;

/// Why there is no answer.
#[derive(Debug, Clone)]
pub(crate) enum Failure {
    /// Certainly not applied.
    Refused(Cause),
    /// May have been applied.
    Open(Cause),
    /// Certainly not applied: the key is of another type.
    WrongType(Cause),
    /// May have been applied: the script failed on this key.
    ScriptFailed(Cause),
    /// May have been applied: the key holds what cannot be decoded.
    Damaged(Cause),
    /// Certainly not applied: nothing was sent to a server of unknown history.
    HistoryChanged,
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
        match error.code() {
            WRONG_TYPE => Failure::WrongType(Arc::new(error)),
            SCRIPT_FAILED => Failure::ScriptFailed(Arc::new(error)),
            code if REFUSALS.contains(&code) => Failure::unsent(error),
            _ => Failure::lost(error),
        }
    }

    /// Of a call that was not sent because another one failed.
    pub(crate) fn before(self) -> Failure {
        match self {
            Failure::Refused(cause)
            | Failure::Open(cause)
            | Failure::WrongType(cause)
            | Failure::ScriptFailed(cause)
            | Failure::Damaged(cause) => Failure::Refused(cause),
            Failure::HistoryChanged => Failure::HistoryChanged,
        }
    }

    /// Names the key, if its data is the reason.
    pub(crate) fn at(self, key: &[u8]) -> Failure {
        let name = |source| -> Cause { Arc::new(AtKey { key: key.escape_ascii().to_string(), source }) };
        match self {
            Failure::WrongType(cause) => Failure::WrongType(name(cause)),
            Failure::ScriptFailed(cause) => Failure::ScriptFailed(name(cause)),
            Failure::Damaged(cause) => Failure::Damaged(name(cause)),
            other => other,
        }
    }

    /// Whether the data of one key is the reason: calls on other keys go on.
    pub(crate) fn is_of_key(&self) -> bool {
        matches!(self, Failure::WrongType(_) | Failure::ScriptFailed(_) | Failure::Damaged(_))
    }

    pub(crate) fn of(self, call: Call) -> StoreError {
        match self {
            Failure::Refused(cause) | Failure::WrongType(cause) => {
                StoreError::NotApplied { call, source: Box::new(cause) }
            }
            Failure::Open(cause) | Failure::ScriptFailed(cause) | Failure::Damaged(cause) => {
                StoreError::Unknown { call, source: Box::new(cause) }
            }
            Failure::HistoryChanged => StoreError::HistoryChanged { call },
        }
    }
}

/// An error of the data under one key.
#[derive(Debug, thiserror::Error)]
#[error("the key {key} cannot be used")]
struct AtKey {
    key: String,
    source: Cause,
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
    /// One field of many.
    #[error("its field {field:?} is damaged: {source}")]
    Field {
        /// Its name.
        field: String,
        /// Why.
        source: Box<Damaged>,
    },
    /// A hash with more fields than any row has.
    #[error("it has {0} fields, more than any of this program")]
    Fields(i64),
    /// A field that is longer than any.
    #[error("its field {0:?} is longer than any of this program")]
    Long(String),
    /// Two fields for one cell, or one in another form than the scripts look for.
    #[error("the field {0:?} has another form than this program writes")]
    Form(String),
    /// The script and the model do not agree.
    #[error("the script did not carry out what it had to")]
    Verdict,
}

impl From<Damaged> for Failure {
    fn from(damaged: Damaged) -> Failure {
        Failure::Damaged(Arc::new(damaged))
    }
}

impl From<quipu_model::shared::SnapshotError> for Failure {
    fn from(error: quipu_model::shared::SnapshotError) -> Failure {
        Failure::Damaged(Arc::new(error))
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
            let error = Failure::answered(server(line)).of(Call::Put);
            assert!(matches!(error, StoreError::Unknown { .. }), "{line}");
        }
    }

    #[test]
    fn what_a_server_refuses_before_the_first_write_is_not_applied() {
        for code in REFUSALS.into_iter().chain([WRONG_TYPE]) {
            let error = Failure::answered(server(&format!("-{code} 1 2\r\n"))).of(Call::Put);
            assert!(matches!(error, StoreError::NotApplied { .. }), "{code}");
        }
    }
}
