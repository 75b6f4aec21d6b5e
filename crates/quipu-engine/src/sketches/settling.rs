//! How far the store knows a body of this node, and what it would have to be told again.
//!
//! In: changes of the body, puts of it and what became of them. Out: the pages to put, and what was counted since the store last kept something.
//!
//! What was counted since is kept twice: in the body, and by itself, in **stretches** that end where a put was made. If an epoch ends, what the store kept of it is gone with it, and the stretches after that are what this node goes on
//! with: nothing that was acknowledged is lost, and nothing comes back. A body alone could not tell: an item that was counted before leaves no trace when it is counted again.
//!
//! Stretches are in memory only. After a restart it is not known what was counted since, if anything was: then all of the body is gone on with.
//!
//! A body of the node itself may be of several processes, each with a copy of its directory. Their puts are one **chain** all the same: each goes on from the one before, has all that is in it, and has a greater seq. So a process has
//! to know of two things: up to which put its body has what is in the chain, and which seqs it has given itself, for what it has put after that. Whatever else the store has is of another, and is taken in before anything is put, which
//! does no harm: only what may be taken in twice is the node's. A body of a life is of that life alone, and so is whatever the store has of it.
//!
//! Invariants:
//! - a page that the store does not have as it is in the body is in `changed` or `sent`, or the whole body is put;
//! - stretches have all that was counted after `known_from`;
//! - what was counted up to `known_from` is in the chain, unless it is `unsure`;
//! - the body has all that the chain has up to `included`.

use quipu_model::Millis;
use quipu_model::shared::{NODE, Seq};
use quipu_sketch::Sketch;

use super::pages::Pages;
use crate::sharing::own::OwnCell;

/// Stretches that are kept apart: each is a put whose outcome is not known. Of more, the oldest two become one.
const STRETCHES_MAX: usize = 4;

/// See the module.
#[derive(Debug)]
pub struct Settling {
    changed: Pages,
    /// Put, and not confirmed.
    sent: Option<Sent>,
    /// The newest put that the store is believed to have; `None`: none of this epoch.
    base: Option<Seq>,
    /// The next put has the whole body.
    whole: bool,
    /// The newest put of this epoch that is in the body, whoever made it: all before it are, too.
    included: Seq,
    /// Seqs that were given to states of this body before this process began.
    line: Option<(Seq, Seq)>,
    /// This process has given seqs from here on; of a life's body, all of them are its own.
    ours_from: Option<Seq>,
    stretches: Vec<Stretch>,
    known_from: u64,
    /// Of what was counted before, some may be in no put that the store has.
    unsure: bool,
    /// By this node's clock the counter expired then, when the body had this version.
    lapsed: Option<(Millis, u64)>,
}

#[derive(Debug)]
struct Stretch {
    /// The version that the body had after what was counted in it last.
    to: u64,
    /// Nothing is counted in it any more.
    closed: bool,
    sketch: Sketch,
}

#[derive(Debug)]
struct Sent {
    seq: Seq,
    version: u64,
    pages: Pages,
}

/// What a put brings.
#[derive(Debug)]
pub struct Sending {
    /// What it goes on from.
    pub from: Option<Seq>,
    /// It has all pages.
    pub whole: bool,
    /// Else these.
    pub pages: Pages,
}

/// What this node goes on with when an epoch has ended.
#[derive(Debug)]
pub enum Rest<'s> {
    /// Nothing: the store has kept all of it.
    Nothing,
    /// What was counted since, in several sketches.
    Since(Vec<&'s Sketch>),
    /// It is not known what was counted since: all of the body.
    All,
}

impl Settling {
    /// Of a body that is begun, under an epoch of which the store has none yet.
    pub fn begun(cell: &OwnCell, version: u64) -> Settling {
        Settling {
            changed: Pages::default(),
            sent: None,
            base: None,
            whole: true,
            included: Seq(0),
            line: None,
            ours_from: (cell.incarnation != NODE).then_some(Seq(0)),
            stretches: Vec::new(),
            known_from: version,
            unsure: false,
            lapsed: None,
        }
    }

    /// Of a body that was found at a start, or that is begun, with what its cell says.
    pub fn of(cell: &OwnCell, version: u64) -> Settling {
        let begun = Settling::begun(cell, version);
        if !cell.own.said {
            return begun;
        }
        let (included, unsure) = (cell.included(), cell.included() < cell.seq);
        let line = (unsure && cell.incarnation == NODE).then(|| (cell.line_from(), cell.seq));
        Settling { included, line, unsure, ..begun }
    }

