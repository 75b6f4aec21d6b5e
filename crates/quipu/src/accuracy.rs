//! `quipu accuracy`: measures every error bound of the approximate kinds, on this machine, from a
//! seed.
//!
//! Not here: the measurements (`quipu_sketch::accuracy`), the layout of a chart (`plot`), the
//! required figures (`cargo xtask bench accuracy`).

mod plot;

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::process::ExitCode;

use anyhow::Context;
use quipu_sketch::accuracy::{Report, ReportRow, Scale, measure};

use crate::args::AccuracyArgs;
use crate::json::Json;
use crate::progress::Progress;
use crate::terminal;

/// Steps of the progress bar.
const STEPS: u64 = 1000;

/// Measures, and prints the figures.
pub fn accuracy(flags: &AccuracyArgs, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let scale = if flags.quick { Scale::Quick } else { Scale::Full };
    let report = {
        let bar = Progress::for_steps("accuracy", STEPS);
        measure(scale, flags.seed, &|what, done| {
            bar.set((done * STEPS as f64) as u64, STEPS);
            bar.set_message(what.to_owned());
        })
    };
    if let Some(directory) = &flags.plot {
        fs::create_dir_all(directory).with_context(|| format!("make {}", directory.display()))?;
        for name in report.series.iter().map(|series| series.plot).collect::<BTreeSet<_>>() {
            let path = directory.join(format!("accuracy-{name}.svg"));
            let series: Vec<_> = report.series.iter().filter(|series| series.plot == name).collect();
            fs::write(&path, plot::plot(&series)).with_context(|| format!("write {}", path.display()))?;
        }
    }
    if flags.json {
        writeln!(out, "{}", json(&report))?;
    } else {
        write!(out, "{}", table(&report))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn table(report: &Report) -> String {
    let mut table = terminal::table(["FIGURE", "MEASURED", "UNIT", "PUBLISHED"]);
    for row in &report.rows {
        table.add_row([row.name.as_str(), &rounded(row.measured), row.unit, row.published]);
    }
    terminal::render_figures(table, 1..2) + "\n"
}

fn json(report: &Report) -> Json {
    let row = |row: &ReportRow| {
        Json::Object(vec![
            ("name", Json::text(&row.name)),
            ("unit", Json::text(row.unit)),
            ("measured", Json::Decimal(row.measured)),
            ("published", Json::text(row.published)),
        ])
    };
    let series = report.series.iter().map(|series| {
        let points = series.points.iter().map(|(x, y)| Json::List(vec![Json::Decimal(*x), Json::Decimal(*y)]));
        Json::Object(vec![
            ("plot", Json::text(series.plot)),
            ("name", Json::text(&series.name)),
            ("x", Json::text(series.x)),
            ("y", Json::text(series.y)),
            ("points", Json::List(points.collect())),
        ])
    });
    Json::Object(vec![
        ("rows", Json::List(report.rows.iter().map(row).collect())),
        ("series", Json::List(series.collect())),
    ])
}

/// An error with four decimals; sizes and counts print as they are.
fn rounded(value: f64) -> String {
    let text = format!("{value:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}
