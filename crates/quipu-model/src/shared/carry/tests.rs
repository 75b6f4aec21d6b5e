use super::*;
use crate::shared::{RowCell, Shard, SpentCell};
use crate::{Incarnation, NodeId, Writer};

const CELL: CellId = CellId { writer: Writer { node: NodeId(1), incarnation: Incarnation(1) }, shard: Shard(0) };
const NOW: Millis = Millis(1_000);

fn epoch(millis: u64) -> Epoch {
    Epoch { millis, node: NodeId(0) }
}

/// A cell under the first epoch of its incarnation.
fn own(epoch_millis: u64, value: i128) -> OwnValue {
    lived(epoch_millis, value, value)
}

/// The same, after its last expiry was confirmed.
fn expired_step(own: OwnValue) -> NextStep {
    NextStep::Continue(OwnValue { expired_seq: Seq(2), ..own })
}

/// A cell of an incarnation that has counted under earlier epochs.
fn lived(epoch_millis: u64, value: i128, total: i128) -> OwnValue {
    OwnValue { epoch: epoch(epoch_millis), value, total, has_value: true, ..OwnValue::default() }
}

fn knowing(expires_at: u64) -> OwnValue {
    OwnValue { expires_at: Some(Millis(expires_at)), ..own(10, 5) }
}

fn put(own: &OwnValue) -> Put {
    own.put(CELL, Seq(1)).unwrap()
}

fn row(millis: u64) -> Snapshot {
    Snapshot { epoch: epoch(millis), base: Some(0), ..Snapshot::default() }
}

fn with_spent(mut row: Snapshot, value: i128, expired: Option<u64>) -> Snapshot {
    let expired = expired.map(Millis);
    row.spent.insert(
        CELL,
        SpentCell { epoch: epoch(10), seq: Seq(1), value, total: value, closed: false, expired, at: NOW },
    );
    row
}

fn stale(kept: i128, expired: Option<u64>) -> Verdict {
    Verdict::Stale { epoch: epoch(30), kept, expired: expired.map(Millis) }
}

#[test]
fn a_stale_writer_opens_with_the_part_that_the_store_did_not_keep() {
    let cell = own(10, 12);
    assert_eq!(cell.on_verdict(&put(&cell), &stale(7, None), Seq(1)), NextStep::Continue(lived(30, 5, 12)));
    let NextStep::Continue(nothing) = cell.on_verdict(&put(&cell), &stale(12, None), Seq(1)) else {
        panic!("it moves on")
    };
    assert_eq!((nothing.epoch, nothing.put(CELL, Seq(2))), (epoch(30), None), "nothing to say, so no cell is made");
}

#[test]
fn a_verdict_is_acted_on_once() {
    let cell = own(10, 12);
    let asked = put(&cell);
    let NextStep::Continue(next) = cell.on_verdict(&asked, &stale(7, None), Seq(1)) else { panic!("it moves on") };
    assert_eq!(
        next.on_verdict(&asked, &stale(7, None), Seq(1)),
        NextStep::Keep,
        "the same verdict again, of the same put"
    );
}

#[test]
fn a_writer_stale_twice_carries_the_rest_each_time() {
    let cell = own(10, 12);
    let NextStep::Continue(second) = cell.on_verdict(&put(&cell), &stale(7, None), Seq(1)) else {
        panic!("it moves on")
    };
    let second = second.added(4).unwrap();
    let again = Verdict::Stale { epoch: epoch(40), kept: 6, expired: None };
    assert_eq!(second.on_verdict(&put(&second), &again, Seq(1)), NextStep::Continue(lived(40, 3, 16)));
}

#[test]
fn the_life_of_a_closed_writer_is_over() {
    let cell = own(10, 12);
    assert_eq!(cell.on_verdict(&put(&cell), &Verdict::Closed { seq: Seq(1), value: 7 }, Seq(1)), NextStep::Retired);
    let overtaken = Verdict::Closed { seq: Seq(9), value: 7 };
    assert_eq!(
        cell.on_verdict(&put(&cell), &overtaken, Seq(1)),
        NextStep::Retired,
        "by a put of its own, perhaps: that says nothing of the newest"
    );
}

