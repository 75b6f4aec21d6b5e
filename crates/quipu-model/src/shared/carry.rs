//! What a writer goes on with when its epoch has ended or its incarnation was retired.
//!
//! In: what a writer says of a cell, and what the store told or showed. Out: what it opens with, its running value less what the
//! store kept; or that this life of it is over.
//!
//! Invariants:
//! - a writer journals what it opens with before it puts anything under it; after a crash it goes on from there;
//! - acted on once: a verdict on a put of another epoch or incarnation than the cell now has is no news;
//! - only the present life of a node carries. One that is over settles what it owes by [`Change::FinalCell`](crate::shared::Change::Late),
//!   which counts it once however many heirs bring it;
//! - what a store that is not asked yet may contradict is not put: a cell that lapsed by the node's own clock waits until the
//!   row shows its epoch.
//!
//! Not here: what a store answers (`put`), the journal (the engine).

use crate::shared::put::judge;
use crate::shared::{CellId, FinalCell, Put, Seq, Snapshot, Verdict};
use crate::{Epoch, Millis};

/// What a writer says of one of its cells, as it is journaled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OwnValue {
    /// The epoch it adds under.
    pub epoch: Epoch,
    /// The running value under that epoch.
    pub value: i128,
    /// All that was ever added to it, over all epochs.
    pub total: i128,
    /// The seq at which it last let something expire; 0 if it never did. What an heir from before that has counted is no part of the value.
    pub expired_seq: Seq,
    /// Whether there is anything to say: a cell that opened with 0 and was not added to does not make a counter exist.
    pub has_value: bool,
    /// When the counter expires, as far as this node knows.
    pub expires_at: Option<Millis>,
    /// The epoch before this one, if it ended by this node's clock and the store has not confirmed it.
    pub pending_expiry: Option<PendingExpiry>,
}

/// A cell of an epoch that should have expired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PendingExpiry {
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
pub enum NextStep {
    /// Nothing.
    Keep,
    /// Journals this and goes on with it, under the same incarnation. If the cell had lapsed, this is what the lapse came to, for every
    /// life alike; ask again. Else it is what the present life carries; one that is over swaps
    /// [`Change::FinalCell`](crate::shared::Change::Late) of the cell as it was, and drops it once that is in.
    Continue(OwnValue),
    /// The writer was retired: this life is over. It begins another, and settles this cell late.
    Retired,
    /// The store knows a newer one of this cell than its writer does, which went back to an older state or has a twin. A life that
    /// is over has nothing left to say of it and drops it; the present life may not go on under this incarnation.
    Superseded,
    /// The row has to move before the store can say: [`Change::Lapse`](crate::shared::Change::Lapse) if it is due, else
    /// [`Change::CatchUp`](crate::shared::Change::CatchUp) to the cell's epoch.
    Move,
}

impl OwnValue {
    /// The cell after an add, or `None` if its running value cannot grow by that much.
    #[must_use]
    pub fn added(self, delta: i64) -> Option<OwnValue> {
        let delta = i128::from(delta);
        let (value, total) = (self.value.checked_add(delta)?, self.total.saturating_add(delta));
        Some(OwnValue { value, total, has_value: true, ..self })
    }

    /// What there is to put, under the next number of the writer's sequence.
    pub fn put(&self, cell: CellId, seq: Seq) -> Option<Put> {
        let ready = self.has_value && self.pending_expiry.is_none();
        ready.then_some(Put { cell, epoch: self.epoch, seq, value: self.value, total: self.total })
    }

    /// The cell of a node that knows of an expiry, once that time has come: what was added before expires, what comes after counts in
    /// the next life. Asked before each add and each read. `seq` is the next number of the writer's sequence, under which this is said.
    #[must_use]
    pub fn lapse(self, now: Millis, seq: Seq) -> OwnValue {
        match self.expires_at {
            // While one lapse waits to be confirmed there is no row to have learnt a second expiry from.
            Some(expires_at) if expires_at <= now && self.pending_expiry.is_none() => OwnValue {
                epoch: self.epoch.expired(expires_at),
                pending_expiry: Some(PendingExpiry { epoch: self.epoch, value: self.value, expires_at, seq }),
                total: self.total,
                expired_seq: self.expired_seq,
                ..OwnValue::default()
            },
            _ => self,
        }
    }

    /// The cell with what the row says of its expiry.
    #[must_use]
    pub fn with_row_expiry(self, row: &Snapshot) -> OwnValue {
        if self.epoch == row.epoch && self.pending_expiry.is_none() {
            OwnValue { expires_at: row.expires_at, ..self }
        } else {
            self
        }
    }

