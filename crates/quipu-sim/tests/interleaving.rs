//! Tests interleavings of workers between any two steps: apply, fill, write, sync, reply. The
//! background runs in between, and a crash may come anywhere. `QUIPU_INTERLEAVE_SEEDS` is the
//! number of seeds.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use quipu_model::Durability;
use quipu_sim::one_node::{
    CrashCase, CrashTally, IncarnationPlan, ModelState, TokenModel, TraceTally, judge_crash, node_options, open_alone,
    run_incarnation,
};
use quipu_testkit::{CrashDisk, SeededRng, SimMachine};

/// Seeds that once failed stay here, in front of the others.
const KEPT_SEEDS: [u64; 0] = [];

/// Length of a journal segment.
const SEGMENT_BYTES: u64 = 8192;

#[test]
fn any_interleaving_of_steps_keeps_every_reply() {
    let seeds: u64 = std::env::var("QUIPU_INTERLEAVE_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(2000);
    let mut crashes = CrashTally::default();
    let mut work = TraceTally::default();
    for seed in KEPT_SEEDS.into_iter().chain(0..seeds) {
        let rng = SeededRng::new(seed ^ 0x17_7e);
        let machine = SimMachine::new(CrashDisk::new(), rng.next_u64());
        let engine = open_alone(&machine, node_options(SEGMENT_BYTES)).unwrap();
        let operations_at_start = machine.disk.operations();
        let plan = IncarnationPlan {
            state: &ModelState::new(),
            token_model: &TokenModel::new(machine.rng.next_u64()),
            workers: 2 + rng.below(3),
            steps: 40 + rng.below(160),
            backups: false,
        };
        let trace = run_incarnation(&machine, &engine, plan);
        let operations = machine.disk.operations();
        for _ in 0..3 {
            let at = operations_at_start + rng.below(operations - operations_at_start + 1);
            let context = format!("seed {seed}, crash after operation {at} of {operations}");
            let (image, least) = if rng.chance(50) {
                (machine.disk.crash(at, &rng), Durability::Durable)
            } else {
                (machine.disk.kill(at), Durability::Relaxed)
            };
            let case = CrashCase { segment_bytes: SEGMENT_BYTES, trace: &trace, at, operations_at_start, least };
            judge_crash(image, &case, &rng, &mut crashes, &context);
        }
        work.add(&trace.tally);
    }
    let TraceTally { steps, switches, replies, refused, .. } = work;
    println!(
        "proof: interleavings: {seeds} seeds from 0, {steps} steps, {switches} switches between workers, {replies} replies, \
         {refused} refusals, {} crashes",
        3 * seeds
    );
}
