//! Laws of an incarnation's total: each add counts once, for any successor and any state that it
//! brings.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::{ExpiryCondition, ExpiryTime};

const CELL: CellId = CellId { writer: Writer { node: NodeId(1), incarnation: Incarnation(1) }, shard: Shard(0) };

/// End of the first epoch, if it expires.
const EXPIRY: Millis = Millis(500);

fn swap_at(row: &Snapshot, change: Change, at: Millis) -> (Snapshot, Reply) {
    let context = SwapContext { id: SwapId(1), node: NodeId(7), grace: GRACE, registered: &NO_WRITERS };
    let plan = plan_swap(&FetchedRow { snapshot: row.clone(), at }, &context, &change)
        .expect("values of the properties fit a reply");
    match plan.next {
        NextRow::Row(next) => (next, plan.reply),
        NextRow::Unchanged => (row.clone(), plan.reply),
        NextRow::Removed => (Snapshot::default(), plan.reply),
    }
}

/// A row with one incarnation, and the sum that the store counted of it and no longer has.
struct CountedRow {
    row: Snapshot,
    gone: i128,
}

impl CountedRow {
    /// Changes the row, and records the sum that a reset or an expiry took.
    fn swap(&mut self, change: Change, at: Millis) {
        let sum = self.row.sum();
        if self.row.is_due(at) {
            self.gone += sum;
        } else if let Change::Reset | Change::Take = change {
            self.gone += sum;
        }
        self.row = swap_at(&self.row, change, at).0;
    }

    fn put(&mut self, said: &Put, at: Millis) -> Verdict {
        let mut row = Some(std::mem::take(&mut self.row)).filter(|row| row.version != RowVersion::ABSENT);
        let verdict = put(&mut row, said, at);
        self.row = row.unwrap_or_default();
        verdict
    }

    fn all(&self) -> i128 {
        self.gone + self.row.sum()
    }
}

/// Event between two successors.
#[derive(Debug, Clone, Copy)]
enum Between {
    Nothing,
    Close,
    Fold,
    Reset,
    Take,
}

fn any_between() -> impl Strategy<Value = Between> {
    use Between::{Close, Fold, Nothing, Reset, Take};
    prop_oneof![3 => Just(Nothing), 1 => Just(Close), 2 => Just(Fold), 1 => Just(Reset), 1 => Just(Take)]
}

/// End of the first epoch.
#[derive(Debug, Clone, Copy)]
struct EpochEnd {
    expires: bool,
    known_before: bool, // known to the successor from before the carry
    known_after: bool,  // known to the writer that carries
}

