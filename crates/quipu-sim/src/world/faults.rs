//! Faults come, as planned.

use std::time::Duration;

use quipu_model::{Clock, Millis};

use super::{World, YEAR_MILLIS};
use crate::judge::End;
use crate::node::Saved;
use crate::plan::{Fault, Planned};

/// Machines there may be: each clone is one more.
const NODES_MAX: usize = 6;

impl World {
    pub(super) fn strike_if_due(&mut self) -> Result<(), String> {
        // A quiet period is for what happens in it.
        let due = self.now >= self.quiet_until && self.plan.faults.last().is_some_and(|next| next.at <= self.asked);
        if !due {
            return Ok(());
        }
        let Some(planned) = self.plan.faults.pop() else { return Ok(()) };
        self.log.note(|| format!("--- {planned:?}"));
        if planned.prepares {
            self.prepare(planned);
            return Ok(());
        }
        self.tally.faults[planned.fault as usize] += 1;
        self.clear_since = self.now + Duration::from_nanos(1);
        self.fair_since = self.fair_since.max(self.clear_since);
        self.strike(planned)
    }

    fn prepare(&mut self, Planned { fault, node, .. }: Planned) {
        match fault {
            Fault::StoreLosesCommits => self.lagging = Some(self.store.copy()),
            Fault::StoreRestored => self.backup = Some(self.store.copy()),
            _ => self.save(node),
        }
    }

    fn save(&mut self, node: usize) {
        let (image, at) = (self.nodes[node].image(), self.store_clock.wall());
        self.nodes[node].saved = Some(Saved { image, at, stamp: self.log.stamp() });
    }

    fn strike(&mut self, Planned { fault, node, .. }: Planned) -> Result<(), String> {
        match fault {
            Fault::Kill => self.crash(node, false),
            Fault::PowerLoss => self.crash(node, true),
            Fault::Restart => {
                self.close(node)?;
                self.stay_away(node, 2_000);
            }
            Fault::Pause => {
                let most = self.plan.sharing.grace.as_millis().min(60_000) as usize / 4;
                self.stay_away(node, most);
            }
            Fault::Absence => self.be_absent(node),
            Fault::ClockJump => {
                let wall = self.nodes[node].clock.wall().0;
                let by = *self.dice.pick(&[YEAR_MILLIS, 3_600_000, 5_000]);
                let wall = wall.saturating_add_signed(self.dice.between(-by..=by));
                self.nodes[node].clock.set_wall(Millis(wall));
            }
            Fault::DirectoryLost => {
                self.crash(node, false);
                let copy = self.new_disk();
                self.nodes[node].replace_disk(None, copy);
                self.nodes[node].saved = None;
                self.judge.ended(node, End::DirectoryLost);
            }
            Fault::DirectoryCloned => {
                let (image, copy) = (self.nodes[node].image(), self.new_disk());
                self.clone_node(node, image.into_disk_of(copy), copy);
            }
            Fault::MachineCloned => {
                // A machine is copied when it is down; both are then started, and neither knows of the other.
                self.close(node)?;
                let (image, copy) = (self.nodes[node].image(), self.nodes[node].copy());
                self.clone_node(node, image.into_disk_of(copy), copy);
            }
            Fault::DirectoryRestored => {
                self.restore(node);
            }
            Fault::StoreDown => self.store.go_down(self.some_time(20_000)),
            Fault::StoreSlow => self.store.go_slow(self.some_time(20_000)),
            Fault::StoreLosesCommits | Fault::StoreRestored => {
                let copied = match fault {
                    Fault::StoreRestored if self.dice.chance(30) => Some(&self.empty),
                    Fault::StoreRestored => self.backup.as_ref(),
                    _ => self.lagging.as_ref(),
                };
                if let Some(copied) = copied {
                    // A failover or a restore gives servers another identity; a `FLUSHALL` or an undone deletion does not.
                    let tells = self.dice.chance(70);
                    self.store.go_back(copied, tells);
                    self.judge.store_lost();
                }
            }
            Fault::StoreClock => {
                let most = (self.plan.sharing.grace.as_millis().min(40_000) / 8) as i64;
                let wall = self.store_clock.wall().0.saturating_add_signed(self.dice.between(-2_000..=most));
                self.store_clock.set_wall(Millis(wall));
                self.store.age();
            }
        }
        Ok(())
    }

    fn crash(&mut self, node: usize, power: bool) {
        if self.nodes[node].up.is_some() {
            let end = self.nodes[node].crash(power);
            self.log.note(|| format!("node {node} ends: {end:?}"));
            self.judge.ended(node, end);
            self.tally.crashes += 1;
        }
        let most = *self.dice.pick(&[1, 500, 5_000]);
        self.stay_away(node, most);
    }

    pub(super) fn close(&mut self, node: usize) -> Result<(), String> {
        let (store, clock) = (&self.store, &self.store_clock);
        if self.nodes[node].up.is_some() {
            let end = self.nodes[node].close(|| {
                if !store.step() {
                    clock.advance(Duration::from_millis(1));
                }
            })?;
            self.log.note(|| format!("node {node} is closed"));
            self.judge.ended(node, end);
        }
        Ok(())
    }

    fn restore(&mut self, node: usize) {
        // What a row has kept of a cell it forgets after `grace`: an older copy than that is not gone back to.
        let oldest = self.store_clock.wall().0.saturating_sub(self.plan.sharing.grace.as_millis() as u64 / 4);
        if self.nodes[node].saved.as_ref().is_none_or(|saved| saved.at.0 < oldest) {
            self.save(node);
        }
        self.crash(node, false);
        let Some(Saved { image, stamp, .. }) = self.nodes[node].saved.take() else { return };
        // From an archive, or with the whole machine: then it cannot be told from what it was.
        let copy = if self.dice.chance(50) { self.new_disk() } else { self.nodes[node].copy() };
        self.nodes[node].replace_disk(Some(image), copy);
        self.judge.ended(node, End::Restored(stamp));
    }

    fn clone_node(&mut self, original: usize, disk: quipu_testkit::CrashDisk, copy: u64) {
        if self.nodes.len() < NODES_MAX {
            let index = self.add_node(disk, Some(copy));
            // What its original has not settled, because it was away for so long, it has not either.
            self.reach[index] = self.reach[original];
            self.stay_away(index, 1_000);
        }
    }

    /// Away for so long that its lease is gone for `retire_after`, while the others go on and nobody asks much; sometimes for so long that it is
    /// folded.
    fn be_absent(&mut self, node: usize) {
        let sharing = &self.plan.sharing;
        let short = sharing.grace < Duration::from_secs(600);
        let least = if short { sharing.lease + sharing.retire_after } else { Duration::from_secs(40) };
        let more = if short && self.dice.chance(30) { 2 * sharing.grace } else { Duration::from_secs(10) };
        let by = least + Duration::from_millis(self.dice.below(more.as_millis() as usize) as u64);
        self.away_until[node] = self.now + by;
        self.quiet_until = self.now + by;
        self.judge.retired(node);
    }

    fn stay_away(&mut self, node: usize, millis_max: usize) {
        self.away_until[node] = self.now + Duration::from_millis(self.dice.below(millis_max) as u64);
    }

    fn some_time(&self, millis_max: usize) -> Duration {
        Duration::from_millis(200 + self.dice.below(millis_max) as u64)
    }
}
