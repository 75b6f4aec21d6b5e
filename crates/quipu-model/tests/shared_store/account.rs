//! What really happened, noted where it happened: beside the code that is judged, not by it.

use std::collections::{HashMap, HashSet};

use quipu_model::shared::{CellId, Own, Snapshot};
use quipu_model::{Epoch, Millis};

#[derive(Default)]
pub struct Account {
    pub added: i128,
    pub set: i128,      // by swaps that are in
    pub taken: i128,    // by swaps that are in
    pub returned: i128, // to clients, as they found out
    pub expired: i128,  // with the row, and of writers that knew
    pub swaps: u64,
    pub carries: u64,
    pub reborn: u64,
    pub lapses: u64,
    kept: HashMap<(CellId, Epoch), i128>,
    ended: HashSet<(Epoch, Millis)>, // epochs that expired, and by which expiry
}

impl Account {
    /// A swap was carried out on this row.
    pub fn swapped(&mut self, before: &Snapshot, after: &Snapshot, set: i128, takes: bool, due: bool) {
        self.swaps += 1;
        // With its epoch, or folded.
        let over = before.cells.iter().filter(|(id, _)| before.epoch != after.epoch || !after.cells.contains_key(id));
        self.kept.extend(over.map(|(&id, held)| ((id, before.epoch), held.value)));
        if due {
            self.ended.extend(before.expires_at.map(|expires_at| (before.epoch, expires_at)));
            self.expired += before.sum();
            self.lapses += 1;
        } else if takes {
            self.taken += before.sum();
        }
        self.set += set;
    }

    /// A writer opened a cell anew. What it let go of must be all that the store did not keep of an epoch whose expiry it knew.
    pub fn opened(&mut self, cell: CellId, before: &Own, after: &Own) -> Result<(), String> {
        self.carries += 1;
        let (epoch, value, since, knew) = match before.lapsed {
            Some(lapsed) => (lapsed.epoch, lapsed.value, before.value, Some(lapsed.expires_at)),
            None => (before.epoch, before.value, 0, before.expires_at),
        };
        // A row may come to the very epoch that a node lapsed into by way of another one that expired at the same time.
        let over = knew.is_some_and(|expires_at| self.ended.contains(&(epoch, expires_at)))
            || before.lapsed.is_some() && before.epoch == after.epoch;
        if before.lapsed.is_some() && after.epoch == epoch {
            return Ok(()); // the lapse was called off, and all of it goes on
        }
        if before.epoch == after.epoch && before.lapsed.is_none() {
            return Err(format!("{cell:?} opened twice under one epoch"));
        }
        let owed = value - self.kept.get(&(cell, epoch)).copied().unwrap_or(0);
        let dropped = owed + since - after.value;
        if dropped == 0 {
            return Ok(());
        }
        if !over || dropped != owed {
            return Err(format!(
                "{before:?} went on as {after:?}: of {owed} owed and {since} since, {dropped} were dropped"
            ));
        }
        self.expired += owed;
        Ok(())
    }

    /// What the counter must come to, with what writers still owe.
    pub fn due(&self) -> i128 {
        self.added + self.set - self.taken - self.expired
    }
}
