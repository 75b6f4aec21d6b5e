//! Laws of the total of a life: whoever brings whatever state of it, each add counts once.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::{ExpiryCondition, When};

const LIFE: CellId = CellId { writer: Writer { node: NodeId(1), incarnation: Incarnation(1) }, shard: Shard(0) };

/// When the first epoch ends, if it expires.
const EXPIRY: Millis = Millis(500);

fn swap_at(row: &Snapshot, change: Change, at: Millis) -> (Snapshot, Reply) {
    let by = By { id: SwapId(1), node: NodeId(7), grace: GRACE, registered: &NOBODY };
    let computed =
        compute(&Seen { snapshot: row.clone(), at }, &by, &change).expect("values of the properties fit a reply");
    match computed.next {
        Next::Row(next) => (next, computed.reply),
        Next::Same => (row.clone(), computed.reply),
        Next::Gone => (Snapshot::default(), computed.reply),
    }
}

/// One life, and what the store counted of it that is no longer in the row.
struct Counted {
    row: Snapshot,
    gone: i128,
}

impl Counted {
    /// Changes the row, and notes what a reset or an expiry took.
    fn swap(&mut self, change: Change, at: Millis) {
        let sum = self.row.sum();
        if self.row.due(at) {
            self.gone += sum;
        } else if let Change::Reset | Change::Take = change {
            self.gone += sum;
        }
        self.row = swap_at(&self.row, change, at).0;
    }

    fn put(&mut self, said: &Put, at: Millis) -> Verdict {
        let mut row = Some(std::mem::take(&mut self.row)).filter(|row| row.version != Version::ABSENT);
        let verdict = put(&mut row, said, at);
        self.row = row.unwrap_or_default();
        verdict
    }

    fn all(&self) -> i128 {
        self.gone + self.row.sum()
    }
}

/// What happens between two heirs.
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

/// How the first epoch ends.
#[derive(Debug, Clone, Copy)]
struct End {
    expires: bool,
    known_before: bool, // to the heir from before the carry
    known_after: bool,  // to the writer that carries
}

fn any_end() -> impl Strategy<Value = End> {
    (any::<bool>(), any::<bool>(), any::<bool>()).prop_map(|(expires, known_before, known_after)| End {
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
        let mut store = Counted { row: Snapshot::default(), gone: 0 };
        store.put(&Put { cell: cell(2, 0), epoch: Epoch::FIRST, seq: Seq(1), value: 0, total: 0 }, Millis(1));
        if end.expires {
            let when = When::At(EXPIRY.0 as i64);
            store.swap(Change::Expire { when, condition: ExpiryCondition::Always }, Millis(2));
        }
        // The life says something, adds more, and the epoch ends.
        let own = Own::default().added(said).unwrap();
        if put_first {
            store.put(&own.put(LIFE, Seq(1)).unwrap(), Millis(3));
        }
        let before = Own { expires_at: expiry(end.known_before), ..own.added(unsaid).unwrap() };
        let lapses = lapses && end.known_after;
        store.swap(if end.expires { Change::Lapse } else { Change::Reset }, NOW);

        // One heir is from now. To the other, the life went on: it carried what was left, and added to it.
        let writer = Own { expires_at: expiry(end.known_after), ..before };
        let writer = if lapses { writer.lapse(EXPIRY).added(since).unwrap() } else { writer };
        let Told::Open(carried) = writer.shown(LIFE, Seq(3), &store.row, NOW) else { panic!("{writer:?} goes on") };
        let after = if lapses { carried } else { carried.added(since).unwrap() };
        let (before_put, after_put) = (before.put(LIFE, Seq(2)).unwrap(), after.put(LIFE, Seq(4)).unwrap());

        let (said, unsaid, since) = (i128::from(said), i128::from(unsaid), i128::from(since));
        // Who knew of the expiry lets go of what was not put by then, if the row can tell, as it can whom it knew, or if it went by its own clock.
        let kept = if put_first { said } else { 0 };
        let net_before = if end.known_before && put_first { kept } else { said + unsaid };
        let net_after = if end.known_after && (put_first || lapses) { kept + since } else { said + unsaid + since };
        prop_assert_eq!(after.total, net_after);

        let mut net = kept;
        let mut newer = false;
        for (from_after, between) in brought {
            let (put, expires_at) =
                if from_after { (after_put, after.expires_at) } else { (before_put, before.expires_at) };
            store.swap(Change::Late { put, expires_at }, NOW);
            newer |= from_after;
            net = if newer { net_after } else { net_before };
            prop_assert_eq!(store.all(), net, "after {:?} on {:?}", put, store.row);
            let change = match between {
                Between::Nothing => continue,
                Between::Close => Change::Close(LIFE.writer),
                Between::Fold => Change::Fold(LIFE.writer),
                Between::Reset => Change::Reset,
                Between::Take => Change::Take,
            };
            store.swap(change, NOW);
            prop_assert_eq!(store.all(), net);
        }
        store.swap(Change::Late { put: after_put, expires_at: after.expires_at }, NOW);
        prop_assert_eq!(store.all(), net_after, "the newest is what counts, {} before", net);
    }
}

/// One thing that happens to a writer and its counter.
#[derive(Debug, Clone, Copy)]
enum Event {
    Add(i8),
    Send,
    Deliver(usize),
    Hear(usize),
    Look,
    Lapse(u64), // the writer's clock is so far ahead
    Pass(u64),
    Reset,
    Take,
    Expire(i64),
    Persist,
}

fn any_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => any::<i8>().prop_map(Event::Add),
        3 => Just(Event::Send),
        3 => any::<usize>().prop_map(Event::Deliver),
        3 => any::<usize>().prop_map(Event::Hear),
        2 => Just(Event::Look),
        2 => (0..10_u64).prop_map(Event::Lapse),
        2 => (1..15_u64).prop_map(Event::Pass),
        1 => Just(Event::Reset),
        1 => Just(Event::Take),
        2 => (0..30_i64).prop_map(Event::Expire),
        1 => Just(Event::Persist),
    ]
}

