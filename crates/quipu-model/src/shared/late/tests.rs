use std::time::Duration;

use super::*;
use crate::shared::put::{judge, put};
use crate::shared::{
    CellId, Change, FetchedRow, NextRow, RowVersion, Seq, Shard, SwapContext, SwapId, Verdict, plan_swap,
};
use crate::{Epoch, Incarnation, NodeId, Reply, Writer};

const CELL: CellId = CellId { writer: Writer { node: NodeId(1), incarnation: Incarnation(1) }, shard: Shard(0) };
const OTHER: CellId = CellId { shard: Shard(1), ..CELL };
const NOW: Millis = Millis(1_000);
const CONTEXT: SwapContext<'static> = SwapContext {
    id: SwapId(7),
    node: NodeId(9),
    grace: Duration::from_secs(100),
    registered: &crate::shared::NO_WRITERS,
};

fn epoch(millis: u64) -> Epoch {
    Epoch { millis, node: NodeId(0) }
}

/// A put of an incarnation under its first epoch.
fn final_put(epoch_millis: u64, seq: u64, value: i128) -> Put {
    carried_put((epoch_millis, value), seq, value)
}

/// A put of an incarnation that has counted under earlier epochs.
fn carried_put((epoch_millis, value): (u64, i128), seq: u64, total: i128) -> Put {
    Put { cell: CELL, epoch: epoch(epoch_millis), seq: Seq(seq), value, total }
}

/// A row of epoch 30 with a value of 100.
fn row() -> Snapshot {
    let version = RowVersion { born_at: Millis(1), swaps: 3, puts: 0 };
    Snapshot { version, epoch: epoch(30), base: Some(100), ..Snapshot::default() }
}

fn held(closed: bool) -> Snapshot {
    Snapshot { cells: [(CELL, RowCell { seq: Seq(4), value: 7, total: 7, closed })].into(), ..row() }
}

fn spent(epoch_millis: u64, closed: bool, expired: Option<u64>) -> Snapshot {
    let (epoch, expired) = (epoch(epoch_millis), expired.map(Millis));
    Snapshot {
        spent: [(CELL, SpentCell { epoch, seq: Seq(4), value: 7, total: 7, closed, expired, at: Millis(900) })].into(),
        ..row()
    }
}

/// The row after an ended incarnation has settled, which is repeated once.
fn settled(row: &Snapshot, put: Put, expires_at: Option<u64>) -> Snapshot {
    let change = Change::Late(FinalCell { put, expires_at: expires_at.map(Millis), expired_seq: Seq(0) });
    let plan = plan_swap(&FetchedRow { snapshot: row.clone(), at: NOW }, &CONTEXT, &change).unwrap();
    let NextRow::Row(next) = plan.next else { panic!("{put:?} is no news to {row:?}") };
    assert_eq!((plan.reply, next.version.swaps), (Reply::Integer(1), row.version.swaps + 1));
    no_news(&next, put, expires_at);
    next
}

/// The row after an incarnation with an expired value has settled.
fn settle_one(row: &Snapshot, late: FinalCell) -> Snapshot {
    let mut row = row.clone();
    assert!(settle(&mut row, &late, NOW), "{late:?} is no news to {row:?}");
    row
}

fn no_news(row: &Snapshot, put: Put, expires_at: Option<u64>) {
    let change = Change::Late(FinalCell { put, expires_at: expires_at.map(Millis), expired_seq: Seq(0) });
    let plan = plan_swap(&FetchedRow { snapshot: row.clone(), at: NOW }, &CONTEXT, &change).unwrap();
    assert_eq!((plan.next, plan.reply), (NextRow::Unchanged, Reply::Integer(0)), "{put:?} on {row:?}");
}

#[test]
fn a_cell_that_still_counts_is_replaced_and_closed() {
    for closed in [false, true] {
        let next = settled(&held(closed), final_put(30, 5, 9), None);
        assert_eq!((next.sum(), next.cells[&CELL]), (109, RowCell { seq: Seq(5), value: 9, total: 9, closed: true }));
        no_news(&held(closed), final_put(30, 4, 7), None);
        no_news(&held(closed), final_put(30, 3, 9), None);
    }
}

#[test]
fn a_cell_that_was_folded_counts_on_in_the_base() {
    let next = settled(&spent(30, true, None), final_put(30, 6, 9), None);
    assert_eq!((next.sum(), next.cells.len()), (102, 0));
    assert_eq!((next.spent[&CELL].seq, next.spent[&CELL].value, next.spent[&CELL].at), (Seq(6), 9, NOW));
    no_news(&spent(30, true, None), final_put(30, 4, 7), None);
}

