//! Draws seeded random numbers: the same seed gives the same numbers, so a printed seed repeats a
//! failure.
//!
//! The generator is SplitMix64: its state is a counter, so several threads may share it without a
//! lock. It is good enough to choose tests, and for nothing else.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};

use quipu_model::Rng;
use quipu_sketch::splitmix::{STEP, mix};

/// A seeded generator.
#[derive(Debug)]
pub struct SeededRng {
    state: AtomicU64,
}

impl SeededRng {
    /// Creates a generator with this seed.
    pub fn new(seed: u64) -> SeededRng {
        SeededRng { state: AtomicU64::new(seed) }
    }

    /// Draws 64 bits.
    pub fn next_u64(&self) -> u64 {
        mix(self.state.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP))
    }

    /// Draws a number from 0 up to, not including, `bound`; 0 if the bound is 0.
    pub fn below(&self, bound: usize) -> usize {
        // The high half of the product: no division, and a bias of at most bound / 2^64.
        ((u128::from(self.next_u64()) * bound as u128) >> 64) as usize
    }

    /// Draws a number of the range, both ends included.
    pub fn between(&self, range: RangeInclusive<i64>) -> i64 {
        let (low, high) = (i128::from(*range.start()), i128::from(*range.end()));
        let width = u128::try_from(high - low + 1).unwrap_or(0);
        let offset = (u128::from(self.next_u64()) * width) >> 64;
        i64::try_from(low + offset as i128).unwrap_or(*range.start())
    }

    /// Returns true with a probability of `percent` in a hundred.
    pub fn chance(&self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// Draws one of the choices. Panics if there are none.
    pub fn pick<'a, T>(&self, choices: &'a [T]) -> &'a T {
        &choices[self.below(choices.len())]
    }

    /// Shuffles the items; every order is equally likely.
    pub fn shuffle<T>(&self, items: &mut [T]) {
        for end in (1..items.len()).rev() {
            items.swap(end, self.below(end + 1));
        }
    }

    /// Creates a generator for a part of the test, so that its draws do not change the other parts'
    /// draws.
    #[must_use]
    pub fn fork(&self) -> SeededRng {
        SeededRng::new(self.next_u64())
    }
}

impl Rng for SeededRng {
    fn next(&self) -> u64 {
        self.next_u64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_of_the_generator_without_threads() {
        let shared = SeededRng::new(7);
        let mut alone = quipu_sketch::SplitMix64(7);
        assert!((0..100).all(|_| shared.next_u64() == alone.draw()));
    }

    #[test]
    fn the_same_seed_throws_the_same_numbers() {
        let (a, b, other) = (SeededRng::new(7), SeededRng::new(7), SeededRng::new(8));
        let numbers: Vec<u64> = (0..100).map(|_| a.next_u64()).collect();
        assert!(numbers.iter().all(|&number| number == b.next_u64()));
        assert!(numbers.iter().any(|&number| number != other.next_u64()));
    }

    #[test]
    fn every_number_of_a_range_comes_up_and_no_other() {
        let rng = SeededRng::new(1);
        let mut counts = [0; 7];
        for _ in 0..1000 {
            counts[usize::try_from(rng.between(-3..=3) + 3).unwrap()] += 1;
            assert!(rng.below(3) < 3);
        }
        assert!(counts.iter().all(|&count| count > 50), "{counts:?}");
        assert_eq!(rng.below(0), 0);
        assert_eq!(rng.between(5..=5), 5);
        let _ = rng.between(i64::MIN..=i64::MAX);
    }

    #[test]
    fn a_shuffle_loses_nothing() {
        let rng = SeededRng::new(3);
        let mut items: Vec<usize> = (0..50).collect();
        rng.shuffle(&mut items);
        assert_ne!(items, (0..50).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..50).collect::<Vec<_>>());
    }
}
