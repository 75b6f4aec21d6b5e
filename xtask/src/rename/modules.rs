//! Renames modules with a moving file: the `mod` line, and the segment in every path.
//!
//! A path is resolved from its module, over the imports of that module, to the path of the module
//! that it names. Names made by a macro are not found.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use anyhow::{Context, bail};
use syn::visit::{self, Visit};

use super::Sources;
use super::edits::Edits;
use super::map::RenameMap;
use super::tokens::{CodeTokenKind, code_tokens, text_at};

/// A crate's name as paths say it, and the names of the modules below it.
type ModulePath = Vec<String>;

/// The modules that get another name, by their old paths.
pub struct RenamedModules(BTreeMap<ModulePath, String>);

impl RenamedModules {
    /// The renamed modules of a map. A module keeps its parent, under any name.
    pub fn from_map(map: &RenameMap) -> anyhow::Result<RenamedModules> {
        let mut renamed = RenamedModules(BTreeMap::new());
        let mut parents = Vec::new();
        for (from, _) in map.moves() {
            let to = map.new_path(from);
            let (Some(old), Some(new)) = (module_path(from), module_path(&to)) else { continue };
            let (Some((old_name, old_parent)), Some((name, parent))) = (old.split_last(), new.split_last()) else {
                continue;
            };
            parents.push((from.to_owned(), to, old_parent.to_vec(), parent.to_vec()));
            if old_name != name {
                renamed.0.insert(old.clone(), name.clone());
            }
        }
        for (from, to, old, new) in parents {
            if renamed.new_path(&old) != new {
                bail!("{from} cannot move to {to}: a module keeps its parent");
            }
        }
        Ok(renamed)
    }

    fn new_path(&self, path: &[String]) -> ModulePath {
        let name = |length: usize| self.0.get(&path[..length]).unwrap_or(&path[length - 1]).clone();
        (1..=path.len()).map(name).collect()
    }

    /// Adds the replacements in all files.
    pub fn rename(&self, sources: &Sources, edits: &mut BTreeMap<String, Edits>) -> anyhow::Result<()> {
        if self.0.is_empty() {
            return Ok(());
        }
        let known: BTreeSet<ModulePath> = sources.files.keys().filter_map(|file| module_path(file)).collect();
        for (file, text) in &sources.files {
            let scope = FileScope::parse(file, text, &known)?;
            for (range, path) in scope.mentions(text, &known, &self.0) {
                let file_edits = edits.entry(file.clone()).or_default();
                // A function of the module's name, exported from its parent: the compiler has
                // resolved it.
                if file_edits.at(&range).is_none() {
                    file_edits.add(range, &self.0[&path]).with_context(|| file.clone())?;
                }
            }
        }
        Ok(())
    }
}

/// The path of the module that a file holds; tests, benches and examples are crates of their own.
fn module_path(file: &str) -> Option<ModulePath> {
    let (crate_folder, rest) = match file.strip_prefix("crates/") {
        Some(rest) => rest.split_once('/')?,
        None => file.split_once('/')?,
    };
    let stem = rest.strip_suffix(".rs")?;
    let (root, inside) = match stem.strip_prefix("src/") {
        Some(inside) => (crate_folder.replace('-', "_"), inside),
        None => {
            let (target, inside) =
                stem.strip_prefix("tests/").or_else(|| stem.strip_prefix("benches/"))?.split_once('/')?;
            (format!("{crate_folder}/{target}"), inside)
        }
    };
    let inside = match inside {
        "lib" | "main" | "mod" => "",
        other => other.strip_suffix("/mod").unwrap_or(other),
    };
    Some(std::iter::once(root).chain(inside.split('/').filter(|part| !part.is_empty()).map(str::to_owned)).collect())
}

/// The modules of one file, with their imports.
struct FileScope {
    path: ModulePath,
    /// Modules written inside the file: their ranges and paths.
    inline: Vec<(Range<usize>, ModulePath)>,
    /// Per module: imported name and the module path it stands for.
    imports: BTreeMap<ModulePath, BTreeMap<String, ModulePath>>,
    /// Segments of `use` trees with the module that each stands for.
    use_segments: Vec<(Range<usize>, ModulePath)>,
    /// Ranges of `use` items: their segments are in `use_segments`.
    use_items: Vec<Range<usize>>,
    /// `mod name;` and `mod name {`: the name, and its path.
    declared: Vec<(Range<usize>, ModulePath)>,
}

