//! Laws of the protocol, checked on random rows, puts and schedules.

mod incarnations;

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;

use super::put::{judge, put};
use super::*;
use crate::{Epoch, Incarnation, Millis, NodeId, Reply, SetExpiry, Writer};

const NOW: Millis = Millis(1_000);
const GRACE: Duration = Duration::from_secs(1_000_000);

fn cell(node: u64, shard: u16) -> CellId {
    CellId { writer: Writer { node: NodeId(node), incarnation: Incarnation(1) }, shard: Shard(shard) }
}

fn epoch(millis: u64) -> Epoch {
    Epoch { millis, node: NodeId(0) }
}

/// Running value of a writer's nth put in an epoch.
fn running(nth: u64) -> i128 {
    i128::from(nth * 31 % 17) - 5
}

/// The put at one position of a writer's sequence, which goes on through all epochs: always the
/// same. Its incarnation began under epoch 9, and the third put of each ended epoch was kept.
fn cell_put(node: u64, shard: u16, at: u64, nth: u64) -> Put {
    let (value, before) = (running(nth), running(3) * i128::from(at - 9));
    Put { cell: cell(node, shard), epoch: epoch(at), seq: Seq((at - 9) * 10 + nth), value, total: before + value }
}

/// Sum that the row counted of a cell before that epoch; the cell's incarnation is never behind the
/// row.
fn before(row: &Snapshot, cell: CellId, epoch: Epoch) -> i128 {
    match (row.cells.get(&cell), row.spent.get(&cell)) {
        (Some(held), _) => held.total - held.value,
        (None, Some(spent)) if spent.epoch == epoch => spent.total - spent.value,
        (None, Some(spent)) => spent.total,
        (None, None) => 0,
    }
}

fn any_put() -> impl Strategy<Value = Put> {
    (0..3_u64, 0..2_u16, 9..12_u64, 0..6_u64).prop_map(|(node, shard, at, nth)| cell_put(node, shard, at, nth))
}

/// Rows of epoch 11, with any cells, some of them closed or spent in an earlier epoch.
fn any_row() -> impl Strategy<Value = Snapshot> {
    let spent = (0..3_u64, 0..2_u16, 9..12_u64, any::<bool>());
    (vec((0..3_u64, 0..2_u16, 0..6_u64, any::<bool>()), 0..5), vec(spent, 0..4), any::<Option<i8>>()).prop_map(
        |(cells, spent, base)| {
            let held = |(node, shard, nth, closed)| {
                let Put { cell, seq, value, total, .. } = cell_put(node, shard, 11, nth);
                (cell, RowCell { seq, value, total, closed })
            };
            let kept = |(node, shard, at, closed): (u64, u16, u64, bool)| {
                let Put { cell, epoch, seq, value, total } = cell_put(node, shard, at, 3);
                // A spent cell of the row's own epoch was folded, and so was closed.
                (cell, SpentCell { epoch, seq, value, total, closed: closed || at == 11, expired: None, at: NOW })
            };
            let cells: BTreeMap<_, _> = cells.into_iter().map(held).collect();
            let spent = spent.into_iter().map(kept).filter(|(cell, _)| !cells.contains_key(cell)).collect();
            let version = RowVersion { swaps: 3, ..RowVersion::ABSENT };
            Snapshot { epoch: epoch(11), base: base.map(i128::from), cells, spent, version, ..Snapshot::default() }
        },
    )
}

/// The row after the puts, with its version unchanged. Without a version it would count as new, and
/// younger than the epochs of the puts.
fn after(row: &Snapshot, puts: &[Put]) -> Snapshot {
    let mut next = Some(row.clone());
    for cell_put in puts {
        put(&mut next, cell_put, NOW);
    }
    Snapshot { version: row.version, ..next.unwrap() }
}

fn swapped(row: &Snapshot, change: Change) -> (Snapshot, Reply) {
    let by = SwapContext { id: SwapId(1), node: NodeId(7), grace: GRACE, registered: &crate::shared::NO_WRITERS };
    let fetched = FetchedRow { snapshot: row.clone(), at: NOW };
    let plan = plan_swap(&fetched, &by, &change).expect("values of the properties fit a reply");
    match plan.next {
        NextRow::Row(next) => (next, plan.reply),
        NextRow::Unchanged => (row.clone(), plan.reply),
        NextRow::Removed => (Snapshot::default(), plan.reply),
    }
}

