//! What went wrong, and whether the call may have been carried out.
//!
//! Each call is one statement, and so one transaction: what the server answers with an `ERROR` it has undone, unless it says otherwise.
//!
//! | what the driver or the server says | meaning |
//! |---|---|
//! | no connection: refused, unreachable, no such host, time-out, wrong password, no such database, all busy | `NotApplied`: nothing was sent |
//! | the tables could not be made, brought up, or are of a newer version; a statement could not be prepared | `NotApplied`: nothing was sent |
//! | the connection broke, or no reply came in time, after the statement was handed to the driver | `Unknown` |
//! | `FATAL` or `PANIC`, whatever the code (`57P01` a shutdown, `57P02` a crash …) | `Unknown`: it may come right behind the commit |
//! | class `40`: `40001` serialization failure, `40P01` deadlock, `40002` … | `NotApplied`: rolled back |
//! | `40003` completion unknown | `Unknown` |
//! | `55P03` lock not available; `57014` cancelled, by us, by an operator, or by `statement_timeout` | `NotApplied`: a commit is not cancelled |
//! | class `53`: disk full, out of memory, too many connections | `NotApplied`: a commit that finds no room is a `PANIC` |
//! | `25006` read-only: a standby, or a server told so | `NotApplied` |
//! | classes `26`, `42`, `0A`: a statement, name or right that is not there | `NotApplied` |
//! | classes `22`, `23`: data, constraints | `NotApplied`, for the counter that it is of |
//! | classes `21`, `54`, `P0`, `XX`: a row twice, too wide a value, a trigger, a damaged page | `Unknown`, for the counter that it is of |
//! | every other code (`08…` a proxy's connection, `58…` a file) | `Unknown` |
//! | a row that cannot be decoded | `Unknown`, for its counter alone |
//! | a connection to a server with another identity than in the last history | `HistoryChanged`: nothing was sent |
//! | a call past its bound | `NotApplied` |
//!
//! A put of several counters has a result per put. A statement that fails for one counter is divided until the others have their verdicts.
//!
//! A commit that waits for a synchronous standby and is cancelled meanwhile is answered with a warning, not with an error: it is in.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use quipu_model::{BoxError, StoreCall, StoreError};
use tokio_postgres::error::Severity;

/// Codes, or the classes they begin with, that are only given for a transaction that was rolled back.
const REFUSALS: [&str; 10] = ["0A", "22", "23", "25006", "26", "40", "42", "53", "55P03", "57014"];

/// Classes of errors that the data of one row brings about: a statement without that row may succeed.
const ROW_ERROR_CLASSES: [&str; 6] = ["21", "22", "23", "54", "P0", "XX"];

/// Codes of a statement that waited for a lock for too long.
const LOCKED: [&str; 2] = ["55P03", "57014"];

/// The one of class 40 that says nothing.
const COMPLETION_UNKNOWN: &str = "40003";

/// A cause, for as many calls as it has stopped.
pub(crate) type Cause = Arc<dyn Error + Send + Sync>;

/// Why there is no answer.
#[derive(Debug, Clone)]
pub(crate) enum CallFailure {
    /// Certainly not applied.
    Refused(Cause),
    /// May have been applied.
    Open(Cause),
    /// Certainly not applied: somebody else has locked what it needs.
    Locked(Cause),
    /// Certainly not applied, for the data of a row.
    RowRefused(Cause),
    /// May have been applied: a row is damaged.
    RowDamaged(Cause),
    /// Certainly not applied: nothing was sent to a server of unknown history.
    HistoryChanged,
}

impl CallFailure {
    /// Nothing was sent.
    pub(crate) fn unsent(source: impl Into<BoxError>) -> CallFailure {
        CallFailure::Refused(source.into().into())
    }

    /// Sent, and not answered.
    pub(crate) fn lost(source: impl Into<BoxError>) -> CallFailure {
        CallFailure::Open(source.into().into())
    }

    /// What came instead of an answer.
    pub(crate) fn from_server_error(error: tokio_postgres::Error) -> CallFailure {
        let code = error
            .as_db_error()
            .filter(|answer| answer.parsed_severity() == Some(Severity::Error))
            .map(|answer| answer.code().code().to_owned());
        let Some(code) = code else { return CallFailure::lost(error) };
        match (is_row_error(&code), is_refusal(&code)) {
            (true, true) => CallFailure::RowRefused(Arc::new(error)),
            (true, false) => CallFailure::RowDamaged(Arc::new(error)),
            (false, true) if LOCKED.contains(&&*code) => CallFailure::Locked(Arc::new(error)),
            (false, true) => CallFailure::unsent(error),
            (false, false) => CallFailure::lost(error),
        }
    }

