//! Reads a counter's value together with its accuracy.
//!
//! In: a name. Out: the value, its bounds, its age and its coverage.

use quipu_model::{Coverage, Freshness, Kind, Name, Reading, SamplingInfo};
use quipu_sketch::sample::{bounds, deviation};

use crate::apply::bodies::{self, SketchReading};
use crate::execute::turn::{NotRun, Turn, expect_run};

impl Turn<'_> {
    /// Reads a counter with its accuracy; an absent counter reads as 0. A load is needed if it is
    /// not resident, or its row is too old.
    pub fn reading(&mut self, name: Name<'_>, freshness: Freshness) -> Result<Reading, NotRun> {
        let (cell, floor) = self.read(name, freshness)?;
        let shard = self.engine.table.shard_of(self.engine.table.hash(name.bytes()));
        let held = expect_run(&mut self.open_run).locks.shard(shard);
        let body = cell.and_then(|_| held.body(name.bytes()));
        let estimate = match body {
            Some(body) => bodies::read_sketch(body, self.now),
            None => {
                let value = cell.map_or(0, |cell| cell.value);
                SketchReading { kind: Kind::Count, value, bound: (value, value), error: None }
            }
        };
        let epoch = cell.map_or(floor, |cell| cell.epoch);
        let record = self.policies.policy(name).sampling.and_then(|sampling| sampling.record);
        // An absent counter may have events that a client sampled and this node never received.
        let record = record.filter(|record| match cell {
            Some(_) => record.covers(epoch),
            None => record.until.is_none(),
        });
        let p = record.filter(|_| estimate.kind == Kind::Count).map_or(1, |record| record.p_at(estimate.value));
        let (bound, sampled) = match u64::try_from(estimate.value) {
            Ok(value) if p > 1 => {
                let (low, high) = bounds(value, p);
                let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
                ((number(low), number(high)), Some(SamplingInfo { rate: p, deviation: deviation(value, p) }))
            }
            _ => (estimate.bound, None),
        };
        let mut reading = Reading {
            kind: estimate.kind,
            value: estimate.value,
            exists: cell.is_some(),
            exact: estimate.kind == Kind::Count && sampled.is_none(),
            bound: Some(bound),
            error: estimate.error,
            sampled,
            window: body.and_then(|body| body.covered(self.now)),
            as_of: self.now,
            lag: Some(std::time::Duration::ZERO),
            shards: Coverage::ONE,
            writers: Coverage::ONE,
            epoch,
            expires_at: cell.and_then(|cell| cell.expires_at),
        };
        if let Some(shared) = &self.engine.shared {
            let hash = self.engine.table.hash(name.bytes());
            let shard = self.engine.table.shard_of(hash);
            let own = expect_run(&mut self.open_run).locks.shard(shard).own_cells(hash, name.bytes());
            let fetched_at = own.and_then(|own| own.requested_at);
            // A row is a snapshot of all writers' cells; without one the value is this node's own
            // cells.
            let coverage = |total: u64| Coverage { seen: if fetched_at.is_some() { total } else { 1 }, total };
            // Adds of other nodes after the fetch of their rows are missing.
            reading.exact = false;
            reading.bound = None;
            reading.lag = fetched_at.map(|at| self.elapsed.saturating_sub(at));
            reading.shards = coverage(u64::from(self.policies.policy(name).share.shards.max(1)));
            reading.writers = coverage(shared.known_writer_count());
        }
        Ok(reading)
    }
}
