//! Dumps a whole counter as bytes that another engine can decode.
//!
//! In: a name. Out: the value of a count, or the body of a sketch with its panes.

use quipu_model::{Dump, DumpContent, Freshness, Name, Refusal};

use crate::execute::turn::{NotRun, Turn};

/// Refusal of a sketch over time with many large panes.
const TOO_LARGE: &str = "the panes of this sketch have more than 16 MiB, the most that a dump may have";

impl Turn<'_> {
    /// Dumps a counter; `None` if it does not exist. A load is needed if it is not resident, or its
    /// row is too old.
    pub fn dump(&mut self, name: Name<'_>) -> Result<Option<Dump>, NotRun> {
        let (Some(cell), _) = self.read(name, Freshness::Usual)? else { return Ok(None) };
        let engine = self.engine;
        let shard = engine.table.shard_of(engine.table.hash(name.bytes()));
        let content = match self.held_shard(shard).body(name.bytes()) {
            None => DumpContent::Count(cell.value),
            Some(body) => match body.dump(&engine.sketch_key) {
                Some(sketch) => DumpContent::Sketch(sketch),
                None => return Err(Refusal::NotOffered { reason: TOO_LARGE }.into()),
            },
        };
        Ok(Some(Dump { content, expires_at: cell.expires_at }))
    }
}
