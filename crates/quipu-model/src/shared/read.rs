//! Reads a counter on a node: merges the node's own cells into the newest fetched row.
//!
//! In: one row, the time, and the node's own cells of that counter. Out: their sum, which may not
//! fit a reply.
//!
//! Invariants:
//! - cells of two rows are never mixed: all foreign cells come from this one row;
//! - own adds count at once, and once: the own cell replaces the row's copy, less the part that a
//!   swap took;
//! - sums are computed in i128.
//!
//! Not here: the greatest age of a row, and fetching it (the engine).

use crate::shared::{CellId, FetchedRow, NextStep, OwnValue, Seq, Snapshot, late};
use crate::{Epoch, Millis};

/// A counter's value on one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Total {
    /// Sum over all writers; 0 if the counter does not exist.
    pub sum: i128,
    /// True if the counter exists.
    pub exists: bool,
    /// Epoch of the counter.
    pub epoch: Epoch,
    /// Expiry of the counter.
    pub expires_at: Option<Millis>,
    /// This node knows that the row's epoch has ended. The value includes only its own cells of the
    /// newer epoch. Fetch the row.
    pub behind: bool,
}

impl Total {
    /// Returns the value, if a reply can hold it.
    pub fn value(&self) -> Result<i64, TooWide> {
        i64::try_from(self.sum).map_err(|_| TooWide { sum: self.sum })
    }

    /// Returns the 64-bit number nearest to the sum.
    pub fn nearest(&self) -> i64 {
        nearest(self.sum)
    }
}

/// Returns the 64-bit number nearest to a sum.
pub fn nearest(sum: i128) -> i64 {
    i64::try_from(sum).unwrap_or(if sum < 0 { i64::MIN } else { i64::MAX })
}

/// A sum that no reply can hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the sum over all writers, {sum}, does not fit a 64-bit reply")]
pub struct TooWide {
    /// The sum.
    pub sum: i128,
}

/// Reads a counter at a time, by this node's estimate of the store's clock.
///
/// Each own cell comes with its newest seq, as in [`OwnValue::on_row`].
pub fn read(fetched: &FetchedRow, now: Millis, own: &[(CellId, Seq, OwnValue)]) -> Total {
    let now = now.max(fetched.at);
    let row = fetched.snapshot.as_of(now);
    let (mut sum, mut exists) = (row.sum(), row.exists());
    // This node's value under an epoch that the row has not reached.
    let mut newer: Option<OwnValue> = None;
    for &(cell, seq, own) in own {
        let mut mine = own.lapse(now, Seq(seq.0.saturating_add(1)));
        let mut next_step = mine.on_row(cell, seq, &row, now);
        if let (NextStep::Continue(decided), Some(_)) = (next_step, mine.pending_expiry) {
            (mine, next_step) = (decided, decided.on_row(cell, seq, &row, now));
        }
        match next_step {
            NextStep::Keep | NextStep::Move => {}
            NextStep::Continue(opened) => mine = opened,
            NextStep::Retired if mine.has_value => {
                let (rest, counts) = uncounted_value(&row, &mine, cell, now);
                (sum, exists) = (sum.saturating_add(rest), exists || counts);
                continue;
            }
            NextStep::Retired | NextStep::Superseded => continue,
        }
        if mine.epoch > row.epoch {
            newer = Some(match newer {
                Some(newer) if newer.epoch > mine.epoch => newer,
                Some(newer) if newer.epoch == mine.epoch => {
                    OwnValue { has_value: newer.has_value || mine.has_value, ..newer.plus(mine.value) }
                }
                _ => mine,
            });
            continue;
        }
        let held = row.cells.get(&cell).map_or(0, |held| held.value);
        sum = sum.saturating_sub(held).saturating_add(mine.value);
        exists |= mine.has_value;
    }
    let (mut epoch, mut expires_at) = (row.epoch, row.expires_at);
    if let Some(newer) = newer {
        (sum, exists, epoch, expires_at) = (newer.value, newer.has_value, newer.epoch, newer.expires_at);
    }
    Total { sum, exists, epoch, expires_at, behind: newer.is_some() }
}

