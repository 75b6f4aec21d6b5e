use std::collections::BTreeSet;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::shared::put::put;
use crate::shared::{Change, NO_WRITERS, Put, Shard, SwapContext, Verdict, plan_swap};
use crate::{Incarnation, NodeId, SetExpiry};

const AT: u64 = 1_000_000;

/// Two stores with one counter, and four nodes: two count in each.
struct Stores {
    rows: [Option<Snapshot>; 2],
    /// Each node's last put: epoch, seq, running value, total.
    cells: [Put; 4],
    /// Writers that will not put again.
    over: BTreeSet<Writer>,
    at: u64,
    added: i128,
}

impl Stores {
    fn new() -> Stores {
        let cell = |node| CellId { writer: writer(node), shard: Shard(0) };
        let cells =
            [0, 1, 2, 3].map(|node| Put { cell: cell(node), epoch: Epoch::FIRST, seq: Seq(0), value: 0, total: 0 });
        Stores { rows: [None, None], cells, over: BTreeSet::new(), at: AT, added: 0 }
    }

    fn fetch(&self, store: usize) -> FetchedRow {
        FetchedRow { snapshot: self.rows[store].clone().unwrap_or_default(), at: Millis(self.at) }
    }

    fn sum(&self, store: usize) -> i128 {
        self.fetch(store).snapshot.as_of(Millis(self.at)).sum()
    }

    /// Node 0 and 1 count in store 0, node 2 and 3 in store 1.
    fn add(&mut self, node: usize, more: i128) {
        self.at += 1;
        self.added += more;
        let own = &mut self.cells[node];
        (own.seq, own.value, own.total) = (Seq(own.seq.0 + 1), own.value + more, own.total + more);
        loop {
            let verdict = put(&mut self.rows[node / 2], &self.cells[node], Millis(self.at));
            let own = &mut self.cells[node];
            own.seq = Seq(own.seq.0 + 1);
            match verdict {
                Verdict::Newest => return,
                Verdict::Stale { epoch, kept, .. } => (own.epoch, own.value) = (epoch, own.value - kept),
                // Retired: it continues as a new writer, with the value that the store does not
                // have.
                Verdict::Closed { value, .. } => {
                    own.cell.writer.incarnation.0 += 1;
                    (own.value, own.seq) = (own.value - value, Seq(1));
                    own.total = own.value;
                }
                other => panic!("{other:?}"),
            }
        }
    }

    fn swap(&mut self, store: usize, change: &Change) {
        self.at += 1;
        let context = SwapContext {
            id: SwapId(u128::from(self.at)),
            node: NodeId(9),
            grace: Duration::MAX,
            registered: &NO_WRITERS,
        };
        if let NextRow::Row(row) = plan_swap(&self.fetch(store), &context, change).unwrap().next {
            self.rows[store] = Some(row);
        }
    }

    fn mirror(&mut self, from: usize, to: usize) -> Result<bool, MirrorError> {
        self.at += 1;
        let (source, target) = (self.fetch(from), self.fetch(to));
        let stored = |fetched, store: usize| StoredRow { fetched, store: store as u64 + 70 };
        match mirror(stored(&source, from), stored(&target, to), &BTreeMap::new())? {
            NextRow::Row(row) => self.rows[to] = Some(row.checked().unwrap()),
            NextRow::Unchanged => return Ok(false),
            NextRow::Removed => panic!("a copy removes no row"),
        }
        Ok(true)
    }

    /// Retires a node's writer in a store. If the node counts there, it continues as a new writer.
    fn retire(&mut self, store: usize, node: usize) {
        let own = &mut self.cells[node];
        let writer = own.cell.writer;
        if store == node / 2 && own.total != 0 {
            self.over.insert(writer);
            own.cell.writer.incarnation.0 += 1;
            (own.seq, own.value, own.total) = (Seq(0), 0, 0);
        }
        self.swap(store, &Change::Close(writer));
        self.swap(store, &Change::Fold(writer));
    }

