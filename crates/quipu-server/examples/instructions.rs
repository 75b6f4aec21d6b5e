//! Runs one setting of `cargo xtask bench instructions`, which runs this under callgrind.
//!
//! `instructions` lists the settings, one per line: its name and the number of commands of a pass.
//! `instructions SETTING PASSES` runs that number of passes. The difference between one pass and
//! two is a pass in a warm server: all counters exist.
//!
//! Input, keys, seeds and time are fixed, so every run executes the same instructions.

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use quipu_engine::{Engine, Environment, LEDGER_DIR, Options, SystemDisk, SystemLedger};
use quipu_model::{Clock, Durability, Millis, Rng};
use quipu_server::SocketlessWorker;
use quipu_sketch::SplitMix64;

/// Commands of a pass. A whole number of rounds in every setting, and a multiple of the largest
/// number of keys.
const PASS_COMMANDS: usize = 40_000;

/// Passes for which there is input. The input is the same for any number of passes, so that the
/// rest of the process is the same, too.
const PASSES_MAX: usize = 2;

/// Bits of an item's number, for frequencies and top lists.
const ITEM_BITS: u64 = 13;

/// Commands to send.
#[derive(Clone, Copy)]
enum Workload {
    /// `INCR` of `keys` keys in a shuffled order.
    Incr { keys: usize },
    /// `PFADD` of a new item each time.
    Pfadd,
    /// `CMS.INCRBY` by 1 of an item; few items are frequent.
    CmsIncrby,
    /// `TOPK.ADD` of an item; few items are frequent.
    TopkAdd,
}

/// A measured setting.
struct Setting {
    name: &'static str,
    workload: Workload,
    /// Commands that a connection sends at once.
    pipeline: usize,
    /// Connections served in one round.
    connections: usize,
}

