//! Writes the server's log: a line for people, or a JSON object for programs.
//!
//! In: events of engine, server and program (`tracing`), with their facts as fields. Out: stderr.
//!
//! | level | meaning | examples |
//! |---|---|---|
//! | `ERROR` | needs action | the journal failed, the ledger is damaged, the disk is full |
//! | `WARN` | abnormal, not fatal | a slow disk, a torn tail that was cut, fewer connections than wanted |
//! | `INFO` | normal | a start, a stop, something healed |
//!
//! No event is logged for a single command or connection.
//!
//! Invariants:
//! - a closed stderr stops nothing;
//! - with `json`, stderr has only objects, one per line, in every case: a failed start and a panic
//!   included; stdout is empty.

use std::io::IsTerminal;
use std::str::FromStr;

use tracing::{Level, error};
use tracing_subscriber::fmt;

/// The format of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogFormat {
    /// Time, level, words, and facts.
    #[default]
    Text,
    /// One object per line: `timestamp`, `level`, `message`, and a key for each fact.
    Json,
}

impl LogFormat {
    /// Its name in a configuration.
    pub fn name(self) -> &'static str {
        match self {
            LogFormat::Text => "text",
            LogFormat::Json => "json",
        }
    }

    /// Takes effect for the rest of the process.
    pub fn install(self) {
        // Without reports of write errors: a closed stderr would then end the process.
        let events = fmt().with_max_level(Level::INFO).with_target(false).with_writer(std::io::stderr);
        let events = events.log_internal_errors(false);
        // A second call would be a harmless mistake of ours.
        let _ = match self {
            LogFormat::Text => events.with_ansi(std::io::stderr().is_terminal()).compact().try_init(),
            LogFormat::Json => {
                log_panics();
                events.json().flatten_event(true).with_current_span(false).with_span_list(false).try_init()
            }
        };
    }
}

impl FromStr for LogFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<LogFormat, String> {
        match text {
            "text" => Ok(LogFormat::Text),
            "json" => Ok(LogFormat::Json),
            other => Err(format!("'{other}' is not text or json")),
        }
    }
}

/// Logs a panic like every other event. The process ends as it does without this.
fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        let reason = panic.to_string();
        error!(reason, place, "a thread panicked, so the process ends");
        std::process::abort();
    }));
}
