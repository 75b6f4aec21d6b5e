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
//! - a page that the store does not have as it is in the body is in `changed` or `last_put`, or the whole body is put;
//! - stretches have all that was counted after `known_from`;
//! - what was counted up to `known_from` is in the chain, unless it is `unsure`;
//! - the body has all that the chain has up to `included`.

use quipu_model::Millis;
use quipu_model::shared::{NODE_INCARNATION, Seq};
use quipu_sketch::Sketch;

use super::page_set::PageSet;
use crate::sharing::own::OwnCell;

/// Stretches that are kept apart: each is a put whose outcome is not known. Of more, the oldest two become one.
const DELTAS_MAX: usize = 4;

/// See the module.
#[derive(Debug)]
pub struct UnsettledChanges {
    changed: PageSet,
    /// Put, and not confirmed.
    last_put: Option<SentPut>,
    /// The newest put that the store is believed to have; `None`: none of this epoch.
    base: Option<Seq>,
    /// The next put has the whole body.
    puts_whole: bool,
    /// The newest put of this epoch that is in the body, whoever made it: all before it are, too.
    included_seq: Seq,
    /// Seqs that were given to states of this body before this process began.
    earlier_seqs: Option<(Seq, Seq)>,
    /// This process has given seqs from here on; of a life's body, all of them are its own.
    own_seqs_from: Option<Seq>,
    deltas: Vec<UnsettledDelta>,
    known_from: u64,
    /// Of what was counted before, some may be in no put that the store has.
    unsure: bool,
    /// By this node's clock the counter expired then, when the body had this version.
    expired_at: Option<(Millis, u64)>,
}

#[derive(Debug)]
struct UnsettledDelta {
    /// The version that the body had after what was counted in it last.
    to: u64,
    /// Nothing is counted in it any more.
    closed: bool,
    sketch: Sketch,
}

#[derive(Debug)]
struct SentPut {
    seq: Seq,
    version: u64,
    pages: PageSet,
}

/// What a put brings.
#[derive(Debug)]
pub struct PutContents {
    /// What it goes on from.
    pub from: Option<Seq>,
    /// It has all pages.
    pub whole: bool,
    /// Else these.
    pub pages: PageSet,
}

/// What this node goes on with when an epoch has ended.
#[derive(Debug)]
pub enum CarriedDelta<'s> {
    /// Nothing: the store has kept all of it.
    Nothing,
    /// What was counted since, in several sketches.
    Since(Vec<&'s Sketch>),
    /// It is not known what was counted since: all of the body.
    All,
}

impl UnsettledChanges {
    /// Of a body that is begun, under an epoch of which the store has none yet.
    pub fn new(cell: &OwnCell, version: u64) -> UnsettledChanges {
        UnsettledChanges {
            changed: PageSet::default(),
            last_put: None,
            base: None,
            puts_whole: true,
            included_seq: Seq(0),
            earlier_seqs: None,
            own_seqs_from: (cell.incarnation != NODE_INCARNATION).then_some(Seq(0)),
            deltas: Vec::new(),
            known_from: version,
            unsure: false,
            expired_at: None,
        }
    }

    /// Of a body that was found at a start, or that is begun, with what its cell says.
    pub fn from_cell(cell: &OwnCell, version: u64) -> UnsettledChanges {
        let new_changes = UnsettledChanges::new(cell, version);
        if !cell.own.has_value {
            return new_changes;
        }
        let (included, unsure) = (cell.included_seq(), cell.included_seq() < cell.seq);
        let earlier_seqs = (unsure && cell.incarnation == NODE_INCARNATION).then(|| (cell.seq_range_start(), cell.seq));
        UnsettledChanges { included_seq: included, earlier_seqs, unsure, ..new_changes }
    }

