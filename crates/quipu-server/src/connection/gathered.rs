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
use quipu_engine::{BRIEFS_MAX, Turn};
use quipu_model::Durability;
use quipu_protocol::{Limits, Version};

use super::briefs::{Found, Teller};
use crate::hot::Hot;

/// Who sends more than this is served alone: it has a pipeline of its own. What so many commands have at least that are run at once.
pub(crate) const INPUT_BYTES_MAX: usize = BRIEFS_MAX * b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n".len();

/// After so many members that needed the long way the others go it as well: each of them costs another look at all that are left.
const LONG_WAYS_MAX: usize = 4;

/// Commands of several connections, and whose they are.
#[derive(Default)]
pub(crate) struct Gathered<'a> {
    found: Found<'a>,
    members: ArrayVec<Member<'a>, BRIEFS_MAX>,
    /// What all of them have in common: how they are answered, and what an answer means.
    alike: Option<(Version, Durability)>,
}

/// One connection among them.
pub(crate) struct Member<'a> {
    /// Whose input it is.
    pub place: usize,
    pub input: &'a [u8],
    /// Its commands end before this one, and begin where the last member's end.
    to: usize,
}

/// How far a connection has come.
pub(crate) struct Answered {
    /// Where its replies end; they begin where those before it end.
    pub to: usize,
    /// How many of its bytes were commands that were run. Not all: the next one needs the long way.
    pub bytes: usize,
    /// The last of them, if there was one.
    pub command: Option<&'static str>,
}

impl<'a> Gathered<'a> {
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Whether no other would find room.
    pub fn is_full(&self) -> bool {
        self.found.briefs.is_full()
    }

    /// Takes a connection in, if its input is nothing but such commands, all of them fit and are like those of the others.
    pub fn take(&mut self, place: usize, input: &'a [u8], version: Version, limits: &Limits, turn: &Turn<'_>) -> bool {
        let from = self.found.briefs.len();
        let is_whole = input.len() <= INPUT_BYTES_MAX && self.found.find(input, limits) == input.len();
        let added = &self.found.briefs[from..];
        if let (true, Some(first)) = (is_whole, added.first()) {
            let alike = self.alike.unwrap_or_else(|| (version, turn.durability(first.name)));
            if alike.0 == version && added.iter().all(|brief| turn.durability(brief.name) == alike.1) {
                self.alike = Some(alike);
                self.members.push(Member { place, input, to: self.found.briefs.len() });
                return true;
            }
        }
        self.found.truncate(from);
        false
    }

    /// Whose commands they are, in their order.
    pub fn members(&self) -> &[Member<'a>] {
        &self.members
    }

    /// Runs all of them and appends their replies, and how far each member has come.
    pub fn run(&self, turn: &mut Turn<'_>, hot: &Hot, out: &mut Vec<u8>, answered: &mut Vec<Answered>) -> Ran {
        let Gathered { found, members, alike } = self;
        let (version, _) = alike.unwrap_or_default();
        let mut teller = Teller::default();
        let (mut at, mut from, mut commands, mut long_ways) = (0, 0, 0, 0);
        answered.clear();
        while answered.len() < members.len() {
            if long_ways == LONG_WAYS_MAX {
                answered.push(Answered { to: out.len(), bytes: 0, command: None });
                continue;
            }
            let mut told = at;
            let ran = found.run(at, turn, hot, |reply| {
                teller.tell(reply, out, version);
                told += 1;
                if let Some(member) = members.get(answered.len()).filter(|member| member.to == told) {
                    let command = Some(found.ends[told - 1].1.command());
                    answered.push(Answered { to: out.len(), bytes: member.input.len(), command });
                    from = told;
                }
            });
            (at, commands) = (at + ran, commands + ran);
            // Whoever needs the long way goes it alone; those behind are like those before.
            if let Some(member) = members.get(answered.len()) {
                let last = (at > from).then(|| found.ends[at - 1]);
                let (bytes, command) = last.map_or((0, None), |(end, word)| (end as usize, Some(word.command())));
                answered.push(Answered { to: out.len(), bytes, command });
                (at, from, long_ways) = (member.to, member.to, long_ways + 1);
            }
        }
        Ran { commands: commands as u64, errors: teller.errors }
    }
}

/// What came of running them.
pub(crate) struct Ran {
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

