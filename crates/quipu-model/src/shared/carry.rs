//! What a writer goes on with when its epoch has ended or its incarnation was retired.
//!
//! In: what a writer says of a cell, and what the store told or showed. Out: what it opens with, its running value less what the
//! store kept; or that this life of it is over.
//!
//! Invariants:
//! - a writer journals what it opens with before it puts anything under it; after a crash it goes on from there;
//! - acted on once: a verdict on a put of another epoch or incarnation than the cell now has is no news;
//! - only the present life of a node carries. One that is over settles what it owes by [`Change::Late`](crate::shared::Change::Late),
//!   which counts it once however many heirs bring it;
//! - what a store that is not asked yet may contradict is not put: a cell that lapsed by the node's own clock waits until the
//!   row shows its epoch.
//!
//! Not here: what a store answers (`put`), the journal (the engine).

use crate::shared::put::judge;
use crate::shared::{CellId, Late, Put, Seq, Snapshot, Verdict};
use crate::{Epoch, Millis};

/// What a writer says of one of its cells, as it is journaled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Own {
    /// The epoch it adds under.
    pub epoch: Epoch,
    /// The running value under that epoch.
    pub value: i128,
    /// All that was ever added to it, over all epochs.
    pub total: i128,
    /// The seq at which it last let something expire; 0 if it never did. What an heir from before that has counted is no part of the value.
    pub let_go: Seq,
    /// Whether there is anything to say: a cell that opened with 0 and was not added to does not make a counter exist.
    pub said: bool,
    /// When the counter expires, as far as this node knows.
    pub expires_at: Option<Millis>,
    /// The epoch before this one, if it ended by this node's clock and the store has not confirmed it.
    pub lapsed: Option<Lapsed>,
}

/// A cell of an epoch that should have expired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lapsed {
    /// Its epoch.
    pub epoch: Epoch,
    /// Its running value.
    pub value: i128,
    /// The expiry that this node knew of.
    pub expires_at: Millis,
    /// The seq under which the lapse was said.
    pub seq: Seq,
}

/// What the writer does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Told {
    /// Nothing.
    Stay,
    /// Journals this and goes on with it, under the same incarnation. If the cell had lapsed, this is what the lapse came to, for every
    /// life alike; ask again. Else it is what the present life carries; one that is over swaps
    /// [`Change::Late`](crate::shared::Change::Late) of the cell as it was, and drops it once that is in.
    Open(Own),
    /// The writer was retired: this life is over. It begins another, and settles this cell late.
    Over,
    /// The store knows a newer one of this cell than its writer does, which went back to an older state or has a twin. A life that
    /// is over has nothing left to say of it and drops it; the present life may not go on under this incarnation.
    Outdone,
    /// The row has to move before the store can say: [`Change::Lapse`](crate::shared::Change::Lapse) if it is due, else
    /// [`Change::CatchUp`](crate::shared::Change::CatchUp) to the cell's epoch.
    Move,
}

impl Own {
    /// The cell after an add, or `None` if its running value cannot grow by that much.
    #[must_use]
    pub fn added(self, delta: i64) -> Option<Own> {
        let delta = i128::from(delta);
        let (value, total) = (self.value.checked_add(delta)?, self.total.saturating_add(delta));
        Some(Own { value, total, said: true, ..self })
    }

    /// What there is to put, under the next number of the writer's sequence.
    pub fn put(&self, cell: CellId, seq: Seq) -> Option<Put> {
        let ready = self.said && self.lapsed.is_none();
        ready.then_some(Put { cell, epoch: self.epoch, seq, value: self.value, total: self.total })
    }

    /// The cell of a node that knows of an expiry, once that time has come: what was added before expires, what comes after counts in
    /// the next life. Asked before each add and each read. `seq` is the next number of the writer's sequence, under which this is said.
    #[must_use]
    pub fn lapse(self, now: Millis, seq: Seq) -> Own {
        match self.expires_at {
            // While one lapse waits to be confirmed there is no row to have learnt a second expiry from.
            Some(expires_at) if expires_at <= now && self.lapsed.is_none() => Own {
                epoch: self.epoch.expired(expires_at),
                lapsed: Some(Lapsed { epoch: self.epoch, value: self.value, expires_at, seq }),
                total: self.total,
                let_go: self.let_go,
                ..Own::default()
            },
            _ => self,
        }
    }

