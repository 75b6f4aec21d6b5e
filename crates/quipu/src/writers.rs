//! `quipu writers`: prints the incarnations of a node, and the cells of each on a shared store.

use std::io::Write;
use std::process::ExitCode;

use quipu_engine::SystemLedger;
use quipu_engine::offline::{DirectoryWriters, IncarnationTotals};
use quipu_model::Incarnation;

use crate::args::DirectoryArgs;
use crate::inspect::{DirectoryHolder, holder};
use crate::json::Json;
use crate::offline_read;
use crate::read_only::ReadOnlyDisk;
use crate::terminal;

/// Prints the writers of a directory.
pub fn writers(target: &DirectoryArgs, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let data = &target.data;
    let read = || quipu_engine::offline::writers(&ReadOnlyDisk, data, &mut || SystemLedger::open_read_only(data));
    let report = offline_read::read("look at the writers of", data, read, |_| false)?;
    let holder = holder(data);
    match target.json {
        true => writeln!(out, "{}", json(target, &report, holder))?,
        false => print(target, &report, holder, out)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn print(
    target: &DirectoryArgs,
    report: &DirectoryWriters,
    holder: Option<DirectoryHolder>,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let DirectoryWriters { node, incarnation, clean, incarnations } = report;
    let stop = match (holder, clean) {
        (Some(holder), _) => format!("none, {holder} is running"),
        (None, true) => "a clean stop".to_owned(),
        (None, false) => "a crash".to_owned(),
    };
    writeln!(out, "{}", terminal::bold(&target.data.display().to_string()))?;
    writeln!(out, "node         {node}")?;
    writeln!(out, "incarnation  {incarnation}")?;
    writeln!(out, "last stop    {stop}")?;
    if incarnations.is_empty() {
        writeln!(out, "nothing was said on a shared store")?;
        return Ok(());
    }
    let mut table = terminal::table(["incarnation", "life", "counters", "cells", "unsettled", "sum", "unconfirmed"]);
    for (writer, IncarnationTotals { counters, cells, unsettled, sum, unconfirmed }) in incarnations {
        let numbers = [counters, cells, unsettled].map(u64::to_string);
        let [counters, cells, unsettled] = numbers;
        let label = incarnation_label(*writer, *incarnation).to_owned();
        table.add_row([
            writer.to_string(),
            label,
            counters,
            cells,
            unsettled,
            sum.to_string(),
            unconfirmed.to_string(),
        ]);
    }
    writeln!(out, "{}", terminal::render_table(table))?;
    let verdict = match incarnations.values().map(|writer| writer.unsettled).sum() {
        0u64 => terminal::good("everything is settled"),
        1 => terminal::bold("1 cell is not settled"),
        cells => terminal::bold(&format!("{cells} cells are not settled")),
    };
    writeln!(out, "{verdict}")?;
    Ok(())
}

fn json(target: &DirectoryArgs, report: &DirectoryWriters, holder: Option<DirectoryHolder>) -> Json {
    let incarnations = report.incarnations.iter().map(|(incarnation, writer)| {
        Json::Object(vec![
            ("incarnation", Json::text(incarnation)),
            ("life", Json::text(incarnation_label(*incarnation, report.incarnation))),
            ("counters", Json::count(writer.counters)),
            ("cells", Json::count(writer.cells)),
            ("unsettled", Json::count(writer.unsettled)),
            ("sum", Json::Number(writer.sum)),
            ("unconfirmed", Json::Number(writer.unconfirmed)),
        ])
    });
    Json::Object(vec![
        ("data", Json::text(target.data.display())),
        ("node", Json::text(report.node)),
        ("incarnation", Json::text(report.incarnation)),
        ("clean", Json::Bool(report.clean)),
        ("process", holder.and_then(|holder| holder.pid).map_or(Json::Null, |pid| Json::count(pid.into()))),
        ("writers", Json::List(incarnations.collect())),
    ])
}

/// The state of an incarnation in words.
fn incarnation_label(writer: Incarnation, present: Incarnation) -> &'static str {
    if writer == present { "present" } else { "past" }
}
