//! `cargo xtask rename MAP.toml`: renames items, modules and local names in all sources, and
//! carries the known-bad patches along.
//!
//! In: a map (`map`). The compiler finds the uses of items (`resolve`), the parser those of modules
//! (`modules`) and local names (`words`). Names in comments follow (`comments`). Out: changed
//! sources, formatted, and patches that make the same change as before (`patches::carry`).
//!
//! Invariant: nothing is written before every replacement is known and none contradicts another.

mod added_lines;
mod comments;
mod definitions;
mod edits;
mod map;
mod modules;
mod resolve;
pub mod tokens;
mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};

use self::added_lines::PatchedFile;
use self::definitions::FileItems;
use self::edits::Edits;
use self::map::RenameMap;
use self::modules::RenamedModules;
use crate::patches::carry::{self, MergeResult, Tree};
use crate::patches::remove_others;
use crate::paths::root;
use crate::proved::git;

/// All tracked files of the workspace.
pub struct Sources {
    /// Rust sources, by their paths from the root.
    pub files: BTreeMap<String, String>,
    /// The other files.
    pub others: BTreeMap<String, Vec<u8>>,
}

impl Sources {
    /// Reads the working tree.
    pub fn read(root: &Path) -> anyhow::Result<Sources> {
        let listed = git(&["ls-files", "--cached", "--others", "--exclude-standard"])?;
        let mut sources = Sources { files: BTreeMap::new(), others: BTreeMap::new() };
        for path in listed.lines() {
            // Deleted, but not yet committed as deleted.
            let Ok(bytes) = std::fs::read(root.join(path)) else { continue };
            if path.ends_with(".rs") {
                let text = String::from_utf8(bytes).with_context(|| format!("read {path} as UTF-8"))?;
                sources.files.insert(path.to_owned(), text);
            } else {
                sources.others.insert(path.to_owned(), bytes);
            }
        }
        Ok(sources)
    }

    /// The text of any file.
    pub fn text(&self, path: &str) -> anyhow::Result<String> {
        match (self.files.get(path), self.others.get(path)) {
            (Some(text), _) => Ok(text.clone()),
            (None, Some(bytes)) => String::from_utf8(bytes.clone()).with_context(|| format!("read {path} as UTF-8")),
            (None, None) => bail!("{path} is not there"),
        }
    }

    /// Makes `folder` a copy.
    fn write_to(&self, folder: &Path) -> anyhow::Result<()> {
        let files = self.files.iter().map(|(path, text)| (path, text.as_bytes()));
        let mut wanted = BTreeSet::new();
        for (path, bytes) in files.chain(self.others.iter().map(|(path, bytes)| (path, bytes.as_slice()))) {
            resolve::write_if_changed(&folder.join(path), bytes)?;
            wanted.insert(folder.join(path));
        }
        remove_others(folder, &wanted)
    }
}

/// Applies a map to the working tree.
pub fn rename(map: &str) -> anyhow::Result<()> {
    let root = root();
    let map = RenameMap::read(Path::new(map), &root)?;
    let sources = Sources::read(&root)?;
    let modules = RenamedModules::from_map(&map)?;
    let before = carry::check_all(&Tree::Sources(&sources))?;
    let resolved = resolve::resolve(&map, &sources)?;
    let mut edits = resolved.edits;
    modules.rename(&sources, &mut edits)?;
    for (file, text) in &sources.files {
        let words = map.words_for(file);
        if !words.is_empty() {
            let items = FileItems::parse(text).with_context(|| file.clone())?;
            words::rename_words(text, &items, &words, edits.entry(file.clone()).or_default())
                .with_context(|| file.clone())?;
        }
    }
    comments::rename_comments(&sources, &mut edits)?;
    let documents = comments::rename_documents(&map, &sources, &edits)?;

    let none = Edits::default();
    let mut replaced = 0;
    for (file, text) in &sources.files {
        let file_edits = edits.get(file).unwrap_or(&none);
        replaced += file_edits.len();
        let mut text = file_edits.apply(text);
        for (from, to) in map.files().filter(|(path, _)| path == file).flat_map(|(_, rules)| &rules.text) {
            if !text.contains(from.as_str()) {
                bail!("{file} does not contain '{from}'");
            }
            text = text.replace(from.as_str(), to);
        }
        let to = map.new_path(file);
        if to != *file {
            std::fs::remove_file(root.join(file)).with_context(|| format!("remove {file}"))?;
        }
        resolve::write_if_changed(&root.join(&to), text.as_bytes())?;
    }
    for (file, text) in &documents {
        resolve::write_if_changed(&root.join(file), text.as_bytes())?;
    }
    format_all()?;

    let whole = comments::whole_meanings(&sources, &edits);
    let mut unresolved = Vec::new();
    let carried = carry::carry_all(&before, &|path| map.new_path(path), &mut |patch, file, original, patched| {
        let mut words = map.words_for(file);
        if let Some((_, rules)) = map.files().find(|(path, _)| *path == patch) {
            words.extend(rules.words.iter().map(|(from, to)| (from.as_str(), to.as_str())));
        }
        let file_edits = edits.get(file).unwrap_or(&none);
        let parts = PatchedFile { original, patched, edits: file_edits, whole: &whole, words: &words };
        let (text, unclear) = parts.rename()?;
        unresolved.extend(unclear.into_iter().map(|name| format!("{patch}: {name}")));
        Ok(MergeResult::Text(carry::format(&text)?))
    })?;
    carry::rename_test_filters(&map.moves().collect::<Vec<_>>())?;

    println!("{replaced} replacements; {carried} patches carried");
    for (file, key, uses) in resolved.uses.iter().filter(|(_, _, uses)| *uses == 0) {
        println!("no use found: {file}: {key} ({uses})");
    }
    for line in &unresolved {
        println!("to look at: {line}");
    }
    Ok(())
}

fn format_all() -> anyhow::Result<()> {
    let status = Command::new("cargo").args(["fmt", "--all"]).current_dir(root()).status().context("run cargo fmt")?;
    if !status.success() {
        bail!("cargo fmt failed: a replacement does not parse");
    }
    Ok(())
}
