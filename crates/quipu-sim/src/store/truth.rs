//! What really happened at the store, noted where it happened: for the judge, never for the nodes.
//!
//! In: each put and swap that was carried out, with the row before and after. Out: what each swap took, set and let expire; and per counter
//! what the store has *counted*: all that was ever taken from it or expired, less what was set, and what is in the row now.
//!
//! Invariants, checked at every change, of a counter to which only positive adds are made:
//! - what is counted never goes back: an add that is in the store stays counted;
//! - it never passes what clients have asked for: nothing is counted twice.
//!
//! Not here: whether replies fit (`judge`).

use std::collections::BTreeSet;

use quipu_model::shared::{CellId, Put, Registration, Seq, Snapshot, SpentCell, Verdict, WriterStage};
use quipu_model::{Millis, NodeId, Writer};

use crate::counters::COUNTERS;
use crate::log::EventLog;

/// A swap that was carried out, if it ended an epoch.
#[derive(Debug, Clone, Copy)]
pub struct SwapEvent {
    /// When, by the scheduler.
    pub stamp: u64,
    /// On which counter.
    pub counter: usize,
    /// Whose swap.
    pub node: usize,
    /// What it took.
    pub taken: i128,
    /// What it set instead.
    pub set: i128,
}

/// How often what was met.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StoreEvents {
    /// Puts that moved a cell.
    pub puts: u64,
    /// Swaps that were carried out.
    pub swaps: u64,
    /// Cells that a writer opened anew under a later epoch.
    pub carries: u64,
    /// Cells closed.
    pub closes: u64,
    /// Cells folded.
    pub folds: u64,
    /// What a life that was over still owed, settled by a swap.
    pub late: u64,
    /// Epochs that ended by expiry.
    pub lapses: u64,
    /// Rows that were removed.
    pub forgotten: u64,
    /// Writers that went all the way out.
    pub retired: u64,
}

impl StoreEvents {
    /// Adds what another run met.
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

/// The books.
pub struct Truth {
    log: EventLog,
    totals: [CounterTotals; COUNTERS.len()],
    swaps: Vec<SwapEvent>,
    /// How often what was met.
    pub events: StoreEvents,
    /// How often a row, or who writes, has changed.
    pub changes: u64,
    /// Who has registered which life.
    incarnations: BTreeSet<(usize, Writer)>,
    /// Lives that were folded.
    folded: BTreeSet<Writer>,
    /// A registration was removed.
    removed: bool,
    broken: Option<String>,
}

#[derive(Debug, Clone, Copy, Default)]
struct CounterTotals {
    /// Taken and expired, less what was set.
    out: i128,
    /// Taken alone.
    taken: i128,
    /// What was counted when the row last changed.
    counted: i128,
    /// What clients have asked for and was not refused.
    invoked: i128,
    /// The store lost something of it.
    lossy: bool,
    /// Whether it ever had an expiry.
    expiring: bool,
}

/// The books at one moment, for a store that goes back to it.
#[derive(Clone)]
pub struct TruthCheckpoint {
    outs: [i128; COUNTERS.len()],
}

/// What a swap did to an epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EpochChange {
    /// Nothing: it goes on.
    Same,
    /// It expired.
    Lapse,
    /// It was brought up to one that a writer knew; what the row holds counts on.
    CatchUp,
    /// It was taken.
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

    /// What the store has counted of a counter whose row is this.
    pub fn counted(&self, counter: usize, row: Option<&Snapshot>) -> i128 {
        self.totals[counter].out + row.map_or(0, Snapshot::sum)
    }

    /// What swaps have taken of a counter so far.
    pub fn taken(&self, counter: usize) -> i128 {
        self.totals[counter].taken
    }

    /// Whether a counter ever had an expiry.
    pub fn is_expiring(&self, counter: usize) -> bool {
        self.totals[counter].expiring
    }

    /// Swaps that ended an epoch, in order.
    pub fn swaps(&self) -> &[SwapEvent] {
        &self.swaps
    }

