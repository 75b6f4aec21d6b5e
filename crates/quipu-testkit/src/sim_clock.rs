//! Provides a clock that stands still until a test moves it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use quipu_model::{Clock, Millis};

/// A clock under a test's control. Clones show the same time.
#[derive(Debug, Clone, Default)]
pub struct SimClock {
    state: Arc<ClockState>,
}

#[derive(Debug, Default)]
struct ClockState {
    wall_millis: AtomicU64,
    elapsed_nanos: AtomicU64,
}

impl SimClock {
    /// Creates a clock that shows this time of day.
    pub fn new(wall: Millis) -> SimClock {
        let clock = SimClock::default();
        clock.set_wall(wall);
        clock
    }

    /// Makes the time of day jump, forwards or back; elapsed time stays.
    pub fn set_wall(&self, wall: Millis) {
        self.state.wall_millis.store(wall.0, Ordering::SeqCst);
    }

    /// Lets time pass on both clocks.
    pub fn advance(&self, by: Duration) {
        let (nanos, millis) = (u64::try_from(by.as_nanos()), u64::try_from(by.as_millis()));
        self.state.elapsed_nanos.fetch_add(nanos.unwrap_or(u64::MAX / 2), Ordering::SeqCst);
        self.state.wall_millis.fetch_add(millis.unwrap_or(u64::MAX / 2), Ordering::SeqCst);
    }
}

impl Clock for SimClock {
    fn wall(&self) -> Millis {
        Millis(self.state.wall_millis.load(Ordering::SeqCst))
    }

    fn elapsed(&self) -> Duration {
        Duration::from_nanos(self.state.elapsed_nanos.load(Ordering::SeqCst))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wall_jumps_and_elapsed_time_does_not() {
        let clock = SimClock::new(Millis(5_000));
        clock.clone().advance(Duration::from_millis(20));
        assert_eq!((clock.wall(), clock.elapsed()), (Millis(5_020), Duration::from_millis(20)));
        clock.set_wall(Millis(1_000));
        assert_eq!((clock.wall(), clock.elapsed()), (Millis(1_000), Duration::from_millis(20)));
    }
}
