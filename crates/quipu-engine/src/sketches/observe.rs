//! Single items that are counted in one sketch, many at a time: the short way, as adds and reads of counts have one.
//!
//! In: commands of one item each, on the same name, in the order in which they came. Out: their replies, in that order; or nothing, and then the first of them is for [`Turn::run`], which says what it lacks.
//!
//! The sketch is looked up once, and what changed in it is one version of it, in one record. Of frequencies and tops the command is there that counts many items, and tells of each by itself; of uniques there is none.
//!
//! Invariants:
//! - replies and registers are those of the same commands run one by one;
//! - nothing is applied for a command that is not counted as run.

use quipu_model::{Cell, Command, Dialect, Durability, Kind, Name, Reply, SketchCommand};
use quipu_sketch::Sketch;

use super::apply::{Wanted, known};
use super::change::PooledEdits;
use super::room::{UNIQUE_BYTES_MAX, entry_bytes_max};
use crate::admission::CommandTargets;
use crate::apply::table::Residency;
use crate::apply::{Run, ShardLocks};
use crate::turn::Turn;

/// Most commands run at once. What their items change takes no more room than a body that is written as a whole.
pub const OBSERVES_MAX: usize = 64;

impl Turn<'_> {
    /// Runs a command that counts up to [`OBSERVES_MAX`] items, in place of as many that count one each; what it would tell of each, in order. `None`: the first one has to be [run](Turn::run) by itself.
    pub fn run_counts(&mut self, command: SketchCommand<'_>) -> Option<Reply> {
        self.end_run();
        let name = *command.names().first()?;
        let policy = self.policies.policy(name);
        // What is told of a window is told of all its panes, after all items of a command.
        if !self.takes_simple() || policy.window.is_some() || policy.decay.is_some() || self.is_over_time(name) {
            return None;
        }
        match self.run(&Command::Sketch(command)) {
            Ok(Reply::Refused(_)) | Err(_) => None,
            Ok(reply) => Some(reply),
        }
    }

    /// Whether a counter is a sketch over time, of a namespace that once had such.
    fn is_over_time(&self, name: Name<'_>) -> bool {
        let table = &self.engine.table;
        let mut locks = ShardLocks::lock_one(table, table.shard_of(table.hash(name.bytes())));
        locks.nth(0).body(name.bytes()).is_some_and(|body| matches!(body.sketch(), Sketch::Ring(_)))
    }

    /// Observes these items, up to [`OBSERVES_MAX`], and tells of each whether it changed anything; whether it did. If not, the first one has to be [run](Turn::run) by itself.
    pub fn run_observes(
        &mut self,
        name: Name<'_>,
        items: &[&[u8]],
        dialect: Dialect,
        report: impl FnMut(bool),
    ) -> bool {
        self.end_run();
        if items.len() > OBSERVES_MAX || self.engine.shared.is_some() || !self.takes_simple() {
            return false;
        }
        let policy = self.policies.policy(name);
        let durability = policy.durability;
        if policy.kind.is_some_and(|kind| kind != Kind::Unique) {
            return false;
        }
        let journaled = durability > Durability::Memory;
        let bytes = CommandTargets::One(name).record_bytes_max(0) + entry_bytes_max(name) + UNIQUE_BYTES_MAX;
        if journaled && !self.try_reserve_room(bytes) {
            return false;
        }
        let locks =
            ShardLocks::lock_one(&self.engine.table, self.engine.table.shard_of(self.engine.table.hash(name.bytes())));
        if !self.policies_unchanged() {
            return false;
        }
        self.locks = Some(locks);
        // Under the lock: what was admitted before the close must not come after its mark.
        let ran = !self.engine.is_closed()
            && self
                .with_run(None, journaled, |run| run.observe_each(name, items, (dialect, journaled), report))
                .is_some();
        if ran {
            self.run_durability = self.run_durability.max(durability);
        }
        self.end_run();
        ran
    }
}

impl Run<'_, '_> {
    fn observe_each(
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
        // Of a count there is none; nor does a sketch have lanes.
        let body = shard.body(name.bytes())?;
        let length = body.bytes().len();
        let (sketch, wanted) = (body.sketch(), Wanted { kind: Kind::Unique, dialect });
        if !wanted.takes(known(sketch)) || journaled && !body.journaled || length > UNIQUE_BYTES_MAX {
            return None;
        }
        let grows = match sketch {
            Sketch::Hll(hll) if hll.is_dense() => 0,
            Sketch::Unique(unique) if unique.is_dense() => 0,
            // A list may end with any item.
            Sketch::Hll(_) | Sketch::Unique(_) => UNIQUE_BYTES_MAX - length,
            // One over time has a pane for each of them.
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
