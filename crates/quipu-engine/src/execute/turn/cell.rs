//! Reads a counter's cell, and removes it if it has expired.
//!
//! Not here: a value with its accuracy (`reading`).

use quipu_model::{Cell, Epoch, Freshness, Name};

use crate::core::load::Load;
use crate::execute::routing::RowCheck;
use crate::execute::turn::open_run::expect_run;
use crate::execute::turn::{NotRun, Turn};

impl Turn<'_> {
    /// Reads a counter's full cell, and the epoch of a new one. On a shared store the row is as
    /// fresh as requested, or the read is refused.
    pub(crate) fn read(&mut self, name: Name<'_>, freshness: Freshness) -> Result<(Option<Cell>, Epoch), NotRun> {
        if let Some(shared) = &self.engine.shared {
            if let Some(refusal) = shared.refusal() {
                return Err(refusal.into());
            }
            let shard = self.lock_for_read(name);
            self.check_resident(name, shard, false)?;
            let hash = self.engine.table.hash(name.bytes());
            let mut policy = self.policies.policy(name).share;
            policy.freshness = freshness.limit(policy.freshness);
            let times = (self.elapsed, self.rows_since);
            match shared.check_row(self.held_shard(shard).own_cells(hash, name.bytes()), name, false, times, &policy) {
                RowCheck::Usable => {}
                RowCheck::Fetch => return Err(Load::Rows(vec![name.bytes().into()]).into()),
                RowCheck::Refuse(refusal) => return Err(refusal.into()),
            }
        }
        Ok(self.cell(name)?)
    }

    /// Reads a counter's full cell, and the epoch of a new one.
    pub(crate) fn cell(&mut self, name: Name<'_>) -> Result<(Option<Cell>, Epoch), Load> {
        let (shard, has_room) = loop {
            let shard = self.continue_or_end_run(name);
            let has_room = self.may_expire(name);
            if self.lock_shard(shard) {
                break (shard, has_room);
            }
        };
        expect_run(&mut self.open_run).raise_durability(self.policies.durability(name));
        self.check_resident(name, shard, false)?;
        let cell = self.with_run(None, has_room, |run| run.cell(name));
        let floor = self.held_shard(shard).floor;
        Ok((cell, floor))
    }

    /// Removes a counter if it has expired; false if there was no room for the record.
    pub(crate) fn expire(&mut self, name: Name<'_>) -> bool {
        let has_room = self.may_expire(name);
        if has_room {
            // An evicted counter is removed by the command that loads it.
            let _ = self.cell(name);
        }
        has_room
    }
}
