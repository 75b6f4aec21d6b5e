//! Finds and runs commands that count single items in sketches, many at a time.
//!
//! In: input of a connection that may be batched. Out: the replies to the first such commands in
//! it, all on one sketch.

use arrayvec::ArrayVec;
use quipu_engine::{OBSERVES_MAX, Turn};
use quipu_model::{Dialect, Reply};
use quipu_protocol::{ItemCount, ItemFrame, Limits, RespVersion, RespWriter, SketchTarget, decode_item};

use super::simple_commands::RunCounts;
use crate::hot_keys::HotKeyTracker;

/// Runs the first commands of the input, up to a bound and to the first that is another command or
/// on another sketch.
pub(super) fn run_items(
    input: &[u8],
    limits: &Limits,
    turn: &mut Turn<'_>,
    out: &mut Vec<u8>,
    version: RespVersion,
    hot_keys: &HotKeyTracker,
) -> RunCounts {
    let Some(first) = decode_item(input, limits) else { return RunCounts::default() };
    let mut items = ArrayVec::<ItemCount<'_>, OBSERVES_MAX>::new();
    items.push(first.item);
    let mut bytes = first.bytes;
    while !items.is_full()
        && let Some((item, more)) = first.next(&input[bytes..], limits)
    {
        items.push(item);
        bytes += more;
    }
    let found = items.len();
    let mut writer = RespWriter::new(out, version);
    let was_run = match first.target() {
        SketchTarget::Unique(dialect) => run_unique(&first, &items, dialect, turn, &mut writer),
        SketchTarget::Frequency(_) | SketchTarget::Top(_) => run_counts(&first, &items, turn, &mut writer),
    };
    if !was_run {
        return RunCounts { found, ..RunCounts::default() };
    }
    hot_keys.record(found, turn.now(), |_| Some((first.name, true)));
    // Each command weighs a verb and a name; the item weighs nothing.
    RunCounts { found, commands: found, bytes, work: 2 * found, command: Some(first.command_name()), errors: 0 }
}

fn run_unique(
    first: &ItemFrame<'_>,
    items: &[ItemCount<'_>],
    dialect: Dialect,
    turn: &mut Turn<'_>,
    writer: &mut RespWriter<'_>,
) -> bool {
    let items: ArrayVec<&[u8], OBSERVES_MAX> = items.iter().map(|(item, _)| *item).collect();
    turn.run_observes(first.name, &items, dialect, |changed| writer.bool_as_integer(changed))
}

fn run_counts<'a>(
    first: &ItemFrame<'a>,
    items: &[ItemCount<'a>],
    turn: &mut Turn<'_>,
    writer: &mut RespWriter<'_>,
) -> bool {
    match first.command_for(items).and_then(|command| turn.run_counts(command)) {
        Some(Reply::Integers(numbers)) => numbers.into_iter().for_each(|number| {
            writer.array(1);
            writer.integer(number);
        }),
        Some(Reply::Items(expelled)) => expelled.into_iter().for_each(|expelled| {
            writer.array(1);
            match expelled {
                Some(item) => writer.bulk(&item),
                None => writer.null(),
            }
        }),
        _ => return false,
    }
    true
}
