//! Bodies of sketches beside a row: what a node says of a counter of an approximate kind.
//!
//! In: a row, the bodies beside it, a put of a body, the store's clock. Out: a verdict, and the row with the cell and the body in it if that is `Newest`.
//!
//! A sketch has a cell like any counter: that of the node itself, whose value is how often its body has changed under the row's epoch. So epochs, expiry, what was kept when an epoch ended, and what a
//! put of an ended one is told are those of any cell. Beside the cell is the body: bytes in pages, of which a put brings those that changed since the put it goes on from.
//!
//! Invariants:
//! - the body beside a cell is the one that was put with the cell's seq: a put that goes on from another one changes nothing, and is told so;
//! - a body is of the row's epoch: whatever ends the epoch drops all of them, and whatever keeps it keeps them;
//! - a put that is repeated, or comes late, changes nothing.
//!
//! Not here: what the bytes mean, and how bodies of several nodes are laid together (the engine, `quipu-sketch`).

use std::collections::{BTreeMap, BTreeSet};

use crate::shared::put::{self, judge as judge_cell};
use crate::shared::{CellId, Put, Seen, Seq, Shard, Snapshot, Verdict};
use crate::{Incarnation, Millis, NodeId, Writer};

/// The life of a cell that belongs to the node, in whatever life it is: a body goes on after a restart as it was.
pub const NODE: Incarnation = Incarnation(0);

/// Bytes of a page.
pub const PAGE_BYTES: usize = 1 << 10;

/// Most bytes of a body: as many as the largest sketch has.
pub const BODY_BYTES_MAX: usize = 16 << 20;

/// What a node says of a sketch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BodyPut {
    /// Its cell, which is [the node's](node_cell).
    pub put: Put,
    /// The put of the same epoch that this one goes on from; `None`: it is the first.
    pub from: Option<Seq>,
    /// The pages are all there are, but for those of zeros alone: nothing is left of the body before.
    pub whole: bool,
    /// What it is.
    pub shape: Shape,
    /// Pages that changed, in order, each with its number; if the body became shorter, also the one that its end is in now. Zeros at the end of a page may be left out.
    pub pages: Vec<(u32, Box<[u8]>)>,
}

/// What a body is, beside its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Shape {
    /// The number of its kind.
    pub kind: u8,
    /// Stands for the secret under which it hashes what it counts: bodies of two secrets have nothing to do with one another.
    pub key: u64,
    /// How many bytes it has.
    pub length: u32,
}

/// A body beside a row.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Body {
    /// What it is.
    pub shape: Shape,
    /// Its bytes, as many as the shape says.
    pub bytes: Vec<u8>,
}

/// The bodies beside a row, by node.
pub type Bodies = BTreeMap<NodeId, Body>;

/// A row and the bodies beside it, as of one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SeenBodies {
    /// The row.
    pub seen: Seen,
    /// The bodies: one for each open cell of a node itself.
    pub bodies: Bodies,
}

/// What a store answers to a put of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyVerdict {
    /// As to any put of a cell.
    Told(Verdict),
    /// The row has another put of this cell than the one that this goes on from, or none. Nothing changed.
    Gap {
        /// The one that it has.
        held: Option<Seq>,
    },
}

/// A body that no store of ours wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a body beside the row is longer than any sketch, or has pages beyond its end")]
pub struct BodyError;

/// The cell of a node itself.
pub fn node_cell(node: NodeId) -> CellId {
    CellId { writer: Writer { node, incarnation: NODE }, shard: Shard(0) }
}

/// Whether a cell is that of a node itself.
pub fn is_node_cell(cell: &CellId) -> bool {
    cell.writer.incarnation == NODE && cell.shard == Shard(0)
}

/// Whether a writer, or the node that a cell belongs to, is registered.
pub fn is_registered(registered: &BTreeSet<Writer>, writer: &Writer) -> bool {
    let of_node = || {
        let first = Writer { incarnation: Incarnation(0), ..*writer };
        registered.range(first..).next().is_some_and(|found| found.node == writer.node)
    };
    registered.contains(writer) || writer.incarnation == NODE && of_node()
}

/// Puts a body; `None` is a row that the store does not have.
pub fn put_body(row: &mut Option<Snapshot>, bodies: &mut Bodies, put: &BodyPut, at: Millis) -> BodyVerdict {
    let nothing = Snapshot { epoch: put.put.epoch, ..Snapshot::default() };
    let known = row.as_ref().unwrap_or(&nothing);
    let verdict = judge(known, put, at);
    if verdict == BodyVerdict::Told(Verdict::Newest) && known.cells.get(&put.put.cell).map(|held| held.seq) == put.from
    {
        put::put(row, &put.put, at);
        lay(bodies.entry(put.put.cell.writer.node).or_default(), put);
    }
    verdict
}

