//! A stop that is asked for: nothing is lost in any mode, and the program says so by its exit status.

use std::time::Duration;

use quipu_model::Durability;
use quipu_testkit::Dice;
use quipu_testkit::judge::Violation;
use quipu_testkit::load::{Account, Loss};
use quipu_testkit::program::Program;
use tempfile::TempDir;

use crate::life::{judge, launch, load, seed};

/// Stops of each mode, each under load.
const STOPS: usize = 4;

#[test]
fn sigterm_under_load_exits_0_and_loses_nothing_when_durable() {
    run(Durability::Durable);
}

#[test]
fn sigterm_under_load_exits_0_and_loses_nothing_when_relaxed() {
    run(Durability::Relaxed);
}

#[test]
fn sigterm_under_load_exits_0_and_loses_nothing_even_in_memory_mode() {
    run(Durability::Memory);
}

fn run(mode: Durability) {
    let seed = seed();
    let (dice, data) = (Dice::new(seed), TempDir::new().expect("a temporary directory can be made"));
    let launch = launch(data.path(), mode);
    let mut account = Account::new();
    for stop in 0..=STOPS {
        let program = launch.start().expect("the program starts after a clean stop");
        let violations: Vec<String> =
            judge(&program, &mut account, Loss::Nothing).iter().map(Violation::to_string).collect();
        assert!(violations.is_empty(), "{mode}, stop {stop}, seed {seed}:\n{}", violations.join("\n"));
        let length = Duration::from_millis(dice.between(20..=100).unsigned_abs());
        let (outcome, logs) = load(program, length, &dice, Program::terminate);
        let (status, stderr) = outcome.expect("the program can be signalled");
        assert!(status.success(), "{mode}, stop {stop}, seed {seed}: {status}\n{stderr}");
        logs.into_iter().for_each(|log| account.take(log));
    }
    assert!(account.tally().acked > 0, "{mode}: the load reached the program: {:?}", account.tally());
}
