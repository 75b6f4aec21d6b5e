//! How far the store knows a body of this node, and what it would have to be told again.
//!
//! In: changes of the body, puts of it and what became of them. Out: the pages to put, and what was counted since the store last kept something.
//!
//! What was counted since is kept twice: in the body, and by itself, in **stretches** that end where a put was made. If an epoch ends, what the store kept of it is gone with it, and the stretches after that are what this node goes on
//! with: nothing that was acknowledged is lost, and nothing comes back. A body alone could not tell: an item that was counted before leaves no trace when it is counted again.
//!
//! Stretches are in memory only. After a restart it is not known what was counted since, if anything was: then all of the body is gone on with.
//!
//! Invariants:
//! - a page that the store does not have as it is in the body is in `changed` or `sent`, or the whole body is put;
//! - stretches have all that was counted after `known_from`.

use quipu_model::Millis;
use quipu_model::shared::Seq;
use quipu_sketch::Sketch;

use super::pages::Pages;

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
    /// The newest seq that was given before this process; whatever the store has from before that is a state of this body.
    found_at: Seq,
    /// This process has given seqs from here on. In between are those of others who had the same directory, if any did.
    ours_from: Option<Seq>,
    stretches: Vec<Stretch>,
    known_from: u64,
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
    /// Of a body of which the store may know any state, found with this seq and version.
    pub fn found(seq: Seq, version: u64) -> Settling {
        Settling {
            changed: Pages::default(),
            sent: None,
            base: None,
            whole: true,
            found_at: seq,
            ours_from: None,
            stretches: Vec::new(),
            known_from: version,
            lapsed: None,
        }
    }

    /// Of a body that is begun under an epoch of which the store has none yet.
    pub fn begun(seq: Seq, version: u64) -> Settling {
        Settling { found_at: seq, ours_from: Some(Seq(seq.0.saturating_add(1))), ..Settling::found(seq, version) }
    }

    /// The seq after this one, if nothing was said in this process yet: far enough from it that nobody else who has the same directory, and goes on from there, gives the same.
    pub fn leap(&mut self, seq: Seq, random: u64) -> Seq {
        if self.ours_from.is_some() {
            return seq;
        }
        // 32 bits: versions of rows, which some stores make of seqs, have room for thousands of such leaps.
        let leapt = Seq(seq.0.saturating_add(1 + (random >> 32)));
        self.ours_from = Some(leapt);
        leapt
    }

    /// Whether a seq is of a state that this body had.
    pub fn is_ours(&self, seq: Seq) -> bool {
        seq <= self.found_at || self.ours_from.is_some_and(|from| seq >= from)
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
        (self.known_from, self.lapsed) = (0, None);
        self.stretches.clear();
        self.stretches.extend(carried.map(|sketch| Stretch { to: version, closed: false, sketch }));
    }

    /// The body goes on from what the store has, which somebody else has put, who may go on from there as well.
    pub fn adopted(&mut self, held: Option<Seq>) {
        (self.changed, self.sent, self.base, self.whole) = (Pages::default(), None, held, true);
        (self.found_at, self.ours_from) = (held.unwrap_or(self.found_at).max(self.found_at), None);
    }

    /// What was counted cannot be kept by itself any more: it is not known.
    pub fn lose_track(&mut self, version: u64) {
        self.stretches.clear();
        self.known_from = version;
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

    /// The store has this put.
    pub fn confirmed(&mut self, seq: Seq, version: u64) {
        self.base = Some(seq);
        self.whole = false;
        if self.sent.as_ref().is_some_and(|sent| sent.seq <= seq) {
            self.sent = None;
        }
        self.kept(version);
    }

    /// The store has another put than the one that was gone on from. Whether the next put can go on from that; if not, it is of somebody else, and is to be looked at.
    pub fn gap(&mut self, held: Option<Seq>) -> bool {
        match (held, &self.sent) {
            // The answer to it was lost. Pages since then are all there.
            (Some(held), Some(sent)) if held == sent.seq && !self.whole => self.base = Some(held),
            (Some(held), _) if self.is_ours(held) => (self.base, self.whole) = (Some(held), true),
            (None, _) => (self.base, self.whole) = (None, true),
            _ => return false,
        }
        true
    }

    /// The put that was sent last.
    pub fn sent(&self) -> Option<(Seq, u64)> {
        self.sent.as_ref().map(|sent| (sent.seq, sent.version))
    }

    fn kept(&mut self, version: u64) {
        self.stretches.retain(|stretch| stretch.to > version);
        self.known_from = self.known_from.max(version);
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

    /// All that was counted in this process and not confirmed.
    pub fn unconfirmed(&self) -> impl Iterator<Item = &Sketch> {
        self.stretches.iter().map(|stretch| &stretch.sketch)
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
    use quipu_sketch::{Edits, Hll};

    use super::*;

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

    #[test]
    fn what_was_counted_since_a_put_is_gone_on_with_and_nothing_else() {
        let mut settling = Settling::begun(Seq(0), 0);
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
        let mut settling = Settling::found(Seq(9), 5);
        count(&mut settling, 5, "c");
        assert_eq!(rest(&settling, 5, 6), Some(1));
        assert_eq!(rest(&settling, 4, 6), None);
    }

    #[test]
    fn puts_without_an_answer_keep_their_panes_apart_up_to_a_bound() {
        let mut settling = Settling::begun(Seq(0), 0);
        for version in 0..20 {
            count(&mut settling, version, &version.to_string());
            settling.send(Seq(version + 1), version + 1, merge);
            assert!(settling.stretches.len() <= STRETCHES_MAX + 1);
            assert_eq!(rest(&settling, version, version + 1), Some(1));
            assert_eq!(rest(&settling, 0, version + 1), Some(version + 1), "nothing is lost");
        }
    }

    #[test]
    fn a_gap_is_gone_on_from_where_the_store_has_a_state_of_this_body() {
        let mut settling = Settling::found(Seq(10), 3);
        let leapt = settling.leap(Seq(10), u64::MAX);
        assert!(leapt > Seq(1 << 31) && settling.leap(leapt, 7) == leapt, "once");
        settling.note(0..1);
        settling.send(Seq(leapt.0 + 1), 4, merge);
        assert!(settling.gap(Some(Seq(8))), "of before the restart");
        assert!(!settling.gap(Some(Seq(11))), "of somebody who had the same directory");
        assert!(settling.gap(None), "the store lost all of it");
        settling.confirmed(Seq(leapt.0 + 1), 4);
        settling.note(2..3);
        settling.send(Seq(leapt.0 + 2), 5, merge);
        assert!(settling.gap(Some(Seq(leapt.0 + 2))), "the answer was lost");
        let again = settling.send(Seq(leapt.0 + 2), 5, merge);
        assert!(!again.whole && again.pages.iter().collect::<Vec<_>>() == [2], "{again:?}");
    }
}
