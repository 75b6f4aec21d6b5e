//! The book of a sketch of uniques: which items were asked to be observed, and which of them were acknowledged.
//!
//! Few enough items are observed that the sketch counts them exactly.

use std::collections::BTreeSet;

use quipu_engine::Position;

use super::{End, Stands};

/// All observations of one sketch.
#[derive(Default)]
pub(super) struct Observed {
    all: Vec<Observation>,
}

struct Observation {
    node: usize,
    life: u64,
    item: usize,
    acked_at: u64,
    position: Position,
    stands: Stands,
}

impl Observed {
    /// Enters one that is asked for; where.
    pub fn ask(&mut self, node: usize, life: u64, item: usize) -> usize {
        let (acked_at, position, stands) = (0, Position(0), Stands::InDoubt);
        self.all.push(Observation { node, life, item, acked_at, position, stands });
        self.all.len() - 1
    }

    pub fn answer(&mut self, entry: usize, position: Position, at: u64) {
        let one = &mut self.all[entry];
        (one.stands, one.position, one.acked_at) = (Stands::Acked, position, at);
    }

    pub fn refuse(&mut self, entry: usize) {
        self.all[entry].stands = Stands::Refused;
    }

    /// How many different items were asked for.
    pub fn asked(&self) -> i128 {
        self.count(|one| one.stands != Stands::Refused)
    }

    /// How many a node has acknowledged itself, and not lost since.
    pub fn least_of(&self, node: usize) -> i128 {
        self.count(|one| one.node == node && one.stands == Stands::Acked)
    }

    /// A node has ended; the sketch is durable.
    pub fn ended(&mut self, node: usize, end: End) {
        for one in self.all.iter_mut().filter(|one| one.node == node && one.stands == Stands::Acked) {
            let lost = match end {
                End::Clean | End::Killed | End::PowerLoss(_) => false,
                End::DirectoryLost | End::Stranded => true,
                End::Restored(since) => one.acked_at >= since,
            };
            if lost {
                one.stands = Stands::InDoubt;
            }
        }
    }

    /// In the end: what all nodes show has everything that is certain, and nothing that nobody asked for.
    pub fn close(&self, certain: impl Fn(usize, u64) -> bool, shown: &[(usize, i64)]) -> Result<(), String> {
        let stays = |one: &Observation| one.stands == Stands::Acked && certain(one.node, one.life);
        let (least, most) = (self.count(stays), self.asked());
        for (node, value) in shown {
            if shown[0].1 != *value {
                return Err(format!("in the end nodes differ: {shown:?}"));
            }
            if !(least..=most).contains(&i128::from(*value)) {
                return Err(format!("in the end node {node} shows {value}; it should be from {least} to {most}"));
            }
        }
        Ok(())
    }

    fn count(&self, which: impl Fn(&Observation) -> bool) -> i128 {
        let items: BTreeSet<usize> = self.all.iter().filter(|one| which(one)).map(|one| one.item).collect();
        items.len() as i128
    }
}
