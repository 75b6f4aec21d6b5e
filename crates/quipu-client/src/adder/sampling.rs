//! Samples events: an adder sums all of them, or one in `p` for `p` events.
//!
//! In: the events of an add. Out: the amount to sum, and the sampling rate, which goes to the
//! server with the sum.
//!
//! Invariant: the rate changes only when all sums are taken, so each sum has one rate.

use quipu_sketch::SplitMix64;
use quipu_sketch::sample::{Rate, RateControl, Skip};
use tokio::time::Instant;

/// The events that an adder sums.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SampleMode {
    /// All of them.
    #[default]
    All,
    /// One event in this number, each with this weight. Not 0.
    ///
    /// The sum is an estimate. At one in p, its relative standard error is √((p − 1) / n) after n
    /// events. The counter's namespace must say `sample` with this number or a larger one.
    OneIn(u32),
    /// Up to `per_second` events in a second; of more events, a sample of about this number. So the
    /// cost is about the same at any rate.
    Auto {
        /// Number of events in a second up to which all are summed.
        per_second: u32,
        /// Lowest sampling rate, as one in this number. The counter's namespace must say `sample`
        /// with this number or a larger one.
        one_in_max: u32,
    },
}

/// The state of the sampling of an adder.
#[derive(Debug)]
pub(super) struct AddSampler {
    mode: SampleMode,
    rate: Rate,
    skip: Skip,
    rng: SplitMix64,
    /// Events that were sampled after `since`.
    sampled: u64,
    since: Instant,
}

impl AddSampler {
    pub fn new(mode: SampleMode, seed: u64, now: Instant) -> AddSampler {
        let rate = Rate::one_in(if let SampleMode::OneIn(p) = mode { p } else { 1 });
        let mut sampler =
            AddSampler { mode, rate, skip: Skip { left: 0 }, rng: SplitMix64(seed), sampled: 0, since: now };
        sampler.skip = Skip::new(&rate, sampler.rng.draw());
        sampler
    }

    /// The present rate, as one in this number; `None` without sampling.
    pub fn p(&self) -> Option<u32> {
        (self.mode != SampleMode::All).then(|| self.rate.p())
    }

    /// Samples these events; returns the amount to sum, or 0 if none is sampled.
    pub fn sample(&mut self, events: u64) -> i64 {
        let sampled = self.skip.take_many(&self.rate, events, || self.rng.draw());
        self.sampled = self.sampled.saturating_add(sampled);
        // The caller leaves room for one event more than there are.
        i64::try_from(sampled.saturating_mul(u64::from(self.rate.p()))).unwrap_or(i64::MAX)
    }

    /// Sets the rate of the next sums, after all sums were taken.
    pub fn adjust_rate(&mut self, now: Instant) {
        let SampleMode::Auto { per_second, one_in_max } = self.mode else { return };
        let pace = RateControl { target: f64::from(per_second.max(1)), p_max: one_in_max };
        let elapsed = u64::try_from(now.saturating_duration_since(self.since).as_millis()).unwrap_or(u64::MAX);
        // A shorter interval would only measure noise.
        if elapsed < 10 {
            return;
        }
        let rate = pace.next_rate(self.rate, self.sampled, elapsed);
        if rate != self.rate {
            self.rate = rate;
            self.skip = Skip::new(&rate, self.rng.draw());
        }
        (self.sampled, self.since) = (0, now);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn sums_of_sampled_events_are_unbiased() {
        let now = Instant::now();
        let (mut sum, mut truth) = (0, 0);
        for seed in 0..300 {
            let mut sampler = AddSampler::new(SampleMode::OneIn(20), seed, now);
            for event in 0..1_000 {
                sum += sampler.sample(1 + event % 3);
                truth += 1 + event % 3;
            }
        }
        let rse = (19.0 / truth as f64).sqrt();
        assert!((sum as f64 / truth as f64 - 1.0).abs() < 4.0 * rse, "{sum} of {truth}");
    }

    #[test]
    fn the_rate_follows_the_pace_of_events_and_comes_back() {
        let begun = Instant::now();
        let mut sampler = AddSampler::new(SampleMode::Auto { per_second: 1_000, one_in_max: 64 }, 1, begun);
        let (mut second, mut sum, mut truth) = (0, 0, 0);
        let mut live = |sampler: &mut AddSampler, events: u64| {
            for _ in 0..events {
                sum += sampler.sample(1);
            }
            truth += events as i64;
            second += 1;
            sampler.adjust_rate(begun + Duration::from_secs(second));
            sampler.p().unwrap()
        };
        assert_eq!((live(&mut sampler, 500), live(&mut sampler, 900)), (1, 1), "few are all summed");
        live(&mut sampler, 20_000);
        live(&mut sampler, 20_000);
        let p = live(&mut sampler, 20_000);
        assert!((12..=30).contains(&p), "{p}");
        live(&mut sampler, 1_000_000);
        assert_eq!(live(&mut sampler, 1_000_000), 64, "not more rarely than may be");
        for _ in 0..4 {
            live(&mut sampler, 100);
        }
        assert_eq!(live(&mut sampler, 100), 1);
        let off = (sum - truth).unsigned_abs();
        assert!(off < 3 * (63.0 * truth as f64).sqrt() as u64, "off by {off} of {truth}");
    }

    #[test]
    fn looks_in_quick_succession_change_nothing() {
        let begun = Instant::now();
        let mut sampler = AddSampler::new(SampleMode::Auto { per_second: 10, one_in_max: 64 }, 1, begun);
        sampler.sample(1_000);
        sampler.adjust_rate(begun + Duration::from_millis(9));
        assert_eq!(sampler.p(), Some(1));
        sampler.adjust_rate(begun + Duration::from_millis(10));
        assert_eq!(sampler.p(), Some(8));
        assert_eq!(AddSampler::new(SampleMode::All, 1, begun).p(), None);
    }
}
