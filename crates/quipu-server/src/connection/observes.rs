//! Commands that count single items in sketches, found and run many at a time.
//!
//! In: the input of a connection of which nothing else is asked than to answer. Out: the replies to the first such commands in it, all of them on one sketch.

use arrayvec::ArrayVec;
use quipu_engine::{OBSERVES_MAX, Turn};
use quipu_model::{Dialect, Reply};
use quipu_protocol::{Counted, Counts, Limits, ObserveFrame, Version, Writer, observe};

use super::briefs::Ran;
use crate::hot::Hot;

/// Runs the first commands of the input, up to a number and to the first that is none of these or is on another sketch.
pub(super) fn run(
    input: &[u8],
    limits: &Limits,
    turn: &mut Turn<'_>,
    out: &mut Vec<u8>,
    version: Version,
    hot: &Hot,
) -> Ran {
    let Some(first) = observe(input, limits) else { return Ran::default() };
    let mut items = ArrayVec::<Counted<'_>, OBSERVES_MAX>::new();
    items.push(first.item);
    let mut bytes = first.bytes;
    while !items.is_full()
        && let Some((item, more)) = first.next(&input[bytes..], limits)
    {
        items.push(item);
        bytes += more;
    }
    let found = items.len();
    let mut writer = Writer::new(out, version);
    let ran = match first.counts() {
        Counts::Unique(dialect) => run_unique(&first, &items, dialect, turn, &mut writer),
        Counts::Frequency(_) | Counts::Top(_) => run_counts(&first, &items, turn, &mut writer),
    };
    if !ran {
        return Ran { found, ..Ran::default() };
    }
    hot.ran(found, turn.now(), |_| Some((first.name, true)));
    // A name and an operation; the item weighs nothing.
    Ran { found, commands: found, bytes, work: 2 * found, command: Some(first.command()), errors: 0 }
}

fn run_unique(
    first: &ObserveFrame<'_>,
    items: &[Counted<'_>],
    dialect: Dialect,
    turn: &mut Turn<'_>,
    writer: &mut Writer<'_>,
) -> bool {
    let items: ArrayVec<&[u8], OBSERVES_MAX> = items.iter().map(|(item, _)| *item).collect();
    turn.run_observes(first.name, &items, dialect, |changed| writer.yes_or_no(changed))
}

fn run_counts<'a>(
    first: &ObserveFrame<'a>,
    items: &[Counted<'a>],
    turn: &mut Turn<'_>,
    writer: &mut Writer<'_>,
) -> bool {
    match first.of_all(items).and_then(|command| turn.run_counts(command)) {
        Some(Reply::Integers(numbers)) => numbers.into_iter().for_each(|number| {
            writer.array(1);
            writer.integer(number);
        }),
        Some(Reply::Items(left)) => left.into_iter().for_each(|left| {
            writer.array(1);
            match left {
                Some(item) => writer.bulk(&item),
                None => writer.null(),
            }
        }),
        _ => return false,
    }
    true
}
