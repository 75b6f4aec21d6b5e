//! One store, three nodes, two clients, and a network that does what it likes.

mod end;
mod swaps;

use std::fmt::Write;
use std::time::Duration;

use quipu_model::shared::put::put;
use quipu_model::shared::{Change, Put, Seen, Snapshot, Verdict, Version};
use quipu_model::{Epoch, Millis};

use crate::account::Account;
use crate::client::Client;
use crate::dice::Dice;
use crate::node::Node;

const NODES: u64 = 3;
const CLIENTS: usize = 2;
/// Enough that a counter is swapped several times while a slow put is under way.
const STEPS: usize = 140;

/// Longest step of the clock, in milliseconds: a few of them are a short grace.
const STRIDE: u64 = 20;

#[derive(Clone, Copy)]
pub struct Faults {
    pub retire: bool,
    pub expire: bool,
    pub short_grace: bool,
}

enum Message {
    Put(usize, Put),
    Told(usize, Put, Verdict),
    Swap(Box<Sent>),
}

/// A swap under way, with what it was computed from: the account's, not the store's.
#[derive(Clone)]
struct Sent {
    version: Version,
    next: Snapshot,
    seen: Seen,
    change: Change,
}

pub struct World {
    dice: Dice,
    faults: Faults,
    grace: Duration,
    now: Millis,
    row: Option<Snapshot>,
    nodes: Vec<Node>,
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
        let mut world = World {
            dice: Dice::new(seed),
            faults,
            grace,
            now: Millis(1),
            row: None,
            nodes: (1..=NODES).map(Node::new).collect(),
            clients: (0..CLIENTS).map(|_| Client::default()).collect(),
            network: Vec::new(),
            swap_ids: 0,
            account: Account::default(),
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
        let node = self.dice.below(self.nodes.len());
        match self.dice.below(100) {
            0..=17 => self.add(node),
            18..=31 => self.send_put(node),
            32..=58 => self.deliver(),
            59..=81 => self.act_as_client(),
            82..=85 => self.hear(node, None),
            86..=87 => self.crash(node),
            88..=89 => self.lose(),
            _ => self.pass_time(),
        }
        self.check_between();
    }

    fn add(&mut self, node: usize) {
        let delta = self.dice.below(9) as i64 - 2;
        self.note(format_args!("node {node} adds {delta}"));
        self.account.added += i128::from(delta);
        // Nodes' ideas of the store's clock are a little ahead of it, each by its own.
        let now = Millis(self.now.0 + node as u64 * 8);
        self.nodes[node].add(delta, now);
    }

    fn send_put(&mut self, node: usize) {
        let life = self.dice.below(self.nodes[node].lives.len());
        // Sometimes the very same put as before, as after a timeout.
        let again = self.nodes[node].lives[life].put.filter(|_| self.dice.chance(25));
        if let Some(put) = again.or_else(|| self.nodes[node].say(life)) {
            self.note(format_args!("node {node} sends {put:?}"));
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
        let at = if self.dice.chance(35) { last } else { self.dice.below(last + 1) };
        let (sent, message) = self.network.swap_remove(at);
        let again = self.dice.chance(15);
        match &message {
            Message::Put(node, asked) => {
                let verdict = put(&mut self.row, asked, self.now);
                self.note(format_args!("{asked:?} arrives: {verdict:?}"));
                let reply = Message::Told(*node, *asked, verdict);
                self.network.push((self.now, reply));
            }
            Message::Told(node, put, verdict) => {
                let told = self.nodes[*node].told(put, verdict, &mut self.account);
                self.note(format_args!("node {node} hears of {put:?}: {verdict:?}"));
                self.moved_on(*node, told);
            }
            Message::Swap(sent) => self.swap(sent),
        }
        if again {
            self.network.push((sent, message));
        }
    }

    fn lose(&mut self) {
        if !self.network.is_empty() {
            let at = self.dice.below(self.network.len());
            self.network.swap_remove(at);
        }
    }

    fn crash(&mut self, node: usize) {
        self.note(format_args!("node {node} crashes"));
        let known = self.nodes[node].present().own;
        let epoch = if known.lapsed.is_none() && self.dice.chance(70) { known.epoch } else { Epoch::FIRST };
        let now = self.now;
        self.nodes[node].begin(epoch, now);
        self.network.retain(|(_, message)| !matches!(message, Message::Told(told, ..) if *told == node));
    }

    /// A node compares its lives with the row, and has compared them once the row could tell.
    fn hear(&mut self, node: usize, only_before: Option<Millis>) {
        let cells: Vec<_> = self.nodes[node].lives.iter().map(|life| (life.cell, life.heard_at)).collect();
        for (cell, heard_at) in cells {
            if only_before.is_some_and(|before| heard_at >= before) {
                continue;
            }
            while let Some(row) = self.row.clone()
                && let Some(at) = self.nodes[node].lives.iter().position(|life| life.cell == cell)
            {
                self.note(format_args!("node {node} compares {cell:?}"));
                match self.nodes[node].shown(at, &row, self.now, &mut self.account) {
                    Ok(Some(epoch)) => self.move_row(node, epoch),
                    Ok(None) => {
                        self.nodes[node].heard(cell, self.now);
                        break;
                    }
                    Err(violation) => {
                        self.broken = Some(violation);
                        return;
                    }
                }
            }
        }
        self.nodes[node].bury();
    }

    fn pass_time(&mut self) {
        self.now.0 += 1 + self.dice.below(STRIDE as usize) as u64;
        // What the protocol takes for granted: nothing is under way, and nobody unheard, for as long as half of grace.
        let Some(before) = self.now.0.checked_sub(self.grace.as_millis() as u64 / 2 - STRIDE).map(Millis) else {
            return;
        };
        self.network.retain(|(sent, _)| *sent >= before);
        for client in 0..self.clients.len() {
            self.give_up_before(client, before);
        }
        for node in 0..self.nodes.len() {
            self.hear(node, Some(before));
        }
    }

    fn note(&mut self, what: std::fmt::Arguments<'_>) {
        // Only a run that is asked for again is written down: see `log`.
        if self.writing {
            let _ = writeln!(self.log, "{:>4}  {what}", self.now);
        }
    }
}
