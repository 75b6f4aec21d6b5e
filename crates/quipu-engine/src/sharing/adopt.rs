//! A life that the store has forgotten, and an operator's word on what becomes of what it had not settled.
//!
//! In: one of this node's lives. Out: its cells are gone; what it is not known to have put is said by the present life, or by nobody.
//!
//! A life that was away until its cells were folded and forgotten cannot settle any more: the row would take all that it says for new. What this node knows is how much of it the store
//! has confirmed. The rest was added after that, or was in a put whose answer is not on this disk: the adds of one settle at the most, of which nobody can tell whether they count already.
//!
//! Of a sketch nobody can tell what of a body the store has: all of it is said by the present life, or nothing.
//!
//! Invariant: a cell goes in the same record in which its rest is said by the present life. So this may be ended at any point and done again, and counts once.

use quipu_model::shared::{OwnValue, Shard};
use quipu_model::{Incarnation, LedgerError, NameBuf, Refusal};

use super::Sharing;
use super::settle::as_name;
use crate::sync::{Ordering, lock};
use crate::turn::Turn;

/// What becomes of the adds that the store is not known to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnconfirmedAdds {
    /// They count, from now on.
    Count,
    /// They do not.
    Drop,
}

/// What an adoption found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AdoptionReport {
    /// Counters that the life had cells of.
    pub counters: u64,
    /// Those with adds that the store is not known to have.
    pub unconfirmed: u64,
    /// Their sum.
    pub sum: i128,
    /// Sketches of which the store is not known to have the newest: all that the life had observed in them counts, or nothing.
    pub sketches: u64,
}

/// Why a life could not be adopted, or not in full: what was done so far stays, and the rest may be tried again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdoptError {
    /// It is the one that counts now.
    #[error("it is the present life of this node")]
    Present,
    /// Nobody can have forgotten it.
    #[error("it was never registered with a store: the node settles what it has said when it starts")]
    NeverRegistered,
    /// Something at rest could not be read.
    #[error("read what rests: {0}")]
    Ledger(#[from] LedgerError),
    /// Something could not be written down.
    #[error("{}: {refusal}", .name.escape_ascii())]
    Refused {
        /// Of which counter.
        name: Vec<u8>,
        /// Why.
        refusal: Refusal,
    },
}

impl Sharing<'_> {
    /// Goes through all that a life of this node has said. Only for one that the store has forgotten: of any other, the node knows better what to do.
    pub fn adopt(self, incarnation: Incarnation, adds: UnconfirmedAdds) -> Result<AdoptionReport, AdoptError> {
        if incarnation == self.link.incarnation() {
            return Err(AdoptError::Present);
        }
        if !lock(&self.inner.joined).contains_key(&incarnation) {
            return Err(AdoptError::NeverRegistered);
        }
        let mut report = AdoptionReport::default();
        for shard in 0..self.inner.table.shard_count() {
            for name in self.list_own_names(shard)? {
                self.inner.loads.load_counter(self.inner, &name)?;
                let (had, sum, sketch) = self.adopt_one(&name, incarnation, adds)?;
                report.counters += u64::from(had);
                report.sketches += u64::from(sketch);
                report.unconfirmed += u64::from(sum != 0);
                report.sum = report.sum.saturating_add(sum);
            }
        }
        // Nothing of it is left to be settled, so nobody has to know that it was registered.
        lock(&self.inner.joined).remove(&incarnation);
        lock(&self.link.lease).successions.remove(&incarnation);
        Ok(report)
    }

    /// Whether the life had a cell of this counter, the sum of what the store is not known to have, and whether there is such a thing of a sketch.
    fn adopt_one(
        &self,
        name: &NameBuf,
        incarnation: Incarnation,
        adds: UnconfirmedAdds,
    ) -> Result<(bool, i128, bool), AdoptError> {
        let present = self.link.incarnation();
        let mut turn = Turn::new(self.inner);
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
            // What is shown may have had some of it.
            counter.own_cells.invalidate_row();
            (had, sum, sketch)
        });
        turn.finish();
        let done = done.map_err(|refusal| AdoptError::Refused { name: name.to_vec(), refusal })?;
        self.enqueue(name);
        Ok(done)
    }
}
