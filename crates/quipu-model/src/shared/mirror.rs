//! Mirrors a counter's row from one store into another, writer by writer.
//!
//! In: the row in the source, the row in the target, and the target's registry. Out: the target's
//! next row, or the reason for a refusal.
//!
//! A cell keeps its writer, seq and value, and the newest per cell wins. So a mirrored row that
//! comes back changes nothing. A base has no writer. The row knows the part of its base that came
//! from folded cells while it remembers these cells; the rest is the *unattributed base*.
//!
//! The id of a mirroring swap describes the source row: its tag, its number of swaps, and a flag if
//! the target kept counts of its own. These ids show if one row descends from the other.
//!
//! Invariants:
//! - each add counts once in the target: in its writer's cell, or in the base that it was folded
//!   into;
//! - an add that only the target knows is never dropped; the mirror refuses instead;
//! - two unrelated counters of the same name are never added up; the mirror refuses instead;
//! - mirroring twice, or back, changes nothing.
//!
//! Not here: bodies of sketches; registering the writers in the target, which the caller does
//! before the swap.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use crate::Millis;
use crate::shared::{CellId, FetchedRow, NextRow, RowCell, RowVersion, Seq, Snapshot, SpentCell, SwapId, WriterStage};
use crate::{Epoch, Writer};

/// A row with the number of its store.
#[derive(Debug, Clone, Copy)]
pub struct StoredRow<'r> {
    /// The row as fetched.
    pub fetched: &'r FetchedRow,
    /// Hash of the store's address.
    pub store: u64,
}

/// Reason for not mirroring a row. Nothing was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[error("{}", self.text())]
pub enum MirrorError {
    /// The row has bodies.
    Sketch,
    /// The rows are unrelated, and both have counts.
    Unrelated,
    /// The unattributed bases differ.
    Base,
    /// The source's epoch is newer, and the target has counts unknown to the source.
    SourceNewer,
    /// The target's epoch is newer.
    TargetNewer,
    /// One seq of a writer has two values.
    Damaged,
}

impl MirrorError {
    /// Text for an operator: cause and remedy.
    pub fn text(self) -> &'static str {
        match self {
            MirrorError::Sketch => "it is a sketch, and sketches are not copied",
            MirrorError::Unrelated => {
                "the target has counted it by itself, and a copy would add both: copy into an empty store"
            }
            MirrorError::Base => {
                "its folded or set values differ, and their writers are forgotten: copy into an empty store"
            }
            MirrorError::SourceNewer => {
                "the source has set, reset or deleted it, and the target has counts that the source does not know: copy the other way first"
            }
            MirrorError::TargetNewer => {
                "the target has set, reset, deleted or expired it later than the source: copy the other way"
            }
            MirrorError::Damaged => {
                "one number of a writer's sequence has two values: a store is damaged, see `quipu audit --store`"
            }
        }
    }
}

/// Descent of two rows from each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Descent {
    /// The source has seen every swap of the target.
    SourceAhead,
    /// The target has seen every swap of the source.
    TargetAhead,
    /// They share swaps, and both have seen others since.
    Diverged,
    Unrelated,
}

/// A cell of the present epoch, open, closed or folded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct MirrorCell {
    seq: Seq,
    value: i128,
    total: i128,
    closed: bool,
    folded: bool,
}

type MirrorCells = BTreeMap<CellId, MirrorCell>;

/// Computes the next row of the target. `stages` are those of the target's registry; the caller
/// registers unknown writers as live.
pub fn mirror(
    source: StoredRow<'_>,
    target: StoredRow<'_>,
    stages: &BTreeMap<Writer, WriterStage>,
) -> Result<NextRow, MirrorError> {
    let at = target.fetched.at;
    // Both by one clock: an expiry that only one clock has reached makes no difference.
    let from = source.fetched.snapshot.as_of(at);
    let to = target.fetched.snapshot.as_of(at);
    if !from.exists() && !to.exists() {
        return Ok(NextRow::Unchanged);
    }
    if from.is_sketch() || to.is_sketch() {
        return Err(MirrorError::Sketch);
    }
    let descent = descent(source, target);
    let Some(parts) = parts(&from, &to, descent)? else { return Ok(NextRow::Unchanged) };
    let keeps_own = !knows_all(&from, &parts.theirs);
    let mut next = merged(&from, &to, parts, stages, at);
    if from.epoch != to.epoch
        || target.fetched.snapshot.version == RowVersion::ABSENT
        || descent != Descent::TargetAhead
    {
        next.expires_at = from.expires_at;
    }
    if next.is_due(at) {
        next = next.as_of(at).into_owned();
    }
    if next == target.fetched.snapshot {
        return Ok(NextRow::Unchanged);
    }
    if next.version == RowVersion::ABSENT {
        next.version.born_at = at;
    }
    next.record_swap(encode_mark(source, keeps_own));
    Ok(NextRow::Row(next))
}

