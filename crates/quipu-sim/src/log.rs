//! Records the events in order, for the reader of a failed seed.
//!
//! Every scheduler step has a number, its stamp; the log keeps the last lines with their stamps. A
//! run records no lines by default. The same seed repeats the same run, so a failed seed runs once
//! more for its log.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Lines kept: enough to follow a violation back to its cause.
const LINES_MAX: usize = 200;

/// The event log. Clones share the lines.
#[derive(Clone, Default)]
pub struct EventLog {
    stamp: Arc<AtomicU64>,
    lines: Option<Arc<Mutex<VecDeque<String>>>>,
    lines_max: usize,
}

impl EventLog {
    /// Creates a log that counts stamps and keeps no lines.
    pub fn disabled() -> EventLog {
        EventLog::default()
    }

    /// Creates a log that keeps the last lines.
    pub fn bounded() -> EventLog {
        EventLog { lines: Some(Arc::default()), lines_max: LINES_MAX, ..EventLog::default() }
    }

    /// Creates a log that keeps all lines, to study one seed.
    pub fn unbounded() -> EventLog {
        EventLog { lines_max: usize::MAX, ..EventLog::bounded() }
    }

    /// The current stamp.
    pub fn stamp(&self) -> u64 {
        self.stamp.load(Ordering::Relaxed)
    }

    /// Advances to the next stamp.
    pub fn tick(&self) {
        self.stamp.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns true if the log keeps lines.
    pub fn is_enabled(&self) -> bool {
        self.lines.is_some()
    }

    /// Records an event if the log keeps lines.
    pub fn write_line(&self, what: impl FnOnce() -> String) {
        let Some(lines) = &self.lines else { return };
        let line = format!("{:>6}  {}", self.stamp(), what());
        let mut lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() == self.lines_max {
            lines.pop_front();
        }
        lines.push_back(line);
    }

    /// The kept lines.
    pub fn lines(&self) -> Vec<String> {
        let lines = self.lines.as_ref().map(|lines| lines.lock().unwrap_or_else(PoisonError::into_inner));
        lines.map(|lines| lines.iter().cloned().collect()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_kept_with_their_stamps() {
        let log = EventLog::bounded();
        for event in 0..LINES_MAX + 2 {
            log.tick();
            log.clone().write_line(|| format!("event {event}"));
        }
        let lines = log.lines();
        assert_eq!(lines.len(), LINES_MAX);
        assert_eq!(lines[0].trim(), "3  event 2");
        EventLog::disabled().write_line(|| panic!("nobody reads it"));
    }
}
