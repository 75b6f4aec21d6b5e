//! Adds and reads of several connections, run as one.
//!
//! In: what connections have sent of which nothing else is asked than to answer. Out: their replies, one after another, and how far each of them has come.
//!
//! Of those who send one command and wait for its reply, many wait at once. Together their commands are like those of one pipeline: each counter is looked up once, the memory of all is asked for before any of it is
//! waited for, and one record tells of all.
//!
//! Invariants:
//! - a connection's replies are those of its own commands, in their order, and stand together;
//! - all of them ask for the same durability, so no reply waits for a commit that only others asked for.

use arrayvec::ArrayVec;
use quipu_engine::{SIMPLE_COMMANDS_MAX, Turn};
use quipu_model::Durability;
use quipu_protocol::{Limits, RespVersion};

use super::simple_commands::{ReplyWriter, SimpleCommands};
use crate::hot_keys::HotKeyTracker;

/// Who sends more than this is served alone: it has a pipeline of its own. What so many commands have at least that are run at once.
pub(crate) const INPUT_BYTES_MAX: usize = SIMPLE_COMMANDS_MAX * b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n".len();

/// After so many members that needed the long way the others go it as well: each of them costs another look at all that are left.
const FAST_PATH_MISSES_MAX: usize = 4;

/// Commands of several connections, and whose they are.
#[derive(Default)]
pub(crate) struct CommandBatch<'a> {
    simple: SimpleCommands<'a>,
    entries: ArrayVec<BatchEntry<'a>, SIMPLE_COMMANDS_MAX>,
    /// What all of them have in common: how they are answered, and what an answer means.
    common: Option<(RespVersion, Durability)>,
}

/// One connection among them.
pub(crate) struct BatchEntry<'a> {
    /// Whose input it is.
    pub slot: usize,
    pub input: &'a [u8],
    /// Its commands end before this one, and begin where the last member's end.
    commands_end: usize,
}

/// How far a connection has come.
pub(crate) struct EntryProgress {
    /// Where its replies end; they begin where those before it end.
    pub replies_end: usize,
    /// How many of its bytes were commands that were run. Not all: the next one needs the long way.
    pub bytes: usize,
    /// The last of them, if there was one.
    pub command: Option<&'static str>,
}

impl<'a> CommandBatch<'a> {
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether no other would find room.
    pub fn is_full(&self) -> bool {
        self.simple.commands.is_full()
    }

    /// Takes a connection in, if its input is nothing but such commands, all of them fit and are like those of the others.
    pub fn try_add(
        &mut self,
        slot: usize,
        input: &'a [u8],
        version: RespVersion,
        limits: &Limits,
        turn: &Turn<'_>,
    ) -> bool {
        let from = self.simple.commands.len();
        let is_whole = input.len() <= INPUT_BYTES_MAX && self.simple.scan(input, limits) == input.len();
        let added = &self.simple.commands[from..];
        if let (true, Some(first)) = (is_whole, added.first()) {
            let common = self.common.unwrap_or_else(|| (version, turn.durability(first.name)));
            if common.0 == version && added.iter().all(|command| turn.durability(command.name) == common.1) {
                self.common = Some(common);
                self.entries.push(BatchEntry { slot, input, commands_end: self.simple.commands.len() });
                return true;
            }
        }
        self.simple.truncate(from);
        false
    }

    /// Whose commands they are, in their order.
    pub fn entries(&self) -> &[BatchEntry<'a>] {
        &self.entries
    }

