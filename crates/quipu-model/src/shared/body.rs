//! Bodies of sketches beside a row: a node's state of a counter of an approximate kind.
//!
//! In: a row, the bodies beside it, a put of a body, the store's clock. Out: a verdict, and for
//! `Newest` the row with the cell and the body.
//!
//! A sketch has cells like any counter. The value of a cell is the number of changes of its body
//! under the row's epoch. So the rules of cells apply to epochs, expiry, spent cells, and verdicts
//! on puts of an ended epoch. The body is a sequence of pages beside the cell. A put brings the
//! pages that changed since the put that it continues.
//!
//! The owner of a cell depends on its sketch:
//! - if the merge is idempotent (uniques), the cell belongs to the **node**, across incarnations;
//! - otherwise (frequencies, top lists) it belongs to one **incarnation**, as the cells of counts
//!   do. Of several copies of a data directory the newest state of the incarnation counts, once.
//!   The body of an ended incarnation is folded into one that **belongs to no writer**.
//!
//! Invariants:
//! - the body beside a cell was put with the cell's seq. A put that continues another seq changes
//!   nothing, and gets the verdict `Gap`;
//! - a body belongs to the row's epoch: the end of the epoch drops all bodies, and a change that
//!   keeps the epoch keeps them;
//! - a put that is repeated, or comes late, changes nothing;
//! - a folded cell has left the row for good: a later put of it gets the verdict `Closed`.
//!
//! Not here: the meaning of the bytes, and merging bodies of several nodes (the engine,
//! `quipu-sketch`).

use std::collections::{BTreeMap, BTreeSet};

use crate::shared::put::{self, judge as judge_cell};
use crate::shared::{CellId, FetchedRow, Put, RowCell, Seq, Shard, Snapshot, SpentCell, Verdict};
use crate::{Incarnation, Millis, NodeId, Writer};

/// Incarnation of a cell that belongs to the node across incarnations: its body continues unchanged
/// after a restart.
pub const NODE_INCARNATION: Incarnation = Incarnation(0);

/// Writer of the folded body. No node has this number, because node numbers are drawn at random.
pub const FOLDED_BODY_WRITER: Writer = Writer { node: NodeId(0), incarnation: NODE_INCARNATION };

/// Most bodies that a node may have of one counter: that of its current incarnation, and unfinished
/// ones of earlier incarnations.
pub const INCARNATION_BODIES_MAX: u16 = 16;

/// Bytes of a page.
pub const PAGE_BYTES: usize = 1 << 10;

/// Most bytes of a body: the size of the largest sketch.
pub const BODY_BYTES_MAX: usize = 16 << 20;

/// A put of a sketch's body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BodyPut {
    /// Put of its cell, which is a [body cell](is_body_cell).
    pub put: Put,
    /// Seq of the put of the same epoch that this one continues; `None` for the first.
    pub from: Option<Seq>,
    /// The pages replace the whole body. Pages of zeros alone may be missing.
    pub whole: bool,
    /// Kind, key and length of the body.
    pub shape: BodyShape,
    /// Changed pages, in order, each with its number. If the body became shorter, they include its
    /// new last page. Zeros at the end of a page may be omitted.
    pub pages: Vec<(u32, Box<[u8]>)>,
}

/// Description of a body's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BodyShape {
    /// Number of its kind.
    pub kind: u8,
    /// Fingerprint of the secret that the items are hashed with. Bodies of two secrets are
    /// unrelated.
    pub key: u64,
    /// Length in bytes.
    pub length: u32,
}

/// A body beside a row.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StoredBody {
    /// Kind, key and length of the body.
    pub shape: BodyShape,
    /// Bytes; the shape has their number.
    pub bytes: Vec<u8>,
}

/// Bodies beside a row. A writer has at most one body cell in a row.
pub type Bodies = BTreeMap<Writer, StoredBody>;

/// A row and the bodies beside it, as of one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RowWithBodies {
    /// The row.
    pub row: FetchedRow,
    /// The bodies: one for each body cell.
    pub bodies: Bodies,
}

/// Verdict of a store on a put of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyVerdict {
    /// A verdict as on any put of a cell.
    Cell(Verdict),
    /// The row has another seq of this cell than the one that the put continues, or none. Nothing
    /// changed.
    Gap {
        /// Seq in the row.
        held: Option<Seq>,
    },
}

