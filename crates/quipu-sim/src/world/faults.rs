//! Injects the planned faults.

use std::time::Duration;

use quipu_model::{Clock, Millis};

use super::{Simulation, YEAR_MILLIS};
use crate::judge::NodeEnd;
use crate::node::DirectoryCopy;
use crate::plan::{Fault, PlannedFault};

/// Most machines; each clone is one more.
const NODES_MAX: usize = 6;

impl Simulation {
    pub(super) fn inject_due_fault(&mut self) -> Result<(), String> {
        // No fault interrupts a quiet period.
        let due =
            self.now >= self.quiet_until && self.plan.faults.last().is_some_and(|next| next.at <= self.acts_asked);
        if !due {
            return Ok(());
        }
        let Some(planned) = self.plan.faults.pop() else { return Ok(()) };
        self.log.write_line(|| format!("--- {planned:?}"));
        if planned.prepares {
            self.prepare(planned);
            return Ok(());
        }
        self.tally.faults[planned.fault as usize] += 1;
        self.clear_since = self.now + Duration::from_nanos(1);
        self.fair_since = self.fair_since.max(self.clear_since);
        self.inject_fault(planned)
    }

    fn prepare(&mut self, PlannedFault { fault, node, .. }: PlannedFault) {
        match fault {
            Fault::StoreLosesCommits => self.recent_copy = Some(self.store.copy()),
            Fault::StoreRestored => self.backup = Some(self.store.copy()),
            _ => self.save(node),
        }
    }

    fn save(&mut self, node: usize) {
        let (image, at) = (self.nodes[node].image(), self.store_clock.wall());
        self.nodes[node].older_copy = Some(DirectoryCopy { image, at, stamp: self.log.stamp() });
    }

    fn inject_fault(&mut self, PlannedFault { fault, node, .. }: PlannedFault) -> Result<(), String> {
        match fault {
            Fault::Kill => self.crash_node(node, false),
            Fault::PowerLoss => self.crash_node(node, true),
            Fault::Restart => {
                self.close_node(node)?;
                self.suspend_node(node, 2_000);
            }
            Fault::Pause => {
                let most = self.plan.sharing.grace.as_millis().min(60_000) as usize / 4;
                self.suspend_node(node, most);
            }
            Fault::Absence => self.make_absent(node),
            Fault::ClockJump => {
                let wall = self.nodes[node].machine.clock.wall().0;
                let by = *self.rng.pick(&[YEAR_MILLIS, 3_600_000, 5_000]);
                let wall = wall.saturating_add_signed(self.rng.between(-by..=by));
                self.nodes[node].machine.clock.set_wall(Millis(wall));
            }
            Fault::DirectoryLost => {
                self.crash_node(node, false);
                let disk_number = self.next_disk_number();
                self.nodes[node].replace_disk(None, disk_number);
                self.nodes[node].older_copy = None;
                self.judge.end_node(node, NodeEnd::DirectoryLost);
            }
            Fault::DirectoryCloned => {
                let (image, disk_number) = (self.nodes[node].image(), self.next_disk_number());
                self.clone_node(node, image.into_disk_of(disk_number), disk_number);
            }
            Fault::MachineCloned => {
                // A stopped machine is copied; then both start, and neither knows of the other.
                self.close_node(node)?;
                let (image, disk_number) = (self.nodes[node].image(), self.nodes[node].disk_number());
                self.clone_node(node, image.into_disk_of(disk_number), disk_number);
            }
            Fault::DirectoryRestored => {
                self.restore(node);
            }
            Fault::StoreDown => self.store.go_down(self.draw_duration(20_000)),
            Fault::StoreSlow => self.store.go_slow(self.draw_duration(20_000)),
            Fault::StoreLosesCommits | Fault::StoreRestored => {
                let store_copy = match fault {
                    Fault::StoreRestored if self.rng.chance(30) => Some(&self.empty),
                    Fault::StoreRestored => self.backup.as_ref(),
                    _ => self.recent_copy.as_ref(),
                };
                if let Some(store_copy) = store_copy {
                    // A failover or a restore gives servers another identity; a `FLUSHALL` or an
                    // undone deletion does not.
                    let changes_identity = self.rng.chance(70);
                    self.store.restore_copy(store_copy, changes_identity);
                    self.judge.record_store_loss();
                }
            }
            Fault::StoreClock => {
                let most = (self.plan.sharing.grace.as_millis().min(40_000) / 8) as i64;
                let wall = self.store_clock.wall().0.saturating_add_signed(self.rng.between(-2_000..=most));
                self.store_clock.set_wall(Millis(wall));
                self.store.age();
            }
        }
        Ok(())
    }

