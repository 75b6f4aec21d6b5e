//! Tracks the difference between an own body and the shared store: changed pages, puts, and
//! unsettled deltas.
//!
//! In: changes of the body, its puts and their outcomes. Out: the pages to put, and the counts
//! since the store's last confirmed put.
//!
//! Counts since then are kept twice: in the body, and separately in **deltas**, each of which ends
//! at a put. When an epoch ends, the part that the store has ends with it. This node carries the
//! later deltas into the next epoch: no acknowledged add is lost, and no earlier one returns. The
//! body alone would not suffice: a repeated item leaves no trace in it.
//!
//! Deltas are in memory only. After a restart the unsettled part is unknown: then the node carries
//! the whole body.
//!
//! Several processes, each with a copy of the directory, may write the node's body. Their puts
//! still form one **chain**: each put continues from the one before, contains it, and has a greater
//! seq. So a process tracks two things: the last put of the chain that its body contains, and the
//! range of seqs that it has assigned itself. Any other put is another process's, and the process
//! merges it before its own next put. That is harmless: only sketches with an idempotent merge have
//! a node body. The body of an incarnation has a single writer, and so has its state in the store.
//!
//! Invariants:
//! - a page that differs from the store is in `changed` or `last_put`, or the next put has the
//!   whole body;
//! - deltas contain all counts after version `known_from`;
//! - the chain contains all counts up to `known_from`, unless `unsure`;
//! - the body contains the chain up to `included_seq`.

use quipu_model::Millis;
use quipu_model::shared::{NODE_INCARNATION, Seq};
use quipu_sketch::Sketch;

use crate::bodies::own_cells::OwnCell;
use crate::bodies::page_set::PageSet;

/// Most deltas kept apart: each ends at a put of unknown outcome. Beyond this, the oldest two are
/// merged.
const DELTAS_MAX: usize = 4;

/// State of one own body towards the store, see the module.
#[derive(Debug)]
pub struct UnsettledChanges {
    changed: PageSet,
    /// The last put, until it is confirmed.
    last_put: Option<SentPut>,
    /// Newest put that the store is believed to have; `None`: no put of this epoch.
    base: Option<Seq>,
    /// The next put has the whole body.
    puts_whole: bool,
    /// Newest put of this epoch that the body contains, by any process; it contains all earlier
    /// ones.
    included_seq: Seq,
    /// Range of seqs assigned to states of this body before this process began.
    earlier_seqs: Option<(Seq, Seq)>,
    /// First seq of this process's present range. In an incarnation's body all seqs are its own.
    own_seqs_from: Option<Seq>,
    deltas: Vec<UnsettledDelta>,
    known_from: u64,
    /// Some counts before `known_from` may be in no put that the store has.
    unsure: bool,
    /// Expiry of the counter by this node's clock, and the body's version at that time.
    expired_at: Option<(Millis, u64)>,
}

#[derive(Debug)]
struct UnsettledDelta {
    /// Version of the body after the last count in this delta.
    to: u64,
    /// The delta takes no more counts.
    closed: bool,
    sketch: Sketch,
}

#[derive(Debug)]
struct SentPut {
    seq: Seq,
    version: u64,
    pages: PageSet,
}

/// Contents of a put.
#[derive(Debug)]
pub struct PutContents {
    /// The put that it continues from.
    pub from: Option<Seq>,
    /// It has all pages.
    pub whole: bool,
    /// Its pages, unless `whole`.
    pub pages: PageSet,
}

/// The part of the body that is carried into the next epoch.
#[derive(Debug)]
pub enum CarriedDelta<'s> {
    /// Nothing: the store has all of it.
    Nothing,
    /// The counts since, in several sketches.
    Since(Vec<&'s Sketch>),
    /// The whole body: the part since then is unknown.
    All,
}

impl UnsettledChanges {
    /// State of a new body, under an epoch without a put.
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