/// A writer alone with its counter.
struct One {
    store: Counted,
    now: Millis,
    own: Own,
    seq: Seq,
    puts: Vec<Put>,
    verdicts: Vec<(Put, Verdict)>,
    added: i128,
    expired: i128, // what it let go of
}

impl One {
    fn new() -> One {
        let store = Counted { row: Snapshot::default(), gone: 0 };
        let (puts, verdicts) = (Vec::new(), Vec::new());
        One { store, now: NOW, own: Own::default(), seq: Seq(0), puts, verdicts, added: 0, expired: 0 }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Add(delta) => {
                self.say(self.own.added(i64::from(delta)).unwrap());
                self.added += i128::from(delta);
            }
            Event::Send => self.puts.extend(self.own.put(LIFE, self.seq)),
            Event::Deliver(at) if !self.puts.is_empty() => {
                let said = self.puts[at % self.puts.len()];
                let verdict = self.store.put(&said, self.now);
                self.verdicts.push((said, verdict));
            }
            Event::Hear(at) if !self.verdicts.is_empty() => {
                let (said, verdict) = self.verdicts[at % self.verdicts.len()];
                let kept = if let Verdict::Stale { kept, .. } = verdict { kept } else { 0 };
                self.heed(self.own.told(&said, &verdict), kept);
            }
            Event::Look => self.look(),
            Event::Lapse(ahead) => {
                let lapsed = self.own.lapse(Millis(self.now.0 + ahead));
                if lapsed != self.own {
                    self.say(lapsed);
                }
            }
            Event::Pass(millis) => self.now.0 += millis,
            Event::Reset => self.store.swap(Change::Reset, self.now),
            Event::Take => self.store.swap(Change::Take, self.now),
            Event::Expire(millis) => {
                let (when, condition) = (When::In(millis), ExpiryCondition::Always);
                // One that is past already takes what the row holds, too.
                let (sum, epoch, due) = (self.store.row.sum(), self.store.row.epoch, self.store.row.due(self.now));
                self.store.swap(Change::Expire { when, condition }, self.now);
                self.store.gone += if self.store.row.epoch != epoch && !due { sum } else { 0 };
            }
            Event::Persist => self.store.swap(Change::Persist, self.now),
            Event::Deliver(_) | Event::Hear(_) => {}
        }
    }

    fn say(&mut self, own: Own) {
        (self.own, self.seq) = (own, Seq(self.seq.0 + 1));
    }

    fn look(&mut self) {
        if self.store.row.version == Version::ABSENT {
            return;
        }
        self.own = self.own.informed(&self.store.row);
        let epoch = self.own.lapsed.map_or(self.own.epoch, |lapsed| lapsed.epoch);
        let spent = self.store.row.spent.get(&LIFE).filter(|spent| spent.epoch == epoch);
        let kept = spent.map_or(0, |spent| spent.value);
        match self.own.shown(LIFE, self.seq, &self.store.row, self.now) {
            Told::Move if self.store.row.due(self.now) => self.store.swap(Change::Lapse, self.now),
            told => self.heed(told, kept),
        }
    }

    /// Goes on as it was told. What is neither kept nor carried has expired.
    fn heed(&mut self, told: Told, kept: i128) {
        match told {
            Told::Open(next) => {
                let before = self.own.value + self.own.lapsed.map_or(0, |lapsed| lapsed.value);
                let called_off = self.own.lapsed.is_some_and(|lapsed| lapsed.epoch == next.epoch);
                self.expired += before - next.value - if called_off { 0 } else { kept };
                self.say(next);
            }
            Told::Move | Told::Stay => {}
            Told::Over | Told::Outdone => unreachable!("nobody retires it, and it has no twin"),
        }
    }

    /// Puts and looks until the store knows the newest.
    fn settle(&mut self) {
        self.now.0 += 100; // past every expiry, by anybody's clock
        for _ in 0..6 {
            self.look();
            self.happen(Event::Send);
            if let Some(said) = self.own.put(LIFE, self.seq) {
                let verdict = self.store.put(&said, self.now);
                self.verdicts.push((said, verdict));
                self.happen(Event::Hear(self.verdicts.len() - 1));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn a_total_is_all_that_was_added_less_what_expired_and_all_that_the_store_counts(events in vec(any_event(), 0..80)) {
        let mut one = One::new();
        for event in events {
            one.happen(event);
            prop_assert_eq!(one.own.total, one.added - one.expired, "after {:?}: {:?}", event, one.own);
        }
        one.settle();
        prop_assert_eq!(one.own.total, one.added - one.expired);
        prop_assert!(one.own.lapsed.is_none());
        prop_assert_eq!(one.store.all(), one.own.total);
    }
}
