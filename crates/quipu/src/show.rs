//! How things look on a terminal, and how they look in a pipe.

use std::io::IsTerminal;

use comfy_table::{ContentArrangement, Table, presets};

/// A table with a head and no ruled box, readable by people and by `awk`; printed by [`lines`].
pub fn table<const N: usize>(head: [&str; N]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled).set_header(head);
    table
}

/// A table as text: columns begin at the margin and lines end with their last word.
pub fn lines(mut table: Table) -> String {
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table.trim_fmt()
}

/// Whether people read stdout.
pub fn is_terminal() -> bool {
    std::io::stdout().is_terminal()
}

/// A verdict that is as hoped for.
pub fn good(text: &str) -> String {
    painted("32", text)
}

/// A verdict that is not.
pub fn bad(text: &str) -> String {
    painted("1;31", text)
}

/// Something to look at first.
pub fn bold(text: &str) -> String {
    painted("1", text)
}

/// A name as people read it: as it is if it is plain text, else with its bytes escaped. Never breaks a line or a column.
pub fn name(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.is_empty() && !text.contains(|c: char| c.is_control() || c == '\\' || c == '"') => {
            if text.contains(char::is_whitespace) { format!("\"{text}\"") } else { text.to_owned() }
        }
        _ => format!("\"{}\"", bytes.escape_ascii()),
    }
}

fn painted(code: &str, text: &str) -> String {
    if is_terminal() && std::env::var_os("NO_COLOR").is_none() {
        format!("\x1b[{code}m{text}\x1b[0m")
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stays_on_its_line_and_in_its_column() {
        for (bytes, shown) in [
            (&b"likes:42"[..], "likes:42"),
            ("größe:ø".as_bytes(), "größe:ø"),
            (b"two words", "\"two words\""),
            (b"", "\"\""),
            (b"a\nb", "\"a\\nb\""),
            (b"\xff\x00", "\"\\xff\\x00\""),
            (b"q\"", "\"q\\\"\""),
        ] {
            assert_eq!(name(bytes), shown);
        }
    }
}
