//! The clients' steps: read, compute, send, find out; and what a swap does when it arrives.

use quipu_model::shared::put::{judge, put};
use quipu_model::shared::{
    Attempt, By, CellId, Change, Fate, Late, Next, Own, Seen, SwapId, Verdict, Version, compute,
};
use quipu_model::{Epoch, Expiry, ExpiryCondition, Millis, NodeId, Reply, SetExpiry, When, Writer};

use super::{Message, Sent, World};
use crate::client::{Client, Found, returned};
use crate::node::Need;

impl World {
    pub(super) fn act_as_client(&mut self) {
        let at = self.dice.below(self.clients.len());
        let row = self.row.clone().unwrap_or_default();
        match &self.clients[at] {
            Client::Idle => {
                let change = self.any_change();
                self.read_for(at, change);
                // Often nothing happens between a read and its swap; the rest of the time anything may.
                if self.dice.chance(50) {
                    self.send_swap(at);
                }
            }
            Client::Read { .. } => self.send_swap(at),
            Client::Sent { .. } => match self.clients[at].look(&row) {
                Ok(found) => self.found(at, found),
                Err(violation) => self.broken = Some(violation),
            },
        }
    }

    /// A client that has been at it for too long begins anew: what it sent is no longer under way.
    pub(super) fn give_up_before(&mut self, client: usize, before: Millis) {
        let row = self.row.clone().unwrap_or_default();
        match &self.clients[client] {
            Client::Read { seen, change, .. } if seen.at < before => self.read_for(client, *change),
            Client::Sent { seen, change, attempt, .. } if seen.at < before => match attempt.fate(&row) {
                Fate::Open => self.read_for(client, *change),
                _ => match self.clients[client].look(&row) {
                    Ok(found) => self.found(client, found),
                    Err(violation) => self.broken = Some(violation),
                },
            },
            _ => {}
        }
    }

    /// Somebody who may be retired: of the row's cells, the closed ones first, or of the nodes' lives.
    pub(super) fn any_writer(&mut self) -> Writer {
        let cells = self.row.iter().flat_map(|row| &row.cells);
        let closed = cells.clone().filter(|(_, held)| held.closed).map(|(id, _)| id.writer).next();
        let lives = self.nodes.iter().flat_map(|node| &node.lives).map(|life| life.cell.writer);
        let any: Vec<Writer> = cells.map(|(id, _)| id.writer).chain(lives).collect();
        let at = self.dice.below(any.len());
        closed.filter(|_| self.dice.chance(60)).unwrap_or(any[at])
    }

    pub(super) fn any_change(&mut self) -> Change {
        let writer = self.any_writer();
        match self.dice.below(100) {
            0..=24 if self.faults.retire => Change::Close(writer),
            25..=49 if self.faults.retire => Change::Fold(writer),
            50..=69 if self.faults.expire => {
                let when = When::In(self.dice.below(60) as i64);
                Change::Expire { when, condition: ExpiryCondition::Always }
            }
            70..=73 if self.faults.expire => Change::Persist,
            74..=77 if self.faults.expire => Change::ReadAndExpire(Expiry::Remove),
            78..=82 => Change::Take,
            83..=86 => Change::Lapse,
            87..=89 => Change::Forget,
            90..=93 => {
                let value = self.dice.below(50) as i64;
                Change::Set { value, expiry: SetExpiry::Keep, reply_old: true }
            }
            _ => Change::Reset,
        }
    }

    pub(super) fn read_for(&mut self, client: usize, change: Change) {
        let snapshot = self.row.clone().unwrap_or_default();
        let version = snapshot.version;
        let mut seen = Seen { snapshot, at: self.now };
        // A node may lay its own newest cell into the row it computes from: then that is taken too.
        if self.dice.chance(30) && seen.snapshot.version != Version::ABSENT {
            let node = self.dice.below(self.nodes.len());
            let life = self.nodes[node].lives.len() - 1;
            if let Some(own) = self.nodes[node].put(life, &mut self.account)
                && judge(&seen.snapshot, &own, self.now) == Verdict::Newest
            {
                let mut row = Some(seen.snapshot);
                put(&mut row, &own, self.now);
                seen.snapshot = row.unwrap_or_default();
            }
        }
        self.note(format_args!("client {client} reads for {change:?}"));
        self.clients[client] = Client::Read { change, seen, version };
    }

    pub(super) fn send_swap(&mut self, client: usize) {
        let Client::Read { change, seen, version } = std::mem::take(&mut self.clients[client]) else { return };
        self.swap_ids += 1;
        let (registered, node) = (self.registered(), NodeId(100 + client as u64));
        let by = By { id: SwapId(self.swap_ids), node, grace: self.grace, registered: &registered };
        let computed = compute(&seen, &by, &change).expect("values are small and times near");
        match &computed.next {
            Next::Same => self.finish(client, &change, &computed.reply),
            // Carried out at once, and not while a put is under way that was told what the row knows: see "How it fails" in the design.
            Next::Gone => {
                let under_way = self.network.iter().any(|(_, message)| matches!(message, Message::Put(..)));
                if !under_way && self.row.as_ref().is_some_and(|row| row.version == version) {
                    self.note(format_args!("the row is forgotten"));
                    self.account.forgotten += 1;
                    self.row = None;
                }
            }
            Next::Row(next) => {
                self.note(format_args!("client {client} sends swap {} for {change:?}", by.id.0));
                let sent = Sent { version, next: next.clone(), seen: seen.clone(), change };
                self.network.push((sent.seen.at, Message::Swap(Box::new(sent))));
                let attempt = Attempt { version, id: by.id };
                self.clients[client] = Client::Sent { change, seen, attempt, computed: Box::new(computed) };
            }
        }
    }

