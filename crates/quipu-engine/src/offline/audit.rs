//! Audits a data directory: recounts the stored totals and compares ledger with journal.
//!
//! In: a directory that a start would accept. Out: every difference, by name.
//!
//! The audit compares:
//! - counters: the number in each shard with the stored number, at rest and with the journal
//!   applied;
//! - values: the state before each journal record with the record's claim, and the sum of its adds
//!   with its value;
//! - epochs and expiry: no cell at rest is beyond the newest epoch, or expires before the earliest
//!   expiry, that the ledger keeps for its shard;
//! - hashes: every name is at its lookup position;
//! - own cells: each record of them can be decoded.
//!
//! Not here: whether the bytes are those that were written (`verify`, and the journal's own
//! checks), and the state of a shared store (`sharing::audit`).

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::Path;

use quipu_model::{Epoch, LedgerError, Millis, Vfs};

use super::{OfflineView, OpenLedgerReadOnly, ledger_refusal};
use crate::core::watermark::Watermark;
use crate::journal::format::{Entry, Position, PriorExistence};
use crate::journal::reader::Record;
use crate::recovery::open::OpenError;
use crate::table::Table;

/// Most differences listed one by one, as many as a person reads. The others are counted.
pub const DRIFTS_MAX: usize = 1_000;

/// Counters between two progress reports: often enough to be visible, too seldom to cost time.
const PROGRESS_EVERY: u64 = 1 << 12;

/// Result of an audit.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DirectoryAudit {
    /// Number of counters, including expired ones not yet removed.
    pub counters: u64,
    /// Sum of the plain counters' values.
    pub sum: i128,
    /// Number of sketches.
    pub sketches: u64,
    /// Number of counters with own cells of this node on a shared store.
    pub own: u64,
    /// The first [`DRIFTS_MAX`] differences.
    pub drifts: Vec<Drift>,
    /// Number of further differences.
    pub drifts_more: u64,
}

/// One difference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drift {
    /// Name of the counter; `None`: the difference concerns a whole shard.
    pub counter: Option<Box<[u8]>>,
    /// The differing item and its place.
    pub what: String,
    /// The expected content.
    pub expected: String,
    /// The content found.
    pub found: String,
}

impl DirectoryAudit {
    fn add_drift(&mut self, counter: Option<&[u8]>, what: impl Display, expected: impl Display, found: impl Display) {
        if self.drifts.len() >= DRIFTS_MAX {
            self.drifts_more += 1;
            return;
        }
        let (what, expected, found) = (what.to_string(), expected.to_string(), found.to_string());
        self.drifts.push(Drift { counter: counter.map(Box::from), what, expected, found });
    }

    /// Returns true if there is no difference.
    pub fn is_clean(&self) -> bool {
        self.drifts.is_empty()
    }
}

/// Reads and compares everything; `None`: there is no journal. `progress` gets the approximate
/// numbers of counters done and in all.
pub fn audit(
    vfs: &dyn Vfs,
    dir: &Path,
    open_ledger: &mut OpenLedgerReadOnly<'_>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Option<DirectoryAudit>, OpenError> {
    let (mut audit, mut history) = (DirectoryAudit::default(), None);
    let opened = OfflineView::open(vfs, dir, open_ledger, |watermark, record| {
        history.get_or_insert_with(|| JournalHistory::new(watermark)).add_record(watermark, record, &mut audit);
    })?;
    let Some(view) = opened else { return Ok(None) };
    let mut history = history.unwrap_or_else(|| JournalHistory::new(&view.watermark));
    let ledger = |source| ledger_refusal(dir, source);
    let shard_counts = count_cells(&view, &mut history, &mut audit, progress).map_err(ledger)?;
    history.finish(&mut audit);
    for (shard, (recorded, shard_counts)) in view.watermark.shards.iter().zip(&shard_counts).enumerate() {
        if recorded.counters != shard_counts.ledger_counters {
            audit.add_drift(
                None,
                format_args!("counters at rest in shard {shard}"),
                shard_counts.ledger_counters,
                recorded.counters,
            );
        }
        let recorded = view.table.lock(shard).counters;
        if recorded != shard_counts.counters {
            audit.add_drift(None, format_args!("counters in shard {shard}"), shard_counts.counters, recorded);
        }
    }
    let mut own = 0;
    view.visit_own_cells(&mut |hash, name, own_cells| {
        own += u64::from(own_cells.is_some_and(|own_cells| !own_cells.cells.is_empty()));
        check_hash(&view, hash, name, &mut audit);
        if own_cells.is_none() {
            audit.add_drift(Some(name), "own cells", "a record that can be read", "one that makes no sense");
        }
    })
    .map_err(ledger)?;
    audit.own = own;
    Ok(Some(audit))
}

