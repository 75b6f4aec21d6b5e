//! Benchmarks counters at rest: `cargo bench -p quipu-engine --bench rest -- 1000000 5000000
//! 10000000`.
//!
//! For each number of counters it measures:
//! - the speed of a seal, and the bytes at rest;
//! - the time of a start after a clean stop, and after a kill with a short journal;
//! - the cost of a look-up;
//! - the bytes written by twenty seals of all counters.
//!
//! Names have 20 bytes. One thread reads; files are in the page cache. Without `--bench` (as `cargo
//! test` calls it) it runs once, small.

#![allow(clippy::disallowed_methods, reason = "it measures how long things take on this machine")]

use std::path::Path;
use std::process::Command as Process;
use std::time::{Duration, Instant};

use quipu_engine::{Engine, LEDGER_DIR, Options, SealStep};
use quipu_ledger::{Ledger, LedgerOptions};
use quipu_model::{Cell, Command, Durability, Name, Reply, Scan};
use rustix::time::{ClockId, clock_gettime};

/// Seals of all counters, for write amplification.
const CHECKPOINTS: i64 = 20;

/// Look-ups of each kind.
const LOOKUPS: usize = 100_000;

/// Records behind the last seal when the process is killed.
const SHORT_JOURNAL: usize = 20_000;

type Figure = (&'static str, String);

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [task, data, counters] = words.as_slice()
        && task == "life"
    {
        live_and_die(data.as_ref(), counters.parse().expect("a number of counters"));
    }
    let mut sizes: Vec<usize> = words.iter().filter_map(|word| word.parse().ok()).collect();
    if sizes.is_empty() {
        sizes = if words.iter().any(|word| word == "--bench") { vec![1_000_000, 5_000_000] } else { vec![20_000] };
    }
    for counters in sizes {
        println!("{counters} counters");
        for (what, figure) in measure(counters) {
            println!("  {what:<46}{figure}");
        }
    }
}

fn measure(counters: usize) -> Vec<Figure> {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let data = directory.path();
    let mut figures = Vec::new();
    let engine = open(data);
    let took = timed(|| add_all(&engine, counters)).1;
    figures.push(("add, first time, in pipelines of 256", per(took, counters)));
    figures.push(("longest step of a walk over names (CPU)", micros(longest_scan(&engine))));
    let (longest, took) = timed(|| seal(&engine));
    figures.push(("seal: collect, ingest, sync, cut", per(took, counters)));
    figures.push(("  longest collecting of a shard (CPU)", micros(longest)));
    while engine.steps().compact().expect("there is space") {}
    let bytes = engine.stats().ledger.disk_bytes as f64 / counters as f64;
    figures.push(("at rest", format!("{bytes:.1} bytes a counter")));
    engine.close().expect("it closes");
    drop(engine);

    let (engine, took) = timed(|| open(data));
    assert_eq!(engine.stats().counters as usize, counters);
    figures.push(("start after a clean stop", millis(took)));
    let took = timed(|| look_up(&engine, counters)).1;
    figures.push(("cold read through the engine, one at a time", per(took, LOOKUPS)));
    engine.close().expect("it closes");
    drop(engine);

    let status = Process::new(std::env::current_exe().expect("this program"))
        .args(["life".as_ref(), data.as_os_str(), counters.to_string().as_ref()])
        .status();
    assert!(!status.expect("it starts").success(), "it ends without a stop");
    let (engine, took) = timed(|| open(data));
    assert_eq!(engine.stats().counters as usize, counters);
    figures.push((
        "start after a kill, with a short journal",
        format!("{}, {} records", millis(took), engine.recovery().records),
    ));
    engine.close().expect("it closes");
    drop(engine);
    figures.extend(measure_ledger(&data.join(LEDGER_DIR), counters));
    figures
}

