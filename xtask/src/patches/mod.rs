//! Tests of the tests: the named test must catch each known-bad patch under `proofs/known-bad`.
//!
//! ```text
//! # The reply leaves before the fsync.
//! # caught by: cargo test -p quipu-sim --test crash_states
//! --- a/crates/…
//! +++ b/crates/…
//! ```
//!
//! A test that searches among seeds has the seed that catches the patch:
//! `# seed: QUIPU_SCHEDULE_FROM=17`. The variable sets the first seed of the test. That seed is
//! tried first; the whole search follows only if it passes. A failing test prints its seed behind
//! `again: `, and a new seed is written into the patch.
//!
//! A patch is applied to a copy of the workspace (`copy`), uncommitted work included. Its build is
//! kept for the next patch. Two copies work at once: one builds while the other's tests wait, and
//! one core builds most of a crate. In a whole run one of them begins early, on the CPU time left
//! by other parts. Many of these wait for disks and servers more than they compute.
//!
//! Invariant: a patch is caught if the patched code builds and a test fails. A patch that does not
//! apply, does not build or fails no test is an error.

pub mod carry;
mod copy;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, bail};
use comfy_table::Table;
use comfy_table::presets::NOTHING;

use self::copy::WorkspaceCopy;
pub use self::copy::remove_others;
use crate::parts::{FEATURES, PatchChoice};
use crate::paths::root;
use crate::proved::{git, proved_commit};

/// A patch and the fields of its header.
struct Patch {
    path: PathBuf,
    name: String,
    /// Its defect, in a sentence.
    defect: String,
    /// The package of the test that is to catch it.
    package: String,
    /// The test, as arguments of cargo.
    test: String,
    /// The variable of the test that sets its first seed, and the seed that catches the patch.
    seed: Option<(String, String)>,
    /// The files that it changes.
    files: Vec<String>,
}

/// The tests that caught a patch.
struct CatchReport {
    /// The tests that failed.
    tests: Vec<String>,
    /// The seed that caught it, as `VARIABLE=SEED`, if the test searches among seeds.
    seed: Option<String>,
    /// Time of the build of the patched code, and of the tests.
    built: Duration,
    ran: Duration,
}

/// Tries each patch, or those with names that contain one of these. Returns the number of caught
/// patches: all of them, or an error.
pub fn patches(only: &[&str]) -> anyhow::Result<usize> {
    PatchRun::find(only)?.finish()
}

/// A run of patches.
pub struct PatchRun {
    queue: Arc<PatchQueue>,
    count: usize,
    applying: usize,
    early: Option<JoinHandle<()>>,
}

/// The common state of the copies.
struct PatchQueue {
    waiting: Mutex<VecDeque<Patch>>,
    judged: Mutex<Vec<(Patch, anyhow::Result<CatchReport>)>>,
    /// No other part needs the cores: print each patch, and run at normal priority.
    hurry: AtomicBool,
    /// Take no more patches.
    stop: AtomicBool,
}

impl PatchRun {
    /// The patches of a choice.
    pub fn choose(choice: PatchChoice) -> anyhow::Result<PatchRun> {
        let all = find(&[])?;
        check_applying(&all)?;
        let applying = all.len();
        let chosen = match choice {
            PatchChoice::Few => choose_few(all)?,
            PatchChoice::All => all,
        };
        let mut patch_run = PatchRun::new(chosen);
        patch_run.applying = applying;
        Ok(patch_run)
    }

    /// The patches with names that contain one of these, or all.
    pub fn find(only: &[&str]) -> anyhow::Result<PatchRun> {
        Ok(PatchRun::new(find(only)?))
    }

    /// Number of patches that apply to the sources.
    pub fn applying(&self) -> usize {
        self.applying
    }

    fn new(mut patches: Vec<Patch>) -> PatchRun {
        // Patches of one test lie together. Each copy begins at one end, so that neither builds
        // everything.
        patches.sort_by(|one, other| {
            (&one.package, &one.test, &one.name).cmp(&(&other.package, &other.test, &other.name))
        });
        let count = patches.len();
        let queue = PatchQueue {
            waiting: Mutex::new(patches.into()),
            judged: Mutex::default(),
            hurry: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        };
        PatchRun { queue: Arc::new(queue), count, applying: count, early: None }
    }

