//! Winds a run down: faults stop, all nodes heal and settle, and the judge compares the totals.

use std::time::Duration;

use quipu_engine::Membership;
use quipu_model::{Refusal, Reply};

use super::Simulation;
use crate::act::{Act, Action};
use crate::counters::{COUNTERS, CounterForm, counter_name};
use crate::judge::{NodeEnd, SketchReading};
use crate::node::Node;
use crate::plan::Fault;

/// Most rounds without faults until all nodes have settled. Most runs need a twentieth.
const ROUNDS_MAX: usize = 4_000;

/// Time without a row change after which the nodes count as settled: a few of the longest delays
/// before a node puts or fetches.
const QUIET_TIME: Duration = Duration::from_secs(3);

/// Most rounds of comparing. A clone that waits for an incarnation which its original continues
/// never ends.
const COMPARE_ROUNDS: usize = 600;

/// Most times that a node may be fenced and healed during the wind-down.
const ENDS_MAX: usize = 5;

/// Most steps of a node in a round: about the work of its clients and background tasks between two
/// answers of the store.
const STEPS_PER_ROUND: usize = 60;

/// Simulated duration of a round.
const ROUND: Duration = Duration::from_millis(20);

impl Simulation {
    pub(super) fn wind_down(&mut self) -> Result<(), String> {
        self.log.write_line(|| "--- faults stop".to_owned());
        self.quiet_until = Duration::ZERO;
        self.store.stop_faults();
        self.away_until.fill(Duration::ZERO);
        self.settle("when faults have stopped")?;
        // Counters with an expiry expire.
        self.wait_for(Duration::from_millis(self.plan.expiry_millis_max.unsigned_abs()))?;
        if !self.plan.store_may_lose_data && self.plan.seed.is_multiple_of(2) {
            // A delta that is not settled by now must not be counted by a later event.
            self.wait_for(self.plan.sharing.freshness + Duration::from_millis(1))?;
            self.judge_totals()?;
        }
        // All nodes count on, and every node reads it.
        for (counter, known) in COUNTERS.iter().enumerate() {
            let what = if known.is_sketch() { Action::Observe(counter, 1) } else { Action::Add(1) };
            self.ask_nodes(&self.healthy_nodes(), Act { counter, what })?;
        }
        if self.plan.store_may_lose_data {
            // A comparison finds undetected losses of the store. Only they need one: a counter must
            // not wait for it.
            self.nodes.iter().for_each(|node| node.begin_audit());
        }
        self.settle("after everybody has counted on")?;
        self.wait_for(self.plan.sharing.freshness + Duration::from_millis(1))?;
        self.judge_totals()?;
        self.judge_sketch_items()
    }

    /// Runs until all nodes have compared everything once more, no client waits, and no row
    /// changes.
    fn settle(&mut self, when: &str) -> Result<(), String> {
        let mut compared = vec![false; self.nodes.len()];
        let (mut changes, mut changed_at) = (0, self.now);
        for round in 0..ROUNDS_MAX {
            self.run_round()?;
            for (node, compared) in self.nodes.iter().zip(&mut compared) {
                *compared |= round > COMPARE_ROUNDS || self.stranded[node.index] || node.has_compared();
            }
            let now = self.store.with_truth(|truth| truth.changes);
            if now != changes {
                (changes, changed_at) = (now, self.now);
            }
            let still = self.now - changed_at;
            let (whole, nodes) = (self.healthy_nodes(), &self.nodes);
            let calm = compared.iter().all(|compared| *compared) && whole.iter().all(|node| nodes[*node].is_quiet());
            // An ended process's lease must run out, and a node must renew once more to find its
            // successions.
            let settled = whole.iter().all(|node| nodes[*node].is_settled());
            if calm && settled && still >= QUIET_TIME + self.plan.sharing.lease * 3 / 2 {
                return Ok(());
            }
            if still > QUIET_TIME / 3 {
                self.pass(15 * ROUND);
            }
        }
        let described: Vec<_> = self.nodes.iter().map(Node::describe).collect();
        Err(format!("{when}, not all settle within {ROUNDS_MAX} rounds: {described:?}"))
    }

