use super::*;
use crate::shared::{Held, Shard, Spent};
use crate::{Incarnation, NodeId, Writer};

const CELL: CellId = CellId { writer: Writer { node: NodeId(1), incarnation: Incarnation(1) }, shard: Shard(0) };
const NOW: Millis = Millis(1_000);

fn epoch(millis: u64) -> Epoch {
    Epoch { millis, node: NodeId(0) }
}

/// A cell under the first epoch of its life.
fn own(epoch_millis: u64, value: i128) -> Own {
    lived(epoch_millis, value, value)
}

/// The same, after its last lapse was confirmed.
fn let_go(own: Own) -> Told {
    Told::Open(Own { let_go: Seq(2), ..own })
}

/// A cell of a life that has counted under other epochs before.
fn lived(epoch_millis: u64, value: i128, total: i128) -> Own {
    Own { epoch: epoch(epoch_millis), value, total, said: true, ..Own::default() }
}

fn knowing(expires_at: u64) -> Own {
    Own { expires_at: Some(Millis(expires_at)), ..own(10, 5) }
}

fn put(own: &Own) -> Put {
    own.put(CELL, Seq(1)).unwrap()
}

fn row(millis: u64) -> Snapshot {
    Snapshot { epoch: epoch(millis), base: Some(0), ..Snapshot::default() }
}

fn with_spent(mut row: Snapshot, value: i128, expired: Option<u64>) -> Snapshot {
    let expired = expired.map(Millis);
    row.spent
        .insert(CELL, Spent { epoch: epoch(10), seq: Seq(1), value, total: value, closed: false, expired, at: NOW });
    row
}

fn stale(kept: i128, expired: Option<u64>) -> Verdict {
    Verdict::Stale { epoch: epoch(30), kept, expired: expired.map(Millis) }
}

#[test]
fn a_writer_told_stale_opens_with_what_the_store_did_not_keep() {
    let cell = own(10, 12);
    assert_eq!(cell.told(&put(&cell), &stale(7, None), Seq(1)), Told::Open(lived(30, 5, 12)));
    let Told::Open(nothing) = cell.told(&put(&cell), &stale(12, None), Seq(1)) else { panic!("it moves on") };
    assert_eq!((nothing.epoch, nothing.put(CELL, Seq(2))), (epoch(30), None), "nothing to say, so no cell is made");
}

#[test]
fn a_verdict_is_acted_on_once() {
    let cell = own(10, 12);
    let asked = put(&cell);
    let Told::Open(next) = cell.told(&asked, &stale(7, None), Seq(1)) else { panic!("it moves on") };
    assert_eq!(next.told(&asked, &stale(7, None), Seq(1)), Told::Stay, "told again of the same put");
}

#[test]
fn a_writer_told_stale_twice_carries_what_is_left_each_time() {
    let cell = own(10, 12);
    let Told::Open(second) = cell.told(&put(&cell), &stale(7, None), Seq(1)) else { panic!("it moves on") };
    let second = second.added(4).unwrap();
    let again = Verdict::Stale { epoch: epoch(40), kept: 6, expired: None };
    assert_eq!(second.told(&put(&second), &again, Seq(1)), Told::Open(lived(40, 3, 16)));
}

#[test]
fn the_life_of_a_writer_told_closed_is_over() {
    let cell = own(10, 12);
    assert_eq!(cell.told(&put(&cell), &Verdict::Closed { seq: Seq(1), value: 7 }, Seq(1)), Told::Over);
    let overtaken = Verdict::Closed { seq: Seq(9), value: 7 };
    assert_eq!(
        cell.told(&put(&cell), &overtaken, Seq(1)),
        Told::Over,
        "by a put of its own, perhaps: that says nothing of the newest"
    );
}

