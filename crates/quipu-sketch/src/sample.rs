//! Sampling: counts one event in p, for counters with too many events to count each.
//!
//! Each event is taken with probability 1/p, independently of all others. Instead of one random
//! number per event, the sampler draws the number of events to skip, which has a geometric
//! distribution. It counts them down, so a skipped event costs a subtraction. A taken event adds p,
//! so the count is unbiased. With c taken events its standard deviation is √(p(p−1)c), and its
//! relative error √((p−1)/n).
//!
//! The caller provides the random numbers, 64 bits each.

/// Sample rate: number of events per taken one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    /// Number of events per taken one, at least 1.
    p: u32,
    /// 1 / ln(1 − 1/p); 0 for p = 1.
    scale: f64,
}

impl Rate {
    /// Creates a rate of one event in `p`; 0 counts as 1.
    pub fn one_in(p: u32) -> Rate {
        let p = p.max(1);
        Rate { p, scale: if p == 1 { 0.0 } else { 1.0 / (-1.0 / f64::from(p)).ln_1p() } }
    }

    /// Returns the number of events per taken one.
    pub fn p(&self) -> u32 {
        self.p
    }

    /// Returns the relative standard error of a count of `n` events.
    pub fn rse(&self, n: f64) -> f64 {
        (f64::from(self.p - 1) / n).sqrt()
    }

    /// Returns the number of events to skip before the next taken one.
    fn skip(&self, random: u64) -> u64 {
        // In (0, 1], which keeps the logarithm finite.
        let chance = ((random >> 11) + 1) as f64 * (-53f64).exp2();
        (chance.ln() * self.scale) as u64
    }
}

/// Skip counter, one for each thread or each counter. After a change of the rate it is drawn anew.
/// That leaves the probabilities unchanged, because they do not depend on the past.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Skip {
    /// Number of events to skip before the next taken one.
    pub left: u64,
}

impl Skip {
    /// Creates a skip counter, at the beginning or after a change of the rate.
    pub fn new(rate: &Rate, random: u64) -> Skip {
        Skip { left: rate.skip(random) }
    }

    /// Processes one event; returns true if it is taken. Only a taken event draws a random number.
    #[inline]
    pub fn take(&mut self, rate: &Rate, random: impl FnOnce() -> u64) -> bool {
        if self.left > 0 {
            self.left -= 1;
            return false;
        }
        self.left = rate.skip(random());
        true
    }

    /// Processes many events at once; returns the number of taken ones. Of each whole p events it
    /// takes exactly one, and samples the rest. The result is unbiased, with less noise, and the
    /// time does not grow with `events`.
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

/// A count of sampled events, with rates that may change over time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SampledCount {
    /// Estimated count.
    pub estimate: u64,
    /// Upper bound of its variance.
    pub variance: u128,
}

impl SampledCount {
    /// Adds taken events.
    pub fn add_taken(&mut self, rate: &Rate, events: u64) {
        let p = u64::from(rate.p);
        self.estimate = self.estimate.saturating_add(p.saturating_mul(events));
        self.variance = self.variance.saturating_add(u128::from(p * (p - 1)) * u128::from(events));
    }

    /// Returns the standard deviation of the count.
    pub fn deviation(&self) -> f64 {
        (self.variance as f64).sqrt()
    }
}

/// Events of a counter per unit of p − 1 under `auto`: (p − 1) / n ≤ ε² with ε = 0.5 %.
const AUTO_EVENTS: u64 = 40_000;

/// Rarest sample rate under `auto`.
pub const AUTO_P_MAX: u32 = 1 << 16;

/// Number of standard deviations of [`bounds`]. The truth is outside in less than one of 100 cases,
/// for any number of events.
const BOUNDS_DEVIATIONS: f64 = 3.0;

/// Returns the sample rate under `auto` for a counter of this value: the rarest of 1, 2, 4 … with a
/// relative standard error of at most 0.5 %.
///
/// It depends on the value alone, which is all that a caller needs. It never becomes denser while
/// the value grows, so no earlier event was taken at a rarer rate.
pub fn auto_p(value: u64) -> u32 {
    let most = value / AUTO_EVENTS + 1;
    (1u64 << most.ilog2()).min(u64::from(AUTO_P_MAX)) as u32
}

/// Returns bounds of the true count for an estimate, with all events taken at one in `p` or denser.
///
/// An estimate of v has a standard deviation of √((p−1)v). That equals the count of v/(p−1) events
/// of a Poisson process, each worth p − 1. The quantiles are those of Wilson and Hilferty. Around a
/// few events, or none, they are correctly asymmetric, whereas v ± 3√((p−1)v) would be too narrow.
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
    // A number beyond u64 becomes the largest one.
    ((low * worth) as u64, (high * worth).ceil() as u64)
}

/// Returns the standard deviation of an estimate, with all events taken at one in `p` or denser.
pub fn deviation(value: u64, p: u32) -> u64 {
    (f64::from(p.max(1) - 1) * value as f64).sqrt().ceil() as u64
}

/// Controller that holds the number of taken events per second near a target.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RateControl {
    /// Target of taken events per second.
    pub target: f64,
    /// Rarest rate.
    pub p_max: u32,
}

/// Greatest factor by which the rate changes in one step.
const STEP_MAX: f64 = 8.0;

/// Dead band of the controller, as a factor of the target. Within it the rate stays; otherwise
/// noise alone would change it continually.
const SLACK: f64 = 1.25;

impl RateControl {
    /// Returns the next rate, after `taken` events in `elapsed_ms` milliseconds.
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

    /// Probability that the bounds of a sampled count of `n` events hold the truth, by the binomial
    /// distribution instead of random draws.
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
    fn extreme_draws_are_harmless() {
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
