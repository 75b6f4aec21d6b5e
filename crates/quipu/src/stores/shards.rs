//! `quipu shards`: prints the cell of each writer of one counter in a store.

use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use anyhow::Context;
use quipu_model::shared::body::{BodyShape, FOLDED_BODY_WRITER, PAGE_BYTES};
use quipu_model::shared::{Bodies, CellId, FetchedRow, RowCell, RowWithBodies, Snapshot, SpentCell};
use quipu_model::{Epoch, Name, Writer};
use quipu_sketch::SketchKind;

use crate::backends::StoreUrl;
use crate::json::Json;
use crate::stores::args::ShardsArgs;
use crate::stores::names::WriterNames;
use crate::stores::retry::block_on;
use crate::terminal;

/// Prints the row of a counter. Exit status 1 if there is no such counter.
pub fn shards(flags: &ShardsArgs, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let url = StoreUrl::new(&flags.store.store).context("--store")?;
    let store = url.open()?;
    let name = Name::new(flags.name.as_bytes())?;
    let read_row: FetchedRow =
        block_on(store.read(name)).with_context(|| format!("read {} in {url}", terminal::format_name(name.bytes())))?;
    let RowWithBodies { row: read_row, bodies } = match read_row.snapshot.is_sketch() {
        true => block_on(store.read_bodies(name))
            .with_context(|| format!("read {} in {url}", terminal::format_name(name.bytes())))?,
        false => RowWithBodies { row: read_row, bodies: Bodies::new() },
    };
    let row = read_row.snapshot.as_of(read_row.at);
    let view = CounterView { row: &row, bodies: &bodies, names: &WriterNames::read(&*store) };
    match flags.json {
        true => writeln!(out, "{}", json(name, &view))?,
        false => print(name, &view, out)?,
    }
    Ok(if row.exists() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The printed parts of a counter.
struct CounterView<'s> {
    row: &'s Snapshot,
    /// The content of a sketch, by writer.
    bodies: &'s Bodies,
    names: &'s WriterNames,
}

impl CounterView<'_> {
    /// The kind of the counter; of a sketch, the kind of the writers' bodies.
    fn kind(&self) -> &'static str {
        if !self.row.is_sketch() {
            return "count";
        }
        self.bodies.values().next().map_or("sketch", |body| body_kind(&body.shape))
    }

    fn name(&self, writer: Writer) -> String {
        if writer == FOLDED_BODY_WRITER { "(writers that are gone)".to_owned() } else { self.names.text(writer) }
    }
}

fn print(name: Name<'_>, view: &CounterView<'_>, out: &mut impl Write) -> anyhow::Result<()> {
    let row = view.row;
    writeln!(out, "{}", terminal::bold(&terminal::format_name(name.bytes())))?;
    if !row.exists() {
        writeln!(out, "there is no such counter")?;
        return Ok(());
    }
    let none = || "-".to_owned();
    writeln!(out, "kind     {}", view.kind())?;
    if !row.is_sketch() {
        writeln!(out, "sum      {}", row.sum())?;
        writeln!(out, "base     {}", row.base.map_or_else(none, |base| base.to_string()))?;
    }
    writeln!(out, "epoch    {}", epoch_text(row.epoch))?;
    writeln!(out, "expires  {}", row.expires_at.map_or_else(none, terminal::format_time))?;
    writeln!(out, "swaps    {}", row.version.swaps)?;
    if row.cells.is_empty() {
        writeln!(out, "no writer has said anything since it was set")?;
        return Ok(());
    }
    if row.is_sketch() {
        let mut table = terminal::table(["writer", "name", "cell", "kind", "version", "pages", "bytes"]);
        for (CellId { writer, .. }, row_cell) in &row.cells {
            let body = view.bodies.get(writer).map(|body| body.shape).unwrap_or_default();
            let figures = [row_cell.value.to_string(), page_count(&body).to_string(), body.length.to_string()];
            let [version, pages, bytes] = figures;
            let (name, state, kind) =
                (view.name(*writer), cell_state(row_cell.closed).to_owned(), body_kind(&body).to_owned());
            table.add_row([writer.to_string(), name, state, kind, version, pages, bytes]);
        }
        writeln!(out, "{}", terminal::render_figures(table, 4..7))?;
        return Ok(());
    }
    let mut table = terminal::table(["writer", "name", "shard", "cell", "seq", "value"]);
    for (CellId { writer, shard }, row_cell) in &row.cells {
        let RowCell { seq, value, .. } = row_cell;
        let numbers =
            [shard.0.to_string(), cell_state(row_cell.closed).to_owned(), seq.0.to_string(), value.to_string()];
        let [shard, state, seq, value] = numbers;
        table.add_row([writer.to_string(), view.name(*writer), shard, state, seq, value]);
    }
    writeln!(out, "{}", terminal::render_figures(table, 4..6))?;
    Ok(())
}