/// Parts of the target's next row.
struct MirrorParts {
    /// The unattributed base.
    base: i128,
    /// Cells of the source.
    ours: MirrorCells,
    /// Cells of the target.
    theirs: MirrorCells,
}

/// Returns the parts of the next row; `None` if the target's row is up to date.
fn parts(from: &Snapshot, to: &Snapshot, descent: Descent) -> Result<Option<MirrorParts>, MirrorError> {
    let (ours, theirs) = (entries(from), entries(to));
    let base = unattributed(from, &ours);
    let from_source = |ours| Ok(Some(MirrorParts { base, ours, theirs: MirrorCells::new() }));
    if to.version == RowVersion::ABSENT {
        return from_source(ours);
    }
    match from.epoch.cmp(&to.epoch) {
        Ordering::Equal => {
            for (id, entry) in &ours {
                let same = theirs.get(id).filter(|there| there.seq == entry.seq);
                if same.is_some_and(|there| there.value != entry.value) {
                    return Err(MirrorError::Damaged);
                }
            }
            let is_known = knows_all(to, &ours);
            let has_own = theirs.keys().any(|id| from.newest(*id).is_none());
            let knows_theirs = knows_all(from, &theirs);
            match agreed(from, to, ours.clone(), theirs.clone(), descent) {
                Some(_) if descent == Descent::Unrelated && has_own && !is_known => Err(MirrorError::Unrelated),
                Some(parts) => Ok(Some(parts)),
                None if descent == Descent::SourceAhead && knows_theirs => Ok(Some(MirrorParts { base, ours, theirs })),
                None if descent == Descent::TargetAhead && is_known => Ok(None),
                None => Err(MirrorError::Base),
            }
        }
        Ordering::Greater => {
            let knows_base = unattributed(to, &theirs) == 0 || descent == Descent::SourceAhead;
            if knows_all(from, &theirs) && knows_base { from_source(ours) } else { Err(MirrorError::SourceNewer) }
        }
        Ordering::Less if from.exists() => Err(MirrorError::TargetNewer),
        Ordering::Less => Ok(None),
    }
}

/// Returns the parts of two rows of one epoch if their bases agree.
///
/// A folded cell that only one side knows has two possible histories. That side alone folded it, or
/// both folded it and the other forgot it, and has it in its unattributed base. The bases decide.
fn agreed(
    from: &Snapshot,
    to: &Snapshot,
    mut ours: MirrorCells,
    mut theirs: MirrorCells,
    descent: Descent,
) -> Option<MirrorParts> {
    let base = unattributed(from, &ours);
    let agree = base == unattributed(to, &theirs);
    let all = (ours.clone(), theirs.clone());
    ours.retain(|id, entry| !entry.folded || to.newest(*id).is_some());
    theirs.retain(|id, entry| !entry.folded || from.newest(*id).is_some());
    let common = unattributed(from, &ours);
    let agree_in_common = common == unattributed(to, &theirs);
    if agree && (!agree_in_common || common == base) {
        return Some(MirrorParts { base, ours: all.0, theirs: all.1 });
    }
    // If both sides agree, both histories are possible.
    (!agree && agree_in_common && descent != Descent::Unrelated).then_some(MirrorParts { base: common, ours, theirs })
}

/// Returns the target's row with the source's cells, without the new swap.
fn merged(
    from: &Snapshot,
    to: &Snapshot,
    MirrorParts { mut base, ours, theirs }: MirrorParts,
    stages: &BTreeMap<Writer, WriterStage>,
    at: Millis,
) -> Snapshot {
    let same_epoch = from.epoch == to.epoch && to.version != RowVersion::ABSENT;
    let mut next = to.clone();
    next.epoch = from.epoch;
    next.cells.clear();
    for (&id, spent) in &from.spent {
        // The target forgets it by its own clock.
        if next.spent.get(&id).is_none_or(|there| there.seq < spent.seq) {
            next.spent.insert(id, SpentCell { at, ..*spent });
        }
    }
    let mut has_base = from.base.is_some() || same_epoch && to.base.is_some();
    let mut all = theirs;
    for (id, entry) in ours {
        let there = all.get(&id).copied();
        let newest = there.filter(|there| there.seq >= entry.seq).unwrap_or(entry);
        let stage = stages.get(&id.writer);
        let folded =
            entry.folded || there.map_or(matches!(stage, Some(WriterStage::Folded { .. })), |there| there.folded);
        let closed = there.map_or(!matches!(stage, None | Some(WriterStage::Live)), |there| there.closed);
        all.insert(id, MirrorCell { closed, folded, ..newest });
    }
    for (id, MirrorCell { seq, value, total, closed, folded }) in all {
        if !folded {
            next.cells.insert(id, RowCell { seq, value, total, closed });
            continue;
        }
        base = base.saturating_add(value);
        has_base = true;
        let spent = SpentCell { epoch: from.epoch, seq, value, total, closed: true, expired: None, at };
        let known = next.spent.get(&id).filter(|known| known.epoch == spent.epoch && known.seq == spent.seq);
        if known.is_none() {
            next.spent.insert(id, spent);
        }
    }
    next.base = has_base.then_some(base);
    if !same_epoch {
        next.gone_at = from.gone_at.map(|_| at);
    }
    next
}

