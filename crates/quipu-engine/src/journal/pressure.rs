//! Computes the sampling rate at which the journal keeps up.
//!
//! In: signs of pressure from the journal, checked at intervals. Out: a rate, one event in N.
//!
//! The rate doubles while the journal cannot keep up, and is halved after each second in which it
//! could. So it converges on the rate at which the journal keeps up.
//!
//! Not here: putting the rate in force (`background::overload`).

use std::time::Duration;

/// Rarest sampling rate: one add of this many is journaled. Any working disk is fast enough for
/// that.
pub const OVERLOAD_P_MAX: u32 = 1 << 10;

/// Longest timely sync. A slower or unfinished one delays all waiting replies.
pub const SYNC_LATE: Duration = Duration::from_millis(50);

/// Shortest time between two doublings; then the time without a sign after which the rate is
/// halved.
const RISE_EVERY: Duration = Duration::from_millis(100);
const FALL_EVERY: Duration = Duration::from_secs(1);

/// Signs of pressure on the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PressureSigns {
    /// The disk is full: no more room can be prepared.
    pub full: bool,
    /// Half of the permitted unwritten bytes wait to be written.
    pub behind: bool,
    /// Number of syncs longer than [`SYNC_LATE`], so far.
    pub late_syncs: u64,
    /// Number of commands that had to prepare room themselves, so far: writes have overtaken the
    /// preparation of segments.
    pub shortages: u64,
    /// Start of the sync in progress.
    pub sync_since: Option<Duration>,
}

/// Recent pressure on the journal.
#[derive(Debug)]
pub struct Pressure {
    p: u32,
    previous: PressureSigns,
    /// Time of the last change of the rate; then the last time at which the journal could not keep
    /// up.
    changed_at: Option<Duration>,
    overloaded_at: Duration,
}

impl Pressure {
    /// State before the first check.
    pub fn new() -> Pressure {
        Pressure { p: 1, previous: PressureSigns::default(), changed_at: None, overloaded_at: Duration::ZERO }
    }

    /// Returns the rate from here on: the number of events per counted one.
    pub fn update_rate(&mut self, signs: PressureSigns, now: Duration) -> u32 {
        let since = |at: Duration| now.saturating_sub(at);
        let stuck = signs.sync_since.is_some_and(|began| since(began) > SYNC_LATE);
        let more = signs.late_syncs > self.previous.late_syncs || signs.shortages > self.previous.shortages;
        let short = signs.full || signs.behind || stuck || more;
        self.previous = signs;
        if short {
            self.overloaded_at = now;
            if self.p < OVERLOAD_P_MAX && self.changed_at.is_none_or(|at| since(at) >= RISE_EVERY) {
                (self.p, self.changed_at) = (self.p * 2, Some(now));
            }
        } else if self.p > 1 && since(self.changed_at.unwrap_or_default().max(self.overloaded_at)) >= FALL_EVERY {
            (self.p, self.changed_at) = (self.p / 2, Some(now));
        }
        self.p
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn the_rate_doubles_while_the_journal_cannot_keep_up_and_comes_back() {
        let mut pressure = Pressure::new();
        let short = PressureSigns { behind: true, ..PressureSigns::default() };
        let rates: Vec<u32> = (0..14).map(|tick| pressure.update_rate(short, at(100 * tick))).collect();
        assert_eq!(rates, [2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 1024, 1024, 1024, 1024]);
        assert_eq!(pressure.update_rate(PressureSigns::default(), at(2_299)), 1024, "a second has not passed");
        let rates: Vec<u32> =
            (1..=12).map(|second| pressure.update_rate(PressureSigns::default(), at(1_300 + 1_000 * second))).collect();
        assert_eq!(rates, [512, 256, 128, 64, 32, 16, 8, 4, 2, 1, 1, 1]);
    }

    #[test]
    fn a_look_too_soon_changes_nothing() {
        let mut pressure = Pressure::new();
        let short = PressureSigns { full: true, ..PressureSigns::default() };
        assert_eq!(
            (
                pressure.update_rate(short, at(0)),
                pressure.update_rate(short, at(99)),
                pressure.update_rate(short, at(100))
            ),
            (2, 2, 4)
        );
    }

    #[test]
    fn every_sign_is_seen_once() {
        for sign in [
            PressureSigns { late_syncs: 3, ..PressureSigns::default() },
            PressureSigns { shortages: 1, ..PressureSigns::default() },
        ] {
            let mut pressure = Pressure::new();
            assert_eq!(
                (
                    pressure.update_rate(sign, at(0)),
                    pressure.update_rate(sign, at(100)),
                    pressure.update_rate(sign, at(999))
                ),
                (2, 2, 2)
            );
            assert_eq!(pressure.update_rate(sign, at(1_000)), 1, "what was late before is over");
        }
    }

    #[test]
    fn a_sync_that_does_not_end_is_one_that_is_late() {
        let mut pressure = Pressure::new();
        let waits = PressureSigns { sync_since: Some(at(7)), ..PressureSigns::default() };
        assert_eq!(
            (
                pressure.update_rate(waits, at(7)),
                pressure.update_rate(waits, at(57)),
                pressure.update_rate(waits, at(58))
            ),
            (1, 1, 2)
        );
        let done = PressureSigns { late_syncs: 1, ..PressureSigns::default() };
        assert_eq!(
            (
                pressure.update_rate(done, at(160)),
                pressure.update_rate(done, at(1_159)),
                pressure.update_rate(done, at(1_160))
            ),
            (4, 4, 2)
        );
    }
}
