//! The shards that a run holds.

use super::table::{Shard, Table};
use super::walk::Shards;
use crate::sync::MutexGuard;

/// Locked shards: one for a run of single-counter commands, several for a transaction.
pub struct Held<'t> {
    shards: Locked<'t>,
    /// A walk has left out a counter because it has expired.
    pub hidden: bool,
}

enum Locked<'t> {
    /// One shard and its index.
    One(usize, MutexGuard<'t, Shard>),
    /// Several, in the order of their index.
    Many(Vec<(usize, MutexGuard<'t, Shard>)>),
}

impl<'t> Held<'t> {
    /// Locks one shard.
    pub fn one(table: &'t Table, shard: usize) -> Held<'t> {
        Held { shards: Locked::One(shard, table.lock(shard)), hidden: false }
    }

    /// Locks several shards, in order, so that two transactions never wait for each other.
    pub fn many(table: &'t Table, mut shards: Vec<usize>) -> Held<'t> {
        shards.sort_unstable();
        shards.dedup();
        let shards = Locked::Many(shards.into_iter().map(|shard| (shard, table.lock(shard))).collect());
        Held { shards, hidden: false }
    }

    /// Whether a run that holds just this shard is at hand.
    pub fn is_one(&self, index: usize) -> bool {
        matches!(self.shards, Locked::One(held, _) if held == index)
    }

    /// A held shard.
    pub fn shard(&mut self, index: usize) -> &mut Shard {
        let held = match &mut self.shards {
            Locked::One(held, guard) => (*held == index).then_some(&mut **guard),
            Locked::Many(held) => held.binary_search_by_key(&index, |(held, _)| *held).ok().map(|at| &mut *held[at].1),
        };
        held.expect("admission named every shard that the command touches")
    }

    /// Every held shard.
    pub fn each(&mut self) -> impl Iterator<Item = &mut Shard> {
        let (one, many) = match &mut self.shards {
            Locked::One(_, guard) => (Some(&mut **guard), None),
            Locked::Many(held) => (None, Some(held.iter_mut().map(|(_, guard)| &mut **guard))),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }
}

impl Shards for Held<'_> {
    fn look<T>(&mut self, index: usize, look: impl FnOnce(&Shard) -> T) -> T {
        look(self.shard(index))
    }

    fn note_hidden(&mut self) {
        self.hidden = true;
    }
}
