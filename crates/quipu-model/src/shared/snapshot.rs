//! Row: one counter as the store holds it.
//!
//! In: rows as decoded by a store. Out: their sum, and the same row after the end of its epoch.
//!
//! Invariants:
//! - `cells` are all of the row's own epoch; `spent` holds cells of older epochs and folded ones,
//!   one entry per cell, of its newest epoch;
//! - the counter's value is `base` + the sum of `cells`, open and closed alike;
//! - a version never comes back within `grace`: `swaps` rises with every swap, `puts` with every
//!   put that moved a cell.
//!
//! Not here: judging puts (`put`) and computing swaps (`swap`).

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::shared::Put;
use crate::shared::body::{is_body_cell, is_registered};
use crate::{Epoch, Millis, Writer};

/// Most swap ids in a row. A swap of unknown outcome is looked up here, so this many others may
/// overtake the lookup. The lookup follows within a round trip or two. 32 ids of 16 bytes take less
/// than one cell's key in most stores.
pub const SWAP_IDS_MAX: usize = 32;

/// Latest epoch of a row: the largest time that a client can name. It is far enough from the end of
/// u64 that raising it cannot wrap.
pub const EPOCH_MILLIS_MAX: u64 = i64::MAX as u64;

/// Position in a writer's sequence. Rises with every change of a cell, through all epochs of the
/// counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Seq(pub u64);

/// Index of one of a counter's independent sub-counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Shard(pub u16);

/// Identity of a cell: writer and shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CellId {
    /// The only writer of the cell.
    pub writer: Writer,
    /// Shard of the writer.
    pub shard: Shard,
}

/// A cell in a row: the newest state from its writer under the row's epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowCell {
    /// Position in the writer's sequence.
    pub seq: Seq,
    /// Running value. Wider than a reply, because a carried value can be the difference of two i64.
    pub value: i128,
    /// Sum of all adds by the writer, over all epochs.
    pub total: i128,
    /// The writer's incarnation has ended: the cell still counts, but puts no longer change it.
    pub closed: bool,
}

/// Record of a cell that no longer counts by itself: the value that the store kept when its epoch
/// ended or it was folded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpentCell {
    /// Epoch that it counted under.
    pub epoch: Epoch,
    /// Newest seq that was kept.
    pub seq: Seq,
    /// Its running value then, which was counted. The rest is the writer's uncounted value.
    pub value: i128,
    /// Sum of all adds by the writer up to then.
    pub total: i128,
    /// True if its writer's incarnation has ended.
    pub closed: bool,
    /// Expiry by which its epoch ended, if it expired.
    pub expired: Option<Millis>,
    /// Time of this record, by the store's clock: it is kept for `grace` from here.
    pub at: Millis,
}

/// Id of a swap. Random, so its sender recognises it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct SwapId(pub u128);

/// Version of a row. The store applies a swap only to the very version that it was computed from.
///
/// The value of `puts` rises with every put that moved a cell, among rows with the same `swaps`.
/// Two different rows have the same `puts` only by an unlikely chance. A store adds the
/// [stride](crate::shared::Put::stride) of each such put, or derives it from the seqs and writers
/// of the cells.
///
/// A plain count would suffice if no store ever lost data. A store that went back reaches the same
/// count again, by other puts. A swap computed before would then be applied to a row that it was
/// not computed from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct RowVersion {
    /// Creation time of the row, by the store's clock: a row that is made anew after it was
    /// forgotten is another row.
    pub born_at: Millis,
    /// Number of swaps of the row.
    pub swaps: u64,
    /// Rises with every put that moved a cell.
    pub puts: u64,
}

/// Mask of a stride's 20 bits. No row exhausts its versions by them, and a store that computes in
/// doubles adds them exactly.
const STRIDE_MASK: u64 = (1 << 20) - 1;

impl RowVersion {
    /// Version of a counter without a row.
    pub const ABSENT: RowVersion = RowVersion { born_at: Millis(0), swaps: 0, puts: 0 };

