//! Benchmarks starts after a kill: `cargo bench -p quipu-engine --bench start -- 1000000 5000000`.
//!
//! For each number of counters: a journal of 512 MB with counters in arbitrary order, and the time
//! of starts that read it. They restore in turn with one thread and with the default number of
//! threads. Names have 20 bytes, values are small; files are in the page cache. Without `--bench`
//! (as `cargo test` calls it) it runs once, small.

#![allow(clippy::disallowed_methods, reason = "it measures how long things take on this machine")]

use std::path::Path;
use std::process::Command as Process;
use std::time::{Duration, Instant};

use quipu_engine::{Engine, Environment, Options};
use quipu_model::{Durability, Name, SimpleCommand};
use rustix::time::{ClockId, clock_gettime};

/// Of each kind.
const STARTS: usize = 5;

/// Commands of a turn.
const TURN: u64 = 64;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [task, data, counters, bytes] = words.as_slice()
        && task == "life"
    {
        let number = |word: &String| word.parse().expect("a number");
        live_and_die(data.as_ref(), number(counters), number(bytes));
    }
    let mut sizes: Vec<u64> = words.iter().filter_map(|word| word.parse().ok()).collect();
    let is_whole = words.iter().any(|word| word == "--bench");
    let bytes: u64 = if is_whole { 512 << 20 } else { 8 << 20 };
    if sizes.is_empty() {
        sizes = if is_whole { vec![1_000_000, 5_000_000] } else { vec![20_000] };
    }
    for counters in sizes {
        measure(counters, bytes);
    }
}

fn measure(counters: u64, bytes: u64) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let data = directory.path();
    let status = Process::new(std::env::current_exe().expect("this program"))
        .args(["life".as_ref(), data.as_os_str(), counters.to_string().as_ref(), bytes.to_string().as_ref()])
        .status();
    assert!(!status.expect("it starts").success(), "it ends without a stop");
    let mut took = [const { Vec::new() }; 2];
    for _ in 0..STARTS {
        for (threads, took) in [Some(0), None].into_iter().zip(&mut took) {
            let (began, cpu_began) = (Instant::now(), cpu_time());
            // Without a driver it is not closed when it is dropped: what is left is what a kill
            // leaves.
            let engine = Engine::open_with(options(data, threads), Environment::system()).expect("it opens");
            took.push((began.elapsed(), cpu_time() - cpu_began));
            assert!(engine.recovery().records > 0 && engine.stats().counters <= counters);
        }
    }
    let gigabytes = bytes as f64 / f64::from(1 << 30);
    println!("{counters} counters, a journal of {} MB", bytes >> 20);
    for (who, mut took) in ["one thread", "as many as are worth it"].into_iter().zip(took) {
        took.sort_unstable();
        let (wall, cpu) = took[took.len() / 2];
        let [wall, cpu] = [wall, cpu].map(|time| time.as_secs_f64() / gigabytes);
        println!("  {who:<26}{wall:>6.2} s a gigabyte, {cpu:.2} s of CPU");
    }
}

/// Counts until the journal has so many bytes, then dies.
fn live_and_die(data: &Path, counters: u64, bytes: u64) -> ! {
    let engine = Engine::open(options(data, None)).expect("it opens");
    let names: Vec<String> = (0..counters).map(|number| format!("r:{number:018}")).collect();
    let mut rng = 1u64;
    while engine.stats().journal_bytes < bytes {
        let commands: Vec<SimpleCommand<'_>> = (0..TURN)
            .map(|_| {
                rng = rng.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let name = &names[((rng >> 33) % counters) as usize];
                SimpleCommand { name: Name::new(name.as_bytes()).expect("it is short"), delta: Some(1) }
            })
            .collect();
        let mut turn = engine.turn();
        let mut at = 0;
        while at < commands.len() {
            at += turn.run_simple(&commands[at..], |_| ());
        }
        let wait = turn.finish();
        while !engine.steps().has_reached(wait) {
            engine.steps().write_filled();
        }
    }
    std::process::abort();
}

/// Nothing is sealed: the journal is all there is.
fn options(data: &Path, restore_threads: Option<usize>) -> Options {
    let (durability, seal_every) = (Durability::Relaxed, Duration::from_secs(3600));
    Options { durability, seal_every, journal_bytes_max: 1 << 40, restore_threads, ..Options::new(data) }
}

/// What this process has had of the cores.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
