//! Tests loss of power at any moment, in any form: enumerates the disk's states, opens and judges
//! each. `QUIPU_CRASH_SEEDS` is the number of seeds.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use quipu_model::Durability;
use quipu_sim::one_node::{
    CrashCase, CrashTally, IncarnationPlan, ModelState, RecoveredDisk, TokenModel, TraceTally, judge_crash,
    node_options, open_alone, run_incarnation,
};
use quipu_testkit::{CrashDisk, SeededRng, SimMachine};

/// Seeds that once failed stay here, in front of the others.
const KEPT_SEEDS: [u64; 0] = [];

/// Amount of work of all seeds.
#[derive(Default)]
struct Tally {
    crashes: CrashTally,
    power: usize,
    killed: usize,
    lives: usize,
    work: TraceTally,
}

#[test]
fn every_crash_leaves_a_state_that_existed_and_keeps_what_was_shown() {
    let seeds: u64 = std::env::var("QUIPU_CRASH_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(120);
    let mut tally = Tally::default();
    for seed in KEPT_SEEDS.into_iter().chain(0..seeds) {
        run_seed(seed, &mut tally);
    }
    let Tally { crashes, power, killed, lives, work } = &tally;
    println!(
        "proof: crash states: {} distinct from {seeds} seeds, {lives} lives ({power} after loss of power, {killed} after a kill, {} within recovery; \
         {} torn tails cut, {} replies left, {} adds and reads run many at a time, {} seals, {} evicted, {} loads, {} adds in lanes, {} beside them)\n\
         proof: tokens: {} mutations under tokens and numbers, {} retries of them; after crashes {} retries of what survived, {} of what did not",
        crashes.distinct.len(),
        crashes.in_recovery,
        crashes.torn,
        work.replies,
        work.simple,
        work.seals,
        work.evicted,
        work.loads,
        work.in_lanes,
        work.counted,
        work.once,
        work.again,
        crashes.retried.survived,
        crashes.retried.lost,
    );
    if seeds >= 50 {
        assert!(crashes.distinct.len() >= 10_000, "only {} distinct states", crashes.distinct.len());
    }
}

fn run_seed(seed: u64, tally: &mut Tally) {
    let rng = SeededRng::new(seed ^ 0x51_6d);
    let segment_bytes = *rng.pick(&[4096, 4096, 8192, 65536]);
    let mut recovered =
        RecoveredDisk { disk: CrashDisk::new(), state: ModelState::new(), token_model: TokenModel::new(seed) };
    for incarnation in 0..3 {
        let context = format!("seed {seed}, life {incarnation}");
        let RecoveredDisk { disk, state, token_model } = recovered;
        let machine = SimMachine::new(disk, rng.next_u64());
        let engine =
            open_alone(&machine, node_options(segment_bytes)).unwrap_or_else(|error| panic!("{context}: {error}"));
        let operations_at_start = machine.disk.operations();
        let steps = 150 + rng.below(250);
        let plan = IncarnationPlan {
            state: &state,
            token_model: &token_model,
            workers: 2 + rng.below(2),
            steps,
            backups: false,
        };
        let trace = run_incarnation(&machine, &engine, plan);
        tally.lives += 1;
        tally.work.add(&trace.tally);
        let operations = machine.disk.operations();
        let case = |at, least| CrashCase { segment_bytes, trace: &trace, at, operations_at_start, least };
        for _ in 0..90 {
            // Before `operations_at_start` the start itself was under way: it keeps the state
            // before it.
            let at = rng.below(operations + 1);
            let (image, least) = if rng.chance(85) {
                tally.power += 1;
                (machine.disk.crash(at, &rng), Durability::Durable)
            } else {
                tally.killed += 1;
                (machine.disk.kill(at), Durability::Relaxed)
            };
            let context = format!("{context}, crash after operation {at} of {operations}");
            if tally.crashes.distinct.insert(image.digest()) {
                judge_crash(image, &case(at, least), &rng, &mut tally.crashes, &context);
            }
        }
        // The next incarnation begins on one of the disks that this one may have left.
        let image = machine.disk.crash(operations, &rng);
        drop(engine);
        recovered = judge_crash(image, &case(operations, Durability::Durable), &rng, &mut tally.crashes, &context);
    }
}
