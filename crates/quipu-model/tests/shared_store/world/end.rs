//! Ends a run: faults stop, all nodes and clients settle, and the sums are checked, also in
//! between.

use std::collections::HashMap;

use quipu_model::shared::{CellId, FetchedRow, read};

use super::World;
use crate::account::Account;
use crate::client::Client;
use crate::node::{Need, Node, NodeIncarnation};

/// Rounds without faults after which everybody must have settled: a few answers per life, and a
/// life per retirement.
const ROUNDS: usize = 60;

impl World {
    /// Faults stop: what is under way arrives, everybody asks until they know, and the books are
    /// closed.
    pub(super) fn settle(&mut self) {
        self.write_line(format_args!("faults stop"));
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
                self.compare_all(node);
                for incarnation in (0..self.nodes[node].incarnations.len()).rev() {
                    self.settle_incarnation(node, incarnation);
                }
            }
            let busy = self.clients.iter().any(|client| !matches!(client, Client::Idle));
            if self.broken.is_some() || !busy && self.nodes.iter().all(Node::is_settled) {
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
                if let Some(sent) = self.repeated_swap(client) {
                    self.swap(&sent);
                }
                match self.clients[client].check_attempt(&self.row.clone().unwrap_or_default()) {
                    Ok(attempt_result) => self.on_attempt_result(client, attempt_result),
                    Err(violation) => self.broken = Some(violation),
                }
            }
        }
    }

    pub(super) fn settle_incarnation(&mut self, node: usize, incarnation: usize) {
        if self.nodes[node].incarnations.get(incarnation).is_none_or(|incarnation| incarnation.settled) {
            return;
        }
        if let Some(sent_put) = self.nodes[node].put(incarnation, &mut self.account) {
            let verdict = self.put(&sent_put);
            self.write_line(format_args!("node {node} settles {sent_put:?}: {verdict:?}"));
            let need = self.nodes[node].on_verdict(&sent_put, &verdict, &mut self.account);
            match need {
                Ok(Need::Late) => {
                    if let Some(sent) = self.late_swap(node, sent_put.cell) {
                        self.swap(&sent);
                    }
                }
                need => self.apply_need(node, sent_put.cell, need),
            }
        }
    }

    pub(super) fn judge_end(&mut self) -> Result<(), String> {
        if !self.nodes.iter().all(Node::is_settled) {
            return Err("somebody never settled".to_owned());
        }
        for node in &self.nodes {
            node.incarnations.iter().for_each(|incarnation| self.account.record_end(node.machine, incarnation));
        }
        self.account.check_settled()?;
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
            let own: Vec<_> = node
                .incarnations
                .iter()
                .map(|incarnation| (incarnation.cell, incarnation.seq, incarnation.own))
                .collect();
            let current = FetchedRow { snapshot: row.clone(), at: self.now };
            match read(&current, self.now, &own) {
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
        let mut incarnations: HashMap<CellId, &NodeIncarnation> = HashMap::new();
        for incarnation in self.nodes.iter().flat_map(|node| &node.incarnations) {
            let known = incarnations.entry(incarnation.cell).or_insert(incarnation);
            *known = if incarnation.seq > known.seq { incarnation } else { known };
        }
        let own: Vec<_> =
            incarnations.values().map(|incarnation| (incarnation.cell, incarnation.seq, incarnation.own)).collect();
        let due = self.account.due_with(incarnations.into_values());
        let current = FetchedRow { snapshot: self.row.clone().unwrap_or_default(), at: self.now };
        match read(&current, self.now, &own) {
            total if total.behind || total.sum == due => {}
            other => {
                self.broken = Some(format!("after this step {other:?}, and it should come to {due}"));
            }
        }
    }
}
