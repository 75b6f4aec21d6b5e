//! World of a run: one store, three nodes, two clients, and an unreliable network.

mod end;
mod swaps;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::time::Duration;

use quipu_model::shared::put::put;
use quipu_model::shared::{CellId, Change, FetchedRow, Put, RowVersion, Snapshot, Verdict};
use quipu_model::{Epoch, Millis, Writer};

use crate::account::Account;
use crate::client::Client;
use crate::node::{Need, Node};
use crate::rng::SeededRng;

const NODES: usize = 3;
/// With those that are there twice.
const NODES_MAX: usize = 6;
const CLIENTS: usize = 2;
/// Enough that a counter is swapped several times while a slow put is under way.
const STEPS: usize = 140;

/// A cell is settled within this many looks at the row: it moves, a lapse is decided, the cell is
/// settled, and known to be.
const LOOKS_MAX: usize = 6;

/// Longest step of the clock, in milliseconds: a few of them are a short grace.
const STRIDE: u64 = 20;

#[derive(Clone, Copy)]
pub struct Faults {
    pub retire: bool,
    pub expire: bool,
    pub short_grace: bool,
    pub copies: bool,  // a node is there twice: whoever starts goes on for the lives before
    pub restore: bool, // a node goes back to an older copy of itself, or that is there beside it
}

enum Message {
    Put(usize, Put),
    PutVerdict(usize, Put, Verdict),
    Swap(Box<SwapInFlight>),
}

/// A swap under way, with what it was computed from: the account's, not the store's.
#[derive(Clone)]
struct SwapInFlight {
    version: RowVersion,
    next: Snapshot,
    seen: FetchedRow,
    change: Change,
}

pub struct World {
    rng: SeededRng,
    faults: Faults,
    grace: Duration,
    now: Millis,
    row: Option<Snapshot>,
    nodes: Vec<Node>,
    backups: Vec<Option<Node>>,         // of each
    registry: BTreeMap<Writer, Millis>, // when somebody was last there to write
    clients: Vec<Client>,
    network: Vec<(Millis, Message)>,
    swap_ids: u128,
    pub account: Account,
    log: String,
    writing: bool,
    broken: Option<String>,
}

impl World {
    pub fn run(seed: u64, faults: Faults, writing: bool) -> World {
        // The short one is over once or twice in a run, the long one never.
        let grace = Duration::from_millis(if faults.short_grace { 100 } else { 1_000_000 });
        let mut account = Account::default();
        let nodes: Vec<Node> = (0..NODES).map(|machine| Node::new(machine, &mut account)).collect();
        let mut world = World {
            rng: SeededRng::new(seed),
            faults,
            grace,
            now: Millis(1),
            row: None,
            backups: nodes.iter().map(|_| None).collect(),
            nodes,
            registry: BTreeMap::new(),
            clients: (0..CLIENTS).map(|_| Client::default()).collect(),
            network: Vec::new(),
            swap_ids: 0,
            account,
            log: String::new(),
            writing,
            broken: None,
        };
        for _ in 0..STEPS {
            world.step();
            if world.broken.is_some() {
                return world;
            }
        }
        world.settle();
        world
    }

    pub fn verdict(&self) -> Result<(), String> {
        match &self.broken {
            Some(violation) => Err(violation.clone()),
            None => Ok(()),
        }
    }

    /// What happened, if it was written down.
    pub fn log(&self) -> &str {
        &self.log
    }

    fn step(&mut self) {
        let node = self.rng.below(self.nodes.len());
        match self.rng.below(100) {
            0..=17 => self.add(node),
            18..=31 => self.send_put(node),
            32..=58 => self.deliver(),
            59..=81 => self.act_as_client(),
            82..=85 => self.compare_all(node),
            86..=87 => self.crash(node),
            88..=89 => self.lose_message(),
            90..=91 if self.faults.restore => self.restore(node),
            92..=94 if self.faults.restore => self.backups[node] = Some(self.nodes[node].clone()),
            _ => self.pass_time(),
        }
        self.check_between();
    }

    fn add(&mut self, node: usize) {
        let delta = self.rng.below(9) as i64 - 2;
        self.write_line(format_args!("node {node} adds {delta}"));
        // Nodes' ideas of the store's clock are a little ahead of it, each by its own.
        let now = Millis(self.now.0 + node as u64 * 8);
        self.nodes[node].add(delta, now);
    }

    fn send_put(&mut self, node: usize) {
        let incarnation = self.rng.below(self.nodes[node].incarnations.len());
        if let Some(put) = self.nodes[node].put(incarnation, &mut self.account) {
            self.write_line(format_args!("node {node} sends {put:?}"));
            self.network.push((self.now, Message::Put(node, put)));
        }
    }

    /// Any message arrives, once or, staying under way, once more.
    fn deliver(&mut self) {
        if self.network.is_empty() {
            return;
        }
        // Often in order, or no swap would ever meet the row that it was computed from.
        let last = self.network.len() - 1;
        let at = if self.rng.chance(35) { last } else { self.rng.below(last + 1) };
        let (sent, message) = self.network.swap_remove(at);
        let again = self.rng.chance(15);
        match &message {
            Message::Put(node, sent_put) => {
                let verdict = self.put(sent_put);
                self.write_line(format_args!("{sent_put:?} arrives: {verdict:?}"));
                let reply = Message::PutVerdict(*node, *sent_put, verdict);
                self.network.push((self.now, reply));
            }
            Message::PutVerdict(node, put, verdict) => {
                let result = self.nodes[*node].on_verdict(put, verdict, &mut self.account);
                self.write_line(format_args!("node {node} hears of {put:?}: {verdict:?}"));
                self.apply_need(*node, put.cell, result);
            }
            Message::Swap(sent) => self.swap(sent),
        }
        if again {
            self.network.push((sent, message));
        }
    }