#[test]
fn a_cell_that_the_store_knows_better_is_outdone() {
    let cell = own(10, 12);
    let held = |closed| {
        let mut row = row(10);
        row.cells.insert(CELL, Held { seq: Seq(5), value: 4, total: 4, closed });
        row
    };
    for (closed, known) in [(false, Told::Stay), (true, Told::Over)] {
        assert_eq!(cell.shown(CELL, Seq(4), &held(closed), NOW), Told::Outdone);
        assert_eq!(cell.shown(CELL, Seq(5), &held(closed), NOW), known, "what was added since has no seq yet");
    }
    let mut ended = with_spent(row(30), 4, None);
    assert_eq!(cell.shown(CELL, Seq(0), &ended, NOW), Told::Outdone, "never less than nothing is carried");
    assert_eq!(cell.shown(CELL, Seq(1), &ended, NOW), Told::Open(lived(30, 8, 12)));
    assert_eq!(
        own(5, 12).shown(CELL, Seq(1), &ended, NOW),
        Told::Outdone,
        "its writer was under a later epoch already"
    );
    ended.cells.insert(CELL, Held { seq: Seq(2), value: 1, total: 5, closed: false });
    assert_eq!(cell.shown(CELL, Seq(1), &ended, NOW), Told::Outdone, "or is under one now");
}

#[test]
fn adds_made_before_an_expiry_expire_if_the_node_knew_and_carry_if_not() {
    let knew = knowing(30);
    let Told::Open(next) = knew.told(&put(&knew), &stale(2, Some(30)), Seq(1)) else { panic!("it moves on") };
    assert_eq!((next.epoch, next.value, next.total), (epoch(30), 0, 5), "what the store kept is all that counts");
    assert_eq!(next.let_go, Seq(2), "and what an heir from before counts is no part of what it adds");
    let other = knowing(29);
    assert_eq!(other.told(&put(&other), &stale(2, Some(30)), Seq(1)), Told::Open(lived(30, 3, 5)));
    let unaware = own(10, 5);
    assert_eq!(unaware.told(&put(&unaware), &stale(2, Some(30)), Seq(1)), Told::Open(lived(30, 3, 5)));
}

#[test]
fn a_cell_lapses_by_the_nodes_clock_and_waits_for_the_store() {
    assert_eq!(knowing(500).lapse(Millis(499), Seq(2)), knowing(500));
    let lapsed = knowing(500).lapse(Millis(500), Seq(2)).added(2).unwrap();
    assert_eq!((lapsed.epoch, lapsed.value, lapsed.total), (epoch(500), 2, 7), "nothing has expired yet");
    assert_eq!(lapsed.put(CELL, Seq(2)), None, "not put before the row shows the epoch");
    assert_eq!(lapsed.lapse(Millis(9_999), Seq(3)), lapsed);

    let due = Snapshot { expires_at: Some(Millis(500)), ..row(10) };
    assert_eq!(lapsed.shown(CELL, Seq(1), &due, Millis(499)), Told::Stay, "the store's clock is behind");
    assert_eq!(lapsed.shown(CELL, Seq(1), &due, Millis(500)), Told::Move);
    assert_eq!(lapsed.shown(CELL, Seq(1), &row(500), NOW), let_go(lived(500, 2, 7)), "5 have expired");
    let later = with_spent(row(700), 3, Some(500));
    assert_eq!(lapsed.shown(CELL, Seq(1), &later, NOW), let_go(lived(500, 2, 7)), "or only 2: 3 were kept");
    assert_eq!(
        lived(500, 2, 7).shown(CELL, Seq(1), &later, NOW),
        Told::Open(lived(700, 2, 7)),
        "and then what is carried"
    );
}

