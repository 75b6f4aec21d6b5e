//! `quipu copy`: from one store to another, writer by writer; then both are compared.
//!
//! Exit status 0: every counter has the same value in both; 1: some were refused or differ, each told by name, or it could not be done.

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, bail};
use quipu_model::Store;
use quipu_model::shared::Seen;

use crate::backends::StoreUrl;
use crate::json::Json;
use crate::progress::Progress;
use crate::show;
use crate::stores::args::Copy;
use crate::stores::mirror::{Mirror, Site};
use crate::stores::rows::{self, Rows};

/// How many of the counters that differ are named.
const DIFFERENCES_SHOWN_MAX: usize = 100;

/// Copies, compares, and prints the outcome.
pub fn copy(flags: &Copy, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let from = StoreUrl::new(&flags.from).context("--from")?;
    let to = StoreUrl::new(&flags.to).context("--to")?;
    if from.place() == to.place() {
        bail!("--from and --to are the same store");
    }
    let (source, target) = (from.open()?, to.open()?);
    let pattern = flags.pattern.as_deref();
    let mut fields = vec![("from", Json::text(&from)), ("to", Json::text(&to))];
    let mut is_good = true;
    if !flags.verify_only {
        let places = (from.place(), to.place());
        let sites = (Site::new(&*source, &places.0), Site::new(&*target, &places.1));
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
    let progress = Progress::of_many("copying");
    let mut walk = Rows::new(source, pattern);
    while let Some(page) = walk.page()? {
        let rows = page.into_iter().map(rows::sound).collect::<anyhow::Result<Vec<_>>>()?;
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

/// A counter that one store has something else of than the other; none if it does not have it.
struct Difference {
    counter: Box<[u8]>,
    from: Option<i128>,
    to: Option<i128>,
}

/// What two stores have of the same counters.
#[derive(Default)]
struct Compared {
    counters: u64,
    /// Some of those that differ.
    shown: Vec<Difference>,
    more: u64,
}

/// Reads every counter of both. One that the source gets a row of only now is told as a difference, as any that goes on is.
fn compare(source: &dyn Store, target: &dyn Store, pattern: Option<&str>) -> anyhow::Result<Compared> {
    let mut compared = Compared::default();
    let progress = Progress::of_many("comparing");
    let mut walk = Rows::new(source, pattern);
    while let Some(page) = walk.page()? {
        let here = page.into_iter().map(rows::sound).collect::<anyhow::Result<Vec<_>>>()?;
        let there = rows::read_all(target, here.iter().map(|(name, _)| name.clone()).collect())?;
        progress.add(here.len() as u64);
        for ((name, here), (_, there)) in here.into_iter().zip(there) {
            compared.add(name, value(&here), value(&there));
        }
    }
    // And what only the target has a row of.
    let mut walk = walk.others(target);
    while let Some(page) = walk.page()? {
        progress.add(page.len() as u64);
        for row in page {
            let (name, there) = rows::sound(row)?;
            compared.add(name, None, value(&there));
        }
    }
    Ok(compared)
}

fn value(seen: &Seen) -> Option<i128> {
    let row = seen.snapshot.as_of(seen.at);
    (row.exists() && !row.is_sketch()).then(|| row.sum())
}

impl Compared {
    fn add(&mut self, counter: Box<[u8]>, from: Option<i128>, to: Option<i128>) {
        self.counters += u64::from(from.is_some() || to.is_some());
        if from == to {
            return;
        }
        match self.shown.len() < DIFFERENCES_SHOWN_MAX {
            true => self.shown.push(Difference { counter, from, to }),
            false => self.more += 1,
        }
    }

    fn differences(&self) -> u64 {
        self.shown.len() as u64 + self.more
    }

    fn print(&self, out: &mut impl Write) -> anyhow::Result<()> {
        writeln!(out, "compared  {}", self.counters)?;
        if self.differences() == 0 {
            writeln!(out, "{}", show::good("every counter has the same value in both"))?;
            return Ok(());
        }
        let told = |value: &Option<i128>| value.map_or_else(|| "-".to_owned(), |value| value.to_string());
        let mut table = show::table(["counter", "from", "to"]);
        for Difference { counter, from, to } in &self.shown {
            table.add_row([show::name(counter), told(from), told(to)]);
        }
        writeln!(out, "{}", show::figures(table, 1..3))?;
        if self.more > 0 {
            writeln!(out, "and {} more", self.more)?;
        }
        let s = if self.differences() == 1 { "s" } else { "" };
        writeln!(out, "{}", show::bad(&format!("{} differ{s}", self.differences())))?;
        Ok(())
    }

    fn fields(&self) -> Vec<(&'static str, Json)> {
        let told = |value: &Option<i128>| value.map_or(Json::Null, Json::Number);
        let differences = self.shown.iter().map(|Difference { counter, from, to }| {
            Json::Object(vec![("counter", Json::name(counter)), ("from", told(from)), ("to", told(to))])
        });
        vec![
            ("compared", Json::count(self.counters)),
            ("differences", Json::List(differences.collect())),
            ("differences_more", Json::count(self.more)),
        ]
    }
}
