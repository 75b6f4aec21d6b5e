//! Some nodes, one store, one thread, and a scheduler that lets any of them take the next step.
//!
//! In: a plan. Out: how much was met, or the first promise that was broken. The same plan gives the same run, step by step.
//!
//! A run has three parts: clients ask and faults come, as planned; then faults stop, everybody heals and settles (`calm`); then the books are
//! closed.

mod calm;
mod faults;
mod tally;

use std::sync::Arc;
use std::time::Duration;

use quipu_model::{Clock, Millis, Reply};
use quipu_testkit::{CrashDisk, Dice, SimClock};

use crate::act::Act;
use crate::judge::{Answer, Asked, Judge, Weather};
use crate::log::Log;
use crate::node::{Node, Stepped};
use crate::plan::{NODES, Plan};
use crate::store::{Copied, SimStore};

pub use self::tally::Tally;

/// The store's clock at the beginning: some day in 2026. Nodes' clocks are anywhere around it.
const BEGIN: Millis = Millis(1_780_000_000_000);

/// Two years, either way: how far a node's clock may be from the store's.
const CLOCK_APART_MILLIS: i64 = 2 * YEAR_MILLIS;
const YEAR_MILLIS: i64 = 365 * 24 * 3_600_000;

/// Steps after which a run that has not asked everything stands still. Most need a tenth.
const STEPS_MAX: usize = 200_000;

/// Of a hundred acts that are adds with a token.
const TOKEN_PERCENT: usize = 6;

/// A token is sent again while it is one of the last so many.
const TOKENS_AGAIN: usize = 6;

/// Each time nothing could be done twice as much time passes, up to so many times.
const DULL_MAX: usize = 5;

/// What the scheduler adds to the time that settling and fetching take, beside leaps of time: rounds that wait for their turn.
const LAG_MARGIN: Duration = Duration::from_secs(1);

/// The longest that a node leaves a store alone after an error, by chance half as long again.
const BACKOFF_MAX: Duration = Duration::from_millis(7_500);

/// Most milliseconds that pass at once while nobody asks anything.
const QUIET_STRIDE_MILLIS: usize = 200;

/// A run.
pub struct World {
    plan: Plan,
    dice: Dice,
    log: Log,
    /// Time since the beginning.
    now: Duration,
    store: Arc<SimStore>,
    store_clock: SimClock,
    nodes: Vec<Node>,
    /// Until when each node does not run, or is not scheduled.
    away_until: Vec<Duration>,
    /// How many lives each node has registered.
    lives: Vec<usize>,
    /// When each node could last reach the store, and the longest time for which it could not.
    reach: Vec<(Duration, Duration)>,
    /// Nodes that were away for so long that nobody can tell what they have settled: an operator has to say.
    stranded: Vec<bool>,
    judge: Judge,
    asked: usize,
    /// Adds with tokens, so far.
    tokens: Vec<Act>,
    /// Until then clients ask nothing.
    quiet_until: Duration,
    /// Since when nothing stands in anybody's way.
    clear_since: Duration,
    /// The same, and since when everybody has found their way back.
    fair_since: Duration,
    /// Numbers of disks given out.
    disks: u64,
    lagging: Option<Copied>,
    backup: Option<Copied>,
    /// The store as it was when nobody had written to it.
    empty: Copied,
    /// How often in a row time had to pass because nothing could be done.
    dull: usize,
    /// What was answered, for whoever empties it.
    answers: Vec<(Asked, Reply)>,
    /// What was met.
    pub tally: Tally,
}

impl World {
    /// A world that has just begun.
    pub fn new(plan: Plan, log: Log) -> World {
        let dice = Dice::new(plan.seed);
        let store_clock = SimClock::new(BEGIN);
        let store =
            SimStore::new(store_clock.clone(), dice.fork(), log.clone(), plan.sharing.grace, plan.store_percent);
        let empty = store.copy();
        let mut world = World {
            dice,
            log,
            now: Duration::ZERO,
            store,
            store_clock,
            nodes: Vec::new(),
            away_until: Vec::new(),
            lives: Vec::new(),
            reach: Vec::new(),
            stranded: Vec::new(),
            judge: Judge::new(plan.blurred),
            asked: 0,
            tokens: Vec::new(),
            quiet_until: Duration::ZERO,
            clear_since: Duration::ZERO,
            fair_since: Duration::ZERO,
            disks: 0,
            lagging: None,
            backup: None,
            empty,
            dull: 0,
            answers: Vec::new(),
            tally: Tally { runs: 1, ..Tally::default() },
            plan,
        };
        for _ in 0..NODES {
            world.add_node(CrashDisk::new(), None);
        }
        world
    }

