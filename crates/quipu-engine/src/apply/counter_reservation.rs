//! Reserves the counters that commands may create, in namespaces that limit their number.
//!
//! Invariant: a command reserves all its new counters before it creates the first, and releases the
//! reservations after the last: so only adds counted before the limit was known can exceed it.

use quipu_model::{Command, Name, Refusal};

use crate::base::sync::{Arc, Ordering};
use crate::namespaces::{Census, Limit};
use crate::table::locks::ShardLocks;
use crate::table::{Residency, Table};

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
            let Some((name, limit)) = command.facts().creates.and_then(|name| Some((name, limit_of(name)?))) else {
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
