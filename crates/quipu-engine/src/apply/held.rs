//! The shards that a run holds.

use super::table::{Shard, Table};
use crate::sync::MutexGuard;

/// Locked shards: one for a run of single-counter commands, several for a transaction.
pub enum Held<'t> {
    /// One shard and its index.
    One(usize, MutexGuard<'t, Shard>),
    /// Several, in the order of their index.
    Many(Vec<(usize, MutexGuard<'t, Shard>)>),
    /// Several, in the order in which they were asked for, and found by that.
    Asked(Vec<MutexGuard<'t, Shard>>),
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

    /// Locks several different shards, to be found at their place among these.
    pub fn asked(table: &'t Table, shards: impl ExactSizeIterator<Item = usize> + Clone) -> Held<'t> {
        let mut held = Vec::with_capacity(shards.len());
        // Nobody waits here, so nobody waits for whoever waits for them, whatever the order.
        held.extend(shards.clone().map_while(|shard| table.try_lock(shard)));
        if held.len() == shards.len() {
            return Held::Asked(held);
        }
        held.clear();
        let mut order: Vec<(usize, usize)> = shards.zip(0..).collect();
        order.sort_unstable();
        let mut held: Vec<_> = order.into_iter().map(|(shard, place)| (place, table.lock(shard))).collect();
        held.sort_unstable_by_key(|(place, _)| *place);
        Held::Asked(held.into_iter().map(|(_, guard)| guard).collect())
    }

    /// The held shard at a place.
    pub fn at(&mut self, place: usize) -> &mut Shard {
        match self {
            Held::One(_, guard) => guard,
            Held::Many(held) => &mut held[place].1,
            Held::Asked(held) => &mut held[place],
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
            Held::Asked(_) => None,
        };
        held.expect("admission named every shard that the command touches")
    }

    /// A held shard, only to look at.
    pub fn peek(&self, index: usize) -> &Shard {
        let held = match self {
            Held::One(held, guard) => (*held == index).then_some(&**guard),
            Held::Many(held) => held.binary_search_by_key(&index, |(held, _)| *held).ok().map(|at| &*held[at].1),
            Held::Asked(_) => None,
        };
        held.expect("admission named every shard that the command touches")
    }

    /// Works on every held shard.
    #[inline]
    pub fn for_each(&mut self, mut work: impl FnMut(&mut Shard)) {
        match self {
            Held::One(_, guard) => work(guard),
            Held::Many(held) => held.iter_mut().for_each(|(_, guard)| work(guard)),
            Held::Asked(held) => held.iter_mut().for_each(|guard| work(guard)),
        }
    }

    /// Every held shard.
    pub fn each(&mut self) -> impl Iterator<Item = &mut Shard> {
        let (one, many, asked) = match self {
            Held::One(_, guard) => (Some(&mut **guard), None, None),
            Held::Many(held) => (None, Some(held.iter_mut().map(|(_, guard)| &mut **guard)), None),
            Held::Asked(held) => (None, None, Some(held.iter_mut().map(|guard| &mut **guard))),
        };
        one.into_iter().chain(many.into_iter().flatten()).chain(asked.into_iter().flatten())
    }
}
