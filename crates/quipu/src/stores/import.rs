//! `quipu import`: counters of a Redis or a PostgreSQL that knows nothing of us.
//!
//! Exit status 0: all that is a counter is in; 1: it is not, or, with `--strict`, something was skipped.

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, bail};

use crate::backends::source::Wanted;
use crate::backends::{StoreUrl, open_source};
use crate::json::Json;
use crate::show;
use crate::stores::args::{Import, Run};
use crate::stores::flow::{Carried, carry};
use crate::stores::mover::Mover;

/// Imports, and prints what came of it.
pub fn import(flags: &Import, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let url = StoreUrl::new(&flags.store.store).context("--store")?;
    let wanted = Wanted { pattern: flags.pattern.clone(), query: flags.query.clone() };
    let (place, mut source) = open_source(&flags.source, &wanted)?;
    let name = flags.run.name.as_deref().unwrap_or(&place);
    let store = url.open()?;
    let mover = Mover::begin(&*store, name, &flags.secret.store_secret)?;
    let carried = carry(&mut *source, &mover, "importing").map_err(|error| match mover.clean_up() {
        true => error.context("the import is not complete; some counters are in and stay, and the next run goes on as the same writer: run it again"),
        false => error.context("nothing was imported"),
    });
    let carried = carried.with_context(|| format!("import {name} into {url}"))?;
    finish(&flags.run, &mover, &carried)?;
    match flags.run.json {
        true => writeln!(out, "{}", Json::Object(fields(&flags.run, name, &mover, &carried)))?,
        false => print(&flags.run, name, &mover, &carried, out)?,
    }
    let strict = flags.strict && carried.skipped.count() > 0;
    Ok(if strict { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Ends a run that has come through.
fn finish(run: &Run, mover: &Mover<'_>, carried: &Carried) -> anyhow::Result<()> {
    carried.skipped.print("skipped");
    if carried.moved.overtaken > 0 {
        let next = "a later run of the same import is under way, or the store's clock went back: run it again";
        bail!("{} counters have newer values than this run read; {next}", carried.moved.overtaken);
    }
    match run.done {
        true => mover.done()?,
        // An import of nothing is no writer.
        false => drop(mover.clean_up()),
    }
    Ok(())
}

/// What it came to, for programs.
fn fields(run: &Run, name: &str, mover: &Mover<'_>, carried: &Carried) -> Vec<(&'static str, Json)> {
    let mut fields = vec![
        ("source", Json::text(name)),
        ("writer", Json::text(mover.writer())),
        ("again", Json::Bool(mover.again())),
        ("done", Json::Bool(run.done)),
    ];
    fields.extend(carried.fields());
    fields
}

/// What it came to, for people.
fn print(run: &Run, name: &str, mover: &Mover<'_>, carried: &Carried, out: &mut impl Write) -> anyhow::Result<()> {
    let which = if mover.again() { "again" } else { "for the first time" };
    writeln!(out, "{}", show::bold(name))?;
    writeln!(out, "writer    {} ({which})", mover.writer())?;
    writeln!(out, "counters  {}", carried.moved.counters)?;
    writeln!(out, "sketches  {}", carried.moved.sketches)?;
    writeln!(out, "skipped   {}", carried.skipped.count())?;
    writeln!(out, "rate      {:.0}/s, {:.1} s", carried.per_second(), carried.took.as_secs_f64())?;
    match run.done {
        true => writeln!(out, "{}", show::good("done: it is retired, and will not be imported again"))?,
        false => writeln!(out, "{}", show::good("imported; it may be repeated"))?,
    }
    Ok(())
}
