//! Counting one event in p: for counters that are so busy that counting all of them costs too much.
//!
//! Each event is taken with probability 1/p, independently of all others. Instead of throwing a die for each, the number of events until the next one that is taken is drawn at
//! once (it has a geometric distribution), and counted down: an event that is not taken costs a subtraction. One that is taken adds p, so the count is unbiased. With c events
//! taken its standard deviation is √(p(p−1)c), and its relative error √((p−1)/n).
//!
//! The dice are 64 random bits each, from the caller.

/// How many events there are to one that is taken.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    /// At least 1.
    p: u32,
    /// 1 / ln(1 − 1/p); 0 for p = 1.
    scale: f64,
}

impl Rate {
    /// One event in `p` is taken; 0 is as 1.
    pub fn one_in(p: u32) -> Rate {
        let p = p.max(1);
        Rate { p, scale: if p == 1 { 0.0 } else { 1.0 / (-1.0 / f64::from(p)).ln_1p() } }
    }

    /// Events to one that is taken.
    pub fn p(&self) -> u32 {
        self.p
    }

    /// The relative standard error of a count of `n` events.
    pub fn rse(&self, n: f64) -> f64 {
        (f64::from(self.p - 1) / n).sqrt()
    }

    /// Events that pass before the next one that is taken.
    fn skip(&self, random: u64) -> u64 {
        // In (0, 1], so that the logarithm is finite.
        let chance = ((random >> 11) + 1) as f64 * (-53f64).exp2();
        (chance.ln() * self.scale) as u64
    }
}

/// Dice by which to skip, from a number that others do not have: SplitMix64.
#[derive(Debug, Clone)]
pub struct SplitMix64(pub u64);

impl SplitMix64 {
    /// The next 64 random bits.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// Events that are still to pass: one for each thread, or for each counter. When the rate changes it is thrown anew, which changes nothing for the chances: the past does not matter to them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Skip {
    /// Events to pass before the next is taken.
    pub left: u64,
}

impl Skip {
    /// At the beginning, or when the rate has changed.
    pub fn new(rate: &Rate, random: u64) -> Skip {
        Skip { left: rate.skip(random) }
    }

    /// One event: whether it is taken. The die is thrown only then.
    #[inline]
    pub fn take(&mut self, rate: &Rate, random: impl FnOnce() -> u64) -> bool {
        if self.left > 0 {
            self.left -= 1;
            return false;
        }
        self.left = rate.skip(random());
        true
    }

    /// Many events at once: how many of them are taken. Of each whole p events exactly one is, and chance decides about the rest: an unbiased number with less noise, in a time
    /// that does not grow with `events`.
    pub fn take_many(&mut self, rate: &Rate, events: u64, mut random: impl FnMut() -> u64) -> u64 {
        let p = u64::from(rate.p);
        let (mut taken, mut rest) = (events / p, events % p);
        while rest > self.left {
            rest -= self.left + 1;
            taken += 1;
            self.left = rate.skip(random());
        }
        self.left -= rest;
        taken
    }
}

/// A count of events of which some were taken, at one rate after another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SampledCount {
    /// The count.
    pub estimate: u64,
    /// The square of its standard deviation, at most.
    pub variance: u128,
}

impl SampledCount {
    /// So many events were taken.
    pub fn add_taken(&mut self, rate: &Rate, events: u64) {
        let p = u64::from(rate.p);
        self.estimate = self.estimate.saturating_add(p.saturating_mul(events));
        self.variance = self.variance.saturating_add(u128::from(p * (p - 1)) * u128::from(events));
    }

    /// The standard deviation of the count.
    pub fn deviation(&self) -> f64 {
        (self.variance as f64).sqrt()
    }
}

/// Under `auto`, so many events come to a counter for each whole p − 1: (p − 1) / n ≤ ε² with ε = 0.5 %.
const AUTO_EVENTS: u64 = 40_000;

/// Under `auto` the rate never becomes rarer than one in this.
pub const AUTO_P_MAX: u32 = 1 << 16;

/// How many standard deviations [`bounds`] reach: the truth is outside of them in less than one of 100 cases, however few events there were.
const BOUNDS_DEVIATIONS: f64 = 3.0;

/// The rate at which a counter of this value is sampled under `auto`: the rarest of 1, 2, 4 … whose relative standard error is at most 0.5 %. Of the value alone, so that whoever has
/// that needs nothing else; and it never becomes denser while the value grows, so none of its events was taken at a rarer one.
pub fn auto_p(value: u64) -> u32 {
    let most = value / AUTO_EVENTS + 1;
    (1u64 << most.ilog2()).min(u64::from(AUTO_P_MAX)) as u32
}