    /// The seq to go on from: this one, or, if this process has given none since it last met with another's, one far enough from it that nobody else who goes on from there gives the same.
    pub fn leap(&mut self, seq: Seq, random: u64) -> Seq {
        if self.ours_from.is_some_and(|from| from <= seq) {
            return seq;
        }
        // 32 bits: versions of rows, which some stores make of seqs, have room for thousands of such leaps.
        let leapt = Seq(seq.0.saturating_add(1 + (random >> 32)));
        self.ours_from = Some(leapt);
        leapt
    }

    /// The same, where the row knows a seq of this node, given by somebody else, that may be greater.
    pub fn leap_over(&mut self, seq: Seq, newest: Seq, random: u64) -> Seq {
        if newest > seq
            && let Some(from) = self.ours_from.take()
        {
            self.line = Some((self.line.map_or(from, |(first, _)| first), seq));
        }
        self.leap(seq.max(newest), random)
    }

    /// Whether it is certain that a put of this epoch is of a state that this body had, or is in it.
    pub fn has(&self, seq: Seq) -> bool {
        let in_line = self.line.is_some_and(|(from, to)| (from..=to).contains(&seq));
        // One before what is included may be another's: a store that went back may have gone on from there with it.
        seq == self.included || in_line || self.ours_from.is_some_and(|from| seq >= from)
    }

    /// What is written down of it with the cell: the newest put that is in the body, and from where on seqs were given to states of it.
    pub fn line(&self) -> (Seq, Seq) {
        (self.included, self.ours_from.unwrap_or_default())
    }

    /// A page has changed.
    pub fn note(&mut self, pages: std::ops::Range<usize>) {
        self.changed.insert_all(pages);
    }

    /// The sketch that has what is counted from here on, when the body has this version, and gets the next one.
    pub fn stretch(&mut self, version: u64, make: impl FnOnce() -> Option<Sketch>) -> Option<&mut Sketch> {
        if self.stretches.last().is_none_or(|stretch| stretch.closed) {
            let sketch = make()?;
            self.stretches.push(Stretch { to: version, closed: false, sketch });
        }
        let stretch = self.stretches.last_mut()?;
        stretch.to = version + 1;
        Some(&mut stretch.sketch)
    }

    /// The body goes on under another epoch, of which the store has nothing yet, with what was carried into it.
    pub fn begin_epoch(&mut self, version: u64, carried: Option<Sketch>) {
        (self.changed, self.sent, self.base, self.whole) = (Pages::default(), None, None, true);
        (self.included, self.line, self.known_from, self.unsure, self.lapsed) = (Seq(0), None, 0, false, None);
        self.stretches.clear();
        self.stretches.extend(carried.map(|sketch| Stretch { to: version, closed: false, sketch }));
    }

    /// The body goes on from a put that somebody else has made, who may go on from there as well: it had that version, and this body has taken it in.
    pub fn adopted(&mut self, held: Seq, version: u64) {
        (self.base, self.included, self.known_from, self.ours_from) = (Some(held), held, version, None);
    }

    /// The body has taken in something else that the store does not know, all of it at once, and has this version now.
    pub fn took(&mut self, version: u64, sketch: Sketch) {
        if let Some(stretch) = self.stretches.last_mut() {
            stretch.closed = true;
        }
        self.stretches.push(Stretch { to: version, closed: true, sketch });
        self.whole = true;
    }

    /// What was counted cannot be kept by itself any more: it is not known.
    pub fn lose_track(&mut self, version: u64) {
        self.stretches.clear();
        (self.known_from, self.unsure) = (version, true);
    }

    /// A put of the body as it is now.
    pub fn send(&mut self, seq: Seq, version: u64, mut merge: impl FnMut(&mut Sketch, &Sketch) -> bool) -> Sending {
        let mut pages = std::mem::take(&mut self.changed);
        if let Some(sent) = self.sent.take() {
            // Nobody knows whether it is there.
            pages.add(&sent.pages);
        }
        if let Some(stretch) = self.stretches.last_mut() {
            stretch.closed = true;
        }
        if self.stretches.len() > STRETCHES_MAX {
            let second = self.stretches.remove(1);
            let first = &mut self.stretches[0];
            if merge(&mut first.sketch, &second.sketch) {
                first.to = second.to;
            } else {
                self.lose_track(version);
            }
        }
        self.sent = Some(Sent { seq, version, pages: pages.clone() });
        Sending { from: self.base, whole: self.whole, pages }
    }

    /// The store has, or had, this put, when the body had this version.
    pub fn confirmed(&mut self, seq: Seq, version: u64) {
        if seq < self.included {
            // The body has taken in another's since, which has this one.
            return;
        }
        (self.base, self.whole, self.included) = (Some(seq), false, seq);
        if self.sent.as_ref().is_some_and(|sent| sent.seq <= seq) {
            self.sent = None;
        }
        self.stretches.retain(|stretch| stretch.to > version);
        if version >= self.known_from {
            (self.known_from, self.unsure, self.line) = (version, false, None);
        }
    }

