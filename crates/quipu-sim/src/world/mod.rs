//! Runs some nodes and one store on one thread; a scheduler lets any of them take the next step.
//!
//! In: a plan. Out: a tally of events, or the first broken promise. The same plan gives the same
//! run, step by step.
//!
//! A run has three parts. First, clients send acts and faults come, as planned. Then faults stop,
//! and all nodes heal and settle (`wind_down`). Last, the judge compares the totals.

mod faults;
mod tally;
mod wind_down;

use std::sync::Arc;
use std::time::Duration;

use quipu_model::{Clock, Millis, Reply};
use quipu_testkit::machine::BEGIN;
use quipu_testkit::{CrashDisk, SeededRng, SimClock, SimMachine};

use crate::act::Act;
use crate::judge::{ActOutcome, Conditions, Judge, PendingAct};
use crate::log::EventLog;
use crate::node::{Node, NodeStep};
use crate::plan::{NODES, Plan};
use crate::store::{SimStore, StoreCopy};

pub use self::tally::RunTally;

/// Largest offset of a node's clock from the store's, which begins at [`BEGIN`]: two years, either
/// way.
const CLOCK_OFFSET_MILLIS: i64 = 2 * YEAR_MILLIS;
const YEAR_MILLIS: i64 = 365 * 24 * 3_600_000;

/// Most steps of a run that has not sent all its acts; it counts as stuck. Most runs need a tenth.
const STEPS_MAX: usize = 200_000;

/// Percentage of acts that are adds with a token.
const TOKEN_PERCENT: usize = 6;

/// Number of last tokens that a client may send again.
const TOKENS_AGAIN: usize = 6;

/// Most doublings of the time step while no node can do anything.
const IDLE_DOUBLINGS_MAX: usize = 5;

/// Scheduling delay beyond settling, fetching and time steps: rounds that wait for their turn.
const LAG_MARGIN: Duration = Duration::from_secs(1);

/// Longest pause of a node after a store error; the random backoff can add half of it.
const BACKOFF_MAX: Duration = Duration::from_millis(7_500);

/// Longest time step in a quiet period, in milliseconds.
const QUIET_STRIDE_MILLIS: usize = 200;

/// One simulated run.
pub struct Simulation {
    plan: Plan,
    rng: SeededRng,
    log: EventLog,
    /// Time since the beginning.
    now: Duration,
    store: Arc<SimStore>,
    store_clock: SimClock,
    nodes: Vec<Node>,
    /// End of each node's downtime or pause.
    away_until: Vec<Duration>,
    /// Number of incarnations that each node has registered.
    incarnations: Vec<usize>,
    /// Last time that each node could reach the store, and its longest time out of reach.
    store_reach: Vec<(Duration, Duration)>,
    /// Nodes that were away too long: their settled state is unknown until an operator decides.
    stranded: Vec<bool>,
    judge: Judge,
    acts_asked: usize,
    /// Adds with tokens sent so far.
    tokens: Vec<Act>,
    /// Clients send nothing until then.
    quiet_until: Duration,
    /// Start of the current time without any fault in effect.
    clear_since: Duration,
    /// The same, plus the time that nodes need to recover.
    fair_since: Duration,
    /// Number of disk numbers given out.
    disks: u64,
    recent_copy: Option<StoreCopy>,
    backup: Option<StoreCopy>,
    /// Copy of the empty store.
    empty: StoreCopy,
    /// Number of consecutive time steps in which no node could do anything.
    idle_steps: usize,
    /// Collected answers, until the caller takes them.
    answers: Vec<(PendingAct, Reply)>,
    /// Tally of events.
    pub tally: RunTally,
}

impl Simulation {
    /// Creates a world at its beginning.
    pub fn new(plan: Plan, log: EventLog) -> Simulation {
        let rng = SeededRng::new(plan.seed);
        let store_clock = SimClock::new(BEGIN);
        let store = SimStore::new(store_clock.clone(), rng.fork(), log.clone(), plan.sharing.grace, plan.store_percent);
        let empty = store.copy();
        let mut world = Simulation {
            rng,
            log,
            now: Duration::ZERO,
            store,
            store_clock,
            nodes: Vec::new(),
            away_until: Vec::new(),
            incarnations: Vec::new(),
            store_reach: Vec::new(),
            stranded: Vec::new(),
            judge: Judge::new(plan.store_may_lose_data),
            acts_asked: 0,
            tokens: Vec::new(),
            quiet_until: Duration::ZERO,
            clear_since: Duration::ZERO,
            fair_since: Duration::ZERO,
            disks: 0,
            recent_copy: None,
            backup: None,
            empty,
            idle_steps: 0,
            answers: Vec::new(),
            tally: RunTally { runs: 1, ..RunTally::default() },
            plan,
        };
        for _ in 0..NODES {
            world.add_node(CrashDisk::new(), None);
        }
        world
    }

