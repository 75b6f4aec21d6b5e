//! The parts of `cargo xtask test` and of `cargo xtask prove`, in order. A new proof is a new row
//! here.
//!
//! `test` is for a contributor and for CI: one debug build, minutes. `prove` is the long proof:
//! more kills, seeds and schedules, every engine, every known-bad patch, and further builds.

use std::process::Command;

use anyhow::bail;

use crate::patches::PatchRun;
use crate::paths::{root, target};
use crate::proved::PATCHES_PART;
use crate::run::{CommandOutcome, command_line, run};
use crate::{bench, clients, documents, tidy, tools};

/// One part.
pub struct Part {
    /// Its name for `--only` and in the table.
    pub name: &'static str,
    /// Minutes on two idle cores, cold. A new part of `test` displaces something.
    pub budget: f32,
    /// Its work.
    pub work: PartWork,
}

/// The work of a part.
pub enum PartWork {
    /// Installs the tools of the other parts.
    Tools,
    /// Commands of cargo, in sequence, each of which must succeed.
    Cargo(&'static [&'static str]),
    /// Tests: each of these cargo commands must succeed and run at least one test.
    Tests(&'static [&'static str], Variables),
    /// Real clients against the program of this profile.
    Clients(&'static str),
    /// The rules of style that `cargo xtask tidy` shows.
    Tidy,
    /// The shell examples of the documents.
    Documents,
    /// Instructions per command, compared with the checked-in figures.
    Instructions,
    /// Known-bad patches: all apply, and the named test catches each of the chosen ones.
    Patches(PatchChoice),
}

/// Environment variables of a part's commands: name and value. In a value `{target}` is cargo's
/// target directory.
type Variables = &'static [(&'static str, &'static str)];

/// The known-bad patches that a part tries.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum PatchChoice {
    /// At most three, chosen by the change since the last proof.
    Few,
    /// Every one.
    All,
}

/// The result of a part.
#[derive(Default)]
pub struct PartResult {
    /// Number of passed tests, checks or patches.
    pub passed: usize,
    /// Number of failed ones.
    pub failed: usize,
    /// Counts of the work done.
    pub proofs: Vec<String>,
    /// Reason of a failure, with all output.
    pub failure: Option<String>,
}

/// Features of all debug builds: one set, so that nothing is built twice. In the table `{whole}` is
/// the workspace with them.
pub const FEATURES: &str = "--features quipu/failpoints,quipu/redis-tls,quipu/postgres-tls";

const FMT: &str = "fmt --all --check";
const CLIPPY: &str = "clippy {whole} --all-targets -- -D warnings";
const UNIT: &str = "test {whole} --no-fail-fast --lib --bins --test it_* --test cli --test docs --test log --test client \
                    --test disk_errors --test shared_store \
                    -- --show-output --skip kill:: --skip nodes:: --skip moving:: --skip looking::";
const CRASH_STATES: &str = "test {whole} --test crash_states --test backup_states -- --show-output";
const INTERLEAVING: &str = "test {whole} --test interleaving -- --show-output";
const SIMULATION: &str = "test {whole} --test seeds -- --show-output";
// Failpoint tests wait for one another's steps more than they compute.
const FAILPOINTS: &str = "test {whole} --test failpoints --test failpoints_backup -- --show-output --test-threads=4";
const KILLS: &str = "test {whole} --test it_* -- --show-output kill::";
const LINEARIZABILITY: &str = "test {whole} --test linearizable -- --show-output";
const STORES: &str = "test {whole} --test store -- --show-output";
// Shuttle replaces the types where threads meet, and so needs a build of its own.
const SHUTTLE: &str = "test -p quipu-engine --features shuttle --test shuttle -- --show-output";

/// The parts of `cargo xtask test`.
pub static TEST: &[Part] = &[
    Part { name: "tools", budget: 2.0, work: PartWork::Tools },
    Part { name: "build", budget: 6.0, work: PartWork::Cargo(&["test {whole} --no-run"]) },
    Part { name: "fmt and clippy", budget: 1.0, work: PartWork::Cargo(&[FMT, CLIPPY]) },
    Part { name: "tidy", budget: 0.1, work: PartWork::Tidy },
    Part { name: "unit and integration", budget: 2.2, work: PartWork::Tests(&[UNIT, "test {whole} --doc"], &[]) },
    Part { name: "crash states", budget: 0.6, work: PartWork::Tests(&[CRASH_STATES], &[]) },
    Part { name: "interleaving", budget: 0.1, work: PartWork::Tests(&[INTERLEAVING], &[]) },
    Part { name: "simulation", budget: 0.4, work: PartWork::Tests(&[SIMULATION], &[("QUIPU_SIM_SEEDS", "1000")]) },
    Part { name: "failpoints", budget: 1.0, work: PartWork::Tests(&[FAILPOINTS], &[("QUIPU_FAILPOINT_SEEDS", "2")]) },
    Part { name: "kills", budget: 1.5, work: PartWork::Tests(&[KILLS], &[("QUIPU_KILLS", "12")]) },
    Part {
        name: "linearizability",
        budget: 0.2,
        work: PartWork::Tests(&[LINEARIZABILITY], &[("QUIPU_HISTORIES", "5")]),
    },
    Part {
        name: "stores",
        budget: 2.5,
        work: PartWork::Tests(
            &[STORES, "test {whole} --test it_program -- --show-output nodes::three_nodes_on_redis"],
            &[],
        ),
    },
    Part { name: "clients", budget: 1.0, work: PartWork::Clients("debug") },
    Part { name: "documents", budget: 1.0, work: PartWork::Documents },
    Part { name: PATCHES_PART, budget: 2.0, work: PartWork::Patches(PatchChoice::Few) },
];

