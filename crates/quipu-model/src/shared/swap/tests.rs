use super::*;
use crate::Incarnation;
use crate::shared::{CellId, Put, RowCell, Seq, Shard, Verdict, put};

const GRACE: Duration = Duration::from_secs(100);
const WRITER: Writer = Writer { node: NodeId(1), incarnation: Incarnation(1) };
const CELL: CellId = CellId { writer: WRITER, shard: Shard(0) };

fn context(id: u128) -> SwapContext<'static> {
    SwapContext { id: SwapId(id), node: NodeId(9), grace: GRACE, registered: &crate::shared::NO_WRITERS }
}

fn fetched(value: i128, at: u64) -> FetchedRow {
    let cells = [(CELL, RowCell { seq: Seq(1), value, total: value, closed: false })].into();
    FetchedRow {
        snapshot: Snapshot { cells, version: RowVersion { puts: 1, ..RowVersion::ABSENT }, ..Snapshot::default() },
        at: Millis(at),
    }
}

fn row(plan: &SwapPlan) -> &Snapshot {
    match &plan.next {
        NextRow::Row(row) => row,
        other => panic!("a row, not {other:?}"),
    }
}

const GETSET: Change = Change::Set { value: 3, expiry: SetExpiry::Remove, reply_old: true };

#[test]
fn a_set_takes_what_the_row_held_and_remembers_it_per_cell() {
    let plan = plan_swap(&fetched(7, 50), &context(1), &GETSET).unwrap();
    assert_eq!(plan.reply, Reply::Value(Some(7)));
    let row = row(&plan);
    assert_eq!((row.sum(), row.epoch), (3, Epoch { millis: 50, node: NodeId(9) }));
    assert_eq!((row.spent[&CELL].value, row.spent[&CELL].epoch), (7, Epoch::FIRST));
    assert_eq!((row.version.swaps, row.swaps.as_slice()), (1, [SwapId(1)].as_slice()));
}

#[test]
fn an_expiry_keeps_the_epoch_and_its_cells() {
    let change = Change::Expire { when: ExpiryTime::In(10), condition: ExpiryCondition::Always };
    let plan = plan_swap(&fetched(7, 50), &context(1), &change).unwrap();
    assert_eq!(plan.reply, Reply::Integer(1));
    assert_eq!((row(&plan).epoch, row(&plan).sum()), (Epoch::FIRST, 7));
    assert_eq!(row(&plan).expires_at, Some(Millis(60)));

    let later = FetchedRow { snapshot: row(&plan).clone(), at: Millis(59) };
    let persisted = plan_swap(&later, &context(2), &Change::Persist).unwrap();
    assert_eq!((persisted.reply.clone(), row(&persisted).expires_at), (Reply::Integer(1), None));
    let none = Change::Expire { when: ExpiryTime::In(1), condition: ExpiryCondition::IfNone };
    assert_eq!(
        plan_swap(&later, &context(2), &none).unwrap(),
        SwapPlan { next: NextRow::Unchanged, reply: Reply::Integer(0) }
    );
}

#[test]
fn an_expiry_in_the_past_deletes_at_once() {
    let change = Change::Expire { when: ExpiryTime::In(-1), condition: ExpiryCondition::Always };
    let plan = plan_swap(&fetched(7, 50), &context(1), &change).unwrap();
    assert!(!row(&plan).exists());
    assert_eq!((plan.reply.clone(), row(&plan).epoch), (Reply::Integer(1), Epoch::FIRST.expired(Millis(49))));
}

#[test]
fn whatever_is_asked_of_a_row_that_is_due_finds_it_expired() {
    let mut due = fetched(7, 50);
    due.snapshot.expires_at = Some(Millis(40));
    let set = plan_swap(&due, &context(1), &GETSET).unwrap();
    assert_eq!((set.reply.clone(), row(&set).sum()), (Reply::Value(None), 3));
    assert_eq!(row(&set).spent[&CELL].expired, Some(Millis(40)));
    for change in [Change::Reset, Change::Delete, Change::Persist, Change::Lapse] {
        let plan = plan_swap(&due, &context(1), &change).unwrap();
        assert_eq!((row(&plan).exists(), row(&plan).epoch), (false, Epoch::FIRST.expired(Millis(40))), "{change:?}");
    }
    assert_eq!(plan_swap(&fetched(7, 50), &context(1), &Change::Lapse).unwrap().next, NextRow::Unchanged);
}

#[test]
fn a_reply_that_does_not_fit_is_refused_and_what_replies_nothing_is_not() {
    let wide = fetched(i128::from(i64::MAX) + 1, 50);
    for change in [GETSET, Change::Reset, Change::Take] {
        assert!(matches!(plan_swap(&wide, &context(1), &change), Err(SwapError::TooWide(_))), "{change:?}");
    }
    let plain = Change::Set { value: 1, expiry: SetExpiry::Remove, reply_old: false };
    assert_eq!(row(&plan_swap(&wide, &context(1), &plain).unwrap()).sum(), 1);
    assert_eq!(plan_swap(&wide, &context(1), &Change::Delete).unwrap().reply, Reply::Integer(1));
}

#[test]
fn an_expiry_outside_time_is_refused() {
    let change = Change::Set { value: 1, expiry: SetExpiry::At(ExpiryTime::In(i64::MAX)), reply_old: false };
    assert_eq!(plan_swap(&fetched(7, 50), &context(1), &change), Err(SwapError::ExpireTime));
}

