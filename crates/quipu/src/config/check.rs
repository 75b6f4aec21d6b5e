//! `quipu config check`: the effective configuration, what was said at run time included, and every mistake with its line.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use quipu_engine::journal::control::CONTROL_FILE;
use quipu_engine::survey::namespaces;
use quipu_engine::{Puts, SystemLedger};

use super::Effective;
use crate::args::ServeFlags;
use crate::read_only::ReadOnlyDisk;
use crate::show::{self, table};
use crate::survey;

/// Prints the configuration to `out` and the mistakes to stderr.
pub fn check(flags: &ServeFlags, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let mut effective = Effective::resolve(flags);
    let data = effective.configuration.engine.data.clone();
    // A directory without a journal, or none at all, has nothing to say; one that cannot be read is no mistake of the configuration.
    let unread = match has_journal(&data) {
        true => match said_at_run_time(&data) {
            Ok(puts) => {
                effective.take_run_time(&puts);
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
    writeln!(out, "{}", show::lines(rows))?;
    if let Some(error) = unread {
        writeln!(
            out,
            "{}",
            show::bad(&format!("what was said at run time is not shown: {}", crate::chain::one_line(&error)))
        )?;
    }
    if effective.mistakes.is_empty() {
        writeln!(out, "{}", show::good("no mistakes"))?;
        return Ok(ExitCode::SUCCESS);
    }
    out.flush()?;
    tell(&effective);
    Ok(ExitCode::FAILURE)
}

/// Whether there is a journal.
fn has_journal(data: &Path) -> bool {
    data.join(CONTROL_FILE).exists()
}

/// What was said of namespaces at run time, by a server that may be running.
fn said_at_run_time(data: &Path) -> anyhow::Result<Puts> {
    let look = || namespaces(&ReadOnlyDisk, data, &mut || SystemLedger::look(data));
    survey::read("look at", data, look, |_| false)
}

/// Tells every mistake on stderr.
pub fn tell(effective: &Effective) {
    for mistake in &effective.mistakes {
        eprintln!("{mistake}");
    }
    let (count, s) = (effective.mistakes.len(), if effective.mistakes.len() == 1 { "" } else { "s" });
    eprintln!("quipu: {count} mistake{s} in the configuration");
}
