//! `quipu import`: imports the counters of a Redis or a PostgreSQL that knows nothing of Quipu.
//!
//! Exit status 0: every counter is imported. 1: the import failed, or, with `--strict`, skipped a
//! key.

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, bail};

use crate::backends::source::SourceFilter;
use crate::backends::{StoreUrl, open_source};
use crate::json::Json;
use crate::stores::args::{ImportArgs, ImportRunArgs};
use crate::stores::import_pipeline::{ImportReport, import_all};
use crate::stores::importer::Importer;
use crate::terminal;

/// Imports, and prints the outcome.
pub fn import(flags: &ImportArgs, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let url = StoreUrl::new(&flags.store.store).context("--store")?;
    let filter = SourceFilter { pattern: flags.pattern.clone(), query: flags.query.clone() };
    let mut source = open_source(&flags.source, &filter)?;
    let name = flags.run.name.clone().unwrap_or_else(|| source.location().to_owned());
    let name = name.as_str();
    let store = url.open()?;
    let importer = Importer::begin(&*store, name, &flags.secret.store_secret)?;
    let report = import_all(&mut *source, &importer, "importing").map_err(|error| match importer.clean_up() {
        true => error.context("the import is not complete; some counters are in and stay, and the next run goes on as the same writer: run it again"),
        false => error.context("nothing was imported"),
    });
    let report = report.with_context(|| format!("import {name} into {url}"))?;
    finish(&flags.run, &importer, &report)?;
    match flags.run.json {
        true => writeln!(out, "{}", Json::Object(fields(&flags.run, name, &importer, &report)))?,
        false => print(&flags.run, name, &importer, &report, out)?,
    }
    let strict = flags.strict && report.skipped.count() > 0;
    Ok(if strict { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Ends a run that was successful.
fn finish(run: &ImportRunArgs, importer: &Importer<'_>, report: &ImportReport) -> anyhow::Result<()> {
    report.skipped.print("skipped");
    if report.counts.overtaken > 0 {
        let next = "a later run of the same import is under way, or the store's clock went back: run it again";
        bail!("{} counters have newer values than this run read; {next}", report.counts.overtaken);
    }
    match run.done {
        true => importer.finish()?,
        // An import of nothing leaves no writer.
        false => drop(importer.clean_up()),
    }
    Ok(())
}

/// The outcome for programs.
fn fields(
    run: &ImportRunArgs,
    name: &str,
    importer: &Importer<'_>,
    report: &ImportReport,
) -> Vec<(&'static str, Json)> {
    let mut fields = vec![
        ("source", Json::text(name)),
        ("writer", Json::text(importer.writer())),
        ("again", Json::Bool(importer.is_repeated())),
        ("done", Json::Bool(run.done)),
    ];
    fields.extend(report.fields());
    fields
}

/// The outcome for people.
fn print(
    run: &ImportRunArgs,
    name: &str,
    importer: &Importer<'_>,
    report: &ImportReport,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let label = if importer.is_repeated() { "again" } else { "for the first time" };
    writeln!(out, "{}", terminal::bold(name))?;
    writeln!(out, "writer    {} ({label})", importer.writer())?;
    writeln!(out, "counters  {}", report.counts.counters)?;
    writeln!(out, "sketches  {}", report.counts.sketches)?;
    writeln!(out, "skipped   {}", report.skipped.count())?;
    writeln!(out, "rate      {:.0}/s, {:.1} s", report.per_second(), report.elapsed.as_secs_f64())?;
    match run.done {
        true => writeln!(out, "{}", terminal::good("done: it is retired, and will not be imported again"))?,
        false => writeln!(out, "{}", terminal::good("imported; it may be repeated"))?,
    }
    Ok(())
}
