//! Formats tables, names, times and colours for terminals and pipes.

use std::io::IsTerminal;
use std::ops::Range;

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use quipu_model::Millis;

/// A table with a head and no ruled box, readable by people and by `awk`; printed by
/// [`render_table`].
pub fn table<const N: usize>(head: [&str; N]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled).set_header(head);
    table
}

/// A table as text: columns begin at the margin and lines end with their last word.
pub fn render_table(mut table: Table) -> String {
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table.trim_fmt()
}

/// The same, with these columns right-aligned.
pub fn render_figures(mut table: Table, columns: Range<usize>) -> String {
    for index in columns {
        if let Some(column) = table.column_mut(index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    render_table(table)
}

/// Returns true if stdout is a terminal.
pub fn is_terminal() -> bool {
    std::io::stdout().is_terminal()
}

/// A good verdict.
pub fn good(text: &str) -> String {
    paint("32", text)
}

/// A bad verdict.
pub fn bad(text: &str) -> String {
    paint("1;31", text)
}

/// Text to read first.
pub fn bold(text: &str) -> String {
    paint("1", text)
}

/// A name for display: unchanged if it is plain text, else with its bytes escaped. Never breaks a
/// line or a column.
pub fn format_name(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.is_empty() && !text.contains(|c: char| c.is_control() || c == '\\' || c == '"') => {
            if text.contains(char::is_whitespace) { format!("\"{text}\"") } else { text.to_owned() }
        }
        _ => format!("\"{}\"", bytes.escape_ascii()),
    }
}

/// A time in UTC, by the calendar.
pub fn format_time(at: Millis) -> String {
    let (seconds, mut days) = (at.0 / 1000 % SECONDS_PER_DAY, at.0 / 1000 / SECONDS_PER_DAY);
    // Whole cycles first, so that an absurd time does not loop for long.
    let mut year = 1970 + days / DAYS_PER_CYCLE * YEARS_PER_CYCLE;
    days %= DAYS_PER_CYCLE;
    while days >= days_in_year(year) {
        days -= days_in_year(year);
        year += 1;
    }
    let february = if days_in_year(year) == 366 { 29 } else { 28 };
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    let (day, hour, minute, second) = (days + 1, seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

const SECONDS_PER_DAY: u64 = 24 * 60 * 60;

/// The calendar repeats after this number of years and days.
const YEARS_PER_CYCLE: u64 = 400;
const DAYS_PER_CYCLE: u64 = 146_097;

fn days_in_year(year: u64) -> u64 {
    let leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    if leap { 366 } else { 365 }
}

fn paint(code: &str, text: &str) -> String {
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
            assert_eq!(format_name(bytes), shown);
        }
    }

    #[test]
    fn a_time_is_printed_by_the_calendar() {
        for (seconds, shown) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_827_696, "2000-02-29 12:34:56 UTC"),
            (1_709_251_200, "2024-03-01 00:00:00 UTC"),
            (1_798_761_599, "2026-12-31 23:59:59 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
        ] {
            assert_eq!(format_time(Millis(seconds * 1000)), shown);
        }
        assert!(format_time(Millis(u64::MAX)).ends_with("UTC"));
    }
}
