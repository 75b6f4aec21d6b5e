//! Counts many single items in one sketch of uniques, as one change.
//!
//! Not here: locks, journal room and admission (`execute::turn::observe`).

use quipu_model::{Cell, Dialect, Kind, Name};
use quipu_sketch::Sketch;

use crate::apply::Run;
use crate::apply::bodies::apply::{Wanted, known};
use crate::apply::bodies::change::PooledEdits;
use crate::apply::bodies::room::UNIQUE_BYTES_MAX;
use crate::table::Residency;

impl Run<'_, '_> {
    /// Counts items in a unique sketch, and reports for each whether it changed the sketch. `None`:
    /// none was counted.
    pub(crate) fn observe_each(
        &mut self,
        name: Name<'_>,
        items: &[&[u8]],
        (dialect, journaled): (Dialect, bool),
        mut report: impl FnMut(bool),
    ) -> Option<()> {
        let (key, now, hash) = (self.key, self.now, self.table.hash(name.bytes()));
        let shard = self.locks.shard(self.table.shard_of(hash));
        let Residency::Present(cell) = shard.find(hash, name.bytes()) else { return None };
        let Cell { expires_at, .. } = cell;
        if expires_at.is_some_and(|at| at <= now) {
            return None;
        }
        // A count has no body, and a sketch has no lanes.
        let body = shard.body(name.bytes())?;
        let length = body.bytes().len();
        let (sketch, wanted) = (body.sketch(), Wanted { kind: Kind::Unique, dialect });
        if !wanted.takes(known(sketch)) || journaled && !body.journaled || length > UNIQUE_BYTES_MAX {
            return None;
        }
        let grows = match sketch {
            Sketch::Hll(hll) if hll.is_dense() => 0,
            Sketch::Unique(unique) if unique.is_dense() => 0,
            // A sparse sketch may become dense at any item.
            Sketch::Hll(_) | Sketch::Unique(_) => UNIQUE_BYTES_MAX - length,
            // A sketch over time has a pane per period.
            _ => return None,
        };
        self.check_growth(grows as u64).ok()?;
        let body = self.locks.shard(self.table.shard_of(hash)).body_mut(name.bytes())?;
        let mut edits = PooledEdits::take();
        match body.sketch_mut() {
            Sketch::Hll(hll) => items.iter().for_each(|item| report(hll.add(item, &mut edits.0))),
            Sketch::Unique(unique) => items.iter().for_each(|item| report(unique.add(key, item, &mut edits.0))),
            _ => return None,
        }
        if !edits.0.is_empty() {
            body.record_edits(length, &edits.0);
            self.write_changed(name, cell, None, &edits.0);
        }
        Some(())
    }
}