#[test]
fn a_cell_that_the_row_never_had_is_put_closed() {
    for (row, total) in [(row(), 9), (spent(10, false, None), 7 + 9), (spent(10, true, None), 7 + 9)] {
        let next = settled(&row, carried_put((30, 9), 5, total), None);
        assert_eq!((next.sum(), next.cells[&CELL]), (109, RowCell { seq: Seq(5), value: 9, total, closed: true }));
    }
    let made = settled(&Snapshot::default(), final_put(0, 1, 3), None);
    assert_eq!((made.sum(), made.version.born_at), (3, NOW), "nor had there been a row");
}

#[test]
fn of_an_ended_epoch_what_the_store_did_not_keep_counts_now() {
    for closed in [false, true] {
        let next = settled(&spent(10, closed, None), final_put(10, 5, 9), None);
        assert_eq!((next.sum(), next.epoch, next.cells.len()), (102, epoch(30), 0));
        no_news(&spent(10, closed, None), final_put(10, 4, 7), None);
    }
    let less = settled(&spent(10, false, None), final_put(10, 5, 3), None);
    assert_eq!(less.sum(), 96, "newest is by seq, not by value");
}

#[test]
fn of_an_epoch_that_the_store_knows_nothing_of_all_counts() {
    for (row, total) in [(row(), 9), (spent(10, false, None), 7 + 9), (spent(10, false, Some(20)), 7 + 9)] {
        let next = settled(&row, carried_put((20, 9), 5, total), Some(20));
        assert_eq!((next.sum(), next.spent[&CELL].epoch, next.spent[&CELL].expired), (109, epoch(20), None));
    }
}

#[test]
fn the_rest_of_an_epoch_that_expired_expires_if_the_life_knew() {
    let row = spent(10, false, Some(25));
    let knew = settled(&row, final_put(10, 5, 9), Some(25));
    let kept = knew.spent[&CELL];
    assert_eq!((knew.sum(), kept.seq), (100, Seq(5)));
    assert_eq!((kept.value, kept.total), (7, 9), "what has expired was not kept, and nobody else counts it");
    assert_eq!(knew.spent[&CELL].expired, Some(Millis(25)), "as it does for another successor");
    assert_eq!(settled(&row, final_put(10, 5, 9), Some(24)).sum(), 102);
    assert_eq!(settled(&row, final_put(10, 5, 9), None).sum(), 102);
    assert_eq!(settled(&spent(10, false, None), final_put(10, 5, 9), Some(25)).sum(), 102, "it ended otherwise");

    let due = Snapshot { epoch: epoch(10), expires_at: Some(Millis(999)), ..held(false) };
    let next = settled(&due, final_put(10, 5, 9), Some(999));
    assert_eq!(
        (next.epoch, next.exists(), next.gone_at),
        (epoch(999), false, Some(NOW)),
        "a row that is due has expired first"
    );
    assert_eq!(settled(&due, final_put(10, 5, 9), None).sum(), 2);
}

#[test]
fn a_life_of_a_writer_that_moved_on_has_nothing_to_settle() {
    for row in [held(false), held(true), spent(20, false, None), spent(20, true, None)] {
        no_news(&row, final_put(10, 3, 9), None);
        no_news(&row, final_put(10, 4, 9), None);
    }
}

#[test]
fn a_life_with_a_successor_that_moved_on_is_counted_at_the_successor() {
    let next = settled(&held(true), final_put(10, 5, 9), None);
    assert_eq!((next.sum(), next.cells[&CELL]), (109, RowCell { seq: Seq(5), value: 9, total: 9, closed: true }));
    let next = settled(&spent(20, true, None), final_put(10, 5, 9), None);
    assert_eq!((next.sum(), next.spent[&CELL].epoch, next.spent[&CELL].total), (102, epoch(20), 9));
}

#[test]
fn a_value_settled_by_one_successor_before_a_carry_is_no_part_of_anothers_value_after_it() {
    // The incarnation had 12 when a reset took 7 of it. One successor has these 12; the other
    // carried 5 and added 3.
    let (before, after) = (final_put(10, 5, 12), carried_put((30, 8), 6, 15));
    let first = settled(&spent(10, false, None), before, None);
    assert_eq!(first.sum(), 105);
    let both = settled(&first, after, None);
    assert_eq!((both.sum(), both.cells[&CELL].value), (108, 8), "and the cell is as its writer said it");
    let alone = settled(&spent(10, false, None), after, None);
    assert_eq!((alone.sum(), alone.cells[&CELL].value), (108, 8));
    no_news(&alone, before, None);

    let ended = Snapshot { epoch: epoch(40), ..spent(10, false, None) };
    let both = settled(&settled(&ended, before, None), after, None);
    assert_eq!((both.sum(), both.spent[&CELL].total), (108, 15), "also if that epoch is over, too");
}

