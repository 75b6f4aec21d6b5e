//! Implements sketches: counters of approximate kinds, each with a body beside its cell.
//!
//! In: commands on unique, frequency and top-K sketches. Out: answers; cells and body edits for the
//! journal; pages for the ledger.
//!
//! A sketch has a cell like every counter; the cell's value is the **version** of its **body**. So
//! names, expiry, epochs, walks, limits and tokens work as for all counters. The body is in the
//! shard's [`BodyMap`], under the shard's lock. Cells and bodies are stored together: one record
//! contains both, the watermark covers the shard's bodies in the ledger, and a start replays the
//! later records.
//!
//! Invariants:
//! - a body has the epoch of its cell, and the cell's value is its version; a cell of another epoch
//!   belongs to another counter, and the old body is dropped;
//! - a record contains a body's edits only if every earlier change is in the journal or the ledger;
//!   otherwise it contains the whole body;
//! - a changed page is in the same ingestion as its cell.
//!
//! Not here: the sketch algorithms (`quipu-sketch`), the commands (`quipu_model::SketchCommand`).

mod answer;
mod apply;
mod change;
mod frequency;
mod observe;
mod room;
mod shared;
mod time;
mod top;
mod unique;

pub(crate) use self::answer::{SketchReading, read_sketch};
pub(crate) use self::apply::known;

pub(crate) use self::room::{
    concerns_bodies, observe_bytes_max, outcome_bytes_max, own_body_bytes_max, record_bytes_guess, record_bytes_max,
    strings_bytes_max,
};

pub(crate) use crate::bodies::together::{is_idempotent, key_print, take_in};

/// Most bytes of bodies, of the memory limit for all counters: bodies are never evicted, and cells
/// need space to be loaded into.
pub(crate) fn bodies_bytes_max(table_bytes_max: u64) -> u64 {
    table_bytes_max / 4 * 3
}

/// Hash key of a directory's native sketches: derived from the directory's number, like the hashes
/// of tokens.
pub(crate) fn directory_key(log: u64) -> quipu_sketch::Key {
    quipu_sketch::Key(xxhash_rust::xxh3::xxh3_128_with_seed(b"sketches of quipu", log).to_le_bytes())
}

/// Hash key of native sketches on a shared store: equal on all nodes, derived from their common
/// secret.
pub(crate) fn shared_key(secret: &str) -> quipu_sketch::Key {
    const SALT: &[u8] = b"sketches of quipu on a shared store ";
    quipu_sketch::Key(xxhash_rust::xxh3::xxh3_128(&[SALT, secret.as_bytes()].concat()).to_le_bytes())
}

/// Fingerprint of the hash key in bodies of this kind, for nodes with this secret; 0: the kind uses
/// no key.
pub fn sketch_fingerprint(secret: &str, kind: quipu_sketch::SketchKind) -> u64 {
    key_print(&shared_key(secret), kind)
}

#[cfg(test)]
mod tests;