    /// Returns the distance between the versions before and after a change: at least 1, and
    /// different for different changes.
    pub(super) fn stride(words: &[u64]) -> u64 {
        let mix = |mixed: u64, word: &u64| {
            let mixed = (mixed ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            mixed ^ mixed >> 32
        };
        1 + (words.iter().fold(0, mix) & STRIDE_MASK)
    }

    /// Returns true if this version is older than the other, for a store that lost nothing in
    /// between.
    pub fn is_before(&self, other: &RowVersion) -> bool {
        (self.born_at, self.swaps, self.puts) < (other.born_at, other.swaps, other.puts)
    }
}

/// A counter's row. The default stands for a counter that is absent in the store.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Snapshot {
    /// Version of the row.
    pub version: RowVersion,
    /// Newest epoch: only its cells count.
    pub epoch: Epoch,
    /// Sum of the set value and the folded cells; `None` if the counter has cells alone.
    pub base: Option<i128>,
    /// Expiry, by the store's clock.
    pub expires_at: Option<Millis>,
    /// Time at which its deletion or expiry was last recorded.
    pub gone_at: Option<Millis>,
    /// Cells of this epoch.
    pub cells: BTreeMap<CellId, RowCell>,
    /// Kept values of cells that no longer count by themselves.
    pub spent: BTreeMap<CellId, SpentCell>,
    /// Ids of the last swaps, newest last, at most [`SWAP_IDS_MAX`]; the newest has the number
    /// `version.swaps`.
    pub swaps: Vec<SwapId>,
}

/// A row with the store's time at the read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FetchedRow {
    /// The row.
    pub snapshot: Snapshot,
    /// The store's clock.
    pub at: Millis,
}

/// A row that no correct store can have written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// The epoch is too late to be raised.
    #[error("the row's epoch is beyond the range of time")]
    Epoch,
    /// A spent cell has an epoch after the row's.
    #[error("the row remembers cells of an epoch it has not reached")]
    Spent,
    /// The row lists more swap ids than it had swaps, or more than the bound.
    #[error("the row names {named} swaps of {swaps}")]
    Swaps {
        /// Number of listed ids.
        named: usize,
        /// Number of swaps.
        swaps: u64,
    },
}

impl Snapshot {
    /// Validates the row; every adapter calls this for each decoded row.
    pub fn checked(self) -> Result<Snapshot, SnapshotError> {
        if self.epoch.millis > EPOCH_MILLIS_MAX {
            return Err(SnapshotError::Epoch);
        }
        if self.spent.values().any(|spent| spent.epoch > self.epoch) {
            return Err(SnapshotError::Spent);
        }
        let named = self.swaps.len();
        if named > SWAP_IDS_MAX || named as u64 > self.version.swaps {
            return Err(SnapshotError::Swaps { named, swaps: self.version.swaps });
        }
        Ok(self)
    }

    /// Returns true if the counter exists: it was set, or it has a cell.
    pub fn exists(&self) -> bool {
        self.base.is_some() || !self.cells.is_empty()
    }

    /// Returns true if it is a sketch: it has the cell of a body.
    pub fn is_sketch(&self) -> bool {
        self.cells.keys().any(is_body_cell)
    }

    /// Returns the value, which may not fit a reply.
    pub fn sum(&self) -> i128 {
        // No real sum comes near the end of i128. An absurd one from a damaged store must not end
        // the process, and stays too wide for any reply.
        self.cells.values().fold(self.base.unwrap_or(0), |sum, held| sum.saturating_add(held.value))
    }

    /// Returns true if its expiry has passed, though the row has not moved yet.
    pub fn is_due(&self, at: Millis) -> bool {
        self.expires_at.is_some_and(|expires_at| expires_at <= at)
    }