/// The parts of `cargo xtask prove`.
pub static PROVE: &[Part] = &[
    Part { name: "tools", budget: 2.0, work: PartWork::Tools },
    Part {
        name: "build",
        budget: 12.0,
        work: PartWork::Cargo(&[
            "build --release -p quipu",
            "build --profile dist -p quipu",
            bench::INSTRUCTIONS_BUILD,
            "test {whole} --no-run",
            "test -p quipu-engine --features shuttle --test shuttle --no-run",
        ]),
    },
    Part {
        name: "features",
        budget: 2.0,
        work: PartWork::Cargo(&[
            FMT,
            CLIPPY,
            "clippy -p quipu-engine --features shuttle --test shuttle -- -D warnings",
            // Features only add: none of them, each alone, and all.
            "check -p quipu --no-default-features",
            "check -p quipu --no-default-features --features bench",
            "check -p quipu --no-default-features --features redis",
            "check -p quipu --no-default-features --features postgres",
            "check -p quipu --all-features",
        ]),
    },
    Part {
        name: "unit and integration",
        budget: 3.0,
        work: PartWork::Tests(&[UNIT, "test {whole} --doc", CRASH_STATES, INTERLEAVING], &[]),
    },
    Part { name: "simulation", budget: 8.0, work: PartWork::Tests(&[SIMULATION], &[("QUIPU_SIM_SEEDS", "20000")]) },
    Part { name: "shuttle", budget: 3.0, work: PartWork::Tests(&[SHUTTLE], &[]) },
    Part { name: "failpoints", budget: 4.0, work: PartWork::Tests(&[FAILPOINTS], &[("QUIPU_FAILPOINT_SEEDS", "20")]) },
    Part {
        name: "full disk",
        budget: 0.5,
        work: PartWork::Tests(&["test {whole} --test full_disk -- --show-output --test-threads=3"], &[]),
    },
    // In each of eight suites, two or three of every mode; with those of the histories 300 kills a
    // mode or more.
    Part { name: "kills", budget: 14.0, work: PartWork::Tests(&[KILLS], &[("QUIPU_KILLS", "130")]) },
    Part {
        name: "linearizability",
        budget: 2.0,
        work: PartWork::Tests(&[LINEARIZABILITY], &[("QUIPU_HISTORIES", "200")]),
    },
    Part {
        name: "engines",
        budget: 4.0,
        work: PartWork::Tests(
            &[STORES, "test {whole} --test it_program -- --show-output nodes:: moving:: looking::"],
            &[],
        ),
    },
    Part {
        name: "scale",
        budget: 2.0,
        // In sequence: they measure memory and time.
        work: PartWork::Tests(
            &["test {whole} --test scale -- --show-output --test-threads=1"],
            &[("QUIPU_TEST_BIN", "{target}/dist/quipu")],
        ),
    },
    Part { name: "instructions", budget: 2.0, work: PartWork::Instructions },
    Part { name: "clients", budget: 0.5, work: PartWork::Clients("dist") },
    Part { name: PATCHES_PART, budget: 16.0, work: PartWork::Patches(PatchChoice::All) },
];

impl Part {
    /// Runs the part. `patch_run` may have begun early. `variables` are added to those of the part.
    pub fn run(&self, variables: &[(&str, &str)], patch_run: &mut Option<PatchRun>) -> anyhow::Result<PartResult> {
        let mut result = PartResult::default();
        match self.work {
            PartWork::Tools => {
                tools::install()?;
            }
            PartWork::Cargo(commands) => {
                for command in commands {
                    self.cargo(command, &[], &mut result)?;
                    if result.failure.is_some() {
                        break;
                    }
                }
            }
            PartWork::Tests(commands, own) => {
                let variables: Vec<(&str, String)> =
                    own.iter().chain(variables).map(|(name, value)| (*name, in_target(value))).collect();
                let variables: Vec<(&str, &str)> =
                    variables.iter().map(|(name, value)| (*name, value.as_str())).collect();
                for command in commands {
                    self.tests(command, &variables, &mut result)?;
                    if result.failure.is_some() {
                        break;
                    }
                }
            }
            PartWork::Clients(profile) => result = clients::clients(profile)?,
            PartWork::Tidy => {
                result.passed = tidy::check()?;
                result.proofs.push("the tree is as tidy as xtask/tidy.toml says".to_owned());
            }
            PartWork::Documents => result = documents::documents()?,
            PartWork::Instructions => {
                let comparison = bench::check_instructions()?;
                (result.passed, result.failed) = (comparison.within, comparison.outside);
                result.proofs.push(format!(
                    "instructions per command: {} settings, at most {:.2} % off",
                    comparison.within, comparison.percent
                ));
                result.failure = comparison
                    .expect_within(bench::PERCENT_MAX)
                    .err()
                    .map(|error| format!("{}\n{error}", comparison.table));
            }
            PartWork::Patches(choice) => {
                let patch_run = patch_run.take().map_or_else(|| PatchRun::choose(choice), Ok)?;
                let (applying, caught) = (patch_run.applying(), patch_run.finish()?);
                result.passed = caught;
                result.proofs.push(format!(
                    "known-bad patches: {applying} apply; {caught} tried, each caught by the test it names"
                ));
            }
        }
        Ok(result)
    }

