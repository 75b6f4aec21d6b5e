//! `cargo xtask bench instructions`: counts instructions per command by callgrind, and compares
//! them with the checked-in figures.
//!
//! The measured program is `crates/quipu-server/examples/instructions.rs`, with the shipped build
//! profile. Every setting runs twice, with one pass over its input and with two. The difference is
//! a pass in a warm server, and needs no symbols.
//!
//! Invariants:
//! - two measurements of one program on one machine are equal, independently of other load on the
//!   machine;
//! - figures are compared only with those of the same compiler, C library, CPU features and
//!   valgrind.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use comfy_table::Table;
use serde::{Deserialize, Serialize};

use super::table_text;
use crate::parts::cargo;
use crate::paths::{own, root, target};
use crate::run::run;
use crate::tools::need_programs;

/// Builds the measured program. A part of `cargo xtask prove` builds it with the other programs.
pub const BUILD: &str = "build --profile dist -p quipu-server --example instructions";

/// Greatest difference from a checked-in figure, in percent: the effect that a rename may have.
pub const PERCENT_MAX: f64 = 0.2;

/// The checked-in figures. Not among the sources of a proof: they follow from those.
const FILE: &str = "proofs/instructions.toml";

const HEAD: &str = "\
# Instructions per command, counted by callgrind. Written by `cargo xtask bench instructions --write`, compared by
# `cargo xtask bench instructions --check` and by a part of `cargo xtask prove`.

";

/// The use of the figures.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum FiguresMode {
    /// Show them.
    Show,
    /// Fail if one differs by more than this number of percent.
    Check(f64),
    /// Check them in.
    Write,
}

/// Figures, and the toolchain that they depend on beside the sources.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct InstructionFigures {
    toolchain: Toolchain,
    /// By setting.
    instructions_per_command: BTreeMap<String, f64>,
}

/// The dependencies of an instruction count beside the sources.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Toolchain {
    rustc: String,
    host: String,
    /// The C library picks its copying by CPU features.
    libc: String,
    cpu: String,
    valgrind: String,
}

/// Figures beside the checked-in ones.
pub struct Comparison {
    /// One row for each setting.
    pub table: String,
    /// Number of settings within the bound.
    pub within: usize,
    /// Number of settings outside it.
    pub outside: usize,
    /// The largest difference, in percent.
    pub percent: f64,
}

/// Counts, prints, and compares or writes.
pub fn instructions(usage: FiguresMode) -> anyhow::Result<()> {
    match usage {
        FiguresMode::Show => {
            let measured = measure()?;
            let known = read_file().ok().filter(|known| known.toolchain == measured.toolchain);
            println!("{}", compare(known.as_ref(), &measured, PERCENT_MAX).table);
        }
        FiguresMode::Check(percent_max) => {
            let comparison = check(percent_max)?;
            println!("{}", comparison.table);
            comparison.expect_within(percent_max)?;
        }
        FiguresMode::Write => {
            let measured = measure()?;
            let known = read_file().ok();
            println!("{}", compare(known.as_ref(), &measured, PERCENT_MAX).table);
            let text = toml::to_string_pretty(&measured).context("write the figures as TOML")?;
            std::fs::write(root().join(FILE), format!("{HEAD}{text}")).with_context(|| format!("write {FILE}"))?;
            println!("written to {FILE}");
        }
    }
    Ok(())
}

/// Compares with the checked-in figures, for `cargo xtask prove`.
pub fn check_instructions() -> anyhow::Result<Comparison> {
    check(PERCENT_MAX)
}

fn check(percent_max: f64) -> anyhow::Result<Comparison> {
    let known = read_file()?;
    need_programs(&["valgrind"], &["valgrind"])?;
    let here = Toolchain::here()?;
    if known.toolchain != here {
        bail!(
            "{FILE} has figures of another toolchain, which cannot be compared:\n{}\n\
             check out a commit whose figures are good, and measure it anew: cargo xtask bench instructions --write",
            known.toolchain.differences(&here).join("\n")
        );
    }
    Ok(compare(Some(&known), &measure()?, percent_max))
}

