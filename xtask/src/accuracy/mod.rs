//! `cargo xtask accuracy`: measures every error of the approximate kinds, from a seed, beside the
//! published figure and the required one.
//!
//! In: options. Out: a table or JSON, charts, and an error if a figure misses its bar.
//!
//! Invariant: a quick measurement has no verdict. Chance alone moves its figures.
//!
//! Not here: the measurements (`figures`), the layout of a chart (`plot`).

mod figures;
mod frequent;
mod plot;
mod rng;
mod sampled;
mod uniques;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use self::figures::{AccuracyReport, Scale, measure};

/// Bars by name of the figure: an upper or a lower bound.
const BARS: &str = include_str!("../../accuracy_bars.toml");

/// Steps of the progress bar.
const STEPS: u64 = 1000;

/// Decimals of a figure in JSON, as a factor.
const DECIMALS: f64 = 10_000.0;

/// Options of a measurement.
#[derive(Debug, Clone)]
pub struct AccuracyOptions {
    /// Seconds instead of minutes; the figures then have more noise, and no verdict.
    pub quick: bool,
    /// Seed of the random numbers; the same number gives the same figures.
    pub seed: u64,
    /// Directory for SVG charts of errors over items and over memory.
    pub plot: Option<PathBuf>,
    /// One JSON value instead of a table.
    pub json: bool,
}

impl Default for AccuracyOptions {
    fn default() -> AccuracyOptions {
        AccuracyOptions { quick: false, seed: 1, plot: None, json: false }
    }
}

/// A required figure.
struct AccuracyBar {
    figure: String,
    limit: f64,
    is_least: bool,
}

impl AccuracyBar {
    fn is_met(&self, measured: f64) -> bool {
        if self.is_least { measured >= self.limit } else { measured <= self.limit }
    }
}

/// The text for a reader, and the number of figures that miss their bar.
struct Verdict {
    text: String,
    missed: usize,
}

/// Measures and prints; an error if a figure of a full measurement misses its bar.
pub fn accuracy(options: &AccuracyOptions) -> anyhow::Result<()> {
    let report = measure_with_bar(options)?;
    if let Some(directory) = &options.plot {
        write_charts(&report, directory)?;
    }
    let verdict = judge(&report, options)?;
    println!("{}", verdict.text);
    if verdict.missed > 0 {
        bail!("{} figures miss their bar", verdict.missed);
    }
    Ok(())
}

fn measure_with_bar(options: &AccuracyOptions) -> anyhow::Result<AccuracyReport> {
    let style = ProgressStyle::with_template("[{bar:30}] {percent} %, {eta} left: {wide_msg}")?;
    let bar = ProgressBar::new(STEPS).with_style(style.progress_chars("=> "));
    let scale = if options.quick { Scale::Quick } else { Scale::Full };
    let report = measure(scale, options.seed, &|what, done| {
        bar.set_position((done * STEPS as f64) as u64);
        bar.set_message(what.to_owned());
    });
    bar.finish_and_clear();
    Ok(report)
}

fn write_charts(report: &AccuracyReport, directory: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(directory).with_context(|| format!("make {}", directory.display()))?;
    for name in report.curves.iter().map(|curve| curve.plot).collect::<BTreeSet<_>>() {
        let path = directory.join(format!("accuracy-{name}.svg"));
        let curves: Vec<_> = report.curves.iter().filter(|curve| curve.plot == name).collect();
        fs::write(&path, plot::plot(&curves)).with_context(|| format!("write {}", path.display()))?;
    }
    Ok(())
}

fn bars() -> anyhow::Result<Vec<AccuracyBar>> {
    let rules: toml::Table = BARS.parse().context("read the bars")?;
    let mut bars = Vec::new();
    for (rule, limits) in &rules {
        for (figure, limit) in limits.as_table().context("a rule is a table")? {
            let limit = limit.as_float().or(limit.as_integer().map(|limit| limit as f64));
            let limit = limit.context("a bar is a number")?;
            bars.push(AccuracyBar { figure: figure.clone(), limit, is_least: rule == "at_least" });
        }
    }
    Ok(bars)
}

/// The figures as a table or as JSON, with bars and verdicts if the measurement was a full one.
fn judge(report: &AccuracyReport, options: &AccuracyOptions) -> anyhow::Result<Verdict> {
    let bars = if options.quick { Vec::new() } else { bars()? };
    let mut missed = 0;
    for bar in &bars {
        let row = report.rows.iter().find(|row| row.name == bar.figure);
        let row = row.with_context(|| format!("'{}' was not measured", bar.figure))?;
        missed += usize::from(!bar.is_met(row.measured));
    }
    let text = if options.json { document(report).to_string() } else { table(report, &bars) };
    Ok(Verdict { text, missed })
}

