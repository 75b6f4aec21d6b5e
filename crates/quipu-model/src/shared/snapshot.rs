//! One counter as the store holds it: its row.
//!
//! In: rows as a store decodes them. Out: their sum, and the same row after its epoch ended.
//!
//! Invariants:
//! - `cells` are all of the row's own epoch; what older epochs held is in `spent`, one entry per cell, of its newest epoch;
//! - the counter's value is `base` + the sum of `cells`, open and closed alike;
//! - a version never comes back within `grace`: `swaps` rises with every swap, `puts` with every put that moved a cell.
//!
//! Not here: how puts are judged (`put`) and swaps computed (`swap`).

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::shared::Put;
use crate::shared::body::{is_body_cell, is_registered};
use crate::{Epoch, Millis, Writer};

/// How many swaps a row can name. A swap of unknown outcome is looked up here, so this many others may overtake the asking;
/// it is asked for within a round trip or two, and 32 names of 16 bytes cost less than one cell's key in most stores.
pub const SWAP_IDS_MAX: usize = 32;

/// Latest epoch a row may have: the largest time any client can name. Far enough from the end of u64 that raising it cannot
/// wrap.
pub const EPOCH_MILLIS_MAX: u64 = i64::MAX as u64;

/// Position in a writer's sequence. Rises with everything a writer says of a cell, through all epochs of the counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Seq(pub u64);

/// One of a counter's independent sub-counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Shard(pub u16);

/// Whose cell, of which shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CellId {
    /// Who alone writes it.
    pub writer: Writer,
    /// Which of the writer's shards.
    pub shard: Shard,
}

/// A cell in a row: the newest that its writer said under the row's epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowCell {
    /// When the writer said it, in its own sequence.
    pub seq: Seq,
    /// The running value. Wider than a reply: what a writer carries on may be the difference of two i64.
    pub value: i128,
    /// All that the writer ever added to it, over all epochs.
    pub total: i128,
    /// Whether the writer's life is over: still counted, and no longer changed by puts.
    pub closed: bool,
}

/// What became of a cell that no longer counts by itself: what the store kept of it when its epoch ended or it was folded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpentCell {
    /// The epoch under which it counted.
    pub epoch: Epoch,
    /// The newest that was kept.
    pub seq: Seq,
    /// Its running value then: the part that was counted. The writer owes the rest.
    pub value: i128,
    /// All that the writer had ever added to it then.
    pub total: i128,
    /// Whether its writer's life is over.
    pub closed: bool,
    /// The expiry by which its epoch ended, if it did so by expiring.
    pub expired: Option<Millis>,
    /// When this was written, by the store's clock: kept for `grace` from here.
    pub at: Millis,
}

/// Names one swap. Random, so that whoever asked knows their own again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct SwapId(pub u128);

/// Which state of a row was seen. A swap is carried out only on the very state it was computed from.
///
/// A store makes `puts` in whatever way rises with every put that moved a cell, among states with the same `swaps`, and comes to the same for two
/// different rows only by an unlikely chance: by the [stride](crate::shared::Put::stride) of each such put, or from the numbers and writers of the cells.
/// A count would do, if no store ever lost anything: one that went back comes to the same count again, by other puts, and a swap that was computed before
/// would be carried out on a row that it has not seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct RowVersion {
    /// When the row was made, by the store's clock: one that is made anew after it was forgotten is not the same row.
    pub born_at: Millis,
    /// How many swaps the row has seen.
    pub swaps: u64,
    /// Rises with every put that moved a cell.
    pub puts: u64,
}

/// Strides have 20 bits: few enough that no row comes to the end of its versions, and that a store which counts in doubles adds them exactly.
const STRIDE_MASK: u64 = (1 << 20) - 1;

impl RowVersion {
    /// The version of a counter that has no row.
    pub const ABSENT: RowVersion = RowVersion { born_at: Millis(0), swaps: 0, puts: 0 };

    /// How far apart the versions before and after something are: at least 1, and another for something else.
    pub(super) fn stride(words: &[u64]) -> u64 {
        let mix = |mixed: u64, word: &u64| {
            let mixed = (mixed ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            mixed ^ mixed >> 32
        };
        1 + (words.iter().fold(0, mix) & STRIDE_MASK)
    }

    /// Whether this is an older state than the other, of a store that has lost nothing in between.
    pub fn is_before(&self, other: &RowVersion) -> bool {
        (self.born_at, self.swaps, self.puts) < (other.born_at, other.swaps, other.puts)
    }
}

/// A counter's row. The default is that of a counter the store does not know.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Snapshot {
    /// Which state of the row this is.
    pub version: RowVersion,
    /// The newest epoch: only its cells count.
    pub epoch: Epoch,
    /// What was set, and what was folded into it; none if the counter is made of cells alone.
    pub base: Option<i128>,
    /// When it expires, by the store's clock.
    pub expires_at: Option<Millis>,
    /// When it was last deleted or noticed to have expired.
    pub gone_at: Option<Millis>,
    /// The cells of this epoch.
    pub cells: BTreeMap<CellId, RowCell>,
    /// What was kept of cells that no longer count by themselves.
    pub spent: BTreeMap<CellId, SpentCell>,
    /// The last swaps, newest last, at most [`SWAP_IDS_MAX`]; the newest has the number `version.swaps`.
    pub swaps: Vec<SwapId>,
}