    /// Returns the row as it counts at that time: if it is due, the next epoch, the same on all
    /// nodes.
    pub fn as_of(&self, at: Millis) -> Cow<'_, Snapshot> {
        match self.expires_at {
            Some(expires_at) if expires_at <= at => {
                let mut next = self.clone();
                next.end_epoch(self.epoch.expired(expires_at), at, Some(expires_at));
                next.gone_at = Some(at);
                Cow::Owned(next)
            }
            _ => Cow::Borrowed(self),
        }
    }

    /// Ends the row's epoch: the present values of its cells become the kept ones.
    pub(super) fn end_epoch(&mut self, epoch: Epoch, at: Millis, expired: Option<Millis>) {
        debug_assert!(epoch > self.epoch, "an epoch only rises");
        for (id, RowCell { seq, value, total, closed }) in std::mem::take(&mut self.cells) {
            self.spent.insert(id, SpentCell { epoch: self.epoch, seq, value, total, closed, expired, at });
        }
        self.epoch = epoch;
        self.base = None;
        self.expires_at = None;
    }

    /// Moves the row up to an epoch that it does not know.
    ///
    /// If the row is older than that epoch, it lost it, and its values were taken when the epoch
    /// began. If it is younger, the row that knew the epoch was forgotten in between, and its
    /// values count on. The sum of its cells then moves to `base`. Of a sketch nothing is kept,
    /// because its bodies are dropped with the epoch: its nodes continue with all of their counts.
    pub(super) fn catch_up(&mut self, epoch: Epoch, at: Millis) {
        if epoch <= self.epoch {
            return;
        }
        let is_younger = self.version.born_at.0 > epoch.millis;
        self.cells.retain(|id, _| !is_younger || !is_body_cell(id));
        let kept = self.exists().then(|| self.sum()).filter(|_| is_younger);
        let expires_at = self.expires_at.filter(|_| kept.is_some());
        self.end_epoch(epoch, at, None);
        (self.base, self.expires_at, self.gone_at) = (kept, expires_at, Some(at));
    }

    /// Returns the newest known state of a cell, counted or spent, of any epoch.
    pub(super) fn last(&self, cell: CellId) -> Option<Put> {
        let held = self.cells.get(&cell).map(|&RowCell { seq, value, total, .. }| Put {
            cell,
            epoch: self.epoch,
            seq,
            value,
            total,
        });
        let spent = self.spent.get(&cell).map(|&SpentCell { epoch, seq, value, total, .. }| Put {
            cell,
            epoch,
            seq,
            value,
            total,
        });
        // For equal seqs the counted cell decides.
        held.filter(|held| spent.is_none_or(|spent| spent.seq <= held.seq)).or(spent)
    }

    /// Returns the part of a running value that the row counts although an earlier verdict excluded
    /// it.
    ///
    /// A row younger than the value's epoch was lost, or forgotten. A put from before that epoch
    /// made it anew, and counts on in it.
    pub(super) fn recounted_value(&self, put: &Put) -> i128 {
        let held = self.cells.get(&put.cell).filter(|_| self.epoch < put.epoch).map(|held| held.total);
        let spent = self.spent.get(&put.cell).filter(|spent| spent.epoch < put.epoch).map(|spent| spent.total);
        match held.or(spent).filter(|_| self.version.born_at.0 > put.epoch.millis) {
            // The kept and expired part precedes the writer's present value. The old put may lie
            // wholly in that part, hence the clamp.
            Some(total) => {
                let more = total.saturating_sub(put.total.saturating_sub(put.value));
                more.clamp(put.value.min(0), put.value.max(0))
            }
            None => 0,
        }
    }

    /// Returns true if puts no longer change the row's state of a cell.
    pub(super) fn is_closed(&self, cell: CellId) -> bool {
        let held = self.cells.get(&cell).map(|held| held.closed);
        held.or(self.spent.get(&cell).map(|spent| spent.closed)).unwrap_or(false)
    }

    /// Returns the newest known seq of a cell.
    pub fn newest(&self, cell: CellId) -> Option<Seq> {
        self.last(cell).map(|last| last.seq)
    }

    /// Forgets spent cells of unregistered writers after `grace`, when no successor can still ask
    /// for them.
    pub(super) fn prune(&mut self, at: Millis, grace: Duration, registered: &BTreeSet<Writer>) {
        self.spent.retain(|id, spent| !has_elapsed(spent.at, grace, at) || is_registered(registered, &id.writer));
    }

    /// Raises the row's version and records the id of the swap.
    pub(super) fn record_swap(&mut self, id: SwapId) {
        self.version.swaps = self.version.swaps.saturating_add(1);
        let SwapId(words) = id;
        self.version.puts = self.version.puts.wrapping_add(RowVersion::stride(&[words as u64, (words >> 64) as u64]));
        self.swaps.push(id);
        let surplus = self.swaps.len().saturating_sub(SWAP_IDS_MAX);
        self.swaps.drain(..surplus);
    }
}

/// Returns true if `duration` has passed since then.
pub(super) fn has_elapsed(since: Millis, duration: Duration, now: Millis) -> bool {
    time_after(since, duration) <= now
}

