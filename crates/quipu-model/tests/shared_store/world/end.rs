//! The end of a run: faults stop, everybody settles, and the books are closed. And the books in between.

use std::collections::HashMap;

use quipu_model::shared::{CellId, Seen, read};

use super::World;
use crate::account::Account;
use crate::client::Client;
use crate::node::{Life, Need, Node};

/// Rounds without faults after which everybody must have settled: a few answers per life, and a life per retirement.
const ROUNDS: usize = 60;

impl World {
    /// Faults stop: what is under way arrives, everybody asks until they know, and the books are closed.
    pub(super) fn settle(&mut self) {
        self.note(format_args!("faults stop"));
        let until = self.now.0 + 80;
        while self.now.0 < until {
            self.pass_time();
        }
        while !self.network.is_empty() && self.broken.is_none() {
            self.deliver();
        }
        for _ in 0..ROUNDS {
            for client in 0..self.clients.len() {
                self.settle_client(client);
            }
            for node in 0..self.nodes.len() {
                self.hear(node);
                for life in (0..self.nodes[node].lives.len()).rev() {
                    self.settle_life(node, life);
                }
            }
            let busy = self.clients.iter().any(|client| !matches!(client, Client::Idle));
            if self.broken.is_some() || !busy && self.nodes.iter().all(Node::settled) {
                break;
            }
        }
        if self.broken.is_none() {
            self.broken = self.judge_end().err();
        }
    }

    pub(super) fn settle_client(&mut self, client: usize) {
        match &self.clients[client] {
            Client::Idle => {}
            Client::Read { .. } => self.send_swap(client),
            Client::Sent { .. } => {
                if let Some(sent) = self.again(client) {
                    self.swap(&sent);
                }
                match self.clients[client].look(&self.row.clone().unwrap_or_default()) {
                    Ok(found) => self.found(client, found),
                    Err(violation) => self.broken = Some(violation),
                }
            }
        }
    }

    pub(super) fn settle_life(&mut self, node: usize, life: usize) {
        if self.nodes[node].lives.get(life).is_none_or(|life| life.settled) {
            return;
        }
        if let Some(asked) = self.nodes[node].put(life, &mut self.account) {
            let verdict = self.put(&asked);
            self.note(format_args!("node {node} settles {asked:?}: {verdict:?}"));
            let told = self.nodes[node].told(&asked, &verdict, &mut self.account);
            match told {
                Ok(Need::Late) => {
                    if let Some(sent) = self.late(node, asked.cell) {
                        self.swap(&sent);
                    }
                }
                told => self.go_on(node, asked.cell, told),
            }
        }
    }

    pub(super) fn judge_end(&mut self) -> Result<(), String> {
        if !self.nodes.iter().all(Node::settled) {
            return Err("somebody never settled".to_owned());
        }
        for node in &self.nodes {
            node.lives.iter().for_each(|life| self.account.over(node.machine, life));
        }
        self.account.settled()?;
        let Account { set, taken, returned, expired, .. } = self.account;
        if returned != taken {
            return Err(format!("swaps took {taken} and returned {returned}"));
        }
        let row = self.row.clone().unwrap_or_default();
        let sum = row.as_of(self.now).sum();
        if sum != self.account.due() {
            return Err(format!(
                "set {set}, returned {returned}, expired {expired}: not {sum}, but {}",
                self.account.due()
            ));
        }
        for node in &self.nodes {
            let own: Vec<_> = node.lives.iter().map(|life| (life.cell, life.seq, life.own)).collect();
            let seen = Seen { snapshot: row.clone(), at: self.now };
            match read(&seen, self.now, &own) {
                total if total.behind || total.sum == sum => {}
                other => return Err(format!("the sum is {sum}, and node {} reads {other:?}", node.id)),
            }
        }
        Ok(())
    }

    /// While nothing expires, the row and what the writers owe make up the sum at every step.
    pub(super) fn check_between(&mut self) {
        if self.faults.expire || self.broken.is_some() {
            return;
        }
        // Of those who go on for one life, the one who knows most of it.
        let mut lives: HashMap<CellId, &Life> = HashMap::new();
        for life in self.nodes.iter().flat_map(|node| &node.lives) {
            let known = lives.entry(life.cell).or_insert(life);
            *known = if life.seq > known.seq { life } else { known };
        }
        let own: Vec<_> = lives.values().map(|life| (life.cell, life.seq, life.own)).collect();
        let due = self.account.due_with(lives.into_values());
        let seen = Seen { snapshot: self.row.clone().unwrap_or_default(), at: self.now };
        match read(&seen, self.now, &own) {
            total if total.behind || total.sum == due => {}
            other => {
                self.broken = Some(format!("after this step {other:?}, and it should come to {due}"));
            }
        }
    }
}
