//! What a node says of a counter.

use crate::{Epoch, Millis};

/// What the node says of one counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cell {
    /// Which life of the counter this is.
    pub epoch: Epoch,
    /// The running value.
    pub value: i64,
    /// When it expires.
    pub expires_at: Option<Millis>,
}