/// The row after ended incarnations have settled. Its version stays, as above.
fn late(row: &Snapshot, puts: &[Put]) -> Snapshot {
    let settle =
        |row, put: &Put| swapped(&row, Change::Late(FinalCell { put: *put, expires_at: None, expired_seq: Seq(0) })).0;
    Snapshot { version: row.version, swaps: Vec::new(), ..puts.iter().fold(row.clone(), settle) }
}

proptest! {
    #[test]
    fn puts_commute(row in any_row(), a in any_put(), b in any_put()) {
        prop_assert_eq!(after(&row, &[a, b]), after(&row, &[b, a]));
    }

    #[test]
    fn puts_associate_in_any_order_and_number(
        row in any_row(),
        (puts, shuffled) in vec(any_put(), 0..10).prop_flat_map(|puts| (Just(puts.clone()), Just(puts).prop_shuffle())),
        again in vec(any::<prop::sample::Index>(), 0..5),
    ) {
        let mut repeated = shuffled;
        if !repeated.is_empty() {
            let more: Vec<Put> = again.iter().map(|index| *index.get(&repeated)).collect();
            repeated.extend(more);
        }
        prop_assert_eq!(after(&row, &puts), after(&row, &repeated));
    }

    #[test]
    fn a_put_repeated_changes_nothing_and_never_gets_more(row in any_row(), cell_put in any_put()) {
        let mut row = Some(row);
        let first = put(&mut row, &cell_put, NOW);
        let once = row.clone();
        let second = put(&mut row, &cell_put, NOW);
        prop_assert_eq!(&row, &once, "not even the version");
        prop_assert_eq!(first, second);
    }

    #[test]
    fn only_a_put_that_was_newest_moves_a_row(row in any_row(), cell_put in any_put()) {
        let mut now = Some(row.clone());
        let verdict = put(&mut now, &cell_put, NOW);
        if verdict != Verdict::Newest {
            prop_assert_eq!(now.unwrap(), row);
        } else {
            prop_assert!(now.unwrap().cells[&cell_put.cell].seq >= cell_put.seq);
        }
    }

    #[test]
    fn what_a_writer_still_owes_and_what_a_row_counts_are_all_it_added(
        row in any_row(), node in 0..3_u64, shard in 0..2_u16, at in 9..12_u64, value in -50..50_i128,
    ) {
        // A writer's cell is always ahead of the row's copy.
        let cell = cell(node, shard);
        let total = before(&row, cell, epoch(at)) + value;
        let own = OwnValue { epoch: epoch(at), value, total, has_value: true, ..OwnValue::default() };
        prop_assume!(row.cells.get(&cell).is_none_or(|_| at == 11));
        prop_assume!(row.spent.get(&cell).is_none_or(|spent| spent.epoch.millis <= at));
        let held = row.cells.get(&cell).map_or(0, |held| held.value);
        let taken = row.spent.get(&cell).filter(|spent| spent.epoch == own.epoch).map_or(0, |spent| spent.value);
        let settled = late(&row, &[own.put(cell, Seq(31)).unwrap()]);
        let owed = match own.on_row(cell, Seq(30), &row, NOW) {
            NextStep::Keep => own.value - held,
            NextStep::Continue(own) => own.value,
            NextStep::Retired => settled.sum() - row.sum(),
            NextStep::Move | NextStep::Superseded => unreachable!("the row is neither due nor behind, nor ahead"),
        };
        prop_assert_eq!(owed + held + taken, value);
        prop_assert_eq!(settled.sum(), row.sum() + owed, "the same, if that life is over");
        let fetched = FetchedRow { snapshot: row.clone(), at: NOW };
        prop_assert_eq!(read(&fetched, NOW, &[(cell, Seq(30), own)]).sum, row.sum() + owed);
    }

    #[test]
    fn settling_late_twice_is_once(row in any_row(), cell_put in any_put()) {
        let once = late(&row, &[cell_put]);
        prop_assert_eq!(late(&once, &[cell_put]), once);
    }

    #[test]
    fn of_what_heirs_settle_late_in_any_order_and_number_the_newest_counts(
        row in any_row(), node in 0..3_u64, shard in 0..2_u16, at in 9..12_u64, places in vec(0..8_u64, 1..6),
    ) {
        let by = |nth| cell_put(node, shard, at, nth);
        let newest = late(&row, &[by(*places.iter().max().unwrap())]);
        let all = late(&row, &places.iter().map(|&nth| by(nth)).collect::<Vec<_>>());
        prop_assert_eq!(all.sum(), newest.sum());
        prop_assert_eq!((all.cells, all.spent), (newest.cells, newest.spent));
    }

    #[test]
    fn what_different_lives_settle_late_commutes(row in any_row(), a in any_put(), b in any_put()) {
        prop_assume!(a.cell != b.cell);
        prop_assert_eq!(late(&row, &[a, b]), late(&row, &[b, a]));
    }

    #[test]
    fn settling_late_and_puts_that_are_no_newer_commute(row in any_row(), last in any_put(), puts in vec(any_put(), 0..6)) {
        let before = |cell_put: &Put| cell_put.epoch == last.epoch && cell_put.seq <= last.seq;
        let puts: Vec<Put> = puts.into_iter().filter(|cell_put| cell_put.cell != last.cell || before(cell_put)).collect();
        let (first, then) = (late(&after(&row, &puts), &[last]), after(&late(&row, &[last]), &puts));
        prop_assert_eq!(first.sum(), then.sum());
        // If there was no news, only retirement decides if its cell is closed too.
        let values = |row: Snapshot| row.cells.into_iter().map(|(id, held)| (id, held.seq, held.value)).collect::<Vec<_>>();
        prop_assert_eq!(values(first), values(then));
    }

    #[test]
    fn settling_late_and_a_reset_add_up_in_any_order(row in any_row(), puts in vec(any_put(), 0..4), which in 0..2) {
        let swap = |row: &Snapshot| match swapped(row, if which == 0 { Change::Reset } else { Change::Take }) {
            (next, Reply::Value(value)) => (next, i128::from(value.unwrap_or(0))),
            (next, Reply::Integer(value)) => (next, i128::from(value)),
            (_, other) => panic!("no value in {other:?}"),
        };
        let whole = late(&row, &puts).sum();
        for at in 0..=puts.len() {
            let (next, returned) = swap(&late(&row, &puts[..at]));
            prop_assert_eq!(returned + late(&next, &puts[at..]).sum(), whole);
        }
    }

    #[test]
    fn a_swap_takes_exactly_what_it_returns(row in any_row(), value: i32, which in 0..3) {
        let change = match which {
            0 => Change::Set { value: i64::from(value), expiry: SetExpiry::Remove, reply_old: true },
            1 => Change::Reset,
            _ => Change::Take,
        };
        let (next, reply) = swapped(&row, change);
        let returned = match reply {
            Reply::Value(value) => value.unwrap_or(0),
            Reply::Integer(value) => value,
            other => panic!("no value in {other:?}"),
        };
        prop_assert_eq!(i128::from(returned), row.sum());
        prop_assert_eq!(next.sum(), if which == 0 { i128::from(value) } else { 0 });
        for (id, held) in &row.cells {
            prop_assert_eq!((next.spent[id].epoch, next.spent[id].value), (row.epoch, held.value));
        }
    }

    #[test]
    fn closing_and_folding_never_change_the_sum(row in any_row(), steps in vec((0..3_u64, any::<bool>(), any_put()), 0..12)) {
        let mut now = row;
        for (node, fold, late) in steps {
            let writer = cell(node, 0).writer;
            let (next, _) = swapped(&now, if fold { Change::Fold(writer) } else { Change::Close(writer) });
            prop_assert_eq!(next.sum(), now.sum());
            prop_assert_eq!(next.epoch, now.epoch);
            // A put of a retired writer's cell gets its verdict, and moves nothing.
            let retired = |row: &Snapshot| {
                row.cells.get(&late.cell).is_some_and(|held| held.closed)
                    || !row.cells.contains_key(&late.cell) && row.spent.get(&late.cell).is_some_and(|spent| spent.closed)
            };
            let mut put_late = Some(next.clone());
            if retired(&next) {
                put(&mut put_late, &late, NOW);
                prop_assert_eq!(put_late.as_ref(), Some(&next));
            }
            now = next;
        }
    }

    #[test]
    fn expiry_agrees_on_all_nodes(row in any_row(), expires_at in 0..2_000_u64, times in vec(0..5_000_u64, 1..6)) {
        let row = Snapshot { expires_at: Some(Millis(expires_at)), ..row };
        let own = OwnValue { epoch: row.epoch, expires_at: row.expires_at, ..OwnValue::default() };
        for time in times {
            let counts = row.as_of(Millis(time));
            let (lapsed, swapped) = (own.lapse(Millis(time), Seq(9)), {
                let by = SwapContext { id: SwapId(u128::from(time)), node: NodeId(time), grace: GRACE, registered: &crate::shared::NO_WRITERS };
                let fetched = FetchedRow { snapshot: row.clone(), at: Millis(time) };
                match plan_swap(&fetched, &by, &Change::Lapse).unwrap().next {
                    NextRow::Row(next) => next,
                    _ => row.clone(),
                }
            });
            let expected = if expires_at <= time { row.epoch.expired(Millis(expires_at)) } else { row.epoch };
            prop_assert_eq!((counts.epoch, lapsed.epoch, swapped.epoch), (expected, expected, expected));
            prop_assert_eq!(counts.sum(), if expires_at <= time { 0 } else { row.sum() });
            prop_assert_eq!(swapped.sum(), counts.sum());
        }
    }

    #[test]
    fn a_verdict_needs_no_more_than_comparing(row in any_row(), cell_put in any_put()) {
        // All values in a verdict are copied from the row: an adapter computes nothing.
        match judge(&row, &cell_put, NOW) {
            Verdict::Closed { value, .. } | Verdict::Stale { kept: value, .. } => {
                let held = row.cells.get(&cell_put.cell).map(|held| held.value);
                let spent = row.spent.get(&cell_put.cell).map(|spent| spent.value);
                prop_assert!(value == 0 || Some(value) == held || Some(value) == spent);
            }
            Verdict::Newest | Verdict::Older | Verdict::Behind { .. } => {}
        }
    }
}

