//! Shows the progress of a long copy or check on stderr, if that is a terminal.

use indicatif::{ProgressBar, ProgressStyle};

/// Message, bytes done and in all, rate, and remaining time.
const TEMPLATE: &str = "{msg} [{bar:30}] {binary_bytes}/{binary_total_bytes}, {binary_bytes_per_sec}, {eta}";

/// The same for counters.
const COUNTERS_TEMPLATE: &str = "{msg} [{bar:30}] {human_pos}/{human_len}, {per_sec}, {eta}";

/// The same for an unknown number of counters.
const MANY_TEMPLATE: &str = "{spinner} {msg} {human_pos}, {per_sec}";

/// The same for named steps of similar length.
#[cfg(feature = "bench")]
const STEPS_TEMPLATE: &str = "[{bar:30}] {human_pos}/{human_len}, {eta} left: {wide_msg}";

/// A progress bar, removed from the screen on drop. Without a terminal on stderr there is none.
pub struct Progress(ProgressBar);

impl Progress {
    /// Begins a bar of `bytes` bytes.
    pub fn new(message: &'static str, bytes: u64) -> Progress {
        Progress::with_template(TEMPLATE, message, bytes)
    }

    /// Begins a bar of `counters` counters.
    pub fn for_counters(message: &'static str, counters: u64) -> Progress {
        Progress::with_template(COUNTERS_TEMPLATE, message, counters)
    }

    /// Begins a display for an unknown number of counters.
    pub fn for_unknown_count(message: &'static str) -> Progress {
        Progress::with_template(MANY_TEMPLATE, message, 0)
    }

    /// Begins a bar of `steps` steps.
    #[cfg(feature = "bench")]
    pub fn for_steps(message: &'static str, steps: u64) -> Progress {
        Progress::with_template(STEPS_TEMPLATE, message, steps)
    }

    fn with_template(template: &str, message: &'static str, all: u64) -> Progress {
        let bar = ProgressBar::new(all).with_message(message);
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        Progress(bar)
    }

    /// Sets the amount done and the whole amount.
    pub fn set(&self, done: u64, all: u64) {
        self.0.set_length(all);
        self.0.set_position(done);
    }

    /// Adds to the amount done.
    pub fn add(&self, more: u64) {
        self.0.inc(more);
    }

    /// Sets the message.
    #[cfg(feature = "bench")]
    pub fn set_message(&self, message: String) {
        self.0.set_message(message);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