impl FileScope {
    fn parse(file: &str, text: &str, known: &BTreeSet<ModulePath>) -> anyhow::Result<FileScope> {
        let path = module_path(file).unwrap_or_else(|| vec![format!("/{file}")]);
        let mut scope = FileScope {
            path: path.clone(),
            inline: Vec::new(),
            imports: BTreeMap::new(),
            use_segments: Vec::new(),
            use_items: Vec::new(),
            declared: Vec::new(),
        };
        let parsed = syn::parse_file(text).with_context(|| format!("parse {file}"))?;
        ScopeFinder { scope: &mut scope, current: path, known }.visit_file(&parsed);
        Ok(scope)
    }

    fn module_at(&self, at: usize) -> &ModulePath {
        let inside = self.inline.iter().filter(|(range, _)| range.contains(&at));
        inside.min_by_key(|(range, _)| range.len()).map_or(&self.path, |(_, path)| path)
    }

    /// All names of renamed modules.
    fn mentions(
        &self,
        text: &str,
        known: &BTreeSet<ModulePath>,
        renamed: &BTreeMap<ModulePath, String>,
    ) -> Vec<(Range<usize>, ModulePath)> {
        let listed = self.use_segments.iter().chain(&self.declared);
        let mut found: Vec<_> = listed.filter(|(_, path)| renamed.contains_key(path)).cloned().collect();
        let tokens = code_tokens(text);
        for start in 0..tokens.len() {
            let is_name = |at: usize| tokens.get(at).is_some_and(|token| token.kind == CodeTokenKind::Name);
            let range = &tokens[start].range;
            let begins_path = is_name(start)
                && (text_at(text, &tokens, start, -1), text_at(text, &tokens, start, -2)) != (":", ":")
                && !self.use_items.iter().any(|item| item.contains(&range.start));
            if !begins_path {
                continue;
            }
            let current = self.module_at(range.start);
            let Some(mut path) = resolve_first(&text[range.clone()], current, self, known) else { continue };
            let mut at = start;
            loop {
                let is_module = renamed.contains_key(&path) && is_path_segment(text, &tokens[at].range);
                if is_module && text[tokens[at].range.clone()] == *path[path.len() - 1] {
                    found.push((tokens[at].range.clone(), path.clone()));
                }
                let has_next =
                    text_at(text, &tokens, at, 1) == ":" && text_at(text, &tokens, at, 2) == ":" && is_name(at + 3);
                if !has_next {
                    break;
                }
                at += 3;
                let Some(next) = step(&path, &text[tokens[at].range.clone()], known) else { break };
                path = next;
            }
        }
        found.sort_by_key(|(range, _)| range.start);
        found.dedup();
        found
    }
}

/// Outside `use` items a module's name has `::` on one side; a variable of that name does not.
fn is_path_segment(text: &str, range: &Range<usize>) -> bool {
    text[range.end..].trim_start().starts_with("::") || text[..range.start].trim_end().ends_with("::")
}

/// The module that the first segment of a path stands for.
fn resolve_first(
    name: &str,
    current: &ModulePath,
    scope: &FileScope,
    known: &BTreeSet<ModulePath>,
) -> Option<ModulePath> {
    match name {
        "crate" => Some(current[..1].to_vec()),
        "self" => Some(current.clone()),
        "super" => Some(current[..current.len() - 1].to_vec()).filter(|path| !path.is_empty()),
        _ => {
            // Imports of the enclosing modules are visible through `use super::*`.
            let around = (1..=current.len()).rev().map(|length| &current[..length]);
            for module in around.take(2) {
                if let Some(path) = scope.imports.get(module).and_then(|imports| imports.get(name)) {
                    return Some(path.clone());
                }
                let child: ModulePath = module.iter().cloned().chain([name.to_owned()]).collect();
                if known.contains(&child) {
                    return Some(child);
                }
            }
            Some(vec![name.to_owned()]).filter(|root| known.contains(root))
        }
    }
}

/// The module that the next segment stands for.
fn step(path: &ModulePath, name: &str, known: &BTreeSet<ModulePath>) -> Option<ModulePath> {
    match name {
        "self" => Some(path.clone()),
        "super" => Some(path[..path.len() - 1].to_vec()).filter(|path| !path.is_empty()),
        _ => {
            let next: ModulePath = path.iter().cloned().chain([name.to_owned()]).collect();
            known.contains(&next).then_some(next)
        }
    }
}

struct ScopeFinder<'s> {
    scope: &'s mut FileScope,
    current: ModulePath,
    known: &'s BTreeSet<ModulePath>,
}

