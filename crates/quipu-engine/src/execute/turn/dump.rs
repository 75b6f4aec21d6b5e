//! Dumps a whole counter as bytes that another engine can decode.
//!
//! In: a name. Out: the value of a count, or the body of a sketch with its panes.

use quipu_model::{Dump, DumpContent, Freshness, Name, Refusal};

use crate::execute::turn::Turn;
use crate::seal::load::Load;

/// Refusal of a sketch over time with many large panes.
const TOO_LARGE: &str = "the panes of this sketch have more than 16 MiB, the most that a dump may have";

impl Turn<'_> {
    /// Dumps a counter; `None` if it does not exist. `Err`: it is not resident, or its row is too
    /// old; it can be dumped after the load.
    pub fn dump(&mut self, name: Name<'_>) -> Result<Result<Option<Dump>, Refusal>, Load> {
        let cell = match self.read(name, Freshness::Usual)? {
            Ok((Some(cell), _)) => cell,
            Ok((None, _)) => return Ok(Ok(None)),
            Err(refusal) => return Ok(Err(refusal)),
        };
        let table = &self.engine.table;
        let shard = table.shard_of(table.hash(name.bytes()));
        let locks = self.locks.as_mut().expect("reading has opened the run");
        let content = match locks.shard(shard).body(name.bytes()) {
            None => DumpContent::Count(cell.value),
            Some(body) => match body.dump(&self.engine.sketch_key) {
                Some(sketch) => DumpContent::Sketch(sketch),
                None => return Ok(Err(Refusal::NotOffered { reason: TOO_LARGE })),
            },
        };
        Ok(Ok(Some(Dump { content, expires_at: cell.expires_at })))
    }
}
