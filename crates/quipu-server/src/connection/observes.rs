//! Observations of single items, found and run many at a time.
//!
//! In: the input of a connection of which nothing else is asked than to answer. Out: the replies to the first such commands in it, all of them on one sketch.

use arrayvec::ArrayVec;
use quipu_engine::{OBSERVES_MAX, Turn};
use quipu_protocol::{Limits, Version, Writer, observe};

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
    let mut items = ArrayVec::<&[u8], OBSERVES_MAX>::new();
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
    let ran = turn.run_observes(first.name, &items, first.dialect, |changed| writer.yes_or_no(changed));
    if !ran {
        return Ran { found, ..Ran::default() };
    }
    hot.ran(found, turn.now(), |_| Some((first.name, true)));
    // A name and an operation; the item weighs nothing.
    Ran { found, commands: found, bytes, work: 2 * found, command: Some(first.command()), errors: 0 }
}