/// Returns the cells of the present epoch: those that count by themselves, and those folded into
/// the base.
fn entries(row: &Snapshot) -> MirrorCells {
    let of_epoch = |epoch: Epoch| epoch == row.epoch;
    let folded = row.spent.iter().filter(|(_, spent)| of_epoch(spent.epoch));
    let folded = folded.map(|(&id, &SpentCell { seq, value, total, .. })| {
        (id, MirrorCell { seq, value, total, closed: true, folded: true })
    });
    let held = row.cells.iter().map(|(&id, &RowCell { seq, value, total, closed })| {
        (id, MirrorCell { seq, value, total, closed, folded: false })
    });
    folded.chain(held).collect()
}

/// Returns the part of the base that does not come from a remembered folded cell.
fn unattributed(row: &Snapshot, entries: &MirrorCells) -> i128 {
    let folded = entries.values().filter(|entry| entry.folded).map(|entry| entry.value);
    folded.fold(row.base.unwrap_or(0), i128::saturating_sub)
}

/// Returns true if a row has all of these cells, at least as new, under any epoch.
fn knows_all(row: &Snapshot, entries: &MirrorCells) -> bool {
    entries.iter().all(|(id, entry)| row.newest(*id).is_some_and(|newest| newest >= entry.seq))
}

fn descent(source: StoredRow<'_>, target: StoredRow<'_>) -> Descent {
    let (from, to) = (&source.fetched.snapshot, &target.fetched.snapshot);
    // A row with counts of its own has more than the row that it mirrored, though it has seen no
    // swap since.
    let last = |origin: StoredRow<'_>, row: &Snapshot| {
        let mark = row.swaps.last().and_then(|id| decode_mark(origin, *id));
        mark.is_some_and(|mark| mark.swaps <= origin.fetched.snapshot.version.swaps && !mark.keeps_own)
    };
    let any = |origin: StoredRow<'_>, row: &Snapshot, wanted: Option<u64>| {
        let mut marks = row.swaps.iter().filter_map(|id| decode_mark(origin, *id));
        marks.any(|mark| wanted.is_none_or(|wanted| wanted == mark.swaps))
    };
    if any(source, to, Some(from.version.swaps)) {
        return Descent::TargetAhead;
    }
    if any(target, from, Some(to.version.swaps)) || last(source, to) {
        return Descent::SourceAhead;
    }
    if last(target, from) {
        return Descent::TargetAhead;
    }
    if any(source, to, None) || any(target, from, None) { Descent::Diverged } else { Descent::Unrelated }
}

/// Content of a mirroring swap's id.
struct MirrorMark {
    /// Number of swaps of the source row.
    swaps: u64,
    /// The target kept counts that the source row does not know.
    keeps_own: bool,
}

/// Bit of a mark for [`MirrorMark::keeps_own`]: no row reaches this number of swaps.
const KEEPS_OWN: u64 = 1 << 63;

/// Returns the id of a swap that mirrors this row.
fn encode_mark(row: StoredRow<'_>, keeps_own: bool) -> SwapId {
    let swaps = row.fetched.snapshot.version.swaps & !KEEPS_OWN;
    let flag = if keeps_own { KEEPS_OWN } else { 0 };
    SwapId(u128::from(row_tag(row)) << 64 | u128::from(swaps | flag))
}

/// Returns the mark in the id of a swap, if the swap mirrored this row.
fn decode_mark(row: StoredRow<'_>, SwapId(words): SwapId) -> Option<MirrorMark> {
    let low = words as u64;
    let mark = MirrorMark { swaps: low & !KEEPS_OWN, keeps_own: low & KEEPS_OWN != 0 };
    ((words >> 64) as u64 == row_tag(row)).then_some(mark)
}

/// Tag of a row. A row that was forgotten and made anew has another tag.
fn row_tag(row: StoredRow<'_>) -> u64 {
    let mix = |mixed: u64, word: u64| {
        let mixed = (mixed ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed ^ mixed >> 32
    };
    mix(mix(0, row.store), row.fetched.snapshot.version.born_at.0)
}

#[cfg(test)]
mod tests;