    fn tests(&self, words: &str, variables: &[(&str, &str)], result: &mut PartResult) -> anyhow::Result<()> {
        let (before, outcome) = (result.passed, self.cargo(words, variables, result)?);
        if outcome.success && result.passed == before {
            result.failure = Some(format!("cargo {words}\nran no test: a proof that is not there proves nothing"));
        }
        Ok(())
    }

    fn cargo(
        &self,
        words: &str,
        variables: &[(&str, &str)],
        result: &mut PartResult,
    ) -> anyhow::Result<CommandOutcome> {
        let command = cargo(words, variables);
        let outcome = run(self.name, &command)?;
        let (passed, failed) = outcome.tests();
        result.passed += passed;
        result.failed += failed;
        result.proofs.extend(outcome.proofs());
        if !outcome.success {
            result.failure = Some(format!("{}\n{}", command_line(&command), outcome.lines.join("\n")));
        }
        Ok(outcome)
    }
}

fn in_target(value: &str) -> String {
    value.replace("{target}", &target().to_string_lossy())
}

/// A command of cargo in the workspace.
pub fn cargo(words: &str, variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    let words = words.replace("{whole}", &format!("--workspace {FEATURES}"));
    command.args(words.split_whitespace()).envs(variables.iter().copied()).current_dir(root());
    command
}

/// The parts with this prefix in their names, or all.
pub fn choose(parts: &'static [Part], only: Option<&str>) -> anyhow::Result<Vec<&'static Part>> {
    let chosen: Vec<&Part> = parts.iter().filter(|part| only.is_none_or(|only| part.name.starts_with(only))).collect();
    if chosen.is_empty() {
        let names: Vec<&str> = parts.iter().map(|part| part.name).collect();
        bail!("no part is called '{}'; there are: {}", only.unwrap_or_default(), names.join(", "));
    }
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All commands of all parts.
    fn commands() -> Vec<&'static str> {
        let each = TEST.iter().chain(PROVE).flat_map(|part| match part.work {
            PartWork::Tests(commands, _) => commands.to_vec(),
            PartWork::Cargo(_)
            | PartWork::Tools
            | PartWork::Clients(_)
            | PartWork::Tidy
            | PartWork::Documents
            | PartWork::Instructions
            | PartWork::Patches(_) => Vec::new(),
        });
        each.collect()
    }

    #[test]
    fn every_test_target_of_the_workspace_is_run_by_some_part() {
        let metadata = cargo("metadata --no-deps --format-version 1", &[]).output().unwrap();
        let metadata: serde_json::Value = serde_json::from_slice(&metadata.stdout).unwrap();
        let packages = metadata["packages"].as_array().unwrap();
        let targets = packages.iter().flat_map(|package| package["targets"].as_array().unwrap());
        let tests: Vec<&str> = targets
            .filter(|target| target["kind"][0] == "test")
            .map(|target| target["name"].as_str().unwrap())
            .collect();
        assert!(tests.len() > 15, "only {tests:?}");
        let commands = commands();
        for test in tests {
            let picks =
                |two: &[&str]| two[0] == "--test" && (two[1] == test || two[1] == "it_*" && test.starts_with("it_"));
            let runs = |command: &&str| command.split_whitespace().collect::<Vec<_>>().windows(2).any(picks);
            assert!(commands.iter().any(runs), "no part runs `--test {test}`");
        }
    }

    #[test]
    fn the_budgets_keep_the_bars() {
        let sum = |parts: &[Part]| parts.iter().map(|part| part.budget).sum::<f32>();
        assert!(sum(TEST) <= 22.0, "test: {} minutes", sum(TEST));
        assert!(sum(PROVE) <= 75.0, "prove: {} minutes", sum(PROVE));
    }

    #[test]
    fn what_one_part_skips_another_runs() {
        let commands = commands();
        let skipped = commands.iter().flat_map(|command| command.split(" --skip ").skip(1)).map(|rest| rest.trim());
        for name in skipped {
            let runs = |command: &&str| {
                let filters = command.split_once("--show-output ").map_or("", |(_, filters)| filters);
                !filters.contains("--skip") && filters.split_whitespace().any(|filter| filter == name)
            };
            assert!(commands.iter().any(runs), "{name} is only skipped");
        }
    }
}
