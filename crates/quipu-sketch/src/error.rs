//! Why something was not done.

/// Bytes that are no sketch of their kind, or an edit that does not fit them. Says what is wrong with them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("damaged sketch: {0}")]
pub struct CorruptSketch(pub &'static str);

/// Why a sketch refused an operation. Nothing was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SketchError {
    /// A size or an error rate that no sketch can have.
    #[error("{0}")]
    Parameter(&'static str),
    /// It would take more than [`BYTES_MAX`](crate::BYTES_MAX).
    #[error("a sketch of {bytes} bytes is larger than the limit of {} bytes", crate::BYTES_MAX)]
    TooLarge {
        /// What it would take.
        bytes: u64,
    },
    /// A count would pass what its cell can hold, or fall below zero.
    #[error("a count would overflow")]
    Overflow,
    /// Sketches of different sizes cannot be merged.
    #[error("the sketches differ in size")]
    Mismatch,
    /// An item is longer than the kind keeps.
    #[error("an item of {bytes} bytes is longer than {} bytes", crate::top::ITEM_BYTES_MAX)]
    ItemTooLong {
        /// How long it is.
        bytes: usize,
    },
}
