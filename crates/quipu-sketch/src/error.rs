//! Errors of sketches.

/// Bytes that are no valid sketch of their kind, or an edit that does not fit them, with the
/// reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("damaged sketch: {0}")]
pub struct CorruptSketch(pub &'static str);

/// Reason why a sketch refused an operation. Nothing was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SketchError {
    /// An invalid size or error rate.
    #[error("{0}")]
    Parameter(&'static str),
    /// The sketch would exceed [`BYTES_MAX`](crate::BYTES_MAX).
    #[error("a sketch of {bytes} bytes is larger than the limit of {} bytes", crate::BYTES_MAX)]
    TooLarge {
        /// Required bytes.
        bytes: u64,
    },
    /// A count would overflow its cell, or fall below zero.
    #[error("a count would overflow")]
    Overflow,
    /// Sketches of different sizes cannot be merged.
    #[error("the sketches differ in size")]
    Mismatch,
    /// An item exceeds the longest one that the kind stores.
    #[error("an item of {bytes} bytes is longer than {} bytes", crate::top::ITEM_BYTES_MAX)]
    ItemTooLong {
        /// Its length.
        bytes: usize,
    },
}