/// Returns the value that a retired cell will add by its late settlement, and the counter's
/// existence after it.
fn uncounted_value(row: &Snapshot, own: &OwnValue, cell: CellId, now: Millis) -> (i128, bool) {
    let mut settled = row.clone();
    // Adds since the newest seq have none yet; theirs will be newer than the row's.
    if let Some(late) = own.final_cell(cell, Seq(u64::MAX)) {
        late::settle(&mut settled, &late, now);
    }
    (settled.sum().saturating_sub(row.sum()), settled.exists())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::{Put, RowCell, Seq, Shard, Snapshot, SpentCell, put};
    use crate::{Incarnation, NodeId, Writer};

    const NOW: Millis = Millis(1_000);

    fn id(node: u64) -> CellId {
        CellId { writer: Writer { node: NodeId(node), incarnation: Incarnation(1) }, shard: Shard(0) }
    }

    fn epoch(millis: u64) -> Epoch {
        Epoch { millis, node: NodeId(0) }
    }

    fn fetched(cells: &[(u64, i128)]) -> FetchedRow {
        let mut row = None;
        for &(node, value) in cells {
            put::put(&mut row, &Put { cell: id(node), epoch: epoch(10), seq: Seq(1), value, total: value }, NOW);
        }
        FetchedRow { snapshot: row.unwrap_or_default(), at: NOW }
    }

    /// A cell under the first epoch of its incarnation.
    fn own(epoch_millis: u64, value: i128) -> OwnValue {
        carried_value(epoch_millis, value, value)
    }

    /// A cell of an incarnation that has counted under earlier epochs.
    fn carried_value(epoch_millis: u64, value: i128, total: i128) -> OwnValue {
        OwnValue { epoch: epoch(epoch_millis), value, total, has_value: true, ..OwnValue::default() }
    }

    /// Reads with own cells of seq 1.
    fn value(fetched: &FetchedRow, own: &[(CellId, OwnValue)]) -> i64 {
        let own: Vec<_> = own.iter().map(|&(cell, own)| (cell, Seq(1), own)).collect();
        read(fetched, NOW, &own).value().unwrap()
    }

    #[test]
    fn own_cells_replace_what_the_row_has_of_them() {
        let fetched = fetched(&[(1, 5), (2, 7)]);
        assert_eq!(value(&fetched, &[]), 12);
        assert_eq!(value(&fetched, &[(id(1), own(10, 6))]), 13);
        assert_eq!(value(&fetched, &[(id(1), own(10, 6)), (id(3), own(10, 1))]), 14);
    }

    #[test]
    fn of_an_own_cell_of_an_ended_epoch_counts_what_no_swap_took() {
        let mut fetched = fetched(&[(2, 7)]);
        let spent =
            SpentCell { epoch: epoch(5), seq: Seq(1), value: 4, total: 4, closed: false, expired: None, at: NOW };
        fetched.snapshot.spent.insert(id(1), spent);
        assert_eq!(value(&fetched, &[(id(1), own(5, 6))]), 9);
        assert_eq!(value(&fetched, &[(id(1), carried_value(6, 6, 4 + 6))]), 13);
    }

    #[test]
    fn of_an_own_closed_cell_only_the_rest_is_added() {
        let mut fetched = fetched(&[(1, 5), (2, 7)]);
        fetched.snapshot.cells.insert(id(1), RowCell { seq: Seq(1), value: 5, total: 5, closed: true });
        assert_eq!(value(&fetched, &[(id(1), own(10, 8))]), 15);
        fetched.snapshot.cells.remove(&id(1));
        fetched.snapshot.base = Some(5);
        let folded =
            SpentCell { epoch: epoch(10), seq: Seq(1), value: 5, total: 5, closed: true, expired: None, at: NOW };
        fetched.snapshot.spent.insert(id(1), folded);
        assert_eq!(value(&fetched, &[(id(1), own(10, 8))]), 15, "folded");
        fetched.snapshot.spent.insert(id(1), SpentCell { epoch: epoch(5), expired: Some(Millis(9)), ..folded });
        assert_eq!(value(&fetched, &[(id(1), own(5, 8))]), 15, "of an epoch that expired, and it did not know");
        let knew = OwnValue { expires_at: Some(Millis(9)), ..own(5, 8) };
        assert_eq!(value(&fetched, &[(id(1), knew)]), 12, "and it did: as it will be settled");
    }

    #[test]
    fn a_retired_cell_that_says_nothing_makes_no_counter() {
        let closed =
            SpentCell { epoch: epoch(5), seq: Seq(1), value: 5, total: 5, closed: true, expired: None, at: NOW };
        let snapshot = Snapshot { epoch: epoch(10), spent: [(id(1), closed)].into(), ..Snapshot::default() };
        let fetched = FetchedRow { snapshot, at: NOW };
        let silent = OwnValue { epoch: epoch(10), total: 5, ..OwnValue::default() };
        assert!(!read(&fetched, NOW, &[(id(1), Seq(1), silent)]).exists);
        assert!(read(&fetched, NOW, &[(id(1), Seq(1), carried_value(10, 0, 5))]).exists);
    }

    #[test]
    fn of_an_own_cell_that_the_store_knows_better_the_rows_value_counts() {
        let mut fetched = fetched(&[(1, 5), (2, 7)]);
        fetched.snapshot.cells.insert(id(1), RowCell { seq: Seq(2), value: 6, total: 6, closed: false });
        assert_eq!(value(&fetched, &[(id(1), own(10, 4))]), 13);
        let spent =
            SpentCell { epoch: epoch(5), seq: Seq(2), value: 9, total: 9, closed: false, expired: None, at: NOW };
        fetched.snapshot.spent.insert(id(3), spent);
        assert_eq!(value(&fetched, &[(id(3), own(5, 8))]), 13, "nothing is taken back either");
    }

    #[test]
    fn a_row_of_an_epoch_known_to_be_over_is_not_mixed_with_the_newer_one() {
        let total = read(&fetched(&[(2, 7)]), NOW, &[(id(1), Seq(1), own(20, 3)), (id(3), Seq(1), own(10, 5))]);
        assert_eq!((total.sum, total.behind, total.epoch), (3, true, epoch(20)));
    }

    #[test]
    fn an_expired_row_shows_nothing_but_what_was_added_since() {
        let mut fetched = fetched(&[(1, 5), (2, 7)]);
        fetched.snapshot.expires_at = Some(Millis(1_500));
        let mine = own(10, 9).with_row_expiry(&fetched.snapshot);
        assert_eq!(read(&fetched, Millis(1_499), &[(id(1), Seq(1), mine)]).sum, 16);
        let after = read(&fetched, Millis(1_500), &[(id(1), Seq(1), mine)]);
        assert_eq!((after.sum, after.exists, after.behind), (0, false, false));
        let closed = Snapshot {
            cells: [(id(1), RowCell { seq: Seq(1), value: 5, total: 5, closed: true })].into(),
            ..fetched.snapshot.clone()
        };
        let closed = FetchedRow { snapshot: closed, at: NOW };
        let since = mine.lapse(Millis(1_500), Seq(2)).added(2).unwrap();
        assert_eq!(read(&fetched, Millis(1_600), &[(id(1), Seq(1), since)]).sum, 2);
        assert_eq!(read(&closed, Millis(1_600), &[(id(1), Seq(1), since)]).sum, 2, "of a life that is over too");
    }

    #[test]
    fn a_sum_over_writers_may_pass_i64_and_a_reply_may_not() {
        let max = i128::from(i64::MAX);
        let wide = |sum: i128| {
            let total = read(&fetched(&[(1, sum - 1), (2, 1)]), NOW, &[]);
            (total.value(), total.nearest())
        };
        assert_eq!(wide(max + 1), (Err(TooWide { sum: max + 1 }), i64::MAX));
        assert_eq!(wide(-max - 2), (Err(TooWide { sum: -max - 2 }), i64::MIN));
        assert_eq!(value(&fetched(&[(1, max), (2, 1), (3, -1)]), &[]), i64::MAX);
        assert!(!read(&FetchedRow { snapshot: Snapshot::default(), at: NOW }, NOW, &[]).exists);
    }
}