    fn said(words: &[&str]) -> Vec<u8> {
        let bulks: String = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len())).collect();
        format!("*{}\r\n{bulks}", words.len()).into_bytes()
    }

    fn incr(names: &[&str]) -> Vec<u8> {
        names.iter().flat_map(|name| said(&["INCR", name])).collect()
    }

    /// In memory, but for the namespace `safe`.
    fn engine() -> (tempfile::TempDir, Engine) {
        let dir = tempfile::tempdir().unwrap();
        let mut options = Options::new(dir.path());
        options.durability = Durability::Memory;
        options.namespaces = vec![(b"safe"[..].into(), Namespace::durable(Durability::Relaxed))];
        let engine = Engine::open(options).unwrap();
        (dir, engine)
    }

    #[test]
    fn a_connection_joins_if_its_input_is_nothing_but_such_commands_like_those_of_the_others() {
        let ((_dir, engine), limits) = (engine(), Limits::default());
        let turn = engine.turn_at(engine.now());
        let many = incr(&["a"; BRIEFS_MAX - 2]);
        let inputs = [
            (incr(&["a"]), Version::Resp2, true),
            (incr(&["safe:a"]), Version::Resp2, false),
            (incr(&["a", "safe:a"]), Version::Resp2, false),
            (incr(&["a"]), Version::Resp3, false),
            (said(&["PING"]), Version::Resp2, false),
            ([incr(&["a"]), said(&["PING"])].concat(), Version::Resp2, false),
            (incr(&["a", "b"])[..40].to_vec(), Version::Resp2, false),
            (incr(&["a"; BRIEFS_MAX]), Version::Resp2, false),
            (many.clone(), Version::Resp2, many.len() <= INPUT_BYTES_MAX),
            (said(&["GET", "b"]), Version::Resp2, true),
        ];
        let mut gathered = Gathered::default();
        for (place, (input, version, joins)) in inputs.iter().enumerate() {
            let before = gathered.found.briefs.len();
            let joined = gathered.take(place, input, *version, &limits, &turn);
            assert_eq!(joined, *joins, "{}", input.escape_ascii());
            assert!(joined || gathered.found.briefs.len() == before, "who does not join leaves nothing");
        }
        let places: Vec<usize> = gathered.members().iter().map(|member| member.place).collect();
        let joined = inputs.iter().enumerate().filter(|(_, (_, _, joins))| *joins);
        assert_eq!(places, joined.map(|(place, _)| place).collect::<Vec<_>>());
    }

    #[test]
    fn each_gets_its_own_replies_and_who_needs_the_long_way_stops_nobody() {
        let ((_dir, engine), limits) = (engine(), Limits::default());
        let hot = Hot::new(engine.now());
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
            [incr(&["a"]), said(&["INCRBY", "b", "9223372036854775807"]), said(&["GET", "none"])].concat(),
            incr(&["b"]),
        ];
        let mut turn = engine.turn_at(engine.now());
        let (mut gathered, mut out, mut answered) = (Gathered::default(), b"before".to_vec(), Vec::new());
        for (place, input) in inputs.iter().enumerate() {
            assert!(gathered.take(place, input, Version::Resp2, &limits, &turn));
        }
        let ran = gathered.run(&mut turn, &hot, &mut out, &mut answered);
        turn.finish();
        assert_eq!((ran.commands, ran.errors), (7, 1));
        let mut from = b"before".len();
        let replies: Vec<String> = answered
            .iter()
            .map(|Answered { to, .. }| out[std::mem::replace(&mut from, *to)..*to].escape_ascii().to_string())
            .collect();
        let overflow = r"-ERR increment or decrement would overflow\r\n";
        let fourth = format!(r":3\r\n{overflow}$-1\r\n");
        assert_eq!(replies, [r":1\r\n:1\r\n", r":2\r\n", "", &*fourth, r":2\r\n"]);
        let bytes: Vec<usize> = answered.iter().map(|answered| answered.bytes).collect();
        assert_eq!(bytes, [inputs[0].len(), incr(&["a"]).len(), 0, inputs[3].len(), inputs[4].len()]);
        let commands: Vec<_> = answered.iter().map(|answered| answered.command).collect();
        assert_eq!(commands, [Some("incr"), Some("incr"), None, Some("get"), Some("incr")]);
    }

    #[test]
    fn where_many_need_the_long_way_all_that_are_left_do() {
        let ((_dir, engine), limits) = (engine(), Limits::default());
        let hot = Hot::new(engine.now());
        // Of a namespace that says how long its counters live, new ones are for the long way.
        let ttl = Namespace { ttl: Some(std::time::Duration::from_secs(60)), ..Namespace::default() };
        engine.put_namespace(b"short", ttl).unwrap();
        let inputs: Vec<Vec<u8>> =
            (0..9).map(|at| incr(&[&if at % 2 == 0 { format!("a{at}") } else { format!("short:{at}") }])).collect();
        let mut turn = engine.turn_at(engine.now());
        let (mut gathered, mut out, mut answered) = (Gathered::default(), Vec::new(), Vec::new());
        for (place, input) in inputs.iter().enumerate() {
            assert!(gathered.take(place, input, Version::Resp2, &limits, &turn));
        }
        let ran = gathered.run(&mut turn, &hot, &mut out, &mut answered);
        turn.finish();
        let were_run: Vec<bool> = answered.iter().map(|answered| answered.bytes > 0).collect();
        // The fourth is at 7; at 8 would be another that could have been run.
        assert_eq!(were_run, [true, false, true, false, true, false, true, false, false]);
        assert_eq!((ran.commands, out), (4, b":1\r\n".repeat(4)));
    }
}