    /// Runs the simulation to its end.
    pub fn run(&mut self) -> Result<(), String> {
        for node in 0..self.nodes.len() {
            self.open_node(node)?;
        }
        while self.acts_asked < self.plan.acts || self.plan.faults.last().is_some_and(|next| next.at <= self.acts_asked)
        {
            if self.tally.steps as usize > STEPS_MAX {
                return Err(format!("after {STEPS_MAX} steps only {} acts were asked", self.acts_asked));
            }
            self.step()?;
        }
        self.wind_down()?;
        self.store.with_truth(|truth| self.tally.store_events = truth.events);
        self.tally.fates = self.store.fates();
        self.tally.fresh = self.judge.fresh_readings;
        Ok(())
    }

    fn step(&mut self) -> Result<(), String> {
        self.log.tick();
        self.tally.steps += 1;
        self.inject_due_fault()?;
        self.restart_due_nodes()?;
        match self.rng.below(100) {
            0..6 => self.pass_time(),
            6..14 => {
                let node = self.rng.below(self.nodes.len());
                if self.is_scheduled(node) {
                    self.nodes[node].run_maintenance()?;
                }
            }
            _ => {
                let store_first = self.rng.chance(40);
                let done = store_first && self.store.step() || self.step_any()? || !store_first && self.store.step();
                self.idle_steps = if done { 0 } else { self.idle_steps + 1 };
                if !done {
                    self.pass_time();
                }
            }
        }
        if self.log.is_enabled() {
            self.log_memberships();
        }
        if self.plan.store_may_lose_data {
            self.follow_incarnations();
        }
        self.check_promises()
    }

    fn log_memberships(&mut self) {
        for node in &mut self.nodes {
            if let Some(membership) = node.changed_membership() {
                self.log.write_line(|| format!("node {} is {membership}", node.index));
            }
        }
    }

