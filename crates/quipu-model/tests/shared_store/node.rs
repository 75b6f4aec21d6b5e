//! A node: its incarnations, their cells, and their reactions to verdicts and rows.
//!
//! All of a node's state is journaled before it sends anything, as in the engine. A crash loses
//! only messages that were received and not yet acted on. Every change of the current incarnation's
//! cell gets a seq, put or not, so no two of its states share one. An ended incarnation assigns
//! none.

use quipu_model::shared::{CellId, NextStep, OwnValue, Put, Seq, Shard, Snapshot, Verdict};
use quipu_model::{Epoch, Incarnation, Millis, NodeId, Writer};

use crate::account::{Account, IncarnationTotals};

#[derive(Clone)]
pub struct Node {
    pub id: NodeId,
    pub machine: usize,                     // a copy of a node is on another
    pub incarnations: Vec<NodeIncarnation>, // the last one is the present
}

#[derive(Clone)]
pub struct NodeIncarnation {
    pub cell: CellId,
    pub own: OwnValue,
    pub seq: Seq,                  // of what it says, under whatever epoch
    pub settled: bool,             // the store has it
    pub totals: IncarnationTotals, // the account's
}

/// What has to happen at the store.
pub enum Need {
    Nothing,
    /// Look at the row again.
    Reread,
    /// The row has to move.
    Move(Epoch),
    /// A cell of a life that is over is settled late.
    Late,
}

impl Node {
    pub fn new(machine: usize, account: &mut Account) -> Node {
        let mut node = Node { id: NodeId(machine as u64 + 1), machine, incarnations: Vec::new() };
        node.begin_incarnation(Epoch::FIRST, account);
        node
    }

    /// A new life. What the old ones said and the store has not confirmed is still to be put.
    pub fn begin_incarnation(&mut self, epoch: Epoch, account: &mut Account) {
        account.incarnations += 1;
        let writer = Writer { node: self.id, incarnation: Incarnation(account.incarnations) };
        self.incarnations.push(NodeIncarnation {
            cell: CellId { writer, shard: Shard(0) },
            own: OwnValue { epoch, ..OwnValue::default() },
            seq: Seq(0),
            settled: true,
            totals: IncarnationTotals::default(),
        });
    }

    pub fn present(&mut self) -> &mut NodeIncarnation {
        self.incarnations.last_mut().expect("a node has a life")
    }

    pub fn add(&mut self, delta: i64, now: Millis) {
        let incarnation = self.present();
        let next = Seq(incarnation.seq.0 + 1);
        incarnation.change_own(incarnation.own.lapse(now, next).added(delta).expect("adds are small"));
        incarnation.totals.added += i128::from(delta);
        incarnation.totals.adds += 1;
    }

    /// What a life has to say.
    pub fn put(&self, incarnation: usize, account: &mut Account) -> Option<Put> {
        let incarnation = &self.incarnations[incarnation];
        let put = incarnation.own.put(incarnation.cell, incarnation.seq)?;
        account.record_put(&put, &incarnation.totals);
        Some(put)
    }

    /// A verdict arrived.
    pub fn on_verdict(&mut self, put: &Put, verdict: &Verdict, account: &mut Account) -> Result<Need, String> {
        // A verdict for a life that is over or a put before a crash finds nobody.
        let Some(at) = self.incarnations.iter().position(|incarnation| incarnation.cell == put.cell) else {
            return Ok(Need::Nothing);
        };
        let incarnation = &mut self.incarnations[at];
        // By seq, never by value: an older put may happen to say the same as the cell does now, and
        // be overtaken by one between.
        let newest = put.seq == incarnation.seq;
        incarnation.settled |= newest && *verdict == Verdict::Newest;
        let next_step = match verdict {
            Verdict::Older if newest => NextStep::Superseded,
            verdict => incarnation.own.on_verdict(put, verdict, incarnation.seq),
        };
        self.apply_next_step(at, next_step, account)
    }

    /// The row was read.
    pub fn on_row(&mut self, at: usize, row: &Snapshot, now: Millis, account: &mut Account) -> Result<Need, String> {
        let incarnation = &mut self.incarnations[at];
        incarnation.own = incarnation.own.with_row_expiry(row);
        let next_step = incarnation.own.on_row(incarnation.cell, incarnation.seq, row, now);
        self.apply_next_step(at, next_step, account)
    }

    fn apply_next_step(&mut self, at: usize, next_step: NextStep, account: &mut Account) -> Result<Need, String> {
        let over = at + 1 < self.incarnations.len();
        let incarnation = &mut self.incarnations[at];
        Ok(match next_step {
            NextStep::Keep => Need::Nothing,
            NextStep::Move => {
                Need::Move(incarnation.own.pending_expiry.map_or(incarnation.own.epoch, |lapsed| lapsed.epoch))
            }
            NextStep::Continue(own) if !over || incarnation.own.pending_expiry.is_some() => {
                account.record_open(incarnation.cell, &incarnation.own, &own, &mut incarnation.totals)?;
                let decided = incarnation.own.pending_expiry.is_some();
                if over {
                    incarnation.set_own(own)
                } else {
                    incarnation.change_own(own)
                }
                if decided { Need::Reread } else { Need::Nothing }
            }
            NextStep::Continue(_) => Need::Late,
            NextStep::Retired => {
                if !over {
                    let epoch = incarnation.own.epoch;
                    self.begin_incarnation(epoch, account);
                }
                Need::Late
            }
            NextStep::Superseded if over => {
                self.end_incarnation(at, account);
                Need::Nothing
            }
            NextStep::Superseded => return Err(format!("{:?} is outdone, and has no twin", incarnation.cell)),
        })
    }

    /// A life has nothing left to say.
    pub fn end_incarnation(&mut self, at: usize, account: &mut Account) {
        let incarnation = self.incarnations.remove(at);
        account.record_end(self.machine, &incarnation);
    }

    /// Old lives that have nothing left to say are over.
    pub fn remove_settled(&mut self, account: &mut Account) {
        for at in (0..self.incarnations.len() - 1).rev() {
            if self.incarnations[at].settled && self.incarnations[at].own.pending_expiry.is_none() {
                self.end_incarnation(at, account);
            }
        }
    }

    pub fn is_settled(&self) -> bool {
        self.incarnations.iter().all(|incarnation| incarnation.settled && incarnation.own.pending_expiry.is_none())
    }
}

impl NodeIncarnation {
    /// Says something else from here on.
    fn change_own(&mut self, own: OwnValue) {
        self.seq.0 += 1;
        self.set_own(own);
    }

    /// Says what a lapse came to under the number that the lapse has, under which nothing was ever
    /// put: the next one may be that of something else, if this is not the last state that the life
    /// had.
    fn set_own(&mut self, own: OwnValue) {
        (self.own, self.settled) = (own, !own.has_value && own.pending_expiry.is_none());
    }
}
