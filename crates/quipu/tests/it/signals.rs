//! A stop by a signal: nothing is lost in any mode, and the exit status confirms it.

use std::process::ExitStatus;
use std::time::Duration;

use quipu_model::Durability;
use quipu_testkit::SeededRng;
use quipu_testkit::judge::Violation;
use quipu_testkit::load::{LoadAccount, Loss};
use quipu_testkit::program::Program;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::life::{connect, judge, launch, load, seed};

/// Stops of each mode, each under load.
const STOPS: usize = 4;

#[test]
fn sigterm_under_load_exits_0_and_loses_nothing_when_durable() {
    run(Durability::Durable, Program::terminate);
}

#[test]
fn sigterm_under_load_exits_0_and_loses_nothing_when_relaxed() {
    run(Durability::Relaxed, Program::terminate);
}

#[test]
fn sigterm_under_load_exits_0_and_loses_nothing_even_in_memory_mode() {
    run(Durability::Memory, Program::terminate);
}

#[test]
fn sighup_under_load_exits_0_and_loses_nothing_even_in_memory_mode() {
    run(Durability::Memory, Program::hang_up);
}

#[test]
fn sighup_does_not_stop_a_program_under_nohup() {
    let data = TempDir::new().expect("a temporary directory can be made");
    let mut launch = launch(data.path(), Durability::Memory);
    launch.wrapper = vec!["nohup".into()];
    let program = launch.start().expect("the program starts");
    let pid = Pid::from_raw(program.pid().try_into().expect("a process id")).expect("a process id");
    kill_process(pid, Signal::HUP).expect("the program can be signalled");
    // A reply, and a stop by the later signal, show that it has ignored this one.
    assert_eq!(connect(&program).call(&["INCR", "a"]).expect("it serves").number(), Some(1));
    let (status, stderr) = program.terminate().expect("the program can be signalled");
    assert!(status.success(), "{status}\n{stderr}");
    assert!(stderr.contains("SIGTERM") && !stderr.contains("SIGHUP"), "{stderr}");
}

fn run(mode: Durability, stop_by: fn(Program) -> std::io::Result<(ExitStatus, String)>) {
    let seed = seed();
    let (rng, data) = (SeededRng::new(seed), TempDir::new().expect("a temporary directory can be made"));
    let launch = launch(data.path(), mode);
    let mut account = LoadAccount::new();
    for stop in 0..=STOPS {
        let program = launch.start().expect("the program starts after a clean stop");
        let violations: Vec<String> =
            judge(&program, &mut account, Loss::Nothing).iter().map(Violation::to_string).collect();
        assert!(violations.is_empty(), "{mode}, stop {stop}, seed {seed}:\n{}", violations.join("\n"));
        let length = Duration::from_millis(rng.between(20..=100).unsigned_abs());
        let (outcome, logs) = load(program, length, &rng, stop_by);
        let (status, stderr) = outcome.expect("the program can be signalled");
        assert!(status.success(), "{mode}, stop {stop}, seed {seed}: {status}\n{stderr}");
        logs.into_iter().for_each(|log| account.add_log(log));
    }
    assert!(account.tally().acked > 0, "{mode}: the load reached the program: {:?}", account.tally());
}
