//! Records the true sums of a run independently of the tested code.
//!
//! Each incarnation records its adds in its own totals, and a copy of an incarnation has a copy of
//! its totals. The expected value of a cell is in the totals of the newest state that the store has
//! taken, from any successor.

use std::collections::{HashMap, HashSet};

use quipu_model::shared::{CellId, FinalCell, OwnValue, Put, Seq, Snapshot};
use quipu_model::{Epoch, Millis};

use crate::node::NodeIncarnation;

/// What one life added to its cell.
#[derive(Debug, Clone, Default)]
pub struct IncarnationTotals {
    pub added: i128,
    pub adds: u64,
    expired: i128, // what it let go of, in the knowledge of an expiry
}

impl IncarnationTotals {
    /// What is to be counted of it.
    fn net(&self) -> i128 {
        self.added - self.expired
    }
}

#[derive(Default)]
pub struct Account {
    pub set: i128,      // by swaps that are in
    pub taken: i128,    // by swaps that are in
    pub returned: i128, // to clients, as they found out
    pub expired: i128,  // with the row
    pub incarnations: u64,
    pub swaps: u64,
    pub carries: u64,
    pub late: u64,
    pub lapses: u64,
    pub copies: u64,
    pub restored: u64,
    pub forgotten: u64,
    puts: HashMap<(CellId, Seq, Epoch), IncarnationTotals>, // two heirs may have decided one lapse differently
    newest: HashMap<CellId, (Seq, IncarnationTotals)>,      // that the store has taken
    ended_totals: HashMap<(usize, CellId), IncarnationTotals>, // of lives that have nothing left to say
    counted: HashMap<CellId, i128>,                         // by the store, under all epochs
    row_values: HashMap<CellId, (Epoch, i128)>,             // when a row was last seen to have the cell
    ended_values: HashMap<(CellId, Epoch), i128>,           // when that epoch of the cell ended
    late_values: HashMap<(CellId, Epoch), i128>,            // when it was settled late since
    expired_epochs: HashSet<(Epoch, Millis)>,               // epochs that expired, and by which expiry
    begun_epochs: HashSet<Epoch>,                           // epochs that the row came to
}

impl Account {
    /// Somebody says this, and everything in its books is in it.
    pub fn record_put(&mut self, put: &Put, totals: &IncarnationTotals) {
        self.puts.entry((put.cell, put.seq, put.epoch)).or_insert_with(|| totals.clone());
    }

    /// A life is over, on this machine.
    pub fn record_end(&mut self, machine: usize, incarnation: &NodeIncarnation) {
        // Silent ones do not tell the store how they came to say nothing: see "How it fails" in the
        // design.
        if incarnation.own.has_value {
            self.ended_totals.insert((machine, incarnation.cell), incarnation.totals.clone());
        }
    }

    /// A machine goes back to when these were its lives: it no longer knows how they ended, nor of
    /// any since.
    pub fn record_restore(&mut self, machine: usize, incarnations: &[NodeIncarnation]) {
        let again = |cell: CellId| incarnations.iter().any(|incarnation| incarnation.cell == cell);
        let since = |cell: CellId| {
            incarnations.iter().all(|incarnation| incarnation.cell.writer.incarnation < cell.writer.incarnation)
        };
        self.ended_totals.retain(|(on, cell), _| *on != machine || !again(*cell) && !since(*cell));
    }

    /// The store holds this row.
    pub fn record_row(&mut self, row: &Snapshot) -> Result<(), String> {
        for (&cell, row_cell) in &row.cells {
            self.record_cell(cell, row_cell.seq, row.epoch)?;
            let before = self.row_values.insert(cell, (row.epoch, row_cell.value));
            let before = before.filter(|(epoch, _)| *epoch == row.epoch).map_or(0, |(_, value)| value);
            self.add_counted(cell, row_cell.value - before)?;
        }
        Ok(())
    }

    /// The store has this of a cell.
    fn record_cell(&mut self, cell: CellId, seq: Seq, epoch: Epoch) -> Result<(), String> {
        match self.newest.get(&cell) {
            Some((known, _)) if *known == seq => return Ok(()),
            Some((known, _)) if *known > seq => {
                return Err(format!("of {cell:?} the store went back from {known:?} to {seq:?}"));
            }
            _ => {}
        }
        let totals = self.puts.get(&(cell, seq, epoch));
        let totals = totals.ok_or_else(|| format!("nobody said {seq:?} of {cell:?} under {epoch:?}"))?.clone();
        self.newest.insert(cell, (seq, totals));
        Ok(())
    }

    /// The store counts so much more of a cell, which is then what the newest that it has of it
    /// comes to.
    fn add_counted(&mut self, cell: CellId, more: i128) -> Result<(), String> {
        let counted = self.counted.entry(cell).or_default();
        *counted += more;
        match self.newest.get(&cell) {
            Some((_, totals)) if totals.net() == *counted => Ok(()),
            newest => Err(format!("of {cell:?} the store has counted {counted}, and the newest it has is {newest:?}")),
        }
    }

    /// A swap was carried out on this row.
    pub fn record_swap(
        &mut self,
        before: &Snapshot,
        after: &Snapshot,
        (set, takes, due): (i128, bool, bool),
    ) -> Result<(), String> {
        self.swaps += 1;
        self.record_row(before)?;
        // With its epoch, or folded.
        let over = before.cells.iter().filter(|(id, _)| before.epoch != after.epoch || !after.cells.contains_key(id));
        self.ended_values.extend(over.map(|(&id, row_cell)| ((id, before.epoch), row_cell.value)));
        if due {
            self.expired_epochs.extend(before.expires_at.map(|expires_at| (before.epoch, expires_at)));
            self.expired += before.sum();
            self.lapses += 1;
        } else if takes {
            self.taken += before.sum();
        }
        self.set += set;
        self.begun_epochs.insert(after.epoch);
        Ok(())
    }

