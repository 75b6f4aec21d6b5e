//! Runs simulation seeds. `QUIPU_SIM_SEEDS` is their number, `QUIPU_SIM_FROM` the first; seeds that
//! once failed are in `seeds.txt` and run first. `QUIPU_SEEDS_ONLY=1` runs the first seed alone, to
//! retry it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]
#![allow(
    clippy::disallowed_methods,
    reason = "seeds per second are by the machine's clock; the runs themselves have their own"
)]

use std::time::Instant;

use quipu_sim::{EventLog, FAULTS_MIN, Fault, Plan, RunTally, run, run_seeds};

/// In a plain test run.
const SEEDS_DEFAULT: u64 = 1_000;

/// From so many seeds on everything that can happen must have happened.
const SEEDS_WITH_FULL_COVERAGE: u64 = 1_000;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap())
}

fn regression_seeds() -> impl Iterator<Item = u64> {
    let lines = include_str!("../seeds.txt").lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.split_whitespace().next()).map(|seed| seed.parse().unwrap())
}

#[test]
fn whatever_happens_each_add_is_counted_once() {
    let (seeds, from) = (number("QUIPU_SIM_SEEDS").unwrap_or(SEEDS_DEFAULT), number("QUIPU_SIM_FROM").unwrap_or(0));
    if number("QUIPU_SEEDS_ONLY").is_some() {
        run_seeds(std::iter::once(from)).unwrap_or_else(|violation| panic!("\n{violation}"));
        println!("proof: simulation: seed {from} alone");
        return;
    }
    let began = Instant::now();
    let tally =
        run_seeds(regression_seeds().chain(from..from + seeds)).unwrap_or_else(|violation| panic!("\n{violation}"));
    let took = began.elapsed().as_secs_f64();
    println!("proof: simulation: {} seeds from {from}, {:.0} a second; {tally}", tally.runs, tally.runs as f64 / took);
    assert!(tally.acts >= 500 * tally.runs && tally.faults_all() >= FAULTS_MIN as u64 * tally.runs);
    if seeds >= SEEDS_WITH_FULL_COVERAGE {
        check_coverage(&tally);
    }
}

fn check_coverage(tally: &RunTally) {
    for (fault, count) in Fault::ALL.iter().zip(tally.faults) {
        assert!(count > 0, "{fault:?} was never met");
    }
    let (count, fates) = (&tally.store_events, &tally.fates);
    let numbers = [
        ("carries", count.carries),
        ("closes", count.closes),
        ("folds", count.folds),
        ("lapses", count.lapses),
        ("late settlements", count.late),
        ("retirements", count.retired),
        ("fenced nodes", tally.fenced),
        ("calls that were not applied", fates.not_applied),
        ("calls that were lost", fates.lost),
        ("calls that were applied silently", fates.silent),
        ("calls that were applied late", fates.late),
        ("answers that came late", fates.answered_late),
    ];
    for (what, count) in numbers {
        assert!(count > 0, "no {what} were met");
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in 0..3 {
        let logs = [EventLog::bounded(), EventLog::bounded()];
        let ends = logs.each_ref().map(|log| run(Plan::new(seed), log).map(|tally| tally.steps));
        assert_eq!(ends[0], ends[1]);
        assert!(!logs[0].lines().is_empty());
        assert_eq!(logs[0].lines(), logs[1].lines());
    }
}
