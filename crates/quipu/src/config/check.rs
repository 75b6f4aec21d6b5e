//! `quipu config check`: the effective configuration, and every mistake with its line.

use std::io::Write;
use std::process::ExitCode;

use super::Effective;
use crate::args::ServeFlags;
use crate::show::{self, table};

/// Prints the configuration to `out` and the mistakes to stderr.
pub fn check(flags: &ServeFlags, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let effective = Effective::resolve(flags);
    let mut rows = table(["key", "value", "from"]);
    for (key, value, origin) in effective.lines() {
        rows.add_row([key, value, origin.to_string()]);
    }
    writeln!(out, "{}", show::lines(rows))?;
    if effective.mistakes.is_empty() {
        writeln!(out, "{}", show::good("no mistakes"))?;
        return Ok(ExitCode::SUCCESS);
    }
    out.flush()?;
    tell(&effective);
    Ok(ExitCode::FAILURE)
}

/// Tells every mistake on stderr.
pub fn tell(effective: &Effective) {
    for mistake in &effective.mistakes {
        eprintln!("{mistake}");
    }
    let (count, s) = (effective.mistakes.len(), if effective.mistakes.len() == 1 { "" } else { "s" });
    eprintln!("quipu: {count} mistake{s} in the configuration");
}
