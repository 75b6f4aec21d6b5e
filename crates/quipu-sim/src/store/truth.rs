//! Records the real events at the store: for the judge, never for the nodes.
//!
//! In: each applied put and swap, with the row before and after. Out: the value that each swap
//! took, set and let expire; and per counter the *counted* total. This is the sum of all values
//! ever taken or expired, less all values set, plus the row's current sum.
//!
//! Invariants, checked at every change of a counter with positive adds only:
//! - the counted total never falls: an add in the store stays counted;
//! - it never exceeds the sum that clients asked for: no add is counted twice.
//!
//! Not here: whether replies fit (`judge`).

use std::collections::BTreeSet;

use quipu_model::shared::{CellId, Put, Registration, Seq, Snapshot, SpentCell, Verdict, WriterStage};
use quipu_model::{Millis, NodeId, Writer};

use crate::counters::COUNTERS;
use crate::log::EventLog;

/// An applied swap that ended an epoch.
#[derive(Debug, Clone, Copy)]
pub struct SwapEvent {
    /// Stamp of the scheduler.
    pub stamp: u64,
    /// Index of the counter.
    pub counter: usize,
    /// Index of the swapping node.
    pub node: usize,
    /// The value that it took.
    pub taken: i128,
    /// The value that it set instead.
    pub set: i128,
}

/// Number of events at the store, by kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StoreEvents {
    /// Puts that moved a cell.
    pub puts: u64,
    /// Applied swaps.
    pub swaps: u64,
    /// Cells that a writer opened again under a later epoch.
    pub carries: u64,
    /// Cells closed.
    pub closes: u64,
    /// Cells folded.
    pub folds: u64,
    /// Late deltas of ended incarnations, settled by a swap.
    pub late: u64,
    /// Epochs that ended by expiry.
    pub lapses: u64,
    /// Removed rows.
    pub forgotten: u64,
    /// Writers retired up to the fold.
    pub retired: u64,
}

impl StoreEvents {
    /// Adds another run's counts.
    pub fn add(&mut self, other: &StoreEvents) {
        self.puts += other.puts;
        self.swaps += other.swaps;
        self.carries += other.carries;
        self.closes += other.closes;
        self.folds += other.folds;
        self.late += other.late;
        self.lapses += other.lapses;
        self.forgotten += other.forgotten;
        self.retired += other.retired;
    }
}

/// Record of the real events.
pub struct Truth {
    log: EventLog,
    totals: [CounterTotals; COUNTERS.len()],
    swaps: Vec<SwapEvent>,
    /// Number of events by kind.
    pub events: StoreEvents,
    /// Number of changes of rows and registrations.
    pub changes: u64,
    /// Incarnations that each node has registered.
    incarnations: BTreeSet<(usize, Writer)>,
    /// Folded incarnations.
    folded: BTreeSet<Writer>,
    /// True once a registration was removed.
    removed: bool,
    broken: Option<String>,
}

#[derive(Debug, Clone, Copy, Default)]
struct CounterTotals {
    /// Taken and expired, less the values set.
    out: i128,
    /// Taken alone.
    taken: i128,
    /// Counted total at the last change of the row.
    counted: i128,
    /// Sum of the adds that clients sent, without refused ones.
    invoked: i128,
    /// True once the store lost data of it.
    lossy: bool,
    /// True if it ever had an expiry.
    expiring: bool,
}

/// The totals at one time, for a store that is restored to it.
#[derive(Clone)]
pub struct TruthCheckpoint {
    outs: [i128; COUNTERS.len()],
}

/// Effect of a swap on the row's epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EpochChange {
    /// The epoch continues.
    Same,
    /// The epoch expired.
    Lapse,
    /// The row caught up with an epoch that a writer knew; its value still counts.
    CatchUp,
    /// The epoch was taken.
    Ended,
}

impl Truth {
    pub(crate) fn new(log: EventLog) -> Truth {
        Truth {
            log,
            totals: Default::default(),
            swaps: Vec::new(),
            events: StoreEvents::default(),
            changes: 0,
            incarnations: BTreeSet::new(),
            folded: BTreeSet::new(),
            removed: false,
            broken: None,
        }
    }

    /// Counted total of a counter with this row.
    pub fn counted(&self, counter: usize, row: Option<&Snapshot>) -> i128 {
        self.totals[counter].out + row.map_or(0, Snapshot::sum)
    }

    /// Sum that swaps have taken of a counter so far.
    pub fn taken(&self, counter: usize) -> i128 {
        self.totals[counter].taken
    }

