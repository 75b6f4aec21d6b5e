//! The built program ended at each named step: between receiving and appending, after appending, after the sync, in the middle of a
//! seal, a cut, a recovery. What was acknowledged is there, once; what was not is there once or not at all.
//!
//! A step ends the process by a panic in the thread that comes by, so this is also the proof that a worker's panic never leaves half a
//! state behind.

use std::path::Path;
use std::time::Duration;

use quipu_model::Durability;
use quipu_testkit::program::{Launch, LaunchError, Program};
use quipu_testkit::resp::Client;

/// Steps of a turn and its commit, in their order.
const TURN_STEPS: [&str; 6] = ["applied", "reserved", "filled", "chained", "written", "synced"];

/// Steps of sealing, cutting and preparing segments.
const TEND_STEPS: [&str; 4] = ["prepared", "marked", "sealed", "cut"];

/// Steps of a start.
const START_STEPS: [&str; 5] = ["control", "replayed", "incarnation", "prepared", "begun"];

const TIMEOUT: Duration = Duration::from_secs(20);

fn launch(data: &Path, durability: Durability, failpoint: Option<String>) -> Launch {
    let mut launch = Launch::new(env!("CARGO_BIN_EXE_quipu"), data, durability);
    launch.arguments = ["--journal-bytes-max", "150000"].map(Into::into).to_vec();
    launch.variables = failpoint.map(|text| ("FAILPOINTS".into(), text.into())).into_iter().collect();
    launch
}

/// Adds to one counter from two connections, so both workers, until the program is gone. Returns acked and unknown.
fn count_until_it_ends(program: &Program) -> (i64, i64) {
    let address = program.address();
    let counting = || {
        let Ok(mut client) = Client::connect(address, TIMEOUT) else { return (0, 0) };
        let mut acked = 0;
        loop {
            match client.call(&["INCR", "hits"]) {
                Ok(reply) if reply.number().is_some() => acked += 1,
                // A refusal is not counted and says so.
                Ok(reply) => assert!(reply.error().is_some(), "{reply:?}"),
                Err(_) => return (acked, 1),
            }
            assert!(acked < 200_000, "the step was never reached");
        }
    };
    let (first, second) = std::thread::scope(|scope| {
        let threads = [scope.spawn(counting), scope.spawn(counting)];
        let [first, second] = threads.map(|thread| thread.join().expect("a client does not panic"));
        (first, second)
    });
    (first.0 + second.0, first.1 + second.1)
}

fn value(program: &Program) -> i64 {
    let mut client = Client::connect(program.address(), TIMEOUT).expect("it serves");
    client.call(&["GET", "hits"]).expect("it answers").number().unwrap_or(0)
}

/// Lives on one directory, each ended at the step; returns how often.
fn lives(step: &str, durability: Durability, after: &[usize]) -> usize {
    let data = tempfile::tempdir().expect("a temporary directory");
    let (mut low, mut high) = (0, 0);
    for passes in after {
        let failpoint = format!("{step}={passes}*off->panic");
        match launch(data.path(), durability, Some(failpoint)).start() {
            Ok(program) => {
                let found = value(&program);
                assert!((low..=high).contains(&found), "{step}, {durability}: {found} is not in {low}..={high}");
                let (acked, unknown) = count_until_it_ends(&program);
                (low, high) = (found + acked, found + acked + unknown);
                let (status, stderr) = program.wait().expect("it has ended");
                assert!(!status.success() && stderr.contains("failpoint"), "{step}: {status}\n{stderr}");
            }
            // The step was already on the way to serving.
            Err(LaunchError::Ended { stderr, .. }) => assert!(stderr.contains("failpoint"), "{step}: {stderr}"),
            Err(error) => panic!("{step}: {error}"),
        }
    }
    let program = launch(data.path(), durability, None).start().expect("it starts again");
    let found = value(&program);
    assert!((low..=high).contains(&found), "{step}, {durability}: {found} is not in {low}..={high}");
    after.len()
}

#[test]
fn a_turn_that_ends_at_any_step_loses_nothing_acknowledged_and_doubles_nothing() {
    let mut ended = 0;
    for durability in [Durability::Durable, Durability::Relaxed] {
        for step in TURN_STEPS {
            ended += lives(step, durability, &[40, 3, 200, 11, 77]);
        }
    }
    println!("proof: failpoints: ended {ended} times at the steps of a turn: {}", TURN_STEPS.join(", "));
}

#[test]
fn a_seal_a_cut_or_a_preparation_that_ends_at_any_step_changes_no_sum() {
    let mut ended = 0;
    for step in TEND_STEPS {
        // Sealing is rare: a life goes through a few thousand adds before it.
        ended += lives(step, Durability::Relaxed, if step == "prepared" { &[20, 18, 25] } else { &[0, 0, 1, 0] });
    }
    println!("proof: failpoints: ended {ended} times at the steps of seal, cut and prepare: {}", TEND_STEPS.join(", "));
}

#[test]
fn a_recovery_that_ends_again_and_again_converges() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let mut ended = 0;
    for round in 0..3 {
        for step in START_STEPS {
            let failed = launch(data.path(), Durability::Durable, Some(format!("{step}=panic"))).start();
            match failed {
                Err(LaunchError::Ended { stderr, .. }) => assert!(stderr.contains("failpoint"), "{step}: {stderr}"),
                // Segments are prepared at a start only when they have run out.
                Ok(program) if step == "prepared" => drop(program),
                other => panic!("{step}: {other:?}"),
            }
            ended += 1;
        }
        let program = launch(data.path(), Durability::Durable, None).start().expect("it starts all the same");
        assert_eq!(value(&program), round * 5);
        let mut client = Client::connect(program.address(), TIMEOUT).expect("it serves");
        for _ in 0..5 {
            client.call(&["INCR", "hits"]).expect("it counts");
        }
        program.kill9();
    }
    println!("proof: failpoints: ended {ended} times at the steps of a start: {}", START_STEPS.join(", "));
}
