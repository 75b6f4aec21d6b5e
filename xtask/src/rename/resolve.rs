//! Finds every use of the items of a map, by the compiler's own name resolution.
//!
//! In a copy of the workspace each item gets `#[deprecated(note = "rename:7")]`. The compiler then
//! warns at each use, in every crate and test, and the warning's note gives the number of the item.
//!
//! Not here: local variables (`words`), names of modules (`modules`), comments (`comments`).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};
use serde::Deserialize;

use super::Sources;
use super::definitions::{Definition, FileItems, ItemKind};
use super::edits::Edits;
use super::map::RenameMap;
use super::tokens::{CodeTokenKind, code_tokens, is_in_attribute, text_at};
use crate::parts::FEATURES;
use crate::paths::own;
use crate::run::run;

/// The builds that together contain all code.
const CHECKS: &[&str] = &[
    "check {whole} --all-targets --keep-going",
    "check -p quipu-engine --features shuttle --test shuttle --keep-going",
];

const NOTE: &str = "rename:";

/// One item of the map, with its definition.
struct RenamedItem {
    file: String,
    definition: Definition,
    old: String,
    /// Equal to the old name for a trait that is only watched for its implementations.
    new: String,
}

/// All replacements, and the number of uses of each item.
pub struct Resolution {
    /// By file.
    pub edits: BTreeMap<String, Edits>,
    /// Uses of each item, its definition not counted: file, key, uses.
    pub uses: Vec<(String, String, usize)>,
}

/// Finds all uses of the map's items.
pub fn resolve(map: &RenameMap, sources: &Sources) -> anyhow::Result<Resolution> {
    let mut parsed = BTreeMap::new();
    for (path, text) in &sources.files {
        parsed.insert(path.clone(), FileItems::parse(text).with_context(|| path.clone())?);
    }
    let renamed = find_definitions(map, sources, &parsed)?;
    let mut resolved = Resolution { edits: BTreeMap::new(), uses: Vec::new() };
    let mut uses = vec![BTreeSet::new(); renamed.len()];
    if !renamed.is_empty() {
        let annotated = AnnotatedCopy::write(sources, &renamed)?;
        for item_use in annotated.check()? {
            collect_use(&item_use, &renamed, sources, &parsed, &mut resolved.edits, &mut uses)?;
        }
        rename_implementations(&renamed, &parsed, sources, &mut resolved.edits, &uses)?;
    }
    for item in renamed.iter().filter(|item| item.old != item.new) {
        let edits = resolved.edits.entry(item.file.clone()).or_default();
        edits.add(item.definition.name.clone(), &item.new).with_context(|| item.file.clone())?;
    }
    rename_in_definitions(&renamed, sources, &parsed, &mut resolved.edits)?;
    resolved.uses = renamed
        .iter()
        .zip(&uses)
        .map(|(item, uses)| (item.file.clone(), item.definition.key.clone(), uses.len()))
        .collect();
    Ok(resolved)
}

fn find_definitions(
    map: &RenameMap,
    sources: &Sources,
    parsed: &BTreeMap<String, FileItems>,
) -> anyhow::Result<Vec<RenamedItem>> {
    let mut renamed = Vec::new();
    let mut missing = Vec::new();
    for (file, rules) in map.files() {
        let Some(items) = parsed.get(file) else { continue };
        let by_key = items.by_key();
        let mut watched_traits = BTreeSet::new();
        for (key, new) in &rules.items {
            let Some(definitions) = by_key.get(key.as_str()) else {
                missing.push(format!("{file}: no {key}"));
                continue;
            };
            for definition in definitions {
                if definition.kind == ItemKind::TraitItem {
                    watched_traits.insert(key.split("::").next().expect("a split has a first part"));
                }
                let old = sources.files[file][definition.name.clone()].to_owned();
                renamed.push(RenamedItem {
                    file: file.to_owned(),
                    definition: (*definition).clone(),
                    old,
                    new: new.clone(),
                });
            }
        }
        for name in watched_traits.into_iter().filter(|name| !rules.items.contains_key(*name)) {
            for definition in &by_key[name] {
                let (definition, old) = ((*definition).clone(), name.to_owned());
                renamed.push(RenamedItem { file: file.to_owned(), definition, new: old.clone(), old });
            }
        }
    }
    if !missing.is_empty() {
        bail!("the map names items that are not there:\n{}", missing.join("\n"));
    }
    Ok(renamed)
}

/// A copy of the workspace in which each item is marked.
struct AnnotatedCopy<'s> {
    sources: &'s Sources,
    /// Per file the inserted attributes: their places in the original, and their lengths in bytes.
    inserted: BTreeMap<String, Vec<(usize, usize)>>,
}

