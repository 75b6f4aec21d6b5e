use super::*;
use crate::shared::{Held, Shard, Spent};
use crate::{Incarnation, NodeId, Writer};

const CELL: CellId = CellId { writer: Writer { node: NodeId(1), incarnation: Incarnation(1) }, shard: Shard(0) };
const NOW: Millis = Millis(1_000);

fn epoch(millis: u64) -> Epoch {
    Epoch { millis, node: NodeId(0) }
}

fn own(epoch_millis: u64, value: i128) -> Own {
    Own { epoch: epoch(epoch_millis), value, said: true, ..Own::default() }
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
    row.spent.insert(CELL, Spent { epoch: epoch(10), seq: Seq(1), value, closed: false, expired, at: NOW });
    row
}

fn stale(kept: i128, expired: Option<u64>) -> Verdict {
    Verdict::Stale { epoch: epoch(30), kept, expired: expired.map(Millis) }
}

#[test]
fn a_writer_told_stale_opens_with_what_the_store_did_not_keep() {
    let cell = own(10, 12);
    assert_eq!(cell.told(&put(&cell), &stale(7, None)), Told::Open(own(30, 5)));
    let Told::Open(nothing) = cell.told(&put(&cell), &stale(12, None)) else { panic!("it moves on") };
    assert_eq!((nothing.epoch, nothing.put(CELL, Seq(2))), (epoch(30), None), "nothing to say, so no cell is made");
}

#[test]
fn a_verdict_is_acted_on_once() {
    let cell = own(10, 12);
    let asked = put(&cell);
    let Told::Open(next) = cell.told(&asked, &stale(7, None)) else { panic!("it moves on") };
    assert_eq!(next.told(&asked, &stale(7, None)), Told::Stay, "told again of the same put");
}

#[test]
fn a_writer_told_stale_twice_carries_what_is_left_each_time() {
    let cell = own(10, 12);
    let Told::Open(second) = cell.told(&put(&cell), &stale(7, None)) else { panic!("it moves on") };
    let second = second.added(4).unwrap();
    let again = Verdict::Stale { epoch: epoch(40), kept: 6, expired: None };
    assert_eq!(second.told(&put(&second), &again), Told::Open(own(40, 3)));
}

#[test]
fn a_writer_told_closed_leaves_the_rest_to_its_next_incarnation() {
    let cell = own(10, 12);
    let closed = Verdict::Closed { seq: Seq(1), value: 7 };
    let Told::Reborn(rest) = cell.told(&put(&cell), &closed) else { panic!("it is reborn") };
    assert_eq!(rest, own(10, 5));
    assert_eq!(own(30, 2).join(rest), own(30, 7));
    assert_eq!(
        knowing(500).join(own(30, 2)).expires_at,
        None,
        "what is of a later epoch does not expire with this one"
    );
}

#[test]
fn adds_made_before_an_expiry_expire_if_the_node_knew_and_carry_if_not() {
    let knew = knowing(30);
    let Told::Open(next) = knew.told(&put(&knew), &stale(2, Some(30))) else { panic!("it moves on") };
    assert_eq!((next.epoch, next.value), (epoch(30), 0));
    let other = knowing(29);
    assert_eq!(other.told(&put(&other), &stale(2, Some(30))), Told::Open(own(30, 3)));
    let unaware = own(10, 5);
    assert_eq!(unaware.told(&put(&unaware), &stale(2, Some(30))), Told::Open(own(30, 3)));
}

#[test]
fn a_cell_lapses_by_the_nodes_clock_and_waits_for_the_store() {
    assert_eq!(knowing(500).lapse(Millis(499)), knowing(500));
    let lapsed = knowing(500).lapse(Millis(500)).added(2).unwrap();
    assert_eq!((lapsed.epoch, lapsed.value), (epoch(500), 2));
    assert_eq!(lapsed.put(CELL, Seq(2)), None, "not put before the row shows the epoch");
    assert_eq!(lapsed.lapse(Millis(9_999)), lapsed);

    let due = Snapshot { expires_at: Some(Millis(500)), ..row(10) };
    assert_eq!(lapsed.shown(CELL, &due, Millis(499)), Told::Stay, "the store's clock is behind");
    assert_eq!(lapsed.shown(CELL, &due, Millis(500)), Told::Move);
    assert_eq!(lapsed.shown(CELL, &row(500), NOW), Told::Open(own(500, 2)));
    assert_eq!(lapsed.shown(CELL, &with_spent(row(700), 3, Some(500)), NOW), Told::Open(own(700, 2)));
}

#[test]
fn a_lapse_that_the_store_contradicts_loses_nothing() {
    let lapsed = knowing(500).lapse(Millis(500)).added(2).unwrap();
    assert_eq!(lapsed.shown(CELL, &row(10), NOW), Told::Open(own(10, 7)), "the expiry was taken back");
    let ended = with_spent(row(20), 3, None);
    assert_eq!(lapsed.shown(CELL, &ended, NOW), Told::Open(own(20, 4)), "it was set before its time");
    let ended = with_spent(row(700), 3, None);
    assert_eq!(lapsed.shown(CELL, &ended, NOW), Told::Open(own(700, 4)));
    let mut closed = row(10);
    closed.cells.insert(CELL, Held { seq: Seq(1), value: 4, closed: true });
    assert_eq!(lapsed.shown(CELL, &closed, NOW), Told::Reborn(own(10, 3)));
}

#[test]
fn an_add_that_no_running_value_can_hold_is_refused() {
    assert_eq!(own(0, i128::MAX).added(1), None);
    assert_eq!(own(0, i128::from(i64::MAX)).added(1).unwrap().value, i128::from(i64::MAX) + 1);
}
