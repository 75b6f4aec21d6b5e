//! Laws of the protocol, over rows, puts and schedules that chance makes up.

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

/// What a writer says at one place of its sequence: always the same.
fn said(node: u64, shard: u16, at: u64, seq: u64) -> Put {
    let value = i128::from(seq * 31 % 17) - 5;
    Put { cell: cell(node, shard), epoch: epoch(at), seq: Seq(seq), value }
}

fn any_put() -> impl Strategy<Value = Put> {
    (0..3_u64, 0..2_u16, 9..12_u64, 0..6_u64).prop_map(|(node, shard, at, seq)| said(node, shard, at, seq))
}

/// Rows of epoch 11, with any cells, some of them closed or spent in an epoch before.
fn any_row() -> impl Strategy<Value = Snapshot> {
    let spent = (0..3_u64, 0..2_u16, 9..12_u64, any::<bool>());
    (vec((0..3_u64, 0..2_u16, 0..6_u64, any::<bool>()), 0..5), vec(spent, 0..4), any::<Option<i8>>()).prop_map(
        |(cells, spent, base)| {
            let held = |(node, shard, seq, closed)| {
                let Put { cell, seq, value, .. } = said(node, shard, 11, seq);
                (cell, Held { seq, value, closed })
            };
            let kept = |(node, shard, at, closed): (u64, u16, u64, bool)| {
                let Put { cell, epoch, seq, value } = said(node, shard, at, 3);
                // What is spent in the row's own epoch was folded, and so was closed.
                (cell, Spent { epoch, seq, value, closed: closed || at == 11, expired: None, at: NOW })
            };
            let cells: BTreeMap<_, _> = cells.into_iter().map(held).collect();
            let spent = spent.into_iter().map(kept).filter(|(cell, _)| !cells.contains_key(cell)).collect();
            let version = Version { swaps: 3, ..Version::ABSENT };
            Snapshot { epoch: epoch(11), base: base.map(i128::from), cells, spent, version, ..Snapshot::default() }
        },
    )
}

/// The row after the puts, whatever its version.
fn after(row: &Snapshot, puts: &[Put]) -> Snapshot {
    let mut row = Some(row.clone());
    for said in puts {
        put(&mut row, said, NOW);
    }
    Snapshot { version: Version::ABSENT, ..row.unwrap() }
}