    /// The store took what a life that is over said last: all that it had not counted, or nothing
    /// of an epoch whose expiry the life knew. What another heir has counted before, and this one
    /// has let go of, stays.
    pub fn record_late(&mut self, before: &Snapshot, after: &Snapshot, late: &FinalCell) -> Result<(), String> {
        let FinalCell { put, expires_at, expired_seq: let_go } = late;
        self.late += 1;
        let known = self.newest.get(&put.cell).cloned();
        self.record_cell(put.cell, put.seq, put.epoch)?;
        let taken = after.sum() - before.sum();
        let knew = expires_at.is_some_and(|expires_at| self.expired_epochs.contains(&(put.epoch, expires_at)));
        match (after.cells.get(&put.cell), self.newest.get_mut(&put.cell)) {
            (Some(row_cell), _) => {
                self.row_values.insert(put.cell, (after.epoch, row_cell.value));
            }
            (None, Some((_, totals))) if taken == 0 && knew => {
                totals.expired = totals.added - self.counted.get(&put.cell).copied().unwrap_or(0);
            }
            (None, _) => {
                self.late_values.insert((put.cell, put.epoch), put.value);
            }
        }
        if let (Some((seq, known)), Some((_, totals))) = (known, self.newest.get_mut(&put.cell)) {
            let since = if seq < *let_go { put.value } else { totals.added - known.added };
            if taken == since {
                totals.expired = totals.added - self.counted.get(&put.cell).copied().unwrap_or(0) - taken;
            }
        }
        self.add_counted(put.cell, taken)
    }

    /// A writer opened a cell anew. What it let go of must be all that the store did not count of
    /// an epoch whose expiry it knew.
    pub fn record_open(
        &mut self,
        cell: CellId,
        before: &OwnValue,
        after: &OwnValue,
        totals: &mut IncarnationTotals,
    ) -> Result<(), String> {
        self.carries += 1;
        let (epoch, value, since, knew) = match before.pending_expiry {
            Some(lapsed) => (lapsed.epoch, lapsed.value, before.value, Some(lapsed.expires_at)),
            None => (before.epoch, before.value, 0, before.expires_at),
        };
        // A row may come to the very epoch that a node lapsed into by way of another one that
        // expired at the same time.
        let over = knew.is_some_and(|expires_at| self.expired_epochs.contains(&(epoch, expires_at)))
            || before.pending_expiry.is_some() && self.begun_epochs.contains(&after.epoch);
        if after.total != totals.added {
            return Err(format!("{before:?} of {totals:?} went on as {after:?}"));
        }
        if before.pending_expiry.is_some() && after.epoch == epoch {
            let all = after.value == value + since && after.expired_seq == before.expired_seq;
            return if all { Ok(()) } else { Err(format!("{before:?} went on as {after:?}, which is not all of it")) };
        }
        if before.epoch == after.epoch && before.pending_expiry.is_none() {
            return Err(format!("{cell:?} opened twice under one epoch"));
        }
        let let_go = after.expired_seq > before.expired_seq;
        let dropped = |kept: Option<&i128>| {
            let owed = value - kept.copied().unwrap_or(0);
            let dropped = owed + since - after.value;
            let carried = dropped == 0 && (owed == 0 || before.pending_expiry.is_none());
            Some(dropped).filter(|_| carried || over && let_go && dropped == owed)
        };
        // A verdict is as old as it is. A lapse is decided by a row to which an heir may have
        // settled since what was not kept when the epoch ended.
        let late = self.late_values.get(&(cell, epoch)).filter(|_| before.pending_expiry.is_some());
        let kept = self.ended_values.get(&(cell, epoch));
        match dropped(kept).or_else(|| late.and_then(|late| dropped(Some(late)))) {
            Some(dropped) => {
                totals.expired += dropped;
                Ok(())
            }
            None => Err(format!(
                "{before:?} of {totals:?} went on as {after:?}, and {kept:?} was kept of it, late {late:?}"
            )),
        }
    }

    /// What the counter must come to once everybody has settled.
    pub fn due(&self) -> i128 {
        let added: i128 = self.newest.values().map(|(_, totals)| totals.net()).sum();
        added + self.set - self.taken - self.expired
    }

    /// What the counter comes to with what these lives still owe, while nothing expires. Whoever
    /// the store knows more of owes nothing.
    pub fn due_with<'a>(&'a self, incarnations: impl Iterator<Item = &'a NodeIncarnation>) -> i128 {
        let mut known: HashMap<CellId, &IncarnationTotals> =
            self.newest.iter().map(|(&cell, (_, totals))| (cell, totals)).collect();
        for incarnation in incarnations.filter(|incarnation| incarnation.own.has_value) {
            if self.newest.get(&incarnation.cell).is_none_or(|(seq, _)| *seq < incarnation.seq) {
                known.insert(incarnation.cell, &incarnation.totals);
            }
        }
        known.values().map(|totals| totals.added).sum::<i128>() + self.set - self.taken
    }

    /// All that a life added and did not let go of was taken by the store, from it or from one that
    /// knew all of it.
    pub fn check_settled(&self) -> Result<(), String> {
        for (&(_, cell), totals) in &self.ended_totals {
            let none = IncarnationTotals::default();
            let taken = self.newest.get(&cell).map_or(&none, |(_, totals)| totals);
            if taken.adds < totals.adds && taken.net() != totals.net() {
                return Err(format!("of {cell:?} the store took {taken:?}, and it was over with {totals:?}"));
            }
        }
        Ok(())
    }
}
