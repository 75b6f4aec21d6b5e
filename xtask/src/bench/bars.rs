//! `cargo xtask bench bars`: measures ratios to Redis, and compares them with required and desired
//! ratios.
//!
//! A *goal* lies at 0.8 to 1.0 of the ratio of prototypes that only count. A *must* is required of
//! the finished server with everything switched on.
//!
//! `durable` compares throughput, since the disk decides. The other modes compare CPU time per
//! operation, since a load generator may be slower than the server.

use anyhow::Context;
use comfy_table::Table;
use serde_json::Value;

use super::{build, quipu_bench, table_text};
use crate::tools::need_programs;

/// The required and the desired ratio.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Bar {
    must: f64,
    goal: f64,
}

impl Bar {
    /// The bar of a command in a mode with this number in flight; others have none.
    fn find(command: &str, mode: &str, pipeline: u64) -> Option<Bar> {
        if command == "PFADD" {
            return (pipeline == 64).then_some(Bar { must: 2.0, goal: 2.0 });
        }
        let column = [1, 16, 64, 256].iter().position(|&known| known == pipeline)?;
        let (must, goal) = match (command, mode) {
            ("INCR", "memory") => ([1.05, 2.0, 3.0, 4.5], [1.15, 2.3, 4.0, 7.0]),
            ("INCR", "relaxed") => ([1.0, 2.0, 3.0, 3.0], [1.1, 2.3, 4.0, 4.5]),
            ("INCR", "durable") => ([1.1, 2.0, 3.0, 4.0], [1.3, 2.3, 4.0, 6.0]),
            _ => return None,
        };
        Some(Bar { must: must[column], goal: goal[column] })
    }

    fn verdict(self, ratio: f64) -> &'static str {
        match ratio {
            ratio if ratio >= self.goal => "goal",
            ratio if ratio >= self.must => "must",
            _ => "below",
        }
    }
}

/// Measures the shipped program beside Redis and prints. `arguments` are passed on to
/// `quipu bench`.
pub fn bars(arguments: &[&str]) -> anyhow::Result<()> {
    need_programs(&["redis-server"], &["redis-server"])?;
    let quipu = build()?;
    let document = quipu_bench("bars", &quipu, &[&["--with-redis"], arguments].concat())?;
    println!("{}", table(&document)?);
    Ok(())
}

/// The ratios of a document of `quipu bench`, each beside its bar.
fn table(document: &Value) -> anyhow::Result<String> {
    let command = document["command"].as_str().context("the document names no command")?;
    let ratios = document["ratios"].as_array().context("the document has no ratios")?;
    let mut table = Table::new();
    table.set_header(["mode", "judged by", "stands", "keys", "P", "ratio", "must", "goal"]);
    for ratio in ratios {
        let (mode, pipeline) = (ratio["mode"].as_str().unwrap_or_default(), ratio["pipeline"].as_u64().unwrap_or(0));
        let (basis, key) = match mode {
            "durable" => ("throughput", "throughput"),
            _ => ("CPU per op", "cpu_per_operation"),
        };
        let (bar, measured) = (Bar::find(command, mode, pipeline), ratio[key].as_f64());
        let figure = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), |value| format!("{value:.2}"));
        table.add_row([
            mode.to_owned(),
            basis.to_owned(),
            bar.zip(measured).map_or("–", |(bar, measured)| bar.verdict(measured)).to_owned(),
            ratio["keys"].to_string(),
            pipeline.to_string(),
            figure(measured),
            figure(bar.map(|bar| bar.must)),
            figure(bar.map(|bar| bar.goal)),
        ]);
    }
    Ok(table_text(table, 3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mode_has_a_bar_where_it_is_measured_by_default() {
        for mode in ["memory", "relaxed", "durable"] {
            for pipeline in [1, 16, 64, 256] {
                let bar = Bar::find("INCR", mode, pipeline).expect("it has one");
                assert!(bar.must < bar.goal, "{mode} {pipeline}");
                assert_eq!(
                    [bar.goal, bar.must, bar.must - 0.01].map(|ratio| bar.verdict(ratio)),
                    ["goal", "must", "below"]
                );
            }
            assert_eq!(Bar::find("INCR", mode, 32), None);
            assert_eq!(Bar::find("GET", mode, 64), None);
        }
    }

    #[test]
    fn a_ratio_of_a_document_is_judged_by_its_mode() {
        let ratio = |mode| serde_json::json!({"mode": mode, "keys": 1, "pipeline": 16, "cpu_per_operation": 2.1, "throughput": 1.9});
        let document = serde_json::json!({"command": "INCR", "ratios": [ratio("memory"), ratio("durable")]});
        let shown = table(&document).expect("it can be read");
        let words =
            |line: usize| shown.lines().nth(line).expect("a row").split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(words(1), "memory CPU per op must 1 16 2.10 2.00 2.30");
        assert_eq!(words(2), "durable throughput below 1 16 1.90 2.00 2.30");
        assert!(table(&serde_json::json!({})).is_err());
    }
}