    fn crash_node(&mut self, node: usize, power: bool) {
        if self.nodes[node].up.is_some() {
            let end = self.nodes[node].crash(power);
            self.log.write_line(|| format!("node {node} ends: {end:?}"));
            self.judge.end_node(node, end);
            self.tally.crashes += 1;
        }
        let most = *self.rng.pick(&[1, 500, 5_000]);
        self.suspend_node(node, most);
    }

    pub(super) fn close_node(&mut self, node: usize) -> Result<(), String> {
        let (store, clock) = (&self.store, &self.store_clock);
        if self.nodes[node].up.is_some() {
            let end = self.nodes[node].close(|| {
                if !store.step() {
                    clock.advance(Duration::from_millis(1));
                }
            })?;
            self.log.write_line(|| format!("node {node} is closed"));
            self.judge.end_node(node, end);
        }
        Ok(())
    }

    fn restore(&mut self, node: usize) {
        // A row forgets a spent cell after `grace`, so the node never restores an older copy than
        // that.
        let oldest = self.store_clock.wall().0.saturating_sub(self.plan.sharing.grace.as_millis() as u64 / 4);
        if self.nodes[node].older_copy.as_ref().is_none_or(|saved| saved.at.0 < oldest) {
            self.save(node);
        }
        self.crash_node(node, false);
        let Some(DirectoryCopy { image, stamp, .. }) = self.nodes[node].older_copy.take() else { return };
        // From an archive, or with the whole machine; then the copy is indistinguishable from the
        // original.
        let disk_number = if self.rng.chance(50) { self.next_disk_number() } else { self.nodes[node].disk_number() };
        self.nodes[node].replace_disk(Some(image), disk_number);
        self.judge.end_node(node, NodeEnd::Restored(stamp));
    }

    fn clone_node(&mut self, original: usize, disk: quipu_testkit::CrashDisk, disk_number: u64) {
        if self.nodes.len() < NODES_MAX {
            let index = self.add_node(disk, Some(disk_number));
            // A clone has not settled the same deltas as its long unreachable original.
            self.store_reach[index] = self.store_reach[original];
            self.suspend_node(index, 1_000);
        }
    }

    /// Keeps a node away until its lease has been over for `retire_after`, and sometimes until it
    /// is folded. Meanwhile the others continue and clients send little.
    fn make_absent(&mut self, node: usize) {
        let sharing = &self.plan.sharing;
        let short = sharing.grace < Duration::from_secs(600);
        let least = if short { sharing.lease + sharing.retire_after } else { Duration::from_secs(40) };
        let more = if short && self.rng.chance(30) { 2 * sharing.grace } else { Duration::from_secs(10) };
        let by = least + Duration::from_millis(self.rng.below(more.as_millis() as usize) as u64);
        self.away_until[node] = self.now + by;
        self.quiet_until = self.now + by;
        self.judge.replace_incarnation(node);
    }

    fn suspend_node(&mut self, node: usize, millis_max: usize) {
        self.away_until[node] = self.now + Duration::from_millis(self.rng.below(millis_max) as u64);
    }

    fn draw_duration(&self, millis_max: usize) -> Duration {
        Duration::from_millis(200 + self.rng.below(millis_max) as u64)
    }
}
