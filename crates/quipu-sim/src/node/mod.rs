//! A machine: a disk, a clock, and the shipped engine with its clients and its background, step by step.
//!
//! In: the scheduler's choice. Out: answers to clients; puts, reads and swaps at the store.
//!
//! A process that ends takes its engine and all futures with it, wherever they were; the disk keeps what a kill or a loss of power leaves of it.

mod chore;

use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use quipu_engine::{Engine, Environment, OpenError, Options, Seal, Sealing, Standing};
use quipu_model::{Clock, Durability, Millis, Namespace};
use quipu_testkit::{CrashDisk, Dice, FileLedger, Image, SimClock};

use self::chore::{Chore, Waits};
use crate::act::{Act, What};
use crate::client::serve;
use crate::judge::{Answer, Asked, End};
use crate::plan::Plan;
use crate::store::Door;
use crate::task::{Bell, Task};

/// Where the data is, on every machine.
const DATA: &str = "/data";

/// One machine.
pub struct Node {
    /// Which.
    pub index: usize,
    /// Its clock.
    pub clock: SimClock,
    /// The process, if it runs.
    pub up: Option<Up>,
    /// An older copy of its directory.
    pub saved: Option<Saved>,
    disk: CrashDisk,
    /// Two disks of the same number cannot be told apart.
    copy: u64,
    dice: Arc<Dice>,
    door: Arc<Door>,
    failed: Arc<AtomicBool>,
    /// Where it last stood.
    stood: String,
}

/// A copy of a directory.
pub struct Saved {
    /// The disk.
    pub image: Image,
    /// When it was made, by the store's clock.
    pub at: Millis,
    /// The same, by the scheduler.
    pub stamp: u64,
}

/// A running process.
pub struct Up {
    workers: Vec<Option<(Asked, Task<Answer>)>>,
    chores: Vec<Chore>,
    seal: Option<Seal>,
    /// Rung when any of its tasks is woken.
    bell: Bell,
    /// Until then nothing can be done unless the bell rings.
    idle_until: Duration,
    engine: Engine,
}

/// What a step of a node came to.
#[expect(clippy::large_enum_variant, reason = "it is taken apart where it is returned")]
pub enum Stepped {
    /// Nothing could be done.
    Idle,
    /// Something was.
    Done,
    /// A worker is free.
    Free(usize),
    /// A client is answered.
    Answered(Asked, Answer),
}

impl Node {
    /// A machine with this disk, not running.
    pub fn new(index: usize, clock: SimClock, disk: CrashDisk, copy: u64, dice: Dice, door: Door) -> Node {
        let (dice, door) = (Arc::new(dice), Arc::new(door));
        Node {
            index,
            clock,
            up: None,
            saved: None,
            disk,
            copy,
            dice,
            door,
            failed: Arc::default(),
            stood: String::new(),
        }
    }

    /// Starts the process.
    pub fn open(&mut self, plan: &Plan) -> Result<(), OpenError> {
        let (disk, failed) = (self.disk.clone(), self.failed.clone());
        let environment = Environment {
            clock: Arc::new(self.clock.clone()),
            rng: self.dice.clone(),
            vfs: Arc::new(self.disk.clone()),
            open_ledger: Arc::new(move |options| {
                Ok(Arc::new(FileLedger::open(Arc::new(disk.clone()), &options.data)?))
            }),
            on_failure: Arc::new(move |_| failed.store(true, Ordering::SeqCst)),
            store: Some(self.door.clone()),
        };
        let engine = Engine::open_with(options(plan), environment)?;
        let workers = (0..plan.workers).map(|_| None).collect();
        let now = self.clock.elapsed();
        let chores = Chore::all(now);
        let (bell, idle_until) = (Bell::default(), now);
        self.up = Some(Up { workers, chores, seal: None, bell, idle_until, engine });
        Ok(())
    }

