//! A copy of the workspace with a build of its own, in which patches are tried in sequence.
//!
//! In: the present workspace, uncommitted work included, and its build. Out: the tests that fail
//! with a patch.
//!
//! Invariant: the build matches the source. Cargo compares file times, so a changed file must be
//! newer than its build, even if it changes back.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use super::{CatchReport, Lane, Patch};
use crate::paths::{own, root, target};
use crate::run::{CommandOutcome, now, run};

/// Folder of cargo's test builds.
const PROFILE: &str = "debug";

/// A copy of the workspace.
pub struct WorkspaceCopy {
    source: PathBuf,
    target: PathBuf,
}

impl WorkspaceCopy {
    /// The copy of a lane.
    pub fn new(lane: Lane) -> WorkspaceCopy {
        let folder = own("patches").join(lane.name());
        WorkspaceCopy { source: folder.join("source"), target: folder.join("target") }
    }

    /// Builds the patched code and runs the test that is to catch it.
    pub fn try_out(&self, patch: &Patch, hurry: bool) -> anyhow::Result<CatchReport> {
        let is_new = self.seed()?;
        self.refresh(is_new)?;
        self.apply(patch)?;
        let test = patch.shared_test();
        let building = match test.split_once(" -- ") {
            Some((cargo, _)) => format!("{cargo} --no-run"),
            None => format!("{test} --no-run"),
        };
        let began = now();
        self.cargo(patch, &building, &[], hurry)?.expect_success("the build of the patched code")?;
        let (built, began) = (began.elapsed(), now());
        let mut outcome = match &patch.seed {
            Some((variable, seed)) => {
                self.cargo(patch, &test, &[(variable, seed), ("QUIPU_SEEDS_ONLY", "1")], hurry)?
            }
            None => self.cargo(patch, &test, &[], hurry)?,
        };
        if let Some((variable, seed)) = &patch.seed
            && outcome.success
        {
            println!("  {}: {variable}={seed} no longer catches it; the whole search is tried", patch.name);
            outcome = self.cargo(patch, &test, &[], hurry)?;
        }
        let ran = began.elapsed();
        if outcome.success {
            bail!("`{test}` passes with the patch applied");
        }
        let mut failures = outcome.failures();
        if failures.is_empty() && outcome.lines.iter().any(|line| line.contains("panicked at")) {
            // A test that ends its whole process prints no failure.
            failures.push(test.clone());
        }
        if failures.is_empty() {
            bail!("`{test}` fails, but no test does:\n{}", outcome.lines.join("\n"));
        }
        // A test whose name ends in "again" is no seed.
        let is_seed = |text: &&str| text.split_once('=').is_some_and(|(_, seed)| seed.parse::<u64>().is_ok());
        let seeds = outcome.lines.iter().filter_map(|line| Some(line.split_once("again: ")?.1));
        let seed = seeds.into_iter().find(is_seed).map(str::to_owned);
        Ok(CatchReport { tests: failures, seed, built, ran })
    }

    /// Copies the workspace's build if the copy has none yet; returns true if it did.
    fn seed(&self) -> anyhow::Result<bool> {
        if self.target.exists() {
            return Ok(false);
        }
        // Any old source is removed: from here on the times of the files are those of the
        // workspace.
        for folder in [&self.source, &self.unfinished()] {
            if folder.exists() {
                std::fs::remove_dir_all(folder).with_context(|| format!("remove {}", folder.display()))?;
            }
        }
        let (from, to) = (target().join(PROFILE), self.unfinished().join(PROFILE));
        std::fs::create_dir_all(&to).with_context(|| format!("make {}", to.display()))?;
        // Fingerprints first: the outputs that one describes exist before it.
        for folder in [".fingerprint", "build", "deps"] {
            if from.join(folder).exists() {
                take_over(&from.join(folder), &to.join(folder))?;
            }
        }
        std::fs::rename(self.unfinished(), &self.target).with_context(|| format!("name {}", self.target.display()))?;
        Ok(true)
    }

    /// The folder of an incomplete copy of a build: half a copy would go unnoticed.
    fn unfinished(&self) -> PathBuf {
        self.target.with_extension("unfinished")
    }