    /// Runs all of them and appends their replies, and how far each member has come.
    pub fn run(
        &self,
        turn: &mut Turn<'_>,
        hot_keys: &HotKeyTracker,
        out: &mut Vec<u8>,
        progress: &mut Vec<EntryProgress>,
    ) -> BatchCounts {
        let CommandBatch { simple, entries, common } = self;
        let (version, _) = common.unwrap_or_default();
        let mut writer = ReplyWriter::default();
        let (mut at, mut from, mut commands, mut misses) = (0, 0, 0, 0);
        progress.clear();
        while progress.len() < entries.len() {
            if misses == FAST_PATH_MISSES_MAX {
                progress.push(EntryProgress { replies_end: out.len(), bytes: 0, command: None });
                continue;
            }
            let mut next = at;
            let ran = simple.run(at, turn, hot_keys, |reply| {
                writer.write(reply, out, version);
                next += 1;
                if let Some(entry) = entries.get(progress.len()).filter(|entry| entry.commands_end == next) {
                    let command = Some(simple.ends[next - 1].1.name());
                    progress.push(EntryProgress { replies_end: out.len(), bytes: entry.input.len(), command });
                    from = next;
                }
            });
            (at, commands) = (at + ran, commands + ran);
            // Whoever needs the long way goes it alone; those behind are like those before.
            if let Some(entry) = entries.get(progress.len()) {
                let last = (at > from).then(|| simple.ends[at - 1]);
                let (bytes, command) = last.map_or((0, None), |(end, word)| (end as usize, Some(word.name())));
                progress.push(EntryProgress { replies_end: out.len(), bytes, command });
                (at, from, misses) = (entry.commands_end, entry.commands_end, misses + 1);
            }
        }
        BatchCounts { commands: commands as u64, errors: writer.errors }
    }
}

/// What came of running them.
pub(crate) struct BatchCounts {
    /// How many commands were run.
    pub commands: u64,
    /// How many of them were refused.
    pub errors: u64,
}

#[cfg(test)]
mod tests {
    use quipu_engine::{Engine, Options};
    use quipu_model::{Command, Dialect, Name, Namespace, SketchCommand};

    use super::*;