impl<'ast> Visit<'ast> for ScopeFinder<'_> {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        let path: ModulePath = self.current.iter().cloned().chain([item.ident.to_string()]).collect();
        self.scope.declared.push((item.ident.span().byte_range(), path.clone()));
        if item.content.is_some() {
            let whole = syn::spanned::Spanned::span(item).byte_range();
            self.scope.inline.push((whole, path.clone()));
            let outer = std::mem::replace(&mut self.current, path);
            visit::visit_item_mod(self, item);
            self.current = outer;
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.scope.use_items.push(syn::spanned::Spanned::span(item).byte_range());
        self.walk(&item.tree, None);
    }
}

impl ScopeFinder<'_> {
    /// Walks a `use` tree. `prefix` is the module so far; at the root there is none.
    fn walk(&mut self, tree: &syn::UseTree, prefix: Option<&ModulePath>) {
        let resolve = |finder: &Self, name: &str| match prefix {
            None => resolve_first(name, &finder.current, finder.scope, finder.known),
            Some(prefix) => step(prefix, name, finder.known),
        };
        match tree {
            syn::UseTree::Path(path) => {
                let Some(module) = resolve(self, &path.ident.to_string()) else { return };
                if module.last().is_some_and(|name| path.ident == name) {
                    self.scope.use_segments.push((path.ident.span().byte_range(), module.clone()));
                }
                self.walk(&path.tree, Some(&module));
            }
            syn::UseTree::Name(name) => self.import(&name.ident, &name.ident, resolve(self, &name.ident.to_string())),
            syn::UseTree::Rename(name) => {
                self.import(&name.ident, &name.rename, resolve(self, &name.ident.to_string()))
            }
            syn::UseTree::Group(group) => group.items.iter().for_each(|tree| self.walk(tree, prefix)),
            syn::UseTree::Glob(_) => {}
        }
    }

    fn import(&mut self, ident: &syn::Ident, known_as: &syn::Ident, module: Option<ModulePath>) {
        let Some(module) = module else { return };
        if module.last().is_some_and(|name| ident == name) {
            self.scope.use_segments.push((ident.span().byte_range(), module.clone()));
        }
        let name = if known_as == "self" { module[module.len() - 1].clone() } else { known_as.to_string() };
        self.scope.imports.entry(self.current.clone()).or_default().insert(name, module);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_is_found_in_paths_imports_and_its_mod_line_but_not_as_a_variable() {
        let parent = "mod knocks;\npub mod other;\nfn f(knocks: knocks::Knocks) { self::knocks::g(knocks) }\n";
        let other = "use super::{knocks::{self, Knocks}, other};\nuse crate::worker::knocks as k;\nfn f() { knocks::g(); k::g(); crate::worker::knocks::g(); let knocks = 1; m!(knocks::x) }\n#[cfg(test)]\nmod tests { use super::*; use super::super::knocks::Y; fn t() { knocks::g() } }\n";
        let elsewhere = "mod knocks {}\nuse knocks::X;\n";
        let files = [
            ("crates/a/src/lib.rs", "mod worker;\nmod elsewhere;\n"),
            ("crates/a/src/worker/mod.rs", parent),
            ("crates/a/src/worker/knocks.rs", "pub fn g() {}\n"),
            ("crates/a/src/worker/other.rs", other),
            ("crates/a/src/elsewhere.rs", elsewhere),
        ];
        let known: BTreeSet<ModulePath> = files.iter().filter_map(|(file, _)| module_path(file)).collect();
        let old = module_path("crates/a/src/worker/knocks.rs").unwrap();
        assert_eq!(old, ["a", "worker", "knocks"]);
        let renamed = BTreeMap::from([(old, "wake_queue".to_owned())]);
        let mut results = Vec::new();
        for (file, text) in files {
            let scope = FileScope::parse(file, text, &known).unwrap();
            let mut edits = Edits::default();
            for (range, path) in scope.mentions(text, &known, &renamed) {
                edits.add(range, &renamed[&path]).unwrap();
            }
            results.push(edits.apply(text));
        }
        assert_eq!(
            results[1],
            "mod wake_queue;\npub mod other;\nfn f(knocks: wake_queue::Knocks) { self::wake_queue::g(knocks) }\n"
        );
        let wanted = "use super::{wake_queue::{self, Knocks}, other};\nuse crate::worker::wake_queue as k;\nfn f() { wake_queue::g(); k::g(); crate::worker::wake_queue::g(); let knocks = 1; m!(wake_queue::x) }\n#[cfg(test)]\nmod tests { use super::*; use super::super::wake_queue::Y; fn t() { wake_queue::g() } }\n";
        assert_eq!(results[3], wanted);
        assert_eq!(results[4], elsewhere);
    }
}