    /// State of a body after a start, or of a new one, from its cell.
    pub fn from_cell(cell: &OwnCell, version: u64) -> UnsettledChanges {
        let new_changes = UnsettledChanges::new(cell, version);
        if !cell.own.has_value {
            return new_changes;
        }
        let (included, unsure) = (cell.included_seq(), cell.included_seq() < cell.seq);
        let earlier_seqs = (unsure && cell.incarnation == NODE_INCARNATION).then(|| (cell.seq_range_start(), cell.seq));
        UnsettledChanges { included_seq: included, earlier_seqs, unsure, ..new_changes }
    }

    /// Returns the seq to continue from. If this process has no range yet, or met another process's
    /// put, the result is a random distance ahead. So no other process that continues from there
    /// assigns the same seq.
    pub fn advance_seq(&mut self, seq: Seq, random: u64) -> Seq {
        if self.own_seqs_from.is_some_and(|from| from <= seq) {
            return seq;
        }
        // 32 bits: some stores derive row versions from seqs, and these have room for thousands of
        // such leaps.
        let advanced = Seq(seq.0.saturating_add(1 + (random >> 32)));
        self.own_seqs_from = Some(advanced);
        advanced
    }

    /// The same, if the row has a seq of this node from another process, which may be greater.
    pub fn advance_seq_over(&mut self, seq: Seq, newest: Seq, random: u64) -> Seq {
        if newest > seq
            && let Some(from) = self.own_seqs_from.take()
        {
            self.earlier_seqs = Some((self.earlier_seqs.map_or(from, |(first, _)| first), seq));
        }
        self.advance_seq(seq.max(newest), random)
    }

    /// Returns true if a put of this epoch certainly is a state of this body, or is contained in
    /// it.
    pub fn contains(&self, seq: Seq) -> bool {
        let in_earlier_seqs = self.earlier_seqs.is_some_and(|(from, to)| (from..=to).contains(&seq));
        // A seq before `included_seq` may be another process's: a store that was rolled back may
        // have continued from there.
        seq == self.included_seq || in_earlier_seqs || self.own_seqs_from.is_some_and(|from| seq >= from)
    }

    /// The part stored with the cell: newest contained put, and first seq of the present range.
    pub fn seq_range(&self) -> (Seq, Seq) {
        (self.included_seq, self.own_seqs_from.unwrap_or_default())
    }

    /// Records changed pages.
    pub fn mark_changed(&mut self, pages: std::ops::Range<usize>) {
        self.changed.insert_range(pages);
    }

    /// The delta for the next count. The body has this version, and gets the next one.
    pub fn open_delta(&mut self, version: u64, make: impl FnOnce() -> Option<Sketch>) -> Option<&mut Sketch> {
        if self.deltas.last().is_none_or(|delta| delta.closed) {
            let sketch = make()?;
            self.deltas.push(UnsettledDelta { to: version, closed: false, sketch });
        }
        let delta = self.deltas.last_mut()?;
        delta.to = version + 1;
        Some(&mut delta.sketch)
    }

    /// Continues with the carried sketch under another epoch, not yet known to the store.
    pub fn begin_epoch(&mut self, version: u64, carried: Option<Sketch>) {
        (self.changed, self.last_put, self.base, self.puts_whole) = (PageSet::default(), None, None, true);
        (self.included_seq, self.earlier_seqs, self.known_from, self.unsure, self.expired_at) =
            (Seq(0), None, 0, false, None);
        self.deltas.clear();
        self.deltas.extend(carried.map(|sketch| UnsettledDelta { to: version, closed: false, sketch }));
    }

    /// Continues from another process's put, which that process may continue as well. This body has
    /// merged it, at this version.
    pub fn adopt(&mut self, held: Seq, version: u64) {
        (self.base, self.included_seq, self.known_from, self.own_seqs_from) = (Some(held), held, version, None);
    }

    /// Records a merge that the store does not have, all at once; the body has this version now.
    pub fn add_delta(&mut self, version: u64, sketch: Sketch) {
        if let Some(delta) = self.deltas.last_mut() {
            delta.closed = true;
        }
        self.deltas.push(UnsettledDelta { to: version, closed: true, sketch });
        self.puts_whole = true;
    }

