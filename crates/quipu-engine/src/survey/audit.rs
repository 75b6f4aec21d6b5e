//! Audits a data directory: counts again what is kept as a number, and compares what ledger and journal say of the same thing.
//!
//! In: a directory that a start would take. Out: every difference, by name.
//!
//! What is compared:
//! - counters: how many there are, shard by shard, with the number that is kept, at rest and with the journal over it;
//! - values: what the journal says was there before each of its records with what was, and what its adds come to with the value it gives;
//! - epochs and expiry: no cell at rest is beyond the newest epoch, or expires before the earliest expiry, that the ledger keeps for its shard;
//! - hashes: every name is where it is looked for;
//! - own cells: each record of them can be read.
//!
//! Not here: whether the bytes are those that were written (`verify`, and the journal's own checks), and what a shared store says (`sharing::audit`).

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::Path;

use quipu_model::{Epoch, LedgerError, Millis, Vfs};

use super::{LookAtLedger, Survey, refused};
use crate::apply::table::Table;
use crate::journal::format::{Before, Entry, Position};
use crate::journal::recover::Record;
use crate::open::OpenError;
use crate::watermark::Watermark;

/// Most differences that are told one by one: what a person reads. The others are counted.
pub const DRIFTS_MAX: usize = 1_000;

/// How far it has come is told after so many counters: often enough to be seen, too seldom to take time.
const PROGRESS_EVERY: u64 = 1 << 12;

/// What an audit has found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Audit {
    /// Counters, those that have expired and were not looked at since included.
    pub counters: u64,
    /// The sum of the values of those that are counts.
    pub sum: i128,
    /// Those that are sketches.
    pub sketches: u64,
    /// Counters of which this node says something on a shared store.
    pub own: u64,
    /// What is not as it should be; the first [`DRIFTS_MAX`] of it.
    pub drifts: Vec<Drift>,
    /// How much more there is of that.
    pub drifts_more: u64,
}

/// Something that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drift {
    /// Of which counter; `None`: of a shard of the table as a whole.
    pub counter: Option<Box<[u8]>>,
    /// What differs, and where.
    pub what: String,
    /// What it should be.
    pub expected: String,
    /// What it is.
    pub found: String,
}

impl Audit {
    fn drift(&mut self, counter: Option<&[u8]>, what: impl Display, expected: impl Display, found: impl Display) {
        if self.drifts.len() >= DRIFTS_MAX {
            self.drifts_more += 1;
            return;
        }
        let (what, expected, found) = (what.to_string(), expected.to_string(), found.to_string());
        self.drifts.push(Drift { counter: counter.map(Box::from), what, expected, found });
    }

    /// Whether everything is as it should be.
    pub fn is_clean(&self) -> bool {
        self.drifts.is_empty()
    }
}

/// Reads and compares everything; `None`: there is no journal. `progress` gets the counters done and to do, about.
pub fn audit(
    vfs: &dyn Vfs,
    dir: &Path,
    open_ledger: &mut LookAtLedger<'_>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Option<Audit>, OpenError> {
    let (mut audit, mut story) = (Audit::default(), None);
    let opened = Survey::open(vfs, dir, open_ledger, |watermark, record| {
        story.get_or_insert_with(|| Story::new(watermark)).take(watermark, record, &mut audit);
    })?;
    let Some(survey) = opened else { return Ok(None) };
    let mut story = story.unwrap_or_else(|| Story::new(&survey.watermark));
    let ledger = |source| refused(dir, source);
    let counted = count_cells(&survey, &mut story, &mut audit, progress).map_err(ledger)?;
    story.finish(&mut audit);
    for (shard, (kept, counted)) in survey.watermark.shards.iter().zip(&counted).enumerate() {
        if kept.counters != counted.at_rest {
            audit.drift(None, format_args!("counters at rest in shard {shard}"), counted.at_rest, kept.counters);
        }
        let kept = survey.table.lock(shard).counters;
        if kept != counted.counters {
            audit.drift(None, format_args!("counters in shard {shard}"), counted.counters, kept);
        }
    }
    let mut own = 0;
    survey
        .own(&mut |hash, name, owned| {
            own += u64::from(owned.is_some_and(|owned| !owned.cells.is_empty()));
            check_hash(&survey, hash, name, &mut audit);
            if owned.is_none() {
                audit.drift(Some(name), "own cells", "a record that can be read", "one that makes no sense");
            }
        })
        .map_err(ledger)?;
    audit.own = own;
    Ok(Some(audit))
}

