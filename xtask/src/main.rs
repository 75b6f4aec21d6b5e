//! `cargo xtask`: the project's own commands.
//!
//! Not here: the tests. A part of `cargo xtask test` or `prove` is a row of a table in `parts`; its
//! proof lives with the code.

mod accuracy;
mod bench;
mod clients;
mod documents;
mod parts;
mod patches;
mod paths;
mod printed_pages;
mod proved;
mod rename;
mod run;
mod test;
mod tidy;
mod tools;

use std::process::ExitCode;

use anyhow::{Context, bail};

const USAGE: &str = "\
cargo xtask test [--only PART]               the check of a contributor and of CI, part by part; stops at the first that fails
cargo xtask prove [--only PART] [--hours N]  the long proof; parts that proofs/proved.toml has for these sources are not run again
    --only PART    only parts whose name begins so (see the table that it prints)
    --hours N      then kills, seeds and schedules for N more hours
cargo xtask patches [NAME …]                 applies each known-bad patch and shows the test that catches it
cargo xtask patches --carry [COMMIT]         merges each patch over the change of its files since COMMIT, HEAD by default
cargo xtask rename MAP.toml                  renames items, modules and local names in all sources, and carries the patches
cargo xtask tidy [--shrink]                  names, the engine's ranks and prose, beside the rules; --shrink lowers xtask/tidy.toml
cargo xtask docs                             prints the pages of docs/ that come from the code
cargo xtask accuracy [--quick] [--seed N] [--plot DIRECTORY] [--json]
                                             errors of approximate kinds, beside published figures and what they may be; fails
                                             if one is larger; --quick: some seconds, more noise, no verdict
cargo xtask bench bars [ARGUMENTS …]         ratios to Redis, as `quipu bench` measures them, beside what they must be
cargo xtask bench instructions [--check [PERCENT] | --write]
                                             instructions per command by callgrind, beside proofs/instructions.toml;
                                             --check fails beyond PERCENT (0.2), --write checks new figures in
cargo xtask bench postgres [--seconds N] [--repetitions N]
                                             a durable counter beside a hot row of PostgreSQL, in turn
cargo xtask bench memory [COUNTERS …]        bytes per counter beside Redis
cargo xtask bench http                       an add over HTTP beside nginx, and watchers beside bare writes
cargo xtask bench store [cpu|hot-counter|readers|pages|import|hot-row …]
                                             what a shared store costs a node and is spared, beside a node alone and a hot row
cargo xtask engines up                       a Redis, a Redis Cluster and a PostgreSQL to try things on, until Ctrl-C
cargo xtask tools                            installs what the tests need and says where it is";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match dispatch(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(arguments: &[String]) -> anyhow::Result<()> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["test"] => test::test(None),
        ["test", "--only", part] => test::test(Some(part)),
        ["prove", rest @ ..] => test::prove(&prove_options(rest)?),
        ["patches", "--carry"] => patches::carry::carry("HEAD"),
        ["patches", "--carry", commit] => patches::carry::carry(commit),
        ["docs"] => printed_pages::print_pages(),
        ["tidy"] => tidy::show(),
        ["tidy", "--shrink"] => tidy::shrink(),
        ["rename", map] => rename::rename(map),
        ["patches", names @ ..] if names.iter().all(|name| !name.starts_with('-')) => {
            patches::patches(names).map(|_| ())
        }
        ["bench", "bars", arguments @ ..] => bench::bars(arguments),
        ["bench", "instructions", rest @ ..] => bench::instructions(instructions_use(rest)?),
        ["accuracy", rest @ ..] => accuracy::accuracy(&accuracy_options(rest)?),
        ["bench", "postgres", rest @ ..] => bench::postgres(&postgres_options(rest)?),
        ["bench", "memory", counters @ ..] => bench::memory(&counters_of(counters)?),
        ["bench", "http"] => bench::http(),
        ["bench", "store", parts @ ..] => bench::store(parts),
        // Started by `bench http`.
        ["bench", "bare-writes", port] => bench::bare_writes(port),
        ["engines", "up"] => engines_up(),
        ["tools"] => {
            let tools = tools::install()?;
            println!("{tools}");
            Ok(())
        }
        [] | ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            Ok(())
        }
        other => bail!("unknown command '{}'\n{USAGE}", other.join(" ")),
    }
}

