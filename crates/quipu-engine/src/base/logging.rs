//! Logs the engine's events with `tracing`, for people and for programs.
//!
//! The embedding program decides where they go. Without a subscriber, errors that need action go to
//! stderr.

use std::io::Write;
use std::time::Duration;

/// Shortest time between two log lines about one state; a flapping state is logged once in that
/// time.
const TRANSITION_EVERY_MIN: Duration = Duration::from_secs(10);

/// Logs an error that needs action.
pub(crate) fn error(reason: &str, text: &str) {
    if tracing::dispatcher::has_been_set() {
        tracing::error!(reason, "{text}");
    } else {
        // Stderr may be closed; a panic here would change the exit status.
        let _ = writeln!(std::io::stderr(), "quipu: {text}: {reason}");
    }
}

/// A two-valued state that is logged when it changes.
#[derive(Debug, Default)]
pub(crate) struct LogThrottle {
    state: bool,
    logged_at: Option<Duration>,
}

impl LogThrottle {
    /// Returns the new state if it is to be logged now; `None` if it is unchanged or was logged too
    /// recently.
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
    fn a_flapping_state_is_logged_now_and_then_and_never_wrongly() {
        let mut throttle = LogThrottle::default();
        let at = |seconds| Duration::from_secs(seconds);
        assert_eq!(throttle.transition(false, at(0)), None, "all is well, which is no news");
        assert_eq!(throttle.transition(true, at(1)), Some(true));
        assert_eq!(throttle.transition(true, at(2)), None);
        assert_eq!(throttle.transition(false, at(3)), None, "too soon");
        assert_eq!(throttle.transition(true, at(12)), None, "nothing has changed since the last log line");
        assert_eq!(throttle.transition(false, at(13)), Some(false));
    }
}