    /// Runs a round: every node does all its work, and the store answers every call.
    fn run_round(&mut self) -> Result<(), String> {
        self.restart_due_nodes()?;
        self.heal()?;
        for _ in 0..STEPS_PER_ROUND {
            self.log.tick();
            self.tally.steps += 1;
            let done = self.step_any()?;
            if !done || self.rng.chance(50) {
                let moved = self.store.step();
                if !done && !moved {
                    break;
                }
            }
        }
        while self.store.step() {}
        let node = self.rng.below(self.nodes.len());
        self.nodes[node].run_maintenance()?;
        self.nodes[node].seal()?;
        self.pass(ROUND);
        if self.plan.store_may_lose_data {
            self.follow_incarnations();
        }
        self.check_promises()
    }

    fn wait_for(&mut self, by: Duration) -> Result<(), String> {
        let until = self.now + by;
        while self.now < until {
            self.run_round()?;
            // Only time has to pass.
            self.pass(10 * ROUND);
        }
        Ok(())
    }

    /// Acts as the operator of a fenced node: it continues from a restored copy of its directory. A
    /// node that was away too long stays stranded.
    fn heal(&mut self) -> Result<(), String> {
        for node in 0..self.nodes.len() {
            let Some(Membership::Fenced { reason }) = self.nodes[node].membership() else { continue };
            self.log.write_line(|| format!("node {node} is fenced: {reason}"));
            self.tally.fenced += 1;
            let end = self.nodes[node].crash(false);
            self.judge.end_node(node, end);
            if reason.contains("adopt") {
                self.strand(node, &reason)?;
                continue;
            }
            let (image, disk_number) = (self.nodes[node].image(), self.next_disk_number());
            self.nodes[node].replace_disk(Some(image), disk_number);
        }
        Ok(())
    }

    /// Strands a node with unknown settled state; an error unless it was away long enough.
    fn strand(&mut self, node: usize, reason: &str) -> Result<(), String> {
        // No node acts for an incarnation after half of `grace` without renewal: a quarter away,
        // and a quarter to settle.
        let (_, longest) = self.store_reach[node];
        // A directory copy may be older than the store's memory of its incarnation.
        let copies = [Fault::DirectoryCloned, Fault::MachineCloned, Fault::DirectoryRestored];
        let copied = Fault::ALL.iter().zip(self.tally.faults).any(|(fault, count)| count > 0 && copies.contains(fault));
        let forgotten = copied && self.store.with_truth(|truth| truth.names_folded_writer(reason));
        if longest < self.plan.sharing.grace / 4 && !forgotten {
            return Err(format!("node {node} was out of reach for {longest:?} at most, and is fenced: {reason}"));
        }
        self.stranded[node] = true;
        self.judge.end_node(node, NodeEnd::Stranded);
        Ok(())
    }

    /// Sends the same act to several nodes and waits; a node that is fenced meanwhile gives no
    /// answer.
    fn ask_nodes(&mut self, nodes: &[usize], act: Act) -> Result<Vec<(usize, Reply)>, String> {
        for &node in nodes {
            if let Some(worker) = self.nodes[node].free_worker() {
                self.send_act(node, worker, act);
            }
        }
        self.answers.clear();
        for _ in 0..ROUNDS_MAX {
            self.run_round()?;
            if !nodes.iter().any(|node| self.nodes[*node].is_serving()) {
                let answers =
                    std::mem::take(&mut self.answers).into_iter().filter(|(requested, _)| requested.act == act);
                return Ok(answers.map(|(requested, reply)| (requested.node, reply)).collect());
            }
        }
        Err(format!("{act:?} is not answered by all of {nodes:?} within {ROUNDS_MAX} rounds of calm"))
    }