impl Comparison {
    /// Fails if a figure is outside its bound.
    pub fn expect_within(&self, percent_max: f64) -> anyhow::Result<()> {
        if self.outside > 0 {
            bail!(
                "{} figures differ by more than {percent_max} % from {FILE}; if that is meant, say why in the commit \
                 that brings the new ones: cargo xtask bench instructions --write",
                self.outside
            );
        }
        Ok(())
    }
}

fn read_file() -> anyhow::Result<InstructionFigures> {
    let text = std::fs::read_to_string(root().join(FILE)).with_context(|| format!("read {FILE}"))?;
    toml::from_str(&text).with_context(|| format!("read {FILE}"))
}

fn compare(known: Option<&InstructionFigures>, measured: &InstructionFigures, percent_max: f64) -> Comparison {
    let none = BTreeMap::new();
    let known = known.map_or(&none, |known| &known.instructions_per_command);
    let (mut table, mut within, mut outside, mut largest) = (Table::new(), 0, 0, 0.0_f64);
    table.set_header(["instructions per command", "verdict", "checked in", "measured", "ratio"]);
    let figure =
        |value: Option<f64>, digits: usize| value.map_or("–".to_owned(), |value| format!("{value:.digits$}"));
    let measured = &measured.instructions_per_command;
    let settings = measured.keys().chain(known.keys().filter(|setting| !measured.contains_key(*setting)));
    for setting in settings {
        let (old, new) = (known.get(setting).copied(), measured.get(setting).copied());
        let ratio = old.zip(new).map(|(old, new)| new / old);
        let percent = ratio.map_or(f64::INFINITY, |ratio| (ratio - 1.0).abs() * 100.0);
        largest = largest.max(percent);
        let verdict = match ratio {
            None if old.is_none() => "new",
            None => "gone",
            Some(_) if percent <= percent_max => "same",
            Some(ratio) if ratio < 1.0 => "fewer",
            Some(_) => "more",
        };
        *(if verdict == "same" { &mut within } else { &mut outside }) += 1;
        table.add_row([setting.clone(), verdict.to_owned(), figure(old, 2), figure(new, 2), figure(ratio, 4)]);
    }
    Comparison { table: table_text(table, 2), within, outside, percent: largest }
}

/// Builds and counts.
fn measure() -> anyhow::Result<InstructionFigures> {
    need_programs(&["valgrind"], &["valgrind"])?;
    run("build", &cargo(BUILD, &[]))?.expect_success("the build of the program that is counted")?;
    let program = target().join("dist/examples/instructions");
    let listed = run("settings", &Command::new(&program))?.expect_success("the list of settings")?;
    let mut figures = BTreeMap::new();
    for line in &listed.lines {
        let (setting, commands) = line.split_once(' ').with_context(|| format!("read the setting '{line}'"))?;
        let commands: u64 = commands.parse().with_context(|| format!("read the setting '{line}'"))?;
        let [one, two] = [1, 2].map(|passes| count(&program, setting, passes));
        let pass = two?.checked_sub(one?).with_context(|| format!("two passes of {setting} take less than one"))?;
        // Three decimals: the rest of a figure is below any bound.
        figures.insert(setting.to_owned(), (pass as f64 / commands as f64 * 1_000.0).round() / 1_000.0);
    }
    Ok(InstructionFigures { toolchain: Toolchain::here()?, instructions_per_command: figures })
}

/// Instructions of `passes` passes, with everything before and after them.
fn count(program: &Path, setting: &str, passes: u32) -> anyhow::Result<u64> {
    let out: PathBuf = own("callgrind");
    std::fs::create_dir_all(&out).with_context(|| format!("make {}", out.display()))?;
    let out = out.join("instructions.out");
    // An empty environment: the C library reads it, and it moves the stack.
    let mut command = Command::new("env");
    let path = std::env::var("PATH").unwrap_or_default();
    command.args(["-i", &format!("PATH={path}"), "valgrind", "--tool=callgrind"]);
    command.arg(format!("--callgrind-out-file={}", out.display())).arg(program).args([setting, &passes.to_string()]);
    run(setting, &command)?.expect_success("a run under callgrind")?;
    let text = std::fs::read_to_string(&out).with_context(|| format!("read {}", out.display()))?;
    instruction_total(&text).with_context(|| format!("find the sum in {}", out.display()))
}

