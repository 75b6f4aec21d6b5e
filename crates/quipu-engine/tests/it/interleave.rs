//! Workers meeting between any two steps: apply, fill, hand over, sync, reply, with the background in between, and a crash anywhere.

use quipu_model::Durability;
use quipu_testkit::{CrashDisk, Dice};

use crate::crash_states::{Judged, Tally, judge};
use crate::model::State;
use crate::sim::live;
use crate::world::{World, small};

/// Seeds that once failed stay here, in front of the others.
const KEPT_SEEDS: [u64; 0] = [];

#[test]
fn any_interleaving_of_steps_keeps_every_reply() {
    let seeds: u64 = std::env::var("QUIPU_INTERLEAVE_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(2000);
    let mut tally = Tally::default();
    let (mut steps, mut switches, mut replies, mut refused) = (0, 0, 0, 0);
    for seed in KEPT_SEEDS.into_iter().chain(0..seeds) {
        let dice = Dice::new(seed ^ 0x17_7e);
        let world = World::new(CrashDisk::new(), dice.roll());
        let engine = world.open(small(8192)).unwrap();
        let before_life = world.disk.operations();
        let trace = live(&world, &engine, &State::new(), 2 + dice.below(3), 40 + dice.below(160));
        let operations = world.disk.operations();
        for _ in 0..3 {
            let at = before_life + dice.below(operations - before_life + 1);
            let context = format!("seed {seed}, crash after operation {at} of {operations}");
            let (image, least) = if dice.chance(50) {
                (world.disk.crash(at, &dice), Durability::Durable)
            } else {
                (world.disk.kill(at), Durability::Relaxed)
            };
            judge(
                image,
                &Judged { segment_bytes: 8192, trace: &trace, at, before_life, least },
                &dice,
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
