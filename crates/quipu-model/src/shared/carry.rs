//! Computes a writer's next cell after its epoch ended or its incarnation was retired.
//!
//! In: the writer's cell, and a verdict or row of the store. Out: the cell that the writer
//! continues with, which is its running value less the part that the store kept; or the end of its
//! incarnation.
//!
//! Invariants:
//! - a writer journals its new cell before it puts it; after a crash it continues from there;
//! - a verdict is acted on once: if it concerns an earlier epoch or incarnation of the cell, it is
//!   ignored;
//! - only the current incarnation of a node carries. An ended one settles its uncounted value by
//!   [`Change::Late`](crate::shared::Change::Late), which counts it once for any number of
//!   successors;
//! - a cell that expired by the node's own clock is not put until the row shows its epoch: the
//!   store may yet contradict that expiry.
//!
//! Not here: verdicts of a store (`put`), the journal (the engine).

use crate::shared::put::judge;
use crate::shared::{CellId, FinalCell, Put, Seq, Snapshot, Verdict};
use crate::{Epoch, Millis};

/// A writer's own value of one of its cells, as journaled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OwnValue {
    /// Epoch that it adds under.
    pub epoch: Epoch,
    /// Running value under that epoch.
    pub value: i128,
    /// Sum of all adds, over all epochs.
    pub total: i128,
    /// Seq at which the writer last let a value expire; 0 if never. The value excludes the counts
    /// of a successor from before that seq.
    pub expired_seq: Seq,
    /// True if there is a value to put. A new cell with 0 and without an add does not create a
    /// counter.
    pub has_value: bool,
    /// Expiry of the counter, as known to this node.
    pub expires_at: Option<Millis>,
    /// The previous epoch, if it ended by this node's clock and the store has not confirmed that.
    pub pending_expiry: Option<PendingExpiry>,
}

/// A cell of an epoch that expired by the node's clock, not yet confirmed by the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PendingExpiry {
    /// Its epoch.
    pub epoch: Epoch,
    /// Its running value.
    pub value: i128,
    /// The expiry that this node knew of.
    pub expires_at: Millis,
    /// Seq of the expiry.
    pub seq: Seq,
}

/// Next step of the writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextStep {
    /// Nothing.
    Keep,
    /// Journal this value and continue with it, under the same incarnation.
    ///
    /// If the cell had a pending expiry, the value resolves it, for every incarnation alike; ask
    /// again. Otherwise it is the value that the current incarnation carries. An ended incarnation
    /// instead swaps [`Change::Late`](crate::shared::Change::Late) of the unchanged cell, and drops
    /// it once that is in.
    Continue(OwnValue),
    /// The writer was retired: this incarnation has ended. The node begins another, and settles
    /// this cell late.
    Retired,
    /// The store has a newer state of this cell than its writer: the writer went back to an older
    /// state, or a duplicate instance runs. An ended incarnation drops the cell. The current one
    /// must not continue.
    Superseded,
    /// The row has to move before the store can decide: by
    /// [`Change::Lapse`](crate::shared::Change::Lapse) if it is due, else by
    /// [`Change::CatchUp`](crate::shared::Change::CatchUp) to the cell's epoch.
    Move,
}

impl OwnValue {
    /// Returns the cell after an add, or `None` if its running value would overflow.
    #[must_use]
    pub fn added(self, delta: i64) -> Option<OwnValue> {
        let delta = i128::from(delta);
        let (value, total) = (self.value.checked_add(delta)?, self.total.saturating_add(delta));
        Some(OwnValue { value, total, has_value: true, ..self })
    }

    /// Returns the put of this cell, under the next number of the writer's sequence, if any is due.
    pub fn put(&self, cell: CellId, seq: Seq) -> Option<Put> {
        let ready = self.has_value && self.pending_expiry.is_none();
        ready.then_some(Put { cell, epoch: self.epoch, seq, value: self.value, total: self.total })
    }

    /// Expires the cell by the node's clock, once its known expiry has come. Earlier adds expire;
    /// later ones count in the next epoch. Called before each add and each read. `seq` is the next
    /// number of the writer's sequence, which the expiry takes.
    #[must_use]
    pub fn lapse(self, now: Millis, seq: Seq) -> OwnValue {
        match self.expires_at {
            // While one expiry waits for confirmation there is no row that could show a second one.
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

    /// Returns the cell with the row's expiry.
    #[must_use]
    pub fn with_row_expiry(self, row: &Snapshot) -> OwnValue {
        if self.epoch == row.epoch && self.pending_expiry.is_none() {
            OwnValue { expires_at: row.expires_at, ..self }
        } else {
            self
        }
    }

    /// Returns the next step after a verdict on a put of this cell; `seq` is the newest that the
    /// writer gave to the cell.
    ///
    /// Never `Superseded`: an overtaken put does not prove a newer state. The caller knows the
    /// newest seq and treats [`Verdict::Older`] on that one as superseded.
    pub fn on_verdict(&self, put: &Put, verdict: &Verdict, seq: Seq) -> NextStep {
        if put.epoch != self.epoch || self.pending_expiry.is_some() {
            return NextStep::Keep;
        }
        match *verdict {
            Verdict::Newest | Verdict::Older => NextStep::Keep,
            Verdict::Behind { .. } => NextStep::Move,
            Verdict::Closed { .. } => NextStep::Retired,
            Verdict::Stale { epoch, kept, expired } => {
                // A writer that knew the expiry made its adds for the ended epoch. One that did not
                // meant them to count.
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

    /// Returns the next step after reading a row: as [`OwnValue::on_verdict`], and also for a
    /// pending expiry or a newer state in the store. `seq` is the newest that its writer gave to
    /// the cell, under any epoch; 0 if none.
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

    /// Resolves a pending expiry once the row can decide it: the new epoch alone, or both parts
    /// under the epoch that went on.
    fn resolve_expiry(&self, lapsed: &PendingExpiry, cell: CellId, row: &Snapshot, at: Millis) -> NextStep {
        if row.is_due(at) || row.epoch < lapsed.epoch {
            return NextStep::Move;
        }
        let confirmed = row
            .spent
            .get(&cell)
            .is_some_and(|spent| spent.epoch == lapsed.epoch && spent.expired == Some(lapsed.expires_at));
        // Another successor may have found it confirmed.
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
        // The expiry was removed or postponed in time, or the epoch ended otherwise.
        let (epoch, value, total, let_go) = (lapsed.epoch, lapsed.value, self.total, self.expired_seq);
        let before = OwnValue { epoch, value, total, expired_seq: let_go, has_value: true, ..OwnValue::default() };
        NextStep::Continue(before.plus(self.value).with_row_expiry(row))
    }

    /// Returns the rest of the cell, less the kept part, under an epoch.
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

    /// Returns the final cell of an ended incarnation, if it has an uncounted value.
    pub fn final_cell(&self, cell: CellId, seq: Seq) -> Option<FinalCell> {
        let put = self.put(cell, seq)?;
        Some(FinalCell { put, expires_at: self.expires_at, expired_seq: self.expired_seq })
    }

    /// Returns the cell with more of the same epoch.
    pub(super) fn plus(self, value: i128) -> OwnValue {
        let value = self.value.saturating_add(value);
        OwnValue { value, has_value: self.has_value || value != 0, ..self }
    }
}

#[cfg(test)]
mod tests;
