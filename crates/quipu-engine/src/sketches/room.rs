//! How much room a command of sketches may need: in the journal, and where its answer is remembered.
//!
//! In: commands, and the bodies that they meet. Out: bounds, which hold whatever the items are.
//!
//! What a record says of a sketch is never longer than all of its body and [`EDIT_OVERHEAD_BYTES_MAX`]: where edits would be, the body is written instead. So a bound is that of the edits, where it is known how long these can be, or that of the
//! body after them.
//!
//! Not here: getting the room (`turn`).

use quipu_model::{Command, FrequencySize, Name, SketchCommand, TopSize};
use quipu_sketch::{Sketch, Top};

use super::Body;
use super::answer::ITEM_BYTES_MAX;
use super::apply::widest;
use crate::journal::format::{EDIT_OVERHEAD_BYTES_MAX, SKETCH_ENTRY_BYTES_MAX};

/// Most bytes of a body of uniques, of either form.
const UNIQUE_BYTES_MAX: usize = 12_400;

/// A body of uniques that is not longer than this is a list still; an item makes it longer by less than [`UNIQUE_GROWTH_BYTES`].
const UNIQUE_LIST_BYTES: usize = 2_900;
const UNIQUE_GROWTH_BYTES: usize = 8;

/// Most bytes of the edits of an item that is observed and does not end a list: its run, those it is joined with, and the estimate before them.
const OBSERVED_BYTES_MAX: usize = 160;

/// Most bytes of the edits of an item that is counted in a list, beside the item: its slot, how many are in use, how much came in all, and two cells.
const LISTED_BYTES_MAX: usize = 160;

/// No sketch has a longer header.
const HEADER_BYTES: usize = 48;

/// Most bytes that commands of sketches add to their record, beside what every command may write; `look` finds the body of a name.
pub fn record_bytes_max<'a, 'b>(commands: &[Command<'a>], look: impl Fn(Name<'a>) -> Option<&'b Body>) -> usize {
    let together =
        if commands.len() > 1 { Some(Together::of(commands.iter().filter_map(written), &look)) } else { None };
    let bytes = commands.iter().filter_map(|command| {
        if let Some(name) = rewritten(command) {
            // Where the journal does not have all of the body, it gets that with the cell.
            let body = look(name).filter(|body| !body.journaled)?;
            let most = together.as_ref().map_or(0, |together| together.bytes);
            return Some(entry_bytes_max(name) + body.bytes().len().max(most));
        }
        let command = written(command)?;
        let name = command.names().first()?;
        let edits = match &together {
            None => edits_bytes_max(command, look(*name)),
            Some(together) => together.edits_bytes_max(command),
        };
        Some(entry_bytes_max(*name) + edits)
    });
    bytes.sum()
}

/// Whether anything that is asked of a counter may have to be said of its body.
pub fn concerns_bodies(command: &Command<'_>) -> bool {
    written(command).is_some() || rewritten(command).is_some()
}

/// What a command will most likely need, before anything is known of the body it meets.
pub fn record_bytes_guess(command: &Command<'_>) -> usize {
    /// Rows that frequencies commonly have, and bytes that an item of a list commonly takes.
    const ROWS: usize = 8;
    const LISTED_BYTES: usize = 200;
    let Some((command, name)) = written(command).and_then(|command| Some((command, command.names().first()?))) else {
        return 0;
    };
    let edits = match command {
        SketchCommand::Observe { items, .. } => HEADER_BYTES + items.len() * OBSERVED_BYTES_MAX,
        SketchCommand::CountItems { items, .. } => items.len() * counted(ROWS),
        SketchCommand::CountTop { items, .. } => items.len() * LISTED_BYTES,
        _ => HEADER_BYTES,
    };
    entry_bytes_max(*name) + edits
}

fn entry_bytes_max(name: Name<'_>) -> usize {
    SKETCH_ENTRY_BYTES_MAX + name.bytes().len() + EDIT_OVERHEAD_BYTES_MAX
}

/// What one of several commands may meet: the work of another.
struct Together {
    /// Most bytes of any body.
    bytes: usize,
    /// Most rows of frequencies; `None`: a body of them is written as a whole.
    rows: Option<usize>,
}