    /// Takes a step of any node that can take one.
    fn step_any(&mut self) -> Result<bool, String> {
        let first = self.rng.below(self.nodes.len());
        for node in (first..self.nodes.len()).chain(0..first) {
            if self.step_node(node)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Takes a step of a node, if it can.
    fn step_node(&mut self, node: usize) -> Result<bool, String> {
        if !self.is_scheduled(node) {
            return Ok(false);
        }
        let asks = self.acts_asked < self.plan.acts && self.now >= self.quiet_until;
        match self.nodes[node].step(&self.plan, asks) {
            NodeStep::Idle => return Ok(false),
            NodeStep::Done => {}
            NodeStep::Free(worker) => {
                self.acts_asked += 1;
                let act = self.draw_act();
                self.send_act(node, worker, act);
            }
            NodeStep::Answered(pending, outcome) => self.answered(pending, &outcome)?,
        }
        Ok(true)
    }

    /// Draws a new act, or a token sent before, for any node, as after a timeout.
    fn draw_act(&mut self) -> Act {
        if !self.rng.chance(TOKEN_PERCENT) {
            return Act::draw(&self.rng, self.plan.expiry_millis_max);
        }
        if !self.tokens.is_empty() && self.rng.chance(60) {
            let last = self.tokens.len() - 1;
            return self.tokens[last - self.rng.below(self.tokens.len().min(TOKENS_AGAIN))];
        }
        let act = Act::draw_once(&self.rng, self.tokens.len() as u64);
        self.tokens.push(act);
        act
    }

    fn send_act(&mut self, node: usize, worker: usize, act: Act) {
        self.tally.acts += 1;
        self.log.write_line(|| format!("node {node}: {act:?} is asked"));
        let taken = self.store.with_truth(|truth| truth.taken(act.counter));
        let (pending, adds) = self.judge.begin_act(node, act, taken, (self.log.stamp(), self.conditions()));
        self.store.with_truth(|truth| truth.add_invoked(act.counter, i128::from(adds)));
        self.nodes[node].assign(worker, pending, act);
    }

    fn answered(&mut self, pending: PendingAct, outcome: &ActOutcome) -> Result<(), String> {
        self.log.write_line(|| format!("node {}: {:?} is answered {:?}", pending.node, pending.act, outcome.reply));
        self.tally.answered += 1;
        self.tally.refused += u64::from(matches!(outcome.reply, Some(Reply::Refused(_))));
        self.answers.extend(outcome.reply.clone().map(|reply| (pending, reply)));
        let refused = self.judge.judge_outcome(pending, outcome, (self.log.stamp(), self.conditions()))?;
        self.store.with_truth(|truth| truth.add_invoked(pending.act.counter, -i128::from(refused)));
        Ok(())
    }

    fn conditions(&self) -> Conditions {
        let sharing = &self.plan.sharing;
        // Settling polls at its own interval, and a put under way must end before the next.
        let leaps = Duration::from_millis(2 * (self.plan.stride_millis << IDLE_DOUBLINGS_MAX) as u64);
        let lag = 2 * sharing.settle_every + sharing.freshness + LAG_MARGIN + leaps;
        Conditions { now: self.now, clear_since: self.clear_since, fair_since: self.fair_since, lag }
    }

    /// Notices new incarnations. No node puts the lost cells of an ended incarnation again: a node
    /// that registers a new incarnation continues as another writer and succeeds the old one.
    fn follow_incarnations(&mut self) {
        for node in 0..self.nodes.len() {
            let incarnations = self.store.with_truth(|truth| truth.incarnation_count(node));
            if incarnations != self.incarnations[node] {
                self.incarnations[node] = incarnations;
                self.judge.replace_incarnation(node);
            }
        }
    }

    fn check_promises(&self) -> Result<(), String> {
        if let Some(broken) = self.store.with_truth(|truth| truth.broken().map(str::to_owned)) {
            return Err(broken);
        }
        match self.nodes.iter().find(|node| node.has_failed()) {
            Some(node) => Err(format!("node {}: the journal failed", node.index)),
            None => Ok(()),
        }
    }

    /// Lets a little time pass for all nodes.
    fn pass_time(&mut self) {
        let quiet = self.now < self.quiet_until;
        let most = if quiet {
            QUIET_STRIDE_MILLIS
        } else {
            self.plan.stride_millis << self.idle_steps.min(IDLE_DOUBLINGS_MAX)
        };
        self.pass(Duration::from_millis(1 + self.rng.below(most) as u64));
    }

    fn pass(&mut self, by: Duration) {
        self.now += by;
        let answers = self.store.is_responsive();
        let here = (0..self.nodes.len()).all(|node| self.is_scheduled(node));
        if !answers || !here || self.plan.store_percent > 0 {
            self.clear_since = self.now;
        }
        if !answers {
            self.fair_since = self.now + self.recovery_time();
        }
        self.fair_since = self.fair_since.max(self.clear_since);
        for node in 0..self.nodes.len() {
            let (last, longest) = self.store_reach[node];
            let last = if answers && self.is_scheduled(node) { self.now } else { last };
            self.store_reach[node] = (last, longest.max(self.now - last));
        }
        self.store_clock.advance(by);
        for node in &self.nodes {
            // No two clocks run at the same rate.
            let parts = 995 + (node.index as u32 * 7) % 11;
            node.machine.clock.advance(by * parts / 1_000);
        }
        self.store.age();
    }

    /// Time that nodes need after the store was down or slow. They wait for an earlier call as long
    /// as its round may take. After an error they back off from the store. A node with an expired
    /// lease puts nothing before it renews.
    fn recovery_time(&self) -> Duration {
        let sharing = &self.plan.sharing;
        let round = sharing.swap_wait.max(sharing.lease / 2);
        round + BACKOFF_MAX + sharing.lease / 5
    }

    fn is_scheduled(&self, node: usize) -> bool {
        self.away_until[node] <= self.now && self.nodes[node].up.is_some() && !self.stranded[node]
    }

    /// Restarts the nodes whose downtime has ended.
    fn restart_due_nodes(&mut self) -> Result<(), String> {
        for node in 0..self.nodes.len() {
            if self.nodes[node].up.is_none() && self.away_until[node] <= self.now && !self.stranded[node] {
                self.open_node(node)?;
            }
        }
        Ok(())
    }

    fn open_node(&mut self, node: usize) -> Result<(), String> {
        self.log.write_line(|| format!("node {node} starts"));
        self.nodes[node].open(&self.plan).map_err(|error| format!("node {node} does not start: {error}"))?;
        self.judge.begin_incarnation(node);
        Ok(())
    }

    /// Adds a machine. A disk with another disk's number is indistinguishable from it.
    fn add_node(&mut self, disk: CrashDisk, disk_number: Option<u64>) -> usize {
        let index = self.nodes.len();
        let disk_number = disk_number.unwrap_or_else(|| self.next_disk_number());
        let offset = self.rng.between(-CLOCK_OFFSET_MILLIS..=CLOCK_OFFSET_MILLIS);
        let clock = SimClock::new(Millis(self.store_clock.wall().0.saturating_add_signed(offset)));
        let port = self.store.port(index);
        let machine = SimMachine::with_clock(disk, clock, self.rng.fork());
        self.nodes.push(Node::new(index, machine, disk_number, port));
        self.away_until.push(self.now);
        self.incarnations.push(0);
        self.store_reach.push((self.now, Duration::ZERO));
        self.stranded.push(false);
        index
    }

    fn next_disk_number(&mut self) -> u64 {
        self.disks += 1;
        self.disks
    }
}
