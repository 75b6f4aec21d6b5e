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
        let writer = if lapses { writer.lapse(EXPIRY, Seq(3)).added(since).unwrap() } else { writer };
        let Told::Open(carried) = writer.shown(LIFE, Seq(3), &store.row, NOW) else { panic!("{writer:?} goes on") };
        let after = if lapses { carried } else { carried.added(since).unwrap() };
        let (before_late, after_late) = (before.late(LIFE, Seq(2)).unwrap(), after.late(LIFE, Seq(4)).unwrap());

        let (said, unsaid, since) = (i128::from(said), i128::from(unsaid), i128::from(since));
        // Who knew of the expiry lets go of what was not put by then, if the row can tell, as it can whom it knew, or if it went by its own clock.
        let kept = if put_first { said } else { 0 };
        let net_before = if end.known_before && put_first { kept } else { said + unsaid };
        let net_after = if end.known_after && (put_first || lapses) { kept + since } else { said + unsaid + since };
        prop_assert_eq!(after.total, said + unsaid + since);

        let mut net = kept;
        let (mut older, mut newer) = (false, false);
        for (from_after, between) in brought {
            let late = if from_after { after_late } else { before_late };
            store.swap(Change::Late(late), NOW);
            // What one has counted the other does not take back, and what one who knew of the expiry let go of the other does not bring back.
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
                Between::Close => Change::Close(LIFE.writer),
                Between::Fold => Change::Fold(LIFE.writer),
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
                self.heed(self.own.told(&said, &verdict, self.seq), kept);
            }
            Event::Look => self.look(),
            Event::Lapse(ahead) => {
                let lapsed = self.own.lapse(Millis(self.now.0 + ahead), Seq(self.seq.0 + 1));
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
    fn a_total_is_all_that_was_added_and_the_store_counts_it_less_what_expired(events in vec(any_event(), 0..80)) {
        let mut one = One::new();
        for event in events {
            one.happen(event);
            prop_assert_eq!(one.own.total, one.added, "after {:?}: {:?}", event, one.own);
        }
        one.settle();
        prop_assert_eq!(one.own.total, one.added);
        prop_assert!(one.own.lapsed.is_none());
        prop_assert_eq!(one.store.all(), one.added - one.expired);
    }
}

/// One thing that happens to a counter on which a life has lapsed by its own clock and is over.
#[derive(Debug, Clone, Copy)]
enum After {
    Bring(usize), // what some state of that life still owes
    Pass(u64),
    Persist,
    Expire(i64),
    Reset,
    Take,
    SetOn, // and the expiry stays
    Close,
    Fold,
}

fn any_after() -> impl Strategy<Value = After> {
    prop_oneof![
        6 => any::<usize>().prop_map(After::Bring),
        2 => (1..300_u64).prop_map(After::Pass),
        1 => Just(After::Persist),
        1 => (0..600_i64).prop_map(After::Expire),
        1 => Just(After::Reset),
        1 => Just(After::Take),
        2 => Just(After::SetOn),
        1 => Just(After::Close),
        1 => Just(After::Fold),
    ]
}

/// A life that is over, as one of its heirs has it.
#[derive(Debug, Clone, Copy)]
struct Heir {
    own: Own,
    seq: Seq,
}

impl Heir {
    /// Does what the row lets it do, as an engine does for an older life; whether there is nothing left.
    fn settle(&mut self, store: &mut Counted, now: Millis) -> bool {
        for _ in 0..8 {
            self.own = self.own.informed(&store.row);
            let told = self.own.shown(LIFE, self.seq, &store.row, now);
            match (told, self.own.lapsed) {
                (Told::Outdone, _) => return true,
                (Told::Open(decided), Some(_)) => self.own = decided,
                (Told::Move, _) if store.row.due(now) => store.swap(Change::Lapse, now),
                (Told::Move, Some(lapsed)) => store.swap(Change::CatchUp(lapsed.epoch), now),
                _ if store.row.newest(LIFE) == Some(self.seq) => return true,
                _ => match self.own.late(LIFE, self.seq) {
                    Some(late) => store.swap(Change::Late(late), now),
                    None => return self.own.lapsed.is_none(),
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
        let mut store = Counted { row: Snapshot::default(), gone: 0 };
        store.put(&Put { cell: cell(2, 0), epoch: Epoch::FIRST, seq: Seq(1), value: 0, total: 0 }, Millis(1));
        let when = When::At(EXPIRY.0 as i64);
        store.swap(Change::Expire { when, condition: ExpiryCondition::Always }, Millis(2));
        // Each add is a bit of its own, so that a sum says which are in it, unless one is in it twice.
        let mut own = Own::default().added(1).unwrap().informed(&store.row);
        if put_first {
            store.put(&own.put(LIFE, Seq(1)).unwrap(), Millis(3));
        }
        own = own.added(2).unwrap().lapse(EXPIRY, Seq(3));
        let mut heirs = vec![Heir { own, seq: Seq(3) }];
        for bit in 2..6 {
            own = own.added(1 << bit).unwrap();
            heirs.push(Heir { own, seq: Seq(bit + 2) });
        }
        let (mut now, mut set) = (Millis(10), 0);
        for event in events {
            let change = match event {
                After::Bring(at) => {
                    let at = at % heirs.len();
                    heirs[at].settle(&mut store, now);
                    None
                }
                After::Pass(millis) => {
                    now.0 += millis;
                    None
                }
                After::Persist => Some(Change::Persist),
                After::Expire(millis) => {
                    let (when, condition) = (When::In(millis + 1), ExpiryCondition::Always);
                    Some(Change::Expire { when, condition })
                }
                After::Reset => Some(Change::Reset),
                After::Take => Some(Change::Take),
                After::SetOn => {
                    store.gone += if store.row.due(now) { 0 } else { store.row.sum() };
                    set += 1_000;
                    Some(Change::Set { value: 1_000, expiry: SetExpiry::Keep, reply_old: false })
                }
                After::Close => Some(Change::Close(LIFE.writer)),
                After::Fold => Some(Change::Fold(LIFE.writer)),
            };
            change.into_iter().for_each(|change| store.swap(change, now));
            let counted = store.all() - set;
            prop_assert!((0..64).contains(&counted), "{counted} after {event:?} on {:?}", store.row);
        }
        now.0 += 10_000;
        let newest = heirs.last_mut().expect("there are some");
        prop_assert!(newest.settle(&mut store, now));
        let counted = store.all() - set;
        prop_assert!((0..64).contains(&counted) && counted >> 2 == 15, "{counted}: {:?}", store.row);
    }
}
