//! Maps driver and server errors to call outcomes: not applied, or unknown.
//!
//! Each call is one statement, and so one transaction. The server rolls it back when it answers
//! with an `ERROR`, unless the table says otherwise.
//!
//! | error of the driver or the server | outcome |
//! |---|---|
//! | no connection: refused, timeout, no such host or database, password, all busy | `NotApplied`: nothing was sent |
//! | tables not created or upgraded, or too new; statement not prepared | `NotApplied`: nothing was sent |
//! | connection broken, or reply timeout, after the driver took the statement | `Unknown` |
//! | `FATAL` or `PANIC` with any code (`57P01` shutdown, `57P02` crash …) | `Unknown`: it may follow the commit |
//! | class `40`: `40001` serialization failure, `40P01` deadlock, `40002` … | `NotApplied`: rolled back |
//! | `40003` completion unknown | `Unknown` |
//! | `55P03` no lock; `57014` cancelled, also by `statement_timeout` | `NotApplied`: a commit is not cancelled |
//! | class `53`: disk full, out of memory, connections | `NotApplied`: a commit that finds no space is a `PANIC` |
//! | `25006` read-only: a standby, or a server set read-only | `NotApplied` |
//! | classes `26`, `42`, `0A`: a missing statement, name or right | `NotApplied` |
//! | classes `22`, `23`: data, constraints | `NotApplied`, for its counter alone |
//! | classes `21`, `54`, `P0`, `XX`: row twice, value too wide, trigger, damaged page | `Unknown`, for its counter |
//! | every other code (`08…` a proxy's connection, `58…` a file) | `Unknown` |
//! | a row that cannot be decoded | `Unknown`, for its counter alone |
//! | a connection to a server of another identity than the last history | `HistoryChanged`: nothing was sent |
//! | a call past its bound | `NotApplied` |
//!
//! A put of several counters has a result per put. A statement that fails for one counter is split
//! until the other counters have their verdicts.
//!
//! If a commit that waits for a synchronous standby is cancelled, the server answers with a
//! warning, not an error: the commit stands.

use std::sync::Arc;

use quipu_model::BoxError;
use quipu_store_kit::CallFailure;
use tokio_postgres::error::Severity;

/// Codes, or prefixes of codes, that the server gives only for a transaction that it rolled back.
const REFUSALS: [&str; 10] = ["0A", "22", "23", "25006", "26", "40", "42", "53", "55P03", "57014"];

/// Error classes that one row's data causes: a statement without that row may succeed.
const ROW_ERROR_CLASSES: [&str; 6] = ["21", "22", "23", "54", "P0", "XX"];

/// Codes of a statement that waited too long for a lock.
const LOCKED: [&str; 2] = ["55P03", "57014"];

/// The one code of class 40 that leaves the outcome unknown.
const COMPLETION_UNKNOWN: &str = "40003";

/// What a damaged counter or token is called in an error.
pub(crate) const ROW: &str = "the row of";

/// Names the failure behind an error of the driver or the server.
pub(crate) fn classify_error(error: tokio_postgres::Error) -> CallFailure {
    let code = error
        .as_db_error()
        .filter(|answer| answer.parsed_severity() == Some(Severity::Error))
        .map(|answer| answer.code().code().to_owned());
    let Some(code) = code else { return CallFailure::lost(error) };
    match (is_row_error(&code), is_refusal(&code)) {
        (true, true) => CallFailure::DataRefused(Arc::new(error)),
        (true, false) => CallFailure::DataDamaged(Arc::new(error)),
        (false, true) if LOCKED.contains(&&*code) => CallFailure::Locked(Arc::new(error)),
        (false, true) => CallFailure::unsent(error),
        (false, false) => CallFailure::lost(error),
    }
}

fn is_row_error(code: &str) -> bool {
    ROW_ERROR_CLASSES.iter().any(|known| code.starts_with(known))
}

fn is_refusal(code: &str) -> bool {
    code != COMPLETION_UNKNOWN && REFUSALS.iter().any(|known| code.starts_with(known))
}

/// Another session's transaction has locked the row.
#[derive(Debug, thiserror::Error)]
#[error("another session has locked the row of this counter")]
pub(crate) struct RowLocked;

/// Data that no statement of this crate writes.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DataError {
    /// An unreadable column.
    #[error("{what} cannot be read")]
    Column {
        /// Name of the part.
        what: &'static str,
        /// Cause of the failure.
        source: BoxError,
    },
    /// A part without another that belongs to it, or too many parts.
    #[error("{0} is not whole")]
    Incomplete(&'static str),
    /// More parts than the bound of a row.
    #[error("{0} are more than this program writes")]
    TooMany(&'static str),
    /// An unknown word.
    #[error("{what} cannot be {word:?}")]
    UnknownWord {
        /// Name of the part.
        what: &'static str,
        /// The unknown word.
        word: String,
    },
    /// A body longer than the bound, or with pages beyond its end.
    #[error(transparent)]
    Body(#[from] quipu_model::shared::body::BodyError),
    /// The statement and the model disagree.
    #[error("the statement did not carry out what it had to")]
    VerdictMismatch,
}

impl From<DataError> for CallFailure {
    fn from(error: DataError) -> CallFailure {
        CallFailure::DataDamaged(Arc::new(error))
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
