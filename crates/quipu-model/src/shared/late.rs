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
use crate::shared::{Held, Put, Snapshot, Spent};

/// Counts what the row does not know of a cell; whether there was any news. `expires_at` is the expiry that the writer knew of: if
/// the put's epoch ended by it, the rest has expired too.
pub(super) fn settle(row: &mut Snapshot, put: &Put, expires_at: Option<Millis>, at: Millis) -> bool {
    // A writer's sequence goes on through all epochs, so a seq at least as great has all of this in it, or took its place.
    if row.newest(put.cell).is_some_and(|seq| seq >= put.seq) {
        return false;
    }
    let rest = owed(row, put);
    row.catch_up(put.epoch, at);
    if put.epoch == row.epoch {
        settle_present(row, put, rest, at);
    } else {
        settle_past(row, put, rest, expires_at, at);
    }
    true
}

/// What the row has not counted of a life: over all its epochs, for an heir from before a carry has, under the old epoch, what another has under
/// the new one.
fn owed(row: &Snapshot, put: &Put) -> i128 {
    let spent = row.spent.get(&put.cell).filter(|_| !row.cells.contains_key(&put.cell));
    // Then the put is what its writer carried on from there, and no heir has settled any of it.
    let carried = spent.is_some_and(|spent| spent.epoch < put.epoch && !spent.closed);
    match row.total(put.cell) {
        // A row that lost the put's epoch lost what was counted when that began.
        Some(total) if put.epoch <= row.epoch && !carried => put.total.saturating_sub(total),
        _ => put.value,
    }
}

fn settle_present(row: &mut Snapshot, put: &Put, rest: i128, at: Millis) {
    match row.spent.get(&put.cell).copied() {
        // Folded: it counts in the base.
        Some(spent) if spent.epoch == put.epoch && !row.cells.contains_key(&put.cell) => {
            count(row, rest);
            remember(row, put, spent.expired, at);
        }
        _ => hold(row, put, rest),
    }
}

fn settle_past(row: &mut Snapshot, put: &Put, rest: i128, expires_at: Option<Millis>, at: Millis) {
    // To another heir the next life had begun, and to this one, who says more, it had not: it is counted where the other was.
    if let Some(held) = row.cells.get_mut(&put.cell) {
        let value = held.value.saturating_add(rest);
        *held = Held { seq: put.seq, value, total: put.total, closed: true };
        return;
    }
    match row.spent.get(&put.cell).copied() {
        Some(Spent { epoch, value, expired, .. }) if epoch > put.epoch => {
            count(row, rest);
            remember(row, &Put { epoch, value: value.saturating_add(rest), ..*put }, expired, at);
        }
        // The rest has expired: no more was kept than before, and whoever comes later, from after the expiry, says a total without it.
        Some(Spent { epoch, value, total, expired, .. })
            if epoch == put.epoch && expired.is_some() && expired == expires_at =>
        {
            remember(row, &Put { value, total, ..*put }, expired, at);
        }
        spent => {
            count(row, rest);
            remember(row, put, spent.filter(|spent| spent.epoch == put.epoch).and_then(|spent| spent.expired), at);
        }
    }
}

/// The cell is over, and counts by itself until it is folded.
fn hold(row: &mut Snapshot, put: &Put, rest: i128) {
    let Put { cell, seq, value, total, .. } = *put;
    let held = row.cells.insert(cell, Held { seq, value, total, closed: true });
    // What another heir has settled of it under an epoch before is in the base, and would count again.
    let more = value.saturating_sub(held.map_or(0, |held| held.value));
    count(row, rest.saturating_sub(more));
}

/// Adds to the counter as it is now. Nothing to add does not make it exist.
fn count(row: &mut Snapshot, rest: i128) {
    if rest != 0 {
        row.base = Some(row.base.unwrap_or(0).saturating_add(rest));
    }
}

/// The cell is over, and this was kept of it.
fn remember(row: &mut Snapshot, put: &Put, expired: Option<Millis>, at: Millis) {
    let Put { cell, epoch, seq, value, total } = *put;
    row.spent.insert(cell, Spent { epoch, seq, value, total, closed: true, expired, at });
}

#[cfg(test)]
mod tests;
