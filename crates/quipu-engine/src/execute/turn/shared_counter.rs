//! Runs work of the shared store on one counter, with a record like a command's.
//!
//! Not here: the work itself (`sharing`).

use quipu_model::{Durability, Name, Refusal};

use crate::apply::bodies::own_body_bytes_max;
use crate::apply::shared_counter::SharedCounter;
use crate::apply::targets::counter_record_bytes_max;
use crate::execute::turn::Turn;
use crate::execute::turn::open_run::expect_run;

impl Turn<'_> {
    /// Works on a shared counter. Refused if it is not resident, or there is no room for its
    /// record.
    pub(crate) fn with_shared_counter<T>(
        &mut self,
        name: Name<'_>,
        work: impl FnOnce(&mut SharedCounter<'_>) -> T,
    ) -> Result<T, Refusal> {
        self.with_shared_counter_body(name, 0, work)
    }

    /// The same for a sketch. The own body may be replaced by one of at most `body_bytes`, or be
    /// written in full.
    pub(crate) fn with_shared_counter_body<T>(
        &mut self,
        name: Name<'_>,
        body_bytes: usize,
        work: impl FnOnce(&mut SharedCounter<'_>) -> T,
    ) -> Result<T, Refusal> {
        let merged_bytes = if body_bytes > 0 { body_bytes + own_body_bytes_max(name) } else { 0 };
        let mut body_bytes = merged_bytes;
        let (shard, durability) = loop {
            let shard = self.continue_or_end_run(name);
            let durability = self.policies.durability(name);
            let bytes = counter_record_bytes_max(name, self.own_bytes_max()) + body_bytes;
            self.admit(bytes, true, durability > Durability::Memory)?;
            if self.lock_shard(shard) {
                let own = self.held_shard(shard).own_bodies().bodies_of(name.bytes());
                // Carried or received state may be merged into each existing body.
                let own = own.map(|(_, own)| own.bytes_after_a_carry() + own_body_bytes_max(name));
                let needed = merged_bytes + own.sum::<usize>();
                if needed <= body_bytes {
                    break (shard, durability);
                }
                // Reserved without a lock held: there may be no room until the disk is extended.
                body_bytes = needed;
                self.end_run();
            }
        };
        self.engine.check_open()?;
        self.check_resident(name, shard, false)
            .map_err(|_| Refusal::AtRest { reason: "it has left memory".to_owned() })?;
        let run = expect_run(&mut self.open_run);
        run.count_command();
        run.raise_durability(durability);
        Ok(self.with_run(None, true, |run| run.with_shared_counter(name, work)))
    }
}
