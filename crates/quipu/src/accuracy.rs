//! `quipu accuracy`: measures every error that the approximate kinds promise, on this machine, from a seed.
//!
//! Not here: what is measured and what the bars are (`quipu_sketch::accuracy`), how a picture looks (`plot`).

mod plot;

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::process::ExitCode;

use anyhow::Context;
use quipu_sketch::accuracy::{Report, Row, Scale, measure};

use crate::args::Accuracy;
use crate::json::Json;
use crate::progress::Progress;
use crate::show;

/// Steps of the bar.
const STEPS: u64 = 1000;

/// Measures, prints, and says by the exit status whether all bars were met.
pub fn accuracy(flags: &Accuracy, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let scale = if flags.quick { Scale::Quick } else { Scale::Full };
    let report = {
        let bar = Progress::of_steps("accuracy", STEPS);
        measure(scale, flags.seed, &|what, done| {
            bar.set((done * STEPS as f64) as u64, STEPS);
            bar.tell(what.to_owned());
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
    Ok(if report.rows.iter().all(Row::met) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn table(report: &Report) -> String {
    let mut table = show::table(["FIGURE", "MEASURED", "BAR", "UNIT", "", "OTHERS"]);
    for row in &report.rows {
        let verdict = match row.bar {
            None => String::new(),
            Some(_) if row.met() => show::good("met"),
            Some(_) => show::bad("missed"),
        };
        let bar = row.bar.map_or_else(String::new, |bar| rounded(bar));
        table.add_row([row.name.as_str(), &rounded(row.measured), &bar, row.unit, &verdict, row.anchor]);
    }
    show::figures(table, 1..3) + "\n"
}

fn json(report: &Report) -> Json {
    let row = |row: &Row| {
        Json::Object(vec![
            ("name", Json::text(&row.name)),
            ("unit", Json::text(row.unit)),
            ("measured", Json::Decimal(row.measured)),
            ("anchor", Json::text(row.anchor)),
            ("bar", row.bar.map_or(Json::Null, Json::Decimal)),
            ("met", Json::Bool(row.met())),
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

/// Errors to four digits behind the point, sizes and places as they are.
fn rounded(value: f64) -> String {
    let text = format!("{value:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}