    /// The store has another put than the one that was gone on from. Whether the next put can go on from that; if not, it is of somebody else, and is to be looked at.
    pub fn gap(&mut self, held: Option<Seq>) -> bool {
        match (held, &self.sent) {
            // The answer to it was lost. Pages since then are all there.
            (Some(held), Some(sent)) if held == sent.seq && !self.whole => self.base = Some(held),
            (Some(held), _) if self.has(held) => (self.base, self.whole) = (Some(held), true),
            (None, _) => (self.base, self.whole) = (None, true),
            _ => return false,
        }
        true
    }

    /// The put that was sent last.
    pub fn sent(&self) -> Option<(Seq, u64)> {
        self.sent.as_ref().map(|sent| (sent.seq, sent.version))
    }

    /// The version up to which what was counted is known to be in the chain; none if that is not known.
    pub fn surely_in(&self) -> Option<u64> {
        (!self.unsure).then_some(self.known_from)
    }

    /// By this node's clock the counter has expired, and the body has this version.
    pub fn lapse(&mut self, expires_at: Millis, version: u64) {
        self.lapsed = Some((expires_at, version));
        if let Some(stretch) = self.stretches.last_mut() {
            stretch.closed = true;
        }
    }

    /// The version up to which what was counted expired with the counter, if this node knew of that expiry and has noticed it.
    pub fn lapsed(&self, expired: Millis) -> Option<u64> {
        self.lapsed.filter(|(at, _)| *at == expired).map(|(_, version)| version)
    }

    /// What was counted after a version, up to this one.
    pub fn rest(&self, after: u64, version: u64) -> Rest<'_> {
        if after >= version {
            return Rest::Nothing;
        }
        // Nothing is changed in between by nobody: from the version that is known on, stretches have everything.
        if after < self.known_from {
            return Rest::All;
        }
        Rest::Since(self.stretches.iter().filter(|stretch| stretch.to > after).map(|stretch| &stretch.sketch).collect())
    }

    /// Whether what was counted after a version is known by itself: no stretch began before it and ended after it.
    pub fn has_boundary(&self, version: u64) -> bool {
        version == self.known_from || self.stretches.iter().any(|stretch| stretch.to == version)
    }

    /// Bytes of memory it takes.
    pub fn memory(&self) -> usize {
        let stretches: usize =
            self.stretches.iter().map(|stretch| size_of::<Stretch>() + stretch.sketch.memory()).sum();
        let sent = self.sent.as_ref().map_or(0, |sent| sent.pages.memory());
        size_of::<Settling>() + self.changed.memory() + sent + stretches
    }
}

#[cfg(test)]
mod tests {
    use quipu_model::Incarnation;
    use quipu_model::shared::Shard;
    use quipu_sketch::{Edits, Hll};

    use super::*;
    use crate::sharing::own::Owned;

    fn hll(items: &[&str]) -> Sketch {
        let (mut hll, mut edits) = (Hll::new(), Edits::new());
        for item in items {
            hll.add(item.as_bytes(), &mut edits);
        }
        Sketch::Hll(hll)
    }

    fn count(settling: &mut Settling, version: u64, item: &str) {
        let Some(Sketch::Hll(stretch)) = settling.stretch(version, || Some(hll(&[]))) else {
            panic!("there is a stretch")
        };
        stretch.add(item.as_bytes(), &mut Edits::new());
    }

    fn rest(settling: &Settling, after: u64, version: u64) -> Option<u64> {
        match settling.rest(after, version) {
            Rest::Nothing => Some(0),
            Rest::All => None,
            Rest::Since(stretches) => {
                let stretches: Vec<&Hll> = stretches
                    .iter()
                    .map(|stretch| if let Sketch::Hll(hll) = stretch { hll } else { panic!("they are") })
                    .collect();
                Some(Hll::union_count(&stretches))
            }
        }
    }

    fn merge(into: &mut Sketch, other: &Sketch) -> bool {
        super::super::together::take_in(into, other, &quipu_sketch::Key([0; 16])).is_ok()
    }

    /// A cell that says something at this seq, of which the store is known to have what was said at another.
    fn cell(seq: u64, included: u64) -> OwnCell {
        let mut cell = *Owned::default().open(NODE, Shard(0), None);
        (cell.seq, cell.own.said, cell.settled, cell.confirmed) = (Seq(seq), seq > 0, false, i128::from(included));
        cell
    }

    fn begun() -> Settling {
        Settling::of(&cell(0, 0), 0)
    }

