//! How much room a command of sketches may need: in the journal, and where its answer is
//! remembered.
//!
//! In: commands, and the bodies that they meet. Out: bounds, which hold whatever the items are.
//!
//! What a record says of a sketch is never longer than all of its body and
//! [`EDIT_OVERHEAD_BYTES_MAX`]: where edits would be, the body is written instead. So a bound is
//! that of the edits, where it is known how long these can be, or that of the body after them.
//!
//! Not here: getting the room (`turn`).

use std::collections::HashMap;

use quipu_model::{Command, FrequencySize, Name, SketchCommand, TopSize};
use quipu_sketch::count_min::DEPTH_MAX;
use quipu_sketch::{CountMin, Ring, Sketch, Top, hll};

use crate::apply::bodies::top::widest;
use crate::bodies::body_map::Body;
use crate::bodies::together::ITEM_BYTES_MAX;
use crate::journal::format::{EDIT_OVERHEAD_BYTES_MAX, SKETCH_ENTRY_BYTES_MAX};

/// Most bytes of a body of uniques that is made here, of either form. A list of either form may end
/// at any item: ours when it is full, Redis's also when a register rises above what a run can say.
pub const UNIQUE_BYTES_MAX: usize = 12_400;

/// Most bytes of the edits of an item that is observed where there is no list: its register, the
/// estimate, and that the count is out of date.
const OBSERVED_BYTES_MAX: usize = 160;

/// Most bytes of the edits of an item that is counted in a list, beside the item: its slot, how
/// many are in use, how much came in all, and two cells.
const LISTED_BYTES_MAX: usize = 160;

/// Most bytes that are written of a ring that is made, beside its entry: its header, and of a pane
/// that begins or of what is late its number.
const RING_MADE_BYTES_MAX: usize = HEADER_BYTES + 3 * (EDIT_OVERHEAD_BYTES_MAX + 8);

/// No sketch has a longer header.
pub const HEADER_BYTES: usize = Ring::HEADER_BYTES;

