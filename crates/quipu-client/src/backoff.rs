//! Computes pauses before retries: longer each time, and different for clients that lost the same
//! server.

use std::time::Duration;

use crate::Options;

/// The pause after `attempts` attempts: half to all of `pause_min`, doubled for each attempt, at
/// most `pause_max`.
pub(crate) fn delay(attempts: u32, options: &Options, jitter: u32) -> Duration {
    let doubled = options.pause_min.saturating_mul(1 << attempts.saturating_sub(1).min(20));
    let longest = doubled.min(options.pause_max);
    longest / 2 + (longest / 2).mul_f64(f64::from(jitter) / f64::from(u32::MAX))
}

/// A random number. Without randomness all clients wait equally long, which is worse and not wrong.
pub(crate) fn jitter() -> u32 {
    getrandom::u32().unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_their_bound_and_differ_by_chance() {
        let options = Options::default();
        let (least, most) = (options.pause_min, options.pause_max);
        assert_eq!(delay(1, &options, 0), least / 2);
        assert_eq!(delay(1, &options, u32::MAX), least);
        assert_eq!(delay(3, &options, u32::MAX), least * 4);
        assert_eq!(delay(u32::MAX, &options, u32::MAX), most);
        assert_eq!(delay(u32::MAX, &options, 0), most / 2);
        let wide = Options { pause_min: Duration::MAX, pause_max: Duration::MAX, ..options };
        assert!(delay(9, &wide, 0) > most);
    }
}
