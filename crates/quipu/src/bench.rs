//! `quipu bench`: prints the figures of a bench as tables for people, or as one JSON document.
//!
//! Not here: the measurement and the chart (`quipu-bench`).

use std::io::Write;
use std::process::ExitCode;

use anyhow::Context;
use quipu_bench::{
    BenchArgs, BenchProgress, BenchReport, BenchSetting, FloorArgs, Measurement, Ratio, Series, grouped, micros,
    rounded,
};

use crate::json::Json;
use crate::progress::Progress;
use crate::resp_client::RespClient;
use crate::terminal;

/// Measures, and prints the report.
pub fn bench(flags: &BenchArgs, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let password = flags.password.as_deref();
    // Reports an unreachable server or a wrong password in plain words.
    let running = match &flags.server {
        Some(server) => Some(RespClient::connect(server, password)?.server()?),
        None => None,
    };
    let report = {
        let progress = Progress::for_steps("starting", flags.steps() as u64);
        quipu_bench::bench(flags, running, &progress)?
    };
    if let Some(file) = &flags.plot {
        std::fs::write(file, report.chart(flags)).with_context(|| format!("write {}", file.display()))?;
    }
    if flags.json {
        writeln!(out, "{}", report_json(&report, flags))?;
    } else {
        print_tables(&report, flags, out)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Serves for `bench --with-floor` until it is killed.
pub fn floor(flags: &FloorArgs, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    quipu_bench::floor(flags, out)?;
    Ok(ExitCode::SUCCESS)
}

impl BenchProgress for Progress {
    fn set_message(&self, message: String) {
        Progress::set_message(self, message);
    }

    fn add(&self, steps: u64) {
        Progress::add(self, steps);
    }
}

fn print_tables(report: &BenchReport, flags: &BenchArgs, out: &mut impl Write) -> anyhow::Result<()> {
    let (connections, command) = (flags.connections, flags.command.name());
    writeln!(
        out,
        "{}",
        terminal::bold(&format!("{command}, {connections} connections, median of {}", flags.repetitions))
    )?;
    let mut table =
        terminal::table(["mode", "keys", "P", "server", "ops/s", "p50 µs", "p99 µs", "p99.9 µs", "CPU µs/op"]);
    for series in &report.series {
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
    let ratios = report.ratios();
    if !ratios.is_empty() {
        let redis = report.redis.as_deref().unwrap_or_default();
        writeln!(out, "\n{}", terminal::bold(&format!("how many times better than redis-server {redis}")))?;
        writeln!(out, "{}", ratio_table(&ratios))?;
    }
    for note in &report.notes {
        writeln!(out, "{note}")?;
    }
    Ok(())
}

fn report_json(report: &BenchReport, flags: &BenchArgs) -> Json {
    let measured = report.series.iter().map(series_json).collect();
    let accounts = report.accounts.iter().map(|account| {
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
        ("redis", report.redis.as_ref().map_or(Json::Null, Json::text)),
        ("command", Json::text(flags.command.name())),
        ("connections", Json::count(flags.connections as u64)),
        ("seconds", Json::Decimal(flags.seconds)),
        ("repetitions", Json::count(flags.repetitions as u64)),
        ("pinned", Json::Bool(report.pinned)),
        ("notes", Json::List(report.notes.iter().map(Json::text).collect())),
        ("measurements", Json::List(measured)),
        ("ratios", Json::List(report.ratios().iter().map(ratio_json).collect())),
        ("accounts", Json::List(accounts.collect())),
    ])
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