    /// Of a call that was not sent because another one failed.
    pub(crate) fn into_unsent(self) -> CallFailure {
        match self {
            CallFailure::Refused(cause)
            | CallFailure::Open(cause)
            | CallFailure::Locked(cause)
            | CallFailure::RowRefused(cause)
            | CallFailure::RowDamaged(cause) => CallFailure::Refused(cause),
            CallFailure::HistoryChanged => CallFailure::HistoryChanged,
        }
    }

    /// Names the row, if its data is the reason.
    pub(crate) fn with_row(self, name: &[u8]) -> CallFailure {
        let named = |source| -> Cause { Arc::new(RowError { name: name.escape_ascii().to_string(), source }) };
        match self {
            CallFailure::RowRefused(cause) => CallFailure::RowRefused(named(cause)),
            CallFailure::RowDamaged(cause) => CallFailure::RowDamaged(named(cause)),
            other => other,
        }
    }

    /// Whether the data of a row is the reason: a statement without that row may succeed.
    pub(crate) fn is_of_row(&self) -> bool {
        matches!(self, CallFailure::RowRefused(_) | CallFailure::RowDamaged(_))
    }

    pub(crate) fn into_store_error(self, call: StoreCall) -> StoreError {
        match self {
            CallFailure::Refused(cause) | CallFailure::Locked(cause) | CallFailure::RowRefused(cause) => {
                StoreError::NotApplied { call, source: Box::new(cause) }
            }
            CallFailure::Open(cause) | CallFailure::RowDamaged(cause) => {
                StoreError::Unknown { call, source: Box::new(cause) }
            }
            CallFailure::HistoryChanged => StoreError::HistoryChanged { call },
        }
    }
}

/// An error of the data in one row.
#[derive(Debug, thiserror::Error)]
#[error("the row of {name} cannot be used")]
struct RowError {
    name: String,
    source: Cause,
}

fn is_row_error(code: &str) -> bool {
    ROW_ERROR_CLASSES.iter().any(|known| code.starts_with(known))
}

fn is_refusal(code: &str) -> bool {
    code != COMPLETION_UNKNOWN && REFUSALS.iter().any(|known| code.starts_with(known))
}

/// Somebody else's transaction keeps the row.
#[derive(Debug, thiserror::Error)]
#[error("another session has locked the row of this counter")]
pub(crate) struct RowLocked;

/// The server has not answered in time.
#[derive(Debug, thiserror::Error)]
#[error("no reply within {0:?}")]
pub(crate) struct ReplyTimeout(pub(crate) Duration);

/// What no statement or row of ours looks like.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DataError {
    /// A column that cannot be read.
    #[error("{what} cannot be read")]
    Column {
        /// Which part.
        what: &'static str,
        /// Why.
        source: BoxError,
    },
    /// A part is there without another that belongs to it, or there are too many.
    #[error("{0} is not whole")]
    Incomplete(&'static str),
    /// More than a row of this program ever has.
    #[error("{0} are more than this program writes")]
    TooMany(&'static str),
    /// A word that we do not know.
    #[error("{what} cannot be {word:?}")]
    UnknownWord {
        /// Which part.
        what: &'static str,
        /// What stands there.
        word: String,
    },
    /// A body that is longer than any, or has pages beyond its end.
    #[error(transparent)]
    Body(#[from] quipu_model::shared::body::BodyError),
    /// The statement and the model do not agree.
    #[error("the statement did not carry out what it had to")]
    VerdictMismatch,
}

impl From<DataError> for CallFailure {
    fn from(error: DataError) -> CallFailure {
        CallFailure::RowDamaged(Arc::new(error))
    }
}

impl From<quipu_model::shared::SnapshotError> for CallFailure {
    fn from(error: quipu_model::shared::SnapshotError) -> CallFailure {
        CallFailure::RowDamaged(Arc::new(error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_to_mean_not_applied_is_unknown() {
        for code in
            ["40003", "08006", "57P01", "57P02", "57P05", "58030", "XX000", "XX001", "25P02", "55000", "P0001", ""]
        {
            assert!(!is_refusal(code), "{code}");
        }
    }

    #[test]
    fn what_is_only_given_for_a_transaction_that_was_rolled_back_is_not_applied() {
        for code in
            ["40001", "40P01", "40002", "55P03", "57014", "53100", "53200", "25006", "42501", "42P01", "22003", "0A000"]
        {
            assert!(is_refusal(code), "{code}");
        }
    }
}
