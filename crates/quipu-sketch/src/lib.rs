//! Approximate counting, as pure functions over bytes.
//!
//! A sketch's state is its bytes: `bytes()` returns the form used on disk, in backups and between
//! nodes. Indexes beside the bytes are derived, and rebuilt from them. Every mutation records its
//! changes of the bytes in [`Edits`], so storage code needs no knowledge of the kind.
//!
//! | kind | counts | error |
//! |---|---|---|
//! | [`Hll`] | distinct items, as Redis does, byte for byte | 0.65 % filled on one node, 0.81 % merged, in 12 KB |
//! | [`Unique`] | distinct items, under a secret key | 0.73 % and 0.84 % in 8 KB; below 2,000 items 0.005 % |
//! | [`CountMin`] | occurrences of each item, never too few | N·ε |
//! | [`Top`] | the most frequent items | bounds on both sides that always hold |
//!
//! [`sample`] counts one in p of many events. [`window`] maps times to the panes of a window.
//! [`ring`] manages the panes of a sketch over time. [`splitmix`] is the workspace's seeded
//! generator.
//!
//! `from_bytes` checks foreign bytes in full. It allocates memory only in proportion to them.
//!
//! Not here: time, chance and I/O (times and random numbers are arguments), the measurement of
//! errors (`cargo xtask accuracy`).

mod dump;
mod edit;
mod error;
mod interval;
mod key;
mod simd;
mod sketch;

pub mod count_min;
pub mod hll;
pub mod ring;
pub mod sample;
pub mod splitmix;
pub mod top;
pub mod unique;
pub mod window;

pub use count_min::CountMin;
pub use dump::Dump;
pub use edit::{Edit, Edits, apply};
pub use error::{CorruptSketch, SketchError};
pub use hll::Hll;
pub use interval::Interval;
pub use key::Key;
pub use ring::Ring;
pub use sketch::{Sketch, SketchKind};
pub use splitmix::SplitMix64;
pub use top::Top;
pub use unique::Unique;

/// Size of the largest sketch. Larger ones are refused before any allocation.
pub const BYTES_MAX: usize = 16 << 20;
