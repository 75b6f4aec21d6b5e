//! What became of a swap whose answer was lost.
//!
//! In: the version a swap was computed from, its name, and the row as it is now. Out: its fate.
//!
//! The swap that left version *n* behind has the number *n* + 1, and the row names the last swaps by number. So the question is
//! not "was I the last?", which a second swap right behind would answer wrongly, but "who followed the version I saw?".

use crate::shared::{FetchedRow, RowVersion, Snapshot, SwapId};

/// A swap that was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SwapAttempt {
    /// The version it was computed from.
    pub version: RowVersion,
    /// Its name.
    pub id: SwapId,
}

/// What is known of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SwapOutcome {
    /// It was carried out: its reply is true.
    Swapped,
    /// It was not and never will be: compute again from what the row is now.
    NotApplied,
    /// It was not yet, but may be under way: send the very same swap again. Whichever arrives first is carried out, the other is not.
    /// Half of `grace` after the read it was computed from nothing is under way any more, and it is `NotApplied`: what a swap kept is
    /// remembered from that read on, so an old one must not be sent.
    Pending,
    /// Nobody can tell any more: too many swaps came after, or the row was lost. The caller is not answered.
    Unknown,
}

impl SwapAttempt {
    /// The attempt at a swap computed from this.
    pub fn new(fetched: &FetchedRow, id: SwapId) -> SwapAttempt {
        SwapAttempt { version: fetched.snapshot.version, id }
    }

    /// What the row says about it.
    pub fn outcome(&self, row: &Snapshot) -> SwapOutcome {
        if self.version != RowVersion::ABSENT && self.version.born_at != row.version.born_at {
            // The row that it saw was forgotten, which no row is that was swapped so lately.
            return SwapOutcome::NotApplied;
        }
        let Some(since) = row.version.swaps.checked_sub(self.version.swaps) else {
            return SwapOutcome::Unknown;
        };
        if since == 0 {
            // Puts have moved the version on for good: no copy of the swap can find it again.
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