/// Most bytes that commands of sketches add to their record, beside what every command may write;
/// `look` finds the body of a name, unless its counter has expired.
pub fn record_bytes_max<'a, 'b>(commands: &[Command<'a>], look: impl Fn(Name<'a>) -> Option<&'b Body>) -> usize {
    let longest = commands.iter().filter_map(written).map(longest).max().unwrap_or(0);
    let alone = if let [command] = commands { Some(Together::of_one(command, longest)) } else { None };
    let several = if alone.is_none() { Together::of_each(commands, longest) } else { HashMap::new() };
    let bytes = commands.iter().filter_map(|command| {
        if let Some(name) = rewritten(command) {
            // Where the journal does not have all of the body, it gets that with the cell. What
            // changed it before in the same record has seen to that.
            return Some(look(name)?.unjournaled_bytes().map(|bytes| entry_bytes_max(name) + bytes).sum());
        }
        let command = written(command)?;
        let name = command.facts().targets.first()?;
        let together = alone.as_ref().or_else(|| several.get(name.bytes()))?;
        Some(together.entries_bytes_max(command, name, look(name), longest))
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
    let Some((command, name)) = written(command).and_then(|command| Some((command, command.facts().targets.first()?)))
    else {
        return 0;
    };
    let edits = match command {
        // A list that ends: to be told so under the lock costs more than room that is given back.
        SketchCommand::Observe { .. } => UNIQUE_BYTES_MAX,
        SketchCommand::CountItems { items, .. } => items.len() * counted(ROWS),
        SketchCommand::CountTop { items, .. } => items.len() * LISTED_BYTES,
        _ => HEADER_BYTES,
    };
    entry_bytes_max(name) + edits
}

/// Most bytes that a record takes for a body that is written down whole, beside the body.
pub fn own_body_bytes_max(name: Name<'_>) -> usize {
    entry_bytes_max(name)
}

/// Most bytes that a record takes for items counted one by one in a sketch of uniques.
pub fn observe_bytes_max(name: Name<'_>) -> usize {
    entry_bytes_max(name) + UNIQUE_BYTES_MAX
}

fn entry_bytes_max(name: Name<'_>) -> usize {
    SKETCH_ENTRY_BYTES_MAX + name.bytes().len() + EDIT_OVERHEAD_BYTES_MAX
}

/// What all commands of one record, together, may do to one name: each may meet the work of
/// another.
#[derive(Debug, Default)]
struct Together {
    /// The body that is there may go, so that another is made.
    goes: bool,
    /// Most bytes of a body that is made, beside uniques.
    made_bytes: usize,
    /// Most rows of frequencies that are made.
    made_rows: usize,
    /// All that comes to a list; `None` if that is no number.
    listed: Option<u64>,
}

impl Together {
    const NOTHING: Together = Together { goes: false, made_bytes: 0, made_rows: 0, listed: Some(0) };

    fn of_one(command: &Command<'_>, longest: usize) -> Together {
        let mut together = Together::NOTHING;
        together.note(command, longest);
        together
    }

    fn of_each<'c>(commands: &'c [Command<'_>], longest: usize) -> HashMap<&'c [u8], Together> {
        let mut each: HashMap<&[u8], Together> = HashMap::new();
        for command in commands {
            for name in command.facts().targets.names() {
                each.entry(name.bytes()).or_insert(Together::NOTHING).note(command, longest);
            }
        }
        if commands.iter().any(|command| matches!(command, Command::Flush)) {
            each.values_mut().for_each(|together| together.goes = true);
        }
        each
    }

    fn note(&mut self, command: &Command<'_>, longest: usize) {
        if command.facts().may_remove {
            self.goes = true;
        } else if let Command::Sketch(command) = command {
            let (command, _) = command.command_and_time();
            self.made_bytes = self.made_bytes.max(made_bytes_max(command, longest));
            self.made_rows = self.made_rows.max(made_rows(command));
            if let SketchCommand::CountTop { items, .. } = command {
                self.listed = items.iter().try_fold(self.listed, |all, (_, by)| Some(all?.checked_add(*by))).flatten();
            }
        }
    }

    /// Most bytes that a command writes of a body, or one that is made: of a ring and of a pane,
    /// where there are such.
    fn entries_bytes_max(
        &self,
        command: &SketchCommand<'_>,
        name: Name<'_>,
        body: Option<&Body>,
        longest: usize,
    ) -> usize {
        let entry = entry_bytes_max(name);
        let plain = entry + self.edits_bytes_max(command, body.filter(|body| !is_ring(body)), longest);
        if !matches!(
            command,
            SketchCommand::Observe { .. } | SketchCommand::CountItems { .. } | SketchCommand::CountTop { .. }
        ) {
            return plain;
        }
        let made = entry + RING_MADE_BYTES_MAX + plain;
        let Some((body, ring)) = body.and_then(|body| as_ring(body.sketch()).map(|ring| (body, ring))) else {
            return made;
        };
        // What changes is one of the panes that are there, or one that is made; of a ring, some
        // numbers. All that the journal does not have comes with it.
        let unjournaled: usize = body.unjournaled_bytes().map(|bytes| entry + bytes).sum();
        let begun = self.begun_bytes_max(command, ring, longest);
        let changed = body.panes().map(|(_, pane)| self.pane_bytes_max(command, pane, longest)).max().unwrap_or(0);
        made.max(2 * entry + ring.bytes().len() + begun.max(changed) + unjournaled)
    }

    /// Most bytes that a command writes of a pane that it changes, which may have been changed in
    /// the same record before.
    fn pane_bytes_max(&self, command: &SketchCommand<'_>, pane: &Body, longest: usize) -> usize {
        match pane.sketch() {
            Sketch::TopK(list) | Sketch::Top(list) => widest(list, longest),
            _ => self.edits_bytes_max(command, Some(pane), longest),
        }
    }

    /// Most bytes that a command writes of a pane that it begins.
    fn begun_bytes_max(&self, command: &SketchCommand<'_>, ring: &Ring, longest: usize) -> usize {
        let (width, depth) = ring.table();
        match command {
            SketchCommand::CountItems { items, .. } => {
                HEADER_BYTES + EDIT_OVERHEAD_BYTES_MAX + items.len() * counted(depth as usize)
            }
            SketchCommand::CountTop { .. } => {
                let decay = TopSize::with_k(1).decay;
                top_bytes_max(TopSize { k: ring.k(), width, depth, decay }, longest)
            }
            _ => UNIQUE_BYTES_MAX,
        }
    }

    /// Most bytes that a command writes of what it changes in this body, or in one that is made.
    fn edits_bytes_max(&self, command: &SketchCommand<'_>, body: Option<&Body>, longest: usize) -> usize {
        let length = body.map_or(0, |body| body.bytes().len());
        let whole = body.is_some_and(|body| !body.journaled);
        let sketch = body.map(Body::sketch);
        match command {
            // What is made is zeros behind a header.
            SketchCommand::MakeFrequency { .. } | SketchCommand::MakeTop { .. } => HEADER_BYTES,
            SketchCommand::SetString(set) if set.bytes.len() <= hll::SPARSE_BYTES_MAX => HEADER_BYTES + set.bytes.len(),
            SketchCommand::SetString(_) => UNIQUE_BYTES_MAX,
            SketchCommand::Observe { items, .. } if !self.goes && !whole && sketch.is_some_and(has_registers) => {
                length.min(items.len() * OBSERVED_BYTES_MAX)
            }
            // A string that was taken from Redis, by a program before this one, may be longer.
            SketchCommand::Observe { .. } | SketchCommand::MergeUnique { .. } => UNIQUE_BYTES_MAX.max(length),
            SketchCommand::CountItems { items, .. } => {
                let rows = sketch.and_then(counts).map_or(0, |counts| counts.depth() as usize).max(self.made_rows);
                let all = length.max(self.made_bytes);
                if whole { all } else { all.min(HEADER_BYTES + EDIT_OVERHEAD_BYTES_MAX + items.len() * counted(rows)) }
            }
            SketchCommand::CountTop { items, .. } => {
                let made = if self.goes || sketch.is_none() { self.made_bytes } else { 0 };
                let Some(Sketch::TopK(list) | Sketch::Top(list)) = sketch else { return made };
                let all = widest(list, longest);
                let changed = match items_room(list, self.listed) {
                    Some(room) if !whole && room >= longest => all.min(items.len() * (LISTED_BYTES_MAX + room)),
                    _ => all,
                };
                changed.max(made)
            }
            _ => length.max(self.made_bytes),
        }
    }
}

fn is_ring(body: &Body) -> bool {
    as_ring(body.sketch()).is_some()
}

fn as_ring(sketch: &Sketch) -> Option<&Ring> {
    if let Sketch::Ring(ring) = sketch { Some(ring) } else { None }
}

fn has_registers(sketch: &Sketch) -> bool {
    match sketch {
        Sketch::Hll(hll) => hll.is_dense(),
        Sketch::Unique(unique) => unique.is_dense(),
        _ => false,
    }
}

fn counts(sketch: &Sketch) -> Option<&CountMin> {
    if let Sketch::Cms(counts) | Sketch::Frequency(counts) = sketch { Some(counts) } else { None }
}

fn written<'c, 'a>(command: &'c Command<'a>) -> Option<&'c SketchCommand<'a>> {
    if let Command::Sketch(command) = command {
        Some(command.command_and_time().0).filter(|command| command.facts().writes)
    } else {
        None
    }
}

/// The counter whose cell a command may write again as it is, but for its expiry.
fn rewritten<'a>(command: &Command<'a>) -> Option<Name<'a>> {
    let facts = command.facts();
    facts.targets.first().filter(|_| facts.rewrites_cell)
}

/// How long items may be without the list being laid out anew; `None` if that may happen for its
/// numbers.
fn items_room(sketch: &Top, listed: Option<u64>) -> Option<usize> {
    if !sketch.stays_as_wide(listed?) {
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

/// Most bytes of the edits of an item that is counted in so many rows: a cell of each, and how much
/// came in all.
fn counted(rows: usize) -> usize {
    rows * (EDIT_OVERHEAD_BYTES_MAX + 4) + EDIT_OVERHEAD_BYTES_MAX + 8
}

/// Most rows of the frequencies that a command makes, in either form; 0 if it makes none.
fn made_rows(command: &SketchCommand<'_>) -> usize {
    match command {
        SketchCommand::MakeFrequency { size, .. } | SketchCommand::CountItems { make: Some(size), .. } => {
            rows_of(*size)
        }
        _ => 0,
    }
}

fn rows_of(size: FrequencySize) -> usize {
    let rows = match size {
        FrequencySize::Dimensions { depth, .. } => usize::try_from(depth).unwrap_or(usize::MAX),
        // A little more than either form has: logarithms in single precision may be rounded up.
        FrequencySize::Accuracy { probability, .. } => (-probability.get().log2()).ceil().max(0.0) as usize + 1,
    };
    rows.clamp(1, DEPTH_MAX as usize)
}

/// Most bytes of the body that a command makes, in either form, and that takes items so long; 0 if
/// it makes none.
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
            usize::try_from(bytes).unwrap_or(usize::MAX).min(crate::journal::format::SKETCH_BYTES_MAX)
        }
        SketchCommand::MakeTop { size, .. } | SketchCommand::CountTop { make: Some(size), .. } => {
            top_bytes_max(*size, longest)
        }
        _ => 0,
    }
}

fn top_bytes_max(TopSize { k, width, depth, .. }: TopSize, longest: usize) -> usize {
    let slots = u64::from(k) * u64::from(quipu_sketch::top::SLOTS_PER_PLACE);
    let cells = (2 * u64::from(width)).saturating_mul(u64::from(depth)).max(slots);
    let slot = 2 * 8 + 2 + longest.next_multiple_of(8).max(8) as u64;
    let bytes = (slots * slot).saturating_add(cells.saturating_mul(8)).saturating_add(HEADER_BYTES as u64);
    usize::try_from(bytes).unwrap_or(usize::MAX).min(crate::journal::format::SKETCH_BYTES_MAX)
}

/// Most bytes of strings among the answers of commands, where they are remembered; `look` finds the
/// body of a name.
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
    let Command::Sketch(command) = command else { return 0 };
    match command.command_and_time().0 {
        SketchCommand::CountItems { items, .. } => EACH + 8 * items.len(),
        SketchCommand::CountTop { items, .. } => EACH + (EACH + ITEM_BYTES_MAX) * items.len(),
        _ => 0,
    }
}