/// One event of two writers, a row and its harvester.
#[derive(Debug, Clone, Copy)]
enum PairEvent {
    Add(usize, i8),
    Send(usize),
    Deliver(usize),
    Repeat(usize),
    Verdict(usize),
    Fetch,
    Swap(bool),
    Retire(usize, bool),
    Begin(usize),
    Late(usize),
}

fn any_event() -> impl Strategy<Value = PairEvent> {
    prop_oneof![
        4 => (0..2_usize, any::<i8>()).prop_map(|(writer, delta)| PairEvent::Add(writer, delta)),
        4 => (0..2_usize).prop_map(PairEvent::Send),
        3 => any::<usize>().prop_map(PairEvent::Deliver),
        1 => any::<usize>().prop_map(PairEvent::Repeat),
        2 => any::<usize>().prop_map(PairEvent::Verdict),
        1 => Just(PairEvent::Fetch),
        2 => any::<bool>().prop_map(PairEvent::Swap),
        1 => (0..2_usize, any::<bool>()).prop_map(|(writer, fold)| PairEvent::Retire(writer, fold)),
        1 => (0..2_usize).prop_map(PairEvent::Begin),
        2 => any::<usize>().prop_map(PairEvent::Late),
    ]
}

/// Two nodes, each with one cell of its current incarnation, and any number of successors of
/// earlier incarnations.
struct TwoWriters {
    row: Option<Snapshot>,
    writers: [(CellId, OwnValue, u64); 2],
    over: Vec<Put>, // last put of each ended incarnation
    puts: Vec<Put>,
    verdicts: Vec<(Put, Verdict)>,
    // Base of the next swap; other events may come in between.
    fetched: FetchedRow,
    harvested: i128,
    ids: u128,
}