/// What the ledger does by itself.
fn measure_ledger(dir: &Path, counters: usize) -> Vec<Figure> {
    let mut figures = Vec::new();
    let (ledger, took) = timed(|| Ledger::open(dir, LedgerOptions { cache_bytes: 64 << 20 }).expect("it opens"));
    figures.push(("  of which the ledger", millis(took)));
    let cells: Vec<(u64, Box<[u8]>, Cell)> = ledger.range(0).map(|cell| cell.expect("it is whole")).collect();
    assert_eq!(cells.len(), counters);
    let picked = |index: usize| &cells[index.wrapping_mul(0x9e37_79b1) % counters];
    let took = timed(|| {
        for (hash, name, _) in (0..LOOKUPS).map(picked) {
            assert!(ledger.get(*hash, name).expect("it is whole").is_some());
        }
    });
    figures.push(("look-up, at rest", per(took.1, LOOKUPS)));
    let took = timed(|| {
        for (hash, _, _) in (0..LOOKUPS).map(picked) {
            assert!(ledger.get(hash ^ 0x5555, b"a name that does not exist").expect("it is whole").is_none());
        }
    });
    figures.push(("look-up, not at rest", per(took.1, LOOKUPS)));
    let (mut ingested, mut written, mut took) = (0, 0, [Duration::ZERO; 2]);
    let watermark = ledger.watermark().expect("it is whole").expect("there is one");
    for round in 1..=CHECKPOINTS {
        let changed =
            cells.iter().map(|(hash, name, cell)| (*hash, name, Some(Cell { value: cell.value + round, ..*cell })));
        let (bytes, ingestion) = timed(|| ledger.ingest(changed, &watermark).expect("there is space").bytes);
        (ingested, written, took[0]) = (ingested + bytes, written + bytes, took[0] + ingestion);
        loop {
            let (compacted, piece) = timed(|| ledger.compact().expect("there is space"));
            (written, took[1]) = (written + compacted.bytes_written, took[1] + piece);
            if !compacted.more {
                break;
            }
        }
    }
    let sealed = counters * CHECKPOINTS as usize;
    figures.push(("ingest alone, 20 times all", per(took[0], sealed)));
    figures.push(("compaction of that", per(took[1], sealed)));
    figures.push(("write amplification of that", format!("{:.2}", written as f64 / ingested as f64)));
    figures
}

/// A life that ends without a word: some adds to counters at rest, then nothing.
fn live_and_die(data: &Path, counters: usize) -> ! {
    let engine = open(data);
    for index in 0..SHORT_JOURNAL.min(counters) {
        engine.add(name(index), 1).expect("there is space");
    }
    std::process::abort();
}

fn open(data: &Path) -> Engine {
    // No seal but those that are asked for.
    let seal_every = Duration::from_secs(3600);
    let durability = Durability::Relaxed;
    Engine::open(Options { durability, seal_every, journal_bytes_max: 1 << 40, ..Options::new(data) })
        .expect("it opens")
}

fn add_all(engine: &Engine, counters: usize) {
    for first in (0..counters).step_by(256) {
        let mut turn = engine.turn();
        for index in first..(first + 256).min(counters) {
            let name = name(index);
            let name = Name::new(name.as_bytes()).expect("it is short");
            turn.run(&Command::Add { name, delta: 1, shard_key: None }).expect("nothing is at rest yet");
        }
        let wait = turn.finish();
        // The sync thread may be at it.
        while !engine.steps().has_reached(wait) {
            engine.steps().write_filled();
        }
    }
}

/// Seals everything, a step at a time; the longest of those that collect a shard, of which only a
/// part is under its lock.
fn seal(engine: &Engine) -> Duration {
    let steps = engine.steps();
    let (mut seal, mut took) = (steps.begin_seal(), Vec::new());
    loop {
        let (sealing, time) = on_cpu(|| steps.step_seal(&mut seal).expect("there is space"));
        match sealing {
            SealStep::More => took.push(time),
            SealStep::WaitFor(wait) => {
                while !steps.has_reached(wait) {
                    steps.write_filled();
                    steps.sync();
                }
            }
            SealStep::Done => break,
        }
    }
    steps.finish_seal(seal).expect("there is space");
    // The others hand what was collected to the ledger, which takes far longer.
    took.sort_unstable();
    took.truncate(steps.shard_count());
    took.pop().unwrap_or_default()
}

/// The longest step of a walk over all names, as a client would take it.
fn longest_scan(engine: &Engine) -> Duration {
    let (mut cursor, mut longest) = (0, Duration::ZERO);
    loop {
        let mut turn = engine.turn();
        let scan = Command::Scan(Scan { cursor, pattern: None, count: 1_000 });
        let (reply, time) = on_cpu(|| turn.run(&scan).expect("nothing is at rest yet"));
        longest = longest.max(time);
        match reply {
            Reply::Page(0, _) => return longest,
            Reply::Page(next, _) => cursor = next,
            other => unreachable!("a walk replies with a page, not {other:?}"),
        }
    }
}

/// How long this thread was on a core for it.
fn on_cpu<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let now = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
    };
    let began = now();
    let done = work();
    (done, now() - began)
}

fn look_up(engine: &Engine, counters: usize) {
    for index in 0..LOOKUPS {
        let name = name(index.wrapping_mul(0x9e37_79b1) % counters);
        assert_eq!(engine.read(name).expect("it is whole").value, 1);
    }
}

fn name(index: usize) -> String {
    format!("views:{index:014}")
}

fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let began = Instant::now();
    let done = work();
    (done, began.elapsed())
}

fn per(took: Duration, count: usize) -> String {
    let micros = took.as_secs_f64() * 1e6 / count as f64;
    format!("{micros:.2} µs each, {:.0} a second", 1e6 / micros)
}

fn micros(took: Duration) -> String {
    format!("{:.0} µs", took.as_secs_f64() * 1e6)
}

fn millis(took: Duration) -> String {
    format!("{:.0} ms", took.as_secs_f64() * 1e3)
}
