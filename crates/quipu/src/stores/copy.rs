//! `quipu copy`: from one store to another, by the writer that an import of the first into the second is; then both are compared.
//!
//! Exit status 0: every counter has the same value in both; 1: some differ, each told by name, or it could not be done.

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, bail};
use quipu_model::Store;
use quipu_model::shared::Seen;

use crate::backends::StoreUrl;
use crate::backends::source::{Found, Source};
use crate::json::Json;
use crate::progress::Progress;
use crate::show;
use crate::stores::args::Copy;
use crate::stores::flow::carry;
use crate::stores::import;
use crate::stores::mover::Mover;
use crate::stores::rows::{self, Rows};

/// How many of the counters that differ are named.
const DIFFERENCES_SHOWN_MAX: usize = 100;

/// Copies, compares, and prints what came of it.
pub fn copy(flags: &Copy, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let (from, to) = (StoreUrl::new(&flags.from).context("--from")?, StoreUrl::new(&flags.to).context("--to")?);
    if from.place() == to.place() {
        bail!("--from and --to are the same store: its counters would count twice");
    }
    let (source, target) = (from.open()?, to.open()?);
    let pattern = flags.pattern.as_deref();
    let mut fields = Vec::new();
    if !flags.verify_only {
        let place = from.place();
        let name = flags.run.name.as_deref().unwrap_or(&place);
        let mover = Mover::begin(&*target, name)?;
        let mut counters = Counters(Rows::new(&*source, pattern));
        let carried = carry(&mut counters, &mover, "copying").with_context(|| format!("copy {name} to {to}"))?;
        import::finish(&flags.run, &mover, &carried)?;
        match flags.run.json {
            true => fields = import::fields(&flags.run, name, &mover, &carried),
            false => import::print(&flags.run, name, &mover, &carried, out)?,
        }
    }
    let compared = compare(&*source, &*target, pattern)?;
    match flags.run.json {
        true => {
            fields.extend(compared.fields());
            writeln!(out, "{}", Json::Object(fields))?;
        }
        false => compared.print(out)?,
    }
    Ok(if compared.differences() == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The counters of a store, as a source.
struct Counters<'s>(Rows<'s>);

impl Source for Counters<'_> {
    fn size(&mut self) -> anyhow::Result<Option<u64>> {
        Ok(None)
    }

    fn page(&mut self) -> anyhow::Result<Option<Vec<Found>>> {
        let Some(page) = self.0.page()? else { return Ok(None) };
        let mut found = Vec::with_capacity(page.len());
        for row in page {
            let (name, seen) = rows::sound(row)?;
            let row = seen.snapshot.as_of(seen.at);
            if row.exists() {
                let since = quipu_model::Millis(row.epoch.millis);
                // What its cells come to is how often its bodies have changed.
                let value = if row.is_sketch() { Err("it is a sketch".to_owned()) } else { Ok(row.sum()) };
                found.push(Found { name, value, since, expires_at: row.expires_at });
            }
        }
        Ok(Some(found))
    }

    fn repeats(&self) -> bool {
        true
    }
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