/// Between which numbers the truth lies of which this is an estimate, each event having been taken at one in `p` or at a denser rate.
///
/// An estimate of v has a standard deviation of √((p−1)v), as the count of v/(p−1) events of a Poisson process has, each worth p − 1. Its quantiles are Wilson's and Hilferty's: around a
/// few events, or none, they are lopsided, as they should be, where v ± 3√((p−1)v) would promise too much.
pub fn bounds(value: u64, p: u32) -> (u64, u64) {
    if p <= 1 {
        return (value, value);
    }
    let worth = f64::from(p - 1);
    let events = value as f64 / worth;
    let quantile = |events: f64, deviations: f64| {
        let root = 1.0 - 1.0 / (9.0 * events) + deviations / (3.0 * events.sqrt());
        events * root.max(0.0).powi(3)
    };
    let low = if events > 0.0 { quantile(events, -BOUNDS_DEVIATIONS) } else { 0.0 };
    let high = quantile(events + 1.0, BOUNDS_DEVIATIONS);
    // Numbers beyond u64 become the largest one.
    ((low * worth) as u64, (high * worth).ceil() as u64)
}

/// The standard deviation of an estimate of this value, each event having been taken at one in `p` or at a denser rate.
pub fn deviation(value: u64, p: u32) -> u64 {
    (f64::from(p.max(1) - 1) * value as f64).sqrt().ceil() as u64
}

/// Keeps the events that are taken per second near a number, whatever comes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RateControl {
    /// Events to take in a second.
    pub target: f64,
    /// The rate never becomes rarer than one in this.
    pub p_max: u32,
}

/// In one step the rate becomes at most so many times rarer or denser.
const STEP_MAX: f64 = 8.0;

/// Nothing changes while the events taken are within this factor of the target: otherwise noise alone would change the rate all the time.
const SLACK: f64 = 1.25;

