//! Commands against a shared store: they inspect one, and move counters in and out.
//!
//! In: the URL of a store, and options. Out: tables, JSON, files; and, from an import or a copy,
//! counters.
//!
//! Invariants:
//! - only `import`, `copy`, `writers retire` and `writers adopt` change anything, and each may be
//!   repeated;
//! - an import counts as a writer of its own (`importer`), like any node; a copy keeps the writers
//!   of the source (`mirror`).
//!
//! Not here: the stores and the sources of imports (`backends`), the data directory of a node
//! (`writers`, `audit` beside this folder).

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
