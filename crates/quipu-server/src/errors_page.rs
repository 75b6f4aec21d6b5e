//! Generates docs/errors.md: every error with its codes, cause and remedy, from the reason tables.

use std::fmt::{Display, Write};

use quipu_model::{Reason, Refusal, RespCode};
use quipu_protocol::{CommandError, DecodeError};

use crate::connection::ConnectionError;
use crate::http::reason;

const HEAD: &str = "# Errors

This page is printed from the code by `cargo xtask docs`.

- **An error reply means that nothing was applied**, over RESP and over HTTP.
- **A connection that closes without a reply means: outcome unknown.** The command was applied once
  or not at all. Retry it under a [token](guarantees.md) to apply it once.
- Over RESP, act on the first word of the error (`WRONGTYPE`, `TRYAGAIN`, …). Over HTTP, act on
  `status` and `type`. Texts may change.
- \"Try again\" below gives the seconds after which a retry may succeed. Over HTTP the header
  `Retry-After` has the same number.

";

/// One section of the page.
struct Section {
    title: &'static str,
    intro: &'static str,
    errors: Vec<(&'static Reason, Option<String>)>,
}

/// Generates the page.
pub fn errors_page() -> String {
    let sections = [
        Section {
            title: "Refusals",
            intro: "The server understood the command and did not apply it. Both protocols have these.",
            errors: examples(Refusal::REASONS, Refusal::examples()),
        },
        Section {
            title: "Errors of a command over RESP",
            intro: "The server did not understand the command and executed nothing.",
            errors: examples(CommandError::REASONS, CommandError::examples()),
        },
        Section {
            title: "Errors of a connection over RESP",
            intro: "Password, transactions and limits of one connection.",
            errors: examples(ConnectionError::REASONS, ConnectionError::examples()),
        },
        Section {
            title: "Protocol errors over RESP",
            intro: "The bytes are not RESP, or over a limit. The reply begins with `ERR Protocol error`, and the server closes the connection.",
            errors: examples(DecodeError::REASONS, DecodeError::examples()),
        },
        Section {
            title: "Errors of a request over HTTP",
            intro: "The server did not understand the request, or did not allow it.",
            errors: reason::REASONS.iter().map(|row| (row, None)).collect(),
        },
    ];
    let mut page = HEAD.to_owned();
    for section in &sections {
        let _ = writeln!(page, "**[{}](#{})**  ", section.title, anchor(section.title));
        let links = section.errors.iter().map(|(row, _)| format!("[{0}](#{0})", heading(row.name)));
        let _ = writeln!(page, "{}\n", links.collect::<Vec<_>>().join(" · "));
    }
    page.push_str(WORDS);
    for word in first_words(&sections).iter().filter(|word| *word != "ERR") {
        let errors: Vec<String> = sections
            .iter()
            .flat_map(|section| &section.errors)
            .filter(|(row, text)| first_word(row, text).as_ref() == Some(word))
            .map(|(row, _)| format!("[{0}](#{0})", heading(row.name)))
            .collect();
        let _ = writeln!(page, "| `{word}` | {} |", errors.join(", "));
    }
    for Section { title, intro, errors } in sections {
        let _ = write!(page, "\n## {title}\n\n{intro}\n");
        errors.iter().for_each(|(row, text)| write_row(&mut page, row, text.as_deref()));
    }
    page
}

const WORDS: &str = "## By first word

Redis's own words have the meaning of Redis. `ERR` is a mistake of the caller or of its data: do not
retry unchanged.

| first word over RESP | errors |
|---|---|
| `ERR` | all others |
";

/// Reasons with an example text of each; reasons with the same cause and remedy once.
fn examples<E: Display>(rows: &'static [Reason], errors: Vec<E>) -> Vec<(&'static Reason, Option<String>)> {
    let mut all: Vec<(&'static Reason, Option<String>)> = Vec::new();
    for (row, error) in rows.iter().zip(errors) {
        if !all.iter().any(|(before, _)| (before.cause, before.remedy) == (row.cause, row.remedy)) {
            all.push((row, Some(error.to_string())));
        }
    }
    all
}

/// First words of the error replies.
fn first_words(sections: &[Section]) -> Vec<String> {
    let errors = sections.iter().flat_map(|section| &section.errors);
    let mut words: Vec<String> = errors.filter_map(|(row, text)| first_word(row, text)).collect();
    words.sort();
    words.dedup();
    words
}

fn first_word(row: &Reason, text: &Option<String>) -> Option<String> {
    Some(match row.resp? {
        RespCode::Word(word) | RespCode::WordAndCommand(word) => word.to_owned(),
        RespCode::Module => "CMS:` or `TopK:".to_owned(),
        RespCode::Own => text.as_ref()?.split(' ').next()?.to_owned(),
    })
}

fn write_row(page: &mut String, row: &Reason, text: Option<&str>) {
    let _ = write!(page, "\n### {}\n\n", heading(row.name));
    let text = text.unwrap_or_default();
    let line = match row.resp {
        Some(RespCode::Word(word)) => Some(format!("{word} {text}")),
        Some(RespCode::WordAndCommand(word)) => Some(format!("{word} {text} in 'set' command")),
        Some(RespCode::Module) => Some(format!("CMS: {text}")),
        Some(RespCode::Own) => Some(text.to_owned()),
        None => None,
    };
    if let Some(line) = line {
        let _ = writeln!(page, "RESP: `{line}`  ");
    }
    if row.resp == Some(RespCode::Module) {
        let _ = writeln!(page, "(`TopK:` for commands of TOPK, `ERR` for others)  ");
    }
    if let Some(http) = row.http {
        let retry = match http.retry_after {
            0 => String::new(),
            seconds => format!(". Try again after {seconds} s"),
        };
        let _ = writeln!(page, "HTTP: {} `urn:quipu:problem:{}`: {}{retry}  ", http.status, http.word, http.title);
    }
    let _ = writeln!(page, "Cause: {}  \nRemedy: {}", row.cause, row.remedy);
}

/// A variant's name as a heading: `StoreDown` is `store-down`.
fn heading(name: &str) -> String {
    let mut heading = String::new();
    for letter in name.chars() {
        if letter.is_ascii_uppercase() && !heading.is_empty() {
            heading.push('-');
        }
        heading.push(letter.to_ascii_lowercase());
    }
    heading
}

/// Link to a title, as the usual Markdown renderers generate it.
fn anchor(title: &str) -> String {
    title.to_lowercase().replace(' ', "-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_has_cause_and_remedy_and_stands_on_the_page() {
        let page = errors_page();
        let rows =
            [Refusal::REASONS, CommandError::REASONS, ConnectionError::REASONS, DecodeError::REASONS, reason::REASONS];
        for row in rows.into_iter().flatten() {
            assert!(row.cause.ends_with('.') && row.remedy.ends_with('.'), "{row:?}");
            assert!(page.contains(row.cause) && page.contains(row.remedy), "{row:?}");
        }
        for problem in reason::all() {
            assert!(page.contains(&format!("`urn:quipu:problem:{}`", problem.word)), "{problem:?}");
        }
        let mut headings: Vec<&str> = page.lines().filter(|line| line.starts_with("### ")).collect();
        headings.sort_unstable();
        let all = headings.len();
        headings.dedup();
        assert_eq!(headings.len(), all, "a link leads to one error");
    }
}