    /// The seq to go on from: this one, or, if this process has given none since it last met with another's, one far enough from it that nobody else who goes on from there gives the same.
    pub fn advance_seq(&mut self, seq: Seq, random: u64) -> Seq {
        if self.own_seqs_from.is_some_and(|from| from <= seq) {
            return seq;
        }
        // 32 bits: versions of rows, which some stores make of seqs, have room for thousands of such leaps.
        let advanced = Seq(seq.0.saturating_add(1 + (random >> 32)));
        self.own_seqs_from = Some(advanced);
        advanced
    }

    /// The same, where the row knows a seq of this node, given by somebody else, that may be greater.
    pub fn advance_seq_over(&mut self, seq: Seq, newest: Seq, random: u64) -> Seq {
        if newest > seq
            && let Some(from) = self.own_seqs_from.take()
        {
            self.earlier_seqs = Some((self.earlier_seqs.map_or(from, |(first, _)| first), seq));
        }
        self.advance_seq(seq.max(newest), random)
    }

    /// Whether it is certain that a put of this epoch is of a state that this body had, or is in it.
    pub fn contains(&self, seq: Seq) -> bool {
        let in_earlier_seqs = self.earlier_seqs.is_some_and(|(from, to)| (from..=to).contains(&seq));
        // One before what is included may be another's: a store that went back may have gone on from there with it.
        seq == self.included_seq || in_earlier_seqs || self.own_seqs_from.is_some_and(|from| seq >= from)
    }

    /// What is written down of it with the cell: the newest put that is in the body, and from where on seqs were given to states of it.
    pub fn seq_range(&self) -> (Seq, Seq) {
        (self.included_seq, self.own_seqs_from.unwrap_or_default())
    }

    /// A page has changed.
    pub fn mark_changed(&mut self, pages: std::ops::Range<usize>) {
        self.changed.insert_range(pages);
    }

    /// The sketch that has what is counted from here on, when the body has this version, and gets the next one.
    pub fn open_delta(&mut self, version: u64, make: impl FnOnce() -> Option<Sketch>) -> Option<&mut Sketch> {
        if self.deltas.last().is_none_or(|delta| delta.closed) {
            let sketch = make()?;
            self.deltas.push(UnsettledDelta { to: version, closed: false, sketch });
        }
        let delta = self.deltas.last_mut()?;
        delta.to = version + 1;
        Some(&mut delta.sketch)
    }

    /// The body goes on under another epoch, of which the store has nothing yet, with what was carried into it.
    pub fn begin_epoch(&mut self, version: u64, carried: Option<Sketch>) {
        (self.changed, self.last_put, self.base, self.puts_whole) = (PageSet::default(), None, None, true);
        (self.included_seq, self.earlier_seqs, self.known_from, self.unsure, self.expired_at) =
            (Seq(0), None, 0, false, None);
        self.deltas.clear();
        self.deltas.extend(carried.map(|sketch| UnsettledDelta { to: version, closed: false, sketch }));
    }

    /// The body goes on from a put that somebody else has made, who may go on from there as well: it had that version, and this body has taken it in.
    pub fn adopt(&mut self, held: Seq, version: u64) {
        (self.base, self.included_seq, self.known_from, self.own_seqs_from) = (Some(held), held, version, None);
    }

    /// The body has taken in something else that the store does not know, all of it at once, and has this version now.
    pub fn add_delta(&mut self, version: u64, sketch: Sketch) {
        if let Some(delta) = self.deltas.last_mut() {
            delta.closed = true;
        }
        self.deltas.push(UnsettledDelta { to: version, closed: true, sketch });
        self.puts_whole = true;
    }

    /// What was counted cannot be kept by itself any more: it is not known.
    pub fn lose_track(&mut self, version: u64) {
        self.deltas.clear();
        (self.known_from, self.unsure) = (version, true);
    }

