//! Reads and writes the JSON forms of the HTTP interface: paths, bodies, replies.
//!
//! In: bytes of a path, a query or a body. Out: names, deltas and batches; and bytes for readings
//! and replies.
//!
//! Invariants:
//! - No client bytes make this module panic.
//! - The deepest input is a batch of flat objects, so depth needs no bound of its own.
//! - A whole number beyond ±2^53 is written as a string, and every total has its string form beside
//!   it. So a client that counts in doubles never rounds unnoticed.
//! - A whole number is read from its digits, so it is taken exactly or refused, never rounded.
//! - An unknown key or value is refused by name, never skipped.

mod body;
mod display;
mod namespace;
mod percent;
mod reply;
mod time;
mod whole;

pub use body::{
    AddBody, BatchItem, BatchOp, COUNTED_ITEMS_MAX, CountedItem, MutationBody, OBSERVE_ITEMS_MAX, ObserveBody,
    ObservedItem, parse_add, parse_item, parse_mutation, parse_observe,
};
pub use display::display;
pub use namespace::{NamespaceMistake, namespace_value, parse_namespace, setting_value};
pub use percent::{PercentError, percent_decode, percent_encode, query_decode};
pub use reply::{SAFE_INTEGER_MAX, write_bytes, write_name, write_reading, write_string, write_total};
pub use time::rfc3339;
pub use whole::{WholeNumberError, read_whole};