const SETTINGS: [Setting; 11] = [
    Setting { name: "incr-1-key-p1", workload: Workload::Incr { keys: 1 }, pipeline: 1, connections: 1 },
    Setting {
        name: "incr-1-key-p1-50-connections",
        workload: Workload::Incr { keys: 1 },
        pipeline: 1,
        connections: 50,
    },
    Setting { name: "incr-1-key-p16", workload: Workload::Incr { keys: 1 }, pipeline: 16, connections: 1 },
    Setting { name: "incr-1-key-p64", workload: Workload::Incr { keys: 1 }, pipeline: 64, connections: 1 },
    Setting { name: "incr-10000-keys-p1", workload: Workload::Incr { keys: 10_000 }, pipeline: 1, connections: 1 },
    Setting {
        name: "incr-10000-keys-p1-50-connections",
        workload: Workload::Incr { keys: 10_000 },
        pipeline: 1,
        connections: 50,
    },
    Setting { name: "incr-10000-keys-p16", workload: Workload::Incr { keys: 10_000 }, pipeline: 16, connections: 1 },
    Setting { name: "incr-10000-keys-p64", workload: Workload::Incr { keys: 10_000 }, pipeline: 64, connections: 1 },
    Setting { name: "pfadd-p1", workload: Workload::Pfadd, pipeline: 1, connections: 1 },
    Setting { name: "cms.incrby-p1", workload: Workload::CmsIncrby, pipeline: 1, connections: 1 },
    Setting { name: "topk.add-p1", workload: Workload::TopkAdd, pipeline: 1, connections: 1 },
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        [] => SETTINGS.iter().for_each(|setting| println!("{} {PASS_COMMANDS}", setting.name)),
        [name, passes] => {
            let setting = SETTINGS.iter().find(|setting| setting.name == *name);
            let passes = passes.parse().ok().filter(|passes| (1..=PASSES_MAX).contains(passes));
            let (Some(setting), Some(passes)) = (setting, passes) else {
                eprintln!("there is no setting '{name}', or the passes are not 1 to {PASSES_MAX}");
                return ExitCode::FAILURE;
            };
            setting.run(passes);
        }
        _ => {
            eprintln!("instructions [SETTING PASSES]");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

impl Setting {
    fn run(&self, passes: usize) {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let engine = engine(directory.path());
        let mut worker = SocketlessWorker::new(engine.clone(), self.connections).expect("loopback has a port");
        let mut replies = Vec::new();
        for command in self.workload.prepare() {
            worker.run_round(&[command], &mut replies);
        }
        assert_eq!(replies, b"+OK\r\n".repeat(self.workload.prepare().len()), "{}", replies.escape_ascii());

        let (input, ends) = self.input();
        let mut inputs = Vec::with_capacity(self.connections);
        for round in ends.chunks(self.connections).take(passes * PASS_COMMANDS / self.round_commands()) {
            inputs.clear();
            inputs.extend(round.iter().map(|&(from, to)| &input[from..to]));
            replies.clear();
            worker.run_round(&inputs, &mut replies);
            assert!(!replies.starts_with(b"-"), "{}", replies.escape_ascii());
        }
        self.check(&engine, passes);
    }

    /// Commands of a round.
    fn round_commands(&self) -> usize {
        self.pipeline * self.connections
    }

    /// All input, and the range of each pipeline in it.
    fn input(&self) -> (Vec<u8>, Vec<(usize, usize)>) {
        let mut random = SplitMix64(1);
        let (mut input, mut ends) = (Vec::new(), Vec::new());
        let keys = self.workload.shuffled_keys(&mut random);
        for at in 0..PASSES_MAX * PASS_COMMANDS / self.pipeline {
            let from = input.len();
            for command in at * self.pipeline..(at + 1) * self.pipeline {
                self.workload.write(command, &keys, &mut random, &mut input);
            }
            ends.push((from, input.len()));
        }
        (input, ends)
    }

    /// Checks that every command counted; otherwise the figure would measure other work.
    fn check(&self, engine: &Engine, passes: usize) {
        if let Workload::Incr { keys } = self.workload {
            let commands = passes * PASS_COMMANDS;
            for key in [0, keys / 2, keys - 1] {
                let value = engine.read(key_name(key)).expect("it is a count").value;
                assert_eq!(value, (commands / keys) as i64, "{}", key_name(key));
            }
        }
    }
}

impl Workload {
    /// Commands that run first.
    fn prepare(self) -> &'static [&'static [u8]] {
        match self {
            Workload::Incr { .. } | Workload::Pfadd => &[],
            Workload::CmsIncrby => &[b"*4\r\n$13\r\nCMS.INITBYDIM\r\n$5\r\nwords\r\n$4\r\n2000\r\n$1\r\n7\r\n"],
            Workload::TopkAdd => {
                &[b"*6\r\n$12\r\nTOPK.RESERVE\r\n$3\r\ntop\r\n$3\r\n100\r\n$4\r\n2000\r\n$1\r\n7\r\n$3\r\n0.9\r\n"]
            }
        }
    }

    fn shuffled_keys(self, random: &mut SplitMix64) -> Vec<usize> {
        let Workload::Incr { keys } = self else { return Vec::new() };
        let mut order: Vec<usize> = (0..keys).collect();
        for at in (1..keys).rev() {
            order.swap(at, (random.draw() % (at as u64 + 1)) as usize);
        }
        order
    }

    /// Appends a command.
    fn write(self, command: usize, keys: &[usize], random: &mut SplitMix64, out: &mut Vec<u8>) {
        match self {
            Workload::Incr { .. } => write_command(out, &["INCR", &key_name(keys[command % keys.len()])]),
            Workload::Pfadd => write_command(out, &["PFADD", "visitors", &item_name(command as u64)]),
            Workload::CmsIncrby => write_command(out, &["CMS.INCRBY", "words", &item_name(draw_skewed(random)), "1"]),
            Workload::TopkAdd => write_command(out, &["TOPK.ADD", "top", &item_name(draw_skewed(random))]),
        }
    }
}

/// A key of 20 bytes, in the form of `quipu bench`.
fn key_name(key: usize) -> String {
    format!("counter:{key:012}")
}

fn item_name(item: u64) -> String {
    format!("item:{item:08}")
}

fn write_command(out: &mut Vec<u8>, words: &[&str]) {
    let _ = write!(out, "*{}\r\n", words.len());
    for word in words {
        let _ = write!(out, "${}\r\n{word}\r\n", word.len());
    }
}

/// An engine without threads, in memory mode, with a stopped clock.
fn engine(directory: &std::path::Path) -> Engine {
    let options = Options {
        durability: Durability::Memory,
        segment_bytes: 1 << 20,
        restore_threads: Some(1),
        lanes: 1,
        ..Options::new(directory)
    };
    // Without the system's clock: rustix reads it through the vDSO, which is not mapped under
    // valgrind 3.19.
    let environment = Environment {
        clock: Arc::new(StoppedClock),
        rng: Arc::new(SeededRng(AtomicU64::new(1))),
        vfs: Arc::new(SystemDisk),
        open_ledger: Arc::new(|options| Ok(Arc::new(SystemLedger::open(&options.data.join(LEDGER_DIR), 1 << 20)?))),
        store: None,
        on_failure: Arc::new(|reason| panic!("the journal failed: {reason}")),
    };
    Engine::open_with(options, environment).expect("the directory is new")
}

struct StoppedClock;

impl Clock for StoppedClock {
    fn wall(&self) -> Millis {
        Millis(1_780_000_000_000)
    }

    fn elapsed(&self) -> Duration {
        Duration::from_secs(1)
    }
}

struct SeededRng(AtomicU64);

impl Rng for SeededRng {
    fn next(&self) -> u64 {
        SplitMix64(self.0.fetch_add(1, Ordering::Relaxed)).draw()
    }
}

/// Draws below 2^[`ITEM_BITS`]: each range between two powers of two has the same probability.
fn draw_skewed(random: &mut SplitMix64) -> u64 {
    let bits = random.draw() % (ITEM_BITS + 1);
    random.draw() & ((1 << bits) - 1)
}
