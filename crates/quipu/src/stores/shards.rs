//! `quipu shards`: what each writer says of one counter, in a store.

use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use anyhow::Context;
use quipu_model::shared::{CellId, Held, Seen, Snapshot, Spent};
use quipu_model::{Epoch, Name};

use crate::backends::StoreUrl;
use crate::json::Json;
use crate::show;
use crate::stores::args::Shards;
use crate::stores::ask::wait;

/// Prints the row of a counter. Exit status 1 if there is no such counter.
pub fn shards(flags: &Shards, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let url = StoreUrl::new(&flags.store.store).context("--store")?;
    let store = url.open()?;
    let name = Name::new(flags.name.as_bytes())?;
    let seen: Seen = wait(store.read(name)).with_context(|| format!("read {} in {url}", show::name(name.bytes())))?;
    let row = seen.snapshot.as_of(seen.at);
    match flags.json {
        true => writeln!(out, "{}", json(name, &row))?,
        false => print(name, &row, out)?,
    }
    Ok(if row.exists() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print(name: Name<'_>, row: &Snapshot, out: &mut impl Write) -> anyhow::Result<()> {
    writeln!(out, "{}", show::bold(&show::name(name.bytes())))?;
    if !row.exists() {
        writeln!(out, "there is no such counter")?;
        return Ok(());
    }
    let none = || "-".to_owned();
    writeln!(out, "sum      {}", row.sum())?;
    writeln!(out, "base     {}", row.base.map_or_else(none, |base| base.to_string()))?;
    writeln!(out, "epoch    {}", epoch(row.epoch))?;
    writeln!(out, "expires  {}", row.expires_at.map_or_else(none, show::time))?;
    writeln!(out, "swaps    {}", row.version.swaps)?;
    if row.cells.is_empty() {
        writeln!(out, "no writer has said anything since it was set")?;
        return Ok(());
    }
    let mut table = show::table(["writer", "shard", "cell", "seq", "value"]);
    for (CellId { writer, shard }, held) in &row.cells {
        let Held { seq, value, .. } = held;
        let numbers = [shard.0.to_string(), state(held.closed).to_owned(), seq.0.to_string(), value.to_string()];
        let [shard, state, seq, value] = numbers;
        table.add_row([writer.to_string(), shard, state, seq, value]);
    }
    writeln!(out, "{}", show::figures(table, 3..5))?;
    Ok(())
}

fn json(name: Name<'_>, row: &Snapshot) -> Json {
    let id = |CellId { writer, shard }: &CellId| {
        vec![("writer", Json::text(writer)), ("shard", Json::count(shard.0.into()))]
    };
    let cells = row.cells.iter().map(|(cell, Held { seq, value, total, closed })| {
        let mut fields = id(cell);
        fields.extend([
            ("state", Json::text(state(*closed))),
            ("seq", Json::count(seq.0)),
            ("value", Json::Number(*value)),
            ("total", Json::Number(*total)),
        ]);
        Json::Object(fields)
    });
    let spent = row.spent.iter().map(|(cell, Spent { epoch: ended, seq, value, total, closed, .. })| {
        let mut fields = id(cell);
        fields.extend([
            ("state", Json::text(state(*closed))),
            ("epoch", Json::text(epoch(*ended))),
            ("seq", Json::count(seq.0)),
            ("value", Json::Number(*value)),
            ("total", Json::Number(*total)),
        ]);
        Json::Object(fields)
    });
    Json::Object(vec![
        ("counter", Json::name(name.bytes())),
        ("exists", Json::Bool(row.exists())),
        ("sum", Json::Number(row.sum())),
        ("base", row.base.map_or(Json::Null, Json::Number)),
        ("epoch", Json::text(epoch(row.epoch))),
        ("expires_at", row.expires_at.map_or(Json::Null, |at| Json::count(at.0))),
        ("swaps", Json::count(row.version.swaps)),
        ("cells", Json::List(cells.collect())),
        ("spent", Json::List(spent.collect())),
    ])
}

fn state(closed: bool) -> &'static str {
    if closed { "closed" } else { "open" }
}

/// When it began, and by whom.
fn epoch(epoch: Epoch) -> String {
    match epoch == Epoch::FIRST {
        true => "first".to_owned(),
        false => format!("{} by {}", epoch.millis, epoch.node),
    }
}