    /// The cell with what the row says of its expiry.
    #[must_use]
    pub fn informed(self, row: &Snapshot) -> Own {
        if self.epoch == row.epoch && self.lapsed.is_none() { Own { expires_at: row.expires_at, ..self } } else { self }
    }

    /// What a verdict on a put of this cell means for it. Never `Outdone`: that a put was overtaken says nothing of a newer one. The
    /// caller, who knows which seq was the newest, takes [`Verdict::Older`] on that one as such. `seq` is the newest that the writer gave to the cell.
    pub fn told(&self, put: &Put, verdict: &Verdict, seq: Seq) -> Told {
        if put.epoch != self.epoch || self.lapsed.is_some() {
            return Told::Stay;
        }
        match *verdict {
            Verdict::Newest | Verdict::Older => Told::Stay,
            Verdict::Behind { .. } => Told::Move,
            Verdict::Closed { .. } => Told::Over,
            Verdict::Stale { epoch, kept, expired } => {
                // Who knew of the expiry made its adds for a life that is over. Who did not meant them to count.
                let knew = expired.is_some() && expired == self.expires_at;
                Told::Open(match knew {
                    true => Own { let_go: Seq(seq.0.saturating_add(1)), ..self.less(self.value, epoch) },
                    false => self.less(kept, epoch),
                })
            }
        }
    }

    /// What a row means for this cell: as [`Own::told`], and also for one that lapsed, or that the store knows better. `seq` is the
    /// newest that its writer gave to it, under whatever epoch; 0 if none.
    pub fn shown(&self, cell: CellId, seq: Seq, row: &Snapshot, at: Millis) -> Told {
        if row.newest(cell).is_some_and(|newest| newest > seq) {
            return Told::Outdone;
        }
        if let Some(lapsed) = self.lapsed {
            return self.decided(&lapsed, cell, row, at);
        }
        let put = Put { cell, epoch: self.epoch, seq, value: self.value, total: self.total };
        match judge(row, &put, at) {
            Verdict::Older => Told::Outdone,
            Verdict::Newest => match row.recounted(&put) {
                0 => Told::Stay,
                counted => Told::Open(Own { value: self.value.saturating_sub(counted), ..*self }),
            },
            verdict => self.told(&put, &verdict, seq),
        }
    }

    /// What a lapse came to, as soon as the row can tell: the next life alone, or both parts under the epoch that went on.
    fn decided(&self, lapsed: &Lapsed, cell: CellId, row: &Snapshot, at: Millis) -> Told {
        if row.due(at) || row.epoch < lapsed.epoch {
            return Told::Move;
        }
        let confirmed = row
            .spent
            .get(&cell)
            .is_some_and(|spent| spent.epoch == lapsed.epoch && spent.expired == Some(lapsed.expires_at));
        // Or another heir has found it confirmed.
        let known = row.last(cell).is_some_and(|last| last.epoch == self.epoch);
        if confirmed || known || row.epoch == self.epoch {
            return Told::Open(Own { lapsed: None, let_go: lapsed.seq, ..*self }.informed(row));
        }
        if lapsed.epoch == row.epoch && row.expires_at == Some(lapsed.expires_at) {
            // This node's clock is ahead of the store's: wait.
            return Told::Stay;
        }
        // The expiry was taken back or put off before its time, or the epoch ended otherwise.
        let (epoch, value, total, let_go) = (lapsed.epoch, lapsed.value, self.total, self.let_go);
        let before = Own { epoch, value, total, let_go, said: true, ..Own::default() };
        Told::Open(before.plus(self.value).informed(row))
    }

    /// What is left of the cell, less what was kept of it, under an epoch.
    fn less(&self, kept: i128, epoch: Epoch) -> Own {
        let value = self.value.saturating_sub(kept);
        Own { epoch, value, total: self.total, let_go: self.let_go, said: value != 0, ..Own::default() }
    }

    /// What a life that is over still owes: its last word.
    pub fn late(&self, cell: CellId, seq: Seq) -> Option<Late> {
        let put = self.put(cell, seq)?;
        Some(Late { put, expires_at: self.expires_at, let_go: self.let_go })
    }

    /// With more of the same epoch.
    pub(super) fn plus(self, value: i128) -> Own {
        let value = self.value.saturating_add(value);
        Own { value, said: self.said || value != 0, ..self }
    }
}

#[cfg(test)]
mod tests;
