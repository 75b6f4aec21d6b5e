//! A node: its lives, what each says of the counter, and what it does about what it is told.
//!
//! Everything in here is journaled before anything leaves, as the engine does it: a crash takes nothing but what was heard and not yet
//! acted on. A seq is given to every change of what the present life says, put or not, so that no two states of it share one; a life that
//! is over gives none.

use quipu_model::shared::{CellId, Own, Put, Seq, Shard, Snapshot, Told, Verdict};
use quipu_model::{Epoch, Incarnation, Millis, NodeId, Writer};

use crate::account::{Account, Books};

#[derive(Clone)]
pub struct Node {
    pub id: NodeId,
    pub machine: usize,   // a copy of a node is on another
    pub lives: Vec<Life>, // the last one is the present
}

#[derive(Clone)]
pub struct Life {
    pub cell: CellId,
    pub own: Own,
    pub seq: Seq,      // of what it says, under whatever epoch
    pub settled: bool, // the store has it
    pub books: Books,  // the account's
}

/// What has to happen at the store.
pub enum Need {
    Nothing,
    /// Look at the row again.
    Look,
    /// The row has to move.
    Move(Epoch),
    /// A cell of a life that is over is settled late.
    Late,
}

impl Node {
    pub fn new(machine: usize, account: &mut Account) -> Node {
        let mut node = Node { id: NodeId(machine as u64 + 1), machine, lives: Vec::new() };
        node.begin(Epoch::FIRST, account);
        node
    }

    /// A new life. What the old ones said and the store has not confirmed is still to be put.
    pub fn begin(&mut self, epoch: Epoch, account: &mut Account) {
        account.lives += 1;
        let writer = Writer { node: self.id, incarnation: Incarnation(account.lives) };
        self.lives.push(Life {
            cell: CellId { writer, shard: Shard(0) },
            own: Own { epoch, ..Own::default() },
            seq: Seq(0),
            settled: true,
            books: Books::default(),
        });
    }

    pub fn present(&mut self) -> &mut Life {
        self.lives.last_mut().expect("a node has a life")
    }

    pub fn add(&mut self, delta: i64, now: Millis) {
        let life = self.present();
        let next = Seq(life.seq.0 + 1);
        life.say(life.own.lapse(now, next).added(delta).expect("adds are small"));
        life.books.added += i128::from(delta);
        life.books.adds += 1;
    }

    /// What a life has to say.
    pub fn put(&self, life: usize, account: &mut Account) -> Option<Put> {
        let life = &self.lives[life];
        let put = life.own.put(life.cell, life.seq)?;
        account.said(&put, &life.books);
        Some(put)
    }

    /// A verdict arrived.
    pub fn told(&mut self, put: &Put, verdict: &Verdict, account: &mut Account) -> Result<Need, String> {
        // A verdict for a life that is over or a put before a crash finds nobody.
        let Some(at) = self.lives.iter().position(|life| life.cell == put.cell) else { return Ok(Need::Nothing) };
        let life = &mut self.lives[at];
        // By seq, never by value: an older put may happen to say the same as the cell does now, and be overtaken by one between.
        let newest = put.seq == life.seq;
        life.settled |= newest && *verdict == Verdict::Newest;
        let told = match verdict {
            Verdict::Older if newest => Told::Outdone,
            verdict => life.own.told(put, verdict, life.seq),
        };
        self.act(at, told, account)
    }

    /// The row was read.
    pub fn shown(&mut self, at: usize, row: &Snapshot, now: Millis, account: &mut Account) -> Result<Need, String> {
        let life = &mut self.lives[at];
        life.own = life.own.informed(row);
        let told = life.own.shown(life.cell, life.seq, row, now);
        self.act(at, told, account)
    }

    fn act(&mut self, at: usize, told: Told, account: &mut Account) -> Result<Need, String> {
        let over = at + 1 < self.lives.len();
        let life = &mut self.lives[at];
        Ok(match told {
            Told::Stay => Need::Nothing,
            Told::Move => Need::Move(life.own.lapsed.map_or(life.own.epoch, |lapsed| lapsed.epoch)),
            Told::Open(own) if !over || life.own.lapsed.is_some() => {
                account.opened(life.cell, &life.own, &own, &mut life.books)?;
                let decided = life.own.lapsed.is_some();
                if over {
                    life.decide(own)
                } else {
                    life.say(own)
                }
                if decided { Need::Look } else { Need::Nothing }
            }
            Told::Open(_) => Need::Late,
            Told::Over => {
                if !over {
                    let epoch = life.own.epoch;
                    self.begin(epoch, account);
                }
                Need::Late
            }
            Told::Outdone if over => {
                self.end(at, account);
                Need::Nothing
            }
            Told::Outdone => return Err(format!("{:?} is outdone, and has no twin", life.cell)),
        })
    }

    /// A life has nothing left to say.
    pub fn end(&mut self, at: usize, account: &mut Account) {
        let life = self.lives.remove(at);
        account.over(self.machine, &life);
    }

    /// Old lives that have nothing left to say are over.
    pub fn bury(&mut self, account: &mut Account) {
        for at in (0..self.lives.len() - 1).rev() {
            if self.lives[at].settled && self.lives[at].own.lapsed.is_none() {
                self.end(at, account);
            }
        }
    }

    pub fn settled(&self) -> bool {
        self.lives.iter().all(|life| life.settled && life.own.lapsed.is_none())
    }
}

impl Life {
    /// Says something else from here on.
    fn say(&mut self, own: Own) {
        self.seq.0 += 1;
        self.decide(own);
    }

    /// Says what a lapse came to under the number that the lapse has, under which nothing was ever put: the next one may be that of something
    /// else, if this is not the last state that the life had.
    fn decide(&mut self, own: Own) {
        (self.own, self.settled) = (own, !own.said && own.lapsed.is_none());
    }
}
