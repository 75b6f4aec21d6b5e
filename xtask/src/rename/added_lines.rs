//! Renames a patched file: unchanged lines as in the original, added lines by their likeness to it.
//!
//! A name in an added line gets the new name of the same name with the same neighbours in the
//! original. The search widens: first both neighbours on each side, then one, then the file, then
//! the workspace. A name with several new names for its neighbours is left and reported.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::comments::{Meanings, agreed, meanings, quoted_names};
use super::definitions::FileItems;
use super::edits::Edits;
use super::tokens::{CodeToken, CodeTokenKind, code_tokens, text_at, tokens};
use crate::patches::carry::changed_lines;

/// One file of a patch, before the renaming.
pub struct PatchedFile<'a> {
    /// Without the patch.
    pub original: &'a str,
    /// With it.
    pub patched: &'a str,
    /// The replacements in the original.
    pub edits: &'a Edits,
    /// New names in the whole workspace.
    pub whole: &'a Meanings,
    /// New names that the map gives for this patch or for local names of the file.
    pub words: &'a BTreeMap<&'a str, &'a str>,
}

/// New names by surroundings.
type BySurroundings = BTreeMap<(String, [String; 4]), BTreeSet<Option<String>>>;

impl PatchedFile<'_> {
    /// The renamed text, and the ambiguous names.
    pub fn rename(&self) -> anyhow::Result<(String, Vec<String>)> {
        let hunks = changed_lines(self.original, self.patched)?;
        let mut edits = Edits::default();
        for (range, new) in self.edits.iter() {
            if let Some(moved) = moved_range(&hunks, &range) {
                edits.add(moved, new)?;
            }
        }
        let known = self.surroundings();
        let here = meanings(self.original, self.edits);
        let shorthands = FileItems::parse(self.patched)?.shorthands;
        let code = code_tokens(self.patched);
        let mut unclear = Vec::new();
        let is_added = |range: &Range<usize>| hunks.iter().any(|(_, added)| added.contains(&range.start));
        for (index, token) in code.iter().enumerate().filter(|(_, token)| is_added(&token.range)) {
            let name = &self.patched[token.range.clone()];
            if token.kind != CodeTokenKind::Name || is_keyword(name) {
                continue;
            }
            let is_member = text_at(self.patched, &code, index, -1) == ".";
            let new = match self.words.get(name).filter(|_| !is_member) {
                Some(new) => Some(Some((*new).to_owned())),
                None => self.new_name(name, &code, index, &known),
            };
            match new {
                Some(Some(new)) if shorthands.contains(&(token.range.start, token.range.end)) && !new.contains(':') => {
                    unclear.push(format!("`{name}` stands for a field and a variable; `{new}` was taken for both"));
                    edits.add(token.range.clone(), &new)?;
                }
                Some(Some(new)) => edits.add(token.range.clone(), &new)?,
                Some(None) => {}
                None => unclear.push(format!("`{name}` has several new names")),
            }
        }
        for token in
            tokens(self.patched).iter().filter(|token| token.kind == CodeTokenKind::Comment && is_added(&token.range))
        {
            for (at, name) in quoted_names(&self.patched[token.range.clone()]) {
                let start = token.range.start + at;
                if let Some(new) = agreed(&here, name).or_else(|| agreed(self.whole, name)) {
                    edits.add(start..start + name.len(), new)?;
                }
            }
        }
        Ok((edits.apply(self.patched), unclear))
    }

    /// The new name of a token; `Some(None)` if it keeps its name, `None` if that is ambiguous.
    fn new_name(&self, name: &str, code: &[CodeToken], index: usize, known: &BySurroundings) -> Option<Option<String>> {
        for level in 0..LEVELS {
            let key = surroundings(self.patched, code, index, level);
            match known.get(&(name.to_owned(), key)).map(|news| news.iter().collect::<Vec<_>>()) {
                Some(news) if news.len() == 1 => return Some(news[0].clone()),
                Some(_) => return None,
                None => {}
            }
        }
        match self.whole.get(name) {
            None => Some(None),
            Some(_) => agreed(self.whole, name).map(|new| Some(new.to_owned())),
        }
    }

    fn surroundings(&self) -> BySurroundings {
        let code = code_tokens(self.original);
        let mut known = BySurroundings::new();
        for (index, token) in code.iter().enumerate().filter(|(_, token)| token.kind == CodeTokenKind::Name) {
            let name = &self.original[token.range.clone()];
            let new = self.edits.at(&token.range).map(str::to_owned);
            for level in 0..LEVELS {
                let key = (name.to_owned(), surroundings(self.original, &code, index, level));
                known.entry(key).or_default().insert(new.clone());
            }
        }
        known
    }
}

/// Number of sizes of surroundings that are compared.
const LEVELS: usize = 4;

/// A token's neighbours, fewer of them on each level.
fn surroundings(text: &str, code: &[CodeToken], index: usize, level: usize) -> [String; 4] {
    let at = |offset| text_at(text, code, index, offset).to_owned();
    let nothing = String::new;
    match level {
        0 => [at(-2), at(-1), at(1), at(2)],
        1 => [nothing(), at(-1), at(1), nothing()],
        // A member, a call or neither.
        2 => [nothing(), (at(-1) == ".").to_string(), (at(1) == "(").to_string(), nothing()],
        _ => [nothing(), nothing(), nothing(), nothing()],
    }
}

fn is_keyword(name: &str) -> bool {
    matches!(name, "self" | "Self" | "super" | "crate" | "let" | "mut" | "fn" | "if" | "else" | "match" | "return")
}

/// Where a range of the original is in the patched text, if its line is unchanged.
fn moved_range(hunks: &[(Range<usize>, Range<usize>)], range: &Range<usize>) -> Option<Range<usize>> {
    let mut shift = 0isize;
    for (removed, added) in hunks {
        if removed.contains(&range.start) {
            return None;
        }
        if removed.start > range.start {
            break;
        }
        shift = added.end as isize - removed.end as isize;
    }
    Some(range.start.checked_add_signed(shift)?..range.end.checked_add_signed(shift)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_patch_follows_a_rename() {
        let original = "fn f(held: &Held) {\n    held.look();\n    other.look();\n    done(held);\n}\n";
        let patched = "fn f(held: &Held) {\n    let again: Held = held.clone();\n    again.look();\n    held.look();\n    held.seen();\n    done(held);\n}\n";
        let mut edits = Edits::default();
        edits.add(12..16, "Locks").unwrap();
        let look = original.find("look").unwrap();
        edits.add(look..look + 4, "find").unwrap();
        let whole = Meanings::from([("seen".to_owned(), BTreeSet::from([Some("rows".to_owned())]))]);
        let words = BTreeMap::new();
        let file = PatchedFile { original, patched, edits: &edits, whole: &whole, words: &words };
        let (renamed, unclear) = file.rename().unwrap();
        // `again.look` is a `look` of no known surroundings, and the file has two of them.
        let wanted = "fn f(held: &Locks) {\n    let again: Locks = held.clone();\n    again.look();\n    held.find();\n    held.rows();\n    done(held);\n}\n";
        assert_eq!(renamed, wanted);
        assert_eq!(unclear, ["`look` has several new names"]);
    }
}
