//! Formats time as RFC 3339, in UTC.

use quipu_model::Millis;

/// Formats `2026-11-16T11:05:39.123Z`.
pub fn rfc3339(at: Millis) -> String {
    let (seconds, millis) = (at.0 / 1_000, at.0 % 1_000);
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date(days);
    let (hour, minute, second) = (second / 3_600, second % 3_600 / 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

/// Date of a day, counted from 1970-01-01. Years begin in March here, so that the leap day is the
/// last day.
fn date(days: u64) -> (u64, u64, u64) {
    // Day 0 of this count is the first of March of the year 0, 719,468 days before 1970. The
    // calendar repeats after 400 years.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    // March to July and August to December have 153 days each.
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, year) = if month < 10 { (month + 3, year) } else { (month - 9, year + 1) };
    (era * 400 + year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (millis, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_709_164_800_007, "2024-02-29T00:00:00.007Z"),
            (1_735_689_599_999, "2024-12-31T23:59:59.999Z"),
            (1_735_689_600_000, "2025-01-01T00:00:00.000Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(rfc3339(Millis(millis)), text);
        }
        // The latest possible expiry of a counter.
        assert!(rfc3339(Millis(i64::MAX as u64)).ends_with('Z'));
        assert!(rfc3339(Millis(u64::MAX)).ends_with('Z'));
    }
}
