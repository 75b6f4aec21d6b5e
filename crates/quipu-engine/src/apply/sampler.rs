//! Dice for sampled counts, one set for each shard of the table, used under its lock.
//!
//! In: so many events, of which one in p counts. Out: how many do.
//!
//! All counters of a shard share what is still to be skipped: each event is as likely to be taken as any other, whichever counter it is of. Another rate throws anew, which changes nothing for
//! the chances.

use quipu_sketch::sample::{Rate, Skip, SplitMix64};

/// What a shard needs to thin events.
#[derive(Debug, Clone)]
pub struct EventSampler {
    rate: Rate,
    skip: Skip,
    rng: SplitMix64,
    /// Events that came to be thinned, taken or not, since somebody looked.
    pub events: u64,
}

/// What an add to a count of this value comes to, of whose events one in p is taken. Outside: whether it can be added; that does not depend on the dice, which are not thrown otherwise. Inside: `None`
/// if nothing is taken.
pub fn sampled_delta(sampler: &mut EventSampler, p: u32, value: i64, delta: i64) -> Option<Option<i64>> {
    // One more is taken than there are whole p, at most.
    value.checked_add(delta)?.checked_add(i64::from(p))?;
    match u64::try_from(delta) {
        // Nothing, or a decrement that is allowed: as it is.
        Err(_) | Ok(0) => Some(Some(delta)),
        Ok(events) => match sampler.sample(p, events) {
            0 => Some(None),
            taken => Some(Some(i64::try_from(taken).ok()?.checked_mul(i64::from(p))?)),
        },
    }
}

impl EventSampler {
    /// Dice that fall by this number, which another life does not have.
    pub fn new(seed: u64) -> EventSampler {
        EventSampler { rate: Rate::one_in(1), skip: Skip { left: 0 }, rng: SplitMix64(seed), events: 0 }
    }

    /// How many of these events are taken, each to count for `p`.
    pub fn sample(&mut self, p: u32, events: u64) -> u64 {
        if self.rate.p() != p {
            self.rate = Rate::one_in(p);
            self.skip = Skip::new(&self.rate, self.rng.draw());
        }
        // A client may say any number; a sum of them is to stay one.
        self.events = self.events.saturating_add(events.min(1 << 40));
        self.skip.take_many(&self.rate, events, || self.rng.draw())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_several_rates_that_share_dice_are_each_unbiased() {
        let (runs, n) = (2_000, 300u64);
        let mut sums = [0u64; 3];
        for seed in 0..runs {
            let mut sampler = EventSampler::new(seed);
            for event in 0..n {
                // Each counter's rate, one after another: every event throws anew.
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
