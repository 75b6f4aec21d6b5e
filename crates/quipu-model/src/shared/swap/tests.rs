use super::*;
use crate::Incarnation;
use crate::shared::{CellId, Held, Put, Seq, Shard, Verdict, put};

const GRACE: Duration = Duration::from_secs(100);
const WRITER: Writer = Writer { node: NodeId(1), incarnation: Incarnation(1) };
const CELL: CellId = CellId { writer: WRITER, shard: Shard(0) };

fn by(id: u128) -> By<'static> {
    By { id: SwapId(id), node: NodeId(9), grace: GRACE, registered: &crate::shared::NOBODY }
}

fn seen(value: i128, at: u64) -> Seen {
    let cells = [(CELL, Held { seq: Seq(1), value, total: value, closed: false })].into();
    Seen {
        snapshot: Snapshot { cells, version: Version { puts: 1, ..Version::ABSENT }, ..Snapshot::default() },
        at: Millis(at),
    }
}

fn row(computed: &Computed) -> &Snapshot {
    match &computed.next {
        Next::Row(row) => row,
        other => panic!("a row, not {other:?}"),
    }
}

const GETSET: Change = Change::Set { value: 3, expiry: SetExpiry::Remove, reply_old: true };

#[test]
fn a_set_takes_what_the_row_held_and_remembers_it_per_cell() {
    let computed = compute(&seen(7, 50), &by(1), &GETSET).unwrap();
    assert_eq!(computed.reply, Reply::Value(Some(7)));
    let row = row(&computed);
    assert_eq!((row.sum(), row.epoch), (3, Epoch { millis: 50, node: NodeId(9) }));
    assert_eq!((row.spent[&CELL].value, row.spent[&CELL].epoch), (7, Epoch::FIRST));
    assert_eq!((row.version.swaps, row.swaps.as_slice()), (1, [SwapId(1)].as_slice()));
}

#[test]
fn an_expiry_keeps_the_epoch_and_its_cells() {
    let change = Change::Expire { when: When::In(10), condition: ExpiryCondition::Always };
    let computed = compute(&seen(7, 50), &by(1), &change).unwrap();
    assert_eq!(computed.reply, Reply::Integer(1));
    assert_eq!((row(&computed).epoch, row(&computed).sum()), (Epoch::FIRST, 7));
    assert_eq!(row(&computed).expires_at, Some(Millis(60)));

    let later = Seen { snapshot: row(&computed).clone(), at: Millis(59) };
    let persisted = compute(&later, &by(2), &Change::Persist).unwrap();
    assert_eq!((persisted.reply.clone(), row(&persisted).expires_at), (Reply::Integer(1), None));
    let none = Change::Expire { when: When::In(1), condition: ExpiryCondition::IfNone };
    assert_eq!(compute(&later, &by(2), &none).unwrap(), Computed { next: Next::Same, reply: Reply::Integer(0) });
}

#[test]
fn an_expiry_in_the_past_deletes_at_once() {
    let change = Change::Expire { when: When::In(-1), condition: ExpiryCondition::Always };
    let computed = compute(&seen(7, 50), &by(1), &change).unwrap();
    assert!(!row(&computed).exists());
    assert_eq!((computed.reply.clone(), row(&computed).epoch), (Reply::Integer(1), Epoch::FIRST.expired(Millis(49))));
}

#[test]
fn whatever_is_asked_of_a_row_that_is_due_finds_it_expired() {
    let mut due = seen(7, 50);
    due.snapshot.expires_at = Some(Millis(40));
    let set = compute(&due, &by(1), &GETSET).unwrap();
    assert_eq!((set.reply.clone(), row(&set).sum()), (Reply::Value(None), 3));
    assert_eq!(row(&set).spent[&CELL].expired, Some(Millis(40)));
    for change in [Change::Reset, Change::Delete, Change::Persist, Change::Lapse] {
        let computed = compute(&due, &by(1), &change).unwrap();
        assert_eq!(
            (row(&computed).exists(), row(&computed).epoch),
            (false, Epoch::FIRST.expired(Millis(40))),
            "{change:?}"
        );
    }
    assert_eq!(compute(&seen(7, 50), &by(1), &Change::Lapse).unwrap().next, Next::Same);
}

#[test]
fn a_reply_that_does_not_fit_is_refused_and_what_replies_nothing_is_not() {
    let wide = seen(i128::from(i64::MAX) + 1, 50);
    for change in [GETSET, Change::Reset, Change::Take] {
        assert!(matches!(compute(&wide, &by(1), &change), Err(SwapRefused::TooWide(_))), "{change:?}");
    }
    let plain = Change::Set { value: 1, expiry: SetExpiry::Remove, reply_old: false };
    assert_eq!(row(&compute(&wide, &by(1), &plain).unwrap()).sum(), 1);
    assert_eq!(compute(&wide, &by(1), &Change::Delete).unwrap().reply, Reply::Integer(1));
}

#[test]
fn an_expiry_outside_time_is_refused() {
    let change = Change::Set { value: 1, expiry: SetExpiry::At(When::In(i64::MAX)), reply_old: false };
    assert_eq!(compute(&seen(7, 50), &by(1), &change), Err(SwapRefused::ExpireTime));
}