#[test]
fn a_cell_older_than_the_store_is_superseded() {
    let cell = own(10, 12);
    let held = |closed| {
        let mut row = row(10);
        row.cells.insert(CELL, RowCell { seq: Seq(5), value: 4, total: 4, closed });
        row
    };
    for (closed, known) in [(false, NextStep::Keep), (true, NextStep::Retired)] {
        assert_eq!(cell.on_row(CELL, Seq(4), &held(closed), NOW), NextStep::Superseded);
        assert_eq!(cell.on_row(CELL, Seq(5), &held(closed), NOW), known, "what was added since has no seq yet");
    }
    let mut ended = with_spent(row(30), 4, None);
    assert_eq!(cell.on_row(CELL, Seq(0), &ended, NOW), NextStep::Superseded, "never less than nothing is carried");
    assert_eq!(cell.on_row(CELL, Seq(1), &ended, NOW), NextStep::Continue(lived(30, 8, 12)));
    assert_eq!(
        own(5, 12).on_row(CELL, Seq(1), &ended, NOW),
        NextStep::Superseded,
        "its writer was under a later epoch already"
    );
    ended.cells.insert(CELL, RowCell { seq: Seq(2), value: 1, total: 5, closed: false });
    assert_eq!(cell.on_row(CELL, Seq(1), &ended, NOW), NextStep::Superseded, "or is under one now");
}

#[test]
fn adds_made_before_an_expiry_expire_if_the_node_knew_and_carry_if_not() {
    let knew = knowing(30);
    let NextStep::Continue(next) = knew.on_verdict(&put(&knew), &stale(2, Some(30)), Seq(1)) else {
        panic!("it moves on")
    };
    assert_eq!((next.epoch, next.value, next.total), (epoch(30), 0, 5), "what the store kept is all that counts");
    assert_eq!(next.expired_seq, Seq(2), "and the value of an earlier successor is no part of what it adds");
    let other = knowing(29);
    assert_eq!(other.on_verdict(&put(&other), &stale(2, Some(30)), Seq(1)), NextStep::Continue(lived(30, 3, 5)));
    let unaware = own(10, 5);
    assert_eq!(unaware.on_verdict(&put(&unaware), &stale(2, Some(30)), Seq(1)), NextStep::Continue(lived(30, 3, 5)));
}

#[test]
fn a_cell_lapses_by_the_nodes_clock_and_waits_for_the_store() {
    assert_eq!(knowing(500).lapse(Millis(499), Seq(2)), knowing(500));
    let lapsed = knowing(500).lapse(Millis(500), Seq(2)).added(2).unwrap();
    assert_eq!((lapsed.epoch, lapsed.value, lapsed.total), (epoch(500), 2, 7), "nothing has expired yet");
    assert_eq!(lapsed.put(CELL, Seq(2)), None, "not put before the row shows the epoch");
    assert_eq!(lapsed.lapse(Millis(9_999), Seq(3)), lapsed);

    let due = Snapshot { expires_at: Some(Millis(500)), ..row(10) };
    assert_eq!(lapsed.on_row(CELL, Seq(1), &due, Millis(499)), NextStep::Keep, "the store's clock is behind");
    assert_eq!(lapsed.on_row(CELL, Seq(1), &due, Millis(500)), NextStep::Move);
    assert_eq!(lapsed.on_row(CELL, Seq(1), &row(500), NOW), expired_step(lived(500, 2, 7)), "5 have expired");
    let later = with_spent(row(700), 3, Some(500));
    assert_eq!(lapsed.on_row(CELL, Seq(1), &later, NOW), expired_step(lived(500, 2, 7)), "or only 2: 3 were kept");
    assert_eq!(
        lived(500, 2, 7).on_row(CELL, Seq(1), &later, NOW),
        NextStep::Continue(lived(700, 2, 7)),
        "and then what is carried"
    );
}

