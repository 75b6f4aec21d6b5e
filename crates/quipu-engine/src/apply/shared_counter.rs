//! A counter on a shared store under its lock: its own cells and bodies, and its shown state.
//!
//! Not here: rows and verdicts (`sharing::shared_counter`), the choice of an add's cell
//! (`shard_picker`).

use std::collections::{BTreeMap, BTreeSet};

use quipu_model::shared::{OwnValue, Shard};
use quipu_model::{Cell, Incarnation, Millis, NodeId};
use quipu_sketch::{Key, Sketch};

use crate::bodies::body_map::Body;
use crate::bodies::own_cells::OwnCells;

/// A counter under its lock.
pub struct SharedCounter<'s> {
    /// This node's own cells.
    pub own_cells: &'s mut OwnCells,
    /// The shown cell.
    pub shown: Option<Cell>,
    /// True if the own cells have changed and must be journaled.
    pub changed: bool,
    /// True if a confirmation has changed; useful after a restart, but not worth a record of its
    /// own.
    pub confirmed: bool,
    /// This node's id.
    pub node: NodeId,
    /// Its present incarnation.
    pub incarnation: Incarnation,
    /// This node's bodies of a sketch, by number.
    pub bodies: BTreeMap<u16, Box<Body>>,
    /// The body taken out of `bodies` for the current work.
    pub body: Option<Box<Body>>,
    /// Number of the taken body.
    pub body_number: u16,
    /// Bodies that were dropped.
    pub dropped_bodies: Vec<(u16, Box<Body>)>,
    /// Bodies of ended incarnations, for the present one to take over.
    pub inherited: Vec<Sketch>,
    /// Numbers of rewritten bodies, to be journaled in full.
    pub rewritten_bodies: BTreeSet<u16>,
    /// The counter's known expiry before the change.
    pub known_expiry: Option<Millis>,
    /// True if a sketch is shown.
    pub shows_sketch: bool,
    /// The sketch to show.
    pub shown_body: ShownBody,
    /// A random number.
    pub random: u64,
    /// Key of the sketches' item hashes.
    pub key: &'s Key,
}

/// The sketch that a counter is to show.
#[derive(Debug)]
pub enum ShownBody {
    /// No change.
    Unchanged,
    /// No sketch.
    NoSketch,
    /// This sketch.
    Sketch(Box<Sketch>),
}

/// Own cells of a counter from before the shared store: all of it belongs to this node, under an
/// epoch that every store knows. The store does not learn its former expiry.
pub fn own_from_unshared(cell: Option<Cell>, present: Incarnation) -> OwnCells {
    let mut own_cells = OwnCells::default();
    if let Some(Cell { value, .. }) = cell {
        let own = own_cells.open_cell(present, Shard(0), None);
        let value = i128::from(value);
        own.update(OwnValue { value, total: value, has_value: true, ..OwnValue::default() });
    }
    own_cells
}