    /// Runs it to its end.
    pub fn run(&mut self) -> Result<(), String> {
        for node in 0..self.nodes.len() {
            self.open(node)?;
        }
        while self.asked < self.plan.acts || self.plan.faults.last().is_some_and(|next| next.at <= self.asked) {
            if self.tally.steps as usize > STEPS_MAX {
                return Err(format!("after {STEPS_MAX} steps only {} acts were asked", self.asked));
            }
            self.step()?;
        }
        self.end_calmly()?;
        self.store.truth(|truth| self.tally.met = truth.met);
        self.tally.fates = self.store.fates();
        self.tally.fresh = self.judge.fresh_readings;
        Ok(())
    }

    fn step(&mut self) -> Result<(), String> {
        self.log.tick();
        self.tally.steps += 1;
        self.strike_if_due()?;
        self.come_back()?;
        match self.dice.below(100) {
            0..6 => self.pass_time(),
            6..14 => {
                let node = self.dice.below(self.nodes.len());
                if self.is_here(node) {
                    self.nodes[node].tend()?;
                }
            }
            _ => {
                let store_first = self.dice.chance(40);
                let done = store_first && self.store.step() || self.step_any()? || !store_first && self.store.step();
                self.dull = if done { 0 } else { self.dull + 1 };
                if !done {
                    self.pass_time();
                }
            }
        }
        if self.log.is_writing() {
            self.note_standings();
        }
        if self.plan.blurred {
            self.note_lives();
        }
        self.check()
    }

    fn note_standings(&mut self) {
        for node in &mut self.nodes {
            if let Some(standing) = node.new_standing() {
                self.log.note(|| format!("node {} is {standing}", node.index));
            }
        }
    }

