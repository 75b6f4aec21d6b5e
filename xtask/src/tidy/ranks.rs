//! Checks the ranks of the engine's modules: a module uses only modules of lower rank.
//!
//! A use is a path that begins with `crate::`, or with as many `super::` as lead to the crate's
//! root. Tests may use everything.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use anyhow::{Context, bail};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use super::{Findings, Rule};
use crate::rename::Sources;
use crate::rename::tokens::{CodeTokenKind, code_tokens, text_at};

const ENGINE: &str = "crates/quipu-engine/src/";

/// The rank of each module. `lib` re-exports all of them.
const RANKS: &[(&str, u8)] = &[
    ("lib", 13),
    // The public face.
    ("engine", 12),
    ("background", 11),
    // Tools without a running engine, starts, and cells at rest.
    ("offline", 10),
    ("recovery", 9),
    ("seal", 8),
    // The shared store.
    ("sharing", 7),
    // Turns, and admission.
    ("execute", 6),
    // State of an open engine.
    ("core", 5),
    // Commands on locked shards.
    ("apply", 4),
    // Counters in memory.
    ("table", 3),
    // State beside the counters.
    ("bodies", 2),
    ("namespaces", 2),
    ("tokens", 2),
    ("journal", 1),
    // Ports and settings.
    ("base", 0),
];

/// Adds every use that does not lead to a lower rank.
pub fn check(sources: &Sources, findings: &mut Findings) -> anyhow::Result<()> {
    let engine: BTreeMap<&str, &str> =
        sources.files.iter().filter_map(|(file, text)| Some((file.strip_prefix(ENGINE)?, text.as_str()))).collect();
    let modules: BTreeSet<&str> = engine.keys().map(|file| top_module(file)).collect();
    for module in &modules {
        rank(module)?;
    }
    let exports = exports(engine.get("lib.rs").copied().unwrap_or_default(), &modules)?;
    let tests = test_files(&engine)?;
    for (file, text) in &engine {
        if tests.iter().any(|test| file.starts_with(test.as_str())) {
            continue;
        }
        let from = top_module(file);
        for name in used_modules(file, text)? {
            let to = exports.get(name.as_str()).map_or(name.as_str(), String::as_str);
            if modules.contains(to) && to != from && rank(to)? >= rank(from)? {
                findings.0.insert((Rule::EngineArrow, format!("{from} -> {to}")), 1);
            }
        }
    }
    Ok(())
}

fn rank(module: &str) -> anyhow::Result<u8> {
    match RANKS.iter().find(|(name, _)| *name == module) {
        Some((_, rank)) => Ok(*rank),
        None => bail!("the engine's module `{module}` has no rank: give it one in xtask/src/tidy/ranks.rs"),
    }
}

/// The module below the crate's root that a file belongs to.
fn top_module(file: &str) -> &str {
    let first = file.split('/').next().unwrap_or(file);
    first.strip_suffix(".rs").unwrap_or(first)
}

/// Names that the root exports, with the module each comes from.
fn exports(root: &str, modules: &BTreeSet<&str>) -> anyhow::Result<BTreeMap<String, String>> {
    let mut found = BTreeMap::new();
    for item in syn::parse_file(root).context("parse the engine's lib.rs")?.items {
        let syn::Item::Use(item) = item else { continue };
        if let syn::UseTree::Path(path) = &item.tree
            && modules.contains(path.ident.to_string().as_str())
        {
            collect_names(&path.tree, &path.ident.to_string(), &mut found);
        }
    }
    Ok(found)
}

fn collect_names(tree: &syn::UseTree, module: &str, found: &mut BTreeMap<String, String>) {
    match tree {
        syn::UseTree::Path(path) => collect_names(&path.tree, module, found),
        syn::UseTree::Name(name) => {
            found.insert(name.ident.to_string(), module.to_owned());
        }
        syn::UseTree::Rename(name) => {
            found.insert(name.rename.to_string(), module.to_owned());
        }
        syn::UseTree::Group(group) => group.items.iter().for_each(|tree| collect_names(tree, module, found)),
        syn::UseTree::Glob(_) => {}
    }
}

/// Paths of the files and folders that are compiled for tests alone.
fn test_files(engine: &BTreeMap<&str, &str>) -> anyhow::Result<Vec<String>> {
    let mut found = Vec::new();
    for (file, text) in engine {
        let folder = match file.strip_suffix("mod.rs") {
            Some(folder) => folder.to_owned(),
            None if *file == "lib.rs" => String::new(),
            None => format!("{}/", file.strip_suffix(".rs").unwrap_or(file)),
        };
        for item in syn::parse_file(text).with_context(|| format!("parse {file}"))?.items {
            if let syn::Item::Mod(module) = item
                && is_for_tests(&module.attrs)
                && module.content.is_none()
            {
                found.push(format!("{folder}{}.rs", module.ident));
                found.push(format!("{folder}{}/", module.ident));
            }
        }
    }
    Ok(found)
}

fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    let is_test = |attribute: &syn::Attribute| match &attribute.meta {
        syn::Meta::List(list) => list.path.is_ident("cfg") && list.tokens.to_string() == "test",
        _ => false,
    };
    attributes.iter().any(is_test)
}

/// The first segments of all paths from the crate's root.
fn used_modules(file: &str, text: &str) -> anyhow::Result<BTreeSet<String>> {
    let parsed = syn::parse_file(text).with_context(|| format!("parse {file}"))?;
    let mut test_items = TestItems::default();
    test_items.visit_file(&parsed);
    let depth = file.split('/').count() - usize::from(file.ends_with("mod.rs") || file == "lib.rs");
    let tokens = code_tokens(text);
    let mut found = BTreeSet::new();
    for (index, token) in tokens.iter().enumerate() {
        let before = |offset| text_at(text, &tokens, index, offset);
        let is_first = (before(-2), before(-1)) != (":", ":");
        if token.kind != CodeTokenKind::Name
            || !is_first
            || test_items.0.iter().any(|item| item.contains(&token.range.start))
        {
            continue;
        }
        let root_end = match &text[token.range.clone()] {
            "crate" => Some(index),
            "super" => super_chain_end(text, &tokens, index, depth),
            _ => None,
        };
        let Some(end) = root_end else { continue };
        let at = |offset| text_at(text, &tokens, end, offset);
        if (at(1), at(2)) != (":", ":") {
            continue;
        }
        if at(3) == "{" {
            collect_group(text, &tokens, end + 3, &mut found);
        } else {
            found.insert(at(3).to_owned());
        }
    }
    Ok(found)
}

/// The last of the `super`s that lead from a module of this depth to the root.
fn super_chain_end(
    text: &str,
    tokens: &[crate::rename::tokens::CodeToken],
    start: usize,
    depth: usize,
) -> Option<usize> {
    let end = start + 3 * depth.checked_sub(1)?;
    let is_chain = (start..=end).step_by(3).all(|at| text_at(text, tokens, at, 0) == "super");
    (is_chain && text_at(text, tokens, end, 3) != "super").then_some(end)
}

/// The first segments of a group `{a::b, c}`.
fn collect_group(text: &str, tokens: &[crate::rename::tokens::CodeToken], open: usize, found: &mut BTreeSet<String>) {
    let mut level = 0;
    for index in open..tokens.len() {
        match text_at(text, tokens, index, 0) {
            "{" => level += 1,
            "}" => level -= 1,
            name if level == 1 && matches!(text_at(text, tokens, index, -1), "{" | ",") => {
                found.insert(name.to_owned());
            }
            _ => {}
        }
        if level == 0 {
            return;
        }
    }
}

/// The bytes of items that are compiled for tests alone.
#[derive(Default)]
struct TestItems(Vec<Range<usize>>);

impl<'ast> Visit<'ast> for TestItems {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if is_for_tests(&item.attrs) {
            self.0.push(item.span().byte_range());
        }
        visit::visit_item_mod(self, item);
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if is_for_tests(&item.attrs) {
            self.0.push(item.span().byte_range());
        }
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if is_for_tests(&item.attrs) {
            self.0.push(item.span().byte_range());
        }
        visit::visit_item_impl(self, item);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrows_that_point_up_are_found_in_imports_paths_and_through_exports() {
        let files = [
            ("lib.rs", "mod journal; mod engine; mod apply; pub use engine::{Engine, Stats as S};"),
            ("engine.rs", "use crate::journal::Journal; #[cfg(test)] mod tests;"),
            ("engine/tests.rs", "use crate::lib::x;"),
            ("journal/mod.rs", "use crate::{apply::{self, Table}, Engine}; mod inner;"),
            ("journal/inner.rs", "use super::Journal; fn f() { super::super::engine::g(); }"),
            (
                "apply.rs",
                "use crate::journal; #[cfg(test)] mod tests { use crate::engine::Engine; } fn f(_: crate::S) {}",
            ),
        ];
        let files = files.iter().map(|(file, text)| (format!("{ENGINE}{file}"), (*text).to_owned())).collect();
        let mut findings = Findings::default();
        check(&Sources { files, others: BTreeMap::new() }, &mut findings).unwrap();
        let found: Vec<&str> = findings.0.keys().map(|(_, place)| place.as_str()).collect();
        assert_eq!(found, ["apply -> engine", "journal -> apply", "journal -> engine"]);
    }

    #[test]
    fn a_module_without_a_rank_is_refused() {
        let files = BTreeMap::from([(format!("{ENGINE}novel.rs"), String::new())]);
        let error = check(&Sources { files, others: BTreeMap::new() }, &mut Findings::default()).unwrap_err();
        assert!(error.to_string().contains("`novel` has no rank"), "{error}");
    }
}