    pub(super) fn found(&mut self, client: usize, found: Option<Found>) {
        match found {
            Some(Found::Done(reply)) => {
                if let Client::Sent { change, .. } = std::mem::take(&mut self.clients[client]) {
                    self.finish(client, &change, &reply);
                }
            }
            Some(Found::Anew(change)) => self.read_for(client, change),
            Some(Found::Again) | None => {
                self.network.extend(self.again(client).map(|sent| (sent.seen.at, Message::Swap(sent))));
            }
        }
    }

    /// The very swap that a client sent before.
    pub(super) fn again(&self, client: usize) -> Option<Box<Sent>> {
        let Client::Sent { change, seen, attempt, computed } = &self.clients[client] else { return None };
        let Next::Row(next) = &computed.next else { return None };
        Some(Box::new(Sent { version: attempt.version, next: next.clone(), seen: seen.clone(), change: *change }))
    }

    pub(super) fn finish(&mut self, client: usize, change: &Change, reply: &Reply) {
        self.note(format_args!("client {client}: {change:?} returned {reply:?}"));
        self.account.returned += returned(change, reply);
    }

    /// A swap arrives at the store.
    pub(super) fn swap(&mut self, sent: &Sent) {
        let Sent { version, next, seen, change } = sent;
        if self.row.as_ref().map_or(Version::ABSENT, |row| row.version) != *version {
            self.note(format_args!("a swap for {change:?} comes too late"));
            return;
        }
        let before = &seen.snapshot;
        self.note(format_args!("a swap for {change:?} arrives: {} becomes {}", before.sum(), next.sum()));
        let set = match change {
            Change::Set { value, .. } => i128::from(*value),
            _ => 0,
        };
        let takes = matches!(change, Change::Set { .. } | Change::Reset | Change::Take);
        let expires = matches!(change, Change::Expire { .. }) && before.epoch != next.epoch;
        let mut noted = self.account.swapped(before, next, (set, takes, before.due(seen.at) || expires));
        if let Change::Late(late) = change {
            noted = noted.and_then(|()| self.account.late(&before.as_of(seen.at), next, late));
        }
        self.broken = self.broken.take().or(noted.err());
        self.row = Some(next.clone());
    }

    /// A node was told of one of its cells. What has to happen at the store happens now or the next time it is told.
    pub(super) fn go_on(&mut self, node: usize, cell: CellId, told: Result<Need, String>) {
        match told {
            Ok(Need::Move(epoch)) if self.dice.chance(60) => self.move_row(node, epoch),
            Ok(Need::Late) => {
                let sent = self.late(node, cell);
                self.network.extend(sent.map(|sent| (sent.seen.at, Message::Swap(sent))));
            }
            Ok(_) => {}
            Err(violation) => self.broken = Some(violation),
        }
        self.nodes[node].bury(&mut self.account);
    }

    /// The swap that settles a cell of a life that is over. If the store knows as much already, the life is done with it.
    pub(super) fn late(&mut self, node: usize, cell: CellId) -> Option<Box<Sent>> {
        let at = self.nodes[node].lives.iter().position(|life| life.cell == cell)?;
        let Own { expires_at, let_go, .. } = self.nodes[node].lives[at].own;
        let late = |put| Change::Late(Late { put, expires_at, let_go });
        let change = self.nodes[node].put(at, &mut self.account).map(late);
        match change.map(|change| self.computed(node, change)) {
            Some((sent, Reply::Integer(1))) => sent,
            _ => {
                self.nodes[node].end(at, &mut self.account);
                None
            }
        }
    }

    pub(super) fn move_row(&mut self, node: usize, epoch: Epoch) {
        let due = self.row.as_ref().is_some_and(|row| row.due(self.now));
        let change = if due { Change::Lapse } else { Change::CatchUp(epoch) };
        if let (Some(sent), _) = self.computed(node, change) {
            self.swap(&sent);
        }
    }

    /// What a node sends to change the row as it is now, if it has to, and the reply.
    fn computed(&mut self, node: usize, change: Change) -> (Option<Box<Sent>>, Reply) {
        let seen = Seen { snapshot: self.row.clone().unwrap_or_default(), at: self.now };
        self.swap_ids += 1;
        let (registered, node) = (self.registered(), self.nodes[node].id);
        let by = By { id: SwapId(self.swap_ids), node, grace: self.grace, registered: &registered };
        let computed = compute(&seen, &by, &change).expect("it has no reply to fit");
        let Next::Row(next) = computed.next else { return (None, computed.reply) };
        (Some(Box::new(Sent { version: seen.snapshot.version, next, seen, change })), computed.reply)
    }
}