    /// A put of the body as it is now.
    pub fn prepare_put(
        &mut self,
        seq: Seq,
        version: u64,
        mut merge: impl FnMut(&mut Sketch, &Sketch) -> bool,
    ) -> PutContents {
        let mut pages = std::mem::take(&mut self.changed);
        if let Some(last_put) = self.last_put.take() {
            // Nobody knows whether it is there.
            pages.insert_set(&last_put.pages);
        }
        if let Some(delta) = self.deltas.last_mut() {
            delta.closed = true;
        }
        if self.deltas.len() > DELTAS_MAX {
            let second = self.deltas.remove(1);
            let first = &mut self.deltas[0];
            if merge(&mut first.sketch, &second.sketch) {
                first.to = second.to;
            } else {
                self.lose_track(version);
            }
        }
        self.last_put = Some(SentPut { seq, version, pages: pages.clone() });
        PutContents { from: self.base, whole: self.puts_whole, pages }
    }

    /// The store has, or had, this put, when the body had this version.
    pub fn confirm(&mut self, seq: Seq, version: u64) {
        if seq < self.included_seq {
            // The body has taken in another's since, which has this one.
            return;
        }
        (self.base, self.puts_whole, self.included_seq) = (Some(seq), false, seq);
        if self.last_put.as_ref().is_some_and(|last_put| last_put.seq <= seq) {
            self.last_put = None;
        }
        self.deltas.retain(|delta| delta.to > version);
        if version >= self.known_from {
            (self.known_from, self.unsure, self.earlier_seqs) = (version, false, None);
        }
    }

    /// The store has another put than the one that was gone on from. Whether the next put can go on from that; if not, it is of somebody else, and is to be looked at.
    pub fn resolve_gap(&mut self, held: Option<Seq>) -> bool {
        match (held, &self.last_put) {
            // The answer to it was lost. Pages since then are all there.
            (Some(held), Some(last_put)) if held == last_put.seq && !self.puts_whole => self.base = Some(held),
            (Some(held), _) if self.contains(held) => (self.base, self.puts_whole) = (Some(held), true),
            (None, _) => (self.base, self.puts_whole) = (None, true),
            _ => return false,
        }
        true
    }

    /// The put that was sent last.
    pub fn last_put(&self) -> Option<(Seq, u64)> {
        self.last_put.as_ref().map(|last_put| (last_put.seq, last_put.version))
    }

    /// The version up to which what was counted is known to be in the chain; none if that is not known.
    pub fn confirmed_version(&self) -> Option<u64> {
        (!self.unsure).then_some(self.known_from)
    }

    /// By this node's clock the counter has expired, and the body has this version.
    pub fn mark_expired(&mut self, expires_at: Millis, version: u64) {
        self.expired_at = Some((expires_at, version));
        if let Some(delta) = self.deltas.last_mut() {
            delta.closed = true;
        }
    }

    /// The version up to which what was counted expired with the counter, if this node knew of that expiry and has noticed it.
    pub fn expired_version(&self, expired: Millis) -> Option<u64> {
        self.expired_at.filter(|(at, _)| *at == expired).map(|(_, version)| version)
    }

    /// What was counted after a version, up to this one.
    pub fn delta_after(&self, after: u64, version: u64) -> CarriedDelta<'_> {
        if after >= version {
            return CarriedDelta::Nothing;
        }
        // Nothing is changed in between by nobody: from the version that is known on, stretches have everything.
        if after < self.known_from {
            return CarriedDelta::All;
        }
        CarriedDelta::Since(self.deltas.iter().filter(|delta| delta.to > after).map(|delta| &delta.sketch).collect())
    }

    /// Whether what was counted after a version is known by itself: no stretch began before it and ended after it.
    pub fn has_boundary(&self, version: u64) -> bool {
        version == self.known_from || self.deltas.iter().any(|delta| delta.to == version)
    }

    /// Bytes of memory it takes.
    pub fn memory(&self) -> usize {
        let deltas: usize = self.deltas.iter().map(|delta| size_of::<UnsettledDelta>() + delta.sketch.memory()).sum();
        let last_put = self.last_put.as_ref().map_or(0, |last_put| last_put.pages.memory());
        size_of::<UnsettledChanges>() + self.changed.memory() + last_put + deltas
    }
}

