//! Retires a writer's cells on one row.
//!
//! In: a row and a writer. Out: the row with its cells closed, or folded into the base.
//!
//! Invariants:
//! - neither step changes the counter's value, and each may be repeated, at any time, in any order;
//! - only closed cells are folded: a cell that can still grow would be counted again from its
//!   beginning;
//! - a folded cell is remembered for `grace`, so a put still under way gets the verdict `Closed`
//!   with the kept value.
//!
//! Not here: choice of writers and time (`registry`); merging bodies of sketches (`body`).

use std::collections::BTreeMap;

use crate::shared::{CellId, RowCell, Snapshot, SpentCell, is_body_cell};
use crate::{Millis, Writer};

/// Closes the open cells of a writer; returns their number.
///
/// Cells with bodies stay open until they are folded. Such a cell has nothing to settle but the
/// body itself, and the newest put of the body replaces the earlier one.
pub(super) fn close(row: &mut Snapshot, writer: Writer) -> i64 {
    let mut closed = 0;
    let closes = |id: &CellId, held: &RowCell| id.writer == writer && !held.closed && !is_body_cell(id);
    for (_, held) in row.cells.iter_mut().filter(|(id, held)| closes(id, held)) {
        held.closed = true;
        closed += 1;
    }
    closed
}

/// Folds the closed cells of a writer; returns their number.
pub(super) fn fold(row: &mut Snapshot, writer: Writer, at: Millis) -> i64 {
    let (folded, rest) = std::mem::take(&mut row.cells)
        .into_iter()
        .partition::<BTreeMap<CellId, RowCell>, _>(|(id, held)| id.writer == writer && held.closed);
    row.cells = rest;
    for (&id, &RowCell { seq, value, total, .. }) in &folded {
        row.base = Some(row.base.unwrap_or(0).saturating_add(value));
        row.spent.insert(id, SpentCell { epoch: row.epoch, seq, value, total, closed: true, expired: None, at });
    }
    i64::try_from(folded.len()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::{Put, Seq, Shard, Verdict, incarnation_cell, put};
    use crate::{Epoch, Incarnation, NodeId};

    const GONE: Writer = Writer { node: NodeId(1), incarnation: Incarnation(1) };
    const OTHER: Writer = Writer { node: NodeId(2), incarnation: Incarnation(1) };
    const NOW: Millis = Millis(5);

    fn cell_put(writer: Writer, seq: u64, value: i128) -> Put {
        Put { cell: CellId { writer, shard: Shard(0) }, epoch: Epoch::FIRST, seq: Seq(seq), value, total: value }
    }

    fn row() -> Snapshot {
        let mut row = None;
        put::put(&mut row, &cell_put(GONE, 1, 5), NOW);
        put::put(&mut row, &cell_put(OTHER, 1, 2), NOW);
        row.unwrap()
    }

    #[test]
    fn closing_and_folding_keep_the_sum_and_repeat_harmlessly() {
        let mut row = row();
        assert_eq!(fold(&mut row, GONE, NOW), 0, "an open cell is not folded");
        assert_eq!((close(&mut row, GONE), row.sum()), (1, 7));
        assert_eq!((close(&mut row, GONE), row.sum()), (0, 7));
        assert_eq!((fold(&mut row, GONE, NOW), row.sum(), row.base), (1, 7, Some(5)));
        assert_eq!((fold(&mut row, GONE, NOW), row.sum(), row.base), (0, 7, Some(5)));
        assert_eq!(row.cells.len(), 1);
    }

    #[test]
    fn cells_of_bodies_are_neither_closed_nor_folded_into_a_number() {
        let (mut row, of_body) = (None, Put { cell: incarnation_cell(GONE, 0), ..cell_put(GONE, 1, 9) });
        put::put(&mut row, &of_body, NOW);
        let mut row = row.unwrap();
        assert_eq!((close(&mut row, GONE), fold(&mut row, GONE, NOW), row.base), (0, 0, None));
        assert!(!row.cells[&of_body.cell].closed);
    }

    #[test]
    fn a_zombie_gets_the_kept_value_before_and_after_the_fold() {
        let mut row = Some(row());
        let kept = Verdict::Closed { seq: Seq(1), value: 5 };
        close(row.as_mut().unwrap(), GONE);
        assert_eq!(put::put(&mut row, &cell_put(GONE, 2, 9), NOW), kept);
        fold(row.as_mut().unwrap(), GONE, NOW);
        assert_eq!(put::put(&mut row, &cell_put(GONE, 2, 9), NOW), kept);
        assert_eq!(row.unwrap().sum(), 7);
    }
}