#[test]
fn what_is_already_so_swaps_nothing() {
    let nothing = FetchedRow { at: Millis(50), ..FetchedRow::default() };
    for (change, reply) in [
        (Change::Delete, Reply::Integer(0)),
        (Change::Reset, Reply::Integer(0)),
        (Change::Take, Reply::Value(None)),
        (Change::Persist, Reply::Integer(0)),
        (Change::Forget, Reply::Integer(0)),
        (Change::ReadAndExpire(Expiry::At(ExpiryTime::In(5))), Reply::Value(None)),
    ] {
        assert_eq!(
            plan_swap(&nothing, &context(1), &change).unwrap(),
            SwapPlan { next: NextRow::Unchanged, reply },
            "{change:?}"
        );
    }
}

#[test]
fn a_row_that_a_swap_makes_knows_when_it_was_made_and_keeps_it() {
    let made = plan_swap(&FetchedRow { at: Millis(50), ..FetchedRow::default() }, &context(1), &GETSET).unwrap();
    let later = FetchedRow { snapshot: row(&made).clone(), at: Millis(70) };
    let next = plan_swap(&later, &context(2), &Change::Reset).unwrap();
    assert_eq!((row(&made).version.born_at, row(&next).version.born_at), (Millis(50), Millis(50)));
}

#[test]
fn a_deleted_row_stays_for_grace_and_no_longer() {
    let deleted = row(&plan_swap(&fetched(7, 50), &context(1), &Change::Delete).unwrap()).clone();
    let at = |millis| FetchedRow { snapshot: deleted.clone(), at: Millis(millis) };
    let grace = GRACE.as_millis() as u64;
    assert_eq!(plan_swap(&at(50 + grace - 1), &context(2), &Change::Forget).unwrap().next, NextRow::Unchanged);
    assert_eq!(plan_swap(&at(50 + grace), &context(2), &Change::Forget).unwrap().next, NextRow::Removed);

    let mut revived = Some(deleted);
    let cell_put = Put { cell: CELL, epoch: revived.as_ref().unwrap().epoch, seq: Seq(2), value: 1, total: 1 };
    assert_eq!(put::put(&mut revived, &cell_put, Millis(60)), Verdict::Newest);
    let revived = FetchedRow { snapshot: revived.unwrap(), at: Millis(50 + grace) };
    assert_eq!(plan_swap(&revived, &context(2), &Change::Forget).unwrap().next, NextRow::Unchanged);
}

#[test]
fn what_was_kept_of_a_cell_is_remembered_through_later_swaps_for_grace() {
    let mut now = fetched(7, 50);
    for (id, at) in [(1, 50), (2, 60), (3, 70)] {
        now.at = Millis(at);
        now.snapshot = row(&plan_swap(&now, &context(id), &Change::Reset).unwrap()).clone();
    }
    let cell_put = Put { cell: CELL, epoch: Epoch::FIRST, seq: Seq(9), value: 12, total: 12 };
    let stale = Verdict::Stale { epoch: now.snapshot.epoch, kept: 7, expired: None };
    assert_eq!(put::judge(&now.snapshot, &cell_put, now.at), stale, "two swaps before the writer heard of the first");
    now.at = Millis(50 + GRACE.as_millis() as u64);
    let pruned = plan_swap(&now, &context(4), &Change::Reset).unwrap();
    assert!(row(&pruned).spent.is_empty());
}

#[test]
fn what_was_kept_of_a_registered_writer_is_remembered_however_long_it_is_away() {
    let deleted = row(&plan_swap(&fetched(7, 50), &context(1), &Change::Delete).unwrap()).clone();
    let later = FetchedRow { snapshot: deleted, at: Millis(50 + 10 * GRACE.as_millis() as u64) };
    let (known, other) = (BTreeSet::from([WRITER]), Writer { node: NodeId(2), ..WRITER });
    let knowing_context = SwapContext { registered: &known, ..context(2) };
    assert_eq!(
        plan_swap(&later, &knowing_context, &Change::Forget).unwrap().next,
        NextRow::Unchanged,
        "nor is the row forgotten"
    );
    let set = plan_swap(&later, &knowing_context, &GETSET).unwrap();
    assert_eq!(row(&set).spent[&CELL].value, 7);

    let others = BTreeSet::from([other]);
    let unaware_context = SwapContext { registered: &others, ..context(2) };
    assert_eq!(plan_swap(&later, &unaware_context, &Change::Forget).unwrap().next, NextRow::Removed);
    assert!(row(&plan_swap(&later, &unaware_context, &GETSET).unwrap()).spent.is_empty());
}

#[test]
fn a_row_that_lost_an_epoch_catches_up_and_counts_nothing_twice() {
    let later = Epoch { millis: 40, node: NodeId(2) };
    let plan = plan_swap(&fetched(7, 50), &context(1), &Change::CatchUp(later)).unwrap();
    assert_eq!((row(&plan).epoch, row(&plan).sum()), (later, 0));
    let ahead = FetchedRow { snapshot: row(&plan).clone(), at: Millis(60) };
    assert_eq!(plan_swap(&ahead, &context(2), &Change::CatchUp(later)).unwrap().next, NextRow::Unchanged);
}

#[test]
fn a_row_made_anew_after_it_was_forgotten_catches_up_and_keeps_what_it_holds() {
    let mut made = fetched(7, 50);
    made.snapshot.version.born_at = Millis(45);
    let forgotten = Epoch { millis: 40, node: NodeId(2) };
    let plan = plan_swap(&made, &context(1), &Change::CatchUp(forgotten)).unwrap();
    assert_eq!((row(&plan).epoch, row(&plan).sum()), (forgotten, 7));
    assert_eq!(row(&plan).spent[&CELL].value, 7, "and its writer learns that it was kept");
}