fn any_end() -> impl Strategy<Value = EpochEnd> {
    (any::<bool>(), any::<bool>(), any::<bool>()).prop_map(|(expires, known_before, known_after)| EpochEnd {
        expires,
        known_before: expires && known_before,
        known_after: expires && known_after,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn heirs_from_before_and_after_a_carry_count_each_add_once_in_any_order(
        (put_first, said, unsaid, since) in (any::<bool>(), -9..10_i64, -9..10_i64, -9..10_i64),
        end in any_end(),
        lapses in any::<bool>(),
        brought in vec((any::<bool>(), any_between()), 1..6),
    ) {
        let expiry = |known: bool| known.then_some(EXPIRY);
        let mut store = CountedRow { row: Snapshot::default(), gone: 0 };
        store.put(&Put { cell: cell(2, 0), epoch: Epoch::FIRST, seq: Seq(1), value: 0, total: 0 }, Millis(1));
        if end.expires {
            let when = ExpiryTime::At(EXPIRY.0 as i64);
            store.swap(Change::Expire { when, condition: ExpiryCondition::Always }, Millis(2));
        }
        // The incarnation puts a value, adds more, and the epoch ends.
        let own = OwnValue::default().added(said).unwrap();
        if put_first {
            store.put(&own.put(CELL, Seq(1)).unwrap(), Millis(3));
        }
        let before = OwnValue { expires_at: expiry(end.known_before), ..own.added(unsaid).unwrap() };
        let lapses = lapses && end.known_after;
        store.swap(if end.expires { Change::Lapse } else { Change::Reset }, NOW);

        // One successor has the present state. In the other the incarnation went on: it carried the
        // rest, and added to it.
        let writer = OwnValue { expires_at: expiry(end.known_after), ..before };
        let writer = if lapses { writer.lapse(EXPIRY, Seq(3)).added(since).unwrap() } else { writer };
        let NextStep::Continue(carried) = writer.on_row(CELL, Seq(3), &store.row, NOW) else { panic!("{writer:?} goes on") };
        let after = if lapses { carried } else { carried.added(since).unwrap() };
        let (before_late, after_late) = (before.final_cell(CELL, Seq(2)).unwrap(), after.final_cell(CELL, Seq(4)).unwrap());

        let (said, unsaid, since) = (i128::from(said), i128::from(unsaid), i128::from(since));
        // A writer that knew the expiry drops the adds that were not put in time. This needs a row
        // that can prove the expiry, by a spent cell of this writer, or an expiry by the writer's
        // own clock.
        let kept = if put_first { said } else { 0 };
        let net_before = if end.known_before && put_first { kept } else { said + unsaid };
        let net_after = if end.known_after && (put_first || lapses) { kept + since } else { said + unsaid + since };
        prop_assert_eq!(after.total, said + unsaid + since);

        let mut net = kept;
        let (mut older, mut newer) = (false, false);
        for (from_after, between) in brought {
            let late = if from_after { after_late } else { before_late };
            store.swap(Change::Late(late), NOW);
            // One successor does not take back counts of the other. Nor does it bring back a value
            // that the other, which knew the expiry, let expire.
            net = match (from_after, newer) {
                (_, true) => net,
                (true, false) if older => net_before + since,
                (true, false) => net_after,
                (false, false) => net_before,
            };
            newer |= from_after;
            older |= !from_after;
            prop_assert_eq!(store.all(), net, "after {:?} on {:?}", late, store.row);
            let change = match between {
                Between::Nothing => continue,
                Between::Close => Change::Close(CELL.writer),
                Between::Fold => Change::Fold(CELL.writer),
                Between::Reset => Change::Reset,
                Between::Take => Change::Take,
            };
            store.swap(change, NOW);
            prop_assert_eq!(store.all(), net);
        }
        store.swap(Change::Late(after_late), NOW);
        net = if newer { net } else if older { net_before + since } else { net_after };
        prop_assert_eq!(store.all(), net, "all that the newest has is counted");
    }
}

/// One event of a writer and its counter.
#[derive(Debug, Clone, Copy)]
enum WriterEvent {
    Add(i8),
    Send,
    Deliver(usize),
    Verdict(usize),
    Fetch,
    Lapse(u64), // lead of the writer's clock
    Pass(u64),
    Reset,
    Take,
    Expire(i64),
    Persist,
}

fn any_event() -> impl Strategy<Value = WriterEvent> {
    prop_oneof![
        4 => any::<i8>().prop_map(WriterEvent::Add),
        3 => Just(WriterEvent::Send),
        3 => any::<usize>().prop_map(WriterEvent::Deliver),
        3 => any::<usize>().prop_map(WriterEvent::Verdict),
        2 => Just(WriterEvent::Fetch),
        2 => (0..10_u64).prop_map(WriterEvent::Lapse),
        2 => (1..15_u64).prop_map(WriterEvent::Pass),
        1 => Just(WriterEvent::Reset),
        1 => Just(WriterEvent::Take),
        2 => (0..30_i64).prop_map(WriterEvent::Expire),
        1 => Just(WriterEvent::Persist),
    ]
}

/// A writer alone with its counter.
struct OneWriter {
    store: CountedRow,
    now: Millis,
    own: OwnValue,
    seq: Seq,
    puts: Vec<Put>,
    verdicts: Vec<(Put, Verdict)>,
    added: i128,
    expired: i128, // sum that the writer let expire
}

impl OneWriter {
    fn new() -> OneWriter {
        let store = CountedRow { row: Snapshot::default(), gone: 0 };
        let (puts, verdicts) = (Vec::new(), Vec::new());
        OneWriter { store, now: NOW, own: OwnValue::default(), seq: Seq(0), puts, verdicts, added: 0, expired: 0 }
    }

    fn apply(&mut self, event: WriterEvent) {
        match event {
            WriterEvent::Add(delta) => {
                self.set_value(self.own.added(i64::from(delta)).unwrap());
                self.added += i128::from(delta);
            }
            WriterEvent::Send => self.puts.extend(self.own.put(CELL, self.seq)),
            WriterEvent::Deliver(at) if !self.puts.is_empty() => {
                let said = self.puts[at % self.puts.len()];
                let verdict = self.store.put(&said, self.now);
                self.verdicts.push((said, verdict));
            }
            WriterEvent::Verdict(at) if !self.verdicts.is_empty() => {
                let (said, verdict) = self.verdicts[at % self.verdicts.len()];
                let kept = if let Verdict::Stale { kept, .. } = verdict { kept } else { 0 };
                self.apply_next_step(self.own.on_verdict(&said, &verdict, self.seq), kept);
            }
            WriterEvent::Fetch => self.compare_with_row(),
            WriterEvent::Lapse(ahead) => {
                let lapsed = self.own.lapse(Millis(self.now.0 + ahead), Seq(self.seq.0 + 1));
                if lapsed != self.own {
                    self.set_value(lapsed);
                }
            }
            WriterEvent::Pass(millis) => self.now.0 += millis,
            WriterEvent::Reset => self.store.swap(Change::Reset, self.now),
            WriterEvent::Take => self.store.swap(Change::Take, self.now),
            WriterEvent::Expire(millis) => {
                let (when, condition) = (ExpiryTime::In(millis), ExpiryCondition::Always);
                // An expiry in the past also takes the row's value.
                let (sum, epoch, due) = (self.store.row.sum(), self.store.row.epoch, self.store.row.is_due(self.now));
                self.store.swap(Change::Expire { when, condition }, self.now);
                self.store.gone += if self.store.row.epoch != epoch && !due { sum } else { 0 };
            }
            WriterEvent::Persist => self.store.swap(Change::Persist, self.now),
            WriterEvent::Deliver(_) | WriterEvent::Verdict(_) => {}
        }
    }

    fn set_value(&mut self, own: OwnValue) {
        (self.own, self.seq) = (own, Seq(self.seq.0 + 1));
    }

    fn compare_with_row(&mut self) {
        if self.store.row.version == RowVersion::ABSENT {
            return;
        }
        self.own = self.own.with_row_expiry(&self.store.row);
        let epoch = self.own.pending_expiry.map_or(self.own.epoch, |lapsed| lapsed.epoch);
        let spent = self.store.row.spent.get(&CELL).filter(|spent| spent.epoch == epoch);
        let kept = spent.map_or(0, |spent| spent.value);
        match self.own.on_row(CELL, self.seq, &self.store.row, self.now) {
            NextStep::Move if self.store.row.is_due(self.now) => self.store.swap(Change::Lapse, self.now),
            next_step => self.apply_next_step(next_step, kept),
        }
    }

    /// Applies a next step. A value that is neither kept nor carried has expired.
    fn apply_next_step(&mut self, next_step: NextStep, kept: i128) {
        match next_step {
            NextStep::Continue(next) => {
                let before = self.own.value + self.own.pending_expiry.map_or(0, |lapsed| lapsed.value);
                let called_off = self.own.pending_expiry.is_some_and(|lapsed| lapsed.epoch == next.epoch);
                self.expired += before - next.value - if called_off { 0 } else { kept };
                self.set_value(next);
            }
            NextStep::Move | NextStep::Keep => {}
            NextStep::Retired | NextStep::Superseded => unreachable!("nobody retires it, and it has no twin"),
        }
    }

    /// Puts and fetches until the store has the newest state.
    fn settle(&mut self) {
        self.now.0 += 100; // past every expiry, by any clock
        for _ in 0..6 {
            self.compare_with_row();
            self.apply(WriterEvent::Send);
            if let Some(said) = self.own.put(CELL, self.seq) {
                let verdict = self.store.put(&said, self.now);
                self.verdicts.push((said, verdict));
                self.apply(WriterEvent::Verdict(self.verdicts.len() - 1));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn a_total_is_all_that_was_added_and_the_store_counts_it_less_what_expired(events in vec(any_event(), 0..80)) {
        let mut one = OneWriter::new();
        for event in events {
            one.apply(event);
            prop_assert_eq!(one.own.total, one.added, "after {:?}: {:?}", event, one.own);
        }
        one.settle();
        prop_assert_eq!(one.own.total, one.added);
        prop_assert!(one.own.pending_expiry.is_none());
        prop_assert_eq!(one.store.all(), one.added - one.expired);
    }
}

/// One event of a counter after an incarnation expired its cell by its own clock and ended.
#[derive(Debug, Clone, Copy)]
enum LateEvent {
    Bring(usize), // a successor brings the uncounted value of some state
    Pass(u64),
    Persist,
    Expire(i64),
    Reset,
    Take,
    SetOn, // keeps the expiry
    Close,
    Fold,
}

fn any_after() -> impl Strategy<Value = LateEvent> {
    prop_oneof![
        6 => any::<usize>().prop_map(LateEvent::Bring),
        2 => (1..300_u64).prop_map(LateEvent::Pass),
        1 => Just(LateEvent::Persist),
        1 => (0..600_i64).prop_map(LateEvent::Expire),
        1 => Just(LateEvent::Reset),
        1 => Just(LateEvent::Take),
        2 => Just(LateEvent::SetOn),
        1 => Just(LateEvent::Close),
        1 => Just(LateEvent::Fold),
    ]
}

/// An ended incarnation, as one of its successors has it.
#[derive(Debug, Clone, Copy)]
struct SuccessorValue {
    own: OwnValue,
    seq: Seq,
}

impl SuccessorValue {
    /// Settles as far as the row allows, as an engine does; returns true if nothing is left.
    fn settle(&mut self, store: &mut CountedRow, now: Millis) -> bool {
        for _ in 0..8 {
            self.own = self.own.with_row_expiry(&store.row);
            let next_step = self.own.on_row(CELL, self.seq, &store.row, now);
            match (next_step, self.own.pending_expiry) {
                (NextStep::Superseded, _) => return true,
                (NextStep::Continue(decided), Some(_)) => self.own = decided,
                (NextStep::Move, _) if store.row.is_due(now) => store.swap(Change::Lapse, now),
                (NextStep::Move, Some(lapsed)) => store.swap(Change::CatchUp(lapsed.epoch), now),
                _ if store.row.newest(CELL) == Some(self.seq) => return true,
                _ => match self.own.final_cell(CELL, self.seq) {
                    Some(late) => store.swap(Change::Late(late), now),
                    None => return self.own.pending_expiry.is_none(),
                },
            }
        }
        panic!("{self:?} is not done with {:?}", store.row)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8_000))]

    #[test]
    fn heirs_of_a_lapse_may_decide_it_differently_and_each_add_counts_at_most_once(
        put_first in any::<bool>(),
        events in vec(any_after(), 0..30),
    ) {
        let mut store = CountedRow { row: Snapshot::default(), gone: 0 };
        store.put(&Put { cell: cell(2, 0), epoch: Epoch::FIRST, seq: Seq(1), value: 0, total: 0 }, Millis(1));
        let when = ExpiryTime::At(EXPIRY.0 as i64);
        store.swap(Change::Expire { when, condition: ExpiryCondition::Always }, Millis(2));
        // Each add is a bit of its own, so a sum shows its adds, unless one is in it twice.
        let mut own = OwnValue::default().added(1).unwrap().with_row_expiry(&store.row);
        if put_first {
            store.put(&own.put(CELL, Seq(1)).unwrap(), Millis(3));
        }
        own = own.added(2).unwrap().lapse(EXPIRY, Seq(3));
        let mut successors = vec![SuccessorValue { own, seq: Seq(3) }];
        for bit in 2..6 {
            own = own.added(1 << bit).unwrap();
            successors.push(SuccessorValue { own, seq: Seq(bit + 2) });
        }
        let (mut now, mut set) = (Millis(10), 0);
        for event in events {
            let change = match event {
                LateEvent::Bring(at) => {
                    let at = at % successors.len();
                    successors[at].settle(&mut store, now);
                    None
                }
                LateEvent::Pass(millis) => {
                    now.0 += millis;
                    None
                }
                LateEvent::Persist => Some(Change::Persist),
                LateEvent::Expire(millis) => {
                    let (when, condition) = (ExpiryTime::In(millis + 1), ExpiryCondition::Always);
                    Some(Change::Expire { when, condition })
                }
                LateEvent::Reset => Some(Change::Reset),
                LateEvent::Take => Some(Change::Take),
                LateEvent::SetOn => {
                    store.gone += if store.row.is_due(now) { 0 } else { store.row.sum() };
                    set += 1_000;
                    Some(Change::Set { value: 1_000, expiry: SetExpiry::Keep, reply_old: false })
                }
                LateEvent::Close => Some(Change::Close(CELL.writer)),
                LateEvent::Fold => Some(Change::Fold(CELL.writer)),
            };
            change.into_iter().for_each(|change| store.swap(change, now));
            let counted = store.all() - set;
            prop_assert!((0..64).contains(&counted), "{counted} after {event:?} on {:?}", store.row);
        }
        now.0 += 10_000;
        let newest = successors.last_mut().expect("there are some");
        prop_assert!(newest.settle(&mut store, now));
        let counted = store.all() - set;
        prop_assert!((0..64).contains(&counted) && counted >> 2 == 15, "{counted}: {:?}", store.row);
    }
}
