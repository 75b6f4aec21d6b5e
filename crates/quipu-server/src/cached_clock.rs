//! The time at which a worker serves: asked for once, or a few times, in a round.
//!
//! To ask the system takes as long as to count, and whoever is served within the same fraction of a millisecond may be told the same.

use std::cell::Cell;

use quipu_engine::Engine;
use quipu_model::Millis;

/// So many turns may share a time: a round can take a while.
const TURNS_MAX: u32 = 16;

thread_local! {
    /// How many more turns may have this time.
    static CACHED_TIME: Cell<(u32, Millis)> = const { Cell::new((0, Millis(0))) };
}

/// The engine's time, as this thread has last asked for it.
pub(crate) fn now(engine: &Engine) -> Millis {
    let (left, now) = CACHED_TIME.get();
    let (left, now) = if left == 0 { (TURNS_MAX, engine.now()) } else { (left, now) };
    CACHED_TIME.set((left - 1, now));
    now
}

/// The moment is over: another round begins.
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
        assert!(now(&engine) > began, "so many turns are no moment");
        let later = now(&engine);
        until(later.0 + 2);
        invalidate();
        assert!(now(&engine) > later);
    }
}