impl Together {
    fn of<'c, 'a: 'c, 'b>(
        commands: impl Iterator<Item = &'c SketchCommand<'a>> + Clone,
        look: impl Fn(Name<'a>) -> Option<&'b Body>,
    ) -> Together {
        let longest = commands.clone().map(longest).max().unwrap_or(0);
        let mut together = Together { bytes: UNIQUE_BYTES_MAX, rows: Some(0) };
        for command in commands {
            if let SketchCommand::MakeFrequency { size, .. } | SketchCommand::CountItems { make: Some(size), .. } =
                command
            {
                together.rows = together.rows.map(|rows| rows.max(rows_of(*size)));
            }
            together.bytes = together.bytes.max(made_bytes_max(command, longest));
            for body in command.names().iter().filter_map(|name| look(*name)) {
                let (bytes, rows) = match body.sketch() {
                    Sketch::TopK(sketch) | Sketch::Top(sketch) => (widest(sketch, longest), Some(0)),
                    Sketch::Cms(sketch) | Sketch::Frequency(sketch) => {
                        (body.bytes().len(), Some(sketch.depth() as usize).filter(|_| body.journaled))
                    }
                    _ => (body.bytes().len(), Some(0)),
                };
                together.bytes = together.bytes.max(bytes);
                together.rows = together.rows.zip(rows).map(|(one, other)| one.max(other));
            }
        }
        together
    }

    fn edits_bytes_max(&self, command: &SketchCommand<'_>) -> usize {
        match (command, self.rows) {
            (SketchCommand::CountItems { items, .. }, Some(rows)) => {
                self.bytes.min(HEADER_BYTES + EDIT_OVERHEAD_BYTES_MAX + items.len() * counted(rows))
            }
            _ => self.bytes,
        }
    }
}

fn written<'c, 'a>(command: &'c Command<'a>) -> Option<&'c SketchCommand<'a>> {
    if let Command::Sketch(command) = command { Some(command).filter(|command| command.writes()) } else { None }
}

/// The counter whose cell a command may write again as it is, but for its expiry.
fn rewritten<'a>(command: &Command<'a>) -> Option<Name<'a>> {
    match command {
        Command::Expire { name, .. } | Command::Persist { name } | Command::ReadAndExpire { name, .. } => Some(*name),
        _ => None,
    }
}

/// Most bytes that a command alone writes of what it changes in this body, or in one that it makes.
fn edits_bytes_max(command: &SketchCommand<'_>, body: Option<&Body>) -> usize {
    let Some(body) = body else {
        return match command {
            SketchCommand::Observe { items, .. } => uniques_bytes_max(0, items.len()),
            SketchCommand::MergeUnique { .. } => UNIQUE_BYTES_MAX,
            SketchCommand::SetString(set) => HEADER_BYTES + set.bytes.len(),
            // What is made is zeros, beside what is counted in it; all of it is not much more than that.
            SketchCommand::CountItems { items, make: Some(size), .. } => {
                let rows = rows_of(*size);
                made_bytes_max(command, 0).min(HEADER_BYTES + EDIT_OVERHEAD_BYTES_MAX + items.len() * counted(rows))
            }
            SketchCommand::CountTop { .. } => made_bytes_max(command, longest(command)),
            _ => HEADER_BYTES,
        };
    };
    let length = body.bytes().len();
    let whole = !body.journaled;
    match (command, body.sketch()) {
        (SketchCommand::Observe { items, .. }, _) => {
            let after = uniques_bytes_max(length, items.len());
            let grows = after == UNIQUE_BYTES_MAX && length < UNIQUE_BYTES_MAX / 2 || whole;
            if grows { after } else { after.min(items.len() * OBSERVED_BYTES_MAX) }
        }
        (SketchCommand::SetString(set), _) => HEADER_BYTES + set.bytes.len(),
        (SketchCommand::CountItems { items, .. }, Sketch::Cms(sketch) | Sketch::Frequency(sketch)) if !whole => {
            length.min(items.len() * counted(sketch.depth() as usize))
        }
        (SketchCommand::CountTop { items, .. }, Sketch::TopK(sketch) | Sketch::Top(sketch)) => {
            let all = widest(sketch, longest(command));
            match items_room(sketch, items) {
                Some(room) if !whole && room >= longest(command) => all.min(items.len() * (LISTED_BYTES_MAX + room)),
                _ => all,
            }
        }
        (SketchCommand::MergeUnique { .. }, _) => UNIQUE_BYTES_MAX,
        _ => length,
    }
}

/// How long items may be without the list being laid out anew; `None` if that may happen for its numbers.
fn items_room(sketch: &Top, items: &[(&[u8], u64)]) -> Option<usize> {
    let total = items.iter().try_fold(sketch.n(), |total, (_, by)| total.checked_add(*by))?;
    // While all that came is a number of four bytes, so are all others.
    if total > u64::from(u32::MAX) {
        return None;
    }
    let info = sketch.info();
    let slots = sketch.bytes().len().checked_sub(HEADER_BYTES + info.cells as usize * 4)?;
    (slots / (info.slots as usize).max(1)).checked_sub(2 * 4 + 2)
}

