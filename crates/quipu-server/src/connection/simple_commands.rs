//! Finds and runs adds and reads of single counters, many at a time.
//!
//! In: input of a connection, or of several, that may be batched. Out: the replies to the first
//! such commands in it.

use crate::hot_keys::HotKeyTracker;
use arrayvec::ArrayVec;
use quipu_engine::{SIMPLE_COMMANDS_MAX, SimpleReply, Turn};
use quipu_model::{Refusal, SimpleCommand};
use quipu_protocol::number::IntegerLines;
use quipu_protocol::{Limits, RespVersion, RespWriter, SimpleFrame, SimpleVerb, decode_simple};

/// Outcome of a scan and run.
#[derive(Debug, Default)]
pub(super) struct RunCounts {
    /// Number of commands found; if fewer ran, the next one needs the general path.
    pub found: usize,
    /// Number of commands that ran, their bytes and their arguments.
    pub commands: usize,
    pub bytes: usize,
    pub work: usize,
    /// The last of them.
    pub command: Option<&'static str>,
    /// Number of refusals.
    pub errors: u64,
}

/// Simple commands, of one input or of several.
#[derive(Default)]
pub(super) struct SimpleCommands<'a> {
    pub commands: ArrayVec<SimpleCommand<'a>, SIMPLE_COMMANDS_MAX>,
    /// End offset of each in its input, and its verb.
    pub ends: ArrayVec<(u32, SimpleVerb), SIMPLE_COMMANDS_MAX>,
}

impl<'a> SimpleCommands<'a> {
    /// Decodes the first commands of an input, up to the bound; returns their bytes.
    pub fn scan(&mut self, input: &'a [u8], limits: &Limits) -> usize {
        let SimpleCommands { commands, ends } = self;
        let (mut at, mut before) = (0, None::<SimpleFrame<'_>>);
        while !commands.is_full() {
            let rest = &input[at..];
            // A client that counts one counter sends the same bytes repeatedly, which need decoding
            // only once. The comparison runs only after two similar commands.
            let frame = match before {
                Some(frame) if rest.starts_with(&input[at - frame.bytes..at]) => frame,
                _ => {
                    let Some(frame) = decode_simple(rest, limits) else { break };
                    let is_like_the_last =
                        commands.last().is_some_and(|last| name_end(last) == name_end(&frame.command));
                    before = Some(frame).filter(|_| is_like_the_last);
                    frame
                }
            };
            at += frame.bytes;
            commands.push(frame.command);
            // The cast is exact: names are short, and the commands few.
            ends.push((at as u32, frame.verb));
        }
        at
    }

    /// Keeps only the first `commands`.
    pub fn truncate(&mut self, commands: usize) {
        self.commands.truncate(commands);
        self.ends.truncate(commands);
    }

    /// Runs them from an index on, up to the first that needs the general path; returns the number
    /// that ran.
    pub fn run(
        &self,
        from: usize,
        turn: &mut Turn<'_>,
        hot_keys: &HotKeyTracker,
        mut on_reply: impl FnMut(SimpleReply),
    ) -> usize {
        let mut at = from;
        while at < self.commands.len() {
            let more = turn.run_simple(&self.commands[at..], &mut on_reply);
            if more == 0 {
                break;
            }
            at += more;
        }
        let name_of = |index| {
            self.commands.get(from + index).map(|command: &SimpleCommand<'a>| (command.name, command.delta.is_some()))
        };
        hot_keys.record(at - from, turn.now(), name_of);
        at - from
    }
}

/// Runs the first commands of the input, up to a bound and to the first that needs the general
/// path.
pub(super) fn run_simple(
    input: &[u8],
    limits: &Limits,
    turn: &mut Turn<'_>,
    out: &mut Vec<u8>,
    version: RespVersion,
    hot_keys: &HotKeyTracker,
) -> RunCounts {
    let mut simple = SimpleCommands::default();
    simple.scan(input, limits);
    let mut counts = RunCounts { found: simple.commands.len(), ..RunCounts::default() };
    if counts.found == 0 {
        return counts;
    }
    let mut writer = ReplyWriter::default();
    counts.commands = simple.run(0, turn, hot_keys, |reply| writer.write(reply, out, version));
    counts.errors = writer.errors;
    if let Some(last) = counts.commands.checked_sub(1) {
        let (end, word) = simple.ends[last];
        (counts.bytes, counts.command) = (end as usize, Some(word.name()));
        // Each command weighs a verb and a name; the third argument of some weighs nothing.
        counts.work = 2 * counts.commands;
    }
    counts
}

/// Writes replies, one after another.
#[derive(Default)]
pub(super) struct ReplyWriter {
    lines: IntegerLines,
    /// Number of refusals among them.
    pub errors: u64,
}

impl ReplyWriter {
    #[inline]
    pub fn write(&mut self, reply: SimpleReply, out: &mut Vec<u8>, version: RespVersion) {
        let mut writer = RespWriter::new(out, version);
        match reply {
            SimpleReply::Added(value) => writer.integer_after(&mut self.lines, value),
            SimpleReply::Read(value) => writer.value(value),
            SimpleReply::Overflow => {
                self.errors += 1;
                writer.refusal(&Refusal::Overflow, "");
            }
        }
    }
}

/// End of a name, the part in which names mostly differ.
#[inline]
fn name_end<'a>(command: &SimpleCommand<'a>) -> Option<&'a [u8; 8]> {
    command.name.bytes().last_chunk()
}