/// A row, and the time at the store when it was read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FetchedRow {
    /// The row.
    pub snapshot: Snapshot,
    /// The store's clock.
    pub at: Millis,
}

/// A row that no store of ours wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// An epoch that cannot be raised any more.
    #[error("the row's epoch is beyond the range of time")]
    Epoch,
    /// Spent cells of an epoch that has not been.
    #[error("the row remembers cells of an epoch it has not reached")]
    Spent,
    /// More swaps named than there were, or than are kept.
    #[error("the row names {named} swaps of {swaps}")]
    Swaps {
        /// How many it names.
        named: usize,
        /// How many there were.
        swaps: u64,
    },
}

impl Snapshot {
    /// The row, if it can be one: what an adapter asks of every row that it decodes.
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

    /// Whether there is a counter: it was set, or somebody's cell counts.
    pub fn exists(&self) -> bool {
        self.base.is_some() || !self.cells.is_empty()
    }

    /// Whether it is a sketch: somebody has a body of it.
    pub fn is_sketch(&self) -> bool {
        self.cells.keys().any(is_body_cell)
    }

    /// The value, whether or not it fits a reply.
    pub fn sum(&self) -> i128 {
        // No real sum comes near the end of i128; one that a damaged store makes up must not end the process, and stays too wide
        // for any reply.
        self.cells.values().fold(self.base.unwrap_or(0), |sum, held| sum.saturating_add(held.value))
    }

    /// Whether its time is over, though nobody has moved the row yet.
    pub fn is_due(&self, at: Millis) -> bool {
        self.expires_at.is_some_and(|expires_at| expires_at <= at)
    }

    /// The row as it counts at that time: if it is due, the next life of the counter, the same for everyone who looks.
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

    /// Ends the row's epoch: what its cells hold at this moment is what the store kept of them.
    pub(super) fn end_epoch(&mut self, epoch: Epoch, at: Millis, expired: Option<Millis>) {
        debug_assert!(epoch > self.epoch, "an epoch only rises");
        for (id, RowCell { seq, value, total, closed }) in std::mem::take(&mut self.cells) {
            self.spent.insert(id, SpentCell { epoch: self.epoch, seq, value, total, closed, expired, at });
        }
        self.epoch = epoch;
        self.base = None;
        self.expires_at = None;
    }

    /// Moves the row up to an epoch that it does not know. If the row is older than that epoch, it lost it, and what it holds was
    /// taken when the epoch began. If it is younger, the row that knew was forgotten in between, and what it holds counts on: what cells come to in
    /// `base`, and of a sketch, whose bodies go with the epoch, nothing was kept, so that its nodes go on with all of them.
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

    /// The newest that the row knows of a cell, counted or spent, of any epoch.
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
        // Of one seq, what counts is what was said.
        held.filter(|held| spent.is_none_or(|spent| spent.seq <= held.seq)).or(spent)
    }

    /// What the row counts of a running value though its writer was told otherwise. A row that is younger than the value's epoch was lost, or
    /// forgotten, and made anew by a put from before that epoch, which counts on in it.
    pub(super) fn recounted_value(&self, put: &Put) -> i128 {
        let held = self.cells.get(&put.cell).filter(|_| self.epoch < put.epoch).map(|held| held.total);
        let spent = self.spent.get(&put.cell).filter(|spent| spent.epoch < put.epoch).map(|spent| spent.total);
        match held.or(spent).filter(|_| self.version.born_at.0 > put.epoch.millis) {
            // What was kept, or has expired, lies before what the writer says now, and that put may end there, too.
            Some(total) => {
                let more = total.saturating_sub(put.total.saturating_sub(put.value));
                more.clamp(put.value.min(0), put.value.max(0))
            }
            None => 0,
        }
    }

    /// Whether what the row knows of a cell is the last it will hear of it by puts.
    pub(super) fn is_closed(&self, cell: CellId) -> bool {
        let held = self.cells.get(&cell).map(|held| held.closed);
        held.or(self.spent.get(&cell).map(|spent| spent.closed)).unwrap_or(false)
    }

    /// The seq of the newest that the row knows of a cell.
    pub fn newest(&self, cell: CellId) -> Option<Seq> {
        self.last(cell).map(|last| last.seq)
    }

    /// Forgets what was kept so long ago, of a writer that nobody knows any more, that none of its heirs can still ask.
    pub(super) fn prune(&mut self, at: Millis, grace: Duration, registered: &BTreeSet<Writer>) {
        self.spent.retain(|id, spent| !has_elapsed(spent.at, grace, at) || is_registered(registered, &id.writer));
    }

    /// Gives the row its next version, and the swap that makes it a name.
    pub(super) fn record_swap(&mut self, id: SwapId) {
        self.version.swaps = self.version.swaps.saturating_add(1);
        let SwapId(words) = id;
        self.version.puts = self.version.puts.wrapping_add(RowVersion::stride(&[words as u64, (words >> 64) as u64]));
        self.swaps.push(id);
        let surplus = self.swaps.len().saturating_sub(SWAP_IDS_MAX);
        self.swaps.drain(..surplus);
    }
}

/// Whether `duration` has gone by since then.
pub(super) fn has_elapsed(since: Millis, duration: Duration, now: Millis) -> bool {
    time_after(since, duration) <= now
}

/// The time that long after.
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
