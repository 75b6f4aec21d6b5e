//! SplitMix64: the workspace's generator of seeded random numbers, and its mixing function.
//!
//! The state is a counter, so threads may share one without a lock, and every seed gives a stream.
//! Recorded seeds of tests depend on the streams, so these never change.
//!
//! Not here: secrets. One number of a stream reveals all others.

/// Increment of the state: 2^64 divided by the golden ratio, made odd, so that the counter visits
/// every state.
pub const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Mixes a state into 64 random bits. Every bit of the state affects every bit of the result.
#[inline]
pub const fn mix(state: u64) -> u64 {
    let mut mixed = state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// A generator. Its state is public: any value is a seed.
#[derive(Debug, Clone)]
pub struct SplitMix64(pub u64);

impl SplitMix64 {
    /// Draws 64 random bits.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_streams_are_those_of_the_published_generator() {
        let mut rng = SplitMix64(1_234_567);
        let published = [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!([rng.draw(), rng.draw(), rng.draw()], published);
        assert_eq!(SplitMix64(0).draw(), 0xe220_a839_7b1d_cdaf);
    }
}