/// Numbers of counters in a shard.
#[derive(Clone, Copy, Default)]
struct ShardCounts {
    /// In the ledger.
    ledger_counters: u64,
    /// With the journal applied.
    counters: u64,
}

/// Visits every cell, at rest and in the journal.
fn count_cells(
    view: &OfflineView,
    history: &mut JournalHistory,
    audit: &mut DirectoryAudit,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Vec<ShardCounts>, LedgerError> {
    let marks = &view.watermark.shards;
    let mut shard_counts = vec![ShardCounts::default(); marks.len()];
    let total: u64 = marks.iter().map(|mark| mark.counters).sum();
    let mut done = 0;
    view.visit_ledger_cells(&mut |hash, name, cell, counts| {
        let shard = view.table.shard_of(hash);
        let mark = &marks[shard];
        check_hash(view, hash, name, audit);
        if cell.epoch > mark.epoch_newest {
            let expected = format!("{} or older", display_epoch(mark.epoch_newest));
            audit.add_drift(Some(name), "epoch", expected, display_epoch(cell.epoch));
        }
        if let Some(at) = cell.expires_at.filter(|at| mark.deadline.is_none_or(|deadline| *at < deadline)) {
            let expected = mark.deadline.map_or_else(|| "no expiry".to_owned(), |Millis(at)| format!("{at} or later"));
            audit.add_drift(Some(name), "expiry", expected, at);
        }
        history.compare_opening(name, cell.epoch, cell.value, audit);
        shard_counts[shard].ledger_counters += 1;
        shard_counts[shard].counters += u64::from(counts);
        let is_count = view.table.lock(shard).body(name).is_none();
        audit.sum += if counts && is_count { i128::from(cell.value) } else { 0 };
        done += 1;
        if done % PROGRESS_EVERY == 0 {
            progress(done, total);
        }
    })?;
    for (shard, shard_counts) in shard_counts.iter_mut().enumerate() {
        let shard = view.table.lock(shard);
        for (cell, is_count) in shard.cells() {
            shard_counts.counters += u64::from(cell.is_some());
            audit.sum += cell.filter(|_| is_count).map_or(0, |cell| i128::from(cell.value));
        }
        audit.sketches += (shard.bodies().len() + shard.own_bodies().len()) as u64;
    }
    audit.counters = shard_counts.iter().map(|shard_counts| shard_counts.counters).sum();
    Ok(shard_counts)
}

fn check_hash(view: &OfflineView, hash: u64, name: &[u8], audit: &mut DirectoryAudit) {
    let expected = view.table.hash(name);
    if hash != expected {
        audit.add_drift(Some(name), "hash", format_args!("{expected:016x}"), format_args!("{hash:016x}"));
    }
}

fn display_epoch(epoch: Epoch) -> String {
    if epoch == Epoch::FIRST { "the first".to_owned() } else { format!("{}.{}", epoch.millis, epoch.node) }
}

/// History of each counter in the journal, beyond the ledger.
struct JournalHistory {
    /// An empty table, used for its hashes and shards.
    sharding: Table,
    counters: BTreeMap<Box<[u8]>, CounterHistory>,
    /// Shards that a flush cleared during the replay: their state at rest is not the state before.
    flushed: Vec<bool>,
}

/// History of one counter in the journal.
struct CounterHistory {
    /// Claimed state before the counter's first record; `None`: nothing to compare.
    opening: Option<OpeningValue>,
    /// The counter after its newest record, if it exists.
    latest: Option<(Epoch, i64)>,
}

struct OpeningValue {
    existed: bool,
    /// The value that the ledger should have, if it has this epoch.
    value: Option<(Epoch, i128)>,
    position: Position,
    was_compared: bool,
}

impl JournalHistory {
    fn new(watermark: &Watermark) -> JournalHistory {
        let order = Table::new(watermark.shards.len(), watermark.seed);
        JournalHistory { sharding: order, counters: BTreeMap::new(), flushed: vec![false; watermark.shards.len()] }
    }

    /// Adds the next record.
    fn add_record(&mut self, watermark: &Watermark, record: &Record<'_>, audit: &mut DirectoryAudit) {
        let end = record.position.plus(record.bytes as u64);
        // An entry that cannot be read ends the replay with an error.
        let entries = || record.body.entries().map_while(Result::ok);
        // The ledger has carried out this record's flush: entries before it are not compared any
        // more.
        let is_flush = |(_, entry): &(usize, Entry<'_>)| matches!(entry, Entry::Flush { .. });
        let flush = entries().enumerate().filter(|_| end <= watermark.cleared).filter(is_flush).last();
        for entry in entries().skip(flush.map_or(0, |(index, _)| index)) {
            match entry {
                Entry::Cell { name, epoch, value, sum, before, own, .. } => {
                    // On a shared store other nodes add, too.
                    let came_from = own.is_empty().then(|| (epoch, i128::from(value) - i128::from(sum)));
                    self.check_entry(
                        watermark,
                        (record.position, end),
                        name,
                        before,
                        came_from,
                        Some((epoch, value)),
                        audit,
                    );
                }
                Entry::Gone { name, before, .. } => {
                    self.check_entry(watermark, (record.position, end), name, before, None, None, audit);
                }
                Entry::Flush { .. } => self.add_flush(watermark, end),
                // Every read of a directory compares a body with its cell.
                Entry::Start { .. }
                | Entry::Joined { .. }
                | Entry::Token { .. }
                | Entry::Sketch { .. }
                | Entry::Namespace { .. }
                | Entry::Sampling { .. } => {}
            }
        }
    }

    /// Checks an entry of a counter: its claimed existence and value before, then its new state.
    #[expect(clippy::too_many_arguments, reason = "an entry, and where it stands")]
    fn check_entry(
        &mut self,
        watermark: &Watermark,
        (position, end): (Position, Position),
        name: &[u8],
        before: PriorExistence,
        came_from: Option<(Epoch, i128)>,
        now: Option<(Epoch, i64)>,
        audit: &mut DirectoryAudit,
    ) {
        let shard = self.sharding.shard_of(self.sharding.hash(name));
        if end <= watermark.shards[shard].newest {
            return;
        }
        let existed = match before {
            PriorExistence::Present => Some(true),
            PriorExistence::Absent => Some(false),
            // Its other changes were not journaled.
            PriorExistence::Unknown => None,
        };
        let came_from = came_from.filter(|_| existed == Some(true));
        let Some(counter) = self.counters.get_mut(name) else {
            let opening = match (existed, self.flushed[shard]) {
                (Some(existed), false) => {
                    Some(OpeningValue { existed, value: came_from, position, was_compared: false })
                }
                (Some(true), true) => {
                    audit.add_drift(Some(name), format_args!("before position {position}"), "a counter", "none");
                    None
                }
                _ => None,
            };
            self.counters.insert(name.into(), CounterHistory { opening, latest: now });
            return;
        };
        compare_existence(
            name,
            position,
            existed,
            came_from,
            counter.latest.map(|(epoch, value)| (epoch, i128::from(value))),
            audit,
        );
        counter.latest = now;
    }

    fn add_flush(&mut self, watermark: &Watermark, end: Position) {
        for (shard, mark) in watermark.shards.iter().enumerate() {
            self.flushed[shard] |= mark.newest < end;
        }
        for (name, counter) in &mut self.counters {
            let shard = self.sharding.shard_of(self.sharding.hash(name));
            if watermark.shards[shard].newest < end {
                counter.latest = None;
            }
        }
    }

    /// Compares a counter at rest with the opening state that the journal claims.
    fn compare_opening(&mut self, name: &[u8], epoch: Epoch, value: i64, audit: &mut DirectoryAudit) {
        let Some(opening) = self.counters.get_mut(name).and_then(|counter| counter.opening.as_mut()) else { return };
        opening.was_compared = true;
        let OpeningValue { existed, value: came_from, position, .. } = *opening;
        compare_existence(name, position, Some(existed), came_from, Some((epoch, i128::from(value))), audit);
    }

    /// Reports opening counters that the ledger does not have.
    fn finish(self, audit: &mut DirectoryAudit) {
        for (name, counter) in self.counters {
            if let Some(OpeningValue { existed: true, was_compared: false, position, .. }) = counter.opening {
                audit.add_drift(Some(&name), format_args!("before position {position}"), "a counter", "none");
            }
        }
    }
}

/// Compares a record's claim about the state before with the actual state. A set or reset raises
/// the epoch: then values need not follow from each other.
fn compare_existence(
    name: &[u8],
    position: Position,
    existed: Option<bool>,
    came_from: Option<(Epoch, i128)>,
    actual: Option<(Epoch, i128)>,
    audit: &mut DirectoryAudit,
) {
    let what = format!("before position {position}");
    match (existed, actual) {
        (Some(true), None) => audit.add_drift(Some(name), what, "a counter", "none"),
        (Some(false), Some((_, value))) => audit.add_drift(Some(name), what, "no counter", value),
        (Some(true), Some((epoch, value))) => {
            if let Some((_, expected)) = came_from.filter(|(known, expected)| *known == epoch && *expected != value) {
                audit.add_drift(Some(name), format_args!("value {what}"), expected, value);
            }
        }
        _ => {}
    }
}