    /// The row forgets the spent cells of ended writers.
    fn forget(&mut self, store: usize) {
        if let Some(row) = &mut self.rows[store] {
            row.spent.retain(|id, _| !self.over.contains(&id.writer));
        }
    }
}

fn writer(node: usize) -> Writer {
    Writer { node: NodeId(node as u64 + 1), incarnation: Incarnation(1) }
}

fn set(value: i64) -> Change {
    Change::Set { value, expiry: SetExpiry::Remove, reply_old: false }
}

#[test]
fn there_and_back_changes_nothing() {
    let mut stores = Stores::new();
    stores.add(0, 10);
    stores.add(1, 11);
    assert_eq!(stores.mirror(0, 1), Ok(true));
    assert_eq!((stores.sum(0), stores.sum(1)), (21, 21));
    assert_eq!((stores.mirror(1, 0), stores.mirror(0, 1)), (Ok(false), Ok(false)));
    assert_eq!((stores.sum(0), stores.sum(1)), (21, 21));
}

#[test]
fn counts_that_have_only_their_name_in_common_are_not_added_up() {
    let mut stores = Stores::new();
    stores.add(0, 10);
    stores.add(2, 11);
    assert_eq!(stores.mirror(0, 1), Err(MirrorError::Unrelated));
    assert_eq!((stores.sum(0), stores.sum(1)), (10, 11));
}

#[test]
fn what_the_target_counts_after_a_copy_stays_and_comes_back() {
    let mut stores = Stores::new();
    stores.add(0, 10);
    stores.mirror(0, 1).unwrap();
    stores.add(2, 5);
    stores.add(0, 1);
    assert_eq!((stores.mirror(0, 1), stores.sum(1)), (Ok(true), 16));
    assert_eq!((stores.mirror(1, 0), stores.sum(0)), (Ok(true), 16));
    assert_eq!(stores.mirror(0, 1), Ok(false));
}

#[test]
fn a_set_is_copied_as_often_as_it_is_made_and_back() {
    let mut stores = Stores::new();
    for value in [77, 78] {
        stores.swap(0, &set(value));
        assert_eq!((stores.mirror(0, 1), stores.sum(1)), (Ok(true), i128::from(value)));
    }
    stores.swap(1, &set(5));
    assert_eq!((stores.mirror(1, 0), stores.sum(0)), (Ok(true), 5));
    stores.swap(0, &set(6));
    assert_eq!((stores.mirror(0, 1), stores.sum(1)), (Ok(true), 6));
    // Set in both: the later one wins, and the earlier one is refused.
    stores.swap(1, &set(1));
    stores.swap(0, &set(2));
    assert_eq!(stores.mirror(1, 0), Err(MirrorError::TargetNewer));
    assert_eq!(stores.mirror(0, 1), Err(MirrorError::SourceNewer), "who knows what was added to the 1");
}

#[test]
fn a_reset_goes_along_and_takes_what_it_returned() {
    let mut stores = Stores::new();
    stores.add(0, 10);
    stores.mirror(0, 1).unwrap();
    stores.swap(0, &Change::Reset);
    stores.add(0, 3);
    assert_eq!((stores.mirror(0, 1), stores.sum(1)), (Ok(true), 3));
    assert_eq!(stores.mirror(1, 0), Ok(false));
    stores.swap(0, &Change::Delete);
    assert_eq!((stores.mirror(0, 1), stores.rows[1].as_ref().unwrap().exists()), (Ok(true), false));
    // The source's reset does not take counts that only the target has.
    stores.add(0, 4);
    stores.mirror(0, 1).unwrap();
    stores.add(2, 5);
    stores.swap(0, &Change::Reset);
    assert_eq!((stores.mirror(0, 1), stores.sum(1)), (Err(MirrorError::SourceNewer), 9));
}

#[test]
fn a_fold_on_either_side_keeps_the_sum() {
    for folds in [vec![0], vec![1], vec![0, 1]] {
        let mut stores = Stores::new();
        stores.add(0, 10);
        stores.add(1, 11);
        stores.mirror(0, 1).unwrap();
        for store in folds {
            stores.retire(store, 0);
        }
        for (from, to) in [(0, 1), (1, 0), (0, 1)] {
            stores.mirror(from, to).unwrap();
            assert_eq!((stores.sum(0), stores.sum(1)), (21, 21));
        }
        stores.add(0, 1);
        assert_eq!((stores.mirror(0, 1), stores.sum(1)), (Ok(true), 22));
    }
}