/// A body that no correct store can have written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a body beside the row is longer than any sketch, or has pages beyond its end")]
pub struct BodyError;

/// Returns the cell of a node itself.
pub fn node_cell(node: NodeId) -> CellId {
    CellId { writer: Writer { node, incarnation: NODE_INCARNATION }, shard: Shard(0) }
}

/// Returns the cell of an incarnation's body. A node numbers its bodies of one counter, to
/// distinguish them in its own storage.
pub fn incarnation_cell(writer: Writer, number: u16) -> CellId {
    CellId { writer, shard: incarnation_shard(number) }
}

/// Returns the shard of an incarnation's body with this number, below [`INCARNATION_BODIES_MAX`].
pub fn incarnation_shard(number: u16) -> Shard {
    Shard(u16::MAX - number)
}

/// Returns true if a cell has a body: that of a node itself, or of one of its incarnations.
pub fn is_body_cell(cell: &CellId) -> bool {
    is_body_shard(cell.writer.incarnation, cell.shard)
}

/// As [`is_body_cell`], without the node.
pub fn is_body_shard(incarnation: Incarnation, shard: Shard) -> bool {
    // Counts use lower shard numbers only.
    incarnation == NODE_INCARNATION && shard == Shard(0) || shard.0 > u16::MAX - INCARNATION_BODIES_MAX
}

/// Returns the number of the body in this shard; the node's own body has number 0.
pub fn body_number(shard: Shard) -> u16 {
    if shard == Shard(0) { 0 } else { u16::MAX - shard.0 }
}

/// Returns true if a writer, or the node that a cell belongs to, is registered.
pub fn is_registered(registered: &BTreeSet<Writer>, writer: &Writer) -> bool {
    let of_node = || {
        let first = Writer { incarnation: Incarnation(0), ..*writer };
        registered.range(first..).next().is_some_and(|found| found.node == writer.node)
    };
    registered.contains(writer) || writer.incarnation == NODE_INCARNATION && of_node()
}

/// Puts a body; a row of `None` is absent in the store.
pub fn put_body(row: &mut Option<Snapshot>, bodies: &mut Bodies, put: &BodyPut, at: Millis) -> BodyVerdict {
    let nothing = Snapshot { epoch: put.put.epoch, ..Snapshot::default() };
    let known = row.as_ref().unwrap_or(&nothing);
    let verdict = judge(known, put, at);
    if verdict == BodyVerdict::Cell(Verdict::Newest) && known.cells.get(&put.put.cell).map(|held| held.seq) == put.from
    {
        put::put(row, &put.put, at);
        apply_pages(bodies.entry(put.put.cell.writer).or_default(), put);
    }
    verdict
}

/// Returns the verdict on a put without applying it.
pub fn judge(row: &Snapshot, put: &BodyPut, at: Millis) -> BodyVerdict {
    let held = row.cells.get(&put.put.cell).map(|held| held.seq);
    match judge_cell(row, &put.put, at) {
        Verdict::Newest if held != Some(put.put.seq) && held != put.from => BodyVerdict::Gap { held },
        verdict => BodyVerdict::Cell(verdict),
    }
}

/// Folds the cell of an incarnation's body into the folded cell; returns true if there was one. The
/// caller stores the merge of both bodies beside it.
pub(super) fn fold_body(row: &mut Snapshot, writer: Writer, at: Millis) -> bool {
    let found = row.cells.iter().find(|(id, _)| id.writer == writer && is_body_cell(id)).map(|(id, held)| (*id, *held));
    let Some((id, RowCell { seq, value, total, .. })) =
        found.filter(|(id, _)| id.writer.incarnation != NODE_INCARNATION)
    else {
        return false;
    };
    row.cells.remove(&id);
    row.spent.insert(id, SpentCell { epoch: row.epoch, seq, value, total, closed: true, expired: None, at });
    let into = node_cell(FOLDED_BODY_WRITER.node);
    let before = row.newest(into).unwrap_or_default();
    let held = row.cells.entry(into).or_insert(RowCell { seq: before, value: 0, total: 0, closed: true });
    held.seq = Seq(held.seq.0.saturating_add(1));
    (held.value, held.total) = (held.value.saturating_add(value), held.total.saturating_add(value));
    true
}

