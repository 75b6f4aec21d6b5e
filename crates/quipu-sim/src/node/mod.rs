//! Simulates a machine: a disk, a clock, and the shipped engine with its clients and background
//! tasks, step by step.
//!
//! In: the scheduler's choice. Out: answers to clients; puts, reads and swaps at the store.
//!
//! An ended process drops its engine and all futures at any point; the disk keeps the state that a
//! kill or a power loss leaves.

mod background_task;

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use quipu_engine::{Engine, Membership, OpenError, Options, Seal, SealStep};
use quipu_model::{Clock, Millis};
use quipu_testkit::{CrashDisk, Image, SimMachine};

use self::background_task::{BackgroundTask, ClientNeeds};
use crate::act::{Act, Action};
use crate::client::serve;
use crate::judge::{ActOutcome, NodeEnd, PendingAct};
use crate::machine::{open_engine, small_options};
use crate::plan::Plan;
use crate::store::StorePort;
use crate::task::{Task, WakeSignal};

/// One machine.
pub struct Node {
    /// Its index.
    pub index: usize,
    /// Its disk, clock and random numbers.
    pub machine: SimMachine,
    /// The process, if it runs.
    pub up: Option<NodeProcess>,
    /// An older copy of its directory.
    pub older_copy: Option<DirectoryCopy>,
    /// Disks with the same number are indistinguishable.
    disk_number: u64,
    store_port: Arc<StorePort>,
    /// Its last logged membership.
    last_membership: String,
}

/// A copy of a directory.
pub struct DirectoryCopy {
    /// The disk.
    pub image: Image,
    /// Time of the copy, by the store's clock.
    pub at: Millis,
    /// Time of the copy, as the scheduler's stamp.
    pub stamp: u64,
}

/// A running process.
pub struct NodeProcess {
    workers: Vec<Option<(PendingAct, Task<ActOutcome>)>>,
    background: Vec<BackgroundTask>,
    seal: Option<Seal>,
    /// Set when any of its tasks is woken.
    signal: WakeSignal,
    /// The process is idle until then, unless the signal is set.
    idle_until: Duration,
    engine: Engine,
}

/// Result of a step of a node.
#[expect(clippy::large_enum_variant, reason = "it is taken apart where it is returned")]
pub enum NodeStep {
    /// Nothing could be done.
    Idle,
    /// Some work was done.
    Done,
    /// This worker is free.
    Free(usize),
    /// A client has its answer.
    Answered(PendingAct, ActOutcome),
}

impl Node {
    /// Creates a node that does not run.
    pub fn new(index: usize, machine: SimMachine, disk_number: u64, store_port: StorePort) -> Node {
        Node {
            index,
            machine,
            up: None,
            older_copy: None,
            disk_number,
            store_port: Arc::new(store_port),
            last_membership: String::new(),
        }
    }

    /// Starts the process.
    pub fn open(&mut self, plan: &Plan) -> Result<(), OpenError> {
        let options = Options { sharing: plan.sharing.clone(), ..small_options(plan.segment_bytes) };
        let engine = open_engine(&self.machine, Some(self.store_port.clone()), options)?;
        let workers = (0..plan.workers).map(|_| None).collect();
        let now = self.machine.clock.elapsed();
        let background = BackgroundTask::all(now);
        let (signal, idle_until) = (WakeSignal::default(), now);
        self.up = Some(NodeProcess { workers, background, seal: None, signal, idle_until, engine });
        Ok(())
    }

    /// Returns true if its journal has failed; no fault here causes that.
    pub fn has_failed(&self) -> bool {
        self.machine.has_failed()
    }

    /// Kills the process or, with `power`, cuts the machine's power; it stays down until it is
    /// opened.
    pub fn crash(&mut self, power: bool) -> NodeEnd {
        let Some(up) = self.up.take() else { return NodeEnd::Killed };
        let synced = up.engine.stats().synced;
        let disk = &self.machine.disk;
        let at = disk.operations();
        let image = if power { disk.crash(at, &self.machine.rng) } else { disk.kill(at) };
        drop(up);
        self.machine.disk = image.into_disk_of(self.disk_number);
        if power { NodeEnd::PowerLoss(synced) } else { NodeEnd::Killed }
    }