impl RateControl {
    /// The rate to go on with, after `taken` events in so many milliseconds.
    pub fn next_rate(&self, rate: Rate, taken: u64, elapsed_ms: u64) -> Rate {
        if elapsed_ms == 0 || self.target.is_nan() || self.target <= 0.0 {
            return rate;
        }
        let off = taken as f64 * 1000.0 / elapsed_ms as f64 / self.target;
        if (1.0 / SLACK..=SLACK).contains(&off) {
            return rate;
        }
        let p = f64::from(rate.p) * off.clamp(1.0 / STEP_MAX, STEP_MAX);
        Rate::one_in((p.round() as u32).clamp(1, self.p_max.max(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::rehash;

    fn rng(seed: u64) -> impl FnMut() -> u64 {
        let mut n = 0;
        move || {
            n += 1;
            rehash(n, seed)
        }
    }

    #[test]
    fn the_error_is_the_one_of_the_formula() {
        let (rate, n, runs) = (Rate::one_in(10), 10_000, 2000);
        let (mut sum, mut squares) = (0.0, 0.0);
        for run in 0..runs {
            let mut rng = rng(run);
            let mut skip = Skip::new(&rate, rng());
            let mut sampled = SampledCount::default();
            for _ in 0..n {
                if skip.take(&rate, &mut rng) {
                    sampled.add_taken(&rate, 1);
                }
            }
            let off = sampled.estimate as f64 / f64::from(n) - 1.0;
            sum += off;
            squares += off * off;
        }
        let (bias, rse) = (sum / runs as f64, (squares / runs as f64).sqrt());
        assert!(bias.abs() < 4.0 * rate.rse(f64::from(n)) / (runs as f64).sqrt(), "{bias}");
        assert!((rse / rate.rse(f64::from(n)) - 1.0).abs() < 0.06, "{rse}");
    }

    #[test]
    fn many_at_once_are_as_unbiased_and_less_noisy() {
        let (rate, mut rng) = (Rate::one_in(7), rng(1));
        let mut skip = Skip::new(&rate, rng());
        let (mut taken, mut events) = (0, 0);
        for n in 0..200_000 {
            taken += skip.take_many(&rate, n % 30, &mut rng);
            events += n % 30;
        }
        assert!((taken as f64 * 7.0 / events as f64 - 1.0).abs() < 0.005);
        assert!(skip.take_many(&rate, u64::MAX, &mut rng) >= u64::MAX / 7);
    }

    #[test]
    fn the_rate_of_a_value_keeps_the_error_small() {
        assert_eq!([0, 39_999, 40_000, 119_999, 120_000, u64::MAX].map(auto_p), [1, 1, 2, 2, 4, AUTO_P_MAX]);
        let (mut value, mut before) = (1u64, 1);
        while value < 1 << 50 {
            let p = auto_p(value);
            assert!(f64::from(p - 1) / value as f64 <= 0.005f64.powi(2) && p >= before && p.is_power_of_two());
            (value, before) = (value + value / 7 + 1, p);
        }
    }

    /// Counted by the binomial distribution, not by dice: of so many events, how likely the truth is within the bounds of what was taken.
    fn coverage(n: u64, p: u32) -> f64 {
        let (chance, mut covered) = (1.0 / f64::from(p), 0.0);
        let mut log = n as f64 * (1.0 - chance).ln();
        for taken in 0..=n {
            let (low, high) = bounds(taken * u64::from(p), p);
            if (low..=high).contains(&n) {
                covered += log.exp();
            }
            log += ((n - taken) as f64 / (taken + 1) as f64).ln() + chance.ln() - (1.0 - chance).ln();
        }
        covered
    }

    #[test]
    fn the_truth_is_within_the_bounds_however_few_events_there_were() {
        for p in [2, 3, 10, 100, 1000] {
            for n in (1..60).chain([100, 250, 700, 1000, 3000, 10_000]) {
                let coverage = coverage(n, p);
                assert!(coverage >= 0.99, "one in {p} of {n}: {coverage}");
            }
        }
        let (low, high) = bounds(1_000_000, 100);
        assert!(low > 960_000 && high < 1_040_000, "they are not wider than they must be: {low} to {high}");
        assert_eq!(bounds(7, 1), (7, 7));
        assert_eq!((bounds(0, 100).0, deviation(1_000_000, 101), deviation(5, 1)), (0, 10_000, 0));
        assert_eq!(bounds(u64::MAX, u32::MAX).1, u64::MAX);
    }

    proptest::proptest! {
        #[test]
        fn whatever_was_taken_is_within_its_own_bounds(taken in 0..1u64 << 40, p in 1..1u32 << 20) {
            let value = taken * u64::from(p);
            let (low, high) = bounds(value, p);
            proptest::prop_assert!(low <= value && value <= high);
        }

        #[test]
        fn many_at_once_take_what_the_rate_says_but_for_one_in_each_skip(p in 1..1000u32, seed: u64, adds in proptest::collection::vec(0..5000u64, 1..50)) {
            let (rate, mut rng) = (Rate::one_in(p), rng(seed));
            let mut skip = Skip::new(&rate, rng());
            for events in adds {
                let taken = skip.take_many(&rate, events, &mut rng);
                let whole = events / u64::from(p);
                proptest::prop_assert!(taken >= whole && taken <= whole + events % u64::from(p));
            }
        }
    }

    #[test]
    fn one_in_one_takes_everything() {
        let rate = Rate::one_in(0);
        let mut skip = Skip::new(&rate, 5);
        assert!((0..100).all(|n| skip.take(&rate, || n)));
        assert_eq!(skip.take_many(&rate, 50, || 1), 50);
        let mut sampled = SampledCount::default();
        sampled.add_taken(&rate, 100);
        assert_eq!(sampled, SampledCount { estimate: 100, variance: 0 });
    }

    #[test]
    fn extreme_dice_are_harmless() {
        for random in [0, 1, u64::MAX] {
            assert!(Rate::one_in(u32::MAX).skip(random) < 1 << 40);
        }
        assert_eq!(Rate::one_in(100).skip(u64::MAX), 0);
    }

    #[test]
    fn the_pace_finds_its_rate() {
        let pace = RateControl { target: 1000.0, p_max: 1 << 20 };
        let mut rate = Rate::one_in(1);
        for _ in 0..20 {
            rate = pace.next_rate(rate, 5_000_000 / u64::from(rate.p()) / 10, 100);
        }
        assert!((4_000..=6_500).contains(&rate.p()), "{}", rate.p());
        for _ in 0..20 {
            rate = pace.next_rate(rate, 0, 100);
        }
        assert_eq!(rate.p(), 1);
        assert_eq!(pace.next_rate(rate, 100, 0), rate);
    }
}
