//! Judges puts of running values: the verdict of a store.
//!
//! In: a row, a put, the store's clock. Out: a verdict, and for `Newest` the row with the cell.
//!
//! Invariants:
//! - puts of one epoch commute, associate and repeat harmlessly: the newest per cell stays;
//! - a verdict contains only values that the store holds or kept: an adapter compares and copies;
//! - a verdict for one epoch of a cell does not apply to another: the caller compares before acting
//!   on it.
//!
//! Not here: the writer's reaction to a verdict (`carry`).

use crate::shared::{CellId, RowCell, RowVersion, Seq, Snapshot};
use crate::{Epoch, Millis};

/// A writer's state of one of its cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Put {
    /// The cell.
    pub cell: CellId,
    /// Epoch that it counts under.
    pub epoch: Epoch,
    /// Position in the writer's sequence. A seq always stands for the same state.
    pub seq: Seq,
    /// The running value under that epoch.
    pub value: i128,
    /// Sum of all adds, over all epochs. With it a late settlement computes the part that the row
    /// does not know.
    pub total: i128,
}

impl Put {
    /// Amount that the put adds to the version of a row, after [`RowVersion`].
    pub fn stride(&self) -> u64 {
        let CellId { writer, shard } = self.cell;
        RowVersion::stride(&[writer.node.0, writer.incarnation.0, u64::from(shard.0), self.seq.0])
    }
}

/// Verdict of a store on one put. One variant for each distinct next step of the writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It is in the row, now or by an earlier call.
    Newest,
    /// The row has a newer state of this cell. Nothing changed, and nothing is to be done if
    /// another put overtook this one.
    ///
    /// For a put with the newest seq of its writer, it means
    /// [`NextStep::Superseded`](crate::shared::NextStep::Superseded). The caller knows that seq.
    Older,
    /// The writer was retired. This part of the put's epoch was kept, and is or was counted. Puts
    /// of this incarnation add no more.
    Closed {
        /// Newest seq that was kept.
        seq: Seq,
        /// Its value; 0 if nothing was kept under the put's epoch.
        value: i128,
    },
    /// The put's epoch has ended.
    Stale {
        /// The row's epoch.
        epoch: Epoch,
        /// Value of this cell that was kept when the put's epoch ended; 0 if it was absent.
        kept: i128,
        /// Expiry by which the put's epoch ended, if the row knows it.
        expired: Option<Millis>,
    },
    /// The row must move first: it is due to expire, or it lost the put's epoch. Read, swap, put
    /// again.
    Behind {
        /// The row's epoch.
        epoch: Epoch,
    },
}

/// Puts a cell into a row; a row of `None` is absent in the store.
pub fn put(row: &mut Option<Snapshot>, put: &Put, at: Millis) -> Verdict {
    let Some(row) = row else {
        let version = RowVersion { born_at: at, ..RowVersion::ABSENT };
        let mut made = Snapshot { version, epoch: put.epoch, ..Snapshot::default() };
        insert_cell(&mut made, put);
        *row = Some(made);
        return Verdict::Newest;
    };
    let verdict = judge(row, put, at);
    if verdict == Verdict::Newest && row.cells.get(&put.cell).is_none_or(|held| held.seq < put.seq) {
        insert_cell(row, put);
    }
    verdict
}

/// Returns the verdict on a put without applying it.
pub fn judge(row: &Snapshot, put: &Put, at: Millis) -> Verdict {
    if row.is_due(at) || put.epoch > row.epoch {
        return Verdict::Behind { epoch: row.epoch };
    }
    if put.epoch == row.epoch { judge_present(row, put) } else { judge_past(row, put) }
}

fn judge_present(row: &Snapshot, put: &Put) -> Verdict {
    match (row.cells.get(&put.cell), row.spent.get(&put.cell)) {
        (Some(held), _) if held.closed => Verdict::Closed { seq: held.seq, value: held.value },
        (Some(held), _) if put.seq < held.seq => Verdict::Older,
        (Some(_), _) => Verdict::Newest,
        (None, Some(spent)) if spent.closed && spent.epoch == put.epoch => {
            Verdict::Closed { seq: spent.seq, value: spent.value }
        }
        // A writer retired in an earlier epoch stays retired: no later step would close a new open
        // cell.
        (None, Some(spent)) if spent.closed => Verdict::Closed { seq: spent.seq, value: 0 },
        (None, _) => Verdict::Newest,
    }
}

fn judge_past(row: &Snapshot, put: &Put) -> Verdict {
    if let Some(&RowCell { seq, closed, .. }) = row.cells.get(&put.cell) {
        return judge_superseded(put, seq, closed);
    }
    match row.spent.get(&put.cell) {
        Some(spent) if spent.epoch > put.epoch => judge_superseded(put, spent.seq, spent.closed),
        Some(spent) => {
            // A value kept under an epoch before the put's is no part of the put: the writer knew
            // of it, and began anew.
            let same = spent.epoch == put.epoch;
            let kept = if same { spent.value } else { 0 };
            if spent.closed {
                return Verdict::Closed { seq: spent.seq, value: kept };
            }
            if same && spent.seq > put.seq {
                return Verdict::Older;
            }
            Verdict::Stale { epoch: row.epoch, kept, expired: spent.expired.filter(|_| same) }
        }
        None => Verdict::Stale { epoch: row.epoch, kept: 0, expired: None },
    }
}

/// Returns the verdict on a put of an earlier epoch than the row has of its cell.
fn judge_superseded(put: &Put, seq: Seq, closed: bool) -> Verdict {
    // For a successor the epoch of the put had expired. For the better informed writer the expiry
    // was called off.
    if closed && seq < put.seq { Verdict::Closed { seq, value: 0 } } else { Verdict::Older }
}

