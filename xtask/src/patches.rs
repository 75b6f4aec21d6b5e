//! Tests of the tests: each known-bad patch under `proofs/known-bad` must be caught by the test it names.
//!
//! ```text
//! # The reply leaves before the fsync.
//! # caught by: cargo test -p quipu-engine --test it crash_states
//! --- a/crates/…
//! +++ b/crates/…
//! ```
//!
//! A patch is applied to a copy of the workspace, uncommitted work included, whose build is kept for the next one. Two copies are at work at once: one builds
//! while the other's tests wait, and a crate is mostly built by one core. In a whole run one of them begins early, with what time of the cores other parts leave: many of those wait for disks and
//! servers more than they compute.
//!
//! Invariant: caught means that the patched code builds and a test fails; a patch that does not apply, does not build or fails
//! nothing is an error.

use std::collections::{BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use anyhow::{Context, bail};
use comfy_table::Table;
use comfy_table::presets::NOTHING;

use crate::paths::{own, root};
use crate::run::{Outcome, run};

/// A patch and what it says of itself.
struct Patch {
    path: PathBuf,
    name: String,
    /// What it breaks, in a sentence.
    defect: String,
    /// A command line that begins with `cargo test`.
    test: String,
    /// The files it changes.
    files: Vec<String>,
}

/// Applies each patch, or the one of this name, and returns how many were caught: all of them, or an error.
pub fn patches(only: Option<&str>) -> anyhow::Result<usize> {
    Proving::find(only)?.finish()
}

/// Patches that are tried.
pub struct Proving {
    shared: Arc<Shared>,
    count: usize,
    early: Option<JoinHandle<()>>,
}

/// What the copies share.
struct Shared {
    waiting: Mutex<VecDeque<Patch>>,
    judged: Mutex<Vec<(Patch, anyhow::Result<Vec<String>>)>>,
    /// Nobody else wants the cores: say what is done, and take all the time there is.
    hurry: AtomicBool,
    /// No more of them.
    stop: AtomicBool,
}

impl Proving {
    /// All of them, or the one of this name.
    pub fn find(only: Option<&str>) -> anyhow::Result<Proving> {
        let mut patches = find(only)?;
        // Those of one test lie together: each copy begins at an end, so that neither builds everything.
        patches.sort_by(|one, other| (&one.test, &one.name).cmp(&(&other.test, &other.name)));
        let count = patches.len();
        let shared = Shared {
            waiting: Mutex::new(patches.into()),
            judged: Mutex::default(),
            hurry: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        };
        Ok(Proving { shared: Arc::new(shared), count, early: None })
    }

    /// Begins with one copy, beside whatever else is done, and after it in everything.
    #[must_use]
    pub fn begin_early(mut self) -> Proving {
        let shared = Arc::clone(&self.shared);
        self.early = Some(thread::spawn(move || shared.work(Lane::Back)));
        self
    }

    /// Tries all that are left, and returns how many there were: all were caught, or it is an error.
    pub fn finish(mut self) -> anyhow::Result<usize> {
        self.shared.hurry.store(true, Ordering::Relaxed);
        let shared = &self.shared;
        thread::scope(|scope| {
            if self.early.is_none() {
                scope.spawn(|| shared.work(Lane::Back));
            }
            shared.work(Lane::Front);
        });
        self.wait();
        let mut judged = std::mem::take(&mut *locked(&self.shared.judged));
        judged.sort_by(|(one, _), (other, _)| one.name.cmp(&other.name));
        let (count, tried) = (self.count, judged.len());
        let mut table = Table::new();
        table.load_style(NOTHING).set_header(["known-bad patch", "what it breaks", "caught by"]);
        let mut missed = Vec::new();
        for (patch, caught) in judged {
            match caught {
                Ok(tests) => table.add_row([patch.name, patch.defect, tests.join("\n")]),
                Err(error) => {
                    missed.push(format!("{}: {error:#}", patch.path.display()));
                    table.add_row([patch.name, patch.defect, "NOTHING".to_owned()])
                }
            };
        }
        println!("\n{}\n", table.trim_fmt());
        if !missed.is_empty() {
            bail!("{} of {count} patches were not caught:\n{}", missed.len(), missed.join("\n"));
        }
        if tried != count {
            bail!("of {count} patches {tried} were tried");
        }
        Ok(count)
    }

    fn wait(&mut self) {
        if let Some(early) = self.early.take() {
            let _ = early.join();
        }
    }
}

impl Drop for Proving {
    /// After another part has failed: what is under way is waited for, so that nothing is left behind.
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.wait();
    }
}

