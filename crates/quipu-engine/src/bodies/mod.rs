//! Bodies of approximate counters at rest and in memory: maps, pages, and unsettled deltas.
//!
//! Not here: commands that change a body (`apply::bodies`), the algorithms (`quipu-sketch`).

pub(crate) mod body_map;
pub(crate) mod own_bodies;
pub mod own_cells;
pub(crate) mod page_set;
pub(crate) mod stored_page;
pub(crate) mod together;
pub(crate) mod unsettled_changes;
