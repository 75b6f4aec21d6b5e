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
//! | classes `22`, `23`, `26`, `42`, `0A`: data, constraints, a statement, name or right that is not there | `NotApplied` |
//! | every other code (`08…` a proxy's connection, `58…` a file, `XX…` a bug) | `Unknown` |
//! | a row that cannot be decoded | `Unknown` |
//! | a call past its bound | `NotApplied` |
//!
//! A commit that waits for a synchronous standby and is cancelled meanwhile is answered with a warning, not with an error: it is in.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use quipu_model::{BoxError, Call, StoreError};
use tokio_postgres::error::Severity;

/// Codes, or the classes they begin with, that are only given for a transaction that was rolled back.
const REFUSALS: [&str; 10] = ["0A", "22", "23", "25006", "26", "40", "42", "53", "55P03", "57014"];

/// The one of class 40 that says nothing.
const COMPLETION_UNKNOWN: &str = "40003";

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

    /// What came instead of an answer.
    pub(crate) fn answered(error: tokio_postgres::Error) -> Failure {
        let refused = error.as_db_error().is_some_and(|answer| {
            answer.parsed_severity() == Some(Severity::Error) && is_refusal(answer.code().code())
        });
        if refused { Failure::unsent(error) } else { Failure::lost(error) }
    }

    pub(crate) fn of(self, call: Call) -> StoreError {
        match self {
            Failure::Refused(cause) => StoreError::NotApplied { call, source: Box::new(cause) },
            Failure::Open(cause) => StoreError::Unknown { call, source: Box::new(cause) },
        }
    }
}

fn is_refusal(code: &str) -> bool {
    code != COMPLETION_UNKNOWN && REFUSALS.iter().any(|known| code.starts_with(known))
}

/// The server has not answered in time.
#[derive(Debug, thiserror::Error)]
#[error("no reply within {0:?}")]
pub(crate) struct Late(pub(crate) Duration);

/// What no statement or row of ours looks like.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Damaged {
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
    Torn(&'static str),
    /// A word that we do not know.
    #[error("{what} cannot be {word:?}")]
    Word {
        /// Which part.
        what: &'static str,
        /// What stands there.
        word: String,
    },
    /// A body that is longer than any, or has pages beyond its end.
    #[error(transparent)]
    Body(#[from] quipu_model::shared::body::BodyError),
    /// The statement and the model do not agree.
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
