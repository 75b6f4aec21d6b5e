//! Time.

use std::time::Duration;

use crate::Millis;

/// The two clocks a machine has.
pub trait Clock: Send + Sync {
    /// The time of day. May jump, forwards and back.
    fn wall(&self) -> Millis;

    /// Time since some fixed point. Never goes back; for measuring how long something took.
    fn elapsed(&self) -> Duration;
}
