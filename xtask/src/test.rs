//! `cargo xtask test`: all parts in order, and what they found.

use std::time::Duration;

use anyhow::bail;
use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};

use crate::parts::{Found, Work, chosen};
use crate::patches::Proving;
use crate::run::now;

/// Kills over all modes unless told otherwise: minutes, not hours.
const KILLS_DEFAULT: usize = 120;

/// How long all parts may take together, unless more kills than that were asked for.
const TIME_MAX: Duration = Duration::from_secs(45 * 60);

/// What to test.
pub struct Options {
    /// Kills over all modes.
    pub kills: usize,
    /// Only this part.
    pub only: Option<String>,
}

impl Default for Options {
    fn default() -> Options {
        Options { kills: KILLS_DEFAULT, only: None }
    }
}

/// Runs the parts; an error if one failed.
pub fn test(options: &Options) -> anyhow::Result<()> {
    let (mut done, mut proving): (Vec<(&str, Duration, Found)>, _) = (Vec::new(), None);
    for part in chosen(options.only.as_deref())? {
        println!("{} …", part.name);
        let began = now();
        // Once everything is built: before that the cores have enough to do.
        if options.only.is_none() && proving.is_none() && matches!(part.work, Work::Tests(_)) {
            proving = Some(Proving::find(None)?.begin_early());
        }
        // What cannot even be run has failed like what ran and failed.
        let found = part.run(options.kills, &mut proving).unwrap_or_else(|error| Found {
            failed: 1,
            failure: Some(format!("{error:#}")),
            ..Found::default()
        });
        let took = began.elapsed();
        let state = if found.failure.is_some() { "FAILED" } else { "ok" };
        println!("{} {state}, {} passed, {} failed, {} min", part.name, found.passed, found.failed, minutes(took));
        let failure = found.failure.clone();
        done.push((part.name, took, found));
        if let Some(failure) = failure {
            println!("\n{failure}\n");
            print_summary(&done);
            bail!("{} failed", part.name);
        }
    }
    print_summary(&done);
    let total: Duration = done.iter().map(|(_, took, _)| *took).sum();
    if total > TIME_MAX && options.kills <= KILLS_DEFAULT {
        bail!("all holds, but it took {} minutes; {} are the bound", minutes(total), minutes(TIME_MAX));
    }
    Ok(())
}

fn print_summary(done: &[(&str, Duration, Found)]) {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(["part", "minutes", "passed", "failed", "proof"]);
    for (name, took, found) in done {
        let counts = if found.passed + found.failed == 0 {
            [String::new(), String::new()]
        } else {
            [found.passed.to_string(), found.failed.to_string()]
        };
        let [passed, failed] = counts;
        let state = if found.failure.is_some() { "FAILED".to_owned() } else { found.proofs.join("\n") };
        table.add_row([(*name).to_owned(), minutes(*took), passed, failed, state]);
    }
    for column in 1..=3 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let total: Duration = done.iter().map(|(_, took, _)| *took).sum();
    let count = |of: fn(&Found) -> usize| done.iter().map(|(_, _, found)| of(found)).sum::<usize>();
    println!("\n{}\n", table.trim_fmt());
    let failed = count(|found| found.failed.max(usize::from(found.failure.is_some())));
    println!("{} minutes", minutes(total));
    println!("{} passed, {failed} failed", count(|found| found.passed));
}

fn minutes(time: Duration) -> String {
    format!("{:.1}", time.as_secs_f64() / 60.0)
}