fn swapped(row: &Snapshot, change: Change) -> (Snapshot, Reply) {
    let by = By { id: SwapId(1), node: NodeId(7), grace: GRACE };
    let seen = Seen { snapshot: row.clone(), at: NOW };
    let computed = compute(&seen, &by, &change).expect("values of the properties fit a reply");
    match computed.next {
        Next::Row(next) => (next, computed.reply),
        Next::Same => (row.clone(), computed.reply),
        Next::Gone => (Snapshot::default(), computed.reply),
    }
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
    fn a_put_repeated_changes_nothing_and_is_never_told_more(row in any_row(), said in any_put()) {
        let mut row = Some(row);
        let first = put(&mut row, &said, NOW);
        let once = row.clone();
        let second = put(&mut row, &said, NOW);
        prop_assert_eq!(&row, &once, "not even the version");
        prop_assert_eq!(first, second);
    }

    #[test]
    fn only_a_put_that_was_newest_moves_a_row(row in any_row(), said in any_put()) {
        let mut now = Some(row.clone());
        let verdict = put(&mut now, &said, NOW);
        if verdict != Verdict::Newest {
            prop_assert_eq!(now.unwrap(), row);
        } else {
            prop_assert!(now.unwrap().cells[&said.cell].seq >= said.seq);
        }
    }

    #[test]
    fn what_a_writer_still_owes_and_what_a_row_counts_are_all_it_added(
        row in any_row(), node in 0..3_u64, shard in 0..2_u16, at in 9..12_u64, value in -50..50_i128,
    ) {
        // A writer's cell is always ahead of what the row has of it.
        let own = Own { epoch: epoch(at), value, said: true, ..Own::default() };
        let cell = cell(node, shard);
        prop_assume!(row.cells.get(&cell).is_none_or(|_| at == 11));
        prop_assume!(row.spent.get(&cell).is_none_or(|spent| spent.epoch.millis <= at));
        let held = row.cells.get(&cell).map_or(0, |held| held.value);
        let taken = row.spent.get(&cell).filter(|spent| spent.epoch == own.epoch).map_or(0, |spent| spent.value);
        let owed = match own.shown(cell, &row, NOW) {
            Told::Stay => own.value - held,
            Told::Open(own) | Told::Reborn(own) => own.value,
            Told::Move => unreachable!("the row is neither due nor behind"),
        };
        prop_assert_eq!(owed + held + taken, value);
        let seen = Seen { snapshot: row.clone(), at: NOW };
        prop_assert_eq!(i128::from(read(&seen, NOW, &[(cell, own)]).unwrap().value), row.sum() + owed);
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
            // A put of a retired writer's cell is told, and moves nothing.
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
    fn expiry_agrees_on_all_nodes(row in any_row(), expires_at in 0..2_000_u64, looks in vec(0..5_000_u64, 1..6)) {
        let row = Snapshot { expires_at: Some(Millis(expires_at)), ..row };
        let own = Own { epoch: row.epoch, expires_at: row.expires_at, ..Own::default() };
        for look in looks {
            let counts = row.as_of(Millis(look));
            let (lapsed, swapped) = (own.lapse(Millis(look)), {
                let by = By { id: SwapId(u128::from(look)), node: NodeId(look), grace: GRACE };
                let seen = Seen { snapshot: row.clone(), at: Millis(look) };
                match compute(&seen, &by, &Change::Lapse).unwrap().next {
                    Next::Row(next) => next,
                    _ => row.clone(),
                }
            });
            let expected = if expires_at <= look { row.epoch.expired(Millis(expires_at)) } else { row.epoch };
            prop_assert_eq!((counts.epoch, lapsed.epoch, swapped.epoch), (expected, expected, expected));
            prop_assert_eq!(counts.sum(), if expires_at <= look { 0 } else { row.sum() });
            prop_assert_eq!(swapped.sum(), counts.sum());
        }
    }

    #[test]
    fn a_verdict_needs_no_more_than_comparing(row in any_row(), said in any_put()) {
        // What a verdict carries is copied from the row: an adapter has nothing to compute.
        match judge(&row, &said, NOW) {
            Verdict::Closed { value, .. } | Verdict::Stale { kept: value, .. } => {
                let held = row.cells.get(&said.cell).map(|held| held.value);
                let spent = row.spent.get(&said.cell).map(|spent| spent.value);
                prop_assert!(value == 0 || Some(value) == held || Some(value) == spent);
            }
            Verdict::Newest | Verdict::Older | Verdict::Behind { .. } => {}
        }
    }
}

/// One thing that happens to two writers, a row and whoever harvests it.
#[derive(Debug, Clone, Copy)]
enum Event {
    Add(usize, i8),
    Send(usize),
    Deliver(usize),
    Repeat(usize),
    Hear(usize),
    Look,
    Swap(bool),
    Retire(usize, bool),
}

fn any_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (0..2_usize, any::<i8>()).prop_map(|(writer, delta)| Event::Add(writer, delta)),
        4 => (0..2_usize).prop_map(Event::Send),
        3 => any::<usize>().prop_map(Event::Deliver),
        1 => any::<usize>().prop_map(Event::Repeat),
        2 => any::<usize>().prop_map(Event::Hear),
        1 => Just(Event::Look),
        2 => any::<bool>().prop_map(Event::Swap),
        1 => (0..2_usize, any::<bool>()).prop_map(|(writer, fold)| Event::Retire(writer, fold)),
    ]
}

/// Two writers, each with one cell that is reborn when it is retired.
struct Two {
    row: Option<Snapshot>,
    writers: [(CellId, Own, u64); 2],
    puts: Vec<Put>,
    verdicts: Vec<(Put, Verdict)>,
    seen: Seen, // what the next swap is computed from; others may act in between
    harvested: i128,
    ids: u128,
}

