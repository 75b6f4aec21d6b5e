//! The parts of `cargo xtask test`, in order. A new proof is a new line here.

use std::process::Command;

use anyhow::bail;

use crate::patches::Proving;
use crate::paths::root;
use crate::run::{Outcome, run, shown};
use crate::{clients, tools};

/// One part.
pub struct Part {
    /// What `--only` and the table call it.
    pub name: &'static str,
    /// How it is done.
    pub work: Work,
}

/// How a part is done.
pub enum Work {
    /// What the others need is installed.
    Tools,
    /// Commands of cargo, one after another, each of which must succeed.
    Cargo(&'static [&'static str]),
    /// Tests: each of these cargo commands must succeed and run at least one test.
    Tests(&'static [&'static str]),
    /// The kill suite, so many times.
    Kills(&'static str),
    /// The simulation of many nodes, over so many seeds.
    Seeds(&'static str),
    /// Real clients against the release build.
    Clients,
    /// The tests of the tests.
    Patches,
}

/// What a part found.
#[derive(Default)]
pub struct Found {
    /// Tests, checks or patches that are as they ought to be.
    pub passed: usize,
    /// Those that are not.
    pub failed: usize,
    /// How much was tried.
    pub proofs: Vec<String>,
    /// Why the part failed, if it did, with all that was said.
    pub failure: Option<String>,
}

/// All debug builds share one set of features, so that nothing is built twice. In the table `{whole}` is the workspace with them.
pub const FEATURES: &str = "--features quipu/failpoints,quipu/redis-tls,quipu/postgres-tls";

/// All parts. Shuttle replaces the types where threads meet, and so needs a build of its own.
pub static PARTS: &[Part] = &[
    Part { name: "tools", work: Work::Tools },
    Part {
        name: "build",
        work: Work::Cargo(&[
            "build --release -p quipu",
            "test --release -p quipu --test scale --no-run",
            "test {whole} --no-run",
            "test -p quipu-engine --features shuttle --test shuttle --no-run",
        ]),
    },
    Part {
        name: "fmt and clippy",
        work: Work::Cargo(&[
            "fmt --all --check",
            "clippy {whole} --all-targets -- -D warnings",
            "clippy -p quipu-engine --features shuttle --test shuttle -- -D warnings",
            // Features only add: none of them, each alone, and all.
            "check -p quipu --no-default-features",
            "check -p quipu --no-default-features --features redis",
            "check -p quipu --no-default-features --features postgres",
            "check -p quipu --all-features",
        ]),
    },
    Part {
        name: "unit and integration",
        work: Work::Tests(&[
            "test {whole} --lib --bins --test it_* --test cli --test docs --test log --test client --test disk_errors \
             --test shared_store \
             -- --show-output --skip crash_states:: --skip interleave:: --skip kill:: --skip nodes:: \
             --skip moving:: --skip looking::",
            "test {whole} --doc",
        ]),
    },
    Part {
        name: "crash states",
        work: Work::Tests(&["test {whole} --test it_engine -- --show-output crash_states::"]),
    },
    Part { name: "interleaving", work: Work::Tests(&["test {whole} --test it_engine -- --show-output interleave::"]) },
    Part { name: "simulation", work: Work::Seeds("test {whole} --test seeds -- --show-output") },
    Part {
        name: "shuttle",
        work: Work::Tests(&["test -p quipu-engine --features shuttle --test shuttle -- --show-output"]),
    },
    Part {
        name: "failpoints",
        // They wait for one another's steps more than they compute.
        work: Work::Tests(&[
            "test {whole} --test failpoints --test failpoints_backup -- --show-output --test-threads=4",
        ]),
    },
    Part { name: "full disk", work: Work::Tests(&["test {whole} --test full_disk -- --show-output --test-threads=3"]) },
    Part { name: "kills", work: Work::Kills("test {whole} --test it_* -- --show-output kill::") },
    Part {
        name: "engines",
        work: Work::Tests(&[
            "test {whole} --test store -- --show-output",
            "test {whole} --test it_program -- --show-output nodes:: moving:: looking::",
        ]),
    },
    Part {
        name: "scale",
        // One after another: what they measure is memory and time.
        work: Work::Tests(&["test --release -p quipu --test scale -- --show-output --test-threads=1"]),
    },
    Part { name: "clients", work: Work::Clients },
    Part { name: "known-bad patches", work: Work::Patches },
];

/// Seeds of the simulation: about a minute.
const SEEDS: &str = "2500";

/// Durability modes of the kill suite; each gets the same number of kills.
const KILL_MODES: usize = 3;

impl Part {
    /// Does it; patches may have been begun with.
    pub fn run(&self, kills: usize, proving: &mut Option<Proving>) -> anyhow::Result<Found> {
        let mut found = Found::default();
        match self.work {
            Work::Tools => {
                tools::install()?;
            }
            Work::Cargo(commands) => {
                for command in commands {
                    self.cargo(command, &[], &mut found)?;
                    if found.failure.is_some() {
                        break;
                    }
                }
            }
            Work::Tests(commands) => {
                for command in commands {
                    self.tests(command, &[], &mut found)?;
                    if found.failure.is_some() {
                        break;
                    }
                }
            }
            Work::Kills(command) => {
                let per_mode = kills.div_ceil(KILL_MODES).to_string();
                self.tests(command, &[("QUIPU_KILLS", &per_mode)], &mut found)?;
            }
            Work::Seeds(command) => self.tests(command, &[("QUIPU_SIM_SEEDS", SEEDS)], &mut found)?,
            Work::Clients => found = clients::clients()?,
            Work::Patches => {
                let caught = proving.take().map_or_else(|| Proving::find(None), Ok)?.finish()?;
                found.passed = caught;
                found.proofs.push(format!("known-bad patches: {caught}, each caught by the test it names"));
            }
        }
        Ok(found)
    }

    fn tests(&self, words: &str, variables: &[(&str, &str)], found: &mut Found) -> anyhow::Result<()> {
        let (before, outcome) = (found.passed, self.cargo(words, variables, found)?);
        if outcome.success && found.passed == before {
            found.failure = Some(format!("cargo {words}\nran no test: a proof that is not there proves nothing"));
        }
        Ok(())
    }

    fn cargo(&self, words: &str, variables: &[(&str, &str)], found: &mut Found) -> anyhow::Result<Outcome> {
        let command = cargo(words, variables);
        let outcome = run(self.name, &command)?;
        let (passed, failed) = outcome.tests();
        found.passed += passed;
        found.failed += failed;
        found.proofs.extend(outcome.proofs());
        if !outcome.success {
            found.failure = Some(format!("{}\n{}", shown(&command), outcome.lines.join("\n")));
        }
        Ok(outcome)
    }
}

/// A command of cargo in the workspace.
pub fn cargo(words: &str, variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    let words = words.replace("{whole}", &format!("--workspace {FEATURES}"));
    command.args(words.split_whitespace()).envs(variables.iter().copied()).current_dir(root());
    command
}

/// The parts of this name, or all.
pub fn chosen(only: Option<&str>) -> anyhow::Result<Vec<&'static Part>> {
    let parts: Vec<&Part> = PARTS.iter().filter(|part| only.is_none_or(|only| part.name.starts_with(only))).collect();
    if parts.is_empty() {
        let names: Vec<&str> = PARTS.iter().map(|part| part.name).collect();
        bail!("no part is called '{}'; there are: {}", only.unwrap_or_default(), names.join(", "));
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All commands of all parts.
    fn commands() -> Vec<&'static str> {
        let each = PARTS.iter().flat_map(|part| match part.work {
            Work::Tests(commands) => commands.to_vec(),
            Work::Kills(command) | Work::Seeds(command) => vec![command],
            Work::Cargo(_) | Work::Tools | Work::Clients | Work::Patches => Vec::new(),
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
