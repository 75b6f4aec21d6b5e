//! Runs adds and reads of several connections as one batch.
//!
//! In: input of connections that consists of simple commands only. Out: their replies, one after
//! another, and the progress of each entry.
//!
//! Clients often send one command and wait for its reply. Their commands then wait at the same
//! time. Together they run like one pipeline: the engine looks up each counter once, prefetches the
//! memory of all, and writes one record for all.
//!
//! Invariants:
//! - A connection's replies are those of its own commands, in order, and contiguous.
//! - All entries have the same durability, so no reply waits for a commit that only others need.

use arrayvec::ArrayVec;
use quipu_engine::{SIMPLE_COMMANDS_MAX, Turn};
use quipu_model::Durability;
use quipu_protocol::{Limits, RespVersion};

use super::simple_commands::{ReplyWriter, SimpleCommands};
use crate::hot_keys::HotKeyTracker;

/// Most input of an entry. A connection with more runs alone: it has a pipeline of its own. The
/// least input of `SIMPLE_COMMANDS_MAX` commands.
pub(crate) const INPUT_BYTES_MAX: usize = SIMPLE_COMMANDS_MAX * b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n".len();

/// Number of entries on the general path after which all remaining entries take it: each of them
/// costs another scan of the rest.
const FAST_PATH_MISSES_MAX: usize = 4;

/// Commands of several connections, and their entries.
#[derive(Default)]
pub(crate) struct CommandBatch<'a> {
    simple: SimpleCommands<'a>,
    entries: ArrayVec<BatchEntry<'a>, SIMPLE_COMMANDS_MAX>,
    /// RESP version and durability that all entries have in common.
    common: Option<(RespVersion, Durability)>,
}

/// One connection of the batch.
pub(crate) struct BatchEntry<'a> {
    /// Slot of the connection.
    pub slot: usize,
    pub input: &'a [u8],
    /// Index after its last command; its first follows the previous entry's last.
    commands_end: usize,
}

/// Progress of one entry.
pub(crate) struct EntryProgress {
    /// End of its replies; they begin at the end of the previous entry's.
    pub replies_end: usize,
    /// Bytes of its input that ran. If not all, the next command needs the general path.
    pub bytes: usize,
    /// Its last command that ran, if any.
    pub command: Option<&'static str>,
}

impl<'a> CommandBatch<'a> {
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns true if there is no room for another command.
    pub fn is_full(&self) -> bool {
        self.simple.commands.is_full()
    }

    /// Adds a connection. Its input must be simple commands only, fit as a whole, and share the
    /// version and durability of the batch.
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

    /// Entries, in order.
    pub fn entries(&self) -> &[BatchEntry<'a>] {
        &self.entries
    }

    /// Runs all commands; appends their replies, and each entry's progress.
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
            // An entry that needs the general path takes it alone; the later ones continue in the
            // batch.
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

/// Totals of a run.
pub(crate) struct BatchCounts {
    /// Number of commands that ran.
    pub commands: u64,
    /// Number of refusals among them.
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

    /// In memory mode, except for the namespace `safe`.
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
        // In a namespace with a TTL, new counters need the general path.
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
        // The fourth miss is at 7; the entry at 8 could have run.
        assert_eq!(were_run, [true, false, true, false, true, false, true, false, false]);
        assert_eq!((ran.commands, out), (4, b":1\r\n".repeat(4)));
    }
}
