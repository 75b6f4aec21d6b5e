//! `quipu audit --store`: checks that every row of a store is one we can have written, and that
//! every cell has a writer.
//!
//! Exit status 0: all are. 1: something has drifted, each drift listed by name, or the store is
//! unreadable.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::ExitCode;

use anyhow::Context;
use quipu_model::shared::{CellId, FetchedRow, WriterStage, is_body_cell};
use quipu_model::{Store, StoreError, Writer};

use crate::backends::StoreUrl;
use crate::json::Json;
use crate::progress::Progress;
use crate::stores::names::WriterNames;
use crate::stores::retry::{block_on, call_with_retry};
use crate::stores::rows::RowWalk;
use crate::terminal;

/// Most drifts that are listed.
const DRIFTS_SHOWN_MAX: usize = 100;

/// The results of an audit.
#[derive(Default)]
struct StoreAudit {
    counters: u64,
    cells: u64,
    /// Rows past their expiry that no node has touched since; they count as gone.
    due: u64,
    sum: i128,
    writers: BTreeMap<Writer, WriterStage>,
    names: WriterNames,
    drifts: Vec<StoreDrift>,
    drifts_omitted: u64,
}

/// An inconsistency of a counter.
struct StoreDrift {
    counter: Box<[u8]>,
    problem: String,
}

/// Audits a store and prints the report.
pub fn audit(url: &str, as_json: bool, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let url = StoreUrl::new(url).context("--store")?;
    let store = url.open()?;
    block_on(store.clock()).with_context(|| format!("audit {url}"))?;
    let mut found = StoreAudit { names: WriterNames::read(&*store), ..StoreAudit::default() };
    let progress = Progress::for_unknown_count("reading");
    let mut walk = RowWalk::new(&*store, None);
    while let Some(page) = walk.next_page().with_context(|| format!("audit {url}"))? {
        // Read anew for each page: a writer that registered just now may be in its rows already.
        found.read_writers(&*store)?;
        progress.add(page.len() as u64);
        for (name, row) in page {
            found.check_row(name, row);
        }
    }
    drop(progress);
    match as_json {
        true => writeln!(out, "{}", found.json(&url))?,
        false => found.print(&url, out)?,
    }
    Ok(if found.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl StoreAudit {
    fn is_clean(&self) -> bool {
        self.drifts.is_empty()
    }

    /// Reads the registry. It keeps a writer that was forgotten during the audit: its cells were
    /// folded.
    fn read_writers(&mut self, store: &dyn Store) -> anyhow::Result<()> {
        let known = call_with_retry(|| store.writers()).context("look at the writers")?;
        self.writers.extend(known.registrations.iter().map(|known| (known.writer, known.stage)));
        Ok(())
    }

    fn check_row(&mut self, name: Box<[u8]>, row: Result<FetchedRow, StoreError>) {
        let read_row = match row {
            Ok(read_row) => read_row,
            Err(error) => {
                return self.record_drift(
                    &name,
                    format!("cannot be read: {}", crate::chain::one_line(&anyhow::Error::new(error))),
                );
            }
        };
        self.due += u64::from(read_row.snapshot.is_due(read_row.at));
        let row = match read_row.snapshot.as_of(read_row.at).into_owned().checked() {
            Ok(row) => row,
            Err(error) => return self.record_drift(&name, error.to_string()),
        };
        if !row.exists() {
            return;
        }
        self.counters += 1;
        self.cells += row.cells.len() as u64;
        // The cells of a sketch sum up the changes of its bodies, not events. Its body cells, of a
        // node or an incarnation, are not checked against the registry.
        let sum = if row.is_sketch() { 0 } else { row.sum() };
        self.sum = self.sum.saturating_add(sum);
        if i64::try_from(sum).is_err() {
            self.record_drift(&name, format!("its sum, {sum}, fits no reply: set or reset it"));
        }
        for (CellId { writer, shard }, cell) in row.cells.iter().filter(|(id, _)| !is_body_cell(id)) {
            let (shard, stage) = (shard.0, self.writers.get(writer).copied());
            let writer = self.names.describe(*writer);
            match stage {
                None => self.record_drift(
                    &name,
                    format!("shard {shard} of {writer}, which is not registered: nobody will fold it"),
                ),
                Some(WriterStage::Closed { .. } | WriterStage::Folded { .. }) if !cell.closed => {
                    self.record_drift(
                        &name,
                        format!("shard {shard} of {writer} is open, though all of that writer's are closed"),
                    );
                }
                Some(WriterStage::Folded { .. }) => {
                    self.record_drift(
                        &name,
                        format!("shard {shard} of {writer} is there, though all of that writer's are folded"),
                    );
                }
                Some(WriterStage::Live) if cell.closed => {
                    self.record_drift(
                        &name,
                        format!("shard {shard} of {writer} is closed, though that writer is live"),
                    );
                }
                Some(_) => {}
            }
        }
    }

    fn record_drift(&mut self, counter: &[u8], problem: String) {
        match self.drifts.len() < DRIFTS_SHOWN_MAX {
            true => self.drifts.push(StoreDrift { counter: counter.into(), problem }),
            false => self.drifts_omitted += 1,
        }
    }

    fn print(&self, url: &StoreUrl, out: &mut impl Write) -> anyhow::Result<()> {
        let StoreAudit { counters, cells, due, sum, writers, drifts, drifts_omitted, .. } = self;
        writeln!(out, "{}", terminal::bold(&url.to_string()))?;
        writeln!(out, "counters  {counters}")?;
        writeln!(out, "cells     {cells}")?;
        writeln!(out, "writers   {}", writers.len())?;
        writeln!(out, "sum       {sum}")?;
        writeln!(out, "expired   {due}")?;
        if self.is_clean() {
            writeln!(out, "{}", terminal::good("clean"))?;
            return Ok(());
        }
        let mut table = terminal::table(["counter", "what"]);
        for StoreDrift { counter, problem } in drifts {
            table.add_row([terminal::format_name(counter), problem.clone()]);
        }
        writeln!(out, "{}", terminal::render_table(table))?;
        if *drifts_omitted > 0 {
            writeln!(out, "and {drifts_omitted} more")?;
        }
        let drifted = drifts.len() as u64 + drifts_omitted;
        let s = if drifted == 1 { "" } else { "s" };
        writeln!(out, "{}", terminal::bad(&format!("{drifted} drift{s}")))?;
        Ok(())
    }

    fn json(&self, url: &StoreUrl) -> Json {
        let drifts = self.drifts.iter().map(|StoreDrift { counter, problem }| {
            Json::Object(vec![("counter", Json::name(counter)), ("what", Json::text(problem))])
        });
        Json::Object(vec![
            ("store", Json::text(url)),
            ("clean", Json::Bool(self.is_clean())),
            ("counters", Json::count(self.counters)),
            ("cells", Json::count(self.cells)),
            ("writers", Json::count(self.writers.len() as u64)),
            ("sum", Json::Number(self.sum)),
            ("expired", Json::count(self.due)),
            ("drifts", Json::List(drifts.collect())),
            ("drifts_more", Json::count(self.drifts_omitted)),
        ])
    }
}