impl TwoWriters {
    fn new() -> TwoWriters {
        let writer = |node| (cell(node, 0), OwnValue::default(), 0);
        let writers = [writer(1), writer(2)];
        let (puts, verdicts) = (Vec::new(), Vec::new());
        TwoWriters {
            row: None,
            writers,
            over: Vec::new(),
            puts,
            verdicts,
            fetched: FetchedRow::default(),
            harvested: 0,
            ids: 0,
        }
    }

    fn apply(&mut self, event: PairEvent) {
        match event {
            PairEvent::Add(writer, delta) => {
                let own = &mut self.writers[writer].1;
                *own = own.added(i64::from(delta)).unwrap();
            }
            PairEvent::Send(writer) => {
                let (cell, own, seq) = &mut self.writers[writer];
                *seq += 1;
                self.puts.extend(own.put(*cell, Seq(*seq)));
            }
            PairEvent::Deliver(at) | PairEvent::Repeat(at) if !self.puts.is_empty() => {
                let at = at % self.puts.len();
                let cell_put =
                    if matches!(event, PairEvent::Deliver(_)) { self.puts.swap_remove(at) } else { self.puts[at] };
                let verdict = put(&mut self.row, &cell_put, NOW);
                self.verdicts.push((cell_put, verdict));
            }
            PairEvent::Verdict(at) if !self.verdicts.is_empty() => {
                let (cell_put, verdict) = self.verdicts.swap_remove(at % self.verdicts.len());
                self.apply_verdict(&cell_put, &verdict);
            }
            PairEvent::Fetch => self.fetched = FetchedRow { snapshot: self.row.clone().unwrap_or_default(), at: NOW },
            PairEvent::Swap(take) => self.swap(if take { Change::Take } else { Change::Reset }),
            PairEvent::Retire(writer, fold) => {
                let writer = self.writers[writer].0.writer;
                self.fetched = FetchedRow { snapshot: self.row.clone().unwrap_or_default(), at: NOW };
                self.swap(if fold { Change::Fold(writer) } else { Change::Close(writer) });
            }
            PairEvent::Begin(writer) => self.begin(writer),
            PairEvent::Late(at) if !self.over.is_empty() => self.settle_late(at % self.over.len()),
            PairEvent::Deliver(_) | PairEvent::Repeat(_) | PairEvent::Verdict(_) | PairEvent::Late(_) => {}
        }
    }