/// Returns the time `by` later.
pub(super) fn time_after(since: Millis, by: Duration) -> Millis {
    Millis(since.0.saturating_add(u64::try_from(by.as_millis()).unwrap_or(u64::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Incarnation, NodeId};

    fn id(node: u64) -> CellId {
        CellId { writer: Writer { node: NodeId(node), incarnation: Incarnation(1) }, shard: Shard(0) }
    }

    fn row() -> Snapshot {
        let held = RowCell { seq: Seq(4), value: 7, total: 7, closed: false };
        Snapshot {
            base: Some(10),
            expires_at: Some(Millis(500)),
            cells: [(id(1), held), (id(2), RowCell { closed: true, ..held })].into(),
            ..Snapshot::default()
        }
    }

    #[test]
    fn open_and_closed_cells_count() {
        assert_eq!(row().sum(), 24);
        assert!(row().exists() && !Snapshot::default().exists());
    }

    #[test]
    fn a_row_past_its_expiry_is_the_next_life_whenever_one_looks() {
        assert_eq!(*row().as_of(Millis(499)), row());
        let (soon, late) = (row().as_of(Millis(500)).into_owned(), row().as_of(Millis(9_000)).into_owned());
        assert_eq!(soon.epoch, Epoch { millis: 500, node: NodeId(0) });
        assert_eq!((soon.epoch, soon.sum(), soon.exists()), (late.epoch, 0, false));
        assert_eq!(late.spent[&id(1)].expired, Some(Millis(500)));
        assert!(late.spent[&id(2)].closed);
        assert_eq!(*late.as_of(Millis(10_000)), late, "it expires once");
    }

    #[test]
    fn a_sketch_in_a_row_that_was_made_anew_becomes_no_number_and_nothing_of_it_was_kept() {
        let node = crate::shared::node_cell(NodeId(3));
        let held = RowCell { seq: Seq(4), value: 7, total: 7, closed: false };
        let sketch = Snapshot { cells: [(node, held)].into(), ..Snapshot::default() };
        let epoch = Epoch { millis: 50, node: NodeId(1) };
        let caught_up = |born_at: u64| {
            let version = RowVersion { born_at: Millis(born_at), ..RowVersion::ABSENT };
            let mut row = Snapshot { version, ..sketch.clone() };
            row.catch_up(epoch, Millis(100));
            (row.base, row.cells.len(), row.spent.get(&node).map(|spent| spent.value))
        };
        assert_eq!(caught_up(60), (None, 0, None), "its bodies are gone, so that its nodes go on with all of them");
        assert_eq!(caught_up(40), (None, 0, Some(7)), "it was taken when the epoch began");
    }

    #[test]
    fn a_row_names_a_bounded_number_of_swaps() {
        let mut row = Snapshot::default();
        for id in 1..=SWAP_IDS_MAX as u128 + 3 {
            row.record_swap(SwapId(id));
        }
        assert_eq!(row.swaps.len(), SWAP_IDS_MAX);
        assert_eq!((row.swaps[0], row.version.swaps), (SwapId(4), SWAP_IDS_MAX as u64 + 3));
        row.clone().checked().unwrap();
        row.swaps.push(SwapId(0));
        assert!(matches!(row.checked(), Err(SnapshotError::Swaps { .. })));
    }

    #[test]
    fn rows_that_cannot_be_are_refused_before_anything_is_computed_from_them() {
        let late = Epoch { millis: EPOCH_MILLIS_MAX + 1, node: NodeId(0) };
        assert_eq!(Snapshot { epoch: late, ..row() }.checked(), Err(SnapshotError::Epoch));
        let spent =
            SpentCell { epoch: late, seq: Seq(1), value: 1, total: 1, closed: false, expired: None, at: Millis(0) };
        assert_eq!(Snapshot { spent: [(id(1), spent)].into(), ..row() }.checked(), Err(SnapshotError::Spent));
        assert_eq!(row().checked(), Ok(row()));
        let wide = RowCell { seq: Seq(1), value: i128::MAX, total: i128::MAX, closed: false };
        assert_eq!(Snapshot { cells: [(id(1), wide)].into(), ..row() }.sum(), i128::MAX);
    }
}
