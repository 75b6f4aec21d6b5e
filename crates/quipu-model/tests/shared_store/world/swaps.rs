//! Steps of the clients: read, compute, send, determine the outcome; and the effect of an arriving
//! swap.

use quipu_model::shared::put::{judge, put};
use quipu_model::shared::{
    CellId, Change, FetchedRow, FinalCell, NextRow, OwnValue, RowVersion, SwapAttempt, SwapContext, SwapId,
    SwapOutcome, Verdict, plan_swap,
};
use quipu_model::{Epoch, Expiry, ExpiryCondition, ExpiryTime, Millis, NodeId, Reply, SetExpiry, Writer};

use super::{Message, SwapInFlight, World};
use crate::client::{AttemptResult, Client, returned};
use crate::node::Need;

impl World {
    pub(super) fn act_as_client(&mut self) {
        let at = self.rng.below(self.clients.len());
        let row = self.row.clone().unwrap_or_default();
        match &self.clients[at] {
            Client::Idle => {
                let change = self.any_change();
                self.read_for(at, change);
                // Often nothing happens between a read and its swap; the rest of the time anything
                // may.
                if self.rng.chance(50) {
                    self.send_swap(at);
                }
            }
            Client::Read { .. } => self.send_swap(at),
            Client::Sent { .. } => match self.clients[at].check_attempt(&row) {
                Ok(attempt_result) => self.on_attempt_result(at, attempt_result),
                Err(violation) => self.broken = Some(violation),
            },
        }
    }

    /// A client that has been at it for too long begins anew: what it sent is no longer under way.
    pub(super) fn give_up_before(&mut self, client: usize, before: Millis) {
        let row = self.row.clone().unwrap_or_default();
        match &self.clients[client] {
            Client::Read { seen: current, change, .. } if current.at < before => self.read_for(client, *change),
            Client::Sent { seen: current, change, attempt, .. } if current.at < before => match attempt.outcome(&row) {
                SwapOutcome::Pending => self.read_for(client, *change),
                _ => match self.clients[client].check_attempt(&row) {
                    Ok(attempt_result) => self.on_attempt_result(client, attempt_result),
                    Err(violation) => self.broken = Some(violation),
                },
            },
            _ => {}
        }
    }

    /// Somebody who may be retired: of the row's cells, the closed ones first, or of the nodes'
    /// lives.
    pub(super) fn any_writer(&mut self) -> Writer {
        let cells = self.row.iter().flat_map(|row| &row.cells);
        let closed = cells.clone().filter(|(_, row_cell)| row_cell.closed).map(|(id, _)| id.writer).next();
        let incarnations =
            self.nodes.iter().flat_map(|node| &node.incarnations).map(|incarnation| incarnation.cell.writer);
        let any: Vec<Writer> = cells.map(|(id, _)| id.writer).chain(incarnations).collect();
        let at = self.rng.below(any.len());
        closed.filter(|_| self.rng.chance(60)).unwrap_or(any[at])
    }

    pub(super) fn any_change(&mut self) -> Change {
        let writer = self.any_writer();
        match self.rng.below(100) {
            0..=24 if self.faults.retire => Change::Close(writer),
            25..=49 if self.faults.retire => Change::Fold(writer),
            50..=69 if self.faults.expire => {
                let when = ExpiryTime::In(self.rng.below(60) as i64);
                Change::Expire { when, condition: ExpiryCondition::Always }
            }
            70..=73 if self.faults.expire => Change::Persist,
            74..=77 if self.faults.expire => Change::ReadAndExpire(Expiry::Remove),
            78..=82 => Change::Take,
            83..=86 => Change::Lapse,
            87..=89 => Change::Forget,
            90..=93 => {
                let value = self.rng.below(50) as i64;
                Change::Set { value, expiry: SetExpiry::Keep, reply_old: true }
            }
            _ => Change::Reset,
        }
    }

    pub(super) fn read_for(&mut self, client: usize, change: Change) {
        let snapshot = self.row.clone().unwrap_or_default();
        let version = snapshot.version;
        let mut current = FetchedRow { snapshot, at: self.now };
        // A node may lay its own newest cell into the row it computes from: then that is taken too.
        if self.rng.chance(30) && current.snapshot.version != RowVersion::ABSENT {
            let node = self.rng.below(self.nodes.len());
            let incarnation = self.nodes[node].incarnations.len() - 1;
            if let Some(own) = self.nodes[node].put(incarnation, &mut self.account)
                && judge(&current.snapshot, &own, self.now) == Verdict::Newest
            {
                let mut row = Some(current.snapshot);
                put(&mut row, &own, self.now);
                current.snapshot = row.unwrap_or_default();
            }
        }
        self.write_line(format_args!("client {client} reads for {change:?}"));
        self.clients[client] = Client::Read { change, seen: current, version };
    }

    pub(super) fn send_swap(&mut self, client: usize) {
        let Client::Read { change, seen: current, version } = std::mem::take(&mut self.clients[client]) else { return };
        self.swap_ids += 1;
        let (registered, node) = (self.registered(), NodeId(100 + client as u64));
        let by = SwapContext { id: SwapId(self.swap_ids), node, grace: self.grace, registered: &registered };
        let computed = plan_swap(&current, &by, &change).expect("values are small and times near");
        match &computed.next {
            NextRow::Unchanged => self.finish(client, &change, &computed.reply),
            // Carried out at once, and not while a put is under way that was told what the row
            // knows: see "How it fails" in the design.
            NextRow::Removed => {
                let under_way = self.network.iter().any(|(_, message)| matches!(message, Message::Put(..)));
                if !under_way && self.row.as_ref().is_some_and(|row| row.version == version) {
                    self.write_line(format_args!("the row is forgotten"));
                    self.account.forgotten += 1;
                    self.row = None;
                }
            }
            NextRow::Row(next) => {
                self.write_line(format_args!("client {client} sends swap {} for {change:?}", by.id.0));
                let sent = SwapInFlight { version, next: next.clone(), seen: current.clone(), change };
                self.network.push((sent.seen.at, Message::Swap(Box::new(sent))));
                let attempt = SwapAttempt { version, id: by.id };
                self.clients[client] = Client::Sent { change, seen: current, attempt, computed: Box::new(computed) };
            }
        }
    }