    fn encode_command(words: &[&str]) -> Vec<u8> {
        let bulks: String = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len())).collect();
        format!("*{}\r\n{bulks}", words.len()).into_bytes()
    }

    fn incr(names: &[&str]) -> Vec<u8> {
        names.iter().flat_map(|name| encode_command(&["INCR", name])).collect()
    }

    /// In memory, but for the namespace `safe`.
    fn engine() -> (tempfile::TempDir, Engine) {
        let dir = tempfile::tempdir().unwrap();
        let mut options = Options::new(dir.path());
        options.durability = Durability::Memory;
        options.namespaces = vec![(b"safe"[..].into(), Namespace::with_durability(Durability::Relaxed))];
        let engine = Engine::open(options).unwrap();
        (dir, engine)
    }

    #[test]
    fn a_connection_joins_if_its_input_is_nothing_but_such_commands_like_those_of_the_others() {
        let ((_dir, engine), limits) = (engine(), Limits::default());
        let turn = engine.turn_at(engine.now());
        let many = incr(&["a"; SIMPLE_COMMANDS_MAX - 2]);
        let inputs = [
            (incr(&["a"]), RespVersion::Resp2, true),
            (incr(&["safe:a"]), RespVersion::Resp2, false),
            (incr(&["a", "safe:a"]), RespVersion::Resp2, false),
            (incr(&["a"]), RespVersion::Resp3, false),
            (encode_command(&["PING"]), RespVersion::Resp2, false),
            ([incr(&["a"]), encode_command(&["PING"])].concat(), RespVersion::Resp2, false),
            (incr(&["a", "b"])[..40].to_vec(), RespVersion::Resp2, false),
            (incr(&["a"; SIMPLE_COMMANDS_MAX]), RespVersion::Resp2, false),
            (many.clone(), RespVersion::Resp2, many.len() <= INPUT_BYTES_MAX),
            (encode_command(&["GET", "b"]), RespVersion::Resp2, true),
        ];
        let mut command_batch = CommandBatch::default();
        for (slot, (input, version, fits)) in inputs.iter().enumerate() {
            let before = command_batch.simple.commands.len();
            let joined = command_batch.try_add(slot, input, *version, &limits, &turn);
            assert_eq!(joined, *fits, "{}", input.escape_ascii());
            assert!(joined || command_batch.simple.commands.len() == before, "who does not join leaves nothing");
        }
        let slots: Vec<usize> = command_batch.entries().iter().map(|entry| entry.slot).collect();
        let joined = inputs.iter().enumerate().filter(|(_, (_, _, fits))| *fits);
        assert_eq!(slots, joined.map(|(slot, _)| slot).collect::<Vec<_>>());
    }

    #[test]
    fn each_gets_its_own_replies_and_who_needs_the_long_way_stops_nobody() {
        let ((_dir, engine), limits) = (engine(), Limits::default());
        let hot_keys = HotKeyTracker::new(engine.now());
        let sketch = SketchCommand::Observe {
            name: Name::new(b"sketch").unwrap(),
            items: vec![b"item"],
            dialect: Dialect::Redis,
        };
        let mut turn = engine.turn_at(engine.now());
        turn.run(&Command::Sketch(sketch)).unwrap();
        turn.finish();
        let inputs = [
            incr(&["a", "b"]),
            incr(&["a", "sketch", "a"]),
            incr(&["sketch"]),
            [incr(&["a"]), encode_command(&["INCRBY", "b", "9223372036854775807"]), encode_command(&["GET", "none"])]
                .concat(),
            incr(&["b"]),
        ];
        let mut turn = engine.turn_at(engine.now());
        let (mut command_batch, mut out, mut progress) = (CommandBatch::default(), b"before".to_vec(), Vec::new());
        for (slot, input) in inputs.iter().enumerate() {
            assert!(command_batch.try_add(slot, input, RespVersion::Resp2, &limits, &turn));
        }
        let ran = command_batch.run(&mut turn, &hot_keys, &mut out, &mut progress);
        turn.finish();
        assert_eq!((ran.commands, ran.errors), (7, 1));
        let mut from = b"before".len();
        let replies: Vec<String> = progress
            .iter()
            .map(|EntryProgress { replies_end: to, .. }| {
                out[std::mem::replace(&mut from, *to)..*to].escape_ascii().to_string()
            })
            .collect();
        let overflow = r"-ERR increment or decrement would overflow\r\n";
        let fourth = format!(r":3\r\n{overflow}$-1\r\n");
        assert_eq!(replies, [r":1\r\n:1\r\n", r":2\r\n", "", &*fourth, r":2\r\n"]);
        let bytes: Vec<usize> = progress.iter().map(|progress| progress.bytes).collect();
        assert_eq!(bytes, [inputs[0].len(), incr(&["a"]).len(), 0, inputs[3].len(), inputs[4].len()]);
        let commands: Vec<_> = progress.iter().map(|progress| progress.command).collect();
        assert_eq!(commands, [Some("incr"), Some("incr"), None, Some("get"), Some("incr")]);
    }

    #[test]
    fn where_many_need_the_long_way_all_that_are_left_do() {
        let ((_dir, engine), limits) = (engine(), Limits::default());
        let hot_keys = HotKeyTracker::new(engine.now());
        // Of a namespace that says how long its counters live, new ones are for the long way.
        let ttl = Namespace { ttl: Some(std::time::Duration::from_secs(60)), ..Namespace::default() };
        engine.put_namespace(b"short", ttl).unwrap();
        let inputs: Vec<Vec<u8>> =
            (0..9).map(|at| incr(&[&if at % 2 == 0 { format!("a{at}") } else { format!("short:{at}") }])).collect();
        let mut turn = engine.turn_at(engine.now());
        let (mut command_batch, mut out, mut progress) = (CommandBatch::default(), Vec::new(), Vec::new());
        for (slot, input) in inputs.iter().enumerate() {
            assert!(command_batch.try_add(slot, input, RespVersion::Resp2, &limits, &turn));
        }
        let ran = command_batch.run(&mut turn, &hot_keys, &mut out, &mut progress);
        turn.finish();
        let were_run: Vec<bool> = progress.iter().map(|progress| progress.bytes > 0).collect();
        // The fourth is at 7; at 8 would be another that could have been run.
        assert_eq!(were_run, [true, false, true, false, true, false, true, false, false]);
        assert_eq!((ran.commands, out), (4, b":1\r\n".repeat(4)));
    }
}
