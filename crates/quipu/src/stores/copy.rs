//! `quipu copy`: copies one store to another, writer by writer, and compares both.
//!
//! Exit status 0: every counter has the same value in both. 1: some were refused or differ, each
//! listed by name, or the copy failed.

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, bail};
use quipu_model::Store;
use quipu_model::shared::FetchedRow;

use crate::backends::StoreUrl;
use crate::json::Json;
use crate::progress::Progress;
use crate::stores::args::CopyArgs;
use crate::stores::mirror::{Mirror, Site};
use crate::stores::rows::{self, RowWalk};
use crate::terminal;

/// Most differing counters that are listed.
const DIFFERENCES_SHOWN_MAX: usize = 100;

/// Copies, compares, and prints the outcome.
pub fn copy(flags: &CopyArgs, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let from = StoreUrl::new(&flags.from).context("--from")?;
    let to = StoreUrl::new(&flags.to).context("--to")?;
    if from.location() == to.location() {
        bail!("--from and --to are the same store");
    }
    let (source, target) = (from.open()?, to.open()?);
    let pattern = flags.pattern.as_deref();
    let mut fields = vec![("from", Json::text(&from)), ("to", Json::text(&to))];
    let mut is_good = true;
    if !flags.verify_only {
        let sites = (Site::new(&*source, from.location()), Site::new(&*target, to.location()));
        let mut mirror = Mirror::begin(sites.0, sites.1).with_context(|| format!("copy {from} to {to}"))?;
        let copied = mirror_all(&mut mirror, &*source, pattern, flags.done);
        copied.map_err(|error| mirror.abandon(error)).with_context(|| format!("copy {from} to {to}"))?;
        mirror.skipped.print("skipped");
        mirror.refused.print("refused");
        is_good = mirror.refused.count() == 0 && !(flags.strict && mirror.skipped.count() > 0);
        match flags.json {
            true => fields.extend(copied_fields(&mirror, flags.done)),
            false => print_copied(&mirror, flags.done, out)?,
        }
    }
    let compared = compare(&*source, &*target, pattern)?;
    match flags.json {
        true => {
            fields.extend(compared.fields());
            writeln!(out, "{}", Json::Object(fields))?;
        }
        false => compared.print(out)?,
    }
    Ok(if is_good && compared.differences() == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn mirror_all(mirror: &mut Mirror<'_>, source: &dyn Store, pattern: Option<&str>, done: bool) -> anyhow::Result<()> {
    let progress = Progress::for_unknown_count("copying");
    let mut walk = RowWalk::new(source, pattern);
    while let Some(page) = walk.next_page()? {
        let rows = page.into_iter().map(rows::require_readable).collect::<anyhow::Result<Vec<_>>>()?;
        progress.add(rows.len() as u64);
        mirror.copy(rows)?;
    }
    mirror.finish(done)
}

fn print_copied(mirror: &Mirror<'_>, done: bool, out: &mut impl Write) -> anyhow::Result<()> {
    writeln!(out, "counters  {}", mirror.counters)?;
    writeln!(out, "changed   {}", mirror.changed)?;
    writeln!(out, "refused   {}", mirror.refused.count())?;
    writeln!(out, "skipped   {}", mirror.skipped.count())?;
    if done {
        writeln!(out, "done: the source's writers are retired in the target")?;
    }
    Ok(())
}

fn copied_fields(mirror: &Mirror<'_>, done: bool) -> Vec<(&'static str, Json)> {
    let mut fields = vec![
        ("done", Json::Bool(done)),
        ("counters", Json::count(mirror.counters)),
        ("changed", Json::count(mirror.changed)),
    ];
    fields.extend(mirror.refused.fields(["refused", "refused_more", "refused_reasons"]));
    fields.extend(mirror.skipped.fields(["skipped", "skipped_more", "skipped_reasons"]));
    fields
}

/// A counter with different values in two stores; `None` where it does not exist.
struct Difference {
    counter: Box<[u8]>,
    from: Option<i128>,
    to: Option<i128>,
}

/// The comparison of two stores.
#[derive(Default)]
struct StoreComparison {
    counters: u64,
    /// The first of the differing counters.
    listed: Vec<Difference>,
    omitted: u64,
}

/// Compares every counter of both stores. A row that appears in the source during the walk is a
/// difference, like any change during it.
fn compare(source: &dyn Store, target: &dyn Store, pattern: Option<&str>) -> anyhow::Result<StoreComparison> {
    let mut compared = StoreComparison::default();
    let progress = Progress::for_unknown_count("comparing");
    let mut walk = RowWalk::new(source, pattern);
    while let Some(page) = walk.next_page()? {
        let here = page.into_iter().map(rows::require_readable).collect::<anyhow::Result<Vec<_>>>()?;
        let there = rows::read_all(target, here.iter().map(|(name, _)| name.clone()).collect())?;
        progress.add(here.len() as u64);
        for ((name, here), (_, there)) in here.into_iter().zip(there) {
            compared.add(name, counter_value(&here), counter_value(&there));
        }
    }
    // Then the rows that only the target has.
    let mut walk = walk.unvisited_in(target);
    while let Some(page) = walk.next_page()? {
        progress.add(page.len() as u64);
        for row in page {
            let (name, there) = rows::require_readable(row)?;
            compared.add(name, None, counter_value(&there));
        }
    }
    Ok(compared)
}

fn counter_value(read_row: &FetchedRow) -> Option<i128> {
    let row = read_row.snapshot.as_of(read_row.at);
    (row.exists() && !row.is_sketch()).then(|| row.sum())
}

impl StoreComparison {
    fn add(&mut self, counter: Box<[u8]>, from: Option<i128>, to: Option<i128>) {
        self.counters += u64::from(from.is_some() || to.is_some());
        if from == to {
            return;
        }
        match self.listed.len() < DIFFERENCES_SHOWN_MAX {
            true => self.listed.push(Difference { counter, from, to }),
            false => self.omitted += 1,
        }
    }

    fn differences(&self) -> u64 {
        self.listed.len() as u64 + self.omitted
    }

    fn print(&self, out: &mut impl Write) -> anyhow::Result<()> {
        writeln!(out, "compared  {}", self.counters)?;
        if self.differences() == 0 {
            writeln!(out, "{}", terminal::good("every counter has the same value in both"))?;
            return Ok(());
        }
        let format_value = |value: &Option<i128>| value.map_or_else(|| "-".to_owned(), |value| value.to_string());
        let mut table = terminal::table(["counter", "from", "to"]);
        for Difference { counter, from, to } in &self.listed {
            table.add_row([terminal::format_name(counter), format_value(from), format_value(to)]);
        }
        writeln!(out, "{}", terminal::render_figures(table, 1..3))?;
        if self.omitted > 0 {
            writeln!(out, "and {} more", self.omitted)?;
        }
        let s = if self.differences() == 1 { "s" } else { "" };
        writeln!(out, "{}", terminal::bad(&format!("{} differ{s}", self.differences())))?;
        Ok(())
    }

    fn fields(&self) -> Vec<(&'static str, Json)> {
        let format_value = |value: &Option<i128>| value.map_or(Json::Null, Json::Number);
        let differences = self.listed.iter().map(|Difference { counter, from, to }| {
            Json::Object(vec![("counter", Json::name(counter)), ("from", format_value(from)), ("to", format_value(to))])
        });
        vec![
            ("compared", Json::count(self.counters)),
            ("differences", Json::List(differences.collect())),
            ("differences_more", Json::count(self.omitted)),
        ]
    }
}
