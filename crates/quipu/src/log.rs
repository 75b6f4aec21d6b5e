//! What a server says of itself, and how: a line that people read, or an object that programs read.
//!
//! In: events of engine, server and program (`tracing`), with their facts as fields. Out: stderr.
//!
//! Levels: `ERROR`, somebody has to act (the journal failed, the ledger is damaged, the disk is full); `WARN`, something is not as it should be and goes on (a slow disk, a torn tail that was cut, fewer
//! connections than asked for); `INFO`, a start, a stop, something healed. Nothing is said for a single command or connection.
//!
//! Invariants:
//! - nobody may be left to read it, which stops nothing;
//! - with `json`, stderr is objects only, one a line, whatever happens: a failed start and a panic included; stdout is empty.

use std::io::IsTerminal;
use std::str::FromStr;

use tracing::{Level, error};
use tracing_subscriber::fmt;

/// How it is said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogFormat {
    /// Time, level, words, and facts.
    #[default]
    Text,
    /// One object a line: `timestamp`, `level`, `message`, and a key for each fact.
    Json,
}

impl LogFormat {
    /// As it is written in a configuration.
    pub fn name(self) -> &'static str {
        match self {
            LogFormat::Text => "text",
            LogFormat::Json => "json",
        }
    }

    /// Takes effect, for the rest of the process.
    pub fn install(self) {
        // Without telling of errors: whoever has closed stderr would end the process by that.
        let events = fmt().with_max_level(Level::INFO).with_target(false).with_writer(std::io::stderr);
        let events = events.log_internal_errors(false);
        // A second call would be a mistake of ours that harms nobody.
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

/// A panic is told as everything else is, and ends the process as it does without this.
fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        let reason = panic.to_string();
        error!(reason, place, "a thread panicked, so the process ends");
        std::process::abort();
    }));
}
