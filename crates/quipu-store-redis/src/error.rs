//! Maps driver and server errors to call outcomes: not applied, or unknown.
//!
//! | error of the driver or the server | outcome |
//! |---|---|
//! | no connection: refused, timeout, no such host, password, TLS, scripts not loaded | `NotApplied`: not sent |
//! | connection broken, or reply timeout, after the driver took the request | `Unknown` |
//! | `NOSCRIPT`, after the scripts were loaded again | `NotApplied`: it was not run |
//! | last `MOVED` or `ASK` of several; `CLUSTERDOWN`, `TRYAGAIN`, `CROSSSLOT` | `NotApplied`: refused before it ran |
//! | `LOADING`, `MASTERDOWN`, `BUSY`, `NOAUTH` | `NotApplied`: refused before it ran |
//! | `READONLY`, `OOM`, `MISCONF`, `NOREPLICAS` | `NotApplied`: a script is refused only at its first write |
//! | `WRONGTYPE` | `NotApplied`, for this key alone: the first command of each script reads the key |
//! | `ERR` | `Unknown`, for this key alone: a script failed on the key's data |
//! | every other error (`NOPERM` …) | `Unknown` |
//! | a row or a reply that cannot be decoded | `Unknown`, for this key alone; the error names the key and the field |
//! | the server's identity differs from the last history | `HistoryChanged`: nothing was sent |
//! | a call past its bound | `NotApplied` |
//!
//! `NOPERM` is not in the list because it may come from the second write of a script.
//!
//! A put of several counters has a result per put. The whole call fails only if every script failed
//! for the same reason, and this reason is not a key's data.

use std::sync::Arc;

use quipu_store_kit::CallFailure;
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

/// Error code of a key of another type.
const WRONG_TYPE: &str = "WRONGTYPE";

/// Error code of a script that failed on its key's data.
const SCRIPT_FAILED: &str = "ERR";

/// What a damaged counter or token is called in an error.
pub(crate) const KEY: &str = "the key";

/// Names the failure behind an error reply of the server.
pub(crate) fn classify_server_error(error: ServerError) -> CallFailure {
    match error.code() {
        WRONG_TYPE => CallFailure::DataRefused(Arc::new(error)),
        SCRIPT_FAILED => CallFailure::DataFailed(Arc::new(error)),
        code if REFUSALS.contains(&code) => CallFailure::unsent(error),
        _ => CallFailure::lost(error),
    }
}

/// Data or a reply that no script of this crate writes.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DataError {
    /// Unreadable part of a row, a claim or a registration.
    #[error("{what} cannot be read: {text:?}")]
    Text {
        /// Name of the part.
        what: &'static str,
        /// Its text, or the beginning of it.
        text: String,
    },
    /// A row without a mandatory field.
    #[error("the row has no field {0:?}")]
    MissingField(&'static str),
    /// A reply of an unexpected shape.
    #[error("the server's reply to a script has another shape")]
    Reply,
    /// A body longer than the bound, or with pages beyond its end.
    #[error(transparent)]
    Body(#[from] quipu_model::shared::body::BodyError),
    /// One damaged field of a hash.
    #[error("its field {field:?} is damaged: {source}")]
    Field {
        /// Name of the field.
        field: String,
        /// Its damage.
        source: Box<DataError>,
    },
    /// A hash with more fields than the bound.
    #[error("it has {0} fields, more than any of this program")]
    TooManyFields(i64),
    /// A field longer than the bound.
    #[error("its field {0:?} is longer than any of this program")]
    TooLong(String),
    /// Two fields for one cell, or a field in a form that the scripts do not look for.
    #[error("the field {0:?} has another form than this program writes")]
    WrongForm(String),
    /// The script and the model disagree.
    #[error("the script did not carry out what it had to")]
    VerdictMismatch,
}

impl From<DataError> for CallFailure {
    fn from(error: DataError) -> CallFailure {
        CallFailure::DataDamaged(Arc::new(error))
    }
}

#[cfg(test)]
mod tests {
    use quipu_model::{StoreCall, StoreError};

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
            let error = classify_server_error(server(line)).into_store_error(StoreCall::Put);
            assert!(matches!(error, StoreError::Unknown { .. }), "{line}");
        }
    }

    #[test]
    fn what_a_server_refuses_before_the_first_write_is_not_applied() {
        for code in REFUSALS.into_iter().chain([WRONG_TYPE]) {
            let error = classify_server_error(server(&format!("-{code} 1 2\r\n"))).into_store_error(StoreCall::Put);
            assert!(matches!(error, StoreError::NotApplied { .. }), "{code}");
        }
    }
}