    /// Collects the final answers of all nodes. A node that is fenced meanwhile is healed and asked
    /// again, unless it is stranded.
    fn final_answers<T>(&mut self, act: Act, shows: impl Fn(&Reply) -> Option<T>) -> Result<Vec<(usize, T)>, String> {
        let mut shown = Vec::new();
        for _ in 0..ENDS_MAX {
            let missing = |node: &usize| !shown.iter().any(|(known, _)| known == node);
            let left: Vec<usize> = self.healthy_nodes().into_iter().filter(missing).collect();
            if left.is_empty() {
                return Ok(shown);
            }
            for (node, reply) in self.ask_nodes(&left, act)? {
                match (shows(&reply), reply) {
                    (Some(shows), _) => shown.push((node, shows)),
                    (None, Reply::Refused(Refusal::Fenced { .. })) => self.settle("after a fence")?,
                    (None, other) => return Err(format!("node {node}: in the end {act:?} is answered {other:?}")),
                }
            }
        }
        Err("somebody is fenced again and again".to_owned())
    }

    /// Nodes that can still count.
    fn healthy_nodes(&self) -> Vec<usize> {
        (0..self.nodes.len()).filter(|node| !self.stranded[*node]).collect()
    }

    fn judge_totals(&mut self) -> Result<(), String> {
        for (counter, known) in COUNTERS.iter().enumerate() {
            if known.is_sketch() {
                self.judge_sketch(counter, known.form)?;
                continue;
            }
            let value = |reply: &Reply| if let Reply::Value(value) = reply { Some(value.unwrap_or(0)) } else { None };
            let shown = self.final_answers(Act { counter, what: Action::Read }, value)?;
            let at = self.store.now();
            let (sum, row) = self
                .store
                .with_row(counter_name(counter), |row| (row.map_or(0, |row| row.as_of(at).sum()), row.cloned()));
            let judge = &self.judge;
            self.store.with_truth(|truth| {
                let counted = truth.counted(counter, row.as_ref());
                judge.judge_counter(truth, counter, counted, sum, &shown)
            })?;
        }
        self.check_promises()
    }

    fn judge_sketch(&mut self, counter: usize, form: CounterForm) -> Result<(), String> {
        let shows = |reply: &Reply| match reply {
            Reply::Refused(Refusal::NoSketch { .. }) => Some(SketchReading::nothing(form)),
            reply => SketchReading::from_reply(reply),
        };
        let shown = self.final_answers(Act { counter, what: Action::Estimate }, shows)?;
        let judge = &self.judge;
        self.store.with_truth(|truth| judge.judge_sketch(truth, counter, &shown))
    }

    /// Judges the items of sketches of uniques by observing items once more. Certain items must
    /// change nothing, and no item exists beyond the requested ones. Afterwards all items are
    /// there, so this comes last.
    fn judge_sketch_items(&mut self) -> Result<(), String> {
        for (counter, known) in COUNTERS.iter().enumerate() {
            let judge = &self.judge;
            let (certain, requested) = self.store.with_truth(|truth| judge.items(truth, counter));
            let changes = |reply: &Reply| if let Reply::Integer(changes) = reply { Some(*changes) } else { None };
            if matches!(known.form, CounterForm::Unique | CounterForm::Hll) && certain.iter().next().is_some() {
                for (node, changes) in
                    self.final_answers(Act { counter, what: Action::ObserveAll(certain) }, changes)?
                {
                    if changes != 0 {
                        return Err(format!("{}: in the end node {node} lacks some of {certain:?}", known.name));
                    }
                }
            }
            if known.form == CounterForm::Unique {
                self.final_answers(Act { counter, what: Action::ObserveAll(requested) }, changes)?;
                let most = SketchReading::Uniques(requested.iter().count() as i128);
                for (node, shows) in
                    self.final_answers(Act { counter, what: Action::Estimate }, SketchReading::from_reply)?
                {
                    if shows != most {
                        return Err(format!("{}: in the end node {node} has others than {requested:?}", known.name));
                    }
                }
            }
        }
        Ok(())
    }
}
