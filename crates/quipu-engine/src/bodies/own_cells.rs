//! Encodes and updates a node's own cells of one shared counter, and their confirmation by the
//! store.
//!
//! ```text
//! bytes, in the journal and at rest; varints have 7 bits a byte, least first
//!   varint  cells
//!   per cell
//!     u8      flags        1 has a value · 2 an epoch · 4 an expiry · 8 a pending expiry ·
//!                          16 settled · 32 a total that is not the value · 64 an expired seq ·
//!                          128 a confirmed total
//!     u64     incarnation  little-endian
//!     varint  shard
//!     varint  seq
//!     epoch   varint milliseconds, u64 node                     if 2
//!     varint  value        zigzag of 128 bits
//!     varint  total        zigzag of 128 bits                   if 32
//!     varint  seq of the last expiry                            if 64
//!     varint  last confirmed total, zigzag of 128 bits          if 128
//!     varint  expires_at                                        if 4
//!     pending expiry: epoch, value, expires_at, and varint seq  if 8
//! ```
//!
//! Invariants:
//! - a cell's seq rises with every change of its value, so the same seq always means the same
//!   value;
//! - the settled flag is written late or never, so a set flag is true. After a restart the other
//!   cells are put again, which changes nothing;
//! - the confirmed total is written late, too: the store may know more, by one put.
//!
//! A cell of a sketch body has no totals that matter, and no expired values. In place of the
//! confirmed total it has the seq of the newest put that its body contains. In place of the expired
//! seq, the cell of the node itself has the first seq given to a state of this body
//! (`bodies/unsettled_changes`).

use std::time::Duration;

use quipu_model::shared::body::{INCARNATION_BODIES_MAX, body_number, incarnation_shard, is_body_shard};
use quipu_model::shared::{CellId, NODE_INCARNATION, OwnValue, PendingExpiry, Put, RowVersion, Seq, Shard};
use quipu_model::varint::{put_varint, put_wide_zigzag, take_wide_varint, take_wide_zigzag};
use quipu_model::{Epoch, Incarnation, Millis, NodeId, Writer};

/// Most cells of older incarnations that one counter may have besides its present shards. Each is a
/// crash before the previous one was settled.
pub const OLD_CELLS_MAX: usize = 16;

/// Most confirmed cells of former incarnations that a node keeps for one counter: the store may
/// lose them.
pub const CONFIRMED_CELLS_MAX: usize = OLD_CELLS_MAX;

/// Most cells that a node has of one counter with at most `shards_max` shards.
pub fn cells_max(shards_max: u16) -> usize {
    usize::from(shards_max) + OLD_CELLS_MAX
}

/// Most bytes of a node's own cells of one counter with at most `shards_max` shards.
pub fn own_bytes_max(shards_max: u16) -> usize {
    // One more, for the cell of the node itself.
    4 + (cells_max(shards_max) + 1) * CELL_BYTES_MAX
}

/// Most bytes of one cell: flags, incarnation, shard, total, confirmed total, expired seq, and
/// twice seq, epoch, value and expiry.
pub const CELL_BYTES_MAX: usize = 1 + 8 + 3 + 2 * 19 + 10 + 2 * (10 + 18 + 19 + 10);

/// The encoding of no cells.
pub const NO_CELLS: &[u8] = &[0];

const SAID: u8 = 1;
const HAS_EPOCH: u8 = 2;
const HAS_EXPIRY: u8 = 4;
const HAS_LAPSED: u8 = 8;
const SETTLED: u8 = 16;
const HAS_TOTAL: u8 = 32;
const HAS_LET_GO: u8 = 64;
const HAS_CONFIRMED: u8 = 128;

/// This node's cells of one counter.
#[derive(Debug, Clone, Default)]
pub struct OwnCells {
    /// The cells of its present incarnation and of earlier ones.
    pub cells: Vec<OwnCell>,
    /// The newest epoch that the store has shown; a new cell opens under it.
    pub epoch: Epoch,
    /// Request time of the row behind the shown value.
    pub requested_at: Option<Duration>,
    /// Version of that row.
    pub row_version: RowVersion,
    /// Arrival time of that row: a row requested before it may be an older one.
    pub received_at: Duration,
    /// Until then the known value is shown at any age: the store did not respond.
    pub serve_stale_until: Option<Duration>,
    /// Raised by every change that makes rows in flight outdated.
    pub generation: u32,
    /// Number of calls to the store about this counter; above zero, it stays in memory.
    pub pins: u32,
    /// The sum over all writers, if it does not fit a reply. The counter then shows the nearest
    /// 64-bit number.
    pub wide_sum: Option<Box<i128>>,
    /// Nodes have created it in different kinds or sizes, so no sketch can be shown.
    pub has_body_conflict: bool,
}

