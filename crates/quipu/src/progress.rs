//! How far a long copy or check has come, on stderr, for whoever watches a terminal.

use indicatif::{ProgressBar, ProgressStyle};

/// What it is, how much is done of how much, how fast, and how long it will take.
const TEMPLATE: &str = "{msg} [{bar:30}] {binary_bytes}/{binary_total_bytes}, {binary_bytes_per_sec}, {eta}";

/// The same, where counters are counted.
const COUNTERS_TEMPLATE: &str = "{msg} [{bar:30}] {human_pos}/{human_len}, {per_sec}, {eta}";

/// The same, where nobody knows how many there are.
const MANY_TEMPLATE: &str = "{spinner} {msg} {human_pos}, {per_sec}";

/// The same, where steps of much the same length are counted, each with a name.
const STEPS_TEMPLATE: &str = "[{bar:30}] {human_pos}/{human_len}, {eta} left: {wide_msg}";

/// A bar, gone from the screen when it is dropped. Where stderr is no terminal there is none.
pub struct Progress(ProgressBar);

impl Progress {
    /// Begins, at nothing of so many bytes.
    pub fn new(message: &'static str, bytes: u64) -> Progress {
        Progress::with_template(TEMPLATE, message, bytes)
    }

    /// Begins, at nothing of so many counters.
    pub fn for_counters(message: &'static str, counters: u64) -> Progress {
        Progress::with_template(COUNTERS_TEMPLATE, message, counters)
    }

    /// Begins, at none of who knows how many counters.
    pub fn for_unknown_count(message: &'static str) -> Progress {
        Progress::with_template(MANY_TEMPLATE, message, 0)
    }

    /// Begins, at nothing of so many steps.
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

    /// So many are done, of so many.
    pub fn set(&self, done: u64, all: u64) {
        self.0.set_length(all);
        self.0.set_position(done);
    }

    /// So many more are done.
    pub fn add(&self, more: u64) {
        self.0.inc(more);
    }

    /// Says what is being done.
    pub fn set_message(&self, message: String) {
        self.0.set_message(message);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
