//! Adds and reads of single counters, found and run many at a time.
//!
//! In: the input of a connection of which nothing else is asked than to answer. Out: the replies to the first such commands in it.

use crate::hot::Hot;
use arrayvec::ArrayVec;
use quipu_engine::{BRIEFS_MAX, BriefReply, Turn};
use quipu_model::{Brief, Refusal};
use quipu_protocol::number::Lines;
use quipu_protocol::{BriefFrame, Limits, Version, Word, Writer, brief};

/// What came of looking for such commands.
#[derive(Debug, Default)]
pub(super) struct Ran {
    /// How many were found; if not all of them were run, the next one needs the long way.
    pub found: usize,
    /// How many were run, and the bytes and arguments they had.
    pub commands: usize,
    pub bytes: usize,
    pub work: usize,
    /// The last of them.
    pub command: Option<&'static str>,
    /// How many were refused.
    pub errors: u64,
}

/// Runs the first commands of the input, up to a number and to the first that needs the long way.
pub(super) fn run(
    input: &[u8],
    limits: &Limits,
    turn: &mut Turn<'_>,
    out: &mut Vec<u8>,
    version: Version,
    hot: &Hot,
) -> Ran {
    let mut briefs = ArrayVec::<Brief<'_>, BRIEFS_MAX>::new();
    // Where each of them ends, and what it is called.
    let mut ends = ArrayVec::<(u32, Word), BRIEFS_MAX>::new();
    let (mut at, mut before) = (0, None::<BriefFrame<'_>>);
    while !briefs.is_full() {
        let rest = &input[at..];
        // Whoever counts one thing sends the same bytes again and again, which need not be understood again. They are compared only after two that looked alike.
        let frame = match before {
            Some(frame) if rest.starts_with(&input[at - frame.bytes..at]) => frame,
            _ => {
                let Some(frame) = brief(rest, limits) else { break };
                before = Some(frame).filter(|frame| briefs.last().is_some_and(|last| end(last) == end(&frame.brief)));
                frame
            }
        };
        at += frame.bytes;
        briefs.push(frame.brief);
        // Far below: names are short, and they are few.
        ends.push((at as u32, frame.word));
    }
    let found = briefs.len();
    let mut ran = Ran { found, ..Ran::default() };
    if found == 0 {
        return ran;
    }
    let (mut writer, mut lines) = (Writer::new(out, version), Lines::default());
    while ran.commands < found {
        let more = turn.run_briefs(&briefs[ran.commands..], |reply| match reply {
            BriefReply::Added(value) => writer.integer_after(&mut lines, value),
            BriefReply::Read(value) => writer.value(value),
            BriefReply::Overflow => {
                ran.errors += 1;
                writer.refusal(&Refusal::Overflow, "");
            }
        });
        if more == 0 {
            break;
        }
        ran.commands += more;
    }
    hot.ran(ran.commands, turn.now(), |at| briefs.get(at).map(|brief| (brief.name, brief.delta.is_some())));
    if let Some(last) = ran.commands.checked_sub(1) {
        let (end, word) = ends[last];
        (ran.bytes, ran.command) = (end as usize, Some(word.command()));
        // A name and an operation; the third argument of some weighs nothing.
        ran.work = 2 * ran.commands;
    }
    ran
}

/// Where names that differ mostly do.
#[inline]
fn end<'a>(brief: &Brief<'a>) -> Option<&'a [u8; 8]> {
    brief.name.bytes().last_chunk()
}
