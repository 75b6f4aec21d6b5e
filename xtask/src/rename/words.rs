//! Renames local variables and parameters, file by file, by their names alone.
//!
//! Fields, methods, functions, types and paths are left: `items` of a map name these.

use std::collections::BTreeMap;

use anyhow::Context;

use super::definitions::FileItems;
use super::edits::Edits;
use super::tokens::{CodeToken, CodeTokenKind, code_tokens, is_in_attribute, text_at};

/// Adds the replacements of one file.
pub fn rename_words(
    text: &str,
    items: &FileItems,
    words: &BTreeMap<&str, &str>,
    edits: &mut Edits,
) -> anyhow::Result<()> {
    let tokens = code_tokens(text);
    for (index, token) in tokens.iter().enumerate() {
        match token.kind {
            CodeTokenKind::Name => {
                if let Some(new) = words.get(&text[token.range.clone()]) {
                    rename_name(text, items, &tokens, index, new, edits)?;
                }
            }
            // In an attribute they are fields: of an error, for its message.
            CodeTokenKind::Text if is_in_attribute(text, &tokens, index) => {}
            CodeTokenKind::Text => rename_format_arguments(text, token, words, edits)?,
            CodeTokenKind::Comment | CodeTokenKind::Other => {}
        }
    }
    Ok(())
}

fn rename_name(
    text: &str,
    items: &FileItems,
    tokens: &[CodeToken],
    index: usize,
    new: &str,
    edits: &mut Edits,
) -> anyhow::Result<()> {
    let range = tokens[index].range.clone();
    let at = (range.start, range.end);
    if items.shorthands.contains(&at) {
        // A renamed field is there already as `field: local`.
        let field = edits.at(&range).and_then(|edit| edit.split(':').next()).unwrap_or(&text[range.clone()]).to_owned();
        let both = if field == new { field } else { format!("{field}: {new}") };
        edits.replace(range, both);
        return Ok(());
    }
    let neighbour = |offset| text_at(text, tokens, index, offset);
    let is_range = neighbour(-1) == "." && neighbour(-2) == ".";
    let is_member = neighbour(-1) == "." && !is_range;
    let is_path = (neighbour(-1) == ":" && neighbour(-2) == ":") || (neighbour(1) == ":" && neighbour(2) == ":");
    let is_definition = matches!(neighbour(-1), "fn" | "mod" | "struct" | "enum" | "trait" | "type" | "macro_rules");
    // In a macro's arguments the parser finds no fields: a name with a single colon counts as one.
    let may_be_field = neighbour(1) == ":"
        && neighbour(2) != ":"
        && matches!(neighbour(-1), "{" | ",")
        && is_in_macro(text, tokens, index);
    let is_macro = neighbour(1) == "!" && neighbour(2) != "=";
    if is_member
        || is_path
        || is_definition
        || may_be_field
        || is_macro
        || items.fields.contains(&at)
        || edits.at(&range).is_some()
    {
        return Ok(());
    }
    edits.add(range, new).context("rename a local variable")
}

/// Returns true if the innermost brackets around a token belong to a macro call.
fn is_in_macro(text: &str, tokens: &[CodeToken], index: usize) -> bool {
    let mut depth = 0;
    for at in (0..index).rev() {
        match &text[tokens[at].range.clone()] {
            ")" | "]" | "}" => depth += 1,
            "(" | "[" | "{" if depth > 0 => depth -= 1,
            "(" | "[" | "{" if text_at(text, tokens, at, -1) == "!" => return true,
            _ => {}
        }
    }
    false
}

/// `{name}` and `{name:?}` in a string are variables of a format.
fn rename_format_arguments(
    text: &str,
    token: &CodeToken,
    words: &BTreeMap<&str, &str>,
    edits: &mut Edits,
) -> anyhow::Result<()> {
    let string = &text[token.range.clone()];
    for (open, _) in string.match_indices('{') {
        let name = &string[open + 1..];
        let length = name.find(|letter: char| !letter.is_alphanumeric() && letter != '_').unwrap_or(name.len());
        let ends = name[length..].starts_with('}') || name[length..].starts_with(':');
        if let Some(new) = words.get(&name[..length]).filter(|_| ends) {
            let start = token.range.start + open + 1;
            edits.add(start..start + length, new).context("rename a variable of a format")?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_names_change_and_members_do_not() {
        let text = "struct S { mark: u8 }\nfn f(mark: u8, s: S) -> S { let x = s.mark + mark; mark(); a::mark::b(); \
                    println!(\"{mark} {mark:?} mark\"); for i in 0..mark {} m!(S { mark: 1 }); let c = |mark| mark; S { mark } }";
        let items = FileItems::parse(text).unwrap();
        let mut edits = Edits::default();
        rename_words(text, &items, &BTreeMap::from([("mark", "reply")]), &mut edits).unwrap();
        let wanted = "struct S { mark: u8 }\nfn f(reply: u8, s: S) -> S { let x = s.mark + reply; reply(); a::mark::b(); \
                      println!(\"{reply} {reply:?} mark\"); for i in 0..reply {} m!(S { mark: 1 }); let c = |reply| reply; S { mark: reply } }";
        assert_eq!(edits.apply(text), wanted);
    }

    #[test]
    fn a_field_and_a_variable_of_one_name_become_one_again() {
        let text = "fn f(mark: u8) -> S { S { mark } }";
        let items = FileItems::parse(text).unwrap();
        let at = text.rfind("mark").unwrap();
        for (field, wanted) in
            [("reply", "fn f(reply: u8) -> S { S { reply } }"), ("sent", "fn f(reply: u8) -> S { S { sent: reply } }")]
        {
            let mut edits = Edits::default();
            edits.add(at..at + 4, &format!("{field}: mark")).unwrap();
            rename_words(text, &items, &BTreeMap::from([("mark", "reply")]), &mut edits).unwrap();
            assert_eq!(edits.apply(text), wanted);
        }
    }
}
