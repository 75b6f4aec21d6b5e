//! Whether the journal keeps up, and how rarely namespaces are sampled that say so for when it does not.
//!
//! In: signs of the journal, looked at every now and then. Out: a rate, for [`Inner::set_overload_rate`].
//!
//! The rate doubles while the journal cannot keep up, and is halved after each second in which it could, so that it finds the one at which it can. Each change is a change of what is in force in those
//! namespaces, and the rarest of them is written down before (`namespaces::thinned`); so nothing of this is on the way of an add.
//!
//! Not here: what cannot be written down is refused as ever (`journal`). Room for an add is asked for before the dice are thrown: if only those were refused that are taken, what is
//! acknowledged would come to too little.

use std::time::Duration;

use crate::engine::Inner;
use crate::sync::lock;

/// Namespaces are not sampled more rarely than this: of so many adds one is written down, which no disk that works at all is too slow for.
pub const OVERLOAD_P_MAX: u32 = 1 << 10;

/// A sync that takes longer than this, or has not come to its end after it, has everyone wait who was told nothing yet.
pub const SYNC_LATE: Duration = Duration::from_millis(50);

/// The rate is doubled this often at most, and halved after so long without a sign.
const RISE_EVERY: Duration = Duration::from_millis(100);
const FALL_EVERY: Duration = Duration::from_secs(1);

/// What is seen of the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PressureSigns {
    /// The disk is full: what room there is, is all there is.
    pub full: bool,
    /// Half of what may wait to be written does.
    pub behind: bool,
    /// Syncs that took longer than [`SYNC_LATE`], so far.
    pub late_syncs: u64,
    /// Commands that had to make room for themselves, so far: the writing has overtaken the preparing of segments.
    pub shortages: u64,
    /// When the sync began that is under way.
    pub sync_since: Option<Duration>,
}

/// How the journal has done lately.
#[derive(Debug)]
pub struct Pressure {
    p: u32,
    previous: PressureSigns,
    /// When the rate was changed, and when the journal could not keep up.
    changed_at: Option<Duration>,
    overloaded_at: Duration,
}

impl Pressure {
    /// Of a journal that nobody has looked at.
    pub fn new() -> Pressure {
        Pressure { p: 1, previous: PressureSigns::default(), changed_at: None, overloaded_at: Duration::ZERO }
    }

    /// Events to one that is to be counted from here on.
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

impl Inner {
    /// Looks how the journal does, and samples more rarely or less where namespaces say so. Blocks while that is written down.
    pub(crate) fn adjust_overload_rate(&self) {
        self.retry_end_sampling();
        let (wanted, p_now) = {
            let policies = self.namespaces.current();
            (policies.has_overload(), policies.overload_p())
        };
        if !wanted && p_now == 1 {
            return;
        }
        let p = if wanted {
            lock(&self.pressure).update_rate(self.journal.pressure_signs(), self.clock.elapsed())
        } else {
            1
        };
        if p == p_now {
            return;
        }
        match self.set_overload_rate(p) {
            Ok(()) if p_now == 1 => tracing::warn!(
                p,
                "the journal cannot keep up: namespaces with overload = \"sample\" count one event in so many"
            ),
            Ok(()) if p == 1 => tracing::info!("the journal keeps up: every event is counted again"),
            Ok(()) => {}
            // The next look tries again; until then it is as it was.
            Err(error) => tracing::debug!(%error, p, "the rate of sampling could not be changed"),
        }
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
