//! Checks the prose of documents, module headers and comments: clauses, sentences, lines.

use anyhow::Context;

use super::{Findings, Rule};
use crate::rename::Sources;
use crate::rename::tokens::{CodeTokenKind, tokens};

/// The place of the comments of all crates.
pub const ALL_COMMENTS: &str = "all comments";

/// The place of the first comments of all modules.
const MODULE_HEADERS: &str = "module headers";

/// Longest line of prose, in columns.
const COLUMNS_MAX: usize = 120;

/// Words for which the field has nouns.
const CLAUSES: [&str; 7] = ["what", "whatever", "whoever", "whose", "nobody", "somebody", "so many"];

/// Checks documents and comments.
pub fn check(sources: &Sources, findings: &mut Findings) -> anyhow::Result<()> {
    for (path, bytes) in sources.others.iter().filter(|(path, _)| path.ends_with(".md")) {
        let text = std::str::from_utf8(bytes).with_context(|| format!("read {path} as UTF-8"))?;
        let prose = document_prose(text);
        findings.add(Rule::Clauses, path, clauses_per_thousand(&prose));
        findings.add(Rule::SentenceWords, path, mean_sentence(&prose));
        let is_long = |line: &&str| line.chars().count() > COLUMNS_MAX && !line.contains("](");
        findings.add(Rule::LongLine, path, prose.lines().filter(is_long).count());
    }
    let (mut headers, mut all) = Default::default();
    for (file, text) in &sources.files {
        let Some((crate_path, _)) = file.split_once("/src/") else { continue };
        let long_lines = collect_comments(text, &mut headers, &mut all);
        findings.add(Rule::LongLine, crate_path.strip_prefix("crates/").unwrap_or(crate_path), long_lines);
    }
    findings.add(Rule::Clauses, MODULE_HEADERS, clauses_per_thousand(&headers));
    findings.add(Rule::Clauses, ALL_COMMENTS, clauses_per_thousand(&all));
    findings.add(Rule::SentenceWords, ALL_COMMENTS, mean_sentence(&all));
    Ok(())
}

/// Adds a file's comments; returns how many of their lines are too long.
fn collect_comments(text: &str, headers: &mut String, all: &mut String) -> usize {
    let mut long_lines = 0;
    for token in tokens(text).into_iter().filter(|token| token.kind == CodeTokenKind::Comment) {
        let comment = &text[token.range.clone()];
        let line_start = text[..token.range.start].rfind('\n').map_or(0, |at| at + 1);
        let end = text[line_start..].find('\n').map_or(text.len(), |at| line_start + at);
        let is_alone = text[line_start..token.range.start].trim().is_empty();
        long_lines += usize::from(is_alone && text[line_start..end].chars().count() > COLUMNS_MAX);
        let words = comment.trim_start_matches(['/', '!', '*']).trim();
        for target in [Some(&mut *all), comment.starts_with("//!").then_some(&mut *headers)].into_iter().flatten() {
            target.push_str(words);
            target.push('\n');
        }
    }
    long_lines
}

/// A document without its code blocks and tables.
fn document_prose(text: &str) -> String {
    let mut prose = String::new();
    let mut is_code = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if !is_code && !line.trim_start().starts_with('|') {
            prose.push_str(line);
            prose.push('\n');
        }
    }
    prose
}

/// The words of a text; what stands in backquotes is one word.
fn words(text: &str) -> Vec<String> {
    let without_code: String =
        text.split('`').enumerate().map(|(index, part)| if index % 2 == 0 { part } else { "x" }).collect();
    let is_part = |letter: char| letter.is_alphanumeric() || matches!(letter, '_' | '-' | '\'');
    let words = without_code.split(|letter: char| !is_part(letter)).filter(|word| word.contains(char::is_alphabetic));
    words.map(str::to_lowercase).collect()
}

/// Clauses for which a noun exists, per 1,000 words, rounded up.
fn clauses_per_thousand(text: &str) -> usize {
    let words = words(text);
    let is_clause = |at: usize| {
        CLAUSES
            .iter()
            .any(|clause| clause.split(' ').enumerate().all(|(i, word)| words.get(at + i).is_some_and(|w| w == word)))
    };
    let clauses = (0..words.len()).filter(|at| is_clause(*at)).count();
    (clauses * 1000).div_ceil(words.len().max(1))
}

/// Mean number of words of a sentence.
fn mean_sentence(text: &str) -> usize {
    let mut sentences = Vec::new();
    for paragraph in text.split("\n\n") {
        for sentence in paragraph.split_inclusive(['.', '!', '?', ':', ';']) {
            sentences.push(words(sentence).len());
        }
    }
    sentences.retain(|words| *words > 0);
    sentences.iter().sum::<usize>() / sentences.len().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clauses_sentences_and_long_lines_are_measured_outside_code_and_tables() {
        let text = format!(
            "What nobody knows is so many. Short one.\n\n```sh\nwhat what {0}\n```\n| what | {0} |\n{0} end\n",
            "x".repeat(130)
        );
        let prose = document_prose(&text);
        assert_eq!(prose.lines().count(), 3);
        assert_eq!(clauses_per_thousand(&prose), (3_usize * 1000).div_ceil(10));
        assert_eq!(mean_sentence("One two three. Four five."), 2);
        assert_eq!(mean_sentence("The `a b c` of it, (with) words_here"), 6);
    }

    #[test]
    fn headers_are_comments_of_modules() {
        let (mut headers, mut all) = Default::default();
        let text = format!("//! The head.\n/// A doc. // more\nfn f() {{}} // behind\n// {}\n", "long ".repeat(30));
        assert_eq!(collect_comments(&text, &mut headers, &mut all), 1);
        assert_eq!(headers, "The head.\n");
        assert!(all.starts_with("The head.\nA doc. // more\nbehind\nlong long"), "{all}");
    }
}