    pub(super) fn on_attempt_result(&mut self, client: usize, attempt_result: Option<AttemptResult>) {
        match attempt_result {
            Some(AttemptResult::Done(reply)) => {
                if let Client::Sent { change, .. } = std::mem::take(&mut self.clients[client]) {
                    self.finish(client, &change, &reply);
                }
            }
            Some(AttemptResult::Anew(change)) => self.read_for(client, change),
            Some(AttemptResult::Again) | None => {
                self.network.extend(self.repeated_swap(client).map(|sent| (sent.seen.at, Message::Swap(sent))));
            }
        }
    }

    /// The very swap that a client sent before.
    pub(super) fn repeated_swap(&self, client: usize) -> Option<Box<SwapInFlight>> {
        let Client::Sent { change, seen: current, attempt, computed } = &self.clients[client] else { return None };
        let NextRow::Row(next) = &computed.next else { return None };
        Some(Box::new(SwapInFlight {
            version: attempt.version,
            next: next.clone(),
            seen: current.clone(),
            change: *change,
        }))
    }

    pub(super) fn finish(&mut self, client: usize, change: &Change, reply: &Reply) {
        self.write_line(format_args!("client {client}: {change:?} returned {reply:?}"));
        self.account.returned += returned(change, reply);
    }

    /// A swap arrives at the store.
    pub(super) fn swap(&mut self, sent: &SwapInFlight) {
        let SwapInFlight { version, next, seen: current, change } = sent;
        if self.row.as_ref().map_or(RowVersion::ABSENT, |row| row.version) != *version {
            self.write_line(format_args!("a swap for {change:?} comes too late"));
            return;
        }
        let before = &current.snapshot;
        self.write_line(format_args!("a swap for {change:?} arrives: {} becomes {}", before.sum(), next.sum()));
        let set = match change {
            Change::Set { value, .. } => i128::from(*value),
            _ => 0,
        };
        let takes = matches!(change, Change::Set { .. } | Change::Reset | Change::Take);
        let expires = matches!(change, Change::Expire { .. }) && before.epoch != next.epoch;
        let mut noted = self.account.record_swap(before, next, (set, takes, before.is_due(current.at) || expires));
        if let Change::Late(late) = change {
            noted = noted.and_then(|()| self.account.record_late(&before.as_of(current.at), next, late));
        }
        self.broken = self.broken.take().or(noted.err());
        self.row = Some(next.clone());
    }

    /// A node was told of one of its cells. What has to happen at the store happens now or the next
    /// time it is told.
    pub(super) fn apply_need(&mut self, node: usize, cell: CellId, need: Result<Need, String>) {
        match need {
            Ok(Need::Move(epoch)) if self.rng.chance(60) => self.move_row(node, epoch),
            Ok(Need::Late) => {
                let sent = self.late_swap(node, cell);
                self.network.extend(sent.map(|sent| (sent.seen.at, Message::Swap(sent))));
            }
            Ok(_) => {}
            Err(violation) => self.broken = Some(violation),
        }
        self.nodes[node].remove_settled(&mut self.account);
    }

    /// The swap that settles a cell of a life that is over. If the store knows as much already, the
    /// life is done with it.
    pub(super) fn late_swap(&mut self, node: usize, cell: CellId) -> Option<Box<SwapInFlight>> {
        let at = self.nodes[node].incarnations.iter().position(|incarnation| incarnation.cell == cell)?;
        let OwnValue { expires_at, expired_seq: let_go, .. } = self.nodes[node].incarnations[at].own;
        let late = |put| Change::Late(FinalCell { put, expires_at, expired_seq: let_go });
        let change = self.nodes[node].put(at, &mut self.account).map(late);
        match change.map(|change| self.compute_swap(node, change)) {
            Some((sent, Reply::Integer(1))) => sent,
            _ => {
                self.nodes[node].end_incarnation(at, &mut self.account);
                None
            }
        }
    }

    pub(super) fn move_row(&mut self, node: usize, epoch: Epoch) {
        let due = self.row.as_ref().is_some_and(|row| row.is_due(self.now));
        let change = if due { Change::Lapse } else { Change::CatchUp(epoch) };
        if let (Some(sent), _) = self.compute_swap(node, change) {
            self.swap(&sent);
        }
    }

    /// What a node sends to change the row as it is now, if it has to, and the reply.
    fn compute_swap(&mut self, node: usize, change: Change) -> (Option<Box<SwapInFlight>>, Reply) {
        let current = FetchedRow { snapshot: self.row.clone().unwrap_or_default(), at: self.now };
        self.swap_ids += 1;
        let (registered, node) = (self.registered(), self.nodes[node].id);
        let by = SwapContext { id: SwapId(self.swap_ids), node, grace: self.grace, registered: &registered };
        let computed = plan_swap(&current, &by, &change).expect("it has no reply to fit");
        let NextRow::Row(next) = computed.next else { return (None, computed.reply) };
        (
            Some(Box::new(SwapInFlight { version: current.snapshot.version, next, seen: current, change })),
            computed.reply,
        )
    }
}
