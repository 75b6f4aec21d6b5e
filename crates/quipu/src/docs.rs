//! `quipu docs`: prints pages of documentation from the code, for the copies in the repository.

use std::io::Write;
use std::process::ExitCode;

use crate::args::DocsPage;

/// Columns of printed prose. Tables, fences and words without a space may be longer.
const COLUMNS_MAX: usize = 100;

/// Prints a page.
pub fn docs(page: DocsPage, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let page = match page {
        DocsPage::Metrics => quipu_server::metrics_page(),
        DocsPage::Configuration => crate::config::page::page(),
        DocsPage::Commands => quipu_protocol::command::page(),
        DocsPage::Errors => quipu_server::errors_page(),
        DocsPage::Openapi => {
            out.write_all(quipu_server::openapi_page().as_bytes())?;
            return Ok(ExitCode::SUCCESS);
        }
    };
    out.write_all(wrap_prose(&page).as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// Wraps the prose of a Markdown page. Headings, tables and fences stay as they are.
fn wrap_prose(page: &str) -> String {
    let mut out = String::with_capacity(page.len());
    let mut is_fenced = false;
    for line in page.lines() {
        is_fenced ^= line.starts_with("```");
        if is_fenced || line.starts_with(['|', '#']) || line.chars().count() <= COLUMNS_MAX {
            out.push_str(line);
        } else {
            wrap_line(line, &mut out);
        }
        out.push('\n');
    }
    out
}

/// Appends a line, broken at spaces outside code and links. The rest of a list's item is indented.
fn wrap_line(line: &str, out: &mut String) {
    let indent = if line.starts_with("- ") { "  " } else { "" };
    // Two spaces at the end are a line break of Markdown.
    let end = if line.ends_with("  ") { "  " } else { "" };
    let mut columns = 0;
    let mut words = line.trim_end().split(' ');
    while let Some(word) = words.next() {
        let mut whole = word.to_owned();
        while is_inside(&whole)
            && let Some(more) = words.next()
        {
            whole.push(' ');
            whole.push_str(more);
        }
        let width = whole.chars().count();
        if columns > 0 && columns + 1 + width > COLUMNS_MAX {
            out.push('\n');
            out.push_str(indent);
            columns = indent.len();
        } else if columns > 0 {
            out.push(' ');
            columns += 1;
        }
        out.push_str(&whole);
        columns += width;
    }
    out.push_str(end);
}

/// Returns true if a text ends inside code or the text of a link.
fn is_inside(text: &str) -> bool {
    let count = |sign: char| text.matches(sign).count();
    count('`') % 2 == 1 || count('[') > count(']')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prose_is_wrapped_while_tables_fences_code_and_links_stay_whole() {
        let words = "some words of prose ".repeat(9);
        let table = format!("| {words} |");
        let code = format!("`{}`", "a long code span ".repeat(8));
        let link = "[A LINK](#to)";
        let links = [link; 12].join(" ");
        let page = format!(
            "# {words}\n\n- {words}\n\n{}  \nnext\n{table}\n```\n{words}\n```\nsee {code} there\n{links}\n",
            words.trim()
        );
        let wrapped = wrap_prose(&page);
        let joined = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(joined(&wrapped), joined(&page));
        assert!(wrapped.contains("\n  ") && wrapped.contains("  \nnext"), "{wrapped}");
        assert!(wrapped.contains(&table) && wrapped.contains(&code), "{wrapped}");
        assert_eq!(wrapped.matches(link).count(), 12, "{wrapped}");
        let prose = wrapped.lines().filter(|line| !line.starts_with(['#', '|', '`']) && !line.contains(&code));
        assert_eq!(prose.filter(|line| line.chars().count() > COLUMNS_MAX).count(), 1, "the fence: {wrapped}");
    }
}
