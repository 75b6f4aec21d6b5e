//! Counts the counters of namespaces that limit their number.

use std::ops::ControlFlow;

use quipu_model::{LedgerError, Name};

use crate::base::sync::Arc;
use crate::core::Core;
use crate::namespaces::Census;

impl Core {
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

    /// Counts the counters of all namespaces with a limit; once, when the engine is opened.
    pub(crate) fn count_all_limited(&self) -> Result<(), LedgerError> {
        let policies = self.namespaces.current();
        let all: Vec<_> = policies.censuses().map(|(name, census)| (name.into(), census.clone())).collect();
        if all.is_empty() { Ok(()) } else { self.count_namespaces(&all, &[]) }
    }
}