/// A use of an item: its number and its place in the original text.
struct ItemUse {
    item: usize,
    file: String,
    range: Range<usize>,
}

#[derive(Deserialize)]
struct CargoLine {
    message: Option<Diagnostic>,
}

#[derive(Deserialize)]
struct Diagnostic {
    message: String,
    level: String,
    rendered: Option<String>,
    spans: Vec<DiagnosticSpan>,
}

#[derive(Deserialize)]
struct DiagnosticSpan {
    file_name: String,
    byte_start: usize,
    byte_end: usize,
    is_primary: bool,
}

impl<'s> AnnotatedCopy<'s> {
    fn write(sources: &'s Sources, renamed: &[RenamedItem]) -> anyhow::Result<AnnotatedCopy<'s>> {
        let mut marks: BTreeMap<&str, BTreeMap<usize, String>> = BTreeMap::new();
        for (id, item) in renamed.iter().enumerate() {
            let mark = format!("#[deprecated(note = \"{NOTE}{id}\")] ");
            marks.entry(&item.file).or_default().insert(item.definition.attribute_at, mark);
        }
        let mut inserted = BTreeMap::new();
        let copy = own("rename");
        sources.write_to(&copy)?;
        for (file, marks) in marks {
            let (text, mut annotated, mut done) = (&sources.files[file], String::new(), 0);
            let mut lengths = Vec::new();
            for (at, mark) in marks {
                annotated.push_str(&text[done..at]);
                annotated.push_str(&mark);
                lengths.push((at, mark.len()));
                done = at;
            }
            annotated.push_str(&text[done..]);
            write_if_changed(&copy.join(file), annotated.as_bytes())?;
            inserted.insert(file.to_owned(), lengths);
        }
        Ok(AnnotatedCopy { sources, inserted })
    }

    /// Builds the copy and returns the uses in the compiler's warnings.
    fn check(&self) -> anyhow::Result<Vec<ItemUse>> {
        let mut item_uses = Vec::new();
        let mut errors = Vec::new();
        for check in CHECKS {
            let words = check.replace("{whole}", &format!("--workspace {FEATURES}"));
            let mut command = Command::new("cargo");
            command.args(words.split_whitespace()).arg("--message-format=json").current_dir(own("rename"));
            command.env_remove("CARGO_MANIFEST_DIR").env_remove("CARGO_MANIFEST_PATH").env("CARGO_INCREMENTAL", "0");
            let outcome = run("compiler", &command)?;
            for line in outcome.lines.iter().filter(|line| line.starts_with('{')) {
                let Ok(CargoLine { message: Some(diagnostic) }) = serde_json::from_str(line) else { continue };
                match diagnostic.message.rsplit_once(NOTE).and_then(|(_, id)| id.parse().ok()) {
                    Some(item) => {
                        let spans = diagnostic.spans.iter().filter(|span| span.is_primary);
                        item_uses.extend(spans.filter_map(|span| self.original(item, span)));
                    }
                    None if diagnostic.level == "error" => {
                        errors.push(diagnostic.rendered.unwrap_or(diagnostic.message));
                    }
                    None => {}
                }
            }
            if !outcome.success {
                let said = if errors.is_empty() { outcome.lines.join("\n") } else { errors.join("\n") };
                bail!("the marked copy does not compile:\n{said}");
            }
        }
        Ok(item_uses)
    }

    fn original(&self, item: usize, span: &DiagnosticSpan) -> Option<ItemUse> {
        let file = Path::new(&span.file_name).to_str()?.trim_start_matches("./").to_owned();
        let text = self.sources.files.get(&file)?;
        let inserted = self.inserted.get(&file).map_or(&[][..], Vec::as_slice);
        let original = |mut annotated: usize| {
            let mut shift = 0;
            for &(at, length) in inserted {
                if at + shift + length > annotated {
                    break;
                }
                shift += length;
            }
            annotated -= shift;
            annotated
        };
        let range = original(span.byte_start)..original(span.byte_end);
        (range.start <= range.end && range.end <= text.len()).then_some(ItemUse { item, file, range })
    }
}

/// Turns a warning into replacements. A warning's range can hold more than the name.
fn collect_use(
    item_use: &ItemUse,
    renamed: &[RenamedItem],
    sources: &Sources,
    parsed: &BTreeMap<String, FileItems>,
    edits: &mut BTreeMap<String, Edits>,
    uses: &mut [BTreeSet<(String, usize)>],
) -> anyhow::Result<()> {
    let (item, text) = (&renamed[item_use.item], &sources.files[&item_use.file]);
    let shown = &text[item_use.range.clone()];
    let is_field = item.definition.kind == ItemKind::Field;
    if is_field && matches!(shown.strip_suffix(item.old.as_str()), Some("mut " | "ref " | "ref mut ")) {
        uses[item_use.item].insert((item_use.file.clone(), item_use.range.start));
        let new = format!("{}: {shown}", item.new);
        return edits.entry(item_use.file.clone()).or_default().add(item_use.range.clone(), &new);
    }
    let range = if shown == item.old {
        Some(item_use.range.clone())
    } else if is_field && starts_with_name(shown, &item.old) {
        Some(item_use.range.start..item_use.range.start + item.old.len())
    } else if let Some(end) =
        Some(shown.trim_end_matches(')')).filter(|shown| is_field && ends_with_name(shown, &item.old))
    {
        let end = item_use.range.start + end.len();
        Some(end - item.old.len()..end)
    } else {
        None
    };
    let found = match range {
        Some(range) => {
            uses[item_use.item].insert((item_use.file.clone(), range.start));
            add_name(item_use, range.clone(), &item.old, &item.new, parsed, edits)?;
            range
        }
        None => item_use.range.clone(),
    };
    // `Enum::Variant` and `Trait::method` are one path; its warning points at the end.
    let owner = match (item.definition.key.split_once("::"), item.definition.kind) {
        (Some((owner, _)), _) => Some(owner),
        // The warning of a variant without a new name of its own has the note of its enum.
        (None, ItemKind::Type | ItemKind::Trait) => Some(item.definition.key.as_str()),
        (None, _) => None,
    };
    let owner = renamed.iter().find(|other| other.file == item.file && Some(other.definition.key.as_str()) == owner);
    if let Some(owner) = owner.filter(|owner| owner.old != owner.new)
        && let Some(range) = segment_before(text, found.start).filter(|range| text[range.clone()] == owner.old)
    {
        add_name(item_use, range, &owner.old, &owner.new, parsed, edits)?;
    }
    Ok(())
}

fn add_name(
    item_use: &ItemUse,
    range: Range<usize>,
    old: &str,
    new: &str,
    parsed: &BTreeMap<String, FileItems>,
    edits: &mut BTreeMap<String, Edits>,
) -> anyhow::Result<()> {
    if old == new {
        return Ok(());
    }
    let is_shorthand = parsed[&item_use.file].shorthands.contains(&(range.start, range.end));
    let new = if is_shorthand { format!("{new}: {old}") } else { new.to_owned() };
    edits.entry(item_use.file.clone()).or_default().add(range, &new).with_context(|| item_use.file.clone())
}

fn ends_with_name(text: &str, name: &str) -> bool {
    text.strip_suffix(name).is_some_and(|before| before.trim_end().ends_with('.'))
}

fn starts_with_name(text: &str, name: &str) -> bool {
    text.strip_prefix(name).is_some_and(|behind| behind.trim_start().starts_with(':'))
}

/// The path segment in front of the name at `start`: of `Enum::Variant`, or of
/// `Enum::{One, Variant}`.
fn segment_before(text: &str, start: usize) -> Option<Range<usize>> {
    let mut before = text[..start].trim_end();
    if before.ends_with(['{', ',']) {
        before = before[..before.rfind('{')?].trim_end();
    }
    let before = before.strip_suffix("::")?.trim_end();
    let name = before.rfind(|letter: char| !letter.is_alphanumeric() && letter != '_').map_or(0, |at| at + 1);
    // `Type::<T>::method` does not occur: the compiler warns of its type by itself.
    (name < before.len()).then_some(name..before.len())
}

/// Implementations define a trait's items again, without a warning.
fn rename_implementations(
    renamed: &[RenamedItem],
    parsed: &BTreeMap<String, FileItems>,
    sources: &Sources,
    edits: &mut BTreeMap<String, Edits>,
    uses: &[BTreeSet<(String, usize)>],
) -> anyhow::Result<()> {
    for (id, item) in renamed.iter().enumerate().filter(|(_, item)| item.definition.kind == ItemKind::Trait) {
        let members: Vec<&RenamedItem> = renamed
            .iter()
            .filter(|other| {
                other.file == item.file
                    && other.definition.kind == ItemKind::TraitItem
                    && other.definition.key.split("::").next() == Some(&item.definition.key)
            })
            .collect();
        for (file, at) in &uses[id] {
            let implementations = &parsed[file].implementations;
            for implementation in implementations.iter().filter(|implementation| implementation.trait_name.start == *at)
            {
                for (name, range) in &implementation.items {
                    if let Some(member) = members.iter().find(|member| member.old == *name) {
                        debug_assert_eq!(&sources.files[file][range.clone()], name);
                        edits.entry(file.clone()).or_default().add(range.clone(), &member.new)?;
                    }
                }
            }
        }
    }
    Ok(())
}

/// Renames uses inside the marked definition itself, where the compiler does not warn. These are
/// types in a type's definition and calls of a function in its own body.
fn rename_in_definitions(
    renamed: &[RenamedItem],
    sources: &Sources,
    parsed: &BTreeMap<String, FileItems>,
    edits: &mut BTreeMap<String, Edits>,
) -> anyhow::Result<()> {
    let is_type = |kind: ItemKind| matches!(kind, ItemKind::Type | ItemKind::Trait);
    let mut by_name: BTreeMap<&str, Vec<&RenamedItem>> = BTreeMap::new();
    for item in renamed.iter().filter(|item| is_type(item.definition.kind) && item.old != item.new) {
        by_name.entry(&item.old).or_default().push(item);
    }
    for (file, text) in &sources.files {
        let here: Vec<&RenamedItem> = renamed.iter().filter(|item| item.file == *file).collect();
        if here.is_empty() {
            continue;
        }
        let names: BTreeSet<usize> = parsed[file].definitions.iter().map(|definition| definition.name.start).collect();
        let file_edits = edits.entry(file.clone()).or_default();
        let mut meant: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for (range, new) in file_edits.iter() {
            meant.entry(&text[range]).or_default().insert(new);
        }
        let tokens = code_tokens(text);
        let mut found = Vec::new();
        for (index, token) in tokens.iter().enumerate().filter(|(_, token)| token.kind == CodeTokenKind::Name) {
            let (name, at) = (&text[token.range.clone()], token.range.start);
            if file_edits.at(&token.range).is_some() || names.contains(&at) || is_in_attribute(text, &tokens, index) {
                continue;
            }
            let around = |item: &&&RenamedItem| item.definition.whole.contains(&at);
            // Of functions. A method of the same name on another value looks like a recursion;
            // `text` of the map decides.
            let before = text_at(text, &tokens, index, -1);
            let is_path = before == ":" && text_at(text, &tokens, index, -3) != "self";
            let is_call = text_at(text, &tokens, index, 1) == "(" && before != "." && !is_path;
            let is_self_call = text_at(text, &tokens, index, 1) == "("
                && before == "."
                && text_at(text, &tokens, index, -2) == "self"
                && text_at(text, &tokens, index, -3) != ".";
            let recursion = here.iter().filter(around).find(|item| {
                let key = item.definition.key.as_str();
                let is_method = key.rsplit_once("::").is_some_and(|(_, method)| method == name);
                item.definition.kind == ItemKind::Other && (is_call && key == name || is_self_call && is_method)
            });
            let owner = text_at(text, &tokens, index, -3);
            let is_member = text_at(text, &tokens, index, -1) == ":" && here.iter().any(|item| around(&item));
            let member = renamed.iter().filter(|_| is_member);
            let member: BTreeSet<&str> = member
                .filter(|item| {
                    item.old == name && item.definition.key.strip_suffix(name) == Some(&format!("{owner}::"))
                })
                .filter(|item| {
                    let owners = renamed.iter().filter(|other| other.file == item.file);
                    let new =
                        owners.filter(|other| other.definition.key == owner).map(|other| other.new.as_str()).next();
                    new == file_edits.at(&tokens[index - 3].range)
                })
                .map(|item| item.new.as_str())
                .collect();
            let in_type = here.iter().filter(around).any(|item| item.definition.kind != ItemKind::Other);
            let new = match (recursion, by_name.get(name), meant.get(name)) {
                (Some(item), ..) => Some(item.new.as_str()),
                _ if member.len() == 1 => member.first().copied(),
                (None, Some(_), Some(meant)) if in_type && meant.len() == 1 => meant.iter().next().copied(),
                (None, Some(candidates), _) if in_type => {
                    candidates.iter().find(|item| item.file == *file).map(|item| item.new.as_str())
                }
                _ => None,
            };
            if let Some(new) = new {
                found.push((token.range.clone(), new.to_owned()));
            }
        }
        for (range, new) in found {
            file_edits.add(range, &new)?;
        }
    }
    Ok(())
}

/// Writes a file only if its content differs, so that cargo builds only changed files.
pub fn write_if_changed(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    if std::fs::read(path).is_ok_and(|there| there == bytes) {
        return Ok(());
    }
    let folder = path.parent().context("find a file's folder")?;
    std::fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
    std::fs::write(path, bytes).with_context(|| format!("write {}", path.display()))
}