    /// Closes the process cleanly. `step` lets time pass while it releases its lease at the store.
    pub fn close(&mut self, step: impl FnMut()) -> Result<NodeEnd, String> {
        let Some(mut up) = self.up.take() else { return Ok(NodeEnd::Clean) };
        let mut step = step;
        (up.workers, up.background) = (Vec::new(), Vec::new());
        let engine = up.engine.clone();
        let release = async move {
            if let Some(sharing) = engine.sharing() {
                sharing.release().await;
            }
        };
        let mut release = Task::new(release, &up.signal);
        // Waits for a few answers only: the store may be down.
        for _ in 0..RELEASE_STEPS {
            if release.is_woken() && release.poll().is_some() {
                break;
            }
            step();
        }
        drop(release);
        up.engine.close().map_err(|error| format!("node {}: it could not be closed: {error}", self.index))?;
        Ok(NodeEnd::Clean)
    }

    /// Image of its disk as another machine would find it.
    pub fn image(&self) -> Image {
        self.machine.disk.kill(self.machine.disk.operations())
    }

    /// Replaces its disk; the process must not run.
    pub fn replace_disk(&mut self, image: Option<Image>, disk_number: u64) {
        self.disk_number = disk_number;
        self.machine.disk = image.map_or_else(CrashDisk::new, |image| image.into_disk_of(disk_number));
    }

    /// Number of its disk; disks with the same number are indistinguishable.
    pub fn disk_number(&self) -> u64 {
        self.disk_number
    }

    /// Its membership in the store, if it runs.
    pub fn membership(&self) -> Option<Membership> {
        let up = self.up.as_ref()?;
        Some(up.engine.sharing()?.membership())
    }

    /// Its membership and incarnation, if changed since the last call.
    pub fn changed_membership(&mut self) -> Option<String> {
        let up = self.up.as_ref()?;
        let writer = up.engine.stats().writer;
        let membership = format!("{:?} as {:04x}", up.engine.sharing()?.membership(), writer.incarnation.0 >> 48);
        let changed = self.last_membership != membership;
        self.last_membership.clone_from(&membership);
        changed.then_some(membership)
    }

    /// Returns true if it has finished comparing everything with the store.
    pub fn has_compared(&self) -> bool {
        let sharing = self.up.as_ref().and_then(|up| up.engine.sharing());
        sharing.is_some_and(|sharing| !sharing.is_auditing())
    }

    /// Runs one step of a seal.
    pub fn seal(&mut self) -> Result<(), String> {
        let Some(up) = &mut self.up else { return Ok(()) };
        let steps = up.engine.steps();
        let Some(mut seal) = up.seal.take() else {
            up.seal = Some(steps.begin_seal());
            return Ok(());
        };
        let failed = |error: &dyn Display| format!("node {}: it could not be sealed: {error}", self.index);
        match steps.step_seal(&mut seal).map_err(|error| failed(&error))? {
            SealStep::More => up.seal = Some(seal),
            SealStep::WaitFor(_) => {
                up.seal = Some(seal);
                steps.write_filled();
                steps.sync();
            }
            SealStep::Done => steps.finish_seal(seal).map_err(|error| failed(&error))?,
        }
        Ok(())
    }

    /// Returns true if the store has confirmed everything, as far as the node knows.
    pub fn is_settled(&self) -> bool {
        let sharing = self.up.as_ref().and_then(|up| up.engine.sharing());
        sharing.is_some_and(|sharing| sharing.unsettled() == 0 && !sharing.has_pending_successions())
    }

    /// Returns true if it is registered and no client waits.
    pub fn is_quiet(&self) -> bool {
        let Some(up) = &self.up else { return false };
        let Some(sharing) = up.engine.sharing() else { return false };
        sharing.membership() == Membership::Live && up.workers.iter().all(Option::is_none)
    }

    /// Describes why it is not quiet, for the report of a violation.
    pub fn describe(&self) -> String {
        let Some(up) = &self.up else { return "down".to_owned() };
        let Some(sharing) = up.engine.sharing() else { return "alone".to_owned() };
        let (unsettled, auditing) = (sharing.unsettled(), sharing.is_auditing());
        let (busy, successors) = (up.workers.iter().flatten().count(), sharing.has_pending_successions());
        let membership = sharing.membership();
        format!("{membership:?}, {unsettled} unsettled, auditing: {auditing}, heirs: {successors}, {busy} clients wait")
    }

    /// Starts another comparison of everything with the store.
    pub fn begin_audit(&self) {
        if let Some(sharing) = self.up.as_ref().and_then(|up| up.engine.sharing()) {
            sharing.begin_audit();
        }
    }

