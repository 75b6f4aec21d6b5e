//! A reading: a counter's value, and how far to trust it.
//!
//! In: a name. Out: what is known of it, with what is not known said beside it.

use quipu_model::{Freshness, Kind, Name, Reading, Refusal, Sampled, Seen};
use quipu_sketch::sample::{bounds, deviation};

use super::Turn;
use crate::load::Load;
use crate::sketches::{self, Told};

impl Turn<'_> {
    /// Reads a counter and says how good that is; one that does not exist reads as 0. `Err`: it is at rest, or not known well enough, and can be read
    /// once that is loaded.
    pub fn reading(&mut self, name: Name<'_>, freshness: Freshness) -> Result<Result<Reading, Refusal>, Load> {
        let (cell, floor) = match self.read(name, freshness)? {
            Ok(found) => found,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let shard = self.engine.table.shard_of(self.engine.table.hash(name.bytes()));
        let held = self.held.as_mut().expect("reading has opened the run");
        let body = cell.and_then(|_| held.shard(shard).body(name.bytes()));
        let told = match body {
            Some(body) => sketches::told(body, self.now),
            None => {
                let value = cell.map_or(0, |cell| cell.value);
                Told { kind: Kind::Count, value, bound: (value, value), error: None }
            }
        };
        let epoch = cell.map_or(floor, |cell| cell.epoch);
        let thinned = self.policies.policy(name).thinning.and_then(|thinning| thinning.thinned);
        // Of one that does not exist a client may have sampled events that nobody here has heard of.
        let thinned = thinned.filter(|thinned| match cell {
            Some(_) => thinned.covers(epoch),
            None => thinned.until.is_none(),
        });
        let p = thinned.filter(|_| told.kind == Kind::Count).map_or(1, |thinned| thinned.p_at(told.value));
        let (bound, sampled) = match u64::try_from(told.value) {
            Ok(value) if p > 1 => {
                let (low, high) = bounds(value, p);
                let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
                ((number(low), number(high)), Some(Sampled { rate: p, deviation: deviation(value, p) }))
            }
            _ => (told.bound, None),
        };
        let mut reading = Reading {
            kind: told.kind,
            value: told.value,
            exists: cell.is_some(),
            exact: told.kind == Kind::Count && sampled.is_none(),
            bound: Some(bound),
            error: told.error,
            sampled,
            window: body.and_then(|body| body.covered(self.now)),
            as_of: self.now,
            lag: Some(std::time::Duration::ZERO),
            shards: Seen::ONE,
            writers: Seen::ONE,
            epoch,
            expires_at: cell.and_then(|cell| cell.expires_at),
        };
        if let Some(shared) = &self.engine.shared {
            let hash = self.engine.table.hash(name.bytes());
            let shard = self.engine.table.shard_of(hash);
            let own = self.held.as_mut().expect("reading has opened the run").shard(shard).own(hash, name.bytes());
            let fetched_at = own.and_then(|own| own.fetched_at);
            // A row is all cells of all writers at one moment; without one there is only what this node says itself.
            let of = |total: u64| Seen { seen: if fetched_at.is_some() { total } else { 1 }, total };
            // What other nodes have added since their rows were fetched is not in it.
            reading.exact = false;
            reading.bound = None;
            reading.lag = fetched_at.map(|at| self.elapsed.saturating_sub(at));
            reading.shards = of(u64::from(self.policies.policy(name).share.shards.max(1)));
            reading.writers = of(shared.writers_known());
        }
        Ok(Ok(reading))
    }
}
