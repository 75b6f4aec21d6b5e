//! Holds the shard locks of a run.

use crate::base::sync::MutexGuard;
use crate::table::{Shard, Table};

/// Locked shards: one for a run of single-counter commands, several for a transaction.
pub enum ShardLocks<'t> {
    /// One shard and its index.
    One(usize, MutexGuard<'t, Shard>),
    /// Several, in the order of their index.
    Many(Vec<(usize, MutexGuard<'t, Shard>)>),
    /// Several, in the order of the request, found by their index in it.
    InRequestOrder(Vec<MutexGuard<'t, Shard>>),
}

impl<'t> ShardLocks<'t> {
    /// Locks one shard.
    pub fn lock_one(table: &'t Table, shard: usize) -> ShardLocks<'t> {
        ShardLocks::One(shard, table.lock(shard))
    }

    /// Locks several shards in ascending order, so that two transactions cannot deadlock.
    pub fn lock_sorted(table: &'t Table, mut shards: Vec<usize>) -> ShardLocks<'t> {
        shards.sort_unstable();
        shards.dedup();
        ShardLocks::Many(shards.into_iter().map(|shard| (shard, table.lock(shard))).collect())
    }

    /// Locks several different shards, to be found by their index in `shards`.
    pub fn lock_in_request_order(
        table: &'t Table,
        shards: impl ExactSizeIterator<Item = usize> + Clone,
    ) -> ShardLocks<'t> {
        let mut locked = Vec::with_capacity(shards.len());
        // `try_lock` does not wait, so this order cannot cause a deadlock.
        locked.extend(shards.clone().map_while(|shard| table.try_lock(shard)));
        if locked.len() == shards.len() {
            return ShardLocks::InRequestOrder(locked);
        }
        locked.clear();
        let mut order: Vec<(usize, usize)> = shards.zip(0..).collect();
        order.sort_unstable();
        let mut locked: Vec<_> = order.into_iter().map(|(shard, ordinal)| (ordinal, table.lock(shard))).collect();
        locked.sort_unstable_by_key(|(ordinal, _)| *ordinal);
        ShardLocks::InRequestOrder(locked.into_iter().map(|(_, guard)| guard).collect())
    }

    /// The held shard with this index in the request.
    pub fn nth(&mut self, ordinal: usize) -> &mut Shard {
        match self {
            ShardLocks::One(_, guard) => guard,
            ShardLocks::Many(locked) => &mut locked[ordinal].1,
            ShardLocks::InRequestOrder(locked) => &mut locked[ordinal],
        }
    }

    /// Returns true if exactly this shard is locked.
    pub fn holds_only(&self, index: usize) -> bool {
        matches!(self, ShardLocks::One(locked, _) if *locked == index)
    }

    /// The held shard of this index.
    pub fn shard(&mut self, index: usize) -> &mut Shard {
        let locked = match self {
            ShardLocks::One(locked, guard) => (*locked == index).then_some(&mut **guard),
            ShardLocks::Many(locked) => {
                locked.binary_search_by_key(&index, |(locked, _)| *locked).ok().map(|at| &mut *locked[at].1)
            }
            ShardLocks::InRequestOrder(_) => None,
        };
        locked.expect("admission named every shard that the command touches")
    }

    /// The same, read-only.
    pub fn peek(&self, index: usize) -> &Shard {
        let locked = match self {
            ShardLocks::One(locked, guard) => (*locked == index).then_some(&**guard),
            ShardLocks::Many(locked) => {
                locked.binary_search_by_key(&index, |(locked, _)| *locked).ok().map(|at| &*locked[at].1)
            }
            ShardLocks::InRequestOrder(_) => None,
        };
        locked.expect("admission named every shard that the command touches")
    }

    /// Runs `work` on every held shard.
    #[inline]
    pub fn for_each(&mut self, mut work: impl FnMut(&mut Shard)) {
        match self {
            ShardLocks::One(_, guard) => work(guard),
            ShardLocks::Many(locked) => locked.iter_mut().for_each(|(_, guard)| work(guard)),
            ShardLocks::InRequestOrder(locked) => locked.iter_mut().for_each(|guard| work(guard)),
        }
    }

    /// All held shards.
    pub fn shards_mut(&mut self) -> impl Iterator<Item = &mut Shard> {
        let (one, many, requested) = match self {
            ShardLocks::One(_, guard) => (Some(&mut **guard), None, None),
            ShardLocks::Many(locked) => (None, Some(locked.iter_mut().map(|(_, guard)| &mut **guard)), None),
            ShardLocks::InRequestOrder(locked) => (None, None, Some(locked.iter_mut().map(|guard| &mut **guard))),
        };
        one.into_iter().chain(many.into_iter().flatten()).chain(requested.into_iter().flatten())
    }
}
