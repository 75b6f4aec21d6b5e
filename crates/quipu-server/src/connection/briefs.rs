//! Adds and reads of single counters, found and run many at a time.
//!
//! In: the input of a connection, or of several, of which nothing else is asked than to answer. Out: the replies to the first such commands in it.

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

/// Such commands, of one input or of several.
#[derive(Default)]
pub(super) struct Found<'a> {
    pub briefs: ArrayVec<Brief<'a>, BRIEFS_MAX>,
    /// Where each of them ends in its input, and what it is called.
    pub ends: ArrayVec<(u32, Word), BRIEFS_MAX>,
}

impl<'a> Found<'a> {
    /// Finds the first of an input, as many as there is room for; how many bytes they have.
    pub fn find(&mut self, input: &'a [u8], limits: &Limits) -> usize {
        let Found { briefs, ends } = self;
        let (mut at, mut before) = (0, None::<BriefFrame<'_>>);
        while !briefs.is_full() {
            let rest = &input[at..];
            // Whoever counts one thing sends the same bytes again and again, which need not be understood again. They are compared only after two that looked alike.
            let frame = match before {
                Some(frame) if rest.starts_with(&input[at - frame.bytes..at]) => frame,
                _ => {
                    let Some(frame) = brief(rest, limits) else { break };
                    let is_like_the_last = briefs.last().is_some_and(|last| end(last) == end(&frame.brief));
                    before = Some(frame).filter(|_| is_like_the_last);
                    frame
                }
            };
            at += frame.bytes;
            briefs.push(frame.brief);
            // Far below: names are short, and they are few.
            ends.push((at as u32, frame.word));
        }
        at
    }

    /// Only so many of the first are left.
    pub fn truncate(&mut self, commands: usize) {
        self.briefs.truncate(commands);
        self.ends.truncate(commands);
    }

    /// Runs them from one on, up to the first that needs the long way; how many that were.
    pub fn run(&self, from: usize, turn: &mut Turn<'_>, hot: &Hot, mut tell: impl FnMut(BriefReply)) -> usize {
        let mut at = from;
        while at < self.briefs.len() {
            let more = turn.run_briefs(&self.briefs[at..], &mut tell);
            if more == 0 {
                break;
            }
            at += more;
        }
        let name_of =
            |index| self.briefs.get(from + index).map(|brief: &Brief<'a>| (brief.name, brief.delta.is_some()));
        hot.ran(at - from, turn.now(), name_of);
        at - from
    }
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
    let mut found = Found::default();
    found.find(input, limits);
    let mut ran = Ran { found: found.briefs.len(), ..Ran::default() };
    if ran.found == 0 {
        return ran;
    }
    let mut teller = Teller::default();
    ran.commands = found.run(0, turn, hot, |reply| teller.tell(reply, out, version));
    ran.errors = teller.errors;
    if let Some(last) = ran.commands.checked_sub(1) {
        let (end, word) = found.ends[last];
        (ran.bytes, ran.command) = (end as usize, Some(word.command()));
        // A name and an operation; the third argument of some weighs nothing.
        ran.work = 2 * ran.commands;
    }
    ran
}

/// Writes replies, one after another.
#[derive(Default)]
pub(super) struct Teller {
    lines: Lines,
    /// How many of them were refusals.
    pub errors: u64,
}

impl Teller {
    #[inline]
    pub fn tell(&mut self, reply: BriefReply, out: &mut Vec<u8>, version: Version) {
        let mut writer = Writer::new(out, version);
        match reply {
            BriefReply::Added(value) => writer.integer_after(&mut self.lines, value),
            BriefReply::Read(value) => writer.value(value),
            BriefReply::Overflow => {
                self.errors += 1;
                writer.refusal(&Refusal::Overflow, "");
            }
        }
    }
}

/// Where names that differ mostly do.
#[inline]
fn end<'a>(brief: &Brief<'a>) -> Option<&'a [u8; 8]> {
    brief.name.bytes().last_chunk()
}
