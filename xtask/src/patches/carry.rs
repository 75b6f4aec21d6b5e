//! Carries the known-bad patches over a change of the sources: each makes the same change as
//! before.
//!
//! `cargo xtask patches --carry [COMMIT]` merges three texts of a file. Base is the file at COMMIT,
//! ours is the working tree, theirs is the file at COMMIT with the patch. If they conflict and only
//! comments differ, it merges code lines alone. `cargo xtask rename` makes the new patched text in
//! its own way; the rest is the same.
//!
//! Invariant: a patch that needs a decision is left as it was and reported.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

use super::{Patch, find};
use crate::paths::{own, root};
use crate::proved::git;
use crate::rename::Sources;

/// The tree that the patches apply to.
pub enum Tree<'a> {
    /// The files as read.
    Sources(&'a Sources),
    /// A commit.
    Commit(&'a str),
}

/// A patch with the texts of its files before the change.
pub struct PatchBefore {
    path: PathBuf,
    /// The comment lines above the first file.
    header: String,
    files: Vec<PatchedText>,
}

struct PatchedText {
    file: String,
    original: String,
    patched: String,
}

/// The new patched text of a file.
pub enum MergeResult {
    /// It is known.
    Text(String),
    /// It needs a decision.
    Conflict,
}

/// Applies every patch to its files in `tree`.
pub fn check_all(tree: &Tree<'_>) -> anyhow::Result<Vec<PatchBefore>> {
    find(&[])?.into_iter().map(|patch| apply(tree, patch)).collect()
}

fn apply(tree: &Tree<'_>, patch: Patch) -> anyhow::Result<PatchBefore> {
    let folder = own("carry");
    if folder.exists() {
        std::fs::remove_dir_all(&folder).with_context(|| format!("remove {}", folder.display()))?;
    }
    let mut originals = Vec::new();
    for file in &patch.files {
        let original = match tree {
            Tree::Sources(sources) => sources.text(file)?,
            Tree::Commit(commit) => git(&["show", &format!("{commit}:{file}")])? + "\n",
        };
        write(&folder.join(file), &original)?;
        originals.push(original);
    }
    let text = read(&patch.path)?;
    let mut command = Command::new("git");
    command.args(["apply", "--whitespace=nowarn"]).arg(&patch.path).current_dir(&folder);
    // The folder is inside the target directory; git must not take it for a part of the workspace.
    command.env("GIT_CEILING_DIRECTORIES", folder.parent().context("find the folder above")?);
    let output = command.stdin(Stdio::null()).output().context("run git apply")?;
    if !output.status.success() {
        bail!("{} does not apply: {}", patch.path.display(), String::from_utf8_lossy(&output.stderr));
    }
    let header = text.lines().take_while(|line| line.starts_with('#')).map(|line| format!("{line}\n")).collect();
    let mut files = Vec::new();
    for (file, original) in patch.files.into_iter().zip(originals) {
        let patched = read(&folder.join(&file))?;
        files.push(PatchedText { file, original, patched });
    }
    Ok(PatchBefore { path: patch.path, header, files })
}

/// Rewrites each patch with changed files. Returns the number of rewritten patches.
pub fn carry_all(
    before: &[PatchBefore],
    new_path: &dyn Fn(&str) -> String,
    carry: &mut dyn FnMut(&str, &str, &str, &str) -> anyhow::Result<MergeResult>,
) -> anyhow::Result<usize> {
    let mut carried = 0;
    for patch in before {
        let name = patch.path.strip_prefix(root()).unwrap_or(&patch.path).to_string_lossy().into_owned();
        let (mut body, mut changed, mut conflict) = (String::new(), false, false);
        for PatchedText { file, original, patched } in &patch.files {
            let to = new_path(file);
            let now = read(&root().join(&to))?;
            if now == *original && to == *file {
                body += &patch_text(file, original, patched)?;
                continue;
            }
            changed = true;
            match carry(&name, file, original, patched).with_context(|| format!("carry {name} over {file}"))? {
                MergeResult::Text(text) if text == now => bail!("{name} would no longer change {to}"),
                MergeResult::Text(text) => body += &patch_text(&to, &now, &text)?,
                MergeResult::Conflict => conflict = true,
            }
        }
        if conflict {
            println!("to do by hand: {name}");
        } else if changed {
            write(&patch.path, &format!("{}{body}", patch.header))?;
            carried += 1;
        }
    }
    Ok(carried)
}

/// `cargo xtask patches --carry [COMMIT]`.
pub fn carry(commit: &str) -> anyhow::Result<()> {
    let before = check_all(&Tree::Commit(commit))?;
    let carried = carry_all(&before, &str::to_owned, &mut |_, file, original, patched| {
        let ours = read(&root().join(file))?;
        match merge(&ours, original, patched)? {
            MergeResult::Conflict => merge_code_lines(&ours, original, patched),
            merged => Ok(merged),
        }
    })?;
    println!("{carried} patches carried");
    Ok(())
}

/// A three-way merge.
fn merge(ours: &str, base: &str, theirs: &str) -> anyhow::Result<MergeResult> {
    let folder = tempfile::tempdir().context("make a directory for a merge")?;
    let paths = ["ours", "base", "theirs"].map(|name| folder.path().join(name));
    for (path, text) in paths.iter().zip([ours, base, theirs]) {
        write(path, text)?;
    }
    let output = Command::new("git").args(["merge-file", "-p"]).args(&paths).output().context("run git merge-file")?;
    match output.status.code() {
        Some(0) => Ok(MergeResult::Text(String::from_utf8(output.stdout).context("read the merged text")?)),
        Some(conflicts) if conflicts > 0 && conflicts < 128 => Ok(MergeResult::Conflict),
        _ => bail!("git merge-file failed: {}", String::from_utf8_lossy(&output.stderr)),
    }
}

/// Merges a patch into a text that differs from its original in comments and blank lines alone.
fn merge_code_lines(ours: &str, base: &str, theirs: &str) -> anyhow::Result<MergeResult> {
    let (ours_lines, base_lines) = (ours.lines().collect::<Vec<_>>(), base.lines().collect::<Vec<_>>());
    let (ours_code, base_code) = (code_lines(&ours_lines), code_lines(&base_lines));
    let same = |(ours, base): (&usize, &usize)| ours_lines[*ours] == base_lines[*base];
    if ours_code.len() != base_code.len() || !ours_code.iter().zip(&base_code).all(same) {
        return Ok(MergeResult::Conflict);
    }
    let starts = line_starts(base);
    let line_of = |byte: usize| starts.partition_point(|start| *start < byte);
    let mut merged = String::new();
    let mut done = 0;
    for (removed, added) in changed_lines(base, theirs)? {
        let (from, to) = (line_of(removed.start), line_of(removed.end));
        let first = base_code.partition_point(|line| *line < from);
        let behind = base_code.partition_point(|line| *line < to);
        let (from, to) = if first < behind {
            (ours_code[first], ours_code[behind - 1] + 1)
        } else if first > 0 && base_code[first - 1] + 1 == from {
            (ours_code[first - 1] + 1, ours_code[first - 1] + 1)
        } else {
            let next = ours_code.get(first).copied().unwrap_or(ours_lines.len());
            (next, next)
        };
        if from < done {
            return Ok(MergeResult::Conflict);
        }
        ours_lines[done..from].iter().for_each(|line| merged.extend([line, "\n"]));
        merged += &theirs[added];
        done = to;
    }
    ours_lines[done..].iter().for_each(|line| merged.extend([line, "\n"]));
    Ok(MergeResult::Text(merged))
}

/// The lines that are neither blank nor a comment.
fn code_lines(lines: &[&str]) -> Vec<usize> {
    let is_code = |line: &str| !line.trim().is_empty() && !line.trim_start().starts_with("//");
    (0..lines.len()).filter(|at| is_code(lines[*at])).collect()
}

/// The part of a patch about one file.
fn patch_text(file: &str, original: &str, patched: &str) -> anyhow::Result<String> {
    let diff = diff(original, patched, 1)?;
    let hunks = diff.find("@@ ").with_context(|| format!("find a difference in {file}"))?;
    Ok(format!("--- a/{file}\n+++ b/{file}\n{}", &diff[hunks..]))
}

/// The byte ranges of the lines that differ: in the old text and in the new one.
pub fn changed_lines(old: &str, new: &str) -> anyhow::Result<Vec<(Range<usize>, Range<usize>)>> {
    let (old_starts, new_starts) = (line_starts(old), line_starts(new));
    let diff = diff(old, new, 0)?;
    let headers = diff.lines().filter_map(|line| line.strip_prefix("@@ -")?.split_once(" @@"));
    let parse = |header: &str| {
        let (removed, added) = header.split_once(" +")?;
        Some((byte_range(removed, &old_starts)?, byte_range(added, &new_starts)?))
    };
    headers.map(|(header, _)| parse(header).with_context(|| format!("read the hunk '{header}'"))).collect()
}

fn line_starts(text: &str) -> Vec<usize> {
    let ends = text.match_indices('\n').map(|(at, _)| at + 1);
    std::iter::once(0).chain(ends).chain([text.len()]).collect()
}

/// The bytes of `first,count`. An empty range stands behind its line.
fn byte_range(lines: &str, starts: &[usize]) -> Option<Range<usize>> {
    let (first, count) = lines.split_once(',').unwrap_or((lines, "1"));
    let (first, count): (usize, usize) = (first.parse().ok()?, count.parse().ok()?);
    let start = if count == 0 { first } else { first.checked_sub(1)? };
    Some(*starts.get(start)?..*starts.get(start + count)?)
}

fn diff(old: &str, new: &str, context: usize) -> anyhow::Result<String> {
    let folder = tempfile::tempdir().context("make a directory for a comparison")?;
    let paths = ["old.rs", "new.rs"].map(|name| folder.path().join(name));
    for (path, text) in paths.iter().zip([old, new]) {
        write(path, text)?;
    }
    let mut command = Command::new("git");
    command.args(["diff", "--no-index", "--no-color", "--no-ext-diff", &format!("-U{context}")]).args(&paths);
    let output = command.stdin(Stdio::null()).output().context("run git diff")?;
    match output.status.code() {
        Some(0 | 1) => String::from_utf8(output.stdout).context("read a difference"),
        _ => bail!("git diff failed: {}", String::from_utf8_lossy(&output.stderr)),
    }
}

/// A file's text, formatted by rustfmt.
pub fn format(text: &str) -> anyhow::Result<String> {
    use std::io::Write;
    let mut command = Command::new("rustfmt");
    command.args(["--edition", "2024", "--config-path"]).arg(root()).current_dir(own("carry"));
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().context("run rustfmt")?;
    let mut input = child.stdin.take().context("write to rustfmt")?;
    let text = text.to_owned();
    let writer = std::thread::spawn(move || input.write_all(text.as_bytes()));
    let output = child.wait_with_output().context("wait for rustfmt")?;
    let _ = writer.join();
    if !output.status.success() {
        bail!("rustfmt failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    String::from_utf8(output.stdout).context("read the formatted text")
}

/// Updates the test filters of libraries, which name modules, after their files have moved.
pub fn rename_test_filters(moves: &[(&str, &str)]) -> anyhow::Result<()> {
    for patch in find(&[])?.into_iter().filter(|patch| patch.test.contains("--lib ")) {
        let Some((_, filter)) = patch.test.split_once("--lib ") else { continue };
        let folder = format!("crates/{}/src/", patch.package);
        let segment = |old: &str| {
            let moved = moves.iter().filter(|(from, _)| from.starts_with(&folder));
            let mut renamed = moved.filter(|(from, _)| module_name(from) == old).map(|(_, to)| module_name(to));
            renamed.next_back().unwrap_or_else(|| old.to_owned())
        };
        let new: Vec<String> = filter.split("::").map(segment).collect();
        let new = new.join("::");
        if new != filter {
            let text = read(&patch.path)?.replacen(&format!("--lib {filter}"), &format!("--lib {new}"), 1);
            write(&patch.path, &text)?;
        }
    }
    Ok(())
}

fn module_name(path: &str) -> String {
    let stem = path.strip_suffix(".rs").unwrap_or(path);
    let stem = stem.strip_suffix("/mod").unwrap_or(stem);
    stem.rsplit('/').next().unwrap_or(stem).to_owned()
}

fn read(path: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    let folder = path.parent().context("find a file's folder")?;
    std::fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
    std::fs::write(path, text).with_context(|| format!("write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_lines_are_found_in_bytes() {
        let (old, new) = ("a\nbb\nc\n", "a\nx\ny\nc\nd\n");
        let changed = changed_lines(old, new).unwrap();
        assert_eq!(changed, [(2..5, 2..6), (7..7, 8..10)]);
    }

    #[test]
    fn a_patch_is_merged_over_a_change_of_other_lines_and_not_over_its_own() {
        let base = "// one\nfn f() {}\n\n\n// two\nfn g() {}\n";
        let (ours, theirs) = (base.replace("// one", "// first"), base.replace("fn g() {}", "fn g() { h() }"));
        let MergeResult::Text(merged) = merge(&ours, base, &theirs).unwrap() else { panic!("no conflict") };
        assert_eq!(merged, "// first\nfn f() {}\n\n\n// two\nfn g() { h() }\n");
        let ours = base.replace("// two", "// second, and\n// third");
        assert!(matches!(merge(&ours, base, &theirs).unwrap(), MergeResult::Conflict));
        let MergeResult::Text(merged) = merge_code_lines(&ours, base, &theirs).unwrap() else {
            panic!("only comments differ")
        };
        assert_eq!(merged, ours.replace("fn g() {}", "fn g() { h() }"));
        let other = base.replace("fn g() {}", "fn g() { i() }");
        assert!(matches!(merge_code_lines(&other, base, &theirs).unwrap(), MergeResult::Conflict));
        assert!(matches!(merge(&other, base, &theirs).unwrap(), MergeResult::Conflict));
    }
}
