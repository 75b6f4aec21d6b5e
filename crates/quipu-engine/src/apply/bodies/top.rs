//! Lists of the most frequent: what is counted in them, and found in them without a walk.
//!
//! In: parts of a command. Out: a reply, and what changed.

use quipu_model::{Dialect, Kind, Millis, Name, Refusal, Reply, TOP_ITEMS_MAX, TopSize};
use quipu_sketch::{Sketch, Top};

use crate::apply::Run;
use crate::apply::bodies::apply::Wanted;
use crate::apply::bodies::time::When;
use crate::bodies::together::{ITEM_BYTES_MAX, refusal};

impl Run<'_, '_> {
    pub(super) fn count_top(
        &mut self,
        name: Name<'_>,
        items: &[(&[u8], u64)],
        make: Option<TopSize>,
        dialect: Dialect,
        at: Option<Millis>,
    ) -> Result<Reply, Refusal> {
        if items.iter().any(|(item, _)| item.len() > ITEM_BYTES_MAX) {
            return Err(Refusal::ItemTooLong { bytes_max: ITEM_BYTES_MAX });
        }
        let key = self.key;
        let make = || top(make.ok_or(Refusal::NoSketch { kind: Kind::Top })?, dialect);
        let longest = items.iter().map(|(item, _)| item.len()).max().unwrap_or(0);
        let weight = items.iter().try_fold(0u64, |all, (_, by)| all.checked_add(*by)).ok_or(Refusal::SketchOverflow)?;
        let grows = |sketch: &Sketch, each: u64| match sketch {
            Sketch::TopK(list) | Sketch::Top(list) => {
                list.bytes_after(weight.saturating_mul(each), longest).saturating_sub(list.bytes().len() as u64)
            }
            _ => 0,
        };
        let when = When { at, events: weight };
        let counted =
            self.change_sketch(name, Wanted { kind: Kind::Top, dialect }, when, grows, make, |sketch, edits, each| {
                let (Sketch::TopK(sketch) | Sketch::Top(sketch)) = sketch else { return Err(Refusal::WrongKind) };
                let weight = weight.checked_mul(each).ok_or(Refusal::SketchOverflow)?;
                sketch.n().checked_add(weight).ok_or(Refusal::SketchOverflow)?;
                // Only a list that is nearly as large as can be may refuse an item after others
                // were counted.
                let fits = sketch.bytes_after(weight, longest) <= crate::journal::format::SKETCH_BYTES_MAX as u64;
                let before = if fits { None } else { Some(sketch.clone()) };
                let expelled: Result<Vec<_>, _> = items
                    .iter()
                    .map(|(item, by)| {
                        sketch
                            .add_among(key, item, by * each, longest, edits)
                            .map(|item| item.map(Vec::into_boxed_slice))
                    })
                    .collect();
                expelled.map_err(|refused| {
                    before.into_iter().for_each(|before| *sketch = before);
                    refusal(refused)
                })
            })?;
        let panes = self.peek(name, Wanted { kind: Kind::Top, dialect })?;
        let panes = panes.is_some_and(|body| matches!(body.sketch(), Sketch::Ring(ring) if ring.slots() > 1));
        // What left the list of one pane has not left that of the window.
        let expelled = counted.0.filter(|_| !panes).unwrap_or_else(|| vec![None; items.len()]);
        Ok(Reply::Items(expelled))
    }

    /// Sees that items are found in a list without a walk: after a start, whoever comes first makes
    /// that so.
    pub(super) fn index_top(&mut self, name: Name<'_>) {
        let (key, hash) = (self.key, self.table.hash(name.bytes()));
        let Some(body) = self.locks.shard(self.table.shard_of(hash)).body_mut(name.bytes()) else { return };
        if let Sketch::TopK(list) | Sketch::Top(list) = body.sketch_mut() {
            list.index(key);
        }
        for (_, pane) in body.panes_mut() {
            if let Sketch::TopK(list) | Sketch::Top(list) = pane.sketch_mut() {
                list.index(key);
            }
        }
    }
}

/// A sketch of the most frequent of this size.
pub(super) fn top(size: TopSize, dialect: Dialect) -> Result<Sketch, Refusal> {
    let TopSize { k, width, depth, decay } = size;
    if k > TOP_ITEMS_MAX {
        return Err(Refusal::BadSize { reason: format!("a list has at most {TOP_ITEMS_MAX} items") });
    }
    let made = Top::reserve(k, width, depth, decay.get()).map_err(refusal)?;
    Ok(match dialect {
        Dialect::Redis => Sketch::TopK(made),
        Dialect::Native => Sketch::Top(made),
    })
}

/// The most bytes that a list can come to by taking items no longer than this.
pub fn widest(top: &Top, longest: usize) -> usize {
    let info = top.info();
    // Of a slot both numbers may get twice as wide, and its item as much room as it needs; of a
    // cell its number.
    top.bytes().len() + info.slots as usize * (8 + longest.next_multiple_of(8).max(8)) + info.cells as usize * 4
}
