//! Counts a namespace's counters, if their number is limited.
//!
//! In: counters created and removed, under the locks of their shards. Out: permission to create one
//! more.
//!
//! Namespaces without a limit are not counted. When one gets a limit, and at every start, its
//! counters are counted shard by shard, each under its lock, resident or not. From then on every
//! change in that shard updates the count.
//!
//! Invariants:
//! - the number includes all existing counters of the counted shards, even expired ones not removed
//!   yet, as in `DBSIZE`;
//! - it also includes the reservations for counters about to be created;
//! - a command reserves all its new counters before it creates the first, and releases the
//!   reservations after the last: so only adds counted before the limit was known can exceed it.

use std::ops::ControlFlow;

use quipu_model::{Command, LedgerError, Name, Refusal, SetCondition};

use super::policy::Limit;
use crate::base::sync::{Arc, AtomicU64, Ordering};
use crate::engine::Inner;
use crate::table::locks::ShardLocks;
use crate::table::{Residency, Shard, Table};

/// The number of a namespace's counters.
#[derive(Debug)]
pub struct Census {
    /// Unique in this process.
    id: u64,
    counters: AtomicU64,
}

impl Census {
    /// The census of a namespace before the count.
    pub(super) fn new(id: u64) -> Census {
        Census { id, counters: AtomicU64::new(0) }
    }

    /// Identifies the census in shards that were counted.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Number of counters.
    pub fn counters(&self) -> u64 {
        self.counters.load(Ordering::Acquire)
    }

    fn add(&self, count: u64) {
        self.counters.fetch_add(count, Ordering::AcqRel);
    }

    fn remove(&self, count: u64) {
        self.counters.fetch_sub(count, Ordering::AcqRel);
    }

    /// Counts a counter created in a held shard.
    pub(crate) fn counter_created(&self, shard: &mut Shard) {
        if let Some(count) = shard.census_count(self.id) {
            *count += 1;
            self.add(1);
        }
    }

    /// Counts a counter removed from a held shard.
    pub(crate) fn counter_removed(&self, shard: &mut Shard) {
        if let Some(count) = shard.census_count(self.id) {
            *count -= 1;
            self.remove(1);
        }
    }

    /// Counts the removal of all counters from a held shard.
    pub(crate) fn counters_cleared(&self, shard: &mut Shard) {
        if let Some(count) = shard.census_count(self.id) {
            self.remove(std::mem::take(count));
        }
    }
}

/// Reservations for counters about to be created. They are released on drop, when the created ones
/// are counted.
pub(crate) struct CounterReservation(Vec<(Arc<Census>, u64)>);

impl CounterReservation {
    /// Reserves all counters that these commands may create.
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

/// The counter that a command may create.
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
    /// Counts the counters of these namespaces, under policies that are in force. Afterwards only
    /// the `live` ones of all other censuses are updated.
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
