//! Samples events at random for sampled counts. Each shard of the table has one sampler, used under
//! its lock.
//!
//! In: a number of events, and a rate of one in p. Out: the number of events taken.
//!
//! All counters of a shard share the number of events still to be skipped: each event is taken with
//! equal probability, regardless of its counter. A change of rate draws a new number, which does
//! not change the probabilities.

use quipu_sketch::SplitMix64;
use quipu_sketch::sample::{Rate, Skip};

/// Sampling state of a shard.
#[derive(Debug, Clone)]
pub struct EventSampler {
    rate: Rate,
    skip: Skip,
    rng: SplitMix64,
    /// Events passed to the sampler, taken or not, since the last read of this field.
    pub events: u64,
}

/// Effect of a sampled add.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SampledAdd {
    /// The count rises by this delta.
    Delta(i64),
    /// No event is taken.
    NoEvent,
    /// The add overflows. This does not depend on the random draw, which then is not made.
    Overflow,
}

/// Samples an add to a count of this value, at a rate of one in `p`.
pub fn sample_add(sampler: &mut EventSampler, p: u32, value: i64, delta: i64) -> SampledAdd {
    // At most one more event is taken than there are whole p.
    if value.checked_add(delta).and_then(|sum| sum.checked_add(i64::from(p))).is_none() {
        return SampledAdd::Overflow;
    }
    match u64::try_from(delta) {
        // An add of 0, or a permitted decrement, is not sampled.
        Err(_) | Ok(0) => SampledAdd::Delta(delta),
        Ok(events) => match sampler.sample(p, events) {
            0 => SampledAdd::NoEvent,
            taken => {
                let delta = i64::try_from(taken).ok().and_then(|taken| taken.checked_mul(i64::from(p)));
                delta.map_or(SampledAdd::Overflow, SampledAdd::Delta)
            }
        },
    }
}

impl EventSampler {
    /// A sampler with a seed that no other start uses.
    pub fn new(seed: u64) -> EventSampler {
        EventSampler { rate: Rate::one_in(1), skip: Skip { left: 0 }, rng: SplitMix64(seed), events: 0 }
    }

    /// Number of these events that are taken; each counts for `p`.
    pub fn sample(&mut self, p: u32, events: u64) -> u64 {
        if self.rate.p() != p {
            self.rate = Rate::one_in(p);
            self.skip = Skip::new(&self.rate, self.rng.draw());
        }
        // A client may send any number; the cap keeps the sum from overflowing.
        self.events = self.events.saturating_add(events.min(1 << 40));
        self.skip.take_many(&self.rate, events, || self.rng.draw())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_several_rates_that_share_an_rng_are_each_unbiased() {
        let (runs, n) = (2_000, 300u64);
        let mut sums = [0u64; 3];
        for seed in 0..runs {
            let mut sampler = EventSampler::new(seed);
            for event in 0..n {
                // Each counter's rate in turn: every event draws a new skip.
                for (sum, p) in sums.iter_mut().zip([2, 10, 100]) {
                    *sum += u64::from(p) * sampler.sample(p, 1 + event % 2);
                }
            }
            assert_eq!(sampler.events, 3 * (n + n / 2));
        }
        let truth = runs as f64 * (n + n / 2) as f64;
        for (sum, p) in sums.into_iter().zip([2.0, 10.0, 100.0f64]) {
            let rse = ((p - 1.0) / truth).sqrt();
            assert!((sum as f64 / truth - 1.0).abs() < 4.0 * rse, "one in {p}: {sum} of {truth}");
        }
    }
}
