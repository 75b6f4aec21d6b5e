//! What a writer goes on with when its epoch has ended or its incarnation was retired.
//!
//! In: what a writer says of a cell, and what the store told or showed. Out: what it opens with: its running value less what the
//! store kept.
//!
//! Invariants:
//! - a writer journals what it opens with before it puts anything under it; after a crash it goes on from there;
//! - acted on once: a verdict on a put of another epoch or incarnation than the cell now has is no news;
//! - what a store that is not asked yet may contradict is not put: a cell that lapsed by the node's own clock waits until the
//!   row shows its epoch.
//!
//! Not here: what a store answers (`put`), the journal (the engine).

use crate::shared::put::judge;
use crate::shared::{CellId, Put, Seq, Snapshot, Verdict};
use crate::{Epoch, Millis};

/// What a writer says of one of its cells, as it is journaled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Own {
    /// The epoch it adds under.
    pub epoch: Epoch,
    /// The running value.
    pub value: i128,
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
}

/// What the writer does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Told {
    /// Nothing.
    Stay,
    /// Journals this and goes on with it, under the same incarnation.
    Open(Own),
    /// In one record: drops the cell, and adds this to the same cell of its next incarnation.
    Reborn(Own),
    /// The row has to move before the store can say: [`Change::Lapse`](crate::shared::Change::Lapse) if it is due, else
    /// [`Change::CatchUp`](crate::shared::Change::CatchUp) to the cell's epoch.
    Move,
}

impl Own {
    /// The cell after an add, or `None` if its running value cannot grow by that much.
    #[must_use]
    pub fn added(self, delta: i64) -> Option<Own> {
        Some(Own { value: self.value.checked_add(i128::from(delta))?, said: true, ..self })
    }

    /// What there is to put, under the next number of the writer's sequence.
    pub fn put(&self, cell: CellId, seq: Seq) -> Option<Put> {
        let ready = self.said && self.lapsed.is_none();
        ready.then_some(Put { cell, epoch: self.epoch, seq, value: self.value })
    }

    /// The cell of a node that knows of an expiry, once that time has come: what was added before expires, what comes after counts in
    /// the next life. Asked before each add and each read.
    #[must_use]
    pub fn lapse(self, now: Millis) -> Own {
        match self.expires_at {
            // While one lapse waits to be confirmed there is no row to have learnt a second expiry from.
            Some(expires_at) if expires_at <= now && self.lapsed.is_none() => Own {
                epoch: self.epoch.expired(expires_at),
                lapsed: Some(Lapsed { epoch: self.epoch, value: self.value, expires_at }),
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

    /// What a verdict on a put of this cell means for it.
    pub fn told(&self, put: &Put, verdict: &Verdict) -> Told {
        if put.epoch != self.epoch || self.lapsed.is_some() {
            return Told::Stay;
        }
        match *verdict {
            Verdict::Newest | Verdict::Older => Told::Stay,
            Verdict::Behind { .. } => Told::Move,
            Verdict::Closed { value, .. } => {
                Told::Reborn(Own { expires_at: self.expires_at, ..self.less(value, self.epoch) })
            }
            Verdict::Stale { epoch, kept, expired } => {
                // Who knew of the expiry made its adds for a life that is over. Who did not meant them to count.
                let knew = expired.is_some() && expired == self.expires_at;
                Told::Open(self.less(if knew { self.value } else { kept }, epoch))
            }
        }
    }

    /// What a row means for this cell: as [`Own::told`], and also for a cell that lapsed.
    pub fn shown(&self, cell: CellId, row: &Snapshot, at: Millis) -> Told {
        let Some(lapsed) = self.lapsed else {
            // The newest there can be, so that only what bars the cell altogether is told.
            let put = Put { cell, epoch: self.epoch, seq: Seq(u64::MAX), value: self.value };
            return self.told(&put, &judge(row, &put, at));
        };
        if row.due(at) {
            return Told::Move;
        }
        if row.epoch == self.epoch {
            return Told::Open(Own { lapsed: None, ..*self }.informed(row));
        }
        let before = Own { epoch: lapsed.epoch, value: lapsed.value, said: true, ..Own::default() };
        let expired = row
            .spent
            .get(&cell)
            .is_some_and(|spent| spent.epoch == lapsed.epoch && spent.expired == Some(lapsed.expires_at));
        if expired {
            // Nothing was ever put under the epoch that this node came to by itself.
            return Told::Open(self.less(0, row.epoch));
        }
        if lapsed.epoch == row.epoch && row.expires_at == Some(lapsed.expires_at) {
            // This node's clock is ahead of the store's: wait.
            return Told::Stay;
        }
        if lapsed.epoch == row.epoch {
            // The expiry was taken back or put off before its time.
            let own = before.plus(self.value).informed(row);
            return match own.shown(cell, row, at) {
                Told::Stay => Told::Open(own),
                told => told,
            };
        }
        match before.shown(cell, row, at) {
            Told::Open(own) => Told::Open(own.plus(self.value)),
            Told::Reborn(own) => Told::Reborn(own.plus(self.value)),
            told => told,
        }
    }

    /// This cell of a new incarnation, with what an older one left to it.
    #[must_use]
    pub fn join(self, rest: Own) -> Own {
        // What was added under a later epoch must not expire with this one: better to carry all of it than to lose that.
        let expires_at = self.expires_at.filter(|_| rest.value == 0 || rest.epoch <= self.epoch);
        Own { said: self.said || rest.said, expires_at, ..self.plus(rest.value) }
    }

    /// What is left of the cell, less what was kept of it, under an epoch.
    fn less(&self, kept: i128, epoch: Epoch) -> Own {
        let value = self.value.saturating_sub(kept);
        Own { epoch, value, said: value != 0, ..Own::default() }
    }

    fn plus(self, value: i128) -> Own {
        let value = self.value.saturating_add(value);
        Own { value, said: self.said || value != 0, ..self }
    }
}

#[cfg(test)]
mod tests;
