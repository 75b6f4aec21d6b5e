//! Tests interleavings of workers between any two steps: apply, fill, write, sync, reply. The
//! background runs in between, and a crash may come anywhere.

use quipu_model::Durability;
use quipu_testkit::{CrashDisk, SeededRng};

use crate::crash_states::{CrashCase, Tally, judge_crash};
use crate::model::State;
use crate::sim::run_incarnation;
use crate::world::{World, small_options};

/// Seeds that once failed stay here, in front of the others.
const KEPT_SEEDS: [u64; 0] = [];

#[test]
fn any_interleaving_of_steps_keeps_every_reply() {
    let seeds: u64 = std::env::var("QUIPU_INTERLEAVE_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(2000);
    let mut tally = Tally::default();
    let (mut steps, mut switches, mut replies, mut refused) = (0, 0, 0, 0);
    for seed in KEPT_SEEDS.into_iter().chain(0..seeds) {
        let rng = SeededRng::new(seed ^ 0x17_7e);
        let world = World::new(CrashDisk::new(), rng.next_u64());
        let engine = world.open(small_options(8192)).unwrap();
        let operations_at_start = world.disk.operations();
        let trace = run_incarnation(&world, &engine, &State::new(), 2 + rng.below(3), 40 + rng.below(160));
        let operations = world.disk.operations();
        for _ in 0..3 {
            let at = operations_at_start + rng.below(operations - operations_at_start + 1);
            let context = format!("seed {seed}, crash after operation {at} of {operations}");
            let (image, least) = if rng.chance(50) {
                (world.disk.crash(at, &rng), Durability::Durable)
            } else {
                (world.disk.kill(at), Durability::Relaxed)
            };
            judge_crash(
                image,
                &CrashCase { segment_bytes: 8192, trace: &trace, at, operations_at_start, least },
                &rng,
                &mut tally,
                &context,
            );
        }
        steps += trace.counts.steps;
        switches += trace.counts.switches;
        replies += trace.counts.replies;
        refused += trace.counts.refused;
    }
    println!(
        "proof: interleavings: {seeds} seeds from 0, {steps} steps, {switches} switches between workers, {replies} replies, \
         {refused} refusals, {} crashes",
        3 * seeds
    );
}