/// Applies the pages of a put to a body.
fn apply_pages(body: &mut StoredBody, put: &BodyPut) {
    if put.whole {
        body.bytes.clear();
    }
    body.shape = put.shape;
    body.bytes.resize(put.shape.length as usize, 0);
    for (page, bytes) in &put.pages {
        // A page beyond the end is the caller's mistake; the body stays valid.
        let _ = body.write_page(*page, bytes);
    }
}

impl StoredBody {
    /// Creates a body of zeros with the length of the shape.
    pub fn new(shape: BodyShape) -> Result<StoredBody, BodyError> {
        let length = usize::try_from(shape.length).ok().filter(|length| *length <= BODY_BYTES_MAX).ok_or(BodyError)?;
        Ok(StoredBody { shape, bytes: vec![0; length] })
    }

    /// Replaces a page; zeros at its end may be omitted.
    pub fn write_page(&mut self, page: u32, bytes: &[u8]) -> Result<(), BodyError> {
        let from = usize::try_from(page).ok().and_then(|page| page.checked_mul(PAGE_BYTES)).ok_or(BodyError)?;
        let target = self.bytes.get_mut(from..).ok_or(BodyError)?;
        let target_bytes = target.len().min(PAGE_BYTES);
        let (data, zeros) = target[..target_bytes].split_at_mut_checked(bytes.len()).ok_or(BodyError)?;
        data.copy_from_slice(bytes);
        zeros.fill(0);
        Ok(())
    }
}

