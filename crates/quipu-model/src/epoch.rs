//! The epoch of a counter: raised by everything that is not an add.
//!
//! Invariants:
//! - epochs are totally ordered, first by time, then by node;
//! - a raised epoch is greater than the one it replaces, whatever the clock does.

use crate::{Millis, NodeId};

/// Which life of a counter a value belongs to. Only cells of a counter's newest epoch count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Epoch {
    /// At least one more than the epoch before it, so not always a true time.
    pub millis: u64,
    /// Who raised it; decides between two nodes that raised it at once.
    pub node: NodeId,
}

impl Epoch {
    /// The epoch of a counter that was never set, reset, deleted or expired.
    pub const FIRST: Epoch = Epoch { millis: 0, node: NodeId(0) };

    /// The epoch after this one, raised at `now` by `node`: set, reset, delete.
    #[must_use]
    pub fn raised(self, now: Millis, node: NodeId) -> Epoch {
        Epoch { millis: now.0.max(self.millis + 1), node }
    }

    /// The epoch after a counter expired: a function of the counter alone, so that all nodes arrive at the same one.
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
