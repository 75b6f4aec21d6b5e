//! Renames items where comments name them, in backquotes.
//!
//! A name in a comment is renamed if all its uses in the file's code get one new name. If the code
//! does not use it, all its uses in the crate must. In a document a lone word in backquotes may be
//! a setting or a command, so there only `CamelCase` and `snake_case` change.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context;

use super::Sources;
use super::edits::Edits;
use super::map::RenameMap;
use super::tokens::{CodeTokenKind, code_tokens, tokens};

/// The new names of one old name. `None` stands for uses that keep it.
pub type Meanings = BTreeMap<String, BTreeSet<Option<String>>>;

/// The new names of a text, by the replacements in its code.
pub fn meanings(text: &str, edits: &Edits) -> Meanings {
    let renamed = edits.iter().map(|(range, _)| &text[range]).collect();
    meanings_among(&renamed, text, edits)
}

/// The new names of some names of a text, by the replacements in its code.
fn meanings_among(names: &BTreeSet<&str>, text: &str, edits: &Edits) -> Meanings {
    let mut found = Meanings::new();
    for (range, new) in edits.iter() {
        let new = new.split(':').next().expect("a split has a first part").to_owned();
        found.entry(text[range].to_owned()).or_default().insert(Some(new));
    }
    for token in code_tokens(text).iter().filter(|token| token.kind == CodeTokenKind::Name) {
        let name = &text[token.range.clone()];
        if names.contains(name) && edits.at(&token.range).is_none() {
            found.entry(name.to_owned()).or_default().insert(None);
        }
    }
    found
}

/// All names that are replaced anywhere.
fn renamed_names<'s>(sources: &'s Sources, edits: &BTreeMap<String, Edits>) -> BTreeSet<&'s str> {
    let of_file = |(file, edits): (&String, &Edits)| {
        let text = &sources.files[file];
        edits.iter().map(|(range, _)| &text[range]).collect::<Vec<_>>()
    };
    edits.iter().flat_map(of_file).collect()
}

/// The one new name, if all uses agree.
pub fn agreed<'m>(meanings: &'m Meanings, name: &str) -> Option<&'m str> {
    match meanings.get(name)?.iter().collect::<Vec<_>>()[..] {
        [Some(new)] => Some(new),
        _ => None,
    }
}

/// Adds the replacements in the comments of all files.
pub fn rename_comments(sources: &Sources, edits: &mut BTreeMap<String, Edits>) -> anyhow::Result<()> {
    let mut by_file = BTreeMap::new();
    let mut by_crate: BTreeMap<String, Meanings> = BTreeMap::new();
    let no_edits = Edits::default();
    let renamed = renamed_names(sources, edits);
    for (file, text) in &sources.files {
        let found = meanings_among(&renamed, text, edits.get(file).unwrap_or(&no_edits));
        let whole = by_crate.entry(crate_of(file).to_owned()).or_default();
        for (name, news) in &found {
            whole.entry(name.clone()).or_default().extend(news.iter().cloned());
        }
        by_file.insert(file.clone(), found);
    }
    let none = Meanings::new();
    for (file, text) in &sources.files {
        let here = by_file.get(file).unwrap_or(&none);
        let around = by_crate.get(crate_of(file)).unwrap_or(&none);
        let mut found = Vec::new();
        for token in tokens(text).into_iter().filter(|token| token.kind == CodeTokenKind::Comment) {
            for (at, name) in quoted_names(&text[token.range.clone()]) {
                let new = if here.contains_key(name) { agreed(here, name) } else { agreed(around, name) };
                if let Some(new) = new {
                    let start = token.range.start + at;
                    found.push((start..start + name.len(), new.to_owned()));
                }
            }
        }
        if !found.is_empty() {
            let file_edits = edits.entry(file.clone()).or_default();
            for (range, new) in found {
                file_edits.add(range, &new)?;
            }
        }
    }
    Ok(())
}

/// The new names in the whole workspace.
pub fn whole_meanings(sources: &Sources, edits: &BTreeMap<String, Edits>) -> Meanings {
    let mut whole = Meanings::new();
    let no_edits = Edits::default();
    let renamed = renamed_names(sources, edits);
    for (file, text) in &sources.files {
        for (name, news) in meanings_among(&renamed, text, edits.get(file).unwrap_or(&no_edits)) {
            whole.entry(name).or_default().extend(news);
        }
    }
    whole
}

/// The Markdown files with new names in backquotes and new paths of moved files.
pub fn rename_documents(
    map: &RenameMap,
    sources: &Sources,
    edits: &BTreeMap<String, Edits>,
) -> anyhow::Result<BTreeMap<String, String>> {
    let whole = whole_meanings(sources, edits);
    let mut renamed = BTreeMap::new();
    for (path, bytes) in sources.others.iter().filter(|(path, _)| path.ends_with(".md")) {
        let text = String::from_utf8(bytes.clone()).with_context(|| format!("read {path} as UTF-8"))?;
        let mut edits = Edits::default();
        for (at, name) in quoted_names(&text) {
            if let Some(new) = agreed(&whole, name).filter(|_| is_code_name(name)) {
                edits.add(at..at + name.len(), new)?;
            }
        }
        let mut new = edits.apply(&text);
        for (from, to) in map.moves() {
            new = new.replace(from, to);
        }
        if new != text {
            renamed.insert(path.clone(), new);
        }
    }
    Ok(renamed)
}

/// Returns true if a name can only be one of the code.
fn is_code_name(name: &str) -> bool {
    let has_lowercase = name.contains(|letter: char| letter.is_ascii_lowercase());
    has_lowercase && name.contains(|letter: char| letter == '_' || letter.is_ascii_uppercase())
}

/// The crate's folder.
pub fn crate_of(file: &str) -> &str {
    let inside = file.strip_prefix("crates/").map_or(0, |_| "crates/".len());
    file[inside..].find('/').map_or(file, |end| &file[..inside + end])
}

/// The names inside backquotes.
pub fn quoted_names(comment: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut at = 0;
    for (part, piece) in comment.split('`').enumerate() {
        if part % 2 == 1 && !piece.contains('\n') {
            let mut start = 0;
            for name in piece.split(|letter: char| !letter.is_alphanumeric() && letter != '_') {
                if !name.is_empty() {
                    found.push((at + start, name));
                }
                start += name.len() + piece[start + name.len()..].chars().next().map_or(0, char::len_utf8);
            }
        }
        at += piece.len() + 1;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_backquotes_are_found_with_their_places() {
        let comment = "// A `Held::look`, look, and [`Seen`].";
        let names = quoted_names(comment);
        assert_eq!(names.iter().map(|(_, name)| *name).collect::<Vec<_>>(), ["Held", "look", "Seen"]);
        assert!(names.iter().all(|(at, name)| comment[*at..].starts_with(name)));
    }

    #[test]
    fn a_name_of_two_meanings_is_left() {
        let text = "fn a() { x.look(); y.look(); Held }";
        let mut edits = Edits::default();
        edits.add(11..15, "find").unwrap();
        edits.add(29..33, "Locks").unwrap();
        let found = meanings(text, &edits);
        assert_eq!((agreed(&found, "look"), agreed(&found, "Held")), (None, Some("Locks")));
    }
}