fn table(report: &AccuracyReport, bars: &[AccuracyBar]) -> String {
    let mut table = Table::new();
    let mut head = vec!["FIGURE", "MEASURED", "UNIT", "PUBLISHED"];
    if !bars.is_empty() {
        head.extend(["BAR", "VERDICT"]);
    }
    table.load_style(NOTHING).set_header(head);
    for row in &report.rows {
        let mut cells = vec![row.name.clone(), rounded(row.measured), row.unit.to_owned(), row.published.to_owned()];
        if let Some(bar) = bars.iter().find(|bar| bar.figure == row.name) {
            let verdict = if bar.is_met(row.measured) { "met" } else { "missed" };
            cells.extend([bar.limit.to_string(), verdict.to_owned()]);
        }
        table.add_row(cells);
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    for index in [1, 4] {
        if let Some(column) = table.column_mut(index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.trim_fmt()
}

fn document(report: &AccuracyReport) -> Value {
    let figure = |value: f64| (value * DECIMALS).round() / DECIMALS;
    let rows = report.rows.iter().map(
        |row| json!({"name": row.name, "unit": row.unit, "measured": figure(row.measured), "published": row.published}),
    );
    let series = report.curves.iter().map(|curve| {
        let points = curve.points.iter().map(|(x, y)| json!([figure(*x), figure(*y)]));
        let points: Vec<Value> = points.collect();
        json!({"plot": curve.plot, "name": curve.name, "x": curve.x, "y": curve.y, "points": points})
    });
    json!({"rows": rows.collect::<Vec<Value>>(), "series": series.collect::<Vec<Value>>()})
}

/// An error with four decimals; sizes and counts print as they are.
fn rounded(value: f64) -> String {
    let text = format!("{value:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use super::figures::ReportRow;
    use super::*;

    /// The bias of a quick measurement, in percent: chance alone makes this much.
    const QUICK_BIAS_MAX: f64 = 0.5;

    static QUICK: LazyLock<AccuracyReport> = LazyLock::new(|| measure(Scale::Quick, 1, &|_, _| ()));

    fn quick(json: bool) -> Verdict {
        judge(&QUICK, &AccuracyOptions { quick: true, json, ..AccuracyOptions::default() }).expect("it is measured")
    }

    #[test]
    fn a_quick_measurement_is_near_the_bars_and_exits_0_whatever_it_finds() {
        let Verdict { text, missed } = quick(true);
        assert_eq!(missed, 0);
        let document: Value = serde_json::from_str(&text).expect("JSON");
        let rows = document["rows"].as_array().expect("a list");
        for AccuracyBar { figure, limit, is_least } in bars().expect("they are ours") {
            let row = rows.iter().find(|row| row["name"] == figure.as_str());
            let row = row.unwrap_or_else(|| panic!("{figure}: {document}"));
            assert!(row["published"].is_string() && row.get("met").is_none() && row.get("bar").is_none(), "{row}");
            let measured = row["measured"].as_f64().expect("a number");
            // Sizes and limits do not depend on chance; errors have much noise here, lists may miss
            // one place.
            let near = if is_least {
                measured >= limit - 3.0
            } else if figure.ends_with("bias") {
                measured <= QUICK_BIAS_MAX
            } else if row["unit"] == "%" && limit >= 0.5 {
                measured <= 1.5 * limit
            } else {
                measured <= limit
            };
            assert!(near, "{figure} is {measured}, and {limit} is asked for");
        }
        for series in document["series"].as_array().expect("a list") {
            assert!(series["points"].as_array().is_some_and(|points| !points.is_empty()), "{series}");
        }
    }

    #[test]
    fn people_get_the_published_figure_beside_the_measured_one() {
        let Verdict { text, .. } = quick(false);
        assert!(text.starts_with("FIGURE") && text.contains("Redis 0.81"), "{text}");
        let has = |word: &str| text.split_whitespace().any(|found| found == word);
        assert!(["missed", "met", "BAR"].iter().all(|word| !has(word)), "{text}");
    }

    #[test]
    fn a_figure_that_misses_its_bar_is_counted_and_one_that_lacks_is_an_error() {
        // Perfect figures, except sizes and errors that are far too large.
        let figure = |name: &str| {
            if name.contains("places") {
                100.0
            } else if name.contains("size") {
                1e9
            } else {
                0.0
            }
        };
        let row = |bar: AccuracyBar| {
            let measured = figure(&bar.figure);
            ReportRow { name: bar.figure, unit: "%", measured, published: "x" }
        };
        let rows = bars().expect("they are ours").into_iter().map(row).collect();
        let report = AccuracyReport { rows, ..AccuracyReport::default() };
        let verdict = judge(&report, &AccuracyOptions::default()).expect("all are there");
        assert_eq!((verdict.missed, verdict.text.matches("missed").count()), (4, 4), "{}", verdict.text);
        assert!(judge(&AccuracyReport::default(), &AccuracyOptions::default()).is_err());
    }
}