fn insert_cell(row: &mut Snapshot, put: &Put) {
    row.cells.insert(put.cell, RowCell { seq: put.seq, value: put.value, total: put.total, closed: false });
    row.version.puts = row.version.puts.wrapping_add(put.stride());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::{Shard, SpentCell};
    use crate::{Incarnation, NodeId, Writer};

    const CELL: CellId = CellId { writer: Writer { node: NodeId(1), incarnation: Incarnation(1) }, shard: Shard(0) };
    const NOW: Millis = Millis(1_000);

    fn epoch(millis: u64) -> Epoch {
        Epoch { millis, node: NodeId(0) }
    }

    fn cell_put(epoch_millis: u64, seq: u64, value: i128) -> Put {
        Put { cell: CELL, epoch: epoch(epoch_millis), seq: Seq(seq), value, total: value }
    }

    fn spent(epoch_millis: u64, value: i128, closed: bool) -> Snapshot {
        let spent =
            SpentCell { epoch: epoch(epoch_millis), seq: Seq(3), value, total: value, closed, expired: None, at: NOW };
        Snapshot { epoch: epoch(30), spent: [(CELL, spent)].into(), ..Snapshot::default() }
    }

    #[test]
    fn the_newest_stays_and_a_repeat_changes_nothing() {
        let mut row = None;
        assert_eq!(put(&mut row, &cell_put(0, 2, 20), NOW), Verdict::Newest);
        assert_eq!(put(&mut row, &cell_put(0, 1, 10), NOW), Verdict::Older);
        let before = row.clone();
        assert_eq!(put(&mut row, &cell_put(0, 2, 20), NOW), Verdict::Newest);
        assert_eq!(row, before, "not even its version");
        assert_eq!(put(&mut row, &cell_put(0, 3, 5), NOW), Verdict::Newest, "newest is by seq, not by value");
        let row = row.unwrap();
        assert_eq!((row.sum(), row.version.born_at), (5, NOW), "and the row knows when it was made");
    }

    #[test]
    fn a_put_of_an_ended_epoch_gets_the_value_kept_of_that_epoch() {
        let row = spent(10, 7, false);
        assert_eq!(judge(&row, &cell_put(10, 9, 12), NOW), Verdict::Stale { epoch: epoch(30), kept: 7, expired: None });
        assert_eq!(judge(&row, &cell_put(20, 9, 12), NOW), Verdict::Stale { epoch: epoch(30), kept: 0, expired: None });
        assert_eq!(judge(&row, &cell_put(5, 2, 12), NOW), Verdict::Older, "the writer knows of a later epoch");
    }

    #[test]
    fn of_an_ended_epoch_the_newest_by_seq_stays_too() {
        let row = spent(10, 7, false);
        assert_eq!(
            judge(&row, &cell_put(10, 2, 12), NOW),
            Verdict::Older,
            "seq 3 was kept: nothing is owed, and nothing owing"
        );
        assert_eq!(judge(&row, &cell_put(10, 3, 7), NOW), Verdict::Stale { epoch: epoch(30), kept: 7, expired: None });
        let row = spent(10, 7, true);
        assert_eq!(judge(&row, &cell_put(10, 2, 12), NOW), Verdict::Closed { seq: Seq(3), value: 7 });
    }

    #[test]
    fn a_late_put_of_a_writer_that_moved_on_is_older() {
        let mut row = Some(spent(10, 7, false));
        assert_eq!(put(&mut row, &cell_put(30, 5, 1), NOW), Verdict::Newest);
        assert_eq!(judge(row.as_ref().unwrap(), &cell_put(10, 4, 9), NOW), Verdict::Older);
    }

    #[test]
    fn a_put_of_an_earlier_epoch_than_a_successor_settled_is_closed_if_it_is_newer() {
        let held = RowCell { seq: Seq(3), value: 7, total: 7, closed: true };
        let counts = Snapshot { epoch: epoch(30), cells: [(CELL, held)].into(), ..Snapshot::default() };
        for row in [counts, spent(20, 7, true)] {
            assert_eq!(judge(&row, &cell_put(10, 4, 12), NOW), Verdict::Closed { seq: Seq(3), value: 0 });
            assert_eq!(judge(&row, &cell_put(10, 3, 7), NOW), Verdict::Older);
        }
    }

    #[test]
    fn closed_comes_before_stale_and_for_good() {
        let row = spent(10, 7, true);
        assert_eq!(judge(&row, &cell_put(10, 9, 12), NOW), Verdict::Closed { seq: Seq(3), value: 7 });
        assert_eq!(judge(&row, &cell_put(20, 9, 12), NOW), Verdict::Closed { seq: Seq(3), value: 0 });
        assert_eq!(judge(&row, &cell_put(30, 9, 12), NOW), Verdict::Closed { seq: Seq(3), value: 0 });
        let folded = Snapshot { epoch: epoch(10), base: Some(7), ..spent(10, 7, true) };
        assert_eq!(judge(&folded, &cell_put(10, 9, 12), NOW), Verdict::Closed { seq: Seq(3), value: 7 });
    }

    #[test]
    fn a_row_that_is_due_or_behind_moves_first() {
        let row = Snapshot { epoch: epoch(10), expires_at: Some(NOW), ..Snapshot::default() };
        assert_eq!(judge(&row, &cell_put(10, 1, 1), NOW), Verdict::Behind { epoch: epoch(10) });
        assert_eq!(judge(&row, &cell_put(10, 1, 1), Millis(999)), Verdict::Newest);
        assert_eq!(judge(&row, &cell_put(11, 1, 1), Millis(999)), Verdict::Behind { epoch: epoch(10) });
    }
}
