//! Runs the parts of `cargo xtask test` or `cargo xtask prove` in order, and prints a table of
//! their results.

use std::time::Duration;

use anyhow::bail;
use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};

use crate::parts::{self, Part, PartResult, PartWork, PatchChoice};
use crate::patches::PatchRun;
use crate::paths::check_free_space;
use crate::proved::ProofRecord;
use crate::run::{children_cpu, now};

/// Most CPU time of a whole `cargo xtask test`. Other load on the machine hardly affects it. It
/// does affect wall time, which has no bound.
const TEST_CPU_MAX: Duration = Duration::from_secs(45 * 60);

/// Result and cost of one part.
struct PartReport {
    part: &'static Part,
    wall: Duration,
    cpu: Duration,
    result: PartResult,
}

/// `cargo xtask test`: runs all parts, or those with the prefix `only`.
pub fn test(only: Option<&str>) -> anyhow::Result<()> {
    let reports = run_parts(&parts::choose(parts::TEST, only)?, &[], false, |_| Ok(()))?;
    let cpu: Duration = reports.iter().map(|report| report.cpu).sum();
    if only.is_none() && cpu > TEST_CPU_MAX {
        bail!("all holds, but it took {} CPU minutes; {} are the bound", minutes(cpu), minutes(TEST_CPU_MAX));
    }
    Ok(())
}

/// The options of a proof.
#[derive(Default)]
pub struct ProveOptions {
    /// Prefix of the parts to run.
    pub only: Option<String>,
    /// Hours of further kills, seeds and schedules after the parts.
    pub hours: f64,
}

/// `cargo xtask prove`: runs the parts that are not yet proved for these sources; each finished
/// part is recorded.
pub fn prove(options: &ProveOptions) -> anyhow::Result<()> {
    let mut record = ProofRecord::open()?;
    let chosen = parts::choose(parts::PROVE, options.only.as_deref())?;
    // Tools and builds are cheap if present, and the other parts need them.
    let needed =
        |part: &&&Part| matches!(part.work, PartWork::Tools) || part.name == "build" || !record.holds(part.name);
    let missing: Vec<&Part> = chosen.iter().filter(needed).copied().collect();
    if missing.iter().all(|part| record.holds(part.name)) {
        println!("all parts are proved for these sources; proofs/proved.toml says so");
    } else {
        run_parts(&missing, &[], true, |part| record.add(part.name))?;
    }
    if options.only.is_none() {
        record.complete()?;
    }
    let began = now();
    let mut round = 1_u64;
    while began.elapsed().as_secs_f64() < options.hours * 3600.0 {
        // Seeds of their own in each round; the parts begin at 0.
        let from = (round * 1_000_000).to_string();
        let variables = [("QUIPU_SEED", from.as_str()), ("QUIPU_SIM_FROM", &from), ("QUIPU_SCHEDULE_FROM", &from)];
        let again: Vec<&Part> =
            parts::PROVE.iter().filter(|part| ["simulation", "shuttle", "kills"].contains(&part.name)).collect();
        run_parts(&again, &variables, true, |_| Ok(()))?;
        round += 1;
    }
    Ok(())
}

/// Runs parts until one fails; calls `finished` after each that held.
fn run_parts(
    chosen: &[&'static Part],
    variables: &[(&str, &str)],
    patches_early: bool,
    mut finished: impl FnMut(&Part) -> anyhow::Result<()>,
) -> anyhow::Result<Vec<PartReport>> {
    check_free_space()?;
    let mut reports = Vec::new();
    let mut patch_run = None;
    let tries_patches = chosen.iter().any(|part| matches!(part.work, PartWork::Patches(_)));
    for &part in chosen {
        println!("{} …", part.name);
        let began = now();
        let cpu_before = children_cpu()?;
        // Once everything is built: before that the cores are busy.
        if patches_early && tries_patches && patch_run.is_none() && matches!(part.work, PartWork::Tests(..)) {
            patch_run = Some(PatchRun::choose(PatchChoice::All)?.begin_early());
        }
        // A part that cannot be run has failed too.
        let result = part.run(variables, &mut patch_run).unwrap_or_else(|error| PartResult {
            failed: 1,
            failure: Some(format!("{error:#}")),
            ..PartResult::default()
        });
        let wall = began.elapsed();
        let cpu = children_cpu()?.saturating_sub(cpu_before);
        let state = if result.failure.is_some() { "FAILED" } else { "ok" };
        println!(
            "{} {state}, {} passed, {} failed, {} min, {} CPU min",
            part.name,
            result.passed,
            result.failed,
            minutes(wall),
            minutes(cpu)
        );
        let failure = result.failure.clone();
        reports.push(PartReport { part, wall, cpu, result });
        if let Some(failure) = failure {
            println!("\n{failure}\n");
            print_summary(&reports);
            bail!("{} failed", part.name);
        }
        finished(part)?;
    }
    print_summary(&reports);
    Ok(reports)
}

fn print_summary(reports: &[PartReport]) {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(["part", "minutes", "budget", "CPU", "passed", "failed", "proof"]);
    for PartReport { part, wall, cpu, result } in reports {
        let counts = if result.passed + result.failed == 0 {
            [String::new(), String::new()]
        } else {
            [result.passed.to_string(), result.failed.to_string()]
        };
        let [passed, failed] = counts;
        let state = if result.failure.is_some() { "FAILED".to_owned() } else { result.proofs.join("\n") };
        let budget = format!("{:.1}", part.budget);
        table.add_row([part.name.to_owned(), minutes(*wall), budget, minutes(*cpu), passed, failed, state]);
    }
    for column in 1..=5 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let wall: Duration = reports.iter().map(|report| report.wall).sum();
    let cpu: Duration = reports.iter().map(|report| report.cpu).sum();
    let count = |of: fn(&PartResult) -> usize| reports.iter().map(|report| of(&report.result)).sum::<usize>();
    println!("\n{}\n", table.trim_fmt());
    let failed = count(|result| result.failed.max(usize::from(result.failure.is_some())));
    println!("{} minutes, {} CPU minutes", minutes(wall), minutes(cpu));
    println!("{} passed, {failed} failed", count(|result| result.passed));
}

fn minutes(time: Duration) -> String {
    format!("{:.1}", time.as_secs_f64() / 60.0)
}