    /// Ends the current incarnation of a node.
    fn begin(&mut self, writer: usize) {
        let (cell, own, seq) = &mut self.writers[writer];
        self.over.extend(own.put(*cell, Seq(*seq + 1)));
        self.puts.extend(self.over.last());
        cell.writer.incarnation.0 += 1;
        (*own, *seq) = (OwnValue { epoch: own.epoch, ..OwnValue::default() }, 0);
    }

    fn settle_late(&mut self, at: usize) {
        self.fetched = FetchedRow { snapshot: self.row.clone().unwrap_or_default(), at: NOW };
        self.swap(Change::Late(FinalCell { put: self.over[at], expires_at: None, expired_seq: Seq(0) }));
    }

    fn apply_verdict(&mut self, cell_put: &Put, verdict: &Verdict) {
        let Some(writer) = self.writers.iter().position(|(cell, ..)| *cell == cell_put.cell) else { return };
        match self.writers[writer].1.on_verdict(cell_put, verdict, Seq(self.writers[writer].2)) {
            NextStep::Continue(next) => self.writers[writer].1 = next,
            NextStep::Retired => self.begin(writer),
            NextStep::Keep => {}
            NextStep::Move | NextStep::Superseded => unreachable!("nothing expires here, and nobody goes back"),
        }
    }

    fn swap(&mut self, change: Change) {
        self.ids += 1;
        let by =
            SwapContext { id: SwapId(self.ids), node: NodeId(9), grace: GRACE, registered: &crate::shared::NO_WRITERS };
        let plan = plan_swap(&self.fetched, &by, &change).unwrap();
        let present = self.row.as_ref().map_or(RowVersion::ABSENT, |row| row.version);
        if present != self.fetched.snapshot.version {
            return;
        }
        if let NextRow::Row(next) = plan.next {
            self.row = Some(next);
            if let Reply::Value(Some(value)) | Reply::Integer(value) = plan.reply
                && matches!(change, Change::Take | Change::Reset)
            {
                self.harvested += i128::from(value);
            }
        }
    }

    /// Both writers put until no verdict leaves them a value to put.
    fn settle(&mut self) {
        for writer in [0, 1, 0, 1, 0, 1, 0, 1] {
            let (cell, own, seq) = &mut self.writers[writer];
            *seq += 1;
            if let Some(cell_put) = own.put(*cell, Seq(*seq)) {
                let verdict = put(&mut self.row, &cell_put, NOW);
                self.apply_verdict(&cell_put, &verdict);
            }
        }
        (0..self.over.len()).for_each(|at| self.settle_late(at));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn what_was_harvested_and_what_is_left_are_all_that_was_added(events in vec(any_event(), 0..60)) {
        let mut two = TwoWriters::new();
        let mut added = 0;
        for event in events {
            if let PairEvent::Add(_, delta) = event {
                added += i128::from(delta);
            }
            two.apply(event);
        }
        while let Some(cell_put) = two.puts.pop() {
            let verdict = put(&mut two.row, &cell_put, NOW);
            two.verdicts.push((cell_put, verdict));
        }
        two.settle();
        prop_assert_eq!(two.harvested + two.row.map_or(0, |row| row.sum()), added);
    }
}
