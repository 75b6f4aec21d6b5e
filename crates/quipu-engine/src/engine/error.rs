//! Errors of the public interface.

use quipu_model::{NameTooLong, Refusal};

use crate::core::commit::JournalFailure;

/// An operation was refused, its outcome is unknown, or the journal failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The bytes are not a valid name.
    #[error(transparent)]
    Name(#[from] NameTooLong),
    /// Not applied.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// Perhaps applied: the journal failed before the operation was durable.
    #[error(transparent)]
    JournalFailed(#[from] JournalFailure),
    /// Perhaps applied: the shared store did not answer, or the engine was closed meanwhile.
    #[error("nobody can say what became of it: it was applied once or not at all")]
    OutcomeUnknown,
}
