//! What really happened, noted where it happened: beside the code that is judged, not by it.
//!
//! Adds are noted in the books of the life that made them, and a copy of a life has a copy of its books. What a cell comes to is in the books
//! of the newest that the store has taken of it, whoever brought it.

use std::collections::{HashMap, HashSet};

use quipu_model::shared::{CellId, Late, Own, Put, Seq, Snapshot};
use quipu_model::{Epoch, Millis};

use crate::node::Life;

/// What one life added to its cell.
#[derive(Debug, Clone, Default)]
pub struct Books {
    pub added: i128,
    pub adds: u64,
    expired: i128, // what it let go of, in the knowledge of an expiry
}

impl Books {
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
    pub lives: u64,
    pub swaps: u64,
    pub carries: u64,
    pub late: u64,
    pub lapses: u64,
    pub heirs: u64,
    pub restored: u64,
    pub forgotten: u64,
    said: HashMap<(CellId, Seq, Epoch), Books>, // two heirs may have decided one lapse differently
    newest: HashMap<CellId, (Seq, Books)>,      // that the store has taken
    over: HashMap<(usize, CellId), Books>,      // of lives that have nothing left to say
    counted: HashMap<CellId, i128>,             // by the store, under all epochs
    held: HashMap<CellId, (Epoch, i128)>,       // when a row was last seen to have the cell
    kept: HashMap<(CellId, Epoch), i128>,       // when that epoch of the cell ended
    kept_late: HashMap<(CellId, Epoch), i128>,  // when it was settled late since
    ended: HashSet<(Epoch, Millis)>,            // epochs that expired, and by which expiry
    begun: HashSet<Epoch>,                      // epochs that the row came to
}

impl Account {
    /// Somebody says this, and everything in its books is in it.
    pub fn said(&mut self, put: &Put, books: &Books) {
        self.said.entry((put.cell, put.seq, put.epoch)).or_insert_with(|| books.clone());
    }

    /// A life is over, on this machine.
    pub fn over(&mut self, machine: usize, life: &Life) {
        // Silent ones do not tell the store how they came to say nothing: see "How it fails" in the design.
        if life.own.said {
            self.over.insert((machine, life.cell), life.books.clone());
        }
    }

    /// A machine goes back to when these were its lives: it no longer knows how they ended, nor of any since.
    pub fn went_back(&mut self, machine: usize, lives: &[Life]) {
        let again = |cell: CellId| lives.iter().any(|life| life.cell == cell);
        let since = |cell: CellId| lives.iter().all(|life| life.cell.writer.incarnation < cell.writer.incarnation);
        self.over.retain(|(on, cell), _| *on != machine || !again(*cell) && !since(*cell));
    }

    /// The store holds this row.
    pub fn see(&mut self, row: &Snapshot) -> Result<(), String> {
        for (&cell, held) in &row.cells {
            self.learn(cell, held.seq, row.epoch)?;
            let before = self.held.insert(cell, (row.epoch, held.value));
            let before = before.filter(|(epoch, _)| *epoch == row.epoch).map_or(0, |(_, value)| value);
            self.count(cell, held.value - before)?;
        }
        Ok(())
    }

    /// The store has this of a cell.
    fn learn(&mut self, cell: CellId, seq: Seq, epoch: Epoch) -> Result<(), String> {
        match self.newest.get(&cell) {
            Some((known, _)) if *known == seq => return Ok(()),
            Some((known, _)) if *known > seq => {
                return Err(format!("of {cell:?} the store went back from {known:?} to {seq:?}"));
            }
            _ => {}
        }
        let books = self.said.get(&(cell, seq, epoch));
        let books = books.ok_or_else(|| format!("nobody said {seq:?} of {cell:?} under {epoch:?}"))?.clone();
        self.newest.insert(cell, (seq, books));
        Ok(())
    }

    /// The store counts so much more of a cell, which is then what the newest that it has of it comes to.
    fn count(&mut self, cell: CellId, more: i128) -> Result<(), String> {
        let counted = self.counted.entry(cell).or_default();
        *counted += more;
        match self.newest.get(&cell) {
            Some((_, books)) if books.net() == *counted => Ok(()),
            newest => Err(format!("of {cell:?} the store has counted {counted}, and the newest it has is {newest:?}")),
        }
    }

    /// A swap was carried out on this row.
    pub fn swapped(
        &mut self,
        before: &Snapshot,
        after: &Snapshot,
        (set, takes, due): (i128, bool, bool),
    ) -> Result<(), String> {
        self.swaps += 1;
        self.see(before)?;
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
        self.begun.insert(after.epoch);
        Ok(())
    }

