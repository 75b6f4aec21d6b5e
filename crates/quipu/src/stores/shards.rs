//! `quipu shards`: what each writer says of one counter, in a store.

use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use anyhow::Context;
use quipu_model::shared::body::{NOBODYS, PAGE_BYTES, Shape};
use quipu_model::shared::{Bodies, CellId, Held, Seen, SeenBodies, Snapshot, Spent};
use quipu_model::{Epoch, Name, Writer};
use quipu_sketch::Kind;

use crate::backends::StoreUrl;
use crate::json::Json;
use crate::show;
use crate::stores::args::Shards;
use crate::stores::ask::wait;
use crate::stores::names::Names;

/// Prints the row of a counter. Exit status 1 if there is no such counter.
pub fn shards(flags: &Shards, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let url = StoreUrl::new(&flags.store.store).context("--store")?;
    let store = url.open()?;
    let name = Name::new(flags.name.as_bytes())?;
    let seen: Seen = wait(store.read(name)).with_context(|| format!("read {} in {url}", show::name(name.bytes())))?;
    let SeenBodies { seen, bodies } = match seen.snapshot.is_sketch() {
        true => wait(store.read_bodies(name)).with_context(|| format!("read {} in {url}", show::name(name.bytes())))?,
        false => SeenBodies { seen, bodies: Bodies::new() },
    };
    let row = seen.snapshot.as_of(seen.at);
    let shown = Shown { row: &row, bodies: &bodies, names: &Names::read(&*store) };
    match flags.json {
        true => writeln!(out, "{}", json(name, &shown))?,
        false => print(name, &shown, out)?,
    }
    Ok(if row.exists() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What is shown of a counter.
struct Shown<'s> {
    row: &'s Snapshot,
    /// Of a sketch: its content, by writer.
    bodies: &'s Bodies,
    names: &'s Names,
}

impl Shown<'_> {
    /// The kind of the counter; of a sketch, what the writers' bodies say.
    fn kind(&self) -> &'static str {
        if !self.row.is_sketch() {
            return "count";
        }
        self.bodies.values().next().map_or("sketch", |body| kind(&body.shape))
    }

    fn name(&self, writer: Writer) -> String {
        if writer == NOBODYS { "(writers that are gone)".to_owned() } else { self.names.show(writer) }
    }
}

fn print(name: Name<'_>, shown: &Shown<'_>, out: &mut impl Write) -> anyhow::Result<()> {
    let row = shown.row;
    writeln!(out, "{}", show::bold(&show::name(name.bytes())))?;
    if !row.exists() {
        writeln!(out, "there is no such counter")?;
        return Ok(());
    }
    let none = || "-".to_owned();
    writeln!(out, "kind     {}", shown.kind())?;
    if !row.is_sketch() {
        writeln!(out, "sum      {}", row.sum())?;
        writeln!(out, "base     {}", row.base.map_or_else(none, |base| base.to_string()))?;
    }
    writeln!(out, "epoch    {}", epoch(row.epoch))?;
    writeln!(out, "expires  {}", row.expires_at.map_or_else(none, show::time))?;
    writeln!(out, "swaps    {}", row.version.swaps)?;
    if row.cells.is_empty() {
        writeln!(out, "no writer has said anything since it was set")?;
        return Ok(());
    }
    if row.is_sketch() {
        let mut table = show::table(["writer", "name", "cell", "kind", "version", "pages", "bytes"]);
        for (CellId { writer, .. }, held) in &row.cells {
            let body = shown.bodies.get(writer).map(|body| body.shape).unwrap_or_default();
            let figures = [held.value.to_string(), pages(&body).to_string(), body.length.to_string()];
            let [version, pages, bytes] = figures;
            let (name, state, kind) = (shown.name(*writer), state(held.closed).to_owned(), kind(&body).to_owned());
            table.add_row([writer.to_string(), name, state, kind, version, pages, bytes]);
        }
        writeln!(out, "{}", show::figures(table, 4..7))?;
        return Ok(());
    }
    let mut table = show::table(["writer", "name", "shard", "cell", "seq", "value"]);
    for (CellId { writer, shard }, held) in &row.cells {
        let Held { seq, value, .. } = held;
        let numbers = [shard.0.to_string(), state(held.closed).to_owned(), seq.0.to_string(), value.to_string()];
        let [shard, state, seq, value] = numbers;
        table.add_row([writer.to_string(), shown.name(*writer), shard, state, seq, value]);
    }
    writeln!(out, "{}", show::figures(table, 4..6))?;
    Ok(())
}

fn json(name: Name<'_>, shown: &Shown<'_>) -> Json {
    let row = shown.row;
    let id = |CellId { writer, shard }: &CellId| {
        let name = shown.names.json(*writer);
        vec![("writer", Json::text(writer)), ("name", name), ("shard", Json::count(shard.0.into()))]
    };
    let cells = row.cells.iter().map(|(cell, Held { seq, value, total, closed })| {
        let mut fields = id(cell);
        fields.extend([("state", Json::text(state(*closed))), ("seq", Json::count(seq.0))]);
        match shown.bodies.get(&cell.writer) {
            Some(body) => fields.extend([
                ("kind", Json::text(kind(&body.shape))),
                ("version", Json::Number(*value)),
                ("pages", Json::count(pages(&body.shape).into())),
                ("bytes", Json::count(body.shape.length.into())),
            ]),
            None => fields.extend([("value", Json::Number(*value)), ("total", Json::Number(*total))]),
        }
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
        ("kind", Json::text(shown.kind())),
        ("sum", if row.is_sketch() { Json::Null } else { Json::Number(row.sum()) }),
        ("base", row.base.map_or(Json::Null, Json::Number)),
        ("epoch", Json::text(epoch(row.epoch))),
        ("expires_at", row.expires_at.map_or(Json::Null, |at| Json::count(at.0))),
        ("swaps", Json::count(row.version.swaps)),
        ("cells", Json::List(cells.collect())),
        ("spent", Json::List(spent.collect())),
    ])
}

/// The kind of a body in words.
fn kind(shape: &Shape) -> &'static str {
    match Kind::from_code(shape.kind) {
        Some(Kind::Hll) => "unique (PFADD)",
        Some(Kind::Unique) => "unique",
        Some(Kind::Cms) => "frequency (CMS)",
        Some(Kind::Frequency) => "frequency",
        Some(Kind::TopK) => "top (TOPK)",
        Some(Kind::Top) => "top",
        Some(Kind::Ring) => "window",
        _ => "unknown",
    }
}

fn pages(shape: &Shape) -> u32 {
    shape.length.div_ceil(PAGE_BYTES as u32)
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