/// How many counters of a shard there are.
#[derive(Clone, Copy, Default)]
struct Counted {
    /// In the ledger.
    at_rest: u64,
    /// With the journal over it.
    counters: u64,
}

/// Looks at every cell, at rest and in the journal.
fn count_cells(
    survey: &Survey,
    story: &mut Story,
    audit: &mut Audit,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Vec<Counted>, LedgerError> {
    let marks = &survey.watermark.shards;
    let mut counted = vec![Counted::default(); marks.len()];
    let total: u64 = marks.iter().map(|mark| mark.counters).sum();
    let mut done = 0;
    survey.at_rest(&mut |hash, name, cell, counts| {
        let shard = survey.table.shard_of(hash);
        let mark = &marks[shard];
        check_hash(survey, hash, name, audit);
        if cell.epoch > mark.epoch_newest {
            let expected = format!("{} or older", shown_epoch(mark.epoch_newest));
            audit.drift(Some(name), "epoch", expected, shown_epoch(cell.epoch));
        }
        if let Some(at) = cell.expires_at.filter(|at| mark.deadline.is_none_or(|deadline| *at < deadline)) {
            let expected = mark.deadline.map_or_else(|| "no expiry".to_owned(), |Millis(at)| format!("{at} or later"));
            audit.drift(Some(name), "expiry", expected, at);
        }
        story.meet(name, cell.epoch, cell.value, audit);
        counted[shard].at_rest += 1;
        counted[shard].counters += u64::from(counts);
        let is_count = survey.table.lock(shard).body(name).is_none();
        audit.sum += if counts && is_count { i128::from(cell.value) } else { 0 };
        done += 1;
        if done % PROGRESS_EVERY == 0 {
            progress(done, total);
        }
    })?;
    for (shard, counted) in counted.iter_mut().enumerate() {
        let shard = survey.table.lock(shard);
        for (cell, is_count) in shard.cells() {
            counted.counters += u64::from(cell.is_some());
            audit.sum += cell.filter(|_| is_count).map_or(0, |cell| i128::from(cell.value));
        }
        audit.sketches += (shard.shelf().len() + shard.own_shelves().len()) as u64;
    }
    audit.counters = counted.iter().map(|counted| counted.counters).sum();
    Ok(counted)
}

fn check_hash(survey: &Survey, hash: u64, name: &[u8], audit: &mut Audit) {
    let expected = survey.table.hash(name);
    if hash != expected {
        audit.drift(Some(name), "hash", format_args!("{expected:016x}"), format_args!("{hash:016x}"));
    }
}

fn shown_epoch(epoch: Epoch) -> String {
    if epoch == Epoch::FIRST { "the first".to_owned() } else { format!("{}.{}", epoch.millis, epoch.node) }
}

/// What the journal says, beyond what the ledger has, of each counter.
struct Story {
    /// For its hashes and shards; nothing is in it.
    order: Table,
    counters: BTreeMap<Box<[u8]>, Told>,
    /// Shards of which everything was deleted on the way: what is at rest of them is not what came before.
    flushed: Vec<bool>,
}

/// What the journal says of one counter.
struct Told {
    /// What it says was there before its first record; `None`: nothing that could be compared.
    opening: Option<Opening>,
    /// The counter after its newest record, if it exists.
    now: Option<(Epoch, i64)>,
}

struct Opening {
    existed: bool,
    /// The value that the ledger should have, if it has this epoch.
    value: Option<(Epoch, i128)>,
    position: Position,
    met: bool,
}

impl Story {
    fn new(watermark: &Watermark) -> Story {
        let order = Table::new(watermark.shards.len(), watermark.seed);
        Story { order, counters: BTreeMap::new(), flushed: vec![false; watermark.shards.len()] }
    }

    /// The next record.
    fn take(&mut self, watermark: &Watermark, record: &Record<'_>, audit: &mut Audit) {
        let end = record.position.plus(record.bytes as u64);
        // One that cannot be read ends the replay with an error.
        let entries = || record.body.entries().map_while(Result::ok);
        // The ledger has carried out this record's flush: what came before it within the record is compared with nothing any more.
        let is_flush = |(_, entry): &(usize, Entry<'_>)| matches!(entry, Entry::Flush { .. });
        let flush = entries().enumerate().filter(|_| end <= watermark.cleared).filter(is_flush).last();
        for entry in entries().skip(flush.map_or(0, |(index, _)| index)) {
            match entry {
                Entry::Cell { name, epoch, value, sum, before, own, .. } => {
                    // On a shared store others add, too.
                    let came_from = own.is_empty().then(|| (epoch, i128::from(value) - i128::from(sum)));
                    self.say(watermark, (record.position, end), name, before, came_from, Some((epoch, value)), audit);
                }
                Entry::Gone { name, before, .. } => {
                    self.say(watermark, (record.position, end), name, before, None, None, audit);
                }
                Entry::Flush { .. } => self.flush(watermark, end),
                // A body is compared with its cell wherever a directory is read.
                Entry::Start { .. }
                | Entry::Joined { .. }
                | Entry::Token { .. }
                | Entry::Sketch { .. }
                | Entry::Namespace { .. }
                | Entry::Thinned { .. } => {}
            }
        }
    }

    /// The journal says what became of a counter, that it existed before or not, and what its value was then.
    #[expect(clippy::too_many_arguments, reason = "an entry, and where it stands")]
    fn say(
        &mut self,
        watermark: &Watermark,
        (position, end): (Position, Position),
        name: &[u8],
        before: Before,
        came_from: Option<(Epoch, i128)>,
        now: Option<(Epoch, i64)>,
        audit: &mut Audit,
    ) {
        let shard = self.order.shard_of(self.order.hash(name));
        if end <= watermark.shards[shard].newest {
            return;
        }
        let existed = match before {
            Before::Present => Some(true),
            Before::Absent => Some(false),
            // What else happened to it was not journaled.
            Before::Unsure => None,
        };
        let came_from = came_from.filter(|_| existed == Some(true));
        let Some(told) = self.counters.get_mut(name) else {
            let opening = match (existed, self.flushed[shard]) {
                (Some(existed), false) => Some(Opening { existed, value: came_from, position, met: false }),
                (Some(true), true) => {
                    audit.drift(Some(name), format_args!("before position {position}"), "a counter", "none");
                    None
                }
                _ => None,
            };
            self.counters.insert(name.into(), Told { opening, now });
            return;
        };
        compare(name, position, existed, came_from, told.now.map(|(epoch, value)| (epoch, i128::from(value))), audit);
        told.now = now;
    }

    fn flush(&mut self, watermark: &Watermark, end: Position) {
        for (shard, mark) in watermark.shards.iter().enumerate() {
            self.flushed[shard] |= mark.newest < end;
        }
        for (name, told) in &mut self.counters {
            let shard = self.order.shard_of(self.order.hash(name));
            if watermark.shards[shard].newest < end {
                told.now = None;
            }
        }
    }

    /// The ledger has this counter.
    fn meet(&mut self, name: &[u8], epoch: Epoch, value: i64, audit: &mut Audit) {
        let Some(opening) = self.counters.get_mut(name).and_then(|told| told.opening.as_mut()) else { return };
        opening.met = true;
        let Opening { existed, value: came_from, position, .. } = *opening;
        compare(name, position, Some(existed), came_from, Some((epoch, i128::from(value))), audit);
    }

    /// The ledger has no more.
    fn finish(self, audit: &mut Audit) {
        for (name, told) in self.counters {
            if let Some(Opening { existed: true, met: false, position, .. }) = told.opening {
                audit.drift(Some(&name), format_args!("before position {position}"), "a counter", "none");
            }
        }
    }
}

/// Compares what a record says was there before with what was. A set or reset raises the epoch: then values need not follow from each other.
fn compare(
    name: &[u8],
    position: Position,
    existed: Option<bool>,
    came_from: Option<(Epoch, i128)>,
    was: Option<(Epoch, i128)>,
    audit: &mut Audit,
) {
    let what = format!("before position {position}");
    match (existed, was) {
        (Some(true), None) => audit.drift(Some(name), what, "a counter", "none"),
        (Some(false), Some((_, value))) => audit.drift(Some(name), what, "no counter", value),
        (Some(true), Some((epoch, value))) => {
            if let Some((_, expected)) = came_from.filter(|(known, expected)| *known == epoch && *expected != value) {
                audit.drift(Some(name), format_args!("value {what}"), expected, value);
            }
        }
        _ => {}
    }
}
