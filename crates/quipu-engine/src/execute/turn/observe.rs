//! Counts single items of many commands in one sketch: the fast path of sketches.
//!
//! In: commands of one item each, on the same name, in the order of arrival. Out: their replies in
//! that order. Or `None` or false: then [`Turn::run`] must run the first command.
//!
//! The fast path looks up the sketch once, and writes all changes as one version in one record. For
//! frequencies and top-K there is a command that counts many items and replies for each item; for
//! uniques there is none.
//!
//! Invariants:
//! - replies and registers equal those of the same commands run one by one;
//! - a command that is not reported as run has no effect.

use quipu_model::{Command, Dialect, Durability, Kind, Name, Reply, SketchCommand};
use quipu_sketch::Sketch;

use crate::apply::bodies::observe_bytes_max;
use crate::apply::targets::counter_record_bytes_max;
use crate::execute::turn::{OpenRun, Turn, expect_run};
use crate::table::locks::ShardLocks;

/// Most commands of one call. Their edits take no more room than a body written as a whole.
pub const OBSERVES_MAX: usize = 64;

impl Turn<'_> {
    /// Runs one command with up to [`OBSERVES_MAX`] items, in place of that many commands with one
    /// item each. Returns the replies in order. `None`: [`Turn::run`] must run the first command.
    pub fn run_counts(&mut self, command: SketchCommand<'_>) -> Option<Reply> {
        self.end_run();
        let name = command.facts().targets.first()?;
        let policy = self.policies.policy(name);
        // A reply over a window covers all panes, after all items of a command.
        if !self.takes_simple() || policy.window.is_some() || policy.decay.is_some() || self.is_over_time(name) {
            return None;
        }
        match self.run(&Command::Sketch(command)) {
            Ok(Reply::Refused(_)) | Err(_) => None,
            Ok(reply) => Some(reply),
        }
    }

    /// Returns true if the counter is a sketch over time, perhaps from an earlier setting of its
    /// namespace.
    fn is_over_time(&self, name: Name<'_>) -> bool {
        let table = &self.engine.table;
        let mut locks = ShardLocks::lock_one(table, table.shard_of(table.hash(name.bytes())));
        locks.nth(0).body(name.bytes()).is_some_and(|body| matches!(body.sketch(), Sketch::Ring(_)))
    }

    /// Counts up to [`OBSERVES_MAX`] items and reports for each whether it changed the sketch.
    /// False: no item was counted, and [`Turn::run`] must run the first command.
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
        let bytes = counter_record_bytes_max(name, 0) + observe_bytes_max(name);
        if journaled && !self.try_reserve_room(bytes) {
            return false;
        }
        let locks =
            ShardLocks::lock_one(&self.engine.table, self.engine.table.shard_of(self.engine.table.hash(name.bytes())));
        if !self.policies_unchanged() {
            return false;
        }
        self.open_run = Some(OpenRun::new(locks, Durability::Memory));
        // Under the lock: a write admitted before the close must not follow its mark.
        let ran = !self.engine.is_closed()
            && self
                .with_run(None, journaled, |run| run.observe_each(name, items, (dialect, journaled), report))
                .is_some();
        if ran {
            expect_run(&mut self.open_run).raise_durability(durability);
        }
        self.end_run();
        ran
    }
}
