//! Tests the store's answers to swaps, and to puts after them.

use std::time::Duration;

use quipu_model::shared::snapshot::SWAP_IDS_MAX;
use quipu_model::shared::{
    Change, FetchedRow, FinalCell, NextRow, RowCell, RowVersion, Seq, Snapshot, SpentCell, SwapAttempt, SwapContext,
    SwapId, SwapOutcome, SwapVerdict, Verdict, plan_swap,
};
use quipu_model::{Epoch, ExpiryCondition, ExpiryTime, Millis, NodeId, Reply, Store};

use super::cells::{cell, make_put, name, put, writer};

const GRACE: Duration = Duration::from_secs(3_600);

/// Reads, plans and swaps; returns the row before, the row after, and the reply.
async fn swap_change(store: &impl Store, at: &[u8], id: u128, change: Change) -> (FetchedRow, Snapshot, Reply) {
    let current = read_row(store, at).await;
    let by =
        SwapContext { id: SwapId(id), node: NodeId(7), grace: GRACE, registered: &quipu_model::shared::NO_WRITERS };
    let computed = plan_swap(&current, &by, &change).expect("changes of the suite are computed");
    if let NextRow::Row(next) = &computed.next {
        let verdict = store.swap(name(at), current.snapshot.version, Some(next)).await.expect("a store swaps");
        assert_eq!(verdict, SwapVerdict::Swapped, "{change:?} on the row that was seen");
    }
    (current, read_row(store, at).await.snapshot, computed.reply)
}

async fn read_row(store: &impl Store, at: &[u8]) -> FetchedRow {
    store.read(name(at)).await.expect("a store reads")
}

pub(super) async fn prove(store: &impl Store) {
    a_row_comes_back_as_it_was_swapped_in(store).await;
    a_swap_is_carried_out_on_the_very_row_that_was_seen(store).await;
    a_swap_sent_twice_is_carried_out_once_and_recognised(store).await;
    a_counter_without_a_row_is_swapped_in_once(store).await;
    a_put_of_an_ended_epoch_gets_the_value_kept_at_the_swap(store).await;
    a_retired_writer_gets_closed_before_and_after_the_fold(store).await;
    what_a_life_that_is_over_owes_is_settled_once(store).await;
    a_row_that_is_due_moves_first(store).await;
    a_forgotten_row_is_gone(store).await;
}

async fn a_row_comes_back_as_it_was_swapped_in(store: &impl Store) {
    let epoch = Epoch { millis: 1_700_000_000_123, node: NodeId(u64::MAX) };
    let spent = |value, closed, expired| SpentCell {
        epoch: Epoch { millis: 5, node: NodeId(9) },
        seq: Seq(u64::MAX / 2),
        value,
        total: value,
        closed,
        expired,
        at: Millis(1_700_000_000_000),
    };
    let full = Snapshot {
        version: RowVersion { born_at: Millis(1_600_000_000_000), swaps: 1, puts: 0 },
        epoch,
        base: Some(i128::from(i64::MIN) * 3),
        expires_at: Some(Millis(i64::MAX as u64)),
        gone_at: Some(Millis(1_650_000_000_000)),
        cells: [
            (
                cell(1),
                RowCell {
                    seq: Seq(3),
                    value: i128::from(i64::MAX) * 3,
                    total: i128::from(i64::MAX) * 3,
                    closed: false,
                },
            ),
            (cell(2), RowCell { seq: Seq(4), value: -1, total: -1, closed: true }),
        ]
        .into(),
        spent: [(cell(3), spent(-7, false, Some(Millis(77)))), (cell(4), spent(i128::from(i64::MAX) * 5, true, None))]
            .into(),
        swaps: vec![SwapId(u128::MAX)],
    };
    let empty = Snapshot { version: full.version, swaps: vec![SwapId(0)], ..Snapshot::default() };
    for (at, row) in [(&b"row:full"[..], full), (b"row:empty", empty)] {
        let verdict = store.swap(name(at), RowVersion::ABSENT, Some(&row)).await.expect("a store swaps");
        assert_eq!(verdict, SwapVerdict::Swapped);
        let back = read_row(store, at).await.snapshot;
        assert_eq!(
            (back.version.swaps, back.version.born_at),
            (1, row.version.born_at),
            "a row has its number and its birth"
        );
        assert_eq!(Snapshot { version: row.version, ..back }, row, "a row comes back as it was swapped in");
    }
}