impl Two {
    fn new() -> Two {
        let writer = |node| (cell(node, 0), Own::default(), 0);
        let writers = [writer(1), writer(2)];
        let (puts, verdicts) = (Vec::new(), Vec::new());
        Two { row: None, writers, puts, verdicts, seen: Seen::default(), harvested: 0, ids: 0 }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Add(writer, delta) => {
                let own = &mut self.writers[writer].1;
                *own = own.added(i64::from(delta)).unwrap();
            }
            Event::Send(writer) => {
                let (cell, own, seq) = &mut self.writers[writer];
                *seq += 1;
                self.puts.extend(own.put(*cell, Seq(*seq)));
            }
            Event::Deliver(at) | Event::Repeat(at) if !self.puts.is_empty() => {
                let at = at % self.puts.len();
                let said = if matches!(event, Event::Deliver(_)) { self.puts.swap_remove(at) } else { self.puts[at] };
                let verdict = put(&mut self.row, &said, NOW);
                self.verdicts.push((said, verdict));
            }
            Event::Hear(at) if !self.verdicts.is_empty() => {
                let (said, verdict) = self.verdicts.swap_remove(at % self.verdicts.len());
                self.hear(&said, &verdict);
            }
            Event::Look => self.seen = Seen { snapshot: self.row.clone().unwrap_or_default(), at: NOW },
            Event::Swap(take) => self.swap(if take { Change::Take } else { Change::Reset }),
            Event::Retire(writer, fold) => {
                let writer = self.writers[writer].0.writer;
                self.seen = Seen { snapshot: self.row.clone().unwrap_or_default(), at: NOW };
                self.swap(if fold { Change::Fold(writer) } else { Change::Close(writer) });
            }
            Event::Deliver(_) | Event::Repeat(_) | Event::Hear(_) => {}
        }
    }

    fn hear(&mut self, said: &Put, verdict: &Verdict) {
        let Some((cell, own, _)) = self.writers.iter_mut().find(|(cell, ..)| *cell == said.cell) else { return };
        match own.told(said, verdict) {
            Told::Open(next) => *own = next,
            Told::Reborn(rest) => {
                cell.writer.incarnation.0 += 1;
                *own = rest;
            }
            Told::Stay => {}
            Told::Move => unreachable!("nothing expires here, and nothing is lost"),
        }
    }

    fn swap(&mut self, change: Change) {
        self.ids += 1;
        let by = By { id: SwapId(self.ids), node: NodeId(9), grace: GRACE };
        let computed = compute(&self.seen, &by, &change).unwrap();
        let present = self.row.as_ref().map_or(Version::ABSENT, |row| row.version);
        if present != self.seen.snapshot.version {
            return;
        }
        if let Next::Row(next) = computed.next {
            self.row = Some(next);
            if let Reply::Value(Some(value)) | Reply::Integer(value) = computed.reply
                && matches!(change, Change::Take | Change::Reset)
            {
                self.harvested += i128::from(value);
            }
        }
    }

    /// Both put until they are told that they have nothing left to say.
    fn settle(&mut self) {
        for writer in [0, 1, 0, 1, 0, 1, 0, 1] {
            let (cell, own, seq) = &mut self.writers[writer];
            *seq += 1;
            if let Some(said) = own.put(*cell, Seq(*seq)) {
                let verdict = put(&mut self.row, &said, NOW);
                self.hear(&said, &verdict);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn what_was_harvested_and_what_is_left_are_all_that_was_added(events in vec(any_event(), 0..60)) {
        let mut two = Two::new();
        let mut added = 0;
        for event in events {
            if let Event::Add(_, delta) = event {
                added += i128::from(delta);
            }
            two.happen(event);
        }
        while let Some(said) = two.puts.pop() {
            let verdict = put(&mut two.row, &said, NOW);
            two.verdicts.push((said, verdict));
        }
        two.settle();
        prop_assert_eq!(two.harvested + two.row.map_or(0, |row| row.sum()), added);
    }
}