    /// Drops the deltas: counts since the last confirmed put are no longer known separately.
    pub fn lose_track(&mut self, version: u64) {
        self.deltas.clear();
        (self.known_from, self.unsure) = (version, true);
    }

    /// Prepares a put of the body as it is now.
    pub fn prepare_put(
        &mut self,
        seq: Seq,
        version: u64,
        mut merge: impl FnMut(&mut Sketch, &Sketch) -> bool,
    ) -> PutContents {
        let mut pages = std::mem::take(&mut self.changed);
        if let Some(last_put) = self.last_put.take() {
            // The outcome of the last put is unknown.
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

    /// The store has, or had, this put, of this version of the body.
    pub fn confirm(&mut self, seq: Seq, version: u64) {
        if seq < self.included_seq {
            // The body has since merged another process's put, which contains this one.
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

    /// The store holds another put than `base`. Returns true if the next put can continue from it.
    /// False: it is another process's, and the caller must read it.
    pub fn resolve_gap(&mut self, held: Option<Seq>) -> bool {
        match (held, &self.last_put) {
            // The reply to it was lost. All pages changed since then are recorded.
            (Some(held), Some(last_put)) if held == last_put.seq && !self.puts_whole => self.base = Some(held),
            (Some(held), _) if self.contains(held) => (self.base, self.puts_whole) = (Some(held), true),
            (None, _) => (self.base, self.puts_whole) = (None, true),
            _ => return false,
        }
        true
    }

    /// The last put sent, and its version.
    pub fn last_put(&self) -> Option<(Seq, u64)> {
        self.last_put.as_ref().map(|last_put| (last_put.seq, last_put.version))
    }

    /// Version up to which all counts are in the chain; `None`: unknown.
    pub fn confirmed_version(&self) -> Option<u64> {
        (!self.unsure).then_some(self.known_from)
    }

    /// Records the counter's expiry by this node's clock, at this version of the body.
    pub fn mark_expired(&mut self, expires_at: Millis, version: u64) {
        self.expired_at = Some((expires_at, version));
        if let Some(delta) = self.deltas.last_mut() {
            delta.closed = true;
        }
    }

    /// Last version that expired with the counter, if this node has noticed that expiry.
    pub fn expired_version(&self, expired: Millis) -> Option<u64> {
        self.expired_at.filter(|(at, _)| *at == expired).map(|(_, version)| version)
    }

    /// Counts after a version, up to the present one.
    pub fn delta_after(&self, after: u64, version: u64) -> CarriedDelta<'_> {
        if after >= version {
            return CarriedDelta::Nothing;
        }
        // Deltas have all counts from `known_from` on.
        if after < self.known_from {
            return CarriedDelta::All;
        }
        CarriedDelta::Since(self.deltas.iter().filter(|delta| delta.to > after).map(|delta| &delta.sketch).collect())
    }

    /// Returns true if counts after a version are known separately: no delta spans that version.
    pub fn has_boundary(&self, version: u64) -> bool {
        version == self.known_from || self.deltas.iter().any(|delta| delta.to == version)
    }

    /// Bytes of memory.
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
    use crate::bodies::own_cells::OwnCells;

    fn hll(items: &[&str]) -> Sketch {
        let (mut hll, mut edits) = (Hll::new(), Edits::new());
        for item in items {
            hll.add(item.as_bytes(), &mut edits);
        }
        Sketch::Hll(hll)
    }

    fn count(changes: &mut UnsettledChanges, version: u64, item: &str) {
        let Some(Sketch::Hll(delta)) = changes.open_delta(version, || Some(hll(&[]))) else {
            panic!("there is an unsettled delta")
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
        crate::bodies::together::take_in(into, other, &quipu_sketch::Key([0; 16])).is_ok()
    }

    /// A cell with this seq; the store is known to have the put `included`.
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
    fn puts_without_an_answer_keep_separate_panes_up_to_a_bound() {
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
    fn a_verdict_of_a_put_from_before_a_merge_is_no_news() {
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