/// One of this node's cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnCell {
    /// Its incarnation.
    pub incarnation: Incarnation,
    /// Its shard.
    pub shard: Shard,
    /// Its newest seq.
    pub seq: Seq,
    /// Its value.
    pub own: OwnValue,
    /// True if the store has confirmed the newest seq.
    pub settled: bool,
    /// True if the store must confirm the cell anew, this seq or a newer one.
    pub doubted: bool,
    /// Total of the newest confirmed put. The rest of the own total is not known to be counted.
    pub confirmed: i128,
}

impl OwnCell {
    /// Id of the cell in a row.
    pub fn id(&self, node: NodeId) -> CellId {
        CellId { writer: Writer { node, incarnation: self.incarnation }, shard: self.shard }
    }

    /// Returns true for the cell of a body, of the node itself or of an incarnation.
    pub fn is_body(&self) -> bool {
        is_body_shard(self.incarnation, self.shard)
    }

    /// Number of the body among this node's bodies of the counter.
    pub fn body_number(&self) -> u16 {
        body_number(self.shard)
    }

    /// The put of the cell, if there is something to put.
    pub fn pending_put(&self, node: NodeId) -> Option<Put> {
        self.own.put(self.id(node), self.seq)
    }

    /// Sets a new value, under the next seq.
    pub fn update(&mut self, own: OwnValue) {
        (self.own, self.seq, self.settled) = (own, Seq(self.seq.0 + 1), !own.has_value && own.pending_expiry.is_none());
        self.doubted &= !self.settled;
    }

    /// Sum of unexpired adds that are not known to have reached the store.
    pub fn unconfirmed_sum(&self, now: Millis) -> i128 {
        match (self.own.pending_expiry, self.own.expires_at) {
            // Nothing of the new epoch is put before the store has decided.
            (Some(_), _) => self.own.value,
            (None, Some(at)) if at <= now => 0,
            _ => self.own.total.saturating_sub(self.confirmed),
        }
    }

    /// For the cell of a body: the newest put of this epoch that the body contains in full.
    pub fn included_seq(&self) -> Seq {
        if self.settled { self.seq } else { Seq(u64::try_from(self.confirmed).unwrap_or(0)) }
    }

    /// For a node's cell: the first of the seqs, up to the newest, given to states of its body.
    pub fn seq_range_start(&self) -> Seq {
        self.own.expired_seq
    }

    /// For the cell of a body: sets the seqs needed after a restart to recognise the node's own
    /// puts.
    pub fn set_seq_range(&mut self, (included, from): (Seq, Seq)) {
        (self.confirmed, self.own.expired_seq) = (i128::from(included.0), from);
    }

    /// Marks the cell as confirmed by the store; returns true if that is news.
    pub fn mark_settled(&mut self) -> bool {
        let was_settled = std::mem::replace(&mut self.settled, true);
        (self.doubted, self.confirmed) = (false, self.own.total);
        !was_settled
    }

    /// Requires a new confirmation by the store.
    pub fn mark_unconfirmed(&mut self) {
        if self.is_body() {
            self.confirmed = i128::from(self.included_seq().0);
        }
        self.settled = !self.own.has_value && self.own.pending_expiry.is_none();
        self.doubted = !self.settled;
    }
}

impl OwnCells {
    /// Returns true if there may be changes that the store does not have.
    pub fn is_unsettled(&self) -> bool {
        self.cells.iter().any(|cell| !cell.settled)
    }

    /// Returns true if the value shown while the store does not respond is a known one, from before
    /// a restart or a reset. For a sketch with a body per incarnation, only the store has the
    /// bodies of ended and settled incarnations. Before a row was read, the node could show less
    /// than it has acknowledged.
    pub fn has_known_value(&self) -> bool {
        let in_part =
            self.received_at == Duration::ZERO && self.body_cells().any(|cell| cell.incarnation != NODE_INCARNATION);
        !in_part && (!self.cells.is_empty() || self.requested_at.is_some())
    }

    /// The cell of the node itself, for a sketch.
    pub fn node_cell(&self) -> Option<&OwnCell> {
        self.cells.iter().find(|cell| cell.incarnation == NODE_INCARNATION)
    }

    /// The cells of bodies.
    pub fn body_cells(&self) -> impl Iterator<Item = &OwnCell> {
        self.cells.iter().filter(|cell| cell.is_body())
    }

    /// The cell of the body with this number.
    pub fn body_cell(&self, number: u16) -> Option<&OwnCell> {
        self.body_cells().find(|cell| cell.body_number() == number)
    }