    /// Makes the copy equal to the workspace. Equal files are not touched, so that cargo builds
    /// only changed ones.
    ///
    /// In a new copy they have their times in the workspace, so that the copied build is valid.
    /// Later a file is as new as its change.
    fn refresh(&self, is_new: bool) -> anyhow::Result<()> {
        let listed = Command::new("git")
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .current_dir(root())
            .output()
            .context("run git ls-files")?;
        if !listed.status.success() {
            bail!("git ls-files failed: {}", String::from_utf8_lossy(&listed.stderr));
        }
        let listed = String::from_utf8(listed.stdout).context("read the names of the files")?;
        let mut wanted = BTreeSet::new();
        for file in listed.split('\0').filter(|file| !file.is_empty()) {
            let (from, to) = (root().join(file), self.source.join(file));
            // Deleted, but not yet committed as deleted.
            let Ok(bytes) = std::fs::read(&from) else { continue };
            wanted.insert(to.clone());
            if std::fs::read(&to).is_ok_and(|there| there == bytes) {
                continue;
            }
            let folder = to.parent().expect("a file is in a folder");
            std::fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
            std::fs::write(&to, bytes).with_context(|| format!("write {}", to.display()))?;
            if is_new {
                keep_time(&from, &to)?;
            }
        }
        remove_others(&self.source, &wanted)
    }

    fn apply(&self, patch: &Patch) -> anyhow::Result<()> {
        let mut apply = Command::new("git");
        // The copy is inside the workspace's target directory; git must not take it for a part of
        // the workspace.
        let ceiling = self.source.parent().expect("the copy is in a folder");
        apply.arg("apply").arg(&patch.path).current_dir(&self.source).env("GIT_CEILING_DIRECTORIES", ceiling);
        run(&patch.name, &apply)?.expect_success("git apply")?;
        for file in &patch.files {
            let (patched, original) = (std::fs::read(self.source.join(file)), std::fs::read(root().join(file)));
            if patched.with_context(|| format!("read the patched {file}"))? == original.unwrap_or_default() {
                bail!("the patch did not change {file}");
            }
        }
        Ok(())
    }

    fn cargo(
        &self,
        patch: &Patch,
        words: &str,
        variables: &[(&str, &str)],
        hurry: bool,
    ) -> anyhow::Result<CommandOutcome> {
        let mut command = Command::new(if hurry { "cargo" } else { "nice" });
        if !hurry {
            command.args(["-n", "19", "cargo"]);
        }
        command
            .args(words.split_whitespace().skip(1))
            .current_dir(&self.source)
            .env("CARGO_TARGET_DIR", &self.target)
            .envs(variables.iter().copied())
            // Cargo sets these for us; they name the wrong workspace.
            .env_remove("CARGO_MANIFEST_DIR")
            .env_remove("CARGO_MANIFEST_PATH");
        run(&patch.name, &command)
    }
}

pub fn remove_others(folder: &Path, wanted: &BTreeSet<PathBuf>) -> anyhow::Result<()> {
    for entry in std::fs::read_dir(folder).with_context(|| format!("list {}", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            remove_others(&path, wanted)?;
        } else if !wanted.contains(&path) {
            std::fs::remove_file(&path).with_context(|| format!("remove {}", path.display()))?;
        }
    }
    Ok(())
}

/// Copies a folder and its content with their times, except linked outputs: tests and programs.
fn take_over(from: &Path, to: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(to).with_context(|| format!("make {}", to.display()))?;
    for entry in std::fs::read_dir(from).with_context(|| format!("list {}", from.display()))? {
        let path = entry?.path();
        let there = to.join(path.file_name().expect("an entry of a folder has a name"));
        if path.is_dir() {
            take_over(&path, &there)?;
        } else if !(from.ends_with("deps") && path.extension().is_none()) {
            // The compiler replaces a library by another file, so that one file can be in both
            // folders.
            if path.extension().is_some_and(|end| end == "rlib") && std::fs::hard_link(&path, &there).is_ok() {
                continue;
            }
            std::fs::copy(&path, &there).with_context(|| format!("copy {}", path.display()))?;
            keep_time(&path, &there)?;
        }
    }
    Ok(())
}

/// Gives a copy the time of its original.
fn keep_time(from: &Path, to: &Path) -> anyhow::Result<()> {
    let keep = || {
        let modified = std::fs::metadata(from)?.modified()?;
        File::options().write(true).open(to)?.set_modified(modified)
    };
    keep().with_context(|| format!("set the time of {}", to.display()))
}
