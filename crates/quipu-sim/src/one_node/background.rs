//! Steps of the background: backups, commits, seals, sweeps, evictions, jumps of the clock.

use std::path::PathBuf;
use std::time::Duration;

use quipu_engine::{BackupStep, Seal, SealStep};
use quipu_model::Millis;

use super::incarnation::IncarnationRun;
use super::trace::BackupTrace;
use crate::machine::step_commit;

impl IncarnationRun<'_, '_> {
    /// Begins a backup or continues the one under way.
    pub(super) fn back_up(&mut self) {
        let steps = self.engine.steps();
        let operations = self.machine.disk.operations();
        let Some(backup) = &mut self.backup else {
            let dir = PathBuf::from(format!("/backup-{}", self.trace.backups.len()));
            self.backup = Some(steps.begin_backup(&dir).expect("the disk is good"));
            self.trace.backups.push(BackupTrace { dir, begun: operations, least: steps.reserved(), done: None });
            return;
        };
        match backup.step().expect("the disk is good") {
            BackupStep::More => {}
            BackupStep::WaitFor(_) => step_commit(self.engine, self.rng),
            BackupStep::Done(done) => {
                let backup_trace = self.trace.backups.last_mut().expect("it was noted when it began");
                backup_trace.done = Some((self.machine.disk.operations(), done.position));
                self.backup = None;
            }
        }
    }

    /// Runs one step of the background.
    pub(super) fn run_background_step(&mut self, seal: &mut Option<Seal>) {
        let steps = self.engine.steps();
        let clock = &self.machine.clock;
        match self.rng.below(15) {
            14 => {
                self.flush_all_but_one();
                steps.join_lanes();
                self.merge_all_lanes();
            }
            0..2 => steps.write_filled(),
            2..4 => steps.sync(),
            4 => steps.prepare_segments().expect("the disk is good"),
            5 => steps.record_synced().expect("the disk is good"),
            6 => {
                let shard = self.rng.below(steps.shard_count());
                self.trace.tally.swept += usize::from(steps.sweep(shard).expect("the disk is good"));
                steps.expire(shard);
            }
            7 => {
                let shard = self.rng.below(steps.shard_count());
                // The first pass keeps recently used counters.
                for _ in 0..2 {
                    self.trace.tally.evicted += steps.evict(shard);
                }
            }
            8 => clock.advance(Duration::from_millis(self.rng.below(400) as u64)),
            9 if self.rng.chance(10) => {
                // Half an hour passes, or the wall clock jumps by as much, forwards or back.
                if self.rng.chance(50) {
                    clock.advance(Duration::from_millis(self.rng.below(1_800_000) as u64));
                } else {
                    let wall = self.engine.now().0 + self.rng.below(3_600_000) as u64;
                    clock.set_wall(Millis(wall - 1_800_000));
                }
            }
            _ => (0..2).for_each(|_| match seal.take() {
                None if steps.needs_seal() || self.rng.chance(40) => {
                    self.flush_all_but_one();
                    *seal = Some(steps.begin_seal());
                    self.merge_all_lanes();
                }
                None => {}
                Some(mut sealing) => match steps.step_seal(&mut sealing) {
                    Ok(SealStep::More) => *seal = Some(sealing),
                    Ok(SealStep::WaitFor(_)) => {
                        step_commit(self.engine, self.rng);
                        *seal = Some(sealing);
                    }
                    Ok(SealStep::Done) => {
                        self.trace.tally.seals += 1;
                        steps.finish_seal(sealing).expect("the disk is good");
                    }
                    Err(_) => {}
                },
            }),
        }
        self.record_boundary();
    }
}
