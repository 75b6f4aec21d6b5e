//! `quipu config check`: prints the effective configuration, run-time settings included, and every
//! mistake with its line.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use quipu_engine::journal::control::CONTROL_FILE;
use quipu_engine::offline::runtime_settings;
use quipu_engine::{RuntimeSettingsMap, SystemLedger};

use super::EffectiveConfig;
use crate::args::ServeArgs;
use crate::offline_read;
use crate::read_only::ReadOnlyDisk;
use crate::terminal::{self, table};

/// Prints the configuration to `out` and the mistakes to stderr.
pub fn check(flags: &ServeArgs, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let mut effective = EffectiveConfig::resolve(flags);
    let data = effective.configuration.engine.data.clone();
    // A directory without a journal, or a missing one, has no run-time settings. An unreadable one
    // is no mistake of the configuration.
    let unread = match has_journal(&data) {
        true => match read_runtime_settings(&data) {
            Ok(puts) => {
                effective.apply_runtime_settings(&puts);
                None
            }
            Err(error) => Some(error),
        },
        false => None,
    };
    let mut rows = table(["key", "value", "from"]);
    for (key, value, origin) in effective.lines() {
        rows.add_row([key, value, origin.to_string()]);
    }
    writeln!(out, "{}", terminal::render_table(rows))?;
    if let Some(error) = unread {
        writeln!(
            out,
            "{}",
            terminal::bad(&format!("what was said at run time is not shown: {}", crate::chain::one_line(&error)))
        )?;
    }
    if effective.mistakes.is_empty() {
        writeln!(out, "{}", terminal::good("no mistakes"))?;
        return Ok(ExitCode::SUCCESS);
    }
    out.flush()?;
    print_mistakes(&effective);
    Ok(ExitCode::FAILURE)
}

/// Returns true if the directory has a journal.
fn has_journal(data: &Path) -> bool {
    data.join(CONTROL_FILE).exists()
}

/// The run-time settings of namespaces, in the directory of a server that may be running.
fn read_runtime_settings(data: &Path) -> anyhow::Result<RuntimeSettingsMap> {
    let read_namespaces = || runtime_settings(&ReadOnlyDisk, data, &mut || SystemLedger::open_read_only(data));
    offline_read::read("look at", data, read_namespaces, |_| false)
}

/// Prints every mistake on stderr.
pub fn print_mistakes(effective: &EffectiveConfig) {
    for mistake in &effective.mistakes {
        eprintln!("{mistake}");
    }
    let (count, s) = (effective.mistakes.len(), if effective.mistakes.len() == 1 { "" } else { "s" });
    eprintln!("quipu: {count} mistake{s} in the configuration");
}
