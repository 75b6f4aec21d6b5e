//! The shards that a run holds.

use super::table::{Shard, Table};
use crate::sync::MutexGuard;

/// Locked shards: one for a run of single-counter commands, several for a transaction.
pub enum Held<'t> {
    /// One shard and its index.
    One(usize, MutexGuard<'t, Shard>),
    /// Several, in the order of their index.
    Many(Vec<(usize, MutexGuard<'t, Shard>)>),
}

impl<'t> Held<'t> {
    /// Locks one shard.
    pub fn one(table: &'t Table, shard: usize) -> Held<'t> {
        Held::One(shard, table.lock(shard))
    }

    /// Locks several shards, in order, so that two transactions never wait for each other.
    pub fn many(table: &'t Table, mut shards: Vec<usize>) -> Held<'t> {
        shards.sort_unstable();
        shards.dedup();
        Held::Many(shards.into_iter().map(|shard| (shard, table.lock(shard))).collect())
    }

    /// The held shard at a place.
    pub fn at(&mut self, place: usize) -> &mut Shard {
        match self {
            Held::One(_, guard) => guard,
            Held::Many(held) => &mut held[place].1,
        }
    }

    /// Whether a run that holds just this shard is at hand.
    pub fn is_one(&self, index: usize) -> bool {
        matches!(self, Held::One(held, _) if *held == index)
    }

    /// A held shard.
    pub fn shard(&mut self, index: usize) -> &mut Shard {
        let held = match self {
            Held::One(held, guard) => (*held == index).then_some(&mut **guard),
            Held::Many(held) => held.binary_search_by_key(&index, |(held, _)| *held).ok().map(|at| &mut *held[at].1),
        };
        held.expect("admission named every shard that the command touches")
    }

    /// Works on every held shard.
    #[inline]
    pub fn for_each(&mut self, mut work: impl FnMut(&mut Shard)) {
        match self {
            Held::One(_, guard) => work(guard),
            Held::Many(held) => held.iter_mut().for_each(|(_, guard)| work(guard)),
        }
    }

    /// Every held shard.
    pub fn each(&mut self) -> impl Iterator<Item = &mut Shard> {
        let (one, many) = match self {
            Held::One(_, guard) => (Some(&mut **guard), None),
            Held::Many(held) => (None, Some(held.iter_mut().map(|(_, guard)| &mut **guard))),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }
}
