//! Determines the outcome of a swap after its reply was lost.
//!
//! In: the version that the swap was computed from, its id, and the present row. Out: the outcome.
//!
//! A swap computed from version *n* has the number *n* + 1, and the row lists its last swaps by
//! number. So the check compares the id at *n* + 1, not the id of the last swap: a second swap
//! right behind the first would hide it there.

use crate::shared::{FetchedRow, RowVersion, Snapshot, SwapId};

/// A sent swap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SwapAttempt {
    /// Version that it was computed from.
    pub version: RowVersion,
    /// Id of the swap.
    pub id: SwapId,
}

/// Outcome of a sent swap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SwapOutcome {
    /// Applied: its reply is valid.
    Swapped,
    /// Not applied, and never will be: compute again from the present row.
    NotApplied,
    /// Not applied yet, but possibly under way: send the identical swap again. The first to arrive
    /// is applied, the other is not.
    ///
    /// Half of `grace` after the read that it was computed from, no swap is under way any more, and
    /// the outcome is `NotApplied`. The row dates its spent cells by that read, so an old swap must
    /// not be sent.
    Pending,
    /// Unknown: too many swaps came after, or the row was lost. The caller gets no reply.
    Unknown,
}

impl SwapAttempt {
    /// Creates the attempt of a swap computed from this row.
    pub fn new(fetched: &FetchedRow, id: SwapId) -> SwapAttempt {
        SwapAttempt { version: fetched.snapshot.version, id }
    }

    /// Returns the outcome that the row shows.
    pub fn outcome(&self, row: &Snapshot) -> SwapOutcome {
        if self.version != RowVersion::ABSENT && self.version.born_at != row.version.born_at {
            // The row that it was computed from was forgotten. No row is forgotten so soon after a
            // swap, so the swap was not applied.
            return SwapOutcome::NotApplied;
        }
        let Some(since) = row.version.swaps.checked_sub(self.version.swaps) else {
            return SwapOutcome::Unknown;
        };
        if since == 0 {
            // Puts have moved the version on for good: no copy of the swap can match it again.
            return if row.version.puts == self.version.puts { SwapOutcome::Pending } else { SwapOutcome::NotApplied };
        }
        let follower =
            usize::try_from(since).ok().and_then(|since| row.swaps.len().checked_sub(since)).map(|at| row.swaps[at]);
        match follower {
            Some(id) if id == self.id => SwapOutcome::Swapped,
            Some(_) => SwapOutcome::NotApplied,
            None => SwapOutcome::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Millis;
    use crate::shared::snapshot::SWAP_IDS_MAX;

    fn after(swaps: impl IntoIterator<Item = u128>) -> Snapshot {
        let mut row = Snapshot::default();
        swaps.into_iter().for_each(|id| row.record_swap(SwapId(id)));
        row
    }

    #[test]
    fn a_swap_is_recognised_under_the_swaps_that_came_after_it() {
        let attempt = SwapAttempt { version: after([1]).version, id: SwapId(7) };
        assert_eq!(attempt.outcome(&after([1])), SwapOutcome::Pending);
        assert_eq!(attempt.outcome(&after([1, 7])), SwapOutcome::Swapped);
        assert_eq!(attempt.outcome(&after([1, 7, 8, 9])), SwapOutcome::Swapped);
        assert_eq!(attempt.outcome(&after([1, 8])), SwapOutcome::NotApplied);
        assert_eq!(
            attempt.outcome(&after([1, 8, 7])),
            SwapOutcome::NotApplied,
            "only the follower of what it saw can be it"
        );
        assert_eq!(attempt.outcome(&after([])), SwapOutcome::Unknown, "the row lost a swap");
        let mut moved = after([1]);
        moved.version.puts += 1;
        assert_eq!(attempt.outcome(&moved), SwapOutcome::NotApplied);
        let mut anew = after([1]);
        anew.version.born_at = Millis(9);
        assert_eq!(attempt.outcome(&anew), SwapOutcome::NotApplied, "a row of the same numbers, made anew");
    }

    #[test]
    fn a_swap_is_recognised_until_as_many_as_are_kept_came_after() {
        let attempt = SwapAttempt { version: RowVersion::ABSENT, id: SwapId(0) };
        assert_eq!(attempt.outcome(&after(0..SWAP_IDS_MAX as u128)), SwapOutcome::Swapped);
        assert_eq!(attempt.outcome(&after(0..SWAP_IDS_MAX as u128 + 1)), SwapOutcome::Unknown);
    }
}