/// The longest item that a command may bring into a list.
fn longest(command: &SketchCommand<'_>) -> usize {
    match command {
        SketchCommand::CountTop { items, .. } => items.iter().map(|(item, _)| item.len()).max().unwrap_or(0),
        _ => 0,
    }
}

/// Most bytes of a body of uniques that had so many, and sees so many items more.
fn uniques_bytes_max(length: usize, items: usize) -> usize {
    let after = length.max(HEADER_BYTES).saturating_add(items.saturating_mul(UNIQUE_GROWTH_BYTES));
    if after > UNIQUE_LIST_BYTES { UNIQUE_BYTES_MAX } else { after }
}

/// Most bytes of the edits of an item that is counted in so many rows: a cell of each, and how much came in all.
fn counted(rows: usize) -> usize {
    rows * (EDIT_OVERHEAD_BYTES_MAX + 4) + EDIT_OVERHEAD_BYTES_MAX + 8
}

fn rows_of(size: FrequencySize) -> usize {
    match size {
        FrequencySize::Dimensions { depth, .. } => usize::try_from(depth).unwrap_or(usize::MAX).min(1 << 16),
        FrequencySize::Accuracy { probability, .. } => (-probability.get().log2()).ceil().clamp(1.0, 65_536.0) as usize,
    }
}

/// Most bytes of the body that a command makes, in either form, and that takes items so long; 0 if it makes none.
fn made_bytes_max(command: &SketchCommand<'_>, longest: usize) -> usize {
    match command {
        SketchCommand::MakeFrequency { size, .. } | SketchCommand::CountItems { make: Some(size), .. } => {
            let cells = match *size {
                FrequencySize::Dimensions { width, depth } => width.saturating_mul(depth),
                // The wider and the deeper of both forms.
                FrequencySize::Accuracy { error, .. } => {
                    ((std::f64::consts::E / error.get()).ceil() * rows_of(*size) as f64) as u64
                }
            };
            let bytes = cells.saturating_mul(4).saturating_add(HEADER_BYTES as u64);
            usize::try_from(bytes).unwrap_or(usize::MAX).min(super::SKETCH_BYTES_MAX)
        }
        SketchCommand::MakeTop { size, .. } | SketchCommand::CountTop { make: Some(size), .. } => {
            top_bytes_max(*size, longest)
        }
        SketchCommand::SetString(set) => HEADER_BYTES + set.bytes.len(),
        _ => 0,
    }
}

fn top_bytes_max(TopSize { k, width, depth, .. }: TopSize, longest: usize) -> usize {
    let slots = u64::from(k) * u64::from(quipu_sketch::top::SLOTS_PER_PLACE);
    let cells = (2 * u64::from(width)).saturating_mul(u64::from(depth)).max(slots);
    let slot = 2 * 8 + 2 + longest.next_multiple_of(8).max(8) as u64;
    let bytes = (slots * slot).saturating_add(cells.saturating_mul(8)).saturating_add(HEADER_BYTES as u64);
    usize::try_from(bytes).unwrap_or(usize::MAX).min(super::SKETCH_BYTES_MAX)
}

/// Most bytes of strings among the answers of commands, where they are remembered; `look` finds the body of a name.
pub fn strings_bytes_max<'a, 'b>(commands: &[Command<'a>], look: impl Fn(Name<'a>) -> Option<&'b Body>) -> usize {
    let strings = commands.iter().filter_map(|command| match command {
        Command::Take { name } | Command::ReadAndExpire { name, .. } => look(*name),
        Command::Set(set) if set.reply_old => look(set.name),
        Command::Sketch(SketchCommand::SetString(set)) if set.reply_old => look(set.name),
        _ => None,
    });
    strings.filter(|body| matches!(body.sketch(), Sketch::Hll(_))).map(|body| body.bytes().len()).sum()
}

/// Most bytes of the answer of a command beside strings, where it is remembered.
pub fn outcome_bytes_max(command: &Command<'_>) -> usize {
    /// A length.
    const EACH: usize = 24;
    match command {
        Command::Sketch(SketchCommand::CountItems { items, .. }) => EACH + 8 * items.len(),
        Command::Sketch(SketchCommand::CountTop { items, .. }) => EACH + (EACH + ITEM_BYTES_MAX) * items.len(),
        _ => 0,
    }
}