#[test]
fn a_base_of_forgotten_writers_is_copied_into_nothing_and_refused_where_it_differs() {
    let mut stores = Stores::new();
    stores.add(0, 10);
    stores.retire(0, 0);
    stores.forget(0);
    assert_eq!((stores.mirror(0, 1), stores.sum(1)), (Ok(true), 10));
    assert_eq!(stores.mirror(1, 0), Ok(false));
    // The other store folds by itself, and forgets.
    stores.add(2, 3);
    stores.retire(1, 2);
    stores.forget(1);
    stores.add(1, 1);
    assert_eq!(stores.mirror(0, 1), Err(MirrorError::Base));
    assert_eq!((stores.sum(0), stores.sum(1)), (11, 13));
}

#[test]
fn a_fold_that_both_know_and_one_forgets_is_known_by_its_sum() {
    for forgets in [0, 1] {
        let mut stores = Stores::new();
        stores.add(0, 10);
        stores.mirror(0, 1).unwrap();
        stores.retire(0, 0);
        stores.mirror(0, 1).unwrap();
        stores.forget(forgets);
        stores.add(1, 1);
        for (from, to) in [(0, 1), (1, 0), (0, 1)] {
            stores.mirror(from, to).unwrap();
            assert_eq!((stores.sum(0), stores.sum(1)), (11, 11));
        }
    }
}

#[test]
fn a_fold_that_only_the_target_knew_and_has_forgotten_is_not_dropped() {
    let mut stores = Stores::new();
    stores.add(0, 1);
    stores.mirror(0, 1).unwrap();
    stores.add(2, 7);
    stores.mirror(1, 0).unwrap();
    stores.add(3, 100);
    stores.retire(1, 3);
    stores.add(0, 1_000);
    stores.mirror(0, 1).unwrap();
    stores.forget(1);
    stores.retire(0, 2);
    assert_eq!(stores.mirror(0, 1), Err(MirrorError::Base), "the writer of the base is unknown");
    assert_eq!((stores.sum(0), stores.sum(1)), (1_008, 1_108));
}

#[test]
fn an_expiry_goes_along_and_one_that_the_target_has_changed_since_stays() {
    let expire =
        |at: u64| Change::Expire { when: crate::ExpiryTime::At(at as i64), condition: crate::ExpiryCondition::Always };
    let mut stores = Stores::new();
    stores.add(0, 10);
    stores.swap(0, &expire(AT + 500));
    stores.mirror(0, 1).unwrap();
    assert_eq!(stores.rows[1].as_ref().unwrap().expires_at, Some(Millis(AT + 500)));
    stores.swap(1, &expire(AT + 900));
    stores.add(0, 1);
    for _ in 0..3 {
        stores.mirror(0, 1).unwrap();
        assert_eq!((stores.rows[1].as_ref().unwrap().expires_at, stores.sum(1)), (Some(Millis(AT + 900)), 11));
    }
    stores.mirror(1, 0).unwrap();
    stores.at = AT + 1_000;
    assert_eq!((stores.sum(0), stores.sum(1)), (0, 0));
    assert_eq!((stores.mirror(0, 1), stores.mirror(1, 0)), (Ok(false), Ok(false)));
}

#[test]
fn a_writer_that_the_target_has_retired_enters_as_its_stage_says() {
    let mut stores = Stores::new();
    stores.add(0, 10);
    let source = stores.fetch(0);
    let since = Millis(1);
    let stages = [
        (WriterStage::Live, (Some(false), None)),
        (WriterStage::Closed { since }, (Some(true), None)),
        (WriterStage::Folded { since }, (None, Some(10))),
    ];
    for (stage, expected) in stages {
        let target = FetchedRow { at: Millis(AT), ..FetchedRow::default() };
        let known = BTreeMap::from([(writer(0), stage)]);
        let rows = (StoredRow { fetched: &source, store: 1 }, StoredRow { fetched: &target, store: 2 });
        let NextRow::Row(row) = mirror(rows.0, rows.1, &known).unwrap() else { panic!("it is new") };
        assert_eq!((row.cells.values().next().map(|held| held.closed), row.base), expected, "{stage:?}");
    }
}

