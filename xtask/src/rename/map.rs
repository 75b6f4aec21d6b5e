//! A rename map: the new names of items, local names, modules and lines of text.
//!
//! ```toml
//! ["crates/a/src/held.rs"]
//! move = "crates/a/src/locks.rs"                      # the file, and with it the module
//! items = { Held = "ShardLocks", "Held::look" = "find", "Held.seen" = "rows" }
//! words = { told = "reply" }                          # local variables and parameters of this file
//! text = [["an old line", "a new line"]]              # text unknown to compiler and parser
//!
//! ["crates/a/"]                                       # a folder: all Rust files below it
//! words = { dice = "rng" }
//! ```
//!
//! Invariant: a map never depends on the order of its lines.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, bail};
use serde::Deserialize;

/// A parsed map.
pub struct RenameMap {
    files: BTreeMap<String, FileRules>,
}

/// The rules of one file, or of all files below a folder.
#[derive(Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileRules {
    /// The new path of the file.
    #[serde(rename = "move")]
    pub new_path: Option<String>,
    /// Items that the file defines: `Type`, `function`, `Type::method`, `Enum::Variant`,
    /// `Type.field`, each with its new last segment.
    #[serde(default)]
    pub items: BTreeMap<String, String>,
    /// Local variables and parameters.
    #[serde(default)]
    pub words: BTreeMap<String, String>,
    /// Exact text and its replacement, applied last.
    #[serde(default)]
    pub text: Vec<(String, String)>,
}

impl RenameMap {
    /// Reads a map and checks that its paths exist and its names are identifiers.
    pub fn read(path: &Path, root: &Path) -> anyhow::Result<RenameMap> {
        let text = std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
        let files: BTreeMap<String, FileRules> =
            toml::from_str(&text).with_context(|| format!("parse {}", path.display()))?;
        for (file, rules) in &files {
            let is_folder = file.ends_with('/');
            if !root.join(file).exists() {
                bail!("{file} is not there");
            }
            if is_folder && (rules.new_path.is_some() || !rules.items.is_empty() || !rules.text.is_empty()) {
                bail!("{file} is a folder: only `words` can be given for it");
            }
            if let Some(new_path) = &rules.new_path
                && root.join(new_path).exists()
            {
                bail!("{file} cannot move to {new_path}, which is there");
            }
            let names = rules.items.values().chain(rules.words.keys()).chain(rules.words.values());
            if let Some(name) = names.into_iter().find(|name| !is_identifier(name)) {
                bail!("'{name}', named for {file}, is not an identifier");
            }
        }
        Ok(RenameMap { files })
    }

    /// Every file that has rules of its own.
    pub fn files(&self) -> impl Iterator<Item = (&str, &FileRules)> {
        self.files.iter().map(|(path, rules)| (path.as_str(), rules)).filter(|(path, _)| !path.ends_with('/'))
    }

    /// The local names of a file: its own, and those of the folders it is in, the nearest first.
    pub fn words_for(&self, path: &str) -> BTreeMap<&str, &str> {
        // The keys are sorted, so a folder stands before the folders and files in it.
        let above =
            self.files.iter().filter(|(at, _)| *at == path || (at.ends_with('/') && path.starts_with(at.as_str())));
        above.flat_map(|(_, rules)| &rules.words).map(|(from, to)| (from.as_str(), to.as_str())).collect()
    }

    /// The files that move: old and new path.
    pub fn moves(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files().filter_map(|(path, rules)| Some((path, rules.new_path.as_deref()?)))
    }

    /// The path of a file after the moves. A moved module takes the folder of its children along.
    pub fn new_path(&self, path: &str) -> String {
        let path = self.moves().find(|(from, _)| *from == path).map_or(path, |(_, to)| to);
        let folders = self.moves().filter_map(|(from, to)| Some((module_folder(from)?, module_folder(to)?)));
        let nearest = folders.filter(|(from, _)| path.starts_with(from.as_str())).max_by_key(|(from, _)| from.len());
        match nearest {
            Some((from, to)) => format!("{to}{}", &path[from.len()..]),
            None => path.to_owned(),
        }
    }
}

/// The folder of a module's children, with a slash: of `a/b.rs` and of `a/b/mod.rs` it is `a/b/`.
pub fn module_folder(path: &str) -> Option<String> {
    let stem = path.strip_suffix(".rs")?;
    match stem.strip_suffix("/mod") {
        Some(folder) => Some(format!("{folder}/")),
        None => Some(format!("{stem}/")),
    }
}

fn is_identifier(name: &str) -> bool {
    let mut letters = name.chars();
    letters.next().is_some_and(|first| first.is_ascii_alphabetic() || first == '_')
        && letters.all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
}
