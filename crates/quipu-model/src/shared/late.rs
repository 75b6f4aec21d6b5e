//! Settles the uncounted value of an ended incarnation on the row itself.
//!
//! In: a row, and a writer's final cell. Out: the row with that value counted, once, for any number
//! of successors that bring it.
//!
//! Invariants:
//! - the seq decides. If the row's state of the cell, under any epoch, is at least as new, it
//!   stays. Otherwise the final cell becomes the newest state;
//! - so a final cell may be repeated, reordered, and brought by any number of successors: the
//!   newest one counts;
//! - only the uncounted rest is added, never the part that the store kept before;
//! - settling closes the cell: puts of its writer still under way are refused, and count nothing.
//!
//! Not here: deciding which incarnations have ended, and trying a put first (the engine).

use crate::Millis;
use crate::shared::{Put, RowCell, Seq, Snapshot, SpentCell};

/// The final state of a cell of an ended incarnation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FinalCell {
    /// Its last put.
    pub put: Put,
    /// Expiry that the writer knew. If the put's epoch ended by it, the rest has expired too.
    pub expires_at: Option<Millis>,
    /// Seq at which the writer last let a value expire; 0 if never.
    pub expired_seq: Seq,
}

/// Counts the part of a final cell that the row does not know; returns true if it was new.
pub(super) fn settle(row: &mut Snapshot, late: &FinalCell, at: Millis) -> bool {
    let FinalCell { put, expires_at, .. } = late;
    // A writer's sequence goes on through all epochs. A seq at least as great includes this state
    // or replaced it.
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

/// Returns the value of an incarnation that the row has not counted, over all its epochs. A
/// successor from before a carry has under the old epoch the value that another has under the new
/// one.
///
/// The row keeps a value that one successor counted, even if a better informed one let it expire.
/// It may have been taken, or have expired, since.
fn uncounted_value(row: &Snapshot, FinalCell { put, expired_seq: let_go, .. }: &FinalCell) -> i128 {
    match row.last(put.cell) {
        // The writer carried this put on from there. No successor has settled any of it, or only a
        // part that it no longer contains.
        Some(last) if last.epoch < put.epoch && (last.seq < *let_go || !row.is_closed(put.cell)) => {
            put.value.saturating_sub(row.recounted_value(put))
        }
        // A row that lost the put's epoch also lost the value counted at its beginning.
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
    // For another successor the next epoch had begun, for this better informed one it had not. The
    // value counts in the cell of the other.
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
        // The rest has expired. The kept value stays; a later successor has the rest in its total,
        // too.
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

/// Inserts the closed cell, which counts by itself until it is folded.
fn insert_closed(row: &mut Snapshot, put: &Put, rest: i128) {
    let Put { cell, seq, value, total, .. } = *put;
    let held = row.cells.insert(cell, RowCell { seq, value, total, closed: true });
    // The part that another successor settled under an earlier epoch is in the base already, and
    // must not count twice.
    let more = value.saturating_sub(held.map_or(0, |held| held.value));
    add_to_base(row, rest.saturating_sub(more));
}

/// Adds to the counter's present value. An add of 0 does not make it exist.
fn add_to_base(row: &mut Snapshot, rest: i128) {
    if rest != 0 {
        row.base = Some(row.base.unwrap_or(0).saturating_add(rest));
    }
}

/// Records the closed cell and its kept value.
fn record_spent(row: &mut Snapshot, put: &Put, expired: Option<Millis>, at: Millis) {
    let Put { cell, epoch, seq, value, total } = *put;
    row.spent.insert(cell, SpentCell { epoch, seq, value, total, closed: true, expired, at });
}

#[cfg(test)]
mod tests;
