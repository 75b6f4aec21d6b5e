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
    fn skip(&self, die: u64) -> u64 {
        // In (0, 1], so that the logarithm is finite.
        let chance = ((die >> 11) + 1) as f64 * (-53f64).exp2();
        (chance.ln() * self.scale) as u64
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
    pub fn new(rate: &Rate, die: u64) -> Skip {
        Skip { left: rate.skip(die) }
    }

    /// One event: whether it is taken. The die is thrown only then.
    #[inline]
    pub fn take(&mut self, rate: &Rate, die: impl FnOnce() -> u64) -> bool {
        if self.left > 0 {
            self.left -= 1;
            return false;
        }
        self.left = rate.skip(die());
        true
    }

    /// Many events at once: how many of them are taken. Of each whole p events exactly one is, and chance decides about the rest: an unbiased number with less noise, in a time
    /// that does not grow with `events`.
    pub fn take_many(&mut self, rate: &Rate, events: u64, mut die: impl FnMut() -> u64) -> u64 {
        let p = u64::from(rate.p);
        let (mut taken, mut rest) = (events / p, events % p);
        while rest > self.left {
            rest -= self.left + 1;
            taken += 1;
            self.left = rate.skip(die());
        }
        self.left -= rest;
        taken
    }
}

/// A count of events of which some were taken, at one rate after another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sampled {
    /// The count.
    pub estimate: u64,
    /// The square of its standard deviation, at most.
    pub variance: u128,
}

impl Sampled {
    /// So many events were taken.
    pub fn taken(&mut self, rate: &Rate, events: u64) {
        let p = u64::from(rate.p);
        self.estimate = self.estimate.saturating_add(p.saturating_mul(events));
        self.variance = self.variance.saturating_add(u128::from(p * (p - 1)) * u128::from(events));
    }

    /// The standard deviation of the count.
    pub fn deviation(&self) -> f64 {
        (self.variance as f64).sqrt()
    }
}

/// Keeps the events that are taken per second near a number, whatever comes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pace {
    /// Events to take in a second.
    pub target: f64,
    /// The rate never becomes rarer than one in this.
    pub p_max: u32,
}

/// In one step the rate becomes at most so many times rarer or denser.
const STEP_MAX: f64 = 8.0;

/// Nothing changes while the events taken are within this factor of the target: otherwise noise alone would change the rate all the time.
const SLACK: f64 = 1.25;

impl Pace {
    /// The rate to go on with, after `taken` events in so many milliseconds.
    pub fn next(&self, rate: Rate, taken: u64, elapsed_ms: u64) -> Rate {
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
    use crate::key::again;

    fn dice(seed: u64) -> impl FnMut() -> u64 {
        let mut n = 0;
        move || {
            n += 1;
            again(n, seed)
        }
    }

    #[test]
    fn the_error_is_the_one_of_the_formula() {
        let (rate, n, runs) = (Rate::one_in(10), 10_000, 2000);
        let (mut sum, mut squares) = (0.0, 0.0);
        for run in 0..runs {
            let mut dice = dice(run);
            let mut skip = Skip::new(&rate, dice());
            let mut sampled = Sampled::default();
            for _ in 0..n {
                if skip.take(&rate, &mut dice) {
                    sampled.taken(&rate, 1);
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
        let (rate, mut dice) = (Rate::one_in(7), dice(1));
        let mut skip = Skip::new(&rate, dice());
        let (mut taken, mut events) = (0, 0);
        for n in 0..200_000 {
            taken += skip.take_many(&rate, n % 30, &mut dice);
            events += n % 30;
        }
        assert!((taken as f64 * 7.0 / events as f64 - 1.0).abs() < 0.005);
        assert!(skip.take_many(&rate, u64::MAX, &mut dice) >= u64::MAX / 7);
    }

    #[test]
    fn one_in_one_takes_everything() {
        let rate = Rate::one_in(0);
        let mut skip = Skip::new(&rate, 5);
        assert!((0..100).all(|n| skip.take(&rate, || n)));
        assert_eq!(skip.take_many(&rate, 50, || 1), 50);
        let mut sampled = Sampled::default();
        sampled.taken(&rate, 100);
        assert_eq!(sampled, Sampled { estimate: 100, variance: 0 });
    }

    #[test]
    fn extreme_dice_are_harmless() {
        for die in [0, 1, u64::MAX] {
            assert!(Rate::one_in(u32::MAX).skip(die) < 1 << 40);
        }
        assert_eq!(Rate::one_in(100).skip(u64::MAX), 0);
    }

    #[test]
    fn the_pace_finds_its_rate() {
        let pace = Pace { target: 1000.0, p_max: 1 << 20 };
        let mut rate = Rate::one_in(1);
        for _ in 0..20 {
            rate = pace.next(rate, 5_000_000 / u64::from(rate.p()) / 10, 100);
        }
        assert!((4_000..=6_500).contains(&rate.p()), "{}", rate.p());
        for _ in 0..20 {
            rate = pace.next(rate, 0, 100);
        }
        assert_eq!(rate.p(), 1);
        assert_eq!(pace.next(rate, 100, 0), rate);
    }
}
