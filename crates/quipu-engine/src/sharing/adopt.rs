//! Adopts an incarnation that the store has forgotten: an operator decides about its unconfirmed
//! adds.
//!
//! In: one of this node's incarnations. Out: its cells are gone; its unconfirmed adds count in the
//! present incarnation, or not at all.
//!
//! A node may be away until the store has folded and forgotten one of its incarnations. That
//! incarnation cannot settle any more: the row would take its whole value as new. The node knows
//! how much of the value the store has confirmed. The rest was added later, or its put has no
//! recorded reply on this disk. Such a put holds the adds of one settle at most, and these may
//! count already.
//!
//! For a sketch, the part of a body that the store has is unknown. The present incarnation takes
//! over the whole body, or nothing.
//!
//! Invariant: one record removes a cell and adds its rest to the present incarnation. So an
//! adoption may stop at any point and run again, and counts once.

use quipu_model::shared::{OwnValue, Shard};
use quipu_model::{Incarnation, LedgerError, NameBuf, Refusal};

use super::Sharing;
use super::settle::as_name;
use crate::base::sync::{Ordering, lock};
use crate::execute::turn::Turn;

/// Treatment of adds that the store is not known to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnconfirmedAdds {
    /// They count, from now on.
    Count,
    /// They do not count.
    Drop,
}

/// Result of an adoption.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AdoptionReport {
    /// Number of counters with cells of the incarnation.
    pub counters: u64,
    /// Number of counters with unconfirmed adds.
    pub unconfirmed: u64,
    /// Sum of the unconfirmed adds.
    pub sum: i128,
    /// Number of sketches with an unconfirmed newest state. All observations of the incarnation in
    /// them count, or none.
    pub sketches: u64,
}

/// Reason why an adoption failed or stopped. Finished counters stay adopted; the rest may be tried
/// again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdoptError {
    /// The incarnation is the present one.
    #[error("it is the present life of this node")]
    Present,
    /// The incarnation was never registered, so no store can have forgotten it.
    #[error("it was never registered with a store: the node settles what it has said when it starts")]
    NeverRegistered,
    /// Data at rest could not be read.
    #[error("read what rests: {0}")]
    Ledger(#[from] LedgerError),
    /// A change could not be journaled.
    #[error("{}: {refusal}", .name.escape_ascii())]
    Refused {
        /// Name of the counter.
        name: Vec<u8>,
        /// The journal's refusal.
        refusal: Refusal,
    },
}

impl Sharing<'_> {
    /// Adopts all cells of an incarnation of this node. Only for an incarnation that the store has
    /// forgotten: the node settles any other one correctly by itself.
    pub fn adopt(self, incarnation: Incarnation, adds: UnconfirmedAdds) -> Result<AdoptionReport, AdoptError> {
        if incarnation == self.link.incarnation() {
            return Err(AdoptError::Present);
        }
        if !lock(&self.core.joined).contains_key(&incarnation) {
            return Err(AdoptError::NeverRegistered);
        }
        let mut report = AdoptionReport::default();
        for shard in 0..self.core.table.shard_count() {
            for name in self.list_own_names(shard)? {
                self.core.load_counter(&name)?;
                let (had, sum, sketch) = self.adopt_one(&name, incarnation, adds)?;
                report.counters += u64::from(had);
                report.sketches += u64::from(sketch);
                report.unconfirmed += u64::from(sum != 0);
                report.sum = report.sum.saturating_add(sum);
            }
        }
        // Nothing of it is left to settle, so its registration need not be remembered.
        lock(&self.core.joined).remove(&incarnation);
        lock(&self.link.lease).successions.remove(&incarnation);
        Ok(report)
    }

    /// Adopts one counter. Returns whether it had a cell of the incarnation, the unconfirmed sum,
    /// and whether a sketch is unconfirmed.
    fn adopt_one(
        &self,
        name: &NameBuf,
        incarnation: Incarnation,
        adds: UnconfirmedAdds,
    ) -> Result<(bool, i128, bool), AdoptError> {
        let present = self.link.incarnation();
        let mut turn = Turn::new(self.core);
        let now = turn.now();
        let done = turn.with_shared_counter(as_name(name), |counter| {
            let (mut had, mut sum, mut body) = (false, 0i128, None);
            counter.own_cells.cells.retain(|cell| {
                if cell.incarnation != incarnation {
                    return true;
                }
                had = true;
                if cell.is_body() {
                    body = Some((cell.body_number(), cell.own.has_value && !cell.settled));
                    return false;
                }
                sum = sum.saturating_add(if cell.settled { 0 } else { cell.unconfirmed_sum(now) });
                false
            });
            counter.changed |= had;
            if adds == UnconfirmedAdds::Count && sum != 0 {
                let expires_at = counter.shown.and_then(|cell| cell.expires_at);
                let cell = counter.own_cells.open_cell(present, Shard(0), expires_at);
                let (value, total) = (cell.own.value.saturating_add(sum), cell.own.total.saturating_add(sum));
                cell.update(OwnValue { value, total, has_value: true, ..cell.own });
                self.link.has_added.store(true, Ordering::Release);
            }
            let sketch = body.is_some_and(|(_, unsettled)| unsettled);
            if let Some((number, _)) = body {
                let count = adds == UnconfirmedAdds::Count && sketch;
                counter.remove_body(number, count);
                self.link.has_added.fetch_or(count, Ordering::AcqRel);
            }
            // The shown value may include some of it.
            counter.own_cells.invalidate_row();
            (had, sum, sketch)
        });
        turn.finish();
        let done = done.map_err(|refusal| AdoptError::Refused { name: name.to_vec(), refusal })?;
        self.enqueue(name);
        Ok(done)
    }
}
