//! Sketches: the counters of approximate kinds, and the bodies that make them so.
//!
//! In: what is asked of uniques, frequencies and tops. Out: answers; cells, and what changed in bodies, for the journal; pages for the ledger.
//!
//! A sketch is a counter like any other: it has a cell, whose value is the **version** of its **body**, so names, expiry, epochs, walks, limits and tokens are those of all counters. Its body is on the shard's **shelf**, under the
//! same lock. All that holds for cells holds for bodies with it: one record tells of both; the watermark says up to where the ledger knows the shard's bodies; a start replays what came after.
//!
//! Invariants:
//! - a body has the epoch of its cell, and the cell's value is its version; a cell of another epoch is that of another counter, and the body is gone;
//! - a record says what changed in a body whose every earlier change is in the journal or the ledger, or else all of it;
//! - a page that has changed is in the same ingestion as the cell.
//!
//! Not here: the sketches themselves (`quipu-sketch`), what is asked of them (`quipu_model::SketchCommand`).

mod answer;
mod apply;
mod body_map;
mod change;
mod frequency;
mod observe;
mod own_bodies;
mod page_set;
mod room;
mod shared;
mod stored_page;
mod time;
mod together;
mod top;
mod unique;
mod unsettled_changes;

pub(crate) use self::answer::{SketchReading, read_sketch};
pub(crate) use self::apply::known;
pub use self::body_map::{Body, BodyMap};
pub use self::observe::OBSERVES_MAX;
pub use self::own_bodies::OwnBodies;
pub(crate) use self::room::{
    concerns_bodies, outcome_bytes_max, own_body_bytes_max, record_bytes_guess, record_bytes_max, strings_bytes_max,
};
pub(crate) use self::stored_page::{StoredPage, is_sketch_key, own_body_number};
pub(crate) use self::together::{is_idempotent, key_print, take_in};
pub use self::unsettled_changes::{CarriedDelta, UnsettledChanges};

/// The largest body.
pub const SKETCH_BYTES_MAX: usize = quipu_sketch::BYTES_MAX;

/// Of so many bytes that all counters may take in memory, the most that bodies may: they do not leave it, and cells need some to come back to.
pub(crate) fn bodies_bytes_max(table_bytes_max: u64) -> u64 {
    table_bytes_max / 4 * 3
}

/// Under what sketches of a directory hash what they count, where that is a secret: made of the directory's own number, as the hashes of tokens are.
pub(crate) fn directory_key(log: u64) -> quipu_sketch::Key {
    quipu_sketch::Key(xxhash_rust::xxh3::xxh3_128_with_seed(b"sketches of quipu", log).to_le_bytes())
}

/// The same on a shared store: one for all nodes, made of the secret that they have in common.
pub(crate) fn shared_key(secret: &str) -> quipu_sketch::Key {
    const SALT: &[u8] = b"sketches of quipu on a shared store ";
    quipu_sketch::Key(xxhash_rust::xxh3::xxh3_128(&[SALT, secret.as_bytes()].concat()).to_le_bytes())
}

/// The fingerprint that bodies of this kind have on a shared store whose nodes have this secret; 0: they hash under none.
pub fn sketch_fingerprint(secret: &str, kind: quipu_sketch::SketchKind) -> u64 {
    key_print(&shared_key(secret), kind)
}

#[cfg(test)]
mod tests;