    /// The cell for a new observation: of the node itself for an idempotent sketch, else of the
    /// present incarnation. That cell may still have to be opened. `None`: there are too many.
    pub fn observed_cell(&self, is_idempotent: bool, present: Incarnation) -> Option<(Incarnation, Shard)> {
        if is_idempotent {
            return Some((NODE_INCARNATION, Shard(0)));
        }
        if let Some(cell) = self.body_cells().find(|cell| cell.incarnation == present) {
            return Some((present, cell.shard));
        }
        let free = (0..INCARNATION_BODIES_MAX).find(|number| self.body_cell(*number).is_none())?;
        Some((present, incarnation_shard(free)))
    }

    /// The cell of an incarnation and shard.
    pub fn cell_mut(&mut self, incarnation: Incarnation, shard: Shard) -> Option<&mut OwnCell> {
        self.cells.iter_mut().find(|cell| cell.incarnation == incarnation && cell.shard == shard)
    }

    /// Returns the cell of an incarnation and shard. A new one opens under the newest epoch that
    /// the store has shown, with the counter's known expiry.
    pub fn open_cell(&mut self, incarnation: Incarnation, shard: Shard, expires_at: Option<Millis>) -> &mut OwnCell {
        let at = self.cells.iter().position(|cell| cell.incarnation == incarnation && cell.shard == shard);
        let at = at.unwrap_or_else(|| {
            // The incarnation's other cells may have expired already: then the new one belongs to
            // the epoch that began. A body has no such cells.
            let is_body = is_body_shard(incarnation, shard);
            let sibling = self.cells.iter().find(|cell| !is_body && !cell.is_body() && cell.incarnation == incarnation);
            let sibling = sibling.map(|cell| cell.own);
            let own = match sibling {
                Some(OwnValue { epoch, expires_at, pending_expiry: None, .. }) => {
                    OwnValue { epoch, expires_at, ..OwnValue::default() }
                }
                _ => OwnValue { epoch: self.epoch, expires_at, ..OwnValue::default() },
            };
            self.cells.push(OwnCell {
                incarnation,
                shard,
                seq: Seq(0),
                own,
                settled: true,
                doubted: false,
                confirmed: 0,
            });
            self.cells.len() - 1
        });
        &mut self.cells[at]
    }

    /// The selected cells, in the form that a reading needs.
    pub fn list_cells(&self, node: NodeId, which: impl Fn(&OwnCell) -> bool) -> Vec<(CellId, Seq, OwnValue)> {
        self.cells.iter().filter(|cell| which(cell)).map(|cell| (cell.id(node), cell.seq, cell.own)).collect()
    }

    /// Applies the counter's expiry by this node's clock: earlier adds expire, unless the store
    /// decides otherwise.
    pub fn lapse(&mut self, now: Millis, present: Incarnation) {
        self.wide_sum = None;
        // An older incarnation adds nothing any more, so there is nothing to separate. It may have
        // other successors, so its seq stays.
        for cell in self.cells.iter_mut().filter(|cell| cell.incarnation == present && !cell.is_body()) {
            let lapsed = cell.own.lapse(now, Seq(cell.seq.0 + 1));
            if lapsed != cell.own {
                cell.update(lapsed);
            }
        }
    }

    /// Makes room for one more cell: drops the oldest confirmed cell of a former incarnation.
    /// Returns false if there is none.
    pub fn drop_oldest_confirmed(&mut self, present: Incarnation) -> bool {
        let confirmed = |cell: &OwnCell| cell.incarnation != present && cell.settled && !cell.is_body();
        let oldest = self.cells.iter().position(confirmed);
        oldest.map(|at| self.cells.remove(at)).is_some()
    }

    /// Marks rows in flight as outdated; the next reading fetches anew.
    pub fn invalidate_row(&mut self) {
        (self.generation, self.requested_at) = (self.generation.wrapping_add(1), None);
    }

    /// Approximate bytes in memory.
    pub fn memory_bytes(&self) -> usize {
        size_of::<OwnCells>() + self.cells.capacity() * size_of::<OwnCell>()
    }

