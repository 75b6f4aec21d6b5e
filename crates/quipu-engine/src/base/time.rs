//! Keeps the engine's time: it never goes back, and no jump of the wall clock stops it.
//!
//! In: the wall clock, the monotonic clock, and at a start the newest time in the journal. Out: the
//! time of each turn.
//!
//! The time follows one of two lines:
//! - The *trusted line* is the wall clock as it was last believed, carried on by the monotonic
//!   clock.
//! - The *engine's time* follows the wall clock while that is within [`STEP_MAX`] of the trusted
//!   line, and the trusted line otherwise.
//!
//! A wall clock that has kept to one line for [`STEP_STAYS`] is believed, at any distance from the
//! trusted line.
//!
//! Invariants:
//! - the engine's time never goes back, restarts included;
//! - it is more than [`STEP_MAX`] ahead of the trusted line only for good reason: a believed wall
//!   clock, or the journal;
//! - instead of going back it runs on: at the speed of the monotonic clock, or a sixteenth slower
//!   if it is ahead by less than [`STEP_MAX`]. So small steps of the wall clock do not add up.
//!
//! Decision: docs/decisions/0002-time-by-two-clocks.md.

use std::time::Duration;

use quipu_model::{Clock, Millis};

use crate::base::sync::{AtomicU64, Mutex, Ordering, lock, try_lock};

/// A wall clock within this distance of the trusted line is believed at once. It equals the time
/// that a token may be ahead of the engine's time, so that such a step alone refuses no client.
pub const STEP_MAX: Duration = quipu_model::TOKEN_AHEAD_MAX;

/// A more distant wall clock is believed once it has kept to its line for this long. That is longer
/// than a time daemon takes to notice and correct its own mistake. Chrony and ntpd ask their
/// servers every 64 s to 17 min, a new one every few seconds. It is shorter than the time in which
/// an operator expects a corrected clock to count.
pub const STEP_STAYS: Duration = Duration::from_secs(10 * 60);

/// After a step back by at most this, time stands still until the wall clock has caught up. Threads
/// read the wall clock one after another, and a time daemon's smaller steps are no reason to leave
/// it.
const STILL_MAX: Duration = Duration::from_secs(1);

/// Time that is ahead by less than [`STEP_MAX`] loses one part in this many.
const SLEW_PARTS: u32 = 16;

/// The base of a running time is renewed this often, not at each call: a sixteenth of a microsecond
/// would be rounded away.
const REBASE_AFTER: Duration = Duration::from_millis(10);

/// A line of time: a time of day at one reading of the monotonic clock, and its speed from there
/// on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ClockLine {
    /// Reading of the monotonic clock.
    at: Duration,
    /// Time since the Unix epoch.
    time: Duration,
}

impl ClockLine {
    fn new(elapsed: Duration, time: Millis) -> ClockLine {
        ClockLine { at: elapsed, time: Duration::from_millis(time.0) }
    }

    fn time_at(self, elapsed: Duration) -> Duration {
        self.time.saturating_add(elapsed.saturating_sub(self.at))
    }

    fn is_near(self, wall: Duration, elapsed: Duration) -> bool {
        wall.abs_diff(self.time_at(elapsed)) <= STEP_MAX
    }
}

/// Both lines and the engine's time, as a function of all clock readings so far.
#[derive(Debug, Clone)]
pub struct Timeline {
    trusted: ClockLine,
    /// The line on which the wall clock was found, and its beginning.
    candidate: ClockLine,
    /// The engine's time, since it last followed a clock.
    running: ClockLine,
    newest: Duration,
}

/// Result of an observation of the clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockObservation {
    /// The engine's time.
    pub time: Millis,
    /// Until the next observation, a wall clock up to this is the engine's time.
    pub believed_until: Millis,
    /// Offset of the wall clock from the engine's time, in milliseconds; less than 0: behind.
    pub ahead_millis: i64,
    /// Step of the trusted line, in milliseconds, if a disbelieved wall clock is believed from now
    /// on.
    pub moved_millis: Option<i64>,
}

impl Timeline {
    /// Begins at a start, from the newest time in the journal. A later wall clock is believed: the
    /// length of the server's downtime is unknown.
    pub fn begin(floor: Millis, wall: Millis, elapsed: Duration) -> Timeline {
        let running = ClockLine::new(elapsed, floor.max(wall));
        Timeline { trusted: running, candidate: ClockLine::new(elapsed, wall), running, newest: running.time }
    }