    /// Whether its journal has failed, which no fault here makes it do.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::SeqCst)
    }

    /// Ends the process and, with the power, the machine; it stays down until it is opened.
    pub fn crash(&mut self, power: bool) -> End {
        let Some(up) = self.up.take() else { return End::Killed };
        let synced = up.engine.stats().synced;
        let at = self.disk.operations();
        let image = if power { self.disk.crash(at, &self.dice) } else { self.disk.kill(at) };
        drop(up);
        self.disk = image.into_disk_of(self.copy);
        if power { End::PowerLoss(synced) } else { End::Killed }
    }

    /// Ends the process in good order. `step` lets time pass for what it says to the store.
    pub fn close(&mut self, step: impl FnMut()) -> Result<End, String> {
        let Some(mut up) = self.up.take() else { return Ok(End::Clean) };
        let mut step = step;
        (up.workers, up.chores) = (Vec::new(), Vec::new());
        let engine = up.engine.clone();
        let release = async move {
            if let Some(sharing) = engine.sharing() {
                sharing.release().await;
            }
        };
        let mut release = Task::new(release, &up.bell);
        // A few answers; a store that is down is not waited for.
        for _ in 0..RELEASE_STEPS {
            if release.is_woken() && release.poll().is_some() {
                break;
            }
            step();
        }
        drop(release);
        up.engine.close().map_err(|error| format!("node {}: it could not be closed: {error}", self.index))?;
        Ok(End::Clean)
    }

    /// What its disk holds now, as another machine would find it.
    pub fn image(&self) -> Image {
        self.disk.kill(self.disk.operations())
    }

    /// Replaces its disk; the process must not run.
    pub fn replace_disk(&mut self, image: Option<Image>, copy: u64) {
        self.copy = copy;
        self.disk = image.map_or_else(CrashDisk::new, |image| image.into_disk_of(copy));
    }

    /// Which of the disks that cannot be told apart it has.
    pub fn copy(&self) -> u64 {
        self.copy
    }

    /// Where it stands with the store, if it runs.
    pub fn standing(&self) -> Option<Standing> {
        let up = self.up.as_ref()?;
        Some(up.engine.sharing()?.standing())
    }

    /// Where it stands with the store and as whom, if that has changed since it was last asked.
    pub fn new_standing(&mut self) -> Option<String> {
        let up = self.up.as_ref()?;
        let writer = up.engine.stats().writer;
        let standing = format!("{:?} as {:04x}", up.engine.sharing()?.standing(), writer.incarnation.0 >> 48);
        let changed = self.stood != standing;
        self.stood.clone_from(&standing);
        changed.then_some(standing)
    }

    /// Whether it has compared everything with the store, and wants no more of it now.
    pub fn has_compared(&self) -> bool {
        let sharing = self.up.as_ref().and_then(|up| up.engine.sharing());
        sharing.is_some_and(|sharing| !sharing.is_auditing())
    }

    /// One step of a seal.
    pub fn seal(&mut self) -> Result<(), String> {
        let Some(up) = &mut self.up else { return Ok(()) };
        let steps = up.engine.steps();
        let Some(mut seal) = up.seal.take() else {
            up.seal = Some(steps.seal_begin());
            return Ok(());
        };
        let failed = |error: &dyn Display| format!("node {}: it could not be sealed: {error}", self.index);
        match steps.seal_step(&mut seal).map_err(|error| failed(&error))? {
            Sealing::More => up.seal = Some(seal),
            Sealing::Waits(_) => {
                up.seal = Some(seal);
                steps.hand_over();
                steps.sync();
            }
            Sealing::Done => steps.seal_finish(seal).map_err(|error| failed(&error))?,
        }
        Ok(())
    }

    /// Whether everything that it says is confirmed, as far as it knows.
    pub fn is_settled(&self) -> bool {
        let sharing = self.up.as_ref().and_then(|up| up.engine.sharing());
        sharing.is_some_and(|sharing| sharing.unsettled() == 0 && !sharing.has_heirs())
    }

    /// Whether it is registered, and nobody waits.
    pub fn is_quiet(&self) -> bool {
        let Some(up) = &self.up else { return false };
        let Some(sharing) = up.engine.sharing() else { return false };
        sharing.standing() == Standing::Live && up.workers.iter().all(Option::is_none)
    }

    /// What keeps it from being quiet, for the reader of a violation.
    pub fn describe(&self) -> String {
        let Some(up) = &self.up else { return "down".to_owned() };
        let Some(sharing) = up.engine.sharing() else { return "alone".to_owned() };
        let (unsettled, auditing) = (sharing.unsettled(), sharing.is_auditing());
        let (busy, heirs) = (up.workers.iter().flatten().count(), sharing.has_heirs());
        let standing = sharing.standing();
        format!("{standing:?}, {unsettled} unsettled, auditing: {auditing}, heirs: {heirs}, {busy} clients wait")
    }

    /// Compares everything with the store once more.
    pub fn begin_audit(&self) {
        if let Some(sharing) = self.up.as_ref().and_then(|up| up.engine.sharing()) {
            sharing.begin_audit();
        }
    }

    /// A worker that serves nobody.
    pub fn free_worker(&self) -> Option<usize> {
        self.up.as_ref()?.workers.iter().position(Option::is_none)
    }

    /// Whether any client waits.
    pub fn is_serving(&self) -> bool {
        self.up.as_ref().is_some_and(|up| up.workers.iter().any(Option::is_some))
    }

    /// Gives a free worker something to do.
    pub fn give(&mut self, worker: usize, asked: Asked, act: Act) {
        let Some(up) = &mut self.up else { return };
        let task = Task::new(serve(up.engine.clone(), self.dice.clone(), act), &up.bell);
        up.workers[worker] = Some((asked, task));
    }

    /// One step of any worker or chore that can take one; `asks` says that clients have more to ask.
    pub fn step(&mut self, plan: &Plan, asks: bool) -> Stepped {
        let now = self.clock.elapsed();
        let Some(up) = &mut self.up else { return Stepped::Idle };
        if !asks && now < up.idle_until && !up.bell.is_rung() {
            return Stepped::Idle;
        }
        let (workers, all) = (up.workers.len(), up.workers.len() + up.chores.len());
        let waits = up.waits();
        let first = self.dice.below(all);
        for at in (first..all).chain(0..first) {
            if at >= workers {
                if up.chores[at - workers].step((&up.engine, &up.bell), plan, now, waits) {
                    return Stepped::Done;
                }
                continue;
            }
            match &mut up.workers[at] {
                None if asks => return Stepped::Free(at),
                None => {}
                Some((_, task)) if !task.is_woken() => {}
                Some((_, task)) => {
                    let Some(answer) = task.poll() else { return Stepped::Done };
                    let Some((asked, _)) = up.workers[at].take() else { return Stepped::Done };
                    return Stepped::Answered(asked, answer);
                }
            }
        }
        if waits.store && up.bring() > 0 {
            return Stepped::Done;
        }
        up.bell.mute();
        up.idle_until = up.chores.iter().map(|chore| chore.next_look(plan, waits)).min().unwrap_or(now);
        Stepped::Idle
    }

    /// One step of what the background does on this machine alone.
    pub fn tend(&mut self) -> Result<(), String> {
        let Some(up) = &mut self.up else { return Ok(()) };
        let steps = up.engine.steps();
        let dice = &self.dice;
        let shard = dice.below(steps.shards());
        let failed = |error: &dyn Display| format!("node {}: the disk is good, and yet: {error}", self.index);
        match dice.below(12) {
            0 => steps.hand_over(),
            1 => steps.sync(),
            2 => steps.prepare().map_err(|error| failed(&error))?,
            3 => steps.note_synced().map_err(|error| failed(&error))?,
            4 => {
                steps.sweep(shard).map_err(|error| failed(&error))?;
                steps.expire(shard);
            }
            // Once lets stay what was used lately.
            5 => {
                steps.evict(shard);
                steps.evict(shard);
            }
            6 => steps.purge(shard),
            7 => drop(steps.compact().map_err(|error| failed(&error))?),
            8 | 9 => {
                up.bring();
            }
            _ if up.seal.is_some() || steps.wants_seal() || dice.chance(20) => return self.seal(),
            _ => {}
        }
        Ok(())
    }
}

