//! A node: its lives, what each says of the counter, and what it does about what it is told.
//!
//! Everything in here is journaled before anything leaves, as the engine does it: a crash takes nothing but what was heard and not yet
//! acted on.

use quipu_model::shared::{CellId, Own, Put, Seq, Shard, Snapshot, Told, Verdict};
use quipu_model::{Epoch, Incarnation, Millis, NodeId, Writer};

use crate::account::Account;

pub struct Node {
    pub id: NodeId,
    pub lives: Vec<Life>, // the last one is the present
    seq: u64,
    incarnation: u64,
}

pub struct Life {
    pub cell: CellId,
    pub own: Own,
    pub put: Option<Put>, // the newest that was sent
    pub settled: bool,    // the store has it, and nothing was added since
    pub heard_at: Millis, // when the row was last compared
}

impl Node {
    pub fn new(id: u64) -> Node {
        let mut node = Node { id: NodeId(id), lives: Vec::new(), seq: 0, incarnation: 0 };
        node.begin(Epoch::FIRST, Millis(0));
        node
    }

    /// A new life. What the old ones said and the store has not confirmed is still to be put.
    pub fn begin(&mut self, epoch: Epoch, now: Millis) {
        self.incarnation += 1;
        let writer = Writer { node: self.id, incarnation: Incarnation(self.incarnation) };
        let cell = CellId { writer, shard: Shard(0) };
        self.lives.push(Life { cell, own: Own { epoch, ..Own::default() }, put: None, settled: true, heard_at: now });
    }

    pub fn present(&mut self) -> &mut Life {
        self.lives.last_mut().expect("a node has a life")
    }

    pub fn add(&mut self, delta: i64, now: Millis) {
        let life = self.present();
        life.own = life.own.lapse(now).added(delta).expect("adds are small");
        life.settled = false;
    }

    /// The next put of a life, if it has something to say.
    pub fn say(&mut self, life: usize) -> Option<Put> {
        self.seq += 1;
        let seq = Seq(self.seq);
        let life = &mut self.lives[life];
        let put = life.own.put(life.cell, seq)?;
        life.put = Some(put);
        Some(put)
    }

    /// A verdict arrived; whether the row has to move.
    pub fn told(&mut self, put: &Put, verdict: &Verdict, account: &mut Account) -> Result<Option<Epoch>, String> {
        // A verdict for a life that is over or a put before a crash finds nobody.
        let Some(at) = self.lives.iter().position(|life| life.cell == put.cell) else { return Ok(None) };
        let life = &mut self.lives[at];
        // By seq, never by value: an older put may happen to say the same as the cell does now, and be overtaken by one between.
        let newest = life.put == Some(*put) && life.own.lapsed.is_none();
        if *verdict == Verdict::Newest && newest && (put.epoch, put.value) == (life.own.epoch, life.own.value) {
            life.settled = true;
        }
        let told = life.own.told(put, verdict);
        self.act(at, told, account)
    }

    /// The row was read.
    pub fn shown(
        &mut self,
        at: usize,
        row: &Snapshot,
        now: Millis,
        account: &mut Account,
    ) -> Result<Option<Epoch>, String> {
        let life = &mut self.lives[at];
        life.own = life.own.informed(row);
        let told = life.own.shown(life.cell, row, now);
        self.act(at, told, account)
    }

    /// Notes when a life was last compared.
    pub fn heard(&mut self, cell: CellId, now: Millis) {
        self.lives.iter_mut().filter(|life| life.cell == cell).for_each(|life| life.heard_at = now);
    }

    fn act(&mut self, at: usize, told: Told, account: &mut Account) -> Result<Option<Epoch>, String> {
        let before = self.lives[at].own;
        match told {
            Told::Stay => {}
            Told::Move => return Ok(Some(before.epoch)),
            Told::Open(own) => {
                account.opened(self.lives[at].cell, &before, &own)?;
                self.lives[at].own = own;
                self.lives[at].settled = !own.said;
            }
            Told::Reborn(rest) => {
                account.reborn += 1;
                if at + 1 == self.lives.len() {
                    self.begin(rest.epoch, self.lives[at].heard_at);
                    self.present().own.expires_at = rest.expires_at;
                }
                self.lives.remove(at);
                let present = self.present();
                present.own = present.own.join(rest);
                present.settled = !present.own.said;
            }
        }
        Ok(None)
    }

    /// Old lives that have nothing left to say are over.
    pub fn bury(&mut self) {
        let present = self.lives.len() - 1;
        let mut at = 0;
        self.lives.retain(|life| {
            at += 1;
            at > present || !life.settled || life.own.lapsed.is_some()
        });
    }

    pub fn settled(&self) -> bool {
        self.lives.iter().all(|life| life.settled && life.own.lapsed.is_none())
    }
}