#[test]
fn an_expiry_at_one_successor_is_no_part_of_anothers_value_after_it() {
    // The incarnation had 14 when 7 of it expired with the row. The successor that knew dropped 7
    // and added 3; the other has only 5 of them.
    let row = spent(10, false, Some(25));
    let after = FinalCell { put: carried_put((30, 3), 7, 14 + 3), expires_at: None, expired_seq: Seq(6) };
    let knew = settled(&row, final_put(10, 5, 12), Some(25));
    assert_eq!((knew.sum(), settle_one(&knew, after).sum()), (100, 103));
    let unaware = settled(&row, final_put(10, 5, 12), None);
    assert_eq!((unaware.sum(), settle_one(&unaware, after).sum()), (105, 108), "what was counted is not taken back");
    let retired = spent(10, true, Some(25));
    assert_eq!(settle_one(&retired, after).sum(), 103, "nor does it come back if only the writer was retired");
    let none = settled(&knew, final_put(10, 6, 14), None);
    assert_eq!(
        none.sum(),
        102,
        "if the newest did not know, what the other let go of has expired, and the rest counts"
    );
}

#[test]
fn what_a_writer_carried_itself_counts_whatever_the_row_lost() {
    // 9 were kept when the epoch ended, and the store lost that. Another writer caught the row up,
    // which shows 7 as kept.
    let next = settled(&spent(10, false, None), carried_put((30, 2), 6, 9 + 2), None);
    assert_eq!(next.sum(), 102);
    // The same, but a successor from before the carry settled on the row that had lost the epoch.
    let old = Snapshot { epoch: epoch(10), ..held(false) };
    let next = settled(&settled(&old, final_put(10, 5, 12), None), carried_put((30, 5), 6, 7 + 5), None);
    assert_eq!((next.epoch, next.sum()), (epoch(30), 5));
}

#[test]
fn of_heirs_that_decided_one_lapse_differently_the_first_counts() {
    // One put both parts under the epoch that went on. For the other, under the same seq, the next
    // epoch had begun.
    for row in [spent(10, false, None), spent(10, false, Some(20)), spent(10, true, None)] {
        no_news(&row, final_put(20, 4, 2), None);
        no_news(&row, final_put(30, 4, 2), None);
    }
}

#[test]
fn nothing_to_count_does_not_bring_a_counter_back() {
    let gone = Snapshot { base: None, gone_at: Some(Millis(900)), ..spent(10, false, None) };
    let next = settled(&gone, final_put(10, 5, 7), None);
    assert_eq!((next.exists(), next.gone_at), (false, gone.gone_at));
    let next = settled(&gone, final_put(10, 5, 8), None);
    assert_eq!((next.exists(), next.sum()), (true, 1));
}

#[test]
fn a_row_that_lost_the_epoch_catches_up_first() {
    let old = Snapshot { epoch: epoch(5), ..held(false) };
    let last = carried_put((10, 9), 5, 7 + 9);
    let next = settled(&old, last, None);
    assert_eq!((next.epoch, next.sum()), (epoch(10), 9), "what it held was taken when the epoch began");
    let mut young = old;
    young.version.born_at = Millis(50);
    assert_eq!(settled(&young, last, None).sum(), 116, "or was put since the row that knew was forgotten");
    let unaware = carried_put((10, 9), 5, 9);
    assert_eq!(settled(&young, unaware, None).sum(), 109, "by a put of before the carry: it counts once");
}

#[test]
fn whatever_of_the_cell_is_still_under_way_counts_nothing() {
    let rows = [
        settled(&row(), final_put(30, 5, 9), None),
        settled(&held(false), final_put(30, 5, 9), None),
        settled(&spent(30, true, None), final_put(30, 5, 9), None),
        settled(&spent(10, false, None), final_put(10, 5, 9), None),
    ];
    for row in rows {
        // Also a cell that its writer had carried before it went back to an older state.
        for late in [final_put(10, 4, 7), final_put(10, 6, 11), final_put(30, 6, 2)] {
            let mut now = Some(row.clone());
            assert!(
                matches!(put(&mut now, &late, NOW), Verdict::Closed { .. } | Verdict::Older),
                "{late:?} on {row:?}"
            );
            assert_eq!(now.as_ref(), Some(&row));
        }
        let other = Put { cell: OTHER, ..final_put(30, 1, 1) };
        assert_eq!(
            judge(&row, &other, NOW),
            Verdict::Newest,
            "another cell of the writer is closed when it is settled or retired"
        );
    }
}

#[test]
fn a_sum_beyond_all_range_stays_there() {
    let next =
        settled(&Snapshot { base: Some(i128::MAX), ..spent(10, false, None) }, final_put(10, 5, i128::MAX), None);
    assert_eq!(next.sum(), i128::MAX);
}
