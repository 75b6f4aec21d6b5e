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

use quipu_model::shared::{Own, Shard};
use quipu_model::{Incarnation, KeptName, LedgerError, Refusal};

use super::Sharing;
use super::settle::named;
use crate::sync::{Ordering, lock};
use crate::turn::Turn;

/// What becomes of the adds that the store is not known to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Adopt {
    /// They count, from now on.
    Count,
    /// They do not.
    Drop,
}

/// What an adoption found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Adopted {
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
    pub fn adopt(self, incarnation: Incarnation, how: Adopt) -> Result<Adopted, AdoptError> {
        if incarnation == self.shared.present() {
            return Err(AdoptError::Present);
        }
        if !lock(&self.inner.joined).contains_key(&incarnation) {
            return Err(AdoptError::NeverRegistered);
        }
        let mut adopted = Adopted::default();
        for shard in 0..self.inner.table.shard_count() {
            for name in self.said_names(shard)? {
                self.inner.loads.bring_back(self.inner, &name)?;
                let (had, sum, sketch) = self.adopt_one(&name, incarnation, how)?;
                adopted.counters += u64::from(had);
                adopted.sketches += u64::from(sketch);
                adopted.unconfirmed += u64::from(sum != 0);
                adopted.sum = adopted.sum.saturating_add(sum);
            }
        }
        // Nothing of it is left to be settled, so nobody has to know that it was registered.
        lock(&self.inner.joined).remove(&incarnation);
        lock(&self.shared.lease).heirs.remove(&incarnation);
        Ok(adopted)
    }

    /// Whether the life had a cell of this counter, the sum of what the store is not known to have, and whether there is such a thing of a sketch.
    fn adopt_one(
        &self,
        name: &KeptName,
        incarnation: Incarnation,
        how: Adopt,
    ) -> Result<(bool, i128, bool), AdoptError> {
        let present = self.shared.present();
        let mut turn = Turn::new(self.inner);
        let now = turn.now();
        let done = turn.share(named(name), |share| {
            let (mut had, mut sum, mut body) = (false, 0i128, None);
            share.owned.cells.retain(|cell| {
                if cell.incarnation != incarnation {
                    return true;
                }
                had = true;
                if cell.is_body() {
                    body = Some((cell.number(), cell.own.said && !cell.settled));
                    return false;
                }
                sum = sum.saturating_add(if cell.settled { 0 } else { cell.unconfirmed(now) });
                false
            });
            share.changed |= had;
            if how == Adopt::Count && sum != 0 {
                let expires_at = share.shown.and_then(|cell| cell.expires_at);
                let cell = share.owned.open(present, Shard(0), expires_at);
                let (value, total) = (cell.own.value.saturating_add(sum), cell.own.total.saturating_add(sum));
                cell.say(Own { value, total, said: true, ..cell.own });
                self.shared.has_added.store(true, Ordering::Release);
            }
            let sketch = body.is_some_and(|(_, unsettled)| unsettled);
            if let Some((number, _)) = body {
                let count = how == Adopt::Count && sketch;
                share.give_up_body(number, count);
                self.shared.has_added.fetch_or(count, Ordering::AcqRel);
            }
            // What is shown may have had some of it.
            share.owned.outdate();
            (had, sum, sketch)
        });
        turn.finish();
        let done = done.map_err(|refusal| AdoptError::Refused { name: name.to_vec(), refusal })?;
        self.enqueue(name);
        Ok(done)
    }
}