    /// The store took what a life that is over said last: all that it had not counted, or nothing of an epoch whose expiry the life knew. What
    /// another heir has counted before, and this one has let go of, stays.
    pub fn late(&mut self, before: &Snapshot, after: &Snapshot, late: &Late) -> Result<(), String> {
        let Late { put, expires_at, let_go } = late;
        self.late += 1;
        let known = self.newest.get(&put.cell).cloned();
        self.learn(put.cell, put.seq, put.epoch)?;
        let taken = after.sum() - before.sum();
        let knew = expires_at.is_some_and(|expires_at| self.ended.contains(&(put.epoch, expires_at)));
        match (after.cells.get(&put.cell), self.newest.get_mut(&put.cell)) {
            (Some(held), _) => {
                self.held.insert(put.cell, (after.epoch, held.value));
            }
            (None, Some((_, books))) if taken == 0 && knew => {
                books.expired = books.added - self.counted.get(&put.cell).copied().unwrap_or(0);
            }
            (None, _) => {
                self.kept_late.insert((put.cell, put.epoch), put.value);
            }
        }
        if let (Some((seq, known)), Some((_, books))) = (known, self.newest.get_mut(&put.cell)) {
            let since = if seq < *let_go { put.value } else { books.added - known.added };
            if taken == since {
                books.expired = books.added - self.counted.get(&put.cell).copied().unwrap_or(0) - taken;
            }
        }
        self.count(put.cell, taken)
    }

    /// A writer opened a cell anew. What it let go of must be all that the store did not count of an epoch whose expiry it knew.
    pub fn opened(&mut self, cell: CellId, before: &Own, after: &Own, books: &mut Books) -> Result<(), String> {
        self.carries += 1;
        let (epoch, value, since, knew) = match before.lapsed {
            Some(lapsed) => (lapsed.epoch, lapsed.value, before.value, Some(lapsed.expires_at)),
            None => (before.epoch, before.value, 0, before.expires_at),
        };
        // A row may come to the very epoch that a node lapsed into by way of another one that expired at the same time.
        let over = knew.is_some_and(|expires_at| self.ended.contains(&(epoch, expires_at)))
            || before.lapsed.is_some() && self.begun.contains(&after.epoch);
        if after.total != books.added {
            return Err(format!("{before:?} of {books:?} went on as {after:?}"));
        }
        if before.lapsed.is_some() && after.epoch == epoch {
            let all = after.value == value + since && after.let_go == before.let_go;
            return if all { Ok(()) } else { Err(format!("{before:?} went on as {after:?}, which is not all of it")) };
        }
        if before.epoch == after.epoch && before.lapsed.is_none() {
            return Err(format!("{cell:?} opened twice under one epoch"));
        }
        let let_go = after.let_go > before.let_go;
        let dropped = |kept: Option<&i128>| {
            let owed = value - kept.copied().unwrap_or(0);
            let dropped = owed + since - after.value;
            let carried = dropped == 0 && (owed == 0 || before.lapsed.is_none());
            Some(dropped).filter(|_| carried || over && let_go && dropped == owed)
        };
        // A verdict is as old as it is. A lapse is decided by a row to which an heir may have settled since what was not kept when the epoch ended.
        let late = self.kept_late.get(&(cell, epoch)).filter(|_| before.lapsed.is_some());
        let kept = self.kept.get(&(cell, epoch));
        match dropped(kept).or_else(|| late.and_then(|late| dropped(Some(late)))) {
            Some(dropped) => {
                books.expired += dropped;
                Ok(())
            }
            None => {
                Err(format!("{before:?} of {books:?} went on as {after:?}, and {kept:?} was kept of it, late {late:?}"))
            }
        }
    }

    /// What the counter must come to once everybody has settled.
    pub fn due(&self) -> i128 {
        let added: i128 = self.newest.values().map(|(_, books)| books.net()).sum();
        added + self.set - self.taken - self.expired
    }

    /// What the counter comes to with what these lives still owe, while nothing expires. Whoever the store knows more of owes nothing.
    pub fn due_with<'a>(&'a self, lives: impl Iterator<Item = &'a Life>) -> i128 {
        let mut known: HashMap<CellId, &Books> = self.newest.iter().map(|(&cell, (_, books))| (cell, books)).collect();
        for life in lives.filter(|life| life.own.said) {
            if self.newest.get(&life.cell).is_none_or(|(seq, _)| *seq < life.seq) {
                known.insert(life.cell, &life.books);
            }
        }
        known.values().map(|books| books.added).sum::<i128>() + self.set - self.taken
    }

    /// All that a life added and did not let go of was taken by the store, from it or from one that knew all of it.
    pub fn settled(&self) -> Result<(), String> {
        for (&(_, cell), books) in &self.over {
            let none = Books::default();
            let taken = self.newest.get(&cell).map_or(&none, |(_, books)| books);
            if taken.adds < books.adds && taken.net() != books.net() {
                return Err(format!("of {cell:?} the store took {taken:?}, and it was over with {books:?}"));
            }
        }
        Ok(())
    }
}