#[test]
fn what_is_already_so_swaps_nothing() {
    let nothing = Seen { at: Millis(50), ..Seen::default() };
    for (change, reply) in [
        (Change::Delete, Reply::Integer(0)),
        (Change::Reset, Reply::Integer(0)),
        (Change::Take, Reply::Value(None)),
        (Change::Persist, Reply::Integer(0)),
        (Change::Forget, Reply::Integer(0)),
        (Change::ReadAndExpire(Expiry::At(When::In(5))), Reply::Value(None)),
    ] {
        assert_eq!(compute(&nothing, &by(1), &change).unwrap(), Computed { next: Next::Same, reply }, "{change:?}");
    }
}

#[test]
fn a_row_that_a_swap_makes_knows_when_it_was_made_and_keeps_it() {
    let made = compute(&Seen { at: Millis(50), ..Seen::default() }, &by(1), &GETSET).unwrap();
    let later = Seen { snapshot: row(&made).clone(), at: Millis(70) };
    let next = compute(&later, &by(2), &Change::Reset).unwrap();
    assert_eq!((row(&made).version.born_at, row(&next).version.born_at), (Millis(50), Millis(50)));
}

#[test]
fn a_deleted_row_stays_for_grace_and_no_longer() {
    let deleted = row(&compute(&seen(7, 50), &by(1), &Change::Delete).unwrap()).clone();
    let at = |millis| Seen { snapshot: deleted.clone(), at: Millis(millis) };
    let grace = GRACE.as_millis() as u64;
    assert_eq!(compute(&at(50 + grace - 1), &by(2), &Change::Forget).unwrap().next, Next::Same);
    assert_eq!(compute(&at(50 + grace), &by(2), &Change::Forget).unwrap().next, Next::Gone);

    let mut revived = Some(deleted);
    let say = Put { cell: CELL, epoch: revived.as_ref().unwrap().epoch, seq: Seq(2), value: 1, total: 1 };
    assert_eq!(put::put(&mut revived, &say, Millis(60)), Verdict::Newest);
    let revived = Seen { snapshot: revived.unwrap(), at: Millis(50 + grace) };
    assert_eq!(compute(&revived, &by(2), &Change::Forget).unwrap().next, Next::Same);
}

#[test]
fn what_was_kept_of_a_cell_is_remembered_through_later_swaps_for_grace() {
    let mut now = seen(7, 50);
    for (id, at) in [(1, 50), (2, 60), (3, 70)] {
        now.at = Millis(at);
        now.snapshot = row(&compute(&now, &by(id), &Change::Reset).unwrap()).clone();
    }
    let say = Put { cell: CELL, epoch: Epoch::FIRST, seq: Seq(9), value: 12, total: 12 };
    let stale = Verdict::Stale { epoch: now.snapshot.epoch, kept: 7, expired: None };
    assert_eq!(put::judge(&now.snapshot, &say, now.at), stale, "two swaps before the writer heard of the first");
    now.at = Millis(50 + GRACE.as_millis() as u64);
    let pruned = compute(&now, &by(4), &Change::Reset).unwrap();
    assert!(row(&pruned).spent.is_empty());
}

#[test]
fn what_was_kept_of_a_registered_writer_is_remembered_however_long_it_is_away() {
    let deleted = row(&compute(&seen(7, 50), &by(1), &Change::Delete).unwrap()).clone();
    let later = Seen { snapshot: deleted, at: Millis(50 + 10 * GRACE.as_millis() as u64) };
    let (known, other) = (BTreeSet::from([WRITER]), Writer { node: NodeId(2), ..WRITER });
    let by_one_who_knows = By { registered: &known, ..by(2) };
    assert_eq!(
        compute(&later, &by_one_who_knows, &Change::Forget).unwrap().next,
        Next::Same,
        "nor is the row forgotten"
    );
    let set = compute(&later, &by_one_who_knows, &GETSET).unwrap();
    assert_eq!(row(&set).spent[&CELL].value, 7);

    let others = BTreeSet::from([other]);
    let by_one_who_does_not = By { registered: &others, ..by(2) };
    assert_eq!(compute(&later, &by_one_who_does_not, &Change::Forget).unwrap().next, Next::Gone);
    assert!(row(&compute(&later, &by_one_who_does_not, &GETSET).unwrap()).spent.is_empty());
}

#[test]
fn a_row_that_lost_an_epoch_catches_up_and_counts_nothing_twice() {
    let later = Epoch { millis: 40, node: NodeId(2) };
    let computed = compute(&seen(7, 50), &by(1), &Change::CatchUp(later)).unwrap();
    assert_eq!((row(&computed).epoch, row(&computed).sum()), (later, 0));
    let ahead = Seen { snapshot: row(&computed).clone(), at: Millis(60) };
    assert_eq!(compute(&ahead, &by(2), &Change::CatchUp(later)).unwrap().next, Next::Same);
}

#[test]
fn a_row_made_anew_after_it_was_forgotten_catches_up_and_keeps_what_it_holds() {
    let mut made = seen(7, 50);
    made.snapshot.version.born_at = Millis(45);
    let forgotten = Epoch { millis: 40, node: NodeId(2) };
    let computed = compute(&made, &by(1), &Change::CatchUp(forgotten)).unwrap();
    assert_eq!((row(&computed).epoch, row(&computed).sum()), (forgotten, 7));
    assert_eq!(row(&computed).spent[&CELL].value, 7, "and its writer is told that it was kept");
}