    /// A step of any node that can take one.
    fn step_any(&mut self) -> Result<bool, String> {
        let first = self.dice.below(self.nodes.len());
        for node in (first..self.nodes.len()).chain(0..first) {
            if self.step_node(node)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// A step of a node, if it can take one.
    fn step_node(&mut self, node: usize) -> Result<bool, String> {
        if !self.is_here(node) {
            return Ok(false);
        }
        let asks = self.asked < self.plan.acts && self.now >= self.quiet_until;
        match self.nodes[node].step(&self.plan, asks) {
            Stepped::Idle => return Ok(false),
            Stepped::Done => {}
            Stepped::Free(worker) => {
                self.asked += 1;
                let act = self.draw();
                self.ask(node, worker, act);
            }
            Stepped::Answered(asked, answer) => self.answered(asked, &answer)?,
        }
        Ok(true)
    }

    /// Something new, or a token that was sent before, to any node, as after a timeout.
    fn draw(&mut self) -> Act {
        if !self.dice.chance(TOKEN_PERCENT) {
            return Act::draw(&self.dice, self.plan.expiry_millis_max);
        }
        if !self.tokens.is_empty() && self.dice.chance(60) {
            let last = self.tokens.len() - 1;
            return self.tokens[last - self.dice.below(self.tokens.len().min(TOKENS_AGAIN))];
        }
        let act = Act::draw_once(&self.dice, self.tokens.len() as u64);
        self.tokens.push(act);
        act
    }

    fn ask(&mut self, node: usize, worker: usize, act: Act) {
        self.tally.acts += 1;
        self.log.note(|| format!("node {node}: {act:?} is asked"));
        let taken = self.store.truth(|truth| truth.taken(act.counter));
        let (asked, adds) = self.judge.ask(node, act, taken, (self.log.stamp(), self.weather()));
        self.store.truth(|truth| truth.invoked(act.counter, i128::from(adds)));
        self.nodes[node].give(worker, asked, act);
    }

    fn answered(&mut self, asked: Asked, answer: &Answer) -> Result<(), String> {
        self.log.note(|| format!("node {}: {:?} is answered {:?}", asked.node, asked.act, answer.reply));
        self.tally.answered += 1;
        self.tally.refused += u64::from(matches!(answer.reply, Some(Reply::Refused(_))));
        self.answers.extend(answer.reply.clone().map(|reply| (asked, reply)));
        let refused = self.judge.answer(asked, answer, (self.log.stamp(), self.weather()))?;
        self.store.truth(|truth| truth.invoked(asked.act.counter, -i128::from(refused)));
        Ok(())
    }

    fn weather(&self) -> Weather {
        let sharing = &self.plan.sharing;
        // Settling looks around at its own pace, and a put under way has to end before the next.
        let leaps = Duration::from_millis(2 * (self.plan.stride_millis << DULL_MAX) as u64);
        let lag = 2 * sharing.settle_every + sharing.freshness + LAG_MARGIN + leaps;
        Weather { now: self.now, clear_since: self.clear_since, fair_since: self.fair_since, lag }
    }

    /// What a store loses of a life that is over, nobody puts again: a node that registers another life goes on as someone else, and takes over
    /// what the one before has said.
    fn note_lives(&mut self) {
        for node in 0..self.nodes.len() {
            let lives = self.store.truth(|truth| truth.lives_of(node));
            if lives != self.lives[node] {
                self.lives[node] = lives;
                self.judge.retired(node);
            }
        }
    }

    fn check(&self) -> Result<(), String> {
        if let Some(broken) = self.store.truth(|truth| truth.broken().map(str::to_owned)) {
            return Err(broken);
        }
        match self.nodes.iter().find(|node| node.has_failed()) {
            Some(node) => Err(format!("node {}: the journal failed", node.index)),
            None => Ok(()),
        }
    }

    /// Lets a little time pass, for everybody.
    fn pass_time(&mut self) {
        let quiet = self.now < self.quiet_until;
        let most = if quiet { QUIET_STRIDE_MILLIS } else { self.plan.stride_millis << self.dull.min(DULL_MAX) };
        self.pass(Duration::from_millis(1 + self.dice.below(most) as u64));
    }

    fn pass(&mut self, by: Duration) {
        self.now += by;
        let answers = self.store.answers();
        let here = (0..self.nodes.len()).all(|node| self.is_here(node));
        if !answers || !here || self.plan.store_percent > 0 {
            self.clear_since = self.now;
        }
        if !answers {
            self.fair_since = self.now + self.recovery();
        }
        self.fair_since = self.fair_since.max(self.clear_since);
        for node in 0..self.nodes.len() {
            let (last, longest) = self.reach[node];
            let last = if answers && self.is_here(node) { self.now } else { last };
            self.reach[node] = (last, longest.max(self.now - last));
        }
        self.store_clock.advance(by);
        for node in &self.nodes {
            // No two clocks run alike.
            let parts = 995 + (node.index as u32 * 7) % 11;
            node.clock.advance(by * parts / 1_000);
        }
        self.store.age();
    }

    /// What nodes need after the store was down or slow: a call from before is waited for as long as its round may take, after an error the store is
    /// not asked for a while, and whose lease has run out meanwhile puts nothing before it is renewed.
    fn recovery(&self) -> Duration {
        let sharing = &self.plan.sharing;
        let round = sharing.swap_wait.max(sharing.lease / 2);
        round + BACKOFF_MAX + sharing.lease / 5
    }

    fn is_here(&self, node: usize) -> bool {
        self.away_until[node] <= self.now && self.nodes[node].up.is_some() && !self.stranded[node]
    }

    /// Nodes whose time has come start again.
    fn come_back(&mut self) -> Result<(), String> {
        for node in 0..self.nodes.len() {
            if self.nodes[node].up.is_none() && self.away_until[node] <= self.now && !self.stranded[node] {
                self.open(node)?;
            }
        }
        Ok(())
    }

    fn open(&mut self, node: usize) -> Result<(), String> {
        self.log.note(|| format!("node {node} starts"));
        self.nodes[node].open(&self.plan).map_err(|error| format!("node {node} does not start: {error}"))?;
        self.judge.opened(node);
        Ok(())
    }

    /// A machine more; a disk of a number that another has cannot be told from it.
    fn add_node(&mut self, disk: CrashDisk, copy: Option<u64>) -> usize {
        let index = self.nodes.len();
        let copy = copy.unwrap_or_else(|| self.new_disk());
        let apart = self.dice.between(-CLOCK_APART_MILLIS..=CLOCK_APART_MILLIS);
        let clock = SimClock::new(Millis(self.store_clock.wall().0.saturating_add_signed(apart)));
        let door = self.store.door(index);
        self.nodes.push(Node::new(index, clock, disk, copy, self.dice.fork(), door));
        self.away_until.push(self.now);
        self.lives.push(0);
        self.reach.push((self.now, Duration::ZERO));
        self.stranded.push(false);
        index
    }

    fn new_disk(&mut self) -> u64 {
        self.disks += 1;
        self.disks
    }
}