    /// Encodes the cells.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(1 + self.cells.len() * 40);
        put_varint(&mut out, self.cells.len() as u64);
        for OwnCell { incarnation, shard, seq, own, settled, confirmed, .. } in &self.cells {
            let flag = |condition, flag| if condition { flag } else { 0 };
            // For a settled cell it equals the total.
            let confirmed = Some(*confirmed).filter(|confirmed| !settled && *confirmed != 0);
            out.push(
                flag(own.has_value, SAID)
                    | flag(own.epoch != Epoch::FIRST, HAS_EPOCH)
                    | flag(own.expires_at.is_some(), HAS_EXPIRY)
                    | flag(own.pending_expiry.is_some(), HAS_LAPSED)
                    | flag(*settled, SETTLED)
                    | flag(own.total != own.value, HAS_TOTAL)
                    | flag(own.expired_seq != Seq(0), HAS_LET_GO)
                    | flag(confirmed.is_some(), HAS_CONFIRMED),
            );
            out.extend_from_slice(&incarnation.0.to_le_bytes());
            put_varint(&mut out, u64::from(shard.0));
            put_varint(&mut out, seq.0);
            if own.epoch != Epoch::FIRST {
                put_epoch(&mut out, own.epoch);
            }
            put_wide_zigzag(&mut out, own.value);
            if own.total != own.value {
                put_wide_zigzag(&mut out, own.total);
            }
            if own.expired_seq != Seq(0) {
                put_varint(&mut out, own.expired_seq.0);
            }
            if let Some(confirmed) = confirmed {
                put_wide_zigzag(&mut out, confirmed);
            }
            if let Some(at) = own.expires_at {
                put_varint(&mut out, at.0);
            }
            if let Some(PendingExpiry { epoch, value, expires_at, seq }) = own.pending_expiry {
                put_epoch(&mut out, epoch);
                put_wide_zigzag(&mut out, value);
                put_varint(&mut out, expires_at.0);
                put_varint(&mut out, seq.0);
            }
        }
        out
    }

    /// Decodes the cells; `None` if the bytes are invalid.
    pub fn decode(bytes: &[u8]) -> Option<OwnCells> {
        let mut rest = bytes;
        let count = usize::try_from(take_wide_varint(&mut rest)?).ok()?;
        let mut cells = Vec::new();
        for _ in 0..count {
            let flags = take_bytes(&mut rest, 1)?[0];
            let incarnation = Incarnation(take_u64(&mut rest)?);
            let shard = Shard(u16::try_from(take_wide_varint(&mut rest)?).ok()?);
            let seq = Seq(take_number(&mut rest)?);
            let epoch = if flags & HAS_EPOCH != 0 { take_epoch(&mut rest)? } else { Epoch::FIRST };
            let value = take_wide_zigzag(&mut rest)?;
            let total = if flags & HAS_TOTAL != 0 { take_wide_zigzag(&mut rest)? } else { value };
            let let_go = Seq(if flags & HAS_LET_GO != 0 { take_number(&mut rest)? } else { 0 });
            let settled = flags & SETTLED != 0;
            let confirmed = match flags & HAS_CONFIRMED != 0 {
                // Only one encoding is valid, so equal cells always have equal bytes.
                true => Some(take_wide_zigzag(&mut rest)?).filter(|confirmed| !settled && *confirmed != 0)?,
                false if settled && is_body_shard(incarnation, shard) => i128::from(seq.0),
                false if settled => total,
                false => 0,
            };
            let expires_at = if flags & HAS_EXPIRY != 0 { Some(Millis(take_number(&mut rest)?)) } else { None };
            let lapsed = if flags & HAS_LAPSED != 0 {
                let (epoch, value) = (take_epoch(&mut rest)?, take_wide_zigzag(&mut rest)?);
                let (expires_at, seq) = (Millis(take_number(&mut rest)?), Seq(take_number(&mut rest)?));
                Some(PendingExpiry { epoch, value, expires_at, seq })
            } else {
                None
            };
            let own = OwnValue {
                epoch,
                value,
                total,
                expired_seq: let_go,
                has_value: flags & SAID != 0,
                expires_at,
                pending_expiry: lapsed,
            };
            cells.push(OwnCell { incarnation, shard, seq, own, settled, doubted: false, confirmed });
        }
        rest.is_empty().then(|| OwnCells { cells, ..OwnCells::default() })
    }
}

fn put_epoch(out: &mut Vec<u8>, epoch: Epoch) {
    put_varint(out, epoch.millis);
    out.extend_from_slice(&epoch.node.0.to_le_bytes());
}

fn take_epoch(rest: &mut &[u8]) -> Option<Epoch> {
    Some(Epoch { millis: take_number(rest)?, node: NodeId(take_u64(rest)?) })
}

fn take_number(rest: &mut &[u8]) -> Option<u64> {
    u64::try_from(take_wide_varint(rest)?).ok()
}

fn take_u64(rest: &mut &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(take_bytes(rest, 8)?.try_into().ok()?))
}

