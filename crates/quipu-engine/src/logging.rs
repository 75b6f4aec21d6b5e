//! What the engine says of itself, for people and for programs: events, with their facts.
//!
//! Who embeds the engine decides what becomes of them (`tracing`). What must not be missed goes to stderr when nobody has decided.

use std::io::Write;
use std::time::Duration;

/// How long something stays said: what comes and goes more often is told once in so long, and how it is then.
const TRANSITION_EVERY_MIN: Duration = Duration::from_secs(10);

/// Says what somebody has to act on.
pub(crate) fn error(reason: &str, text: &str) {
    if tracing::dispatcher::has_been_set() {
        tracing::error!(reason, "{text}");
    } else {
        // Nobody may be left to read it; a panic here would change the exit status.
        let _ = writeln!(std::io::stderr(), "quipu: {text}: {reason}");
    }
}

/// Something that comes and goes, and is told when it does.
#[derive(Debug, Default)]
pub(crate) struct LogThrottle {
    state: bool,
    logged_at: Option<Duration>,
}

impl LogThrottle {
    /// Whether to say now that it is so, or no longer; `None` if that is known or was said too lately.
    pub fn transition(&mut self, state: bool, now: Duration) -> Option<bool> {
        if state == self.state || self.logged_at.is_some_and(|at| now.saturating_sub(at) < TRANSITION_EVERY_MIN) {
            return None;
        }
        (self.state, self.logged_at) = (state, Some(now));
        Some(state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_flaps_is_told_now_and_then_and_never_wrongly() {
        let mut throttle = LogThrottle::default();
        let at = |seconds| Duration::from_secs(seconds);
        assert_eq!(throttle.transition(false, at(0)), None, "all is well, which is no news");
        assert_eq!(throttle.transition(true, at(1)), Some(true));
        assert_eq!(throttle.transition(true, at(2)), None);
        assert_eq!(throttle.transition(false, at(3)), None, "too soon");
        assert_eq!(throttle.transition(true, at(12)), None, "nothing has changed since it was told");
        assert_eq!(throttle.transition(false, at(13)), Some(false));
    }
}