/// The verdict on a put, without putting it.
pub fn judge(row: &Snapshot, put: &BodyPut, at: Millis) -> BodyVerdict {
    let held = row.cells.get(&put.put.cell).map(|held| held.seq);
    match judge_cell(row, &put.put, at) {
        Verdict::Newest if held != Some(put.put.seq) && held != put.from => BodyVerdict::Gap { held },
        verdict => BodyVerdict::Told(verdict),
    }
}

/// Lays the pages of a put over a body.
fn lay(body: &mut Body, put: &BodyPut) {
    if put.whole {
        body.bytes.clear();
    }
    body.shape = put.shape;
    body.bytes.resize(put.shape.length as usize, 0);
    for (page, bytes) in &put.pages {
        // A page beyond the end is the caller's mistake, and says nothing of the body.
        let _ = body.lay_page(*page, bytes);
    }
}

impl Body {
    /// A body of nothing but zeros, as long as the shape says.
    pub fn new(shape: Shape) -> Result<Body, BodyError> {
        let length = usize::try_from(shape.length).ok().filter(|length| *length <= BODY_BYTES_MAX).ok_or(BodyError)?;
        Ok(Body { shape, bytes: vec![0; length] })
    }

    /// Replaces a page, of which zeros at the end may be left out.
    pub fn lay_page(&mut self, page: u32, bytes: &[u8]) -> Result<(), BodyError> {
        let from = usize::try_from(page).ok().and_then(|page| page.checked_mul(PAGE_BYTES)).ok_or(BodyError)?;
        let place = self.bytes.get_mut(from..).ok_or(BodyError)?;
        let place_bytes = place.len().min(PAGE_BYTES);
        let (said, zeros) = place[..place_bytes].split_at_mut_checked(bytes.len()).ok_or(BodyError)?;
        said.copy_from_slice(bytes);
        zeros.fill(0);
        Ok(())
    }
}

/// A page without the zeros at its end.
pub fn without_zeros(bytes: &[u8]) -> &[u8] {
    let length = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    &bytes[..length]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Epoch;

    const NOW: Millis = Millis(1_000);

    fn body(seq: u64, from: Option<u64>, length: u32, pages: &[(u32, u8)]) -> BodyPut {
        let put = Put { cell: node_cell(NodeId(1)), epoch: Epoch::FIRST, seq: Seq(seq), value: 1, total: 1 };
        let pages = pages.iter().map(|(page, byte)| (*page, vec![*byte; 3].into())).collect();
        BodyPut { put, from: from.map(Seq), whole: false, shape: Shape { kind: 1, key: 0, length }, pages }
    }

    #[test]
    fn a_put_goes_on_from_the_one_that_is_there_and_from_no_other() {
        let (mut row, mut bodies) = (None, Bodies::new());
        let newest = BodyVerdict::Told(Verdict::Newest);
        assert_eq!(put_body(&mut row, &mut bodies, &body(3, None, 2_000, &[(0, 7), (1, 8)]), NOW), newest);
        assert_eq!(put_body(&mut row, &mut bodies, &body(5, Some(3), 3_000, &[(1, 9)]), NOW), newest);
        let bytes = &bodies[&NodeId(1)].bytes;
        assert_eq!((bytes.len(), bytes[0], bytes[1_024], bytes[1_027]), (3_000, 7, 9, 0));
        let before = (row.clone(), bodies.clone());
        for (late, told) in [
            (body(5, Some(3), 3_000, &[(1, 9)]), newest),
            (body(3, None, 2_000, &[(0, 1)]), BodyVerdict::Told(Verdict::Older)),
            (body(6, Some(3), 2_000, &[(0, 1)]), BodyVerdict::Gap { held: Some(Seq(5)) }),
            (body(6, None, 2_000, &[(0, 1)]), BodyVerdict::Gap { held: Some(Seq(5)) }),
        ] {
            assert_eq!(put_body(&mut row, &mut bodies, &late, NOW), told, "{late:?}");
            assert_eq!((&row, &bodies), (&before.0, &before.1), "it changes nothing");
        }
        let whole = BodyPut { whole: true, ..body(6, Some(5), 1_500, &[(1, 4)]) };
        assert_eq!(put_body(&mut row, &mut bodies, &whole, NOW), newest);
        assert_eq!((bodies[&NodeId(1)].bytes[0], bodies[&NodeId(1)].bytes[1_024]), (0, 4), "nothing is left of before");
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
    fn pages_beyond_the_end_are_refused() {
        let mut body = Body::new(Shape { kind: 1, key: 0, length: 1_030 }).unwrap();
        assert_eq!(body.lay_page(1, &[1; 6]), Ok(()));
        assert_eq!(body.lay_page(1, &[1; 7]), Err(BodyError));
        assert_eq!(body.lay_page(0, &[1; 1_025]), Err(BodyError));
        assert_eq!(body.lay_page(u32::MAX, &[1]), Err(BodyError));
        assert!(Body::new(Shape { kind: 1, key: 0, length: u32::MAX }).is_err());
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
