//! Cell: one node's state of one counter.

use crate::{Epoch, Millis};

/// One node's state of one counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cell {
    /// Epoch that the value belongs to.
    pub epoch: Epoch,
    /// Running value.
    pub value: i64,
    /// Expiry time, if any.
    pub expires_at: Option<Millis>,
}
