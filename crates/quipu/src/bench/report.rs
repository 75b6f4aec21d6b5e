//! Prints the results of `quipu bench`: tables for people, or one JSON document.

use std::io::{self, Write};

use super::figures::{AckAccount, BenchSetting, Ratio, Series, micros, ratios};
use super::measure::Measurement;
use crate::args;
use crate::json::Json;
use crate::terminal;

/// All results of a bench.
pub struct BenchReport {
    /// Every setting of every server.
    pub series: Vec<Series>,
    /// The acknowledged adds of each server, and the sums found afterwards.
    pub accounts: Vec<AckAccount>,
    /// The version of Redis, if it was measured.
    pub redis: Option<String>,
    /// True if server and load had a core each.
    pub pinned: bool,
    /// Warnings to read before the figures.
    pub notes: Vec<String>,
}

impl BenchReport {
    /// Prints tables.
    pub fn print(&self, flags: &args::BenchArgs, out: &mut impl Write) -> io::Result<()> {
        let (connections, command) = (flags.connections, flags.command.name());
        writeln!(
            out,
            "{}",
            terminal::bold(&format!("{command}, {connections} connections, median of {}", flags.repetitions))
        )?;
        let mut table =
            terminal::table(["mode", "keys", "P", "server", "ops/s", "p50 µs", "p99 µs", "p99.9 µs", "CPU µs/op"]);
        for series in &self.series {
            let time = |of: fn(&Measurement) -> f64| rounded(series.median(of));
            let [mode, keys, pipeline] = described(series.setting);
            table.add_row([
                mode,
                keys,
                pipeline,
                series.peer.name().to_owned(),
                grouped(series.median(Measurement::throughput) as u64),
                time(|sample| micros(sample.p50)),
                time(|sample| micros(sample.p99)),
                time(|sample| micros(sample.p999)),
                series.median_known(Measurement::cpu_per_operation).map_or_else(|| "–".to_owned(), rounded),
            ]);
        }
        writeln!(out, "{}", terminal::render_figures(table, 1..9))?;
        let ratios = ratios(&self.series);
        if !ratios.is_empty() {
            let redis = self.redis.as_deref().unwrap_or_default();
            writeln!(out, "\n{}", terminal::bold(&format!("how many times better than redis-server {redis}")))?;
            writeln!(out, "{}", ratio_table(&ratios))?;
        }
        for note in &self.notes {
            writeln!(out, "{note}")?;
        }
        Ok(())
    }

    /// The results as one JSON document.
    pub fn json(&self, flags: &args::BenchArgs) -> Json {
        let measured = self.series.iter().map(series_json).collect();
        let accounts = self.accounts.iter().map(|account| {
            Json::Object(vec![
                ("server", Json::text(account.peer.name())),
                ("mode", account.mode.map_or(Json::Null, Json::text)),
                ("keys", Json::count(account.keys as u64)),
                ("acknowledged", Json::count(account.acknowledged)),
                ("found", account.found.map_or(Json::Null, Json::count)),
            ])
        });
        Json::Object(vec![
            ("quipu", Json::text(env!("CARGO_PKG_VERSION"))),
            ("redis", self.redis.as_ref().map_or(Json::Null, Json::text)),
            ("command", Json::text(flags.command.name())),
            ("connections", Json::count(flags.connections as u64)),
            ("seconds", Json::Decimal(flags.seconds)),
            ("repetitions", Json::count(flags.repetitions as u64)),
            ("pinned", Json::Bool(self.pinned)),
            ("notes", Json::List(self.notes.iter().map(Json::text).collect())),
            ("measurements", Json::List(measured)),
            ("ratios", Json::List(ratios(&self.series).iter().map(ratio_json).collect())),
            ("accounts", Json::List(accounts.collect())),
        ])
    }
}

fn ratio_table(ratios: &[Ratio]) -> String {
    let mut table = terminal::table(["mode", "keys", "P", "CPU per op", "floor", "throughput"]);
    for ratio in ratios {
        let [mode, keys, pipeline] = described(ratio.setting);
        let figure = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), |value| format!("{value:.2}"));
        table.add_row([mode, keys, pipeline, figure(ratio.cpu), figure(ratio.floor), figure(ratio.throughput)]);
    }
    terminal::render_figures(table, 1..6)
}

fn series_json(series: &Series) -> Json {
    let known = |of: fn(&Measurement) -> Option<f64>| series.median_known(of).map_or(Json::Null, Json::Decimal);
    let samples = series.samples.iter().map(|sample| {
        Json::Object(vec![
            ("operations", Json::count(sample.operations)),
            ("seconds", Json::Decimal(sample.elapsed.as_secs_f64())),
            ("operations_per_second", Json::Decimal(sample.throughput())),
            ("p50_us", Json::Decimal(micros(sample.p50))),
            ("p99_us", Json::Decimal(micros(sample.p99))),
            ("p999_us", Json::Decimal(micros(sample.p999))),
            ("cpu_us_per_operation", sample.cpu_per_operation().map_or(Json::Null, Json::Decimal)),
        ])
    });
    let mut fields = setting_json(series.setting);
    fields.insert(0, ("server", Json::text(series.peer.name())));
    fields.extend([
        ("operations", Json::count(series.samples.iter().map(|sample| sample.operations).sum())),
        ("operations_per_second", Json::Decimal(series.median(Measurement::throughput))),
        ("p50_us", Json::Decimal(series.median(|sample| micros(sample.p50)))),
        ("p99_us", Json::Decimal(series.median(|sample| micros(sample.p99)))),
        ("p999_us", Json::Decimal(series.median(|sample| micros(sample.p999)))),
        ("cpu_us_per_operation", known(Measurement::cpu_per_operation)),
        ("server_busy", known(Measurement::busy)),
        ("load_cpu_us_per_operation", known(Measurement::load_cpu_per_operation)),
        ("samples", Json::List(samples.collect())),
    ]);
    Json::Object(fields)
}

fn ratio_json(ratio: &Ratio) -> Json {
    let figure = |value: Option<f64>| value.map_or(Json::Null, Json::Decimal);
    let mut fields = setting_json(ratio.setting);
    fields.extend([
        ("cpu_per_operation", figure(ratio.cpu)),
        ("throughput", figure(ratio.throughput)),
        ("floor", figure(ratio.floor)),
    ]);
    Json::Object(fields)
}

fn setting_json(setting: BenchSetting) -> Vec<(&'static str, Json)> {
    vec![
        ("mode", setting.mode.map_or(Json::Null, Json::text)),
        ("keys", Json::count(setting.keys as u64)),
        ("pipeline", Json::count(setting.pipeline as u64)),
    ]
}

fn described(setting: BenchSetting) -> [String; 3] {
    let mode = setting.mode.map_or_else(|| "as it is".to_owned(), |mode| mode.to_string());
    [mode, grouped(setting.keys as u64), setting.pipeline.to_string()]
}

/// At least three significant digits of a value from 1 on; three decimals below 1.
pub fn rounded(value: f64) -> String {
    match value {
        value if value >= 100.0 => grouped(value.round() as u64),
        value if value >= 10.0 => format!("{value:.1}"),
        value if value >= 1.0 => format!("{value:.2}"),
        value => format!("{value:.3}"),
    }
}

/// A number with a comma between thousands.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_as_long_as_they_are_exact() {
        for (value, shown) in [(0.0634, "0.063"), (1.256, "1.26"), (12.34, "12.3"), (1712.4, "1,712")] {
            assert_eq!(rounded(value), shown);
        }
        for (value, shown) in [(7, "7"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(grouped(value), shown);
        }
    }
}
