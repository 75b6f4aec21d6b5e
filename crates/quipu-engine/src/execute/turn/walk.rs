//! Runs commands that walk over all names.
//!
//! Not here: walks over names at rest (`seal::load`).

use quipu_model::{Command, ListNames, Reply, Scan};

use crate::core::load::Load;
use crate::execute::turn::Turn;
use crate::journal::format::Position;
use crate::table::walk::{ShardWalk, list_names, scan};

impl Turn<'_> {
    pub(super) fn walk(&mut self, command: &Command<'_>) -> Result<Reply, Load> {
        // A walk takes long, and no commit passes an unfilled range.
        self.fill();
        let table = &self.engine.table;
        let mut walk = ShardWalk { table, ledger: None, now: self.now, newest: Position(0), has_hidden_expired: false };
        // Before and after: a counter may be evicted for the first time during the walk, which
        // would miss it.
        let at_rest = || self.engine.has_unloaded();
        let reply = match command {
            Command::Scan(command @ Scan { cursor, pattern, count }) => {
                let walked = (!at_rest()).then(|| scan(&mut walk, command)).filter(|_| !at_rest());
                let pattern = || pattern.map(|pattern| pattern.0.into());
                walked.ok_or_else(|| Load::Scan { cursor: *cursor, pattern: pattern(), count: *count })?
            }
            Command::ListNames(command @ ListNames { pattern, bytes_max }) => {
                let walked = (!at_rest()).then(|| list_names(&mut walk, command)).filter(|_| !at_rest());
                walked.ok_or_else(|| Load::List { pattern: pattern.0.into(), bytes_max: *bytes_max })?
            }
            _ => {
                // The number of counters includes all applied commands.
                let counters = table.counters();
                walk.newest = self.engine.journal.reserved();
                Ok(Reply::Integer(counters as i64))
            }
        };
        if walk.has_hidden_expired {
            walk.newest = walk.newest.max(self.journal_time());
        }
        let strictest = self.engine.namespaces.current().strictest();
        self.wait_for(strictest, walk.newest);
        Ok(reply.unwrap_or_else(Reply::Refused))
    }
}