#[cfg(test)]
mod tests {
    use quipu_model::Incarnation;
    use quipu_model::shared::Shard;
    use quipu_sketch::{Edits, Hll};

    use super::*;
    use crate::sharing::own::OwnCells;

    fn hll(items: &[&str]) -> Sketch {
        let (mut hll, mut edits) = (Hll::new(), Edits::new());
        for item in items {
            hll.add(item.as_bytes(), &mut edits);
        }
        Sketch::Hll(hll)
    }

    fn count(changes: &mut UnsettledChanges, version: u64, item: &str) {
        let Some(Sketch::Hll(delta)) = changes.open_delta(version, || Some(hll(&[]))) else {
            panic!("there is a stretch")
        };
        delta.add(item.as_bytes(), &mut Edits::new());
    }

    fn delta_count(changes: &UnsettledChanges, after: u64, version: u64) -> Option<u64> {
        match changes.delta_after(after, version) {
            CarriedDelta::Nothing => Some(0),
            CarriedDelta::All => None,
            CarriedDelta::Since(deltas) => {
                let deltas: Vec<&Hll> = deltas
                    .iter()
                    .map(|delta| if let Sketch::Hll(hll) = delta { hll } else { panic!("they are") })
                    .collect();
                Some(Hll::union_count(&deltas))
            }
        }
    }

    fn merge(into: &mut Sketch, other: &Sketch) -> bool {
        super::super::together::take_in(into, other, &quipu_sketch::Key([0; 16])).is_ok()
    }

    /// A cell that says something at this seq, of which the store is known to have what was said at another.
    fn cell(seq: u64, included: u64) -> OwnCell {
        let mut cell = *OwnCells::default().open_cell(NODE_INCARNATION, Shard(0), None);
        (cell.seq, cell.own.has_value, cell.settled, cell.confirmed) = (Seq(seq), seq > 0, false, i128::from(included));
        cell
    }

    fn new_changes() -> UnsettledChanges {
        UnsettledChanges::from_cell(&cell(0, 0), 0)
    }

    #[test]
    fn what_was_counted_since_a_put_is_gone_on_with_and_nothing_else() {
        let mut changes = new_changes();
        ["a", "b"].iter().zip(0..).for_each(|(item, version)| count(&mut changes, version, item));
        let first = changes.prepare_put(Seq(2), 2, merge);
        assert!(first.whole && first.from.is_none());
        count(&mut changes, 2, "a");
        assert_eq!(delta_count(&changes, 0, 3), Some(2), "the put was lost");
        assert_eq!(delta_count(&changes, 2, 3), Some(1), "the put was kept, and one item was counted again");
        changes.confirm(Seq(2), 2);
        assert_eq!(delta_count(&changes, 2, 3), Some(1));
        assert_eq!(delta_count(&changes, 3, 3), Some(0));
        assert_eq!(delta_count(&changes, 1, 3), None, "what was forgotten is not known");
    }

    #[test]
    fn a_body_that_was_found_knows_what_was_counted_since_it_was() {
        let mut changes = UnsettledChanges::from_cell(&cell(9, 9), 5);
        assert_eq!(changes.confirmed_version(), Some(5));
        count(&mut changes, 5, "c");
        assert_eq!(delta_count(&changes, 5, 6), Some(1));
        assert_eq!(delta_count(&changes, 4, 6), None);
    }

    #[test]
    fn puts_without_an_answer_keep_their_panes_apart_up_to_a_bound() {
        let mut changes = new_changes();
        for version in 0..20 {
            count(&mut changes, version, &version.to_string());
            changes.prepare_put(Seq(version + 1), version + 1, merge);
            assert!(changes.deltas.len() <= DELTAS_MAX + 1);
            assert_eq!(delta_count(&changes, version, version + 1), Some(1));
            assert_eq!(delta_count(&changes, 0, version + 1), Some(version + 1), "nothing is lost");
        }
    }

