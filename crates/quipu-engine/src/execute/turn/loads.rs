//! Finds the loads that commands need first: counters at rest, memory, rows of the shared store.
//!
//! In: commands, and their locked shards. Out: the load, before anything is applied.

use quipu_model::{Command, CommandFacts, Name, StoreNeed};

use crate::core::load::Load;
use crate::execute::routing::RowCheck;
use crate::execute::turn::{NotRun, Turn};
use crate::table::Residency;
use crate::table::locks::ShardLocks;

/// Most counters of one prefetch: about the number of short commands in one full read.
const LOAD_NAMES_MAX: usize = 2_048;

impl Turn<'_> {
    /// Checks that the counter is resident or known to be absent, and that there is memory to
    /// create it.
    pub(super) fn check_resident(&mut self, name: Name<'_>, shard: usize, creates: bool) -> Result<(), Load> {
        let engine = self.engine;
        let full = creates && engine.memory_is_full();
        let shard = self.held_shard(shard);
        if !shard.unloaded && !full {
            return Ok(());
        }
        match shard.find(engine.table.hash(name.bytes()), name.bytes()) {
            Residency::NotResident => Err(Load::Names(vec![name.bytes().into()])),
            Residency::Absent if full => Err(Load::Memory),
            _ => Ok(()),
        }
    }

    /// Returns the load that these commands need first, as far as the held shards know.
    pub(super) fn find_missing(&self, locks: &mut ShardLocks<'_>, commands: &[Command<'_>]) -> Option<Load> {
        let full = self.engine.memory_is_full();
        if !full && !locks.shards_mut().any(|shard| shard.unloaded) {
            return None;
        }
        let (table, mut unknown, mut lacks_memory) = (&self.engine.table, Vec::new(), false);
        for command in commands {
            let CommandFacts { targets, allocates, .. } = command.facts();
            for name in targets.names() {
                let hash = table.hash(name.bytes());
                match locks.shard(table.shard_of(hash)).find(hash, name.bytes()) {
                    Residency::NotResident => unknown.push(name.bytes().into()),
                    Residency::Absent => lacks_memory |= full && allocates == Some(*name),
                    Residency::Present(_) => {}
                }
            }
        }
        match unknown.is_empty() {
            false => Some(Load::Names(unknown)),
            true => lacks_memory.then_some(Load::Memory),
        }
    }

    /// On a shared store, checks that the rows of these commands' counters are fresh enough. The
    /// caller holds their shards.
    pub(super) fn check_rows(&self, locks: &mut ShardLocks<'_>, commands: &[Command<'_>]) -> Result<(), NotRun> {
        let Some(shared) = &self.engine.shared else { return Ok(()) };
        let mut rows = Vec::new();
        for command in commands {
            let CommandFacts { targets, store, .. } = command.facts();
            let adds = store == StoreNeed::Add;
            for name in targets.names() {
                let hash = self.engine.table.hash(name.bytes());
                let shard = locks.shard(self.engine.table.shard_of(hash));
                let (policy, times) = (&self.policies.policy(*name).share, (self.elapsed, self.rows_since));
                match shared.check_row(shard.own_cells(hash, name.bytes()), *name, adds, times, policy) {
                    RowCheck::Usable => {}
                    RowCheck::Fetch => rows.push(name.bytes().into()),
                    RowCheck::Refuse(refusal) => return Err(refusal.into()),
                }
            }
        }
        if rows.is_empty() { Ok(()) } else { Err(NotRun::Load(Load::Rows(rows))) }
    }

    /// Adds the counters of a later command to a load, unless they are known. So a pipeline waits
    /// once, not once per command. A hint: the command itself checks again.
    pub fn prefetch(&mut self, command: &Command<'_>, load: &mut Load) {
        self.end_run();
        let (unknown, rows) = match load {
            Load::Names(unknown) => (unknown, None),
            Load::Rows(unknown) => (unknown, self.engine.shared.as_ref()),
            _ => return,
        };
        let (table, times, policies) = (&self.engine.table, (self.elapsed, self.rows_since), &self.policies);
        let adds = matches!(command, Command::Add { .. });
        let mut check_name = |name: &Name<'_>| {
            let hash = table.hash(name.bytes());
            let mut shard = table.lock(table.shard_of(hash));
            let lookup = shard.find(hash, name.bytes());
            let wanted = match rows {
                None => lookup == Residency::NotResident,
                Some(shared) => {
                    let own_cells = shard.own_cells(hash, name.bytes());
                    let policy = &policies.policy(*name).share;
                    lookup != Residency::NotResident
                        && matches!(shared.check_row(own_cells, *name, adds, times, policy), RowCheck::Fetch)
                }
            };
            if unknown.len() < LOAD_NAMES_MAX && wanted {
                unknown.push(name.bytes().into());
            }
        };
        command.facts().targets.names().iter().for_each(&mut check_name);
    }
}