#[test]
fn a_lapse_that_the_store_contradicts_loses_nothing() {
    let lapsed = knowing(500).lapse(Millis(500), Seq(2)).added(2).unwrap();
    assert_eq!(lapsed.on_row(CELL, Seq(1), &row(10), NOW), NextStep::Continue(own(10, 7)), "the expiry was taken back");
    for millis in [20, 700] {
        let ended = with_spent(row(millis), 3, None);
        assert_eq!(
            lapsed.on_row(CELL, Seq(1), &ended, NOW),
            NextStep::Continue(own(10, 7)),
            "it was set before its time"
        );
        assert_eq!(own(10, 7).on_row(CELL, Seq(1), &ended, NOW), NextStep::Continue(lived(millis, 4, 7)));
    }
    let mut closed = row(10);
    closed.cells.insert(CELL, RowCell { seq: Seq(1), value: 4, total: 4, closed: true });
    assert_eq!(
        lapsed.on_row(CELL, Seq(1), &closed, NOW),
        NextStep::Continue(own(10, 7)),
        "for a life that is over too"
    );
    assert_eq!(own(10, 7).on_row(CELL, Seq(1), &closed, NOW), NextStep::Retired);
}

#[test]
fn a_lapse_that_another_successor_has_decided_is_superseded() {
    let lapsed = knowing(500).lapse(Millis(500), Seq(2)).added(2).unwrap();
    let called_off = with_spent(row(500), 7, Some(500));
    assert_eq!(
        lapsed.on_row(CELL, Seq(0), &called_off, NOW),
        NextStep::Superseded,
        "all of it was put, and has expired"
    );
    let mut confirmed = row(500);
    confirmed.cells.insert(CELL, RowCell { seq: Seq(2), value: 2, total: 2, closed: false });
    assert_eq!(lapsed.on_row(CELL, Seq(1), &confirmed, NOW), NextStep::Superseded);
}

#[test]
fn a_lapse_that_another_successor_found_confirmed_is_confirmed() {
    // 3 of 5 were kept, and the other successor knew one add less since.
    let lapsed = knowing(500).lapse(Millis(500), Seq(2)).added(2).unwrap().added(1).unwrap();
    let (value, total) = (2, 5 + 2);
    let mut counts = with_spent(row(500), 3, Some(500));
    counts.cells.insert(CELL, RowCell { seq: Seq(2), value, total, closed: true });
    let spent = SpentCell { epoch: epoch(500), seq: Seq(2), value, total, closed: true, expired: None, at: NOW };
    let [folded, ended] = [500, 700].map(|millis| Snapshot { spent: [(CELL, spent)].into(), ..row(millis) });
    for row in [counts, folded, ended] {
        assert_eq!(lapsed.on_row(CELL, Seq(3), &row, NOW), expired_step(lived(500, 3, 5 + 3)), "{row:?}");
    }
}

#[test]
fn a_row_that_lost_the_epoch_of_a_lapse_moves_first() {
    let lapsed = knowing(500).lapse(Millis(500), Seq(2)).added(2).unwrap();
    assert_eq!(lapsed.on_row(CELL, Seq(1), &row(5), NOW), NextStep::Move);
}

#[test]
fn what_a_row_that_was_made_anew_counts_from_before_is_not_counted_again() {
    // Epoch 10 ended with 2 of 12 kept, and the writer carried 10. Then the row was lost, and an
    // earlier put, of 9, made it anew.
    let (carried, mut row) = (lived(30, 10, 12), with_spent(row(30), 9, None));
    assert_eq!(carried.on_row(CELL, Seq(3), &row, NOW), NextStep::Keep, "if the row is older, those were taken");
    row.version.born_at = Millis(40);
    assert_eq!(carried.on_row(CELL, Seq(3), &row, NOW), NextStep::Continue(lived(30, 3, 12)));
    assert_eq!(lived(30, 3, 12).on_row(CELL, Seq(4), &row, NOW), NextStep::Keep, "once");
    row.cells.insert(CELL, RowCell { seq: Seq(3), value: 10, total: 12, closed: false });
    assert_eq!(
        carried.on_row(CELL, Seq(3), &row, NOW),
        NextStep::Continue(lived(30, 3, 12)),
        "also if it was put before"
    );
    assert_eq!(
        lived(30, 4, 4).on_row(CELL, Seq(3), &row, NOW),
        NextStep::Continue(lived(30, 0, 4)),
        "never less than nothing"
    );
}

#[test]
fn an_add_that_no_running_value_can_hold_is_refused() {
    assert_eq!(own(0, i128::MAX).added(1), None);
    assert_eq!(own(0, i128::from(i64::MAX)).added(1).unwrap().value, i128::from(i64::MAX) + 1);
}
