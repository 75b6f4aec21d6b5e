//! `cargo xtask bench accuracy`: measures the errors of the approximate kinds, and compares them
//! with required figures.

use std::process::Command;

use anyhow::{Context, bail};
use comfy_table::Table;
use serde_json::Value;

use super::{build, table_text};
use crate::run::run;

/// Bars by name of the figure: an upper or a lower bound.
const BARS: &str = include_str!("../../../crates/quipu/tests/accuracy_bars.toml");

/// Measures with the shipped program and prints; an error if a figure misses its bar.
pub fn accuracy() -> anyhow::Result<()> {
    let quipu = build()?;
    let mut command = Command::new(quipu);
    command.args(["accuracy", "--json"]);
    let outcome = run("accuracy", &command)?.expect_success("quipu accuracy")?;
    let document = outcome.lines.iter().find(|line| line.starts_with('{')).context("quipu accuracy printed nothing")?;
    let document = serde_json::from_str(document).context("read what quipu accuracy printed")?;
    let (table, missed) = judge(&document)?;
    println!("{table}");
    if missed > 0 {
        bail!("{missed} figures miss their bar");
    }
    Ok(())
}

/// A table of all figures that have a bar, and the number of misses.
fn judge(document: &Value) -> anyhow::Result<(String, usize)> {
    let bars: toml::Table = BARS.parse().context("read the bars")?;
    let rows = document["rows"].as_array().context("the document has no rows")?;
    let (mut table, mut missed) = (Table::new(), 0);
    table.set_header(["figure", "verdict", "measured", "bar", "published"]);
    for (rule, names) in &bars {
        for (name, bar) in names.as_table().context("a rule is a table")? {
            let bar = bar.as_float().or(bar.as_integer().map(|bar| bar as f64)).context("a bar is a number")?;
            let row = rows.iter().find(|row| row["name"] == name.as_str());
            let row = row.with_context(|| format!("'{name}' was not measured"))?;
            let measured = row["measured"].as_f64().with_context(|| format!("'{name}' has no figure"))?;
            let is_met = if rule == "at_least" { measured >= bar } else { measured <= bar };
            missed += usize::from(!is_met);
            let published = row["published"].as_str().unwrap_or_default().to_owned();
            let verdict = if is_met { "met" } else { "missed" };
            table.add_row([name.clone(), verdict.to_owned(), format!("{measured:.4}"), bar.to_string(), published]);
        }
    }
    Ok((table_text(table, 2), missed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_that_misses_its_bar_is_counted_and_one_that_lacks_is_an_error() {
        let bars: toml::Table = BARS.parse().expect("it is ours");
        let names = bars.values().filter_map(|names| names.as_table()).flat_map(|names| names.keys());
        // Perfect figures, except sizes and errors that are far too large.
        let figure = |name: &String| {
            if name.contains("places") {
                100.0
            } else if name.contains("size") {
                1e9
            } else {
                0.0
            }
        };
        let rows: Vec<Value> =
            names.map(|name| serde_json::json!({"name": name, "measured": figure(name), "published": "x"})).collect();
        let (table, missed) = judge(&serde_json::json!({"rows": rows})).expect("all are there");
        assert_eq!((missed, table.matches("missed").count()), (4, 4), "{table}");
        assert!(judge(&serde_json::json!({"rows": []})).is_err());
    }
}
