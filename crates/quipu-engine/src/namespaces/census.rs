//! How many counters a namespace has, where that is limited.
//!
//! In: counters that are made and go, under the locks of their shards. Out: whether one more may be made.
//!
//! Nobody counts the counters of a namespace that has no limit. When one gets a limit, and at every start, they are counted shard by shard, each under its lock, at rest and not; from then
//! on whatever happens in that shard is counted along.
//!
//! Invariants:
//! - the number is that of the counters which exist in the shards that were counted, expired ones that nobody has looked at included, as for `DBSIZE`, and what is held for those about to be made;
//! - whoever makes counters holds places for all of them before the first, and lets go of the places after the last: there are never more than the limit but by adds that were counted before it was known.

use std::ops::ControlFlow;

use quipu_model::{Command, LedgerError, Name, Refusal, SetCondition};

use super::policy::Limit;
use crate::apply::ShardLocks;
use crate::apply::table::{Residency, Shard, Table};
use crate::engine::Inner;
use crate::sync::{Arc, AtomicU64, Ordering};

/// The number of a namespace's counters.
#[derive(Debug)]
pub struct Census {
    /// No two of this process have the same.
    id: u64,
    counters: AtomicU64,
}

impl Census {
    /// Of a namespace of which nothing was counted yet.
    pub(super) fn new(id: u64) -> Census {
        Census { id, counters: AtomicU64::new(0) }
    }

    /// What shards that were counted know it by.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// How many there are.
    pub fn counters(&self) -> u64 {
        self.counters.load(Ordering::Acquire)
    }

    fn add(&self, count: u64) {
        self.counters.fetch_add(count, Ordering::AcqRel);
    }

    fn remove(&self, count: u64) {
        self.counters.fetch_sub(count, Ordering::AcqRel);
    }

    /// A counter was made in a shard that is held.
    pub(crate) fn counter_created(&self, shard: &mut Shard) {
        if let Some(count) = shard.census_count(self.id) {
            *count += 1;
            self.add(1);
        }
    }

    /// A counter has gone from a shard that is held.
    pub(crate) fn counter_removed(&self, shard: &mut Shard) {
        if let Some(count) = shard.census_count(self.id) {
            *count -= 1;
            self.remove(1);
        }
    }

    /// All counters have gone from a shard that is held.
    pub(crate) fn counters_cleared(&self, shard: &mut Shard) {
        if let Some(count) = shard.census_count(self.id) {
            self.remove(std::mem::take(count));
        }
    }
}

/// Places for counters about to be made, let go when this is dropped: by then those that were made are counted.
pub(crate) struct CounterReservation(Vec<(Arc<Census>, u64)>);

impl CounterReservation {
    /// Holds places for all that these commands may make.
    pub fn reserve<'c, 'a: 'c>(
        table: &Table,
        locks: &mut ShardLocks<'_>,
        limit_of: impl Fn(Name<'a>) -> Option<Limit>,
        commands: impl IntoIterator<Item = &'c Command<'a>>,
    ) -> Result<CounterReservation, Refusal> {
        let (mut reservation, mut names) = (CounterReservation(Vec::new()), Vec::new());
        for command in commands {
            let Some((name, limit)) = created_name(command).and_then(|name| Some((name, limit_of(name)?))) else {
                continue;
            };
            let hash = table.hash(name.bytes());
            let shard = locks.shard(table.shard_of(hash));
            if names.contains(&name) || matches!(shard.find(hash, name.bytes()), Residency::Present(_)) {
                continue;
            }
            names.push(name);
            let one_more = |counters: u64| (counters < limit.counters_max).then_some(counters + 1);
            if limit.census.counters.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more).is_err() {
                return Err(Refusal::TooManyCounters { counters_max: limit.counters_max });
            }
            reservation.0.push((limit.census, 1));
        }
        Ok(reservation)
    }
}

impl Drop for CounterReservation {
    fn drop(&mut self) {
        self.0.iter().for_each(|(census, count)| census.remove(*count));
    }
}

/// The counter that a command may make.
fn created_name<'a>(command: &Command<'a>) -> Option<Name<'a>> {
    match command {
        Command::Add { name, .. } | Command::AddSampled { name, .. } => Some(*name),
        Command::AddWithin(add) => Some(add.name),
        Command::Set(set) if set.condition != SetCondition::IfPresent => Some(set.name),
        Command::Sketch(command) => command.creates(),
        _ => None,
    }
}

impl Inner {
    /// Counts the counters of these namespaces, which are in force; of all others that were ever counted, only those that are `live` are counted along from here on.
    pub(crate) fn count_namespaces(
        &self,
        namespaces: &[(Box<[u8]>, Arc<Census>)],
        live: &[u64],
    ) -> Result<(), LedgerError> {
        for index in 0..self.table.shard_count() {
            let mut shard = self.table.lock(index);
            let mut counts = vec![0; namespaces.len()];
            let mut count = |name: &[u8]| {
                let name = Name::new(name).expect("names in the table have been checked");
                for (at, _) in namespaces.iter().enumerate().filter(|(_, (known, _))| **known == *name.namespace()) {
                    counts[at] += 1;
                }
            };
            shard.existing_names().for_each(&mut count);
            if shard.unloaded {
                let (table, shard) = (&self.table, &*shard);
                self.ledger.range(table.first_hash(index), &mut |hash, name, _| {
                    if table.shard_of(hash) != index {
                        return ControlFlow::Break(());
                    }
                    if !shard.has_slot(hash, name) {
                        count(name);
                    }
                    ControlFlow::Continue(())
                })?;
            }
            shard.census_counts.retain(|(id, _)| live.contains(id));
            for ((_, census), count) in namespaces.iter().zip(counts) {
                census.add(count);
                shard.census_counts.push((census.id(), count));
            }
        }
        Ok(())
    }
}
