//! Builds the commands of a bench as bytes, before the clock starts.
//!
//! In: a verb and a number of keys. Out: one run of bytes; any pipeline is a slice of it.
//!
//! Invariants:
//! - every command has the same length, so that the n-th begins at n times that;
//! - a walk over all commands names each key once, in an order that follows neither names nor
//!   hashes.
//!
//! Not here: the course of each connection (`crowd`).

use clap::ValueEnum;

/// Length of a name: that of common counters (`likes:` and an id), and that of the published
/// figures of other servers.
const NAME_BYTES: usize = 20;

/// Prefix of every name, so that a user who finds these counters in a server knows their origin.
const NAMESPACE: &str = "bench:";

/// The one sketch that receives all items.
const SKETCH: &str = "bench-visitors:today";

/// Seed of the order of the keys. Fixed: every run and every server gets the same order.
const SEED: u64 = 0x9e37_79b9_7f4a_7c15;

/// The command to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Verb {
    #[allow(missing_docs, reason = "a comment here is a line of the help, and the name says it")]
    Incr,
    #[allow(missing_docs, reason = "a comment here is a line of the help, and the name says it")]
    Get,
    /// Each key is an item of one HyperLogLog
    Pfadd,
    /// Each key is an item of one Count-Min sketch
    #[value(name = "cms.incrby")]
    CmsIncrby,
    /// Each key is an item of one top-K list
    #[value(name = "topk.add")]
    TopkAdd,
}

impl Verb {
    /// Its name in the protocol.
    pub fn name(self) -> &'static str {
        match self {
            Verb::Incr => "INCR",
            Verb::Get => "GET",
            Verb::Pfadd => "PFADD",
            Verb::CmsIncrby => "CMS.INCRBY",
            Verb::TopkAdd => "TOPK.ADD",
        }
    }

    /// The command that creates the sketch, if the first item does not create it. The sizes are
    /// common ones.
    pub fn begin(self) -> Option<&'static [&'static str]> {
        match self {
            Verb::Incr | Verb::Get | Verb::Pfadd => None,
            Verb::CmsIncrby => Some(&["CMS.INITBYDIM", SKETCH, "2000", "5"]),
            Verb::TopkAdd => Some(&["TOPK.RESERVE", SKETCH, "100", "800", "7", "0.9"]),
        }
    }

    /// Bytes of each command.
    pub fn command_bytes(self) -> usize {
        self.frame(&name(0)).len()
    }

    /// The reply of a server that has counted for a while.
    pub fn usual_reply(self) -> &'static str {
        match self {
            Verb::Incr => ":1234567\r\n",
            Verb::Get => "$7\r\n1234567\r\n",
            Verb::Pfadd => ":0\r\n",
            Verb::CmsIncrby => "*1\r\n:1234\r\n",
            Verb::TopkAdd => "*1\r\n$-1\r\n",
        }
    }

    fn frame(self, name: &str) -> String {
        let words: &[&str] = match self {
            Verb::Incr | Verb::Get => &[self.name(), name],
            Verb::Pfadd | Verb::TopkAdd => &[self.name(), SKETCH, name],
            Verb::CmsIncrby => &[self.name(), SKETCH, name, "1"],
        };
        let words = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len()));
        format!("*{}\r\n{}", words.len(), words.collect::<String>())
    }
}

/// The name of a key.
pub fn name(key: usize) -> String {
    format!("{NAMESPACE}{key:0width$}", width = NAME_BYTES - NAMESPACE.len())
}

/// All commands, one per key, and the first few again: a pipeline that begins near the end is still
/// one slice.
pub struct Commands {
    bytes: Vec<u8>,
    command_bytes: usize,
    keys: usize,
    /// The verb of all commands.
    pub verb: Verb,
}

impl Commands {
    /// Commands for `keys` keys, from which pipelines of at most `pipeline_max` commands can be
    /// taken.
    pub fn new(verb: Verb, keys: usize, pipeline_max: usize) -> Commands {
        let command_bytes = verb.command_bytes();
        let mut bytes = Vec::with_capacity((keys + pipeline_max) * command_bytes);
        for key in permutation(keys) {
            bytes.extend_from_slice(verb.frame(&name(key as usize)).as_bytes());
        }
        for again in 0..pipeline_max {
            let at = again * command_bytes;
            bytes.extend_from_within(at..at + command_bytes);
        }
        Commands { bytes, command_bytes, keys, verb }
    }

    /// Number of keys.
    pub fn keys(&self) -> usize {
        self.keys
    }

    /// The bytes of `commands` commands, beginning at command `from`.
    pub fn pipeline(&self, from: usize, commands: usize) -> &[u8] {
        let at = from % self.keys * self.command_bytes;
        &self.bytes[at..at + commands * self.command_bytes]
    }
}

/// All numbers below `count`, each once, shuffled.
fn permutation(count: usize) -> Vec<u32> {
    let mut numbers: Vec<u32> = (0..u32::try_from(count).expect("keys are bounded by KEYS_MAX")).collect();
    let mut rng = SEED;
    for end in (1..numbers.len()).rev() {
        // xorshift64: good enough to scatter names, and no reason for a dependency.
        rng ^= rng << 13;
        rng ^= rng >> 7;
        rng ^= rng << 17;
        numbers.swap(end, (rng % (end as u64 + 1)) as usize);
    }
    numbers
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn one_walk_asks_for_every_key_once_and_a_pipeline_may_wrap_around() {
        let commands = Commands::new(Verb::Incr, 1000, 64);
        let length = commands.command_bytes;
        let one = |at: usize| commands.pipeline(at, 1).to_vec();
        let all: BTreeSet<Vec<u8>> = (0..1000).map(one).collect();
        let expected = (0..1000).map(|key| Verb::Incr.frame(&name(key)).into_bytes()).collect();
        assert_eq!(all, expected);
        let wrapped = commands.pipeline(990, 64);
        assert_eq!(wrapped.len(), 64 * length);
        assert_eq!(&wrapped[10 * length..11 * length], one(0));
        assert_eq!(one(1000 + 7), one(7));
    }

    #[test]
    fn keys_are_not_asked_for_in_the_order_of_their_names() {
        let shuffled = permutation(1000);
        let in_order = shuffled.windows(2).filter(|two| two[0] < two[1]).count();
        assert!((400..600).contains(&in_order), "{in_order} of 999 neighbours are in order");
        assert_eq!(shuffled, permutation(1000), "the same for every server");
    }

    #[test]
    fn one_key_makes_a_pipeline_of_any_length() {
        let commands = Commands::new(Verb::Get, 1, 3);
        let one = "*2\r\n$3\r\nGET\r\n$20\r\nbench:00000000000000\r\n";
        assert_eq!(commands.pipeline(5, 3), one.repeat(3).as_bytes());
    }
}
