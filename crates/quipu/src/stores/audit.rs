//! `quipu audit --store`: is every row of a store one that we can have written, and does every cell have a writer?
//!
//! Exit status 0: yes; 1: something has drifted, each thing told by name, or the store could not be read.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::ExitCode;

use anyhow::Context;
use quipu_model::shared::{CellId, Seen, Stage, is_body_cell};
use quipu_model::{Store, StoreError, Writer};

use crate::backends::StoreUrl;
use crate::json::Json;
use crate::progress::Progress;
use crate::show;
use crate::stores::ask::{patiently, wait};
use crate::stores::names::Names;
use crate::stores::rows::Rows;

/// How many drifts are named.
const DRIFTS_SHOWN_MAX: usize = 100;

/// What was found.
#[derive(Default)]
struct Audit {
    counters: u64,
    cells: u64,
    /// Rows whose time is over and that nobody has touched since; they count as gone.
    due: u64,
    sum: i128,
    writers: BTreeMap<Writer, Stage>,
    names: Names,
    drifts: Vec<Drift>,
    drifts_more: u64,
}

/// Something that should not be.
struct Drift {
    counter: Box<[u8]>,
    what: String,
}

/// Reads everything and prints what was found.
pub fn audit(url: &str, as_json: bool, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let url = StoreUrl::new(url).context("--store")?;
    let store = url.open()?;
    wait(store.clock()).with_context(|| format!("audit {url}"))?;
    let mut found = Audit { names: Names::read(&*store), ..Audit::default() };
    let progress = Progress::of_many("reading");
    let mut walk = Rows::new(&*store, None);
    while let Some(page) = walk.page().with_context(|| format!("audit {url}"))? {
        // As it is now: one that registered a moment ago may be in the rows already.
        found.know(&*store)?;
        progress.add(page.len() as u64);
        for (name, row) in page {
            found.look(name, row);
        }
    }
    drop(progress);
    match as_json {
        true => writeln!(out, "{}", found.json(&url))?,
        false => found.print(&url, out)?,
    }
    Ok(if found.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Audit {
    fn is_clean(&self) -> bool {
        self.drifts.is_empty()
    }

    /// Learns who writes. A writer that was forgotten while this went on is remembered: its cells were folded.
    fn know(&mut self, store: &dyn Store) -> anyhow::Result<()> {
        let known = patiently(|| store.writers()).context("look at the writers")?;
        self.writers.extend(known.registrations.iter().map(|known| (known.writer, known.stage)));
        Ok(())
    }

    fn look(&mut self, name: Box<[u8]>, row: Result<Seen, StoreError>) {
        let seen = match row {
            Ok(seen) => seen,
            Err(error) => {
                return self
                    .drift(&name, format!("cannot be read: {}", crate::chain::one_line(&anyhow::Error::new(error))));
            }
        };
        self.due += u64::from(seen.snapshot.due(seen.at));
        let row = match seen.snapshot.as_of(seen.at).into_owned().checked() {
            Ok(row) => row,
            Err(error) => return self.drift(&name, error.to_string()),
        };
        if !row.exists() {
            return;
        }
        self.counters += 1;
        self.cells += row.cells.len() as u64;
        // What the cells of sketches come to is how often their bodies have changed; they belong to nodes, and to none of their lives.
        let sum = if row.is_sketch() { 0 } else { row.sum() };
        self.sum = self.sum.saturating_add(sum);
        if i64::try_from(sum).is_err() {
            self.drift(&name, format!("its sum, {sum}, fits no reply: set or reset it"));
        }
        for (CellId { writer, shard }, held) in row.cells.iter().filter(|(id, _)| !is_body_cell(id)) {
            let (shard, stage) = (shard.0, self.writers.get(writer).copied());
            let writer = self.names.describe(*writer);
            match stage {
                None => self
                    .drift(&name, format!("shard {shard} of {writer}, which is not registered: nobody will fold it")),
                Some(Stage::Closed { .. } | Stage::Folded { .. }) if !held.closed => {
                    self.drift(
                        &name,
                        format!("shard {shard} of {writer} is open, though all of that writer's are closed"),
                    );
                }
                Some(Stage::Folded { .. }) => {
                    self.drift(
                        &name,
                        format!("shard {shard} of {writer} is there, though all of that writer's are folded"),
                    );
                }
                Some(Stage::Live) if held.closed => {
                    self.drift(&name, format!("shard {shard} of {writer} is closed, though that writer is live"));
                }
                Some(_) => {}
            }
        }
    }

    fn drift(&mut self, counter: &[u8], what: String) {
        match self.drifts.len() < DRIFTS_SHOWN_MAX {
            true => self.drifts.push(Drift { counter: counter.into(), what }),
            false => self.drifts_more += 1,
        }
    }

    fn print(&self, url: &StoreUrl, out: &mut impl Write) -> anyhow::Result<()> {
        let Audit { counters, cells, due, sum, writers, drifts, drifts_more, .. } = self;
        writeln!(out, "{}", show::bold(&url.to_string()))?;
        writeln!(out, "counters  {counters}")?;
        writeln!(out, "cells     {cells}")?;
        writeln!(out, "writers   {}", writers.len())?;
        writeln!(out, "sum       {sum}")?;
        writeln!(out, "expired   {due}")?;
        if self.is_clean() {
            writeln!(out, "{}", show::good("clean"))?;
            return Ok(());
        }
        let mut table = show::table(["counter", "what"]);
        for Drift { counter, what } in drifts {
            table.add_row([show::name(counter), what.clone()]);
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

    fn json(&self, url: &StoreUrl) -> Json {
        let drifts = self.drifts.iter().map(|Drift { counter, what }| {
            Json::Object(vec![("counter", Json::name(counter)), ("what", Json::text(what))])
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
            ("drifts_more", Json::count(self.drifts_more)),
        ])
    }
}