    /// Processes a clock reading. `issued` is the newest time given out since the last observation.
    pub fn observe(&mut self, wall: Millis, elapsed: Duration, issued: Millis) -> ClockObservation {
        let wall = Duration::from_millis(wall.0);
        if Duration::from_millis(issued.0) > self.newest {
            self.rebase(elapsed, Duration::from_millis(issued.0));
        }
        let mut moved_millis = None;
        if !self.candidate.is_near(wall, elapsed) {
            self.candidate = ClockLine { at: elapsed, time: wall };
        } else if elapsed.saturating_sub(self.candidate.at) >= STEP_STAYS {
            if !self.trusted.is_near(wall, elapsed) {
                moved_millis = Some(signed_millis(wall, self.trusted.time_at(elapsed)));
            }
            self.candidate = ClockLine { at: elapsed, time: wall };
            self.trusted = self.candidate;
        }
        let trusted = self.trusted.time_at(elapsed);
        let target = if self.trusted.is_near(wall, elapsed) { wall } else { trusted };
        self.advance(target, elapsed);
        ClockObservation {
            time: millis(self.newest),
            believed_until: millis(trusted.saturating_add(STEP_MAX)),
            ahead_millis: signed_millis(wall, self.newest),
            moved_millis,
        }
    }

    /// Moves the engine's time towards a clock, and never back.
    fn advance(&mut self, target: Duration, elapsed: Duration) {
        let ahead = self.newest.saturating_sub(target);
        if ahead <= STILL_MAX {
            return self.rebase(elapsed, target.max(self.newest));
        }
        let passed = elapsed.saturating_sub(self.running.at);
        let lost = if ahead <= STEP_MAX { passed / SLEW_PARTS } else { Duration::ZERO };
        self.newest = self.newest.max(self.running.time.saturating_add(passed - lost));
        if passed >= REBASE_AFTER {
            self.rebase(elapsed, self.newest);
        }
    }

    fn rebase(&mut self, elapsed: Duration, time: Duration) {
        self.running = ClockLine { at: elapsed, time };
        self.newest = time;
    }
}

