//! Sketches of frequencies: what is counted in them, read from them and summed up.
//!
//! In: parts of a command. Out: a reply, and what changed.

use std::cell::Cell as Slot;

use quipu_model::{Dialect, FrequencySize, Kind, Millis, Name, Refusal, Reply};
use quipu_sketch::count_min::Update;
use quipu_sketch::{CountMin, Sketch};

use crate::apply::Run;
use crate::apply::bodies::answer::integer;
use crate::apply::bodies::apply::Wanted;
use crate::apply::bodies::change::PooledEdits;
use crate::apply::bodies::time::When;
use crate::bodies::together::refusal;

/// Most bytes of frequencies that a merge looks at, in all: that takes some twenty milliseconds,
/// with their shards held.
const MERGE_BYTES_MAX: usize = 16 << 20;

/// Most cells of frequencies that a command looks at, one in each row for each item: as many items
/// as a command can have, of eight rows. They are far apart in memory, and the shard is held
/// meanwhile.
const COMMAND_CELLS_MAX: usize = 1 << 17;

impl Run<'_, '_> {
    pub(super) fn count_items(
        &mut self,
        name: Name<'_>,
        items: &[(&[u8], u64)],
        make: Option<FrequencySize>,
        dialect: Dialect,
        at: Option<Millis>,
    ) -> Result<Reply, Refusal> {
        let key = self.key;
        let make = || frequency(make.ok_or(Refusal::NoSketch { kind: Kind::Frequency })?, dialect);
        let wanted = Wanted { kind: Kind::Frequency, dialect };
        let when = When { at, events: items.iter().fold(0, |all, (_, by)| all.saturating_add(*by)) };
        let asked = Slot::new(0);
        let counted = self.change_sketch(
            name,
            wanted,
            when,
            |_, _| 0,
            make,
            |sketch, edits, _| {
                let (Sketch::Cms(sketch) | Sketch::Frequency(sketch)) = sketch else { return Err(Refusal::WrongKind) };
                check_work(items.len(), sketch)?;
                asked.set(sketch.depth() as usize * items.len());
                sketch.add_all(key, items, edits).map_err(refusal)
            },
        )?;
        let body = self.peek(name, wanted)?;
        match (counted.0, body) {
            // Of a window: what all panes say of them, unless that is too much work; then what this
            // one does.
            (pane, Some(body)) if matches!(body.sketch(), Sketch::Ring(_)) => {
                let many = asked.get().saturating_mul(body.sketches(self.now).len()) > COMMAND_CELLS_MAX;
                let names: Vec<&[u8]> = items.iter().map(|(item, _)| *item).collect();
                match pane.filter(|_| many) {
                    Some(pane) => Ok(Reply::Integers(pane.into_iter().map(integer).collect())),
                    None => {
                        let known = body.frequencies(key, &names, self.now)?;
                        Ok(Reply::Integers(known.rows.iter().map(|row| integer(row.at_most)).collect()))
                    }
                }
            }
            (counted, _) => Ok(Reply::Integers(counted.unwrap_or_default().into_iter().map(integer).collect())),
        }
    }

    pub(super) fn read_items(&mut self, name: Name<'_>, items: &[&[u8]], dialect: Dialect) -> Result<Reply, Refusal> {
        let (key, now) = (self.key, self.now);
        let known = self.of_kind(name, Wanted { kind: Kind::Frequency, dialect })?.frequencies(key, items, now)?;
        Ok(match dialect {
            Dialect::Redis => Reply::Integers(known.rows.iter().map(|row| integer(row.at_most)).collect()),
            Dialect::Native => Reply::Frequencies(known),
        })
    }

    pub(super) fn merge_frequency(
        &mut self,
        names: &[Name<'_>],
        weights: &[i64],
        dialect: Dialect,
    ) -> Result<Reply, Refusal> {
        let missing = Refusal::NoSketch { kind: Kind::Frequency };
        let Some((into, from)) = names.split_first() else { return Err(missing) };
        let wanted = Wanted { kind: Kind::Frequency, dialect };
        self.close_lanes(*into);
        self.look_at(names);
        let before = self.cell(*into);
        let into_body = self.peek(*into, wanted)?.ok_or(missing.clone())?;
        self.refuse_over_time(*into, Kind::Frequency, Some(into_body))?;
        let too_much = || {
            let reason = format!("a merge looks at {MERGE_BYTES_MAX} bytes at most, the sketch it makes included");
            Refusal::BadSize { reason }
        };
        if into_body.bytes().len().saturating_mul(names.len()) > MERGE_BYTES_MAX {
            return Err(too_much());
        }
        let mut merged = into_body.sketch().clone();
        let mut others = Vec::with_capacity(from.len());
        for (name, weight) in from.iter().zip(weights) {
            for sketch in self.peek(*name, wanted)?.ok_or(missing.clone())?.sketches(self.now) {
                match sketch {
                    Sketch::Cms(sketch) | Sketch::Frequency(sketch) => others.push((sketch, *weight)),
                    _ => return Err(Refusal::WrongKind),
                }
            }
        }
        if into_body.bytes().len().saturating_mul(1 + others.len()) > MERGE_BYTES_MAX {
            return Err(too_much());
        }
        let mut edits = PooledEdits::take();
        let (Sketch::Cms(sketch) | Sketch::Frequency(sketch)) = &mut merged else { return Err(Refusal::WrongKind) };
        sketch.set_to_sum(&others, &mut edits.0).map_err(refusal)?;
        self.write_merged(*into, before, merged, &edits.0)?;
        Ok(Reply::Ok)
    }
}

/// A sketch of frequencies of this size.
pub(super) fn frequency(size: FrequencySize, dialect: Dialect) -> Result<Sketch, Refusal> {
    let update = match dialect {
        Dialect::Redis => Update::Linear,
        Dialect::Native => Update::Conservative,
    };
    let made = match size {
        FrequencySize::Dimensions { width, depth } => {
            let number = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
            CountMin::by_size(update, number(width), number(depth))
        }
        FrequencySize::Accuracy { error, probability } => CountMin::by_error(update, error.get(), probability.get()),
    };
    let made = made.map_err(refusal)?;
    Ok(match dialect {
        Dialect::Redis => Sketch::Cms(made),
        Dialect::Native => Sketch::Frequency(made),
    })
}

/// Whether a command with so many items is too much work for one.
pub fn check_work(items: usize, sketch: &CountMin) -> Result<(), Refusal> {
    if items.saturating_mul(sketch.depth() as usize) <= COMMAND_CELLS_MAX {
        return Ok(());
    }
    Err(Refusal::BadSize {
        reason: format!("a command looks at {COMMAND_CELLS_MAX} cells at most: fewer items at once"),
    })
}
