//! Draws seeded random numbers: the same seed, the same schedule.

use quipu_sketch::SplitMix64;
use quipu_sketch::splitmix::STEP;

pub struct SeededRng(SplitMix64);

impl SeededRng {
    /// Seeds stand far apart: neighbours would give one stream, shifted by a number.
    pub fn new(seed: u64) -> SeededRng {
        SeededRng(SplitMix64(seed.wrapping_mul(STEP)))
    }

    pub fn next_u64(&mut self) -> u64 {
        self.0.draw()
    }

    pub fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next_u64()) * bound as u128) >> 64) as usize
    }

    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }
}