impl Shared {
    fn work(&self, lane: Lane) {
        let copy = Copy::new(lane);
        while !self.stop.load(Ordering::Relaxed)
            && let Some(patch) = lane.take(&mut locked(&self.waiting))
        {
            let hurry = self.hurry.load(Ordering::Relaxed);
            if hurry {
                println!("  {} …", patch.name);
            }
            let caught = copy.caught_by(&patch, hurry);
            locked(&self.judged).push((patch, caught));
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Which end of the list a copy takes its patches from.
#[derive(Clone, Copy)]
enum Lane {
    Front,
    Back,
}

impl Lane {
    fn take(self, waiting: &mut VecDeque<Patch>) -> Option<Patch> {
        match self {
            Lane::Front => waiting.pop_front(),
            Lane::Back => waiting.pop_back(),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Lane::Front => "front",
            Lane::Back => "back",
        }
    }
}

fn find(only: Option<&str>) -> anyhow::Result<Vec<Patch>> {
    let folder = root().join("proofs/known-bad");
    let entries = std::fs::read_dir(&folder).with_context(|| format!("list {}", folder.display()))?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<anyhow::Result<Vec<_>>>()?;
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "patch"));
    paths.retain(|path| only.is_none_or(|only| path.to_string_lossy().contains(only)));
    paths.sort();
    if paths.is_empty() {
        bail!("there is no such patch in {}", folder.display());
    }
    paths.into_iter().map(Patch::read).collect()
}

impl Patch {
    fn read(path: PathBuf) -> anyhow::Result<Patch> {
        let text = std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        let field = |mark: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(mark));
            line.map(|line| line.trim().to_owned()).with_context(|| format!("{} has no line '{mark}'", path.display()))
        };
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let (defect, test) = (field("# ")?, field("# caught by:")?);
        if !test.starts_with("cargo test ") {
            bail!("{}: its test is not a `cargo test` command: {test}", path.display());
        }
        let files: Vec<String> =
            text.lines().filter_map(|line| line.strip_prefix("+++ b/")).map(|file| file.trim().to_owned()).collect();
        if files.is_empty() {
            bail!("{} changes no file", path.display());
        }
        Ok(Patch { name, defect, test, files, path })
    }
}

/// A copy of the workspace with a build of its own.
struct Copy {
    source: PathBuf,
    target: PathBuf,
}

impl Copy {
    fn new(lane: Lane) -> Copy {
        let folder = own("patches").join(lane.name());
        Copy { source: folder.join("source"), target: folder.join("target") }
    }

    /// The tests that fail with the patch.
    fn caught_by(&self, patch: &Patch, hurry: bool) -> anyhow::Result<Vec<String>> {
        self.refresh()?;
        self.apply(patch)?;
        let building = match patch.test.split_once(" -- ") {
            Some((cargo, _)) => format!("{cargo} --no-run"),
            None => format!("{} --no-run", patch.test),
        };
        self.cargo(patch, &building, hurry)?.expect_success("the build of the patched code")?;
        let outcome = self.cargo(patch, &patch.test, hurry)?;
        if outcome.success {
            bail!("`{}` passes with the patch applied", patch.test);
        }
        let mut failures = outcome.failures();
        if failures.is_empty() && outcome.lines.iter().any(|line| line.contains("panicked at")) {
            // A test that takes its whole process with it does not get to say so.
            failures.push(patch.test.clone());
        }
        if failures.is_empty() {
            bail!("`{}` fails, but no test does:\n{}", patch.test, outcome.lines.join("\n"));
        }
        Ok(failures)
    }

    /// Makes the copy equal to the workspace. Files that are equal already are not touched, so that cargo builds only what changed.
    fn refresh(&self) -> anyhow::Result<()> {
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
        }
        remove_others(&self.source, &wanted)
    }

    fn apply(&self, patch: &Patch) -> anyhow::Result<()> {
        let mut apply = Command::new("git");
        // The copy is inside the workspace's target directory; git must not take it for a part of the workspace.
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

    fn cargo(&self, patch: &Patch, words: &str, hurry: bool) -> anyhow::Result<Outcome> {
        let mut command = Command::new(if hurry { "cargo" } else { "nice" });
        if !hurry {
            command.args(["-n", "19", "cargo"]);
        }
        command
            .args(words.split_whitespace().skip(1))
            .current_dir(&self.source)
            .env("CARGO_TARGET_DIR", &self.target)
            // Set by cargo for us; they speak of the wrong workspace.
            .env_remove("CARGO_MANIFEST_DIR")
            .env_remove("CARGO_MANIFEST_PATH");
        run(&patch.name, &command)
    }
}

fn remove_others(folder: &Path, wanted: &BTreeSet<PathBuf>) -> anyhow::Result<()> {
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
