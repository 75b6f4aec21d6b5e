//! Names the reasons why a call has no answer, and maps each to the outcome of the call.
//!
//! | failure | outcome |
//! |---|---|
//! | `Refused`: not sent, or refused before any change | `NotApplied` |
//! | `Open`: sent, and not answered | `Unknown` |
//! | `Locked`: another session has locked the row | `NotApplied` |
//! | `DataRefused`: refused because of one counter's data | `NotApplied`, for this counter alone |
//! | `DataFailed`: the server failed on one counter's data | `Unknown`, for this counter alone |
//! | `DataDamaged`: the data of one counter cannot be decoded | `Unknown`, for this counter alone |
//! | `HistoryChanged`: the server's identity differs from the last history | `HistoryChanged` |
//!
//! A store maps its driver's errors to these failures; every error without a known other meaning is
//! `Open`.

use std::error::Error;
use std::sync::Arc;

use quipu_model::shared::SnapshotError;
use quipu_model::{BoxError, StoreCall, StoreError};

/// A cause, shared by all calls that failed for it.
pub type Cause = Arc<dyn Error + Send + Sync>;

/// Reason why a call has no answer.
#[derive(Debug, Clone)]
pub enum CallFailure {
    /// Certainly not applied.
    Refused(Cause),
    /// May have been applied.
    Open(Cause),
    /// Certainly not applied: another session has locked a row.
    Locked(Cause),
    /// Certainly not applied, because of the data under one name.
    DataRefused(Cause),
    /// May have been applied: the server failed on the data under one name.
    DataFailed(Cause),
    /// May have been applied: the data under one name cannot be decoded.
    DataDamaged(Cause),
    /// Certainly not applied: nothing was sent to a server of unknown history.
    HistoryChanged,
}

impl CallFailure {
    /// Failure of a call that was not sent.
    pub fn unsent(source: impl Into<BoxError>) -> CallFailure {
        CallFailure::Refused(source.into().into())
    }

    /// Failure of a call that was sent and not answered.
    pub fn lost(source: impl Into<BoxError>) -> CallFailure {
        CallFailure::Open(source.into().into())
    }

    /// Failure of a call that was not sent because another call failed.
    pub fn into_unsent(self) -> CallFailure {
        match self {
            CallFailure::Refused(cause)
            | CallFailure::Open(cause)
            | CallFailure::Locked(cause)
            | CallFailure::DataRefused(cause)
            | CallFailure::DataFailed(cause)
            | CallFailure::DataDamaged(cause) => CallFailure::Refused(cause),
            CallFailure::HistoryChanged => CallFailure::HistoryChanged,
        }
    }

    /// Adds a name if the data under it is the cause. `place` precedes the name in the error: "the
    /// key", "the row of".
    pub fn with_name(self, place: &'static str, name: &[u8]) -> CallFailure {
        let named =
            |source| -> Cause { Arc::new(NamedDataError { place, name: name.escape_ascii().to_string(), source }) };
        match self {
            CallFailure::DataRefused(cause) => CallFailure::DataRefused(named(cause)),
            CallFailure::DataFailed(cause) => CallFailure::DataFailed(named(cause)),
            CallFailure::DataDamaged(cause) => CallFailure::DataDamaged(named(cause)),
            other => other,
        }
    }

    /// Returns true if the data under one name is the cause; calls on other names still work.
    pub fn is_of_data(&self) -> bool {
        matches!(self, CallFailure::DataRefused(_) | CallFailure::DataFailed(_) | CallFailure::DataDamaged(_))
    }

    /// The error of this call.
    pub fn into_store_error(self, call: StoreCall) -> StoreError {
        match self {
            CallFailure::Refused(cause) | CallFailure::Locked(cause) | CallFailure::DataRefused(cause) => {
                StoreError::NotApplied { call, source: Box::new(cause) }
            }
            CallFailure::Open(cause) | CallFailure::DataFailed(cause) | CallFailure::DataDamaged(cause) => {
                StoreError::Unknown { call, source: Box::new(cause) }
            }
            CallFailure::HistoryChanged => StoreError::HistoryChanged { call },
        }
    }
}

impl From<SnapshotError> for CallFailure {
    fn from(error: SnapshotError) -> CallFailure {
        CallFailure::DataDamaged(Arc::new(error))
    }
}

/// Damaged data under one name.
#[derive(Debug, thiserror::Error)]
#[error("{place} {name} cannot be used")]
struct NamedDataError {
    place: &'static str,
    name: String,
    source: Cause,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failures() -> [(CallFailure, &'static str, bool); 7] {
        let cause = || -> Cause { Arc::new(std::io::Error::other("the cause")) };
        [
            (CallFailure::unsent("it was not sent"), "not applied", false),
            (CallFailure::lost("it was sent"), "unknown", false),
            (CallFailure::Locked(cause()), "not applied", false),
            (CallFailure::DataRefused(cause()), "not applied", true),
            (CallFailure::DataFailed(cause()), "unknown", true),
            (CallFailure::DataDamaged(cause()), "unknown", true),
            (CallFailure::HistoryChanged, "history changed", false),
        ]
    }

    fn outcome(failure: CallFailure) -> &'static str {
        match failure.into_store_error(StoreCall::Put) {
            StoreError::NotApplied { .. } => "not applied",
            StoreError::Unknown { .. } => "unknown",
            StoreError::HistoryChanged { .. } => "history changed",
            other => panic!("no call fails so: {other:?}"),
        }
    }

    #[test]
    fn each_failure_has_its_outcome_named_or_not() {
        for (failure, expected, is_of_data) in failures() {
            assert_eq!(failure.is_of_data(), is_of_data, "{failure:?}");
            assert_eq!(outcome(failure.clone()), expected, "{failure:?}");
            let named = failure.with_name("the key", b"a\xff");
            assert_eq!(format!("{named:?}").contains("\"a\\\\xff\""), is_of_data, "{named:?}");
            assert_eq!(outcome(named), expected);
        }
    }

    #[test]
    fn a_call_that_was_not_sent_for_another_is_not_applied() {
        for (failure, ..) in failures() {
            assert_ne!(outcome(failure.into_unsent()), "unknown");
        }
    }
}