async fn a_swap_is_carried_out_on_the_very_row_that_was_seen(store: &impl Store) {
    let at = b"very";
    put(store, at, make_put(1, Epoch::FIRST, 1, 5)).await;
    let current = read_row(store, at).await;
    let by = SwapContext { id: SwapId(1), node: NodeId(7), grace: GRACE, registered: &quipu_model::shared::NO_WRITERS };
    let NextRow::Row(next) = plan_swap(&current, &by, &Change::Reset).expect("it fits").next else {
        panic!("a reset swaps")
    };
    put(store, at, make_put(2, Epoch::FIRST, 1, 3)).await;
    let verdict = store.swap(name(at), current.snapshot.version, Some(&next)).await.expect("a store answers");
    assert_eq!(verdict, SwapVerdict::Moved, "a put came in between");
    assert_eq!(read_row(store, at).await.snapshot.sum(), 8, "a swap that was refused changed nothing");
    assert_eq!(SwapAttempt::new(&current, by.id).outcome(&read_row(store, at).await.snapshot), SwapOutcome::NotApplied);
    let (_, row, reply) = swap_change(store, at, 2, Change::Reset).await;
    assert_eq!((reply, row.sum()), (Reply::Integer(8), 0));
}

async fn a_swap_sent_twice_is_carried_out_once_and_recognised(store: &impl Store) {
    let at = b"twice";
    put(store, at, make_put(1, Epoch::FIRST, 1, 5)).await;
    let current = read_row(store, at).await;
    let attempt = SwapAttempt::new(&current, SwapId(1));
    assert_eq!(attempt.outcome(&current.snapshot), SwapOutcome::Pending);
    let by = SwapContext { id: SwapId(1), node: NodeId(7), grace: GRACE, registered: &quipu_model::shared::NO_WRITERS };
    let NextRow::Row(next) = plan_swap(&current, &by, &Change::Reset).expect("it fits").next else {
        panic!("a reset swaps")
    };
    for expected in [SwapVerdict::Swapped, SwapVerdict::Moved] {
        let verdict = store.swap(name(at), current.snapshot.version, Some(&next)).await.expect("a store answers");
        assert_eq!(verdict, expected, "the same swap, once and again");
    }
    for id in 2..=SWAP_IDS_MAX as u128 {
        assert_eq!(
            attempt.outcome(&read_row(store, at).await.snapshot),
            SwapOutcome::Swapped,
            "under {} others",
            id - 2
        );
        swap_change(store, at, id, Change::Reset).await;
    }
    assert_eq!(attempt.outcome(&read_row(store, at).await.snapshot), SwapOutcome::Swapped);
}

async fn a_counter_without_a_row_is_swapped_in_once(store: &impl Store) {
    let at = b"first";
    let (current, row, _) = swap_change(store, at, 1, set(4)).await;
    assert_eq!((current.snapshot.version, row.sum()), (RowVersion::ABSENT, 4));
    let verdict = store.swap(name(at), RowVersion::ABSENT, Some(&row)).await.expect("a store answers");
    assert_eq!(verdict, SwapVerdict::Moved, "there is a row now");
}

fn set(value: i64) -> Change {
    Change::Set { value, expiry: quipu_model::SetExpiry::Remove, reply_old: true }
}

async fn a_put_of_an_ended_epoch_gets_the_value_kept_at_the_swap(store: &impl Store) {
    let at = b"stale";
    put(store, at, make_put(1, Epoch::FIRST, 1, 5)).await;
    let (_, first, _) = swap_change(store, at, 1, Change::Reset).await;
    let stale = |row: &Snapshot, kept| Verdict::Stale { epoch: row.epoch, kept, expired: None };
    assert_eq!(put(store, at, make_put(1, Epoch::FIRST, 2, 8)).await, stale(&first, 5));
    assert_eq!(put(store, at, make_put(1, Epoch::FIRST, 1, 5)).await, stale(&first, 5), "the very put that was kept");
    assert_eq!(put(store, at, make_put(1, Epoch::FIRST, 0, 9)).await, Verdict::Older, "one before it: nothing is owed");
    assert_eq!(put(store, at, make_put(2, Epoch::FIRST, 1, 8)).await, stale(&first, 0), "it was not there");
    let (_, second, _) = swap_change(store, at, 2, Change::Reset).await;
    assert_eq!(put(store, at, make_put(1, Epoch::FIRST, 2, 8)).await, stale(&second, 5), "two swaps before it heard");
    assert_eq!(put(store, at, make_put(1, first.epoch, 3, 3)).await, stale(&second, 0), "it heard of the first");
    assert_eq!(put(store, at, make_put(1, second.epoch, 4, 3)).await, Verdict::Newest);
    assert_eq!(
        put(store, at, make_put(1, Epoch::FIRST, 2, 8)).await,
        Verdict::Older,
        "late, of a writer that moved on"
    );
    let behind = Epoch { millis: second.epoch.millis + 1_000_000, node: NodeId(1) };
    assert_eq!(put(store, at, make_put(1, behind, 5, 1)).await, Verdict::Behind { epoch: second.epoch });
    assert_eq!(read_row(store, at).await.snapshot.sum(), 3);
}