fn take_bytes<'a>(rest: &mut &'a [u8], bytes: usize) -> Option<&'a [u8]> {
    let (taken, remaining) = rest.split_at_checked(bytes)?;
    *rest = remaining;
    Some(taken)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn epochs() -> impl Strategy<Value = Epoch> {
        (any::<u64>(), any::<u64>()).prop_map(|(millis, node)| Epoch { millis, node: NodeId(node) })
    }

    fn cells() -> impl Strategy<Value = OwnCell> {
        let lapsed = (epochs(), any::<i128>(), any::<u64>(), any::<u64>())
            .prop_map(|(epoch, value, at, seq)| PendingExpiry { epoch, value, expires_at: Millis(at), seq: Seq(seq) });
        let own = (epochs(), any::<i128>(), any::<bool>(), any::<Option<u64>>(), proptest::option::of(lapsed))
            .prop_map(|(epoch, value, said, at, lapsed)| OwnValue {
                epoch,
                value,
                total: value.wrapping_mul(3),
                expired_seq: Seq(at.unwrap_or(0)),
                has_value: said,
                expires_at: at.map(Millis),
                pending_expiry: lapsed,
            });
        let shard = prop_oneof![any::<u16>().prop_map(Shard), (0..INCARNATION_BODIES_MAX).prop_map(incarnation_shard)];
        (any::<u64>(), shard, any::<u64>(), own, any::<bool>(), any::<i128>()).prop_map(
            |(incarnation, shard, seq, own, settled, confirmed)| OwnCell {
                incarnation: Incarnation(incarnation),
                shard,
                seq: Seq(seq),
                own,
                settled,
                doubted: false,
                confirmed: match settled {
                    true if is_body_shard(Incarnation(incarnation), shard) => i128::from(seq),
                    true => own.total,
                    false => confirmed,
                },
            },
        )
    }

    #[test]
    fn what_is_observed_goes_to_the_node_or_to_the_present_life_under_the_first_number_that_is_free() {
        let (mut own_cells, old, present) = (OwnCells::default(), Incarnation(7), Incarnation(8));
        assert_eq!(own_cells.observed_cell(true, present), Some((NODE_INCARNATION, Shard(0))));
        assert_eq!(own_cells.observed_cell(false, old), Some((old, incarnation_shard(0))));
        own_cells.open_cell(old, incarnation_shard(0), None);
        assert_eq!(
            own_cells.observed_cell(false, present),
            Some((present, incarnation_shard(1))),
            "the older one has the first"
        );
        own_cells.open_cell(present, incarnation_shard(1), None);
        own_cells.cells.retain(|cell| cell.incarnation == present);
        assert_eq!(own_cells.observed_cell(false, present), Some((present, incarnation_shard(1))), "it keeps its own");
        for number in 0..INCARNATION_BODIES_MAX {
            own_cells.open_cell(old, incarnation_shard(number), None);
        }
        assert_eq!(own_cells.observed_cell(false, Incarnation(9)), None, "there are no more");
    }

    #[test]
    fn of_former_lives_the_oldest_confirmed_cell_makes_room_and_no_other_does() {
        let (mut own_cells, present) = (OwnCells::default(), Incarnation(9));
        for incarnation in 1..=3 {
            let cell = own_cells.open_cell(Incarnation(incarnation), Shard(0), None);
            cell.update(cell.own.added(1).unwrap());
            cell.settled = incarnation != 1;
        }
        own_cells.open_cell(present, Shard(0), None);
        assert!(own_cells.drop_oldest_confirmed(present));
        let remaining: Vec<u64> = own_cells.cells.iter().map(|cell| cell.incarnation.0).collect();
        assert_eq!(remaining, [1, 3, 9], "the first has not been confirmed");
        assert!(own_cells.drop_oldest_confirmed(present) && !own_cells.drop_oldest_confirmed(present));
    }

    proptest! {
        #[test]
        fn own_cells_come_back_as_they_went_in_and_nothing_else_does(cells in proptest::collection::vec(cells(), 0..5)) {
            let own_cells = OwnCells { cells, ..OwnCells::default() };
            let bytes = own_cells.encode();
            prop_assert!(bytes.len() <= 2 + own_cells.cells.len() * CELL_BYTES_MAX);
            prop_assert_eq!(OwnCells::decode(&bytes).map(|own_cells| own_cells.cells), Some(own_cells.cells));
            for length in 0..bytes.len() {
                prop_assert!(OwnCells::decode(&bytes[..length]).is_none());
            }
        }

        #[test]
        fn any_bytes_are_refused_or_read_without_a_panic(bytes: Vec<u8>) {
            let _ = OwnCells::decode(&bytes);
        }
    }
}