    #[test]
    fn what_was_counted_since_a_put_is_gone_on_with_and_nothing_else() {
        let mut settling = begun();
        ["a", "b"].iter().zip(0..).for_each(|(item, version)| count(&mut settling, version, item));
        let first = settling.send(Seq(2), 2, merge);
        assert!(first.whole && first.from.is_none());
        count(&mut settling, 2, "a");
        assert_eq!(rest(&settling, 0, 3), Some(2), "the put was lost");
        assert_eq!(rest(&settling, 2, 3), Some(1), "the put was kept, and one item was counted again");
        settling.confirmed(Seq(2), 2);
        assert_eq!(rest(&settling, 2, 3), Some(1));
        assert_eq!(rest(&settling, 3, 3), Some(0));
        assert_eq!(rest(&settling, 1, 3), None, "what was forgotten is not known");
    }

    #[test]
    fn a_body_that_was_found_knows_what_was_counted_since_it_was() {
        let mut settling = Settling::of(&cell(9, 9), 5);
        assert_eq!(settling.surely_in(), Some(5));
        count(&mut settling, 5, "c");
        assert_eq!(rest(&settling, 5, 6), Some(1));
        assert_eq!(rest(&settling, 4, 6), None);
    }

    #[test]
    fn puts_without_an_answer_keep_their_panes_apart_up_to_a_bound() {
        let mut settling = begun();
        for version in 0..20 {
            count(&mut settling, version, &version.to_string());
            settling.send(Seq(version + 1), version + 1, merge);
            assert!(settling.stretches.len() <= STRETCHES_MAX + 1);
            assert_eq!(rest(&settling, version, version + 1), Some(1));
            assert_eq!(rest(&settling, 0, version + 1), Some(version + 1), "nothing is lost");
        }
    }

    #[test]
    fn a_body_that_was_found_half_put_is_not_known_to_be_in() {
        let mut settling = Settling::of(&cell(9, 7), 5);
        count(&mut settling, 5, "c");
        assert_eq!(settling.surely_in(), None);
        settling.send(Seq(20), 6, merge);
        settling.confirmed(Seq(20), 6);
        assert_eq!((settling.surely_in(), rest(&settling, 6, 6)), (Some(6), Some(0)));
    }

    #[test]
    fn a_gap_is_gone_on_from_where_the_store_has_what_is_in_this_body() {
        let mut found = cell(10, 6);
        found.own.let_go = Seq(9);
        let mut settling = Settling::of(&found, 3);
        let leapt = settling.leap(Seq(10), u64::MAX);
        assert!(leapt > Seq(1 << 31) && settling.leap(leapt, 7) == leapt, "once");
        settling.note(0..1);
        settling.send(Seq(leapt.0 + 1), 4, merge);
        assert!(settling.gap(Some(Seq(6))), "what it has");
        assert!(
            !settling.gap(Some(Seq(5))),
            "of before that: the store went back, and may have gone on with another's"
        );
        assert!(settling.gap(Some(Seq(9))) && settling.gap(Some(Seq(10))), "of the process before");
        assert!(!settling.gap(Some(Seq(7))), "of somebody who had the same directory, and went on from there");
        assert!(!settling.gap(Some(Seq(11))), "the same");
        assert!(settling.gap(None), "the store lost all of it");
        settling.confirmed(Seq(leapt.0 + 1), 4);
        settling.note(2..3);
        settling.send(Seq(leapt.0 + 2), 5, merge);
        assert!(settling.gap(Some(Seq(leapt.0 + 2))), "the answer was lost");
        let again = settling.send(Seq(leapt.0 + 2), 5, merge);
        assert!(!again.whole && again.pages.iter().collect::<Vec<_>>() == [2], "{again:?}");
    }

    #[test]
    fn what_is_told_of_a_put_from_before_another_was_taken_in_is_no_news() {
        let mut settling = begun();
        count(&mut settling, 0, "a");
        settling.send(Seq(2), 1, merge);
        settling.begin_epoch(9, Some(hll(&["a"])));
        settling.adopted(Seq(50), 8);
        assert_eq!(
            settling.leap(Seq(50), u64::MAX),
            Seq(51 + u64::from(u32::MAX)),
            "from there the other goes on, too"
        );
        settling.confirmed(Seq(2), 9);
        assert_eq!(
            (settling.surely_in(), rest(&settling, 8, 9)),
            (Some(8), Some(1)),
            "it is not in what the other put"
        );
        assert!(settling.has(Seq(50)) && !settling.has(Seq(51)));
    }

    #[test]
    fn all_that_the_store_has_of_a_life_is_its_own() {
        let life = OwnCell { incarnation: Incarnation(7), shard: Shard(u16::MAX), ..cell(10, 6) };
        let mut settling = Settling::of(&life, 3);
        assert_eq!(settling.leap(Seq(10), u64::MAX), Seq(10), "nobody else gives the same seqs");
        settling.send(Seq(11), 4, merge);
        assert!((1..=10).all(|held| settling.gap(Some(Seq(held)))), "whatever of it the store went back to");
        assert_eq!(settling.line(), (Seq(6), Seq(0)));
    }
}
