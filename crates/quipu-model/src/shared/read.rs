//! What a node shows of a counter: its own cells, laid over the newest row it has seen.
//!
//! In: one row, the time, and the node's own cells of that counter. Out: a value that fits a reply, or the knowledge that it does
//! not.
//!
//! Invariants:
//! - cells of two rows are never mixed: foreign cells are those of this one row;
//! - own adds count at once, and once: what the row has of an own cell is replaced, what a swap took of it is subtracted;
//! - sums are made in i128.
//!
//! Not here: how old a row may be, and fetching it (the engine).

use crate::shared::{CellId, Own, Seen, Told};
use crate::{Epoch, Millis};

/// A counter as one node sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Total {
    /// The value; 0 if it does not exist.
    pub value: i64,
    /// Whether it exists.
    pub exists: bool,
    /// Its epoch.
    pub epoch: Epoch,
    /// When it expires.
    pub expires_at: Option<Millis>,
    /// The row is of an epoch that this node knows to be over: only its own cells of the newer one are in the value. Fetch the row.
    pub behind: bool,
}

/// A sum that no reply can hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the sum over all writers, {sum}, does not fit a 64-bit reply")]
pub struct TooWide {
    /// The sum.
    pub sum: i128,
}

/// Reads a counter at a time, by this node's idea of the store's clock.
pub fn read(seen: &Seen, now: Millis, own: &[(CellId, Own)]) -> Result<Total, TooWide> {
    let now = now.max(seen.at);
    let row = seen.snapshot.as_of(now);
    let (mut sum, mut exists) = (row.sum(), row.exists());
    let mut newer: Option<Own> = None; // what this node says of an epoch that the row has not reached
    for (cell, own) in own {
        let own = own.lapse(now);
        let (mine, replaces) = match own.shown(*cell, &row, now) {
            Told::Stay | Told::Move => (own, true),
            Told::Open(opened) => (opened, true),
            Told::Reborn(rest) => (rest, false),
        };
        if mine.epoch > row.epoch {
            newer = Some(match newer {
                Some(newer) if newer.epoch > mine.epoch => newer,
                Some(newer) if newer.epoch == mine.epoch => newer.join(mine),
                _ => mine,
            });
            continue;
        }
        let held = row.cells.get(cell).filter(|_| replaces).map_or(0, |held| held.value);
        sum = sum.saturating_sub(held).saturating_add(mine.value);
        exists |= mine.said;
    }
    let (mut epoch, mut expires_at) = (row.epoch, row.expires_at);
    if let Some(newer) = newer {
        (sum, exists, epoch, expires_at) = (newer.value, newer.said, newer.epoch, newer.expires_at);
    }
    let value = i64::try_from(sum).map_err(|_| TooWide { sum })?;
    Ok(Total { value, exists, epoch, expires_at, behind: newer.is_some() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::{Held, Put, Seq, Shard, Snapshot, Spent, put};
    use crate::{Incarnation, NodeId, Writer};

    const NOW: Millis = Millis(1_000);

    fn id(node: u64) -> CellId {
        CellId { writer: Writer { node: NodeId(node), incarnation: Incarnation(1) }, shard: Shard(0) }
    }

    fn epoch(millis: u64) -> Epoch {
        Epoch { millis, node: NodeId(0) }
    }

    fn seen(cells: &[(u64, i128)]) -> Seen {
        let mut row = None;
        for &(node, value) in cells {
            put::put(&mut row, &Put { cell: id(node), epoch: epoch(10), seq: Seq(1), value }, NOW);
        }
        Seen { snapshot: row.unwrap_or_default(), at: NOW }
    }

    fn own(epoch_millis: u64, value: i128) -> Own {
        Own { epoch: epoch(epoch_millis), value, said: true, ..Own::default() }
    }

    fn value(seen: &Seen, own: &[(CellId, Own)]) -> i64 {
        read(seen, NOW, own).unwrap().value
    }

    #[test]
    fn own_cells_replace_what_the_row_has_of_them() {
        let seen = seen(&[(1, 5), (2, 7)]);
        assert_eq!(value(&seen, &[]), 12);
        assert_eq!(value(&seen, &[(id(1), own(10, 6))]), 13);
        assert_eq!(value(&seen, &[(id(1), own(10, 6)), (id(3), own(10, 1))]), 14);
    }

    #[test]
    fn of_an_own_cell_of_an_ended_epoch_counts_what_no_swap_took() {
        let mut seen = seen(&[(2, 7)]);
        let spent = Spent { epoch: epoch(5), seq: Seq(1), value: 4, closed: false, expired: None, at: NOW };
        seen.snapshot.spent.insert(id(1), spent);
        assert_eq!(value(&seen, &[(id(1), own(5, 6))]), 9);
        assert_eq!(value(&seen, &[(id(1), own(6, 6))]), 13);
    }

    #[test]
    fn of_an_own_closed_cell_only_the_rest_is_added() {
        let mut seen = seen(&[(1, 5), (2, 7)]);
        seen.snapshot.cells.insert(id(1), Held { seq: Seq(1), value: 5, closed: true });
        assert_eq!(value(&seen, &[(id(1), own(10, 8))]), 15);
    }

    #[test]
    fn a_row_of_an_epoch_known_to_be_over_is_not_mixed_with_the_newer_one() {
        let total = read(&seen(&[(2, 7)]), NOW, &[(id(1), own(20, 3)), (id(3), own(10, 5))]).unwrap();
        assert_eq!((total.value, total.behind, total.epoch), (3, true, epoch(20)));
    }

    #[test]
    fn an_expired_row_shows_nothing_but_what_was_added_since() {
        let mut seen = seen(&[(1, 5), (2, 7)]);
        seen.snapshot.expires_at = Some(Millis(1_500));
        let mine = own(10, 9).informed(&seen.snapshot);
        assert_eq!(read(&seen, Millis(1_499), &[(id(1), mine)]).unwrap().value, 16);
        let after = read(&seen, Millis(1_500), &[(id(1), mine)]).unwrap();
        assert_eq!((after.value, after.exists, after.behind), (0, false, false));
        let since = mine.lapse(Millis(1_500)).added(2).unwrap();
        assert_eq!(read(&seen, Millis(1_600), &[(id(1), since)]).unwrap().value, 2);
    }

    #[test]
    fn a_sum_over_writers_may_pass_i64_and_a_reply_may_not() {
        let max = i128::from(i64::MAX);
        assert_eq!(read(&seen(&[(1, max), (2, 1)]), NOW, &[]), Err(TooWide { sum: max + 1 }));
        assert_eq!(value(&seen(&[(1, max), (2, 1), (3, -1)]), &[]), i64::MAX);
        assert!(!read(&Seen { snapshot: Snapshot::default(), at: NOW }, NOW, &[]).unwrap().exists);
    }
}
