//! `quipu audit`: do ledger and journal of a data directory say the same, and are the numbers kept in them right?
//!
//! Exit status 0: they are; 1: something has drifted, each thing told by name, or the directory could not be read.

use std::io::Write;
use std::process::ExitCode;

use quipu_engine::SystemLedger;
use quipu_engine::survey::{Audit, Drift};

use crate::args::Directory;
use crate::json::Json;
use crate::progress::Progress;
use crate::read_only::ReadOnlyDisk;
use crate::show;
use crate::survey;

/// Prints what was found.
pub fn audit(target: &Directory, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let data = &target.data;
    let read = || {
        let mut open_ledger = || {
            let progress = Progress::new("verifying the ledger", 0);
            SystemLedger::verify(data, |done, bytes| progress.set(done, bytes))?;
            SystemLedger::look(data)
        };
        let progress = Progress::of_counters("counting again", 0);
        quipu_engine::survey::audit(&ReadOnlyDisk, data, &mut open_ledger, &mut |done, all| progress.set(done, all))
    };
    let found = survey::read("audit", data, read, |found| !found.is_clean())?;
    match target.json {
        true => writeln!(out, "{}", json(target, &found))?,
        false => print(target, &found, out)?,
    }
    Ok(if found.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print(target: &Directory, found: &Audit, out: &mut impl Write) -> anyhow::Result<()> {
    let Audit { counters, sketches, sum, own, drifts, drifts_more } = found;
    writeln!(out, "{}", show::bold(&target.data.display().to_string()))?;
    writeln!(out, "counters  {counters}")?;
    if *sketches > 0 {
        writeln!(out, "sketches  {sketches}")?;
    }
    writeln!(out, "sum       {sum}")?;
    writeln!(out, "own       {own}")?;
    if found.is_clean() {
        writeln!(out, "{}", show::good("clean"))?;
        return Ok(());
    }
    let mut table = show::table(["counter", "what", "expected", "found"]);
    for Drift { counter, what, expected, found } in drifts {
        let counter = counter.as_ref().map_or_else(|| "-".to_owned(), |name| show::name(name));
        table.add_row([&counter, what, expected, found]);
    }
    writeln!(out, "{}", show::lines(table))?;
    if *drifts_more > 0 {
        writeln!(out, "and {drifts_more} more")?;
    }
    let drifted = drifts.len() as u64 + drifts_more;
    let s = if drifted == 1 { "" } else { "s" };
    writeln!(out, "{}", show::bad(&format!("{drifted} drift{s}")))?;
    Ok(())
}

fn json(target: &Directory, found: &Audit) -> Json {
    let drifts = found.drifts.iter().map(|Drift { counter, what, expected, found }| {
        Json::Object(vec![
            ("counter", counter.as_ref().map_or(Json::Null, |name| Json::name(name))),
            ("what", Json::text(what)),
            ("expected", Json::text(expected)),
            ("found", Json::text(found)),
        ])
    });
    Json::Object(vec![
        ("data", Json::text(target.data.display())),
        ("clean", Json::Bool(found.is_clean())),
        ("counters", Json::count(found.counters)),
        ("sum", Json::Number(found.sum)),
        ("own", Json::count(found.own)),
        ("drifts", Json::List(drifts.collect())),
        ("drifts_more", Json::count(found.drifts_more)),
    ])
}
