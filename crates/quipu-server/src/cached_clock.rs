//! Caches the time for a worker's round.
//!
//! Reading the system clock takes as long as an add. Commands within the same fraction of a
//! millisecond can share one time.

use std::cell::Cell;

use quipu_engine::Engine;
use quipu_model::Millis;

/// Most turns that share one time: a round can take a while.
const TURNS_MAX: u32 = 16;

thread_local! {
    /// Turns that may still use this time, and the time.
    static CACHED_TIME: Cell<(u32, Millis)> = const { Cell::new((0, Millis(0))) };
}

/// The engine's time, cached for this thread.
pub(crate) fn now(engine: &Engine) -> Millis {
    let (left, now) = CACHED_TIME.get();
    let (left, now) = if left == 0 { (TURNS_MAX, engine.now()) } else { (left, now) };
    CACHED_TIME.set((left - 1, now));
    now
}

/// Drops the cached time at the begin of a round.
pub(crate) fn invalidate() {
    CACHED_TIME.set((0, Millis(0)));
}

#[cfg(test)]
mod tests {
    use quipu_engine::Options;

    use super::*;

    #[test]
    fn turns_in_a_row_share_a_time_and_others_ask_again() {
        let dir = tempfile::tempdir().unwrap();
        let engine = Engine::open(Options::new(dir.path())).unwrap();
        invalidate();
        let began = now(&engine);
        let until = |millis| while engine.now() < Millis(millis) {};
        until(began.0 + 2);
        assert!((1..TURNS_MAX).all(|_| now(&engine) == began));
        assert!(now(&engine) > began, "that number of turns takes time");
        let later = now(&engine);
        until(later.0 + 2);
        invalidate();
        assert!(now(&engine) > later);
    }
}
