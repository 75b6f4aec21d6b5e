//! What a life that is over still owes, settled on the row itself.
//!
//! In: a row, and the last that a writer said of a cell. Out: the row with that counted, once, whoever brings it.
//!
//! Invariants:
//! - by seq: what the row has of the cell, under whatever epoch, is at least as new, or this is the newest and is remembered as such;
//! - so it may be repeated and reordered, and brought by any number of heirs: the newest of all is what counts;
//! - what is added to the value is the rest, never what the store kept before;
//! - the cell is closed by it: whatever of its writer is still under way is told so, and counts nothing.
//!
//! Not here: which lives are over, and asking the store with a put first (the engine).

use crate::Millis;
use crate::shared::{Put, RowCell, Seq, Snapshot, SpentCell};

/// The last that a life said of a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FinalCell {
    /// What it said.
    pub put: Put,
    /// The expiry that it knew of: if the put's epoch ended by it, the rest has expired too.
    pub expires_at: Option<Millis>,
    /// The seq at which it last let something expire; 0 if it never did.
    pub expired_seq: Seq,
}

/// Counts what the row does not know of a cell; whether there was any news.
pub(super) fn settle(row: &mut Snapshot, late: &FinalCell, at: Millis) -> bool {
    let FinalCell { put, expires_at, .. } = late;
    // A writer's sequence goes on through all epochs, so a seq at least as great has all of this in it, or took its place.
    if row.newest(put.cell).is_some_and(|seq| seq >= put.seq) {
        return false;
    }
    let rest = uncounted_value(row, late);
    row.catch_up(put.epoch, at);
    if put.epoch == row.epoch {
        settle_present(row, put, rest, at);
    } else {
        settle_past(row, put, rest, *expires_at, at);
    }
    true
}

/// What the row has not counted of a life: over all its epochs, for an heir from before a carry has, under the old epoch, what another has under
/// the new one. What one of them has counted and another, who knew more, let expire, is not taken back: it may have been taken, or have
/// expired, since.
fn uncounted_value(row: &Snapshot, FinalCell { put, expired_seq: let_go, .. }: &FinalCell) -> i128 {
    match row.last(put.cell) {
        // The put is what its writer carried on from there, and no heir has settled any of it, or only what is no longer in it.
        Some(last) if last.epoch < put.epoch && (last.seq < *let_go || !row.is_closed(put.cell)) => {
            put.value.saturating_sub(row.recounted_value(put))
        }
        // A row that lost the put's epoch lost what was counted when that began.
        Some(last) if put.epoch <= row.epoch => put.total.saturating_sub(last.total),
        _ => put.value.saturating_sub(row.recounted_value(put)),
    }
}

fn settle_present(row: &mut Snapshot, put: &Put, rest: i128, at: Millis) {
    match row.spent.get(&put.cell).copied() {
        // Folded: it counts in the base.
        Some(spent) if spent.epoch == put.epoch && !row.cells.contains_key(&put.cell) => {
            add_to_base(row, rest);
            record_spent(row, put, spent.expired, at);
        }
        _ => insert_closed(row, put, rest),
    }
}

fn settle_past(row: &mut Snapshot, put: &Put, rest: i128, expires_at: Option<Millis>, at: Millis) {
    // To another heir the next life had begun, and to this one, who says more, it had not: it is counted where the other was.
    if let Some(held) = row.cells.get_mut(&put.cell) {
        let value = held.value.saturating_add(rest);
        *held = RowCell { seq: put.seq, value, total: put.total, closed: true };
        return;
    }
    match row.spent.get(&put.cell).copied() {
        Some(SpentCell { epoch, value, expired, .. }) if epoch > put.epoch => {
            add_to_base(row, rest);
            record_spent(row, &Put { epoch, value: value.saturating_add(rest), ..*put }, expired, at);
        }
        // The rest has expired: no more was kept than before, and whoever comes later has it in its total, too.
        Some(SpentCell { epoch, value, expired, .. })
            if epoch == put.epoch && expired.is_some() && expired == expires_at =>
        {
            record_spent(row, &Put { value, ..*put }, expired, at);
        }
        spent => {
            add_to_base(row, rest);
            record_spent(row, put, spent.filter(|spent| spent.epoch == put.epoch).and_then(|spent| spent.expired), at);
        }
    }
}

/// The cell is over, and counts by itself until it is folded.
fn insert_closed(row: &mut Snapshot, put: &Put, rest: i128) {
    let Put { cell, seq, value, total, .. } = *put;
    let held = row.cells.insert(cell, RowCell { seq, value, total, closed: true });
    // What another heir has settled of it under an epoch before is in the base, and would count again.
    let more = value.saturating_sub(held.map_or(0, |held| held.value));
    add_to_base(row, rest.saturating_sub(more));
}

/// Adds to the counter as it is now. Nothing to add does not make it exist.
fn add_to_base(row: &mut Snapshot, rest: i128) {
    if rest != 0 {
        row.base = Some(row.base.unwrap_or(0).saturating_add(rest));
    }
}

/// The cell is over, and this was kept of it.
fn record_spent(row: &mut Snapshot, put: &Put, expired: Option<Millis>, at: Millis) {
    let Put { cell, epoch, seq, value, total } = *put;
    row.spent.insert(cell, SpentCell { epoch, seq, value, total, closed: true, expired, at });
}

#[cfg(test)]
mod tests;