#[test]
fn a_lapse_that_the_store_contradicts_loses_nothing() {
    let lapsed = knowing(500).lapse(Millis(500), Seq(2)).added(2).unwrap();
    assert_eq!(lapsed.shown(CELL, Seq(1), &row(10), NOW), Told::Open(own(10, 7)), "the expiry was taken back");
    for millis in [20, 700] {
        let ended = with_spent(row(millis), 3, None);
        assert_eq!(lapsed.shown(CELL, Seq(1), &ended, NOW), Told::Open(own(10, 7)), "it was set before its time");
        assert_eq!(own(10, 7).shown(CELL, Seq(1), &ended, NOW), Told::Open(lived(millis, 4, 7)));
    }
    let mut closed = row(10);
    closed.cells.insert(CELL, Held { seq: Seq(1), value: 4, total: 4, closed: true });
    assert_eq!(lapsed.shown(CELL, Seq(1), &closed, NOW), Told::Open(own(10, 7)), "for a life that is over too");
    assert_eq!(own(10, 7).shown(CELL, Seq(1), &closed, NOW), Told::Over);
}

#[test]
fn a_lapse_that_another_heir_has_decided_is_outdone() {
    let lapsed = knowing(500).lapse(Millis(500), Seq(2)).added(2).unwrap();
    let called_off = with_spent(row(500), 7, Some(500));
    assert_eq!(lapsed.shown(CELL, Seq(0), &called_off, NOW), Told::Outdone, "all of it was put, and has expired");
    let mut confirmed = row(500);
    confirmed.cells.insert(CELL, Held { seq: Seq(2), value: 2, total: 2, closed: false });
    assert_eq!(lapsed.shown(CELL, Seq(1), &confirmed, NOW), Told::Outdone);
}

#[test]
fn a_lapse_that_another_heir_found_confirmed_is_confirmed() {
    // 3 were kept of 5, and the other knew of one add less since.
    let lapsed = knowing(500).lapse(Millis(500), Seq(2)).added(2).unwrap().added(1).unwrap();
    let (value, total) = (2, 5 + 2);
    let mut counts = with_spent(row(500), 3, Some(500));
    counts.cells.insert(CELL, Held { seq: Seq(2), value, total, closed: true });
    let spent = Spent { epoch: epoch(500), seq: Seq(2), value, total, closed: true, expired: None, at: NOW };
    let [folded, ended] = [500, 700].map(|millis| Snapshot { spent: [(CELL, spent)].into(), ..row(millis) });
    for row in [counts, folded, ended] {
        assert_eq!(lapsed.shown(CELL, Seq(3), &row, NOW), let_go(lived(500, 3, 5 + 3)), "{row:?}");
    }
}

#[test]
fn a_row_that_lost_the_epoch_of_a_lapse_moves_first() {
    let lapsed = knowing(500).lapse(Millis(500), Seq(2)).added(2).unwrap();
    assert_eq!(lapsed.shown(CELL, Seq(1), &row(5), NOW), Told::Move);
}

#[test]
fn what_a_row_that_was_made_anew_counts_from_before_is_not_counted_again() {
    // Told that 2 of 12 were kept when epoch 10 ended, the writer carried 10; then the row was lost, and a put of before, of 9, made it anew.
    let (carried, mut row) = (lived(30, 10, 12), with_spent(row(30), 9, None));
    assert_eq!(carried.shown(CELL, Seq(3), &row, NOW), Told::Stay, "if the row is older, those were taken");
    row.version.born_at = Millis(40);
    assert_eq!(carried.shown(CELL, Seq(3), &row, NOW), Told::Open(lived(30, 3, 12)));
    assert_eq!(lived(30, 3, 12).shown(CELL, Seq(4), &row, NOW), Told::Stay, "once");
    row.cells.insert(CELL, Held { seq: Seq(3), value: 10, total: 12, closed: false });
    assert_eq!(carried.shown(CELL, Seq(3), &row, NOW), Told::Open(lived(30, 3, 12)), "also if it was put before");
    assert_eq!(lived(30, 4, 4).shown(CELL, Seq(3), &row, NOW), Told::Open(lived(30, 0, 4)), "never less than nothing");
}

#[test]
fn an_add_that_no_running_value_can_hold_is_refused() {
    assert_eq!(own(0, i128::MAX).added(1), None);
    assert_eq!(own(0, i128::from(i64::MAX)).added(1).unwrap().value, i128::from(i64::MAX) + 1);
}