/// The sum of all instructions in a file of callgrind.
fn instruction_total(text: &str) -> Option<u64> {
    let sums = text.lines().filter_map(|line| line.strip_prefix("totals: ").or(line.strip_prefix("summary: ")));
    sums.filter_map(|sum| sum.trim().parse().ok()).max()
}

impl Toolchain {
    /// The toolchain of this machine.
    fn here() -> anyhow::Result<Toolchain> {
        let rustc = program_output("rustc", &["-vV"])?;
        let line = |prefix: &str| {
            let found = rustc.lines().find_map(|line| line.strip_prefix(prefix));
            found.map(str::to_owned).with_context(|| format!("find '{prefix}' in what rustc says of itself"))
        };
        Ok(Toolchain {
            rustc: line("rustc ")?,
            host: line("host: ")?,
            libc: program_output("getconf", &["GNU_LIBC_VERSION"]).unwrap_or_default(),
            cpu: cpu().to_owned(),
            valgrind: program_output("valgrind", &["--version"])?,
        })
    }

    fn differences(&self, other: &Toolchain) -> Vec<String> {
        let Toolchain { rustc, host, libc, cpu, valgrind } = self;
        let fields = [
            ("rustc", rustc, &other.rustc),
            ("host", host, &other.host),
            ("libc", libc, &other.libc),
            ("cpu", cpu, &other.cpu),
            ("valgrind", valgrind, &other.valgrind),
        ];
        let differing = fields.into_iter().filter(|(_, checked_in, here)| checked_in != here);
        differing.map(|(field, checked_in, here)| format!("  {field}: {checked_in} there, {here} here")).collect()
    }
}

/// The CPU features by which libraries choose their code.
fn cpu() -> &'static str {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        return "avx2";
    }
    ""
}

/// The output of a program.
fn program_output(program: &str, arguments: &[&str]) -> anyhow::Result<String> {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(root());
    Ok(run(program, &command)?.expect_success(program)?.lines.join("\n").trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(figures: &[(&str, f64)]) -> InstructionFigures {
        let [rustc, host, libc, cpu, valgrind] = ["1", "x", "2", "", "3"].map(str::to_owned);
        InstructionFigures {
            toolchain: Toolchain { rustc, host, libc, cpu, valgrind },
            instructions_per_command: figures.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect(),
        }
    }

    #[test]
    fn a_figure_that_moves_beyond_the_bound_or_has_no_other_is_outside() {
        let known = figures(&[("a", 1_000.0), ("b", 1_000.0), ("c", 1_000.0), ("d", 1_000.0)]);
        let measured = figures(&[("a", 1_001.9), ("b", 1_002.1), ("c", 997.0), ("e", 1.0)]);
        let compared = compare(Some(&known), &measured, PERCENT_MAX);
        assert_eq!((compared.within, compared.outside), (1, 4));
        let verdicts: Vec<&str> =
            compared.table.lines().skip(1).filter_map(|row| row.split_whitespace().nth(1)).collect();
        assert_eq!(verdicts, ["same", "more", "fewer", "new", "gone"], "{}", compared.table);
        assert!(compared.expect_within(PERCENT_MAX).is_err());
        assert!(compare(Some(&known), &known, 0.0).expect_within(0.0).is_ok());
    }

    #[test]
    fn figures_are_read_as_they_are_written() {
        let figures = figures(&[("incr-1-key-p1", 1_534.125), ("topk.add-p1", 2.0)]);
        let text = format!("{HEAD}{}", toml::to_string_pretty(&figures).unwrap());
        assert_eq!(toml::from_str::<InstructionFigures>(&text).unwrap(), figures);
    }

    #[test]
    fn the_sum_of_callgrind_is_found() {
        assert_eq!(instruction_total("events: Ir\nfn=(1)\n12 5\ntotals: 429162799\n"), Some(429_162_799));
        assert_eq!(instruction_total("events: Ir\nsummary: 7\n"), Some(7));
        assert_eq!(instruction_total("events: Ir\n"), None);
    }

    #[test]
    fn another_compiler_is_reported() {
        let (one, mut two) = (figures(&[]).toolchain, figures(&[]).toolchain);
        two.rustc = "2".to_owned();
        assert_eq!(one.differences(&two), ["  rustc: 1 there, 2 here"]);
    }
}