    /// Returns true if a counter ever had an expiry.
    pub fn is_expiring(&self, counter: usize) -> bool {
        self.totals[counter].expiring
    }

    /// Swaps that ended an epoch, in order.
    pub fn swaps(&self) -> &[SwapEvent] {
        &self.swaps
    }

    /// The first broken invariant.
    pub fn broken(&self) -> Option<&str> {
        self.broken.as_deref()
    }

    /// Records the adds of an act; negative for refused ones.
    pub fn add_invoked(&mut self, counter: usize, delta: i128) {
        self.totals[counter].invoked += delta;
    }

    pub(super) fn checkpoint(&self) -> TruthCheckpoint {
        TruthCheckpoint { outs: std::array::from_fn(|counter| self.totals[counter].out) }
    }

    /// Records that the store was restored to this checkpoint.
    pub(super) fn restore_checkpoint(&mut self, checkpoint: &TruthCheckpoint) {
        for (totals, out) in self.totals.iter_mut().zip(checkpoint.outs) {
            *totals = CounterTotals { out, lossy: true, counted: i128::MIN, ..*totals };
        }
    }

    /// Records an applied put; `before` is the cell's earlier seq.
    pub(super) fn put(
        &mut self,
        counter: Option<usize>,
        put: &Put,
        before: Option<Seq>,
        verdict: &Verdict,
        row: Option<&Snapshot>,
    ) {
        if *verdict != Verdict::Newest {
            return;
        }
        if before == Some(put.seq) {
            return;
        }
        self.events.puts += 1;
        self.changes += 1;
        let known = row.and_then(|row| row.spent.get(&put.cell));
        self.events.carries += u64::from(before.is_none() && known.is_some_and(|spent| spent.epoch < put.epoch));
        if let Some(counter) = counter {
            self.check_counted(counter, row, || format!("after {put:?}"));
        }
    }

    /// Records an applied swap.
    pub(super) fn swap(
        &mut self,
        (stamp, node): (u64, usize),
        counter: Option<usize>,
        before: &Snapshot,
        after: Option<&Snapshot>,
        (now, half_grace): (Millis, u64),
    ) {
        self.events.swaps += 1;
        self.changes += 1;
        self.events.forgotten += u64::from(after.is_none());
        let gone = Snapshot::default();
        let after = after.unwrap_or(&gone);
        let kind = match after.epoch {
            epoch if epoch == before.epoch || *after == gone => EpochChange::Same,
            epoch if epoch.node == NodeId(0) => EpochChange::Lapse,
            epoch if epoch.millis + half_grace < now.0 => EpochChange::CatchUp,
            _ => EpochChange::Ended,
        };
        self.count_events(kind, before, after);
        let Some(counter) = counter else { return };
        let due = was_due(before, after);
        let expired = match kind {
            EpochChange::Lapse | EpochChange::Ended if due => before.sum(),
            EpochChange::Lapse => epoch_total(before, after),
            _ => 0,
        };
        let (taken, set) = match kind {
            EpochChange::Ended => (if due { 0 } else { epoch_total(before, after) }, after.base.unwrap_or(0)),
            _ => (0, 0),
        };
        let totals = &mut self.totals[counter];
        totals.out += taken + expired - set;
        totals.taken += taken;
        totals.expiring |= after.expires_at.is_some() || kind == EpochChange::Lapse;
        if kind == EpochChange::Ended {
            self.swaps.push(SwapEvent { stamp, counter, node, taken, set });
        }
        self.check_counted(counter, Some(after), || format!("after a swap by node {node}"));
    }

    /// Returns true if the text names a folded incarnation.
    pub fn names_folded_writer(&self, reason: &str) -> bool {
        self.folded.iter().any(|writer| reason.contains(&writer.to_string()))
    }

    /// Returns true if a registration was removed: the nodes keep no data of that incarnation, so
    /// the store may lose it.
    pub fn has_removed_registration(&self) -> bool {
        self.removed
    }

    /// Records a removed registration.
    pub(super) fn record_unregistration(&mut self) {
        self.removed = true;
    }

    /// Number of incarnations that a node has registered, as its own or as a successor.
    pub fn incarnation_count(&self, node: usize) -> usize {
        self.incarnations.iter().filter(|(who, _)| *who == node).count()
    }