async fn a_retired_writer_gets_closed_before_and_after_the_fold(store: &impl Store) {
    let at = b"retire";
    put(store, at, make_put(1, Epoch::FIRST, 1, 5)).await;
    put(store, at, make_put(2, Epoch::FIRST, 1, 2)).await;
    let closed = Verdict::Closed { seq: Seq(1), value: 5 };
    for (id, step) in [Change::Close(writer(1)), Change::Fold(writer(1))].into_iter().enumerate() {
        let (_, row, reply) = swap_change(store, at, id as u128, step).await;
        assert_eq!((reply, row.sum()), (Reply::Integer(1), 7), "{step:?}");
        assert_eq!(put(store, at, make_put(1, Epoch::FIRST, 2, 9)).await, closed, "after {step:?}");
    }
    let (_, row, _) = swap_change(store, at, 3, Change::Reset).await;
    assert_eq!(put(store, at, make_put(1, Epoch::FIRST, 2, 9)).await, closed, "closed comes before stale");
    let later = Verdict::Closed { seq: Seq(1), value: 0 };
    assert_eq!(put(store, at, make_put(1, row.epoch, 3, 4)).await, later, "and for good");
}

async fn what_a_life_that_is_over_owes_is_settled_once(store: &impl Store) {
    let at = b"late";
    let late = |epoch, seq, value| {
        Change::Late(FinalCell { put: make_put(1, epoch, seq, value), expires_at: None, expired_seq: Seq(0) })
    };
    put(store, at, make_put(1, Epoch::FIRST, 1, 5)).await;
    let (_, row, reply) = swap_change(store, at, 1, late(Epoch::FIRST, 2, 7)).await;
    assert_eq!((reply, row.sum()), (Reply::Integer(1), 7), "in the place of what the row had");
    assert_eq!(put(store, at, make_put(1, Epoch::FIRST, 3, 9)).await, Verdict::Closed { seq: Seq(2), value: 7 });
    swap_change(store, at, 2, Change::Reset).await;
    for (id, news) in [(3, 1), (4, 0)] {
        let (_, row, reply) = swap_change(store, at, id, late(Epoch::FIRST, 4, 10)).await;
        assert_eq!(
            (reply, row.sum()),
            (Reply::Integer(news), 3),
            "what the reset did not take, by any number of heirs"
        );
    }
    let (_, row, reply) = swap_change(store, at, 5, late(Epoch::FIRST, 3, 9)).await;
    assert_eq!((reply, row.sum(), row.cells.len()), (Reply::Integer(0), 3, 0), "an older one is no news");
    assert_eq!(put(store, at, make_put(1, row.epoch, 5, 1)).await, Verdict::Closed { seq: Seq(4), value: 0 });
}

async fn a_row_that_is_due_moves_first(store: &impl Store) {
    let at = b"due";
    put(store, at, make_put(1, Epoch::FIRST, 1, 5)).await;
    let hour = Change::Expire { when: ExpiryTime::In(3_600_000), condition: ExpiryCondition::Always };
    let (_, row, _) = swap_change(store, at, 1, hour).await;
    assert_eq!((row.epoch, row.sum()), (Epoch::FIRST, 5), "an expiry keeps the epoch");
    assert_eq!(put(store, at, make_put(1, Epoch::FIRST, 2, 6)).await, Verdict::Newest);
    // A row that is due already: no test waits for a clock.
    let current = read_row(store, at).await;
    let due = Snapshot {
        expires_at: Some(current.at),
        version: RowVersion { swaps: current.snapshot.version.swaps + 1, ..current.snapshot.version },
        swaps: vec![SwapId(2)],
        ..current.snapshot.clone()
    };
    store.swap(name(at), current.snapshot.version, Some(&due)).await.expect("a store swaps");
    assert_eq!(put(store, at, make_put(1, Epoch::FIRST, 3, 7)).await, Verdict::Behind { epoch: Epoch::FIRST });
    let (_, row, _) = swap_change(store, at, 3, Change::Lapse).await;
    assert_eq!((row.epoch, row.exists()), (Epoch::FIRST.expired(current.at), false));
    let stale = Verdict::Stale { epoch: row.epoch, kept: 6, expired: Some(current.at) };
    assert_eq!(put(store, at, make_put(1, Epoch::FIRST, 3, 7)).await, stale);
}

async fn a_forgotten_row_is_gone(store: &impl Store) {
    let at = b"forgotten";
    put(store, at, make_put(1, Epoch::FIRST, 1, 5)).await;
    let (_, row, reply) = swap_change(store, at, 1, Change::Take).await;
    assert_eq!((reply, row.exists()), (Reply::Value(Some(5)), false));
    assert_ne!(row, Snapshot::default(), "a deleted row stays");
    let stay = store.swap(name(at), RowVersion::ABSENT, None).await.expect("a store answers");
    assert_eq!(stay, SwapVerdict::Moved, "only the row that was seen is removed");
    let gone = store.swap(name(at), row.version, None).await.expect("a store answers");
    assert_eq!(gone, SwapVerdict::Swapped);
    assert_eq!(read_row(store, at).await.snapshot, Snapshot::default());
}
