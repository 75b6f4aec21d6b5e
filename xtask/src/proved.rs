//! Keeps `proofs/proved.toml`: the parts of `cargo xtask prove` that hold, and the sources that
//! they hold for.
//!
//! Invariant: a part is recorded only for sources that are committed; other sources begin an empty
//! record.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

use crate::paths::root;

/// The dependencies of a proof, beside the patches.
const SOURCES: [&str; 4] = ["crates", "xtask", "Cargo.lock", "Cargo.toml"];

/// The patches. One part depends on them; the seeds recorded in them do not affect it.
const PATCHES: &str = "proofs/known-bad";

/// The part that depends on the patches.
pub const PATCHES_PART: &str = "known-bad patches";

/// The parts that hold for one state of the sources.
pub struct ProofRecord {
    file: ProofFile,
    /// True if the sources are committed.
    is_clean: bool,
}

#[derive(Default, Serialize, Deserialize)]
struct ProofFile {
    /// Fingerprint of the sources that `parts` holds for.
    sources: String,
    /// Fingerprint of the patches that the part of the patches holds for.
    #[serde(default)]
    patches: String,
    /// Finished parts.
    parts: Vec<String>,
    /// The last commit for which all parts held.
    #[serde(default)]
    commit: String,
}

impl ProofRecord {
    /// Reads the record of the committed sources.
    pub fn open() -> anyhow::Result<ProofRecord> {
        let mut file = read_file()?;
        let (sources, patches) = (fingerprint_sources()?, hash_patches()?);
        if file.sources != sources {
            file.parts.clear();
        }
        if file.patches != patches {
            file.parts.retain(|part| part != PATCHES_PART);
        }
        (file.sources, file.patches) = (sources, patches);
        let is_clean = git(&[&["status", "--porcelain", "--", PATCHES], &SOURCES[..]].concat())?.is_empty();
        if !is_clean {
            println!("the sources have changes that are not committed: nothing will be recorded as proved");
            file.parts.clear();
        }
        Ok(ProofRecord { file, is_clean })
    }

    /// Returns true if a part held for these sources.
    pub fn holds(&self, part: &str) -> bool {
        self.file.parts.iter().any(|held| held == part)
    }

    /// Records that a part holds.
    pub fn add(&mut self, part: &str) -> anyhow::Result<()> {
        if !self.holds(part) {
            self.file.parts.push(part.to_owned());
        }
        self.write()
    }

    /// Records that all parts hold for the present commit.
    pub fn complete(&mut self) -> anyhow::Result<()> {
        self.file.commit = git(&["rev-parse", "HEAD"])?;
        self.write()
    }

    fn write(&self) -> anyhow::Result<()> {
        if !self.is_clean {
            return Ok(());
        }
        let text = format!(
            "# Parts of `cargo xtask prove` that hold, and for which sources. Written by it.\n{}",
            toml::to_string(&self.file).context("write down what is proved")?
        );
        std::fs::write(path(), text).with_context(|| format!("write {}", path().display()))
    }
}

/// The last commit for which all parts of `prove` held, if there is one in this clone.
pub fn proved_commit() -> anyhow::Result<Option<String>> {
    let commit = read_file()?.commit;
    let is_here = !commit.is_empty() && git(&["cat-file", "-e", &format!("{commit}^{{commit}}")]).is_ok();
    Ok(is_here.then_some(commit))
}

/// The output of a git command in the workspace, without the end of its last line.
pub fn git(words: &[&str]) -> anyhow::Result<String> {
    let output =
        Command::new("git").args(words).current_dir(root()).stdin(Stdio::null()).output().context("run git")?;
    if !output.status.success() {
        bail!("git {} failed: {}", words.join(" "), String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
}

fn fingerprint_sources() -> anyhow::Result<String> {
    let mut trees = String::new();
    for source in SOURCES {
        trees.push_str(&git(&["rev-parse", &format!("HEAD:{source}")])?);
        trees.push('\n');
    }
    Ok(trees.split_whitespace().map(|tree| &tree[..tree.len().min(12)]).collect::<Vec<_>>().join("-"))
}

/// A hash of all patches without their seeds.
fn hash_patches() -> anyhow::Result<String> {
    let folder = root().join(PATCHES);
    let entries = std::fs::read_dir(&folder).with_context(|| format!("list {}", folder.display()))?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<anyhow::Result<Vec<_>>>()?;
    paths.sort();
    let mut all = String::new();
    for path in paths {
        let text = std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        all.push_str(&path.file_name().unwrap_or_default().to_string_lossy());
        text.lines().filter(|line| !line.starts_with("# seed:")).for_each(|line| {
            all.push('\n');
            all.push_str(line);
        });
    }
    let mut hash = Command::new("git");
    hash.args(["hash-object", "--stdin"]).stdin(Stdio::piped()).stdout(Stdio::piped()).current_dir(root());
    let mut child = hash.spawn().context("run git hash-object")?;
    child.stdin.take().context("its input is piped")?.write_all(all.as_bytes()).context("write to git hash-object")?;
    let output = child.wait_with_output().context("wait for git hash-object")?;
    if !output.status.success() {
        bail!("git hash-object failed: {}", output.status);
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
}

fn read_file() -> anyhow::Result<ProofFile> {
    match std::fs::read_to_string(path()) {
        Ok(text) => toml::from_str(&text).with_context(|| format!("read {}", path().display())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(ProofFile::default()),
        Err(error) => Err(error).with_context(|| format!("read {}", path().display())),
    }
}

fn path() -> PathBuf {
    root().join("proofs/proved.toml")
}