/// Returns a page without the zeros at its end.
pub fn trim_zeros(bytes: &[u8]) -> &[u8] {
    let length = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    &bytes[..length]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Epoch;

    const NOW: Millis = Millis(1_000);
    const ONE: Writer = Writer { node: NodeId(1), incarnation: NODE_INCARNATION };

    fn body(seq: u64, from: Option<u64>, length: u32, pages: &[(u32, u8)]) -> BodyPut {
        let put = Put { cell: node_cell(NodeId(1)), epoch: Epoch::FIRST, seq: Seq(seq), value: 1, total: 1 };
        let pages = pages.iter().map(|(page, byte)| (*page, vec![*byte; 3].into())).collect();
        BodyPut { put, from: from.map(Seq), whole: false, shape: BodyShape { kind: 1, key: 0, length }, pages }
    }

    #[test]
    fn a_put_goes_on_from_the_one_that_is_there_and_from_no_other() {
        let (mut row, mut bodies) = (None, Bodies::new());
        let newest = BodyVerdict::Cell(Verdict::Newest);
        assert_eq!(put_body(&mut row, &mut bodies, &body(3, None, 2_000, &[(0, 7), (1, 8)]), NOW), newest);
        assert_eq!(put_body(&mut row, &mut bodies, &body(5, Some(3), 3_000, &[(1, 9)]), NOW), newest);
        let bytes = &bodies[&ONE].bytes;
        assert_eq!((bytes.len(), bytes[0], bytes[1_024], bytes[1_027]), (3_000, 7, 9, 0));
        let before = (row.clone(), bodies.clone());
        for (late, expected) in [
            (body(5, Some(3), 3_000, &[(1, 9)]), newest),
            (body(3, None, 2_000, &[(0, 1)]), BodyVerdict::Cell(Verdict::Older)),
            (body(6, Some(3), 2_000, &[(0, 1)]), BodyVerdict::Gap { held: Some(Seq(5)) }),
            (body(6, None, 2_000, &[(0, 1)]), BodyVerdict::Gap { held: Some(Seq(5)) }),
        ] {
            assert_eq!(put_body(&mut row, &mut bodies, &late, NOW), expected, "{late:?}");
            assert_eq!((&row, &bodies), (&before.0, &before.1), "it changes nothing");
        }
        let whole = BodyPut { whole: true, ..body(6, Some(5), 1_500, &[(1, 4)]) };
        assert_eq!(put_body(&mut row, &mut bodies, &whole, NOW), newest);
        assert_eq!((bodies[&ONE].bytes[0], bodies[&ONE].bytes[1_024]), (0, 4), "nothing is left of before");
    }

    #[test]
    fn a_first_put_on_a_row_that_has_none_of_it_must_be_a_first_one() {
        let (mut row, mut bodies) = (None, Bodies::new());
        assert_eq!(
            put_body(&mut row, &mut bodies, &body(3, Some(2), 100, &[]), NOW),
            BodyVerdict::Gap { held: None },
            "the store has lost what it goes on from"
        );
        assert_eq!((row, bodies.len()), (None, 0));
    }

    #[test]
    fn a_folded_cell_has_no_owner_and_a_put_of_it_gets_closed() {
        let writer_of = |incarnation| Writer { node: NodeId(1), incarnation: Incarnation(incarnation) };
        let body_put = |writer, number, seq| {
            let put =
                Put { cell: incarnation_cell(writer, number), value: i128::from(seq), ..body(seq, None, 9, &[]).put };
            BodyPut { put, ..body(seq, None, 9, &[(0, 7)]) }
        };
        let (mut row, mut bodies) = (None, Bodies::new());
        for put in [body_put(writer_of(5), 0, 3), body_put(writer_of(6), 1, 4), body(2, None, 9, &[])] {
            put_body(&mut row, &mut bodies, &put, NOW);
        }
        assert_eq!(bodies.len(), 3, "two lives, and the node itself");
        let mut row = row.unwrap();
        let (sum, nobodys) = (row.sum(), node_cell(FOLDED_BODY_WRITER.node));
        assert!(!fold_body(&mut row, writer_of(7), NOW) && !fold_body(&mut row, ONE, NOW), "no life has such a body");
        for (writer, number, folded) in [(writer_of(5), 0, 3), (writer_of(6), 1, 7)] {
            let before = row.newest(nobodys);
            assert!(fold_body(&mut row, writer, NOW) && row.newest(nobodys) > before);
            assert!(!fold_body(&mut row, writer, NOW), "once");
            assert_eq!((row.sum(), row.cells[&nobodys].value), (sum, folded));
            let again = judge(&row, &body_put(writer, number, 9), NOW);
            assert!(matches!(again, BodyVerdict::Cell(Verdict::Closed { .. })), "{again:?}");
        }
    }

    #[test]
    fn cells_of_bodies_differ_from_those_of_counts() {
        let cell = |incarnation, shard| CellId {
            writer: Writer { node: NodeId(1), incarnation: Incarnation(incarnation) },
            shard: Shard(shard),
        };
        let numbers = 0..INCARNATION_BODIES_MAX;
        assert!(numbers.clone().all(|number| body_number(incarnation_cell(ONE, number).shard) == number));
        assert!(numbers.clone().all(|number| is_body_cell(&cell(5, incarnation_shard(number).0))));
        assert!(is_body_cell(&node_cell(NodeId(1))) && body_number(Shard(0)) == 0);
        for count in [cell(5, 0), cell(5, crate::SHARDS_MAX), cell(0, 1), cell(5, u16::MAX - INCARNATION_BODIES_MAX)] {
            assert!(!is_body_cell(&count), "{count:?}");
        }
    }

    #[test]
    fn pages_beyond_the_end_are_refused() {
        let mut body = StoredBody::new(BodyShape { kind: 1, key: 0, length: 1_030 }).unwrap();
        assert_eq!(body.write_page(1, &[1; 6]), Ok(()));
        assert_eq!(body.write_page(1, &[1; 7]), Err(BodyError));
        assert_eq!(body.write_page(0, &[1; 1_025]), Err(BodyError));
        assert_eq!(body.write_page(u32::MAX, &[1]), Err(BodyError));
        assert!(StoredBody::new(BodyShape { kind: 1, key: 0, length: u32::MAX }).is_err());
    }

    #[test]
    fn a_node_is_registered_in_any_of_its_lives() {
        let writer = |node, incarnation| Writer { node: NodeId(node), incarnation: Incarnation(incarnation) };
        let known = BTreeSet::from([writer(1, 5), writer(3, 7)]);
        for (asked, there) in [((1, 5), true), ((1, 0), true), ((3, 0), true), ((2, 0), false), ((1, 6), false)] {
            assert_eq!(is_registered(&known, &writer(asked.0, asked.1)), there, "{asked:?}");
        }
    }
}