/// Starts real engines and prints their addresses, until it is interrupted.
fn engines_up() -> anyhow::Result<()> {
    tools::install()?;
    // Not captured: it prints to the caller's terminal, and receives the interrupt itself.
    let mut engines = parts::cargo("run --quiet -p quipu-testkit --example engines", &[]);
    let status = engines.status().context("run the engines")?;
    if !status.success() {
        bail!("the engines ended with {status}");
    }
    Ok(())
}

fn accuracy_options(mut words: &[&str]) -> anyhow::Result<accuracy::AccuracyOptions> {
    let mut options = accuracy::AccuracyOptions::default();
    loop {
        words = match words {
            [] => return Ok(options),
            ["--quick", rest @ ..] => {
                options.quick = true;
                rest
            }
            ["--json", rest @ ..] => {
                options.json = true;
                rest
            }
            ["--seed", seed, rest @ ..] => {
                options.seed = seed.parse().with_context(|| format!("'{seed}' is no number"))?;
                rest
            }
            ["--plot", directory, rest @ ..] => {
                options.plot = Some((*directory).into());
                rest
            }
            [lone, ..] => bail!("'{lone}' is unknown or lacks a value\n{USAGE}"),
        };
    }
}

fn postgres_options(mut words: &[&str]) -> anyhow::Result<bench::PostgresOptions> {
    let mut options = bench::PostgresOptions::default();
    while let [flag, value, rest @ ..] = words {
        let number: usize = value
            .parse()
            .ok()
            .filter(|&number| number > 0)
            .with_context(|| format!("'{value}' is no number above 0"))?;
        match *flag {
            "--seconds" => options.seconds = number,
            "--repetitions" => options.repetitions = number,
            other => bail!("unknown option '{other}'\n{USAGE}"),
        }
        words = rest;
    }
    match words {
        [] => Ok(options),
        [lone, ..] => bail!("'{lone}' is unknown or lacks a value\n{USAGE}"),
    }
}

fn instructions_use(words: &[&str]) -> anyhow::Result<bench::FiguresMode> {
    match words {
        [] => Ok(bench::FiguresMode::Show),
        ["--write"] => Ok(bench::FiguresMode::Write),
        ["--check"] => Ok(bench::FiguresMode::Check(bench::PERCENT_MAX)),
        ["--check", percent] => {
            let number = percent.parse().ok().filter(|percent| (0.0..=100.0).contains(percent));
            number.map(bench::FiguresMode::Check).with_context(|| format!("'{percent}' is no number of percent"))
        }
        other => bail!("unknown options '{}'\n{USAGE}", other.join(" ")),
    }
}

fn counters_of(words: &[&str]) -> anyhow::Result<Vec<usize>> {
    let number = |word: &&str| word.parse().ok().filter(|&counters| counters > 0);
    let each = words.iter().map(|word| number(word).with_context(|| format!("'{word}' is no number of counters")));
    each.collect()
}

fn prove_options(mut words: &[&str]) -> anyhow::Result<test::ProveOptions> {
    let mut options = test::ProveOptions::default();
    while let [flag, value, rest @ ..] = words {
        match *flag {
            "--hours" => {
                options.hours = value.parse().with_context(|| format!("'{value}' is not a number of hours"))?
            }
            "--only" => options.only = Some((*value).to_owned()),
            other => bail!("unknown option '{other}'\n{USAGE}"),
        }
        words = rest;
    }
    match words {
        [] => Ok(options),
        [lone, ..] => bail!("'{lone}' is unknown or lacks a value\n{USAGE}"),
    }
}