fn json(name: Name<'_>, view: &CounterView<'_>) -> Json {
    let row = view.row;
    let id = |CellId { writer, shard }: &CellId| {
        let name = view.names.json(*writer);
        vec![("writer", Json::text(writer)), ("name", name), ("shard", Json::count(shard.0.into()))]
    };
    let cells = row.cells.iter().map(|(cell, RowCell { seq, value, total, closed })| {
        let mut fields = id(cell);
        fields.extend([("state", Json::text(cell_state(*closed))), ("seq", Json::count(seq.0))]);
        match view.bodies.get(&cell.writer) {
            Some(body) => fields.extend([
                ("kind", Json::text(body_kind(&body.shape))),
                ("version", Json::Number(*value)),
                ("pages", Json::count(page_count(&body.shape).into())),
                ("bytes", Json::count(body.shape.length.into())),
            ]),
            None => fields.extend([("value", Json::Number(*value)), ("total", Json::Number(*total))]),
        }
        Json::Object(fields)
    });
    let spent = row.spent.iter().map(|(cell, SpentCell { epoch: ended, seq, value, total, closed, .. })| {
        let mut fields = id(cell);
        fields.extend([
            ("state", Json::text(cell_state(*closed))),
            ("epoch", Json::text(epoch_text(*ended))),
            ("seq", Json::count(seq.0)),
            ("value", Json::Number(*value)),
            ("total", Json::Number(*total)),
        ]);
        Json::Object(fields)
    });
    Json::Object(vec![
        ("counter", Json::name(name.bytes())),
        ("exists", Json::Bool(row.exists())),
        ("kind", Json::text(view.kind())),
        ("sum", if row.is_sketch() { Json::Null } else { Json::Number(row.sum()) }),
        ("base", row.base.map_or(Json::Null, Json::Number)),
        ("epoch", Json::text(epoch_text(row.epoch))),
        ("expires_at", row.expires_at.map_or(Json::Null, |at| Json::count(at.0))),
        ("swaps", Json::count(row.version.swaps)),
        ("cells", Json::List(cells.collect())),
        ("spent", Json::List(spent.collect())),
    ])
}

/// The kind of a body in words.
fn body_kind(shape: &BodyShape) -> &'static str {
    match SketchKind::from_code(shape.kind) {
        Some(SketchKind::Hll) => "unique (PFADD)",
        Some(SketchKind::Unique) => "unique",
        Some(SketchKind::Cms) => "frequency (CMS)",
        Some(SketchKind::Frequency) => "frequency",
        Some(SketchKind::TopK) => "top (TOPK)",
        Some(SketchKind::Top) => "top",
        Some(SketchKind::Ring) => "window",
        _ => "unknown",
    }
}

fn page_count(shape: &BodyShape) -> u32 {
    shape.length.div_ceil(PAGE_BYTES as u32)
}

fn cell_state(closed: bool) -> &'static str {
    if closed { "closed" } else { "open" }
}

/// The start of an epoch, and the node that began it.
fn epoch_text(epoch: Epoch) -> String {
    match epoch == Epoch::FIRST {
        true => "first".to_owned(),
        false => format!("{} by {}", epoch.millis, epoch.node),
    }
}
