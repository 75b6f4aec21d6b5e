//! Records the ledger's extent: the journal positions that it includes, shard by shard.
//!
//! ```text
//! watermark, one key of the ledger; little-endian
//!   u8   version   1, or 2 with incarnations
//!   u64  log       the directory's, as in the control file
//!   u64  seed      of the hashes that order the ledger
//!   u64  position  where the journal may be cut: everything before it is in the ledger
//!   u32  previous  the chain there
//!   u64  cleared   the end of the newest flush that the ledger has carried out
//!   u64  time      of the seal, Unix milliseconds
//!   u32  shards
//!   per shard
//!     u64      end of the newest record it includes
//!     u64      counters
//!     u64 u64  floor: the epoch of new counters (milliseconds, node)
//!     u64 u64  no cell has a newer epoch
//!     u64      no cell expires before; all ones: none expires
//!   per incarnation that was registered with a shared store and is not over
//!     u64      incarnation
//!     u64      time of its registration, by the store's clock
//! ```

use std::collections::BTreeMap;

use quipu_model::{Epoch, Incarnation, Millis, NodeId};

use crate::journal::format::Position;

const VERSION: u8 = 1;
const VERSION_WITH_INCARNATIONS: u8 = 2;
const INCARNATION_BYTES: usize = 2 * 8;
const HEAD_BYTES: usize = 1 + 8 + 8 + 8 + 4 + 8 + 8 + 4;
const SHARD_BYTES: usize = 7 * 8;

/// The ledger's extent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Watermark {
    /// Log id of the directory's journal.
    pub log: u64,
    /// Seed of the hashes that order the ledger.
    pub seed: u64,
    /// Position at which the journal may be cut.
    pub position: Position,
    /// The chain there.
    pub previous: u32,
    /// The newest flush that the ledger has carried out.
    pub cleared: Position,
    /// Time of the seal.
    pub time: Millis,
    /// One per shard.
    pub shards: Vec<ShardMark>,
    /// Incarnations registered with a shared store, with their registration times.
    pub joined: BTreeMap<Incarnation, Millis>,
}

/// The ledger's extent in a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ShardMark {
    /// The end of the newest record that the ledger includes.
    pub newest: Position,
    /// Number of counters at that position.
    pub counters: u64,
    /// The epoch of new counters.
    pub floor: Epoch,
    /// No cell has a newer epoch.
    pub epoch_newest: Epoch,
    /// No cell expires before this; `None`: none expires.
    pub deadline: Option<Millis>,
}

impl Watermark {
    /// The watermark of an empty ledger.
    pub fn new(log: u64, shards: usize, seed: u64) -> Watermark {
        let shards = vec![ShardMark::default(); shards.next_power_of_two()];
        let (start, joined) = (Position(0), BTreeMap::new());
        Watermark { log, seed, position: start, previous: 0, cleared: start, time: Millis(0), shards, joined }
    }

    /// The end of the newest record that the ledger includes: the journal was synced at least up to
    /// here.
    pub fn newest(&self) -> Position {
        self.shards.iter().map(|mark| mark.newest).fold(self.position.max(self.cleared), Position::max)
    }

    /// Encodes the watermark.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEAD_BYTES + self.shards.len() * SHARD_BYTES);
        out.push(if self.joined.is_empty() { VERSION } else { VERSION_WITH_INCARNATIONS });
        for field in [self.log, self.seed, self.position.0] {
            out.extend_from_slice(&field.to_le_bytes());
        }
        out.extend_from_slice(&self.previous.to_le_bytes());
        for field in [self.cleared.0, self.time.0] {
            out.extend_from_slice(&field.to_le_bytes());
        }
        out.extend_from_slice(&(self.shards.len() as u32).to_le_bytes());
        for ShardMark { newest, counters, floor, epoch_newest, deadline } in &self.shards {
            let deadline = deadline.map_or(u64::MAX, |at| at.0);
            let (floor, epoch) = ([floor.millis, floor.node.0], [epoch_newest.millis, epoch_newest.node.0]);
            for field in [newest.0, *counters, floor[0], floor[1], epoch[0], epoch[1], deadline] {
                out.extend_from_slice(&field.to_le_bytes());
            }
        }
        for (incarnation, at) in &self.joined {
            out.extend_from_slice(&incarnation.0.to_le_bytes());
            out.extend_from_slice(&at.0.to_le_bytes());
        }
        out
    }

    /// Decodes a watermark; `None` if the bytes are none of a known version.
    pub fn decode(bytes: &[u8]) -> Option<Watermark> {
        let (head, rest) = bytes.split_at_checked(HEAD_BYTES)?;
        let u64_at = |bytes: &[u8], at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let u32_at = |bytes: &[u8], at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let count = u32_at(head, 45) as usize;
        if !count.is_power_of_two() {
            return None;
        }
        let (shards, incarnations) = rest.split_at_checked(count.checked_mul(SHARD_BYTES)?)?;
        let whole = match head[0] {
            VERSION => incarnations.is_empty(),
            VERSION_WITH_INCARNATIONS => !incarnations.is_empty() && incarnations.len() % INCARNATION_BYTES == 0,
            _ => false,
        };
        if !whole {
            return None;
        }
        let registration = |bytes: &[u8]| (Incarnation(u64_at(bytes, 0)), Millis(u64_at(bytes, 8)));
        let epoch = |bytes: &[u8], at| Epoch { millis: u64_at(bytes, at), node: NodeId(u64_at(bytes, at + 8)) };
        let mark = |bytes: &[u8]| ShardMark {
            newest: Position(u64_at(bytes, 0)),
            counters: u64_at(bytes, 8),
            floor: epoch(bytes, 16),
            epoch_newest: epoch(bytes, 32),
            deadline: Some(Millis(u64_at(bytes, 48))).filter(|at| at.0 != u64::MAX),
        };
        Some(Watermark {
            log: u64_at(head, 1),
            seed: u64_at(head, 9),
            position: Position(u64_at(head, 17)),
            previous: u32_at(head, 25),
            cleared: Position(u64_at(head, 29)),
            time: Millis(u64_at(head, 37)),
            shards: shards.chunks_exact(SHARD_BYTES).map(mark).collect(),
            joined: incarnations.chunks_exact(INCARNATION_BYTES).map(registration).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watermark_comes_back_as_it_went_in_and_nothing_else_does() {
        let epoch = |n| Epoch { millis: n, node: NodeId(n + 1) };
        let mark = |n| ShardMark {
            newest: Position(n),
            counters: n + 1,
            floor: epoch(n + 2),
            epoch_newest: epoch(n + 4),
            deadline: (n % 2 == 0).then_some(Millis(n + 6)),
        };
        let (position, cleared) = (Position(5), Position(6));
        let shards = (0..4).map(mark).collect();
        let joined = BTreeMap::new();
        let watermark = Watermark { log: 2, seed: 3, position, previous: 7, cleared, time: Millis(8), shards, joined };
        let incarnations = [(Incarnation(1), Millis(2)), (Incarnation(3), Millis(4))].into();
        for watermark in [watermark.clone(), Watermark { joined: incarnations, ..watermark }] {
            let bytes = watermark.encode();
            assert_eq!(Watermark::decode(&bytes), Some(watermark.clone()));
            // Without the last incarnation the bytes are a whole watermark, too: the length gives
            // the number.
            let whole = |length: usize| watermark.joined.len() == 2 && length + INCARNATION_BYTES == bytes.len();
            for length in (0..bytes.len()).filter(|length| !whole(*length)) {
                assert_eq!(Watermark::decode(&bytes[..length]), None);
            }
        }
    }
}
