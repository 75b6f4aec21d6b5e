//! Commands against a shared store: looking into one, and moving counters in and out.
//!
//! In: the URL of a store, and what is wanted of it. Out: tables, JSON, files; and, of an import or a copy, counters.
//!
//! Invariants:
//! - only `import`, `copy`, `writers retire` and `writers adopt` change anything, and each may be repeated;
//! - an import counts as a writer of its own (`importer`), as any node does; a copy keeps the writers of the source (`mirror`).
//!
//! Not here: the stores themselves, and the sources of imports (`backends`), the data directory of a node (`writers`, `audit` beside this folder).

pub mod args;

mod names;
mod retry;
mod rows;

mod import_pipeline;
mod importer;
mod mirror;
mod skip_list;

pub mod copy;
pub mod export;
pub mod import;

pub mod adopt;
pub mod audit;
pub mod registry;
pub mod shards;
