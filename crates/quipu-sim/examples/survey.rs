//! Runs seeds and lists all their violations, without stopping at the first:
//! `cargo run -p quipu-sim --example survey -- FROM COUNT [WITHOUT …]`. The last arguments are
//! kinds of faults to leave out.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use quipu_sim::{ACTS, EventLog, Fault, Plan, RunTally, run};

/// Seeds between two progress reports.
const PROGRESS_EVERY: u64 = 5_000;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| words.get(at).and_then(|word| word.parse::<u64>().ok());
    let (from, count) = (number(0).unwrap_or(0), number(1).unwrap_or(100));
    let is_named = |fault: &Fault| words.contains(&format!("{fault:?}"));
    let without: Vec<Fault> = Fault::ALL.into_iter().filter(is_named).collect();
    let (next, kinds, total) = (AtomicU64::new(from), Mutex::new(BTreeMap::new()), Mutex::new(RunTally::default()));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= from + count {
                        break;
                    }
                    if seed > from && (seed - from).is_multiple_of(PROGRESS_EVERY) {
                        eprintln!("{} of {count} seeds begun", seed - from);
                    }
                    match run(Plan::limited(seed, ACTS, &without), &EventLog::disabled()) {
                        Ok(tally) => total.lock().expect("nobody panics holding it").add(&tally),
                        Err(what) => {
                            let kind: String =
                                what.chars().filter(|c| !c.is_ascii_digit() && *c != '-').take(60).collect();
                            eprintln!("seed {seed}: {what}");
                            let mut kinds = kinds.lock().expect("nobody panics holding it");
                            kinds.entry(kind).or_insert_with(Vec::new).push((seed, what));
                        }
                    }
                }
            });
        }
    });
    let kinds = kinds.into_inner().expect("nobody panics holding it");
    for violations in kinds.values() {
        let seeds: Vec<u64> = violations.iter().map(|(seed, _)| *seed).collect();
        println!(
            "{} times: {}\n    seeds {:?}",
            violations.len(),
            violations[0].1.chars().take(400).collect::<String>(),
            &seeds[..seeds.len().min(20)]
        );
    }
    let total = total.into_inner().expect("nobody panics holding it");
    println!("passed: {}; {total}", total.runs);
}