fn millis(time: Duration) -> Millis {
    Millis(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}

/// `a - b`.
fn signed_millis(a: Duration, b: Duration) -> i64 {
    let offset = i64::try_from(a.abs_diff(b).as_millis()).unwrap_or(i64::MAX);
    if a < b { -offset } else { offset }
}

/// The time that all threads of an engine share.
pub(crate) struct EngineTime {
    newest: AtomicU64,
    believed_until: AtomicU64,
    timeline: Mutex<Timeline>,
}

impl EngineTime {
    pub(crate) fn begin(floor: Millis, clock: &dyn Clock) -> EngineTime {
        let (wall, elapsed) = (clock.wall(), clock.elapsed());
        let time = EngineTime {
            newest: AtomicU64::new(floor.0),
            believed_until: AtomicU64::new(0),
            timeline: Mutex::new(Timeline::begin(floor, wall, elapsed)),
        };
        time.observe(clock);
        time
    }

    /// The engine's time. Reads the monotonic clock only if the wall clock is not believed as it
    /// is.
    pub(crate) fn now(&self, clock: &dyn Clock) -> Millis {
        let (wall, newest) = (clock.wall().0, self.newest.load(Ordering::Acquire));
        // Many calls come within a millisecond, and only the first of them has news for the others.
        if wall <= newest && newest - wall <= STILL_MAX.as_millis() as u64 {
            return Millis(newest);
        }
        if wall > newest && wall <= self.believed_until.load(Ordering::Acquire) {
            return Millis(self.newest.fetch_max(wall, Ordering::AcqRel).max(wall));
        }
        match try_lock(&self.timeline) {
            Some(mut timeline) => self.observe_with(&mut timeline, clock).time,
            // Another thread is moving the time on.
            None => Millis(self.newest.load(Ordering::Acquire)),
        }
    }

    /// Compares the clocks. Called at intervals, independently of calls to `now`.
    pub(crate) fn observe(&self, clock: &dyn Clock) -> ClockObservation {
        self.observe_with(&mut lock(&self.timeline), clock)
    }

    fn observe_with(&self, timeline: &mut Timeline, clock: &dyn Clock) -> ClockObservation {
        let issued = Millis(self.newest.load(Ordering::Acquire));
        let observation = timeline.observe(clock.wall(), clock.elapsed(), issued);
        self.believed_until.store(observation.believed_until.0, Ordering::Release);
        let newest = self.newest.fetch_max(observation.time.0, Ordering::AcqRel).max(observation.time.0);
        ClockObservation { time: Millis(newest), ..observation }
    }

    /// Begins anew at the wall clock, even if that is a step back: only while the engine is not in
    /// use.
    pub(crate) fn lower(&self, clock: &dyn Clock) -> Millis {
        let mut timeline = lock(&self.timeline);
        let wall = clock.wall();
        *timeline = Timeline::begin(Millis(0), wall, clock.elapsed());
        self.newest.store(wall.0, Ordering::Release);
        self.observe_with(&mut timeline, clock).time
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BEGIN: u64 = 1_780_000_000_000;
    const DAY: i64 = 24 * 60 * 60 * 1000;
    /// Interval of the background thread.
    const TICK: u64 = 100;

    /// Two clocks and a timeline that observes them.
    struct TestClocks {
        timeline: Timeline,
        elapsed: Duration,
        wall_offset: i64,
    }

    impl TestClocks {
        fn new() -> TestClocks {
            let timeline = Timeline::begin(Millis(0), Millis(BEGIN), Duration::ZERO);
            TestClocks { timeline, elapsed: Duration::ZERO, wall_offset: 0 }
        }

        fn true_time(&self) -> u64 {
            BEGIN + self.elapsed.as_millis() as u64
        }

        fn observe(&mut self) -> ClockObservation {
            let wall = self.true_time().saturating_add_signed(self.wall_offset);
            self.timeline.observe(Millis(wall), self.elapsed, Millis(0))
        }

        fn pass(&mut self, millis: u64) -> ClockObservation {
            self.elapsed += Duration::from_millis(millis);
            self.observe()
        }

        /// Passes this time, with an observation at each interval of the background thread.
        fn pass_ticks(&mut self, millis: u64) -> ClockObservation {
            for _ in 0..millis / TICK {
                self.pass(TICK);
            }
            self.observe()
        }
    }

    #[test]
    fn a_jump_forward_and_back_moves_nothing() {
        let mut clocks = TestClocks::new();
        clocks.pass_ticks(5_000);
        clocks.wall_offset = 30 * DAY;
        let jumped = clocks.pass_ticks(60_000);
        assert_eq!((jumped.time, jumped.ahead_millis), (Millis(clocks.true_time()), 30 * DAY));
        clocks.wall_offset = 0;
        let back = clocks.pass_ticks(60_000);
        assert_eq!((back.time, back.ahead_millis, back.moved_millis), (Millis(clocks.true_time()), 0, None));
    }

    #[test]
    fn a_jump_that_stays_is_believed_after_ten_minutes() {
        let mut clocks = TestClocks::new();
        clocks.pass_ticks(5_000);
        clocks.wall_offset = 30 * DAY;
        let before = clocks.pass_ticks(STEP_STAYS.as_millis() as u64);
        assert_eq!(before.time, Millis(clocks.true_time()));
        let after = clocks.pass(TICK);
        assert_eq!(after.moved_millis, Some(30 * DAY));
        assert_eq!(after.time, Millis(clocks.true_time() + 30 * DAY as u64));
        // And if it goes back then, time runs on from there.
        clocks.wall_offset = 0;
        let began = clocks.observe().time;
        let hour = clocks.pass_ticks(3_600_000);
        assert_eq!(began.until(hour.time), 3_600_000);
        assert!((hour.ahead_millis + 30 * DAY).abs() <= TICK as i64, "{}", hour.ahead_millis);
    }

    #[test]
    fn a_year_back_stops_nothing() {
        let mut clocks = TestClocks::new();
        clocks.wall_offset = -365 * DAY;
        for _ in 0..3 {
            let later = clocks.pass_ticks(3_600_000);
            assert_eq!((later.time, later.ahead_millis), (Millis(clocks.true_time()), -365 * DAY));
        }
    }

    #[test]
    fn small_steps_are_followed_at_once_and_taken_back_slowly() {
        let mut clocks = TestClocks::new();
        clocks.wall_offset = 59_000;
        assert_eq!(clocks.pass(TICK).time, Millis(clocks.true_time() + 59_000));
        clocks.wall_offset = 0;
        let began = clocks.observe().time;
        let later = clocks.pass_ticks(16_000);
        let passed = began.until(later.time);
        assert!((14_900..=15_100).contains(&passed), "{passed} of 16,000 ms have passed");
        let later = clocks.pass_ticks(16 * 60_000);
        assert_eq!(later.time, Millis(clocks.true_time()), "it is where the wall clock is");
    }

    #[test]
    fn steps_every_second_do_not_add_up() {
        let mut clocks = TestClocks::new();
        for step in 1..=3_600 {
            clocks.wall_offset = 30_000 * step;
            let observed = clocks.pass_ticks(1_000);
            let ahead = observed.time.0 as i64 - clocks.true_time() as i64;
            assert!((0..=60_000).contains(&ahead), "after {step} s it is {ahead} ms ahead");
        }
    }

    #[test]
    fn a_start_goes_on_from_the_journal_or_from_a_later_wall_clock() {
        let (floor, elapsed) = (Millis(BEGIN), Duration::from_secs(7));
        let later = Timeline::begin(floor, Millis(BEGIN + 9 * DAY as u64), elapsed);
        assert_eq!(millis(later.newest), Millis(BEGIN + 9 * DAY as u64));
        let mut earlier = Timeline::begin(floor, Millis(1_000), elapsed);
        let observed = earlier.observe(Millis(61_000), elapsed + Duration::from_secs(60), floor);
        assert_eq!(observed.time, Millis(BEGIN + 60_000));
        // A clock that is set after the start, as on a machine that has none of its own, is
        // believed if it is near.
        let observed = earlier.observe(Millis(BEGIN + 70_000), elapsed + Duration::from_secs(61), floor);
        assert_eq!(observed.time, Millis(BEGIN + 70_000));
    }

    proptest! {
        #[test]
        fn time_never_goes_back_and_never_stands_still_for_long(
            steps in prop::collection::vec((-40 * DAY..40 * DAY, 0..20_000u64, 0..4u8), 1..60),
        ) {
            let mut clocks = TestClocks::new();
            let mut newest = clocks.observe().time;
            for (offset, pass, how) in steps {
                match how {
                    0 => clocks.wall_offset = offset,
                    1 => clocks.wall_offset += offset % 90_000,
                    2 => clocks.wall_offset = 0,
                    _ => {}
                }
                let began = (newest, clocks.elapsed);
                for _ in 0..pass / TICK {
                    let now = clocks.pass(TICK).time;
                    prop_assert!(now >= newest);
                    newest = now;
                }
                let passed = (clocks.elapsed - began.1).as_millis() as u64;
                let least = (passed - passed / 16).saturating_sub(STILL_MAX.as_millis() as u64 + TICK);
                prop_assert!(began.0.until(newest) >= least, "{} of {passed}", began.0.until(newest));
            }
        }

        #[test]
        fn time_is_never_far_ahead_of_a_clock_that_was_right_all_along(
            steps in prop::collection::vec((-40 * DAY..40 * DAY, 1..300u64), 1..40),
        ) {
            let mut clocks = TestClocks::new();
            for (offset, seconds) in steps {
                // Wrong for less time than it takes to be believed, then right again.
                clocks.wall_offset = offset;
                clocks.pass_ticks(1_000 * seconds);
                clocks.wall_offset = 0;
                let observed = clocks.pass_ticks(1_000 * seconds);
                prop_assert!(observed.time.0.abs_diff(clocks.true_time()) <= STEP_MAX.as_millis() as u64);
            }
        }

        #[test]
        fn a_wall_clock_that_stays_is_where_time_ends_up_or_behind_it(offset in -40 * DAY..40 * DAY) {
            let mut clocks = TestClocks::new();
            clocks.wall_offset = offset;
            let observed = clocks.pass_ticks(2 * STEP_STAYS.as_millis() as u64 + 16 * 60_000 + 10_000);
            let wall = clocks.true_time().saturating_add_signed(offset);
            if offset >= 0 {
                prop_assert_eq!(observed.time, Millis(wall));
            } else {
                prop_assert!(observed.time.0 >= wall);
            }
        }
    }
}
