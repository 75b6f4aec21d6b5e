//! `quipu writers`: which lives a node has had, and what each of them still says on a shared store.

use std::io::Write;
use std::process::ExitCode;

use quipu_engine::SystemLedger;
use quipu_engine::survey::{Life, Writers};
use quipu_model::Incarnation;

use crate::args::Directory;
use crate::inspect::{Holder, holder};
use crate::json::Json;
use crate::read_only::ReadOnlyDisk;
use crate::show;
use crate::survey;

/// Prints what the directory says.
pub fn writers(target: &Directory, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let data = &target.data;
    let read = || quipu_engine::survey::writers(&ReadOnlyDisk, data, &mut || SystemLedger::look(data));
    let found = survey::read("look at the writers of", data, read, |_| false)?;
    let holder = holder(data);
    match target.json {
        true => writeln!(out, "{}", json(target, &found, holder))?,
        false => print(target, &found, holder, out)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn print(target: &Directory, found: &Writers, holder: Option<Holder>, out: &mut impl Write) -> anyhow::Result<()> {
    let Writers { node, incarnation, clean, lives } = found;
    let stop = match (holder, clean) {
        (Some(holder), _) => format!("none, {holder} is running"),
        (None, true) => "a clean stop".to_owned(),
        (None, false) => "a crash".to_owned(),
    };
    writeln!(out, "{}", show::bold(&target.data.display().to_string()))?;
    writeln!(out, "node         {node}")?;
    writeln!(out, "incarnation  {incarnation}")?;
    writeln!(out, "last stop    {stop}")?;
    if lives.is_empty() {
        writeln!(out, "nothing was said on a shared store")?;
        return Ok(());
    }
    let mut table = show::table(["incarnation", "life", "counters", "cells", "unsettled", "sum", "unconfirmed"]);
    for (life, Life { counters, cells, unsettled, sum, unconfirmed }) in lives {
        let numbers = [counters, cells, unsettled].map(u64::to_string);
        let [counters, cells, unsettled] = numbers;
        let which = which(*life, *incarnation).to_owned();
        table.add_row([life.to_string(), which, counters, cells, unsettled, sum.to_string(), unconfirmed.to_string()]);
    }
    writeln!(out, "{}", show::lines(table))?;
    let verdict = match lives.values().map(|life| life.unsettled).sum() {
        0u64 => show::good("everything is settled"),
        1 => show::bold("1 cell is not settled"),
        cells => show::bold(&format!("{cells} cells are not settled")),
    };
    writeln!(out, "{verdict}")?;
    Ok(())
}

fn json(target: &Directory, found: &Writers, holder: Option<Holder>) -> Json {
    let lives = found.lives.iter().map(|(incarnation, life)| {
        Json::Object(vec![
            ("incarnation", Json::text(incarnation)),
            ("life", Json::text(which(*incarnation, found.incarnation))),
            ("counters", Json::count(life.counters)),
            ("cells", Json::count(life.cells)),
            ("unsettled", Json::count(life.unsettled)),
            ("sum", Json::Number(life.sum)),
            ("unconfirmed", Json::Number(life.unconfirmed)),
        ])
    });
    Json::Object(vec![
        ("data", Json::text(target.data.display())),
        ("node", Json::text(found.node)),
        ("incarnation", Json::text(found.incarnation)),
        ("clean", Json::Bool(found.clean)),
        ("process", holder.and_then(|holder| holder.pid).map_or(Json::Null, |pid| Json::count(pid.into()))),
        ("writers", Json::List(lives.collect())),
    ])
}

/// Which life of the node it is.
fn which(life: Incarnation, present: Incarnation) -> &'static str {
    if life == present { "present" } else { "past" }
}