    /// A put arrives at the store.
    fn put(&mut self, sent_put: &Put) -> Verdict {
        let verdict = put(&mut self.row, sent_put, self.now);
        let current = self.row.as_ref().map_or(Ok(()), |row| self.account.record_row(row));
        self.broken = self.broken.take().or(current.err());
        verdict
    }

    fn lose_message(&mut self) {
        if !self.network.is_empty() {
            let at = self.rng.below(self.network.len());
            self.network.swap_remove(at);
        }
    }

    fn crash(&mut self, node: usize) {
        if self.draw_copy() {
            self.add_copy(node, self.nodes[node].clone());
            if self.rng.chance(50) {
                return; // and it never crashed: somebody else holds its present life to be over
            }
        }
        self.write_line(format_args!("node {node} crashes"));
        self.start_incarnation(node);
    }

    fn draw_copy(&mut self) -> bool {
        self.faults.copies && self.nodes.len() < NODES_MAX && self.rng.chance(50)
    }

    /// What a node is or was is there once more, with its backup.
    fn add_copy(&mut self, original: usize, node: Node) {
        let machine = self.nodes.len();
        self.write_line(format_args!("node {original} is there once more, as node {machine}"));
        self.account.copies += 1;
        self.nodes.push(Node { machine, ..node });
        self.backups.push(self.backups[original].clone());
        self.start_incarnation(machine);
    }

    /// A node goes back to an older copy of itself: what it said since may have arrived or be under
    /// way, what it did not say is lost. Or the copy starts beside it.
    fn restore(&mut self, node: usize) {
        let registered = self.registered();
        let known =
            |node: &Node| node.incarnations.iter().all(|incarnation| registered.contains(&incarnation.cell.writer));
        let Some(backup) = self.backups[node].clone().filter(known) else { return };
        self.account.restored += 1;
        if self.draw_copy() {
            return self.add_copy(node, backup);
        }
        self.write_line(format_args!("node {node} is restored"));
        self.nodes[node] = Node { machine: node, ..backup };
        self.account.record_restore(node, &self.nodes[node].incarnations);
        self.start_incarnation(node);
    }

    /// A node starts: as a new life, and those before are over.
    fn start_incarnation(&mut self, node: usize) {
        let known = self.nodes[node].present().own;
        let epoch = if known.pending_expiry.is_none() && self.rng.chance(70) { known.epoch } else { Epoch::FIRST };
        self.nodes[node].begin_incarnation(epoch, &mut self.account);
        self.network.retain(|(_, message)| !matches!(message, Message::PutVerdict(result, ..) if *result == node));
    }

    /// A node compares its lives with the row.
    fn compare_all(&mut self, node: usize) {
        let cells: Vec<_> = self.nodes[node].incarnations.iter().map(|incarnation| incarnation.cell).collect();
        cells.into_iter().for_each(|cell| self.compare(node, cell));
        self.nodes[node].remove_settled(&mut self.account);
    }

    fn compare(&mut self, node: usize, cell: CellId) {
        for _ in 0..LOOKS_MAX {
            let at = self.nodes[node].incarnations.iter().position(|incarnation| incarnation.cell == cell);
            let (Some(row), Some(at), None) = (self.row.clone(), at, &self.broken) else { return };
            self.write_line(format_args!("node {node} compares {cell:?}"));
            match self.nodes[node].on_row(at, &row, self.now, &mut self.account) {
                Ok(Need::Reread) => {}
                Ok(Need::Move(epoch)) => self.move_row(node, epoch),
                Ok(Need::Late) => return self.apply_need(node, cell, Ok(Need::Late)),
                Ok(Need::Nothing) => return,
                Err(violation) => self.broken = Some(violation),
            }
        }
        self.broken = Some(format!("node {node} is told to settle {cell:?} again and again"));
    }

    fn pass_time(&mut self) {
        self.registered();
        // Now and then nobody is there for so long that all who left before are forgotten.
        let long = self.faults.short_grace && self.rng.chance(10);
        let stride = if long { self.grace.as_millis() as u64 } else { STRIDE };
        self.now.0 += 1 + self.rng.below(stride as usize) as u64;
        let Some(before) = self.now.0.checked_sub(self.grace.as_millis() as u64 / 2 - STRIDE).map(Millis) else {
            return;
        };
        // What the protocol takes for granted: nothing stays under way for longer.
        self.network.retain(|(sent, _)| *sent >= before);
        for client in 0..self.clients.len() {
            self.give_up_before(client, before);
        }
    }

    /// Whom the registry knows: who is there, and for `grace` who was, as if each went out at once
    /// by the steps that take as long. Nobody comes back after that.
    fn registered(&mut self) -> BTreeSet<Writer> {
        let there = self
            .nodes
            .iter()
            .flat_map(|node| &node.incarnations)
            .map(|incarnation| (incarnation.cell.writer, self.now));
        self.registry.extend(there);
        let (now, grace) = (self.now.0, self.grace.as_millis() as u64);
        self.registry.iter().filter(|(_, at)| at.0 + grace > now).map(|(writer, _)| *writer).collect()
    }

    fn write_line(&mut self, what: std::fmt::Arguments<'_>) {
        // Only a run that is asked for again is written down: see `log`.
        if self.writing {
            let _ = writeln!(self.log, "{:>4}  {what}", self.now);
        }
    }
}