    /// Begins with one copy, beside the other parts and at the lowest priority.
    #[must_use]
    pub fn begin_early(mut self) -> PatchRun {
        let queue = Arc::clone(&self.queue);
        self.early = Some(thread::spawn(move || queue.work(Lane::Back)));
        self
    }

    /// Tries all remaining patches, and returns their number: all were caught, or it is an error.
    pub fn finish(mut self) -> anyhow::Result<usize> {
        self.queue.hurry.store(true, Ordering::Relaxed);
        let queue = &self.queue;
        thread::scope(|scope| {
            // A few patches are not worth a second copy.
            if self.early.is_none() && self.count > FEW {
                scope.spawn(|| queue.work(Lane::Back));
            }
            queue.work(Lane::Front);
        });
        self.wait();
        let mut judged = std::mem::take(&mut *lock_queue(&self.queue.judged));
        judged.sort_by(|(one, _), (other, _)| one.name.cmp(&other.name));
        let (count, tried) = (self.count, judged.len());
        let mut table = Table::new();
        table.load_style(NOTHING).set_header(["known-bad patch", "what it breaks", "caught by", "built s", "ran s"]);
        let (mut missed, mut built, mut ran) = (Vec::new(), Duration::ZERO, Duration::ZERO);
        for (patch, caught) in judged {
            match caught {
                Ok(caught) => {
                    patch.record_seed(caught.seed.as_deref())?;
                    let seconds = [caught.built, caught.ran].map(|time| format!("{:.1}", time.as_secs_f64()));
                    (built, ran) = (built + caught.built, ran + caught.ran);
                    let [built, ran] = seconds;
                    table.add_row([patch.name, patch.defect, caught.tests.join("\n"), built, ran])
                }
                Err(error) => {
                    missed.push(format!("{}: {error:#}", patch.path.display()));
                    table.add_row([patch.name, patch.defect, "NOTHING".to_owned()])
                }
            };
        }
        println!("\n{}\n", table.trim_fmt());
        println!("builds {:.0} s, tests {:.0} s, two at a time", built.as_secs_f64(), ran.as_secs_f64());
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

impl Drop for PatchRun {
    /// After a failure of another part: waits for the patch in progress, so that nothing is left
    /// behind.
    fn drop(&mut self) {
        self.queue.stop.store(true, Ordering::Relaxed);
        self.wait();
    }
}

impl PatchQueue {
    fn work(&self, lane: Lane) {
        let copy = WorkspaceCopy::new(lane);
        while let Some(patch) = self.next(lane) {
            let hurry = self.hurry.load(Ordering::Relaxed);
            if hurry {
                println!("  {} …", patch.name);
            }
            let caught = copy.try_out(&patch, hurry);
            lock_queue(&self.judged).push((patch, caught));
        }
    }

    /// Not in the loop's own condition: a lock taken there is held until the patch was tried, and
    /// the other copy waits.
    fn next(&self, lane: Lane) -> Option<Patch> {
        if self.stop.load(Ordering::Relaxed) { None } else { lane.take(&mut lock_queue(&self.waiting)) }
    }
}

fn lock_queue<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Number of patches that `cargo xtask test` tries.
const FEW: usize = 3;

/// Chooses patches for `cargo xtask test`: those of files that changed since the last proof.
/// Without any, a choice that depends only on the content of the crates.
///
/// Only patches that the shared debug build and one core can try in seconds.
fn choose_few(mut patches: Vec<Patch>) -> anyhow::Result<Vec<Patch>> {
    let quick = ["--test it_engine", "--test crash_states", "--test seeds", "--lib"];
    patches.retain(|patch| {
        quick.iter().any(|target| patch.test.starts_with(target)) && !patch.test.contains("--features ")
    });
    if let Some(commit) = proved_commit()? {
        let changed = git(&["diff", "--name-only", &commit])?;
        let touched = |patch: &&Patch| patch.files.iter().any(|file| changed.lines().any(|line| line == file));
        if patches.iter().any(|patch| touched(&patch)) {
            patches.retain(|patch| touched(&patch));
        }
    }
    let tree = git(&["rev-parse", "HEAD:crates"])?;
    let start = usize::from_str_radix(tree.get(..8).unwrap_or_default(), 16).context("read the hash of the crates")?;
    let count = patches.len();
    if count > FEW {
        patches.rotate_left(start % count);
        patches.truncate(FEW);
    }
    Ok(patches)
}

/// Checks that every patch applies to the present workspace.
fn check_applying(patches: &[Patch]) -> anyhow::Result<()> {
    let mut wrong = Vec::new();
    for patch in patches {
        if let Err(error) = git(&["apply", "--check", &patch.path.to_string_lossy()]) {
            wrong.push(format!("{error:#}"));
        }
    }
    if !wrong.is_empty() {
        bail!("{} known-bad patches do not apply; carry them over:\n{}", wrong.len(), wrong.join("\n"));
    }
    Ok(())
}

/// The end of the list from which a copy takes its patches.
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

fn find(only: &[&str]) -> anyhow::Result<Vec<Patch>> {
    let folder = root().join("proofs/known-bad");
    let entries = std::fs::read_dir(&folder).with_context(|| format!("list {}", folder.display()))?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<anyhow::Result<Vec<_>>>()?;
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "patch"));
    paths.retain(|path| only.is_empty() || only.iter().any(|only| path.to_string_lossy().contains(only)));
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
        let Some((package, test)) = test.strip_prefix("cargo test -p ").and_then(|words| words.split_once(' ')) else {
            bail!("{}: its test is not a `cargo test -p package …` command: {test}", path.display());
        };
        let (package, test) = (package.to_owned(), test.to_owned());
        let files: Vec<String> =
            text.lines().filter_map(|line| line.strip_prefix("+++ b/")).map(|file| file.trim().to_owned()).collect();
        if files.is_empty() {
            bail!("{} changes no file", path.display());
        }
        let seed = text.lines().find_map(|line| line.strip_prefix("# seed:"));
        let seed = seed.map(|line| {
            let (variable, value) = line.trim().split_once('=').with_context(|| {
                format!("{}: '# seed:' is followed by VARIABLE=SEED, not '{}'", path.display(), line.trim())
            })?;
            anyhow::Ok((variable.to_owned(), value.to_owned()))
        });
        let seed = seed.transpose()?;
        Ok(Patch { name, defect, package, test, seed, files, path })
    }

    /// Writes the seed that caught the patch into its header, if it differs from the present one.
    fn record_seed(&self, seed: Option<&str>) -> anyhow::Result<()> {
        let known = self.seed.as_ref().map(|(variable, seed)| format!("{variable}={seed}"));
        let Some(seed) = seed.filter(|seed| known.as_deref() != Some(*seed)) else { return Ok(()) };
        let text = std::fs::read_to_string(&self.path).with_context(|| format!("read {}", self.path.display()))?;
        let mut lines: Vec<String> =
            text.lines().filter(|line| !line.starts_with("# seed:")).map(str::to_owned).collect();
        let caught_by = lines.iter().position(|line| line.starts_with("# caught by:"));
        lines.insert(caught_by.map_or(0, |at| at + 1), format!("# seed: {seed}"));
        println!("  {}: caught by {seed}, which is recorded in the patch", self.name);
        std::fs::write(&self.path, lines.join("\n") + "\n").with_context(|| format!("write {}", self.path.display()))
    }

    /// The same test as a part of the build that all parts share. A crate built alone has other
    /// features in its dependencies, which would then be built again.
    fn shared_test(&self) -> String {
        let Patch { package, test, .. } = self;
        if test.contains("--features ") {
            // A build of its own anyway.
            format!("cargo test -p {package} {test}")
        } else if test.contains("--test ") {
            // The name of a test target names its package.
            format!("cargo test --workspace {FEATURES} {test}")
        } else {
            // A library needs its package's name, beside the program, which has the features.
            format!("cargo test -p {package} -p quipu {FEATURES} {test}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_is_built_with_what_all_parts_share() {
        let queue = |package: &str, test: &str| {
            let (path, name, defect, files) = (PathBuf::new(), String::new(), String::new(), Vec::new());
            let (package, test) = (package.to_owned(), test.to_owned());
            Patch { path, name, defect, package, test, seed: None, files }.shared_test()
        };
        assert_eq!(queue("quipu-sim", "--test seeds x"), format!("cargo test --workspace {FEATURES} --test seeds x"));
        let library = format!("cargo test -p quipu-engine -p quipu {FEATURES} --lib split");
        assert_eq!(queue("quipu-engine", "--lib split"), library);
        let own = "cargo test -p quipu-engine --features shuttle --test shuttle of_two";
        assert_eq!(queue("quipu-engine", "--features shuttle --test shuttle of_two"), own);
    }
}
