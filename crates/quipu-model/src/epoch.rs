//! Epoch of a counter: every change other than an add raises it.
//!
//! Invariants:
//! - epochs are totally ordered, first by time, then by node;
//! - a raised epoch is greater than the one it replaces, even if the clock goes back.

use crate::{Millis, NodeId};

/// Generation of a counter that a value belongs to. Only cells of the counter's newest epoch count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Epoch {
    /// At least one more than the previous epoch, so not always a true time.
    pub millis: u64,
    /// Node that raised it; decides between two nodes that raised it at once.
    pub node: NodeId,
}

impl Epoch {
    /// Epoch of a counter that was never set, reset, deleted or expired.
    pub const FIRST: Epoch = Epoch { millis: 0, node: NodeId(0) };

    /// Returns the next epoch, raised at `now` by `node`: for set, reset and delete.
    #[must_use]
    pub fn raised(self, now: Millis, node: NodeId) -> Epoch {
        Epoch { millis: now.0.max(self.millis + 1), node }
    }

    /// Returns the epoch after the counter expired. It depends on the counter alone, so all nodes
    /// compute the same one.
    #[must_use]
    pub fn expired(self, expires_at: Millis) -> Epoch {
        Epoch { millis: expires_at.0.max(self.millis + 1), node: NodeId(0) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_epoch_only_rises_whatever_the_clock_says(
            millis in 0..u64::MAX / 2, node: u64, now: u64, by: u64, expires_at: u64,
        ) {
            let epoch = Epoch { millis, node: NodeId(node) };
            prop_assert!(epoch.raised(Millis(now), NodeId(by)) > epoch);
            prop_assert!(epoch.expired(Millis(expires_at)) > epoch);
        }
    }
}