#[test]
fn one_number_with_two_values_is_refused() {
    let mut stores = Stores::new();
    stores.add(0, 10);
    stores.mirror(0, 1).unwrap();
    stores.rows[1].as_mut().unwrap().cells.values_mut().for_each(|held| held.value += 1);
    assert_eq!(stores.mirror(0, 1), Err(MirrorError::Damaged));
}

/// One event in a pair of stores.
#[derive(Debug, Clone, Copy)]
enum StoreEvent {
    Add(usize, u32),
    Mirror(usize),
    Retire(usize, usize),
    Forget(usize),
    Reset(usize),
}

fn any_event(resets: u32) -> impl Strategy<Value = StoreEvent> {
    prop_oneof![
        6 => (0..4_usize, 1..u32::MAX).prop_map(|(node, more)| StoreEvent::Add(node, more)),
        4 => (0..2_usize).prop_map(StoreEvent::Mirror),
        1 => (0..2_usize, 0..4_usize).prop_map(|(store, node)| StoreEvent::Retire(store, node)),
        1 => (0..2_usize).prop_map(StoreEvent::Forget),
        resets => (0..2_usize).prop_map(StoreEvent::Reset),
    ]
}

fn happen(stores: &mut Stores, event: StoreEvent) -> Result<(), MirrorError> {
    match event {
        StoreEvent::Add(node, more) => stores.add(node, i128::from(more)),
        StoreEvent::Mirror(from) => drop(stores.mirror(from, 1 - from)?),
        StoreEvent::Retire(store, node) => stores.retire(store, node),
        StoreEvent::Forget(store) => stores.forget(store),
        StoreEvent::Reset(store) => stores.swap(store, &Change::Reset),
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn stores_that_copy_each_other_come_to_all_that_was_added(events in vec(any_event(0), 0..40)) {
        let mut stores = Stores::new();
        stores.add(0, 1);
        stores.mirror(0, 1).unwrap();
        for event in events {
            let _ = happen(&mut stores, event);
            prop_assert!(stores.sum(0) <= stores.added && stores.sum(1) <= stores.added);
        }
        // The mirror can refuse a fold that was forgotten before it was copied; otherwise it is
        // exact.
        if stores.mirror(0, 1).is_ok() && stores.mirror(1, 0).is_ok() {
            prop_assert_eq!((stores.sum(0), stores.sum(1)), (stores.added, stores.added));
            prop_assert_eq!((stores.mirror(0, 1), stores.mirror(1, 0)), (Ok(false), Ok(false)));
        }
    }

    #[test]
    fn while_nothing_is_forgotten_nothing_is_refused(events in vec(any_event(0), 0..40)) {
        let mut stores = Stores::new();
        stores.add(0, 1);
        stores.mirror(0, 1).unwrap();
        for event in events.into_iter().filter(|event| !matches!(event, StoreEvent::Forget(_))) {
            happen(&mut stores, event).unwrap();
        }
        for (from, to) in [(0, 1), (1, 0)] {
            stores.mirror(from, to).unwrap();
        }
        prop_assert_eq!((stores.sum(0), stores.sum(1)), (stores.added, stores.added));
    }

    #[test]
    fn whatever_is_reset_and_refused_nothing_counts_twice(events in vec(any_event(2), 0..40)) {
        let mut stores = Stores::new();
        for event in events {
            let before = (stores.sum(0), stores.sum(1));
            if happen(&mut stores, event).is_err() {
                prop_assert_eq!((stores.sum(0), stores.sum(1)), before);
            }
            prop_assert!(stores.sum(0) <= stores.added && stores.sum(1) <= stores.added);
        }
    }
}