    #[test]
    fn a_body_that_was_found_half_put_is_not_known_to_be_in() {
        let mut changes = UnsettledChanges::from_cell(&cell(9, 7), 5);
        count(&mut changes, 5, "c");
        assert_eq!(changes.confirmed_version(), None);
        changes.prepare_put(Seq(20), 6, merge);
        changes.confirm(Seq(20), 6);
        assert_eq!((changes.confirmed_version(), delta_count(&changes, 6, 6)), (Some(6), Some(0)));
    }

    #[test]
    fn a_gap_is_gone_on_from_where_the_store_has_what_is_in_this_body() {
        let mut found = cell(10, 6);
        found.own.expired_seq = Seq(9);
        let mut changes = UnsettledChanges::from_cell(&found, 3);
        let advanced = changes.advance_seq(Seq(10), u64::MAX);
        assert!(advanced > Seq(1 << 31) && changes.advance_seq(advanced, 7) == advanced, "once");
        changes.mark_changed(0..1);
        changes.prepare_put(Seq(advanced.0 + 1), 4, merge);
        assert!(changes.resolve_gap(Some(Seq(6))), "what it has");
        assert!(
            !changes.resolve_gap(Some(Seq(5))),
            "of before that: the store went back, and may have gone on with another's"
        );
        assert!(changes.resolve_gap(Some(Seq(9))) && changes.resolve_gap(Some(Seq(10))), "of the process before");
        assert!(!changes.resolve_gap(Some(Seq(7))), "of somebody who had the same directory, and went on from there");
        assert!(!changes.resolve_gap(Some(Seq(11))), "the same");
        assert!(changes.resolve_gap(None), "the store lost all of it");
        changes.confirm(Seq(advanced.0 + 1), 4);
        changes.mark_changed(2..3);
        changes.prepare_put(Seq(advanced.0 + 2), 5, merge);
        assert!(changes.resolve_gap(Some(Seq(advanced.0 + 2))), "the answer was lost");
        let again = changes.prepare_put(Seq(advanced.0 + 2), 5, merge);
        assert!(!again.whole && again.pages.iter().collect::<Vec<_>>() == [2], "{again:?}");
    }

    #[test]
    fn what_is_told_of_a_put_from_before_another_was_taken_in_is_no_news() {
        let mut changes = new_changes();
        count(&mut changes, 0, "a");
        changes.prepare_put(Seq(2), 1, merge);
        changes.begin_epoch(9, Some(hll(&["a"])));
        changes.adopt(Seq(50), 8);
        assert_eq!(
            changes.advance_seq(Seq(50), u64::MAX),
            Seq(51 + u64::from(u32::MAX)),
            "from there the other goes on, too"
        );
        changes.confirm(Seq(2), 9);
        assert_eq!(
            (changes.confirmed_version(), delta_count(&changes, 8, 9)),
            (Some(8), Some(1)),
            "it is not in what the other put"
        );
        assert!(changes.contains(Seq(50)) && !changes.contains(Seq(51)));
    }

    #[test]
    fn all_that_the_store_has_of_a_life_is_its_own() {
        let incarnation_cell = OwnCell { incarnation: Incarnation(7), shard: Shard(u16::MAX), ..cell(10, 6) };
        let mut changes = UnsettledChanges::from_cell(&incarnation_cell, 3);
        assert_eq!(changes.advance_seq(Seq(10), u64::MAX), Seq(10), "nobody else gives the same seqs");
        changes.prepare_put(Seq(11), 4, merge);
        assert!((1..=10).all(|held| changes.resolve_gap(Some(Seq(held)))), "whatever of it the store went back to");
        assert_eq!(changes.seq_range(), (Seq(6), Seq(0)));
    }
}
