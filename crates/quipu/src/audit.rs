//! `quipu audit`: compares the ledger and the journal of a data directory, and recomputes the
//! numbers kept in them.
//!
//! Exit status 0: they agree. 1: something has drifted, each drift listed by name, or the directory
//! is unreadable.

use std::io::Write;
use std::process::ExitCode;

use quipu_engine::SystemLedger;
use quipu_engine::offline::{DirectoryAudit, Drift};

use crate::args::DirectoryArgs;
use crate::json::Json;
use crate::offline_read;
use crate::progress::Progress;
use crate::read_only::ReadOnlyDisk;
use crate::terminal;

/// Audits a directory and prints the report.
pub fn audit(target: &DirectoryArgs, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let data = &target.data;
    let read = || {
        let mut open_ledger = || {
            let progress = Progress::new("verifying the ledger", 0);
            SystemLedger::verify(data, |done, bytes| progress.set(done, bytes))?;
            SystemLedger::open_read_only(data)
        };
        let progress = Progress::for_counters("counting again", 0);
        quipu_engine::offline::audit(&ReadOnlyDisk, data, &mut open_ledger, &mut |done, all| progress.set(done, all))
    };
    let report = offline_read::read("audit", data, read, |report| !report.is_clean())?;
    match target.json {
        true => writeln!(out, "{}", json(target, &report))?,
        false => print(target, &report, out)?,
    }
    Ok(if report.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print(target: &DirectoryArgs, report: &DirectoryAudit, out: &mut impl Write) -> anyhow::Result<()> {
    let DirectoryAudit { counters, sketches, sum, own, drifts, drifts_more } = report;
    writeln!(out, "{}", terminal::bold(&target.data.display().to_string()))?;
    writeln!(out, "counters  {counters}")?;
    if *sketches > 0 {
        writeln!(out, "sketches  {sketches}")?;
    }
    writeln!(out, "sum       {sum}")?;
    writeln!(out, "own       {own}")?;
    if report.is_clean() {
        writeln!(out, "{}", terminal::good("clean"))?;
        return Ok(());
    }
    let mut table = terminal::table(["counter", "what", "expected", "found"]);
    for Drift { counter, what, expected, found: report } in drifts {
        let counter = counter.as_ref().map_or_else(|| "-".to_owned(), |name| terminal::format_name(name));
        table.add_row([&counter, what, expected, report]);
    }
    writeln!(out, "{}", terminal::render_table(table))?;
    if *drifts_more > 0 {
        writeln!(out, "and {drifts_more} more")?;
    }
    let drifted = drifts.len() as u64 + drifts_more;
    let s = if drifted == 1 { "" } else { "s" };
    writeln!(out, "{}", terminal::bad(&format!("{drifted} drift{s}")))?;
    Ok(())
}

fn json(target: &DirectoryArgs, report: &DirectoryAudit) -> Json {
    let drifts = report.drifts.iter().map(|Drift { counter, what, expected, found: report }| {
        Json::Object(vec![
            ("counter", counter.as_ref().map_or(Json::Null, |name| Json::name(name))),
            ("what", Json::text(what)),
            ("expected", Json::text(expected)),
            ("found", Json::text(report)),
        ])
    });
    Json::Object(vec![
        ("data", Json::text(target.data.display())),
        ("clean", Json::Bool(report.is_clean())),
        ("counters", Json::count(report.counters)),
        ("sum", Json::Number(report.sum)),
        ("own", Json::count(report.own)),
        ("drifts", Json::List(drifts.collect())),
        ("drifts_more", Json::count(report.drifts_more)),
    ])
}