    /// A worker without a client.
    pub fn free_worker(&self) -> Option<usize> {
        self.up.as_ref()?.workers.iter().position(Option::is_none)
    }

    /// Returns true if any client waits.
    pub fn is_serving(&self) -> bool {
        self.up.as_ref().is_some_and(|up| up.workers.iter().any(Option::is_some))
    }

    /// Assigns an act to a free worker.
    pub fn assign(&mut self, worker: usize, pending: PendingAct, act: Act) {
        let Some(up) = &mut self.up else { return };
        let task = Task::new(serve(up.engine.clone(), self.machine.rng.clone(), act), &up.signal);
        up.workers[worker] = Some((pending, task));
    }

    /// Runs one step of any worker or background task that can take one; `asks` is true if clients
    /// have more acts.
    pub fn step(&mut self, plan: &Plan, asks: bool) -> NodeStep {
        let now = self.machine.clock.elapsed();
        let Some(up) = &mut self.up else { return NodeStep::Idle };
        if !asks && now < up.idle_until && !up.signal.is_set() {
            return NodeStep::Idle;
        }
        let (workers, all) = (up.workers.len(), up.workers.len() + up.background.len());
        let needs = up.client_needs();
        let first = self.machine.rng.below(all);
        for at in (first..all).chain(0..first) {
            if at >= workers {
                if up.background[at - workers].step((&up.engine, &up.signal), plan, now, needs) {
                    return NodeStep::Done;
                }
                continue;
            }
            match &mut up.workers[at] {
                None if asks => return NodeStep::Free(at),
                None => {}
                Some((_, task)) if !task.is_woken() => {}
                Some((_, task)) => {
                    let Some(answer) = task.poll() else { return NodeStep::Done };
                    let Some((pending, _)) = up.workers[at].take() else { return NodeStep::Done };
                    return NodeStep::Answered(pending, answer);
                }
            }
        }
        if needs.store && up.supply_waiting_clients() > 0 {
            return NodeStep::Done;
        }
        up.signal.clear();
        up.idle_until =
            up.background.iter().map(|background_task| background_task.next_check(plan, needs)).min().unwrap_or(now);
        NodeStep::Idle
    }

    /// Runs one step of the node's local background work.
    pub fn run_maintenance(&mut self) -> Result<(), String> {
        let Some(up) = &mut self.up else { return Ok(()) };
        let steps = up.engine.steps();
        let rng = &self.machine.rng;
        let shard = rng.below(steps.shard_count());
        let failed = |error: &dyn Display| format!("node {}: the disk is good, and yet: {error}", self.index);
        match rng.below(12) {
            0 => steps.write_filled(),
            1 => steps.sync(),
            2 => steps.prepare_segments().map_err(|error| failed(&error))?,
            3 => steps.record_synced().map_err(|error| failed(&error))?,
            4 => {
                steps.sweep(shard).map_err(|error| failed(&error))?;
                steps.expire(shard);
            }
            // The first pass keeps recently used counters.
            5 => {
                steps.evict(shard);
                steps.evict(shard);
            }
            6 => steps.purge(shard),
            7 => drop(steps.compact().map_err(|error| failed(&error))?),
            8 | 9 => {
                up.supply_waiting_clients();
            }
            _ if up.seal.is_some() || steps.needs_seal() || rng.chance(20) => return self.seal(),
            _ => {}
        }
        Ok(())
    }
}

impl NodeProcess {
    /// Loads counters at rest and names for waiting clients, and serves stale values if the store
    /// did not answer; returns the number served.
    fn supply_waiting_clients(&self) -> usize {
        let (steps, sharing) = (self.engine.steps(), self.engine.sharing());
        steps.run_loads().0 + steps.run_walks() + sharing.map_or(0, |sharing| sharing.serve_stale())
    }

    /// Needs of waiting clients that background tasks serve.
    fn client_needs(&self) -> ClientNeeds {
        let mut needs = ClientNeeds::default();
        for (pending, _) in self.workers.iter().flatten().filter(|(_, task)| !task.is_woken()) {
            match pending.act.what {
                Action::Once { .. } => needs.token = true,
                _ => needs.store = true,
            }
        }
        needs
    }
}

/// Most store steps while a closing node releases its lease.
const RELEASE_STEPS: usize = 40;
