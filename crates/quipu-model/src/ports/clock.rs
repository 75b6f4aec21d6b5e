//! Port to the clocks.

use std::time::Duration;

use crate::Millis;

/// The two clocks of a machine.
pub trait Clock: Send + Sync {
    /// Returns the time of day. May jump forwards and back.
    fn wall(&self) -> Millis;

    /// Returns the time since some fixed point. Never goes back; for measuring durations.
    fn elapsed(&self) -> Duration;
}