    /// What was broken first.
    pub fn broken(&self) -> Option<&str> {
        self.broken.as_deref()
    }

    /// Clients ask for adds that come to this, or were refused some.
    pub fn add_invoked(&mut self, counter: usize, delta: i128) {
        self.totals[counter].invoked += delta;
    }

    pub(super) fn checkpoint(&self) -> TruthCheckpoint {
        TruthCheckpoint { outs: std::array::from_fn(|counter| self.totals[counter].out) }
    }

    /// The store went back to this page.
    pub(super) fn restore_checkpoint(&mut self, checkpoint: &TruthCheckpoint) {
        for (totals, out) in self.totals.iter_mut().zip(checkpoint.outs) {
            *totals = CounterTotals { out, lossy: true, counted: i128::MIN, ..*totals };
        }
    }

    /// A put was carried out; before, the row had this of its cell.
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

    /// A swap is carried out.
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

    /// Whether this speaks of a life that was folded.
    pub fn names_folded_writer(&self, reason: &str) -> bool {
        self.folded.iter().any(|writer| reason.contains(&writer.to_string()))
    }

    /// Whether a registration was removed: of that life the nodes keep nothing, for the store to lose.
    pub fn has_removed_registration(&self) -> bool {
        self.removed
    }

    /// A registration was removed.
    pub(super) fn record_unregistration(&mut self) {
        self.removed = true;
    }

    /// How many lives a node has registered as its own or as an heir.
    pub fn incarnation_count(&self, node: usize) -> usize {
        self.incarnations.iter().filter(|(who, _)| *who == node).count()
    }

    /// A node has replaced a registration.
    pub(super) fn record_registration(&mut self, node: usize, known: Option<Registration>, next: &Registration) {
        let before = known.map(|known| known.stage);
        // Renewing is no news; who holds a life, and that it is on its way out, is: somebody may wait for it.
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

    /// Whether two nodes have registered the same life.
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
            // What its cells come to is how often bodies have changed.
            return;
        }
        // A swap that was lost may have been told to its writers: what they then do is drift, and reported as such.
        if !class.only_grows() || (lossy && class.is_swapped()) || self.broken.is_some() {
            return;
        }
        let name = COUNTERS[counter].name;
        // Who went on with a life may be lost, too: a copy of a stopped machine then goes on with it as well, and of what the two add until they hear of each
        // other only what one of them added counts. Less, that is; never more.
        if counted < before && !(lossy && self.has_duplicate_instances()) {
            self.broken = Some(format!("{name}: {before} was counted at the store, and only {counted} {}", what()));
        } else if counted > invoked {
            self.broken = Some(format!("{name}: {counted} is counted at the store {}, of {invoked} asked for", what()));
        }
    }
}

/// What an epoch held when it ended, with what the swapper laid into the row as it computed.
fn epoch_total(before: &Snapshot, after: &Snapshot) -> i128 {
    ended_cells(before, after).fold(before.base.unwrap_or(0), |sum, spent| sum + spent.value)
}

/// The cells that ended with an epoch.
fn ended_cells<'r>(before: &'r Snapshot, after: &'r Snapshot) -> impl Iterator<Item = &'r SpentCell> {
    let is_new = |id, spent| before.cells.contains_key(id) || before.spent.get(id) != Some(spent);
    let ended = after.spent.iter().filter(move |(id, spent)| spent.epoch == before.epoch && is_new(id, spent));
    ended.map(|(_, spent)| spent)
}

/// Whether the row had expired when the swap was computed.
fn was_due(before: &Snapshot, after: &Snapshot) -> bool {
    let Some(expires_at) = before.expires_at else { return false };
    match ended_cells(before, after).next() {
        Some(spent) => spent.expired == Some(expires_at),
        // An epoch that was raised after one that expired is greater; one that was raised a moment before may be as great.
        None if after.epoch.node == NodeId(0) => after.epoch.millis >= expires_at.0,
        None => after.epoch.millis > expires_at.0,
    }
}