    /// What a verdict on a put of this cell means for it. Never `Superseded`: that a put was overtaken says nothing of a newer one. The
    /// caller, who knows which seq was the newest, takes [`Verdict::Older`] on that one as such. `seq` is the newest that the writer gave to the cell.
    pub fn on_verdict(&self, put: &Put, verdict: &Verdict, seq: Seq) -> NextStep {
        if put.epoch != self.epoch || self.pending_expiry.is_some() {
            return NextStep::Keep;
        }
        match *verdict {
            Verdict::Newest | Verdict::Older => NextStep::Keep,
            Verdict::Behind { .. } => NextStep::Move,
            Verdict::Closed { .. } => NextStep::Retired,
            Verdict::Stale { epoch, kept, expired } => {
                // Who knew of the expiry made its adds for a life that is over. Who did not meant them to count.
                let knew = expired.is_some() && expired == self.expires_at;
                NextStep::Continue(match knew {
                    true => {
                        OwnValue { expired_seq: Seq(seq.0.saturating_add(1)), ..self.carry_into(self.value, epoch) }
                    }
                    false => self.carry_into(kept, epoch),
                })
            }
        }
    }

    /// What a row means for this cell: as [`OwnValue::on_verdict`], and also for one that lapsed, or that the store knows better. `seq` is the
    /// newest that its writer gave to it, under whatever epoch; 0 if none.
    pub fn on_row(&self, cell: CellId, seq: Seq, row: &Snapshot, at: Millis) -> NextStep {
        if row.newest(cell).is_some_and(|newest| newest > seq) {
            return NextStep::Superseded;
        }
        if let Some(lapsed) = self.pending_expiry {
            return self.resolve_expiry(&lapsed, cell, row, at);
        }
        let put = Put { cell, epoch: self.epoch, seq, value: self.value, total: self.total };
        match judge(row, &put, at) {
            Verdict::Older => NextStep::Superseded,
            Verdict::Newest => match row.recounted_value(&put) {
                0 => NextStep::Keep,
                counted => NextStep::Continue(OwnValue { value: self.value.saturating_sub(counted), ..*self }),
            },
            verdict => self.on_verdict(&put, &verdict, seq),
        }
    }

    /// What a lapse came to, as soon as the row can tell: the next life alone, or both parts under the epoch that went on.
    fn resolve_expiry(&self, lapsed: &PendingExpiry, cell: CellId, row: &Snapshot, at: Millis) -> NextStep {
        if row.is_due(at) || row.epoch < lapsed.epoch {
            return NextStep::Move;
        }
        let confirmed = row
            .spent
            .get(&cell)
            .is_some_and(|spent| spent.epoch == lapsed.epoch && spent.expired == Some(lapsed.expires_at));
        // Or another heir has found it confirmed.
        let known = row.last(cell).is_some_and(|last| last.epoch == self.epoch);
        if confirmed || known || row.epoch == self.epoch {
            return NextStep::Continue(
                OwnValue { pending_expiry: None, expired_seq: lapsed.seq, ..*self }.with_row_expiry(row),
            );
        }
        if lapsed.epoch == row.epoch && row.expires_at == Some(lapsed.expires_at) {
            // This node's clock is ahead of the store's: wait.
            return NextStep::Keep;
        }
        // The expiry was taken back or put off before its time, or the epoch ended otherwise.
        let (epoch, value, total, let_go) = (lapsed.epoch, lapsed.value, self.total, self.expired_seq);
        let before = OwnValue { epoch, value, total, expired_seq: let_go, has_value: true, ..OwnValue::default() };
        NextStep::Continue(before.plus(self.value).with_row_expiry(row))
    }

    /// What is left of the cell, less what was kept of it, under an epoch.
    fn carry_into(&self, kept: i128, epoch: Epoch) -> OwnValue {
        let value = self.value.saturating_sub(kept);
        OwnValue {
            epoch,
            value,
            total: self.total,
            expired_seq: self.expired_seq,
            has_value: value != 0,
            ..OwnValue::default()
        }
    }

    /// What a life that is over still owes: its last word.
    pub fn final_cell(&self, cell: CellId, seq: Seq) -> Option<FinalCell> {
        let put = self.put(cell, seq)?;
        Some(FinalCell { put, expires_at: self.expires_at, expired_seq: self.expired_seq })
    }

    /// With more of the same epoch.
    pub(super) fn plus(self, value: i128) -> OwnValue {
        let value = self.value.saturating_add(value);
        OwnValue { value, has_value: self.has_value || value != 0, ..self }
    }
}

#[cfg(test)]
mod tests;
