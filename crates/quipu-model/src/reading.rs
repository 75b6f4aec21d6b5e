//! What a read returns: a value, and how far to trust it.

use crate::{Epoch, Kind, Millis};

/// A value and how good it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    /// What kind of counter was read.
    pub kind: Kind,
    /// The value; 0 for a counter that does not exist.
    pub value: i64,
    /// Whether the counter exists.
    pub exists: bool,
    /// Whether the value is exact: it includes every operation acknowledged before the read began.
    pub exact: bool,
    /// When it was true.
    pub as_of: Millis,
    /// The counter's epoch: raised by set, reset, delete and expiry.
    pub epoch: Epoch,
    /// When the counter will expire, if ever.
    pub expires_at: Option<Millis>,
}