    /// Records a replaced registration.
    pub(super) fn record_registration(&mut self, node: usize, known: Option<Registration>, next: &Registration) {
        let before = known.map(|known| known.stage);
        // A renewal is no change. A new holder or stage is one: a node may wait for it.
        self.changes += u64::from(known.is_none_or(|known| (known.holder, known.stage) != (next.holder, next.stage)));
        if next.stage == WriterStage::Live {
            self.incarnations.insert((node, next.writer));
        }
        let folded = |stage: WriterStage| matches!(stage, WriterStage::Folded { .. });
        if folded(next.stage) {
            self.folded.insert(next.writer);
        }
        self.events.retired += u64::from(folded(next.stage) && !before.is_some_and(folded));
    }

    fn count_events(&mut self, kind: EpochChange, before: &Snapshot, after: &Snapshot) {
        self.events.lapses += u64::from(kind == EpochChange::Lapse);
        if kind != EpochChange::Same {
            return;
        }
        for (id, row_cell) in &before.cells {
            match after.cells.get(id) {
                Some(now) if now.closed && !row_cell.closed && now.seq == row_cell.seq => self.events.closes += 1,
                None if after.spent.contains_key(id) => self.events.folds += 1,
                _ => {}
            }
        }
        let settled = |(id, row_cell): (&CellId, &quipu_model::shared::RowCell)| {
            row_cell.closed && before.cells.get(id).is_none_or(|before| before.seq < row_cell.seq)
        };
        let raised = |(id, spent): (&CellId, &SpentCell)| {
            !before.cells.contains_key(id) && before.spent.get(id).is_none_or(|before| before.seq < spent.seq)
        };
        let late = after.cells.iter().filter(|cell| settled(*cell)).count()
            + after.spent.iter().filter(|spent| raised(*spent)).count();
        self.events.late += late as u64;
    }

    /// Returns true if two nodes have registered the same incarnation.
    fn has_duplicate_instances(&self) -> bool {
        let mut incarnations: Vec<Writer> = self.incarnations.iter().map(|(_, writer)| *writer).collect();
        incarnations.sort_unstable();
        incarnations.windows(2).any(|pair| pair[0] == pair[1])
    }

    fn check_counted(&mut self, counter: usize, row: Option<&Snapshot>, what: impl FnOnce() -> String) {
        let counted = self.counted(counter, row);
        let CounterTotals { counted: before, invoked, lossy, .. } = self.totals[counter];
        self.totals[counter].counted = counted;
        if counted != before {
            self.log.write_line(|| format!("books: {} {before} -> {counted} of {invoked}", COUNTERS[counter].name));
        }
        let class = COUNTERS[counter].class;
        if COUNTERS[counter].is_sketch() {
            // A sketch's cells count the changes of its bodies.
            return;
        }
        // Writers may know of a lost swap; their reaction is drift, and reported as such.
        if !class.only_grows() || (lossy && class.is_swapped()) || self.broken.is_some() {
            return;
        }
        let name = COUNTERS[counter].name;
        // The store may also lose the holder of an incarnation. Then the copy of a stopped machine
        // continues it too. Until the two notice each other, only one's adds count: the total falls
        // short, never too high.
        if counted < before && !(lossy && self.has_duplicate_instances()) {
            self.broken = Some(format!("{name}: {before} was counted at the store, and only {counted} {}", what()));
        } else if counted > invoked {
            self.broken = Some(format!("{name}: {counted} is counted at the store {}, of {invoked} asked for", what()));
        }
    }
}

/// Value of an epoch at its end, including deltas that the swapper added to the row.
fn epoch_total(before: &Snapshot, after: &Snapshot) -> i128 {
    ended_cells(before, after).fold(before.base.unwrap_or(0), |sum, spent| sum + spent.value)
}

/// The cells that ended with the epoch.
fn ended_cells<'r>(before: &'r Snapshot, after: &'r Snapshot) -> impl Iterator<Item = &'r SpentCell> {
    let is_new = |id, spent| before.cells.contains_key(id) || before.spent.get(id) != Some(spent);
    let ended = after.spent.iter().filter(move |(id, spent)| spent.epoch == before.epoch && is_new(id, spent));
    ended.map(|(_, spent)| spent)
}

/// Returns true if the row had expired when the swap was computed.
fn was_due(before: &Snapshot, after: &Snapshot) -> bool {
    let Some(expires_at) = before.expires_at else { return false };
    match ended_cells(before, after).next() {
        Some(spent) => spent.expired == Some(expires_at),
        // An epoch raised after an expired one is greater; one raised just before may be equal.
        None if after.epoch.node == NodeId(0) => after.epoch.millis >= expires_at.0,
        None => after.epoch.millis > expires_at.0,
    }
}