impl Up {
    /// Brings what clients wait for: counters at rest, names, and what is known if the store has been asked in vain; how many were served.
    fn bring(&self) -> usize {
        let (steps, sharing) = (self.engine.steps(), self.engine.sharing());
        steps.load().0 + steps.walk() + sharing.map_or(0, |sharing| sharing.excuse())
    }

    /// What clients wait for that the background brings.
    fn waits(&self) -> Waits {
        let mut waits = Waits::default();
        for (asked, _) in self.workers.iter().flatten().filter(|(_, task)| !task.is_woken()) {
            match asked.act.what {
                What::Once { .. } => waits.token = true,
                _ => waits.store = true,
            }
        }
        waits
    }
}

/// So often the store may move while a node says good-bye to it.
const RELEASE_STEPS: usize = 40;

/// Small everything, so that a short run rotates, cuts and evicts.
fn options(plan: &Plan) -> Options {
    Options {
        namespaces: vec![
            (Box::from(*b"r"), Namespace::durable(Durability::Relaxed)),
            (Box::from(*b"m"), Namespace::durable(Durability::Memory)),
        ],
        segment_bytes: plan.segment_bytes,
        ahead_bytes: Some(2 * plan.segment_bytes),
        journal_bytes_max: 6 * plan.segment_bytes,
        table_shards: 4,
        reserve_bytes: 0,
        sharing: plan.sharing.clone(),
        ..Options::new(Path::new(DATA))
    }
}
